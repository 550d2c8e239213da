"""The forms of the terms in the GPU kernel: the divergences of `DivergenceCode`, and special cases of a mixture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from kullback.kernels.codes import DivergenceCode

__all__ = ["Form", "form_of"]


class Form(IntEnum):
    """The formulas for a term of a divergence. Each divergence of `DivergenceCode` has the form of the same name and
    number.

    `SKEW` is a mixture with weight 0 on Q's side, and `EVEN` is a mixture with equal weights and shares of 1/2.
    """

    KL = DivergenceCode.KL
    REVERSE_KL = DivergenceCode.REVERSE_KL
    JEFFREYS = DivergenceCode.JEFFREYS
    TOTAL_VARIATION = DivergenceCode.TOTAL_VARIATION
    MIXTURE = DivergenceCode.MIXTURE
    POWER = DivergenceCode.POWER
    RENYI = DivergenceCode.RENYI
    SKEW = 7
    EVEN = 8


def form_of(code: int, numbers: Sequence[float]) -> Form | None:
    """Return the form of the terms of a divergence with these arguments (see `kernel_arguments`). The kernel supports
    two weighted mixtures only if they are a Jensen-Shannon divergence. Otherwise, the result is None.
    """
    if code != DivergenceCode.MIXTURE:
        return Form(code)
    weight_p, share_p, weight_q, share_q = numbers
    if weight_q == 0:
        return Form.SKEW
    if weight_p == weight_q and share_p == share_q == 0.5:
        return Form.EVEN
    is_one_mixture = math.isclose(share_p + share_q, 1) and math.isclose(
        weight_p * share_q, weight_q * share_p
    )
    return Form.MIXTURE if is_one_mixture else None
