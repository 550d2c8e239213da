"""Two tables, column by column: the numbers of known tables, and a reason for whatever has none."""

from __future__ import annotations

import cProfile
import math
from dataclasses import astuple
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.special import rel_entr

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.tables import Profile, compare_profiles, compare_tables, profile_table
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.table_findings import FINDINGS, unshared_categories
from tests.refusals import refused

QUANTITIES = ("kl_pq", "kl_qp", "js", "psi", "tv")


def compare(p, q, *arguments, **settings):
    settings = {"generator": torch.Generator().manual_seed(0)} | settings
    return compare_tables(p, q, *arguments, **settings)


def column(found, name):
    return next(each for each in found.columns if each.name == name)


def codes(found, name=None) -> set[str]:
    return {finding.code for finding in found.findings if finding.column == name}


def assert_sound(found) -> None:
    """Every number is a number, every interval holds its value, and every finding has a known code and words."""
    for each in (*found.columns, *found.joint):
        for name in QUANTITIES:
            quantity = getattr(each, name)
            assert quantity.value is None or 0 <= quantity.value < math.inf, (each, name)
            if quantity.interval is None:
                assert each.notes, each
            else:
                low, high = quantity.interval
                assert 0 <= low <= (low if quantity.value is None else quantity.value) <= high
                assert quantity.standard_error is None or 0 <= quantity.standard_error < math.inf
        assert math.isnan(each.p_value) or 0 <= each.p_value <= each.p_adjusted <= 1
        assert all(math.isfinite(part.contribution) for part in each.bins)
        assert sum(part.p for part in each.bins) > 0
    for finding in found.findings:
        assert finding.code in FINDINGS
        assert finding.message


@pytest.fixture(scope="module")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(0)

    def frame(rows: int, shift: float, fruit: list[float]) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "number": random.normal(shift, 1, rows),
                "same": random.exponential(size=rows),
                "fruit": random.choice(["apple", "pear", "plum"], rows, p=fruit),
                "flag": random.random(rows) < 0.3,
                "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 30, rows), unit="D"),
                "weight": random.random(rows) + 0.1,
                "user": random.integers(0, 300, rows),
            }
        )

    return frame(4000, 0, [0.5, 0.3, 0.2]), frame(3000, 0.4, [0.2, 0.3, 0.5])


# What it finds


def test_columns_are_sorted_and_tested(tables):
    found = compare(*tables)
    assert_sound(found)
    assert [each.name for each in found.columns[:2]] == ["fruit", "number"]
    shifts = [each.psi.value for each in found.columns]
    assert shifts == sorted(shifts, reverse=True)
    assert {each.name for each in found.columns if each.p_adjusted < 0.01} == {"fruit", "number"}
    assert (found.p_rows, found.q_rows, found.max_bins, found.confidence) == (4000, 3000, 20, 0.95)


def test_the_divergences_of_categories_are_those_of_their_shares(tables):
    fruit = column(compare(*tables), "fruit")
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    expected = {"kl_pq": rel_entr(p, q).sum(), "kl_qp": rel_entr(q, p).sum(), "tv": 0.3}
    for name, value in expected.items():
        low, high = getattr(fruit, name).interval
        assert low <= value <= high
        assert high - low < 0.15
    counts = {part.label: (part.p, part.q) for part in fruit.bins}
    assert counts == {
        name: ((tables[0]["fruit"] == name).sum(), (tables[1]["fruit"] == name).sum())
        for name in ("apple", "pear", "plum")
    }


def test_the_divergence_of_numbers_is_at_most_that_of_their_densities(tables):
    number = column(compare(*tables, bins=50), "number")
    gaussian = 0.4**2 / 2
    assert 0.85 * gaussian < number.kl_pq.value < number.kl_pq.interval[1]
    assert number.kl_pq.interval[0] < gaussian


