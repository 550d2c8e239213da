"""The part of P outside Q's draws: its possible contribution to KL, and whether the upper limit is finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kullback.estimators.draws import Array
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Shift
from kullback.estimators.tails import FEWEST_IN_TAIL, TAIL, ParetoTail, fit_tail_by_moments

# `benchmarks/coverage.py` checks the constants of this file on hard pairs: 95 % intervals have to cover in 93 %.

# This multiple of the extrapolated contribution of Q's tails must fit into half of the interval.
_DOUBT = 2.0
# Above this shape, Q's tail follows a power law, and P's tail may follow the same one.
_POWER = 0.15
# Extrapolation adds at most this number of nats for a draw.
_MOST_NATS = 20.0
# The smallest number of P's draws outside Q's range that gets a note.
_SEVERAL = 3
# The probability of a false `abrupt` at P = Q.
_FALSE_ALARMS = 0.05
# The number of gaps around one whose mean is compared with it.
_NEIGHBORING_GAPS = 20
# Draws of P beyond Q's outermost ones add nothing if as many are there by chance with at least this probability.
_BY_CHANCE = 0.3
# Beyond a quantile of Q, P's probability falls at least as fast as this power of Q's, unless P ends abruptly.
_SLOWEST = 0.2
# A tail with at most this shape ends abruptly.
_ABRUPT_END = -0.35
# A draw this many times farther out than the next one is left out of the tail.
_FAR = 100.0


@dataclass(frozen=True)
class Unseen:
    """The part of P on the line where Q has no draw.

    Attributes:
        share: P's share outside the range of Q's draws.
        draws: the effective number of these draws.
        nats: the contribution to KL there, by extrapolation of Q's fitted tails.
        abrupt: whether significantly more of P is there, or between two neighboring draws of Q, than a smooth log p / q
            allows.
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
    """Look for P's draws where Q has none.

    Arguments:
        x: P's draws, ordered.
        shares: their weights, with sum 1.
        y: Q's draws, ordered.
        number: P's effective number of draws.
        alarms: the probability of `abrupt` at P = Q.
        upper_only: whether to look only beyond Q's largest draw.
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
            continue  # chance explains a draw, or one of many scores, there
        # One or two draws there may be chance, even far beyond the end of Q's fitted tail.
        most = min(_MOST_NATS, 2 * weight * number)
        observed = float(weights[outside] @ np.minimum(_extrapolated(at[outside], of_q), most))
        expected = _expected(at, of_q, number) if weight * number >= 1 else 0.0
        # P's own density falls too: by one nat on average over its draws beyond any point of a tail.
        nats += max(observed - weight, expected - weight, 0.0)
        ends = _tail(of_q)[0].shape < _ABRUPT_END and float(chance[0]) < math.log(alarms)
        abrupt |= ends or (weight * number > smooth and float(chance[0]) < math.log(alarms / 4))
    return Unseen(share, share * number, nats, abrupt)


def _expected(x: Array, y: Array, number: float) -> float:
    """Return the mean of `_extrapolated` over P's own fitted tail where that is heavier than Q's; 0 elsewhere."""
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
    """Fit a tail to the largest of ordered draws, and return their number; one extreme outlier is left out."""
    count = max(int(TAIL * len(y)), min(FEWEST_IN_TAIL, len(y) - 1))
    beyond = y[-count:] - y[-count - 1]
    if len(beyond) > 2 and beyond[-1] > _FAR * beyond[-2]:
        beyond = beyond[:-1]
    return fit_tail_by_moments(beyond), count


def _extrapolated(x: Array, y: Array) -> Array:
    """Return how much less likely Q is beyond x than beyond its last draw, by its fitted tail, in nats."""
    tail, count = _tail(y)
    # The tail is exponential unless the draws show otherwise.
    chance = (1 + abs(tail.shape)) / math.sqrt(4 * count)
    tail = ParetoTail(min(max(0.0, tail.shape - chance), tail.shape + chance), tail.scale)
    last = tail.log_survival(y[-1:] - y[-count - 1])
    # The fitted tail may end before the last draw does.
    beyond = np.maximum(last, -2 * math.log(count + 1)) - tail.log_survival(x - y[-count - 1])
    return np.clip(beyond, 0.0, _MOST_NATS)


def _in_a_gap(x: Array, shares: Array, y: Array, number: float, alarms: float) -> bool:
    """Return whether significantly more of P is between two neighboring draws of Q than in the gaps around them."""
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
    """Return the log-probability of at least this many draws in a gap, given the draws in other gaps of equal density.

    The number of P's draws between two neighboring draws of Q is geometric, and all ways to spread the sum are equally
    likely.
    """
    total = inside + around
    chance = np.zeros(len(inside))
    for j in range(1, gaps + 1):
        chance += np.log((around + j) / (total + j))
    return chance


def unseen_in_scores(
    scores: Iterable[tuple[Array, Array]], shares: Array, number: float, *, log_ratios: bool = False
) -> Unseen:
    """Look for P's draws where Q has none along several scores of vectors; the first score only counts upwards.

    Each is a pair of P's and of Q's scores, in the order of their draws. If the first scores are `log_ratios`, their
    excess over Q's largest replaces the extrapolation of Q's tail.
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
    """Return whether an interval with this half width can have a finite upper limit, and its change."""
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
