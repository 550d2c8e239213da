"""The choice of a column's bins from P's profile.

Every bin ends where a bucket of the grid ends, so the counts of P and of Q in the bins are exact sums of buckets.
The bins of numbers cover the whole number line; the first bin and the last bin are open-ended:

* a bucket with at least the mean weight of the bins (an atom) has a bin of its own;
* if P has few different values, each value begins a bin;
* all other values are divided at P's quantiles.

Where P has no values between two atoms, or beyond the outermost atom, Q's values have a bin of their own. The last
bins hold missing values, NaN and the infinities. Each category has a bin, including categories that only Q has.

Labels have no more digits than are needed to distinguish the edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.common.constraints import Arguments, Number, Whole
from kullback.common.extra_arguments import by_name
from kullback.errors import invalid_type, invalid_value, quoted
from kullback.tables.columns.bins import OTHER, SPECIALS, Bins
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.log_grid import SMALLEST, bucket_ends, integers_in

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMESTAMP_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f")


def interval_labels(column: ColumnProfile, edges: Sequence[float], cuts: Sequence[int]) -> tuple[str, ...]:
    """Return a label for each interval; each but the first begins at an edge, with the bucket in `cuts`.

    The first and the last interval are open-ended. An interval of integers is labeled with the smallest and the largest
    integer that occurred in it. If only the grid's center occurred in an interval, the label is the center.

    Example:
        >>> interval_labels(ColumnProfile("numeric"), (1.5, 2.25), (32721, 32741))
        ('< 1.5', '1.5 to 2.25', '≥ 2.25')
    """
    occupied = _occupied(column, cuts)
    if column.column_type == "text" or column.integer:
        return _integer_labels(column, cuts, occupied)
    write = _timestamps if column.column_type == "datetime" else _numbers
    labels = ["any value"]
    if edges:
        written = write(edges)
        inner = [f"{low} to {high}" for low, high in pairwise(written)]
        # Each bin below the grid's center excludes the bin's own lower edge. So does the bin directly above the center.
        beyond = [cut < 0 or cut == 1 for cut in (cuts[0], cuts[-1])]
        first, last = "≤" if beyond[0] else "<", ">" if beyond[1] else "≥"
        labels = [f"{first} {written[0]}", *inner, f"{last} {written[-1]}"]
    for index, buckets in occupied.items():
        if buckets == (0, 0):
            labels[index] = _exact(column)
    return tuple(labels)


def constant_label(column: ColumnProfile) -> str | None:
    """Return the text of a column's only value; None if the column has several values or missing values."""
    specials = (column.not_a_number, column.minus_infinity, column.plus_infinity)
    if column.missing or column.empty or column.other_categories or any(specials):
        return None
    if column.categories:
        return next(iter(column.categories)) if len(column.categories) == 1 else None
    if column.minimum is None or column.minimum != column.maximum:
        return None
    if column.column_type == "datetime":
        written = _timestamps([column.minimum], TIMESTAMP_FORMATS[-1:])[0]
        return written.removesuffix(".000000").removesuffix(" 00:00:00")
    length = " characters long" if column.column_type == "text" else ""
    value = f"{int(column.minimum)}" if column.integer else repr(float(column.minimum)).removesuffix(".0")
    return value + length


