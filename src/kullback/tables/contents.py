"""Columns whose divergences say little: numbers or dates that are written as text, and identifiers of rows."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from kullback.common.words import is_name_of_ids
from kullback.errors import quoted
from kullback.tables.table_findings import finding

if TYPE_CHECKING:
    from kullback.results.finding import Finding
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.table_results import Content

# With fewer different numbers a text column may hold codes or ratings, which are categories.
_FEWEST_NUMBERS = 20
_FEWEST_ROWS = 20
# The share of the values that are numbers, of those that are different, and of the range of identifiers.
_MOST = 0.5
_DIFFERENT = 0.9
_MOST_READ = 20_000  # values of a column that are looked at
_BLANKS, _CURRENCY = r"[ \t\u00a0\u202f]*", "[$€£¥]?"
# Digits that begin with 0, as in postal codes, are a code.
_NUMBER = re.compile(
    rf"{_BLANKS}(?!0\d+{_BLANKS}$)[-+\u2212(]?{_BLANKS}{_CURRENCY}{_BLANKS}[-+\u2212]?"
    r"(\d{1,3}([.,'\u00a0\u202f ]\d{3})+([.,]\d+)?|\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?"
    rf"{_BLANKS}%?{_CURRENCY}\)?{_BLANKS}",
    re.ASCII,
)
_DIGITS = re.compile(r"\s*\d+\s*", re.ASCII)
_TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?( ?([AaPp][Mm]|Z|UTC|[-+]\d{2}:?\d{2}))?"
_MONTH = r"[A-Za-z]{3,9}\.?"
_DAY = (
    r"\d{4}(?P<a>[-/.])\d{1,2}(?P=a)\d{1,2}|\d{1,2}(?P<b>[-/.])\d{1,2}(?P=b)\d{4}|\d{2}(?P<c>[-/.])\d{2}(?P=c)\d{2}"
    rf"|\d{{1,2}}[- .]+{_MONTH}[- ,]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}"
)
_DATE = re.compile(rf"({_DAY})([T ,]+{_TIME})?|{_TIME}", re.ASCII)


def content_of(name: str, p: ColumnProfile, q: ColumnProfile, *, weighted: bool) -> Content | None:
    """Return what a column holds, where that makes its divergences doubtful; else None.

    Arguments:
        name: the column.
        p: its profile in P.
        q: its profile in Q.
        weighted: whether rows have weights, so that counts of rows are not known.
    """
    sides = [column for column in (p, q) if not column.empty]
    if not sides:
        return None
    if not weighted and all(_identifies(name, column) for column in sides):
        return "identifier"
    return "numbers-as-text" if any(_share(column)[0] > _MOST for column in sides) else None


def content_finding(name: str, p: ColumnProfile, q: ColumnProfile, content: Content) -> Finding:
    """Return the finding on what a column holds."""
    if content == "identifier":
        message = (
            f"{quoted(name)} holds identifiers: nearly every row has its own value, so that its divergences say "
            "nothing about a shift; leave it out with columns= (--columns)"
        )
        return finding(content, message, name)
    share, what = max(map(_share, (p, q)))
    convert = "pandas.to_datetime" if what == "dates" else "pandas.to_numeric"
    message = (
        f"{quoted(name)} holds text, of which {100 * share:.3g} % are {what}: they are compared as categories, which "
        f"hardly show a shift; convert the column first, as with {convert}(column, errors='coerce')"
    )
    return finding(content, message, name)


def _share(column: ColumnProfile) -> tuple[float, str]:
    """Return the share of a column's texts that are numbers or dates, whichever is larger; 0 if they may be codes."""
    best = 0.0, "numbers"
    if column.column_type != "categorical" or len(column.categories) < _FEWEST_NUMBERS:
        return best
    texts = list(islice(column.categories, _MOST_READ))
    weights = list(islice(column.categories.values(), _MOST_READ))
    for what, pattern in (("numbers", _NUMBER), ("dates", _DATE)):
        matches = map(pattern.fullmatch, texts)
        found = [weight for weight, match in zip(weights, matches, strict=True) if match is not None]
        if len(found) >= _FEWEST_NUMBERS:
            best = max(best, (sum(found) / sum(weights), what))
    return best


def _identifies(name: str, column: ColumnProfile) -> bool:
    """Return whether nearly every row has its own value, which is neither an amount nor a date."""
    rows = column.present
    if rows < _FEWEST_ROWS:
        return False
    if column.column_type == "categorical":
        # A saved profile names the most frequent values; if these are single ones, so are the others.
        single = column.other_categories > 0 and max(column.categories.values(), default=2) == 1
        different = len(column.categories) + (column.other_categories if single else 0)
        return different >= _DIFFERENT * rows and not _are_amounts(column)
    if (
        column.column_type != "numeric"
        or not column.integer
        or column.minimum is None
        or column.maximum is None
    ):
        return False
    values = column.maximum - column.minimum + 1
    is_consecutive = values == sum(column.buckets.values())
    return is_consecutive or (is_name_of_ids(name) and values >= _MOST * rows)


def _are_amounts(column: ColumnProfile) -> bool:
    """Return whether most texts are dates, or numbers with more than digits."""
    texts = list(islice(column.categories, _MOST_READ))
    matches = zip(*(map(each.fullmatch, texts) for each in (_NUMBER, _DIGITS, _DATE)), strict=True)
    return sum([bool(date or (number and not digits)) for number, digits, date in matches]) > _MOST * len(
        texts
    )
