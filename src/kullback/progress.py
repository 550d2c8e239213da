"""A progress bar on standard error, where that is a terminal and the work takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["Update", "progress_bar"]

# Takes what is done and what there is in all, None where that is not known yet.
Update = Callable[[int, int | None], None]


@contextmanager
def progress_bar(what: str, *, show: bool = True, patience: float = 1.0) -> Generator[Update | None]:
    """Give a function to call with the amount done and the amount in all, or None where nobody would see the bar.

    Arguments:
        what: what is counted, in the plural.
        show: whether it may be shown at all.
        patience: after how many seconds the bar appears.

    Example:
        >>> with progress_bar("rows") as update:
        ...     if update:
        ...         update(1, 2)
    """
    if not (show and sys.stderr.isatty() and find_spec("rich")):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    begun = time.monotonic()

    def update(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - begun >= patience:
            bar.start()  # which does nothing the second time

    try:
        yield update
    finally:
        bar.stop()
