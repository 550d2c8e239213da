"""The type of a column, by its values: identifiers; and for strings categories, text, numbers, dates or times.

`identifies` recognizes identifiers: nearly every row has its own value, and the values are neither amounts nor dates.
`is_text` distinguishes text from categories. `ways_to_read` returns the columns of strings that are numbers or dates:
at least 90 % of each side's texts are numbers or dates in one format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kullback.common.words import is_name_of_ids
from kullback.tables.columns.log_grid import bucket_ends
from kullback.tables.columns.written_numbers import (
    FEWEST_NUMBERS,
    SEPARATORS,
    Evidence,
    Written,
    are_codes,
    are_digits,
    evidence_of,
    may_be_values,
    shares,
)

if TYPE_CHECKING:
    from kullback.tables.columns.column_profile import ColumnProfile
    from kullback.tables.columns.types import ColumnType

_FEWEST_ROWS = 20
_DIFFERENT = 0.9  # identifiers have at least this ratio of different values to rows
# Integers identify rows if their range is at least this share of the number of rows. A column of text holds amounts if
# more than this share of its texts are amounts.
_MOST = 0.5
_MOST_READ = 20_000  # at most this many texts are examined
_SAMPLE = 1000  # a sample has this many of the most frequent texts, and this many others
_SUSPECTED = 0.3  # all texts are examined if at least this share of the sample may be numbers or dates
_DIGITS_OF_CODE = 8  # numbers of one length with at least this many digits are codes


def identifies(name: str, column: ColumnProfile) -> bool:
    """Return whether nearly every row, without weights, has its own value, which is neither an amount nor a date."""
    rows = column.present
    if rows < _FEWEST_ROWS:
        return False
    if column.column_type == "categorical":
        # A saved profile names the most frequent values. If each of these occurs once, so does every other value.
        single = column.other_categories > 0 and max(column.categories.values(), default=2) == 1
        different = len(column.categories) + (column.other_categories if single else 0)
        return different >= _DIFFERENT * rows and not _are_amounts(name, column, different)
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


def _are_amounts(name: str, column: ColumnProfile, different: float) -> bool:
    """Return whether most texts are dates or amounts, and not codes or row numbers."""
    texts = texts_of(column)
    texts = texts.take(np.arange(0, len(texts), 1 + len(texts) // _MOST_READ))
    evidence = evidence_of(texts, np.ones(len(texts)))
    digits = are_digits(texts)
    of_codes = digits & are_codes(texts)
    of_dates, of_numbers = (evidence.get(("shape", what), 0.0) for what in ("dates", "numbers"))
    with_more = of_numbers - (digits & ~of_codes).sum()
    if of_dates + with_more > _MOST * len(texts):
        return True
    if of_dates + of_numbers <= _MOST * len(texts) or is_name_of_ids(name):
        return False
    numbers = [text.strip() for text in texts.filter(digits & ~of_codes).to_pylist()]
    lengths = set(map(len, numbers))
    is_code = lengths == {max(lengths)} and max(lengths) >= _DIGITS_OF_CODE
    values = [int(number) for number in numbers]
    is_consecutive = max(values) - min(values) < different / _DIFFERENT
    return not (is_code or is_consecutive)


MAX_CATEGORIES = 2_000_000
TEXT_LENGTH = 32
TEXT_VALUES = 256
NUMBERS: frozenset[ColumnType] = frozenset(("numeric", "datetime"))
LEAST_SHARE = 0.9  # a column is read as numbers or dates if at least this share of each side's texts are
# A column is not read as numbers or dates if more than a tenth of its texts have more characters than this.
_LONGEST = 40
# The first of two ways is right under two conditions. The texts that only this way reads weigh more than _RATIO times
# as much as the texts that only the second way reads. They also weigh more than _LEAST_EVIDENCE of all texts.
_RATIO = 9.0
_LEAST_EVIDENCE = 0.005
_FEW = f"there are fewer than {FEWEST_NUMBERS} different ones"


def evidence_of_categories(column: ColumnProfile, fewest: int = FEWEST_NUMBERS) -> Evidence:
    """Return the evidence of the named categories of a column.

    Below `fewest` categories, or if a sample has few numbers and dates, it is only the weight of all texts.
    """
    import pyarrow as pa

    number = len(column.categories)
    weights = np.fromiter(column.categories.values(), np.float64, number)
    all_alone = {("all",): float(weights.sum())}
    if number < max(fewest, 1):
        return all_alone
    texts = texts_of(column)
    if weights[may_be_values(texts)].sum() < _SUSPECTED * weights.sum():
        return all_alone
    if number > 2 * _SAMPLE:
        heaviest = np.argpartition(weights, -_SAMPLE)[-_SAMPLE:]
        rest = np.setdiff1d(np.arange(number), heaviest)
        spaced = rest[:: len(rest) // _SAMPLE]
        scale = weights[rest].sum() / weights[spaced].sum()
        sample = pa.array(np.concatenate([heaviest, spaced]))
        sampled = np.concatenate([weights[heaviest], scale * weights[spaced]])
        if max(shares(evidence_of(texts.take(sample), sampled)).values()) < _SUSPECTED:
            return all_alone
    return evidence_of(texts, weights)


def texts_of(column: ColumnProfile) -> Any:
    """Return the named categories of a column as an Arrow array."""
    import pyarrow as pa

    return pa.array(list(column.categories), pa.large_string())


def is_text(rows: int, characters: int, distinct: int) -> bool:
    """Return whether strings are text: above 256 different ones of 32 characters on average, or above two million."""
    return distinct > MAX_CATEGORIES or (distinct > TEXT_VALUES and characters >= TEXT_LENGTH * rows)


class Side(NamedTuple):
    """One of the tables that are compared, with the profiles of its columns and the names of the columns of strings.

    `evidence` reads the table and returns the evidence on columns of text; it is None if only profiles are known.
    """

    columns: Mapping[str, ColumnProfile]
    strings: Collection[str] = ()
    evidence: Callable[[Sequence[str]], Mapping[str, Evidence]] | None = None


def ways_to_read(sides: Sequence[Side], *, weighted: bool) -> list[dict[str, Written]]:
    """Return, for each side, the first side's text columns to read as numbers or dates, and the format of each."""
    texts = {name: _texts(name, sides, weighted=weighted) for name in sides[0].columns}
    read: list[Mapping[str, Evidence]] = []
    for at, side in enumerate(sides):
        long = [name for name, (places, _) in texts.items() if at in places and side.columns[name].gridded]
        read.append(side.evidence(long) if long and side.evidence is not None else {})
    ways: list[dict[str, Written]] = [{} for _ in sides]
    for name, (places, other_type) in texts.items():
        if not places:
            continue
        evidence = [
            read[at].get(name) or evidence_of_categories(sides[at].columns[name], fewest=1) for at in places
        ]
        way = _way_of(evidence, other_type)
        if isinstance(way, Written) and not any(_are_many_digits(of_side.get(name)) for of_side in read):
            for at, side in enumerate(sides):
                if at in places or (name in side.strings and side.columns[name].empty):
                    ways[at][name] = way
    return ways


