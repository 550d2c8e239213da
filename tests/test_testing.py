"""`assert_close_distributions` has three verdicts, and only an upper limit below the limit passes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.distributions import Laplace, Normal, StudentT

from kullback import Counts, Logits, Probs, Samples, register_kl
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.testing import assert_close_distributions
from tests.refusals import refused

NORMAL = Normal(0.0, 1.0)
ROWS = torch.tensor([[0.5, 0.5], [0.9, 0.1]])


def draws(seed: int, n: int, shift: float = 0.0) -> Samples:
    return Samples(torch.randn(n, generator=torch.Generator().manual_seed(seed)) + shift)


class Step(Normal):
    """A Normal whose rule states no error."""


@register_kl(Step, Step)
def kl_of_steps(p: Step, q: Step) -> torch.Tensor:
    return (p.loc - q.loc) ** 2 / 2


# KL of N(0, 1) and N(m, 1) is m^2 / 2; of (1/2, 1/2) and (9/10, 1/10), it is (log(5/9) + log(5)) / 2 = 0.5108.
@pytest.mark.parametrize(
    ("p", "q", "below"),
    [
        (NORMAL, Normal(1.0, 1.0), 0.501),
        (Step(0.0, 1.0), Step(1.0, 1.0), 0.501),
        (Probs([0.5, 0.5]), Probs([0.9, 0.1]), 0.511),
        (Logits(torch.zeros(3, 2)), Probs([0.5, 0.5]), 1e-6),
        (Counts([300, 400]), Counts([310, 390]), 0.05),
        (draws(0, 2000), draws(1, 2000), 0.05),
        (draws(0, 2000), NORMAL, 0.05),
    ],
)
def test_close_distributions_pass_and_the_verdict_is_printed(
    p: Any, q: Any, below: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_close_distributions(p, q, below=below)
    assert re.match(rf"below {below:g}: KL .*\n\Z", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("p", "q", "below", "words"),
    [
        (NORMAL, Normal(1.0, 1.0), 0.499, r"not below 0\.499: KL = 0\.5 nats"),
        (Step(0.0, 1.0), Step(1.0, 1.0), 0.5, r"not below 0\.5: KL = 0\.5 nats"),
        (StudentT(2.0), NORMAL, 1e300, r"not below 1e\+300: KL = inf nats"),
        (Probs([0.5, 0.5]), Probs([0.9, 0.1]), 0.510, r"not below 0\.51: KL = 0\.5108 nats"),
        (Probs(ROWS), Probs([0.9, 0.1]), 0.5, r"not below .* 1 of 2 elements, first \[0\] = 0\.5108\Z"),
        (draws(0, 500), draws(1, 500, 2.0), 0.5, r"below 0\.5: .*\(95 % 1\.2.* to inf\).* upper limit is infinite"),
        (Counts([80, 20]), Counts([20, 80]), 0.1, r"not below 0\.1: KL = .* nats \(95 %"),
    ],
)  # fmt: skip
def test_distributions_that_differ_fail(p: Any, q: Any, below: float, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_close_distributions(p, q, below=below)


@pytest.mark.parametrize(
    ("p", "q", "below", "words"),
    [
        (draws(0, 50), draws(1, 50), 0.05, r"The limit is inside the interval\. More draws make it narrower"),
        (draws(0, 500), draws(1, 500, 2.0), 3.0, r"inside the interval.*so KL could be arbitrarily large"),
        (Counts([[9, 9], [900, 900]]), Counts([[9, 9], [900, 900]]), 0.05, r"1 of 2 elements, first \[0\] = 0\. The"),
        (Probs(torch.zeros(0, 2)), Probs([0.5, 0.5]), 0.05, r"of no rows, summation\. There are no rows\Z"),
    ],
)  # fmt: skip
def test_too_few_draws_fail(p: Any, q: Any, below: float, words: str) -> None:
    with pytest.raises(AssertionError, match=rf"\Acannot tell whether below {below:g}: KL .*{words}"):
        assert_close_distributions(p, q, below=below)


def test_more_draws_decide() -> None:
    assert_close_distributions(draws(0, 20_000), draws(1, 20_000), below=0.05)


@pytest.mark.sweep
def test_monte_carlo_has_no_interval_and_the_remedy_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    q = Laplace(0.0, 1.0)
    with pytest.raises(
        AssertionError, match=r"There is no interval\. Write: Samples\(p\.sample\(\(n,\)\)\) for P"
    ):
        assert_close_distributions(NORMAL, q, below=0.1, method="monte_carlo", generator=generator)
    torch.manual_seed(0)
    p, n = NORMAL, 10_000
    assert_close_distributions(Samples(p.sample((n,))), q, below=0.1)
    assert capsys.readouterr().out.startswith("below 0.1: ")


@pytest.mark.sweep
def test_a_divergence_at_the_limit_seldom_passes() -> None:
    """KL is 0.045. The upper limit is below it in at most 2.5 % of samples: 5 of 200, with standard deviation 2.2."""
    passed = 0
    for seed in range(200):
        try:
            assert_close_distributions(draws(2 * seed, 400), draws(2 * seed + 1, 400, 0.3), below=0.045)
            passed += 1
        except AssertionError:
            pass
    assert passed <= 11


@pytest.mark.parametrize("below", [0, -0.1, float("nan"), None, torch.tensor(0.1), True])
def test_the_limit_is_a_positive_number(below: Any) -> None:
    with refused(
        ArgumentValueError, call="assert_close_distributions", argument="below", wanted="^a positive"
    ):
        assert_close_distributions(NORMAL, NORMAL, below=below)


def test_a_bare_tensor_and_an_unknown_option_are_refused() -> None:
    with refused(ArgumentTypeError, instead="wrap it: Logits"):
        assert_close_distributions(ROWS, ROWS, below=0.1)
    with refused(ArgumentValueError, argument="kind"):
        assert_close_distributions(NORMAL, NORMAL, below=0.1, kind="no such kind")


def test_options_reach_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    assert_close_distributions(Probs([1.0, 0.0]), Probs([0.0, 1.0]), below=1.01, kind="js:0.5", base=2)
    assert capsys.readouterr().out.startswith("below 1.01: JS (0.5) = 1 bits")
