"""What takes long says how far it is: every fit of a classifier, every block of shuffles."""

from __future__ import annotations

import importlib
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import polars as pl
import pytest
import torch
from torch.distributions import Categorical, Cauchy, MixtureSameFamily, MultivariateNormal, Normal, StudentT

from kullback import Samples, compare_tables, fit, kl_divergence, kl_estimate, two_sample_test
from kullback.errors import ArgumentValueError
from kullback.estimators import nearest_neighbors
from kullback.estimators.draws import affordable_draws
from tests.refusals import refused

MODULES = (
    "estimators.density_ratio.classifier_estimate",
    "estimators.known_density",
    "estimators.permutations",
    "estimators.knn.search",
    "pairs.univariate",
    "fitting.em",
    "fitting.fit_result",
)


@pytest.fixture
def told(monkeypatch):
    """The amounts done, by what is counted."""
    found = defaultdict(list)

    @contextmanager
    def bar(what, show=True):
        yield (lambda done, total: found[what].append((done, total))) if show else None

    for name in MODULES:
        monkeypatch.setattr(importlib.import_module(f"kullback.{name}"), "progress_bar", bar)
    return found


def seeded():
    return torch.Generator().manual_seed(0)


def vectors(n, d, digits=9):
    rng = np.random.default_rng(0)
    return (Samples(rng.standard_normal((n, d)).round(digits)) for _ in range(2))


@pytest.mark.sweep
@pytest.mark.parametrize(("n", "d", "digits"), [(120, 20, 9), (200, 2, 0), (10, 40, 9)])
def test_fits_are_counted_one_by_one(told, n, d, digits):
    """In many dimensions, with repeated values, and with more components than draws."""
    kl_estimate(*vectors(n, d, digits), method="density_ratio" if n < 50 else "auto", generator=seeded())
    assert [done for done, _ in told["fits"]] == list(range(1, len(told["fits"]) + 1))
    assert len(told["fits"]) >= 10


def test_shuffles_are_counted_up_to_all(told):
    two_sample_test(*vectors(120, 3), permutations=99, generator=seeded())
    assert told["permutations"][-1] == (99, 99)


def test_pairs_are_counted_up_to_all_of_a_large_batch_alone(told):
    p, q = Normal(torch.zeros(1200), 1.0), Cauchy(torch.linspace(0, 1, 1200), 1.0)
    kl_divergence(p, q)
    kl_divergence(Normal(torch.zeros(9), 1.0), Cauchy(torch.zeros(9), 1.0))
    assert told["pairs"] == [(512, 1200), (1024, 1200), (1200, 1200)]


@pytest.mark.sweep
def test_steps_and_starts_of_a_fit_are_counted(told):
    x = Samples(torch.randn(200, generator=seeded()))
    mixture = MixtureSameFamily(
        Categorical(torch.ones(2) / 2), Normal(torch.tensor([-1.0, 1.0]), torch.ones(2))
    )
    fit(mixture, to=x, starts=3, generator=seeded())
    assert told["starts"][-1] == (3, 3)
    assert told["steps"]
    told.clear()
    fit(StudentT(3.0), to=x)
    assert told["steps"]


def test_readings_of_tables_are_told():
    said = []
    p, q = ({"a": [1.0, 2.0, 3.0] * 20, "b": ["x", "y"] * 30} for _ in range(2))
    compare_tables(pl.DataFrame(p), pl.DataFrame(q), joint=[("a", "b")], progress=said.append)
    assert len(said) >= 3


def test_neighbors_are_counted_up_to_all_draws(told):
    kl_estimate(*vectors(120, 3), generator=seeded())
    assert told["neighbors"]
    assert all(done <= total for done, total in told["neighbors"])


