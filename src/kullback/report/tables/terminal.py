"""A comparison of tables in the terminal; a narrow one shows fewer numbers, never fewer names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.shared.console import Printer
from kullback.report.shared.formats import count, decimal
from kullback.report.tables.wording import (
    LARGE,
    MODERATE,
    SIGNIFICANT,
    Tone,
    contributors,
    differing,
    in_order,
    interval,
    meaning,
    name_of,
    p_value_text,
    percentage,
    size,
    summary,
    tone_of,
    totals,
    value_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kullback.report.shared.verdicts import Verdict
    from kullback.report.tables.wording import Compared
    from kullback.tables.result import TableComparison

__all__ = ["render"]

MOST_EXPLAINED = 5  # columns whose bins are shown
MOST_BINS = 3  # of each
MOST_FINDINGS = 25
STYLES: dict[Tone, str] = {"bad": "bold red", "warning": "yellow", "good": "green", "unknown": "dim"}
HEADINGS = ("column", "found", "PSI", "{} CI", "p", "KL(P||Q)", "KL(Q||P)", "TV")
DROPPED_FIRST = (6, 5, 7, 3)
MEANINGS = (
    (
        f"A shift is a difference that is no chance (p < {SIGNIFICANT:g}): large from a PSI of {LARGE:g} on, small "
        f"below {MODERATE:g}."
    ),
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
    """Print what a comparison of tables found: the outcome in a sentence, the columns, and what else was noticed.

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
        No difference is seen in 1 column.
        ...
    """
    say = Printer(console)
    tone = STYLES[tone_of(comparison, verdicts)].replace("dim", "bold")
    style = tone if "bold" in tone else f"bold {tone}"
    outcome = summary(comparison, verdicts)
    say.heading(outcome, comparison.p_name, comparison.q_name, size(comparison), style)
    headings = [heading.format(f"{100 * comparison.confidence:g}%") for heading in HEADINGS]
    tables = (
        ("By column, the largest PSI first, in nats", comparison.columns),
        ("Columns together", comparison.joint),
    )
    for title, compared in tables:
        if compared:
            meanings = [meaning(each, verdicts) for each in compared]
            rows = [_line(each, found.words) for each, found in zip(compared, meanings, strict=True)]
            styles = [STYLES[found.tone] for found in meanings]
            say.table(title, headings, rows, styles=styles, dropped_first=DROPPED_FIRST)
    if bins := [line for column in differing(comparison)[:MOST_EXPLAINED] for line in _bins(column)]:
        say.table("The bins that contribute most to KL(P||Q)", ["", "P", "Q", "nats"], bins)
    say.space()
    for verdict in verdicts:
        failed = bool(verdict.failures)
        say.line(f"{'FAILED' if failed else 'passed'}: {verdict.limit}", STYLES["bad" if failed else "good"])
    findings = in_order(comparison)
    for level, message in findings[:MOST_FINDINGS]:
        say.line(f"{level}: {message}")
    if len(findings) > MOST_FINDINGS:
        say.line(f"{count(len(findings) - MOST_FINDINGS)} more findings are in the JSON and on the page")
    for remark in MEANINGS:
        say.line(f"- {remark}", "dim")


def _line(compared: Compared, found: str) -> list[str]:
    return [
        name_of(compared).replace(" × ", " x "),
        found,
        value_text(compared.psi),
        interval(compared.psi),
        p_value_text(compared.p_adjusted),
        *(value_text(getattr(compared, name)) for name in ("kl_pq", "kl_qp", "tv")),
    ]


def _bins(compared: Compared) -> list[list[str]]:
    of_p, of_q = totals(compared)
    return [
        [
            f"{name_of(compared)}: {part.label}",
            percentage(part.p, of_p),
            percentage(part.q, of_q),
            decimal(part.contribution),
        ]
        for part in contributors(compared, MOST_BINS)
    ]
