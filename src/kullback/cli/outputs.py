"""The files of a command: they are checked before the computation, and reports are written after the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kullback.cli.settings import Settings
from kullback.cli.statuses import Status
from kullback.cli.streams import closed_pipe_allowed, print_error
from kullback.common.display import open_console
from kullback.common.files import check_input, check_writable, refuse_overwriting, write_all
from kullback.common.optional import load
from kullback.errors import LONGEST_MESSAGE, printable
from kullback.results.verdict import Verdict, worst

if TYPE_CHECKING:
    from rich.console import Console

STANDARD_OUTPUT = "-"


class Outputs(NamedTuple):
    """The reports of a command.

    Attributes:
        json: the path of the JSON report; ``-`` for standard output; None for no JSON.
        config: the path of the file of options, which no report may overwrite; None if there is no such file.
        full: whether to print every table and note.
    """

    json: str | None
    html: Path | None
    markdown: Path | None
    config: Path | None
    full: bool

    @classmethod
    def of(cls, settings: Settings, *, full: bool = True) -> Outputs:
        """Return the reports that the options request."""
        flags = ("--json", "--html", "--markdown", "--config")
        return cls(*(settings[flag] for flag in flags), full=full)

    @property
    def files(self) -> list[Path]:
        """The paths of the files to write."""
        json = [Path(self.json)] if self.json not in (None, STANDARD_OUTPUT) else []
        return json + [path for path in (self.html, self.markdown) if path is not None]


def check_files(
    inputs: Iterable[tuple[str, Path | None]], outputs: Sequence[Path], others: Sequence[str] = ()
) -> None:
    """Raise an error if a file cannot be read or written, or if an output is also another file of the command.

    `inputs` are pairs of a name for error messages and a path to read. `others` may be paths to read too.
    """
    read: list[Path | str] = []
    for name, path in inputs:
        if path is not None:
            check_input(path, name)
            read.append(path)
    refuse_overwriting(outputs, [*read, *others])
    for path in outputs:
        check_writable(path)


def check_outputs(
    outputs: Outputs, inputs: Sequence[Path | None], others: Sequence[Path] = (), *, state: Path | None = None
) -> None:
    """Raise an error before the computation if an input cannot be read or an output cannot be written.

    `others` are further paths to write. `state` is the path of ``--resume``, which is read and written.
    """
    if outputs.html:
        for library in ("jinja2", "matplotlib"):
            load(library, "--html")
    written = [*outputs.files, *others]
    if state is not None:
        check_input(state, "--resume")
        written.append(state)
    check_files([("input", path) for path in (*inputs, outputs.config)], written)


def write_reports(
    result: Any,
    verdicts: Sequence[Verdict],
    outputs: Outputs,
    *,
    table: Callable[[Console], object] | None = None,
    others: Mapping[Path, str | bytes] = MappingProxyType({}),
    **options: Any,
) -> Sequence[Verdict]:
    """Write all files, `others` first, and print the table or the JSON.

    `table` prints something other than the tables of `result`. `others` has the contents of further files, by path.
    `options` are further arguments of `kullback.report.document`. Return the verdicts of all batches.
    """
    from kullback.report import document, html, json, markdown, terminal

    page = document(result, verdicts, **options)
    texts: list[str] = []
    printed = json.dumps(page) if outputs.json else None
    if printed is not None and outputs.json != STANDARD_OUTPUT:
        texts.append(printed)
        printed = None
    texts += [html.render(page)] if outputs.html else []
    texts += [markdown.render(page)] if outputs.markdown else []
    write_all({**others, **dict(zip(outputs.files, texts, strict=True))})
    with closed_pipe_allowed():
        if printed is not None:
            click.echo(printed, nl=False)
        elif table is not None:
            table(open_console())
        elif outputs.full:
            terminal.render(page, open_console())
        else:
            terminal.render_brief(page, open_console(), outputs.html)
    return page.verdicts


def finish(verdicts: Sequence[Verdict], *, allow_unclear: bool) -> None:
    """Print the gates that do not pass, and exit with status 1 if one fails, or with 3 if one is unclear.

    With `allow_unclear`, an unclear gate does not change the exit status.
    """
    for verdict in verdicts:
        for failure in verdict.failures:
            print_error(f"kullback: gate failed: {printable(failure, LONGEST_MESSAGE)}")
        for sentence in verdict.unclear:
            print_error(f"kullback: cannot tell: {printable(sentence, LONGEST_MESSAGE)}")
    outcome = worst(verdicts)
    if outcome == "failed":
        raise click.exceptions.Exit(Status.GATE_FAILED)
    if outcome == "unclear" and not allow_unclear:
        raise click.exceptions.Exit(Status.UNCLEAR)
