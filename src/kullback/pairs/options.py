"""How the caller wants a divergence computed, and how exact the answers of sums and integrals are."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["FEWEST_DRAWS", "MASS_ERROR", "METHODS", "Options", "Target"]

METHODS = ("auto", "closed_form", "series", "summation", "quadrature", "monte_carlo")
FEWEST_DRAWS = 4
"""How many draws of each element of the batch a standard error takes."""
MASS_ERROR = 1e-10
"""How well the mass of a density has to be integrated, whatever the value: nodes that miss it may miss the value."""

# What sums and integrals aim at, and what they have to reach, relatively and absolutely: for every kind of divergence.
_AIM = (1e-10, 1e-15)
_REQUIRED = (1e-6, 1e-9)


class Target(NamedTuple):
    """The error that a sum or an integral aims at, and how many evaluations an element of the batch may take."""

    rtol: float
    atol: float
    max_evaluations: int

    def is_met(self, value: Tensor, error: Tensor) -> Tensor:
        """Return where an error is small enough."""
        return error <= (self.rtol * value.detach().abs()).clamp(min=self.atol)


class Options(NamedTuple):
    """The method, how exact a sum or an integral has to be, and how draws are made."""

    method: str = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_evaluations: int = 10_000
    draws: int = 10_000
    generator: torch.Generator | None = None
    wants_error: bool = True
    confidence: float = 0.95
    try_native: bool = True  # False where the closed forms in C++ have declined this pair already

    def target(self) -> Target:
        """Return what sums and integrals aim at."""
        rtol = _AIM[0] if self.rtol is None else self.rtol
        return Target(rtol, max(self.atol, _AIM[1]), self.max_evaluations)

    def required(self) -> float:
        """Return the relative error that an answer has to reach."""
        return _REQUIRED[0] if self.rtol is None else self.rtol

    def is_accepted(self, value: Tensor, error: Tensor) -> Tensor:
        """Return which answers are exact enough to be given; rounding to their dtype is allowed."""
        rounding = 0.0 if value.dtype == torch.float64 else torch.finfo(value.dtype).eps
        allowed = (self.required() + rounding) * value.detach().abs()
        return (error <= allowed.clamp(min=max(self.atol, _REQUIRED[1]))) & (error < torch.inf)
