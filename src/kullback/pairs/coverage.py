"""The table of the rules for KL of each ordered pair of torch's classes.

The rule is selected as in `solve`, but integrals and sums are not computed. If the rule depends on the parameters, the
table has the rule for typical parameters.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import distributions as torch_distributions
from torch.distributions import (
    AffineTransform,
    Categorical,
    Distribution,
    ExponentialFamily,
    Normal,
)

from kullback.errors import ArgumentValueError
from kullback.pairs.densities.density import densities_of
from kullback.pairs.densities.maps import plain_form
from kullback.pairs.registry import WRAPPERS, plan_for
from kullback.pairs.support import check_comparable, is_infinite
from kullback.results.estimate import Estimate

MEANING = {
    "closed_form": "a formula",
    "series": "a series that is summed until it has converged",
    "summation": "a sum over the integers that matter, with a bound on the rest",
    "quadrature": "an adaptive integral over the line, with an estimate of its error",
    "infinite": "P has mass where Q has none, or falls too slowly for Q",
    "monte_carlo": 'only by method="monte_carlo", from draws',
    "not_comparable": "an error: only one is discrete, or their events are of different shapes or spaces",
}
"""The meaning of each rule in the matrix, from the most to the least exact."""

_CLASSES = 3
_FLOAT64: Any = {"dtype": torch.float64, "device": "cpu"}
# _TYPICAL maps the name of a parameter in torch's constructors to a typical value.
_TYPICAL: dict[str, object] = {
    "alpha": 2.5,
    "base_distribution": Normal(torch.zeros(_CLASSES, **_FLOAT64), 1.0),
    "component_distribution": Normal(torch.tensor([-1.0, 1.0], **_FLOAT64), 1.0),
    "concentration": 1.7,
    "concentration0": 1.7,
    "concentration1": 2.2,
    "cov_diag": torch.ones(_CLASSES, **_FLOAT64),
    "cov_factor": torch.ones(_CLASSES, 1, **_FLOAT64),
    "covariance_matrix": torch.eye(_CLASSES, **_FLOAT64),
    "df": 5.0,
    "df1": 6.0,
    "df2": 7.0,
    "dim": _CLASSES,
    "high": 1.0,
    "loc": 0.0,
    "low": 0.0,
    "mixture_distribution": Categorical(torch.ones(2, **_FLOAT64)),
    "probs": 0.4,
    "rate": 1.3,
    "reinterpreted_batch_ndims": 1,
    "scale": 1.0,
    "temperature": 0.8,
    "total_count": 2,
    "transforms": [AffineTransform(0.5, 2.0)],
}
# _TYPICAL_OF has the typical values for classes whose parameters have another meaning than in `_TYPICAL`.
_TYPICAL_OF: dict[str, dict[str, object]] = {
    "Categorical": {"probs": torch.tensor([0.2, 0.3, 0.5], **_FLOAT64)},
    "Dirichlet": {"concentration": torch.tensor([1.5, 2.0, 2.5], **_FLOAT64)},
    "GeneralizedPareto": {"concentration": 0.2},
    "LogisticNormal": {
        "loc": torch.zeros(_CLASSES - 1, **_FLOAT64),
        "scale": torch.ones(_CLASSES - 1, **_FLOAT64),
    },
    "LowRankMultivariateNormal": {"loc": torch.zeros(_CLASSES, **_FLOAT64)},
    "Multinomial": {"total_count": 1, "probs": torch.tensor([0.2, 0.3, 0.5], **_FLOAT64)},
    "MultivariateNormal": {"loc": torch.zeros(_CLASSES, **_FLOAT64)},
    "OneHotCategorical": {"probs": torch.tensor([0.2, 0.3, 0.5], **_FLOAT64)},
    "OneHotCategoricalStraightThrough": {"probs": torch.tensor([0.2, 0.3, 0.5], **_FLOAT64)},
    "RelaxedOneHotCategorical": {"probs": torch.tensor([0.2, 0.3, 0.5], **_FLOAT64)},
    "TransformedDistribution": {"base_distribution": Normal(torch.zeros((), **_FLOAT64), 1.0)},
}


class Entry(NamedTuple):
    """The names of an ordered pair of torch's classes, and the rule for the pair, a key of `MEANING`."""

    p: str
    q: str
    rule: str


@functools.cache
def families() -> dict[type[Distribution], Distribution]:
    """Return a typical distribution of every class of distributions that torch exports, by class."""
    kinds = (getattr(torch_distributions, name) for name in sorted(torch_distributions.__all__))
    return {
        kind: typical(kind)
        for kind in kinds
        if isinstance(kind, type)
        and issubclass(kind, Distribution)
        and kind not in (Distribution, ExponentialFamily)
    }


def typical(kind: type[Distribution]) -> Distribution:
    """Return a distribution of a class of torch with typical parameters, in float64."""
    values = _TYPICAL | _TYPICAL_OF.get(kind.__name__, {})
    names = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is inspect.Parameter.empty
        or name in ("covariance_matrix", "probs", "total_count")
    ]
    return cast(Callable[..., Distribution], kind)(
        **{name: torch.tensor(x, **_FLOAT64) if isinstance(x := values[name], float) else x for name in names}
    )


def is_univariate(kind: type[Distribution]) -> bool:
    """Return whether all distributions of a class are univariate, whatever their parameters."""
    return kind not in WRAPPERS and not families()[kind].event_shape


def matrix() -> Iterator[Entry]:
    """Yield the entry of every ordered pair of torch's classes."""
    for kind_p, p in families().items():
        for kind_q, q in families().items():
            yield Entry(kind_p.__name__, kind_q.__name__, rule_of(p, q))


def rule_of(p: Distribution, q: Distribution) -> str:
    """Return the rule that computes KL of two distributions, a key of `MEANING`."""
    try:
        check_comparable("kl_divergence", p, q)
    except ArgumentValueError:
        return "not_comparable"
    plan, densities = plan_for(type(p), type(q)), densities_of(p, q)
    infinite = None if densities is None else is_infinite(*densities)
    is_endless = infinite is not None and bool(infinite.all())
    value = None if plan.closed_form is None else plan.closed_form.function(p, q)
    if plan.closed_form is not None and value is not None:
        return "infinite" if is_endless or bool(value.isposinf().all()) else plan.closed_form.method
    result = None if plan.reduction is None else plan.reduction(p, q, _named)
    if result is not None:
        return result.method
    plain = plain_form(p), plain_form(q)
    if plain[0] is not p or plain[1] is not q:
        return rule_of(*plain)
    if densities is None or densities[0].integer != densities[1].integer:
        return "monte_carlo"
    return "infinite" if is_endless else "summation" if densities[0].integer else "quadrature"


def _named(p: Distribution, q: Distribution) -> Estimate:
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    return Estimate(torch.zeros(shape, dtype=torch.float64, device="cpu"), None, rule_of(p, q))
