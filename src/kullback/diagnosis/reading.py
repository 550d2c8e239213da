"""`Reading`: the content of a tensor, such as logits or probabilities, inferred from its values."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from torch import Tensor

from kullback.common.formats import significant
from kullback.diagnosis.scan import Occurrences, RowSums, Scan, normalized_along

Representation: TypeAlias = Literal[
    "log-probabilities", "probabilities", "one-hot rows", "logits", "counts", "weights", "class indices", "nothing"
]  # fmt: skip

# This is log(1e-4). An event with a smaller log-probability is not attributed to chance.
_LOG_SIGNIFICANCE = -9.2


class Role(NamedTuple):
    """An argument of the call: its name, its code with joined class dimensions, and whether logarithms are needed."""

    name: str
    code: str
    needs_logs: bool


class Reading(Scan):
    """The inferred content of a tensor, with the evidence.

    `representation` is the content, and `why` the evidence. `other_dim` is another dimension along which every row is
    normalized, if rows along the dimension of the classes are not normalized.

    The tensor `x` is not empty. If its `role` needs logarithms, a tensor of zeros counts as logits. With `are_labels`,
    the entries are class indices.
    """

    def __init__(self, x: Tensor, dim: int, role: Role, *, are_labels: bool = False) -> None:
        super().__init__(x, dim)
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
            "nothing": "no row has positive probability and only finite numbers",
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
