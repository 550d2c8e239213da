"""Moments of log X for a positive X: a product of powers of Gamma variables, a log-normal or a Kumaraswamy variable."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.special import (
    bounded_exp,
    digamma,
    harmonic_number,
    lgamma_bregman,
    log1p_quotient,
    log_ratio,
    stirling_remainder,
    trigamma,
    trigamma_decrease,
)

# For x > _WIDE, e^x - 1 rounds to e^x, because e^-40 is less than half the machine epsilon.
_WIDE = 40.0


@dataclass(frozen=True)
class LogMoments(ABC):
    """Entropy, mean, variance and Jensen gaps of log X for a positive variable X.

    If an expectation is infinite, the result is an arbitrary finite number: the caller sets the divergence to +inf.
    """

    entropy: Tensor  # the entropy of log X, which is the entropy of X minus E log X

    @abstractmethod
    def mean(self) -> Tensor:
        """Return E log X."""

    @abstractmethod
    def variance(self, scale: Tensor) -> Tensor:
        """Return the variance of (log X) / scale."""

    @abstractmethod
    def jensen_gap(self, k: Tensor | float) -> Tensor:
        """Return log E X^k - k E log X, which is at least 0 by Jensen's inequality."""

    def first_two(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance of X / scale; the variance is infinite if either overflows."""
        gap = self.jensen_gap(1.0)
        log_mean, log_square = self.log_mean() - torch.log(scale), self.jensen_gap(2.0) - 2 * gap
        return _mean_and_variance(log_mean, log_square)

    def log_power(self, k: Tensor | float) -> Tensor:
        """Return log E X^k."""
        return k * self.mean() + self.jensen_gap(k)

    def log_mean(self) -> Tensor:
        """Return log E X."""
        return self.log_power(1.0)

    def log_square(self) -> Tensor:
        """Return log E X^2."""
        return self.log_power(2.0)


class Factor(NamedTuple):
    """A factor of the moments E X^k, which is E G^(k power) for G ~ Gamma(concentration, 1).

    If `sign` is -1, the moments are divided by E G^(k power), as for a Beta variable X.
    """

    concentration: Tensor
    power: Tensor | float = 1.0
    sign: int = 1


class Exact(NamedTuple):
    """E X and the variance of X / E X, each as a pair (dividend, divisor), because the quotient may overflow."""

    mean: tuple[Tensor, Tensor]
    variance: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class GammaProduct(LogMoments):
    """A variable X whose moments E X^k are e^(k shift) times the product of the `factors`."""

    shift: Tensor
    factors: tuple[Factor, ...]
    exact: Exact | None = None
    root: Tensor | float = 1.0  # 1 / |power|, which is the same for all factors

    def mean(self) -> Tensor:
        total = self.shift
        for a, power, sign in self.factors:
            total = total + sign * power * digamma(a)
        return total

    def variance(self, scale: Tensor) -> Tensor:
        trigammas = sum((sign * trigamma(a) for a, _, sign in self.factors), torch.zeros_like(self.shift))
        relative = (torch.ones_like(scale) / scale).clamp(max=1e308) / self.root
        return relative * trigammas * relative

    def jensen_gap(self, k: Tensor | float) -> Tensor:
        total = torch.zeros_like(self.shift)
        for a, power, sign in self.factors:
            step = torch.zeros_like(a) + power * k
            finite = a + step > 0
            step = torch.where(finite, step, 0)
            total = total + sign * lgamma_bregman(a + torch.zeros_like(step), a + step, step)
        return total

    def log_power(self, k: Tensor | float) -> Tensor:
        total = k * self.shift
        for a, power, sign in self.factors:
            step = torch.zeros_like(a) + power * k
            # For a small concentration, E log G is large and would cancel, so the lgammas are subtracted.
            small = (a < 1) & (a + step > 0)
            b, c = torch.where(small, a, 1), torch.where(small, step, 0)
            near = torch.lgamma(b + c) - torch.lgamma(b)
            b, c = torch.where(small, 1, a), torch.where((a + step > 0) & ~small, step, 0)
            far = lgamma_bregman(b + torch.zeros_like(c), b + c, c) + step * digamma(b)
            total = total + sign * torch.where(small, near, far)
        return total

    def first_two(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        if self.exact is None:
            return super().first_two(scale)
        (dividend, divisor), (above, below) = self.exact
        mean = dividend / scale / divisor
        return mean, above * mean * (mean / below)

    def log_mean(self) -> Tensor:
        return super().log_mean() if self.exact is None else log_ratio(*self.exact.mean)

    def log_square(self) -> Tensor:
        near = super().log_square()
        if self.exact is None:
            return near
        above, below = self.exact.variance
        far = 2 * log_ratio(*self.exact.mean) + log1p_quotient(above, below)
        return torch.where(above > below, near, far)


@dataclass(frozen=True)
class NormalLog(LogMoments):
    """A log-normal variable X: log X is Normal(loc, scale)."""

    loc: Tensor
    scale: Tensor

    def mean(self) -> Tensor:
        return self.loc

    def variance(self, scale: Tensor) -> Tensor:
        relative = self.scale / scale
        return relative * relative

    def jensen_gap(self, k: Tensor | float) -> Tensor:
        return (k * self.scale) ** 2 / 2


@dataclass(frozen=True)
class KumaraswamyLog(LogMoments):
    """A Kumaraswamy variable X: X^a is Beta(1, b), so E X^k = b B(1 + k/a, b), where k/a may be tiny or huge."""

    a: Tensor
    b: Tensor

    def mean(self) -> Tensor:
        return -harmonic_number(self.b) / self.a

    def variance(self, scale: Tensor) -> Tensor:
        relative = (torch.ones_like(scale) / scale).clamp(max=1e308) / self.a
        return relative * trigamma_decrease(self.b) * relative

    def jensen_gap(self, k: Tensor | float) -> Tensor:
        step = self._step(k)
        near = step.abs() < 1  # for such a k, log E X^k and k E log X would cancel
        gap = torch.where(near, 0, self.log_power(k) + step * harmonic_number(self.b))
        step = torch.where(near, step, 0)
        one = torch.ones_like(step)
        of_beta = lgamma_bregman(one, 1 + step, step)
        return torch.where(near, of_beta - lgamma_bregman(one + self.b, 1 + self.b + step, step), gap)

    def log_power(self, k: Tensor | float) -> Tensor:
        step = self._step(k)
        less, more = torch.minimum(step, self.b), torch.maximum(step, self.b)
        x, y = 1 + more, 1 + more + less
        # By Stirling's formula, lgamma(y) - lgamma(x) is `rise` + y log(y / x) - `less`.
        rise = stirling_remainder(y) - stirling_remainder(x) + less * torch.log(x)
        return torch.lgamma(1 + less) - (rise + y * torch.log1p(less / x) - less)

    def first_two(self, scale: Tensor) -> tuple[Tensor, Tensor]:
        log_mean = self.log_mean()
        gap = self.jensen_gap(2.0) - 2 * self.jensen_gap(1.0)
        log_square = torch.where(self.a < 1, self.log_square() - 2 * log_mean, gap)
        return _mean_and_variance(log_mean - torch.log(scale), log_square)

    def _step(self, k: Tensor | float) -> Tensor:
        step = (torch.zeros_like(self.a) + k) / self.a
        return torch.where(step > -1, step, 0)


def _mean_and_variance(log_mean: Tensor, log_square: Tensor) -> tuple[Tensor, Tensor]:
    """Return E X and Var X from log E X and log E X^2 - 2 log E X; inf where a moment overflows."""
    wide = log_square > _WIDE
    mean = bounded_exp(log_mean)
    finite = torch.where(mean.isinf(), 0, mean)
    near = finite * torch.expm1(torch.where(wide, 0, log_square)) * finite
    far = bounded_exp(2 * log_mean + torch.where(wide, log_square, 0))
    return mean, torch.where(wide | mean.isinf(), far, near)


def positive(x: Tensor) -> Tensor:
    """Return x where it is above 0, and 1 elsewhere."""
    return torch.where(x > 0, x, 1)
