"""The part of the command ``kullback compare`` that compares language models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.gates import Compared, Gate
from kullback.cli.outputs import check_outputs, write_reports
from kullback.cli.prediction_comparison import print_llama_cpp, prints_as_llama_cpp
from kullback.cli.settings import Settings, in_options
from kullback.common.constraints import taken
from kullback.common.progress import progress_bar
from kullback.common.words import CARD_REFERENCE, is_hidden_states
from kullback.errors import ArgumentValueError, printable
from kullback.models import Cut, Loading, ModelComparison, Run, compare_models, is_reference
from kullback.models.hidden_states import require_states, with_heads
from kullback.predictions.checkpoint import KeptState
from kullback.report import card
from kullback.results.verdict import Verdict

if TYPE_CHECKING:
    from rich.console import Console


def run_model_comparison(
    base: str, candidates: Sequence[str], settings: Settings, gates: Sequence[Gate]
) -> Sequence[Verdict]:
    """Compare models on a text, write the reports, and return the verdicts of the gates."""
    text, resume = settings["--text"], settings["--resume"]
    names = (base, *candidates)
    require_states(names, settings["--head"])
    if text is None and not any(is_reference(name) or is_hidden_states(name) for name in names):
        raise ArgumentValueError.at(
            f"P = {printable(base)}",
            "--text",
            wanted="models are compared on a text",
            got="none",
            instead="--text FILE",
            wording="{wanted}; got {got}. Write: {instead}",
        )
    files = [Path(name) for name in names if os.path.exists(name)]  # noqa: PTH110 - any text
    as_llama_cpp = prints_as_llama_cpp(settings)
    arguments = settings.arguments("models")
    folder = settings["--card"]
    made_folder = nullcontext() if folder is None else card.made_folder(folder)
    with made_folder, nullcontext() if resume is None else KeptState(resume) as state:
        parts = [] if folder is None else [folder / name for name in card.FILES]
        check_outputs(settings, [*files, *settings["--head"], text], parts, state=resume)
        with (
            progress_bar("tokens", show=not settings["--no-progress"], patience=0) as progress,
            in_options(
                settings.flags
                | {
                    "base": "P, Q",
                    "texts": "--text",
                    "record": "--card",
                    "llama_cpp": "--format",
                    "resume": "--resume",
                },
                {
                    "base": "--as without --text, where P and Q are files of predictions",
                    "texts": "--text FILE",
                },
            ),
        ):
            cut, loading = taken(Cut, arguments), taken(Loading, arguments)
            first, *others = with_heads(names, settings["--head"], cut=cut, loading=loading)
            result = compare_models(
                first,
                others,
                text,
                cut=cut,
                loading=loading,
                run=replace(taken(Run, arguments), resume=state, progress=progress),
                record=None if folder is None else folder / CARD_REFERENCE,
                **arguments,
            )
        noise = result.noise_floor
        floor = 0.0 if noise is None else noise.comparison.divergences["kl_pq"].mean
        compared = [
            Compared(
                each.model.name,
                each.comparison,
                each.certain if each.is_lower_bound else None,
                floor,
                each.certain_in_groups,
            )
            for each in result.candidates
        ]
        verdicts = [gate.verdict(compared) for gate in gates]
        lines = partial(_print_llama_cpp, result) if as_llama_cpp else None
        of_card = {} if folder is None else card.contents(result, verdicts, folder, _gates(settings))
        return write_reports(result, verdicts, settings, table=lines, others=of_card)


def _gates(settings: Settings) -> list[str]:
    """Return the options of the gates, as words of a command."""
    flags = ("--fail-above", "--fail-below")
    return [word for flag in flags for limit in settings[flag] for word in (flag, limit)]


def _print_llama_cpp(result: ModelComparison, _: Console) -> None:
    """Print llama.cpp's lines for each candidate, after the candidate's name if there are several candidates."""
    for each in result.candidates:
        if len(result.candidates) > 1:
            click.echo(f"# {printable(each.model.name)}")
        print_llama_cpp(each.comparison)
