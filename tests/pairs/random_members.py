"""Random members of every univariate continuous family, for the tests of pairs. A new family joins with one line."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Cauchy,
    Chi2,
    ContinuousBernoulli,
    Distribution,
    Exponential,
    FisherSnedecor,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    InverseGamma,
    Kumaraswamy,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
    Uniform,
    VonMises,
    Weibull,
)

Draw = Callable[[int, torch.Generator], Tensor]


def between(low: float, high: float) -> Draw:
    """Numbers spread evenly between two."""
    return lambda n, g: low + (high - low) * torch.rand(n, generator=g, dtype=torch.float64)


def scales(low: float, high: float) -> Draw:
    """Positive numbers whose logarithms are spread evenly."""
    exponents = between(torch.tensor(low).log().item(), torch.tensor(high).log().item())
    return lambda n, g: exponents(n, g).exp()


LINE, SCALE, SHAPE, CHANCE = between(-2, 2), scales(0.3, 3), scales(1.2, 8), between(0.02, 0.98)

# Each family: how its parameters are drawn, in the order of its constructor.
PARAMETERS: dict[type[Distribution], tuple[Draw, ...]] = {
    Normal: (LINE, SCALE),
    Laplace: (LINE, SCALE),
    Cauchy: (LINE, SCALE),
    Gumbel: (LINE, SCALE),
    StudentT: (scales(4.5, 30), LINE, SCALE),
    Exponential: (SCALE,),
    Gamma: (SHAPE, SCALE),
    Chi2: (SHAPE,),
    InverseGamma: (scales(4.5, 9), SCALE),
    Weibull: (SCALE, SHAPE),
    LogNormal: (between(-1, 1), between(0.3, 0.8)),
    HalfNormal: (SCALE,),
    HalfCauchy: (SCALE,),
    Pareto: (scales(0.2, 0.9), scales(4.5, 9)),
    FisherSnedecor: (scales(9, 20), scales(9, 20)),
    Beta: (SHAPE, SHAPE),
    Kumaraswamy: (SHAPE, SHAPE),
    ContinuousBernoulli: (CHANCE,),
    Uniform: (between(0.1, 0.4), between(0.6, 0.9)),
    VonMises: (LINE, scales(0.1, 50)),
}
# Q's parameters, where P's would make most divergences infinite.
PARAMETERS_OF_Q: dict[type[Distribution], tuple[Draw, ...]] = {
    Uniform: (between(-3, 0), between(1, 3)),
    Pareto: (scales(0.01, 0.1), scales(0.5, 9)),
    Gumbel: (LINE, scales(4, 9)),
    Weibull: (SCALE, scales(0.2, 0.7)),
}


def draw_parameters(family: type[Distribution], count: int, seed: int, *, of_q: bool = False) -> list[Tensor]:
    """Draw the parameters of a batch of members."""
    draws = PARAMETERS_OF_Q.get(family, PARAMETERS[family]) if of_q else PARAMETERS[family]
    generator = torch.Generator().manual_seed(seed)
    return [draw(count, generator) for draw in draws]
