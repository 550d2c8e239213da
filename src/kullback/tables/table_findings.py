"""Findings about tables: sentences that limit or explain the numbers of a comparison, each with a stable code."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kullback.errors import LONGEST_MESSAGE, printable, quoted
from kullback.results.finding import Finding, Level
from kullback.tables.choose_bins import constant_label
from kullback.tables.columns.text_types import evidence_of_categories, identifies, reason_against
from kullback.tables.columns.written_numbers import shares

if TYPE_CHECKING:
    from kullback.results.finding import Finding
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.columns.types import Field
    from kullback.tables.table_profile import Profile
    from kullback.tables.table_results import Content

FINDINGS: dict[str, tuple[Level, str]] = {
    "no-rows": ("error", "a table has no rows, or no weight: there is no comparison"),
    "no-common-column": ("error", "the tables share no column: there is no comparison"),
    "column-missing": ("error", "a column is in one table only"),
    "type-changed": ("error", "a column has one type in P and another in Q"),
    "unseparated": ("error", "numbers of a column are too near to each other to be compared, below 2.3e-308"),
    "group-skipped": ("error", "a group with a column that cannot be compared"),
    "all-missing": ("warning", "a column has no values in a table"),
    "column-skipped": (
        "warning",
        "a column's type cannot be compared: nested values, bytes, objects of several types",
    ),
    "constant-changed": ("error", "a column has a single value in each table, and the two values differ"),
    "time-zone-changed": ("error", "timestamps have a time zone in one table and none in the other"),
    "disjoint": ("warning", "no value of P's column is in a bin with one of Q's"),
    "few-clusters": ("warning", "too few clusters for intervals"),
    "duplicate-rows": ("warning", "rows of continuous numbers are repeated, so that fewer are independent"),
    "rows-in-order": ("warning", "the order of rows shows dependence, so that fewer are independent"),
    "order-unknown": (
        "note",
        "the order of a table's rows was not examined: its engine or saved profile has none",
    ),
    "few-rows": ("warning", "too few independent rows for intervals, or for as many bins as asked for"),
    "numbers-as-text": (
        "warning",
        "a column of text is compared as the numbers or dates that it holds, or as categories for the reason given",
    ),
    "lengths-only": ("warning", "only the lengths of a column's long texts are compared, not their words"),
    "words-differ": (
        "warning",
        "the texts of a column have different words in Q, which the divergences of their lengths do not show",
    ),
    "infinite-values": ("warning", "a column holds infinite numbers"),
    "new-categories": ("warning", "categories that only Q has"),
    "new-missing": ("warning", "a column has missing values in Q and none in P"),
    "not-a-number": ("warning", "a column holds NaN"),
    "too-rare": ("warning", "most values of a column are too rare to be compared"),
    "unnamed-categories": ("warning", "a saved profile names only its most frequent categories"),
    "vanished-categories": ("warning", "categories that only P has"),
    "texts": (
        "note",
        "the lengths and the frequent words of a column's long texts are compared, not the order of words",
    ),
    "constant": ("note", "a column has a single value in a table"),
    "infinite": ("note", "the divergence of the counts is infinite: a bin is empty on one side"),
    "rare-categories": ("note", "values too rare to be compared one by one were compared in groups"),
    "identifier": ("note", "nearly every row has its own value of a column, as identifiers have"),
}
"""The codes of findings, each with its usual level and when it is reported.

