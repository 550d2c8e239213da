"""The family of generalized Pareto distributions, with closed forms to Exponential, Normal and HalfNormal.

Quadrature cannot replace these forms, because quadrature is inaccurate for heavy tails with a barely finite moment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Exponential, GeneralizedPareto, HalfNormal, Normal
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import HALF_LOG_2PI, expm1mx, log1pmx, log_product, log_ratio, within_floats
from kullback.pairs.densities.density import Points, PositiveAtEnds, Tail
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class GeneralizedParetoDensity(PositiveAtEnds):
    """The density (1 + c z)^(-1 / c - 1) / scale with z = (x - loc) / scale, or e^-z / scale for c = 0.

    Here c is the concentration.
    """

    loc: Tensor
    scale: Tensor
    concentration: Tensor
    support = "loc", None

    @property
    def high(self) -> Tensor | None:
        c = self.concentration
        bounded = c < 0
        return torch.where(bounded, self.loc - self.scale / torch.where(bounded, c, -1), torch.inf)

    def log_density(self, at: Points) -> Tensor:
        c = self.concentration
        log_z = at.log_above(self.loc) - torch.log(self.scale)
        tiny = c.abs() < 1e-12
        safe = torch.where(tiny, 1, c)
        bounded = safe < 0
        # 1 + c z is the distance from the upper end in units of -scale / c, if there is an upper end.
        log_factor = -logsigmoid(-torch.log(torch.where(bounded, 1, safe)) - log_z)
        high = torch.where(bounded, self.loc - self.scale / torch.where(bounded, safe, -1), 1e300)
        to_end = at.log_below(high) + torch.log(torch.where(bounded, -safe, 1)) - torch.log(self.scale)
        log_factor = torch.where(bounded, to_end, log_factor)
        return torch.where(tiny, -torch.exp(log_z), -(1 / safe + 1) * log_factor) - torch.log(self.scale)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        bounded = self.concentration < 0
        center = torch.where(bounded, 0, torch.log(self.scale))
        return center, torch.where(bounded, 2.0, 1.3 + self.concentration)

    def upper_tail(self) -> Tail:
        c = self.concentration
        light = c == 0
        power = 1 / torch.where(light, 1, c).abs()
        return Tail(torch.where(light, 0.0, 1.0), 1.0, torch.where(light, 1 / self.scale, power))


@closed_form(GeneralizedPareto, Exponential)
def kl_generalized_pareto_exponential(p: GeneralizedPareto, q: Exponential) -> Tensor:
    """Return m - 1 - log m - c - log(1 - c) + rate loc, with m = rate scale / (1 - c).

    Here `loc`, `scale` and c are the location, the scale and the concentration of P, and `rate` is the rate of Q.
    """
    scale, rate, c = upcast(p.scale), upcast(q.rate), _below(upcast(p.concentration), 1.0)
    return expm1mx(log_product(scale, rate, 1 - c)) - log1pmx(-c) + rate * upcast(p.loc)


@closed_form(GeneralizedPareto, Normal)
def kl_generalized_pareto_normal(p: GeneralizedPareto, q: Normal) -> Tensor:
    """Return log(s_q / s_p) - c - 1 + log(2 pi) / 2 + (Var X + (E X - loc)^2) / (2 s_q^2) for X ~ P.

    Here s_p and c are the scale and the concentration of P, and `loc` and s_q are the location and the scale of Q.
    """
    return _generalized_pareto_normal(p, upcast(q.loc), upcast(q.scale))


@closed_form(GeneralizedPareto, HalfNormal)
def kl_generalized_pareto_half_normal(p: GeneralizedPareto, q: HalfNormal) -> Tensor:
    """Return KL to the Normal distribution with mean 0 and Q's scale, minus log 2."""
    scale_q = upcast(q.scale)
    return _generalized_pareto_normal(p, torch.zeros_like(scale_q), scale_q) - math.log(2)


def _generalized_pareto_normal(p: GeneralizedPareto, loc_q: Tensor, scale_q: Tensor) -> Tensor:
    scale, concentration = upcast(p.scale), upcast(p.concentration)
    c = _below(concentration, 0.5)
    size = within_floats(scale / scale_q / (1 - c))
    shift = within_floats((upcast(p.loc) - loc_q) / scale_q) + size
    squares = shift * shift + size * size / (1 - 2 * c)
    return log_ratio(scale_q, scale) - concentration - 1 + HALF_LOG_2PI + squares / 2


def _below(c: Tensor, limit: float) -> Tensor:
    """Return c where c < `limit`, and 0 elsewhere, where a moment is infinite and the caller returns +inf."""
    return torch.where(c < limit, c, 0)


register_family(Family(
    GeneralizedPareto, "loc scale concentration", GeneralizedParetoDensity,
    units={"loc": 1, "scale": 1, "concentration": 0},
    scipy=[ScipyForm("genpareto", lambda c, loc, scale: GeneralizedPareto(loc, scale, c), "loc scale")],
))  # fmt: skip
