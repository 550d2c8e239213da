"""Counters of columns, and of combinations of columns' bins.

Several threads may add batches to the counter of a column at the same time, and counters of parts are merged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import numpy as np

from kullback.errors import invalid_value, quoted
from kullback.tables.columns.column_profile import ColumnProfile, combined
from kullback.tables.columns.log_grid import (
    CODES,
    PER_OCTAVE,
    SIGN,
    SMALLEST,
    bucket_codes,
    buckets_of,
    buckets_of_codes,
)
from kullback.tables.columns.text_types import MAX_CATEGORIES, is_text
from kullback.tables.columns.types import (
    ColumnType,
    FieldType,
    category_codes,
    integer_offsets,
    integers_of,
    is_arrow_integer,
    is_missing,
    lengths_of,
    numbers_of,
    strings_of,
)
from kullback.tables.columns.word_groups import WORD_GROUPS, rows_with_words
from kullback.tables.columns.written_numbers import Evidence, evidence_of

if TYPE_CHECKING:
    from kullback.common.arrays import Floats, Integers
    from kullback.tables.columns.bins import Bins

PENDING = 1 << 17
MOST_BYTES = 1 << 26


class ColumnCounter(ABC):
    """The counts of one column; with `in_order`, batches are added one by one, so that sums are exactly repeatable."""

    in_order = False

    def __init__(self) -> None:
        self.lock = Lock()
        self.missing = 0.0

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self.lock = Lock()

    def add(self, array: Any, weights: Floats | None) -> None:
        """Count a batch of values."""
        if array.null_count:
            absent = float(array.null_count)
            if weights is not None:
                missing = is_missing(array)
                absent, weights = float(weights[missing].sum()), weights[~missing]
            array = array.drop_null()
            with self.lock:
                self.missing += absent
        if len(array):
            self.add_present(array, weights)

    @abstractmethod
    def add_present(self, array: Any, weights: Floats | None) -> None:
        """Count a batch that has no missing values."""

    def merge(self, other: Self) -> None:
        """Add the counts of the same column in another part of the table."""
        self.missing += other.missing
        self.merge_present(other)

    @abstractmethod
    def merge_present(self, other: Any) -> None:
        """Add the counts of another part's values that are not missing."""

    def shrink(self) -> None:
        """Drop values that are not needed when the counters of parts of a table are merged."""


class ProfileCounter(ColumnCounter):
    """The counts of one column that give its profile."""

    @abstractmethod
    def profile(self) -> ColumnProfile:
        """Return the profile of the values counted so far."""


_SUMS = ("not_a_number", "minus_infinity", "plus_infinity", "unseparated")


