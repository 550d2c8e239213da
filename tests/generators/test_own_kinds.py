"""Divergences of your own, of rows and distributions: `FDivergence` and subclasses of `Divergence`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Exponential,
    Gamma,
    Gumbel,
    Laplace,
    Normal,
    Poisson,
    StudentT,
    Uniform,
)

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Counts,
    Divergence,
    FDivergence,
    Jeffreys,
    JensenShannon,
    Logits,
    Probs,
    Renyi,
    ReverseKL,
    Samples,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError, NoRuleError
from kullback.generators import FinitePair
from kullback.generators.divergence import NAMED
from kullback.nn import DistillationLoss
from tests.refusals import refused

INF = math.inf
LEVEL = 1.5

# ---- By FDivergence. Each with the same function in mpmath.
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "Neyman": (lambda r: (1 - r) ** 2 / r, lambda r: (1 - r) ** 2 / r),
    "triangular": (lambda r: (r - 1) ** 2 / (r + 1), lambda r: (r - 1) ** 2 / (r + 1)),
    "hockey-stick": (lambda r: torch.relu(r - LEVEL), lambda r: max(r - mpmath.mpf(LEVEL), mpmath.mpf(0))),
    "Bhattacharyya": (lambda r: 1 - torch.sqrt(r), lambda r: 1 - mpmath.sqrt(r)),
    "order 1.3": (lambda r: r**1.3 - 1, lambda r: r ** mpmath.mpf("1.3") - 1),
}
KNOWN: list[tuple[Callable[[Tensor], Tensor], Divergence]] = [
    (lambda r: r * torch.log(r), KL()),
    (lambda r: -torch.log(r), ReverseKL()),
    (lambda r: (r - 1) * torch.log(r), Jeffreys()),
    (lambda r: r * torch.log(r) / 2 - (r + 1) / 2 * torch.log((1 + r) / 2), JensenShannon()),
    (lambda r: (r - 1) ** 2, ChiSquared()),
    (lambda r: (torch.sqrt(r) - 1) ** 2 / 2, SquaredHellinger()),
    (lambda r: (r - 1).abs() / 2, TotalVariation()),
    (lambda r: (r**0.3 - 1) / (0.3 * -0.7), Alpha(0.3)),
    (lambda r: (r**-1.5 - 1) / (1.5 * 2.5), Alpha(-1.5)),
]
IDS = [kind.name for _, kind in KNOWN]


def tensor(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def true_sum(f: Callable[[Any], Any], p: Tensor, q: Tensor) -> float:
    with mpmath.workdps(40):
        pairs = [(mpmath.mpf(a), mpmath.mpf(b)) for a, b in zip(p.tolist(), q.tolist(), strict=True)]
        total = [mpmath.fsum(side) for side in zip(*pairs, strict=True)]
        return float(mpmath.fsum(b / total[1] * f((a / total[0]) / (b / total[1])) for a, b in pairs))


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_those_of_mpmath(name: str) -> None:
    f, true = FUNCTIONS[name]
    p, q = tensor(0.36, 0.48, 0.16), tensor(0.2, 0.7, 0.1)
    expected = true_sum(true, p, q)
    for pair in (
        (Probs(p), Probs(q)),
        (Logits(torch.log(p)), Logits(torch.log(q))),
        (Counts(100 * p), Counts(100 * q)),
    ):
        assert divergence(*pair, FDivergence(f)).item() == pytest.approx(expected, rel=1e-13)
    found = divergence(Categorical(probs=p), Categorical(probs=q), FDivergence(f))
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_distributions_are_those_of_mpmath(name: str) -> None:
    f, true = FUNCTIONS[name]
    with mpmath.workdps(30):

        def p(x: Any) -> Any:
            return mpmath.exp(-abs(x - mpmath.mpf("0.25")) / mpmath.mpf("1.5")) / 3

        def q(x: Any) -> Any:
            return mpmath.exp(-abs(x) / 2) / 4

        edges = [mpmath.mpf(0), mpmath.mpf("0.25")]
        for a, b in ((0, 0.25), (0.25, 60)):  # where p / q is the level
            log_ratio: Any = lambda x: mpmath.log(p(x) / q(x) / mpmath.mpf(LEVEL))  # noqa: E731
            ends = [log_ratio(mpmath.mpf(x)) for x in (a, b)]
            if ends[0] * ends[1] < 0:
                edges.append(mpmath.findroot(log_ratio, (a, b), solver="anderson"))
        edges = [-mpmath.inf, -60, -20, *sorted(edges), 20, 60, mpmath.inf]
        if name == "Neyman":  # whose tails grow, which mpmath is spared
            expected = float(divergence(Laplace(tensor(0.0), 2.0), Laplace(tensor(0.25), 1.5), ChiSquared()))
        else:
            integral: Any = mpmath.quad(lambda x: q(x) * true(p(x) / q(x)), edges)
            expected = float(integral)
    found = divergence(Laplace(tensor(0.25), 1.5), Laplace(tensor(0.0), 2.0), FDivergence(f))
    assert found.item() == pytest.approx(expected, rel=1e-9)


PAIRS: dict[str, tuple[Distribution, Distribution]] = {
    "Normal": (Normal(tensor(1.0), 0.9), Normal(tensor(0.0), 1.0)),
    "nearly equal": (Normal(tensor(1e-6), 1.0), Normal(tensor(0.0), 1.0)),
    "StudentT, Normal": (StudentT(tensor(3.0)), Normal(tensor(0.0), 1.0)),
    "a slow tail": (StudentT(tensor(2.05)), Normal(tensor(0.0), 1.0)),
    "infinite by a little": (StudentT(tensor(2.0)), Normal(tensor(0.0), 1.0)),
    "Cauchy, Normal": (Cauchy(tensor(0.0), 1.0), Normal(tensor(0.0), 1.0)),
    "Normal, Cauchy": (Normal(tensor(0.0), 1.0), Cauchy(tensor(0.0), 1.0)),
    "singular ends": (Beta(tensor(0.5), 0.5), Uniform(tensor(0.0), 1.0)),
    "inside": (Uniform(tensor(0.2), 1.0), Uniform(tensor(0.0), 1.0)),
    "outside": (Uniform(tensor(0.0), 1.0), Uniform(tensor(0.2), 1.0)),
    "a steep tail": (Cauchy(tensor(-0.7), 1.2), Gumbel(tensor(0.2), 1.1)),
    "Poisson": (Poisson(tensor(9.0)), Poisson(tensor(1.0))),
    "Gamma": (Gamma(tensor(2.0), 1.0), Exponential(tensor(0.7))),
}


@dataclass(frozen=True)
class Wrapped(Divergence):
    """A user's own kind with the plainest formulas of terms and derivatives there are."""

    f: Callable[[Tensor], Tensor]

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.q * self.f(pair.p / pair.q) - self._slope(torch.ones_like(pair.p)) * (pair.p - pair.q)

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p = pair.p * (self._slope(pair.p / pair.q) - self._slope(torch.ones_like(pair.p)))
        return by_p, self.terms(pair) - by_p

    def _slope(self, r: Tensor) -> Tensor:
        return torch.func.grad(lambda x: self.f(x).sum())(r)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("f", "kind"), KNOWN, ids=IDS)
