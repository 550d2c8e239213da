"""The cells in which two tables are compared: a column's bins, or combinations of several columns' bins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kullback.tables.choose_bins import OTHER, SPECIALS, Bins, cell_counts, choose_bins
from kullback.tables.columns.bin_labels import interval_labels
from kullback.tables.columns.profile import ColumnProfile
from kullback.tables.inference.divergences import (
    MIN_CLUSTERS,
    MIN_EFFECTIVE,
    MIN_EXPECTED,
    compare_counts,
    expected_rows,
)
from kullback.tables.profile import Profile
from kullback.tables.result import Cell, Finding
from kullback.tables.settings import Settings

__all__ = [
    "Counted",
    "TableCells",
    "column_bins",
    "column_cells",
    "divergences",
    "every_value",
    "joint_cells",
]

Array = np.ndarray[Any, np.dtype[np.float64]]
Group = np.ndarray[Any, np.dtype[np.int64]]
# For each group of columns the counts of P and of Q, by cluster (if there are any) and cells.
Counted = dict[tuple[str, ...], tuple[dict[tuple[Any, ...], float], dict[tuple[Any, ...], float]]]
Pair = tuple[Mapping[tuple[Any, ...], float], Mapping[tuple[Any, ...], float]]

MOST_CELLS = 50  # cells of categories that a result lists
MOST_GROUPS = 5000  # clusters beyond so many share a group at random, which leaves the errors as they are
MOST_CLUSTERED = 2000  # cells of categories that are told apart cluster by cluster


@dataclass(frozen=True)
class TableCells:
    """Cells with P's and Q's weight in each.

    Attributes:
        labels: each cell in words.
        ends: where a cell of numbers begins and ends, None for the others.
        p: P's weight in each cell.
        q: Q's.
        ordered: whether the cells are in an order of their own, all to be shown, none to be joined.
        place: the cell of each key of the counts by clusters.
        bins: the bins of a single column; None for combinations.
    """

    labels: Sequence[str]
    ends: Sequence[tuple[float, float] | None]
    p: Array
    q: Array
    ordered: bool
    place: Mapping[tuple[int, ...], int]
    bins: Bins | None = None


def column_bins(p: Profile, q: Profile, name: str, number: int, sizes: tuple[float, float]) -> Bins:
    """Return the bins of one column; neighboring bins of numbers that are rare are one.

    Arguments:
        p: P's profile.
        q: Q's.
        name: the column.
        number: how many bins of numbers.
        sizes: the effective numbers of rows.
    """
    before, after = p.columns[name], q.columns[name]
    bins = choose_bins(before, after, number, row_weight=p.weight / max(p.rows, 1))
    if not (bins.gridded and bins.cuts):
        return bins
    expected = expected_rows(cell_counts(before, bins), cell_counts(after, bins), sizes)
    return _neighbors_joined(bins, expected, before.merged(after))


def column_cells(p: Profile, q: Profile, name: str, bins: Bins) -> TableCells:
    """Return the cells of one column, a cell for each of its bins."""
    before, after = (cell_counts(profile.columns[name], bins) for profile in (p, q))
    ends = [bins.ends(cell) for cell in range(len(bins))]
    place = {(cell,): cell for cell in range(len(bins))}
    return TableCells(bins.labels, ends, before, after, bins.gridded, place, bins)


def _neighbors_joined(bins: Bins, expected: Array, both: ColumnProfile) -> Bins:
    """Drop the cuts between rare cells, until together they are not rare."""
    kept: list[int] = []
    together = expected[0]
    for place in range(len(bins.cuts)):
        following = expected[place + 1]
        if max(together, following) < MIN_EXPECTED / 2:  # bins made to hold that many are off by chance
            together += following
        else:
            kept.append(place)
            together = following
    edges = tuple(bins.edges[place] for place in kept)
    labels = (*interval_labels(both, edges), *bins.specials)
    return replace(bins, edges=edges, cuts=tuple(bins.cuts[place] for place in kept), labels=labels)


def every_value(bins: Bins) -> tuple[Bins, list[int | None]]:
    """Return bins with a cell for whatever may come, and the original cell of each; None for one that is new."""
    inside = len(bins) - len(bins.specials) - bins.other
    first = inside + bins.other
    numbers = max(inside, len(bins.cuts) + 1) if bins.gridded else inside
    labels = [
        *bins.labels[:inside],
        *[""] * (numbers - inside),
        *([] if bins.gridded else [OTHER]),
        *SPECIALS,
    ]
    place: list[int | None] = [*range(inside), *[None] * (numbers - inside)]
    place += [] if bins.gridded else [inside if bins.other else None]
    place += [first + bins.specials.index(label) if label in bins.specials else None for label in SPECIALS]
    wide = replace(bins, labels=tuple(labels), other=not bins.gridded, specials=tuple(SPECIALS))
    return wide, place


def joint_cells(group: Sequence[str], bins: Mapping[str, Bins], pair: Pair, *, clustered: bool) -> TableCells:
    """Return the combinations of the columns' cells that occur."""
    start = 1 if clustered else 0
    keys = sorted({key[start:] for side in pair for key in side})
    place = {key: cell for cell, key in enumerate(keys)}
    counts = [np.zeros(len(keys)), np.zeros(len(keys))]
    for side, total in zip(pair, counts, strict=True):
        for key, weight in side.items():
            total[place[key[start:]]] += weight
    labels = [
        ", ".join(f"{name}: {bins[name].labels[cell]}" for name, cell in zip(group, key, strict=True))
        for key in keys
    ]
    return TableCells(labels, [None] * len(keys), counts[0], counts[1], False, place)


