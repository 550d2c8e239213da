"""Normal confidence intervals around estimates from draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kullback.estimators.draws import few_clusters
from kullback.estimators.unseen import UpperEndShift
from kullback.results.estimate import Estimate

__all__ = [
    "half_width",
    "infinite_estimate",
    "normal_estimate",
    "note_on_sign",
    "opened",
    "standard_normal_quantile",
]

# A standard error below which a negative estimate tells that there is next to no divergence.
_SMALL = 0.05


def standard_normal_quantile(confidence: float) -> float:
    """Return half the width, in standard errors, of a two-sided normal interval."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64, device="cpu")))


def note_on_sign(raw: float, error: float = 0.0) -> list[str]:
    """Return a note on an estimate that was negative and is answered with 0; none for others."""
    if raw >= 0:
        return []
    if error > _SMALL:
        spread = f"a standard error of {error:.2g}" if error < math.inf else "no standard error"
        return [f"The estimate is {raw:.2g}, with {spread}: 0, the least that KL can be, says little here."]
    return [f"The estimate is {raw:.2g}, as chance may make it where there is next to no divergence."]


def normal_estimate(
    raw: float,
    error: float,
    confidence: float,
    *,
    method: str,
    n: tuple[int, int],
    notes: Sequence[str],
    device: torch.device,
    groups: int | None = None,
    rate: float = 0.0,
    constant: float = 0.0,
) -> Estimate:
    r"""Return a value with its normal interval, both cut off at 0, below which no divergence is.

    With the number of clusters as `groups`, the interval is that of Student's t. The error at the estimate is too small
    where that is below the divergence t by chance: t's own variance is at least `rate` times t, beside the square of
    the `constant` error. The upper end is therefore also the largest t of :math:`(\hat D - t)^2 \le z^2 (c^2 + r\, t)`,
    with :math:`\hat D` no less than 0.
    """
    reach = standard_normal_quantile(confidence)
    if groups is not None:
        reach *= few_clusters(groups, reach)
    high = raw + reach * error
    if rate > 0 and reach < math.inf:
        least, half = max(raw, 0.0), reach * rate / 2
        high = max(high, least + reach * (half + math.sqrt(constant**2 + rate * least + half**2)))
    numbers = (max(raw, 0.0), error, max(raw - reach * error, 0.0), max(high, 0.0))
    value, spread, low, high = (torch.tensor(x, dtype=torch.float64, device=device) for x in numbers)
    notes = (*note_on_sign(raw, error), *notes)
    return Estimate(value, None, method, (low, high), n, notes, spread)


def half_width(estimate: Estimate) -> float:
    """Return half the width of an interval; infinite where there is none."""
    if estimate.interval is None:
        return math.inf
    return float(estimate.interval[1] - estimate.interval[0]) / 2


def opened(estimate: Estimate, verdict: UpperEndShift) -> Estimate:
    """Move an interval's upper end as far as what Q has not shown may reach, and say why where that is infinite."""
    if estimate.interval is None:
        return estimate
    low, high = estimate.interval
    notes = (*estimate.notes, verdict.note) if verdict.note and bool(high.isfinite()) else estimate.notes
    return replace(estimate, interval=(low, high + verdict.reach), notes=notes)


def infinite_estimate(method: str, n: tuple[int, int], note: str, device: torch.device) -> Estimate:
    """Return an infinite divergence, and why it is."""
    infinity = torch.tensor(math.inf, dtype=torch.float64, device=device)
    return Estimate(infinity, None, method, (infinity, infinity), n, (note,), torch.zeros_like(infinity))
