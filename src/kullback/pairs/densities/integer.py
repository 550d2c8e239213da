"""Probabilities of integers, by formulas that are also defined for the reals between the integers.

The logarithms of factorials are large, and their differences lose digits. The saddle-point form of the probabilities
uses deviances and the small errors of Stirling's formula instead of factorials.

Fast and Accurate Computation of Binomial Probabilities (Loader, 2000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kullback.common.special import HALF_LOG_2PI, polynomial
from kullback.pairs.densities.density import Coordinate, Density, Points
from kullback.pairs.family import POSITIVE, End

# _STIRLING has the coefficients of the error of Stirling's formula, for x >= _LARGE:
# log(x!) - (x + 1/2) log x + x - log(2 pi) / 2 = 1 / (12 x) - 1 / (360 x^3) + ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_LARGE = 16.0
# _ATANH are the coefficients of the series atanh(v) = v + v^3 (1/3 + v^2/5 + v^4/7 + ...).
_ATANH = tuple(1 / k for k in range(3, 19, 2))


def stirling_error(x: Tensor) -> Tensor:
    """Return log(x!) - log(sqrt(2 pi x) (x / e)^x) for x > 0."""
    large = x >= _LARGE
    inverse = 1 / torch.where(large, x, _LARGE)
    series = polynomial(_STIRLING, inverse * inverse)
    small = torch.where(large, 1, x)
    direct = torch.lgamma(small + 1) - (small + 0.5) * torch.log(small) + small - HALF_LOG_2PI
    return torch.where(large, series * inverse, direct)


def deviance(x: Tensor, mean: Tensor, log_mean: Tensor) -> Tensor:
    """Return x log(x / mean) + mean - x for x > 0; the relative precision is full even for small results."""
    difference = x - mean
    v = difference / (x + mean)
    near = v.abs() < 0.1
    v = torch.where(near, v, 0)
    square = v * v
    series = polynomial(_ATANH, square)
    tiny = mean < 1e-100  # the derivative of x / mean contains mean^2, which underflows
    log_ratio = torch.log(x / torch.where(near | tiny, x, mean))
    log_ratio = torch.where(tiny, torch.log(x) - log_mean, log_ratio)
    return torch.where(near, difference * v + 2 * x * v * square * series, x * log_ratio - difference)


class IntegerDensity(Density):
    """Probabilities of integers; `low` and `high` are the smallest and the largest integer with mass."""

    integer: ClassVar[bool] = True
    support: ClassVar[tuple[End, End]] = POSITIVE

    def coordinate(self) -> Coordinate:
        return Coordinate(None, None)


def last_integer(is_zero: Tensor, like: Tensor) -> Tensor:
    """Return the last integer with mass: 0 where `is_zero` is true, else infinity, in the dtype of `like`."""
    return torch.where(is_zero, 0.0, torch.inf).to(like.dtype)


def log_power(n: Tensor, log_base: Tensor) -> Tensor:
    """Return n log(base), with 0 log 0 = 0. The derivative is 0 where the base is 0."""
    empty = log_base == -torch.inf
    return torch.where(empty, torch.where(n == 0, 0.0, -torch.inf), n * torch.where(empty, 0, log_base))


@dataclass(frozen=True)
class CategoricalDensity(IntegerDensity):
    """The probabilities of the integers from 0 on, from their logarithms along the last dimension of `log_mass`."""

    smooth: ClassVar[bool] = False

    log_mass: Tensor

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        return replace(self, log_mass=torch.vmap(change, in_dims=-1, out_dims=-1)(self.log_mass))

    @property
    def low(self) -> Tensor | None:
        return (self.log_mass > -torch.inf).to(torch.uint8).argmax(-1).to(self.log_mass.dtype)

    @property
    def high(self) -> Tensor | None:
        last = self.log_mass.shape[-1] - 1
        return (last - (self.log_mass > -torch.inf).flip(-1).to(torch.uint8).argmax(-1)).to(
            self.log_mass.dtype
        )

    def log_density(self, at: Points) -> Tensor:
        last = self.log_mass.shape[-1] - 1
        shape = torch.broadcast_shapes(at.x.shape, self.log_mass.shape[:-1])
        index = at.x.clamp(0, last).long().expand(shape)
        if self.log_mass.shape[-2:-1] == (1,):
            log_mass = self.log_mass.squeeze(-2).expand(*shape[:-1], -1).gather(-1, index)
        else:
            log_mass = self.log_mass.expand(*shape, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        return torch.where((at.x >= 0) & (at.x <= last), log_mass, -torch.inf)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        mass = torch.exp(self.log_mass)
        x = torch.arange(mass.shape[-1], dtype=mass.dtype, device=mass.device)
        mean = (mass * x).sum(-1)
        return mean, torch.sqrt((mass * (x - mean.unsqueeze(-1)) ** 2).sum(-1))
