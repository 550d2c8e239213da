"""The 15 nodes of Gauss and Kronrod on [-1, 1], with weights for all 15, for Gauss's 7, and for the other 8 nodes.

QUADPACK: A Subroutine Package for Automatic Integration (Piessens, de Doncker-Kapenga, Überhuber and Kahaner, 1983)
"""

from __future__ import annotations

import torch
from torch import Tensor

# From the middle outwards.
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
# With these weights the other 8 nodes integrate polynomials of degree 7 exactly.
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
"""Kronrod's weights, Gauss's weights and the weights of the other nodes, as columns."""
