"""The choice of the engine that reads a table."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from kullback.common.optional import load
from kullback.tables.engines.dask_table import DaskTable
from kullback.tables.engines.data_frames import (
    ArrowTable,
    DuckTable,
    IbisTable,
    PandasTable,
    PolarsTable,
    not_a_table,
)
from kullback.tables.engines.engine import Caller, Table
from kullback.tables.engines.spark_table import SparkTable


def open_table(frame: object, caller: Caller | None = None) -> Table:
    """Return a table that its engine has opened, or a `Table` unchanged; errors name the caller."""
    caller = caller or Caller()
    if isinstance(frame, Table):
        return frame
    if isinstance(frame, (str, os.PathLike)):
        from kullback.tables.engines.file_table import FileTable  # only files need this import

        return FileTable(os.fspath(frame), caller)
    nw = load("narwhals", "reading tables")
    load("pyarrow", "reading tables")
    native: Any = nw.to_native(frame, pass_through=True)
    is_ = nw.dependencies
    engines: tuple[tuple[Callable[[Any], bool], Callable[[Any, Caller], Table]], ...] = (
        (is_.is_pyarrow_table, ArrowTable),
        (is_.is_pandas_dataframe, PandasTable),
        (is_.is_polars_dataframe, PolarsTable),
        (is_.is_polars_lazyframe, PolarsTable),
        (is_.is_duckdb_relation, DuckTable),
        (is_.is_dask_dataframe, DaskTable),
    )
    opened = next((take(native, caller) for recognizes, take in engines if recognizes(native)), None)
    return opened or _through_narwhals(nw, native, caller)


def _through_narwhals(nw: Any, native: Any, caller: Caller) -> Table:
    try:
        frame = nw.from_native(native)
    except TypeError:
        raise not_a_table(native, caller) from None
    if frame.implementation.is_ibis():
        return IbisTable(frame, caller)
    if frame.implementation.is_pyspark() or frame.implementation.is_pyspark_connect():
        return SparkTable(frame, caller)
    if isinstance(frame, nw.LazyFrame):
        return ArrowTable(frame.collect("pyarrow").to_native(), caller)
    return ArrowTable(frame.to_arrow(), caller)  # Modin and cuDF, which are in memory too
