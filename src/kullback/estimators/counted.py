"""Intervals for divergences between `Counts` of draws and either `Counts` or known probabilities."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import torch

from kullback.common.progress import progress_bar
from kullback.estimators.discrete.categorical_estimators import plugin
from kullback.estimators.discrete.counts import is_drawn, number_of_draws, table_of
from kullback.estimators.discrete.kinds import describe_kind, estimable
from kullback.estimators.evidence import Evidence, by_direction, estimate_of, interval_from
from kullback.estimators.known_categories import from_known_categories
from kullback.estimators.registry import evidence_by
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.representations import Counts, Representation
from kullback.results.estimate import Estimate

# A batch gets at most this number of different notes, the most frequent notes of its rows.
_MOST_NOTES = 5
_TOO_FEW = Evidence(
    math.nan, error=math.inf, ends=(0.0, math.inf), notes=["One draw gives only the interval from 0 to inf."]
)
_NO_DRAWS = (
    "Counts with a prior, that are not whole numbers, or with a sum above 1e30 count as weights and have no interval. "
    "For an interval, use whole numbers without prior=, with a smaller sum."
)


def with_interval(
    p: Representation, q: Representation, kind: Divergence, estimate: Estimate, confidence: float
) -> Estimate:
    """Return `estimate` with a standard error, an interval and notes, which are computed from the counts of draws.

    Arguments:
        p, q: finite distributions with the same classes, at least one of them `Counts`.
        kind: the divergence.
        estimate: the divergence between the proportions, in nats.
        confidence: the probability that the interval contains the divergence.
    """
    if not all(is_drawn(side) for side in (p, q) if isinstance(side, Counts)):
        return replace(estimate, notes=(*estimate.notes, _NO_DRAWS))
    kind = estimable("estimate", kind)
    evidence = _of_kind(p, q, kind, confidence)
    described = estimate_of(evidence, estimate.value.device)
    return replace(described, value=estimate.value, kind=estimate.kind, base=estimate.base)


def _of_kind(p: Representation, q: Representation, kind: Divergence, confidence: float) -> Evidence:
    if isinstance(kind, ReverseKL | Jeffreys):
        return by_direction(kind, lambda p, q: _of_kind(p, q, KL(), confidence), p, q)
    if isinstance(kind, KL) and isinstance(p, Counts):
        if isinstance(q, Counts):
            return evidence_by(plugin, p, q, confidence=confidence)
        return _against_known(p, q, confidence)
    evidence = describe_kind(table_of(p, q), kind, confidence)
    return interval_from(replace(evidence, method="plugin"), confidence)


def _against_known(p: Counts, q: Representation, confidence: float) -> Evidence:
    """Return the evidence for rows of counts of P, shape (..., K), and known probabilities of Q."""
    x = p.weights().detach().double()
    logs = q.weights().detach().double()
    logs = logs.log_softmax(-1) if q.in_logs else (logs / logs.sum(-1, keepdim=True)).log()
    x, logs = torch.broadcast_tensors(x, logs)
    shape, device = x.shape[:-1], x.device
    flat = [side.reshape(-1, x.shape[-1]).cpu().numpy() for side in (x, logs)]
    rows: list[Evidence] = []
    with progress_bar("rows of counts") as update:
        for counts, log_q in zip(*flat, strict=True):
            rows.append(_TOO_FEW if counts.sum() < 2 else from_known_categories(counts, log_q, confidence))
            rows[-1] = interval_from(rows[-1], confidence)
            if update:
                update(len(rows), len(flat[0]))
    numbers = [(row.value, row.error, *(row.ends or ())) for row in rows]
    columns = torch.tensor(numbers, dtype=torch.float64, device="cpu").reshape(*shape, 4).to(device)
    value, error, low, high = columns.unbind(-1)
    times = Counter(note for row in rows for note in row.notes)
    notes = [
        f"{number:,} of {len(rows):,} rows: {note}" if shape else note
        for note, number in times.most_common(_MOST_NOTES)
    ]
    n = number_of_draws(x.sum(-1)), 0
    return Evidence(value, error=error, ends=(low, high), notes=notes, n=n, method="plugin")
