"""Means of functions under the target of a fit: by quadrature for a density, and by a weighted average for draws.

The formulas for the nearest member of a family use a target through the interface `kullback.pairs.family.Means`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily

from kullback.common.dtypes import upcast
from kullback.common.roots import bisect
from kullback.pairs.clone import parts_of
from kullback.pairs.densities.composite import log_weights_of
from kullback.pairs.densities.density import Density, Points, density_of
from kullback.pairs.family import Means, overrides_density
from kullback.pairs.integration.line import Line, first_edges, matters, scan_points, span
from kullback.pairs.integration.panels import (
    LINE,
    SAFETY,
    WEIGHTS_KRONROD,
    Panels,
    integrate,
    integrate_panels,
    panel_nodes,
)

# The relative error of quadrature must be near float64's rounding error, because the formulas subtract means from each
# other. A batch element gets at most `_MOST_NODES` nodes. `benchmarks/panel_constants.py` chose the number of first
# panels, which is the same in `kullback.pairs.integration.quadrature`.
_RTOL, _MOST_NODES = 1e-14, 6_000
_FIRST_PANELS = 16
# To limit the memory, at most this number of batch elements is integrated together: a node takes 8 bytes per element.
_BLOCK = 2048
# The nodes may miss at most this mass. With parameters in float32, a density has a mass of 1 within about 1e-7.
_MASS_ERROR = 1e-6

# e^x underflows in float64 for x < _UNDERFLOW. A point with a log-density below _FAR_OUT is in the extreme tail.
_UNDERFLOW, _FAR_OUT = -745.0, -600.0

Statistic = Callable[..., Tensor]


class MeanTarget(ABC):
    """A batch of distributions of numbers whose means can be computed; `shape` is the batch shape."""

    shape: torch.Size
    has_integers: bool = False

    @abstractmethod
    def mean(self) -> Tensor:
        """Return `Means.mean`."""


class ContinuousTarget(MeanTarget, Means):
    """A target with a density."""

    @abstractmethod
    def place(self) -> tuple[Tensor, Tensor]:
        """Return a point inside the support, and a length scale of the distribution, both in the batch shape."""

    def median(self) -> Tensor:
        center, width = self.place()
        low, high = center - width, center + width

        def above(m: Tensor) -> Tensor:
            return self.mean_of(lambda at, m: torch.sign(m - at.x), m, corner=m)

        for _ in range(1000):
            short, long = above(low) > 0, above(high) < 0
            if not bool((short | long).any()):
                break
            low, high = torch.where(short, 2 * low - high, low), torch.where(long, 2 * high - low, high)
        return bisect(above, low, high, steps=60)


@dataclass(frozen=True)
class DensityTarget(ContinuousTarget):
    """A target with a known density on the real line."""

    density: Density
    shape: torch.Size

    def mean(self) -> Tensor:
        about = self._center()
        return about + self.mean_of(lambda at, about: at.x - about, about)

    def mean_and_deviation(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and the deviation, from one integral unless digits cancel; None for an empty batch."""
        if not self.shape.numel():
            return None
        about = self._center()
        first, second = self.mean_of(
            lambda at, about: torch.stack([at.x - about, (at.x - about) ** 2]), about
        )
        mean, variance = about + first, second - first**2
        if bool((first**2 > variance).any()):
            variance = self.mean_of(lambda at, mean: (at.x - mean) ** 2, mean)
        return mean, variance.sqrt()

    def extreme(self, side: int) -> Tensor | None:
        end = self.density.low if side < 0 else self.density.high
        return None if end is None else end.expand(self.shape)

    def place(self) -> tuple[Tensor, Tensor]:
        center, width = (x.expand(self.shape) for x in self.density.center_and_width())
        ends = self.density.coordinate().points(torch.stack([center - width, center, center + width])).x
        return ends[1], (ends[2] - ends[0]).abs()

    def _center(self) -> Tensor:
        center = self.density.center_and_width()[0].expand(self.shape)
        return self.density.coordinate().points(center).x

    def mean_of(self, statistic: Statistic, *parameters: Tensor, corner: Tensor | None = None) -> Tensor:
        if not self.shape.numel():
            return torch.zeros(self.shape, dtype=torch.float64, device="cpu")
        columns = [*parameters, *([] if corner is None else [corner])]
        if not self.density.is_splittable():
            p = self.density.mapped(lambda x: x.unsqueeze(-1))
            columns = [x.unsqueeze(-1) for x in columns]
            return _integrated(p, statistic, self.shape, columns, corner is not None)
        p = self.density.mapped(lambda x: x.expand(self.shape).reshape(-1, 1))
        columns = [x.expand(self.shape).reshape(-1, 1) for x in columns]
        parts: list[Tensor] = []
        for start in range(0, self.shape.numel(), _BLOCK):
            block = slice(start, start + _BLOCK)
            part = p if self.shape.numel() <= _BLOCK else p.mapped(lambda x, block=block: x[block])
            own = [x[block] for x in columns]
            shape = torch.Size([min(_BLOCK, self.shape.numel() - start)])
            parts.append(_integrated(part, statistic, shape, own, corner is not None))
        values = torch.cat(parts, -1)
        return values.reshape([*values.shape[:-1], *self.shape])


