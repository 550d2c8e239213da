"""KL from draws of numbers, by counts in bins whose edges are quantiles of P's and Q's draws together.

The divergence between histograms is at most the divergence between the distributions. For smooth densities, the
difference of the two divergences is about proportional to the square of the bin width. The number of bins,
:math:`5 n^{0.4}`, was chosen by measurements. The estimate's error is about three quarters of the error of nearest
neighbors, for 1e3 to 1e5 draws from pairs of Gaussian, exponential, Cauchy and Pareto distributions.

Numbers that are rounded to a common step have bins between the rounded values, or count as categories.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from kullback.common.constraints import Arguments, Whole
from kullback.common.serial_dependence import has_few_digits
from kullback.errors import invalid_value
from kullback.estimators.discrete.categorical_estimators import (
    describe_kind,
    described,
    estimable,
    largest_of,
    measured,
)
from kullback.estimators.discrete.count_intervals import kl_interval
from kullback.estimators.discrete.counts import tabulate
from kullback.estimators.discrete.formulas import CategoryCounts
from kullback.estimators.draws import Array, Draws, Integers, steps_between_ties
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Evidence, Shift, by_direction, noted
from kullback.estimators.registry import evidence_by, from_draws
from kullback.estimators.tails import unseen_by_q, upper_end
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL, as_divergence
from kullback.generators.growth import order_of

# `tests/estimators/test_lattice.py` checks these constants on rounded numbers and on prices, and
# `benchmarks/coverage.py` on rounded normal draws.

# The smallest gap between two values is assumed to be at most this number of steps.
_MOST_STEPS = 12
# A value is on the lattice if its distance from the lattice is at most `_OFF` steps plus the rounding error of floats.
_OFF = 1e-3
# If the rounding error of the floats is more than this fraction of the step, no lattice can be detected.
_UNCLEAR = 0.05
# If less than this proportion of the draws repeats the value of another draw, the ties may have occurred by chance, and
# no lattice is searched.
_FEW_REPEATED = 0.01
# Draws fill a lattice if they have at least `_OCCUPIED` times the number of distinct values that is expected for
# equally likely points of the lattice.
_OCCUPIED = 0.5
# With at most this number of distinct values, each value has enough draws for a bin, and no lattice is searched.
FEWEST_VALUES = 16
# If the mean number of draws for each distinct value is at least this number, the values are treated as categories.
DRAWS_FOR_VALUE = 5
# Values with one draw are continuous, beside atoms, if they are more than this number of times as many as the values
# with two or three draws. Zipf's law with exponent 1.5 has three times as many.
_ONE_DRAW = 5
# Some values count as preferred if the counts of neighboring values vary more than for a smooth density, by at least
# `_PREFERRED` standard errors. Neighboring second differences of the counts are correlated, and the sum of the squared
# correlations is 17 / 18. So the variance of the sum of their squares is larger by the factor `_CORRELATED`.
_PREFERRED, _CORRELATED = 5.0, 1 + 17 / 18
# Numbers with at most `_BITS` binary digits may be rounded. float32 numbers whose median relative gap is below `_DENSE`
# may be rounded too.
_BITS, _DENSE = 11, 1e-5


def common_step(p: Draws, q: Draws) -> float | None:
    """Return the step of a lattice that contains all numbers of both sides, if both sides fill it; otherwise None.

    To fill it, a side needs at least half as many distinct values as draws from equally likely points. Prices, which
    mostly end in 9, do not.
    """
    x, y = p.distinct[0], q.distinct[0]
    if len(x) > (1 - _FEW_REPEATED) * len(p.x) or len(y) > (1 - _FEW_REPEATED) * len(q.x):
        return None
    values = np.unique(np.concatenate([x, y]))
    if len(values) <= FEWEST_VALUES:
        return None
    largest = float(np.abs(values).max())
    epsilon = max(torch.finfo(p.tensor.dtype).eps, torch.finfo(q.tensor.dtype).eps) * largest
    gaps = np.diff(values)
    gaps = gaps[gaps > 4 * epsilon]
    if not len(gaps):
        return None
    smallest = float(gaps.min())
    for parts in range(1, _MOST_STEPS + 1):
        step = smallest / parts
        error = 4 * epsilon / step
        if error > _UNCLEAR:
            return None
        # The step from a single gap has a rounding error, which is multiplied by the number of steps in the range. So
        # the step is fitted to all values.
        number = np.round((values - values[0]) / step)
        step = float(number @ (values - values[0]) / (number @ number))
        off = np.abs((values - values[0]) / step - np.round((values - values[0]) / step))
        if off.max() <= _OFF + error:
            return step if all(_fills(side.x[:, 0], step) for side in (p, q)) else None
    return None


def _fills(x: Array, step: float) -> bool:
    low, high = np.quantile(x, [0.05, 0.95])
    inside = np.round((x[(x >= low) & (x <= high)] - low) / step)
    points = round((high - low) / step) + 1
    return len(np.unique(inside)) >= _OCCUPIED * points * -math.expm1(-len(inside) / points)


def are_rounded(values: Array) -> bool:
    """Return whether distinct numbers have few digits, or float32's gaps: rounding may have made draws equal."""
    if has_few_digits(values) or (np.frexp(values)[0] * 2**_BITS % 1 == 0).all():
        return True
    gaps = np.diff(values) / np.abs(values[1:]).clip(min=np.finfo(np.float64).tiny)
    return bool((np.median(gaps) < _DENSE) and (values.astype(np.float32) == values).all())


