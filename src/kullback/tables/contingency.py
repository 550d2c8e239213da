"""Contingency tables: the weights of P and of Q in the bins of one or several columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from kullback.common.arrays import Flags, Floats, Integers
from kullback.common.extra_arguments import by_name
from kullback.common.inference import of_tests_on_the_same_rows
from kullback.errors import quoted
from kullback.results.finding import Finding
from kullback.results.value import Value
from kullback.tables.arguments import refuse_unknown
from kullback.tables.choose_bins import bin_counts, choose_bins, interval_labels
from kullback.tables.columns.bins import OTHER, Bins
from kullback.tables.columns.column_profile import ColumnProfile, combined
from kullback.tables.engines import open_table
from kullback.tables.engines.counters import JointCounts
from kullback.tables.engines.engine import ParsedTable, is_text_field
from kullback.tables.inference.divergences import (
    MIN_CLUSTERS,
    MIN_EFFECTIVE,
    MIN_EXPECTED,
    MIN_MEAN_EXPECTED,
    STRAY,
    compare_counts,
    expected_rows,
)
from kullback.tables.inference.rare_values import RareValues, rare_values, rare_values_of_clusters
from kullback.tables.inference.significance import (
    OrderedTest,
    ordered_test,
    ordered_test_of_clusters,
    word_test,
)
from kullback.tables.table_findings import finding
from kullback.tables.table_profile import Profile
from kullback.tables.table_results import DIVERGENCES, Bin, Divergences
from kullback.tables.table_settings import TableSettings

# The joint counts of P and of Q, by cluster (if there are clusters) and by bins.
Pair = tuple[JointCounts, JointCounts]

MOST_BINS = 50  # a result lists at most this many bins of categories
MOST_GROUPS = 5000  # more clusters are merged at random into this many groups, which does not bias the errors
MOST_FREQUENT = 1000  # at most this many categories have a bin each if there are rare categories or clusters


@by_name()
def contingency_tables(
    frame: object,
    bins: Mapping[str, Bins],
    keys: Sequence[Sequence[str]],
    *,
    weights: str | None = None,
) -> dict[tuple[str, ...], dict[tuple[Any, ...], float]]:
    """Read a table again, and return the weight of every combination of several columns' bins.

    Arguments:
        frame: a path or a table, as for `kullback.tables.table_profile.profile_table`.
        bins: the bins of each column. A column without bins, such as the ids of clusters, is counted by its values.
        keys: groups of columns; the columns of each group are counted together.
        weights: the column of the rows' weights; None gives each row the weight 1.

    Returns:
        for each group, the weight of every combination with a weight above 0. A combination holds the index in
        `Bins.labels` for a column with bins, and the value itself for a column without bins.

    Raises:
        ArgumentValueError: a column is not in the table, or a value is in no bin.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables.table_profile import profile_table
        >>> table = pa.table({"x": ["a", "b", "a"], "user": [7, 7, 8]})
        >>> column = profile_table(table).columns["x"]
        >>> contingency_tables(table, {"x": choose_bins(column, column)}, [("user", "x")])
        {('user', 'x'): {(7, 0): 1.0, (7, 1): 1.0, (8, 0): 1.0}}
    """
    table = open_table(frame)
    wanted = [name for key in keys for name in key]
    for argument, names in (("keys", wanted), ("weights", [] if weights is None else [weights])):
        refuse_unknown("contingency_tables", argument, names, list(table.fields), "the table")
    ways = {
        name: of_column.written
        for name, of_column in bins.items()
        if of_column.written is not None and name in wanted and is_text_field(table.fields[name])
    }
    counts = (ParsedTable(table, ways) if ways else table).joint_counts(bins, keys, weights)
    return {key: dict(sorted(each.items(), key=_in_order)) for key, each in counts.items()}


def _in_order(item: tuple[tuple[Any, ...], float]) -> tuple[tuple[str, Any], ...]:
    """Return the sort key of a combination, whose values may be missing."""
    return tuple(
        ("", value) if isinstance(value, (int, float)) else (type(value).__name__, str(value))
        for value in item[0]
    )


@dataclass(frozen=True)
class ContingencyTable:
    """The weights of P and of Q in bins, with the label of each bin, and the ends of each bin of numbers.

    Bins that are `ordered` are all listed, and none of them is pooled. `index` has the index of the bin for each key of
    the joint counts; it is None if the key itself is this index. `bins` is None for combinations of columns.
    """

    labels: Sequence[str]
    ends: Sequence[tuple[float, float] | None]
    p: Floats
    q: Floats
    ordered: bool
    index: Mapping[tuple[int, ...], int] | None
    bins: Bins | None = None


def column_bins(
    p: Profile, q: Profile, name: str, number: int, sizes: tuple[float, float], *, together: bool
) -> Bins:
    """Return the bins of one column, about `number` for numbers; neighboring bins of numbers are joined if rare.

    If `together`, the bins end at quantiles of both tables. P's quantiles are close to its clusters and heavy rows, so
    P and Q would differ in such bins even if their distributions are equal.
    """
    before, after = p.columns[name], q.columns[name]
    reference = _average(before, after) if together and before.buckets and after.buckets else before
    bins = choose_bins(reference, after, number, row_weight=p.weight / max(p.rows, 1))
    if not (bins.gridded and bins.cuts):
        return bins
    expected = expected_rows(bin_counts(before, bins), bin_counts(after, bins), sizes)
    return _neighbors_joined(bins, expected, before.merged(after))


def _average(p: ColumnProfile, q: ColumnProfile) -> ColumnProfile:
    """Return P's profile with the mean of P's and Q's distributions of finite numbers."""
    share = sum(p.buckets.values()) / sum(q.buckets.values())
    half = (
        {bucket: weight * part / 2 for bucket, weight in side.buckets.items()}
        for side, part in ((p, 1), (q, share))
    )
    return replace(p, buckets=combined(*half))


