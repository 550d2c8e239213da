"""An interval from data: the `Evidence` of an estimator, and the one function that makes an interval from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kullback.common.short_repr import ShortRepr
from kullback.errors import SIDES_EXCHANGED, sides_exchanged
from kullback.estimators.draws import Array, Draws, few_clusters
from kullback.generators import Divergence, Jeffreys, ReverseKL
from kullback.results.estimate import Estimate


class _Side(str):
    """The name of a side, which an f-string marks: evidence of the other direction exchanges the names."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return _MARK + self + _MARK


# No other text in a note has this character.
_MARK = "\0"
SIDE_P = _Side("P")
"""The name of P in the f-string of a note."""
SIDE_Q = _Side("Q")
"""The name of Q in the f-string of a note."""
# The names of the densities p and q, and of the arguments with these names.
SMALL_P, SMALL_Q = _Side("p"), _Side("q")

# With a smaller standard error, a negative estimate shows that the divergence is nearly 0. The limit decides between
# two wordings of a note, and no number depends on it.
_SMALL = 0.05


class Shift(NamedTuple):
    """A change of the upper limit for mass without draws, and a note about it, if any."""

    nats: float
    note: str = ""


@dataclass(frozen=True, repr=False)
class Evidence(ShortRepr):
    r"""What draws show of a divergence: a value, its uncertainty and its possible bias.

    The uncertainty is one of four: the influence of each draw, values from resampled draws, a standard error, or the
    ends of an interval.

    Attributes:
        value: the estimate, in nats; below 0 by chance. One number, or one for each row of a batch.
        influence: how much each draw of P, and each of Q, changes the value: two arrays, in the order of the draws. The
            sums over the independent clusters of draws give the standard error.
        resampled: the values from resampled draws, or from a posterior distribution.
        ends: the lower and the upper limit, for example from the inversion of a test.
        error: a standard error, in addition to the one of `influence`; None if it is unknown.
        error_above: a standard error that only the upper limit takes in addition.
        bias_low: by how much the value may be too high: the lower limit moves down by it.
        bias_high: by how much it may be too low; infinite if the draws bound no divergence from above.
        notes: sentences about the estimate. An f-string names the sides as ``{SIDE_P}`` and ``{SIDE_Q}``, so that an
            estimate of KL(Q || P) can exchange them.
        beyond: a function of half the width of the interval, which returns the change of its upper limit for what the
            draws do not show.
        remarks: more notes, which follow the one of `beyond`; or a function of the upper limit that returns them.
        groups: the number of independent groups behind the error, for Student's t; by default the clusters, if any.
        rate: r, where an estimate of a divergence of t has a variance of at least r t plus the square of `error`.
        contradicted: the note on an upper limit below 0, which no divergence has; it becomes infinite.
        least: the smallest value; a smaller estimate is replaced by it. The limits are at least 0 in any case.
        without_interval: whether there is no interval; a note says why.
        method: the name of the method, if it is not the one of the estimator.
        n: the numbers of draws of P and of Q, if not all of them.

    Example:
        >>> interval_from(Evidence(0.5, error=0.1, notes=[f"{SIDE_Q} is known."]), 0.95).ends
        (0.304..., 0.695...)
    """

    value: Tensor | float
    _: KW_ONLY
    influence: tuple[Array, Array] | None = None
    resampled: Array | None = None
    ends: tuple[Tensor | float, Tensor | float] | None = None
    error: Tensor | float | None = None
    error_above: float = 0.0
    bias_low: float = 0.0
    bias_high: float = 0.0
    notes: Sequence[str] = ()
    beyond: Callable[[float], Shift] | None = None
    remarks: Sequence[str] | Callable[[float], Iterable[str]] = ()
    groups: int | None = None
    rate: float = 0.0
    contradicted: Callable[[float], str] | None = None
    least: float = 0.0
    without_interval: bool = False
    method: str = ""
    n: tuple[int | Tensor, int | Tensor] | None = None


@lru_cache(maxsize=16)
def standard_normal_quantile(confidence: float) -> float:
    """Return half the width of a two-sided normal interval, in standard errors."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64, device="cpu")))


def quantile_of(confidence: float, groups: float | None = None) -> float:
    """Return half the width of a two-sided interval in standard errors, from Student's t for clusters."""
    quantile = standard_normal_quantile(confidence)
    return quantile if groups is None else quantile * few_clusters(groups, quantile)


