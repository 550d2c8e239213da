"""One pass over a tensor: its range, special values, and the sums of its rows as weights and as logarithms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from kullback.numeric import upcast
from kullback.representations import SUM_TOLERANCE

__all__ = [
    "Index",
    "RowSums",
    "Scan",
    "Spots",
    "Spotter",
    "aligned_blocks",
    "normalized_along",
    "row_blocks",
    "scan",
]

Index = tuple[int, ...]

# Elements in a block: few on a CPU, so that temporaries fit the cache; many on an accelerator.
_BLOCK_ON_CPU, _BLOCK_ELSEWHERE = 1 << 17, 1 << 24

# Rows whose sum is this close to one are distributions with rounding errors.
_NEARLY_ONE = 0.05


@dataclass(frozen=True)
class Spots:
    """How many entries (or rows) have a property, and the index of the first of them."""

    count: int
    first: Index | None

    @property
    def where(self) -> str:
        """The index of the first one, in words."""
        return f"the first at index {self.first}"


@dataclass(frozen=True)
class RowSums:
    """The sums of rows: their extremes, and how many are one within tolerance or approximately."""

    rows: int
    low: float
    high: float
    exact: int
    near: int
    first_off: Index | None


@dataclass(frozen=True)
class Scan:
    """The results of one pass. `sums` takes the values as weights, `masses` as logarithms of weights."""

    shape: Index
    dtype: torch.dtype
    device: torch.device
    dim: int
    nan: Spots
    plus_infinity: Spots
    minus_infinity: Spots
    negative: Spots
    zero: Spots
    zero_rows: Spots
    masked_rows: Spots
    low: float
    high: float
    whole: bool
    sums: RowSums
    masses: RowSums
    log_probability_of_floor: float
    """The logarithm of the probability that scores of this variance are all as close to each other as these."""

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.shape[self.dim]

    @property
    def size(self) -> int:
        """The number of entries."""
        return math.prod(self.shape)

    @property
    def tolerance(self) -> float:
        """How far from one the sum of a row may be, by the rounding of its dtype."""
        return SUM_TOLERANCE.get(self.dtype, 1e-6)


def row_blocks(x: Tensor, dim: int, limit: int | None = None) -> Iterator[Tensor]:
    """Yield the rows of `x` along `dim`, in order, as matrices of about `limit` elements, without a copy of `x`."""
    rows = x.movedim(dim, -1)
    limit = limit or (_BLOCK_ON_CPU if x.device.type == "cpu" else _BLOCK_ELSEWHERE)
    if rows.ndim == 1:
        yield rows[None]
        return
    sizes = [math.prod(rows.shape[axis + 1 :]) for axis in range(rows.ndim - 1)]
    axis = next((axis for axis, size in enumerate(sizes) if size <= limit), rows.ndim - 2)
    for outer in product(*map(range, rows.shape[:axis])):
        for part in rows[outer].split(max(1, limit // sizes[axis])):
            yield part.reshape(-1, rows.shape[-1])


def aligned_blocks(a: Tensor, b: Tensor, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same rows of two tensors that broadcast, block by block, on the device of the first."""
    limit = _BLOCK_ON_CPU if a.device.type == "cpu" else _BLOCK_ELSEWHERE
    a, b = torch.broadcast_tensors(a, b)
    for one, other in zip(row_blocks(a, dim, limit), row_blocks(b, dim, limit), strict=True):
        yield one, other.to(one.device)


def _place(shape: Index, dim: int, flat: int, *, row: bool = False) -> Index:
    """Return the index in a tensor of `shape` of the `flat`-th entry (or row), counted with the classes last."""
    axis = dim % len(shape)
    sizes = [size for i, size in enumerate(shape) if i != axis] + ([] if row else [shape[axis]])
    index: list[int] = []
    for size in reversed(sizes):
        flat, place = divmod(flat, size)
        index.insert(0, place)
    if not row:
        index.insert(axis, index.pop())
    return tuple(index)


class Spotter:
    """Counts where masks are true, and remembers the first place."""

    def __init__(self) -> None:
        self.count = 0
        self.first: int | None = None

    def add(self, mask: Tensor, offset: int) -> None:
        """Count in a block whose entries (or rows) come after `offset` others."""
        found = int(mask.count_nonzero())
        if found and self.first is None:
            self.first = offset + int(mask.flatten().to(torch.uint8).argmax())
        self.count += found

    def spots(self, shape: Index, dim: int, *, row: bool = False) -> Spots:
        """Return the count and the first index in a tensor of `shape` with its classes along `dim`."""
        return Spots(self.count, None if self.first is None else _place(shape, dim, self.first, row=row))


