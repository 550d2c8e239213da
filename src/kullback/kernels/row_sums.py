"""Sums of exponentials of rows of logits. If the classes are sharded, a rank sums its own classes."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.kernels.label_terms import subtractable
from kullback.kernels.row_operation import row_blocks
from kullback.kernels.triton import triton_sums


def log_sums(
    logits: Tensor, temperature: float, excluded: Tensor | None = None, labels: Tensor | None = None
) -> Tensor:
    """Return two numbers for each row, shape (rows, 2): the largest logit, -inf without classes, and the sum of
    e^((logit - largest) / temperature). Differences have more correct digits than logits, so they are divided.
    `excluded`, shape (rows, k), has classes that do not count; an index after the last class excludes none. With
    `labels`, shape (rows,), two more columns are the same numbers at temperature 1 without the label's class.
    """
    if triton_sums.serves(logits, temperature, 0 if excluded is None else excluded.shape[-1]):
        return triton_sums.log_sums(logits, temperature, excluded, labels)
    sums = _log_sums(logits, temperature, excluded)
    return sums if labels is None else torch.cat([sums, _log_sums(logits, 1.0, labels.unsqueeze(-1))], -1)


def _log_sums(logits: Tensor, temperature: float, excluded: Tensor | None) -> Tensor:
    rows, classes = logits.shape
    results = upcast(logits.new_empty(0)).new_zeros(rows, 2)
    if not classes:
        results[:, 0] = -torch.inf
        return results
    buffer = None  # one buffer, because allocating each block would cost more than the arithmetic
    for block in row_blocks(logits):
        part = logits[block]
        if buffer is None:
            # The extra last column receives the indices after the last class.
            buffer = results.new_empty(part.shape[0], classes + 1)
        x = buffer[: part.shape[0]]
        x[:, :-1].copy_(part)
        if excluded is not None:
            x.scatter_(-1, excluded[block], -torch.inf)
        x = x[:, :-1]
        peak = torch.amax(x, -1, keepdim=True)
        results[block, :1] = peak
        x.sub_(subtractable(peak))
        if temperature != 1:
            x.div_(temperature)
        results[block, 1] = x.exp_().sum(-1)
    return results
