"""The histograms of the page: P and Q at the scale of their numbers, whatever the numbers are."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from kullback import compare_tables
from kullback.tables.plot_bins import MOST_BINS


def shown(p, q):
    return compare_tables(pd.DataFrame({"x": p}), pd.DataFrame({"x": q}))["x"].histogram


@pytest.mark.parametrize("dtype", [int, float, "Int8"])
def test_few_integers_are_shown_one_by_one(dtype):
    p, q = [0, 0, 1] * 30, [0, 1, 1, 7] * 30
    found = shown(pd.array(p, dtype=dtype), pd.array(q, dtype=dtype))
    assert [(each.low, each.high, each.p, each.q) for each in found] == [
        (0, 0, 60, 30),
        (1, 1, 30, 60),
        (7, 7, 0, 30),
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([200, 301, 404, 500], [(200, 204), (296, 304), (400, 408), (496, 501)]),
        ([0, 100, 200], [(0, 0), (100, 102), (200, 200)]),
        ([-(2**60), 3, 2**60], [(-(2**60), 1 - 2**60), (3, 3), (2**60, 2**60)]),
    ],
)
def test_a_few_integers_far_apart_have_a_bin_each(values, expected):
    found = shown(values * 30, values * 20 + values[:1] * 20)
    assert [(each.p, each.q) for each in found] == [(30, 20 + 20 * (value == values[0])) for value in values]
    for each, value in zip(found, values, strict=True):
        assert each.low == value if each.low == each.high else each.low <= value < each.high
    if max(values) < 1000:
        assert [(each.low, each.high) for each in found] == expected


def test_many_integers_that_follow_each_other_are_spread_over_bins():
    found = shown(list(range(100, 160)) * 5, list(range(100, 160)) * 5)
    assert all(after.low == before.high for before, after in pairwise(found))


def test_large_integers_stay_exact():
    found = shown([2**53, 2**53 + 1] * 30, [2**53 + 1] * 60)
    assert [(each.low, each.p, each.q) for each in found] == [(2**53, 30, 0), (2**53 + 1, 30, 60)]


def test_bins_are_of_one_width_and_hold_what_numpy_counts():
    random = np.random.default_rng(0)
    p, q = random.normal(300, 5, 20_000), random.normal(302, 5, 15_000)
    found = shown(p, q)
    assert len(found) == MOST_BINS
    edges = [each.low for each in found] + [found[-1].high]
    assert np.ptp(np.diff(edges)) < 1e-9 * 300
    assert (edges[0], edges[-1]) == (min(p.min(), q.min()), max(p.max(), q.max()))
    for side, values in (("p", p), ("q", q)):
        weights = np.array([getattr(each, side) for each in found])
        assert weights.sum() == pytest.approx(len(values))
        # The grid's buckets are narrower than a bin, and are spread evenly.
        assert np.abs(np.cumsum(weights) - np.cumsum(np.histogram(values, edges)[0])).max() < 0.006 * len(
            values
        )


def test_long_tails_are_left_out_and_counted():
    random = np.random.default_rng(0)
    p, q = random.standard_cauchy(5000), random.standard_cauchy(5000)
    found = shown(p, q)
    assert (found[0].low, found[-1].high) == (-math.inf, math.inf)
    assert sum(each.p for each in found) == pytest.approx(5000)
    assert found[0].p < 0.01 * 5000
    assert found[-2].high - found[1].low < np.ptp(p) / 2


def test_numbers_over_many_decades_have_bins_of_one_ratio():
    random = np.random.default_rng(0)
    found = shown(np.exp(random.normal(0, 4, 3000)), np.exp(random.normal(1, 4, 3000)))
    ratios = [each.high / each.low for each in found]
    assert min(ratios) == pytest.approx(max(ratios))


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 5e-324, -5e-324] * 20,
        [-1.7976931348623157e308, 1.7976931348623157e308] * 30,
        [1e308, 1.1e308, 1.2e308] * 20,
        [1.0, 1.0 + 2**-52] * 30,
        [float("inf"), float("nan"), None] * 20,
        [None] * 60,
        [],
        [3.0],
    ],
)
def test_numbers_at_the_ends_of_float64_have_finite_weights(values):
    table = pa.table({"x": pa.array(values, pa.float64())})
    found = compare_tables(table, table)
    for column in found.columns:
        finite = sum(value is not None and math.isfinite(value) for value in values)
        assert sum(each.p for each in column.histogram) in (0, pytest.approx(finite))
        assert all(each.low <= each.high for each in column.histogram)
    assert found.to_html().startswith("<!doctype html>")


def test_lengths_and_timestamps_are_numbers_too():
    texts = ["x" * (40 + i % 5) + str(i % 400) for i in range(3000)]
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(3000), unit="h")
    table = pd.DataFrame({"text": texts, "day": days, "word": ["a", "b"] * 1500})
    found = compare_tables(table, table)
    assert sum(each.p for each in found["text"].histogram) == pytest.approx(3000)
    assert found["day"].histogram[0].low == pd.Timestamp("2024-01-01").value // 1000
    assert found["word"].histogram == ()
