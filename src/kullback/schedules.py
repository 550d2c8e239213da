"""Schedules for the coefficient and the capacity of a regularizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kullback.errors import invalid_value, safe_repr
from kullback.inputs import number_from, whole_from

__all__ = [
    "AdaptiveCoefficient",
    "CyclicalSchedule",
    "LinearSchedule",
    "Schedule",
    "check_number",
    "scheduled",
]

Schedule: TypeAlias = Callable[[int], float]
"""A function from the number of completed steps to a number."""

_LARGEST_ERROR = 0.2  # the limit of the relative error of an adaptive coefficient


@dataclass(frozen=True)
class LinearSchedule:
    r"""A warm-up: a value that changes linearly from one number to another and then stays constant.

    .. math:: c(t) = c_0 + (c_1 - c_0) \, \min(t / T, 1)

    Arguments:
        start: :math:`c_0`, the value before the first step.
        stop: :math:`c_1`, the value from step `steps` on.
        steps: :math:`T`, the number of steps of the change, at least 1.

    Returns:
        When called with the number of completed steps, the value.

    Raises:
        ArgumentValueError: an argument is invalid; at the call, the number of steps is negative.

    Example:
        >>> warm_up = LinearSchedule(0.0, 1.0, steps=4)
        >>> [warm_up(step) for step in (0, 1, 2, 4, 9)]
        [0.0, 0.25, 0.5, 1.0, 1.0]

    References:
        Generating Sentences from a Continuous Space (Bowman et al., 2016)
    """

    start: float
    stop: float
    steps: int

    def __post_init__(self) -> None:
        check_number("LinearSchedule", "start", self.start)
        check_number("LinearSchedule", "stop", self.stop)
        object.__setattr__(self, "steps", _count("LinearSchedule", "steps", self.steps))

    def __call__(self, step: int) -> float:
        """Return the value after `step` steps."""
        share = min(_taken("LinearSchedule", step) / self.steps, 1.0)
        return self.stop if share == 1 else self.start + (self.stop - self.start) * share


@dataclass(frozen=True)
class CyclicalSchedule:
    r"""A linear warm-up that restarts with every period.

    .. math:: c(t) = c_0 + (c_1 - c_0) \, \min\Big(\frac{t \bmod T}{R\,T}, 1\Big)

    Arguments:
        start: :math:`c_0`, the value at the beginning of each period.
        stop: :math:`c_1`, the value at the end of each period.
        period: :math:`T`, the number of steps in a period, at least 1.
        ramp: :math:`R`, the fraction of a period with a changing value; above 0, at most 1.
        cycles: the number of periods, after which the value stays at `stop`; None for no end.

    Returns:
        When called with the number of completed steps, the value.

    Raises:
        ArgumentValueError: an argument is invalid; at the call, the number of steps is negative.

    Example:
        >>> schedule = CyclicalSchedule(0.0, 1.0, period=4, ramp=0.5, cycles=2)
        >>> [schedule(step) for step in range(10)]
        [0.0, 0.5, 1.0, 1.0, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0]

    References:
        Cyclical Annealing Schedule: A Simple Approach to Mitigating KL Vanishing (Fu et al., 2019)
    """

    start: float
    stop: float
    period: int
    ramp: float = 0.5
    cycles: int | None = None

    def __post_init__(self) -> None:
        check_number("CyclicalSchedule", "start", self.start)
        check_number("CyclicalSchedule", "stop", self.stop)
        object.__setattr__(self, "period", _count("CyclicalSchedule", "period", self.period))
        if not 0 < number_from(self.ramp) <= 1:
            got = safe_repr(self.ramp)
            raise invalid_value(
                "CyclicalSchedule", "ramp", wanted="a share above 0, at most 1", got=got, instead="ramp=0.5"
            )
        if self.cycles is not None:
            object.__setattr__(self, "cycles", _count("CyclicalSchedule", "cycles", self.cycles))

    def __call__(self, step: int) -> float:
        """Return the value after `step` steps."""
        cycle, within = divmod(_taken("CyclicalSchedule", step), self.period)
        share = min(within / self.period / self.ramp, 1.0)
        if share == 1 or (self.cycles is not None and cycle >= self.cycles):
            return self.stop
        return self.start + (self.stop - self.start) * share


@dataclass(frozen=True)
class AdaptiveCoefficient:
    r"""A coefficient that grows while the KL is above a target and shrinks while it is below it.

    .. math:: \beta \leftarrow \beta \, \Big(1 + \frac{1}{H}
        \operatorname{clip}\big(\mathrm{KL} / \mathrm{target} - 1,\; -0.2,\; 0.2\big)\Big)

    once at each call of `KLRegularizer.step`, with the mean KL since the last call. The coefficient does not change if
    there was no example, or if the KL is NaN, for example after an overflow under a `torch.amp.GradScaler`.

    Arguments:
        target: the target KL in nats, summed over the latent dimensions and averaged over the examples; above 0.
        initial: the initial coefficient; above 0.
        horizon: :math:`H`, in steps, at least 1. Far from the target, the coefficient changes by a factor of about e in
            :math:`5 H` steps.

    Raises:
        ArgumentValueError: an argument is invalid.

    Example:
        >>> AdaptiveCoefficient(target=10.0, initial=0.1)
        AdaptiveCoefficient(target=10.0, initial=0.1, horizon=20.0)

    References:
        Fine-Tuning Language Models from Human Preferences (Ziegler et al., 2019), section 2.2
    """

    target: float
    initial: float = 1.0
    horizon: float = 20.0

    def __post_init__(self) -> None:
        for name, least in (("target", 0.0), ("initial", 0.0), ("horizon", 1.0)):
            value = getattr(self, name)
            if not (least <= number_from(value) < math.inf and value > 0):
                wanted = "a finite number above 0" if least == 0 else "a finite number, 1 or more"
                raise invalid_value(
                    "AdaptiveCoefficient", name, wanted=wanted, got=safe_repr(value), instead=f"{name}=10.0"
                )

    def after(self, coefficient: Tensor, kl: Tensor) -> Tensor:
        """Return the coefficient after a step with the mean divergence `kl`."""
        error = (kl / self.target - 1).clamp(-_LARGEST_ERROR, _LARGEST_ERROR)
        return torch.where(error.isnan(), coefficient, coefficient * (1 + error / self.horizon))


def scheduled(name: str, given: float | Schedule, step: int) -> float:
    """Return the value of a number or a schedule after `step` steps, or raise."""
    value = given(step) if callable(given) else given
    if not 0 <= number_from(value) < math.inf:
        got = safe_repr(value) + (f" after {step} steps" if callable(given) else "")
        wanted = "a finite number of 0 or more, or a schedule of such numbers"
        raise invalid_value("KLRegularizer", name, wanted=wanted, got=got, instead=f"{name}=1.0")
    return float(value)


def check_number(call: str, name: str, value: object) -> None:
    """Raise unless a value is a finite number of 0 or more."""
    if not 0 <= number_from(value) < math.inf:
        raise invalid_value(
            call, name, wanted="a finite number of 0 or more", got=safe_repr(value), instead=f"{name}=0.5"
        )


def _taken(call: str, step: int) -> int:
    """Return a number of steps; raise if it is negative."""
    if not step >= 0:
        wanted, got = "the number of completed steps, 0 or more", safe_repr(step)
        raise invalid_value(f"{call}.__call__", "step", wanted=wanted, got=got, instead="step=0")
    return step


def _count(call: str, name: str, value: object) -> int:
    """Return a positive number of steps or periods, or raise."""
    number = whole_from(value)
    if number is None or number < 1:
        raise invalid_value(
            call, name, wanted="an integer, 1 or more", got=safe_repr(value), instead=f"{name}=1000"
        )
    return number
