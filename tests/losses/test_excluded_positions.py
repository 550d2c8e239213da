"""NaN at a position that does not count has no effect: on values, on derivatives of any order, by any route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from kullback import KL, Alpha, FDivergence, JensenShannon, Renyi, ReverseKL, TotalVariation
from kullback.errors import ArgumentValueError
from kullback.functional import (
    SampledTail,
    TopK,
    distillation_loss,
    linear_distillation_loss,
    top_k_divergence,
)
from tests.refusals import refused

GENERATOR = torch.Generator().manual_seed(0)
STUDENT, TEACHER = torch.randn(2, 3, 5, dtype=torch.float64, generator=GENERATOR)
HEAD = torch.randn(5, 5, dtype=torch.float64, generator=GENERATOR)
MASK = torch.tensor([True, False, True])
LABELS = torch.tensor([1, -100, 2])
LOG_PROBS, INDICES = TEACHER.log_softmax(-1).topk(2)
DRAWN = SampledTail.draw(TEACHER, k=2, draws=4, generator=torch.Generator().manual_seed(1))
Loss = Callable[[Tensor], Tensor]


def spoilt(x: Tensor, value: float = torch.nan) -> Tensor:
    """Return the rows with a NaN, or another number, at the position that does not count."""
    return torch.where(MASK.unsqueeze(-1), x, value)


def losses() -> Iterator[tuple[str, Loss]]:
    """Yield losses as functions of the student's logits, or of its hidden states."""
    top = {
        tail: TopK(INDICES, spoilt(LOG_PROBS), tail=tail)  # pyright: ignore[reportArgumentType]
        for tail in ("bucket", "renormalize", "zero")
    }
    teachers: dict[str, Any] = {"logits": spoilt(TEACHER), **top, "draws": DRAWN}
    for name, teacher in teachers.items():
        for kind in (KL(), JensenShannon(0.3), Alpha(0.3), Renyi(2.0), TotalVariation()):
            if not kind.additive and name in ("zero", "draws"):
                continue
            for reduction in ("mean", "none"):
                options: dict[str, Any] = {"kind": kind, "reduction": reduction}

                def of_logits(x: Tensor, teacher: Any = teacher, options: Any = options) -> Tensor:
                    return distillation_loss(student=x, teacher=teacher, mask=MASK, **options).sum()

                def with_labels(x: Tensor, teacher: Any = teacher, options: Any = options) -> Tensor:
                    return distillation_loss(
                        student=x, teacher=teacher, labels=LABELS, label_weight=0.4, **options
                    ).sum()

                yield f"{name} {kind!r} {reduction}", of_logits
                yield f"{name} {kind!r} {reduction} labels", with_labels
        if name != "draws":

            def of_hidden(x: Tensor, teacher: Any = teacher) -> Tensor:
                weight = HEAD if isinstance(teacher, Tensor) else None
                return linear_distillation_loss(
                    student=x, student_weight=HEAD, teacher=teacher, teacher_weight=weight, mask=MASK
                )

            yield f"head {name}", of_hidden


@pytest.mark.heavy
def test_first_and_second_derivatives_ignore_nan_where_no_position_counts() -> None:
    both = MASK[:, None, None, None] & MASK[None, None, :, None]
    wrong: list[str] = []
    with_nan = spoilt(STUDENT)
    one = torch.ones_like(STUDENT)
    for i, (name, f) in enumerate(losses()):
        leaf = STUDENT.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf), leaf)
        first, second = torch.where(MASK.unsqueeze(-1), first, 0), torch.where(both, hessian(f, STUDENT), 0)
        by_route: dict[str, tuple[Any, Tensor]] = {
            "hessian": (lambda f=f: hessian(f, with_nan), second),
            "create_graph": (
                lambda f=f: torch.autograd.grad(
                    f(x := with_nan.clone().requires_grad_()), x, create_graph=True
                )[0],
                first,
            ),
            "jvp": (lambda f=f: torch.func.jvp(f, (with_nan,), (one,))[1], first.sum()),
        }
        if i % 4 == 0:
            by_route |= {
                "vectorized hessian": (lambda f=f: hessian(f, with_nan, vectorize=True), second),
                "func.hessian": (lambda f=f: torch.func.hessian(f)(with_nan), second),
                "jacrev of grad": (lambda f=f: torch.func.jacrev(torch.func.grad(f))(with_nan), second),
            }
        for route, (derivative, true) in by_route.items():
            if not torch.allclose(derivative(), true, rtol=1e-7, atol=1e-10):
                wrong.append(f"{name} by {route}")
    assert not wrong, wrong


