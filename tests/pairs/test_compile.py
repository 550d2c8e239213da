"""torch.compile: every pair of torch's registry, and others, beside torch's own formulas or enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributions as d
from torch import Tensor
from torch.distributions.kl import _KL_REGISTRY  # pyright: ignore[reportPrivateUsage]

from kullback import (
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SquaredHellinger,
    cross_entropy,
    divergence,
    entropy,
    kl_bounds,
    kl_divergence,
    kl_estimate,
)
from tests.refusals import refused

Make = Callable[..., d.Distribution]
SENTENCE = "without fullgraph=True, or make the call outside of the graph"


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def parameters(*names: str) -> list[Tensor]:
    """Two members of a family, as parameters in float64."""
    draw = torch.Generator().manual_seed(len(names))

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    draws: dict[str, Callable[[], Tensor]] = {
        "real": lambda: rand(2) * 2 - 1,
        "size": lambda: rand(2) + 0.5,
        "chance": lambda: rand(2) * 0.8 + 0.1,
        "power": lambda: rand(2) + 2.5,
        "vector": lambda: rand(2, 3) * 2 - 1,
        "sizes": lambda: rand(2, 3) + 0.5,
        "factor": lambda: rand(2, 3, 1) - 0.5,
        "root": lambda: rand(2, 3, 3).tril(-1) + torch.diag_embed(rand(2, 3) + 0.5),
    }
    return [draws[name]() for name in names]


def by_map(*maps: Callable[[], d.Transform]) -> Make:
    """A Normal through maps that are made inside the compiled function."""
    return lambda loc, scale: d.TransformedDistribution(d.Normal(loc, scale), [make() for make in maps])


FAMILIES: dict[str, tuple[Make, tuple[str, ...]]] = {
    "Bernoulli": (d.Bernoulli, ("chance",)),
    "Beta": (d.Beta, ("power", "power")),
    "Binomial": (lambda p: d.Binomial(5, p), ("chance",)),
    "Categorical": (lambda x: d.Categorical(logits=x), ("vector",)),
    "Cauchy": (d.Cauchy, ("real", "size")),
    "ContinuousBernoulli": (d.ContinuousBernoulli, ("chance",)),
    "Dirichlet": (d.Dirichlet, ("sizes",)),
    "Exponential": (d.Exponential, ("size",)),
    "ExponentialFamily": (d.Normal, ("real", "size")),
    "Gamma": (d.Gamma, ("power", "size")),
    "Geometric": (d.Geometric, ("chance",)),
    "Gumbel": (d.Gumbel, ("real", "size")),
    "HalfNormal": (d.HalfNormal, ("size",)),
    "Independent": (lambda m, s: d.Independent(d.Normal(m, s), 1), ("vector", "sizes")),
    "Laplace": (d.Laplace, ("real", "size")),
    "LowRankMultivariateNormal": (d.LowRankMultivariateNormal, ("vector", "factor", "sizes")),
    "MultivariateNormal": (lambda m, r: d.MultivariateNormal(m, scale_tril=r), ("vector", "root")),
    "Normal": (d.Normal, ("real", "size")),
    "OneHotCategorical": (lambda x: d.OneHotCategorical(logits=x), ("vector",)),
    "Pareto": (d.Pareto, ("size", "power")),
    "Poisson": (d.Poisson, ("size",)),
    "TransformedDistribution": (by_map(d.TanhTransform), ("real", "size")),
    "Uniform": (lambda low, width: d.Uniform(low, low + width), ("real", "size")),
}


def both(name_p: str, name_q: str) -> tuple[Callable[..., Any], list[Tensor]]:
    """The distributions of a pair as a function of their parameters, and these."""
    (make_p, names_p), (make_q, names_q) = FAMILIES[name_p], FAMILIES[name_q]
    leaves = [x.requires_grad_() for x in (*parameters(*names_p), *parameters(*names_q, "real")[:-1])]
    split = len(names_p)
    return lambda *x: (make_p(*x[:split]), make_q(*x[split:])), leaves


def divergence_of(make: Callable[..., Any], leaves: list[Tensor]) -> Tensor:
    return kl_divergence(*make(*leaves))


def value_or_message(call: Callable[..., Tensor], *arguments: Any) -> Tensor | str:
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001
        return str(error)


def gradients(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    return list(torch.autograd.grad(value.sum(), leaves, materialize_grads=True, allow_unused=True))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, of any graph that breaks at a derivative
def test_every_pair_of_torchs_registry_compiles_in_one_graph_or_is_refused_in_a_sentence() -> None:
    """The truth is torch's own formula. The pairs that torch calls infinite are refused, as an integral decides it."""
    pairs = [
        (type_p.__name__, type_q.__name__)
        for type_p, type_q in _KL_REGISTRY
        if {type_p.__module__.rpartition(".")[0], type_q.__module__.rpartition(".")[0]}
        == {"torch.distributions"}
    ]  # other libraries, such as Pyro, add their own
    assert len(pairs) > 80
    made = {pair: both(*pair) for pair in pairs}
    expected = {pair: d.kl_divergence(*make(*leaves)) for pair, (make, leaves) in made.items()}
    infinite = [pair for pair in pairs if pair[0] != pair[1] and bool(expected[pair].isinf().all())]
    compiled = [pair for pair in pairs if pair not in infinite]

    for number, pair in enumerate(compiled):
        torch.compiler.reset()
        backend = "eager" if number % 8 else "aot_eager"  # which takes twice the time
        value = torch.compile(divergence_of, fullgraph=True, backend=backend)(*made[pair])
        torch.testing.assert_close(
            value, expected[pair], rtol=1e-9, atol=1e-12, msg=lambda m, pair=pair: f"{pair}: {m}"
        )
        leaves = made[pair][1]
        for a, b in zip(gradients(value, leaves), gradients(expected[pair], leaves), strict=True):
            assert bool(a.isfinite().all()), pair
            change = torch.where(b.isfinite(), a - b, 0)  # torch's derivative of an infinite value is NaN
            if a.shape[-2:] == (
                3,
                3,
            ):  # torch's derivative by a triangular matrix has entries above the diagonal
                change = change.tril()
            assert float(change.abs().max()) < 1e-8 * (1 + float(b.nan_to_num(0, 0, 0).abs().max())), pair
    refused = []
    for pair in infinite:
        torch.compiler.reset()
        outcome = value_or_message(torch.compile(divergence_of, fullgraph=True, backend="eager"), *made[pair])
        if isinstance(outcome, str):
            assert "is an integral or a sum" in outcome, (pair, outcome)
            assert SENTENCE in outcome, pair
            refused.append(pair)
        else:
            assert torch.equal(outcome, expected[pair]), pair
    for pair in refused[::16]:  # the message names this remedy
        torch.compiler.reset()
        value = torch.compile(divergence_of, backend="eager")(*made[pair])
        assert torch.equal(value, expected[pair]), pair


