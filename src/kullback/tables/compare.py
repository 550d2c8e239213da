"""Two tables, column by column: from frames or profiles to a `TableComparison`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kullback.errors import ArgumentTypeError, ArgumentValueError, explain
from kullback.estimators.checks import check_confidence, seed_of
from kullback.tables.contingency import (
    Counted,
    column_bins,
    column_cells,
    divergences,
    every_value,
    joint_cells,
)
from kullback.tables.engines import Table, open_table
from kullback.tables.engines.base import Cells
from kullback.tables.findings import (
    changed_type,
    column_findings,
    schema_findings,
    size_findings,
    unshared_categories,
)
from kullback.tables.inference.significance import adjusted
from kullback.tables.optional import library
from kullback.tables.profile import Profile, profile_table
from kullback.tables.result import ColumnComparison, Finding, JointComparison, TableComparison
from kullback.tables.settings import Settings, effective_rows

__all__ = ["compare_profiles", "compare_tables"]


def compare_tables(
    p: object,
    q: object,
    columns: Sequence[str] | None = None,
    *,
    weights: str | None = None,
    cluster: str | None = None,
    joint: Sequence[Sequence[str]] = (),
    bins: int = 20,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    progress: Callable[[str], object] | None = None,
) -> TableComparison:
    r"""Compare two tables column by column: how far is Q's distribution from P's?

    Numbers are sorted into bins at P's quantiles, the first and the last open-ended; categories, missing values, NaN
    and infinities are cells of their own. With the cells' shares p and q,

    .. math:: \mathrm{KL}(P \| Q) = \sum_i p_i \log \frac{p_i}{q_i}, \quad
        \mathrm{PSI} = \sum_i (p_i - q_i) \log \frac{p_i}{q_i}, \quad
        \mathrm{TV} = \frac12 \sum_i |p_i - q_i|

    and so on: divergences of the cells, which are at most those of the values themselves. Each is corrected for the
    bias of counts, and never below 0. The tables are counted where they are; only counts travel.

    Arguments:
        p: the reference: a path to a Parquet, CSV or NDJSON file (``*`` stands for many), or a table of pandas, Polars
            (eager or lazy), PyArrow, DuckDB, Dask, PySpark or Ibis.
        q: what is compared with it, likewise.
        columns: which columns; all by default.
        weights: the column that says what each row counts for. Errors take weights to be unrelated to the values.
        cluster: the column with the group of each row, where rows of one group depend on each other (the visits of
            one user, the measurements of one machine). Errors and tests then take groups as what is independent.
        joint: groups of columns, each to be compared by the combinations of their cells too.
        bins: into how many bins at most numbers are sorted; there are fewer where a bin would have less than 10 rows.
        confidence: what share of the intervals is to cover.
        generator: the random numbers of tests by permutation and of the intervals of total variation.
        progress: called with a sentence before each reading of a table.

    Returns:
        divergences both ways, each with error and interval, a test and its cells for every column that both tables
        have, the largest PSI first. What cannot be compared is among the findings.

    Raises:
        ArgumentTypeError: p or q is no table.
        ArgumentValueError: a column that is asked for is in neither table, weights or clusters are missing in one,
            or a number is out of range.
        FileError: a file is missing, damaged or of an unknown format.
        OptionalDependencyError: a package is missing; the error names it.

    Example:
        >>> import pyarrow as pa, torch
        >>> before = pa.table({"size": [1.0, 2.0, 3.0, 4.0] * 50, "fruit": ["apple", "pear"] * 100})
        >>> after = pa.table({"size": [1.0, 2.0, 3.0, 4.0] * 50, "fruit": ["apple", "plum"] * 100})
        >>> found = compare_tables(before, after, generator=torch.Generator().manual_seed(0))
        >>> [(column.name, round(column.psi.value, 1), column.new) for column in found.columns]
        [('fruit', 5.2, ('plum',)), ('size', 0.0, ())]

    References:
        Credit Risk Scorecards: Developing and Implementing Intelligent Credit Scoring (Siddiqi, 2005)
        Nonparametric Estimation of Kullback-Leibler Divergence (Zhang and Grabchak, 2014)
    """
    _check_settings("compare_tables", bins, confidence)
    groups = _checked_groups(joint)
    tables = open_table(p), open_table(q)
    names = _chosen_names(tables, columns, groups, weights, cluster)
    usable, findings = schema_findings(tables[0].fields, tables[1].fields, names)
    of_p = profile_table(p, columns=usable, weights=weights, progress=progress)
    of_q = profile_table(q, columns=usable, weights=weights, like=of_p, progress=progress)
    crossing = _Crossing(tables, weights, cluster, progress or (lambda _: None))
    return _compared(
        of_p,
        of_q,
        names=(_name_of(p), _name_of(q)),
        findings=findings,
        settings=Settings(bins, confidence, np.random.default_rng(seed_of(generator))),
        groups=groups,
        crossing=crossing if cluster is not None or groups else None,
        cluster=cluster,
    )


def compare_profiles(
    p: Profile,
    q: Profile,
    *,
    bins: int = 20,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    names: tuple[str, str] = ("P", "Q"),
) -> TableComparison:
    """Compare two tables of which only the profiles are at hand: `compare_tables` without clusters and joint groups.

    Arguments:
        p: the reference's profile.
        q: the profile of what is compared with it, made with ``like=p``.
        bins: into how many bins at most numbers are sorted.
        confidence: what share of the intervals is to cover.
        generator: the random numbers of tests by permutation and of the intervals of total variation.
        names: what to call the two.

    Returns:
        what `compare_tables` returns for the tables themselves.

    Raises:
        ArgumentTypeError: p or q is no profile.
        ArgumentValueError: the two are weighted by different columns, count a column on different grids, or a number
            is out of range.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import profile_table
        >>> p = profile_table(pa.table({"fruit": ["apple", "pear"] * 100}))
        >>> q = profile_table(pa.table({"fruit": ["apple", "plum"] * 100}), like=p)
        >>> compare_profiles(p, q).columns[0].vanished
        ('pear',)
    """
    _check_settings("compare_profiles", bins, confidence)
    for argument, given in (("p", p), ("q", q)):
        if not isinstance(given, Profile):
            got, instead = type(given).__name__, "compare_profiles(profile_table(a), ...)"
            raise ArgumentTypeError(
                explain("compare_profiles", argument, wanted="a Profile", got=got, instead=instead)
            )
    if p.weights != q.weights:
        raise _refused(
            "compare_profiles",
            "p, q",
            wanted="profiles weighted by the same column",
            got=f"weights from {p.weights!r} and from {q.weights!r}",
            instead="profile_table(frame, weights=...) with the same column for both",
        )
    settings = Settings(bins, confidence, np.random.default_rng(seed_of(generator)))
    return _compared(p, q, names=names, findings=_profile_findings(p, q), settings=settings)


class _Crossing:
    """Counts the combinations of cells in both tables, where they are."""

    def __init__(
        self,
        tables: tuple[Table, Table],
        weights: str | None,
        cluster: str | None,
        tell: Callable[[str], object],
    ) -> None:
        self._tables, self._weights, self._cluster, self._tell = tables, weights, cluster, tell

    def count(self, bins: dict[str, Any], groups: Sequence[tuple[str, ...]]) -> Counted:
        """Count each group of columns, cluster by cluster where there are any."""
        prefix = () if self._cluster is None else (self._cluster,)
        keys = [(*prefix, *group) for group in groups]
        # Rows of weight 0 may hold what no bin was made for.
        permissive = {name: every_value(each) for name, each in bins.items()}
        found: list[dict[tuple[str, ...], Cells]] = []
        for side, table in zip("PQ", self._tables, strict=True):
            self._tell(f"counting {len(keys)} combinations of columns in {side}")
            counts = table.cross({name: wide for name, (wide, _) in permissive.items()}, keys, self._weights)
            places = {key: [permissive[name][1] for name in key[len(prefix) :]] for key in keys}
            found.append({key: _placed(counts[key], places[key], len(prefix)) for key in keys})
        return {group: (found[0][key], found[1][key]) for group, key in zip(groups, keys, strict=True)}


def _placed(counts: Cells, places: Sequence[Sequence[int | None]], skipped: int) -> Cells:
    """Return the counts by the cells of the original bins, without those of no weight."""
    placed: Cells = {}
    for key, weight in counts.items():
        if weight > 0:
            cells = (place[cell] for place, cell in zip(places, key[skipped:], strict=True))
            placed[(*key[:skipped], *cells)] = weight
    return placed


def _compared(
    p: Profile,
    q: Profile,
    *,
    names: tuple[str, str],
    findings: list[Finding],
    settings: Settings,
    groups: Sequence[tuple[str, ...]] = (),
    crossing: _Crossing | None = None,
    cluster: str | None = None,
) -> TableComparison:
    """Compare what two profiles share."""
    found = [*size_findings(p, q), *findings]
    columns: list[ColumnComparison] = []
    joint: list[JointComparison] = []
    if p.weight > 0 and q.weight > 0:
        shared = [name for name in p.columns if name in q.columns]
        changed = [changed_type(name, p.columns[name], q.columns[name]) for name in shared]
        found += [finding for finding in changed if finding is not None]
        shared = [name for name, finding in zip(shared, changed, strict=True) if finding is None]
        settings = replace(settings, sizes=(effective_rows(p), effective_rows(q)))
        columns, joint, remarks = _all_compared(p, q, shared, settings, groups, crossing, cluster)
        found += remarks
    columns.sort(key=lambda column: (-column.psi.value, column.name))
    confidence, bins = settings.confidence, settings.bins
    return TableComparison(
        *names,
        p.rows,
        q.rows,
        tuple(columns),
        tuple(joint),
        tuple(found),
        confidence,
        bins,
        p.weights,
        cluster,
    )


def _all_compared(
    p: Profile,
    q: Profile,
    shared: list[str],
    settings: Settings,
    groups: Sequence[tuple[str, ...]],
    crossing: _Crossing | None,
    cluster: str | None,
) -> tuple[list[ColumnComparison], list[JointComparison], list[Finding]]:
    findings = settings.findings(shared)
    number = settings.number_of_bins()
    bins = {name: column_bins(p, q, name, number, settings.sizes) for name in shared}
    groups = [group for group in groups if set(group) <= bins.keys()]
    counted: Counted = {}
    if crossing is not None and cluster is not None and shared:
        counted = crossing.count(bins, [(name,) for name in shared])
    columns: list[ColumnComparison] = []
    for name in shared:
        before, after = p.columns[name], q.columns[name]
        new, vanished = unshared_categories(after, before), unshared_categories(before, after)
        parts, remarks = divergences(
            column_cells(p, q, name, bins[name]), settings, counted.get((name,)), (name,)
        )
        columns.append(
            ColumnComparison(
                name=name,
                kind=(after if before.empty else before).kind,
                missing_p=before.missing / before.total,
                missing_q=after.missing / after.total,
                new=new.names,
                vanished=vanished.names,
                **parts,
            )
        )
        findings += [*column_findings(name, before, after, new, vanished), *remarks]
    joint: list[JointComparison] = []
    for group in groups:
        assert crossing is not None  # noqa: S101 - there is one where there are groups
        number = settings.number_of_bins(len(group))
        coarse = {name: column_bins(p, q, name, number, settings.sizes) for name in group}
        pair = crossing.count(coarse, [group])[group]
        together = joint_cells(group, coarse, pair, clustered=cluster is not None)
        parts, remarks = divergences(together, settings, pair if cluster is not None else None, group)
        joint.append(JointComparison(columns=group, **parts))
        findings += remarks
    corrected = adjusted([each.p_value for each in (*columns, *joint)])
    columns = [replace(each, p_adjusted=value) for each, value in zip(columns, corrected, strict=False)]
    joint = [
        replace(each, p_adjusted=value) for each, value in zip(joint, corrected[len(columns) :], strict=True)
    ]
    return columns, joint, findings


def _profile_findings(p: Profile, q: Profile) -> list[Finding]:
    """Say which columns only one profile has, and which were not counted."""
    from kullback.tables.engines.base import Field

    def fields(profile: Profile) -> dict[str, Field]:
        skipped = {name: Field(name, None, reason=reason) for name, reason in profile.skipped.items()}
        return {name: Field(name, column.kind) for name, column in profile.columns.items()} | skipped

    names = [*fields(p), *(name for name in fields(q) if name not in fields(p))]
    return schema_findings(fields(p), fields(q), names)[1]


def _chosen_names(
    tables: tuple[Table, Table],
    columns: Sequence[str] | None,
    groups: Sequence[tuple[str, ...]],
    weights: str | None,
    cluster: str | None,
) -> list[str]:
    """Return the columns in question, in P's order and then Q's."""
    there = list(dict.fromkeys(name for table in tables for name in table.fields))
    asked = [("columns", name) for name in columns or ()] + [
        ("joint", name) for group in groups for name in group
    ]
    for argument, name in asked:
        if name not in there:
            raise _no_column(argument, name, there)
    for argument, name in (("weights", weights), ("cluster", cluster)):
        for side, table in zip("PQ", tables, strict=True):
            if name is not None and name not in table.fields:
                raise _no_column(argument, name, list(table.fields), f" in {side}")
    wanted = there if columns is None else {*columns, *(name for group in groups for name in group)}
    return [name for name in there if name in wanted and name not in (weights, cluster)]


def _checked_groups(joint: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    groups = [tuple(group) for group in joint if not isinstance(group, str)]
    if isinstance(joint, str) or len(groups) != len(joint) or any(len(set(group)) < 2 for group in groups):
        raise _refused(
            "compare_tables",
            "joint",
            wanted="groups of two or more columns",
            got=repr(joint),
            instead='joint=[("age", "income")]',
        )
    return groups


def _check_settings(call: str, bins: int, confidence: float) -> None:
    library("scipy", "comparing tables")
    check_confidence(call, confidence)
    if bins < 2:
        raise _refused(call, "bins", wanted="2 or more", got=repr(bins), instead="bins=20")


def _name_of(frame: object) -> str:
    """Return the path, or the kind of table."""
    if isinstance(frame, str | os.PathLike):
        return os.fspath(frame)
    kind = type(frame)
    return f"a {kind.__module__.partition('.')[0]} {kind.__name__}"


def _no_column(argument: str, name: str, there: list[str], where: str = "") -> ArgumentValueError:
    shown = ", ".join(map(repr, there[:10])) + (f" and {len(there) - 10} more" if len(there) > 10 else "")
    return _refused(
        "compare_tables",
        argument,
        wanted=f"columns of the tables{where}",
        got=f"{name!r}; there are {shown or 'none'}",
        instead=f"{argument}={there[0]!r}" if there else "tables with columns",
    )


def _refused(call: str, argument: str, *, wanted: str, got: str, instead: str) -> ArgumentValueError:
    return ArgumentValueError(explain(call, argument, wanted=wanted, got=got, instead=instead))
