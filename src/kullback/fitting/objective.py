"""The objective of a fit: a divergence, the negative log-likelihood of draws, or the negative ELBO of a log-density."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Uniform

from kullback.common.dtypes import upcast
from kullback.dispatch import between_distributions
from kullback.errors import ConvergenceError, NoRuleError, explain, invalid_type, invalid_value, printable
from kullback.estimators.draws import shares_of, variance_of_sum
from kullback.generators import KL, Divergence, ReverseKL
from kullback.pairs import SolveOptions
from kullback.pairs.densities.density import Density, Points, density_of
from kullback.pairs.monte_carlo.log_densities import log_prob_inside
from kullback.pairs.univariate import divergence_of_densities
from kullback.representations import Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

# If no deterministic rule computes a value, the value is a mean over this number of draws. The standard error of the
# value is then 0.7 % of the standard deviation of log(p / q).
_DRAWS = 20_000
# A log-density is evaluated at points up to this distance from 0, because the square of this number does not overflow.
_FARTHEST = 1e150

LogDensity = Callable[[Tensor], Tensor]


class Objective(ABC):
    """The function of a distribution that a fit minimizes, with one value for each batch element."""

    quantity: str

    @abstractmethod
    def measure(self, q: Distribution) -> Estimate:
        """Return the value at q and a bound on its error; raise NoRuleError without a deterministic rule."""

    def measure_or_draw(self, q: Distribution, generator: torch.Generator | None) -> Estimate:
        """Return the value at a distribution; if no deterministic rule computes the value, estimate it from draws."""
        return self.try_measure(q)

    def measure_for(self, method: str, q: Distribution) -> Estimate | None:
        """Return the value at `q`, the start of quasi-Newton steps; None if another method must be used.

        If `method` is "quasi_newton" and no deterministic rule computes the value, the NoRuleError is raised.
        """
        if method not in ("auto", "quasi_newton"):
            return None
        try:
            return self.measure(q)
        except NoRuleError:
            if method == "auto":
                return None
            raise

    def try_measure(self, q: Distribution) -> Estimate:
        """Return the value even if its error exceeds the tolerance; infinity if it exceeds 1 % of 1 + |value|."""
        try:
            return self.measure(q)
        except ConvergenceError as short:
            estimate = short.estimate
            error = estimate.error if estimate.error is not None else torch.zeros_like(estimate.value)
            lost = estimate.value.isnan() | (error.detach() > 0.01 * (1 + estimate.value.detach().abs()))
            return replace(estimate, value=torch.where(lost, torch.inf, estimate.value))


@dataclass(frozen=True)
class DivergenceObjective(Objective):
    """The divergence `kind` from the target `to` to the fitted distribution."""

    to: Distribution
    kind: Divergence

    @property
    def quantity(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        if isinstance(self.kind, KL):
            return "KL(to || q)"
        return "KL(q || to)" if isinstance(self.kind, ReverseKL) else f"{self.kind!r} of to and q"

    def measure(self, q: Distribution) -> Estimate:
        return between_distributions("fit", self.to, q, self.kind, SolveOptions())

    def measure_or_draw(self, q: Distribution, generator: torch.Generator | None) -> Estimate:
        try:
            return self.try_measure(q)
        except NoRuleError:
            options = SolveOptions(method="monte_carlo", draws=_DRAWS, generator=generator)
            with torch.no_grad():
                return between_distributions("fit", self.to, q, self.kind, options)


@dataclass(frozen=True)
class LikelihoodObjective(Objective):
    """The mean of -log q over draws, which estimates KL(P || Q) plus the entropy of P."""

    draws: Samples
    quantity: str = "negative log-likelihood per draw"

    def measure(self, q: Distribution) -> Estimate:
        log_q = log_prob_of_draws(q, self.draws)
        weights = shares_of(self.draws, log_q.detach())
        used = weights > 0
        value = 0.0 - torch.tensordot(weights[used], log_q[used], 1)
        with torch.no_grad():
            standard_error = self._standard_error(weights, -log_q - value)
            error = 1e-14 * (1 + value.abs().nan_to_num(posinf=0.0))
        return Estimate(value, error, "summation", standard_error=standard_error)

    def _standard_error(self, weights: Tensor, d: Tensor) -> Tensor:
        """Return the standard error of the weighted mean of d over the draws; draws of a cluster may be dependent."""
        used = weights > 0
        cluster = None if self.draws.cluster is None else self.draws.cluster[used]
        terms = (weights[used] * torch.where(d.isfinite(), d, 0)[used].movedim(0, -1)).reshape(
            -1, int(used.sum())
        )
        errors = [variance_of_sum(row, cluster).sqrt() for row in terms]
        return torch.stack(errors).reshape(d.shape[1:]) if errors else torch.zeros(d.shape[1:], device="cpu")


def is_categorical(q: object) -> bool:
    """Return whether `q` can be fitted to text: Categorical, an instance or mixture of it, or finite probabilities."""
    if isinstance(q, MixtureSameFamily):
        return is_categorical(q.component_distribution)
    return isinstance(q, Categorical | Representation) or (isinstance(q, type) and issubclass(q, Categorical))


def _refuse_text(q: Distribution, draws: Samples) -> None:
    if draws.labels is None or is_categorical(q):
        return
    count = len(draws.labels)
    shown = ", ".join(repr(printable(label, 40)) for label in draws.labels[:3])
    raise invalid_type(
        "fit",
        "q, to",
        wanted=f"draws that are numbers, as {type(q).__name__} gives",
        got=f"text: {shown}{', ...' if count > 3 else ''}",
        instead=f"Samples([float(x) for x in draws]) if the text is numbers, or q=Categorical(torch.ones({count})), "
        "which counts each text",
    )


def log_prob_of_draws(q: Distribution, draws: Samples) -> Tensor:
    """Return the log-densities of q at draws, shape (n, ...); the log-density is -inf outside the support of q."""
    _refuse_text(q, draws)
    x = draws.tensor
    size = x.shape[-1]
    x = x if isinstance(q, Categorical) and not x.is_floating_point() else upcast(x)
    if q.event_shape == (size,):
        at = x.reshape(len(draws), *[1] * len(q.batch_shape), size)
    elif not q.event_shape and size == 1:
        at = x.reshape(len(draws), *[1] * len(q.batch_shape))
    else:
        raise invalid_value(
            "fit",
            "q, to",
            wanted=f"a distribution of vectors of {size} components, as the draws have"
            if size > 1
            else "numbers",
            got=f"{type(q).__name__} with events of shape {tuple(q.event_shape)}",
            instead=f"q with the event shape ({size},), such as Independent(Normal(loc, scale), 1)",
        )
    at = at.expand(torch.broadcast_shapes(at.shape, (len(draws), *q.batch_shape, *q.event_shape)))
    if isinstance(q, Uniform):  # torch's Uniform has the density 0 at the upper end of its support
        at = torch.where(at == q.high, q.low.to(at.dtype), at)
    return upcast(log_prob_inside(q, at))


@dataclass(frozen=True)
class _Unnormalized(Density):
    """A log-density on the real line that is known up to a constant."""

    function: LogDensity

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Density:
        return self

    def is_splittable(self) -> bool:
        return False

    def log_density(self, at: Points) -> Tensor:
        # Because of rounding, a point may be exactly at an end of the support. A point may also be so far from 0 that
        # the user's function returns NaN. Both are moved into the support.
        x = at.x.clamp(-_FARTHEST, _FARTHEST)
        if at.low is not None:
            x = torch.maximum(x, torch.nextafter(at.low, torch.full_like(at.low, torch.inf)).detach())
        if at.high is not None:
            x = torch.minimum(x, torch.nextafter(at.high, torch.full_like(at.high, -torch.inf)).detach())
        return upcast(self.function(x.movedim(-1, 0))).movedim(0, -1).expand(x.shape)

    def center_and_width(self) -> tuple[Tensor, Tensor]:
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        return zero, torch.ones_like(zero)

    def breakpoints(self, steps: Tensor) -> list[Tensor]:
        return []


@dataclass(frozen=True)
class ElboObjective(Objective):
    """The negative evidence lower bound (ELBO): E_q[log q - log f] for an unnormalized density f.

    The value is KL(q || to) minus the logarithm of the integral of f, where `to` is the normalized f.
    """

    function: LogDensity
    quantity: str = "negative ELBO"

    def measure(self, q: Distribution) -> Estimate:
        if q.has_enumerate_support and len(q.event_shape) <= 1:
            return self._sum(q)
        density = None if q.event_shape else density_of(q)
        if density is None or density.integer:
            raise NoRuleError(
                explain(
                    "fit",
                    "q",
                    wanted="a distribution on the line or over finitely many values",
                    got=type(q).__name__,
                    instead="method='stochastic', which uses random draws",
                )
            )
        pseudo = _Unnormalized(self.checked)
        value, error = divergence_of_densities(density, pseudo, KL(), q.batch_shape, SolveOptions())
        short = ~SolveOptions().is_accepted(value, error) & value.isfinite()
        estimate = Estimate(value, error, "quadrature")
        if bool(short.any()):
            message = explain(
                "fit",
                "to",
                wanted="1e-6",
                got="the integral of the log-density",
                instead="method='stochastic', which uses random draws",
                wording="{got} did not reach {wanted}",
            )
            raise ConvergenceError(message, estimate)
        return estimate

    def _sum(self, q: Distribution) -> Estimate:
        x = q.enumerate_support(expand=True)
        log_q, log_p = upcast(q.log_prob(x)), self.checked(x)
        there = log_q > -torch.inf
        terms = torch.where(there, torch.exp(log_q) * (torch.where(there, log_q, 0) - log_p), 0)
        value = terms.sum(0)
        return Estimate(value, 1e-14 * (1 + terms.detach().abs().sum(0)), "summation")

    def checked(self, x: Tensor) -> Tensor:
        """Return the user's log-density at points x; raise if a value is NaN or +inf."""
        log_p: Any = self.function(x)
        if not isinstance(log_p, Tensor):
            raise invalid_type(
                "fit",
                "to",
                wanted="a function from a tensor of points to a tensor of log-densities",
                got=f"one that returns {type(log_p).__name__}",
                instead="to=lambda x: -x**2 / 2",
            )
        if bool(log_p.detach().isnan().any()) or bool((log_p.detach() == torch.inf).any()):
            raise invalid_value(
                "fit",
                "to",
                wanted="a log-density that is finite, or -inf where there is no mass",
                got="NaN" if bool(log_p.detach().isnan().any()) else "+inf",
                instead="a function that is defined on the support of q, such as to=lambda x: -x**2 / 2",
            )
        return upcast(log_p)
