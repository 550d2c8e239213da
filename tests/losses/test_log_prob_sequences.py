"""The surrogate's values, importance weights and clipping: exact expectations over all sequences of a small policy."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.functional import kl_surrogate
from tests.refusals import refused

INF = math.inf
V = 3
DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "reverse"])
VALUES = pytest.mark.parametrize("value", ["k1", "k3"])

# A policy over sequences of two tokens: logits of the first, and of the second after each first.
Policy = tuple[Tensor, Tensor]


def policies() -> tuple[Policy, Policy, Policy]:
    first, second = torch.randn(3, V, dtype=torch.float64), torch.randn(3, V, V, dtype=torch.float64)
    p, q, b = zip(first, second, strict=True)
    for x in (*p, *q):
        x.requires_grad_()
    return p, q, b


def log_probs(policy: Policy) -> Tensor:
    """The log-probabilities of both tokens of all V * V sequences, shape (V * V, 2)."""
    first, second = policy[0].log_softmax(-1), policy[1].log_softmax(-1)
    return torch.stack([first[:, None].expand(V, V), second], -1).reshape(-1, 2)


def conditional_kl(p: Policy, q: Policy, of_prefixes: Policy, ended: int | None = None) -> Tensor:
    """The divergences of the tokens' distributions, at the prefixes that a third policy visits, which are constant."""

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a.softmax(-1) * (a.log_softmax(-1) - b.log_softmax(-1))).sum(-1)

    prefixes = of_prefixes[0].detach().softmax(-1)
    if ended is not None:
        prefixes = prefixes.index_fill(0, torch.tensor(ended), 0.0)
    return kl(p[0], q[0]) + (prefixes * kl(p[1], q[1])).sum()


def expected(values: Tensor, sampled: Policy) -> Tensor:
    """The mean over all sequences of the values summed over tokens; the probabilities carry no gradient."""
    return (log_probs(sampled).detach().sum(-1).exp() * values.sum(-1)).sum()


