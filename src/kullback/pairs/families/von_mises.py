"""The family of von Mises distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution, VonMises

from kullback.common.dtypes import upcast
from kullback.common.roots import log_root
from kullback.common.special import bregman_by_quadrature, polynomial
from kullback.pairs.densities.density import Points, PositiveAtEnds
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class VonMisesDensity(PositiveAtEnds):
    """The density exp(k (cos(x - loc) - 1)) / (2 pi I0(k) e^-k) for -pi < x < pi, with the concentration k."""

    loc: Tensor
    concentration: Tensor
    support = -math.pi, math.pi

    def log_density(self, at: Points) -> Tensor:
        half = torch.sin((at.x - self.loc) / 2)
        scaled_bessel = torch.special.i0e(self.concentration)
        return -2 * self.concentration * half**2 - torch.log(2 * math.pi * scaled_bessel)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        center = torch.remainder(self.loc + math.pi, 2 * math.pi) - math.pi
        width = (1 / torch.sqrt(1 + self.concentration)).clamp(max=1.0)
        inside = center.clamp(-math.pi + 1e-6, math.pi - 1e-6)
        derivative = 2 * math.pi / ((math.pi + inside) * (math.pi - inside))
        return torch.log((math.pi + inside) / (math.pi - inside)), derivative * width


@closed_form(VonMises, VonMises)
def kl_von_mises_von_mises(p: VonMises, q: VonMises) -> Tensor:
    """Return B(k_p -> k_q) + 2 A(k_p) k_q sin^2(d / 2), with d = loc_p - loc_q.

    B is the Bregman divergence of log I0 for the Bessel function I0, and A = I1 / I0.


    Directional Statistics (Mardia and Jupp, 2000), for the family and its moments
    """
    k_p, k_q = upcast(p.concentration), upcast(q.concentration)
    sine = torch.sin((upcast(p.loc) - upcast(q.loc)) / 2)
    return 2 * mean_cosine(k_p) * k_q * sine * sine + log_i0_bregman(k_p, k_q)


def mean_cosine(k: Tensor) -> Tensor:
    """Return A = I1(k) / I0(k)."""
    small = k.clamp(max=_LARGE)
    of_small = torch.special.i1e(small) / torch.special.i0e(small)
    return torch.where(k < _LARGE, of_small, 1 + _log_i0_minus_k_derivative(k))


# For k > _LARGE, log I0(k) = k - log(2 pi k) / 2 + sum_n c_n k^-n with the coefficients c = _LOG_I0.
_LARGE = 40.0
_LOG_I0 = (1 / 8, 1 / 16, 25 / 384, 13 / 128, 1073 / 5120, 103 / 192, 1.6380658830915178571, 5.809814453125)
_LOG_I0_DERIVATIVE = tuple((n + 1) * c for n, c in enumerate(_LOG_I0))
_LOG_I0_CURVATURE = tuple((n + 2) * c for n, c in enumerate(_LOG_I0_DERIVATIVE))


def log_i0_bregman(a: Tensor, b: Tensor) -> Tensor:
    """Return the Bregman divergence of log I0 from a to b; for large a and b, about (b/a - 1 - log(b/a)) / 2."""
    distance = b - a
    near = distance.abs() < 0.05 * (a + b + 2)
    close = bregman_by_quadrature(_log_i0_curvature, a, torch.where(near, distance, 0))
    return torch.where(
        near, close, _log_i0_minus_k(b) - _log_i0_minus_k(a) - distance * _log_i0_minus_k_derivative(a)
    )


def _log_i0_minus_k(k: Tensor) -> Tensor:
    """Return log I0(k) - k."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    series = torch.log(inverse / (2 * math.pi)) / 2 + inverse * polynomial(_LOG_I0, inverse)
    return torch.where(k < _LARGE, torch.log(torch.special.i0e(small)), series)


def _log_i0_minus_k_derivative(k: Tensor) -> Tensor:
    """Return I1(k) / I0(k) - 1."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    series = -inverse / 2 - inverse * inverse * polynomial(_LOG_I0_DERIVATIVE, inverse)
    return torch.where(k < _LARGE, torch.special.i1e(small) / torch.special.i0e(small) - 1, series)


def _log_i0_curvature(k: Tensor) -> Tensor:
    """Return the derivative of A = I1 / I0, which is 1 - A^2 - A / k."""
    small, inverse = k.clamp(max=_LARGE), 1 / k.clamp(min=_LARGE)
    mean = torch.special.i1e(small) / torch.special.i0e(small)
    square = inverse * inverse
    series = square / 2 + inverse * square * polynomial(_LOG_I0_CURVATURE, inverse)
    return torch.where(k < _LARGE, 1 - mean * mean - mean / small, series)


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters:
    loc = start["loc"]
    if "loc" not in fixed:
        sine, cosine = (target.mean_of(lambda at, f=f: f(at.x)) for f in (torch.sin, torch.cos))
        loc = torch.atan2(sine, cosine)
    if "concentration" in fixed:
        return {"loc": loc, "concentration": start["concentration"]}
    # 1 - E cos(x - loc) = 2 E sin^2((x - loc) / 2), which is accurate for a large concentration.
    rest = target.mean_of(lambda at, loc: 2 * torch.sin((at.x - loc) / 2) ** 2, loc)

    def excess(k: Tensor) -> Tensor:
        i0, i1 = torch.special.i0e(k), torch.special.i1e(k)
        return rest - (i0 - i1) / i0

    return {"loc": loc, "concentration": log_root(excess, rest, -40.0, 30.0)}


def _on_the_circle(k: Tensor, loc: Tensor, scale: Tensor) -> Distribution | None:
    """Return the VonMises distribution; None for a scale other than 1, because torch's circle has the length 2 pi."""
    return VonMises(loc, k) if bool((scale == 1).all()) else None


register_family(Family(
    VonMises, "loc concentration", VonMisesDensity,
    scipy=[ScipyForm("vonmises", _on_the_circle, "loc scale")], match=_match,
))  # fmt: skip
