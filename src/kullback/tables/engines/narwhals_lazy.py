"""Tables of PySpark and Ibis, counted by those engines with expressions of narwhals.

One aggregation finds the sum of the weights and the lengths of strings, one the occupied buckets of all columns (every
number unpivoted, grouped by its bucket), one the categories, one the extremes of columns with a center.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import narwhals as nw

from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.log_grid import PER_OCTAVE, SMALLEST, bucket_ends
from kullback.tables.columns.types import ColumnType, is_text, narwhals_field
from kullback.tables.engines.arrow import EXACT_OFFSET
from kullback.tables.engines.engine import Caller, ColumnSpec, JointCounts, Table, TableCounts, bad_weights
from kullback.tables.engines.in_memory import distinct_names
from kullback.tables.engines.joint_counts import special_bins, unknown_category
from kullback.tables.engines.lazy_words import lazy_words
from kullback.tables.engines.timestamps import with_microseconds

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins

__all__ = ["LazyTable"]

# Codes of NaN and infinity, after the codes of buckets.
NAN, INFINITE = 1_000_000, 1_000_001
WEIGHT, NAME, VALUE, CODE = "weight", "name", "value", "code"


class LazyTable(Table):
    """A narwhals LazyFrame, whose engine runs the aggregations."""

    def __init__(self, frame: Any, caller: Caller | None = None) -> None:
        schema = frame.collect_schema()
        distinct_names(list(schema), caller)
        self.fields = {name: narwhals_field(name, dtype) for name, dtype in schema.items()}
        self.inner = {name: name for name in self.fields}
        if frame.implementation.is_spark_like():
            # In Spark's expressions a dot in a name means a part of a struct.
            self.inner = {name: f"column_{index}" for index, name in enumerate(self.fields)}
            frame = nw.from_native(frame.to_native().toDF(*self.inner.values()))
        timestamps = [
            self.inner[name] for name, field in self.fields.items() if field.column_type == "datetime"
        ]
        self.frame = with_microseconds(frame, timestamps) if timestamps else frame

    def count(self, specs: Sequence[ColumnSpec], weights: str | None) -> TableCounts:
        """Count columns in at most four aggregations."""
        if weights is not None and self.fields[weights].column_type != "numeric":
            raise bad_weights(weights, "values that are no numbers")
        names = [spec.name for spec in specs]
        specs = [replace(spec, name=self.inner[spec.name]) for spec in specs]
        facts = self._facts(specs, weights)
        specs = [_decided(index, spec, facts) for index, spec in enumerate(specs)]
        columns = [
            ColumnProfile(cast("ColumnType", t.column_type), t.center, integer=t.integer) for t in specs
        ]
        numbers = {p: _offset(spec) for p, spec in enumerate(specs) if columns[p].gridded}
        others = {p: nw.col(spec.name).cast(nw.String) for p, spec in enumerate(specs) if p not in numbers}
        for row in self._grouped(numbers, weights, bucket=True):
            _add_bucket(columns[int(row[NAME][1:])], row)
        for row in self._grouped(others, weights, bucket=False):
            _add_category(columns[int(row[NAME][1:])], row[VALUE], float(row[WEIGHT]))
        self._correct_extremes(specs, columns)
        for index, column in enumerate(columns):
            if specs[index].integer and column.buckets:
                column.minimum, column.maximum = (int(facts[f"{index}_{end}"]) for end in ("low", "high"))
        texts = {p: spec.name for p, spec in enumerate(specs) if spec.column_type == "text" and spec.words}
        if texts:
            inner = None if weights is None else self.inner[weights]
            for index, words in lazy_words(self.frame, texts, inner).items():
                columns[index].words = words
        by_name = {name: _sorted(column) for name, column in zip(names, columns, strict=True)}
        return TableCounts(by_name, int(facts["rows"]), float(facts["weight"]), float(facts["squares"]))

    def _facts(self, specs: Sequence[ColumnSpec], weights: str | None) -> dict[str, Any]:
        """Return the numbers of rows, their weights and the lengths of strings, by one aggregation."""
        wanted = [nw.len().alias("rows")]
        for index, spec in enumerate(specs):
            wanted += _string_facts(index, spec)
            if spec.integer:
                column = nw.col(spec.name)
                wanted += [column.min().alias(f"{index}_low"), column.max().alias(f"{index}_high")]
        if weights is not None:
            wanted += _weight_facts(self.inner[weights])
        row: dict[str, Any] = self._rows(self.frame.select(wanted))[0]
        if weights is None:
            return row | {"weight": row["rows"], "squares": row["rows"]}
        if row["bad"]:
            raise bad_weights(weights, f"{row['bad']} missing, negative, infinite or NaN values")
        return row | {"weight": row["weight"] or 0.0, "squares": row["squares"] or 0.0}

    def _grouped(
        self, values: Mapping[int, Any], weights: str | None, *, bucket: bool
    ) -> list[dict[str, Any]]:
        """Return the weight of every value of every column, named by its index; of numbers, of every bucket."""
        long = self._unpivoted(values, weights)
        if long is None:
            return []
        weight = nw.len() if weights is None else nw.col(WEIGHT).sum()
        wanted = [weight.alias(WEIGHT)]
        key = VALUE
        if bucket:
            # The formula appears once, for any number of columns: Spark compiles no method beyond 64 KB.
            long = long.with_columns(_code(nw.col(VALUE)).alias(CODE))
            wanted += [nw.col(VALUE).min().alias("low"), nw.col(VALUE).max().alias("high")]
            key = CODE
        return self._rows(long.group_by(NAME, key).agg(*wanted))

    def _unpivoted(self, values: Mapping[int, Any], weights: str | None) -> Any:
        """Return a row for every value of every column, with the row's weight."""
        if not values:
            return None
        selected = [value.alias(f"c{index}") for index, value in values.items()]
        index = [WEIGHT] if weights is not None else []
        if weights is not None:
            selected.append(nw.col(self.inner[weights]).cast(nw.Float64).alias(WEIGHT))
        names = [f"c{index}" for index in values]
        return self.frame.select(selected).unpivot(names, index=index, variable_name=NAME, value_name=VALUE)

    def _correct_extremes(self, specs: Sequence[ColumnSpec], columns: Sequence[ColumnProfile]) -> None:
        """Find the extremes of columns with a center: its distance to them is rounded."""
        numbers = {
            p: _number(t.name, t.column_type) for p, t in enumerate(specs) if t.center and columns[p].buckets
        }
        long = self._unpivoted(numbers, None)
        if long is None:
            return
        value = nw.col(VALUE)
        ends = [value.min().alias("low"), value.max().alias("high")]
        for row in self._rows(long.filter(_finite(value)).group_by(NAME).agg(*ends)):
            column = columns[int(row[NAME][1:])]
            column.minimum, column.maximum = row["low"] + 0.0, row["high"] + 0.0

    def extremes(
        self, intervals: Mapping[str, tuple[float, float]], column_types: Mapping[str, ColumnType]
    ) -> dict[str, tuple[float, float]]:
        """Return the smallest and the largest number that each column has within its closed interval."""
        wanted: list[Any] = []
        for index, (name, (low, high)) in enumerate(intervals.items()):
            number: Any = _number(self.inner[name], column_types[name])
            ends = low, high
            if self.fields[name].integer:
                number, ends = nw.col(self.inner[name]), (math.ceil(low), math.floor(high))
            inside = nw.when((number >= ends[0]) & (number <= ends[1])).then(number)
            wanted += [inside.min().alias(f"{index}_low"), inside.max().alias(f"{index}_high")]
        row = self._rows(self.frame.select(wanted))[0]
        converters = {name: int if self.fields[name].integer else float for name in intervals}
        return {
            name: (convert(row[f"{index}_low"]) + 0, convert(row[f"{index}_high"]) + 0)
            for index, (name, convert) in enumerate(converters.items())
            if row[f"{index}_low"] is not None
        }

    def joint_counts(
        self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]], weights: str | None
    ) -> dict[tuple[str, ...], JointCounts]:
        """Return the weight of every combination of bins that occurs, by one aggregation for each key."""
        return {tuple(key): self._joint_key(bins, list(key), weights) for key in keys}

    def _joint_key(self, bins: Mapping[str, Bins], key: list[str], weights: str | None) -> JointCounts:
        names = [f"c{index}" for index in range(len(key))]
        selected = [
            _bin(self.inner[name], bins.get(name), self.fields[name].integer).alias(new)
            for name, new in zip(key, names, strict=True)
        ]
        if weights is not None:
            selected.append(nw.col(self.inner[weights]).cast(nw.Float64).alias(WEIGHT))
        weight = nw.len() if weights is None else nw.col(WEIGHT).sum()
        counts: JointCounts = {}
        for row in self._rows(self.frame.select(selected).group_by(*names).agg(weight.alias(WEIGHT))):
            combination = tuple(
                _bin_number(row[new], bins[name], name) if name in bins else row[new]
                for name, new in zip(key, names, strict=True)
            )
            counts[combination] = counts.get(combination, 0.0) + float(row[WEIGHT])
        return counts

    def _rows(self, frame: Any) -> list[dict[str, Any]]:
        return frame.collect("pyarrow").to_native().to_pylist()