CALLS: dict[str, Callable[[Any, Any], Tensor]] = {
    **{
        kind.name: lambda p, q, kind=kind: divergence(p, q, kind)
        for kind in (ReverseKL(), Jeffreys(), JensenShannon(0.3), Renyi(0.5), SquaredHellinger())
    },
    "cross_entropy": cross_entropy,
    "entropy": lambda p, q: entropy(p),
    "kl_estimate": lambda p, q: kl_estimate(p, q).value,
}


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, of any graph that breaks at a derivative
def test_other_kinds_of_torchs_pairs_compile_in_one_graph_or_are_refused_in_a_sentence() -> None:
    """A quarter of the pairs and all families, with the calls in turns. Eager values are tested elsewhere."""
    pairs = sorted(
        (type_p.__name__, type_q.__name__)
        for type_p, type_q in _KL_REGISTRY
        if {type_p.__module__.rpartition(".")[0], type_q.__module__.rpartition(".")[0]}
        == {"torch.distributions"}
    )
    alike = [pair for pair in pairs if pair[0] == pair[1]]  # most other pairs are refused
    tried = [*pairs[::4], *alike]
    compiled: list[str] = []
    for number, pair in enumerate(tried):
        name = [*CALLS][(number + number // len(CALLS)) % len(CALLS)]
        if "entropy" in name and pair[0] in ("Binomial", "Poisson"):
            continue  # torch's entropy of a Binomial branches on values, and it has none of a Poisson
        make, leaves = both(*pair)

        def call(*x: Tensor, name: str = name, make: Callable[..., Any] = make) -> Tensor:
            return CALLS[name](*make(*x))

        expected = value_or_message(call, *leaves)
        torch.compiler.reset()
        outcome = value_or_message(torch.compile(call, fullgraph=True, backend="eager"), *leaves)
        if isinstance(expected, str):
            assert isinstance(outcome, str), (name, pair, expected)
        elif isinstance(outcome, str):
            assert SENTENCE in outcome, (name, pair, outcome)
        else:
            compiled.append(name)
            torch.testing.assert_close(outcome, expected, rtol=1e-9, atol=1e-12, msg=f"{name} of {pair}")
            for a, b in zip(gradients(outcome, leaves), gradients(expected, leaves), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=f"{name} of {pair}")
    assert {*CALLS} - {"js:0.3"} <= {*compiled}  # only JS of classes compiles, see below


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, of any graph that breaks at a derivative
def test_classes_and_bounds_compile_in_one_graph_and_draws_and_maps_of_tensors_are_refused_in_a_sentence() -> (
    None
):
    x = torch.tensor([[0.3, -0.2, 1.0], [0.0, 2.0, -1.0]], dtype=torch.float64)

    def mixture(loc: Tensor) -> d.MixtureSameFamily:
        return d.MixtureSameFamily(d.Categorical(logits=loc), d.Normal(loc, 1.0))

    def gumbel(loc: Tensor) -> d.Gumbel:
        return d.Gumbel(loc, loc.exp())

    def js(p: d.Distribution, q: d.Distribution) -> Tensor:
        return divergence(p, q, JensenShannon())

    whole: dict[str, Callable[[Tensor], Tensor]] = {
        "JS of classes": lambda x: js(d.Categorical(logits=x), d.Categorical(logits=-x)),
        "bounds": lambda x: torch.stack(list(kl_bounds(mixture(x), mixture(-x)))),
    }
    refused: dict[str, Callable[[Tensor], Tensor]] = {
        "draws": lambda x: kl_estimate(mixture(x), mixture(-x), method="monte_carlo").value,
        "JS of maps": lambda x: js(gumbel(x), gumbel(-x)),
    }
    for name, call in whole.items():
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="eager")(x), call(x), msg=name)
    p, q = x.softmax(-1), (-x).softmax(-1)
    m = (p + q) / 2
    terms = p * (p / m).log() / 2 + q * (q / m).log() / 2
    torch.testing.assert_close(whole["JS of classes"](x), terms.sum(-1))
    for name, call in refused.items():
        torch.compiler.reset()
        outcome = value_or_message(torch.compile(call, fullgraph=True, backend="eager"), x)
        assert isinstance(outcome, str), name
        assert SENTENCE in outcome, (name, outcome)
        torch.compiler.reset()
        torch.manual_seed(0)
        value = torch.compile(call, backend="eager")(x)  # as the message says
        torch.manual_seed(0)
        torch.testing.assert_close(value, call(x), msg=name)


