"""The values that torch returns for the call, and the divergences of the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from kullback.diagnosis.reading import Reading
from kullback.diagnosis.scan import Index, Spots, Spotter, aligned_blocks, row_blocks
from kullback.generators import KL
from kullback.kernels import finite_pair
from kullback.numeric import upcast
from kullback.representations import Counts, Logits, Representation

__all__ = ["Overlap", "Reductions", "RowValues", "largest_cut", "row_values", "torch_values"]


@dataclass(frozen=True)
class Reductions:
    """The result of `F.kl_div` under each reduction: for ``"none"`` its shape, else its value; or its error."""

    none: Index | None = None
    sum: float = math.nan
    mean: float = math.nan
    batchmean: float = math.nan
    error: str | None = None


@dataclass(frozen=True)
class RowValues:
    """The mean and extremes of a divergence over rows, and the number of infinite and undefined ones."""

    mean: float
    low: float
    high: float
    rows: int
    infinite: int
    undefined: int


@dataclass(frozen=True)
class Overlap:
    """The entries, of `size`, where both P and Q are 0, and where only one of them is."""

    size: int
    both: Spots
    only_p: Spots
    only_q: Spots


def torch_values(input: Tensor, target: Tensor, log_target: bool, dim: int) -> Reductions:
    """Compute what `F.kl_div` returns under every reduction, block by block, so that no tensor of terms is made."""
    if input.device != target.device and not (input.ndim == 0 or target.ndim == 0):
        return Reductions(error=f"the tensors are on different devices, {input.device} and {target.device}")
    try:
        shape = tuple(torch.broadcast_tensors(target, input)[0].shape)  # in torch's order, for its message
        total, dtype = _torch_sum(input, target, log_target, dim)
    except RuntimeError as error:
        return Reductions(error=str(error).splitlines()[0])
    elements, rows = math.prod(shape), input.shape[0] if input.ndim else 1

    def rounded(x: float) -> float:
        return float(torch.tensor(x, dtype=torch.float64).to(dtype))

    return Reductions(
        shape,
        rounded(total),
        rounded(total / elements) if elements else math.nan,
        rounded(total / rows) if rows else math.nan,
    )


def _torch_sum(input: Tensor, target: Tensor, log_target: bool, dim: int) -> tuple[float, torch.dtype]:
    empty = F.kl_div(input.new_empty(0), target.new_empty(0), reduction="none", log_target=log_target)
    total = 0.0
    if input.ndim == target.ndim == 0:
        total = float(F.kl_div(input, target, reduction="none", log_target=log_target))
    elif input.numel() and target.numel():
        dim = max(dim, -max(input.ndim, target.ndim))
        for a, b in aligned_blocks(input, target, dim):
            total += float(upcast(F.kl_div(a, b, reduction="none", log_target=log_target)).sum())
    return total, empty.dtype


def row_values(
    p: Tensor, q: Tensor, reading_p: Reading, reading_q: Reading, dim: int
) -> tuple[RowValues, RowValues, Overlap]:
    """Compute KL(P || Q) and KL(Q || P) of each pair of rows as their readings say, and where there is no mass."""
    p, q = torch.broadcast_tensors(p, q)
    forward, backward = _RowTally(), _RowTally()
    empty, seen = (Spotter(), Spotter(), Spotter()), 0
    for a, b in aligned_blocks(p, q, dim):
        pair = finite_pair(_represented(a, reading_p), _represented(b, reading_q))
        forward.add(KL().total(pair))
        backward.add(KL().total(pair.swapped()))
        if not (_zeros(reading_p) or _zeros(reading_q)):
            continue
        empty_p, empty_q = _empty(a, reading_p), _empty(b, reading_q)
        masks = (empty_p & empty_q, empty_p & ~empty_q, empty_q & ~empty_p)
        for spotter, mask in zip(empty, masks, strict=True):
            spotter.add(mask, seen)
        seen += a.numel()
    both, only_p, only_q = (spotter.spots(tuple(p.shape), dim) for spotter in empty)
    return forward.result(), backward.result(), Overlap(p.numel(), both, only_p, only_q)


def largest_cut(x: Tensor, reading: Reading, dim: int, kept: int) -> float:
    """Return the largest probability, over the rows, of the classes after the first `kept`."""
    largest = 0.0
    for block in row_blocks(x, dim):
        rows = upcast(block)
        mass = rows.softmax(-1) if reading.in_logs else rows / rows.sum(-1, keepdim=True)
        largest = max(largest, float(mass[:, kept:].sum(-1).nan_to_num(0).max()))
    return largest


def _represented(rows: Tensor, reading: Reading) -> Representation:
    """Wrap rows so that they are normalized; rows that cannot be give NaN."""
    rows = upcast(rows)
    return Logits(rows, validate=False) if reading.in_logs else Counts(rows.clamp(min=0), validate=False)


def _zeros(reading: Reading) -> int:
    return (reading.scan.minus_infinity if reading.in_logs else reading.scan.zero).count


def _empty(rows: Tensor, reading: Reading) -> Tensor:
    return rows == (-math.inf if reading.in_logs else 0)


class _RowTally:
    """Accumulates the values of rows."""

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
        if not self.rows:
            return RowValues(math.nan, math.nan, math.nan, 0, 0, self.undefined)
        return RowValues(
            self.total / self.rows, self.low, self.high, self.rows, self.infinite, self.undefined
        )
