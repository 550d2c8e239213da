r"""KL from a classifier that tells draws of P from draws of Q: its log-odds are the log-ratio of the densities.

A classifier that gives a point x of the pooled draws the probability :math:`c(x)` of having come from P knows
:math:`\log\frac{p(x)}{q(x)} = \log\frac{c(x)}{1 - c(x)} + \log\frac mn`; its mean over P is KL. Each draw is judged
by a classifier that has not seen it, and the log-odds are calibrated, so that neither zeal nor caution biases them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import torch

from kullback.errors import ArgumentTypeError, ArgumentValueError, OptionalDependencyError, explain
from kullback.estimate import Estimate
from kullback.estimators.checks import (
    Array,
    check_confidence,
    check_samples,
    effective_number,
    normal_estimate,
    numpy_of,
    seed_of,
)
from kullback.estimators.density_ratio.gaussian import gaussian_kl
from kullback.estimators.density_ratio.models import (
    GAUSSIAN,
    Candidate,
    Fit,
    Folds,
    Labeled,
    Mask,
    calibrated,
    candidates_for,
    log_loss,
    users_candidate,
)
from kullback.samples import Samples

__all__ = ["density_ratio"]

# The candidates race on at most so many draws of each side; a race that is clear there would not be turned by more.
_RACE = 10_000
# A candidate leaves the race that is behind the leader by so many standard errors on the first fold.
_BEHIND = 3.0
# A contender with a smaller share, relative to the best, adds nothing but time.
_LEAST_SHARE = 0.05
# Log-ratios with tails as heavy as this have no variance under P, and their mean no standard error.
_HEAVY = 0.5
# How often the draws are halved for a step: twice the fits each, of half the size.
_HALVINGS = 3


def density_ratio(
    p: Samples,
    q: Samples,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    folds: int = 5,
    classifier: object = None,
) -> Estimate:
    r"""Estimate KL(P || Q) by a classifier that tells the draws apart: above ten dimensions, and for smooth densities.

    .. math::
        \widehat{KL} = \frac1n \sum_i \hat f(x_i), \quad
        \hat f(x) = \log\frac{\hat c(x)}{1 - \hat c(x)} + \log\frac mn

    Linear and quadratic logistic regression, the latter also of coordinates with tamed tails, regression on splines
    without and with products of coordinates, Gaussian densities and gradient-boosted trees compete in predicting labels
    that were held out; the value is the mean of what the best give, with shares that fall exponentially with their
    loss, and `method` names the first. :math:`\hat f` is fitted without the fold that it judges and calibrated to the
    labels; the value goes on from what half of the draws gave, past what nearly all gave, to what endlessly many would.
    Gaussian densities give the unbiased estimate of KL between Gaussians.

    Arguments:
        p: draws of P, floating-point, shape (n, d), with weights and clusters if they have such.
        q: draws of Q, shape (m, d).
        confidence: how often the interval shall cover.
        generator: for the split into folds and the trees.
        folds: how many parts are held out in turn; clusters stay together.
        classifier: one of your own with scikit-learn's methods, in place of the competition; it is cloned for each
            fit. With weighted draws its ``fit`` has to take ``sample_weight``.

    Returns:
        the estimate in nats. Its standard error combines the influence of each draw of both sides with the step from
        half of the draws to nearly all.

    Raises:
        ArgumentValueError: fewer than two draws (or clusters) of a side for each fold, infinite draws, symbols in place
            of points, or sides of unequal dimension.
        OptionalDependencyError: scikit-learn or SciPy is not installed.

    Gradient:
        none: the classifier is a constant.

    Example:
        >>> import torch
        >>> from kullback import Samples
        >>> draws = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(1000, 3, generator=draws), torch.randn(1000, 3, generator=draws) + 0.5
        >>> estimate = density_ratio(Samples(x), Samples(y), generator=draws)  # true value: 0.375
        >>> bool(estimate.interval[0] < 0.375 < estimate.interval[1])
        True

    References:
        Density Ratio Estimation in Machine Learning (Sugiyama, Suzuki and Kanamori, 2012)
    """
    call = "density_ratio"
    _require_sklearn()
    check_samples(call, p, q)
    check_confidence(call, confidence)
    draws = _labeled(call, p, q, folds)
    seed = seed_of(generator)
    rng = np.random.default_rng(seed)
    deep, halves = _folds(draws, folds, rng), [_folds(draws, 2, rng) for _ in range(_HALVINGS)]
    if classifier is not None:
        contenders = [_Contender(users_candidate(classifier), 1.0)]
    else:
        contenders = _contenders(candidates_for(draws, seed), draws, deep, rng)
    found = _combined(contenders, draws, deep, halves)
    return _estimate(found, contenders, draws, p, confidence)


@dataclass(frozen=True)
class _Found:
    """A value, what each draw adds to its error, and the error that is not in the draws' influence."""

    value: float
    influence: Array
    beyond: float


