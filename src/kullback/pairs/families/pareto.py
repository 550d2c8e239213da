"""The family of Pareto distributions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Laplace, Pareto
from torch.nn.functional import logsigmoid

from kullback.common.dtypes import upcast
from kullback.common.special import expm1_ratio, itakura_saito, log_product, log_ratio
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Points, PositiveAtEnds, Tail
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, Means, Parameters, ScipyForm
from kullback.pairs.numerics.log_moments import Exact, Factor, GammaProduct, LogMoments, positive
from kullback.pairs.registry import closed_form


@dataclass(frozen=True)
class ParetoDensity(PositiveAtEnds):
    """The density alpha scale^alpha / x^(alpha + 1) for x > scale."""

    scale: Tensor
    alpha: Tensor
    support = "scale", math.inf

    def log_density(self, at: Points) -> Tensor:
        log_scale = torch.log(self.scale)
        # `log_ratio` is -log(x / scale). Torch's softplus is not used, because it has an error of 2e-9 where it becomes
        # linear.
        log_ratio = logsigmoid(log_scale - at.log_above(self.scale))
        return torch.log(self.alpha) + (self.alpha + 1) * log_ratio - log_scale

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        # log(x / scale) is exponential with mean 1 / alpha.
        middle = 0.7 / self.alpha
        return torch.log(self.scale) + middle + torch.log(-torch.expm1(-middle)), 1 + 1 / self.alpha

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.alpha)


@closed_form(Pareto, Pareto, native=ElementForm.PARETO)
def kl_pareto_pareto(p: Pareto, q: Pareto) -> Tensor:
    """Return x - 1 - log x + alpha_q log(s_p / s_q) with x = alpha_q / alpha_p and the scales s_p and s_q.

    At P = Q the gradient is 0, although the one-sided derivative with respect to s_p is not 0.
    """
    alpha_p, alpha_q, scale_p, scale_q = upcast(p.alpha), upcast(q.alpha), upcast(p.scale), upcast(q.scale)
    equal = (scale_p == scale_q) & (alpha_p == alpha_q)
    shift = torch.where(equal, 0, log_ratio(scale_p, scale_q))
    return itakura_saito(alpha_q, alpha_p) + alpha_q * shift


@closed_form(Pareto, Laplace)
def kl_pareto_laplace(p: Pareto, q: Laplace) -> Tensor:
    """Return log(2 b alpha / s) - 1 / alpha - 1 + E|X - loc| / b for X ~ P = Pareto(s, alpha) and Q = Laplace(loc, b).

    E|X - loc| = E X - loc + 2 E(loc - X)+, where y+ = max(y, 0). Let L = log(loc / s), or L = 0 if loc < s. Then
    E(loc - X)+ = (loc - s)+ - s (e^((1 - alpha) L) - 1) / (1 - alpha).
    """
    scale, loc, width = upcast(p.scale), upcast(q.loc), upcast(q.scale)
    alpha = upcast(p.alpha)
    heavy = torch.where(alpha > 1, alpha, 2)
    inside = loc > scale
    reach = torch.where(inside, log_ratio(torch.where(inside, loc, scale), scale), 0)
    below = torch.where(inside, loc - scale, 0) - scale * expm1_ratio(1 - heavy, reach)
    mean_distance = (scale - loc) + scale / (heavy - 1) + 2 * below
    return math.log(2) + log_product(width, alpha, scale) - 1 / alpha - 1 + mean_distance / width


def _of_pareto(d: Pareto) -> LogMoments:
    scale, a = upcast(d.scale), upcast(d.alpha)
    exact = Exact((scale, positive(1 - 1 / a)), (1 / a, positive(a - 2)))
    return GammaProduct(1 - torch.log(a), torch.log(scale), (Factor(a, -1.0), Factor(a + 1, -1.0, -1)), exact)


def _match(target: Means, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    scale = start["scale"] if "scale" in fixed else target.extreme(-1)
    if scale is None:
        return None
    if "alpha" in fixed:
        return {"scale": scale, "alpha": start["alpha"]}
    mean = target.mean_of(lambda at, scale: at.log_above(0.0) - scale.log(), scale)
    return {"scale": scale, "alpha": 1 / mean}


register_family(Family(
    Pareto, "scale alpha", ParetoDensity, units={"scale": 1, "alpha": 0},
    log_moments=_of_pareto, scipy=[ScipyForm("pareto", lambda b, scale: Pareto(scale, b))], match=_match,
))  # fmt: skip
