"""The decomposition of torch's transforms into elementary steps, for the comparison of transforms.

The elementary steps are affine maps, exp, sigmoid, softplus, the distribution functions of the standard normal,
Laplace and Cauchy distributions, and the inverses of all these. Any other transform is a single step. Transforms that
are the same function have the same steps, for example tanh and 2 sigmoid(2 y) - 1.

`plain_form` removes needless wrappers and transforms: an affine transform of a Normal becomes a Normal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Distribution,
    Independent,
    LogNormal,
    MixtureSameFamily,
    TransformedDistribution,
    Uniform,
)
from torch.distributions.transforms import (
    CatTransform,
    ComposeTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    PowerTransform,
    SigmoidTransform,
    SoftplusTransform,
    StackTransform,
    TanhTransform,
    Transform,
)

from kullback.common.dtypes import tensor_of, upcast
from kullback.common.inputs import can_inspect, can_inspect_all
from kullback.pairs.densities.density import density_of
from kullback.pairs.family import FAMILIES, overrides, overrides_density
from kullback.pairs.numerics.parameters import (
    are_equal,
    dtype_of,
    is_differentiated,
    is_whole_graph,
    outside_of_graphs,
)
from kullback.pairs.registry import is_plain
from kullback.pairs.torch_registry import is_of_torch

# _ROUNDING bounds the relative rounding error of a product of a few numbers.
_ROUNDING = 4 * torch.finfo(torch.float64).eps


def inverted_by(step: Transform) -> Transform | None:
    """Return f if `step` is torch's wrapper for the inverse of f, or None for any other transform."""
    return getattr(step, "_inv", None) if type(step).__name__ == "_InverseTransform" else None


def parts_of_maps(transforms: Iterable[Transform]) -> list[Transform]:
    """Return the transforms in order, with compositions, and wrappers of event dimensions, replaced by their parts."""
    return [part for transform in transforms for part in _parts(transform)]


def steps_of(transforms: Iterable[Transform], dtype: torch.dtype = torch.float64) -> list[Transform]:
    """Return the elementary steps of transforms; identities, and pairs of a map and its inverse, are dropped.

    Parameters that are Python numbers are rounded to `dtype`, because torch does so when it maps tensors of this dtype.
    """
    parts = _without_round_trips(_rounded(part, dtype) for part in parts_of_maps(transforms))
    return _without_round_trips([step for part in parts for step in _elementary(part)])


def _rounded(part: Transform, dtype: torch.dtype) -> Transform:
    inner = inverted_by(part)
    if inner is not None:
        rounded = _rounded(inner, dtype)
        return part if rounded is inner else rounded.inv
    if type(part) is not AffineTransform or dtype == torch.float64:
        return part
    loc, scale = (x if isinstance(x, Tensor) else float(tensor_of(x, dtype)) for x in (part.loc, part.scale))
    return part if (loc, scale) == (part.loc, part.scale) else AffineTransform(loc, scale)


def base_and_steps(d: TransformedDistribution) -> tuple[Distribution, list[Transform]]:
    """Return the innermost base of nested transformed distributions, and the elementary steps from it to `d`."""
    base, maps = d.base_dist, list(d.transforms)
    while is_map(base):
        base, maps = base.base_dist, [*base.transforms, *maps]
    dtype = dtype_of(d)
    steps = steps_of(maps, dtype)
    if type(base) is LogNormal and steps:
        shorter = steps_of([ExpTransform(), *maps], dtype)
        return (base.base_dist, shorter) if len(shorter) < len(steps) else (base, steps)
    return base, steps


def is_map(d: Distribution) -> TypeGuard[TransformedDistribution]:
    """Return whether a distribution is a TransformedDistribution of no named family, with torch's log_prob."""
    if not isinstance(d, TransformedDistribution) or overrides(d, "log_prob"):
        return False
    return next(kind for kind in type(d).__mro__ if is_of_torch(kind)) is TransformedDistribution


