"""Text and tables on a rich console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.shared.formats import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

__all__ = ["Printer"]


class Printer:
    """Prints text and tables on a console, with control characters escaped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def _text(self, text: str) -> Text:
        from rich.text import Text

        encoding = self._console.encoding
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding))

    def heading(self, p_name: str, q_name: str, size: str) -> None:
        """Print the title of a report, the names of P and Q and the amount of data."""
        self.line("How far is Q from P?", style="bold")
        self.line(f"P  {p_name}")
        self.line(f"Q  {q_name}")
        self.line(size)

    def space(self) -> None:
        self._console.print()

    def line(self, text: str, style: str = "") -> None:
        self._console.print(self._text(text), style=style, overflow="fold")

    def table(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table with text in its first column, which may fold, and numbers in the others, which may not."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column(headings[0], overflow="fold")
        for heading in headings[1:]:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(self._text, row))
        self.space()
        self.line(title, style="bold")
        self._console.print(table)
