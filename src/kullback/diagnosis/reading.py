"""`Reading`: the content of a tensor, such as logits or probabilities, inferred from its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from torch import Tensor

from kullback.common.formats import significant
from kullback.diagnosis.scan import Occurrences, RowSums, Scan, normalized_along

Representation: TypeAlias = Literal[
    "log-probabilities", "probabilities", "one-hot rows", "logits", "counts", "weights", "class indices", "nothing"
]  # fmt: skip

# This is log(1e-4). An event with a smaller log-probability is not attributed to chance.
_LOG_SIGNIFICANCE = -9.2


@dataclass(frozen=True)
class Reading:
    """The inferred content of a tensor, with the evidence."""

    scan: Scan
    representation: Representation
    why: str
    other_dim: int | None = None
    """Another dimension along which every row is normalized, if rows along the dimension of the classes are not."""

    @property
    def in_logs(self) -> bool:
        """Whether the values are logarithms of weights."""
        return self.representation in ("log-probabilities", "logits")

    @property
    def normalized(self) -> bool:
        """Whether the content is probabilities or log-probabilities; a few rows may not be normalized."""
        return self.representation in ("log-probabilities", "probabilities", "one-hot rows")

    @property
    def sums(self) -> RowSums:
        """The sums of the rows, or of their exponentials if the values are logarithms."""
        return self.scan.masses if self.in_logs else self.scan.sums

    @property
    def empty_rows(self) -> Occurrences:
        """The rows with probability 0 for every class."""
        masked, zero = self.scan.masked_rows, self.scan.zero_rows
        return masked if self.in_logs or (self.representation == "nothing" and not zero.count) else zero

    @property
    def zeros(self) -> Occurrences:
        """The entries with probability 0."""
        return self.scan.minus_infinity if self.in_logs else self.scan.zero

    @property
    def invalid(self) -> int:
        """The number of entries that are NaN or +inf."""
        return self.scan.nan.count + self.scan.plus_infinity.count

    @property
    def exact(self) -> bool:
        """Whether every row is a distribution up to rounding, in a dtype of at least 32 bits."""
        floating = self.scan.dtype.is_floating_point and self.scan.dtype.itemsize >= 4
        below = not self.in_logs and self.scan.negative.count > 0
        return floating and self.normalized and self.sums.exact == self.sums.rows and not below

    @property
    def softmaxed_twice(self) -> bool:
        """Whether the distributions are probably the softmax of probabilities."""
        return self.normalized and self.scan.log_probability_of_floor < _LOG_SIGNIFICANCE


def read(x: Tensor, dim: int, *, logs_expected: bool) -> Reading:
    """Return the content of `x`, whose classes are along `dim`. If all entries are 0, `logs_expected` means that they
    are logits.
    """
    scan = Scan(x, dim)
    representation = _representation(scan, logs_expected)
    reading = Reading(scan, representation, _why(scan, representation))
    if representation == "nothing" or reading.sums.exact == reading.sums.rows > 0:
        return reading
    others = (other for other in range(-x.ndim, 0) if other != dim and x.shape[other] != 1)
    normalized = (other for other in others if normalized_along(x, other, in_logs=reading.in_logs))
    return replace(reading, other_dim=next(normalized, None))


def are_independent(target: Reading, input: Reading) -> bool:
    """Return whether both tensors contain probabilities of independent labels, in rows that do not sum to 1."""
    sides = target, input
    if any(r.normalized or r.other_dim is not None or r.invalid or r.scan.classes == 1 for r in sides):
        return False
    return all(r.scan.high <= 0 if r.in_logs else r.scan.low >= 0 and r.scan.high <= 1 for r in sides)


def read_labels(x: Tensor) -> Reading:
    """Return the `Reading` of a tensor of class indices."""
    scan = Scan(x.reshape(-1), -1)
    return Reading(scan, "class indices", _why(scan, "class indices"))


def _representation(scan: Scan, logs_expected: bool) -> Representation:
    signed = scan.negative.count + scan.minus_infinity.count > 0
    all_zero = scan.low == scan.high == 0
    if signed and _are_one(scan.masses):
        return "log-probabilities"
    # Rounding makes probabilities at most slightly negative, so slightly negative values may be probabilities.
    below = scan.low > -1 and scan.high <= 1 and 2 * scan.sums.exact >= scan.sums.rows
    if _are_one(scan.sums) and (below or not signed):
        return "one-hot rows" if scan.whole and scan.classes > 1 and not signed else "probabilities"
    if not (scan.masses.rows if signed or (all_zero and logs_expected) else scan.sums.rows):
        return "nothing"
    if signed or all_zero:
        return "logits"
    return "counts" if scan.whole else "weights"


def _are_one(sums: RowSums) -> bool:
    """Return whether at least half of the sums are 1 up to rounding, or all sums are approximately 1."""
    return sums.rows > 0 and (2 * sums.exact >= sums.rows or sums.near == sums.rows)


def _why(scan: Scan, representation: Representation) -> str:
    span = interval(scan.low, scan.high)
    masses = interval(scan.masses.low, scan.masses.high)
    sums = interval(scan.sums.low, scan.sums.high)
    within = ", all within [0, 1] as sigmoids are" if scan.high <= 1 else ""
    reasons: dict[Representation, str] = {
        "log-probabilities": f"values {span}, and exp of the rows adds up to {masses}",
        "logits": f"values {span}, but exp of the rows adds up to {masses}",
        "probabilities": f"values {span}, and the rows add up to {sums}",
        "one-hot rows": "a single 1 in each row, the rest 0",
        "counts": f"whole numbers {span}; the rows add up to {sums}",
        "weights": f"values {span}{within}; the rows add up to {sums}",
        "class indices": f"whole numbers {span}, one for each row of input",
        "nothing": "no row has positive probability and only finite numbers",
    }
    return reasons[representation]


def number(x: float) -> str:
    """Return a number as text with 4 significant digits, or with 6 if the number is close to 1."""
    return significant(x, 6 if 1e-6 < abs(x - 1) < 5e-4 else 4)


def interval(low: float, high: float) -> str:
    """Return the range from `low` to `high` as text."""
    return number(low) if number(low) == number(high) else f"between {number(low)} and {number(high)}"