def note_on_sign(raw: float, error: float | None = 0.0) -> list[str]:
    """Return a note on a negative estimate, which becomes 0; no note on others."""
    if not raw < 0:
        return []
    if error is None or error > _SMALL:
        spread = "no standard error" if error in (None, math.inf) else f"a standard error of {error:.2g}"
        return [
            f"The estimate is {raw:.2g}, with {spread}. It is replaced by 0, but the divergence may be larger."
        ]
    return [f"The estimate is {raw:.2g}, by chance for a divergence near 0. It is replaced by 0."]


def interval_from(evidence: Evidence, confidence: float, *sides: Draws) -> Evidence:
    r"""Make the interval from evidence: return the same with its limits, and with the notes on them.

    Without limits of its own, the interval is normal, or of Student's t for clusters. An estimate below the divergence
    t by chance has a standard error that is too small: t's own variance is at least the square of `error` plus `rate`
    times t. So the upper limit is at least the largest t with :math:`(\hat D - t)^2 \le z^2 (c^2 + r\, t)`, for
    :math:`\hat D` of at least 0. All limits are at least 0.

    Arguments:
        evidence: of an estimator. A batch has its limits already.
        confidence: the probability that the interval contains the divergence.
        sides: the draws whose influence the evidence has.
    """
    value = evidence.value
    if isinstance(value, Tensor) and value.ndim:
        return replace(evidence, value=value.clamp(min=evidence.least))
    raw, error = float(value), error_of(evidence, sides)
    notes = [*(note_on_sign(raw, error) if evidence.least == 0 else ()), *evidence.notes]
    ends = _limits(evidence, raw, error, confidence, sides)
    high = math.inf
    if ends is not None:
        low, high = ends[0] - evidence.bias_low, ends[1] + evidence.bias_high
        if high < 0 and evidence.contradicted is not None:
            notes.append(evidence.contradicted(high))
            high = math.inf
        low, high = max(low, 0.0), max(high, 0.0)
        if evidence.beyond is not None and high < math.inf:
            shift = evidence.beyond((high - low) / 2)
            notes += [shift.note] if shift.note else []
            high += shift.nats
        ends = None if evidence.without_interval else (low, high)
    remarks = evidence.remarks
    notes += remarks(high) if callable(remarks) else remarks
    return Evidence(
        max(raw, evidence.least),
        ends=ends,
        error=error,
        notes=notes,
        least=evidence.least,
        without_interval=ends is None,
        method=evidence.method,
        n=evidence.n,
    )


def error_of(evidence: Evidence, sides: tuple[Draws, ...]) -> float | None:
    """Return the standard error of evidence; None if it has none."""
    if evidence.influence is not None:
        variance = sum(
            side.variance(of_draws) for side, of_draws in zip(sides, evidence.influence, strict=True)
        )
        return math.hypot(math.sqrt(variance), float(evidence.error or 0.0))
    if evidence.resampled is not None:
        return float(np.std(evidence.resampled, ddof=1))
    return None if evidence.error is None else float(evidence.error)


def _limits(
    evidence: Evidence, raw: float, error: float | None, confidence: float, sides: tuple[Draws, ...]
) -> tuple[float, float] | None:
    """Return the limits before any bias; None if there is neither an error nor an interval."""
    if evidence.ends is not None:
        return float(evidence.ends[0]), float(evidence.ends[1])
    if evidence.resampled is not None:
        tail = (1 - confidence) / 2
        low, high = np.quantile(evidence.resampled, [tail, 1 - tail])
        return float(low), float(high)
    if error is None:
        return None
    clusters = [side.groups for side in sides if side.cluster is not None]
    groups = min(clusters) if clusters and evidence.groups is None else evidence.groups
    reach = quantile_of(confidence, groups)
    if reach == math.inf:
        return -math.inf, math.inf
    high = raw + reach * (math.sqrt(error**2 + evidence.error_above**2) if evidence.error_above else error)
    if evidence.rate > 0:
        least, half = max(raw, 0.0), reach * evidence.rate / 2
        constant = float(evidence.error or 0.0)
        high = max(high, least + reach * (half + math.sqrt(constant**2 + evidence.rate * least + half**2)))
    return raw - reach * error, high


