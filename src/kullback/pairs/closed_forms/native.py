"""Closed forms that the C++ kernels compute in one sweep: values and derivatives from the parameters as they lie.

What these do not take goes to the functions in plain torch: other devices, tensors of torch.func, second derivatives,
and parameters so extreme that the arithmetic would leave float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C import (
    _functorch,  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    _len_torch_dispatch_stack,  # pyright: ignore[reportPrivateUsage]
)
from torch.autograd import forward_ad
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Chi2,
    Dirichlet,
    Exponential,
    Gamma,
    Geometric,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Laplace,
    LogNormal,
    Normal,
    OneHotCategorical,
    Pareto,
    Poisson,
    Uniform,
)

from kullback.kernels.native import rows as native
from kullback.pairs.numerics.parameters import given_logits
from kullback.pairs.registry import ClosedForm, find_closed_form, find_user_rule, has_user_rules
from kullback.representations import can_inspect

__all__ = ["fused_divergence"]

Parameters = tuple[Tensor, ...]
_DONE, _TOO_EXTREME = 0, 1
_DTYPES = (torch.float32, torch.float64)
_TENSORS = (Tensor, torch.nn.Parameter)


class Form(NamedTuple):
    """A form of csrc/special_kernel_api.h: its number, the types it is for, and what its parameters are called."""

    number: int
    types: tuple[type, type]
    names: tuple[str, ...]
    read: Callable[[Any], Parameters]
    may_be_infinite: bool = False
    of_rows: bool = False

    def plain(self, parameters: Parameters) -> Tensor:
        """Return the divergence of these parameters by the function in plain torch."""
        split = len(self.names)
        p, q = (
            SimpleNamespace(**dict(zip(self.names, side, strict=True)))
            for side in (parameters[:split], parameters[split:])
        )
        return cast(ClosedForm, find_closed_form(*self.types)).function(p, q)  # pyright: ignore[reportReturnType]


def _form(
    family: type,
    number: int,
    names: str,
    where: str = "",
    *,
    may_be_infinite: bool = False,
    of_rows: bool = False,
) -> Form:
    words = tuple(names.split())
    read = _reader([where + word for word in words])
    return Form(number, (family, family), words, read, may_be_infinite, of_rows)


def _reader(names: list[str]) -> Callable[[Any], Parameters]:
    if len(names) > 1:
        return attrgetter(*names)
    get: Callable[[Any], Tensor] = attrgetter(names[0])

    def read_one(distribution: Any) -> Parameters:
        return (get(distribution),)

    return read_one


_FORMS: dict[type, Form] = {
    Normal: _form(Normal, 0, "loc scale"),
    LogNormal: _form(LogNormal, 0, "loc scale", "base_dist."),
    Laplace: _form(Laplace, 1, "loc scale"),
    Cauchy: _form(Cauchy, 2, "loc scale"),
    Gumbel: _form(Gumbel, 3, "loc scale"),
    Exponential: _form(Exponential, 4, "rate"),
    Gamma: _form(Gamma, 5, "concentration rate"),
    Chi2: _form(Chi2, 5, "concentration rate"),
    InverseGamma: _form(InverseGamma, 5, "concentration rate", "base_dist."),
    HalfNormal: _form(HalfNormal, 6, "scale", "base_dist."),
    HalfCauchy: _form(HalfCauchy, 7, "scale", "base_dist."),
    Pareto: _form(Pareto, 8, "scale alpha", may_be_infinite=True),
    Uniform: _form(Uniform, 9, "low high", may_be_infinite=True),
    Beta: _form(Beta, 10, "concentration1 concentration0"),
    Poisson: _form(Poisson, 17, "rate"),
    Dirichlet: _form(Dirichlet, 0, "concentration", of_rows=True),
}
# Of families that are made from logits or from probabilities, the forms of either.
_CHANCES: dict[type, tuple[Form, Form]] = {
    Bernoulli: (_form(Bernoulli, 11, "logits"), _form(Bernoulli, 12, "probs", may_be_infinite=True)),
    Binomial: (
        _form(Binomial, 13, "total_count logits"),
        _form(Binomial, 14, "total_count probs", may_be_infinite=True),
    ),
    Geometric: (_form(Geometric, 15, "logits"), _form(Geometric, 16, "probs", may_be_infinite=True)),
    Categorical: (
        _form(Categorical, 1, "logits", may_be_infinite=True, of_rows=True),
        _form(Categorical, 2, "probs", may_be_infinite=True, of_rows=True),
    ),
    OneHotCategorical: (
        _form(OneHotCategorical, 1, "logits", "_categorical.", may_be_infinite=True, of_rows=True),
        _form(OneHotCategorical, 2, "probs", "_categorical.", may_be_infinite=True, of_rows=True),
    ),
}


def fused_divergence(p: object, q: object) -> Tensor | None:
    """Return KL(P || Q) in the dtype of the parameters; None if the kernels do not take these two."""
    if torch.compiler.is_compiling() or type(p) is not type(q):
        return None
    form = _FORMS.get(type(p)) or _form_of_chances(p, q)
    if form is None or not _is_ordinary_call(form):
        return None
    parameters = form.read(p) + form.read(q)
    wanted = _wanted(parameters)
    if wanted is None or (form.of_rows and parameters[0].shape[-1] != parameters[1].shape[-1]):
        return None
    try:
        if True in wanted and torch.is_grad_enabled():
            shape = parameters[0].shape
            if any(x.shape != shape for x in parameters):
                parameters = _of_one_shape(parameters)
            return FusedClosedForm.apply(form, wanted, *parameters)
        return _compute(form, parameters, ())[0]
    except _DeclinedError:
        return None


def _form_of_chances(p: Any, q: Any) -> Form | None:
    forms = _CHANCES.get(type(p))
    if forms is None:
        return None
    in_logits, also_q = (given_logits(getattr(d, "_categorical", d)) for d in (p, q))
    if in_logits is not also_q:
        return None
    return forms[0] if in_logits else forms[1]


def _is_ordinary_call(form: Form) -> bool:
    """Tell whether operators run as they are, without torch.func and its like, and no user has a rule for the pair."""
    return (
        _is_there()
        and _functorch.peek_interpreter_stack() is None
        and not _len_torch_dispatch_stack()
        and forward_ad._current_level < 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        and (not has_user_rules() or find_user_rule("kl_divergence", *form.types) is None)
    )


def _wanted(parameters: Parameters) -> list[bool] | None:
    """Tell which parameters require a gradient; None where the kernels do not take them."""
    dtype = parameters[0].dtype
    if dtype not in _DTYPES:
        return None
    wanted: list[bool] = []
    for x in parameters:
        if x.dtype is not dtype or not x.is_cpu or type(x) not in _TENSORS:
            return None
        wanted.append(x.requires_grad)
    return wanted


@cache
def _is_there() -> bool:
    # A library that was built before these operators were written has none of them.
    return native.missing() is None and hasattr(torch.ops.kullback, "closed_form_of_rows")


class _Operators(NamedTuple):
    closed_form: Callable[..., int]
    closed_form_of_rows: Callable[..., int]
    scale_derivatives: Callable[..., bool]


@cache
def _operators() -> _Operators:
    return _Operators(*(getattr(torch.ops.kullback, name).default for name in _Operators._fields))


class _DeclinedError(Exception):
    """The kernels do not take these parameters."""


def _compute(
    form: Form, parameters: Parameters, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the values, and the derivatives that are wanted."""
    first = parameters[0]
    if not first.is_contiguous():
        first = torch.empty(first.shape, dtype=first.dtype)
    values = first.new_empty(first.shape[:-1]) if form.of_rows else torch.empty_like(first)
    derivatives = [torch.empty_like(first) if want else None for want in wanted]
    if form.of_rows:
        code = _operators().closed_form_of_rows(form.number, values, *parameters, *derivatives)
    elif derivatives:
        missing = (None,) * (4 - len(parameters))
        code = _operators().closed_form(form.number, values, *parameters, *missing, *derivatives)
    else:
        code = _operators().closed_form(form.number, values, *parameters)
    if code == _DONE:
        return values, derivatives
    if code == _TOO_EXTREME:
        raise _DeclinedError
    # Another layout, which contiguous tensors of one shape do not have.
    return _compute(form, tuple(x.contiguous() for x in _of_one_shape(parameters)), wanted)