def column_contingency(p: Profile, q: Profile, name: str, bins: Bins) -> ContingencyTable:
    """Return the contingency table of one column."""
    before, after = (bin_counts(profile.columns[name], bins) for profile in (p, q))
    ends = [bins.ends(index) for index in range(len(bins))] if bins.gridded else [None] * len(bins)
    return ContingencyTable(bins.labels, ends, before, after, bins.gridded, None, bins)


def _neighbors_joined(bins: Bins, expected: Floats, both: ColumnProfile) -> Bins:
    """Join neighboring bins until they are not rare."""
    cuts: list[int] = []
    together = expected[0]
    for index, following in enumerate(expected[1 : len(bins.cuts) + 1].tolist()):
        # Half the minimum is enough, because the numbers of rows vary around their mean.
        if max(together, following) < MIN_EXPECTED / 2:
            together += following
        else:
            cuts.append(index)
            together = following
    edges = tuple(bins.edges[index] for index in cuts)
    kept = tuple(bins.cuts[index] for index in cuts)
    labels = (*interval_labels(both, edges, kept), *bins.specials)
    return replace(bins, edges=edges, cuts=kept, labels=labels)


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


class ComparedBins(NamedTuple):
    """The divergences between bins, findings that limit or explain them, and two values of `ColumnComparison`."""

    divergences: Divergences
    findings: list[Finding]
    ks: float | None = None
    words: float | None = None


def divergences(
    table: ContingencyTable,
    settings: TableSettings,
    clustered: Pair | None,
    columns: Sequence[str],
    profiles: tuple[ColumnProfile, ColumnProfile] | None = None,
) -> ComparedBins:
    """Compare P's and Q's weights in bins, with joint counts by cluster; `columns` are the names for the findings.

    With `profiles` of a single column, the order of its numbers and its words are also compared.
    """
    pooled = _pooled(table, settings, clustered)
    ordered = None if profiles is None else _in_order_of_numbers(table, pooled, settings, profiles)
    statistics = compare_counts(
        pooled.p * pooled.scales[0],
        pooled.q * pooled.scales[1],
        settings.sizes,
        random=settings.random,
        clusters=pooled.clusters,
        rare=pooled.rare,
        pooled=len(pooled.groups),
        sparse=pooled.sparse,
        confidence=settings.confidence,
        ordered=math.nan if ordered is None else ordered.p_value,
    )
    remarks = list(_remarks(pooled, statistics.kl_pq, statistics.kl_qp))
    if statistics.open_limits:
        too_far = f"Simulated draws do not show the limits of {statistics.open_limits} at a confidence of"
        remarks.append(("", f"{too_far} {settings.confidence:g}: they are open. Use a smaller confidence."))
    name = " with ".join(map(quoted, columns))
    column = columns[0] if len(columns) == 1 else None
    p_value, psi_of_words = statistics.p_value, None
    words = None if profiles is None else word_test(*profiles, _independent_rows(pooled, settings))
    if words is not None:
        p_value = of_tests_on_the_same_rows([statistics.p_value, words.p_value])
        psi_of_words = words.psi if words.p_value < 1 - settings.confidence else 0.0
    compared = Divergences(
        **{name: getattr(statistics, name) for name in DIVERGENCES},
        p_value=p_value,
        p_adjusted=p_value,
        bins=_shown(table, pooled, statistics.contributions),
        notes=tuple(f"{text[0].upper()}{text[1:]}." if code else text for code, text in remarks),
    )
    findings = [finding(code, f"{name}: {message}", column) for code, message in remarks if code]
    ks = None if ordered is None or math.isnan(ordered.distance) else ordered.distance
    return ComparedBins(compared, findings, ks, psi_of_words)


