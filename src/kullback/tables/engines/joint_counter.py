"""The counter of the combinations of several columns' bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kullback.errors import invalid_value, quoted
from kullback.tables.columns.arrow import (
    category_codes,
    integer_offsets,
    integers_of,
    is_missing,
    numbers_of,
)
from kullback.tables.columns.column_profile import combined
from kullback.tables.columns.log_grid import buckets_of
from kullback.tables.columns.types import is_arrow_integer

if TYPE_CHECKING:
    from kullback.common.arrays import Floats, Integers
    from kullback.tables.columns.bins import Bins

# For one group of columns, JointCounts has the weight of each combination of bins that occurs. CountsByGroup has the
# JointCounts of several groups.
JointCounts = dict[tuple[Any, ...], float]
CountsByGroup = dict[tuple[str, ...], JointCounts]


class JointCounter:
    """The weights of the combinations of bins that occur, for each group of columns.

    A column without bins is counted by its values.
    """

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
    """Add the weights of a batch's combinations for one group of columns."""
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
