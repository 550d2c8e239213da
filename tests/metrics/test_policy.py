"""PolicyKL against formulas written out, in any blocks and processes, with exact expectations, and at the edges."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.metrics import PolicyKL

INF = math.inf


def sequences(n: int = 40, tokens: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities whose mismatch depends on the sequence, and masks of differing lengths."""
    generator = torch.Generator().manual_seed(3)
    log_p = -torch.rand(n, tokens, generator=generator, dtype=torch.float64) * 3
    own = torch.randn(n, 1, generator=generator, dtype=torch.float64) * 0.1
    log_q = log_p + own + torch.randn(n, tokens, generator=generator, dtype=torch.float64) * 0.05
    lengths = torch.randint(1, tokens + 1, (n, 1), generator=generator)
    return log_p, log_q, torch.arange(tokens) < lengths


def written_out(log_p: Tensor, log_q: Tensor, mask: Tensor, threshold: float) -> dict[str, float]:
    """The docstring's formulas in plain Python."""
    found: dict[str, float] = {}
    for name in ("k1", "k3"):
        sums, counts = [], []
        for p, q, m in zip(log_p.tolist(), log_q.tolist(), mask.tolist(), strict=True):
            d = [b - a for a, b, counted in zip(p, q, m, strict=True) if counted]
            if d:
                sums.append(math.fsum(-x if name == "k1" else math.expm1(x) - x for x in d))
                counts.append(len(d))
        n, tokens = len(sums), sum(counts)
        mean, whole = math.fsum(sums) / tokens, math.fsum(sums) / n
        squares = math.fsum((s - mean * c) ** 2 for s, c in zip(sums, counts, strict=True))
        found[name] = mean
        found[f"{name}_error"] = math.sqrt(n / (n - 1) * squares) / tokens
        found[f"sequence_{name}"] = whole
        found[f"sequence_{name}_error"] = math.sqrt(math.fsum((s - whole) ** 2 for s in sums) / (n * (n - 1)))
    found["beyond"] = float(((log_p - log_q).abs() > threshold)[mask].double().mean())
    return found


def assert_same(got: dict[str, Tensor], want: dict[str, float]) -> None:
    assert got.keys() == want.keys()
    assert {name: float(value) for name, value in got.items()} == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [13, 0, 27]], ids=str)
@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.2])
def test_it_is_the_formulas_in_blocks_of_any_size(sizes: list[int], threshold: float) -> None:
    log_p, log_q, mask = sequences()
    metric = PolicyKL(threshold=threshold)
    for block in zip(*(x.split(sizes) for x in (log_p, log_q, mask)), strict=True):
        metric.update(*block)
    assert_same(metric.compute(), written_out(log_p, log_q, mask, threshold))
    metric.reset()
    metric.update(log_p[:5], log_q[:5], mask[:5])
    assert_same(metric.compute(), written_out(log_p[:5], log_q[:5], mask[:5], threshold))


def test_the_states_of_processes_merge() -> None:
    log_p, log_q, mask = sequences()
    whole = PolicyKL()
    whole.update(log_p, log_q, mask)
    parts = [PolicyKL() for _ in range(4)]  # the last one saw nothing
    for part, block in zip(
        parts, zip(*(x.split([7, 13, 20]) for x in (log_p, log_q, mask)), strict=True), strict=False
    ):
        part.update(*block)
    merged = PolicyKL()
    merged.state = merged._reductions["state"](torch.stack([part.state for part in parts]))  # type: ignore[misc, operator]
    merged.beyond = torch.stack([part.beyond for part in parts]).sum()
    merged._update_count = 1
    assert_same(merged.compute(), {name: float(value) for name, value in whole.compute().items()})


def test_the_means_are_divergences() -> None:
    # All actions of one token, each as often as P samples it: the means are exact expectations.
    p, q = torch.tensor([[8, 4, 2, 2], [6, 5, 3, 2]], dtype=torch.float64) / 16
    actions = torch.tensor([0] * 8 + [1] * 4 + [2] * 2 + [3] * 2)
    metric = PolicyKL()
    metric.update(p.log()[actions][:, None], q.log()[actions][:, None])
    kl = float((p * (p / q).log()).sum())
    found = metric.compute()
    for name in ("k1", "k3", "sequence_k1", "sequence_k3"):
        assert float(found[name]) == pytest.approx(kl, rel=1e-7)


def test_errors_are_those_of_sequences_and_not_of_tokens() -> None:
    # Every token of a sequence says the same: 50 copies of it are no more information than one.
    log_p, log_q, _ = sequences(tokens=1)
    one, many = PolicyKL(), PolicyKL()
    one.update(log_p, log_q)
    many.update(log_p.expand(-1, 50), log_q.expand(-1, 50))
    for name in ("k1_error", "k3_error"):
        assert float(many.compute()[name]) == pytest.approx(float(one.compute()[name]), rel=1e-9)


