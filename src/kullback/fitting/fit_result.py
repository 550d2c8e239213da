"""The problem that a method of `fit` solves, the method's answer, and `Fit` and `FitError`, the result for the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.display import Shown
from kullback.common.formats import significant
from kullback.common.progress import progress_bar
from kullback.errors import ConvergenceError, Explanation
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

    The start `q`, in the batch shape of the fit, and a distribution `target` are in float64. The target may also be
    draws or a log-density.
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
    """Return a minimum as a `MethodAnswer`, converged only if the error of the value `after` is small too."""
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
    """Return a function of u that returns `function`'s value for each row of u, and the gradients, in u's shape."""

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


@dataclass(frozen=True, repr=False)
class Fit(Shown):
    """A distribution fitted by `kullback.fit`, with its divergence from the target.

    ``print`` and notebooks show the fit as a table; `plot` draws the target and the fit, or the history.

    Attributes:
        distribution: the fitted distribution, in the dtype of the start and without gradient.
        value: the minimized `quantity` at the fitted distribution, in the batch shape. The unit is nats, unless `kind`
            has no logarithm.
        error: a bound on the error of `value`, in the shape of `value`; None for a value from draws.
        before: the `quantity` at the start.
        before_error: a bound on the error of `before`; None for a value from draws.
        method: ``"moment_matching"``, ``"maximum_likelihood"``, ``"em"``, ``"quasi_newton"`` or ``"stochastic"``.
        converged: whether each batch element met the convergence criterion.
        iterations: the number of steps of each batch element; 0 for closed forms.
        history: the value before the first step and after every step, shape (steps + 1, ...).
        above: an estimate of the difference between `value` and the nearest minimum: half of g' H^-1 g. Here g is the
            gradient and H the Hessian, or for some methods the identity matrix (see `notes`). `above` is 0 for closed
            forms.
        gradient_norm: the norm of the gradient with respect to the unconstrained parameters at the fitted distribution;
            0 for closed forms.
        kind: the divergence.
        quantity: the name of the minimized function, such as ``"KL(to || q)"``, ``"KL(q || to)"``,
            ``"negative log-likelihood per draw"`` or ``"negative ELBO"``.
        standard_error: the standard error of `value` if `value` is a mean over draws; otherwise None.
        notes: sentences that say how `value` and `above` were computed, if they are not exact.
        seconds: the duration of the fit in seconds.
        start: the distribution at the start.
        to: the target.

    Example:
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0))
        Fit(Normal, KL(to || q)=0.0887, by moment_matching)
    """

    distribution: Any
    value: Tensor
    error: Tensor | None
    before: Tensor
    before_error: Tensor | None
    method: str
    converged: Tensor
    iterations: Tensor
    history: Tensor
    above: Tensor
    gradient_norm: Tensor
    kind: Divergence
    quantity: str
    standard_error: Tensor | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    start: Any = field(default=None, repr=False)
    to: Any = field(default=None, repr=False)

    def __repr__(self) -> str:
        name = type(self.distribution).__name__
        count = self.value.numel()
        size = significant(float(self.value), 3) if count == 1 else f"{count} values"
        steps = int(self.iterations.max()) if count else 0
        after = f" in {steps} iterations" if steps else ""
        return f"Fit({name}, {self.quantity}={size}, by {self.method}{after})"


class FitError(ConvergenceError):
    """The error for a fit that did not converge; the attribute `fit` of the error is the `Fit` at the best point.

    Example:
        >>> from torch.distributions import Laplace, Normal
        >>> import kullback
        >>> try:
        ...     kullback.fit(Normal(5.0, 1.0), to=Laplace(0.0, 1.0), kind=kullback.ReverseKL(), max_iterations=1)
        ... except kullback.errors.ConvergenceError as error:
        ...     print(bool(error.fit.value < error.fit.before))
        True
    """

    def __init__(self, message: str | Explanation, fit: Fit) -> None:
        super().__init__(message, Estimate(fit.value, fit.error, fit.method))
        self.fit = fit
