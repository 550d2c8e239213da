r"""KL from a classifier that tells draws of P from draws of Q: its log-odds are the log-ratio of the densities.

A classifier that gives a point x of the pooled draws the probability :math:`c(x)` of having come from P knows
:math:`\log\frac{p(x)}{q(x)} = \log\frac{c(x)}{1 - c(x)} + \log\frac mn`; its mean over P is KL. Each draw is judged
by a classifier that has not seen it, and the log-odds are calibrated, so that neither zeal nor caution biases them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kullback.errors import invalid_type, invalid_value
from kullback.estimate import Estimate
from kullback.estimators.checks import check_confidence, check_finite, check_samples, seed_of
from kullback.estimators.density_ratio.gaussian import gaussian_kl
from kullback.estimators.density_ratio.models import (
    GAUSSIAN,
    Candidate,
    Fit,
    Labeled,
    Mask,
    calibrated,
    candidates_for,
    log_loss,
    users_candidate,
)
from kullback.estimators.draws import Array, Draws, Integers, number_from_scores
from kullback.estimators.normal_interval import normal_estimate
from kullback.estimators.tails import heaviness
from kullback.optional import load
from kullback.samples import Samples

__all__ = ["density_ratio"]

# Models are selected on at most so many draws of each side; more would not change a clear choice.
_SELECTION_DRAWS = 10_000
# A candidate is dropped whose loss on the first fold is above the least by so many standard errors.
_DROP_BEHIND = 3.0
# A candidate with a smaller weight, relative to the best, adds nothing but time.
_LEAST_SHARE = 0.05
# Log-ratios with tails as heavy as this have no variance under P, and their mean no standard error.
_HEAVY = 0.5
# How often the draws are halved to extrapolate from half of them: twice the fits each, of half the size.
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

    The candidates are linear and quadratic logistic regression, the latter also of asinh-scaled coordinates, regression
    on splines without and with products of coordinates, Gaussian densities and gradient-boosted trees. The value is the
    mean over those that predict held-out labels best, with weights that fall exponentially with their loss; a note
    names them. :math:`\hat f` is fitted without the fold that it is evaluated on and calibrated to the labels, and the
    value is extrapolated from fits to half of the draws and to nearly all of them to endlessly many. Gaussian densities
    give the unbiased estimate of KL between Gaussians.

    Arguments:
        p: draws of P, floating-point, shape (n, d), with their weights and clusters, if any.
        q: draws of Q, shape (m, d).
        confidence: how often the interval shall cover.
        generator: for the split into folds and the trees.
        folds: how many parts are held out in turn; clusters stay together.
        classifier: one of your own with scikit-learn's methods, in place of the candidates; it is cloned for each fit.
            With weighted draws its ``fit`` has to take ``sample_weight``.

    Returns:
        the estimate in nats. Its standard error combines the influence of each draw of both sides with the difference
        between fits to half of the draws and to nearly all.

    Raises:
        ArgumentValueError: fewer than two draws (or clusters) of a side for each fold, infinite draws, categories in
            place of numbers, or sides of unequal dimension.
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
    load("sklearn", call)
    check_samples(call, p, q)
    check_confidence(call, confidence)
    sides = _sides(call, p, q, folds)
    draws = _labeled(*sides)
    seed = seed_of(generator)
    rng = np.random.default_rng(seed)
    deep, halves = _folds(draws, folds, rng), [_folds(draws, 2, rng) for _ in range(_HALVINGS)]
    if classifier is not None:
        selected = [_Selected(users_candidate(classifier), 1.0)]
    else:
        selected = _select(candidates_for(draws, seed), draws, deep, rng)
    found = _combined(selected, sides, draws, deep, halves)
    return _estimate(found, selected, sides, (p, q), confidence)


@dataclass(frozen=True)
class _Found:
    """A value, what each draw adds to its error, and the error that is not in the draws' influence."""

    value: float
    influence: Array
    beyond: float


@dataclass(frozen=True)
class _Selected:
    """A candidate with its best penalty, its weight, and its held-out log-odds if all draws took part in selection."""

    candidate: Candidate
    share: float
    raw: Array | None = None