def test_own_kinds_of_distributions_are_the_built_in_ones(
    f: Callable[[Tensor], Tensor], kind: Divergence, name: str
) -> None:
    p, q = PAIRS[name]
    expected = divergence(p, q, kind)
    # The plain formula of the subclass has no digits of nearly equal masses.
    relative = 2e-6 if name == "a slow tail" else 1e-8
    absolute = 1e-13 if name == "nearly equal" else 0.0
    torch.testing.assert_close(divergence(p, q, FDivergence(f)), expected, rtol=relative, atol=absolute)
    if name != "nearly equal":
        torch.testing.assert_close(divergence(p, q, Wrapped(f)), expected, rtol=relative, atol=1e-14)


@pytest.mark.parametrize("name", ["Normal", "StudentT, Normal", "Normal, Cauchy", "Gamma", "a steep tail"])
@pytest.mark.parametrize(("f", "kind"), KNOWN, ids=IDS)
def test_gradients_of_own_kinds_are_those_of_the_built_in_ones(
    f: Callable[[Tensor], Tensor], kind: Divergence, name: str
) -> None:
    p, q = PAIRS[name]
    gradients: list[Tensor] = []
    for each in (kind, FDivergence(f)):
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        if name == "Gamma":
            moved = [Gamma(2 * x[0], x[0]), Exponential(0.7 * x[1])]
        else:
            families: list[Any] = [type(p), type(q)]
            moved = [families[0](*_scaled(p, x[0])), families[1](*_scaled(q, x[1]))]
        value = divergence(moved[0], moved[1], each)
        gradients.append(torch.autograd.grad(value.sum(), x)[0])
        assert gradients[-1].isfinite().all()
    if value.isinf():  # a part of it is finite, which a built-in kind may tell apart
        return
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-9)


