"""`Evidence`, the raw result of an estimator, and `interval_from`, which computes its confidence interval."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kullback.common.inference import two_sided_quantile
from kullback.common.short_repr import ShortRepr
from kullback.errors import SIDES_EXCHANGED, sides_exchanged
from kullback.estimators.draws import Array, Draws
from kullback.generators import Divergence, Jeffreys, ReverseKL
from kullback.results.estimate import Estimate


class _Side(str):
    """The name P or Q, which an f-string puts between two characters `_MARK`, so that `exchanged` can find the name."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return _MARK + self + _MARK


# This character marks the names in a note; it occurs nowhere else in a note.
_MARK = "\0"
SIDE_P = _Side("P")
"""The name P, for the f-string of a note."""
SIDE_Q = _Side("Q")
"""The name Q, for the f-string of a note."""
# `SMALL_P` and `SMALL_Q` are the names p and q, of the densities and of the arguments, for the f-string of a note.
SMALL_P, SMALL_Q = _Side("p"), _Side("q")

# With a standard error below this limit, a negative estimate shows that the divergence is nearly 0. The limit selects
# one of two wordings of a note; no number depends on it.
_SMALL = 0.05


class Shift(NamedTuple):
    """An increase of the upper limit, in nats, for regions without draws; `note` explains the increase, or is empty."""

    nats: float
    note: str = ""


@dataclass(frozen=True, repr=False)
class Evidence(ShortRepr):
    r"""The raw result of an estimator: a value, its uncertainty and its possible bias.

    The uncertainty is given in one of four forms: the influence of each draw, values from resampled draws, a standard
    error, or the limits of an interval.

    Attributes:
        value: the estimate in nats, which may be negative by chance. The value is a number or, for a batch, a tensor
            with one estimate for each row.
        influence: two arrays: the influence of each draw of P, and of each draw of Q, on the value. The sums of the
            influences over clusters of draws give the standard error.
        resampled: the values from resampled draws, or from a posterior distribution. The limits are open if not even
            one of the values is expected beyond each limit.
        ends: the lower and the upper limit, for example from the inversion of a test.
        error: a standard error that is independent of the error from `influence`; None if it is unknown.
        error_above: a second standard error, which is added in quadrature to the error for the upper limit only.
        bias_low: the largest possible bias upwards; it is subtracted from the lower limit.
        bias_high: the largest possible bias downwards, as a positive number; it is added to the upper limit. The number
            is infinite if the draws give no upper limit.
        notes: sentences about the estimate. An f-string names the sides as ``{SIDE_P}`` and ``{SIDE_Q}``, so that an
            estimate of KL(Q || P) can exchange the names.
        beyond: a function that takes half the width of the interval and returns the `Shift` of the upper limit for
            regions without draws.
        remarks: notes that follow the note of `beyond`, or a function of the upper limit that returns these notes.
        groups: the number of independent groups behind the error, for the quantile of Student's t. By
            default, it is the number of clusters if the draws have clusters; otherwise the quantile is normal.
        rate: the number r in a lower bound on the variance: the estimate of a divergence t has a variance of at least
            r t + `error`^2.
        contradicted: a function that takes an upper limit below 0 and returns a note on this contradiction. The limit
            is then replaced by infinity.
        least: the lower bound of the value; a smaller estimate is replaced by this number. The limits of the interval
            are at least 0 in any case.
        without_interval: if True, the estimate has no interval, and a note gives the reason.
        method: the name of the method, if it differs from the estimator's name.
        n: the numbers of draws of P and of Q, if they are not the sizes of the samples.

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


def note_on_sign(raw: float, error: float | None = 0.0) -> list[str]:
    """Return a list with a note if the raw estimate is negative and will be replaced by 0; otherwise an empty list."""
    if not raw < 0:
        return []
    if error is None or error > _SMALL:
        spread = "no standard error" if error in (None, math.inf) else f"a standard error of {error:.2g}"
        return [
            f"The estimate is {raw:.2g}, with {spread}. It is replaced by 0, but the divergence may be larger."
        ]
    note = f"The estimate is {raw:.2g}: for a divergence near 0, an estimate can be negative by chance. "
    return [note + "It is replaced by 0."]


def interval_from(evidence: Evidence, confidence: float, *sides: Draws) -> Evidence:
    r"""Return the evidence with the limits of its interval in `ends`, and with notes on these limits.

    Without `ends`, the interval is normal, or from Student's t for clusters. The variance of the estimate
    :math:`\hat D` of a divergence t is at least :math:`c^2 + r\, t`, where c is `error` and r is `rate`. If
    :math:`\hat D` is by chance smaller than t, the error is too small. So the upper limit is at least the largest t
    with :math:`(\hat D - t)^2 \le z^2 (c^2 + r\, t)`, with 0 for a negative :math:`\hat D`. All limits
    are at least 0. The evidence of a batch must have `ends`. `influence` needs `sides`.
    """
    value = evidence.value
    if isinstance(value, Tensor) and value.ndim:
        return replace(evidence, value=value.clamp(min=evidence.least))
    raw, error = float(value), error_of(evidence, sides)
    notes = [*(note_on_sign(raw, error) if evidence.least == 0 else ()), *evidence.notes]
    ends = _limits(evidence, raw, error, confidence, sides)
    if ends == (-math.inf, math.inf) and evidence.resampled is not None:
        number = len(evidence.resampled)
        notes.append(
            f"{number:,} resampled values do not show limits at a confidence of {confidence:g}: use more."
        )
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
    """Return the standard error of the evidence, or None if it is unknown."""
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
    """Return the limits without an allowance for bias; None without limits and without the standard error."""
    if evidence.ends is not None:
        return float(evidence.ends[0]), float(evidence.ends[1])
    if evidence.resampled is not None:
        tail = (1 - confidence) / 2
        if len(evidence.resampled) * tail < 1:
            return -math.inf, math.inf
        low, high = np.quantile(evidence.resampled, [tail, 1 - tail])
        return float(low), float(high)
    if error is None:
        return None
    clusters = [side.groups for side in sides if side.cluster is not None]
    groups = min(clusters) if clusters and evidence.groups is None else evidence.groups
    reach = two_sided_quantile(confidence, groups)
    if reach == math.inf:
        return -math.inf, math.inf
    high = raw + reach * (math.sqrt(error**2 + evidence.error_above**2) if evidence.error_above else error)
    if evidence.rate > 0:
        least, half = max(raw, 0.0), reach * evidence.rate / 2
        constant = float(evidence.error or 0.0)
        high = max(high, least + reach * (half + math.sqrt(constant**2 + evidence.rate * least + half**2)))
    return raw - reach * error, high


def estimate_of(evidence: Evidence, device: torch.device) -> Estimate:
    """Return evidence from `interval_from` as an `Estimate`, with tensors on `device` and notes without `_MARK`."""

    tensor = partial(torch.as_tensor, dtype=torch.float64, device=device)
    interval = None if evidence.ends is None else (tensor(evidence.ends[0]), tensor(evidence.ends[1]))
    error = None if evidence.error is None else tensor(evidence.error)
    notes = tuple([note.replace(_MARK, "") for note in evidence.notes]) if evidence.notes else ()
    return Estimate(tensor(evidence.value), None, evidence.method, interval, evidence.n, notes, error)


def infinite(note: str, n: tuple[int, int] | None = None) -> Evidence:
    """Return the evidence of an infinite divergence; `note` gives the reason."""
    return Evidence(math.inf, error=0.0, ends=(math.inf, math.inf), notes=(note,), n=n)


def noted(evidence: Evidence, before: Sequence[str] = (), after: Sequence[str] = ()) -> Evidence:
    """Return the evidence with the notes `before` ahead of its notes and the notes `after` behind them."""
    return replace(evidence, notes=(*before, *evidence.notes, *after))


def exchanged(measure: Callable[[], Evidence]) -> Evidence:
    """Return the evidence of `measure()` with P and Q exchanged in its notes and in `n`, and in messages of errors.

    The evidence is from `interval_from`: then only `notes` and `n` depend on the order of the sides.
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
    """Return the evidence of `kind`, which is KL, `ReverseKL` or `Jeffreys`; `kl(p, q)` returns the evidence of KL."""
    if isinstance(kind, ReverseKL):
        return exchanged(lambda: kl(q, p))
    there = kl(p, q)
    return added(there, exchanged(lambda: kl(q, p))) if isinstance(kind, Jeffreys) else there


