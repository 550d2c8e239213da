"""Compare two models' predictions, row by row, in bounded memory."""

from kullback.common.row_statistics import register_statistic, unregister_statistic
from kullback.predictions.compare_two_predictions import compare_predictions
from kullback.predictions.prediction_results import (
    Comparison,
    ConfidenceBin,
    LabelStatistics,
    LlamaCppFigures,
    LlamaCppStatistics,
    Segment,
    Summary,
    TitledValue,
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
    "TitledValue",
    "TopClass",
    "WorstRow",
    "compare_predictions",
    "register_statistic",
    "unregister_statistic",
]
