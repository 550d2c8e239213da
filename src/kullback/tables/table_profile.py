"""Profiles of tables: the weight of every bucket of a fixed grid and of every category, for each column.

A table is read once. It is read again if a column's values are close together but far from the grid's center, or if a
column of text holds numbers or dates. The profiles of parts of a table add up to the profile of the whole table,
exactly if there are no weights. Bins are chosen from profiles (`kullback.tables.choose_bins`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from kullback.common.extra_arguments import by_name
from kullback.common.files import check_input, write_all
from kullback.common.plain_values import JsonObject
from kullback.common.short_repr import ShortRepr
from kullback.errors import (
    LONGEST_MESSAGE,
    LONGEST_NAME,
    ArgumentValueError,
    FileError,
    invalid_type,
    invalid_value,
    printable,
    quoted,
    safe_repr,
)
from kullback.tables.arguments import (
    check_column,
    chosen_of,
    name_or_none,
    no_further_column,
    refuse_unknown,
)
from kullback.tables.columns.column_profile import ColumnProfile, most_frequent
from kullback.tables.columns.log_grid import FARTHEST_CENTER, PER_OCTAVE, bucket_ends, integers_in
from kullback.tables.columns.text_types import NUMBERS, Side, ways_to_read
from kullback.tables.columns.types import Field
from kullback.tables.columns.written_numbers import Evidence, Written
from kullback.tables.engines import open_table
from kullback.tables.engines.counters import EndsCounter, EvidenceCounter, ProfileCounter, counter_of
from kullback.tables.engines.engine import ParsedTable, Table, TableCounter, is_text_field, unparsed_of
from kullback.tables.row_order import RowOrder, row_order

SCHEMA = "kullback.profile/2"
SAVED_CATEGORIES = 1000
ROUNDS = 6
Progress = Callable[[str], object]


@dataclass(repr=False)
class Profile(ShortRepr):
    """The counts of a table.

    Attributes:
        columns: the profile of each column, by name, in the table's order.
        rows: the number of rows.
        weight: the sum of the rows' weights, :math:`\\sum_i w_i`; the number of rows if rows have no weights.
        weight_squares: :math:`\\sum_i w_i^2`; the effective number of rows follows from `weight` and this sum.
        skipped: the columns that cannot be profiled, each with the reason.
        weights: the column of the rows' weights; None if rows have no weights.
        order: the dependence of rows on each other, measured from the first rows; None if their order was not examined.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.table_profile import profile_table
        >>> profile = profile_table(pa.table({"x": [1, 2, None], "s": ["a", "b", "a"]}))
        >>> profile.columns["s"].categories["a"], profile.columns["x"].missing
        (2.0, 1.0)
    """

    columns: dict[str, ColumnProfile]
    rows: int
    weight: float
    weight_squares: float
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    weights: str | None = None
    order: RowOrder | None = field(default=None, compare=False)

    def merge(self, other: Profile) -> Profile:
        """Return the profile of both parts together.

        Arguments:
            other: the profile of the other part, counted with ``like=`` this profile.

        Returns:
            a new profile, equal to the profile of the whole table.

        Raises:
            ArgumentValueError: the two profiles have different columns or weights, or count a column differently.
        """
        if self.weights != other.weights:
            raise _not_alike(
                f"weights from {name_or_none(self.weights)} and from {name_or_none(other.weights)}"
            )
        if self.columns.keys() | self.skipped.keys() != other.columns.keys() | other.skipped.keys():
            differing = sorted(self.columns.keys() ^ other.columns.keys())
            raise _not_alike(f"columns that only one of them has: {', '.join(map(quoted, differing))}")
        skipped = self.skipped | other.skipped
        columns = {
            name: column.merged(other.columns[name], name)
            for name, column in self.columns.items()
            if name not in skipped
        }
        squares = self.weight_squares + other.weight_squares
        order = None if self.order is None or other.order is None else self.order.merged(other.order)
        weight = self.weight + other.weight
        return Profile(columns, self.rows + other.rows, weight, squares, skipped, self.weights, order)

    def to_json(self, categories: int = SAVED_CATEGORIES) -> str:
        """Return the profile as JSON of a few KB for each column.

        Arguments:
            categories: the largest number of categories to name for each column. The heaviest categories are named, and
                the weights of the others are summed up.

        Returns:
            one line of JSON, with the schema ``"kullback.profile/2"``.
        """
        columns = {name: column.shortened(categories).to_object() for name, column in self.columns.items()}
        head: JsonObject = {"schema": SCHEMA, "rows": self.rows, "weight": self.weight}
        head |= {"weight_squares": self.weight_squares, "weights": self.weights, "skipped": self.skipped}
        if self.order is not None:
            head["order"] = self.order.to_object()
        return json.dumps(head | {"columns": columns}, separators=(",", ":"), ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> Profile:
        """Return the profile from the result of `to_json`.

        Raises:
            FileError: the text is not a profile, or is a profile of another version.
        """
        try:
            written: Any = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise _unreadable(f"no JSON ({error})") from None
        schema = written.get("schema") if isinstance(written, dict) else None
        if schema != SCHEMA:
            raise _unreadable(f"schema {printable(safe_repr(schema), LONGEST_NAME)}")
        try:
            return _read(written)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _unreadable(f"a damaged profile ({type(error).__name__}: {error})") from None

    def save(self, path: str | os.PathLike[str], categories: int = SAVED_CATEGORIES) -> None:
        """Write the profile to a file. An existing file is replaced in one step, and a link keeps its target.

        Raises:
            FileError: the file cannot be written, or its path exists and is not an ordinary file.
        """
        write_all({path: self.to_json(categories) + "\n"})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Return the profile from a file of `save`.

        Raises:
            FileError: the file does not exist, or is not a profile.
        """
        check_input(path, "path")
        place = f"path = {path}"
        try:
            return Profile.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise FileError.at(
                place, "path", wanted="a profile", got=reason, instead="check the path"
            ) from None
        except FileError as error:
            raise error.replace(argument="path", place=place) from None


