"""The densities of mixtures and of zero-inflated distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import MixtureSameFamily
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import tensor_of, upcast
from kullback.common.special import safe_log, safe_logsumexp
from kullback.pairs.densities.black_box import density_on_image
from kullback.pairs.densities.density import (
    Coordinate,
    Density,
    Points,
    Tail,
    density_of,
    log_sum,
    register_density,
)
from kullback.pairs.densities.integer import IntegerDensity
from kullback.pairs.numerics.parameters import first_given, log_probs_of


@dataclass(frozen=True)
class MixtureDensity(Density):
    """The density sum_k e^log_weights_k p_k(x); the components are the last dimension of the weights and of `part`."""

    log_weights: Tensor
    part: Density

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        def of_each(x: Tensor) -> Tensor:
            return torch.stack(list(map(change, x.unbind(-1))), -1) if x.ndim else x

        return replace(self, log_weights=of_each(self.log_weights), part=self.part.mapped(of_each))

    @property
    def low(self) -> Tensor | None:
        ends = self.part.low
        return ends if ends is None or not ends.ndim else self._of_used(ends, torch.inf).amin(-1)

    @property
    def high(self) -> Tensor | None:
        ends = self.part.high
        return ends if ends is None or not ends.ndim else self._of_used(ends, -torch.inf).amax(-1)

    def pieces(self) -> tuple[Tensor, Tensor] | None:
        pieces = self.part.pieces()
        if pieces is None and not self._moves_ends():
            return None
        low, high = self.part.ends() if pieces is None else pieces
        weights = self.log_weights if pieces is None else self.log_weights.unsqueeze(-1)
        low, high, weights = torch.broadcast_tensors(low, high, weights)
        unused = weights == -torch.inf
        low, high = torch.where(unused, torch.inf, low), torch.where(unused, -torch.inf, high)
        return (low, high) if pieces is None else (low.flatten(-2), high.flatten(-2))

    def _of_used(self, x: Tensor, otherwise: float) -> Tensor:
        """Return x, with `otherwise` in place of the components of weight 0."""
        return torch.where(self.log_weights == -torch.inf, otherwise, x)

    def log_density(self, at: Points) -> Tensor:
        apart = Points(at.x.unsqueeze(-1))
        if at.low is not None or at.high is not None:
            rest = [None if x is None else x.unsqueeze(-1) if x.ndim else x for x in at[1:]]
            apart = Points(apart.x, *rest)
        low, high = self.part.low, self.part.high
        outside = torch.zeros_like(apart.x, dtype=torch.bool)
        if low is not None and low.ndim:
            outside = outside | (apart.x < low)
            apart = Points(torch.maximum(apart.x, low))
        if high is not None and high.ndim:
            outside = outside | (apart.x > high)
            apart = Points(torch.minimum(apart.x, high))
        density = torch.where(outside, -torch.inf, self.part.log_density(apart))
        return safe_logsumexp(self.log_weights + density, -1)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        weights = torch.exp(self.log_weights)
        centers, widths = torch.broadcast_tensors(*self.part.center_and_width(), self.log_weights)[:2]
        if self._moves_ends():
            centers, widths = self._own_coordinate(centers), torch.ones_like(widths)
        center = (weights * centers).sum(-1)
        variance = (weights * (widths**2 + (centers - center.unsqueeze(-1)) ** 2)).sum(-1)
        return center, torch.sqrt(variance)

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        peaks: list[Tensor] = []
        moves_ends = self._moves_ends()
        for marks in self.part.breakpoints(steps.unsqueeze(-1)):
            of_parts = torch.broadcast_tensors(marks, self.log_weights)[0]
            peaks += (self._own_coordinate(of_parts) if moves_ends else of_parts).unbind(-1)
        return peaks

    def nonsmooth_points(self) -> list[Tensor]:
        points: list[Tensor] = []
        for point in (*self.part.nonsmooth_points(), self.part.low, self.part.high):
            points += [] if point is None or not point.ndim else point.unbind(-1)
        return points

    def lower_tail(self) -> Tail:
        return self._slowest(self.part.lower_tail(), is_upper=False)

    def upper_tail(self) -> Tail:
        return self._slowest(self.part.upper_tail(), is_upper=True)

    def _slowest(self, tail: Tail, *, is_upper: bool) -> Tail:
        """Return the tail that falls most slowly among the components that share an end with the mixture."""
        ends = self.part.high if is_upper else self.part.low
        end = None if ends is None or not ends.ndim else self.high if is_upper else self.low
        has_own_ends = end is not None
        if not (has_own_ends or isinstance(tail.level, Tensor) or isinstance(tail.power, Tensor)):
            if not isinstance(tail.coefficient, Tensor) or not tail.coefficient.ndim:
                return tail
            used = torch.where(self.log_weights > -torch.inf, tail.coefficient, torch.inf)
            return Tail(tail.level, tail.power, used.amin(-1))
        level, power, coefficient, log_weights = torch.broadcast_tensors(
            *[tensor_of(x, torch.float64) for x in tail], self.log_weights
        )
        used = log_weights > -torch.inf
        if ends is not None and end is not None:
            used = used & (ends == end.unsqueeze(-1))
        slowest: list[Tensor] = []
        for x in (-level, power, coefficient):  # amin returns NaN if any entry is NaN
            least = torch.where(used, x, torch.inf).amin(-1, keepdim=True)
            used = used & ((x == least) | least.isnan())
            slowest.append(least.squeeze(-1))
        return Tail(-slowest[0], *slowest[1:])

    def _moves_ends(self) -> bool:
        """Return whether an end of the support depends on parameters, so that components can have different ends."""
        low, high = self.part.low, self.part.high
        return (low is not None and low.ndim > 0) or (high is not None and high.ndim > 0)

    def _own_coordinate(self, marks: Tensor) -> Tensor:
        """Convert the points `marks` from the components' coordinates to the mixture's coordinate."""
        own = Coordinate(
            *(None if x is None else x.unsqueeze(-1) if x.ndim else x for x in (self.low, self.high))
        )
        return own.of(self.part.coordinate().points(marks).x).clamp(-700, 700)


class MixtureOfIntegersDensity(MixtureDensity):
    """The density of a mixture of integer-valued components."""

    integer: ClassVar[bool] = True

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the components' probabilities are smooth functions of x."""
        return self.part.smooth

    def coordinate(self) -> Coordinate:
        return self.part.coordinate()

    def _moves_ends(self) -> bool:
        return False


