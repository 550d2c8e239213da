r"""KL from a classifier that distinguishes draws of P from draws of Q: the log-odds give an estimate of log(p / q).

A classifier estimates the probability :math:`c(x)` that a draw x, from the pooled n draws of P and m draws of Q, is a
draw of P. Then :math:`\log\frac{p(x)}{q(x)} = \log\frac{c(x)}{1 - c(x)} + \log\frac mn`, and the mean of this log-ratio
over P is KL. Each draw is evaluated by a classifier that was fitted without this draw. The log-odds are calibrated, so
that overfitting and underfitting do not bias them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from kullback.common.arrays import Flags
from kullback.common.constraints import Arguments, Whole
from kullback.common.optional import load
from kullback.common.progress import Update, progress_bar
from kullback.errors import invalid_type, invalid_value
from kullback.estimators.density_ratio.classifiers import (
    GAUSSIAN,
    LEAST_SHARE,
    SPREADS,
    FitClassifier,
    NamedClassifier,
    candidates_for,
    check_classifier,
    gaussian_kl,
    have_two_values,
    missed,
    share_of_repeated,
    users_candidate,
)
from kullback.estimators.draws import Array, Draws, Integers, number_from_scores
from kullback.estimators.evidence import (
    SIDE_P,
    SIDE_Q,
    Evidence,
    Shift,
    error_of,
    infinite,
    note_on_sign,
    noted,
)
from kullback.estimators.histogram import histogram
from kullback.estimators.logistic import Labeled, calibrated, log_loss, mean_over_p
from kullback.estimators.registry import evidence_by, from_draws, rng_of
from kullback.estimators.surfaces import common_span, fills_less
from kullback.estimators.tails import heaviness, unseen_in_scores, upper_end

# `benchmarks/coverage.py` checks the constants of this file on vectors with clusters, and `benchmarks/bench_samples.py`
# compares the errors with other estimators.

# Candidates are selected on at most this number of draws of each side, because more draws would not change a clear
# choice.
_SELECTION_DRAWS = 10_000
# A candidate is dropped if its loss on the first fold is more than this many standard errors above the smallest loss.
_DROP_ABOVE = 3.0
# To save time, a candidate is left out if its weight is at most this fraction of the largest weight.
_LEAST_SHARE = 0.05
# If the tail index of a candidate's log-ratios is at least this number, their variance under P is infinite, and their
# mean has no standard error. Such a candidate is not selected.
_HEAVY = 0.5
# If more than this proportion of P's draws has scores above all scores of Q's draws, the interval comes from the
# divergence of the scores.
_MOST_BEYOND = 0.25
# If P and Q together have at most this number of draws, fits use one thread. On a busy machine, one thread is up to
# fifty times as fast as several threads.
_DRAWS_FOR_THREADS = 20_000
# `_SPLITS` has the smallest and the largest number of random splits into folds. `_HALVINGS` has these numbers for the
# random splits into halves, which the extrapolation uses. For regressions, `_BUDGET` limits the product of the number
# of splits, the number of draws and the squared number of features. With these constants, the value's standard
# deviation over seeds was 3 to 8 % of the interval's width on four data sets of 3 to 50 dimensions. It was 19 % on a
# fifth data set with heavy tails. With one split into folds, it was 9 to 14 % on all five data sets.
_SPLITS = 1, 32
_HALVINGS = 3, 96
_BUDGET = 1e8
# The number of splits into halves that show the error of a regression at coordinates that occur again.
_SPLITS_FOR_MISSED = 8
_ON_A_SURFACE = Shift(
    math.inf,
    "At the scale of the distances between neighboring draws, one side's draws fill fewer dimensions than the other "
    "side's draws. On a curved surface, KL would be infinite: the upper limit is infinite.",
)


_ARGUMENTS = Arguments("density_ratio", folds=Whole(least=2, example=5))


@from_draws
def density_ratio(
    p: Draws,
    q: Draws,
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    folds: int = 5,
    classifier: object = None,
) -> Evidence:
    r"""Estimate KL(P || Q) by classifiers of the draws; suitable for more than ten dimensions and smooth densities.

    .. math::
        \widehat{KL} = \frac1n \sum_i \hat f(x_i), \quad
        \hat f(x) = \log\frac{\hat c(x)}{1 - \hat c(x)} + \log\frac mn

    The candidate classifiers are linear, quadratic and spline regressions, boosted trees and the ratio of fitted
    Gaussian densities. All regressions are logistic. One quadratic regression has asinh-scaled coordinates, and one
    spline regression has products of coordinates. From 4 dimensions on, one quadratic regression has the logarithms of
    squares. The value is a weighted mean over the candidates with the smallest losses in cross-validation. The weights
    decrease exponentially with the loss, and a note names the candidates and their weights.

    Each draw is evaluated by an :math:`\hat f` that was fitted without the draw's fold and calibrated to the labels.
    The value is extrapolated to infinitely many draws, from fits to half of the draws and fits to all folds but one.
    The value is also a mean over random splits. For regressions, there are up to 32 splits into folds and up to 96 into
    halves; the numbers decrease with the numbers of draws and features. For other candidates, there is 1 split into
    folds, and there are 3 into halves. For Gaussian densities, the value needs no splits: it is the unbiased estimate
    of KL between Gaussians.

    If all components have two values, the candidates are linear and quadratic regression and trees. If at least a
    quarter of the draws equals another one, the sides of equal draws then show how much of the log-ratio the
    classifiers miss. The upper limit allows for it, and is infinite if it is significant.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of P, floating-point, shape (n, d), with their weights and clusters, if any.
        q: draws of Q, shape (m, d).
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the seed of the splits and of the trees depends on the draws alone.
        folds: the number of folds of cross-validation; all draws of a cluster are in one fold.
        classifier: a classifier with scikit-learn's methods, which replaces the candidates and is cloned for each fit.
            For weighted draws, its method ``fit`` must accept ``sample_weight``.

    Returns:
        the estimate in nats. The standard error combines the influences of all draws with the difference between fits
        to half of the draws and to nearly all draws.

    Raises:
        ArgumentTypeError: the draws are categories.
        ArgumentValueError: a side has fewer than two draws (or clusters) for each fold, a draw is infinite, or `p` and
            `q` have different numbers of components.
        OptionalDependencyError: scikit-learn or SciPy is not installed.

    Gradient:
        none, because the classifier is a constant.

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
    check_classifier(call, classifier)
    folds = _ARGUMENTS.check(folds=folds)["folds"]
    _check_sides(call, p, q, folds)
    orders = p.order, q.order
    p, q = p.taken(orders[0]), q.taken(orders[1])
    n, span = (p.number, q.number), common_span(p, q)
    if span.infinite:
        return infinite(span.infinite, n)
    sides = span.p, span.q
    draws = Labeled.of(*sides)
    rng = rng_of(p, q)
    seed = int(rng.integers(2**31))
    deep, halves = (
        [_folds(draws, number, rng) for _ in range(_number_of_splits(limits, len(draws.x)))]
        for number, limits in ((folds, _SPLITS), (2, _HALVINGS))
    )
    with progress_bar("fits") as update, _few_threads(len(draws.x)):
        work = _Work(draws, deep, halves, update)
        if classifier is not None:
            selected = [_Selected(users_candidate(classifier, seed), 1.0)]
        else:
            selected = _select(candidates_for(draws, seed), work, rng)
        result = _combined(selected, sides, work)
        scores = work.scores(selected[0])
        rest = _missed(selected[0], work, confidence)
    evidence = replace(_evidence(result, selected, sides, scores, confidence, span.notes, rest), n=n)
    if evidence.influence is None:
        return evidence
    one, other = (x[np.argsort(order)] for x, order in zip(evidence.influence, orders, strict=True))
    return replace(evidence, influence=(one, other))


