"""The base classes of divergences, and the pair of finite distributions that is their input.

`of_ratio` defines `FDivergence`, the divergence of a user's own function f.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kullback.common.constraints import Number
from kullback.common.inputs import number_from
from kullback.errors import invalid_type, invalid_value

# For |d| < NEAR, functions of d such as e^d - 1 - d are computed by power series with SERIES_TERMS terms. The first
# omitted term of a series is less than 0.3^13 / 14! = 2e-18 of the first term.
NEAR = 0.3
SERIES_TERMS = 13


class FinitePair(NamedTuple):
    """Two finite distributions on the same classes, along the last dimension.

    ``log_ratio`` is log p - log q, more accurate than the difference of the logarithms of p and q. ``log_ratio`` is
    +inf where only q is 0, -inf where only p is 0, and 0 where both are 0.
    """

    p: Tensor
    q: Tensor
    log_ratio: Tensor
    log_masses: Callable[[], tuple[Tensor, Tensor]] | None = None
    """A function that returns log p and log q, accurate even where p and q underflow. If it is None, log p and log q
    are the logarithms of `p` and `q`.
    """

    def swapped(self) -> FinitePair:
        """Return the same pair with P and Q exchanged."""
        logs = (lambda: (self.log_q(), self.log_p())) if self.log_masses is not None else None
        return FinitePair(self.q, self.p, -self.log_ratio, logs)

    def log_p(self) -> Tensor:
        """Return log p, which is -inf where p = 0."""
        return torch.log(self.p) if self.log_masses is None else self.log_masses()[0]

    def log_q(self) -> Tensor:
        """Return log q, which is -inf where q = 0."""
        return torch.log(self.q) if self.log_masses is None else self.log_masses()[1]

    def p_log_ratio(self) -> Tensor:
        """Return p log(p/q). The result is 0 where p = 0, and +inf where only q = 0, even if p underflows to 0."""
        return torch.where(
            self.log_ratio.isinf(), self.log_ratio.clamp(min=0), self.p * finite(self.log_ratio)
        )

    def q_minus_p(self) -> Tensor:
        """Return q - p to full relative precision, even where p and q are nearly equal."""
        near = self.log_ratio.abs() < NEAR
        return torch.where(near, self.p * torch.expm1(-torch.where(near, self.log_ratio, 0)), self.q - self.p)


def times(mass: Tensor, x: Tensor) -> Tensor:
    """Return mass * x. Where the mass is 0, the result and its derivatives are 0, even if x is infinite."""
    empty = mass == 0
    return torch.where(empty, 0, mass) * torch.where(empty, 0, x)


def finite(x: Tensor) -> Tensor:
    """Return x with infinities replaced by 0. The derivative at an infinity is also 0."""
    return torch.where(x.isinf(), 0, x)


def power_series(coefficients: list[float], d: Tensor) -> Tensor:
    """Return d^2 (c_0 + c_1 d + c_2 d^2 + ...) by Horner's rule, where c_k is `coefficients[k]`."""
    total = torch.full_like(d, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * d + c
    return total * d * d


class End(NamedTuple):
    """The behavior of a divergence's terms as d = log(p / q) goes to infinity or to -infinity. There, term / max(p, q)
    has a limit or grows.

    The terms are evaluated for |d| <= `reach`. For larger |d|, a growing quotient is its value at |d| = `reach`, times
    e^(rate (|d| - reach)) (1 + (|d| - reach) / scale)^power.
    """

    limit: float
    """The limit of the quotient. The limit is infinite if the quotient grows without bound."""
    rate: float = 0.0
    """The number `rate` in the formula above. If the rate is positive, the quotient grows as this power of p / q or q /
    p. The rate is infinite if the quotient grows faster than every power.
    """
    power: float = 0.0
    reach: float = math.inf
    """The largest |d| at which the terms are evaluated."""
    scale: float = 1.0


class Corner(NamedTuple):
    """A corner of f: the value `at` of log(p / q), and the jump `change` of f' there."""

    at: float
    change: float


class Growth(NamedTuple):
    """The growth of the terms as p / q goes to infinity (`far`) and to 0 (`near`), and the corners of f."""

    far: End = End(1.0)
    near: End = End(1.0)
    corners: tuple[Corner, ...] = ()

    @property
    def is_bounded(self) -> bool:
        """Whether the divergence is finite for all pairs."""
        return max(self.far.limit, self.near.limit) < math.inf


LOGARITHMIC = End(math.inf, power=1.0)


# This dict maps each name of a divergence, without parameters, to the class with this name.
NAMED: dict[str, type[Divergence]] = {}


@dataclass(frozen=True)
class Divergence(ABC):
    """The base class of all divergences; a subclass defines `terms`.

    The docstring of `kullback.generators` defines `terms` and `derivatives`. By default, autograd computes the
    derivatives. Your f need not satisfy f'(1) = 0: kullback subtracts the tangent of f at 1, so that no term is
    negative. If the terms are NaN at p = 0 or q = 0, limits replace them.

    Example:
        >>> from kullback import KL, Counts
        >>> from kullback.kernels import finite_pair
        >>> KL().terms(finite_pair(Counts([1.0, 0.0]), Counts([1.0, 1.0])))
        tensor([0.1931, 0.5000], dtype=torch.float64)
    """

    logarithmic: ClassVar[bool] = True
    """Whether the value is in nats, so that the base of the logarithm changes the value."""

    short_name: ClassVar[str] = ""
    """The first part of `name`. If it is not empty, ``kind=`` and ``--kind`` accept the class by name."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that `parse` accepts for the class."""

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The smallest and the largest accepted value of each numeric parameter."""

    example: ClassVar[str] = ""
    """A complete name for error messages, such as ``"js:0.5"``; empty if `short_name` alone is complete."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if vars(cls).get("short_name"):
            cls._take_names()

    @classmethod
    def _take_names(cls) -> None:
        for name in (cls.short_name, *vars(cls).get("aliases", ())):
            other = NAMED.get(name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise invalid_value(
                    cls.__name__,
                    "short_name",
                    wanted="a name that no other divergence has",
                    got=f"{name!r}, a name of {other.__name__}",
                    instead=f"short_name = {'my_' + name!r}",
                )
            NAMED[name] = cls

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges.items():
            value = getattr(self, name)
            # torch.compile copies an object that was already checked, with proxies instead of numbers. Proxies are not
            # checked again.
            if not isinstance(value, torch.fx.Proxy) and not low <= number_from(value) <= high:
                wanted, instead = f"a number from {low:g} to {high:g}", f"{{call}}({name}=0.5)"
                constraint = Number(least=low, most=high, wanted=wanted, instead=instead, strict=True)
                raise constraint.refusal(type(self).__name__, name, value)

    @property
    def additive(self) -> bool:
        """Whether the divergence is the sum of its terms over classes."""
        return type(self).total is Divergence.total

    @property
    def name(self) -> str:
        """The name that `kullback.generators.parse` turns into this divergence, such as ``"js:0.5"``. If the class has
        no `short_name`, the name is the repr.
        """
        if not vars(type(self)).get("short_name"):  # an inherited short name does not name the subclass
            return repr(self)
        parts = [self.short_name]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not False:
                parts.append(field.name if value is True else repr(float(value)).removesuffix(".0"))
        return ":".join(parts)

    @property
    def instead_of_zero(self) -> Divergence | None:
        """A similar divergence that is not 0 everywhere, if this divergence is 0 for all distributions; else None."""
        return None

    def simplest(self) -> Divergence:
        """Return `KL()` or `ReverseKL()` if this divergence is equal to one of them; else the divergence itself."""
        return self

    @abstractmethod
    def terms(self, pair: FinitePair) -> Tensor:
        """Return the non-negative terms whose sum over classes is the divergence."""

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the total with respect to log p and log q, without the constraint that p and q sum
        to 1.

        Autograd computes the derivatives, unless a subclass overrides this method.
        """

        def moved(a: Tensor, b: Tensor) -> Tensor:  # adds a to log p and b to log q, and sums the totals
            p, q = pair.p * torch.exp(a), pair.q * torch.exp(b)
            logs = lambda: (pair.log_p() + a, pair.log_q() + b)  # noqa: E731
            return self.total(FinitePair(p, q, pair.log_ratio + a - b, logs)).sum()

        by_p, by_q = torch.func.grad(moved, (0, 1))(torch.zeros_like(pair.p), torch.zeros_like(pair.q))
        return by_p, by_q

    def total(self, pair: FinitePair) -> Tensor:
        """Return the divergence, one value for each row of `pair`."""
        return self.terms(pair).sum(-1)


class BuiltIn(Divergence):
    """The base class of kullback's own divergences: their terms are accurate for masses of every size.

    A user cannot subclass these classes, because kullback chooses formulas by the class of a divergence.
    """

    def __init_subclass__(cls) -> None:
        if not cls.__module__.startswith("kullback.generators."):
            base = next(base for base in cls.__mro__[1:] if issubclass(base, BuiltIn))
            raise invalid_type(
                cls.__name__,
                "base",
                wanted="a base class other than kullback's own kinds, which are final",
                got=base.__name__,
                instead="FDivergence(f) for the sum of q f(p / q), or a subclass of Divergence with its own terms",
            )
        super().__init_subclass__()


class WeightedSum(BuiltIn):
    """The base class of weighted sums of other divergences, each of (P, Q) or of (Q, P)."""

    @abstractmethod
    def parts(self) -> Sequence[tuple[float, Divergence, bool]]:
        """Return the summands. Each summand is a tuple of a positive weight, a divergence, and a flag. If the flag is
        True, the summand is the divergence of (Q, P), else of (P, Q).
        """

    def terms(self, pair: FinitePair) -> Tensor:
        total = torch.zeros_like(pair.p)
        for weight, kind, swap in self.parts():
            total = total + weight * kind.terms(pair.swapped() if swap else pair)
        return total

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        by_p, by_q = torch.zeros_like(pair.p), torch.zeros_like(pair.q)
        for weight, kind, swap in self.parts():
            first, second = kind.derivatives(pair.swapped() if swap else pair)
            by_p = by_p + weight * (second if swap else first)
            by_q = by_q + weight * (first if swap else second)
        return by_p, by_q
