"""The comparison of two tables, or of their profiles, column by column."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kullback.common.constraints import refuse_both
from kullback.common.extra_arguments import by_name
from kullback.common.inference import false_discovery_rates
from kullback.errors import invalid_type, invalid_value, quoted
from kullback.estimators.registry import seed_of
from kullback.results.finding import Finding
from kullback.results.value import Value
from kullback.tables.arguments import (
    ARGUMENTS,
    check_column,
    chosen_of,
    groups_of,
    name_or_none,
    no_column,
    no_further_column,
    refuse_unknown,
)
from kullback.tables.columns.bins import Bins
from kullback.tables.columns.text_types import ways_to_read
from kullback.tables.columns.types import Field
from kullback.tables.contingency import (
    ComparedBins,
    Pair,
    column_bins,
    column_contingency,
    divergences,
    joint_contingency,
)
from kullback.tables.engines import Table, open_table
from kullback.tables.engines.counters import JointCounts
from kullback.tables.engines.engine import Caller
from kullback.tables.plot_bins import histogram
from kullback.tables.table_findings import (
    changed_type,
    column_findings,
    content_finding,
    content_of,
    finding,
    in_proportion,
    order_findings,
    parsed_finding,
    schema_findings,
    size_findings,
    text_finding,
    unseparated_numbers,
    unshared_categories,
)
from kullback.tables.table_profile import CountedTable, Counting, Profile, count_opened
from kullback.tables.table_results import ColumnComparison, JointComparison, TableComparison, least
from kullback.tables.table_settings import TableSettings, effective_rows

CALL = "compare_tables"


@by_name()
def compare_tables(
    p: object,
    q: object,
    columns: Sequence[str] | None = None,
    *,
    exclude: Sequence[str] | None = None,
    weights: str | None = None,
    cluster: str | None = None,
    independent: bool = False,
    joint: Sequence[Sequence[str]] = (),
    bins: int = 20,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    progress: Callable[[str], object] | None = None,
) -> TableComparison:
    r"""Compare two tables column by column.

    The bins of numbers end at quantiles of P, or of both tables if there are uneven weights or clusters. The first bin
    and the last bin are open-ended. Each category, missing values, NaN and the infinities have bins of their own. With
    the proportions p and q of the bins, the divergences are

    .. math:: \mathrm{KL}(P \| Q) = \sum_i p_i \log \frac{p_i}{q_i}, \quad
        \mathrm{PSI} = \sum_i (p_i - q_i) \log \frac{p_i}{q_i}, \quad
        \mathrm{TV} = \frac12 \sum_i |p_i - q_i|

    and so on. The divergences between bins are at most the divergences between the values. The reported divergences
    are corrected for the bias of counts, and are at least 0. The engine of each table counts its rows. A column of text
    is compared as numbers or dates if at least 90 % of each table's texts are numbers or dates written in one way. The
    other texts count as missing.

    Arguments:
        p: the reference: a path to a Parquet, CSV or NDJSON file (``*`` matches many files), or a table of pandas,
            Polars (also lazy), PyArrow, DuckDB, Dask, PySpark or Ibis.
        q: the table that is compared with the reference: a path or a table of the same kinds.
        columns: the names of the columns to compare; None compares all columns.
        exclude: the names of the columns to leave out; cannot be combined with `columns`.
        weights: the column of the rows' weights; None gives each row the weight 1. Standard errors assume that weights
            do not depend on the values.
        cluster: the column with the group of each row, if rows of a group depend on each other, such as the visits of a
            user. Standard errors and tests then assume independent groups. None means that
            rows have no groups.
        independent: whether rows are known to be independent. If not, and without `cluster`, the order of the first
            32,768 rows is examined, and repeated rows of continuous numbers are counted. If a column shows dependence,
            its standard errors, intervals and test use the effective number of rows. A finding reports the dependence.
        joint: groups of columns. Each group is also compared by the combinations of its columns' bins.
        bins: the approximate largest number of bins of P's numbers, lower if bins would have fewer than 10 rows on
            average. Q's numbers in gaps between P's numbers may have further bins.
        confidence: the confidence level of the intervals.
        generator: the source of randomness of the random tests and intervals; None uses a fixed seed.
        progress: a function that is called with a sentence before each reading of a table; None reports nothing.

    Returns:
        the comparison, with an entry for every column that both tables have, the largest PSI first and identifiers
        last. An entry has the divergences with standard errors and intervals, a test, and the bins. Columns that cannot
        be compared are among the findings.

    Raises:
        ArgumentTypeError: p or q is not a table.
        ArgumentValueError: a requested column is in neither table, a table lacks the column of weights or of
            clusters, or a number is out of range.
        FileError: a file is missing, damaged or of an unknown format.
        OptionalDependencyError: a package is missing; the error names it.

    Example:
        >>> import pyarrow as pa, torch
        >>> before = pa.table({"size": [1.0, 2.0, 3.0, 4.0] * 50, "fruit": ["apple", "pear"] * 100})
        >>> after = pa.table({"size": [1.0, 2.0, 3.0, 4.0] * 50, "fruit": ["apple", "plum"] * 100})
        >>> comparison = compare_tables(before, after, generator=torch.Generator().manual_seed(0))
        >>> [(column.name, round(column.psi.value, 1), column.new) for column in comparison.columns]
        [('fruit', 5.2, ('plum',)), ('size', 0.0, ())]

    References:
        Credit Risk Scorecards: Developing and Implementing Intelligent Credit Scoring (Siddiqi, 2005)
        Nonparametric Estimation of Kullback-Leibler Divergence (Zhang and Grabchak, 2014)
    """
    bins, confidence, *_ = ARGUMENTS.check(**locals()).values()
    columns, excluded = chosen_of(CALL, columns, exclude)
    groups = groups_of(CALL, joint)
    check_column(CALL, "weights", weights)
    check_column(CALL, "cluster", cluster)
    refuse_both(CALL, independent, cluster)
    tables = open_table(p, Caller(CALL, "p")), open_table(q, Caller(CALL, "q"))
    names = _chosen_names(tables, columns, excluded, groups, weights, cluster)
    usable, findings = schema_findings(tables[0].fields, tables[1].fields, names)
    independent = independent or cluster is not None
    counting = Counting(weights, None, progress)
    first, second = _counted(tables, usable, counting)
    of_p, of_q = (each.finished(independent=independent) for each in (first, second))
    settings = TableSettings(bins, confidence, _random(generator), cluster, independent)
    sides = _sides(of_p, of_q, settings, counting, (first.table, second.table))
    return _comparison(sides, (_name_of(p), _name_of(q)), findings, groups)


def corrected_together(comparisons: Sequence[TableComparison]) -> list[TableComparison]:
    """Return comparisons whose p-values are corrected for the number of tests in all comparisons together.

    If all batches come from the reference's distribution, the probability that any batch shows a difference is about
    5 %, whatever the number of batches. A correction within each batch would give every single batch this probability.
    """
    tests = [test for compared in comparisons for test in (*compared.columns, *compared.joint)]
    corrected = iter(false_discovery_rates([test.p_value for test in tests]))
    return [
        replace(
            compared,
            columns=tuple(replace(column, p_adjusted=next(corrected)) for column in compared.columns),
            joint=tuple(replace(group, p_adjusted=next(corrected)) for group in compared.joint),
        )
        for compared in comparisons
    ]


@by_name()
def compare_profiles(
    p: Profile,
    q: Profile,
    *,
    bins: int = 20,
    confidence: float = 0.95,
    independent: bool = False,
    generator: torch.Generator | None = None,
    names: tuple[str, str] = ("P", "Q"),
) -> TableComparison:
    """Compare two tables by their profiles, as `compare_tables` does without clusters and groups of columns.

    Arguments:
        p: the reference's profile.
        q: the profile of the compared table, made with ``like=p``.
        bins: the approximate largest number of bins of numbers; lower if there are few rows.
        confidence: the confidence level of the intervals.
        independent: whether rows are known to be independent. If so, the order of rows in the profiles is ignored.
        generator: the source of randomness of the random tests and intervals; None uses a fixed seed.
        names: the names of P and Q in the result.

    Returns:
        the comparison that `compare_tables` returns for the tables themselves.

    Raises:
        ArgumentTypeError: p or q is not a profile.
        ArgumentValueError: the profiles are weighted by different columns, they count a column on different grids, or
            a number is out of range.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import profile_table
        >>> p = profile_table(pa.table({"fruit": ["apple", "pear"] * 100}))
        >>> q = profile_table(pa.table({"fruit": ["apple", "plum"] * 100}), like=p)
        >>> compare_profiles(p, q).columns[0].vanished
        ('pear',)
    """
    bins, confidence, *_ = ARGUMENTS.check("compare_profiles", **locals()).values()
    for argument, profile in (("p", p), ("q", q)):
        if not isinstance(profile, Profile):
            instead = "compare_profiles(profile_table(a), ...)"
            got = type(profile).__name__
            raise invalid_type("compare_profiles", argument, wanted="a Profile", got=got, instead=instead)
    if p.weights != q.weights:
        raise invalid_value(
            "compare_profiles",
            "p, q",
            wanted="profiles weighted by the same column",
            got=f"weights from {name_or_none(p.weights)} and from {name_or_none(q.weights)}",
            instead="profile_table(frame, weights=...) with the same column for both",
        )
    settings = TableSettings(bins, confidence, _random(generator), independent=independent)
    sides = _sides(p, q, settings, Counting(p.weights, None, None))
    return _comparison(sides, names, _profile_findings(p, q))


@dataclass(frozen=True)
class _Sides:
    """Two tables whose columns are compared.

    The tables are read again for clusters and groups of columns; there are none if only profiles are known.
    """

    p: Profile
    q: Profile
    settings: TableSettings
    tables: tuple[Table, ...]
    counting: Counting

    def columns(self, names: Sequence[str]) -> tuple[list[ColumnComparison], list[Finding]]:
        """Compare each column; return the comparisons and their findings, with the findings on identifiers last."""
        own = {name: self._bins([name]) for name in names}
        counted: dict[tuple[str, ...], Pair] = {}
        if self.settings.cluster is not None and names:
            bins = {name: of_column[name] for name, (_, of_column) in own.items()}
            counted = self._joint_counts(bins, [(name,) for name in names])
        columns: list[ColumnComparison] = []
        findings: list[Finding] = []
        identifiers: list[Finding] = []
        for name, (settings, bins) in own.items():
            p, q = self.p.columns[name], self.q.columns[name]
            new, vanished = unshared_categories(q, p), unshared_categories(p, q)
            content = content_of(name, p, q, weighted=self.p.weights is not None)
            table = column_contingency(self.p, self.q, name, bins[name])
            compared = divergences(table, settings, counted.get((name,)), (name,), (p, q))
            compared = self._in_order(compared, [name])
            columns.append(
                ColumnComparison(
                    name=name,
                    column_type=(q if p.empty else p).column_type,
                    missing_p=p.missing / p.total,
                    missing_q=q.missing / q.total,
                    new=new.names,
                    vanished=vanished.names,
                    histogram=histogram(p, q),
                    ks=compared.ks,
                    words=compared.words,
                    content=content,
                    **vars(compared.divergences),
                )
            )
            of_values = [text_finding(name, p, q, compared.words), parsed_finding(name, p, q)]
            remarks = [*column_findings(name, p, q, new, vanished), *compared.findings]
            remarks = in_proportion([*remarks, *(each for each in of_values if each is not None)])
            if content == "identifier":
                remarks = [replace(each, level="note") for each in remarks]
                identifiers.append(content_finding(name, p, q, content))
            elif content is not None:
                remarks.append(content_finding(name, p, q, content))
            findings += remarks
        return columns, [*findings, *identifiers]

    def groups(
        self, groups: Sequence[tuple[str, ...]], names: Sequence[str]
    ) -> tuple[list[JointComparison], list[Finding]]:
        """Compare each group whose columns are all in `names`; return the comparisons and the findings."""
        joint: list[JointComparison] = []
        findings: list[Finding] = []
        for group in groups:
            if lacking := [name for name in group if name not in names]:
                reason = f"{', '.join(map(quoted, lacking))} is not"
                message = f"{' with '.join(map(quoted, group))} cannot be compared: {reason}"
                findings.append(finding("group-skipped", message, ",".join(group)))
                continue
            settings, bins = self._bins(group)
            pair = self._joint_counts(bins, [group])[group]
            clustered = settings.cluster is not None
            table = joint_contingency(group, bins, pair, clustered=clustered)
            compared = divergences(table, settings, pair if clustered else None, group)
            compared = self._in_order(compared, group)
            joint.append(JointComparison(columns=group, **vars(compared.divergences)))
            findings += compared.findings
        return joint, findings

    def _bins(self, columns: Sequence[str]) -> tuple[TableSettings, dict[str, Bins]]:
        """Return the settings for columns that are compared together, and the bins of each column."""
        p, q, settings = self.p, self.q, self.settings
        sides = zip(settings.sizes, (p, q), strict=True)
        together = settings.cluster is not None or any(size < 0.99 * side.rows for size, side in sides)
        settings = settings.for_columns(p, q, columns)
        number = settings.number_of_bins(len(columns))
        bins = {name: column_bins(p, q, name, number, settings.sizes, together=together) for name in columns}
        return settings, bins

    def _joint_counts(
        self, bins: dict[str, Bins], groups: Sequence[tuple[str, ...]]
    ) -> dict[tuple[str, ...], Pair]:
        """Count the combinations of bins for each group of columns, within each cluster if there are clusters."""
        prefix = () if self.settings.cluster is None else (self.settings.cluster,)
        keys = [(*prefix, *group) for group in groups]
        counted: list[list[JointCounts]] = []
        for side, table in zip("PQ", self.tables, strict=True):
            self.counting.tell(f"counting {len(keys)} combinations of columns in {side}")
            counts = table.joint_counts(bins, keys, self.counting.weights)
            counted.append([counts[key] for key in keys])
        return dict(zip(groups, zip(*counted, strict=True), strict=True))

    def _in_order(self, compared: ComparedBins, columns: Sequence[str]) -> ComparedBins:
        """Add notes on dependent rows; remove errors, intervals and tests if the dependence is not known."""
        notes: list[str] = []
        is_open = False
        for side, table in (("P", self.p), ("Q", self.q)):
            if table.order is not None and (time := table.order.time(columns)) > 1:
                is_open = is_open or bool(table.order.unknown.intersection(columns))
                notes.append(
                    f"{table.rows:,} rows of {side} carry the information of "
                    f"{'at most ' if is_open else 'about '}{table.rows / time:,.3g} independent ones"
                )
        measured = compared.divergences
        if is_open:
            notes.append("there are too few independent blocks of rows for intervals and a test")
            names = ("kl_pq", "kl_qp", "js", "psi", "tv")
            values = {name: Value(getattr(measured, name).value, None, None) for name in names}
            measured = replace(measured, **values, p_value=math.nan, p_adjusted=math.nan)
            compared = compared._replace(words=None)
        return compared._replace(divergences=replace(measured, notes=(*measured.notes, *notes)))


def _comparison(
    sides: _Sides,
    names: tuple[str, str],
    findings: Sequence[Finding],
    groups: Sequence[tuple[str, ...]] = (),
) -> TableComparison:
    """Compare each shared column and each group of columns, and correct the p-values for the number of tests."""
    p, q, settings = sides.p, sides.q, sides.settings
    reported = [*size_findings(p, q), *findings]
    columns: list[ColumnComparison] = []
    joint: list[JointComparison] = []
    if p.weight > 0 and q.weight > 0:
        shared = [name for name in p.columns if name in q.columns]
        pairs = {name: (p.columns[name], q.columns[name]) for name in shared}
        changed = {
            name: changed_type(name, *pair) or unseparated_numbers(name, *pair)
            for name, pair in pairs.items()
        }
        shared = [name for name in shared if changed[name] is None]
        reported += [each for each in changed.values() if each is not None]
        reported += [] if settings.independent else order_findings(p, q, shared)
        reported += settings.findings(shared)
        columns, of_columns = sides.columns(shared)
        joint, of_groups = sides.groups(groups, shared)
        reported += [*of_columns, *of_groups]
    columns.sort(key=lambda each: (each.content == "identifier", -least(each.psi), each.name))
    compared = TableComparison(
        *names,
        p.rows,
        q.rows,
        tuple(columns),
        tuple(joint),
        tuple(reported),
        settings.confidence,
        settings.max_bins,
        p.weights,
        settings.cluster,
    )
    return corrected_together([compared])[0]


def _sides(
    p: Profile,
    q: Profile,
    settings: TableSettings,
    counting: Counting,
    tables: tuple[Table, ...] = (),
) -> _Sides:
    """Return both sides with their effective numbers of rows; the order is ignored if rows are independent."""
    if settings.independent:
        p, q = replace(p, order=None), replace(q, order=None)
    sized = replace(settings, sizes=(effective_rows(p), effective_rows(q)))
    return _Sides(p, q, sized, tables, counting)


def _counted(
    tables: tuple[Table, Table], columns: Sequence[str], counting: Counting
) -> tuple[CountedTable, CountedTable]:
    """Count both tables alike: a column of text as numbers or dates if both tables write them in one way."""
    p = count_opened(tables[0], columns, counting)
    q = count_opened(tables[1], columns, counting._replace(like=p.profile))
    ways = ways_to_read([p.side(), q.side()], weighted=counting.weights is not None)
    p = p.parsed(ways[0])
    q = replace(q, counting=counting._replace(like=p.profile))
    return p, q.parsed(ways[1], again=ways[0])


def _profile_findings(p: Profile, q: Profile) -> list[Finding]:
    """Return findings on columns that only one profile has, and on columns that a profile skipped."""

    def fields(profile: Profile) -> dict[str, Field]:
        skipped = {name: Field(name, None, reason=reason) for name, reason in profile.skipped.items()}
        return {name: Field(name, column.column_type) for name, column in profile.columns.items()} | skipped

    return schema_findings(fields(p), fields(q), list(fields(p) | fields(q)))[1]


def _chosen_names(
    tables: tuple[Table, Table],
    columns: Sequence[str] | None,
    exclude: Sequence[str],
    groups: Sequence[tuple[str, ...]],
    weights: str | None,
    cluster: str | None,
) -> list[str]:
    """Return the names of the columns to compare: P's columns in order, then the columns that only Q has."""
    there = list(tables[0].fields | tables[1].fields)
    together = [name for group in groups for name in group]
    refuse_unknown(CALL, exclude, there)
    for name in together:
        if name in exclude:
            raise invalid_value(
                CALL,
                "joint",
                wanted="columns that exclude= does not leave out",
                got=quoted(name),
                instead="another group of columns, or exclude= without this one",
            )
    for argument, name in [("columns", name) for name in columns or ()] + [
        ("joint", name) for name in together
    ]:
        if name not in there:
            raise no_column(CALL, argument, name, there)
    for argument, name in (("weights", weights), ("cluster", cluster)):
        for side, table in zip("PQ", tables, strict=True):
            if name is not None and name not in table.fields:
                raise no_column(CALL, argument, name, list(table.fields), side)
    wanted = set(there).difference(exclude) if columns is None else {*columns, *together}
    possible = [name for name in there if name not in (weights, cluster)]
    chosen = [name for name in possible if name in wanted]
    if (columns is not None or exclude) and not chosen:
        raise no_further_column(CALL, columns, possible, exclude)
    return chosen


def _random(generator: torch.Generator | None) -> np.random.Generator:
    return np.random.default_rng(seed_of(generator or torch.Generator().manual_seed(0)))


def _name_of(frame: object) -> str:
    if isinstance(frame, str | os.PathLike):
        return os.fspath(frame)
    return f"a {type(frame).__module__.partition('.')[0]} {type(frame).__name__}"
