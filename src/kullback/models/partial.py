"""Pairs of which one side is known in part: a reference file, or lists of the most probable classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.functional.top_k import TopK
from kullback.functional.top_k_bounds import top_k_divergence_bounds
from kullback.io import ReferenceBlock, TopKBlock
from kullback.io.reference_writer import top_classes
from kullback.models.checkpoint import Part
from kullback.models.pairing import Pairing, Settings
from kullback.models.result import Candidate, Passage, ReadToken
from kullback.models.side import Side, take_rows
from kullback.predictions.drawn_means import DrawnMean, drawn_mean, population_mean, row_estimates
from kullback.predictions.measure import COLUMNS, DIVERGENCES, LABEL_COLUMNS, TOP_CLASSES
from kullback.predictions.reference_rows import DrawnDivergence, ReferenceRows, join_rows, measure_reference
from kullback.predictions.result import Comparison, Reason, TopClass, WorstRow

__all__ = ["ListedPairing", "ReferencePairing"]

WIDTH = len(COLUMNS) + len(LABEL_COLUMNS)
CHUNK = 4096  # rows that the collector takes in at a time


class _Known(NamedTuple):
    """What is known of one side of some rows.

    Attributes:
        indices: the most probable classes in order, int64, shape (rows, k); -1 for none.
        log_probs: their log-probabilities, float64; -inf for none.
        at_label: the log-probability of the true class, NaN where it is not known.
        dense: those of all classes, or None.
        ranked: of how many of `indices` the rank is known, shape (rows,), or None for all.
    """

    indices: Tensor
    log_probs: Tensor
    at_label: Tensor
    dense: Tensor | None = None
    ranked: Tensor | None = None

    @classmethod
    def of(cls, block: Any, labels: Tensor) -> _Known:
        if isinstance(block, ReferenceBlock):
            return cls(block.top_indices.long(), block.top_log_probs.double(), block.label_log_probs.double())
        if isinstance(block, TopKBlock):
            log_probs, order = torch.sort(block.log_probs.double(), dim=-1, descending=True, stable=True)
            indices = torch.where(log_probs == -torch.inf, -1, block.indices.gather(-1, order))
            # The true token may stand behind the others without being the next one.
            count = (indices >= 0).sum(-1)
            last = indices.gather(-1, (count - 1).clamp(min=0)[:, None])[:, 0]
            return cls(
                indices, log_probs, block.label_log_probs.double(), None, count - (last == labels).long()
            )
        dense = block.double().log_softmax(-1)
        # Of equal logits the first comes first, as in all reports; rounding may make unequal ones equal probabilities.
        indices = top_classes(block.double(), min(TOP_CLASSES, dense.shape[-1]))
        return cls(indices, dense.gather(-1, indices), dense.gather(-1, labels[:, None])[:, 0], dense)

    def probs_of(self, row: int, classes: list[int]) -> list[float]:
        """Return the probabilities of some classes of a row, NaN where they are not known."""
        if self.dense is not None:
            return self.dense[row, classes].exp().tolist()
        listed = dict(zip(self.indices[row].tolist(), self.log_probs[row].exp().tolist(), strict=True))
        return [listed.get(each, math.nan) for each in classes]

    def top(self, row: int) -> list[int]:
        """Return the most probable classes of a row."""
        return [each for each in self.indices[row, :TOP_CLASSES].tolist() if each >= 0]


def _top_classes(p: _Known, q: _Known, row: int) -> list[TopClass]:
    chosen = list(dict.fromkeys([*p.top(row), *q.top(row)]))
    return [
        TopClass(*each) for each in zip(chosen, p.probs_of(row, chosen), q.probs_of(row, chosen), strict=True)
    ]


def _table(p: _Known, q: _Known, labels: Tensor, divergences: list[Tensor]) -> Tensor:
    """Return the table of rows as `measure` gives it; what is not known is NaN."""
    count = len(labels)

    def places(side: _Known) -> Tensor:
        found = torch.full((count, TOP_CLASSES), -1)
        found[:, : side.indices.shape[-1]] = side.indices[:, :TOP_CLASSES]
        if side.ranked is not None:
            found[torch.arange(TOP_CLASSES) >= side.ranked[:, None]] = -1
        return found

    tops = places(p), places(q)
    known = ((tops[0] >= 0) & (tops[1] >= 0)).double().cumprod(-1)
    same = (tops[0] == tops[1]).double().cumprod(-1)
    # A list that differs early differs later, whatever is not known there.
    agreement = torch.where((known > 0) | (same == 0), same, torch.nan)
    change = q.at_label.exp() - p.at_label.exp()
    both = (p.at_label == -torch.inf) & (q.at_label == -torch.inf)
    difference = torch.where(both, 0, p.at_label - q.at_label)
    columns = [*divergences, p.log_probs[:, 0].exp(), *agreement.unbind(-1)]
    columns += [
        torch.ones(count, dtype=torch.float64),
        -p.at_label,
        -q.at_label,
        difference,
        change,
        change.square(),
    ]
    for top in tops:
        hit = (top == labels[:, None]).cumsum(-1).clamp(max=1).double()
        columns += torch.where((top >= 0) | (hit > 0), hit, torch.nan).unbind(-1)
    return torch.stack(columns, -1)


class _PartialPairing(Pairing):
    """A pair whose rows are kept until all are there."""

    def __init__(self, base: Side, candidate: Side, settings: Settings) -> None:
        super().__init__(base, candidate, settings)
        self._tables: list[Tensor] = []
        self._labels = settings.windows.labels
        self._collector = settings.collector(self._labels)

    def measured(self, start: int, p: Any, q: Any, span: tuple[int, int]) -> Part:
        rows = slice(*span)
        p, q = take_rows(p, rows), take_rows(q, rows)
        first = start + span[0]
        labels = self._labels[first : start + span[1]]
        known = _Known.of(p, labels), _Known.of(q, labels)
        divergences, further = self.row_divergences(p, q, known)
        table = torch.cat([_table(*known, labels, divergences), further], -1)
        kl = divergences[0].tolist()
        worst = [
            WorstRow(first + row, kl[row], None, None, _top_classes(*known, row))
            for row in sorted(range(len(kl)), key=lambda row: -kl[row])[: self.settings.worst]
        ]
        passages: list[tuple[int, Passage]] = []
        if self.passages.is_wanted(sum(kl) / len(kl)):
            at = [side.at_label.exp().tolist() for side in known]
            tokens = [
                ReadToken(int(labels[row]), kl[row], at[0][row], at[1][row], _top_classes(*known, row))
                for row in range(len(kl))
            ]
            passages.append((first, self.passages.passage(first, tokens)))
        return table, worst, passages

    @abstractmethod
    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        """Return what is certain of the divergences of each row, and further columns."""

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


class ListedPairing(_PartialPairing):
    """A pair of which one side at least is known by its most probable classes: divergences are bounded."""

    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        lists = _as_list(p, q, known[0]), _as_list(q, p, known[1])
        bounds = [
            top_k_divergence_bounds(*lists, kind, classes=self.base.classes or None)
            for kind in DIVERGENCES.values()
        ]
        return [each.lower for each in bounds], torch.stack([each.upper for each in bounds], -1)

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        note = (
            "Of one side only the most probable classes are known: divergences are what is certain of them, with all "
            "other classes as one, and their intervals are those of these lower bounds."
        )
        comparison = self._comparison(table, [note])
        upper = table[:, WIDTH:].mean(0).tolist()
        certain = {
            name: (comparison.divergences[name].mean, most)
            for name, most in zip(DIVERGENCES, upper, strict=True)
        }
        found = Candidate(
            self.candidate.info,
            comparison,
            self.passages.passages(),
            None,
            known="top classes",
            certain=certain,
        )
        return found, table[:, 0]


def _as_list(block: Any, other: Any, known: _Known) -> TopK | TopKBlock:
    """Return a block as a list of classes; of one that is known whole, the classes that the other lists."""
    if isinstance(block, TopKBlock):
        return block
    if isinstance(block, ReferenceBlock) or known.dense is None:
        return TopK(known.indices.clamp(min=0), known.log_probs)
    indices = other.indices if isinstance(other, TopKBlock) else other.top_indices.long()
    padding = (other.log_probs if isinstance(other, TopKBlock) else other.top_log_probs) == -torch.inf
    log_probs = known.dense.gather(-1, indices)
    return TopK(indices, torch.where(padding, -torch.inf, log_probs))


class ReferencePairing(_PartialPairing):
    """A reference file as base, and a candidate's logits: divergences are estimated and bounded."""

    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        rows = measure_reference(p, q)
        return [rows.divergences[name].bound for name in DIVERGENCES], _packed(rows)

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        reference: Any = self.base
        rows = _unpacked(table[:, WIDTH:], reference.reference.tail_draws)
        values = {name: row_estimates(rows, name)[0] for name in DIVERGENCES}
        for place, each in enumerate(values.values()):
            table[:, place] = torch.where(each.isnan(), table[:, place], each)
        comparison = self._comparison(table, [_NOTE_ON_DRAWS])
        drawn = {name: drawn_mean(rows, name) for name in DIVERGENCES}
        comparison = replace(
            comparison,
            divergences={
                name: self._with_interval(name, rows, drawn[name], comparison) for name in DIVERGENCES
            },
        )
        certain = {name: each.bounds for name, each in drawn.items()}
        found = Candidate(
            self.candidate.info,
            comparison,
            self.passages.passages(),
            None,
            known="reference",
            certain=certain,
            drawn=drawn,
        )
        return found, table[:, 0]

    def _with_interval(self, name: str, rows: ReferenceRows, drawn: DrawnMean, comparison: Comparison) -> Any:
        summary = comparison.divergences[name]
        interval, error = None, summary.standard_error
        reason: Reason | None = summary.reason
        if self.settings.bootstrap and math.isfinite(drawn.mean):
            found = population_mean(
                rows,
                name,
                cluster=self.settings.clusters.numbers,
                bootstrap=self.settings.bootstrap,
                generator=torch.Generator().manual_seed(self.settings.seed),
            )
            interval, error, reason = found.interval, found.standard_error, found.reason
        return replace(summary, mean=drawn.mean, standard_error=error, interval=interval, reason=reason)


