"""Labels of classes: their extraction from Series, data frames, mappings and sequences, and their comparison."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from numbers import Number
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.inputs import array_of, as_tensor
from kullback.errors import ArgumentValueError, invalid_type, invalid_value, safe_repr

Labels = tuple[Hashable, ...]

# NaN does not equal NaN, but tuples and dictionaries treat an object as equal to itself. So one object replaces all
# missing values of a type.
_NAN, _NOT_A_TIME = math.nan, np.datetime64("NaT")
# pandas and Polars give these names to a column of counts or proportions.
_COUNT_NAMES = frozenset(("count", "counts", "proportion", "len", "n"))


class Labeled(NamedTuple):
    """Numbers with the labels of their classes.

    Attributes:
        values: the numbers; the last dimension is the dimension of the classes.
        labels: one label for each class; None without labels.
        rows: for a table, the labels of the rows.
        may_count_rows: whether the labels are an index of integers, which may be mere positions of classes or rows.
    """

    values: object
    labels: Labels | None = None
    rows: Labels | None = None
    may_count_rows: bool = False


def labeled(call: str, x: object) -> Labeled:
    """Return labeled numbers of any supported type, split into numbers and labels; `call` is for error messages."""
    if isinstance(x, Mapping):
        return _of_mapping(call, cast("Mapping[Hashable, Any]", x))
    library = type(x).__module__.partition(".")[0]
    if isinstance(x, list | tuple) and x and _is_labeled(cast("Any", x[0])):
        return _of_rows(call, cast("list[Any]", x))
    split = _SPLIT.get((library, type(x).__name__))
    return split(call, x) if split else Labeled(x)


def labels_from(call: str, labels: object) -> Labels:
    """Return the labels in a sequence, array or Series as a tuple; missing values of one type become one object."""
    if isinstance(labels, np.ma.MaskedArray) and bool(np.ma.getmaskarray(labels).any()):
        raise invalid_value(
            call,
            "labels",
            wanted="a label for each class",
            got="a masked array",
            instead="labels=labels.filled('missing') for a class with this name",
        )
    # Arrow's scalars, and tensors of one number, would be unequal even for equal labels. So both are converted to
    # Python objects.
    of_python = getattr(labels, "to_pylist", None)
    if of_python is not None or isinstance(labels, Tensor):
        labels = cast("Any", labels).tolist() if of_python is None else of_python()
    if not isinstance(labels, Iterable):
        raise invalid_type(
            call, "labels", wanted="a sequence of labels", got=safe_repr(labels), instead="labels=['a', 'b']"
        )
    names = tuple(_unified(label) for label in cast("Iterable[Any]", labels))
    try:
        hash(names)
    except TypeError as error:
        raise invalid_type(
            call,
            "labels",
            wanted="labels such as names, numbers or tuples",
            got=str(error),
            instead="labels=[tuple(label) for label in labels]",
        ) from None
    return names


def _unified(label: Any) -> Any:
    """Return one fixed object for NaN of any type, another fixed object for NaT, and any other label unchanged."""
    if isinstance(label, str) or label is None:
        return label
    if isinstance(label, tuple):
        return tuple(_unified(part) for part in cast("tuple[Any, ...]", label))
    if isinstance(label, float | np.floating | Decimal):
        return _NAN if math.isnan(label) else label
    if isinstance(label, np.datetime64 | np.timedelta64) and np.isnat(label):
        return _NOT_A_TIME
    return label


def same_labels(p: Labels, q: Labels) -> bool:
    """Return whether the labels of P and Q are equal and in the same order; pandas' NA equals no other label."""
    return len(p) == len(q) and all(
        a is b or (hash(a) == hash(b) and a == b) for a, b in zip(p, q, strict=True)
    )


def check_one_type(call: str, p: Labels, q: Labels) -> None:
    """Raise if labels of P and Q differ only in their type, such as 1 and '1', and therefore would not match."""
    for types_of in (_types, _missing_types):
        of_p, of_q = types_of(p), types_of(q)
        if of_p and of_q and not of_p.keys() & of_q.keys():
            raise _unlike(call, next(iter(of_p.values())), next(iter(of_q.values())))
    in_p, in_q = set(p), set(q)
    spelled = {_spelling(label): label for label in p if label not in in_q}
    for label in q:
        other = None if label in in_p else spelled.get(_spelling(label), label)
        if other is not None and type(other) is not type(label):
            raise _unlike(call, other, label)


