r"""The divergences between the counts of two tables in the same bins, with intervals and a test.

Let :math:`\hat p, \hat q` be the proportions of the bins. Every divergence here except total variation is smooth and
has a double zero at p = q. Near p = q, the plug-in estimate :math:`\hat D` of a divergence is therefore not normal. It
follows a scaled chi-square distribution, :math:`\hat D / c \sim \chi'^2_\nu(D / c)`, where the number :math:`\nu` of
degrees of freedom is the number of bins minus one. Away from p = q, the same distribution with
:math:`c = \sigma^2 / 4 D` has the variance :math:`\sigma^2` of the delta method. The two scales agree where both
approximations hold, so one family of distributions gives intervals everywhere. Intervals begin at 0 if the test of
p = q does not reject.

References:
    Some aspects of the statistical use of divergence: Asymptotic distribution of (h, phi)-entropies
        (Salicru, Morales, Menendez and Pardo, 1993)
    On chi-squared tests for multiway contingency tables with cell proportions estimated from survey data
        (Rao and Scott, 1984)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kullback.common.arrays import Flags, Floats
from kullback.common.inference import (
    normal_quantile,
    of_independent_tests,
    of_tests_on_the_same_rows,
    unified_high,
    unified_low,
)
from kullback.estimators.discrete.formulas import CategoryCounts
from kullback.results.value import Interval, Value
from kullback.tables.inference.rare_values import GROUPS, RareValues
from kullback.tables.inference.sampling_error import (
    ClusteredRows,
    IndependentRows,
    ProportionErrors,
    RowsWithRareValues,
    multinomial_variance,
)
from kullback.tables.inference.significance import g_test

MIN_EFFECTIVE = 20.0  # no interval is given if a side has fewer independent rows
MIN_CLUSTERS = 20  # no interval is given if a side has fewer clusters
MIN_EXPECTED = 10.0  # a bin is rare if fewer rows are expected in it on the smaller side
MIN_MEAN_EXPECTED = 4.0  # rare bins are compared in groups if fewer rows per bin are expected on average
STRAY = 0.01  # an unbounded divergence has no upper limit if more than this proportion of rows may hide a difference
MOST_UNSEEN = 0.5  # a divergence has no value if more than this proportion of rows have unknown values
TV_DRAWS = 2000
POSTERIOR_DRAWS = 4000
DRAWS_BEYOND = 10  # a limit is a quantile of simulated draws only if this many draws are beyond it
MOST_DRAWN = 1 << 24  # at most this many numbers are drawn for one simulation
# If at most this many rows are expected in a bin, chance may explain that it is empty: exp(-3) is 5 %.
MOST_MISSING = 3.0


@dataclass(frozen=True)
class BinStatistics:
    """The divergences, the p-value, and each bin's term of KL(P || Q); `open_limits` lack enough simulated draws."""

    kl_pq: Value[float | None]
    kl_qp: Value[float | None]
    js: Value[float | None]
    psi: Value[float | None]
    tv: Value[float | None]
    p_value: float
    contributions: Floats
    open_limits: str = ""


