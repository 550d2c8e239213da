"""The cells of a column: intervals of the grid or categories, and cells for what is missing or no number."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kullback.tables.columns.profile import Kind

__all__ = ["OTHER", "SPECIALS", "Bins"]

OTHER = "other categories"
# The cells after those of numbers and categories, and where a profile has their weights.
SPECIALS = {
    "missing": "missing",
    "not a number": "not_a_number",
    "-infinity": "minus_infinity",
    "infinity": "plus_infinity",
}


@dataclass(frozen=True)
class Bins:
    """The cells into which the values of a column fall.

    Attributes:
        kind: the kind of the column.
        edges: where each cell of numbers but the first begins, in the column's unit.
        labels: one for each cell: first of the numbers or categories, then `specials`.
        center: the center of the grid.
        cuts: the bucket with which each cell of numbers but the first begins.
        categories: the categories with cells of their own.
        other: whether a cell holds all other categories.
        specials: the labels of the last cells, of `SPECIALS`.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.choose_bins import cell_counts, choose_bins
        >>> from kullback.tables.profile import profile_table
        >>> profile = profile_table(pa.table({"rating": [1, 2, 2, 3, 3, 3] * 10}))
        >>> bins = choose_bins(profile.columns["rating"], profile.columns["rating"])
        >>> bins.labels, cell_counts(profile.columns["rating"], bins)
        (('1', '2', '3'), array([10., 20., 30.]))
    """

    kind: Kind
    edges: tuple[float, ...]
    labels: tuple[str, ...]
    center: float = 0.0
    cuts: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    other: bool = False
    specials: tuple[str, ...] = ()

    @property
    def gridded(self) -> bool:
        """Whether the cells are intervals of numbers."""
        return self.kind in {"numeric", "datetime", "text"}

    @cached_property
    def places(self) -> dict[str, int]:
        """The cell of each category."""
        return {name: place for place, name in enumerate(self.categories)}

    def __len__(self) -> int:
        return len(self.labels)

    def ends(self, cell: int) -> tuple[float, float] | None:
        """Return where a cell of numbers begins and ends; None for every other cell."""
        if not self.gridded or cell > len(self.cuts):
            return None
        ends = (-np.inf, *self.edges, np.inf)
        return ends[cell], ends[cell + 1]
