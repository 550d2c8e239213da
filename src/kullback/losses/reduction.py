"""The names of reductions, and the reduction of losses without a mask; `positions` reduces losses with a mask."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from kullback.common.constraints import Arguments, OneOf

if TYPE_CHECKING:
    from torch import Tensor

Reduction: TypeAlias = Literal["none", "sum", "mean", "batchmean"]

REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
REDUCTION = OneOf(
    REDUCTIONS,
    example="batchmean",
    instead="{call}(..., reduction='batchmean') for the mean divergence of the rows",
)
ARGUMENTS = Arguments(
    "kl_div", "KLDivLoss", "diagnose", "kl_from_log_probs", "kl_surrogate", reduction=REDUCTION
)


def check_reduction(call: str, reduction: object) -> Reduction:
    """Return `reduction` if it is in `REDUCTIONS`; else raise an error that names `call`."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return reduction
    raise REDUCTION.refusal(call, "reduction", reduction)


def torch_reduction(reduction: object, size_average: bool | None, reduce: bool | None) -> Reduction:
    """Return the reduction that `reduction` and the deprecated flags of `torch.nn.functional.kl_div` mean together.

    If a deprecated flag is given, `reduction` is ignored. `reduce=False` then means ``"none"``; otherwise,
    `size_average` chooses between ``"mean"`` (true) and ``"sum"`` (false). A flag that is None counts as true. The old
    name ``"elementwise_mean"`` still means ``"mean"``. As in torch, a flag, the old name and ``"mean"`` each raise a
    UserWarning. The warning points at the line that calls `kl_div`.
    """
    if size_average is not None or reduce is not None:
        mean_or_sum: Reduction = "mean" if size_average is None or size_average else "sum"
        meant: Reduction = mean_or_sum if reduce is None or reduce else "none"
        _warn(f"size_average and reduce are deprecated; write reduction='{meant}' instead.")
        return meant
    if reduction == "elementwise_mean":
        _warn("reduction='elementwise_mean' is deprecated; write reduction='mean' instead.")
        return "mean"
    if reduction == "mean":
        _warn(
            "reduction: 'mean' divides by the number of classes as well as rows, so it is no KL divergence; "
            "write reduction='batchmean' for the mean divergence of the rows."
        )
    return check_reduction("kl_div", reduction)


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)  # _warn is level 1, torch_reduction 2, kl_div 3, its caller 4


# torch.compile cannot trace a warning. Because of this attribute, torch.compile runs the function once, during tracing.
# torch.compiler.assume_constant_result sets the same attribute, but imports the whole compiler.
_warn._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def reduce_terms(terms: Tensor, reduction: Reduction, *, batch_size: int) -> Tensor:
    """Return the reduced terms of a loss. ``"batchmean"`` divides their sum by `batch_size`."""
    if reduction == "none":
        return terms
    if reduction == "mean":
        return terms.mean()
    total = terms.sum()
    return total if reduction == "sum" else total / batch_size
