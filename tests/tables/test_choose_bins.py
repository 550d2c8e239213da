"""Bins and combinations of bins: equal proportions, atoms, what only Q has, nothing lost."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.tables import bin_counts, choose_bins, contingency_tables, profile_table
from tests.refusals import refused

finite = st.floats(allow_nan=False, allow_infinity=False)
bins = st.one_of(st.none(), st.just(float("nan")), st.just(float("inf")), finite)


def columns_of(p, q):
    of_p = profile_table(pa.table({"x": p}))
    return of_p.columns["x"], profile_table(pa.table({"x": q}), like=of_p).columns["x"]


def test_bins_hold_equal_shares_of_p_and_all_of_q():
    generator = np.random.default_rng(0)
    p, q = columns_of(generator.standard_normal(100_000), 3 + generator.standard_cauchy(50_000))
    bins = choose_bins(p, q)
    counts = bin_counts(p, bins)
    assert len(counts) == 20
    np.testing.assert_allclose(counts, 5000, rtol=0.15)
    assert bin_counts(q, bins).sum() == 50_000


@pytest.mark.parametrize(
    "draws",
    [
        np.random.default_rng(0).standard_normal(10_000),
        np.random.default_rng(0).integers(-40, 8, 500) / 8,
        np.repeat([7.25, 9.0], [290, 10]),
    ],
    ids=["continuous", "eighths", "around a value"],
)
def test_bins_count_what_lies_between_their_edges(draws):
    p, q = columns_of(draws[:200], draws)
    bins = choose_bins(p, q)
    counts, _ = np.histogram(draws, [-np.inf, *bins.edges, np.inf])
    np.testing.assert_array_equal(bin_counts(q, bins), counts)


def test_an_atom_keeps_a_bin_of_its_own():
    generator = np.random.default_rng(0)
    p = np.where(generator.random(5000) < 0.4, 0.0, generator.standard_normal(5000))
    column, _ = columns_of(p, p)
    counts = bin_counts(column, choose_bins(column, column))
    assert sum(p == 0) in counts


def test_few_values_get_a_bin_each_and_q_new_ones_between_and_beyond():
    p, q = columns_of([1.0, 1.0, 1.0, 3.0, 3.0, 3.0] * 5, [0.5, 1.0, 2.0, 3.0, 9.0])
    bins = choose_bins(p, q)
    np.testing.assert_array_equal(bin_counts(p, bins), [0, 15, 0, 15, 0])
    np.testing.assert_array_equal(bin_counts(q, bins), [1, 1, 1, 1, 1])


def test_a_constant_column_shows_every_other_value():
    p, q = columns_of([7.25] * 30, [7.25, 7.0, 8.0, None])
    bins = choose_bins(p, q)
    np.testing.assert_array_equal(bin_counts(p, bins), [0, 30, 0, 0])
    np.testing.assert_array_equal(bin_counts(q, bins), [1, 1, 1, 1])
    assert bins.labels[-1] == "missing"


def test_bins_without_q_have_a_bin_for_whatever_comes():
    p, _ = columns_of([7.25] * 30, [7.25])
    bins = choose_bins(p)
    assert bins.specials == ("missing", "not a number", "-infinity", "infinity")
    assert len(bins) == 3 + 4
    words = profile_table(pa.table({"x": ["a"]})).columns["x"]
    assert choose_bins(words).labels == ("a", "other categories", "missing")


def test_labels_say_what_a_bin_holds():
    p, q = columns_of([0, 0, 1, 1, 2, 2, 7, 8] * 4, [0])
    assert choose_bins(p, q).labels == ("0", "1", "2", "7", "8")
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=day) for day in range(1000)]
    p, q = columns_of(days, days)
    assert all(label.count("-") in {2, 4} for label in choose_bins(p, q).labels)


def test_new_categories_get_bins_and_wrong_columns_are_refused():
    p, q = columns_of(["a", "b"], ["b", "c", None])
    bins = choose_bins(p, q)
    assert bins.labels == ("a", "b", "c", "missing")
    np.testing.assert_array_equal(bin_counts(q, bins), [0, 1, 1, 1])
    with refused(ArgumentValueError, got="categories without a bin, such as 'c'"):
        bin_counts(q, choose_bins(p, p))
    numbers, _ = columns_of([1], [1])
    with refused(ArgumentValueError, got="numeric around 1 for bins of categorical"):
        bin_counts(numbers, bins)
    with refused(ArgumentValueError, got="numeric around 1 and categorical"):
        choose_bins(numbers, p)
    with refused(ArgumentTypeError, got="^int"):
        choose_bins(p, 20)
    with refused(ArgumentValueError, wanted="^an integer of 1 or more"):
        choose_bins(numbers, numbers, 0)


@pytest.mark.sweep
@given(st.lists(bins, min_size=1, max_size=40), st.lists(bins, max_size=40), st.integers(1, 25))
@settings(deadline=None, max_examples=60)
def test_no_row_is_lost_in_bins(p, q, number):
    of_p = profile_table(pa.table({"x": pa.array(p, pa.float64())}))
    of_q = profile_table(pa.table({"x": pa.array(q, pa.float64())}), like=of_p)
    bins = choose_bins(of_p.columns["x"], of_q.columns["x"], number)
    assert len(set(bins.labels)) == len(bins)
    for profile in (of_p, of_q):
        assert bin_counts(profile.columns["x"], bins).sum() == profile.rows


def test_combinations_are_those_by_hand_and_sum_to_the_bins():
    generator = np.random.default_rng(0)
    x, s = generator.standard_normal(500), generator.choice(["a", "b", "c"], 500)
    w, user = generator.integers(0, 5, 500), generator.integers(0, 9, 500)
    table = pa.table({"x": x, "s": s, "w": w, "user": user})
    profile = profile_table(table, weights="w")
    bins = {name: choose_bins(c, c, 4) for name, c in profile.columns.items() if name != "user"}
    found = contingency_tables(table, bins, [("x", "s"), ("user", "s")], weights="w")
    expected = Counter()
    for number, word, weight in zip(x, s, w, strict=True):
        expected[int(np.searchsorted(bins["x"].edges, number)), "abc".index(word)] += int(weight)
    assert {k: v for k, v in found["x", "s"].items() if v} == {k: v for k, v in expected.items() if v}
    by_user = Counter()
    for key, word, weight in zip(user.tolist(), s, w.tolist(), strict=True):
        by_user[key, "abc".index(word)] += weight
    assert {k: v for k, v in found["user", "s"].items() if v} == {k: v for k, v in by_user.items() if v}
    with refused(ArgumentValueError, wanted="^columns of the table$", got="^'z'"):
        contingency_tables(table, bins, [("x", "z")])
    with refused(ArgumentValueError, argument="weights", wanted="^columns of the table$", got="^'z'"):
        contingency_tables(table, bins, [("x", "s")], weights="z")
    with refused(ArgumentValueError, wanted="^a bin for every value$", got="^values of 's' in none"):
        contingency_tables(pa.table({"s": ["d"]}), bins, [("s",)])