def _number(name: str, column_type: str) -> Any:
    """Return a column as a float64 expression, text as its length; timestamps are in microseconds already."""
    column = nw.col(name)
    if column_type == "text":
        column = column.str.len_chars()
    return column.cast(nw.Float64)


def _finite(number: Any) -> Any:
    return ~number.is_nan() & (number > -float("inf")) & (number < float("inf"))


def _offset(spec: ColumnSpec) -> Any:
    """Return the distance of a column's values from its center; NaN and the infinities are unchanged."""
    return _distance(spec.name, spec.column_type, spec.center, integer=spec.integer)


def _distance(name: str, column_type: str, center: float, *, integer: bool) -> Any:
    """Return the distance of a column's values from a center, exact for integers before it is rounded to float64."""
    number = _number(name, column_type)
    if not center:
        return number
    if not (integer and column_type == "numeric"):
        return number - center
    column, middle, reach = nw.col(name), int(center), int(EXACT_OFFSET)
    above = column.clip(middle, min(middle + reach, 2**63 - 1)) - middle
    below = middle - column.clip(max(middle - reach, -(2**63)), middle)
    exact = above.cast(nw.Float64) - below.cast(nw.Float64)
    rounded = number - float(center)
    return nw.when(rounded.abs() < EXACT_OFFSET).then(exact).otherwise(rounded)


