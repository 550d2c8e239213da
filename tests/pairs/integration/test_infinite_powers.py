"""Powers of p / q of orders above 1 and below 0: finite or infinite by formulas, and the same under every map."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Cauchy,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    GeneralizedPareto,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
    TransformedDistribution,
    Uniform,
    Weibull,
)
from torch.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    TanhTransform,
    Transform,
)

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    TotalVariation,
    divergence,
)
from kullback.errors import ConvergenceError
from kullback.generators.growth import growth_of
from kullback.pairs import univariate
from kullback.pairs.densities.density import density_of
from kullback.pairs.integration.panels import Integral
from kullback.pairs.solve_options import SolveOptions
from kullback.pairs.support import is_divergence_infinite


def number(x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def is_infinite_power(p: Distribution, q: Distribution, alpha: float) -> bool:  # noqa: PLR0911 - one family each
    """Whether int p^alpha q^(1 - alpha) is infinite, by exponents of the densities; for alpha > 1."""
    rest = alpha - 1
    if isinstance(p, Gumbel) and isinstance(q, Gumbel):
        a, b = p.scale.item(), q.scale.item()
        above = alpha / a - rest / b <= 0
        if a == b:  # exp(-z) / e^(loc / a) on the left
            return above or alpha * math.exp(p.loc.item() / a) <= rest * math.exp(q.loc.item() / a)
        return above or a > b
    if isinstance(p, Normal) and isinstance(q, Normal):
        return alpha / p.scale.item() ** 2 <= rest / q.scale.item() ** 2
    if isinstance(p, Laplace) and isinstance(q, Laplace):
        return alpha / p.scale.item() <= rest / q.scale.item()
    if isinstance(p, StudentT) and isinstance(q, StudentT):
        return alpha * (p.df.item() + 1) - rest * (q.df.item() + 1) <= 1
    if isinstance(p, Gamma) and isinstance(q, Gamma):
        shape = alpha * (p.concentration.item() - 1) - rest * (q.concentration.item() - 1)
        return shape <= -1 or alpha * p.rate.item() <= rest * q.rate.item()
    assert isinstance(p, Weibull)
    assert isinstance(q, Weibull)
    a, b = p.concentration.item(), q.concentration.item()
    below = alpha * (a - 1) - rest * (b - 1) <= -1
    if a == b:
        return below or alpha / p.scale.item() ** a <= rest / q.scale.item() ** a
    return below or b > a


Make = Callable[[random.Random], Distribution]
SCALED: list[Make] = [
    lambda r: Gumbel(number(r.uniform(-1, 1)), r.choice([0.7, 1.0, 1.01, 1.5, 2.5])),
    lambda r: Normal(number(r.uniform(-1, 1)), r.choice([0.5, 0.9, 1.0, 1.3, 2.0])),
    lambda r: Laplace(number(r.uniform(-1, 1)), r.choice([0.5, 0.9, 1.0, 1.3, 2.2])),
    lambda r: StudentT(number(r.choice([1.0, 2.0, 3.5, 6.0])), r.uniform(-1, 1), 1.0),
    lambda r: Gamma(number(r.choice([0.5, 1.0, 2.5, 4.5])), r.choice([0.5, 1.1, 2.7])),
    lambda r: Weibull(number(r.choice([0.6, 1.0, 1.9])), r.choice([0.7, 1.0, 1.6, 2.5])),
]


@pytest.mark.parametrize("family", range(len(SCALED)))
@pytest.mark.parametrize(
    "kind", [ChiSquared(), Renyi(1.3), Alpha(3.0), Alpha(-0.7)], ids=lambda kind: kind.name
)
def test_powers_are_infinite_exactly_where_the_exponents_say(kind: Divergence, family: int) -> None:
    rng = random.Random(family)  # noqa: S311
    order = {"chi2": 2.0, "renyi:1.3": 1.3, "alpha:3": 3.0, "alpha:-0.7": -0.7}[kind.name]
    for _ in range(12):
        p, q = SCALED[family](rng), SCALED[family](rng)
        expected = is_infinite_power(p, q, order) if order > 1 else is_infinite_power(q, p, 1 - order)
        assert bool(divergence(p, q, kind).isinf()) == expected, (p, q)


@pytest.mark.parametrize(
    ("p", "q", "kind", "expected"),
    [
        (Gumbel(number(0.0), 1.5), Gumbel(number(0.0), 1.0), Renyi(2.0), math.inf),
        (Gumbel(number(0.0), 1.01), Gumbel(number(0.0), 1.0), ChiSquared(), math.inf),
        (Gamma(number(4.5), 5.0), HalfNormal(number(3.0)), ChiSquared(), math.inf),
        (FisherSnedecor(number(7.2), 3.74), FisherSnedecor(number(2.8), 4.9), ChiSquared(), 0.09967920583),
    ],
)
def test_reported_cases(p: Distribution, q: Distribution, kind: Divergence, expected: float) -> None:
    assert divergence(p, q, kind).item() == pytest.approx(expected, rel=1e-8)
    maps: list[list[Transform]] = [
        [AffineTransform(0.0, 0.1), ExpTransform()],
        [AffineTransform(1.0, -3.0)],
    ]
    if not isinstance(p, Gumbel):
        maps += MAPS_OF_POSITIVE[:3]
    for steps in maps:
        mapped = TransformedDistribution(p, steps), TransformedDistribution(q, steps)
        assert divergence(*mapped, kind).item() == pytest.approx(expected, rel=1e-8), steps


REAL: list[Make] = [
    *SCALED[:4],
    lambda r: Cauchy(number(r.uniform(-1, 1)), r.uniform(0.5, 2)),
]
POSITIVE: list[Make] = [
    *SCALED[4:],
    lambda r: HalfNormal(number(r.uniform(0.5, 3))),
    lambda r: InverseGamma(number(r.uniform(1, 6)), r.uniform(0.5, 3)),
    lambda r: LogNormal(number(r.uniform(-1, 1)), r.uniform(0.3, 1.5)),
    lambda r: FisherSnedecor(number(r.uniform(2, 9)), r.uniform(2, 9)),
    lambda r: HalfCauchy(number(r.uniform(0.5, 2))),
    lambda r: Exponential(number(r.uniform(0.5, 3))),
]
MAPS_OF_REAL: list[list[Transform]] = [
    [AffineTransform(0.3, -2.0)],
    [AffineTransform(0.0, 0.1), ExpTransform()],
    [SigmoidTransform()],
    [TanhTransform()],
    [SoftplusTransform()],
]
MAPS_OF_POSITIVE: list[list[Transform]] = [
    [PowerTransform(number(-1.0))],
    [ExpTransform().inv],
    [PowerTransform(number(0.5))],
    [PowerTransform(number(2.0))],
    [AffineTransform(0.0, 0.05), ExpTransform()],
    [ExpTransform().inv, SigmoidTransform()],
]
UNIT: list[Make] = [
    lambda r: Beta(number(r.choice([0.5, 1.0, 3.5])), r.choice([0.4, 1.0, 4.0])),
    lambda r: Kumaraswamy(number(r.choice([0.5, 2.0, 3.5])), r.choice([0.4, 1.7])),
    lambda r: Uniform(number(0.0), 1.0),
    lambda r: TransformedDistribution(Normal(number(r.uniform(-1, 1)), 1.0), SigmoidTransform()),
]
MAPS_OF_UNIT: list[list[Transform]] = [
    [SigmoidTransform().inv],
    [ExpTransform().inv],
    [AffineTransform(2.0, -3.0)],
    [PowerTransform(number(-1.0))],
    [ExpTransform()],
]
EVERYWHERE = (REAL, MAPS_OF_REAL), (POSITIVE, MAPS_OF_POSITIVE), (UNIT, MAPS_OF_UNIT)
# After a map of Q alone, which so is not the map of P for whoever compares them, though it makes the same variable.
BACK_AND_FORTH = [AffineTransform(0.0, 2.0), AffineTransform(0.0, 0.5)]


@pytest.mark.sweep
@pytest.mark.parametrize("domain", range(3))
def test_what_is_known_of_tails_is_the_same_after_every_map(domain: int) -> None:
    rng = random.Random(domain)  # noqa: S311
    families, maps = EVERYWHERE[domain]
    answers: list[bool] = []
    for _ in range(60):
        p, q = rng.choice(families)(rng), rng.choice(families)(rng)
        kind = rng.choice([KL(), ReverseKL(), Jeffreys(), ChiSquared(), Alpha(1.05), Alpha(3.0), Alpha(-0.7)])
        expected = is_known_to_be_infinite(p, q, kind)
        for steps in maps:
            mapped = TransformedDistribution(p, steps), TransformedDistribution(q, steps)
            assert is_known_to_be_infinite(*mapped, kind) == expected, (p, q, kind, steps)
        answers.append(expected)
    assert any(answers)
    assert not all(answers)


def is_known_to_be_infinite(p: Distribution, q: Distribution, kind: Divergence) -> bool:
    of_p, of_q = density_of(p), density_of(q)
    assert of_p is not None
    assert of_q is not None
    infinite = is_divergence_infinite(of_p, of_q, growth_of(kind))
    return infinite is not None and bool(infinite)


@pytest.mark.parametrize(
    ("p", "q", "kind", "steps", "expected"),
    [  # the first and the last by mpmath, of the variables without the map
        (
            StudentT(number(3.5), -0.221),
            Cauchy(number(0.283), 0.865),
            KL(),
            SigmoidTransform(),
            0.1932575998807,
        ),
        (Cauchy(number(0.3), 1.0), Gumbel(number(0.0), 1.0), ChiSquared(), SigmoidTransform(), math.inf),
        (Gumbel(number(0.0), 1.0), Cauchy(number(0.3), 1.0), Alpha(-0.7), TanhTransform(), math.inf),
        (Gumbel(number(0.0), 1.0), Cauchy(number(0.3), 1.0), ChiSquared(), TanhTransform(), None),
        (Weibull(number(0.7), 1.9), HalfNormal(number(0.622)), Alpha(1.05), ExpTransform(), math.inf),
        (
            InverseGamma(number(1.852), 0.752),
            Weibull(number(1.0), 0.6),
            KL(),
            ExpTransform(),
            0.4831674504480,
        ),
    ],
)
def test_tails_that_are_no_powers_after_a_map(
    p: Distribution, q: Distribution, kind: Divergence, steps: Transform, expected: float | None
) -> None:
    expected = divergence(p, q, kind).item() if expected is None else expected
    for last in ([], BACK_AND_FORTH):
        mapped = TransformedDistribution(p, steps), TransformedDistribution(q, [steps, *last])
        assert divergence(*mapped, kind).item() == pytest.approx(expected, rel=1e-7)
    shared = (
        [AffineTransform(0.0, 1.5), steps],
        [AffineTransform(0.5, 1.5), AffineTransform(-0.5, 1.0), steps],
    )
    mapped = TransformedDistribution(p, shared[0]), TransformedDistribution(q, shared[1])
    assert divergence(*mapped, kind).item() == pytest.approx(expected, rel=1e-9)


def test_a_shared_map_keeps_the_derivatives_of_its_own_parameters() -> None:
    scale = number(0.7).requires_grad_()
    steps: tuple[list[Transform], ...] = (
        [AffineTransform(0.0, scale), ExpTransform()],
        [AffineTransform(0.2, scale), ExpTransform()],
    )
    p, q = (TransformedDistribution(Gumbel(number(0.0), 1.0), maps) for maps in steps)
    (found,) = torch.autograd.grad(divergence(p, q, ChiSquared()), scale)
    values = [
        divergence(Gumbel(number(0.0), number(s)), Gumbel(number(0.2), number(s)), ChiSquared()).item()
        for s in (0.7 + 1e-5, 0.7 - 1e-5)
    ]
    assert found.item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


@pytest.mark.parametrize(("kind", "of_p", "of_q"), [(KL(), 0.5, 1.0), (Alpha(3.0), 1.0, 3.0)])
def test_logits_of_a_batch_whose_supports_have_different_ends(
    kind: Divergence, of_p: float, of_q: float
) -> None:
    """Some begin at 0, or end at 1, where the logit has a pole; the others do not."""
    steps = SigmoidTransform().inv
    p, q = Beta(number(2.0), of_p), Beta(number(2.0), of_q)
    for loc, scale in (([0.0, 0.2], [1.0, 0.8]), ([0.0, 0.0], [1.0, 0.7]), ([0.1, 0.0], [0.7, 0.7])):
        part = AffineTransform(*(torch.tensor(x, dtype=torch.float64) for x in (loc, scale)))
        part_p, part_q = (TransformedDistribution(d.expand((2,)), [part]) for d in (p, q))
        cases: list[tuple[Distribution, torch.Tensor]] = [(part_q, divergence(p, q, kind).expand(2))]
        if loc == [0.0, 0.0]:  # the support of Q has one end for both
            cases.append((q, divergence(part_p, q, kind)))
        for other, expected in cases:
            mapped = TransformedDistribution(other, [steps, *BACK_AND_FORTH])
            found = divergence(TransformedDistribution(part_p, steps), mapped, kind)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)


def batch(*rows: float) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def log_of(d: Distribution) -> Distribution:
    return TransformedDistribution(d, [ExpTransform().inv])


def inverse_of_part(d: Distribution, loc: torch.Tensor) -> Distribution:
    return TransformedDistribution(d, [AffineTransform(loc, 1.0), PowerTransform(number(-1.0))])


# P and Q as functions of their parameters, and the parameters in rows; the supports in a batch have different ends.
Columns = list[tuple[float, ...]]
MIXED: dict[str, tuple[Callable[..., Distribution], Columns, Callable[..., Distribution], Columns]] = {
    "generalized Pareto": (
        GeneralizedPareto,
        [(0.0, 0.0, 0.5), (1.0, 0.8, 1.2), (-0.4, 0.5, 0.0)],
        GeneralizedPareto,
        [(0.0, 0.0, 0.2), (1.6, 1.1, 1.0), (-0.3, 0.9, 0.1)],
    ),
    "uniform in a wide Student": (
        Uniform,
        [(0.0, -0.5, 1.0), (1.0, 1.5, 1.0 + 1e-5)],
        StudentT,
        [(0.8, 2.5, 40.0), (0.0, -1.0, 1.0), (1.0, 0.02, 0.5)],
    ),
    "logarithms of uniforms": (
        lambda a, b: log_of(Uniform(a, b)),
        [(0.0, 0.2, 0.0), (1.0, 1.0, 0.7)],
        lambda a, b: log_of(Uniform(a, b)),
        [(0.0, 0.0, 0.0), (1.2, 1.0, 0.9)],
    ),
    "inverses": (
        lambda a, b, loc: inverse_of_part(Gamma(a, b), loc),
        [(2.5, 3.0, 4.0), (1.0, 1.3, 2.0), (0.0, 0.5, 0.2)],
        lambda a, b, loc: inverse_of_part(Weibull(a, b), loc),
        [(1.0, 0.7, 1.9), (1.5, 1.0, 0.8), (0.0, 0.2, 0.0)],
    ),
    "Pareto": (
        Pareto,
        [(1.0, 2.0, 1.0), (3.5, 2.5, 9.0)],
        Pareto,
        [(1.0, 1.0, 0.5), (3.0, 1.7, 2.0)],
    ),
}


@pytest.mark.parametrize(
    "kind",
    [KL(), JensenShannon(), SkewKL(0.3), Renyi(0.5), Alpha(0.3), TotalVariation()],
    ids=lambda k: k.name,
)
@pytest.mark.parametrize("case", MIXED)
def test_gradients_of_a_batch_whose_supports_have_different_ends(case: str, kind: Divergence) -> None:
    of_p, rows_p, of_q, rows_q = MIXED[case]
    rows = [*rows_p, *rows_q]
    count, size = len(rows_p), len(rows[0])

    def derivatives(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        value = divergence(of_p(*tensors[:count]), of_q(*tensors[count:]), kind)
        gradients = torch.autograd.grad(value.sum(), tensors, materialize_grads=True)
        return value.detach(), torch.stack(gradients)

    value, gradient = derivatives([batch(*row) for row in rows])
    alone = [derivatives([batch(row[k]) for row in rows]) for k in range(size)]
    torch.testing.assert_close(value, torch.cat([v for v, _ in alone]), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient, torch.cat([g for _, g in alone], -1), rtol=1e-6, atol=1e-8)


def test_derivatives_come_from_the_attempt_that_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt at one element fails with an infinite derivative; a later attempt replaces it."""
    compute = univariate._of_terms
    fails = torch.tensor([False, True, False])

    def with_a_failure(pair: univariate._Pair) -> Integral:
        result = compute(pair)
        if pair.shape.numel() < 3 or pair.options.max_evaluations == SolveOptions().max_evaluations:
            return result
        root = torch.sqrt(result.value - result.value.detach())
        value = torch.where(fails, result.value + root, result.value)
        return result._replace(value=value, error=torch.where(fails, torch.inf, result.error))

    def gradient(locs: torch.Tensor) -> torch.Tensor:
        value = divergence(Normal(locs, 1.0), Laplace(number(0.0), 1.3), JensenShannon())
        return torch.autograd.grad(value.sum(), locs)[0]

    rows = 0.2, 0.5, 1.5
    alone = torch.cat([gradient(batch(x)) for x in rows])
    monkeypatch.setattr(univariate, "_of_terms", with_a_failure)
    torch.testing.assert_close(gradient(batch(*rows)), alone, rtol=1e-9, atol=0)


