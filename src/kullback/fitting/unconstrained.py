"""Maps between the parameters of a batch of distributions and vectors of real numbers, the unconstrained parameters."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Transform,
    TransformedDistribution,
    Uniform,
    Wishart,
    biject_to,
    constraints,
    transform_to,
)

from kullback.common.dtypes import tensor_of, upcast
from kullback.errors import invalid_type, invalid_value
from kullback.pairs.numerics.parameters import dtype_of, given_logits

Values = Mapping[str, Tensor]
Build = Callable[[Values], Any]
_MATRICES = ("covariance_matrix", "precision_matrix")
# The `log_prob` of these families uses `scale_tril`, which the class computes if the user passes one of `_MATRICES`. So
# `scale_tril` counts as the parameter, not the matrix.
_OF_SCALE_TRIL = (MultivariateNormal, Wishart)


class Leaf(NamedTuple):
    """A parameter of a distribution.

    Attributes:
        value: the value in float64; its shape is the batch shape, followed by the event shape of the parameter.
        constraint: the range of the value or, if `beyond` is set, of the distance from another parameter.
        beyond: for an end of the support of a `Uniform`, the name of the other end; None for other parameters.
        sign: 1 if the end is the upper end, and -1 if it is the lower end.
    """

    value: Tensor
    constraint: Any
    beyond: str | None = None
    sign: int = 1


@dataclass(frozen=True)
class Family:
    """The parameters of a distribution by name, and a function `make` from the values of all to the distribution.

    `constant` are the fixed and the discrete parameters. `shape` is the batch shape.
    """

    free: dict[str, Leaf]
    constant: dict[str, Leaf]
    shape: torch.Size
    dtype: torch.dtype
    make: Build

    def start(self, values: Values | None = None) -> Tensor:
        """Return the unconstrained parameters of the start or, if passed, of `values`, shape (elements, parameters)."""
        rows: list[Tensor] = []
        for name, leaf in self.free.items():
            x = leaf.value if values is None else values[name]
            if leaf.beyond is not None:
                x = leaf.sign * (x - self._other_end(leaf.beyond, values or {}))
            u = bijection_to(leaf.constraint).inv(x)
            if not bool(u.isfinite().all()):
                raise invalid_value(
                    "fit",
                    "q",
                    wanted=f"a start strictly inside the range of {name}",
                    got=f"{name} = {leaf.value.flatten()[:8].tolist()}, at the edge of {leaf.constraint}",
                    instead=f"q with another {name}",
                )
            rows.append(u.reshape(self.shape.numel(), -1))
        return torch.cat(rows, -1)

    def values(self, u: Tensor) -> dict[str, Tensor]:
        """Return the free parameters, by name, for the unconstrained parameters u."""
        values: dict[str, Tensor] = {}
        place = 0
        for name, leaf in self.free.items():
            bijection = bijection_to(leaf.constraint)
            shape = bijection.inverse_shape(leaf.value.shape)
            size = shape.numel() // max(self.shape.numel(), 1)
            values[name] = bijection(u[:, place : place + size].reshape(shape))
            place += size
        for name, leaf in self.free.items():
            if leaf.beyond is not None:
                values[name] = self._other_end(leaf.beyond, values) + leaf.sign * values[name]
        return values

    def _other_end(self, name: str, values: Values) -> Tensor:
        return values[name] if name in values else {**self.free, **self.constant}[name].value

    def at(self, u: Tensor) -> Any:
        """Return the distribution for the unconstrained parameters u, in float64."""
        return self.build(self.values(u))

    def build(self, values: Values) -> Any:
        """Return the distribution with the given values of the free parameters, in float64."""
        return self.make({**{name: leaf.value for name, leaf in self.constant.items()}, **values})

    def are_inside(self, values: Values) -> bool:
        """Return whether all values of the free parameters are finite and inside their ranges."""
        for name, leaf in self.free.items():
            x = values[name]
            if leaf.beyond is not None:
                x = leaf.sign * (x - self._other_end(leaf.beyond, values))
            if not bool(values[name].isfinite().all()) or not bool(leaf.constraint.check(x).all()):
                return False
        return True

    def finished(self, values: Values) -> Any:
        """Return the distribution with the given free parameters, without gradient and in the dtype of the start."""
        every = {**{name: leaf.value for name, leaf in self.constant.items()}, **values}
        return self.make({name: x.detach().to(self.dtype) for name, x in every.items()})


def bijection_to(constraint: Any) -> Any:
    """Return torch's bijection from real numbers to a range, or else the transform of `transform_to`."""
    try:
        return biject_to(constraint)
    except NotImplementedError:
        return transform_to(constraint)


def read_family(q: Distribution, fixed: frozenset[str]) -> Family:
    """Return the `Family` of the distribution at the start.

    `fixed` are names of parameters, such as ``"loc"``, or with the full path, as ``"component_distribution.loc"``.
    """
    leaves, make = _read(q, "")
    if fixed and (unknown := [name for name in fixed if not any(_is_named(path, name) for path in leaves)]):
        raise invalid_value(
            "fit",
            "fixed",
            wanted="names of parameters of q: " + ", ".join(leaves),
            got=", ".join(map(repr, unknown)),
            instead=f"fixed=({next(iter(leaves), '')!r},)",
        )
    for name, leaf in leaves.items():
        x = leaf.value if leaf.beyond is None else leaf.value - leaves[leaf.beyond].value
        if not bool(leaf.value.isfinite().all()) or not bool(leaf.constraint.check(x).all()):
            raise invalid_value(
                "fit",
                "q",
                wanted=f"a start within its constraints: {name} in {leaf.constraint}",
                got=f"{name} = {leaf.value.flatten()[:8].tolist()}",
                instead=f"q with a {name} inside that range",
            )
    free, constant = dict(leaves), dict[str, Leaf]()
    for path, leaf in leaves.items():
        if leaf.constraint.is_discrete or (fixed and any(_is_named(path, name) for name in fixed)):
            constant[path] = free.pop(path)
    if not free:
        raise invalid_value(
            "fit",
            "q, fixed",
            wanted="a parameter that is free",
            got=f"{type(q).__name__} with {', '.join(leaves) or 'no parameters'}, all of them fixed",
            instead="fixed=(), or fixed= with fewer names",
        )
    for path, leaf in constant.items():
        # If only the lower end of a `Uniform` is free, the lower end is measured from the fixed upper end.
        if leaf.beyond in free:
            free[leaf.beyond] = Leaf(free[leaf.beyond].value, constraints.positive, path, -1)
    return Family(free, constant, q.batch_shape, dtype_of(q), make)


