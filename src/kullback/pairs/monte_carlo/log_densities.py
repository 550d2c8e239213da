"""The log-densities of P and Q at draws of P, computed so that saturating maps such as tanh do not lose digits.

tanh(20) rounds to 1, and e^100 is infinite in float32, so a draw after such a map does not determine the draw before.
Draws are made before the maps of P, and log p includes the log-determinants of the maps. If all maps are elementwise
and Q's one-dimensional density is known, log q is evaluated at points with exact distances from the ends of the
support. Otherwise log q is evaluated at rounded draws, and an error is raised if the rounding changes the result.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Distribution,
    Independent,
    LKJCholesky,
    MixtureSameFamily,
    Transform,
    TransformedDistribution,
    constraints,
)

from kullback.common.bijective import not_bijective
from kullback.common.dtypes import upcast
from kullback.errors import NoRuleError, no_rule
from kullback.pairs.clone import detached
from kullback.pairs.densities.density import Density, Points, density_of, register_density
from kullback.pairs.densities.maps import (
    inverted_by,
    is_elementwise,
    mapped,
    parts_of_maps,
    shared_last_steps,
)
from kullback.pairs.family import overrides, overrides_density, support_of
from kullback.pairs.registry import names_of
from kullback.pairs.sampling import SEQUENCES, quasi_draws


def maps_outside(d: Distribution) -> tuple[Distribution, list[Transform]]:
    """Return a distribution and a list of maps such that `d` is the distribution of the mapped variable.

    Elementwise maps inside `Independent` become maps of the vector. Maps that are equal for all components of a mixture
    become maps of the mixture.
    """
    if _is_mapped(d):
        base, steps = maps_outside(cast("TransformedDistribution", d).base_dist)
        return base, steps + parts_of_maps(cast("TransformedDistribution", d).transforms)
    if type(d) is Independent:
        base, steps = maps_outside(d.base_dist)
        if steps and is_elementwise(steps):
            return Independent(base, d.reinterpreted_batch_ndims, validate_args=False), steps
    if type(d) is MixtureSameFamily:
        base, steps = maps_outside(d.component_distribution)
        count = 0
        for step in reversed(steps):
            if not (is_elementwise([step]) and _is_shared(step)):
                break
            count += 1
        if count:
            part = mapped(base, steps[: len(steps) - count])
            return MixtureSameFamily(d.mixture_distribution, part, validate_args=False), steps[-count:]
    return d, []


def _is_mapped(d: Distribution) -> bool:
    """Return whether a distribution is a `TransformedDistribution` with torch's own draws and density."""
    return (
        isinstance(d, TransformedDistribution)
        and not any(overrides(d, name) for name in ("log_prob", "sample", "rsample"))
        and type(d).log_prob is TransformedDistribution.log_prob
    )


def _is_shared(step: Transform) -> bool:
    """Return whether a map is the same for all components of a mixture: its parameters, if any, are scalars."""
    return all(
        not isinstance(x, Distribution) and (not isinstance(x, Tensor) or x.numel() == 1)
        for x in vars(inverted_by(step) or step).values()
    )


def without_shared_maps(p: Distribution, q: Distribution) -> tuple[Distribution, Distribution]:
    """Return P and Q without the last maps that both share: equal bijective maps do not change a divergence."""
    (base_p, steps_p), (base_q, steps_q) = maps_outside(p), maps_outside(q)
    count = shared_last_steps(steps_p, steps_q)
    if not count:
        return p, q
    left, right = (mapped(d, s[: len(s) - count]) for d, s in ((base_p, steps_p), (base_q, steps_q)))
    return (left, right) if left.event_shape == right.event_shape else (p, q)


def pushed(u: Tensor, steps: list[Transform], event_dims: int) -> tuple[Tensor, Tensor | None]:
    """Return the images of draws u under the maps `steps`, and log |det J| of their Jacobian, or None without maps."""
    image, log_det = u, None
    for step in steps:
        before: Tensor = image
        image = cast("Tensor", step(before))
        change: Tensor = step.log_abs_det_jacobian(before, image)
        more = event_dims - step.domain.event_dim
        change = change.flatten(-more).sum(-1) if more else change
        log_det = change if log_det is None else log_det + change
        event_dims += step.codomain.event_dim - step.domain.event_dim
    return image, log_det


