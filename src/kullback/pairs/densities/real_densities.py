"""The densities of the families on the whole line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Cauchy, Gumbel, Laplace, Normal, StudentT
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, stirling_remainder
from kullback.pairs.densities.density import Density, Points, Tail, density_of_family, register_density


def log_one_plus_square(z: Tensor) -> Tensor:
    """Return log(1 + z^2), also if z^2 overflows."""
    size = z.abs()
    large = size > 1e100
    return torch.where(
        large, 2 * torch.log(torch.where(large, size, 1)), torch.log1p(torch.where(large, 0, z) ** 2)
    )


@dataclass(frozen=True)
class LocationScaleDensity(Density):
    """A function of z = (x - loc) / scale, and perhaps of further parameters, divided by scale."""

    loc: Tensor
    scale: Tensor

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def standard(self, at: Points) -> Tensor:
        """Return (x - loc) / scale."""
        return (at.x - self.loc) / self.scale


@density_of_family(Normal)
class NormalDensity(LocationScaleDensity):
    """exp(-z^2 / 2) / (scale sqrt(2 pi))."""

    def log_density(self, at: Points) -> Tensor:
        return -(self.standard(at) ** 2) / 2 - torch.log(self.scale) - HALF_LOG_2PI

    def lower_tail(self) -> Tail:
        return Tail(0.0, 2.0, 1 / (2 * self.scale**2))

    upper_tail = lower_tail


@density_of_family(Laplace)
class LaplaceDensity(LocationScaleDensity):
    """exp(-|z|) / (2 scale)."""

    def log_density(self, at: Points) -> Tensor:
        return -self.standard(at).abs() - torch.log(2 * self.scale)

    def nonsmooth_points(self) -> list[Tensor]:
        return [self.loc]

    def tail_factor(self) -> float:
        return 0.0

    def lower_tail(self) -> Tail:
        return Tail(0.0, 1.0, 1 / self.scale)

    upper_tail = lower_tail


@density_of_family(Cauchy)
class CauchyDensity(LocationScaleDensity):
    """1 / (pi scale (1 + z^2))."""

    def log_density(self, at: Points) -> Tensor:
        return -log_one_plus_square(self.standard(at)) - torch.log(self.scale) - math.log(math.pi)

    def lower_tail(self) -> Tail:
        return Tail.of_power(1.0)

    upper_tail = lower_tail


@density_of_family(Gumbel)
class GumbelDensity(LocationScaleDensity):
    """exp(-z - e^-z) / scale."""

    def log_density(self, at: Points) -> Tensor:
        z = self.standard(at)
        return -z - torch.exp(-z) - torch.log(self.scale)

    def lower_tail(self) -> Tail:
        return Tail(-1.0, 1 / self.scale, torch.exp(self.loc / self.scale))

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, 1 / self.scale)


class LogisticDensity(LocationScaleDensity):
    """e^-z / (scale (1 + e^-z)^2)."""

    def log_density(self, at: Points) -> Tensor:
        z = self.standard(at)
        return logsigmoid(z) + logsigmoid(-z) - torch.log(self.scale)

    def lower_tail(self) -> Tail:
        return Tail(0.0, 1.0, 1 / self.scale)

    upper_tail = lower_tail


@density_of_family(StudentT)
@dataclass(frozen=True)
class StudentTDensity(LocationScaleDensity):
    """(1 + z^2 / df)^(-(df + 1) / 2), normalized."""

    df: Tensor

    def log_density(self, at: Points) -> Tensor:
        z = (at.x - self.loc) / (self.scale * torch.sqrt(self.df))
        half = self.df / 2
        # lgamma(half + 1/2) - lgamma(half) - log(half) / 2, which is near 0 for large `half`
        step = (
            (half + 0.5) * torch.log1p(0.5 / half)
            - 0.5
            + stirling_remainder(half + 0.5)
            - stirling_remainder(half)
        )
        constant = step - HALF_LOG_2PI - torch.log(self.scale)
        return constant - (half + 0.5) * log_one_plus_square(z)

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.df)

    upper_tail = lower_tail


@register_density(LogitRelaxedBernoulli)
def logit_relaxed_bernoulli(d: LogitRelaxedBernoulli) -> LogisticDensity:
    """Return the density of a logistic variable."""
    temperature = upcast(d.temperature)
    return LogisticDensity(upcast(d.logits) / temperature, 1 / temperature)
