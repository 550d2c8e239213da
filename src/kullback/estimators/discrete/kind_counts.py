r"""`KindCounts`: estimates of divergences other than KL from counts of categories, with their variances.

A category has a of P's n draws and b of Q's m draws. The estimate depends on the divergence:

* For powers of p / q of order outside (0, 1), unbiased estimates of :math:`p^\alpha q^{1 - \alpha}` are ratios of gamma
  functions. For a Poisson count a, :math:`E[\Gamma(a + 1) / \Gamma(a + 1 - \alpha)] = (n p)^\alpha`, except for terms
  that decay exponentially with n p.
* Bounded divergences are estimated by the divergence of the proportions minus the jackknife's estimate of its bias.

Variances are computed by the jackknife. Counts have shape (..., K), and all results are float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kullback.estimators.discrete.formulas import KNOWN, CategoryCounts, CoverageCorrection
from kullback.generators import KL, Divergence
from kullback.generators.divergence import FinitePair
from kullback.generators.growth import power_of

# With n > `_EXACT` draws, the second differences in the jackknife's bias, of order 1 / n^2, are below float64's
# precision, and the bias counts as 0.
_EXACT = 1e9
# For arguments x above this limit, a ratio of gamma functions equals a power up to float64's precision: the next term
# of Stirling's series is about x^-2.
_LARGE = 1e5

Terms = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class KindCounts(CategoryCounts):
    """Counts of categories, and the estimate of a divergence other than KL that is a sum over the categories.

    Attributes:
        kind: the divergence.
        terms: a function of (a, n, b, m) that returns the term of each category. a and b are the counts of P and of Q
            in the category, n and m the numbers of draws.
        constant: the divergence minus the sum of the terms.
        takes_q_first: whether `terms` takes (b, m, a, n) instead of (a, n, b, m).
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
        """The estimate for the upper limit, without the bias correction of rare categories.

        The bias is positive, because the divergence is convex. For a category with few draws, the estimate of the bias
        is unreliable.
        """
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
    """Return the counts in `table` as `KindCounts` for an estimate of `kind`; for KL, return `table` itself.

    `kind` is neither `ReverseKL`, `Renyi` nor `TotalVariation`.
    """
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
    """Return f''(1) of the divergence, from two terms with p = 1 + h or 1 - h and q = 1.

    Each of these terms is about f''(1) h^2 / 2 for small h.
    """
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
