"""The closed forms in C++: those of plain torch, at ordinary parameters, at edges and in every kind of call."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Chi2,
    Dirichlet,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Laplace,
    LogNormal,
    Normal,
    OneHotCategorical,
    Pareto,
    Poisson,
    Uniform,
)

from kullback import kl_divergence, kl_estimate, register_kl
from kullback.kernels.native import library
from kullback.pairs import native_forms, registry as closed_forms
from tests.refusals import refused

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

Make = Callable[..., Distribution]
BATCH = 700  # no whole number of blocks
SIZES = (1e-30, 1e-6, 0.3, 1.0, 2.5, 9.99, 10.01, 300.0, 1e8, 1e30)


def size(n: int) -> Tensor:
    return (4 * torch.randn(n, dtype=torch.float64)).exp()


def place(n: int) -> Tensor:
    return 3 * torch.randn(n, dtype=torch.float64)


def share(n: int) -> Tensor:
    return (5 * torch.randn(n, dtype=torch.float64)).sigmoid()


def count(n: int) -> Tensor:
    return torch.arange(n, dtype=torch.float64) % 7


def low(n: int) -> Tensor:
    return -torch.rand(n, dtype=torch.float64)


def high(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64) + 0.1


def unchecked(family: type[Distribution], *names: str) -> Make:
    return lambda *at: family(**dict(zip(names, at, strict=True)), validate_args=False)


def sizes_of_three(n: int) -> Tensor:
    return size(3 * n).view(n, 3)


def logits_of_five(n: int) -> Tensor:
    return 3 * torch.randn(n, 5, dtype=torch.float64)


def shares_of_five(n: int) -> Tensor:
    return logits_of_five(n).softmax(-1)


# How a member is made of its parameters, and how these are drawn.
FAMILIES: dict[str, tuple[Make, tuple[Callable[[int], Tensor], ...]]] = {
    "Normal": (unchecked(Normal, "loc", "scale"), (place, size)),
    "LogNormal": (unchecked(LogNormal, "loc", "scale"), (place, size)),
    "Laplace": (unchecked(Laplace, "loc", "scale"), (place, size)),
    "Cauchy": (unchecked(Cauchy, "loc", "scale"), (place, size)),
    "Gumbel": (unchecked(Gumbel, "loc", "scale"), (low, high)),
    "Exponential": (unchecked(Exponential, "rate"), (size,)),
    "Gamma": (unchecked(Gamma, "concentration", "rate"), (size, size)),
    "InverseGamma": (unchecked(InverseGamma, "concentration", "rate"), (size, size)),
    "HalfNormal": (unchecked(HalfNormal, "scale"), (size,)),
    "HalfCauchy": (unchecked(HalfCauchy, "scale"), (size,)),
    "Pareto": (unchecked(Pareto, "scale", "alpha"), (size, size)),
    "Uniform": (unchecked(Uniform, "low", "high"), (low, high)),
    "Beta": (unchecked(Beta, "concentration1", "concentration0"), (size, size)),
    "Poisson": (unchecked(Poisson, "rate"), (size,)),
    "Bernoulli(logits)": (unchecked(Bernoulli, "logits"), (place,)),
    "Bernoulli(probs)": (unchecked(Bernoulli, "probs"), (share,)),
    "Binomial(logits)": (unchecked(Binomial, "total_count", "logits"), (count, place)),
    "Binomial(probs)": (unchecked(Binomial, "total_count", "probs"), (count, share)),
    "Geometric(logits)": (unchecked(Geometric, "logits"), (place,)),
    "Geometric(probs)": (unchecked(Geometric, "probs"), (share,)),
    "Dirichlet": (unchecked(Dirichlet, "concentration"), (sizes_of_three,)),
    "Categorical(logits)": (unchecked(Categorical, "logits"), (logits_of_five,)),
    "Categorical(probs)": (unchecked(Categorical, "probs"), (shares_of_five,)),
    "OneHotCategorical(logits)": (unchecked(OneHotCategorical, "logits"), (logits_of_five,)),
}
ALL = pytest.mark.parametrize("name", FAMILIES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def drawn(name: str, n: int = BATCH, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(seed)
    sources = FAMILIES[name][1]
    p = [source(n) for source in sources]
    q = [x if source is count else source(n) for source, x in zip(sources, p, strict=True)]
    return p, q


def nearby(name: str, relative: float) -> tuple[list[Tensor], list[Tensor]]:
    p, _ = drawn(name)
    sources = FAMILIES[name][1]
    factors = (1 + relative, 1 - relative)
    if p[0].dim() > 1:
        factors = (1 + relative * torch.linspace(-1, 1, p[0].shape[-1], dtype=torch.float64),)
    q = [x if source is count else x * f for source, x, f in zip(sources, p, factors, strict=False)]
    if share in sources:
        q[-1] = torch.where(q[-1] < 1, q[-1], p[-1] * (1 - relative))
    if name == "Pareto":
        q[0] = p[0] * (1 - relative)
    return p, q


def with_gradients(name: str, p: list[Tensor], q: list[Tensor]) -> tuple[Tensor, ...]:
    """The value and, of its finite elements, the gradient, as `kl_divergence` has them."""
    family, sources = FAMILIES[name]
    leaves = [x.detach().clone().requires_grad_() for x in (*p, *q)]
    split = len(p)
    free = [
        x if source is not count else x.detach()
        for x, source in zip(leaves, (*sources, *sources), strict=True)
    ]
    value = kl_divergence(family(*free[:split]), family(*free[split:]))
    wanted = [x for x in free if x.requires_grad]
    weights = torch.linspace(-1, 2, value.numel()).view_as(value).to(value.dtype)
    return value.detach(), *torch.autograd.grad(
        torch.where(value.isfinite(), value, 0), wanted, weights, materialize_grads=True
    )


def plainly(name: str, p: list[Tensor], q: list[Tensor]) -> tuple[Tensor, ...]:
    with patch.object(native_forms, "_is_available", lambda: False):
        return with_gradients(name, p, q)


def is_fused(p: Distribution, q: Distribution) -> bool:
    return closed_forms.fused_divergence(p, q) is not None


@ALL
@pytest.mark.parametrize("relative", [None, 1e-8, 1e-5, 1e-3, 0.03, 0.2])
def test_values_and_gradients_are_those_of_plain_torch(name: str, relative: float | None) -> None:
    p, q = drawn(name) if relative is None else nearby(name, relative)
    family = FAMILIES[name][0]
    assert is_fused(family(*p), family(*q))
    found, expected = with_gradients(name, p, q), plainly(name, p, q)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-15)
    compare_gradients(name, (p, q), found[1:], expected[1:], 1e-9)


def compare_gradients(
    name: str,
    at: tuple[list[Tensor], list[Tensor]],
    found: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    rtol: float,
) -> None:
    """Where the terms of a gradient cancel, it is exact to 13 digits of what the others are, in units of their own."""
    sources = FAMILIES[name][1]
    units = [
        side[-1].abs()
        if source is place and len(side) > 1 and count not in sources
        else x.abs()
        if source in (size, share)
        else torch.ones_like(x)
        for side in at
        for x, source in zip(side, sources, strict=True)
        if source is not count
    ]
    natural = torch.stack([g.abs() * unit for g, unit in zip(expected, units, strict=True)]).amax(0)
    if natural.dim() > 1:
        natural = natural.amax(-1, keepdim=True)
    for ours, theirs, unit in zip(found, expected, units, strict=True):
        allowed = rtol * theirs.abs() + 1e-13 * natural / unit + 1e-15
        close = (ours == theirs) | ((ours - theirs).abs() <= allowed)
        assert bool(close.all()), (ours[~close], theirs[~close], [[x[~close] for x in side] for side in at])


@ALL
def test_float32_is_float64_rounded(name: str) -> None:
    family = FAMILIES[name][0]
    p, q = ([x.float() for x in side] for side in drawn(name))
    found = with_gradients(name, p, q)
    wide = with_gradients(name, *([x.double() for x in side] for side in (p, q)))
    assert is_fused(family(*p), family(*q))
    for ours, exact in zip(found, wide, strict=True):
        assert ours.dtype == torch.float32
        # torch brings the numbers of a Categorical to a sum of 1 in their own dtype.
        rtol = 1e-4 if "Categorical" in name else 3e-7
        torch.testing.assert_close(ours, exact.float(), rtol=rtol, atol=0)


@ALL
def test_any_size_gives_the_same_numbers(name: str) -> None:
    p, q = drawn(name, 9_000)
    family = FAMILIES[name][0]
    whole = kl_divergence(family(*p), family(*q))
    for start, stop in ((0, 1), (1, 8), (300, 813), (4000, 8999)):
        part = kl_divergence(family(*(x[start:stop] for x in p)), family(*(x[start:stop] for x in q)))
        torch.testing.assert_close(part, whole[start:stop], rtol=1e-13, atol=1e-16)
    if "OneHot" not in name:  # torch has none without elements
        assert kl_divergence(family(*(x[:0] for x in p)), family(*(x[:0] for x in q))).shape == (0,)


@ALL
@DTYPES
def test_the_same_distribution_is_at_0_with_gradient_0(name: str, dtype: torch.dtype) -> None:
    p = [x.to(dtype) for x in drawn(name)[0]]
    for result in with_gradients(name, p, p):
        assert torch.equal(result, torch.zeros_like(result))


@ALL
def test_extreme_parameters_are_as_in_plain_torch(name: str) -> None:
    order = torch.Generator().manual_seed(1)

    def any_of(source: Callable[[int], Tensor]) -> Tensor:
        extremes = {
            size: SIZES,
            place: (-400.0, -100.0, 0.0, 1e-30, 100.0, 300.0)
            if "logits" in name
            else (-1e30, -1.0, 0.0, 1e-30, 1e30),
            share: (1e-300, 1e-6, 0.5, 1.0 if "Geometric" in name else 0.0, 1.0),
        }.get(source)
        if extremes is None:
            return source(400)
        return torch.tensor(extremes, dtype=torch.float64)[
            torch.randint(len(extremes), (400,), generator=order)
        ]

    sources = FAMILIES[name][1]
    p = [any_of(source) for source in sources]
    q = [x if source is count else any_of(source) for source, x in zip(sources, p, strict=True)]
    for i in range(0, 400, 4):  # a batch that the kernels decline says nothing about its neighbors
        part = [x[i : i + 4] for x in p], [x[i : i + 4] for x in q]
        found, expected = with_gradients(name, *part), plainly(name, *part)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-300)
        assert not bool(found[0].isnan().any())
        compare_gradients(name, part, found[1:], expected[1:], 1e-7)


@pytest.mark.parametrize("number", [1e-90, 1e90, 0.0, -1.0, torch.inf, torch.nan])
def test_what_leaves_the_range_of_float64_is_left_to_plain_torch(number: float) -> None:
    scale = torch.tensor([1.0, number], dtype=torch.float64)
    p = Normal(torch.zeros(2, dtype=torch.float64), scale, validate_args=False)
    q = Normal(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    assert not is_fused(p, q)
    assert not is_fused(q, p)
    with patch.object(native_forms, "_is_available", lambda: False):
        expected = kl_divergence(p, q)
    torch.testing.assert_close(kl_divergence(p, q), expected, equal_nan=True)


@DTYPES
def test_certain_outcomes_and_supports_that_reach_out(dtype: torch.dtype) -> None:
    probabilities = torch.tensor([0.0, 1e-30, 0.3, 1.0], dtype=dtype)
    p, q = (x.flatten() for x in torch.meshgrid(probabilities, probabilities, indexing="ij"))
    for name, given in (
        ("Bernoulli(probs)", [[p], [q]]),
        ("Binomial(probs)", [[torch.full_like(p, 3), p], [torch.full_like(q, 3), q]]),
    ):
        assert is_fused(*(FAMILIES[name][0](*side) for side in given))
        for ours, theirs in zip(with_gradients(name, *given), plainly(name, *given), strict=True):
            torch.testing.assert_close(ours, theirs)
    found = kl_divergence(Bernoulli(p), Bernoulli(q)).view(4, 4)
    assert found.isinf().tolist() == [
        [False, False, False, True],
        [True, False, False, True],
        [True, False, False, True],
        [True, False, False, False],
    ]
    ends = torch.tensor([0.0, 0.5, 2.0], dtype=dtype)
    one = torch.ones(3, dtype=dtype)
    assert kl_divergence(Uniform(0 * one, one), Uniform(ends, ends + 1)).isinf().tolist() == [
        False,
        True,
        True,
    ]
    assert kl_divergence(Pareto(one, one), Pareto(ends + 0.5, one)).isinf().tolist() == [False, False, True]


def test_different_counts_go_to_the_sum() -> None:
    p, q = (
        Binomial(torch.tensor([3.0, 3.0]), torch.tensor(0.3)),
        Binomial(torch.tensor([3.0, 4.0]), torch.tensor(0.4)),
    )
    assert closed_forms.fused_divergence(p, q) is None
    assert kl_estimate(p, q).method == "summation"


@pytest.mark.parametrize("change", ["broadcast", "transposed", "expanded", "scalar", "other"])
def test_any_layout(change: str) -> None:
    torch.manual_seed(0)
    loc, scale = torch.randn(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64) + 0.5
    p, q = [loc, scale], [loc.flip(0), scale.flip(0)]
    if change == "broadcast":
        q = [x[:, :1] for x in q]
        p = [x[None] for x in p]
    elif change == "transposed":
        q = [x.mT.contiguous().mT for x in q]
    elif change == "expanded":
        p = [x[0].expand(3, 4) for x in p]
        q = [torch.zeros(()).double().expand(3, 4), scale]
    elif change == "scalar":
        q = [x[0, 0] for x in q]
    else:
        p = [x[1, 2] for x in p]
    assert is_fused(Normal(*p), Normal(*q))
    for ours, theirs in zip(with_gradients("Normal", p, q), plainly("Normal", p, q), strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-14)


def test_batches_that_do_not_match_are_told() -> None:
    with refused(ValueError, wanted="batch shapes that broadcast"):
        kl_divergence(Normal(torch.zeros(3), 1.0), Normal(torch.zeros(2), 1.0))


@ALL
def test_it_is_differentiable_twice(name: str) -> None:
    family, sources = FAMILIES[name]
    bounds = {place: (-2.0, 2.0), size: (0.3, 4.0), share: (0.1, 0.9)}
    p, q = (
        [x.clamp(*bounds[source]) if source in bounds else x for x, source in zip(side, sources, strict=True)]
        for side in drawn(name, 3, seed=5)
    )
    if name == "Pareto":
        q[0] = p[0] / 2
    if name == "Uniform":
        q = [q[0] - 2, q[1] + 2]
    at = [
        x.requires_grad_(source is not count)
        for x, source in zip((*p, *q), (*sources, *sources), strict=True)
    ]

    def divergence(*x: Tensor) -> Tensor:
        return kl_divergence(family(*x[: len(p)]), family(*x[len(p) :]))

    assert gradcheck(divergence, at, fast_mode=True, check_batched_grad=True)
    assert gradgradcheck(divergence, at, fast_mode=True)


def test_a_second_backward_pass_computes_its_own_derivatives() -> None:
    p, q = drawn("Gamma", 5)
    leaves = [x.requires_grad_() for x in (*p, *q)]
    value = kl_divergence(Gamma(*leaves[:2]), Gamma(*leaves[2:]))
    first = torch.autograd.grad(value, leaves, torch.ones_like(value), retain_graph=True)
    second = torch.autograd.grad(value, leaves, 2 * torch.ones_like(value))
    for once, twice in zip(first, second, strict=True):
        torch.testing.assert_close(2 * once, twice)


def test_parameters_that_changed_are_noticed() -> None:
    scale = torch.ones(3, requires_grad=True)
    held = scale * 1
    value = kl_divergence(Normal(torch.zeros(3), held), Normal(torch.ones(3), torch.ones(3)))
    with torch.no_grad():
        held.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_only_derivatives_that_are_wanted_are_made() -> None:
    loc = torch.zeros(3, requires_grad=True)
    fixed = torch.ones(3)
    kl_divergence(Normal(fixed, fixed), Normal(loc, fixed)).sum().backward()
    assert torch.equal(loc.grad, -fixed)
    assert not kl_divergence(Normal(fixed, fixed), Normal(fixed, fixed)).requires_grad
    with torch.no_grad():
        assert not kl_divergence(Normal(fixed, fixed), Normal(loc, fixed)).requires_grad


def test_nothing_times_an_infinite_derivative_is_nothing() -> None:
    scale = torch.full((2,), 1e-30).requires_grad_()
    value = kl_divergence(Normal(torch.ones(2), 1.0), Normal(torch.zeros(2), scale))
    (gradient,) = torch.autograd.grad(value, scale, torch.tensor([0.0, 1.0]))
    assert gradient.tolist() == [0.0, -torch.inf]


def test_torch_func_and_forward_mode() -> None:
    loc = torch.tensor([0.3, -1.0], dtype=torch.float64)
    q = Normal(torch.zeros(2).double(), 2.0)

    def divergence(x: Tensor) -> Tensor:
        return kl_divergence(Normal(x, 1.0, validate_args=False), q).sum()

    expected = loc / 4
    torch.testing.assert_close(torch.func.grad(divergence)(loc), expected)
    torch.testing.assert_close(torch.func.jacfwd(divergence)(loc), expected)
    torch.testing.assert_close(torch.func.hessian(divergence)(loc), torch.eye(2).double() / 4)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(divergence))(loc[None]), expected[None])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(loc, torch.ones_like(loc))
        tangent = forward_ad.unpack_dual(divergence(dual)).tangent
    torch.testing.assert_close(tangent, expected.sum())


@pytest.mark.heavy
def test_it_compiles_in_one_graph_with_its_gradient() -> None:
    loc = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    q = Normal(torch.zeros(2).double(), torch.full((2,), 2.0).double(), validate_args=False)

    def divergence(x: Tensor) -> Tensor:
        return kl_divergence(Normal(x, torch.ones_like(x), validate_args=False), q)

    compiled = torch.compile(divergence, fullgraph=True, backend="aot_eager")(loc)
    torch.testing.assert_close(compiled, divergence(loc))
    (gradient,) = torch.autograd.grad(compiled.sum(), loc)
    torch.testing.assert_close(gradient, loc.detach() / 4)


def test_other_tensors_and_devices_are_not_taken() -> None:
    class Mine(Tensor):
        pass

    one = torch.ones(2)
    ordinary = Normal(one, one)
    for other in (one.as_subclass(Mine), one.to(torch.float16), one.to("meta")):
        p = Normal(other, other, validate_args=False)
        assert closed_forms.fused_divergence(p, p) is None
    assert closed_forms.fused_divergence(ordinary, Normal(one.double(), one)) is None
    assert closed_forms.fused_divergence(ordinary, Cauchy(one, one)) is None
    assert closed_forms.fused_divergence(ordinary, "no distribution") is None


@pytest.mark.usefixtures("registered_rules")
def test_a_rule_of_the_users_comes_first() -> None:
    one = torch.ones(2)
    register_kl(Normal, Normal)(lambda p, q: torch.full_like(p.loc, 42.0))
    assert kl_divergence(Normal(one, one), Normal(one, one)).tolist() == [42.0, 42.0]
    assert kl_divergence(Gamma(one, one), Gamma(one, one)).tolist() == [0.0, 0.0]


def test_subclasses_have_the_form_of_their_family() -> None:
    df = torch.tensor([1.0, 30.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([1.5, 31.0], dtype=torch.float64)
    assert is_fused(Chi2(df), Chi2(other))
    (found,) = torch.autograd.grad(kl_divergence(Chi2(df), Chi2(other)).sum(), df)
    (expected,) = torch.autograd.grad(
        kl_divergence(
            Gamma(df / 2, torch.full_like(df, 0.5)), Gamma(other / 2, torch.full_like(df, 0.5))
        ).sum(),
        df,
    )
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_what_the_threads_do_changes_nothing() -> None:
    p, q = drawn("Beta", 50_000)
    threads = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(kl_divergence(Beta(*p), Beta(*q)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
