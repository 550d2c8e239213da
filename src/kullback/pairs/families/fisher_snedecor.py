"""The FisherSnedecor family: the distributions of the ratio of two chi-squared variables, each divided by its mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import FisherSnedecor

from kullback.common.dtypes import upcast
from kullback.common.special import stirling_remainder
from kullback.pairs.densities.density import HalfLineDensity, Points, Tail, breakpoints_around, log_mean_exp
from kullback.pairs.families.gamma import log_gamma_entropy
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm
from kullback.pairs.numerics.log_moments import Exact, Factor, GammaProduct, LogMoments, positive


@dataclass(frozen=True)
class FisherSnedecorDensity(HalfLineDensity):
    """The density of (X / df1) / (Y / df2) for chi-squared X and Y with df1 and df2 degrees of freedom."""

    df1: Tensor
    df2: Tensor

    def log_density(self, at: Points) -> Tensor:
        a, b = self.df1 / 2, self.df2 / 2
        n, log_x = a + b, at.log_above(0.0)
        shape = a * log_mean_exp(a / n, b / n, -log_x) + b * log_mean_exp(b / n, a / n, log_x)
        return stirling_remainder(n) - stirling_remainder(a) - stirling_remainder(b) - shape - log_x

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        center = torch.digamma(a) - torch.digamma(b) + torch.log(self.df2) - torch.log(self.df1)
        return center, torch.sqrt(torch.polygamma(1, a) + torch.polygamma(1, b))

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        a, b = self.df1 / 2, self.df2 / 2
        return breakpoints_around(
            *self.center_and_width(), torch.log((a + 1) / a) - torch.log((b + 1) / b), steps
        )

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.df1 / 2)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.df2 / 2)


def _of_fisher_snedecor(d: FisherSnedecor) -> LogMoments:
    df1, df2 = upcast(d.df1), upcast(d.df2)
    a, b = df1 / 2, df2 / 2
    entropy = log_gamma_entropy(a) + log_gamma_entropy(b) - log_gamma_entropy(a + b)
    exact = Exact((b, positive(b - 1)), ((a + b - 1) / a, positive(b - 2)))
    return GammaProduct(entropy, torch.log(df2) - torch.log(df1), (Factor(a), Factor(b, -1.0)), exact)


register_family(Family(
    FisherSnedecor, "df1 df2", FisherSnedecorDensity, log_moments=_of_fisher_snedecor,
    scipy=[ScipyForm("f", FisherSnedecor, takes="")],
))  # fmt: skip