@dataclass(frozen=True)
class _Contender:
    """A candidate with its best penalty, its share of the result, and its log-odds of the draws if all were raced."""

    candidate: Candidate
    share: float
    raw: Array | None = None


def _contenders(
    candidates: list[Candidate], draws: Labeled, folds: Folds, rng: np.random.Generator
) -> list[_Contender]:
    """Return those that predict held-out labels best once calibrated, the best first.

    Shares fall with the exponential of the total loss (Using Stacking to Average Bayesian Predictive Distributions,
    Yao et al., 2018: pseudo-BMA).
    """
    kept = _subset(draws, rng)
    raced, folds = draws.take(kept), folds[kept]
    heats = [_heat(candidate, raced, folds == 0) for candidate in candidates]
    heats = [heat for heat in heats if np.isfinite(heat[1]).all()]
    least = min(heats, key=lambda heat: float(heat[1].sum()))[1]
    found: list[tuple[float, Candidate, Array]] = []
    for candidate, losses in heats:
        behind = losses - least
        if behind.mean() > _BEHIND * behind.std() / math.sqrt(len(behind)):
            continue
        raw = _held_out(candidate, raced, folds)
        if not np.isfinite(raw).all():
            continue
        log_odds = calibrated(raw, raced)[0]
        if _tail_index(log_odds[raced.from_p]) < _HEAVY:
            found.append((float(raced.weights @ log_loss(log_odds, raced)), candidate, raw))
    if not found:  # trees, the last one, are bounded
        found = [(0.0, heats[-1][0], _held_out(heats[-1][0], raced, folds))]
    best = min(loss for loss, _, _ in found)
    independent = len(np.unique(raced.units)) / len(raced.units)
    shares = [math.exp((best - loss) * independent) for loss, _, _ in found]
    total = sum(share for share in shares if share > _LEAST_SHARE)
    contenders = [
        _Contender(candidate, share / total, raw if kept.all() else None)
        for share, (_, candidate, raw) in zip(shares, found, strict=True)
        if share > _LEAST_SHARE
    ]
    return sorted(contenders, key=lambda contender: -contender.share)


def _tail_index(values: Array) -> float:
    """Estimate k where P(|f| > t) falls as t^(-1 / k): the mean of f has a standard error for k below 1 / 2.

    A Simple General Approach to Inference About the Tail of a Distribution (Hill, 1975)
    """
    size = np.abs(values - np.median(values))
    top = min(math.ceil(0.2 * len(size)), math.ceil(3 * len(size) ** 0.5))
    largest = np.sort(size)[-top:]
    return float(np.mean(np.log(largest / largest[0]))) if largest[0] > 0 else 0.0


def _heat(candidate: Candidate, draws: Labeled, held_out: Mask) -> tuple[Candidate, Array]:
    """Return the candidate with its best penalty, and its losses, each times its weight, on the draws held out."""
    train, test = draws.take(~held_out), draws.take(held_out)
    best, least = 0, np.full(len(test.x), np.inf)
    for index, fit in enumerate(candidate.fits):
        raw = _applied(fit, train, test)
        if not np.isfinite(raw).all():
            break
        losses = test.weights * log_loss(raw, test)
        if not losses.mean() < least.mean():
            break  # a weaker penalty overfits all the more
        best, least = index, losses
    return candidate.only(best), least


def _held_out(candidate: Candidate, draws: Labeled, folds: Folds) -> Array:
    """Return the log-odds of each draw by a classifier that was fitted without its fold."""
    log_odds = np.empty(len(folds))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        log_odds[out] = _applied(candidate.fits[0], draws.take(~out), draws.take(out))
    return log_odds


