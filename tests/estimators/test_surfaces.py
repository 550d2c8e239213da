"""Draws on spheres, ellipsoids, simplices and other curved sets, of fewer dimensions than they have components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from torch.distributions import (
    Dirichlet,
    Distribution,
    LowRankMultivariateNormal,
    MultivariateNormal,
    constraints,
)

from kullback import Samples, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.estimators import from_density, nearest_neighbors
from kullback.estimators.draws import Draws
from kullback.estimators.knn.pilot import MarginalGaussianization
from kullback.estimators.surfaces import (
    common_span,
    dimension_of,
    fewest_dimensions,
    sphere_chart,
    surface_of,
    too_few_dimensions,
)
from tests.oracles.sample_cases import CASES
from tests.refusals import refused

Array = Any


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, n: int, d: int) -> Array:
    return np.random.default_rng(seed).standard_normal((n, d))


def unit(x: Array) -> Array:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def graph(x: Array) -> Array:
    """The surface of one more component, a smooth function of the others."""
    return np.column_stack([x, np.sin(2 * x).sum(1)])


def torus(x: Array) -> Array:
    return np.column_stack([unit(x[:, :2]), unit(x[:, 2:])])


def helix(x: Array) -> Array:
    return np.column_stack([np.cos(3 * x[:, 0]), np.sin(3 * x[:, 0]), x[:, 0]])


def covers(estimate: Any, truth: float) -> bool:
    return bool(estimate.interval[0] <= truth <= estimate.interval[1])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "n"), [("sphere6", 1000), ("sphere8", 1000), ("sphere10", 2000), ("softmax5", 1000)]
)
def test_intervals_hold_on_spheres_and_simplices(name: str, n: int) -> None:
    case, held, opened, values = CASES[name], 0, 0, []
    for seed in range(24):
        estimate = kl_estimate(*map(Samples, case.draws(n, seed)), generator=seeded(seed))
        opened += estimate.interval is not None and float(estimate.interval[1]) == np.inf
        held += covers(estimate, case.truth)
        values.append(float(estimate.value))
    assert held >= 21  # of 24, at least the share of 7 of 8
    assert opened <= 9
    assert np.mean(values) == pytest.approx(case.truth, abs=0.08)


def test_rows_of_probabilities_are_compared_in_log_ratios() -> None:
    x, y = CASES["softmax5"].draws(500, 0)
    rows, logs = (nearest_neighbors(*(Samples(f(side)) for side in (x, y))) for f in (np.asarray, log_ratios))
    assert float(rows.value) == pytest.approx(float(logs.value), rel=1e-9)
    assert any("All rows are probabilities" in note for note in rows.notes)
    other = nearest_neighbors(Samples(2 * x), Samples(2 * y))  # no probabilities
    assert any("follows from the others" in note for note in other.notes)


def log_ratios(x: Array) -> Array:
    return np.log(x[:, :-1]) - np.log(x[:, -1:])


def test_two_components_of_unit_vectors_are_an_angle() -> None:
    angles = np.random.default_rng(0).vonmises(0, 1, (2, 500))
    x, y = (np.column_stack([np.cos(a), np.sin(a)]) for a in angles)
    estimate = nearest_neighbors(Samples(x), Samples(y))
    assert covers(estimate, 0.0)
    assert "All draws are on a sphere" in estimate.notes[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_normalized_vectors_of_any_precision_are_on_a_sphere(dtype: torch.dtype) -> None:
    x, y = (
        torch.nn.functional.normalize(torch.tensor(normal(seed, 300, 6)), dim=1).to(dtype) for seed in (0, 1)
    )
    estimate = nearest_neighbors(Samples(x), Samples(y))
    assert covers(estimate, 0.0)
    assert "All draws are on a sphere" in estimate.notes[0]


def test_an_ellipsoid_is_a_sphere_in_other_coordinates() -> None:
    x, y = CASES["sphere6"].draws(600, 0)
    plain = nearest_neighbors(Samples(x), Samples(y))
    stretch, move = normal(3, 6, 6), np.arange(6.0)
    moved = nearest_neighbors(Samples(x @ stretch + move), Samples(y @ stretch + move))
    assert "an ellipsoid" in moved.notes[0]
    assert float(moved.value) == pytest.approx(float(plain.value), abs=0.2)
    assert covers(moved, CASES["sphere6"].truth)


def test_normalized_layers_are_in_a_plane_and_on_a_sphere() -> None:
    x, y = (
        torch.nn.functional.layer_norm(torch.tensor(normal(seed, 500, 6)), (6,), eps=0) for seed in (0, 1)
    )
    estimate = nearest_neighbors(Samples(x), Samples(y))
    assert covers(estimate, 0.0)
    assert any("an ellipsoid" in note for note in estimate.notes)
    assert any("follows from the others" in note for note in estimate.notes)


def test_a_chart_makes_uniform_directions_normal() -> None:
    x, y = unit(normal(0, 4000, 5)), unit(normal(1, 4000, 5) + 0.01)
    for z in sphere_chart(x, y):
        assert z.shape == (4000, 4)
        assert np.cov(z.T) == pytest.approx(np.eye(4), abs=0.08)
        assert (z**4).mean(0) == pytest.approx(np.full(4, 3.0), abs=0.4)


MISSED = {
    "a sphere and all of space": (unit(normal(0, 300, 3)), normal(1, 300, 3)),
    "two spheres": (unit(normal(0, 300, 3)), 2 * unit(normal(1, 300, 3))),
    "a cylinder and all of space": (helix(normal(0, 300, 1)), normal(1, 300, 3)),
    "many components": (unit(normal(0, 200, 100)), normal(1, 200, 100)),
}


@pytest.mark.parametrize("name", MISSED)
@pytest.mark.parametrize("turned", [False, True])
def test_a_surface_that_the_other_side_is_not_on_makes_kl_infinite(name: str, turned: bool) -> None:
    x, y = MISSED[name][::-1] if turned else MISSED[name]
    estimate = kl_estimate(Samples(x), Samples(y))
    assert float(estimate.value) == np.inf
    assert any("no draw of the other side is on it" in note for note in estimate.notes)


def test_rounding_alone_makes_kl_not_infinite() -> None:
    x, y = unit(normal(0, 300, 6)), unit(normal(1, 300, 6))
    assert (
        common_span(*map(Draws.of, (Samples(x), Samples(y.astype(np.float16).astype(np.float64))))).infinite
        == ""
    )


def test_few_distinct_draws_and_products_that_are_0_are_no_surface() -> None:
    repeated = normal(0, 12, 4)[np.arange(300) % 12]
    assert surface_of(repeated) is None
    sparse = normal(1, 300, 4) * np.eye(4)[np.arange(300) % 4]
    assert surface_of(sparse) is None
    assert surface_of(normal(2, 300, 4)) is None


CURVED: dict[str, Callable[[Array], Array]] = {"graph": graph, "torus": torus, "helix": helix}


@pytest.mark.parametrize("name", CURVED)
@pytest.mark.parametrize("n", [300, 1000])
def test_neighbors_give_no_interval_on_other_curved_sets(name: str, n: int) -> None:
    curve, d = CURVED[name], 1 if name == "helix" else 4
    x, y = normal(0, n, d), normal(1, n, d) + 0.3
    estimate = nearest_neighbors(Samples(curve(x)), Samples(curve(y)))
    assert estimate.interval is None
    assert any("fill fewer dimensions" in note for note in estimate.notes)


@pytest.mark.sweep
def test_what_neighbors_refuse_a_classifier_answers() -> None:
    x, y = normal(0, 600, 3), normal(1, 600, 3) + 0.5
    estimate = kl_estimate(Samples(graph(x)), Samples(graph(y)), generator=seeded())
    assert estimate.method == "density_ratio"
    assert covers(estimate, 3 * 0.125)


def test_a_curve_on_one_side_alone_gives_no_interval_of_neighbors() -> None:
    plane, curve = normal(0, 500, 2), graph(normal(1, 500, 1))
    for x, y in ((plane, curve), (curve, plane)):
        assert nearest_neighbors(Samples(x), Samples(y)).interval is None


@pytest.mark.sweep
@pytest.mark.parametrize("d", [2, 5, 8])
def test_clusters_far_apart_are_no_curved_set(d: int) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        x, y = 0.3 * rng.standard_normal((2, 800, d)) + 4 * rng.integers(0, 2, (2, 800, 1))
        assert covers(nearest_neighbors(Samples(x), Samples(y)), 0.0)


SHAPES: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "normal": lambda rng, n, d: rng.standard_normal((n, d)),
    "uniform": lambda rng, n, d: rng.random((n, d)),
    "exponential": lambda rng, n, d: rng.exponential(size=(n, d)),
    "three times as wide in a fifth": lambda rng, n, d: (
        rng.standard_normal((n, d)) * np.where(rng.random((n, 1)) < 0.2, 3, 1)
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "d"), [(200, 2), (200, 6), (1000, 4), (1000, 10)])
def test_draws_that_fill_space_are_not_refused(shape: str, n: int, d: int) -> None:
    refused = 0
    for seed in range(10):
        x = SHAPES[shape](np.random.default_rng(seed), n, d)
        gaussian = np.column_stack([MarginalGaussianization(column)(column) for column in x.T])
        refused += too_few_dimensions(x, gaussian / gaussian.std(0), (4, 16)) is not None
    assert refused <= 1


@pytest.mark.parametrize(("n", "d"), [(300, 2), (300, 5), (2000, 8)])
def test_the_dimension_of_normal_draws_is_what_is_expected_of_them(n: int, d: int) -> None:
    found = []
    for seed in range(5):
        x = normal(seed, n, d)
        distances = np.sort(np.linalg.norm(x[:200, None] - x[None], axis=2), axis=1)
        found.append(dimension_of(float(np.log(distances[:, 16] / distances[:, 4]).mean()), (4, 16)))
    least = fewest_dimensions((4, 16), n, d)
    assert d - 1 < least + 0.8 < np.mean(found) + 0.8
    assert np.mean(found) == pytest.approx(d, rel=0.1)


SPACE = MultivariateNormal(torch.zeros(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
PLANE = MultivariateNormal(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("x", "q"),
    [
        (unit(normal(0, 400, 3)), SPACE),
        (helix(normal(0, 400, 1)), SPACE),
        (np.column_stack([normal(0, 400, 2), normal(0, 400, 2).sum(1)]), SPACE),
        (unit(normal(0, 400, 2)), PLANE),
    ],
)
def test_draws_on_a_surface_are_infinitely_far_from_a_density(x: Array, q: Distribution) -> None:
    estimate = from_density(Samples(x), q, generator=seeded())
    assert float(estimate.value) == np.inf
    assert "KL is infinite" in estimate.notes[0]


@pytest.mark.sweep
@pytest.mark.parametrize(("x", "q"), [(graph(normal(0, 400, 1)), PLANE), (graph(normal(0, 800, 2)), SPACE)])
def test_draws_near_a_curved_set_have_no_density(x: Array, q: Distribution) -> None:
    with refused(ArgumentValueError, got=r"fill about .* of . dimensions"):
        from_density(Samples(x), q, generator=seeded())
    # What the error says to write instead.
    estimate = kl_estimate(Samples(x), Samples(q.sample(torch.Size([400]))), generator=seeded())
    assert estimate.interval is not None
    assert float(estimate.interval[1]) == np.inf


class OnSphere(Distribution):
    """The uniform distribution on the unit sphere in three dimensions, its density that of the surface."""

    support: Any = constraints.real_vector  # pyright: ignore[reportIncompatibleMethodOverride]
    arg_constraints: Any = {}  # noqa: RUF012  # pyright: ignore[reportIncompatibleMethodOverride]

    def __init__(self) -> None:
        super().__init__(event_shape=torch.Size([3]))

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        return torch.nn.functional.normalize(torch.randn(*sample_shape, 3, dtype=torch.float64), dim=-1)

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return torch.full(value.shape[:-1], -np.log(4 * np.pi), dtype=torch.float64)


def test_a_density_on_the_surface_itself_is_compared_by_draws() -> None:
    x = unit(normal(0, 400, 3))
    with refused(ArgumentValueError, got="curved surface"):
        from_density(Samples(x), OnSphere(), generator=seeded())
    assert covers(kl_estimate(Samples(x), Samples(OnSphere().sample((400,))), generator=seeded()), 0.0)


def test_a_density_in_the_plane_itself_is_compared_by_draws() -> None:
    factor = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    q = LowRankMultivariateNormal(
        torch.zeros(2, dtype=torch.float64), factor, torch.full((2,), 1e-16).double()
    )
    x = np.repeat(normal(0, 200, 1), 2, axis=1)
    with refused(ArgumentValueError, got="in one plane"):
        from_density(Samples(x), q, generator=seeded())
    assert covers(kl_estimate(Samples(x), Samples(q.sample(torch.Size([200]))), generator=seeded()), 0.0)


def dirichlet_kl(a: Array, b: Array) -> float:
    constants = gammaln(a.sum()) - gammaln(b.sum()) - (gammaln(a) - gammaln(b)).sum()
    return float(constants + ((a - b) * (digamma(a) - digamma(a.sum()))).sum())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("first", "second"),
    [([2.0, 3, 4, 5], [3.0, 3, 3, 3]), ([5.0, 2, 2], [1.0, 1, 1]), ([2.0, 2, 2], [2.0, 2, 2])],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_known_dirichlet(first: list[float], second: list[float], dtype: Any) -> None:
    a, b = np.array(first), np.array(second)
    held = 0
    for seed in range(6):
        x = np.random.default_rng(seed).dirichlet(a, 600).astype(dtype)
        estimate = from_density(Samples(x), Dirichlet(torch.tensor(b)), generator=seeded(seed))
        held += covers(estimate, dirichlet_kl(a, b))
    assert held >= 5