def test_a_second_derivative_passes_through_a_weight_that_is_0_by_chance() -> None:
    """A gradient of 0 excludes no position: the square of (loss - its own value) has the Hessian 2 g g^T."""
    for teacher in (TEACHER, TopK(INDICES, LOG_PROBS)):

        def f(x: Tensor, teacher: Any = teacher) -> Tensor:
            values = distillation_loss(student=x, teacher=teacher, reduction="none")
            return ((values - values.detach()) ** 2).sum()

        leaf = STUDENT[:, :].clone().requires_grad_()
        values = distillation_loss(student=leaf, teacher=teacher, reduction="none")
        gradients = [torch.autograd.grad(value, leaf, retain_graph=True)[0].flatten() for value in values]
        expected = 2 * sum(torch.outer(g, g) for g in gradients)
        torch.testing.assert_close(hessian(f, STUDENT).reshape(15, 15), expected)  # pyright: ignore[reportAttributeAccessIssue]


def test_nan_of_a_kept_class_is_refused_where_the_position_counts() -> None:
    teacher = TopK(INDICES, spoilt(LOG_PROBS))
    expected = distillation_loss(student=STUDENT, teacher=TopK(INDICES, LOG_PROBS), mask=MASK)
    assert distillation_loss(student=STUDENT, teacher=teacher, mask=MASK) == expected
    assert distillation_loss(student=STUDENT, teacher=teacher, weight=MASK.double()) == expected
    assert distillation_loss(student=STUDENT, teacher=teacher, labels=LABELS) == expected
    # The index of a position without a teacher may be anything too.
    spoilt_indices = torch.where(MASK.unsqueeze(-1), INDICES, -100)
    assert (
        distillation_loss(student=STUDENT, teacher=TopK(spoilt_indices, spoilt(LOG_PROBS)), mask=MASK)
        == expected
    )
    learned = spoilt(LOG_PROBS).requires_grad_()
    distillation_loss(student=STUDENT, teacher=TopK(INDICES, learned), mask=MASK).backward()
    assert learned.grad is not None
    assert learned.grad[1].eq(0).all()
    assert learned.grad[MASK].isfinite().all()
    calls: list[Callable[[], object]] = [
        lambda: distillation_loss(student=STUDENT, teacher=teacher),
        lambda: distillation_loss(student=STUDENT, teacher=teacher, mask=~MASK),
        lambda: linear_distillation_loss(student=STUDENT, student_weight=HEAD, teacher=teacher),
        lambda: top_k_divergence(KL(), teacher, STUDENT),
    ]
    for call in calls:
        with refused(ArgumentValueError, got=r"NaN at 1 of 3, the first at index \(1,\)", instead="mask="):
            call()
    with refused(ArgumentValueError, wanted="log-probabilities", got="^nan"):
        TopK(INDICES, LOG_PROBS * torch.nan)
    with refused(ArgumentValueError, wanted=r"each class once"):
        TopK(torch.zeros_like(INDICES), spoilt(LOG_PROBS))


def test_a_teacher_that_learns_has_gradient_0_if_the_labels_are_all_of_the_loss() -> None:
    kinds = (FDivergence(lambda r: r * r.log()), KL(), ReverseKL())
    labels = torch.tensor([1, 0, 2])
    for kind in kinds:
        for reduction in ("mean", "none"):
            for of_top in (False, True):
                hidden, weight, own, log_probs = (
                    x.clone().requires_grad_() for x in (STUDENT, HEAD, TEACHER, LOG_PROBS)
                )
                teacher: Any = TopK(INDICES, log_probs) if of_top else own
                value = linear_distillation_loss(
                    student=hidden,
                    student_weight=weight,
                    teacher=teacher,
                    teacher_weight=None if of_top else weight,
                    labels=labels,
                    label_weight=1.0,
                    kind=kind,
                    reduction=reduction,  # pyright: ignore[reportArgumentType]
                ).mean()
                learns = log_probs if of_top else own
                for again in (False, True):
                    got = torch.autograd.grad(value, (hidden, learns), retain_graph=True, create_graph=again)
                    logits = (hidden @ weight.T).detach()
                    expected = (logits.softmax(-1) - torch.eye(5, dtype=torch.float64)[labels]) @ HEAD / 3
                    torch.testing.assert_close(got[0].detach(), expected)
                    assert got[1].eq(0).all()