def _applied(fit: Fit, train: Labeled, test: Labeled) -> Array:
    """Return log-odds of draws by what was fitted to others; NaN where those do not suffice for a fit."""
    try:
        return fit(train)(test.x)
    except np.linalg.LinAlgError:
        return np.full(len(test.x), np.nan)


def _combined(contenders: list[_Contender], draws: Labeled, deep: Folds, halves: list[Folds]) -> _Found:
    """Return the mean of the contenders' values by their shares; that they differ adds to the error."""
    found = [
        _gaussian(draws) if one.candidate.name == GAUSSIAN else _direct(one, draws, deep, halves)
        for one in contenders
    ]
    shares = [one.share for one in contenders]
    value = sum(share * each.value for share, each in zip(shares, found, strict=True))
    influence = sum(
        (share * each.influence for share, each in zip(shares, found, strict=True)), np.zeros(len(draws.x))
    )
    spread = sum(
        share * (each.beyond**2 + (each.value - value) ** 2)
        for share, each in zip(shares, found, strict=True)
    )
    return _Found(value, influence, math.sqrt(spread))


def _direct(contender: _Contender, draws: Labeled, deep: Folds, halves: list[Folds]) -> _Found:
    """Return the mean over P of the calibrated log-ratio, led on from half of the draws to endlessly many.

    From a fit to half of the draws to one to all but a fold, an error that falls as 1 / n loses a part of itself; the
    value takes off what is left by that rule, and counts it as an error beside.
    """
    candidate, raw = contender.candidate, contender.raw
    value, influence = _mean_over_p(_held_out(candidate, draws, deep) if raw is None else raw, draws)
    coarse = [_mean_over_p(_held_out(candidate, draws, half), draws)[0] for half in halves]
    nearly_all = 1 / (1 - 1 / (int(deep.max()) + 1))
    onwards = nearly_all / (2 - nearly_all) if nearly_all < 2 else 1.0
    step = onwards * (value - float(np.mean(coarse)))
    noise = onwards * float(np.std(coarse, ddof=1)) / math.sqrt(len(coarse))
    return _Found(value + step, influence, math.hypot(step, noise))


def _mean_over_p(raw: Array, draws: Labeled) -> tuple[float, Array]:
    """Return the mean over P of the calibrated log-ratio, and the influence of each draw on it."""
    log_odds, influence, features = calibrated(raw, draws)
    w = np.where(draws.from_p, draws.weights, 0)
    w = w / w.sum()
    ratio = log_odds - draws.log_prior_odds
    value = float(w @ ratio)
    total = w * (ratio - value) + influence @ (w @ features)
    # The numbers of draws of P and Q are given, so what a side adds on average is no noise.
    for side in (draws.from_p, ~draws.from_p):
        total[side] -= draws.weights[side] * total[side].sum() / draws.weights[side].sum()
    return value, total


def _gaussian(draws: Labeled) -> _Found:
    """Return KL between Gaussians, with the variance of the quadratic term, which alone is left where P = Q."""
    p, q = draws.take(draws.from_p), draws.take(~draws.from_p)
    n, m = _independent(p), _independent(q)
    found = gaussian_kl(p.x, q.x, p.weights, q.weights, n, m)
    d = draws.x.shape[1]
    second_order = 0.5 * (d + d * (d + 1) / 2) * (1 / n + 1 / m) ** 2
    influence = np.concatenate([found.influence_p, found.influence_q])
    return _Found(found.value, influence, math.sqrt(second_order))


def _variance(influence: Array, draws: Labeled) -> float:
    """Add the squares of the units' influences, the draws of one cluster taken together."""
    sums = np.bincount(draws.units, influence)
    return float(np.sum(sums**2))


def _independent(side: Labeled) -> float:
    """Return how many independent plain draws tell as much about means and covariances as these.

    Kish's number, divided by the design effect: how much larger clusters make the variance of the means of the
    coordinates and their squares (Survey Sampling, Kish, 1965).
    """
    n = effective_number(torch.from_numpy(side.weights), len(side.x))
    units = np.unique(side.units, return_inverse=True)[1]
    if units.max() + 1 == len(units):
        return n
    scores = (side.x - side.x.mean(0)) / np.maximum(side.x.std(0), np.finfo(np.float64).tiny)
    scores = np.concatenate([scores, scores**2], axis=1)
    scores = (scores - np.average(scores, axis=0, weights=side.weights)) * side.weights[:, None]
    sums = np.stack([np.bincount(units, column) for column in scores.T])
    effect = float((sums**2).sum() / (scores**2).sum())
    return min(n, max(n / max(effect, 1.0), side.x.shape[1] + 3.0))


