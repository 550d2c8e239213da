"""Tails of draws: how heavy they are, and generalized Pareto distributions fitted beyond a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kullback.control_variate import tail_index
from kullback.estimators.draws import Array

__all__ = ["ParetoTail", "fit_tail", "heaviness"]


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
    """A generalized Pareto distribution of what lies beyond a threshold, its shape not negative."""

    shape: float
    scale: float

    def log_survival(self, beyond: Array) -> Array:
        """Return the log-probability of lying farther beyond the threshold."""
        if self.shape == 0:
            return -beyond / self.scale
        return -np.log1p(self.shape * beyond / self.scale) / self.shape


def fit_tail(beyond: Array, spread: float) -> ParetoTail:
    """Fit a tail to distances beyond a threshold by maximum likelihood over the ratio of shape and scale.

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