@by_name()
def profile_table(
    frame: object,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    weights: str | None = None,
    like: Profile | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Count the columns of a table with the table's own engine.

    `Profile.skipped` names the columns that cannot be profiled (nested values, bytes, objects of several types), with
    the reasons. If `columns` names such a column, an error is raised. A column of text is counted as numbers or dates
    if at least 90 % of its texts have the same form without any ambiguity (`ColumnProfile.written`).

    Arguments:
        frame: a path to a Parquet, CSV or NDJSON file (``*`` matches many files), or a table of pandas, Polars (also
            lazy), PyArrow, DuckDB, Dask, PySpark or Ibis. A file may be larger than memory.
        columns: the names of the columns to count; None counts all columns.
        exclude: the names of the columns to leave out; cannot be combined with `columns`.
        weights: the column of the rows' weights; None gives each row the weight 1.
        like: a profile whose column types and grids are used, so that the two profiles can be compared and merged. If
            `like` reads a column of text as numbers or dates, the text of this column is read in the same way. None
            chooses types and grids from the table.
        progress: a function that is called with a sentence before each reading of the table; None reports nothing.

    Returns:
        the profile. All engines give the same profile for the same content, up to the rounding of sums of weights.

    Raises:
        ArgumentTypeError: the frame is not a table.
        ArgumentValueError: a requested or excluded column does not exist, a requested column cannot be profiled, or two
            columns have the same name. It is also raised for both `columns` and `exclude`, and for a negative or
            infinite weight.
        FileError: a file is missing, damaged or of an unknown format.
        OptionalDependencyError: a package is missing; the error names it.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"x": [0.5, float("nan"), None, 0.5], "t": [True, False, True, True]})
        >>> profile = profile_table(table)
        >>> profile.rows, profile.columns["x"].not_a_number, profile.columns["t"].categories["true"]
        (4, 1.0, 3.0)

    References:
        DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees (Masson, Rim and Lee, 2019)
    """
    if like is not None and not isinstance(like, Profile):
        got = type(like).__name__
        instead = "like=profile_table(reference)"
        raise invalid_type("profile_table", "like", wanted="a Profile", got=got, instead=instead)
    columns, excluded = chosen_of("profile_table", columns, exclude)
    check_column("profile_table", "weights", weights)
    table = open_table(frame)
    refuse_unknown("profile_table", "exclude", excluded, list(table.fields), "the table")
    counting = Counting(weights, like, progress)
    return profile_opened(table, columns, counting, exclude=excluded)


class Counting(NamedTuple):
    """The column of weights, the profile whose types and grids are used, and the function that reports progress."""

    weights: str | None
    like: Profile | None
    progress: Progress | None

    def tell(self, sentence: str) -> None:
        """Report progress."""
        if self.progress is not None:
            self.progress(sentence)


def profile_opened(
    table: Table, columns: Sequence[str] | None, counting: Counting, *, exclude: Collection[str] = ()
) -> Profile:
    """Count the columns of an open table, as `profile_table` does, and examine the order of its rows."""
    counted = count_opened(table, columns, counting, exclude=exclude)
    others = {} if counting.like is None else counting.like.columns
    # A column that the other profile counts as categories is counted as categories too.
    undecided = {
        name: column
        for name, column in counted.profile.columns.items()
        if name not in others or others[name].empty or others[name].column_type in NUMBERS
    }
    side = counted.side()._replace(columns=undecided)
    ways = ways_to_read([side, Side(others)], weighted=counting.weights is not None)[0]
    return counted.parsed(ways).finished(independent=False)


@dataclass(frozen=True)
class CountedTable:
    """A table, with parsed columns of text, whose columns are counted; its order of rows is not examined yet."""

    table: Table
    profile: Profile
    counting: Counting

    def parsed(self, ways: Mapping[str, Written], *, again: Collection[str] = ()) -> CountedTable:
        """Return the table with text counted in these `ways`, and `again` with the types of `Counting.like`."""
        names = [name for name in self.profile.columns if name in ways or name in again]
        if not names:
            return self
        self.counting.tell(f"counting {len(names)} columns of text as numbers or dates")
        table = ParsedTable(self.table, ways) if ways else self.table
        columns = _counted(table, names, ways, self.counting)[1]
        return replace(
            self, table=table, profile=replace(self.profile, columns=self.profile.columns | columns)
        )

    def side(self) -> Side:
        """Return the profiles and the evidence that decide which columns of text are numbers or dates."""
        strings = [name for name in self.profile.columns if self.table.fields[name].column_type == "string"]
        return Side(self.profile.columns, strings, self._evidence)

    def _evidence(self, names: Sequence[str]) -> dict[str, Evidence]:
        """Return the evidence on how columns of text are written, from one reading of the table."""
        counter = TableCounter({name: EvidenceCounter() for name in names}, weights=self.counting.weights)
        counted = self.table.count(counter).columns
        return {
            name: column.evidence for name, column in counted.items() if isinstance(column, EvidenceCounter)
        }

    def finished(self, *, independent: bool) -> Profile:
        """Return the profile, with the order of the first rows unless rows are known to be independent."""
        if independent:
            return self.profile
        fields = [self.table.fields[name] for name in self.profile.columns]
        return replace(self.profile, order=row_order(self.table, fields))


def count_opened(
    table: Table,
    columns: Sequence[str] | None,
    counting: Counting,
    *,
    exclude: Collection[str] = (),
) -> CountedTable:
    """Count the columns of an open table; a column of text is parsed only if `Counting.like` has parsed it."""
    fields, skipped = _chosen(table, columns, counting.weights, exclude)
    counting.tell(f"counting {len(fields)} columns")
    ways = {} if counting.like is None else _ways_like(fields, counting.like)
    table = ParsedTable(table, ways) if ways else table
    counter, profiles = _counted(table, [field.name for field in fields], ways, counting)
    profile = Profile(
        profiles, counter.rows, counter.weight, counter.weight_squares, skipped, counting.weights
    )
    return CountedTable(table, profile, counting)


def _counted(
    table: Table,
    names: Sequence[str],
    ways: Mapping[str, Written],
    counting: Counting,
) -> tuple[TableCounter, dict[str, ColumnProfile]]:
    """Count columns. In a parsed column, the texts that are not written in its way count as missing."""
    fields = [table.fields[name] for name in names]
    parsed = [name for name in names if name in ways]
    counters = {field.name: _counter(field, counting.like) for field in fields}
    counters |= {unparsed_of(name): counter_of("string") for name in parsed}
    counter = table.count_columns(counters, counting.weights)
    columns = counter.profiles()
    rest = {name: columns.pop(unparsed_of(name)) for name in parsed}
    if counting.like is None:
        _sharpen(table, fields, columns, counting)
    for name in names:
        columns[name].zoned = table.fields[name].zoned
    for name, texts in rest.items():
        column = columns[name]
        column.written, column.unparsed = ways[name], texts.present
        column.unparsed_texts = most_frequent(texts.categories)
    return counter, columns


def _ways_like(fields: Sequence[Field], like: Profile) -> dict[str, Written]:
    """Return the columns of text that another profile has parsed, with their formats."""
    columns = {field.name: like.columns.get(field.name) for field in fields if is_text_field(field)}
    return {name: column.written for name, column in columns.items() if column and column.written}


def _chosen(
    table: Table, columns: Sequence[str] | None, weights: str | None, exclude: Collection[str]
) -> tuple[list[Field], dict[str, str]]:
    """Return the columns to count, and the skipped columns with the reasons."""
    for argument, names in (("columns", columns or ()), ("weights", () if weights is None else (weights,))):
        refuse_unknown("profile_table", argument, names, list(table.fields), "the table")
    fields = [
        field
        for name, field in table.fields.items()
        if name != weights and name not in exclude and (columns is None or name in columns)
    ]
    if (columns or exclude) and not fields:
        others = [name for name in table.fields if name != weights]
        raise no_further_column("profile_table", columns, others, exclude)
    skipped = {field.name: field.reason for field in fields if field.column_type is None}
    if columns is not None and skipped:
        name, reason = next(iter(skipped.items()))
        instead = f"columns without {quoted(name)}, or convert it first"
        raise invalid_value(
            "profile_table",
            "columns",
            wanted="columns of numbers, dates, booleans or strings",
            got=printable(f"{quoted(name)}: {reason}", LONGEST_MESSAGE),
            instead=instead,
        )
    return [field for field in fields if field.column_type is not None], skipped


def _counter(field: Field, like: Profile | None) -> ProfileCounter:
    """Return the counter of a column, with the type and the grid that `like` has if the column's type allows it."""
    assert field.column_type is not None  # noqa: S101 - columns without a type are skipped
    column = like.columns.get(field.name) if like is not None else None
    strings = {"string", "categorical", "text"}
    if column is not None and (
        column.column_type == field.column_type or {column.column_type, field.column_type} <= strings
    ):
        return counter_of(column.column_type, column.center, integer=field.integer)
    return counter_of(field.column_type, integer=field.integer)