def _scaled(d: Any, by: Tensor) -> tuple[Tensor, ...]:
    parameters = (d.loc * by, d.scale * by)
    return (d.df, *parameters) if isinstance(d, StudentT) else parameters


ROWS = [
    (tensor(0.2, 0.5, 0.3), tensor(0.4, 0.4, 0.2)),
    (tensor(0.0, 0.7, 0.3), tensor(0.4, 0.4, 0.2)),
    (tensor(0.2, 0.5, 0.3), tensor(0.0, 0.8, 0.2)),
    (tensor(0.2, 0.5, 0.3), tensor(0.2, 0.5, 0.3)),
    (tensor(0.0, 0.7, 0.3), tensor(0.0, 0.6, 0.4)),
    (tensor(1e-200, 0.7, 0.3), tensor(1e-250, 0.6, 0.4)),
]


@pytest.mark.parametrize("row", range(len(ROWS)))
@pytest.mark.parametrize(("f", "kind"), KNOWN, ids=IDS)
def test_rows_and_their_gradients_are_those_of_the_built_in_kinds(
    f: Callable[[Tensor], Tensor], kind: Divergence, row: int
) -> None:
    results: list[list[Tensor]] = []
    for each in (kind, FDivergence(f)):
        p, q = (torch.log(x).requires_grad_() for x in ROWS[row])
        value = divergence(Logits(p), Logits(q), each)
        results.append([value.detach(), *torch.autograd.grad(value, (p, q))])
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-11, atol=1e-13)
    assert all(x.isfinite().all() for x in results[1][1:])
    if results[0][0].isfinite():  # what makes a value infinite adds nothing
        for expected, found in zip(*results, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


def test_losses_take_a_function_of_ones_own() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher = torch.randn(5, 40, generator=generator)
    gradients: list[Tensor] = []
    for kind in (FDivergence(lambda r: (r - 1) ** 2), ChiSquared()):
        student = torch.randn(5, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
        loss = DistillationLoss(kind=kind)(student=student, teacher=teacher)
        loss.backward()
        assert student.grad is not None
        gradients += [loss.detach(), student.grad]
    torch.testing.assert_close(gradients[:2], gradients[2:], rtol=1e-5, atol=1e-7)


def test_draws_are_refused_for_an_own_kind() -> None:
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for kind in (FDivergence(lambda r: r * torch.log(r)), Half(KL())):
        with refused(NoRuleError, wanted="draws"):
            divergence(Samples(x), Samples(x + 1), kind)


def test_second_derivatives_of_a_hockey_stick() -> None:
    kind = FDivergence(FUNCTIONS["hockey-stick"][0])

    def gradient(m: Tensor) -> Tensor:
        m = m.clone().requires_grad_()
        value = divergence(Normal(m, 1.1), Normal(tensor(0.0)[0], 0.9), kind)
        return torch.autograd.grad(value, m, create_graph=True)[0]

    m = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    value = divergence(Normal(m, 1.1), Normal(tensor(0.0)[0], 0.9), kind)
    (first,) = torch.autograd.grad(value, m, create_graph=True)
    (second,) = torch.autograd.grad(first, m)
    h = 1e-5
    assert second.item() == pytest.approx(((gradient(m + h) - gradient(m - h)) / (2 * h)).item(), rel=1e-5)


# ---- What FDivergence refuses, and what it reads.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"f": lambda r: r * torch.log(r) + 1}, r"f\(1\) = 1"),
        ({"f": lambda r: -((r - 1) ** 2)}, "decreasing slope"),
        ({"f": lambda r: -torch.log(r), "f_at_zero": 3.0}, "f_at_zero"),
        ({"f": lambda r: r * torch.log(r), "slope_at_infinity": 2.0}, "slope_at_infinity"),
        ({"f": lambda r: (r - 1) ** 2 / (r + 1), "f_at_zero": INF}, "f_at_zero"),
    ],
)
def test_functions_and_limits_are_checked(arguments: dict[str, Any], message: str) -> None:
    with refused(ArgumentValueError, says=message):
        FDivergence(**arguments)


