"""Row operations: functions of rows of tensors with explicit gradients, applied row by row or as a weighted total.

A row operation computes a value for each row of its tensors, and the gradients of a weighted sum of these values.
Examples are the divergences that a backend computes, the losses with a stored teacher, and the divergences of rows
whose classes are spread over processes. The subclasses of `torch.autograd.Function` below connect row operations to
torch's autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kullback.common.dtypes import accurate_dtype
from kullback.common.inputs import can_inspect_all
from kullback.errors import invalid_value

_functorch = getattr(torch._C, "_functorch")  # noqa: B009, SLF001  # pyright: ignore[reportPrivateUsage]

Gradients = Sequence[Tensor | None]
Wanted = Sequence[bool]
"""For each tensor argument, whether its gradient is needed."""
Weights = Tensor | None
"""The weight of each row in a sum; None means 1."""
Evaluation = tuple[Tensor, Tensor | None, Tensor | None]
"""The values of rows, and the gradients of their weighted sum with respect to P and to Q. A gradient that is not wanted
is None.
"""
# The numbers of elements in a block, on the CPU and on other devices. On the CPU, the float64 temporaries of a block
# have 1 MiB, which fits in the second-level cache of a core. On a GPU, each temporary has 16 MiB. The block then
# occupies all processors, and a few temporaries fit in the second-level cache of an A100 or H100 (40 and 50 MB). Blocks
# of the CPU's size would be single rows of a large vocabulary, each with hundreds of launches.
_ELEMENTS_ON_CPU, _ELEMENTS = 1 << 17, 1 << 21


class RowOperation(ABC):
    """A function with one value for each row of tensors, and its gradients. Forward mode is optional."""

    __slots__ = ()

    has_second: bool = False
    """Whether the last result of `compute` is a second output for the caller. This output is a tensor without a
    gradient.
    """

    @abstractmethod
    def compute(self, *tensors: Any, **_: Any) -> tuple[Any, ...]:
        """Return a tuple: the values of the rows, shape (rows,), then what else `gradients` needs."""

    @abstractmethod
    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the wanted gradients of the sum of `grad` times the values.

        Arguments:
            tensors: the arguments of `compute`.
            kept: the results of `compute`; empty if `compute` returned only the values.
            grad: the gradient of the loss with respect to the values.
            wanted: which gradients are needed.
            is_plain: whether torch neither differentiates nor batches the backward pass. If False, the gradients must
                be computed by differentiable operations.
        """

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        """Return the directional derivative of the values along `tangents`. By default, this method raises an error."""
        raise invalid_value(
            "forward_ad.make_dual",
            "tangent",
            wanted="none for a loss without forward mode, such as one of sharded classes",
            got="one",
            instead="loss.backward() or torch.autograd.grad(loss, inputs)",
        )


class TotalOperation(RowOperation):
    """A row operation that computes the weighted sum of its values and the sum's gradients in one sweep."""

    __slots__ = ()

    weights: Weights
    """The weights of the rows in the sum, which have no gradient; None means 1. A row of weight 0 contributes 0."""
    scale: float
    """The factor of the sum."""

    @abstractmethod
    def total(self, tensors: Any, wanted: Wanted) -> tuple[Any, ...]:
        """Return `scale` times the weighted sum, its wanted gradients and, if `has_second`, the second output."""

    def complete(self, gradients: Gradients) -> Gradients:
        """Return the final gradients. They arrive as `total`'s gradients times the loss's gradient by the total."""
        return gradients


def transformable(
    operation: RowOperation, first: Tensor, second: Tensor, third: Tensor | None = None
) -> Tensor:
    """Return the values of `operation`, which torch.func, torch.compile and forward mode can transform. Tensors that
    torch.func may transform must be arguments here: attributes of `operation` count as constants.
    """
    # Custom functions do not support forward mode twice, nor second derivatives in a compiled graph, where the tensors
    # that they saved count as constants.
    is_compiling = torch.compiler.is_compiling()
    needs_plain_expression = is_differentiated_in_graph() if is_compiling else open_transforms("Jvp") > 1
    if needs_plain_expression or (not second.is_floating_point() and _is_backward_of_forward()):
        tensors = (first, second) if third is None else (first, second, third)
        value = operation.compute(*(x.detach() for x in tensors))[0]
        return expanded(value, operation.changes, first, second, third).to(value.dtype)
    # torch.compile does not support a custom function that defines forward-mode derivatives. While torch compiles, the
    # function without such derivatives is used.
    function = _Transformable if is_compiling else _ForwardTransformable
    return function.apply(operation, first, second, third)[0]


