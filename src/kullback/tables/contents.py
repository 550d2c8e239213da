"""Findings on columns whose type does not show their content: numbers or dates written as text, and identifiers of
rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kullback.errors import quoted
from kullback.tables.columns.identifiers import identifies
from kullback.tables.columns.text_types import reason_against
from kullback.tables.columns.ways_of_writing import evidence_of_categories, shares
from kullback.tables.table_findings import finding

if TYPE_CHECKING:
    from kullback.results.finding import Finding
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.table_results import Content

_MOST = 0.5  # a column of text is reported if more than this share of its texts are numbers or dates


def content_of(name: str, p: ColumnProfile, q: ColumnProfile, *, weighted: bool) -> Content | None:
    """Return the kind of content that makes a column's divergences doubtful; None for other columns.

    Arguments:
        name: the name of the column.
        p: the column's profile in P.
        q: the column's profile in Q.
        weighted: whether rows have weights. If so, the profiles do not show the numbers of rows.
    """
    sides = [column for column in (p, q) if not column.empty]
    if not sides:
        return None
    if not weighted and all(identifies(name, column) for column in sides):
        return "identifier"
    return "numbers-as-text" if max(_share(column)[0] for column in sides) > _MOST else None


def content_finding(name: str, p: ColumnProfile, q: ColumnProfile, content: Content) -> Finding:
    """Return the finding on the content of a column."""
    if content == "identifier":
        message = (
            f"{quoted(name)} holds identifiers: nearly every row has its own value, so that its divergences say "
            f"nothing about a shift; leave it out with exclude= (--exclude)"
        )
        return finding(content, message, name)
    share, what = max(map(_share, (p, q)))
    convert = "pandas.to_datetime" if what == "dates" else "pandas.to_numeric"
    message = (
        f"{quoted(name)} holds text, of which {100 * share:.3g} % are {what}: they are compared as categories, which "
        f"hardly show a shift, because {reason_against(name, p, q)}; convert the column first, as with "
        f"{convert}(column, errors='coerce')"
    )
    return finding(content, message, name)


def parsed_finding(name: str, p: ColumnProfile, q: ColumnProfile) -> Finding | None:
    """Return the finding that a column of text is compared as numbers or dates; None for other columns."""
    way = p.written or q.written
    if way is None:
        return None
    texts = [(side, column) for side, column in (("P", p), ("Q", q)) if column.written is not None]
    where = "" if len(texts) == 2 else f" in {texts[0][0]}"
    opening = f"{quoted(name)} holds text{where}, which is compared as {way}"
    without = [(side, column) for side, column in texts if column.unparsed > 0]
    if not without:
        return replace(finding("numbers-as-text", opening, name), level="note")
    parts = [
        f"{100 * column.unparsed / column.total:.3g} % of {side}'s values{_most_frequent(column)}"
        for side, column in without
    ]
    message = f"{opening}; {' and '.join(parts)} are no such {way.what} and count as missing"
    return finding("numbers-as-text", message, name)


def _most_frequent(column: ColumnProfile) -> str:
    texts = column.unparsed_texts
    return f" (most often {quoted(max(texts, key=texts.__getitem__))})" if texts else ""


def _share(column: ColumnProfile) -> tuple[float, str]:
    """Return the share of numbers or of dates in a column's texts, the larger of the two; 0 if they may be codes."""
    if column.column_type != "categorical":
        return 0.0, "numbers"
    return max((share, what) for what, share in shares(evidence_of_categories(column)).items())
