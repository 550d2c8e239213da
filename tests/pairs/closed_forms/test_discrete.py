"""Closed forms of the families of counts and classes: values and gradients against mpmath."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from unittest.mock import patch

import mpmath
import pytest
import torch
from hypothesis import given, strategies as st
from mpmath import mpf
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Binomial,
    Categorical,
    Distribution,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
    Poisson,
)

from kullback import kl_divergence
from kullback.pairs.numerics.parameters import given_logits

DIGITS = 150  # enough for 1 - p with p = 1e-44, and for the differences that give the derivatives
COUNT = 7.0

Trial = tuple[str, float]  # "probs" or "logits", and the number


def chances(kind: str, x: mpf) -> tuple[mpf, mpf]:
    """Return the chances of success and of failure."""
    return (x, 1 - x) if kind == "probs" else (1 / (1 + mpmath.exp(-x)), 1 / (1 + mpmath.exp(x)))


def kl_of_rows(p: Sequence[mpf], q: Sequence[mpf]) -> mpf:
    """Return sum p log(p / q)."""
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return mpmath.inf
    return mpmath.fsum(a * mpmath.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


FAMILIES: dict[str, tuple[Callable[..., Distribution], Callable[[tuple[mpf, mpf]], mpf]]] = {
    "Bernoulli": (Bernoulli, lambda p: mpf(1)),
    "Binomial": (lambda **k: Binomial(COUNT, **k), lambda p: mpf(COUNT)),
    "Geometric": (Geometric, lambda p: 1 / p[0]),
    "NegativeBinomial": (lambda **k: NegativeBinomial(COUNT, **k), lambda p: COUNT / p[1]),
}


def true_kl(family: str, p: Trial, q: Trial) -> mpf:
    """Return KL of one trial times the mean number of trials."""
    a, b = (chances(kind, mpf(x)) for kind, x in (p, q))
    return kl_of_rows(a, b) * FAMILIES[family][1](a)


def derivative(f: Callable[[mpf], mpf], kind: str, x: float) -> float:
    """Return the derivative of f at x by a central difference of half the digits."""
    room = min(mpf(x), 1 - mpf(x)) if kind == "probs" else max(abs(mpf(x)), mpf(1))
    h = room * mpf(10) ** (-DIGITS // 3)
    return float((f(mpf(x) + h) - f(mpf(x) - h)) / (2 * h))


def compare(family: str, pairs: list[tuple[Trial, Trial]]) -> None:
    """Check values to 1e-12 and gradients to 1e-10 of a list of pairs with the same parametrisations."""
    kind_p, kind_q = pairs[0][0][0], pairs[0][1][0]
    x, y = (torch.tensor([pair[side][1] for pair in pairs], dtype=torch.float64) for side in (0, 1))
    x, y = x.requires_grad_(), y.requires_grad_()
    make = FAMILIES[family][0]
    value = kl_divergence(make(**{kind_p: x}), make(**{kind_q: y}))
    derivatives = torch.autograd.grad(value.sum(), (x, y))
    same_kind = kind_p == kind_q
    with mpmath.workdps(DIGITS):
        for i, (p, q) in enumerate(pairs):
            if p == q:
                assert value[i] == derivatives[0][i] == derivatives[1][i] == 0, p
                continue
            truth = float(true_kl(family, p, q))
            floor = (
                0.0 if same_kind else 1e-15
            )  # logits and probabilities agree only as far as they are rounded
            assert value[i].item() == pytest.approx(truth, rel=1e-12, abs=floor), (p, q)
            true_p = derivative(lambda v, q=q: true_kl(family, (kind_p, v), q), *p)
            true_q = derivative(lambda v, p=p: true_kl(family, p, (kind_q, v)), *q)
            assert derivatives[0][i].item() == pytest.approx(true_p, rel=1e-10, abs=1e3 * floor), (p, q)
            assert derivatives[1][i].item() == pytest.approx(true_q, rel=1e-10, abs=1e3 * floor), (p, q)


PROBS = [1e-30, 1e-10, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-10, 1 - 2.0**-53]
LOGITS = [-100.0, -40.0, -5.0, -0.5, 0.0, 1.0, 17.0, 40.0, 100.0]
PARAMETERS = {"probs": PROBS, "logits": LOGITS}


@pytest.mark.parametrize("kind_q", PARAMETERS)
@pytest.mark.parametrize("kind_p", PARAMETERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_trials_are_exact_at_any_chances(family: str, kind_p: str, kind_q: str) -> None:
    compare(family, [((kind_p, a), (kind_q, b)) for a in PARAMETERS[kind_p] for b in PARAMETERS[kind_q]])


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_trials_keep_their_digits_where_p_and_q_nearly_agree(family: str, kind: str) -> None:
    factors = [1 + 1e-3, 1 - 1e-6, 1 + 1e-8] if kind == "logits" else [1 - 1e-3, 1 - 1e-6, 1 - 1e-8]
    compare(family, [((kind, a), (kind, a * f)) for a in PARAMETERS[kind] for f in factors if a])


@pytest.mark.parametrize("family", FAMILIES)
def test_random_extreme_chances(family: str) -> None:
    draws = torch.rand(60, 2, dtype=torch.float64)
    compare(family, [(("logits", a), ("logits", b)) for a, b in (200 * draws - 100).tolist()])
    compare(family, [(("probs", a), ("probs", b)) for a, b in (draws**12).tolist()])


RATES = [1e-30, 1e-8, 0.3, 1.0, 50.0, 1e6, 1e10]


def test_poisson_is_exact_at_any_rates() -> None:
    pairs = [(a, b) for a in RATES for b in [*RATES, a * (1 + 1e-4), a * (1 - 1e-8)]]
    x, y = (torch.tensor(side, dtype=torch.float64, requires_grad=True) for side in zip(*pairs, strict=True))
    value = kl_divergence(Poisson(x), Poisson(y))
    by_p, by_q = torch.autograd.grad(value.sum(), (x, y))
    with mpmath.workdps(DIGITS):
        for i, (a, b) in enumerate((mpf(a), mpf(b)) for a, b in pairs):
            assert value[i].item() == pytest.approx(float(a * mpmath.log(a / b) - a + b), rel=1e-12, abs=0), (
                a,
                b,
            )
            assert by_p[i].item() == pytest.approx(float(mpmath.log(a / b)), rel=1e-12, abs=0), (a, b)
            assert by_q[i].item() == pytest.approx(float(1 - a / b), rel=1e-12, abs=0), (a, b)


def test_bernoulli_against_poisson_is_exact() -> None:
    pairs = [(a, b) for a in [*PROBS[:-1], 1e-8] for b in [*RATES, a, a * (1 - 1e-8)]]
    x, y = (torch.tensor(side, dtype=torch.float64, requires_grad=True) for side in zip(*pairs, strict=True))
    value = kl_divergence(Bernoulli(x), Poisson(y))
    by_p, by_q = torch.autograd.grad(value.sum(), (x, y))
    with mpmath.workdps(DIGITS):
        for i, (a, b) in enumerate((mpf(a), mpf(b)) for a, b in pairs):
            truth = a * mpmath.log(a / b) + (1 - a) * mpmath.log(1 - a) + b
            assert value[i].item() == pytest.approx(float(truth), rel=1e-12, abs=0), (a, b)
            by_chance = mpmath.log(a / b) - mpmath.log(1 - a)
            assert by_p[i].item() == pytest.approx(float(by_chance), rel=1e-10, abs=1e-14), (a, b)
            assert by_q[i].item() == pytest.approx(float(1 - a / b), rel=1e-12, abs=0), (a, b)


def rows_of(d: Categorical) -> list[list[mpf]]:
    """Return the probabilities of the classes, of the numbers as they are stored."""
    given_logits = "logits" in vars(d)
    stored = (d.logits if given_logits else d.probs).detach().double().reshape(-1, d.param_shape[-1]).tolist()
    rows = [[mpmath.exp(mpf(x)) if given_logits else mpf(x) for x in row] for row in stored]
    return [[x / mpmath.fsum(row) for x in row] for row in rows]


LOGIT_ROWS = [[0.0, 1.0, -2.0], [0.0, -100.0, -800.0], [3.0, 3.0, -torch.inf], [100.0, 0.0, -100.0]]
PROB_ROWS = [[0.2, 0.3, 0.5], [1e-30, 0.25, 0.75], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize("make", [Categorical, OneHotCategorical, OneHotCategoricalStraightThrough])
@pytest.mark.parametrize("q_rows", [LOGIT_ROWS, PROB_ROWS])
@pytest.mark.parametrize("p_rows", [LOGIT_ROWS, PROB_ROWS])
def test_classes_from_logits_and_probabilities(
    make: Callable[..., Distribution], p_rows: list[list[float]], q_rows: list[list[float]]
) -> None:
    p, q = (
        {"logits" if rows is LOGIT_ROWS else "probs": torch.tensor(rows, dtype=torch.float64)}
        for rows in (p_rows, q_rows)
    )
    p, q = ({k: x.unsqueeze(axis).requires_grad_() for k, x in d.items()} for axis, d in ((1, p), (0, q)))
    value = kl_divergence(make(**p), make(**q))
    assert value.shape == (4, 4)
    with mpmath.workdps(60):
        for i, a in enumerate(rows_of(Categorical(**p))):
            for j, b in enumerate(rows_of(Categorical(**q))):
                assert value[i, j].item() == pytest.approx(float(kl_of_rows(a, b)), rel=1e-12, abs=1e-16), (
                    a,
                    b,
                )
    finite = torch.where(value.isfinite(), value, 0).sum()
    for derivatives in torch.autograd.grad(finite, (*p.values(), *q.values())):
        assert derivatives.isfinite().all()


def test_many_draws_of_classes() -> None:
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.5, 0.3, 0.2])
    one = kl_divergence(Categorical(p), Categorical(q))
    assert torch.allclose(kl_divergence(Multinomial(9, p), Multinomial(9, q)), 9 * one)
    assert kl_divergence(Multinomial(9, p), Multinomial(8, q)) == torch.inf
    assert kl_divergence(Multinomial(0, p), Multinomial(0, torch.tensor([0.0, 0.5, 0.5]))) == 0


@pytest.mark.parametrize("make", [Categorical, OneHotCategorical, Bernoulli, Geometric])
def test_an_expanded_distribution_has_the_probabilities_that_were_given(
    make: Callable[..., Distribution],
) -> None:
    p, q = torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([1e-30, 1.0], dtype=torch.float64)
    before = kl_divergence(make(probs=p), make(probs=q))
    looked_at = make(probs=q)
    assert looked_at.logits.isfinite().all()  # kept from here on, clamped
    shape = (3, *looked_at.batch_shape)
    after = kl_divergence(make(probs=p), looked_at.expand(shape))
    assert torch.equal(after, before.expand(after.shape))
    logits = torch.tensor([0.0, -800.0], dtype=torch.float64)
    kept = make(logits=logits)
    assert kept.probs.isfinite().all()
    after = kl_divergence(make(logits=logits.flip(0)), kept.expand((3, *kept.batch_shape)))
    assert torch.equal(
        after, kl_divergence(make(logits=logits.flip(0)), make(logits=logits)).expand(after.shape)
    )


@pytest.mark.parametrize("make", [Categorical, Bernoulli, Geometric, partial(Binomial, 5)])
def test_logits_that_were_computed_later_are_not_compared(make: Callable[..., Distribution]) -> None:
    x = torch.tensor([0.25, 0.75], dtype=torch.float64)
    with patch("kullback.pairs.numerics.parameters.probs_to_logits", side_effect=AssertionError):
        for name, other in (("probs", "logits"), ("logits", "probs")):
            d = make(**{name: x})
            for each in (d, d.expand((3, *d.batch_shape)), deepcopy(d)):
                assert getattr(each, other).isfinite().all()  # kept from here on
                assert given_logits(each) is (name == "logits")
                assert given_logits(deepcopy(each)) is (name == "logits")


SAME: dict[str, tuple[Callable[[Tensor], Distribution], list[float]]] = {
    "Bernoulli(probs)": (Bernoulli, [0.0, 1e-30, 0.3, 1 - 2.0**-53, 1.0]),
    "Bernoulli(logits)": (lambda x: Bernoulli(logits=x), LOGITS),
    "Binomial(probs)": (lambda x: Binomial(10, x), [0.0, 1e-30, 0.3, 1.0]),
    "Binomial(logits)": (lambda x: Binomial(10, logits=x), LOGITS),
    "Geometric(probs)": (Geometric, [1e-20, 1e-10, 0.3, 1.0]),
    "Geometric(logits)": (lambda x: Geometric(logits=x), LOGITS),
    "NegativeBinomial(probs)": (lambda x: NegativeBinomial(2.5, x), [0.0, 1e-30, 0.3, 0.9]),
    "NegativeBinomial(logits)": (lambda x: NegativeBinomial(2.5, logits=x), LOGITS),
    "Poisson": (Poisson, [0.0, *RATES]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SAME)
def test_a_distribution_and_itself_give_zero_with_zero_gradient(name: str, dtype: torch.dtype) -> None:
    make, values = SAME[name]
    x = torch.tensor(values, dtype=dtype, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    value = kl_divergence(make(x), make(y))
    assert value.dtype == dtype
    assert (value == 0).all()
    for derivatives in torch.autograd.grad(value.sum(), (x, y)):
        assert (derivatives == 0).all()


@pytest.mark.parametrize("name", SAME)
def test_the_edges_of_parameters_have_values_and_gradients_that_are_numbers(name: str) -> None:
    make, values = SAME[name]
    v = torch.tensor(values, dtype=torch.float64)
    x, y = v[:, None].clone().requires_grad_(), v.clone().requires_grad_()
    value = kl_divergence(make(x), make(y))
    assert value.shape == (len(v), len(v))
    assert not value.isnan().any()
    assert (value >= 0).all()
    for derivatives in torch.autograd.grad(torch.where(value.isfinite(), value, 0).sum(), (x, y)):
        assert not derivatives.isnan().any()


@given(
    st.lists(st.floats(-30, 30), min_size=2, max_size=6),
    st.lists(st.floats(-30, 30), min_size=6, max_size=6),
    st.integers(1, 5),
)
def test_independent_draws_add(p: list[float], q: list[float], n: int) -> None:
    a = torch.tensor(p, dtype=torch.float64)
    b = torch.tensor(q[: len(p)], dtype=torch.float64)
    one = kl_divergence(Categorical(logits=a), Categorical(logits=b))
    many = kl_divergence(Multinomial(n, logits=a), Multinomial(n, logits=b))
    assert one >= 0
    assert many.item() == pytest.approx(n * one.item(), rel=1e-12)


F32, F64 = torch.float32, torch.float64


def bernoulli(**k: float) -> Callable[[torch.dtype], Distribution]:
    return lambda dtype: Bernoulli(**{name: torch.tensor(x, dtype=dtype) for name, x in k.items()})


def geometric(**k: float) -> Callable[[torch.dtype], Distribution]:
    return lambda dtype: Geometric(**{name: torch.tensor(x, dtype=dtype) for name, x in k.items()})


def binomial(n: float, **k: float) -> Callable[[torch.dtype], Distribution]:
    return lambda dtype: Binomial(n, **{name: torch.tensor(x, dtype=dtype) for name, x in k.items()})


def categorical(**k: list[float]) -> Callable[[torch.dtype], Distribution]:
    return lambda dtype: Categorical(**{name: torch.tensor(x, dtype=dtype) for name, x in k.items()})


def poisson(rate: float) -> Callable[[torch.dtype], Distribution]:
    return lambda dtype: Poisson(torch.tensor(rate, dtype=dtype))


MIXED = [0.2, 0.3, 0.5]
# What torch 2.13 gets wrong, by its number in the research page: dtype, P, Q, the true value.
WRONG_IN_TORCH = {
    "R2.6 saturated logit": (F32, bernoulli(probs=0.5), bernoulli(logits=17.0), 7.80685286),
    "R2.7 saturated logit": (F32, bernoulli(probs=0.3), bernoulli(logits=20.0), 13.3891355),
    "R2.8 saturated logit": (F32, bernoulli(logits=-2.0), bernoulli(logits=100.0), 87.7143739),
    "R2.9 saturated logit": (F64, bernoulli(probs=0.3), bernoulli(logits=40.0), 27.3891357),
    "R2.10 saturated logit": (F32, bernoulli(probs=0.5), bernoulli(logits=-110.0), 54.3068528),
    "R2.11 saturated logit": (F32, geometric(probs=0.3), geometric(logits=20.0), 44.6304497),
    "R2.12 saturated logit": (F64, geometric(probs=0.3), geometric(logits=40.0), 91.297119),
    "R2.13 saturated logit": (F32, geometric(logits=20.0), geometric(logits=20.0), 0.0),
    "R2.14 saturated logit": (F32, binomial(10, probs=0.3), binomial(10, logits=20.0), 133.891355),
    "R2.15 saturated logit": (F64, binomial(10, probs=0.3), binomial(10, logits=40.0), 273.891357),
    "R2.16 small class": (
        F32,
        categorical(probs=MIXED),
        categorical(logits=[0.0, -100.0, -200.0]),
        128.970346,
    ),
    "R2.17 small class": (F32, categorical(logits=[0.0, 0.0]), categorical(logits=[0.0, -110.0]), 54.3068528),
    "R2.18 small class": (F64, categorical(logits=[0.0, 0.0]), categorical(logits=[0.0, -800.0]), 399.306853),
    "R2.19 certain success": (F32, bernoulli(logits=20.0), bernoulli(probs=1.0), torch.inf),
    "R3.20 clamped": (F32, bernoulli(probs=0.3), bernoulli(probs=1e-10), 6.29689124),
    "R3.21 clamped": (F64, bernoulli(probs=0.3), bernoulli(probs=1e-30), 20.1124015),
    "R3.22 clamped": (F32, categorical(probs=MIXED), categorical(probs=[1e-8, 0.5, 0.5]), 3.20900089),
    "R3.23 clamped": (F32, categorical(probs=MIXED), categorical(probs=[1e-10, 0.5, 0.5]), 4.13003491),
    "R3.24 clamped": (F64, categorical(probs=MIXED), categorical(probs=[1e-20, 0.5, 0.5]), 8.7352051),
    "R3.25 clamped": (F64, geometric(probs=0.3), geometric(probs=1e-20), 44.0154875),
    "R3.26 clamped": (F32, geometric(probs=0.3), geometric(probs=1e-10), 20.9896366),
    "R3.27 clamped": (F32, binomial(10, probs=0.3), binomial(10, probs=1e-10), 62.9689124),
    "R4.28 edge": (F64, binomial(10, probs=1.0), binomial(10, probs=0.3), 12.039728),
    "R4.29 edge": (F64, binomial(10, probs=1.0), binomial(10, probs=1.0), 0.0),
    "R4.30 edge": (F64, binomial(10, probs=0.3), binomial(10, probs=0.0), torch.inf),
    "R4.31 edge": (F32, binomial(10, logits=20.0), binomial(10, logits=20.0), 0.0),
    "R4.32 edge": (F64, binomial(7, probs=0.0), binomial(5, probs=0.4), 2.55412812),
    "R4.33 edge": (F64, geometric(probs=1.0), geometric(probs=1.0), 0.0),
    "R4.34 edge": (F64, poisson(0.0), poisson(2.0), 2.0),
    "R4.35 edge": (F64, poisson(0.0), poisson(0.0), 0.0),
    "R5.36 not implemented": (F64, binomial(10, probs=0.3), binomial(12, probs=0.4), 0.59961922),
    "R6.37 entropy cancels": (F32, geometric(probs=1e-6), geometric(probs=1e-6), 0.0),
    "R6.38 entropy cancels": (F32, geometric(logits=-10.0), geometric(logits=-10.0), 0.0),
    "R6.39 entropy cancels": (F32, geometric(logits=-20.0), geometric(logits=-20.0), 0.0),
    "R6.40 entropy cancels": (F64, geometric(logits=-40.0), geometric(logits=-40.0), 0.0),
    "R6.41 entropy cancels": (F64, geometric(logits=-100.0), geometric(logits=-100.0), 0.0),
    "R6.42 entropy cancels": (F64, geometric(probs=1e-10), geometric(probs=1e-10), 0.0),
    "R6.43 entropy cancels": (F64, geometric(probs=1e-20), geometric(probs=1e-20), 0.0),
    "R9.71 cancels": (F32, poisson(1e6), poisson(1000100.0), 0.00499966669),
    "R9.72 cancels": (F32, poisson(1e6), poisson(1010000.0), 49.6691468),
    "R9.73 cancels": (F64, poisson(1e10), poisson(1.00000001e10), 4.99999997e-7),
    "R9.75 cancels": (F32, binomial(1e6, probs=0.3), binomial(1e6, probs=0.30003), 0.00214008166),
    "R10.83 nearly equal": (
        F32,
        categorical(probs=MIXED),
        categorical(probs=[0.2002, 0.3, 0.4998]),
        1.39948787e-7,
    ),
    "R10.84 nearly equal": (F32, bernoulli(probs=0.3), bernoulli(probs=0.30003), 2.14008166e-9),
    "Poisson(0) has mass at 0 alone": (F64, poisson(0.0), bernoulli(probs=0.3), 0.356674943938732),
}


@pytest.mark.parametrize("name", WRONG_IN_TORCH)
def test_what_torch_gets_wrong_is_right(name: str) -> None:
    dtype, p, q, truth = WRONG_IN_TORCH[name]
    value = kl_divergence(p(dtype), q(dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(truth, rel=1e-8 if dtype == F64 else 3e-7, abs=0)


# Section 3.3 of the research page: dtype, P, Q with the parameter asked for in a list, its true derivative.
LOGIT_P, MASKED = {"logits": [0.0, 1.0, -torch.inf]}, {"logits": [0.5, 0.0, -torch.inf]}
SLOPES = {
    "masked class, p.logits[0]": (F32, Categorical, LOGIT_P, MASKED, ("p", 0), -0.2949179),
    "masked class, p.logits[1]": (
        F64,
        Categorical,
        LOGIT_P,
        {"logits": [0.5, 0.0, 2.0]},
        ("p", 1),
        0.2949179,
    ),
    "underflow f64": (F64, Categorical, {"probs": MIXED}, {"logits": [0.0, 0.0, -800.0]}, ("q", 2), -0.5),
    "underflow f32": (F32, Categorical, {"probs": MIXED}, {"logits": [0.0, 0.0, -110.0]}, ("q", 2), -0.5),
    "saturated f64": (F64, Bernoulli, {"probs": 0.3}, {"logits": 40.0}, ("q", None), 0.7),
    "saturated f32": (F32, Bernoulli, {"probs": 0.3}, {"logits": 20.0}, ("q", None), 0.7),
    "saturated p": (F32, Bernoulli, {"logits": 20.0}, {"logits": -5.0}, ("p", None), 5.152884e-8),
    "clamped": (F32, Bernoulli, {"probs": 0.3}, {"probs": 1e-10}, ("q", None), -3.0000001e9),
    "many trials": (F64, lambda **k: Binomial(10, **k), {"probs": 0.3}, {"logits": 40.0}, ("q", None), 7.0),
    "waiting time": (F64, Geometric, {"probs": 0.3}, {"logits": 40.0}, ("q", None), 7 / 3),
    "the same small logits": (F64, Geometric, {"logits": -30.0}, {"logits": -30.0}, ("p", None), 0.0),
    "the same small chances": (F64, Geometric, {"probs": 1e-10}, {"probs": 1e-10}, ("p", None), 0.0),
}


@pytest.mark.parametrize("name", SLOPES)
def test_gradients_that_torch_gets_wrong_are_right(name: str) -> None:
    dtype, make, p, q, (side, place), truth = SLOPES[name]
    sides = {
        s: {k: torch.tensor(x, dtype=dtype, requires_grad=True) for k, x in given.items()}
        for s, given in (("p", p), ("q", q))
    }
    kl_divergence(make(**sides["p"]), make(**sides["q"])).backward()
    (asked,) = sides[side].values()
    assert asked.grad is not None
    assert not asked.grad.isnan().any()
    found = asked.grad if place is None else asked.grad[place]
    assert found.item() == pytest.approx(truth, rel=1e-6 if dtype == F32 else 1e-7, abs=0)


def test_the_gradient_to_a_small_probability_of_q_is_that_of_the_normalized_weights() -> None:
    # d/dq_0 of sum p log(p / (q / sum q)) is 1 - p_0 / q_0 = 1 - 0.2 / 1e-8.
    q = torch.tensor([1e-8, 0.5, 0.5], requires_grad=True)
    kl_divergence(Categorical(torch.tensor(MIXED)), Categorical(q)).backward()
    assert q.grad is not None
    assert q.grad[0].item() == pytest.approx(-19999999.0, rel=1e-6)


CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Bernoulli": lambda a, b: kl_divergence(Bernoulli(logits=a, validate_args=False), _bernoulli(b)),
    "Binomial": lambda a, b: kl_divergence(
        Binomial(9, logits=a, validate_args=False), Binomial(9, torch.sigmoid(b), validate_args=False)
    ),
    "Geometric": lambda a, b: kl_divergence(
        Geometric(logits=a, validate_args=False), Geometric(torch.sigmoid(b), validate_args=False)
    ),
    "NegativeBinomial": lambda a, b: kl_divergence(
        NegativeBinomial(2.5, logits=a, validate_args=False),
        NegativeBinomial(2.5, logits=b, validate_args=False),
    ),
    "Poisson": lambda a, b: kl_divergence(
        Poisson(a.exp(), validate_args=False), Poisson(b.exp(), validate_args=False)
    ),
    "Bernoulli and Poisson": lambda a, b: kl_divergence(_bernoulli(a), Poisson(b.exp(), validate_args=False)),
    "Categorical": lambda a, b: kl_divergence(
        Categorical(logits=torch.stack([a, b, a * b], -1), validate_args=False),
        Categorical(torch.softmax(torch.stack([b, a, a], -1), -1), validate_args=False),
    ),
    "Multinomial": lambda a, b: kl_divergence(
        Multinomial(4, logits=torch.stack([a, b, a * b], -1), validate_args=False),
        Multinomial(4, logits=torch.stack([b, a, a], -1), validate_args=False),
    ),
}


def _bernoulli(x: Tensor) -> Bernoulli:
    return Bernoulli(torch.sigmoid(x), validate_args=False)


@pytest.mark.heavy
@pytest.mark.parametrize("name", CALLS)
def test_vmap_and_compile_give_the_same(name: str) -> None:
    call = CALLS[name]
    a, b = torch.randn(2, 5, dtype=torch.float64)
    expected = call(a, b)
    assert torch.allclose(torch.vmap(call)(a, b), expected, rtol=1e-12)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(a, b), expected, rtol=1e-12)
    derivatives = torch.func.grad(lambda x: call(x, b).sum())(a)
    x = a.clone().requires_grad_()
    compiled(x, b).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, derivatives, rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("Categorical", "Multinomial")])
def test_batches_broadcast_and_are_computed_element_by_element(name: str) -> None:
    call = CALLS[name]
    a, b = torch.randn(3, 1, dtype=torch.float64), torch.randn(1, 4, dtype=torch.float64)
    table = call(a, b)
    assert table.shape == (3, 4)
    for i in range(3):
        for j in range(4):
            assert table[i, j] == pytest.approx(call(a[i, 0], b[0, j]).item(), rel=1e-13)
    assert call(a[:0], b).shape == (0, 4)


def test_tiny_chances_from_logits_keep_their_digits_without_the_native_kernels() -> None:
    """Which vmap does not use: chances below 1e-30 that nearly agree, from their logits."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return kl_divergence(
            Geometric(logits=a, validate_args=False), Geometric(logits=b, validate_args=False)
        )

    p = torch.tensor([-70.0, -100.0, -300.0, -650.0], dtype=torch.float64)
    q = p * (1 + 1e-8)
    found = torch.vmap(kl)(p, q)
    for x, y, value in zip(p.tolist(), q.tolist(), found.tolist(), strict=True):
        with mpmath.workdps(400):
            d = mpf(x) - mpf(y)  # of chances this small log(p / q), but for a part in 1e30
            assert value == pytest.approx(float(mpmath.expm1(-d) + d), rel=1e-12, abs=0)


def test_counts_that_are_the_same_are_differentiated_by_one_of_them_inside_torch_func_too() -> None:
    count = torch.tensor(2.5, dtype=torch.float64)
    a, b = torch.tensor([[0.3, -1.0], [0.1, 0.5]], dtype=torch.float64)

    def value(n: Tensor, x: Tensor) -> Tensor:
        p = NegativeBinomial(n, logits=x, validate_args=False)
        return kl_divergence(p, NegativeBinomial(count, logits=b, validate_args=False)).sum()

    asked = count.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(asked, a), asked)
    torch.testing.assert_close(torch.func.grad(value)(count, a), expected, rtol=1e-9, atol=0)
    forward = torch.func.jvp(lambda n: value(n, a), (count,), (torch.ones_like(count),))[1]
    torch.testing.assert_close(forward, expected, rtol=1e-9, atol=0)
    by_logits = torch.func.jacfwd(lambda x: value(count, x))(a)
    torch.testing.assert_close(by_logits, torch.func.grad(lambda x: value(count, x))(a), rtol=1e-12, atol=0)
