"""A result as a document: blocks that every medium renders in its own way.

A subject writes a `Document` in one function; a medium is one function of a `Document`. Texts are plain: media escape
them, and the page sets the two bars of KL(P||Q) as one sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from kullback.results.finding import Level
from kullback.results.verdict import Outcome, Verdict, headline, worst

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

# The fields of a JSON document by their names: numbers, texts, and lists and dicts of them.
Fields: TypeAlias = dict[str, object]
Column: TypeAlias = "Sequence[object] | NDArray[np.generic]"
Tone: TypeAlias = Literal["bad", "warning", "good", "unknown", ""]

TONES: dict[Outcome, Tone] = {"failed": "bad", "unclear": "warning", "passed": "good"}


@dataclass(frozen=True)
class Figure:
    """A main number, with its unit and its interval; the first four are tiles on the page."""

    title: str
    value: str
    unit: str = ""
    interval: str = ""


@dataclass(frozen=True)
class Headline:
    """The outcome in a sentence, with what it is compared; the names of the sides, the amount of data, main numbers."""

    outcome: str
    reason: str = ""
    size: str = ""
    names: Mapping[str, str] | None = None
    tone: Tone = ""
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table with text in its first column and numbers in the others.

    Attributes:
        title: its subject.
        headings: a heading for each column.
        rows: the cells of each row.
        caption: sentences below it.
        tones: the tone of each row's second cell, which is a word; by default none.
        links: the names of the drawings to which the first cells lead.
        dropped_first: the columns that a narrow medium leaves out, one after the other.
        is_main: whether summaries and notebooks show it.
        is_open: whether a page shows it unfolded.
        ends_in_text: whether the last column is text too, which may fold.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: tuple[str, ...] = ()
    tones: Sequence[Tone] = ()
    links: Sequence[str] = ()
    dropped_first: Sequence[int] = ()
    is_main: bool = False
    is_open: bool = True
    ends_in_text: bool = False


@dataclass(frozen=True)
class Code:
    """Source text, which every medium shows as it is, and sentences below it."""

    title: str
    text: str
    caption: tuple[str, ...] = ()
    is_main: bool = True


@dataclass(frozen=True)
class Plot:
    """A plot, drawn on axes of matplotlib; its name is unique in the document."""

    name: str
    title: str
    caption: str
    draw: Callable[[Axes], None]
    badge: tuple[str, Tone] = ("", "")


@dataclass(frozen=True)
class Bar:
    """A class, category or bin: the lengths of P's and Q's bar from 0 to 1, and their numbers as text."""

    label: str
    p: float
    q: float
    p_text: str
    q_text: str
    token: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Bars:
    """P's and Q's bars side by side."""

    name: str
    title: str
    bars: tuple[Bar, ...]
    caption: str = ""
    badge: tuple[str, Tone] = ("", "")
    heading: str = "value"


@dataclass(frozen=True)
class Gallery:
    """Plots and bars; media without drawings show `table` in their place."""

    title: str
    items: Sequence[Plot | Bars]
    caption: tuple[str, ...] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Token:
    """A token: its text, its color from 0 to 1, a sentence on it, and text, P and Q of the most probable ones."""

    text: str
    strength: float
    about: str
    top: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Passage:
    """A passage: where it is, the text before it, and its tokens."""

    about: str
    before: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Passages:
    """Passages colored by token, from 0 to `scale`; media without colors show `table` in their place."""

    title: str
    scale: str
    passages: Sequence[Passage]
    is_open: bool = True
    table: Table | None = None


@dataclass(frozen=True)
class Remark:
    """A remark: its level, its sentence, and the word and the drawing that the page shows next to it.

    Media without drawings leave out a remark that leads to one. A remark of a stable code has it, and its remedy.
    """

    level: Level
    message: str
    word: str = ""
    link: str = ""
    code: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Findings:
    """Remarks, the most severe first; notebooks show those of a main block."""

    title: str
    remarks: Sequence[Remark]
    is_main: bool = False

    @property
    def unlinked(self) -> list[Remark]:
        """The remarks of media without drawings."""
        return [remark for remark in self.remarks if not remark.link]

    @classmethod
    def of_notes(cls, notes: Iterable[str], *, is_main: bool = False) -> tuple[Findings, ...]:
        """Return the block of a result's notes, or none if it has no note."""
        remarks = [Remark("note", note) for note in notes]
        return (cls("Notes", remarks, is_main),) if remarks else ()


@dataclass(frozen=True)
class Section:
    """Blocks below one title; a page folds them, and other media leave them out, if `is_open` is False."""

    title: str
    blocks: tuple[Block, ...]
    is_open: bool | None = None


Block: TypeAlias = Table | Code | Gallery | Passages | Findings | Section


@dataclass(frozen=True)
class Brief:
    """The numbers that decide, in few short lines: sentences, and tables without titles.

    Attributes:
        size: the amount of data.
        blocks: the lines and tables, each at most 60 columns wide after a table has dropped its columns.
    """

    size: str
    blocks: tuple[str | Table, ...]


@dataclass(frozen=True)
class Meaning:
    """A term, its formula, and an explanation."""

    term: str
    text: str
    formula: str = ""


@dataclass(frozen=True)
class Frame:
    """The columns of a data frame, and its index."""

    columns: Mapping[str, Column]
    index: list[str] | None = None

    @classmethod
    def of_numbers(cls, rows: Sequence[Mapping[str, float | None]], index: list[str]) -> Frame:
        """Return a frame of rows of numbers; None becomes NaN."""
        columns = {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}
        return cls(columns, index)


@dataclass(frozen=True)
class Document:
    """What every medium shows of a result.

    Attributes:
        title: the title of a page.
        headline: the outcome.
        blocks: the parts, in their order.
        verdicts: the limits that you asked for.
        meanings: explanations of the terms.
        fields: returns the exact numbers for JSON, ``schema`` and ``unit`` among them.
        frame: returns the exact numbers for a data frame.
        maker: the command that makes such a page.
        brief: the numbers that decide, for a terminal; None if everything is short.
        limit: an example of a limit, of a command that takes limits.
        in_one_line: whether `str` gives the outcome alone.
    """

    title: str
    headline: Headline
    blocks: tuple[Block, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    fields: Callable[[], Fields] | None = None
    frame: Callable[[], Frame] | None = None
    maker: str = "kullback"
    brief: Brief | None = None
    limit: str = ""
    in_one_line: bool = False

    @property
    def outcome(self) -> str:
        """The verdict of all limits, and the outcome."""
        verdict = headline(self.verdicts)
        return f"{verdict}. {self.headline.outcome}" if verdict else self.headline.outcome

    @property
    def tone(self) -> Tone:
        """The tone of the outcome: of the limits, if there are any."""
        if not self.verdicts:
            return self.headline.tone
        return TONES[worst(self.verdicts)]


def main_blocks(document: Document) -> Iterator[Table | Code | Findings]:
    """Yield the blocks of notebooks."""
    yield from (
        block for block in document.blocks if isinstance(block, Table | Code | Findings) and block.is_main
    )


def main_tables(document: Document) -> Iterator[Table]:
    """Yield the tables of summaries."""
    yield from (block for block in main_blocks(document) if isinstance(block, Table))
