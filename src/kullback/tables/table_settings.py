"""The settings of a comparison of tables, and the effective numbers of rows that limit its bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kullback.results.finding import Finding
from kullback.tables.inference.divergences import MIN_EFFECTIVE, MIN_EXPECTED
from kullback.tables.table_findings import finding
from kullback.tables.table_profile import Profile


@dataclass(frozen=True)
class TableSettings:
    """The settings of a comparison, with the source of all randomness, and the effective numbers of rows of P and Q.

    If `independent`, the rows, or the clusters in the column `cluster`, are known to be independent.
    """

    max_bins: int
    confidence: float
    random: np.random.Generator
    cluster: str | None = None
    independent: bool = False
    sizes: tuple[float, float] = (0.0, 0.0)

    def for_columns(self, p: Profile, q: Profile, columns: Sequence[str]) -> TableSettings:
        """Return the settings for some columns, with fewer effective rows if the columns' rows are dependent."""
        times = [1.0 if side.order is None else side.order.time(columns) for side in (p, q)]
        return replace(self, sizes=(self.sizes[0] / times[0], self.sizes[1] / times[1]))

    def number_of_bins(self, columns: int = 1) -> int:
        """Return the number of bins of each column that gives combinations of bins at least 10 rows on average."""
        allowed = (min(self.sizes) / MIN_EXPECTED) ** (1 / columns)
        return max(2, min(self.max_bins, int(allowed + 1e-9)))

    def findings(self, shared: Sequence[str]) -> list[Finding]:
        """Return the finding that there are too few rows for intervals, or for as many bins as asked for."""
        if not shared:
            return []
        least = min(self.sizes)
        rows = f"{least:.4g} independent row{'' if least == 1 else 's'} in the smaller table"
        if least < MIN_EFFECTIVE:
            return [finding("few-rows", f"{rows}: no intervals below {MIN_EFFECTIVE:g}")]
        if self.number_of_bins() < self.max_bins:
            fewer = f"{self.number_of_bins()} bins instead of {self.max_bins}"
            return [finding("few-rows", f"{rows}: {fewer}, {MIN_EXPECTED:g} rows for each")]
        return []


def effective_rows(profile: Profile) -> float:
    """Return the number of equally weighted rows that gives the same variance (Survey Sampling, Kish, 1965)."""
    if profile.weights is None or not profile.weight_squares > 0:
        return float(profile.rows)
    return profile.weight**2 / profile.weight_squares