def divergences(
    cells: TableCells, settings: Settings, clustered: Pair | None, columns: Sequence[str]
) -> tuple[dict[str, Any], list[Finding]]:
    """Compare P's and Q's weights in the cells.

    Arguments:
        cells: the cells.
        settings: of the comparison.
        clustered: the counts of P and Q by cluster and cell, where rows are not independent.
        columns: the columns, for findings.

    Returns:
        the fields that every comparison has, and findings.
    """
    group, rare = _joined(cells, settings, limited=clustered is not None)
    size = int(group.max(initial=-1)) + 1
    a, b = (
        np.bincount(group, side, minlength=size).astype(np.float64, copy=False) for side in (cells.p, cells.q)
    )
    clusters = None if clustered is None else _cluster_matrices(cells, group, clustered, settings.random)
    statistics = compare_counts(
        a, b, settings.sizes, random=settings.random, clusters=clusters, confidence=settings.confidence
    )
    parts = {name: getattr(statistics, name) for name in ("kl_pq", "kl_qp", "js", "psi", "tv", "p_value")}
    shown = _shown(cells, group, a, b, statistics.contributions)
    notes, findings = _remarks(cells, a, b, rare, clusters, columns, unsure=statistics.kl_pq.interval is None)
    return parts | {"p_adjusted": statistics.p_value, "cells": shown, "notes": notes}, findings


def _joined(cells: TableCells, settings: Settings, *, limited: bool) -> tuple[Group, int]:
    """Return the number of the group of each cell, and how many cells are joined in the last one, being rare."""
    number = len(cells.labels)
    if cells.ordered or number < 3:
        return np.arange(number), 0
    rare = expected_rows(cells.p, cells.q, settings.sizes) < MIN_EXPECTED
    if limited and number > MOST_CLUSTERED:
        rare[np.argsort(-(cells.p + cells.q), kind="stable")[MOST_CLUSTERED:]] = True
    if cells.bins is not None:
        inside = number - len(cells.bins.specials)
        rare[inside:] = False
        # The categories that a shortened profile names are its own most frequent ones: rare ones among them were chosen
        # for being on its side, and go with those it does not name.
        if cells.bins.other and rare.any():
            rare[inside - 1] = True
    if rare.sum() < 2:
        return np.arange(number), 0
    group = np.cumsum(~rare) - 1
    return np.where(rare, group[-1] + 1, group), int(rare.sum())


def _cluster_matrices(
    cells: TableCells, group: Group, pair: Pair, random: np.random.Generator
) -> tuple[Array, Array]:
    """Return the weights of P and of Q by cluster and cell, the same cluster in the same row."""
    names = [{key[0]: None for key in side} for side in pair]
    both = [name for name in names[0] if name in names[1]]
    kinds = [
        [name for name in side if name not in other] for side, other in ((names[0], names[1]), names[::-1])
    ]
    row: dict[Any, int] = {}
    total = sum(map(len, (both, *kinds)))
    for members in (both, *kinds):
        rows = _rows_of(len(members), total, random) + (max(row.values(), default=-1) + 1)
        row |= dict(zip(members, rows.tolist(), strict=True))
    matrices: list[Array] = []
    for side in pair:
        matrix = np.zeros((max(row.values(), default=-1) + 1, int(group.max(initial=-1)) + 1))
        places = [int(group[cells.place[key[1:]]]) for key in side]
        np.add.at(matrix, ([row[key[0]] for key in side], places), list(side.values()))
        matrices.append(matrix)
    return matrices[0], matrices[1]


