"""A fit as a data frame: a row for each element of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from kullback.projection.result import Fit

__all__ = ["to_pandas"]

COLUMNS = ("value", "error", "standard_error", "before", "above", "gradient_norm", "converged", "iterations")


def to_pandas(fit: Fit) -> DataFrame:
    """Return the numbers of each element of the batch, in the order of ``flatten``.

    Example:
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> to_pandas(fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0))).converged.tolist()
        [True]
    """
    import pandas as pd

    found: dict[str, Any] = {name: getattr(fit, name) for name in COLUMNS}
    return pd.DataFrame({name: x.reshape(-1).tolist() for name, x in found.items() if x is not None})
