"""A comparison of predictions as a data frame."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

    from kullback.predictions import Comparison

__all__ = ["to_pandas"]


def to_pandas(comparison: Comparison) -> DataFrame:
    """Return a row for each divergence: its mean, with its error and interval, and its quantiles over rows, in nats.

    Its index are the names of `Comparison.divergences`; its columns the attributes of `Summary`, with ``low`` and
    ``high`` for the ends of the interval. What is not known is NaN.

    Arguments:
        comparison: the result of `compare_predictions`.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> frame = to_pandas(compare_predictions(p, p))
        >>> frame.index.tolist(), frame.loc["kl_pq", "mean"].item()
        (['kl_pq', 'kl_qp', 'js', 'tv'], 0.0)
    """
    import pandas as pd

    rows = {}
    for name, found in comparison.divergences.items():
        low, high = found.interval or (None, None)
        numbers = {key: value for key, value in asdict(found).items() if key not in ("interval", "reason")}
        rows[name] = {"mean": numbers.pop("mean"), "standard_error": numbers.pop("standard_error")} | {
            "low": low,
            "high": high,
            **numbers,
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype("float64")
