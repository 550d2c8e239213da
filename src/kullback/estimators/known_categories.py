"""KL(P || Q) from counts of P's draws and known probabilities of Q, and the intervals of `Counts`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from kullback.common.inference import two_sided_quantile, wilson_limit
from kullback.common.progress import progress_bar
from kullback.estimators.discrete.categorical_estimators import describe_kind, estimable, plugin
from kullback.estimators.discrete.counts import is_drawn, number_of_draws, table_of
from kullback.estimators.draws import Array, steps_between_ties
from kullback.estimators.evidence import (
    SIDE_P,
    SIDE_Q,
    SMALL_P,
    SMALL_Q,
    Evidence,
    by_direction,
    estimate_of,
    infinite,
    interval_from,
)
from kullback.estimators.registry import evidence_by
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.representations import Counts, Representation
from kullback.results.estimate import Estimate

# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# A limit of the interval is found by this number of bisections, about the number of bits of a float64 number.
_STEPS = 50
# The upper limit is a center plus a distance. Let e be the bias-corrected estimate, and D the divergence of the
# proportions. For n effective draws, the center is max(e, min(D, e + `_RARE` / n)).
_RARE = 0.5
# Above this number of degrees of freedom, a normal distribution approximates the chi-squared distribution.
_MANY = 300
# A sum of float32 probabilities has a rounding error up to `_ROUNDING`. The terms log p - log q, in float64, have
# relative rounding errors up to `_ROUNDING_OF_TERMS`.
_ROUNDING = 1e-6
_ROUNDING_OF_TERMS = 1e-12
# Below this number of degrees of freedom, the interval is valid without the limit from `_near_q`.
_SEVERAL = 2
# If all categories without draws together have a probability below this number under Q, this probability counts as 0,
# because it may be a rounding error.
_LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class UnseenByP:
    """Q's log-probability of the categories without draws of P, and of the least probable of these; -inf for none."""

    total: float
    least: float


def from_known_categories(counts: Array, log_q: Array, confidence: float) -> Evidence:
    """Return the evidence of KL(P || Q) from counts of P's draws and log-probabilities of Q, both of shape (K,)."""
    drawn = counts > 0
    n = float(counts.sum())
    if (log_q[drawn] == -np.inf).any():
        number = int(counts[log_q == -np.inf].sum())
        note = f"{number} of {int(n)} draws are in classes with probability 0 under {SIDE_Q}: KL is infinite."
        return infinite(note)
    others = log_q[~drawn & (log_q > -np.inf)]
    elsewhere = UnseenByP(-math.inf, -math.inf)
    if len(others):
        elsewhere = UnseenByP(float(np.logaddexp.reduce(others)), float(others.min()))
    shares = counts[drawn] / n

    def variance(influence: Array) -> float:
        return float(shares @ influence**2) / (n - 1)

    return of_categories(
        counts[drawn], log_q[drawn], elsewhere, variance, n=n, groups=n, confidence=confidence
    )


def of_categories(
    counts: Array,
    log_q: Array,
    elsewhere: UnseenByP,
    variance_of: Callable[[Array], float],
    *,
    n: float,
    groups: float,
    confidence: float,
    clusters: int | None = None,
) -> Evidence:
    """Return the evidence of KL(P || Q) from the effective `counts` of categories with draws: a mean over P's draws.

    `variance_of` returns the variance of the mean of log p - log q from each category's deviation from it.
    """
    surprise, unseen = category_surprise(counts, n)
    shares, terms = counts / counts.sum(), -surprise - log_q
    mean = float(shares @ terms)
    # At P = Q, all terms are 0, so the first-order variance of the mean is 0. The second-order variance `others`
    # remains.
    others = (len(counts) - 1) / (2 * n**2) + (unseen / 2) ** 2
    variance = variance_of(terms - mean)
    independent = float(shares @ (terms - mean) ** 2) / n
    # `number` is the effective number of draws: n - 1 for independent draws, and smaller for dependent draws. It
    # follows from the ratio of `independent`, the variance of the mean for independent draws, to `variance`. If all
    # terms are equal, both variances are 0, and `number` is an upper bound.
    most = min(n, groups)
    terms_differ = independent * n > (_ROUNDING_OF_TERMS * (1 + abs(mean))) ** 2
    number = n * independent / max(variance, independent) if terms_differ else max(most - 1, most / 2)
    reach = two_sided_quantile(confidence, clusters)
    ends = ends_from_counts(counts, log_q, elsewhere, number, reach, estimate=mean - unseen, added=others)
    lowered = f"Categories without draws lower the value by an estimated {unseen:.2g}; the error may be half of that."
    return Evidence(
        mean - unseen,
        error=math.sqrt(variance + others),
        ends=ends,
        contradicted=below_zero,
        notes=[lowered] * (unseen > 0.01),
    )


