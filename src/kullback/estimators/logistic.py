"""Logistic regression on the labeled draws of P and Q, its calibration, and the mean log-ratio over P."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from kullback.common.arrays import Flags
from kullback.estimators.draws import Array, Draws, Integers

# Newton's method takes at most this number of steps, and stops earlier if the loss no longer decreases.
_MOST_STEPS = 50


@dataclass(frozen=True)
class Labeled:
    """The n draws of P and the m draws of Q, shape (n + m, d), with the side, the weight and the unit of each draw.

    The weights of P's draws sum to n, and the weights of Q's draws to m. A unit is a cluster or a single draw.
    """

    x: Array
    from_p: Flags
    weights: Array
    units: Integers

    @classmethod
    def of(cls, p: Draws, q: Draws, x: Array | None = None) -> Labeled:
        """Return the pooled draws of both sides, or the points x in their place."""
        return cls(
            np.concatenate([p.x, q.x]) if x is None else x,
            np.arange(len(p) + len(q)) < len(p),
            np.concatenate([side.shares * len(side) for side in (p, q)]),
            np.concatenate([p.units, q.units + p.groups]),
        )

    def take(self, chosen: np.ndarray[Any, Any]) -> Labeled:
        """Return the draws with the indices `chosen` or, if `chosen` is a mask, the draws in the mask."""
        return Labeled(self.x[chosen], self.from_p[chosen], self.weights[chosen], self.units[chosen])

    @property
    def log_prior_odds(self) -> float:
        """The prior log-odds log(n / m) for n draws of P and m of Q; adding log(p / q) gives the log-odds of a draw."""
        return float(np.log(self.weights[self.from_p].sum() / self.weights[~self.from_p].sum()))


def log_loss(log_odds: Array, draws: Labeled) -> Array:
    """Return the loss of each draw, shape (n,): minus the logarithm of the estimated probability of its side."""
    return np.logaddexp(0, np.where(draws.from_p, -log_odds, log_odds))


def calibrated(log_odds: Array, draws: Labeled) -> tuple[Array, Array, Array]:
    """Return calibrated log-odds a + b f, where f is `log_odds`, centered and scaled, and b >= 0, fitted to the labels.

    The other results are the influence of each draw on (a, b) and the features (1, f), both of shape (N, 2).

    Probabilistic Outputs for Support Vector Machines (Platt, 1999)
    """
    scale = max(float(np.std(log_odds)), 1e-12)
    features: Array = np.stack([np.ones_like(log_odds), (log_odds - log_odds.mean()) / scale], axis=1)
    labels, weights = draws.from_p.astype(float), draws.weights
    coefficients: Array = np.array([draws.log_prior_odds, 0.0])
    ridge: Array = np.array([1e-9, 1e-6])
    loss = _penalized_loss(coefficients, features, draws, ridge)
    hessian = np.eye(2)
    for _ in range(100):
        probability = logistic(features @ coefficients)
        hessian = (features * (weights * probability * (1 - probability))[:, None]).T @ features + np.diag(
            ridge
        )
        gradient = features.T @ (weights * (probability - labels)) + ridge * coefficients
        step, length = np.linalg.solve(hessian, gradient), 1.0
        while (after := _penalized_loss(coefficients - length * step, features, draws, ridge)) > loss:
            length /= 2
            if length < 1e-6:
                break
        if not after < loss - 1e-12 * abs(loss):
            break
        coefficients, loss = coefficients - length * step, after
    if coefficients[1] < 0:
        coefficients = np.array([draws.log_prior_odds, 0.0])
    probability = logistic(features @ coefficients)
    influence = ((weights * (labels - probability))[:, None] * features) @ np.linalg.inv(hessian)
    return features @ coefficients, influence, features


def mean_over_p(raw: Array, draws: Labeled) -> tuple[float, Array]:
    """Return the mean over P of the calibrated log-ratio from the log-odds `raw`, and each draw's influence on it."""
    log_odds, influence, features = calibrated(raw, draws)
    w = np.where(draws.from_p, draws.weights, 0)
    w = w / w.sum()
    ratio = log_odds - draws.log_prior_odds
    value = float(w @ ratio)
    total = w * (ratio - value) + influence @ (w @ features)
    # The numbers of draws of P and Q are fixed, not random. So the mean influence of each side is subtracted, because
    # it does not contribute to the variance.
    for side in (draws.from_p, ~draws.from_p):
        total[side] -= draws.weights[side] * total[side].sum() / draws.weights[side].sum()
    return value, total


def ridge_logistic(features: Array, draws: Labeled, penalty: float) -> Array:
    """Return the intercept and coefficients that minimize the loss plus `penalty` / 2 times their squares."""
    x: Array = np.concatenate([np.ones((len(features), 1)), features], axis=1)
    labels, weights = draws.from_p.astype(float), draws.weights
    ridge = np.full(x.shape[1], penalty)
    ridge[0] = 1e-9
    coefficients = np.zeros(x.shape[1])
    coefficients[0] = draws.log_prior_odds
    loss = _penalized_loss(coefficients, x, draws, ridge)
    for _ in range(_MOST_STEPS):
        probability = logistic(x @ coefficients)
        curvature = weights * probability * (1 - probability)
        gradient = x.T @ (weights * (probability - labels)) + ridge * coefficients
        step = np.linalg.solve((x * curvature[:, None]).T @ x + np.diag(ridge), gradient)
        length, after = 1.0, math.inf
        while (
            length > 1e-4
            and not (after := _penalized_loss(coefficients - length * step, x, draws, ridge)) < loss
        ):
            length /= 2
        if not after < loss:
            break
        coefficients, gained, loss = coefficients - length * step, loss - after, after
        if gained < 1e-7 * len(x):
            break
    return coefficients


def _penalized_loss(coefficients: Array, features: Array, draws: Labeled, ridge: Array) -> float:
    losses = log_loss(features @ coefficients, draws)
    return float(draws.weights @ losses + 0.5 * ridge @ coefficients**2)


def logistic(x: Array) -> Array:
    """Return the probabilities with the log-odds x."""
    return np.exp(-np.logaddexp(0, -x))


def spreads(x: Array) -> Array:
    """Return features of the scaled draws x that ignore the signs of components and show joint large ones.

    These are log(1 + x_i^2), products of two of these, the radius |x|, and powers of its logarithm.
    """
    log_squares = np.log1p(x * x)
    first, second = np.triu_indices(x.shape[1])
    radius = np.sqrt((x * x).sum(1, keepdims=True))
    log_radius = np.log(radius + 0.1)
    powers = [log_radius**power for power in (1, 2, 3)]
    return np.concatenate(
        [log_squares, log_squares[:, first] * log_squares[:, second], *powers, radius], axis=1
    )


def number_of_spreads(d: int) -> int:
    """Return the number of features of `spreads` in d dimensions."""
    return d + d * (d + 1) // 2 + 4
