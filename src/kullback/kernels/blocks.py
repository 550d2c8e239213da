"""Blocks of rows, so that temporaries stay small for any number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# Elements in a block. On the CPU its temporaries fit in a core's cache. GPUs need larger blocks.
_ELEMENTS_ON_CPU, _ELEMENTS = 1 << 17, 1 << 24


def row_blocks(rows: Tensor, elements: int | None = None) -> Iterator[slice]:
    """Split rows into blocks of about `elements` elements, at least one; under torch.compile, which fuses, only one."""
    if torch.compiler.is_compiling():
        return iter((slice(None),))
    n, classes = rows.shape
    elements = elements or (_ELEMENTS_ON_CPU if rows.is_cpu else _ELEMENTS)
    step = max(1, elements // max(classes, 1))
    return (slice(start, start + step) for start in range(0, max(n, 1), step))
