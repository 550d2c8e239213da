"""The same table for every engine: each type of column, each value that engines treat differently."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 1500
HOUR = 3_600_000_000
SPECIAL = [
    *(float("nan"), None, float("inf"), -float("inf"), 0.0, -0.0, 5e-324, -1e-310, 2.0**-1022, -(2.0**-1022)),
    *(1.7976931348623157e308, -1.7976931348623157e308, 1e-300, 0.1, -0.1, 1.0, -1.0, 63.0, 64.0),
]
WORDS = ["", "a", "b", "Ü", "日本", " a", "A", 'quo"te', "null", None]


def near_powers(generator: np.random.Generator, rows: int) -> np.ndarray:
    """Powers of two and their neighbors, on which a logarithm's last digit decides the octave."""
    powers = 2.0 ** generator.integers(-1022, 1023, rows) * generator.choice([1, -1], rows)
    steps = generator.choice([-np.inf, 0, np.inf], rows)
    return np.where(steps == 0, powers, np.nextafter(powers, np.where(steps == 0, 0, steps)))


def taken(generator: np.random.Generator, values: list[Any], rows: int, dtype: pa.DataType) -> pa.Array:
    """Return values drawn from a list, each of them at least once."""
    places = np.concatenate([np.arange(len(values)), generator.integers(0, len(values), rows)])[:rows]
    return pa.array([values[place] for place in places], dtype)


def mixed_table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    generator = np.random.default_rng(seed)
    normal, gone = generator.standard_normal(rows), generator.random(rows) < 0.1
    timestamps = generator.integers(-60 * 365 * 24 * HOUR, 60 * 365 * 24 * HOUR, rows)
    # An hour in which New York's clocks show the same time twice, and one that they skip.
    clocks = 1_730_610_000_000_000 + generator.integers(-HOUR, 3 * HOUR, rows)
    days = [dt.date(1582, 1, 1), dt.date(1969, 12, 31), dt.date(2262, 4, 12), None]
    texts = [f"{number} is the number of this text; the text is long" for number in range(700)]
    return pa.table(
        {
            "normal": pa.array(normal * 3 - 1),
            "far.away": pa.array((293.15 + normal).astype(np.float32), mask=gone),
            "very_far": pa.array(1e9 + normal / 1e3),
            "special": taken(generator, SPECIAL, rows, pa.float64()),
            "powers": pa.array(near_powers(generator, rows)),
            "wide": pa.array(np.exp(20 * normal)),
            "small_integer": pa.array(generator.poisson(5, rows).astype(np.int8), mask=gone),
            "integer": pa.array(generator.integers(-100_000, 5, rows).astype(np.int32)),
            "big_integer": pa.array(2**62 + generator.integers(0, 2**61, rows)),
            "atom": pa.array(np.where(gone, normal, 0.3)),
            "decimal": taken(
                generator,
                [Decimal("0.100"), Decimal("-12345.678"), Decimal("99999999.999"), None],
                rows,
                DECIMAL,
            ),
            "date": taken(generator, days, rows, pa.date32()),
            "timestamp": pa.array(timestamps, pa.timestamp("us"), mask=gone),
            "clock": pa.array(clocks, pa.timestamp("us")),
            "instant": pa.array(clocks + 7, pa.timestamp("us", "America/New_York")),
            "boolean": pa.array(normal > 1, mask=gone),
            "category": taken(generator, WORDS, rows, pa.string()).dictionary_encode(),
            "string": taken(generator, WORDS, rows, pa.string()),
            "text": taken(generator, texts, rows, pa.string()),
            "all missing": pa.nulls(rows, pa.float64()),
            "constant": pa.array(np.full(rows, 7.25)),
            "a weight": pa.array(generator.integers(0, 64, rows) / 8),
        }
    )


DECIMAL = pa.decimal128(12, 3)


def as_pandas(table: pa.Table) -> Any:
    import pandas as pd

    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    category = table["category"].cast(pa.string()).to_pandas()
    return frame.assign(category=pd.Categorical(category))


def as_polars(table: pa.Table) -> Any:
    import polars as pl

    words = [word for word in WORDS if word is not None]
    return pl.from_arrow(table).with_columns(pl.col("category").cast(pl.String).cast(pl.Enum(words)))


def as_duckdb(table: pa.Table) -> Any:
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    connection.register("arrow_table", table)
    connection.execute("CREATE TABLE copy AS SELECT * FROM arrow_table")
    return connection.table("copy")


def as_dask(table: pa.Table) -> Any:
    import dask.dataframe as dd

    return dd.from_pandas(as_pandas(table), npartitions=3)


def as_ibis(table: pa.Table) -> Any:
    import ibis

    connection = ibis.duckdb.connect()
    connection.raw_sql("SET TimeZone = 'Asia/Tokyo'")
    return connection.create_table("copy", without_dictionaries(table))


def as_ibis_on_polars(table: pa.Table) -> Any:
    """A table of an engine of Ibis other than DuckDB."""
    import ibis

    return ibis.polars.connect().create_table("copy", without_dictionaries(table))


def as_spark(table: pa.Table, session: Any) -> Any:
    return session.createDataFrame(without_dictionaries(table)).repartition(3)


def without_dictionaries(table: pa.Table) -> pa.Table:
    """Return the table with categories as strings, for engines without a type for them."""
    place = table.column_names.index("category")
    return table.set_column(place, "category", table["category"].cast(pa.string()))


HERE: dict[str, Callable[[pa.Table], Any]] = {
    "pyarrow": lambda table: table,
    "pandas": as_pandas,
    "polars": as_polars,
    "polars lazy": lambda table: as_polars(table).lazy(),
    "duckdb": as_duckdb,
    "dask": as_dask,
    "ibis": as_ibis,
    "ibis on polars": as_ibis_on_polars,
}
