"""Engines that count tables.

| table | counted by |
|---|---|
| a file (Parquet, CSV, NDJSON) | an embedded DuckDB reads it as a stream of Arrow batches, NumPy counts on threads |
| a DuckDB relation | the same, on its own connection |
| pandas, Polars, PyArrow | NumPy on threads, on slices of the columns |
| Polars, lazy | Polars runs the query as a stream, NumPy counts |
| Ibis | its engine runs the query as a stream, NumPy counts |
| Dask, PySpark | NumPy on the workers, a part of the table each; counts are added (`parts`) |

All of them give Arrow batches (`batches`), so the grid is written once.

For 40 columns of numbers in Parquet, 10⁶ rows, DuckDB's stream into NumPy took 1.1 seconds of processor time, PyArrow's
own reader into NumPy 0.7 to 1.1, and the same counting in DuckDB's SQL 4.5 to 5.
"""

from __future__ import annotations

from kullback.tables.engines.choose import open_table
from kullback.tables.engines.engine import Table

__all__ = ["Table", "open_table"]
