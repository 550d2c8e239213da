"""Schedules and controllers, which change the coefficient or the capacity of a KL penalty during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Number, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import number_from
from kullback.errors import invalid_type, invalid_value, safe_repr

Schedule: TypeAlias = Callable[[int], float]
"""A function from the number of completed optimizer steps to the value of a setting."""


NON_NEGATIVE = Number(least=0, below=math.inf, example=0.5)
_POSITIVE = Number(above=0, below=math.inf, example=0.5)
_COUNT = Whole(least=1, example=1000)
_LINEAR = Arguments("LinearSchedule", start=NON_NEGATIVE, stop=NON_NEGATIVE, steps=_COUNT)
_CYCLICAL = Arguments(
    "CyclicalSchedule",
    start=NON_NEGATIVE,
    stop=NON_NEGATIVE,
    period=_COUNT,
    ramp=Number(above=0, most=1, noun="share", example=0.5),
    cycles=Whole(least=1, example=1000, optional=True),
)
_CALLS = Arguments(
    "LinearSchedule.__call__",
    "CyclicalSchedule.__call__",
    step=Number(least=0, example=0, wanted="the number of completed steps, 0 or more"),
)


@by_name()
@dataclass(frozen=True)
class LinearSchedule:
    r"""A warm-up: a value that changes linearly from one number to another and then stays constant.

    .. math:: c(t) = c_0 + (c_1 - c_0) \, \min(t / T, 1)

    Arguments:
        start: :math:`c_0`, the value before the first step.
        stop: :math:`c_1`, the value from step `steps` on.
        steps: :math:`T`, the number of steps over which the value changes, at least 1.

    Returns:
        the value, when the schedule is called with the number of completed steps.

    Raises:
        ArgumentValueError: an argument is invalid or, when the schedule is called, `step` is negative.

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
        object.__setattr__(self, "steps", _LINEAR.check(**vars(self))["steps"])

    def __call__(self, step: int) -> float:
        """Return the value of the schedule after `step` completed optimizer steps."""
        share = min(_taken("LinearSchedule.__call__", step) / self.steps, 1.0)
        return self.stop if share == 1 else self.start + (self.stop - self.start) * share


@by_name()
@dataclass(frozen=True)
class CyclicalSchedule:
    r"""A linear warm-up that restarts with every period.

    .. math:: c(t) = c_0 + (c_1 - c_0) \, \min\Big(\frac{t \bmod T}{R\,T}, 1\Big)

    Arguments:
        start: :math:`c_0`, the value at the beginning of each period.
        stop: :math:`c_1`, the value at the end of each period.
        period: :math:`T`, the number of steps in a period, at least 1.
        ramp: :math:`R`, the fraction of a period with a changing value; above 0, at most 1.
        cycles: the number of periods, after which the value stays at `stop`; None to repeat forever.

    Returns:
        the value, when the schedule is called with the number of completed steps.

    Raises:
        ArgumentValueError: an argument is invalid or, when the schedule is called, `step` is negative.

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
        checked = _CYCLICAL.check(**vars(self))
        object.__setattr__(self, "period", checked["period"])
        object.__setattr__(self, "cycles", checked["cycles"])

    def __call__(self, step: int) -> float:
        """Return the value of the schedule after `step` completed optimizer steps."""
        cycle, within = divmod(_taken("CyclicalSchedule.__call__", step), self.period)
        share = min(within / self.period / self.ramp, 1.0)
        if share == 1 or (self.cycles is not None and cycle >= self.cycles):
            return self.stop
        return self.start + (self.stop - self.start) * share


def scheduled(name: str, setting: float | Schedule, step: int) -> float:
    """Return the value of `setting`, a number or a schedule, after `step` steps; raise if it is invalid."""
    value = setting(step) if callable(setting) else setting
    if not 0 <= number_from(value) < math.inf:
        got = safe_repr(value) + (f" after {step} steps" if callable(setting) else "")
        wanted = "a finite number of 0 or more, or a schedule of such numbers"
        raise invalid_value("KLRegularizer", name, wanted=wanted, got=got, instead=f"{name}=1.0")
    return float(value)


def _taken(call: str, step: float | Tensor) -> float:
    """Return `step`, a number of completed steps, as a Python number; raise if the number is negative."""
    return _CALLS.check(call, step=step.item() if isinstance(step, Tensor) else step)["step"]


@runtime_checkable
class KLController(Protocol):
    """The interface of a controller of a KL penalty: the attribute `coefficient`, the method `update`, and methods that
    save and restore the state.

    Example:
        >>> from kullback.policy import FixedKLController, KLController
        >>> def penalized(reward: float, kl: float, controller: KLController) -> float:
        ...     return reward - controller.coefficient * kl
        >>> penalized(1.0, 2.0, FixedKLController(0.1))
        0.8
    """

    coefficient: float
    """The factor of the divergence in the penalty."""

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Update the controller with the measured divergence `kl` of `steps` steps, and return the new coefficient."""
        ...

    def state_dict(self) -> dict[str, float]:
        """Return the state of the controller, a dict that `load_state_dict` accepts."""
        ...

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        ...