def test_limits_that_are_right_are_taken() -> None:
    FDivergence(lambda r: r * torch.log(r), f_at_zero=0.0, slope_at_infinity=INF)
    FDivergence(lambda r: -torch.log(r), f_at_zero=INF, slope_at_infinity=0.0)
    FDivergence(lambda r: (r - 1) ** 2 / (r + 1), f_at_zero=1.0, slope_at_infinity=1.0)
    FDivergence(lambda r: 2 * torch.relu(r - LEVEL), f_at_zero=0, slope_at_infinity=2)


@pytest.mark.parametrize("f", [3, lambda r: float(r.sum()), lambda r: r.sum()])
def test_only_functions_of_tensors_are_taken(f: Any) -> None:
    with refused(ArgumentTypeError, call="FDivergence"):
        FDivergence(f)


def test_the_remedy_for_a_function_that_is_not_0_at_1_works() -> None:
    f = lambda r: r * torch.log(r) + 1  # noqa: E731
    shifted = FDivergence(lambda r: f(r) - f(torch.ones(())))
    p, q = Probs([0.2, 0.8]), Probs([0.5, 0.5])
    torch.testing.assert_close(divergence(p, q, shifted), divergence(p, q, KL()))


# ---- Built-in kinds are final; half of one is written in three ways.


@dataclass(frozen=True)
class Half(Divergence):
    """Half of another kind."""

    whole: Divergence

    def terms(self, pair: FinitePair) -> Tensor:
        return self.whole.terms(pair) / 2

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p, by_q = self.whole.derivatives(pair)
        return by_p / 2, by_q / 2


@dataclass(frozen=True)
class HalfByAutograd(Divergence):
    """Half of another kind, with derivatives by autograd."""

    whole: Divergence

    def terms(self, pair: FinitePair) -> Tensor:
        return self.whole.terms(pair) / 2


class HalfTotal(Half):
    """Half of another kind that is no sum of its terms."""

    def terms(self, pair: FinitePair) -> Tensor:
        return self.whole.terms(pair)

    def total(self, pair: FinitePair) -> Tensor:
        return self.whole.total(pair) / 2


HALVES: list[tuple[Divergence, Divergence]] = [
    (Half(KL()), KL()),
    *((HalfByAutograd(kind), kind) for _, kind in KNOWN),
    *((FDivergence(lambda r, f=f: f(r) / 2), kind) for f, kind in KNOWN),
    (Half(Alpha(2.0)), Alpha(2.0)),
    (Half(Alpha(1.0)), Alpha(1.0)),
    (HalfTotal(Renyi(0.5)), Renyi(0.5)),  # Bhattacharyya's distance
    (HalfTotal(Renyi(1.5)), Renyi(1.5)),
]


@pytest.mark.parametrize(
    ("half", "whole"), HALVES, ids=[f"{type(half).__name__} {whole.name}" for half, whole in HALVES]
)
@pytest.mark.parametrize("where", ["Normal", "Gamma", "Poisson", "Categorical", "Logits"])
def test_half_of_a_kind_is_half_in_value_and_gradient(
    half: Divergence, whole: Divergence, where: str
) -> None:
    makers: dict[str, Callable[[Tensor], Any]] = {
        "Normal": lambda x: (Normal(x, 0.9), Normal(0.0, 1.0)),
        "Gamma": lambda x: (Gamma(x + 1, 1.0), Exponential(0.7)),
        "Poisson": lambda x: (Poisson(x), Poisson(2.0)),
        "Categorical": lambda x: tuple(Categorical(logits=y) for y in _logits(x)),
        "Logits": lambda x: tuple(Logits(y) for y in _logits(x)),
    }
    results: list[Tensor] = []
    for kind in (half, whole):
        x = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
        p, q = makers[where](x)
        value = divergence(p, q, kind)
        results.append(torch.stack([value.detach(), *torch.autograd.grad(value, x)]))
    torch.testing.assert_close(2 * results[0], results[1], rtol=1e-8, atol=1e-12)


