"""The integrands of the Kullback-Leibler divergence, called terms, on the real line and on the integers.

The terms have two forms: p log(p / q), and p log(p / q) - p + q, which is not negative. If the nodes contain all mass
of Q, both forms have the same sum. Then p log(p / q) - p + q is used, because the terms of this form do not cancel for
nearly equal P and Q.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators.divergence import NEAR, power_series
from kullback.generators.entropic import KL_SERIES
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
    """The sums over all panels in the chosen form of the terms; `errors` has the error of each panel."""

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
