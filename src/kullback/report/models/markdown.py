"""A comparison of language models as Markdown, for the summary of a CI run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.models.wording import HEADINGS, differences, noise, outcome, scoreboard, size
from kullback.report.shared.formats import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.models import ModelComparison

__all__ = ["render"]


def render(found: ModelComparison, failures: Sequence[str] = ()) -> str:
    """Return the outcome, the gates that fail, and the scoreboard.

    Arguments:
        found: the result of `compare_models`.
        failures: a sentence for each gate that fails.
    """
    lines = [f"**{_escaped(outcome(found))}**", ""]
    lines += [f"- gate failed: {_escaped(failure)}" for failure in failures]
    lines += [
        "",
        _row([_escaped(heading) for heading in HEADINGS]),
        _row(["---", *["---:"] * (len(HEADINGS) - 1)]),
    ]
    lines += [_row([_escaped(cell) for cell in line.cells]) for line in scoreboard(found)]
    lines += [
        "",
        *(f"{_escaped(sentence)}  " for sentence in (*differences(found), *noise(found))),
        f"{size(found)}.",
        "",
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    text = printable(text)
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text