def test_bins_hold_every_row_and_share_out_the_divergence(tables):
    found = compare(*tables)
    for each in found.columns:
        assert sum(part.p for part in each.bins) == 4000
        assert sum(part.q for part in each.bins) == 3000
    number = column(found, "number")
    assert sum(part.contribution for part in number.bins) == pytest.approx(number.kl_pq.value, rel=1e-9)
    edges = [(part.low, part.high) for part in number.bins]
    assert edges[0][0] == -math.inf
    assert edges[-1][1] == math.inf
    assert all(one[1] == other[0] for one, other in pairwise(edges))
    counted = [((low <= tables[1]["number"]) & (tables[1]["number"] < high)).sum() for low, high in edges]
    assert counted == [part.q for part in number.bins]


def test_the_same_table_twice_is_at_no_distance(tables):
    found = compare(tables[0], tables[0])
    assert_sound(found)
    assert {getattr(each, name).value for each in found.columns for name in QUANTITIES} == {0}
    assert {each.p_value for each in found.columns} == {1}


def test_every_engine_gives_the_same_numbers(tables, tmp_path):
    names = ["number", "fruit", "flag", "day"]
    for side, frame in zip("pq", tables, strict=True):
        frame.to_parquet(tmp_path / f"{side}.parquet")
    paths = [str(tmp_path / f"{side}.parquet") for side in "pq"]
    engines = {
        "pandas": tables,
        "polars": [pl.from_pandas(frame) for frame in tables],
        "lazy": [pl.scan_parquet(path) for path in paths],
        "arrow": [pq.read_table(path) for path in paths],
        "file": paths,
    }
    results = {name: astuple(compare(*pair, names))[2:] for name, pair in engines.items()}
    assert all(result == results["pandas"] for result in results.values())


def test_the_same_seed_gives_the_same_result(tables):
    assert compare(*tables) == compare(*tables)


def test_profiles_alone_give_the_same_result(tables):
    p = profile_table(tables[0])
    q = profile_table(tables[1], like=p)
    seeds = (torch.Generator().manual_seed(0) for _ in range(2))
    found = compare_profiles(p, q, generator=next(seeds))
    assert found.columns == compare_tables(*tables, generator=next(seeds)).columns


def test_groups_of_columns_show_what_single_ones_hide():
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 5000))
    noise = random.normal(size=(2, 5000))
    before = pa.table({"x": x, "y": 0.8 * x + 0.6 * noise[0]})
    after = pa.table({"x": y, "y": -0.8 * y + 0.6 * noise[1]})
    found = compare(before, after, joint=[("x", "y")])
    assert_sound(found)
    assert max(each.psi.value for each in found.columns) < 0.05
    (joint,) = found.joint
    assert joint.columns == ("x", "y")
    # The divergence of the two Gaussians: (tr(S'S) - 2) / 2 with correlations 0.8 and -0.8.
    exact = (2 * (1 + 0.64) / (1 - 0.64) - 2) / 2
    assert 1 < joint.kl_pq.value < exact
    assert joint.p_adjusted < 0.01
    assert sum(part.p for part in joint.bins) == 5000


def test_joint_bins_are_counted_exactly():
    before = pa.table({"a": ["x", "x", "y", "y"] * 50, "b": [True, False, True, False] * 50})
    after = pa.table({"a": ["x", "x", "y", "y"] * 50, "b": [True, False, False, True] * 50})
    found = compare(before, after.slice(0, 150), joint=[["a", "b"]])
    bins = {part.label: (part.p, part.q) for part in found.joint[0].bins}
    assert bins == {
        "a: x, b: true": (50, 38),
        "a: x, b: false": (50, 38),
        "a: y, b: true": (50, 37),
        "a: y, b: false": (50, 37),
    }


# Weights and clusters


def test_weights_of_two_are_rows_that_are_there_twice(tables):
    p, q = (frame[["number", "fruit"]] for frame in tables)
    doubled = pd.concat([q, q])
    weighted = compare(p.assign(w=1.0), q.assign(w=2.0), weights="w")
    assert_sound(weighted)
    assert {each.name for each in weighted.columns} == {"number", "fruit"}
    for each in weighted.columns:
        assert each.kl_pq.value == pytest.approx(column(compare(p, q), each.name).kl_pq.value, abs=1e-12)
        twice = column(compare(p, doubled), each.name)
        assert [part.q for part in each.bins] == [part.q for part in twice.bins]


