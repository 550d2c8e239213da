"""A check of the estimate from neighbors, by a regression on the features of `logistic.spreads`.

The components of P and of Q may have equal margins, while large components occur together in P but not in Q. For
example, P may have one random scale for all components, and Q one random scale for each component. In four or more
dimensions, the balls around draws may be too large to show such a difference, for any number of neighbors. A logistic
regression on a few features shows the difference.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kullback.estimators.draws import Draws
from kullback.estimators.knn.pilot import with_normal_margins
from kullback.estimators.logistic import Labeled, mean_over_p, number_of_spreads, ridge_logistic, spreads

# `benchmarks/coverage.py` checks these constants on draws with one scale for all components and on Student's t.

# The regression needs at least `_FEWEST_DIMENSIONS` dimensions, and `_DRAWS_FOR_FEATURE` draws of each side for each
# feature. The regression uses at most `_MOST_DRAWS` draws of each side.
_FEWEST_DIMENSIONS, _DRAWS_FOR_FEATURE, _MOST_DRAWS = 4, 5, 5000
# The penalty is this number times half the sum of the squared coefficients of the standardized features.
_PENALTY = 10.0


class JointShape(NamedTuple):
    """The estimate of KL by the regression on the features of `spreads`, and the standard error of this estimate."""

    value: float
    error: float


def joint_shape(p: Draws, q: Draws) -> JointShape | None:
    """Return an estimate of KL from a regression on the features of `spreads`; None for too few dimensions or draws.

    Each draw, or cluster, is evaluated by a fit to the other half, so overfitting does not raise the value. It is too
    low if the features do not show the whole difference.
    """
    d = p.x.shape[1]
    if d < _FEWEST_DIMENSIONS or min(len(p), len(q)) < _DRAWS_FOR_FEATURE * number_of_spreads(d):
        return None
    rng = np.random.default_rng(0)
    p, q = (side.thinned(_MOST_DRAWS, rng) for side in (p, q))
    p, q = p.taken(p.order), q.taken(q.order)
    features = spreads(np.ascontiguousarray(np.concatenate(with_normal_margins(p.x, q.x))))
    features = (features - features.mean(0)) / np.maximum(features.std(0), np.finfo(float).tiny)
    draws = Labeled.of(p, q, features)
    half = (rng.permutation(int(draws.units.max()) + 1) % 2)[draws.units]
    log_odds = np.empty(len(features))
    for out in (half == 0, half == 1):
        coefficients = ridge_logistic(features[~out], draws.take(~out), _PENALTY)
        log_odds[out] = coefficients[0] + features[out] @ coefficients[1:]
    value, influence = mean_over_p(log_odds, draws)
    return JointShape(value, math.sqrt(p.variance(influence[: len(p)]) + q.variance(influence[len(p) :])))
