"""How much farther each candidate is from the base than the previous candidate."""

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
        open_ends = candidate.is_open_above, following.is_open_above
        if any(open_ends) and mean.interval is not None:
            low, high = mean.interval
            ends = -math.inf if open_ends[0] else low, math.inf if open_ends[1] else high
            mean = replace(mean, interval=None if all(open_ends) else ends, reason="not bounded")
        means.append(mean)
    return means


def _difference(values: Tensor, settings: PairingSettings) -> Value[float]:
    moments = Moments()
    moments.add(values)
    estimator = settings.estimator()
    estimator.add(values[:, None])
    estimate = estimator.estimates([RatioOfSums(0)])[0]
    return Value(float(moments.mean), estimate.standard_error, estimate.interval, reason=estimate.reason)
