"""Drop-ins for torchmetrics' KL divergence: the function `kl_divergence` and the metric `KLDivergence`.

The metric is a `torchmetrics.Metric`, so asking for it needs torchmetrics (``pip install torchmetrics``) and
loads it then; the function needs nothing but torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.metrics.functional import kl_divergence
from kullback.optional import load

if TYPE_CHECKING:
    from kullback.metrics.metric import KLDivergence

__all__ = ["KLDivergence", "kl_divergence"]


def __getattr__(name: str) -> type[KLDivergence]:
    if name == "KLDivergence":
        load("torchmetrics", "kullback.metrics.KLDivergence")
        from kullback.metrics.metric import KLDivergence

        return KLDivergence
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
