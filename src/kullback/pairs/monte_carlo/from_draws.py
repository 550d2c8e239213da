r"""Monte Carlo estimates of divergences with a standard error, for `method="monte_carlo"` only.

KL: with d = log p - log q at draws from P, the mean of d estimates KL. The mean of d + c (q / p - 1) also estimates KL,
for any c, because E_P[q / p] = 1. The control variate's coefficient c is fitted for the least variance. Each half of
the draws uses the c of the other half, which keeps the estimate unbiased. If q / p has an infinite variance, or a mean
other than 1, c is 0. If P is a mixture, each component is sampled. Draws that are functions of normal numbers are
quasi-random. KL is at least 0, so a negative mean is noise, and the value becomes 0 with the gradient of the mean.

Gradients of KL: if P can be reparameterized, gradients flow through the draws only. P's parameters in log p count as
constants, because the score has mean 0 (Sticking the Landing, Roeder, Wu and Duvenaud, 2017). If P cannot be
reparameterized, the gradients are score-function gradients with a baseline.

Other kinds: half of the draws are from P, half from Q. The term q f(p / q) of a draw is divided by the density
(p + q) / 2 of all draws. So the terms of a bounded kind are bounded.

Normalization: for normalized P and Q, the mean E_P[q / p] is Q's mass on the support of P, which is at most 1. Then the
product of 1 + b (q / p - 1) over independent draws has a mean of at most 1, for each b from 0 to 1. By Markov's
inequality, the product exceeds 1 / a with a probability of at most a, for any number of draws and any tails. A mean of
q / p below 1 proves nothing, because draws of P may rarely reach the mass of Q.

Estimating Means of Bounded Random Variables by Betting (Waudby-Smith and Ramdas, 2023)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent
from torch.distributions.constraints import Constraint, MixtureSameFamilyConstraint

from kullback.common.control_variate import coefficient, ratio_minus_one, tail_index
from kullback.common.dtypes import tensor_of, upcast
from kullback.errors import NoRuleError, invalid_value, no_rule
from kullback.generators import KL, Alpha, Divergence, Renyi
from kullback.generators.growth import growth_of, order_of
from kullback.generators.of_ratio import with_limits
from kullback.generators.power import log_affinity
from kullback.kernels.reference import pair_of_logs
from kullback.pairs.clone import expanded, parts_of
from kullback.pairs.family import lacks, overrides, overrides_density
from kullback.pairs.integration.mass import LIBRARIES, check_masses
from kullback.pairs.monte_carlo.log_densities import (
    AtDraws,
    at_draws,
    density_of_numbers,
    log_prob_inside,
    without_shared_maps,
)
from kullback.pairs.numerics.parameters import dtype_of
from kullback.pairs.registry import names_of
from kullback.pairs.sampling import drawing_from
from kullback.pairs.solve_options import FEWEST_DRAWS, SolveOptions
from kullback.pairs.support import is_infinite
from kullback.results.estimate import Estimate

# _LARGEST_ERROR is the largest accepted relative standard error of the sum S in Renyi's divergence log(S) / (alpha -
# 1). The bias of log S is about half the square of this error, so at most 0.05.
# The tests in tests/pairs/monte_carlo/test_other_kinds.py check pairs with larger and smaller errors.
_LARGEST_ERROR = 0.3
# If the tail index is at least _LARGEST_INDEX, the variance of the terms is infinite.
_LARGEST_INDEX = 0.5


def serves(kind: Divergence) -> bool:
    """Return whether draws can estimate a kind: an additive kind, or Renyi's divergence of a positive finite order."""
    return kind.additive or (isinstance(kind, Renyi) and 0 < kind.alpha < math.inf)


def estimate(
    call: str, p: Distribution, q: Distribution, options: SolveOptions, kind: Divergence
) -> Estimate | None:
    """Return the Monte Carlo estimate of a divergence with its standard error, or None if `serves(kind)` is false."""
    if not serves(kind):
        return None
    is_kl = isinstance(kind, KL)
    for d in (p,) if is_kl else (p, q):
        _check_draws(call, d)
    if not p.event_shape:
        check_masses(call, (p, q))
    shape, dtype = torch.broadcast_shapes(p.batch_shape, q.batch_shape), dtype_of(p, q)
    p, q = without_shared_maps(expanded(p, shape), expanded(q, shape))
    with drawing_from(options.generator):
        try:
            result = _kl(call, p, q, options.draws) if is_kl else _other(call, p, q, kind, options.draws)
        except NoRuleError:
            raise
        except NotImplementedError as failure:
            raise no_rule(
                call,
                "method",
                wanted="distributions with sample and log_prob for method='monte_carlo'",
                got=_without(p, q),
                instead="sample and log_prob in the class, or @register_kl for the pair",
            ) from failure
    value, error = (x.to(dtype).expand(shape) for x in result)
    return _not_negative(Estimate(value, None, "monte_carlo", standard_error=error))


