"""The collector of all statistics of a comparison, which takes tables of measured rows and returns a `Comparison`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kullback.common.row_statistics import BUILT_IN, RowStatistic
from kullback.common.serial_dependence import SerialDependence
from kullback.common.streaming import Moments
from kullback.common.words import NO_LABEL
from kullback.predictions.groups import AgainstRest, Groups
from kullback.predictions.llama_cpp_statistics import LlamaCpp
from kullback.predictions.mean_intervals import FEWEST_UNITS, MeanEstimate, MeanEstimator, RatioOfSums
from kullback.predictions.measure import DIVERGENCES
from kullback.predictions.prediction_results import (
    Comparison,
    LabelStatistics,
    Summary,
    TitledValue,
    WorstRow,
)
from kullback.predictions.run import Run
from kullback.predictions.sources import Clusters, require_values
from kullback.predictions.statistics import EXACT_ROWS, ByConfidence, Histogram, Quantiles, Segments, Worst
from kullback.results.value import Value


class ComparisonSide(Protocol):
    """The data of one side of a comparison."""

    @property
    def path(self) -> Path: ...

    @property
    def classes(self) -> int: ...

    def caveats(self) -> list[str]:
        """Return remarks on the contents, as sentences."""
        ...


SUMMARY_LEVELS = (0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
CURVE_LEVELS = (*(i / 100 for i in range(100)), *(0.99 + i / 1000 for i in range(1, 10)), 0.9995, 0.9999, 1.0)
PERPLEXITY_DIFFERENCE = "perplexity_difference"
AGREEMENTS, ACCURACIES_P, ACCURACIES_Q = (
    tuple(each.name for each in BUILT_IN if each.name.endswith(of))
    for of in ("_agreement", "_accuracy_p", "_accuracy_q")
)
# For these and all registered statistics, a group's mean is compared with the mean of all other rows.
PAIRED = (*DIVERGENCES, AGREEMENTS[0], "cross_entropy_p", "cross_entropy_q", "difference")
# If none of n rows is of some kind, at most 3/n of all rows are of that kind, at 95 % confidence. `LARGE_KL` is a large
# KL of a row, in nats.
UNSEEN, LARGE_KL = 3.0, 10.0
# The number of rows that are added to the statistics at a time.
TABLE_ROWS = 4096


class Collector:
    """Accumulates the statistics of a comparison from tables of measured rows, given in order.

    Arguments:
        rows: the number of rows, or None if it is not known before reading.
        labels: the true class of each row; None without labels.
        clusters: the cluster of each row; None without clusters.
        chunks: the chunk of each row for llama.cpp's statistics, from 0 and increasing; None without chunks.
        further: statistics that the user registered.
        groups: the group of each row; all statistics are also computed in each group. None without groups.
        shares: the number of collectors that share the memory of the values of exact quantiles.
    """

    def __init__(
        self,
        rows: int | None,
        labels: Tensor | None,
        clusters: Clusters | None,
        run: Run,
        *,
        chunks: Tensor | None = None,
        further: Sequence[RowStatistic] = (),
        groups: Groups | None = None,
        shares: int = 1,
    ) -> None:
        self.rows, self.labels, self.worst = rows, labels, Worst(run.worst)
        self._clusters, self._bootstrap, self._groups = clusters, run.bootstrap, groups
        known = [each for each in BUILT_IN if labels is not None or not each.of_labels]
        self.further = [each for each in further if labels is not None or not each.of_labels]
        columns = [each for each in known if not each.of_labels] + [each for each in known if each.of_labels]
        self._statistics = {each.name: each for each in (*columns, *self.further)}
        self._columns = tuple(self._statistics)
        self._llama_cpp = LlamaCpp(chunks) if run.llama_cpp else None
        # One buffer holds the rows of many parts, because small tensors that outlive a part would fragment the heap.
        self._table = torch.empty(TABLE_ROWS, len(self._columns), dtype=torch.float64, device="cpu")
        self._filled = 0
        self._moments = {name: Moments() for name in self._columns}
        exact_rows = EXACT_ROWS // shares
        self._quantiles = {name: Quantiles(exact_rows) for name in DIVERGENCES}
        if labels is not None:
            self._quantiles["delta_prob"] = Quantiles(exact_rows, signed=True)
        self._infinite = dict.fromkeys(DIVERGENCES, 0)
        self._histogram, self._segments = Histogram(), Segments(rows)
        self._by_confidence = ByConfidence(exact_rows)
        numbers = None if clusters is None else clusters.numbers
        all_labeled = labels is not None and bool((labels != NO_LABEL).all())
        in_order = not run.independent and (clusters is None or clusters.in_order)
        places = [
            place
            for place, each in enumerate(self._statistics.values())
            if in_order and each.examined and (all_labeled or not each.of_labels)
        ]
        self._of_group = {} if groups is None else self._collectors(groups, run)
        paired = [each for each in known if each.name in PAIRED] + self.further
        self._by_unit = None if groups is None else AgainstRest(groups, self._columns, paired)
        width = len(self._columns) if self._by_unit is None else self._by_unit.columns
        self._estimator = MeanEstimator(width, run.bootstrap, run.generator, numbers, places)
        self._estimates: dict[str, MeanEstimate] = {}

    def _collectors(self, groups: Groups, run: Run) -> dict[str, Collector]:
        """Return a collector for the rows of each group, by name."""
        for argument, values in self._beside():
            require_values(argument, len(values), len(groups.numbers))
        of_group = replace(run, worst=0, llama_cpp=False)
        return {
            name: Collector(
                int(rows.sum()),
                None if self.labels is None else self.labels[rows],
                None if self._clusters is None else self._clusters.at(rows),
                # Every collector has the same draws, whatever the groups are.
                replace(of_group, generator=run.generator and run.generator.clone_state()),
                further=self.further,
                shares=len(groups.names),
            )
            for name, rows in groups.masks().items()
        }

    @property
    def count(self) -> int:
        """The number of rows that were added."""
        return self._moments["kl_pq"].count + self._filled

    def require_values_up_to(self, stop: int) -> None:
        """Refuse labels, clusters or groups that end before row `stop`."""
        for argument, values in self._beside():
            if len(values) < stop:
                require_values(argument, len(values), stop, more=True)

    def add(self, table: Tensor, worst: list[WorstRow]) -> None:
        """Add the next rows: a table as `measure` returns it, and the worst of these rows."""
        self.worst.add(worst)
        # The buffer is filled completely before use, so that the sums do not depend on the sizes of the tables.
        while len(table):
            if self._filled == TABLE_ROWS:
                self._take_table()
            part, table = table[: TABLE_ROWS - self._filled], table[TABLE_ROWS - self._filled :]
            self._table[self._filled : self._filled + len(part)] = part
            self._filled += len(part)

    def _take_table(self) -> None:
        """Add the buffered rows to the statistics."""
        table, first = self._table[: self._filled], self._moments["kl_pq"].count
        self._filled, by_unit = 0, None
        if self._groups is not None and self._by_unit is not None:
            groups = self._groups.at(slice(first, first + len(table)))
            by_unit = self._by_unit.table(table, groups)
            for name, rows in groups.masks().items():
                self._of_group[name].add(table[rows], [])
        columns = dict(zip(self._columns, table.T.contiguous(), strict=True))
        known = columns["labeled"] > 0 if "labeled" in columns else None
        if self._llama_cpp is not None and known is not None:
            self._llama_cpp.add(columns, known)
        for name, values in columns.items():
            is_partial = self._statistics[name].of_labels and name != "labeled"
            columns[name] = values[known] if is_partial else values
            self._moments[name].add(columns[name])
        for name, quantiles in self._quantiles.items():
            quantiles.add(columns[name])
        for name in DIVERGENCES:
            self._infinite[name] += int(columns[name].isinf().sum())
        kl = columns["kl_pq"]
        self._histogram.add(kl)
        self._segments.add(kl)
        self._by_confidence.add(columns["confidence"], kl, columns[AGREEMENTS[0]])
        self._estimator.add(table if by_unit is None else by_unit)

    def end_early(self) -> None:
        """Drop the labels, the clusters and the groups of rows that were not added."""
        self._take_table()
        rows = slice(self.count)
        if self.labels is not None:
            self.labels = self.labels[rows]
        if self._clusters is not None:
            self._clusters = self._clusters.at(rows)
        if self._groups is not None:
            self._groups = self._groups.at(rows)
        for collector in self._of_group.values():
            collector.end_early()

    def comparison(self, p: ComparisonSide, q: ComparisonSide, notes: list[str]) -> Comparison:
        """Return the comparison of all rows; the notes of the comparison begin with `notes`."""
        self._take_table()
        rows = self._moments["kl_pq"].count
        for argument, values in self._beside():
            require_values(argument, len(values), rows)
        clusters = self._clusters
        means = [each for each in self._statistics.values() if each.is_mean]
        # Notes name the divergences first, then the rates.
        means.sort(key=lambda each: (each.name not in DIVERGENCES, not each.binary))
        quantities = {each.name: self._quantity(each) for each in means}
        if self.labels is not None and (combined := self._perplexity_weights()):
            labeled = self._columns.index("labeled")
            quantities[PERPLEXITY_DIFFERENCE] = RatioOfSums(self._estimator.combine(combined), labeled)
        estimates = self._estimator.estimates(list(quantities.values()))
        self._estimates = dict(zip(quantities, estimates, strict=True))
        agreement = [self._mean(name) for name in AGREEMENTS]
        labels = self._label_statistics()
        return Comparison(
            p_name=str(p.path),
            q_name=str(q.path),
            rows=rows,
            classes=p.classes,
            clusters=None if clusters is None else len(clusters.names),
            divergences={name: self._summary(name) for name in DIVERGENCES},
            acceptance_rate=complement(self._mean("tv")),
            top1_agreement=agreement[0],
            top_k_agreement=agreement,
            labels=labels,
            worst=self.worst.rows(self.labels, clusters),
            by_confidence=self._by_confidence.bins(),
            histogram=self._histogram.bins(),
            quantiles=list(zip(CURVE_LEVELS, self._quantiles["kl_pq"].at(CURVE_LEVELS), strict=True)),
            segments=self._segments.segments(),
            infinite={**self._infinite},
            quantiles_exact=self._quantiles["kl_pq"].exact,
            notes=[*notes, *self._notes(labels), *_caveats(p, q)],
            llama_cpp=None if self._llama_cpp is None else self._llama_cpp.statistics(),
            unseen=self._unseen_share() if self._bootstrap else 0.0,
            independent_units=self._units()[0],
            further={each.name: self._titled(each) for each in self.further},
            groups=self._comparisons(p, q),
        )

    def _comparisons(self, p: ComparisonSide, q: ComparisonSide) -> dict[str, Comparison]:
        """Return the comparison of the rows of each group that has rows, paired with all other rows."""
        if self._by_unit is None:
            return {}
        against_rest = self._by_unit.values(self._estimator)
        return {
            name: replace(collector.comparison(p, q, []), against_rest=against_rest[name])
            for name, collector in self._of_group.items()
            if collector.count
        }

    def _beside(self) -> list[tuple[str, Tensor]]:
        """Return (argument, vector) for the vectors that must have a value for each row."""
        clusters = None if self._clusters is None else self._clusters.numbers
        groups = None if self._groups is None else self._groups.numbers
        named = (("labels", self.labels), ("cluster", clusters), ("groups", groups))
        return [(argument, values) for argument, values in named if values is not None]

    def _quantity(self, of: RowStatistic) -> RatioOfSums:
        per = self._columns.index("labeled") if of.of_labels else -1
        return RatioOfSums(self._columns.index(of.name), per, of.low, of.high, binary=of.binary)

    def _mean(self, name: str) -> Value[float]:
        moments, estimate = self._moments[name], self._estimates[name]
        dependence = self._estimator.dependence
        by_row = self._clusters is None and (dependence is None or dependence.kind == "pattern")
        error = float(moments.standard_error) if by_row else estimate.standard_error
        return Value(float(moments.mean), error, estimate.interval, reason=estimate.reason)

    def _titled(self, of: RowStatistic) -> TitledValue:
        mean = self._mean(of.name)
        return TitledValue(mean.value, mean.standard_error, mean.interval, reason=mean.reason, title=of.title)

    def _summary(self, name: str) -> Summary:
        mean, quantiles = self._mean(name), self._quantiles[name].at(SUMMARY_LEVELS)
        return Summary(mean.mean, mean.standard_error, mean.interval, *quantiles, reason=mean.reason)

    def _label_statistics(self) -> LabelStatistics | None:
        if self.labels is None:
            return None
        cross_entropies = self._mean("cross_entropy_p"), self._mean("cross_entropy_q")
        difference = self._mean("difference")
        return LabelStatistics(
            labeled=round(float(self._moments["labeled"].sum)),
            cross_entropy_p=cross_entropies[0],
            cross_entropy_q=cross_entropies[1],
            difference=difference,
            correlation=self._correlation(),
            perplexity_p=_exponential(cross_entropies[0]),
            perplexity_q=_exponential(cross_entropies[1]),
            perplexity_ratio=_exponential(difference),
            perplexity_difference=self._perplexity_difference(),
            delta_prob=self._summary("delta_prob"),
            delta_prob_rms=_root(self._mean("delta_prob_squared")),
            top_k_accuracy_p=[self._mean(name) for name in ACCURACIES_P],
            top_k_accuracy_q=[self._mean(name) for name in ACCURACIES_Q],
        )

    def _correlation(self) -> float:
        """Return the correlation of the two cross-entropies over rows, from their variances and the variance of the
        difference.
        """
        names = ("cross_entropy_p", "cross_entropy_q", "difference")
        of_p, of_q, of_difference = (float(self._moments[name].variance) for name in names)
        scale = 2 * math.sqrt(of_p) * math.sqrt(of_q)
        if scale == 0 or not math.isfinite(scale):
            return math.nan
        return max(-1.0, min(1.0, (of_p + of_q - of_difference) / scale))

    def _perplexities(self) -> tuple[float, float, float]:
        """Return P's perplexity, Q's perplexity, and the difference, which is precise even if both are close."""
        of_p, of_q = (_exp(float(self._moments[f"cross_entropy_{side}"].mean)) for side in "pq")
        difference = float(self._moments["difference"].mean)
        # Above 700 the subtraction loses no digits, and from 710 on expm1 overflows.
        if math.isinf(of_p) or math.isinf(of_q) or difference > 700:
            return of_p, of_q, of_q - of_p
        return of_p, of_q, of_p * math.expm1(difference)

    def _perplexity_weights(self) -> dict[int, float] | None:
        """Return the derivatives of the perplexities' difference by the means of two columns; None if the difference is
        infinite.
        """
        _, of_q, change = self._perplexities()
        if not math.isfinite(change):
            return None
        place = self._columns.index
        return {place("difference"): of_q, place("cross_entropy_p"): change}

    def _perplexity_difference(self) -> Value[float]:
        _, _, change = self._perplexities()
        estimate = self._estimates.get(PERPLEXITY_DIFFERENCE)
        if estimate is None:
            return Value(change, abs(change), None)
        interval = estimate.interval
        if interval is not None:
            weights = self._perplexity_weights() or {}
            center = sum(w * float(self._moments[self._columns[i]].mean) for i, w in weights.items())
            interval = change + (interval[0] - center), change + (interval[1] - center)
        return Value(change, estimate.standard_error, interval, reason=estimate.reason)

    def _notes(self, labels: LabelStatistics | None) -> list[str]:
        dependence = self._estimator.dependence
        notes = [] if dependence is None else [_noticed(dependence, self._clusters)]
        if self._bootstrap:
            notes += self._notes_on_intervals()
        if not self._quantiles["kl_pq"].exact:
            notes.append(
                "Quantiles come from a sketch: the values they are interpolated from have a relative error of at most "
                "0.005."
            )
        if labels is not None and math.isnan(labels.difference.mean) and labels.labeled:
            notes.append(
                "The cross-entropies cannot be subtracted: some labels have probability 0 under P, others under Q."
            )
        return notes

    def _units(self) -> tuple[str, int]:
        """Return the name and the number of the units that intervals assume to be independent."""
        dependence = self._estimator.dependence
        if dependence is not None and dependence.kind != "pattern":
            return "blocks", 0 if dependence.labels is None else int(dependence.labels.max()) + 1
        if self._clusters is not None:
            return self._clusters.units, len(self._clusters.names)
        return "rows", self._moments["kl_pq"].count

    def _notes_on_intervals(self) -> list[str]:
        """Return notes on the intervals: the method, the assumptions, and the open ends."""
        units, count = self._units()
        notes: list[str] = []
        if self._clusters is not None and units == self._clusters.units:
            counted = f"{count:,} {units if count != 1 else units[:-1]}"
            method = f"the jackknife, Student's t and a studentized bootstrap of {self._bootstrap:,} draws"
            notes.append(
                f"Standard errors and 95 % intervals ({method}) assume that the {counted} are independent."
            )
        if share := self._unseen_share():
            notes.append(self._note_on_unseen(units, count, share))
        why = {
            "few units": f"there are fewer than {FEWEST_UNITS} {units}, too few for any interval",
            "few nonzero units": f"too few {units} differ to bound the mean from above",
            "heavy tail": f"the largest of the {count:,} {units} carry too much of the mean to bound it",
        }
        for reason, sentence in why.items():
            known = (self._title(name) for name, each in self._estimates.items() if each.reason == reason)
            names = list(dict.fromkeys(known))
            if names:
                notes.append(f"No interval for {', '.join(names)}: {sentence}.")
        return notes

    def _title(self, name: str) -> str:
        if name == PERPLEXITY_DIFFERENCE:
            return "the difference of the perplexities"
        return self._statistics[name].title

    def _unseen_share(self) -> float:
        """Return the largest possible share of an absent kind of units; 0 if the interval allows for that kind.

        References:
            If Nothing Goes Wrong, Is Everything All Right? (Hanley and Lippman-Hand, 1983)
        """
        count = self._units()[1]
        share, interval = UNSEEN / max(count, 1), self._estimates["kl_pq"].interval
        above = math.inf if interval is None else interval[1] - float(self._moments["kl_pq"].mean)
        return share if count >= FEWEST_UNITS and share * LARGE_KL > above else 0.0

    def _note_on_unseen(self, units: str, count: int, share: float) -> str:
        """Return a note on how much an absent kind of units may add to the mean."""
        ends = [
            f"{(1 - share) * each.interval[1] + share * bound:.2g} ({self._title(name)})"
            for name, bound in (("js", math.log(2)), ("tv", 1.0))
            if (each := self._estimates[name]).interval is not None
        ]
        return (
            f"At 95 % confidence, up to {100 * share:.2g} % of {units} (3/n) may be of a kind that is absent from "
            f"these {count:,}. They would add up to {share:.2g} nats to the mean for each nat of their own KL: "
            f"{share * LARGE_KL:.2g} nats if their KL is {LARGE_KL:g}. The intervals do not include this. "
            f"With such {units}, the mean is at most {' and '.join(ends)}, and the mean of KL is unbounded."
        )


def _noticed(dependence: SerialDependence, clusters: Clusters | None) -> str:
    """Return a note that rows or clusters depend on their order, with the consequence and the remedy."""
    rows, cluster = ("rows", "pass cluster= (--cluster)") if clusters is None else (clusters.units, "")
    if dependence.kind == "pattern":
        turns = (
            cluster
            and f" If {dependence.length} sources take turns, {cluster}: the number of each row's source."
        )
        return (
            f"{rows.capitalize()} repeat with a period of {dependence.length}, which is treated as a fixed "
            f"pattern.{turns}"
        )
    alike = f"{rows} {dependence.length} apart" if dependence.kind == "period" else f"neighboring {rows}"
    like = f"{'at most' if dependence.is_open else 'about'} {dependence.effective:.3g} independent ones"
    use = f"Too few groups of {rows}, or none, are independent: there are no intervals."
    if dependence.labels is not None:
        groups = f"{int(dependence.labels.max()) + 1:,} blocks of about {dependence.length:,} {rows}"
        if dependence.kind == "period":
            groups = f"{dependence.length} groups, each of {rows} {dependence.length} apart"
        use = f"Standard errors and intervals use {groups}."
    known = f"If you know which rows belong together, {cluster}; if" if cluster else "If"
    return (
        f"The order of the {rows} shows dependence ({alike} are alike): {dependence.rows:,} {rows} carry the "
        f"information of {like}. {use} {known} the order means nothing, pass independent=True (--independent)."
    )


def _exp(x: float) -> float:
    # this returns inf instead of an error if the exponential overflows
    return float(torch.tensor(x, dtype=torch.float64, device="cpu").exp())


def _exponential(mean: Value[float]) -> Value[float]:
    """Return the exponential of a mean, with its standard error by the delta method."""
    value, ends = _exp(mean.mean), mean.interval
    error = math.inf if math.isinf(value) else value * mean.standard_error
    return Value(value, error, ends and (_exp(ends[0]), _exp(ends[1])), reason=mean.reason)


def complement(mean: Value[float]) -> Value[float]:
    """Return one minus a mean."""
    interval = mean.interval and (1 - mean.interval[1], 1 - mean.interval[0])
    return Value(1 - mean.mean, mean.standard_error, interval, reason=mean.reason)


def _root(square: Value[float]) -> Value[float]:
    """Return the root of a mean square, with its standard error by the delta method."""
    root = math.sqrt(square.mean)
    error = square.standard_error / (2 * root) if root else square.standard_error
    low, high = square.interval or (math.nan, math.nan)
    interval = None if square.interval is None else (math.sqrt(low), math.sqrt(high))
    return Value(root, error, interval, reason=square.reason)


def _caveats(p: ComparisonSide, q: ComparisonSide) -> list[str]:
    """Return the remarks on the contents of both sources, without duplicates."""
    by_sentence: dict[str, list[str]] = {}
    for name, source in (("P", p), ("Q", q)):
        for sentence in source.caveats():
            by_sentence.setdefault(sentence, []).append(name)
    return [f"{' and '.join(names)}: {sentence}." for sentence, names in by_sentence.items()]
