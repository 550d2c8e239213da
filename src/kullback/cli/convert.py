"""The command ``kullback convert``: predictions as a base file of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kullback.cli.options import FILE, NO_PROGRESS, REPRESENTATIONS, FiniteRange
from kullback.errors import ArgumentValueError
from kullback.files import check_input, check_writable, refuse_overwriting
from kullback.progress import progress_bar

if TYPE_CHECKING:
    from torch import Tensor

    from kullback.io import RowSource
    from kullback.words import RepresentationName

__all__ = ["convert"]

BLOCK_BYTES = 16 * 1024 * 1024


@click.command()
@click.argument("source", metavar="SRC", type=FILE)
@click.argument("target", metavar="DST.kld", type=FILE)
@click.option("--as", "representation", type=REPRESENTATIONS, help="What the numbers in SRC are.")
@click.option("--key", help="The array to read where SRC holds several.")
@click.option(
    "--tokens", required=True, type=FILE, help="A file with the tokens of all windows, one after the other."
)
@click.option("--tokens-key", help="The name of the tokens in their file.")
@click.option("--n-ctx", required=True, type=click.IntRange(3), help="The number of tokens in a window.")
@click.option(
    "--all-positions",
    is_flag=True,
    help="SRC has a row for every token; keep those that llama.cpp scores, the second half of each window.",
)
@click.option(
    "--floor",
    type=FiniteRange(0, min_open=True),
    default=16.0,
    show_default=True,
    help="Nats below a row's largest that are kept: 16 for llama.cpp, 24 for ik_llama.cpp.",
)
@NO_PROGRESS
def convert(
    source: Path,
    target: Path,
    *,
    representation: RepresentationName | None,
    key: str | None,
    tokens: Path,
    tokens_key: str | None,
    n_ctx: int,
    all_positions: bool,
    floor: float,
    no_progress: bool,
) -> None:
    """Write the predictions in SRC as a base file for llama-perplexity --kl-divergence, so that a GGUF model can be
    compared with them.

    \b
    kullback convert logits.npy base.kld --as logits \\
        --tokens tokens.npy --n-ctx 512 --all-positions
    """
    from kullback.io import open_rows, read_labels, write_llama_base

    for path, name in ((source, "SRC"), (tokens, "--tokens")):
        check_input(path, name)
    refuse_overwriting([target], [source, tokens])
    check_writable(target)
    with (
        open_rows(source, representation=representation, key=key, name="SRC") as rows,
        progress_bar("rows", show=not no_progress, patience=0) as progress,
    ):
        held = read_labels(tokens, key=tokens_key, classes=rows.classes, name="tokens")
        expected = len(held) if all_positions else None
        if expected is not None and rows.rows not in (None, expected):
            raise ArgumentValueError(
                f"--all-positions: wanted a row for each of {expected} tokens; got {rows.rows} rows. "
                "Write: the command without it if the rows are those that llama.cpp scores"
            )
        blocks = _log_weights(rows, n_ctx if all_positions else None, progress)
        write_llama_base(target, held, blocks, n_ctx=n_ctx, floor=floor)


def _log_weights(
    source: RowSource, window: int | None, progress: Callable[[int, int | None], None] | None
) -> Iterator[Tensor]:
    """Yield the rows as log-weights; of windows given whole, the scored positions."""
    import torch

    done = 0
    for block in source.blocks(BLOCK_BYTES):
        logs = block.double().log() if source.representation in ("probs", "counts") else block
        if window is None:
            yield logs
        else:
            position = torch.arange(done, done + len(block)) % window
            scored = logs[(position >= window // 2) & (position < window - 1)]
            if len(scored):
                yield scored
        done += len(block)
        if progress is not None:
            progress(done, source.rows)
