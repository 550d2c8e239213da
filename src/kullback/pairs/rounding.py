"""The rounding error of closed forms that are registered without an error bound."""

from __future__ import annotations

import itertools
import math
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Distribution, Uniform

from kullback.common.dtypes import upcast
from kullback.common.special import safe_log
from kullback.pairs.clone import with_tensors
from kullback.pairs.numerics.units import in_common_unit
from kullback.pairs.registry import ClosedForm

# _ROUNDING and _TINY are the relative and the absolute rounding error of a closed form; tests/pairs/test_audit.py finds
# no larger error.
_ROUNDING, _TINY = 1e-12, 1e-15
# _TRIALS is the number of perturbed evaluations of a closed form between two families. The spread of their values is
# multiplied by the safety factor _SAFETY. The tests in tests/pairs/closed_forms/test_rounding_bounds.py check the
# resulting bounds.
_TRIALS, _SAFETY = 8, 32.0
# _FARTHEST_LOG is the largest |log x| of a positive float x, because the smallest positive float is e^-745.
_FARTHEST_LOG = 745.0


def rounding_error(form: ClosedForm, p: Distribution, q: Distribution, value: Tensor) -> Tensor:
    """Return an estimate of the rounding error of the value of a closed form.

    If P and Q are of one family, no term of the formula is negative. If P and Q are of different families, large terms
    may cancel. In this case, the error is estimated from the values at parameters that are perturbed by the rounding
    errors of their logarithms (stochastic arithmetic).

    A stochastic arithmetic for reliable scientific computation (Vignes, 1993)
    """
    if type(p) is type(q):
        return _ROUNDING * value + _TINY
    value = upcast(value)
    patterns = itertools.count()

    def changed(owner: object, name: str, x: Tensor, high: int) -> Tensor:
        if not x.is_floating_point():
            return x
        x = upcast(x.detach())
        # `signs` has a pseudorandom number -1, 0 or 1 for each element. Random draws are not used, because `torch.vmap`
        # refuses them.
        places = torch.arange(math.prod(x.shape), device=x.device).reshape(x.shape)
        mixed = (places + 40_503 * (next(patterns) + 1)) * 2_654_435_761 % (1 << 32)
        signs = ((mixed >> 15) % 3 - 1).to(x.dtype)
        # The ends of a Uniform P move inwards, and the ends of a Uniform Q outwards, so that P's support stays inside
        # Q's support.
        if isinstance(owner, Uniform) and name in ("low", "high"):
            signs = (high if name == "high" else -high) * signs.abs() * x.sign()
        distance = safe_log(x.abs()).clamp(min=-_FARTHEST_LOG).abs()
        return x * (1 + signs * torch.finfo(x.dtype).eps * (1 + distance))

    spread = torch.zeros_like(value)
    with torch.no_grad():
        for _ in range(_TRIALS):
            near_p, near_q = (with_tensors(d, partial(changed, high=side)) for d, side in ((p, -1), (q, 1)))
            near_value = form.function(*in_common_unit(near_p, near_q, torch.float64))
            if near_value is not None:
                spread = torch.maximum(spread, (near_value - value).abs().nan_to_num(nan=0.0))
    return _ROUNDING * (1 + value) + _SAFETY * spread
