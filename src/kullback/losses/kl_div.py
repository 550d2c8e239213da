"""The drop-in for `torch.nn.functional.kl_div`.

This module has no postponed annotations, because TorchScript reads the annotations of `_outside_script`.
"""

import torch
from torch import Tensor
from torch._C import _is_tracing  # pyright: ignore[reportPrivateUsage]
from torch.overrides import handle_torch_function, has_torch_function

from kullback.common.constraints import Arguments, OfType
from kullback.common.inputs import check_dense, recordable, tensor_remedy
from kullback.errors import IncompatibleTensorError, explain, invalid_type
from kullback.kernels import kl_div_terms
from kullback.kernels.native import terms
from kullback.losses.reduction import Reduction, reduce_terms, torch_reduction

_ARGUMENTS = Arguments(
    "kl_div",
    log_target=OfType(
        (bool,),
        wanted="True if target holds log-probabilities, False if it holds probabilities",
        instead="kl_div(input, target.log(), log_target=True) or kl_div(input, target)",
    ),
)

_INPUT_REMEDY = "kl_div(logits.log_softmax(dim=-1), target)"
_TARGET_REMEDY = (
    "kl_div(input, counts / counts.sum(dim=-1, keepdim=True)), "
    "or torch.nn.functional.cross_entropy(logits, target) for class indices"
)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    r"""Compute KL(target || input) term by term and reduce it: a drop-in for `torch.nn.functional.kl_div`.

    With :math:`P` the `target`, and :math:`Q` the distribution whose **logarithm** is `input`, the terms are
    the summands of

    .. math:: \mathrm{KL}(P \,\|\, Q) = \sum_i p_i \, (\log p_i - \log q_i).

    Note the order: the arguments are (log Q, P), but the result is KL(P || Q). Only the sum over the classes is a
    divergence. So ``"sum"`` gives the divergence of a single row, and ``"batchmean"`` the mean over the rows of a
    matrix. The default ``"mean"`` gives neither value, because it also divides by the number of classes.

    Numbers, dtypes, shapes and warnings are the same as in torch, except where torch gives NaN for valid arguments. A
    class without mass in P contributes 0, whatever Q is. A class with mass in P but no mass in Q contributes +inf, even
    if the mass in P underflows. Half precision is computed in float32 and rounded once.

    Arguments:
        input: Log-probabilities of Q in nats, floating point, of any shape; usually from `log_softmax`.
        target: Probabilities of P, or their logarithms with `log_target`; of a shape that broadcasts with
            `input`.
        size_average: Deprecated; raises a warning. False means ``"sum"``. This flag overrides `reduction`.
        reduce: Deprecated; raises a warning. False means ``"none"``. This flag overrides `reduction`.
        reduction: ``"none"`` returns the terms, ``"sum"`` their sum, ``"batchmean"`` the sum divided by
            ``input.size(0)``, and ``"mean"`` the sum divided by the number of terms, with a warning.
        log_target: Whether `target` holds logarithms.

    Returns:
        The terms, in the broadcast shape of `input` and `target`, or a scalar. The dtype is the promoted dtype of
        `input` and `target`; under autocast, half precision becomes float32.

    Raises:
        ArgumentTypeError: `input` or `target` is not a tensor, or `log_target` is not a bool.
        ArgumentValueError: `reduction` is not one of the four words.
        IncompatibleTensorError: A tensor is not real floating point or not dense, the two tensors do not broadcast, or
            they are on different devices. The error is a RuntimeError too, as in torch.

    Gradient:
        To `input`, :math:`-p`; to probabilities, :math:`\log p - \log q + 1`; to log-probabilities,
        :math:`p (\log p - \log q + 1)`. All these derivatives are 0 at a class without mass in P. Where a term is +inf,
        the gradient to `input` is still :math:`-p`, and the gradient to the target, which is infinite in torch, omits
        :math:`\log p - \log q`. So all gradients are finite.

    Example:
        >>> log_q = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]).log()
        >>> p = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
        >>> kl_div(log_q, p, reduction="batchmean")
        tensor(0.3466)
        >>> kl_div(log_q, p.log(), reduction="none", log_target=True).sum(dim=-1)
        tensor([0.6931, 0.0000])

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951).
    """
    if has_torch_function((input, target)):
        for name, x in (("input", input), ("target", target)):
            if isinstance(x, Tensor) and not x.is_nested:
                check_dense("kl_div", name, x)
        return handle_torch_function(
            kl_div,
            (input, target),
            input,
            target,
            size_average=size_average,
            reduce=reduce,
            reduction=reduction,
            log_target=log_target,
        )
    input, target = (recordable(x) if isinstance(x, Tensor) else x for x in (input, target))
    if size_average is None and reduce is None and isinstance(log_target, bool) and _is_native(input, target):
        return _native(input, target, torch_reduction(reduction, None, None), log_target)
    _check_tensor("input", input, instead=_INPUT_REMEDY)
    _check_tensor("target", target, instead=_TARGET_REMEDY)
    _ARGUMENTS.check(log_target=log_target)
    batch_size = input.size(0) if input.dim() else 1
    dtype = _result_dtype(input, target)
    if input.is_nested != target.is_nested:
        input, target = _both_jagged(input, target)
    _check_match(input, target)
    meant = torch_reduction(reduction, size_average, reduce)

    inner = torch.float32 if torch.finfo(dtype).bits < 32 else dtype
    summands = kl_div_terms.reference_terms(input.to(inner), target.to(inner), log_target)
    loss = reduce_terms(summands, meant, batch_size=batch_size)
    if reduction == "batchmean" and meant != reduction:
        loss = loss / batch_size  # torch does this too, although a deprecated flag overrides "batchmean"
    return loss.to(dtype)


