"""Normal confidence intervals around estimates from draws."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kullback.estimate import Estimate

__all__ = ["normal_estimate", "note_on_sign", "standard_normal_quantile"]


def standard_normal_quantile(confidence: float) -> float:
    """Return half the width, in standard errors, of a two-sided normal interval."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(confidence, dtype=torch.float64)))


def note_on_sign(raw: float) -> list[str]:
    """Return a note on an estimate that was negative and is answered with 0; none for others."""
    if raw >= 0:
        return []
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
) -> Estimate:
    """Return a value with its normal interval, both cut off at 0, below which no divergence is."""
    reach = standard_normal_quantile(confidence) * error
    numbers = (max(raw, 0.0), error, max(raw - reach, 0.0), max(raw + reach, 0.0))
    value, spread, low, high = (torch.tensor(x, dtype=torch.float64, device=device) for x in numbers)
    notes = (*note_on_sign(raw), *notes)
    return Estimate(value, None, method, (low, high), n, notes, spread)
