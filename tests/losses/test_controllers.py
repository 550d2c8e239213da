"""The controllers of a KL penalty: the published updates, edges, saved states, and that they reach their target."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from kullback.errors import KullbackError
from kullback.policy import AdaptiveKLController, FixedKLController, KLController, PIDKLController
from tests.refusals import refused


def ziegler(coefficient: float, kl: float, target: float, steps: int, horizon: int) -> float:
    """The update as its authors' code has it (lm-human-preferences, 2019)."""
    proportional_error = max(-0.2, min(kl / target - 1, 0.2))
    return coefficient * (1 + proportional_error * steps / horizon)


@pytest.mark.parametrize("kl", [0.0, 3.0, 5.5, 6.0, 6.5, 7.2, 100.0, -1.0, math.inf, -math.inf])
def test_the_adaptive_update_is_the_published_one(kl: float) -> None:
    controller = AdaptiveKLController(0.15, target=6.0, horizon=10_000)
    want = ziegler(0.15, kl, 6.0, 256, 10_000)
    assert controller.update(kl, steps=256) == pytest.approx(want, rel=1e-15)
    assert controller.coefficient == pytest.approx(want, rel=1e-15)


def test_the_adaptive_one_after_hand_calculation() -> None:
    controller = AdaptiveKLController(1.0, target=2.0, horizon=100, clip=0.5)
    assert controller.update(2.5, steps=10) == pytest.approx(1.025)  # 1 + 0.25 / 10
    assert controller.update(torch.tensor([1.5]), steps=10) == pytest.approx(1.025 * 0.975)
    assert controller.update(2.0, steps=10) == pytest.approx(1.025 * 0.975)
    assert controller.update(0.0, steps=0) == pytest.approx(1.025 * 0.975)


@pytest.mark.parametrize("steps", [50_000, 1e9, -1, math.nan, "1", math.inf])
def test_so_many_steps_that_the_coefficient_would_change_its_sign_are_refused(steps: Any) -> None:
    controller = AdaptiveKLController(0.2, target=6.0, horizon=10_000)
    with pytest.raises(
        KullbackError, match=re.escape("steps=...): wanted a number from 0 to less than horizon")
    ):
        controller.update(0.0, steps=steps)
    assert controller.coefficient == 0.2
    assert controller.update(0.0, steps=49_999) > 0


def stooke(
    kls: list[float], target: float, gains: tuple[float, float, float], integral: float
) -> list[float]:
    """Algorithm 2 of Stooke, Achiam and Abbeel (2020)."""
    found, previous = [], None
    for kl in kls:
        delta = kl - target
        growth = 0.0 if previous is None else max(kl - previous, 0.0)
        integral = max(integral + delta, 0.0)
        found.append(max(gains[0] * delta + gains[1] * integral + gains[2] * growth, 0.0))
        previous = kl
    return found


def test_the_pid_update_is_the_published_one() -> None:
    kls = (torch.randn(50, dtype=torch.float64).abs()).tolist()
    controller = PIDKLController(0.3, target=1.0, proportional=0.2, integral=0.05, derivative=0.4)
    got = [controller.update(kl) for kl in kls]
    assert got == pytest.approx(stooke(kls, 1.0, (0.2, 0.05, 0.4), 0.3 / 0.05), rel=1e-12)
    assert min(got) == 0.0


@pytest.mark.parametrize(
    "controller",
    [
        AdaptiveKLController(0.01, target=0.5, horizon=20),
        PIDKLController(0.01, target=0.5, proportional=0.5, integral=0.05),
        PIDKLController(0.01, target=0.5, proportional=0.2, integral=0.05, derivative=0.5),
    ],
    ids=repr,
)
def test_a_policy_is_brought_to_the_target(controller: KLController) -> None:
    # Reward 2 x - beta x^2 / 2 is best at x = 2 / beta, where the KL of two Normals x apart is x^2 / 2.
    kl = 0.0
    for _ in range(2_000):
        distance = 2.0 / max(controller.coefficient, 1e-3)
        kl += 0.1 * (min(distance**2 / 2, 50.0) - kl)
        controller.update(kl, steps=1)
    assert kl == pytest.approx(0.5, rel=0.02)
    assert controller.coefficient == pytest.approx(2.0, rel=0.02)


CONTROLLERS = [
    lambda: FixedKLController(0.3),
    lambda: AdaptiveKLController(0.3, target=1.0, horizon=50),
    lambda: PIDKLController(0.3, target=1.0, derivative=0.3),
]


@pytest.mark.parametrize("make", CONTROLLERS)
def test_a_saved_state_goes_on_as_if_nothing_had_happened(make: Any) -> None:
    first, second = make(), make()
    for kl in (2.0, 1.5):
        first.update(kl)
    second.load_state_dict(dict(first.state_dict()))
    assert [first.update(kl) for kl in (0.5, 1.7)] == [second.update(kl) for kl in (0.5, 1.7)]
    assert first.state_dict() == second.state_dict()


@pytest.mark.parametrize("make", CONTROLLERS)
@pytest.mark.parametrize(
    "state",
    [
        {},
        {"beta": 1.0},
        None,
        {"coefficient": 1.0, "more": 2.0},
        {"coefficient": math.nan},
        {"coefficient": "a"},
    ],
    ids=repr,
)
def test_a_state_of_something_else(make: Any, state: Any) -> None:
    with pytest.raises(KullbackError, match="load_state_dict") as caught:
        make().load_state_dict(state)
    assert "coefficient" in str(caught.value)


def test_the_fixed_one_stays() -> None:
    controller = FixedKLController(0.3)
    assert [controller.update(kl, steps=9) for kl in (0.0, 100.0)] == [0.3, 0.3]
    assert repr(controller) == "FixedKLController(coefficient=0.3)"


@pytest.mark.parametrize("make", CONTROLLERS)
@pytest.mark.parametrize("kl", [math.nan, torch.tensor(math.nan), torch.zeros(2), None, "1", 1j], ids=repr)
def test_what_is_no_divergence_is_refused(make: Any, kl: Any) -> None:
    controller = make()
    with pytest.raises(KullbackError, match=r"update\(kl=...\): wanted the measured divergence"):
        controller.update(kl)
    assert controller.coefficient == pytest.approx(0.3)


def test_an_infinite_divergence_would_stay_in_the_integral_for_ever() -> None:
    with refused(KullbackError, wanted="a finite number"):
        PIDKLController(target=1.0).update(math.inf)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (FixedKLController, "coefficient"),
        (AdaptiveKLController, "coefficient"),
        (lambda x: AdaptiveKLController(target=x), "target"),
        (lambda x: AdaptiveKLController(horizon=x), "horizon"),
        (lambda x: AdaptiveKLController(clip=x), "clip"),
        (lambda x: PIDKLController(x, target=1.0), "coefficient"),
        (lambda x: PIDKLController(target=x), "target"),
        (lambda x: PIDKLController(target=1.0, proportional=x), "proportional"),
        (lambda x: PIDKLController(target=1.0, integral=x), "integral"),
        (lambda x: PIDKLController(target=1.0, derivative=x), "derivative"),
    ],
)
def test_settings(make: Any, name: str) -> None:
    for wrong in (-1.0, math.nan, math.inf, "0.1", None):
        with refused(KullbackError, argument=name) as caught:
            make(wrong)
        assert str(caught.value).endswith(f"Write: {name}=0.5")
    make(0.5)