def prefers_values(p: Draws, q: Draws, step: float) -> bool:
    """Return whether some values of a lattice, such as multiples of 5, are preferred in P, in Q or in both together."""
    x, y = p.x[:, 0], q.x[:, 0]
    return any(_is_rough(values, step) for values in (x, y, np.concatenate([x, y])))


def _is_rough(x: Array, step: float) -> bool:
    """Return whether the second differences of the counts of neighboring values are too large for a smooth density.

    For Poisson counts a, b and c of equal mean, (a - 2 b + c)^2 and a + 4 b + c have the same expectation.
    """
    low, high = np.quantile(x, [0.05, 0.95])
    counts = np.bincount(np.round((x[(x >= low) & (x <= high)] - low) / step).astype(np.int64)).astype(float)
    if len(counts) < FEWEST_VALUES / 2:
        return False
    square = np.square(np.diff(counts, 2))
    expected = counts[:-2] + 4 * counts[1:-1] + counts[2:]
    variance = _CORRELATED * float((2 * expected**2 + 3 * expected).sum())
    return float((square - expected).sum()) > _PREFERRED * math.sqrt(variance)


def as_categories(p: Draws, q: Draws) -> tuple[Draws, Draws, str] | None:
    """Return numbers with few distinct values, such as prices, as categories with a note; None if bins are better.

    Bins are better for the values of a lattice, unless some values are preferred. A bin of several values would hide
    the preference. Bins are also better for a density beside atoms, such as amounts of which most are 0: as categories,
    its draws would all be new. Equal draws of one cluster count as a single draw.
    """
    values, codes = np.unique(np.concatenate([p.x[:, 0], q.x[:, 0]]), return_inverse=True)
    if not FEWEST_VALUES < len(values) <= len(codes) / DRAWS_FOR_VALUE:
        return None
    units = np.concatenate([p.units, q.units + p.groups])
    counts = np.bincount(np.unique(np.stack([codes, units]), axis=1)[0])
    if len(values) > counts.sum() / DRAWS_FOR_VALUE:
        return None
    if (counts == 1).sum() > _ONE_DRAW * (1 + ((counts == 2) | (counts == 3)).sum()):
        return None
    step = common_step(p, q)
    if step is not None and not prefers_values(p, q, step):
        return None
    which = "unevenly spaced values" if step is None else "values, some of them preferred"
    note = (
        f"{len(codes):,} draws have only {len(values):,} {which}. Each value counts as a category, so "
        "distances between values do not matter."
    )
    first, second = np.split(codes.astype(np.int64)[:, None], [len(p.x)])
    return p.at(first), q.at(second), note


def spread(draws: Draws, step: float) -> Draws:
    """Return the draws with equal draws spread evenly, in their order, over `step` around their value."""
    _, places, counts = draws.distinct
    return draws.at(draws.x + step * steps_between_ties(places, counts)[:, None])


