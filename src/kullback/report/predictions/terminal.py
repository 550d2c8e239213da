"""A comparison of predictions as tables in the terminal, 80 columns wide or more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.predictions import Comparison, ConfidenceBin, Proportion, TopClass, WorstRow
from kullback.report.predictions.wording import (
    QUANTITIES,
    SUMMARY_ROWS,
    acceptance,
    confidence_range,
    delta_prob_rows,
    infinite_sentences,
    label_rows,
    sizes,
    summary,
    token_of,
    top_classes,
    top_k_rows,
)
from kullback.report.shared.console import Printer
from kullback.report.shared.formats import count, counted, number, percent, probability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kullback.report.predictions.wording import Tokens
    from kullback.report.shared.verdicts import Verdict

__all__ = ["LONGEST_TOKEN", "MEANINGS", "render", "render_numbers"]

LONGEST_TOKEN = 16
MEANINGS = (
    "KL(P||Q) is what it costs per row to predict with Q what follows P; JS is the Jensen-Shannon divergence, "
    "TV the total variation; CI is a confidence interval, inf where the data do not bound it."
)


def render(
    comparison: Comparison,
    console: Console,
    verdicts: Sequence[Verdict] = (),
    *,
    tokens: Tokens | None = None,
) -> None:
    """Print a comparison as tables that fit 80 columns.

    Divergences are in nats. Everything printed is ASCII except names and notes.

    Arguments:
        comparison: the result of `compare_predictions`.
        console: the rich console to print on.
        verdicts: the limits that were asked for.
        tokens: the text of each class, to be shown beside its number; None, or a class beyond the end, has none.

    Example:
        >>> import torch
        >>> from rich.console import Console
        >>> from kullback import Probs
        >>> from kullback.predictions import compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> render(compare_predictions(p, p), Console(width=80))
        P and Q are equal in every row: KL(P||Q) is 0.
        ...
    """
    say = Printer(console)
    say.verdicts(verdicts)
    say.heading(summary(comparison), comparison.p_name, comparison.q_name, sizes(comparison))
    render_numbers(comparison, console)
    if comparison.worst and tokens is None:
        say.table("The worst rows (class: p -> q)", *_worst(comparison.worst))
    elif comparison.worst and tokens is not None:
        say.table("The worst rows and their classes", *_worst_tokens(comparison.worst, tokens))
    say.space()
    for remark in (MEANINGS, *infinite_sentences(comparison), *comparison.notes):
        say.line(f"- {remark}")


def render_numbers(comparison: Comparison, console: Console) -> None:
    """Print the tables of divergences, of the true class and by confidence."""
    say = Printer(console)
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
    say.line(acceptance(comparison))
    say.table("The k top classes", _top_k_headings(comparison), top_k_rows(comparison))
    if comparison.labels is not None:
        say.table(
            f"The true class, known in {count(comparison.labels.labeled)} of {counted(comparison.rows, 'row')} "
            "(cross-entropy in nats)",
            ["", "mean", "std. error", "95% CI, from", "to"],
            label_rows(comparison.labels),
        )
        say.space()
        say.line(f"Correlation of log p and log q at the true class: {number(comparison.labels.correlation)}")
        say.table(
            "The change of the true class's probability, q - p: quantiles over rows",
            ["lower tail", "q - p", "upper tail", "q - p"],
            delta_prob_rows(comparison.labels.delta_prob),
        )
    say.table(
        "By P's confidence, the probability of its top class",
        ["confidence", "rows", "mean KL(P||Q)", "99% quantile", "same top class"],
        [_confidence(part) for part in comparison.by_confidence if part.rows],
    )


def _agreement(found: Proportion) -> str:
    interval = "" if found.interval is None else f", 95% CI {' to '.join(map(percent, found.interval))}"
    error = percent(found.standard_error)
    return f"Same top class: {percent(found.value)} of rows, std. error {error}{interval}"


def _top_k_headings(comparison: Comparison) -> list[str]:
    accuracy = ["accuracy of P", "accuracy of Q"] if comparison.labels is not None else []
    return ["k", "same in order", "95% CI, from", "to", *accuracy]


def _confidence(part: ConfidenceBin) -> list[str]:
    return [
        confidence_range(part),
        count(part.rows),
        number(part.kl_mean),
        number(part.kl_p99),
        percent(part.top1_agreement),
    ]


def _worst(rows: Sequence[WorstRow]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and lines of the table of worst rows, without empty columns."""
    choices = [top_classes(row) for row in rows]
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


def _worst_tokens(rows: Sequence[WorstRow], tokens: Tokens) -> tuple[list[str], list[list[str]]]:
    """Return the headings and lines of the table of worst rows: a line for each of the top classes and the label."""
    lines: list[list[str]] = []
    for row in rows:
        place = count(row.row) + ("" if row.cluster is None else f" of {row.cluster}")
        shown = [top.index for top in top_classes(row)]
        known = {top.index: top for top in row.top}
        first = [place, number(row.kl)]
        if row.label is not None:
            shown.append(row.label)
        for index in dict.fromkeys(shown):
            top = known.get(index)
            probabilities = ["", ""] if top is None else [probability(top.p), probability(top.q)]
            true = "true" if index == row.label else ""
            lines.append(
                [*first, str(index), token_of(index, tokens, longest=LONGEST_TOKEN), *probabilities, true]
            )
            first = ["", ""]
    return ["row", "KL(P||Q)", "class", "token", "p", "q", ""], lines


def _change(top: TopClass) -> str:
    return f"{top.index}: {probability(top.p)} -> {probability(top.q)}"