# Rounded draws are refused if the rounding changes the mean of log p - log q too much. The limit of the change is the
# fraction _SHARE of the standard error of this mean. A smaller change is negligible in a confidence interval.
# The tests in tests/pairs/monte_carlo/test_lost_digits.py check draws below and above this limit.
_SHARE = 1e-3
# A map is flat at a draw if a relative change of the draw by _STEP does not change the image. If the image should
# change by more than _UNITS times its rounding error according to the log-determinant, the map is not a bijection.
# The tests in tests/pairs/monte_carlo/test_lost_digits.py check flat maps and maps that are not bijections.
_STEP, _UNITS = 1e-3, 100.0


class AtDraws(NamedTuple):
    """Log-densities at draws of P, shape (draws, ...), or (draws, components, ...) if `weights` is not None."""

    x: Tensor
    """The draws, without a gradient."""
    log_p: Tensor
    """log p with the gradient through the draws. The gradient of log p by P's parameters has mean 0 and is excluded."""
    log_q: Tensor
    score: Tensor | None
    """log p with the gradient by P's parameters if the draws are not reparameterized; otherwise None."""
    sequences: int = 0
    """The number of quasi-random sequences, or 0 for independent draws. Draw i is in sequence i % sequences."""
    weights: Tensor | None = None
    """The weights of the components of a mixture P, shape (components, ...); each component has equally many draws."""


class _Draws(NamedTuple):
    """Draws of P: the draws `u` before P's maps `steps`, the images `x` of `u` under the maps, and log p at `x`.

    The other fields are the same as in `AtDraws`.
    """

    u: Tensor
    x: Tensor
    steps: list[Transform]
    log_p: Tensor
    score: Tensor | None
    sequences: int = 0
    weights: Tensor | None = None


def at_draws(call: str, p: Distribution, q: Distribution, count: int) -> AtDraws:
    """Return the log-densities at draws of P; raise if rounding changes the result, or a map is no bijection."""
    draws = _drawn(p, count)
    at = _points(p, q, draws)
    if at is None:
        log_p, log_q = draws.log_p, log_prob_inside(q, draws.x)
        _check_digits(call, p, q, draws, log_p, log_q)
    else:
        log_p, log_q = _log_density(detached(p), at), cast("Tensor", _log_density(q, at))
        dims = len(p.event_shape)
        extreme = at.is_extreme().flatten(-dims).any(-1) if dims else at.is_extreme()
        beyond = extreme & ~log_q.detach().isfinite()
        if bool(beyond.any()):
            raise _without_digits(call, p, q, float(beyond.double().mean()), bool(draws.steps))
        log_p = draws.log_p if log_p is None else log_p if draws.score is None else log_p.detach()
    return AtDraws(draws.x.detach(), log_p, log_q, draws.score, draws.sequences, draws.weights)