def _sharpen(
    table: Table, fields: Sequence[Field], columns: dict[str, ColumnProfile], counting: Counting
) -> None:
    """Count columns again around their median until their quartiles are many buckets apart."""
    for column in columns.values():
        _center_constant(column)
    narrow = {field.name: field for field in fields if _is_narrow(columns[field.name])}
    for _ in range(ROUNDS):
        if not narrow:
            return
        counting.tell(f"counting {len(narrow)} columns again, around their medians")
        ends = _ends_of_medians(table, narrow, columns)
        narrow = {name: field for name, field in narrow.items() if name in ends}
        counters = {
            name: counter_of(
                columns[name].column_type,
                _middle(*ends[name], integer=_is_integer(columns[name])),
                integer=field.integer,
                words=False,
            )
            for name, field in narrow.items()
        }
        for name, column in table.count(TableCounter(counters, weights=counting.weights)).profiles().items():
            columns[name] = replace(column, words=columns[name].words)
        # If the median's bucket had a single value, that value is now the center, and the grid cannot become finer.
        narrow = {
            name: field
            for name, field in narrow.items()
            if ends[name][0] < ends[name][1] and _is_narrow(columns[name])
        }


def _ends_of_medians(
    table: Table, fields: Mapping[str, Field], columns: Mapping[str, ColumnProfile]
) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest number in the bucket of each column's median."""
    counters = {
        name: EndsCounter(columns[name].column_type, *_median_ends(columns[name]), integer=field.integer)
        for name, field in fields.items()
    }
    counted = table.count(TableCounter(counters)).columns
    return {
        name: column.ends
        for name, column in counted.items()
        if isinstance(column, EndsCounter) and column.ends is not None
    }


