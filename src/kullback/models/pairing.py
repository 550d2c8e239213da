"""The comparison of one candidate with the base: the measurements of each passage, and the result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kullback.common.plain_values import JsonObject
from kullback.common.row_statistics import FURTHER, RowStatistic
from kullback.io.windows import Windows
from kullback.models.model_results import Candidate, Passage, ReadToken
from kullback.models.passages import Passages, decoded_passage, read_tokens
from kullback.models.side import ModelSide
from kullback.models.vocabulary import SharedClasses
from kullback.predictions.collect import Collector
from kullback.predictions.groups import Groups
from kullback.predictions.mean_intervals import MeanEstimator
from kullback.predictions.measure import MeasuredRows, measure, rows_in_part
from kullback.predictions.prediction_results import WorstRow
from kullback.predictions.reading import Measure, Part
from kullback.predictions.run import Run
from kullback.predictions.sources import Clusters

LOGITS = "logits", "logits"


@dataclass(frozen=True)
class PairingSettings:
    """The settings that all pairings of a comparison share."""

    windows: Windows
    clusters: Clusters
    run: Run
    seed: int
    groups: Groups | None = None

    def of_rows(self, rows: Tensor) -> PairingSettings:
        """Return the settings of a mean over some rows."""
        return replace(self, clusters=self.clusters.at(rows), groups=None)

    def estimator(self) -> MeanEstimator:
        """Return a new estimator of the mean of one column; all these estimators use the same draws."""
        draws = torch.Generator().manual_seed(self.seed)
        examined = (0,) if self.clusters.in_order else ()
        return MeanEstimator(1, self.run.bootstrap, draws, self.clusters.numbers, examined)

    def collector(self, labels: Tensor, further: Sequence[RowStatistic] = ()) -> Collector:
        """Return a new collector of statistics."""
        return Collector(
            self.windows.rows,
            labels,
            self.clusters,
            replace(self.run, generator=torch.Generator().manual_seed(self.seed)),
            chunks=self.windows.clusters if self.run.llama_cpp else None,
            further=further,
            groups=self.groups,
        )


class Pairing(Measure):
    """The measurement of a candidate against the base."""

    def __init__(self, base: ModelSide, candidate: ModelSide, settings: PairingSettings) -> None:
        self.base, self.candidate, self.settings = base, candidate, settings
        self.passages = Passages(settings.windows)
        self.watch: Callable[[Tensor], object] | None = None  # gets every measured table, in order

    def ends(self, first: int, stop: int) -> list[int]:
        return self.passages.ends(first, stop)

    def encoded(self, part: Part) -> JsonObject:
        return super().encoded(part) | {
            "passages": [[first, asdict(passage)] for first, passage in part.passages]
        }

    def decoded(self, record: Any) -> Part:
        passages = [(first, decoded_passage(each)) for first, each in record["passages"]]
        return super().decoded(record)._replace(passages=passages)

    @abstractmethod
    def result(self) -> tuple[Candidate, Tensor]:
        """Return the result of all rows, and KL(P || Q) of each row."""


class DensePairing(Pairing):
    """The measurement of two sides with known logits of every class.

    `shared` are the classes that both sides share; None if both have the same classes.
    """

    def __init__(
        self, base: ModelSide, candidate: ModelSide, settings: PairingSettings, shared: SharedClasses | None
    ) -> None:
        super().__init__(base, candidate, settings)
        self._shared = shared
        labels = settings.windows.labels
        self._labels = labels if shared is None else shared.shared_numbers(labels)
        self._collector = settings.collector(self._labels, list(FURTHER.values()))
        self._kl: list[Tensor] = []

    def prepared(self, p: Any, q: Any) -> tuple[Any, Any]:
        if self._shared is None:
            return p, q
        return self._shared.rows(p, of_p=True), self._shared.rows(q, of_p=False)

    def measured(self, first: int, p: Any, q: Any) -> Part:
        labels = self._labels[first : first + len(p)]
        step = rows_in_part(p.shape[-1])

        def parts() -> Iterator[MeasuredRows]:
            for low in range(0, len(p), step):
                rows = slice(low, low + step)
                yield measure(p[rows], q[rows], LOGITS, labels[rows], self._collector.further)

        tables: list[Tensor] = []
        worst: list[WorstRow] = []
        tokens: list[ReadToken] = []
        row = first
        for part in parts():
            tables.append(part.table)
            worst += self._collector.worst.candidates(row, part)
            if self.passages.whole_text:
                tokens += read_tokens(part, labels[len(tokens) :])
            row += len(part.table)
        table = torch.cat(tables)
        passages: list[tuple[int, Passage]] = []
        if self.passages.is_wanted(float(table[:, 0].mean())):
            # Few passages of a long text are kept, so a kept passage is measured again to get its tokens.
            for part in () if tokens else parts():
                tokens += read_tokens(part, labels[len(tokens) :])
            passages.append((first, self.passages.passage(first, tokens)))
        return Part(table, worst, passages)

    def add(self, part: Part) -> None:
        self._collector.add(part.table, part.worst)
        self._kl.append(part.table[:, 0].clone())
        if self.watch is not None:
            self.watch(part.table)
        for first, passage in part.passages:
            self.passages.add(first, passage)

    def result(self) -> tuple[Candidate, Tensor]:
        shared = self._shared
        if self.settings.run.goal is not None:
            self._collector.end_early()
        notes = [] if shared is None else [_note_on_classes(shared)]
        comparison = self._collector.comparison(self.base, self.candidate, notes)
        candidate = Candidate(
            self.candidate.info,
            comparison,
            self.passages.passages(),
            None if shared is None else len(shared.p),
        )
        return candidate, torch.cat(self._kl)


def _note_on_classes(shared: SharedClasses) -> str:
    if shared.padding:
        return (
            f"{shared.padding:,} classes without a token, which only one of P and Q has, are left out. The "
            "probabilities of the tokens are renormalized."
        )
    if shared.classes == len(shared.p):
        return "The classes of P and Q are in another order; they are matched by the bytes of their tokens."
    return (
        f"P and Q share {len(shared.p):,} classes, matched by the bytes of their tokens. {len(shared.others_p):,} "
        f"classes of P and {len(shared.others_q):,} of Q are counted as one class. Every divergence is therefore a "
        "lower bound of the divergence over the whole vocabularies."
    )
