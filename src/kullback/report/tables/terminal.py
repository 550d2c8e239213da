"""A comparison of tables in the terminal, 80 columns wide or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.shared.console import Printer
from kullback.report.shared.formats import count, number
from kullback.report.tables.wording import (
    SIGNIFICANT,
    Verdict,
    contributors,
    differing,
    interval,
    name_of,
    p_value_text,
    percentage,
    size,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kullback.report.tables.wording import Compared
    from kullback.tables.result import TableComparison

__all__ = ["render"]

MOST_EXPLAINED = 5  # columns whose bins are shown
MOST_BINS = 3  # of each
MEANINGS = (
    (
        "KL(P||Q) is what it costs per row to predict with Q what follows P; PSI is KL both ways added; TV is the "
        "total variation. All are of the bins into which values are sorted."
    ),
    (
        "p is the probability that equal tables differ as much by chance, after Benjamini and Hochberg's correction "
        "for the number of columns."
    ),
)


def render(comparison: TableComparison, console: Console, verdicts: Sequence[Verdict] = ()) -> None:
    """Print what a comparison of tables found: tables that fit 80 columns, in words that need no manual.

    Divergences are in nats. Beyond names and findings everything printed is ASCII, so that any terminal shows it.

    Arguments:
        comparison: what `compare_tables` found.
        console: the rich console to print on.
        verdicts: the limits that were asked for.

    Example:
        >>> import pyarrow as pa
        >>> from rich.console import Console
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> render(compare_tables(table, table), Console(width=80))
        How far is Q from P?
        ...
    """
    say = Printer(console)
    say.heading(comparison.p_name, comparison.q_name, size(comparison))
    heading = f"{100 * comparison.confidence:g}% CI"
    headings = ["", "PSI", heading, "KL(P||Q)", "KL(Q||P)", "TV", "p"]
    if comparison.columns:
        say.table("By column, the largest PSI first, in nats", headings, list(map(_line, comparison.columns)))
    if comparison.joint:
        say.table("Columns together", headings, list(map(_line, comparison.joint)))
    explained = differing(comparison)[:MOST_EXPLAINED]
    if explained:
        say.table(
            "The bins that contribute most to KL(P||Q)",
            ["", "P", "Q", "nats"],
            [line for column in explained for line in _cells(column)],
        )
    say.space()
    say.line(_outcome(comparison))
    for verdict in verdicts:
        say.line(f"{'FAILED' if verdict.failures else 'passed'}: {verdict.limit}")
    for remark in (*(finding.message for finding in comparison.findings), *MEANINGS):
        say.line(f"- {remark}")


def _line(compared: Compared) -> list[str]:
    values = (number(getattr(compared, name).value, 3) for name in ("kl_pq", "kl_qp", "tv"))
    name = name_of(compared).replace(" × ", " x ")
    return [
        name,
        number(compared.psi.value, 3),
        interval(compared.psi),
        *values,
        p_value_text(compared.p_adjusted),
    ]


def _cells(compared: Compared) -> list[list[str]]:
    of_p, of_q = totals(compared)
    return [
        [
            f"{name_of(compared)}: {part.label}",
            percentage(part.p, of_p),
            percentage(part.q, of_q),
            number(part.contribution, 3),
        ]
        for part in contributors(compared, MOST_BINS)
    ]


def _outcome(comparison: TableComparison) -> str:
    if not comparison.columns:
        return "Nothing was compared."
    found = len(differing(comparison))
    return f"{count(found)} of {count(len(comparison.columns))} columns differ (p < {SIGNIFICANT:g})."