def _without(p: Distribution, q: Distribution) -> str:
    """Return the classes with the methods that they do not have, as text."""
    lacking = {type(part).__name__: lacks(part, ("sample", "log_prob")) for part in parts_of(p, q)}
    texts = [f"{name} without {' and '.join(methods)}" for name, methods in lacking.items() if methods]
    return "; ".join(texts) or f"{names_of(type(p), type(q))}; at least one lacks them"


def _check_draws(call: str, d: Distribution) -> None:
    """Raise if a user's own class overrides `log_prob`, but inherits draws of another density."""
    if overrides_density(d) and not (overrides(d, "sample") or overrides(d, "rsample")):
        raise no_rule(
            call,
            "method",
            wanted="draws from the density of P for method='monte_carlo'",
            got=f"{type(d).__name__}, which overrides log_prob, but neither sample nor rsample",
            instead="a sample method in the class that draws from the density of log_prob",
        )


def _not_negative(result: Estimate) -> Estimate:
    """Return an estimate with 0 in place of negative values, and with the same gradient."""
    fixed = result.value.detach()
    below = fixed < 0
    if not bool(below.any()):
        return result
    least = int(torch.where(below, fixed, 0).argmin())
    mean, spread = (float(x.flatten()[least]) for x in (fixed, cast("Tensor", result.standard_error)))
    note = (
        f"The mean of the draws was {mean:.3g} (standard error {spread:.2g}). A divergence is at least 0, so the value "
        "is 0."
    )
    return replace(result, value=torch.where(below, result.value - fixed, result.value), notes=(note,))


# ---- KL.


def _kl(call: str, p: Distribution, q: Distribution, draws: int) -> tuple[Tensor, Tensor]:
    """Return the estimate of KL(P || Q) from draws of P, and its standard error."""
    at = at_draws(call, p, q, draws)
    d = at.log_p - at.log_q
    _check_numbers(call, p, q, at.log_p, at.log_q)
    size = (at.log_p.detach().abs() + at.log_q.detach().abs()).nan_to_num(posinf=0.0).mean()
    rounding = 2 * torch.finfo(d.dtype).eps * float(size)
    d = d if at.score is None else _with_score(d, at.score)
    ratio, log_ratio = ratio_minus_one(d), -d.detach()
    if at.weights is not None:
        # The weighted sum over the i-th draws of all components is an unbiased estimate of the mixture's integral. The
        # gradient by the weights flows only through this sum, because the gradient of log p by the weights has mean 0.
        used = at.weights > 0
        ratio, log_ratio = _weighted(ratio, at), _weighted(log_ratio, at, in_logs=True)
        d = torch.where(used, at.weights * torch.where(used, d, 0), 0).sum(1)
    check_normalized(call, p, q, log_ratio, rounding)
    _check_other_side(call, p, q, draws, rounding)
    if not _shares_support(p, q):  # the mean of q / p under P may be below 1
        ratio = torch.zeros_like(ratio)
    value, error = _mean(d, ratio, at.sequences)
    infinite = _is_infinite(p, q)
    return torch.where(infinite, torch.inf, value), torch.where(infinite, 0, error)


def _check_numbers(call: str, p: Distribution, q: Distribution, log_p: Tensor, log_q: Tensor) -> None:
    """Raise if log p is not finite at a draw of P, or log q is NaN or +inf."""
    wrong = ~log_p.detach().isfinite() | log_q.detach().isnan() | (log_q.detach() == torch.inf)
    if bool(wrong.any()):
        raise no_rule(
            call,
            "method",
            wanted="log-densities that are numbers at the draws for method='monte_carlo'",
            got=f"NaN or infinite values at {float(wrong.double().mean()):.2g} of the draws for "
            f"{names_of(type(p), type(q))}",
            instead="parameters in float64, or a log_prob that is -inf outside its support",
        )


def _check_other_side(call: str, p: Distribution, q: Distribution, draws: int, rounding: float) -> None:
    """Raise if draws of Q prove that a user's own density is not normalized, because E_Q[p / q] exceeds 1."""
    if all(type(d).__module__.startswith(LIBRARIES) for d in (p, q)):
        return
    try:
        _check_draws(call, q)
        with torch.no_grad():
            at = at_draws(call, q, p, draws)
    except NotImplementedError:  # Q has no draws, so only the draws of P are tested
        return
    check_normalized(call, q, p, _weighted(at.log_q - at.log_p, at, in_logs=True), rounding)


