"""`Reading`: the content of a tensor, such as logits or probabilities, inferred from one pass over its values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.common.formats import significant
from kullback.kernels.row_operation import elements_of_block
from kullback.representations import SUM_TOLERANCE

Index = tuple[int, ...]
Representation: TypeAlias = Literal[
    "log-probabilities", "probabilities", "one-hot rows", "logits", "counts", "weights", "class indices", "nothing"
]  # fmt: skip

# Rows whose sum differs from one by at most this number count as approximately normalized.
_NEARLY_ONE = 0.05
# This is log(1e-4). An event with a smaller log-probability is not attributed to chance.
_LOG_SIGNIFICANCE = -9.2


def row_blocks(x: Tensor, dim: int, limit: int | None = None) -> Iterator[Tensor]:
    """Yield the rows of `x` along `dim`, in order, as matrices with about `limit` elements; `x` is not copied."""
    rows, limit = x.movedim(dim, -1), limit or elements_of_block(x)
    if rows.ndim == 1:
        yield rows[None]
        return
    sizes = [math.prod(rows.shape[axis + 1 :]) for axis in range(rows.ndim - 1)]
    axis = next((axis for axis, size in enumerate(sizes) if size <= limit), rows.ndim - 2)
    for outer in product(*map(range, rows.shape[:axis])):
        for part in rows[outer].split(max(1, limit // sizes[axis])):
            yield part.reshape(-1, rows.shape[-1])


def aligned_blocks(a: Tensor, b: Tensor, dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield corresponding rows of two tensors that broadcast, in blocks on the device of the first tensor."""
    limit = elements_of_block(a)
    a, b = torch.broadcast_tensors(a, b)
    for one, other in zip(row_blocks(a, dim, limit), row_blocks(b, dim, limit), strict=True):
        yield one, other.to(one.device)


def row_sums(rows: Tensor, *, in_logs: bool) -> Tensor:
    """Return the sum of each row, or of its exponentials."""
    return torch.logsumexp(rows, -1).exp() if in_logs else rows.sum(-1)


def tolerance_of(x: Tensor) -> float:
    """Return how far from 1 a sum of probabilities in the dtype of `x` may be."""
    return SUM_TOLERANCE.get(x.dtype, 1e-6)


def normalized_along(x: Tensor, dim: int, *, in_logs: bool) -> bool:
    """Return whether every row of `x` along `dim` sums to one; reading stops at the first block with another sum."""
    return all(
        bool(((row_sums(upcast(block), in_logs=in_logs) - 1).abs() <= tolerance_of(x)).all())
        for block in row_blocks(x, dim)
    )


class Occurrences:
    """The number of entries (or rows) of a tensor that have a property, and the index of the first such entry."""

    def __init__(self, x: Tensor, dim: int, *, rows: bool = False) -> None:
        self.count = 0
        self.first: Index | None = None
        self._shape, self._axis, self._rows = tuple(x.shape), dim % x.ndim, rows
        self._size = x.numel() // x.shape[dim] if rows else x.numel()

    @property
    def places(self) -> str:
        """The number of occurrences among all entries (or rows), and the index of the first occurrence, in words."""
        return f"{self.count} of {self._size}{'' if self._rows else ' entries'}, {self.where}"

    @property
    def where(self) -> str:
        """The index of the first occurrence, in words."""
        return f"the first at index {self.first}"

    def add(self, mask: Tensor, offset: int) -> None:
        """Add the occurrences in a block; `offset` is the number of entries (or rows) before the block."""
        number = int(mask.count_nonzero())
        if number and self.first is None:
            self.first = self._index(offset + int(mask.flatten().to(torch.uint8).argmax()))
        self.count += number

    def _index(self, flat: int) -> Index:
        """Return the index of the entry (or row) with the number `flat`, counted in the order of `row_blocks`."""
        shape = list(self._shape)
        classes = [shape.pop(self._axis)]
        index = [int(i) for i in np.unravel_index(flat, shape if self._rows else shape + classes)]
        if not self._rows:
            index.insert(self._axis, index.pop())
        return tuple(index)


