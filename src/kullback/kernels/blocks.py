"""Blocks of rows, so that temporaries stay small for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Elements in a block. On the CPU, float64 temporaries of 1 MiB fit in the second-level cache of a core. On a GPU, a
# block must be large enough to occupy all processors: 128 MiB of float64.
_ELEMENTS_ON_CPU, _ELEMENTS = 1 << 17, 1 << 24


def row_blocks(rows: Tensor) -> Iterator[slice]:
    """Split rows into blocks of at least one row; under torch.compile, which fuses operations, into one block."""
    if torch.compiler.is_compiling():
        return iter((slice(None),))
    n, classes = rows.shape
    elements = _ELEMENTS_ON_CPU if rows.is_cpu else _ELEMENTS
    step = max(1, elements // max(classes, 1))
    return (slice(start, start + step) for start in range(0, max(n, 1), step))
