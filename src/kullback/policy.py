"""Controllers and schedules: the coefficient of a KL penalty, adjusted while a policy is trained."""

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
