"""Pairs of families whose KL is +inf for all parameters, and the function that returns +inf for such pairs.

For such a pair, P's support always exceeds Q's, or P's tail is always too heavy for Q."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kullback.common.inputs import can_inspect, can_inspect_all
from kullback.pairs.family import CHOICE, Family
from kullback.pairs.native_forms import Reader, reader_of
from kullback.pairs.registry import shortcut
from kullback.pairs.support import is_always_infinite
from kullback.pairs.torch_registry import TypePair

ALWAYS_INFINITE: set[TypePair] = set()
"""The pairs of types whose KL is +inf for all parameters."""


def enter_if_infinite(p: Family, q: Family) -> None:
    """Register `infinite_divergence` for two families if their records show that KL is always infinite."""
    read_p, read_q = _reader(p), _reader(q, of_q=True)
    if read_p is not None and read_q is not None and is_always_infinite(p, q):
        ALWAYS_INFINITE.add((p.type, q.type))
        shortcut(p.type, q.type)(partial(infinite_divergence, read_p, read_q, p.is_full is not True))


def _reader(family: Family, *, of_q: bool = False) -> Reader | None:
    names = family.tensors if of_q or CHOICE in family.parameters else ""
    names = names or family.parameters
    return reader_of(*names.split()) if names and CHOICE not in names else None


def infinite_divergence(read_p: Reader, read_q: Reader, may_be_empty: bool, p: Any, q: Any) -> Tensor | None:
    """Return +inf, with a gradient of 0, for P and Q of a pair in `ALWAYS_INFINITE`; None if another rule is needed."""
    # These loops are in plain Python for speed: one look-up of a constant of torch takes as long as ten of these lines.
    parameters = read_p(p) + read_q(q)
    first = parameters[0]
    shape = p._batch_shape  # noqa: SLF001 - faster than the property
    if shape != q._batch_shape or shape != first.shape:  # noqa: SLF001
        return None
    dtype, requires_grad = first.dtype, False
    for x in parameters:
        if x.dtype is not dtype:
            return None
        if x.requires_grad:
            requires_grad = True
    if may_be_empty and not (can_inspect(first) and _least(first) > 0):
        return None
    value = torch.full_like(first, torch.inf)
    # Only parameters that torch has not validated can be NaN.
    if not (p._validate_args and q._validate_args):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        is_readable = can_inspect_all(parameters)
        for x in parameters:
            is_nan = x.isnan()
            if is_readable:
                if bool(is_nan.any()):
                    return None
            else:
                value = torch.where(is_nan if x.shape == shape else is_nan.any(-1), torch.nan, value)
    return _with_gradients_of_0(value, parameters) if requires_grad and torch.is_grad_enabled() else value


def _least(x: Tensor) -> float:
    size = x.numel()
    if size < 2:
        return x.item() if size else 0.0
    # `amin` takes a third of the time of `min`, but has a larger overhead.
    return (x.amin() if size > 10_000 else x.min()).item()


def _with_gradients_of_0(value: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
    for x in parameters:
        if x.requires_grad:
            unused = x if x.shape == value.shape else x[..., 0]  # both parameters of a Beta are in one tensor
            value = torch.where(torch.ones((), dtype=torch.bool, device=x.device), value, unused)
    return value
