"""Converts a result to a data frame: the exact numbers of the result, or the texts of the first main table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kullback.report.document import Frame, main_tables
from kullback.report.subjects import document

if TYPE_CHECKING:
    from pandas import DataFrame

    from kullback.results.verdict import Verdict


def to_pandas(result: Any, verdicts: Sequence[Verdict] = ()) -> DataFrame:
    """Return a result as a data frame; its ``attrs["gates"]`` has the outcome of each limit.

    Arguments:
        result: a result of kullback, or its `Document`.
        verdicts: the verdicts of the limits that you set.

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
    frame = pd.DataFrame(dict(numbers.columns), index=numbers.index)
    frame.attrs["gates"] = {verdict.limit: verdict.outcome for verdict in verdicts}
    return frame
