"""KL between continuous distributions in any dimension, from distances between draws and their nearest neighbors.

The distance from a draw to its k-th neighbor in a sample gives an estimate of the density at the draw. The bias of this
estimate is reduced in three ways. If the results for two numbers of neighbors differ significantly, they are
extrapolated to k = 0. A map makes Q about normal. A Gaussian pilot density corrects for the change of the density
within a ball; see the module `pilot`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from kullback.common.constraints import FLAG, Arguments, Whole
from kullback.common.inference import two_sided_quantile
from kullback.errors import P, Q, invalid_value
from kullback.estimators.draws import Array, Draws, affordable_draws
from kullback.estimators.evidence import SIDE_P, SIDE_Q, SMALL_P, SMALL_Q, Evidence, infinite
from kullback.estimators.knn.data import charted, check_independent, check_points, prepared
from kullback.estimators.knn.joint_shape import JointShape, joint_shape
from kullback.estimators.knn.pilot import Whitening, with_normal_margins
from kullback.estimators.knn.search import KNearest, search_line, search_space
from kullback.estimators.registry import from_draws, rng_of
from kullback.estimators.surfaces import as_log_ratios, common_span, too_few_dimensions
from kullback.estimators.tails import Unseen, unseen_by_q, unseen_in_scores, upper_end

# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# A Gaussian pilot density needs at least this number of draws, and at least ten draws for each component.
_PILOT_DRAWS = 100
# With more draws of each side, the default number of neighbors is smaller, because the search is slow and the variance
# of the estimate is small.
_MANY = 50_000
# Above `_MOST_DIMENSIONS` dimensions, there is no interval, because estimates in `benchmarks/bench_samples.py` are
# wrong by a large factor. There is also no interval for fewer than `_FEWEST_FOR_INTERVAL` independent draws of a side.
_MOST_DIMENSIONS = 10
_FEWEST_FOR_INTERVAL = 20
# From this number of dimensions on, a third estimate with 4 k neighbors gives a bound for the remaining bias.
_FEWEST_DIMENSIONS_WIDE = 3
# The bias is assumed to be proportional to a power of k. The exponent is estimated if the change from k to k / 4
# neighbors is more than this many standard errors.
_CLEARLY = 3.0
# An estimate above log m minus this number of nats, for m draws of Q, depends on distances to the outermost draws of Q.
# The upper limit is then infinite.
_NEAR_THE_LIMIT = 2.0


@dataclass(frozen=True)
class _NeighborTerms:
    """The log-ratios from the neighbors of P's draws, and other results of the searches.

    Attributes:
        ks: the numbers of neighbors, in ascending order.
        log_ratio: estimates of log(p / q), one row for each number of neighbors, one column for each draw of P.
        smoothing: the part of `log_ratio` that comes from the pilot density.
        occurrence_p, occurrence_q: for each of `ks`, the total weight of the queries with each draw as a neighbor.
        radii: the distances of P's draws, and of Q's draws, from the center of Q.
        wide: the log-ratios with four times the largest number of neighbors; None if they are not needed.
        overfit: the expected bias of the estimate because the pilot density was fitted to the same draws.
        flat: the result of `_flat`.
        ball: the median radius of the balls with the smallest number of neighbors, in standard deviations.
    """

    ks: tuple[int, ...]
    log_ratio: Array
    smoothing: Array
    occurrence_p: list[Array]
    occurrence_q: list[Array]
    radii: tuple[Array, Array]
    wide: Array | None = None
    overfit: float = 0.0
    flat: str = ""
    ball: float = 0.0


@dataclass(frozen=True)
class _Value:
    """The estimate, and `shift`, its change by the extrapolation to k = 0; `mix` weights the numbers of neighbors.

    `withheld` is the part of it that was not made, because it may be chance, and `chance` the error of both together.
    `smoothing` is the part from the pilot density.
    """

    value: float
    shift: float
    withheld: float
    chance: float
    smoothing: float
    mix: Array


_ARGUMENTS = Arguments(
    "nearest_neighbors",
    k=Whole(least=1, example=4, instead="k=None for a choice by the number of draws", optional=True),
    most=Whole(
        least=_PILOT_DRAWS, example=1000, instead="most=None for a number that takes seconds", optional=True
    ),
    whiten=FLAG,
    extrapolate=FLAG,
)


@from_draws
def nearest_neighbors(
    p: Draws,
    q: Draws,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    k: int | None = None,
    whiten: bool = True,
    extrapolate: bool = True,
    most: int | None = None,
) -> Evidence:
    r"""Estimate KL(P || Q) of continuous distributions from the distances between draws and their nearest neighbors.

    .. math:: \hat D_k = \frac dn \sum_i \log \frac{\nu_k(x_i)}{\rho_k(x_i)} + \log \frac{m}{n - 1}

    Here :math:`\rho_k(x_i)` and :math:`\nu_k(x_i)` are the distances from :math:`x_i` to its k-th neighbor, among the
    other draws of P and among the draws of Q. The options `whiten` and `extrapolate`
    reduce the bias; ``nearest_neighbors(p, q, k=k, whiten=False, extrapolate=False)`` computes the plain formula.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of P, floating-point, shape (n, d). Weights of the draws enter the mean and the density estimates.
        q: draws of Q, floating-point, shape (m, d).
        confidence: the probability that the interval contains KL(P || Q).
        generator: not used, because the seed for the choice of at most `most` draws depends on the draws alone.
        k: the number of neighbors; with `extrapolate`, the larger of two numbers. The default is 48 for d = 1, and 16
            for d > 1. The default is 5 for d > 1 and more than 50 000 draws, and smaller than these numbers for few
            draws.
        whiten: if True and d > 1, a map makes Q's margins about normal, and a linear map makes the covariance of each
            side the identity. Each density estimate is then corrected for the variation of a fitted normal density
            within the ball. KL itself does not depend on the coordinates.
        extrapolate: if True, the estimate is also computed with k / 4 neighbors. If the two estimates differ
            significantly, they are extrapolated linearly in :math:`\sqrt k` to k = 0.
        most: the largest number of draws of each side. If there are more draws, a random subset is used, and a note
            reports its size. By default, all draws are used up to 5 dimensions. In 6, 7, 8, 9 and 10 dimensions, at
            most 30 000, 15 000, 10 000, 8000 and 6000 draws are used; in more, 20 000. The search
            then takes seconds; its time is about quadratic in the number of draws.

    Returns:
        the estimate in nats, on the device of `p`, at least 0. The interval allows for the sampling errors of the draws
        (or clusters) of both sides and for bias.

        From three dimensions on, the upper limit allows for a bias that decreases slowly with k, as far as the
        estimates with 4 k, k and k / 4 neighbors permit. From four dimensions on, neighbors may miss a difference
        between joint distributions with equal margins. So with `whiten`, a logistic regression on features such as
        log(1 + x_i^2) gives a second estimate of KL. The upper limit is raised to the upper limit of this second
        estimate. If the second estimate contradicts the neighbors, it replaces the value, and the upper limit is
        infinite. The upper limit is also infinite if most of P is in a region where Q has few draws.

        The interval is None in more than 10 dimensions, for draws near a curve or surface of fewer than d dimensions,
        and for fewer than 20 draws. If a small part of P is outside the range of Q's draws, the draws do not show the
        density of Q there. The estimate may then be too low by more than the interval allows for.

    Raises:
        ArgumentTypeError: the draws are categories.
        ArgumentValueError: `p` and `q` have different numbers of components, values are infinite, a component is
            constant, draws repeat, or draws of `p` are also in `q`. There may also be too few draws for `k` or for the
            number of components.
        OptionalDependencyError: SciPy is not installed.

    Example:
        >>> import torch, kullback
        >>> from kullback.estimators import nearest_neighbors
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(2000, generator=generator, dtype=torch.float64)
        >>> y = 1 + 1.5 * torch.randn(2000, generator=generator, dtype=torch.float64)
        >>> estimate = nearest_neighbors(kullback.Samples(x), kullback.Samples(y))  # the true value is 0.350
        >>> low, high = estimate.interval
        >>> bool(low < 0.350 < high)
        True

    References:
        Divergence Estimation for Multidimensional Densities Via k-Nearest-Neighbor Distances (Wang, Kulkarni and
        Verdu, 2009); Ensemble Estimators for Multivariate Entropy Estimation (Sricharan, Wei and Hero, 2013)
    """
    k, most, *_ = _ARGUMENTS.check(k=k, most=most, whiten=whiten, extrapolate=extrapolate).values()
    check_points(p, q)
    n, device = (p.number, q.number), p.device if p.device.type == "cuda" else torch.device("cpu")
    p, q, proportions = as_log_ratios(p, q)
    span = common_span(p, q)
    if span.infinite:
        return infinite(span.infinite, n)
    first, second, notes = prepared(span.p, span.q)
    first, second = charted(first, second, (p.tensor.dtype, q.tensor.dtype), notes)
    notes += [*proportions, *span.notes]
    first, second = _thinned(first, second, most, notes)
    ks = _numbers(first, second, k, extrapolate=extrapolate)
    fewer = ((1, 4) if extrapolate else (1,)) if k is None and ks[-1] > 4 else ()
    terms_of = _searched(first, second, ks, fewer, whiten=whiten, device=device)
    terms = terms_of(ks)
    poor = _overlap_is_poor(terms, first)
    if poor and fewer:
        terms = terms_of(fewer)
    _check_atoms(terms)
    mean = _extrapolated(terms, first.weights)
    error = _standard_error(terms, mean.mix, first, second)
    low, high = _interval(mean, error, terms, confidence)
    reach, wide = _reach(terms, (low, high), first, second, confidence)
    high += reach
    limit = math.log(len(second))
    shape = joint_shape(first, second) if whiten else None
    value, high, shape_notes = _with_joint_shape(shape, mean.value, high, confidence)
    notes += shape_notes
    if mean.value < 0:
        notes.append(f"The estimate was {mean.value:.3g}; it is reported as 0, because KL is never negative.")
    if poor or mean.value > limit - _NEAR_THE_LIMIT:
        high = math.inf
        notes.append(
            f"Most of {SIDE_P} is where {SIDE_Q} has few draws: {len(second)} draws of {SMALL_Q} cannot show a KL much "
            f"above log {len(second)} = {limit:.1f}. The value is a lower estimate, and the upper limit is infinite."
        )
    refusal = _refusal(terms, first, second)

    def remarks(end: float) -> Iterator[str]:
        if end < math.inf and abs(mean.shift) + abs(mean.smoothing) > (end - low) / 8:
            yield (
                f"Bias corrections changed the value by {mean.shift:+.3g} (extrapolation to 0 neighbors) and "
                f"{mean.smoothing:+.3g} (density changes within the balls around a draw). The interval includes the "
                "errors of both."
            )
        if refusal:
            yield refusal
            return
        if first.cluster is not None or second.cluster is not None:
            yield "The interval assumes independent clusters. Neighbors in a draw's own cluster raise the estimate."
        if end < math.inf and wide:
            yield wide

    return Evidence(
        max(value, 0.0),
        error=max(error, 0.0),
        ends=(low, high),
        notes=notes,
        beyond=lambda _: upper_end(_unseen(terms, first, second), (high - low) / 2),
        remarks=remarks,
        without_interval=bool(refusal),
        n=n,
    )


def _thinned(p: Draws, q: Draws, most: int | None, notes: list[str]) -> tuple[Draws, Draws]:
    """Return at most `most` random draws of each side; if draws are left out, append a note to `notes`."""
    d = p.x.shape[1]
    number = most or affordable_draws(d) or len(p) + len(q)
    if max(len(p), len(q)) <= number:
        return p, q
    rng = rng_of(p, q)
    sides = [side.thinned(number, rng) for side in (p, q)]
    notes.append(
        f"{len(sides[0]):,} of {SIDE_P}'s {len(p):,} draws and {len(sides[1]):,} of {SIDE_Q}'s {len(q):,} were used, "
        f"chosen at random, because the search for neighbors is slow in {d} dimensions. Use "
        f"nearest_neighbors({SMALL_P}, {SMALL_Q}, most={max(len(p), len(q))}) to include all."
    )
    return sides[0], sides[1]


def _numbers(p: Draws, q: Draws, k: int | None, *, extrapolate: bool) -> tuple[int, ...]:
    """Return the numbers of neighbors in ascending order: k / 4 and k with `extrapolate`, otherwise k."""
    most = min(len(p) - 1, len(q))
    if k is None:
        usual, share = (48, 6) if p.x.shape[1] == 1 else (5 if most > _MANY else 16, 20)
        k = min(usual, max(most // share, 4), most)
    if k > most:
        raise invalid_value(
            "nearest_neighbors",
            "k",
            wanted=(f"1 to {most} neighbors for {len(p)} draws of ", P, f" and {len(q)} of ", Q),
            got=str(k),
            instead="k=None for a choice by the number of draws",
        )
    return (max(k // 4, 1), k) if extrapolate and k > 1 else (k,)


def _searched(
    p: Draws, q: Draws, ks: tuple[int, ...], fewer: tuple[int, ...], *, whiten: bool, device: torch.device
) -> Callable[[tuple[int, ...]], _NeighborTerms]:
    """Return a function of numbers of neighbors, `ks` or `fewer`, that returns the terms of the estimate."""
    d = p.x.shape[1]
    if d == 1 and device.type == "cpu":
        x, y = p.x[:, 0], q.x[:, 0]

        def on_a_line(ks: tuple[int, ...]) -> _NeighborTerms:
            own = search_line(x, x, ks, own=True, weights=p.weights, query_weights=p.weights)
            cross = search_line(y, x, ks, own=False, weights=q.weights, query_weights=p.weights)
            return _terms((p, q), ks, (own, cross), np.zeros((len(ks), 1)), (x, y))

        return on_a_line
    pilot = whiten and d > 1 and min(p.effective, q.effective) >= max(_PILOT_DRAWS, 10 * d)
    p_points, q_points = with_normal_margins(p.x, q.x) if pilot else (p.x, q.x)
    whitening_p, whitening_q = _whitenings(p_points, q_points, p, q, whiten=whiten, pilot=pilot)
    at_p, at_q, draws_q = whitening_p(p_points), whitening_q(p_points), whitening_q(q_points)
    radii = np.sqrt(np.square(at_q).sum(1)), np.sqrt(np.square(draws_q).sum(1))
    wide = (_wide(numbers, p, q) for numbers in (ks, fewer) if numbers)
    numbers = tuple(sorted({*ks, *fewer, *(k for k in wide if k is not None)}))
    every_own = search_space(
        at_p, at_p, numbers, own=True, weights=p.weights, query_weights=p.weights, device=device
    )
    every_cross = search_space(
        draws_q, at_q, numbers, own=False, weights=q.weights, query_weights=p.weights, device=device
    )

    def in_space(ks: tuple[int, ...]) -> _NeighborTerms:
        wide = _wide(ks, p, q)
        places = [numbers.index(k) for k in (ks if wide is None else (*ks, wide))]
        own, cross = [every_own[i] for i in places], [every_cross[i] for i in places]
        smoothing, overfit, ball = np.zeros((len(places), 1)), 0.0, 0.0
        if pilot:
            ball = float(np.exp(np.median(own[0].log_radius)))
            rows = [
                whitening_q.log_smoothing(at_q, in_q.log_radius)
                - whitening_p.log_smoothing(at_p, in_p.log_radius)
                for in_p, in_q in zip(own, cross, strict=True)
            ]
            smoothing = np.stack(rows)
            parameters = d + d * (d + 1) / 2
            overfit = parameters * (1 / p.effective + 1 / q.effective) / 2 * d / (d + 2)
        flat = _flat((p.x, at_p), (q.x, draws_q), ks[-1]) if 1 < d <= _MOST_DIMENSIONS else ""
        stretch = whitening_q.log_volume - whitening_p.log_volume
        terms = _terms((p, q), ks, (own, cross), smoothing, radii, stretch)
        return replace(terms, overfit=overfit, flat=flat, ball=ball)

    return in_space


def _terms(
    sides: tuple[Draws, Draws],
    ks: tuple[int, ...],
    nearest: tuple[list[KNearest], list[KNearest]],
    smoothing: Array,
    radii: tuple[Array, Array],
    stretch: float = 0.0,
) -> _NeighborTerms:
    """Return the terms of the estimate from the searches in P's and in Q's draws.

    An additional last result of `nearest` is for `wide`. `stretch` is the difference of the log-volumes of the maps.
    """
    p, q = sides
    log_ratio = np.stack([_log_ratio(a, b, p.x.shape[1]) for a, b in zip(*nearest, strict=True)])
    log_ratio += smoothing + (math.log(len(q) / (len(p) - 1)) + stretch)
    used = len(ks)
    smoothing = np.broadcast_to(smoothing, log_ratio.shape)[:used]
    in_p, in_q = ([nearest_k.occurrence for nearest_k in side[:used]] for side in nearest)
    wide = log_ratio[used] if len(log_ratio) > used else None
    return _NeighborTerms(ks, log_ratio[:used], smoothing, in_p, in_q, radii, wide)


def _wide(ks: tuple[int, ...], p: Draws, q: Draws) -> int | None:
    """Return four times the largest of `ks`, for an estimate of the bias; None if not needed or with too few draws."""
    wide, d = 4 * ks[-1], p.x.shape[1]
    is_needed = len(ks) > 1 and _FEWEST_DIMENSIONS_WIDE <= d <= _MOST_DIMENSIONS
    return wide if is_needed and wide <= min(len(p) - 1, len(q)) else None


def _flat(p: tuple[Array, Array], q: tuple[Array, Array], k: int) -> str:
    """Return a text with each side whose draws, plain and whitened, fill fewer than d dimensions; empty for none."""
    ks = max(k, 4) // 4, max(k, 4)
    fewer = [(name, too_few_dimensions(*draws, ks)) for name, draws in ((SIDE_P, p), (SIDE_Q, q))]
    return " and ".join(f"{name}'s about {d:.1f}" for name, d in fewer if d is not None)


def _log_ratio(own: KNearest, cross: KNearest, d: int) -> Array:
    """Return log p - log q at the draws of P, up to a constant, from neighbors in P's and in Q's draws."""
    log_ratio = d * (cross.log_radius - own.log_radius)
    if own.log_weight is not None:
        log_ratio = log_ratio + own.log_weight
    return log_ratio if cross.log_weight is None else log_ratio - cross.log_weight


def _whitenings(
    p_points: Array, q_points: Array, p: Draws, q: Draws, *, whiten: bool, pilot: bool
) -> tuple[Whitening, Whitening]:
    """Return the linear maps of P's and of Q's draws: to identity covariance with `pilot`, else one map for both."""
    if pilot:
        check_independent(p_points, q_points)
        return Whitening.of(p_points, p.weights), Whitening.of(q_points, q.weights)
    scale = np.ones(p_points.shape[1])
    if whiten:
        scale = np.median(np.abs(q_points - np.median(q_points, 0)), 0)
        scale = np.where(scale > 0, scale, np.std(q_points, 0))
    whitening = Whitening(np.median(q_points, 0), np.diag(scale), math.inf)
    return whitening, whitening


def _overlap_is_poor(terms: _NeighborTerms, p: Draws) -> bool:
    """Return whether the ball about most draws of P, with k draws of Q, contains at least a quarter of P's draws."""
    wide = terms.log_ratio[-1] > max(math.log(len(p) / (4 * terms.ks[-1])), 1.0)
    return bool(np.average(wide, weights=p.weights) > 0.5)