def test_the_error_covers_what_repeated_samples_do() -> None:
    generator = torch.Generator().manual_seed(11)
    means, errors = [], []
    for _ in range(300):
        log_p = torch.zeros(30, 6, dtype=torch.float64)
        own = torch.randn(30, 1, generator=generator, dtype=torch.float64) * 0.3
        lengths = torch.randint(1, 7, (30, 1), generator=generator)
        metric = PolicyKL()
        metric.update(log_p, log_p + own, torch.arange(6) < lengths)
        found = metric.compute()
        means.append(float(found["k1"]))
        errors.append(float(found["k1_error"]))
    spread = float(torch.tensor(means).std())
    assert float(torch.tensor(errors).mean()) == pytest.approx(spread, rel=0.12)


def test_equal_policies_give_zero() -> None:
    log_p, _, mask = sequences()
    metric = PolicyKL(threshold=0.0)
    metric.update(log_p, log_p, mask)
    assert set(map(float, metric.compute().values())) == {0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_taken_as_it_is_and_summed_in_float64(dtype: torch.dtype) -> None:
    log_p, log_q, mask = sequences()
    low = log_p.to(dtype), log_q.to(dtype)
    metric = PolicyKL()
    metric.update(*low, mask)
    assert metric.to(torch.bfloat16).half().state.dtype == torch.float64
    assert_same(metric.compute(), written_out(low[0].double(), low[1].double(), mask, 0.1))


def test_padding_may_hold_anything() -> None:
    log_p, log_q, mask = sequences()
    clean, padded = PolicyKL(), PolicyKL()
    clean.update(log_p, log_q, mask)
    padded.update(torch.where(mask, log_p, math.nan), torch.where(mask, log_q, -INF), mask)
    assert_same(padded.compute(), {name: float(value) for name, value in clean.compute().items()})


def test_infinite_values() -> None:
    metric = PolicyKL()
    metric.update(torch.tensor([[-1.0, -1.0], [-1.0, -2.0]]), torch.tensor([[-1.05, -INF], [-1.2, -2.0]]))
    metric.update(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.05, -1.0]]))
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found.pop("beyond") == pytest.approx(2 / 6)
    assert set(found.values()) == {INF}
    # An overflow of k3 alone leaves k1 as it is.
    metric = PolicyKL()
    metric.update(torch.tensor([[-800.0], [-1.0]]).double(), torch.tensor([[0.0], [-1.0]]).double())
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found["k3"] == found["k3_error"] == INF
    assert found["k1"] == -400.0
    assert found["k1_error"] == pytest.approx(400.0)


def test_nothing_and_one_sequence() -> None:
    metric = PolicyKL()
    with pytest.warns(UserWarning, match="before"):
        assert all(math.isnan(float(value)) for value in metric.compute().values())
    metric.reset()
    metric.update(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    assert all(math.isnan(float(value)) for value in metric.compute().values())
    metric.reset()
    metric.update(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0]))
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found["k1"] == 0.25
    assert found["sequence_k1"] == 0.5
    assert math.isnan(found["k1_error"])
    assert math.isnan(found["sequence_k3_error"])


def test_forward_gives_the_batch_and_keeps_the_rest() -> None:
    log_p, log_q, mask = sequences()
    metric = PolicyKL()
    metric(log_p[:20], log_q[:20], mask[:20])
    assert_same(
        metric(log_p[20:], log_q[20:], mask[20:]), written_out(log_p[20:], log_q[20:], mask[20:], 0.1)
    )
    assert_same(metric.compute(), written_out(log_p, log_q, mask, 0.1))
    copy = pickle.loads(pickle.dumps(metric))  # noqa: S301 - our own
    assert_same(copy.compute(), written_out(log_p, log_q, mask, 0.1))
    json.dumps({name: float(value) for name, value in metric.compute().items()})


X = torch.zeros(2, 3)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            (X, torch.zeros(2, 2)),
            ArgumentValueError,
            r"PolicyKL.update\(log_q=...\): wanted a value for each action",
        ),
        (
            (X, X, torch.ones(2, 3)),
            ArgumentTypeError,
            r"PolicyKL.update\(mask=...\): wanted a boolean tensor",
        ),
        ((X, X, torch.ones(2, 2, dtype=torch.bool)), ArgumentValueError, r"PolicyKL.update\(mask=...\)"),
        ((X.long(), X), ArgumentTypeError, r"PolicyKL.update\(log_p=...\)"),
        (([0.0], X), ArgumentTypeError, r"PolicyKL.update\(log_p=...\)"),
        ((X[0, 0], X[0, 0]), ArgumentValueError, r"Write: log_p\[None\], log_q\[None\]"),
    ],
)
def test_wrong_batches(given: tuple[Any, ...], error: type[Exception], words: str) -> None:
    metric = PolicyKL()
    with pytest.raises(error, match=words):
        metric.update(*given)
    metric.update(X[0, 0][None], X[0, 0][None])


@pytest.mark.parametrize("threshold", [-1.0, math.nan, "0.1", None], ids=repr)
def test_wrong_thresholds(threshold: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"PolicyKL\(threshold=...\).*Write: threshold=0.1"):
        PolicyKL(threshold=threshold)
