"""Blocks of rows: cut and joined, and the blocks of two sources side by side."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Rows(Protocol):
    """Rows that a slice or a mask selects from: a tensor, or `PartialRows`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


_Rows = TypeVar("_Rows", bound=Rows)
_P = TypeVar("_P", bound=Rows)
_Q = TypeVar("_Q", bound=Rows)


def join_tensors(blocks: list[Tensor]) -> Tensor:
    """Join blocks; a single one is returned as it is."""
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def rows_from(blocks: Iterable[_Rows], first: int) -> Iterator[_Rows]:
    """Iterate over blocks from row `first` on."""
    for block in blocks:
        skipped = min(first, len(block))
        first -= skipped
        if skipped < len(block):
            yield block[skipped:] if skipped else block


def regroup(blocks: Iterable[_Rows], rows: int, join: Callable[[list[_Rows]], _Rows]) -> Iterator[_Rows]:
    """Regroup blocks of any length into blocks of exactly `rows`; the last may be shorter."""
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
    p: Iterator[_P], q: Iterator[_Q], differ: Callable[[int, int], Exception]
) -> Iterator[tuple[int, _P, _Q]]:
    """Iterate over the same rows of two sources.

    Arguments:
        p: the blocks of the first source.
        q: the blocks of the second, of the same lengths.
        differ: returns the error for sources with other numbers of rows than each other's.

    Returns:
        An iterator over the number of the first row and two blocks.
    """
    start = 0
    while True:
        blocks = next(p, None), next(q, None)
        a, b = blocks
        if a is None and b is None:
            return
        if a is None or b is None or len(a) != len(b):
            counts = [
                start + sum(map(len, chain([] if block is None else [block], others)))
                for block, others in zip(blocks, (p, q), strict=True)
            ]
            raise differ(*counts)
        yield start, a, b
        start += len(a)