def _is_infinite(p: Distribution, q: Distribution) -> Tensor:
    """Return a mask of the elements whose KL is infinite because of supports or tails, which draws rarely show."""
    while isinstance(p, Independent) and isinstance(q, Independent) and p.event_shape == q.event_shape:
        p, q = p.base_dist, q.base_dist
    infinite = torch.zeros((), dtype=torch.bool, device="cpu")
    densities = density_of_numbers(p), density_of_numbers(q)
    if densities[0] is None or densities[1] is None:
        return infinite
    mask = is_infinite(densities[0], densities[1])
    return infinite if mask is None else mask


def _with_score(d: Tensor, log_p: Tensor) -> Tensor:
    """Return d = log p - log q at draws of P, with the score-function gradient of `log_p` added to its own."""
    fixed = d.detach()
    fixed = torch.where(fixed.isinf(), 0, fixed)
    others = (fixed.sum(0) - fixed) / (d.shape[0] - 1)
    return d + (fixed - others) * (log_p - log_p.detach())


def _shares_support(p: Distribution, q: Distribution) -> bool:
    """Return whether P and Q have the same support, so that the mean of q / p under P is 1."""
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
    """Return the mean of d = log p - log q with the control variate `ratio` = q / p - 1, and its standard error.

    Draw i belongs to the quasi-random sequence i % sequences; 0 means independent draws. `sequences` is even.
    """
    infinite = d.isinf().any(0)
    d = torch.where(infinite, 0, d)
    halves = torch.arange(d.shape[0], device=d.device) % 2 == 0
    fitted = [coefficient(d.detach()[half], ratio[half]) for half in (~halves, halves)]
    corrected = d + torch.where(halves.reshape(-1, *[1] * (d.ndim - 1)), *fitted) * ratio
    value, error = corrected.mean(0), _standard_error(corrected.detach(), sequences)
    error = error + torch.finfo(d.dtype).eps * value.detach().abs()
    return torch.where(infinite, torch.inf, value), torch.where(infinite, 0, error)


def _standard_error(x: Tensor, sequences: int) -> Tensor:
    independent = x.unflatten(0, (-1, sequences)).mean(0) if sequences else x
    return independent.std(0) / independent.shape[0] ** 0.5


# ---- The other kinds.


class _Half(NamedTuple):
    """The terms at the draws of P, or of Q, zeros with the gradients of these terms, and the terms of Renyi's sum S."""

    terms: Tensor
    changes: Tensor
    powers: Tensor
    sequences: int


