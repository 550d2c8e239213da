"""The comparison of one candidate with the base: the measurements of each passage, the passages where both differ most,
the result, and its difference from another candidate's result.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kullback.common.plain_values import JsonObject
from kullback.common.row_statistics import FURTHER, RowStatistic
from kullback.common.streaming import Moments
from kullback.io.windows import Windows
from kullback.models.model_results import Candidate, Passage, ReadToken
from kullback.models.side import ModelSide
from kullback.models.vocabulary import SharedClasses
from kullback.predictions.checkpoint import decoded_tops
from kullback.predictions.collect import Collector
from kullback.predictions.groups import Groups
from kullback.predictions.mean_intervals import MeanEstimator, RatioOfSums
from kullback.predictions.measure import MeasuredRows, measure, rows_in_part
from kullback.predictions.prediction_results import WorstRow
from kullback.predictions.reading import Measure, Part
from kullback.predictions.run import Run
from kullback.predictions.sources import Clusters
from kullback.results.value import Value

LENGTH = 32  # scored tokens in a passage
MOST = 8
BEFORE = 24
SHORT_TEXT = 1024  # rows; of a text with at most this many rows, every passage is kept


def read_tokens(part: MeasuredRows, labels: Tensor) -> list[ReadToken]:
    """Return the tokens of measured rows, which have the first of the labels."""
    return [
        ReadToken(label, kl, *part.at_label(i), part.top_classes(i))
        for i, (kl, label) in enumerate(zip(part.table[:, 0].tolist(), labels.tolist(), strict=False))
    ]


class Passages:
    """Collects the passages of rows that arrive in order.

    Arguments:
        windows: the windows of the text. If the text is short, every passage is kept.
    """

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self.whole_text = windows.rows <= SHORT_TEXT
        self._places = windows.scored.nonzero().squeeze(-1)
        self._window = windows.clusters
        self._kept: list[tuple[float, int, Passage]] = []

    def ends(self, first: int, stop: int) -> list[int]:
        """Return the ends of the passages in rows `first` to `stop`, counted from `first`."""
        window = self._window[first:stop]
        breaks = (window.diff() != 0).nonzero().squeeze(-1) + 1
        ends: list[int] = []
        edges = [0, *breaks.tolist(), stop - first]
        for low, high in pairwise(edges):
            ends += [*range(low + LENGTH, high, LENGTH), high]
        return ends

    def is_wanted(self, kl_mean: float) -> bool:
        """Whether a passage with this mean KL would be kept."""
        return self.whole_text or len(self._kept) < MOST or kl_mean > self._kept[-1][0]

    def passage(self, first: int, tokens: list[ReadToken]) -> Passage:
        """Return the passage of tokens that begins at row `first`."""
        place, window = int(self._places[first]), int(self._window[first])
        start = int(self._windows.offsets[window])
        before = self._windows.tokens[max(start, place - BEFORE) : place].tolist()
        return Passage(window, place - start, before, tokens)

    def add(self, first: int, passage: Passage) -> None:
        """Add a passage that begins at row `first`; a passage that is not wanted is dropped."""
        self._kept.append((passage.kl_mean, first, passage))
        if not self.whole_text:
            self._kept.sort(key=lambda each: (-each[0], each[1]))
            del self._kept[MOST:]

    def passages(self) -> list[Passage]:
        """Return the passages: the whole text in order, or the passages with the largest means in descending order."""
        return [passage for _, _, passage in self._kept]


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
        passages: list[tuple[int, Passage]] = []
        for first, each in record["passages"]:
            tokens = [ReadToken(**token | {"top": decoded_tops(token["top"])}) for token in each["tokens"]]
            passages.append((first, Passage(**each | {"tokens": tokens})))
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
            worst += self._collector.worst.candidates(row, part.table[:, 0], part.top_classes)
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


def differences(results: Sequence[tuple[Candidate, Tensor]], settings: PairingSettings) -> list[Value[float]]:
    """Return the mean KL of each candidate minus the mean KL of the previous candidate, paired by the rows of both."""
    means: list[Value[float]] = []
    for (candidate, before), (following, after) in pairwise(results):
        common = min(len(before), len(after))  # a candidate whose place is clear may be read no further
        mean = _difference(after[:common] - before[:common], settings)
        means.append(with_open_ends(mean, candidate.is_open_above, following.is_open_above))
    return means


def differences_by_group(
    results: Sequence[tuple[Candidate, Tensor]], settings: PairingSettings
) -> dict[str, list[Value[float]]]:
    """Return `differences` over the rows of each group that all candidates have."""
    by_group: dict[str, list[Value[float]]] = {}
    for name, rows in ({} if settings.groups is None else settings.groups.masks()).items():
        in_group = [(candidate.in_group(name), kl[rows[: len(kl)]]) for candidate, kl in results]
        if all(len(kl) for _, kl in in_group):
            by_group[name] = differences(in_group, settings.of_rows(rows))
    return by_group


def with_open_ends(difference: Value[float], below: bool, above: bool) -> Value[float]:
    """Return a difference whose interval is open below, above, or on both sides, which is no interval."""
    if difference.interval is None or not (below or above):
        return difference
    low, high = difference.interval
    ends = None if below and above else (-math.inf if below else low, math.inf if above else high)
    return replace(difference, interval=ends, reason="not bounded")


def _difference(values: Tensor, settings: PairingSettings) -> Value[float]:
    moments = Moments()
    moments.add(values)
    estimator = settings.estimator()
    estimator.add(values[:, None])
    estimate = estimator.estimates([RatioOfSums(0)])[0]
    return Value(float(moments.mean), estimate.standard_error, estimate.interval, reason=estimate.reason)
