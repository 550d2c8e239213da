"""Divergences from `Counts` of draws, with counts or known probabilities on the other side."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import torch

from kullback.common.progress import progress_bar
from kullback.estimators.directions import added, exchanged
from kullback.estimators.discrete.categorical_estimators import plugin
from kullback.estimators.discrete.counts import is_drawn, number_of_draws, table_of
from kullback.estimators.discrete.kinds import describe_kind, estimable
from kullback.estimators.draws import Array
from kullback.estimators.known_counts import from_known_categories
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.representations import Counts, Representation
from kullback.results.estimate import Estimate

# The largest number of notes of a batch.
_MOST_NOTES = 5
_NO_DRAWS = (
    "Counts with a prior, or that are not whole numbers, count as weights and have no interval. Use whole numbers "
    "without prior= for an interval."
)


def with_interval(
    p: Representation, q: Representation, kind: Divergence, estimate: Estimate, confidence: float
) -> Estimate:
    """Add the standard error, interval and notes from the draws behind the counts to the divergence of the proportions.

    Arguments:
        p, q: finite distributions with the same classes, at least one of them `Counts`.
        kind: the divergence.
        estimate: the divergence of the proportions, in nats.
        confidence: the probability that the interval contains the divergence.
    """
    if not all(is_drawn(side) for side in (p, q) if isinstance(side, Counts)):
        return replace(estimate, notes=(*estimate.notes, _NO_DRAWS))
    kind = estimable("estimate", kind)
    described = _described(p, q, kind, confidence)
    return replace(described, value=estimate.value, kind=estimate.kind, base=estimate.base)


def _described(p: Representation, q: Representation, kind: Divergence, confidence: float) -> Estimate:
    if isinstance(kind, ReverseKL):
        return exchanged(lambda: _described(q, p, KL(), confidence))
    if isinstance(kind, Jeffreys):
        return added(
            _described(p, q, KL(), confidence), exchanged(lambda: _described(q, p, KL(), confidence))
        )
    if isinstance(kind, KL) and isinstance(p, Counts):
        both = isinstance(q, Counts)
        return plugin(p, q, confidence=confidence) if both else _against_known(p, q, confidence)
    table = table_of(p, q)
    measured, notes = describe_kind(table, kind, confidence)
    return Estimate(
        measured.value, None, "plugin", measured.interval, table.n, notes, measured.standard_error
    )


def _against_known(p: Counts, q: Representation, confidence: float) -> Estimate:
    """Return the estimate from rows of counts with known probabilities of Q."""
    x = p.weights().detach().double()
    logs = q.weights().detach().double()
    logs = logs.log_softmax(-1) if q.in_logs else (logs / logs.sum(-1, keepdim=True)).log()
    x, logs = torch.broadcast_tensors(x, logs)
    shape, device = x.shape[:-1], x.device
    flat = [side.reshape(-1, x.shape[-1]).cpu().numpy() for side in (x, logs)]
    rows: list[_Row] = []
    with progress_bar("rows of counts") as update:
        for counts, log_q in zip(*flat, strict=True):
            rows.append(_row_against_known(counts, log_q, confidence))
            if update:
                update(len(rows), len(flat[0]))
    value, error, low, high = (
        torch.tensor([row[i] for row in rows], dtype=torch.float64).reshape(shape).to(device)
        for i in range(4)
    )
    said = Counter(note for row in rows for note in row.notes)
    notes = [
        note if not shape else f"{number:,} of {len(rows):,} rows: {note}"
        for note, number in said.most_common(_MOST_NOTES)
    ]
    n = number_of_draws(x.sum(-1)), 0
    return Estimate(value, None, "plugin", (low, high), n, tuple(notes), error)


class _Row(NamedTuple):
    value: float
    error: float
    low: float
    high: float
    notes: tuple[str, ...]


def _row_against_known(counts: Array, log_q: Array, confidence: float) -> _Row:
    if counts.sum() < 2:
        return _Row(math.nan, math.inf, 0.0, math.inf, ("One draw gives only the interval from 0 to inf.",))
    estimate = from_known_categories(counts, log_q, confidence)
    assert estimate.interval is not None  # noqa: S101  # it always has both
    assert estimate.standard_error is not None  # noqa: S101
    numbers = (estimate.value, estimate.standard_error, *estimate.interval)
    return _Row(*map(float, numbers), notes=estimate.notes)