def assert_same(got: Tensor, true: Tensor, *policies: Policy, value: Tensor | None = None) -> None:
    torch.testing.assert_close(got, true if value is None else value)
    parameters = [x for policy in policies for x in policy]
    for mine, theirs in zip(
        torch.autograd.grad(got, parameters, retain_graph=True),
        torch.autograd.grad(true, parameters),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@DIRECTIONS
@VALUES
@pytest.mark.parametrize("importance", ["action", "prefix", "sequence"])
def test_the_weights_of_tokens_prefixes_and_sequences(direction: Any, value: Any, importance: Any) -> None:
    p, q, b = policies()
    first, second = (p, q) if direction == "forward" else (q, p)
    values = kl_surrogate(
        log_probs(p),
        log_probs(q),
        direction=direction,
        value=value,
        log_ratio=log_probs(first) - log_probs(b),
        importance=importance,
        reduction="none",
    )
    visited = b if importance == "action" else first
    assert_same(expected(values, b), conditional_kl(first, second, visited), p, q)
    if importance != "action":
        whole = log_probs(first).sum(-1), log_probs(second).sum(-1)
        torch.testing.assert_close(expected(values, b), (whole[0].exp() * (whole[0] - whole[1])).sum())


@VALUES
@pytest.mark.parametrize("importance", ["prefix", "sequence"])
def test_sequences_of_several_lengths(value: Any, importance: Any) -> None:
    p, q, b = policies()
    mask = torch.ones(V, V, 2, dtype=torch.bool)
    mask[0, :, 1] = False  # the first class ends the sequence
    mask = mask.reshape(-1, 2)

    def padded(x: Tensor) -> Tensor:
        return torch.where(mask, x, math.nan)

    values = kl_surrogate(
        padded(log_probs(p)),
        padded(log_probs(q)),
        direction="forward",
        value=value,
        log_ratio=padded(log_probs(p) - log_probs(b)).detach(),
        importance=importance,
        mask=mask,
        reduction="none",
    )
    assert bool(values.isfinite().all())
    assert_same(expected(values, b), conditional_kl(p, q, p, ended=0), p, q)


@DIRECTIONS
@VALUES
def test_without_weights_actions_come_from_the_first(direction: Any, value: Any) -> None:
    p, q, _ = policies()
    first, second = (p, q) if direction == "forward" else (q, p)
    values = kl_surrogate(log_probs(p), log_probs(q), direction=direction, value=value, reduction="none")
    assert_same(expected(values, first), conditional_kl(first, second, first), p, q)


@VALUES
@pytest.mark.parametrize("clip", [0.3, (-INF, 0.2), (-0.1, 0.0)], ids=repr)
def test_clipped_weights(value: Any, clip: Any) -> None:
    p, q, b = policies()
    log_p, log_q, log_b = log_probs(p), log_probs(q), log_probs(b)
    values = kl_surrogate(
        log_p,
        log_q,
        direction="forward",
        value=value,
        log_ratio=log_p - log_b,
        clip_log_ratio=clip,
        reduction="none",
    )
    low, high = clip if isinstance(clip, tuple) else (-clip, clip)
    ratio = (log_p - log_b).detach()
    weight = ratio.where(ratio > low, low).where(ratio < high, high).exp()
    assert bool((weight != ratio.exp()).any())
    k1 = (log_p - log_q).detach()
    # By hand: the gradient of w (k1 log p - log q) with w and k1 constant, and the value by its formula.
    true = expected(weight * (k1 * log_p - log_q), b)
    want = expected(weight * (k1 if value == "k1" else torch.exp(-k1) - 1 + k1), b)
    assert_same(expected(values, b), true, p, q, value=want)


def test_clipping_comes_after_the_sum_over_a_sequence() -> None:
    log_p = torch.tensor([[-1.0, -1.0]])
    values = kl_surrogate(
        log_p, log_p - 1, direction="forward", log_ratio=torch.tensor([[0.7, 0.7]]), importance="prefix",
        clip_log_ratio=1.0, reduction="none",
    )  # fmt: skip
    torch.testing.assert_close(values, torch.tensor([[0.7, 1.0]]).exp())


def test_the_gradient_does_not_depend_on_the_value() -> None:
    p, q, b = policies()
    log_p, log_q = log_probs(p), log_probs(q)
    found = [
        torch.autograd.grad(
            kl_surrogate(log_p, log_q, direction="forward", value=value, log_ratio=log_p - log_probs(b)),  # type: ignore[arg-type]
            [*p, *q],
            retain_graph=True,
        )
        for value in ("k1", "k3")
    ]
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


def test_differentiating_k3_gives_another_gradient() -> None:
    p, q, _ = policies()
    log_p, log_q = log_probs(p), log_probs(q)
    k3 = (log_q - log_p).exp() - 1 - (log_q - log_p)
    naive = torch.autograd.grad(expected(k3, p), p[0], retain_graph=True)[0]
    true = torch.autograd.grad(conditional_kl(p, q, p), p[0])[0]
    assert (naive - true).abs().max() > 0.1 * true.abs().max()


def test_k3_varies_less_for_policies_that_are_close() -> None:
    p, q, _ = policies()
    near = (p[0] + 0.1 * q[0], p[1] + 0.1 * q[1])
    log_p, log_q = log_probs(p), log_probs(near)
    spread = {}
    for value in ("k1", "k3"):
        values = kl_surrogate(
            log_p.detach(), log_q.detach(), direction="forward", value=value, reduction="none"
        )  # type: ignore[arg-type]
        sums = values.sum(-1, keepdim=True)
        spread[value] = float(expected((sums - conditional_kl(p, near, p).detach()) ** 2, p))
    assert spread["k3"] < 0.1 * spread["k1"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@VALUES
def test_edges(value: Any, dtype: torch.dtype) -> None:
    #            equal, both 0, q = 0, p = 0, p = 0 and never taken, masked
    log_p = torch.tensor([-1.5, -INF, -1.0, -INF, -INF, math.nan], dtype=dtype, requires_grad=True)
    log_q = torch.tensor([-1.5, -INF, -INF, -1.0, -1.0, math.nan], dtype=dtype, requires_grad=True)
    log_ratio = torch.tensor([0.0, 0.0, 0.0, 0.0, -INF, math.nan], dtype=dtype)
    mask = torch.tensor([True] * 5 + [False])
    for clip in (None, 5.0):
        values = kl_surrogate(
            log_p, log_q, direction="forward", value=value, log_ratio=log_ratio, clip_log_ratio=clip, mask=mask,
            reduction="none",
        )  # fmt: skip
        assert values.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert values.tolist() == [0, 0, INF, -INF if value == "k1" else INF, 0, 0]
        for x in torch.autograd.grad(values[values.isfinite()].sum(), [log_p, log_q]):
            assert bool(x.isfinite().all())
        by_p, by_q = torch.autograd.grad(kl_surrogate(
            log_p, log_q, direction="forward", value=value, log_ratio=log_ratio, mask=mask, reduction="sum"
        ), [log_p, log_q])  # fmt: skip
        assert by_p.tolist() == [0] * 6
        assert by_q.tolist() == [-1, 0, 0, 0, 0, 0]


def test_a_value_that_overflows_keeps_the_gradient_where_that_is_finite() -> None:
    log_p = torch.tensor([-200.0], requires_grad=True)
    values = kl_surrogate(log_p, torch.tensor([-1.0]), direction="forward", value="k3", reduction="sum")
    values.backward()
    assert values.item() == INF
    assert log_p.grad is not None
    assert log_p.grad.item() == -199.0


def test_an_action_that_is_never_taken_ends_the_weights_of_a_sequence() -> None:
    log_p = torch.full((1, 3), -1.0)
    ratio = torch.tensor([[0.5, -INF, INF]])
    for importance, want in (("prefix", [math.exp(0.5), 0, 0]), ("sequence", [0, 0, 0])):
        values = kl_surrogate(
            log_p,
            log_p - 1,
            direction="forward",
            log_ratio=ratio,
            importance=importance,
            reduction="none",  # type: ignore[arg-type]
        )
        torch.testing.assert_close(values, torch.tensor([want], dtype=torch.float32))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (0, 2)])
