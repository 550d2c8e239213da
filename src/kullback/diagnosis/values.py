"""The values that torch returns for a call, and the divergences of its rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from kullback.common.dtypes import upcast
from kullback.diagnosis.reading import Reading
from kullback.diagnosis.scan import Occurrences, aligned_blocks, row_blocks
from kullback.generators import KL
from kullback.kernels import finite_pair
from kullback.representations import Counts, Logits, Representation


@dataclass(frozen=True)
class RowValues:
    """The mean and extremes of a divergence over rows, and the numbers of defined, infinite and undefined rows."""

    mean: float
    low: float
    high: float
    rows: int
    infinite: int
    undefined: int


@dataclass(frozen=True)
class Overlap:
    """The entries at which both P and Q are 0, only P is 0, or only Q is 0; `size` is the number of all entries."""

    size: int
    both: Occurrences
    only_p: Occurrences
    only_q: Occurrences


def torch_values(
    input: Tensor, target: Tensor, log_target: bool, dim: int
) -> tuple[dict[str, Any], str | None]:
    """Return the value of `F.kl_div` for each reduction (the shape for ``"none"``), and its error message or None."""
    if input.device != target.device and not (input.ndim == 0 or target.ndim == 0):
        return {}, f"the tensors are on different devices, {input.device} and {target.device}"
    try:
        shape = tuple(torch.broadcast_tensors(target, input)[0].shape)  # fails with F.kl_div's message
        total, dtype = _torch_sum(input, target, log_target, dim)
    except RuntimeError as error:
        return {}, str(error).splitlines()[0]
    divisors = {"sum": 1, "mean": math.prod(shape), "batchmean": input.shape[0] if input.ndim else 1}
    values = {
        name: float(torch.tensor(total / divisor, dtype=torch.float64, device="cpu").to(dtype))
        if divisor
        else math.nan
        for name, divisor in divisors.items()
    }
    return {"none": shape, **values}, None


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
    p: Tensor, q: Tensor, reading_p: Reading, reading_q: Reading, dim: int
) -> tuple[RowValues, RowValues, Overlap]:
    """Return KL(P || Q) and KL(Q || P) of the rows, by their inferred contents, and the entries with probability 0."""
    p, q = torch.broadcast_tensors(p, q)
    forward, backward, offset = _RowTally(), _RowTally(), 0
    both, only_p, only_q = (Occurrences(tuple(p.shape), dim) for _ in range(3))
    for a, b in aligned_blocks(p, q, dim):
        pair = finite_pair(_represented(a, reading_p), _represented(b, reading_q))
        forward.add(KL().total(pair))
        backward.add(KL().total(pair.swapped()))
        if reading_p.zeros.count or reading_q.zeros.count:
            empty_p, empty_q = (
                rows == (-math.inf if r.in_logs else 0) for rows, r in ((a, reading_p), (b, reading_q))
            )
            both.add(empty_p & empty_q, offset)
            only_p.add(empty_p & ~empty_q, offset)
            only_q.add(empty_q & ~empty_p, offset)
        offset += a.numel()
    return forward.result(), backward.result(), Overlap(p.numel(), both, only_p, only_q)


def independent_values(
    p: Tensor, q: Tensor, reading_p: Reading, reading_q: Reading, dim: int
) -> tuple[RowValues, RowValues]:
    """Return the sums of KL(P || Q) and of KL(Q || P) over the independent labels of each row."""
    forward, backward = _RowTally(), _RowTally()
    for a, b in aligned_blocks(p, q, dim):
        pair = finite_pair(_with_absence(a, reading_p), _with_absence(b, reading_q))
        forward.add(KL().total(pair).sum(-1))
        backward.add(KL().total(pair.swapped()).sum(-1))
    return forward.result(), backward.result()


def _with_absence(labels: Tensor, reading: Reading) -> Representation:
    """Return the Bernoulli distributions of labels as two classes, absent and present."""
    x = upcast(labels)
    if reading.in_logs:
        return Logits(torch.stack([(-x.expm1()).log(), x], -1), validate=False)
    return Counts(torch.stack([1 - x, x], -1), validate=False)


def largest_cut(x: Tensor, reading: Reading, dim: int, kept: int) -> float:
    """Return the largest total probability in a row of all classes after the first `kept` classes."""
    largest = 0.0
    for block in row_blocks(x, dim):
        rows = upcast(block)
        mass = rows.softmax(-1) if reading.in_logs else rows / rows.sum(-1, keepdim=True)
        largest = max(largest, float(mass[:, kept:].sum(-1).nan_to_num(0).max()))
    return largest


def _represented(rows: Tensor, reading: Reading) -> Representation:
    """Return the rows as `Logits` or `Counts`, which normalize them; rows that cannot be normalized give NaN."""
    rows = upcast(rows)
    return Logits(rows, validate=False) if reading.in_logs else Counts(rows.clamp(min=0), validate=False)


class _RowTally:
    """Accumulates the values of rows for `RowValues`."""

    def __init__(self) -> None:
        self.total, self.low, self.high = 0.0, math.inf, -math.inf
        self.rows = self.infinite = self.undefined = 0

    def add(self, values: Tensor) -> None:
        defined = values[~values.isnan()]
        self.undefined += values.numel() - defined.numel()
        if defined.numel():
            self.rows += defined.numel()
            self.infinite += int(defined.isinf().count_nonzero())
            self.total += float(defined.sum())
            self.low, self.high = min(self.low, float(defined.min())), max(self.high, float(defined.max()))

    def result(self) -> RowValues:
        mean, low, high = (
            (self.total / self.rows, self.low, self.high) if self.rows else (math.nan, math.nan, math.nan)
        )
        return RowValues(mean, low, high, self.rows, self.infinite, self.undefined)
