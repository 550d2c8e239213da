"""A family of distributions: one record with the facts that the rules need, and the table of all records.

The closed forms from moments, the test for an infinite divergence, the conversion from SciPy, the change of units, the
compiled kernels and `fit` all read the records. So none of them needs a table of types of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, NamedTuple, Protocol

from torch import Tensor
from torch.distributions import Distribution, Transform, constraints

from kullback.common.dtypes import upcast

# An end of a support: a number, the name of a parameter, or None if it is neither.
End = float | str | None
REAL: tuple[End, End] = (-inf, inf)
POSITIVE: tuple[End, End] = (0.0, inf)
UNIT: tuple[End, End] = (0.0, 1.0)

CHOICE = "logits|probs"
"""Stands among the parameters of a family for the one of the two that the user passed."""


class Means(Protocol):
    """The means of the target of a fit. A statistic is a function of points and of the parameters after it."""

    def mean(self) -> Tensor:
        """Return E[x]."""
        ...

    def mean_of(
        self, statistic: Callable[..., Tensor], *parameters: Tensor, corner: Tensor | None = None
    ) -> Tensor:
        """Return E[statistic(x, *parameters)]; `corner` is the place where the statistic has a corner."""
        ...

    def mean_log(self) -> Tensor:
        """Return E[log x]."""
        ...

    def deviation(self, about: Tensor, *, of_log: bool = False) -> Tensor:
        """Return the root of the mean square of x, or of log x, about a number."""
        ...

    def mean_and_deviation(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and the standard deviation from one integral; None for a target that is no density."""
        ...

    def median(self) -> Tensor:
        """Return a median."""
        ...

    def extreme(self, side: int) -> Tensor | None:
        """Return the smallest (-1) or largest (1) number with mass; None if it is not known."""
        ...


class ScipyForm(NamedTuple):
    """A distribution of SciPy that is a member of a family of torch.

    Attributes:
        name: the name of the distribution, such as ``"gamma"``, or of the class of its object.
        make: returns the member from the shape parameters and the arguments in `takes`.
        takes: the arguments of `make` after the shape parameters: ``"loc"``, ``"scale"``, both or none. If it takes one
            or none, the member is shifted or scaled by the rest.
        first: for integers, the number by which SciPy's variable exceeds the family's.
        reads: for a class of objects, the attributes that are the arguments of `make`.
    """

    name: str
    make: Callable[..., Distribution | None]
    takes: str = "scale"
    first: float = 0.0
    reads: str = ""


Parameters = dict[str, Tensor]
MatchRule = Callable[[Means, Parameters, frozenset[str]], "Parameters | None"]
Units = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Family:
    """A family of distributions. Only the type is required; without the other facts, other rules serve its pairs.

    A subclass that overrides `log_prob` is not of the family.

    Attributes:
        type: the class of the distributions.
        parameters: the names of the attributes that hold the parameters, which are tensors, separated by spaces. They
            are in the order of the kernels, and of the fields of `density` if that is a class. `CHOICE` stands for
            logits or probs.
        density: a class of `Density` whose fields are the parameters, or the function that returns the density of a
            distribution. Support and tails decide where a divergence is +inf.
        support: the ends of the support: numbers, names of parameters, or None for another end. A class of `Density`
            has them, so they stand here only beside a function.
        is_full: whether P has mass in its whole support for all parameters. A name is a parameter that may be 0, where
            P is the point 0.
        tensors: attributes with the same numbers as `parameters` that are faster to read; or, for `CHOICE`, as given.
        units: the power of the unit of x in each parameter of the constructor, or a function that returns it.
        log_moments: returns the `LogMoments` of a member, for KL from it to every family with `from_log_moments`.
        from_log_moments: returns KL from the `LogMoments` of P and a member Q.
        image: returns the member that is the image of another one under x -> loc + scale x.
        cdf: returns the elementary steps of the distribution function of a member, for maps by it.
        curve: the distribution function of the standard member, an `Increasing` of `densities/mapped.py`.
        scipy: the distributions of SciPy that are members.
        match: returns the parameters of the member with the smallest KL from a target, from its `Means`, the parameters
            of the start and the names of fixed ones; None without a formula.
        start: the parameters at which `fit` starts, if those of the ranges alone (0, 1 or 1/2) are no member.
    """

    type: type[Distribution]
    parameters: str = ""
    density: Callable[..., Any] | None = None
    support: tuple[End, End] = (None, None)
    is_full: bool | str = True
    tensors: str = ""
    units: Units | Callable[[Any], Units | None] | None = None
    log_moments: Callable[[Any], Any] | None = None
    from_log_moments: Callable[[Any, Any], Tensor] | None = None
    image: Callable[[Any, Tensor, Tensor], Distribution] | None = None
    cdf: Callable[[Any], list[Transform]] | None = None
    curve: Any = None
    scipy: Sequence[ScipyForm] = ()
    match: MatchRule | None = None
    start: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        density: Any = self.density
        if isinstance(density, type) and self.support == (None, None):
            names = dict(zip((x.name for x in fields(density)), self.parameters.split(), strict=False))
            object.__setattr__(self, "support", tuple(names.get(end, end) for end in density.support))

    @property
    def has_integers(self) -> bool | None:
        """Whether the numbers are integers; None for vectors, and if the class does not say."""
        support: Any = self.type.support
        with suppress(NotImplementedError, AttributeError):
            return None if support.event_dim else support.is_discrete
        return None

    def range_of(self, name: str) -> constraints.Constraint | None:
        """Return the declared range of a parameter; None if it is not declared."""
        declared: Any = self.type.arg_constraints
        return declared.get(name) if isinstance(declared, Mapping) else None


FAMILIES: dict[type, Family] = {}
"""The records by their types."""


def symmetric_image(member: Any, loc: Tensor, scale: Tensor) -> Distribution:
    """Return the image of a member of a symmetric family with a location and a scale; its other parameters stay."""
    kind = type(member)
    others = {name: upcast(getattr(member, name)) for name in FAMILIES[kind].parameters.split()}
    moved = {"loc": loc + scale * others["loc"], "scale": scale.abs() * others["scale"]}
    return kind(**(others | moved), validate_args=False)


def match_of_mean(name: str, of_mean: Callable[[Tensor, Parameters], Tensor]) -> MatchRule:
    """Return the rule of a family whose parameter follows from the mean of the target, and from the start."""
    return lambda target, start, fixed: {name: of_mean(target.mean(), start)}


def family_of(kind: type) -> Family | None:
    """Return the record of the nearest class that has one: of the type itself, or of one of its bases."""
    return next((FAMILIES[each] for each in kind.__mro__ if each in FAMILIES), None)


def support_of(d: Distribution) -> Any:
    """Return the constraint of the values of a distribution; None if its class has none."""
    with suppress(NotImplementedError, AttributeError):
        return d.support
    return None
