"""The command ``kullback compare`` for language models: from their names and a text to reports."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch

from kullback.cli.option_errors import in_options
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.cli.prediction_comparison import print_llama_cpp, require_one_output
from kullback.common.constraints import taken
from kullback.common.progress import progress_bar
from kullback.errors import ArgumentValueError, printable
from kullback.models import Cut, Loading, ModelComparison, Run, compare_models, is_reference
from kullback.predictions.checkpoint import kept_state

if TYPE_CHECKING:
    from rich.console import Console

    from kullback.cli.gates import Gate
    from kullback.results.verdict import Verdict


def run_model_comparison(
    base: str,
    candidates: Sequence[str],
    outputs: Outputs,
    gates: Sequence[Gate],
    *,
    text: Path | None,
    resume: Path | None,
    seed: int,
    no_progress: bool,
    **settings: Any,
) -> Sequence[Verdict]:
    """Compare models on a text, write the reports, and return the verdicts of the gates.

    Keyword arguments are the options of the command; `compare_models` takes `settings`.
    """
    if text is None and not any(map(is_reference, (base, *candidates))):
        raise ArgumentValueError.at(
            f"P = {printable(base)}",
            "--text",
            wanted="models are compared on a text",
            got="none",
            instead="--text FILE",
            wording="{wanted}; got {got}. Write: {instead}",
        )
    files = [Path(name) for name in (base, *candidates) if os.path.exists(name)]  # noqa: PTH110 - of any text
    lines_of_llama_cpp = settings["llama_cpp"]
    require_one_output(outputs, lines_of_llama_cpp)
    check_outputs(outputs, [*files, text], state=resume)
    with kept_state(resume) as state:
        with (
            progress_bar("tokens", show=not no_progress, patience=0) as progress,
            in_options(
                {"base": "P, Q"}, {"base": "--as without --text, where P and Q are files of predictions"}
            ),
        ):
            found = compare_models(
                base,
                list(candidates),
                text,
                cut=taken(Cut, settings),
                loading=taken(Loading, settings),
                run=replace(
                    taken(Run, settings),
                    resume=state,
                    generator=torch.Generator().manual_seed(seed),
                    progress=progress,
                ),
                **settings,
            )
        compared = [
            (each.model.name, each.comparison, each.certain if each.is_lower_bound else None)
            for each in found.candidates
        ]
        verdicts = [gate.verdict(compared) for gate in gates]
        lines = partial(_print_llama_cpp, found) if lines_of_llama_cpp else None
        return write_reports(found, verdicts, outputs, table=lines)


def _print_llama_cpp(found: ModelComparison, _: Console) -> None:
    """Print llama.cpp's lines of each candidate under its name."""
    for each in found.candidates:
        if len(found.candidates) > 1:
            click.echo(f"# {printable(each.model.name)}")
        print_llama_cpp(each.comparison)
