"""Renders a document as a short summary in GitHub's Markdown, for a CI run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kullback.common.formats import counted
from kullback.errors import printable
from kullback.report.document import Code, Document, Findings, main_tables
from kullback.report.subjects import document
from kullback.results.verdict import Outcome, Verdict

MOST_ROWS = 40
MOST_REMARKS = 25
_MARKS: dict[Outcome, str] = {"passed": "✅", "failed": "❌", "unclear": "❔"}


def render(result: Any, verdicts: Sequence[Verdict] = ()) -> str:
    """Return a summary: the verdict of the gates, the outcome, the main numbers or tables, and the remarks.

    Example:
        >>> import torch
        >>> from kullback import Probs, compare_predictions
        >>> from kullback.results.verdict import Outcome, Verdict
        >>> p = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
        >>> print(render(compare_predictions(p, p), [Verdict("mean at most 0.1")]))
        **Passed: 1 limit. P and Q are equal in every row: KL(P\\|\\|Q) is 0.**
        <BLANKLINE>
        - ✅ mean at most 0.1
        <BLANKLINE>
        P: a tensor of shape (2, 2), Q: a tensor of shape (2, 2); 2 rows, each a distribution over 2 classes.
        <BLANKLINE>
        |  | value | 95% CI |
        ...
    """
    page = document(result, verdicts)
    first = (
        [f"**{escaped(page.outcome)}**"],
        _limits(page.verdicts),
        [escaped(page.headline.reason)],
        [_size(page)],
    )
    parts = [*first, *_tables(page)]
    for block in page.blocks:
        if isinstance(block, Findings):
            parts.append(_remarks(block))
        elif isinstance(block, Code):
            parts += [
                [f"{escaped(block.title)}:"],
                [f"```{block.language}", block.text, "```"],
                [*map(escaped, block.caption)],
            ]
    return "\n\n".join("\n".join(lines) for lines in parts if any(lines)) + "\n"


def _limits(verdicts: Sequence[Verdict]) -> list[str]:
    lines: list[str] = []
    for each in verdicts:
        sentences = "" if each.passed else f": {escaped('; '.join(each.sentences))}"
        lines.append(f"- {_MARKS[each.outcome]} {escaped(each.limit)}{sentences}")
    return lines


def _size(page: Document) -> str:
    names = ", ".join(f"{letter}: {name}" for letter, name in (page.headline.names or {}).items())
    text = "; ".join(filter(None, (names, page.headline.size)))
    return f"{escaped(text)}." if text else ""


def _tables(page: Document) -> Iterator[list[str]]:
    if page.headline.figures:
        rows = [
            (each.title, f"{each.value} {each.unit}".rstrip(), each.interval)
            for each in page.headline.figures
        ]
        yield _grid(("", "value", "95% CI"), rows)
    for place, table in enumerate(main_tables(page)):
        if page.headline.figures and not table.beside_figures:
            continue
        if place:
            yield [f"**{escaped(table.title)}**"]
        yield _grid(table.headings, table.rows[:MOST_ROWS], "---" if table.ends_in_text else "---:")
        more = len(table.rows) - MOST_ROWS
        rest = [f"{counted(more, 'row')} more in the JSON and on the page."] if more > 0 else []
        yield [f"{escaped(sentence)}  " for sentence in (*rest, *table.caption)]


def _remarks(findings: Findings) -> list[str]:
    remarks = findings.unlinked
    lines: list[str] = []
    for remark in remarks[:MOST_REMARKS]:
        code = f"{remark.code}: " * bool(remark.code)
        lines.append(f"- {remark.level}: {escaped(f'{code}{remark.message} {remark.advice}'.rstrip())}")
    more = len(remarks) - MOST_REMARKS
    return lines + [f"- {counted(more, 'finding')} more in the JSON and on the page"] * (more > 0)


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]], others: str = "---:") -> list[str]:
    """Return the lines of a table with escaped cells. Columns after the first are aligned as `others` states."""
    lines = [f"| {' | '.join(map(escaped, line))} |" for line in (headings, *rows)]
    return [lines[0], "| --- |" + f" {others} |" * (len(headings) - 1), *lines[1:]]


def escaped(text: str) -> str:
    """Return one line of Markdown that displays the text unchanged.

    Example:
        >>> print(escaped("a|b <i> @c"))
        a\\|b \\<i\\> @c
    """
    text = printable(text)
    for mark in "\\`*_{}[]<>|#~&$":
        text = text.replace(mark, f"\\{mark}")
    return text
