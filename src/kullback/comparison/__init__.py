"""Compare two models' predictions, row by row, in bounded memory."""

from kullback.comparison.compare import compare_predictions
from kullback.comparison.result import (
    Comparison,
    ConfidenceBin,
    LabelStatistics,
    Mean,
    Proportion,
    Stretch,
    Summary,
    TopClass,
    WorstRow,
)

__all__ = [
    "Comparison",
    "ConfidenceBin",
    "LabelStatistics",
    "Mean",
    "Proportion",
    "Stretch",
    "Summary",
    "TopClass",
    "WorstRow",
    "compare_predictions",
]
