r"""From the counts of two tables in the same cells to divergences, intervals and a test.

Let :math:`\hat p, \hat q` be the shares of the cells. Every divergence here but total variation is smooth and has a
double zero at p = q, where its plug-in :math:`\hat D` follows a scaled chi-square law, not a normal one:
:math:`\hat D / c \sim \chi'^2_\nu(D / c)`, with as many degrees of freedom :math:`\nu` as cells less one. Away from
p = q the same law with :math:`c = \sigma^2 / 4 D` has the delta method's variance :math:`\sigma^2`; the two scales
agree where both hold, so one family of laws gives intervals everywhere.

References:
    Some aspects of the statistical use of divergence: Asymptotic distribution of (h, phi)-entropies
        (Salicru, Morales, Menendez and Pardo, 1993)
    On chi-squared tests for multiway contingency tables with cell proportions estimated from survey data
        (Rao and Scott, 1984)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kullback.estimators.discrete.point import kl_influence, zhang_grabchak
from kullback.tables.inference.sampling_error import Clustered, Independent, Noise, multinomial_variance
from kullback.tables.inference.significance import g_test
from kullback.tables.result import Interval, Quantity

__all__ = ["MIN_EFFECTIVE", "Statistics", "compare_counts", "expected_rows"]

Array = np.ndarray[Any, np.dtype[np.float64]]

MIN_EFFECTIVE = 20.0  # independent rows on each side, below which no interval is given
MIN_CLUSTERS = 20  # on each side, likewise
MIN_EXPECTED = 10.0  # rows in a cell, on the smaller side, below which it is rare
TV_DRAWS = 2000


@dataclass(frozen=True)
class Statistics:
    """What two columns of counts tell: the divergences, the test's p-value, and each cell's part of KL(P || Q)."""

    kl_pq: Quantity
    kl_qp: Quantity
    js: Quantity
    psi: Quantity
    tv: Quantity
    p_value: float
    contributions: Array


def compare_counts(
    a: Array,
    b: Array,
    sizes: tuple[float, float],
    *,
    random: np.random.Generator,
    clusters: tuple[Array, Array] | None = None,
    confidence: float = 0.95,
) -> Statistics:
    """Compare P's counts with Q's in the same cells.

    Arguments:
        a: P's weight in each cell, shape (K,).
        b: Q's.
        sizes: how many rows of equal weight tell as much as P's rows, and as Q's (Kish's effective numbers).
        random: for the test and the intervals of total variation.
        clusters: P's and Q's weight in each cell, cluster by cluster, two arrays of shape (G, K) with the same
            cluster in the same row, zeros where a side does not have it; None where rows are independent.
        confidence: what share of the intervals is to cover.

    Returns:
        the divergences; without error and interval where there is but one cell or a side has fewer than 20
        independent rows.
    """
    kept = (a + b) > 0
    a, b = a[kept], b[kept]
    if len(a) < 2:
        exact = Quantity(0.0, None, None)
        return Statistics(exact, exact, exact, exact, exact, 1.0, np.zeros(len(kept)))
    groups = None if clusters is None else (clusters[0][:, kept], clusters[1][:, kept])
    noise = Independent(a, b, *sizes) if groups is None else Clustered(*groups, sizes)
    n, m = noise.effective
    case = _Case(a / a.sum(), b / b.sum(), n, m, noise, confidence)
    contributions = np.zeros(len(kept))
    contributions[kept] = case.contributions()
    return Statistics(
        case.smooth(_kl, case.zhang_grabchak(), unbounded=bool(((a > 0) & (b == 0)).any())),
        case.smooth(_reverse_kl, case.swapped_zhang_grabchak(), unbounded=bool(((a == 0) & (b > 0)).any())),
        case.smooth(_jensen_shannon, case.jensen_shannon()),
        case.smooth(
            _jeffreys,
            case.zhang_grabchak() + case.swapped_zhang_grabchak(),
            unbounded=bool(((a == 0) != (b == 0)).any()),
        ),
        case.total_variation(random),
        g_test(a, b, noise, groups, random),
        contributions,
    )


def expected_rows(a: Array, b: Array, sizes: tuple[float, float]) -> Array:
    """Return how many rows of the smaller side each cell would hold if P and Q were equal.

    Arguments:
        a: P's weight in each cell.
        b: Q's.
        sizes: the effective numbers of rows of both.
    """
    pooled = (a / a.sum() * sizes[0] + b / b.sum() * sizes[1]) / sum(sizes)
    return pooled * min(sizes)


@dataclass(frozen=True)
class _Case:
    """Two vectors of shares, the numbers of independent rows behind them, and how they vary."""

    p: Array
    q: Array
    n: float
    m: float
    noise: Noise
    confidence: float

    @property
    def _unsure(self) -> bool:
        return (
            min(self.n, self.m) < MIN_EFFECTIVE or min(self.noise.clusters or (MIN_CLUSTERS,)) < MIN_CLUSTERS
        )

    def _effective(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.p * self.n), torch.from_numpy(self.q * self.m)

    def zhang_grabchak(self) -> float:
        return float(zhang_grabchak(*self._effective()))

    def swapped_zhang_grabchak(self) -> float:
        of_p, of_q = self._effective()
        return float(zhang_grabchak(of_q, of_p))

    def contributions(self) -> Array:
        """Each cell's part of Zhang and Grabchak's estimate, made non-negative but for its noise."""
        influence = kl_influence(*self._effective())[0].numpy()
        return self.p * (influence + self.zhang_grabchak()) - self.p + self.q

    def jensen_shannon(self) -> float:
        """The entropy of the middle less the mean entropy, each corrected as Zhang and Grabchak's.

        A cell of the middle is as sure as one with `counts` draws of a sample of the size 4 / (1 / n + 1 / m).
        """
        p, q, middle = self.p, self.q, (self.p + self.q) / 2
        counts = 4 * middle**2 / (p / self.n + q / self.m)
        size = 4 / (1 / self.n + 1 / self.m)
        of_middle = _entropy(middle, counts, size)
        return of_middle - (_entropy(p, p * self.n, self.n) + _entropy(q, q * self.m, self.m)) / 2

    def smooth(self, function: _Divergence, corrected: float, *, unbounded: bool = False) -> Quantity:
        """The estimate with the error and interval of the scaled non-central chi-square law."""
        value = float(min(max(corrected, 0.0), function.greatest))
        if self._unsure:
            return Quantity(value, None, None)
        # Half a row in every cell keeps logarithms finite; ratio and variance are taken at the same shares.
        p = (self.p * self.n + 0.5) / (self.n + 0.5 * len(self.p))
        q = (self.q * self.m + 0.5) / (self.m + 0.5 * len(self.q))
        plugin, of_p, of_q = function(p, q)
        variance = self.noise.variance(of_p, of_q)
        if not (self.p.all() and self.q.all()):  # a cell never seen seems never to vary
            smoothed = multinomial_variance((p, q), (of_p, of_q), (self.n, self.m))
            variance = max(variance, smoothed)
        freedom = self.noise.freedom
        null_scale = function.curvature * self.noise.scale / 2
        scale = variance / (4 * plugin) if plugin > 1e-3 * freedom * null_scale else null_scale
        low, high = _unified_interval(freedom + corrected / scale, freedom, 1 - self.confidence)
        error = float(np.sqrt(variance + 2 * freedom * scale**2))
        low, high = min(scale * low, value), max(scale * high, value)
        return Quantity(
            value, error, (float(low), math.inf if unbounded else min(float(high), function.greatest))
        )

    def total_variation(self, random: np.random.Generator) -> Quantity:
        """The plug-in less the bootstrap estimate of its bias, and an interval by simulated noise.

        Where the sign of p - q is sure, a cell's noise shifts the total; where it is not, noise only adds to it.
        """
        from scipy.special import ndtr, ndtri

        difference = self.p - self.q
        plugin = float(abs(difference).sum() / 2)
        spread = self.noise.spread_of_difference()
        u = np.divide(abs(difference), spread, out=np.zeros_like(spread), where=spread > 0)
        bias = spread * (np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2) - 2 * u * ndtr(-u))
        value = max(plugin - float(bias.sum()) / 2, 0.0)
        if self._unsure:
            return Quantity(value, None, None)
        sure = u > ndtri(1 - 0.005 / len(u))  # so that no sign is taken for sure by chance
        signs = np.sign(difference)
        up = np.empty(TV_DRAWS)
        shift = np.empty(TV_DRAWS)
        for rows, noise in self.noise.draws(random, TV_DRAWS):
            shift[rows] = noise @ signs / 2
            up[rows] = np.where(sure, noise * signs, abs(noise)).sum(1) / 2
        alpha = 1 - self.confidence
        low = plugin - float(np.quantile(up, 1 - (alpha / 2 if sure.any() else alpha)))
        high = plugin - float(np.quantile(shift, alpha / 2))
        error = float(shift.std())
        return Quantity(value, error, (min(max(low, 0.0), value), max(min(high, 1.0), value)))


def _entropy(share: Array, counts: Array, size: float) -> float:
    r"""The entropy :math:`-\sum p \log p` of shares, with the bias of the logarithm of few draws taken out."""
    from scipy.special import digamma

    held = share > 0
    share, counts = share[held], counts[held]
    logarithms = np.log(share) - np.log(counts) + digamma(counts) - digamma(size) + np.log(size)
    return -float((share * logarithms).sum())


def _unified_interval(x: float, freedom: float, alpha: float) -> Interval:
    r"""The interval of :math:`\lambda` for one draw x of :math:`\chi'^2_\nu(\lambda)`.

    At :math:`\lambda = 0` the whole error probability lies above, far away half of it on each side, so that the
    interval leaves 0 exactly where a test at level `alpha` rejects, and is never empty.
    """

    def below(noncentrality: float) -> float:
        return alpha / 2 * noncentrality / (noncentrality + np.sqrt(2 * freedom))

    def low_misses(noncentrality: float) -> bool:
        return 1 - _chi_square_cdf(x, freedom, noncentrality) < alpha - below(noncentrality)

    # Where x is small by chance, a typical x gives a wider, still covering interval.
    typical = max(x, freedom * (1 - 2 / (9 * freedom)) ** 3)

    def high_covers(noncentrality: float) -> bool:
        return _chi_square_cdf(typical, freedom, noncentrality) > below(noncentrality)

    return _last_where(low_misses, x), _last_where(high_covers, typical)


def _last_where(holds: Callable[[float], bool], start: float) -> float:
    """The largest number for which a condition holds that holds up to some number; 0 where it never does."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, max(start, 1.0)
    while holds(high):
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def _chi_square_cdf(x: float, freedom: float, noncentrality: float) -> float:
    """The non-central chi-square law, by its cube-root approximation where the series is long."""
    from scipy.special import chndtr, ndtr

    if x <= 0:
        return 0.0
    if x + noncentrality < 1e4:
        return float(chndtr(x, freedom, noncentrality))
    mean = freedom + noncentrality
    spread = 2 * (freedom + 2 * noncentrality) / (9 * mean**2)
    return float(ndtr((np.cbrt(x / mean) - 1 + spread) / np.sqrt(spread)))


@dataclass(frozen=True)
class _Divergence:
    """A divergence of p and q with its gradients.

    Attributes:
        at: from p and q to the divergence and its gradients to p and to q.
        curvature: its second derivative at p = q, relative to KL's.
        greatest: its largest value.
    """

    at: Callable[[Array, Array], tuple[float, Array, Array]]
    curvature: float
    greatest: float = math.inf

    def __call__(self, p: Array, q: Array) -> tuple[float, Array, Array]:
        return self.at(p, q)


def _kl_at(p: Array, q: Array) -> tuple[float, Array, Array]:
    ratio = np.log(p / q)
    return float((p * ratio).sum()), ratio, -p / q


def _reverse_kl_at(p: Array, q: Array) -> tuple[float, Array, Array]:
    value, of_q, of_p = _kl_at(q, p)
    return value, of_p, of_q


def _jeffreys_at(p: Array, q: Array) -> tuple[float, Array, Array]:
    parts = zip(_kl_at(p, q), _reverse_kl_at(p, q), strict=True)
    value, of_p, of_q = (forward + backward for forward, backward in parts)
    return value, of_p, of_q  # pyright: ignore[reportReturnType]


def _jensen_shannon_at(p: Array, q: Array) -> tuple[float, Array, Array]:
    from scipy.special import rel_entr

    middle = (p + q) / 2
    value = float(rel_entr(p, middle).sum() + rel_entr(q, middle).sum()) / 2
    with np.errstate(divide="ignore"):  # a gradient at a share of 0 is never weighted
        return value, np.log(p / middle) / 2, np.log(q / middle) / 2


_kl = _Divergence(_kl_at, 1.0)
_reverse_kl = _Divergence(_reverse_kl_at, 1.0)
_jeffreys = _Divergence(_jeffreys_at, 2.0)
_jensen_shannon = _Divergence(_jensen_shannon_at, 0.25, math.log(2))
