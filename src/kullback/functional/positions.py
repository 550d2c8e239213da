"""Checks and weights that the losses over positions share: kind, temperature, mask, weight, labels, normalizer."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, TypeGuard, get_args

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.generators import Divergence
from kullback.reduction import Reduction
from kullback.representations import can_inspect, first_of

__all__ = [
    "Vocabulary",
    "check_kind",
    "check_normalizer",
    "check_temperature",
    "check_vocabulary",
    "divided",
    "position_weights",
]

Vocabulary: TypeAlias = Literal["error", "truncate", "mask"]


def check_kind(call: str, kind: object) -> None:
    """Raise unless `kind` is a divergence that is not 0 for all distributions."""
    if not isinstance(kind, Divergence):
        raise invalid_type(
            call,
            "kind",
            wanted="a divergence",
            got=repr(kind),
            instead="kind=KL() or another of kullback's kinds",
        )
    if kind.instead_of_zero is not None:
        raise invalid_value(
            call,
            "kind",
            wanted="a divergence that is not 0 whatever the distributions are",
            got=repr(kind),
            instead=f"kind={kind.instead_of_zero!r}",
        )


def check_temperature(call: str, temperature: object) -> None:
    """Raise unless `temperature` is a positive number."""
    if not _is_positive(temperature):
        raise invalid_value(
            call,
            "temperature",
            wanted="a positive number",
            got=repr(temperature),
            instead="temperature=2.0",
        )


def _is_positive(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and 0 < x < math.inf


def check_vocabulary(call: str, vocabulary: object) -> None:
    """Raise unless `vocabulary` is one of its three words."""
    if vocabulary not in get_args(Vocabulary):
        raise invalid_value(
            call,
            "vocabulary",
            wanted="'error', 'truncate' or 'mask'",
            got=repr(vocabulary),
            instead="vocabulary='truncate' to compare the classes both have",
        )


def check_normalizer(call: str, normalizer: object, word: Reduction) -> None:
    """Raise unless a normalizer is a positive number, or one tensor of it, for a reduction that divides."""
    if normalizer is None:
        return
    if word == "none":
        raise invalid_value(
            call,
            "normalizer",
            wanted="none with reduction='none', which divides by nothing",
            got=f"{type(normalizer).__name__}",
            instead="reduction='sum' with it, or reduction='none' without",
        )
    if isinstance(normalizer, Tensor) and normalizer.numel() == 1 and not normalizer.is_complex():
        if not can_inspect(normalizer):
            return
        is_good = _is_positive(float(normalizer))
    else:
        is_good = _is_positive(normalizer)
    if not is_good:
        raise invalid_value(
            call,
            "normalizer",
            wanted="a positive number, or a tensor of one",
            got=f"shape {tuple(normalizer.shape)}" if _is_many(normalizer) else repr(normalizer),
            instead="normalizer=mask.sum().clamp(min=1), such as the number of counted positions of a whole step",
        )


def _is_many(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.numel() != 1


def position_weights(
    call: str,
    positions: torch.Size,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor | None:
    """Return the weight of each position, 0 where it does not count; None where all weigh 1.

    They are of `dtype`, or of that of `weight` if it is more exact.
    """
    for name, given in (("mask", mask), ("weight", weight), ("labels", labels)):
        if given is not None:
            _check_positions(call, name, given, positions)
    if mask is not None and mask.dtype != torch.bool:
        raise invalid_type(
            call,
            "mask",
            wanted="a boolean tensor",
            got=f"dtype {mask.dtype}",
            instead="mask=mask.bool(), or weight=mask",
        )
    weights = None if weight is None else weight.to(torch.promote_types(weight.dtype, dtype))
    for counted in (mask, None if labels is None else labels != ignore_index):
        if counted is not None:
            weights = counted.to(dtype) if weights is None else torch.where(counted, weights, 0)
    if weight is not None and weights is not None and can_inspect(weights):
        wrong = ~((weights >= 0) & (weights < math.inf))
        if bool(wrong.any()):
            raise invalid_value(
                call,
                "weight",
                wanted="finite numbers, none negative, at the positions that count",
                got=f"{float(weights[wrong][0])} ({first_of(wrong)})",
                instead="weight=weight.clamp(min=0), or mask= for positions that do not count",
            )
    return weights


def _check_positions(call: str, name: str, given: object, positions: torch.Size) -> None:
    """Raise unless there is a value for each position."""
    if isinstance(given, Tensor) and given.shape == positions:
        return
    got = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    instead = f"{name} of shape {tuple(positions)}"
    if (
        isinstance(given, Tensor)
        and given.ndim == len(positions) > 0
        and given.shape[-1] == positions[-1] + 1
    ):
        instead = f"{name}={name}[..., 1:], as the logits of a position are those of the token after it"
    raise invalid_value(
        call, name, wanted=f"a value for each position, shape {tuple(positions)}", got=got, instead=instead
    )


def divided(
    weights: Tensor | None,
    normalizer: Tensor | float | None,
    word: Reduction,
    positions: torch.Size,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor | None, float]:
    """Divide the weights of the positions by what `word` or the normalizer says: return weights and a common factor."""
    if isinstance(normalizer, Tensor):
        if weights is None:
            weights = torch.ones(positions, dtype=dtype, device=normalizer.device)
        return weights / normalizer.to(torch.promote_types(weights.dtype, dtype)).reshape(()), 1.0
    if normalizer is not None:
        return weights, 1 / normalizer
    if word == "mean" and weights is not None:
        counted = weights.sum()
        return weights / torch.where(counted == 0, 1, counted), 1.0
    divisor = {"mean": positions.numel(), "batchmean": positions[0] if positions else 1}.get(word, 1)
    return weights, 1 / max(divisor, 1)
