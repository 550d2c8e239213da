"""Counts that no int64 holds have the value and the interval of their formula, or are refused with a remedy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kullback import Counts, Probs, Samples, divergence, estimate, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError
from tests.refusals import refused

# D(p, q) for p = (1/3, 2/3) and q = (2/3, 1/3).
TRUTHS = {
    "kl": math.log(2) / 3,
    "reverse_kl": math.log(2) / 3,
    "jeffreys": 2 * math.log(2) / 3,
    "tv": 1 / 3,
    "chi2": 0.5,
    "hellinger": 1 - 2 * math.sqrt(2) / 3,
}
METHODS = ("coverage_adjusted", "zhang_grabchak", "plugin", "miller_madow", "dirichlet")


def counts(*x: Any) -> Counts:
    return Counts(torch.tensor(x, dtype=torch.float64))


@pytest.mark.parametrize("size", [2.0**53, 2.0**63, 1e19, 1e25, 3e29])
@pytest.mark.parametrize("kind", TRUTHS)
def test_any_number_of_draws_has_the_divergence_of_its_proportions(size: float, kind: str) -> None:
    p, q = counts(size, 2 * size), counts(2 * size, size)
    result = estimate(p, q, kind)
    assert float(result.value) == pytest.approx(TRUTHS[kind], rel=1e-12)
    assert result.n == (int(3 * size), int(3 * size))
    few = estimate(p, counts(2000, 1000), kind)
    known = estimate(Probs(torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)), counts(2000, 1000), kind)
    assert float(few.value) == pytest.approx(TRUTHS[kind], rel=1e-12)
    assert float(few.standard_error) == pytest.approx(float(known.standard_error), rel=0.02)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1e19, 3e29])
def test_the_standard_error_is_that_of_the_delta_method(method: str, size: float) -> None:
    result = kl_estimate(counts(size, 2 * size), counts(2 * size, size), method=method)
    assert float(result.value) == pytest.approx(TRUTHS["kl"], rel=1e-12)
    # Var_P(log(p / q)) = 8 (log 2)^2 / 9 and Var_Q(p / q) = 1/2
    error = math.sqrt((8 * math.log(2) ** 2 / 9 + 0.5) / (3 * size))
    assert float(result.standard_error) == pytest.approx(error, rel=1e-6)
    low, high = map(float, result.interval)
    assert low - 1e-12 < TRUTHS["kl"] < high + 1e-12


def test_rows_with_more_draws_than_an_int64_holds_have_their_number() -> None:
    rows = torch.tensor([[1e19, 2e19], [10, 20]], dtype=torch.float64)
    result = kl_estimate(Counts(rows), Counts(rows.flip(-1)))
    assert [x.tolist() for x in result.n] == [[3e19, 30]] * 2
    integers = torch.tensor([2**62, 2**62])
    assert estimate(Counts(integers), Counts(integers)).n == (2**63, 2**63)


@pytest.mark.parametrize("x", [(1e300, 2e300), (1.7e308, 1.7e308)])
def test_more_draws_than_the_formulas_take_are_refused_and_the_remedy_works(x: tuple[float, float]) -> None:
    p, q = counts(*x), counts(2000, 1000)
    share = x[0] / 2 / (x[0] / 2 + x[1] / 2)  # x[0] + x[1] may be infinite
    truth = share * math.log(share * 3 / 2) + (1 - share) * math.log((1 - share) * 3)
    for method in ("coverage_adjusted", "miller_madow"):
        with refused(
            ArgumentValueError,
            argument="p, q",
            wanted="at most 1e.30",
            got="more than 1e.30 draws",
            instead=r"^kl_divergence\(p, q\)",
        ):
            kl_estimate(p, q, method=method)
    assert float(kl_divergence(p, q)) == pytest.approx(truth, rel=1e-9)
    for kind in ("kl", "js", "chi2"):
        result = estimate(p, q, kind)
        assert float(result.value) == float(divergence(p, q, kind))
        assert result.interval is None
        assert "with a sum above 1e30" in result.notes[0]


def test_too_many_draws_for_samples_are_refused_and_the_remedy_works() -> None:
    draws: Tensor = torch.tensor([0, 1, 1, 0, 1] * 40)
    p = counts(1e19, 1e19)
    remedy = r"Counts\(torch.bincount\(x\)\)"
    for pair in ((p, Samples(draws)), (Samples(draws), p)):
        with refused(ArgumentValueError, wanted="at most 2,147,483,648 draws", got="2e.19", instead=remedy):
            kl_estimate(*pair)
    truth = float(np.log([0.5 / 0.4, 0.5 / 0.6]).mean())
    assert float(kl_estimate(p, Counts(torch.bincount(draws))).value) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize("kind", [*TRUTHS, "alpha:-1"])
def test_opposite_counts_of_the_largest_size_have_an_interval_without_nan(kind: str) -> None:
    p, q = counts(9e29, 5), counts(5, 9e29)
    result = estimate(p, q, kind)
    assert float(result.value) == pytest.approx(float(divergence(p, q, kind)), rel=1e-9)
    assert not any(bool(end.isnan()) for end in result.interval)