Version 2 of the JSON format may get new codes, but an existing code never changes.
"""
MOST_NAMED = 100  # a result names at most this many new categories, and this many vanished categories
# A column with a larger share of numbers that the grid does not separate is not compared. With a smaller share, the
# computed total variation is too small by at most the share.
_MOST_UNSEPARATED = 0.01
_LARGEST_SCALED = 1e8  # numbers below this limit are finite after a multiplication by 1e300
NAMED = 5  # a sentence names at most this many categories or columns


def finding(code: str, message: str, column: str | None = None) -> Finding:
    """Return a finding with the usual level of its code."""
    return Finding(code, message, FINDINGS[code][0], column=column)


def size_findings(p: Profile, q: Profile) -> list[Finding]:
    """Return a finding for each table without rows or without weight."""
    return [
        finding(
            "no-rows",
            f"{side} has {'no rows' if not table.rows else 'rows of weight 0 only'}: there is no comparison",
        )
        for side, table in (("P", p), ("Q", q))
        if not table.weight > 0
    ]


def schema_findings(
    p: dict[str, Field], q: dict[str, Field], names: list[str]
) -> tuple[list[str], list[Finding]]:
    """Return the columns of `names` that can be compared, and findings with the reasons why others cannot."""
    usable: list[str] = []
    findings: list[Finding] = []
    for name in names:
        fields = {side: table[name] for side, table in (("P", p), ("Q", q)) if name in table}
        skipped = [side for side, field in fields.items() if field.column_type is None]
        if len(fields) == 1:
            findings.append(
                finding("column-missing", f"{quoted(name)} is in {next(iter(fields))} only", name)
            )
        elif skipped:
            reason = printable(f"in {skipped[0]} {fields[skipped[0]].reason}", LONGEST_MESSAGE)
            findings.append(finding("column-skipped", f"{quoted(name)} cannot be compared: {reason}", name))
        else:
            usable.append(name)
    if not set(p) & set(q) or not names:
        besides = " except weights and clusters" if set(p) & set(q) else ""
        message = f"the tables have no column in common{besides}: there is no comparison"
        findings.append(finding("no-common-column", message))
    return usable, findings


def order_findings(p: Profile, q: Profile, columns: Sequence[str]) -> Iterator[Finding]:
    """Yield findings on the dependence of rows, and on tables whose order of rows was not examined."""
    for side, table in (("P", p), ("Q", q)):
        order = table.order
        if order is None:
            yield finding(
                "order-unknown",
                f"the order of {side}'s rows is not known (its engine or saved profile has none), so that dependence "
                "was not examined: name the groups of dependent rows with cluster= (--cluster)",
            )
            continue
        times, rows = order.times, f"{table.rows:,}"
        if order.repeated > 1:
            yield finding(
                "duplicate-rows",
                f"rows of {side} are repeated {order.repeated:.3g} times on average: errors and tests use "
                f"{table.rows / order.repeated:,.0f} independent rows instead of {rows}; if equal rows were drawn "
                "independently, pass "
                "independent=True (--independent)",
            )
        names = sorted((name for name in columns if name in times), key=lambda name: (-times[name], name))
        if names:
            shown = ", ".join(map(quoted, names[:NAMED])) + (", ..." if len(names) > NAMED else "")
            unknown = sum(name in order.unknown for name in names)
            without = (
                f"; {unknown} of them have too few independent blocks for errors and tests" if unknown else ""
            )
            counted = sorted({f"{table.rows / times[names[at]]:,.0f}" for at in (0, -1)}, key=len)
            yield finding(
                "rows-in-order",
                f"the order of {side}'s rows shows dependence in {len(names)} of {len(columns)} columns ({shown}): "
                f"errors and tests use {' to '.join(counted)} independent rows instead of {rows}{without}; name the "
                "groups of rows with cluster= (--cluster), or, if the order means nothing, pass independent=True "
                "(--independent)",
            )


def changed_type(name: str, p: ColumnProfile, q: ColumnProfile) -> Finding | None:
    """Return the finding that a column has another type in Q; None if the types agree or a side has no values."""
    if p.empty or q.empty:
        return None
    if p.column_type == q.column_type and p.means_like(q):
        return None
    types = [
        each.column_type
        if each.written is None or p.column_type != q.column_type
        else f"text of {each.written}"
        for each in (p, q)
    ]
    message = f"{quoted(name)} is {types[0]} in P and {types[1]} in Q: not compared"
    differ = p.column_type != q.column_type and "categorical" in (p.column_type, q.column_type)
    why = reason_against(name, p, q) if differ else None
    return finding("type-changed", message + (f"; the text is not read, because {why}" if why else ""), name)


def unseparated_numbers(name: str, p: ColumnProfile, q: ColumnProfile) -> Finding | None:
    """Return the finding that a column has too many numbers that the grid does not separate, else None."""
    if not any(column.unseparated > _MOST_UNSEPARATED * column.present for column in (p, q)):
        return None
    shares = [
        f"{100 * column.unseparated / column.present:.3g} % of {side}'s"
        for side, column in (("P", p), ("Q", q))
        if column.unseparated
    ]
    ends = [abs(end) for column in (p, q) for end in (column.minimum, column.maximum) if end is not None]
    remedy = "multiply it by 1e300" if max(ends) < _LARGEST_SCALED else "set the numbers below 2.3e-308 to 0"
    message = f"numbers are less than 2.3e-308 away from {p.center:g}, which the comparison does not separate"
    return finding(
        "unseparated", f"{quoted(name)}: {' and '.join(shares)} {message}; {remedy} in both tables", name
    )


def column_findings(
    name: str, p: ColumnProfile, q: ColumnProfile, new: Unshared, vanished: Unshared
) -> Iterator[Finding]:
    """Yield findings on the values of a column."""
    sides = (("P", p), ("Q", q))

    def of_column(code: str, message: str) -> Finding:
        return finding(code, f"{quoted(name)} {message}", name)

    for code, holds, message in (
        ("all-missing", lambda x: x.empty, "has no value in {}"),
        ("not-a-number", lambda x: x.not_a_number > 0, "holds NaN in {}: a bin of its own"),
        (
            "infinite-values",
            lambda x: x.minus_infinity + x.plus_infinity > 0,
            "has infinite numbers in {}, which have bins of their own",
        ),
        (
            "unnamed-categories",
            lambda x: x.other_categories > 0,
            "has categories that the profile of {} does not name; they are compared as one",
        ),
    ):
        if where := " and ".join(side for side, column in sides if holds(column)):
            yield of_column(code, message.format(where))
    yield from _constant_findings(name, constant_label(p), constant_label(q))
    if None not in (p.zoned, q.zoned) and p.zoned != q.zoned:
        yield of_column(
            "time-zone-changed", f"has a time zone in {'P' if p.zoned else 'Q'} only: both are treated as UTC"
        )
    if q.missing > 0 and p.missing == 0:
        yield of_column(
            "new-missing", f"is missing in {100 * q.missing / q.total:.3g} % of Q, and never in P"
        )
    for code, side, unshared in (("new-categories", "Q", new), ("vanished-categories", "P", vanished)):
        if unshared.number:
            yield of_column(code, f"has {_listed(unshared)} in {side} only")


def text_finding(name: str, p: ColumnProfile, q: ColumnProfile, words: float | None) -> Finding | None:
    """Return the finding on the compared properties of a column of texts; None for other columns."""
    if "text" not in (p.column_type, q.column_type) or p.empty or q.empty:
        return None
    texts = f"{quoted(name)} holds long texts: "
    if words is None:
        uncounted = [side for side, column in (("P", p), ("Q", q)) if column.words is None]
        why = "no words are frequent enough among the independent rows"
        if uncounted:
            why = f"the profile of {' and '.join(uncounted)} has no words (its engine or file gives none)"
        message = f"only their lengths and missing values are compared, not their words: {why}"
        return finding("lengths-only", texts + message, name)
    compared = "their lengths, missing values and frequent words (runs of letters) are compared"
    if words > 0:
        group = "of rows with and without words of the most significant group"
        divergences = "KL, JS, PSI and TV of the column compare the lengths"
        message = f"the words differ significantly (PSI {words:.3g} {group}); {divergences}"
        return finding("words-differ", texts + message, name)
    return finding(
        "texts", f"{texts}{compared}; their order, rare words, digits and punctuation are not", name
    )


def in_proportion(findings: list[Finding]) -> list[Finding]:
    """Return the findings of a column; if most values are too rare, findings on unshared categories become notes."""
    if not any(each.code == "too-rare" for each in findings):
        return findings
    unshared = {"new-categories", "vanished-categories"}
    return [replace(each, level="note") if each.code in unshared else each for each in findings]


class Unshared(NamedTuple):
    """The categories that only one side has: the number of these categories, and the names of the most frequent."""

    number: int
    names: tuple[str, ...]


def unshared_categories(there: ColumnProfile, elsewhere: ColumnProfile) -> Unshared:
    """Return the categories that are in `there` and not in `elsewhere`.

    The result is empty if the other side has no values or does not name all its categories.
    """
    if elsewhere.other_categories > 0 or elsewhere.empty:
        return Unshared(0, ())
    number = len(there.categories)
    shared = np.fromiter(map(elsewhere.categories.__contains__, there.categories), np.bool_, number)
    only = list(compress(there.categories, ~shared))
    weights = np.fromiter(there.categories.values(), np.float64, number)[~shared]
    # In order of decreasing weight; ties in order of name.
    least = np.partition(weights, -MOST_NAMED)[-MOST_NAMED] if len(only) > MOST_NAMED else 0.0
    above = sorted(compress(only, weights > least), key=lambda x: (-there.categories[x], x))
    equal = compress(only, weights == least)
    return Unshared(len(only), (*above, *heapq.nsmallest(MOST_NAMED - len(above), equal)))


def _constant_findings(name: str, of_p: str | None, of_q: str | None) -> Iterator[Finding]:
    """Yield the finding that a column has only one value in one table or in both."""
    if of_p is not None and of_q is not None and of_p != of_q:
        message = f"{quoted(name)} is {quoted(of_p)} in all rows of P and {quoted(of_q)} in all rows of Q"
        yield finding("constant-changed", message, name)
    elif of_p is not None or of_q is not None:
        there = " and ".join(side for side, value in (("P", of_p), ("Q", of_q)) if value is not None)
        yield finding(
            "constant", f"{quoted(name)} is {quoted(of_p or of_q or '')} in all rows of {there}", name
        )


def _listed(unshared: Unshared) -> str:
    shown = ", ".join(map(quoted, unshared.names[:NAMED]))
    word = "category" if unshared.number == 1 else "categories"
    return f"{unshared.number:,} {word} ({shown}{', ...' if unshared.number > NAMED else ''})"


_MOST = 0.5  # a column of text is reported if more than this share of its texts are numbers or dates


def content_of(name: str, p: ColumnProfile, q: ColumnProfile, *, weighted: bool) -> Content | None:
    """Return the kind of content that makes a column's divergences doubtful; None for other columns.

    Profiles of rows with weights do not show the numbers of rows.
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
            f"{quoted(name)} holds identifiers: nearly every row has its own value, so its divergences say "
            f"nothing about a shift; leave it out with exclude= (--exclude)"
        )
        return finding(content, message, name)
    share, what = max(map(_share, (p, q)))
    convert = "pandas.to_datetime" if what == "dates" else "pandas.to_numeric"
    message = (
        f"{quoted(name)} holds text, of which {100 * share:.3g} % are {what}: they are compared as categories, which "
        f"rarely show a shift, because {reason_against(name, p, q)}; convert the column first, as with "
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
