"""A document on a rich console; a narrow one shows fewer columns, never fewer names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kullback.errors import printable
from kullback.report.document import Findings, Gallery, Passages, Section, Table
from kullback.report.formats import count
from kullback.report.subjects import document

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from kullback.report.document import Block, Tone
    from kullback.results.verdict import Verdict

STYLES: dict[Tone, str] = {"bad": "bold red", "warning": "yellow", "good": "green", "unknown": "dim", "": ""}
LONGEST_NAME = 18  # characters of a name that a table has room for; a longer one folds
MOST_REMARKS = 25


def render(result: Any, console: Console, verdicts: Sequence[Verdict] = (), **options: Any) -> None:
    """Print a result: the outcome, the limits, the tables and the remarks.

    Divergences are in nats. Control characters are escaped.

    Arguments:
        result: a result, or its document.
        console: the rich console to print on.
        verdicts: the limits that you asked for.
        options: further arguments of the subject, as `tokens` of a comparison of predictions.

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
    style = STYLES[page.tone].removeprefix("dim")
    say.line(page.outcome, style if "bold" in style else f"bold {style}".strip())
    for each in page.verdicts:
        text = f"passed: {each.limit}" if each.passed else f"FAILED: {each.limit}: {'; '.join(each.failures)}"
        say.line(text, STYLES["good" if each.passed else "bad"])
    for letter, name in (page.headline.names or {}).items():
        say.line(f"{letter}  {name}")
    if page.headline.size:
        say.line(page.headline.size)
    for block in page.blocks:
        say.block(block)
    if page.meanings:
        say.space()
    for each in page.meanings:
        say.line(f"- {each.term}: {each.text}", "dim")


class _Printer:
    """Prints text and tables on a console, with control characters escaped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def block(self, block: Block) -> None:
        if isinstance(block, Section):
            for each in block.blocks if block.is_open is not False else ():
                self.block(each)
        elif isinstance(block, Findings):
            self._findings(block)
        elif isinstance(block, Gallery | Passages):
            if block.table is not None:
                self._table(block.table)
        else:
            self._table(block)

    def space(self) -> None:
        self._console.print()

    def line(self, text: str, style: str = "") -> None:
        self._console.print(self._text(text), style=style, overflow="fold")

    def _text(self, text: str) -> Text:
        from rich.text import Text

        encoding = self._console.encoding
        return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding))

    def _findings(self, findings: Findings) -> None:
        remarks = [each for each in findings.remarks if not each.link]
        if remarks:
            self.space()
        for each in remarks[:MOST_REMARKS]:
            self.line(f"{each.level}: {each.message}")
        if len(remarks) > MOST_REMARKS:
            self.line(f"{count(len(remarks) - MOST_REMARKS)} more findings are in the JSON and on the page")

    def _table(self, table: Table) -> None:
        """Print a table with text in its first column, which may fold, and numbers in the others, which may not."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as Grid

        cells = [[self._text(cell) for cell in row] for row in table.rows]
        widths = [
            max([len(heading), *(row[place].cell_len for row in cells)])
            for place, heading in enumerate(table.headings)
        ]
        kept = list(range(len(table.headings)))
        for place in table.dropped_first:
            others = sum(widths[each] + 2 for each in kept[1:])
            if others + min(widths[0], LONGEST_NAME) > self._console.width:
                kept.remove(place)
        grid = Grid(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), show_header=any(table.headings))
        grid.add_column(table.headings[0], overflow="fold")
        for place in kept[1:]:
            justify = "left" if table.tones and place == 1 else "right"
            grid.add_column(table.headings[place], justify=justify, no_wrap=True)
        for row, tone in zip(cells, table.tones, strict=False):
            row[1].stylize(STYLES[tone])
        for row in cells:
            grid.add_row(*(row[place] for place in kept))
        self.space()
        self.line(table.title, "bold")
        self._console.print(grid)
        for sentence in table.caption:
            self.line(sentence)
