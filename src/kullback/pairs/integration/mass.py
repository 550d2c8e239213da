"""A check that the density of a user's own class integrates to 1. With another mass, the divergence has no meaning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.dtypes import upcast
from kullback.errors import invalid_value
from kullback.pairs.densities.black_box import BlackBoxDensity
from kullback.pairs.densities.density import Density, density_of
from kullback.pairs.integration.line import Line
from kullback.pairs.integration.panels import LINE, Panels, integrate, integrate_panels, panel_nodes
from kullback.pairs.sampling import DrawsFrom

LIBRARIES = ("torch.", "kullback.")
"""Prefixes of module names. Classes in these modules have normalized densities and are not checked."""
# The first panels have about _EDGES edges, equally spaced in the sorted list of _DRAWS draws, so that panels are small
# where the density has mass. At most _EVALUATIONS nodes are used. The tests in tests/pairs/densities/test_black_box.py
# check densities with mass 1 and with other masses.
_DRAWS, _EDGES, _EVALUATIONS = 1000, 60, 4000
# A mass may differ from 1 by _ALLOWED plus 10 times the estimated error of the mass. The value of _ALLOWED is about 250
# times the machine epsilon of float32.
_ALLOWED = 3e-5
# A mass above _LARGEST is reported as infinite, because its computed value depends only on the range of float64.
_LARGEST = 1e100


def check_masses(
    call: str,
    sides: tuple[Distribution, Distribution],
    densities: tuple[Density | None, Density | None] = (None, None),
) -> None:
    """Raise if a density of a user's own class in P or Q does not integrate to 1; `densities` are those known."""
    for argument, side, density_of_side in zip(("p", "q"), sides, densities, strict=True):
        own: Any = side
        density = density_of_side
        while isinstance(own, Distribution) and type(own).__module__.startswith(LIBRARIES):
            own, density = getattr(own, "component_distribution", getattr(own, "base_dist", None)), None
        if not isinstance(own, Distribution):
            continue
        density = density_of(own) if density is None and not own.event_shape else density
        if not isinstance(density, BlackBoxDensity):
            continue
        with torch.no_grad():
            mass, error = _mass(density)
        off = ~((mass - 1).abs() <= _ALLOWED + 10 * error.nan_to_num(posinf=0.0))
        if bool(off.any()):
            value = float(mass[off][0])
            raise invalid_value(
                call,
                argument,
                wanted=f"a {type(own).__name__}.log_prob whose density integrates to 1",
                got=f"a mass of {value:.6g}" if value < _LARGEST else "an infinite mass",
                instead="log_prob minus the logarithm of that mass, or a support with the ends of the density",
            )


def _mass(density: BlackBoxDensity) -> tuple[Tensor, Tensor]:
    """Return the integral of a density over its support, and the error of the integral; both of the batch shape."""
    own = density.distribution
    with DrawsFrom(0):
        draws = upcast(own.sample(torch.Size([_DRAWS]))).movedim(0, -1)
    apart = density.detached().mapped(lambda x: x.unsqueeze(-1))
    center, width = (x.expand(*own.batch_shape, 1) for x in apart.center_and_width())
    line = Line(apart.coordinate(), center, width)
    order = line.marks([], draws)[0].sort(-1).values
    quantiles = order[..., :: _DRAWS // _EDGES]
    # Beyond the smallest and the largest draw, the density may jump to 0. The panels there grow slowly, so that nodes
    # lie on both sides of the jump.
    steps = torch.logspace(-3, 10, 14, base=2.0, dtype=torch.float64, device="cpu")
    near_first, near_last = quantiles[..., 1:2] - order[..., :1], order[..., -1:] - quantiles[..., -2:-1]
    beyond = order[..., :1] - near_first * steps, order[..., -1:] + near_last * steps
    far = torch.tensor([*range(-690, 0, 30), 0, *range(30, 691, 30)], dtype=torch.float64, device="cpu")
    near = torch.linspace(-30, 30, 61, dtype=torch.float64, device="cpu")
    fixed = torch.cat([far, near]).expand(*quantiles.shape[:-1], -1)
    edges = torch.cat([quantiles, order[..., -1:], *beyond, fixed], -1).sort(-1).values

    def integrands(lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        v, half = panel_nodes(lower, upper)
        at, log_jacobian = line.points(v.flatten(-2))
        log_p = (apart.log_density(at) + log_jacobian).nan_to_num(nan=-torch.inf)
        return integrate_panels(torch.exp(log_p).unflatten(-1, v.shape[-2:]), half)

    def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
        value, error = (x.sum(-1) for x in parts[0].columns)
        return (error < _ALLOWED / 100) | ~value.isfinite(), [parts[0].columns[1]]

    parts = [((edges[..., :-1], edges[..., 1:]), integrands)]
    mass, error = integrate(LINE, parts, judge, _EVALUATIONS)[0].columns
    return mass.sum(-1), error.sum(-1)