_KL = KL()
# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# The smallest mean number of draws of P and Q together in a bin.
_DRAWS_IN_A_BIN = 20
# The smallest effective number of draws of P and Q together in each bin, if some weights are heavy.
_EFFECTIVE_DRAWS_IN_A_BIN = 10
# The smallest number of P's draws in a bin that `_with_tails` adds.
_DRAWS_IN_A_TAIL = 5
# A gap becomes an edge only if its bin has at least this many draws on either side of the gap.
_DRAWS_AT_A_GAP = 5
# The candidates for edges are quantiles of P and of Q. Each side has this number of quantiles for each bin.
_QUANTILES_IN_A_BIN = 4
# A value is an atom if at least this many draws are equal to it.
_FEWEST_AT_AN_ATOM = 4

_TAILS_DECIDE = (
    "A power of p / q of this order depends on the unobserved ends of the tails: the upper limit is infinite. For a "
    "finite one use a bounded kind, such as 'js' or 'hellinger', or bins as categories: "
    "Samples(np.digitize(x, edges)). The divergence of the bins is a lower bound of the divergence of the densities, "
    "by the data-processing inequality."
)

_PREFERRED_VALUES = (
    "The draws prefer some of the rounded values, which bins of several values do not show. The value is likely too "
    "low, and the upper limit is the largest possible one. For a limit, use more draws of each value, or round both "
    "sides to the preferred values."
)
# If more than this proportion of a side's draws is at values of both sides, in bins with several such values, the
# bins may hide a difference.
_MOST_HIDDEN = 0.1

_HIDDEN_ATOMS = (
    "{:.3g} % of the draws are at values that occur in both samples, several of them in a bin, which does not show "
    "how often each occurs. The value is likely too low, and the upper limit is the largest possible one. If all draws "
    "are at such values, number the values: integers count as categories. Otherwise use more draws of each value."
)
# If the proportion of tied draws is smaller than this, there is no note.
_FEW_TIES = 0.01


@dataclass(frozen=True)
class _Sorted:
    """The sorted draws of one side, and the n + 1 cumulative shares `below`, or None if all weights are equal."""

    values: Array
    below: Array | None

    @property
    def weights(self) -> Array:
        """The weight of each draw, normalized to sum 1."""
        if self.below is None:
            return np.full(len(self.values), 1 / len(self.values))
        return np.diff(self.below)

    def quantiles(self, levels: Array) -> Array:
        """Return the quantiles of the weighted draws at the probabilities `levels`; each quantile is a draw."""
        if self.below is None:
            place = np.ceil(levels * len(self.values)).astype(np.int64) - 1
        else:
            place = np.searchsorted(self.below[1:], levels)
        return self.values[np.clip(place, 0, len(self.values) - 1)]

    def places(self, edges: Array) -> Integers:
        """Return the number of draws at or below each edge."""
        return np.searchsorted(self.values, edges, side="right")

    def shares(self, edges: Array) -> Array:
        """Return the proportion of the weight at or below each edge."""
        places = np.searchsorted(self.values, edges, side="right")
        return places / len(self.values) if self.below is None else self.below[places]

    def share_between(self, start: int, stop: int) -> float:
        """Return the proportion of the weight in the sorted draws with indices start, ..., stop - 1."""
        if self.below is None:
            return (stop - start) / len(self.values)
        return float(self.below[stop] - self.below[start])


@dataclass(frozen=True)
class _Sides:
    """The draws of P and of Q, both in their original order and sorted."""

    p: Draws
    q: Draws
    first: _Sorted
    second: _Sorted
    tops: Array | None = None  # of the rounding of each value, if the draws are rounded to a common step

    def between_values(self, edges: Array) -> Array:
        """Return the edges, moved between the rounded values, so that no edge divides the draws of a value."""
        if self.tops is None:
            return edges
        places = np.unique(np.searchsorted(self.tops, edges))
        return self.tops[places[places < len(self.tops) - 1]]

    def count(self, edges: Array) -> CategoryCounts:
        """Return the counts in the bins (-inf, edges[0]], (edges[0], edges[1]], ..., (edges[-1], inf)."""
        if self.tops is not None:
            edges = self.between_values(edges)
        if self.first.below is self.second.below is self.p.cluster is self.q.cluster is None:
            x, y = self.first.values, self.second.values
            a = np.diff(np.searchsorted(x, edges, "right"), prepend=0, append=len(x))
            b = np.diff(np.searchsorted(y, edges, "right"), prepend=0, append=len(y))
            a, b = torch.from_numpy(a).double(), torch.from_numpy(b).double()
            return CategoryCounts(a, b, n=(len(x), len(y)), bins=True)
        codes = [torch.from_numpy(np.searchsorted(edges, side.x[:, 0])) for side in (self.p, self.q)]
        return tabulate(codes[0], codes[1], len(edges) + 1, self.p, self.q, bins=True)


