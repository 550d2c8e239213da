"""Pairs with one side known in part: a reference file, or lists of the most probable classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.row_statistics import BUILT_IN, TOP_CLASSES
from kullback.io import ReferenceBlock, TopKBlock
from kullback.losses.top_k import TopK
from kullback.losses.top_k_bounds import DivergenceBounds, top_k_divergence_bounds
from kullback.models.model_results import Candidate, Passage, ReadToken
from kullback.models.pairing import Pairing, PairingSettings
from kullback.models.side import ModelSide, ReferenceSide
from kullback.partial_rows import top_classes
from kullback.predictions.collect import complement
from kullback.predictions.drawn_means import DrawnMean, drawn_mean, population_mean, row_estimates
from kullback.predictions.mean_intervals import RatioOfSums
from kullback.predictions.measure import COLUMNS, DIVERGENCES, LABEL_COLUMNS
from kullback.predictions.prediction_results import Comparison, Summary, TopClass, WorstRow
from kullback.predictions.reading import Part
from kullback.predictions.reference_rows import DrawnDivergence, ReferenceRows, measure_reference
from kullback.results.value import Reason

WIDTH = len(COLUMNS) + len(LABEL_COLUMNS)
HIGHEST = {each.name: each.high for each in BUILT_IN}
CHUNK = 4096  # rows that the collector takes in at a time


class _Known(NamedTuple):
    """The known classes of one side of some rows.

    Attributes:
        indices: the most probable classes in order, int64, shape (rows, k); -1 for none.
        log_probs: their log-probabilities, float64; -inf for none.
        at_label: the log-probability of the true class, NaN where it is not known.
        dense: the log-probabilities of all classes, or None.
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
    """Return the table of rows as `measure` gives it; unknown values are NaN."""
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
    labeled = torch.ones(count, dtype=torch.float64)
    columns += [labeled, -p.at_label, -q.at_label, difference, change, change.square()]
    for top in tops:
        hit = (top == labels[:, None]).cumsum(-1).clamp(max=1).double()
        columns += torch.where((top >= 0) | (hit > 0), hit, torch.nan).unbind(-1)
    return torch.stack(columns, -1)


class _PartialPairing(Pairing):
    """A pair that stores its rows until all are measured."""

    def __init__(self, base: ModelSide, candidate: ModelSide, settings: PairingSettings) -> None:
        super().__init__(base, candidate, settings)
        self._tables: list[Tensor] = []
        self._labels = settings.windows.labels
        self._collector = settings.collector(self._labels)

    def measured(self, first: int, p: Any, q: Any) -> Part:
        labels = self._labels[first : first + len(p)]
        known = _Known.of(p, labels), _Known.of(q, labels)
        divergences, further = self.row_divergences(p, q, known)
        table = torch.cat([_table(*known, labels, divergences), further], -1)
        kl = divergences[0].tolist()
        worst = [
            WorstRow(first + row, kl[row], None, None, _top_classes(*known, row))
            for row in sorted(range(len(kl)), key=lambda row: -kl[row])[: self.settings.run.worst]
        ]
        passages: list[tuple[int, Passage]] = []
        if self.passages.is_wanted(sum(kl) / len(kl)):
            at = [side.at_label.exp().tolist() for side in known]
            tokens = [
                ReadToken(int(labels[row]), kl[row], at[0][row], at[1][row], _top_classes(*known, row))
                for row in range(len(kl))
            ]
            passages.append((first, self.passages.passage(first, tokens)))
        return Part(table, worst, passages)

    @abstractmethod
    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        """Return certain bounds of the divergences of each row, and further columns."""

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

    def _candidate(self, comparison: Comparison, divergences: dict[str, Summary], **known: Any) -> Candidate:
        """Return the result with other divergences than those of the rows in the table."""
        rate = complement(divergences["tv"])
        comparison = replace(comparison, divergences=divergences, acceptance_rate=rate)
        return Candidate(self.candidate.info, comparison, self.passages.passages(), None, **known)


class ListedPairing(_PartialPairing):
    """A pair with only some classes known on one side or on both: divergences are bounded."""

    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        blocks = [_known_classes(each) if isinstance(each, ReferenceBlock) else each for each in (p, q)]
        lists = [
            # A complete side's log-probabilities of the classes that the other side lists.
            TopK(
                other.indices,
                side.dense.gather(-1, other.indices).where(other.log_probs != -torch.inf, -torch.inf),
            )
            if side.dense is not None
            else block
            for block, other, side in zip(blocks, blocks[::-1], known, strict=True)
        ]
        bounds = {
            name: top_k_divergence_bounds(lists[0], lists[1], kind, classes=self.base.classes or None)
            for name, kind in DIVERGENCES.items()
        }
        if isinstance(p, ReferenceBlock) and isinstance(q, ReferenceBlock):
            for name, (of, other) in {"kl_pq": (p, q), "kl_qp": (q, p)}.items():
                # By the pigeonhole principle one has mass on a class where the other has none.
                fewer = (other.support_sizes > 0) & (of.support_sizes > other.support_sizes)
                bounds[name] = DivergenceBounds(
                    *(torch.where(fewer, torch.inf, each) for each in bounds[name])
                )
        lower, upper = zip(*((each.lower, each.upper) for each in bounds.values()), strict=True)
        return list(lower), torch.stack(upper, -1)

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        comparison = self._comparison(table, [self._note()])
        upper = dict(zip(DIVERGENCES, table[:, WIDTH:].unbind(-1), strict=True))
        lower = comparison.divergences
        certain = {name: (lower[name].mean, float(most.mean())) for name, most in upper.items()}
        divergences = {name: self._up_to(lower[name], most, HIGHEST[name]) for name, most in upper.items()}
        return self._candidate(comparison, divergences, known="top classes", certain=certain), table[:, 0]

    def _up_to(self, summary: Summary, upper: Tensor, bound: float) -> Summary:
        """Return the lower bounds' summary, with an interval that extends to the interval of the upper bounds."""
        if summary.interval is None:
            return summary
        end = bound
        if bool(upper.isfinite().all()):
            estimator = self.settings.estimator()
            estimator.add(upper[:, None])
            found = estimator.estimates([RatioOfSums(0, -1, 0.0, bound)])[0].interval
            end = bound if found is None else found[1]
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


