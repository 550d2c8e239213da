"""Bad input to `fit` gives an error that says what to write, and what it says works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Gamma,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    StudentT,
    Uniform,
)

from kullback import KL, Counts, ReverseKL, Samples, fit
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError, NoRuleError

NORMAL = Normal(0.0, 1.0)
MODES = MixtureSameFamily(Categorical(torch.ones(2)), Normal(torch.tensor([0.0, 1.0]), torch.ones(2)))
TEXT = Samples(["a", "b", "zz"])


class Empty(nn.Module):
    def forward(self) -> Normal:
        return NORMAL


class Wrong(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(()))

    def forward(self) -> torch.Tensor:
        return self.x


BAD: list[tuple[Callable[[], Any], type[KullbackError], str]] = [
    (lambda: fit(Gamma(1.0, 1.0), to=NORMAL), ArgumentValueError, "finite KL"),
    (lambda: fit(NORMAL, to=Cauchy(0.0, 1.0)), ArgumentValueError, "finite KL"),
    (lambda: fit(NORMAL, to=StudentT(2.0)), ArgumentValueError, "finite KL"),
    (
        lambda: fit(NORMAL, to=Uniform(0.0, 1.0), kind=ReverseKL()),
        ArgumentValueError,
        r"finite KL\(q \|\| to\)",
    ),
    (
        lambda: fit(Gamma(1.0, 1.0), to=Samples([1.0, -2.0])),
        ArgumentValueError,
        "finite negative log-likelihood",
    ),
    (
        lambda: fit(Normal(torch.zeros(3), 1.0), to=StudentT(torch.tensor([1.0, 5.0, 5.0]))),
        ArgumentValueError,
        "KL",
    ),
    (lambda: fit(NORMAL, to=Samples([1.0, 1.0])), ArgumentValueError, "nearest member of the family"),
    (
        lambda: fit(NORMAL, to=Gamma(2.0, 1.0), fixed=("loc", "scale")),
        ArgumentValueError,
        "parameter that is free",
    ),
    (lambda: fit(NORMAL, to=nn.Linear(1, 1)), ArgumentTypeError, "to=lambda x: module"),
    (lambda: fit(Empty(), to=NORMAL), ArgumentValueError, "requires a gradient"),
    (lambda: fit(Wrong(), to=NORMAL), ArgumentTypeError, "forward returns a distribution"),
    (
        lambda: fit(NORMAL, to=Gamma(2.0, 1.0), fixed="rate"),
        ArgumentValueError,
        "parameters of q: loc, scale",
    ),
    (
        lambda: fit(Normal(torch.tensor(0.0), torch.tensor(-1.0), validate_args=False), to=Gamma(2.0, 1.0)),
        ArgumentValueError,
        "within its constraints: scale",
    ),
    (
        lambda: fit(Uniform(torch.tensor(1.0), torch.tensor(0.0), validate_args=False), to=Beta(2.0, 1.0)),
        ArgumentValueError,
        "within its constraints: high",
    ),
    (lambda: fit(Poisson(0.0), to=Poisson(2.0), kind=ReverseKL()), ArgumentValueError, "strictly inside"),
    (lambda: fit(NORMAL, to=torch.log), ArgumentValueError, "log-density that is finite.* NaN"),
    (lambda: fit(NORMAL, to=lambda x: x * 0 + torch.inf), ArgumentValueError, r"\+inf"),
    (
        lambda: fit(NORMAL, to=lambda x: torch.where(x.abs() < 1, 0.0, -torch.inf)),
        ArgumentValueError,
        "finite negative ELBO",
    ),
    (lambda: fit(NORMAL, to=lambda x: 3.0), ArgumentTypeError, "returns float"),
    (lambda: fit(NORMAL, to=torch.ones(3)), ArgumentTypeError, r"Samples\(x\) for draws"),
    (lambda: fit(torch.ones(3), to=NORMAL), ArgumentTypeError, "a tensor without a wrapper"),
    (lambda: fit(int, to=NORMAL), ArgumentTypeError, "class of distributions"),
    (lambda: fit(MultivariateNormal, to=NORMAL), ArgumentValueError, "parameters to start from"),
    (
        lambda: fit(NORMAL, to=NORMAL, kind=3),
        ArgumentTypeError,
        "wanted a divergence or the name of one; got 3",
    ),
    (
        lambda: fit(NORMAL, to=NORMAL, kind="magic"),
        ArgumentValueError,
        r"fit\(kind=...\): wanted one of 'kl', .* got 'magic'. Write: kind='kl'",
    ),
    (lambda: fit(NORMAL, to=NORMAL, method="magic"), ArgumentValueError, "method"),
    (lambda: fit(NORMAL, to=NORMAL, starts=0), ArgumentValueError, "starts"),
    (lambda: fit(NORMAL, to=NORMAL, tol=float("nan")), ArgumentValueError, "tol"),
    (lambda: fit(NORMAL, to=NORMAL, generator=0), ArgumentTypeError, "torch.Generator"),
    (lambda: fit(NORMAL, to=NORMAL, kind=ReverseKL(), method="moment_matching"), NoRuleError, "method"),
    (lambda: fit(NORMAL, to=Samples([1.0, 2.0]), kind=ReverseKL()), ArgumentValueError, "maximum likelihood"),
    (lambda: fit(NORMAL, to=lambda x: -(x**2), kind=KL()), ArgumentValueError, "ELBO"),
    (
        lambda: fit(Normal(torch.zeros(3), 1.0), to=Normal(torch.zeros(2), 1.0)),
        ArgumentValueError,
        "broadcast",
    ),
    (lambda: fit(NORMAL, to=Poisson(3.0)), ArgumentValueError, r"fit\(q=..., to=...\).*discrete"),
    (lambda: fit(NORMAL, to=Samples(torch.zeros(5, 2))), ArgumentValueError, "vectors of 2 components"),
    (lambda: fit(Normal, to=TEXT), ArgumentTypeError, "numbers, as Normal gives; got text: 'a', 'b', 'zz'"),
    (lambda: fit(Poisson(1.0), to=TEXT), ArgumentTypeError, "as Poisson gives"),
    (lambda: fit(NORMAL, to=TEXT, method="quasi_newton"), ArgumentTypeError, "as Normal gives"),
    (lambda: fit(MODES, to=TEXT), ArgumentTypeError, "as Normal gives|as MixtureSameFamily gives"),
]


@pytest.mark.parametrize(
    ("call", "error", "text"), BAD, ids=[f"{i}-{text[:20]}" for i, (_, _, text) in enumerate(BAD)]
)
def test_bad_input_is_refused(call: Callable[[], Any], error: type[KullbackError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        call()
    assert str(caught.value).startswith("fit(")
    assert "Write: " in str(caught.value)


def test_what_the_errors_say_works() -> None:
    draws = Samples([1.0, 1.0])
    assert float(fit(NORMAL, to=draws, fixed="scale").distribution.loc) == 1.0
    assert float(fit(NORMAL, to=Gamma(2.0, 1.0), fixed=("loc",)).distribution.loc) == 0.0
    vectors = Samples(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
    fit(Independent(Normal(torch.zeros(2), torch.ones(2)), 1), to=vectors)
    fit(NORMAL, to=lambda x: -(x**2) / 2)
    assert fit(Categorical(torch.ones(3)), to=TEXT).distribution.probs.tolist() == pytest.approx([1 / 3] * 3)
    fit(NORMAL, to=Uniform(0.0, 1.0))  # the sides exchanged
    assert float(fit(Normal, to=Gamma(4.0, 2.0)).distribution.loc) == pytest.approx(2)


def test_edges_that_are_no_errors() -> None:
    assert float(fit(Poisson(1.0), to=Counts([5, 0, 0])).distribution.rate) == 0.0
    assert fit(Normal(0.0, 1.0), to=Gamma(torch.ones(0), 1.0)).value.shape == (0,)
    one = fit(
        NegativeBinomial(torch.tensor(3.0), torch.tensor(0.5)), to=Samples([1, 2, 3]), fixed="total_count"
    )
    assert float(one.distribution.probs) == pytest.approx(0.4)