def _few_threads(number: int) -> AbstractContextManager[object]:
    """Return a context that limits fits to few draws to one thread: several threads would wait for each other."""
    few = number <= _DRAWS_FOR_THREADS
    return load("threadpoolctl", "density_ratio").threadpool_limits(1) if few else nullcontext()


@dataclass(frozen=True)
class _RatioValue:
    """An estimate of KL, the influence of each draw, an additional standard error, and the largest bias upwards."""

    value: float
    influence: Array
    beyond: float
    bias_low: float = 0.0


@dataclass
class _Work:
    """The pooled draws, their random splits into folds (`deep`) and into halves, and the number of fits so far.

    `features` has the features of the draws, by the name of the candidate and the number of draws.
    """

    draws: Labeled
    deep: list[Integers]
    halves: list[Integers]
    update: Update | None
    fits: int = 0
    features: dict[tuple[str, int], Array] = field(default_factory=dict)

    def applied(self, fit: FitClassifier, train: Labeled, test: Labeled) -> Array:
        """Return the log-odds of the draws `test` by a fit to the draws `train`; NaN if `train` has too few draws."""
        try:
            return fit(train)(test.x)
        except np.linalg.LinAlgError:
            return np.full(len(test.x), np.nan)
        finally:
            self.fits += 1
            if self.update:
                self.update(self.fits, None)

    def without_fold(self, candidate: NamedClassifier, draws: Labeled, splits: list[Integers]) -> list[Array]:
        """Return, for each split, the log-odds of each draw by a classifier that was fitted without the draw's fold."""
        draws = self.featured(candidate, draws)
        log_odds = [np.empty(len(draws.x)) for _ in splits]
        for folds, one in zip(splits, log_odds, strict=True):
            for fold in range(int(folds.max()) + 1):
                out = folds == fold
                one[out] = self.applied(candidate.fits[0], draws.take(~out), draws.take(out))
        return log_odds

    def scores(self, one: _Selected) -> Array:
        """Return the calibrated log-ratio of each draw by classifiers of `one` that were fitted without the draw."""
        raw = one.raw or self.without_fold(one.candidate, self.draws, self.deep[:1])
        return calibrated(np.mean(raw, axis=0), self.draws)[0] - self.draws.log_prior_odds

    def featured(self, candidate: NamedClassifier, draws: Labeled) -> Labeled:
        """Return the draws with the candidate's features in place of their coordinates."""
        # `draws` is the set of all draws or the subset for the selection, so their number identifies the set.
        key = candidate.name, len(draws.x)
        if key not in self.features:
            self.features[key] = candidate.features(draws.x)
        return replace(draws, x=self.features[key])

    def number_of_splits(
        self, limits: tuple[int, int], candidate: NamedClassifier, draws: Labeled, share: float = 1.0
    ) -> int:
        """Return the number of random splits, within `limits`, for a candidate of weight `share` in the mean."""
        if not candidate.quick:
            return limits[0]
        return _number_of_splits(limits, len(draws.x), self.featured(candidate, draws).x.shape[1], share)