def _drawn(p: Distribution, count: int) -> _Draws:
    base, steps = maps_outside(p)
    dims = len(base.event_shape)
    score, weights, sequences = None, None, 0
    if isinstance(base, MixtureSameFamily):
        # Each component has the same number of draws; the i-th draws of all components make one draw of P.
        parts, shares = base.component_distribution, cast("Any", base.mixture_distribution).probs
        count_of_each = max(count // shares.shape[-1], 4)
        own = parts.rsample((count_of_each,)) if parts.has_rsample else parts.sample((count_of_each,))
        u = own.movedim(1 + len(base.batch_shape), 1)  # (draws, component, batch, event)
        log_p = (detached(base) if parts.has_rsample else base).log_prob(u)
        score = None if parts.has_rsample else parts.log_prob(own).movedim(-1, 1)
        weights = shares.movedim(-1, 0)
    else:
        u = quasi_draws(base, count)
        sequences = 0 if u is None else SEQUENCES
        if u is None and base.has_rsample:
            u = base.rsample((count,))
        if u is None:
            u = _with_right_draws(base).sample((count,))
            score = log_p = base.log_prob(u)
            log_p = log_p.detach()
        else:
            log_p = detached(base).log_prob(u)
    x, log_det = pushed(u, steps, dims)
    log_p = log_p if log_det is None else log_p - log_det
    return _Draws(u, x, steps, log_p, score, sequences, weights)


def _with_right_draws(p: Distribution) -> Distribution:
    """Return P; for LKJCholesky, return a corrected copy, because torch's draws do not follow the density.

    Without the diagonal, the squared norm of row i of the factor should have the distribution Beta(i / 2, ...). But
    torch uses Beta(i - 1 / 2, ...).
    Generating Random Correlation Matrices Based on Vines and Extended Onion Method (Lewandowski et al., 2009)
    """
    if not isinstance(p, LKJCholesky):
        return p
    right = copy.copy(p)
    beta = p._beta  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    right._beta = Beta(beta.concentration1 / 2 + 0.25, beta.concentration0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return right


def log_prob_inside(q: Distribution, x: Tensor) -> Tensor:
    """Return Q's log-density at draws x of P; -inf at draws outside the support of Q."""
    support = support_of(q)
    inside = None if support is None else support.check(x.detach())
    if inside is None or bool(inside.all()):
        return q.log_prob(x)
    own = len(q.event_shape)
    stand_in = q.sample(x.shape[: x.ndim - own - len(q.batch_shape)])
    at = torch.where(inside.reshape(*inside.shape, *[1] * own), x, stand_in)
    return torch.where(inside, q.log_prob(at), -torch.inf)


# ---- Points with exact distances from the ends of the support.


class _Line(Distribution):
    """A distribution that has only a support: the support of the numbers before the maps of P."""

    def __init__(self, density: _LineDensity, shape: torch.Size) -> None:
        self.density = density
        super().__init__(shape, validate_args=False)


@dataclass(frozen=True)
class _LineDensity(Density):
    """The density of `_Line`, which has only a support: the support of `part`, or the real line if `part` is None."""

    part: Density | None

    @property
    def low(self) -> Tensor | None:
        return None if self.part is None else self.part.low

    @property
    def high(self) -> Tensor | None:
        return None if self.part is None else self.part.high

    def log_density(self, at: Points) -> Tensor:
        raise NotImplementedError("these numbers have only a support")

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        return zero, torch.ones_like(zero)


register_density(_Line)(lambda d: d.density)


def _points(p: Distribution, q: Distribution, draws: _Draws) -> Points | None:
    """Return the draws as points with exact distances from the ends of the support.

    The result is None if no maps exist, if a map is not elementwise, or if Q's one-dimensional density is not known.
    """
    if not (draws.steps or maps_outside(q)[1]) or not is_elementwise(draws.steps):
        return None
    of_q = density_of_numbers(q)
    start = _line_before_maps(maps_outside(p)[0])
    if of_q is None or start is None:
        return None
    line = _Line(start, torch.Size([*p.batch_shape, *p.event_shape]))
    try:
        image = density_of(mapped(line, draws.steps))
    except NotImplementedError:  # a map without a formula, which would need draws of `_Line`
        return None
    if image is None or not _reaches(of_q, image):
        return None
    return image.coordinate().points(_coordinate(image, upcast(draws.u)))


def _log_density(d: Distribution, at: Points) -> Tensor | None:
    """Return the log-density of a distribution at exact points, or None if `density_of_numbers` is None."""
    density = density_of_numbers(d)
    if density is None:
        return None
    dims = len(d.event_shape)
    log_density = density.log_density(at)
    return log_density.flatten(-dims).sum(-1) if dims else log_density


def density_of_numbers(q: Distribution) -> Density | None:
    """Return the one-dimensional density of each number of Q, or None if it is unknown or the numbers are dependent."""
    while isinstance(q, Independent):
        q = q.base_dist
    density = None if q.event_shape or overrides_density(q) else density_of(q)
    is_unknown = density is None or density.integer or not density.is_splittable()
    return None if is_unknown else density


def _line_before_maps(base: Distribution) -> _LineDensity | None:
    """Return the support of the numbers before the maps, or None if it is not known."""
    support = support_of(base)
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support is constraints.real:
        return _LineDensity(None)
    density = density_of_numbers(base)
    return None if density is None else _LineDensity(density)


def _reaches(outer: Density, inner: Density) -> bool:
    """Return whether the support of `outer` contains the support of `inner` in all batch elements."""
    (low, high), (least, most) = outer.ends(), inner.ends()
    return bool((low <= least).all()) and bool((high >= most).all())


def _coordinate(image: Density, u: Tensor) -> Tensor:
    """Return the image of u under the maps, in the coordinate of the density `image` of the mapped variable."""
    if isinstance(image, _LineDensity):
        return image.coordinate().of(u)
    of_map = cast("Any", image)
    return of_map.image_coordinate(_coordinate(of_map.part, u))


# ---- Draws that lost digits.


def _check_digits(
    call: str, p: Distribution, q: Distribution, draws: _Draws, log_p: Tensor, log_q: Tensor
) -> None:
    """Raise if the rounding of draws changes the result.

    Draws may be rounded if several draws are equal to the smallest or largest draw, or if a map is flat at a draw.
    """
    support = support_of(p)
    if support is not None and support.is_discrete:
        return
    support_of_q = support_of(q)
    if maps_outside(q)[1] and support_of_q is not None:
        beyond = (log_q.detach() == -torch.inf) & support_of_q.check(draws.x.detach())
        if bool(beyond.any()):
            raise _without_digits(call, p, q, float(beyond.double().mean()), bool(draws.steps))
    with torch.no_grad():
        x, dims = draws.x.detach(), len(p.event_shape)
        lost = ~x.isfinite()
        for end in (x.amin(0), x.amax(0)):
            piled = x == end
            lost = lost | (piled & (piled.sum(0) > 1))
        lost = lost | _flat(call, p, draws)
        if not bool(lost.any()):
            return
        d = log_p - log_q
        inward = torch.where(lost, _inward(x), x)
        own = draws.log_p if draws.steps else p.log_prob(inward)
        change = (own - log_prob_inside(q, inward)) - d
        rows = lost.flatten(-dims).any(-1) if dims else lost
        is_lost = rows & ~change.isfinite()
        error = torch.where(rows & change.isfinite(), change, 0).abs().mean(0)
        spread = torch.where(d.isfinite(), d, 0).std(0) / len(d) ** 0.5
        matters = is_lost.any(0) | (error > _SHARE * spread + 1e-7 * (1 + spread))
    if bool(matters.any()):
        raise _without_digits(call, p, q, float(rows.double().mean()), bool(draws.steps))


def _without_digits(call: str, p: Distribution, q: Distribution, share: float, has_maps: bool) -> NoRuleError:
    """Return the error for draws that round to an end of a support, at which log q is wrong or not finite."""
    before = "the variables before equal maps of P and Q, whose divergence is the same, " if has_maps else ""
    return no_rule(
        call,
        "method",
        wanted="draws of P that keep their digits for method='monte_carlo'",
        got=f"{names_of(type(p), type(q))}, where {share:.2g} of the draws round to an end of a support or overflow",
        instead=f"{before}parameters in float64, or method='auto' where a rule serves the pair",
    )


def _flat(call: str, p: Distribution, draws: _Draws) -> Tensor:
    """Return a mask of the draws at which P's elementwise maps are flat: a small change does not change the image.

    Raise if a flat map has a log-determinant that proves that the map is not a bijection.
    """
    x = draws.x.detach()
    if not draws.steps or not is_elementwise(draws.steps):
        return torch.zeros_like(x, dtype=torch.bool)
    u = draws.u.detach()
    move = _STEP * (1 + u.abs())
    flat = torch.ones_like(x, dtype=torch.bool)
    for step in (move, -move):
        flat = flat & (pushed(u + step, draws.steps, 0)[0] == x)
    log_det = pushed(u, draws.steps, 0)[1]
    if log_det is not None and bool(flat.any()):
        unit = torch.finfo(x.dtype).eps * (1 + x.abs())
        if bool((flat & x.isfinite() & (torch.exp(log_det) * move > _UNITS * unit)).any()):
            raise not_bijective(call, "p", p, draws.steps[-1])
    return flat


def _inward(x: Tensor) -> Tensor:
    """Return, for each number, the next float in the direction of the median of the draws.

    Numbers near 0 become 4 times the smallest normal float, with the sign of the median.
    """
    info = torch.finfo(x.dtype)
    middle = x.nan_to_num(nan=0.0).median(0).values
    near_zero = x.abs() < 4 * info.tiny
    moved = torch.where(
        near_zero, 4 * info.tiny * torch.sign(middle), torch.nextafter(x, middle.expand_as(x))
    )
    return moved.clamp(info.min, info.max)