def _independent_rows(pooled: _Pooled, settings: TableSettings) -> tuple[float, float]:
    """Return Kish's effective numbers of rows (1965), as if all rows of a cluster had the same value."""
    if pooled.clusters is None:
        return settings.sizes
    p, q = (
        float(rows.sum() ** 2 / max(np.square(rows).sum(), 1e-300))
        for rows in (c.sum(1) for c in pooled.clusters)
    )
    return min(p, settings.sizes[0]), min(q, settings.sizes[1])


def _in_order_of_numbers(
    table: ContingencyTable,
    pooled: _Pooled,
    settings: TableSettings,
    profiles: tuple[ColumnProfile, ColumnProfile],
) -> OrderedTest | None:
    """Return the test that uses the order of a column's numbers; None for categories."""
    if not (table.ordered and table.bins is not None):
        return None
    whole = ordered_test(*profiles, settings.sizes)
    if pooled.clusters is None:
        return whole
    inside = len(table.bins) - len(table.bins.specials)
    a, b = (side[:, :inside] for side in pooled.clusters)
    return OrderedTest(whole.distance, ordered_test_of_clusters(a, b, settings.random))


@dataclass(frozen=True)
class _Pooled:
    """The weights of P and of Q in the bins that are compared: frequent bins, then labeled groups of rare values.

    `frequent` has their places in the contingency table, and `values` the number of its rare bins. `rare` has rare rows
    by value and group, and `clusters` weights by cluster. `scales` turn weights into rows. If `sparse`, some bins are
    rare, and none is pooled because there are few.
    """

    frequent: Integers
    groups: Sequence[str]
    p: Floats
    q: Floats
    values: int = 0
    rare: RareValues | None = None
    clusters: tuple[Floats, Floats] | None = None
    scales: tuple[float, float] = (1.0, 1.0)
    sparse: bool = False


def _pooled(table: ContingencyTable, settings: TableSettings, clustered: Pair | None) -> _Pooled:
    if _are_few(table, settings, clustered):
        return _Pooled(np.arange(len(table.labels)), (), table.p, table.q, sparse=True)
    rare = _is_rare(table, settings, clustered)
    frequent, values = np.flatnonzero(~rare), int(rare.sum())
    p, q = table.p[frequent], table.q[frequent]
    if clustered is not None:
        return _pooled_clusters(table, rare, clustered, settings.random)
    if not values:
        return _Pooled(frequent, (), p, q)
    total = table.p.sum(), table.q.sum()
    scales = float(settings.sizes[0] / total[0]), float(settings.sizes[1] / total[1])
    counts = [side[rare] * scale for side, scale in zip((table.p, table.q), scales, strict=True)]
    rows = [np.round(side) for side in counts]
    if (table.bins is not None and table.bins.other) or not all(map(np.allclose, counts, rows)):
        # The number of rows is unknown for weighted rows, and for categories that a profile does not name.
        label = OTHER if table.bins is not None and table.bins.other else f"{values:,} rare values"
        p, q = np.append(p, table.p[rare].sum()), np.append(q, table.q[rare].sum())
        return _Pooled(frequent, (label,), p, q, values)
    grouped = rare_values(rows[0], rows[1], settings.sizes, settings.random)
    of_p, of_q = grouped.totals
    p, q = np.append(p, of_p / scales[0]), np.append(q, of_q / scales[1])
    return _Pooled(frequent, grouped.labels, p, q, values, grouped, scales=scales)


