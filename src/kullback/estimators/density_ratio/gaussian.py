r"""KL between two Gaussians from draws: an unbiased estimate, with the influence of each draw.

Let :math:`\delta` be the difference of the sample means, and :math:`S_p` and :math:`S_q` the sample covariances of n
draws of P and m draws of Q with d components. The estimate is

.. math::
    \tfrac12\big[\tfrac{m - d - 2}{m - 1} (\mathrm{tr}\, S_q^{-1} S_p + \delta^\top S_q^{-1} \delta) - d
    + \log|S_q| - \log|S_p|\big]

minus two biases. The bias of :math:`\delta^\top S_q^{-1} \delta` comes from the sampling errors of the means. The
bias of the log-determinants comes from the sampling errors of the covariances. Both biases are known exactly, because
the mean inverse and the mean log-determinant of a Wishart matrix are known.

An Introduction to Multivariate Statistical Analysis, section 7 (Anderson, 2003)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kullback.estimators.draws import Array

# If the smallest eigenvalue of the correlation matrix is below this number, the draws count as draws in a plane, and an
# error is raised.
_FLAT = 1e-12


@dataclass(frozen=True)
class GaussianKL:
    """The unbiased estimate of KL, and the influence of each draw of P and of Q on the estimate."""

    value: float
    influence_p: Array
    influence_q: Array


def gaussian_kl(x: Array, y: Array, w: Array, v: Array, n: float, m: float) -> GaussianKL:
    """Return the estimate of KL between Gaussians.

    Arguments:
        x: draws of P, shape (draws, d).
        y: draws of Q, shape (draws, d).
        w: the weights of P's draws.
        v: the weights of Q's draws.
        n: the effective sample size of P's draws.
        m: the effective sample size of Q's draws.
    """
    d = x.shape[1]
    mean_p, covariance_p = _moments(x, w, n)
    mean_q, covariance_q = _moments(y, v, m)
    precision, precision_p = _inverse(covariance_q), _inverse(covariance_p)
    shift = mean_p - mean_q
    shrink = (m - d - 2) / (m - 1)
    trace = float(np.sum(precision * covariance_p)) * shrink
    square = float(shift @ precision @ shift) * shrink - trace / n - d / m
    log_determinants = _log_determinant(covariance_q, m) - _log_determinant(covariance_p, n)
    value = 0.5 * (trace + square - d + log_determinants)

    from_mean_p, from_mean_q = x - mean_p, x - mean_q
    inside = _squares(from_mean_q, precision) - _squares(from_mean_p, precision_p)
    z = y - mean_q
    u = z @ precision
    outside = _squares(z, precision) - _squares(u, covariance_p + np.outer(shift, shift))
    influence_p = w / w.sum() * (0.5 * (inside - np.average(inside, weights=w)))
    influence_q = v / v.sum() * (0.5 * (outside - np.average(outside, weights=v)) - u @ shift)
    return GaussianKL(value, influence_p, influence_q)


def gaussian_log_odds(x: Array, y: Array, w: Array, v: Array) -> Callable[[Array], Array]:
    """Return the function log(p / q) of the predictive densities for draws x and y with weights w and v.

    The predictive densities are Student's t densities, which allow for sampling errors of the means and covariances.

    Bayesian Data Analysis, section 3.6 (Gelman et al., 2013)
    """
    p, q = _predictive(x, w), _predictive(y, v)
    return lambda at: p(at) - q(at)


def _predictive(x: Array, w: Array) -> Callable[[Array], Array]:
    from scipy.stats import multivariate_t

    n, d = float(w.sum() ** 2 / (w**2).sum()), x.shape[1]
    mean, covariance = _moments(x, w, n)
    dof = max(n - d, 1.0)
    scale = covariance * (n - 1) / dof * (1 + 1 / n)
    predictive = multivariate_t(mean, scale, df=dof)
    return lambda at: np.asarray(predictive.logpdf(at), dtype=np.float64).reshape(len(at))


def _moments(x: Array, w: Array, n: float) -> tuple[Array, Array]:
    mean = np.average(x, axis=0, weights=w)
    centered = x - mean
    covariance = (centered * (w / w.sum())[:, None]).T @ centered * n / (n - 1)
    scale = np.sqrt(np.maximum(np.diag(covariance), np.finfo(np.float64).tiny))
    if float(np.linalg.eigvalsh(covariance / np.outer(scale, scale))[0]) < _FLAT:
        raise np.linalg.LinAlgError
    return mean, covariance


def _inverse(covariance: Array) -> Array:
    return np.asarray(np.linalg.inv(covariance), dtype=np.float64)


def _squares(z: Array, matrix: Array) -> Array:
    return np.einsum("ij,ij->i", z @ matrix, z)


def _log_determinant(covariance: Array, n: float) -> float:
    """Return the log-determinant of a sample covariance from n draws, minus the bias of this log-determinant."""
    from scipy.special import digamma

    d = len(covariance)
    bias = float(digamma((n - np.arange(1, d + 1)) / 2).sum()) + d * np.log(2 / (n - 1))
    return float(np.linalg.slogdet(covariance)[1]) - bias