def _logits(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.stack([x, 2 * x, x * 0]), tensor(0.3, -1.0, 0.5)


@pytest.mark.sweep
def test_derivatives_by_autograd_are_those_of_formulas_by_every_route() -> None:
    def weighted(kind: Divergence, p: Tensor, q: Tensor) -> Tensor:
        return divergence(Logits(p), Logits(q), kind) * 1.5

    for formula in (Half(Jeffreys()), Half(ChiSquared()), HalfTotal(Renyi(0.5))):
        by_autograd = type(formula.name, (type(formula),), {"derivatives": Divergence.derivatives})(
            formula.whole
        )
        for row in ROWS[:1] + ROWS[3:]:
            p, q = (x.log() for x in row)
            results: list[list[Tensor]] = []
            for kind in (by_autograd, formula):
                call: Any = lambda a, b, kind=kind: weighted(kind, a, b)  # noqa: E731
                first = torch.func.grad(call, (0, 1))
                twice = torch.func.grad(lambda a, b, first=first: (first(a, b)[0] ** 2).nansum(), (0, 1))
                batch = torch.vmap(first)(p.expand(2, -1), q.expand(2, -1))
                forward = torch.func.jvp(call, (p, q), (torch.ones_like(p), p.nan_to_num(neginf=0.0)))
                results.append([*first(p, q), *twice(p, q), *batch, *forward])
            torch.testing.assert_close(
                *results, rtol=1e-9, atol=1e-12, msg=lambda m, f=formula, r=row: f"{f}, {r}: {m}"
            )


def test_a_kind_of_kullback_s_cannot_be_subclassed() -> None:
    for kind in {type(kind) for _, kind in KNOWN} | {Renyi, SkewKL}:
        for bases in ((kind,), (Mixin, kind), (Half, kind)):
            for members in ({}, {"terms": lambda _, pair: pair.p, "short_name": "mine"}):
                with refused(
                    ArgumentTypeError,
                    call="Mine",
                    argument="base",
                    got=f"^{kind.__name__}$",
                    instead="FDivergence.*subclass of Divergence with its own terms",
                ):
                    type("Mine", bases, members)
        with refused(ArgumentTypeError, argument="base"):
            make_dataclass("Mine", ["size"], bases=(kind,), frozen=True)
    assert "mine" not in NAMED
    p, q = Probs([0.2, 0.8]), Probs([0.5, 0.5])
    for half in (FDivergence(lambda r: (r - 1) ** 2 / 2), HalfByAutograd(ChiSquared())):  # both remedies
        torch.testing.assert_close(2 * divergence(p, q, half), divergence(p, q, ChiSquared()))


class Mixin:
    """A class that is no divergence."""


@dataclass(frozen=True)
class TermsAlone(Half):
    """Terms whose derivatives are not its own."""

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return self.whole.derivatives(pair)


@pytest.mark.parametrize("pair", [(Probs([0.2, 0.8]), Probs([0.5, 0.5])), PAIRS["Normal"]])
def test_derivatives_that_are_not_those_of_the_terms_are_refused(pair: tuple[Any, Any]) -> None:
    with refused(ArgumentValueError, call="TermsAlone", argument="derivatives"):
        divergence(*pair, TermsAlone(KL()))


@dataclass(frozen=True)
class Bhattacharyya(Divergence):
    """-log sum sqrt(p q), a function of a sum of terms."""

    def terms(self, pair: FinitePair) -> Tensor:
        return (torch.sqrt(pair.p) - torch.sqrt(pair.q)) ** 2 / 2

    def total(self, pair: FinitePair) -> Tensor:
        return -torch.log1p(-self.terms(pair).sum(-1))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        root = torch.sqrt(pair.p * pair.q)
        common = (1 - self.terms(pair).sum(-1, keepdim=True)) * 2
        return (pair.p - root) / common, (pair.q - root) / common


@pytest.mark.parametrize("name", ["Normal", "Normal, Cauchy", "Poisson", "Gamma", "inside"])
def test_a_function_of_a_sum_of_terms(name: str) -> None:
    p, q = PAIRS[name]
    torch.testing.assert_close(
        divergence(p, q, Bhattacharyya()), divergence(p, q, Renyi(0.5)) / 2, rtol=1e-8, atol=1e-12
    )