@from_draws
def histogram(
    p: Draws,
    q: Draws,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    bins: int | None = None,
    kind: Divergence | str = _KL,
) -> Evidence:
    r"""Estimate KL(P || Q), or another divergence, from draws of numbers by their counts in bins.

    The edges of the bins are the ends of wide gaps, and quantiles of the pooled draws with equal total weights of P and
    Q. The outer bins are unbounded. The estimator for the counts is `zhang_grabchak`. If a bin of width w has a of P's
    n draws and none of Q, the density of Q in this bin is estimated from :math:`\nu`. This is the geometric mean of
    these draws' distances to Q's nearest draws. Such a bin adds :math:`\frac an \log \frac{2 \nu}{w}` if this term is
    positive.

    The interval comes from the counts (`kl_interval`). Two corrections raise the upper limit. First, the decrease of
    the estimate for bins of double width is added, because this decrease estimates the loss from the bins. Second, the
    upper limit is at least the upper limit for finer bins in P's tails.

    Divergences other than KL are estimated from the counts as by `bias_corrected`, with the same corrections of the
    upper limit. For powers of p / q of order above 1 or below 0, the upper limit is infinite, because such powers
    depend on the unobserved ends of the tails.

    Bins of draws that are rounded to a common step end between the rounded values.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of finite numbers from P.
        q: draws of finite numbers from Q.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.
        bins: the number of bins. The default is :math:`5 n^{0.4}`, where n is the harmonic mean of the effective
            numbers of draws of P and Q. The default is smaller if a bin would have fewer than 20 draws.
            If weights are heavy, bins with fewer than 10 effective draws are merged.
        kind: the divergence or its name, as in `bias_corrected`.

    Returns:
        value (0 for a negative estimate), standard error and interval in nats. A finite upper limit includes an
        extrapolation of Q's fitted tails. The upper limit is infinite if more than 5 % of P's draws are in bins without
        draws of Q, or if significantly many are in a gap of Q's draws. It is infinite if the extrapolation of Q's tails
        adds more than a quarter of the interval's width, if P has atoms that Q lacks, or if rounded draws prefer some
        values. It is also infinite if bins with several atoms of both sides have more than 10 % of a side's draws.

    Raises:
        ArgumentValueError: the draws are categories or vectors, a draw is infinite, or `bins` is less than 2.
        NoRuleError: draws do not determine this kind.

    Example:
        >>> import torch
        >>> from kullback import Samples
        >>> x, y = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
        >>> estimate = histogram(Samples(x), Samples(1 + 1.5 * y))  # KL(N(0, 1) || N(1, 1.5^2)) = 0.3499
        >>> round(float(estimate.value), 2), bool(estimate.interval[0] < 0.3499 < estimate.interval[1])
        (0.35, True)

    References:
        Divergence estimation of continuous distributions based on data-dependent partitions (Wang, Kulkarni and Verdu,
        2005); Nonparametric Estimation of Kullback-Leibler Divergence (Zhang and Grabchak, 2014)
    """
    bins = _check(p, q, bins)
    if kind is not _KL:
        kind = estimable("histogram", as_divergence("histogram", kind))
    settings: dict[str, Any] = {"confidence": confidence, "generator": generator, "bins": bins}
    if isinstance(kind, ReverseKL | Jeffreys):
        return by_direction(kind, partial(evidence_by, histogram, **settings), p, q)
    rounding: list[str] = []
    step, tops, is_rough = common_step(p, q), None, False
    if step is not None and not torch.equal(p.tensor, q.tensor):
        rounding.append(
            f"The draws are rounded to a common step of {math.ldexp(step, p.exponent):.4g}. Bins end between the "
            "rounded values."
        )
        is_rough = prefers_values(p, q, step)
        tops = np.union1d(p.x, q.x) + step / 2
        p, q = spread(p, step), spread(q, step)
    sides = _Sides(p, q, _sorted(p), _sorted(q), tops)
    is_default = bins is None
    if bins is None:
        n = _independent_draws(sides) * (1 + 1e-12)  # rounded weights must not cost a bin
        bins = max(2, int(min(5 * n**0.4, 2 * n / _DRAWS_IN_A_BIN)))
    edges = _edges(sides.first, sides.second, bins)
    if is_default and (p.is_heavy or q.is_heavy):
        edges = _with_enough_draws(sides.first, sides.second, edges)
    edges = _with_gaps(sides.first, sides.second, edges)
    edges = edges if tops is None else sides.between_values(edges)
    if isinstance(kind, KL):
        evidence = _kl(sides, edges, confidence, rounding)
    else:
        evidence = _of_kind(cast("Divergence", kind), sides, edges, confidence, rounding)
    hidden = _at_hidden_atoms(sides, edges) if step is None and not torch.equal(p.tensor, q.tensor) else 0.0
    if evidence.ends is None or not (is_rough or hidden > _MOST_HIDDEN):
        return evidence
    ends = evidence.ends[0], largest_of(cast("Divergence", kind))
    note = _PREFERRED_VALUES if is_rough else _HIDDEN_ATOMS.format(100 * hidden)
    return noted(replace(evidence, ends=ends, beyond=None), [note])


