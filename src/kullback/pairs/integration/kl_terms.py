"""The integrands of the Kullback-Leibler divergence, along the line and on the integers.

The terms have two forms, p log(p / q) and the non-negative p log(p / q) - p + q. They have the same sum if the nodes
have all of Q's mass; then the second form is exact also for nearly equal P and Q.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators.divergence import NEAR, power_series
from kullback.generators.entropic import KL_SERIES
from kullback.pairs.solve_options import Tolerance


def kl_forms(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return both forms along a new first dimension, the non-negative one first; the other is 0 where P has no mass."""
    p = torch.exp(log_p)
    empty = p == 0
    d = torch.where(empty, 0, torch.where(empty, 0, log_p) - log_q)
    near = (d.abs() < NEAR) & ~empty
    far = torch.exp(log_q) - p + p * d
    whole = torch.where(near, p * power_series(KL_SERIES, torch.where(near, d, 0)), far)
    return torch.stack([whole, p * d])


class KLTotals(NamedTuple):
    """The sums over all panels in the chosen form of the terms, and the errors of each panel."""

    value: Tensor
    error: Tensor
    rounding: Tensor
    errors: Tensor

    def are_enough(self, target: Tolerance, safety: float) -> Tensor:
        """Return where the error is small enough, or not more than rounding."""
        return target.is_met(self.value, safety * self.error) | (self.error <= self.rounding)


class KLColumns(NamedTuple):
    """The integrals over each panel. The first three have both forms of the terms, the one with Q's mass first."""

    values: Tensor
    errors: Tensor
    roundings: Tensor
    mass_p: Tensor
    mass_q: Tensor

    def totals(self, is_whole: Tensor) -> KLTotals:
        """Return the sums in the form with Q's mass where `is_whole`, and otherwise in the form without it."""
        sums = torch.stack([self.values.sum(-1), self.errors.sum(-1), self.roundings.sum(-1)])
        value, error, rounding = torch.where(is_whole, sums[:, 0], sums[:, 1])
        return KLTotals(value, error, rounding, torch.where(is_whole.unsqueeze(-1), *self.errors))
