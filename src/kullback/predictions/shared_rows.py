"""Which blocks of rows a worker of several measures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from kullback.io import RowSource
from kullback.parallel.workers import Workers

# Formats that can read a block without the blocks before it. Of others each worker reads all rows: text and compressed
# arrays are decoded from the beginning, and statements about the whole file, such as its stored mass, need all of it.
DIRECT = {"npy", "safetensors", "pt", "parquet", "tensor", "frame"}


def shared_blocks(
    workers: Workers,
    sides: tuple[RowSource, RowSource],
    blocks: Iterable[tuple[int, Tensor, Tensor]],
    rows: int,
    first: int,
) -> Iterator[tuple[int, Tensor, Tensor] | None]:
    """Iterate over rounds; in each round every worker measures one block, in rank order.

    Arguments:
        workers: the workers.
        sides: both files.
        blocks: all blocks of both in step.
        rows: in a block.
        first: the row to begin with.

    Returns:
        for each round the block of this worker, None if there is none left for it.
    """
    count = sides[0].rows
    if count is None or any(side.format not in DIRECT for side in sides):
        return _in_turn(workers, _from_row(first, blocks))
    return _direct(workers, sides, range(first, count), rows)


def _direct(
    workers: Workers, sides: tuple[RowSource, RowSource], span: range, rows: int
) -> Iterator[tuple[int, Tensor, Tensor] | None]:
    for first in span[:: rows * workers.size]:
        start = first + rows * workers.rank
        stop = min(start + rows, span.stop)
        yield (start, sides[0].read(start, stop), sides[1].read(start, stop)) if start < stop else None


def _from_row(
    first: int, blocks: Iterable[tuple[int, Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor]]:
    for start, p, q in blocks:
        skip = max(0, first - start)
        if skip < len(p):
            yield start + skip, p[skip:], q[skip:]


def _in_turn(
    workers: Workers, blocks: Iterable[tuple[int, Tensor, Tensor]]
) -> Iterator[tuple[int, Tensor, Tensor] | None]:
    remaining = iter(blocks)
    while True:
        own = None
        for rank in range(workers.size):
            block = next(remaining, None)
            if block is None:
                if rank:
                    yield own
                return
            if rank == workers.rank:
                own = block
        yield own
