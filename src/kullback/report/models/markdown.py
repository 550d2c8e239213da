"""A comparison of language models as Markdown, for the summary of a CI run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.models.wording import HEADINGS, certain, differences, noise, outcome, scoreboard, size
from kullback.report.shared.markdown import escaped, table

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
    lines = [f"**{escaped(outcome(found))}**", ""]
    lines += [f"- gate failed: {escaped(failure)}" for failure in failures]
    lines += [
        "",
        *table(HEADINGS, [line.cells for line in scoreboard(found)]),
        "",
        *(f"{escaped(sentence)}  " for sentence in (*differences(found), *certain(found), *noise(found))),
        f"{size(found)}.",
        "",
    ]
    return "\n".join(lines)
