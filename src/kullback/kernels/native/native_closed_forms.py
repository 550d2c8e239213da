"""Closed forms of divergences between distributions, in C++. A kernel computes values and derivatives in one pass,
usually without copying parameters.

The kernels decline parameters that are so extreme that intermediate results would overflow or underflow in float64. For
such parameters, plain torch computes the divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from kullback.common.gradients import gradients_of
from kullback.common.inputs import can_inspect
from kullback.kernels.codes import Outcome

# The operators take different parameters. "closed_form" takes scalar parameters, and "closed_form_of_rows" takes rows
# of parameters. "closed_form_of_normals" takes means and matrices. "closed_form_of_factors" takes means and
# covariances, where one or both covariances have low rank; it computes values, but no derivatives.
Operator = Literal["closed_form", "closed_form_of_rows", "closed_form_of_normals", "closed_form_of_factors"]

Parameters = tuple[Tensor, ...]
GradientFunction = Callable[[Parameters, Tensor], Parameters | None]
_DTYPES = (torch.float32, torch.float64)
_TENSORS = (Tensor, torch.nn.Parameter)
_DONE, _TOO_EXTREME = Outcome.DONE.value, Outcome.TOO_EXTREME.value


class Form(NamedTuple):
    """A closed form: its operator, the operator's first arguments, and a reference in plain torch. `gradients` replaces
    missing derivatives of the operator; it returns None where it would lose digits, and the reference is used.
    """

    operator: Operator
    codes: tuple[int, ...]
    reference: Callable[[Parameters], Tensor]
    gradients: GradientFunction | None = None


def required_gradients(parameters: Parameters) -> list[bool] | None:
    """Return which parameters require a gradient, or None if the kernels do not support the parameters."""
    dtype = parameters[0].dtype
    if dtype not in _DTYPES:
        return None
    required: list[bool] = []
    for x in parameters:
        if x.dtype is not dtype or not x.is_cpu or type(x) not in _TENSORS or x.layout is not torch.strided:
            return None
        required.append(x.requires_grad)
    # Autograd cannot save tensors of inference mode for the backward pass, so the kernels do not support such tensors.
    if True in required and torch.is_grad_enabled() and any(x.is_inference() for x in parameters):
        return None
    return required


def divergence(form: Form, parameters: Parameters, required: list[bool]) -> Tensor | None:
    """Return the divergences, with derivatives of all orders, or None if the kernel declines the parameters."""
    try:
        if True in required and torch.is_grad_enabled():
            parameters = _of_one_shape(form, parameters)
            return _ClosedForm.apply(form, required, *parameters)
        return _compute(form, parameters, ())[0]
    except _DeclinedError:
        return None


@cache
def _operator(name: str) -> Callable[..., Any]:
    return getattr(torch.ops.kullback, name).default


class _DeclinedError(Exception):
    """The error that is raised if a kernel declines the parameters."""


def _compute(
    form: Form, parameters: Parameters, required: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the divergences, and the derivative by each parameter; None if `required` is False for a parameter."""
    first = parameters[0]
    if not first.is_contiguous():
        first = torch.empty(first.shape, dtype=first.dtype, device="cpu")
    of_numbers = form.operator == "closed_form"
    values = (
        torch.empty_like(first)
        if of_numbers
        else torch.empty(first.shape[:-1], dtype=first.dtype, device="cpu")
    )
    derivatives: list[Tensor | None] = []
    for need, x in zip(required, parameters, strict=bool(required)):
        like = first if of_numbers else x
        derivatives.append(torch.empty_like(like, memory_format=torch.contiguous_format) if need else None)
    operator = _operator(form.operator)
    if form.operator == "closed_form_of_factors":
        # The operator takes the mean, the matrix and the variances of P, and then of Q. The variances are None for a
        # full covariance.
        start = 2 if parameters[2].dim() < parameters[3].dim() else 3  # 2 if the third tensor is Q's mean
        sides = parameters[:start], parameters[start:]
        outcome = operator(values, *(x for side in sides for x in (*side, *(None,) * (3 - len(side)))))
    elif of_numbers and derivatives:
        missing = (None,) * (4 - len(parameters))
        outcome = operator(*form.codes, values, *parameters, *missing, *derivatives)
    else:
        outcome = operator(*form.codes, values, *parameters, *derivatives)
    if outcome == _DONE:
        return values, derivatives
    if outcome == _TOO_EXTREME:
        raise _DeclinedError
    # The operator does not support the memory layout of these tensors. Every operator supports contiguous tensors of
    # one shape.
    return _compute(form, tuple(x.contiguous() for x in _of_one_shape(form, parameters)), required)


def _of_one_shape(form: Form, parameters: Parameters) -> Parameters:
    shape = parameters[0].shape
    if form.operator in ("closed_form_of_normals", "closed_form_of_factors") or all(
        x.shape == shape for x in parameters
    ):
        return parameters
    try:
        return torch.broadcast_tensors(*parameters)
    except RuntimeError:  # the reference raises a clearer error for these shapes
        raise _DeclinedError from None


class _ClosedForm(torch.autograd.Function):
    """The autograd function of the kernels. It keeps the derivatives until the first backward pass."""

    @staticmethod
    def forward(ctx: Any, form: Form, required: list[bool], *parameters: Tensor) -> Tensor:
        values, ctx.derivatives = _compute(form, parameters, () if form.gradients else required)
        ctx.form, ctx.required = form, required
        ctx.save_for_backward(*parameters)
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), form, required, parameters = grads, ctx.form, ctx.required, ctx.saved_tensors
        if form.gradients is not None:
            gradients = form.gradients(parameters, grad) or _reference_gradients(
                form, parameters, grad, required
            )
            return None, None, *(x if need else None for x, need in zip(gradients, required, strict=True))
        if torch.is_grad_enabled() or not can_inspect(grad):  # a differentiated or a batched backward pass
            return None, None, *_reference_gradients(form, parameters, grad, required)
        derivatives, ctx.derivatives = ctx.derivatives, None
        if derivatives is None:
            derivatives = _compute(form, parameters, required)[1]
        scale = _operator("scale_derivatives")
        if not scale(grad, *derivatives):
            scale(grad.contiguous(), *derivatives)
        return None, None, *derivatives


def _reference_gradients(
    form: Form, parameters: Parameters, grad: Tensor, required: list[bool]
) -> list[Tensor | None]:
    values = _compute(form, tuple(x.detach() for x in parameters), ())[0]

    def reference(parameters: Sequence[Tensor]) -> Tensor:
        value = form.reference(tuple(parameters))
        # The true value is +inf where P has mass outside the support of Q, but the reference may return a finite value
        # there. The values of the kernel therefore decide where the value is +inf.
        is_infinite = values.isinf() & value.detach().to(values.dtype).isfinite()
        return torch.where(is_infinite, torch.inf, value)

    return gradients_of(reference, parameters, grad, required)
