"""Contingency tables: the weights of P and of Q in the bins of a column, or in the combinations of several columns'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kullback.errors import invalid_value
from kullback.findings import Finding
from kullback.tables.choose_bins import bin_counts, choose_bins
from kullback.tables.columns.bin_labels import interval_labels
from kullback.tables.columns.bins import OTHER, SPECIALS, Bins
from kullback.tables.columns.profile import ColumnProfile
from kullback.tables.engines import open_table
from kullback.tables.engines.base import JointCounts
from kullback.tables.findings import finding
from kullback.tables.inference.divergences import (
    MIN_CLUSTERS,
    MIN_EFFECTIVE,
    MIN_EXPECTED,
    compare_counts,
    expected_rows,
)
from kullback.tables.profile import Profile
from kullback.tables.result import Bin
from kullback.tables.settings import Settings

__all__ = [
    "ContingencyTable",
    "Pair",
    "column_bins",
    "column_contingency",
    "contingency_tables",
    "divergences",
    "every_value",
    "joint_contingency",
]

Array = np.ndarray[Any, np.dtype[np.float64]]
Group = np.ndarray[Any, np.dtype[np.int64]]
# The joint counts of P and of Q, by cluster (where there are clusters) and bins.
Pair = tuple[JointCounts, JointCounts]

MOST_BINS = 50  # bins of categories that a result lists
MOST_GROUPS = 5000  # clusters beyond so many share a group at random, which leaves the errors as they are
MOST_CLUSTERED = 2000  # bins of categories that are told apart cluster by cluster


def contingency_tables(
    frame: object,
    bins: Mapping[str, Bins],
    keys: Sequence[Sequence[str]],
    *,
    weights: str | None = None,
) -> dict[tuple[str, ...], dict[tuple[Any, ...], float]]:
    """Return the weight of every combination of several columns' bins, from one more reading of the table.

    Arguments:
        frame: a table, as `kullback.tables.profile.profile_table` takes it.
        bins: the bins of columns. A column of a key that has none counts by its own values, such as ids of clusters.
        keys: groups of columns, each to be counted together.
        weights: the column of the rows' weights.

    Returns:
        for every key the weight of each combination that occurs: the index in `Bins.labels` for a column with bins, the
        value itself for another.

    Raises:
        ArgumentValueError: a column is not in the table, or a value is in no bin.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.profile import profile_table
        >>> table = pa.table({"x": ["a", "b", "a"], "user": [7, 7, 8]})
        >>> column = profile_table(table).columns["x"]
        >>> contingency_tables(table, {"x": choose_bins(column, column)}, [("user", "x")])
        {('user', 'x'): {(7, 0): 1.0, (7, 1): 1.0, (8, 0): 1.0}}
    """
    table = open_table(frame)
    wanted = [name for key in keys for name in key]
    for name in [*wanted, *([weights] if weights is not None else [])]:
        if name not in table.fields:
            instead = f"one of {', '.join(map(repr, list(table.fields)[:10]))}"
            wanted_ = "columns of the table"
            raise invalid_value("contingency_tables", "keys", wanted=wanted_, got=repr(name), instead=instead)
    counts = table.joint_counts(bins, keys, weights)
    return {key: dict(sorted(each.items(), key=_in_order)) for key, each in counts.items()}


def _in_order(item: tuple[tuple[Any, ...], float]) -> tuple[tuple[str, Any], ...]:
    """Return a key by which combinations can be sorted; values may be missing."""
    return tuple(
        ("", value) if isinstance(value, (int, float)) else (type(value).__name__, str(value))
        for value in item[0]
    )


@dataclass(frozen=True)
class ContingencyTable:
    """The weights of P and of Q in bins.

    Attributes:
        labels: the label of each bin.
        ends: the ends of a bin of numbers, None for other bins.
        p: P's weight in each bin.
        q: Q's weight in each bin.
        ordered: whether the bins have an order; then all are shown and none is pooled.
        index: the index of the bin of each key of the joint counts.
        bins: the bins of a single column; None for combinations.
    """

    labels: Sequence[str]
    ends: Sequence[tuple[float, float] | None]
    p: Array
    q: Array
    ordered: bool
    index: Mapping[tuple[int, ...], int]
    bins: Bins | None = None


def column_bins(p: Profile, q: Profile, name: str, number: int, sizes: tuple[float, float]) -> Bins:
    """Return the bins of one column; neighboring bins of numbers that are rare are joined.

    Arguments:
        p: P's profile.
        q: Q's.
        name: the column.
        number: how many bins numbers get.
        sizes: the effective numbers of rows.
    """
    before, after = p.columns[name], q.columns[name]
    bins = choose_bins(before, after, number, row_weight=p.weight / max(p.rows, 1))
    if not (bins.gridded and bins.cuts):
        return bins
    expected = expected_rows(bin_counts(before, bins), bin_counts(after, bins), sizes)
    return _neighbors_joined(bins, expected, before.merged(after))


def column_contingency(p: Profile, q: Profile, name: str, bins: Bins) -> ContingencyTable:
    """Return the contingency table of one column."""
    before, after = (bin_counts(profile.columns[name], bins) for profile in (p, q))
    ends = [bins.ends(index) for index in range(len(bins))]
    index = {(index,): index for index in range(len(bins))}
    return ContingencyTable(bins.labels, ends, before, after, bins.gridded, index, bins)


def _neighbors_joined(bins: Bins, expected: Array, both: ColumnProfile) -> Bins:
    """Join neighboring bins until they are not rare."""
    cuts: list[int] = []
    together = expected[0]
    for index, following in enumerate(expected[1 : len(bins.cuts) + 1].tolist()):
        if (
            max(together, following) < MIN_EXPECTED / 2
        ):  # half: bins that should hold that many vary by chance
            together += following
        else:
            cuts.append(index)
            together = following
    edges = tuple(bins.edges[index] for index in cuts)
    labels = (*interval_labels(both, edges), *bins.specials)
    return replace(bins, edges=edges, cuts=tuple(bins.cuts[index] for index in cuts), labels=labels)


def every_value(bins: Bins) -> tuple[Bins, list[int | None]]:
    """Return bins for every possible value, and the original index of each; None for a bin that is new."""
    inside = len(bins) - len(bins.specials) - bins.other
    first = inside + bins.other
    numbers = max(inside, len(bins.cuts) + 1) if bins.gridded else inside
    labels = [
        *bins.labels[:inside],
        *[""] * (numbers - inside),
        *([] if bins.gridded else [OTHER]),
        *SPECIALS,
    ]
    original: list[int | None] = [*range(inside), *[None] * (numbers - inside)]
    original += [] if bins.gridded else [inside if bins.other else None]
    original += [first + bins.specials.index(label) if label in bins.specials else None for label in SPECIALS]
    complete = replace(bins, labels=tuple(labels), other=not bins.gridded, specials=tuple(SPECIALS))
    return complete, original


def joint_contingency(
    group: Sequence[str], bins: Mapping[str, Bins], pair: Pair, *, clustered: bool
) -> ContingencyTable:
    """Return the contingency table of the combinations of several columns' bins that occur."""
    start = 1 if clustered else 0
    keys = sorted({key[start:] for side in pair for key in side})
    index = {key: number for number, key in enumerate(keys)}
    counts = [np.zeros(len(keys)), np.zeros(len(keys))]
    for side, total in zip(pair, counts, strict=True):
        for key, weight in side.items():
            total[index[key[start:]]] += weight
    labels = [
        ", ".join(f"{name}: {bins[name].labels[number]}" for name, number in zip(group, key, strict=True))
        for key in keys
    ]
    return ContingencyTable(labels, [None] * len(keys), counts[0], counts[1], False, index)