def compare_counts(
    a: Floats,
    b: Floats,
    sizes: tuple[float, float],
    *,
    random: np.random.Generator,
    clusters: tuple[Floats, Floats] | None = None,
    rare: RareValues | None = None,
    pooled: int = 0,
    sparse: bool = False,
    confidence: float = 0.95,
    ordered: float = math.nan,
) -> BinStatistics:
    """Compare P's counts with Q's in the same bins.

    The divergences have no standard errors if there is only one bin, or if a side has fewer than 20 independent rows or
    clusters. They then have no intervals either, except for a single bin of rare values.

    `sizes` are Kish's effective numbers of rows. `clusters` has both weights by cluster and bin, shape (G, K), with
    zeros on a side without the cluster. The last bins, `pooled` of them, have the groups of rare values. If `sparse`,
    some of few bins have too few rows for a chi-square distribution, and the intervals are posterior intervals.
    `ordered` is the p-value of a test that uses the order of the bins, or NaN.
    """
    width, common = len(a), np.minimum(a / a.sum(), b / b.sum())
    hidden = _Hidden(float(common[width - pooled :].sum()), float(common[width - pooled]) if pooled else 0.0)
    occupied = (a + b) > 0
    a, b = a[occupied], b[occupied]
    contributions = np.zeros(width)
    if len(a) < 2:
        p_value = math.nan if hidden.unseen > MOST_UNSEEN else of_tests_on_the_same_rows([1.0, ordered])
        interval = (0.0, 0.0) if pooled and min(sizes) >= MIN_EFFECTIVE else None
        return _statistics([Value(0.0, None, interval)] * 5, hidden, p_value, contributions)
    groups = None if clusters is None else (clusters[0][:, occupied], clusters[1][:, occupied])
    by_value = None if rare is None else _padded(rare, width, occupied)
    if groups is not None:
        errors = ClusteredRows(*groups, sizes, by_value)
    else:
        errors = IndependentRows(a, b, *sizes) if by_value is None else RowsWithRareValues(a, b, by_value)
    if by_value is None or groups is not None:
        p_value = g_test(a, b, errors, groups, random, permute=rare is None)
    else:
        p_value = _test_with_rare_values(a, b, by_value, random, rare.p_value if rare else math.nan)
    p_value = of_tests_on_the_same_rows([p_value, ordered])
    n, m = errors.effective
    number = _number_of_draws(POSTERIOR_DRAWS, len(a), confidence)
    # The posterior distributions of the proportions, with the prior of Jeffreys (1946).
    posterior = (random.dirichlet(a + 0.5, number), random.dirichlet(b + 0.5, number)) if sparse else None
    case = _Comparison(a / a.sum(), b / b.sum(), n, m, errors, confidence, posterior)
    forward, backward, contributions[occupied] = case.zhang_grabchak()
    # A bin may have no rows on one side. If chance may explain this, the posterior bounds the divergence.
    most = MOST_MISSING if sparse else 0.0
    no_q = float(case.p[b == 0].max(initial=0.0)) * m > most
    no_p = float(case.q[a == 0].max(initial=0.0)) * n > most
    quantities = [
        case.smooth(_kl, forward, unbounded=no_q),
        case.smooth(_reverse_kl, backward, unbounded=no_p),
        case.smooth(_jensen_shannon, case.jensen_shannon()),
        case.smooth(_jeffreys, forward + backward, unbounded=no_q or no_p),
        case.total_variation(random),
    ]
    if not p_value <= 1 - confidence:
        quantities = [
            replace(each, interval=each.interval and (0.0, each.interval[1])) for each in quantities
        ]
    statistics = _statistics(quantities, hidden, p_value, contributions)
    if quantities[0].interval is None or _number_of_draws(TV_DRAWS, len(a), confidence):
        return statistics
    return replace(statistics, open_limits="all divergences" if sparse and not number else "total variation")


@dataclass(frozen=True)
class _Hidden:
    """The shares of rows in groups of rare values, and in the group whose values are not distinguished, `unseen`."""

    pooled: float
    unseen: float

    def in_quantity(self, divergence: Value[float | None], greatest: float) -> Value[float | None]:
        """Convert a divergence between bins to a divergence between values; hidden differences raise the upper limit,
        even to infinity."""
        if self.unseen > MOST_UNSEEN:
            return Value(None, None, (divergence.interval[0] if divergence.interval else 0.0, greatest))
        if divergence.interval is None or self.pooled == 0:
            return divergence
        low, high = divergence.interval
        most = high + self.pooled * greatest if math.isfinite(greatest) else high
        if self.pooled > STRAY and math.isinf(greatest):
            most = math.inf
        return Value(divergence.value, divergence.standard_error, (low, min(most, greatest)))


def _statistics(
    quantities: list[Value[float | None]], hidden: _Hidden, p_value: float, contributions: Floats
) -> BinStatistics:
    """Return the statistics from divergences in the order KL(P || Q), KL(Q || P), JS, PSI, TV."""
    greatest = (math.inf, math.inf, math.log(2), math.inf, 1.0)
    known = [
        hidden.in_quantity(divergence, most) for divergence, most in zip(quantities, greatest, strict=True)
    ]
    return BinStatistics(known[0], known[1], known[2], known[3], known[4], p_value, contributions)


def _padded(rare: RareValues, width: int, occupied: Flags) -> tuple[Floats, Floats, Floats]:
    """Return P's and Q's rows of rare values by value and occupied bin, and how many values each entry represents."""
    before = np.zeros((len(rare.number), width - len(GROUPS)))
    return (
        np.hstack([before, rare.a])[:, occupied],
        np.hstack([before, rare.b])[:, occupied],
        rare.number,
    )


def _test_with_rare_values(
    a: Floats, b: Floats, rare: tuple[Floats, Floats, Floats], random: np.random.Generator, of_rare: float
) -> float:
    """Return the combined p-value of two independent tests, one that pools all rare values, one of rare values only."""
    pooled = [float((rare[2] @ side).sum()) for side in rare[:2]]
    frequent = [side - rare[2] @ each for side, each in zip((a, b), rare[:2], strict=True)]
    bins = [np.append(side, total) for side, total in zip(frequent, pooled, strict=True)]
    occupied = bins[0] + bins[1] > 0
    first = [side[occupied] for side in bins]
    p_values = [of_rare]
    if len(first[0]) > 1:
        errors = IndependentRows(first[0], first[1], float(a.sum()), float(b.sum()))
        p_values.append(g_test(first[0], first[1], errors, None, random))
    return of_independent_tests(p_values)