def estimate_of(evidence: Evidence, device: torch.device) -> Estimate:
    """Return evidence that has its interval as an `Estimate`, with its notes in words."""

    tensor = partial(torch.as_tensor, dtype=torch.float64, device=device)
    interval = None if evidence.ends is None else (tensor(evidence.ends[0]), tensor(evidence.ends[1]))
    error = None if evidence.error is None else tensor(evidence.error)
    notes = tuple([note.replace(_MARK, "") for note in evidence.notes]) if evidence.notes else ()
    return Estimate(tensor(evidence.value), None, evidence.method, interval, evidence.n, notes, error)


def infinite(note: str, n: tuple[int, int] | None = None) -> Evidence:
    """Return an infinite divergence, with a note on the reason."""
    return Evidence(math.inf, error=0.0, ends=(math.inf, math.inf), notes=(note,), n=n)


def noted(evidence: Evidence, before: Sequence[str] = (), after: Sequence[str] = ()) -> Evidence:
    """Return evidence with more notes, before or after its own."""
    return replace(evidence, notes=(*before, *evidence.notes, *after))


def exchanged(measure: Callable[[], Evidence]) -> Evidence:
    """Return evidence of KL(Q || P), with its interval, whose errors and notes name the two sides as the caller does.

    `measure` ends with `interval_from`, so the other fields that name a side are empty.
    """
    with sides_exchanged():
        evidence = measure()
    notes: list[str] = []
    for note in evidence.notes:
        pieces = note.split(_MARK)
        pieces[1::2] = [f"{_Side(SIDES_EXCHANGED[name])}" for name in pieces[1::2]]
        notes.append("".join(pieces))
    return replace(evidence, n=None if evidence.n is None else evidence.n[::-1], notes=notes)


def by_direction(kind: Divergence, kl: Callable[[Any, Any], Evidence], p: Any, q: Any) -> Evidence:
    """Return the evidence of KL, of its reverse or of the sum of both, from a function that estimates KL."""
    if isinstance(kind, ReverseKL):
        return exchanged(lambda: kl(q, p))
    there = kl(p, q)
    return added(there, exchanged(lambda: kl(q, p))) if isinstance(kind, Jeffreys) else there


def added(there: Evidence, back: Evidence) -> Evidence:
    """Return the sum of the two directions; their errors may be dependent, so they are added too."""
    ends = error = None
    if there.ends is not None and back.ends is not None:
        ends = there.ends[0] + back.ends[0], there.ends[1] + back.ends[1]
    if there.error is not None and back.error is not None:
        error = there.error + back.error
    method, notes = there.method, [*dict.fromkeys((*there.notes, *back.notes))]
    if there.method != back.method:
        method = "auto"
        notes.append(f"One direction was estimated by {there.method}, the other by {back.method}.")
    return replace(
        there,
        value=there.value + back.value,
        ends=ends,
        error=error,
        notes=notes,
        method=method,
        without_interval=ends is None,
    )


def widened(evidence: Evidence, factor: float, largest: float) -> Evidence:
    """Return evidence with its error and limits farther from the value by a factor, within 0 and `largest`."""
    value = float(evidence.value)
    if factor == 1.0 or not math.isfinite(value):
        return evidence
    ends = evidence.ends
    if ends is not None:
        low, high = (min(max(value + factor * (float(end) - value), 0.0), largest) for end in ends)
        ends = low, high
    return replace(evidence, error=None if evidence.error is None else factor * evidence.error, ends=ends)


def of_two(one: Evidence, other: Evidence) -> Evidence:
    """Return the mean of two values, and the smallest interval that contains both intervals."""
    ends = error = None
    if one.ends is not None and other.ends is not None:
        low, high = zip(one.ends, other.ends, strict=True)
        ends = min(low), max(high)
    if one.error is not None and other.error is not None:
        error = max(one.error, other.error)
    notes = [*dict.fromkeys((*one.notes, *other.notes))]
    value = (one.value + other.value) / 2
    return replace(one, value=value, ends=ends, error=error, notes=notes, without_interval=ends is None)


def opened(evidence: Evidence, largest: float) -> Evidence:
    """Return evidence with the widest interval, where there is one: from 0 to the largest value."""
    return replace(evidence, ends=None if evidence.ends is None else (0.0, largest))


def without_interval(evidence: Evidence) -> Evidence:
    """Return evidence without an error and limits."""
    return replace(evidence, ends=None, error=None, without_interval=True)
