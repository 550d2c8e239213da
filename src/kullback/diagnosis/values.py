"""The values that torch returns for a call, and the divergences of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from kullback.common.dtypes import upcast
from kullback.diagnosis.reading import Index, Occurrences, Reading, aligned_blocks, row_blocks
from kullback.generators import KL
from kullback.kernels import finite_pair
from kullback.representations import Counts, Logits, Representation

TorchValues: TypeAlias = dict[str, float | Index]
"""The value of `F.kl_div` for each reduction, and the shape of the result for ``"none"``."""


@dataclass(frozen=True)
class RowValues:
    """The mean and extremes of a divergence over rows, and the numbers of defined, infinite and undefined rows."""

    mean: float
    low: float
    high: float
    rows: int
    infinite: int
    undefined: int


class Overlap:
    """The entries at which both P and Q are 0, only P is 0, or only Q is 0."""

    def __init__(self, like: Tensor, dim: int) -> None:
        self.both, self.only_p, self.only_q = (Occurrences(like, dim) for _ in range(3))


def torch_values(input: Tensor, target: Tensor, log_target: bool, dim: int) -> tuple[TorchValues, str | None]:
    """Return the values of `F.kl_div`, or its error message."""
    if input.device != target.device and not (input.ndim == 0 or target.ndim == 0):
        return {}, f"the tensors are on different devices, {input.device} and {target.device}"
    try:
        shape = tuple(torch.broadcast_tensors(target, input)[0].shape)  # fails with F.kl_div's message
        total, dtype = _torch_sum(input, target, log_target, dim)
    except RuntimeError as error:
        return {}, str(error).splitlines()[0]
    divisors = {"sum": 1, "mean": math.prod(shape), "batchmean": input.shape[0] if input.ndim else 1}
    values: TorchValues = {"none": shape}
    for name, divisor in divisors.items():
        exact = torch.tensor(total / divisor if divisor else math.nan, dtype=torch.float64, device="cpu")
        values[name] = float(exact.to(dtype))
    return values, None


def _torch_sum(input: Tensor, target: Tensor, log_target: bool, dim: int) -> tuple[float, torch.dtype]:
    """Return the sum of the terms of `F.kl_div`, computed block by block, and their dtype."""

    def terms(a: Tensor, b: Tensor) -> Tensor:
        return F.kl_div(a, b, reduction="none", log_target=log_target)

    dtype = terms(input.new_empty(0), target.new_empty(0)).dtype
    if input.ndim == target.ndim == 0:
        return float(terms(input, target)), dtype
    if not (input.numel() and target.numel()):
        return 0.0, dtype
    dim = max(dim, -max(input.ndim, target.ndim))
    return sum(float(upcast(terms(a, b)).sum()) for a, b in aligned_blocks(input, target, dim)), dtype


def row_values(
    p: Tensor, q: Tensor, reading_p: Reading, reading_q: Reading, dim: int, *, of_labels: bool
) -> tuple[RowValues, RowValues, Overlap]:
    """Return KL(P || Q) and KL(Q || P) of rows, or sums over independent labels, and the entries of probability 0."""
    p, q = torch.broadcast_tensors(p, q)
    forward, backward, overlap, offset = _RowTally(), _RowTally(), Overlap(p, dim), 0
    has_zeros = not of_labels and (reading_p.has_zeros or reading_q.has_zeros)
    represented = _represented_labels if of_labels else _represented
    for a, b in aligned_blocks(p, q, dim):
        pair = finite_pair(represented(a, reading_p), represented(b, reading_q))
        for tally, sides in ((forward, pair), (backward, pair.swapped())):
            values = KL().total(sides)
            tally.add(values.sum(-1) if of_labels else values)
        if has_zeros:
            empty_p, empty_q = a <= reading_p.empty_entry, b <= reading_q.empty_entry
            overlap.both.add(empty_p & empty_q, offset)
            overlap.only_p.add(empty_p & ~empty_q, offset)
            overlap.only_q.add(empty_q & ~empty_p, offset)
        offset += a.numel()
    return forward.result(), backward.result(), overlap


def _represented(rows: Tensor, reading: Reading) -> Representation:
    """Return the rows as `Logits` or `Counts`, which normalize them; rows that cannot be normalized give NaN."""
    rows = upcast(rows)
    return Logits(rows, validate=False) if reading.in_logs else Counts(rows.clamp(min=0), validate=False)


def _represented_labels(labels: Tensor, reading: Reading) -> Representation:
    """Return the Bernoulli distributions of labels as two classes, absent and present."""
    x = upcast(labels)
    if reading.in_logs:
        return Logits(torch.stack([(-x.expm1()).log(), x], -1), validate=False)
    return Counts(torch.stack([1 - x, x], -1), validate=False)


def largest_cut(x: Tensor, reading: Reading, dim: int, kept: int) -> float:
    """Return the largest probability, among all rows, of the classes after the first `kept` classes together."""
    largest = 0.0
    for block in row_blocks(x, dim):
        rows = upcast(block)
        mass = rows.softmax(-1) if reading.in_logs else rows / rows.sum(-1, keepdim=True)
        largest = max(largest, float(mass[:, kept:].sum(-1).nan_to_num(0).max()))
    return largest


class _RowTally:
    """Accumulates the values of rows for `RowValues`."""

    def __init__(self) -> None:
        self._total, self._low, self._high = 0.0, math.inf, -math.inf
        self._rows = self._infinite = self._undefined = 0

    def add(self, values: Tensor) -> None:
        defined = values[~values.isnan()]
        self._undefined += values.numel() - defined.numel()
        if defined.numel():
            self._rows += defined.numel()
            self._infinite += int(defined.isinf().count_nonzero())
            self._total += float(defined.sum())
            self._low = min(self._low, float(defined.min()))
            self._high = max(self._high, float(defined.max()))

    def result(self) -> RowValues:
        if not self._rows:
            return RowValues(math.nan, math.nan, math.nan, 0, self._infinite, self._undefined)
        mean = self._total / self._rows
        return RowValues(mean, self._low, self._high, self._rows, self._infinite, self._undefined)
