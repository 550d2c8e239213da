"""Estimates from draws: unbiased, with an honest standard error, and with gradients, for all kinds of P."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Categorical,
    Dirichlet,
    Distribution,
    Gamma,
    HalfNormal,
    Independent,
    LKJCholesky,
    LogisticNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Poisson,
    RelaxedOneHotCategorical,
    TransformedDistribution,
    Uniform,
    Wishart,
)

from kullback import Estimate, kl_divergence, kl_estimate
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.pairs.sampling import quasi_draws
from tests.refusals import refused

DOUBLE = torch.float64
EYE = torch.eye(3, dtype=DOUBLE)


def double(*values: object) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=DOUBLE)


def draw(p: Distribution, q: Distribution, samples: int = 4000, seed: int = 0) -> Estimate:
    generator = torch.Generator().manual_seed(seed)
    return kl_estimate(p, q, method="monte_carlo", draws=samples, generator=generator)


def two_parts(centers: Tensor, weights: Tensor | None = None) -> MixtureSameFamily:
    return MixtureSameFamily(
        Categorical(double(0.3, 0.7) if weights is None else weights), Normal(centers, 1.0)
    )


PAIRS: dict[str, tuple[Distribution, Distribution]] = {
    "reparameterized": (Normal(double(0.0, 2.0), 1.0), Normal(double(0.3), 2.0)),
    "close": (MultivariateNormal(torch.zeros(3, dtype=DOUBLE), EYE), MultivariateNormal(double([0.05] * 3), EYE)),
    "with a score": (Poisson(double(3.0, 0.5)), Poisson(double(3.5))),
    "classes": (Categorical(double(0.2, 0.3, 0.5)), Categorical(double(0.3, 0.3, 0.4))),
    "classes that P has not": (Categorical(double(0.2, 0.8, 0.0)), Categorical(double(0.3, 0.3, 0.4))),
    "a narrower support": (HalfNormal(double(1.0)), Normal(double(0.0), 1.5)),
    "a support that is not stated": (
        TransformedDistribution(HalfNormal(double(1.0)), [AffineTransform(0.0, 1.0)]),
        Normal(double(0.0), 1.5),
    ),
    "bounded": (Uniform(double(0.0), 1.0), Normal(double(0.0), 1.0)),
    "simplex": (Dirichlet(double(1.0, 2.0, 3.0)), Dirichlet(double(2.0, 2.0, 3.0))),
    "matrices": (Wishart(double(6.0), EYE), Wishart(double(7.0), 2 * EYE)),
    "correlations, which torch draws wrongly": (LKJCholesky(4, double(1.5)), LKJCholesky(4, double(1.0))),
    "many correlations": (LKJCholesky(5, double(0.5, 3.0)), LKJCholesky(5, double(2.0))),
    "mixture": (two_parts(double(-3.0, 2.0)), Normal(double(0.0), 3.0)),
    "mixture with an empty part": (
        MixtureSameFamily(Categorical(double(0.3, 0.7, 0.0)), Normal(double(-3.0, 2.0, 50.0), 1.0)),
        two_parts(double(-2.0, 2.0)),
    ),
    "mixture of counts": (
        MixtureSameFamily(Categorical(double(0.3, 0.7)), Poisson(double(3.0, 6.0))),
        Poisson(double(5.0)),
    ),
    "relaxed": (
        RelaxedOneHotCategorical(double(0.5), logits=double(0.0, 1.0, -1.0)),
        RelaxedOneHotCategorical(double(0.5), logits=double(1.0, 1.0, -1.0)),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Singular sample")
@pytest.mark.parametrize("name", PAIRS)
def test_estimates_are_within_their_errors(name: str) -> None:
    p, q = PAIRS[name]
    found = draw(p, q)
    assert found.method == "monte_carlo"
    assert found.standard_error is not None
    error = (found.value - _truth(p, q)).abs()
    assert (error <= 4 * found.standard_error).all(), (error / found.standard_error, found)
    assert (found.standard_error < 0.1 * (0.2 + found.value)).all()


def _truth(p: Distribution, q: Distribution) -> Tensor:
    if isinstance(p, TransformedDistribution) and isinstance(p.base_dist, HalfNormal):
        p = p.base_dist
    return kl_divergence(p, q)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["reparameterized", "with a score", "mixture", "correlations, which torch draws wrongly"]
)
def test_standard_errors_are_those_of_repeated_estimates(name: str) -> None:
    p, q = PAIRS[name]
    found = [draw(p, q, 400, seed) for seed in range(60)]
    values, errors = (torch.stack([getattr(x, part) for x in found]) for part in ("value", "standard_error"))
    spread = values.std(0) / errors.mean(0)
    assert (spread > 0.7).all(), spread
    assert (spread < 1.4).all(), spread
    assert ((values.mean(0) - kl_divergence(p, q)).abs() < 4 * values.std(0) / 60**0.5).all()


def test_the_same_seed_gives_the_same_number_and_leaves_the_global_one_alone() -> None:
    p, q = PAIRS["mixture"]
    before = torch.get_rng_state()
    first, second, other = draw(p, q, 100, 1), draw(p, q, 100, 1), draw(p, q, 100, 2)
    assert torch.equal(first.value, second.value)
    assert not torch.equal(first.value, other.value)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(0)
    free = kl_divergence(p, q, method="monte_carlo", draws=100)
    torch.manual_seed(0)
    assert torch.equal(free, kl_divergence(p, q, method="monte_carlo", draws=100))


def test_without_a_generator_the_global_one_is_drawn_from_never_seeded() -> None:
    p, q = PAIRS["mixture"]
    after: list[torch.Tensor] = []
    with torch.random.fork_rng():
        for seed in (0, 1):
            torch.manual_seed(seed)
            first, second = (kl_divergence(p, q, method="monte_carlo", draws=100) for _ in range(2))
            assert not torch.equal(first, second)
            after.append(torch.get_rng_state())
    assert not torch.equal(*after)


def test_the_control_variate_wins_where_p_and_q_are_close_and_costs_nothing_where_they_are_far() -> None:
    close = MultivariateNormal(torch.zeros(8, dtype=DOUBLE), torch.eye(8, dtype=DOUBLE))
    for shift, gain in ((0.02, 5.0), (1.0, 0.95)):
        q = MultivariateNormal(torch.full((8,), shift, dtype=DOUBLE), torch.eye(8, dtype=DOUBLE))
        torch.manual_seed(0)
        x = close.sample((1000,))
        plain = (close.log_prob(x) - q.log_prob(x)).std() / 1000**0.5
        assert plain / draw(close, q, 1000).standard_error > gain


FROM_NORMALS: dict[str, tuple[Distribution, Distribution]] = {
    "number": (Normal(double(0.0), 1.0), Normal(double(0.5), 1.3)),
    "vector": (
        MultivariateNormal(double(0.0, 1.0, 2.0), EYE + 0.3),
        MultivariateNormal(double(0.5, 1.0, 2.0), EYE),
    ),
    "factors": (
        LowRankMultivariateNormal(
            double(0.0, 1.0, 2.0), double([[1.0], [0.5], [-1.0]]), double(1.0, 2.0, 1.0)
        ),
        MultivariateNormal(double(0.5, 1.0, 2.0), 2 * EYE),
    ),
    "rows": (
        Independent(Normal(torch.zeros(2, 3, dtype=DOUBLE), 1.0), 2),
        Independent(Normal(torch.full((2, 3), 0.4, dtype=DOUBLE), 1.0), 2),
    ),
    "mapped": (
        LogisticNormal(torch.zeros(2, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)),
        LogisticNormal(torch.zeros(2, dtype=DOUBLE) + 0.3, 1.5 * torch.ones(2, dtype=DOUBLE)),
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", FROM_NORMALS)
def test_draws_made_from_normal_numbers_are_quasi_random(name: str) -> None:
    p, q = FROM_NORMALS[name]
    torch.manual_seed(0)
    x = p.sample((4096,))
    plain = (p.log_prob(x) - q.log_prob(x)).std() / 4096**0.5
    found = [draw(p, q, 4096, seed) for seed in range(20)]
    values, errors = (
        torch.stack([getattr(one, part) for one in found]) for part in ("value", "standard_error")
    )
    assert errors.mean() < plain / 3
    assert 0.6 < values.std() / errors.mean() < 1.5
    assert (values.mean() - kl_divergence(p, q)).abs() < 4 * values.std() / 20**0.5
    assert x.shape[1:] == quasi_draws(p, 4096).shape[1:]


def test_equal_distributions_are_at_0_with_an_error_of_0() -> None:
    for p in (Normal(double(1.0), 2.0), Poisson(double(3.0)), two_parts(double(0.0, 1.0))):
        found = draw(p, p, 100)
        assert found.value == 0
        assert found.standard_error == 0


# One parameter of P and one of Q, for each way of drawing.
GRADIENTS = {
    "reparameterized": (lambda a, b: (Normal(a, 1.3), Normal(b, 2.0)), 0.5, 0.1),
    "reparameterized gamma": (lambda a, b: (Gamma(a, 1.0), Gamma(b, 1.5)), 2.0, 3.0),
    "score": (lambda a, b: (Poisson(a), Poisson(b)), 3.0, 4.0),
    "trial": (lambda a, b: (Bernoulli(a), Bernoulli(b)), 0.3, 0.6),
    "correlations": (lambda a, b: (LKJCholesky(3, a), LKJCholesky(3, b)), 1.5, 2.5),
    "centers of a mixture": (
        lambda a, b: (two_parts(torch.stack([a, a + 4])), Normal(b, 3.0)),
        -1.0,
        0.5,
    ),
    "weights of a mixture": (
        lambda a, b: (
            two_parts(double(-2.0, 2.0), torch.stack([a, 1 - a])),
            two_parts(double(-2.0, 2.5), torch.stack([b, 1 - b])),
        ),
        0.3,
        0.6,
    ),
    "mixture of counts": (
        lambda a, b: (
            MixtureSameFamily(Categorical(torch.stack([a, 1 - a])), Poisson(torch.stack([4 * a, 6 + a]))),
            Poisson(b),
        ),
        0.4,
        5.0,
    ),
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_unbiased(name: str) -> None:
    make, at_p, at_q = GRADIENTS[name]
    a, b = double(at_p).requires_grad_(), double(at_q).requires_grad_()
    exact = torch.autograd.grad(kl_divergence(*make(a, b)), (a, b))
    found = torch.stack(
        [torch.stack(torch.autograd.grad(draw(*make(a, b), 500, seed).value, (a, b))) for seed in range(40)]
    )
    error = found.std(0) / 40**0.5
    assert ((found.mean(0) - torch.stack(exact)).abs() <= 4 * error + 1e-12).all(), (
        found.mean(0),
        exact,
        error,
    )


def test_gradients_vanish_draw_by_draw_where_p_is_q() -> None:
    for make, at, _ in (GRADIENTS["reparameterized"], GRADIENTS["reparameterized gamma"]):
        a = double(at).requires_grad_()
        p = make(a, a.detach())[0]
        q = type(p)(*(getattr(p, name).detach() for name in p.arg_constraints))
        (gradient,) = torch.autograd.grad(draw(p, q, 50).value, a)
        assert gradient.abs() < 1e-14


def test_mass_that_q_has_not_is_infinite_without_nan() -> None:
    for p, q in (
        (Normal(double(0.0).requires_grad_(), 1.0), HalfNormal(double(1.0))),
        (Normal(double(0.0).requires_grad_(), 1.0), Gamma(double(1.0), 1.0)),
        (Uniform(double(0.0), double(2.0).requires_grad_()), Uniform(double(0.0), 1.0)),
        (Poisson(double(3.0).requires_grad_()), Bernoulli(double(0.5))),
    ):
        found = draw(p, q, 100)
        assert found.value == torch.inf
        leaf = next(x for x in vars(p).values() if isinstance(x, Tensor) and x.requires_grad)
        if found.value.requires_grad:  # the density of a uniform distribution does not depend on the draw
            found.value.backward()
            assert leaf.grad is None or not leaf.grad.isnan().any()


def test_batches_broadcast_and_dtypes_stay() -> None:
    p = Independent(Normal(torch.zeros(5, 1, 2), 1.0), 1)
    q = Independent(Normal(torch.ones(3, 2), 1.0), 1)
    found = draw(p, q, 500)
    assert found.value.shape == found.standard_error.shape == (5, 3)
    assert found.value.dtype == torch.float32
    mixed = MixtureSameFamily(Categorical(torch.ones(4, 1, 2)), Normal(torch.zeros(4, 1, 2), 1.0))
    assert draw(mixed, Normal(torch.zeros(3), 1.0), 50).value.shape == (4, 3)


def test_distributions_without_a_formula_are_estimated() -> None:
    p, q = (
        LogisticNormal(torch.zeros(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE)),
        Dirichlet(torch.ones(4, dtype=DOUBLE)),
    )
    with refused(NoRuleError, instead="monte_carlo"):
        kl_divergence(p, q)
    assert draw(p, q).value == pytest.approx(0.391, abs=0.03)


def test_too_few_draws_and_missing_densities_are_errors() -> None:
    p = Normal(double(0.0), 1.0)
    with refused(ArgumentValueError, argument="draws"):
        draw(p, p, 3)

    class Silent(Distribution):
        support = p.support

        def __init__(self) -> None:
            super().__init__(validate_args=False)

    with refused(NoRuleError, instead="log_prob"):
        draw(p, Silent())