class RowSums:
    """The smallest and largest sum of a row, and the numbers of sums that are 1 within the tolerance or nearly 1."""

    def __init__(self, x: Tensor, dim: int) -> None:
        self.low, self.high = math.inf, -math.inf
        self.rows = self.near = 0
        self.off = Occurrences(x, dim, rows=True)
        self.tolerance = tolerance_of(x)

    @property
    def exact(self) -> int:
        """The number of sums that are one within the tolerance."""
        return self.rows - self.off.count

    @property
    def all_exact(self) -> bool:
        return self.exact == self.rows

    @property
    def are_one(self) -> bool:
        """Whether at least half of the sums are 1 up to rounding, or all sums are approximately 1."""
        return self.rows > 0 and (2 * self.exact >= self.rows or self.near == self.rows)

    @property
    def are_near(self) -> bool:
        """Whether all sums are approximately one, but fewer than half of them are one within the tolerance."""
        return self.near == self.rows > 2 * self.exact

    def add(self, sums: Tensor, counted: Tensor, offset: int) -> None:
        """Add the sums of a block's rows where `counted` is True; `offset` is the number of rows before the block."""
        if not bool(counted.any()):
            return
        distance, selected = (sums - 1).abs(), sums[counted]
        self.low, self.high = min(self.low, float(selected.min())), max(self.high, float(selected.max()))
        self.rows += selected.numel()
        self.near += int(((distance <= _NEARLY_ONE) & counted).count_nonzero())
        self.off.add(~(distance <= self.tolerance) & counted, offset)


class _Floor:
    r"""Evidence that a softmax was applied to probabilities instead of scores.

    log softmax(p) is p plus a constant. So for V classes, the values of log softmax(p) are at most 1/V below their
    mean, because p >= 0. A softmax of independent scores with the same variance has this property only by chance. The
    probability of this chance event decreases with each row and class. `log_probability` returns the logarithm of the
    probability.
    """

    def __init__(self, x: Tensor, classes: int) -> None:
        self._eps = torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
        self._classes, self._rows, self._respected = classes, 0, classes > 1
        self._squares = self._depth = 0.0

    def add(self, x: Tensor, judged: Tensor) -> None:
        if not self._respected or not bool(judged.any()):
            return
        x = x[judged]
        logs = x if bool((x < 0).any()) else x.log()
        away = logs - logs.mean(-1, keepdim=True)
        depth = 1 / self._classes + 2 * self._eps * (1 + logs.abs().amax(-1))
        self._respected = bool((away.amin(-1) >= -depth).all())
        self._squares += float(away.square().sum()) / (self._classes - 1)
        self._depth = max(self._depth, float(depth.max()))
        self._rows += x.shape[0]

    def log_probability(self) -> float:
        if not self._respected or not self._rows or not self._squares:
            return 0.0
        spread = math.sqrt(self._squares / self._rows)
        chance = 0.5 * math.erfc(-self._depth / spread / math.sqrt(2))
        return self._rows * (self._classes - 1) * math.log(chance)


class Role(NamedTuple):
    """An argument of the call: its name, its code with joined class dimensions, and whether logarithms are needed."""

    name: str
    code: str
    needs_logs: bool


