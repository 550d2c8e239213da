"""KL, reverse KL, Jeffreys, skew KL, Jensen-Shannon and total variation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments
from kullback.common.extra_arguments import by_name
from kullback.generators.divergence import (
    LOGARITHMIC,
    NEAR,
    SERIES_TERMS,
    BuiltIn,
    Corner,
    Divergence,
    FinitePair,
    Growth,
    WeightedSum,
    finite,
    power_series,
    times,
)

KL_SERIES = [(-1) ** n / math.factorial(n) for n in range(2, 2 + SERIES_TERMS)]


def _kl_terms(p: Tensor, x: Tensor, far: Tensor) -> Tensor:
    """Return p (e^-x - 1 + x), the terms of KL for x = log(p/q). Where |x| >= NEAR, the result is `far`, which has the
    same terms without a series.
    """
    near = x.abs() < NEAR
    return torch.where(near, p * power_series(KL_SERIES, torch.where(near, x, 0)), far)


@by_name()
@dataclass(frozen=True)
class KL(BuiltIn):
    r"""The Kullback-Leibler divergence.

    .. math:: KL(P \| Q) = \sum_i p_i \log\frac{p_i}{q_i} = \sum_i p_i\,(e^{-d_i} - 1 + d_i), \quad d = \log p - \log q

    At p = 0 a term is q, and at q = 0 < p a term is +inf.

    Gradient:
        q - p with respect to the logits of Q, and p (d - KL) with respect to the logits of P. Classes that make the
        value infinite contribute 0 to the gradient with respect to P.

    Example:
        >>> import torch
        >>> from kullback import KL, Probs, divergence
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), KL())
        tensor(0.0853)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """

    short_name = "kl"
    aliases = ("forward_kl",)
    growth = Growth(far=LOGARITHMIC)

    def terms(self, pair: FinitePair) -> Tensor:
        return _kl_terms(pair.p, pair.log_ratio, pair.q_minus_p() + pair.p_log_ratio())

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        return times(pair.p, finite(pair.log_ratio)), pair.q_minus_p()


@by_name()
@dataclass(frozen=True)
class ReverseKL(WeightedSum):
    r"""The Kullback-Leibler divergence with P and Q exchanged.

    .. math:: KL(Q \| P) = \sum_i q_i \log\frac{q_i}{p_i}

    At q = 0 a term is p, and at p = 0 < q a term is +inf.

    Gradient:
        the gradient of `KL` with P and Q exchanged.

    Example:
        >>> import torch
        >>> from kullback import Probs, ReverseKL, divergence
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), ReverseKL())
        tensor(0.0975)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """

    short_name = "reverse_kl"
    growth = Growth(near=LOGARITHMIC)

    def parts(self) -> list[tuple[float, KL, bool]]:
        return [(1.0, KL(), True)]


@by_name()
@dataclass(frozen=True)
class Jeffreys(BuiltIn):
    r"""The symmetric sum of the Kullback-Leibler divergences in both directions.

    .. math:: J(P, Q) = KL(P \| Q) + KL(Q \| P) = \sum_i (p_i - q_i) \log\frac{p_i}{q_i}

    A term is +inf where exactly one of p and q is 0.

    Gradient:
        the sum of the gradients of `KL` and `ReverseKL`.

    Example:
        >>> import torch
        >>> from kullback import Jeffreys, Probs, divergence
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), Jeffreys())
        tensor(0.1828)

    References:
        An invariant form for the prior probability in estimation problems (Jeffreys, 1946)
    """

    short_name = "jeffreys"
    growth = Growth(LOGARITHMIC, LOGARITHMIC)

    def terms(self, pair: FinitePair) -> Tensor:
        return torch.where(pair.log_ratio.isinf(), torch.inf, -pair.q_minus_p() * finite(pair.log_ratio))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        d, difference = finite(pair.log_ratio), pair.q_minus_p()
        return times(pair.p, d) - difference, difference - times(pair.q, d)


_ARGUMENTS = Arguments("JensenShannon", scaled=FLAG)


@by_name()
@dataclass(frozen=True)
class JensenShannon(WeightedSum):
    r"""The Jensen-Shannon divergence: the weighted mean of KL from P and from Q to their mixture M; always finite.

    .. math:: JS_\beta(P, Q) = \beta\,KL(P \| M) + (1 - \beta)\,KL(Q \| M), \quad M = \beta P + (1 - \beta) Q

    At p = 0 a term is -q (1 - beta) log(1 - beta), and at q = 0 a term is -p beta log beta. The value is at most log 2
    for beta = 1/2, and goes to 0 as beta goes to 0 or 1. With `scaled`, the value is divided by beta (1 - beta), and
    the divergence is `KL` at beta = 0 and `ReverseKL` at beta = 1.

    Arguments:
        beta: the weight of P in the mixture, from 0 to 1.
        scaled: whether to divide the value by beta (1 - beta).

    Raises:
        ArgumentValueError: `beta` is not between 0 and 1.

    Gradient:
        finite everywhere with respect to logits.

    Example:
        >>> import torch
        >>> from kullback import JensenShannon, Probs, divergence
        >>> p, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> divergence(Probs(p), Probs(q), JensenShannon(), base=2)
        tensor(1.)

    References:
        Divergence measures based on the Shannon entropy (Lin, 1991)
    """

    beta: float = 0.5
    scaled: bool = False

    short_name = "js"
    aliases = ("jsd", "jensen_shannon")
    example = "js:0.5"
    ranges: ClassVar = {"beta": (0, 1)}
    growth = Growth()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.scaled, torch.fx.Proxy):
            _ARGUMENTS.check(scaled=self.scaled)

    @property
    def instead_of_zero(self) -> Divergence | None:
        return JensenShannon(self.beta, scaled=True) if self.beta in (0, 1) and not self.scaled else None

    def simplest(self) -> Divergence:
        if not self.scaled or self.beta not in (0, 1):
            return self
        return ReverseKL() if self.beta else KL()

    def parts(self) -> list[tuple[float, SkewKL, bool]]:
        beta, scale = self.beta, self.beta * (1 - self.beta) if self.scaled else 1.0
        if scale == 0:
            return [(1.0, SkewKL(0.0), beta == 1)]
        parts = [(beta / scale, SkewKL(beta), False), ((1 - beta) / scale, _SkewFrom(1 - beta, beta), True)]
        return [part for part in parts if part[0] > 0]


@by_name()
@dataclass(frozen=True)
class SkewKL(BuiltIn):
    r"""The Kullback-Leibler divergence from P to a mixture of P and Q, which is finite for every Q if alpha > 0.

    .. math:: KL(P \| \alpha P + (1 - \alpha) Q)

    At p = 0 a term is (1 - alpha) q, and at q = 0 a term is p (alpha - 1 - log alpha). The divergence is `KL` at
    alpha = 0, and 0 at alpha = 1.

    Arguments:
        alpha: the weight of P in the mixture, from 0 to 1.

    Raises:
        ArgumentValueError: `alpha` is not between 0 and 1.

    Gradient:
        finite everywhere for alpha > 0, and the gradient of `KL` for alpha = 0.

    Example:
        >>> import torch
        >>> from kullback import Probs, SkewKL, divergence
        >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])
        >>> divergence(Probs(p), Probs(q), SkewKL(alpha=0.1))
        tensor(0.8304)

    References:
        On the effectiveness of the skew divergence for statistical language analysis (Lee, 2001)
    """

    alpha: float

    short_name = "skew"
    aliases = ("skew_kl",)
    example = "skew:0.1"
    ranges: ClassVar = {"alpha": (0, 1)}
    growth = Growth()

    @property
    def instead_of_zero(self) -> Divergence | None:
        return SkewKL(0.9) if self.alpha == 1 else None

    def simplest(self) -> Divergence:
        return self if self.alpha else KL()

    @property
    def rest(self) -> float:
        """The weight of Q in the mixture."""
        return 1 - self.alpha

    def terms(self, pair: FinitePair) -> Tensor:
        if self.alpha == 0:
            return KL().terms(pair)
        x = self._log_p_over_mixture(pair)
        return _kl_terms(pair.p, x, self.rest * pair.q_minus_p() + times(pair.p, x))

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        if self.alpha == 0:
            return KL().derivatives(pair)
        x = self._log_p_over_mixture(pair)
        return times(pair.p, x - self.alpha * torch.expm1(x)), -self.rest * times(pair.q, torch.expm1(x))

    def _log_p_over_mixture(self, pair: FinitePair) -> Tensor:
        alpha, rest, d = self.alpha, self.rest, finite(pair.log_ratio)
        if rest == 0:
            return torch.zeros_like(d)
        # The result is log(p / mixture). Three formulas with d = log(p / q) are equal to it. The formula `below` is for
        # d < -30, where the other formulas overflow. The formula `near` is accurate where the mixture is close to p.
        # The formula `far` is accurate where the mixture is less than p / 2.
        is_below = d < -30
        below, above = torch.where(is_below, d, 0), torch.where(is_below, 0, d)
        change = rest * torch.expm1(-above)
        is_far = change < -0.5
        far = -torch.log(alpha + rest * torch.exp(-torch.where(is_far, above, 0)))
        near = -torch.log1p(torch.where(is_far, 0, change))
        x = torch.where(
            is_below, below - torch.log(rest + alpha * torch.exp(below)), torch.where(is_far, far, near)
        )
        alone = -math.log(alpha) if alpha < 0.5 else -math.log1p(-rest)
        x = torch.where(pair.log_ratio == torch.inf, alone, x)
        return torch.where(pair.log_ratio == -torch.inf, -torch.inf, x)


@dataclass(frozen=True)
class _SkewFrom(SkewKL):
    """The skew divergence with the weight `of_q` of Q, which is exact, while the weight 1 - alpha would be rounded."""

    of_q: float

    @property
    def rest(self) -> float:
        return self.of_q


@by_name()
@dataclass(frozen=True)
class TotalVariation(BuiltIn):
    r"""The total variation distance: the largest difference between the probabilities of an event under P and Q.

    .. math:: TV(P, Q) = \tfrac12 \sum_i |p_i - q_i|

    The value is between 0 and 1. At p = 0 a term is q/2, and at q = 0 a term is p/2.

    Gradient:
        finite everywhere with respect to logits. Classes with p = q contribute 0, although the divergence is not smooth
        at p = q.

    Example:
        >>> import torch
        >>> from kullback import Probs, TotalVariation, divergence
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> divergence(Probs(p), Probs(q), TotalVariation())
        tensor(0.1733)

    References:
        On Choosing and Bounding Probability Metrics (Gibbs and Su, 2002)
    """

    short_name = "tv"
    aliases = ("total_variation",)
    growth = Growth(corners=(Corner(0.0, 1.0),))
    logarithmic = False

    def terms(self, pair: FinitePair) -> Tensor:
        return pair.q_minus_p().abs() / 2

    def derivatives(self, pair: FinitePair) -> tuple[Tensor, Tensor]:
        sign = torch.sign(pair.log_ratio) / 2
        return pair.p * sign, -pair.q * sign