class GridCounter(ProfileCounter):
    """The weights of the buckets of a grid."""

    def __init__(
        self, column_type: str, center: float = 0.0, *, integer: bool = False, words: bool = True
    ) -> None:
        super().__init__()
        self.column_type: ColumnType = cast("ColumnType", column_type)
        self.center, self.integer = center, integer
        self.codes = np.zeros(CODES)
        self.words = np.zeros(WORD_GROUPS) if words and column_type == "text" else None
        self.not_a_number = self.minus_infinity = self.plus_infinity = self.unseparated = 0.0
        self.minimum: float = math.inf  # an int if the column holds integers
        self.maximum: float = -math.inf

    def __getstate__(self) -> dict[str, object]:
        occupied = np.flatnonzero(self.codes)  # most buckets of the grid are empty
        return super().__getstate__() | {"codes": (occupied, self.codes[occupied])}

    def __setstate__(self, state: dict[str, object]) -> None:
        occupied, weights = cast("tuple[Any, Any]", state["codes"])
        codes = np.zeros(CODES)
        codes[occupied] = weights
        super().__setstate__(state | {"codes": codes})

    def add_present(self, array: Any, weights: Floats | None) -> None:
        self.add_words(array, weights)
        if not (self.integer and is_arrow_integer(array.type)):
            self.add_numbers(numbers_of(array, self.column_type), weights)
            return
        values = integers_of(array)
        self._add(integer_offsets(values, int(self.center)), weights, int(values.min()), int(values.max()))

    def add_numbers(self, values: Floats, weights: Floats | None) -> None:
        """Count a batch of numbers."""
        low, high = values.min(), values.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            values, weights = self._without_specials(values, weights)
            if not len(values):
                return
            low, high = values.min(), values.max()
        self._add(values - self.center if self.center else values, weights, float(low), float(high))

    def add_words(self, array: Any, weights: Floats | None) -> None:
        """Count the words of a batch of texts, unless only the lengths are counted."""
        if self.words is not None:
            rows = rows_with_words(strings_of(array), weights)
            with self.lock:
                self.words += rows

    def _add(self, offsets: Floats, weights: Floats | None, low: float, high: float) -> None:
        """Count finite numbers, given as their differences from the center."""
        counts = np.bincount(bucket_codes(offsets), weights)
        unseparated = 0.0
        if self.column_type == "numeric" and (counts[:PER_OCTAVE].any() or counts[SIGN:][:PER_OCTAVE].any()):
            near = (np.abs(offsets) < SMALLEST) & (offsets != 0)
            unseparated = float(np.sum(near if weights is None else weights[near]))
        with self.lock:
            self.unseparated += unseparated
            self.codes[: len(counts)] += counts
            self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)

    def _without_specials(self, values: Floats, weights: Floats | None) -> tuple[Floats, Floats | None]:
        """Count NaN and the infinities, and return the finite numbers with their weights."""
        masks = np.isnan(values), values == -np.inf, values == np.inf
        with self.lock:
            for name, which in zip(_SUMS, masks, strict=False):
                weight = float(np.sum(which if weights is None else weights[which]))
                setattr(self, name, getattr(self, name) + weight)
        finite = np.isfinite(values)
        return values[finite], None if weights is None else weights[finite]

    def merge_present(self, other: Self) -> None:
        self.codes += other.codes
        if self.words is not None and other.words is not None:
            self.words += other.words
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def profile(self) -> ColumnProfile:
        codes = np.flatnonzero(self.codes)
        buckets: dict[int, float] = {}
        for bucket, weight in zip(buckets_of_codes(codes).tolist(), self.codes[codes].tolist(), strict=True):
            buckets[bucket] = buckets.get(bucket, 0.0) + weight
        some, words = self.minimum <= self.maximum, None
        if self.words is not None:
            words = {int(i): float(self.words[i]) for i in np.flatnonzero(self.words)}
        return ColumnProfile(
            self.column_type,
            self.center,
            dict(sorted(buckets.items())),
            missing=self.missing,
            minimum=self.minimum + 0 if some else None,
            maximum=self.maximum + 0 if some else None,
            integer=self.integer,
            words=words,
            **{name: getattr(self, name) for name in _SUMS},
        )


class CategoryCounter(ProfileCounter):
    """The weights of categories; batches wait in Arrow tables until many rows are summed up together."""

    def __init__(self, column_type: ColumnType = "categorical") -> None:
        super().__init__()
        self.column_type: ColumnType = column_type
        self.pending: list[Any] = []
        self.pending_rows, self.settled_rows = 0, 0

    def add_present(self, array: Any, weights: Floats | None) -> None:
        import pyarrow as pa

        weights = np.ones(len(array)) if weights is None else weights
        counted = _weighed(pa.table({"value": strings_of(array), "weight": weights}))
        with self.lock:
            self.pending.append(counted)
            self.pending_rows += counted.num_rows
            if self.pending_rows > max(PENDING, self.settled_rows):
                self.settle()

    def merge_present(self, other: Any) -> None:
        self.pending += other.pending
        self.settle()

    def shrink(self) -> None:
        self.settle()

    def settle(self) -> Any:
        """Sum up the pending batches, and return a table of the values and their weights."""
        import pyarrow as pa

        if not self.pending:
            return pa.table({"value": pa.array([], pa.large_string()), "weight": pa.array([], pa.float64())})
        if len(self.pending) > 1:
            self.pending = [_weighed(pa.concat_tables(self.pending))]
        self.settled_rows, self.pending_rows = self.pending[0].num_rows, 0
        return self.pending[0]

    def profile(self) -> ColumnProfile:
        table = self.settle()
        table = table.filter(table["weight"].to_numpy() != 0).sort_by("value")
        categories = dict(zip(*(table[name].to_pylist() for name in ("value", "weight")), strict=True))
        return ColumnProfile(self.column_type, categories=categories, missing=self.missing)


