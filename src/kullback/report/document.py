"""`Document`: the content of a report, in blocks that every medium renders in its own way.

One function for each type of result makes a `Document`, and one function for each medium renders a `Document`. Texts
are plain, and each medium escapes them. The page shows the two bars of KL(P||Q) as one character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from kullback.common.formats import counted
from kullback.results.finding import Level
from kullback.results.verdict import Outcome, Verdict, headline, worst

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

# The fields of a JSON document, by name. A value is a number, a string, None, or a list or dict of such values.
Fields: TypeAlias = dict[str, object]
Column: TypeAlias = "Sequence[object] | NDArray[np.generic]"
Tone: TypeAlias = Literal["bad", "warning", "good", "unknown", ""]

TONES: dict[Outcome, Tone] = {"failed": "bad", "unclear": "warning", "passed": "good"}


@dataclass(frozen=True)
class Figure:
    """A main number of a result, with its unit and its interval. The page shows the first four figures as tiles."""

    title: str
    value: str
    unit: str = ""
    interval: str = ""


@dataclass(frozen=True)
class Headline:
    """The outcome in one sentence, the reason for it, the amount of data, the names of P and Q, and main numbers."""

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
        tones: for each row, the tone of the second cell, which is then a word; empty if no cell has a tone.
        links: for each row, the name of the drawing that the first cell links to; empty without links.
        dropped_first: the indexes of the columns that a narrow medium leaves out, in this order.
        is_main: whether summaries and notebooks show the table.
        is_open: whether a page shows the table unfolded.
        ends_in_text: whether the last column also contains text, which may fold.
        beside_figures: whether a summary shows the main table although it shows the main numbers.
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
    beside_figures: bool = False


@dataclass(frozen=True)
class Code:
    """Source code, which every medium shows unchanged, and sentences below the code."""

    title: str
    text: str
    caption: tuple[str, ...] = ()
    is_main: bool = True
    language: str = "python"


@dataclass(frozen=True)
class Plot:
    """A plot, which `draw` draws on matplotlib axes. The name of the plot is unique in the document."""

    name: str
    title: str
    caption: str
    draw: Callable[[Axes], None]
    badge: tuple[str, Tone] = ("", "")


@dataclass(frozen=True)
class Bar:
    """The bars of P and Q for a class, category or bin: their lengths from 0 to 1, and the proportions as text."""

    label: str
    p: float
    q: float
    p_text: str
    q_text: str
    token: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Bars:
    """A chart with a bar for P and a bar for Q in each row."""

    name: str
    title: str
    bars: tuple[Bar, ...]
    caption: str = ""
    badge: tuple[str, Tone] = ("", "")
    heading: str = "value"


@dataclass(frozen=True)
class Gallery:
    """Plots and bars. Media without drawings show `table` instead of `items`."""

    title: str
    items: Sequence[Plot | Bars]
    caption: tuple[str, ...] = ()
    table: Table | None = None


@dataclass(frozen=True)
class Token:
    """A token of a text, with the strength of its color from 0 to 1, and a sentence about the token.

    `top` contains the texts of the most probable tokens, and their probabilities under P and under Q.
    """

    text: str
    strength: float
    about: str
    top: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Passage:
    """A passage of a text: a sentence about its position, the text before the passage, and the tokens."""

    about: str
    before: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Passages:
    """Passages with colored tokens; `scale` is the divergence of the full color.

    Media without colors show `table` instead of `passages`.
    """

    title: str
    scale: str
    passages: Sequence[Passage]
    is_open: bool = True
    table: Table | None = None


@dataclass(frozen=True)
class Remark:
    """A sentence about a result, with its level.

    The page shows `word` in place of the level, and links the sentence to the drawing named `link`. Media without
    drawings leave out remarks with a link. If the remark has a stable code, `code` is the code and `advice` the remedy.
    """

    level: Level
    message: str
    word: str = ""
    link: str = ""
    code: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Findings:
    """Remarks, the most severe first. Notebooks show the block if `is_main` is True."""

    title: str
    remarks: Sequence[Remark]
    is_main: bool = False

    @property
    def unlinked(self) -> list[Remark]:
        """The remarks that media without drawings show."""
        return [remark for remark in self.remarks if not remark.link]

    @classmethod
    def of_notes(cls, notes: Iterable[str], *, is_main: bool = False) -> tuple[Findings, ...]:
        """Return a tuple with one block that contains the notes; the tuple is empty without notes."""
        remarks = [Remark("note", note) for note in notes]
        return (cls("Notes", remarks, is_main),) if remarks else ()


@dataclass(frozen=True)
class Section:
    """Blocks below one title. If `is_open` is False, a page folds the blocks, and other media leave them out.

    If `is_open` is None, the blocks cannot be folded.
    """

    title: str
    blocks: tuple[Block, ...]
    is_open: bool | None = None


Block: TypeAlias = Table | Code | Gallery | Passages | Findings | Section


@dataclass(frozen=True)
class Brief:
    """The most important numbers in a few short lines: the amount of data, sentences, and tables without titles.

    Without the columns in `dropped_first`, each block is at most 60 characters wide.
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
    """The columns and the index of a data frame; an index of None means row numbers."""

    columns: Mapping[str, Column]
    index: list[str] | None = None

    @classmethod
    def of_numbers(
        cls, rows: Sequence[Mapping[str, float | None]], index: list[str], groups: Sequence[str | None] = ()
    ) -> Frame:
        """Return a frame with the given rows of numbers; None becomes NaN. `groups` has the group of each row."""
        columns: dict[str, Column] = {"group": groups} if any(groups) else {}
        columns |= {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}
        return cls(columns, index)


