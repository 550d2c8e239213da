"""Generalized Pareto fits to tails of draws, for the tail of a mean, and for P's draws beyond or in gaps of Q's draws.

The contribution of the draws outside the range to KL is extrapolated from Q's fitted tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kullback.estimators.draws import Array
from kullback.estimators.evidence import SIDE_P, SIDE_Q, SMALL_P, SMALL_Q, Shift

# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# A tail is fitted to the largest draws: to the proportion `TAIL` of all draws, but to at least `FEWEST_IN_TAIL` draws.
TAIL, FEWEST_IN_TAIL = 0.1, 10

# A generalized Pareto distribution has a finite variance for shapes below 1/2, and a finite mean for shapes below 1.
_NO_VARIANCE = 0.5


@dataclass(frozen=True)
class ParetoTail:
    """A generalized Pareto distribution of the excesses of draws over a threshold."""

    shape: float
    scale: float

    def log_survival(self, beyond: Array) -> Array:
        """Return the log-probability of a larger excess than each value in `beyond`; -inf above the support."""
        if self.shape == 0:
            return -beyond / self.scale
        with np.errstate(divide="ignore"):
            return -np.log1p(np.maximum(self.shape * beyond / self.scale, -1)) / self.shape


def fit_tail(beyond: Array, spread: float) -> ParetoTail:
    """Return the likeliest tail of shape 0 or more for excesses; without any, an exponential one of scale `spread`.

    Parameter and Quantile Estimation for the Generalized Pareto Distribution (Hosking and Wallis, 1987)
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


def fit_tail_by_moments(beyond: Array) -> ParetoTail:
    """Return a tail of any shape, fitted to sorted excesses by probability-weighted moments.

    Parameter and Quantile Estimation for the Generalized Pareto Distribution (Hosking and Wallis, 1987)
    """
    n = len(beyond)
    first = float(beyond.mean())
    second = float((beyond * (n - np.arange(1, n + 1) + 0.35) / n).mean())
    if not first > 2 * second > 0:
        return ParetoTail(0.0, max(first, np.finfo(np.float64).tiny))
    return ParetoTail(2 - first / (first - 2 * second), 2 * first * second / (first - 2 * second))


def heaviness(values: Array) -> float:
    """Return the tail index k of values f, where P(|f - median| > t) ~ t^(-1/k); the variance is finite for k < 1/2."""
    size = np.sort(np.abs(values - np.median(values)))
    count = min(max(int(TAIL * len(size)), FEWEST_IN_TAIL), len(size) - 1)
    return fit_tail_by_moments(size[-count:] - size[-count - 1]).shape


def tail_allowance(terms: Array, shares: Array, number: float) -> float:
    """Return the possible excess of the true mean of terms over the sample mean, because of an unobserved tail.

    It is the mean of a generalized Pareto fit to the largest terms, with a shape one standard error above the fit, and
    infinite for a shape of 1 or more. `number` is the effective number of terms.
    """
    count = int(max(TAIL * number, min(FEWEST_IN_TAIL, number / 4)) * len(terms) / number)
    if count < 4:
        return math.inf if number < 2 else 0.0
    order = np.argsort(terms)
    threshold = float(terms[order[-count - 1]])
    beyond = terms[order[-count:]] - threshold
    if not float(beyond[-1]) > 0:
        return 0.0
    shape = fit_tail_by_moments(beyond).shape
    if shape > _NO_VARIANCE:  # for such heavy tails, the fit by moments underestimates the shape
        shape = max(shape, fit_tail(beyond, 1.0).shape)
    shape = max(shape + (1 + abs(shape)) / math.sqrt(count * number / len(terms)), 0.0)
    weight = float(shares[order[-count:]].sum())
    return math.inf if shape >= 1 else weight * float(beyond.mean()) * max(1 / (1 - shape) - 1, 0.0)


def beyond_tail(allowance: float, width: float) -> Shift:
    """Return the `Shift` of an upper limit by a `tail_allowance`, with a note if this exceeds `width`."""
    limit = "is infinite" if math.isinf(allowance) else "extrapolates a Pareto tail"
    note = (
        f"log {SMALL_P} / {SMALL_Q} has a heavy tail, and its mean may depend on unobserved draws: the upper limit "
        f"{limit}."
    )
    return Shift(allowance, note if allowance > width else "")