@pytest.mark.parametrize("importance", ["action", "prefix", "sequence"])
def test_shapes(shape: tuple[int, ...], importance: Any) -> None:
    x = torch.full(shape, -1.0)
    found = kl_surrogate(
        x, x - 1, direction="forward", log_ratio=torch.zeros(shape), importance=importance, reduction="none"
    )
    torch.testing.assert_close(found, torch.ones(shape))


@pytest.mark.parametrize(
    ("given", "words", "instead"),
    [
        ({"value": "k2"}, "one of 'k1', 'k3'", {"value": "k3"}),
        ({"value": None}, "one of 'k1', 'k3'", {"value": "k3"}),
        ({"importance": "token"}, "one of 'action', 'prefix', 'sequence'", {"importance": "action"}),
        (
            {"importance": "prefix"},
            "log_ratio=, the logarithm",
            {"importance": "prefix", "log_ratio": torch.zeros(2)},
        ),
        (
            {"clip_log_ratio": 1.0},
            "log_ratio=, the logarithm",
            {"clip_log_ratio": 1.0, "log_ratio": torch.zeros(2)},
        ),
        *(
            (
                {"clip_log_ratio": clip, "log_ratio": torch.zeros(2)},
                "a positive number, or the least and the largest log w",
                {"clip_log_ratio": (-INF, 2.0), "log_ratio": torch.zeros(2)},
            )
            for clip in (0.0, -1.0, math.nan, "1", (1.0, 0.0), (1.0,), (0.0, math.nan), (0.0, 0.0))
        ),
    ],
)
def test_errors_and_their_remedies(given: dict[str, Any], words: str, instead: dict[str, Any]) -> None:
    x = torch.tensor([-1.0, -2.0])
    with refused((ArgumentValueError, ArgumentTypeError), wanted=re.escape(words)):
        kl_surrogate(x, x, direction="forward", **given)
    kl_surrogate(x, x, direction="forward", **instead)
