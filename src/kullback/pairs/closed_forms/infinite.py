"""Pairs of families with an infinite divergence for all parameters: P's support always exceeds Q's."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Cauchy,
    ContinuousBernoulli,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    Normal,
    Pareto,
    Poisson,
    Uniform,
)

from kullback.common.inputs import can_inspect
from kullback.pairs.native_forms import ATTRIBUTES, CHOICE, Reader, Shortcut, reader_of
from kullback.pairs.registry import shortcut
from kullback.pairs.torch_registry import TypePair

_REAL = (Normal, Laplace, Cauchy, Gumbel)
_POSITIVE = (Exponential, Gamma, HalfNormal, HalfCauchy)
_UNIT = (Beta, ContinuousBernoulli)
_FINITE = (*_UNIT, Uniform)


def infinite_divergence(read_p: Reader, read_q: Reader, p: Any, q: Any) -> Tensor | None:
    """Return +inf, with a gradient of 0, for families that are always infinite; None if other rules have to decide."""
    # These lines are written for speed: ten of them take the time of one lookup of a constant in torch.
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
    if type(p) is Poisson and not (can_inspect(first) and _least(first) > 0):
        return None
    # Parameters that torch has validated are not NaN.
    if (
        not (p._validate_args and q._validate_args)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        and can_inspect(first)
        and any(bool(x.isnan().any()) for x in parameters)
    ):
        return None
    value = torch.full_like(first, torch.inf)
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


def _reader(family: type, *, of_q: bool = False) -> Reader:
    if family is Beta and of_q:  # both parameters at once, without a view of each
        return reader_of("_dirichlet.concentration")
    return reader_of(*ATTRIBUTES[family].replace(CHOICE, "_param").split())


# A Poisson distribution of rate 0 has no mass above 0.
ALWAYS_INFINITE: dict[TypePair, Shortcut] = {
    (p, q): partial(infinite_divergence, _reader(p), _reader(q, of_q=True))
    for these, those in (
        (_REAL, (*_POSITIVE, Pareto, *_FINITE)),
        (_POSITIVE, (Pareto, *_FINITE)),  # a Pareto's support begins above 0
        ((Pareto,), _FINITE),
        (_UNIT, (Pareto,)),
        ((Poisson,), (Bernoulli, Binomial)),
    )
    for p, q in product(these, those)
}
for _types, _rule in ALWAYS_INFINITE.items():
    shortcut(*_types)(_rule)