def category_surprise(counts: Array, n: float) -> tuple[Array, float]:
    r"""Return an estimate of :math:`-\log p` for each category, and minus the bias of its mean.

    Let :math:`\psi` be the digamma function. The mean of :math:`\psi(n) - \psi(a_i)` over the n draws, with the counts
    :math:`a_i`, estimates the entropy with the bias :math:`-\sum_{r \ge n} \frac1r \sum_i p_i (1 - p_i)^r`. This bias
    is estimated from the numbers of categories with one and two draws.

    Entropy and the species accumulation curve (Chao, Wang and Jost, 2013)
    """
    from scipy.special import digamma

    once, twice = float((counts == 1).sum()), float((counts == 2).sum())
    surprise = digamma(n) - digamma(counts)
    if once == 0:
        return surprise, 0.0
    rate = 2 * twice / ((n - 1) * once + 2 * twice) if twice else 2 / ((n - 1) * (once - 1) + 2)
    if rate >= 1:
        return surprise, 0.0
    terms = np.arange(n, n + min(50 / rate, 1e7))
    unseen = once / n * float(np.sum(np.exp((terms - n + 1) * np.log1p(-rate)) / terms))
    return surprise, unseen


def ends_from_counts(
    counts: Array,
    log_q: Array,
    unseen: UnseenByP,
    number: float,
    quantile: float,
    *,
    estimate: float,
    added: float,
) -> tuple[float, float]:
    r"""Return the lower and the upper limit of an interval for KL; either may be negative by chance.

    The interval is like Wilson's for a proportion. P is assumed to be in the exponential family

    .. math:: p_\theta \propto \hat p\, e^{\theta d}, \quad d = \log \hat p / q,

    which contains the proportions :math:`\hat p` (:math:`\theta = 0`) and Q (:math:`\theta = -1`). A value of
    :math:`\theta` is rejected if the mean of d in the sample and under :math:`p_\theta` differ by more than `quantile`
    standard errors, computed under :math:`p_\theta`. At the limit where :math:`p_\theta` makes rare categories rarer,
    the test has a continuity correction of half a draw. For the lower limit, all categories without
    draws together get half a draw. For the upper limit, only the category among these with the smallest q gets half a
    draw. The distances of the two limits from :math:`KL(\hat p \| q)` are then added to `estimate`. The upper limit is
    at least the limit from `_near_q`.

    `number` is the effective number of independent draws, and `estimate` is the bias-corrected estimate of KL. Its
    variance is `added` plus the variance of a mean of d.

    References:
        Probable inference, the law of succession, and statistical inference (Wilson, 1927)
    """
    share = counts / counts.sum()
    value = float(share @ (np.log(share) - log_q))
    missing = unseen.total > math.log(_LEAST_PROBABILITY)
    down = _Family.of(share, log_q, unseen.total if missing else None, number)
    theta = down.end(-1.0, number, quantile)
    up = _Family.of(share, log_q, unseen.least if unseen.least > -math.inf else None, number)
    above = [
        up.divergence(up.end(1.0, number, quantile)),
        *_one_at_a_time(share, log_q, unseen, number, quantile),
    ]
    if theta < -1:  # for theta below -1, which is Q, KL increases again
        above.append(down.divergence(theta))
    more = quantile**2 * added
    below = max(value - down.divergence(theta), 0.0)
    low = 0.0 if theta <= -1 else min(estimate, value) - math.sqrt(below**2 + more)
    center = max(estimate, min(value, estimate + _RARE / number))
    high = center + math.sqrt(max(max(above) - value, 0.0) ** 2 + more)
    # If the divergence of the proportions is negative, the probabilities of Q have a sum above 1, and `_near_q` does
    # not apply.
    if value < -_ROUNDING:
        return low, high
    return low, max(high, _near_q(estimate, len(share) - 1 + missing, number, quantile))


