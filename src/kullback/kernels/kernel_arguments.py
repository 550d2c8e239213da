"""The arguments of the compiled kernels for each divergence: its code, four numbers, and whether P and Q are swapped.

A mixture is the divergence weight_p KL(P || share_p P + (1 - share_p) Q), plus weight_q KL(Q || share_q Q + (1 -
share_q) P). Its four numbers are weight_p, share_p, weight_q and share_q. The four numbers of a power divergence are
its weight, its order, its exponent (the order minus 1), and 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kullback.generators import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from kullback.kernels.codes import DivergenceCode


class Arguments(NamedTuple):
    """The arguments of the operator for one divergence. The docstring of this module describes them."""

    code: int
    numbers: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    swapped: bool = False


# The codes are plain integers, which torch.compile supports.
_SIMPLE: dict[type[Divergence], Arguments] = {
    KL: Arguments(DivergenceCode.KL.value),
    ReverseKL: Arguments(DivergenceCode.REVERSE_KL.value),
    Jeffreys: Arguments(DivergenceCode.JEFFREYS.value),
    TotalVariation: Arguments(DivergenceCode.TOTAL_VARIATION.value),
    SquaredHellinger: Arguments(DivergenceCode.POWER.value, (0.25, 0.5, -0.5, 0.0)),
    ChiSquared: Arguments(DivergenceCode.POWER.value, (2.0, 2.0, 1.0, 0.0)),
}
_MIXTURE, _POWER, _RENYI = (
    code.value for code in (DivergenceCode.MIXTURE, DivergenceCode.POWER, DivergenceCode.RENYI)
)
# The smallest share in a mixture, share_p or share_q, that the kernels compute. On random rows, the kernels' values
# have six correct digits for shares as small as 1e-6. The limit 1e-3 leaves a factor of 1000 for the rows of extreme
# logits in tests/kernels/test_error_budget.py. The reference computes smaller shares, as accurately as larger shares,
# but more slowly than the kernels.
_SMALLEST_SHARE = 1e-3
# The largest order of a power divergence that the kernels compute. On random rows, the kernels' values have five
# correct digits up to order 128; at order 256, overflow gives NaN. The reference computes larger orders.
_LARGEST_ORDER = 64.0
# The smallest absolute value of an exponent that the kernels support. Float32 can represent its inverse, 1e30, and the
# product of this inverse with derivatives up to 1e8.
_SMALLEST_EXPONENT = 1e-30


def arguments_of(kind: Divergence) -> Arguments | None:
    """Return the arguments of the operator for `kind`, or None if the kernels do not support `kind`."""
    arguments = _SIMPLE.get(type(kind))
    if arguments is not None:
        return arguments
    if type(kind) is SkewKL:
        arguments = _of_mixture([(1.0, kind, False)])
    elif type(kind) is JensenShannon:
        arguments = _of_mixture(kind.parts())
    elif type(kind) is Alpha and kind.alpha not in (0, 1):
        arguments = _of_power(_POWER, 1.0, kind.alpha)
    elif type(kind) is Renyi and kind.alpha not in (0, math.inf):
        arguments = _SIMPLE[KL] if kind.alpha == 1 else _of_power(_RENYI, 1 / (kind.alpha - 1), kind.alpha)
    return arguments


def _of_mixture(parts: list[tuple[float, SkewKL, bool]]) -> Arguments | None:
    """Return the arguments for a weighted sum of skew divergences, or None if a share is too near 0 or 1."""
    if not all(_SMALLEST_SHARE <= skew.alpha <= 1 - _SMALLEST_SHARE for _, skew, _ in parts):
        return None
    sides = {swap: (weight, skew.alpha) for weight, skew, swap in parts}
    unused = (0.0, 0.5)
    return Arguments(_MIXTURE, (*sides.get(False, unused), *sides.get(True, unused)))


def _of_power(code: int, weight: float, order: float) -> Arguments | None:
    """Return the arguments for a power divergence or Renyi's. For an order below 1/2, P and Q are swapped. The result
    is then None if the order is too large, or too near 0 or 1 for 1 / (order - 1) in float32.
    """
    swapped = order < 0.5
    order, exponent = (1 - order, -order) if swapped else (order, order - 1)
    if order > _LARGEST_ORDER or abs(exponent) < _SMALLEST_EXPONENT:
        return None
    return Arguments(code, (weight, order, exponent, 0.0), swapped)
