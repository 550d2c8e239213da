"""Checks and weights shared by the losses over positions: kind, temperature, mask, weight, labels, normalizer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators import Divergence, as_divergence
from kullback.generators.growth import is_own
from kullback.inputs import (
    check_dense,
    check_flag,
    dense,
    number_from,
    recordable,
    tensor_remedy,
    whole_from,
)
from kullback.kernels.labels import HardLabels
from kullback.reduction import Reduction, check_reduction
from kullback.representations import can_inspect, first_of

__all__ = [
    "LossSettings",
    "Vocabulary",
    "check_any_class",
    "check_classes",
    "check_ignore_index",
    "check_kind",
    "check_label_weight",
    "check_labels",
    "check_logits",
    "check_normalizer",
    "check_result_dtype",
    "check_temperature",
    "check_vocabulary",
    "divided",
    "hard_labels",
    "position_weights",
    "remembered",
    "settings_of",
    "warn_of_empty_mask",
]

# Logits divided by a smaller temperature, and the square of a larger one, overflow float32.
_COLDEST = 1e-16

RESULT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

T = TypeVar("T")
Vocabulary: TypeAlias = Literal["error", "truncate", "mask"]


class LossSettings(NamedTuple):
    """The arguments that both distillation losses have, and that must be equal on all ranks of a group."""

    kind: Any
    temperature: float
    label_weight: float
    reduction: Reduction
    temperature_squared: bool
    normalizer: Tensor | float | None
    vocabulary: Vocabulary
    classes: int | None

    @property
    def scale(self) -> float:
        """The factor of the divergences."""
        return float(self.temperature**2) if self.temperature_squared else 1.0

    def by_name(self) -> dict[str, Any]:
        """Return the settings by name. A tensor as normalizer becomes None, because ranks cannot compare it."""
        named = self._asdict()
        return named | {"normalizer": None} if isinstance(self.normalizer, Tensor) else named


def remembered(check: Callable[..., T]) -> Callable[..., T]:
    """Cache a check of settings: a training loop repeats the same settings in each step."""
    cached = lru_cache(maxsize=256, typed=True)(check)

    def checked(*arguments: Any) -> T:
        if not torch.compiler.is_compiling():
            with suppress(TypeError):  # a setting without a hash; an error of the check is raised again
                return cached(*arguments)
        return check(*arguments)

    return checked


def settings_of(call: str, given: LossSettings) -> LossSettings:
    """Check the arguments of `call` and return them as settings, with the kind as a divergence."""
    # Two kinds of a user's class may compare equal and yet differ: only kullback's own kinds are remembered.
    is_ours = isinstance(given.kind, str) or not is_own(given.kind)
    settings = (_remembered_settings if is_ours else _settings)(call, *given._replace(normalizer=None))
    if given.normalizer is None:
        return settings
    check_normalizer(call, given.normalizer, settings.reduction)
    return settings._replace(normalizer=given.normalizer)


def _settings(call: str, *arguments: Any) -> LossSettings:
    settings = LossSettings(*arguments)
    kind = check_kind(call, settings.kind)
    check_temperature(call, settings.temperature)
    check_label_weight(call, settings.label_weight)
    check_reduction(call, settings.reduction)
    check_vocabulary(call, settings.vocabulary)
    check_flag(call, "temperature_squared", settings.temperature_squared)
    return settings._replace(kind=kind, classes=check_classes(call, settings.classes))


_remembered_settings = remembered(_settings)


def check_kind(call: str, kind: object) -> Divergence:
    """Return `kind` as a divergence; raise if it is not one, or is 0 for all distributions."""
    kind = as_divergence(call, kind)
    if kind.instead_of_zero is not None:
        raise invalid_value(
            call,
            "kind",
            wanted="a divergence that is not 0 for all distributions",
            got=safe_repr(kind),
            instead=f"kind={kind.instead_of_zero!r}",
        )
    return kind


def check_logits(call: str, name: str, x: object, *, beside: object = None) -> None:
    """Raise unless `x` is a dense tensor of logits. The error's remedy fits the other side's logits, `beside`."""
    if isinstance(x, Tensor):
        check_dense(call, name, x)
        if x.is_floating_point() and x.ndim > 0:
            return
    instead = f"{name}=model(inputs).logits"
    if hasattr(x, "logits"):
        instead = f"{name}={name}.logits"
    elif isinstance(beside, Tensor) and isinstance(x, list | tuple) and all(isinstance(e, Tensor) for e in x):
        instead = _remedy_for_parts(call, name, list(cast("list[Tensor]", x)), beside.shape[:-1]) or instead
    elif (made := tensor_remedy(name, x, floating=True)) is not None:
        instead = f"{name}={made}"
    raise invalid_type(
        call,
        name,
        wanted="a floating-point tensor of logits, shape (..., classes)",
        got=f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
        instead=instead,
    )


def _remedy_for_parts(call: str, name: str, parts: list[Tensor], positions: torch.Size) -> str | None:
    """Return the remedy for a list of tensors: join them, or average the losses."""
    to_float = "" if all(part.is_floating_point() for part in parts) else ".float()"
    for join in ("stack", "cat") if positions else ():
        with suppress(RuntimeError):
            if getattr(torch, join)([part.detach() for part in parts]).shape[:-1] == positions:
                return f"{name}=torch.{join}(tuple({name})){to_float}"
    if parts and all(part.shape[:-1] == positions for part in parts):
        other = "student" if name == "teacher" else "teacher"
        return f"sum({call}({other}={other}, {name}=each{to_float}) for each in {name}) / len({name})"
    return None


def check_any_class(call: str, name: str, classes: int) -> None:
    """Raise if there are no classes."""
    if classes == 0:
        raise invalid_value(
            call,
            name,
            wanted="one class or more",
            got="none",
            instead=f"{name}= with the classes in its {'first' if name.endswith('weight') else 'last'} dimension",
        )


def check_result_dtype(call: str, dtype: object) -> None:
    """Raise unless `dtype` is None or a floating-point dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in RESULT_DTYPES):
        raise invalid_type(
            call,
            "dtype",
            wanted="a floating-point dtype of torch, or None",
            got=safe_repr(dtype),
            instead="dtype=torch.float64",
        )


