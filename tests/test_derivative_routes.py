"""A derivative does not depend on how it is asked for, whatever parameters P and Q share, chain or repeat.

The truths are formulas with 90 digits (`tests/oracles/routes.py`), or plain formulas in torch's own operations.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions as td

import kullback
from kullback import (
    KL,
    Divergence,
    Jeffreys,
    JensenShannon,
    Logits,
    LogProbs,
    Probs,
    Renyi,
    ReverseKL,
    SkewKL,
    TotalVariation,
    divergence,
    kl_divergence,
    kl_estimate,
)
from kullback.errors import NoRuleError
from kullback.functional import (
    TopK,
    distillation_loss,
    kl_div,
    linear_distillation_loss,
)
from kullback.nn import KLRegularizer
from tests.oracles import routes
from tests.oracles.routes import FIRST, ROUTES, SECOND, case_of, wrong_routes
from tests.refusals import refused

Function = Callable[[Tensor], Tensor]
ENTRIES = routes.load()
CASES = [case_of(**entry) for entry in ENTRIES]
OURS = ("create_graph", "double backward")


@pytest.mark.sweep
def test_pairs_with_shared_parameters_have_the_derivatives_of_their_formulas() -> None:
    """Every pair of the audit that has a formula, by the routes of plain autograd."""
    wrong: list[str] = []
    for case in CASES:
        found = wrong_routes(
            lambda t, case=case: kl_divergence(*case.distributions(t)), case.start, case.truth, OURS
        )
        wrong += [f"{case.name}: {each}" for each in found]
    assert len(CASES) >= 500
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong[:20]])


def test_a_sample_of_the_truths_comes_out_again() -> None:
    for entry in random.Random(1).sample(ENTRIES, 20):  # noqa: S311
        truth = routes.truth_of(entry["name"], entry["way"], entry["at"])
        assert truth == pytest.approx(entry["truth"], rel=1e-12, abs=1e-30), entry


@pytest.mark.sweep
def test_a_sample_of_pairs_agrees_by_every_route_and_function() -> None:
    rng = random.Random(2)  # noqa: S311
    functions: dict[str, Callable[[Any, Any], Tensor]] = {
        "kl_divergence": kl_divergence,
        "kl_estimate": lambda p, q: kl_estimate(p, q).value,
        "ReverseKL": lambda p, q: divergence(q, p, ReverseKL()),
        "cross_entropy - entropy": lambda p, q: kullback.cross_entropy(p, q) - kullback.entropy(p),
        "install": td.kl_divergence,
    }
    with kullback.install():
        for case in rng.sample(CASES, 24):
            name = rng.choice(sorted(functions))
            if name.startswith("cross") and "Normal|Normal" not in case.name:
                name = "kl_divergence"
            names = [
                *rng.sample(sorted(FIRST.keys() - {"func.linearize"}), 3),
                *rng.sample(sorted(SECOND), 2),
            ]
            f = lambda t, case=case, name=name: functions[name](*case.distributions(t))  # noqa: E731
            assert not wrong_routes(f, case.start, case.truth, names), (case.name, name)


# ---- Functions and kinds, against plain formulas.


def normal(loc: Any, scale: Any) -> td.Normal:
    return td.Normal(
        torch.as_tensor(loc, dtype=torch.float64),
        torch.as_tensor(scale, dtype=torch.float64),
        validate_args=False,
    )


def of_normals(a: Any, s: Any, b: Any, u: Any) -> Tensor:
    a, s, b, u = (torch.as_tensor(x, dtype=torch.float64) for x in (a, s, b, u))
    return torch.log(u / s) + (s**2 + (a - b) ** 2) / (2 * u**2) - 0.5


BASE = torch.tensor([[0.3, -1.0, 0.5], [1.2, 0.1, -0.4]], dtype=torch.float64)
HEAD = torch.tensor(
    [[0.5, -0.2, 0.1], [0.3, 0.8, -0.6], [-0.4, 0.2, 0.9], [0.7, 0.0, 0.3]], dtype=torch.float64
)
FORMULAS: dict[Divergence, Callable[[Tensor, Tensor], Tensor]] = {
    KL(): lambda p, q: (p * (p / q).log()).sum(-1),
    ReverseKL(): lambda p, q: (q * (q / p).log()).sum(-1),
    Jeffreys(): lambda p, q: ((p - q) * (p / q).log()).sum(-1),
    JensenShannon(0.3): lambda p, q: (
        0.3 * (p * (p / (0.3 * p + 0.7 * q)).log()).sum(-1)
        + 0.7 * (q * (q / (0.3 * p + 0.7 * q)).log()).sum(-1)
    ),
    SkewKL(1e-9): lambda p, q: (p * (p / (1e-9 * p + (1 - 1e-9) * q)).log()).sum(-1),
    Renyi(0.4): lambda p, q: (p**0.4 * q**0.6).sum(-1).log() / -0.6,
    TotalVariation(): lambda p, q: (p - q).abs().sum(-1) / 2,
}


def student(t: Tensor) -> Tensor:
    return BASE * t


def teacher(t: Tensor) -> Tensor:
    """Logits that are computed from the student's."""
    x = student(t)
    return x + torch.sin(x)


