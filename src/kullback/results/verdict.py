"""The verdict of a gate: a limit that you set, and whether a result keeps the limit, breaks it, or is unclear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kullback.common.formats import count, counted, significant

Outcome = Literal["passed", "failed", "unclear"]
"""The outcome of a limit: `unclear` if the data do not decide between `passed` and `failed`."""

# A larger number of rows to decide a gate is not worth saying.
_MOST_ROWS = 1e12


@dataclass(frozen=True)
class Verdict:
    """A limit that you set, and sentences about how the result breaks the limit, or why the outcome is unclear.

    Attributes:
        limit: the limit in words, such as "psi at most 0.2".
        failures: a sentence for each column or candidate that breaks the limit.
        broken_by: the columns, groups of columns, or candidates that break the limit.
        unclear: a sentence for each column or candidate if the data do not show whether it keeps the limit.
        unclear_for: the columns, groups of columns, or candidates of these sentences.
    """

    limit: str
    failures: tuple[str, ...] = ()
    broken_by: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    unclear_for: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if there are failures; else ``"unclear"`` if anything is unclear; else ``"passed"``."""
        return "failed" if self.failures else "unclear" if self.unclear else "passed"

    @property
    def passed(self) -> bool:
        """Whether the result keeps the limit."""
        return self.outcome == "passed"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences about failures, followed by the sentences about unclear numbers."""
        return (*self.failures, *self.unclear)


def worst(verdicts: Sequence[Verdict]) -> Outcome:
    """Return the worst outcome of several limits: failed is worse than unclear, and unclear is worse than passed.

    Example:
        >>> worst([Verdict("mean at most 1"), Verdict("top1 at least 0.9", unclear=("top1 has no interval",))])
        'unclear'
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    return "failed" if "failed" in outcomes else "unclear" if "unclear" in outcomes else "passed"


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return a summary of the outcomes of all limits, the beginning of every report; empty without limits.

    Example:
        >>> headline([Verdict("mean at most 1"), Verdict("top1 at least 0.9", ("top1 is 0.8",))])
        'Failed: 1 of 2 limits broken'
        >>> headline([Verdict("mean at most 1", unclear=("mean has no interval",))])
        'Cannot tell: 1 of 1 limit unclear'
        >>> headline([Verdict("mean at most 1")])
        'Passed: 1 limit'
    """
    if not verdicts:
        return ""
    outcomes = [verdict.outcome for verdict in verdicts]
    limits = counted(len(verdicts), "limit")
    failed, unclear = outcomes.count("failed"), outcomes.count("unclear")
    if failed:
        others = f", {count(unclear)} unclear" if unclear else ""
        return f"Failed: {count(failed)} of {limits} broken{others}"
    return f"Cannot tell: {count(unclear)} of {limits} unclear" if unclear else f"Passed: {limits}"


def rows_to_decide(value: float, interval: tuple[float, float], limit: float, rows: int) -> int | None:
    """Return about how many rows would put a limit outside of an interval, to two digits; None if that is unknown.

    The interval is assumed to shrink by the square root of the number of rows, around the same value.

    Example:
        >>> rows_to_decide(0.008, (0.005, 0.012), 0.01, 1000)
        4000
    """
    reach = interval[1] - value if limit > value else value - interval[0]
    distance = abs(limit - value)
    if not 0 < distance < reach < math.inf or rows * (reach / distance) ** 2 > _MOST_ROWS:
        return None
    return int(float(significant(rows * (reach / distance) ** 2, 2)))
