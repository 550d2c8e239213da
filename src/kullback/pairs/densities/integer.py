"""The densities of the families on the integers, extended to the reals between them.

The probabilities use the saddle-point form: small differences from Stirling's formula and deviances replace the large
logarithms of factorials.

Fast and Accurate Computation of Binomial Probabilities (Loader, 2000)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Binomial, Categorical, Geometric, NegativeBinomial, Poisson

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, polynomial
from kullback.pairs.densities.density import Coordinate, Density, Points, Tail, register_density
from kullback.pairs.numerics.bernoulli import probabilities_of, rate_of
from kullback.pairs.numerics.parameters import log_probs_of

# log(x!) - (x + 1/2) log x + x - log(2 pi) / 2 = 1 / 12 x - 1 / 360 x^3 + ...
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_LARGE = 16.0
# atanh(v) = v + v^3 (1/3 + v^2/5 + v^4/7 + ...)
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
    """Return x log(x / mean) + mean - x for x > 0, to full precision for small results."""
    difference = x - mean
    v = difference / (x + mean)
    near = v.abs() < 0.1
    v = torch.where(near, v, 0)
    square = v * v
    series = polynomial(_ATANH, square)
    tiny = mean < 1e-100  # its square, in the derivative of the quotient, underflows
    log_ratio = torch.log(x / torch.where(near | tiny, x, mean))
    log_ratio = torch.where(tiny, torch.log(x) - log_mean, log_ratio)
    return torch.where(near, difference * v + 2 * x * v * square * series, x * log_ratio - difference)


def _log_split(a: Tensor, b: Tensor, trials: _Trials) -> Tensor:
    """Return the logarithm of (a + b)! / (a! b!) p^a (1 - p)^b for a, b > 0 and 0 < p < 1."""
    n = a + b
    log_n = torch.log(n)
    exponent = stirling_error(n) - stirling_error(a) - stirling_error(b)
    exponent = exponent - deviance(a, n * trials.success, log_n + trials.log_success)
    exponent = exponent - deviance(b, n * trials.failure, log_n + trials.log_failure)
    return exponent + (log_n - torch.log(a) - torch.log(b)) / 2 - HALF_LOG_2PI


class IntegerDensity(Density):
    """A density on the integers; `low` and `high` are the smallest and the largest integer with mass."""

    integer: ClassVar[bool] = True
    smooth: ClassVar[bool] = True
    """Whether the probabilities are a smooth function of x; otherwise every term has to be summed."""

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64, device="cpu")

    def coordinate(self) -> Coordinate:
        return Coordinate(None, None)


def _last_integer(is_zero: Tensor, like: Tensor) -> Tensor:
    """Return 0 where `is_zero`, else infinity, in the dtype of a tensor: half-precision ends overflow."""
    return torch.where(is_zero, 0.0, torch.inf).to(like.dtype)


def _power(n: Tensor, log_base: Tensor) -> Tensor:
    """Return n log base with 0 log 0 = 0; the derivative is 0 where the base is 0."""
    empty = log_base == -torch.inf
    return torch.where(empty, torch.where(n == 0, 0.0, -torch.inf), n * torch.where(empty, 0, log_base))


@dataclass(frozen=True)
class _Trials(IntegerDensity):
    total_count: Tensor
    success: Tensor
    failure: Tensor
    log_success: Tensor
    log_failure: Tensor

    def certain(self) -> Tensor:
        """Return where one of the two outcomes is impossible."""
        return (self.log_success == -torch.inf) | (self.log_failure == -torch.inf)

    def uncertain(self) -> _Trials:
        """Return the density with probabilities 1/2 where one outcome is impossible: all logarithms are finite."""
        certain = self.certain()
        half = (0.5, 0.5, math.log(0.5), math.log(0.5))
        own = (self.success, self.failure, self.log_success, self.log_failure)
        probabilities = (torch.where(certain, a, b) for a, b in zip(half, own, strict=True))
        return type(self)(self.total_count, *probabilities)


class BinomialDensity(_Trials):
    """n! / (x! (n - x)!) p^x (1 - p)^(n - x)."""

    def low(self) -> Tensor | None:
        return torch.where(self.log_failure == -torch.inf, self.total_count, 0.0)

    def high(self) -> Tensor | None:
        return torch.where(self.log_success == -torch.inf, 0.0, self.total_count)

    def log_density(self, at: Points) -> Tensor:
        n, x = self.total_count, at.x
        within = (x > 0) & (x < n)
        middle = _log_split(torch.where(within, x, 1), torch.where(within, n - x, 1), self.uncertain())
        ends = torch.where(x == 0, _power(n, self.log_failure), -torch.inf)
        ends = torch.where((x == n) & (n > 0), _power(n, self.log_success), ends)
        return torch.where(within & ~self.certain(), middle, ends)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        mean = self.total_count * self.success
        return mean, torch.sqrt(mean * self.failure)


class NegativeBinomialDensity(_Trials):
    """(x + r - 1)! / (x! (r - 1)!) p^x (1 - p)^r, where p is the probability of the counted outcome, as in torch."""

    def high(self) -> Tensor | None:
        return _last_integer((self.log_success == -torch.inf) | (self.total_count == 0), self.total_count)

    def log_density(self, at: Points) -> Tensor:
        r, x = self.total_count, at.x
        within = (x > 0) & (r > 0)
        a, b = torch.where(within, x, 1), torch.where(within, r, 1)
        middle = _log_split(a, b, self.uncertain()) + torch.log(b) - torch.log(a + b)
        at_zero = torch.where(x == 0, _power(r, self.log_failure), -torch.inf)
        return torch.where(within & ~self.certain(), middle, at_zero)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        odds = torch.exp(self.log_success - self.log_failure)
        mean = self.total_count * odds
        return mean, torch.sqrt(mean * (1 + odds))

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, -self.log_success)


@dataclass(frozen=True)
class PoissonDensity(IntegerDensity):
    """rate^x e^-rate / x!."""

    rate: Tensor

    def high(self) -> Tensor | None:
        return _last_integer(self.rate == 0, self.rate)

    def log_density(self, at: Points) -> Tensor:
        x = at.x
        inner = (x > 0) & (self.rate > 0)
        a, rate = torch.where(inner, x, 1), torch.where(inner, self.rate, 1)
        exponent = -stirling_error(a) - deviance(a, rate, torch.log(rate))
        at_zero = torch.where(x == 0, -self.rate, -torch.inf)
        return torch.where(inner, exponent - torch.log(a) / 2 - HALF_LOG_2PI, at_zero)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.rate, torch.sqrt(self.rate)

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, math.inf)  # faster than any exponential


@dataclass(frozen=True)
class GeometricDensity(IntegerDensity):
    """p (1 - p)^x."""

    log_success: Tensor
    log_failure: Tensor

    def high(self) -> Tensor | None:
        return _last_integer(self.log_failure == -torch.inf, self.log_failure)

    def log_density(self, at: Points) -> Tensor:
        return self.log_success + _power(at.x, self.log_failure)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        mean = torch.exp(self.log_failure - self.log_success)
        return mean, torch.sqrt(mean * (1 + mean))

    def tail_factor(self) -> float:
        return 0.0

    def upper_tail(self) -> Tail:
        return Tail(0.0, 1.0, -self.log_failure)


@dataclass(frozen=True)
class CategoricalDensity(IntegerDensity):
    """The probability of class x, from log-probabilities along the last dimension."""

    smooth: ClassVar[bool] = False

    log_mass: Tensor

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        return replace(self, log_mass=torch.vmap(change, in_dims=-1, out_dims=-1)(self.log_mass))

    def low(self) -> Tensor | None:
        return (self.log_mass > -torch.inf).to(torch.uint8).argmax(-1).to(self.log_mass.dtype)

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


@register_density(Bernoulli)
def _of_one_trial(d: Bernoulli) -> Density:
    probabilities = probabilities_of(d)
    return BinomialDensity(torch.ones_like(probabilities.success), *probabilities[:4])


register_density(Binomial)(lambda d: BinomialDensity(upcast(d.total_count), *probabilities_of(d)[:4]))
register_density(Poisson)(lambda d: PoissonDensity(rate_of(d)))
register_density(Geometric)(lambda d: GeometricDensity(*probabilities_of(d)[2:4]))
register_density(NegativeBinomial)(
    lambda d: NegativeBinomialDensity(upcast(d.total_count), *probabilities_of(d)[:4])
)
register_density(Categorical)(lambda d: CategoricalDensity(log_probs_of(d)))
