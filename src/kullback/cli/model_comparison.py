"""The part of the command ``kullback compare`` that compares language models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.gates import Compared
from kullback.cli.option_errors import in_options
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.cli.prediction_comparison import print_llama_cpp, prints_as_llama_cpp
from kullback.cli.settings import Settings
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
    base: str, candidates: Sequence[str], settings: Settings, gates: Sequence[Gate]
) -> Sequence[Verdict]:
    """Compare models on a text, write the reports, and return the verdicts of the gates."""
    text, resume = settings["--text"], settings["--resume"]
    if text is None and not any(map(is_reference, (base, *candidates))):
        raise ArgumentValueError.at(
            f"P = {printable(base)}",
            "--text",
            wanted="models are compared on a text",
            got="none",
            instead="--text FILE",
            wording="{wanted}; got {got}. Write: {instead}",
        )
    files = [Path(name) for name in (base, *candidates) if os.path.exists(name)]  # noqa: PTH110 - any text
    outputs = Outputs.of(settings, full=bool(settings["--full"]))
    as_llama_cpp = prints_as_llama_cpp(settings, outputs)
    arguments = settings.arguments("models")
    check_outputs(outputs, [*files, text], state=resume)
    with kept_state(resume) as state:
        with (
            progress_bar("tokens", show=not settings["--no-progress"], patience=0) as progress,
            in_options(
                {"base": "P, Q"}, {"base": "--as without --text, where P and Q are files of predictions"}
            ),
        ):
            result = compare_models(
                base,
                list(candidates),
                text,
                cut=taken(Cut, arguments),
                loading=taken(Loading, arguments),
                run=replace(taken(Run, arguments), resume=state, progress=progress),
                **arguments,
            )
        noise = result.noise_floor
        floor = 0.0 if noise is None else noise.comparison.divergences["kl_pq"].mean
        compared = [
            Compared(each.model.name, each.comparison, each.certain if each.is_lower_bound else None, floor)
            for each in result.candidates
        ]
        verdicts = [gate.verdict(compared) for gate in gates]
        lines = partial(_print_llama_cpp, result) if as_llama_cpp else None
        return write_reports(result, verdicts, outputs, table=lines)


def _print_llama_cpp(result: ModelComparison, _: Console) -> None:
    """Print llama.cpp's lines for each candidate, after the candidate's name if there are several candidates."""
    for each in result.candidates:
        if len(result.candidates) > 1:
            click.echo(f"# {printable(each.model.name)}")
        print_llama_cpp(each.comparison)