def expected_rows(a: Floats, b: Floats, sizes: tuple[float, float]) -> Floats:
    """Return the expected number of rows of the smaller side in each bin, from the weights a and b, if P = Q."""
    pooled = (a / a.sum() * sizes[0] + b / b.sum() * sizes[1]) / sum(sizes)
    return pooled * min(sizes)


@dataclass(frozen=True)
class _Comparison:
    """Two vectors of proportions, the numbers of independent rows behind them, and their sampling errors."""

    p: Floats
    q: Floats
    n: float
    m: float
    errors: ProportionErrors
    confidence: float
    posterior: tuple[Floats, Floats] | None = None

    @property
    def _too_few(self) -> bool:
        return (
            min(self.n, self.m) < MIN_EFFECTIVE or min(self.errors.clusters or (MIN_CLUSTERS,)) < MIN_CLUSTERS
        )

    def zhang_grabchak(self) -> tuple[float, float, Floats]:
        """Return the estimates of KL(P || Q) and KL(Q || P), and each bin's term of the generalized KL(P || Q)."""
        counts = CategoryCounts(torch.from_numpy(self.p * self.n), torch.from_numpy(self.q * self.m))
        forward, backward = float(counts.estimate), float(counts.reversed.estimate)
        terms = self.p * (counts.influence_of_p.numpy() + forward) - self.p + self.q
        return forward, backward, terms

    def jensen_shannon(self) -> float:
        """Return the entropy of the mixture minus the mean of P's and Q's, each corrected as by Zhang and Grabchak.

        The mixture's proportions have the variance of proportions from 4 / (1 / n + 1 / m) draws.
        """
        p, q, middle = self.p, self.q, (self.p + self.q) / 2
        if not isinstance(self.errors, IndependentRows):  # then a bin's count may be less than one row
            return _jensen_shannon_at(p, q)[0] - self.errors.scale * self.errors.dof / 8
        counts = 4 * middle**2 / (p / self.n + q / self.m)
        size = 4 / (1 / self.n + 1 / self.m)
        of_middle = _entropy(middle, counts, size)
        return of_middle - (_entropy(p, p * self.n, self.n) + _entropy(q, q * self.m, self.m)) / 2

    def smooth(
        self, function: _Divergence, corrected: float, *, unbounded: bool = False
    ) -> Value[float | None]:
        """Return the estimate with the standard error and interval of the scaled noncentral chi-square distribution."""
        value = float(min(max(corrected, 0.0), function.greatest))
        if self._too_few:
            return Value(value, None, None)
        # Half a row is added to every bin to keep logarithms finite. The variance uses the same proportions.
        p = (self.p * self.n + 0.5) / (self.n + 0.5 * len(self.p))
        q = (self.q * self.m + 0.5) / (self.m + 0.5 * len(self.q))
        plugin, of_p, of_q = function.at(p, q)
        variance = self.errors.variance(of_p, of_q)
        if not (self.p.all() and self.q.all()):  # a bin without rows has an estimated variance of 0
            smoothed = multinomial_variance((p, q), (of_p, of_q), (self.n, self.m))
            variance = max(variance, smoothed)
        dof = self.errors.dof
        null_scale = function.curvature * self.errors.scale / 2
        scale, student = null_scale, 1.0
        if plugin > 1e-3 * dof * null_scale:
            scale = variance / (4 * plugin)
            # A variance from few clusters is itself uncertain, so the interval is widened as for Student's t.
            student = self.errors.inflation(of_p, of_q, self.confidence)
        error = float(np.sqrt(variance + 2 * dof * scale**2))
        scale *= student
        if self.posterior is not None and not len(self.posterior[0]):
            low, high = 0.0, math.inf
        elif self.posterior is not None:
            low, high = self._of_posterior(function.at(*self.posterior)[0], plugin)
        else:
            alpha, x = 1 - self.confidence, dof + corrected / scale
            low, high = float(unified_low(x, dof, alpha)), float(unified_high(x, dof, alpha))
            # For an empty bin, half a row is the continuity correction.
            if not (self.p.all() and self.q.all()):
                low = min(low, float(unified_low(plugin / scale, dof, alpha)))
            low, high = scale * low, scale * high
        low, high = min(low, value), max(high, value)
        return Value(
            value, error, (float(low), math.inf if unbounded else min(float(high), function.greatest))
        )

    def _of_posterior(self, drawn: Floats, plugin: float) -> Interval:
        """Return the interval of a divergence by its posterior, with a corrected lower end.

        The posterior mean exceeds the plug-in estimate by about as much as this one exceeds the truth.
        """
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(drawn, [tail, 1 - tail])
        return max(0.0, float(low) - 2 * (float(drawn.mean()) - plugin)), float(high)

    def total_variation(self, random: np.random.Generator) -> Value[float | None]:
        """Return the plug-in estimate minus the bootstrap estimate of the bias, with an interval by simulated errors.

        For the lower limit, an error may lower the total variation only where the sign of p - q is certain.
        """
        from scipy.special import ndtr

        difference = self.p - self.q
        plugin = float(abs(difference).sum() / 2)
        spread = self.errors.standard_errors_of_difference()
        u = np.divide(abs(difference), spread, out=np.zeros_like(spread), where=spread > 0)
        bias = spread * (np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2) - 2 * u * ndtr(-u))
        value = max(plugin - float(bias.sum()) / 2, 0.0)
        if self._too_few:
            return Value(value, None, None)
        certain = u > normal_quantile(1 - 0.005 / len(u))  # strict, so that no sign seems certain by chance
        signs = np.sign(difference)
        number = _number_of_draws(TV_DRAWS, len(u), self.confidence)
        up, shift = np.empty(number or TV_DRAWS), np.empty(number or TV_DRAWS)
        # The estimated variance of a proportion from few rows is too small, so the variance of two rows is added.
        least = math.sqrt(2 / self.n**2 + 2 / self.m**2)
        for rows, exact in self.errors.draws(random, len(up)):
            errors = exact + least * random.standard_normal(exact.shape)
            shift[rows] = np.where(signs == 0, -abs(errors), errors * signs).sum(1) / 2
            up[rows] = np.where(certain, errors * signs, abs(errors)).sum(1) / 2
        alpha = 1 - self.confidence
        low = plugin - float(np.quantile(up, 1 - (alpha / 2 if certain.any() else alpha)))
        high = plugin - float(np.quantile(shift, alpha / 2))
        error = float(shift.std())
        if not number:
            low, high = 0.0, 1.0
        return Value(value, error, (min(max(low, 0.0), value), max(min(high, 1.0), value)))


