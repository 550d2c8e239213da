"""Estimates of KL in the reverse direction, and of the sum of both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from kullback.errors import sides_exchanged
from kullback.results.estimate import Estimate


def exchanged(measure: Callable[[], Estimate]) -> Estimate:
    """Return an estimate of KL(Q || P), whose errors and notes name the two sides as the caller does."""
    with sides_exchanged():
        estimate = measure()
    other = {"P": "Q", "Q": "P"}
    notes = (re.sub(r"\b[PQ]\b", lambda match: other[match[0]], note) for note in estimate.notes)
    return replace(estimate, n=None if estimate.n is None else estimate.n[::-1], notes=tuple(notes))


def added(there: Estimate, back: Estimate) -> Estimate:
    """Return the sum of the two directions; their errors may be dependent, so they are added too."""
    ends = None
    if there.interval is not None and back.interval is not None:
        ends = (there.interval[0] + back.interval[0], there.interval[1] + back.interval[1])
    errors = there.standard_error, back.standard_error
    error = None if errors[0] is None or errors[1] is None else errors[0] + errors[1]
    method, notes = there.method, dict.fromkeys((*there.notes, *back.notes))
    if there.method != back.method:
        method = "auto"
        notes[f"One direction was estimated by {there.method}, the other by {back.method}."] = None
    return Estimate(there.value + back.value, None, method, ends, there.n, tuple(notes), error)
