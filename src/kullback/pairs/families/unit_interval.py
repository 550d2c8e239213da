"""Parts of the families on [0, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Uniform

from kullback.common.dtypes import upcast
from kullback.pairs.densities.density import PositiveAtEnds, Tail


class UnitDensity(PositiveAtEnds):
    """A density on [0, 1]."""

    def low(self) -> Tensor | None:
        return torch.zeros((), dtype=torch.float64, device="cpu")

    def high(self) -> Tensor | None:
        return torch.ones((), dtype=torch.float64, device="cpu")


@dataclass(frozen=True)
class PowersAtEnds(UnitDensity):
    """A density that is about x^(a - 1) near 0 and (1 - x)^(b - 1) near 1."""

    a: Tensor
    b: Tensor

    def lower_tail(self) -> Tail:
        return Tail.of_power(self.a)

    def upper_tail(self) -> Tail:
        return Tail.of_power(self.b)


def log_room(q: Uniform) -> Tensor:
    """Return log(high - low) for an interval that contains [0, 1]."""
    room = (upcast(q.high) - 1) - upcast(q.low)
    return torch.log1p(torch.where(room >= 0, room, 0))