def _is_backward_of_forward() -> bool:
    """Return whether torch.func takes a reverse-mode derivative of a forward-mode derivative.

    If so, torch cannot batch the backward pass of a custom function that has non-differentiable outputs.
    """
    if torch.compiler.is_compiling() or not open_transforms("Jvp"):
        return False
    names = [level.key().name for level in _functorch.get_interpreter_stack()]
    return "Grad" in names[: names.index("Jvp")]


def is_differentiated_in_graph() -> bool:
    """Return whether torch.func takes derivatives inside a compiled graph that contains the call."""
    return torch.compiler.is_compiling() and open_transforms("Grad", "Jvp") > 0


def open_transforms(*names: str) -> int:
    """Return how many of the transforms of torch.func around the call have one of these names."""
    if _functorch.peek_interpreter_stack() is None:
        return 0
    return sum(level.key().name in names for level in _functorch.get_interpreter_stack())


# Because of this attribute, torch.compile evaluates the function once, during tracing (see kullback.losses.reduction).
open_transforms._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def expanded(value: Tensor, changes: Callable[[Any, Gradients], Tensor], *tensors: Tensor | None) -> Tensor:
    """Return `value` as a tensor with the derivatives with respect to `tensors` that `changes` defines. The result is
    `value` plus the integral of `changes` along a step. The step is 0, but its derivative is the derivative of
    `tensors`.

    Radau's rule with two points makes the derivatives of the result exact up to the third order. Where the value is
    infinite, the result has only a first derivative. The second derivative may be NaN there, and 0 * NaN would make the
    first derivative NaN too. None and integer tensors have no derivatives.
    """
    is_infinite = (value == torch.inf).reshape(*value.shape[:1], -1).any(-1)
    fixed = [None if x is None else x.detach() for x in tensors]
    steps = [_step(x, y) for x, y in zip(fixed, tensors, strict=True)]
    ahead = [
        x if x is None or step is None else x + 2 / 3 * torch.where(is_infinite.unsqueeze(-1), 0, step)
        for x, step in zip(fixed, steps, strict=True)
    ]
    return value + (changes(fixed, steps) + 3 * changes(ahead, steps)) / 4


def _step(fixed: Tensor | None, x: Tensor | None) -> Tensor | None:
    """Return zeros with the derivative of `x`; None for None and integers. `fixed` is `x` without derivative."""
    if fixed is None or x is None or not x.is_floating_point():
        return None
    # Where x is -inf, x - fixed is NaN. In reverse mode, the custom function `_ZeroOf` has the value 0 and the
    # derivative 1 there. In forward mode, the constant 0 replaces `_ZeroOf`, because torch.compile supports no custom
    # function with forward derivatives.
    is_backward = torch.compiler.is_compiling() and open_transforms("Jvp") == 0
    # torch.compile ignores the derivative of a custom function whose argument is an input of the graph. The function
    # therefore gets a copy of the input.
    at_infinity = _ZeroOf.apply(x.clone()) if is_backward else 0
    return torch.where(fixed.isfinite(), x - fixed, at_infinity)


class _ZeroOf(torch.autograd.Function):
    """The autograd function that returns zeros, with derivative 1 even where the argument is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def differentiable_backward() -> Any:
    """Return the context for backward passes that may be differentiated again. torch.compile traces them without
    recording gradients, even for ``create_graph=True``, unless this context enables the recording.
    """
    return torch.enable_grad() if torch.compiler.is_compiling() else nullcontext()


class _Transformable(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        operation: RowOperation, first: Tensor, second: Tensor, third: Tensor | None
    ) -> tuple[Tensor, ...]:
        # torch.compile needs one named parameter for each argument, because it would take `*tensors` for the context.
        return operation.compute(*((first, second) if third is None else (first, second, third)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.operation, *tensors = inputs
        ctx.dtype, ctx.outputs = output[0].dtype, len(output)
        if len(output) > 1:
            ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *(output if len(output) > 1 else ()))
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        is_plain = not torch.is_grad_enabled() and can_inspect_all((*saved, grads[0]))
        with differentiable_backward():
            by = ctx.operation.gradients(saved[:3], saved[3:], grads[0], ctx.needs_input_grad[1:], is_plain)
        return None, by[0], by[1], None


class _ForwardTransformable(_Transformable):
    """The function `_Transformable` with derivatives in forward mode."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        change = ctx.operation.changes(ctx.saved_tensors[:3], tangents[1:]).to(ctx.dtype)
        return change, *(None,) * (ctx.outputs - 1)