def _of_one_shape(parameters: Parameters) -> Parameters:
    try:
        return torch.broadcast_tensors(*parameters)
    except RuntimeError:  # others tell the caller, in better words
        raise _DeclinedError from None


class FusedClosedForm(torch.autograd.Function):
    """Values by the kernels, with derivatives that are made with them and wait for the first backward pass."""

    @staticmethod
    def forward(ctx: Any, form: Form, wanted: list[bool], *parameters: Tensor) -> Tensor:
        values, ctx.derivatives = _compute(form, parameters, wanted)
        ctx.form, ctx.wanted = form, wanted
        ctx.save_for_backward(*parameters)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), form, wanted, parameters = grads, ctx.form, ctx.wanted, ctx.saved_tensors
        if torch.is_grad_enabled() or not can_inspect(grad):  # somebody differentiates again, or in batches
            return None, None, *_plain_gradients(form, parameters, grad, wanted)
        derivatives, ctx.derivatives = ctx.derivatives, None
        if derivatives is None:
            derivatives = _compute(form, parameters, wanted)[1]
        if not _operators().scale_derivatives(grad, *derivatives):
            _operators().scale_derivatives(grad.contiguous(), *derivatives)
        return None, None, *derivatives


def _plain_gradients(
    form: Form, parameters: Parameters, grad: Tensor, needed: list[bool]
) -> tuple[Tensor | None, ...]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        value = form.plain(parameters)
        if form.may_be_infinite:
            values = _compute(form, tuple(x.detach() for x in parameters), ())[0]
            value = torch.where(values.isinf(), torch.inf, value)
        by = [x for x, need in zip(parameters, needed, strict=True) if need]
        found_by = iter(
            torch.autograd.grad(value.to(grad.dtype), by, grad, create_graph=again, materialize_grads=True)
        )
    return tuple(next(found_by) if need else None for need in needed)
