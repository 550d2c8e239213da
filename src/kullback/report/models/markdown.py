"""A comparison of language models as Markdown, for the summary of a CI run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.models.wording import (
    HEADINGS,
    certain,
    differences,
    noise,
    notes,
    outcome,
    scoreboard,
    size,
)
from kullback.report.shared.markdown import escaped, table
from kullback.report.shared.verdicts import in_markdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.models import ModelComparison
    from kullback.report.shared.verdicts import Verdict

__all__ = ["render"]


def render(found: ModelComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Return the verdict of the gates, the outcome, the scoreboard, and the notes.

    Arguments:
        found: the result of `compare_models`.
        verdicts: the limits that were asked for.
    """
    lines = [
        *in_markdown(outcome(found), verdicts),
        *table(HEADINGS, [line.cells for line in scoreboard(found)]),
        "",
        *(f"{escaped(sentence)}  " for sentence in (*differences(found), *certain(found), *noise(found))),
        f"{size(found)}.",
        "",
        *(f"- {escaped(note)}" for note in notes(found)),
        "",
    ]
    return "\n".join(lines)