def _check_atoms(terms: _NeighborTerms) -> None:
    bad = ~np.isfinite(terms.log_ratio).all(0)
    if bool(bad.any()):
        raise invalid_value(
            "nearest_neighbors",
            "p, q",
            wanted=f"draws of continuous distributions, which do not repeat {terms.ks[0]} times",
            got=(f"{int(bad.sum())} draws of ", P, " whose neighbor is at distance 0"),
            instead="a larger k, or Samples(x.long()) if the values are categories",
        )


def _extrapolated(terms: _NeighborTerms, weights: Array | None) -> _Value:
    """Return the estimate, extrapolated in sqrt(k) to k = 0.

    The extrapolation begins at a change of two standard errors from k to k / 4 neighbors, and is partial just above.
    """
    means = np.average(terms.log_ratio, axis=1, weights=weights)
    smoothing = float(np.average(terms.smoothing[-1], weights=weights))
    if len(means) == 1:
        return _Value(float(means[0]) - terms.overfit, 0.0, 0.0, 0.0, smoothing, np.ones(1))
    difference, error = _change(terms.log_ratio[0], terms.log_ratio[1], weights)
    chance = error**2
    trusted = max(0.0, 1 - 4 * chance / difference**2) if difference else 0.0
    few, many = (math.sqrt(k) for k in terms.ks)
    factor = many / (many - few)
    shift, amount = trusted * factor * difference, trusted * factor
    value, mix = float(means[1]) + shift - terms.overfit, np.array([amount, 1 - amount])
    return _Value(
        value, shift, (1 - trusted) * factor * difference, factor * math.sqrt(chance), smoothing, mix
    )


