"""Sentences on a run that read until it was sure: how much was read, for which candidate, and what the ends assume."""

from __future__ import annotations

import math

from kullback.common.formats import count, counted, number, significant
from kullback.models.model_results import ModelComparison, SureCandidate, UntilSure

_OUTCOMES = {
    "below": "below the limit",
    "above": "above the limit",
    "ordered": "its place is clear",
    "narrow": "its interval is narrow enough",
    "undecided": "undecided",
}


def until_sure(result: ModelComparison) -> list[str]:
    """Return the sentences on a run with a goal; an empty list for other runs."""
    run = result.until_sure
    if run is None:
        return []
    units = f"{run.unit}s"
    spared = run.units - run.read
    decided = "decided" if run.is_decided else "not decided"
    first = (
        f"{run.goal}: {decided} after {count(run.read)} of {counted(run.units, run.unit)} in random order, at "
        f"{significant(100 * run.confidence, 10)} % confidence over all looks."
    )
    if spared:
        first += " Windows are numbered in this order."
    if run.is_decided and spared:
        were = "was" if spared == 1 else "were"
        first += f" {counted(spared, run.unit)} ({min(99, round(100 * spared / run.units))} %) {were} spared."
    elif spared:
        first += f" A run with more {units} (--windows) may decide it; with --resume, it continues this one."
    infinite = {
        each.model.name for each in result.candidates if math.isinf(each.comparison.divergences["kl_pq"].mean)
    }
    return [first, *(_candidate(run, name, each, name in infinite) for name, each in run.candidates.items())]


def _candidate(run: UntilSure, name: str, candidate: SureCandidate, is_infinite: bool) -> str:
    sentence = f"{name}: {_OUTCOMES[candidate.outcome]} after {counted(candidate.units, run.unit)}."
    if candidate.outcome == "above" or is_infinite:
        return sentence  # the lower end assumes nothing
    if candidate.cap is not None and candidate.above is not None:
        sentence += (
            f" The upper end of KL(P||Q) assumes that no unread {run.unit} has a mean above {number(candidate.cap)}. "
            f"No {run.unit} that was read has such a mean; at most {significant(100 * candidate.above, 2)} % of all "
            f"{run.unit}s may have one."
        )
    elif candidate.units < run.units:
        sentence += " There is no upper end of KL(P||Q) yet."
    return sentence
