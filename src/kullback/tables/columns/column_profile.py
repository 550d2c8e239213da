"""The profile of one column: the weights of grid buckets or of categories, and the weight of missing values."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar, get_args

from kullback.common.plain_values import JsonObject
from kullback.common.short_repr import ShortRepr
from kullback.errors import LONGEST_NAME, FileError, invalid_value, printable, quoted, safe_repr
from kullback.tables.columns.bins import SPECIALS
from kullback.tables.columns.log_grid import FARTHEST_CENTER, MOST_BUCKET
from kullback.tables.columns.types import GRIDDED, ColumnType
from kullback.tables.columns.word_groups import WORD_GROUPS
from kullback.tables.columns.written_numbers import Written

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(repr=False)
class ColumnProfile(ShortRepr):
    """The counts of one column, which add up over parts of a table.

    Every count is a sum of row weights; each row has the weight 1 if the table has no weights.

    Attributes:
        column_type: ``"numeric"``; ``"boolean"``; ``"categorical"``; ``"datetime"`` for timestamps and dates, in
            microseconds since 1970, in UTC if there is a time zone; or ``"text"`` for many long strings, whose lengths
            and words are counted.
        center: the center of the grid (see `kullback.tables.columns.log_grid`) of numbers, timestamps and lengths.
        buckets: the weight of every occupied bucket.
        categories: the weight of every category; the categories of a boolean column are ``"false"`` and ``"true"``.
        missing: the weight of missing values.
        not_a_number: the weight of NaN, which is not counted as missing.
        minus_infinity: the weight of minus infinity.
        plus_infinity: the weight of infinity.
        minimum: the smallest finite number, an int if the type holds integers; None if there is no finite number.
        maximum: the largest finite number; None if there is no finite number.
        other_categories: the weight of the categories that a shortened profile no longer names.
        integer: whether the type of the column holds integers only.
        zoned: whether timestamps have a time zone; None for dates, for other types, and if parts of the table differ.
        words: for texts, the weight of the rows with a word of a group, by the group's number (see
            `kullback.tables.columns.word_groups`). None for other types, and if words were not counted.
        written: the format of the numbers or dates in a column of text; None for other columns.
        unparsed: the weight of the texts that do not have this format; `missing` includes this weight.
        unparsed_texts: the weights of the most frequent texts that do not have this format.
        unseparated: the weight of the numbers that differ from the center but share its bucket.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import profile_table
        >>> column = profile_table(pa.table({"plan": ["a", "a", None]})).columns["plan"]
        >>> column.column_type, column.categories, column.missing
        ('categorical', {'a': 2.0}, 1.0)
    """

    column_type: ColumnType
    center: float = 0.0
    buckets: dict[int, float] = field(default_factory=dict[int, float])
    categories: dict[str, float] = field(default_factory=dict[str, float])
    missing: float = 0.0
    not_a_number: float = 0.0
    minus_infinity: float = 0.0
    plus_infinity: float = 0.0
    minimum: float | None = None
    maximum: float | None = None
    other_categories: float = 0.0
    integer: bool = False
    zoned: bool | None = None
    words: dict[int, float] | None = None
    written: Written | None = None
    unparsed: float = 0.0
    unparsed_texts: dict[str, float] = field(default_factory=dict[str, float])
    unseparated: float = 0.0

    @property
    def gridded(self) -> bool:
        """Whether the column is counted on the grid, as numbers, timestamps and lengths are."""
        return self.column_type in GRIDDED

    @property
    def present(self) -> float:
        """The weight of all values that are not missing."""
        specials = self.not_a_number + self.minus_infinity + self.plus_infinity
        return sum(self.buckets.values()) + sum(self.categories.values()) + self.other_categories + specials

    @property
    def total(self) -> float:
        """The weight of all rows."""
        return self.present + self.missing

    @property
    def empty(self) -> bool:
        """Whether every value is missing, or there is no row."""
        return self.present == 0

    def quantile_bucket(self, probability: float) -> int | None:
        """Return the bucket that holds a quantile of the finite numbers; None if there are no finite numbers."""
        target, reached, last = probability * sum(self.buckets.values()), 0.0, None
        for bucket in sorted(self.buckets):
            reached, last = reached + self.buckets[bucket], bucket
            if reached >= target:
                break
        return last

    def merged(self, other: ColumnProfile, name: str = "") -> ColumnProfile:
        """Return the sum of the counts of two parts; a part without values takes the other part's type and grid.

        Raises:
            ArgumentValueError: the parts have different types or grids.
        """
        for one, another in ((self, other), (other, self)):
            if one.empty and not one.counted_like(another):
                unparsed = {
                    "unparsed": self.unparsed + other.unparsed,
                    "unparsed_texts": most_frequent(combined(self.unparsed_texts, other.unparsed_texts)),
                }
                return replace(another, missing=another.missing + one.missing, **unparsed)
        if not self.counted_like(other):
            parts = " and ".join(f"{each.column_type} around {each.center:g}" for each in (self, other))
            raise invalid_value(
                "Profile.merge",
                "other",
                wanted="columns counted alike",
                got=f"column {quoted(name)}: {parts}",
                instead="profile_table(second, like=first), which counts both alike",
            )
        return ColumnProfile(
            self.column_type,
            self.center,
            combined(self.buckets, other.buckets),
            combined(self.categories, other.categories),
            minimum=_extreme(min, self.minimum, other.minimum),
            maximum=_extreme(max, self.maximum, other.maximum),
            integer=self.integer and other.integer,
            zoned=self.zoned if self.zoned == other.zoned else None,
            words=None if self.words is None or other.words is None else combined(self.words, other.words),
            written=self.written or other.written,
            unparsed_texts=most_frequent(combined(self.unparsed_texts, other.unparsed_texts)),
            **{name: getattr(self, name) + getattr(other, name) for name in _WEIGHTS},
        )

    def counted_like(self, other: ColumnProfile) -> bool:
        """Whether two profiles are counted on the same grid, from values that are written in the same way."""
        alike = self.column_type == other.column_type and self.center == other.center
        return alike and self.means_like(other)

    def means_like(self, other: ColumnProfile) -> bool:
        """Whether equal numbers of two columns have the same meaning, even if a column is read from text."""
        one, another = (self, other) if self.written is not None else (other, self)
        return one.written is None or one.written.means_like(another.written)

    def shortened(self, categories: int) -> ColumnProfile:
        """Return the profile with names for the heaviest categories only; `other_categories` sums up the rest."""
        if len(self.categories) <= categories:
            return self
        order = sorted(self.categories, key=lambda name: (-self.categories[name], name))
        named = {name: self.categories[name] for name in sorted(order[:categories])}
        rest = sum(self.categories[name] for name in order[categories:])
        return replace(self, categories=named, other_categories=self.other_categories + rest)

    def to_object(self) -> JsonObject:
        """Return the profile as an object of JSON, with the differences of bucket numbers and without zeros."""
        written: JsonObject = {"column_type": self.column_type}
        if self.buckets:
            written["buckets"] = _steps(self.buckets)
        if self.words is not None:
            written["words"] = _steps(self.words)
        if self.categories:
            written["categories"] = {name: _short(weight) for name, weight in sorted(self.categories.items())}
        for name in _PLAIN:
            value = getattr(self, name)
            if value not in {0, None}:
                written[name] = _short(value)
        if self.zoned is not None:
            written["zoned"] = self.zoned
        if self.written is not None:
            written["written"] = self.written.to_object()
        if self.unparsed_texts:
            written["unparsed_texts"] = {name: _short(weight) for name, weight in self.unparsed_texts.items()}
        # A minimum of 0 is written, because a minimum that is not written is None.
        written.update({name: 0 for name in ("minimum", "maximum") if getattr(self, name) == 0})
        return written

    @staticmethod
    def from_object(written: JsonObject) -> ColumnProfile:
        """Return the profile from the result of `to_object`.

        Raises:
            FileError: the object is not in the form that `to_object` writes.
        """
        try:
            return _read(written)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise FileError.at(
                "",
                "text",
                wanted="a column's profile",
                got=reason,
                instead="write the profile again",
                wording="{wanted} cannot be read ({got}); {instead}",
            ) from None


# The attributes that hold a weight, and the attributes that JSON holds unchanged.
_WEIGHTS = (*SPECIALS.values(), "other_categories", "unparsed", "unseparated")
_PLAIN = (
    *("center", *SPECIALS.values(), "minimum", "maximum", "other_categories", "integer", "unparsed"),
    "unseparated",
)
_MOST_UNPARSED = 5  # a profile names at most this many unparsed texts


def combined(first: dict[_Key, float], second: dict[_Key, float]) -> dict[_Key, float]:
    """Return the weights of two dictionaries, added up for each key."""
    total = dict(first)
    for key, weight in second.items():
        total[key] = total.get(key, 0.0) + weight
    return total


def most_frequent(texts: dict[str, float]) -> dict[str, float]:
    """Return the few texts with the largest weights."""
    heaviest = sorted(texts, key=lambda text: (-texts[text], text))[:_MOST_UNPARSED]
    return {text: texts[text] for text in heaviest}


def _steps(weights: dict[int, float]) -> JsonObject:
    """Return the differences of the sorted numbers, and the weights in the same order."""
    order = sorted(weights)
    steps = [number - before for before, number in zip([0, *order], order, strict=False)]
    return {"steps": steps, "weights": [_short(weights[number]) for number in order]}


def _from_steps(written: Any) -> dict[int, float]:
    numbers = accumulate(map(int, written["steps"]))
    return dict(zip(numbers, map(_number, written["weights"]), strict=True))


def _read(written: JsonObject) -> ColumnProfile:
    if written["column_type"] not in get_args(ColumnType):
        raise ValueError(f"unknown column type {printable(safe_repr(written['column_type']), LONGEST_NAME)}")
    numbers: JsonObject = {
        name: bool(written[name]) if name == "integer" else _number(written[name])
        for name in _PLAIN
        if name in written
    }
    buckets = _from_steps(written["buckets"]) if "buckets" in written else {}
    words = _from_steps(written["words"]) if "words" in written else None
    categories = {
        str(name): _number(weight) for name, weight in written.get("categories", {}).items() if weight
    }
    zoned = None if written.get("zoned") is None else bool(written["zoned"])
    column = ColumnProfile(
        written["column_type"], buckets=buckets, categories=categories, zoned=zoned, words=words, **numbers
    )
    if "written" in written:
        column.written = Written.from_object(written["written"])
        texts = written.get("unparsed_texts", {})
        column.unparsed_texts = {str(text): _number(weight) for text, weight in texts.items()}
    _check(column)
    return column


def _check(column: ColumnProfile) -> None:
    """Refuse impossible counts."""
    counts = [*column.buckets.values(), *column.categories.values()]
    counts += [*column.unparsed_texts.values(), *(getattr(column, name) for name in _WEIGHTS)]
    if min(counts) < 0:
        raise ValueError(f"a count of {min(counts):g}")
    if column.buckets and max(map(abs, column.buckets)) > MOST_BUCKET:
        raise ValueError("a bucket beyond the grid")
    if abs(column.center) > FARTHEST_CENTER:
        raise ValueError(f"a center of {column.center:g}")
    if column.categories if column.gridded else column.buckets:
        raise ValueError(f"counts that a column of type {column.column_type} does not have")
    low, high = column.minimum, column.maximum
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        raise ValueError("a minimum and a maximum that do not fit")
    if column.words is not None:
        if column.column_type != "text" or not all(0 <= group < WORD_GROUPS for group in column.words):
            raise ValueError("words that the column does not have")
        if not all(0 <= weight <= column.present * (1 + 1e-6) for weight in column.words.values()):
            raise ValueError("words of more rows than have texts")
    _check_written(column)
    if column.buckets and low is None:
        raise ValueError("numbers without a minimum")


def _check_written(column: ColumnProfile) -> None:
    """Refuse impossible counts of parsed text."""
    if column.written is not None and column.written.field("").column_type != column.column_type:
        raise ValueError("values of another type than the way they are written")
    if column.unparsed > column.missing * (1 + 1e-6):
        raise ValueError("more texts without a value than missing values")


def _number(written: Any) -> float:
    """Return a number from JSON, which has to be finite; large integers stay exact."""
    value = written if isinstance(written, int) and abs(written) >= 2**53 else float(written)
    if isinstance(written, str) or not math.isfinite(value):
        raise ValueError(f"{printable(safe_repr(written), LONGEST_NAME)} is not a number")
    return value


def _short(value: float | bool) -> float | int | bool:
    """Return a weight, as an int if it is whole, because ints are shorter in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _extreme(choose: Any, first: float | None, second: float | None) -> float | None:
    known = [value for value in (first, second) if value is not None]
    return choose(known) if known else None
