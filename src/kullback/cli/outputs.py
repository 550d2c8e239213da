"""The files and the standard output that the reports of a comparison are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from kullback import report
from kullback.errors import FileError
from kullback.optional import load

__all__ = ["Outputs", "check_outputs", "write_reports"]

STANDARD_OUTPUT = "-"


class Outputs(NamedTuple):
    """The path of the JSON, or ``-`` or None, and the path of the page, or None."""

    json: str | None
    html: Path | None

    @property
    def files(self) -> list[Path]:
        """The files to be written."""
        json = [Path(self.json)] if self.json not in (None, STANDARD_OUTPUT) else []
        return json + ([self.html] if self.html else [])


def check_outputs(outputs: Outputs, inputs: Sequence[Path | None]) -> None:
    """Refuse outputs that cannot be written, before the computation."""
    if outputs.html:
        for library in ("jinja2", "matplotlib"):
            load(library, "--html")
    read = {path.resolve() for path in inputs if path}
    for path in outputs.files:
        if path.resolve() in read:
            raise FileError(f"cannot write {path}: it is one of the files to read; name another one")
        report.check_writable(path)
        read.add(path.resolve())


def write_reports(
    outputs: Outputs,
    *,
    json: Callable[[], str],
    html: Callable[[], str],
    table: Callable[[Console], object],
) -> None:
    """Write all files or none, and print the table unless standard output carries the JSON."""
    texts = [json()] if outputs.json else []
    texts += [html()] if outputs.html else []
    printed = texts.pop(0) if outputs.json == STANDARD_OUTPUT else None
    written: list[Path] = []
    try:
        for path, text in zip(outputs.files, texts, strict=True):
            report.write(path, text)
            written.append(path)
    except FileError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    if printed is None:
        table(Console())
    else:
        click.echo(printed, nl=False)
