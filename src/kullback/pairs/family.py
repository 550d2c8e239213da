"""`Family`, a record of the facts about a family of distributions, and `FAMILIES`, the table of all these records.

These parts of the library read the records: closed forms from moments, the test for an infinite divergence, the
conversion from SciPy, the change of units, compiled kernels and `fit`. So no part needs a separate table of types.

A distribution whose class or instance overrides `log_prob`, or another method, of its family does not belong to it. The
`log_prob` of such a distribution is integrated or summed instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, ExponentialFamily, Transform, constraints

from kullback.common.dtypes import upcast
from kullback.pairs.torch_registry import TORCH, is_of_torch

# `End` is an end of a support: a number, the name of the parameter that is the end, or None for any other end.
End = float | str | None
REAL: tuple[End, End] = (-inf, inf)
POSITIVE: tuple[End, End] = (0.0, inf)
UNIT: tuple[End, End] = (0.0, 1.0)

CHOICE = "logits|probs"
"""The name that represents either logits or probs, whichever the user passed, among a family's parameters."""


class Means(ABC):
    """The means under the target of a fit, in its batch shape. A statistic is a function of `Points` and of parameters.

    The last dimension of `Points` and of each parameter is the dimension of the points.
    """

    @abstractmethod
    def mean(self) -> Tensor:
        """Return E[x], with full precision even if |E[x]| is many times the standard deviation."""

    @abstractmethod
    def mean_of(
        self, statistic: Callable[..., Tensor], *parameters: Tensor, corner: Tensor | None = None
    ) -> Tensor:
        """Return E[statistic(x, *parameters)] for parameters of the batch shape.

        `corner` is an x at which the statistic or its derivative jumps, or None for a smooth statistic.
        """

    def mean_log(self) -> Tensor:
        """Return E[log x]."""
        return self.mean_of(_log_x)

    def deviation(self, about: Tensor, *, of_log: bool = False) -> Tensor:
        """Return the square root of E[(x - about)^2], or of E[(log x - about)^2] with `of_log`."""
        of = _log_x if of_log else attrgetter("x")
        return self.mean_of(lambda at, center: (of(at) - center) ** 2, about).sqrt()

    def mean_and_deviation(self) -> tuple[Tensor, Tensor] | None:
        """Return the mean and the standard deviation from one integral, or None for a target without a density."""
        return None

    @abstractmethod
    def median(self) -> Tensor:
        """Return a median."""

    def extreme(self, side: int) -> Tensor | None:
        """Return the smallest (side -1) or the largest (side 1) number with mass, or None if it is unknown."""
        return None


def _log_x(at: Any) -> Tensor:
    return at.log_above(0.0)


class ScipyForm(NamedTuple):
    """A distribution of SciPy that belongs to a family of torch.

    Attributes:
        name: the name of the distribution, such as ``"gamma"``, or of the class of its object.
        make: returns the torch distribution from the shape parameters and the arguments in `takes`.
        takes: the arguments of `make` after the shape parameters: ``"loc"``, ``"scale"``, both or none. A loc or scale
            that `make` does not take becomes an affine transform of the torch distribution.
        first: for integers, SciPy's variable minus the family's variable.
        reads: for an object without shape parameters, the names of its attributes that are the arguments of `make`.
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
    """A family of distributions. Only the type is required. Where other fields are missing, generic rules compute KL.

    A subclass that overrides `log_prob` does not belong to the family.

    Attributes:
        type: the class of the distributions.
        parameters: the names of the tensor attributes that are the parameters, separated by spaces, in the order of the
            kernels. If `density` is a class, its fields have the same order. `CHOICE` represents logits or probs.
        density: a class of `Density` whose fields are the parameters, or a function that returns the density of a
            distribution. The support and the tails of the density decide where a divergence is +inf.
        support: the ends of the support: numbers, names of parameters, or None for another end. The support is needed
            here only if `density` is a function; a class `density` has the same attribute.
        is_full: whether P has mass in its whole support for all parameters. A string is the name of a parameter that
            may be 0; where this parameter is 0, all mass of P is at the point 0.
        tensors: the names of attributes that have the same numbers as `parameters` and are faster to read. For
            `CHOICE`, they contain the logits or probs that the user passed.
        units: a map from each parameter of the constructor to its power of the unit of x, or a function that returns
            this map.
        log_moments: returns the `LogMoments` of a distribution P, for KL to every family with `from_log_moments`.
        from_log_moments: returns KL(P || Q) from the `LogMoments` of P and a distribution Q of this family.
        image: returns the distribution of loc + scale x. The arguments are the distribution of x, loc and scale.
        cdf: returns the elementary steps of the distribution function, for transforms by this function.
        curve: the distribution function for location 0 and scale 1, an `Increasing` of `densities/mapped.py`.
        scipy: the distributions of SciPy that belong to the family.
        match: returns the parameters with the smallest KL from a target to the family, or None without a formula. The
            arguments are the target's `Means`, the initial parameters and the names of the fixed parameters.
        start: the parameters at which `fit` starts, if the defaults from their ranges (0, 1 or 1/2) are invalid.
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
        """Whether the values are integers, or None if they are vectors or the class declares no support."""
        support: Any = self.type.support
        with suppress(NotImplementedError, AttributeError):
            return None if support.event_dim else support.is_discrete
        return None

    def range_of(self, name: str) -> constraints.Constraint | None:
        """Return the declared range of a parameter, or None if it is not declared."""
        declared: Any = self.type.arg_constraints
        return declared.get(name) if isinstance(declared, Mapping) else None


