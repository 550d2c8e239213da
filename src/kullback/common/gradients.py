"""Gradients of a function with respect to its arguments, for the backward pass of a `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def gradients_of(
    function: Callable[[Sequence[Any]], Tensor],
    arguments: Sequence[Tensor | None],
    grad: Tensor,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of the sum of `grad` times the values of `function`, with respect to each argument.

    Each gradient is a partial derivative, with the other arguments constant. If one argument is computed from another,
    autograd adds the effect of this dependence later. So the function gets aliases of the arguments, because
    derivatives with respect to the arguments themselves would count the dependence twice.

    The gradients can be differentiated again if grad mode is on, as in a backward pass with ``create_graph=True``.
    """
    is_differentiated = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases = [x if x is None else x.view_as(x) for x in arguments]
        values = function(aliases)
        chosen = [x for x, want in zip(aliases, wanted, strict=True) if want and x is not None]
        gradients = iter(
            torch.autograd.grad(
                values, chosen, grad.to(values.dtype), create_graph=is_differentiated, materialize_grads=True
            )
        )
    return [
        next(gradients) if want and x is not None else None for x, want in zip(aliases, wanted, strict=True)
    ]
