"""Fits by stochastic gradients, for pairs without a deterministic rule.

For reparameterized draws, the gradient of KL(q || to) flows only through the draws. The parameters in log q count as
constants, because the score, the gradient of log q with respect to its parameters, has mean 0. So the gradient is
exactly 0 at every draw if q is the target. Without reparameterized draws, the gradient is the score times the
difference between log(q / to) and a baseline. The baseline is the mean of log(q / to) over the other draws. KL(to || q)
uses draws of the target.

Sticking the Landing (Roeder, Wu and Duvenaud, 2017); Buy 4 REINFORCE Samples, Get a Baseline for Free! (Kool, van Hoof
and Welling, 2019); Adam: A Method for Stochastic Optimization (Kingma and Ba, 2015)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.dtypes import upcast
from kullback.common.progress import progress_bar
from kullback.errors import NoRuleError, explain
from kullback.fitting.fit_result import FitProblem, FitSettings, MethodAnswer
from kullback.fitting.objective import DivergenceObjective, ElboObjective, Objective
from kullback.generators import KL, ReverseKL
from kullback.pairs.clone import detached
from kullback.pairs.monte_carlo.from_draws import check_normalized
from kullback.pairs.sampling import drawing_from
from kullback.results.estimate import Estimate

# Adam's step size decreases from `_RATE` to `_LAST_RATE` along half a cosine. The parameters are unconstrained, for
# example logarithms of scales, so a step of 0.1 changes a scale by a tenth. `benchmarks/bench_fit.py` compares the
# results with other libraries.
_RATE, _LAST_RATE = 0.1, 1e-3
# Adam averages the gradients and their squares with these decay rates, which are the values of Adam: A Method for
# Stochastic Optimization (Kingma and Ba, 2015).
_MOMENTS = 0.9, 0.999
# The result is the average of the parameters over the last quarter of the steps.
_AVERAGED = 0.25
# At the end, this number of gradients from new draws gives a test of whether the mean gradient is 0.
_BATCHES = 32
# The values at the start and at the end are means over this number of draws.
_FINAL_DRAWS = 20_000
# The tolerance for the difference between the value and the minimum is at least `_TOL`, because the noise of the
# gradients hides smaller differences.
_TOL = 1e-6


class Descent(NamedTuple):
    """The final unconstrained parameters `u`, and the method's answer without the fitted distribution."""

    u: Tensor
    answer: MethodAnswer


def fit_by_draws(problem: FitProblem) -> MethodAnswer:
    """Return the answer of a fit by stochastic gradients to the free parameters of a distribution."""
    family = problem.family
    descent = descend(family.at, family.start(), problem.q, problem.objective, problem.settings)
    return descent.answer._replace(distribution=family.finished(family.values(descent.u)))


def descend(
    at: Callable[[Tensor], Any], u: Tensor, start: Distribution, objective: Objective, settings: FitSettings
) -> Descent:
    """Take Adam's steps with a decreasing step size, and return the average of the last points as a `Descent`.

    `at` is a function from unconstrained parameters, such as `u` at the start, to the distribution.
    """
    terms = _terms_of(objective, start)
    steps = settings.max_iterations
    with drawing_from(settings.generator):
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
    # For an expected gradient of 0, the sum of (mean / error)^2 over the parameters has the mean `count` and the
    # variance 2 `count`, approximately. The limit is six standard deviations above this expectation.
    squares = ((mean / error.clamp(min=1e-300)) ** 2).clamp(max=1e6).sum(-1)
    is_zero = squares <= count + 6 * math.sqrt(2 * count)
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
        f"The value is a mean over {_FINAL_DRAWS} draws. `above` is half the squared norm of the mean gradient. "
        f"The standard error of the mean gradient is {float(error.norm(dim=-1).max()):.1g}."
    )
    iterations = torch.full(shape, steps, dtype=torch.int64, device="cpu")
    statistics = converged, iterations, torch.stack(history), above, norm
    return Descent(average, MethodAnswer(None, start, before, after, "stochastic", *statistics, (note,)))


# A function of this type takes q and a number of draws, and returns one term for each draw. The mean of the terms is an
# unbiased estimate of the value, and the gradient of the mean is an unbiased estimate of the gradient.
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
