"""The caller's options for the computation of a divergence, and the tolerances of sums and integrals."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.constraints import GENERATOR, Arguments, Number, Whole

METHODS = ("auto", "closed_form", "series", "summation", "quadrature", "monte_carlo")
FEWEST_DRAWS = 4
"""The smallest number of draws, per element of the batch, that gives a standard error."""
MASS_ERROR = 1e-10
"""The largest accepted error of a density's integral: nodes that miss mass may also miss terms of a divergence."""

# `_AIM` and `_REQUIRED` are pairs of a relative and an absolute error of sums and integrals. `_AIM` is the target of
# the computation, which the docstring of `kl_divergence` states. `_REQUIRED` is the largest error of a result that is
# returned by default; tests/pairs/test_sweep.py checks this limit.
_AIM = (1e-10, 1e-15)
_REQUIRED = (1e-6, 1e-9)

_WITHOUT = "{call}(p, q) without it"
OPTIONS = Arguments(
    "kl_divergence",
    "divergence",
    "kl_estimate",
    "estimate",
    rtol=Number(least=0, instead=_WITHOUT, example=1e-6, optional=True),
    atol=Number(least=0, instead=_WITHOUT, example=1e-9),
    max_evaluations=Whole(least=1, instead=_WITHOUT, example=10_000),
    draws=Whole(least=FEWEST_DRAWS, instead=_WITHOUT, example=1000),
    generator=GENERATOR,
)


class Tolerance(NamedTuple):
    """The target error of a sum or an integral, and the largest number of terms or nodes per element of the batch."""

    rtol: float
    atol: float
    max_evaluations: int

    def is_met(self, value: Tensor, error: Tensor) -> Tensor:
        """Return a mask of the elements whose error is at most max(rtol |value|, atol)."""
        return error <= (self.rtol * value.detach().abs()).clamp(min=self.atol)


class SolveOptions(NamedTuple):
    """The method, the tolerances of sums and integrals, and the settings of random draws."""

    method: str = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_evaluations: int = 10_000
    draws: int = 10_000
    generator: torch.Generator | None = None
    wants_error: bool = True
    confidence: float = 0.95

    def target(self) -> Tolerance:
        """Return the tolerance that sums and integrals aim at."""
        rtol = _AIM[0] if self.rtol is None else self.rtol
        return Tolerance(rtol, max(self.atol, _AIM[1]), self.max_evaluations)

    def required(self) -> float:
        """Return the largest relative error that a returned result may have; with a larger error, `solve` raises."""
        return _REQUIRED[0] if self.rtol is None else self.rtol

    def is_accepted(self, value: Tensor, error: Tensor) -> Tensor:
        """Return a mask of the results that are accurate enough to return, allowing for rounding to their dtype."""
        rounding = 0.0 if value.dtype == torch.float64 else torch.finfo(value.dtype).eps
        allowed = (self.required() + rounding) * value.detach().abs()
        return (error <= allowed.clamp(min=max(self.atol, _REQUIRED[1]))) & (error < torch.inf)
