"""The quadrature rule on a panel of the real line: Gauss and Kronrod's 15 nodes, which give an integral and its error.

QUADPACK: A Subroutine Package for Automatic Integration (Piessens, de Doncker-Kapenga, Überhuber and Kahaner, 1983)
"""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.pairs.integration.panels import Rule

SAFETY = 4.0
"""The reported error is this factor times the error estimate, because Kronrod's and Gauss's rules may agree by chance.

In benchmarks/panel_constants.py, a factor of 1 needs 2 % fewer evaluation points than 4, and a factor of 16 needs 7 %
more.
"""
# The nodes and weights are listed from the middle of [-1, 1] outwards, as in QUADPACK. Gauss's rule uses every other
# node.
_POSITIVE_NODES = (
    0.0,
    0.207784955007898467600689403773245,
    0.405845151377397166906606412076961,
    0.586087235467691130294144691258600,
    0.741531185599394439863864773280788,
    0.864864423359769072789712788640926,
    0.949107912342758524526189684047851,
    0.991455371120812639206854697526329,
)
_KRONROD = (
    0.209482141084727828012999174891714,
    0.204432940075298892414161999234649,
    0.190350578064785409913256402421014,
    0.169004726639267902826583426598550,
    0.140653259715525918745189590510238,
    0.104790010322250183839876322541518,
    0.063092092629978553290700663189204,
    0.022935322010529224963732008058970,
)
_GAUSS = (
    0.417959183673469387755102040816327,
    0.0,
    0.381830050505118944950369775488975,
    0.0,
    0.279705391489276667901467771423780,
    0.0,
    0.129484966168869693270611432679082,
    0.0,
)
# With these weights, the 8 nodes that Gauss's rule does not use integrate polynomials of degree 7 exactly.
_OTHERS = (
    0.0,
    0.408761012378475661805401336835692,
    0.0,
    0.338314908133113070265386759956844,
    0.0,
    0.209136164496178001188554322330881,
    0.0,
    0.0437879149922332667406575808765829,
)


def _mirrored(half: tuple[float, ...], sign: float) -> Tensor:
    return torch.tensor([sign * x for x in half[:0:-1]] + list(half), dtype=torch.float64, device="cpu")


NODES = _mirrored(_POSITIVE_NODES, -1.0)
WEIGHTS_KRONROD = _mirrored(_KRONROD, 1.0)
WEIGHTS = torch.stack([WEIGHTS_KRONROD, _mirrored(_GAUSS, 1.0), _mirrored(_OTHERS, 1.0)], -1)
"""Kronrod's weights, Gauss's weights and the weights of the third rule, as columns; shape (15, 3)."""


def panel_nodes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of panels, shape (..., panels, 15), and half the panels' widths, shape (..., panels, 1)."""
    half = (upper - lower).unsqueeze(-1) / 2
    return (upper + lower).unsqueeze(-1) / 2 + half * NODES.to(half.device), half


def integrate_panels(f: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return Kronrod's integrals over the panels and their error estimates, both of shape (..., panels).

    The error estimate is, as in QUADPACK, a power 3/2 of the difference between Kronrod's and Gauss's rules. This power
    falls as fast as the error of a smooth integrand. The integrand may have a corner if the difference exceeds 1/100 of
    the difference between Kronrod's rule and a third rule of lower degree. Then the estimate is the difference itself,
    without the power.
    """
    weights = WEIGHTS.to(f.device)
    fine, coarse, other = (torch.matmul(f, weights) * half).unbind(-1)
    size = torch.matmul(f.abs(), weights[:, 0]) * half.squeeze(-1)
    difference = (coarse - fine).abs()
    powered = size * (200 * difference / size.clamp(min=1e-300)) ** 1.5
    cornered = 100 * difference**2 / (other - fine).abs().clamp(min=1e-300)
    return fine, torch.minimum(difference, torch.maximum(powered, cornered)) + 2e-16 * size


def relative_errors(errors: Tensor, sizes: Tensor) -> Tensor:
    """Return the largest errors along the first dimension, relative to the sum of `sizes` over all panels."""
    return (errors / sizes.sum(-1, keepdim=True).clamp(min=1e-300)).amax(0)


def _halves(lower: Tensor, upper: Tensor, priorities: Tensor) -> tuple[Tensor, Tensor]:
    middle = (lower + upper) / 2
    return torch.cat([lower, middle], -1), torch.cat([middle, upper], -1)


LINE = Rule(NODES.numel(), lambda priorities: 4, _halves)
"""The rule for panels of the real line, whose `Places` are their lower and upper edges."""
