"""`Samples`: draws from an unknown distribution."""

from __future__ import annotations

from functools import partial
from typing import Any, Never, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments, Whole, refuse_both
from kullback.common.extra_arguments import extra_arguments
from kullback.common.inputs import array_of, as_tensor, can_inspect, first_of, is_fake
from kullback.common.labels import is_missing
from kullback.errors import ArgumentTypeError, ArgumentValueError, invalid_type, invalid_value

Array = np.ndarray[Any, np.dtype[Any]]
_invalid_value = partial(invalid_value, "Samples")
_ARGUMENTS = Arguments("Samples", dim=Whole(least=-2, most=1, example=-1), independent=FLAG, validate=FLAG)


class Samples:
    r"""Draws :math:`x_1, \dots, x_n` from an unknown distribution.

    Integers, booleans and strings are categories, which are only compared for equality. Floating-point numbers are
    coordinates in a continuous space. A draw that is masked in a NumPy masked array of draws, weights or clusters is
    left out.

    Arguments:
        x: n scalars, shape (n,); n vectors, shape (n, d), or (d, n) with ``dim=0``; or n strings.
        dim: the dimension of the components of a vector; the other dimension counts the draws.
        weights: the weights of the draws, n non-negative numbers, not all zero; by default, all weights are equal.
        cluster: the group of each draw, as a name or number. Pass `cluster` if draws of one group are dependent, such
            as the visits of one user or the windows of one document. Intervals then treat groups as independent.
        independent: True if you know that the draws are independent. By default, a test for serial dependence is made.
            If the dependence is significant, intervals and tests treat blocks of draws as independent.
        validate: whether to check that no value is NaN. The check synchronizes with an accelerator.

    Raises:
        ArgumentTypeError: the values are neither numbers nor strings.
        ArgumentValueError: `x` has more than two dimensions, no draws or missing values, a vector is masked only in
            part, or the weights or clusters are invalid.

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
        **unknown: Never,
    ) -> None:
        if unknown:
            raise extra_arguments(type(self), (), unknown, "Samples(x)")
        dim = _ARGUMENTS.check(dim=dim, independent=independent, validate=validate)["dim"]
        if independent:
            refuse_both("Samples", independent, cluster)
        self.columns, self.labels, values = None, None, x
        if not (isinstance(x, Tensor) and weights is cluster is None):  # tensors lack names and masks
            _check_indices(x, weights=weights, cluster=cluster)
            self.columns = column_names(x) if dim != 0 else None
            x, weights, cluster = _without_masked(x, dim, weights, cluster)
            self.labels, values = _encoded(x)
        draws = as_tensor("Samples", "x", values)
        _check_present("x", draws)
        _check_shape(draws, dim)
        self.tensor = draws[:, None] if draws.ndim == 1 else draws.movedim(dim, -1)
        self.dim = -1
        self.weights = None if weights is None else _checked_weights(weights, len(self))
        self.cluster = None if cluster is None else _cluster_codes(cluster, len(self))
        self.independent = independent
        if validate and draws.is_floating_point() and can_inspect(draws) and bool(draws.isnan().any()):
            raise _invalid_value(
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


def column_names(x: object) -> tuple[object, ...] | None:
    """Return the names of the columns of a data frame; None for other objects."""
    columns = None if isinstance(x, Tensor) else getattr(x, "columns", None)
    return None if columns is None else tuple(columns)


def _check_indices(x: object, **others: object) -> None:
    """Raise if `x` and another pandas object have different indices, because their rows may not correspond."""
    index = None if isinstance(x, Tensor) else getattr(x, "index", None)
    for name, other in others.items():
        index_of_other = None if isinstance(other, Tensor) else getattr(other, "index", None)
        if not (hasattr(index, "equals") and hasattr(index_of_other, "equals")) or cast("Any", index).equals(
            index_of_other
        ):
            continue
        raise _invalid_value(
            name,
            wanted=f"the same index in x and {name}",
            got="another one",
            instead=f"{name}={name}.loc[x.index] to match rows by index, {name}={name}.to_numpy() if they are in the "
            "order of x",
        )


def _without_masked(x: object, dim: int, weights: object, cluster: object) -> tuple[object, object, object]:
    """Return draws, weights and clusters without the draws that are masked in any of them; raise for masked parts."""
    parts = (x, weights, cluster)
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return parts
    shape = np.shape(x if isinstance(x, Tensor | np.ndarray) else np.asarray(x))
    axis = 1 - dim % 2 if len(shape) == 2 else 0
    n = shape[axis] if shape else 0
    masked = np.zeros(n, dtype=bool)
    for part in parts:
        if isinstance(part, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(cast("np.ma.MaskedArray[Any, Any]", part))
            if mask.ndim == 2 and part is x:
                mask = _whole_rows(np.moveaxis(mask, axis, 0), axis)
            if mask.shape != (n,):
                return parts  # later checks raise for the invalid shape
            masked |= mask
    x, weights, cluster = (_taken(part, ~masked, axis if part is x else 0) for part in parts)
    return x, weights, cluster


def _whole_rows(mask: Array, axis: int) -> Array:
    """Return a mask of the draws whose components are all masked; raise if a draw is masked only in part."""
    some, every = (cast("Array", reduce(mask, axis=1)) for reduce in (np.any, np.all))
    partly = some & ~every
    if not partly.any():
        return every
    rows = "x[~x.mask.any(1)]" if axis == 0 else "x[:, ~x.mask.any(0)], dim=0"
    readings = [] if some.all() else [f"Samples({rows}) to leave these rows out"]
    if not mask.all(0).any():
        other = "" if axis == 0 else ", dim=0"
        means = "x.mean(0)" if axis == 0 else "x.mean(1)[:, None]"
        readings.append(f"Samples(numpy.where(x.mask, {means}, x.data){other}) to impute them by means")
    raise _invalid_value(
        "x",
        wanted="vectors that are masked as a whole or not at all",
        got=f"{int(partly.sum())} of {len(mask)} masked in part, the first at index {int(partly.argmax())}",
        instead="; ".join(readings) or "Samples(x[:, columns]) with columns that are not masked",
    )


def _taken(part: Any, kept: Array, axis: int) -> object:
    """Return the rows of `part` along `axis` that the mask `kept` selects."""
    if part is None:
        return None
    if isinstance(part, Tensor):
        return part.index_select(axis, torch.from_numpy(kept.nonzero()[0]).to(part.device))
    if isinstance(part, list | tuple) and axis == 0:
        return [row for row, keep in zip(cast("list[Any]", part), kept, strict=True) if keep]
    values: Array = array_of(part) if hasattr(part, "to_numpy") else np.asarray(part)  # drops the mask
    return np.compress(kept, values, axis=axis)


def _encoded(x: object) -> tuple[tuple[str, ...] | None, object]:
    """Return sorted labels and the index of each draw's label if `x` contains strings; else None and the numbers."""
    if isinstance(x, Tensor):
        return None, x
    # Series of pandas and polars and arrays of pyarrow have the method `to_numpy`.
    values: Any = array_of(x) if hasattr(x, "to_numpy") else x
    if isinstance(values, list | tuple) and not set(map(type, values)) <= _NUMBERS:
        values = _in_array(cast("list[Any]", values))
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OUTSMm":
        return None, values
    entries = cast("Array", values)
    missing = np.fromiter(map(is_missing, entries.flat), dtype=bool, count=entries.size)
    if missing.any():
        raise _missing(x, entries.reshape(-1), missing)
    if entries.dtype.kind in "SMm" or entries.ndim != 1:
        raise _no_draws(entries)
    if entries.dtype.kind != "O" or all(isinstance(entry, str) for entry in entries):
        labels, codes = np.unique(entries.astype(str), return_inverse=True)
        return tuple(labels.tolist()), torch.from_numpy(codes.astype(np.int64))
    if any(isinstance(entry, str) for entry in entries):
        raise _no_draws(entries)
    numbers = np.array(entries.tolist())
    return None, numbers if numbers.dtype.kind in "biuf" and numbers.ndim == 1 else x