def _unlike(call: str, p: object, q: object) -> ArgumentValueError:
    """Return the error for a label `p` in P and a label `q` in Q of different types."""
    names = "str(label)"
    if is_missing(p) and is_missing(q):
        names = "'missing' if str(label) in ('None', 'nan', '<NA>', 'NaT') else label"
    return invalid_value(
        call,
        "p, q",
        wanted="labels of one type in p and q",
        got=f"{safe_repr(p)} in p, {_type_name(p)}, and {safe_repr(q)} in q, {_type_name(q)}",
        instead=f"{call}(x, labels=[{names} for label in labels]) on both sides, or convert the labels of one",
    )


def _type_name(label: object) -> str:
    if isinstance(label, tuple):
        return f"({', '.join(map(_type_name, cast('tuple[object, ...]', label)))})"
    return type(label).__name__


def _types(labels: Labels) -> dict[str, object]:
    """Return the first label of each type, by the name of the type; missing values are left out.

    Types of numbers count as one type, because their values can be equal.
    """
    types: dict[str, object] = {}
    for label in labels:
        if _missing_type(label) is None:
            types.setdefault(_type_of(label), label)
    return types


def _missing_types(labels: Labels) -> dict[str, object]:
    """Return one label for each type of missing value, by the name of the type."""
    return {name: label for label in labels if (name := _missing_type(label)) is not None}


def is_missing(x: object) -> bool:
    """Return whether a value is None, NaN, NaT or NA."""
    return x is None or _missing_type(_unified(x)) is not None


def _missing_type(label: Any) -> str | None:
    """Return the name of a missing value, such as "NaN"; None for other labels."""
    if label is None or label is _NAN or label is _NOT_A_TIME:
        return "None" if label is None else "NaN" if label is _NAN else "NaT"
    name = type(label).__name__  # a comparison with the class itself would need an import of pandas
    return {"NAType": "NA", "NaTType": "NaT"}.get(name)


def _type_of(label: Any) -> str:
    """Return the name of a label's type; types whose values can be equal, such as int and float, have one name."""
    if isinstance(label, str):
        return "str"
    if isinstance(label, Number | np.number | np.bool_):
        return type(label).__name__ if isinstance(label, complex | np.complexfloating) else "number"
    if isinstance(label, tuple):
        return f"({', '.join(map(_type_of, cast('tuple[Any, ...]', label)))})"
    if isinstance(label, dt.datetime):  # this includes pandas' Timestamp
        return "datetime" if label.tzinfo is None else "datetime with a time zone"
    if isinstance(label, dt.timedelta):
        return "timedelta"
    return _missing_type(label) or type(label).__name__


def _spelling(label: Any) -> str:
    """Return the label as text. A number, the same number in another precision, and the number as text become equal."""
    if isinstance(label, bytes):
        return label.decode(errors="replace")
    if isinstance(label, str | Number | np.number) and not isinstance(label, bool | np.bool_):
        try:
            return f"{float(cast('Any', label)):.6g}"
        except (TypeError, ValueError, OverflowError):
            pass
    return str(label)


# ---- Functions that split labeled numbers of one type into numbers and labels.


def _of_mapping(call: str, x: Mapping[Hashable, Any]) -> Labeled:
    """Return the values of a mapping, labeled by its keys; each value is a number, or a column of a table."""
    labels, values = labels_from(call, tuple(x)), list(x.values())
    if values and all(isinstance(value, Tensor) for value in values):
        if len({value.shape for value in values}) > 1:
            raise _unequal(call)
        stacked = torch.stack(values, -1)  # stacking keeps the gradient
    elif not any(hasattr(value, "__len__") for value in values):
        return Labeled(values, labels)
    else:
        columns = [as_tensor(call, "x", value).numpy() for value in values]
        if len({column.shape for column in columns}) > 1:
            raise _unequal(call)
        stacked = np.stack(columns, -1)
    return Labeled(stacked, labels, tuple(range(len(stacked))) if stacked.ndim == 2 else None)


def _unequal(call: str) -> ArgumentValueError:
    return invalid_value(
        call,
        "x",
        wanted="a number for each label, or equally long columns",
        got="values of unequal shapes",
        instead=f"{call}({{'a': [3, 1], 'b': [2, 5]}}), where each label has one number for each row",
    )


def _is_labeled(x: object) -> bool:
    """Return whether a row of a list has labels: whether it is a mapping or a pandas Series."""
    is_pandas = type(x).__module__.partition(".")[0] == "pandas"
    return isinstance(x, Mapping) or (is_pandas and type(x).__name__ == "Series")