def _change(few: Array, many: Array, weights: Array | None) -> tuple[float, float]:
    """Return the mean log-ratio with few neighbors minus the mean with many, and the standard error of this number."""
    change = few - many
    share = np.full(len(change), 1 / len(change)) if weights is None else weights / weights.sum()
    difference = float(share @ change)
    return difference, math.sqrt(float(np.square(share * (change - difference)).sum()))


def _most_bias(terms: _NeighborTerms, d: int, weights: Array | None) -> float:
    r"""Return the bias of the estimate with the larger number of neighbors k, as an allowance for the upper limit.

    The bias is proportional to :math:`k^\gamma`. For smooth log-densities, :math:`\gamma` is 2 / d, and 1 / d for jumps
    or changes within a ball. If k decreases by the factor 4, the estimate increases by the proportion
    :math:`1 - 4^{-\gamma}` of the bias. :math:`\gamma` follows from the increases from 4 k to k and from k to k / 4, or
    is 1 / d if the latter is not significant. The smaller increase, plus one standard error, gives the bias. If the
    median ball is wider than a standard deviation, the bias is multiplied by its radius.
    """
    if terms.wide is None:
        return 0.0
    step, error = _change(terms.log_ratio[0], terms.log_ratio[1], weights)
    before, error_before = _change(terms.log_ratio[1], terms.wide, weights)
    slow, smooth = 4 ** (1 / d), 4 ** min(2 / d, 1.0)
    ratio = min(max(before / step, slow), smooth) if step > _CLEARLY * error else slow
    rise = min(step + error, before + error_before)
    return max(rise, 0.0) * ratio / (ratio - 1) * max(terms.ball, 1.0)


