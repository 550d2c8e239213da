"""Densities from nearest neighbors: maps that make draws nearly Gaussian, and a Gaussian pilot density.

A smooth one-to-one map of the draws does not change KL. Each component is mapped by a monotone spline through a few
quantiles, with generalized Pareto tails, so that Q's draws are nearly normal. After this map, a Gaussian density g is
fitted to each side. Let B be the ball about a point x that contains the k nearest draws. The number of draws and the
volume of B give an estimate of the mean density in B. The estimate of the density at x is this mean density times
g(x) / (mean of g over B). If g is the true density, the bias of this estimate is 0. In a small ball, the factor is near
1 for any g.

References:
    Nonparametric density estimation with a parametric start (Hjort and Glad, 1995)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kullback.common.inference import normal_quantile, normal_scores, student_quantile
from kullback.common.special import HALF_LOG_2PI
from kullback.estimators.draws import Array, Integers
from kullback.estimators.tails import fit_tail

# `benchmarks/bench_neighbors.py` and `benchmarks/coverage.py` check these constants.

# The spline interpolates `_KNOTS` quantiles. Each Pareto tail has the proportion `_TAIL` of the draws.
_KNOTS = 6
_TAIL = 0.05
# Student's t distributions with these degrees of freedom are fitted to each component; infinitely many degrees of
# freedom give the Gaussian. To limit the time, at most about `_ENOUGH_TO_MATCH` draws are used for the fit.
_DOFS = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, np.inf)
_ENOUGH_TO_MATCH = 10_000


class MarginalGaussianization:
    """A smooth, strictly increasing map of one component that makes the given draws nearly standard normal."""

    def __init__(self, draws: Array) -> None:
        from scipy import interpolate, special

        self._to_normal = special.ndtri_exp
        edge = -normal_quantile(_TAIL)
        z = np.linspace(-edge, edge, _KNOTS)
        at, first = np.unique(np.quantile(draws, special.ndtr(z)), return_index=True)
        self._low, self._high = float(at[0]), float(at[-1])
        self._spline = interpolate.PchipInterpolator(at, z[first])
        spread = (self._high - self._low) / _KNOTS
        self._upper = fit_tail(draws[draws > self._high] - self._high, spread)
        self._lower = fit_tail(self._low - draws[draws < self._low], spread)

    def __call__(self, x: Array) -> Array:
        """Return the image of each value of x, in the shape of x."""
        z = self._spline(np.clip(x, self._low, self._high))
        for sign, edge, tail in ((1.0, self._high, self._upper), (-1.0, self._low, self._lower)):
            outside = sign * (x - edge) > 0
            survival = math.log(_TAIL) + tail.log_survival(np.abs(x[outside] - edge))
            z[outside] = -sign * self._to_normal(survival)
        return z


def with_normal_margins(p: Array, q: Array) -> tuple[Array, Array]:
    """Return P's and Q's draws after a map of each component that makes Q's draws about normal."""
    both = np.empty_like(p), np.empty_like(q)
    for j in range(p.shape[1]):
        to_normal = MarginalGaussianization(q[:, j])
        for target, source in zip(both, (p, q), strict=True):
            target[:, j] = to_normal(source[:, j])
    return both


