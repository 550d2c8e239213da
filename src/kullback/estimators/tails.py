"""Tails of draws: how heavy they are, what lies beyond the outermost ones, and what a mean may owe to draws not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kullback.control_variate import tail_index
from kullback.estimators.draws import Array

__all__ = ["ParetoTail", "Unseen", "fit_tail", "heaviness", "tail_allowance", "unseen_by_q"]

# The share of draws, and their least number, that a tail is fitted to.
_TAIL, _FEWEST_IN_TAIL = 0.1, 10
# A tail heavier than this is that of a power, whose logarithm is extrapolated.
_POWER = 0.15
# No draw adds more nats than this by extrapolation.
_MOST_NATS = 20.0
# How often, where P = Q, a side's draws may be taken for ones where Q has none.
_FALSE_ALARMS = 0.05
_NEIGHBORING_GAPS = 20
# P's probability beyond a quantile of Q falls at least as this power of Q's there, where P does not end abruptly.
_SLOWEST = 0.2


def heaviness(values: Array) -> float:
    """Estimate k where P(|f - median| > t) falls as t^(-1 / k): the mean of f has a standard error for k below 1 / 2.

    A Simple General Approach to Inference About the Tail of a Distribution (Hill, 1975)
    """
    size = np.abs(values - np.median(values))
    largest = float(size.max())
    if largest == 0:
        return 0.0
    relative = np.maximum(size / largest, np.finfo(np.float64).tiny)
    return float(tail_index(torch.from_numpy(relative - 1)))


@dataclass(frozen=True)
class ParetoTail:
    """A generalized Pareto distribution of what lies beyond a threshold."""

    shape: float
    scale: float

    def log_survival(self, beyond: Array) -> Array:
        """Return the log-probability of lying farther beyond the threshold, -inf from the end of its support on."""
        if self.shape == 0:
            return -beyond / self.scale
        with np.errstate(divide="ignore"):
            return -np.log1p(np.maximum(self.shape * beyond / self.scale, -1)) / self.shape


def fit_tail(beyond: Array, spread: float) -> ParetoTail:
    """Fit a tail of no negative shape to distances beyond a threshold by maximum likelihood.

    Draws cut off at a value leave no tail to fit: `spread` is then the scale. Parameter and Quantile Estimation for the
    Generalized Pareto Distribution (Hosking and Wallis, 1987)
    """
    if not len(beyond):
        return ParetoTail(0.0, spread)
    mean = float(beyond.mean())
    ratio = np.geomspace(1e-3, 1e3, 61) / float(np.median(beyond))
    shape = np.log1p(ratio[:, None] * beyond).mean(1)
    likelihood = np.log(ratio / shape) - shape
    best = int(likelihood.argmax())
    if best == 0 or likelihood[best] <= -math.log(mean) - 1:
        return ParetoTail(0.0, mean)
    return ParetoTail(float(shape[best]), float(shape[best] / ratio[best]))


def _by_moments(beyond: Array) -> ParetoTail:
    """Fit a tail of any shape to ordered distances by probability-weighted moments (Hosking and Wallis, 1987)."""
    n = len(beyond)
    first = float(beyond.mean())
    second = float((beyond * (n - np.arange(1, n + 1) + 0.35) / n).mean())
    if not first > 2 * second > 0:
        return ParetoTail(0.0, max(first, np.finfo(np.float64).tiny))
    return ParetoTail(2 - first / (first - 2 * second), 2 * first * second / (first - 2 * second))


def tail_allowance(terms: Array, shares: Array, number: float) -> float:
    """Return by how much the mean of terms may exceed that of these draws for the tail that they have not shown.

    A generalized Pareto distribution is fitted to the largest terms, and its mean taken with a shape that is larger by
    its standard error; infinite where that has no mean.
    """
    count = int(max(_TAIL * number, min(_FEWEST_IN_TAIL, number / 4)) * len(terms) / number)
    if count < 4:
        return math.inf if number < 2 else 0.0
    order = np.argsort(terms)
    threshold = float(terms[order[-count - 1]])
    beyond = terms[order[-count:]] - threshold
    if not float(beyond[-1]) > 0:
        return 0.0
    shape = max(_by_moments(beyond).shape, 0.0)
    shape += (1 + shape) / math.sqrt(count * number / len(terms))
    weight = float(shares[order[-count:]].sum())
    return math.inf if shape >= 1 else weight * float(beyond.mean()) * max(1 / (1 - shape) - 1, 0.0)


@dataclass(frozen=True)
class Unseen:
    """What of P lies on the line where Q has no draw.

    Attributes:
        share: P's share beyond Q's outermost draws.
        nats: what Q's tails, if they go on as they do among its outermost draws, add to KL there.
        abrupt: whether more of P lies beyond, or between two neighboring draws of Q, than chance puts there when log p /
            q goes on as it does nearby.
    """

    share: float
    nats: float
    abrupt: bool


def unseen_by_q(x: Array, shares: Array, y: Array, number: float) -> Unseen:
    """Look for P's draws where Q has none: ordered draws of both, P's shares, and P's effective number of draws."""
    if len(y) < 2 or y[0] == y[-1]:
        return Unseen(0.0, 0.0, abrupt=False)
    share, nats, abrupt = 0.0, 0.0, _in_a_gap(x, shares, y, number)
    for at, its, of_q in ((x, shares, y), (-x[::-1], shares[::-1], -y[::-1])):
        outside = at > of_q[-1]
        weight = float(its[outside].sum())
        if weight == 0:
            continue
        share += weight
        # A draw or two beyond are chance, however far Q's fitted tail ends before them.
        most = min(_MOST_NATS, 3 * weight * number)
        observed = float(its[outside] @ np.minimum(_extrapolated(at[outside], of_q), most))
        nats += max(observed, _expected(at, of_q, number) if weight * number >= 2 else 0.0)
        last = of_q[-min(_NEIGHBORING_GAPS, len(of_q) // 2) - 1 :]
        inside = number * float(its[(at > last[0]) & ~outside].sum())
        smooth = inside / (len(last) ** _SLOWEST - 1)
        chance = _log_probability(np.array([weight * number]), np.array([inside]), len(last) - 1)
        abrupt |= weight * number > smooth and float(chance[0]) < math.log(_FALSE_ALARMS / 4)
    return Unseen(share, nats, abrupt)


def _expected(x: Array, y: Array, number: float) -> float:
    """Return what `_extrapolated` is on average over P's own fitted tail where that is heavier than Q's; 0 elsewhere."""
    counts = [max(int(_TAIL * len(side)), min(_FEWEST_IN_TAIL, len(side) - 1)) for side in (x, y)]
    of_p, of_q = (
        _by_moments(side[-k:] - side[-k - 1]) for side, k in zip((x, y), counts, strict=True)
    )
    chance = (1 + abs(of_p.shape)) / math.sqrt(min(counts[0], _TAIL * number)) + (1 + abs(of_q.shape)) / math.sqrt(counts[1])
    if of_p.shape - max(of_q.shape, -_POWER) < chance or of_q.shape > _POWER:
        return 0.0
    levels = np.geomspace(1e-4, 1, 100)
    farther = of_p.scale * np.expm1(-of_p.shape * np.log(levels)) / of_p.shape
    at = x[-counts[0] - 1] + farther
    beyond = np.where(at > y[-1], _extrapolated(np.maximum(at, y[-1]), y), 0.0)
    return counts[0] / len(x) * float(np.diff(levels, prepend=0) @ beyond)


def _extrapolated(x: Array, y: Array) -> Array:
    """Return how much less likely Q's tail, fitted to its outermost draws, is beyond x than beyond the last of them."""
    center = float(np.median(y))
    count = max(int(_TAIL * len(y)), min(_FEWEST_IN_TAIL, len(y) - 1))
    tail = _by_moments(y[-count:] - y[-count - 1])
    if tail.shape > _POWER and y[-count - 1] > center:
        x, y = np.log(x - center), np.log(np.maximum(y - center, np.finfo(np.float64).tiny))
        tail = _by_moments(y[-count:] - y[-count - 1])
    # Shorter tails than Q's only where the draws tell.
    tail = ParetoTail(min(tail.shape + (1 + abs(tail.shape)) / math.sqrt(4 * count), 0.0), tail.scale)
    last = tail.log_survival(y[-1:] - y[-count - 1])
    # The fitted tail may end before the last draw does.
    beyond = np.maximum(last, -2 * math.log(count + 1)) - tail.log_survival(x - y[-count - 1])
    return np.clip(beyond, 0.0, _MOST_NATS)


def _in_a_gap(x: Array, shares: Array, y: Array, number: float) -> bool:
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
    return bool((chance < math.log(_FALSE_ALARMS / 4 / len(inside))).any())


def _log_probability(inside: Array, around: Array, gaps: int) -> Array:
    """Return the log-probability of so many draws in a gap, or more, given those in other gaps of the same density.

    How often P's draws come between two neighboring ones of Q is geometric, and all ways to spread their sum are equally
    likely.
    """
    total = inside + around
    return sum((np.log((around + j) / (total + j)) for j in range(1, gaps + 1)), np.zeros(len(inside)))
