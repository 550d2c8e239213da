r"""The member of an exponential family nearest to P in KL(P || Q): its statistics have the same means as under P.

:math:`KL(P \| Q_\eta) = -H(P) + A(\eta) - \eta \cdot E_P[T] + \dots` is convex in the natural parameters. Its
derivative :math:`E_{Q_\eta}[T] - E_P[T]` is 0 there.

Information Theory and Statistics (Kullback, 1959), chapter 3; Estimating a Dirichlet distribution (Minka, 2000)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Chi2,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    Gamma,
    Geometric,
    HalfNormal,
    InverseGamma,
    Laplace,
    LogNormal,
    NegativeBinomial,
    Normal,
    Pareto,
    Poisson,
    Uniform,
    VonMises,
    Weibull,
)

from kullback.common.special import digamma, digamma_minus_log, trigamma
from kullback.fitting.targets import (
    DensityTarget,
    DrawsTarget,
    FitTarget,
    IntegerTarget,
    MeanTarget,
    MixedTarget,
)
from kullback.pairs.densities.density import Points

Parameters = dict[str, Tensor]
# Takes the target, q's parameters in float64 and the names of fixed ones; returns None without a formula.
MomentRule = Callable[[FitTarget, Parameters, frozenset[str]], "Parameters | None"]
_RULES: dict[type[Distribution], MomentRule] = {}
# The families of integers: the parameter that follows from the mean, and its value for a mean and q's parameters.
_OF_THE_MEAN: dict[type[Distribution], tuple[str, Callable[[Tensor, Parameters], Tensor]]] = {
    Bernoulli: ("probs", lambda mean, _: mean),
    Binomial: ("probs", lambda mean, start: mean / start["total_count"]),
    Poisson: ("rate", lambda mean, _: mean),
    Geometric: ("probs", lambda mean, _: 1 / (1 + mean)),
    NegativeBinomial: ("probs", lambda mean, start: mean / (start["total_count"] + mean)),
}


def matched(
    family: type[Distribution], target: MeanTarget, start: Parameters, fixed: frozenset[str]
) -> Parameters | None:
    """Return the parameters with the same means of the statistics as the target; None if there is no formula.

    Arguments:
        family: the class of Q.
        target: P.
        start: the parameters of Q at the start, in float64, of the batch's shape.
        fixed: the names of fixed parameters.
    """
    with torch.no_grad():
        if family in _OF_THE_MEAN:
            name, of_mean = _OF_THE_MEAN[family]
            return {name: of_mean(target.mean(), start)}
        rule = _RULES.get(family)
        return None if rule is None or _of_integers(target) else rule(cast("FitTarget", target), start, fixed)


def _of_integers(target: MeanTarget) -> bool:
    return (
        _of_integers(target.inner) if isinstance(target, MixedTarget) else isinstance(target, IntegerTarget)
    )


def bisect(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, steps: int = 110) -> Tensor:
    """Return the root of an increasing function, to the last digit; an end if there is none between."""
    for _ in range(steps):
        middle = (low + high) / 2
        is_below = f(middle) < 0
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return (low + high) / 2


def _log_root(
    f: Callable[[Tensor], Tensor], like: Tensor, low: float = -690.0, high: float = 690.0
) -> Tensor:
    """Return the positive root of an increasing function; 0 or infinity if it has none."""
    log_x = bisect(lambda u: f(torch.exp(u)), torch.full_like(like, low), torch.full_like(like, high))
    root = torch.exp(log_x)
    return torch.where(log_x > high - 1, torch.inf, torch.where(log_x < low + 1, 0.0, root))


def _rule(*families: type[Distribution]) -> Callable[[MomentRule], MomentRule]:
    def enter(rule: MomentRule) -> MomentRule:
        _RULES.update(dict.fromkeys(families, rule))
        return rule

    return enter


def _log_x(at: Points) -> Tensor:
    return at.log_above(0.0)


# ---- On the line.


@_rule(Normal)
def _normal(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    if isinstance(target, DensityTarget) and target.shape.numel() and not fixed & {"loc", "scale"}:
        return dict(zip(("loc", "scale"), target.mean_and_deviation(), strict=True))
    loc = start["loc"] if "loc" in fixed else target.mean()
    scale = start["scale"] if "scale" in fixed else _deviation(target, lambda at: at.x, loc)
    return {"loc": loc, "scale": scale}


@_rule(LogNormal)
def _log_normal(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    loc = start["loc"] if "loc" in fixed else _mean_log(target)
    scale = start["scale"] if "scale" in fixed else _deviation(target, _log_x, loc)
    return {"loc": loc, "scale": scale}


def _deviation(target: FitTarget, of: Callable[[Points], Tensor], about: Tensor) -> Tensor:
    return target.mean_of(lambda at, center: (of(at) - center) ** 2, about).sqrt()


def _mean_log(target: FitTarget) -> Tensor:
    return target.mean_of(_log_x)


@_rule(Laplace)
def _laplace(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    loc = start["loc"] if "loc" in fixed else _median(target)
    if "scale" in fixed:
        return {"loc": loc, "scale": start["scale"]}
    scale = target.mean_of(lambda at, center: (at.x - center).abs(), loc, corner=loc)
    return {"loc": loc, "scale": scale}


def _median(target: FitTarget) -> Tensor:
    """Return a median, which minimizes E|x - m|."""
    if isinstance(target, DrawsTarget):
        order = target.draws.sort(0)
        weights = target.weights_beside(target.draws).expand_as(target.draws)
        total = weights.gather(0, order.indices).cumsum(0)
        lower = (total >= 0.5 - 1e-12).to(torch.uint8).argmax(0, keepdim=True)
        upper = (total > 0.5 + 1e-12).to(torch.uint8).argmax(0, keepdim=True)
        return ((order.values.gather(0, lower) + order.values.gather(0, upper)) / 2).squeeze(0)
    center, width = _place(target)
    low, high = center - width, center + width

    def above(m: Tensor) -> Tensor:
        return target.mean_of(lambda at, m: torch.sign(m - at.x), m, corner=m)

    for _ in range(1000):
        short, long = above(low) > 0, above(high) < 0
        if not bool((short | long).any()):
            break
        low, high = torch.where(short, 2 * low - high, low), torch.where(long, 2 * high - low, high)
    return bisect(above, low, high, steps=60)


def _place(target: MeanTarget) -> tuple[Tensor, Tensor]:
    """Return a point inside the support of a density, and a width."""
    if isinstance(target, DensityTarget):
        density = target.density
        center, width = (x.expand(target.shape) for x in density.center_and_width())
        ends = density.coordinate().points(torch.stack([center - width, center, center + width])).x
        return ends[1], (ends[2] - ends[0]).abs()
    assert isinstance(target, MixedTarget)  # noqa: S101 - there is no other with a density
    centers, widths = _place(target.inner)
    return centers.mean(-2), widths.amax(-2) + centers.amax(-2) - centers.amin(-2)


@_rule(Uniform)
def _uniform(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    ends = {name: _extreme(target, side) for name, side in (("low", -1), ("high", 1))}
    if any(end is None for end in ends.values()):
        return None
    return {name: start[name] if name in fixed else end for name, end in ends.items() if end is not None}


def _extreme(target: FitTarget, side: int) -> Tensor | None:
    """Return the smallest or the largest draw with weight, or the end of a density's support; None if it has none."""
    if isinstance(target, DrawsTarget):
        weights = target.weights_beside(target.draws)
        return side * torch.where(weights > 0, side * target.draws, -torch.inf).amax(0)
    density = target.density if isinstance(target, DensityTarget) else None
    end = None if density is None else density.low() if side < 0 else density.high()
    return None if end is None else end.expand(target.shape)


