"""Bins of a column, chosen from P's profile: quantiles, values of their own for atoms and categories.

Every bin ends where a bucket of the grid ends, so the counts of P and of Q in the bins are exact sums of buckets.
Numbers make cells that cover the whole line, the first and the last open-ended:

* a value with at least the weight of one bin (an atom) is a cell of its own;
* where P has few distinct values, each begins a cell;
* the rest is divided at P's quantiles.

Between two atoms, and beyond the outermost, P has nothing: what Q has there is a cell of its own too. After them come
missing values, NaN and the infinities. Categories are a cell each, Q's new ones included.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kullback.errors import ArgumentTypeError, ArgumentValueError, explain
from kullback.tables.columns.bin_labels import interval_labels
from kullback.tables.columns.bins import OTHER, SPECIALS, Bins
from kullback.tables.columns.log_grid import bucket_ends
from kullback.tables.columns.profile import ColumnProfile
from kullback.tables.engines import open_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["OTHER", "SPECIALS", "Bins", "cell_counts", "choose_bins", "cross_counts"]

ROWS_OF_AN_ATOM = 3


def choose_bins(
    p: ColumnProfile, q: ColumnProfile | None = None, number: int = 20, *, row_weight: float = 1.0
) -> Bins:
    """Return the bins of a column.

    Arguments:
        p: the column in P's table; its quantiles are the edges.
        q: the column in Q's table, counted with ``like=`` P's profile; it adds cells for what P has not. Without it
            there is a cell for everything that may come.
        number: about how many cells of numbers.
        row_weight: the mean weight of a row; fewer than three rows make no atom.

    Returns:
        the bins; `cell_counts` counts either column in them.

    Raises:
        ArgumentTypeError: `q` is no profile.
        ArgumentValueError: the columns are of different kinds or grids, or `number` is not positive.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.profile import profile_table
        >>> before = profile_table(pa.table({"fruit": ["apple", "apple", "pear"]}))
        >>> after = profile_table(pa.table({"fruit": ["pear", "plum", None]}), like=before)
        >>> choose_bins(before.columns["fruit"], after.columns["fruit"]).labels
        ('apple', 'pear', 'plum', 'missing')
    """
    if q is not None and not isinstance(q, ColumnProfile):
        got, instead = type(q).__name__, "choose_bins(p, q, number=20)"
        raise ArgumentTypeError(
            explain("choose_bins", "q", wanted="a ColumnProfile", got=got, instead=instead)
        )
    if number < 1:
        raise ArgumentValueError(
            explain("choose_bins", "number", wanted="1 or more", got=str(number), instead="number=20")
        )
    both = p if q is None else p.merged(q)
    specials = tuple(label for label, name in SPECIALS.items() if q is None or getattr(both, name) > 0)
    if p.empty and q is not None:
        p = q  # what P never showed, Q's own values divide
    if not both.gridded:
        specials = specials if q is not None else ("missing",)
        return _category_bins(p, q, specials)
    cuts = _cuts(p, q, number, row_weight)
    edges = tuple(_beginning(cut, p.center) for cut in cuts)
    labels = interval_labels(both, edges) if both.buckets or q is None else ()
    return Bins(p.kind, edges, (*labels, *specials), p.center, cuts, specials=specials)


def cell_counts(column: ColumnProfile, bins: Bins) -> NDArray[np.float64]:
    """Return the weight of a column in every cell, float64.

    Arguments:
        column: a column counted on the grid of the bins.
        bins: of `choose_bins`.

    Returns:
        an array with one number for each of `Bins.labels`.

    Raises:
        ArgumentValueError: the column has another kind or grid, or categories for which the bins have no cell.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.profile import profile_table
        >>> column = profile_table(pa.table({"x": [True, None, True]})).columns["x"]
        >>> cell_counts(column, choose_bins(column, column))
        array([2., 1.])
    """
    if not column.empty and (column.kind, column.center) != (bins.kind, bins.center):
        got = f"{column.kind} around {column.center:g} for bins of {bins.kind} around {bins.center:g}"
        instead = "profile_table(frame, like=...) with the profile that the bins are from"
        raise _refused("a column counted like the bins", got, instead)
    inside = _grid_counts(column, bins) if bins.gridded else _category_counts(column, bins)
    return np.array([*inside, *(getattr(column, SPECIALS[label]) for label in bins.specials)])


def cross_counts(
    frame: object,
    bins: Mapping[str, Bins],
    keys: Sequence[Sequence[str]],
    *,
    weights: str | None = None,
) -> dict[tuple[str, ...], dict[tuple[Any, ...], float]]:
    """Count the rows of every combination of cells of several columns, in one more reading of the table.

    Arguments:
        frame: a table, as `kullback.tables.profile.profile_table` takes it.
        bins: the bins of the columns. A column of a key that has none takes part with its own values, as one that
            names clusters does.
        keys: which columns to count together, several such groups if wanted.
        weights: the column that says what each row counts for.

    Returns:
        for every key the weight of each combination that occurs: the place of the cell in `Bins.labels` for a column
        with bins, the value itself for another.

    Raises:
        ArgumentValueError: a column is not there, or a value has no cell.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.profile import profile_table
        >>> table = pa.table({"x": ["a", "b", "a"], "user": [7, 7, 8]})
        >>> column = profile_table(table).columns["x"]
        >>> cross_counts(table, {"x": choose_bins(column, column)}, [("user", "x")])
        {('user', 'x'): {(7, 0): 1.0, (7, 1): 1.0, (8, 0): 1.0}}
    """
    table = open_table(frame)
    wanted = [name for key in keys for name in key]
    for name in [*wanted, *([weights] if weights is not None else [])]:
        if name not in table.fields:
            instead = f"one of {', '.join(map(repr, list(table.fields)[:10]))}"
            raise ArgumentValueError(
                explain(
                    "cross_counts", "keys", wanted="columns of the table", got=repr(name), instead=instead
                )
            )
    counts = table.cross(bins, keys, weights)
    return {key: dict(sorted(cells.items(), key=_in_order)) for key, cells in counts.items()}


def _in_order(item: tuple[tuple[Any, ...], float]) -> tuple[tuple[str, Any], ...]:
    """Order combinations, of which some values may be missing."""
    return tuple(
        ("", value) if isinstance(value, (int, float)) else (type(value).__name__, str(value))
        for value in item[0]
    )


def _grid_counts(column: ColumnProfile, bins: Bins) -> NDArray[np.float64]:
    buckets = np.fromiter(column.buckets, np.int64, len(column.buckets))
    weights = np.fromiter(column.buckets.values(), np.float64, len(buckets))
    cells = np.searchsorted(np.array(bins.cuts, np.int64), buckets, side="right")
    counts = np.bincount(cells, weights, minlength=len(bins) - len(bins.specials))
    return counts.astype(np.float64)


def _category_counts(column: ColumnProfile, bins: Bins) -> list[float]:
    counts = [column.categories.get(name, 0.0) for name in bins.categories]
    if bins.other:
        known = set(bins.categories)
        rest = (weight for name, weight in column.categories.items() if name not in known)
        return [*counts, column.other_categories + sum(rest)]
    if column.other_categories or len(column.categories) > sum(count > 0 for count in counts):
        unknown = sorted(column.categories.keys() - set(bins.categories))
        got = f"categories without a cell, such as {(unknown or [OTHER])[0]!r}"
        raise _refused("categories that the bins know", got, "choose_bins(p, q) with both columns")
    return counts


def _category_bins(p: ColumnProfile, q: ColumnProfile | None, specials: tuple[str, ...]) -> Bins:
    """Return a cell for each category; where a profile names only some, the others cannot be told apart."""
    names = set(p.categories) | (set(q.categories) if q is not None else set())
    for column in (p, q):
        if column is not None and column.other_categories > 0:
            names &= column.categories.keys()
    if p.kind == "boolean" and q is None:
        names |= {"false", "true"}
    other = q is None and p.kind != "boolean"
    other = other or p.other_categories > 0 or (q is not None and q.other_categories > 0)
    categories = tuple(sorted(names))
    labels = (*categories, *((OTHER,) if other else ()), *specials)
    return Bins(p.kind, (), labels, categories=categories, other=other, specials=specials)


def _cuts(p: ColumnProfile, q: ColumnProfile | None, number: int, row_weight: float) -> tuple[int, ...]:
    """Return the bucket with which each cell but the first begins."""
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


def _runs(alone: NDArray[np.bool_]) -> list[slice]:
    """Return the stretches between the buckets that stand alone."""
    places = [-1, *np.flatnonzero(alone).tolist(), len(alone)]
    return [slice(left + 1, right) for left, right in pairwise(places) if right - left > 1]


def _quantile_cuts(buckets: NDArray[np.int64], weights: NDArray[np.float64], target: float) -> set[int]:
    """Return where the cells begin into which a stretch is divided, each of about the target weight."""
    reached = np.cumsum(weights)
    cells = max(1, round(reached[-1] / target))
    wanted = reached[-1] * np.arange(1, cells) / cells
    after = np.searchsorted(reached, wanted)
    # Cut before or after the bucket that holds the quantile, whichever is nearer.
    before = np.where(after > 0, reached[after - 1], 0.0)
    nearer = np.where(wanted - before < reached[after] - wanted, after, after + 1)
    return {int(buckets[place]) for place in nearer if 0 < place < len(buckets)}


def _without_empty(begins: set[int], p: ColumnProfile, q: ColumnProfile | None) -> tuple[int, ...]:
    """Drop the cuts that only make cells which neither column has anything in, beside one that it may join."""
    cuts = sorted(begins)
    if q is None:
        return tuple(cuts)
    occupied = np.unique(np.array([*p.buckets, *q.buckets], np.int64))
    filled = np.bincount(np.searchsorted(cuts, occupied, side="right"), minlength=len(cuts) + 1) > 0
    # An empty cell joins the one after it, the last one the one before it.
    kept = [cut for place, cut in enumerate(cuts) if filled[place]]
    if kept and not filled[len(cuts)] and kept[-1] == cuts[-1]:
        kept.pop()
    return tuple(kept)


def _beginning(cut: int, center: float) -> float:
    low, high = bucket_ends(cut, center)
    return low if cut >= 0 else min(low, high)


def _refused(wanted: str, got: str, instead: str) -> ArgumentValueError:
    return ArgumentValueError(explain("cell_counts", "column", wanted=wanted, got=got, instead=instead))
