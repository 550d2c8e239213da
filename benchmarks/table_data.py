"""Writes tables of mixed columns as Parquet, in pieces, so that any length fits into memory.

    python benchmarks/table_data.py table.parquet --rows 10000000 --columns 100 [--shift 0.1]

Of a hundred columns eighty are floating-point (normal, log-normal, far from zero, heavy-tailed, with missing values),
twelve integers, six strings, one a date and time and one boolean. `shift` moves all of them a little.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_AT_ONCE = 100_000
WORDS = np.array([f"word {number:03d}" for number in range(500)])
TYPES = ("float",) * 80 + ("integer",) * 12 + ("string",) * 6 + ("datetime", "boolean")
EPOCH = 1_700_000_000_000_000


def float_column(generator: np.random.Generator, number: int, rows: int, shift: float) -> pa.Array:
    normal = generator.standard_normal(rows) + shift
    match number % 5:
        case 0:
            return pa.array(normal)
        case 1:
            return pa.array(np.exp(normal))
        case 2:
            return pa.array((293.15 + normal).astype(np.float32))
        case 3:
            return pa.array(normal / np.sqrt(generator.chisquare(3, rows) / 3))
        case _:
            return pa.array(normal, mask=generator.random(rows) < 0.05)


def column(
    column_type: str, generator: np.random.Generator, number: int, rows: int, shift: float
) -> pa.Array:
    if column_type == "float":
        return float_column(generator, number, rows, shift)
    if column_type == "integer":
        return pa.array(generator.poisson(10.0 ** (number % 4) * (1 + shift), rows))
    if column_type == "string":
        index = (generator.random(rows) ** (2 + shift) * len(WORDS)).astype(np.int64)
        return pa.DictionaryArray.from_arrays(index, WORDS).cast(pa.string())
    if column_type == "datetime":
        timestamps = EPOCH + (generator.exponential(1 + shift, rows) * 86_400e6).astype(np.int64)
        return pa.array(timestamps, pa.timestamp("us"))
    return pa.array(generator.random(rows) < 0.3 + shift / 10)


def types_of(columns: int) -> list[str]:
    """The types of a number of columns, in the proportions of `TYPES`."""
    return [TYPES[number * len(TYPES) // columns] for number in range(columns)]


def pieces(rows: int, types: Sequence[str], *, shift: float = 0.0, seed: int = 0) -> Iterator[pa.Table]:
    """The table in pieces of `ROWS_AT_ONCE` rows; the same seed and shift give the same table."""
    generator = np.random.default_rng(seed)
    for start in range(0, rows, ROWS_AT_ONCE):
        length = min(ROWS_AT_ONCE, rows - start)
        arrays = [
            column(column_type, generator, number, length, shift) for number, column_type in enumerate(types)
        ]
        yield pa.table(arrays, names=[f"{column_type}_{number}" for number, column_type in enumerate(types)])


def write_table(path: Path, rows: int, types: Sequence[str], *, shift: float = 0.0, seed: int = 0) -> None:
    """Write the table to one Parquet file with row groups of `ROWS_AT_ONCE` rows."""
    writer = None
    for piece in pieces(rows, types, shift=shift, seed=seed):
        writer = writer or pq.ParquetWriter(path, piece.schema, compression="snappy")
        writer.write_table(piece)
    if writer is not None:
        writer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--shift", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    write_table(given.path, given.rows, types_of(given.columns), shift=given.shift, seed=given.seed)
