"""Wrapped distributions: independent dimensions, transforms, mixtures, and the bounds for mixtures."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings, strategies as st
from mpmath import mpf
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Bernoulli,
    Categorical,
    CorrCholeskyTransform,
    Distribution,
    ExpTransform,
    Gamma,
    Independent,
    LogNormal,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    OneHotCategorical,
    Poisson,
    ReshapeTransform,
    SigmoidTransform,
    StudentT,
    TanhTransform,
    TransformedDistribution,
    Uniform,
)
from torch.distributions.transforms import AbsTransform, PowerTransform, SoftplusTransform

from kullback import divergence, kl_divergence, kl_estimate
from kullback.errors import ArgumentTypeError, NoRuleError
from kullback.pairs.bounds import Bounds, kl_bounds
from tests.refusals import refused

DOUBLE = torch.float64


def double(*values: object) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else values, dtype=DOUBLE)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def normals(seed: int, *shape: int) -> Normal:
    return Normal(numbers(seed, *shape), numbers(seed + 1, *shape).exp())


def mixture(weights: list[float], centers: list[float], scales: list[float]) -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(double(weights)), Normal(double(centers), double(scales)))


# Independent


def test_independent_dimensions_add_up() -> None:
    p, q = normals(1, 2, 3, 4), normals(3, 3, 4)
    each = kl_divergence(p, q)
    for dimensions in (1, 2):
        value = kl_divergence(Independent(p, dimensions), Independent(q, dimensions))
        torch.testing.assert_close(value, each.flatten(-dimensions).sum(-1))
    batch = Independent(normals(1, 5, 1, 3), 1), Independent(normals(3, 4, 3), 1)
    assert kl_divergence(*batch).shape == (5, 4)


def test_independent_wrappers_may_be_nested_differently() -> None:
    p, q = normals(1, 3, 4), normals(3, 3, 4)
    nested = Independent(Independent(q, 1), 1)
    torch.testing.assert_close(kl_divergence(Independent(p, 2), nested), kl_divergence(p, q).sum())


def test_independent_rows_of_normal_vectors_meet_independent_numbers() -> None:
    p = Independent(normals(1, 2, 3), 2)
    root = torch.linalg.cholesky(torch.eye(3, dtype=DOUBLE) + 0.3)
    rows = MultivariateNormal(numbers(5, 2, 3), scale_tril=root)
    q = Independent(rows, 1)
    one_by_one = kl_divergence(
        Independent(p.base_dist.base_dist if hasattr(p.base_dist, "base_dist") else p.base_dist, 1), rows
    )
    torch.testing.assert_close(kl_divergence(p, q), one_by_one.sum())


# TransformedDistribution


def test_equal_injective_maps_change_nothing() -> None:
    p, q = normals(1, 3), normals(3, 3)
    base = kl_divergence(p, q)
    for maps in (
        [ExpTransform()],
        [AffineTransform(double(1.0), double(-2.0)), SigmoidTransform()],
        [TanhTransform(), AffineTransform(0.0, 3.0)],
    ):
        value = kl_divergence(TransformedDistribution(p, maps), TransformedDistribution(q, maps))
        assert torch.equal(value, base)
    assert torch.equal(kl_divergence(LogNormal(p.loc, p.scale), LogNormal(q.loc, q.scale)), base)


def test_maps_that_change_the_shape_of_events_keep_the_batch() -> None:
    p, q = (Independent(normals(i, 2, 6), 1) for i in (1, 3))
    expected = kl_divergence(p, q)
    for maps in (
        [[ReshapeTransform((6,), (2, 3))] for _ in range(2)],
        [[CorrCholeskyTransform()] for _ in range(2)],
    ):
        value = kl_divergence(TransformedDistribution(p, maps[0]), TransformedDistribution(q, maps[1]))
        assert torch.equal(value, expected)


def test_different_maps_go_to_quadrature() -> None:
    p = TransformedDistribution(Normal(double(0.3), double(0.5)), [AffineTransform(0.0, 2.0), ExpTransform()])
    q = LogNormal(double(0.0), double(1.0))
    estimate = kl_estimate(p, q)
    assert estimate.method == "closed_form"  # an affine map of a Normal is another Normal
    torch.testing.assert_close(estimate.value, kl_divergence(Normal(double(0.6), double(1.0)), q.base_dist))
    squared = TransformedDistribution(LogNormal(double(0.3), double(0.5)), [PowerTransform(double(2.0))])
    torch.testing.assert_close(kl_divergence(squared, q), estimate.value)
    softened = TransformedDistribution(Normal(double(0.3), 0.5), [SoftplusTransform()])
    assert kl_estimate(softened, q).method == "quadrature"
    logit_p = TransformedDistribution(Normal(double(0.3), double(0.5)), [SigmoidTransform()])
    logit_q = TransformedDistribution(
        TransformedDistribution(Normal(double(0.0), double(2.0)), [AffineTransform(1.0, 0.5)]),
        [SigmoidTransform()],
    )
    torch.testing.assert_close(
        kl_divergence(logit_p, logit_q), kl_divergence(Normal(double(0.3), 0.5), Normal(double(1.0), 1.0))
    )


def test_maps_of_independent_numbers_are_independent_mapped_numbers() -> None:
    loc, scale = double(0.3, 1.0).requires_grad_(), double(0.5, 0.9)
    a, b = double(2.0, 3.0), double(1.0, 1.5)
    p = TransformedDistribution(Independent(Normal(loc, scale), 1), [ExpTransform()])
    q = Independent(Gamma(a, b), 1)
    # E log p and E log q of a log-normal P and a gamma Q.
    mean = torch.exp(loc + scale**2 / 2)
    of_p = -torch.log(scale) - math.log(2 * math.pi * math.e) / 2 - loc
    expected = (of_p - a * torch.log(b) + torch.lgamma(a) - (a - 1) * loc + b * mean).sum()
    value = kl_divergence(p, q)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=0)
    gradients = [torch.autograd.grad(x, loc)[0] for x in (value, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=0)
    both_ways = value + kl_divergence(q, p)
    torch.testing.assert_close(divergence(q, p, "jeffreys"), both_ways, rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ["kl", "jeffreys", "renyi:0.5", "chi2", "hellinger"])
def test_a_shift_of_vectors_is_a_shift_of_their_numbers(kind: str) -> None:
    shift, loc, factor = double(0.1, -0.4), double(0.3, 1.0), double(1.2, 0.8)
    p = TransformedDistribution(Normal(loc, double(1.0, 1.1)), [AffineTransform(shift, factor, event_dim=1)])
    shifted = Independent(Normal(shift + factor * loc, factor * double(1.0, 1.1)), 1)
    q = Independent(Normal(double(0.0, 0.0), double(1.5, 1.5)), 1)
    for sides in ((p, q), (q, p)):
        plain = [shifted if side is p else side for side in sides]
        torch.testing.assert_close(divergence(*sides, kind), divergence(*plain, kind), rtol=1e-9, atol=0)


def test_a_map_that_is_not_injective_does_not_cancel() -> None:
    p, q = (TransformedDistribution(Normal(double(m), 1.0), AbsTransform()) for m in (1.0, -1.0))
    with pytest.raises(NoRuleError):  # torch: 2, the divergence of the bases; the two laws are the same one
        kl_divergence(p, q)


# Mixtures of numbers

CASES = {
    "overlapping": ([0.3, 0.7], [-1.0, 2.0], [1.0, 0.5], [0.5, 0.5], [0.0, 1.0], [1.0, 2.0]),
    "200 widths apart": ([0.3, 0.7], [-100.0, 100.0], [1.0, 0.5], [0.5, 0.5], [-100.0, 100.0], [1.0, 1.0]),
    "against one": ([0.3, 0.7], [-100.0, 100.0], [1.0, 0.5], [1.0], [0.0], [50.0]),
    "a weight of 1e-12": ([1e-12, 1.0], [50.0, 0.0], [1.0, 1.0], [0.5, 0.5], [50.0, 0.0], [1.0, 1.0]),
    "five": (
        [1.0, 1.0, 1.0, 1.0, 1.0], [-80.0, -30.0, 0.0, 20.0, 120.0], [0.1, 1.0, 0.01, 3.0, 0.3],
        [1.0, 1.0], [0.0, 10.0], [30.0, 60.0],
    ),
    "without weight": ([0.5, 0.5, 0.0], [0.0, 1.0, 400.0], [1.0] * 3, [0.5, 0.5, 0.0], [0.0, 1.1, -400.0], [1.0] * 3),
}  # fmt: skip


def true_mixture(parts: tuple[list[float], ...]) -> mpf:
    p, q = (list(zip(*parts[i : i + 3], strict=True)) for i in (0, 3))

    def density(x: mpf, of: list[tuple[float, ...]]) -> mpf:
        total = mpmath.fsum(w for w, _, _ in of)
        return mpmath.fsum(mpf(w) / total * mpmath.npdf(x, m, s) for w, m, s in of)

    edges = [m + k * s for w, m, s in p if w for k in (-40, -12, -5, -2, 0, 2, 5, 12, 40)]
    edges += [m + k * s for w, m, s in q if w for k in (-3, 0, 3)]

    def integrand(x: mpf) -> mpf:
        here = density(x, p)
        return here * mpmath.log(here / density(x, q)) if here else mpf(0)

    with mpmath.workdps(25):
        return mpmath.quad(integrand, sorted(set(edges)))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_mixtures_of_normals_are_exact(name: str) -> None:
    parts = CASES[name]
    estimate = kl_estimate(mixture(*parts[:3]), mixture(*parts[3:]))
    truth = true_mixture(parts)
    assert abs(mpf(estimate.value.item()) / truth - 1) < 1e-11
    assert estimate.method == "quadrature"
    assert abs(mpf(estimate.value.item()) - truth) <= estimate.error.item()


def test_mixtures_have_gradients_to_weights_and_components() -> None:
    weights, centers = double(0.3, 0.7).requires_grad_(), double(-1.0, 2.0).requires_grad_()
    q = Normal(double(0.5), double(2.0))

    def value(w: Tensor, c: Tensor) -> Tensor:
        return kl_divergence(MixtureSameFamily(Categorical(w), Normal(c, 1.0)), q)

    assert torch.autograd.gradcheck(value, (weights, centers), atol=1e-7)
    same = mixture([0.3, 0.7], [-1.0, 2.0], [1.0, 1.0])
    assert kl_divergence(same, same) == 0


def test_a_component_without_weight_decides_nothing() -> None:
    heavy = MixtureSameFamily(Categorical(double(1.0, 0.0)), StudentT(double(5.0, 1.0)))
    expected = kl_divergence(StudentT(double(5.0)), Normal(double(0.0), 1.0))
    torch.testing.assert_close(kl_divergence(heavy, Normal(double(0.0), 1.0)), expected)
    wide = MixtureSameFamily(Categorical(double(1.0, 0.0)), Uniform(double(0.0, 0.0), double(1.0, 5.0)))
    torch.testing.assert_close(kl_divergence(wide, Uniform(double(0.0), 2.0)), double(2.0).log())
    masked = MixtureSameFamily(Categorical(logits=double(0.0, -torch.inf)), Normal(double(0.0, 7.0), 1.0))
    torch.testing.assert_close(kl_divergence(masked, Normal(double(1.0), 1.0)), double(0.5))


def test_mixtures_broadcast_and_expand() -> None:
    p = MixtureSameFamily(Categorical(torch.ones(3, 1, 2, dtype=DOUBLE)), Normal(numbers(1, 3, 1, 2), 1.0))
    q = MixtureSameFamily(Categorical(torch.ones(4, 3, dtype=DOUBLE)), Normal(numbers(2, 4, 3), 1.0))
    value = kl_divergence(p, q)
    assert value.shape == (3, 4)
    one = kl_divergence(
        mixture([1, 1], p.component_distribution.loc[2, 0].tolist(), [1, 1]),
        mixture([1, 1, 1], q.component_distribution.loc[1].tolist(), [1, 1, 1]),
    )
    torch.testing.assert_close(value[2, 1], one)
    torch.testing.assert_close(kl_divergence(p.expand((2, 3, 4)), q), value.expand(2, 3, 4))


def test_mixtures_of_classes_are_classes() -> None:
    weights = double(0.2, 0.8)
    table_p, table_q = (numbers(i, 2, 5).softmax(-1) for i in (1, 2))
    mixed = [(weights.unsqueeze(-1) * table).sum(0) for table in (table_p, table_q)]
    for family in (Categorical, OneHotCategorical):
        expected = kl_divergence(family(mixed[0]), family(mixed[1]))
        for name in ("probs", "logits"):
            parts = [family(**{name: t if name == "probs" else t.log()}) for t in (table_p, table_q)]
            p, q = (MixtureSameFamily(Categorical(weights), part) for part in parts)
            torch.testing.assert_close(kl_divergence(p, q), expected, rtol=1e-12, atol=0)
            torch.testing.assert_close(kl_divergence(p, family(mixed[1])), expected, rtol=1e-12, atol=0)
            torch.testing.assert_close(kl_divergence(family(mixed[0]), q), expected, rtol=1e-12, atol=0)


def test_mixtures_of_masked_classes_have_gradients() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [2.0, 0.0, -torch.inf]], requires_grad=True)
    p = MixtureSameFamily(Categorical(torch.ones(2)), OneHotCategorical(logits=logits))
    value = kl_divergence(p, OneHotCategorical(logits=torch.zeros(3)))
    (gradient,) = torch.autograd.grad(value, logits)
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert gradient[:, :2].isfinite().all()
    assert not gradient[:, 2].any()


def test_mixtures_of_trials_are_trials() -> None:
    chances = double(0.1, 0.9)
    for name in ("probs", "logits"):
        parts = Bernoulli(**{name: chances if name == "probs" else chances.logit()})
        p = MixtureSameFamily(Categorical(double(0.25, 0.75)), parts)
        expected = kl_divergence(Bernoulli(double(0.7)), Bernoulli(double(0.2)))
        torch.testing.assert_close(kl_divergence(p, Bernoulli(double(0.2))), expected)


def test_mixtures_of_counts_are_summed() -> None:
    p = MixtureSameFamily(Categorical(double(0.3, 0.7)), Poisson(double(3.0, 40.0)))
    q = Poisson(double(20.0))
    with mpmath.workdps(30):
        truth = mpf(0)
        for k in range(200):
            a, b, c = (mpmath.exp(k * mpmath.log(r) - r - mpmath.loggamma(k + 1)) for r in (3, 40, 20))
            here = (mpf(0.3) * a + mpf(0.7) * b) / (mpf(0.3) + mpf(0.7))
            truth += here * mpmath.log(here / c)
    estimate = kl_estimate(p, q)
    assert estimate.method == "summation"
    assert abs(mpf(estimate.value.item()) / truth - 1) < 1e-10


# Mixtures of vectors, and bounds


def vectors(seed: int, components: int, spread: float = 2.0) -> MixtureSameFamily:
    x = numbers(seed, components, 3, 3)
    parts = MultivariateNormal(
        spread * numbers(seed + 1, components, 3), x @ x.mT + torch.eye(3, dtype=DOUBLE)
    )
    return MixtureSameFamily(Categorical(numbers(seed + 2, components).exp()), parts)


def test_mixtures_of_vectors_have_no_rule_but_an_estimate() -> None:
    p, q = vectors(1, 2), vectors(4, 3)
    with refused(NoRuleError, instead="monte_carlo"):
        kl_divergence(p, q)
    generator = torch.Generator().manual_seed(0)
    estimate = kl_estimate(p, q, method="monte_carlo", draws=4000, generator=generator)
    lower, upper = kl_bounds(p, q)
    assert lower - 4 * estimate.standard_error <= estimate.value <= upper + 4 * estimate.standard_error
    assert lower > 0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.5, 3.0, 30.0]))
def test_bounds_enclose_the_divergence(seed: int, spread: float) -> None:
    weights = [numbers(seed + i, *shape).exp() for i, shape in enumerate([(3, 1, 2), (2, 3)])]
    parts = [
        Normal(spread * numbers(seed + 2 + i, *w.shape), (numbers(seed + 4 + i, *w.shape) / 2).exp())
        for i, w in enumerate(weights)
    ]
    p, q = (MixtureSameFamily(Categorical(w), part) for w, part in zip(weights, parts, strict=True))
    bounds = kl_bounds(p, q)
    value = kl_divergence(p, q)
    assert bounds.lower.shape == bounds.upper.shape == (3, 2)
    assert (bounds.lower <= value + 1e-9 * (1 + value)).all()
    assert (value <= bounds.upper + 1e-9 * (1 + value)).all()


@pytest.mark.parametrize("family", [Gamma, Uniform])
def test_bounds_take_any_component_with_a_divergence(family: type[Distribution]) -> None:
    def parts(seed: int) -> Distribution:
        x, y = numbers(seed, 3).exp(), numbers(seed + 1, 3).exp()
        return Gamma(x, y) if family is Gamma else Uniform(-x, y)

    p, q = (MixtureSameFamily(Categorical(torch.ones(3, dtype=DOUBLE)), parts(i)) for i in (1, 3))
    lower, upper = kl_bounds(p, q)
    assert lower == 0
    assert kl_divergence(p, q) <= upper
    assert (family is Uniform) == bool(upper.isinf())


def test_bounds_of_single_components_are_their_divergence_above() -> None:
    p, q = normals(1, 4), normals(3, 4)
    lower, upper = kl_bounds(p, q)
    torch.testing.assert_close(upper, kl_divergence(p, q))
    assert (lower <= upper).all()
    both = kl_bounds(
        vectors(1, 2), MultivariateNormal(torch.zeros(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE))
    )
    assert isinstance(both, Bounds)
    assert 0 <= both.lower < both.upper


def test_bounds_of_equal_mixtures_meet_at_0() -> None:
    p = mixture([0.2, 0.3, 0.5], [0.0, 30.0, -40.0], [1.0, 2.0, 0.1])
    lower, upper = kl_bounds(p, p)
    assert lower == 0
    assert upper < 1e-12


def test_bounds_of_far_components_are_tight() -> None:
    """Where components are far apart, the divergence is that of weights and matching components together."""
    p = mixture([0.2, 0.8], [0.0, 1000.0], [1.0, 1.0])
    q = mixture([0.5, 0.5], [0.5, 1000.0], [1.0, 2.0])
    value = kl_divergence(p, q)
    torch.testing.assert_close(kl_bounds(p, q).upper, value)


def test_bounds_have_gradients() -> None:
    centers = double(0.0, 3.0).requires_grad_()
    weights = double(0.4, 0.6).requires_grad_()

    def of(w: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        p = MixtureSameFamily(Categorical(w), Normal(c, 1.0))
        return tuple(kl_bounds(p, mixture([0.5, 0.3], [0.5, 2.0], [1.0, 1.5])))

    for which in (0, 1):
        by_weights, by_centers = torch.autograd.grad(of(weights, centers)[which], (weights, centers))
        assert by_weights.isfinite().all()
        assert by_centers.isfinite().all()
    step = 1e-5
    upper = [of(weights, centers + double(s, 0.0))[1].item() for s in (step, -step)]
    derivative = torch.autograd.grad(of(weights, centers)[1], centers)[0][0].item()
    assert derivative == pytest.approx((upper[0] - upper[1]) / (2 * step), rel=1e-3)


def test_bounds_refuse_what_is_no_distribution() -> None:
    with refused(ArgumentTypeError, call="kl_bounds", argument="p"):
        kl_bounds(torch.zeros(2), vectors(1, 2))
    shift = AffineTransform(double(0.0, 1.0), 2.0)
    parts = TransformedDistribution(Normal(double(0.0, 1.0), 1.0), [ExpTransform(), shift])
    p = MixtureSameFamily(Categorical(double(0.5, 0.5)), parts)
    with refused(NoRuleError, got="AffineTransform"):
        kl_bounds(p, p)
    # An affine map of a Normal is a Normal.
    p = MixtureSameFamily(
        p.mixture_distribution, TransformedDistribution(Normal(double(0.0, 1.0), 1.0), [shift])
    )
    plain = MixtureSameFamily(p.mixture_distribution, Normal(double(0.0, 3.0), 2.0))
    torch.testing.assert_close(kl_bounds(p, plain), kl_bounds(plain, plain))


def test_bounds_of_components_that_share_a_covariance() -> None:
    """A covariance without a dimension for the components gives the bounds of the same one for each component."""
    generator = torch.Generator().manual_seed(0)

    def centers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def mixture(loc: Tensor, covariance: Tensor) -> MixtureSameFamily:
        weights = torch.ones(loc.shape[:-1], dtype=torch.float64)
        return MixtureSameFamily(Categorical(weights), MultivariateNormal(loc, covariance))

    eye = torch.eye(3, dtype=torch.float64)
    factor, variances = centers(3, 1), torch.ones(3, dtype=torch.float64)
    for shape in ((2, 3), (5, 2, 3)):
        p, q = centers(*shape), centers(*shape)
        apart = kl_bounds(mixture(p, eye.expand(*shape, 3)), mixture(q, 2 * eye.expand(*shape, 3)))
        for shared_p, shared_q in (
            (eye, 2 * eye),
            (eye, 2 * eye.expand(*shape, 3)),
            (eye.expand(*shape, 3), 2 * eye),
        ):
            found = kl_bounds(mixture(p, shared_p), mixture(q, shared_q))
            for bound, other in zip(found, apart, strict=True):
                assert torch.allclose(bound, other, rtol=1e-12)
        low_rank = LowRankMultivariateNormal(p, factor, variances)
        parts = MixtureSameFamily(Categorical(torch.ones(shape[:-1], dtype=torch.float64)), low_rank)
        full = mixture(p, factor @ factor.mT + torch.diag(variances))
        for bound, other in zip(
            kl_bounds(parts, mixture(q, eye)), kl_bounds(full, mixture(q, eye)), strict=True
        ):
            assert torch.allclose(bound, other, rtol=1e-9)
