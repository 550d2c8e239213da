r"""Coordinates in which neighbors tell more, and what a Gaussian pilot says of the density inside their balls.

A smooth map of the draws leaves KL as it is, so each coordinate is mapped so that Q's draws look normal there: a
monotone spline through a few quantiles, generalized Pareto tails beyond. In these coordinates a Gaussian g is fitted
to each side. The k nearest in a ball B about x estimate the mean density of B; the density at x is that times
g(x) / mean of g over B. Where g is right the bias is gone, where the ball is small the factor is 1, whatever g is.

References:
    Nonparametric density estimation with a parametric start (Hjort and Glad, 1995)
    Parameter and Quantile Estimation for the Generalized Pareto Distribution (Hosking and Wallis, 1987)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kullback.estimators.knn.search import optional

__all__ = ["Frame", "Margin", "log_ball_volume"]

Array = np.ndarray[Any, np.dtype[np.float64]]

_KNOTS = 6
_TAIL = 0.05


class Margin:
    """A smooth, strictly increasing map of one coordinate under which given draws are about standard normal."""

    def __init__(self, draws: Array) -> None:
        special, interpolate = optional("special"), optional("interpolate")
        self._to_normal = special.ndtri_exp
        edge = -float(special.ndtri(_TAIL))
        z = np.linspace(-edge, edge, _KNOTS)
        at, kept = np.unique(np.quantile(draws, special.ndtr(z)), return_index=True)
        self._low, self._high = float(at[0]), float(at[-1])
        self._spline = interpolate.PchipInterpolator(at, z[kept])
        spread = (self._high - self._low) / _KNOTS
        self._upper = _tail(draws[draws > self._high] - self._high, spread)
        self._lower = _tail(self._low - draws[draws < self._low], spread)

    def __call__(self, x: Array) -> Array:
        """Return the mapped coordinate."""
        z = self._spline(np.clip(x, self._low, self._high))
        for sign, edge, tail in ((1.0, self._high, self._upper), (-1.0, self._low, self._lower)):
            outside = sign * (x - edge) > 0
            beyond = math.log(_TAIL) + _log_survival(np.abs(x[outside] - edge), *tail)
            z[outside] = -sign * self._to_normal(beyond)
        return z


def _tail(excess: Array, spread: float) -> tuple[float, float]:
    """Fit shape, not negative, and scale of a generalized Pareto tail by maximum likelihood over their ratio.

    Draws cut off at a value leave no tail to fit: `spread` is then the scale.
    """
    if not len(excess):
        return 0.0, spread
    mean = float(excess.mean())
    ratio = np.geomspace(1e-3, 1e3, 61) / float(np.median(excess))
    shape = np.log1p(ratio[:, None] * excess).mean(1)
    likelihood = np.log(ratio / shape) - shape
    best = int(likelihood.argmax())
    if best == 0 or likelihood[best] <= -math.log(mean) - 1:
        return 0.0, mean
    return float(shape[best]), float(shape[best] / ratio[best])


def _log_survival(excess: Array, shape: float, scale: float) -> Array:
    return -excess / scale if shape == 0 else -np.log1p(shape * excess / scale) / shape


class Frame:
    """An affine map of the draws, and the normal density that is standard after it."""

    def __init__(self, mean: Array, root: Array, furthest: float) -> None:
        self._mean, self._inverse, self._furthest = mean, np.linalg.inv(root), furthest
        self.log_volume = float(np.log(np.diag(root)).sum())

    @classmethod
    def of(cls, draws: Array, weights: Array | None) -> Frame:
        """Return the frame in which (weighted) draws have mean 0 and covariance 1."""
        covariance = np.atleast_2d(np.cov(draws.T, aweights=weights))
        root = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        mean = np.asarray(np.average(draws, axis=0, weights=weights), dtype=np.float64)
        furthest = float(np.square(cls(mean, root, math.inf)(draws)).sum(1).max())
        return cls(mean, root, furthest)

    def __call__(self, x: Array) -> Array:
        """Return draws in the coordinates of the frame."""
        return (x - self._mean) @ self._inverse.T

    def log_smoothing(self, x: Array, log_radius: Array) -> Array:
        """Return log(mean of g over a ball / g at its center x), x in the frame's coordinates.

        Beyond the draws that g was fitted to, nothing supports its tail: there it falls no steeper than at the last.
        """
        d = x.shape[1]
        square = np.minimum(np.square(x).sum(1), self._furthest)
        radius = np.exp(log_radius)
        mass = optional("special").chndtr(radius**2, d, square)
        log_density = -(d * math.log(2 * math.pi) + square) / 2
        # The mass is lost to underflow or rounding in balls so small that two terms of the expansion are exact.
        small = (radius**2 * (square + d) < 1e-4) | ~(mass > 1e-250)
        expansion = radius**2 * (square - d) / (2 * (d + 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                small, expansion, np.log(mass) - log_ball_volume(d) - d * log_radius - log_density
            )


def log_ball_volume(d: int) -> float:
    """Return the log-volume of the unit ball in d dimensions."""
    return d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)
