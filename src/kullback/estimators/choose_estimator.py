"""The choice of an estimator for draws, and the estimators by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch.distributions import Categorical, Distribution

from kullback.common.inputs import first_of, is_integer
from kullback.common.labels import Labels, same_labels
from kullback.errors import (
    ArgumentValueError,
    NoRuleError,
    explain,
    in_the_name_of,
    invalid_value,
    safe_repr,
)
from kullback.estimators.density_ratio.classifier_estimate import density_ratio
from kullback.estimators.dependence import Grouped, grouped
from kullback.estimators.directions import added, exchanged
from kullback.estimators.discrete.categorical_estimators import (
    augmented_plugin,
    coverage_adjusted,
    dirichlet,
    miller_madow,
    plugin,
    zhang_grabchak,
)
from kullback.estimators.discrete.counts import drawn_one_by_one, is_drawn
from kullback.estimators.discrete.kinds import bias_corrected, estimable, largest_of
from kullback.estimators.draws import in_usual_units
from kullback.estimators.histogram import histogram
from kullback.estimators.knn.data import RepeatedDrawsError
from kullback.estimators.knn.neighbor_estimate import nearest_neighbors
from kullback.estimators.known_density import from_density
from kullback.estimators.lattice import DRAWS_FOR_VALUE, FEWEST_VALUES, as_categories
from kullback.estimators.sample_checks import INTERVAL, check_samples, seed_of
from kullback.estimators.shared_draws import Shared, shared_draws
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.representations import Counts, Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

Estimator = Callable[..., Estimate]

CATEGORICAL: dict[str, Estimator] = {
    "coverage_adjusted": coverage_adjusted,
    "zhang_grabchak": zhang_grabchak,
    "plugin": plugin,
    "miller_madow": miller_madow,
    "augmented_plugin": augmented_plugin,
    "dirichlet": dirichlet,
    "bias_corrected": bias_corrected,
}
CONTINUOUS: dict[str, Estimator] = {
    "histogram": histogram,
    "nearest_neighbors": nearest_neighbors,
    "density_ratio": density_ratio,
}
METHODS = ("auto", *CATEGORICAL, *CONTINUOUS, "from_density")

# In more dimensions, all neighbors are about equally far, and the ratio of distances is biased for any number of draws.
MOST_DIMENSIONS_FOR_NEIGHBORS = 10
FEWEST_FOR_CLASSIFIER = 50


def estimate_from_samples(
    call: str,
    p: object,
    q: object,
    kind: Divergence,
    method: str = "auto",
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Estimate:
    """Estimate a divergence with `Samples` on at least one side, by the named estimator or the suitable one."""
    INTERVAL.check(call, confidence=confidence, generator=generator)
    notes = _note_on_amounts(p, q)
    if isinstance(p, Counts) != isinstance(q, Counts):  # counts of draws are draws
        p, q = (drawn_one_by_one(call, x) if isinstance(x, Counts) and is_drawn(x) else x for x in (p, q))
    kind = estimable(call, kind)
    settings = _Settings(call, method, confidence, generator)
    with in_the_name_of(call, METHODS):
        estimate = _in_groups(settings, p, q, kind)
    return replace(estimate, confidence=float(confidence), notes=(*notes, *estimate.notes))


def _note_on_amounts(p: object, q: object) -> tuple[str, ...]:
    """Return a note if draws of integers have so many values that they may be amounts, whose distances matter."""
    if not (isinstance(p, Samples) and isinstance(q, Samples) and p.tensor.shape[1] == q.tensor.shape[1]):
        return ()
    if not (is_integer(p.tensor) and is_integer(q.tensor)) or p.labels is not None or q.labels is not None:
        return ()
    draws = len(p) + len(q)
    categories = len(torch.unique(torch.cat([p.tensor.cpu(), q.tensor.cpu()]), dim=0))
    if categories <= max(FEWEST_VALUES, draws / DRAWS_FOR_VALUE):
        return ()
    note = (
        f"The draws are integers, which count as {categories:,} categories, with {draws / categories:.2g} draws each. "
        "If they are amounts, whose distances matter, write Samples(x.astype(float)), or Samples(x.double()) for a "
        "tensor."
    )
    return (note,)


def _in_groups(settings: _Settings, p: object, q: object, kind: Divergence) -> Estimate:
    """Estimate from draws in the groups that their order shows; without an error if there are too few groups."""
    if isinstance(p, Samples) and isinstance(q, Samples):
        p, q = in_usual_units(p, q)
    first, second = grouped(p, "P"), grouped(q, "Q")
    notes = (*first.notes, *second.notes)
    shared = None if settings.method == "nearest_neighbors" else shared_draws(p, q)
    if shared is not None:
        in_clusters = shared.p.cluster is not None or shared.q.cluster is not None
        if not notes and not in_clusters and shared.are_alone:
            return _of_shared(settings, shared, kind)
        return _opened(_of_groups(settings, p, q, kind, first, second), shared, kind)
    return _of_groups(settings, p, q, kind, first, second)


def _of_shared(settings: _Settings, shared: Shared, kind: Divergence) -> Estimate:
    """Return the mean of two estimates, with each shared draw on one side only, and the hull of their intervals."""
    rng = np.random.default_rng(seed_of(settings.generator))
    one, other = (_by_kind(settings, *sides, kind) for sides in shared.divided(rng))
    interval = standard_error = None
    if one.interval is not None and other.interval is not None:
        low, high = zip(one.interval, other.interval, strict=True)
        interval = torch.minimum(*low), torch.maximum(*high)
    if one.standard_error is not None and other.standard_error is not None:
        standard_error = torch.maximum(one.standard_error, other.standard_error)
    note = (
        f"{shared.sentence} Each of these counts on one side only, with twice the weight. The value is the mean of two "
        "such estimates, and the interval contains the intervals of both."
    )
    return replace(
        one,
        value=(one.value + other.value) / 2,
        interval=interval,
        standard_error=standard_error,
        n=(len(shared.p), len(shared.q)),
        notes=(note, *dict.fromkeys((*one.notes, *other.notes))),
    )


def _opened(estimate: Estimate, shared: Shared, kind: Divergence) -> Estimate:
    """Return an estimate from sides that share draws, with the largest upper limit."""
    largest = largest_of(kind)
    note = f"{shared.sentence} The value is likely too low, and the upper limit is {largest:.4g}."
    interval = estimate.interval
    if interval is not None:
        interval = torch.zeros_like(interval[0]), torch.full_like(interval[1], largest)
    return replace(estimate, interval=interval, notes=(note, *estimate.notes))


def _of_groups(
    settings: _Settings, p: object, q: object, kind: Divergence, first: Grouped, second: Grouped
) -> Estimate:
    notes = (*first.notes, *second.notes)
    if not notes:
        return _by_kind(settings, p, q, kind)
    too_few = first.is_open or second.is_open
    try:
        estimate = _by_kind(settings, first.samples, second.samples, kind)
    except ArgumentValueError:  # of an estimator that takes more groups than there are
        estimate, too_few = _by_kind(settings, p, q, kind), True
        notes = (*notes, f"These are too few for {estimate.method!r}: there is no interval.")
    if too_few and bool(estimate.value.isfinite()):
        estimate = replace(estimate, interval=None, standard_error=None)
    wider = math.sqrt(max(first.correction, second.correction))
    estimate = _widened(estimate, wider, largest_of(kind))
    return replace(estimate, notes=(*notes, *estimate.notes))


def _widened(estimate: Estimate, factor: float, largest: float) -> Estimate:
    """Return an estimate with its standard error and interval widened by a factor, within 0 and `largest`."""
    if factor == 1.0 or not bool(estimate.value.isfinite()):
        return estimate
    if estimate.standard_error is not None:
        estimate = replace(estimate, standard_error=factor * estimate.standard_error)
    if estimate.interval is None:
        return estimate
    low, high = (
        (estimate.value + factor * (end - estimate.value)).clamp(0, largest) for end in estimate.interval
    )
    return replace(estimate, interval=(low, high))


def _by_kind(settings: _Settings, p: object, q: object, kind: Divergence) -> Estimate:
    call = settings.call
    if isinstance(kind, ReverseKL):
        return exchanged(lambda: _kl(settings, q, p))
    if isinstance(kind, Jeffreys):
        return added(_kl(settings, p, q), exchanged(lambda: _kl(settings, q, p)))
    if not isinstance(kind, KL):
        if settings.method in ("auto", "bias_corrected") and _is_categorical(p) and _is_categorical(q):
            return bias_corrected(p, q, kind, confidence=settings.confidence)
        if settings.method in ("auto", "histogram") and _is_number(p) and _is_number(q):
            categories = as_categories(p, q) if settings.method == "auto" else None
            if categories is None:
                return histogram(p, q, kind=kind, **settings.options)
            estimate = bias_corrected(*categories[:2], kind, confidence=settings.confidence)
            return replace(estimate, notes=(categories[2], *estimate.notes))
        raise NoRuleError(
            explain(
                call,
                "kind",
                wanted="KL(), ReverseKL() or Jeffreys(); for other kinds, draws of categories or numbers on both "
                "sides, no method",
                got=f"{safe_repr(kind)}, method={settings.method!r}, {p!r} and {q!r}",
                instead=_instead_of_kind(settings, p, q),
            )
        )
    return _kl(settings, p, q)


def _instead_of_kind(settings: _Settings, p: object, q: object) -> str:
    """Return the call that estimates a kind other than KL from these draws."""
    call, sides = settings.call, (p, q)
    if any(isinstance(x, Samples) and not x.discrete and not _is_number(x) for x in sides):
        cells = [f"Counts(torch.histogramdd({x}, edges).hist.flatten())" for x in "xy"]
        return (
            f"{call}({cells[0]}, {cells[1]}, kind) of the draws x and y, which compares their cells; for a torch "
            "distribution q, y = q.sample((n,))"
        )
    if isinstance(q, Distribution):
        return f"{call}(p, Samples(q.sample((n,))), kind)"
    if isinstance(p, Distribution):
        return f"{call}(Samples(p.sample((n,))), q, kind)"
    if all(isinstance(x, Samples | Counts) for x in sides):
        if settings.method != "auto":
            return f"{call}(p, q, kind) without method"
        return "Samples(x.long()) on both sides for categories, Samples(x.double()) for numbers"
    return "Counts(torch.bincount(x.long(), minlength=classes)) in place of Samples(x)"


def _is_number(x: object) -> TypeGuard[Samples]:
    return isinstance(x, Samples) and not x.discrete and x.tensor.shape[1] == 1


def _is_categorical(x: object) -> TypeGuard[Samples | Counts]:
    return isinstance(x, Counts) or (isinstance(x, Samples) and x.discrete)


class _Settings(NamedTuple):
    call: str
    method: str
    confidence: float
    generator: torch.Generator | None

    @property
    def options(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "generator": self.generator}


def _kl(settings: _Settings, p: object, q: object) -> Estimate:
    if isinstance(p, Counts) and isinstance(q, Counts):
        return CATEGORICAL[settings.method](p, q, **settings.options)
    if isinstance(p, Samples) and isinstance(q, Samples):
        check_samples(settings.call, p, q)
        return _between_samples(settings, p, q)
    if isinstance(p, Samples):
        p, q = _by_label(p, q)
        return _to_density(settings, p, _as_distribution(settings.call, p, q))
    raise NoRuleError(
        explain(
            settings.call,
            "p, q",
            wanted="draws of P",
            got=f"{type(p).__name__} and {type(q).__name__}: draws of Q do not show Q where only P has mass",
            instead=f"{settings.call}(Samples(p.sample((n,))), q) for a torch distribution p, or "
            "Counts(torch.bincount(y), prior=0.5) for categories y drawn from Q",
        )
    )


def _between_samples(settings: _Settings, p: Samples, q: Samples) -> Estimate:
    estimator = _estimator(settings, p)
    categories = as_categories(p, q) if settings.method == "auto" and estimator is histogram else None
    if categories is not None:
        estimate = coverage_adjusted(*categories[:2], **settings.options)
        return replace(estimate, notes=(categories[2], *estimate.notes))
    if settings.method != "auto" or estimator is not nearest_neighbors:
        return estimator(p, q, **settings.options)
    if p.cluster is not None or q.cluster is not None:
        return density_ratio(p, q, **settings.options)
    try:
        estimate = nearest_neighbors(p, q, **settings.options)
    except RepeatedDrawsError as refusal:
        estimate = density_ratio(p, q, **settings.options)
        return replace(estimate, notes=(*estimate.notes, f"Not by nearest neighbors: {refusal}"))
    is_bounded = estimate.interval is not None and bool(estimate.interval[1].isfinite())
    if min(len(p), len(q)) < FEWEST_FOR_CLASSIFIER or is_bounded or bool(estimate.value.isinf()):
        return estimate
    return density_ratio(p, q, **settings.options)


def _estimator(settings: _Settings, p: Samples) -> Estimator:
    candidates = CATEGORICAL if p.discrete else CONTINUOUS
    name = settings.method
    if name == "auto":  # the best estimator for such draws in the benchmarks
        d = p.tensor.shape[1]
        name = "nearest_neighbors" if d <= MOST_DIMENSIONS_FOR_NEIGHBORS else "density_ratio"
        name = "coverage_adjusted" if p.discrete else "histogram" if d == 1 else name
    if name not in candidates:
        raise invalid_value(
            settings.call,
            "method",
            wanted=f"'auto' or, for {'categories' if p.discrete else 'numbers'}, one of "
            + ", ".join(map(repr, candidates)),
            got=f"{name!r} for {p!r}",
            instead="Samples(x.long()) for categories, Samples(x.double()) for numbers",
        )
    return candidates[name]


def _to_density(settings: _Settings, p: Samples, q: Distribution) -> Estimate:
    if settings.method not in ("auto", "from_density"):
        raise invalid_value(
            settings.call,
            "method",
            wanted="'auto' or 'from_density': the entropy of the draws and the mean of Q's log-density",
            got=safe_repr(settings.method),
            instead=f"{settings.call}(p, Samples(q.sample((n,))), method={settings.method!r}), which compares draws "
            "with draws",
        )
    return from_density(p, q, **settings.options)


def _by_label(p: Samples, q: object) -> tuple[Samples, object]:
    """Return draws as numbers of Q's classes if Q has labels."""
    if not isinstance(q, Representation) or q.labels is None or not p.discrete or p.tensor.shape[1] > 1:
        return p, q
    if p.labels is None and same_labels(q.labels, tuple(range(q.classes))):
        return p, q
    names, codes = p.labels, p.tensor[:, 0]
    if names is None:
        values, codes = torch.unique(codes, return_inverse=True)
        names = tuple(values.tolist())
    known = Counts(torch.ones(len(names), dtype=torch.int64), labels=names).aligned_with(q)[1]
    place = {label: i for i, label in enumerate(cast("Labels", known.labels))}
    numbers = torch.tensor([place[name] for name in names], device=codes.device)
    p = copy.copy(p)
    p.tensor, p.labels = numbers[codes][:, None], None
    return p, known


def _as_distribution(call: str, p: Samples, q: object) -> Distribution:
    """Return Q as a distribution: itself, or the probabilities of the categories 0, 1, ..."""
    if isinstance(q, Representation) and p.discrete and p.labels is None and not q.batch_shape:
        return _categorical(call, p, q)
    if not isinstance(q, Distribution):
        raise NoRuleError(
            explain(
                call,
                "q",
                wanted="draws, a torch distribution or, for draws of the integers 0, 1, ..., one row of probabilities",
                got=f"{q!r} for p = {p!r}",
                instead="Samples(y) with draws y of Q",
            )
        )
    return q


def _categorical(call: str, p: Samples, q: Representation) -> Distribution:
    outside = (p.tensor < 0) | (p.tensor >= q.classes)
    if bool(outside.any()):
        raise invalid_value(
            call,
            "p",
            wanted=f"categories from 0 to {q.classes - 1}, the classes of q",
            got=f"others ({first_of(outside)})",
            instead="a q with a class for each category, of probability 0 if it cannot occur",
        )
    probabilities = q.weights().double()
    if q.in_logs:
        return Categorical(logits=probabilities, validate_args=False)
    return Categorical(probs=probabilities, validate_args=False)
