"""The quantities of a comparison of predictions as every report shows them: names, rows of tables, sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kullback.predictions import (
    Comparison,
    ConfidenceBin,
    LabelStatistics,
    Mean,
    Proportion,
    Summary,
    TopClass,
    WorstRow,
)
from kullback.report.shared.formats import count, counted, number, percent, visible

__all__ = [
    "KL_PQ",
    "QUANTITIES",
    "SUMMARY_ROWS",
    "Tokens",
    "acceptance",
    "confidence_range",
    "delta_prob_rows",
    "top_classes",
    "infinite_sentences",
    "interval_end",
    "label_rows",
    "precisely",
    "sizes",
    "summary",
    "token_of",
    "top_k_rows",
    "unseen",
]

# The text of each class; None, or a class beyond the end, has none.
Tokens = Sequence[str | None]
KL_PQ = "kl_pq"
# The keys of Comparison.divergences in the order in which they are shown, with their names in plain text.
QUANTITIES = {KL_PQ: "KL(P||Q)", "kl_qp": "KL(Q||P)", "js": "JS", "tv": "TV"}


def interval_end(mean: Mean | Proportion, end: int, write: Callable[[float], str] = number) -> str:
    """Format the lower (0) or upper (1) end of an interval, n/a where there is none."""
    return "n/a" if mean.interval is None else write(mean.interval[end])


# The rows of the table of divergences.
SUMMARY_ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("mean", lambda summary: number(summary.mean)),
    ("standard error", lambda summary: number(summary.standard_error, 2)),
    ("95% CI, from", lambda summary: interval_end(summary, 0)),
    ("95% CI, to", lambda summary: interval_end(summary, 1)),
    ("minimum", lambda summary: number(summary.minimum)),
    ("0.1% quantile", lambda summary: number(summary.p001)),
    ("1% quantile", lambda summary: number(summary.p01)),
    ("5% quantile", lambda summary: number(summary.p05)),
    ("10% quantile", lambda summary: number(summary.p10)),
    ("median", lambda summary: number(summary.median)),
    ("90% quantile", lambda summary: number(summary.p90)),
    ("95% quantile", lambda summary: number(summary.p95)),
    ("99% quantile", lambda summary: number(summary.p99)),
    ("99.9% quantile", lambda summary: number(summary.p999)),
    ("maximum", lambda summary: number(summary.maximum)),
)


def label_rows(labels: LabelStatistics) -> list[list[str]]:
    """Return name, mean, standard error and the ends of the interval of each statistic at the true classes."""
    means = {
        "cross-entropy of P": labels.cross_entropy_p,
        "cross-entropy of Q": labels.cross_entropy_q,
        "cross-entropy, Q - P": labels.difference,
        "perplexity of P": labels.perplexity_p,
        "perplexity of Q": labels.perplexity_q,
        "perplexity, Q / P": labels.perplexity_ratio,
        "perplexity, Q - P": labels.perplexity_difference,
        "probability, Q - P": labels.delta_prob,
        "probability, RMS": labels.delta_prob_rms,
    }
    rows: list[list[str]] = []
    for title, mean in means.items():
        write = precisely if mean is labels.perplexity_ratio else number
        ends = (interval_end(mean, end, write) for end in (0, 1))
        rows.append([title, write(mean.mean), number(mean.standard_error, 2), *ends])
    return rows


def precisely(value: float) -> str:
    """Format a number that is close to 1."""
    return number(value, 6)


def delta_prob_rows(change: Summary) -> list[tuple[str, str, str, str]]:
    """Return the quantiles of the change in the label's probability, the lower beside the upper."""
    pairs = (
        ("minimum", change.minimum, "maximum", change.maximum),
        ("0.1%", change.p001, "99.9%", change.p999),
        ("1%", change.p01, "99%", change.p99),
        ("5%", change.p05, "95%", change.p95),
        ("10%", change.p10, "90%", change.p90),
        ("25%", change.p25, "75%", change.p75),
    )
    rows = [(low, number(lower), high, number(upper)) for low, lower, high, upper in pairs]
    return [*rows, ("median", number(change.median), "", "")]


def top_k_rows(comparison: Comparison) -> list[list[str]]:
    """Return k, the agreement of the ordered k top classes with its interval, and the accuracy of P and of Q."""
    labels, rows = comparison.labels, []
    for k, agreement in enumerate(comparison.top_k_agreement, 1):
        row = [str(k), percent(agreement.value), *(interval_end(agreement, end, percent) for end in (0, 1))]
        if labels is not None:
            row += [percent(of[k - 1].value) for of in (labels.top_k_accuracy_p, labels.top_k_accuracy_q)]
        rows.append(row)
    return rows


def sizes(comparison: Comparison) -> str:
    """Say how many rows, clusters and classes there are."""
    clusters = "" if comparison.clusters is None else f" in {counted(comparison.clusters, 'cluster')}"
    classes = counted(comparison.classes, "class", "classes")
    return f"{counted(comparison.rows, 'row')}{clusters}, each a distribution over {classes}"


def token_of(index: int, tokens: Tokens | None, *, longest: int = 24) -> str:
    """Return the text of a class with marks for what cannot be seen, cut to `longest`; empty if it has none."""
    text = tokens[index] if tokens is not None and 0 <= index < len(tokens) else None
    shown = visible(text or "", space="␣")
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def acceptance(comparison: Comparison) -> str:
    """Return the expected acceptance rate as a sentence."""
    rate = comparison.acceptance_rate
    interval = "" if rate.interval is None else f", 95% CI {' to '.join(map(percent, rate.interval))}"
    return (
        f"Expected acceptance rate of speculative sampling, 1 - TV: {percent(rate.mean)}, std. error "
        f"{percent(rate.standard_error)}{interval}"
    )


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
        where = f"in {count(comparison.infinite.get(KL_PQ, 0))} of {counted(comparison.rows, 'row')}"
        return f"Q rules out what P does not {where}, so that the mean KL(P||Q) is infinite; {same}."
    ends = "" if mean.interval is None else f" (95% CI {' to '.join(map(number, mean.interval))})"
    return f"KL(P||Q) of a row is {number(mean.mean)} nats on average{ends}; {same}.{unseen(comparison)}"


def unseen(comparison: Comparison) -> str:
    """Say after the outcome that the interval leaves out kinds of rows that are not there, where that may matter."""
    if not comparison.unseen:
        return ""
    return f" The interval leaves out kinds of rows not seen here, up to {percent(comparison.unseen)} of all."


def infinite_sentences(comparison: Comparison) -> list[str]:
    """Return a sentence for each divergence that is infinite in some rows, with the reason."""
    reasons = {
        KL_PQ: "Q gives probability 0 to a class of positive probability under P",
        "kl_qp": "P gives probability 0 to a class of positive probability under Q",
    }
    return [
        f"{QUANTITIES[key]} is infinite in {count(rows)} of {counted(comparison.rows, 'row')}: {reasons[key]}."
        for key in reasons
        if (rows := comparison.infinite.get(key, 0))
    ]