def _center_constant(column: ColumnProfile) -> None:
    """Make a column's only number the center, so that every other number is in another bucket."""
    if (
        column.minimum is not None
        and column.minimum == column.maximum
        and abs(column.minimum) < FARTHEST_CENTER
    ):
        column.center, column.buckets = column.minimum, {0: sum(column.buckets.values())}
        column.unseparated = 0.0


def _is_narrow(column: ColumnProfile) -> bool:
    """Whether a column's quartiles are only a few buckets apart, and a center closer to them would spread them out."""
    low, median, high = (column.quantile_bucket(probability) for probability in (0.25, 0.5, 0.75))
    if low is None or median is None or high is None or high - low >= PER_OCTAVE:
        return False
    left, right = bucket_ends(low, column.center)[0], bucket_ends(high, column.center)[1]
    near = bucket_ends(median)
    return (
        median != 0
        and column.minimum != column.maximum
        and max(abs(left), abs(right)) < FARTHEST_CENTER
        and not (_is_integer(column) and near[1] - near[0] <= 1)
    )


def _median_ends(column: ColumnProfile) -> tuple[float, float]:
    """Return the ends of the bucket of the median, within the smallest and the largest number."""
    bucket = column.quantile_bucket(0.5)
    assert bucket is not None  # noqa: S101 - a column without numbers is not narrow
    low, high = integers_in(bucket, column.center) if column.integer else bucket_ends(bucket, column.center)
    assert column.minimum is not None and column.maximum is not None  # noqa: S101, PT018
    return max(low, column.minimum), min(high, column.maximum)


