"""What takes long says how far it is: every fit of a classifier, every block of shuffles."""

from __future__ import annotations

import importlib
from collections import defaultdict
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from kullback import Samples, kl_estimate, two_sample_test

MODULES = ("density_ratio.api", "permutations", "knn.search")


@pytest.fixture
def told(monkeypatch):
    """The amounts done, by what is counted."""
    found = defaultdict(list)

    @contextmanager
    def bar(what, **_):
        yield lambda done, total: found[what].append((done, total))

    for name in MODULES:
        monkeypatch.setattr(importlib.import_module(f"kullback.estimators.{name}"), "progress_bar", bar)
    return found


def seeded():
    return torch.Generator().manual_seed(0)


def vectors(n, d, digits=9):
    rng = np.random.default_rng(0)
    return (Samples(rng.standard_normal((n, d)).round(digits)) for _ in range(2))


@pytest.mark.parametrize(("n", "d", "digits"), [(120, 20, 9), (200, 2, 0), (10, 40, 9)])
def test_fits_are_counted_one_by_one(told, n, d, digits):
    """In many dimensions, with repeated values, and with more components than draws."""
    kl_estimate(*vectors(n, d, digits), method="density_ratio" if n < 50 else "auto", generator=seeded())
    assert [done for done, _ in told["fits"]] == list(range(1, len(told["fits"]) + 1))
    assert len(told["fits"]) >= 10


def test_shuffles_are_counted_up_to_all(told):
    two_sample_test(*vectors(120, 3), permutations=99, generator=seeded())
    assert told["permutations"][-1] == (99, 99)


def test_neighbors_are_counted_up_to_all_draws(told):
    kl_estimate(*vectors(120, 3), generator=seeded())
    assert told["neighbors"]
    assert all(done <= total for done, total in told["neighbors"])


def test_few_draws_are_fitted_on_one_thread(monkeypatch):
    """Threads of so small fits wait for each other: fifty times as long on a busy machine."""
    import threadpoolctl

    from kullback.estimators.density_ratio import api

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
    monkeypatch.setattr(api, "_DRAWS_FOR_THREADS", 50)
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
