"""P's draws beyond the range of Q's draws and in gaps between Q's draws.

For the draws beyond the range, the possible contribution to KL is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kullback.estimators.draws import Array
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Shift
from kullback.estimators.tails import FEWEST_IN_TAIL, TAIL, ParetoTail, fit_tail_by_moments

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: the coverage of 95 % intervals must be at
# least 93 %.

# The extrapolated contribution of Q's tails times this factor must be at most half the interval's width; otherwise the
# upper limit is infinite.
_DOUBT = 2.0
# Above this shape, Q's tail follows a power law, and P's tail may follow the same power law.
_POWER = 0.15
# The extrapolated log-ratio of a draw is at most this number of nats.
_MOST_NATS = 20.0
# A note appears if at least this many draws of P are outside the range of Q's draws.
_SEVERAL = 3
# The probability that `abrupt` is True although P = Q.
_FALSE_ALARMS = 0.05
# P's mass in a gap between neighboring draws of Q is compared with its mass in this many gaps around it.
_NEIGHBORING_GAPS = 20
# Draws of P beyond Q's range add nothing to KL if at least as many occur by chance with this probability or more.
_BY_CHANCE = 0.3
# For a smooth log(p / q), P's probability beyond t decreases at least as fast as this power of Q's probability beyond
# t.
_SLOWEST = 0.2
# A fitted tail with a shape at or below this value ends abruptly.
_ABRUPT_END = -0.35
# The largest excess is left out of the fit of a tail if it is more than this many times the second largest.
_FAR = 100.0


@dataclass(frozen=True)
class Unseen:
    """P's draws of numbers outside the range and in gaps of Q's draws.

    Attributes:
        share: the proportion of P's draws outside the range of Q's draws.
        draws: the effective number of P's draws outside the range.
        nats: the contribution to KL outside the range, by extrapolation of Q's fitted tails.
        abrupt: whether significantly more draws of P are outside the range, or between two neighboring draws of Q, than
            a smooth log(p / q) allows.
    """

    share: float
    draws: float
    nats: float
    abrupt: bool


def unseen_by_q(
    x: Array,
    shares: Array,
    y: Array,
    number: float,
    *,
    alarms: float = _FALSE_ALARMS,
    upper_only: bool = False,
) -> Unseen:
    """Return the share of P's draws beyond the range of Q's draws with its possible contribution to KL, and the gaps.

    Arguments:
        x: P's draws, sorted.
        shares: their weights, with sum 1.
        y: Q's draws, sorted.
        number: P's effective number of draws.
        alarms: the probability that `abrupt` is True although P = Q.
        upper_only: use only P's draws above the largest draw of Q, not draws below the smallest one or in gaps.
    """
    if len(y) < 2 or y[0] == y[-1]:
        return Unseen(0.0, 0.0, 0.0, abrupt=False)
    share, nats, abrupt = 0.0, 0.0, False if upper_only else _in_a_gap(x, shares, y, number, alarms)
    sides = ((x, shares, y), (-x[::-1], shares[::-1], -y[::-1]))
    for at, weights, of_q in sides[: 1 if upper_only else 2]:
        outside = at > of_q[-1]
        weight = float(weights[outside].sum())
        if weight == 0:
            continue
        share += weight
        last = of_q[-min(_NEIGHBORING_GAPS, len(of_q) // 2) - 1 :]
        inside = number * float(weights[(at > last[0]) & ~outside].sum())
        smooth = inside / (len(last) ** _SLOWEST - 1)
        chance = _log_probability(np.array([weight * number]), np.array([inside]), len(last) - 1)
        if float(chance[0]) > math.log(_BY_CHANCE * alarms / _FALSE_ALARMS):
            continue  # so few draws may be beyond Q's range by chance
        # One or two draws may be there by chance, even far beyond the end of Q's fitted tail, so their log-ratio is
        # limited.
        most = min(_MOST_NATS, 2 * weight * number)
        observed = float(weights[outside] @ np.minimum(_extrapolated(at[outside], of_q), most))
        expected = _expected(at, of_q, number) if weight * number >= 1 else 0.0
        # log p decreases too: over P's draws beyond a point of its tail, by one nat on average. So `weight` is
        # subtracted.
        nats += max(observed - weight, expected - weight, 0.0)
        ends = _tail(of_q)[0].shape < _ABRUPT_END and float(chance[0]) < math.log(alarms)
        abrupt |= ends or (weight * number > smooth and float(chance[0]) < math.log(alarms / 4))
    return Unseen(share, share * number, nats, abrupt)


def _expected(x: Array, y: Array, number: float) -> float:
    """Return the mean of `_extrapolated` over P's fitted tail if this tail is heavier than Q's; otherwise 0."""
    (of_p, count), (of_q, count_of_q) = _tail(x), _tail(y)
    chance = (1 + abs(of_p.shape)) / math.sqrt(min(count, TAIL * number))
    chance += (1 + abs(of_q.shape)) / math.sqrt(count_of_q)
    if of_p.shape - max(of_q.shape, -_POWER) < chance / 2 or of_q.shape > _POWER:
        return 0.0
    levels = np.geomspace(1e-4, 1, 100)
    shape = of_p.shape if abs(of_p.shape) > 1e-9 else 1e-9
    farther = of_p.scale * np.expm1(-shape * np.log(levels)) / shape
    at = x[-count - 1] + farther
    beyond = np.where(at > y[-1], _extrapolated(np.maximum(at, y[-1]), y), 0.0)
    return count / len(x) * float(np.diff(levels, prepend=0) @ beyond)


def _tail(y: Array) -> tuple[ParetoTail, int]:
    """Return a tail fitted to the largest of sorted draws, without one extreme outlier, and their number."""
    count = max(int(TAIL * len(y)), min(FEWEST_IN_TAIL, len(y) - 1))
    beyond = y[-count:] - y[-count - 1]
    if len(beyond) > 2 and beyond[-1] > _FAR * beyond[-2]:
        beyond = beyond[:-1]
    return fit_tail_by_moments(beyond), count


def _extrapolated(x: Array, y: Array) -> Array:
    """Return log(Q(above the last draw) / Q(above x)) by Q's fitted tail, from 0 to `_MOST_NATS`, for each x."""
    tail, count = _tail(y)
    # The shape is 0, an exponential tail, if it differs from 0 by less than half its standard error; else it is moved
    # towards 0.
    chance = (1 + abs(tail.shape)) / math.sqrt(4 * count)
    tail = ParetoTail(min(max(0.0, tail.shape - chance), tail.shape + chance), tail.scale)
    last = tail.log_survival(y[-1:] - y[-count - 1])
    # The fitted tail may end before the last draw; the lower bound keeps the log-probability finite.
    beyond = np.maximum(last, -2 * math.log(count + 1)) - tail.log_survival(x - y[-count - 1])
    return np.clip(beyond, 0.0, _MOST_NATS)