_NUMBERS = {bool, int, float}


def _in_array(values: list[Any]) -> object:
    """Return an array of objects if an entry of the list is text or missing; otherwise return the list."""
    if not any(isinstance(value, str) or value is None or is_missing(value) for value in values):
        return values
    entries = np.empty(len(values), dtype=object)
    entries[:] = values
    return entries


def _missing(x: object, entries: Array, missing: Array) -> ArgumentValueError:
    """Return the error for missing values, with calls that drop them or make them a category."""
    is_text = all(isinstance(entry, str) for entry in entries[~missing])
    library = type(x).__module__.partition(".")[0]
    of_python = "[value for value in x if value is not None and value == value]"
    named = "['missing' if value is None or value != value else value for value in x]"
    if library == "polars":
        of_python, named = "x.drop_nulls()", "x.cast(str).fill_null('missing')"
    elif library == "pyarrow":
        of_python, named = "x.drop_null()", "x.cast('string').fill_null('missing')"
    elif library == "pandas" or any(type(entry).__name__ == "NAType" for entry in entries[missing]):
        series = "x" if type(x).__name__ == "Series" else "pandas.Series(x)"
        of_python, named = f"{series}.dropna()", f"{series}.astype(object).fillna('missing')"
    instead = f"drop or impute the missing values first: Samples({of_python})"
    if is_text:
        instead += f"; or make a category of them: Samples({named})"
    return _invalid_value(
        "x",
        wanted="draws without missing values",
        got=f"{int(missing.sum())} of {len(entries)} missing, the first at index {int(missing.argmax())}",
        instead=instead,
    )


