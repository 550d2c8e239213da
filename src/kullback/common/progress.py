"""Progress displays on standard error, which are shown only if standard error is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from kullback.common.display import open_console
from kullback.common.optional import is_installed

# The arguments of an update are the number of completed items and the total number; an unknown total is None.
Update = Callable[[int, int | None], None]


@contextmanager
def progress_bar(what: str, *, show: bool = True, patience: float = 1.0) -> Generator[Update | None]:
    """Show a progress bar. The context yields a function that updates the bar, or None if no bar can be shown.

    `what` is a plural noun for the counted items. The bar appears after `patience` seconds.

    Example:
        >>> with progress_bar("rows") as update:
        ...     if update:
        ...         update(1, 2)
    """
    if not _can_show(show):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=open_console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    begun = time.monotonic()

    def update(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total)
        if time.monotonic() - begun >= patience:
            bar.start()  # only the first call of `start` has an effect

    try:
        yield update
    finally:
        bar.stop()


@contextmanager
def progress_text(*, show: bool = True) -> Generator[Callable[[str], object] | None]:
    """Show a status text. The context yields a function that replaces the text, or None if no text can be shown."""
    if not _can_show(show):
        yield None
        return
    with open_console(stderr=True).status("reading") as status:
        yield status.update


def _can_show(show: bool) -> bool:
    return show and sys.stderr.isatty() and is_installed("rich")
