"""Sums over the integers: against mpmath term by term, and against closed forms where there are any."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import mpmath
import pytest
import torch
from hypothesis import given, strategies as st
from mpmath import loggamma, mpf
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    NegativeBinomial,
    Poisson,
)

from kullback import kl_divergence, kl_estimate
from kullback.pairs.densities.density import Density, Points, density_of
from kullback.pairs.densities.integer import IntegerDensity
from kullback.pairs.families.poisson import PoissonDensity
from kullback.pairs.integration.panels import Integral
from kullback.pairs.integration.summation import sum_terms
from kullback.pairs.solve_options import Tolerance

Named = tuple[str, tuple[float, ...]]


def summed(p: Density, q: Density, max_evaluations: int = 10_000) -> Integral:
    """Sum the terms of two densities, each a single one or a batch of the same shape."""
    p, q = (density.mapped(lambda x: x.unsqueeze(-1)) for density in (p, q))
    shape = torch.broadcast_shapes(p.center_and_width()[0].shape, q.center_and_width()[0].shape)[:-1]
    return sum_terms(p, q, shape, Tolerance(1e-12, 0.0, max_evaluations))


def density_or_fail(d: Distribution) -> Density:
    """Return the density of a distribution that has one."""
    found = density_of(d)
    assert found is not None
    return found


def log_binomial(x: mpf, n: mpf, p: mpf) -> mpf:
    """Return the logarithm of n! / (x! (n - x)!) p^x (1 - p)^(n - x)."""
    ways = loggamma(n + 1) - loggamma(x + 1) - loggamma(n - x + 1)
    return ways + x * mpmath.log(p) + (n - x) * mpmath.log(1 - p)


def log_negative_binomial(x: mpf, r: mpf, p: mpf) -> mpf:
    """Return the logarithm of Gamma(x + r) / (x! Gamma(r)) p^x (1 - p)^r."""
    return loggamma(x + r) - loggamma(x + 1) - loggamma(r) + x * mpmath.log(p) + r * mpmath.log(1 - p)


LOG_MASS: dict[str, Callable[..., mpf]] = {
    "Bernoulli": lambda x, p: mpmath.log(p if x else 1 - p),
    "Binomial": log_binomial,
    "Geometric": lambda x, p: x * mpmath.log(1 - p) + mpmath.log(p),
    "NegativeBinomial": log_negative_binomial,
    "Poisson": lambda x, rate: x * mpmath.log(rate) - rate - loggamma(x + 1),
}
MAKE: dict[str, Callable[..., Distribution]] = {
    "Bernoulli": Bernoulli,
    "Binomial": Binomial,
    "Geometric": Geometric,
    "NegativeBinomial": NegativeBinomial,
    "Poisson": Poisson,
}


def true_kl(p: Named, q: Named, last: int) -> mpf:
    """Add p log(p / q) from 0 to `last`."""
    terms = []
    for x in range(last + 1):
        log_p, log_q = (LOG_MASS[name](mpf(x), *(mpf(v) for v in given)) for name, given in (p, q))
        terms.append(mpmath.exp(log_p) * (log_p - log_q))
    return mpmath.fsum(terms)


def true_derivative(pair: tuple[Named, Named], side: int, place: int, last: int) -> float:
    """Differentiate the sum by one parameter, by a central difference."""
    name, given = pair[side]
    h = mpf(given[place]) * mpf(10) ** -20

    def at(value: mpf) -> mpf:
        changed = (name, (*given[:place], value, *given[place + 1 :]))
        return true_kl(*((changed, pair[1]) if side == 0 else (pair[0], changed)), last)

    return float((at(given[place] + h) - at(given[place] - h)) / (2 * h))


# P, Q, and the last integer that matters at 50 digits.
PAIRS: list[tuple[Named, Named, int]] = [
    (("Poisson", (3.0,)), ("NegativeBinomial", (5.0, 0.4)), 90),
    (("Poisson", (1e-30,)), ("NegativeBinomial", (5.0, 0.4)), 4),
    (("Poisson", (200.0,)), ("NegativeBinomial", (1e3, 0.2)), 500),
    (("Poisson", (1e-200,)), ("NegativeBinomial", (5.0, 0.4)), 2),
    (("Geometric", (0.5,)), ("Poisson", (1e4,)), 250),  # log q is -10000 at 0
    (("Poisson", (2.0,)), ("Geometric", (0.3,)), 80),
    (("Binomial", (10.0, 0.3)), ("Binomial", (12.0, 0.4)), 10),
    (("Binomial", (7.0, 1e-10)), ("Binomial", (9.0, 1e-9)), 7),
    (("Binomial", (300.0, 0.999)), ("Binomial", (301.0, 0.98)), 300),
    (("Binomial", (20.0, 0.05)), ("Poisson", (1.1,)), 20),
    (("Binomial", (20.0, 0.9)), ("NegativeBinomial", (0.5, 0.9)), 20),
    (("Geometric", (0.3,)), ("Poisson", (2.0,)), 400),
    (("Geometric", (0.9,)), ("NegativeBinomial", (3.0, 0.2)), 60),
    (("NegativeBinomial", (2.5, 0.6)), ("NegativeBinomial", (2.6, 0.6)), 300),
    (("NegativeBinomial", (0.01, 0.5)), ("NegativeBinomial", (3.0, 0.9)), 200),
    (("NegativeBinomial", (1e-6, 0.5)), ("NegativeBinomial", (1e-5, 0.6)), 200),
    (("NegativeBinomial", (1e6, 1e-4)), ("Poisson", (90.0,)), 300),
    (("Bernoulli", (0.3,)), ("Geometric", (0.4,)), 1),
    (("Bernoulli", (1e-8,)), ("Binomial", (5.0, 0.4)), 1),
    (("Bernoulli", (1 - 1e-8,)), ("NegativeBinomial", (2.0, 0.4)), 1),
]


@pytest.mark.parametrize(
    ("p", "q", "last"), PAIRS, ids=lambda x: "{}{}".format(*x) if isinstance(x, tuple) else ""
)
def test_pairs_without_a_closed_form(p: Named, q: Named, last: int) -> None:
    leaves = [
        [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in given] for _, given in (p, q)
    ]
    estimate = kl_estimate(MAKE[p[0]](*leaves[0]), MAKE[q[0]](*leaves[1]))
    assert estimate.method == "summation"
    assert estimate.error is not None
    with mpmath.workdps(120 if min(p[1]) > 1e-100 else 500):
        truth = float(true_kl(p, q, last))
        assert estimate.value.item() == pytest.approx(truth, rel=1e-12)
        assert abs(estimate.value.item() - truth) <= estimate.error.item()
        estimate.value.backward()
        for side, place in ((s, i) for s in (0, 1) for i in range(len(leaves[s]))):
            derivative = leaves[side][place].grad
            if (p, q)[side][0] == "Binomial" and place == 0:
                continue  # the number of trials is a whole number
            assert derivative is not None
            true = true_derivative((p, q), side, place, last)
            assert derivative.item() == pytest.approx(true, rel=1e-10, abs=1e-14), (side, place)


NEAR_AND_FAR: dict[str, tuple[Callable[[Tensor], Distribution], list[float]]] = {
    "Poisson": (Poisson, [0.0, 1e-30, 0.1, 1.0, 1.001, 50.0, 1e3, 1e6, 1.001e6, 1e10]),
    "Geometric": (Geometric, [1e-12, 1e-8, 1e-4, 0.01, 0.0101, 0.5, 1 - 1e-8, 1.0]),
    "Geometric, logits": (lambda x: Geometric(logits=x), [-100.0, -99.0, -40.0, 0.0, 40.0, 100.0]),
    "NegativeBinomial, logits": (
        lambda x: NegativeBinomial(3.0, logits=x),
        [-100.0, -40.0, 0.0, 40.0, 99.0, 100.0],
    ),
    "Binomial, logits": (lambda x: Binomial(50, logits=x), [-100.0, -40.0, 0.0, 40.0, 99.0, 100.0]),
    "Binomial, 1": (lambda x: Binomial(1, x), [0.0, 1e-12, 0.01, 0.3, 0.301, 1 - 1e-8, 1.0]),
    "Binomial, 1000": (lambda x: Binomial(1000, x), [0.0, 1e-12, 0.01, 0.3, 0.301, 1 - 1e-8, 1.0]),
    "Binomial, 1e9": (lambda x: Binomial(1e9, x), [0.0, 1e-12, 0.01, 0.3, 0.301, 0.9, 1.0]),
    "NegativeBinomial, 0.01": (lambda x: NegativeBinomial(0.01, x), [0.0, 1e-8, 0.3, 0.301, 0.9, 1 - 1e-10]),
    "NegativeBinomial, 20": (lambda x: NegativeBinomial(20.0, x), [0.0, 1e-8, 0.3, 0.301, 0.9, 1 - 1e-10]),
    "NegativeBinomial, 1e6": (lambda x: NegativeBinomial(1e6, x), [0.0, 1e-8, 0.3, 0.301, 0.9, 1 - 1e-12]),
}


@pytest.mark.parametrize("name", NEAR_AND_FAR)
def test_sums_agree_with_closed_forms_at_any_scale_and_bound_their_error(name: str) -> None:
    make, values = NEAR_AND_FAR[name]
    v = torch.tensor(values, dtype=torch.float64)
    sides = [x.clone().requires_grad_() for x in torch.meshgrid(v, v, indexing="ij")]
    p, q = (make(x) for x in sides)
    found, exact = summed(density_or_fail(p), density_or_fail(q)), kl_divergence(p, q)
    finite = exact.isfinite()
    assert (found.value.isfinite() == finite).all()
    assert torch.allclose(found.value[finite], exact[finite], rtol=1e-9, atol=1e-18)
    assert ((found.value - exact).abs() <= found.error + 1e-14 * exact)[finite].all()
    derivatives, exact_derivatives = (
        torch.autograd.grad(x[finite].sum(), sides) for x in (found.value, exact)
    )
    for derivative, exact_derivative in zip(derivatives, exact_derivatives, strict=True):
        # Two terms of a derivative cancel that are as large as the divergence itself.
        off = (derivative - exact_derivative).abs()[finite]
        assert (off <= 1e-7 * exact_derivative.abs()[finite] + 1e-14 * exact.abs()[finite]).all()


LARGE_MEANS: list[tuple[Named, list[float]]] = [
    (("Poisson", (1e10,)), [1e10 + c * 1e5 for c in (-8, -1, 0, 3)]),
    (("Poisson", (1e8,)), [0.0, 1e8 - 1e4, 1e8 + 3e4]),
    (("Poisson", (100.0,)), [0.0, 1.0, 15.0, 16.0, 70.0, 100.0, 140.0, 300.0]),
    (("Binomial", (1e8, 0.5)), [5e7 + c * 5e3 for c in (-8, -1, 0, 3)]),
    (("Binomial", (1e10, 1e-8)), [0.0, 1.0, 80.0, 100.0, 200.0]),
    (("NegativeBinomial", (1e8, 0.5)), [1e8 + c * 1e4 for c in (-8, -1, 0, 3)]),
    (("NegativeBinomial", (1e-6, 1 - 1e-10)), [0.0, 1.0, 1e6, 1e11]),
    (("Geometric", (1e-10,)), [0.0, 1.0, 1e10, 1e12]),
]


@pytest.mark.parametrize(("named", "at"), LARGE_MEANS)
def test_log_probabilities_keep_their_digits_at_large_means(named: Named, at: list[float]) -> None:
    name, given = named
    d = MAKE[name](*(torch.tensor(v, dtype=torch.float64) for v in given))
    found = density_or_fail(d).log_density(Points(torch.tensor(at, dtype=torch.float64)))
    with mpmath.workdps(50):
        for x, value in zip(at, found.tolist(), strict=True):
            true = float(LOG_MASS[name](mpf(x), *(mpf(v) for v in given)))
            assert value == pytest.approx(true, rel=1e-14, abs=3e-14), x


def test_chances_too_small_for_a_float_keep_their_logarithm() -> None:
    d = Binomial(10, logits=torch.tensor(-800.0, dtype=torch.float64))
    found = density_or_fail(d).log_density(Points(torch.arange(3.0, dtype=torch.float64)))
    with mpmath.workdps(50):
        true = [float(mpmath.log(mpmath.binomial(10, x)) - 800 * x) for x in range(3)]
    assert found.tolist() == pytest.approx(true, rel=1e-14, abs=1e-300)


WEIGHTS = st.lists(st.floats(0, 1), min_size=3, max_size=40).filter(lambda x: sum(x) > 0.1)


@pytest.mark.sweep
@given(WEIGHTS, WEIGHTS)
def test_classes_are_all_counted(p: list[float], q: list[float]) -> None:
    size = min(len(p), len(q))
    if sum(p[:size]) == 0 or sum(q[:size]) == 0:
        return
    a, b = (Categorical(torch.tensor(x[:size], dtype=torch.float64)) for x in (p, q))
    found, exact = summed(density_or_fail(a), density_or_fail(b)), kl_divergence(a, b)
    assert found.value.item() == pytest.approx(exact.item(), rel=1e-10, abs=1e-14)


def test_many_classes_in_a_batch() -> None:
    logits = 3 * torch.randn(2, 2, 3000, dtype=torch.float64)
    a, b = Categorical(logits=logits[0].requires_grad_()), Categorical(logits=logits[1])
    found = summed(density_or_fail(a), density_or_fail(b))
    assert torch.allclose(found.value, kl_divergence(a, b), rtol=1e-12)
    assert (found.unintegrated < 1e-12).all()


def test_classes_and_counts() -> None:
    p = torch.tensor([0.2, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    value = kl_divergence(Categorical(p), Binomial(5, q))
    masses = [mpf(0.2) / mpf(0.7), mpf(0), mpf(0.5) / mpf(0.7)]
    true = sum(m * mpmath.log(m * 32 / mpmath.binomial(5, k)) for k, m in enumerate(masses) if m)
    assert value.item() == pytest.approx(float(true), rel=1e-12)
    value.backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()
    assert q.grad is not None
    # -E[x / q - (5 - x) / (1 - q)], with mean 10 / 7
    assert q.grad.item() == pytest.approx(-4 * 10 / 7 + 10, rel=1e-12)


INFINITE: list[tuple[Distribution, Distribution]] = [
    (Poisson(1.0), Binomial(5, 0.5)),
    (Binomial(6, 0.5), Binomial(5, 0.5)),
    (Geometric(0.5), Bernoulli(0.5)),
    (Bernoulli(0.5), Geometric(1.0)),
    (Bernoulli(0.5), Poisson(0.0)),
    (NegativeBinomial(2.0, 0.5), Categorical(torch.ones(9))),
    (Binomial(2, 0.5), Categorical(torch.tensor([0.5, 0.0, 0.5]))),
    (Poisson(1e-30), Poisson(0.0)),
]


@pytest.mark.parametrize(("p", "q"), INFINITE, ids=str)
def test_mass_where_q_has_none_is_infinite(p: Distribution, q: Distribution) -> None:
    assert kl_divergence(p, q) == torch.inf


CERTAIN: list[tuple[Distribution, Distribution, float]] = [
    (Poisson(0.0), Binomial(5, 0.5), 0.03125),
    (Binomial(6, 0.0), Binomial(5, 0.5), 0.03125),
    (Binomial(6, 1.0), Binomial(9, 0.5), 84 / 512),
    (Bernoulli(1.0), Geometric(0.5), 0.25),
    (Geometric(1.0), Poisson(2.0), 0.1353352832366127),
    (NegativeBinomial(3.0, 0.0), Geometric(0.25), 0.25),
    (Binomial(0, 0.5), Poisson(2.0), 0.1353352832366127),
    (Categorical(torch.tensor([0.0, 0.0, 1.0])), Binomial(4, 0.5), 6 / 16),
]


@pytest.mark.parametrize(("p", "q", "probability"), CERTAIN, ids=str)
def test_a_certain_outcome_costs_its_surprise(p: Distribution, q: Distribution, probability: float) -> None:
    assert kl_divergence(p, q).item() == pytest.approx(-torch.tensor(probability).log().item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_broadcast_and_keep_their_dtype(dtype: torch.dtype) -> None:
    rates = torch.tensor([[1e-3], [2.0], [3e5]], dtype=dtype, requires_grad=True)
    counts = torch.tensor([0.5, 40.0], dtype=dtype, requires_grad=True)
    value = kl_divergence(Poisson(rates), NegativeBinomial(counts, torch.tensor(0.5, dtype=dtype)))
    assert value.shape == (3, 2)
    assert value.dtype == dtype
    for i, j in itertools.product(range(3), range(2)):
        one = kl_divergence(Poisson(rates[i, 0]), NegativeBinomial(counts[j], torch.tensor(0.5, dtype=dtype)))
        assert value[i, j].item() == pytest.approx(one.item(), rel=1e-6 if dtype == torch.float32 else 1e-12)
    for derivatives in torch.autograd.grad(value.sum(), (rates, counts)):
        assert derivatives.dtype == dtype
        assert derivatives.isfinite().all()
    assert kl_divergence(Poisson(rates[:0]), NegativeBinomial(counts, 0.5)).shape == (0, 2)


def test_counts_that_differ_in_some_elements_only() -> None:
    value = kl_divergence(
        Binomial(torch.tensor([2.0, 4.0, 6.0]), 0.3), Binomial(torch.tensor([3.0, 4.0, 5.0]), 0.4)
    )
    same = kl_divergence(Binomial(4.0, 0.3), Binomial(4.0, 0.4))
    assert value[1].item() == pytest.approx(same.item(), rel=1e-5)
    assert value[2] == torch.inf


@dataclass(frozen=True)
class Peaks(IntegerDensity):
    """Half the mass around each of two rates."""

    first: PoissonDensity
    second: PoissonDensity

    def log_density(self, at: Points) -> Tensor:
        return torch.logaddexp(self.first.log_density(at), self.second.log_density(at)) - math.log(2)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        distance = self.second.rate - self.first.rate
        return self.first.rate + distance / 2, distance / 2

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return [*self.first.breakpoints(steps), *self.second.breakpoints(steps)]


def test_breakpoints_show_peaks_much_narrower_than_the_window() -> None:
    first, second, rate = (torch.tensor(x, dtype=torch.float64) for x in (1e5, 1e9, 4e8))
    peaks = Peaks(PoissonDensity(first), PoissonDensity(second))
    found = summed(peaks, PoissonDensity(rate))
    # The peaks do not meet, so each costs its own divergence, less the bit that says which one it is.
    apart = [kl_divergence(Poisson(x), Poisson(rate)) for x in (first, second)]
    true = (apart[0] + apart[1]) / 2 - math.log(2)
    assert found.value.item() == pytest.approx(true.item(), rel=1e-13)
    assert found.unintegrated < 1e-12


def test_the_error_is_honest_when_there_is_no_room_for_more_nodes() -> None:
    first, second, rate = (torch.tensor(x, dtype=torch.float64) for x in (1e5, 3e5, 2e5))
    peaks = Peaks(PoissonDensity(first), PoissonDensity(second))
    good, poor = (summed(PoissonDensity(rate), peaks, n) for n in (100_000, 1))
    assert good.error < 1e-12 * good.value
    assert (poor.value - good.value).abs() <= poor.error + good.error


@pytest.mark.heavy
def test_counts_that_differ_are_noticed_in_a_compiled_graph() -> None:
    def call(x: Tensor) -> Tensor:
        p, q = (Binomial(n, x, validate_args=False) for n in (7, 8))
        return kl_divergence(p, q)

    with pytest.raises(RuntimeError, match="total_count"):
        torch.compile(call, fullgraph=True, backend="aot_eager")(torch.rand(3))


def test_the_method_is_named() -> None:
    same = kl_estimate(Binomial(7, torch.tensor(0.3)), Binomial(7, torch.tensor(0.4)))
    other = kl_estimate(Binomial(7, torch.tensor(0.3)), Binomial(8, torch.tensor(0.4)))
    assert (same.method, other.method) == ("closed_form", "summation")