def _number_of_splits(limits: tuple[int, int], number: int, features: int = 0, share: float = 1.0) -> int:
    """Return the number of random splits, within `limits`, that the budget allows for these draws and features."""
    fewest, most = limits
    affordable = int(most / _SPLITS[1] * _BUDGET / (number * (10 + features) ** 2))
    return max(math.ceil(share * min(affordable, most)), fewest)


@dataclass(frozen=True)
class _Selected:
    """A candidate with its best penalty, and its share in the mean over the candidates.

    `raw` has the cross-validated log-odds of all draws for each split, or is None after a selection on a subset.
    """

    candidate: NamedClassifier
    share: float
    raw: list[Array] | None = None


def _select(candidates: list[NamedClassifier], work: _Work, rng: np.random.Generator) -> list[_Selected]:
    """Return the candidates with the smallest cross-validated losses, in order of decreasing weight exp(-total loss).

    Using Stacking to Average Bayesian Predictive Distributions (Yao et al., 2018) calls the weights pseudo-BMA.
    """
    used = _subset(work.draws, rng)
    some, splits = work.draws.take(used), [folds[used] for folds in work.deep]
    # For a side with clusters, the standard error of a mean loss uses the number of clusters, not of draws.
    sides = some.from_p, ~some.from_p
    independent = min(len(np.unique(some.units[side])) / int(side.sum()) for side in sides)
    trials = [
        (candidate, *_with_best_penalty(candidate, work, some, [splits[0] == 0])) for candidate in candidates
    ]
    trials = [trial for trial in trials if np.isfinite(trial[2]).all()]
    least = min(trials, key=lambda trial: float(trial[2].sum()))[2]
    accepted: list[tuple[float, NamedClassifier, list[Array]]] = []
    for candidate, best, losses in trials:
        excess = losses - least
        if excess.mean() > _DROP_ABOVE * excess.std() / math.sqrt(len(excess) * independent):
            continue
        # The selection uses an eighth of the splits, which is sufficient.
        some_splits = splits[: math.ceil(work.number_of_splits(_SPLITS, candidate, some) / 8)]
        folds = [split == fold for split in some_splits for fold in range(int(split.max()) + 1)]
        one = _with_best_penalty(candidate, work, some, folds)[0] if candidate.quick else best
        raw = work.without_fold(one, some, some_splits)
        if not np.isfinite(raw).all():
            continue
        log_odds = [calibrated(of_split, some)[0] for of_split in raw]
        if heaviness(np.mean(log_odds, axis=0)[some.from_p]) < _HEAVY:
            loss = float(np.mean([some.weights @ log_loss(of_split, some) for of_split in log_odds]))
            accepted.append((loss, one, raw))
    # The last candidate has gradient-boosted trees. It is always valid, because the log-odds of trees are bounded.
    if not accepted:
        trees = trials[-1][1]
        accepted = [(0.0, trees, work.without_fold(trees, some, splits[:1]))]
    best = min(loss for loss, _, _ in accepted)
    shares = [math.exp((best - loss) * independent) for loss, _, _ in accepted]
    total = sum(share for share in shares if share > _LEAST_SHARE)
    selected = [
        _Selected(candidate, share / total, raw if used.all() else None)
        for share, (_, candidate, raw) in zip(shares, accepted, strict=True)
        if share > _LEAST_SHARE
    ]
    return sorted(selected, key=lambda one: -one.share)


