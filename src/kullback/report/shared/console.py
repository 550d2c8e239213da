"""Text and tables on a rich console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.shared.formats import printable
from kullback.report.shared.verdicts import headline, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from kullback.report.shared.verdicts import Verdict

__all__ = ["Printer"]

GOOD, BAD = "green", "bold red"
LONGEST_LINE = 24  # characters of a name that a table makes room for; a longer one folds


class Printer:
    """Prints text and tables on a console, with control characters escaped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _text(self, text: str) -> Text:
        from rich.text import Text

        encoding = self._console.encoding
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding))

    def verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Print whether all limits hold, the first line of a report, and then each."""
        if verdicts:
            passed = not any(each.failures for each in verdicts)
            self.line(f"{headline(verdicts)}.", style=GOOD if passed else BAD)
        for text, holds in lines(verdicts):
            self.line(text, style=GOOD if holds else BAD)

    def heading(self, outcome: str, p_name: str, q_name: str, size: str, style: str = "bold") -> None:
        """Print the outcome, the names of P and Q and the amount of data."""
        self.line(outcome, style=style)
        self.line(f"P  {p_name}")
        self.line(f"Q  {q_name}")
        self.line(size)

    def space(self) -> None:
        self._console.print()

    def line(self, text: str, style: str = "") -> None:
        self._console.print(self._text(text), style=style, overflow="fold")

    def table(
        self,
        title: str,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        styles: Sequence[str] = (),
        dropped_first: Sequence[int] = (),
    ) -> None:
        """Print a table with text in its first column, which may fold, and numbers in the others, which may not.

        Arguments:
            title: what it shows.
            headings: a heading for each column.
            rows: the cells of each row.
            styles: a style for each row's cell in the second column; by default none.
            dropped_first: the columns to leave out, one after the other, until names have room.
        """
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        cells = [[self._text(cell) for cell in row] for row in rows]
        widths = [
            max([len(heading), *(row[place].cell_len for row in cells)])
            for place, heading in enumerate(headings)
        ]
        kept = list(range(len(headings)))
        for place in dropped_first:
            others = sum(widths[each] + 1 for each in kept[1:])
            if others + min(widths[0], LONGEST_LINE) + 1 > self._console.width:
                kept.remove(place)
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column(headings[0], overflow="fold")
        for place in kept[1:]:
            justify = "left" if styles and place == 1 else "right"
            table.add_column(headings[place], justify=justify, no_wrap=True)
        for row, style in zip(cells, styles or [""] * len(cells), strict=True):
            row[1].stylize(style)
            table.add_row(*(row[place] for place in kept))
        self.space()
        self.line(title, style="bold")
        self._console.print(table)