@dataclass(frozen=True)
class ZeroInflatedDensity(IntegerDensity):
    """The probability gate + (1 - gate) p(0) at 0, and (1 - gate) p(x) at the other integers x, for p in `part`."""

    log_gate: Tensor
    log_rest: Tensor
    part: Density

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the probabilities of the integers above 0 are a smooth function of x."""
        return self.part.smooth

    @property
    def low(self) -> Tensor | None:
        least = self.part.ends()[0]
        return torch.where(self.log_gate > -torch.inf, least.clamp(max=0.0), least)

    @property
    def high(self) -> Tensor | None:
        return torch.where(self.log_rest > -torch.inf, self.part.ends()[1], 0.0)

    def log_density(self, at: Points) -> Tensor:
        other = self.log_rest + self.part.log_density(at)
        return torch.where(at.x == 0, log_sum(other, self.log_gate), other)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center, width = self.part.center_and_width()
        gate, rest = torch.exp(self.log_gate), torch.exp(self.log_rest)
        return rest * center, torch.sqrt(rest * (width**2 + gate * center**2))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return [*self.part.breakpoints(steps), steps + torch.zeros_like(self.log_gate)]

    def upper_tail(self) -> Tail:
        return self.part.upper_tail()


@register_density("pyro.distributions.zero_inflated.ZeroInflatedDistribution")
def _zero_inflated(d: Any) -> Density | None:
    owner = next(kind for kind in type(d).__mro__ if "log_prob" in vars(kind))
    if owner.__name__ != "ZeroInflatedDistribution" or "log_prob" in vars(d):
        return None
    part = density_of(d.base_dist)
    if part is None or not part.integer:
        return None
    if "gate" in vars(d) and first_given(d, ("gate", "gate_logits")) == "gate":
        gate = upcast(d.gate)
        return ZeroInflatedDensity(safe_log(gate), torch.log1p(-gate), part)
    logits = upcast(d.gate_logits)
    return ZeroInflatedDensity(logsigmoid(logits), logsigmoid(-logits), part)


@register_density(MixtureSameFamily)
def _mixture(d: MixtureSameFamily) -> Density | None:
    part = density_of(d.component_distribution)
    if part is None:
        return None
    # If `mapped` cannot select single components, only the mixture's log_prob is evaluated.
    if not part.is_splittable():
        low, high = part.low, part.high
        low = low if low is None or not low.ndim else low.amin(-1)
        high = high if high is None or not high.ndim else high.amax(-1)
        return density_on_image(d, (low, high))
    return (MixtureOfIntegersDensity if part.integer else MixtureDensity)(log_weights_of(d), part)


def log_weights_of(d: MixtureSameFamily) -> Tensor:
    """Return the log-weights of a mixture, with the components along the last dimension."""
    return log_probs_of(d.mixture_distribution)
