"""Statistics of values that arrive in blocks: quantiles, histogram, confidence bins, segments and worst rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from kullback.common.streaming import Moments, QuantileSketch
from kullback.predictions.measure import MeasuredRows
from kullback.predictions.prediction_results import (
    ConfidenceBin,
    Segment,
    WorstRow,
)
from kullback.predictions.sources import Clusters

EXACT_ROWS = 4_000_000
CONFIDENCE_EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SEGMENTS = 400
# Each factor of ten has eight bins. Values below or above all edges count in the first or the last bin.
HISTOGRAM_EDGES = 10.0 ** (torch.arange(-40 * 8, 6 * 8 + 1, dtype=torch.float64, device="cpu") / 8)


class Quantiles:
    """Quantiles of values: exact for up to `limit` values, from a sketch for more.

    The values must be nonnegative, unless `signed` is true.
    """

    def __init__(self, limit: int = EXACT_ROWS, *, signed: bool = False) -> None:
        self._limit, self._count, self._signed = limit, 0, signed
        self._held: list[Tensor] = []
        self._sketch: QuantileSketch | SignedSketch | None = None

    @property
    def exact(self) -> bool:
        """Whether the quantiles are exact, because all values are still in memory."""
        return self._sketch is None

    def add(self, values: Tensor) -> None:
        self._count += len(values)
        self._held.append(values.clone())  # a view of a column would keep its whole table in memory
        if self._sketch is None and self._count > self._limit:
            self._sketch = SignedSketch() if self._signed else QuantileSketch()
        if self._sketch is not None:
            for part in self._held:
                self._sketch.add(part)
            self._held.clear()

    def at(self, probabilities: Sequence[float]) -> list[float]:
        """Return the quantiles, interpolated linearly between neighboring values; NaN if there was no value."""
        if self._sketch is not None:
            return self._sketch.quantile(probabilities).tolist()
        if self._count == 0:
            return [math.nan] * len(probabilities)
        self._held = [torch.cat(self._held).sort().values]
        return _interpolated(probabilities, self._count, lambda rank: self._held[0][rank]).tolist()


class SignedSketch:
    """Quantiles of values of either sign, from a sketch of the nonnegative values and a sketch of the negated negative
    values.
    """

    def __init__(self) -> None:
        self._above, self._below = QuantileSketch(), QuantileSketch()

    def add(self, values: Tensor) -> None:
        self._above.add(values[values >= 0])
        self._below.add(-values[values < 0])

    def quantile(self, probabilities: Sequence[float]) -> Tensor:
        """Return the quantiles, interpolated linearly between neighboring values."""
        return _interpolated(probabilities, self._above.count + self._below.count, self._ordered)

    def _ordered(self, rank: Tensor) -> Tensor:
        """Return the values of the given ranks, counted from 0 in increasing order."""
        rank, negative = rank.double(), self._below.count
        above = self._above.quantile(((rank - negative) / max(self._above.count - 1, 1)).clamp(min=0))
        below = self._below.quantile(((negative - 1 - rank) / max(negative - 1, 1)).clamp(min=0))
        return torch.where(rank < negative, -below, above)


def _interpolated(probabilities: Sequence[float], count: int, ordered: Callable[[Tensor], Tensor]) -> Tensor:
    """Return quantiles of values, interpolated linearly; `ordered` returns the values at given ranks, from 0."""
    place = torch.tensor(probabilities, dtype=torch.float64, device="cpu") * (count - 1)
    below, share = place.floor().long(), place.frac()
    low, high = ordered(below), ordered((below + 1).clamp(max=count - 1))
    # This avoids NaN from 0 * inf and inf - inf.
    between = torch.where(share > 0, (1 - share) * low + share * high, low)
    return torch.where(low == high, low, between)


class Histogram:
    """Counts of values in fixed logarithmic bins."""

    def __init__(self) -> None:
        # The first number counts zeros, and the last number counts infinite values.
        self._counts = torch.zeros(len(HISTOGRAM_EDGES) + 1, dtype=torch.int64, device="cpu")

    def add(self, values: Tensor) -> None:
        inner = torch.bucketize(values, HISTOGRAM_EDGES[1:-1], right=True) + 1
        index = torch.where(values == 0, 0, torch.where(values.isinf(), len(HISTOGRAM_EDGES), inner))
        self._counts += torch.bincount(index, minlength=len(self._counts))

    def bins(self) -> list[tuple[float, float, int]]:
        """Return (low, high, count) of the zeros, of the bins from the first to the last occupied bin, and of the
        infinite values.
        """
        zero, *counts, infinite = self._counts.tolist()
        occupied = [i for i, count in enumerate(counts) if count]
        edges = HISTOGRAM_EDGES.tolist()
        span = range(occupied[0], occupied[-1] + 1) if occupied else range(0)
        bins = [(0.0, 0.0, zero), *((edges[i], edges[i + 1], counts[i]) for i in span)]
        return [*bins, (math.inf, math.inf, infinite)] if infinite else bins


class ByConfidence:
    """KL(P || Q) and top-1 agreement in bins of P's largest probability."""

    def __init__(self, limit: int = EXACT_ROWS) -> None:
        bins = len(CONFIDENCE_EDGES) - 1
        self._kl = [Moments() for _ in range(bins)]
        self._same = [Moments() for _ in range(bins)]
        self._quantiles = [Quantiles(limit) for _ in range(bins)]

    def add(self, confidence: Tensor, kl: Tensor, same_top: Tensor) -> None:
        inner = torch.tensor(CONFIDENCE_EDGES[1:-1], dtype=confidence.dtype, device="cpu")
        index = torch.bucketize(confidence, inner, right=True)
        for i in index.unique().tolist():
            here = index == i
            self._kl[i].add(kl[here])
            self._same[i].add(same_top[here])
            self._quantiles[i].add(kl[here])

    def bins(self) -> list[ConfidenceBin]:
        edges = pairwise(CONFIDENCE_EDGES)
        parts = zip(edges, self._kl, self._same, self._quantiles, strict=True)
        return [
            ConfidenceBin(low, high, kl.count, float(kl.mean), quantiles.at([0.99])[0], float(same.mean))
            for (low, high), kl, same, quantiles in parts
        ]