@dataclass(frozen=True)
class IntegerTarget(MeanTarget):
    """A target on the integers."""

    distribution: Distribution
    shape: torch.Size
    has_integers: bool = True

    def mean(self) -> Tensor:
        return _mean_of_integers(self.distribution).expand(self.shape)


def _mean_of_integers(d: Distribution) -> Tensor:
    """Return the mean of a distribution on the integers, also of Categorical; torch returns NaN for it."""
    if isinstance(d, Categorical):
        probs = upcast(d.probs)
        return (probs * torch.arange(probs.shape[-1], device="cpu")).sum(-1)
    if isinstance(d, MixtureSameFamily):
        return (torch.exp(log_weights_of(d)) * _mean_of_integers(d.component_distribution)).sum(-1)
    return upcast(d.mean)


@dataclass(frozen=True)
class DrawsTarget(MeanTarget, Means):
    """A target given by draws along the first dimension; the weights have sum 1, and shape (n,) or the draws' shape."""

    draws: Tensor
    weights: Tensor

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.draws.shape[1:]

    def _weights_beside(self, values: Tensor) -> Tensor:
        """Return the weights with trailing dimensions of size 1, which broadcast with `values`."""
        return self.weights.reshape(*self.weights.shape, *[1] * (values.ndim - self.weights.ndim))

    def mean(self) -> Tensor:
        rough = self.mean_of(lambda at: at.x)
        return rough + self.mean_of(lambda at, about: at.x - about, rough)

    def mean_of(self, statistic: Statistic, *parameters: Tensor, corner: Tensor | None = None) -> Tensor:
        values = statistic(Points(self.draws), *parameters)
        weights = self._weights_beside(values)
        return torch.where(weights > 0, weights * values, 0).sum(0)

    def median(self) -> Tensor:
        order = self.draws.sort(0)
        weights = self._weights_beside(self.draws).expand_as(self.draws)
        total = weights.gather(0, order.indices).cumsum(0)
        lower = (total >= 0.5 - 1e-12).to(torch.uint8).argmax(0, keepdim=True)
        upper = (total > 0.5 + 1e-12).to(torch.uint8).argmax(0, keepdim=True)
        return ((order.values.gather(0, lower) + order.values.gather(0, upper)) / 2).squeeze(0)

    def extreme(self, side: int) -> Tensor | None:
        weights = self._weights_beside(self.draws)
        return side * torch.where(weights > 0, side * self.draws, -torch.inf).amax(0)