def _is_integer(column: ColumnProfile) -> bool:
    """Whether all numbers are integers, as microseconds and lengths always are."""
    return column.integer or column.column_type in {"datetime", "text"}


def _middle(low: float, high: float, *, integer: bool) -> float:
    if isinstance(low, int) and isinstance(high, int):
        return (low + high) // 2
    middle = low if low == high else low + (high - low) / 2
    return float(math.floor(middle)) if integer else middle


def _read(written: JsonObject) -> Profile:
    columns = {str(name): ColumnProfile.from_object(column) for name, column in written["columns"].items()}
    skipped = {str(name): str(reason) for name, reason in written["skipped"].items()}
    weight, squares, rows = (_count(written[name]) for name in ("weight", "weight_squares", "rows"))
    for name, column in columns.items():
        if not math.isclose(column.total, weight, rel_tol=1e-6, abs_tol=1e-300):
            raise ValueError(
                f"the counts of column {quoted(name)} add up to {column.total:g}, not to {weight:g}"
            )
    weights = written["weights"]
    if weights is not None and not isinstance(weights, str):
        raise ValueError("weights is not a name")
    # Kish's effective number of rows is at most the number of rows, and equal to it if rows have no weights.
    if (weights is None and not rows == weight == squares) or weight**2 > squares * rows * (1 + 1e-6):
        raise ValueError(f"{rows:g} rows of weight {weight:g} and squared weights of {squares:g}")
    order = RowOrder.from_object(written["order"]) if "order" in written else None
    return Profile(columns, int(rows), weight, squares, skipped, weights, order)


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")


def _count(written: Any) -> float:
    value = float(written)
    if not (math.isfinite(value) and value >= 0) or isinstance(written, str):
        raise ValueError(f"{printable(safe_repr(written), LONGEST_NAME)} is not a count")
    return value


def _not_alike(got: str) -> ArgumentValueError:
    instead = "profile_table(second, like=first), which counts both alike"
    return invalid_value("Profile.merge", "other", wanted="a profile counted alike", got=got, instead=instead)


def _unreadable(got: str) -> FileError:
    wanted = f"a profile with schema {SCHEMA!r}"
    return FileError.at("", "text", wanted=wanted, got=got, instead="write the profile again")