def _one_at_a_time(
    share: Array, log_q: Array, unseen: UnseenByP, number: float, quantile: float
) -> tuple[float, float]:
    """Return the largest KL for one probability at its lower Wilson limit, and at its upper one, over the categories.

    The other probabilities keep their ratios. The results matter if P's proportions equal Q's probabilities: then d =
    0, and the exponential family of `ends_from_counts` has only one member.
    """
    parts = share * (np.log(share) - log_q)
    others = np.maximum(1 - share, np.finfo(np.float64).tiny)
    rest = np.where(share < 1, (parts.sum() - parts) / others - np.log(others), 0.0)
    if unseen.least > -math.inf:
        share, log_q, rest = (
            np.append(share, 0.0),
            np.append(log_q, unseen.least),
            np.append(rest, parts.sum()),
        )
    largest: list[float] = []
    for sign in (-1, 1):
        moved = number * share
        moved = np.maximum(moved - 0.5, 0) if sign < 0 else moved
        end = np.clip(wilson_limit(moved, number, quantile, sign), 0.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            one = np.where(end > 0, end * (np.log(end) - log_q), 0.0)
            other = np.where(end < 1, (1 - end) * (np.log1p(-end) + rest), 0.0)
        largest.append(float((one + other)[(rest > 0) | (share < 1)].max(initial=-math.inf)))
    return largest[0], largest[1]


def _near_q(estimate: float, dof: int, number: float, quantile: float) -> float:
    """Return the largest divergence t that the estimate does not reject, if P is near Q; otherwise -inf.

    Let n be `number`, the effective number of draws. For P near Q, 2 n times the divergence of the proportions has a
    noncentral chi-squared distribution with `dof` degrees of freedom and the noncentrality 2 n t.
    """
    from scipy.special import chndtrinc, ndtr

    estimate = max(estimate, 0.0)
    twice = 2 * number * estimate + dof
    if dof < _SEVERAL or twice > dof + quantile * math.sqrt(2 * dof) + quantile**2:
        return -math.inf
    if dof > _MANY:
        return (
            estimate
            + (quantile**2 + quantile * math.sqrt(quantile**2 + 2 * number * estimate + dof / 2)) / number
        )
    return float(chndtrinc(twice, dof, ndtr(-quantile))) / (2 * number)


def spread_ties(values: Array) -> Array:
    """Return the values minus the smallest, with equal values spread evenly over the gap to the next smaller value.

    The subtraction keeps the digits of small differences.
    """
    values = values - values.min()
    distinct, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) == 1:
        return values
    gap = np.diff(distinct, prepend=2 * distinct[0] - distinct[1])
    return values + gap[index] * steps_between_ties(index, counts)


def below_zero(end: float, q_or_both: str = "the probabilities") -> str:
    """Return the note on a negative upper limit `end`; `q_or_both` names the side that may not be normalized."""
    return (
        f"The upper limit from the draws alone is {end:.2g}, but no divergence is below 0. The draws miss a part of "
        f"{SIDE_P} where {SMALL_P} > {SMALL_Q}, or {q_or_both} are not normalized: the upper limit is infinite."
    )


@dataclass(frozen=True)
class _Family:
    """The exponential family of distributions proportional to `share` e^(theta d), where d is log share - log q.

    `mean` is the mean of d over the draws.
    """

    share: Array
    d: Array
    log_q: Array
    mean: float

    @classmethod
    def of(cls, share: Array, log_q: Array, unseen: float | None, number: float) -> _Family:
        drawn = share
        if unseen is not None:
            drawn, log_q = np.append(share, 0.0), np.append(log_q, unseen)
            share = np.append(share, 0.5 / number) / (1 + 0.5 / number)
        d = np.log(share) - log_q
        return cls(share, d, log_q, float(drawn @ d))

    def at(self, theta: float) -> Array:
        logs = np.log(self.share) + theta * self.d
        weight = np.exp(logs - logs.max())
        return weight / weight.sum()

    def divergence(self, theta: float) -> float:
        p = self.at(theta)
        some = p > 0
        return float(p[some] @ (np.log(p[some]) - self.log_q[some]))

    def end(self, sign: float, number: float, quantile: float) -> float:
        """Return the theta of sign `sign` nearest to 0 that `number` draws reject; 0 if d is constant."""
        spread = math.sqrt(float(self.share @ (self.d - self.share @ self.d) ** 2))
        if spread <= 1e-12 * (1 + float(np.abs(self.d).max())):
            return 0.0
        inside, outside = 0.0, sign / spread / math.sqrt(number)
        for _ in range(_STEPS):
            if self._rejected(outside, sign, number, quantile):
                break
            inside, outside = outside, 2 * outside
        else:
            return outside
        for _ in range(_STEPS):
            middle = (inside + outside) / 2
            if self._rejected(middle, sign, number, quantile):
                outside = middle
            else:
                inside = middle
        return outside

    def _rejected(self, theta: float, sign: float, number: float, quantile: float) -> bool:
        p = self.at(theta)
        mean = float(p @ self.d)
        rest = self.d - mean
        square, cube = float(p @ rest**2), float(p @ rest**3)
        lattice = max(-sign * cube, 0.0) / square / (2 * number) if square > 0 else 0.0
        return sign * (mean - self.mean) - lattice > quantile * math.sqrt(square / number)


