"""`register_family` registers the record of a family, and the rules of pairs that follow from the record."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.errors import RegistrationError, explain
from kullback.kernels.codes import ElementForm
from kullback.pairs.densities.density import Density, DensityReader, register_density
from kullback.pairs.densities.maps import enter_standard
from kullback.pairs.density_overrides import forget_overrides
from kullback.pairs.families.infinite import enter_if_infinite
from kullback.pairs.family import FAMILIES, Family
from kullback.pairs.registry import closed_form
from kullback.pairs.torch_registry import forget_plans


def register_family(family: Family) -> Family:
    """Register the record of a family, and the resulting rules for pairs with all families registered so far.

    Arguments:
        family: the record.

    Returns:
        the record.

    Raises:
        RegistrationError: the type has a record already.
    """
    if family.type in FAMILIES:
        raise RegistrationError(
            explain(
                "register_family",
                "family",
                wanted="a type without a record",
                got=f"{family.type.__name__}, which has one",
                instead="a subclass of your own, with a log_prob of its own if the density differs",
            )
        )
    FAMILIES[family.type] = family
    if family.density is not None:
        register_density(family.type)(_reader(family))
    if family.curve is not None:
        enter_standard(family.type)
    for other in FAMILIES.values():
        for p, q in ((family, other), (other, family)):
            enter_if_infinite(p, q)
            if p.log_moments is not None and q.from_log_moments is not None:
                _enter_by_log_moments(p, q)
    forget_overrides()
    forget_plans()
    return family


def _reader(family: Family) -> DensityReader:
    density: Any = family.density
    if not (isinstance(density, type) and issubclass(density, Density)):
        return density
    names = [name.rpartition(".")[2] for name in family.parameters.split()]
    return lambda d: density(*map(upcast, map(partial(getattr, d), names)))


def _enter_by_log_moments(p: Family, q: Family) -> None:
    """Register KL from the moments of log X, and the kernel that has the families' names, like `BETA_GAMMA`, if any."""
    moments_of, divergence = p.log_moments, q.from_log_moments
    assert moments_of is not None  # noqa: S101
    assert divergence is not None  # noqa: S101

    def kl_by_log_moments(p: Any, q: Any) -> Tensor:
        return divergence(moments_of(p), q).clamp(min=0)

    kl_by_log_moments.__doc__ = divergence.__doc__
    kernel = ElementForm.__members__.get(f"{_in_capitals(p.type)}_{_in_capitals(q.type)}")
    closed_form(p.type, q.type, native=kernel, yields=True)(kl_by_log_moments)


def _in_capitals(kind: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()
