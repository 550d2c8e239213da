"""A comparison as tables in the terminal, 80 columns wide or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.predictions import Comparison, ConfidenceBin, Mean, Proportion, TopClass, WorstRow
from kullback.report.predictions.wording import (
    QUANTITIES,
    SUMMARY_ROWS,
    confidence_range,
    count,
    first_choices,
    infinite_sentences,
    interval_end,
    label_rows,
    number,
    percent,
    printable,
    probability,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

__all__ = ["Speaker", "render"]

MEANINGS = (
    "KL(P||Q) is what it costs per row to predict with Q what follows P; JS is the Jensen-Shannon divergence, "
    "TV the total variation; CI is a bootstrap confidence interval."
)


def render(comparison: Comparison, console: Console) -> None:
    """Print what a comparison found: tables that fit 80 columns, in words that need no manual.

    Divergences are in nats. Beyond names and notes everything printed is ASCII, so that any terminal shows it.

    Arguments:
        comparison: what `compare_predictions` found.
        console: the rich console to print on.

    Example:
        >>> import torch
        >>> from rich.console import Console
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> render(compare_predictions(p, p), Console(width=80))
        How far is Q from P?
        ...
    """
    say = Speaker(console)
    say.line("How far is Q from P?", style="bold")
    say.line(f"P  {comparison.p_name}")
    say.line(f"Q  {comparison.q_name}")
    say.line(_size(comparison))
    say.table(
        "Divergence of a row, in nats (TV: from 0 to 1)",
        ["", *QUANTITIES.values()],
        [
            [title, *(write(comparison.divergences[key]) for key in QUANTITIES)]
            for title, write in SUMMARY_ROWS
        ],
    )
    say.space()
    say.line(_agreement(comparison.top1_agreement))
    if comparison.labels is not None:
        say.table(
            f"The true class, known in {count(comparison.labels.labeled)} of {count(comparison.rows)} rows "
            "(cross-entropy in nats)",
            ["", "mean", "std. error", "95% CI, from", "to"],
            [[title, *_mean(mean)] for title, mean in label_rows(comparison.labels)],
        )
    say.table(
        "By P's confidence, the probability of its likeliest class",
        ["confidence", "rows", "mean KL(P||Q)", "99% quantile", "same top class"],
        [_confidence(part) for part in comparison.by_confidence if part.rows],
    )
    if comparison.worst:
        say.table("The rows furthest apart (class: p -> q)", *_worst(comparison.worst))
    say.space()
    for remark in (MEANINGS, *infinite_sentences(comparison), *comparison.notes):
        say.line(f"- {remark}")


class Speaker:
    """Prints on a console what it can show, and nothing that it would obey."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _text(self, text: str) -> Text:
        from rich.text import Text

        encoding = self._console.encoding
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding))

    def space(self) -> None:
        self._console.print()

    def line(self, text: str, style: str = "") -> None:
        self._console.print(self._text(text), style=style, overflow="fold")

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print text in the first column, which may fold, and numbers in the others, which may not."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column(headings[0], overflow="fold")
        for heading in headings[1:]:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(self._text, row))
        self.space()
        self.line(title, style="bold")
        self._console.print(table)


def _size(comparison: Comparison) -> str:
    clusters = "" if comparison.clusters is None else f" in {count(comparison.clusters)} clusters"
    return f"{count(comparison.rows)} rows{clusters}, each a distribution over {count(comparison.classes)} classes"


def _agreement(found: Proportion) -> str:
    interval = "" if found.interval is None else f", 95% CI {' to '.join(map(percent, found.interval))}"
    error = percent(found.standard_error)
    return f"Same likeliest class: {percent(found.value)} of rows, std. error {error}{interval}"


def _mean(mean: Mean) -> list[str]:
    return [number(mean.mean), number(mean.standard_error, 2), interval_end(mean, 0), interval_end(mean, 1)]


def _confidence(part: ConfidenceBin) -> list[str]:
    return [
        confidence_range(part),
        count(part.rows),
        number(part.kl_mean),
        number(part.kl_p99),
        percent(part.top1_agreement),
    ]


def _worst(rows: Sequence[WorstRow]) -> tuple[list[str], list[list[str]]]:
    """The headings and lines of the worst rows, with those columns for which there is anything to say."""
    choices = [first_choices(row) for row in rows]
    columns = {
        "cluster": [row.cluster or "" for row in rows],
        "row": [count(row.row) for row in rows],
        "KL(P||Q)": [number(row.kl) for row in rows],
        "label": ["" if row.label is None else str(row.label) for row in rows],
        "P's top class": [_change(p) for p, _ in choices],
        "Q's top class": ["the same" if q == p else _change(q) for p, q in choices],
    }
    told = {heading: cells for heading, cells in columns.items() if any(cells)}
    return list(told), [list(cells) for cells in zip(*told.values(), strict=True)]


def _change(top: TopClass) -> str:
    return f"{top.index}: {probability(top.p)} -> {probability(top.q)}"
