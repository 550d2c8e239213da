"""The densities of the families on a half-line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import (
    Exponential,
    FisherSnedecor,
    Gamma,
    GeneralizedPareto,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    LogNormal,
    Pareto,
    Weibull,
)
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, scaled_expm1mx, stirling_remainder
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


def _log_gamma_density(c: Tensor, log_y: Tensor) -> Tensor:
    """Return c log y - y - lgamma(c), without large terms near y = c for a large c."""
    d = log_y - torch.log(c)
    return torch.where(d > 709, -torch.inf, -scaled_expm1mx(c, d) - stirling_remainder(c))


class _Positive(PositiveAtEnds):
    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64, device="cpu")


@density_of_family(Gamma)
@dataclass(frozen=True)
class GammaDensity(_Positive):
    """rate^c x^(c - 1) e^(-rate x) / Gamma(c)."""

    # The variable to this power has a Gamma distribution.
    power: ClassVar[int] = 1

    concentration: Tensor
    rate: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return _log_gamma_density(self.concentration, torch.log(self.rate) + self.power * log_x) - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        c = self.concentration
        return self.power * (torch.digamma(c) - torch.log(self.rate)), torch.sqrt(torch.polygamma(1, c))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        bend = self.power * (torch.log(self.concentration + 1) - torch.log(self.rate))
        return breakpoints_around(*self.center_and_width(), bend, steps)

    def tail_factor(self) -> Tensor:
        return self.concentration - 1

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.concentration)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, self.rate)


@density_of_family(InverseGamma)
class InverseGammaDensity(GammaDensity):
    """rate^c x^(-c - 1) e^(-rate / x) / Gamma(c)."""

    power: ClassVar[int] = -1
    lower_tail, upper_tail = GammaDensity.upper_tail, GammaDensity.lower_tail


@density_of_family(Weibull)
@dataclass(frozen=True)
class WeibullDensity(_Positive):
    """(k / scale) (x / scale)^(k - 1) exp(-(x / scale)^k) with k the concentration."""

    scale: Tensor
    concentration: Tensor

    def log_density(self, at: Points) -> Tensor:
        k = self.concentration
        log_power = k * (at.log_above(0.0) - torch.log(self.scale))
        return torch.log(k) + log_power - torch.exp(log_power) - at.log_above(0.0)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        k = self.concentration
        return torch.log(self.scale) - 0.5772 / k, 1.2825 / k

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.concentration)

    def upper_tail(self) -> Tail:
        return Tail(0.0, self.concentration, self.scale**-self.concentration)


@density_of_family(LogNormal)
@dataclass(frozen=True)
class LogNormalDensity(_Positive):
    """exp(-z^2 / 2) / (x scale sqrt(2 pi)) with z = (log x - loc) / scale."""

    loc: Tensor
    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_x = at.log_above(0.0)
        return -(((log_x - self.loc) / self.scale) ** 2) / 2 - torch.log(self.scale) - HALF_LOG_2PI - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def lower_tail(self) -> Tail:
        return Tail(1.0, 2.0, 1 / (2 * self.scale**2))

    upper_tail = lower_tail


@density_of_family(HalfNormal)
@dataclass(frozen=True)
class HalfNormalDensity(_Positive):
    """2 exp(-z^2 / 2) / (scale sqrt(2 pi)) with z = x / scale."""

    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_z = at.log_above(0.0) - torch.log(self.scale)
        return math.log(2) - HALF_LOG_2PI - torch.exp(2 * log_z) / 2 - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.log(self.scale) - 0.635, torch.full_like(self.scale, 1.11)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 2.0, 1 / (2 * self.scale**2))


@density_of_family(HalfCauchy)
@dataclass(frozen=True)
class HalfCauchyDensity(_Positive):
    """2 / (pi scale (1 + z^2)) with z = x / scale."""

    scale: Tensor

    def log_density(self, at: Points) -> Tensor:
        log_z = at.log_above(0.0) - torch.log(self.scale)
        return math.log(2 / math.pi) + logsigmoid(-2 * log_z) - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return torch.log(self.scale), torch.full_like(self.scale, math.pi / 2)

    def upper_tail(self) -> Tail:
        return Tail.of_power(1.0)


@density_of_family(FisherSnedecor)
@dataclass(frozen=True)
class FisherSnedecorDensity(_Positive):
    """The density of the ratio of two chi-squared means with df1 and df2 degrees of freedom."""

    df1: Tensor
    df2: Tensor

    def log_density(self, at: Points) -> Tensor:
        a, b = self.df1 / 2, self.df2 / 2
        n, log_x = a + b, at.log_above(0.0)
        shape = a * log_mean_exp(a / n, b / n, -log_x) + b * log_mean_exp(b / n, a / n, log_x)
        return stirling_remainder(n) - stirling_remainder(a) - stirling_remainder(b) - shape - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        center = torch.digamma(a) - torch.digamma(b) + torch.log(self.df2) - torch.log(self.df1)
        return center, torch.sqrt(torch.polygamma(1, a) + torch.polygamma(1, b))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        return breakpoints_around(
            *self.center_and_width(), torch.log((a + 1) / a) - torch.log((b + 1) / b), steps
        )

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.df1 / 2)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.df2 / 2)


@density_of_family(Pareto)
@dataclass(frozen=True)
class ParetoDensity(PositiveAtEnds):
    """alpha scale^alpha / x^(alpha + 1) for x > scale."""

    scale: Tensor
    alpha: Tensor

    def low(self) -> Tensor | None:
        return self.scale

    def log_density(self, at: Points) -> Tensor:
        log_scale = torch.log(self.scale)
        # -log(x / scale); torch's softplus has an error of 2e-9 where it switches to a linear function
        log_ratio = logsigmoid(log_scale - at.log_above(self.scale))
        return torch.log(self.alpha) + (self.alpha + 1) * log_ratio - log_scale

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        # log(x / scale) is exponential with mean 1 / alpha.
        middle = 0.7 / self.alpha
        return torch.log(self.scale) + middle + torch.log(-torch.expm1(-middle)), 1 + 1 / self.alpha

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.alpha)


@density_of_family(GeneralizedPareto)
@dataclass(frozen=True)
class GeneralizedParetoDensity(PositiveAtEnds):
    """(1 + c z)^(-1 / c - 1) / scale with z = (x - loc) / scale and c the concentration; e^-z / scale for c = 0."""

    loc: Tensor
    scale: Tensor
    concentration: Tensor

    def low(self) -> Tensor | None:
        return self.loc

    def high(self) -> Tensor | None:
        c = self.concentration
        bounded = c < 0
        return torch.where(bounded, self.loc - self.scale / torch.where(bounded, c, -1), torch.inf)

    def log_density(self, at: Points) -> Tensor:
        c = self.concentration
        log_z = at.log_above(self.loc) - torch.log(self.scale)
        tiny = c.abs() < 1e-12
        safe = torch.where(tiny, 1, c)
        bounded = safe < 0
        # 1 + c z is the distance from the upper end in units of -scale / c, if there is an upper end.
        log_factor = -logsigmoid(-torch.log(torch.where(bounded, 1, safe)) - log_z)
        high = torch.where(bounded, self.loc - self.scale / torch.where(bounded, safe, -1), 1e300)
        to_end = at.log_below(high) + torch.log(torch.where(bounded, -safe, 1)) - torch.log(self.scale)
        log_factor = torch.where(bounded, to_end, log_factor)
        return torch.where(tiny, -torch.exp(log_z), -(1 / safe + 1) * log_factor) - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        bounded = self.concentration < 0
        center = torch.where(bounded, 0, torch.log(self.scale))
        return center, torch.where(bounded, 2.0, 1.3 + self.concentration)

    def upper_tail(self) -> Tail:
        c = self.concentration
        light = c == 0
        power = 1 / torch.where(light, 1, c).abs()
        return Tail(torch.where(light, 0.0, 1.0), 1.0, torch.where(light, 1 / self.scale, power))


@register_density(Exponential)
def _exponential(d: Exponential) -> Density:
    rate = upcast(d.rate)
    return GammaDensity(torch.ones_like(rate), rate)
