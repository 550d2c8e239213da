"""Compare two models' predictions, row by row, in bounded memory."""

from kullback.predictions.compare_two_predictions import compare_predictions
from kullback.predictions.prediction_results import (
    Comparison,
    ConfidenceBin,
    LabelStatistics,
    LlamaCppFigures,
    LlamaCppStatistics,
    Segment,
    Summary,
    TopClass,
    WorstRow,
)

__all__ = [
    "Comparison",
    "ConfidenceBin",
    "LabelStatistics",
    "LlamaCppFigures",
    "LlamaCppStatistics",
    "Segment",
    "Summary",
    "TopClass",
    "WorstRow",
    "compare_predictions",
]
