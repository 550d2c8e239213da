"""Sums of consecutive rows, used to measure dependence and to form blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.common.arrays import Floats
from kullback.common.serial_dependence import (
    FEWEST_BLOCKS,
    SerialDependence,
    block_labels,
    number_scores,
    serial_dependence,
)

# The order of the first `_FIRST_ROWS` rows is examined row by row. If there are more rows, the order of at most
# `_MOST_PARTS` sums of consecutive rows is examined too.
_FIRST_ROWS, _MOST_PARTS = 1 << 16, 1 << 13
_LARGEST = 1e300


class RowBlocks:
    """The sums of consecutive rows, in parts whose length doubles when there are too many parts.

    The last column counts rows. The order of rows is examined for dependence in the columns `examined`.
    """

    def __init__(self, columns: int, examined: Sequence[int]) -> None:
        self._examined = list(examined)
        self._sums = torch.zeros(_MOST_PARTS, columns, dtype=torch.float64, device="cpu")
        self._rows, self._length = 0, 1
        self._first: list[Floats] = []

    def add(self, table: Tensor) -> None:
        """Add the next rows, shape (rows, columns)."""
        room = _FIRST_ROWS - self._rows
        if room > 0:
            self._first.append(table[:room, self._examined].numpy().copy())
        parts = torch.arange(self._rows, self._rows + len(table), device="cpu")
        self._rows += len(table)
        while self._rows > self._length * _MOST_PARTS:
            halves = self._sums.view(-1, 2, self._sums.shape[1]).sum(1)
            self._sums = torch.cat([halves, torch.zeros_like(halves)])
            self._length *= 2
        self._sums.index_add_(0, parts // self._length, table)

    def combine(self, weights: Mapping[int, float]) -> None:
        """Insert the weighted sum of some columns before the last column."""
        self._sums = with_combined(self._sums, weights)

    def dependence(self) -> SerialDependence | None:
        """Return the serial dependence of the first rows and of the means of all parts; None if there is no dependence.

        The labels of the result are the numbers of the blocks that the parts belong to.
        """
        if not self._first or not self._examined:
            return None
        near = serial_dependence(number_scores(finite(np.concatenate(self._first))))
        far = None
        if self._rows > _FIRST_ROWS:
            whole = self._sums[: self._rows // self._length].numpy()
            far = serial_dependence(number_scores(finite(whole[:, self._examined] / self._length)))
        if near is None and far is None:
            return None
        time = (1.0 if near is None else near.time) * (1.0 if far is None else far.time)
        kind = "blocks" if near is None or (near.kind == "pattern" and far is not None) else near.kind
        lengths = [0 if near is None else near.length, 0 if far is None else far.length * self._length]
        dependence = SerialDependence(kind, self._rows, time, max(lengths), None)
        parts = math.ceil(self._rows / self._length)
        blocks = parts // math.ceil(dependence.length / self._length)
        if kind != "blocks" or blocks < FEWEST_BLOCKS:
            return dependence
        return replace(dependence, labels=block_labels(parts, blocks))

    def sums(self, dependence: SerialDependence) -> Floats:
        """Return the sums of the blocks, shape (blocks, columns), as `sums_of_blocks` does."""
        return sums_of_blocks(self._sums[: math.ceil(self._rows / self._length)].numpy(), dependence)


def with_combined(sums: Tensor, weights: Mapping[int, float]) -> Tensor:
    """Return sums with the weighted sum of some columns inserted before the last column."""
    *columns, rows = sums.unbind(-1)
    combined = torch.stack([weight * columns[place] for place, weight in weights.items()]).sum(0)
    return torch.stack([*columns, combined, rows], -1)


def sums_of_blocks(parts: Floats, dependence: SerialDependence) -> Floats:
    """Return the sums of the parts in each block, shape (blocks, columns).

    If too few blocks are independent, the number of blocks is too small for intervals.
    """
    labels = block_labels(len(parts), FEWEST_BLOCKS - 1) if dependence.labels is None else dependence.labels
    sums = np.zeros((int(labels.max()) + 1, parts.shape[1]))
    np.add.at(sums, labels, parts)
    return sums


def finite(x: Any) -> Floats:
    """Return numbers with infinities replaced by the largest magnitude `_LARGEST`, and NaN replaced by 0."""
    return np.nan_to_num(x, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