def _kl(sides: _Sides, edges: Array, confidence: float, rounding: list[str]) -> Evidence:
    """Return the evidence of KL; the upper limit is corrected for the width of the bins and for the tails."""
    first, second, table = sides.first, sides.second, sides.count(edges)
    estimate, corrected = table.estimate, table.correction.shrunken
    more = corrected.clamp(min=_beyond(first, second, edges))
    evidence = described(table, estimate + more, confidence, "histogram")
    remarks = (*rounding, *_notes_on_ties(first, second), *table.notes)
    if evidence.ends is None:
        return replace(evidence, remarks=remarks)
    coarse, tails = sides.count(edges[1::2]), sides.count(_with_tails(first.values, edges))
    lost = (estimate - coarse.estimate).clamp(min=0) + more - corrected
    in_tails = (tails.estimate - estimate).clamp(min=0)
    high = float(kl_interval(tails, confidence, upper_alone=True)[1] + 2 * in_tails)
    low, end = map(float, evidence.ends)
    # If only the finer bins give an infinite limit, a few draws of P in a tail cause it, and it is not used.
    high = (max(end, high) if math.isfinite(high) else end) + float(lost)
    beyond = partial(_beyond_q, sides, float(table.a.sum()))
    return replace(evidence, ends=(low, high), beyond=beyond, remarks=remarks)


def _of_kind(
    kind: Divergence, sides: _Sides, edges: Array, confidence: float, rounding: list[str]
) -> Evidence:
    """Return the evidence of `kind`; the upper limit is corrected for the width of the bins and for the tails."""
    first, second, table = sides.first, sides.second, sides.count(edges)
    evidence = describe_kind(table, kind, confidence)
    fine = _with_tails(second.values, _with_tails(first.values, edges))
    wide, tails = (cast("Any", measured(kind, sides.count(x), confidence)) for x in (edges[1::2], fine))
    value, (low, high) = cast("Any", evidence.value), cast("tuple[Any, Any]", evidence.ends)
    lost = (value - wide.value).clamp(min=0) + 2 * (tails.value - value).clamp(min=0)
    high = float(torch.maximum(high, tails.ends[1]) + lost)
    order, notes = order_of(kind), [*rounding, *evidence.notes]
    if order is not None and not 0 < order < 1:
        high = math.inf
        notes.append(_TAILS_DECIDE)
    ends = low, min(high, largest_of(kind))
    return replace(evidence, ends=ends, notes=[*notes, *_notes_on_ties(first, second)])


_ARGUMENTS = Arguments(
    "histogram",
    bins=Whole(
        least=2, most=1_000_000, example=20, instead="bins=None for a number that suits n", optional=True
    ),
)


def _check(p: Draws, q: Draws, bins: int | None) -> int | None:
    """Return the checked number of bins; raise an error if `bins` is invalid or the draws are not numbers."""
    call = "histogram"
    if p.discrete or p.tensor.shape[1] != 1:
        raise invalid_value(
            call,
            "p, q",
            wanted="draws of numbers",
            got=f"{p!r} and {q!r}",
            instead="method='coverage_adjusted' for categories, method='nearest_neighbors' for vectors",
        )
    return _ARGUMENTS.check(bins=bins)["bins"]


