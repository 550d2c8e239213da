"""The closed forms in C++ between two families, of subclasses and of independent dimensions: those of plain torch."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    Independent,
    Laplace,
    Normal,
    Pareto,
    Poisson,
    Uniform,
    constraints,
    register_kl as register_with_torch,
)

from kullback import kl_divergence, register_kl
from kullback.kernels.native import library
from kullback.pairs import native_forms, registry as closed_forms

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Make = Callable[..., Distribution]
BATCH = 700  # no whole number of blocks


def size(spread: float) -> Callable[[int, torch.Generator], Tensor]:
    return lambda n, generator: (spread * torch.randn(n, dtype=torch.float64, generator=generator)).exp()


def place(n: int, generator: torch.Generator) -> Tensor:
    return 3 * torch.randn(n, dtype=torch.float64, generator=generator)


def share(n: int, generator: torch.Generator) -> Tensor:
    return place(n, generator).sigmoid()


def logit(n: int, generator: torch.Generator) -> Tensor:
    """Logits of all sizes, some near 0 and some near the ends."""
    sign = torch.rand(n, dtype=torch.float64, generator=generator).round() * 2 - 1
    return sign * size(3)(n, generator).clamp(max=300)


def start(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=generator)


def width(n: int, generator: torch.Generator) -> Tensor:
    return start(n, generator) ** 4 * 10 + 1e-6


def of(family: type[Distribution], *names: str) -> Make:
    return lambda *at: family(**dict(zip(names, at, strict=True)), validate_args=False)


def uniform(low: Tensor, width: Tensor) -> Distribution:
    return Uniform(low, low + width, validate_args=False)


def inside(low: Tensor, share: Tensor) -> Distribution:
    """An interval within [0, 1], which may begin at 0 and end at 1."""
    ends = low.clamp(0.1, 0.9) - 0.1, (low + share).clamp(0.2, 0.9) + 0.1
    return Uniform(*ends, validate_args=False)


def around_unit(low: Tensor, width: Tensor) -> Distribution:
    return Uniform(-low, 1 + width, validate_args=False)


def by_probs(probs: Tensor) -> Distribution:
    """A ContinuousBernoulli, also of probabilities that torch refuses."""
    made = ContinuousBernoulli(probs=torch.full_like(probs, 0.3), validate_args=False)
    made.probs = probs
    return made


NORMAL = (of(Normal, "loc", "scale"), (place, size(1)))
LAPLACE = (of(Laplace, "loc", "scale"), (place, size(1)))
GUMBEL = (of(Gumbel, "loc", "scale"), (place, size(0.5)))
GAMMA = (of(Gamma, "concentration", "rate"), (size(2), size(2)))
EXPONENTIAL = (of(Exponential, "rate"), (size(2),))
BETA = (of(Beta, "concentration1", "concentration0"), (size(2), size(2)))
PARETO = (of(Pareto, "scale", "alpha"), (size(1), lambda n, g: 2.01 + size(2)(n, g)))
UNIFORM = (uniform, (start, width))
LOW = (of(Pareto, "scale", "alpha"), (lambda n, g: 1e-3 * (1 + start(n, g)), size(1)))
POISSON = (of(Poisson, "rate"), (size(2),))
BY_LOGITS = (of(ContinuousBernoulli, "logits"), (logit,))
BY_PROBS = (by_probs, (share,))
WIDE_NORMAL = (of(Normal, "loc", "scale"), (place, size(5)))

PAIRS: dict[str, tuple[tuple[Make, tuple[Callable[..., Tensor], ...]], ...]] = {
    "Normal || Laplace": (NORMAL, LAPLACE),
    "Laplace || Normal": (LAPLACE, WIDE_NORMAL),
    "Normal || Gumbel": (NORMAL, (GUMBEL[0], (place, lambda n, g: 2 + size(1)(n, g)))),
    "Gumbel || Normal": (GUMBEL, WIDE_NORMAL),
    "Uniform || Normal": (UNIFORM, WIDE_NORMAL),
    "Uniform || Exponential": (UNIFORM, EXPONENTIAL),
    "Uniform || Gumbel": (UNIFORM, (GUMBEL[0], (place, lambda n, g: 0.3 + size(1)(n, g)))),
    "Uniform || Pareto": (UNIFORM, LOW),
    "Uniform || Gamma": (UNIFORM, GAMMA),
    "Uniform || Beta": ((inside, (start, start)), BETA),
    "Gamma || Normal": (GAMMA, WIDE_NORMAL),
    "Gamma || Gumbel": (GAMMA, GUMBEL),
    "Exponential || Normal": (EXPONENTIAL, WIDE_NORMAL),
    "Exponential || Gumbel": (EXPONENTIAL, GUMBEL),
    "Exponential || Gamma": (EXPONENTIAL, GAMMA),
    "Gamma || Exponential": (GAMMA, EXPONENTIAL),
    "Beta || Gamma": (BETA, GAMMA),
    "Beta || Exponential": (BETA, EXPONENTIAL),
    "Beta || Normal": (BETA, WIDE_NORMAL),
    "Beta || Uniform": (BETA, (around_unit, (start, width))),
    "Pareto || Gamma": (PARETO, GAMMA),
    "Pareto || Exponential": (PARETO, EXPONENTIAL),
    "Pareto || Normal": (PARETO, WIDE_NORMAL),
    "Bernoulli(probs) || Poisson": ((of(Bernoulli, "probs"), (share,)), POISSON),
    "Bernoulli(logits) || Poisson": ((of(Bernoulli, "logits"), (place,)), POISSON),
    **{
        f"{p} || {q}".replace("CB", f"ContinuousBernoulli({given})"): (
            cb if p == "CB" else other,
            cb if q == "CB" else other,
        )
        for given, cb in (("logits", BY_LOGITS), ("probs", BY_PROBS))
        for p, q, other in (
            ("CB", "CB", cb),
            ("CB", "Exponential", EXPONENTIAL),
            ("CB", "Normal", WIDE_NORMAL),
            ("CB", "Uniform", (around_unit, (start, width))),
            ("Uniform", "CB", (inside, (start, start))),
            ("Beta", "CB", BETA),
        )
    },
}
ALL = pytest.mark.parametrize("name", PAIRS)


def drawn(name: str, n: int = BATCH, seed: int = 0) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[source(n, generator) for source in sources] for _, sources in PAIRS[name]]


def answered(name: str, at: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """The value, and the gradient by each number in units of it, as `kl_divergence` has them."""
    leaves = [[x.detach().clone().requires_grad_() for x in side] for side in at]
    p, q = (make(*side) for (make, _), side in zip(PAIRS[name], leaves, strict=True))
    value = kl_divergence(p, q)
    flat = [x for side in leaves for x in side]
    gradients = torch.autograd.grad(
        torch.where(value.isfinite(), value, 0).sum(), flat, materialize_grads=True
    )
    return value.detach(), *(g * x.detach().abs() for g, x in zip(gradients, flat, strict=True))


def plainly(name: str, at: list[list[Tensor]]) -> tuple[Tensor, ...]:
    with patch.object(native_forms, "_is_available", lambda: False):
        return answered(name, at)


def is_fused(name: str, at: list[list[Tensor]]) -> bool:
    p, q = (make(*side) for (make, _), side in zip(PAIRS[name], at, strict=True))
    return closed_forms.fused_divergence(p, q) is not None


@ALL
def test_values_and_gradients_are_those_of_plain_torch(name: str) -> None:
    at = drawn(name)
    assert is_fused(name, at)
    found, expected = answered(name, at), plainly(name, at)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-13)
    # Terms of a gradient cancel; each is exact to 12 digits of the largest that the value moves by.
    natural = 1 + torch.stack([expected[0].nan_to_num(posinf=0), *(x.abs() for x in expected[1:])]).amax(0)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert bool(((ours - theirs).abs() <= 1e-11 * natural).all()), (ours - theirs).abs().max()


@ALL
def test_float32_is_float64_rounded(name: str) -> None:
    at = [[x.float() for x in side] for side in drawn(name)]
    assert is_fused(name, at)
    found = answered(name, at)[0]
    exact = answered(name, [[x.double() for x in side] for side in at])[0]
    assert found.dtype == torch.float32
    if "Uniform" not in name:  # there the ends are sums, rounded to float32
        torch.testing.assert_close(found, exact.float(), rtol=3e-7, atol=0)


@ALL
@pytest.mark.parametrize("number", [1e90, torch.inf, torch.nan])
def test_parameters_beyond_the_range_are_left_to_plain_torch(name: str, number: float) -> None:
    for side, (make, _) in enumerate(PAIRS[name]):
        at = drawn(name, 3)
        at[side][-1][1] = number
        assert not is_fused(name, at) or make is inside


@pytest.mark.parametrize(
    ("p", "q", "infinite"),
    [
        (lambda x: Uniform(x, x + 1), lambda x: Exponential(torch.ones_like(x)), [True, False, False]),
        (lambda x: Uniform(x, x + 1), lambda x: Gamma(torch.ones_like(x), 2.0), [True, False, False]),
        (lambda x: Uniform(x, x + 1), lambda x: Beta(torch.ones_like(x), 2.0), [True, False, True]),
        (lambda x: Uniform(x, x + 1), lambda x: Pareto(torch.full_like(x, 0.1), 2.0), [True, True, False]),
        (lambda x: Beta(torch.ones_like(x), 2.0), lambda x: Uniform(x, 1.5 - x), [False, False, True]),
        (
            lambda x: Pareto(torch.ones_like(x), 1.5 + x),
            lambda x: Gamma(torch.ones_like(x), 2.0),
            [True, False, False],
        ),
        (
            lambda x: Pareto(torch.ones_like(x), 2 + x),
            lambda x: Normal(torch.ones_like(x), 2.0),
            [True, True, False],
        ),
    ],
)
def test_mass_outside_of_q_s_support_and_tails_without_moments_are_infinite(
    p: Make, q: Make, infinite: list[bool]
) -> None:
    x = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    value = closed_forms.fused_divergence(p(x), q(x))
    assert value is not None
    assert value.isinf().tolist() == infinite
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert not bool(gradient.isnan().any())
    assert not bool(gradient[torch.tensor(infinite)].any())


def test_an_interval_that_begins_at_0_has_the_finite_part_of_its_gradient() -> None:
    for q in (Beta(torch.tensor([2.0, 0.5]).double(), 3.0), Gamma(torch.tensor([2.0, 0.5]).double(), 3.0)):
        gradients: list[Tensor] = []
        for is_available in (True, False):
            ends = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
            low, high = (x.requires_grad_() for x in ends)
            with patch.object(native_forms, "_is_available", lambda is_available=is_available: is_available):
                value = kl_divergence(Uniform(low, high), q)
            gradients.append(torch.stack(torch.autograd.grad(value.sum(), (low, high))))
        torch.testing.assert_close(*gradients)


# ---- Subclasses and independent dimensions.


class Own(Normal):
    """A subclass that changes nothing of what a Normal is."""


class Positive(Normal):
    """A subclass that says it has another support."""

    support = constraints.positive


def test_subclasses_are_served_as_their_family() -> None:
    p, q = Own(torch.zeros(3), torch.ones(3)), Normal(torch.ones(3), 2 * torch.ones(3))
    expected = kl_divergence(Normal(p.loc, p.scale), q)
    for left, right in ((p, q), (p, Own(q.loc, q.scale))):
        found = closed_forms.fused_divergence(left, right)
        assert found is not None
        assert torch.equal(found, expected)
    assert closed_forms.fused_divergence(Positive(0.0, 1.0), Normal(0.0, 1.0)) is None


@pytest.mark.usefixtures("registered_rules")
def test_a_rule_for_a_subclass_comes_first_whoever_has_it() -> None:
    p, q = Own(0.0, 1.0), Own(1.0, 1.0)
    assert closed_forms.fused_divergence(p, q) is not None

    @register_with_torch(Own, Own)
    def kl_own_own(p: Own, q: Own) -> Tensor:
        return p.loc * 0 + 7

    assert float(kl_divergence(p, q)) == 7

    @register_kl(Own, Own)
    def kl_of_user(p: Own, q: Own) -> Tensor:
        return p.loc * 0 + 8

    assert float(kl_divergence(p, Own(2.0, 1.0))) in (7, 8)
    assert float(kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))) == 0.5


def test_independent_dimensions_are_summed() -> None:
    generator = torch.Generator().manual_seed(0)
    loc = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    p, q = Normal(loc, torch.ones_like(loc)), Normal(torch.zeros(3, 2).double(), torch.tensor(2.0).double())
    for dimensions, shape in ((1, (4, 3)), (2, (4,))):
        found = closed_forms.fused_divergence(Independent(p, dimensions), Independent(q, dimensions))
        assert found is not None
        assert found.shape == shape
        expected = kl_divergence(p, q).flatten(-dimensions).sum(-1)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(x.sum(), loc)[0] for x in (found, expected)))
    assert closed_forms.fused_divergence(Independent(p, 1), Independent(q, 2)) is None
