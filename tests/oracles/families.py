"""The families of the audit: how their parameters are drawn, and torch's distribution made from columns of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributions as d
from mpmath import mp

from tests.oracles.expectations import Number

Draw = Callable[[random.Random, bool], float]
NEAR = 1e-8  # how close the closest of nearly equal parameters are


def log_uniform(low: float, high: float, rng: random.Random) -> float:
    return 10 ** rng.uniform(math.log10(low), math.log10(high))


def location(rng: random.Random, wide: bool) -> float:
    if wide:
        return rng.choice([0.0, 1, -1]) * log_uniform(1e-30, 1e30, rng)
    return rng.gauss(0, 2)


def scale(rng: random.Random, wide: bool) -> float:
    return log_uniform(1e-30, 1e30, rng) if wide else log_uniform(0.1, 10, rng)


def concentration(rng: random.Random, wide: bool) -> float:
    return log_uniform(1e-6, 1e8, rng) if wide else log_uniform(0.1, 20, rng)


def probability(rng: random.Random, wide: bool) -> float:
    if not wide:
        return rng.uniform(0.03, 0.97)
    small = log_uniform(1e-30, 1e-2, rng)
    return rng.choice([small, small, 1 - log_uniform(1e-15, 1e-2, rng), 1 - 2**-24, 1e-300, 0.0, 1.0])


def inner_probability(rng: random.Random, wide: bool) -> float:
    """A probability that torch's ContinuousBernoulli leaves as it is, also in float32."""
    if not wide:
        return rng.uniform(0.03, 0.97)
    small = log_uniform(2e-7, 1e-2, rng)
    return rng.choice([small, 1 - small, 0.5, 0.5 + small / 100])


def logit(rng: random.Random, wide: bool) -> float:
    return rng.choice([rng.uniform(-100, 100), 100.0, -100.0]) if wide else rng.gauss(0, 2)


def tail(rng: random.Random, wide: bool) -> float:
    return log_uniform(0.05, 1e6, rng) if wide else log_uniform(0.5, 20, rng)


def exponent(rng: random.Random, wide: bool) -> float:
    return log_uniform(0.01, 100, rng) if wide else log_uniform(0.3, 5, rng)


def shape(rng: random.Random, wide: bool) -> float:
    return log_uniform(1e-3, 10, rng) if wide else rng.uniform(0.05, 0.9)


def rate_exponent(rng: random.Random, wide: bool) -> float:
    return log_uniform(1e-3, 20, rng) if wide else log_uniform(0.1, 2, rng)


@dataclass(frozen=True)
class Family:
    """`parameters` maps names to draws; `table` names the formulas; `as_table` turns parameters into theirs."""

    name: str
    parameters: dict[str, Draw]
    build: Callable[..., d.Distribution]
    table: str = ""
    as_table: Callable[[list[Number]], list[Number]] = list
    rounds: bool = False  # torch's constructor normalizes the parameters in their dtype, and so loses digits

    def draw(self, rng: random.Random, wide: bool) -> list[float]:
        return [draw(rng, wide) for draw in self.parameters.values()]

    def edges(self, at: list[float]) -> list[int]:
        """Parameters at the end of their range, where there is no derivative to both sides."""
        kinds = self.parameters.values()
        return [
            i
            for i, (x, kind) in enumerate(zip(at, kinds, strict=True))
            if kind is probability and x in (0, 1)
        ]

    def near(self, at: list[float], distance: float, rng: random.Random) -> list[float]:
        """Parameters nearly equal to some: relatively, and locations by a share of the scale."""
        unit = max(
            (abs(x) for x, kind in zip(at, self.parameters.values(), strict=True) if kind is scale), default=0
        )
        return [
            x + distance * rng.uniform(0.5, 2) * rng.choice([-1, 1]) * (unit if kind is location else abs(x))
            for x, kind in zip(at, self.parameters.values(), strict=True)
        ]


def to_logit(at: list[Number]) -> list[Number]:
    return [mp.log(at[0] / (1 - at[0]))]


