"""How much farther each candidate is from the base than the previous candidate, also by group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from torch import Tensor

from kullback.common.streaming import Moments
from kullback.models.model_results import Candidate
from kullback.models.pairing import PairingSettings
from kullback.predictions.mean_intervals import RatioOfSums
from kullback.results.value import Value


def differences(results: Sequence[tuple[Candidate, Tensor]], settings: PairingSettings) -> list[Value[float]]:
    """Return the mean KL of each candidate minus the mean KL of the previous candidate, paired by the rows of both."""
    means: list[Value[float]] = []
    for (candidate, before), (following, after) in pairwise(results):
        common = min(len(before), len(after))  # a candidate whose place is clear may be read no further
        mean = _difference(after[:common] - before[:common], settings)
        means.append(with_open_ends(mean, candidate.is_open_above, following.is_open_above))
    return means


def differences_by_group(
    results: Sequence[tuple[Candidate, Tensor]], settings: PairingSettings
) -> dict[str, list[Value[float]]]:
    """Return `differences` over the rows of each group that all candidates have."""
    by_group: dict[str, list[Value[float]]] = {}
    for name, rows in ({} if settings.groups is None else settings.groups.masks()).items():
        in_group = [(candidate.in_group(name), kl[rows[: len(kl)]]) for candidate, kl in results]
        if all(len(kl) for _, kl in in_group):
            by_group[name] = differences(in_group, settings.of_rows(rows))
    return by_group


def with_open_ends(difference: Value[float], below: bool, above: bool) -> Value[float]:
    """Return a difference whose interval is open below, above, or on both sides, which is no interval."""
    if difference.interval is None or not (below or above):
        return difference
    low, high = difference.interval
    ends = None if below and above else (-math.inf if below else low, math.inf if above else high)
    return replace(difference, interval=ends, reason="not bounded")


def _difference(values: Tensor, settings: PairingSettings) -> Value[float]:
    moments = Moments()
    moments.add(values)
    estimator = settings.estimator()
    estimator.add(values[:, None])
    estimate = estimator.estimates([RatioOfSums(0)])[0]
    return Value(float(moments.mean), estimate.standard_error, estimate.interval, reason=estimate.reason)