def check_temperature(call: str, temperature: object) -> None:
    """Raise unless `temperature` is a positive number."""
    if not _COLDEST <= number_from(temperature) <= 1 / _COLDEST:
        raise invalid_value(
            call,
            "temperature",
            wanted=f"a positive number, from {_COLDEST:g} to {1 / _COLDEST:g}",
            got=safe_repr(temperature),
            instead="temperature=2.0",
        )


def check_label_weight(call: str, label_weight: object) -> None:
    """Raise unless `label_weight` is a number from 0 to 1."""
    if not 0 <= number_from(label_weight) <= 1:
        raise invalid_value(
            call,
            "label_weight",
            wanted="a number from 0 to 1, the share of the cross-entropy with the labels",
            got=safe_repr(label_weight),
            instead="label_weight=0.5",
        )


def check_vocabulary(call: str, vocabulary: object) -> None:
    """Raise unless `vocabulary` is one of the three words."""
    if not isinstance(vocabulary, str) or vocabulary not in get_args(Vocabulary):
        raise invalid_value(
            call,
            "vocabulary",
            wanted="'error', 'truncate' or 'mask'",
            got=safe_repr(vocabulary),
            instead="vocabulary='truncate' to compare the classes that both have",
        )


def check_classes(call: str, classes: object, given: int | None = None) -> int | None:
    """Return `classes`; raise unless it is None or a positive integer, at most `given`."""
    number = whole_from(classes)
    if classes is not None and (number is None or not 0 < number <= (math.inf if given is None else given)):
        most = "" if given is None else f", at most {given}"
        raise invalid_value(
            call,
            "classes",
            wanted=f"the number of classes without padding{most}, or None",
            got=safe_repr(classes),
            instead="classes=len(tokenizer), or None if no class is padding",
        )
    return number


def check_normalizer(call: str, normalizer: Tensor | float | None, word: str) -> None:
    """Raise unless a normalizer is a positive number, and the reduction is not ``"none"``."""
    if normalizer is None:
        return
    if word == "none":
        raise invalid_value(
            call,
            "normalizer",
            wanted="no normalizer with reduction='none', which does not divide",
            got=f"{type(normalizer).__name__}",
            instead="reduction='sum' with it, or reduction='none' without",
        )
    if isinstance(normalizer, Tensor):
        check_dense(call, "normalizer", normalizer)
        # Reading a value on an accelerator would synchronize.
        is_readable = can_inspect(normalizer) and normalizer.is_cpu and not normalizer.is_complex()
        is_scalar = normalizer.numel() == 1 and not normalizer.is_complex()
        good = is_scalar and (not is_readable or 0 < normalizer.item() < math.inf)
        got = (
            f"{normalizer.item()}"
            if is_readable and normalizer.numel() == 1
            else f"dtype {normalizer.dtype}, shape {tuple(normalizer.shape)}"
        )
    else:
        good, got = 0 < number_from(normalizer) < math.inf, safe_repr(normalizer)
    if not good:
        raise invalid_value(
            call,
            "normalizer",
            wanted="a positive number, such as the number of counted positions of a step",
            got=got,
            instead="normalizer=None to divide by this call's positions, or normalizer=mask.sum().clamp(min=1)",
        )