def _standard_error(terms: _NeighborTerms, mix: Array, p: Draws, q: Draws) -> float:
    """Return the standard error from the squared influences of the draws, or clusters, of both sides."""
    total = float(len(p) if p.weights is None else p.weights.sum())
    ratio = _combined(mix / total, list(terms.log_ratio))
    if p.weights is not None:
        ratio *= p.weights
    parts = mix / (np.array(terms.ks) * total)
    influence_p = _centered(ratio, p.weights)
    influence_p += _centered(_combined(parts, terms.occurrence_p), p.weights)
    moved = _combined(parts, terms.occurrence_q)
    if q.weights is not None:
        moved *= q.weights / q.weights.mean()
    influence_q = _centered(moved, q.weights)
    return math.sqrt(p.variance(influence_p) + q.variance(influence_q))


def _centered(influence: Array, weights: Array | None) -> Array:
    """Return influences with sum 0, changed in place: the sum times a draw's normalized weight is subtracted."""
    share = 1 / len(influence) if weights is None else weights / weights.sum()
    influence -= share * influence.sum()
    return influence


def _combined(parts: Array, rows: list[Array]) -> Array:
    total = parts[0] * rows[0]
    for part, row in zip(parts[1:], rows[1:], strict=True):
        total += part * row
    return total