def test_few_draws_are_fitted_on_one_thread(monkeypatch):
    """Threads of so small fits wait for each other: fifty times as long on a busy machine."""
    import threadpoolctl

    from kullback.estimators.density_ratio import classifier_estimate

    limits = []
    original = threadpoolctl.threadpool_limits
    monkeypatch.setattr(
        threadpoolctl, "threadpool_limits", lambda limit: limits.append(limit) or original(limit)
    )
    before = threadpoolctl.threadpool_info()
    kl_estimate(*vectors(60, 12), generator=seeded())
    assert limits == [1]
    assert [pool["num_threads"] for pool in threadpoolctl.threadpool_info()][: len(before)] == [
        pool["num_threads"] for pool in before
    ]
    monkeypatch.setattr(classifier_estimate, "_DRAWS_FOR_THREADS", 50)
    kl_estimate(*vectors(60, 12), generator=seeded())
    assert limits == [1]


@pytest.mark.parametrize("name", ["two_sample_test", "kl_estimate of vectors", "kl_estimate with a known Q"])
def test_without_a_generator_the_global_ones_stay_as_they_were(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    p, q = (Samples(torch.randn(60, 12, generator=source)) for _ in range(2))
    known = MultivariateNormal(torch.zeros(12), torch.eye(12))
    call = {
        "two_sample_test": lambda: two_sample_test(p, q, permutations=59),
        "kl_estimate of vectors": lambda: kl_estimate(p, q),
        "kl_estimate with a known Q": lambda: kl_estimate(p, known),
    }[name]
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    call()
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_references_of_a_known_density_are_counted_up_to_all(told):
    x = np.random.default_rng(0).standard_normal((300, 2))
    kl_estimate(
        Samples(x), MultivariateNormal(torch.zeros(2).double(), torch.eye(2).double()), generator=seeded()
    )
    done, total = told["references"][-1]
    assert done == total == len(told["references"])


@pytest.mark.heavy
@pytest.mark.parametrize("d", [6, 8, 10, 12])
def test_many_draws_in_many_dimensions_are_thinned_by_a_rule(d, monkeypatch):
    """The rule's numbers, a hundredth of them here: the search has no more draws than these."""
    usual = affordable_draws(d)
    assert 6000 <= usual <= 30_000
    for name in ("draws", "knn.neighbor_estimate", "known_density"):
        module = importlib.import_module(f"kullback.estimators.{name}")
        monkeypatch.setattr(module, "affordable_draws", lambda d: usual // 20)
    x, y = vectors(2000, d)
    first, again, other = (
        kl_estimate(x, y, method="nearest_neighbors", generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert first.value == again.value == other.value
    assert other.notes[0] == first.notes[0]
    assert f"{usual // 20:,} of P's 2,000 draws" in first.notes[0]
    assert first.n == (2000, 2000)
    whole = nearest_neighbors(x, y, most=2000)  # as the note says
    assert not any("chosen at random" in note for note in whole.notes)
    q = MultivariateNormal(torch.zeros(d).double(), torch.eye(d).double())
    known = kl_estimate(x, q, generator=seeded())
    assert any(f"{usual // 40:,} of the 2,000 draws" in note for note in known.notes)


@pytest.mark.parametrize("most", [0, 99, 2.5, "all"])
def test_too_few_draws_at_most_are_refused(most):
    with refused(ArgumentValueError, argument="most", instead="^most=None"):
        nearest_neighbors(*vectors(300, 3), most=most)


def test_five_dimensions_use_every_draw():
    assert affordable_draws(5) is None


def test_the_graph_of_neighbors_is_among_so_many_draws(monkeypatch):
    module = importlib.import_module("kullback.estimators.two_sample_test")
    monkeypatch.setattr(module, "MOST_IN_GRAPH", 50)
    rng = np.random.default_rng(0)
    form = module._of_vectors(rng.standard_normal((400, 3)), rng)
    graph = form.matrices["nearest_neighbors"].tocoo()
    assert len(np.unique(graph.row)) == 50
    assert set(graph.row) == set(graph.col)
