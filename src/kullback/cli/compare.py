"""The command ``kullback compare``: from files to reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kullback import report
from kullback.cli.gates import Gate
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.io import Kind
from kullback.predictions import compare_predictions
from kullback.progress import progress_bar

__all__ = ["Inputs", "run_comparison"]


class Inputs(NamedTuple):
    """The two files and how to read them, P's first."""

    p: Path
    q: Path
    kinds: tuple[Kind | None, Kind | None]
    keys: tuple[str | None, str | None]


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
    with progress_bar("rows", show=show_progress, patience=0) as progress:
        found = compare_predictions(
            inputs.p, inputs.q, kind=inputs.kinds, key=inputs.keys, progress=progress, **settings
        )
    failures = [failure for gate in gates if (failure := gate.failure(found))]
    write_reports(
        outputs,
        json=lambda: report.json.dumps(found),
        html=lambda: report.html.render(found),
        table=lambda console: report.terminal.render(found, console),
    )
    return failures