def _select(
    candidates: list[Candidate], draws: Labeled, folds: Integers, rng: np.random.Generator
) -> list[_Selected]:
    """Return those that predict held-out labels best once calibrated, the best first.

    Weights fall with the exponential of the total loss (Using Stacking to Average Bayesian Predictive Distributions,
    Yao et al., 2018: pseudo-BMA).
    """
    used = _subset(draws, rng)
    some, folds = draws.take(used), folds[used]
    trials = [_with_best_penalty(candidate, some, folds == 0) for candidate in candidates]
    trials = [trial for trial in trials if np.isfinite(trial[1]).all()]
    least = min(trials, key=lambda trial: float(trial[1].sum()))[1]
    found: list[tuple[float, Candidate, Array]] = []
    for candidate, losses in trials:
        behind = losses - least
        if behind.mean() > _DROP_BEHIND * behind.std() / math.sqrt(len(behind)):
            continue
        raw = _held_out(candidate, some, folds)
        if not np.isfinite(raw).all():
            continue
        log_odds = calibrated(raw, some)[0]
        if heaviness(log_odds[some.from_p]) < _HEAVY:
            found.append((float(some.weights @ log_loss(log_odds, some)), candidate, raw))
    if not found:  # trees, the last one, are bounded
        found = [(0.0, trials[-1][0], _held_out(trials[-1][0], some, folds))]
    best = min(loss for loss, _, _ in found)
    independent = len(np.unique(some.units)) / len(some.units)
    shares = [math.exp((best - loss) * independent) for loss, _, _ in found]
    total = sum(share for share in shares if share > _LEAST_SHARE)
    selected = [
        _Selected(candidate, share / total, raw if used.all() else None)
        for share, (_, candidate, raw) in zip(shares, found, strict=True)
        if share > _LEAST_SHARE
    ]
    return sorted(selected, key=lambda one: -one.share)


def _with_best_penalty(candidate: Candidate, draws: Labeled, held_out: Mask) -> tuple[Candidate, Array]:
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


def _held_out(candidate: Candidate, draws: Labeled, folds: Integers) -> Array:
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


def _combined(
    selected: list[_Selected],
    sides: tuple[Draws, Draws],
    draws: Labeled,
    deep: Integers,
    halves: list[Integers],
) -> _Found:
    """Return the weighted mean of the candidates' values; that they differ adds to the error."""
    found = [
        _gaussian(*sides) if one.candidate.name == GAUSSIAN else _direct(one, draws, deep, halves)
        for one in selected
    ]
    shares = [one.share for one in selected]
    value = sum(share * each.value for share, each in zip(shares, found, strict=True))
    influence = sum(
        (share * each.influence for share, each in zip(shares, found, strict=True)), np.zeros(len(draws.x))
    )
    spread = sum(
        share * (each.beyond**2 + (each.value - value) ** 2)
        for share, each in zip(shares, found, strict=True)
    )
    return _Found(value, influence, math.sqrt(spread))


def _direct(one: _Selected, draws: Labeled, deep: Integers, halves: list[Integers]) -> _Found:
    """Return the mean over P of the calibrated log-ratio, extrapolated in the number of draws that it is fitted to.

    An error that falls as 1 / n loses a part of itself from a fit to half of the draws to one to all but a fold. What
    is left by that rule is taken off the value, and counted as an error beside.
    """
    candidate, raw = one.candidate, one.raw
    value, influence = _mean_over_p(_held_out(candidate, draws, deep) if raw is None else raw, draws)
    coarse = [_mean_over_p(_held_out(candidate, draws, half), draws)[0] for half in halves]
    nearly_all = 1 / (1 - 1 / (int(deep.max()) + 1))
    onwards = nearly_all / (2 - nearly_all) if nearly_all < 2 else 1.0
    step = onwards * (value - float(np.mean(coarse)))
    spread = onwards * float(np.std(coarse, ddof=1)) / math.sqrt(len(coarse))
    return _Found(value + step, influence, math.hypot(step, spread))


def _mean_over_p(raw: Array, draws: Labeled) -> tuple[float, Array]:
    """Return the mean over P of the calibrated log-ratio, and the influence of each draw on it."""
    log_odds, influence, features = calibrated(raw, draws)
    w = np.where(draws.from_p, draws.weights, 0)
    w = w / w.sum()
    ratio = log_odds - draws.log_prior_odds
    value = float(w @ ratio)
    total = w * (ratio - value) + influence @ (w @ features)
    # The numbers of draws of P and Q are given, so what a side adds on average is no error.
    for side in (draws.from_p, ~draws.from_p):
        total[side] -= draws.weights[side] * total[side].sum() / draws.weights[side].sum()
    return value, total


