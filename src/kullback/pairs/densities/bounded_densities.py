"""The densities of the families on an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    ContinuousBernoulli,
    Kumaraswamy,
    Uniform,
    VonMises,
)

from kullback.common.dtypes import upcast
from kullback.common.special import stirling_remainder
from kullback.pairs.densities.density import (
    Density,
    Points,
    PositiveAtEnds,
    Tail,
    breakpoints_around,
    density_of_family,
    log_mean_exp,
    register_density,
)
from kullback.pairs.numerics.parameters import given_logits


class _Unit(PositiveAtEnds):
    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64, device="cpu")

    def high(self) -> Tensor | None:
        return torch.ones((), dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class _PowersAtEnds(_Unit):
    """A density that is about x^(a - 1) near 0 and (1 - x)^(b - 1) near 1."""

    a: Tensor
    b: Tensor

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.a)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.b)


@density_of_family(Beta, "concentration1", "concentration0")
class BetaDensity(_PowersAtEnds):
    """x^(a - 1) (1 - x)^(b - 1) / B(a, b)."""

    def log_density(self, at: Points) -> Tensor:
        a, b = self.a, self.b
        n, log_x, log_rest = a + b, at.log_above(0.0), at.log_below(1.0)
        # In terms of the logit minus the logit of the mean, large concentrations give no large terms.
        u = log_x - log_rest - torch.log(a) + torch.log(b)
        shape = a * log_mean_exp(a / n, b / n, -u) + b * log_mean_exp(b / n, a / n, u)
        return (
            stirling_remainder(n) - stirling_remainder(a) - stirling_remainder(b) - shape - log_x - log_rest
        )

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        a, b = self.a, self.b
        width = torch.sqrt(torch.polygamma(1, a) + torch.polygamma(1, b))
        return torch.digamma(a) - torch.digamma(b), width

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return breakpoints_around(
            *self.center_and_width(), torch.log(self.a + 1) - torch.log(self.b + 1), steps
        )


@density_of_family(Kumaraswamy, "concentration1", "concentration0")
class KumaraswamyDensity(_PowersAtEnds):
    """a b x^(a - 1) (1 - x^a)^(b - 1)."""

    def log_density(self, at: Points) -> Tensor:
        a, b = self.a, self.b
        log_x, log_rest = at.log_above(0.0), at.log_below(1.0)
        # Near 1, log x is inaccurate and log(1 - x) is accurate.
        log_x = torch.where(log_rest < -1, torch.log1p(-torch.exp(log_rest.clamp(max=-1))), log_x)
        # 1 - x^a is a (1 - x), nearly, where 1 - x^a underflows.
        tiny = a * log_x > -1e-100
        inner = torch.log(-torch.expm1(torch.where(tiny, -1, a * log_x)))
        inner = torch.where(tiny, torch.log(a) + log_rest, inner)
        return torch.log(a) + torch.log(b) + (a - 1) * log_x + (b - 1) * inner

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        # x^a = 1 - v^(1/b) for uniform v: the median and two deciles give the center and the width.
        def logit_at(v: float) -> Tensor:
            inner = -torch.expm1(math.log(v) / self.b)
            log_x = torch.log(inner) / self.a
            return log_x - torch.log(-torch.expm1(log_x)).nan_to_num(neginf=-700.0)

        low, middle, high = logit_at(0.9), logit_at(0.5), logit_at(0.1)
        width = ((high - low) / 2.5).nan_to_num(nan=1.0).clamp(1e-3, 1e6)
        return middle.nan_to_num(nan=0.0).clamp(-1e6, 1e6), width


@density_of_family(Uniform, "low", "high")
@dataclass(frozen=True)
class UniformDensity(PositiveAtEnds):
    """1 / (upper - lower)."""

    lower: Tensor
    upper: Tensor

    def low(self) -> Tensor | None:
        return self.lower

    def high(self) -> Tensor | None:
        return self.upper

    def log_density(self, at: Points) -> Tensor:
        return -torch.log(self.upper - self.lower) + 0 * at.x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.upper), torch.full_like(self.upper, 1.8)


@dataclass(frozen=True)
class ContinuousBernoulliDensity(_Unit):
    """C e^(logit x), with C = logit / (e^logit - 1)."""

    logits: Tensor

    def log_density(self, at: Points) -> Tensor:
        rising = self.logits >= 0
        size = torch.where(rising, self.logits, -self.logits)  # abs has no derivative at 0
        flat = size < 1e-3
        safe = torch.where(flat, 1, size)
        # log(size / (1 - e^-size)), from a series where the quotient is near 1.
        series = size / 2 - size**2 / 24 + size**4 / 2880
        constant = torch.where(flat, series, torch.log(safe) - torch.log(-torch.expm1(-safe)))
        distance = torch.exp(torch.where(rising, at.log_below(1.0), at.log_above(0.0)))
        return constant - size * distance

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        size = torch.log1p(self.logits.abs() / 2)
        return torch.sign(self.logits) * size, torch.full_like(size, 1.8)


@density_of_family(VonMises)
@dataclass(frozen=True)
class VonMisesDensity(PositiveAtEnds):
    """exp(concentration (cos(x - loc) - 1)) / (2 pi I0(concentration) e^-concentration) on the circle."""

    loc: Tensor
    concentration: Tensor

    def low(self) -> Tensor | None:
        return torch.full((), -math.pi, dtype=torch.float64, device="cpu")

    def high(self) -> Tensor | None:
        return torch.full((), math.pi, dtype=torch.float64, device="cpu")

    def log_density(self, at: Points) -> Tensor:
        half = torch.sin((at.x - self.loc) / 2)
        scaled_bessel = torch.special.i0e(self.concentration)
        return -2 * self.concentration * half**2 - torch.log(2 * math.pi * scaled_bessel)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center = torch.remainder(self.loc + math.pi, 2 * math.pi) - math.pi
        width = (1 / torch.sqrt(1 + self.concentration)).clamp(max=1.0)
        inside = center.clamp(-math.pi + 1e-6, math.pi - 1e-6)
        derivative = 2 * math.pi / ((math.pi + inside) * (math.pi - inside))
        return torch.log((math.pi + inside) / (math.pi - inside)), derivative * width


@register_density(ContinuousBernoulli)
def _continuous_bernoulli(d: ContinuousBernoulli) -> Density:
    if given_logits(d):
        return ContinuousBernoulliDensity(upcast(d.logits))
    return ContinuousBernoulliDensity(torch.special.logit(upcast(d.probs)))
