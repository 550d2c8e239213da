"""Draws from torch's distributions with a separate seed, and quasi-random draws, which fill space evenly.

Quasi-random draws are functions of normal numbers. They consist of several independently scrambled Sobol sequences.
Each sequence gives an unbiased estimate, and the differences between the estimates give the standard error.
On the Distribution of Points in a Cube and the Approximate Evaluation of Integrals (Sobol, 1967)
Scrambling Sobol and Niederreiter-Xing Points (Owen, 1998)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)
from torch.quasirandom import SobolEngine
from torch.utils._python_dispatch import TorchDispatchMode

from kullback.pairs.family import overrides


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


def drawing_from(generator: torch.Generator | None) -> AbstractContextManager[object]:
    """Return a context whose draws have a seed from the generator; by default, they come from torch's own generator."""
    if generator is None:
        return nullcontext()
    return DrawsFrom(int(torch.randint(2**62, (), generator=generator, device=generator.device)))


def _with_generator(func: Any) -> Any:
    """Return the overload of a random operation that takes a generator, or None for other operations."""
    if any(argument.name == "generator" for argument in func._schema.arguments):  # noqa: SLF001
        return func
    packet, name = func.overloadpacket, func._overloadname  # noqa: SLF001
    other = "generator" if name == "default" else f"{name}_generator"
    return getattr(packet, other) if other in packet.overloads() else None


SEQUENCES = 16
"""The number of independent sequences. A standard error from 16 means has a relative error of 1 / sqrt(30) = 18 %."""
# _LEAST is the smallest length of a sequence. If there are too few draws for this length, all draws are random.
_LEAST = 8
# torch's Sobol numbers are multiples of 2^-30, and 2^-31 is added so that no number is 0.
_HALF_STEP = 2.0**-31


def quasi_draws(p: Distribution, count: int) -> Tensor | None:
    """Return at most `count` differentiable draws of shape (draws, ..., event), or None without quasi-random draws.

    Draw i belongs to sequence i % SEQUENCES. All batch elements use the same normal numbers.
    """
    if any(overrides(p, method) for method in ("log_prob", "sample", "rsample")):
        return None
    if isinstance(p, TransformedDistribution):
        x = quasi_draws(p.base_dist, count)
        for transform in p.transforms if x is not None else []:
            x = transform(x)
        return x
    recipe = _recipe(p)
    if recipe is None:
        return None
    size, draws = recipe
    z = _normal_numbers(count, size)
    return None if z is None else draws(z)


def _recipe(p: Distribution) -> tuple[int, Callable[[Tensor], Tensor]] | None:
    """Return how many normal numbers a draw takes and a function from them to draws; None unless P is normal."""
    size = p.event_shape.numel()
    normal = p
    while isinstance(normal, Independent):
        normal = normal.base_dist
    if any(overrides(normal, method) for method in ("log_prob", "sample", "rsample")):
        return None
    if isinstance(normal, Normal):
        loc, scale = normal.loc, normal.scale
        return size, lambda z: loc + scale * _shaped(z, p, loc)
    if isinstance(p, MultivariateNormal):
        return size, lambda z: p.loc + _product(p.scale_tril, _shaped(z, p, p.loc))
    if not isinstance(p, LowRankMultivariateNormal):
        return None

    def of_low_rank(z: Tensor) -> Tensor:
        factors = z[:, size:].reshape(len(z), *[1] * len(p.batch_shape), -1).to(p.loc)
        return (
            p.loc + _product(p.cov_factor, factors) + torch.sqrt(p.cov_diag) * _shaped(z[:, :size], p, p.loc)
        )

    return size + p.cov_factor.shape[-1], of_low_rank


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    return (matrix @ x.unsqueeze(-1)).squeeze(-1)


def _shaped(z: Tensor, p: Distribution, like: Tensor) -> Tensor:
    return z.reshape(len(z), *[1] * len(p.batch_shape), *p.event_shape).to(like)


def _normal_numbers(count: int, size: int) -> Tensor | None:
    """Return quasi-random normal numbers, shape (draws, size); None for too few draws or too many Sobol dimensions."""
    length = count // SEQUENCES
    if length < _LEAST or size > SobolEngine.MAXDIM:
        return None
    length = 2 ** (length.bit_length() - 1)  # a power of two gives balanced points
    seeds: list[int] = torch.randint(2**31, (SEQUENCES,), device="cpu").tolist()
    engines = (SobolEngine(size, scramble=True, seed=seed) for seed in seeds)
    u = torch.stack([engine.draw(length, dtype=torch.float64) for engine in engines], 1).flatten(0, 1)
    return torch.erfinv(2 * (u + _HALF_STEP) - 1) * 2**0.5