def _known_classes(block: ReferenceBlock) -> TopKBlock:
    """Return all classes with a known probability in a reference, each once: the top, the draws and the token."""
    indices = torch.cat([block.top_indices.long(), block.tail_indices.long(), block.labels[:, None]], -1)
    log_probs = torch.cat([block.top_log_probs, block.tail_log_probs, block.label_log_probs[:, None]], -1)
    # Entries without mass are padding of a list. No class occurs twice.
    places = block.classes + torch.arange(indices.shape[-1])
    ordered, order = torch.where(log_probs == -torch.inf, places, indices).sort(dim=-1, stable=True)
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    again = again.scatter(-1, order, again)
    log_probs = torch.where(again, -torch.inf, log_probs)
    of_tail = log_probs[:, block.top_indices.shape[-1] :].double().exp().sum(-1)
    tail = (block.tail_log_mass.double().exp() - of_tail).clamp(min=0).log()
    nowhere = torch.zeros_like(block.labels)
    return TopKBlock(
        nowhere, nowhere, indices, log_probs, block.labels, block.label_log_probs, tail, block.classes
    )


class ReferencePairing(_PartialPairing):
    """A reference file on one side and logits on the other: divergences are estimated and bounded."""

    def __init__(self, base: ModelSide, candidate: ModelSide, settings: PairingSettings) -> None:
        super().__init__(base, candidate, settings)
        self._of_base = isinstance(base, ReferenceSide)
        # The rows are measured from the reference to the logits.
        self._measured_as = {
            name: name if self._of_base else MIRRORED.get(name, name) for name in DIVERGENCES
        }

    def row_divergences(self, p: Any, q: Any, known: tuple[_Known, _Known]) -> tuple[list[Tensor], Tensor]:
        rows = measure_reference(p, q) if self._of_base else measure_reference(q, p)
        return [rows.divergences[name].bound for name in self._measured_as.values()], _packed(rows)

    def result(self) -> tuple[Candidate, Tensor]:
        table = torch.cat(self._tables)
        side: Any = self.base if self._of_base else self.candidate
        rows = _unpacked(table[:, WIDTH:], side.reference.tail_draws)
        for place, name in enumerate(self._measured_as.values()):
            values = row_estimates(rows, name)[0]
            table[:, place] = torch.where(values.isnan(), table[:, place], values)
        note = _NOTE.format("P") if self._of_base else _NOTE.format("Q") + _NOTE_ON_CANDIDATE
        comparison = self._comparison(table, [note])
        drawn = {name: drawn_mean(rows, of) for name, of in self._measured_as.items()}
        divergences = {
            name: self._with_interval(comparison.divergences[name], rows, of, drawn[name])
            for name, of in self._measured_as.items()
        }
        certain = {name: each.bounds for name, each in drawn.items()}
        found = self._candidate(comparison, divergences, known="reference", certain=certain, drawn=drawn)
        return found, table[:, 0]

    def _with_interval(self, summary: Summary, rows: ReferenceRows, name: str, drawn: DrawnMean) -> Summary:
        interval, error = None, summary.standard_error
        reason: Reason | None = summary.reason
        if self.settings.run.bootstrap and math.isfinite(drawn.mean):
            found = population_mean(
                rows,
                name,
                cluster=self.settings.clusters.numbers,
                in_order=bool(self.settings.clusters.in_order),
                bootstrap=self.settings.run.bootstrap,
                generator=torch.Generator().manual_seed(self.settings.seed),
            )
            interval, error, reason = found.interval, found.standard_error, found.reason
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
    columns = iter(table.T.contiguous())
    divergences: dict[str, DrawnDivergence] = {}
    for name in DIVERGENCES:
        single = (next(columns) for _ in _DRAWN[: -len(_MOMENTS)])
        moments = (torch.stack([next(columns) for _ in range(width)], -1) for width in _MOMENTS)
        divergences[name] = DrawnDivergence._make([*single, *moments])
    plain: dict[str, Any] = {name: next(columns) for name in _PLAIN}
    plain |= {name: plain[name] > 0 for name in _FLAGS}
    plain["matching"] = plain["matching"].long()
    return ReferenceRows(divergences=divergences, draws=draws, **plain)