LOC_SCALE: dict[str, Draw] = {"loc": location, "scale": scale}
UNIVARIATE = [
    Family("Normal", LOC_SCALE, d.Normal),
    Family("Laplace", LOC_SCALE, d.Laplace),
    Family("Gumbel", LOC_SCALE, d.Gumbel),
    Family("Cauchy", LOC_SCALE, d.Cauchy),
    Family("StudentT", {"df": tail, **LOC_SCALE}, d.StudentT),
    Family("Exponential", {"rate": scale}, d.Exponential),
    Family("Gamma", {"concentration": concentration, "rate": scale}, d.Gamma),
    Family("Chi2", {"df": concentration}, d.Chi2),
    Family("InverseGamma", {"concentration": concentration, "rate": scale}, d.InverseGamma),
    Family("Weibull", {"scale": scale, "concentration": exponent}, d.Weibull),
    Family("LogNormal", {"loc": logit, "scale": rate_exponent}, d.LogNormal),
    Family("HalfNormal", {"scale": scale}, d.HalfNormal),
    Family("HalfCauchy", {"scale": scale}, d.HalfCauchy),
    Family("FisherSnedecor", {"df1": tail, "df2": tail}, d.FisherSnedecor),
    Family("Pareto", {"scale": scale, "alpha": tail}, d.Pareto),
    Family(
        "GeneralizedPareto", {"loc": location, "scale": scale, "concentration": shape}, d.GeneralizedPareto
    ),
    Family("Beta", {"concentration1": concentration, "concentration0": concentration}, d.Beta),
    Family("Kumaraswamy", {"concentration1": exponent, "concentration0": exponent}, d.Kumaraswamy),
    Family("Uniform", {"low": location, "high": location}, d.Uniform),
    Family("ContinuousBernoulli", {"probs": inner_probability}, d.ContinuousBernoulli, as_table=to_logit),
]


def by_logits(family: type) -> Callable[..., d.Distribution]:
    return lambda logits: family(logits=logits)


CONTINUOUS_BERNOULLI_LOGITS = Family(
    "ContinuousBernoulli(logits)",
    {"logits": logit},
    by_logits(d.ContinuousBernoulli),
    table="ContinuousBernoulli",
)


REAL_LINE = ("Normal", "Laplace", "Gumbel", "Cauchy", "StudentT")
UNIT_INTERVAL = ("Beta", "Kumaraswamy", "ContinuousBernoulli")


def fitting(p: Family, q: Family, at_p: list[float], at_q: list[float], rng: random.Random) -> None:
    """Change drawn parameters, in place, so that P has no mass outside Q's support in most draws."""
    p_name, q_name = p.table or p.name, q.table or q.name
    if p_name == "Uniform":
        fit_uniform(q_name, at_p, rng)
    if p_name == "GeneralizedPareto" and q_name not in (*REAL_LINE, "Uniform", "GeneralizedPareto"):
        at_p[0] = abs(at_p[0])
    low = at_p[0] if p_name in ("Uniform", "Pareto", "GeneralizedPareto") else 0.0
    high = {"Uniform": at_p[-1], "Pareto": math.inf}.get(p_name, max(low, 0.0) + 1)
    if q_name == "Uniform":
        at_q[:] = [low - rng.choice([0, abs(at_q[0])]), high + rng.choice([0, abs(at_q[1])])]
        if not math.isfinite(high):
            at_q[:] = [0.0, 1.0]
    elif q_name == "Pareto" and low > 0:
        at_q[0] = low * rng.choice([1, rng.random()])
    elif q_name == "GeneralizedPareto":
        at_q[0] = low - rng.choice([0, abs(at_q[0])])


def fit_uniform(q_name: str, at: list[float], rng: random.Random) -> None:
    """Put a Uniform's ends in order, and inside Q's support."""
    if q_name not in (*REAL_LINE, "Uniform", "GeneralizedPareto"):
        at[:] = [abs(x) for x in at]
        if rng.random() < 0.2:
            at[0] = 0.0
    if q_name in UNIT_INTERVAL:
        at[:] = [x / (1 + x) if x < 1e15 else 1.0 for x in at]
    at.sort()
    if at[0] == at[1]:
        at[1] = at[0] + 1
