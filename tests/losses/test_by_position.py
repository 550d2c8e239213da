"""The loss modules called by position, as trainers call them: the same as by name, and exchanged sides are refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentValueError
from kullback.functional import TopK
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.refusals import refused

LABELS = torch.tensor([1, -100, 0])


def logits() -> tuple[Tensor, Tensor]:
    student, teacher = torch.randn(2, 3, 5)
    return student.requires_grad_(), teacher


def heads() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.randn(3, 4), torch.randn(5, 4, requires_grad=True), torch.randn(3, 6), torch.randn(5, 6)


def test_logits_by_position_are_student_teacher_labels() -> None:
    student, teacher = logits()
    loss = DistillationLoss(kind="js:0.3", temperature=2.0)
    want = loss(student=student, teacher=teacher, labels=LABELS)
    for got in (
        loss(student, teacher, LABELS),
        loss(student, teacher, labels=LABELS),
        loss(student, teacher=teacher, labels=LABELS),
    ):
        assert torch.equal(got, want)
    assert torch.equal(loss(student, teacher), loss(student=student, teacher=teacher))
    assert torch.equal(
        loss(student, teacher, normalizer=7), loss(student=student, teacher=teacher, normalizer=7)
    )


def test_heads_by_position_are_in_the_order_of_ligers_losses() -> None:
    student, student_weight, teacher, teacher_weight = heads()
    biases = torch.randn(2, 5)
    loss = LinearDistillationLoss(kind="reverse_kl")
    want = loss(
        student=student,
        student_weight=student_weight,
        teacher=teacher,
        teacher_weight=teacher_weight,
        labels=LABELS,
        student_bias=biases[0],
        teacher_bias=biases[1],
    )
    assert torch.equal(loss(student, student_weight, teacher, teacher_weight, LABELS, *biases), want)


def test_exchanged_sides_are_refused_while_the_student_learns() -> None:
    student, teacher = logits()
    with pytest.raises(ArgumentValueError, match=re.escape("wanted first the student")) as caught:
        DistillationLoss()(teacher, student, LABELS)
    assert str(caught.value).endswith("or loss(student=..., teacher=...) if the teacher is trained")
    # Both remedies.
    assert torch.equal(
        DistillationLoss()(student, teacher), DistillationLoss()(student=student, teacher=teacher)
    )
    DistillationLoss()(student=teacher, teacher=student).backward()
    student, student_weight, teacher, teacher_weight = heads()
    with refused(ArgumentValueError, wanted="^first the student"):
        LinearDistillationLoss()(teacher, teacher_weight, student, student_weight)


def test_a_teacher_that_learns_too_is_in_order() -> None:
    student, teacher = logits()
    DistillationLoss()(student, teacher.requires_grad_()).backward()
    assert student.grad is not None
    assert teacher.grad is not None


def test_evaluation_without_gradients() -> None:
    student, teacher = logits()
    with torch.no_grad():
        assert torch.equal(
            DistillationLoss()(student, teacher), DistillationLoss()(student=student, teacher=teacher)
        )


def test_a_teacher_of_top_classes_by_position() -> None:
    student, teacher = logits()
    log_probs, indices = teacher.log_softmax(-1).topk(2)
    top = TopK(indices, log_probs)
    assert torch.equal(DistillationLoss()(student, top), DistillationLoss()(student=student, teacher=top))


def test_too_many_and_twice_given() -> None:
    student, teacher = logits()
    with pytest.raises(TypeError, match="takes 3 arguments by position, student, teacher, labels; got 4"):
        DistillationLoss()(student, teacher, LABELS, None)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'student'"):
        DistillationLoss()(student, student=teacher)
    with pytest.raises(TypeError, match="teacher"):
        DistillationLoss()(student)


@pytest.mark.heavy
def test_by_position_it_compiles() -> None:
    student, teacher = logits()
    loss = DistillationLoss(kind="skew:0.1")
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(student, teacher, LABELS), loss(student, teacher, LABELS))
