"""The classifiers that `density_ratio` chooses from: from labeled draws to the log-odds of P."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kullback.common.optional import load
from kullback.errors import invalid_type, safe_repr
from kullback.estimators.density_ratio.gaussian import gaussian_log_odds
from kullback.estimators.draws import Array
from kullback.estimators.logistic import Labeled, number_of_spreads, ridge_logistic, spreads
from kullback.estimators.sample_checks import seeded

LogOdds = Callable[[Array], Array]

GAUSSIAN = "Gaussian densities"

# `benchmarks/bench_samples.py` measures the errors of the estimates with these constants.

# The largest number of features of a regression; it also has at most as many as there are draws of either side.
_MOST_FEATURES = 1500
# In more dimensions, the splines with products suit heavy tails as well.
_MOST_ASINH = 10
# In fewer dimensions, splines and trees show how the spreads of the components go together.
_FEWEST_FOR_SPREADS = 4
# The knots of a spline in each coordinate.
_KNOTS = 7
# The bins of a coordinate for trees, which count them in one byte, and the fewest draws in a leaf.
_BINS = 250
_LEAF = 30
# The penalties on the coefficients, from strong to weak; cross-validation chooses one.
_PENALTIES = (1e4, 1e3, 1e2, 1e1, 1e0, 1e-1)


class FitClassifier(Protocol):
    """Fit a classifier; LinAlgError if there are too few draws."""

    def __call__(self, draws: Labeled, /) -> LogOdds: ...


@dataclass(frozen=True)
class NamedClassifier:
    """A classifier by name: `fit` for each of its strengths of penalty, from strong to weak."""

    name: str
    fits: tuple[FitClassifier, ...]

    def only(self, index: int) -> NamedClassifier:
        """The candidate with one of its penalties."""
        return NamedClassifier(self.name, (self.fits[index],))


def candidates_for(draws: Labeled, seed: int) -> list[NamedClassifier]:
    """Return the classifiers that have enough draws."""
    d = draws.x.shape[1]
    fewest = min(int(draws.from_p.sum()), int((~draws.from_p).sum()))
    most = min(_MOST_FEATURES, fewest)
    squares, splines = d * (d + 3) // 2 < most, d * (_KNOTS + 1)
    asinh = "quadratic logistic regression of asinh-scaled coordinates"  # a line for the log-ratio of Pareto tails
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
            "quadratic logistic regression of spreads",
            lambda: [*_asinh_scaled(), _sklearn("preprocessing").FunctionTransformer(spreads)],
        ),
    ]
    return [
        _regressions("linear logistic regression", list),
        *[NamedClassifier(GAUSSIAN, (_gaussian,))] * (2 * d + 4 < fewest),
        *(_regressions(name, features) for has_enough, name, features in regressions if has_enough),
        NamedClassifier("gradient-boosted trees", (_trees(seed),)),
    ]


def check_classifier(call: str, classifier: object) -> None:
    """Refuse objects without the methods of scikit-learn's classifiers, and classes in place of instances."""
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
    """Wrap a classifier with scikit-learn's methods; it is cloned for each fit."""

    def fit(draws: Labeled) -> LogOdds:
        model = _sklearn("base").clone(classifier)
        with seeded(seed):  # a classifier without a random state uses the global ones
            return _log_odds_of(model.fit(draws.x, draws.from_p.astype(int), **_weights_of(draws)))

    return NamedClassifier(type(classifier).__name__, (fit,))


def _gaussian(draws: Labeled) -> LogOdds:
    p, q = (draws.take(side) for side in (draws.from_p, ~draws.from_p))
    ratio = gaussian_log_odds(p.x, q.x, p.weights, q.weights)
    return lambda x: ratio(x) + draws.log_prior_odds


def _regressions(name: str, features: Callable[[], list[Any]]) -> NamedClassifier:
    return NamedClassifier(name, tuple(_regression(features, penalty) for penalty in _PENALTIES))


def _regression(features: Callable[[], list[Any]], penalty: float) -> FitClassifier:
    def fit(draws: Labeled) -> LogOdds:
        transform = _sklearn("pipeline").make_pipeline(*features(), *_scaled())
        matrix = transform.fit_transform(draws.x)
        basis = None
        if matrix.shape[1] > len(matrix):  # use the coordinates of the draws' own span, which are fewer
            values, vectors = np.linalg.eigh(matrix @ matrix.T)
            large = values > 1e-10 * values[-1]
            basis = matrix.T @ (vectors[:, large] / np.sqrt(values[large]))
            matrix = matrix @ basis
        coefficients = ridge_logistic(matrix, draws, penalty)

        def log_odds(x: Array) -> Array:
            at = transform.transform(x)
            return coefficients[0] + (at if basis is None else at @ basis) @ coefficients[1:]

        return log_odds

    return fit


def _sklearn(module: str) -> Any:
    return load(f"sklearn.{module}", "density_ratio")


def _scaled() -> list[Any]:
    return [_sklearn("preprocessing").StandardScaler()]


def _products(*, interaction_only: bool) -> Any:
    return _sklearn("preprocessing").PolynomialFeatures(
        2, interaction_only=interaction_only, include_bias=False
    )


def _asinh_scaled() -> list[Any]:
    """Coordinates that make a Pareto tail a straight line: asinh of the distance in quartiles."""
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
            # It needs a tenth of the draws on both sides; with fewer, the trees are single leaves anyway.
            early_stopping=min(draws.from_p.sum(), (~draws.from_p).sum()) >= _LEAF,
            random_state=seed,
        )
        # Binned here, because scikit-learn needs a second for each column of weighted draws.
        edges = np.quantile(draws.x, np.linspace(0, 1, _BINS + 1)[1:-1], axis=0)
        model.fit(_binned(draws.x, edges), draws.from_p.astype(int), **_weights_of(draws))
        log_odds = _log_odds_of(model)
        return lambda x: log_odds(_binned(x, edges))

    return fit


def _binned(x: Array, edges: Array) -> Array:
    columns = [np.searchsorted(bounds, column) for bounds, column in zip(edges.T, x.T, strict=True)]
    return np.stack(columns, axis=1).astype(np.float64)


def _weights_of(draws: Labeled) -> dict[str, Array]:
    """Return the weights as an argument, or no argument if they are equal."""
    return {} if np.ptp(draws.weights) == 0 else {"sample_weight": draws.weights}


def _log_odds_of(model: Any) -> LogOdds:
    """Return the log-odds of a fitted classifier, bounded if it is certain."""

    def log_odds(x: Array) -> Array:
        if hasattr(model, "decision_function"):
            return np.asarray(model.decision_function(x), dtype=np.float64).reshape(len(x))
        probabilities = np.asarray(model.predict_proba(x), dtype=np.float64)
        smallest = np.finfo(np.float64).tiny
        return np.log(np.maximum(probabilities[:, 1], smallest)) - np.log(
            np.maximum(probabilities[:, 0], smallest)
        )

    return log_odds
