"""Controllers: the coefficient of a KL penalty, adjusted while a policy is trained."""

from __future__ import annotations

import math
from typing import Protocol

from torch import Tensor

from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.inputs import number_from

__all__ = ["AdaptiveKLController", "FixedKLController", "KLController", "PIDKLController"]


class KLController(Protocol):
    """The interface of the controllers of a KL penalty: `coefficient`, `update` and a state to save.

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
        """Update the controller with a measured divergence, and return the new coefficient."""
        ...

    def state_dict(self) -> dict[str, float]:
        """Return the state to save."""
        ...

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a saved state."""
        ...


class FixedKLController:
    """A constant coefficient.

    Arguments:
        coefficient: a number that is not negative.

    Raises:
        ArgumentValueError: it is negative, infinite or not a number.

    Example:
        >>> from kullback.policy import FixedKLController
        >>> FixedKLController(0.1).update(kl=7.0, steps=256)
        0.1
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = _number("FixedKLController", "coefficient", coefficient, least=0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coefficient={self.coefficient:.6g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Return the coefficient, which does not change."""
        _measured(f"{type(self).__name__}.update", kl)
        return self.coefficient

    def state_dict(self) -> dict[str, float]:
        """Return the state to save."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore a saved state."""
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


class AdaptiveKLController(FixedKLController):
    r"""A coefficient that grows while the divergence is above its target and shrinks while it is below it.

    .. math:: e = \operatorname{clip}\Bigl(\frac{\mathrm{KL}}{\mathrm{target}} - 1,\, -c,\, c\Bigr), \qquad
        \beta \leftarrow \beta \Bigl(1 + e\,\frac{\mathrm{steps}}{\mathrm{horizon}}\Bigr)

    In distributed training, pass the same divergence on every process: the average over all of them.

    Arguments:
        coefficient: the initial beta, positive.
        target: the target of the divergence in nats, positive. It may be per token or per sequence; pass the same kind
            of divergence to `update`.
        horizon: the number of steps for a change of beta by the fraction c, if the divergence is far from its target.
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
        call = "AdaptiveKLController"
        self.coefficient = _number(call, "coefficient", coefficient, least=None)
        self.target = _number(call, "target", target, least=None)
        self.horizon = _number(call, "horizon", horizon, least=None)
        self.clip = _number(call, "clip", clip, least=None)

    def __repr__(self) -> str:
        return f"AdaptiveKLController(coefficient={self.coefficient:.6g}, target={self.target:g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Adjust the coefficient by a measured divergence, and return it.

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


class PIDKLController(FixedKLController):
    r"""A coefficient set by the error of the divergence, the sum of all errors, and the growth of the divergence.

    .. math:: \Delta = \mathrm{KL} - \mathrm{target}, \quad I \leftarrow (I + \Delta)_+, \quad
        \beta = \bigl(K_P \Delta + K_I I + K_D (\mathrm{KL} - \mathrm{KL}_{\mathrm{previous}})_+\bigr)_+

    The integral term moves the divergence to the target. Alone, it is gradient ascent on a Lagrange multiplier, and
    oscillates. The proportional and the derivative term damp these oscillations.

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
        call = "PIDKLController"
        super().__init__(_number(call, "coefficient", coefficient, least=0.0))
        self.target = _number(call, "target", target, least=0.0)
        self.proportional = _number(call, "proportional", proportional, least=0.0)
        self.integral = _number(call, "integral", integral, least=None)
        self.derivative = _number(call, "derivative", derivative, least=0.0)
        self.sum_of_errors = self.coefficient / self.integral
        self.previous = math.inf  # the first divergence does not count as growth

    def __repr__(self) -> str:
        return f"PIDKLController(coefficient={self.coefficient:.6g}, target={self.target:g})"

    def update(self, kl: float | Tensor, steps: float = 1) -> float:
        """Set the coefficient from a measured divergence, which must be finite, and return it."""
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


def _number(call: str, name: str, given: object, *, least: float | None) -> float:
    """Return a finite number of at least `least`, or above 0 if `least` is None; else raise."""
    value = number_from(given)
    if not (value > 0 if least is None else value >= least) or value == math.inf:
        wanted = "a positive number" if least is None else "a number that is not negative"
        raise invalid_value(call, name, wanted=wanted, got=safe_repr(given), instead=f"{name}=0.1")
    return value


def _measured(call: str, kl: object, *, finite: bool = False) -> float:
    """Return a measured divergence as a number, or raise."""
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