class RowValueFunction(torch.autograd.Function):
    """The autograd function of the values of a row operation. Neither torch.func nor torch.compile may transform its
    tensors.

    `forward` sets up the context itself, because a separate `setup_context` takes a fifth of the time of a small call.
    torch.func needs `setup_context`. For torch.func, `transformable` is used instead of this class.
    """

    @staticmethod
    def forward(ctx: Any, operation: RowOperation, *tensors: Tensor | None) -> Any:
        values, *kept = operation.compute(*tensors)
        second = kept.pop() if operation.has_second else None
        ctx.operation, ctx.dtype = operation, values.dtype
        # The values refer to this context. If the context stored the values, there would be a reference cycle, so it
        # stores an alias, which `detach` makes.
        ctx.kept = (values.detach(), *kept) if kept else ()
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        return values if second is None else _with_second(ctx, values, second)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        is_plain = not torch.is_grad_enabled() and can_inspect_all(grads[:1])
        wanted = ctx.needs_input_grad[1:]
        return None, *ctx.operation.gradients(ctx.saved_tensors, ctx.kept, grads[0], wanted, is_plain)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        return ctx.operation.changes(ctx.saved_tensors, tangents[1:]).to(ctx.dtype)


class RowTotal(torch.autograd.Function):
    """The autograd function of the weighted total. If `is_early`, the forward pass computes the gradients in its sweep
    and keeps them until the first backward pass. Otherwise, and for a later, differentiated or batched backward pass,
    the backward pass computes the gradients. In float16, a small gradient underflows unless the loss scale multiplies
    it, and the loss scale is known only in the backward pass. Therefore `is_early` is False for float16.
    """

    @staticmethod
    def forward(ctx: Any, operation: TotalOperation, is_early: bool, *tensors: Tensor | None) -> Any:
        ctx.operation = operation
        # Autograd cannot save tensors of torch.inference_mode, so None is saved in their place. Gradients that the
        # forward pass computes do not need the saved tensors.
        saved: list[Tensor | None] = list(tensors)
        for place, x in enumerate(tensors):
            if x is not None and x.is_inference():
                saved[place] = None
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*tensors)
        wanted = ctx.needs_input_grad[2:] if is_early else (False,) * len(tensors)
        total, gradients, *second = operation.total(tensors, wanted)
        ctx.gradients = gradients if True in wanted else None
        ctx.dtype = total.dtype
        return _with_second(ctx, total, second[0]) if second else total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, ready, operation = grads[0], ctx.gradients, ctx.operation
        is_plain = not torch.is_grad_enabled() and can_inspect_all(grads[:1])
        if ready is not None and is_plain:
            ctx.gradients = None
            return None, None, *operation.complete(_scaled(ready, grad))
        tensors = ctx.saved_tensors
        if tensors[0] is None or tensors[1] is None:
            raise invalid_value(
                "backward",
                "teacher",
                wanted="logits that can be saved, for a gradient of the gradient or a second backward pass",
                got="a tensor of torch.inference_mode",
                instead="torch.no_grad() in place of torch.inference_mode(), or teacher.clone()",
            )
        weights = row_weights(operation.weights, tensors[0], grad * operation.scale)
        return None, None, *operation.gradients(tensors, (), weights, ctx.needs_input_grad[2:], is_plain)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:
        tensors, operation = ctx.saved_tensors, ctx.operation
        weights = row_weights(operation.weights, tensors[0], operation.scale)
        changes = operation.changes(tensors, tangents[2:])
        return torch.where(weights == 0, 0, weights * changes).sum().to(ctx.dtype)


