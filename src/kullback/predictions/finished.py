"""The finished blocks of a comparison of predictions as records of a `Checkpoint`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kullback.io import RowSource
from kullback.parallel.workers import Workers
from kullback.predictions.checkpoint import (
    Checkpoint,
    decoded_rows,
    encoded_rows,
    file_stamp,
    fingerprint,
    tensor_bytes,
)
from kullback.predictions.collect import Collector
from kullback.predictions.result import WorstRow

__all__ = ["add_finished", "encoded_block", "identity"]

Rows = tuple[Tensor, list[WorstRow]]


def identity(sides: Sequence[RowSource], labels: Tensor | None, worst: int, llama_cpp: str | None) -> str:
    """Return the fingerprint of what the measured rows of a comparison depend on.

    Clusters, draws of the bootstrap and the size of blocks are not among it: rows are measured without them.
    """
    held = [[side.format, side.key, side.shape, side.representation, _content(side)] for side in sides]
    return fingerprint(sides=held, labels=labels, options=[worst, llama_cpp])


def _content(side: RowSource) -> Any:
    """Return what tells the content of a file from another; of a tensor in memory, a digest of all."""
    if side.format != "tensor":
        return file_stamp(side.path)
    digest = hashlib.sha256(str(side.dtype).encode())
    for block in side.blocks():
        digest.update(tensor_bytes(block))
    return digest.hexdigest()


def encoded_block(parts: Iterable[Rows]) -> dict[str, Any]:
    """Return the measured parts of a block as what JSON holds."""
    tables, worst = zip(*parts, strict=True)
    return encoded_rows(torch.cat(tables), [row for rows in worst for row in rows])


def add_finished(
    workers: Workers,
    checkpoint: Checkpoint | None,
    collector: Collector,
    part: int,
    classes: int,
    most_rows: int,
) -> int:
    """Add the rows of the records that one worker's checkpoint holds to the collectors of all.

    Arguments:
        workers: the workers.
        checkpoint: that of the first; the others have none.
        collector: takes the rows.
        part: the rows that are measured together: a record has whole ones.
        classes: the number of classes.
        most_rows: the most rows in a record.

    Returns:
        how many rows there are.
    """
    first = 0

    def decode(held: Any) -> Rows:
        table, worst = decoded_rows(held, first)
        stop = first + len(table)
        if (
            len(table) > max(part, most_rows)
            or first % part  # after the last rows, which may be fewer
            or stop > (collector.rows or stop)
            or (stop % part and stop != (collector.rows or stop))
            or not collector.is_possible(table)
            or any(each.index >= classes for row in worst for each in row.top)
        ):
            raise ValueError
        return table, worst

    records = iter(() if checkpoint is None else checkpoint.records(decode, max(part, most_rows)))
    while True:
        (found, *_) = workers.gather(lambda: next(records, None))
        if found is None:
            return first
        table, worst = found
        first += len(table)
        collector.require_values_up_to(first)
        collector.add(table, worst)
