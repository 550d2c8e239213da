"""The command ``kullback convert``, which writes a base file of llama.cpp, or a reference file from top classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.option import FILE, Option, invalid_option
from kullback.cli.option_command import command
from kullback.cli.options import NO_PROGRESS
from kullback.cli.outputs import check_files
from kullback.cli.settings import Settings, in_options
from kullback.cli.streams import print_error
from kullback.common.constraints import FLAG
from kullback.common.progress import progress_bar
from kullback.common.shared_constraints import CLASSES, FLOOR, REPRESENTATION, WINDOW_OF_LLAMA
from kullback.errors import LONGEST_NAME, printable

if TYPE_CHECKING:
    from torch import Tensor

    from kullback.io import RowSource

BLOCK_BYTES = 16 * 1024 * 1024
# The extensions of formats that convert does not write.
OTHER_FORMATS = (
    ".npy", ".npz", ".pt", ".pth", ".safetensors", ".parquet", ".csv", ".json", ".jsonl", ".ndjson", ".gguf", ".txt",
)  # fmt: skip


OPTIONS = (
    Option("--as", "The type of the numbers in SRC.", accepts=REPRESENTATION),
    Option("--key", "The array to read, if SRC has several."),
    Option(
        "--tokens", "A file with the tokens of all windows, one after the other.", accepts=FILE, into="tokens"
    ),
    Option("--tokens-key", "The name of the tokens in their file."),
    Option("--n-ctx", "The number of tokens in a window.", accepts=WINDOW_OF_LLAMA, into="n_ctx"),
    Option(
        "--all-positions",
        "SRC has a row for every token. Keep the rows that llama.cpp scores: the second half of each window.",
        accepts=FLAG,
    ),
    Option(
        "--floor",
        "Range of log-probabilities to keep, in nats below a row's largest: 16 for llama.cpp, 24 for ik_llama.cpp.",
        accepts=FLOOR,
        default=16.0,
    ),
    Option("--classes", "For a .klref: the number of all classes, if SRC does not say.", accepts=CLASSES),
    NO_PROGRESS,
)
# The options for a target that ends in .kld only. One option is for .klref only, and all other options are for both.
OF_BASE_FILES = ("--as", "--tokens", "--tokens-key", "--n-ctx", "--all-positions", "--floor")


@command(
    click.Argument(["source"], metavar="SRC", type=FILE),
    click.Argument(["target"], metavar="DST", type=FILE),
    options=OPTIONS,
)
def convert(source: Path, target: Path, settings: Settings) -> None:
    """Convert the predictions in SRC to another file format.

    If DST ends in .kld, it becomes a base file for llama-perplexity --kl-divergence, which compares a GGUF model with
    it. SRC has rows of predictions; --tokens and --n-ctx give their tokens.

    If DST ends in .klref, it becomes a reference file for kullback compare. SRC has the top classes that a server
    returned or a distillation tool stored (vLLM, SGLang, OpenAI, llama-server and others).

    With another ending, or none, DST is a base file too. The endings of other formats, such as .npy, .csv and .gguf,
    are refused.

    \b
    kullback convert logits.npy base.kld --as logits \\
        --tokens tokens.npy --n-ctx 512 --all-positions
    kullback convert served.jsonl base.klref --classes 128256
    """
    tokens, n_ctx = settings["--tokens"], settings["--n-ctx"]
    all_positions = bool(settings["--all-positions"])
    check_files([("SRC", source), ("--tokens", tokens)], [target])
    suffix = target.suffix.lower()
    if suffix == ".klref":
        _refuse_options(settings, OF_BASE_FILES, ".kld")
        _write_reference(source, target, settings)
        return
    if suffix in OTHER_FORMATS:
        raise click.UsageError(
            f"DST = {printable(target, LONGEST_NAME)}: wanted a file that ends in .kld, a base file of llama.cpp, or "
            f"in .klref, a reference file; got {suffix}, another format. Write: "
            f"{printable(target.with_suffix('.kld'), LONGEST_NAME)}"
        )
    _refuse_options(settings, ("--classes",), ".klref")
    if tokens is None or n_ctx is None:
        raise click.UsageError(
            "wanted --tokens FILE and --n-ctx N, which a base file of llama.cpp needs, or a target that ends in .klref"
        )
    from kullback.io import open_rows, read_labels, write_llama_base

    with (
        open_rows(source, representation=settings["--as"], key=settings["--key"], name="SRC") as rows,
        progress_bar("rows", show=not settings["--no-progress"], patience=0) as progress,
    ):
        token_ids = read_labels(
            tokens, key=settings["--tokens-key"], classes=rows.classes, name="tokens", key_name="tokens_key"
        )
        if len(token_ids) % n_ctx:
            raise invalid_option(
                "--tokens",
                wanted=f"whole windows of --n-ctx {n_ctx}",
                got=f"{len(token_ids)} tokens",
                instead="--n-ctx N with an N that divides their number",
            )
        expected = len(token_ids) if all_positions else None
        if expected is not None and rows.rows not in (None, expected):
            raise invalid_option(
                "--all-positions",
                wanted=f"a row for each of {expected} tokens",
                got=f"{rows.rows} rows",
                instead="the command without it if SRC has only the rows that llama.cpp scores",
            )
        blocks = _log_weights(rows, n_ctx if all_positions else None, progress)
        may_hold_all = not all_positions and rows.rows in (None, len(token_ids))
        remedy = "--tokens FILE with the tokens of these rows, and their --n-ctx"
        if may_hold_all:
            remedy = "--all-positions if SRC has a row for every token"
        with in_options({"rows": "SRC", **settings.flags}, {"rows": remedy}):
            write_llama_base(target, token_ids, blocks, n_ctx=n_ctx, floor=settings["--floor"])


def _refuse_options(settings: Settings, flags: tuple[str, ...], extension: str) -> None:
    """Raise an error if one of these options was given. They apply only to `extension`."""
    for option, place in settings.places.items():
        if option.flag in flags:
            raise click.UsageError(f"{place} goes with a target that ends in {extension}; leave it out")


def _write_reference(source: Path, target: Path, settings: Settings) -> None:
    from kullback.io import open_top_k, write_top_k_reference

    with (
        open_top_k(source, key=settings["--key"], classes=settings["--classes"], name="SRC") as opened,
        progress_bar("rows", show=not settings["--no-progress"], patience=0) as progress,
    ):
        notes = write_top_k_reference(opened, target, progress=progress)
    for note in notes:
        print_error(note)


def _log_weights(
    source: RowSource, window: int | None, progress: Callable[[int, int | None], None] | None
) -> Iterator[Tensor]:
    """Yield the rows as log-weights.

    If `window` is given, the source has a row for every token, and only the rows that llama.cpp scores are yielded.
    """
    import torch

    done = 0
    for block in source.blocks(BLOCK_BYTES):
        logs = block.double().log() if source.representation in ("probs", "counts") else block
        if window is None:
            yield logs
        else:
            position = torch.arange(done, done + len(block), device="cpu") % window
            scored = logs[(position >= window // 2) & (position < window - 1)]
            if len(scored):
                yield scored
        done += len(block)
        if progress is not None:
            progress(done, source.rows)
