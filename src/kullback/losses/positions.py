"""The positions of a loss: mask, weight, labels, normalizer, and the reduction of the values of the positions."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.inputs import (
    can_inspect,
    check_dense,
    dense,
    first_of,
    is_integer,
    number_from,
    recordable,
    tensor_remedy,
)
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.kernels.label_terms import HardLabels
from kullback.losses.reduction import Reduction
from kullback.losses.settings import LossSettings


class Positions(NamedTuple):
    """The checked mask, weights, labels, normalizer and settings, which reduce values to the loss."""

    call: str  # the function that the user called, for messages
    settings: LossSettings
    shape: torch.Size
    device: torch.device  # the device of the logits
    dtype: torch.dtype  # the dtype of the loss
    weights: Tensor | None  # the weight of each position, 0 if it does not count; None if all are 1
    labels: HardLabels | None  # the labels, and factors that mix cross-entropy and divergence
    scale: float  # the factor of the values of all positions
    normalizer: Tensor | float | None  # the divisor of the sum; None for the divisor that `reduction` implies

    def check_labels(self, classes: int) -> None:
        """Raise unless every label at a position that counts is a class from 0 to `classes` - 1."""
        if self.labels is None or not (can_inspect(self.labels.classes) and self.labels.classes.is_cpu):
            return  # reading labels on an accelerator would synchronize
        labels = self.labels.classes
        wrong = (labels < 0) | (labels >= classes)
        if bool(wrong.any()):
            raise invalid_value(
                self.call,
                "labels",
                wanted=f"classes from 0 to {classes - 1} at the positions that count",
                got=f"{int(labels[wrong][0])} ({first_of(wrong.reshape(self.shape))})",
                instead="ignore_index= set to the label of positions without a true class, or mask= without them",
            )

    def shares(self) -> tuple[Tensor | None, float]:
        """Return a weight for each position (None if all are 1), and the factor of all values in the loss."""
        weights, normalizer, scale = self.weights, self.normalizer, self.scale
        if isinstance(normalizer, Tensor):
            if not normalizer.is_cpu:  # a scalar on the CPU can divide tensors on any device
                _check_device(self.call, "normalizer", normalizer, self.device)
            dtype = torch.promote_types(normalizer.dtype, self.dtype)
            divisor = recordable(normalizer).to(dtype).reshape(())
            if weights is None:
                return torch.ones(self.shape, dtype=self.dtype, device=self.device) / divisor, scale
            return torch.where(weights == 0, 0, weights / divisor), scale
        if normalizer is not None:
            return weights, scale / float(normalizer)
        if self.settings.reduction == "mean" and weights is not None:
            if weights.numel():  # so that weights may be large or small without overflow or underflow
                peak = weights.detach().amax()
                weights = weights / torch.where(peak == 0, 1, peak)
            total = weights.sum()
            return weights / torch.where(total == 0, 1, total), scale
        first = self.shape[0] if self.shape else 1
        divisor = {"mean": self.shape.numel(), "batchmean": first}.get(self.settings.reduction, 1)
        return weights, scale / max(divisor, 1)

    def reduce(self, values: Tensor) -> Tensor:
        """Return the reduced loss. A value at a position of weight 0 has no effect, even if it is NaN."""
        is_sum = self.settings.reduction != "none"
        weights, factor = self.shares() if is_sum else (self.weights, self.scale)
        if weights is not None:
            values = torch.where(weights == 0, 0, values) * weights.to(values.dtype)
        values = values if factor == 1 else values * factor
        return values.sum() if is_sum else values


def positions_of(
    call: str,
    settings: LossSettings,
    rows: Tensor,
    dtype: torch.dtype,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    normalizer: Tensor | float | None,
) -> Positions:
    """Return the checked positions of `rows`, which has shape (..., classes), for a loss of the dtype `dtype`."""
    shape, device = rows.shape[:-1], rows.device
    scale = float(settings.temperature**2) if settings.temperature_squared else 1.0
    if normalizer is not None:
        _check_normalizer(call, normalizer, settings.reduction)
    weights = mixed = None
    if not (mask is weight is labels is None):
        ignored = settings.ignore_index
        weights = position_weights(
            call, shape, mask, weight, labels, ignored, device, dtype, stacklevel=7, takes_labels=True
        )
    if settings.label_weight:
        mixed, scale = _mixed_labels(call, labels, settings.label_weight, weights, scale), 1.0
    return Positions(call, settings, shape, device, dtype, weights, mixed, scale, normalizer)


def _check_normalizer(call: str, normalizer: Tensor | float, reduction: Reduction) -> None:
    """Raise unless the normalizer is a positive number and the reduction is not ``"none"``."""
    if reduction == "none":
        wanted, got = "no normalizer with reduction='none', which does not divide", type(normalizer).__name__
        instead = "reduction='sum' with it, or reduction='none' without"
        raise invalid_value(call, "normalizer", wanted=wanted, got=got, instead=instead)
    if isinstance(normalizer, Tensor):
        check_dense(call, "normalizer", normalizer)
        is_scalar = normalizer.numel() == 1 and not normalizer.is_complex()
        # Only a normalizer on the CPU is checked, because reading a value from an accelerator would synchronize.
        is_readable = is_scalar and can_inspect(normalizer) and normalizer.is_cpu
        is_valid = is_scalar and (not is_readable or 0 < normalizer.item() < math.inf)
        described = f"dtype {normalizer.dtype}, shape {tuple(normalizer.shape)}"
        got = f"{normalizer.item()}" if is_readable else described
    else:
        is_valid, got = 0 < number_from(normalizer) < math.inf, safe_repr(normalizer)
    if not is_valid:
        wanted = "a positive number, such as the number of counted positions of a step"
        instead = "normalizer=None to divide by this call's positions, or normalizer=mask.sum().clamp(min=1)"
        raise invalid_value(call, "normalizer", wanted=wanted, got=got, instead=instead)


# For each argument that may exclude every position, this dict has two texts of the warning: the reason and the remedy.
_EXCLUSIONS = {
    "mask": ("the mask is False everywhere", "True means that a position counts: mask=attention_mask.bool()"),
    "labels": (
        "every label is {ignored}, the ignore_index",
        "Often the rows were cut before their first label: leave such rows out, or cut them later",
    ),
    "weight": ("every weight is 0", "Give a positive weight to the positions that count"),
}


def warn_if_nothing_counts(
    call: str,
    arguments: Mapping[str, Tensor | None],
    counted: Tensor,
    ignore_index: int = -100,
    stacklevel: int = 4,
) -> None:
    """Warn if `counted` is 0 everywhere, and name which of `arguments` (None if not given) excludes all positions. Only
    the CPU is checked, outside of torch.compile, because reading would synchronize an accelerator.
    """
    is_readable = counted.device.type == "cpu" and counted.numel() > 0 and can_inspect(counted)
    if not is_readable or bool(counted.any()):
        return
    names = [name for name, x in arguments.items() if x is not None]
    reason, remedy = "together they exclude every position", "Check each of them alone"
    for name, words in _EXCLUSIONS.items():
        x = arguments.get(name)
        if x is not None and not bool((x != ignore_index if name == "labels" else x).any()):
            names, (reason, remedy) = [name], words
            break
    listed, reason = ", ".join(f"{name}=..." for name in names), reason.format(ignored=ignore_index)
    warnings.warn(f"{call}({listed}): {reason}, so no position counts. {remedy}", stacklevel=stacklevel)


def position_weights(
    call: str,
    positions: torch.Size,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    stacklevel: int = 4,
    takes_labels: bool = False,
) -> Tensor | None:
    """Return each position's weight in `dtype` or better, 0 if it does not count; None if all are 1. If `takes_labels`,
    the call has `labels` and `weight`, and errors about the mask may suggest them.
    """
    if mask is weight is labels is None:
        return None
    mask, weight, labels = (
        None if x is None else _of_positions(call, name, x, positions, device)
        for name, x in (("mask", mask), ("weight", weight), ("labels", labels))
    )
    if mask is not None and mask.dtype != torch.bool:
        got, instead = f"dtype {mask.dtype}", mask_remedy(mask, ignore_index, takes_labels=takes_labels)
        raise invalid_type(call, "mask", wanted="a boolean tensor", got=got, instead=instead)
    if labels is not None and not is_integer(labels):
        wanted, got = "integers, the true classes", f"dtype {labels.dtype}"
        raise invalid_type(call, "labels", wanted=wanted, got=got, instead="labels=labels.long()")
    weights = None if weight is None else weight.to(torch.promote_types(weight.dtype, dtype))
    for counted in (mask, None if labels is None else labels != ignore_index):
        if counted is not None:
            weights = counted.to(dtype) if weights is None else torch.where(counted, weights, 0)
    if weights is not None:
        if weight is not None:
            _check_weights(call, weights)
        arguments = {"mask": mask, "weight": weight, "labels": labels}
        warn_if_nothing_counts(call, arguments, weights, ignore_index, stacklevel)
    return weights


def mask_remedy(mask: Tensor, ignore_index: int = -100, *, takes_labels: bool = False) -> str:
    """Return the remedy that an error suggests for a mask that is not boolean. The remedy depends on the values of the
    mask, which may be labels.

    If `takes_labels`, the call has the arguments `labels` and `weight`.

    Example:
        >>> mask_remedy(torch.tensor([1, 0])), mask_remedy(torch.tensor([7, -100]))
        ('mask=mask != 0', 'mask=mask != -100')
    """
    if not can_inspect(mask) or not bool(((mask != 0) & (mask != 1)).any()):
        return "mask=mask != 0"
    if is_integer(mask) and bool((mask == ignore_index).any()):
        where = f"mask=mask != {ignore_index}"
        return f"labels=mask, if these are labels; or {where}" if takes_labels else where
    if not mask.is_complex() and bool((mask <= 0).all()):  # an additive mask, which attention adds to scores
        return "mask=mask == 0, because an additive mask is 0 where a position counts"
    if mask.is_floating_point():
        return "weight=mask for weights" if takes_labels else "mask=mask > 0"
    return "mask=mask != padding, with the number at positions that do not count as padding"


def _mixed_labels(
    call: str, labels: Tensor | None, label_weight: float, weights: Tensor | None, scale: float
) -> HardLabels:
    """Return the labels with the factors of the divergence (including `scale`) and of the cross-entropy."""
    if labels is None:
        wanted = "the true class of each position, because label_weight is not 0"
        instead = "labels=labels, with ignore_index at positions without a label; or label_weight=0.0"
        raise invalid_value(call, "labels", wanted=wanted, got="None", instead=instead)
    classes = labels.reshape(-1).long()
    if weights is not None:  # positions that do not count may have any label
        classes = torch.where(weights.reshape(-1) == 0, 0, classes)
    return HardLabels(classes, (1 - label_weight) * scale, float(label_weight))


def _check_weights(call: str, weights: Tensor) -> None:
    """Raise if a position that counts has a negative, infinite or NaN weight."""
    is_readable = can_inspect(weights) and weights.is_cpu  # on an accelerator, reading would synchronize
    wrong = ~((weights >= 0) & (weights < math.inf)) if is_readable and not weights.is_complex() else None
    if weights.is_complex() or (wrong is not None and bool(wrong.any())):
        wanted = "finite numbers, none negative, at the positions that count"
        got = f"dtype {weights.dtype}" if wrong is None else f"{float(weights[wrong][0])} ({first_of(wrong)})"
        instead = (
            "weight=weight.nan_to_num(0.0, 0.0, 0.0).clamp(min=0), or mask= for positions that do not count"
        )
        raise invalid_value(call, "weight", wanted=wanted, got=got, instead=instead)


def _of_positions(
    call: str, name: str, tensor: object, positions: torch.Size, device: torch.device
) -> Tensor:
    """Return `tensor` as a dense tensor. Raise unless the tensor has one value for each position and is on `device`."""
    if not isinstance(tensor, Tensor):
        made = tensor_remedy(name, tensor, floating=False)
        instead = f"{name} of shape {tuple(positions)}" if made is None else f"{name}={made}"
        raise invalid_type(call, name, wanted="a tensor", got=type(tensor).__name__, instead=instead)
    tensor = dense(call, name, tensor)
    if tensor.shape != positions:
        wanted, got = f"a value for each position, shape {tuple(positions)}", f"shape {tuple(tensor.shape)}"
        instead = _fitting(name, tensor, positions)
        raise invalid_value(call, name, wanted=wanted, got=got, instead=instead)
    _check_device(call, name, tensor, device)
    return tensor


def _check_device(call: str, name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        wanted, got = f"a tensor on {device}, where the positions are", f"one on {tensor.device}"
        instead = f"{name}={name}.to({str(device)!r})"
        raise invalid_value(call, name, wanted=wanted, got=got, instead=instead)


def _fitting(name: str, tensor: Tensor, positions: torch.Size) -> str:
    """Return the remedy for a tensor that does not have the shape `positions`."""
    if tensor.ndim == len(positions) > 0 and tensor.shape[-1] == positions[-1] + 1:
        return f"{name}={name}[..., 1:], because the logits of a position predict the next token"
    if tensor.ndim <= len(positions) and all(
        a in (1, b) for a, b in zip(reversed(tensor.shape), reversed(positions), strict=False)
    ):
        return f"{name}={name}.expand({tuple(positions)})"
    if tensor.ndim == 2 and tensor.shape == positions[::-1]:
        return f"{name}={name}.T"
    # For other shapes, reshape would assign values to wrong positions, even if the number of entries is the same.
    if tensor.numel() == positions.numel() and (tensor.ndim == 1 or _long(tensor.shape) == _long(positions)):
        return f"{name}={name}.reshape({tuple(positions)})"
    return f"{name} of shape {tuple(positions)}"


def _long(shape: torch.Size) -> list[int]:
    """Return the sizes of the dimensions that are not of size 1."""
    return [size for size in shape if size != 1]
