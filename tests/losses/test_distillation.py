"""Distillation losses: values and gradients against 50 digits, what counts, reductions, vocabularies, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback import KL, Divergence, Jeffreys, JensenShannon, Renyi, ReverseKL, errors, nn
from kullback.functional import TopK, distillation_loss, linear_distillation_loss
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
KINDS = pytest.mark.parametrize("kind", truth.KINDS, ids=repr)


def pair(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    teacher = torch.randn(*shape, dtype=torch.float64)
    student = teacher + torch.randn(*shape, dtype=torch.float64)
    return student.to(dtype).requires_grad_(), teacher.to(dtype)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_those_of_the_formula(kind: Divergence, dtype: torch.dtype) -> None:
    student, teacher = pair(3, 6, dtype=dtype)
    got = distillation_loss(student=student, teacher=teacher, kind=kind, temperature=2.0, reduction="none")
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for s, t, value in zip(student.tolist(), teacher.tolist(), got.tolist(), strict=True):
        want = truth.divergence(kind, truth.softmax([x / 2 for x in t]), truth.softmax([x / 2 for x in s]))
        assert value == pytest.approx(float(want), rel=1e-10 if dtype == torch.float64 else 2e-6)


@KINDS
def test_gradients_reach_both_sides(kind: Divergence) -> None:
    student, teacher = pair(2, 4)
    teacher.requires_grad_()
    loss = distillation_loss(student=student, teacher=teacher, kind=kind, reduction="sum")
    by_student, by_teacher = torch.autograd.grad(loss, (student, teacher))
    for row in range(2):
        want_p, want_q = truth.logit_gradient(kind, teacher[row].tolist(), student[row].tolist())
        torch.testing.assert_close(by_teacher[row], torch.tensor(want_p).double(), rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(by_student[row], torch.tensor(want_q).double(), rtol=1e-7, atol=1e-9)


def test_a_factor_of_zero_makes_infinite_gradients_zero() -> None:
    student, teacher = torch.tensor([[-200.0, 0.0]]).requires_grad_(), torch.zeros(1, 2)
    loss = distillation_loss(student=student, teacher=teacher, kind="chi2")
    for factor, want in ((1.0, INF), (0.0, 0.0)):
        (got,) = torch.autograd.grad(loss, student, torch.tensor(factor), retain_graph=True)
        assert got.abs().tolist() == [[want, want]]
    head = linear_distillation_loss(
        student=student,
        student_weight=torch.eye(2),
        teacher=teacher,
        teacher_weight=torch.eye(2),
        kind="chi2",
    )
    assert torch.autograd.grad(head, student, torch.tensor(0.0))[0].tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("label_weight", [0.0, 0.3])
@pytest.mark.parametrize("settings", [{}, {"reduction": "none"}, {"weight": torch.tensor([0.3, 1.7, 0.1])},
                                      {"normalizer": torch.tensor(3.3, dtype=torch.float64)},
                                      {"temperature": 0.7, "temperature_squared": True}], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_gradient_to_a_float64_teacher_has_its_digits(
    dtype: torch.dtype, settings: dict[str, Any], label_weight: float
) -> None:
    """Whatever dtype the student has, in the first backward pass, in later ones and where it is differentiated."""
    (student, _), (_, teacher) = pair(3, 9, dtype=dtype), pair(3, 9)
    teacher.requires_grad_()
    settings = settings | {"labels": torch.tensor([8, 0, 4]), "label_weight": label_weight}

    def gradients(student: Tensor) -> list[Tensor]:
        loss = distillation_loss(student=student, teacher=teacher, **settings)
        factor = torch.full_like(loss, 1 / 3)
        passes = [torch.autograd.grad(loss, teacher, factor, retain_graph=True)[0] for _ in range(2)]
        return [*passes, torch.autograd.grad(loss, teacher, factor, create_graph=True)[0].detach()]

    for got, want in zip(gradients(student), gradients(student.detach().double()), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-14 * float(want.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("garbage", [math.nan, INF, 1e30])
@pytest.mark.parametrize("how", ["mask", "labels", "weight"])
def test_positions_that_do_not_count_change_nothing(dtype: torch.dtype, garbage: float, how: str) -> None:
    student, teacher = pair(4, 7, dtype=dtype)
    counted = torch.tensor([True, False, True, False])
    which = {
        "mask": {"mask": counted},
        "labels": {"labels": torch.where(counted, 3, -100)},
        "weight": {"weight": counted.float()},
    }[how]
    clean = distillation_loss(student=student[counted], teacher=teacher[counted])
    want = torch.autograd.grad(clean, student)[0]
    spoilt_student, spoilt_teacher = student.detach().clone(), teacher.clone()
    spoilt_student[~counted] = garbage
    spoilt_teacher[~counted] = garbage
    spoilt_student.requires_grad_()
    loss = distillation_loss(student=spoilt_student, teacher=spoilt_teacher, **which)
    torch.testing.assert_close(loss, clean)
    torch.testing.assert_close(torch.autograd.grad(loss, spoilt_student)[0], want)


def test_student_and_teacher_may_be_columns_of_one_matrix() -> None:
    weights, _ = pair(5, 12, dtype=torch.float32)
    outputs = weights * 1
    student, teacher = outputs[:, :6], outputs[:, 6:].detach()
    want = torch.autograd.grad(distillation_loss(student=student, teacher=teacher), student)[0]
    loss = distillation_loss(student=student, teacher=teacher, inplace_backward=True)
    kept = teacher.clone()
    (got,) = torch.autograd.grad(loss, student)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(student.detach(), want)
    assert torch.equal(teacher, kept)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_nothing_counted_gives_zero_with_zero_gradient(reduction: str, dtype: torch.dtype) -> None:
    student, teacher = pair(3, 5, dtype=dtype)
    mask = torch.zeros(3, dtype=torch.bool)
    loss = distillation_loss(student=student, teacher=teacher, mask=mask, reduction=reduction)
    assert (loss == 0).all()
    loss.sum().backward()
    assert student.grad is not None
    assert (student.grad == 0).all()


def test_reductions_are_what_they_say() -> None:
    student, teacher = pair(2, 3, 5)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    weight = torch.tensor([[1.0, 2.0, 5.0], [3.0, 7.0, 9.0]])
    rows = distillation_loss(student=student, teacher=teacher, reduction="none")

    def loss(reduction: str, **more: object) -> Tensor:
        return distillation_loss(
            student=student,
            teacher=teacher,
            mask=mask,
            reduction=reduction,
            **more,  # type: ignore[arg-type]
        )

    kept = rows * mask
    torch.testing.assert_close(loss("none"), kept)
    torch.testing.assert_close(loss("sum"), kept.sum())
    torch.testing.assert_close(loss("mean"), kept.sum() / 3)
    torch.testing.assert_close(loss("batchmean"), kept.sum() / 2)
    torch.testing.assert_close(loss("mean", weight=weight), (kept * weight).sum() / 6)
    torch.testing.assert_close(loss("sum", normalizer=10), kept.sum() / 10)
    torch.testing.assert_close(loss("mean", normalizer=torch.tensor(10)), kept.sum() / 10)


def test_accumulated_micro_batches_give_the_gradient_of_the_whole() -> None:
    student, teacher = pair(6, 5)
    mask = torch.tensor([True, True, False, True, False, True])
    whole = torch.autograd.grad(distillation_loss(student=student, teacher=teacher, mask=mask), student)[0]
    total = torch.zeros_like(whole)
    for part in (slice(0, 2), slice(2, 5), slice(5, 6)):
        loss = distillation_loss(
            student=student[part], teacher=teacher[part], mask=mask[part], normalizer=mask.sum()
        )
        total += torch.autograd.grad(loss, student)[0]
    torch.testing.assert_close(total, whole)


def test_temperature_squared_keeps_the_size() -> None:
    student, teacher = pair(2, 5)
    plain = distillation_loss(student=student, teacher=teacher, temperature=3.0)
    squared = distillation_loss(student=student, teacher=teacher, temperature=3.0, temperature_squared=True)
    torch.testing.assert_close(squared, 9 * plain)


def test_vocabularies_of_different_size() -> None:
    student, teacher = pair(2, 6)
    small = student[:, :4]
    with refused(
        errors.ArgumentValueError, wanted="as many classes as the teacher, 6$", got="^4", instead="truncate"
    ):
        distillation_loss(student=small, teacher=teacher)
    truncated = distillation_loss(student=small, teacher=teacher, vocabulary="truncate")
    torch.testing.assert_close(truncated, distillation_loss(student=small, teacher=teacher[:, :4]))
    assert distillation_loss(student=small, teacher=teacher, vocabulary="mask") == INF
    reverse = distillation_loss(student=small, teacher=teacher, vocabulary="mask", kind=ReverseKL())
    padded = torch.nn.functional.pad(small, (0, 2), value=-INF)
    torch.testing.assert_close(reverse, distillation_loss(student=padded, teacher=teacher, kind=ReverseKL()))
    assert reverse.isfinite()


def test_dtypes_may_differ_and_equal_models_lose_nothing() -> None:
    student, teacher = pair(3, 9, dtype=torch.float32)
    mixed = distillation_loss(student=student, teacher=teacher.bfloat16())
    torch.testing.assert_close(mixed, distillation_loss(student=student, teacher=teacher.bfloat16().float()))
    for kind in (KL(), JensenShannon(), Jeffreys()):
        loss = distillation_loss(student=student, teacher=student.detach().clone(), kind=kind)
        assert loss == 0
        assert (torch.autograd.grad(loss, student)[0] == 0).all()


@pytest.mark.sweep
def test_transforms_hold() -> None:
    student, teacher = pair(3, 4)
    weight = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)

    def loss(s: Tensor, t: Tensor) -> Tensor:
        return distillation_loss(student=s, teacher=t, weight=weight, kind=JensenShannon())

    teacher.requires_grad_()
    assert torch.autograd.gradcheck(loss, (student, teacher), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, (student, teacher))
    rows = torch.func.vmap(lambda s, t: distillation_loss(student=s, teacher=t))(student, teacher)
    torch.testing.assert_close(rows, distillation_loss(student=student, teacher=teacher, reduction="none"))
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(student, teacher), loss(student, teacher))


def test_module_does_the_same() -> None:
    student, teacher = pair(4, 5, dtype=torch.float32)
    labels = torch.tensor([1, 0, 2, 1])
    loss = nn.DistillationLoss(kind=ReverseKL(), temperature=2.0, temperature_squared=True, ignore_index=0)
    want = distillation_loss(
        student=student,
        teacher=teacher,
        kind=ReverseKL(),
        temperature=2.0,
        temperature_squared=True,
        labels=labels,
        ignore_index=0,
    )
    assert loss(student=student, teacher=teacher, labels=labels) == want
    assert repr(loss) == (
        "DistillationLoss(kind=ReverseKL(), temperature=2.0, reduction='mean', temperature_squared=True, "
        "ignore_index=0)"
    )
    assert loss(student, teacher, labels) == want  # by position too, as trainers call it: test_by_position.py


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"student": [1.0]}, TypeError, r"student=...\): wanted a floating-point tensor.*got list"),
        ({"teacher": X.long()}, TypeError, r"teacher=...\): .*int64"),
        ({"teacher": torch.zeros(4, 3)}, ValueError, r"shape \(4,\); got shape \(2,\)"),
        ({"teacher": X.to("meta")}, ValueError, r"on cpu, where the student is; got one on meta"),
        (
            {"mask": torch.ones(3, dtype=torch.bool)},
            ValueError,
            r"mask=...\): .*shape \(2,\); got shape \(3,\)",
        ),
        ({"mask": torch.ones(2)}, TypeError, r"mask=...\): wanted a boolean tensor"),
        ({"reduction": "average"}, ValueError, r"'batchmean'; got 'average'"),
        ({"temperature": 0.0}, ValueError, r"temperature=...\): wanted a positive number"),
        (
            {"kind": KL},
            TypeError,
            r"kind=...\): wanted a divergence or the name of one; got the class KL itself. Write: kind=KL\(\)$",
        ),
        ({"kind": "kld"}, ValueError, r"kind=...\): wanted one of 'kl', 'reverse_kl', .*; got 'kld'"),
        ({"vocabulary": "pad"}, ValueError, r"'truncate', 'mask'; got 'pad'"),
        ({"reduction": "none", "normalizer": 3}, ValueError, r"normalizer=...\)"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(errors.KullbackError, match=message) as caught:
        distillation_loss(**{"student": X, "teacher": X, **arguments})  # type: ignore[arg-type]
    assert isinstance(caught.value, error)


DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)


@KINDS
@DTYPES
def test_a_total_has_the_gradient_of_its_rows(kind: Divergence, dtype: torch.dtype) -> None:
    student, teacher = pair(5, 9, dtype=dtype)
    teacher.requires_grad_()
    weight = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.0])

    def gradients(reduction: str, seed: Tensor) -> tuple[Tensor, ...]:
        loss = distillation_loss(
            student=student, teacher=teacher, kind=kind, weight=weight, temperature=1.5, reduction=reduction
        )
        return torch.autograd.grad(loss, (student, teacher), seed.to(loss.dtype))

    rows = gradients("none", torch.full((5,), 7.0))
    for mine, by_row in zip(gradients("sum", torch.tensor(7.0)), rows, strict=True):
        # A gradient made in the forward pass is rounded once before it is multiplied and once after; its largest entry
        # may be what the others leave.
        torch.testing.assert_close(mine, by_row, rtol=2 * torch.finfo(dtype).eps, atol=5e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_total_can_be_differentiated_again_and_again(dtype: torch.dtype) -> None:
    student, teacher = pair(3, 4, dtype=dtype)
    teacher.requires_grad_()
    mask = torch.tensor([True, False, True])

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        return distillation_loss(student=student, teacher=teacher, mask=mask)

    value = loss(student, teacher)
    once = torch.autograd.grad(value, (student, teacher), retain_graph=True)
    twice = torch.autograd.grad(value, (student, teacher), retain_graph=True)
    recorded = torch.autograd.grad(value, (student, teacher), create_graph=True)
    for one, two, three in zip(once, twice, recorded, strict=True):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three)
    batch = torch.autograd.grad(
        value, student, torch.tensor([1.0, -2.0], dtype=dtype), is_grads_batched=True
    )[0]
    torch.testing.assert_close(batch, torch.stack([once[0], -2 * once[0]]))
    wide = [x.detach().double().requires_grad_() for x in (student, teacher)]
    assert torch.autograd.gradcheck(loss, wide, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(loss, wide)


def test_a_scaled_loss_keeps_the_small_gradients_of_float16() -> None:
    student = (1e-2 * torch.randn(2048, 8)).half().requires_grad_()
    teacher = torch.zeros(2048, 8)
    loss = distillation_loss(student=student, teacher=teacher)
    (scaled,) = torch.autograd.grad(loss * 2**16, student)
    want = (student.detach().double().softmax(-1) - 1 / 8) * 2**16 / 2048
    torch.testing.assert_close(scaled.double(), want, rtol=2e-3, atol=1e-4)


def test_transforms_see_a_total() -> None:
    student, teacher = (x.detach() for x in pair(6, 3, 5, dtype=torch.float32))

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        return distillation_loss(student=student, teacher=teacher, reduction="sum")

    values = torch.func.vmap(loss)(student, teacher)
    torch.testing.assert_close(
        values, torch.stack([loss(s, t) for s, t in zip(student, teacher, strict=True)])
    )
    gradients = torch.func.vmap(torch.func.grad(loss))(student, teacher)
    by_all = torch.func.grad(loss)(student, teacher)
    torch.testing.assert_close(gradients, by_all)
    torch.testing.assert_close(
        torch.func.jvp(loss, (student, teacher), (student, 0 * teacher))[1], (by_all * student).sum()
    )


# Each kind meets each dtype, and each of both meets static and dynamic shapes: a graph takes many seconds.
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "dtype", "dynamic"),
    [
        (KL(), torch.float32, True),
        (KL(), torch.float16, False),
        (JensenShannon(), torch.float32, False),
        (JensenShannon(), torch.float16, True),
        (Renyi(alpha=0.5), torch.float32, False),
        (Renyi(alpha=0.5), torch.float16, True),
    ],
    ids=repr,
)
def test_a_total_compiles_whole(kind: Divergence, dtype: torch.dtype, dynamic: bool) -> None:
    student, teacher = pair(4, 6, dtype=dtype)
    mask = torch.tensor([True, False, True, True])
    options = {"kind": kind, "mask": mask, "temperature": 2.0, "temperature_squared": True}

    def loss(student: Tensor, teacher: Tensor) -> Tensor:
        return distillation_loss(student=2 * student, teacher=teacher, **options)  # type: ignore[arg-type]

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=dynamic)(student, teacher)
    torch.testing.assert_close(compiled, loss(student, teacher))
    got, want = (torch.autograd.grad(x, student)[0] for x in (compiled, loss(student, teacher)))
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_gradient_in_place_takes_the_memory_of_the_logits(dtype: torch.dtype, transposed: bool) -> None:
    weights, teacher = pair(5, 9, dtype=dtype)
    weight = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.0])

    def logits() -> Tensor:
        return (weights.T * 1).T if transposed else weights * 1

    want = torch.autograd.grad(distillation_loss(student=logits(), teacher=teacher, weight=weight), weights)[
        0
    ]
    student = logits()
    loss = distillation_loss(student=student, teacher=teacher, weight=weight, inplace_backward=True)
    torch.testing.assert_close(student, logits())  # the forward pass leaves them as they were
    (got,) = torch.autograd.grad(loss, weights)
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    torch.testing.assert_close(student.detach(), got)


def test_logits_that_the_backward_pass_overwrote_are_not_used_again() -> None:
    weights, teacher = pair(5, 9, dtype=torch.float32)
    student = weights * 1
    other = student.exp().sum() + (student**2).sum()
    loss = distillation_loss(student=student, teacher=teacher, inplace_backward=True)
    loss.backward(retain_graph=True)
    for stale in (loss, other):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            stale.backward()


def test_rows_that_share_memory_are_not_overwritten() -> None:
    weights, teacher = pair(1, 9, dtype=torch.float32)
    student = (weights * 1).expand(4, 9)
    loss = distillation_loss(student=student, teacher=teacher.expand(4, 9), inplace_backward=True)
    want = distillation_loss(student=weights, teacher=teacher)
    torch.testing.assert_close(*(torch.autograd.grad(x, weights)[0] for x in (loss, want)))


def of_one_memory() -> dict[str, Tensor]:
    """Student and teacher whose columns overlap."""
    both = torch.zeros(2, 5, requires_grad=True) * 1
    return {"student": both[:, :3], "teacher": both.detach()[:, 2:]}


@pytest.mark.parametrize(
    ("wanted", "change"),
    [
        ("a reduction", {"reduction": "none"}),
        (
            "a student that is not a view of a leaf",
            {"student": torch.zeros(6, requires_grad=True).view(2, 3)},
        ),
        (
            "a student that is not a view of a leaf",
            {"student": torch.zeros(2, 5, requires_grad=True)[:, 1:4]},
        ),
        ("a student that shares no memory", of_one_memory()),
        (
            "a student whose rows do not overlap",
            {"student": (torch.zeros(4, requires_grad=True) * 1).unfold(0, 3, 1)},
        ),
        ("a student that is not a leaf", {"student": torch.zeros(2, 3, requires_grad=True)}),
        ("a teacher that requires no gradient", {"teacher": torch.zeros(2, 3, requires_grad=True)}),
    ],
)
def test_a_gradient_in_place_that_cannot_be_is_refused(wanted: str, change: dict[str, object]) -> None:
    arguments = {
        "student": torch.zeros(2, 3),
        "teacher": torch.zeros(2, 3),
        "inplace_backward": True,
        **change,
    }
    with pytest.raises(errors.ArgumentValueError, match=rf"inplace_backward=.*{wanted}"):
        distillation_loss(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
def test_a_teacher_may_be_known_by_its_top_classes(reduction: str) -> None:
    student, logits = pair(3, 2, 6)
    log_probs, indices = logits.log_softmax(-1).topk(6)
    mask = torch.rand(3, 2) < 0.7
    options = {"student": student, "mask": mask, "reduction": reduction, "temperature_squared": True}
    got = distillation_loss(teacher=TopK(indices, log_probs), **options)  # type: ignore[arg-type]
    torch.testing.assert_close(got, distillation_loss(teacher=logits, **options))  # type: ignore[arg-type]
    got = distillation_loss(teacher=TopK(indices, log_probs), normalizer=7, **{**options, "reduction": "sum"})  # type: ignore[arg-type]
    torch.testing.assert_close(
        got, distillation_loss(teacher=logits, normalizer=7, **{**options, "reduction": "sum"})
    )  # type: ignore[arg-type]
