"""`Samples`: draws from an unknown distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.inputs import as_tensor, can_inspect, check_independent, first_of, is_fake
from kullback.errors import invalid_type, invalid_value

Array = np.ndarray[Any, np.dtype[Any]]


class Samples:
    r"""Draws :math:`x_1, \dots, x_n` from an unknown distribution.

    Integers, booleans and strings are categories: they are only compared for equality. Floating-point numbers are
    coordinates in a continuous space.

    Arguments:
        x: n scalars, shape (n,); n vectors, shape (n, d), or (d, n) with ``dim=0``; or n strings.
        dim: the dimension of the components of a vector; the other dimension counts the draws.
        weights: the weights of the draws, n non-negative numbers, not all zero; by default all are equal.
        cluster: the group of each draw, as a name or number. Use it if draws of one group depend on each other, such
            as the visits of one user or the windows of one document. Intervals then treat groups as independent.
        independent: True if you know that the draws are independent. By default, their order is tested. If it shows
            significant dependence, intervals and tests treat blocks of draws as independent.
        validate: check that no value is NaN, which synchronizes with an accelerator.

    Raises:
        ArgumentTypeError: the values are neither numbers nor strings.
        ArgumentValueError: there are more than two dimensions, no draws, or NaN, or the weights or clusters do not fit.

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
    """Convert strings to sorted labels and the index of each draw's label; return numbers unchanged."""
    if isinstance(x, Tensor):
        return None, x
    # A series of pandas, polars or pyarrow has `to_numpy`.
    values: Any = cast("Any", x).to_numpy() if hasattr(x, "to_numpy") else x
    if isinstance(values, Sequence) and values and isinstance(values[0], str):
        values = np.asarray(values, dtype=object)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "OUT":
        return None, values
    entries = cast("Array", values)
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
            got="a tensor without values",
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
    with torch.device("cpu"):  # lists stay on the CPU for every default device
        w = as_tensor("Samples", "weights", weights)
    _check_present("weights", w)
    # Convert a list again, because the range of float32 is too small.
    w = (
        torch.tensor(weights, dtype=torch.float64, device=w.device)
        if isinstance(weights, list)
        else w.to(torch.float64)
    )
    bad = ~(w.isfinite() & (w >= 0))
    if w.shape != (n,) or bool(bad.any()) or not bool((w > 0).any()):
        reason = f", not finite or negative: {first_of(bad)}" if bool(bad.any()) else ""
        raise invalid_value(
            "Samples",
            "weights",
            wanted=f"{n} finite numbers, one for each draw, none negative and not all zero",
            got=f"shape {tuple(w.shape)}{reason}, sum {float(w.sum()):g}",
            instead="weights=None if every draw counts the same",
        )
    # Rescale extreme weights: sums of the weights and of their squares must not overflow or underflow.
    peak = w.max()
    return w if 1e-100 < peak < 1e100 else w / peak


def _cluster_codes(cluster: object, n: int) -> Tensor:
    names = _names_of(cluster)
    if names.shape != (n,):
        raise invalid_value(
            "Samples",
            "cluster",
            wanted=f"{n} names or numbers, one for each draw",
            got=f"shape {names.shape}",
            instead="independent=True if the draws are independent",
        )
    missing = np.array([name is None or name != name for name in names.tolist()])  # noqa: PLR0124  # NaN
    try:
        codes = np.unique(names, return_inverse=True)[1]
    except TypeError:  # the names cannot be sorted
        codes = None
    if codes is None or missing.any():
        first = int(missing.argmax()) if missing.any() else 0
        others = f"{int(missing.sum())} of {n} missing, the first at index {first}"
        raise invalid_type(
            "Samples",
            "cluster",
            wanted=f"{n} names, or {n} numbers, one for each draw",
            got=others if missing.any() else "names of types that have no common order",
            instead="cluster=[str(name) for name in cluster], which puts all missing names into one cluster",
        )
    return torch.from_numpy(codes.astype(np.int64))


def _names_of(cluster: object) -> Array:
    if isinstance(cluster, Tensor):
        names = as_tensor("Samples", "cluster", cluster)
        _check_present("cluster", names)
        return cast("Array", names.detach().cpu().numpy())
    try:
        return cast("Array", np.asarray(cluster))
    except ValueError:  # lists of unequal lengths
        return np.asarray(None)
