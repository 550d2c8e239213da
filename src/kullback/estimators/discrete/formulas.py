r"""`CategoryCounts`: the draws of P and of Q in each category, with formulas for KL and other divergences.

Counts have shape (..., K), one column for each category. Results are float64 and in nats. Counts may be non-integers:
the effective count of weighted draws is the proportion of the weight times the effective sample size.

The root mean square errors of two estimators were compared on Zipf distributions with 1000 categories, which are in
`tests/oracles/sample_cases.py`. From 1e3 draws on, the error of `coverage_adjusted` is 0.55 to 1 times the error of
Zhang and Grabchak's estimator. With 1e2 draws, the ratio of the errors is 0.5 if P and Q differ much, and up to 1.3 if
they are equal.

`KindCounts` estimates other divergences. Ratios of gamma functions are unbiased estimates of powers of p / q of order
outside (0, 1). For a Poisson count a, :math:`E[\Gamma(a + 1) / \Gamma(a + 1 - \alpha)] = (n p)^\alpha`, except for
terms that decay exponentially with n p. A bounded divergence is estimated by the divergence of the proportions
minus the jackknife's estimate of its bias. Variances are computed by the jackknife.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from kullback.common.inference import student_ratio
from kullback.common.special import scaled_e1
from kullback.generators import KL, Divergence
from kullback.generators.divergence import FinitePair
from kullback.generators.growth import power_of

# A category is rare if the smaller side has fewer than `FEWEST_DRAWS` / 2 = 5 expected draws. This is the usual limit
# for a chi-squared approximation; `benchmarks/coverage.py` checks it.
FEWEST_DRAWS = 10
# Known probabilities count as this number of draws: their variance, about 1 / KNOWN, is negligible.
KNOWN = 1e15


class CoverageCorrection(NamedTuple):
    """The predicted contribution of unseen categories to KL, this prediction shrunken towards 0, and its variance."""

    predicted: Tensor
    shrunken: Tensor
    variance: Tensor


class SecondOrder(NamedTuple):
    """The mean and the variance of the divergence of the proportions at P = Q, each of shape (...)."""

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True, eq=False)
class CategoryCounts:
    """The counts of P and of Q in each of K categories, and the estimate of KL from these counts.

    `KindCounts` estimates another divergence from the same counts.

    Attributes:
        a: P's effective counts, float64, shape (..., K): the proportions of the weight times the effective number of
            draws.
        b: Q's effective counts, in the same shape.
        inflation: the factors of clusters and weights in the variances of P's and of Q's proportions.
        spread: the factor of clusters and weights in the variance of the estimate at P = Q.
        groups: the effective numbers of P's and of Q's clusters, used for `inflation`; infinite without clusters.
        skewness: the third moment of the estimate of KL divided by its variance, if weights are heavy; otherwise 0.
        n: the numbers of draws of P and of Q. A number is a tensor if the rows of a batch have different numbers, and 0
            for known probabilities.
        notes: notes about the draws.
        bins: whether the categories are bins of a line.
        curvature: f''(1) of the divergence, 1 for KL.
        largest: the supremum of the divergence over all P and Q.
        open_above: whether the divergence is infinite if P has mass where Q has none.
        open_below: whether the divergence is infinite if Q has mass where P has none.
        power: the number c if the divergence is (m - 1) / c, and m is the mean of (p / q)^order for an order above 1 or
            below 0; otherwise 0. If c > 0, the upper limit is infinite if a draw is in a category without draws of
            the other side.
    """

    a: Tensor
    b: Tensor
    inflation: tuple[float, float] = (1.0, 1.0)
    spread: float = 1.0
    n: tuple[int | Tensor, int | Tensor] = (0, 0)
    notes: tuple[str, ...] = ()
    bins: bool = False
    _: KW_ONLY
    groups: tuple[float, float] = (math.inf, math.inf)
    skewness: float = 0.0
    curvature: float = 1.0
    largest: float = math.inf
    open_above: bool = True
    open_below: bool = False
    power: float = 0.0

    is_kl: ClassVar[bool] = True

    @classmethod
    def of(cls, a: Tensor, b: Tensor, **others: Any) -> Self:
        """Return an instance from counts of any dtype, after broadcasting; `others` are the other attributes."""
        a, b = torch.broadcast_tensors(a.to(torch.float64), b.to(torch.float64))
        return cls(a, b, **others)

    @cached_property
    def reversed(self) -> Self:
        """The counts with P and Q exchanged, for KL(Q || P)."""
        inflation, n, groups = self.inflation[::-1], self.n[::-1], self.groups[::-1]
        return replace(self, a=self.b, b=self.a, inflation=inflation, n=n, groups=groups)

    def at(self, confidence: float) -> Self:
        """Return the counts with variances for a normal quantile at this confidence; `inflation` is for 95 %.

        With few clusters, the quantile of Student's t exceeds the normal one by more, the farther it is in the tail.
        """
        factors = [
            max(1.0, student_ratio(confidence, number) / student_ratio(0.95, number)) ** 2
            if number < math.inf
            else 1.0
            for number in self.groups
        ]
        if max(factors) == 1.0:
            return self
        of_p, of_q = (factor * each for factor, each in zip(factors, self.inflation, strict=True))
        return replace(self, inflation=(of_p, of_q), spread=self.spread * max(factors))

    @cached_property
    def coarser(self) -> Self:
        """The counts with all rare categories merged into one additional column.

        Rare categories are chosen by a + b, because a + b is nearly independent of the ratio a / b.
        """
        rare = self.is_rare
        return replace(self, a=merged(self.a, rare), b=merged(self.b, rare))

    @cached_property
    def is_rare(self) -> Tensor:
        """Whether the smaller sample has fewer than 5 expected draws in a category if P = Q, shape (..., K)."""
        n, m = self.a.sum(-1, keepdim=True), self.b.sum(-1, keepdim=True)
        return 2 * torch.minimum(n, m) / (n + m) * (self.a + self.b) < FEWEST_DRAWS

    @cached_property
    def unseen_shares(self) -> tuple[Tensor, Tensor]:
        """The shares of P's draws without draws of Q in the category, and alone in their category (Good, 1953)."""
        a, b = self.a, self.b
        share, once = a / a.sum(-1, keepdim=True), (a > 0) & (a.round().clamp(min=1) == 1)
        return torch.where((a > 0) & (b == 0), share, 0.0).sum(-1), torch.where(once, share, 0.0).sum(-1)

    @cached_property
    def rarest_share(self) -> Tensor:
        """The largest of the four `unseen_shares` of P and of Q."""
        return torch.stack([*self.unseen_shares, *self.reversed.unseen_shares]).amax(0)

    @cached_property
    def log_ratios(self) -> Tensor:
        """The estimate of log(p / q) in each category with draws of P, and 0 in other categories, shape (..., K)."""
        a, n, m = self.a, self.a.sum(-1, keepdim=True), self.b.sum(-1, keepdim=True)
        terms = a.digamma() - (self.b + 1).digamma() + (m + 1).digamma() - n.digamma()
        return torch.where(a > 0, terms, 0.0)

    @cached_property
    def estimate(self) -> Tensor:
        r"""The estimate of KL without most of the bias of log p and log q; the result is finite and may be negative.

        For n draws of P and m draws of Q, the bias is :math:`\sum_i p_i \sum_{v \ge n} (1 - p_i)^v / v - \sum_i p_i
        \sum_{v > m} (1 - q_i)^v / v`. The bias decays exponentially for categories that are drawn more than once on
        average.
        Nonparametric Estimation of Kullback-Leibler Divergence (Zhang and Grabchak, 2014)
        """
        terms = self.a / self.a.sum(-1, keepdim=True) * self.log_ratios
        return torch.where(self.a > 0, terms, 0.0).sum(-1)

    @cached_property
    def correction(self) -> CoverageCorrection:
        r"""The prediction of the part of KL that the estimate misses, because rare categories have no draws.

        The prediction D is c in `coverage_adjusted`: the ratios :math:`\lambda` and :math:`\mu` are shrunken towards 1
        by the term of one additional category. D is then shrunken to :math:`(1 - v / D^2)_+ D`. For its variance v,
        categories are assumed to be independent, so the variance of :math:`F_k` is the sum of the squares of its terms.
        """
        share = self.a / self.a.sum(-1, keepdim=True)
        both = torch.stack([self.a, self.b])
        of_p, of_q = torch.where(both > 0, both.round().clamp(min=1), 0.0)
        rarest = torch.stack([of_q == 0, of_p == 1])
        classes = torch.stack([rarest, torch.stack([of_q == 1, of_p == 2])])
        first, second = (share * classes).sum(-1)
        squares = (share.square() * classes).sum(-1)
        one_category = squares.sum(0) / (first + second)
        rate = torch.where(first > 0, (second + one_category) / (first + one_category), 1.0)
        value = scaled_e1(rate)
        derivative = value - 1 / rate
        added, taken = first * value
        variance = (value - rate * derivative).square() * squares[0] + derivative.square() * squares[1]
        predicted, variance = added - taken, variance[0] + variance[1]
        factor = torch.where(predicted.square() > variance, 1 - variance / predicted.square(), 0.0)
        return CoverageCorrection(predicted, factor * predicted, factor * variance)

    @cached_property
    def influence_of_p(self) -> Tensor:
        """The influence on KL of a draw of P in each category, times the number of P's draws, shape (..., K)."""
        return self.log_ratios - self.estimate.unsqueeze(-1)

    @cached_property
    def variances(self) -> tuple[Tensor, Tensor]:
        """The contributions of P's and Q's draws to the variance of the estimate, by the delta method, shape (...)."""
        n, m = self.a.sum(-1, keepdim=True), self.b.sum(-1, keepdim=True)
        share = self.a / n
        from_q = (share.square() * torch.polygamma(1, self.b + 1)).sum(-1) - 1 / m[..., 0]
        return (share * self.influence_of_p.square()).sum(-1) / n[..., 0], from_q.clamp(min=0)

    @cached_property
    def second_order(self) -> SecondOrder:
        """The mean and the variance of the divergence of the proportions at P = Q."""
        dof = (((self.a > 0) & (self.b > 0)).sum(-1) - 1).clamp(min=0)
        scale = 1 / self.a.sum(-1) + 1 / self.b.sum(-1)
        return SecondOrder(self.curvature * (dof / 2 * scale), self.curvature**2 * (dof / 2 * scale**2))

    @cached_property
    def small_counts(self) -> Tensor:
        r"""The relative excess of the variance at P = Q over S in `variance`, because counts are small, shape (...).

        .. math:: \frac{K - 2}{K (K - 1)} \sum_i \frac12 \Bigl(\frac1{a_i} + \frac1{b_i}\Bigr)

        The sum is over the K categories with draws of both. The result is at most 1/2. `benchmarks/coverage_tails.py`
        compares it with simulated estimates: the excess is 0.5 to 1.3 times this number for KL. The chi-square
        distribution with the same skewness has a scale that exceeds its limit by about twice this number.
        """
        both = (self.a > 0) & (self.b > 0)
        number = both.sum(-1)
        each = torch.where(both, 1 / self.a + 1 / self.b, 0.0).sum(-1) / 2
        return (each * (number - 2) / (number * (number - 1)).clamp(min=1)).clamp(0, 0.5)

    @cached_property
    def variance(self) -> Tensor:
        r"""The variance of the estimate: by the delta method or, if it is larger, the variance at P = Q, shape (...).

        .. math:: \max(V - S, S), \quad V = \frac1n \operatorname{Var}_P \log \frac{\hat p}{\hat q}
            + \frac1m \operatorname{Var}_Q \frac{\hat p}{\hat q},
            \quad S = \frac{K - 1}{2} \Bigl(\frac1n + \frac1m\Bigr)^2

        P has n draws, and Q has m draws, in K categories. S is the variance of :math:`\frac12 (\frac1n + \frac1m)
        \chi^2_{K - 1}`, the distribution of the estimate at P = Q. At P = Q, V has the mean 2 S. In V, the trigamma
        function :math:`\psi'(b + 1)` replaces :math:`1 / b` for a count b of Q.
        """
        (from_p, from_q), second = self.variances, self.second_order.variance
        return torch.maximum(from_p * self.inflation[0] + from_q * self.inflation[1] - second, second)

    def of_two(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the divergence of (p, 1 - p) from (q, 1 - q)."""
        return torch.special.xlogy(p, p / q) + torch.special.xlogy(1 - p, (1 - p) / (1 - q))


def kl_influence(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the influence on KL of a draw of P in each category, times n, and of a draw of Q, times m.

    .. math:: \log \frac{p_i}{q_i} - \sum_j p_j \log \frac{p_j}{q_j} \quad\text{and}\quad 1 - \frac{p_i}{q_i}

    The logarithms are those of `CategoryCounts.estimate`, finite even for zero counts of Q. Both influences have mean 0
    over the draws. The influence curve and its role in robust estimation (Hampel, 1974)
    """
    table = CategoryCounts.of(a, b)
    a, b, n, m = table.a, table.b, table.a.sum(-1, keepdim=True), table.b.sum(-1, keepdim=True)
    ratio = a / n * m / b.clamp(min=1)
    return table.influence_of_p, (b / m * ratio).sum(-1, keepdim=True) - ratio


def merged(x: Tensor, chosen: Tensor) -> Tensor:
    """Return the counts x with the chosen categories merged into one additional column."""
    return torch.cat([x.masked_fill(chosen, 0), x.masked_fill(~chosen, 0).sum(-1, keepdim=True)], -1)


def sum_over(a: Tensor, terms: Tensor) -> Tensor:
    """Return the sum of the terms over the categories with counts a > 0, shape (...); other terms may be NaN."""
    return torch.where(a > 0, terms, 0.0).sum(-1)


# With n > `_EXACT` draws, the second differences in the jackknife's bias, of order 1 / n^2, are below float64's
# precision, and the bias counts as 0.
_EXACT = 1e9
# For arguments x above this limit, a ratio of gamma functions equals a power up to float64's precision. The next term
# of Stirling's series is about x^-2.
_LARGE = 1e5

Terms = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class KindCounts(CategoryCounts):
    """Counts of categories, and the estimate of a divergence other than KL that is a sum over the categories.

    `terms`, a function of the counts and numbers of draws (a, n, b, m), returns the term of each category. If
    `takes_q_first`, it takes (b, m, a, n). `constant` is the divergence minus the sum of the terms.
    """

    kind: Divergence
    terms: Terms
    constant: float = 0.0
    takes_q_first: bool = False

    is_kl = False

    @cached_property
    def correction(self) -> CoverageCorrection:
        """A correction of 0, because there is no formula for the contribution of categories without draws."""
        zero = torch.zeros_like((self.a + self.b).sum(-1))
        return CoverageCorrection(zero, zero, zero)

    @cached_property
    def estimate(self) -> Tensor:
        """The sum of the terms minus the bias of the sum; for a power of p / q, the sum has no bias."""
        return self._sum - (0.0 if self.power else self._bias.sum(-1))

    @cached_property
    def above(self) -> Tensor:
        """The estimate for the upper limit, without the unreliable, positive bias correction of rare categories."""
        return self._sum - (0.0 if self.power else self._bias.masked_fill(self.is_rare, 0).sum(-1))

    @cached_property
    def variances(self) -> tuple[Tensor, Tensor]:
        from_p, from_q = self._variances
        return from_p.sum(-1), from_q.sum(-1)

    @cached_property
    def dof(self) -> Tensor:
        """The degrees of freedom of the estimate of the variance, by Satterthwaite's formula, shape (...)."""
        from_p, from_q = self._variances
        squares = from_p.square() / self.a.clamp(min=1) + from_q.square() / self.b.clamp(min=1)
        return (from_p + from_q).sum(-1).square() / squares.sum(-1).clamp(min=torch.finfo(self.a.dtype).tiny)

    def of_two(self, p: Tensor, q: Tensor) -> Tensor:
        return of_shares(self.kind, torch.stack([p, 1 - p], -1), torch.stack([q, 1 - q], -1)).sum(-1)

    @property
    def _ordered(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of `terms`: the counts of one side, their sum, the counts of the other side, and their sum."""
        a, b = (self.b, self.a) if self.takes_q_first else (self.a, self.b)
        return a, a.sum(-1, keepdim=True), b, b.sum(-1, keepdim=True)

    @cached_property
    def _sum(self) -> Tensor:
        return self.terms(*self._ordered).sum(-1) + self.constant

    @cached_property
    def _bias(self) -> Tensor:
        """The bias of each category's term, from second differences of the term in both counts, shape (..., K)."""
        a, n, b, m = self._ordered
        bias = torch.zeros_like(a + b)
        for x, total, of in (
            (a, n, lambda y: self.terms(y, n, b, m)),
            (b, m, lambda y: self.terms(a, n, y, m)),
        ):
            curved = of(x + 1) - 2 * of(x) + of((x - 1).clamp(min=0))
            bias = bias + torch.where((x > 0) & (total < _EXACT), x * (1 - x / total) / 2 * curved, 0.0)
        return bias

    @cached_property
    def _variances(self) -> tuple[Tensor, Tensor]:
        """The contributions of P's and of Q's draws to the jackknife variance of the sum, each of shape (..., K)."""
        a, n, b, m = self._ordered
        parts: list[Tensor] = []
        for x, total, without in (
            (a, n, lambda y, t: self.terms(y, t, b, m)),
            (b, m, lambda y, t: self.terms(a, n, y, t)),
        ):
            fewer = (total - 1).clamp(min=torch.finfo(total.dtype).tiny)
            others, share = without(x, fewer), x / total
            # If one draw of a category is left out, the sum of the terms becomes the sum of `others` plus `change`. The
            # sum of `others` is the same for all categories, so it cancels in the variance.
            change = torch.where(x > 0, without((x - 1).clamp(min=0), fewer) - others, 0.0)
            spread = share * (change - (share * change).sum(-1, keepdim=True)).square()
            parts.append(torch.where(total < KNOWN / 2, (total - 1) * spread, 0.0))
        return (parts[1], parts[0]) if self.takes_q_first else (parts[0], parts[1])


def counts_of_kind(kind: Divergence, table: CategoryCounts) -> CategoryCounts:
    """Return the counts as `KindCounts` for an estimate of `kind`, not `Renyi` or the like; for KL, `table` itself."""
    if isinstance(kind, KL):
        return table
    order, factor = power_of(kind) or (0.5, 1.0)
    takes_q_first, power, constant = False, 0.0, 0.0
    if 0 < order < 1:
        terms = _terms_of_shares(kind)
    else:
        takes_q_first, order = order < 0, max(order, 1 - order)
        power = order * (order - 1) / factor
        terms, constant = _powers(order, power), -1 / power
    above, below = at_the_ends(kind)
    return KindCounts(
        *(table.a, table.b, table.inflation, table.spread, table.n, table.notes, table.bins),
        groups=table.groups,
        kind=kind,
        terms=terms,
        constant=constant,
        takes_q_first=takes_q_first,
        curvature=_curvature(kind),
        largest=above + below,
        open_above=math.isinf(above),
        open_below=math.isinf(below),
        power=power,
    )


def at_the_ends(kind: Divergence) -> tuple[float, float]:
    """Return the terms of a divergence for (p, q) = (1, 0) and (0, 1); their sum is the supremum of the divergence."""
    ones, zeros = _double(1.0), _double(0.0)
    return float(of_shares(kind, ones, zeros)), float(of_shares(kind, zeros, ones))


def of_shares(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
    """Return the term of each class in the divergence `kind`; the sums of p and of q may differ from 1."""
    ratio = torch.where(p == q, 0.0, p.log() - q.log())
    return kind.terms(FinitePair(p, q, ratio))


def _terms_of_shares(kind: Divergence) -> Terms:
    return lambda a, n, b, m: of_shares(kind, a / n, b / m)


def _double(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64, device="cpu")


def _curvature(kind: Divergence) -> float:
    """Return f''(1) of the divergence: terms with p = 1 + h or 1 - h and q = 1 are about f''(1) h^2 / 2."""
    h = 1e-4
    return float(of_shares(kind, _double(1 + h, 1 - h), _double(1, 1)).sum()) / h**2


def _powers(order: float, power: float) -> Terms:
    """Return a function from counts to unbiased estimates of the terms p^order q^(1 - order) / power."""

    def terms(a: Tensor, n: Tensor, b: Tensor, m: Tensor) -> Tensor:
        of_p, of_q = _falling(a, order) / _falling(n, order), _falling(b, 1 - order) / _falling(m, 1 - order)
        return of_p * of_q / power

    return terms


def _falling(x: Tensor, order: float) -> Tensor:
    """Return Gamma(x + 1) / Gamma(x + 1 - order), which is about x^order, or 0 if x + 1 <= order."""
    many = x > _LARGE
    small = torch.where(many, 0.0, x)
    below = small + 1 - order
    exact = torch.lgamma(small + 1) - torch.lgamma(below.clamp(min=torch.finfo(x.dtype).tiny))
    logs = torch.where(many, order * (torch.where(many, x, 1.0) + (1 - order) / 2).log(), exact)
    return torch.where(many | (below > 0), logs.exp(), 0.0)