# A batch gets at most this number of different notes, the most frequent notes of its rows.
_MOST_NOTES = 5
_TOO_FEW = Evidence(
    math.nan, error=math.inf, ends=(0.0, math.inf), notes=["One draw gives only the interval from 0 to inf."]
)
_NO_DRAWS = (
    "Counts with a prior, that are not whole numbers, or with a sum above 1e30 count as weights and have no interval. "
    "For an interval, use whole numbers without prior=, with a smaller sum."
)


def with_interval(
    p: Representation, q: Representation, kind: Divergence, estimate: Estimate, confidence: float
) -> Estimate:
    """Return `estimate`, between the proportions of counts, with an error, an interval and notes from these counts."""
    if not all(is_drawn(side) for side in (p, q) if isinstance(side, Counts)):
        return replace(estimate, notes=(*estimate.notes, _NO_DRAWS))
    kind = estimable("estimate", kind)
    evidence = _of_kind(p, q, kind, confidence)
    described = estimate_of(evidence, estimate.value.device)
    return replace(described, value=estimate.value, kind=estimate.kind, base=estimate.base)


def _of_kind(p: Representation, q: Representation, kind: Divergence, confidence: float) -> Evidence:
    if isinstance(kind, ReverseKL | Jeffreys):
        return by_direction(kind, lambda p, q: _of_kind(p, q, KL(), confidence), p, q)
    if isinstance(kind, KL) and isinstance(p, Counts):
        if isinstance(q, Counts):
            return evidence_by(plugin, p, q, confidence=confidence)
        return _against_known(p, q, confidence)
    evidence = describe_kind(table_of(p, q), kind, confidence)
    return interval_from(replace(evidence, method="plugin"), confidence)


def _against_known(p: Counts, q: Representation, confidence: float) -> Evidence:
    """Return the evidence for rows of counts of P, shape (..., K), and known probabilities of Q."""
    x = p.weights().detach().double()
    logs = q.weights().detach().double()
    logs = logs.log_softmax(-1) if q.in_logs else (logs / logs.sum(-1, keepdim=True)).log()
    x, logs = torch.broadcast_tensors(x, logs)
    shape, device = x.shape[:-1], x.device
    flat = [side.reshape(-1, x.shape[-1]).cpu().numpy() for side in (x, logs)]
    rows: list[Evidence] = []
    with progress_bar("rows of counts") as update:
        for counts, log_q in zip(*flat, strict=True):
            rows.append(_TOO_FEW if counts.sum() < 2 else from_known_categories(counts, log_q, confidence))
            rows[-1] = interval_from(rows[-1], confidence)
            if update:
                update(len(rows), len(flat[0]))
    numbers = [(row.value, row.error, *(row.ends or ())) for row in rows]
    columns = torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(*shape, 4).to(device)
    value, error, low, high = columns.unbind(-1)
    times = Counter(note for row in rows for note in row.notes)
    notes = [
        f"{number:,} of {len(rows):,} rows: {note}" if shape else note
        for note, number in times.most_common(_MOST_NOTES)
    ]
    n = number_of_draws(x.sum(-1)), 0
    return Evidence(value, error=error, ends=(low, high), notes=notes, n=n, method="plugin")
