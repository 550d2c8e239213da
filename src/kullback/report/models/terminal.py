"""A comparison of language models in the terminal: the scoreboard, and one candidate in full."""

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
    token_text,
    visible,
)
from kullback.report.predictions import terminal as predictions
from kullback.report.predictions.wording import infinite_sentences, top_classes
from kullback.report.shared.console import Printer
from kullback.report.shared.formats import count, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kullback.models import ModelComparison
    from kullback.predictions import WorstRow
    from kullback.report.shared.verdicts import Verdict

__all__ = ["render"]

# What a narrow terminal leaves out first.
DROPPED = (9, 8, 7, 5, 4, 2, 3, 6)
WORST = 5


def render(found: ModelComparison, console: Console, verdicts: Sequence[Verdict] = ()) -> None:
    """Print the scoreboard, the tokens in which the first candidate differs most, and the notes.

    Arguments:
        found: the result of `compare_models`.
        console: the rich console to print on.
        verdicts: the limits that were asked for.
    """
    say = Printer(console)
    say.verdicts(verdicts)
    say.line(outcome(found), style="bold")
    say.line(size(found))
    say.table(
        "Models, KL in nats per token",
        HEADINGS,
        [list(line.cells) for line in scoreboard(found)],
        dropped_first=DROPPED,
    )
    for sentence in (*differences(found), *certain(found), *noise(found)):
        say.line(sentence)
    for candidate in found.candidates:
        several = len(found.candidates) > 1
        title = f"{candidate.model.name}: where it differs most" if several else "Where they differ most"
        if not candidate.comparison.worst:
            continue
        say.table(title, *_worst_tokens(found, candidate.comparison.worst), dropped_first=(4,))
        for sentence in infinite_sentences(candidate.comparison):
            say.line(f"{candidate.model.name}: {sentence}")
    if len(found.candidates) == 1:
        predictions.render_numbers(found.candidates[0].comparison, console)
    say.space()
    for note in (predictions.MEANINGS, *notes(found)):
        say.line(f"- {note}")


def _worst_tokens(found: ModelComparison, rows: list[WorstRow]) -> tuple[list[str], list[list[str]]]:
    windows = found.text
    places, of_row = windows.scored.nonzero().squeeze(-1), windows.clusters
    lines: list[list[str]] = []
    for row in rows[:WORST]:
        window, place = int(of_row[row.row]), int(places[row.row])
        start = max(int(windows.offsets[window]), place - 6)
        before = "".join(token_text(found, index) for index in windows.tokens[start:place].tolist())
        token = visible(token_text(found, int(windows.tokens[place])))
        tops = (token_text(found, top.index) for top in top_classes(row))
        text = f"…{visible(before)[-24:]}[{_short(token)}]"
        lines.append([text, number(row.kl), *map(_short, map(visible, tops)), count(window)])
    return ["text [token]", "KL(P||Q)", "P's top", "Q's top", "window"], lines


def _short(text: str) -> str:
    longest = predictions.LONGEST_TOKEN
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
