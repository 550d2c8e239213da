"""What of P lies where Q has no draw: what that may add to KL, and whether an interval can have an upper end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kullback.estimators.draws import Array
from kullback.estimators.tails import FEWEST_IN_TAIL, TAIL, ParetoTail, fit_tail_by_moments

__all__ = ["Unseen", "UpperEndShift", "unseen_by_q", "unseen_in_scores", "upper_end"]

# How many times what Q's tails may add, as far as they can be extrapolated, has to fit into half of the interval.
_DOUBT = 2.0
# A tail heavier than this is that of a power, which P's may well have where Q has it.
_POWER = 0.15
# No draw adds more nats than this by extrapolation.
_MOST_NATS = 20.0
# As many draws of P where Q has none are worth a note.
_SEVERAL = 3
# How often, where P = Q, P's draws may be taken for ones where Q has none.
_FALSE_ALARMS = 0.05
_NEIGHBORING_GAPS = 20
# What chance puts beyond Q's outermost draws more often than this adds nothing.
_BY_CHANCE = 0.3
# P's probability beyond a quantile of Q falls at least as this power of Q's there, where P does not end abruptly.
_SLOWEST = 0.2
# A tail of this shape, or less, ends abruptly: any of P beyond it is more than a tail that falls more slowly.
_ABRUPT_END = -0.35
# A draw so many times as far out as the next one is an error, or says nothing of the tail.
_FAR = 100.0


@dataclass(frozen=True)
class Unseen:
    """What of P lies on the line where Q has no draw.

    Attributes:
        share: P's share beyond Q's outermost draws.
        draws: how many effective draws that is.
        nats: what Q's tails, if they go on as they do among its outermost draws, add to KL there.
        abrupt: whether more of P lies beyond, or between two neighboring draws of Q, than chance puts there when
            log p / q goes on as it does nearby.
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
        shares: their weights, adding up to one.
        y: Q's draws, ordered.
        number: P's effective number of draws.
        alarms: how often `abrupt` may be said where P = Q.
        upper_only: look beyond Q's largest draw only.
    """
    if len(y) < 2 or y[0] == y[-1]:
        return Unseen(0.0, 0.0, 0.0, abrupt=False)
    share, nats, abrupt = 0.0, 0.0, False if upper_only else _in_a_gap(x, shares, y, number, alarms)
    sides = ((x, shares, y), (-x[::-1], shares[::-1], -y[::-1]))
    for at, its, of_q in sides[: 1 if upper_only else 2]:
        outside = at > of_q[-1]
        weight = float(its[outside].sum())
        if weight == 0:
            continue
        share += weight
        last = of_q[-min(_NEIGHBORING_GAPS, len(of_q) // 2) - 1 :]
        inside = number * float(its[(at > last[0]) & ~outside].sum())
        smooth = inside / (len(last) ** _SLOWEST - 1)
        chance = _log_probability(np.array([weight * number]), np.array([inside]), len(last) - 1)
        if float(chance[0]) > math.log(_BY_CHANCE * alarms / _FALSE_ALARMS):
            continue  # a draw, or one of many scores, is there by chance
        # A draw or two beyond are chance, however far Q's fitted tail ends before them.
        most = min(_MOST_NATS, 2 * weight * number)
        observed = float(its[outside] @ np.minimum(_extrapolated(at[outside], of_q), most))
        expected = _expected(at, of_q, number) if weight * number >= 1 else 0.0
        # P's own density falls, too: by one nat on average over its draws beyond any point of a tail.
        nats += max(observed - weight, expected - weight, 0.0)
        ends = _tail(of_q)[0].shape < _ABRUPT_END and float(chance[0]) < math.log(alarms)
        abrupt |= ends or (weight * number > smooth and float(chance[0]) < math.log(alarms / 4))
    return Unseen(share, share * number, nats, abrupt)


def _expected(x: Array, y: Array, number: float) -> float:
    """Return the mean of `_extrapolated` over P's own fitted tail where that is heavier than Q's; 0 elsewhere."""
    (of_p, count), (of_q, own) = _tail(x), _tail(y)
    chance = (1 + abs(of_p.shape)) / math.sqrt(min(count, TAIL * number))
    chance += (1 + abs(of_q.shape)) / math.sqrt(own)
    if of_p.shape - max(of_q.shape, -_POWER) < chance / 2 or of_q.shape > _POWER:
        return 0.0
    levels = np.geomspace(1e-4, 1, 100)
    shape = of_p.shape if abs(of_p.shape) > 1e-9 else 1e-9
    farther = of_p.scale * np.expm1(-shape * np.log(levels)) / shape
    at = x[-count - 1] + farther
    beyond = np.where(at > y[-1], _extrapolated(np.maximum(at, y[-1]), y), 0.0)
    return count / len(x) * float(np.diff(levels, prepend=0) @ beyond)


def _tail(y: Array) -> tuple[ParetoTail, int]:
    """Fit a tail to the largest of ordered draws, how many are said; one far beyond all others has no part in it."""
    count = max(int(TAIL * len(y)), min(FEWEST_IN_TAIL, len(y) - 1))
    beyond = y[-count:] - y[-count - 1]
    if len(beyond) > 2 and beyond[-1] > _FAR * beyond[-2]:
        beyond = beyond[:-1]
    return fit_tail_by_moments(beyond), count


def _extrapolated(x: Array, y: Array) -> Array:
    """Return how much less likely Q is, by its fitted tail, beyond x than beyond its last draw, in nats."""
    tail, count = _tail(y)
    # Tails longer or shorter than exponential only where the draws tell.
    chance = (1 + abs(tail.shape)) / math.sqrt(4 * count)
    tail = ParetoTail(min(max(0.0, tail.shape - chance), tail.shape + chance), tail.scale)
    last = tail.log_survival(y[-1:] - y[-count - 1])
    # The fitted tail may end before the last draw does.
    beyond = np.maximum(last, -2 * math.log(count + 1)) - tail.log_survival(x - y[-count - 1])
    return np.clip(beyond, 0.0, _MOST_NATS)


def _in_a_gap(x: Array, shares: Array, y: Array, number: float, alarms: float) -> bool:
    """Say whether more of P lies between two neighboring draws of Q than between those around them, beyond chance."""
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
    """Return the log-probability of so many draws in a gap, or more, given those in other gaps of the same density.

    How many of P's draws come between two neighboring ones of Q is geometric, and all ways to spread their sum are
    equally likely.
    """
    total = inside + around
    chance = np.zeros(len(inside))
    for j in range(1, gaps + 1):
        chance += np.log((around + j) / (total + j))
    return chance


def unseen_in_scores(
    scores: Iterable[tuple[Array, Array]], shares: Array, number: float, *, log_ratios: bool = False
) -> Unseen:
    """Look for P's draws where Q has none along several scores of vectors, the first of which only counts upwards.

    Each is a pair of P's and of Q's scores, in the order of their draws. If the first are `log_ratios`, they say what
    is beyond Q's largest themselves, in place of Q's tail.
    """
    pairs = list(scores)
    found: list[Unseen] = []
    for i, (of_p, of_q) in enumerate(pairs):
        order = np.argsort(of_p)
        alarms = _FALSE_ALARMS / len(pairs)
        one = unseen_by_q(of_p[order], shares[order], np.sort(of_q), number, alarms=alarms, upper_only=i == 0)
        if log_ratios and i == 0:
            one = replace(one, nats=float(shares @ np.maximum(of_p - of_q.max(), 0)))
        found.append(one)
    most = max(found, key=lambda one: one.nats)
    return replace(most, abrupt=any(one.abrupt for one in found))


@dataclass(frozen=True)
class UpperEndShift:
    """By how much an interval's upper end moves, and what to say of that, if anything."""

    reach: float
    note: str


def upper_end(unseen: Unseen, half_width: float) -> UpperEndShift:
    """Judge whether an interval with this half width can have an upper end, and how far out."""
    if unseen.abrupt:
        return UpperEndShift(
            math.inf,
            "P has more draws between or beyond Q's draws than chance puts there, where Q's density may be as small as "
            "it likes: the interval has no upper end, and the value is likely too low.",
        )
    if _DOUBT * unseen.nats > half_width:
        return UpperEndShift(
            math.inf,
            f"{100 * unseen.share:.3g} % of P's draws lie beyond Q's outermost ones, where Q's tails, going on as they "
            f"do before, may add {unseen.nats:.2g} nats or more, too much for the interval: it has no upper end.",
        )
    note = ""
    if unseen.draws >= _SEVERAL:
        note = (
            f"{100 * unseen.share:.3g} % of P's draws lie beyond Q's outermost ones: the interval's upper end takes "
            "Q's tails to go on there as they do before."
        )
    return UpperEndShift(_DOUBT * unseen.nats, note)
