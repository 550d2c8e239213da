"""Rows of logits at selected classes, in C++: in float32, or in float64 for float64 logits, with sums in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.kernels.native import library
from kullback.kernels.native.native_rows import DTYPES


def serves(logits: Tensor) -> bool:
    """Return whether these kernels support the logits."""
    return logits.is_cpu and logits.dtype in DTYPES and library.is_available()


def statistics(
    logits: Tensor, indices: Tensor, labels: Tensor | None, temperature: float, leaves_out: bool
) -> tuple[Tensor, Tensor]:
    """Return the selected logits divided by the temperature, and the five sums of each row (csrc/logits/task.h)."""
    selected = torch.empty(indices.shape, dtype=torch.float64, device="cpu")
    sums = torch.empty(indices.shape[0], 5, dtype=torch.float64, device="cpu")
    labels = None if labels is None else labels.contiguous()
    torch.ops.kullback.selected_statistics.default(
        logits, indices.contiguous(), labels, temperature, leaves_out, selected, sums
    )
    return selected, sums


def gradient(
    logits: Tensor,
    indices: Tensor,
    labels: Tensor | None,
    temperature: float,
    leaves_out: bool,
    sums: Tensor,
    derivatives: tuple[Tensor, Tensor, Tensor | None],
    out: Tensor,
) -> None:
    """Write the gradient by the logits to `out`.

    It is computed from `derivatives`: the gradients by the selected logits, the log-sum and the cross-entropy.
    """
    by_selected, by_log_sum, by_label = derivatives
    by_label = None if by_label is None else by_label.contiguous()
    labels = None if labels is None else labels.contiguous()
    torch.ops.kullback.selected_gradient.default(
        logits,
        indices.contiguous(),
        labels,
        temperature,
        leaves_out,
        sums,
        by_selected.contiguous(),
        by_log_sum.contiguous(),
        by_label,
        out,
    )
