"""Per-position class distributions in files, read as a stream of row blocks.

A file of predictions holds one distribution over V classes for each of N positions. `open_rows` opens one
without loading it; its `RowSource` then yields 2-D blocks of rows, so that a file of any size is read in a
fixed amount of memory:

    with open_rows("teacher.npy", kind="logits") as p, open_rows("student.npy", kind="logits", name="q") as q:
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

Public names:

* `open_rows(path, *, kind=None, key=None, name="p")` -> `RowSource` with ``rows``, ``classes``, ``dtype``, ``shape``,
  ``kind``, ``key``, ``path``, ``format``, ``labels``, ``stored_mass``, ``caveats()``, ``blocks()``,
  ``read(start, stop)``.
* `paired_blocks(p, q, *, max_bytes=..., rows=None)` -> ``(start, p_block, q_block)`` in lock step.
* `read_labels(path, *, key=None, rows=None, classes=None, name="labels")` -> true classes, int64, -100 where ignored.
* `read_clusters(path, *, key=None, rows=None, name="cluster")` -> cluster numbers 0 ... K-1, int64.
* `write_llama_base(path, tokens, rows, *, n_ctx, floor=16.0)` and `LlamaBaseFile`: llama.cpp's own format.

Every problem with a file is one `kullback.errors.FileError`, in one line: the file, what was wanted, what
came, what to do.
"""

from __future__ import annotations

from kullback.io.checks import KINDS, Kind
from kullback.io.formats import open_rows
from kullback.io.llamacpp import LlamaBaseFile, write_llama_base
from kullback.io.rows import RowSource, paired_blocks
from kullback.io.store import StoredMass
from kullback.io.vectors import read_clusters, read_labels

__all__ = [
    "KINDS",
    "Kind",
    "LlamaBaseFile",
    "RowSource",
    "StoredMass",
    "open_rows",
    "paired_blocks",
    "read_clusters",
    "read_labels",
    "write_llama_base",
]