# The upper limit increases by `_DOUBT` times the extrapolated contribution of Q's tails to KL. If this increase is more
# than half the width of the interval, the upper limit is infinite instead.
_DOUBT = 2.0
# If the shape of Q's fitted tail is above this value, the tail follows a power law. P's tail may follow the same law,
# so P's fitted tail then adds nothing to KL.
_POWER = 0.15
# The extrapolated log-ratio of a draw is at most this number of nats.
_MOST_NATS = 20.0
# A note appears if at least this many draws of P are outside the range of Q's draws.
_SEVERAL = 3
# If P = Q, `abrupt` is True with at most this probability.
_FALSE_ALARMS = 0.05
# P's mass in a gap between neighboring draws of Q is compared with P's mass in this number of gaps around the gap.
_NEIGHBORING_GAPS = 20
# P's draws outside Q's range add nothing to KL if chance explains them. For P = Q, as many draws or more would then be
# outside with a probability of at least `_BY_CHANCE`.
_BY_CHANCE = 0.3
# If log(p / q) is smooth, P(X > t) is assumed to decrease at least as fast as Q(Y > t)^`_SLOWEST`.
_SLOWEST = 0.2
# A fitted tail counts as ending abruptly if its shape is below this value.
_ABRUPT_END = -0.35
# The largest excess is left out of the fit of a tail if it is more than this number of times the second largest.
_FAR = 100.0


@dataclass(frozen=True)
class Unseen:
    """The share and the effective number of P's draws outside Q's range, and their contribution `nats` to KL.

    If `abrupt`, more draws of P are there, or between two neighboring draws of Q, than a smooth log(p / q) allows.
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
    """Return the `Unseen` statistics of P's sorted draws x, with the weights `shares`, and Q's sorted draws y.

    If P = Q, `abrupt` is True with probability `alarms`. `upper_only` ignores gaps and draws below Q's smallest.
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
            continue  # for P = Q, this number of draws outside Q's range is not unlikely
        # One or two draws may be far outside Q's range by chance, so the log-ratio of few draws is limited.
        most = min(_MOST_NATS, 2 * weight * number)
        observed = float(weights[outside] @ np.minimum(_extrapolated(at[outside], of_q), most))
        expected = _expected(at, of_q, number) if weight * number >= 1 else 0.0
        # Beyond Q's range, log p decreases too, by one nat on average over P's draws. So `weight` times one nat is
        # subtracted.
        nats += max(observed - weight, expected - weight, 0.0)
        ends = _tail(of_q)[0].shape < _ABRUPT_END and float(chance[0]) < math.log(alarms)
        abrupt |= ends or (weight * number > smooth and float(chance[0]) < math.log(alarms / 4))
    return Unseen(share, share * number, nats, abrupt)


def _expected(x: Array, y: Array, number: float) -> float:
    """Return the mean of `_extrapolated` over P's fitted tail, for sorted draws x of P and y of Q.

    The result is 0 if P's tail is not heavier than Q's tail, or if Q's tail follows a power law.
    """
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
    """Return a tail fitted to the largest of the sorted draws y except an extreme outlier, and their number."""
    count = max(int(TAIL * len(y)), min(FEWEST_IN_TAIL, len(y) - 1))
    beyond = y[-count:] - y[-count - 1]
    if len(beyond) > 2 and beyond[-1] > _FAR * beyond[-2]:
        beyond = beyond[:-1]
    return fit_tail_by_moments(beyond), count


def _extrapolated(x: Array, y: Array) -> Array:
    """Return log(Q(Y > largest draw) / Q(Y > x)) by the tail fitted to Q's draws y, clipped to [0, `_MOST_NATS`]."""
    tail, count = _tail(y)
    # The shape of the tail is moved toward 0 by half its standard error. A shape within this distance of 0 becomes 0,
    # which is an exponential tail.
    chance = (1 + abs(tail.shape)) / math.sqrt(4 * count)
    tail = ParetoTail(min(max(0.0, tail.shape - chance), tail.shape + chance), tail.scale)
    last = tail.log_survival(y[-1:] - y[-count - 1])
    # The fitted tail may end before the largest draw. The lower bound of `last` keeps the log-probability finite.
    beyond = np.maximum(last, -2 * math.log(count + 1)) - tail.log_survival(x - y[-count - 1])
    return np.clip(beyond, 0.0, _MOST_NATS)


def _in_a_gap(x: Array, shares: Array, y: Array, number: float, alarms: float) -> bool:
    """Return whether some gap between two draws of Q has significantly more draws of P than the gaps around it."""
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
    """Return the log-probability of `inside` or more draws of P in a gap, given `around` draws in `gaps` other gaps.

    If p / q is constant, all divisions of P's draws among the gaps of Q's draws are equally likely.
    """
    total = inside + around
    chance = np.zeros(len(inside))
    for j in range(1, gaps + 1):
        chance += np.log((around + j) / (total + j))
    return chance


def unseen_in_scores(
    scores: Iterable[tuple[Array, Array]], shares: Array, number: float, *, log_ratios: bool = False
) -> Unseen:
    """Return the result of `unseen_by_q` for vectors: the score with the largest `nats`, abrupt if any score is.

    `scores` has each score's values for P's and for Q's draws. For the first, only draws above Q's largest are used. If
    `log_ratios`, it is a log-ratio, and its excess over Q's largest replaces the extrapolation.
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
    """Return the increase, perhaps infinite, of the upper limit of an interval with the half-width `half_width`."""
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