def _parts(transform: Transform) -> list[Transform]:
    inner = inverted_by(transform)
    if inner is not None:
        parts = _parts(inner)
        return [transform] if parts == [inner] else [part.inv for part in reversed(parts)]
    if isinstance(transform, ComposeTransform):
        return parts_of_maps(transform.parts)
    if isinstance(transform, IndependentTransform):
        return _parts(transform.base_transform)
    if isinstance(transform, AffineTransform) and transform.event_dim:
        return [AffineTransform(transform.loc, transform.scale)]
    slices = transform.transforms if isinstance(transform, StackTransform | CatTransform) else []
    each = [_parts(part) for part in slices]
    is_one_map = (
        bool(each) and is_elementwise(each[0]) and all(same_maps(each[0], other) for other in each[1:])
    )
    return each[0] if is_one_map else [transform]


def is_elementwise(steps: Iterable[Transform]) -> bool:
    """Return whether every transform maps each number of a tensor separately."""
    return not any(step.domain.event_dim or step.codomain.event_dim for step in steps)


def _without_round_trips(steps: Iterable[Transform]) -> list[Transform]:
    kept: list[Transform] = []
    for step in steps:
        back = kept[-1].inv if kept and kept[-1].bijective else None
        if back is not None and same_maps(back, step) and not move_apart(back, step):
            kept.pop()
            continue
        kept += [step]
        shorter = _shortened(kept)
        if shorter is not None:
            kept = _without_round_trips(shorter)
        count = next(
            (i for i, part in enumerate(reversed(kept)) if type(part) is not AffineTransform), len(kept)
        )
        if count and _is_identity(kept[len(kept) - count :]):
            del kept[len(kept) - count :]
    return kept


def _shortened(steps: list[Any]) -> list[Transform] | None:
    """Return equivalent steps that do not overflow, if the last steps can be replaced by such steps; otherwise None."""
    inverse = inverted_by(steps[-1])
    before = steps[-2] if len(steps) > 1 else None
    is_log = isinstance(inverse, ExpTransform)
    if is_log and isinstance(before, SigmoidTransform):
        return [*steps[:-2], scaling(-1.0), SoftplusTransform(), scaling(-1.0)]
    if isinstance(inverse, SigmoidTransform) and isinstance(before, ExpTransform):
        return [*steps[:-2], scaling(-1.0), SoftplusTransform().inv, scaling(-1.0)]
    if is_log and type(before) is AffineTransform and isinstance([None, *steps][-3], ExpTransform):
        middle = _log_of_affine_exp(before)
        return None if middle is None else [*steps[:-3], *middle]
    return None


def _log_of_affine_exp(between: AffineTransform) -> list[Transform] | None:
    """Return transforms that together map y to log(a + b e^y), for b > 0.

    The result is None if a or b is unknown, if b is not positive, or if the sign of a differs within the batch.
    For a > 0 the result is log a + softplus(y + log(b / a)). For a < 0 the result is log |a| + g(y + log(b / |a|)),
    where g is the inverse of softplus. For a = 0 the result is y + log b.
    """
    loc, scale = exact_parameters(between)
    if not can_inspect_all((loc, scale)) or not bool((scale > 0).all()):
        return None
    log_scale, log_size = torch.log(scale), torch.log(loc.abs())
    if bool((loc == 0).all()):
        return [shift(log_scale)]
    if bool((loc > 0).all()):
        return [shift(log_scale - log_size), SoftplusTransform(), shift(log_size)]
    inverse = [shift(log_scale - log_size), SoftplusTransform().inv, shift(log_size)]
    return inverse if bool((loc < 0).all()) else None


def _is_identity(steps: list[Any]) -> bool:
    """Return whether the composition of affine steps is the identity, up to rounding errors if there are several."""
    loc, scale, size = 0.0, 1.0, 0.0
    for step in steps:
        own = [_constant(step.loc), _constant(step.scale)]
        if None in own:
            return False
        loc, scale, size = own[0] + own[1] * loc, own[1] * scale, abs(own[0]) + abs(own[1]) * size
    rounding = _ROUNDING if len(steps) > 1 else 0.0
    return abs(scale - 1) <= rounding and abs(loc) <= rounding * size


