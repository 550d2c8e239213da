"""Distributions over classes in files, one for each position, which are read as a stream of blocks of rows.

A file of predictions holds one distribution over V classes for each of N positions. `open_rows` opens such a file
without loading it. The resulting `RowSource` yields 2-D blocks of rows, so that a file of any size is read in a fixed
amount of memory:

    with (
        open_rows("teacher.npy", representation="logits") as p,
        open_rows("student.npy", representation="logits", name="q") as q,
    ):
        for start, p_rows, q_rows in paired_blocks(p, q):
            ...                                        # (rows, V) tensors; rows start, start + 1, ...

| format | extension | holds | random access |
|---|---|---|---|
| NumPy | ``.npy``, ``.npz`` (compressed or not) | floats, or integers for counts | yes (``.npz``: in order) |
| safetensors | ``.safetensors`` | the same, and bfloat16 | yes |
| PyTorch | ``.pt``, ``.pth`` (tensors only, no code) | the same, and bfloat16 | yes |
| Parquet | ``.parquet`` | one column per class, or one column of lists (``key=``) | yes, by row group |
| text | ``.csv`` | one column per class | by reading from the start |
| llama.cpp | any; ``--kl-divergence-base`` | quantized log-probabilities, and the tokens | yes |

Columns are classes. If both files name their classes, the classes are paired by name (`RowSource.in_order_of`).

For each position, a reference file (``.klref``: `ReferenceWriter`, `Reference`) keeps the top classes, the mass of the
other classes, and draws from the other classes.

An unreadable file raises a `kullback.errors.FileError`. Its message names the file, the expected content, the actual
content and the remedy in one line.
"""

from __future__ import annotations

from kullback.io.llama_cpp_base import write_llama_base
from kullback.io.reference_file import Reference
from kullback.io.reference_writer import ReferenceWriter
from kullback.io.row_sources import RowSource, open_rows, paired_blocks
from kullback.io.row_stream import RowStream
from kullback.io.tokens import read_tokens
from kullback.io.top_k import (
    TOP_K_FORMATS,
    ArrayFormat,
    RecordFormat,
    RecordPlace,
    TopKSequence,
    TopKSource,
    open_top_k,
    paired_top_k_blocks,
    scored_text,
)
from kullback.io.top_k_reference import write_top_k_reference
from kullback.io.vectors import read_clusters, read_labels
from kullback.io.windows import Windows
from kullback.partial_rows import PartialRows

__all__ = [
    "TOP_K_FORMATS",
    "ArrayFormat",
    "PartialRows",
    "RecordFormat",
    "RecordPlace",
    "Reference",
    "ReferenceWriter",
    "RowSource",
    "RowStream",
    "TopKSequence",
    "TopKSource",
    "Windows",
    "open_rows",
    "open_top_k",
    "paired_blocks",
    "paired_top_k_blocks",
    "read_clusters",
    "read_labels",
    "read_tokens",
    "scored_text",
    "write_llama_base",
    "write_top_k_reference",
]
