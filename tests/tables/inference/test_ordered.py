"""The test that sees the order of numbers: its distribution, size and power, beside SciPy and published tables."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from kullback import compare_tables
from kullback.tables.inference.significance import (
    _chi_square_sum_tail,
    ordered_test_of_clusters,
)


@pytest.mark.parametrize(("x", "p"), [(0.34730, 0.1), (0.46136, 0.05), (0.74346, 0.01), (1.16786, 0.001)])
def test_the_limit_is_that_of_cramer_and_von_mises(x: float, p: float) -> None:
    # Asymptotic theory of certain goodness of fit criteria (Anderson and Darling, 1952), table 1.
    weights = 1 / (np.arange(1, 200) * np.pi) ** 2
    assert _chi_square_sum_tail(x, weights) == pytest.approx(p, rel=0.04)


@pytest.mark.parametrize("terms", [1, 2, 5, 40])
def test_equal_weights_give_the_chi_square_distribution(terms: int) -> None:
    for x in (0.5 * terms, float(terms), 2.0 * terms, 3.0 * terms + 10):
        found = _chi_square_sum_tail(3.0 * x, np.full(terms, 3.0))
        assert found == pytest.approx(stats.chi2.sf(x, terms), rel=0.05)


def columns(draw: object, rows: int, number: int, **others: object) -> pa.Table:
    return pa.table({f"c{i}": draw(rows) for i in range(number)} | others)  # type: ignore[operator]


@pytest.mark.sweep
def test_a_shift_that_moves_all_bins_a_little_is_seen() -> None:
    random = np.random.default_rng(0)
    p = columns(lambda n: random.normal(40, 12, n), 20_000, 20)
    q = columns(lambda n: random.normal(41, 12, n), 3_000, 20)
    found = compare_tables(p, q).columns
    assert np.mean([column.p_value < 0.01 for column in found]) >= 0.7  # of the bins alone 0.4
    # The truth is 2 Phi(1/24) - 1, the largest difference of the two cumulative distributions.
    assert np.mean([column.ks for column in found]) == pytest.approx(2 * stats.norm.cdf(1 / 24) - 1, abs=0.01)


@pytest.mark.heavy
@pytest.mark.parametrize(
    "draw",
    [
        lambda random, n: random.normal(size=n),
        lambda random, n: np.round(random.normal(0, 2, n)),
        lambda random, n: random.poisson(1.0, n),
        lambda random, n: np.where(random.random(n) < 0.9, 0.0, random.exponential(size=n)),
    ],
    ids=["normal", "lattice", "few values", "mostly zero"],
)
@pytest.mark.parametrize("sizes", [(40, 40), (600, 150)])
def test_equal_columns_are_rejected_as_often_as_said(draw: object, sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(7)
    p, q = (columns(lambda n: draw(random, n), rows, 200) for rows in sizes)  # type: ignore[operator]
    rejected = sum(column.p_value < 0.05 for column in compare_tables(p, q).columns)
    assert rejected <= stats.binom.ppf(0.999, 200, 0.055)


def test_the_distance_is_scipys() -> None:
    random = np.random.default_rng(3)
    x, y = np.round(random.normal(0, 3, 500)), np.round(random.normal(1, 3, 300))
    x[:5], y[:30] = -np.inf, np.inf
    found = compare_tables(pa.table({"x": x}), pa.table({"x": y}))["x"]
    assert found.ks == pytest.approx(stats.ks_2samp(x, y).statistic, abs=1e-12)


def test_columns_without_an_order_or_without_values() -> None:
    p = pa.table({"a": ["x", "y"] * 50, "b": [1.0, 2.0] * 50, "c": [math.nan] * 100, "d": [True, False] * 50})
    q = pa.table({"a": ["x", "y"] * 50, "b": [1.0, 2.0] * 50, "c": [1.0, 2.0] * 50, "d": [True, False] * 50})
    found = compare_tables(p, q)
    assert {column.name: column.ks for column in found.columns} == {"a": None, "b": 0.0, "c": None, "d": None}
    assert found["b"].p_value == 1


@pytest.mark.heavy
@pytest.mark.parametrize("clusters", [60, 600])
def test_clusters_are_rejected_as_often_as_said(clusters: int) -> None:
    random = np.random.default_rng(5)
    group = np.arange(5 * clusters) // 5

    def draw(offset: int) -> pa.Table:
        effects = random.normal(size=(40, clusters))
        values = {f"c{i}": effects[i][group] + random.normal(size=len(group)) for i in range(40)}
        return pa.table(values | {"group": group + offset})

    found = [compare_tables(draw(0), draw(10**6), cluster="group") for _ in range(2)]
    rejected = sum(column.p_value < 0.05 for each in found for column in each.columns)
    assert rejected <= stats.binom.ppf(0.999, 80, 0.055)


def test_clusters_see_a_shift_and_permutations_agree_with_the_covariance() -> None:
    random = np.random.default_rng(2)
    a = random.multinomial(10, [0.3, 0.3, 0.2, 0.2], 300).astype(float)
    b = random.multinomial(10, [0.25, 0.29, 0.23, 0.23], 300).astype(float)
    p, q = np.vstack([a, 0 * b]), np.vstack([0 * a, b])
    permuted = ordered_test_of_clusters(p, q, random)
    extended = [np.vstack([side] * 2) for side in (p, q)]  # more clusters than are permuted
    computed = ordered_test_of_clusters(*(side / 2**0.5 for side in extended), random)
    assert permuted < 0.02
    assert computed < permuted
    halves = ordered_test_of_clusters(
        np.vstack([a[:150], a[:150] * 0]), np.vstack([a[:150] * 0, a[150:]]), random
    )
    assert halves > 0.01
