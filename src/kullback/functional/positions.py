"""The arguments that the losses over positions share: which positions count, how much, and what is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError, explain
from kullback.generators import Divergence
from kullback.reduction import Reduction

__all__ = ["check_kind", "check_normalizer", "check_temperature", "divided", "position_weights"]


def check_kind(call: str, kind: object) -> None:
    """Raise unless `kind` is a divergence."""
    if not isinstance(kind, Divergence):
        raise ArgumentTypeError(
            explain(
                call,
                "kind",
                wanted="a divergence",
                got=repr(kind),
                instead="kind=KL() or another of kullback's kinds",
            )
        )


def check_temperature(call: str, temperature: float) -> None:
    """Raise unless `temperature` is a positive number."""
    if not 0 < temperature < math.inf:
        raise ArgumentValueError(
            explain(
                call,
                "temperature",
                wanted="a positive number",
                got=repr(temperature),
                instead="temperature=2.0",
            )
        )


def check_normalizer(call: str, normalizer: Tensor | float | None, word: str) -> None:
    """Raise if a normalizer comes with the reduction that divides by nothing."""
    if normalizer is not None and word == "none":
        raise ArgumentValueError(
            explain(
                call,
                "normalizer",
                wanted="none with reduction='none', which divides by nothing",
                got=f"{type(normalizer).__name__}",
                instead="reduction='sum' with it, or reduction='none' without",
            )
        )


def position_weights(
    call: str,
    positions: torch.Size,
    mask: Tensor | None,
    weight: Tensor | None,
    labels: Tensor | None,
    ignore_index: int,
) -> Tensor | None:
    """Multiply what the arguments say of each position; None where all count alike."""
    for name, given in (("mask", mask), ("weight", weight), ("labels", labels)):
        if given is not None and given.shape != positions:
            raise ArgumentValueError(
                explain(
                    call,
                    name,
                    wanted=f"a value for each position, shape {tuple(positions)}",
                    got=f"shape {tuple(given.shape)}",
                    instead=f"{name}={name}.expand({tuple(positions)}) or {name}.reshape(...)",
                )
            )
    if mask is not None and mask.dtype != torch.bool:
        raise ArgumentTypeError(
            explain(
                call,
                "mask",
                wanted="a boolean tensor",
                got=f"dtype {mask.dtype}",
                instead="mask=mask.bool(), or weight=mask",
            )
        )
    weights = None if weight is None else weight.to(torch.promote_types(weight.dtype, torch.float32))
    for counted in (mask, None if labels is None else labels != ignore_index):
        if counted is not None:
            weights = counted.float() if weights is None else torch.where(counted, weights, 0)
    return weights


def divided(
    weights: Tensor | None, normalizer: Tensor | float | None, word: Reduction, positions: torch.Size
) -> tuple[Tensor | None, float]:
    """Put what the sum over positions is divided by into their weights and a factor of all."""
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
