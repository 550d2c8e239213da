"""The laws of the families that live on the whole line."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Cauchy, Gumbel, Laplace, Normal, StudentT
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli
from torch.nn.functional import logsigmoid

from kullback.pairs.densities.base import Growth, Law, Points, Tail, law
from kullback.pairs.numerics.parameters import wide
from kullback.pairs.numerics.special import lgamma_rest

__all__ = [
    "CauchyLaw",
    "GumbelLaw",
    "LaplaceLaw",
    "LogisticLaw",
    "NormalLaw",
    "StudentTLaw",
    "log_one_plus_square",
]


def log_one_plus_square(z: Tensor) -> Tensor:
    """Return log(1 + z^2), also where z^2 overflows."""
    size = z.abs()
    large = size > 1e100
    return torch.where(
        large, 2 * torch.log(torch.where(large, size, 1)), torch.log1p(torch.where(large, 0, z) ** 2)
    )


@dataclass(frozen=True)
class _LocationScale(Law):
    loc: Tensor
    scale: Tensor

    def spread(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def standard(self, at: Points) -> Tensor:
        """Return (x - loc) / scale."""
        return (at.x - self.loc) / self.scale


class NormalLaw(_LocationScale):
    """exp(-z^2 / 2) / (scale sqrt(2 pi))."""

    def log_density(self, at: Points) -> Tensor:
        return -(self.standard(at) ** 2) / 2 - torch.log(self.scale) - math.log(2 * math.pi) / 2

    def lower_growth(self) -> Growth:
        return Growth(power=2.0)

    upper_growth = lower_growth


class LaplaceLaw(_LocationScale):
    """exp(-|z|) / (2 scale)."""

    def log_density(self, at: Points) -> Tensor:
        return -self.standard(at).abs() - torch.log(2 * self.scale)

    def kinks(self) -> list[Tensor]:
        return [self.loc]

    def lower_tail(self) -> Tail:
        return Tail(rate=1 / self.scale)

    def lower_growth(self) -> Growth:
        return Growth(power=1.0)

    upper_tail, upper_growth = lower_tail, lower_growth


class CauchyLaw(_LocationScale):
    """1 / (pi scale (1 + z^2))."""

    def log_density(self, at: Points) -> Tensor:
        return -log_one_plus_square(self.standard(at)) - torch.log(self.scale) - math.log(math.pi)

    def lower_tail(self) -> Tail:
        return Tail(power=1.0)

    upper_tail = lower_tail


class GumbelLaw(_LocationScale):
    """exp(-z - e^-z) / scale."""

    def log_density(self, at: Points) -> Tensor:
        z = self.standard(at)
        return -z - torch.exp(-z) - torch.log(self.scale)

    def upper_tail(self) -> Tail:
        return Tail(rate=1 / self.scale)

    def lower_growth(self) -> Growth:
        return Growth(rate=1 / self.scale)

    def upper_growth(self) -> Growth:
        return Growth(power=1.0)


class LogisticLaw(_LocationScale):
    """e^-z / (scale (1 + e^-z)^2)."""

    def log_density(self, at: Points) -> Tensor:
        z = self.standard(at)
        return logsigmoid(z) + logsigmoid(-z) - torch.log(self.scale)

    def lower_tail(self) -> Tail:
        return Tail(rate=1 / self.scale)

    def lower_growth(self) -> Growth:
        return Growth(power=1.0)

    upper_tail, upper_growth = lower_tail, lower_growth


@dataclass(frozen=True)
class StudentTLaw(Law):
    """(1 + z^2 / df)^(-(df + 1) / 2), normalized."""

    df: Tensor
    loc: Tensor
    scale: Tensor

    def spread(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def log_density(self, at: Points) -> Tensor:
        z = (at.x - self.loc) / (self.scale * torch.sqrt(self.df))
        half = self.df / 2
        # lgamma(half + 1/2) - lgamma(half) - log(half) / 2, which for large half is near 0
        step = (half + 0.5) * torch.log1p(0.5 / half) - 0.5 + lgamma_rest(half + 0.5) - lgamma_rest(half)
        constant = step - math.log(2 * math.pi) / 2 - torch.log(self.scale)
        return constant - (half + 0.5) * log_one_plus_square(z)

    def lower_tail(self) -> Tail:
        return Tail(power=self.df)

    upper_tail = lower_tail


@law(Normal)
def _normal(d: Normal) -> Law:
    return NormalLaw(wide(d.loc), wide(d.scale))


@law(Laplace)
def _laplace(d: Laplace) -> Law:
    return LaplaceLaw(wide(d.loc), wide(d.scale))


@law(Cauchy)
def _cauchy(d: Cauchy) -> Law:
    return CauchyLaw(wide(d.loc), wide(d.scale))


@law(Gumbel)
def _gumbel(d: Gumbel) -> Law:
    return GumbelLaw(wide(d.loc), wide(d.scale))


@law(StudentT)
def _student_t(d: StudentT) -> Law:
    return StudentTLaw(wide(d.df), wide(d.loc), wide(d.scale))


@law(LogitRelaxedBernoulli)
def _logit_relaxed_bernoulli(d: LogitRelaxedBernoulli) -> Law:
    temperature = wide(d.temperature)
    return LogisticLaw(wide(d.logits) / temperature, 1 / temperature)