class StringCounter(CategoryCounter):
    """The weights of strings, as categories and as lengths, until the values show which of the two to use."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = GridCounter("text")
        self.rows = self.characters = self.distinct = 0
        self.dropped = False

    def add_present(self, array: Any, weights: Floats | None) -> None:
        lengths = lengths_of(array).to_numpy(zero_copy_only=False).astype(np.float64)
        self.lengths.add_numbers(lengths, weights)
        with self.lock:
            self.rows += len(lengths)
            self.characters += int(lengths.sum())
        if not self.dropped:
            super().add_present(array, weights)
        else:
            self.lengths.add_words(array, weights)

    def settle(self) -> Any:
        table = super().settle()
        self.distinct = max(self.distinct, table.num_rows)
        crowded = is_text(self.rows, self.characters, self.distinct) and table.nbytes > MOST_BYTES
        if self.distinct > MAX_CATEGORIES or crowded:
            self._words_of_pending()
            self.dropped = True
        return table

    def _words_of_pending(self) -> None:
        """Count the words of the pending values, with the values' weights, and drop the values."""
        pending, self.pending = self.pending, []
        for table in pending:
            for chunk in table.combine_chunks().to_batches():
                self.lengths.add_words(chunk["value"], chunk["weight"].to_numpy())

    def merge_present(self, other: Self) -> None:
        self.lengths.merge(other.lengths)
        self.rows += other.rows
        self.characters += other.characters
        self.distinct = max(self.distinct, other.distinct)
        self.dropped = self.dropped or other.dropped
        super().merge_present(other)
        if self.dropped:
            self._words_of_pending()

    def shrink(self) -> None:
        """Drop the values if this part holds text; a second reading counts them if the whole column is categories."""
        if self._is_text():
            self._words_of_pending()
            self.dropped = True

    @property
    def is_undecided(self) -> bool:
        """Whether a second reading has to count the categories, because their values were dropped."""
        return self.dropped and not self._is_text()

    def has_too_many(self, categories: CategoryCounter) -> bool:
        """Whether a second reading found more categories than a column may have, so that the column is text."""
        self.distinct = max(self.distinct, categories.settle().num_rows)
        return self._is_text()

    def _is_text(self) -> bool:
        if not self.dropped:
            self.settle()
        return is_text(self.rows, self.characters, self.distinct)

    def profile(self) -> ColumnProfile:
        if not self._is_text():
            return super().profile()
        self._words_of_pending()
        self.lengths.missing = self.missing
        return self.lengths.profile()


class EndsCounter(ColumnCounter):
    """The smallest and the largest number within a closed interval; `ends` is None if there is no number."""

    def __init__(self, column_type: ColumnType, low: float, high: float, *, integer: bool) -> None:
        super().__init__()
        self.column_type: ColumnType = column_type
        self.low, self.high, self.integer = low, high, integer
        self.ends: tuple[float, float] | None = None

    def add_present(self, array: Any, weights: Floats | None) -> None:
        del weights
        if self.integer:
            values = integers_of(array)
            limits = np.iinfo(values.dtype)
            low, high = max(math.ceil(self.low), limits.min), min(math.floor(self.high), limits.max)
        else:
            values, low, high = numbers_of(array, self.column_type), self.low, self.high
        values = values[(values >= low) & (values <= high)]
        if len(values):
            self._include((values.min().item() + 0, values.max().item() + 0))

    def merge_present(self, other: Self) -> None:
        if other.ends is not None:
            self._include(other.ends)

    def _include(self, ends: tuple[float, float]) -> None:
        with self.lock:
            known = self.ends or ends
            self.ends = min(known[0], ends[0]), max(known[1], ends[1])


class EvidenceCounter(ColumnCounter):
    """The evidence on how the numbers or dates in a column of text are written."""

    in_order = True

    def __init__(self) -> None:
        super().__init__()
        self.evidence: Evidence = {}

    def add_present(self, array: Any, weights: Floats | None) -> None:
        encoded = strings_of(array).dictionary_encode()
        sums = np.bincount(encoded.indices.to_numpy(), weights, len(encoded.dictionary)).astype(np.float64)
        self.evidence = combined(self.evidence, evidence_of(encoded.dictionary, sums))

    def merge_present(self, other: Self) -> None:
        self.evidence = combined(self.evidence, other.evidence)


def counter_of(
    column_type: FieldType, center: float = 0.0, *, integer: bool = False, words: bool = True
) -> ProfileCounter:
    """Return the counter that gives a column's profile; values decide whether strings are categories or text."""
    if column_type == "string":
        return StringCounter()
    if column_type in {"categorical", "boolean"}:
        return CategoryCounter("boolean" if column_type == "boolean" else "categorical")
    return GridCounter(column_type, center, integer=integer, words=words)


def _weighed(table: Any) -> Any:
    """Return a table with each distinct value once, and the sum of the value's weights."""
    import pyarrow as pa

    encoded = table["value"].combine_chunks().dictionary_encode()
    sums = np.bincount(encoded.indices.to_numpy(), table["weight"].to_numpy(), len(encoded.dictionary))
    return pa.table({"value": encoded.dictionary, "weight": sums})


# For one group of columns, JointCounts has the weight of each combination of bins that occurs. CountsByGroup has the
# JointCounts of several groups.
JointCounts = dict[tuple[Any, ...], float]
CountsByGroup = dict[tuple[str, ...], JointCounts]


