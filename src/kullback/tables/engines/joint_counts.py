"""Counting combinations of cells of several columns, in Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kullback.errors import ArgumentValueError, explain
from kullback.tables.columns.log_grid import buckets_of
from kullback.tables.engines.arrow import numbers_of, places_of
from kullback.tables.engines.base import Cells

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kullback.tables.columns.bins import Bins

__all__ = ["CrossCounter", "cells_of", "special_cells", "unknown_category"]


class CrossCounter:
    """The weights of the combinations of cells for every key; a column without bins counts by its own values."""

    def __init__(self, bins: Mapping[str, Bins], keys: Sequence[Sequence[str]]) -> None:
        self.bins = bins
        self.cells: dict[tuple[str, ...], Cells] = {tuple(key): {} for key in keys}

    def add(self, batch: Mapping[str, Any], weights: NDArray[np.float64] | None) -> None:
        """Take in a batch of rows."""
        names = dict.fromkeys(name for key in self.cells for name in key)
        coded = {name: self._coded(name, batch[name]) for name in names}
        for key, cells in self.cells.items():
            _add_key(cells, [coded[name] for name in key], weights)

    def _coded(self, name: str, array: Any) -> tuple[NDArray[np.int64], list[Any] | None]:
        """Return a number for each row and, of a column without bins, the values that the numbers stand for."""
        if name in self.bins:
            return cells_of(array, self.bins[name], name), None
        encoded = array.dictionary_encode(null_encoding="encode")
        return encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist()


def _add_key(
    cells: Cells,
    coded: Sequence[tuple[NDArray[np.int64], list[Any] | None]],
    weights: NDArray[np.float64] | None,
) -> None:
    if not coded or not len(coded[0][0]):
        return
    sizes = [int(codes.max()) + 1 for codes, _ in coded]
    joint = np.ravel_multi_index([codes for codes, _ in coded], sizes)
    found, places = np.unique(joint, return_inverse=True)
    counts = np.bincount(places, weights, minlength=len(found))
    columns = [
        part.tolist() if values is None else [values[code] for code in part.tolist()]
        for part, (_, values) in zip(np.unravel_index(found, sizes), coded, strict=True)
    ]
    for combination, count in zip(zip(*columns, strict=True), counts.tolist(), strict=True):
        cells[combination] = cells.get(combination, 0.0) + count


def cells_of(array: Any, bins: Bins, name: str = "") -> NDArray[np.int64]:
    """Return the cell of every value of an Arrow array."""
    cells = np.full(len(array), -1, np.int64)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    present = array.drop_null() if array.null_count else array
    inside = _number_cells(present, bins) if bins.gridded else _category_cells(present, bins)
    cells[~missing] = inside
    if missing.any():
        cells[missing] = special_cells(bins).get("missing", -1)
    if (cells < 0).any():
        raise unknown_category(name)
    return cells


def special_cells(bins: Bins) -> dict[str, int]:
    """Return the cells of missing values, NaN and the infinities, by label."""
    first = len(bins) - len(bins.specials)
    return {label: first + place for place, label in enumerate(bins.specials)}


def unknown_category(name: str) -> ArgumentValueError:
    """Return the error for a value that no cell holds."""
    return ArgumentValueError(
        explain(
            "cross_counts",
            "bins",
            wanted="a cell for every value",
            got=f"values of {name!r} without one",
            instead="choose_bins(p, q) with the profiles of both tables",
        )
    )


def _number_cells(array: Any, bins: Bins) -> NDArray[np.int64]:
    values = numbers_of(array, bins.kind)
    finite = np.isfinite(values)
    cells = np.full(len(values), -1, np.int64)
    buckets = buckets_of(values[finite], bins.center)
    cells[finite] = np.searchsorted(np.array(bins.cuts, np.int64), buckets, side="right")
    for label, which in (
        ("not a number", np.isnan(values)),
        ("-infinity", values == -np.inf),
        ("infinity", values == np.inf),
    ):
        cells[which] = special_cells(bins).get(label, -1)
    return cells


def _category_cells(array: Any, bins: Bins) -> NDArray[np.int64]:
    places = places_of(array, bins.categories)
    rest = len(bins.categories) if bins.other else -1
    return places.fill_null(rest).to_numpy(zero_copy_only=False).astype(np.int64)