@dataclass(frozen=True)
class MixedTarget(ContinuousTarget):
    """A mixture of distributions of vectors whose numbers are independent within each component.

    A mean under the mixture is the weighted mean of the means under the components. `weights` has the weights of the
    components. `inner` is the batch of the components' marginal distributions; the next to last dimension of its shape
    is the dimension of the components.
    """

    inner: MeanTarget
    weights: Tensor

    @property
    def shape(self) -> torch.Size:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.Size([*self.inner.shape[:-2], self.inner.shape[-1]])

    @property
    def has_integers(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.has_integers

    def mean_of(self, statistic: Statistic, *parameters: Tensor, corner: Tensor | None = None) -> Tensor:
        of_parts = [x.unsqueeze(-2).expand(self.inner.shape) for x in parameters]
        at = None if corner is None else corner.unsqueeze(-2).expand(self.inner.shape)
        means = cast("Means", self.inner).mean_of(statistic, *of_parts, corner=at)
        return (self.weights.unsqueeze(-1) * means).sum(-2)

    def mean(self) -> Tensor:
        return (self.weights.unsqueeze(-1) * self.inner.mean()).sum(-2)

    def place(self) -> tuple[Tensor, Tensor]:
        centers, widths = cast("ContinuousTarget", self.inner).place()
        return centers.mean(-2), widths.amax(-2) + centers.amax(-2) - centers.amin(-2)


def target_of(d: Distribution) -> MeanTarget | None:
    """Return numbers, vectors of independent numbers or mixtures of such vectors as a target, or None for others."""
    if isinstance(d, Independent) and not overrides_density(d):
        return target_of(d.base_dist)
    if isinstance(d, MixtureSameFamily) and d.event_shape and not overrides_density(d):
        part = d.component_distribution
        inner = target_of(part) if isinstance(part, Independent) and len(part.event_shape) == 1 else None
        return None if inner is None else MixedTarget(inner, torch.exp(log_weights_of(d)))
    if d.event_shape:
        return None
    density = density_of(d)
    # The mean of an `IntegerTarget` is the attribute `mean` of torch's class, which is wrong if a user's subclass has
    # another density.
    if density is None or (density.integer and any(map(overrides_density, parts_of(d)))):
        return None
    return IntegerTarget(d, d.batch_shape) if density.integer else DensityTarget(density, d.batch_shape)


def nodes_of(density: Density) -> tuple[Tensor, Tensor]:
    """Return quadrature nodes and weights of sum 1, shape (nodes,), for means of smooth functions under one density."""
    nodes: list[Tensor] = []
    _integrated(density.mapped(lambda x: x.reshape(1)), lambda at: at.x, torch.Size(), [], False, nodes)
    x, weights = nodes[0].reshape(-1), nodes[1].reshape(-1)
    used = weights > 0
    return x[used], weights[used] / weights.sum()


def _integrated(
    p: Density,
    statistic: Statistic,
    shape: torch.Size,
    parameters: list[Tensor],
    has_corner: bool,
    nodes: list[Tensor] | None = None,
) -> Tensor:
    """Return the integral of p times each statistic, in the batch shape.

    The result is NaN if the nodes miss mass of p, or if the integrand is not negligible in the tails. If `has_corner`
    is True, the last of the `parameters` is the point at which the statistic or its derivative jumps. If `nodes` is a
    list, the nodes and their weights are appended to this list.
    """
    center, width = p.center_and_width()
    line = Line(p.coordinate(), center.expand(*shape, 1), width.expand(*shape, 1))
    marks = line.marks([(p, line.coordinate)], *([parameters.pop()] if has_corner else []))

    def weighed(v: Tensor) -> tuple[Tensor, Tensor]:
        at, log_jacobian = line.points(v)
        log_p = (p.log_density(at) + log_jacobian).nan_to_num(
            nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf
        )
        f = statistic(at, *parameters)
        f = f if f.ndim > log_p.ndim else f.unsqueeze(0)
        return log_p, torch.where(log_p > _UNDERFLOW, f, 0)

    def integrands(lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        v, half = panel_nodes(lower, upper)
        log_p, f = weighed(v.flatten(-2))
        mass = torch.exp(log_p).expand_as(v.flatten(-2))
        terms = torch.cat([mass * f, mass * f.abs(), mass.unsqueeze(0)]).unflatten(-1, v.shape[-2:])
        integrals, errors = integrate_panels(terms, half)
        count = len(f)
        return integrals[:count], errors[:count], integrals[count:-1], integrals[-1], errors[-1]

    def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
        _, errors, sizes, _, mass_errors = parts[0].columns
        size = sizes.sum(-1)
        least = size.clamp(min=1e-300)
        enough = (errors.sum(-1) <= _RTOL * least) & (mass_errors.sum(-1) <= _RTOL)
        relative = errors / least.unsqueeze(-1) + mass_errors
        return (enough | ~size.isfinite()).all(0), [relative.nan_to_num(nan=0.0).amax(0)]

    v = scan_points(marks)
    log_p, f = weighed(v)
    log_size = log_p + torch.log1p(f.abs().nan_to_num(nan=0.0, posinf=1e300))
    kept = matters(log_size).any(0) | matters(log_p)
    is_heavy = _is_heavy(log_p, f)
    edges = first_edges(*span(v, kept), marks, _FIRST_PANELS)
    (panels,) = integrate(LINE, [(edges, integrands)], judge, _MOST_NODES)
    if nodes is not None:
        v, half = panel_nodes(*panels.places)
        log_p, _ = weighed(v.flatten(-2))
        nodes += [line.points(v.flatten(-2))[0].x, torch.exp(log_p) * (WEIGHTS_KRONROD * half).flatten(-2)]
    values, _, _, mass, mass_errors = panels.columns
    mass = mass.sum(-1)
    lost = ((mass - 1).abs() > _MASS_ERROR + SAFETY * mass_errors.sum(-1)) | is_heavy
    values = torch.where(lost, torch.nan, values.sum(-1) / mass)
    return values[0] if len(f) == 1 else values


def _is_heavy(log_p: Tensor, f: Tensor) -> Tensor:
    """Return a mask of the elements whose integrand, e^log_p times `f`, is not negligible at the outermost points."""
    log_f = log_p + torch.log(f.abs())
    log_f = torch.where((log_p > _UNDERFLOW) & ~log_f.isnan(), log_f, -torch.inf)
    outermost = log_p < _FAR_OUT
    outermost[..., 0] = outermost[..., -1] = True
    return (matters(log_f) & outermost & (log_f > -torch.inf)).any(-1)
