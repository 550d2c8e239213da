"""Fits by stochastic gradients, for pairs without a deterministic rule.

The gradient of KL(q || to) flows through reparameterized draws only. The parameters in log q count as constants,
because the score has mean 0. So the gradient is 0 at every draw if q is the target. Draws that are not reparameterized
use the score function with a baseline from the other draws. KL(to || q) uses draws of the target.

Sticking the Landing (Roeder, Wu and Duvenaud, 2017); Buy 4 REINFORCE Samples, Get a Baseline for Free! (Kool, van Hoof
and Welling, 2019); Adam: A Method for Stochastic Optimization (Kingma and Ba, 2015)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.dtypes import upcast
from kullback.common.progress import progress_bar
from kullback.errors import NoRuleError, explain
from kullback.fitting.method_answer import FitProblem, FitSettings, MethodAnswer
from kullback.fitting.objective import DivergenceObjective, ElboObjective, Objective
from kullback.generators import KL, ReverseKL
from kullback.pairs.clone import detached
from kullback.pairs.monte_carlo.normalization import check_normalized
from kullback.pairs.sampling.generator import DrawsFrom
from kullback.results.estimate import Estimate

# Adam's step size falls from _RATE to _LAST_RATE along half a cosine. The parameters are unconstrained, for example
# logarithms of scales, so 0.1 is a tenth of a scale. `benchmarks/bench_fit.py` compares the results with other
# libraries.
_RATE, _LAST_RATE = 0.1, 1e-3
# The decay rates of both moments, from Adam: A Method for Stochastic Optimization (Kingma and Ba, 2015).
_MOMENTS = 0.9, 0.999
# The result is the average of the parameters over this last fraction of the steps.
_AVERAGED = 0.25
# The number of final gradients from new draws, for a test whether the mean gradient is 0.
_BATCHES = 32
# The number of draws for the values at the start and at the end.
_FINAL_DRAWS = 20_000
# The smallest tolerance for the distance from the minimum, because the noise of gradients hides smaller distances.
_TOL = 1e-6


class Descent(NamedTuple):
    """The final unconstrained parameters u, and the answer with its statistics."""

    u: Tensor
    answer: MethodAnswer


def fit_by_draws(problem: FitProblem) -> MethodAnswer:
    """Return the fit of the free parameters of a distribution by stochastic gradients."""
    family = problem.family
    descent = descend(family.at, family.start(), problem.q, problem.objective, problem.settings)
    return descent.answer._replace(distribution=family.finished(family.values(descent.u)))


def descend(
    at: Callable[[Tensor], Any], u: Tensor, start: Distribution, objective: Objective, settings: FitSettings
) -> Descent:
    """Take Adam's steps with a falling step size, and return the average of the last points with statistics."""
    terms = _terms_of(objective, start)
    generator = settings.generator
    drawing = (
        nullcontext()
        if generator is None
        else DrawsFrom(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    )
    steps = settings.max_iterations
    with drawing:
        before = _mean(objective, terms, start)
        first, second, average = torch.zeros_like(u), torch.zeros_like(u), torch.zeros_like(u)
        history: list[Tensor] = []
        averaged = max(1, round(_AVERAGED * steps))
        with progress_bar("steps", show=settings.show_progress) as update:
            for step in range(1, steps + 1):
                value, gradient = _gradient(terms, at, u, settings.draws)
                history.append(value)
                first = _MOMENTS[0] * first + (1 - _MOMENTS[0]) * gradient
                second = _MOMENTS[1] * second + (1 - _MOMENTS[1]) * gradient**2
                scaled = first / (1 - _MOMENTS[0] ** step)
                size = (second / (1 - _MOMENTS[1] ** step)).sqrt() + 1e-12
                progress = step / steps
                rate = _LAST_RATE + (_RATE - _LAST_RATE) * (1 + math.cos(math.pi * progress)) / 2
                u = u - rate * scaled / size
                if step > steps - averaged:
                    average = average + u / averaged
                if update:
                    update(step, steps)
        gradients = torch.stack([_gradient(terms, at, average, settings.draws)[1] for _ in range(_BATCHES)])
        with torch.no_grad():
            after = _mean(objective, terms, at(average))
    shape = after.value.shape
    mean = gradients.mean(0)
    error = gradients.std(0) / _BATCHES**0.5
    count = mean.shape[-1]
    # If the mean gradient is 0, the sum of (mean / error)^2 over the parameters is about the number of parameters.
    is_zero = ((mean / error.clamp(min=1e-300)) ** 2).clamp(max=1e6).sum(-1) <= count + 6 * math.sqrt(
        2 * count
    )
    above = (mean**2).sum(-1) / 2
    converged = is_zero | (above <= max(settings.tol, _TOL) * (1 + after.value.reshape(-1).abs().sum()))
    converged = (
        converged.reshape(shape) if converged.numel() == shape.numel() else converged.all().expand(shape)
    )
    norm, above = (
        x.reshape(shape) if x.numel() == shape.numel() else x.sum().expand(shape)
        for x in (mean.norm(dim=-1), above)
    )
    note = (
        f"The value is a mean over {_FINAL_DRAWS} draws. `above` is half the square of the mean gradient, which has a "
        f"standard error of {float(error.norm(dim=-1).max()):.1g}."
    )
    iterations = torch.full(shape, steps, dtype=torch.int64, device="cpu")
    statistics = converged, iterations, torch.stack(history), above, norm
    return Descent(average, MethodAnswer(None, start, before, after, "stochastic", *statistics, (note,)))


# A function that returns one term for each draw; the mean of the terms estimates the value, also in its gradient.
_Terms = Callable[[Any, int], Tensor]


def _gradient(terms: _Terms, at: Callable[[Tensor], Any], u: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        u = u.detach().requires_grad_()
        value = terms(at(u), draws).mean(0)
        (gradient,) = torch.autograd.grad(value.sum(), u)
    return value.detach(), gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _mean(objective: Objective, terms: _Terms, q: Distribution) -> Estimate:
    with torch.no_grad():
        values = terms(q, _FINAL_DRAWS)
        if isinstance(objective, DivergenceObjective):
            check_normalized("fit", objective.to, q, -values)
    value = values.mean(0)
    return Estimate(value, None, "monte_carlo", standard_error=values.std(0) / _FINAL_DRAWS**0.5)


def _terms_of(objective: Objective, q: Distribution) -> _Terms:
    if isinstance(objective, ElboObjective):
        return lambda q, n: _reverse_terms(q, objective.checked, n)
    if isinstance(objective, DivergenceObjective):
        to = objective.to
        if isinstance(objective.kind, ReverseKL):
            return lambda q, n: _reverse_terms(q, lambda x: upcast(to.log_prob(x)), n)
        if isinstance(objective.kind, KL):
            return lambda q, n: _forward_terms(q, to, n)
    raise NoRuleError(
        explain(
            "fit",
            "kind",
            wanted="KL() or ReverseKL(), which draws can estimate",
            got=f"{objective.quantity} for {type(q).__name__}",
            instead="kind=KL() or kind=ReverseKL()",
        )
    )


def _reverse_terms(q: Any, log_p: Callable[[Tensor], Tensor], n: int) -> Tensor:
    if q.has_rsample:
        x = q.rsample((n,))
        return upcast(detached(q).log_prob(x)) - log_p(x)
    with torch.no_grad():
        x = q.sample((n,))
        d = upcast(q.log_prob(x)) - log_p(x)
        baseline = (d.sum(0) - d) / (n - 1)
    log_q = upcast(q.log_prob(x))
    return d + (d - baseline) * (log_q - log_q.detach())


def _forward_terms(q: Any, to: Distribution, n: int) -> Tensor:
    with torch.no_grad():
        x = to.sample(torch.Size([n]))
        log_p = upcast(to.log_prob(x))
    return log_p - upcast(q.log_prob(x))
