"""Reading until the goal is reached: windows in random order, intervals that hold at every look, and the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kullback.errors import Name, invalid_value
from kullback.io.windows import Windows
from kullback.models.match import Matched
from kullback.models.model_results import Candidate, SureCandidate, UntilSure
from kullback.predictions.collect import AGREEMENTS, complement
from kullback.predictions.measure import DIVERGENCES
from kullback.predictions.run import Goal, Run
from kullback.predictions.sources import Clusters
from kullback.predictions.until_sure import Question

ERROR_RATE = 0.05  # of all decisions of a run together


def check_goal(run: Run, candidates: int, *, one_at_a_time: bool, noise_floor: bool | None) -> None:
    """Refuse a goal that does not fit the other settings.

    Raises:
        ArgumentValueError: the run has a goal, and cannot reach it with these settings.
    """
    if run.goal is None:
        return
    every, all_windows = "which reads every window", "whose numbers are of all windows in order"
    is_lonely = run.goal.kind == "order" and candidates < 2
    for name, is_set, reason, value in (
        ("one_at_a_time", one_at_a_time, every, False),
        ("noise_floor", noise_floor, every, None),
        ("llama_cpp", run.llama_cpp, all_windows, False),
    ):
        if is_set:
            wanted, got = "a goal for candidates that are read together, in random order", f", {reason}"
            raise invalid_value(
                "Run", "until_sure", wanted=wanted, got=(Name(name), got), instead={name: value}
            )
    if is_lonely:
        wanted, got = "several candidates for an order, or another goal", "'order' with one candidate"
        raise invalid_value("Run", "until_sure", wanted=wanted, got=got, instead={"until_sure": "mean=0.01"})


def in_random_order(matched: Matched, clusters: Clusters, seed: int) -> Matched:
    """Return the sides with their units in random order; the windows of a unit stay together, in their order."""
    windows, units = _windows_with_rows(matched.windows, clusters)
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(int(clusters.numbers.max()) + 1, generator=generator, device="cpu")
    order = windows[places[units].sort(stable=True).indices]
    rank = torch.empty(len(matched.windows), dtype=torch.int64, device="cpu")
    rank[order] = torch.arange(len(order), device="cpu")
    rows = rank[matched.windows.clusters].sort(stable=True).indices
    return matched._replace(
        sides=[side.in_order(order) for side in matched.sides],
        windows=matched.windows.in_order(order),
        documents=matched.documents[order],
        groups=matched.groups and matched.groups.at(rows),
    )


def question_of(
    run: Run, windows: Windows, clusters: Clusters, candidates: int, most_windows: int | None
) -> Question:
    """Return the question whether the goal is reached, for windows in random order.

    The clusters are the units, whose numbers may be in any order. The run ends after `most_windows`, if this number is
    given, but the last unit is read to its end.
    """
    _, of_window = _windows_with_rows(windows, clusters)
    units = torch.nn.functional.pad((of_window.diff() != 0).cumsum(0), (1, 0))
    last = units[min(len(units), most_windows or len(units)) - 1]
    of_row = units[windows.clusters]
    confidence = 1 - ERROR_RATE / run.runs
    most_rows = int((of_row <= last).sum())
    return Question(Goal.read(run.until_sure), of_row, candidates, most_rows=most_rows, confidence=confidence)


def _windows_with_rows(windows: Windows, clusters: Clusters) -> tuple[Tensor, Tensor]:
    """Return the numbers of the windows with a scored token, and the number of each window's unit."""
    firsts = torch.nn.functional.pad(windows.clusters.diff() != 0, (1, 0), value=True)
    return windows.clusters[firsts], clusters.numbers[firsts]


def with_bounds(candidate: Candidate, question: Question, place: int) -> Candidate:
    """Return a candidate with the intervals that hold at every look; other means have no interval."""
    comparison = candidate.comparison
    ends = {name: question.bounds(place, name)[:2] for name in (*DIVERGENCES, *AGREEMENTS)}
    divergences = {
        name: replace(summary, interval=ends[name], reason=None)
        for name, summary in comparison.divergences.items()
    }
    pairs = zip(AGREEMENTS, comparison.top_k_agreement, strict=True)
    agreement = [replace(value, interval=ends[name], reason=None) for name, value in pairs]
    return replace(
        candidate,
        comparison=replace(
            comparison,
            divergences=divergences,
            acceptance_rate=complement(divergences["tv"]),
            top1_agreement=agreement[0],
            top_k_agreement=agreement,
        ),
    )


def outcome_of(
    question: Question, places: Sequence[int], names: Sequence[str], clusters: Clusters
) -> UntilSure:
    """Return how far the candidates at `places`, called `names`, were read."""
    candidates: dict[str, SureCandidate] = {}
    for place, name in zip(places, names, strict=True):
        bounds = question.bounds(place, "kl_pq", with_share=True)
        candidates[name] = SureCandidate(
            question.read(place), _outcome(question, place), bounds.cap, bounds.above
        )
    unit = clusters.names[0].partition(" ")[0]
    return UntilSure(question.goal.text, question.confidence, unit, len(question.sizes), candidates)


def _outcome(question: Question, place: int) -> Literal["below", "above", "ordered", "narrow", "undecided"]:
    if not question.is_decided(place):
        return "undecided"
    if question.goal.kind != "limit":
        return "ordered" if question.goal.kind == "order" else "narrow"
    return "above" if question.bounds(place).low > question.goal.number else "below"
