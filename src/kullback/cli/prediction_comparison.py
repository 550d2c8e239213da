"""The command ``kullback compare`` for predictions: from two files to reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import torch

from kullback.cli.outputs import STANDARD_OUTPUT, Outputs, check_outputs, write_reports
from kullback.cli.streams import print_error
from kullback.common.progress import progress_bar
from kullback.errors import ArgumentValueError
from kullback.io import open_rows, read_tokens
from kullback.parallel.workers import Workers, torchrun_workers
from kullback.predictions import Comparison, compare_predictions
from kullback.predictions.checkpoint import kept_state
from kullback.report import llama_cpp as llama_cpp_lines

if TYPE_CHECKING:
    from rich.console import Console

    from kullback.cli.gates import Gate
    from kullback.common.words import RepresentationName
    from kullback.predictions.llama_cpp_statistics import LlamaCppRows
    from kullback.report.subjects.predictions import Tokens


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
    llama_cpp: LlamaCppRows | None = None,
    tokens: Path | None = None,
    resume: Path | None = None,
    is_worker: bool = False,
    **settings: Any,
) -> list[str]:
    """Compare two files, write the reports, and say which gates fail.

    All workers that torchrun started call this together; rank 0 writes the reports and prints the gates.

    Arguments:
        inputs: the files to compare.
        outputs: where the reports go.
        gates: the limits to keep.
        seed: of all randomness.
        show_progress: whether to show a progress bar, if there is a terminal.
        llama_cpp: print llama.cpp's lines instead of tables, of these rows.
        tokens: the file with the text of each class, to be shown in the reports.
        resume: the file of finished blocks.
        is_worker: whether this may be one of several workers.
        settings: further arguments of `compare_predictions`.

    Returns:
        a sentence for each gate that fails.
    """

    def check() -> Tokens | None:
        require_one_output(outputs, llama_cpp)
        read = [inputs.p, inputs.q, settings["labels"], settings["cluster"], tokens]
        check_outputs(outputs, read, state=resume)
        return None if tokens is None else _read_tokens(tokens, inputs)

    with (
        torchrun_workers("kullback compare")
        if is_worker
        else nullcontext(Workers("kullback compare")) as workers
    ):
        is_first = workers.rank == 0
        words = workers.each(check)
        with kept_state(resume, removes=is_first) as state:
            with progress_bar("rows", show=show_progress and is_first, patience=0) as progress:
                found = compare_predictions(
                    inputs.p,
                    inputs.q,
                    representation=inputs.representations,
                    key=inputs.keys,
                    generator=torch.Generator().manual_seed(seed),
                    progress=progress,
                    llama_cpp=llama_cpp,
                    resume=state,
                    group=workers.group,
                    **settings,
                )
            verdicts = [gate.verdict([(None, found, None)]) for gate in gates]

            lines = partial(print_llama_cpp, found) if found.llama_cpp is not None else None
            write = partial(write_reports, found, verdicts, outputs, table=lines, tokens=words)
            return workers.each(write if is_first else list)


def _read_tokens(tokens: Path, inputs: Inputs) -> Tokens:
    """Read the texts of the classes before the computation; there may not be more than P has classes."""
    with open_rows(
        inputs.p, representation=inputs.representations[0], key=inputs.keys[0], name="p"
    ) as source:
        return read_tokens(tokens, classes=source.classes, name="--tokens")


def require_one_output(outputs: Outputs, llama_cpp: LlamaCppRows | None) -> None:
    """Refuse to print both JSON and llama.cpp's lines."""
    if llama_cpp is not None and outputs.json == STANDARD_OUTPUT:
        raise ArgumentValueError(
            "--json without a file and --format llama.cpp both print to standard output. Write: --json FILE"
        )


def print_llama_cpp(found: Comparison, _: Console | None = None) -> None:
    """Print llama.cpp's lines in UTF-8, as llama.cpp does, whatever the terminal's encoding is."""
    click.echo(llama_cpp_lines.render(found).encode(), nl=False)
    if found.llama_cpp is not None and found.llama_cpp.total.count < llama_cpp_lines.FEWEST_ROWS:
        print_error(
            f"kullback: llama.cpp prints no statistics of fewer than {llama_cpp_lines.FEWEST_ROWS} rows"
        )