def warn_of_empty_mask(call: str, mask: Tensor) -> None:
    """Warn if a mask excludes all rows: the result is then 0 or NaN, whatever the rows are.

    Only on the CPU, because reading the mask on an accelerator would synchronize, and not while compiling.
    """
    if mask.device.type == "cpu" and mask.numel() > 0 and can_inspect(mask) and not bool(mask.any()):
        warnings.warn(
            f"{call}(mask=...): the mask is False everywhere, so no position counts. True means that a position "
            "counts: mask=attention_mask.bool()",
            stacklevel=4,
        )


def position_weights(
    call: str,
    positions: torch.Size,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor | None:
    """Return the weight of each position, 0 where it does not count; None if all weights are 1.

    The dtype is `dtype`, or the dtype of `weight` if it is more precise.
    """
    ignore_index = check_ignore_index(call, ignore_index)
    if mask is weight is labels is None:
        return None
    mask, weight, labels = (
        None if x is None else _of_positions(call, name, x, positions, device)
        for name, x in (("mask", mask), ("weight", weight), ("labels", labels))
    )
    if mask is not None and mask.dtype != torch.bool:
        raise invalid_type(
            call,
            "mask",
            wanted="a boolean tensor",
            got=f"dtype {mask.dtype}",
            instead="mask=mask != 0",
        )
    if mask is not None:
        warn_of_empty_mask(call, mask)
    if labels is not None and (
        labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool
    ):
        raise invalid_type(
            call,
            "labels",
            wanted="integers, the true classes",
            got=f"dtype {labels.dtype}",
            instead="labels=labels.long()",
        )
    weights = None if weight is None else weight.to(torch.promote_types(weight.dtype, dtype))
    for counted in (mask, None if labels is None else labels != ignore_index):
        if counted is not None:
            weights = counted.to(dtype) if weights is None else torch.where(counted, weights, 0)
    if weight is not None and weights is not None:
        _check_weights(call, weights)
    return weights


def hard_labels(
    call: str,
    labels: Tensor | None,
    label_weight: float,
    weights: Tensor | None,
    scale: float,
) -> HardLabels | None:
    """Return the labels to mix in, for divergences multiplied by `scale`; None if their weight is 0.

    `check_labels` checks that they are classes.
    """
    if label_weight == 0:
        return None
    if labels is None:
        raise invalid_value(
            call,
            "labels",
            wanted="the true class of each position, because label_weight is not 0",
            got="None",
            instead="labels=labels, with ignore_index at positions without a label; or label_weight=0.0",
        )
    chosen = labels.reshape(-1).long()
    if weights is not None:  # positions that do not count may have any label
        chosen = torch.where(weights.reshape(-1) == 0, 0, chosen)
    return HardLabels(chosen, (1 - label_weight) * scale, float(label_weight))


def check_labels(call: str, hard: HardLabels | None, positions: torch.Size, classes: int) -> None:
    """Raise unless the labels at the positions that count are below the number of classes."""
    if hard is None or not (can_inspect(hard.classes) and hard.classes.is_cpu):
        return  # reading labels on an accelerator would synchronize
    wrong = (hard.classes < 0) | (hard.classes >= classes)
    if bool(wrong.any()):
        raise invalid_value(
            call,
            "labels",
            wanted=f"classes from 0 to {classes - 1} at the positions that count",
            got=f"{int(hard.classes[wrong][0])} ({first_of(wrong.reshape(positions))})",
            instead="ignore_index= set to the label of positions without a true class, or mask= without them",
        )


def check_ignore_index(call: str, ignore_index: object) -> int:
    """Return `ignore_index`; raise unless it is an integer that labels can have."""
    number = ignore_index if type(ignore_index) is int else whole_from(ignore_index)
    if number is None or not -(2**63) <= number < 2**63:
        raise invalid_type(
            call,
            "ignore_index",
            wanted="an integer of 64 bits",
            got=safe_repr(ignore_index),
            instead="ignore_index=-100",
        )
    return number


def _check_weights(call: str, weights: Tensor) -> None:
    """Raise if a position that counts has a negative, infinite or NaN weight."""
    is_readable = can_inspect(weights) and weights.is_cpu  # on an accelerator, reading would synchronize
    wrong = ~((weights >= 0) & (weights < math.inf)) if is_readable and not weights.is_complex() else None
    if weights.is_complex() or (wrong is not None and bool(wrong.any())):
        raise invalid_value(
            call,
            "weight",
            wanted="finite numbers, none negative, at the positions that count",
            got=f"dtype {weights.dtype}"
            if wrong is None
            else f"{float(weights[wrong][0])} ({first_of(wrong)})",
            instead="weight=weight.nan_to_num(0.0, 0.0, 0.0).clamp(min=0), or mask= for positions that do not count",
        )


def _of_positions(
    call: str, name: str, tensor: object, positions: torch.Size, device: torch.device
) -> Tensor:
    """Return a tensor with a value for each position, or raise."""
    if not isinstance(tensor, Tensor):
        made = tensor_remedy(name, tensor, floating=False)
        instead = f"{name} of shape {tuple(positions)}" if made is None else f"{name}={made}"
        raise invalid_type(call, name, wanted="a tensor", got=type(tensor).__name__, instead=instead)
    tensor = dense(call, name, tensor)
    if tensor.shape != positions:
        raise invalid_value(
            call,
            name,
            wanted=f"a value for each position, shape {tuple(positions)}",
            got=f"shape {tuple(tensor.shape)}",
            instead=_fitting(name, tensor, positions),
        )
    _check_device(call, name, tensor, device)
    return tensor


def _check_device(call: str, name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise invalid_value(
            call,
            name,
            wanted=f"a tensor on {device}, where the positions are",
            got=f"one on {tensor.device}",
            instead=f"{name}={name}.to({str(device)!r})",
        )


def _fitting(name: str, tensor: Tensor, positions: torch.Size) -> str:
    """Return the remedy for a tensor whose shape is not the shape of the positions."""
    if tensor.ndim == len(positions) > 0 and tensor.shape[-1] == positions[-1] + 1:
        return f"{name}={name}[..., 1:], because the logits of a position predict the next token"
    if tensor.ndim <= len(positions) and all(
        a in (1, b) for a, b in zip(reversed(tensor.shape), reversed(positions), strict=False)
    ):
        return f"{name}={name}.expand({tuple(positions)})"
    if tensor.ndim == 2 and tensor.shape == positions[::-1]:
        return f"{name}={name}.T"
    # For other shapes with as many entries, reshape would assign values to wrong positions.
    if tensor.numel() == positions.numel() and (tensor.ndim == 1 or _long(tensor.shape) == _long(positions)):
        return f"{name}={name}.reshape({tuple(positions)})"
    return f"{name} of shape {tuple(positions)}"


def _long(shape: torch.Size) -> list[int]:
    """Return the sizes that are not 1."""
    return [size for size in shape if size != 1]


def divided(
    call: str,
    weights: Tensor | None,
    normalizer: Tensor | float | None,
    word: Reduction,
    positions: torch.Size,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor | None, float]:
    """Divide the weights by the divisor of `word` or by the normalizer; return weights and a common factor."""
    if isinstance(normalizer, Tensor):
        if not normalizer.is_cpu:  # a scalar on the CPU can divide tensors on any device
            _check_device(call, "normalizer", normalizer, device)
        divisor = recordable(normalizer).to(torch.promote_types(normalizer.dtype, dtype)).reshape(())
        shares = (torch.ones(positions, dtype=dtype, device=device) if weights is None else weights) / divisor
        return shares if weights is None else torch.where(weights == 0, 0, shares), 1.0
    if normalizer is not None:
        return weights, 1 / float(normalizer)
    if word == "mean" and weights is not None:
        if weights.numel():  # large weights must not overflow in the sum, nor small ones lose digits
            peak = weights.detach().amax()
            weights = weights / torch.where(peak == 0, 1, peak)
        counted = weights.sum()
        return weights / torch.where(counted == 0, 1, counted), 1.0
    divisor = {"mean": positions.numel(), "batchmean": positions[0] if positions else 1}.get(word, 1)
    return weights, 1 / max(divisor, 1)
