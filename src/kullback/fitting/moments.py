r"""The member of an exponential family nearest to P in KL(P || Q): its statistics have the same means as under P.

:math:`KL(P \| Q_\eta) = -H(P) + A(\eta) - \eta \cdot E_P[T] + \dots` is convex in the natural parameters. Its
derivative :math:`E_{Q_\eta}[T] - E_P[T]` is 0 there.

Information Theory and Statistics (Kullback, 1959), chapter 3; Estimating a Dirichlet distribution (Minka, 2000)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.roots import bisect
from kullback.fitting.targets import (
    DensityTarget,
    DrawsTarget,
    FitTarget,
    IntegerTarget,
    MeanTarget,
    MixedTarget,
)
from kullback.pairs.densities.density import Points
from kullback.pairs.family import FAMILIES, Means, Parameters


def matched(
    family: type[Distribution], target: MeanTarget, start: Parameters, fixed: frozenset[str]
) -> Parameters | None:
    """Return the parameters with the same means of the statistics as the target; None if there is no formula.

    Arguments:
        family: the class of Q.
        target: P.
        start: the parameters of Q at the start, in float64, of the batch's shape.
        fixed: the names of fixed parameters.
    """
    record = FAMILIES.get(family)
    if record is None or record.match is None or (_of_integers(target) and not record.has_integers):
        return None
    with torch.no_grad():
        return record.match(_TargetMeans(target), start, fixed)


@dataclass(frozen=True)
class _TargetMeans(Means):
    """The means of a target."""

    target: MeanTarget

    def mean(self) -> Tensor:
        return self.target.mean()

    def mean_of(
        self, statistic: Callable[..., Tensor], *parameters: Tensor, corner: Tensor | None = None
    ) -> Tensor:
        return cast("FitTarget", self.target).mean_of(statistic, *parameters, corner=corner)

    def mean_log(self) -> Tensor:
        return self.mean_of(_log_x)

    def deviation(self, about: Tensor, *, of_log: bool = False) -> Tensor:
        of = _log_x if of_log else _x
        return self.mean_of(lambda at, center: (of(at) - center) ** 2, about).sqrt()

    def mean_and_deviation(self) -> tuple[Tensor, Tensor] | None:
        target = self.target
        if isinstance(target, DensityTarget) and target.shape.numel():
            return target.mean_and_deviation()
        return None

    def median(self) -> Tensor:
        target = self.target
        if isinstance(target, DrawsTarget):
            order = target.draws.sort(0)
            weights = target.weights_beside(target.draws).expand_as(target.draws)
            total = weights.gather(0, order.indices).cumsum(0)
            lower = (total >= 0.5 - 1e-12).to(torch.uint8).argmax(0, keepdim=True)
            upper = (total > 0.5 + 1e-12).to(torch.uint8).argmax(0, keepdim=True)
            return ((order.values.gather(0, lower) + order.values.gather(0, upper)) / 2).squeeze(0)
        center, width = _place(target)
        low, high = center - width, center + width

        def above(m: Tensor) -> Tensor:
            return self.mean_of(lambda at, m: torch.sign(m - at.x), m, corner=m)

        for _ in range(1000):
            short, long = above(low) > 0, above(high) < 0
            if not bool((short | long).any()):
                break
            low, high = torch.where(short, 2 * low - high, low), torch.where(long, 2 * high - low, high)
        return bisect(above, low, high, steps=60)

    def extreme(self, side: int) -> Tensor | None:
        target = self.target
        if isinstance(target, DrawsTarget):
            weights = target.weights_beside(target.draws)
            return side * torch.where(weights > 0, side * target.draws, -torch.inf).amax(0)
        density = target.density if isinstance(target, DensityTarget) else None
        end = None if density is None else density.low() if side < 0 else density.high()
        return None if end is None else end.expand(target.shape)


def _x(at: Points) -> Tensor:
    return at.x


def _log_x(at: Points) -> Tensor:
    return at.log_above(0.0)


def _place(target: MeanTarget) -> tuple[Tensor, Tensor]:
    """Return a point inside the support of a density, and a width."""
    if isinstance(target, DensityTarget):
        density = target.density
        center, width = (x.expand(target.shape) for x in density.center_and_width())
        ends = density.coordinate().points(torch.stack([center - width, center, center + width])).x
        return ends[1], (ends[2] - ends[0]).abs()
    assert isinstance(target, MixedTarget)  # noqa: S101 - there is no other with a density
    centers, widths = _place(target.inner)
    return centers.mean(-2), widths.amax(-2) + centers.amax(-2) - centers.amin(-2)


def _of_integers(target: MeanTarget) -> bool:
    return (
        _of_integers(target.inner) if isinstance(target, MixedTarget) else isinstance(target, IntegerTarget)
    )
