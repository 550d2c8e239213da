"""Minimization of a smooth function for every element of a batch, with independent steps for each element.

The first steps are quasi-Newton steps with a line search for the weak Wolfe conditions. Newton steps follow, with a
Hessian H from differences of gradients. With the gradient g, the Newton decrement :math:`g^T H^{-1} g / 2` estimates
the difference between the value and the minimum.

Numerical Optimization, chapters 3 and 6 (Nocedal and Wright, 2006); Nonsmooth Optimization via Quasi-Newton Methods
(Lewis and Overton, 2013)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# The Armijo condition uses `_DECREASE` and the Wolfe condition uses `_CURVATURE`. Numerical Optimization (Nocedal and
# Wright, 2006), section 3.1, recommends these values for quasi-Newton steps.
_DECREASE, _CURVATURE = 1e-4, 0.9
# A line search evaluates at most this number of points. 40 halvings divide the length of an interval by 1e12, which is
# near the precision of float64.
_TRIALS = 40
# Above this number of parameters, the Hessian is not computed, because each parameter needs two gradients for the
# differences.
_MOST_DIFFERENCES = 40
# A column of the Hessian is the difference of the gradients at two points, this step on either side of u. The best step
# is the cube root of the relative error of a gradient, and this error is about 1e-12.
_DIFFERENCE = 1e-4
# Newton steps converge quadratically, so at most this number of steps is needed after the quasi-Newton steps.
_NEWTON_STEPS = 6
# The Hessian is computed again only after a Newton step that is longer than this distance.
_NEAR = 1e-3
# A point counts as a saddle point if an eigenvalue of the Hessian is below -_SADDLE times the largest absolute
# eigenvalue. Differences of gradients give an eigenvalue with an error of about 1e-8 times the largest eigenvalue.
_SADDLE = 1e-5
# An eigenvalue below this fraction of the largest absolute eigenvalue is rounding error, and its eigenvector counts as
# a flat direction.
_FLAT = 1e-9

# A `Function` takes u, shape (elements, parameters), and returns the values, shape (elements,), and the gradients of
# the values, shape (elements, parameters).
Function = Callable[[Tensor], tuple[Tensor, Tensor]]


class Minimum(NamedTuple):
    """The final points of a batch, shape (elements, parameters) for `u` and `gradient`, else (elements,).

    `above`, `converged`, `iterations` and `history` mean the same as in `Fit`.
    """

    u: Tensor
    value: Tensor
    gradient: Tensor
    above: Tensor
    converged: Tensor
    iterations: Tensor
    history: list[Tensor]


def lower_of(first: Minimum, other: Minimum, tol: float) -> Minimum:
    """Return, for each element, `other` if it converged to a value that is lower by more than `tol`, else `first`."""
    better = other.converged & (other.value < first.value - tol * (1 + first.value.abs()))
    steps = max(len(first.history), len(other.history))
    padded = [[*x.history, *[x.history[-1]] * (steps - len(x.history))] for x in (first, other)]
    history = [torch.where(better, y, x) for x, y in zip(*padded, strict=True)]

    def chosen(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(better[:, None] if x.ndim > 1 else better, y, x)

    u, value, gradient, above, converged, iterations = map(chosen, first[:-1], other[:-1])
    return Minimum(u, value, gradient, above, converged, iterations, history)


def minimize(
    function: Function,
    u: Tensor,
    *,
    tol: float,
    max_iterations: int,
    update: Callable[[int, int | None], None] | None = None,
) -> Minimum:
    """Return the minimum of a function of a vector, for each element of a batch of vectors.

    The values may be infinite, except at the start u, shape (elements, parameters). `tol` is the largest accepted
    difference between a value and the minimum, relative to 1 + |value|. The arguments of `update` are the number of
    finished steps and the total, or None if the total is unknown.
    """
    f, g = function(u)
    history = [f]
    iterations = torch.zeros(u.shape[0], dtype=torch.int64, device=u.device)
    above = torch.full_like(f, torch.inf)
    can_check = u.shape[-1] <= _MOST_DIFFERENCES
    while len(history) <= max_iterations:
        steps = max_iterations + 1 - len(history)
        u, f, g, above, more = _descended(function, u, f, g, tol, steps, history, update)
        iterations = iterations + more
        if not can_check:
            break
        u, f, g, above, polished = _polished(function, u, f, g, above)
        iterations = iterations + polished
        history.append(f)
        # `above` exceeds the tolerance at a saddle point, and if rounding errors ended the quasi-Newton steps too
        # early. In both cases, more quasi-Newton steps follow.
        short = above > tol * (1 + f.abs())
        if not bool((short & (more + polished > 0)).any()):
            break
    converged = (above <= tol * (1 + f.abs())) & f.isfinite()
    return Minimum(u, f, g, above, converged, iterations, history)


def _descended(
    function: Function,
    u: Tensor,
    f: Tensor,
    g: Tensor,
    tol: float,
    steps: int,
    history: list[Tensor],
    update: Callable[[int, int | None], None] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Take at most `steps` quasi-Newton steps from u, of value f and gradient g, and append the values to `history`.

    The results are the final points, values and gradients, estimates above the minima, and the numbers of steps.
    """
    elements, size = u.shape
    identity = torch.eye(size, dtype=u.dtype, device=u.device).expand(elements, size, size)
    inverse = identity.clone()
    scaled = torch.zeros(elements, dtype=torch.bool, device=u.device)
    active = torch.ones(elements, dtype=torch.bool, device=u.device)
    taken = torch.zeros(elements, dtype=torch.int64, device=u.device)
    for _ in range(steps):
        direction = -(inverse @ g.unsqueeze(-1)).squeeze(-1)
        derivative = (direction * g).sum(-1)
        bad = ~(derivative < 0) | ~direction.isfinite().all(-1)
        if bool(bad.any()):
            inverse = torch.where(bad[:, None, None], identity, inverse)
            direction = torch.where(bad[:, None], -g, direction)
            derivative = torch.where(bad, -(g * g).sum(-1), derivative)
        worthwhile = -derivative / 2 > 0.1 * tol * (1 + f.abs()).clamp(max=1e3)
        active = active & worthwhile & (g.abs().amax(-1) > 0)
        if not bool(active.any()):
            break
        # The first step has a length of at most 1, so parameters such as logarithms of scales change by at most 1.
        length = direction.norm(dim=-1)
        first = torch.where(scaled, 1.0, 1 / length.clamp(min=1))
        t, new_f, new_g = _line_search(function, u, f, g, direction, derivative, first, active)
        moved = active & (t > 0)
        s = torch.where(moved[:, None], t[:, None] * direction, 0)
        y = torch.where(moved[:, None], new_g - g, 0)
        inverse, scaled = _updated(inverse, identity, s, y, scaled)
        u, f, g = u + s, torch.where(moved, new_f, f), torch.where(moved[:, None], new_g, g)
        taken = taken + moved
        active = moved  # if no step lowers the value, the possible decrease is below the rounding error
        history.append(f)
        if update:
            update(len(history), None)
    decrement = (g.unsqueeze(-2) @ inverse @ g.unsqueeze(-1)).squeeze(-1).squeeze(-1).abs() / 2
    return u, f, g, decrement, taken


