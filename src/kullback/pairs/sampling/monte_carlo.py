r"""Monte Carlo estimates of KL with a standard error, for `method="monte_carlo"` only.

With d = log p - log q at draws from P, the mean of d estimates KL, and so does the mean of d + c (q / p - 1) for any c,
because E_P[q / p] = 1. The c of least variance is fitted: each half of the draws uses the c of the other half, which
keeps the estimate unbiased. If q / p has no finite variance, or a mean other than 1, c is 0. A mixture P is sampled
component by component. Draws that are made from normal numbers are quasi-random.

Gradients: if P can be reparameterized, they flow through the draws alone. The parameters inside log p are constants
there, because their score has mean 0 (Sticking the Landing, Roeder, Wu and Duvenaud, 2017). Otherwise they are score
gradients with a baseline.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.distributions import Beta, Distribution, LKJCholesky, MixtureSameFamily
from torch.distributions.constraints import Constraint, MixtureSameFamilyConstraint

from kullback.common.control_variate import coefficient, ratio_minus_one
from kullback.common.dtypes import tensor_of
from kullback.errors import no_rule
from kullback.pairs.clone import detached, expanded
from kullback.pairs.overrides import overrides, overrides_density
from kullback.pairs.sampling.generator import DrawsFrom
from kullback.pairs.sampling.quasi_monte_carlo import SEQUENCES, quasi_draws
from kullback.pairs.solve_options import SolveOptions
from kullback.results.estimate import Estimate


def estimate(call: str, p: Distribution, q: Distribution, options: SolveOptions) -> Estimate:
    """Return KL(P || Q) from draws of P, with its standard error."""
    shape = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    if overrides_density(p) and not (overrides(p, "sample") or overrides(p, "rsample")):
        raise no_rule(
            call,
            "method",
            wanted="draws from the density of P for method='monte_carlo'",
            got=f"{type(p).__name__}, which overrides log_prob, but neither sample nor rsample",
            instead="a sample method in the class that draws from the density of log_prob",
        )
    p, q = expanded(p, shape), expanded(q, shape)
    generator, drawing = options.generator, nullcontext()
    if generator is not None:  # otherwise torch's own generator makes the draws
        drawing = DrawsFrom(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    with drawing:
        try:
            if isinstance(p, MixtureSameFamily):
                value, error = _stratified(p, q, options.draws)
            else:
                d, sequences = _terms(p, q, options.draws)
                ratio = ratio_minus_one(d) if _shares_support(p, q) else torch.zeros_like(d)
                value, error = _mean(d, ratio, sequences)
        except NotImplementedError as failure:
            raise no_rule(
                call,
                "method",
                wanted="distributions with sample and log_prob for method='monte_carlo'",
                got=f"({type(p).__name__}, {type(q).__name__}); at least one lacks them",
                instead="log_prob in the class, or @register_kl for the pair",
            ) from failure
    return Estimate(value.expand(shape), None, "monte_carlo", standard_error=error.expand(shape))


def _terms(p: Distribution, q: Distribution, draws: int) -> tuple[Tensor, int]:
    """Return d at draws of P, shape (draws, ...), and the number of independent sequences among the draws.

    The number is 0 if all draws are independent. The mean of d has the gradient of KL as its expectation.
    """
    x = quasi_draws(p, draws)
    if x is not None:
        return detached(p).log_prob(x) - _log_prob(q, x), SEQUENCES
    if p.has_rsample:
        x = p.rsample((draws,))
        return detached(p).log_prob(x) - _log_prob(q, x), 0
    x = _with_right_draws(p).sample((draws,))
    log_p = p.log_prob(x)
    return _with_score(log_p.detach() - _log_prob(q, x), log_p), 0


def _with_right_draws(p: Distribution) -> Distribution:
    """Return P, or a corrected copy for LKJCholesky, whose draws in torch do not follow its density.

    The squared norm of row i of the factor, without the diagonal, follows Beta(i / 2, ...); torch uses i - 1 / 2.
    Generating Random Correlation Matrices Based on Vines and Extended Onion Method (Lewandowski et al., 2009)
    """
    if not isinstance(p, LKJCholesky):
        return p
    right = copy.copy(p)
    beta = p._beta  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    right._beta = Beta(beta.concentration1 / 2 + 0.25, beta.concentration0)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return right


def _log_prob(q: Distribution, x: Tensor) -> Tensor:
    """Return Q's log-density at draws of P; it is -inf at draws outside the support of Q."""
    try:
        support = q.support
    except NotImplementedError:
        support = None
    inside = None if support is None else support.check(x.detach())
    if inside is None or bool(inside.all()):
        return q.log_prob(x)
    own = len(q.event_shape)
    stand_in = q.sample(x.shape[: x.ndim - own - len(q.batch_shape)])
    at = torch.where(inside.reshape(*inside.shape, *[1] * own), x, stand_in)
    return torch.where(inside, q.log_prob(at), -torch.inf)