def _rows_of(members: int, total: int, random: np.random.Generator) -> Group:
    """Give each cluster a row of its own; where there are too many, rows to share at random."""
    if total <= MOST_GROUPS:
        return np.arange(members)
    rows = max(1, round(members * MOST_GROUPS / total))
    return random.permutation(members) % rows


def _shown(cells: TableCells, group: Group, a: Array, b: Array, parts: Array) -> tuple[Cell, ...]:
    """Return the cells of a result: all bins, or the most frequent of other cells and then the others as one."""
    sizes = np.bincount(group, minlength=len(a))
    first = np.full(len(a), -1)
    first[group[::-1]] = np.arange(len(group))[::-1]
    if cells.ordered:
        order, rest = list(range(len(a))), np.zeros(0, np.int64)
    else:
        share = np.maximum(a / max(a.sum(), 1e-300), b / max(b.sum(), 1e-300))
        alone = np.flatnonzero(sizes == 1)
        ranked = alone[np.argsort(-share[alone], kind="stable")]
        most = MOST_CELLS if len(ranked) == len(a) <= MOST_CELLS else MOST_CELLS - 1
        order = ranked[:most].tolist()
        rest = np.setdiff1d(np.arange(len(a)), order)
    found: list[Cell] = []
    for place in order:
        low, high = cells.ends[int(first[place])] or (None, None)
        label = cells.labels[int(first[place])]
        found.append(Cell(label, low, high, float(a[place]), float(b[place]), float(parts[place])))
    if len(rest):
        first_place, joined = int(first[rest[0]]), int(sizes[rest].sum())
        other = cells.bins is not None and cells.bins.other
        label = cells.labels[first_place] if joined == 1 else OTHER if other else f"{joined:,} others"
        found.append(Cell(label, None, None, *(float(side[rest].sum()) for side in (a, b, parts))))
    return tuple(found)


def _remarks(
    cells: TableCells,
    a: Array,
    b: Array,
    rare: int,
    clusters: tuple[Array, Array] | None,
    columns: Sequence[str],
    *,
    unsure: bool,
) -> tuple[tuple[str, ...], list[Finding]]:
    """Say what was joined, what is infinite, and why there is no interval."""
    notes: list[str] = []
    findings: list[Finding] = []

    def remark(kind: str, message: str) -> None:
        column = columns[0] if len(columns) == 1 else None
        findings.append(Finding(column, kind, f"{' with '.join(map(repr, columns))}: {message}"))
        notes.append(f"{message[0].upper()}{message[1:]}.")

    if rare:
        remark(
            "rare_categories",
            f"{rare:,} cells with fewer than {MIN_EXPECTED:g} expected rows are compared as one",
        )
    if not ((a > 0) & (b > 0)).any():
        remark("disjoint", "no value of P lies in a cell where one of Q does")
    empty = [
        f"{divergence} (cells without rows of {side}: {count})"
        for divergence, side, count in (
            ("KL(P||Q)", "Q", int(((a > 0) & (b == 0)).sum())),
            ("KL(Q||P)", "P", int(((a == 0) & (b > 0)).sum())),
        )
        if count
    ]
    if empty:
        remark("infinite", f"infinite by the counts alone: {', '.join(empty)}; the intervals are open above")
    fewest = None if clusters is None else min(int((side.sum(1) > 0).sum()) for side in clusters)
    if fewest is not None and fewest < MIN_CLUSTERS:
        remark("few_clusters", f"{fewest} clusters on one side: no intervals below {MIN_CLUSTERS}")
    elif unsure and ((a + b) > 0).sum() > 1:
        notes.append(f"Fewer than {MIN_EFFECTIVE:g} independent rows on one side: no intervals.")
    elif unsure:
        notes.append("All rows lie in one cell: nothing tells P from Q.")
    return tuple(notes), findings
