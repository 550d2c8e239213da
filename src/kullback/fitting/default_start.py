"""The start of a fit if the user passes a class of distributions instead of a member."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.distributions import Distribution, constraints

from kullback.errors import invalid_type, invalid_value
from kullback.fitting.exact_fit import nearest
from kullback.fitting.unconstrained import read_family
from kullback.pairs.family import FAMILIES
from kullback.samples import Samples


def start_of(family: Any, to: Any) -> tuple[Distribution, bool | None]:
    """Return a start of the class `family` for the target `to`, and whether the start has the smallest KL(to || q).

    If a formula gives the member with the smallest KL(to || q), the results are this member and True. Otherwise the
    first result is the standard member of the class. The second result is False if the formula gives parameters outside
    their range, and None if no formula exists.
    """
    if not issubclass(family, Distribution):
        raise invalid_type(
            "fit",
            "q",
            wanted="a class of distributions, or one of its members",
            got=family.__name__,
            instead="fit(Normal, to=p)",
        )
    start = _standard(family, to)
    if isinstance(to, Distribution | Samples):
        family = read_family(start, frozenset())
        values, is_inside = nearest(start, to, family, frozenset())
        if values is not None:
            return (family.finished(values), True) if is_inside else (start, False)
    return start, None


def _standard(family: Any, to: Any) -> Distribution:
    """Return the standard member of a class, in the batch shape of `to`.

    A parameter has the value that the family's record in `FAMILIES` declares as its start. Without such a value, a
    positive parameter is 1, a parameter between 0 and 1 is 1/2, and any other parameter is 0.
    """
    accepted = inspect.signature(family.__init__).parameters
    ranges: Any = family.arg_constraints if isinstance(family.arg_constraints, dict) else {}
    own = FAMILIES[family].start if family in FAMILIES else {}
    names = [
        name
        for name in accepted
        if (name in ranges or name in own) and accepted[name].default is inspect.Parameter.empty
    ]
    names = names or [name for name in ("logits",) if name in ranges and ranges[name].event_dim == 0]
    shape = to.batch_shape if isinstance(to, Distribution) else torch.Size()
    vector = isinstance(to, Distribution) and bool(to.event_shape)
    if (
        not names
        or vector
        or any(ranges[name].is_discrete or ranges[name].event_dim for name in names if name in ranges)
    ):
        raise invalid_value(
            "fit",
            "q",
            wanted="a class of distributions of numbers with a standard start",
            got=family.__name__,
            instead=f"q={family.__name__}(...) with the parameters to start from",
        )
    standard = {constraints.positive: 1.0, constraints.nonnegative: 1.0, constraints.unit_interval: 0.5}
    numbers = {name: own[name] if name in own else standard.get(ranges[name], 0.0) for name in names}
    parameters = {
        name: torch.full(shape, x, dtype=torch.float64, device="cpu") for name, x in numbers.items()
    }
    return family(**parameters, validate_args=False)