def plain(t: Tensor, kind: Divergence = KL()) -> Tensor:  # noqa: B008
    return FORMULAS[kind](teacher(t).softmax(-1), student(t).softmax(-1))


def top(t: Tensor) -> TopK:
    indices = torch.tensor([[0, 2], [1, 0]])
    return TopK(indices, teacher(t).log_softmax(-1).gather(-1, indices), validate=False)


def plain_top(t: Tensor) -> Tensor:
    of_p, of_q = (x.softmax(-1).gather(-1, top(t).indices) for x in (teacher(t), student(t)))
    p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (of_p, of_q))
    return FORMULAS[KL()](p, q).mean()


def hidden(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of the student, those of the teacher made from them, and one head for both."""
    x = student(t)
    return x, x * x + t, HEAD * t


def head_loss(t: Tensor, **options: Any) -> Tensor:
    x, y, weight = hidden(t)
    return linear_distillation_loss(
        student=x, student_weight=weight, teacher=y, teacher_weight=weight, **options
    ).sum()


def plain_head(t: Tensor) -> Tensor:
    x, y, weight = hidden(t)
    return FORMULAS[KL()]((y @ weight.T).softmax(-1), (x @ weight.T).softmax(-1))


def root(t: Tensor) -> Tensor:
    return HEAD[:3].tril(-1) * t + torch.diag_embed(torch.tensor([0.7, 1.1, 0.9], dtype=torch.float64) + t)


GAUSSIANS: dict[str, Callable[[Tensor], Any]] = {
    "low rank": lambda t: td.LowRankMultivariateNormal(
        BASE[0] * t, HEAD[:3, :1] * t, torch.exp(BASE[1] * t), validate_args=False
    ),
    "root": lambda t: td.MultivariateNormal(BASE[1] * t, scale_tril=root(t), validate_args=False),
    "covariance": lambda t: td.MultivariateNormal(
        BASE[1] * t, covariance_matrix=root(t) @ root(t).mT, validate_args=False
    ),
    "precision": lambda t: td.MultivariateNormal(
        BASE[0] * t, precision_matrix=root(t) @ root(t).mT, validate_args=False
    ),
}


def plain_gaussians(p: Any, q: Any) -> Tensor:
    """Return the textbook formula, with inverses and determinants."""
    inverse, shift = torch.linalg.inv(q.covariance_matrix), p.loc - q.loc
    ratio = inverse @ p.covariance_matrix
    return (ratio.trace() - len(shift) - torch.logdet(ratio) + shift @ inverse @ shift) / 2


# Each: the function under test, and the formula.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "one scale for both": (
        lambda t: kl_divergence(normal(0.2, t), normal(1.0, t)),
        lambda t: of_normals(0.2, t, 1.0, t),
    ),
    "residual posterior": (
        lambda t: kl_divergence(normal(t + 0.5, 0.8), normal(t, 1.0)),
        lambda t: of_normals(t + 0.5, 0.8, t, 1.0),
    ),
    "Jeffreys of normals": (
        lambda t: divergence(normal(t, t), normal(1.0, t + 1), Jeffreys()),
        lambda t: of_normals(t, t, 1.0, t + 1) + of_normals(1.0, t + 1, t, t),
    ),
    "cross_entropy": (
        lambda t: kullback.cross_entropy(normal(t, t), normal(1.0, t)),
        lambda t: of_normals(t, t, 1.0, t) + torch.log(t) + 1.4189385332046727,
    ),
    "KLRegularizer": (
        lambda t: KLRegularizer(batch_dims=0)(normal(t, t).expand((3,)), normal(1.0, t).expand((3,))),
        lambda t: 3 * of_normals(t, t, 1.0, t),
    ),
    "Bernoulli and Poisson": (
        lambda t: kl_divergence(td.Bernoulli(t / 2, validate_args=False), td.Poisson(t, validate_args=False)),
        lambda t: torch.distributions.kl._kl_bernoulli_poisson(
            td.Bernoulli(t / 2, validate_args=False), td.Poisson(t, validate_args=False)
        ),
    ),
    "Beta and Uniform": (
        lambda t: kl_divergence(
            td.Beta(t, t, validate_args=False), td.Uniform(-t, t + 1, validate_args=False)
        ),
        lambda t: torch.distributions.kl._kl_beta_uniform(
            td.Beta(t, t, validate_args=False), td.Uniform(-t, t + 1, validate_args=False)
        ),
    ),
    **{
        f"{name_p} and {name_q}": (
            lambda t, p=name_p, q=name_q: kl_divergence(GAUSSIANS[p](t), GAUSSIANS[q](t + t**2)),
            lambda t, p=name_p, q=name_q: plain_gaussians(GAUSSIANS[p](t), GAUSSIANS[q](t + t**2)),
        )
        for name_p, name_q in itertools.product(("low rank", "root", "covariance", "precision"), repeat=2)
    },
    "Independent": (
        lambda t: kl_divergence(
            td.Independent(td.Normal(t * HEAD, (t * HEAD).exp(), validate_args=False), 2),
            td.Independent(td.Normal(t + HEAD, (t * HEAD).exp(), validate_args=False), 2),
        ),
        lambda t: of_normals(t * HEAD, (t * HEAD).exp(), t + HEAD, (t * HEAD).exp()).sum(),
    ),
    "tanh of normals": (
        lambda t: kl_divergence(
            *(
                td.TransformedDistribution(each, [td.TanhTransform()], validate_args=False)
                for each in (normal(t, t), normal(0.5, t))
            )
        ),
        lambda t: of_normals(t, t, 0.5, t),
    ),
    "kl_div": (
        lambda t: kl_div(
            student(t).log_softmax(-1), teacher(t).log_softmax(-1), reduction="sum", log_target=True
        ),
        lambda t: plain(t).sum(),
    ),
    "kl_div of one tensor": (
        lambda t: kl_div((x := student(t).log_softmax(-1)), (2 * x).softmax(-1), reduction="sum"),
        lambda t: (
            ((x := student(t).log_softmax(-1)) * 2).softmax(-1).mul((2 * x).softmax(-1).log() - x).sum()
        ),
    ),
    "distillation_loss": (
        lambda t: distillation_loss(student=student(t), teacher=teacher(t), temperature=2.0),
        lambda t: FORMULAS[KL()]((teacher(t) / 2).softmax(-1), (student(t) / 2).softmax(-1)).mean(),
    ),
    "distillation_loss of top classes": (
        lambda t: distillation_loss(student=student(t), teacher=top(t)),
        plain_top,
    ),
    "linear_distillation_loss": (head_loss, lambda t: plain_head(t).mean()),
    "linear_distillation_loss of rows": (
        lambda t: head_loss(t, reduction="none"),
        lambda t: plain_head(t).sum(),
    ),
    "probabilities": (
        lambda t: kl_divergence(Probs(teacher(t).softmax(-1)), LogProbs(student(t).log_softmax(-1))).sum(),
        lambda t: plain(t).sum(),
    ),
    **{
        f"{kind!r} of logits": (
            lambda t, kind=kind: divergence(Logits(teacher(t)), Logits(student(t)), kind).sum(),
            lambda t, kind=kind: plain(t, kind).sum(),
        )
        for kind in FORMULAS
    },
    **{
        f"{kind!r} of categories": (
            lambda t, kind=kind: divergence(
                *(td.Categorical(logits=x(t), validate_args=False) for x in (teacher, student)), kind
            ).sum(),
            lambda t, kind=kind: plain(t, kind).sum(),
        )
        for kind in FORMULAS
    },
}
NOT_FORWARD: set[str] = set()
OF_FORWARD = {"forward_ad", "func.jvp", "func.linearize", "forward over backward", "func.hessian"}


@pytest.mark.heavy
def test_functions_agree_with_plain_formulas_by_every_route() -> None:
    """Every function by the routes of autograd, and by four of the others, which differ from function to function."""
    others = sorted(ROUTES.keys() - set(OURS))
    wrong: list[str] = []
    for i, (name, (f, formula)) in enumerate(FUNCTIONS.items()):
        truth = (float(FIRST["backward"](formula, 0.7)), float(SECOND["double backward"](formula, 0.7)))
        names = [*OURS, *(others[(4 * i + k) % len(others)] for k in range(4))]
        if name in NOT_FORWARD:
            names = [each for each in names if not (each in OF_FORWARD or "jacfwd" in each)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vmap warns of operations that it runs in a loop
            wrong += [f"{name}: {each}" for each in wrong_routes(f, 0.7, truth, names)]
    assert not wrong, "\n".join(wrong)


def test_each_shared_tensor_gets_its_own_derivative() -> None:
    """Tensors that are leaves and parameters at once: the path between them counts once."""
    for scale_of_q in (lambda s: s, lambda s: s + 0.0, lambda s: s * 1.0, lambda s: s.view_as(s)):
        for route in (False, True):
            s = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
            value = kl_divergence(normal(0.2, s), td.Normal(1.0 + 0 * s, scale_of_q(s)))
            (by_s,) = torch.autograd.grad(value, s, create_graph=route)
            assert by_s.item() == pytest.approx(-(0.8**2) / 1.3**3, rel=1e-12)


def test_traced_integrals_are_refused_in_a_sentence() -> None:
    pairs: list[Callable[[Tensor], tuple[Any, Any]]] = [
        lambda t: (td.Poisson(t, validate_args=False), td.Geometric(t / 4, validate_args=False)),
        lambda t: (normal(t, 1.0), td.Gumbel(t * 0, t, validate_args=False)),
    ]
    for pair, kind in itertools.product(pairs, (JensenShannon(), Renyi(0.5))):
        start = torch.tensor(1.3, dtype=torch.float64)
        with refused(NoRuleError, got="torch.func.linearize", instead="^torch.func.jvp"):
            torch.func.linearize(lambda t, pair=pair, kind=kind: divergence(*pair(t), kind), start)
        one = torch.ones((), dtype=torch.float64)
        _, tangent = torch.func.jvp(
            lambda t, pair=pair, kind=kind: divergence(*pair(t), kind), (start,), (one,)
        )
        assert bool(tangent.isfinite())


def test_vmap_of_categories_has_the_values_and_gradients_of_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 4, 3, dtype=torch.float64, generator=generator)
    kinds = [*FORMULAS, Renyi(0.0), Renyi(float("inf"))]
    for kind, family in itertools.product(kinds, (td.Categorical, td.OneHotCategorical)):

        def f(a: Tensor, b: Tensor, kind: Divergence = kind, family: Any = family) -> Tensor:
            return divergence(
                family(logits=a, validate_args=False), family(logits=b, validate_args=False), kind
            )

        torch.testing.assert_close(torch.vmap(f)(x, y), f(x, y), rtol=1e-12, atol=1e-15)
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(f(leaf, y).sum(), leaf)
        torch.testing.assert_close(torch.vmap(torch.func.grad(f))(x, y), expected, rtol=1e-9, atol=1e-13)


def test_the_largest_log_ratio_of_categories_has_a_gradient() -> None:
    x = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0.1, 0.4, -0.2], dtype=torch.float64)
    value = divergence(td.Categorical(logits=x), td.Categorical(logits=y), Renyi(float("inf")))
    (got,) = torch.autograd.grad(value, x)
    (want,) = torch.autograd.grad((x.log_softmax(-1) - y.log_softmax(-1)).amax(), x)
    torch.testing.assert_close(got, want)
