"""Functions that cut and join blocks of rows, and that iterate over the same rows of several streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from kullback.partial_rows import PartialRows

# Rows that a slice or a mask can select.
_Rows = TypeVar("_Rows", Tensor, PartialRows)


def join_tensors(blocks: list[Tensor]) -> Tensor:
    """Join blocks of rows; a single block is returned unchanged."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def rows_from(blocks: Iterable[_Rows], first: int) -> Iterator[_Rows]:
    """Iterate over blocks from row `first` on."""
    for block in blocks:
        skipped = min(first, len(block))
        first -= skipped
        if skipped < len(block):
            yield block[skipped:] if skipped else block


def regroup(blocks: Iterable[_Rows], rows: int, join: Callable[[list[_Rows]], _Rows]) -> Iterator[_Rows]:
    """Regroup blocks of any length into blocks of exactly `rows` rows; the last block may be shorter."""
    parts: list[_Rows] = []
    missing = rows
    for block in blocks:
        rest = block
        while len(rest) >= missing:
            yield join([*parts, rest[:missing]])
            rest, parts, missing = rest[missing:], [], rows
        if len(rest):
            parts.append(rest)
            missing -= len(rest)
    if parts:
        yield join(parts)


def in_step(
    streams: Sequence[Iterator[Any]],
    differ: Callable[[int, Callable[[], list[int]]], Exception],
    first: int = 0,
) -> Iterator[tuple[int, list[Any]]]:
    """Iterate over the same rows of several streams.

    Arguments:
        streams: an iterator over blocks of any length for each stream.
        differ: a function that returns the error if a stream ends before another stream. Its arguments are the index of
            the stream, and a function that reads all streams to the end and returns the number of rows of each stream.
        first: the number of the first row.

    Returns:
        an iterator over the number of the first row and a list of blocks with the same number of rows, one of each
        stream.
    """
    blocks: list[Any] = [None] * len(streams)
    while True:
        for place, stream in enumerate(streams):
            if blocks[place] is None:
                blocks[place] = next(stream, None)
        ended = [place for place, block in enumerate(blocks) if block is None]
        if ended:
            if len(ended) < len(blocks):
                raise differ(ended[0], partial(_counts, first, blocks, streams))
            return
        count = min(map(len, blocks))
        if count:
            yield first, [block if len(block) == count else block[:count] for block in blocks]
        first += count
        blocks = [block[count:] if len(block) > count else None for block in blocks]


def _counts(first: int, blocks: Sequence[Any], streams: Sequence[Iterator[Any]]) -> list[int]:
    """Return the number of rows of each stream, after `first` rows were returned; `blocks` are the current blocks."""
    return [
        first + sum(map(len, chain([] if block is None else [block], stream)))
        for block, stream in zip(blocks, streams, strict=True)
    ]