def _with_best_penalty(
    candidate: NamedClassifier, work: _Work, draws: Labeled, folds: Sequence[Flags]
) -> tuple[NamedClassifier, Array]:
    """Return the candidate with its best penalty only, and its weighted losses on the held-out folds of `draws`."""
    draws = work.featured(candidate, draws)
    parts = [(draws.take(~fold), draws.take(fold)) for fold in folds]
    best, least = 0, np.full(sum(len(test.x) for _, test in parts), np.inf)
    for index, fit in enumerate(candidate.fits):
        losses = np.concatenate(
            [test.weights * log_loss(work.applied(fit, train, test), test) for train, test in parts]
        )
        if not losses.mean() < least.mean():
            break  # the next penalties are weaker and overfit more
        best, least = index, losses
    return candidate.only(best), least


def _combined(selected: list[_Selected], sides: tuple[Draws, Draws], work: _Work) -> _RatioValue:
    """Return the weighted mean of the values of the candidates; the variance between these values enters the error."""
    parts = [
        (one.share, _gaussian(*sides) if one.candidate.name == GAUSSIAN else _direct(one, work))
        for one in selected
    ]
    value = sum(share * part.value for share, part in parts)
    influence = sum((share * part.influence for share, part in parts), np.zeros(len(work.draws.x)))
    spread = sum(share * (part.beyond**2 + (part.value - value) ** 2) for share, part in parts)
    bias_low = sum(share * part.bias_low for share, part in parts)
    return _RatioValue(value, influence, math.sqrt(spread), bias_low)


def _direct(one: _Selected, work: _Work) -> _RatioValue:
    """Return the mean over P of the calibrated log-ratio of one candidate, extrapolated to infinitely many draws.

    The bias is assumed to be inversely proportional to the number of draws in a fit. So it follows from fits to all
    folds but one and fits to half of the draws. It is subtracted from the value, and also enters the error.
    """
    candidate, draws = one.candidate, work.draws
    first = one.raw or []
    deep = work.deep[len(first) : work.number_of_splits(_SPLITS, candidate, draws, one.share)]
    raws = [*first, *work.without_fold(candidate, draws, deep)]
    values, influences = zip(*(mean_over_p(raw, draws) for raw in raws), strict=True)
    halves = work.halves[: work.number_of_splits(_HALVINGS, candidate, draws, one.share)]
    coarse = [mean_over_p(raw, draws)[0] for raw in work.without_fold(candidate, draws, halves)]
    nearly_all = 1 / (1 - 1 / (int(work.deep[0].max()) + 1))
    factor = nearly_all / (2 - nearly_all) if nearly_all < 2 else 1.0
    value = float(np.mean(values))
    step = factor * (value - float(np.mean(coarse)))
    of_splits = math.hypot((1 + factor) * _error_of_mean(values), factor * _error_of_mean(coarse))
    # A quadratic function of the logarithms of squares is not the log-ratio of a mixture of scales. In 10 dimensions,
    # the mean of this function over P is above KL even without the extrapolation (benchmarks/coverage.py, "one scale").
    # So an increase by the extrapolation counts as a possible bias upwards.
    bias_low = max(step, 0.0) if candidate.name == SPREADS else 0.0
    return _RatioValue(value + step, np.mean(influences, axis=0), math.hypot(step, of_splits), bias_low)


