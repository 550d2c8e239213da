"""Mixtures of many components: the panels are as many as the peaks need side by side, and all digits stay."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from kullback import JensenShannon, divergence, kl_divergence, kl_estimate
from kullback.pairs.integration.line import _STEPS, first_edges, scan_points


def mixture(count: int, seed: int, narrowest: float = 0.5) -> MixtureSameFamily:
    generator = torch.Generator().manual_seed(seed)
    weights, places, sizes = torch.rand(3, count, generator=generator, dtype=torch.float64)
    widths = narrowest * (1.5 / narrowest) ** sizes
    return MixtureSameFamily(Categorical(weights + 0.1), Normal(100 * places, widths))


def by_trapezoids(p: Distribution, q: Distribution, step: float) -> tuple[float, float]:
    """KL and JS by equal steps, which for a smooth density on the line are exact to rounding."""
    x = torch.arange(-30, 130, step, dtype=torch.float64)
    log_p, log_q = (torch.cat([d.log_prob(part) for part in x.split(4096)]) for d in (p, q))
    middle = torch.logaddexp(log_p, log_q) - torch.log(torch.tensor(2.0, dtype=torch.float64))
    js = (log_p.exp() * (log_p - middle) + log_q.exp() * (log_q - middle)).sum() / 2
    return float((log_p.exp() * (log_p - log_q)).sum() * step), float(js * step)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("count", "narrowest", "step"), [(40, 0.5, 0.05), (200, 0.5, 0.05), (60, 0.01, 0.002)]
)
def test_two_mixtures_of_many_components(count: int, narrowest: float, step: float) -> None:
    p, q = mixture(count, 1, narrowest), mixture(count, 2)
    kl, js = by_trapezoids(p, q, step)
    found = kl_estimate(p, q)
    assert float(found.value) == pytest.approx(kl, rel=1e-9)
    assert abs(float(found.value) - kl) <= float(found.error) + 1e-13 * kl
    assert float(divergence(p, q, JensenShannon())) == pytest.approx(js, rel=1e-8)


def test_a_normal_beside_a_mixture_of_many_components() -> None:
    p, q = Normal(torch.tensor(50.0).double(), 5.0), mixture(200, 4)
    for pair in ((p, q), (q, Normal(p.loc, 40.0))):
        assert float(kl_divergence(*pair)) == pytest.approx(by_trapezoids(*pair, 0.05)[0], rel=1e-9)


def test_panels_and_points_grow_with_the_line_not_with_the_peaks() -> None:
    counts = []
    for peaks in (50, 400):
        places = torch.linspace(-8, 8, peaks, dtype=torch.float64)
        marks = [(x + 0.3 * _STEPS).unsqueeze(0) for x in places]
        start, stop = torch.full((1, 1), -9.0).double(), torch.full((1, 1), 9.0).double()
        counts.append((first_edges(start, stop, marks, 16)[0].shape[-1], scan_points(marks).shape[-1]))
    assert counts[1][0] < 1.5 * counts[0][0]
    assert counts[1][1] < 3 * counts[0][1]
