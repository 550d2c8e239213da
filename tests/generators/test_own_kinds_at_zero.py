"""A user's own kinds whose plain formulas are NaN, or negative, where a probability is 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from kullback import Alpha, Counts, Divergence, Logits, Probs, divergence
from kullback.errors import ArgumentValueError
from kullback.functional import TopK, linear_distillation_loss, top_k_divergence
from kullback.generators import FinitePair
from kullback.nn import DistillationLoss
from tests.refusals import refused

INF = math.inf


class PlainKL(Divergence):
    """0 times -inf at p = 0, and -inf less -inf at p = q = 0."""

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.p * (pair.log_p() - pair.log_q())

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return pair.p * (pair.log_p() - pair.log_q()), -pair.p  # up to a multiple of p


class CarefulKL(PlainKL):
    """Right at 0, but negative where p is below q."""

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.p_log_ratio()


class PlainReverse(Divergence):
    def terms(self, pair: FinitePair) -> Tensor:
        return pair.q * torch.log(pair.q / pair.p)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return -pair.q, self.terms(pair) + pair.q


class Power(Divergence):
    """Of a class that is no dataclass: what it holds is no field."""

    def __init__(self, order: float) -> None:
        self.order = order

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.q * ((pair.p / pair.q) ** self.order - 1) / (self.order * (self.order - 1))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p = pair.q * (pair.p / pair.q) ** self.order / (self.order - 1)
        return by_p, self.terms(pair) - by_p


@dataclass(frozen=True)
class Distance(Divergence):
    def terms(self, pair: FinitePair) -> Tensor:
        return pair.q * (pair.p / pair.q - 1).abs()

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        sign = torch.sign(pair.p / pair.q - 1)
        return sign * pair.p, -sign * pair.q


class Triangular(Divergence):
    """0 / 0 at p = q = 0 alone."""

    def terms(self, pair: FinitePair) -> Tensor:
        return (pair.p - pair.q) ** 2 / (pair.p + pair.q)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        ratio = (pair.p - pair.q) / (pair.p + pair.q)
        return pair.p * ratio * (2 - ratio), -pair.q * ratio * (2 + ratio)


# Each with f, f(0) and the limit of f(r) / r.
KINDS: dict[str, tuple[Divergence, Callable[[Tensor], Tensor], float, float]] = {
    "KL": (PlainKL(), lambda r: r * torch.log(r), 0.0, INF),
    "careful KL": (CarefulKL(), lambda r: r * torch.log(r), 0.0, INF),
    "reverse KL": (PlainReverse(), lambda r: -torch.log(r), INF, 0.0),
    "order 0.4": (Power(0.4), lambda r: (r**0.4 - 1) / -0.24, 1 / 0.24, 0.0),
    "order 2": (Power(2.0), lambda r: (r**2 - 1) / 2, -0.5, INF),
    "order -0.5": (Power(-0.5), lambda r: (r**-0.5 - 1) / 0.75, INF, 0.0),
    "distance": (Distance(), lambda r: (r - 1).abs(), 1.0, 1.0),
    "triangular": (Triangular(), lambda r: (r - 1) ** 2 / (r + 1), 1.0, 1.0),
}
# Logits of P and Q: the third class is empty in both, and the fourth in one of them.
SOME = torch.tensor([0.3, -1.1, -INF, 0.8, 0.0], dtype=torch.float64)
MORE = torch.tensor([-0.4, 0.9, -INF, 0.2, 0.5], dtype=torch.float64)
FOURTH = torch.tensor([False, False, False, True, False])
ROWS = {
    "P": (SOME.masked_fill(FOURTH, -INF), MORE),
    "Q": (SOME, MORE.masked_fill(FOURTH, -INF)),
    "both": (SOME.masked_fill(FOURTH, -INF), MORE.masked_fill(FOURTH, -INF)),
    "neither": (SOME, MORE),
}
UNDERFLOW = {"P underflows": (SOME.masked_fill(FOURTH, -770.0), MORE)}
ALL_ROWS = ROWS | UNDERFLOW
CASES = [(name, row) for name in KINDS for row in ALL_ROWS if row in ROWS or KINDS[name][2] < INF]


def true_value(name: str, p: Tensor, q: Tensor) -> Tensor:
    """Sum the terms over the classes that both have, and the limits of the others."""
    _, f, at_zero, slope = KINDS[name]
    both, only_p, only_q = (p > 0) & (q > 0), (p > 0) & (q == 0), (p == 0) & (q > 0)
    value = (q[both] * f(p[both] / q[both])).sum()
    value = value + at_zero * q[only_q].sum() if bool(only_q.any()) else value
    return value + slope * p[only_p].sum() if bool(only_p.any()) else value


def true_results(name: str, p: Tensor, q: Tensor, masses: Callable[[Tensor], Tensor]) -> list[Tensor]:
    sides = [x.clone().requires_grad_() for x in (p, q)]
    value = true_value(name, *(masses(x) for x in sides))
    return [value.detach(), *(x.nan_to_num(nan=0.0) for x in torch.autograd.grad(value, sides))]


def softmax(x: Tensor) -> Tensor:
    """Softmax, of which a logit of -inf is no part."""
    has_mass = x > -INF
    return torch.zeros_like(x).masked_scatter(has_mass, x[has_mass].softmax(-1))


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    assert all(x.isfinite().all() for x in found[1:])
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-15)
    if expected[0].isfinite():
        torch.testing.assert_close(found[1:], expected[1:], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("name", "row"), CASES)
def test_values_and_gradients_are_the_limits(name: str, row: str) -> None:
    kind, logits = KINDS[name][0], ALL_ROWS[row]
    expected = true_results(name, *logits, softmax)

    def student_first(q: Tensor, p: Tensor) -> Tensor:
        return DistillationLoss(kind=kind)(student=q[None], teacher=p[None])

    def head(p: Tensor, q: Tensor) -> Tensor:
        eye = torch.ones(1, 1, dtype=torch.float64)
        return linear_distillation_loss(
            student=eye, student_weight=q[:, None], teacher=eye, teacher_weight=p[:, None], kind=kind
        )

    doors: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda p, q: divergence(Logits(p), Logits(q), kind),
        lambda p, q: student_first(q, p),
        head,
    ]
    for door in doors:
        sides = [x.clone().requires_grad_() for x in logits]
        value = door(*sides)
        check([value.detach(), *torch.autograd.grad(value, sides)], expected)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", KINDS)
def test_probabilities_counts_and_categories(name: str, row: str) -> None:
    kind = KINDS[name][0]
    p, q = (softmax(x) for x in ROWS[row])
    value = true_value(name, p, q)
    pairs: list[tuple[Any, Any]] = [
        (Probs(p), Probs(q)),
        (Counts(100 * p), Counts(7 * q)),
        (Categorical(probs=p), Categorical(probs=q)),
    ]
    for pair in pairs:
        found = divergence(*pair, kind)
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-15)
    sides = [x.clone().requires_grad_() for x in (p, q)]
    found = torch.autograd.grad(divergence(Probs(sides[0]), Probs(sides[1]), kind), sides)
    assert all(x.isfinite().all() for x in found)


def test_terms_are_finite_where_a_mass_underflows_that_they_divide_by() -> None:
    p, q = torch.tensor([0.0, -770.0], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    found = [divergence(Logits(p), Logits(q), kind) for kind in (PlainReverse(), Power(-0.5))]
    expected = [385 - math.log(2), (0.5**1.5 * math.exp(385) + 0.5**1.5 - 1) / 0.75]
    torch.testing.assert_close(
        torch.stack(found), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0.0
    )


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "zero"])
@pytest.mark.parametrize("name", KINDS)
def test_tails_of_a_stored_teacher(name: str, tail: Any) -> None:
    kind, f, at_zero, _ = KINDS[name]
    teacher = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.05], dtype=torch.float64)
    logits = torch.tensor([0.1, 0.3, -0.8, 0.7, -0.2], dtype=torch.float64)
    results: list[list[Tensor]] = []
    for is_truth in (False, True):
        student = logits.clone().requires_grad_()
        if is_truth:
            q, p = student.softmax(-1), teacher[:2]
            p = p / p.sum() if tail == "renormalize" else p
            left, rest = 1 - p.sum(), 1 - q[:2].sum()
            value = (q[:2] * f(p / q[:2])).sum()
            if tail == "bucket":
                value = value + rest * f(left / rest)
            elif tail == "renormalize":
                value = value + rest * at_zero
            else:  # the terms with f'(1) = 0
                one = torch.ones((), dtype=torch.float64)
                slope = torch.func.grad(f)(one) if name != "distance" else 0.0
                value = value - slope * (p - q[:2]).sum()
        else:
            value = top_k_divergence(kind, TopK(torch.arange(2), teacher[:2].log(), tail=tail), student)
        results.append([value.detach(), *torch.autograd.grad(value, student)])
    check(results[0], results[1])


def test_what_a_class_holds_without_fields_is_told_apart() -> None:
    p, q = (
        Categorical(probs=torch.tensor([0.25, 0.25, 0.5])),
        Categorical(probs=torch.tensor([0.0, 0.5, 0.5])),
    )
    for order in (0.4, 2.0, 0.4):
        torch.testing.assert_close(divergence(p, q, Power(order)), divergence(p, q, Alpha(order)))


def test_a_kind_keeps_its_name() -> None:
    assert DistillationLoss(kind=PlainKL()).kind.name == repr(PlainKL())


# ---- What is refused.


class Affinity(Power):
    def terms(self, pair: FinitePair) -> Tensor:
        return -torch.sqrt(pair.p * pair.q)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return self.terms(pair) / 2, self.terms(pair) / 2


class LessAtOne(Affinity):
    """The remedy that the refusal names."""

    def terms(self, pair: FinitePair) -> Tensor:
        return super().terms(pair) + pair.q

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by = Affinity.terms(self, pair) / 2
        return by, by + pair.q


def test_terms_that_are_not_0_where_p_is_q_are_refused() -> None:
    p, q = Probs([0.2, 0.8, 0.0]), Probs([0.5, 0.0, 0.5])
    with refused(ArgumentValueError, call="Affinity", argument="terms", instead=r"f\(1\) q"):
        divergence(p, q, Affinity(0.5))
    torch.testing.assert_close(divergence(p, q, LessAtOne(0.5)), torch.tensor(1 - math.sqrt(0.1)))


class RootOfKL(Divergence):
    """The root of a sum of terms that are NaN at p = 0."""

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.p * pair.log_ratio + pair.q - pair.p

    def total(self, pair: FinitePair) -> Tensor:
        return torch.sqrt(self.terms(pair).sum(-1))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        root = 2 * self.total(pair)[..., None]
        return pair.p * pair.log_ratio / root, (pair.q - pair.p) / root


class SafeRootOfKL(RootOfKL):
    """The remedy that the refusal names."""

    def terms(self, pair: FinitePair) -> Tensor:
        limit = torch.where(pair.q > 0, pair.q, INF)
        return torch.where(pair.log_ratio.isinf(), limit, super().terms(pair))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p, by_q = super().derivatives(pair)
        return torch.where(pair.log_ratio.isinf(), 0.0, by_p), by_q


def test_a_total_of_its_own_that_is_nan_is_refused() -> None:
    p, q = Probs(torch.tensor([0.0, 0.5, 0.5])), Probs(torch.tensor([0.25, 0.25, 0.5]))
    with refused(ArgumentValueError, call="RootOfKL", argument="total", instead="isinf"):
        divergence(p, q, RootOfKL())
    found = divergence(p, q, SafeRootOfKL())
    torch.testing.assert_close(found, torch.tensor(0.5 * math.log(2)).sqrt())