def _with_score(d: Tensor, log_p: Tensor) -> Tensor:
    """Add the effect of P's parameters on the draws to the gradient; the value stays the same."""
    fixed = d.detach()
    fixed = torch.where(fixed.isinf(), 0, fixed)
    others = (fixed.sum(0) - fixed) / (d.shape[0] - 1)
    return d + (fixed - others) * (log_p - log_p.detach())


def _stratified(p: MixtureSameFamily, q: Distribution, draws: int) -> tuple[Tensor, Tensor]:
    """Draw equally often from every component, and sum the results with the weights of the mixture."""
    components, weights = p.component_distribution, p.mixture_distribution.probs
    each = max(draws // weights.shape[-1], 4)
    x = components.rsample((each,)) if components.has_rsample else components.sample((each,))
    at = x.movedim(1 + len(p.batch_shape), 1)  # (draws, component, batch, event)
    d = (detached(p) if components.has_rsample else p).log_prob(at) - _log_prob(q, at)
    if not components.has_rsample:
        own = components.log_prob(x).movedim(-1, 1)
        d = _with_score(d, own)
    # The i-th draws of all components make one draw of the mixture's integrand. The weights inside log p have a score
    # of mean 0; the weights outside are the frequencies of the components.
    weights = weights.movedim(-1, 0)
    used = weights > 0
    ratio = torch.where(used, weights.detach() * ratio_minus_one(d), 0).sum(1) * _shares_support(p, q)
    return _mean(torch.where(used, weights * torch.where(used, d, 0), 0).sum(1), ratio)


def _shares_support(p: Distribution, q: Distribution) -> bool:
    """Return whether P and Q have the same support; otherwise the mean of q / p under P need not be 1."""
    try:
        return _same(p.support, q.support)
    except NotImplementedError:
        return False


def _same(a: object, b: object) -> bool:
    if isinstance(a, MixtureSameFamilyConstraint):
        return _same(a.base_constraint, b)
    if isinstance(b, MixtureSameFamilyConstraint):
        return _same(a, b.base_constraint)
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return bool((tensor_of(a) == tensor_of(b)).all())
    if not isinstance(a, Constraint) or type(a) is not type(b):
        return a == b
    return all(_same(value, vars(b)[name]) for name, value in vars(a).items())


def _mean(d: Tensor, ratio: Tensor, sequences: int = 0) -> tuple[Tensor, Tensor]:
    """Return the mean of d plus a fitted multiple of q / p - 1, whose mean is 0, and its standard error.

    Draw i belongs to the sequence i % sequences, unless `sequences` is 0. Their number is even.
    """
    infinite = d.isinf().any(0)
    d = torch.where(infinite, 0, d)
    halves = torch.arange(d.shape[0], device=d.device) % 2 == 0
    fitted = [coefficient(d.detach()[half], ratio[half]) for half in (~halves, halves)]
    corrected = d + torch.where(halves.reshape(-1, *[1] * (d.ndim - 1)), *fitted) * ratio
    value = corrected.mean(0)
    each = corrected.detach()
    if sequences:
        each = each.unflatten(0, (-1, sequences)).mean(0)
    error = each.std(0) / each.shape[0] ** 0.5 + torch.finfo(d.dtype).eps * value.detach().abs()
    return torch.where(infinite, torch.inf, value), torch.where(infinite, 0, error)