FAMILIES: dict[type, Family] = {}
"""Each class of distributions with its record, a `Family`."""


def symmetric_image(member: Any, loc: Tensor, scale: Tensor) -> Distribution:
    """Return the distribution of loc + scale x for an x of a symmetric location-scale family."""
    kind = type(member)
    others = {name: upcast(getattr(member, name)) for name in FAMILIES[kind].parameters.split()}
    moved = {"loc": loc + scale * others["loc"], "scale": scale.abs() * others["scale"]}
    return kind(**(others | moved), validate_args=False)


def match_of_mean(name: str, of_mean: Callable[[Tensor, Parameters], Tensor]) -> MatchRule:
    """Return the `match` of a family whose parameter is a function of the target's mean and the initial parameters."""
    return lambda target, start, fixed: {name: of_mean(target.mean(), start)}


def family_of(kind: type) -> Family | None:
    """Return the `Family` of a class, or of its nearest base class that has a `Family`, or None if there is none."""
    return next((FAMILIES[each] for each in kind.__mro__ if each in FAMILIES), None)


def support_of(d: Distribution) -> Any:
    """Return the constraint that is the support of a distribution, or None if its class declares none."""
    with suppress(NotImplementedError, AttributeError):
        return d.support
    return None


# _SAME_DENSITY has the classes of other libraries that override `log_prob` but keep the density of their family. Pyro's
# classes accept more shapes than torch's, and GPyTorch's classes are faster. The value is "" or the name of an
# attribute. If this attribute is set, the density differs.
_SAME_DENSITY = {
    "pyro.distributions.torch.Binomial": "approx_log_prob_tol",
    "pyro.distributions.torch.Categorical": "",
    "pyro.distributions.torch.Geometric": "",
    "pyro.distributions.torch.Poisson": "",
    "gpytorch.distributions.multivariate_normal.MultivariateNormal": "",
    "gpytorch.priors.prior.Prior": "_transform",
}
_BASES = (Distribution, ExponentialFamily)
# _OVERRIDING maps a class and the name of a method to the class that overrides this method of the family, or to None if
# no class does.
_OVERRIDING: dict[tuple[type, str], type | None] = {}


def overrides_density(d: Distribution) -> bool:
    """Return whether a distribution overrides the `log_prob` of its family."""
    if type(d).__module__.startswith(TORCH) and "log_prob" not in vars(d):
        return False
    return overrides(d, "log_prob")


def overrides(d: Distribution, method: str) -> bool:
    """Return whether a distribution overrides a method of its family, in its class or as an instance attribute."""
    kind = type(d)
    if method in vars(d):
        return True
    owner = _overriding_class(kind, method)
    if owner is None:
        return False
    condition = _SAME_DENSITY.get(f"{owner.__module__}.{owner.__qualname__}")
    return condition is None or bool(condition and getattr(d, condition, None))


def lacks(d: Distribution, methods: Sequence[str]) -> list[str]:
    """Return the names in `methods` that neither the distribution nor its class defines."""
    inherited = {
        name: getattr(type(d), name) is getattr(Distribution, name) for name in (*methods, "rsample")
    }
    inherited["sample"] = inherited.get("sample", False) and inherited["rsample"]
    return [name for name in methods if inherited[name] and name not in vars(d)]


def class_overrides_density(kind: type) -> bool:
    """Return whether a class overrides the `log_prob` of its family."""
    owner = _overriding_class(kind, "log_prob")
    return owner is not None and f"{owner.__module__}.{owner.__qualname__}" not in _SAME_DENSITY


def forget_overrides() -> None:
    """Clear the stored results, because a new family has been registered."""
    _OVERRIDING.clear()


def _overriding_class(kind: type, method: str) -> type | None:
    key = (kind, method)
    if key in _OVERRIDING:
        return _OVERRIDING[key]
    own = next((i for i, each in enumerate(kind.__mro__) if method in vars(each)), len(kind.__mro__))
    known = [each in FAMILIES or (is_of_torch(each) and each not in _BASES) for each in kind.__mro__]
    before = known.index(True) if True in known else 0
    overriding = kind.__mro__[own] if own < before else None
    # A compiled graph that writes to a dict which it has read is traced again.
    if not torch.compiler.is_compiling():
        _OVERRIDING[key] = overriding
    return overriding
