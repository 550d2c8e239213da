"""Draws from torch's distributions with a separate seed; the global generators do not change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class DrawsFrom(TorchDispatchMode):
    """A context that makes random operations of torch use separate generators, one per device, with a given seed.

    Arguments:
        seed: the seed of the generators.

    Example:
        >>> before = torch.get_rng_state()
        >>> with DrawsFrom(0):
        ...     x = torch.distributions.Gamma(2.0, 1.0).sample((3,))
        >>> with DrawsFrom(0):
        ...     y = torch.distributions.Gamma(2.0, 1.0).sample((3,))
        >>> torch.equal(x, y), torch.equal(before, torch.get_rng_state())
        (True, True)
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        drawn = _with_generator(func)
        if drawn is None or any(isinstance(x, torch.Generator) for x in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return drawn(*args, **{**kwargs, "generator": self._generators[device]})


def _with_generator(func: Any) -> Any:
    """Return the overload of a random operation that takes a generator, or None for other operations."""
    if any(argument.name == "generator" for argument in func._schema.arguments):  # noqa: SLF001
        return func
    packet, name = func.overloadpacket, func._overloadname  # noqa: SLF001
    other = "generator" if name == "default" else f"{name}_generator"
    return getattr(packet, other) if other in packet.overloads() else None