def _number_of_draws(least: int, bins: int, confidence: float) -> int:
    """Return how many draws show the limits at this confidence, `least` or more; 0 if these would be too many."""
    needed = max(least, round(2 * DRAWS_BEYOND / (1 - confidence)))
    return needed if needed <= max(least, MOST_DRAWN // bins) else 0


def _entropy(proportion: Floats, counts: Floats, size: float) -> float:
    r"""Return the entropy :math:`-\sum p \log p` of proportions, corrected for the bias of few draws."""
    from scipy.special import digamma

    positive = proportion > 0
    proportion, counts = proportion[positive], counts[positive]
    logarithms = np.log(proportion) - np.log(counts) + digamma(counts) - digamma(size) + np.log(size)
    return -float((proportion * logarithms).sum())


@dataclass(frozen=True)
class _Divergence:
    """A function of p and q to a divergence and its gradients; `curvature` at p = q is relative to KL."""

    at: Callable[[Floats, Floats], tuple[Any, Floats, Floats]]
    curvature: float
    greatest: float = math.inf


def _kl_at(p: Floats, q: Floats) -> tuple[Any, Floats, Floats]:
    ratio = np.log(p / q)
    return (p * ratio).sum(-1), ratio, -p / q


def _reverse_kl_at(p: Floats, q: Floats) -> tuple[Any, Floats, Floats]:
    value, of_q, of_p = _kl_at(q, p)
    return value, of_p, of_q


def _jeffreys_at(p: Floats, q: Floats) -> tuple[Any, Floats, Floats]:
    parts = zip(_kl_at(p, q), _reverse_kl_at(p, q), strict=True)
    value, of_p, of_q = (forward + backward for forward, backward in parts)
    return value, of_p, of_q


def _jensen_shannon_at(p: Floats, q: Floats) -> tuple[Any, Floats, Floats]:
    from scipy.special import rel_entr

    middle = (p + q) / 2
    value = (rel_entr(p, middle).sum(-1) + rel_entr(q, middle).sum(-1)) / 2
    with np.errstate(divide="ignore"):  # gradients at proportions of 0 are infinite, but are never used
        return value, np.log(p / middle) / 2, np.log(q / middle) / 2


_kl = _Divergence(_kl_at, 1.0)
_reverse_kl = _Divergence(_reverse_kl_at, 1.0)
_jeffreys = _Divergence(_jeffreys_at, 2.0)
_jensen_shannon = _Divergence(_jensen_shannon_at, 0.25, math.log(2))