def divergences(
    table: ContingencyTable, settings: Settings, clustered: Pair | None, columns: Sequence[str]
) -> tuple[dict[str, Any], list[Finding]]:
    """Compare P's and Q's weights in the bins of a contingency table.

    Arguments:
        table: the contingency table.
        settings: the settings of the comparison.
        clustered: the joint counts of P and Q by cluster and bin; None where rows are independent.
        columns: the columns, which findings name.

    Returns:
        the attributes of a comparison, and findings.
    """
    group, rare = _pooled(table, settings, limited=clustered is not None)
    size = int(group.max(initial=-1)) + 1
    a, b = (
        np.bincount(group, side, minlength=size).astype(np.float64, copy=False) for side in (table.p, table.q)
    )
    clusters = None if clustered is None else _cluster_matrices(table, group, clustered, settings.random)
    statistics = compare_counts(
        a, b, settings.sizes, random=settings.random, clusters=clusters, confidence=settings.confidence
    )
    parts = {name: getattr(statistics, name) for name in ("kl_pq", "kl_qp", "js", "psi", "tv", "p_value")}
    shown = _shown(table, group, a, b, statistics.contributions)
    notes, findings = _remarks(table, a, b, rare, clusters, columns, unsure=statistics.kl_pq.interval is None)
    return parts | {"p_adjusted": statistics.p_value, "bins": shown, "notes": notes}, findings


def _pooled(table: ContingencyTable, settings: Settings, *, limited: bool) -> tuple[Group, int]:
    """Return the group of each bin, and how many rare bins are pooled in the last group."""
    number = len(table.labels)
    if table.ordered or number < 3:
        return np.arange(number), 0
    rare = expected_rows(table.p, table.q, settings.sizes) < MIN_EXPECTED
    if limited and number > MOST_CLUSTERED:
        rare[np.argsort(-(table.p + table.q), kind="stable")[MOST_CLUSTERED:]] = True
    if table.bins is not None:
        inside = number - len(table.bins.specials)
        rare[inside:] = False
        # A shortened profile names its most frequent categories: rare ones among them were selected for being frequent
        # on its side, and are pooled with those that it does not name.
        if table.bins.other and rare.any():
            rare[inside - 1] = True
    if rare.sum() < 2:
        return np.arange(number), 0
    group = np.cumsum(~rare) - 1
    return np.where(rare, group[-1] + 1, group), int(rare.sum())


