"""Fits of an `nn.Module`, whose free parameters are the parameters that require a gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import functional_call

from kullback.common.bijective import check_bijective
from kullback.errors import invalid_type, invalid_value
from kullback.fitting.fit_result import FitSettings, MethodAnswer, as_answer, minimized, value_and_gradient
from kullback.fitting.objective import Objective
from kullback.fitting.optimize import Minimum
from kullback.fitting.stochastic import descend
from kullback.pairs.clone import upcast_copy

# Above this number of parameters, the fit uses L-BFGS instead of a dense inverse Hessian, whose memory and time grow
# with the square of this number.
_MOST_DENSE = 500


def fit_module(module: torch.nn.Module, objective: Objective, settings: FitSettings) -> MethodAnswer:
    """Fit the parameters of a module in place, and return the method's answer.

    The module's `forward` returns the distribution. For a batch of distributions, the sum of the values is minimized.
    """
    double = copy.deepcopy(module).double()
    free = {name: x.detach() for name, x in double.named_parameters() if x.requires_grad}
    if not free:
        raise invalid_value(
            "fit",
            "q",
            wanted="a module with a parameter that requires a gradient",
            got=f"{type(module).__name__} without free parameters",
            instead="module.requires_grad_()",
        )

    def named(u: Tensor) -> dict[str, Tensor]:
        parts = u.reshape(-1).split([x.numel() for x in free.values()])
        return {name: part.reshape(x.shape) for (name, x), part in zip(free.items(), parts, strict=True)}

    def at(u: Tensor) -> Any:
        d = functional_call(double, named(u), ())
        if not isinstance(d, Distribution):
            raise invalid_type(
                "fit",
                "q",
                wanted="a module whose forward returns a distribution of torch",
                got=f"one that returns {type(d).__name__}",
                instead="a forward that ends in: return Normal(self.loc, self.log_scale.exp())",
            )
        return d

    u = torch.cat([x.reshape(-1) for x in free.values()]).unsqueeze(0)
    start = at(u)
    check_bijective("fit", "q", start)
    before = objective.measure_for(settings.method, start)
    if before is None:
        best, result = descend(at, u, start, objective, settings)
    else:
        steps = minimized if u.numel() <= _MOST_DENSE else _limited_memory
        minimum = steps(lambda u: objective.try_measure(at(u)).value.sum().reshape(1), u, settings)
        best = minimum.u
        result = as_answer(None, start, _summed(before), _summed(before), minimum, torch.Size())
        if u.numel() > _MOST_DENSE:
            result = result._replace(notes=("`above` assumes a curvature of at least 1 in every direction.",))
    with torch.no_grad():
        parameters = dict(module.named_parameters())
        for name, x in named(best).items():
            parameters[name].copy_(x)
        distribution = module()
        if before is not None:
            after = _summed(objective.try_measure(upcast_copy(distribution)))
            small = after.error is None or after.error <= 1e-6 * (1 + after.value.abs())
            result = result._replace(after=after, converged=result.converged & small)
        return result._replace(distribution=distribution)


def _summed(estimate: Any) -> Any:
    error = None if estimate.error is None else estimate.error.sum()
    return replace(estimate, value=estimate.value.sum(), error=error)


def _limited_memory(values: Callable[[Tensor], Tensor], start: Tensor, settings: FitSettings) -> Minimum:
    """Return the minimum over many parameters by torch's L-BFGS.

    The gradient g alone decides convergence: g' g / 2 estimates the difference between the value and the minimum.
    """
    function, u = value_and_gradient(values), start.clone()
    optimizer = torch.optim.LBFGS(
        [u], max_iter=1, tolerance_grad=0, tolerance_change=0, history_size=30, line_search_fn="strong_wolfe"
    )
    history = [function(u)[0]]

    def closure() -> Tensor:
        value, gradient = function(u)
        u.grad = gradient
        return value.sum()

    for _ in range(settings.max_iterations):
        optimizer.step(closure)
        value, gradient = function(u)
        history.append(value)
        if float(gradient.norm()) ** 2 <= settings.tol * (1 + float(value.abs())):
            break
        if bool(history[-1] >= history[-2]):
            break
    value, gradient = function(u)
    above = gradient.norm(dim=-1) ** 2 / 2
    converged = above <= settings.tol * (1 + value.abs())
    iterations = torch.tensor([len(history) - 1], device="cpu")
    return Minimum(u, value, gradient, above, converged, iterations, history)