MAPS: dict[str, Make] = {
    "tanh": by_map(d.TanhTransform),
    "tanh with a cache": by_map(lambda: d.TanhTransform(cache_size=1)),
    "sigmoid": by_map(d.SigmoidTransform),
    "softplus": by_map(d.SoftplusTransform),
    "exp": by_map(d.ExpTransform),
    "affine": by_map(lambda: d.AffineTransform(0.5, -2.0)),
    "affine of tensors": by_map(lambda: d.AffineTransform(torch.tensor(0.5), torch.tensor(2.0))),
    "tanh, affine": by_map(d.TanhTransform, lambda: d.AffineTransform(1.0, 2.0)),
    "composed": by_map(lambda: d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.TanhTransform()])),
    "inverse": by_map(lambda: d.AffineTransform(0.0, 2.0).inv, d.ExpTransform),
    "power": by_map(d.ExpTransform, lambda: d.PowerTransform(torch.tensor(2.0))),
}


@pytest.mark.heavy
def test_equal_maps_that_are_made_inside_compile_in_one_graph() -> None:
    """KL of Normals one apart, with one scale s, is 1 / (2 s^2), and so it is after any map."""
    scale = torch.tensor([0.5, 0.3], dtype=torch.float64, requires_grad=True)

    def together(scale: Tensor) -> list[Tensor]:
        sides = [(make(0 * scale, scale), make(1 + 0 * scale, scale)) for make in MAPS.values()]
        of_events = [kl_divergence(d.Independent(p, 1), d.Independent(q, 1)) for p, q in sides[:1]]
        return [kl_divergence(p, q) for p, q in sides] + of_events

    values = torch.compile(together, fullgraph=True, backend="aot_eager")(scale)
    fixed = scale.detach()
    for name, value in zip((*MAPS, "Independent"), values, strict=True):
        assert value.sum().item() == pytest.approx((0.5 / fixed**2).sum().item(), rel=1e-12), name
        (gradient,) = torch.autograd.grad(value.sum(), scale, retain_graph=True)
        torch.testing.assert_close(gradient, -(fixed**-3), msg=lambda m, name=name: f"{name}: {m}")


