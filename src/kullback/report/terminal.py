"""Prints a document on a rich console; tables on a narrow console have fewer columns, but always the first column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kullback.common.formats import count, counted
from kullback.errors import printable, quoted
from kullback.report.document import (
    TONES,
    Block,
    Code,
    Document,
    Findings,
    Gallery,
    Passages,
    Section,
    Table,
    Tone,
)
from kullback.report.subjects import document
from kullback.results.finding import LEVELS
from kullback.results.verdict import Outcome, Verdict, headline

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STYLES: dict[Tone, str] = {"bad": "bold red", "warning": "yellow", "good": "green", "unknown": "dim", "": ""}
# The text that is printed before a limit, for each outcome; the most urgent outcome is first.
_LABELS: dict[Outcome, str] = {"failed": "FAILED", "unclear": "CANNOT TELL", "passed": "passed"}
LONGEST_NAME = 18  # a table has room for this number of characters in its first column; a longer name folds
MOST_REMARKS = 25
MOST_LINES = 12  # the largest number of lines of a brief report
_INDENT = "    "  # begins each line of source code
_NUMBER = re.compile(r"(>= |<)?[\d,.e+-]+( ?\S?nat|%)?")


def render(result: Any, console: Console, verdicts: Sequence[Verdict] = (), **options: Any) -> None:
    """Print a result: the outcome, the limits, the tables and the remarks.

    Divergences are in nats. Control characters are escaped. `document` describes the other arguments.

    Example:
        >>> import torch
        >>> from rich.console import Console
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> render(compare_predictions(p, p), Console(width=80))
        P and Q are equal in every row: KL(P||Q) is 0.
        ...
    """
    page, say = document(result, verdicts, **options), _Printer(console)
    say.outcome(page.outcome, page.tone)
    if page.headline.reason:
        say.line(page.headline.reason)
    for each in page.verdicts:
        say.verdict(each, f": {'; '.join(each.sentences)}")
    for letter, name in (page.headline.names or {}).items():
        say.line(f"{letter}  {name}")
    if page.headline.size:
        say.line(page.headline.size)
    for block in _open(page.blocks):
        say.block(block)
    if page.meanings:
        say.space()
    for each in page.meanings:
        say.line(f"- {each.term}: {each.text}", "dim")


def render_plain(page: Document) -> str:
    """Return the text of a document without rich; lines are not colored or folded, and all columns are shown.

    Example:
        >>> import torch
        >>> from kullback import diagnose
        >>> p = torch.tensor([[0.5, 0.5]])
        >>> print(render_plain(document(diagnose(p.log(), p))).splitlines()[0])
        F.kl_div(input, target, reduction="mean")
    """
    lines = [page.outcome, page.headline.reason] if page.headline.reason else [page.outcome]
    lines += [
        f"{_LABELS[each.outcome]}: {each.limit}{'; '.join(['', *each.sentences])}" for each in page.verdicts
    ]
    lines += [f"{letter}  {name}" for letter, name in (page.headline.names or {}).items()]
    lines += [page.headline.size] if page.headline.size else []
    for block in _open(page.blocks):
        lines += _plain(block)
    return "\n".join(map(printable, lines))


def _plain(block: Table | Code | Findings) -> Iterator[str]:
    if not isinstance(block, Table):
        yield from _lines(block)
        return
    cells = [block.headings, *block.rows] if any(block.headings) else block.rows
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    yield from ("", block.title)
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield from block.caption


def render_brief(page: Document, console: Console, html: Path | None = None) -> None:
    """Print the most important numbers in at most 12 lines; a document without a short form is printed in full.

    There are more lines only if a path or the name of a limit is wider than the console. `html` is the path of a page.

    Example:
        >>> import torch
        >>> from rich.console import Console
        >>> from kullback import Probs, compare_predictions
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> render_brief(document(compare_predictions(p, p)), Console(width=80))
        P  a tensor of shape (2, 2)   Q  a tensor of shape (2, 2)
        2 rows, 2 classes
        ...
    """
    if page.brief is None:
        render(page, console)
        return
    say, blocks = _Printer(console), list(page.brief.blocks)
    more = _more(page, console.width, has_page=html is not None)
    ending = say.joined([f"Page: {html}", more] if html else [more])
    room = MOST_LINES - len(ending) - bool(page.verdicts)
    room -= sum(_height(each, console.width) for each in blocks)
    if room < 0 and isinstance(worst := blocks[-1], Table):
        blocks[-1] = replace(worst, rows=worst.rows[: max(1, len(worst.rows) + room)])
    room -= say.limits(page, room)
    named = say.joined([f"{letter}  {name}" for letter, name in (page.headline.names or {}).items()])
    for line in (*named, page.brief.size):
        if (height := _height(line, console.width)) <= room:
            say.line(line)
            room -= height
    for block in blocks:
        if isinstance(block, str):
            say.line(block)
        else:
            if room > 0:
                say.space()
                room -= 1
            say.short_table(block)
    for line in ending:
        say.line(line, "dim")


def _height(block: str | Table, width: int) -> int:
    return ceil(len(block) / width) if isinstance(block, str) else len(block.rows) + any(block.headings)


def _more(page: Document, width: int, *, has_page: bool) -> str:
    """Return a line with the options that show more, and with the numbers of remarks."""
    levels = Counter(
        remark.level for each in _open(page.blocks) if isinstance(each, Findings) for remark in each.unlinked
    )
    remarks = [counted(number, level) for level in LEVELS if (number := levels[level])]
    text = f"More: --full ({', '.join(['all numbers', *remarks])})"
    with_page = f"{text}, --html FILE (a page)"
    return text if has_page or len(with_page) > width else with_page


def _failures(verdict: Verdict) -> Iterator[str]:
    """Yield descriptions of how a limit is broken or unclear, each description shorter than the previous one."""
    yield f": {'; '.join(verdict.sentences)}"
    if verdict.broken_by:
        others = len(verdict.broken_by) - 1
        yield f": {quoted(verdict.broken_by[0])}" + f" and {count(others)} more" * bool(others)
    yield ""


def _lines(block: Findings | Code) -> Iterator[str]:
    """Yield the lines of a block: source code, or remarks with their levels, codes, sentences and remedies."""
    if isinstance(block, Code):
        yield from ("", f"{block.title}:")
        yield from (_INDENT + line for line in block.text.splitlines())
        yield from block.caption
        return
    remarks = block.unlinked
    if remarks:
        yield ""
    for remark in remarks[:MOST_REMARKS]:
        if not remark.code:
            yield f"{remark.level}: {remark.message}"
            continue
        yield f"{remark.level}: {remark.code}"
        yield f"  {remark.message}"
        if remark.advice:
            yield f"  -> {remark.advice}"
    if len(remarks) > MOST_REMARKS:
        yield f"{count(len(remarks) - MOST_REMARKS)} more findings are in the JSON and on the page"


def _open(blocks: Iterable[Block]) -> Iterator[Table | Code | Findings]:
    """Yield the blocks that are printed, also from open sections; a table replaces drawings and passages."""
    for block in blocks:
        if isinstance(block, Section):
            yield from _open(block.blocks) if block.is_open is not False else ()
        elif not isinstance(block, Gallery | Passages):
            yield block
        elif block.table is not None:
            yield block.table


class _Printer:
    """Prints text and tables on a console, with control characters escaped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def outcome(self, text: str, tone: Tone) -> None:
        style = STYLES[tone].removeprefix("dim")
        self.line(text, style if "bold" in style else f"bold {style}".strip())

    def verdict(self, verdict: Verdict, failure: str) -> None:
        sentence = "" if verdict.passed else failure
        self.line(f"{_LABELS[verdict.outcome]}: {verdict.limit}{sentence}", STYLES[TONES[verdict.outcome]])

    def limits(self, page: Document, room: int) -> int:
        """Print the verdict, and at most `room` limits, the most urgent first; return the number of these limits."""
        if page.verdicts:
            hidden = "; --full lists them" if room < len(page.verdicts) else ""
            self.outcome(f"{headline(page.verdicts)}{hidden}", page.tone)
        urgent = sorted(page.verdicts, key=lambda verdict: list(_LABELS).index(verdict.outcome))
        for each in urgent[: max(room, 0)]:
            width = self._console.width - self._text(f"{_LABELS[each.outcome]}: {each.limit}").cell_len
            self.verdict(
                each, next(text for text in _failures(each) if self._text(text).cell_len <= width or not text)
            )
        return min(len(urgent), max(room, 0))

    def joined(self, texts: Sequence[str]) -> list[str]:
        """Return the texts joined to one line if this line fits the console; otherwise one line for each text."""
        line = "   ".join(texts)
        return [line] * bool(line) if self._text(line).cell_len <= self._console.width else list(texts)

    def block(self, block: Table | Code | Findings) -> None:
        if isinstance(block, Table):
            self._table(block)
            return
        for line in _lines(block):
            self.line(line)

    def space(self) -> None:
        self._console.print()

    def line(self, text: str, style: str = "") -> None:
        """Print a line; a folded line keeps its indentation, and lines of source code are not folded."""
        from rich.padding import Padding

        words = text.lstrip(" ")
        margin = len(text) - len(words)
        if margin >= len(_INDENT):
            self._console.print(self._text(text), soft_wrap=True)
        elif margin:
            self._console.print(Padding(self._text(words), (0, 0, 0, margin), expand=False), style=style)
        else:
            self._console.print(self._text(text), style=style, overflow="fold")

    def _text(self, text: str) -> Text:
        from rich.text import Text

        encoding = self._console.encoding
        if not "µ".encode(encoding, "ignore"):
            text = text.replace("µnat", "unat")
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding))

    def _table(self, table: Table) -> None:
        """Print a table. Text in the first column (and in a last column of text) may fold; numbers may not."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Grid

        cells = [[self._text(cell) for cell in row] for row in table.rows]
        kept, _ = self._kept(table, cells, gap=2)
        grid = Grid(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), show_header=any(table.headings))
        grid.add_column(self._text(table.headings[0]), overflow="fold")
        for place in kept[1:]:
            is_text = table.ends_in_text and place == kept[-1]
            is_word = table.ends_in_text or (table.tones and place == 1)
            grid.add_column(
                self._text(table.headings[place]),
                justify="left" if is_word else "right",
                no_wrap=not is_text,
                overflow="fold",
            )
        for row, tone in zip(cells, table.tones, strict=False):
            row[1].stylize(STYLES[tone])
        for row in cells:
            grid.add_row(*(row[place] for place in kept))
        self.space()
        self.line(table.title, "bold")
        self._console.print(grid)
        for sentence in table.caption:
            self.line(sentence)

    def short_table(self, table: Table) -> None:
        """Print a table with one line for each row; a wide text in the first column loses its middle."""
        from rich.table import Table as Grid

        cells = [[self._text(cell) for cell in row] for row in table.rows]
        kept, first = self._kept(table, cells, gap=_GAP)
        grid = Grid(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=any(table.headings))
        for place in kept:
            is_number = place > 0 and all(_NUMBER.fullmatch(row[place].plain or "0") for row in cells)
            grid.add_column(
                self._text(table.headings[place]), justify="right" if is_number else "left", no_wrap=True
            )
        for row in cells:
            grid.add_row(_shortened(row[0], first), *(row[place] for place in kept[1:]))
        self._console.print(grid)

    def _kept(self, table: Table, cells: Sequence[Sequence[Text]], *, gap: int) -> tuple[list[int], int]:
        """Return the indexes of the columns that fit, and the width that is left for the first column."""
        widths = [
            max([len(heading), *(row[place].cell_len for row in cells)])
            for place, heading in enumerate(table.headings)
        ]
        kept = list(range(len(table.headings)))

        def room() -> int:
            return self._console.width - sum(widths[each] + gap for each in kept[1:])

        for place in table.dropped_first:
            if room() < min(widths[0], LONGEST_NAME):
                kept.remove(place)
        return kept, room()


_GAP = 2  # the number of blanks between the columns of a short table


def _shortened(text: Text, width: int) -> Text:
    """Return a text without its middle if it is wider than `width`."""
    if text.cell_len <= width:
        return text
    head, tail = text.copy(), text.copy()
    head.truncate(max(1, width // 4), overflow="crop")
    while tail.cell_len >= max(2, width - head.cell_len):
        tail = tail[1:]
    return head + "…" + tail
