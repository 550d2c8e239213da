"""The command ``kullback record``, which writes a model's predictions over a text to a reference file."""

from __future__ import annotations

from dataclasses import replace

import click

from kullback.cli.option import FILE, Option, complete_files
from kullback.cli.option_command import command
from kullback.cli.options import CONFIG, MODEL_OPTIONS, NO_PROGRESS, SEED
from kullback.cli.outputs import check_files
from kullback.cli.settings import Settings, in_options
from kullback.common.progress import progress_bar
from kullback.common.shared_constraints import STORED_TOP, TAIL_DRAWS
from kullback.common.words import is_hidden_states
from kullback.errors import ArgumentValueError, printable

OPTIONS = (
    Option(
        "--text",
        "The text that the model reads, or JSONL with text, messages, or prompt and completion.",
        accepts=FILE,
    ),
    Option("--output", "The file to write.", accepts=FILE, short="-o", metavar="FILE.klref", required=True),
    Option("--top", "The most probable tokens to keep.", accepts=STORED_TOP, into="top", default=64),
    Option(
        "--tail-draws", "How many of the others to draw.", accepts=TAIL_DRAWS, into="tail_draws", default=32
    ),
    *MODEL_OPTIONS,
    replace(SEED, into="seed", convert=None),
    NO_PROGRESS,
    CONFIG,
)


@command(
    click.Argument(["model"], metavar="MODEL", shell_complete=complete_files),
    options=OPTIONS,
)
def record(model: str, settings: Settings) -> None:
    """Write a model's predictions over a text as a reference file, in 0.8 kB a token.

    \b
    kullback record llama-8b --text wiki.txt -o llama-8b.klref
    kullback compare llama-8b.klref q4.gguf

    MODEL is a folder of a Hugging Face model, a .gguf file, or with --head, a folder of hidden states. For each scored
    token, the file has the most probable tokens, the total probability of all other tokens, and random draws from
    these. With this file, you can compare another model with MODEL even where MODEL is not available.
    """
    from kullback.common.constraints import taken
    from kullback.common.formats import byte_count, counted
    from kullback.models import Cut, Loading, record_reference
    from kullback.models.hidden_states import require_states, with_heads

    text, output = settings["--text"], settings["--output"]
    require_states([model], settings["--head"])
    if (text is None) != is_hidden_states(model):
        raise ArgumentValueError.at(
            f"MODEL = {printable(model)}",
            "--text",
            wanted="a text, which the model reads"
            if text is None
            else "no text, as the hidden states have their own",
            got="none" if text is None else printable(text),
            instead="--text FILE" if text is None else "leave --text out",
        )
    check_files(
        [("--text", text), ("--config", settings["--config"])], [output], [model, *settings["--head"]]
    )
    arguments = settings.arguments()
    written = 0
    with (
        progress_bar("tokens", show=not settings["--no-progress"], patience=0) as update,
        in_options(settings.flags | {"model": "MODEL", "texts": "--text", "path": "--output"}),
    ):
        cut, loading = taken(Cut, arguments), taken(Loading, arguments)
        [opened] = with_heads([model], settings["--head"], cut=cut, loading=loading)

        def progress(done: int, total: int | None) -> None:
            nonlocal written
            written = done
            if update:
                update(done, total)

        notes = record_reference(
            opened, text, output, cut=cut, loading=loading, progress=progress, **arguments
        )
    size = byte_count(output.stat().st_size)
    click.echo(f"{printable(output)}: the predictions of {counted(written, 'token')}, {size}")
    for note in notes:
        click.echo(note)
