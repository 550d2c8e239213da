"""What a comparison of tables is told, and what the tables' sizes allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kullback.tables.inference.divergences import MIN_EFFECTIVE, MIN_EXPECTED
from kullback.tables.profile import Profile
from kullback.tables.result import Finding

__all__ = ["Settings", "effective_rows"]


@dataclass(frozen=True)
class Settings:
    """The arguments of a comparison, and how many rows of equal weight each table has.

    Attributes:
        bins: into how many bins at most numbers are sorted.
        confidence: what share of the intervals is to cover.
        random: the source of all randomness.
        sizes: the effective numbers of rows of P and Q.
    """

    bins: int
    confidence: float
    random: np.random.Generator
    sizes: tuple[float, float] = (0.0, 0.0)

    def number_of_bins(self, columns: int = 1) -> int:
        """Return how many bins each of several columns gets, so that a cell of all holds 10 rows on average."""
        allowed = (min(self.sizes) / MIN_EXPECTED) ** (1 / columns)
        return max(2, min(self.bins, int(allowed + 1e-9)))

    def findings(self, shared: Sequence[str]) -> list[Finding]:
        """Say what the number of rows does not allow."""
        if not shared:
            return []
        least = min(self.sizes)
        if least < MIN_EFFECTIVE:
            message = (
                f"{least:.4g} independent rows in the smaller table: no intervals below {MIN_EFFECTIVE:g}"
            )
            return [Finding(None, "few_rows", message)]
        if self.number_of_bins() < self.bins:
            message = (
                f"{least:.4g} independent rows in the smaller table: {self.number_of_bins()} bins instead of "
                f"{self.bins}, {MIN_EXPECTED:g} rows for each"
            )
            return [Finding(None, "few_rows", message)]
        return []


def effective_rows(profile: Profile) -> float:
    """Return how many rows of equal weight tell as much (Survey Sampling, Kish, 1965)."""
    if profile.weights is None or not profile.weight_squares > 0:
        return float(profile.rows)
    return profile.weight**2 / profile.weight_squares
