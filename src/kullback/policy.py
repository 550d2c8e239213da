"""Controllers: the coefficient of a KL penalty, adjusted while a policy is trained."""

from kullback.losses.controllers import (
    AdaptiveKLController,
    FixedKLController,
    KLController,
    PIDKLController,
)

__all__ = ["AdaptiveKLController", "FixedKLController", "KLController", "PIDKLController"]
