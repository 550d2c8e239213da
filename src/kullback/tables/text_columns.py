"""Which columns of text are read as numbers or dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kullback.tables.columns.identifiers import identifies
from kullback.tables.columns.log_grid import bucket_ends
from kullback.tables.columns.types import ColumnType
from kullback.tables.columns.ways_of_writing import (
    LEAST_SHARE,
    Evidence,
    evidence_of_categories,
    have_enough_values,
    way_of,
)
from kullback.tables.columns.written_numbers import Written
from kullback.tables.engines.parsed_table import evidence_in

if TYPE_CHECKING:
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.engines.engine import Table

NUMBERS: frozenset[ColumnType] = frozenset(("numeric", "datetime"))
_LONGEST = 40  # characters of most texts that are dates


class Side(NamedTuple):
    """One of the tables whose columns are counted together.

    Attributes:
        columns: the profiles of its columns.
        table: the table; None where only profiles are known.
    """

    columns: Mapping[str, ColumnProfile]
    table: Table | None


def ways_to_read(sides: Sequence[Side], weights: str | None) -> list[dict[str, Written]]:
    """Return the columns of text of each side that are read as numbers or dates, and how these are written.

    Arguments:
        sides: the tables. The columns are those of the first one.
        weights: the column of the rows' weights.
    """
    texts = {name: _texts(name, sides, weighted=weights is not None) for name in sides[0].columns}
    read: list[Mapping[str, Evidence]] = []
    for at, side in enumerate(sides):
        long = [name for name, places in texts.items() if at in places and side.columns[name].gridded]
        read.append(evidence_in(side.table, long, weights) if long and side.table is not None else {})
    ways: list[dict[str, Written]] = [{} for _ in sides]
    for name, places in texts.items():
        if not places:
            continue
        evidence = [
            read[at].get(name) or evidence_of_categories(sides[at].columns[name], fewest=1) for at in places
        ]
        way = way_of(evidence, _other_type(name, sides, places))
        if isinstance(way, Written) and not any(_are_many_digits(of_side.get(name)) for of_side in read):
            for at, side in enumerate(sides):
                if at in places or _is_empty_text(name, side):
                    ways[at][name] = way
    return ways


def _texts(name: str, sides: Sequence[Side], *, weighted: bool) -> list[int]:
    """Return the sides where a column is text that may be numbers or dates; none if another side rules that out."""
    filled = {at: side.columns[name] for at, side in enumerate(sides) if name in side.columns}
    filled = {at: column for at, column in filled.items() if not column.empty}
    places = [at for at, column in filled.items() if _may_be_read(name, column, sides[at].table)]
    other_types = {column.column_type for at, column in filled.items() if at not in places}
    if not places or len(other_types) > 1 or not other_types <= NUMBERS:
        return []
    if not have_enough_values(filled.values()):
        return []
    is_identifier = not weighted and all(identifies(name, column) for column in filled.values())
    return [] if is_identifier else places


def _are_many_digits(evidence: Evidence | None) -> bool:
    """Return whether a column has more different texts than categories, most of them digits, as identifiers are."""
    return evidence is not None and evidence.get(("digits",), 0.0) > 0.5 * evidence["all",]


def _other_type(name: str, sides: Sequence[Side], places: Sequence[int]) -> ColumnType | None:
    """Return the type of a column on the other sides; None if it has no values there."""
    others = [
        side.columns[name] for at, side in enumerate(sides) if at not in places and name in side.columns
    ]
    return next((column.column_type for column in others if not column.empty), None)


def _is_empty_text(name: str, side: Side) -> bool:
    """Return whether a column of strings has no value, and so no type of its own."""
    if side.table is None or name not in side.columns:
        return False
    return side.columns[name].empty and side.table.fields[name].column_type == "string"


def _may_be_read(name: str, column: ColumnProfile, table: Table | None) -> bool:
    """Return whether a column is one of strings, whose type does not say that they are categories, and not long."""
    if table is None or table.fields[name].column_type != "string":
        return False
    if column.column_type == "categorical":
        return True
    length = column.quantile_bucket(LEAST_SHARE)
    return (
        column.column_type == "text"
        and length is not None
        and bucket_ends(length, column.center)[0] <= _LONGEST
    )
