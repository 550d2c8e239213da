"""Draws, of which nothing is known but that one distribution made them: `Samples`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.errors import invalid_type, invalid_value
from kullback.inputs import as_tensor, check_independent, is_fake
from kullback.representations import can_inspect, first_of

__all__ = ["Samples"]

Array = np.ndarray[Any, np.dtype[Any]]


class Samples:
    r"""Draws :math:`x_1, \dots, x_n` from a distribution of which nothing else is known.

    Integers, booleans and strings are categories: only their equality counts. Floating-point numbers are coordinates in
    a continuous space.

    Arguments:
        x: n draws of scalars, shape (n,), or of vectors, shape (n, d) or (d, n) as `dim` says; or n strings.
        dim: the dimension that holds the components of a vector; the other one counts the draws.
        weights: what each draw counts for, n numbers, none negative, not all zero; left out, each counts the same.
        cluster: the name or number of the group that each draw came with, where draws of one group depend on each
            other (the visits of one user, the windows of one document); intervals then treat groups as the draws.
        independent: whether the draws are known not to depend on each other, whatever their order shows. By default
            their order is examined, and where it shows dependence, intervals and tests treat blocks as the draws.
        validate: check that no value is NaN (which waits for an accelerator).

    Raises:
        ArgumentTypeError: the values are neither numbers nor strings.
        ArgumentValueError: more than two dimensions, no draw at all, or NaN; weights or clusters that do not fit.

    Example:
        >>> import torch, kullback
        >>> kullback.Samples(torch.zeros(100, 3))
        Samples(n=100, d=3, dtype=torch.float32, device=cpu)
        >>> kullback.Samples(["a", "b", "a"]).labels
        ('a', 'b')

    References:
        Divergence estimation for multidimensional densities (Wang, Kulkarni and Verdu, 2009)
    """

    def __init__(
        self,
        x: object,
        dim: int = -1,
        *,
        weights: object = None,
        cluster: object = None,
        independent: bool = False,
        validate: bool = True,
    ) -> None:
        self.labels, values = _encoded(x)
        draws = as_tensor("Samples", "x", values)
        _check_present("x", draws)
        _check_shape(draws, dim)
        self.tensor = draws[:, None] if draws.ndim == 1 else draws.movedim(dim, -1)
        self.dim = -1
        self.weights = None if weights is None else _checked_weights(weights, len(self))
        self.cluster = None if cluster is None else _cluster_codes(cluster, len(self))
        self.independent = check_independent("Samples", independent, cluster)
        if validate and draws.is_floating_point() and can_inspect(draws) and bool(draws.isnan().any()):
            raise invalid_value(
                "Samples",
                "x",
                wanted="numbers",
                got=f"NaN ({first_of(draws.isnan())})",
                instead="drop or impute the missing values first",
            )

    @property
    def discrete(self) -> bool:
        """Whether the draws are categories: integers, booleans or strings."""
        return not self.tensor.is_floating_point()

    def __len__(self) -> int:
        return int(self.tensor.shape[0])

    def __repr__(self) -> str:
        n, d = self.tensor.shape
        if self.labels is not None:
            return f"Samples(n={n}, categories={len(self.labels)})"
        return f"Samples(n={n}, d={d}, dtype={self.tensor.dtype}, device={self.tensor.device})"


def _encoded(x: object) -> tuple[tuple[str, ...] | None, object]:
    """Turn strings into their labels, in order, and each draw's index among them; leave numbers as they are."""
    if isinstance(x, Tensor):
        return None, x
    given: Any = (
        cast("Any", x).to_numpy() if hasattr(x, "to_numpy") else x
    )  # a series of pandas, polars or pyarrow
    if isinstance(given, Sequence) and given and isinstance(given[0], str):
        given = np.asarray(given, dtype=object)
    if not isinstance(given, np.ndarray) or given.ndim != 1 or given.dtype.kind not in "OUT":
        return None, given
    entries = cast("Array", given)
    if not all(isinstance(entry, str) for entry in entries):
        return None, entries
    labels, codes = np.unique(entries.astype(str), return_inverse=True)
    return tuple(labels.tolist()), torch.from_numpy(codes.astype(np.int64))