def _with_second(ctx: Any, result: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    ctx.mark_non_differentiable(second)
    return result, second


def row_weights(weights: Weights, rows: Tensor, factor: Tensor | float) -> Tensor:
    """Return the weights (None counts as 1) times `factor`, shape (rows,), in the device's best dtype."""
    # `rows` has the logits of P or of Q. The logits of the other distribution may have a more accurate dtype, so the
    # dtype of `rows` is not used.
    dtype = accurate_dtype(rows.device)
    weights = rows.new_ones(rows.shape[0], dtype=dtype) if weights is None else weights.to(dtype)
    return weights * factor


def spoilt_rows(rows: Sequence[Tensor], in_logs: Sequence[bool]) -> Tensor:
    """Return whether P or Q of each row has NaN, +inf or no mass. Value and derivatives are then NaN."""
    spoilt = torch.zeros(rows[0].shape[:-1], dtype=torch.bool, device=rows[0].device)
    for x, is_logs in zip(rows, in_logs, strict=True):
        peak = x.detach().amax(-1)
        spoilt = spoilt | ~peak.isfinite() if is_logs else spoilt | ~((peak > 0) & peak.isfinite())
    return spoilt


def without_spoilt_rows(rows: Sequence[Tensor], in_logs: Sequence[bool]) -> tuple[Tensor, list[Tensor]]:
    """Return the mask of `spoilt_rows`, and copies of the tensors with ones in these rows. In rows of weight 0, a
    second derivative would multiply NaN by 0.
    """
    spoilt = spoilt_rows(rows, in_logs)
    return spoilt, [torch.where(spoilt.unsqueeze(-1), 1, x) for x in rows]


def weighted(derivatives: Tensor, weights: Weights, rows: slice) -> Tensor:
    """Return the derivatives of a slice of rows times their weights; 0 at weight 0, even if a derivative is NaN."""
    if weights is None:
        return derivatives
    factors = weights[rows].unsqueeze(-1)
    return torch.where(factors == 0, 0, factors * derivatives)


def weighted_rows(derivatives: Tensor, weights: Tensor, spoilt: Tensor) -> Tensor:
    """Return each row's derivatives times its weight, differentiably: NaN in a spoilt row, 0 at weight 0."""
    derivatives = torch.where((weights == 0).unsqueeze(-1) & ~derivatives.isfinite(), 0, derivatives)
    replaced = torch.where(weights == 0, 0.0, torch.nan).to(derivatives.dtype)
    return torch.where(spoilt.unsqueeze(-1), replaced.unsqueeze(-1), weights.unsqueeze(-1) * derivatives)


def overwritten(x: Tensor) -> Tensor:
    """Return a detached alias of `x`, which a kernel has overwritten. If an operation saved `x`, the increased version
    counter makes its backward pass raise.
    """
    torch.autograd.graph.increment_version(x)
    return x.detach()


def _scaled(gradients: Gradients, factor: Tensor) -> list[Tensor | None]:
    """Multiply gradients in place by a number. A factor of 0 on the CPU gives 0, even for infinite gradients."""
    number = factor.item() if factor.is_cpu else math.nan  # reading would wait for another device
    if number == 1:
        return list(gradients)
    if number == 0:
        return [x if x is None else x.zero_() for x in gradients]
    return [x if x is None else x.mul_(factor) for x in gradients]


@cache
def define_operator(schema: str, launch: Callable[..., None]) -> torch.library.Library:
    """Define an operator for compiled graphs, and return its library, which the cache keeps.

    The operator writes all results to arguments. Without an operator, torch.compile would pass Python's floats to
    Triton's kernels in float64, before torch 2.15.
    """
    name = schema.partition("(")[0]
    library = torch.library.Library("kullback", "FRAGMENT")
    library.define(schema)
    library.impl(name, launch, "CompositeExplicitAutograd")
    torch.library.register_fake(f"kullback::{name}", lambda *_: None, lib=library)
    return library


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
        wanted="only first derivatives of the loss",
        got="a gradient of the gradient of a distillation loss",
        instead="the loss outside of torch.compile, or reduction='none' with backend='eager'",
    )


def row_blocks(rows: Tensor) -> Iterator[slice]:
    """Return slices for blocks of one row or more; one slice while torch.compile traces, because it fuses."""
    if torch.compiler.is_compiling():
        return iter((slice(None),))
    n, classes = rows.shape
    step = max(1, elements_of_block(rows) // max(classes, 1))
    return (slice(start, start + step) for start in range(0, max(n, 1), step))


def elements_of_block(x: Tensor) -> int:
    """Return the number of elements of `x` in a block."""
    return _ELEMENTS_ON_CPU if x.is_cpu else _ELEMENTS