class Segments:
    """Mean and largest KL(P || Q) of consecutive rows, in segments whose length doubles when there are too many
    segments.
    """

    def __init__(self, rows: int | None) -> None:
        self._length = max(1, math.ceil((rows or 0) / SEGMENTS))
        self._rows = 0
        self._sums = torch.zeros(SEGMENTS, dtype=torch.float64, device="cpu")
        self._largest = torch.zeros(SEGMENTS, dtype=torch.float64, device="cpu")

    def add(self, kl: Tensor) -> None:
        rows = torch.arange(self._rows, self._rows + len(kl), device="cpu")
        self._rows += len(kl)
        while self._rows > self._length * SEGMENTS:
            self._merge()
        index = rows // self._length
        self._sums.index_add_(0, index, kl)
        self._largest.scatter_reduce_(0, index, kl, "amax")

    def _merge(self) -> None:
        rest = torch.zeros(SEGMENTS // 2, dtype=torch.float64, device="cpu")
        self._sums = torch.cat([self._sums.view(-1, 2).sum(-1), rest])
        self._largest = torch.cat([self._largest.view(-1, 2).amax(-1), rest])
        self._length *= 2

    def segments(self) -> list[Segment]:
        segments: list[Segment] = []
        for i, start in enumerate(range(0, self._rows, self._length)):
            stop = min(start + self._length, self._rows)
            segments.append(
                Segment(start, stop, float(self._sums[i]) / (stop - start), float(self._largest[i]))
            )
        return segments


class Worst:
    """The rows with the largest KL(P || Q); ties are in order of row number."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._rows: list[WorstRow] = []

    def candidates(self, start: int, measured: MeasuredRows) -> list[WorstRow]:
        """Return the rows of a part that may be among the worst, given all parts added so far."""
        kl = measured.table[:, 0]
        floor = self._rows[-1].kl if len(self._rows) == self._count and self._rows else -1.0
        order = torch.sort(kl, descending=True, stable=True).indices[: self._count].tolist()
        return [
            WorstRow(start + i, float(kl[i]), None, None, measured.top_classes(i))
            for i in order
            if kl[i] > floor
        ]

    def add(self, rows: list[WorstRow]) -> None:
        """Add candidates from further rows, in the order of the rows."""
        self._rows = sorted([*self._rows, *rows], key=lambda row: (-row.kl, row.row))[: self._count]

    def rows(self, labels: Tensor | None, clusters: Clusters | None) -> list[WorstRow]:
        """Return the worst rows in descending order of KL, each with its label and the name of its cluster."""

        def label_of(row: int) -> int | None:
            return None if labels is None or labels[row] < 0 else int(labels[row])

        def cluster_of(row: int) -> str | None:
            return None if clusters is None else clusters.names[int(clusters.numbers[row])]

        return [replace(row, label=label_of(row.row), cluster=cluster_of(row.row)) for row in self._rows]