def _of_rows(call: str, x: list[Any]) -> Labeled:
    """Return labeled rows as one array with labels; raise unless all rows have the same labels in the same order."""
    rows = [labeled(call, row) for row in x]
    if any(row.labels != rows[0].labels for row in rows):
        raise invalid_value(
            call,
            "x",
            wanted="rows with the same labels in the same order",
            got="rows with other labels, or in another order",
            instead=f"{call}(pandas.DataFrame(x).fillna(0)), which matches them by label",
        )
    values = torch.stack([as_tensor(call, "x", row.values) for row in rows])
    return Labeled(values, rows[0].labels, None, rows[0].may_count_rows)


def _of_pandas_series(call: str, series: Any) -> Labeled:
    values = array_of(series)
    if values.dtype == object:
        return Labeled(series)
    return Labeled(values, labels_from(call, series.index), may_count_rows=_kind(series.index) in "iu")


def _of_pandas_frame(call: str, frame: Any) -> Labeled:
    kinds = [_kind(frame.iloc[:, j]) for j in range(frame.shape[1])]
    is_table = _kind(frame.columns) in "iu" or type(frame.index).__name__ != "RangeIndex"
    if frame.shape[1] == 2 and _has_labels_first(call, kinds, frame.columns[1], is_table=is_table):
        return Labeled(array_of(frame.iloc[:, 1]), labels_from(call, frame.iloc[:, 0]))
    if not all(kind in "iuf" for kind in kinds):
        return Labeled(frame)
    values = frame.to_numpy()
    if values.dtype == object:  # pandas' nullable dtypes with NA become objects
        values = frame.to_numpy(dtype="float64", na_value=math.nan)
    columns, rows = labels_from(call, frame.columns), labels_from(call, frame.index)
    return Labeled(values, columns, rows, _kind(frame.columns) in "iu")


def _kind(column: Any) -> str:
    """Return NumPy's letter for the dtype of a column or an index of pandas."""
    return getattr(column.dtype, "kind", "O")


def _has_labels_first(call: str, kinds: list[str], second: object, *, is_table: bool) -> bool:
    """Return whether the first of two columns contains labels and only the second contains numbers.

    Raise an error if the first column has integers, which may be labels or numbers. With `is_table`, names of columns
    or rows show that both are numbers, and there is no error. `kinds` are the letters of `_kind`, and
    `second` is a name.
    """
    if kinds[0] not in "iuf":
        return kinds[1] in "iuf"
    if str(second).lower() in _COUNT_NAMES:
        return True
    if kinds[0] == "f" or is_table:
        return False
    raise invalid_value(
        call,
        "x",
        wanted="a table whose columns are classes, or two columns with the labels first",
        got="two columns of numbers, the first of integers",
        instead=f"{call}(x.to_numpy()) if each column is a class; {call}(x.iloc[:, 1].to_numpy(), "
        "labels=x.iloc[:, 0]) if the first column has the labels",
    )


def _of_polars_series(call: str, series: Any) -> Labeled:
    if not series.dtype.is_numeric():
        raise invalid_type(
            call,
            "x",
            wanted=f"a polars Series of {'counts' if call == 'Counts' else 'numbers'}",
            got=f"one of dtype {series.dtype}",
            instead="Counts(series.value_counts())",
        )
    return Labeled(series.to_numpy())


def _of_polars_frame(call: str, frame: Any) -> Labeled:
    kinds = [
        "f" if dtype.is_float() else "i" if dtype.is_integer() else "f" if dtype.is_numeric() else "O"
        for dtype in frame.dtypes
    ]
    if frame.width == 2 and kinds[1] != "O":
        # `Counts` assumes that a frame of two columns comes from the method `value_counts` of Polars.
        is_counted = call == "Counts"
        if is_counted or _has_labels_first(call, kinds, frame.columns[1], is_table=False):
            return Labeled(frame.to_series(1).to_numpy(), labels_from(call, frame.to_series(0).to_list()))
    if frame.width < 2 or "O" in kinds:
        raise invalid_type(
            call,
            "x",
            wanted="a polars frame of two columns, label and count, or of one column of numbers for each class",
            got=f"columns {frame.schema}",
            instead="Counts(series.value_counts())",
        )
    return Labeled(frame.to_numpy(), tuple(frame.columns), tuple(range(frame.height)))


def _of_arrow_structs(call: str, x: Any) -> Labeled:
    names = {field.name for field in x.type}
    if names != {"values", "counts"}:
        return Labeled(x)
    return Labeled(array_of(x.field("counts")), labels_from(call, x.field("values")))


_SPLIT: dict[tuple[str, str], Any] = {
    ("pandas", "Series"): _of_pandas_series,
    ("pandas", "DataFrame"): _of_pandas_frame,
    ("polars", "Series"): _of_polars_series,
    ("polars", "DataFrame"): _of_polars_frame,
    ("pyarrow", "StructArray"): _of_arrow_structs,
}