def kl_by_terms(p: d.Distribution, q: d.Distribution, most: int) -> float:
    """The sum over the numbers up to `most`, for distributions of integers."""
    total = 0.0
    for k in range(most + 1):
        first, second = (float(x.log_prob(torch.tensor(float(k), dtype=torch.float64))) for x in (p, q))
        total += math.exp(first) * (first - second)
    return total


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's, of any graph that breaks at a derivative
@pytest.mark.parametrize("family", [d.Binomial, d.NegativeBinomial])
def test_two_counts_compile_where_the_graph_may_break(family: Any) -> None:
    """A whole graph cannot look at the counts. It takes them as equal, and says so when it runs if they are not."""

    def call(n: Tensor, p: Tensor, m: Tensor, q: Tensor) -> Tensor:
        return kl_divergence(family(n, p, validate_args=False), family(m, q, validate_args=False))

    for counts in ((3.0, 5.0), (5.0, 3.0)):
        chances = [torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (0.2, 0.4)]
        n, m = (torch.tensor([x], dtype=torch.float64) for x in counts)
        arguments = n, chances[0], m, chances[1]
        true = math.inf
        if family is d.NegativeBinomial or counts[0] <= counts[1]:
            members = (
                family(x, torch.tensor(p, dtype=torch.float64))
                for x, p in zip(counts, (0.2, 0.4), strict=True)
            )
            true = kl_by_terms(*members, int(counts[0]) if family is d.Binomial else 200)
        torch.compiler.reset()
        value = torch.compile(call, backend="aot_eager")(*arguments)
        assert value.item() == pytest.approx(true, rel=1e-10), counts
        for ours, eager in zip(
            torch.autograd.grad(value, chances), torch.autograd.grad(call(*arguments), chances), strict=True
        ):
            assert ours.item() == pytest.approx(eager.item(), rel=1e-9), counts
        torch.compiler.reset()
        whole = torch.compile(call, fullgraph=True, backend="eager")
        with pytest.raises(RuntimeError, match=f"different total_count.*{SENTENCE}"):
            whole(*arguments)


@pytest.mark.heavy
def test_two_temperatures_compile_where_the_graph_may_break() -> None:
    def call(t: Tensor, u: Tensor, x: Tensor) -> Tensor:
        return kl_divergence(d.RelaxedBernoulli(t, logits=x), d.RelaxedBernoulli(u, logits=-x))

    x, temperatures = torch.tensor([0.3, -1.0], dtype=torch.float64), torch.tensor([0.7, 0.9]).double()
    expected = call(*temperatures, x)
    assert bool((expected > 0).all())
    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(*temperatures, x), expected)


def test_counts_of_a_vmap_are_refused_in_a_sentence() -> None:
    n, p = torch.tensor([3.0, 5.0]), torch.tensor([0.2, 0.4])
    with refused(NotImplementedError, got=r"inside of torch\.func\.vmap"):
        torch.vmap(lambda n, p: kl_divergence(d.Binomial(n, p, validate_args=False), d.Binomial(n, 1 - p)))(
            n, p
        )
    value = kl_divergence(d.Binomial(n, p), d.Binomial(n, 1 - p))  # as the message says
    torch.testing.assert_close(value, n * (1 - 2 * p) * torch.log((1 - p) / p))
