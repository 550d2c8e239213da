"""The command ``kullback compare`` for predictions: from two files to reports."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from kullback.report.subjects.predictions import Tokens
    from kullback.results.verdict import Verdict


def run_prediction_comparison(
    p: Path,
    q: Path,
    outputs: Outputs,
    gates: Sequence[Gate],
    *,
    representation: RepresentationName | None,
    representation_p: RepresentationName | None,
    representation_q: RepresentationName | None,
    key: str | None,
    key_p: str | None,
    key_q: str | None,
    seed: int,
    no_progress: bool,
    llama_cpp: bool,
    tokens: Path | None,
    resume: Path | None,
    is_worker: bool,
    **settings: Any,
) -> Sequence[Verdict]:
    """Compare two files, write the reports, and return the verdicts of the gates.

    All workers that torchrun started call this together; rank 0 writes the reports and prints the gates.

    Keyword arguments are the options of the command; `compare_predictions` takes `settings`.
    """
    representations = representation_p or representation, representation_q or representation
    keys = key_p or key, key_q or key

    def check() -> Tokens | None:
        require_one_output(outputs, llama_cpp)
        read = [p, q, settings["labels"], settings["cluster"], tokens]
        check_outputs(outputs, read, state=resume)
        if tokens is None:
            return None
        columns = settings["columns"]
        with open_rows(
            p, representation=representations[0], key=keys[0], columns=columns, name="p"
        ) as source:
            return read_tokens(tokens, classes=source.classes, name="--tokens")

    workers_of = torchrun_workers if is_worker else lambda command: nullcontext(Workers(command))
    with workers_of("kullback compare") as workers:
        is_first = workers.rank == 0
        words = workers.each(check)
        with kept_state(resume, removes=is_first) as state:
            with progress_bar("rows", show=is_first and not no_progress, patience=0) as progress:
                found = compare_predictions(
                    p,
                    q,
                    representation=representations,
                    key=keys,
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


def require_one_output(outputs: Outputs, llama_cpp: bool) -> None:
    """Refuse to print both JSON and llama.cpp's lines."""
    if llama_cpp and outputs.json == STANDARD_OUTPUT:
        raise ArgumentValueError.at(
            "",
            "--json, --format",
            wanted="one output for each report",
            got="--json without a file and --format llama.cpp both print to standard output",
            instead="--json FILE",
            wording="{got}. Write: {instead}",
        )


def print_llama_cpp(found: Comparison, _: Console | None = None) -> None:
    """Print llama.cpp's lines in UTF-8, as llama.cpp does, whatever the terminal's encoding is."""
    click.echo(llama_cpp_lines.render(found).encode(), nl=False)
    if found.llama_cpp is not None and found.llama_cpp.total.count < llama_cpp_lines.FEWEST_ROWS:
        print_error(
            f"kullback: llama.cpp prints no statistics of fewer than {llama_cpp_lines.FEWEST_ROWS} rows"
        )
