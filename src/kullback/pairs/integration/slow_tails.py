"""Closed forms for the integral of KL over a tail beyond the range of float64, where p log(p / q) falls slowly."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.densities.density import Density
from kullback.pairs.integration.line import NEGLIGIBLE, Line
from kullback.pairs.support import tail_margins

# At the distance e^_FARTHEST, panels end and a closed form begins. log q may grow as the square of this distance, and
# the square does not overflow float64. In benchmarks/panel_constants.py, all answers are correct for values from 300 to
# 350.
_FARTHEST = 345.0
# _NOT_A_POWER bounds the relative deviation of the tail from a pure power at the distance e^_FARTHEST = 7e149.
_NOT_A_POWER = 1e-12
# _READ is the error of the power of a tail if the power is measured from values of the density; see
# densities/black_box.py.
_READ = 1e-7


class SlowTail(NamedTuple):
    """An end of P's support where p log(p / q) falls as a small power of the distance u, for some batch elements.

    With s = log u, the integrand is C e^(-margin s) for s > _FARTHEST. So the integral from _FARTHEST to infinity is
    the integrand at _FARTHEST divided by the margin. `side` is -1 for the lower end and 1 for the upper end. `is_slow`
    is the mask of the batch elements with such a tail, and `v` and `t` are the coordinates of s = _FARTHEST.
    """

    side: int
    is_slow: Tensor
    v: Tensor
    t: Tensor
    on_line: bool

    def cut(self, start: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """Return the span of the panels, cut at the point where the closed form of the tail begins."""
        if self.side < 0:
            return torch.where(self.is_slow, torch.maximum(start, self.v), start), stop
        return start, torch.where(self.is_slow, torch.minimum(stop, self.v), stop)

    def rest(self, p: Density, q: Density, is_finite: Tensor) -> tuple[Tensor, Tensor]:
        """Return the integral over the tail beyond _FARTHEST, with its gradient, and the error of this integral.

        Both are 0 for batch elements without a slow tail or with an infinite divergence.
        """
        margin = tail_margins(p, q)[0 if self.side < 0 else 1]
        is_slow = self.is_slow & is_finite.unsqueeze(-1)
        if margin is None:
            zero = torch.zeros_like(is_finite, dtype=torch.float64)
            return zero, zero
        coordinate = p.coordinate()
        t = torch.where(is_slow, self.t, p.center_and_width()[0].detach())
        at = coordinate.points(t)
        log_p, log_q = p.log_density(at), q.log_density(at)
        log_jacobian = coordinate.log_jacobian(t) + (torch.log(t.abs().clamp(min=1)) if self.on_line else 0)
        height = torch.exp(torch.where(is_slow, log_p + log_jacobian, -torch.inf)) * (log_p - log_q)
        integral = torch.where(is_slow, height / torch.where(is_slow, margin, 1), 0).squeeze(-1)
        is_read = not (p.is_splittable() and q.is_splittable())
        relative = _NOT_A_POWER + (_READ / margin.detach() if is_read else 0)
        return integral, torch.where(is_slow, relative * integral.detach().abs().unsqueeze(-1), 0).squeeze(-1)


def slow_tails(p: Density, q: Density, line: Line) -> list[SlowTail]:
    """Return the slow tails at the lower and at the upper end of P's support; at most two."""
    tails: list[SlowTail] = []
    on_line = line.coordinate.low is None and line.coordinate.high is None
    far = torch.full_like(line.center, _FARTHEST)
    for side, margin in zip((-1, 1), tail_margins(p, q), strict=True):
        if margin is None:
            continue
        is_slow = ((margin > 0) & (margin * _FARTHEST < NEGLIGIBLE)).expand_as(line.center)
        if bool(is_slow.any()):
            t = side * (torch.exp(far) if on_line else far)
            tails.append(SlowTail(side, is_slow, line.v(t), t, on_line))
    return tails
