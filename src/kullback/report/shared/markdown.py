"""Markdown of GitHub's kind: tables and escaped text."""

from __future__ import annotations

from collections.abc import Sequence

from kullback.report.shared.formats import printable

__all__ = ["escaped", "table"]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, its first column to the left and numbers to the right; every cell is escaped."""
    lines = [headings, *rows]
    rule = "| --- |" + " ---: |" * (len(headings) - 1)
    cells = [f"| {' | '.join(map(escaped, line))} |" for line in lines]
    return [cells[0], rule, *cells[1:]]


def escaped(text: str) -> str:
    """Return a text as Markdown that shows it as it is, in one line.

    Example:
        >>> print(escaped("a|b <i> @c"))
        a\\|b \\<i\\> @c
    """
    text = printable(text)
    for mark in "\\`*_{}[]<>|#~&":
        text = text.replace(mark, f"\\{mark}")
    return text
