"""Sums of exponentials of rows of logits on GPUs, and their gradients. A kernel reads a row once for its sums, and once
for its gradient.

The kernels support logits of float32, bfloat16 or float16 with any strides. The kernels compute in float32 and add the
lanes of a sum in float64. Numbers of a few classes of a row are computed by torch in float64. Nothing synchronizes with
the GPU, and equal calls have equal results.
"""

from __future__ import annotations

import ctypes
import math
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect
from kullback.kernels.label_terms import HardLabels, LabelSums, subtractable
from kullback.kernels.row_operation import Weights
from kullback.kernels.triton.available import can_read, missing

# A thread sums several classes in each of its eight lanes before it raises the lanes' peaks.
_CLASSES_IN_A_THREAD = 8
_THREADS_IN_A_WARP = 32
_LANES_OF_A_WARP = _CLASSES_IN_A_THREAD * _THREADS_IN_A_WARP
_DEPTH = 4
_MOST_WARPS = 4
# An excluded class costs two instructions for each class of its tile. More excluded classes would cost more than all
# other instructions.
_MOST_SELECTED = 1024
# Between these temperatures, both parts of log2(e) / T are positive normal numbers of float32.
_TEMPERATURES = 1e-30, 1e30
SCHEMA = (
    "triton_cross_entropies(Tensor values, Tensor logits, Tensor classes, float soft, float hard, Tensor? weights, "
    "float scale, Tensor(a!) mixed, Tensor(b!)? gradient) -> ()"
)


def serves(logits: Tensor, temperature: float = 1.0, selected: int = 0) -> bool:
    """Return whether the kernels support the logits at this temperature, with `selected` selected classes per row."""
    return (
        can_inspect(logits)
        and can_read(logits)
        and missing() is None
        and _TEMPERATURES[0] < temperature < _TEMPERATURES[1]
        and selected <= _MOST_SELECTED
    )


def log_sums(
    logits: Tensor, temperature: float, excluded: Tensor | None = None, labels: Tensor | None = None
) -> Tensor:
    """Return the results of `kullback.kernels.row_sums.log_sums`."""
    rows, classes = logits.shape
    sums = torch.empty(rows, 2 if labels is None else 4, dtype=torch.float64, device=logits.device)
    if rows == 0:
        return sums
    if excluded is not None:
        excluded = excluded.sort(-1).values.to(torch.int32)
    warps = _warps(classes, _DEPTH)
    with torch.cuda.device_of(logits):
        _kernels().sums_kernel[(rows,)](
            logits,
            sums if excluded is None else excluded,
            sums if labels is None else labels.contiguous(),
            sums,
            *logits.stride(),
            classes,
            0 if excluded is None else excluded.shape[-1],
            *_parts_of_scale(temperature),
            EXCLUDES=excluded is not None,
            LABELED=labels is not None,
            DEPTH=_DEPTH,
            LANES=warps * _LANES_OF_A_WARP,
            num_warps=warps,
        )
    return sums


class Exponentials(NamedTuple):
    """by * e^((logit - origin) / T - log_sum): `by` times the softmax. All tensors have shape (rows,)."""

    origin: Tensor
    log_sum: Tensor
    by: Tensor

    def numbers(self, temperature: float) -> list[Tensor]:
        """Return float32 numbers for the kernel: the rounded logsumexp, and `by`, corrected for this rounding. The
        factor is 0 if `by` is, even if the other numbers are infinite or NaN.
        """
        point = (self.origin + temperature * self.log_sum).float()
        shift = (point - self.origin) / temperature - self.log_sum
        return [point, torch.where(self.by == 0, 0, self.by * torch.exp(shift)).float()]


class Entries(NamedTuple):
    """The gradient's entries of some classes, shape (rows, k). They replace the kernel's results. An entry is the
    number in `values` plus all numbers of its class in `added`. A negative class is padding.
    """

    classes: Tensor
    values: Tensor
    added: Tensor


