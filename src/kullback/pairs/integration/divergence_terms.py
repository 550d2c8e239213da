"""The integrands, called terms, of KL and of the other divergences.

The terms of KL have two forms: p log(p / q), and p log(p / q) - p + q, which is not negative. If the nodes contain all
mass of Q, both forms have the same sum. Then p log(p / q) - p + q is used, because the terms of this form do not cancel
for nearly equal P and Q. The terms of the other divergences are q f(p / q).

This integrand is homogeneous of degree 1 in p and q. So the contribution of a node of weight w is the integrand at the
masses w p and w q. The sum over the nodes is the divergence of two finite distributions with these masses. So the
methods `total` and `derivatives` of a kind of divergence compute the integral and its derivatives from these masses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kullback.generators import BuiltIn, Divergence, Renyi, TotalVariation
from kullback.generators.divergence import NEAR, Growth, power_series
from kullback.generators.entropic import KL_SERIES
from kullback.generators.growth import growth_of, order_of, power_of
from kullback.generators.of_ratio import OfRatio, OwnTerms
from kullback.kernels.reference import pair_of_logs
from kullback.kernels.row_operation import differentiable_backward, expanded
from kullback.pairs.numerics.parameters import is_tracked, is_transformed
from kullback.pairs.solve_options import Tolerance


def kl_forms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return p log(p / q) - p + q and p log(p / q), stacked along a new first dimension; 0 log 0 is 0."""
    p = torch.exp(log_p)
    empty = p == 0
    d = torch.where(empty, 0, torch.where(empty, 0, log_p) - log_q)
    near = (d.abs() < NEAR) & ~empty
    far = torch.exp(log_q) - p + p * d
    whole = torch.where(near, p * power_series(KL_SERIES, torch.where(near, d, 0)), far)
    return torch.stack([whole, p * d])


class KLTotals(NamedTuple):
    """The sums over all panels of the terms in one of their two forms, and the error of each panel in `errors`."""

    value: Tensor
    error: Tensor
    rounding: Tensor
    errors: Tensor

    def are_enough(self, target: Tolerance, safety: float) -> Tensor:
        """Return a mask of the batch elements whose error meets the target or is at most the rounding error."""
        return target.is_met(self.value, safety * self.error) | (self.error <= self.rounding)


class KLColumns(NamedTuple):
    """Integrals over each panel. The first three fields stack the forms p log(p / q) - p + q and p log(p / q)."""

    values: Tensor
    errors: Tensor
    roundings: Tensor
    mass_p: Tensor
    mass_q: Tensor

    def totals(self, is_whole: Tensor) -> KLTotals:
        """Return the sums of p log(p / q) - p + q where `is_whole` is true, and of p log(p / q) elsewhere."""
        sums = torch.stack([self.values.sum(-1), self.errors.sum(-1), self.roundings.sum(-1)])
        value, error, rounding = torch.where(is_whole, sums[:, 0], sums[:, 1])
        return KLTotals(value, error, rounding, torch.where(is_whole.unsqueeze(-1), *self.errors))


# _NO_MASS replaces log 0, because the mass e^-2000 and its square root e^-1000 both round to 0.
_NO_MASS = -2000.0
# Where only one density has mass, an additional node gets a mass with the logarithm _ALONE. The mass e^-60 is
# negligible, because rounding errors are about e^-37, but e^-60 does not underflow, so the derivative with respect to
# this mass is exact.
_ALONE = -60.0
# Logarithms of derivatives are clamped to _LARGEST_LOG_DERIVATIVE. The largest float is e^709, so a sum of e^42 such
# derivatives is finite.
_LARGEST_LOG_DERIVATIVE = 667.0


