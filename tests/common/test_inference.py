"""Quantiles, limits of proportions, scores and combined p-values, against mpmath at 50 digits and SciPy."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from mpmath import mp, mpf

from kullback.common.inference import (
    chi_square_scores,
    false_discovery_rates,
    normal_quantile,
    normal_scores,
    of_independent_tests,
    of_tests_on_the_same_rows,
    student_quantile,
    student_quantiles,
    student_ratio,
    two_sided_quantile,
    wilson_interval,
    wilson_limit,
)

SOURCES = Path(__file__).resolve().parents[2] / "src" / "kullback"
TAILS = (0.25, 0.05, 0.025, 0.005, 0.0025, 1e-4, 1e-8)
DOFS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.7, 5.0, 8.99, 9.0, 17.3, 30.0, 1e3, 12345.6, 1e6)


def normal_tail(z: mpf) -> mpf:
    return mp.erfc(z / mp.sqrt(2)) / 2


def student_tail(t: mpf, dof: float) -> mpf:
    return mp.betainc(mpf(dof) / 2, mpf(1) / 2, 0, dof / (dof + t * t), regularized=True) / 2


@pytest.mark.parametrize("tail", [1e-300, 1e-20, *TAILS, 0.4999])
def test_normal_quantiles_have_all_digits(tail: float) -> None:
    with mp.workdps(50):
        computed = normal_quantile(tail)
        exact = mpmath.findroot(lambda z: mp.log(normal_tail(-z)) - mp.log(mpf(tail)), computed)
        assert computed == pytest.approx(float(exact), rel=4e-15)
    assert normal_scores(np.array([tail]))[0] == computed


@pytest.mark.parametrize("tail", TAILS)
def test_students_quantiles_have_all_digits_also_for_fractional_degrees_of_freedom(tail: float) -> None:
    with mp.workdps(50):
        for dof in DOFS:
            computed = student_quantile(tail, dof)
            exact = mpmath.findroot(
                lambda t, dof=dof: mp.log(student_tail(-t, dof)) - mp.log(mpf(tail)), computed
            )
            assert computed == pytest.approx(float(exact), rel=1e-14), dof
    assert student_quantile(tail, math.inf) == pytest.approx(normal_quantile(tail), rel=1e-14)


def test_students_quantiles_of_a_tensor_have_its_shape_and_dtype() -> None:
    for dof in (torch.tensor(3.5, dtype=torch.float64), torch.tensor([[1.0, 2.5], [7.0, 1e4]])):
        quantiles = student_quantiles(normal_quantile(0.9), dof)
        assert (quantiles.shape, quantiles.dtype) == (dof.shape, dof.dtype)
        wanted = [student_quantile(0.9, number) for number in dof.flatten().tolist()]
        assert quantiles.flatten().tolist() == pytest.approx(wanted, rel=1e-6)


def test_intervals_of_few_groups_reach_as_far_as_students_t() -> None:
    assert two_sided_quantile(0.95) == pytest.approx(1.9599639845400542, rel=1e-15)
    for groups in (2, 2.5, 3, 5, 10, 30, 1000):
        wanted = scipy.stats.t.isf(0.05, groups - 1)
        assert two_sided_quantile(0.9, groups) == pytest.approx(wanted, rel=1e-13)
        assert student_ratio(0.9, groups) == pytest.approx(wanted / scipy.stats.norm.isf(0.05), rel=1e-13)
    assert two_sided_quantile(0.95, 1) == student_ratio(0.95, 1.9) == math.inf


@pytest.mark.parametrize(
    ("successes", "count"), [(0, 10), (1, 10), (7, 20), (20, 20), (3, 1000), (998, 1000)]
)
def test_wilsons_interval_is_scipys(successes: int, count: int) -> None:
    theirs = scipy.stats.binomtest(successes, count).proportion_ci(method="wilsoncc")
    ours = wilson_interval(successes / count, count, 0.95)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    theirs = scipy.stats.binomtest(successes, count).proportion_ci(method="wilson")
    z = two_sided_quantile(0.95)
    ours = tuple(wilson_limit(float(successes), count, z, side) for side in (-1, 1))
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_scipys_limits_of_proportions_accept_whole_numbers_only() -> None:
    for successes in (3.5, [3, 4]):
        with pytest.raises(TypeError, match="must be an integer"):
            scipy.stats.binomtest(successes, 10)
    events = np.array([3.5, 4.25])
    ours = wilson_limit(events, 10.0, 1.96, 1)
    assert ours.tolist() == [wilson_limit(x, 10.0, 1.96, 1) for x in events.tolist()]
    assert wilson_limit(torch.from_numpy(events), 10.0, 1.96, 1).tolist() == pytest.approx(ours.tolist())
    # The limits p solve |x / n - p| = z sqrt(p (1 - p) / n).
    for side in (-1, 1):
        p = wilson_limit(events, 10.0, 1.96, side)
        np.testing.assert_allclose(side * (p - events / 10), 1.96 * np.sqrt(p * (1 - p) / 10), rtol=1e-12)


@pytest.mark.parametrize("dof", [10.5, 40, 200])
def test_chi_square_scores_are_nearly_normal(dof: float) -> None:
    for tail in (0.99, 0.5, 0.05, 0.001):
        ratio = scipy.stats.chi2.isf(tail, dof) / dof
        assert chi_square_scores(ratio, dof) == pytest.approx(scipy.stats.norm.isf(tail), abs=0.05)


def test_scores_exist_where_scipys_tail_is_zero() -> None:
    ratios = np.array([150.0, 200.0])
    assert (scipy.stats.chi2.logsf(10 * ratios, 10) < -700).all()
    assert (scipy.stats.chi2.sf(10 * ratios, 10) == 0).any()
    scores = chi_square_scores(ratios, 10)
    assert scores[0] < scores[1] < 40


def test_adjusted_p_values_are_benjamini_and_hochbergs() -> None:
    # p(i) * number / rank, made monotone from the largest down.
    assert false_discovery_rates([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.5])
    assert false_discovery_rates([float("nan"), 0.2])[1] == 0.2
    assert false_discovery_rates([]) == []


def test_independent_tests_are_taken_together() -> None:
    assert of_independent_tests([0.01, 0.5]) == pytest.approx(1 - 0.99**2)
    assert of_independent_tests([float("nan"), 0.3]) == pytest.approx(0.3)
    assert of_independent_tests([1.0, 1.0]) == 1
    assert math.isnan(of_independent_tests([]))


def test_tests_on_the_same_rows_are_combined() -> None:
    combine = of_tests_on_the_same_rows
    assert math.isnan(combine([math.nan, math.nan]))
    assert combine([0.3, math.nan]) == 0.3
    assert combine([1.0, 1.0]) == 1
    assert combine([0.2, 0.2]) == pytest.approx(0.2, rel=1e-12)
    for p in (1e-3, 1e-12, 1e-250):  # about twice the smaller one at most
        for other in (0.5, 1.0):
            assert p < combine([p, other]) <= 2.3 * p
    assert 0 <= combine([0.0, 0.5]) < 1e-250


def test_quantiles_and_combinations_stand_in_one_file() -> None:
    functions = {
        "NormalDist",
        "inv_cdf",
        "ndtri",
        "stdtrit",
        "erfinv",
        "false_discovery_control",
        "combine_pvalues",
    }
    files = set()
    for path in SOURCES.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if any(name in source for name in functions) else ():
            name = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.id
                if isinstance(node, ast.Name)
                else ""
            )
            if name in functions or (isinstance(node, ast.alias) and node.name in functions):
                files.add(path.relative_to(SOURCES).as_posix())
    outside = {name for name in files if not name.startswith("pairs/")}  # the quantiles of torch's families
    assert outside == {"common/inference.py"}