def _missed(best: _Selected, work: _Work, confidence: float) -> Shift | None:
    """Return the increase of the upper limit for what the best candidate may miss; None unless enough draws repeat."""
    draws = work.draws
    if not have_two_values(draws.x) or share_of_repeated(draws.x, draws.units) < LEAST_SHARE:
        return None
    halves = work.halves[: _SPLITS_FOR_MISSED if best.candidate.quick else _HALVINGS[0]]
    log_odds = [calibrated(raw, draws)[0] for raw in work.without_fold(best.candidate, draws, halves)]
    return missed(draws, halves, log_odds, confidence)


def _error_of_mean(values: Sequence[float]) -> float:
    """Return the standard error of the mean of values from random splits, or 0 for a single value."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _gaussian(p: Draws, q: Draws) -> _RatioValue:
    """Return the estimate between Gaussians, with the second-order error, which remains at P = Q."""
    n, m = (_independent(side) for side in (p, q))
    value, *influence = gaussian_kl(p.x, q.x, p.shares * len(p), q.shares * len(q), n, m)
    d = p.x.shape[1]
    second_order = 0.5 * (d + d * (d + 1) / 2) * (1 / n + 1 / m) ** 2
    return _RatioValue(value, np.concatenate(influence), math.sqrt(second_order))


def _independent(side: Draws) -> float:
    """Return the effective sample size of a side for the sample means and covariances of its draws."""
    scores = (side.x - side.x.mean(0)) / np.maximum(side.x.std(0), np.finfo(np.float64).tiny)
    number = number_from_scores(np.concatenate([scores, scores**2], axis=1), side)
    return min(side.effective, max(number, side.x.shape[1] + 3.0))


def _rate(side: Draws, scores: Array) -> float:
    """Return the number r such that the draws of a side add r KL to the variance of the estimate of a small KL.

    Near P = Q, log(p / q) has the variance 2 KL, so r is 2 / n. For clusters, n is the smaller of two effective sample
    sizes: for the means of the components and of the scores.
    """
    scorings = [side.x] if np.ptp(scores) == 0 else [side.x, scores[:, None]]
    return 2 / min(number_from_scores(scoring, side) for scoring in scorings)


def _evidence(
    result: _RatioValue,
    selected: list[_Selected],
    sides: tuple[Draws, Draws],
    scores: Array,
    confidence: float,
    notes: Sequence[str],
    rest: Shift | None,
) -> Evidence:
    """Return the evidence; the upper limit is infinite if many of P's scores are above all of Q's."""
    p, q = sides
    shares = ", ".join(f"{one.candidate.name} {one.share:.0%}" for one in selected)
    of_p, of_q = scores[: len(p)], scores[len(p) :]
    evidence = Evidence(
        result.value,
        influence=(result.influence[: len(p)], result.influence[len(p) :]),
        error=result.beyond,
        notes=[
            *notes,
            *_few_draws(p, q),
            f"The classifiers, with weights by their cross-validated loss: {shares}.",
        ],
        groups=min(p.groups, q.groups),
        rate=_rate(p, of_p) + _rate(q, of_q),
        bias_low=result.bias_low,
    )
    if float(p.shares @ (of_p > of_q.max())) > _MOST_BEYOND or result.value > math.log(len(q)):
        return _from_scores(evidence, of_p, of_q, sides, confidence)
    if rest is None and fills_less(p.x, q.x):
        return replace(evidence, beyond=lambda _: _ON_A_SURFACE)
    number = p.effective * p.groups / len(p)
    pairs = [(of_p, of_q), *zip(p.x.T, q.x.T, strict=True)]
    unseen = unseen_in_scores(pairs, p.shares, number, log_ratios=True)
    if rest is None:
        return replace(evidence, beyond=partial(upper_end, unseen))

    def beyond(half_width: float) -> Shift:
        nats, note = upper_end(unseen, half_width)
        return Shift(nats + rest.nats, " ".join(filter(None, (note, rest.note))))

    return replace(evidence, beyond=beyond)


def _few_draws(p: Draws, q: Draws) -> list[str]:
    """Return a note if there are fewer draws than components, which may be a transposed tensor."""
    draws, components = min(len(p), len(q)), p.x.shape[1]
    if draws >= components:
        return []
    advice = "If each row has all draws of one component, pass Samples(x, dim=0)."
    return [f"There are fewer draws ({draws}) than components ({components}). {advice}"]


def _from_scores(
    evidence: Evidence, of_p: Array, of_q: Array, sides: tuple[Draws, Draws], confidence: float
) -> Evidence:
    """Return the evidence with a lower limit from the divergence of the classifier's scores, which is at most KL.

    The upper limit is infinite. This divergence replaces a value below it, or above 2 log m for m draws of Q.
    """
    p, q = (
        replace(side.at(score[:, None]), exponent=0) for score, side in zip((of_p, of_q), sides, strict=True)
    )
    of_scores = evidence_by(histogram, p, q, confidence=confidence)
    low = 0.0 if of_scores.ends is None else of_scores.ends[0]
    note = (
        f"The classifier separates many of {SIDE_P}'s draws from all of {SIDE_Q}'s, so KL could be arbitrarily large: "
        "the upper limit is infinite. The lower limit comes from the divergence of the classifier's scores, which is a "
        "lower bound of KL."
    )
    evidence = replace(evidence, ends=(low, math.inf))
    raw = float(evidence.value)
    if of_scores.value <= max(raw, 0.0) <= 2 * math.log(len(of_q)):
        return noted(evidence, after=[note])
    evidence = noted(evidence, note_on_sign(raw, error_of(evidence, sides)), [f"{note} So does the value."])
    return replace(evidence, value=of_scores.value, influence=None, error=None)


def _check_sides(call: str, p: Draws, q: Draws, folds: int) -> None:
    if p.discrete:
        raise invalid_type(
            call,
            "p, q",
            wanted="floating-point numbers",
            got=f"categories: {p!r}",
            instead="kl_estimate(p, q) for categories; or Samples(x.double()) to read integers as numbers",
        )
    for name, draws in (("p", p), ("q", q)):
        if draws.groups < 2 * folds:
            raise invalid_value(
                call,
                f"{name}, folds",
                wanted="two draws of each side, or two clusters of draws, for each fold",
                got=f"folds={folds} and {draws.groups} {'draws' if draws.cluster is None else 'clusters'} with weight",
                instead="Samples(x, dim=0), if each row has all draws of one component"
                if draws.groups < draws.x.shape[1]
                else "more draws, or kl_estimate(p, q, method='nearest_neighbors')",
            )


def _folds(draws: Labeled, folds: int, rng: np.random.Generator) -> Integers:
    """Return the number of a random fold for each draw; all folds get about equal numbers of units of each side."""
    fold = np.empty(int(draws.units.max()) + 1, dtype=np.int64)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        fold[units] = rng.permutation(len(units)) % folds
    return fold[draws.units]


def _subset(draws: Labeled, rng: np.random.Generator) -> Flags:
    """Return a mask of random draws for the selection of candidates; it contains all draws or no draw of a cluster."""
    chosen = np.zeros(len(draws.x), dtype=bool)
    for side in (draws.from_p, ~draws.from_p):
        units = np.unique(draws.units[side])
        share = min(1.0, _SELECTION_DRAWS / int(side.sum()))
        some = rng.choice(units, max(1, round(share * len(units))), replace=False) if share < 1 else units
        chosen |= np.isin(draws.units, some)
    return chosen