@dataclass(frozen=True)
class Measured:
    """The divergences that a result measures: their kinds and units, and the confidence level of their intervals.

    Attributes:
        units: the unit of each kind, ``"dimensionless"`` without a logarithm; the main kind is first.
        confidence: the confidence level of the intervals; None if there are none, or if it is unknown.
        further: other facts that apply to all numbers, such as ``method``.
    """

    units: Mapping[str, str]
    confidence: float | None = None
    further: Mapping[str, str | float] = field(default_factory=dict)

    def fields(self) -> Fields:
        """Return the fields of the JSON: ``kind`` of a single kind, or ``units`` of several kinds."""
        kind, unit = next(iter(self.units.items()))
        first: Fields = {"kind": kind, "unit": unit}
        several: Fields = {"unit": unit, "units": dict(self.units)}
        return {**(first if len(self.units) == 1 else several), "confidence": self.confidence, **self.further}

    def columns(self, frame: Frame) -> dict[str, Column]:
        """Return further columns of a data frame: ``unit`` and ``confidence``, and ``kind`` of a single kind.

        If each row is one kind, the row has its own unit. If each column is one kind, ``unit`` is the unit of the main
        kind, and a kind with another unit has a column such as ``tv_unit``.
        """
        fields = self.fields()
        several = fields.pop("units", None) is not None
        rows = len(next(iter(frame.columns.values()), ()))
        columns: dict[str, Column] = {name: [value] * rows for name, value in fields.items()}
        if frame.index is not None and self.units.keys() >= set(frame.index):
            columns["unit"] = [self.units[kind] for kind in frame.index]
        elif several:
            others = [kind for kind in self.units if kind in frame.columns]
            units = {
                f"{kind}_unit": self.units[kind] for kind in others if self.units[kind] != fields["unit"]
            }
            columns |= {name: [unit] * rows for name, unit in units.items()}
        return columns


@dataclass(frozen=True)
class Document:
    """The content of a report on one result, for every medium.

    Attributes:
        fields: the function that returns the fields of the JSON, including ``schema`` and ``unit``. If it is None, the
            JSON contains the texts of the report.
        frame: the function that returns the exact numbers for a data frame. If it is None, the data frame contains the
            texts of the first main table.
        maker: the name of the command or function that makes such a page.
        brief: the most important numbers, for a terminal; None if the whole report is short.
        limit: an example of a limit for the command; empty if the command takes no limits.
        in_one_line: whether `str` of the result returns only the outcome and the number of notes.
        measured: the kinds, units and confidence of the numbers, for JSON and data frame; None if there are none.
        plot: the plot of the main numbers; None if the first plot in `blocks` is the main plot.
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
    measured: Measured | None = None
    plot: Plot | None = None

    @property
    def outcome(self) -> str:
        """The verdict of all limits, followed by the outcome."""
        verdict = headline(self.verdicts)
        return f"{verdict}. {self.headline.outcome}" if verdict else self.headline.outcome

    @property
    def line(self) -> str:
        """The outcome, followed by the number of notes, which one line has no room for."""
        notes = sum(len(block.unlinked) for block in self.blocks if isinstance(block, Findings))
        return f"{self.outcome}; {counted(notes, 'note')} in .notes" if notes else self.outcome

    @property
    def tone(self) -> Tone:
        """The tone of the verdict of all limits or, without limits, the tone of the headline."""
        if not self.verdicts:
            return self.headline.tone
        return TONES[worst(self.verdicts)]


def drawings(document: Document) -> Iterator[Plot | Bars]:
    """Yield the drawings of the page."""
    yield from (item for block in document.blocks if isinstance(block, Gallery) for item in block.items)


def main_blocks(document: Document) -> Iterator[Table | Code | Findings]:
    """Yield the blocks that notebooks show."""
    yield from (
        block for block in document.blocks if isinstance(block, Table | Code | Findings) and block.is_main
    )


def main_tables(document: Document) -> Iterator[Table]:
    """Yield the tables that summaries show."""
    yield from (block for block in main_blocks(document) if isinstance(block, Table))
