r"""KL from the nearest neighbors of draws: of a continuous P and a continuous Q, in any dimension.

The distance to the k-th neighbor in each sample estimates the density there. Its bias is fought in three ways: two
numbers of neighbors, extrapolated to none where they differ by more than chance; coordinates in which Q is about
normal; and a Gaussian pilot for how the density changes within a ball (`pilot`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kullback.common.inputs import whole_from
from kullback.errors import invalid_value, safe_repr
from kullback.estimators.dimension import too_few_dimensions
from kullback.estimators.draws import Array, Draws, affordable_draws
from kullback.estimators.knn.data import charted, check_independent, check_points, prepared
from kullback.estimators.knn.pilot import MarginalGaussianization, Whitening
from kullback.estimators.knn.search import KNearest, search_line, search_space
from kullback.estimators.normal_interval import infinite_estimate, standard_normal_quantile
from kullback.estimators.sample_checks import check_confidence, seed_of
from kullback.estimators.spans import as_log_ratios, common_span
from kullback.estimators.unseen import Unseen, unseen_by_q, unseen_in_scores, upper_end
from kullback.results.estimate import Estimate
from kullback.samples import Samples

__all__ = ["nearest_neighbors"]

# The Gaussian of this many draws, and of ten for each component, is steady enough to be a pilot.
_PILOT_DRAWS = 100
# So many draws of each side make larger balls needless and their search slow.
_MANY = 50_000
# The k-NN estimate is off by a factor beyond (measured), and no interval around it would be honest.
_MOST_DIMENSIONS = 10
_FEWEST_FOR_INTERVAL = 20
# From so many dimensions on, four times as many neighbors tell how slowly the bias may fall.
_FEWEST_DIMENSIONS_WIDE = 3
# So many standard errors above 0 the bias is seen to fall, and three numbers of neighbors tell by which power.
_CLEARLY = 3.0
# An estimate so close to log m rests on distances to the outermost draws of Q.
_NEAR_THE_LIMIT = 2.0


@dataclass(frozen=True)
class _NeighborTerms:
    """For each number of neighbors (rows) and draw of P (columns): the log-ratio; and the k-occurrence of each draw."""

    ks: tuple[int, ...]
    log_ratio: Array
    smoothing: Array  # the part of log_ratio that is the pilot's
    occurrence_p: list[Array]
    occurrence_q: list[Array]
    overfit: float  # by how much the pilot is likely to flatter its own draws
    flat: str  # which side's draws fill fewer dimensions than they have, and how many; empty if neither's do
    radii: tuple[Array, Array]  # of P's and Q's draws, in the coordinates in which Q's are searched
    wide: Array | None = None  # the log-ratio with four times the largest number of neighbors
    ball: float = 0.0  # the median radius of P's smallest balls, in standard deviations


@dataclass(frozen=True)
class _Value:
    value: float
    shift: float  # what extrapolation added
    withheld: float  # and what it would have added, had the difference been no chance
    chance: float  # one standard error of the two together
    smoothing: float
    mix: Array  # the weight of each number of neighbors


def nearest_neighbors(
    p: Samples,
    q: Samples,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    k: int | None = None,
    whiten: bool = True,
    extrapolate: bool = True,
    most: int | None = None,
) -> Estimate:
    r"""Estimate KL(P || Q) of continuous distributions from the distances between draws and their nearest neighbors.

    .. math:: \hat D_k = \frac dn \sum_i \log \frac{\nu_k(x_i)}{\rho_k(x_i)} + \log \frac{m}{n - 1}

    with :math:`\rho_k(x_i)` the distance to the k-th neighbor among the other draws of P and :math:`\nu_k(x_i)` to the
    k-th among the draws of Q. The terms are the sample mean over P; `whiten` and `extrapolate` reduce their bias, and
    ``nearest_neighbors(p, q, k=k, whiten=False, extrapolate=False)`` is the formula as it stands.

    Draws, or their clusters, are taken to be independent: unlike `kl_estimate`, this does not examine their order.

    Arguments:
        p: draws of P, floating-point, shape (n, d). Weights make the mean, and the densities, weighted ones.
        q: draws of Q, floating-point, shape (m, d).
        confidence: the probability with which the interval shall cover KL(P || Q).
        generator: chooses the draws where there are more than `most`; nothing else is random.
        k: the (larger) number of neighbors; by default 48 on a line, 16 in space, 5 there for more than 50 000
            draws, and fewer for few draws.
        whiten: in two and more dimensions, search in coordinates in which Q's margins are about normal and either
            side's covariance is 1, and correct each density for how a fitted normal one changes within its ball. KL
            itself does not depend on coordinates.
        extrapolate: estimate with k / 4 neighbors as well, and where the two differ by more than chance extrapolate
            in :math:`\sqrt k` to k = 0.
        most: how many draws of each side are used at most, chosen at random; a note says so. By default all of them up
            to 5 dimensions, then 30 000, 15 000, 10 000, 8000 and 6000 in 6, 7, 8, 9 and 10 dimensions and 20 000 in
            more, which take seconds; the time grows with about the square of the number.

    Returns:
        the estimate in nats, on the device of `p`, not below 0. The interval holds the influence of the draws (or
        clusters) of both sides and an allowance for bias. In three and more dimensions its upper end allows for a bias
        that falls with the number of neighbors as slowly as 4 k, k and k / 4 of them let it. The upper end is infinite
        where P lies mostly where Q has no draws; the interval is None above 10 dimensions, near a set of fewer
        dimensions than the draws have, and for fewer than 20 draws. Where a small part of P lies beyond Q's draws, the
        draws cannot show how small Q is there: the estimate is then too low by an amount that the interval may not
        hold.

    Raises:
        ArgumentTypeError: the draws are categories.
        ArgumentValueError: other dimensions in p and q, infinite values, constant coordinates, repeated draws, rows of
            p among those of q, fewer draws than `k` needs or than there are components.
        OptionalDependencyError: SciPy is missing.

    Example:
        >>> import torch, kullback
        >>> from kullback.estimators.knn.neighbor_estimate import nearest_neighbors
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
    check_confidence("nearest_neighbors", confidence)
    check_points(p, q)
    p, q, proportions = as_log_ratios(p, q)
    span = common_span(p, q)
    if span.infinite:
        return infinite_estimate("nearest_neighbors", (len(p), len(q)), span.infinite, p.tensor.device)
    first, second, notes = prepared(span.p, span.q)
    first, second = charted(first, second, (p.tensor.dtype, q.tensor.dtype), notes)
    notes += [*proportions, *span.notes]
    first, second = _thinned(first, second, most, generator, notes)
    device = p.tensor.device if p.tensor.device.type == "cuda" else torch.device("cpu")
    ks = _numbers(first, second, k, extrapolate=extrapolate)
    terms = _terms(first, second, ks, whiten=whiten, device=device)
    poor = _overlap_is_poor(terms, first)
    if poor and k is None and ks[-1] > 4:
        terms = _terms(first, second, (1, 4) if extrapolate else (1,), whiten=whiten, device=device)
    _check_atoms(terms)
    found = _extrapolated(terms, first.weights)
    error = _standard_error(terms, found, first, second)
    interval = _interval(found, error, terms, confidence)
    reach, note = _reach(terms, interval, first, second, confidence)
    interval = interval[0], interval[1] + reach
    interval, more = _judged(found, terms, interval, poor=poor, p=first, q=second)
    notes += more
    if interval is not None and interval[1] < math.inf:
        notes += note

    def number(x: float) -> torch.Tensor:
        return torch.tensor(max(x, 0.0), dtype=torch.float64, device=device)

    return Estimate(
        number(found.value),
        None,
        "nearest_neighbors",
        None if interval is None else (number(interval[0]), number(interval[1])),
        (len(p), len(q)),
        tuple(notes),
        number(error),
    )


