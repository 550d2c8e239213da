"""The default dtype of torch has no effect on data that have a dtype, even where half precision would overflow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributions as td

from kullback import KL, JensenShannon, Renyi, TotalVariation, divergence, kl_estimate
from kullback.functional import TopK, top_k_divergence
from tests.test_default_device import CALLS, assert_same, flat

# These calls make tensors without a dtype themselves.
OF_THE_DEFAULT = {"labeled counts", "fit"}
DEFAULTS = (torch.float16, torch.bfloat16, torch.float64)


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float32)


INTEGERS: list[td.Distribution] = [
    td.Poisson(number(3.0)),
    td.Geometric(number(0.2)),
    td.NegativeBinomial(number(2.5), number(0.4)),
    td.Binomial(9, number(0.3)),
    td.Bernoulli(number(0.3)),
]
POSITIVE: list[td.Distribution] = [
    td.Gamma(number(2.0), number(1.5)),
    td.GeneralizedPareto(number(0.0), number(1.0), number(0.2)),
    td.LogNormal(number(0.1), number(0.7)),
]


@pytest.fixture(params=DEFAULTS, ids=str)
def default(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A default dtype, which a test sets where it needs it."""
    yield request.param
    torch.set_default_dtype(torch.float32)


@pytest.mark.sweep
def test_calls_do_not_depend_on_the_default_dtype(default: torch.dtype, tmp_path: Path) -> None:
    # The text says which call differs.
    for name in CALLS.keys() - OF_THE_DEFAULT:
        if default != torch.float16 and not name.startswith("kl_estimate"):
            continue
        torch.set_default_dtype(torch.float32)
        expected = CALLS[name](tmp_path)
        torch.set_default_dtype(default)
        try:
            assert_same(flat(CALLS[name](tmp_path)), flat(expected))
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{name} with default dtype {default}") from error


@pytest.mark.heavy
def test_pairs_do_not_depend_on_the_default_dtype(default: torch.dtype) -> None:
    for family in (INTEGERS, POSITIVE):
        for p, q in itertools.product(family, repeat=2):
            for kind in (KL(), JensenShannon(), Renyi(0.5), TotalVariation()):
                torch.set_default_dtype(torch.float32)
                expected = divergence(p, q, kind)
                torch.set_default_dtype(default)
                assert torch.equal(divergence(p, q, kind), expected), (p, q, kind, default)


def test_error_bounds_and_thresholds_do_not_depend_on_the_default_dtype(default: torch.dtype) -> None:
    huge = torch.tensor([1e291, 2e291], dtype=torch.float64)
    p, q = td.Dirichlet(huge), td.Dirichlet(huge.flip(0))
    # Rounding, not mass: the kept probabilities sum to 1 - 2e-7, and the student has no other class.
    log_probs = torch.tensor([[0.5, 0.5 - 2e-7]], dtype=torch.float32).log()
    teacher = TopK(torch.tensor([[0, 1]]), log_probs)
    student = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float32)
    results: list[tuple[Tensor | None, Tensor]] = []
    for dtype in (torch.float32, default):
        torch.set_default_dtype(dtype)
        results.append((kl_estimate(p, q).error, top_k_divergence(KL(), teacher, student)))
    assert_same(flat(results[1]), flat(results[0]))
    assert results[1][1].isfinite().all()