def _estimate(
    found: _Found, contenders: list[_Contender], draws: Labeled, p: Samples, confidence: float
) -> Estimate:
    n, m = int(draws.from_p.sum()), int((~draws.from_p).sum())
    best = contenders[0].candidate.name
    notes: list[str] = []
    if len(contenders) > 1:
        shares = ", ".join(f"{one.candidate.name} {one.share:.0%}" for one in contenders)
        notes.append(f"a mean of classifiers by how well they predict held-out labels: {shares}")
    if found.value > math.log(m):
        notes.append(
            f"the value is above log m = {math.log(m):.3g}, so few draws of Q lie where most of P's do: value and "
            f"interval rest on the form that the classifier ({best}) gives to the tails"
        )
    error = math.hypot(math.sqrt(_variance(found.influence, draws)), found.beyond)
    return normal_estimate(
        found.value,
        error,
        confidence,
        method=f"density ratio ({best})",
        n=(n, m),
        notes=notes,
        device=p.tensor.device,
    )


def _labeled(call: str, p: Samples, q: Samples, folds: int) -> Labeled:
    if p.discrete:
        raise ArgumentTypeError(
            explain(
                call,
                "p, q",
                wanted="points, floating-point numbers",
                got=f"symbols: {p!r}",
                instead="kl_estimate(p, q), which counts symbols; or Samples(x.double()) to read integers as points",
            )
        )
    sides = [_side(call, name, samples, folds) for name, samples in (("p", p), ("q", q))]
    (x, w, of_p), (y, v, of_q) = sides
    return Labeled(
        np.concatenate([x, y]),
        np.arange(len(x) + len(y)) < len(x),
        np.concatenate([w, v]),
        np.concatenate([of_p, of_q + of_p.max() + 1]),
    )


def _side(call: str, name: str, samples: Samples, folds: int) -> tuple[Array, Array, Folds]:
    """Return points, weights whose mean is 1, and units of one side."""
    x, n = numpy_of(samples), len(samples)
    infinite = np.isinf(x).any(axis=1)
    if infinite.any():
        raise ArgumentValueError(
            explain(
                call,
                name,
                wanted="finite draws",
                got=f"{int(infinite.sum())} of {n} with an infinity, the first at index {int(infinite.argmax())}",
                instead="Samples(x[x.isfinite().all(1)]) once you know where they come from",
            )
        )
    weights = np.ones(n) if samples.weights is None else samples.weights.cpu().numpy()
    units = np.arange(n) if samples.clusters is None else samples.clusters.cpu().numpy()
    units = np.unique(units, return_inverse=True)[1]
    used = len(np.unique(units[weights > 0]))
    if folds < 2 or used < 2 * folds:
        raise ArgumentValueError(
            explain(
                call,
                f"{name}, folds",
                wanted="two folds or more, and two draws of each side (or clusters of draws) for each",
                got=f"folds={folds} and {used} {'clusters' if samples.clusters is not None else 'draws'} with weight",
                instead="more draws, or kl_estimate(p, q, method='neighbors')",
            )
        )
    return x, weights / weights.mean(), units


def _folds(draws: Labeled, folds: int, rng: np.random.Generator) -> Folds:
    """Deal the units of each side to the folds at random, in equal numbers."""
    fold = np.empty(int(draws.units.max()) + 1, dtype=np.int64)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        fold[units] = rng.permutation(len(units)) % folds
    return fold[draws.units]


def _subset(draws: Labeled, rng: np.random.Generator) -> Mask:
    """Choose the draws that the race is run on, whole clusters of them."""
    chosen = np.zeros(len(draws.x), dtype=bool)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        share = min(1.0, _RACE / int(side.sum()))
        kept = rng.choice(units, max(1, round(share * len(units))), replace=False) if share < 1 else units
        chosen |= np.isin(draws.units, kept)
    return chosen


def _require_sklearn() -> None:
    missing = [name for name in ("scipy", "sklearn") if find_spec(name) is None]
    if missing:
        raise OptionalDependencyError(
            f"density_ratio needs scikit-learn and SciPy; missing: {', '.join(missing)}. "
            "Run: pip install 'kullback[samples]'"
        )
