"""Functions that split rows into blocks, so that temporary tensors stay small for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# The numbers of elements in a block, on the CPU and on other devices. On the CPU, the float64 temporaries of a block
# have 1 MiB, which fits in the second-level cache of a core. On a GPU, each temporary has 16 MiB. The block then
# occupies all processors, and a few temporaries fit in the second-level cache of an A100 or H100 (40 and 50 MB). Blocks
# of the CPU's size would be single rows of a large vocabulary, each with hundreds of launches.
_ELEMENTS_ON_CPU, _ELEMENTS = 1 << 17, 1 << 21


def row_blocks(rows: Tensor) -> Iterator[slice]:
    """Return slices for blocks of one row or more. While torch.compile, which fuses, traces: one slice."""
    if torch.compiler.is_compiling():
        return iter((slice(None),))
    n, classes = rows.shape
    step = max(1, elements_of_block(rows) // max(classes, 1))
    return (slice(start, start + step) for start in range(0, max(n, 1), step))


def elements_of_block(x: Tensor) -> int:
    """Return the number of elements of `x` in a block."""
    return _ELEMENTS_ON_CPU if x.is_cpu else _ELEMENTS