def _sorted(side: Draws) -> _Sorted:
    values = side.x[:, 0]
    if side.weights is None:
        return _Sorted(np.sort(values), None)
    order = np.argsort(values, kind="stable")
    below = np.concatenate([[0.0], np.cumsum(side.weights[order])])
    return _Sorted(values[order], below / below[-1])


def _independent_draws(sides: _Sides) -> float:
    """Return the harmonic mean of the effective numbers of draws; with clusters, from the counts in ten bins."""
    p, q = sides.p, sides.q
    if p.cluster is None and q.cluster is None:
        n, m = p.effective, q.effective
    else:
        table = sides.count(_edges(sides.first, sides.second, 10))
        n, m = float(table.a.sum()), float(table.b.sum())
    return 2 / (1 / n + 1 / m)


def _edges(first: _Sorted, second: _Sorted, bins: int) -> Array:
    """Return the inner edges of bins that have about equal proportions of the pooled draws of P and Q."""
    levels = np.arange(1, _QUANTILES_IN_A_BIN * bins) / (_QUANTILES_IN_A_BIN * bins)
    candidates = np.unique(np.concatenate([first.quantiles(levels), second.quantiles(levels)]))
    pooled = (first.shares(candidates) + second.shares(candidates)) / 2
    chosen = np.searchsorted(pooled, np.arange(1, bins) / bins * (1 - 1e-12))
    return candidates[np.unique(np.minimum(chosen, len(candidates) - 1))]


