"""The files of a command: they are checked before the computation, and reports are written after the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

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


def files_of(settings: Settings) -> dict[str, Path]:
    """Return the paths of the reports to write, by their options."""
    paths = {flag: settings[flag] for flag in ("--json", "--html", "--markdown")}
    return {flag: Path(path) for flag, path in paths.items() if path not in (None, STANDARD_OUTPUT)}


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
    settings: Settings,
    inputs: Sequence[Path | None],
    others: Sequence[Path] = (),
    *,
    state: Path | None = None,
) -> None:
    """Raise an error before the computation if an input cannot be read or an output cannot be written.

    `others` are further paths to write. `state` is the path of ``--resume``, which is read and written.
    """
    if settings["--html"]:
        for library in ("jinja2", "matplotlib"):
            load(library, "--html")
    written = [*files_of(settings).values(), *others]
    if state is not None:
        check_input(state, "--resume")
        written.append(state)
    check_files([("input", path) for path in (*inputs, settings["--config"])], written)


def write_reports(
    result: Any,
    verdicts: Sequence[Verdict],
    settings: Settings,
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
    renderers = {"--json": json.dumps, "--html": html.render, "--markdown": markdown.render}
    reports = {path: renderers[flag](page) for flag, path in files_of(settings).items()}
    write_all({**others, **reports})
    with closed_pipe_allowed():
        if settings["--json"] == STANDARD_OUTPUT:
            click.echo(json.dumps(page), nl=False)
        elif table is not None:
            table(open_console())
        elif page.brief is None or settings["--full"]:
            terminal.render(page, open_console())
        else:
            terminal.render_brief(page, open_console(), settings["--html"])
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