def _cluster_matrices(
    table: ContingencyTable, group: Group, pair: Pair, random: np.random.Generator
) -> tuple[Array, Array]:
    """Return the weights of P and of Q by cluster and bin, with the same cluster in the same row."""
    names = [{key[0]: None for key in side} for side in pair]
    both = [name for name in names[0] if name in names[1]]
    alone = [[name for name in side if name not in other] for side, other in (names, names[::-1])]
    row: dict[Any, int] = {}
    total = sum(map(len, (both, *alone)))
    for members in (both, *alone):
        rows = _rows_of(len(members), total, random) + (max(row.values(), default=-1) + 1)
        row |= dict(zip(members, rows.tolist(), strict=True))
    matrices: list[Array] = []
    for side in pair:
        matrix = np.zeros((max(row.values(), default=-1) + 1, int(group.max(initial=-1)) + 1))
        columns = [int(group[table.index[key[1:]]]) for key in side]
        np.add.at(matrix, ([row[key[0]] for key in side], columns), list(side.values()))
        matrices.append(matrix)
    return matrices[0], matrices[1]


def _rows_of(members: int, total: int, random: np.random.Generator) -> Group:
    """Return the row of each cluster of a matrix; where there are too many, clusters share rows at random."""
    if total <= MOST_GROUPS:
        return np.arange(members)
    rows = max(1, round(members * MOST_GROUPS / total))
    return random.permutation(members) % rows


def _shown(table: ContingencyTable, group: Group, a: Array, b: Array, parts: Array) -> tuple[Bin, ...]:
    """Return the bins to list: all that are ordered; of others the most frequent, and the rest as one."""
    sizes = np.bincount(group, minlength=len(a))
    first = np.full(len(a), -1)
    first[group[::-1]] = np.arange(len(group))[::-1]
    if table.ordered:
        order, rest = list(range(len(a))), np.zeros(0, np.int64)
    else:
        frequency = np.maximum(a / max(a.sum(), 1e-300), b / max(b.sum(), 1e-300))
        alone = np.flatnonzero(sizes == 1)
        ranked = alone[np.argsort(-frequency[alone], kind="stable")]
        most = MOST_BINS if len(ranked) == len(a) <= MOST_BINS else MOST_BINS - 1
        order = ranked[:most].tolist()
        rest = np.setdiff1d(np.arange(len(a)), order)
    found: list[Bin] = []
    for index in order:
        low, high = table.ends[int(first[index])] or (None, None)
        label = table.labels[int(first[index])]
        found.append(Bin(label, low, high, float(a[index]), float(b[index]), float(parts[index])))
    if len(rest):
        first_bin, joined = int(first[rest[0]]), int(sizes[rest].sum())
        other = table.bins is not None and table.bins.other
        label = table.labels[first_bin] if joined == 1 else OTHER if other else f"{joined:,} others"
        found.append(Bin(label, None, None, *(float(side[rest].sum()) for side in (a, b, parts))))
    return tuple(found)


def _remarks(
    table: ContingencyTable,
    a: Array,
    b: Array,
    rare: int,
    clusters: tuple[Array, Array] | None,
    columns: Sequence[str],
    *,
    unsure: bool,
) -> tuple[tuple[str, ...], list[Finding]]:
    """Return what was pooled, what is infinite, and why there is no interval, as notes and findings."""
    notes: list[str] = []
    findings: list[Finding] = []

    def remark(code: str, message: str) -> None:
        column = columns[0] if len(columns) == 1 else None
        findings.append(finding(code, f"{' with '.join(map(repr, columns))}: {message}", column))
        notes.append(f"{message[0].upper()}{message[1:]}.")

    if rare:
        remark(
            "rare-categories",
            f"{rare:,} bins with fewer than {MIN_EXPECTED:g} expected rows are compared as one",
        )
    if not ((a > 0) & (b > 0)).any():
        remark("disjoint", "no value of P lies in a bin where one of Q does")
    empty = [
        f"{divergence} (bins without rows of {side}: {count})"
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
        remark("few-clusters", f"{fewest} clusters on one side: no intervals below {MIN_CLUSTERS}")
    elif unsure and ((a + b) > 0).sum() > 1:
        notes.append(f"Fewer than {MIN_EFFECTIVE:g} independent rows on one side: no intervals.")
    elif unsure:
        notes.append("All rows lie in one bin: nothing tells P from Q.")
    return tuple(notes), findings