def _check_present(argument: str, x: Tensor) -> None:
    if x.is_meta or is_fake(x):
        raise invalid_value(
            "Samples",
            argument,
            wanted="a tensor with values",
            got="one that has a shape only",
            instead="real tensors, outside of FakeTensorMode and of the meta device",
        )


def _check_shape(draws: Tensor, dim: int) -> None:
    if draws.is_complex():
        raise invalid_type(
            "Samples",
            "x",
            wanted="real numbers",
            got=f"a tensor of dtype {draws.dtype}",
            instead="Samples(torch.view_as_real(x).flatten(-2))",
        )
    if draws.ndim not in (1, 2) or draws.numel() == 0:
        raise invalid_value(
            "Samples",
            "x",
            wanted="at least one draw, shape (n,) or (n, d)",
            got=f"shape {tuple(draws.shape)}",
            instead="Samples(x.reshape(n, d))",
        )
    if not -draws.ndim <= dim < draws.ndim:
        raise invalid_value(
            "Samples",
            "dim",
            wanted=f"a dimension of a tensor of shape {tuple(draws.shape)}",
            got=str(dim),
            instead="Samples(x, dim=-1) when the last dimension holds the components",
        )


def _checked_weights(weights: object, n: int) -> Tensor:
    with torch.device("cpu"):  # where numbers stay, whatever the default device is
        found = as_tensor("Samples", "weights", weights)
    _check_present("weights", found)
    # A list became float32, which large and small numbers are beyond.
    found = (
        torch.tensor(weights, dtype=torch.float64, device=found.device)
        if isinstance(weights, list)
        else found.to(torch.float64)
    )
    bad = ~(found.isfinite() & (found >= 0))
    if found.shape != (n,) or bool(bad.any()) or not bool((found > 0).any()):
        reason = f", not finite or negative: {first_of(bad)}" if bool(bad.any()) else ""
        raise invalid_value(
            "Samples",
            "weights",
            wanted=f"{n} finite numbers, one for each draw, none negative and not all zero",
            got=f"shape {tuple(found.shape)}{reason}, sum {float(found.sum()):g}",
            instead="weights=None where every draw counts the same",
        )
    # Sums of the weights, and of their squares, must neither overflow nor lose digits.
    peak = found.max()
    return found if 1e-100 < peak < 1e100 else found / peak


def _cluster_codes(cluster: object, n: int) -> Tensor:
    names = _names_of(cluster)
    if names.shape != (n,):
        raise invalid_value(
            "Samples",
            "cluster",
            wanted=f"{n} names or numbers, one for each draw",
            got=f"shape {names.shape}",
            instead="independent=True where the draws are independent",
        )
    missing = np.array([name is None or name != name for name in names.tolist()])  # noqa: PLR0124  # NaN
    try:
        codes = np.unique(names, return_inverse=True)[1]
    except TypeError:  # of names that have no order
        codes = None
    if codes is None or missing.any():
        first = int(missing.argmax()) if missing.any() else 0
        others = f"{int(missing.sum())} of {n} missing, the first at index {first}"
        raise invalid_type(
            "Samples",
            "cluster",
            wanted=f"{n} names, or {n} numbers, one for each draw",
            got=others if missing.any() else "names of types that have no common order",
            instead="cluster=[str(name) for name in cluster], by which all the missing ones are one cluster",
        )
    return torch.from_numpy(codes.astype(np.int64))


def _names_of(cluster: object) -> Array:
    if isinstance(cluster, Tensor):
        found = as_tensor("Samples", "cluster", cluster)
        _check_present("cluster", found)
        return cast("Array", found.detach().cpu().numpy())
    try:
        return cast("Array", np.asarray(cluster))
    except ValueError:  # lists of unequal lengths
        return np.asarray(None)
