"""A comparison of language models as a data frame."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

    from kullback.models import ModelComparison

__all__ = ["to_pandas"]


def to_pandas(found: ModelComparison) -> DataFrame:
    """Return a row for each candidate, the scoreboard's numbers; what is not known is NaN.

    Its columns are ``kl``, ``kl_low``, ``kl_high``, ``kl_reverse``, ``perplexity``, ``perplexity_base``, ``same_top``,
    ``delta_prob_rms``, ``file_bytes`` and ``bits_per_weight``; its index are the names.

    Arguments:
        found: the result of `compare_models`.
    """
    import pandas as pd

    rows = {}
    for candidate in found.candidates:
        comparison, labels = candidate.comparison, candidate.comparison.labels
        kl = comparison.divergences["kl_pq"]
        low, high = kl.interval or (math.nan, math.nan)
        rows[candidate.model.name] = {
            "kl": kl.mean,
            "kl_low": low,
            "kl_high": high,
            "kl_reverse": comparison.divergences["kl_qp"].mean,
            "perplexity": math.nan if labels is None else math.exp(labels.cross_entropy_q.mean),
            "perplexity_base": math.nan if labels is None else math.exp(labels.cross_entropy_p.mean),
            "same_top": comparison.top1_agreement.value,
            "delta_prob_rms": math.nan if labels is None else labels.delta_prob_rms.mean,
            "file_bytes": candidate.model.file_bytes,
            "bits_per_weight": candidate.model.bits_per_weight,
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype("float64")
