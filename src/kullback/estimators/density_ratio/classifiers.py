r"""The candidate classifiers of `density_ratio`, fitted to labeled draws, their log-odds, and what these miss.

One classifier is the ratio of two Gaussian densities. Their KL has an unbiased estimate. P has n draws and Q has m
draws, with d components. Let :math:`\delta` be the difference of the sample means, and :math:`S_p` and :math:`S_q` the
sample covariances. The estimate is

.. math::
    \tfrac12\big[\tfrac{m - d - 2}{m - 1} (\mathrm{tr}\, S_q^{-1} S_p + \delta^\top S_q^{-1} \delta) - d
    + \log|S_q| - \log|S_p|\big]

minus two biases. The bias of :math:`\delta^\top S_q^{-1} \delta` comes from the sampling errors of the means. The
bias of the log-determinants comes from the sampling errors of the covariances. Both biases are known exactly, because
the mean inverse and the mean log-determinant of a Wishart matrix are known.

An Introduction to Multivariate Statistical Analysis, section 7 (Anderson, 2003)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from kullback.common.inference import two_sided_quantile
from kullback.common.optional import load
from kullback.errors import invalid_type, safe_repr
from kullback.estimators.draws import Array, Integers
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Shift
from kullback.estimators.logistic import Labeled, logistic, number_of_spreads, ridge_logistic, spreads
from kullback.estimators.registry import seeded

# If the smallest eigenvalue of the correlation matrix is below this number, the draws count as draws in a plane, and an
# error is raised.
_FLAT = 1e-12


def gaussian_kl(x: Array, y: Array, w: Array, v: Array, n: float, m: float) -> tuple[float, Array, Array]:
    """Return the unbiased estimate of KL between Gaussians, and the influence of each draw of P and of Q on it.

    P's draws x and Q's draws y have the weights w and v, and the effective sample sizes n and m.
    """
    d = x.shape[1]
    mean_p, covariance_p = _moments(x, w, n)
    mean_q, covariance_q = _moments(y, v, m)
    precision, precision_p = (
        np.linalg.inv(covariance).astype(np.float64) for covariance in (covariance_q, covariance_p)
    )
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
    return value, influence_p, influence_q


def gaussian_log_odds(x: Array, y: Array, w: Array, v: Array) -> Callable[[Array], Array]:
    """Return log(p / q) of the predictive densities, Student's t, which allow for sampling errors of the moments.

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


def _squares(z: Array, matrix: Array) -> Array:
    return np.einsum("ij,ij->i", z @ matrix, z)


def _log_determinant(covariance: Array, n: float) -> float:
    """Return the log-determinant of a sample covariance from n draws, minus the bias of this log-determinant."""
    from scipy.special import digamma

    d = len(covariance)
    bias = float(digamma((n - np.arange(1, d + 1)) / 2).sum()) + d * np.log(2 / (n - 1))
    return float(np.linalg.slogdet(covariance)[1]) - bias


LogOdds = Callable[[Array], Array]

GAUSSIAN = "Gaussian densities"
SPREADS = "quadratic logistic regression of spreads"

# `benchmarks/bench_samples.py` measures the errors of the estimates with these constants.

# A regression has fewer features than this number, and fewer features than P or Q has draws.
_MOST_FEATURES = 1500
# Above this number of dimensions, there is no regression of asinh-scaled coordinates, because splines with products are
# also suitable for heavy tails.
_MOST_ASINH = 10
# The regression `SPREADS` uses the features of the function `spreads`. Below this number of dimensions, this regression
# is left out, because splines and trees show whether large components occur together.
_FEWEST_FOR_SPREADS = 4
# A spline has this number of knots in each coordinate.
_KNOTS = 7
# For trees, a coordinate is divided into `_BINS` bins, whose numbers fit into one byte. A leaf has at least `_LEAF`
# draws.
_BINS = 250
_LEAF = 30
# Cross-validation selects one of these penalties on the coefficients; they are ordered from strong to weak.
_PENALTIES = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1)


class FitClassifier(Protocol):
    """Fits a classifier to draws and returns the function from points to log-odds; LinAlgError for too few draws."""

    def __call__(self, draws: Labeled, /) -> LogOdds: ...


@dataclass(frozen=True)
class NamedClassifier:
    """A classifier with its name in notes; it is quick if a fit takes only milliseconds.

    `fits` has one function for each penalty, from the strongest on. `features` does not use the sides of draws.
    """

    name: str
    fits: tuple[FitClassifier, ...]
    features: Callable[[Array], Array] = np.asarray
    quick: bool = False

    def only(self, index: int) -> NamedClassifier:
        """Return the classifier with only one of its penalties, the penalty with the index `index`."""
        return replace(self, fits=(self.fits[index],))


