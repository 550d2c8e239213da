"""Controllers and schedules, which adjust the coefficient of a KL penalty while a policy is trained."""

from kullback.losses.controllers import (
    AdaptiveKLController,
    CyclicalSchedule,
    FixedKLController,
    KLController,
    LinearSchedule,
    PIDKLController,
)

__all__ = [
    "AdaptiveKLController",
    "CyclicalSchedule",
    "FixedKLController",
    "KLController",
    "LinearSchedule",
    "PIDKLController",
]
