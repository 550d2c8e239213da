"""Estimators of KL from sampled actions: expectations over all actions, values and gradients; laws; edges; errors."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from kullback import errors
from kullback.losses.log_probs import kl_from_log_probs, kl_surrogate

INF = math.inf
NAN = math.nan
ESTIMATORS = pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
DIRECTIONS = pytest.mark.parametrize("direction", ["forward", "reverse"])

LOG_PROBS = st.floats(-30, 0, allow_nan=False)


def policies(classes: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a policy, a reference and a behavior, all actions of which are enumerated below."""
    p, q, behavior = torch.randn(3, classes, dtype=torch.float64)
    return p.requires_grad_(), q.requires_grad_(), behavior


def kl(p: Tensor, q: Tensor) -> Tensor:
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum()


def expectation(values: Tensor, logits: Tensor) -> Tensor:
    """The mean over actions drawn from fixed probabilities: these carry no gradient, as samples do not."""
    return (logits.detach().softmax(-1) * values).sum()


def gradient(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


@DIRECTIONS
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_have_no_bias_in_either_direction(direction: Any, estimator: Any) -> None:
    p, q, _ = policies()
    values = kl_from_log_probs(p.log_softmax(-1), q.log_softmax(-1), direction=direction, estimator=estimator)
    first, second = (p, q) if direction == "forward" else (q, p)
    torch.testing.assert_close(expectation(values, first), kl(first, second))


@ESTIMATORS
def test_the_reverse_estimate_is_infinite_where_only_q_has_mass(estimator: Any) -> None:
    log_p, log_q = torch.tensor([-INF], requires_grad=True), torch.tensor([-1.0], requires_grad=True)
    values = kl_from_log_probs(log_p, log_q, direction="reverse", estimator=estimator)
    assert values.tolist() == [INF]
    assert all(x.isfinite().all() for x in gradient(values.sum(), log_p, log_q))


def test_the_reverse_kl_of_papers_is_forward_with_p_the_policy() -> None:
    """The reverse KL of papers: the mean over the policy's actions of log policy / reference."""
    policy, reference, _ = policies()
    log_p, log_q = policy.log_softmax(-1), reference.log_softmax(-1)
    sampled_reverse = (log_p.exp() * (log_p - log_q)).sum()
    sampled_forward = (log_q.exp() * (log_q - log_p)).sum()
    for call in (kl_from_log_probs, kl_surrogate):
        forward = call(log_p, log_q, direction="forward", reduction="none")
        reverse = call(log_p, log_q, direction="reverse", reduction="none")
        torch.testing.assert_close(expectation(forward, policy), sampled_reverse)
        torch.testing.assert_close(expectation(reverse, reference), sampled_forward)


def test_k2_is_biased() -> None:
    p, q, _ = policies()
    mean = expectation(kl_from_log_probs(p.log_softmax(-1), q.log_softmax(-1), estimator="k2"), p)
    true = kl(p, q)
    assert abs(mean - true) > 0.01 * true


def test_the_bias_of_k2_vanishes_faster_than_the_divergence() -> None:
    p, q, _ = policies()
    relative = []
    for step in (1e-1, 1e-2, 1e-3):
        near = p.detach() + step * q.detach()
        values = kl_from_log_probs(p.log_softmax(-1), near.log_softmax(-1), estimator="k2")
        true = kl(p, near)
        relative.append(abs((expectation(values, p) - true) / true))
    assert relative[0] > 5 * relative[1] > 25 * relative[2]


def test_k3_varies_less_than_k1_where_the_two_are_close_and_more_where_they_are_not() -> None:
    for log_p, log_q, less in (
        ([0.3, 0.7], [0.35, 0.65], True),
        ([0.001, 0.999], [0.9, 0.1], False),
    ):
        p, q = torch.tensor(log_p).double().log(), torch.tensor(log_q).double().log()
        spread = []
        for estimator in ("k1", "k3"):
            values = kl_from_log_probs(p, q, estimator=estimator)  # type: ignore[arg-type]
            spread.append(float(expectation(values**2, p) - expectation(values, p) ** 2))
        assert (spread[1] < spread[0]) == less


@pytest.mark.parametrize(("estimator", "wanted"), [("k1", "zero"), ("k2", "pq"), ("k3", "qp")])
def test_what_differentiating_an_estimate_gives(estimator: Any, wanted: str) -> None:
    p, q, _ = policies()
    values = kl_from_log_probs(p.log_softmax(-1), q.log_softmax(-1).detach(), estimator=estimator)
    got = gradient(expectation(values, p), p)[0]
    true = {"zero": lambda: 0 * p.sum(), "pq": lambda: kl(p, q), "qp": lambda: kl(q, p)}[wanted]()
    torch.testing.assert_close(got, gradient(true, p)[0])


@DIRECTIONS
@pytest.mark.parametrize("off_policy", [False, True])
def test_the_surrogate_has_the_value_and_the_gradient_of_kl(direction: Any, off_policy: bool) -> None:
    p, q, behavior = policies()
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    first = p if direction == "forward" else q
    sampled = behavior if off_policy else first
    log_ratio = (first.log_softmax(-1) - behavior.log_softmax(-1)) if off_policy else None
    values = kl_surrogate(log_p, log_q, direction=direction, log_ratio=log_ratio, reduction="none")
    got = expectation(values, sampled)
    true = kl(p, q) if direction == "forward" else kl(q, p)
    torch.testing.assert_close(got, true)
    for mine, theirs in zip(gradient(got, p, q), gradient(true, p, q), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_surrogate_of_kl_qp_takes_actions_from_p_with_their_weight() -> None:
    p, q, _ = policies()
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    values = kl_surrogate(log_p, log_q, direction="reverse", log_ratio=log_q - log_p, reduction="none")
    got = expectation(values, p)
    torch.testing.assert_close(gradient(got, p)[0], gradient(kl(q, p), p)[0])


@ESTIMATORS
@given(log_p=LOG_PROBS, log_q=LOG_PROBS)
def test_estimates_are_the_formulas(estimator: Any, log_p: float, log_q: float) -> None:
    given_p, given_q = (torch.tensor([x], dtype=torch.float64) for x in (log_p, log_q))
    got = kl_from_log_probs(given_p, given_q, estimator=estimator)
    with mpmath.workdps(700):
        d = mpmath.mpf(log_q) - mpmath.mpf(log_p)
        want = {"k1": -d, "k2": d * d / 2, "k3": mpmath.exp(d) - 1 - d}[estimator]
    assert float(got) == pytest.approx(float(want), rel=1e-13, abs=1e-300)
    if estimator != "k1":
        assert float(got) >= 0


@pytest.mark.parametrize("distance", [1e-7, 1e-5, 1e-3, 0.1, 0.29, 0.31, 1.0, 20.0, -20.0, -0.3, -1e-4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_k3_keeps_its_digits(distance: float, dtype: torch.dtype) -> None:
    log_q = torch.tensor([distance], dtype=dtype)
    with mpmath.workdps(50):
        d = mpmath.mpf(float(log_q))
        want = float(mpmath.exp(d) - 1 - d)
    got = kl_from_log_probs(torch.zeros_like(log_q), log_q, estimator="k3")
    assert float(got) == pytest.approx(want, rel=4e-15 if dtype == torch.float64 else 2e-6)


@pytest.mark.parametrize(
    ("log_p", "log_q", "k1", "rest"),
    [
        (-1.5, -1.5, 0.0, 0.0),
        (-INF, -INF, 0.0, 0.0),
        (INF, INF, 0.0, 0.0),
        (-1.0, -INF, INF, INF),
        (-INF, -1.0, -INF, INF),
        (3.0, 3.0, 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_edges(log_p: float, log_q: float, k1: float, rest: float, dtype: torch.dtype) -> None:
    p, q = (torch.tensor([x], dtype=dtype, requires_grad=True) for x in (log_p, log_q))
    wide = torch.promote_types(dtype, torch.float32)
    for estimator, want in (("k1", k1), ("k2", rest), ("k3", rest)):
        got = kl_from_log_probs(p, q, estimator=estimator)  # type: ignore[arg-type]
        assert got.tolist() == [want]
        assert got.dtype == wide
        assert all(x.isfinite().all() for x in gradient(got.sum(), p, q))
    for direction, want in (("forward", k1), ("reverse", -k1)):
        got = kl_surrogate(p, q, direction=direction, reduction="none")  # type: ignore[arg-type]
        assert got.tolist() == [want]
        assert all(x.isfinite().all() for x in gradient(got.sum(), p, q))


def test_huge_ratios_overflow_to_infinity_with_a_gradient_that_is_no_nan() -> None:
    p, q = torch.tensor([-1e4], requires_grad=True), torch.tensor([0.0])
    got = kl_from_log_probs(p, q, estimator="k3")
    assert got.tolist() == [INF]
    assert gradient(got.sum(), p)[0].isfinite().all()
    weighted = kl_surrogate(p, q, direction="forward", log_ratio=torch.tensor([1e4]), reduction="none")
    assert weighted.tolist() == [-INF]
    assert gradient(weighted.sum(), p)[0].tolist() == [0.0]


@ESTIMATORS
@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_actions_that_do_not_count_change_nothing(estimator: Any, garbage: float) -> None:
    mask = torch.tensor([True, False, True])
    p = torch.tensor([-1.0, garbage, -0.5], requires_grad=True)
    q = torch.tensor([-0.5, -2.0, -1.0])
    for call in (
        lambda **more: kl_from_log_probs(p, q, estimator=estimator, mask=mask, **more),
        lambda **more: kl_surrogate(p, q, direction="forward", log_ratio=0 * p, mask=mask, **more),
        lambda **more: kl_surrogate(p, q, direction="reverse", mask=mask, **more),
    ):
        rows = call(reduction="none")
        assert rows[1] == 0
        torch.testing.assert_close(call(reduction="sum"), rows.sum())
        torch.testing.assert_close(call(reduction="mean"), rows.sum() / 2)
        torch.testing.assert_close(call(reduction="batchmean"), rows.sum() / 3)
        by_p = gradient(rows.sum(), p)[0]
        assert by_p.isfinite().all()
        assert by_p[1] == 0


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_nothing_gives_zero(reduction: Any) -> None:
    nothing = torch.zeros(0, 3, requires_grad=True)
    assert (kl_from_log_probs(nothing, nothing, reduction=reduction) == 0).all()
    some, none = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    loss = kl_surrogate(some, 2 * some, direction="forward", mask=none, reduction=reduction).sum()
    assert loss == 0
    assert (gradient(loss, some)[0] == 0).all()


@ESTIMATORS
def test_gradients_are_those_of_the_values(estimator: Any) -> None:
    p, q = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def estimate(x: Tensor, y: Tensor) -> Tensor:
        return kl_from_log_probs(x, y, estimator=estimator)

    assert torch.autograd.gradcheck(estimate, (p, q))
    assert torch.autograd.gradgradcheck(estimate, (p, q))


@pytest.mark.heavy
def test_they_compile_in_one_graph_and_batch() -> None:
    p, q = torch.randn(2, 4, 6)
    for call in (
        lambda x, y: kl_from_log_probs(x, y, estimator="k3"),
        lambda x, y: kl_surrogate(x, y, direction="forward", reduction="none"),
    ):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(p, q), call(p, q))
        torch.testing.assert_close(torch.vmap(call)(p, q), call(p, q))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: kl_from_log_probs(torch.zeros(3), torch.zeros(2)),
            r"kl_from_log_probs\(log_q=\.\.\.\): .*shape \(3,\); got shape \(2,\)",
        ),
        (
            lambda: kl_from_log_probs(torch.zeros(3), torch.zeros(3), estimator="k4"),  # type: ignore[arg-type]
            r"estimator=\.\.\.\): wanted one of 'k1', 'k2', 'k3'; got 'k4'",
        ),
        (
            lambda: kl_surrogate(torch.zeros(3), torch.zeros(3), direction="pq"),  # type: ignore[arg-type]
            r"direction=\.\.\.\): .*got 'pq'. Write: direction='forward' for KL\(P \|\| Q\)",
        ),
        (
            lambda: kl_surrogate(
                torch.zeros(3), torch.zeros(3), direction="forward", log_ratio=torch.zeros(3, 1)
            ),
            r"kl_surrogate\(log_ratio=",
        ),
        (lambda: kl_from_log_probs(torch.zeros(3).long(), torch.zeros(3)), r"log_p=.*got dtype torch.int64"),
        (lambda: kl_from_log_probs(torch.zeros(3), [0.0]), r"log_q=.*got list"),  # type: ignore[arg-type]
        (lambda: kl_from_log_probs(torch.zeros(3), torch.zeros(3), reduction="avg"), r"reduction="),  # type: ignore[arg-type]
        (
            lambda: kl_from_log_probs(torch.zeros(3), torch.zeros(3), mask=torch.ones(2).bool()),
            r"kl_from_log_probs\(mask=",
        ),
    ],
)
def test_errors_name_the_argument_and_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(errors.KullbackError, match=message):
        call()
