"""Closed forms in plain torch alone, at edges: under vmap no kernel goes first and no other rule mends a NaN."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Geometric, Poisson

from kullback import kl_divergence
from kullback.pairs.registry import find_closed_form
from tests.oracles import end_truths
from tests.oracles.pairs import PAIRS
from tests.pairs.closed_forms.test_discrete import FAMILIES, chances, derivative, true_kl
from tests.pairs.closed_forms.test_ends import faults

DIGITS = 800  # for 1 - p with p = e^-800
Side = Callable[[Tensor], Distribution]


def values_and_derivatives(p: Side, q: Side, at: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return KL and its derivatives by the parameters of P and of Q, a row for each pair of parameters."""

    def row(a: Tensor, b: Tensor) -> Tensor:
        both = torch.func.grad_and_value(lambda x, y: kl_divergence(p(x), q(y)), argnums=(0, 1))
        derivatives, value = both(a, b)
        return torch.stack([value, *derivatives])

    a, b = (torch.tensor(side, dtype=torch.float64) for side in zip(*at, strict=True))
    return torch.vmap(row)(a, b).tolist()


RATES = [1e-320, 1e-30, 0.3, 1.0, 50.0, 1e300]


def test_a_poisson_distribution_of_rate_0() -> None:
    side = partial(Poisson, validate_args=False)
    found = values_and_derivatives(side, side, [(0.0, b) for b in [0.0, *RATES]])
    assert found[0] == [0, 0, 0]
    assert found[1:] == [[b, 0, 1] for b in RATES]
    assert values_and_derivatives(side, side, [(2.0, 0.0)])[0][0] == torch.inf


CHANCES = {
    "probs": [0.0, 1e-320, 0.2, 0.29, 0.31, 0.5, 1 - 2.0**-53, 1.0],
    "logits": [-800.0, -40.0, -1.0, 0.0, 40.0, 800.0],
}


@pytest.mark.parametrize("kind", CHANCES)
def test_bernoulli_against_poisson_at_any_chances(kind: str) -> None:
    pairs = list(product(CHANCES[kind], RATES))
    found = values_and_derivatives(
        lambda x: Bernoulli(**{kind: x}, validate_args=False), partial(Poisson, validate_args=False), pairs
    )
    with mpmath.workdps(DIGITS):
        for (x, rate), row in zip(pairs, found, strict=True):
            success, failure = chances(kind, mpf(x))
            truth = mpf(rate) + mpmath.fsum(
                y * mpmath.log(y / z) for y, z in ((success, rate), (failure, 1)) if y
            )
            by_p = mpmath.log(success / rate) - mpmath.log(failure) if success and failure else mpf(0)
            by_p *= 1 if kind == "probs" else success * failure
            expected = [float(y) for y in (truth, by_p, 1 - success / rate)]
            assert row == pytest.approx(expected, rel=1e-10, abs=1e-14 if success else 0), (x, rate)


# Of what Geometric trials wait for: below the threshold of tiny chances on one side, on both and on none.
SMALL = {"probs": [1e-140, 3e-140, 1e-31, 2e-30, 0.25], "logits": [-320.0, -319.0, -75.0, -60.0, 0.0]}


@pytest.mark.parametrize("kind_q", SMALL)
@pytest.mark.parametrize("kind_p", SMALL)
@pytest.mark.parametrize("family", ["Bernoulli", "Geometric"])
def test_small_chances(family: str, kind_p: str, kind_q: str) -> None:
    make = FAMILIES[family][0]
    pairs = list(product(SMALL[kind_p], SMALL[kind_q]))
    found = values_and_derivatives(
        lambda x: make(**{kind_p: x}, validate_args=False),
        lambda x: make(**{kind_q: x}, validate_args=False),
        pairs,
    )
    for (x, y), row in zip(pairs, found, strict=True):
        with mpmath.workdps(DIGITS):
            expected = [
                float(true_kl(family, (kind_p, x), (kind_q, y))),
                derivative(lambda v, y=y: true_kl(family, (kind_p, v), (kind_q, y)), kind_p, x),
                derivative(lambda v, x=x: true_kl(family, (kind_p, x), (kind_q, v)), kind_q, y),
            ]
        if (kind_p, x) == (kind_q, y):
            assert row == [0, 0, 0]
        else:
            assert row == pytest.approx(expected, rel=1e-10, abs=0), (x, y)


def test_odds_beyond_the_range_of_floats() -> None:
    """Of the other outcome, which makes a hundredth of a value within it."""
    p, q = -712.0, -4.0
    a, b = (torch.tensor(x, dtype=torch.float64) for x in (p, q))
    value = kl_divergence(Geometric(logits=a), Geometric(logits=b))
    with mpmath.workdps(DIGITS):
        truth = float(true_kl("Geometric", ("logits", p), ("logits", q)))
    assert value.item() == pytest.approx(truth, rel=1e-12)


def formula(p: Distribution, q: Distribution) -> tuple[Tensor, None]:
    form = find_closed_form(type(p), type(q))
    value = None if form is None else form.function(p, q)
    assert value is not None
    return value, None


REAL = [
    *(f"{name}|{name}" for name in ("Normal", "LogNormal", "Laplace", "Cauchy", "Gumbel", "Weibull")),
    *(
        "Normal|Laplace",
        "Laplace|Normal",
        "Normal|Gumbel",
        "Gumbel|Normal",
        "Laplace|Gumbel",
        "Gumbel|Laplace",
    ),
    *("StudentT|Normal", "Cauchy|StudentT"),
]
# Parameters at which a summand that is small elsewhere makes most of the value.
TELLING = {
    "StudentT|Normal": [
        [2 * half, 0.0, 1.0, 0.0, (half / (half - 1)) ** 0.5] for half in (1.5, 11.9, 12.1, 13.0, 40.0)
    ],
    "Gumbel|Gumbel": [[0.0, 1.0 + z, 0.4 * z, 1.0] for z in (-0.005, -0.003, 0.003, 0.005)],
    "Gumbel|Laplace": [[0.0, 1.0, center, 1.0] for center in (-4.0, -2.0, -0.7, -0.69, 0.0, 3.0)],
    "Cauchy|StudentT": [[0.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0, 1e-9], [1e9, 1.0, 5.0, 0.0, 1.0]],
}


@pytest.mark.parametrize("name", REAL)
def test_formulas_of_the_real_line_at_ordinary_parameters(name: str) -> None:
    pair, rng = PAIRS[name], random.Random(name)  # noqa: S311
    drawn = [[*pair.p.draw(rng, False), *pair.q.draw(rng, False)] for _ in range(12)]
    if pair.p is pair.q:
        drawn += [[*at[: len(at) // 2], *pair.p.near(at[: len(at) // 2], 1e-4, rng)] for at in drawn]
    known = [(at, end_truths.truth(pair, at)) for at in drawn + TELLING.get(name, [])]
    rows = [(at, *found) for at, found in known if found is not None and found[0] < math.inf]
    assert len(rows) >= 6
    parameters, values, gradients, changes = (np.array(column) for column in zip(*rows, strict=True))
    wrong = faults(name, torch.float64, (parameters, values, gradients, changes), formula)
    assert not wrong, "\n".join(wrong)
