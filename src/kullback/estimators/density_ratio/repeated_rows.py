"""Draws with equal coordinates: their sides show how much of log(p / q) the classifiers miss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kullback.common.inference import two_sided_quantile
from kullback.estimators.draws import Array, Integers
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Shift
from kullback.estimators.logistic import Labeled, logistic

# `benchmarks/coverage.py` checks the constants of this file on vectors of ten bits, and
# `tests/estimators/density_ratio/test_repeated_rows.py` on log-ratios that classifiers miss.

# If a smaller proportion of the draws has the coordinates of another draw, the draws do not show how much the
# classifiers miss.
LEAST_SHARE = 0.25
# If the missed part of KL exceeds this many standard errors, the upper limit is infinite.
_SIGNIFICANT = 1.645
# Rows with at most this many draws represent the rows with a single draw.
_RARE = 3


def share_of_repeated(x: Array, units: Integers) -> float:
    """Return the proportion of the draws x, shape (n, d), that have the coordinates of a draw of another unit."""
    rows = np.unique(x, axis=0, return_inverse=True)[1].reshape(-1)
    with_units = np.bincount(np.unique(np.stack([rows, units]), axis=1)[0])
    return float((with_units[rows] > 1).mean())


def missed(draws: Labeled, halves: Sequence[Integers], log_odds: Sequence[Array], confidence: float) -> Shift:
    r"""Return the part of KL that the log-odds may miss, by the sides of draws with equal coordinates.

    .. math:: R = \frac12 \sum_i \frac{w_i}{c_i^2 (1 - c_i)^2}
        \operatorname*{mean}_{j \ne k \in i} (y_j - c_j) (y_k - c_k)

    The draws j and k have the coordinates i, and y = 1 for draws of P. The classifier gives them the probability c of
    P. The weights w are the shares of P. If the log-ratio is wrong by :math:`\delta`, R estimates
    :math:`\frac12 \sum_i p_i \delta_i^2`, the divergence of second order.

    Classifiers are fitted to halves of the draws. Their errors add a bias to pairs of the same half. Pairs of different
    halves get twice this bias with the other sign. So pairs of the same half count twice. Pairs of draws of the same
    unit are left out. For each split, `halves` has the half of each draw, 0 or 1. `log_odds` has the calibrated
    log-odds of each draw by a fit to the other half.
    """
    rows = np.unique(draws.x, axis=0, return_inverse=True)[1].reshape(-1)
    weights, of_p = draws.weights, [logistic(one) for one in log_odds]
    mean_of_p = np.mean(of_p, axis=0)
    total = np.bincount(rows, weights)
    pairs = total**2 - _squares(_by_unit(weights, draws.units, rows))
    is_paired = pairs > 1e-9 * total**2
    mass = np.bincount(rows, weights * mean_of_p)
    middle = np.clip(mass / total, 1e-9, 1 - 1e-9)
    is_rare = is_paired & (np.bincount(rows) <= _RARE)
    alone = float(mass[~is_paired].sum())
    if not is_paired.any() or (alone > 0 and not is_rare.any()):
        return _unknown(0.0)
    share = np.where(is_paired, mass, 0.0)
    share[is_rare] *= 1 + alone / mass[is_rare].sum() if alone else 1.0
    factor = share / share.sum() / np.where(is_paired, pairs, 1.0) / (middle * (1 - middle)) ** 2 / 2
    values: list[float] = []
    for half, probability in zip(halves, of_p, strict=True):
        excess = weights * (draws.from_p - probability)
        one, other = (np.bincount(rows, excess * (half == number), len(total)) for number in (0, 1))
        own = _squares(_by_unit(excess, draws.units, rows))
        values.append(float(factor @ (one**2 + other**2 + (one + other) ** 2 - 2 * own)) / 1.5)
    value = float(np.mean(values))
    # If the classifiers are right, the products of the pairs have mean 0 and are uncorrelated.
    sums = _by_unit(weights * (draws.from_p - mean_of_p), draws.units, rows) * np.sqrt(factor)
    own = _squares(sums.T)
    error = math.sqrt(2 * max(float((sums.T @ sums).power(2).sum() - own @ own), 0.0))
    if value > _SIGNIFICANT * error:
        return _unknown(value)
    nats = max(value + two_sided_quantile(confidence) * error, 0.0)
    paired = 100 * float(mass[is_paired].sum() / mass.sum())
    note = (
        f"The classifiers may miss a part of log(p / q). The upper limit is larger by {nats:.2g} for it, by the "
        f"{paired:.3g} % of {SIDE_P}'s samples whose coordinates occur again."
    )
    return Shift(nats, note)


def _by_unit(terms: Array, units: Integers, rows: Integers) -> Any:
    """Return the sums of the draws' terms over each unit and row, a sparse array of shape (units, rows)."""
    from scipy.sparse import csr_array

    return csr_array((terms, (units, rows)))


def _squares(sums: Any) -> Array:
    """Return the sum of the squares of each column of a sparse array."""
    return np.asarray(sums.power(2).sum(0)).reshape(-1)


def _unknown(value: float) -> Shift:
    note = (
        f"Samples of {SIDE_P} and {SIDE_Q} with equal coordinates show that the classifiers miss about {value:.2g} "
        "nats: the value is too low, and the upper limit is infinite."
        if value
        else "Too few samples have equal coordinates to show the error of the classifiers: the upper limit is infinite."
    )
    return Shift(math.inf, note)