def test_uneven_weights_widen_the_intervals(tables):
    p, q = (frame[["number"]] for frame in tables)
    plain = compare(p.assign(w=1.0), q.assign(w=1.0), weights="w").columns[0].psi.interval
    heavy = compare(
        p.assign(w=np.where(np.arange(len(p)) % 10, 0.01, 1)),
        q.assign(w=np.where(np.arange(len(q)) % 10, 0.01, 1)),
        weights="w",
    )
    assert heavy.columns[0].psi.interval[1] > plain[1]
    assert heavy.weights == "w"


def test_clusters_make_repeated_rows_count_once(tables):
    p, q = (frame[["number", "fruit"]].assign(user=range(len(frame))) for frame in tables)
    once = compare(p.drop(columns="user"), q.drop(columns="user"))
    ten = compare(pd.concat([p] * 10), pd.concat([q.assign(user=q["user"] + 10_000)] * 10), cluster="user")
    assert_sound(ten)
    assert ten.cluster == "user"
    for each in ten.columns:
        plain = column(once, each.name)
        assert each.psi.value == pytest.approx(plain.psi.value, rel=0.1)
        assert each.psi.interval == pytest.approx(plain.psi.interval, rel=0.2)


def test_clusters_of_joint_columns(tables):
    found = compare(
        *tables, columns=["number"], joint=[("number", "fruit")], cluster="user", weights="weight"
    )
    assert_sound(found)
    assert {each.name for each in found.columns} == {"number", "fruit"}
    assert found.joint[0].p_adjusted < 0.001


@pytest.mark.heavy
def test_uneven_weights_make_no_difference_of_equal_tables():
    random = np.random.default_rng(5)

    def table(rows: int) -> pa.Table:
        return pa.table({"x": random.standard_normal(rows), "w": np.exp(1.5 * random.standard_normal(rows))})

    p_values = [compare(table(1000), table(10_000), weights="w").columns[0].p_value for _ in range(200)]
    assert np.mean(np.array(p_values) <= 0.05) < 0.095  # three standard errors


def test_weights_and_clusters_are_no_columns(tables):
    found = compare(*tables, weights="weight", cluster="user")
    assert {"weight", "user"}.isdisjoint(each.name for each in found.columns)


# What is wrong with tables


def test_missing_columns_and_changed_types_are_findings():
    before = pa.table({"a": [1.0, 2] * 20, "gone": [1, 2] * 20, "kind": [1, 2] * 20})
    after = pa.table({"a": [1.0, 2] * 20, "fresh": [1, 2] * 20, "kind": ["1", "2"] * 20})
    found = compare(before, after)
    assert [each.name for each in found.columns] == ["a"]
    assert codes(found, "gone") == codes(found, "fresh") == {"column-missing"}
    assert codes(found, "kind") == {"type-changed"}


FULL, EMPTY = pa.table({"a": [1.0, 2]}), pa.table({"a": pa.array([], pa.float64())})


@pytest.mark.parametrize(
    ("p", "q", "code"),
    [
        (FULL, pa.table({"b": [1]}), "no-common-column"),
        (pa.table({}), FULL, "no-common-column"),
        (EMPTY, FULL, "no-rows"),
        (FULL, EMPTY, "no-rows"),
        (EMPTY, EMPTY, "no-rows"),
    ],
)
def test_tables_without_rows_or_common_columns_are_a_finding(p, q, code):
    found = compare(p, q)
    assert found.columns == ()
    assert code in codes(found)


def test_one_row_has_numbers_without_intervals():
    found = compare(pa.table({"a": [1.0]}), pa.table({"a": [2.0]}))
    assert_sound(found)
    assert "few-rows" in codes(found)
    assert found.columns[0].psi.interval is None
    assert found.columns[0].p_value == 1


def test_few_rows_have_fewer_bins(tables):
    p, q = (frame[["number"]][:120] for frame in tables)
    found = compare(p, q)
    assert 10 <= len(found.columns[0].bins) <= 12
    assert "few-rows" in codes(found)


