"""The audit's discrete, circular and multivariate pairs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributions as d
from mpmath import mpf
from torch import Tensor

from tests.oracles.families import (
    Draw,
    Family,
    concentration,
    location,
    log_uniform,
    logit,
    probability,
    scale,
    tail,
)
from tests.oracles.special_formulas import (
    binomial_chances,
    by_sum,
    dirichlet,
    finite,
    from_logit,
    from_prob,
    geometric,
    geometric_chances,
    lkj,
    low_rank,
    mixture_and_normal,
    multivariate_normal,
    negative_binomial,
    negative_binomial_chances,
    normalized,
    normals,
    poisson,
    poisson_chances,
    relaxed_bernoulli,
    relaxed_categorical,
    softmax,
    times,
    von_mises,
    wishart,
)

Build = Callable[..., d.Distribution]
Rows = list[tuple[Family, Family, Any, int, dict[str, Any]]]
COUNT, FAILURES = 12, 3.5


def some_probability(rng: random.Random, wide: bool) -> float:
    """As `probability`, but never 0 or 1."""
    while True:
        if 0 < (found := probability(rng, wide)) < 1 and found > 1e-38:
            return found


def angle(rng: random.Random, wide: bool) -> float:
    return rng.uniform(-3.1, 3.1)


def factor(rng: random.Random, wide: bool) -> float:
    return rng.gauss(0, 1)


def size(rng: random.Random, wide: bool) -> float:
    """Sizes of a covariance: condition numbers up to 1e12."""
    return log_uniform(1e-3, 1e3, rng) if wide else log_uniform(0.3, 3, rng)


def degrees(rng: random.Random, wide: bool) -> float:
    return 2.6 + concentration(rng, wide)  # torch warns of less


def bounded_scale(rng: random.Random, wide: bool) -> float:
    return log_uniform(0.2, 20, rng)


def two_ways(name: str, family: type, prob: Draw, more: dict[str, Any] | None = None) -> list[Family]:
    """A family by probabilities and by logits, both told apart as [chance, 1 - chance]."""
    more = more or {}
    return [
        Family(name, {"probs": prob}, lambda probs: family(**more, probs=probs), as_table=from_prob),
        Family(
            f"{name}(logits)",
            {"logits": logit},
            lambda logits: family(**more, logits=logits),
            as_table=from_logit,
        ),
    ]


def stacked(build: Build) -> Build:
    return lambda *columns: build(torch.stack(columns, -1))


def three(name: str, draw: Draw) -> dict[str, Draw]:
    return {f"{name}{i}": draw for i in range(3)}


def simplex(rng: random.Random, index: int) -> list[float]:
    """Two vectors of three probabilities whose sum is exactly 1: in float32, or in float64 for four of ten."""
    whole = 2**20 if index % 10 < 6 else 2**50

    def one() -> list[int]:
        low, high = sorted(rng.randrange(1, whole) for _ in range(2))
        return [low, high - low, whole - high]

    first, second = one(), one()
    if index % 10 in (5, 6, 7, 8):  # nearly equal
        shift = 0 if index % 50 == 5 else max(1, int(min(first) * log_uniform(1e-8, 0.5, rng)))
        second = [first[0] - shift, first[1] + shift, first[2]]
    p, q = ([x / whole for x in at] for at in (first, second))
    if index % 10 < 3:  # one chance is tiny or none
        tiny = rng.choice([0.0, float(np.float32(log_uniform(1e-37, 1e-17, rng)))])
        edge = [tiny, 0.25, 0.75]
        p, q = (edge, q) if index % 20 == 0 else (p, edge)
    return p + q


def categorical(name: str, family: type, more: dict[str, Any] | None = None) -> list[Family]:
    more = more or {}
    return [
        Family(
            name,
            three("p", probability),
            stacked(lambda x: family(**more, probs=x)),
            as_table=normalized,
            rounds=True,
        ),
        Family(
            f"{name}(logits)",
            three("l", logit),
            stacked(lambda x: family(**more, logits=x)),
            as_table=softmax,
            rounds=True,
        ),
    ]


def triangle(dim: int) -> dict[str, Draw]:
    return {f"l{i}{j}": size if i == j else factor for i in range(dim) for j in range(i + 1)}


def tril(columns: tuple[Tensor, ...], dim: int) -> Tensor:
    entries = iter(columns)
    zero = torch.zeros_like(columns[0])
    rows = [[next(entries) if j <= i else zero for j in range(dim)] for i in range(dim)]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def gaussian(dim: int) -> Family:
    def build(*at: Tensor) -> d.Distribution:
        return d.MultivariateNormal(torch.stack(at[:dim], -1), scale_tril=tril(at[dim:], dim))

    return Family(
        f"MultivariateNormal({dim})", {**{f"m{i}": factor for i in range(dim)}, **triangle(dim)}, build
    )


def low_rank_gaussian() -> Family:
    def build(*at: Tensor) -> d.Distribution:
        mean, column, diagonal = (torch.stack(at[i : i + 3], -1) for i in (0, 3, 6))
        return d.LowRankMultivariateNormal(mean, column.unsqueeze(-1), diagonal)

    return Family(
        "LowRankMultivariateNormal", {**three("m", factor), **three("f", factor), **three("d", size)}, build
    )


def independent_normals(name: str, build: Build) -> Family:
    return Family(
        name,
        {"m0": location, "m1": location, "s0": scale, "s1": scale},
        lambda *at: build(torch.stack(at[:2], -1), torch.stack(at[2:], -1)),
    )


def mixture() -> Family:
    def build(w: Tensor, m0: Tensor, m1: Tensor, s0: Tensor, s1: Tensor) -> d.Distribution:
        weights = d.Categorical(torch.stack([w, 1 - w], -1))
        return d.MixtureSameFamily(weights, d.Normal(torch.stack([m0, m1], -1), torch.stack([s0, s1], -1)))

    parameters = {"w": lambda rng, wide: rng.uniform(0.1, 0.9), "m0": factor, "m1": factor}
    return Family("Mixture", {**parameters, "s0": bounded_scale, "s1": bounded_scale}, build, rounds=True)


def chances() -> list[tuple[Family, Any]]:
    """Families on 0, 1, 2 ... with moderate parameters, and their chances one after the other."""
    moderate = {"rate": lambda rng, wide: log_uniform(0.1, 15, rng)}
    middle = {"probs": lambda rng, wide: rng.uniform(0.1, 0.9)}
    r = {"total_count": lambda rng, wide: log_uniform(0.3, 12, rng), **middle}
    return [
        (Family("Bernoulli", middle, d.Bernoulli, as_table=from_prob), binomial_chances(1)),
        (Family("Binomial", middle, lambda x: d.Binomial(9, x), as_table=from_prob), binomial_chances(9)),
        (
            Family("Binomial(30)", middle, lambda x: d.Binomial(30, x), as_table=from_prob),
            binomial_chances(30),
        ),
        (Family("Poisson", moderate, d.Poisson), poisson_chances),
        (Family("Geometric", middle, d.Geometric, as_table=from_prob), geometric_chances),
        (Family("NegativeBinomial(r)", r, d.NegativeBinomial), negative_binomial_chances),
    ]


def special() -> Rows:
    """Rows of P, Q, formula, draws and options."""
    rows: Rows = []
    groups: list[tuple[list[Family], Any]] = [
        (two_ways("Bernoulli", d.Bernoulli, probability), finite),
        (two_ways("Geometric", d.Geometric, lambda rng, wide: probability(rng, wide) or 0.5), geometric),
        (two_ways("Binomial", d.Binomial, probability, {"total_count": COUNT}), times(COUNT)),
        (
            two_ways("NegativeBinomial", d.NegativeBinomial, some_probability, {"total_count": FAILURES}),
            negative_binomial(mpf(FAILURES)),
        ),
    ]
    for families, formula in groups:
        rows += [(p, q, formula, 200, {}) for p, q in itertools.product(families, families)]
    for name, family, more, n in (
        ("Categorical", d.Categorical, None, 1),
        ("OneHotCategorical", d.OneHotCategorical, None, 1),
        ("Multinomial", d.Multinomial, {"total_count": COUNT}, COUNT),
    ):
        by_probs, by_logits_ = categorical(name, family, more)
        rows += [
            (by_probs, by_probs, times(n), 200, {"draw": simplex}),
            (by_logits_, by_logits_, times(n), 200, {}),
        ]
    rate = Family("Poisson", {"rate": scale}, d.Poisson)
    rows.append((rate, rate, poisson, 200, {}))
    for (p, next_p), (q, next_q) in itertools.product(chances(), repeat=2):
        if p is not q or p.name == "NegativeBinomial(r)":
            rows.append((p, q, by_sum(next_p, next_q), 20, {"integral": True}))
    rows += [(f, f, formula, draws, {}) for f, formula, draws in vectors()]
    temperature = torch.tensor(0.7, dtype=torch.float64)
    relaxed = Family(
        "RelaxedOneHotCategorical",
        three("l", factor),
        stacked(lambda x: d.RelaxedOneHotCategorical(temperature.to(x.dtype), logits=x)),
        rounds=True,
    )
    rows.append((relaxed, relaxed, relaxed_categorical, 8, {"integral": True}))
    normal = Family("Normal", {"loc": factor, "scale": bounded_scale}, d.Normal)
    rows.append((mixture(), normal, mixture_and_normal, 8, {"integral": True}))
    return rows


def vectors() -> list[tuple[Family, Any, int]]:
    half, fixed = {"logits": logit}, torch.tensor(0.7, dtype=torch.float64)
    return [
        (Family("Dirichlet", three("a", concentration), stacked(d.Dirichlet)), dirichlet, 200),
        (Family("VonMises", {"loc": angle, "concentration": tail}, d.VonMises), von_mises, 200),
        (
            Family("RelaxedBernoulli", half, lambda x: d.RelaxedBernoulli(fixed.to(x.dtype), logits=x)),
            relaxed_bernoulli,
            100,
        ),
        (
            Family("LKJCholesky(2)", {"concentration": concentration}, lambda x: d.LKJCholesky(2, x)),
            lkj(2),
            100,
        ),
        (
            Family("LKJCholesky(4)", {"concentration": concentration}, lambda x: d.LKJCholesky(4, x)),
            lkj(4),
            100,
        ),
        (gaussian(2), multivariate_normal(2), 150),
        (gaussian(3), multivariate_normal(3), 100),
        (low_rank_gaussian(), low_rank(3), 100),
        (
            Family(
                "Wishart",
                {"df": degrees, **triangle(2)},
                lambda df, *at: d.Wishart(df, scale_tril=tril(at, 2)),
            ),
            wishart(2),
            150,
        ),
        (
            independent_normals("Independent(Normal)", lambda m, s: d.Independent(d.Normal(m, s), 1)),
            normals,
            100,
        ),
        (
            Family(
                "LogisticNormal",
                {"m0": logit, "m1": logit, "s0": bounded_scale, "s1": bounded_scale},
                lambda *at: d.LogisticNormal(torch.stack(at[:2], -1), torch.stack(at[2:], -1)),
            ),
            normals,
            100,
        ),
    ]
