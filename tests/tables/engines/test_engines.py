"""Every engine counts the same, exactly: nine sorts of table, files, and clusters of Dask and Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from kullback import compare_tables
from kullback.errors import ArgumentValueError
from kullback.tables import choose_bins, contingency_tables, profile_table
from kullback.tables.columns.types import arrow_field
from kullback.tables.engines import BatchTable, spark_table
from kullback.tables.engines.counters import counter_of
from kullback.tables.engines.data_frames import ArrowTable
from kullback.tables.engines.engine import Batch, TableCounter
from kullback.tables.engines.parts import merged
from tests.refusals import refused
from tests.tables.frames import HERE, as_dask, as_spark, mixed_table

pytestmark = [
    pytest.mark.filterwarnings("ignore:fetch_.* is deprecated:DeprecationWarning:ibis"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

KEYS = [("normal", "string"), ("special", "boolean"), ("atom", "decimal", "category"), ("string", "far.away")]
RAW = [("small_integer", "normal"), ("string", "special")]


@pytest.fixture(scope="module")
def table():
    return mixed_table()


@pytest.fixture(scope="module")
def profile(table):
    return profile_table(table)


@pytest.fixture(scope="module")
def bins(profile):
    return {name: choose_bins(column, column, 7) for name, column in profile.columns.items()}


@pytest.fixture(scope="session")
def spark():
    if shutil.which("java") is None:
        pytest.fail("Spark's tests need Java: install a Java 17 runtime and put `java` on PATH")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers', which count words with PyArrow
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",  # what a timestamp without time zone becomes
        "spark.sql.session.timeZone": "America/New_York",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as workers,
        Client(workers) as client,
    ):
        yield client


def differing(first, second):
    """Name what differs, so that a failure shows more than two long lines."""
    assert first.columns.keys() == second.columns.keys()
    assert first.skipped == second.skipped
    columns = {
        name: (column, second.columns[name])
        for name, column in first.columns.items()
        if column != second.columns[name]
    }
    totals = [(p.rows, p.weight, p.weight_squares) for p in (first, second)]
    return columns or (totals if totals[0] != totals[1] else {})


def assert_all_counts_equal(frame, table, profile, bins):
    assert differing(profile_table(frame), profile) == {}
    weighted = profile_table(frame, weights="a weight", like=profile)
    assert differing(weighted, profile_table(table, weights="a weight", like=profile)) == {}
    assert contingency_tables(frame, bins, KEYS, weights="a weight") == contingency_tables(
        table, bins, KEYS, weights="a weight"
    )
    assert contingency_tables(frame, {k: bins[k] for k in ("normal", "special")}, RAW) == contingency_tables(
        table, {k: bins[k] for k in ("normal", "special")}, RAW
    )


@pytest.mark.sweep
@pytest.mark.parametrize("engine", HERE)
def test_every_engine_counts_the_same(engine, table, profile, bins):
    assert_all_counts_equal(HERE[engine](table), table, profile, bins)


@pytest.mark.heavy
def test_a_dask_cluster_counts_the_same(cluster, table, profile, bins):
    assert_all_counts_equal(as_dask(table), table, profile, bins)


@pytest.mark.heavy
def test_spark_counts_the_same(spark, table, profile, bins):
    frame = as_spark(table, spark)
    assert_all_counts_equal(frame, table, profile, bins)
    with refused(
        ArgumentValueError, argument="weights", wanted="^a column of finite numbers ", got=" in 'normal'"
    ):
        profile_table(frame, columns=["atom"], weights="normal")
    lists = spark.createDataFrame([([1, 2],), ([3],)], "numbers array<int>")
    assert profile_table(lists).rows == 2


class Rows(BatchTable):
    """An engine from outside: a list of rows."""

    def __init__(self, rows, schema):
        self.rows, self.schema = rows, schema
        self.fields = {field.name: arrow_field(field.name, field.type) for field in schema}

    def batches(self, names, first=None):
        for start in range(0, len(self.rows), 700):
            part = self.rows[start : start + 700]
            arrays = {name: [row[name] for row in part] for name in names}
            yield Batch(
                len(part), {name: pa.array(arrays[name], self.schema.field(name).type) for name in names}
            )


@pytest.mark.sweep
def test_an_engine_from_outside_gives_fields_and_batches(table, profile, bins):
    frame = Rows(table.to_pylist(), table.schema)
    assert_all_counts_equal(frame, table, profile, bins)
    assert compare_tables(frame, frame).columns == compare_tables(table, table).columns


def text_table(table):
    """Numbers and dates as text, with other texts among them, and two long columns that are counted by length."""
    numbers, rest = table["normal"].to_pylist(), ["N/A", "?"]
    moments = [
        f"2026-{1 + at % 12:02d}-{1 + at % 28:02d} 10:00:{at % 60:02d}.{at:06d}+02:00"
        for at in range(len(numbers))
    ]
    return pa.table(
        {
            "comma": [f"{v:,.3f}".translate(str.maketrans(".,", ",.")) for v in numbers[:-2]] + rest,
            "percent": [f"{v:.2f} %" for v in numbers[:-2]] + [None, *rest[1:]],
            "zoned": moments[:-1] + rest[:1],
            "days": [f"{1 + at % 28}.{1 + at % 12}.2026" for at in range(len(numbers))],
            "long": [f"{v:040.3f} of a long text" for v in numbers],
            "category": table["category"],
            "a weight": table["a weight"],
        }
    )


def assert_text_is_read_alike(frame, texts):
    profile, counted = profile_table(texts), profile_table(frame)
    types = {name: column.column_type for name, column in profile.columns.items() if name != "a weight"}
    assert types == {
        "comma": "numeric",
        "percent": "numeric",
        "zoned": "datetime",
        "days": "datetime",
        "long": "text",
        "category": "categorical",
    }
    assert differing(counted, profile) == {}
    assert profile.columns["comma"].unparsed_texts == {"?": 1, "N/A": 1}
    weighted = profile_table(frame, weights="a weight", like=profile)
    assert differing(weighted, profile_table(texts, weights="a weight", like=profile)) == {}
    bins = {name: choose_bins(profile.columns[name], profile.columns[name], 7) for name in types}
    keys = [("comma", "days"), ("percent", "zoned")]
    assert contingency_tables(frame, bins, keys) == contingency_tables(texts, bins, keys)
    # The engine that the workers run finds the same way of reading from both tables.
    for one, other in ((frame, texts), (texts, frame)):
        compared = compare_tables(one, other, exclude=["a weight"], independent=True)
        assert {each.name: each.column_type for each in compared.columns} == types


@pytest.mark.sweep
@pytest.mark.parametrize("engine", HERE)
def test_every_engine_reads_text_alike(engine, table):
    texts = text_table(table)
    assert_text_is_read_alike(HERE[engine](texts), texts)


@pytest.mark.heavy
def test_a_dask_cluster_reads_text_alike(cluster, table):
    texts = text_table(table)
    assert_text_is_read_alike(as_dask(texts), texts)


@pytest.mark.heavy
def test_spark_reads_text_alike(spark, table):
    # The first column is text of categories, and the second one has the length of long texts.
    texts = text_table(table).select(["percent", "zoned", "category"])
    assert differing(profile_table(as_spark(texts, spark)), profile_table(texts)) == {}


WORKER = """
import pickle, sys
import pyarrow as pa
sys.modules |= dict.fromkeys(("kullback", "torch", "narwhals"))  # importing them is an error
work, table = pickle.load(sys.stdin.buffer)
(batch,) = work(iter(table.to_batches(max_chunksize=100)))
sys.stdout.buffer.write(batch.column(0)[0].as_py())
"""


@pytest.mark.sweep
@pytest.mark.parametrize("weights", [None, "a weight", "normal"])
def test_a_spark_worker_needs_pyarrow_and_numpy_alone(weights, table, profile):
    """Spark's functions run where neither this package nor PyTorch can be imported, and count the same."""
    names = [name for name in table.column_names if name != "category"]
    fields = [ArrowTable(table).fields[name] for name in names]
    columns = {
        each.name: counter_of(column.column_type, column.center, integer=each.integer)
        for each in fields
        for column in [profile.columns[each.name]]
        if each.name != weights
    }
    counter = TableCounter(columns, weights=weights)
    work = partial(spark_table._counted, fields=fields, counter=counter)
    with spark_table._sent_to_workers():
        sent = cloudpickle.dumps((work, table.select(names)))
    done = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()
    if weights == "normal":
        with refused(ArgumentValueError, got="in 'normal'"):
            merged([done.stdout], counter)
    else:
        found, here = merged([done.stdout], counter), ArrowTable(table).count(counter)
        assert found.profiles() == here.profiles()
        assert (found.rows, found.weight, found.weight_squares) == (
            here.rows,
            here.weight,
            here.weight_squares,
        )