def candidates_for(draws: Labeled, seed: int) -> list[NamedClassifier]:
    """Return the candidate classifiers; a classifier is left out if P or Q has too few draws for its parameters."""
    d = draws.x.shape[1]
    fewest = min(int(draws.from_p.sum()), int((~draws.from_p).sum()))
    most = min(_MOST_FEATURES, fewest)
    squares, splines = d * (d + 3) // 2 < most, d * (_KNOTS + 1)
    # For Pareto tails, the log-ratio is linear in asinh-scaled coordinates.
    asinh = "quadratic logistic regression of asinh-scaled coordinates"
    regressions: list[tuple[bool, str, Callable[[], list[Any]]]] = [
        (squares, "quadratic logistic regression", lambda: [*_scaled(), _products(interaction_only=False)]),
        (squares and d <= _MOST_ASINH, asinh, lambda: [*_asinh_scaled(), _products(interaction_only=False)]),
        (splines < most, "additive spline regression", lambda: [*_asinh_scaled(), _splines()]),
        (
            d > 1 and splines + d * (d - 1) // 2 < most,
            "spline regression with products",
            lambda: [
                *_asinh_scaled(),
                _sklearn("pipeline").make_union(_splines(), _products(interaction_only=True)),
            ],
        ),
        (
            d >= _FEWEST_FOR_SPREADS and number_of_spreads(d) < most,
            SPREADS,
            lambda: [*_asinh_scaled(), _sklearn("preprocessing").FunctionTransformer(spreads)],
        ),
    ]
    two_values = have_two_values(draws.x)
    if two_values:  # then splines and other functions of a component are linear
        regressions = regressions[:1]
    return [
        _regressions("linear logistic regression", list),
        *[NamedClassifier(GAUSSIAN, (_gaussian,))] * (2 * d + 4 < fewest and not two_values),
        *(_regressions(name, features) for has_enough, name, features in regressions if has_enough),
        NamedClassifier("gradient-boosted trees", (_trees(seed),)),
    ]


def have_two_values(x: Array) -> bool:
    """Return whether each column has at most two values."""
    return bool(((x == x.min(0)) | (x == x.max(0))).all())


def check_classifier(call: str, classifier: object) -> None:
    """Raise an error unless `classifier` is None or an instance with the methods of scikit-learn's classifiers."""
    can_predict = hasattr(classifier, "decision_function") or hasattr(classifier, "predict_proba")
    can_fit = can_predict and hasattr(classifier, "fit") and hasattr(classifier, "get_params")
    if classifier is not None and (isinstance(classifier, type) or not can_fit):
        raise invalid_type(
            call,
            "classifier",
            wanted="a classifier with fit, get_params and predict_proba or decision_function, or None",
            got=safe_repr(classifier),
            instead="classifier=sklearn.linear_model.LogisticRegression()",
        )


def users_candidate(classifier: object, seed: int) -> NamedClassifier:
    """Return a `NamedClassifier` that trains a clone of the user's classifier, which has scikit-learn's methods."""

    def fit(draws: Labeled) -> LogOdds:
        model = _sklearn("base").clone(classifier)
        with seeded(seed):  # a classifier without a random state uses the global generators
            return _log_odds_of(model.fit(draws.x, draws.from_p.astype(int), **_weights_of(draws)))

    return NamedClassifier(type(classifier).__name__, (fit,))


def _gaussian(draws: Labeled) -> LogOdds:
    p, q = (draws.take(side) for side in (draws.from_p, ~draws.from_p))
    ratio = gaussian_log_odds(p.x, q.x, p.weights, q.weights)
    return lambda x: ratio(x) + draws.log_prior_odds


def _regressions(name: str, transformers: Callable[[], list[Any]]) -> NamedClassifier:
    def features(x: Array) -> Array:
        matrix = _sklearn("pipeline").make_pipeline(*transformers(), *_scaled()).fit_transform(x)
        if matrix.shape[1] <= len(matrix):
            return matrix
        # With more features than draws, the draws span a space of fewer dimensions. Coordinates in this space give the
        # same log-odds.
        values, vectors = np.linalg.eigh(matrix @ matrix.T)
        large = values > 1e-10 * values[-1]
        return matrix @ (matrix.T @ (vectors[:, large] / np.sqrt(values[large])))

    fits = tuple(partial(_regression, penalty) for penalty in _PENALTIES)
    return NamedClassifier(name, fits, features, quick=True)