def _with_enough_draws(first: _Sorted, second: _Sorted, edges: Array) -> Array:
    """Return the edges of bins in which P and Q together have `_EFFECTIVE_DRAWS_IN_A_BIN` or more draws.

    Where the weights are large, bins with equal proportions of the weight have few draws.
    """
    place = np.searchsorted(edges, np.concatenate([first.values, second.values]))
    weights = np.concatenate([first.weights, second.weights])
    totals, squares = (np.bincount(place, weights**k, minlength=len(edges) + 1) for k in (1, 2))
    kept: list[int] = []
    total = square = 0.0
    for i in range(len(totals)):
        total, square = total + totals[i], square + squares[i]
        if total**2 >= _EFFECTIVE_DRAWS_IN_A_BIN * square:
            kept.append(i)
            total = square = 0.0
    kept = kept[:-1]  # the last bin extends to infinity, and includes a rest with too few draws
    return edges[kept or [len(edges) // 2]]


def _with_gaps(first: _Sorted, second: _Sorted, edges: Array) -> Array:
    """Return the edges, with one more in each bin that has a gap wider than half its range without a few draws."""
    values = np.sort(np.concatenate([first.values, second.values]), kind="stable")
    ends = np.concatenate([[0], np.searchsorted(values, edges, side="right"), [len(values)]])
    added: list[float] = []
    for start, stop in pairwise(ends.tolist()):
        x = values[start + _DRAWS_AT_A_GAP - 1 : stop - _DRAWS_AT_A_GAP + 1] / 2  # whose range is finite
        if len(x) > 1:
            widest = int(np.diff(x).argmax())
            if x[widest + 1] - x[widest] > (x[-1] - x[0]) / 2:
                added.append(2 * float(x[widest]))
    return np.unique(np.concatenate([edges, added]))


def _with_tails(values: Array, edges: Array) -> Array:
    """Return the edges, with additional edges that repeatedly halve the number of draws in the outer bins."""
    first, last = np.searchsorted(values, edges[[0, -1]], side="right")
    tails: list[float] = []
    for outside, is_left in ((int(first), True), (len(values) - int(last), False)):
        k = outside // 2
        while k >= _DRAWS_IN_A_TAIL:
            tails.append(values[k - 1] if is_left else values[len(values) - k - 1])
            k //= 2
    return np.unique(np.concatenate([edges, tails]))


def _beyond(first: _Sorted, second: _Sorted, edges: Array) -> float:
    """Return the sum, over the bins with draws of P only, of the terms from the distances to Q's nearest draws."""
    ends = np.concatenate([[0], first.places(edges), [len(first.values)]])
    empty = np.diff(second.places(edges), prepend=0, append=len(second.values)) == 0
    total = 0.0
    for i in np.nonzero(empty & (np.diff(ends) > 1))[0]:
        x = first.values[ends[i] : ends[i + 1]]
        # Both numbers are halved first, so that the difference of two huge numbers does not overflow.
        half_width = float(x[-1] / 2 - x[0] / 2) * (len(x) + 1) / (len(x) - 1)
        if half_width > 0:
            farther = float(np.mean(np.log(_distances(x, second.values)))) - math.log(half_width)
            total += first.share_between(int(ends[i]), int(ends[i + 1])) * max(0.0, farther)
    return total


def _beyond_q(sides: _Sides, number: float, half_width: float) -> Shift:
    """Return the increase of the upper limit for P's draws outside the range of Q's draws or in gaps between them."""
    first, second = sides.first, sides.second
    atoms = _atoms_of_p_alone(sides.p, first, second)
    if atoms > 0:
        note = (
            f"{100 * atoms:.3g} % of {SIDE_P}'s draws are at repeated values that are rare in {SIDE_Q}. If these are "
            "atoms, KL is infinite, so the upper limit is infinite. If they come from rounding, round "
            f"{SIDE_Q}'s draws in the same way."
        )
        return Shift(math.inf, note)
    return upper_end(unseen_by_q(first.values, first.weights, second.values, number), half_width)


def _at_hidden_atoms(sides: _Sides, edges: Array) -> float:
    """Return the larger side's proportion of draws at values of both sides, in bins with several such values.

    Rounded draws do not count: under a smooth density, all values of a bin have nearly the same log-ratio.
    """
    values = np.intersect1d(sides.first.values, sides.second.values)
    if len(values) < 2 or are_rounded(values):
        return 0.0
    place = np.searchsorted(edges, values)
    values = values[np.bincount(place)[place] > 1]
    return max(
        float(side.weights[np.isin(side.values, values)].sum()) for side in (sides.first, sides.second)
    )


def _atoms_of_p_alone(p: Draws, first: _Sorted, second: _Sorted) -> float:
    """Return the proportion of P's draws, one for each cluster, at atoms that are at least ten times rarer in Q."""
    of_p = p.x[:, 0]
    if p.cluster is not None:
        of_p = np.unique(np.stack([of_p, np.asarray(p.cluster, dtype=np.float64)], axis=1), axis=0)[:, 0]
    values, count = np.unique(of_p, return_counts=True)
    several = count >= _FEWEST_AT_AN_ATOM
    if not several.any():
        return 0.0
    values, count = values[several], count[several]
    of_q = np.searchsorted(second.values, values, "right") - np.searchsorted(second.values, values, "left")
    of_q, expected = of_q / len(second.values), count / len(of_p)
    alone = (of_q < expected / 10) & (expected * len(second.values) >= _FEWEST_AT_AN_ATOM)
    if count[alone].sum() < 2 * _FEWEST_AT_AN_ATOM:
        return 0.0
    start, stop = (np.searchsorted(first.values, values[alone], side) for side in ("left", "right"))
    return sum(first.share_between(i, j) for i, j in zip(start, stop, strict=True))


def _distances(x: Array, y: Array) -> Array:
    """Return the distance from each x to the nearest of the sorted y; x and y must have no value in common."""
    above = np.searchsorted(y, x)
    up = np.where(above < len(y), y[np.minimum(above, len(y) - 1)] / 2 - x / 2, np.inf)
    down = np.where(above > 0, x / 2 - y[np.maximum(above - 1, 0)] / 2, np.inf)
    return np.maximum(2 * np.minimum(up, down), np.finfo(np.float64).tiny)


def _notes_on_ties(first: _Sorted, second: _Sorted) -> list[str]:
    if len(first.values) == len(second.values) and np.array_equal(first.values, second.values):
        return [f"{SIDE_P} and {SIDE_Q} are the same draws."]
    notes: list[str] = []
    for name, values in ((SIDE_P, first.values), (SIDE_Q, second.values)):
        tied = float(np.mean(values[1:] == values[:-1])) if len(values) > 1 else 0.0
        if tied > _FEW_TIES:
            notes.append(
                f"{100 * tied:.3g} % of {name}'s draws equal another one, because of rounding or atoms. The value is "
                "the divergence between bins that do not split these values."
            )
    return notes