EARLY, LATE = datetime(2024, 1, 1, tzinfo=UTC), datetime(2524, 1, 1, tzinfo=UTC)
CASES = {
    "constant": ([3.0] * 60, [3.0] * 60, {"constant"}),
    "another constant": ([3.0] * 60, [4.0] * 60, {"constant-changed", "disjoint", "infinite"}),
    "constant before": (["a"] * 60, ["a", "b"] * 30, {"constant", "new-categories", "infinite"}),
    "all missing": ([None] * 60, [None] * 60, {"all-missing"}),
    "all missing after": ([1.0, 2] * 30, [None] * 60, {"all-missing", "new-missing", "disjoint", "infinite"}),
    "all missing before": (
        [None] * 60,
        ["a", "b"] * 30,
        {"all-missing", "disjoint", "infinite"},
    ),
    "NaN": ([1.0, math.nan] * 30, [1.0, 2.0] * 30, {"not-a-number", "infinite"}),
    "infinite": ([1.0, math.inf] * 30, [1.0, -math.inf] * 30, {"infinite-values", "infinite"}),
    "new": (["a", "b"] * 30, ["a", "c"] * 30, {"new-categories", "vanished-categories", "infinite"}),
    "missing": ([1, 2] * 30, [1, None] * 30, {"new-missing", "infinite", "constant"}),
    "booleans": ([True] * 60, [True, False] * 30, {"constant", "new-categories", "infinite"}),
    "huge": ([1e308, -1e308] * 30, [1e308, 0.0] * 30, {"infinite"}),
    "times": ([EARLY, None] * 30, [LATE, None] * 30, {"infinite"}),
}


@pytest.mark.parametrize("name", CASES)
def test_odd_columns_are_findings_with_numbers_that_are_numbers(name):
    before, after, expected = CASES[name]
    found = compare(pa.table({"x": before}), pa.table({"x": after}))
    assert_sound(found)
    assert codes(found, "x") - {"constant"} == expected - {"constant"}
    assert len(found.columns) == 1


