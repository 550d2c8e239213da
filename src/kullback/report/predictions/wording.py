"""How the reports write numbers and names, the same on every medium."""

from __future__ import annotations

import math
from collections.abc import Callable

from kullback.errors import OptionalDependencyError
from kullback.predictions import Comparison, ConfidenceBin, LabelStatistics, Mean, Summary, TopClass, WorstRow

__all__ = [
    "KL_PQ",
    "QUANTITIES",
    "SUMMARY_ROWS",
    "confidence_range",
    "count",
    "first_choices",
    "infinite_sentences",
    "interval_end",
    "label_rows",
    "missing_library",
    "number",
    "percent",
    "printable",
    "probability",
]

KL_PQ = "kl_pq"
# The keys of Comparison.divergences in the order in which they are shown, and how plain text writes them.
QUANTITIES = {KL_PQ: "KL(P||Q)", "kl_qp": "KL(Q||P)", "js": "JS", "tv": "TV"}


def number(value: float, digits: int = 4) -> str:
    """A number to so many significant digits.

    Example:
        >>> [number(x) for x in (0.0, 0.5, 1.23456e-05, 12.3456, float("inf"), float("nan"))]
        ['0', '0.5000', '1.235e-05', '12.35', 'inf', 'n/a']
    """
    if math.isnan(value):
        return "n/a"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    if 1e-4 <= abs(value) < 10**digits:
        return f"{value:#.{digits}g}".removesuffix(".")
    return f"{value:.{digits - 1}e}"


def percent(share: float) -> str:
    """A share in percent; "100.00%" and "0.00%" are said only of all and of none.

    Example:
        >>> [percent(x) for x in (1.0, 0.99999, 0.98765, 1e-6, 0.0)]
        ['100.00%', '>99.99%', '98.77%', '<0.01%', '0.00%']
    """
    if math.isnan(share):
        return "n/a"
    if 0.99995 <= share < 1:
        return ">99.99%"
    if 0 < share < 0.00005:
        return "<0.01%"
    return f"{100 * share:.2f}%"


def probability(value: float) -> str:
    """A probability in five characters; "0" and "1" are said only of exact ones.

    Example:
        >>> [probability(x) for x in (1.0, 0.99999, 0.25, 1e-9, 0.0)]
        ['1', '>.999', '0.250', '<.001', '0']
    """
    if value in (0, 1):
        return f"{value:g}"
    return "<.001" if value < 0.0005 else ">.999" if value > 0.9995 else f"{value:.3f}"


def count(value: int) -> str:
    """A whole number with its thousands apart: ``12,345``."""
    return f"{value:,}"


def printable(text: str) -> str:
    r"""A name or sentence with its control characters and undecodable bytes spelled out.

    File names may hold any byte; a terminal would obey some, and a UTF-8 page cannot hold others.

    Example:
        >>> print(printable("a\x1b[2Jb\udcff"))
        a\x1b[2Jb\udcff
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def interval_end(mean: Mean, end: int, write: Callable[[float], str] = number) -> str:
    """The lower (0) or upper (1) end of an interval, or n/a where there is none."""
    return "n/a" if mean.interval is None else write(mean.interval[end])


# What is shown of each quantity, line by line.
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
    """What the true classes say, line by line."""
    return [
        ("cross-entropy of P", labels.cross_entropy_p),
        ("cross-entropy of Q", labels.cross_entropy_q),
        ("difference, Q - P", labels.difference),
        ("probability, Q - P", labels.delta_prob_mean),
        ("probability, RMS", labels.delta_prob_rms),
    ]


def confidence_range(part: ConfidenceBin) -> str:
    """The range of the largest reference probability: ``0.5 to 0.75``."""
    return f"{part.low:g} to {part.high:g}"


def first_choices(row: WorstRow) -> tuple[TopClass, TopClass]:
    """The likeliest class under P and the likeliest under Q."""
    return max(row.top, key=lambda top: top.p), max(row.top, key=lambda top: top.q)


def infinite_sentences(comparison: Comparison) -> list[str]:
    """Which divergences are infinite, in how many rows, and why."""
    reasons = {
        KL_PQ: "Q gives probability 0 to a class that P holds possible",
        "kl_qp": "P gives probability 0 to a class that Q holds possible",
    }
    return [
        f"{QUANTITIES[key]} is infinite in {count(rows)} of {count(comparison.rows)} rows: {reasons[key]}."
        for key in reasons
        if (rows := comparison.infinite.get(key, 0))
    ]


def missing_library(library: str, feature: str, extra: str) -> OptionalDependencyError:
    """The error for a report whose optional library is not installed."""
    return OptionalDependencyError(
        f"{feature} needs {library}, which is not installed. Run: pip install 'kullback[{extra}]'"
    )
