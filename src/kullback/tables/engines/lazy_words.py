"""The words of texts of PySpark and Ibis, from Arrow batches: at Spark's workers, or as Ibis' engine sends them."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from kullback.tables.columns.word_groups import WORD_GROUPS, rows_with_words

__all__ = ["lazy_words"]

SCHEMA = "key int, words int, weight double"


def lazy_words(frame: Any, names: Mapping[int, str], weights: str | None) -> dict[int, dict[int, float]]:
    """Return the weight of the rows with a word of each group, for each key of a column; nothing for other engines.

    Arguments:
        frame: a narwhals LazyFrame.
        names: columns of texts.
        weights: the column of the rows' weights.
    """
    native, keys = frame.to_native(), tuple(names)
    rows: list[Any] | None = None
    if frame.implementation.is_ibis():
        columns = [native[name].name(f"c{key}") for key, name in names.items()]
        columns += [] if weights is None else [native[weights].cast("float64").name("weight")]
        (batch,) = _counted(_ibis_batches(native.select(*columns)), keys)
        rows = list(zip(*batch.to_pydict().values(), strict=True))
    elif hasattr(native, "mapInArrow"):
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F

        selected = [F.col(name).alias(f"c{key}") for key, name in names.items()]
        selected += [] if weights is None else [F.col(weights).cast("double").alias("weight")]
        # Workers without PyArrow count no words, and a finding says so.
        with _sent_to_workers(), suppress(PySparkException):
            counted = native.select(*selected).mapInArrow(partial(_counted, keys=keys), SCHEMA)
            rows = counted.groupBy("key", "words").sum("weight").collect()
    found: dict[int, dict[int, float]] = {} if rows is None else {key: {} for key in keys}
    for key, group, weight in sorted(rows or ()):
        found[key][group] = weight
    return found


def _ibis_batches(table: Any) -> Iterator[Any]:
    """Return the Arrow batches of a table of Ibis."""
    backend = table.get_backend()
    # Ibis 12 streams by a method that DuckDB 2 no longer has, and leaves the connection unusable.
    if backend.name == "duckdb" and not hasattr(backend.con, "fetch_record_batch"):
        return iter(table.to_pyarrow().to_batches())
    return iter(table.to_pyarrow_batches())


def _counted(batches: Iterator[Any], keys: Sequence[int]) -> Iterator[Any]:
    """Yield one Arrow batch with the weights that are not 0, by column and group of words."""
    import pyarrow as pa

    totals = {key: np.zeros(WORD_GROUPS) for key in keys}
    for batch in batches:
        weights = batch["weight"] if "weight" in batch.schema.names else None
        for key, total in totals.items():
            texts = batch[f"c{key}"]
            own = None if weights is None else weights.filter(texts.is_valid()).to_numpy(zero_copy_only=False)
            np.add(total, rows_with_words(texts.drop_null().cast(pa.large_string()), own), out=total)
    places = [(key, group) for key, total in totals.items() for group in np.flatnonzero(total).tolist()]
    columns = [
        pa.array([key for key, _ in places], pa.int32()),
        pa.array([group for _, group in places], pa.int32()),
        pa.array([float(totals[key][group]) for key, group in places], pa.float64()),
    ]
    yield pa.record_batch(columns, names=["key", "words", "weight"])


@contextmanager
def _sent_to_workers() -> Generator[None]:
    """Let Spark send the functions themselves: its workers need PyArrow and NumPy, and not this package."""
    from pyspark import cloudpickle

    modules = [sys.modules[name] for name in (__name__, rows_with_words.__module__)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
