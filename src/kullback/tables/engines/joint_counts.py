"""The joint counts of several columns' bins, from Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kullback.common.arrays import Floats, Integers
from kullback.errors import invalid_value, quoted
from kullback.tables.columns.log_grid import buckets_of
from kullback.tables.columns.types import is_arrow_integer
from kullback.tables.engines.arrow import category_codes, integer_offsets, integers_of, numbers_of
from kullback.tables.engines.engine import CountsByGroup, JointCounts

if TYPE_CHECKING:
    from kullback.tables.columns.bins import Bins


# A code for each row and, for a column without bins, the values of the codes.
Coded = tuple[Integers, list[Any] | None]


def add_batch(
    counts: CountsByGroup, bins: Mapping[str, Bins], batch: Mapping[str, Any], weights: Floats | None
) -> None:
    """Add the weights of a batch's combinations; a row of weight 0 may have values without a bin."""
    names = dict.fromkeys(name for key in counts for name in key)
    coded = {name: _coded(name, batch[name], bins.get(name), weights) for name in names}
    for key, each in counts.items():
        _add_key(each, [coded[name] for name in key], weights)


def _coded(name: str, array: Any, bins: Bins | None, weights: Floats | None) -> Coded:
    if bins is None:
        encoded = array.dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()
    places = _bins_of(array, bins)
    if (places if weights is None else places[weights > 0]).min(initial=0) < 0:
        raise invalid_value(
            "contingency_tables",
            "bins",
            wanted="a bin for every value",
            got=f"values of {quoted(name)} in none",
            instead="choose_bins(p, q) with the profiles of both tables",
        )
    return np.maximum(places, 0), None


def _add_key(counts: JointCounts, coded: Sequence[Coded], weights: Floats | None) -> None:
    """Add the weights of one key's combinations in a batch."""
    if not coded or not len(coded[0][0]):
        return
    sizes = [int(codes.max()) + 1 for codes, _ in coded]
    joint = np.ravel_multi_index([codes for codes, _ in coded], sizes)
    found, inverse = np.unique(joint, return_inverse=True)
    sums = np.bincount(inverse, weights, minlength=len(found))
    columns = [
        part.tolist() if values is None else [values[code] for code in part.tolist()]
        for part, (_, values) in zip(np.unravel_index(found, sizes), coded, strict=True)
    ]
    for combination, weight in zip(zip(*columns, strict=True), sums.tolist(), strict=True):
        counts[combination] = counts.get(combination, 0.0) + weight


def _bins_of(array: Any, bins: Bins) -> Integers:
    """Return the bin of every value of an Arrow array, -1 for a value in none."""
    found = np.full(len(array), -1, np.int64)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    present = array.drop_null() if array.null_count else array
    found[~missing] = _bins_of_numbers(present, bins) if bins.gridded else _bins_of_categories(present, bins)
    if missing.any():
        found[missing] = _special_bins(bins).get("missing", -1)
    return found


def _special_bins(bins: Bins) -> dict[str, int]:
    """Return the bins of missing values, NaN and the infinities, by label."""
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
    found = np.full(len(values), -1, np.int64)
    found[finite] = np.searchsorted(cuts, buckets_of(values[finite], bins.center), side="right")
    for label, which in (
        ("not a number", np.isnan(values)),
        ("-infinity", values == -np.inf),
        ("infinity", values == np.inf),
    ):
        found[which] = _special_bins(bins).get(label, -1)
    return found


def _bins_of_categories(array: Any, bins: Bins) -> Integers:
    codes = category_codes(array, bins.categories)
    other = len(bins.categories) if bins.other else -1
    return codes.fill_null(other).to_numpy(zero_copy_only=False).astype(np.int64)