def _constant(x: Tensor | float) -> Any:
    """Return a parameter as a number if all elements are equal, or None if they differ or cannot be read."""
    if not isinstance(x, Tensor):
        return float(x)
    if torch.compiler.is_compiling() or not can_inspect(x) or is_differentiated(x) or not x.numel():
        return None
    first = x.flatten()[0]
    return float(first) if bool((x == first).all()) else None


def _elementary(part: Transform) -> list[Transform]:
    """Return the elementary steps of a transform, or the transform itself if it has no decomposition."""
    inner = inverted_by(part)
    forward = part if inner is None else inner
    if isinstance(forward, AffineTransform):
        return [part] if inner is None else _inverse_affine(forward)
    if isinstance(forward, PowerTransform):
        exponent = exact(forward.exponent)
        return [ExpTransform().inv, scaling(exponent if inner is None else 1 / exponent), ExpTransform()]
    steps: list[Transform] = [forward]
    if isinstance(forward, TanhTransform):
        steps = [scaling(2.0), SigmoidTransform(), AffineTransform(-1.0, 2.0)]
    if isinstance(forward, CumulativeDistributionTransform):
        steps = _distribution_function(forward)
    if steps == [forward]:
        return [part]
    whole = steps if inner is None else [step.inv for step in reversed(steps)]
    return [step for each in parts_of_maps(whole) for step in _elementary(each)]


def _inverse_affine(forward: AffineTransform) -> list[Transform]:
    is_zero = not isinstance(forward.scale, Tensor) and forward.scale == 0
    return [forward.inv] if is_zero else [shift(-exact(forward.loc)), scaling(1 / exact(forward.scale))]


def _distribution_function(transform: CumulativeDistributionTransform) -> list[Transform]:
    """Return the elementary steps of a distribution function, or the transform itself if they are unknown."""
    d: Any = transform.distribution
    if standard_family(transform) is not None or any(
        overrides(d, method) for method in ("log_prob", "cdf", "icdf")
    ):
        return [transform]
    family = FAMILIES.get(type(d))
    steps = None if family is None or family.cdf is None else family.cdf(d)
    if steps is None and isinstance(d, TransformedDistribution):
        steps = _transformed_distribution_function(d)
    return [transform] if steps is None else steps


def _transformed_distribution_function(d: TransformedDistribution) -> list[Transform] | None:
    """Return the steps of the distribution function of a transformed distribution.

    The steps are the inverses of the transforms, the distribution function of the base and, if the transforms decrease,
    u -> 1 - u. The result is None if a transform is not bijective, or if the sign of its slope is unknown.
    """
    sign: Any = 1
    for transform in d.transforms:
        sign = sign * transform.sign
    sign = _constant(sign)
    if sign is None or d.event_shape or not all(transform.bijective for transform in d.transforms):
        return None
    back = [transform.inv for transform in reversed(d.transforms)]
    turn = [AffineTransform(1.0, -1.0)] if sign < 0 else []
    return [*back, CumulativeDistributionTransform(d.base_dist), *turn]


def shift(loc: Any) -> Transform:
    """Return the step x -> x + loc."""
    return AffineTransform(loc, 1.0)


def scaling(scale: Any) -> Transform:
    """Return the step x -> scale x."""
    return AffineTransform(0.0, scale)


def exact_parameters(step: AffineTransform) -> tuple[Tensor, Tensor]:
    """Return the location and the scale of an affine step in float64."""
    loc, scale = (
        upcast(tensor_of(x, None if isinstance(x, Tensor) else torch.float64)) for x in (step.loc, step.scale)
    )
    return loc, scale


def exact(x: Tensor | float) -> Any:
    """Return a parameter in float64, so that 1 / x and -x have all digits of float64."""
    return upcast(x) if isinstance(x, Tensor) else float(x)


def standard_family(step: Transform) -> type | None:
    """Return the family whose standard distribution function is this step, or None for any other step."""
    return next((family for family, standard in _STANDARD.items() if step is standard), None)


# _STANDARD maps each family to its standard distribution function. `standard_family` compares these objects by
# identity, because inside of torch.func a parameter cannot be compared with 0 or 1.
_STANDARD: dict[type, Transform] = {}


