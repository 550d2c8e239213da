"""The problem that a method of `fit` solves, the settings of the method, and the method's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.progress import progress_bar
from kullback.fitting.objective import Objective
from kullback.fitting.optimize import Minimum, minimize
from kullback.fitting.unconstrained import Family
from kullback.generators import Divergence
from kullback.results.estimate import Estimate


class FitSettings(NamedTuple):
    """The options of a fit, as in the documentation of `kullback.fit`."""

    method: str
    starts: int | None
    tol: float
    max_iterations: int
    draws: int
    generator: torch.Generator | None
    show_progress: bool


class FitProblem(NamedTuple):
    """A family with its start, the target and the options of a fit.

    Attributes:
        q: the start, in float64, with the batch shape of the fit.
        target: the target: a distribution in float64, draws, or a log-density.
        objective: the function of q that the fit minimizes.
        kind: the divergence.
        family: the free and fixed parameters of q.
        fixed: the names of fixed parameters.
        settings: the options.
    """

    q: Distribution
    target: Any
    objective: Objective
    kind: Divergence
    family: Family
    fixed: frozenset[str]
    settings: FitSettings


class MethodAnswer(NamedTuple):
    """The result of a method; the documentation of `Fit` describes the fields."""

    distribution: Any
    start: Any
    before: Estimate
    after: Estimate
    method: str
    converged: Tensor
    iterations: Tensor
    history: Tensor
    above: Tensor
    gradient_norm: Tensor
    notes: tuple[str, ...] = ()


def minimized(function: Callable[[Tensor], Tensor], start: Tensor, settings: FitSettings) -> Minimum:
    """Return the minimum of a function that quasi-Newton steps from `start` reach."""
    with progress_bar("steps", show=settings.show_progress) as update:
        return minimize(
            value_and_gradient(function),
            start,
            tol=settings.tol,
            max_iterations=settings.max_iterations,
            update=update,
        )


def as_answer(
    distribution: Any, q: Any, before: Estimate, after: Estimate, minimum: Minimum, shape: torch.Size
) -> MethodAnswer:
    """Return a minimum as a `MethodAnswer`.

    The answer counts as converged if the minimization converged and the error of the value `after` is small.
    """
    above, converged, iterations = (
        x.reshape(shape) for x in (minimum.above, minimum.converged, minimum.iterations)
    )
    history = torch.stack([x.reshape(shape) for x in minimum.history])
    if after.error is not None:
        converged = converged & (after.error <= 1e-6 * (1 + after.value.abs()))
    norm = minimum.gradient.norm(dim=-1).reshape(shape)
    return MethodAnswer(
        distribution, q, before, after, "quasi_newton", converged, iterations, history, above, norm
    )


def value_and_gradient(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function of u that returns the values of `function` and the gradients of the values.

    u has shape (elements, parameters), and the value of an element depends only on its row of u. The values have shape
    (elements,), and the gradients have the shape of u.
    """

    def both(u: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            value = function(u)
            if not value.requires_grad:
                return value.detach(), torch.zeros_like(u)
            (gradient,) = torch.autograd.grad(
                torch.where(value.isfinite(), value, 0).sum(), u, allow_unused=True, materialize_grads=True
            )
        return value.detach(), gradient

    return both
