"""The command ``kullback compare``: from files to reports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console

from kullback import report
from kullback.cli.gates import Gate
from kullback.cli.progress import progress_bar
from kullback.comparison import Comparison, compare_predictions
from kullback.errors import FileError, OptionalDependencyError
from kullback.io import Kind

__all__ = ["Inputs", "Outputs", "check_outputs", "run_comparison"]

STANDARD_OUTPUT = "-"


class Inputs(NamedTuple):
    """The two files and how to read them, P's first."""

    p: Path
    q: Path
    kinds: tuple[Kind | None, Kind | None]
    keys: tuple[str | None, str | None]


class Outputs(NamedTuple):
    """Where the reports go: the JSON's path or ``-`` or None, the page's path or None."""

    json: str | None
    html: Path | None

    @property
    def files(self) -> list[Path]:
        """The files to be written."""
        json = [Path(self.json)] if self.json not in (None, STANDARD_OUTPUT) else []
        return json + ([self.html] if self.html else [])


def run_comparison(
    inputs: Inputs, outputs: Outputs, gates: list[Gate], settings: dict[str, Any], *, show_progress: bool
) -> list[str]:
    """Compare two files, write the reports, and say which gates fail.

    Arguments:
        inputs: the files to compare.
        outputs: where the reports go.
        gates: the limits to keep.
        settings: further arguments of `compare_predictions`.
        show_progress: whether to show a progress bar, if there is a terminal.

    Returns:
        a sentence for each gate that fails.

    Raises:
        KullbackError: an input or an output cannot be used; then there is no report.
    """
    check_outputs(outputs, [inputs.p, inputs.q, settings["labels"], settings["clusters"]])
    with progress_bar(show_progress) as progress:
        found = compare_predictions(
            inputs.p, inputs.q, kind=inputs.kinds, key=inputs.keys, progress=progress, **settings
        )
    failures = [failure for gate in gates if (failure := gate.failure(found))]
    _write_reports(found, outputs)
    return failures


def check_outputs(outputs: Outputs, inputs: list[Path | None]) -> None:
    """Refuse before the work what could not be written after it."""
    if outputs.html and not (find_spec("jinja2") and find_spec("matplotlib")):
        raise OptionalDependencyError("--html needs jinja2 and matplotlib. Run: pip install 'kullback[cli]'")
    read = {path.resolve() for path in inputs if path}
    for path in outputs.files:
        if path.resolve() in read:
            raise FileError(f"cannot write {path}: it is one of the files to read; name another one")
        report.check_writable(path)
        read.add(path.resolve())


def _write_reports(found: Comparison, outputs: Outputs) -> None:
    """Write all files or none, and print the table unless standard output carries the JSON."""
    texts = [report.json.dumps(found)] if outputs.json else []
    texts += [report.html.render(found)] if outputs.html else []
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
        report.terminal.render(found, Console())
    else:
        click.echo(printed, nl=False)