def reason_against(name: str, p: ColumnProfile, q: ColumnProfile) -> str | None:
    """Return the reason why a column of text that mostly holds numbers or dates is compared as categories; None if it
    mostly holds other texts."""
    sides = [column for column in (p, q) if not column.empty]
    texts = [evidence_of_categories(each, fewest=1) for each in sides if each.column_type == "categorical"]
    if not any(
        evidence.get(("shape", what), 0.0) > 0.5 * evidence["all",]
        for evidence in texts
        for what in ("numbers", "dates")
    ):
        return None
    if all(identifies(name, column) for column in sides):
        return "they identify rows"
    if not _have_enough_values(sides):
        return _FEW
    types = {each.column_type for each in sides} - {"categorical"}
    way = _way_of(texts, types.pop() if types else None)
    return "its type or its profile says that they are categories" if isinstance(way, Written) else way


def _texts(name: str, sides: Sequence[Side], *, weighted: bool) -> tuple[list[int], ColumnType | None]:
    """Return the places of the sides where text may be numbers or dates, and the column's type on the other sides."""
    filled = {at: side.columns[name] for at, side in enumerate(sides) if name in side.columns}
    filled = {at: column for at, column in filled.items() if not column.empty}
    places = [at for at, column in filled.items() if name in sides[at].strings and _may_be_read(column)]
    other_types: set[ColumnType] = {column.column_type for at, column in filled.items() if at not in places}
    if not places or len(other_types) > 1 or not other_types <= NUMBERS:
        return [], None
    is_identifier = not weighted and all(identifies(name, column) for column in filled.values())
    if is_identifier or not _have_enough_values(filled.values()):
        return [], None
    return places, next(iter(other_types), None)


def _may_be_read(column: ColumnProfile) -> bool:
    """Return whether the texts of a column are short enough for numbers or dates."""
    if column.column_type == "categorical":
        return True
    length = column.quantile_bucket(LEAST_SHARE)
    return (
        column.column_type == "text"
        and length is not None
        and bucket_ends(length, column.center)[0] <= _LONGEST
    )


def _are_many_digits(evidence: Evidence | None) -> bool:
    """Return whether most texts of a long column are digits, as identifiers are; False if there is no evidence."""
    return evidence is not None and evidence.get(("digits",), 0.0) > 0.5 * evidence["all",]