_NOTE_ON_DRAWS = (
    "P is a reference: its most probable classes are exact, all others are known by their mass and by draws from them. "
    "Means are unbiased and their intervals include the drawing; a single row's value, and so quantiles, the worst "
    "rows and the histogram, carry its noise."
)
_DRAWN = DrawnDivergence._fields
_MOMENTS = 3, 4  # the columns of its last two fields, `variances` and `thirds`


def _packed(rows: ReferenceRows) -> Tensor:
    """Return rows as columns of numbers."""
    columns: list[Tensor] = []
    for name in DIVERGENCES:
        columns += [getattr(rows.divergences[name], field).double() for field in _DRAWN]
    columns += [getattr(rows, name).double() for name in _PLAIN]
    return torch.cat([column if column.ndim > 1 else column[:, None] for column in columns], -1)


_PLAIN = [each.name for each in fields(ReferenceRows) if each.name not in ("divergences", "draws")]
_FLAGS = "has_whole_support", "has_tail"


def _unpacked(table: Tensor, draws: int) -> ReferenceRows:
    """Return the rows that `_packed` made columns of."""
    columns = iter(table.unbind(-1))
    divergences: dict[str, DrawnDivergence] = {}
    for name in DIVERGENCES:
        single = (next(columns) for _ in _DRAWN[: -len(_MOMENTS)])
        moments = (torch.stack([next(columns) for _ in range(width)], -1) for width in _MOMENTS)
        divergences[name] = DrawnDivergence._make([*single, *moments])
    plain: dict[str, Any] = {name: next(columns) for name in _PLAIN}
    plain |= {name: plain[name] > 0 for name in _FLAGS}
    plain["matching"] = plain["matching"].long()
    return join_rows([ReferenceRows(divergences=divergences, draws=draws, **plain)])