class Reading:
    """The inferred content of a tensor, with the evidence.

    `representation` is the content, and `why` the evidence. `other_dim` is another dimension along which every row is
    normalized, if rows along the dimension of the classes are not normalized. `sums` contains the sums of the rows, and
    `masses` the sums of the exponentials of the rows. `log_probability_of_floor` is the log-probability that scores of
    this variance are, by chance, never more than 1/V below their mean.

    The tensor `x` is not empty. If its `role` needs logarithms, a tensor of zeros counts as logits. With `are_labels`,
    the entries are class indices.
    """

    def __init__(self, x: Tensor, dim: int, role: Role, *, are_labels: bool = False) -> None:
        self._scan(x, dim)
        self.dim, (self.name, self.code, self.needs_logs) = dim, role
        self.representation: Representation = "class indices" if are_labels else self._content()
        self.why = self._reasons()[self.representation]
        self.in_logs = self.representation in ("log-probabilities", "logits")
        self.normalized = self.representation in ("log-probabilities", "probabilities", "one-hot rows")
        self.row_sums: RowSums = self.masses if self.in_logs else self.sums
        self.zeros: Occurrences = self.minus_infinity if self.in_logs else self.zero
        self.empty_entry = -math.inf if self.in_logs else 0.0
        self.other_dim: int | None = None
        if not (
            are_labels or self.representation == "nothing" or self.row_sums.exact == self.row_sums.rows > 0
        ):
            others = (other for other in range(-x.ndim, 0) if other != dim and x.shape[other] != 1)
            along = (other for other in others if normalized_along(x, other, in_logs=self.in_logs))
            self.other_dim = next(along, None)

    def _scan(self, x: Tensor, dim: int) -> None:
        """Read the tensor once, and store its range, its special values and the sums of its rows."""
        self.dtype, self.classes = x.dtype, x.shape[dim]
        entries = [Occurrences(x, dim) for _ in range(5)]
        self.nan, self.plus_infinity, self.minus_infinity, self.negative, self.zero = entries
        self.zero_rows, self.masked_rows = (Occurrences(x, dim, rows=True) for _ in range(2))
        self.sums, self.masses = RowSums(x, dim), RowSums(x, dim)
        self.low, self.high, self.whole = math.inf, -math.inf, True
        floor, before = _Floor(x, self.classes), 0
        for block in row_blocks(x, dim):
            rows = upcast(block)
            floor.add(rows, self._add(rows, before))
            before += len(rows)
        self.whole = self.whole and self.low <= self.high
        self.log_probability_of_floor = floor.log_probability()

    def _add(self, rows: Tensor, before: int) -> Tensor:
        """Add a block that follows `before` rows; return a mask of the block's rows that are finite and have a nonzero
        entry.
        """
        numbers, first = rows, before * self.classes
        low, high = (float(end) for end in rows.aminmax())  # NaN if the block contains NaN
        has_sum = has_mass = torch.ones_like(rows[:, 0], dtype=torch.bool)
        if not (math.isfinite(low) and math.isfinite(high)):
            nan, above, below = rows.isnan(), rows == math.inf, rows == -math.inf
            self.nan.add(nan, first)
            self.plus_infinity.add(above, first)
            self.minus_infinity.add(below, first)
            self.masked_rows.add(below.all(-1), before)
            usable = ~(nan | above).any(-1)
            has_sum, has_mass = usable & ~below.any(-1), usable & ~below.all(-1)
            numbers = rows[rows.isfinite()]
            low, high = map(float, numbers.aminmax()) if numbers.numel() else (math.inf, -math.inf)
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.whole = self.whole and bool((numbers == numbers.round()).all())
        if low < 0:
            self.negative.add((rows < 0) & (rows > -math.inf), first)
        if low <= 0 <= high:
            zero = rows == 0
            self.zero.add(zero, first)
            self.zero_rows.add(zero.all(-1), before)
            has_sum = has_sum & ~zero.all(-1)
        self.sums.add(row_sums(rows, in_logs=False), has_sum, before)
        self.masses.add(row_sums(rows, in_logs=True), has_mass, before)
        return has_sum

    def holds(self, *contents: Representation) -> bool:
        """Whether the content is one of `contents`, along the dimension of the classes."""
        return self.other_dim is None and self.representation in contents

    @property
    def has_other_sums(self) -> bool:
        """Whether some rows of the distributions do not sum to 1."""
        return self.normalized and self.other_dim is None and not self.row_sums.all_exact

    @property
    def has_zeros(self) -> bool:
        """Whether an entry has probability 0. A negative probability counts as 0."""
        return bool(self.zeros.count or (not self.in_logs and self.negative.count))

    @property
    def empty_rows(self) -> Occurrences:
        """The rows with probability 0 for every class."""
        only_masked = self.representation == "nothing" and not self.zero_rows.count
        return self.masked_rows if self.in_logs or only_masked else self.zero_rows

    @property
    def empty_row(self) -> str:
        """The value of the entries of `empty_rows`."""
        return "-inf" if self.empty_rows is self.masked_rows else "0"

    @property
    def softmax(self) -> str:
        """The name of the softmax function that returns distributions in this form."""
        return "log_softmax" if self.in_logs else "softmax"

    @property
    def invalid(self) -> int:
        """The number of entries that are NaN or +inf."""
        return self.nan.count + self.plus_infinity.count

    @property
    def exact(self) -> bool:
        """Whether every row is a distribution up to rounding, in a dtype of at least 32 bits."""
        floating = self.dtype.is_floating_point and self.dtype.itemsize >= 4
        below = not self.in_logs and self.negative.count > 0
        return floating and self.normalized and self.row_sums.all_exact and not below

    @property
    def softmaxed_twice(self) -> bool:
        """Whether the distributions are probably the softmax of probabilities."""
        return self.normalized and self.log_probability_of_floor < _LOG_SIGNIFICANCE

    def _content(self) -> Representation:
        signed = self.negative.count + self.minus_infinity.count > 0
        all_zero = self.low == self.high == 0
        if signed and self.masses.are_one:
            return "log-probabilities"
        # Rounding makes probabilities at most slightly negative, so slightly negative values may be probabilities.
        below = self.low > -1 and self.high <= 1 and 2 * self.sums.exact >= self.sums.rows
        if self.sums.are_one and (below or not signed):
            return "one-hot rows" if self.whole and self.classes > 1 and not signed else "probabilities"
        if not (self.masses.rows if signed or (all_zero and self.needs_logs) else self.sums.rows):
            return "nothing"
        if signed or all_zero:
            return "logits"
        return "counts" if self.whole else "weights"

    def _reasons(self) -> dict[Representation, str]:
        span = interval(self.low, self.high)
        masses, sums = interval(self.masses.low, self.masses.high), interval(self.sums.low, self.sums.high)
        within = ", all within [0, 1] as sigmoids are" if self.high <= 1 else ""
        return {
            "log-probabilities": f"values {span}, and exp of the rows adds up to {masses}",
            "logits": f"values {span}, but exp of the rows adds up to {masses}",
            "probabilities": f"values {span}, and the rows add up to {sums}",
            "one-hot rows": "a single 1 in each row, the rest 0",
            "counts": f"whole numbers {span}; the rows add up to {sums}",
            "weights": f"values {span}{within}; the rows add up to {sums}",
            "class indices": f"whole numbers {span}, one for each row of input",
            "nothing": "each row has no positive probability, or has NaN or infinite numbers",
        }


def are_independent(target: Reading, input: Reading) -> bool:
    """Return whether both tensors contain probabilities of independent labels, in rows that do not sum to 1."""
    sides = target, input
    if any(r.normalized or r.other_dim is not None or r.invalid or r.classes == 1 for r in sides):
        return False
    return all(r.high <= 0 if r.in_logs else r.low >= 0 and r.high <= 1 for r in sides)


def number(x: float) -> str:
    """Return a number as text with 4 significant digits, or with 6 if the number is close to 1."""
    return significant(x, 6 if 1e-6 < abs(x - 1) < 5e-4 else 4)


def interval(low: float, high: float) -> str:
    """Return the range from `low` to `high` as text."""
    return number(low) if number(low) == number(high) else f"between {number(low)} and {number(high)}"