_FIXED = Arguments("FixedKLController", coefficient=NON_NEGATIVE)
_ADAPTIVE = Arguments(
    "AdaptiveKLController", coefficient=_POSITIVE, target=_POSITIVE, horizon=_POSITIVE, clip=_POSITIVE
)
_PID = Arguments(
    "PIDKLController",
    coefficient=NON_NEGATIVE,
    target=NON_NEGATIVE,
    proportional=NON_NEGATIVE,
    integral=_POSITIVE,
    derivative=NON_NEGATIVE,
)


@by_name()
class FixedKLController:
    """A constant coefficient.

    Arguments:
        coefficient: a number that is not negative.

    Raises:
        ArgumentValueError: `coefficient` is negative, infinite or not a number.

    Example:
        >>> from kullback.policy import FixedKLController
        >>> FixedKLController(0.1).update(kl=7.0, steps=256)
        0.1
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = _FIXED.check(coefficient=coefficient)["coefficient"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coefficient={self.coefficient:.6g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Return the coefficient, which never changes."""
        _measured(f"{type(self).__name__}.update", kl)
        return self.coefficient

    def state_dict(self) -> dict[str, float]:
        """Return the state of the controller, a dict that `load_state_dict` accepts."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        wanted = sorted(self.state_dict())
        numbers = (
            {name: number_from(value) for name, value in state.items()} if isinstance(state, dict) else {}
        )
        if sorted(numbers) != wanted or any(map(math.isnan, numbers.values())):
            raise invalid_value(
                f"{type(self).__name__}.load_state_dict",
                "state",
                wanted=f"the numbers {', '.join(wanted)}",
                got=safe_repr(state),
                instead=f"state={type(self).__name__}(...).state_dict()",
            )
        vars(self).update(numbers)


@by_name()
class AdaptiveKLController(FixedKLController):
    r"""A coefficient that grows while the divergence is above the target and shrinks while the divergence is below.

    .. math:: e = \operatorname{clip}\Bigl(\frac{\mathrm{KL}}{\mathrm{target}} - 1,\, -c,\, c\Bigr), \qquad
        \beta \leftarrow \beta \Bigl(1 + e\,\frac{\mathrm{steps}}{\mathrm{horizon}}\Bigr)

    In distributed training, pass the same divergence on every process: the average over all processes.
    `kullback.nn.KLRegularizer` takes the controller as its coefficient, and updates the controller itself.

    Arguments:
        coefficient: the initial beta, positive.
        target: the target of the divergence in nats, positive, per token or per sequence. `update` needs a divergence
            in the same unit.
        horizon: the number of steps until beta has changed by about the fraction c, if the relative error stays at the
            limit c.
        clip: c, the limit of the relative error.

    Raises:
        ArgumentValueError: a number is not positive and finite.

    Example:
        >>> from kullback.policy import AdaptiveKLController
        >>> controller = AdaptiveKLController(coefficient=0.2, target=6.0, horizon=10_000)
        >>> controller.update(kl=9.0, steps=256)  # above the target: 0.2 * (1 + 0.2 * 256 / 10_000)
        0.201024

    References:
        Fine-Tuning Language Models from Human Preferences (Ziegler and others, 2019)
    """

    def __init__(
        self, coefficient: float = 0.2, *, target: float = 6.0, horizon: float = 10_000, clip: float = 0.2
    ) -> None:
        self.coefficient, self.target, self.horizon, self.clip = _ADAPTIVE.check(**locals()).values()

    def __repr__(self) -> str:
        return f"AdaptiveKLController(coefficient={self.coefficient:.6g}, target={self.target:g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Update the coefficient from a measured divergence, and return the new coefficient.

        Arguments:
            kl: the divergence measured since the last update, in nats: a number or a tensor with one element.
            steps: the number of steps since the last update, in the unit of `horizon`, such as samples.

        Returns:
            the new coefficient.

        Raises:
            ArgumentValueError: `kl` is NaN, or `steps` is so large that the coefficient would not stay positive.
        """
        measured = _measured("AdaptiveKLController.update", kl)
        n_steps = number_from(steps)
        if not 0 <= n_steps * self.clip < self.horizon:
            raise invalid_value(
                "AdaptiveKLController.update",
                "steps",
                wanted=f"a number from 0 to less than horizon / clip, {self.horizon / self.clip:g}",
                got=safe_repr(steps),
                instead=f"AdaptiveKLController(horizon=...) with a horizon above {max(n_steps, 1) * self.clip:g}"
                if n_steps > 0
                else "steps=1",
            )
        error = min(max(measured / self.target - 1, -self.clip), self.clip)
        self.coefficient *= 1 + error * n_steps / self.horizon
        return self.coefficient

    def after(self, coefficient: Tensor, kl: Tensor) -> Tensor:
        """Return the coefficient that follows `coefficient` after a step with the divergence `kl`; the same if that is
        NaN. The controller does not change. No number is read from the tensors, which would synchronize with an
        accelerator.
        """
        error = (kl / self.target - 1).clamp(-self.clip, self.clip)
        return torch.where(error.isnan(), coefficient, coefficient * (1 + error / self.horizon))


