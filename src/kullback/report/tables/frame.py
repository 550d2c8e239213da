"""A comparison of tables as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kullback.words import TABLE_DIVERGENCE_NAMES

if TYPE_CHECKING:
    from pandas import DataFrame

    from kullback.report.tables.wording import Compared
    from kullback.tables.result import TableComparison

__all__ = ["to_pandas"]


def to_pandas(comparison: TableComparison) -> DataFrame:
    """Return a row for each column, and for each group of columns, the largest PSI first.

    Its columns: ``column``, ``column_type`` (``"joint"`` for a group); of each divergence the value, ``_low`` and
    ``_high``, the ends of its interval; ``p_value``, ``p_adjusted``; ``missing_p``, ``missing_q``. What is not known is
    NaN.

    Arguments:
        comparison: the result of `compare_tables`.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> frame = to_pandas(compare_tables(table, table))
        >>> frame.column.tolist(), frame.psi.tolist()
        (['x'], [0.0])
    """
    import pandas as pd

    first = ["column", "column_type"]
    divergences = [name + end for name in TABLE_DIVERGENCE_NAMES for end in ("", "_low", "_high")]
    last = ["p_value", "p_adjusted", "missing_p", "missing_q"]
    rows = [_row(each) for each in (*comparison.columns, *comparison.joint)]
    frame = pd.DataFrame(rows, columns=[*first, *divergences, *last])
    return frame.astype(dict.fromkeys([*divergences, *last], "float64"))


def _row(compared: Compared) -> dict[str, Any]:
    row: dict[str, Any] = {"column": compared.label, "column_type": getattr(compared, "column_type", "joint")}
    for name in TABLE_DIVERGENCE_NAMES:
        quantity = getattr(compared, name)
        row[name] = quantity.value
        row[f"{name}_low"], row[f"{name}_high"] = quantity.interval or (None, None)
    row |= {"p_value": compared.p_value, "p_adjusted": compared.p_adjusted}
    return row | {name: getattr(compared, name, None) for name in ("missing_p", "missing_q")}
