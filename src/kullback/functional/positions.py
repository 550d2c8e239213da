"""Checks and weights that the losses over positions share: kind, temperature, mask, weight, labels, normalizer."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.generators import Divergence
from kullback.reduction import Reduction

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
    """Raise unless `kind` is a divergence."""
    if not isinstance(kind, Divergence):
        raise invalid_type(
            call,
            "kind",
            wanted="a divergence",
            got=repr(kind),
            instead="kind=KL() or another of kullback's kinds",
        )


def check_temperature(call: str, temperature: float) -> None:
    """Raise unless `temperature` is a positive number."""
    if not 0 < temperature < math.inf:
        raise invalid_value(
            call,
            "temperature",
            wanted="a positive number",
            got=repr(temperature),
            instead="temperature=2.0",
        )


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


def check_normalizer(call: str, normalizer: Tensor | float | None, word: str) -> None:
    """Raise if there is a normalizer with ``reduction="none"``, which divides by nothing."""
    if normalizer is not None and word == "none":
        raise invalid_value(
            call,
            "normalizer",
            wanted="none with reduction='none', which divides by nothing",
            got=f"{type(normalizer).__name__}",
            instead="reduction='sum' with it, or reduction='none' without",
        )


def position_weights(
    call: str,
    positions: torch.Size,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
) -> Tensor | None:
    """Return the weight of each position, 0 where it does not count; None where all weigh 1."""
    for name, given in (("mask", mask), ("weight", weight), ("labels", labels)):
        if given is not None and given.shape != positions:
            raise invalid_value(
                call,
                name,
                wanted=f"a value for each position, shape {tuple(positions)}",
                got=f"shape {tuple(given.shape)}",
                instead=f"{name}={name}.expand({tuple(positions)}) or {name}.reshape(...)",
            )
    if mask is not None and mask.dtype != torch.bool:
        raise invalid_type(
            call,
            "mask",
            wanted="a boolean tensor",
            got=f"dtype {mask.dtype}",
            instead="mask=mask.bool(), or weight=mask",
        )
    weights = None if weight is None else weight.to(torch.promote_types(weight.dtype, torch.float32))
    for counted in (mask, None if labels is None else labels != ignore_index):
        if counted is not None:
            weights = counted.float() if weights is None else torch.where(counted, weights, 0)
    return weights


def divided(
    weights: Tensor | None, normalizer: Tensor | float | None, word: Reduction, positions: torch.Size
) -> tuple[Tensor | None, float]:
    """Divide the weights of the positions by what `word` or the normalizer says: return weights and a common factor."""
    if isinstance(normalizer, Tensor):
        ones = torch.ones(positions, device=normalizer.device) if weights is None else weights
        return ones / normalizer, 1.0
    if normalizer is not None:
        return weights, 1 / normalizer
    if word == "mean" and weights is not None:
        counted = weights.sum()
        return weights / torch.where(counted == 0, 1, counted), 1.0
    divisor = {"mean": positions.numel(), "batchmean": positions[0] if positions else 1}.get(word, 1)
    return weights, 1 / max(divisor, 1)
