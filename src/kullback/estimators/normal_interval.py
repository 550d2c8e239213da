"""Normal confidence intervals around estimates from draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kullback.estimators.draws import few_clusters
from kullback.estimators.unseen import UpperEndShift
from kullback.results.estimate import Estimate

# With a smaller standard error, a negative estimate shows that the divergence is nearly 0.
_SMALL = 0.05


def standard_normal_quantile(confidence: float) -> float:
    """Return half the width of a two-sided normal interval, in standard errors."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64, device="cpu")))


def quantile_of(confidence: float, groups: float | None = None) -> float:
    """Return half the width of a two-sided interval in standard errors, from Student's t for clusters."""
    quantile = standard_normal_quantile(confidence)
    return quantile if groups is None else quantile * few_clusters(groups, quantile)


def note_on_sign(raw: float, error: float = 0.0) -> list[str]:
    """Return a note on a negative estimate, which becomes 0; no note on others."""
    if raw >= 0:
        return []
    if error > _SMALL:
        spread = f"a standard error of {error:.2g}" if error < math.inf else "no standard error"
        return [
            f"The estimate is {raw:.2g}, with {spread}. It is replaced by 0, but the divergence may be larger."
        ]
    return [f"The estimate is {raw:.2g}, by chance for a divergence near 0. It is replaced by 0."]


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
    r"""Return a value with its normal interval, both cut off at 0.

    With the number of clusters as `groups`, the interval uses Student's t. An estimate below the divergence t by chance
    has
    a standard error that is too small: t's own variance is at least the square of the `constant` error plus `rate`
        times t.
    So the upper limit is at least the largest t with :math:`(\hat D - t)^2 \le z^2 (c^2 + r\, t)`, for :math:`\hat D`
    of at least 0.
    """
    reach = quantile_of(confidence, groups)
    high = raw + reach * error
    if rate > 0 and reach < math.inf:
        least, half = max(raw, 0.0), reach * rate / 2
        high = max(high, least + reach * (half + math.sqrt(constant**2 + rate * least + half**2)))
    numbers = (max(raw, 0.0), error, max(raw - reach * error, 0.0), max(high, 0.0))
    value, spread, low, high = (torch.tensor(x, dtype=torch.float64, device=device) for x in numbers)
    notes = (*note_on_sign(raw, error), *notes)
    return Estimate(value, None, method, (low, high), n, notes, spread)


def half_width(estimate: Estimate) -> float:
    """Return half the width of an interval; infinite if there is none."""
    if estimate.interval is None:
        return math.inf
    return float(estimate.interval[1] - estimate.interval[0]) / 2


def opened(estimate: Estimate, verdict: UpperEndShift) -> Estimate:
    """Raise an interval's upper limit as a verdict says, and add the verdict's note."""
    if estimate.interval is None:
        return estimate
    low, high = estimate.interval
    notes = (*estimate.notes, verdict.note) if verdict.note and bool(high.isfinite()) else estimate.notes
    return replace(estimate, interval=(low, high + verdict.reach), notes=notes)


def infinite_estimate(method: str, n: tuple[int, int], note: str, device: torch.device) -> Estimate:
    """Return an infinite divergence with a note on the reason."""
    infinity = torch.tensor(math.inf, dtype=torch.float64, device=device)
    return Estimate(infinity, None, method, (infinity, infinity), n, (note,), torch.zeros_like(infinity))
