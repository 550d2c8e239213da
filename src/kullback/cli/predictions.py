"""The command ``kullback compare`` for predictions: from two files to reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kullback import report
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.predictions import compare_predictions
from kullback.progress import progress_bar

if TYPE_CHECKING:
    from kullback.cli.gates import Gate
    from kullback.words import RepresentationName

__all__ = ["Inputs", "run_prediction_comparison"]


class Inputs(NamedTuple):
    """The two files and how to read them, P's first."""

    p: Path
    q: Path
    representations: tuple[RepresentationName | None, RepresentationName | None]
    keys: tuple[str | None, str | None]


def run_prediction_comparison(
    inputs: Inputs,
    outputs: Outputs,
    gates: Sequence[Gate],
    *,
    seed: int,
    show_progress: bool,
    **settings: Any,
) -> list[str]:
    """Compare two files, write the reports, and say which gates fail.

    Arguments:
        inputs: the files to compare.
        outputs: where the reports go.
        gates: the limits to keep.
        seed: of all randomness.
        show_progress: whether to show a progress bar, if there is a terminal.
        settings: further arguments of `compare_predictions`.

    Returns:
        a sentence for each gate that fails.
    """
    check_outputs(outputs, [inputs.p, inputs.q, settings["labels"], settings["cluster"]])
    with progress_bar("rows", show=show_progress, patience=0) as progress:
        found = compare_predictions(
            inputs.p,
            inputs.q,
            representation=inputs.representations,
            key=inputs.keys,
            generator=torch.Generator().manual_seed(seed),
            progress=progress,
            **settings,
        )
    failures = [failure for gate in gates if (failure := gate.failure(found))]
    write_reports(
        outputs,
        json=lambda: report.json.dumps(found),
        html=lambda: report.html.render(found),
        table=lambda console: report.terminal.render(found, console),
    )
    return failures
