"""The pairs of the audit: two families, the formula of the truth, and how many draws there are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from mpmath import mp, mpf

from tests.oracles.expectations import Number
from tests.oracles.families import CONTINUOUS_BERNOULLI_LOGITS, REAL_LINE, UNIVARIATE, Family, location, scale
from tests.oracles.log_densities import by_integral, by_table, expected_terms
from tests.oracles.special_pairs import special

Formula = Callable[[list[Number], list[Number]], Number | None]


@dataclass(frozen=True)
class Pair:
    """`fit` bends draws so that P lies inside Q; `draw` makes them in another way altogether."""

    p: Family
    q: Family
    formula: Formula
    draws: int
    integral: bool = False
    fit: bool = False
    draw: Callable[[random.Random, int], list[float]] | None = None

    def kl(self, at_p: list[Number], at_q: list[Number]) -> Number | None:
        return self.formula(self.p.as_table(at_p), self.q.as_table(at_q))

    def units(self, at: list[float]) -> list[float]:
        """What a relative change refers to: a parameter's size; for a location, at least the scale."""
        split = len(self.p.parameters)
        return units(self.p, at[:split]) + units(self.q, at[split:])

    def steps(self, at: list[float]) -> list[float]:
        """A length over which the divergence is smooth: a parameter's size; for a location, at most the scales."""
        split = len(self.p.parameters)
        spreads = [spread(self.p, at[:split]), spread(self.q, at[split:]), 1e30]
        kinds = [*self.p.parameters.values(), *self.q.parameters.values()]
        finest = min(x for x in spreads if x)
        return [
            min(finest, abs(x) or math.inf) if kind is location else abs(x) or 1.0
            for x, kind in zip(at, kinds, strict=True)
        ]

    def fixed(self, at: list[float]) -> list[int]:
        """The parameters with respect to which there is no derivative there, or only one to a side."""
        split = len(self.p.parameters)
        at_p, at_q = at[:split], at[split:]
        found = self.p.edges(at_p) + [split + i for i in self.q.edges(at_q)]
        if self.q.name == "Laplace" and at_q[0] == 0 and self.p.name not in REAL_LINE:
            found.append(split)  # the kink lies on the end of P's support
        if at_p == at_q and self.p.name in ("Uniform", "Pareto", "GeneralizedPareto"):
            found += range(len(at))  # a support that may only grow
        return found

    def valid(self, at: list[float]) -> bool:
        """Whether torch takes the parameters."""
        numbers = [torch.tensor(x, dtype=torch.float64) for x in at]
        split = len(self.p.parameters)
        try:
            self.p.build(*numbers[:split]), self.q.build(*numbers[split:])
        except ValueError:
            return False
        return True


def spread(family: Family, at: list[float]) -> float:
    if family.name == "Uniform":
        return at[1] - at[0]
    kinds = family.parameters.values()
    return max((abs(x) for x, kind in zip(at, kinds, strict=True) if kind is scale), default=0.0)


def units(family: Family, at: list[float]) -> list[float]:
    kinds = family.parameters.values()
    return [
        (max(spread(family, at), abs(x)) if kind is location else abs(x)) or 1.0
        for x, kind in zip(at, kinds, strict=True)
    ]


TORCH = {
    "Beta": "ContinuousBernoulli Exponential Gamma Normal Uniform",
    "ContinuousBernoulli": "Exponential Normal Uniform",
    "Exponential": "Gamma Gumbel Normal",
    "Gamma": "Exponential Gumbel Normal",
    "Gumbel": "Normal",
    "Laplace": "Normal",
    "Normal": "Gumbel Laplace",
    "Pareto": "Exponential Gamma Normal",
    "Uniform": "Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto",
}


# Parameters at which few expectations are infinite and P lies inside Q, where 0.75, 0.5 and 0.25, 1.5 are not such.
SAMPLES_P = {
    "Uniform": (0.25, 0.75),
    "Pareto": (1, 3),
    "FisherSnedecor": (6, 8),
    "StudentT": (5, 0, 1),
    "InverseGamma": (5, 1),
    "GeneralizedPareto": (0.5, 1, 0.1),
}
SAMPLES_Q = {
    "Uniform": (-2, 99),
    "StudentT": (3, 1, 1),
    "GeneralizedPareto": (0, 1, 0.1),
    "Pareto": (0.125, 1),
}


def univariate() -> dict[str, Pair]:
    """All ordered pairs of univariate continuous families."""
    pairs: dict[str, Pair] = {}
    for p in UNIVARIATE:
        for q in UNIVARIATE:
            name, entries = f"{p.name}|{q.name}", sample_entries(p.name, q.name)
            if any(entry is None for entry in entries):
                pairs[name] = Pair(p, q, by_integral(p.name, q.name), 4, integral=True, fit=True)
                continue
            draws = 300 if p is q else 100 if q.name in TORCH.get(p.name, "").split() else 40
            if mp.inf in entries:
                draws = 10
            pairs[name] = Pair(p, q, by_table(p.name, q.name), draws, fit=True)
    logits = CONTINUOUS_BERNOULLI_LOGITS
    pairs[f"{logits.name}|{logits.name}"] = Pair(logits, logits, by_table(logits.table, logits.table), 200)
    return pairs


def sample_entries(p: str, q: str) -> list[Number | None]:
    """The expectations of log q's statistics at parameters where few are infinite; None where there is no formula."""
    if (p, q) in {("Kumaraswamy", "Kumaraswamy"), ("HalfCauchy", "Cauchy"), ("HalfCauchy", "StudentT")}:
        return [None]  # there is one only for some parameters
    at_p, at_q = SAMPLES_P.get(p, (0.75, 0.5)), SAMPLES_Q.get(q, (0.25, 1.5))
    at_p, at_q = ([mpf(x) for x in at][: size(name)] for at, name in ((at_p, p), (at_q, q)))
    return [expectation for _, expectation in expected_terms(p, q, at_p, at_q)[1]]


def size(name: str) -> int:
    return next(len(family.parameters) for family in UNIVARIATE if family.name == name)


def all_pairs() -> dict[str, Pair]:
    pairs = univariate()
    for p, q, formula, draws, options in special():
        name = f"{p.name}|{q.name}"
        pairs[f"{name} by sums" if name in pairs else name] = Pair(p, q, formula, draws, **options)
    return pairs


PAIRS: dict[str, Pair] = all_pairs()