def _code(offset: Any) -> Any:
    """Return the bucket of a distance from the center, or the code of NaN or of an infinity."""
    special = (
        nw.when(offset.is_nan())
        .then(nw.lit(float(NAN)))
        .when(offset == float("inf"))
        .then(nw.lit(float(INFINITE)))
        .when(offset == -float("inf"))
        .then(nw.lit(float(-INFINITE)))
    )
    return special.when(~offset.is_null()).then(_bucket(offset))


def _bucket(offset: Any) -> Any:
    """Return the bucket of a finite distance from the center, with its sign."""
    distance = offset.abs()
    # A logarithm of 0 is an error on some engines, even in a branch that is not taken.
    normal = nw.when(distance >= SMALLEST).then(distance).otherwise(nw.lit(1.0))
    # The logarithm of the largest numbers is rounded to 1024, whose power is infinite.
    octave = normal.log(2.0).floor().clip(upper_bound=1023.0)
    part = (normal / nw.lit(2.0) ** octave * PER_OCTAVE).floor() - PER_OCTAVE
    step = (octave + 1022.0) * PER_OCTAVE + part + 1.0
    return nw.when(distance < SMALLEST).then(nw.lit(0.0)).when(offset < 0).then(-step).otherwise(step)


def _string_facts(index: int, spec: ColumnSpec) -> list[Any]:
    if spec.column_type != "string":
        return []
    column = nw.col(spec.name)
    return [
        column.count().alias(f"{index}_present"),
        column.str.len_chars().sum().alias(f"{index}_characters"),
        column.n_unique().alias(f"{index}_distinct"),
    ]


