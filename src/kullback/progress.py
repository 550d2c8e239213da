"""A progress bar for work of which nobody knew that it would take long: it appears after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

__all__ = ["progress_bar"]

PATIENCE = 1.0  # seconds


@contextmanager
def progress_bar(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Give a function to call with each step's amount; a terminal shows the bar once a second has passed.

    Arguments:
        what: what is counted, in the plural.
        total: how many there are.

    Example:
        >>> with progress_bar("rows", 2) as advance:
        ...     advance(1)
        ...     advance(1)
    """
    if not (sys.stderr.isatty() and find_spec("rich")):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    begun = time.monotonic()
    shown: list[Any] = []

    def advance(amount: int) -> None:
        bar.advance(task, amount)
        if not shown and time.monotonic() - begun > PATIENCE:
            bar.start()
            shown.append(bar)

    try:
        yield advance
    finally:
        with suppress(IndexError):
            shown.pop().stop()
