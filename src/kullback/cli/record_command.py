"""The command ``kullback record``: a model's predictions over a text as a reference file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kullback.cli.model_options import model_options
from kullback.cli.outputs import check_files
from kullback.cli.shared_options import FILE, NO_PROGRESS, SEED, complete_files
from kullback.common.progress import progress_bar


@click.command()
@click.argument("model", metavar="MODEL", shell_complete=complete_files)
@click.option(
    "--text",
    type=FILE,
    required=True,
    help="The text that the model reads, or JSONL with text, messages, or prompt and completion.",
)
@click.option(
    "-o", "--output", "output", type=FILE, required=True, metavar="FILE.klref", help="The file to write."
)
@click.option(
    "--top", type=click.IntRange(1), default=64, show_default=True, help="The most probable tokens to keep."
)
@click.option(
    "--tail-draws",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    help="How many of the others to draw.",
)
@model_options
@SEED
@NO_PROGRESS
def record(
    model: str,
    *,
    text: Path,
    output: Path,
    windows: int | None,
    no_progress: bool,
    **settings: Any,
) -> None:
    """Write a model's predictions over a text as a reference file, in 0.8 kB a token.

    \b
    kullback record llama-8b --text wiki.txt -o llama-8b.klref
    kullback compare llama-8b.klref q4.gguf

    MODEL is a folder of a Hugging Face model or a .gguf file. For each scored token, the file has the most probable
    tokens, the mass of all others, and random draws from the others. With it, you can compare another model with this
    one without having this one.
    """
    from kullback.models import record_reference

    check_files([("--text", text)], [output], [model])
    with progress_bar("tokens", show=not no_progress, patience=0) as progress:
        notes = record_reference(model, text, output, most_windows=windows, progress=progress, **settings)
    for note in notes:
        click.echo(note)