def _line_search(
    function: Function,
    u: Tensor,
    f: Tensor,
    g: Tensor,
    direction: Tensor,
    derivative: Tensor,
    t: Tensor,
    active: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return step lengths that meet the weak Wolfe conditions, or 0, and the values and gradients after these steps.

    `derivative` is the directional derivative at u, `t` the first length, and `active` masks the elements that step.
    """
    low, high = torch.zeros_like(f), torch.full_like(f, torch.inf)
    best_t, best_f, best_g = torch.zeros_like(f), f, g
    searching = active
    for _ in range(_TRIALS):
        new_f, new_g = function(u + torch.where(searching, t, best_t)[:, None] * direction)
        new_f = torch.where(new_f.isnan() | ~new_g.isfinite().all(-1), torch.inf, new_f)
        new_g = new_g.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        enough = new_f <= f + _DECREASE * t * derivative
        new_derivative = (new_g * direction).sum(-1)
        # If the new value differs from the old value only by rounding, the step is accepted if it reduces the
        # directional derivative.
        close = (new_f - f).abs() <= 1e-14 * (1 + f.abs())
        enough = enough | (close & (new_derivative.abs() < derivative.abs()))
        better = searching & enough & ((new_f <= best_f) | close)
        best_t, best_f = torch.where(better, t, best_t), torch.where(better, new_f, best_f)
        best_g = torch.where(better[:, None], new_g, best_g)
        steep = new_derivative < _CURVATURE * derivative
        done = enough & ~steep
        searching = searching & ~done
        if not bool(searching.any()):
            break
        high = torch.where(enough, high, t)
        low = torch.where(enough, t, low)
        t = torch.where(searching, torch.where(high.isinf(), 2 * t, (low + high) / 2), t)
        searching = searching & ((high - low).isinf() | (high - low > 1e-14 * high))
    return best_t, best_f, best_g


def _updated(
    inverse: Tensor, identity: Tensor, s: Tensor, y: Tensor, scaled: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the BFGS update of the approximate inverse Hessian `inverse`, and whether this matrix was ever scaled.

    `s` is the last step, `y` the change of the gradient by this step, and `scaled` whether `inverse` was scaled before.
    Before the first update, the identity matrix is scaled.
    """
    sy, yy = (s * y).sum(-1), (y * y).sum(-1)
    good = sy > 1e-12 * (s.norm(dim=-1) * y.norm(dim=-1)).clamp(min=1e-300)
    fresh = good & ~scaled
    size = torch.where(good, sy / yy.clamp(min=1e-300), 1)
    inverse = torch.where(fresh[:, None, None], size[:, None, None] * identity, inverse)
    rho = torch.where(good, 1 / torch.where(good, sy, 1), 0)[:, None, None]
    left = identity - rho * s.unsqueeze(-1) * y.unsqueeze(-2)
    return left @ inverse @ left.mT + rho * s.unsqueeze(-1) * s.unsqueeze(-2), scaled | good


def _polished(
    function: Function, u: Tensor, f: Tensor, g: Tensor, above: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Take Newton steps from u while they lower the value or the norm of the gradient, and return the final points.

    `f` and `g` are the values and the gradients at u. The results are the same as for `_descended`.
    """
    more = torch.zeros(u.shape[0], dtype=torch.int64, device=u.device)
    values, vectors = torch.linalg.eigh(_hessian(function, u))
    for _ in range(_NEWTON_STEPS):
        largest = values.abs().amax(-1, keepdim=True).clamp(min=1e-300)
        along = (vectors.mT @ g.unsqueeze(-1)).squeeze(-1)
        is_saddle = (values < -_SADDLE * largest).any(-1)
        flat = values.abs() < _FLAT * largest
        scale = torch.where(flat, largest, values.abs())
        newton = -(vectors @ torch.where(flat, 0, along / scale).unsqueeze(-1)).squeeze(-1)
        # Along a flat direction, the value may still decrease. `above` includes a millionth of the decrease that the
        # gradient predicts for a step of length 1.
        above = (torch.where(flat, 2 * along.abs() * 1e-6, along**2 / scale)).sum(-1) / 2
        downhill = vectors[..., 0] * torch.where(along[..., :1] > 0, -1.0, 1.0)
        newton = torch.where(is_saddle[:, None], newton + 0.1 * downhill, newton)
        above = torch.where(is_saddle, torch.inf, above)
        newton = newton / newton.norm(dim=-1, keepdim=True).clamp(min=1)
        new_f, new_g = function(u + newton)
        close = (new_f - f).abs() <= 1e-14 * (1 + f.abs())
        lower = (new_f < f) | (close & (new_g.norm(dim=-1) < g.norm(dim=-1)))
        lower = lower & new_g.isfinite().all(-1)
        u = torch.where(lower[:, None], u + newton, u)
        f, g = torch.where(lower, new_f, f), torch.where(lower[:, None], new_g, g)
        more = more + lower
        if not bool((lower & ~is_saddle & (above > 1e-15 * (1 + f.abs()))).any()):
            break
        if bool((newton.norm(dim=-1) > _NEAR).any()):
            values, vectors = torch.linalg.eigh(_hessian(function, u))
    return u, f, g, above, more


def _hessian(function: Function, u: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for k in range(u.shape[-1]):
        step = torch.zeros_like(u)
        step[:, k] = _DIFFERENCE
        columns.append((function(u + step)[1] - function(u - step)[1]) / (2 * _DIFFERENCE))
    hessian = torch.stack(columns, -1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return (hessian + hessian.mT) / 2
