"""Subclasses and instances that override `log_prob`, or the draws, of a family of torch's: its rules do not serve them.

Such a distribution is one that only its own methods know: it is integrated or summed by its own `log_prob`.
"""

from __future__ import annotations

import torch
from torch.distributions import Distribution, ExponentialFamily

__all__ = ["class_overrides_density", "overrides", "overrides_density"]

# Classes of other libraries that override `log_prob` and give the same density as the family, unless the attribute
# named is set: Pyro's take further shapes, GPyTorch's are faster.
_SAME_DENSITY = {
    "pyro.distributions.torch.Binomial": "approx_log_prob_tol",
    "pyro.distributions.torch.Categorical": "",
    "pyro.distributions.torch.Geometric": "",
    "pyro.distributions.torch.Poisson": "",
    "gpytorch.distributions.multivariate_normal.MultivariateNormal": "",
    "gpytorch.priors.prior.Prior": "_transform",
}
_TORCH = "torch.distributions."
_BASES = (Distribution, ExponentialFamily)
# The class that a type takes a method from, where that overrides a family's; None where it does not.
_OVERRIDING: dict[tuple[type, str], type | None] = {}


def overrides_density(d: Distribution) -> bool:
    """Tell whether a distribution has a `log_prob` that is not its family's."""
    if type(d).__module__.startswith(_TORCH) and "log_prob" not in vars(d):
        return False
    return overrides(d, "log_prob")


def overrides(d: Distribution, method: str) -> bool:
    """Tell whether a distribution has a method that is not its family's, by its class or as an attribute of its own."""
    kind = type(d)
    if method in vars(d):
        return True
    owner = _overriding_class(kind, method)
    if owner is None:
        return False
    condition = _SAME_DENSITY.get(f"{owner.__module__}.{owner.__qualname__}")
    return condition is None or bool(condition and getattr(d, condition, None))


def class_overrides_density(kind: type) -> bool:
    """Tell whether the class alone has a `log_prob` that is not its family's."""
    owner = _overriding_class(kind, "log_prob")
    return owner is not None and f"{owner.__module__}.{owner.__qualname__}" not in _SAME_DENSITY


def _overriding_class(kind: type, method: str) -> type | None:
    key = (kind, method)
    if key in _OVERRIDING:
        return _OVERRIDING[key]
    owner = next((each for each in kind.__mro__ if method in vars(each)), None)
    families = (each for each in kind.__mro__ if _is_of_torch(each) and each not in _BASES)
    found = None if owner is None or _is_of_torch(owner) or next(families, None) is None else owner
    if not torch.compiler.is_compiling():  # a graph that changed what it read would be traced again
        _OVERRIDING[key] = found
    return found


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith(_TORCH)
