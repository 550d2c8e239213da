"""Converts a result to a data frame: the exact numbers of the result, or the texts of the first main table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kullback.report.document import Frame, main_tables
from kullback.report.subjects import document
from kullback.results.verdict import Verdict

if TYPE_CHECKING:
    from pandas import DataFrame


def to_pandas(result: Any, verdicts: Sequence[Verdict] = ()) -> DataFrame:
    """Return a result as a data frame with the unit and the confidence of its numbers.

    The ``attrs`` of the frame also have the unit of each kind as ``units``, and the outcome of each limit as ``gates``.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> table = pa.table({"x": [1, 2] * 50})
        >>> frame = to_pandas(compare_tables(table, table))
        >>> frame.column.tolist(), frame.psi.tolist()
        (['x'], [0.0])
    """
    import pandas as pd

    page = document(result, verdicts)
    if page.frame is None:
        table = next(main_tables(page))
        numbers = Frame(dict(zip(table.headings, zip(*table.rows, strict=True), strict=True)))
    else:
        numbers = page.frame()
    labels = {} if page.frame is None or page.measured is None else page.measured.columns(numbers)
    frame = pd.DataFrame({**numbers.columns, **labels}, index=numbers.index)
    if page.measured is not None:
        frame.attrs |= {"units": dict(page.measured.units), "confidence": page.measured.confidence}
    frame.attrs["gates"] = {verdict.limit: verdict.outcome for verdict in page.verdicts}
    return frame
