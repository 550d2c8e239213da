"""The command ``kullback record``: a model's predictions over a text as a reference file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kullback.cli.options import FILE, MODEL_OPTIONS, NO_PROGRESS, SEED, complete_files
from kullback.cli.outputs import check_files
from kullback.common.progress import progress_bar


@click.command(
    params=[
        click.Argument(["model"], metavar="MODEL", shell_complete=complete_files),
        click.Option(
            ["--text"],
            type=FILE,
            required=True,
            help="The text that the model reads, or JSONL with text, messages, or prompt and completion.",
        ),
        click.Option(
            ["-o", "--output"], type=FILE, required=True, metavar="FILE.klref", help="The file to write."
        ),
        click.Option(
            ["--top"],
            type=click.IntRange(1),
            default=64,
            show_default=True,
            help="The most probable tokens to keep.",
        ),
        click.Option(
            ["--tail-draws"],
            type=click.IntRange(0),
            default=32,
            show_default=True,
            help="How many of the others to draw.",
        ),
        *MODEL_OPTIONS,
        SEED,
        NO_PROGRESS,
    ]
)
def record(
    model: str,
    *,
    text: Path,
    output: Path,
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
    from kullback.common.constraints import taken
    from kullback.models import Cut, Loading, record_reference

    check_files([("--text", text)], [output], [model])
    with progress_bar("tokens", show=not no_progress, patience=0) as progress:
        cut, loading = taken(Cut, settings), taken(Loading, settings)
        notes = record_reference(model, text, output, cut=cut, loading=loading, progress=progress, **settings)
    for note in notes:
        click.echo(note)
