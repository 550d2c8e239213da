"""The function `estimate_from_samples`, which chooses an estimator for draws, or takes the estimator with a name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import torch
from torch.distributions import Categorical, Distribution

from kullback.common.inputs import first_of, is_integer
from kullback.common.labels import Labels, same_labels
from kullback.errors import ArgumentValueError, in_the_name_of, invalid_value, no_rule, safe_repr
from kullback.estimators.density_ratio.classifier_estimate import density_ratio
from kullback.estimators.density_ratio.classifiers import LEAST_SHARE, share_of_repeated
from kullback.estimators.dependence import Grouped, Shared, grouped, shared_draws
from kullback.estimators.discrete.categorical_estimators import (
    bias_corrected,
    coverage_adjusted,
    estimable,
    largest_of,
)
from kullback.estimators.discrete.counts import drawn_one_by_one, is_drawn
from kullback.estimators.draws import Draws, checked, checked_side, without_noise
from kullback.estimators.evidence import (
    SIDE_P,
    SIDE_Q,
    SMALL_P,
    SMALL_Q,
    Evidence,
    by_direction,
    estimate_of,
    noted,
    of_two,
    opened,
    widened,
    without_interval,
)
from kullback.estimators.histogram import DRAWS_FOR_VALUE, FEWEST_VALUES, as_categories, histogram
from kullback.estimators.knn.data import RepeatedDrawsError
from kullback.estimators.knn.neighbor_estimate import nearest_neighbors
from kullback.estimators.known_density import from_density
from kullback.estimators.registry import (
    CATEGORICAL,
    CONTINUOUS,
    METHODS,
    device_of,
    enlist,
    evidence_by,
    rng_of,
)
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.representations import Counts, Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

for _one in (histogram, nearest_neighbors, density_ratio):
    enlist(_one)
METHODS.append("from_density")

# In more dimensions, the distances to all neighbors are about equal, and their ratio is biased for any number of draws.
# `benchmarks/bench_samples.py` compares the estimators.
MOST_DIMENSIONS_FOR_NEIGHBORS = 10
# If P or Q has fewer draws, a fold in the cross-validation of a classifier has too few draws.
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
    """Return the estimate of a divergence from `Samples` or `Counts` on at least one side.

    The other side may be a distribution or probabilities. `call` is the name of the call, for errors. The method
    ``"auto"`` chooses an estimator for these draws.
    """
    if isinstance(p, Counts) != isinstance(q, Counts):  # counts of draws are draws
        p, q = (drawn_one_by_one(call, x) if isinstance(x, Counts) and is_drawn(x) else x for x in (p, q))
    kind = estimable(call, kind)
    settings = _Settings(call, method, confidence, generator)
    _check_kind(settings, p, q, kind)
    with in_the_name_of(call, METHODS):
        if isinstance(p, Samples | Draws) and isinstance(q, Samples | Draws):
            p, q = checked(call, p, q)
        else:
            p, q = (
                without_noise(checked_side(call, name, x))[0] if isinstance(x, Samples) else x
                for name, x in (("p", p), ("q", q))
            )
        evidence = _in_groups(settings, p, q, kind)
        evidence = noted(evidence, _notes_on_values(p, q, evidence.ends))
    drawn = p if isinstance(p, Draws) or not isinstance(q, Draws) else q
    return replace(estimate_of(evidence, device_of(drawn)), confidence=float(confidence))


def _notes_on_values(p: object, q: object, ends: tuple[Any, Any] | None) -> list[str]:
    """Return notes on draws that were made equal, and on categories with few draws each.

    Integers with many values may be amounts. Vectors that leave the interval open have fewer values if some of their
    components are left out.
    """
    notes: list[str] = []
    for name, side in ((SIDE_P, p), (SIDE_Q, q)):
        if isinstance(side, Draws) and side.merged:
            notes.append(
                f"{side.merged:,} of {name}'s draws differ from another one by a rounding error only. They count as "
                "equal."
            )
    if not (isinstance(p, Draws) and isinstance(q, Draws)) or p.labels is not None or not p.discrete:
        return notes
    components = p.tensor.shape[1]
    if components > 1 and (ends is None or not ends[1] < math.inf):
        half = f"Samples(x[:, :{(components + 1) // 2}])"
        notes.append(
            f"Each different vector of {components} components is a category. The divergence of some of the "
            f"components, such as {half}, is at most the divergence of all, and its interval needs fewer draws."
        )
    if not (is_integer(p.tensor) and is_integer(q.tensor)):
        return notes
    draws = p.number + q.number
    categories = len(torch.unique(torch.cat([p.tensor.cpu(), q.tensor.cpu()]), dim=0))
    if categories <= max(FEWEST_VALUES, draws / DRAWS_FOR_VALUE):
        return notes
    note = (
        f"The draws are integers, which count as {categories:,} categories, with {draws / categories:.2g} draws each. "
        "If they are amounts, whose distances matter, write Samples(x.astype(float)), or Samples(x.double()) for a "
        "tensor."
    )
    return [*notes, note]


def _in_groups(settings: _Settings, p: object, q: object, kind: Divergence) -> Evidence:
    """Return the evidence after tests for dependence within the draws and for draws that P and Q share.

    Serially dependent draws become clusters. If P and Q share draws, each shared draw is kept on one side only. If this
    is not possible, the interval is the widest possible one.
    """
    first, second = grouped(p, q)
    notes = (*first.notes, *second.notes)
    shared = None
    if isinstance(p, Draws) and isinstance(q, Draws) and settings.method != "nearest_neighbors":
        shared = shared_draws(p, q)
        in_clusters = p.cluster is not None or q.cluster is not None
        if shared is not None and not notes and not in_clusters and shared.are_alone:
            return _of_shared(settings, shared, kind)
    evidence = _of_groups(settings, p, q, kind, first, second)
    if shared is None:
        return evidence
    largest = largest_of(kind)
    note = shared.note(f"The value is likely too low, and the upper limit is {largest:.4g}.")
    return noted(opened(evidence, largest), [note])


def _of_shared(settings: _Settings, shared: Shared, kind: Divergence) -> Evidence:
    """Return the mean of two estimates with each shared draw on one side only.

    The interval contains the intervals of both estimates.
    """
    rng = rng_of(shared.p, shared.q)
    one, other = (_by_kind(settings, *sides, kind) for sides in shared.divided(rng))
    note = shared.note(
        "Each of these counts on one side only, with twice the weight. The value is the mean of two such estimates, "
        "and the interval contains the intervals of both."
    )
    return replace(noted(of_two(one, other), [note]), n=(len(shared.p), len(shared.q)))


def _of_groups(
    settings: _Settings, p: object, q: object, kind: Divergence, first: Grouped, second: Grouped
) -> Evidence:
    notes = (*first.notes, *second.notes)
    if not notes:
        return _by_kind(settings, p, q, kind)
    too_few = first.is_open or second.is_open
    try:
        evidence = _by_kind(settings, first.samples, second.samples, kind)
    except ArgumentValueError:  # of an estimator that takes more groups than there are
        evidence, too_few = _by_kind(settings, p, q, kind), True
        notes = (*notes, f"These are too few for {evidence.method!r}: there is no interval.")
    if too_few and math.isfinite(evidence.value):
        evidence = without_interval(evidence)
    wider = math.sqrt(max(first.correction, second.correction))
    return noted(widened(evidence, wider, largest_of(kind)), notes)


def _by_kind(settings: _Settings, p: object, q: object, kind: Divergence) -> Evidence:
    if isinstance(kind, KL | ReverseKL | Jeffreys):
        return by_direction(kind, partial(_kl, settings), p, q)
    if not _is_number(p) or not _is_number(q):
        return evidence_by(bias_corrected, p, q, kind, confidence=settings.confidence)
    few = as_categories(p, q) if settings.method == "auto" else None
    if few is not None:
        return noted(evidence_by(bias_corrected, *few[:2], kind, confidence=settings.confidence), [few[2]])
    return evidence_by(histogram, p, q, kind=kind, **settings.options)


def _check_kind(settings: _Settings, p: object, q: object, kind: Divergence) -> None:
    """Raise an error for divergences other than KL, unless both sides are draws of categories or draws of numbers."""
    if isinstance(kind, KL | ReverseKL | Jeffreys):
        return
    if settings.method in ("auto", "bias_corrected") and _is_categorical(p) and _is_categorical(q):
        return
    if settings.method in ("auto", "histogram") and _is_number(p) and _is_number(q):
        return
    raise no_rule(
        settings.call,
        "kind",
        wanted="KL(), ReverseKL() or Jeffreys(); for other kinds, draws of categories or numbers on both "
        "sides, no method",
        got=f"{safe_repr(kind)}, method={settings.method!r}, {p!r} and {q!r}",
        instead=_instead_of_kind(settings, p, q),
    )


def _instead_of_kind(settings: _Settings, p: object, q: object) -> str:
    """Return the code of a call that estimates a divergence other than KL from the draws p and q, for an error."""
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


def _is_number(x: object) -> TypeGuard[Draws]:
    return isinstance(x, Samples | Draws) and not x.discrete and x.tensor.shape[1] == 1


def _is_categorical(x: object) -> TypeGuard[Draws | Counts]:
    return isinstance(x, Counts) or (isinstance(x, Samples | Draws) and x.discrete)


class _Settings(NamedTuple):
    call: str
    method: str
    confidence: float
    generator: torch.Generator | None

    @property
    def options(self) -> dict[str, Any]:
        return {"confidence": self.confidence, "generator": self.generator}


def _kl(settings: _Settings, p: object, q: object) -> Evidence:
    if isinstance(p, Counts) and isinstance(q, Counts):
        return evidence_by(CATEGORICAL[settings.method], p, q, **settings.options)
    if isinstance(p, Draws) and isinstance(q, Draws):
        return _between_samples(settings, p, q)
    if isinstance(p, Draws):
        p, q = _by_label(p, q)
        return _to_density(settings, p, _as_distribution(settings.call, p, q))
    raise no_rule(
        settings.call,
        "p, q",
        wanted="draws of P",
        got=f"{_type_of(p)} and {_type_of(q)}: draws of Q do not show Q where only P has mass",
        instead=f"{settings.call}(Samples(p.sample((n,))), q) for a torch distribution p, or "
        "Counts(torch.bincount(y), prior=0.5) for categories y drawn from Q",
    )


def _type_of(x: object) -> str:
    return "Samples" if isinstance(x, Draws) else type(x).__name__


def _between_samples(settings: _Settings, p: Draws, q: Draws) -> Evidence:
    estimator = _estimator(settings, p)
    few = as_categories(p, q) if settings.method == "auto" and estimator is histogram else None
    if few is not None:
        return noted(evidence_by(coverage_adjusted, *few[:2], **settings.options), [few[2]])
    if settings.method != "auto" or estimator is not nearest_neighbors:
        evidence = evidence_by(estimator, p, q, **settings.options)
        is_open = settings.method == "auto" and p.discrete and not _is_bounded(evidence)
        return (_by_components(settings, p, q) if is_open else None) or evidence
    if p.cluster is not None or q.cluster is not None:
        return evidence_by(density_ratio, p, q, **settings.options)
    try:
        evidence = evidence_by(nearest_neighbors, p, q, **settings.options)
    except RepeatedDrawsError as refusal:
        evidence = evidence_by(density_ratio, p, q, **settings.options)
        side = SMALL_P if refusal.argument == "p" else SMALL_Q
        return noted(evidence, after=[f"Not by nearest neighbors: {refusal.replace(argument=f'{side}')}"])
    if min(len(p), len(q)) < FEWEST_FOR_CLASSIFIER or _is_bounded(evidence) or evidence.value == math.inf:
        return evidence
    other = evidence_by(density_ratio, p, q, **settings.options)
    is_below = other.ends is not None and other.ends[1] < evidence.value
    return evidence if is_below else other


def _is_bounded(evidence: Evidence) -> bool:
    return evidence.ends is not None and bool(evidence.ends[1] < math.inf)


def _by_components(settings: _Settings, p: Draws, q: Draws) -> Evidence | None:
    """Return the evidence of classifiers of the components of vectors of categories, or None if it is open too."""
    is_few = min(p.groups, q.groups) < FEWEST_FOR_CLASSIFIER
    if p.tensor.shape[1] == 1 or is_few or p.labels is not None or q.labels is not None:
        return None
    both = np.concatenate([side.tensor.cpu().numpy() for side in (p, q)])
    if share_of_repeated(both, np.concatenate([p.units, q.units + p.groups])) < LEAST_SHARE:
        return None
    # Each value of a component but its first is a column of zeros and ones.
    columns = [column[:, None] == np.unique(column)[1:] for column in both.T]
    first, second = np.split(np.concatenate(columns, axis=1).astype(float), [len(p)])
    evidence = evidence_by(density_ratio, p.at(first), q.at(second), **settings.options)
    if not _is_bounded(evidence):
        return None
    note = (
        f"Too few samples have each vector of {p.tensor.shape[1]} components: the estimate is by classifiers of the "
        "components."
    )
    return noted(evidence, [note])


def _estimator(settings: _Settings, p: Draws) -> Callable[..., Estimate]:
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


def _to_density(settings: _Settings, p: Draws, q: Distribution) -> Evidence:
    if settings.method not in ("auto", "from_density"):
        raise invalid_value(
            settings.call,
            "method",
            wanted="'auto' or 'from_density': the entropy of the draws and the mean of Q's log-density",
            got=safe_repr(settings.method),
            instead=f"{settings.call}(p, Samples(q.sample((n,))), method={settings.method!r}), which compares draws "
            "with draws",
        )
    return evidence_by(from_density, p, q, **settings.options)


def _by_label(p: Draws, q: object) -> tuple[Draws, object]:
    """Return p and q with the same classes in the same order; the draws p become the numbers of classes.

    If Q has no labels, return both unchanged.
    """
    if not isinstance(q, Representation) or q.labels is None or not p.discrete or p.tensor.shape[1] > 1:
        return p, q
    if p.labels is None and same_labels(q.labels, tuple(range(q.classes))):
        return p, q
    names, codes = p.labels, p.tensor[:, 0]
    if names is None:
        values, codes = torch.unique(codes, return_inverse=True)
        names = tuple(values.tolist())
    aligned = Counts(torch.ones(len(names), dtype=torch.int64, device="cpu"), labels=names).aligned_with(q)[1]
    place = {label: i for i, label in enumerate(cast("Labels", aligned.labels))}
    numbers = torch.tensor([place[name] for name in names], device=codes.device)
    return replace(p, tensor=numbers[codes][:, None], labels=None), aligned


def _as_distribution(call: str, p: Draws, q: object) -> Distribution:
    """Return Q as a torch distribution; probabilities become a `Categorical` over the classes 0, 1, ..."""
    if isinstance(q, Representation) and p.discrete and p.labels is None and not q.batch_shape:
        return _categorical(call, p, q)
    if not isinstance(q, Distribution):
        raise no_rule(
            call,
            "q",
            wanted="draws, a torch distribution or, for draws of the integers 0, 1, ..., one row of probabilities",
            got=f"{q!r} for p = {p!r}",
            instead="Samples(y) with draws y of Q",
        )
    return q


def _categorical(call: str, p: Draws, q: Representation) -> Distribution:
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