def _other(
    call: str, p: Distribution, q: Distribution, kind: Divergence, draws: int
) -> tuple[Tensor, Tensor]:
    """Return the estimate of a divergence from equal numbers of draws of P and of Q, and its standard error.

    The gradient is the gradient of the terms at fixed draws: the draws and their density count as constants.
    """
    alpha = order_of(kind) if isinstance(kind, Renyi) else None
    additive = with_limits(kind if alpha is None else Alpha(alpha))
    halves: list[_Half] = []
    for first, other in ((p, q), (q, p)):
        with torch.no_grad():
            at = at_draws(call, first, other, max(draws // 2, FEWEST_DRAWS))
            logs = (at.log_p, at.log_q) if first is p else (at.log_q, at.log_p)
            _check_numbers(call, first, other, at.log_p, at.log_q)
            check_normalized(call, first, other, _weighted(at.log_q - at.log_p, at, in_logs=True))
            log_mean = torch.logaddexp(*logs) - math.log(2)
            pair = pair_of_logs(upcast(logs[0] - log_mean), upcast(logs[1] - log_mean))
            terms, derivatives = additive.terms(pair), additive.derivatives(pair)
            powers = torch.exp(log_affinity(pair, alpha)) if alpha is not None else torch.zeros_like(terms)
        changes = torch.zeros_like(terms)
        if torch.is_grad_enabled():
            for d, by in zip((p, q), derivatives, strict=True):
                log = log_prob_inside(d, at.x)
                used = by.isfinite() & log.detach().isfinite()
                changes = changes + torch.where(used, by, 0) * torch.where(used, log - log.detach(), 0)
        halves.append(
            _Half(_weighted(terms, at), _weighted(changes, at), _weighted(powers, at), at.sequences)
        )
    value, error = _mean_of_halves([(half.terms, half.sequences) for half in halves])
    change = sum((half.changes.mean(0) / 2 for half in halves), torch.zeros_like(value))
    if alpha is not None:
        powers, power_error = _mean_of_halves([(half.powers, half.sequences) for half in halves])
        _check_tails(call, p, q, kind, [half.powers for half in halves], power_error / powers)
        relative = alpha * (alpha - 1) * value
        near = relative.abs() < 0.5
        log_power = torch.where(near, torch.log1p(torch.where(near, relative, 0)), torch.log(powers))
        scale = alpha / torch.where(near, 1 + relative, powers)
        return log_power / (alpha - 1) + scale * change, scale * torch.where(
            near, error, power_error / abs(alpha * (alpha - 1))
        )
    if not growth_of(additive).is_bounded:
        _check_tails(call, p, q, kind, [half.terms for half in halves], error / (1 + value))
    return value + change, error


def _weighted(x: Tensor, at: AtDraws, *, in_logs: bool = False) -> Tensor:
    """Return the mean of x, or log mean e^x if `in_logs`, over the components of a mixture P; else x itself."""
    if at.weights is None:
        return x
    weights = at.weights.detach()
    if in_logs:
        return (torch.log(weights) + torch.where(weights > 0, x, 0)).logsumexp(1)
    return torch.where(weights > 0, weights * torch.where(weights > 0, x, 0), 0).sum(1)


def _mean_of_halves(halves: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return the average of the means of both halves, and its standard error; +inf and 0 where a term is infinite."""
    infinite = torch.stack([x.isinf().any(0) for x, _ in halves]).any(0)
    numbers = [(torch.where(infinite, 0, x), sequences) for x, sequences in halves]
    value = sum((x.mean(0) for x, _ in numbers), torch.zeros_like(infinite, dtype=torch.float64)) / 2
    error = (
        torch.stack([_standard_error(x, sequences) for x, sequences in numbers]).square().sum(0).sqrt() / 2
    )
    return torch.where(infinite, torch.inf, value), torch.where(infinite, 0, error)


def _check_tails(
    call: str, p: Distribution, q: Distribution, kind: Divergence, terms: list[Tensor], error: Tensor
) -> None:
    """Raise if few draws determine the value: then the standard error is too small, or the value unreliable."""
    few = error > _LARGEST_ERROR
    for x in terms:
        few = few | (tail_index(x) >= _LARGEST_INDEX)
    if bool(few.any()):
        raise no_rule(
            call,
            "p, q, kind",
            wanted="terms whose mean does not depend on few draws for method='monte_carlo'",
            got=f"{kind!r} of {names_of(type(p), type(q))}, whose tails are too heavy or too far apart",
            instead="method='auto' for pairs with a rule, or KL(), JensenShannon() or SquaredHellinger()",
        )


# _LEVEL bounds the probability of a false alarm, that is, an error for normalized densities.
_LEVEL = 1e-6
# _BETS are the values of b, called bets. A small bet detects a small excess over 1 from many draws, a large bet a large
# excess from few draws. Each bet gives a valid test, and so does the average of the products for all bets.
_BETS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.9)
# The mean may exceed 1 by _ALLOWED, because densities may be rounded to float32, as in `integration/mass.py`.
_ALLOWED = 3e-5


def check_normalized(
    call: str, p: Distribution, q: Distribution, log_ratio: Tensor, rounding: Tensor | float = 0.0
) -> None:
    """Raise if draws of P prove that a density is not normalized, or is not the density of the draws.

    `log_ratio` is log q - log p at the draws, shape (draws, ...), and `rounding` bounds its rounding error.
    """
    excess = torch.expm1(log_ratio.detach().double()).clamp(max=1e100) - _ALLOWED - rounding
    logs = torch.stack([torch.log1p(bet * excess.clamp(min=-1)).sum(0) for bet in _BETS])
    evidence = logs.logsumexp(0) - math.log(len(_BETS))
    refuted = evidence > math.log(max(evidence.numel(), 1) / _LEVEL)
    if bool(refuted.any()):
        means = torch.exp(log_ratio.detach().double().logsumexp(0) - math.log(len(log_ratio)))
        mean = float(means[refuted].flatten()[0])
        raise invalid_value(
            call,
            "p, q",
            wanted="densities that integrate to 1, and draws that follow them, so that q / p has a mean of at most 1 "
            "over draws of P",
            got=f"a mean of {mean:.4g} for {names_of(type(p), type(q))}",
            instead="log_prob minus the logarithm of the mass in the class that is not normalized, or without log_prob "
            f"{call}(Samples(p.sample((n,))), Samples(q.sample((n,))))",
        )