def enter_standard(kind: type) -> None:
    """Register the distribution function of a family with location 0 and scale 1 as an elementary step."""
    standard = (torch.full((), x, dtype=torch.float64, device="cpu") for x in (0.0, 1.0))
    _STANDARD[kind] = CumulativeDistributionTransform(kind(*standard, validate_args=False))


def standardized(d: Any) -> list[Transform]:
    """Return the steps of F((x - loc) / scale), the distribution function of a distribution with a loc and a scale."""
    steps = [shift(-exact(d.loc)), scaling(1 / exact(d.scale)), _STANDARD[type(d)]]
    return [step for step in steps if not (type(step) is AffineTransform and _is_identity([step]))]


def folded(kind: type) -> Callable[[Any], list[Transform]]:
    """Return a function that returns the steps of the distribution function of |X| for an X of a symmetric family."""
    return lambda d: [scaling(1 / exact(d.scale)), _STANDARD[kind], AffineTransform(-1.0, 2.0)]


def same_maps(a: Any, b: Any) -> bool:
    """Return whether two transforms, or distributions in them, are equal, even if their class defines no equality."""
    if a is b:
        return True
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same_maps(x, y) for x, y in zip(a, b, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and _are_known_equal(a, b)
    if type(a) is type(b) and isinstance(a, Transform) and inverted_by(a) is not None:
        return same_maps(inverted_by(a), inverted_by(b))
    if type(a) is type(b) and _is_compared_by_attributes(a):
        own, others = _attributes(a), _attributes(b)
        return own.keys() == others.keys() and all(same_maps(x, others[name]) for name, x in own.items())
    return bool(a == b)


def _are_known_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal, or False if Python cannot read the values.

    In a graph that torch.compile must not break, only the values of constants can be read.
    """
    if not torch.compiler.is_compiling():
        return can_inspect_all((a, b)) and are_equal(a, b)
    if not is_whole_graph():
        return outside_of_graphs(are_equal)(a, b)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # loads SymPy, like the compiler

    return guard_or_false(cast("bool", (a == b).all().item()))


def _is_compared_by_attributes(a: object) -> bool:
    """Return whether to compare `a` by its attributes instead of __eq__.

    Some classes define no __eq__ by value, and torch.compile cannot trace the __eq__ of torch's transforms.
    """
    if isinstance(a, Distribution):
        return True
    if not (isinstance(a, Transform) and is_of_torch(type(a))):
        return False
    return torch.compiler.is_compiling() or type(a).__eq__ is Transform.__eq__


def _attributes(thing: object) -> Mapping[str, object]:
    """Return the attributes that determine the values of a transform or of a distribution's density.

    Private attributes of torch's transforms are caches, and private numbers of torch's distributions are settings, so
    both are left out.
    """
    if not is_of_torch(type(thing)):
        return vars(thing)
    is_map = isinstance(thing, Transform)
    return {
        name: x
        for name, x in vars(thing).items()
        if not name.startswith("_") or (isinstance(x, Tensor | Distribution) and not is_map)
    }


def move_apart(a: object, b: object) -> bool:
    """Return whether two equal transforms have parameters that are different tensors and require gradients."""
    if a is b or not torch.is_grad_enabled():
        return False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return is_differentiated(a) or is_differentiated(b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return any(map(move_apart, a, b))  # pyright: ignore[reportUnknownArgumentType]
    if not (isinstance(a, Transform | Distribution) and isinstance(b, Transform | Distribution)):
        return any(isinstance(x, Tensor) and is_differentiated(x) for x in (a, b))
    if isinstance(a, Transform) and isinstance(b, Transform) and inverted_by(a) is not None:
        return move_apart(inverted_by(a), inverted_by(b))
    others = _attributes(b)
    return any(move_apart(x, others.get(name)) for name, x in _attributes(a).items())


def shared_last_steps(steps: list[Transform], others: list[Transform]) -> int:
    """Return the number of last steps that are bijective and equal in both lists.

    A divergence of the mapped distributions does not depend on these steps. Steps with equal values count as different
    if their parameters are different tensors that require gradients.
    """
    count = 0
    for step, other in zip(reversed(steps), reversed(others), strict=False):
        if not (step.bijective and same_maps(step, other) and not move_apart(step, other)):
            break
        count += 1
    return count


def mapped(base: Distribution, steps: list[Transform]) -> Distribution:
    """Return the distribution of a draw from `base` after the maps `steps`, or `base` itself if there are no steps."""
    return TransformedDistribution(base, steps, validate_args=False) if steps else base


def plain_form(d: Distribution) -> Distribution:
    """Return the same distribution with fewer wrappers and transforms, or `d` itself if none can be removed."""
    if is_plain(type(d)) or overrides_density(d):
        return d
    if isinstance(d, Independent):
        return _of_independent(d)
    if is_map(d):
        return _of_map(d)
    if isinstance(d, MixtureSameFamily):
        parts = plain_form(d.component_distribution)
        if parts is not d.component_distribution:
            return MixtureSameFamily(d.mixture_distribution, parts, validate_args=False)
    return d


def pulled_back(p: Distribution, q: Distribution) -> tuple[Distribution, Distribution] | None:
    """Return P and Q after undoing a transform of P or Q that maps the real line onto a part of it, such as exp.

    Later transforms are undone too. If neither P nor Q has such a transform, the result is None.

    A transform such as exp brings an infinite end close to 0, where float64 cannot resolve the mass of a slowly falling
    tail. Undoing the transform does not change the divergence, and float64 resolves this mass on the whole line.
    """
    for side, other in ((p, q), (q, p)):
        if not is_map(side) or side.event_shape:
            continue
        base, steps = base_and_steps(side)
        last = next((i for i in reversed(range(len(steps))) if isinstance(steps[i], _ONTO_A_PART)), None)
        if last is None:
            continue
        back = [step.inv for step in reversed(steps[last:])]
        moved = TransformedDistribution(other, back, validate_args=False)
        before = mapped(base, steps[:last])
        if density_of(moved) is not None:
            return (before, moved) if side is p else (moved, before)
    return None


_ONTO_A_PART = (ExpTransform, SigmoidTransform, SoftplusTransform, CumulativeDistributionTransform)


def _of_independent(d: Any) -> Distribution:
    base, count = plain_form(d.base_dist), d.reinterpreted_batch_ndims
    if isinstance(base, Independent) and not overrides_density(base):
        base, count = base.base_dist, count + base.reinterpreted_batch_ndims
    if not count:
        return base
    return d if base is d.base_dist else Independent(base, count, validate_args=False)


def _of_map(d: TransformedDistribution) -> Distribution:
    base, steps = base_and_steps(d)
    base = plain_form(base)
    if isinstance(base, Independent) and not overrides_density(base) and is_elementwise(steps):
        each = TransformedDistribution(base.base_dist, steps, validate_args=False)
        return _of_independent(Independent(each, base.reinterpreted_batch_ndims, validate_args=False))
    while steps and (image := _image_in_family(base, steps[0])) is not None:
        base, steps = image, steps[1:]
    if not steps:
        return base
    is_unchanged = base is d.base_dist and len(steps) == len(d.transforms)
    if is_unchanged and all(a is b for a, b in zip(steps, d.transforms, strict=True)):
        return d
    return TransformedDistribution(base, steps, validate_args=False)


def _image_in_family(base: Any, step: Transform) -> Distribution | None:
    """Return the distribution of step(x) if it belongs to a registered family, or None otherwise."""
    if overrides_density(base):
        return None
    if isinstance(step, AffineTransform):
        family = FAMILIES.get(type(base))
        if family is None or family.image is None:
            return None
        loc, scale = exact_parameters(step)
        return None if can_inspect(scale) and bool((scale == 0).any()) else family.image(base, loc, scale)
    if isinstance(step, CumulativeDistributionTransform) and same_maps(step.distribution, base):
        zero = torch.zeros(base.batch_shape, dtype=torch.float64, device="cpu")
        return Uniform(zero, zero + 1, validate_args=False)
    inverse = inverted_by(step)
    if isinstance(inverse, CumulativeDistributionTransform) and type(base) is Uniform:
        is_unit = can_inspect(base.low) and bool((base.low == 0).all()) and bool((base.high == 1).all())
        known: Any = inverse.distribution
        return known.expand(base.batch_shape) if is_unit else None
    return None