def _have_enough_values(columns: Iterable[ColumnProfile]) -> bool:
    """Return whether a column has too many different values on one side for codes or ratings."""
    return any(
        column.column_type == "text" or len(column.categories) + len(column.buckets) >= FEWEST_NUMBERS
        for column in columns
    )


def _way_of(sides: Sequence[Evidence], column_type: str | None = None) -> Written | str:
    """Return the format of a column, or the reason against one; `column_type` is the type of a side that is no text."""
    likely = [_likely(side) for side in sides]
    ways = [way for way in likely[0] if all(way in of_side for of_side in likely)] if likely else []
    if column_type is not None:
        of_type = [way for way in ways if way.means_like(None) and way.field("").column_type == column_type]
        if ways and not of_type:
            return f"the other side's values are not {ways[0]}"
        ways = of_type
    if not ways:
        differ = bool(likely) and all(likely)
        return "P and Q write them differently" if differ else "fewer than 90 % are written in one way"
    if ways[0].what == "numbers" and any(side.get(("codes",)) for side in sides):
        return "some begin with 0 or have more than 15 digits, as codes"
    if column_type is None and max(side["different", way] for side in sides for way in ways) < FEWEST_NUMBERS:
        return _FEW
    rivals = {Written(*key[1]) for side in sides for key in side if key[0] == "read"}
    winners = [way for way in ways if all(_beats(way, rival, sides) for rival in rivals - {way})]
    if not winners:
        return _doubt(ways[0], sides)
    best = max(winners, key=lambda way: sum(side["read", way] for side in sides))
    return best if best.what != "numbers" else best._replace(separators=_separators(best, sides))


def _likely(side: Evidence) -> list[Written]:
    """Return the ways that read at least 90 % of the texts of a side."""
    least = LEAST_SHARE * side.get(("all",), 0.0)
    return [Written(*key[1]) for key, weight in side.items() if key[0] == "read" and weight >= least]


def _beats(way: Written, rival: Written, sides: Sequence[Evidence]) -> bool:
    """Return whether the first way is certainly right for all texts that have different values in the two ways."""
    for at, side in enumerate(sides):
        marks = _contested(way, rival, side)
        if not marks:
            continue
        own = _balance(way, rival, side)
        if own < 0 or (own == 0 and _divided(way, rival, side)):
            return False
        others = [
            _balance(way, rival, other)
            for place, other in enumerate(sides)
            if place != at and all(other.get(("uses", way.what, way.unit, mark)) for mark in marks)
        ]
        # Programs write a decimal point. If the points separated thousands, some numbers would have no point.
        usual = way.what == "numbers" and way.form == "." and marks == ["."] and not side.get(("plain", way))
        if own == 0 and max(others, default=0) <= 0 and not (usual and min(others, default=0) >= 0):
            return False
    # A side without contested texts may show that the other way is right.
    return not (
        any(_contested(way, rival, side) for side in sides)
        and min(_balance(way, rival, side) for side in sides) < 0
    )


def _contested(way: Written, rival: Written, side: Evidence) -> list[str]:
    """Return the separators in the texts that have different values in the two ways."""
    return [key[3] for key in side if key[:3] == ("contested", way, rival)]


def _balance(way: Written, rival: Written, side: Evidence) -> int:
    """Return 1 if the texts that only one way reads prove the first way, -1 if they prove the second way, else 0."""
    first, second = side.get(("only", way, rival), 0.0), side.get(("only", rival, way), 0.0)
    least = _LEAST_EVIDENCE * side["all",]
    return int(first > max(least, _RATIO * second)) - int(second > max(least, _RATIO * first))


def _divided(way: Written, rival: Written, side: Evidence) -> bool:
    return ("only", way, rival) in side or ("only", rival, way) in side


def _separators(way: Written, sides: Sequence[Evidence]) -> str:
    """Return the separators of thousands; only certain ones if some texts have the other decimal separator."""
    rival = way._replace(form="," if way.form == "." else ".")
    doubtful = any(side.get(("only", rival, way)) for side in sides)
    kind = "separates surely" if doubtful else "separates"
    return "".join(each for each in SEPARATORS if any(side.get((kind, way, each)) for side in sides))


def _doubt(way: Written, sides: Sequence[Evidence]) -> str:
    """Return the reason why no way is certain."""
    if way.what == "dates":
        return "the order of day, month and year is not certain"
    marks = {key[3] for side in sides for key in side if key[0] == "contested"}
    of_marks = " and ".join("commas" if mark == "," else "points" for mark in sorted(marks))
    return f"it is not certain whether {of_marks} are decimal ones or separate thousands"
