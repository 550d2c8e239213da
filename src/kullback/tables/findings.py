"""What the numbers of a comparison do not say, in sentences with stable codes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kullback.tables.result import Finding

if TYPE_CHECKING:
    from kullback.tables.columns.profile import ColumnProfile
    from kullback.tables.engines.base import Field
    from kullback.tables.profile import Profile

__all__ = [
    "FINDINGS",
    "Unshared",
    "changed_type",
    "column_findings",
    "schema_findings",
    "size_findings",
    "unshared_categories",
]

# The code of a finding, and when there is one. Within version 1 of the JSON codes may be added, never changed.
FINDINGS = {
    "no_rows": "a table has no rows, or no weight: nothing is compared",
    "no_common_column": "the tables share no column: nothing is compared",
    "few_rows": "too few independent rows for intervals, or for as many bins as asked for",
    "few_clusters": "too few clusters for intervals",
    "missing_cluster": "rows without a cluster id",
    "column_missing": "a column is in one table only",
    "column_skipped": "a column's type cannot be compared: nested values, bytes, objects of several types",
    "type_changed": "a column is of one kind in P and of another in Q",
    "all_missing": "a column has no values in a table",
    "constant": "a column has one value only in a table",
    "disjoint": "no value of P's column lies where one of Q's does",
    "infinite": "the divergence of the counts themselves is infinite: a cell is empty on one side",
    "new_missing": "a column has missing values in Q, in P none",
    "not_a_number": "a column holds NaN",
    "infinite_values": "a column holds infinite numbers",
    "new_categories": "categories that only Q has",
    "vanished_categories": "categories that only P has",
    "unnamed_categories": "a saved profile names only its most frequent categories",
    "rare_categories": "categories too rare to be told apart were compared as one",
}
MOST_NAMED = 100  # new and vanished categories that a result names
NAMED = 5  # of these in a sentence


def size_findings(p: Profile, q: Profile) -> list[Finding]:
    """Say which table is empty."""
    return [
        _of_table(
            "no_rows",
            f"{side} has {'no rows' if not table.rows else 'rows of weight 0 only'}: nothing is compared",
        )
        for side, table in (("P", p), ("Q", q))
        if not table.weight > 0
    ]


def schema_findings(
    p: dict[str, Field], q: dict[str, Field], names: list[str]
) -> tuple[list[str], list[Finding]]:
    """Return the columns that can be compared, and why the others cannot.

    Arguments:
        p: the columns of P's table.
        q: the columns of Q's.
        names: the columns in question.
    """
    usable: list[str] = []
    findings: list[Finding] = []
    for name in names:
        there = [side for side, fields in (("P", p), ("Q", q)) if name in fields]
        skipped = [
            side for side, fields in (("P", p), ("Q", q)) if name in fields and fields[name].kind is None
        ]
        if len(there) == 1:
            findings.append(Finding(name, "column_missing", f"{_quoted(name)} is in {there[0]} only"))
        elif skipped:
            reason = (p if skipped[0] == "P" else q)[name].reason
            findings.append(
                Finding(
                    name, "column_skipped", f"{_quoted(name)} cannot be compared: in {skipped[0]} {reason}"
                )
            )
        else:
            usable.append(name)
    if not set(p) & set(q):
        findings.append(
            _of_table("no_common_column", "the tables have no column in common: nothing is compared")
        )
    return usable, findings


def changed_type(name: str, p: ColumnProfile, q: ColumnProfile) -> Finding | None:
    """Say that a column is of another kind in Q, unless one side has no values that could tell."""
    if p.kind == q.kind or p.empty or q.empty:
        return None
    return Finding(name, "type_changed", f"{_quoted(name)} is {p.kind} in P and {q.kind} in Q: not compared")


def column_findings(
    name: str, p: ColumnProfile, q: ColumnProfile, new: Unshared, vanished: Unshared
) -> Iterator[Finding]:
    """Say what is remarkable about the values of a column, whatever the divergences are."""
    quoted = _quoted(name)
    sides = (("P", p), ("Q", q))
    if empty := [side for side, column in sides if column.empty]:
        yield Finding(name, "all_missing", f"{quoted} has no value in {' and '.join(empty)}")
    if constant := [side for side, column in sides if _is_constant(column)]:
        yield Finding(name, "constant", f"{quoted} has a single value in {' and '.join(constant)}")
    if q.missing > 0 and p.missing == 0:
        share = 100 * q.missing / q.total
        yield Finding(name, "new_missing", f"{quoted} is missing in {share:.3g} % of Q, in P nowhere")
    if found := [side for side, column in sides if column.not_a_number > 0]:
        yield Finding(name, "not_a_number", f"{quoted} holds NaN in {' and '.join(found)}: a cell of its own")
    if found := [side for side, column in sides if column.minus_infinity + column.plus_infinity > 0]:
        yield Finding(
            name,
            "infinite_values",
            f"{quoted} holds infinite numbers in {' and '.join(found)}: cells of their own",
        )
    yield from _category_findings(name, p, q, new, vanished)


class Unshared(NamedTuple):
    """Categories that only one side has: how many, and the most frequent of them."""

    number: int
    names: tuple[str, ...]


def unshared_categories(there: ColumnProfile, elsewhere: ColumnProfile) -> Unshared:
    """Return the categories of one side that the other does not have; none where that one's are not all named.

    Arguments:
        there: the side that has them.
        elsewhere: the side that does not.
    """
    if elsewhere.other_categories > 0 or elsewhere.empty:
        return Unshared(0, ())
    only = there.categories.keys() - elsewhere.categories.keys()
    # The smallest of these keys: the largest weight, and of equal ones the first name.
    names = heapq.nsmallest(MOST_NAMED, only, key=lambda category: (-there.categories[category], category))
    return Unshared(len(only), tuple(names))


def _category_findings(
    name: str, p: ColumnProfile, q: ColumnProfile, new: Unshared, vanished: Unshared
) -> Iterator[Finding]:
    quoted = _quoted(name)
    for kind, side, found in (("new_categories", "Q", new), ("vanished_categories", "P", vanished)):
        if found.number:
            yield Finding(name, kind, f"{quoted} has {_listed(found)} in {side} only")
    if unnamed := [side for side, column in (("P", p), ("Q", q)) if column.other_categories > 0]:
        whose = " and ".join(unnamed)
        yield Finding(
            name,
            "unnamed_categories",
            f"{quoted}: the profile of {whose} names only its most frequent categories; the others are compared as one",
        )


def _is_constant(column: ColumnProfile) -> bool:
    """Whether there are values, none missing, and all are the same."""
    if column.missing or column.empty:
        return False
    specials = (column.not_a_number, column.minus_infinity, column.plus_infinity, column.other_categories)
    held = len(column.buckets) + len(column.categories) + sum(part > 0 for part in specials)
    return held == 1 and column.minimum == column.maximum


def _listed(found: Unshared) -> str:
    shown = ", ".join(map(_quoted, found.names[:NAMED]))
    word = "category" if found.number == 1 else "categories"
    return f"{found.number:,} {word} ({shown}{', ...' if found.number > NAMED else ''})"


def _quoted(name: str) -> str:
    return f"'{name}'"


def _of_table(kind: str, message: str) -> Finding:
    return Finding(None, kind, message)
