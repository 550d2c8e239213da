"""A comparison of language models in the terminal: the scoreboard, and one candidate in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.models.wording import (
    HEADINGS,
    differences,
    noise,
    notes,
    outcome,
    scoreboard,
    size,
    token_text,
)
from kullback.report.predictions import terminal as predictions
from kullback.report.predictions.wording import infinite_sentences
from kullback.report.shared.console import Printer
from kullback.report.shared.formats import count, number, probability

if TYPE_CHECKING:
    from rich.console import Console

    from kullback.models import ModelComparison, Passage

__all__ = ["render"]

# What a narrow terminal leaves out first.
DROPPED = (9, 8, 7, 5, 4, 2, 3, 6)
WORST = 5
LONGEST_TOKEN = 16


def render(found: ModelComparison, console: Console) -> None:
    """Print the scoreboard, the tokens in which the first candidate differs most, and the notes.

    Arguments:
        found: the result of `compare_models`.
        console: the rich console to print on.
    """
    say = Printer(console)
    say.line(outcome(found), style="bold")
    say.line(size(found))
    say.table(
        "Models, KL in nats per token",
        HEADINGS,
        [list(line.cells) for line in scoreboard(found)],
        dropped_first=DROPPED,
    )
    for sentence in (*differences(found), *noise(found)):
        say.line(sentence)
    for candidate in found.candidates:
        several = len(found.candidates) > 1
        title = f"{candidate.model.name}: where it differs most" if several else "Where they differ most"
        say.table(title, *_worst_tokens(found, candidate.passages), dropped_first=(3, 4))
        for sentence in infinite_sentences(candidate.comparison):
            say.line(f"{candidate.model.name}: {sentence}")
    if len(found.candidates) == 1:
        predictions.render_numbers(found.candidates[0].comparison, console)
    say.space()
    for note in (predictions.MEANINGS, *notes(found)):
        say.line(f"- {note}")


def _worst_tokens(found: ModelComparison, passages: list[Passage]) -> tuple[list[str], list[list[str]]]:
    tokens = [(passage, place, token) for passage in passages for place, token in enumerate(passage.tokens)]
    tokens.sort(key=lambda each: -each[2].kl)
    rows = [
        [
            f"…{_context(found, passage, place)}[{_shown(token_text(found, token.index))}]",
            number(token.kl),
            f"{probability(token.p)} -> {probability(token.q)}",
            _shown(token_text(found, max(token.top, key=lambda top: top.p).index)),
            _shown(token_text(found, max(token.top, key=lambda top: top.q).index)),
            count(passage.window),
        ]
        for passage, place, token in tokens[:WORST]
    ]
    return ["text [token]", "KL(P||Q)", "its p", "P's top", "Q's top", "window"], rows


def _context(found: ModelComparison, passage: Passage, place: int) -> str:
    before = [*passage.before, *(token.index for token in passage.tokens[:place])]
    return "".join(token_text(found, index) for index in before[-6:])[-24:].replace("\n", "⏎")


def _shown(text: str) -> str:
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    return text if len(text) <= LONGEST_TOKEN else f"{text[: LONGEST_TOKEN - 1]}…"
