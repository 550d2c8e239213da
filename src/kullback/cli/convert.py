"""The command ``kullback convert``: predictions as a base file of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from kullback.errors import ArgumentValueError
from kullback.io import Kind, RowSource, open_rows, read_labels, write_llama_base
from kullback.progress import progress_bar
from kullback.report import check_writable

__all__ = ["run_conversion"]

BLOCK_BYTES = 16 * 1024 * 1024


def run_conversion(
    source: Path,
    target: Path,
    *,
    kind: Kind | None,
    key: str | None,
    tokens: Path,
    tokens_key: str | None,
    n_ctx: int,
    all_positions: bool,
    floor: float,
    show_progress: bool,
) -> None:
    """Write the predictions in `source` as the llama.cpp base file `target`.

    Arguments:
        source: the file of predictions.
        target: the file to write.
        kind: what the numbers in `source` are.
        key: the array in `source`.
        tokens: a file with the tokens of all windows.
        tokens_key: the tokens' name in it.
        n_ctx: the number of tokens in a window.
        all_positions: whether `source` has a row for every token, of which the scored ones are kept.
        floor: how many nats below a row's largest are kept.
        show_progress: whether to show a progress bar, if there is a terminal.

    Raises:
        KullbackError: a file cannot be used, or the tokens do not fit the rows; then nothing is written.
    """
    if target.resolve() in (source.resolve(), tokens.resolve()):
        raise ArgumentValueError(f"cannot write {target}: it is one of the files to read; name another one")
    check_writable(target)
    with (
        open_rows(source, kind=kind, key=key, name="SRC") as rows,
        progress_bar("rows", show=show_progress, patience=0) as progress,
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
    done = 0
    for block in source.blocks(BLOCK_BYTES):
        logs = block.double().log() if source.kind in ("probs", "counts") else block
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