def _regression(penalty: float, draws: Labeled) -> LogOdds:
    coefficients = ridge_logistic(draws.x, draws, penalty)
    return lambda x: coefficients[0] + x @ coefficients[1:]


def _sklearn(module: str) -> Any:
    return load(f"sklearn.{module}", "density_ratio")


def _scaled() -> list[Any]:
    return [_sklearn("preprocessing").StandardScaler()]


def _products(*, interaction_only: bool) -> Any:
    return _sklearn("preprocessing").PolynomialFeatures(
        2, interaction_only=interaction_only, include_bias=False
    )


def _asinh_scaled() -> list[Any]:
    """Return transformers that scale robustly and apply asinh; Pareto tails then have linear log-ratios."""
    preprocessing = _sklearn("preprocessing")
    return [preprocessing.RobustScaler(), preprocessing.FunctionTransformer(np.arcsinh)]


def _splines() -> Any:
    return _sklearn("preprocessing").SplineTransformer(
        n_knots=_KNOTS, knots="quantile", extrapolation="linear", include_bias=False
    )


def _trees(seed: int) -> FitClassifier:
    def fit(draws: Labeled) -> LogOdds:
        model = _sklearn("ensemble").HistGradientBoostingClassifier(
            learning_rate=0.08,
            max_leaf_nodes=15,
            min_samples_leaf=_LEAF,
            max_iter=300,
            l2_regularization=1.0,
            # Early stopping evaluates the fit on a random tenth of the draws, which must contain draws of both sides.
            # With fewer than `_LEAF` draws of a side, there is no early stopping.
            early_stopping=min(draws.from_p.sum(), (~draws.from_p).sum()) >= _LEAF,
            random_state=seed,
        )
        # The draws are binned before the fit, because scikit-learn would need a second for each column of weighted
        # draws.
        edges = np.quantile(draws.x, np.linspace(0, 1, _BINS + 1)[1:-1], axis=0)
        model.fit(_binned(draws.x, edges), draws.from_p.astype(int), **_weights_of(draws))
        log_odds = _log_odds_of(model)
        return lambda x: log_odds(_binned(x, edges))

    return fit


def _binned(x: Array, edges: Array) -> Array:
    columns = [np.searchsorted(bounds, column) for bounds, column in zip(edges.T, x.T, strict=True)]
    return np.stack(columns, axis=1).astype(np.float64)


def _weights_of(draws: Labeled) -> dict[str, Array]:
    """Return the keyword argument `sample_weight`, or no argument if all weights are equal."""
    return {} if np.ptp(draws.weights) == 0 else {"sample_weight": draws.weights}


def _log_odds_of(model: Any) -> LogOdds:
    """Return the function from points to a fitted model's log-odds, which are finite for probabilities 0 and 1."""

    def log_odds(x: Array) -> Array:
        if hasattr(model, "decision_function"):
            return np.asarray(model.decision_function(x), dtype=np.float64).reshape(len(x))
        probabilities = np.asarray(model.predict_proba(x), dtype=np.float64)
        smallest = np.finfo(np.float64).tiny
        return np.log(np.maximum(probabilities[:, 1], smallest)) - np.log(
            np.maximum(probabilities[:, 0], smallest)
        )

    return log_odds


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
    pairs = total**2 - _squares_of_columns(_by_unit(weights, draws.units, rows))
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
        own = _squares_of_columns(_by_unit(excess, draws.units, rows))
        values.append(float(factor @ (one**2 + other**2 + (one + other) ** 2 - 2 * own)) / 1.5)
    value = float(np.mean(values))
    # If the classifiers are right, the products of the pairs have mean 0 and are uncorrelated.
    sums = _by_unit(weights * (draws.from_p - mean_of_p), draws.units, rows) * np.sqrt(factor)
    own = _squares_of_columns(sums.T)
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


def _squares_of_columns(sums: Any) -> Array:
    return np.asarray(sums.power(2).sum(0)).reshape(-1)


def _unknown(value: float) -> Shift:
    note = (
        f"Samples of {SIDE_P} and {SIDE_Q} with equal coordinates show that the classifiers miss about {value:.2g} "
        "nats: the value is too low, and the upper limit is infinite."
        if value
        else "Too few samples have equal coordinates to show the error of the classifiers: the upper limit is infinite."
    )
    return Shift(math.inf, note)