def _no_draws(entries: Array) -> ArgumentTypeError:
    """Return the error for draws that are times, bytes, tables of text, or text among numbers."""
    kind = entries.dtype.kind
    if kind in "Mm":
        got = "times"
        instead = (
            "Samples(numpy.asarray(x).astype('int64').astype(float)) to compare them as numbers, "
            "Samples(numpy.asarray(x).astype(str)) as categories"
        )
    elif kind == "S":
        got, instead = "bytes", "Samples(numpy.asarray(x).astype(str))"
    elif entries.ndim == 1:
        got, instead = "text among numbers", "Samples([str(value) for value in x]) for categories"
    else:
        got = f"a table of objects of shape {entries.shape}"
        instead = (
            "Samples(numpy.asarray(x).astype(float)) if all are numbers; Samples([str(list(row)) for row in "
            "numpy.asarray(x)]) for one category for each row; compare_tables(x, y) to compare tables by column"
        )
    return invalid_type("Samples", "x", wanted="numbers, booleans or strings", got=got, instead=instead)


def _check_present(argument: str, x: Tensor) -> None:
    if x.is_meta or is_fake(x):
        raise _invalid_value(
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
        raise _invalid_value(
            "x",
            wanted="at least one draw, shape (n,) or (n, d)",
            got=f"shape {tuple(draws.shape)}",
            instead="Samples(x.reshape(n, d))",
        )
    if not -draws.ndim <= dim < draws.ndim:
        raise _invalid_value(
            "dim",
            wanted=f"a dimension of a tensor of shape {tuple(draws.shape)}",
            got=str(dim),
            instead="Samples(x, dim=-1) when the last dimension holds the components",
        )


def _checked_weights(weights: object, n: int) -> Tensor:
    with torch.device("cpu"):  # converts lists on the CPU, whatever the default device is
        w = as_tensor("Samples", "weights", weights)
    _check_present("weights", w)
    if isinstance(weights, list):  # is converted again, because the range of float32 is too small
        w = torch.tensor(weights, dtype=torch.float64, device=w.device)
    w = w.to(torch.float64)
    bad = ~(w.isfinite() & (w >= 0))
    if w.shape != (n,) or bool(bad.any()) or not bool((w > 0).any()):
        reason = f", not finite or negative: {first_of(bad)}" if bool(bad.any()) else ""
        raise _invalid_value(
            "weights",
            wanted=f"{n} finite numbers, one for each draw, none negative and not all zero",
            got=f"shape {tuple(w.shape)}{reason}, sum {float(w.sum()):g}",
            instead="weights=None if every draw counts the same",
        )
    # Extreme weights are rescaled, so that sums of the weights and of their squares do not overflow or underflow.
    peak = w.max()
    return w if 1e-100 < peak < 1e100 else w / peak


def _cluster_codes(cluster: object, n: int) -> Tensor:
    names = _names_of(cluster)
    if names.shape != (n,):
        raise _invalid_value(
            "cluster",
            wanted=f"{n} names or numbers, one for each draw",
            got=f"shape {names.shape}",
            instead="independent=True if the draws are independent",
        )
    missing = np.fromiter(map(is_missing, names), dtype=bool, count=n)
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
    # In a list of names with NaN, NumPy would convert NaN to the text 'nan', so such a list becomes an array of
    # objects.
    is_mixed = isinstance(cluster, list | tuple) and len(set(map(type, cast("list[Any]", cluster)))) > 1
    try:
        return cast("Array", np.asarray(cluster, dtype=object if is_mixed else None))
    except ValueError:  # lists of unequal lengths
        return np.asarray(None)
