"""`diagnose`: explains a call of `torch.nn.functional.kl_div`, finds its mistakes and suggests a correction."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import as_tensor, can_inspect, whole_from
from kullback.diagnosis.case import Case
from kullback.diagnosis.checks import findings_of
from kullback.diagnosis.diagnosis_result import Diagnosis, TensorSummary, conclude
from kullback.diagnosis.shapes import ClassAxes
from kullback.diagnosis.suggestion import Suggestion, suggest
from kullback.diagnosis.values import RowValues
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.losses.reduction import check_reduction
from kullback.representations import Representation
from kullback.results.finding import Finding

__all__ = ["Diagnosis", "Finding", "RowValues", "Suggestion", "TensorSummary", "diagnose"]

_ARGUMENTS = Arguments("diagnose", log_target=FLAG)


@by_name()
def diagnose(
    input: object,
    target: object,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    dim: int | tuple[int, ...] = -1,
) -> Diagnosis:
    r"""Explain the value of ``F.kl_div(input, target, reduction=..., log_target=...)``, and suggest a correction.

    .. math:: \texttt{F.kl\_div(input, target)} = \sum_i p_i (\log p_i - x_i) = KL(P \| Q),
        \quad p = \texttt{target},\; x = \texttt{input} = \log q

    `diagnose` finds mistakes that raise no error: exchanged arguments, probabilities in place of log-probabilities, and
    a softmax that is applied twice, along the wrong dimension or not at all. `diagnose` also finds a reduction that
    does not divide by the number of rows, zeros that become NaN, and shapes that broadcast. The contents of the tensors
    are inferred from their values, and each finding states the evidence. The tensors are read a few times, block by
    block, and are not copied.

    Arguments:
        input: the first argument of the call, natural log-probabilities of Q, shape (..., classes).
        target: the second argument of the call, probabilities of P, or their logarithms if `log_target`. The shape of
            `target` must broadcast with the shape of `input`.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``, as in `torch.nn.functional.kl_div`.
        log_target: whether the call states that `target` contains logarithms.
        dim: the dimension of the classes. A tuple such as ``(-2, -1)`` means one distribution over several dimensions,
            such as a heat map.

    Returns:
        a `Diagnosis`, whose ``str()`` is a report. Wrong values and shapes are reported as findings and raise no error.

    Raises:
        ArgumentTypeError: an argument is not a dense real tensor with values, or `log_target` is not a bool.
        ArgumentValueError: `reduction` is not a reduction of `torch.nn.functional.kl_div`, or a tensor has no dimension
            `dim`.

    Gradient: none: the arguments are detached.

    Example:
        >>> import torch, kullback
        >>> scores, p = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[0.5, 0.25, 0.25]])
        >>> diagnosis = kullback.diagnose(scores, p, reduction="batchmean")
        >>> diagnosis
        <Diagnosis: input-is-logits; KL(target || input) = 0.3801 per row>
        >>> print(diagnosis.suggestion.kullback)
        kl_divergence(Probs(target), Logits(input)).mean()
        >>> print(diagnosis.suggestion.torch)
        F.kl_div(input.log_softmax(-1), target, reduction="batchmean")

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """
    word = check_reduction("diagnose", reduction)
    _ARGUMENTS.check(log_target=log_target)
    a, b = _readable("input", input), _readable("target", target)
    axes = _checked_dim(dim, a, b)
    with torch.no_grad():
        case = Case(a, b, word, log_target, axes)
        return conclude(case, findings_of(case), suggest(case))


def _checked_dim(dim: object, input: Tensor, target: Tensor) -> ClassAxes:
    """Return the checked dimensions of the classes."""
    numbers = [
        whole_from(each) for each in cast("tuple[object, ...]", dim if isinstance(dim, tuple) else (dim,))
    ]
    ndim = max(input.ndim, 1)
    negative = sorted({axis % ndim - ndim for axis in numbers if axis is not None and -ndim <= axis < ndim})
    if not numbers or len(negative) < len(numbers):
        wanted = f"a dimension of input, which has shape {tuple(input.shape)}, or a tuple of different ones"
        instead = "dim=-1 when the last dimension holds the classes"
        raise invalid_value("diagnose", "dim", wanted=wanted, got=safe_repr(dim), instead=instead)
    if len(negative) > 1 and target.ndim < -negative[0]:
        raise invalid_value(
            "diagnose",
            "dim",
            wanted=f"dimensions of target too, which has shape {tuple(target.shape)}",
            got=safe_repr(dim),
            instead="dim=-1, or target.expand(input.shape)",
        )
    return ClassAxes(tuple(negative))


def _readable(name: str, x: object) -> Tensor:
    if isinstance(x, Representation):
        wanted = "the tensor that F.kl_div gets"
        raise invalid_type("diagnose", name, wanted=wanted, got=repr(x), instead=f"{name}={name}.tensor")
    tensor = as_tensor("diagnose", name, x).detach()
    if tensor.layout is not torch.strided or tensor.is_complex() or not can_inspect(tensor):
        wanted = "a dense tensor of real numbers whose values can be read"
        got = f"one of layout {tensor.layout}, dtype {tensor.dtype}, on {tensor.device}"
        instead = "diagnose(...) outside torch.compile and vmap, with x.to_dense() if it is sparse"
        raise invalid_type("diagnose", name, wanted=wanted, got=got, instead=instead)
    return tensor