class Whitening:
    """An affine map of draws, and the normal density g with the mean and the covariance of these draws.

    After the map, the draws have mean 0 and the identity as covariance, and g is the standard normal density.
    """

    def __init__(self, mean: Array, root: Array, farthest: float) -> None:
        self._mean, self._inverse, self._farthest = mean, np.linalg.inv(root), farthest
        self.log_volume = float(np.log(np.diag(root)).sum())

    @classmethod
    def of(cls, draws: Array, weights: Array | None) -> Whitening:
        """Return the whitening that gives the (weighted) draws mean 0 and the identity as covariance."""
        covariance = np.atleast_2d(np.cov(draws.T, aweights=weights))
        root = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
        mean = np.asarray(np.average(draws, axis=0, weights=weights), dtype=np.float64)
        farthest = float(np.square(cls(mean, root, math.inf)(draws)).sum(1).max())
        return cls(mean, root, farthest)

    def __call__(self, x: Array) -> Array:
        """Return the image of the draws x, their whitened coordinates."""
        return (x - self._mean) @ self._inverse.T

    def log_smoothing(self, x: Array, log_radius: Array) -> Array:
        """Return log(mean of g over a ball / g(x)) for balls with centers x and log-radii, in whitened coordinates.

        The tail of g beyond the most distant draw is an extrapolation, so the norm of this draw limits |x|.
        """
        from scipy.special import chndtr

        d = x.shape[1]
        square = np.minimum(np.square(x).sum(1), self._farthest)
        radius = np.exp(log_radius)
        mass = chndtr(radius**2, d, square)
        log_density = -square / 2 - d * HALF_LOG_2PI
        # For small balls, the mass of g in the ball underflows or loses its digits. Two terms of the expansion in the
        # radius then give the full precision.
        small = (radius**2 * (square + d) < 1e-4) | ~(mass > 1e-250)
        expansion = radius**2 * (square - d) / (2 * (d + 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                small, expansion, np.log(mass) - log_ball_volume(d) - d * log_radius - log_density
            )


def log_ball_volume(d: int) -> float:
    """Return the log-volume of the unit ball in d dimensions."""
    return d / 2 * math.log(math.pi) - math.lgamma(d / 2 + 1)


class FlatError(Exception):
    """An internal error: the draws are in a plane of fewer dimensions than they have components."""


def gaussianized(x: Array, weights: Array) -> tuple[Array, Array]:
    """Return nearly Gaussian, uncorrelated coordinates z, and the log-determinant of the map's Jacobian at each draw.

    The distribution function of a fitted Student's t and the normal quantile function map each component. A linear map
    then removes the correlations.
    """
    columns, log_derivatives = zip(
        *(_gaussianized_coordinate(column, weights) for column in x.T), strict=True
    )
    z = np.stack(columns, axis=1)
    z = z - np.average(z, axis=0, weights=weights)
    covariance = (z * (weights / weights.sum())[:, None]).T @ z
    scales = np.sqrt(np.diag(covariance))
    if not (scales > 0).all() or np.linalg.cond(covariance / np.outer(scales, scales)) > 1e14:
        raise FlatError
    root = np.linalg.cholesky(covariance)
    z = np.linalg.solve(root, z.T).T
    return z, np.sum(log_derivatives, axis=0) - np.log(np.diag(root)).sum()


def _gaussianized_coordinate(column: Array, weights: Array) -> tuple[Array, Array]:
    """Return a component after the map from a fitted Student's t to the Gaussian, and the map's log-derivative."""
    from scipy import special

    stride = -(-len(column) // _ENOUGH_TO_MATCH)
    some, counted = column[::stride], weights[::stride]
    quartiles = np.quantile(some, [0.25, 0.5, 0.75], weights=counted, method="inverted_cdf")
    best, dof, center, scale = -np.inf, np.inf, 0.0, 1.0
    for trial in _DOFS:
        if np.isinf(trial):
            middle = float(np.average(some, weights=counted))
            width = float(np.sqrt(np.average((some - middle) ** 2, weights=counted)))
        else:
            middle = float(quartiles[1])
            width = float(quartiles[2] - quartiles[0]) / (2 * student_quantile(0.75, trial))
        if width <= 0:
            continue
        fit = float(np.average(_log_student((some - middle) / width, trial), weights=counted)) - np.log(width)
        if fit > best:
            best, dof, center, scale = fit, trial, middle, width
    if best == -np.inf:
        raise FlatError
    u = (column - center) / scale
    if np.isinf(dof):
        return u, np.full(len(u), -np.log(scale))
    mapped = -np.sign(u) * normal_scores(special.stdtr(dof, -np.abs(u)))
    return mapped, _log_student(u, dof) - np.log(scale) - _log_student(mapped, np.inf)


def _log_student(u: Array, dof: float) -> Array:
    """Return the log-density of Student's t at u; for dof = inf, the log-density of the standard Gaussian."""
    from scipy.special import gammaln

    if np.isinf(dof):
        return -(u**2) / 2 - HALF_LOG_2PI
    half = (dof + 1) / 2
    constant = gammaln(half) - gammaln(dof / 2) - 0.5 * np.log(dof * np.pi)
    return np.asarray(constant - half * np.log1p(u**2 / dof), dtype=np.float64)


# `benchmarks/coverage.py` checks these constants: on hard pairs, 95 % intervals must have a coverage of 93 % or more.

# A search handles this number of queries at a time, which limits the memory.
_BLOCK = 20_000
# For draws with clusters, the estimate is the mean over this number of random choices of one draw from each cluster.
_CHOICES = 4


class LocalDensity(NamedTuple):
    """Estimates of log p at each draw for two numbers of neighbors, shape (n, 2); infinite at an atom.

    `log_weights` is the logarithm of the mean weight of each draw's neighbors, relative to the mean of all weights,
    shape (n,). It is included in `logs` if the weights depend on the position of the draws; otherwise it is 0.
    """

    logs: Array
    log_weights: Array
    weights_vary: bool


def local_log_density(
    x: Array,
    numbers: tuple[int, int],
    weights: Array | None = None,
    cluster: Integers | None = None,
    rng: np.random.Generator | None = None,
    weights_vary: bool | None = None,
) -> LocalDensity:
    """Return estimates of log p at each draw, for two numbers of neighbors, as a `LocalDensity`.

    With clusters, the result is the mean over random choices of one draw from each other cluster, weighted by its size.

    If the weights depend on position, the density is multiplied by the mean weight of a draw's neighbors. Otherwise,
    this factor would add a bias, because the logarithm of a mean of few weights is too low. So it is used only if it
    increases the likelihood of the draws under the density from their neighbors, or if `weights_vary`.
    """
    n = len(x)
    own = np.ones(n) if weights is None else weights / weights.mean()
    z, log_volume = gaussianized(x, np.ones(n) if weights is None else weights)
    if cluster is None:
        everyone = np.arange(n)
        logs, log_weights, excess = _densities_among(z, everyone, everyone, numbers, own)
    else:
        counted = np.bincount(cluster)[cluster] * own
        rng = rng or np.random.default_rng()
        logs, log_weights, excess = np.zeros((n, 2)), np.zeros(n), 0.0
        for _ in range(_CHOICES):
            order = rng.permutation(n)
            chosen = order[np.unique(cluster[order], return_index=True)[1]]
            for_choice = _densities_among(z, chosen, cluster, numbers, counted)
            logs, log_weights = logs + for_choice[0], log_weights + for_choice[1]
            excess += for_choice[2] / _CHOICES
        logs, log_weights = logs / _CHOICES, log_weights / _CHOICES
    if weights_vary is None:
        weights_vary = float(own @ log_weights) / n > excess
    log_weights = log_weights if weights_vary else np.zeros(n)
    return LocalDensity(logs + (log_volume + log_weights)[:, None], log_weights, weights_vary)


def _densities_among(
    z: Array, chosen: Integers, units: Integers, numbers: tuple[int, int], weights: Array
) -> tuple[Array, Array, float]:
    """Return log-densities at the points z from their neighbors among `chosen`, and the logarithms of the mean weights.

    `units` has the number of each point's cluster, or of the point itself. The last result is the logarithm of the
    chosen points' average of the mean weight, 0 if these have mean 1, like the values of a density ratio.
    """
    from scipy import special
    from scipy.spatial import KDTree

    n, d = z.shape
    tree = KDTree(z[chosen])
    ball = d / 2 * np.log(np.pi) - special.gammaln(d / 2 + 1)
    logs, log_weights = np.empty((n, 2)), np.zeros(n)
    is_uneven = np.ptp(weights[chosen]) > 0
    for start in range(0, n, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, n))
        distances, index = tree.query(z[rows], numbers[1] + 1)
        near = chosen[index]
        # The search returns one extra neighbor. If a neighbor is from the query's own unit, this neighbor is left out.
        # Otherwise, the most distant neighbor is left out.
        others = units[near] != units[rows][:, None]
        others[others.all(1), -1] = False
        distances = distances[others].reshape(len(rows), -1)
        with np.errstate(divide="ignore"):
            logs[rows] = -ball - d * np.log(distances[:, [numbers[0] - 1, numbers[1] - 1]])
        if is_uneven:
            local = weights[near[others]].reshape(len(rows), -1).mean(axis=1) / weights[chosen].mean()
            log_weights[rows] = np.log(np.where(local > 0, local, 1))
    excess = float(special.logsumexp(log_weights[chosen])) - math.log(len(chosen)) if is_uneven else 0.0
    return logs + special.digamma(np.asarray(numbers)) - special.digamma(len(chosen)), log_weights, excess