def _thinned(
    p: Draws, q: Draws, most: int | None, generator: torch.Generator | None, notes: list[str]
) -> tuple[Draws, Draws]:
    """Return at most so many draws of each side, chosen at random and in their order, with a note."""
    seed, d = seed_of(generator), p.x.shape[1]
    number = affordable_draws(d) or len(p) + len(q) if most is None else whole_from(most)
    if number is None or (most is not None and number < _PILOT_DRAWS):
        raise invalid_value(
            "nearest_neighbors",
            "most",
            wanted=f"a whole number of draws, {_PILOT_DRAWS} or more",
            got=safe_repr(most),
            instead="most=None for a number that takes seconds",
        )
    if max(len(p), len(q)) <= number:
        return p, q
    rng = np.random.default_rng(seed)
    sides = [side.thinned(number, rng) for side in (p, q)]
    notes.append(
        f"{len(sides[0]):,} of P's {len(p):,} draws and {len(sides[1]):,} of Q's {len(q):,} were used, chosen at "
        f"random: in {d} dimensions the neighbors of all would take too long. With nearest_neighbors(p, q, "
        f"most={max(len(p), len(q))}) all are used."
    )
    return sides[0], sides[1]


def _numbers(p: Draws, q: Draws, k: int | None, *, extrapolate: bool) -> tuple[int, ...]:
    """Return the numbers of neighbors to use, the largest last."""
    most = min(len(p) - 1, len(q))
    if k is None:
        usual, share = (48, 6) if p.x.shape[1] == 1 else (5 if most > _MANY else 16, 20)
        k = min(usual, max(most // share, 4), most)
    number = whole_from(k)
    if number is None or not 1 <= number <= most:
        raise invalid_value(
            "nearest_neighbors",
            "k",
            wanted=f"1 to {most} neighbors, which {len(p)} draws of p and {len(q)} of q have",
            got=safe_repr(k),
            instead="k=None for a choice by the number of draws",
        )
    return (max(number // 4, 1), number) if extrapolate and number > 1 else (number,)


def _terms(p: Draws, q: Draws, ks: tuple[int, ...], *, whiten: bool, device: torch.device) -> _NeighborTerms:
    d = p.x.shape[1]
    wide = _wide(ks, p, q)
    searched = ks if wide is None else (*ks, wide)
    smoothing, overfit, ball = np.zeros((len(searched), 1)), 0.0, 0.0
    radii, flat = (p.x[:, 0], q.x[:, 0]), ""
    on_a_line = d == 1 and device.type == "cpu"
    if on_a_line:
        x, y, stretch = p.x[:, 0], q.x[:, 0], 0.0
        own = search_line(x, x, ks, own=True, weights=p.weights, query_weights=p.weights)
        cross = search_line(y, x, ks, own=False, weights=q.weights, query_weights=p.weights)
    else:
        pilot = whiten and d > 1 and min(p.effective, q.effective) >= max(_PILOT_DRAWS, 10 * d)
        p_points, q_points = _mapped(p.x, q.x) if pilot else (p.x, q.x)
        whitening_p, whitening_q = _whitenings(p_points, q_points, p, q, whiten=whiten, pilot=pilot)
        at_p, at_q, draws_q = whitening_p(p_points), whitening_q(p_points), whitening_q(q_points)
        radii = np.sqrt(np.square(at_q).sum(1)), np.sqrt(np.square(draws_q).sum(1))
        stretch = whitening_q.log_volume - whitening_p.log_volume
        flat = _flat((p.x, at_p), (q.x, draws_q), ks[-1]) if 1 < d <= _MOST_DIMENSIONS else ""
        own = search_space(
            at_p, at_p, searched, own=True, weights=p.weights, query_weights=p.weights, device=device
        )
        cross = search_space(
            draws_q, at_q, searched, own=False, weights=q.weights, query_weights=p.weights, device=device
        )
        if pilot:
            ball = float(np.exp(np.median(own[0].log_radius)))
            pairs = zip(own, cross, strict=True)
            rows = [
                whitening_q.log_smoothing(at_q, there.log_radius)
                - whitening_p.log_smoothing(at_p, here.log_radius)
                for here, there in pairs
            ]
            smoothing = np.stack(rows)
            parameters = d + d * (d + 1) / 2
            overfit = parameters * (1 / p.effective + 1 / q.effective) / 2 * d / (d + 2)
    log_ratio = np.stack([_log_ratio(a, b, d) for a, b in zip(own, cross, strict=True)])
    log_ratio += smoothing + (math.log(len(q) / (len(p) - 1)) + stretch)
    used = len(ks)
    occurrence_p, occurrence_q = ([found.occurrence for found in side[:used]] for side in (own, cross))
    smoothing = np.broadcast_to(smoothing, log_ratio.shape)
    return _NeighborTerms(
        ks,
        log_ratio[:used],
        smoothing[:used],
        occurrence_p,
        occurrence_q,
        overfit,
        flat,
        radii,
        None if wide is None else log_ratio[used],
        ball,
    )


def _wide(ks: tuple[int, ...], p: Draws, q: Draws) -> int | None:
    """Return a third number of neighbors, four times the largest; None where it is not needed or the draws are few."""
    wide, d = 4 * ks[-1], p.x.shape[1]
    usable = len(ks) > 1 and _FEWEST_DIMENSIONS_WIDE <= d <= _MOST_DIMENSIONS
    return wide if usable and wide <= min(len(p) - 1, len(q)) else None


def _flat(p: tuple[Array, Array], q: tuple[Array, Array], k: int) -> str:
    """Return which side fills fewer dimensions than its draws, plain and whitened, have; nothing if neither does."""
    ks = max(k, 4) // 4, max(k, 4)
    fewer = [(name, too_few_dimensions(*draws, ks)) for name, draws in (("P", p), ("Q", q))]
    return " and ".join(f"{name}'s about {d:.1f}" for name, d in fewer if d is not None)


def _log_ratio(own: KNearest, cross: KNearest, d: int) -> Array:
    """Return log p - log q at the draws of P, up to a constant."""
    found = d * (cross.log_radius - own.log_radius)
    if own.log_weight is not None:
        found = found + own.log_weight
    return found if cross.log_weight is None else found - cross.log_weight


def _mapped(p: Array, q: Array) -> tuple[Array, Array]:
    """Map each coordinate so that Q's draws are about normal there."""
    both = np.empty_like(p), np.empty_like(q)
    for j in range(p.shape[1]):
        gaussianized = MarginalGaussianization(q[:, j])
        for target, source in zip(both, (p, q), strict=True):
            target[:, j] = gaussianized(source[:, j])
    return both


def _whitenings(
    p_points: Array, q_points: Array, p: Draws, q: Draws, *, whiten: bool, pilot: bool
) -> tuple[Whitening, Whitening]:
    """Return each side's own whitening with a pilot; without one, a common scaling of the coordinates."""
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
    """Say whether, for most draws of P, the ball to Q's neighbors is so wide that a quarter of P lies in it."""
    wide = terms.log_ratio[-1] > max(math.log(len(p) / (4 * terms.ks[-1])), 1.0)
    return bool(np.average(wide, weights=p.weights) > 0.5)


def _check_atoms(terms: _NeighborTerms) -> None:
    bad = ~np.isfinite(terms.log_ratio).all(0)
    if bool(bad.any()):
        raise invalid_value(
            "nearest_neighbors",
            "p, q",
            wanted=f"draws of continuous distributions, which do not repeat {terms.ks[0]} times",
            got=f"{int(bad.sum())} draws of p whose neighbor is at distance 0",
            instead="a larger k, or Samples(x.long()) if the values are categories",
        )


def _extrapolated(terms: _NeighborTerms, weights: Array | None) -> _Value:
    """Extrapolate in the root of k to 0, by as much as the estimates differ beyond twice their standard error."""
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
    """Return by how much more the mean is with few neighbors than with many, and its standard error."""
    change = few - many
    share = np.full(len(change), 1 / len(change)) if weights is None else weights / weights.sum()
    difference = float(share @ change)
    return difference, math.sqrt(float(np.square(share * (change - difference)).sum()))


def _most_bias(terms: _NeighborTerms, d: int, weights: Array | None) -> float:
    r"""Return the bias that the estimate with the larger number of neighbors may have, as an upper end allows for it.

    In d dimensions it falls with k as :math:`k^{2 / d}` where log-densities are smooth, and as :math:`k^{1 / d}` where
    they jump or where balls are as wide as what is to be seen. With four times fewer neighbors the estimate rises by a
    share of the bias, :math:`1 - 4^{-\gamma}` for a power :math:`\gamma`: the one by which steps from 4 k to k and from
    k to k / 4 differ where they can be told from chance, the slower one elsewhere. Of balls wider than a standard
    deviation it is a smaller share, about in proportion (measured). The rise is the smaller of the two steps, as
    neither is below it, by one standard error more.
    """
    if terms.wide is None:
        return 0.0
    step, error = _change(terms.log_ratio[0], terms.log_ratio[1], weights)
    before, error_before = _change(terms.log_ratio[1], terms.wide, weights)
    slow, smooth = 4 ** (1 / d), 4 ** min(2 / d, 1.0)
    ratio = min(max(before / step, slow), smooth) if step > _CLEARLY * error else slow
    rise = min(step + error, before + error_before)
    return max(rise, 0.0) * ratio / (ratio - 1) * max(terms.ball, 1.0)


def _standard_error(terms: _NeighborTerms, found: _Value, p: Draws, q: Draws) -> float:
    """Add up the squared influence of every draw, or cluster, of either side."""
    total = float(len(p) if p.weights is None else p.weights.sum())
    ratio = _combined(found.mix / total, list(terms.log_ratio))
    if p.weights is not None:
        ratio *= p.weights
    parts = found.mix / (np.array(terms.ks) * total)
    influence_p = _centered(ratio, p.weights)
    influence_p += _centered(_combined(parts, terms.occurrence_p), p.weights)
    moved = _combined(parts, terms.occurrence_q)
    if q.weights is not None:
        moved *= q.weights / q.weights.mean()
    influence_q = _centered(moved, q.weights)
    return math.sqrt(p.variance(influence_p) + q.variance(influence_q))


def _centered(influence: Array, weights: Array | None) -> Array:
    """Take from each draw its weight's share of the sum."""
    share = 1 / len(influence) if weights is None else weights / weights.sum()
    influence -= share * influence.sum()
    return influence


def _combined(parts: Array, rows: list[Array]) -> Array:
    found = parts[0] * rows[0]
    for part, row in zip(parts[1:], rows[1:], strict=True):
        found += part * row
    return found


def _interval(found: _Value, error: float, terms: _NeighborTerms, confidence: float) -> tuple[float, float]:
    """Return the normal interval, widened for the bias that corrections of this size leave (measured)."""
    width = standard_normal_quantile(confidence) * error + 0.5 * abs(found.smoothing) + 0.5 * terms.overfit
    back = abs(found.shift) / 3
    onwards = back + abs(found.withheld) / 2
    down, up = (back, onwards) if found.shift + found.withheld > 0 else (onwards, back)
    center = max(found.value, 0.0)
    # What hides in chance is mostly too low: P reaches where Q has few draws.
    return center - width - down, center + width + up + found.chance / 2


def _reach(
    terms: _NeighborTerms, interval: tuple[float, float], p: Draws, q: Draws, confidence: float
) -> tuple[float, list[str]]:
    """Return how far the upper end has to move for the bias that may be left, and a note where that is much."""
    low, high = interval
    most = _most_bias(terms, p.x.shape[1], p.weights)
    if most == 0:
        return 0.0, []
    smoothing = float(np.average(terms.smoothing[-1], weights=p.weights))
    many = float(np.average(terms.log_ratio[-1], weights=p.weights)) - terms.overfit
    plain = _Value(many, 0.0, 0.0, 0.0, smoothing, np.array([0.0, 1.0]))
    width = standard_normal_quantile(confidence) * _standard_error(terms, plain, p, q)
    end = many + most + width + 0.5 * abs(smoothing) + 0.5 * terms.overfit
    if end - high <= (high - low) / 4:
        return max(end - high, 0.0), []
    note = (
        f"With fewer neighbors the estimate goes on rising: in {p.x.shape[1]} dimensions the balls about the draws may "
        f"be too wide for all that tells P from Q, and the interval's upper end allows for {end - high:.2g} nats more."
    )
    return end - high, [note]


def _unseen(terms: _NeighborTerms, p: Draws, q: Draws) -> Unseen:
    """Look for P's draws where Q has none: by their distance from Q's center, and in each component."""
    number = p.effective * p.groups / len(p)
    if p.x.shape[1] == 1:
        return unseen_by_q(p.x[:, 0], p.shares, q.x[:, 0], number)
    return unseen_in_scores([terms.radii, *zip(p.x.T, q.x.T, strict=True)], p.shares, number)


def _judged(
    found: _Value, terms: _NeighborTerms, interval: tuple[float, float], *, poor: bool, p: Draws, q: Draws
) -> tuple[tuple[float, float] | None, list[str]]:
    """Withdraw the interval, or its upper end, where it would not be honest, and say why."""
    notes: list[str] = []
    d = p.x.shape[1]
    if found.value < 0:
        notes.append(f"The estimate was {found.value:.3g}; it is reported as 0, below which KL cannot be.")
    limit = math.log(len(q))
    low, high = interval
    if poor or found.value > limit - _NEAR_THE_LIMIT:
        high = math.inf
        notes.append(
            f"P lies mostly where Q has hardly a draw: {len(q)} draws of q cannot show a KL much above log {len(q)} = "
            f"{limit:.1f}, so the value is a lower estimate and the interval has no upper end."
        )
    verdict = upper_end(_unseen(terms, p, q), (high - low) / 2 if high < math.inf else math.inf)
    if verdict.note and high < math.inf:
        notes.append(verdict.note)
    high += verdict.reach
    if high < math.inf and abs(found.shift) + abs(found.smoothing) > (high - low) / 8:
        notes.append(
            f"Corrections of bias changed the value by {found.shift:+.3g} (extrapolation to no neighbors) and "
            f"{found.smoothing:+.3g} (change of density within the balls); an interval is widened for what they miss."
        )
    if d > _MOST_DIMENSIONS:
        notes.append(
            f"In {d} dimensions the distances to neighbors can be off by a factor, however many draws there are, so "
            "no interval is given: method='density_ratio' suits more than ten dimensions."
        )
        return None, notes
    if terms.flat:
        notes.append(
            f"The draws have {d} components but fill fewer dimensions at the distance of their neighbors: "
            f"{terms.flat}. On such a surface neighbors give no density, so there is no interval: use "
            "method='density_ratio'."
        )
        return None, notes
    if min(p.groups, q.groups) < _FEWEST_FOR_INTERVAL:
        notes.append(
            f"No interval is given: it takes {_FEWEST_FOR_INTERVAL} independent draws (or clusters) of each side, here "
            f"are {p.groups} of p and {q.groups} of q."
        )
        return None, notes
    if p.cluster is not None or q.cluster is not None:
        notes.append(
            "The interval takes clusters as independent; neighbors within a draw's own cluster raise the estimate."
        )
    return (low, high), notes