@by_name()
class PIDKLController(FixedKLController):
    r"""A coefficient set by the error of the divergence, the sum of all errors, and the growth of the divergence.

    .. math:: \Delta = \mathrm{KL} - \mathrm{target}, \quad I \leftarrow (I + \Delta)_+, \quad
        \beta = \bigl(K_P \Delta + K_I I + K_D (\mathrm{KL} - \mathrm{KL}_{\mathrm{previous}})_+\bigr)_+

    The integral term moves the divergence to the target. Alone, the integral term is gradient ascent on a Lagrange
    multiplier, and oscillates. The proportional and the derivative term damp these oscillations.

    Arguments:
        coefficient: the initial beta, not negative. The integral starts at beta / K_I.
        target: the upper limit of the divergence, in nats.
        proportional: K_P.
        integral: K_I, positive.
        derivative: K_D.

    Raises:
        ArgumentValueError: a number is negative or infinite, or `integral` is 0.

    Example:
        >>> from kullback.policy import PIDKLController
        >>> controller = PIDKLController(0.1, target=0.5, proportional=0.05, integral=0.01)
        >>> [round(controller.update(kl), 4) for kl in (0.7, 0.6, 0.5, 0.4)]
        [0.112, 0.108, 0.103, 0.097]

    References:
        Responsive Safety in Reinforcement Learning by PID Lagrangian Methods (Stooke, Achiam and Abbeel, 2020)
    """

    def __init__(
        self,
        coefficient: float = 0.0,
        *,
        target: float,
        proportional: float = 0.1,
        integral: float = 0.01,
        derivative: float = 0.0,
    ) -> None:
        checked = _PID.check(**locals()).values()
        coefficient, self.target, self.proportional, self.integral, self.derivative = checked
        super().__init__(coefficient)
        self.sum_of_errors = self.coefficient / self.integral
        self.previous = math.inf  # so that the growth at the first divergence is 0

    def __repr__(self) -> str:
        return f"PIDKLController(coefficient={self.coefficient:.6g}, target={self.target:g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Compute and return the new coefficient from the measured divergence `kl`, which must be finite."""
        measured = _measured("PIDKLController.update", kl, finite=True)
        error = measured - self.target
        growth = max(measured - self.previous, 0.0)
        self.sum_of_errors = max(self.sum_of_errors + error, 0.0)
        self.previous = measured
        self.coefficient = max(
            self.proportional * error + self.integral * self.sum_of_errors + self.derivative * growth, 0.0
        )
        return self.coefficient

    def state_dict(self) -> dict[str, float]:
        return {
            "coefficient": self.coefficient,
            "previous": self.previous,
            "sum_of_errors": self.sum_of_errors,
        }


def _measured(call: str, kl: object, *, finite: bool = False) -> float:
    """Return the divergence `kl` as a Python number; raise for another object, NaN and, if `finite`, infinity."""
    is_one = isinstance(kl, Tensor) and kl.numel() == 1 and not kl.is_complex()
    value = float(kl.detach()) if isinstance(kl, Tensor) and is_one else number_from(kl)
    if math.isnan(value) or (finite and math.isinf(value)):
        is_number = is_one or isinstance(kl, float | int)
        raise (invalid_value if is_number else invalid_type)(
            call,
            "kl",
            wanted=f"the measured divergence, a {'finite ' if finite else ''}number",
            got=f"shape {tuple(kl.shape)}" if isinstance(kl, Tensor) and not is_one else safe_repr(kl),
            instead="kl=kl_from_log_probs(log_p, log_q, reduction='mean')",
        )
    return value