def _outside_script(
    input: Tensor,
    target: Tensor,
    size_average: bool | None,
    reduce: bool | None,
    reduction: str,
    log_target: bool,
) -> Tensor:
    return kl_div(input, target, size_average, reduce, reduction, log_target)


def _in_script(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """Call `kl_div` in Python. `torch.jit.script` compiles this instead of `kl_div`, which it cannot compile."""
    return _outside_script(input, target, size_average, reduce, reduction, log_target)


torch.jit.ignore()(_outside_script)
vars(kl_div)["__prepare_scriptable__"] = lambda: _in_script  # torch.jit.script looks for a substitute here


def _is_native(log_q: Tensor, target: Tensor) -> bool:
    """Return whether the C++ kernels support the two arguments. If so, both are valid arguments of `kl_div`."""
    return (
        not torch.compiler.is_compiling()
        and isinstance(log_q, Tensor)
        and isinstance(target, Tensor)
        and terms.serves(log_q, target)
        and _result_dtype(log_q, target) == log_q.dtype
    )


def _native(log_q: Tensor, target: Tensor, meant: Reduction, log_target: bool) -> Tensor:
    if meant == "none":
        return kl_div_terms.kl_terms(log_q, target, log_target, None)
    divisors = {"sum": 1, "mean": log_q.numel(), "batchmean": log_q.size(0) if log_q.dim() else 1}
    return kl_div_terms.kl_terms(log_q, target, log_target, divisors[meant])


def _result_dtype(log_q: Tensor, target: Tensor) -> torch.dtype:
    """Return `torch.result_type` of two floating-point tensors, by operations that torch.compile traces."""
    deciding = [x.dtype for x in (log_q, target) if x.dim()] or [log_q.dtype, target.dtype]
    dtype = torch.promote_types(deciding[0], deciding[-1])
    # Under autocast, torch computes kl_div of half-precision tensors in float32, so the result here is float32 too.
    if torch.finfo(dtype).bits < 32 and torch.is_autocast_enabled(log_q.device.type):
        return torch.float32
    return dtype


def _check_tensor(name: str, value: object, *, instead: str) -> None:
    if not isinstance(value, Tensor):
        got = type(value).__name__
        made = tensor_remedy(name, value, floating=True)
        if made is not None:
            instead = f"kl_div({made}, target)" if name == "input" else f"kl_div(input, {made})"
        raise invalid_type("kl_div", name, wanted="a tensor", got=got, instead=instead)
    if value.is_nested and value.layout is not torch.jagged:
        check_dense("kl_div", name, value)
    is_dense = value.layout in (torch.strided, torch.jagged)
    if not is_dense or not value.is_floating_point():
        wanted = "a dense tensor of real floating-point numbers"
        got = f"{_described(value)} and layout {value.layout}"
        instead = instead if is_dense else f"kl_div(input, target) with {name}.to_dense()"
        raise _incompatible(name, wanted, got, instead)
    if not value.is_nested:
        check_dense("kl_div", name, value)


def _both_jagged(log_q: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as nested tensors of one structure. Like torch's kl_div, a dense tensor broadcasts."""
    jagged = log_q if log_q.is_nested else target
    try:
        first, second = (
            x if x.is_nested else torch.zeros_like(jagged, dtype=x.dtype) + x for x in (log_q, target)
        )
    except RuntimeError:
        wanted = f"a tensor that broadcasts with input, {_described(log_q)}"
        instead = "kl_div(input, target) with x.to_padded_tensor(0.0) in place of each nested tensor x"
        raise _incompatible("target", wanted, _described(target), instead) from None
    return first, second


def _check_match(log_q: Tensor, target: Tensor) -> None:
    if not torch.compiler.is_compiling() and _is_tracing():
        return  # comparing sizes while tracing would warn, and later operations check the sizes too
    sizes = zip(reversed(log_q.shape), reversed(target.shape), strict=False)
    if not all(a == b or a == 1 or b == 1 for a, b in sizes):  # noqa: PLR1714 - torch.compile traces no `in`
        wanted = f"a tensor that broadcasts with input, {_described(log_q)}"
        instead = "kl_div(input, target) with the same rows and classes in the same dimensions of both"
        raise _incompatible("target", wanted, _described(target), instead)
    if log_q.device != target.device and not any(x.dim() == 0 and x.is_cpu for x in (log_q, target)):
        wanted = f"a tensor on {log_q.device}, the device of input"
        instead = "kl_div(input, target.to(input.device))"
        raise _incompatible("target", wanted, f"a tensor on {target.device}", instead)


def _incompatible(name: str, wanted: str, got: str, instead: str) -> IncompatibleTensorError:
    return IncompatibleTensorError(explain("kl_div", name, wanted=wanted, got=got, instead=instead))


def _described(tensor: Tensor) -> str:
    return f"a tensor of shape {tuple(tensor.shape)}, dtype {tensor.dtype}"
