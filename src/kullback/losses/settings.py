"""The settings of the losses over positions: records, checked once, and the checks of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import torch

from kullback.common.inputs import check_flag, number_from, whole_from
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators import Divergence, as_divergence
from kullback.losses.reduction import Reduction, check_reduction

# Logits divided by a smaller temperature, and the square of a larger one, overflow float32.
_MIN_TEMPERATURE = 1e-16

_RESULT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

T = TypeVar("T")
Vocabulary: TypeAlias = Literal["error", "truncate", "mask"]
EachSide: TypeAlias = float | tuple[float | None, float | None] | None


def remembered(check: Callable[..., T]) -> Callable[..., T]:
    """Cache a check of settings: a training loop repeats the same settings in each step."""
    cached = lru_cache(maxsize=256, typed=True)(check)

    def checked(*arguments: Any) -> T:
        if not torch.compiler.is_compiling():
            with suppress(TypeError):  # a setting without a hash; an error of the check is raised again
                return cached(*arguments)
        return check(*arguments)

    return checked


class LossSettings(NamedTuple):
    """The settings of both distillation losses, which are equal on all ranks of a group."""

    kind: Any  # a Divergence once it is checked
    temperature: float
    reduction: Reduction
    temperature_squared: bool
    ignore_index: int
    vocabulary: Vocabulary
    label_weight: float
    classes: int | None

    def checked(self, call: str) -> LossSettings:
        """Return the settings with the kind as a divergence; raise an error that names `call` if one is invalid."""
        settings = _checked_settings(call, *self)
        if isinstance(self.kind, str) or settings.kind is self.kind:
            return settings
        # Kinds of a user's class may be equal and yet differ.
        return settings._replace(kind=check_kind(call, self.kind))


@remembered
def _checked_settings(call: str, *fields: Any) -> LossSettings:
    settings = LossSettings(*fields)
    kind = check_kind(call, settings.kind)
    check_temperature(call, settings.temperature)
    if not 0 <= number_from(settings.label_weight) <= 1:
        wanted = "a number from 0 to 1, the share of the cross-entropy with the labels"
        raise _invalid(call, "label_weight", settings.label_weight, wanted, "label_weight=0.5")
    check_reduction(call, settings.reduction)
    vocabulary: object = settings.vocabulary
    if not (isinstance(vocabulary, str) and vocabulary in get_args(Vocabulary)):
        instead = "vocabulary='truncate' to compare the classes that both have"
        raise _invalid(call, "vocabulary", vocabulary, "'error', 'truncate' or 'mask'", instead)
    check_flag(call, "temperature_squared", settings.temperature_squared)
    classes, ignored = check_classes(call, settings.classes), check_ignore_index(call, settings.ignore_index)
    return settings._replace(kind=kind, classes=classes, ignore_index=ignored)


class HeadSettings(NamedTuple):
    """The settings of `linear_distillation_loss` that `distillation_loss` does not have."""

    softcap: Any  # pairs of numbers or None for student and teacher, once they are checked
    logit_scale: Any
    chunk_bytes: int | None
    float32_logits: bool
    return_entropy: bool

    def checked(self, call: str) -> HeadSettings:
        """Return the settings with a pair for each side; raise an error that names `call` if one is invalid."""
        return _checked_heads(call, *self)


@remembered
def _checked_heads(
    call: str, softcap: object, scale: object, chunk_bytes: object, in_float32: bool, return_entropy: bool
) -> HeadSettings:
    check_flag(call, "float32_logits", in_float32)
    check_flag(call, "return_entropy", return_entropy)
    caps, scales = _each_side(call, "softcap", softcap, 30.0), _each_side(call, "logit_scale", scale, 0.0625)
    number = whole_from(chunk_bytes)
    if chunk_bytes is not None and (number is None or number <= 0):
        wanted = "a positive whole number of bytes, or None"
        raise _invalid(call, "chunk_bytes", chunk_bytes, wanted, "chunk_bytes=64 << 20")
    return HeadSettings(caps, scales, number, in_float32, return_entropy)


def _each_side(call: str, name: str, value: Any, example: float) -> tuple[float | None, float | None]:
    """Return a number for the student and one for the teacher."""
    pair: Any = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or not all(x is None or 0 < number_from(x) < math.inf for x in pair):
        wanted = "a positive number or None, or a pair of these for student and teacher"
        raise _invalid(call, name, value, wanted, f"{name}={example} or {name}=(None, {example})")
    student, teacher = (None if x is None else float(x) for x in pair)
    return student, teacher


def _invalid(call: str, name: str, value: object, wanted: str, instead: str) -> Exception:
    return invalid_value(call, name, wanted=wanted, got=safe_repr(value), instead=instead)


def check_kind(call: str, kind: object) -> Divergence:
    """Return `kind` as a divergence; raise if it is not one, or is 0 for all distributions."""
    kind = as_divergence(call, kind)
    if kind.instead_of_zero is not None:
        wanted = "a divergence that is not 0 for all distributions"
        raise _invalid(call, "kind", kind, wanted, f"kind={kind.instead_of_zero!r}")
    return kind


def check_result_dtype(call: str, dtype: object) -> None:
    """Raise unless `dtype` is None or a floating-point dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in _RESULT_DTYPES):
        wanted = "a floating-point dtype of torch, or None"
        raise invalid_type(call, "dtype", wanted=wanted, got=safe_repr(dtype), instead="dtype=torch.float64")


def check_temperature(call: str, temperature: object) -> None:
    """Raise unless `temperature` is a positive number."""
    least, most = _MIN_TEMPERATURE, 1 / _MIN_TEMPERATURE
    if not least <= number_from(temperature) <= most:
        wanted = f"a positive number, from {least:g} to {most:g}"
        raise _invalid(call, "temperature", temperature, wanted, "temperature=2.0")


def check_classes(call: str, classes: object, available: int | None = None) -> int | None:
    """Return `classes`; raise unless it is None or a positive integer, at most `available`."""
    number, most = whole_from(classes), math.inf if available is None else available
    if classes is not None and (number is None or not 0 < number <= most):
        at_most = "" if available is None else f", at most {available}"
        wanted = f"the number of classes without padding{at_most}, or None"
        instead = "classes=len(tokenizer), or None if no class is padding"
        raise _invalid(call, "classes", classes, wanted, instead)
    return number


def check_ignore_index(call: str, ignore_index: object) -> int:
    """Return `ignore_index`; raise unless it is an integer that labels can have."""
    number = whole_from(ignore_index)
    if number is None or not -(2**63) <= number < 2**63:
        got, instead = safe_repr(ignore_index), "ignore_index=-100"
        raise invalid_type(call, "ignore_index", wanted="an integer of 64 bits", got=got, instead=instead)
    return number
