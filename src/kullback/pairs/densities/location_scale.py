"""Densities that are functions of z = (x - loc) / scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.pairs.densities.density import Density, Points


def log_one_plus_square(z: Tensor) -> Tensor:
    """Return log(1 + z^2), which is finite even where z^2 overflows."""
    size = z.abs()
    large = size > 1e100
    return torch.where(
        large, 2 * torch.log(torch.where(large, size, 1)), torch.log1p(torch.where(large, 0, z) ** 2)
    )


@dataclass(frozen=True)
class LocationScaleDensity(Density):
    """A density of the form f(z) / scale for z = (x - loc) / scale, where f may have further parameters."""

    loc: Tensor
    scale: Tensor

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        return self.loc, self.scale

    def standard(self, at: Points) -> Tensor:
        """Return (x - loc) / scale."""
        return (at.x - self.loc) / self.scale
