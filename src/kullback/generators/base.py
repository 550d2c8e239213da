"""The base class of all divergences, and the pair of finite distributions that they are computed from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Real
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.inputs import number_from

__all__ = [
    "NEAR",
    "SERIES_TERMS",
    "Divergence",
    "FinitePair",
    "behaves_as",
    "finite",
    "power_series",
    "times",
]

# Below this |d|, functions such as e^d - 1 - d are summed as power series: SERIES_TERMS reach float64's last digit.
NEAR = 0.3
SERIES_TERMS = 13


class FinitePair(NamedTuple):
    """Two finite distributions on the same classes, along the last dimension.

    ``log_ratio`` is log p - log q, more accurate than from p and q: +inf where only q is 0, -inf where only p is 0,
    0 where both are.
    """

    p: Tensor
    q: Tensor
    log_ratio: Tensor
    log_masses: Callable[[], tuple[Tensor, Tensor]] | None = None
    """Returns log p and log q, also where p and q underflow; without it they are the logarithms of p and q."""

    def swapped(self) -> FinitePair:
        """Return the same pair with P and Q exchanged."""
        logs = (lambda: (self.log_q(), self.log_p())) if self.log_masses is not None else None
        return FinitePair(self.q, self.p, -self.log_ratio, logs)

    def log_p(self) -> Tensor:
        """Return log p, -inf where P has no mass."""
        return torch.log(self.p) if self.log_masses is None else self.log_masses()[0]

    def log_q(self) -> Tensor:
        """Return log q, -inf where Q has no mass."""
        return torch.log(self.q) if self.log_masses is None else self.log_masses()[1]

    def p_log_ratio(self) -> Tensor:
        """Return p log(p/q): 0 where P has no mass, +inf where Q has none and P has, even if p underflows."""
        return torch.where(
            self.log_ratio.isinf(), self.log_ratio.clamp(min=0), self.p * finite(self.log_ratio)
        )

    def q_minus_p(self) -> Tensor:
        """Return q - p, to full relative precision also where they agree."""
        near = self.log_ratio.abs() < NEAR
        return torch.where(near, self.p * torch.expm1(-torch.where(near, self.log_ratio, 0)), self.q - self.p)


def times(mass: Tensor, x: Tensor) -> Tensor:
    """Return mass * x, with 0 * inf = 0 in value and derivative."""
    empty = mass == 0
    return torch.where(empty, 0, mass) * torch.where(empty, 0, x)


def finite(x: Tensor) -> Tensor:
    """Replace infinities by 0, in value and derivative."""
    return torch.where(x.isinf(), 0, x)


def power_series(coefficients: list[float], d: Tensor) -> Tensor:
    """Return d^2 (c_0 + c_1 d + c_2 d^2 + ...) by Horner's rule."""
    total = torch.full_like(d, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * d + c
    return total * d * d


def behaves_as(kind: object, family: type[Divergence]) -> bool:
    """Tell whether a divergence is one of a class, or of a subclass that changes nothing of what it computes."""
    if type(kind) is family:
        return True
    return isinstance(kind, family) and all(
        getattr(type(kind), name, None) is getattr(family, name, None)
        for name in ("terms", "derivatives", "total", "parts")
    )


@dataclass(frozen=True)
class Divergence(ABC):
    """The base class of all divergences; a subclass defines `terms` and `derivatives`.

    The docstring of `kullback.generators` says what these mean. Plain formulas will do: the tangent of f at 1 is
    subtracted from the terms of a subclass, and limits replace them where they are NaN at p = 0 or q = 0.

    Example:
        >>> from kullback import KL, Counts
        >>> from kullback.kernels import finite_pair
        >>> KL().terms(finite_pair(Counts([1.0, 0.0]), Counts([1.0, 1.0])))
        tensor([0.1931, 0.5000], dtype=torch.float64)
    """

    logarithmic: ClassVar[bool] = True
    """Whether the value is in nats, so that another base of the logarithm means something."""

    short_name: ClassVar[str] = ""
    """What `name` begins with; empty for a divergence of one's own."""

    @property
    def name(self) -> str:
        """What `kullback.generators.parse` makes this divergence of, such as ``"js:0.5"``; else its repr."""
        if not vars(type(self)).get("short_name"):  # a subclass is not what it inherits the name of
            return repr(self)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = [
            name if value is True else repr(float(value)).removesuffix(".0")
            for name, value in values.items()
            if value is not False
        ]
        return ":".join([self.short_name, *shown])

    @property
    def instead_of_zero(self) -> Divergence | None:
        """For a divergence that is 0 whatever the distributions are, one that is not; else None."""
        return None

    @abstractmethod
    def terms(self, pair: FinitePair) -> Tensor:
        """Return the non-negative terms whose sum over classes is the divergence."""

    @abstractmethod
    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the total by log p and by log q, as if these were free."""

    def total(self, pair: FinitePair) -> Tensor:
        """Return the divergence, one value for each row of `pair`."""
        return self.terms(pair).sum(-1)

    def _require(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if isinstance(
            value, torch.fx.Proxy
        ):  # torch.compile makes the value again, in place of one that was checked
            return
        if not low <= number_from(value) <= high:
            error = invalid_value if isinstance(value, Real) else invalid_type
            raise error(
                type(self).__name__,
                name,
                wanted=f"a number from {low:g} to {high:g}",
                got=safe_repr(value),
                instead=f"{type(self).__name__}({name}=0.5)",
            )