def _gaussian(p: Draws, q: Draws) -> _Found:
    """Return KL between Gaussians, with the variance of the quadratic term, which alone is left where P = Q."""
    n, m = (_independent(side) for side in (p, q))
    found = gaussian_kl(p.x, q.x, p.shares * len(p), q.shares * len(q), n, m)
    d = p.x.shape[1]
    second_order = 0.5 * (d + d * (d + 1) / 2) * (1 / n + 1 / m) ** 2
    influence = np.concatenate([found.influence_p, found.influence_q])
    return _Found(found.value, influence, math.sqrt(second_order))


def _independent(side: Draws) -> float:
    """Return how many independent plain draws tell as much about means and covariances as these."""
    scores = (side.x - side.x.mean(0)) / np.maximum(side.x.std(0), np.finfo(np.float64).tiny)
    number = number_from_scores(np.concatenate([scores, scores**2], axis=1), side)
    return min(side.effective, max(number, side.x.shape[1] + 3.0))


def _estimate(
    found: _Found,
    selected: list[_Selected],
    sides: tuple[Draws, Draws],
    samples: tuple[Samples, Samples],
    confidence: float,
) -> Estimate:
    n, m = (len(side) for side in sides)
    best = selected[0].candidate.name
    shares = ", ".join(f"{one.candidate.name} {one.share:.0%}" for one in selected)
    notes = [f"The classifiers, by how well they predict held-out labels: {shares}."]
    if found.value > math.log(m):
        notes.append(
            f"the value is above log m = {math.log(m):.3g}, so few draws of Q lie where most of P's do: value and "
            f"interval rest on the form that the classifier ({best}) gives to the tails"
        )
    parts = found.influence[:n], found.influence[n:]
    variance = sum(side.variance(part) for side, part in zip(sides, parts, strict=True))
    return normal_estimate(
        found.value,
        math.hypot(math.sqrt(variance), found.beyond),
        confidence,
        method="density_ratio",
        n=(len(samples[0]), len(samples[1])),
        notes=notes,
        device=samples[0].tensor.device,
    )


def _sides(call: str, p: Samples, q: Samples, folds: int) -> tuple[Draws, Draws]:
    if p.discrete:
        raise invalid_type(
            call,
            "p, q",
            wanted="floating-point numbers",
            got=f"categories: {p!r}",
            instead="kl_estimate(p, q), which counts categories; or Samples(x.double()) to read integers as numbers",
        )
    return _side(call, "p", p, folds), _side(call, "q", q, folds)


def _side(call: str, name: str, samples: Samples, folds: int) -> Draws:
    check_finite(call, name, samples)
    draws = Draws.of(samples)
    if folds < 2 or draws.groups < 2 * folds:
        raise invalid_value(
            call,
            f"{name}, folds",
            wanted="two folds or more, and two draws of each side (or clusters of draws) for each",
            got=f"folds={folds} and {draws.groups} {'draws' if draws.cluster is None else 'clusters'} with weight",
            instead="more draws, or kl_estimate(p, q, method='nearest_neighbors')",
        )
    return draws


def _labeled(p: Draws, q: Draws) -> Labeled:
    return Labeled(
        np.concatenate([p.x, q.x]),
        np.arange(len(p) + len(q)) < len(p),
        np.concatenate([side.shares * len(side) for side in (p, q)]),
        np.concatenate([p.units, q.units + p.groups]),
    )


def _folds(draws: Labeled, folds: int, rng: np.random.Generator) -> Integers:
    """Deal the units of each side to the folds at random, in equal numbers."""
    fold = np.empty(int(draws.units.max()) + 1, dtype=np.int64)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        fold[units] = rng.permutation(len(units)) % folds
    return fold[draws.units]


def _subset(draws: Labeled, rng: np.random.Generator) -> Mask:
    """Choose the draws that models are selected on, whole clusters of them."""
    chosen = np.zeros(len(draws.x), dtype=bool)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        share = min(1.0, _SELECTION_DRAWS / int(side.sum()))
        some = rng.choice(units, max(1, round(share * len(units))), replace=False) if share < 1 else units
        chosen |= np.isin(draws.units, some)
    return chosen
