"""The bins of a column: intervals or categories, then missing values, NaN and the infinities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kullback.common.short_repr import ShortRepr
from kullback.tables.columns.types import GRIDDED, ColumnType
from kullback.tables.columns.written_numbers import Written

OTHER = "other categories"
# The labels of the last bins, after numbers or categories, and the attributes of `ColumnProfile` with their weights.
SPECIALS = {
    "missing": "missing",
    "not a number": "not_a_number",
    "-infinity": "minus_infinity",
    "infinity": "plus_infinity",
}


@dataclass(frozen=True, repr=False)
class Bins(ShortRepr):
    """The bins into which the values of a column fall.

    Attributes:
        column_type: the type of the column.
        edges: the lower end of each bin of numbers except the first, in the column's unit.
        labels: the label of each bin. The bins of numbers or categories come first, then the bins of `specials`.
        center: the center of the grid.
        cuts: the first bucket of each bin of numbers except the first.
        categories: the categories that have a bin each.
        other: whether a bin holds all other categories.
        specials: the labels of the last bins, which are keys of `SPECIALS`.
        written: the format of the numbers or dates in a column of text; None for other columns.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.choose_bins import bin_counts, choose_bins
        >>> from kullback.tables.table_profile import profile_table
        >>> profile = profile_table(pa.table({"rating": [1, 2, 2, 3, 3, 3] * 10}))
        >>> bins = choose_bins(profile.columns["rating"], profile.columns["rating"])
        >>> bins.labels, bin_counts(profile.columns["rating"], bins)
        (('1', '2', '3'), array([10., 20., 30.]))
    """

    column_type: ColumnType
    edges: tuple[float, ...]
    labels: tuple[str, ...]
    center: float = 0.0
    cuts: tuple[int, ...] = ()
    categories: tuple[str, ...] = ()
    other: bool = False
    specials: tuple[str, ...] = ()
    written: Written | None = None

    @property
    def gridded(self) -> bool:
        """Whether the bins are intervals of numbers."""
        return self.column_type in GRIDDED

    def __len__(self) -> int:
        return len(self.labels)

    def ends(self, index: int) -> tuple[float, float] | None:
        """Return the two ends of a bin of numbers; None for any other bin."""
        if not self.gridded or index > len(self.cuts):
            return None
        ends = (-np.inf, *self.edges, np.inf)
        return ends[index], ends[index + 1]