def _interval(mean: _Value, error: float, terms: _NeighborTerms, confidence: float) -> tuple[float, float]:
    """Return the limits of the normal interval, widened for the bias that may remain after the corrections."""
    width = two_sided_quantile(confidence) * error + 0.5 * abs(mean.smoothing) + 0.5 * terms.overfit
    back = abs(mean.shift) / 3
    onwards = back + abs(mean.withheld) / 2
    down, up = (back, onwards) if mean.shift + mean.withheld > 0 else (onwards, back)
    center = max(mean.value, 0.0)
    # The extrapolation may have left a bias, which is mostly negative, because P extends into regions where Q has few
    # draws. So `mean.chance` widens the interval only upwards.
    return center - width - down, center + width + up + mean.chance / 2


def _reach(
    terms: _NeighborTerms, interval: tuple[float, float], p: Draws, q: Draws, confidence: float
) -> tuple[float, str]:
    """Return the increase of the upper limit that the remaining bias requires, and a note if the increase is large."""
    low, high = interval
    most = _most_bias(terms, p.x.shape[1], p.weights)
    if most == 0:
        return 0.0, ""
    smoothing = float(np.average(terms.smoothing[-1], weights=p.weights))
    many = float(np.average(terms.log_ratio[-1], weights=p.weights)) - terms.overfit
    width = two_sided_quantile(confidence) * _standard_error(terms, np.array([0.0, 1.0]), p, q)
    end = many + most + width + 0.5 * abs(smoothing) + 0.5 * terms.overfit
    if end - high <= (high - low) / 4:
        return max(end - high, 0.0), ""
    return end - high, (
        f"The estimate rises with fewer neighbors: in {p.x.shape[1]} dimensions the balls may be too wide to resolve "
        f"the difference of {SIDE_P} and {SIDE_Q}. The upper limit allows for {end - high:.2g} nats more."
    )


