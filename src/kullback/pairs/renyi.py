"""Closed forms of Renyi divergences of orders from 1/2 on; smaller orders follow by exchanging P and Q.

Let the density of R be proportional to p^a q^(1 - a). At every order a except 0 and 1, the divergence is
KL(R || Q) + a / (1 - a) KL(R || P). This formula does not subtract log-normalizers, so no digits are lost if P and Q
are nearly equal. With natural parameters n_P and n_Q, R has the natural parameters a n_P + (1 - a) n_Q. If these
parameters are not valid, the integral of p^a q^(1 - a) is infinite.

Each formula takes the order `alpha` and `rest` = 1 - alpha, which has full precision if alpha is near 1.

Rényi Divergence and Kullback-Leibler Divergence (van Erven and Harremoës, 2014), proposition 2 and theorem 30
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.pairs.density_overrides import overrides_density

RenyiRule = Callable[[Any, Any, float, float], "Tensor | None"]
# An entry of _RULES has the families of P and Q, the formula, and the bound on the formula's rounding error.
_RULES: list[tuple[tuple[type, ...], RenyiRule, Callable[..., Tensor] | None]] = []
# _ROUNDING bounds the rounding error of a formula with a few dozen operations, relative to 1 + the value. The tests in
# tests/pairs/closed_forms/test_renyi.py check this bound.
_ROUNDING = 1e-13
WIDE_RATIO = 1e150
"""The largest ratio of scales in the formulas: the square of a larger ratio may overflow."""


def renyi_form(
    *families: type, error: Callable[..., Tensor] | None = None
) -> Callable[[RenyiRule], RenyiRule]:
    """Register a formula for P and Q in any of these families: a function of P, Q, the order and 1 minus the order.

    The formula may return None. `error` is a function of P, Q and the value, and bounds the rounding error. If `error`
    is None, the common bound `_ROUNDING` is used.
    """

    def enter(rule: RenyiRule) -> RenyiRule:
        _RULES.append((families, rule, error))
        return rule

    return enter


def renyi_in_closed_form(
    p: Distribution, q: Distribution, alpha: float, rest: float, *, wants_error: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Return Renyi's divergence of an order from 1/2 on, except 1, and its rounding error.

    The error is None unless `wants_error` is true. If there is no formula, the result is None.
    """
    if overrides_density(p) or overrides_density(q):
        return None
    for families, rule, error_of in _RULES:
        if isinstance(p, families) and isinstance(q, families):
            value = rule(p, q, alpha, rest)
            if value is None:
                return None
            if not wants_error:
                return value, None
            fixed = value.detach()
            error = _ROUNDING * (1 + fixed) if error_of is None else error_of(p, q, fixed)
            return value, torch.where(fixed.isinf(), 0, error)
    return None


def mixed(to_p: Tensor, to_q: Tensor, finite: Tensor, alpha: float, rest: float) -> Tensor:
    """Return Renyi's divergence from `to_p` = KL(R || P) and `to_q` = KL(R || Q); +inf where `finite` is false.

    The density of R is proportional to p^alpha q^(1 - alpha).
    """
    return where_finite(finite, to_q + alpha / rest * to_p)


def where_finite(finite: Tensor, value: Tensor) -> Tensor:
    """Return the value where the mask `finite` is true, and +inf elsewhere."""
    return torch.where(finite, value.clamp(min=0), torch.inf)