def write_exponentials(
    logits: Tensor,
    temperature: float,
    exponentials: Exponentials,
    of_labels: Exponentials | None,
    entries: Entries,
    out: Tensor,
    *,
    adds: bool = False,
) -> None:
    """Write (or add, if `adds`) both exponentials to `out`, which may be `logits`, and then the entries."""
    rows, classes = logits.shape
    if rows == 0:
        return
    numbers = exponentials.numbers(temperature)
    if of_labels is not None:
        numbers += of_labels.numbers(1.0)
    # If a block had fewer classes than its warps process, several threads would process the same class. A thread might
    # then read a logit after another thread has overwritten it.
    warps = _warps(classes, 1)
    count = entries.classes.shape[-1]
    with torch.cuda.device_of(logits):
        _kernels().exponentials_kernel[(rows,)](
            logits,
            out,
            torch.stack(numbers, -1),
            *(*logits.stride(), *out.stride()),
            classes,
            *_parts_of_scale(temperature),
            LABELED=of_labels is not None,
            ADD=adds,
            BLOCK=warps * _LANES_OF_A_WARP,
            num_warps=warps,
        )
        # A second launch overwrites the entries, so no thread of the first can overwrite them later.
        _kernels().entries_kernel[(rows,)](
            out,
            entries.classes.contiguous(),
            upcast(entries.values).contiguous(),
            upcast(entries.added).contiguous(),
            *out.stride(),
            count,
            BLOCK=max(_THREADS_IN_A_WARP, 1 << (count - 1).bit_length()),
            num_warps=1,
        )


def add_cross_entropies(
    labels: HardLabels,
    values: Tensor,
    logits: Tensor,
    weights: Weights,
    scale: float,
    gradient: Tensor | None,
) -> Tensor:
    """Return the mixed value of each row of divergences `values` and Q's `logits`, and add the gradient of the
    cross-entropies, times the weights and `scale`, to `gradient`.
    """
    mixed = torch.empty_like(values)
    is_compiling = torch.compiler.is_compiling()
    launch = torch.ops.kullback.triton_cross_entropies.default if is_compiling else launch_cross_entropies
    launch(values, logits, *labels, weights, scale, mixed, gradient)
    return mixed


def launch_cross_entropies(
    values: Tensor,
    logits: Tensor,
    classes: Tensor,
    soft: float,
    hard: float,
    weights: Weights,
    scale: float,
    mixed: Tensor,
    gradient: Tensor | None,
) -> None:
    """Do what `add_cross_entropies` does; write the values to `mixed`."""
    labels, classes = HardLabels(classes, soft, hard), classes.unsqueeze(-1)
    peak, total = log_sums(logits, 1.0, classes).unbind(-1)
    sums = LabelSums.of(subtractable(peak), total, upcast(logits.gather(-1, classes)).squeeze(-1))
    if gradient is not None:
        by = torch.full_like(total, scale * hard)
        by = by if weights is None else by * weights
        at_label = torch.where(by == 0, 0, -by * sums.shares()[0])
        before = upcast(gradient.gather(-1, classes))
        entries = Entries(classes, before, at_label.unsqueeze(-1))
        write_exponentials(logits, 1.0, of_label_sums(sums, by), None, entries, gradient, adds=True)
    mixed.copy_(labels.mixed_with(values, sums.cross_entropies()))


def of_label_sums(sums: LabelSums, by: Tensor) -> Exponentials:
    """Return the gradient of the sum of `by` times the cross-entropies, except at the labels."""
    is_used = (by != 0) & (sums.total != 0)
    return Exponentials(sums.peak, torch.log(sums.total), torch.where(is_used, by * sums.shares()[0], 0))


def _warps(classes: int, depth: int) -> int:
    """Return the number of warps that process a tile of at most all classes; a power of 2."""
    needed = -(-classes // (depth * _LANES_OF_A_WARP))
    return min(_MOST_WARPS, 1 << (needed - 1).bit_length())


def _parts_of_scale(temperature: float) -> tuple[float, float]:
    """Return log2(e) / T as the sum of two positive numbers of float32, the second much smaller than the first."""
    scale = math.log2(math.e) / temperature
    high = ctypes.c_float(scale).value
    while high >= scale:
        high = ctypes.c_float(high * (1 - 2**-23)).value
    return high, ctypes.c_float(scale - high).value


def _kernels() -> ModuleType:
    from kullback.kernels.triton import sums_kernel

    return sums_kernel
