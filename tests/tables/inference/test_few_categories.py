"""Few categories, some of them rare on the smaller side: each is a bin, and intervals are those of a posterior."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.special import rel_entr

from kullback import compare_tables
from kullback.tables.inference.divergences import compare_counts

QUANTITIES = ("kl_pq", "kl_qp", "js", "psi", "tv")
SIX = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
STEEP = np.array([0.7, 0.2, 0.05, 0.03, 0.01, 0.01])


def tilted(p: np.ndarray, strength: float) -> np.ndarray:
    q = p * np.exp(strength * np.resize([1, -1], len(p)))
    return q / q.sum()


def truth(p: np.ndarray, q: np.ndarray) -> dict[str, float]:
    middle = (p + q) / 2
    kl_pq, kl_qp = rel_entr(p, q).sum(), rel_entr(q, p).sum()
    js = (rel_entr(p, middle).sum() + rel_entr(q, middle).sum()) / 2
    return {"kl_pq": kl_pq, "kl_qp": kl_qp, "js": js, "psi": kl_pq + kl_qp, "tv": abs(p - q).sum() / 2}


def column(p: np.ndarray, q: np.ndarray):
    """Compare two tables of so many rows of each category."""
    names = [f"c{index}" for index in range(len(p))]
    tables = [pa.table({"x": np.repeat(names, side)}) for side in (p, q)]
    return compare_tables(*tables).columns[0]


@pytest.mark.heavy
@pytest.mark.parametrize("strength", [0.0, 0.5])
@pytest.mark.parametrize("p", [SIX, STEEP], ids=["six", "steep"])
def test_psi_of_a_small_table_against_a_large_one_has_an_upper_end(p, strength):
    random, q = np.random.default_rng(0), tilted(p, strength)
    expected, repetitions, opened, covered, widths = truth(p, q)["psi"], 60, 0, 0, []
    for _ in range(repetitions):
        found = column(random.multinomial(100, p), random.multinomial(20_000, q))
        assert len(found.bins) == 6
        low, high = found.psi.interval
        opened += math.isinf(high)
        covered += low <= expected <= high
        widths.append(high - low)
    assert opened <= 0.1 * repetitions
    assert covered >= 0.93 * repetitions
    # Normal theory of the plug-in: 4 standard errors, or the 95 % quantile of its chi-square distribution.
    ratio = np.log(p / q)
    slope = ratio - q / p
    error = math.sqrt(float((p * slope**2).sum() - (p * slope).sum() ** 2) / 100)
    assert np.median(widths) <= 2.5 * max(4 * error, stats.chi2.ppf(0.95, 5) / 100)


@pytest.mark.sweep
def test_psi_of_40_rows_against_40_000_has_an_upper_end():
    random, repetitions = np.random.default_rng(1), 12
    for name, p, strength in (
        ("six, P = Q", SIX, 0.0),
        ("six", SIX, 0.5),
        ("six alike", np.full(6, 1 / 6), 0.5),
        ("eight alike", np.full(8, 1 / 8), 0.0),
        ("ten of Zipf", 1 / np.arange(1, 11) / sum(1 / np.arange(1, 11)), 0.5),
    ):
        q = tilted(p, strength)
        expected, opened, covered = truth(p, q)["psi"], 0, 0
        for _ in range(repetitions):
            low, high = column(random.multinomial(40, p), random.multinomial(40_000, q)).psi.interval
            opened += math.isinf(high)
            covered += low <= expected + 1e-12 and expected <= high
        assert opened <= repetitions / 4, (name, opened)
        assert covered >= repetitions - 2, (name, covered)


def test_twenty_categories_of_40_rows_leave_psi_open_and_five_do_not():
    few, many = np.random.default_rng(2).multinomial(40, np.full(20, 1 / 20)), np.full(20, 2000)
    for p, q in ((few, many), (many, few)):
        fine, merged = column(p, q), column(p.reshape(5, 4).sum(1), q.reshape(5, 4).sum(1))
        assert fine.psi.interval is None or fine.psi.interval[1] == math.inf
        assert any("compared in groups" in note for note in fine.notes), fine.notes
        assert math.isfinite(merged.psi.interval[1])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("p", "strength", "n", "m"),
    [
        (SIX, 0.0, 100, 20_000),
        (SIX, 1.0, 100, 20_000),
        (SIX, 0.3, 60, 60),
        (SIX, 0.5, 40, 40_000),
        (np.full(10, 0.1), 0.5, 40, 40_000),
        (STEEP, 2.0, 100, 20_000),
        (STEEP, 1.0, 20_000, 100),
        (STEEP, 0.3, 300, 300),
        (1 / np.arange(1, 31) ** 2 / sum(1 / np.arange(1, 31) ** 2), 1.0, 300, 5000),
    ],
)
def test_intervals_of_a_posterior_cover(p, strength, n, m):
    random, repetitions, q = np.random.default_rng(5), 120, tilted(p, strength)
    expected, missed = truth(p, q), dict.fromkeys(QUANTITIES, 0)
    for _ in range(repetitions):
        a, b = random.multinomial(n, p).astype(float), random.multinomial(m, q).astype(float)
        found = compare_counts(a, b, (n, m), random=random, sparse=True)
        for name in QUANTITIES:
            low, high = getattr(found, name).interval
            missed[name] += not low <= expected[name] <= high
    # At 95 %, more than 12 of 120 miss once in a hundred times.
    assert max(missed.values()) <= 12, missed


def test_the_upper_end_is_the_quantile_of_a_beta_distribution():
    # Q is known, and so PSI is a function of P's first proportion: increasing away from Q's.
    a, b = np.array([3.0, 37.0]), np.array([5e8, 5e8])
    found = compare_counts(a, b, (40, 1e9), random=np.random.default_rng(0), sparse=True)
    p = float(stats.beta(3.5, 37.5).ppf(0.025))
    wanted = (p - 0.5) * math.log(p / 0.5) + (0.5 - p) * math.log((1 - p) / 0.5)
    assert found.psi.interval[1] == pytest.approx(wanted, rel=0.03)


def test_categories_that_one_side_lacks():
    by_chance = column(np.array([55, 30, 15, 0]), np.array([1100, 600, 280, 20]))
    assert math.isfinite(by_chance.psi.interval[1])
    (note,) = [note for note in by_chance.notes if "Bins without rows of P" in note]
    assert note == (
        "Bins without rows of P: 1, with 1 % of the other side's. The interval of KL(Q||P) assumes that P has some "
        "there, absent from its rows by chance."
    )
    # 5 % of Q's rows: chance leaves them out of 100 rows of P in 0.6 % of samples.
    missing = column(np.array([55, 30, 15, 0]), np.array([1100, 600, 200, 100]))
    assert missing.psi.interval[1] == missing.kl_qp.interval[1] == math.inf
    assert math.isfinite(missing.kl_pq.interval[1])
    assert any(
        "the raw counts give infinite KL(Q||P)" in note.replace("The raw", "the raw")
        for note in missing.notes
    )


def test_many_categories_are_compared_in_groups_all_the_same():
    random = np.random.default_rng(0)
    p = np.array([0.8, *np.full(60, 0.2 / 60)])
    found = column(*(random.multinomial(2000, p) for _ in range(2)))
    assert any("rare values" in part.label for part in found.bins)
