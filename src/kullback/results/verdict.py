"""The class `Verdict`, which says whether a result keeps a limit that you asked for, and the headline of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """A limit that you asked for, and the columns or candidates of the result that break the limit.

    Attributes:
        limit: the limit in words, such as "psi at most 0.2".
        failures: one sentence for each column or candidate that breaks the limit; empty if none breaks it.
        broken_by: the columns, groups of columns, or candidates that break the limit.
    """

    limit: str
    failures: tuple[str, ...] = ()
    broken_by: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the result keeps the limit."""
        return not self.failures


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return the first line of a report, which counts the limits and the broken limits; empty without limits.

    Example:
        >>> headline([Verdict("mean at most 1"), Verdict("top1 at least 0.9", ("top1 is 0.8",))])
        'Failed: 1 of 2 limits broken'
        >>> headline([Verdict("mean at most 1")])
        'Passed: 1 limit'
    """
    if not verdicts:
        return ""
    broken = sum(not verdict.passed for verdict in verdicts)
    limits = f"{len(verdicts):,} limit{'s' * (len(verdicts) != 1)}"
    return f"Failed: {broken:,} of {limits} broken" if broken else f"Passed: {limits}"
