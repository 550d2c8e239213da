"""Every engine counts the same, exactly: eight sorts of table, files, and clusters of Dask and Spark."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from kullback.tables import choose_bins, contingency_tables, profile_table
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


@pytest.mark.parametrize("engine", HERE)
def test_every_engine_counts_the_same(engine, table, profile, bins):
    assert_all_counts_equal(HERE[engine](table), table, profile, bins)


def test_a_dask_cluster_counts_the_same(cluster, table, profile, bins):
    assert_all_counts_equal(as_dask(table), table, profile, bins)


@pytest.mark.slow
def test_spark_counts_the_same(spark, table, profile, bins):
    assert_all_counts_equal(as_spark(table, spark), table, profile, bins)
