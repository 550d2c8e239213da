"""Distributions that no rule can serve are refused with a sentence: maps outside of their domain, no numbers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Binomial,
    Categorical,
    Cauchy,
    Distribution,
    ExpTransform,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    Independent,
    Laplace,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    PowerTransform,
    SigmoidTransform,
    StudentT,
    TanhTransform,
    TransformedDistribution,
    Uniform,
)

from kullback import JensenShannon, Renyi, divergence, kl_bounds, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.pairs.clone import parameters_of
from tests.refusals import refused

LOG: Any = ExpTransform().inv


def doubles(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers if len(numbers) > 1 else numbers[0], dtype=torch.float64)


def normal(loc: float = 0.0) -> Normal:
    return Normal(doubles(loc), doubles(1))


def mapped(base: Distribution, *steps: Any) -> TransformedDistribution:
    return TransformedDistribution(base, list(steps))


OUTSIDE = [
    mapped(normal(), LOG),
    mapped(Laplace(doubles(0), doubles(1)), LOG),
    mapped(Uniform(doubles(-1), doubles(1)), LOG),
    mapped(normal(), PowerTransform(doubles(2))),
    mapped(normal(), SigmoidTransform().inv),
    mapped(Gamma(doubles(2), doubles(1)), SigmoidTransform().inv),
    mapped(normal(), TanhTransform().inv),
    mapped(Gamma(doubles(2), doubles(1)), AffineTransform(-1.0, 2.0), LOG),
    mapped(LogNormal(doubles(0), doubles(1)), AffineTransform(1.0, -1.0), LOG),
    mapped(mapped(normal(), AffineTransform(3.0, 1.0)), LOG),
    mapped(MixtureSameFamily(Categorical(doubles(1, 1)), Normal(doubles(0, 1), doubles(1, 1))), LOG),
]
CALLS: list[Callable[[Any, Any], Any]] = [
    kl_divergence,
    lambda p, q: divergence(p, q, JensenShannon()),
    lambda p, q: divergence(p, q, Renyi(2.0)),
    lambda p, q: kl_divergence(p, q, method="monte_carlo"),
    kl_bounds,
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("d", OUTSIDE, ids=lambda d: f"{type(d.base_dist).__name__}{len(d.transforms)}")
def test_mass_outside_of_the_domain_of_a_transform_is_refused(
    d: TransformedDistribution, call: Callable[[Any, Any], Any]
) -> None:
    for p, q in ((d, d), (d, normal()), (normal(), d)):
        with refused(ArgumentValueError, wanted="the domain of"):
            call(p, q)


def test_it_is_refused_inside_of_others_too() -> None:
    logs = mapped(Normal(doubles(0, 1), doubles(1, 1)), LOG)
    for d in (
        Independent(logs, 1),
        MixtureSameFamily(Categorical(doubles(1, 1)), logs),
        mapped(logs, ExpTransform()),
    ):
        with refused(ArgumentValueError, wanted="the domain of"):
            kl_divergence(d, d)


def test_what_stays_in_the_domain_is_answered() -> None:
    for base in (
        LogNormal(doubles(0), doubles(1)),
        Gamma(doubles(2), doubles(1)),
        Uniform(doubles(0), doubles(1)),
    ):
        shifted = mapped(base, AffineTransform(0.3, 2.0), AffineTransform(-0.6, 2.0))
        back = mapped(base, LOG)
        assert float(kl_divergence(back, mapped(base, LOG))) == 0
        assert float(kl_divergence(mapped(shifted, LOG), mapped(shifted, LOG))) == 0
        assert float(kl_divergence(back, Normal(doubles(0.5), doubles(1)))) > 0
    unit = mapped(normal(), SigmoidTransform(), SigmoidTransform().inv)
    assert float(kl_divergence(unit, normal(1.0))) == pytest.approx(0.5, rel=1e-9)


COMPLEX: list[Distribution] = [
    Normal(torch.tensor(0.0 + 1j), 1.0, validate_args=False),
    Laplace(torch.tensor(0.0 + 1j), 1.0, validate_args=False),
    Independent(Normal(torch.tensor([0.0 + 1j]), torch.ones(1), validate_args=False), 1),
    MultivariateNormal(torch.zeros(2) + 1j, scale_tril=torch.eye(2) + 0j, validate_args=False),
    mapped(Normal(torch.tensor(0.0 + 1j), 1.0, validate_args=False), ExpTransform()),
]


@pytest.mark.parametrize("d", COMPLEX, ids=lambda d: type(d).__name__)
def test_complex_parameters_are_refused(d: Distribution) -> None:
    calls: list[Callable[[Any, Any], Any]] = [
        kl_divergence, kl_estimate, kl_bounds, lambda p, q: divergence(p, q, JensenShannon())
    ]  # fmt: skip
    for call in calls:
        with refused(ArgumentValueError, wanted="real parameters", got="complex64"):
            call(d, d)


INF = math.inf
NO_NUMBERS = [
    (lambda: Normal(doubles(INF), 1.0), "finite loc in Normal; got inf"),
    (lambda: Normal(doubles(0), 0.0, validate_args=False), "positive scale in Normal; got 0.0"),
    (lambda: Normal(doubles(0), INF), "positive scale in Normal; got inf"),
    (lambda: Normal(doubles(0), -1.0, validate_args=False), "positive scale in Normal; got -1.0"),
    (lambda: Normal(doubles(0, 1), doubles(1, 0), validate_args=False), r"scale in Normal; got 0.0 at \[1\]"),
    (lambda: Laplace(doubles(-INF), 1.0), "finite loc in Laplace; got -inf"),
    (lambda: Gumbel(doubles(0), 0.0, validate_args=False), "positive scale in Gumbel"),
    (
        lambda: MixtureSameFamily(Categorical(doubles(1, 1)), Normal(doubles(0, INF), 1.0)),
        r"finite loc in Normal; got inf at \[1\]",
    ),
]


@pytest.mark.parametrize(("make", "message"), NO_NUMBERS, ids=[message for _, message in NO_NUMBERS])
def test_parameters_that_are_no_numbers_are_named(make: Callable[[], Distribution], message: str) -> None:
    d = make()
    for p, q, argument in ((d, Cauchy(doubles(0), 1.0), "p"), (StudentT(doubles(3)), d, "q")):
        if argument == "q" and isinstance(d, MixtureSameFamily):
            continue
        with pytest.raises(ArgumentValueError, match=rf"\({argument}=\.\.\.\).*{message}"):
            divergence(p, q, JensenShannon())
    with pytest.raises(ArgumentValueError, match=message):
        kl_divergence(d, Cauchy(doubles(0), 1.0))


def test_rates_and_shapes_too() -> None:
    pairs = [
        (Poisson(doubles(INF), validate_args=False), Geometric(doubles(0.5)), "rate in Poisson; got inf"),
        (
            Gamma(doubles(0), 1.0, validate_args=False),
            HalfCauchy(doubles(1)),
            "concentration in Gamma; got 0.0",
        ),
    ]
    for p, q, message in pairs:
        with pytest.raises(ArgumentValueError, match=message):
            kl_divergence(p, q)


def test_counts_and_probabilities_too_and_in_random_draws() -> None:
    """Parameters that torch accepts with validate_args=False; sums and draws of them ended in errors of torch."""

    def of(family: type[Distribution], *parameters: Any) -> Distribution:
        return family(*parameters, validate_args=False)

    count, share, rate = "total_count in", "numbers from 0 to 1 as probs in", "rate in Poisson"
    cases: list[tuple[Distribution, Distribution, str]] = [
        (of(Binomial, -2, doubles(0.3)), Binomial(3, doubles(0.3)), f"{count} Binomial; got -2"),
        (of(Binomial, doubles(3, -1), doubles(0.3)), Poisson(doubles(1)), r"Binomial; got -1.0 at \[1\]"),
        (of(Binomial, 3, doubles(1.5)), Poisson(doubles(1)), f"{share} Binomial; got 1.5"),
        (of(Bernoulli, doubles(-0.5)), Binomial(3, doubles(0.3)), f"{share} Bernoulli; got -0.5"),
        (of(Geometric, doubles(2)), Poisson(doubles(1)), f"{share} Geometric; got 2"),
        (of(NegativeBinomial, -1, doubles(0.5)), Poisson(doubles(1)), f"{count} NegativeBinomial; got -1"),
        (of(NegativeBinomial, 3, doubles(1.5)), Poisson(doubles(1)), f"{share} NegativeBinomial; got 1.5"),
        (of(Categorical, doubles(-0.5, 1.5)), Binomial(1, doubles(0.3)), f"{share} Categorical; got -0.5"),
        (of(Poisson, doubles(-1)), Geometric(doubles(0.5)), f"{rate}; got -1"),
    ]
    for p, q, message in cases:
        for kind in ("kl", "js", "renyi:0.3"):
            for method in ("auto", "monte_carlo"):
                with pytest.raises(ArgumentValueError, match=message):
                    divergence(p, q, kind, method=method)
        with pytest.raises(ArgumentValueError, match=message):
            kl_divergence(q, p, method="monte_carlo")
    for d, message in (
        (of(Normal, doubles(0), -1.0), "scale in Normal"),
        (of(LogNormal, doubles(0), -1.0), "scale"),
    ):
        with refused(ArgumentValueError, wanted=message):
            kl_divergence(d, d, method="monte_carlo")
    assert float(kl_divergence(Poisson(doubles(0)), Geometric(doubles(0.5)))) == pytest.approx(math.log(2))


PAIRS: list[Callable[[torch.Tensor], tuple[Distribution, Distribution]]] = [
    lambda x: (Normal(x, 1.0, validate_args=False), Cauchy(doubles(0), doubles(1))),
    lambda x: (Poisson(x, validate_args=False), Geometric(doubles(0.5))),
    lambda x: (Normal(doubles(0), doubles(1)), Cauchy(x, 1.0, validate_args=False)),
]


@pytest.mark.sweep
@pytest.mark.parametrize("make", PAIRS)
@pytest.mark.parametrize("kind", [None, JensenShannon()], ids=repr)
def test_integrals_refuse_vmap_and_whole_graphs_with_a_sentence(make: Any, kind: Any) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return kl_divergence(*make(x)) if kind is None else divergence(*make(x), kind)

    x = doubles(1.0, 2.0)
    with refused(NoRuleError, got=r"torch\.func\.vmap", instead="distributions with a batch shape"):
        torch.func.vmap(call)(x)
    with refused(NoRuleError, got="vmap"):
        torch.func.vmap(torch.func.grad(call))(x)
    batch = call(x)
    assert torch.allclose(batch, torch.stack([call(one) for one in x]), rtol=1e-9)  # as the message says
    with pytest.raises(Exception, match=r"is an integral or a sum.*without fullgraph=True"):
        torch.compile(call, fullgraph=True, backend="eager")(x)
    torch.compiler.reset()
    assert torch.allclose(torch.compile(call, backend="eager")(x), batch, rtol=1e-12)
    torch.compiler.reset()


def test_reading_many_parameters_takes_linear_time() -> None:
    steps = [doubles(0.5)] * 600_000
    start = time.process_time()
    assert len(parameters_of(steps)) == len(steps)
    assert time.process_time() - start < 5  # a list that loses its first item each time takes over 20 s
