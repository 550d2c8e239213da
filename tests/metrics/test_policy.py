"""PolicyKL against formulas written out, in any blocks and processes, with exact expectations, and at the edges."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.estimators import EstimateWarning
from kullback.metrics import PolicyKL
from tests.refusals import refused

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
        # No token is outside here.
        found |= {f"inside_{name}": found[name], f"inside_{name}_error": found[f"{name}_error"]}
    ratios = [
        math.fsum(math.exp(b - a) for a, b, counted in zip(p, q, m, strict=True) if counted)
        for p, q, m in zip(log_p.tolist(), log_q.tolist(), mask.tolist(), strict=True)
        if any(m)
    ]
    mean = math.fsum(ratios) / tokens
    squares = math.fsum((s - mean * c) ** 2 for s, c in zip(ratios, counts, strict=True))
    found |= {"ratio": mean, "ratio_error": math.sqrt(n / (n - 1) * squares) / tokens, "outside": 0.0}
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
    merged.outside = torch.stack([part.outside for part in parts]).sum(0)
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


@pytest.mark.sweep
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
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found.pop("ratio") == 1
    assert set(found.values()) == {0.0}


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


def test_tokens_outside_make_the_means_infinite_and_leave_those_inside() -> None:
    log_p, log_q, mask = sequences()
    truncated = torch.where(torch.arange(12) % 5 == 2, -INF, log_q)
    inside = mask & (truncated > -INF)
    metric = PolicyKL()
    metric.update(log_p[:20], truncated[:20], mask[:20])
    metric.update(log_p[20:], truncated[20:], mask[20:])
    outside = int((mask & ~inside).sum())
    share = outside / int(mask.sum())
    words = rf"{outside} of {int(mask.sum())} tokens \({share:.2g}\) have probability 0 under Q alone"
    with pytest.warns(EstimateWarning, match=words):
        found = {name: float(value) for name, value in metric.compute().items()}
    assert found["outside"] == pytest.approx(share)
    for name in ("k1", "k3", "sequence_k1", "sequence_k3"):
        assert found[name] == found[f"{name}_error"] == INF
    want = written_out(log_p, log_q, inside, 0.1)
    for name in ("inside_k1", "inside_k3"):
        assert found[name] == pytest.approx(want[name], rel=1e-10)
        # A sequence without a token inside counts among the independent ones.
        assert found[f"{name}_error"] == pytest.approx(want[f"{name}_error"], rel=0.02)
    # q/p is 0 there.
    ratio = (log_q - log_p).exp()
    assert found["ratio"] == pytest.approx(float(ratio[inside].sum() / mask.sum()), rel=1e-10)


@pytest.mark.parametrize(("p", "q", "k1"), [(-1.0, -INF, INF), (-INF, -1.0, -INF)])
def test_either_side_may_rule_a_token_out(p: float, q: float, k1: float) -> None:
    metric = PolicyKL()
    metric.update(torch.tensor([[p, -1.0], [-1.0, -INF]]), torch.tensor([[q, -1.5], [-1.0, -INF]]))
    with pytest.warns(EstimateWarning, match=r"1 of 4 tokens \(0.25\) have probability 0 under [PQ]"):
        found = {name: float(value) for name, value in metric.compute().items()}
    assert (found["k1"], found["k3"], found["outside"]) == (k1, INF, 0.25)
    assert found["inside_k1"] == pytest.approx(0.5 / 3)
    assert found["inside_k3"] == pytest.approx((math.exp(-0.5) - 0.5) / 3)


def test_an_overflow_of_k3_leaves_k1() -> None:
    metric = PolicyKL()
    metric.update(torch.tensor([[-800.0], [-1.0]]).double(), torch.tensor([[0.0], [-1.0]]).double())
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found["k3"] == found["k3_error"] == INF
    assert found["k1"] == -400.0
    assert found["k1_error"] == pytest.approx(400.0)


def truncated_at(log_probs: Tensor, mass: float) -> Tensor:
    """Top-p: the most probable classes that have so much mass together, renormalized."""
    p, order = log_probs.exp().sort(-1, descending=True)
    kept = torch.zeros_like(p, dtype=torch.bool).scatter(-1, order, p.cumsum(-1) - p < mass)
    return log_probs.masked_fill(~kept, -INF).log_softmax(-1)


def processed(
    p_mass: float = 2.0,
    q_mass: float = 2.0,
    temperature: float = 1.0,
    stated: float = 1.0,
    noise: float = 0.05,
    scale: float = 1.0,
    same_tokens: bool = False,
) -> PolicyKL:
    """A metric of tokens of 60 classes sampled at a temperature after top-p, given log-probabilities at another."""
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(100, 30, 60, generator=generator, dtype=torch.float64)
    trained = scale * logits + noise * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    sampled = truncated_at((logits / temperature).log_softmax(-1), p_mass)
    log_q = truncated_at((trained / stated).log_softmax(-1), q_mass)
    if same_tokens:
        log_q = log_q.masked_fill(sampled == -INF, -INF).log_softmax(-1)
    tokens = torch.multinomial(sampled.flatten(0, 1).exp(), 1, generator=generator).view(100, 30, 1)
    log_p = sampled if stated == temperature else (logits / stated).log_softmax(-1)
    metric = PolicyKL()
    metric.update(log_p.gather(-1, tokens)[..., 0], log_q.gather(-1, tokens)[..., 0])
    return metric


def test_processed_log_probabilities_are_named() -> None:
    metric = processed(p_mass=0.9)
    with pytest.warns(
        EstimateWarning, match="k1 = .* and k3 = .* of 3,000 tokens contradict each other"
    ) as caught:
        found = metric.compute()
    (text,) = (str(each.message) for each in caught)
    ratio, error = float(found["ratio"]), float(found["ratio_error"])
    assert f"{ratio - 1:.3g}, which is {(1 - ratio) / error:.3g} standard errors" in text
    assert ratio - 1 == pytest.approx(float(found["k3"] - found["k1"]), rel=1e-9)
    assert caught[0].filename == __file__
    # Tokens that Q alone rules out are named in its place.
    with pytest.warns(EstimateWarning, match="have probability 0 under Q alone"):
        processed(p_mass=0.95, q_mass=0.9).compute()
    # Log-probabilities at another temperature than the tokens were sampled at.
    with pytest.warns(EstimateWarning, match="sampled at another temperature"):
        processed(temperature=1.5, scale=0.8).compute()


@pytest.mark.parametrize(
    "remedy",
    [
        {},  # without top-p
        {"noise": 0.5},
        {"p_mass": 0.9, "same_tokens": True},
        {"temperature": 1.5, "stated": 1.5, "scale": 0.8},
    ],
    ids=str,
)
def test_the_remedies_agree(remedy: dict[str, Any]) -> None:
    metric = processed(**remedy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name: float(value) for name, value in metric.compute().items()}
    assert abs(found["k1"] - found["k3"]) < 4 * found["ratio_error"]


def test_a_test_of_the_ratio_is_silent_where_nothing_is_wrong() -> None:
    generator = torch.Generator().manual_seed(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            # q/p of tokens of P is lognormal with mean 1, shared in part by the tokens of a sequence.
            own = 0.3 * torch.randn(12, 1, generator=generator) + 0.3 * torch.randn(
                12, 5, generator=generator
            )
            metric = PolicyKL()
            metric.update(torch.zeros(12, 5), own - 0.09)
            metric.compute()


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
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
    with refused(ArgumentValueError, call="PolicyKL", argument="threshold", instead="^threshold=0.1"):
        PolicyKL(threshold=threshold)
