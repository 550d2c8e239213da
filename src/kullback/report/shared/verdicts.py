"""The verdict of every gate, as each report says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kullback.report.shared.formats import count, counted
from kullback.report.shared.markdown import escaped

__all__ = ["Verdict", "headline", "in_json", "in_markdown", "lines"]


class Verdict(NamedTuple):
    """A limit that was asked for, and how the comparison breaks it.

    Attributes:
        limit: the limit in words, such as "psi at most 0.2".
        failures: a sentence for each column or candidate beyond it; none where it holds.
        broken_by: the columns, groups of columns, or candidates that are beyond it.
    """

    limit: str
    failures: tuple[str, ...]
    broken_by: tuple[str, ...] = ()


def headline(verdicts: Sequence[Verdict]) -> str:
    """Return the verdict of all gates, the beginning of every report; empty without gates.

    Example:
        >>> headline([Verdict("mean at most 1", ()), Verdict("top1 at least 0.9", ("top1 is 0.8",))])
        'Failed: 1 of 2 limits broken'
        >>> headline([Verdict("mean at most 1", ())])
        'Passed: 1 limit'
    """
    broken = sum(1 for verdict in verdicts if verdict.failures)
    limits = counted(len(verdicts), "limit")
    if not verdicts:
        return ""
    return f"Failed: {count(broken)} of {limits} broken" if broken else f"Passed: {limits}"


def lines(verdicts: Sequence[Verdict]) -> list[tuple[str, bool]]:
    """Return each limit in a line, with all that breaks it, and whether it holds.

    Example:
        >>> lines([Verdict("top1 at least 0.9", ("top1 is 0.8",))])
        [('FAILED: top1 at least 0.9: top1 is 0.8', False)]
    """
    return [
        (f"FAILED: {each.limit}: {'; '.join(each.failures)}", False)
        if each.failures
        else (f"passed: {each.limit}", True)
        for each in verdicts
    ]


def in_markdown(outcome: str, verdicts: Sequence[Verdict]) -> list[str]:
    """Return the first lines of a Markdown report: the verdict and the outcome, then each limit."""
    verdict = headline(verdicts)
    found = [f"**{escaped(f'{verdict}. {outcome}' if verdict else outcome)}**", ""]
    for each in verdicts:
        failures = "".join(f": {escaped('; '.join(each.failures))}" if each.failures else "")
        found.append(f"- {'❌' if each.failures else '✅'} {escaped(each.limit)}{failures}")
    return [*found, ""] if verdicts else found


def in_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the field ``gates`` of a document, or nothing without gates."""
    if not verdicts:
        return {}
    limits = [
        {
            "limit": each.limit,
            "passed": not each.failures,
            "failures": list(each.failures),
            "broken_by": list(each.broken_by),
        }
        for each in verdicts
    ]
    return {"gates": {"passed": all(each["passed"] for each in limits), "limits": limits}}
