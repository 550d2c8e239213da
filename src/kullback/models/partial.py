"""Comparisons with a side that is known in part: a reference file, or lists of the most probable classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kullback.common.row_statistics import BUILT_IN, TOP_CLASSES
from kullback.losses.top_k_bounds import DivergenceBounds, top_k_divergence_bounds
from kullback.models.model_results import Candidate, Passage, ReadToken
from kullback.models.pairing import Pairing, PairingSettings, with_open_ends
from kullback.models.side import ModelSide, ReferenceSide
from kullback.partial_rows import PartialRows, has_more_classes, rows_of_logits
from kullback.predictions.collect import complement
from kullback.predictions.mean_intervals import RatioOfSums
from kullback.predictions.measure import COLUMNS, DIVERGENCES, LABEL_COLUMNS
from kullback.predictions.prediction_results import Comparison, Summary, TopClass, WorstRow
from kullback.predictions.reading import Part
from kullback.predictions.reference_rows import (
    DrawnMean,
    ReferenceRows,
    drawn_mean,
    measure_reference,
    population_mean,
    row_estimates,
)
from kullback.results.value import Reason, Value

WIDTH = len(COLUMNS) + len(LABEL_COLUMNS)
HIGHEST = {each.name: each.high for each in BUILT_IN}
CHUNK = 4096  # rows that are added to the collector at a time


def _top_classes(p: PartialRows, q: PartialRows, row: int) -> list[TopClass]:
    """Return the most probable classes of both sides in a row, with their probabilities; `p` and `q` are from
    `in_order`.
    """
    both = [index for side in (p, q) for index in side.top_indices[row, :TOP_CLASSES].tolist() if index >= 0]
    chosen = list(dict.fromkeys(both))
    probs = p.probs_of(row, chosen), q.probs_of(row, chosen)
    return [TopClass(*entry) for entry in zip(chosen, *probs, strict=True)]


def _table(p: PartialRows, q: PartialRows, labels: Tensor, divergences: list[Tensor]) -> Tensor:
    """Return the table of rows from `in_order`, as `measure` returns it; unknown values are NaN."""
    tops = p.ranks(TOP_CLASSES, labels), q.ranks(TOP_CLASSES, labels)
    are_known, same = (tops[0] >= 0) & (tops[1] >= 0), tops[0] == tops[1]
    agreement = torch.where(are_known, same.double(), torch.nan).cumprod(-1)
    # Lists that differ at one rank have no agreement at later ranks, even if the later classes are not known.
    agreement[(are_known & ~same).cumsum(-1) > 0] = 0
    log_p, log_q = p.label_log_probs, q.label_log_probs
    change = log_q.exp() - log_p.exp()
    both = (log_p == -torch.inf) & (log_q == -torch.inf)
    difference = torch.where(both, 0, log_p - log_q)
    columns = [*divergences, p.top_log_probs[:, 0].exp(), *agreement.unbind(-1)]
    labeled = torch.ones(len(labels), dtype=torch.float64, device="cpu")
    columns += [labeled, -log_p, -log_q, difference, change, change.square()]
    for top in tops:
        hit = (top == labels[:, None]).cumsum(-1).clamp(max=1).double()
        columns += torch.where((top >= 0) | (hit > 0), hit, torch.nan).unbind(-1)
    return torch.stack(columns, -1)


class _PartialPairing(Pairing):
    """A pairing that stores its rows until all rows are measured."""

    def __init__(self, base: ModelSide, candidate: ModelSide, settings: PairingSettings) -> None:
        super().__init__(base, candidate, settings)
        self._tables: list[Tensor] = []
        self._labels = settings.windows.labels
        self._collector = settings.collector(self._labels)

    def measured(self, first: int, p: Any, q: Any) -> Part:
        labels = self._labels[first : first + len(p)]
        known_p, known_q = (
            side if isinstance(side, PartialRows) else rows_of_logits(side, labels, TOP_CLASSES)
            for side in (p, q)
        )
        divergences, further = self.row_divergences(p, q, known_p, known_q)
        ordered = known_p.in_order(), known_q.in_order()
        table = torch.cat([_table(*ordered, labels, divergences), further], -1)
        kl = divergences[0].tolist()
        worst = [
            WorstRow(first + row, kl[row], None, None, _top_classes(*ordered, row))
            for row in sorted(range(len(kl)), key=lambda row: -kl[row])[: self.settings.run.worst]
        ]
        passages: list[tuple[int, Passage]] = []
        if self.passages.is_wanted(sum(kl) / len(kl)):
            at = [side.label_log_probs.exp().tolist() for side in ordered]
            tokens = [
                ReadToken(int(labels[row]), kl[row], at[0][row], at[1][row], _top_classes(*ordered, row))
                for row in range(len(kl))
            ]
            passages.append((first, self.passages.passage(first, tokens)))
        return Part(table, worst, passages)

    @abstractmethod
    def row_divergences(
        self, p: Any, q: Any, known_p: PartialRows, known_q: PartialRows
    ) -> tuple[list[Tensor], Tensor]:
        """Return guaranteed lower bounds of the divergences of each row, and the further columns that `result` needs.

        Arguments:
            p: the rows of the base, as logits or `PartialRows`.
            q: the rows of the candidate, as logits or `PartialRows`.
            known_p: the rows of the base, always as `PartialRows`.
            known_q: the rows of the candidate, always as `PartialRows`.
        """

    def add(self, part: Part) -> None:
        table, worst, passages = part
        self._tables.append(table)
        self._collector.worst.add(worst)
        for first, passage in passages:
            self.passages.add(first, passage)

    def _comparison(self, table: Tensor, notes: list[str]) -> Comparison:
        for rows in table[:, :WIDTH].split(CHUNK):
            self._collector.add(rows, [])
        return self._collector.comparison(self.base, self.candidate, notes)

    @abstractmethod
    def _known(self, comparison: Comparison, chosen: Tensor | slice, settings: PairingSettings) -> Candidate:
        """Return the result of the chosen rows.

        Arguments:
            comparison: the comparison of these rows, from the collector.
            chosen: a mask of the rows, or a slice.
            settings: the settings, with the clusters of the rows.
        """

    @abstractmethod
    def _against_rest(
        self, values: dict[str, Value[float]], group: Candidate, rest: Tensor
    ) -> dict[str, Value[float]]:
        """Return the differences of a group and all other rows, `rest`, as far as they are known."""

    def _candidate(self, comparison: Comparison) -> Candidate:
        """Return the result of all rows, and of each group."""
        whole = self._known(comparison, slice(None), self.settings)
        masks = {} if self.settings.groups is None else self.settings.groups.masks()
        groups: dict[str, Candidate] = {}
        for name, of_rows in comparison.groups.items():
            group = self._known(of_rows, masks[name], self.settings.of_rows(masks[name]))
            against_rest = self._against_rest(of_rows.against_rest, group, ~masks[name])
            groups[name] = replace(group, comparison=replace(group.comparison, against_rest=against_rest))
        comparisons = {name: each.comparison for name, each in groups.items()}
        return replace(
            whole,
            passages=self.passages.passages(),
            comparison=replace(whole.comparison, groups=comparisons),
            certain_in_groups={name: each.certain for name, each in groups.items() if each.certain},
            drawn_in_groups={name: each.drawn for name, each in groups.items() if each.drawn},
        )

    def _with(self, comparison: Comparison, divergences: dict[str, Summary], **known: Any) -> Candidate:
        """Return a result with `divergences` in place of the divergences in `comparison`."""
        rate = complement(divergences["tv"])
        comparison = replace(comparison, divergences=divergences, acceptance_rate=rate)
        return Candidate(self.candidate.info, comparison, [], None, **known)


class ListedPairing(_PartialPairing):
    """A pairing where P, Q or both give only some classes. It gives bounds of divergences."""

    def row_divergences(
        self, p: Any, q: Any, known_p: PartialRows, known_q: PartialRows
    ) -> tuple[list[Tensor], Tensor]:
        listed_p, listed_q = known_p.with_all_known(), known_q.with_all_known()
        listed_p, listed_q = listed_p.at_classes_of(listed_q), listed_q.at_classes_of(listed_p)
        bounds = {
            name: top_k_divergence_bounds(listed_p, listed_q, kind, classes=self.base.classes or None)
            for name, kind in DIVERGENCES.items()
        }
        for name, (of, other) in {"kl_pq": (known_p, known_q), "kl_qp": (known_q, known_p)}.items():
            is_infinite = has_more_classes(of.support_sizes, other.support_sizes)
            bounds[name] = DivergenceBounds(*(torch.where(is_infinite, torch.inf, x) for x in bounds[name]))
        lower, upper = zip(*bounds.values(), strict=True)
        return list(lower), torch.stack(upper, -1)

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        self._upper = dict(zip(DIVERGENCES, table[:, WIDTH:].unbind(-1), strict=True))
        return self._candidate(self._comparison(table, [self._note()])), table[:, 0]

    def _known(self, comparison: Comparison, chosen: Tensor | slice, settings: PairingSettings) -> Candidate:
        upper = {name: most[chosen] for name, most in self._upper.items()}
        lower = comparison.divergences
        certain = {name: (lower[name].mean, float(most.mean())) for name, most in upper.items()}
        divergences = {
            name: self._up_to(lower[name], most, HIGHEST[name], settings) for name, most in upper.items()
        }
        return self._with(comparison, divergences, known="top classes", certain=certain)

    def _against_rest(
        self, values: dict[str, Value[float]], group: Candidate, rest: Tensor
    ) -> dict[str, Value[float]]:
        # The difference of two lower bounds has no meaning.
        return {name: value for name, value in values.items() if name not in DIVERGENCES}

    def _up_to(self, summary: Summary, upper: Tensor, bound: float, settings: PairingSettings) -> Summary:
        """Return the summary of the lower bounds, with an interval that extends to the upper end for the upper
        bounds.
        """
        if summary.interval is None:
            return summary
        end = bound
        if bool(upper.isfinite().all()):
            estimator = settings.estimator()
            estimator.add(upper[:, None])
            interval = estimator.estimates([RatioOfSums(0, -1, 0.0, bound)])[0].interval
            end = bound if interval is None else interval[1]
        return replace(summary, interval=(summary.interval[0], max(end, summary.interval[1])))

    def _note(self) -> str:
        known = "One side gives only its most probable classes"
        if all(isinstance(side, ReferenceSide) for side in (self.base, self.candidate)):
            known = "P and Q are references, with only the most probable classes, the drawn ones and the true token"
        return (
            f"{known}. The divergences are lower bounds: all other classes count as one class. Each interval "
            "extends up to the upper limit of the upper bound's interval. Quantiles, the worst rows and the "
            "histogram show the lower bounds. "
            "The acceptance rate is the largest possible one."
        )


class ReferencePairing(_PartialPairing):
    """A pairing of a reference file with logits. It estimates and bounds divergences."""

    def __init__(self, base: ModelSide, candidate: ModelSide, settings: PairingSettings) -> None:
        super().__init__(base, candidate, settings)
        self._of_base = isinstance(base, ReferenceSide)
        # `measure_reference` takes the reference as its base. If the candidate is the reference, both directions of KL
        # are exchanged.
        self._measured_as = {
            name: name if self._of_base else MIRRORED.get(name, name) for name in DIVERGENCES
        }

    def row_divergences(
        self, p: Any, q: Any, known_p: PartialRows, known_q: PartialRows
    ) -> tuple[list[Tensor], Tensor]:
        rows = measure_reference(p, q) if self._of_base else measure_reference(q, p)
        return [rows.divergences[name].bound for name in self._measured_as.values()], rows.table()

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        side: Any = self.base if self._of_base else self.candidate
        self._rows = rows = ReferenceRows.of_table(table[:, WIDTH:], side.reference.tail_draws)
        for place, name in enumerate(self._measured_as.values()):
            values = row_estimates(rows, name)[0]
            table[:, place] = torch.where(values.isnan(), table[:, place], values)
        note = _NOTE.format("P") if self._of_base else _NOTE.format("Q") + _NOTE_ON_CANDIDATE
        return self._candidate(self._comparison(table, [note])), table[:, 0]

    def _known(self, comparison: Comparison, chosen: Tensor | slice, settings: PairingSettings) -> Candidate:
        drawn = {name: drawn_mean(self._rows, of, chosen) for name, of in self._measured_as.items()}
        divergences = {
            name: self._with_interval(comparison.divergences[name], name, drawn[name], chosen, settings)
            for name in DIVERGENCES
        }
        certain = {name: each.bounds for name, each in drawn.items()}
        return self._with(comparison, divergences, known="reference", certain=certain, drawn=drawn)

    def _against_rest(
        self, values: dict[str, Value[float]], group: Candidate, rest: Tensor
    ) -> dict[str, Value[float]]:
        differences = dict(values)
        for name, mean in (group.drawn or {}).items() if values else ():
            other = drawn_mean(self._rows, self._measured_as[name], rest)
            is_open = other.interval[1] == math.inf, mean.interval[1] == math.inf
            differences[name] = with_open_ends(values[name], *is_open)
        return differences

    def _with_interval(
        self, summary: Summary, name: str, drawn: DrawnMean, chosen: Tensor | slice, settings: PairingSettings
    ) -> Summary:
        interval, error = None, summary.standard_error
        reason: Reason | None = summary.reason
        if settings.run.bootstrap and math.isfinite(drawn.mean):
            of = self._measured_as[name]
            mean = population_mean(self._rows, of, settings.estimator(), chosen)
            interval, error, reason = mean.interval, mean.standard_error, mean.reason
        return replace(summary, value=drawn.mean, standard_error=error, interval=interval, reason=reason)


MIRRORED = {"kl_pq": "kl_qp", "kl_qp": "kl_pq"}
_NOTE = (
    "{} is a reference: its most probable classes are exact, and random draws represent all others. Means are "
    "unbiased, and their intervals include the sampling noise. The values of single rows are noisy, and so are "
    "quantiles, the worst rows and the histogram."
)
_NOTE_ON_CANDIDATE = (
    " KL(P||Q) has a finite upper limit only if p/q has light tails in every row, because draws from Q seldom show "
    "classes where P has mass and Q almost none."
)
