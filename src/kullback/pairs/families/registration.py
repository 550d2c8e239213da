"""`register_family` registers the record of a family, and the rules of pairs that follow from the record.

One such rule is +inf, for pairs whose KL is infinite for all parameters: P's support always exceeds Q's, or P's tail is
always too heavy for Q.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect, can_inspect_all
from kullback.errors import RegistrationError, explain
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Density, DensityReader, register_density
from kullback.pairs.densities.maps import enter_standard
from kullback.pairs.family import CHOICE, FAMILIES, Family, forget_overrides
from kullback.pairs.native_forms import Reader, reader_of
from kullback.pairs.registry import closed_form, shortcut
from kullback.pairs.support import is_always_infinite
from kullback.pairs.torch_registry import TypePair, forget_plans

ALWAYS_INFINITE: set[TypePair] = set()
"""The pairs of types whose KL is +inf for all parameters."""


def enter_if_infinite(p: Family, q: Family) -> None:
    """Register `infinite_divergence` for two families if their records show that KL is always infinite."""
    read_p, read_q = _tensor_reader(p), _tensor_reader(q, of_q=True)
    if read_p is not None and read_q is not None and is_always_infinite(p, q):
        ALWAYS_INFINITE.add((p.type, q.type))
        shortcut(p.type, q.type)(partial(infinite_divergence, read_p, read_q, p.is_full is not True))


def _tensor_reader(family: Family, *, of_q: bool = False) -> Reader | None:
    names = family.tensors if of_q or CHOICE in family.parameters else ""
    names = names or family.parameters
    return reader_of(*names.split()) if names and CHOICE not in names else None


def infinite_divergence(read_p: Reader, read_q: Reader, may_be_empty: bool, p: Any, q: Any) -> Tensor | None:
    """Return +inf, with a gradient of 0, for distributions whose types are a pair in `ALWAYS_INFINITE`.

    The result is None, and another rule computes KL, if the shapes or the dtypes of the parameters differ, or if a
    parameter is NaN. If `may_be_empty` is true, the result is also None unless P's first parameter is known to be
    positive, because all mass of P may be at 0.
    """
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


def register_family(family: Family) -> Family:
    """Register the record of a family, and the resulting rules for pairs with all families registered so far.

    Arguments:
        family: the record.

    Returns:
        the record.

    Raises:
        RegistrationError: the type has a record already.
    """
    if family.type in FAMILIES:
        raise RegistrationError(
            explain(
                "register_family",
                "family",
                wanted="a type without a record",
                got=f"{family.type.__name__}, which has one",
                instead="a subclass of your own, with a log_prob of its own if the density differs",
            )
        )
    FAMILIES[family.type] = family
    if family.density is not None:
        register_density(family.type)(_reader(family))
    if family.curve is not None:
        enter_standard(family.type)
    for other in FAMILIES.values():
        for p, q in ((family, other), (other, family)):
            enter_if_infinite(p, q)
            if p.log_moments is not None and q.from_log_moments is not None:
                _enter_by_log_moments(p, q)
    forget_overrides()
    forget_plans()
    return family


def _reader(family: Family) -> DensityReader:
    density: Any = family.density
    if not (isinstance(density, type) and issubclass(density, Density)):
        return density
    names = [name.rpartition(".")[2] for name in family.parameters.split()]
    return lambda d: density(*map(upcast, map(partial(getattr, d), names)))


def _enter_by_log_moments(p: Family, q: Family) -> None:
    """Register the closed form from the moments of log X for X ~ P, with the kernel of both names, if it exists."""
    moments_of, divergence = p.log_moments, q.from_log_moments
    assert moments_of is not None  # noqa: S101
    assert divergence is not None  # noqa: S101

    def kl_by_log_moments(p: Any, q: Any) -> Tensor:
        return divergence(moments_of(p), q).clamp(min=0)

    kl_by_log_moments.__doc__ = divergence.__doc__
    kernel = ElementForm.__members__.get(f"{_in_capitals(p.type)}_{_in_capitals(q.type)}")
    closed_form(p.type, q.type, native=kernel, yields=True)(kl_by_log_moments)


def _in_capitals(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()
