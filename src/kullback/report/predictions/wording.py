"""The quantities of a comparison of predictions as every report shows them: names, rows of tables, sentences."""

from __future__ import annotations

import math
from collections.abc import Callable

from kullback.predictions import Comparison, ConfidenceBin, LabelStatistics, Mean, Summary, TopClass, WorstRow
from kullback.report.shared.formats import count, number, percent

__all__ = [
    "KL_PQ",
    "QUANTITIES",
    "SUMMARY_ROWS",
    "confidence_range",
    "top_classes",
    "infinite_sentences",
    "interval_end",
    "label_rows",
    "summary",
]

KL_PQ = "kl_pq"
# The keys of Comparison.divergences in the order in which they are shown, with their names in plain text.
QUANTITIES = {KL_PQ: "KL(P||Q)", "kl_qp": "KL(Q||P)", "js": "JS", "tv": "TV"}


def interval_end(mean: Mean, end: int, write: Callable[[float], str] = number) -> str:
    """Format the lower (0) or upper (1) end of an interval, n/a where there is none."""
    return "n/a" if mean.interval is None else write(mean.interval[end])


# The rows of the table of divergences.
SUMMARY_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("mean", lambda summary: number(summary.mean)),
    ("standard error", lambda summary: number(summary.standard_error, 2)),
    ("95% CI, from", lambda summary: interval_end(summary, 0)),
    ("95% CI, to", lambda summary: interval_end(summary, 1)),
    ("median", lambda summary: number(summary.median)),
    ("90% quantile", lambda summary: number(summary.p90)),
    ("95% quantile", lambda summary: number(summary.p95)),
    ("99% quantile", lambda summary: number(summary.p99)),
    ("99.9% quantile", lambda summary: number(summary.p999)),
    ("maximum", lambda summary: number(summary.maximum)),
)


def label_rows(labels: LabelStatistics) -> list[tuple[str, Mean]]:
    """Return (name, mean) for each statistic at the true classes."""
    return [
        ("cross-entropy of P", labels.cross_entropy_p),
        ("cross-entropy of Q", labels.cross_entropy_q),
        ("difference, Q - P", labels.difference),
        ("probability, Q - P", labels.delta_prob_mean),
        ("probability, RMS", labels.delta_prob_rms),
    ]


def confidence_range(part: ConfidenceBin) -> str:
    """Format the range of P's largest probability: ``0.5 to 0.75``."""
    return f"{part.low:g} to {part.high:g}"


def top_classes(row: WorstRow) -> tuple[TopClass, TopClass]:
    """Return the top class under P and the top class under Q."""
    return max(row.top, key=lambda top: top.p), max(row.top, key=lambda top: top.q)


def summary(comparison: Comparison) -> str:
    """The outcome in one sentence: the mean divergence of a row, and how often both choose the same class."""
    mean = comparison.divergences[KL_PQ]
    same = f"both have the same top class in {percent(comparison.top1_agreement.value)} of rows"
    if mean.maximum == 0:
        return "P and Q are equal in every row: KL(P||Q) is 0."
    if math.isinf(mean.mean):
        where = f"in {count(comparison.infinite.get(KL_PQ, 0))} of {count(comparison.rows)} rows"
        return f"Q rules out what P does not {where}, so that the mean KL(P||Q) is infinite; {same}."
    ends = "" if mean.interval is None else f" (95% CI {' to '.join(map(number, mean.interval))})"
    return f"KL(P||Q) of a row is {number(mean.mean)} nats on average{ends}; {same}."


def infinite_sentences(comparison: Comparison) -> list[str]:
    """Return a sentence for each divergence that is infinite in some rows, with the reason."""
    reasons = {
        KL_PQ: "Q gives probability 0 to a class of positive probability under P",
        "kl_qp": "P gives probability 0 to a class of positive probability under Q",
    }
    return [
        f"{QUANTITIES[key]} is infinite in {count(rows)} of {count(comparison.rows)} rows: {reasons[key]}."
        for key in reasons
        if (rows := comparison.infinite.get(key, 0))
    ]