def _occupied(column: ColumnProfile, cuts: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the first and the last occupied bucket of each bin that has one."""
    if not column.buckets:
        return {}
    buckets = np.sort(np.fromiter(column.buckets, np.int64, len(column.buckets)))
    places, firsts = np.unique(np.searchsorted(cuts, buckets, side="right"), return_index=True)
    lasts = np.append(firsts[1:], len(buckets)) - 1
    ends = zip(buckets[firsts].tolist(), buckets[lasts].tolist(), strict=True)
    return dict(zip(places.tolist(), ends, strict=True))


def _exact(column: ColumnProfile) -> str:
    if column.column_type == "datetime":
        return _timestamps([column.center], TIMESTAMP_FORMATS[-1:])[0]
    return f"{column.center:.15g}"


def _integer_labels(
    column: ColumnProfile, cuts: Sequence[int], occupied: dict[int, tuple[int, int]]
) -> tuple[str, ...]:
    low = -math.inf if column.minimum is None else column.minimum
    high = math.inf if column.maximum is None else column.maximum
    begins = [integers_in(cut, column.center)[0] for cut in cuts]
    firsts, lasts = [low, *begins], [*(begin - 1 for begin in begins), high]
    for index, (first, last) in occupied.items():
        firsts[index] = max(low, integers_in(first, column.center)[0])
        lasts[index] = min(high, integers_in(last, column.center)[1])
    return tuple(_span(first, last) for first, last in zip(firsts, lasts, strict=True))


def _span(first: float, last: float) -> str:
    if first > last or math.isinf(first) or math.isinf(last):
        return f"≤ {_integer(last)}" if math.isinf(first) or first > last else f"≥ {_integer(first)}"
    return _integer(first) if first == last else f"{_integer(first)} to {_integer(last)}"


def _integer(value: float) -> str:
    return f"{value:g}" if math.isinf(value) else f"{int(value)}"


def _numbers(edges: Sequence[float]) -> list[str]:
    return _shortest(edges, [lambda edge, digits=digits: _number(edge, digits) for digits in range(3, 18)])


def _number(value: float, digits: int) -> str:
    """Return a number as text, without an exponent if it has few zeros; the lower end of a bin just above 0 is "0"."""
    if abs(value) <= SMALLEST:
        return "0"
    if 1e-5 <= abs(value) < 1e9:
        return np.format_float_positional(value, precision=digits, fractional=False, trim="-")
    return f"{value:.{digits}g}"


def _timestamps(edges: Sequence[float], forms: Sequence[str] = TIMESTAMP_FORMATS) -> list[str]:
    try:
        timestamps = [EPOCH + timedelta(microseconds=edge) for edge in edges]
    except OverflowError:  # the timestamp is beyond the year 9999
        return [f"{edge:.17g} µs" for edge in edges]
    return _shortest(timestamps, [lambda timestamp, form=form: timestamp.strftime(form) for form in forms])


def _shortest(values: Sequence[Any], ways: Sequence[Callable[[Any], str]]) -> list[str]:
    """Return the values as texts, in the first format that gives different values different texts."""
    written: list[str] = []
    for way in ways:
        written = [way(value) for value in values]
        if len(set(written)) == len(set(values)):
            break
    return written


ROWS_OF_AN_ATOM = 3

_ARGUMENTS = Arguments(
    "choose_bins", number=Whole(least=1, example=20), row_weight=Number(above=0, below=math.inf, example=1.0)
)


@by_name()
def choose_bins(
    p: ColumnProfile, q: ColumnProfile | None = None, number: int = 20, *, row_weight: float = 1.0
) -> Bins:
    """Return the bins of a column.

    Arguments:
        p: P's profile of the column. Bins of numbers end at the quantiles of this profile.
        q: Q's profile of the column, counted with ``like=`` P's profile. Values that only Q has get bins too. If `q` is
            None, every possible value has a bin.
        number: the approximate number of bins of a column of numbers.
        row_weight: the mean weight of a row. A value that weighs less than three rows is not an atom.

    Returns:
        the bins. `bin_counts` returns the counts of a profile in these bins.

    Raises:
        ArgumentTypeError: `q` is not a `ColumnProfile`.
        ArgumentValueError: the profiles have different types or grids, or `number` is not positive.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.table_profile import profile_table
        >>> before = profile_table(pa.table({"fruit": ["apple", "apple", "pear"]}))
        >>> after = profile_table(pa.table({"fruit": ["pear", "plum", None]}), like=before)
        >>> choose_bins(before.columns["fruit"], after.columns["fruit"]).labels
        ('apple', 'pear', 'plum', 'missing')
    """
    if q is not None and not isinstance(q, ColumnProfile):
        instead = "choose_bins(p, q, number=20)"
        raise invalid_type(
            "choose_bins", "q", wanted="a ColumnProfile", got=type(q).__name__, instead=instead
        )
    number, row_weight = _ARGUMENTS.check(number=number, row_weight=row_weight).values()
    heads = [_without_names(column) for column in (p, q) if column is not None]
    both = heads[0] if q is None else heads[0].merged(heads[1])
    specials = tuple(label for label, name in SPECIALS.items() if q is None or getattr(both, name) > 0)
    if p.empty and q is not None:
        p = q  # if P has no values, the bins end at Q's quantiles
    if not both.gridded:
        specials = specials if q is not None else ("missing",)
        return _category_bins(p, q, specials)
    cuts = _cuts(p, q, number, row_weight)
    edges = tuple(_beginning(cut, p.center) for cut in cuts)
    labels = interval_labels(both, edges, cuts) if both.buckets or q is None else ()
    labels = (*labels, *specials)
    return Bins(p.column_type, edges, labels, p.center, cuts, specials=specials, written=both.written)


@by_name()
def bin_counts(column: ColumnProfile, bins: Bins) -> Floats:
    """Return the weight of a column in every bin.

    Arguments:
        column: the profile of a column, counted on the grid of the bins.
        bins: the bins that `choose_bins` returned.

    Returns:
        a float64 array with the weight for each of `Bins.labels`.

    Raises:
        ArgumentValueError: the column has another type or grid than the bins, or a category without a bin.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.table_profile import profile_table
        >>> column = profile_table(pa.table({"x": [True, None, True]})).columns["x"]
        >>> bin_counts(column, choose_bins(column, column))
        array([2., 1.])
    """
    if not column.empty and (column.column_type, column.center) != (bins.column_type, bins.center):
        got = f"{column.column_type} around {column.center:g} for bins of {bins.column_type} around {bins.center:g}"
        instead = "profile_table(frame, like=...) with the profile that the bins are from"
        raise invalid_value(
            "bin_counts", "column", wanted="a column counted like the bins", got=got, instead=instead
        )
    inside = _grid_counts(column, bins) if bins.gridded else _category_counts(column, bins)
    return np.append(inside, [getattr(column, SPECIALS[label]) for label in bins.specials])


def _grid_counts(column: ColumnProfile, bins: Bins) -> Floats:
    buckets = np.fromiter(column.buckets, np.int64, len(column.buckets))
    weights = np.fromiter(column.buckets.values(), np.float64, len(buckets))
    places = np.searchsorted(np.array(bins.cuts, np.int64), buckets, side="right")
    counts = np.bincount(places, weights, minlength=len(bins) - len(bins.specials))
    return counts.astype(np.float64)


def _category_counts(column: ColumnProfile, bins: Bins) -> Floats:
    weights = map(column.categories.get, bins.categories, repeat(0.0))
    counts = np.fromiter(weights, np.float64, len(bins.categories))
    if bins.other:
        known = set(bins.categories)
        rest = (weight for name, weight in column.categories.items() if name not in known)
        return np.append(counts, column.other_categories + sum(rest))
    if column.other_categories or len(column.categories) > np.count_nonzero(counts):
        unknown = sorted(column.categories.keys() - set(bins.categories))
        got = f"categories without a bin, such as {quoted((unknown or [OTHER])[0])}"
        instead = "choose_bins(p, q) with both columns"
        raise invalid_value(
            "bin_counts", "column", wanted="categories that have bins", got=got, instead=instead
        )
    return counts


def _without_names(column: ColumnProfile) -> ColumnProfile:
    """Return the profile with the total weight of its categories, without their names."""
    if not column.categories:
        return column
    return replace(column, categories={}, other_categories=column.present)


def _category_bins(p: ColumnProfile, q: ColumnProfile | None, specials: tuple[str, ...]) -> Bins:
    """Return a bin for each category that no shortened profile omits, and a bin for all other categories."""
    names = p.categories if q is None else p.categories | q.categories
    for column in (p, q):
        if column is not None and column.other_categories > 0:
            names = {name: 0.0 for name in names if name in column.categories}
    if p.column_type == "boolean" and q is None:
        names = names | {"false": 0.0, "true": 0.0}
    other = q is None and p.column_type != "boolean"
    other = other or p.other_categories > 0 or (q is not None and q.other_categories > 0)
    categories = tuple(sorted(names))
    labels = (*categories, *((OTHER,) if other else ()), *specials)
    return Bins(p.column_type, (), labels, categories=categories, other=other, specials=specials)


def _cuts(p: ColumnProfile, q: ColumnProfile | None, number: int, row_weight: float) -> tuple[int, ...]:
    """Return the first bucket of each bin except the first bin."""
    buckets = np.array(sorted(p.buckets), np.int64)
    weights = np.array([p.buckets[bucket] for bucket in buckets.tolist()])
    if not len(buckets):
        return ()
    heaviest = max(weights.sum() / number, ROWS_OF_AN_ATOM * row_weight)
    atoms = weights >= heaviest * (1 - 1e-12)
    alone = atoms | (len(buckets) <= number)
    begins = {int(bucket) for bucket in buckets[alone]}
    begins |= {int(bucket) + 1 for bucket in buckets[atoms]}
    for run in _runs(alone):
        begins |= _quantile_cuts(buckets[run], weights[run], float(weights.sum()) / number)
    return _without_empty(begins, p, q)


def _runs(alone: Flags) -> list[slice]:
    """Return the runs of buckets between the buckets that have a bin each."""
    ends = [-1, *np.flatnonzero(alone).tolist(), len(alone)]
    return [slice(left + 1, right) for left, right in pairwise(ends) if right - left > 1]


def _quantile_cuts(buckets: Integers, weights: Floats, target: float) -> set[int]:
    """Divide a run of buckets into bins of about the target weight; return the first bucket of each new bin."""
    reached = np.cumsum(weights)
    number = max(1, round(reached[-1] / target))
    wanted = reached[-1] * np.arange(1, number) / number
    after = np.searchsorted(reached, wanted)
    # The cut is before or after the bucket that holds the quantile, whichever place is nearer to the quantile.
    before = np.where(after > 0, reached[after - 1], 0.0)
    nearer = np.where(wanted - before < reached[after] - wanted, after, after + 1)
    return {int(buckets[index]) for index in nearer if 0 < index < len(buckets)}


def _without_empty(begins: set[int], p: ColumnProfile, q: ColumnProfile | None) -> tuple[int, ...]:
    """Return the cuts after each bin that is empty in both columns has been joined to the next bin."""
    cuts = sorted(begins)
    if q is None:
        return tuple(cuts)
    occupied = np.unique(np.array([*p.buckets, *q.buckets], np.int64))
    filled = np.bincount(np.searchsorted(cuts, occupied, side="right"), minlength=len(cuts) + 1) > 0
    # The last bin has no next bin, so it is joined to the bin before it.
    used = [cut for index, cut in enumerate(cuts) if filled[index]]
    if used and not filled[len(cuts)] and used[-1] == cuts[-1]:
        used.pop()
    return tuple(used)


def _beginning(cut: int, center: float) -> float:
    """Return the smallest number in a bucket. A bucket below or directly above the center excludes its lower end."""
    low = bucket_ends(cut, center)[0]
    holds_low = cut == 0 or (low > center if cut > 0 else low == center)
    return low if holds_low else float(np.nextafter(low, np.inf))
