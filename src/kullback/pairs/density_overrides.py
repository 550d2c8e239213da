"""Tests for a distribution whose class or instance overrides `log_prob`, or another method, of its family.

The formulas of the family do not apply to such a distribution. The `log_prob` of such a distribution is integrated or
summed instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributions import Distribution, ExponentialFamily

from kullback.pairs.family import FAMILIES
from kullback.pairs.torch_registry import TORCH, is_of_torch

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
    before = next(
        (
            i
            for i, each in enumerate(kind.__mro__)
            if each in FAMILIES or (is_of_torch(each) and each not in _BASES)
        ),
        0,
    )
    overriding = kind.__mro__[own] if own < before else None
    if (
        not torch.compiler.is_compiling()
    ):  # a compiled graph that writes to a dict which it has read is traced again
        _OVERRIDING[key] = overriding
    return overriding