def _in_a_gap(x: Array, shares: Array, y: Array, number: float, alarms: float) -> bool:
    """Return whether significantly more draws of P are in a gap between two draws of Q than in the gaps around it."""
    y = np.unique(y)
    if len(y) < 3 * _NEIGHBORING_GAPS:
        return False
    below = np.concatenate([[0.0], np.cumsum(shares)])
    inside = number * (below[np.searchsorted(x, y[1:], "left")] - below[np.searchsorted(x, y[:-1], "right")])
    sums = np.concatenate([[0.0], np.cumsum(inside)])
    place = np.arange(len(inside))
    start = np.clip(place - _NEIGHBORING_GAPS // 2, 0, len(inside) - _NEIGHBORING_GAPS - 1)
    around = sums[start + _NEIGHBORING_GAPS + 1] - sums[start] - inside
    chance = _log_probability(inside, around, _NEIGHBORING_GAPS)
    return bool((chance < math.log(alarms / 4 / len(inside))).any())


def _log_probability(inside: Array, around: Array, gaps: int) -> Array:
    """Return the log-probability of at least `inside` draws in a gap, given `around` draws in `gaps` other gaps.

    If p / q is constant, the number of P's draws between two neighboring draws of Q is geometric. Given their sum, all
    divisions among the gaps are equally likely.
    """
    total = inside + around
    chance = np.zeros(len(inside))
    for j in range(1, gaps + 1):
        chance += np.log((around + j) / (total + j))
    return chance


def unseen_in_scores(
    scores: Iterable[tuple[Array, Array]], shares: Array, number: float, *, log_ratios: bool = False
) -> Unseen:
    """Return the result of `unseen_by_q` for several scores of vectors; for the first score only above Q's largest.

    Each element of `scores` contains the scores of P's draws and of Q's draws. If the first scores are `log_ratios`,
    their excess over Q's largest score replaces the extrapolation of Q's tail. The result is for the score with the
    largest contribution; `abrupt` is True if it is True for any score.
    """
    pairs = list(scores)
    results: list[Unseen] = []
    for i, (of_p, of_q) in enumerate(pairs):
        order = np.argsort(of_p)
        alarms = _FALSE_ALARMS / len(pairs)
        one = unseen_by_q(of_p[order], shares[order], np.sort(of_q), number, alarms=alarms, upper_only=i == 0)
        if log_ratios and i == 0:
            one = replace(one, nats=float(shares @ np.maximum(of_p - of_q.max(), 0)))
        results.append(one)
    most = max(results, key=lambda one: one.nats)
    return replace(most, abrupt=any(one.abrupt for one in results))


def upper_end(unseen: Unseen, half_width: float) -> Shift:
    """Return the increase, perhaps infinite, of the upper limit of an interval with this half-width, and a note."""
    if unseen.abrupt:
        return Shift(
            math.inf,
            f"Significantly many of {SIDE_P}'s samples are in gaps or beyond the end of {SIDE_Q}'s samples. {SIDE_Q} "
            "has no samples there, so KL could be arbitrarily large: the upper limit is infinite, and the value is "
            "likely too low.",
        )
    if not unseen.nats and unseen.draws < _SEVERAL:
        return Shift(0.0)
    outside = f"{100 * unseen.share:.3g} % of {SIDE_P}'s samples are outside the range of {SIDE_Q}'s samples."
    if _DOUBT * unseen.nats > half_width:
        return Shift(
            math.inf,
            f"{outside} {SIDE_Q}'s fitted tail adds {unseen.nats:.2g} nats or more there, too much for the interval: "
            "the upper limit is infinite.",
        )
    note = f"{outside} The upper limit extrapolates {SIDE_Q}'s fitted tail there."
    return Shift(_DOUBT * unseen.nats, note if unseen.draws >= _SEVERAL else "")
