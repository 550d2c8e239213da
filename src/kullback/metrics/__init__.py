"""Drop-ins for torchmetrics' KL divergence, `kl_divergence` and `KLDivergence`, and the metrics of
policies, `PolicyKL` and `PolicyMismatch`.

The metrics are subclasses of `torchmetrics.Metric`. Access to a metric imports torchmetrics, which you can install with
``pip install torchmetrics``. `kl_divergence` needs only torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kullback.common.optional import load
from kullback.metrics.drop_in import kl_divergence

if TYPE_CHECKING:
    from kullback.metrics.metric import KLDivergence
    from kullback.metrics.policy_kl import PolicyKL
    from kullback.metrics.policy_mismatch import PolicyMismatch

__all__ = ["KLDivergence", "PolicyKL", "PolicyMismatch", "kl_divergence"]


_MODULES = {"KLDivergence": "metric", "PolicyKL": "policy_kl", "PolicyMismatch": "policy_mismatch"}


def __getattr__(name: str) -> type[KLDivergence | PolicyKL | PolicyMismatch]:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    load("torchmetrics", f"kullback.metrics.{name}")
    return getattr(import_module(f"kullback.metrics.{_MODULES[name]}"), name)