@_rule(VonMises)
def _von_mises(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    loc = start["loc"]
    if "loc" not in fixed:
        sine, cosine = (target.mean_of(lambda at, f=f: f(at.x)) for f in (torch.sin, torch.cos))
        loc = torch.atan2(sine, cosine)
    if "concentration" in fixed:
        return {"loc": loc, "concentration": start["concentration"]}
    # 1 - E cos(x - loc) = 2 E sin^2((x - loc) / 2), which is accurate for a large concentration.
    rest = target.mean_of(lambda at, loc: 2 * torch.sin((at.x - loc) / 2) ** 2, loc)

    def excess(k: Tensor) -> Tensor:
        i0, i1 = torch.special.i0e(k), torch.special.i1e(k)
        return rest - (i0 - i1) / i0

    return {"loc": loc, "concentration": _log_root(excess, rest, -40.0, 30.0)}


# ---- On the half line.


@_rule(Exponential)
def _exponential(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    return {"rate": 1 / target.mean()}


@_rule(HalfNormal)
def _half_normal(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    return {"scale": _deviation(target, lambda at: at.x, torch.zeros_like(start["scale"]))}


@_rule(Gamma)
def _gamma(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    return _gamma_of(target, start, fixed, log_x=_log_x, mean=target.mean())


@_rule(InverseGamma)
def _inverse_gamma(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    mean = target.mean_of(lambda at: torch.exp(-_log_x(at)))
    return _gamma_of(target, start, fixed, log_x=lambda at: -_log_x(at), mean=mean)


def _gamma_of(
    target: FitTarget,
    start: Parameters,
    fixed: frozenset[str],
    log_x: Callable[[Points], Tensor],
    mean: Tensor,
) -> Parameters:
    """Match the mean and the mean logarithm of a variable with this logarithm."""
    if "rate" in fixed:
        mean_log = target.mean_of(log_x) + start["rate"].log()
        a = start["concentration"]
        if "concentration" not in fixed:
            a = _log_root(lambda a: digamma(a) - mean_log, mean_log)
        return {"concentration": a, "rate": start["rate"]}
    if "concentration" in fixed:
        return {"concentration": start["concentration"], "rate": start["concentration"] / mean}

    def gap(at: Points, log_mean: Tensor) -> Tensor:
        d = log_x(at) - log_mean
        return torch.expm1(d) - d  # log E x - E log x, in small non-negative terms

    s = target.mean_of(gap, mean.log())
    a = _log_root(lambda a: s + digamma_minus_log(a), s)
    return {"concentration": a, "rate": a / mean}


@_rule(Chi2)
def _chi2(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    mean_log = _mean_log(target) - math.log(2)
    return {"df": 2 * _log_root(lambda a: digamma(a) - mean_log, mean_log)}


@_rule(Weibull)
def _weibull(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    if "scale" in fixed or "concentration" not in fixed:
        return None
    k, middle = start["concentration"], _mean_log(target)
    power = target.mean_of(lambda at, k, m: torch.expm1(k * (_log_x(at) - m)), k, middle)
    return {"scale": torch.exp(middle + torch.log1p(power) / k), "concentration": k}


@_rule(Pareto)
def _pareto(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters | None:
    scale = start["scale"] if "scale" in fixed else _extreme(target, -1)
    if scale is None:
        return None
    if "alpha" in fixed:
        return {"scale": scale, "alpha": start["alpha"]}
    mean = target.mean_of(lambda at, scale: _log_x(at) - scale.log(), scale)
    return {"scale": scale, "alpha": 1 / mean}


# ---- On the unit interval.


@_rule(Beta)
def _beta(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    g1 = _mean_log(target)
    g0 = target.mean_of(lambda at: at.log_below(1.0))
    a, b = start["concentration1"], start["concentration0"]
    if {"concentration1", "concentration0"} <= fixed:
        return {"concentration1": a, "concentration0": b}
    if "concentration1" in fixed:
        b = _log_root(lambda b: digamma(b) - digamma(a + b) - g0, g0)
    elif "concentration0" in fixed:
        a = _log_root(lambda a: digamma(a) - digamma(a + b) - g1, g1)
    else:
        a, b = dirichlet_from_mean_logs(torch.stack([g1, g0], -1)).unbind(-1)
    return {"concentration1": a, "concentration0": b}


def dirichlet_from_mean_logs(mean_logs: Tensor) -> Tensor:
    """Return the concentrations with psi(a_k) - psi(sum a) = E log x_k, by Newton's method on a concave function.

    NaN if there are none: the mean logarithms then belong to a single point.
    """
    a = torch.full_like(mean_logs, 0.1)
    for _ in range(200):
        gradient = digamma(a.sum(-1, keepdim=True)) - digamma(a) + mean_logs
        q = -trigamma(a)
        z = trigamma(a.sum(-1, keepdim=True))
        shared = (gradient / q).sum(-1, keepdim=True) / (1 / z + (1 / q).sum(-1, keepdim=True))
        step = -(gradient - shared) / q
        # No further than to a tenth, or to ten times as much.
        new = torch.minimum(torch.maximum(a + step, a / 10), 10 * a)
        if bool(((new - a).abs() <= 1e-16 * a).all()):
            break
        a = new
    missed = (digamma(a.sum(-1, keepdim=True)) - digamma(a) + mean_logs).abs() > 1e-9 * (1 + mean_logs.abs())
    return torch.where((missed | ~a.isfinite()).any(-1, keepdim=True), torch.nan, a)


@_rule(ContinuousBernoulli)
def _continuous_bernoulli(target: FitTarget, start: Parameters, fixed: frozenset[str]) -> Parameters:
    mean = target.mean()
    rest = target.mean_of(lambda at: torch.exp(at.log_below(1.0)))
    smaller = torch.minimum(mean, rest)
    middle = (rest - mean) / 2  # 1/2 - smaller, up to the sign

    def excess(y: Tensor) -> Tensor:
        """The smaller mean minus the mean for logits -y: 1/2 - L(y/2)/2, with Langevin's function L."""
        near = y < 0.5
        h = torch.where(near, y, 0) / 2
        langevin = (
            h / 3 - h**3 / 45 + 2 * h**5 / 945 - h**7 / 4725 + 2 * h**9 / 93555 - 1382 * h**11 / 638512875
        )
        far = torch.where(near, 1, y)
        mean_far = 1 / far - 1 / torch.expm1(far)
        return torch.where(near, langevin / 2 - middle.abs(), smaller - mean_far)

    size = _log_root(excess, mean, -60.0, 690.0)
    logits = torch.where(middle > 0, -size, size)
    return {"logits": torch.where(smaller > 0, logits, torch.nan)}