def _is_named(path: str, name: str) -> bool:
    last = path.rpartition(".")[2]
    return name in (path, last) or (
        {name, last} in ({"probs", "logits"}, {"scale_tril", _MATRICES[0]}, {"scale_tril", _MATRICES[1]})
    )


def _read(d: Distribution, prefix: str) -> tuple[dict[str, Leaf], Build]:
    if isinstance(d, MixtureSameFamily):
        mixing, make_mixing = _read(d.mixture_distribution, f"{prefix}mixture_distribution.")
        part, make_part = _read(d.component_distribution, f"{prefix}component_distribution.")
        return {**mixing, **part}, lambda values: MixtureSameFamily(
            make_mixing(values), make_part(values), validate_args=False
        )
    if isinstance(d, Independent):
        base, make = _read(d.base_dist, prefix)
        count = d.reinterpreted_batch_ndims
        return base, lambda values: Independent(make(values), count, validate_args=False)
    if type(d) is TransformedDistribution:
        base, make = _read(d.base_dist, f"{prefix}base_dist.")
        own = dict(_transform_leaves(d, prefix))
        transforms = d.transforms
        return {**base, **own}, lambda values: TransformedDistribution(
            make(values),
            [_with_parameters(t, f"{prefix}transforms.{i}.", values) for i, t in enumerate(transforms)],
            validate_args=False,
        )
    return _read_plain(d, prefix)


def _transform_leaves(d: TransformedDistribution, prefix: str) -> Iterator[tuple[str, Leaf]]:
    """Yield the name and the `Leaf` of each tensor that requires a gradient in a transform of d."""
    for i, transform in enumerate(d.transforms):
        for name, x in vars(transform).items():
            if isinstance(x, Tensor) and x.requires_grad:
                keeps_sign = name in ("scale", "exponent")
                positive = bool((x.detach() > 0).all())
                constraint = constraints.real
                if keeps_sign:
                    constraint = constraints.positive if positive else constraints.less_than(0.0)
                shape = torch.broadcast_shapes(d.batch_shape + d.event_shape, x.shape)
                yield f"{prefix}transforms.{i}.{name}", Leaf(upcast(x.detach()).expand(shape), constraint)


def _with_parameters(transform: Transform, prefix: str, values: Values) -> Any:
    own = {name: values[prefix + name] for name in vars(transform) if prefix + name in values}
    if not own:
        return transform
    new = copy.copy(transform)
    new.__dict__.update(own, _inv=None, _cached_x_y=(None, None))
    return new


def _read_plain(d: Distribution, prefix: str) -> tuple[dict[str, Leaf], Build]:
    """Return the parameters that the constructor of d accepts, and a function from their values to the distribution."""
    family: Any = type(d)
    accepted = list(inspect.signature(family.__init__).parameters)[1:]
    try:
        ranges: Mapping[str, Any] = d.arg_constraints
    except NotImplementedError:
        ranges = {}
    names = [name for name in accepted if name in ranges]
    if not names:
        raise invalid_type(
            "fit",
            "q",
            wanted="a distribution whose constructor takes the parameters in its arg_constraints",
            got=family.__name__,
            instead="an nn.Module whose forward returns the distribution",
        )
    if "logits" in names and "probs" in names:
        names.remove("probs" if given_logits(getattr(d, "_categorical", d)) else "logits")
    names = [name for name in names if name not in _MATRICES or not isinstance(d, _OF_SCALE_TRIL)]
    constants = {
        name: getattr(d, name)
        for name in accepted
        if name not in ranges and name != "validate_args" and hasattr(d, name)
    }
    checks: dict[str, bool] = {"validate_args": False} if "validate_args" in accepted else {}
    leaves: dict[str, Leaf] = {}
    for name in names:
        x, constraint = tensor_of(getattr(d, name)).detach(), _range_of(d, name, ranges[name])
        own = x.shape[x.ndim - constraint.event_dim :]
        value = upcast(x).expand((*d.batch_shape, *own))
        leaves[prefix + name] = Leaf(value, constraint)

    def make(values: Values) -> Any:
        parameters = {name: values[prefix + name] for name in names}
        whole = {name: getattr(d, name) for name in names if ranges[name].is_discrete}
        return family(**constants, **{**parameters, **whole}, **checks)

    if isinstance(d, Uniform):
        leaves[f"{prefix}high"] = leaves[f"{prefix}high"]._replace(beyond=f"{prefix}low")
    return leaves, make


def _range_of(d: Distribution, name: str, constraint: Any) -> Any:
    if isinstance(d, Uniform):
        return constraints.positive if name == "high" else constraints.real
    if isinstance(d, Wishart) and name == "df":
        return constraints.greater_than(d.event_shape[-1] - 1)
    if isinstance(d, LowRankMultivariateNormal) and name == "cov_factor":
        return constraints.independent(constraints.real, 2)
    return constraint