EXACT = {
    "int64": (pa.int64(), [2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    "uint64": (pa.uint64(), [2**53, 2**53 + 1, 2**64 - 1, 2**64 - 2]),
    "decimal": (pa.decimal128(18, 0), [2**53, 2**53 + 1, 10**17 + 1, 10**17 + 2]),
    "float": (pa.float64(), [1000.0, 1000.1, 2.0**53, 2.0**53 + 2]),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXACT)
def test_numbers_that_differ_in_the_last_digit_are_two(name):
    dtype, (first, second, third, fourth) = EXACT[name]
    for p, q in ((first, second), (third, fourth)):
        found = compare(
            pa.table({"x": pa.array([p] * 100, dtype)}), pa.table({"x": pa.array([q] * 100, dtype)})
        )
        assert "constant-changed" in codes(found, "x")
        assert found.columns[0].tv.value == pytest.approx(1, abs=0.01)
        assert found.columns[0].p_value < 1e-3
    random = np.random.default_rng(0)
    places = [random.choice(2, 500, p=weights) for weights in ([0.5, 0.5], [0.1, 0.9])]
    p, q = (pa.array([(first, second)[place] for place in each], dtype) for each in places)
    column = compare(pa.table({"x": p}), pa.table({"x": q})).columns[0]
    assert column.tv.value == pytest.approx(0.4, abs=0.08)
    if dtype != pa.float64():
        assert [part.label for part in column.bins] == [f"{first}", f"{second}"]
    # The same from a saved profile, and with clusters.
    reference = Profile.from_json(profile_table(pa.table({"x": p})).to_json())
    batch = Profile.from_json(profile_table(pa.table({"x": q}), like=reference).to_json())
    assert compare_profiles(reference, batch).columns[0].psi.value == column.psi.value
    rows = np.arange(500)
    found = compare(pa.table({"x": p, "user": rows}), pa.table({"x": q, "user": 500 + rows}), cluster="user")
    assert found.columns[0].tv.value == pytest.approx(column.tv.value, abs=0.02)


@pytest.mark.parametrize(
    ("p", "q", "words"),
    [
        ([0], [2], "'x' is '0' in all rows of P and '2' in all rows of Q"),
        ([True], [False], "'x' is 'true' in all rows of P and 'false' in all rows of Q"),
        (["a"], ["b"], "'x' is 'a' in all rows of P and 'b' in all rows of Q"),
        ([EARLY], [LATE], "'x' is '2024-01-01' in all rows of P and '2524-01-01' in all rows of Q"),
    ],
)
def test_two_constants_that_differ_are_a_drift_and_no_remark(p, q, words):
    found = compare(pa.table({"x": p * 60}), pa.table({"x": q * 60}))
    (changed,) = [finding for finding in found.findings if finding.code == "constant-changed"]
    assert (changed.message, changed.level) == (words, "error")
    assert "constant" not in codes(found, "x")
    assert found.columns[0].p_value < 1e-3


def test_timestamps_with_and_without_a_time_zone_are_a_finding():
    ticks = np.random.default_rng(0).integers(0, 10**15, 200)
    tables = {
        "zoned": pa.table({"x": pa.array(ticks, pa.timestamp("us", "UTC"))}),
        "naive": pa.table({"x": pa.array(ticks, pa.timestamp("us"))}),
        "date": pa.table({"x": pa.array((ticks // 10**11).astype(np.int32), pa.date32())}),
    }
    assert "time-zone-changed" in codes(compare(tables["zoned"], tables["naive"]), "x")
    for table in tables.values():
        assert "time-zone-changed" not in codes(compare(table, table), "x")
        assert "time-zone-changed" not in codes(compare(table, tables["date"]), "x")
    reference = Profile.from_json(profile_table(tables["zoned"]).to_json())
    found = compare_profiles(reference, profile_table(tables["naive"], like=reference))
    assert "time-zone-changed" in codes(found, "x")


def test_objects_of_several_types_are_a_finding():
    mixed = pd.DataFrame({"a": [1.0, 2.0] * 20, "mixed": [1, "a"] * 20, "lists": [[1], [2]] * 20})
    found = compare(mixed, mixed)
    assert [each.name for each in found.columns] == ["a"]
    assert codes(found, "mixed") == codes(found, "lists") == {"column-skipped"}


@pytest.mark.sweep
def test_a_million_categories():
    before = pa.table({"id": pa.array(np.arange(600_000)).cast(pa.string())})
    after = pa.table({"id": pa.array(np.arange(400_000, 1_000_000)).cast(pa.string())})
    found = compare(before, after)
    assert_sound(found)
    ids = found.columns[0]
    assert len(ids.bins) <= 50
    assert len(ids.new) == 100
    messages = " ".join(finding.message for finding in found.findings)
    assert "400,000 categories" in messages
    assert {"new-categories", "vanished-categories", "rare-categories"} <= codes(found, "id")


def test_many_frequent_categories_are_told_apart_and_listed_by_frequency():
    random = np.random.default_rng(0)
    proportion = 1 / np.arange(1, 201)
    names = np.array([f"c{i:03}" for i in range(200)])
    draws = [names[random.choice(200, 50_000, p=proportion / proportion.sum())] for _ in range(2)]
    found = compare(pa.table({"x": draws[0]}), pa.table({"x": draws[1]}))
    bins = found.columns[0].bins
    assert [part.label for part in bins[:3]] == ["c000", "c001", "c002"]
    assert (len(bins), bins[-1].label) == (50, "151 others")
    assert sum(part.p for part in bins) == 50_000
    assert found.columns[0].p_value > 0.001


def test_few_clusters_are_a_finding(tables):
    p, q = (frame[["number"]].assign(user=np.arange(len(frame)) % 5) for frame in tables)
    found = compare(p, q, cluster="user")
    assert found.columns[0].psi.interval is None
    assert "few-clusters" in codes(found, "number")


# What is wrong with arguments


def test_what_is_no_table_is_refused(tables, tmp_path):
    with pytest.raises(ArgumentTypeError):
        compare(tables[0], 3)
    with pytest.raises(FileError):
        compare(tables[0], str(tmp_path / "nowhere.parquet"))
    with refused(ArgumentTypeError, wanted="Profile"):
        compare_profiles(tables[0], tables[1])


def test_profiles_with_other_weights_are_refused(tables):
    p = profile_table(tables[0])
    q = profile_table(tables[1], like=p, weights="weight")
    with refused(ArgumentValueError, wanted="weighted by the same column"):
        compare_profiles(p, q)


def odd_column(random: np.random.Generator, kind: int, rows: int) -> pa.Array:
    """A column of one of eight types, with many, few or no missing values."""
    values = (
        random.normal(size=rows),
        random.integers(-3, 4, rows).astype(float),
        np.where(random.random(rows) < 0.2, np.nan, random.lognormal(0, 3, rows)),
        random.choice([0.0, np.inf, -np.inf, 1e300, 5e-324], rows),
        random.choice(list("abcdefgh"), rows),
        random.random(rows) < random.random(),
        np.full(rows, 7),
        random.integers(-(2**62), 2**62, rows),
    )[kind]
    return pa.array(values, mask=random.random(rows) < random.choice([0, 0, 0.3, 1]))


@pytest.mark.parametrize("seed", range(30))
def test_random_tables_never_give_a_number_that_is_none(seed):
    random = np.random.default_rng(seed)
    kinds = random.integers(8, size=4)

    def table() -> pa.Table:
        rows = int(random.choice([0, 1, 2, 5, 30, 200, 1500]))
        columns = {f"x{place}": odd_column(random, kind, rows) for place, kind in enumerate(kinds)}
        return pa.table(columns | {"w": random.choice([0, 1, 2.5], rows), "g": random.integers(0, 60, rows)})

    settings = {"weights": "w" if seed % 2 else None, "cluster": "g" if seed % 3 else None}
    assert_sound(compare(table(), table(), joint=[("x0", "x1")], **settings))


def test_text_is_not_called_alike_when_only_its_lengths_were_compared():
    random = np.random.default_rng(0)
    good = [f"the food was good, order number {number:09d}" for number in random.integers(0, 10**9, 2000)]
    bad = [text.replace("good", "evil") for text in good]
    numbers = random.normal(size=2000)
    p, q = (profile_table(pa.table({"text": texts, "x": numbers})) for texts in (good, bad))
    q.columns["text"].words = None  # as in a profile of an earlier version
    found = compare_profiles(p, q)
    assert found["text"].column_type == "text"
    assert "lengths-only" in codes(found, "text")
    printed = " ".join(str(found).split())
    assert "No difference is seen in 1 column; only the lengths were compared of 1 column of text." in printed
    assert "lengths alike" in printed


@pytest.mark.parametrize("number", [0, 1, 99, 100, 101, 400])
@pytest.mark.parametrize("weights", [1, 3, 1000])
def test_the_most_frequent_new_categories_are_named_by_weight_and_then_by_name(number, weights):
    random = np.random.default_rng(number)
    new = {f"c{i}": float(random.integers(1, weights + 1)) for i in random.permutation(number).tolist()}
    shared = {"both": 5.0}
    found = unshared_categories(
        ColumnProfile("categorical", categories=new | shared), ColumnProfile("categorical", categories=shared)
    )
    assert found == (number, tuple(sorted(new, key=lambda name: (-new[name], name))[:100]))


@pytest.mark.sweep
def test_no_function_is_called_for_each_of_many_values():
    random = np.random.default_rng(0)
    p, q = (pa.table({"id": random.integers(0, 10**12, 20_000).astype(str)}) for _ in range(2))
    compare(p, q)
    calls = cProfile.Profile()
    found = calls.runcall(compare, p, q)
    assert len(found["id"].new) == 100
    assert sum(each.callcount for each in calls.getstats()) < 10_000
    assert list(profile_table(p).columns["id"].categories) == sorted(set(p["id"].to_pylist()))