def _with_joint_shape(
    shape: JointShape | None, value: float, high: float, confidence: float
) -> tuple[float, float, list[str]]:
    """Return the value, the upper limit and notes, after a comparison with the regression of `joint_shape`.

    A larger estimate of the regression raises the upper limit. If it contradicts this limit, it replaces the value.
    """
    if shape is None or shape.value <= value:
        return value, high, []
    width = two_sided_quantile(confidence) * shape.error
    if shape.value - width <= high:
        return value, max(high, shape.value + width + (shape.value - value) / 2), []
    note = (
        f"The neighbors do not resolve how the components of {SIDE_P} and {SIDE_Q} go together: they show {value:.2g} "
        f"nats, and a regression on the components' spreads shows {shape.value:.2g}, which is the value. The upper "
        "limit is infinite, because the rest of the difference is not known. Use method='density_ratio'."
    )
    return shape.value, math.inf, [note]


def _unseen(terms: _NeighborTerms, p: Draws, q: Draws) -> Unseen:
    """Return the statistics of P's draws outside Q's range, of the distance from Q's center and of each component."""
    number = p.effective * p.groups / len(p)
    if p.x.shape[1] == 1:
        return unseen_by_q(p.x[:, 0], p.shares, q.x[:, 0], number)
    return unseen_in_scores([terms.radii, *zip(p.x.T, q.x.T, strict=True)], p.shares, number)


def _refusal(terms: _NeighborTerms, p: Draws, q: Draws) -> str:
    """Return a note that explains why there is no interval; an empty string if there is an interval."""
    d = p.x.shape[1]
    if d > _MOST_DIMENSIONS:
        return (
            f"In {d} dimensions, estimates from neighbors can be wrong by a large factor, however many draws there "
            "are: there is no interval. Use method='density_ratio' for more than ten dimensions."
        )
    if terms.flat:
        return (
            f"The draws have {d} components but fill fewer dimensions at the distance of their neighbors: "
            f"{terms.flat}. On such a surface there is no density, and no interval: use method='density_ratio'."
        )
    if min(p.groups, q.groups) < _FEWEST_FOR_INTERVAL:
        return (
            f"There is no interval: it needs {_FEWEST_FOR_INTERVAL} independent draws (or clusters) of each side, but "
            f"there are {p.groups} of {SMALL_P} and {q.groups} of {SMALL_Q}."
        )
    return ""