class JointCounter:
    """The weights of the combinations of bins, or of values of a column without bins, for each group of columns."""

    def __init__(self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]]) -> None:
        self.bins = dict(bins)
        self.counts: CountsByGroup = {tuple(key): {} for key in keys}

    @property
    def names(self) -> list[str]:
        """The names of the columns in all groups, each name once."""
        return list(dict.fromkeys(chain(*self.counts)))

    def add(self, arrays: Mapping[str, Any], weights: Floats | None) -> None:
        """Count the combinations in a batch; values without a bin are allowed in rows of weight 0 only."""
        coded = {name: _coded(name, arrays[name], self.bins.get(name), weights) for name in self.names}
        for key, counts in self.counts.items():
            _add_key(counts, [coded[name] for name in key], weights)

    def merge(self, other: JointCounter) -> None:
        """Add the counts of another part of the table."""
        self.counts = {key: combined(counts, other.counts[key]) for key, counts in self.counts.items()}

    def occurring(self) -> CountsByGroup:
        """Return the combinations with a weight above 0."""
        return {
            key: {combination: weight for combination, weight in counts.items() if weight}
            for key, counts in self.counts.items()
        }


class _Coded(NamedTuple):
    """A column of a batch, as a code for each row; `values` has the value of each code if the column has no bins."""

    codes: Integers
    values: list[Any] | None


def _coded(name: str, array: Any, bins: Bins | None, weights: Floats | None) -> _Coded:
    if bins is None:
        encoded = array.dictionary_encode(null_encoding="encode")
        return _Coded(encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist())
    places = _bins_of(array, bins)
    if (places if weights is None else places[weights > 0]).min(initial=0) < 0:
        raise invalid_value(
            "contingency_tables",
            "bins",
            wanted="a bin for every value",
            got=f"values of {quoted(name)} in none",
            instead="choose_bins(p, q) with the profiles of both tables",
        )
    return _Coded(np.maximum(places, 0), None)


def _add_key(counts: JointCounts, coded: Sequence[_Coded], weights: Floats | None) -> None:
    if not coded or not len(coded[0].codes):
        return
    sizes = [int(column.codes.max()) + 1 for column in coded]
    joint = np.ravel_multi_index([column.codes for column in coded], sizes)
    occurring, inverse = np.unique(joint, return_inverse=True)
    sums = np.bincount(inverse, weights, minlength=len(occurring))
    columns = [
        part.tolist() if column.values is None else [column.values[code] for code in part.tolist()]
        for part, column in zip(np.unravel_index(occurring, sizes), coded, strict=True)
    ]
    for combination, weight in zip(zip(*columns, strict=True), sums.tolist(), strict=True):
        counts[combination] = counts.get(combination, 0.0) + weight


def _bins_of(array: Any, bins: Bins) -> Integers:
    """Return the index of each value's bin; -1 for a value without a bin."""
    places = np.full(len(array), -1, np.int64)
    missing = is_missing(array)
    present = array.drop_null() if array.null_count else array
    places[~missing] = _bins_of_numbers(present, bins) if bins.gridded else _bins_of_categories(present, bins)
    if missing.any():
        places[missing] = _special_bins(bins).get("missing", -1)
    return places


def _special_bins(bins: Bins) -> dict[str, int]:
    """Return the indices of the bins of missing values, NaN and the infinities, by label."""
    first = len(bins) - len(bins.specials)
    return {label: first + index for index, label in enumerate(bins.specials)}


def _bins_of_numbers(array: Any, bins: Bins) -> Integers:
    cuts = np.array(bins.cuts, np.int64)
    if bins.column_type == "numeric" and is_arrow_integer(array.type) and float(bins.center).is_integer():
        return np.searchsorted(
            cuts, buckets_of(integer_offsets(integers_of(array), int(bins.center))), side="right"
        )
    values = numbers_of(array, bins.column_type)
    finite = np.isfinite(values)
    places = np.full(len(values), -1, np.int64)
    places[finite] = np.searchsorted(cuts, buckets_of(values[finite], bins.center), side="right")
    for label, which in (
        ("not a number", np.isnan(values)),
        ("-infinity", values == -np.inf),
        ("infinity", values == np.inf),
    ):
        places[which] = _special_bins(bins).get(label, -1)
    return places


def _bins_of_categories(array: Any, bins: Bins) -> Integers:
    codes = category_codes(array, bins.categories)
    other = len(bins.categories) if bins.other else -1
    return codes.fill_null(other).to_numpy(zero_copy_only=False).astype(np.int64)