def _weight_facts(weights: str) -> list[Any]:
    weight = nw.col(weights).cast(nw.Float64)
    good = _finite(weight) & (weight >= 0)
    bad = nw.when(good).then(nw.lit(0)).otherwise(nw.lit(1))
    return [
        weight.sum().alias("weight"),
        (weight * weight).sum().alias("squares"),
        bad.sum().alias("bad"),
    ]


def _decided(index: int, spec: ColumnSpec, facts: Mapping[str, Any]) -> ColumnSpec:
    """Return the spec of a column of strings: categories or text, depending on its values."""
    if spec.column_type != "string":
        return spec
    present, characters = facts[f"{index}_present"], facts[f"{index}_characters"] or 0
    # Missing values count as a distinct value.
    distinct = facts[f"{index}_distinct"] - (present < facts["rows"])
    return ColumnSpec(spec.name, "text" if is_text(present, int(characters), distinct) else "categorical")


def _add_category(column: ColumnProfile, value: str | None, weight: float) -> None:
    if value is None:
        column.missing += weight
    else:
        column.categories[value.lower() if column.column_type == "boolean" else value] = weight


def _add_bucket(column: ColumnProfile, row: Mapping[str, Any]) -> None:
    """Add the weight of a bucket, of NaN, of an infinity or of missing values."""
    code, weight = row[CODE], float(row[WEIGHT])
    if code is None:
        column.missing += weight
    elif code == NAN:
        column.not_a_number += weight
    elif code == INFINITE:
        column.plus_infinity += weight
    elif code == -INFINITE:
        column.minus_infinity += weight
    else:
        column.buckets[int(code)] = column.buckets.get(int(code), 0.0) + weight
        low, high = row["low"] + 0.0, row["high"] + 0.0
        column.minimum = low if column.minimum is None else min(column.minimum, low)
        column.maximum = high if column.maximum is None else max(column.maximum, high)


def _sorted(column: ColumnProfile) -> ColumnProfile:
    """Sort buckets and categories, without the ones that have no weight."""
    column.buckets = {bucket: weight for bucket, weight in sorted(column.buckets.items()) if weight}
    column.categories = {name: weight for name, weight in sorted(column.categories.items()) if weight}
    return column


def _bin(name: str, bins: Bins | None, integer: bool) -> Any:
    """Return an expression for the bin of each value; a column without bins is returned as it is."""
    if bins is None:
        return nw.col(name)
    if not bins.gridded:
        return nw.col(name).cast(nw.String)
    number = _number(name, bins.column_type)
    offset = _distance(name, bins.column_type, bins.center, integer=integer)
    found = nw.lit(0)
    for cut in bins.cuts:
        found += nw.when(_reaches(offset, cut)).then(nw.lit(1)).otherwise(nw.lit(0))
    special = nw.when(number.is_nan()).then(nw.lit(NAN)).when(number == float("inf")).then(nw.lit(INFINITE))
    special = special.when(number == -float("inf")).then(nw.lit(-INFINITE))
    return special.when(~number.is_null()).then(found)


def _reaches(offset: Any, cut: int) -> Any:
    """Whether a distance from the center is in the bucket of the given number or a higher one."""
    if cut > 0:
        return offset >= bucket_ends(cut)[0]
    return offset > (bucket_ends(cut)[0] if cut else -SMALLEST)


def _bin_number(value: Any, bins: Bins, name: str) -> int:
    """Return the index of the bin that a value of `_bin` stands for."""
    specials = special_bins(bins)
    if value is None:
        found = specials.get("missing")
    elif bins.gridded:
        labels = {NAN: "not a number", INFINITE: "infinity", -INFINITE: "-infinity"}
        found = specials.get(labels[value]) if value in labels else int(value)
    else:
        written = str(value).lower() if bins.column_type == "boolean" else value
        rest = len(bins.categories) if bins.other else None
        found = bins.category_bins.get(written, rest)
    if found is None:
        raise unknown_category(name)
    return found
