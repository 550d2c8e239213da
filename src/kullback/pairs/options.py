"""How the caller wants a divergence computed."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["METHODS", "Options"]

METHODS = ("auto", "closed_form", "series", "summation", "quadrature", "monte_carlo")


class Options(NamedTuple):
    """The method, how exact a sum or an integral has to be, and how draws are made."""

    method: str = "auto"
    rtol: float | None = None
    atol: float = 0.0
    max_evaluations: int = 10_000
    samples: int = 10_000
    generator: torch.Generator | None = None
    wants_error: bool = True
    confidence: float = 0.95
