r"""Divergences of every kind from counts: the estimate, its variance, and the behavior of both near P = Q.

KL has estimators of its own (`point`). Other kinds are estimated from a of P's n draws and b of Q's m draws in each
category, in one of two ways:

* Powers of p / q of order outside (0, 1) have unbiased estimates of :math:`p^\alpha q^{1 - \alpha}` by ratios of gamma
  functions: :math:`E[\Gamma(a + 1) / \Gamma(a + 1 - \alpha)] = (n p)^\alpha` for a Poisson count, except for terms that
  decay exponentially with n p.
* Bounded kinds use the divergence of the shares minus the jackknife's estimate of its bias.

Variances are the jackknife's. Counts have shape (..., K), and everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.estimators.discrete.formulas import (
    CoverageCorrection,
    SecondOrder,
    coverage_correction,
    first_order,
    second_order,
    zhang_grabchak,
)
from kullback.generators import Divergence
from kullback.generators.divergence import FinitePair
from kullback.generators.growth import power_of

# Known probabilities count as this number of draws.
KNOWN = 1e15
# With more draws, the jackknife's bias is rounding.
_EXACT = 1e9
# Categories with fewer draws of P and Q together, or half as many expected ones on the smaller side, are rare.
FEWEST_DRAWS = 10
# From here on, ratios of gamma functions are powers to float64's precision.
_LARGE = 1e5


Terms = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _many(a: Tensor, b: Tensor) -> Tensor:
    return torch.full_like((a + b).sum(-1), math.inf)


@dataclass(frozen=True)
class Measure:
    """How a divergence is estimated from counts (a, b).

    Attributes:
        estimate: the estimate with the least bias.
        above: the estimate for the upper limit. It keeps the bias of rare categories, which is upwards for a convex
            function and of unknown size for a category with few draws.
        correction: the predicted contribution of categories without draws.
        variances: the parts of the variance from P's draws and from Q's, far from P = Q.
        near: the mean and the variance of the divergence of the shares where P = Q.
        curvature: f''(1), 1 for KL.
        of_two: the divergence of two distributions on two categories, from the probabilities of the first category.
        largest: the largest value for any distributions.
        open_above: whether it is infinite if P has mass where Q has none.
        open_below: whether it is infinite if Q has mass where P has none.
        power: c where 1 + c D is a mean of powers of p / q of order above 1 or below 0, and 0 for other kinds. With c,
            each draw outside the other side's sample matters.
        dof: the degrees of freedom of the variance, by Satterthwaite.
    """

    estimate: Callable[[Tensor, Tensor], Tensor]
    above: Callable[[Tensor, Tensor], Tensor]
    correction: Callable[[Tensor, Tensor], CoverageCorrection]
    variances: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    near: Callable[[Tensor, Tensor], SecondOrder]
    curvature: float
    of_two: Callable[[Tensor, Tensor], Tensor]
    largest: float
    open_above: bool
    open_below: bool
    power: float = 0.0
    dof: Callable[[Tensor, Tensor], Tensor] = _many


def _kl_of_two(p: Tensor, q: Tensor) -> Tensor:
    return torch.special.xlogy(p, p / q) + torch.special.xlogy(1 - p, (1 - p) / (1 - q))


KL_MEASURE = Measure(
    zhang_grabchak,
    zhang_grabchak,
    coverage_correction,
    first_order,
    second_order,
    1.0,
    _kl_of_two,
    math.inf,
    True,
    False,
)


def measure_of(kind: Divergence) -> Measure:
    """Return the estimator of a kind other than `KL`, `ReverseKL`, `Renyi` and total variation."""
    order, factor = power_of(kind) or (0.5, 1.0)
    if 0 < order < 1:
        terms, swapped, power, constant = _terms_of(kind), False, 0.0, 0.0
    else:
        swapped, order = order < 0, max(order, 1 - order)
        power = order * (order - 1) / factor
        terms, constant = _powers(order, power), -1 / power
    sums = _CategorySums(terms, constant, swapped, corrected=power == 0)
    curvature = _curvature(kind)

    def near(a: Tensor, b: Tensor) -> SecondOrder:
        of_kl = second_order(a, b)
        return SecondOrder(curvature * of_kl.mean, curvature**2 * of_kl.variance)

    def of_two(p: Tensor, q: Tensor) -> Tensor:
        return of_shares(kind, torch.stack([p, 1 - p], -1), torch.stack([q, 1 - q], -1)).sum(-1)

    ends = at_the_ends(kind)
    return Measure(
        sums.estimate,
        sums.above,
        no_correction,
        sums.variances,
        near,
        curvature,
        of_two,
        largest=sum(ends),
        open_above=math.isinf(ends[0]),
        open_below=math.isinf(ends[1]),
        power=power,
        dof=sums.dof if power else _many,
    )


@dataclass(frozen=True)
class _CategorySums:
    """Estimates that are sums over categories.

    Attributes:
        terms: the term of a category, from its counts and the numbers of draws, P's first.
        constant: the divergence minus the sum of the terms.
        swapped: whether the terms take Q's counts first.
        corrected: whether the bias of the terms is subtracted.
    """

    terms: Terms
    constant: float
    swapped: bool
    corrected: bool

    def estimate(self, a: Tensor, b: Tensor) -> Tensor:
        return self._value(a, b) - (_bias(self.terms, a, b).sum(-1) if self.corrected else 0.0)

    def above(self, a: Tensor, b: Tensor) -> Tensor:
        if not self.corrected:
            return self._value(a, b)
        return self._value(a, b) - _bias(self.terms, a, b).masked_fill(is_rare(a, b), 0).sum(-1)

    def variances(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        from_p, from_q = self._variances(a, b)
        return from_p.sum(-1), from_q.sum(-1)

    def dof(self, a: Tensor, b: Tensor) -> Tensor:
        from_p, from_q = self._variances(a, b)
        squares = from_p.square() / a.clamp(min=1) + from_q.square() / b.clamp(min=1)
        return (from_p + from_q).sum(-1).square() / squares.sum(-1).clamp(min=torch.finfo(a.dtype).tiny)

    def _value(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = (b, a) if self.swapped else (a, b)
        return self.terms(a, a.sum(-1, keepdim=True), b, b.sum(-1, keepdim=True)).sum(-1) + self.constant

    def _variances(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        if not self.swapped:
            return _variances(self.terms, a, b)
        from_q, from_p = _variances(self.terms, b, a)
        return from_p, from_q


def at_the_ends(kind: Divergence) -> tuple[float, float]:
    """Return the terms of a class with mass in P only, and with mass in Q only; their sum is the largest value."""
    ones, zeros = _double(1.0), _double(0.0)
    return float(of_shares(kind, ones, zeros)), float(of_shares(kind, zeros, ones))


def of_shares(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """Return the terms of a divergence of two measures, which need not add up to one."""
    ratio = torch.where(p == q, 0.0, p.log() - q.log())
    return kind.terms(FinitePair(p, q, ratio))


def is_rare(a: Tensor, b: Tensor) -> Tensor:
    """Return which categories have fewer than 5 expected draws on the smaller side if P = Q.

    This depends on the sum of the counts, so it selects almost independently of their ratio.
    """
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    return 2 * torch.minimum(n, m) / (n + m) * (a + b) < FEWEST_DRAWS


def _double(x: float) -> Tensor:
    return torch.tensor([x], dtype=torch.float64, device="cpu")


def _terms_of(kind: Divergence) -> Terms:
    return lambda a, n, b, m: of_shares(kind, a / n, b / m)


def _curvature(kind: Divergence) -> float:
    """Return f''(1): a term of p = 1 + h and q = 1 is f''(1) h^2 / 2 for small h."""
    h = 1e-4
    p, one = (
        torch.tensor([1 + h, 1 - h], dtype=torch.float64, device="cpu"),
        torch.ones(2, dtype=torch.float64, device="cpu"),
    )
    return float(of_shares(kind, p, one).sum()) / h**2


def no_correction(a: Tensor, b: Tensor) -> CoverageCorrection:
    """Return a correction of 0."""
    zero = torch.zeros_like((a + b).sum(-1))
    return CoverageCorrection(zero, zero, zero)


def _powers(order: float, power: float) -> Terms:
    """Return the terms of a sum of powers without bias, over `power`."""

    def terms(a: Tensor, n: Tensor, b: Tensor, m: Tensor) -> Tensor:
        of_p, of_q = _falling(a, order) / _falling(n, order), _falling(b, 1 - order) / _falling(m, 1 - order)
        return of_p * of_q / power

    return terms


def _falling(x: Tensor, order: float) -> Tensor:
    """Return Gamma(x + 1) / Gamma(x + 1 - order), 0 where x is too small for it; about x^order."""
    many = x > _LARGE
    small = torch.where(many, 0.0, x)
    below = small + 1 - order
    exact = torch.lgamma(small + 1) - torch.lgamma(below.clamp(min=torch.finfo(x.dtype).tiny))
    logs = torch.where(many, order * (torch.where(many, x, 1.0) + (1 - order) / 2).log(), exact)
    return torch.where(many | (below > 0), logs.exp(), 0.0)


def _variances(terms: Terms, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the jackknife's variance of a sum over categories in two parts: from P's draws, and from Q's."""
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    parts: list[Tensor] = []
    for x, total, without in (
        (a, n, lambda y, t: terms(y, t, b, m)),
        (b, m, lambda y, t: terms(a, n, y, t)),
    ):
        fewer = (total - 1).clamp(min=torch.finfo(total.dtype).tiny)
        others, share = without(x, fewer), x / total
        # Without one draw of a category; the sum over the other categories is the same for all.
        change = torch.where(x > 0, without((x - 1).clamp(min=0), fewer) - others, 0.0)
        spread = share * (change - (share * change).sum(-1, keepdim=True)).square()
        parts.append(torch.where(total < KNOWN / 2, (total - 1) * spread, 0.0))
    return parts[0], parts[1]


def _bias(terms: Terms, a: Tensor, b: Tensor) -> Tensor:
    """Return the bias of the divergence of the shares by its second differences, for each category."""
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    bias = torch.zeros_like(a + b)
    for x, total, of in ((a, n, lambda y: terms(y, n, b, m)), (b, m, lambda y: terms(a, n, y, m))):
        curved = of(x + 1) - 2 * of(x) + of((x - 1).clamp(min=0))
        bias = bias + torch.where((x > 0) & (total < _EXACT), x * (1 - x / total) / 2 * curved, 0.0)
    return bias
