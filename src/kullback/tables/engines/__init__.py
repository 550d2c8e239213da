"""Engines that count tables.

| table | counted by |
|---|---|
| a file (Parquet, CSV, NDJSON) | an embedded DuckDB reads it as a stream of Arrow batches, NumPy counts on threads |
| a DuckDB relation | the same, on its own connection |
| pandas, Polars, PyArrow | NumPy on threads, on slices of the columns |
| Polars, lazy | Polars runs the query as a stream, NumPy counts |
| Dask | the workers count their partitions, counts are added in pairs (`dask_table`) |
| PySpark, Ibis | the engine, in at most four aggregations written with narwhals (`narwhals_lazy`) |

For 40 columns of numbers in Parquet, 10⁶ rows, DuckDB's stream into NumPy took 1.1 seconds of processor time, PyArrow's
own reader into NumPy 0.7 to 1.1, and the same counting in DuckDB's SQL 4.5 to 5.
"""

from __future__ import annotations

from kullback.tables.engines.choose import open_table
from kullback.tables.engines.engine import Table

__all__ = ["Table", "open_table"]
