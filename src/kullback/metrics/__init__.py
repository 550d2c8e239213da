"""Drop-ins for torchmetrics' KL divergence, `kl_divergence` and `KLDivergence`, and the metrics of
policies, `PolicyKL` and `PolicyMismatch`.

The metrics are subclasses of `torchmetrics.Metric`. Access to a metric imports torchmetrics, which you can install with
``pip install torchmetrics``. The function needs only torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.common.optional import load
from kullback.metrics.drop_in import kl_divergence

if TYPE_CHECKING:
    from kullback.metrics.metric import KLDivergence
    from kullback.metrics.policy_kl import PolicyKL
    from kullback.metrics.policy_mismatch import PolicyMismatch

__all__ = ["KLDivergence", "PolicyKL", "PolicyMismatch", "kl_divergence"]


def __getattr__(name: str) -> type[KLDivergence | PolicyKL | PolicyMismatch]:
    if name == "KLDivergence":
        load("torchmetrics", "kullback.metrics.KLDivergence")
        from kullback.metrics.metric import KLDivergence

        return KLDivergence
    if name == "PolicyKL":
        load("torchmetrics", "kullback.metrics.PolicyKL")
        from kullback.metrics.policy_kl import PolicyKL

        return PolicyKL
    if name == "PolicyMismatch":
        load("torchmetrics", "kullback.metrics.PolicyMismatch")
        from kullback.metrics.policy_mismatch import PolicyMismatch

        return PolicyMismatch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
