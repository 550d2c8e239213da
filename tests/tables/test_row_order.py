"""Tables whose rows depend on their order, or are repeated: the level of tests, the findings, and saved profiles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from scipy.ndimage import gaussian_filter

from kullback import compare_tables
from kullback.cli.commands import kullback
from kullback.errors import ArgumentValueError, FileError
from kullback.tables import TableComparison, compare_profiles
from kullback.tables.row_order import RowOrder
from kullback.tables.table_profile import Profile, profile_table
from tests.refusals import refused

Array = np.ndarray[Any, Any]
Columns = dict[str, Array]
COLUMNS = 6


def autoregression(rng: np.random.Generator, n: int, correlation: float) -> Array:
    x = rng.standard_normal((n, COLUMNS)) * math.sqrt(1 - correlation**2)
    x[0] = rng.standard_normal(COLUMNS)
    for t in range(1, n):
        x[t] += correlation * x[t - 1]
    return x


def three_times(rng: np.random.Generator) -> Array:
    return np.repeat(rng.standard_normal((600, COLUMNS)), 3, axis=0)


CASES: dict[str, tuple[Callable[[np.random.Generator], Array], str]] = {
    "autoregression 0.6": (lambda rng: autoregression(rng, 1500, 0.6), "rows-in-order"),
    "autoregression 0.9": (lambda rng: autoregression(rng, 3000, 0.9), "rows-in-order"),
    "each row three times": (three_times, "duplicate-rows"),
    "each row three times, shuffled": (lambda rng: rng.permutation(three_times(rng)), "duplicate-rows"),
    "rows of one user together": (
        lambda rng: (
            np.repeat(rng.standard_normal((60, COLUMNS)), 40, axis=0) + rng.standard_normal((2400, COLUMNS))
        ),
        "rows-in-order",
    ),
    "states that last": (
        lambda rng: np.digitize(autoregression(rng, 2000, 0.8), [-1, 0, 1]),
        "rows-in-order",
    ),
}


def table(x: Array) -> pa.Table:
    kind = str if x.dtype.kind == "i" else float
    return pa.table({f"column {j}": column.astype(kind) for j, column in enumerate(x.T)})


def comparisons(name: str, count: int, **options: Any) -> list[TableComparison]:
    found = []
    for seed in range(count):
        rng = np.random.default_rng([seed, 5])
        draw = CASES[name][0]
        found.append(compare_tables(table(draw(rng)), table(draw(rng)), **options))
    return found


def p_values(found: list[TableComparison]) -> Array:
    return np.array([column.p_value for each in found for column in each.columns])


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_equal_distributions_do_not_differ_because_their_rows_depend_on_each_other(name: str) -> None:
    found = comparisons(name, 6)
    # Binomial(36, 0.05) is above 6 with chance 0.002.
    assert np.nansum(p_values(found) < 0.05) <= 6
    assert all(CASES[name][1] in {finding.code for finding in each.findings} for each in found)
    for column in (column for each in found for column in each.columns):
        assert any("independent ones" in note for note in column.notes)
    plain = comparisons(name, 6, independent=True)
    assert np.sum(p_values(plain) < 0.05) > np.nansum(p_values(found) < 0.05)
    assert not any(
        finding.code in {"rows-in-order", "duplicate-rows"} for each in plain for finding in each.findings
    )


def test_differences_of_dependent_rows_are_seen() -> None:
    rng = np.random.default_rng(1)
    found = compare_tables(table(autoregression(rng, 3000, 0.6)), table(autoregression(rng, 3000, 0.6) + 0.5))
    assert (p_values([found]) < 0.01).all()
    assert all(column.kl_pq.interval is not None and column.kl_pq.interval[0] > 0 for column in found.columns)


@pytest.mark.sweep
def test_independent_rows_are_as_they_were() -> None:
    for seed in range(6):
        rng = np.random.default_rng([seed, 6])
        p, q = (table(rng.standard_normal((400, 5))) for _ in range(2))
        assert compare_tables(p, q) == compare_tables(p, q, independent=True)


def test_too_few_independent_blocks_have_neither_interval_nor_p_value() -> None:
    rng = np.random.default_rng(2)
    p, q = (
        pa.table({"x": np.cumsum(rng.standard_normal(1000)), "y": rng.standard_normal(1000)})
        for _ in range(2)
    )
    found = compare_tables(p, q)
    assert found["x"].kl_pq.interval is None
    assert math.isnan(found["x"].p_value)
    assert found["y"].kl_pq.interval is not None
    assert not math.isnan(found["y"].p_adjusted)
    [message] = [each.message for each in found.findings if each.code == "rows-in-order"][:1]
    assert "too few independent blocks" in message
    assert "independent=True (--independent)" in message
    # What it says to do.
    assert compare_tables(p, q, independent=True)["x"].kl_pq.interval is not None
    users = pa.array(np.arange(1000) // 20)
    grouped = compare_tables(p.append_column("user", users), q.append_column("user", users), cluster="user")
    assert not any(each.code == "rows-in-order" for each in grouped.findings)
    assert grouped["x"].kl_pq.interval is not None
    with refused(ArgumentValueError, wanted="not both"):
        compare_tables(p, q, cluster="x", independent=True)


@pytest.mark.sweep
def test_all_engines_that_know_an_order_see_the_same(tmp_path: Path) -> None:
    pandas, polars, duckdb = (pytest.importorskip(name) for name in ("pandas", "polars", "duckdb"))
    rng = np.random.default_rng(3)
    arrow = table(autoregression(rng, 40_000, 0.8))
    path = tmp_path / "table.parquet"
    pyarrow.parquet.write_table(arrow, path, row_group_size=5000)
    frames = [arrow, arrow.to_pandas(), polars.from_arrow(arrow), polars.from_arrow(arrow).lazy(), str(path)]
    del pandas
    connection = duckdb.connect()
    frames.append(connection.from_arrow(arrow))
    orders = [profile_table(frame).order for frame in frames]
    assert orders[0] is not None
    assert orders[0].rows == 1 << 15
    assert len(orders[0].times) == COLUMNS
    assert all(order == orders[0] for order in orders)


def test_a_lazy_engine_says_that_order_was_not_looked_at() -> None:
    ibis = pytest.importorskip("ibis")
    rng = np.random.default_rng(4)
    p, q = (ibis.memtable(table(autoregression(rng, 500, 0.8))) for _ in range(2))
    found = compare_tables(p, q)
    assert [each.level for each in found.findings if each.code == "order-unknown"] == ["note", "note"]
    assert not any(each.code == "order-unknown" for each in compare_tables(p, q, independent=True).findings)


def test_watch_takes_rows_as_independent_where_it_is_told(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    names = [str(tmp_path / name) for name in ("reference.parquet", "batch.parquet")]
    for name in names:
        pyarrow.parquet.write_table(table(autoregression(rng, 1500, 0.9)), name)
    found: list[Any] = []
    for options in ([], ["--independent"]):
        path = tmp_path / "found.json"
        result = CliRunner().invoke(kullback, ["watch", *names, "--json", str(path), *options])
        assert result.exit_code == 0, result.output
        found.append(json.loads(path.read_text()))
    codes = [{each["code"] for each in one["findings"]} for one in found]
    assert "rows-in-order" in codes[0]
    assert "rows-in-order" not in codes[1]
    low, high = (one["columns"][0]["kl_pq"]["interval"] for one in found)
    assert low is None or low[1] > high[1]


def test_saved_profiles_keep_the_order_and_old_ones_still_read() -> None:
    rng = np.random.default_rng(5)
    reference = profile_table(table(autoregression(rng, 1500, 0.8)))
    batch = profile_table(table(autoregression(rng, 1500, 0.8)), like=reference)
    saved = Profile.from_json(reference.to_json())
    assert saved.order == reference.order
    found = compare_profiles(saved, batch)
    assert {each.code for each in found.findings} >= {"rows-in-order"}
    assert found == compare_profiles(reference, batch)
    merged = reference.merge(batch).order
    assert merged is not None
    assert reference.order is not None
    assert merged.rows == 3000
    assert merged.times["column 0"] >= reference.order.times["column 0"]
    old = json.loads(reference.to_json())
    del old["order"]
    older = Profile.from_json(json.dumps(old))
    assert older.order is None
    assert "order-unknown" in {each.code for each in compare_profiles(older, batch).findings}
    independent = compare_profiles(saved, batch, independent=True)
    assert not {each.code for each in independent.findings} & {"rows-in-order", "order-unknown"}
    old["order"] = {"rows": 10, "times": {"column 0": 0.5}, "unknown": [], "repeated": 1}
    with refused(FileError, got="not an order of rows"):
        Profile.from_json(json.dumps(old))


def test_order_is_kept_by_column() -> None:
    order = RowOrder(100, {"a": 4.0, "b": 2.0}, frozenset("a"), 3.0)
    assert (order.time(["a", "b"]), order.time(["b"]), order.time(["c"])) == (4.0, 3.0, 3.0)
    assert order.of_columns(["b"]) == RowOrder(100, {"b": 2.0}, frozenset(), 3.0)


def test_missing_values_and_integers_are_examined_too() -> None:
    rng = np.random.default_rng(6)
    state = autoregression(rng, 1500, 0.9)[:, 0]
    x = [
        None if missing else value
        for missing, value in zip(state > 1, rng.standard_normal(1500), strict=True)
    ]
    order = profile_table(
        pa.table({"x": x, "day": np.repeat(np.arange(75), 20), "y": rng.integers(0, 5, 1500)})
    ).order
    assert order is not None
    assert "x" in order.times
    assert "day" not in order.times  # sorted, as every column can be
    assert "y" not in order.times


def half_on_atoms(rng: np.random.Generator, shift: float, first: float, last: float) -> pa.Table:
    atoms, shares = np.random.default_rng(16).standard_normal(30), np.linspace(first, last, 30)
    at = atoms[rng.choice(30, 1500, p=shares / shares.sum())]
    return pa.table({"x": np.where(rng.random(1500) < 0.5, at, shift + rng.standard_normal(1500))})


def rejections_of_equal_atoms(data_sets: int) -> int:
    rejected = 0
    for seed in range(data_sets):
        rng = np.random.default_rng([seed, 16])
        p, q, other = (half_on_atoms(rng, *shares) for shares in ((0, 1, 3), (0, 1, 3), (0.3, 3, 1)))
        same, apart = compare_tables(p, q), compare_tables(p, other)
        rejected += same["x"].p_value <= 0.05
        assert apart["x"].p_value <= 0.05, seed
        for comparison in (same, apart):
            assert not any(finding.code == "duplicate-rows" for finding in comparison.findings), seed
    return rejected


@pytest.mark.sweep
def test_atoms_beside_a_density_are_no_repeated_rows() -> None:
    assert rejections_of_equal_atoms(6) <= 2  # Binomial(6, 0.05) is above 2 with chance 0.002


@pytest.mark.sweep
def test_equal_atoms_beside_a_density_are_seldom_rejected() -> None:
    assert rejections_of_equal_atoms(30) <= 5  # Binomial(30, 0.05) is above 5 with chance 0.003


def test_copies_with_rounding_errors_are_repeated_rows() -> None:
    rng = np.random.default_rng(17)
    copies = rng.permutation(three_times(rng)) * (1 + 1e-12 * rng.standard_normal((1800, COLUMNS)))
    p, q = table(copies), table(rng.standard_normal((1800, COLUMNS)))
    [message] = [each.message for each in compare_tables(p, q).findings if each.code == "duplicate-rows"]
    assert "repeated 3 times on average" in message
    assert "600 independent rows" in message


def test_columns_of_grids_and_of_panels_with_gaps_have_no_test() -> None:
    def columns(seed: int) -> pa.Table:
        rng = np.random.default_rng([seed, 31])
        panel = (rng.standard_normal((1, 80)) + rng.standard_normal((12, 80))).ravel()
        kept = np.flatnonzero(rng.random(960) > 0.05)
        field = gaussian_filter(rng.standard_normal((30, 30)), 2, mode="wrap").ravel()
        rows = min(len(kept), 900)
        plain = rng.standard_normal(rows)
        return pa.table({"panel": panel[kept][:rows], "grid": field[:rows], "plain": plain})

    result = compare_tables(columns(0), columns(1))
    values = {column.name: column.p_value for column in result.columns}
    assert values["panel"] is not None
    assert math.isnan(values["panel"])
    assert values["grid"] is not None
    assert math.isnan(values["grid"])
    assert values["plain"] is not None
    assert values["plain"] > 0.05
    assert any("2 of 3 columns" in finding.message for finding in result.findings)


@pytest.mark.sweep
def test_panels_of_categories_with_gaps_are_open() -> None:
    """P = Q: before, 70 to 95 % of these tables differed significantly."""
    for gap in (0.1, 0.3):
        closed = 0
        for seed in range(8):
            rng = np.random.default_rng([seed, 7])
            tables = []
            for _ in range(2):
                x = rng.integers(0, 5, (15, 40))
                for t in range(1, 15):
                    x[t] = np.where(rng.random(40) < 0.9, x[t - 1], x[t])
                kept = x.ravel()[rng.random(600) >= gap]
                tables.append(pa.table({"state": kept.astype(str), "noise": rng.standard_normal(len(kept))}))
            found = compare_tables(*tables)
            closed += found["state"].kl_pq.interval is not None
            assert found["noise"].kl_pq.interval is not None
        assert closed <= 1, gap
    independent = compare_tables(*tables, independent=True)  # pyright: ignore[reportPossiblyUnboundVariable]
    assert independent["state"].kl_pq.interval is not None