@pytest.mark.parametrize("seed", range(30))
def test_a_map_of_both_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    families, maps = rng.choice(EVERYWHERE)
    p, q = rng.choice(families)(rng), rng.choice(families)(rng)
    kind = rng.choice([KL(), ChiSquared(), Renyi(1.3), Renyi(5.0), Alpha(3.0), Alpha(-0.7)])
    try:
        expected = divergence(p, q, kind).item()
    except ConvergenceError:
        expected = None
    for steps in rng.sample(maps, 3):
        mapped = TransformedDistribution(p, steps), TransformedDistribution(q, [*steps, *BACK_AND_FORTH])
        if expected is None:
            with pytest.raises(ConvergenceError):
                divergence(*mapped, kind)
        else:
            assert divergence(*mapped, kind).item() == pytest.approx(expected, rel=1e-8), (p, q, kind, steps)


@pytest.mark.parametrize("kind", [ChiSquared(), Renyi(2.0), Alpha(2.0)], ids=repr)
def test_ties_of_exponential_tails_are_infinite(kind: Divergence) -> None:
    def f64(*xs: float) -> Tensor:
        return torch.tensor(xs, dtype=torch.float64)

    # p^2 / q is (1 / 4q) (4 - 4q)^-n for Geometric(1/2): finite below q = 3/4, constant in n at q = 3/4.
    p, q = (x.requires_grad_() for x in (f64(0.5, 0.5, 0.5), f64(0.7, 0.75, 0.8)))
    value = divergence(Geometric(p), Geometric(q), kind)
    total = 0.25 / 0.7 / (1 - 0.25 / 0.3)  # the sum of p^2 / q
    below = {"Renyi": math.log(total), "Alpha": (total - 1) / 2}.get(type(kind).__name__, total - 1)
    assert value.tolist() == [pytest.approx(below, rel=1e-9), math.inf, math.inf]
    by_p, by_q = torch.autograd.grad(value.sum(), (p, q))
    assert by_p[1:].tolist() == by_q[1:].tolist() == [0, 0]
    assert by_p[0] < 0 < by_q[0]
    # Laplace and Exponential, also where a map has parameters of its own.
    loc = f64(0.0).requires_grad_()
    laplace, gamma = (
        [TransformedDistribution(d, AffineTransform(loc.clone(), 1.0)) for d in pair]
        for pair in (
            [Laplace(f64(0.0), f64(b)) for b in (1.0, 0.5)],
            [Gamma(f64(a), f64(rate)) for a, rate in ((1.5, 1.0), (2.0, 2.0))],
        )
    )
    for pair in (laplace, gamma):
        assert divergence(pair[0], pair[1], kind).item() == math.inf