def added(there: Evidence, back: Evidence) -> Evidence:
    """Return the evidence of KL(P || Q) + KL(Q || P); the errors may be correlated, so they are added."""
    both = _combined(there, back, there.value + back.value, operator.add, operator.add, operator.add)
    if there.method == back.method:
        return both
    note = f"One direction was estimated by {there.method}, the other by {back.method}."
    return replace(noted(both, after=[note]), method="auto")


def _combined(one: Evidence, other: Evidence, value: Any, *functions: Callable[[Any, Any], Any]) -> Evidence:
    """Return `one` with a value, the notes of both, and functions of both lower limits, upper limits and errors."""
    low, high, of_errors = functions
    ends = error = None
    if one.ends is not None and other.ends is not None:
        ends = low(one.ends[0], other.ends[0]), high(one.ends[1], other.ends[1])
    if one.error is not None and other.error is not None:
        error = of_errors(one.error, other.error)
    notes = [*dict.fromkeys((*one.notes, *other.notes))]
    return replace(one, value=value, ends=ends, error=error, notes=notes, without_interval=ends is None)


def widened(evidence: Evidence, factor: float, largest: float) -> Evidence:
    """Return the evidence with the standard error and the interval multiplied by `factor`, within 0 and `largest`."""
    value = float(evidence.value)
    if factor == 1.0 or not math.isfinite(value):
        return evidence
    ends = evidence.ends
    if ends is not None:
        low, high = (min(max(value + factor * (float(end) - value), 0.0), largest) for end in ends)
        ends = low, high
    return replace(evidence, error=None if evidence.error is None else factor * evidence.error, ends=ends)


def of_two(one: Evidence, other: Evidence) -> Evidence:
    """Return the evidence of the mean of two values, with both intervals in one and the larger standard error."""
    return _combined(one, other, (one.value + other.value) / 2, min, max, max)
