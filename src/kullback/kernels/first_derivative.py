"""The operator that the backward passes of compiled totals call, whichever backend computed the gradients."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kullback.errors import invalid_value

__all__ = ["define_first_derivative"]


@cache
def define_first_derivative() -> torch.library.Library:
    """Define the product of a precomputed gradient and the incoming gradient in compiled graphs; return its library,
    which the cache keeps. The operator takes P and Q to refuse a second derivative: without them, torch would treat the
    gradient as a constant.
    """
    library = torch.library.Library("kullback", "FRAGMENT")
    library.define("first_derivative(Tensor gradient, Tensor factor, Tensor p, Tensor q) -> Tensor")
    library.impl(
        "first_derivative", lambda gradient, factor, *_: gradient * factor, "CompositeExplicitAutograd"
    )
    torch.library.register_autograd("kullback::first_derivative", _refuse_second_derivative, lib=library)
    return library


def _refuse_second_derivative(*_: Any) -> Any:
    raise invalid_value(
        "torch.compile",
        "model",
        wanted="a loss of which you take first derivatives",
        got="a gradient of the gradient of a distillation loss",
        instead="the loss outside of torch.compile, or reduction='none' with backend='eager'",
    )
