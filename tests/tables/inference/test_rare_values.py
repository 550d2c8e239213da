"""Rare values: replaced ones are a difference, unchanged ones are none, and of what cannot be told nothing is said."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats

from kullback.tables import compare_profiles, compare_tables, profile_table
from kullback.tables.inference.rare_values import GROUPS, rare_values, rare_values_of_clusters
from kullback.tables.inference.significance import _pearson_tail, _random_tables, sparse_test

QUANTITIES = ("kl_pq", "kl_qp", "js", "psi", "tv")


def names(counts, prefix: str = "shop ") -> pa.Array:
    return pa.array([f"{prefix}{index}" for index, number in enumerate(counts) for _ in range(int(number))])


def compare(p, q, **settings):
    generator = torch.Generator().manual_seed(0)
    return compare_tables(pa.table({"x": p}), pa.table({"x": q}), generator=generator, **settings)


def codes(found) -> set[str]:
    return {finding.code for finding in found.findings}


# What changed


def test_entirely_different_shops_are_as_far_apart_as_can_be():
    eight = np.full(500, 8)
    column = compare(names(eight), names(eight, "store ")).columns[0]
    assert column.tv.value == pytest.approx(1, abs=0.01)
    assert column.tv.interval[0] > 0.9
    assert column.psi.value > 5
    assert column.psi.interval[0] > 3
    assert column.psi.interval[1] == math.inf
    assert column.p_value < 1e-3


def test_the_remark_on_rare_values_says_how_many_rows_have_them():
    other = compare(names(np.full(500, 8)), names(np.full(500, 8), "store "))
    half = compare(names(np.append(np.full(250, 8), 2000)), names(np.append(np.full(250, 8), 2000)))
    for found, share in ((other, "100 %"), (half, "50 %")):
        (message,) = [each.message for each in found.findings if each.code in {"rare-categories", "too-rare"}]
        assert f": {share} of rows have values with fewer than 10 expected rows each" in message


@pytest.mark.parametrize("replaced", [0.1, 0.5])
def test_replaced_shops_are_found_and_measured(replaced):
    random = np.random.default_rng(0)
    shops = np.full(500, 1 / 500)
    a = random.multinomial(4000, np.append(shops, 0 * shops))
    b = random.multinomial(4000, np.append((1 - replaced) * shops, replaced * shops))
    column = compare(names(a), names(b)).columns[0]
    low, high = column.tv.interval
    assert low <= replaced <= high
    assert low > 0
    assert column.tv.value == pytest.approx(replaced, abs=0.04)
    assert column.psi.interval[0] > 0.25
    assert column.p_value < 1e-3


def test_shops_with_other_sizes_are_found():
    random = np.random.default_rng(0)
    tilt = np.where(np.arange(500) % 2, 1.5, 0.5) / 500
    column = compare(
        names(random.multinomial(4000, tilt)), names(random.multinomial(4000, tilt[::-1]))
    ).columns[0]
    low, high = column.tv.interval
    assert 0.25 < low <= 0.5 <= high
    assert column.p_value < 1e-6


def test_rare_values_beside_frequent_ones_are_found():
    random = np.random.default_rng(0)
    frequent, rare = np.array([0.4, 0.4]), np.full(100, 0.002)
    a = random.multinomial(2000, [*frequent, *rare, *(0 * rare)])
    b = random.multinomial(2000, [*frequent, *(0 * rare), *rare])
    column = compare(names(a), names(b)).columns[0]
    assert column.tv.value == pytest.approx(0.2, abs=0.03)
    assert column.tv.interval[0] > 0.1
    assert column.p_value < 1e-3
    assert sum(part.p for part in column.bins) == 2000
    assert sum(part.q for part in column.bins) == 2000
    assert any("in P only" in part.label for part in column.bins)


# What did not change

CASES = {
    "shops": (np.full(500, 1 / 500), 4000, 4000),
    "twice each": (np.full(2500, 1 / 2500), 5000, 5000),
    "once each": (np.full(5000, 1 / 5000), 5000, 5000),
    "long tail": (1 / np.arange(1, 1001) / (1 / np.arange(1, 1001)).sum(), 1000, 5000),
    "small": (np.full(60, 1 / 60), 200, 200),
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_unchanged_rare_values_are_seldom_taken_for_a_difference(name):
    proportions, n, m = CASES[name]
    random, repetitions = np.random.default_rng(5), 80
    excluded, rejected, values = dict.fromkeys(QUANTITIES, 0), 0, []
    for _ in range(repetitions):
        a, b = random.multinomial(n, proportions), random.multinomial(m, proportions)
        column = compare(names(a), names(b)).columns[0]
        rejected += column.p_value < 0.05
        values.append(column.tv.value)
        for each in QUANTITIES:
            excluded[each] += getattr(column, each).interval[0] > 0
    # 80 repetitions at 5 %: more than 10 once in a thousand.
    assert rejected <= 10
    assert max(excluded.values()) <= 10
    assert np.mean(values) < 0.1


def test_a_value_of_each_row_tells_nothing():
    ids = pa.array([f"id {index}" for index in range(6000)])
    found = compare(ids[:3000], ids[3000:])
    column = found.columns[0]
    assert [getattr(column, each).value for each in QUANTITIES] == [None] * 5
    assert [column.psi.interval, column.tv.interval] == [(0, math.inf), (0, 1)]
    assert math.isnan(column.p_value)
    assert codes(found) >= {"too-rare"}
    assert column.notes


def test_the_same_ids_twice_are_at_no_distance():
    ids = pa.array([f"id {index}" for index in range(3000)])
    column = compare(ids, ids).columns[0]
    assert (column.psi.value, column.psi.interval[0], column.tv.value) == (0, 0, 0)
    assert column.p_value == 1


def test_keys_of_both_tables_are_as_far_apart_as_those_that_differ():
    ids = [f"id {index}" for index in range(3300)]
    column = compare(pa.array(ids[:3000]), pa.array(ids[300:])).columns[0]
    assert column.tv.value == pytest.approx(0.1, abs=0.01)
    assert column.p_value > 0.9
    assert column.tv.interval[0] == 0


def test_the_same_number_of_rows_of_each_shop_is_no_distance():
    eight = np.full(500, 8)
    column = compare(names(eight), names(eight)).columns[0]
    assert (column.psi.value, column.tv.value, column.p_value) == (0, 0, 1)


def test_ids_beside_a_frequent_value_are_at_least_as_far_apart_as_it_says():
    p = pa.array(["guest"] * 400 + [f"p{index}" for index in range(600)])
    q = pa.array(["guest"] * 100 + [f"q{index}" for index in range(900)])
    column = compare(p, q).columns[0]
    assert column.psi.value is None
    assert column.psi.interval[0] > 0.2
    assert column.tv.interval[1] == 1
    assert column.p_value < 1e-3


def test_weighted_rare_values_tell_nothing_and_say_so():
    random = np.random.default_rng(0)
    tables = [
        pa.table({"x": names(np.full(500, 8), prefix), "w": random.uniform(0.5, 2, 4000)})
        for prefix in ("p", "q")
    ]
    found = compare_tables(*tables, weights="w")
    column = found.columns[0]
    assert column.psi.value is None
    assert column.tv.interval == (0, 1)
    assert codes(found) >= {"too-rare"}


def test_equal_weights_are_rows():
    tables = [
        pa.table({"x": names(np.full(500, 8), prefix), "w": np.full(4000, 2.5)}) for prefix in ("p", "q")
    ]
    column = compare_tables(*tables, weights="w").columns[0]
    assert column.tv.interval[0] > 0.9
    assert sum(part.p for part in column.bins) == 10_000


def test_categories_that_a_saved_profile_does_not_name_tell_nothing(tmp_path):
    p = profile_table(pa.table({"x": [f"id {index}" for index in range(4000)]}))
    p.save(tmp_path / "p.json")
    p = type(p).load(tmp_path / "p.json")
    q = profile_table(pa.table({"x": [f"other {index}" for index in range(4000)]}), like=p)
    column = compare_profiles(p, q).columns[0]
    assert (column.psi.value, column.psi.interval) == (None, (0, math.inf))


# Clusters


def clustered(random: np.random.Generator, shops: list[int], first: int) -> pa.Table:
    users = np.repeat(np.arange(200), 10)
    favorites = random.choice(shops, (200, 3))
    visited = favorites[users, random.integers(0, 3, 2000)]
    return pa.table({"x": [f"shop {shop}" for shop in visited], "user": users + first})


@pytest.mark.sweep
def test_clusters_with_replaced_rare_values_are_found_and_unchanged_ones_are_not():
    random = np.random.default_rng(1)
    excluded = rejected = 0
    for _ in range(40):
        p, q = clustered(random, list(range(300)), 0), clustered(random, list(range(300)), 200)
        column = compare_tables(p, q, cluster="user").columns[0]
        rejected += column.p_value < 0.05
        excluded += column.tv.interval[0] > 0
    assert rejected <= 6
    assert excluded <= 6
    p, q = clustered(random, list(range(300)), 0), clustered(random, list(range(300, 600)), 200)
    column = compare_tables(p, q, cluster="user").columns[0]
    assert column.p_value < 1e-3
    assert column.tv.interval[0] > 0.7


def test_a_shop_of_one_user_is_seen_nowhere_else():
    """All rows of the cluster are left out, so that nothing tells shops of P from others."""
    shop = np.arange(1800) // 18
    p = pa.table({"x": [f"shop {each}" for each in shop], "user": shop})
    q = pa.table({"x": [f"shop {100 + each}" for each in shop], "user": 500 + shop})
    column = compare_tables(p, q, cluster="user").columns[0]
    assert (column.psi.value, column.tv.interval) == (None, (0, 1))


# Parts


def test_each_row_is_placed_by_the_others():
    a = np.array([1.0, 3, 1, 0, 5, 1])
    b = np.array([0.0, 0, 1, 4, 5, 4])
    found = rare_values(a, b, (11, 14), np.random.default_rng(0))
    of_p, of_q = found.totals
    by_hand_p = dict.fromkeys(GROUPS, 0.0)
    by_hand_q = dict.fromkeys(GROUPS, 0.0)
    # 1|0: nowhere else; 3|0: P only; 1|1: the other table only; 0|4: Q only; 5|5: alike; 1|4: Q only, more in Q.
    by_hand_p |= {"seen nowhere else": 1, "in P only": 3, "in Q only": 1 + 1, "in both alike": 5}
    by_hand_q |= {"in P only": 1, "in Q only": 4, "in both alike": 5, "more in Q": 4}
    assert dict(zip(GROUPS, of_p, strict=True)) == by_hand_p
    assert dict(zip(GROUPS, of_q, strict=True)) == by_hand_q


def test_clusters_of_one_row_are_placed_like_rows():
    random = np.random.default_rng(0)
    a, b = random.poisson(1.5, 50), random.poisson(1.5, 50)
    value = np.concatenate([np.repeat(np.arange(50), a), np.repeat(np.arange(50), b)])
    on_p = np.arange(len(value)) < a.sum()
    sizes = float(a.sum()), float(b.sum())
    found, _ = rare_values_of_clusters(value, on_p, np.arange(len(value)), np.ones(len(value)), sizes)
    expected = rare_values(a.astype(float), b.astype(float), sizes, random)
    for one, other in zip(found.totals, expected.totals, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("rows", [2, 6])
def test_the_tail_of_many_parts_is_that_of_random_tables(rows):
    random = np.random.default_rng(2)
    total = np.full(400, float(rows))
    for _ in range(3):
        order = random.permutation(400 * rows)[: 150 * rows]
        a = np.bincount(order // rows, minlength=400).astype(float)
        from scipy.special import xlogy

        observed = float((xlogy(a, a / rows) + xlogy(rows - a, (rows - a) / rows)).sum())
        tail = _pearson_tail(observed, total, 150 / 400)
        assert tail == pytest.approx(_random_tables(a, total - a, random), abs=0.05)


def test_p_values_of_sparse_tables_are_uniform():
    random = np.random.default_rng(3)
    found = [
        sparse_test(random.poisson(1.2, 2000) * 1.0, random.poisson(1.2, 2000) * 1.0, random)
        for _ in range(150)
    ]
    assert stats.kstest(found, "uniform").pvalue > 0.01
    assert math.isnan(sparse_test(np.array([1.0, 0]), np.array([0.0, 1]), random))
