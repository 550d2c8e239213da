"""The files and the standard output that the reports of a comparison are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import click

from kullback.files import check_input, check_writable, refuse_overwriting, write_all
from kullback.optional import load

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["STANDARD_OUTPUT", "Outputs", "check_outputs", "write_reports"]

STANDARD_OUTPUT = "-"


class Outputs(NamedTuple):
    """The path of the JSON, or ``-`` or None, and the paths of the page and of the Markdown, or None."""

    json: str | None
    html: Path | None
    markdown: Path | None = None

    @property
    def files(self) -> list[Path]:
        """The files to be written."""
        json = [Path(self.json)] if self.json not in (None, STANDARD_OUTPUT) else []
        return json + [path for path in (self.html, self.markdown) if path is not None]


def check_outputs(
    outputs: Outputs,
    inputs: Sequence[Path | None],
    others: Sequence[Path] = (),
    *,
    state: Path | None = None,
) -> None:
    """Refuse inputs that cannot be read and outputs that cannot be written, before the computation.

    Arguments:
        outputs: the reports.
        inputs: the files to read.
        others: further files to write.
        state: the file that ``--resume`` names, which is read and written.
    """
    if outputs.html:
        for library in ("jinja2", "matplotlib"):
            load(library, "--html")
    for path in inputs:
        if path is not None:
            check_input(path, "input")
    written = [*outputs.files, *others]
    if state is not None:
        check_input(state, "--resume")
        written.append(state)
    refuse_overwriting(written, inputs)
    for path in written:
        check_writable(path)


def write_reports(
    outputs: Outputs,
    *,
    json: Callable[[], str],
    html: Callable[[], str],
    table: Callable[[Console], object],
    markdown: Callable[[], str] | None = None,
    others: Mapping[Path, str] = MappingProxyType({}),
) -> None:
    """Write all files or none, `others` by path among them, and print the table or the JSON."""
    from rich.console import Console

    texts = [json()] if outputs.json else []
    texts += [html()] if outputs.html else []
    texts += [markdown()] if outputs.markdown and markdown is not None else []
    printed = texts.pop(0) if outputs.json == STANDARD_OUTPUT else None
    write_all({**others, **dict(zip(outputs.files, texts, strict=True))})
    if printed is None:
        table(Console())
    else:
        click.echo(printed, nl=False)
