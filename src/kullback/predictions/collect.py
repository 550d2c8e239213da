"""The collector of all statistics of a comparison: takes tables of measured rows, returns the `Comparison`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kullback.predictions.bootstrap import Resampler
from kullback.predictions.measure import COLUMNS, DIVERGENCES, LABEL_COLUMNS
from kullback.predictions.result import Comparison, LabelStatistics, Mean, Proportion, Summary, WorstRow
from kullback.predictions.sources import Clusters, require_values
from kullback.predictions.statistics import ByConfidence, Histogram, Quantiles, Segments, Worst
from kullback.streaming import Moments

if TYPE_CHECKING:
    from kullback.io import RowSource

__all__ = ["Collector"]

SUMMARY_LEVELS = (0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
CURVE_LEVELS = (*(i / 100 for i in range(100)), *(0.99 + i / 1000 for i in range(1, 10)), 0.9995, 0.9999, 1.0)
FEW_CLUSTERS = 30
# Rows that the statistics take in at a time.
TABLE_ROWS = 4096


class Collector:
    """Accumulates the statistics of a comparison from tables of measured rows, given in order.

    Arguments:
        rows: the number of rows, or None where it is not known before reading.
        labels: the true class of each row, or None.
        clusters: the cluster of each row, or None.
        worst: how many of the worst rows to report.
        bootstrap: the number of bootstrap draws for the intervals.
        generator: the source of the draws, or None for a fixed seed.
    """

    def __init__(
        self,
        rows: int | None,
        labels: Tensor | None,
        clusters: Clusters | None,
        *,
        worst: int,
        bootstrap: int,
        generator: torch.Generator | None,
    ) -> None:
        self.rows, self.labels, self.worst = rows, labels, Worst(worst)
        self._clusters, self._bootstrap = clusters, bootstrap
        self._columns = COLUMNS if labels is None else (*COLUMNS, *LABEL_COLUMNS)
        # One buffer for the rows of many parts: small tensors that outlive their part would fragment the heap.
        self._table, self._filled = torch.empty(TABLE_ROWS, len(self._columns), dtype=torch.float64), 0
        self._moments = {name: Moments() for name in self._columns}
        self._quantiles = {name: Quantiles() for name in DIVERGENCES}
        self._infinite = dict.fromkeys(DIVERGENCES, 0)
        self._histogram, self._by_confidence, self._segments = Histogram(), ByConfidence(), Segments(rows)
        numbers = None if clusters is None else clusters.numbers
        self._resampler = Resampler(len(self._columns), bootstrap, generator, numbers)

    def require_values_up_to(self, stop: int) -> None:
        """Refuse labels or clusters that end before row `stop`."""
        for argument, values in self._beside():
            if len(values) < stop:
                require_values(argument, len(values), stop, more=True)

    def add(self, table: Tensor, worst: list[WorstRow]) -> None:
        """Add the next rows: their table as `measure` returns it, and the worst among them."""
        self.worst.add(worst)
        for part in table.split(TABLE_ROWS):
            if self._filled + len(part) > TABLE_ROWS:
                self._take_table()
            self._table[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def _take_table(self) -> None:
        """Add the buffered rows to the statistics."""
        table = self._table[: self._filled]
        self._filled = 0
        columns = dict(zip(self._columns, table.T.contiguous(), strict=True))
        known = columns["labeled"] > 0 if "labeled" in columns else None
        for name, values in columns.items():
            self._moments[name].add(values if name not in LABEL_COLUMNS[1:] else values[known])
        for name in DIVERGENCES:
            self._quantiles[name].add(columns[name])
            self._infinite[name] += int(columns[name].isinf().sum())
        kl = columns["kl_pq"]
        self._histogram.add(kl)
        self._segments.add(kl)
        self._by_confidence.add(columns["confidence"], kl, columns["same_top"])
        self._resampler.add(table)

    def comparison(self, p: RowSource, q: RowSource, notes: list[str]) -> Comparison:
        """Return the comparison of all rows; its notes begin with `notes`."""
        self._take_table()
        rows = self._moments["kl_pq"].count
        for argument, values in self._beside():
            require_values(argument, len(values), rows)
        clusters = self._clusters
        same = self._mean("same_top")
        labels = self._label_statistics()
        return Comparison(
            p_name=str(p.path),
            q_name=str(q.path),
            rows=rows,
            classes=p.classes,
            clusters=None if clusters is None else len(clusters.names),
            divergences={name: self._summary(name) for name in DIVERGENCES},
            top1_agreement=Proportion(same.mean, same.standard_error, same.interval),
            labels=labels,
            worst=self.worst.rows(self.labels, clusters),
            by_confidence=self._by_confidence.bins(),
            histogram=self._histogram.bins(),
            quantiles=list(zip(CURVE_LEVELS, self._quantiles["kl_pq"].at(CURVE_LEVELS), strict=True)),
            segments=self._segments.segments(),
            infinite=self._infinite,
            quantiles_exact=self._quantiles["kl_pq"].exact,
            notes=[*notes, *self._notes(rows, labels), *_caveats(p, q)],
        )

    def _beside(self) -> list[tuple[str, Tensor]]:
        """Return (argument, vector) for the vectors that must have a value for each row."""
        clusters = None if self._clusters is None else self._clusters.numbers
        named = (("labels", self.labels), ("cluster", clusters))
        return [(argument, values) for argument, values in named if values is not None]

    def _mean(self, name: str) -> Mean:
        per = "labeled" if name in LABEL_COLUMNS else None
        interval = self._resampler.interval(
            self._columns.index(name), -1 if per is None else self._columns.index(per)
        )
        moments = self._moments[name]
        return Mean(float(moments.mean), float(moments.standard_error), interval)

    def _summary(self, name: str) -> Summary:
        mean = self._mean(name)
        return Summary(
            mean.mean, mean.standard_error, mean.interval, *self._quantiles[name].at(SUMMARY_LEVELS)
        )

    def _label_statistics(self) -> LabelStatistics | None:
        if self.labels is None:
            return None
        return LabelStatistics(
            labeled=round(float(self._moments["labeled"].sum)),
            cross_entropy_p=self._mean("cross_entropy_p"),
            cross_entropy_q=self._mean("cross_entropy_q"),
            difference=self._mean("difference"),
            delta_prob_mean=self._mean("delta_prob"),
            delta_prob_rms=_root(self._mean("delta_prob_squared")),
        )

    def _notes(self, rows: int, labels: LabelStatistics | None) -> list[str]:
        found = [self._how_intervals_arise(rows)] if self._bootstrap else []
        if not self._quantiles["kl_pq"].exact:
            found.append("Quantiles come from a sketch, with a relative error of at most 0.005.")
        if labels is not None and math.isnan(labels.difference.mean) and labels.labeled:
            found.append(
                "The cross-entropies cannot be subtracted: some labels have probability 0 under P, others under Q."
            )
        return found

    def _how_intervals_arise(self, rows: int) -> str:
        draws = f"{self._bootstrap:,} bootstrap draws"
        errors = "Standard errors take the rows to be independent"
        if self._clusters is None:
            return (
                f"{errors}, and so do the 95 % intervals ({draws} of {rows:,} rows): where neighboring rows belong "
                "together, say so by cluster ids."
            )
        count = len(self._clusters.names)
        few = f" With {count} clusters they are rather too narrow." if count < FEW_CLUSTERS else ""
        return (
            f"{errors}; the 95 % intervals do not: they come from {draws}, of {count:,} whole clusters.{few}"
        )


def _root(square: Mean) -> Mean:
    """Return the root of a mean square, with its standard error by the delta method."""
    root = math.sqrt(square.mean)
    error = square.standard_error / (2 * root) if root else square.standard_error
    low, high = square.interval or (math.nan, math.nan)
    return Mean(root, error, None if square.interval is None else (math.sqrt(low), math.sqrt(high)))


def _caveats(p: RowSource, q: RowSource) -> list[str]:
    """Return the remarks of the sources on their contents, once where both have the same."""
    by_sentence: dict[str, list[str]] = {}
    for name, source in (("P", p), ("Q", q)):
        for sentence in source.caveats():
            by_sentence.setdefault(sentence, []).append(name)
    return [f"{' and '.join(names)}: {sentence}." for sentence, names in by_sentence.items()]
