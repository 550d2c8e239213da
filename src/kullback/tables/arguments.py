"""Checks of the arguments for columns, bins and randomness; their errors name the function that was called."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from kullback.common.constraints import CONFIDENCE, FLAG, GENERATOR, Arguments
from kullback.common.formats import listed
from kullback.common.shared_constraints import BINS
from kullback.common.words import nearest
from kullback.errors import (
    LONGEST_NAME,
    ArgumentValueError,
    invalid_type,
    invalid_value,
    printable,
    quoted,
    safe_repr,
)

MOST_NAMED = 10
ARGUMENTS = Arguments(
    "compare_tables",
    "compare_profiles",
    bins=BINS,
    confidence=CONFIDENCE,
    generator=GENERATOR,
    independent=FLAG,
)


def name_or_none(name: str | None) -> str:
    """Return a name in quotation marks, or None."""
    return "None" if name is None else quoted(name)


def names_of(call: str, argument: str, names: Sequence[str] | None) -> list[str] | None:
    """Return the names of columns as a list; None means all columns.

    A single string is refused, because its letters would count as names.
    """
    if names is None:
        return None
    if (listed := _strings(names)) is None:
        is_single = isinstance(names, str)
        got = f"the string {quoted(names)}" if is_single else printable(safe_repr(names), LONGEST_NAME)
        instead = {argument: [names if is_single else "amount"]}
        raise invalid_type(call, argument, wanted="a list of names of columns", got=got, instead=instead)
    return listed


def chosen_of(
    call: str, columns: Sequence[str] | None, exclude: Sequence[str] | None
) -> tuple[list[str] | None, list[str]]:
    """Return the names of the columns to use (None for all columns), and the names of the columns to leave out."""
    if columns is not None and exclude is not None:
        raise invalid_value(
            call,
            "exclude",
            wanted="columns= (--columns) or exclude= (--exclude), not both",
            got="both",
            instead="columns= (--columns) alone, without the names to leave out",
        )
    return names_of(call, "columns", columns), names_of(call, "exclude", exclude) or []


def check_column(call: str, argument: str, value: object) -> None:
    """Refuse a value that is neither the name of a single column nor None."""
    if value is not None and not isinstance(value, str):
        got = printable(safe_repr(value), LONGEST_NAME)
        raise invalid_type(
            call, argument, wanted="the name of a column", got=got, instead=f"{argument}='name'"
        )


def groups_of(call: str, joint: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return groups of two or more columns as tuples; refuse other groups."""
    several: Any = joint
    groups = list(several) if hasattr(several, "__iter__") and not isinstance(several, str) else [None]
    listed = list(map(_strings, groups))
    if any(names is None or len(set(names)) < 2 for names in listed):
        raise invalid_value(
            call,
            "joint",
            wanted="groups of two or more columns",
            got=printable(safe_repr(joint), LONGEST_NAME),
            instead={"joint": [("age", "income")]},
        )
    return [tuple(names) for names in listed if names is not None]


def refuse_unknown(
    call: str, argument: str, names: Iterable[str], there: Sequence[str], where: str = "the tables"
) -> None:
    """Refuse a name that no column has; the error suggests the most similar name."""
    name = next((name for name in names if name not in there), None)
    if name is None:
        return
    meant = nearest(name, there) or next(iter(there), "")
    pair = (meant, next((other for other in there if other != meant), ""))
    remedies: dict[str, object] = {
        "columns": [meant],
        "exclude": [meant],
        "joint": [pair],
        "keys": [(meant,)],
    }
    raise invalid_value(
        call,
        argument,
        wanted=f"columns of {where}",
        got=f"{quoted(name)}; there are {listed([*map(quoted, there)], MOST_NAMED) or 'none'}",
        instead={argument: remedies.get(argument, meant)} if there else "tables with columns",
    )


def no_further_column(
    call: str, columns: Sequence[str] | None, others: Sequence[str], exclude: Collection[str] = ()
) -> ArgumentValueError:
    """Return the error for a table with no column left to count; weights and clusters are never counted."""
    if columns is None:
        return invalid_value(
            call,
            "exclude",
            wanted="a column that is left",
            got=", ".join(map(quoted, exclude)),
            instead={"exclude": list(others[1:2])} if len(others) > 1 else "no exclude=",
        )
    return invalid_value(
        call,
        "columns",
        wanted="a column that is not for weights or clusters",
        got=", ".join(map(quoted, columns)) or "no name",
        instead={"columns": [others[0]]} if others else "tables with further columns",
    )


def _strings(value: object) -> list[str] | None:
    """Return an iterable of strings as a list; None for a single string and for any other value."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return None
    values = list(cast("Any", value))
    return values if all(isinstance(value, str) for value in values) else None