class DivergenceTerms(NamedTuple):
    """The terms of a divergence, their derivatives, and approximate logarithms of terms that overflow or underflow."""

    kind: Divergence
    beyond: int | None = None
    """The index, 0 for P or 1 for Q, of the density that may have mass outside the other density's support, next to an
    end that both supports share. Outside the other support, the divergence is a constant times the mass. The
    derivatives with respect to the masses of this density do not include this constant."""
    log_scale: Tensor | None = None
    """The approximate logarithm of S = sum of p^a q^(1 - a), for Renyi's divergence of order a of distant P and Q; else
    None. If `log_scale` is given, the terms are p^a q^(1 - a) / e^log_scale. The terms of the power divergence would
    add up to a multiple of S - 1, and this subtraction would lose the digits of a small S."""

    @property
    def order(self) -> float:
        """The order of a power divergence or of Renyi's divergence; 1 for every other kind."""
        order = order_of(self.kind)
        return 1.0 if order is None else order

    @property
    def growth(self) -> Growth:
        """The growth of the terms as p / q goes to 0 or to infinity."""
        return growth_of(self._additive())

    @property
    def is_of_ratio(self) -> bool:
        """Whether the terms are known only as a function of p / q, like the terms of a kind that a user defines."""
        return isinstance(self._additive(), OfRatio)

    def _additive(self) -> Divergence:
        """Return the kind whose terms are integrated: for Renyi's order 0, Q's mass where p > 0, total variation."""
        if isinstance(self.kind, Renyi) and self.order == 0:
            return TotalVariation()
        return self.kind if isinstance(self.kind, BuiltIn | OfRatio) else OwnTerms(self.kind)

    def _whole(self) -> Divergence:
        """Return the kind that computes the divergence: `_additive()`, or `kind` itself if it is not additive."""
        return self._additive() if self.kind.additive else self.kind

    def terms(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the terms at masses with the logarithms `log_p` and `log_q`; the shape of the result is the same."""
        if self.log_scale is not None:
            scale = self.log_scale.reshape(*self.log_scale.shape, *[1] * (log_p.ndim - self.log_scale.ndim))
            return torch.exp(self._log_power(log_p, log_q) - scale)
        return self._additive().terms(pair_of_logs(log_p, log_q)).nan_to_num(nan=0.0, posinf=1e300)

    def log_size(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the approximate logarithm of |term|, which is finite even where the term overflows or underflows."""
        if self.log_scale is not None:
            return self._log_power(log_p, log_q)
        either = torch.maximum(log_p, log_q)
        growth = self.growth
        if growth.is_bounded:
            return either
        d = torch.where(log_p == log_q, 0, log_p - log_q)
        size = torch.zeros_like(either)
        for end, sign in ((growth.far, 1), (growth.near, -1)):
            if end.limit == math.inf and end.rate < math.inf:
                distance = torch.where(d.isfinite(), sign * d, 0).clamp(min=0)
                grown = end.rate * distance + end.power * torch.log1p(distance)
                size = torch.maximum(size, grown)
        return either + torch.where(either > -torch.inf, size, 0)

    def total(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the divergence of the finite distributions along the last dimension, without a gradient."""
        with torch.no_grad():
            return self._whole().total(pair_of_logs(log_p, log_q))

    def derivatives(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the divergence with respect to log p and to log q, which are 0 where the mass is 0.

        The error of the derivative with respect to log p is small relative to p, even if q is far larger. The error of
        the derivative with respect to log q is likewise small relative to q. This accuracy is needed in the tails,
        where the derivative of a log-density by a parameter is huge. Both results are differentiable.
        """
        if 0 != self.order != 1 and self.order < math.inf:
            derivatives = self._power_derivatives(log_p, log_q)
        elif self.beyond is None:
            derivatives = self._derivatives(log_p, log_q)
        else:
            derivatives = self._derivatives_beyond(log_p, log_q, self.beyond)
        sides: list[Tensor] = []
        for side, (by, log) in enumerate(zip(derivatives, (log_p, log_q), strict=True)):
            clean = torch.where(log.isfinite() & by.isfinite(), by, 0)
            # The total mass is 1 for all parameters, so the derivative with respect to the total mass cancels in every
            # derivative with respect to a parameter. The derivative with respect to the total mass is subtracted here,
            # because rounding would make the cancellation inexact.
            if side != self.beyond:
                mass = torch.exp(log)
                mean = clean.sum(-1, keepdim=True) / mass.sum(-1, keepdim=True).clamp(min=1e-300)
                clean = clean - mass * mean
            sides.append(clean)
        return sides[0], sides[1]

    def _derivatives(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        # Renyi's divergence of order 0 depends on which masses are 0, and of order inf on a single mass. So masses of 0
        # must not be replaced.
        if isinstance(self.kind, Renyi):
            return self.kind.derivatives(pair_of_logs(log_p, log_q))
        # A negligible mass replaces a mass of 0, because the derivative with respect to log 0 is undefined.
        logs = (torch.where(log == -torch.inf, _NO_MASS, log) for log in (log_p, log_q))
        return self._whole().derivatives(pair_of_logs(*logs))

    def _derivatives_beyond(self, log_p: Tensor, log_q: Tensor, side: int) -> tuple[Tensor, Tensor]:
        """Return the derivatives, those of the density `side` without the constant that `beyond` describes."""
        logs = log_p, log_q
        alone = [torch.full_like(x[..., :1], _ALONE if k == side else -torch.inf) for k, x in enumerate(logs)]
        if self.kind.additive:
            sides = list(self._derivatives(*logs))
            alone[side] = torch.zeros_like(alone[side])
            multiple = self._derivatives(*alone)[side]
        else:  # then the derivative at each node depends on the masses of all nodes
            both = (torch.cat(x, -1) for x in zip(logs, alone, strict=True))
            sides = list(self._derivatives(*both))
            multiple = sides[side][..., -1:] * math.exp(-_ALONE)
            sides = [by[..., :-1] for by in sides]
        sides[side] = sides[side] - multiple * torch.exp(logs[side])
        return sides[0], sides[1]

    def sensitivities(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of each term with respect to log p and to log q."""
        alpha = self.order
        if self.log_scale is not None:
            terms = self.terms(log_p, log_q)
            return alpha * terms, (1 - alpha) * terms
        if alpha in (0.0, 1.0):
            by_p, by_q = self._additive().derivatives(pair_of_logs(log_p, log_q))
        else:
            p, q = torch.exp(log_p), torch.exp(log_q)
            power = torch.exp(
                (alpha * log_p + (1 - alpha) * log_q)
                .nan_to_num(nan=-torch.inf)
                .clamp(max=_LARGEST_LOG_DERIVATIVE)
            )
            by_p, by_q = (power - p) / (alpha - 1), (q - power) / alpha
        return by_p, by_q

    def _power_derivatives(self, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
        """Return c (A - p) / (alpha - 1) and c (q - A) / alpha, where A = p^alpha q^(1 - alpha).

        The factor c depends on the kind: 1 for `Alpha`, and alpha / sum of A for `Renyi`.
        """
        alpha = self.order
        log_power = self._log_power(log_p, log_q)
        # These derivatives omit multiples of p and q, because `derivatives` removes such multiples.
        if self.log_scale is not None:
            shares = torch.softmax(log_power, -1)
            return alpha / (alpha - 1) * shares, -shares
        there = log_power > -torch.inf
        a, b = torch.where(there, log_p, 0), torch.where(there, log_q, 0)
        # The derivatives of `Renyi` are the derivatives of `Alpha` times alpha / sum of A.
        if isinstance(self.kind, Renyi):
            log_scale = math.log(alpha) - log_power.logsumexp(-1, keepdim=True)
        else:
            power = power_of(self.kind)
            log_scale = torch.full_like(log_p[..., :1], math.log(power[1] if power else 1.0))
        power = torch.exp((log_power + log_scale).clamp(max=_LARGEST_LOG_DERIVATIVE))
        sides: list[Tensor] = []
        for side, (log_mass, exponent) in enumerate(
            ((log_p, (alpha - 1) * (a - b)), (log_q, alpha * (a - b)))
        ):
            if side == self.beyond:
                sides.append(power)
                continue
            mass = torch.exp(log_mass + log_scale)
            near = exponent.abs() < 1
            close = mass * torch.expm1(torch.where(near, exponent, 0))
            sides.append(torch.where(near & there, close, power - mass))
        return sides[0] / (alpha - 1), -sides[1] / alpha

    def _log_power(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return alpha log p + (1 - alpha) log q; -inf where p or q is 0."""
        there = (log_p > -torch.inf) & (log_q > -torch.inf)
        a, b = torch.where(there, log_p, 0), torch.where(there, log_q, 0)
        return torch.where(there, self.order * a + (1 - self.order) * b, -torch.inf)

    def error(self, value: Tensor, error: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return the error of the divergence `value` from `error`, the error of the sum of its terms."""
        if self.kind.additive:
            return error
        if not isinstance(self.kind, Renyi):
            return error * self._change_by_terms(log_p, log_q)
        alpha = self.order
        if self.log_scale is not None:
            return error / abs(alpha - 1) * torch.exp(self.log_scale - (alpha - 1) * value)
        return error * torch.exp(value) if alpha == 0 else error * alpha * torch.exp(-(alpha - 1) * value)

    def _change_by_terms(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """Return about twice the derivative of a non-additive divergence with respect to the sum of terms."""
        by_total = self.kind.derivatives(pair_of_logs(log_p, log_q))
        by_terms = self._additive().derivatives(pair_of_logs(log_p, log_q))
        sizes = [
            torch.where(log.isfinite() & by.isfinite(), by, 0).abs().sum(-1)
            for pair in (by_total, by_terms)
            for by, log in zip(pair, (log_p, log_q), strict=True)
        ]
        return 2 * (sizes[0] + sizes[1]) / (sizes[2] + sizes[3]).clamp(min=1e-300)


def total_of_masses(kind: Divergence, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the divergence of masses along the last dimension; its gradient comes from the kind's `derivatives`."""
    terms = DivergenceTerms(kind)
    value = terms.total(log_p.detach(), log_q.detach())
    if not (torch.is_grad_enabled() and (is_tracked(log_p) or is_tracked(log_q))):
        return value
    return with_derivatives(value, terms.derivatives, log_p, log_q)


def with_derivatives(
    value: Tensor,
    derivatives: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    log_p: Tensor,
    log_q: Tensor,
) -> Tensor:
    """Return `value` with the given derivatives with respect to log p and log q, which may be differentiated again."""
    if not (is_transformed() or forward_ad._current_level >= 0):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return _WithDerivatives.apply(value, derivatives, log_p, log_q)  # pyright: ignore[reportReturnType]

    def changes(logs: Any, steps: Any) -> Tensor:
        by_p, by_q = derivatives(*logs)
        return (steps[0] * by_p).sum(-1) + (steps[1] * by_q).sum(-1)

    return expanded(value, changes, log_p, log_q)  # nested forward derivatives need a plain expression


class _WithDerivatives(torch.autograd.Function):
    """The autograd operation that returns `value`, with the gradient from `derivatives(log_p, log_q)`."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, derivatives: Any, log_p: Tensor, log_q: Tensor) -> Tensor:
        ctx.derivatives = derivatives
        ctx.save_for_backward(log_p, log_q)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        log_p, log_q = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)
        with differentiable_backward():
            return None, None, *(gradient * by for by in ctx.derivatives(log_p, log_q))