def _are_few(table: ContingencyTable, settings: TableSettings, clustered: Pair | None) -> bool:
    """Return whether to use posterior intervals: for independent rows in few categories, with some rare categories."""
    if table.ordered or clustered is not None or (table.bins is not None and table.bins.other):
        return False
    occupied = table.p + table.q > 0
    expected = expected_rows(table.p, table.q, settings.sizes)[occupied]
    rows = [side.sum() for side in (table.p, table.q)]
    whole = np.allclose(rows, settings.sizes) and all(
        np.allclose(side, np.round(side)) for side in (table.p, table.q)
    )
    few = len(expected) <= MOST_BINS and expected.mean() >= MIN_MEAN_EXPECTED
    return bool(whole and few and (expected < MIN_EXPECTED).any())


def _is_rare(table: ContingencyTable, settings: TableSettings, clustered: Pair | None) -> Flags:
    number = len(table.labels)
    rare = np.zeros(number, np.bool_)
    if table.ordered or number < 3:
        return rare
    expected = expected_rows(table.p, table.q, settings.sizes)
    rare = expected < MIN_EXPECTED
    if (rare.any() or clustered is not None) and number - rare.sum() > MOST_FREQUENT:
        rare[np.argsort(-expected, kind="stable")[MOST_FREQUENT:]] = True
    if table.bins is not None:
        inside = number - len(table.bins.specials)
        rare[inside:] = False
        # A shortened profile names the categories that are most frequent on its side. This selection would bias the
        # comparison of rare categories, so they are pooled with the unnamed categories.
        if table.bins.other and rare.any():
            rare[inside - 1] = True
    return rare if rare.sum() > 1 else np.zeros(number, np.bool_)


def _pooled_clusters(
    table: ContingencyTable,
    rare: Flags,
    pair: Pair,
    random: np.random.Generator,
) -> _Pooled:
    frequent, values = np.flatnonzero(~rare), int(rare.sum())
    column = np.cumsum(~rare) - 1
    row = _rows_of_clusters(pair, random)
    keys = [key for side in pair for key in side]
    weight = np.array([each for side in pair for each in side.values()])
    on_p = np.arange(len(keys)) < len(pair[0])
    rows = np.array([row[key[0]] for key in keys], np.int64)
    index = np.array([key[1] if table.index is None else table.index[key[1:]] for key in keys], np.int64)
    place, grouped = column[index], None
    if values:
        own = rare[index]
        number = np.cumsum(rare) - 1
        totals = float(table.p.sum()), float(table.q.sum())
        grouped, group = rare_values_of_clusters(
            number[index[own]], on_p[own], rows[own], weight[own], totals
        )
        place[own] = len(frequent) + group
    labels = grouped.labels if grouped else ()
    matrices: list[Floats] = []
    for side in (on_p, ~on_p):
        matrix = np.zeros((len(set(row.values())), len(frequent) + len(labels)))
        np.add.at(matrix, (rows[side], place[side]), weight[side])
        matrices.append(matrix)
    p, q = (matrix.sum(0) for matrix in matrices)
    return _Pooled(frequent, labels, p, q, values, grouped, (matrices[0], matrices[1]))


def _rows_of_clusters(pair: Pair, random: np.random.Generator) -> dict[Any, int]:
    """Return the row number of each cluster in the matrices of P and Q; it is the same in both matrices."""
    names = [{key[0]: None for key in side} for side in pair]
    both = [name for name in names[0] if name in names[1]]
    alone = [[name for name in side if name not in other] for side, other in (names, names[::-1])]
    row: dict[Any, int] = {}
    total = sum(map(len, (both, *alone)))
    for members in (both, *alone):
        rows = _rows_of(len(members), total, random) + (max(row.values(), default=-1) + 1)
        row |= dict(zip(members, rows.tolist(), strict=True))
    return row


def _rows_of(members: int, total: int, random: np.random.Generator) -> Integers:
    """Return the row number of each cluster; if there are too many clusters, they share rows at random."""
    if total <= MOST_GROUPS:
        return np.arange(members)
    rows = max(1, round(members * MOST_GROUPS / total))
    return random.permutation(members) % rows