class _Sums:
    """Accumulates the sums of rows, block by block."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance
        self.low, self.high = math.inf, -math.inf
        self.rows = self.exact = self.near = 0
        self.off = Spotter()

    def add(self, sums: Tensor, counted: Tensor, offset: int) -> None:
        if not bool(counted.any()):
            return
        distance = (sums - 1).abs()
        off = ~(distance <= self.tolerance) & counted
        kept = sums[counted]
        self.low, self.high = min(self.low, float(kept.min())), max(self.high, float(kept.max()))
        self.rows += kept.numel()
        self.exact += kept.numel() - int(off.count_nonzero())
        self.near += int(((distance <= _NEARLY_ONE) & counted).count_nonzero())
        self.off.add(off, offset)

    def result(self, shape: Index, dim: int) -> RowSums:
        first = self.off.spots(shape, dim, row=True).first
        return RowSums(self.rows, self.low, self.high, self.exact, self.near, first)


class _Floor:
    r"""Evidence that scores are themselves probabilities, as after a second softmax.

    The logarithms of softmax(p) are p shifted: at most 1/V below their mean, since no probability is below 0. The
    probability that independent scores of the same variance respect that floor shrinks with each row and class; this
    class computes its logarithm.
    """

    def __init__(self, eps: float) -> None:
        self.eps = eps
        self.squares = self.depth = 0.0
        self.rows = 0
        self.respected = True

    def add(self, x: Tensor, judged: Tensor) -> None:
        classes = x.shape[-1]
        if not self.respected or classes == 1:
            return
        x = x[judged]
        if not x.numel():
            return
        logs = x if bool((x < 0).any()) else x.log()
        away = logs - logs.mean(-1, keepdim=True)
        rounding = 2 * self.eps * (1 + logs.abs().amax(-1))
        depth = 1 / classes + rounding
        self.respected = bool((away.amin(-1) >= -depth).all())
        self.squares += float(away.square().sum()) / (classes - 1)
        self.depth = max(self.depth, float(depth.max()))
        self.rows += x.shape[0]

    def log_probability(self, classes: int) -> float:
        if not self.respected or not self.rows or not self.squares:
            return 0.0
        spread = math.sqrt(self.squares / self.rows)
        one = 0.5 * math.erfc(-self.depth / spread / math.sqrt(2))
        return self.rows * (classes - 1) * math.log(one)


class _Tally:
    """Accumulates the results of `scan`, block by block."""

    def __init__(self, x: Tensor) -> None:
        self.entries = {
            name: Spotter() for name in ("nan", "plus_infinity", "minus_infinity", "negative", "zero")
        }
        self.empty = {name: Spotter() for name in ("zero_rows", "masked_rows")}
        tolerance = SUM_TOLERANCE.get(x.dtype, 1e-6)
        self.sums, self.masses = _Sums(tolerance), _Sums(tolerance)
        self.floor = _Floor(torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0)
        self.low, self.high, self.whole, self.rows = math.inf, -math.inf, True, 0

    def add(self, rows: Tensor) -> None:
        low, high = (float(end) for end in rows.aminmax())  # NaN if there is any
        if math.isfinite(low) and math.isfinite(high):
            self._add_numbers(rows, low, high)
        else:
            self._add_any(rows)
        self.rows += rows.shape[0]

    def _add_numbers(self, rows: Tensor, low: float, high: float) -> None:
        self._note_range(rows, low, high)
        place = self.rows * rows.shape[-1]
        if low < 0:
            self.entries["negative"].add(rows < 0, place)
        usable = torch.ones_like(rows[:, 0], dtype=torch.bool)
        weighty = usable
        if low <= 0 <= high:
            zero = rows == 0
            self.entries["zero"].add(zero, place)
            weighty = ~zero.all(-1)
            self.empty["zero_rows"].add(~weighty, self.rows)
        self._add_sums(rows, weighty, usable)

    def _add_any(self, rows: Tensor) -> None:
        numbers = rows.isfinite()
        finite = rows[numbers]
        if finite.numel():
            self._note_range(finite, *(float(end) for end in finite.aminmax()))
        nan, above, below = rows.isnan(), rows == math.inf, rows == -math.inf
        zero = rows == 0
        masks = (nan, above, below, numbers & (rows < 0), zero)
        for spotter, mask in zip(self.entries.values(), masks, strict=True):
            spotter.add(mask, self.rows * rows.shape[-1])
        usable = ~(nan | above).any(-1)
        for spotter, mask in zip(self.empty.values(), (zero.all(-1), below.all(-1)), strict=True):
            spotter.add(mask, self.rows)
        self._add_sums(rows, usable & ~below.any(-1) & ~zero.all(-1), usable & ~below.all(-1))

    def _note_range(self, finite: Tensor, low: float, high: float) -> None:
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.whole = self.whole and bool((finite == finite.round()).all())

    def _add_sums(self, rows: Tensor, weighty: Tensor, possible: Tensor) -> None:
        self.sums.add(rows.sum(-1), weighty, self.rows)
        self.masses.add(torch.logsumexp(rows, -1).exp(), possible, self.rows)
        self.floor.add(rows, weighty)


def scan(x: Tensor, dim: int) -> Scan:
    """Read `x` once, with its classes along `dim`. `x` has at least one element."""
    tally, shape = _Tally(x), tuple(x.shape)
    for block in row_blocks(x, dim):
        tally.add(upcast(block))
    return Scan(
        shape,
        x.dtype,
        x.device,
        dim,
        **{name: spotter.spots(shape, dim) for name, spotter in tally.entries.items()},
        **{name: spotter.spots(shape, dim, row=True) for name, spotter in tally.empty.items()},
        low=tally.low,
        high=tally.high,
        whole=tally.whole and tally.low <= tally.high,
        sums=tally.sums.result(shape, dim),
        masses=tally.masses.result(shape, dim),
        log_probability_of_floor=tally.floor.log_probability(shape[dim]),
    )


def normalized_along(x: Tensor, dim: int, *, in_logs: bool) -> bool:
    """Return whether every row of `x` along `dim` sums to one, reading up to the first that does not."""
    tolerance = SUM_TOLERANCE.get(x.dtype, 1e-6)
    for block in row_blocks(x, dim):
        rows = upcast(block)
        sums = torch.logsumexp(rows, -1).exp() if in_logs else rows.sum(-1)
        if not bool(((sums - 1).abs() <= tolerance).all()):
            return False
    return True
