"""The part of the command ``kullback compare`` that compares two files of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.compare_options import LLAMA_CPP
from kullback.cli.gates import Compared, Gate
from kullback.cli.outputs import STANDARD_OUTPUT, check_outputs, write_reports
from kullback.cli.settings import Settings
from kullback.cli.streams import print_error
from kullback.common.progress import progress_bar
from kullback.errors import ArgumentValueError
from kullback.io import open_rows, read_tokens
from kullback.parallel.workers import Workers, torchrun_workers
from kullback.predictions import Comparison, compare_predictions
from kullback.predictions.checkpoint import KeptState
from kullback.report import llama_cpp as llama_cpp_lines
from kullback.results.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from kullback.report.subjects.predictions import Tokens


def run_prediction_comparison(
    p: Path, q: Path, settings: Settings, gates: Sequence[Gate], *, is_worker: bool
) -> Sequence[Verdict]:
    """Compare two files, write the reports, and return the verdicts of the gates.

    All workers that torchrun started call this function together. Only the worker with rank 0 writes the reports.
    """
    tokens, resume = settings["--tokens"], settings["--resume"]
    representations, keys = (
        tuple(settings[f"{flag}-{side}"] or settings[flag] for side in "pq") for flag in ("--as", "--key")
    )

    def check() -> Tokens | None:
        prints_as_llama_cpp(settings)
        groups = settings["--group"] and Path(settings["--group"])
        read = [p, q, settings["--labels"], settings["--cluster"], groups, tokens]
        check_outputs(settings, read, state=resume)
        if tokens is None:
            return None
        columns = settings["--columns"]
        with open_rows(
            p, representation=representations[0], key=keys[0], columns=columns, name="p"
        ) as source:
            return read_tokens(tokens, classes=source.classes, name="--tokens")

    workers_of = torchrun_workers if is_worker else lambda command: nullcontext(Workers(command))
    with workers_of("kullback compare") as workers:
        is_first = workers.rank == 0
        words = workers.each(check)
        with nullcontext() if resume is None else KeptState(resume, removes=is_first) as state:
            with progress_bar(
                "rows", show=is_first and not settings["--no-progress"], patience=0
            ) as progress:
                arguments = settings.arguments("predictions")
                arguments |= {"representation": representations, "key": keys}
                result = compare_predictions(
                    p, q, progress=progress, resume=state, group=workers.group, **arguments
                )
            verdicts = [gate.verdict([Compared(None, result)]) for gate in gates]

            lines = partial(print_llama_cpp, result) if result.llama_cpp is not None else None
            write = partial(write_reports, result, verdicts, settings, table=lines, tokens=words)
            return workers.each(write if is_first else list)


def prints_as_llama_cpp(settings: Settings) -> bool:
    """Return whether ``--format llama.cpp`` was given; raise an error if JSON would be printed too."""
    as_llama_cpp = settings["--format"] == LLAMA_CPP
    if as_llama_cpp and settings["--json"] == STANDARD_OUTPUT:
        raise ArgumentValueError.at(
            "",
            "--json, --format",
            wanted="one output for each report",
            got="--json without a file and --format llama.cpp both print to standard output",
            instead="--json FILE",
            wording="{got}. Write: {instead}",
        )
    return as_llama_cpp


def print_llama_cpp(result: Comparison, _: Console | None = None) -> None:
    """Print llama.cpp's lines in UTF-8, as llama.cpp does, even if the terminal has another encoding."""
    click.echo(llama_cpp_lines.render(result).encode(), nl=False)
    if result.llama_cpp is not None and result.llama_cpp.total.count < llama_cpp_lines.FEWEST_ROWS:
        print_error(
            f"kullback: llama.cpp prints no statistics of fewer than {llama_cpp_lines.FEWEST_ROWS} rows"
        )