def _shown(table: ContingencyTable, pooled: _Pooled, parts: Floats) -> tuple[Bin, ...]:
    """Return the bins to list: all ordered bins; or frequent categories, one bin for the rest, and the groups."""
    a, b, number = pooled.p, pooled.q, len(pooled.frequent)
    groups = [index for index in range(number, len(a)) if a[index] + b[index] > 0]
    order, rest = np.arange(number), np.zeros(0, np.int64)
    if not table.ordered:
        frequency = np.maximum(a / max(a.sum(), 1e-300), b / max(b.sum(), 1e-300))[:number]
        order, most = np.argsort(-frequency, kind="stable"), MOST_BINS - len(groups)
        order, rest = (order, rest) if number <= most else (order[: most - 1], order[most - 1 :])

    def bin_of(label: str, index: Any, ends: tuple[float, float] | None = None) -> Bin:
        return Bin(label, *(ends or (None, None)), *(float(side[index].sum()) for side in (a, b, parts)))

    places: Iterable[tuple[int, int]] = zip(order.tolist(), pooled.frequent[order].tolist(), strict=True)
    bins = [bin_of(table.labels[place], index, table.ends[place]) for index, place in places]
    if len(rest):
        bins.append(bin_of(f"{len(rest):,} others", rest))
    return (*bins, *(bin_of(pooled.groups[index - number], index) for index in groups))


def _remarks(
    pooled: _Pooled, forward: Value[float | None], backward: Value[float | None]
) -> Iterator[tuple[str, str]]:
    """Yield remarks on the bins: the code and message of a finding, or an empty code and the sentence of a note."""
    if pooled.values:
        yield from _rare_remarks(pooled, forward)
    if not ((pooled.p > 0) & (pooled.q > 0)).any():
        yield "disjoint", "P and Q have no bin in common"
    yield from _empty_remarks(pooled, (forward, backward))
    fewest = MIN_CLUSTERS
    if pooled.clusters is not None:
        fewest = min(int((side.sum(1) > 0).sum()) for side in pooled.clusters)
    if fewest < MIN_CLUSTERS:
        clusters = f"{fewest} cluster{'' if fewest == 1 else 's'} on one side"
        yield "few-clusters", f"{clusters}: no intervals below {MIN_CLUSTERS}"
    elif forward.interval is None and ((pooled.p + pooled.q) > 0).sum() > 1:
        yield "", f"Fewer than {MIN_EFFECTIVE:g} independent rows on one side: no intervals."
    elif forward.interval is None:
        yield "", "All rows are in one bin, so the divergences are 0 whatever P and Q are."


def _empty_remarks(
    pooled: _Pooled, both: tuple[Value[float | None], Value[float | None]]
) -> Iterator[tuple[str, str]]:
    """Yield remarks on bins that are empty on one side, and on their effect on both directions of KL."""
    sides = (("KL(P||Q)", "Q", pooled.p, pooled.q), ("KL(Q||P)", "P", pooled.q, pooled.p))
    infinite: list[str] = []
    for (divergence, side, other, own), known in zip(sides, both, strict=True):
        without = (own == 0) & (other > 0)
        if not without.any():
            continue
        bins, share = f"without rows of {side}: {without.sum()}", other[without].sum() / other.sum()
        if pooled.sparse and known.interval is not None and math.isfinite(known.interval[1]):
            taken = f"The interval of {divergence} assumes that {side} has some there, absent from its rows by chance."
            yield "", f"Bins {bins}, with {100 * share:.2g} % of the other side's. {taken}"
        else:
            infinite.append(f"{divergence} (bins {bins})")
    if infinite:
        parts = ", ".join(infinite)
        yield "infinite", f"the raw counts give infinite {parts}; the upper limits are infinite"


def _rare_remarks(pooled: _Pooled, forward: Value[float | None]) -> Iterator[tuple[str, str]]:
    """Yield remarks on the share of rows with rare values, and on the effect of these rows."""
    of_p, of_q = (side[len(pooled.frequent) :] / side.sum() for side in (pooled.p, pooled.q))
    hidden = float(np.minimum(of_p, of_q).sum())
    share = 50 * float(of_p.sum() + of_q.sum())
    rows = f"{share:.3g} % of rows have values with fewer than {MIN_EXPECTED:g} expected rows each"
    if forward.value is None:
        yield "too-rare", f"{rows}: inconclusive"
        return
    yield "rare-categories", f"{rows} ({pooled.values:,} values); they are compared in groups"
    if hidden > STRAY:
        yield (
            "",
            "Rare values within a group may differ, which the groups do not show: the upper limits are infinite.",
        )
