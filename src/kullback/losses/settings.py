"""The settings of the losses over positions: named tuples of settings, and the checks of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import torch

from kullback.common.constraints import FLAG, Arguments, Number, OneOf, Whole
from kullback.common.inputs import number_from
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators import Divergence, as_divergence
from kullback.losses.reduction import REDUCTION, Reduction

# The smallest allowed temperature; its reciprocal is the largest. At a lower temperature, the logits divided by the
# temperature may overflow float32. At a higher temperature, the squared temperature may overflow.
_MIN_TEMPERATURE = 1e-16

_RESULT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

T = TypeVar("T")
Vocabulary: TypeAlias = Literal["error", "truncate", "mask"]
EachSide: TypeAlias = float | tuple[float | None, float | None] | None


def remembered(check: Callable[..., T]) -> Callable[..., T]:
    """Return `check` with a cache of its results. A training loop checks the same settings in each step."""
    cached = lru_cache(maxsize=256, typed=True)(check)

    def checked(*arguments: Any) -> T:
        if not torch.compiler.is_compiling():
            # If an argument is not hashable, the cache raises a TypeError, and the check runs without the cache. If the
            # check itself raises the TypeError, the call without the cache raises it again.
            with suppress(TypeError):
                return cached(*arguments)
        return check(*arguments)

    return checked


ARGUMENTS = Arguments(
    "distillation_loss",
    "DistillationLoss",
    "linear_distillation_loss",
    "LinearDistillationLoss",
    temperature=Number(
        least=_MIN_TEMPERATURE,
        most=1 / _MIN_TEMPERATURE,
        wanted=f"a positive number, from {_MIN_TEMPERATURE:g} to {1 / _MIN_TEMPERATURE:g}",
        example=2.0,
    ),
    label_weight=Number(
        least=0, most=1, note=", the share of the cross-entropy with the labels", example=0.5
    ),
    reduction=REDUCTION,
    vocabulary=OneOf(
        get_args(Vocabulary),
        example="truncate",
        instead="vocabulary='truncate' to compare the classes that both have",
    ),
    temperature_squared=FLAG,
    classes=Whole(
        least=1,
        wanted="the number of classes without padding, or None",
        example=3,
        instead="classes=len(tokenizer), or None if no class is padding",
        optional=True,
    ),
    ignore_index=Whole(least=-(2**63), wanted="an integer of 64 bits", example=-100, strict=True),
)
# These objects check the arguments of functions that take only some of the arguments above.
_TEMPERATURE = Arguments("top_k_divergence", temperature=ARGUMENTS.constraints["temperature"])
_CLASSES = Arguments("top_k_divergence_bounds", classes=ARGUMENTS.constraints["classes"])
HEAD_ARGUMENTS = Arguments(
    "linear_distillation_loss",
    "LinearDistillationLoss",
    float32_logits=FLAG,
    return_entropy=FLAG,
    chunk_bytes=Whole(
        least=1,
        wanted="a positive whole number of bytes, or None",
        example=64 << 20,
        instead="chunk_bytes=64 << 20",
        optional=True,
    ),
)


class LossSettings(NamedTuple):
    """The settings that both distillation losses have. The settings are equal on all ranks of a group."""

    kind: Any  # a `Divergence`, once `check` has run
    temperature: float
    reduction: Reduction
    temperature_squared: bool
    ignore_index: int
    vocabulary: Vocabulary
    label_weight: float
    classes: int | None

    def checked(self, call: str) -> LossSettings:
        """Return the checked settings with a `Divergence` as `kind`. Errors name the function `call`."""
        settings = _checked_settings(call, *self)
        if isinstance(self.kind, str) or settings.kind is self.kind:
            return settings
        # The cache may return a kind that is equal to `self.kind` but another object, because a user's class may define
        # equality.
        return settings._replace(kind=check_kind(call, self.kind))


@remembered
def _checked_settings(call: str, *fields: Any) -> LossSettings:
    settings = LossSettings(*fields)
    kind = check_kind(call, settings.kind)
    numbers = ARGUMENTS.check(call, **settings._asdict())
    return settings._replace(kind=kind, **numbers)


class HeadSettings(NamedTuple):
    """The settings of `linear_distillation_loss` that `distillation_loss` does not have."""

    softcap: Any  # after the check a pair (the student's, the teacher's), each a number or None
    logit_scale: Any
    chunk_bytes: int | None
    float32_logits: bool
    return_entropy: bool

    def checked(self, call: str) -> HeadSettings:
        """Return the checked settings, with pairs (the student's, the teacher's). Errors name `call`."""
        return _checked_heads(call, *self)


@remembered
def _checked_heads(call: str, *fields: Any) -> HeadSettings:
    settings = HeadSettings(*fields)
    checked = HEAD_ARGUMENTS.check(call, **settings._asdict())
    caps = _each_side(call, "softcap", settings.softcap, 30.0)
    scales = _each_side(call, "logit_scale", settings.logit_scale, 0.0625)
    return settings._replace(softcap=caps, logit_scale=scales, chunk_bytes=checked["chunk_bytes"])


def _each_side(call: str, name: str, value: Any, example: float) -> tuple[float | None, float | None]:
    """Return the pair (the student's, the teacher's) of a setting. Each is a number or None."""
    pair: Any = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or not all(x is None or 0 < number_from(x) < math.inf for x in pair):
        wanted = "a positive number or None, or a pair of these for student and teacher"
        raise _invalid(call, name, value, wanted, f"{name}={example} or {name}=(None, {example})")
    student, teacher = (None if x is None else float(x) for x in pair)
    return student, teacher


def _invalid(call: str, name: str, value: object, wanted: str, instead: str) -> Exception:
    return invalid_value(call, name, wanted=wanted, got=safe_repr(value), instead=instead)


def check_kind(call: str, kind: object) -> Divergence:
    """Return `kind` as a `Divergence`. Raise if it is not a divergence, or is 0 for all distributions."""
    kind = as_divergence(call, kind)
    if kind.instead_of_zero is not None:
        wanted = "a divergence that is not identically 0"
        raise _invalid(call, "kind", kind, wanted, f"kind={kind.instead_of_zero!r}")
    return kind


def check_additive(call: str, kind: Divergence, instead: str) -> None:
    """Raise unless `kind` is a sum over classes."""
    if not kind.additive:
        raise _invalid(call, "kind", kind, "a divergence that is a sum over classes", instead)


def check_result_dtype(call: str, dtype: object) -> None:
    """Raise unless `dtype` is None or a floating-point dtype."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype in _RESULT_DTYPES):
        wanted = "a floating-point dtype of torch, or None"
        raise invalid_type(call, "dtype", wanted=wanted, got=safe_repr(dtype), instead="dtype=torch.float64")


def check_classes(call: str, classes: object, available: int | None = None) -> int | None:
    """Return `classes`. Raise unless `classes` is None, or a positive integer of at most `available`."""
    number = ARGUMENTS.check(call, classes=classes)["classes"]
    if available is not None and number is not None and number > available:
        wanted = f"the number of classes without padding, at most {available}, or None"
        instead = "classes=len(tokenizer), or None if no class is padding"
        raise _invalid(call, "classes", classes, wanted, instead)
    return number
