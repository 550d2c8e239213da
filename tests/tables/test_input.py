"""What tables may bring along: files, damage, objects of any type, weights that are none, wrong arguments."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import sys
from pathlib import Path

import dask
import dask.dataframe as dd
import duckdb
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kullback.cli.commands import kullback
from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError, OptionalDependencyError
from kullback.tables import compare_tables, profile_table
from tests.refusals import refused


def test_pandas_numpy_nan_is_missing_and_arrows_is_not():
    values = [1.0, float("nan")]
    assert profile_table(pd.DataFrame({"x": values})).columns["x"].missing == 1
    arrow = pd.DataFrame({"x": pd.array(pa.array(values), dtype=pd.ArrowDtype(pa.float64()))})
    assert profile_table(arrow).columns["x"].not_a_number == 1


def test_pandas_objects_count_by_what_they_are():
    frame = pd.DataFrame(
        {
            "words": pd.Series(["a", None, "b"], dtype=object),
            "truths": pd.Series([True, None, False], dtype=object),
            "dates": pd.Series([dt.date(1970, 1, 2), None, None], dtype=object),
            "mixed": pd.Series([1, "a", None], dtype=object),
            "lists": pd.Series([[1], [2], None], dtype=object),
            "nothing": pd.Series([None, None, None], dtype=object),
        }
    )
    profile = profile_table(frame)
    types = {name: column.column_type for name, column in profile.columns.items()}
    assert types == {
        "words": "categorical",
        "truths": "boolean",
        "dates": "datetime",
        "nothing": "categorical",
    }
    assert profile.skipped["mixed"] == "objects of several types: int, str"
    assert "list" in profile.skipped["lists"]
    assert profile.columns["nothing"].missing == 3
    with refused(ArgumentValueError, got="'mixed': objects of several types: int, str"):
        profile_table(frame, columns=["mixed"])


def test_dask_objects_of_several_partitions_agree_on_a_type():
    frame = pd.DataFrame(
        {
            "late": pd.Series([None, None, True, False], dtype=object),
            "mixed": pd.Series([1, 2, "a", "b"], dtype=object),
            "nothing": pd.Series([None] * 4, dtype=object),
        }
    )
    with dask.config.set({"dataframe.convert-string": False}):
        profile = profile_table(dd.from_pandas(frame, npartitions=2))
    assert profile.columns["late"].categories == {"false": 1, "true": 1}
    assert profile.columns["nothing"].missing == 4
    assert profile.skipped["mixed"] == "objects of several types: numeric, string"


EMPTY = pa.table({"x": pa.array([], pa.float64()), "s": pa.array([], pa.string())})


@pytest.mark.parametrize(
    "frame",
    [EMPTY, EMPTY.to_pandas(), pl.from_arrow(EMPTY), pl.from_arrow(EMPTY).lazy(), duckdb.from_arrow(EMPTY)],
    ids=["pyarrow", "pandas", "polars", "polars lazy", "duckdb"],
)
def test_an_empty_table_has_an_empty_profile(frame):
    profile = profile_table(frame)
    assert (profile.rows, profile.weight) == (0, 0)
    assert profile.columns["x"].total == 0
    assert profile.columns["x"].minimum is None


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"x": [[1], [2]]}),
        pl.DataFrame({"x": [[1], [2]]}),
        pl.DataFrame({"x": [object(), 1]}, {"x": pl.Object}),
    ],
    ids=["pyarrow", "polars", "polars objects"],
)
def test_a_table_of_which_nothing_can_be_profiled_still_has_its_rows(frame):
    profile = profile_table(frame)
    assert (profile.rows, profile.columns, list(profile.skipped)) == (2, {}, ["x"])


@pytest.mark.parametrize(
    "frame",
    [
        pa.table([[1], [2]], names=["x", "x"]),
        pd.DataFrame([[1, 2]], columns=["x", "x"]),
        pd.DataFrame([[1, 2]], columns=["1", 1]),
    ],
)
def test_two_columns_of_one_name_are_refused(frame):
    with refused(ArgumentValueError, got="two columns '"):
        profile_table(frame)


@pytest.mark.parametrize(
    "weights", [[1.0, None], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")], ["a", "b"]]
)
@pytest.mark.parametrize("engine", ["pyarrow", "ibis"])
@pytest.mark.filterwarnings("ignore:fetch_.* is deprecated:DeprecationWarning:ibis")
def test_bad_weights_are_refused(weights, engine):
    table = pa.table({"x": [1, 2], "w": weights})
    if engine == "ibis":
        table = ibis.duckdb.connect().create_table("t", table)
    with refused(
        ArgumentValueError,
        argument="weights",
        wanted="^a column of finite numbers of 0 or more, ",
        got=" in 'w'",
    ):
        profile_table(table, weights="w")


def test_wrong_arguments_are_refused():
    table = pa.table({"x": [1]})
    with refused(ArgumentValueError, got="'y'; there are 'x'"):
        profile_table(table, columns=["y"])
    with refused(ArgumentValueError, got="'w'; there are 'x'"):
        profile_table(table, weights="w")
    with refused(ArgumentTypeError, got="^dict"):
        profile_table({"x": [1]})
    with refused(ArgumentTypeError, wanted="^a Profile$", got="^str"):
        profile_table(table, like="reference.parquet")


@pytest.fixture(scope="module")
def plain():
    """A table that CSV and NDJSON can hold too."""
    generator = np.random.default_rng(1)
    return pa.table(
        {
            "x": generator.standard_normal(1000) * 5 + 300,
            "n": generator.integers(-5, 5, 1000),
            "word": generator.choice(["a", "b b", "c,d"], 1000),
            "yes": generator.random(1000) < 0.5,
            "t": pa.array(generator.integers(0, 10**15, 1000), pa.timestamp("us")),
        }
    )


def write_csv(table, path):
    pl.from_arrow(table).write_csv(path)


def write_ndjson(table, path):
    pl.from_arrow(table).write_ndjson(path)


WRITERS = {"t.parquet": pq.write_table, "t.csv": write_csv, "t.ndjson": write_ndjson}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_counts_like_the_table_in_memory(name, plain, tmp_path):
    WRITERS[name](plain, tmp_path / name)
    assert profile_table(tmp_path / name) == profile_table(plain)


def as_path(write, suffix):
    def write_table(table, folder):
        path = folder / f"{table.num_rows} rows from {table['x'][0]}{suffix}"
        write(table, path)
        return path

    return write_table


def as_duckdb(table):
    connection = duckdb.connect()
    connection.register("given", table)
    connection.execute("CREATE TABLE kept AS SELECT * FROM given")
    return connection.table("kept")


SIMPLE = {
    "pyarrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "pandas of arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "duckdb": as_duckdb,
    "dask": lambda table: dd.from_pandas(table.to_pandas(), npartitions=2),
    "ibis": lambda table: ibis.duckdb.connect().create_table("kept", table),
}
EVERY = {name: lambda table, folder, make=make: make(table) for name, make in SIMPLE.items()} | {
    name: as_path(write, Path(name).suffix) for name, write in WRITERS.items()
}


@pytest.mark.filterwarnings("ignore:fetch_arrow_table")  # by Ibis
@pytest.mark.parametrize("first", [2**53, -(2**53), 2**62])
@pytest.mark.parametrize("name", EVERY)
def test_integers_are_exact_in_every_engine_and_file(name, first, tmp_path):
    """2^53 and 2^53 + 1 are one number in float64."""
    p = EVERY[name](pa.table({"x": [first] * 60}), tmp_path)
    q = EVERY[name](pa.table({"x": [first + 1] * 60 + [first - 1] * 60}), tmp_path)
    (column,) = compare_tables(p, q).columns
    assert column.tv.value == pytest.approx(1)
    assert column.p_value < 1e-3
    assert [part.label for part in column.bins] == [f"{first + step}" for step in (-1, 0, 1)]


@pytest.mark.parametrize("name", ["a\0b", "*", "#1", 'a"b', "a.b", "1"])
@pytest.mark.parametrize("file", ["t.parquet", "t.csv", "t.ndjson", "DuckDB"])
def test_a_column_may_have_any_name(name, file, tmp_path):
    table = pa.table({"first": [1, 2] * 30, name: [-3, 4] * 30, name + "\0c": [5, 6] * 30})
    pq.write_table(table, tmp_path / "t.parquet")
    pd.DataFrame(table.to_pydict()).to_csv(tmp_path / "t.csv", index=False)
    lines = (json.dumps(dict(zip(table.column_names, row, strict=True))) for row in [(1, -3, 5), (2, 4, 6)])
    (tmp_path / "t.ndjson").write_text("\n".join([*lines] * 30))
    given = duckdb.read_parquet(str(tmp_path / "t.parquet")) if file == "DuckDB" else tmp_path / file
    columns = profile_table(given).columns
    assert list(columns) == table.column_names
    assert [(each.minimum, each.maximum) for each in columns.values()] == [(1, 2), (-3, 4), (5, 6)]


def test_integers_of_json_keep_their_64_bits(tmp_path):
    rows = [-(2**63), 2**63 - 1], [0, 2**64 - 1], [-1, 2**64 - 1]
    for place, ends in enumerate(rows):
        (tmp_path / f"{place}.ndjson").write_text("".join(f'{{"x": {end}}}\n' for end in ends))
    column = [profile_table(tmp_path / f"{place}.ndjson").columns["x"] for place in range(3)]
    assert [(each.minimum, each.maximum) for each in column[:2]] == [tuple(ends) for ends in rows[:2]]
    assert [each.integer for each in column] == [True, True, False]  # no 64 bits hold the last


class Recorded:
    """A connection of DuckDB whose calls that open files are recorded."""

    def __init__(self, connection, opened):
        self.connection, self.opened = connection, opened

    def __getattr__(self, name):
        if name.startswith(("read_", "from_", "sql", "query")):
            self.opened.append(name)
        return getattr(self.connection, name)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("suffix", "opened"),
    [("csv", ["open", "read_csv"]), ("parquet", ["read_parquet"]), ("ndjson", ["read_json"])],
)
def test_a_file_is_opened_once_on_the_way_to_the_page(suffix, opened, tmp_path, monkeypatch):
    """One relation of DuckDB reads a file as often as its columns need; of a CSV file, Python reads the header."""
    path, other, page = tmp_path / f"p.{suffix}", tmp_path / f"q.{suffix}", tmp_path / "page.html"
    random = np.random.default_rng(0)
    table = pa.table({"far": 300 + random.normal(size=200), "text": random.normal(size=200).astype(str)})
    for each in (path, other):
        WRITERS[f"t.{suffix}"](table, each)
    recorded: list[str] = []
    connect, python_open = duckdb.connect, io.open

    def recording_open(file, *arguments, **options):
        recorded.extend(["open"] if str(file) == str(path) else [])
        return python_open(file, *arguments, **options)

    connections = iter([recorded, []])  # P's and Q's
    monkeypatch.setattr(duckdb, "connect", lambda **options: Recorded(connect(**options), next(connections)))
    monkeypatch.setattr(io, "open", recording_open)
    monkeypatch.setattr("builtins.open", recording_open)
    arguments = ["compare", str(path), str(other), "--as", "table", "--html", str(page)]
    done = CliRunner().invoke(kullback, arguments)
    assert (done.exit_code, page.exists()) == (0, True), done.output
    assert recorded == opened


def test_several_files_count_like_one(plain, tmp_path):
    for part in range(4):
        pq.write_table(plain.slice(part * 250, 250), tmp_path / f"part {part}.parquet")
    assert profile_table(str(tmp_path / "part *.parquet")) == profile_table(plain)


def test_a_cut_csv_is_an_error_with_the_reason(plain, tmp_path):
    write_csv(plain, tmp_path / "t.csv")
    text = (tmp_path / "t.csv").read_text()
    (tmp_path / "t.csv").write_text(text[: text.rindex(",")])
    with pytest.raises(
        FileError, match=r"t\.csv: wanted a csv file; got .*line 1001 of t\.csv has 4 fields, the header 5"
    ):
        profile_table(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.parquet", "t.ndjson"])
def test_a_cut_file_is_an_error(name, plain, tmp_path):
    WRITERS[name](plain, tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with refused(FileError, instead="truncated or damaged"):
        profile_table(tmp_path / name)


def test_damage_found_while_counting_is_an_error(plain, tmp_path):
    pq.write_table(plain, tmp_path / "t.parquet")
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    content[4:40] = b"\xff" * 36  # the header of the first page; the schema at the end is whole
    (tmp_path / "t.parquet").write_bytes(content)
    with pytest.raises(FileError, match=r"t\.parquet: wanted a parquet file; got one that cannot be read"):
        profile_table(tmp_path / "t.parquet")


def test_files_that_are_not_there_or_unknown_or_empty(tmp_path):
    (tmp_path / "t.xlsx").write_text("x")
    (tmp_path / "t.csv").write_text("")
    for name, message in {
        "no.parquet": "got no such file",
        "t.xlsx": "got extension '.xlsx'",
        "t.csv": "got an empty file",
    }.items():
        with pytest.raises(FileError, match=message):
            profile_table(tmp_path / name)


def compressed(text, path):
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz", "t.csv.zst"])
def test_a_csv_file_without_names_is_refused_and_numbers_in_quotation_marks_are_names(name, tmp_path):
    """Else its first row would become names of columns, silently."""
    text = "2019,2020\n5,7\n6,8\n".replace(",", "\t" if ".tsv" in name else ",")
    compressed(text, tmp_path / name)
    with pytest.raises(FileError, match=rf"{name}: wanted a first line with the names .*; got numbers alone"):
        profile_table(tmp_path / name)
    compressed(text.replace("2019", '"2019"').replace("2020", '"2020"'), tmp_path / name)
    columns = profile_table(tmp_path / name).columns
    assert {key: (each.minimum, each.maximum) for key, each in columns.items()} == {
        "2019": (5, 6),
        "2020": (7, 8),
    }


def test_of_several_csv_files_each_needs_names(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("3,4\n5,6\n")
    with pytest.raises(FileError, match=r"b\.csv: wanted a first line with the names"):
        profile_table(tmp_path / "*.csv")
    (tmp_path / "b.csv").write_text("x,y\n3,4\n5,6\n")
    assert profile_table(tmp_path / "*.csv").rows == 3


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zst"])
def test_an_uneven_line_is_named_in_compressed_files_too(name, tmp_path):
    compressed("x,y\n" + "1,2\n" * 50 + "3\n", tmp_path / name)
    with refused(FileError, got=rf"line 52 of {name} has 1 fields, the header 2"):
        profile_table(tmp_path / name)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "t.csv").write_text("x\n1\n")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with refused(OptionalDependencyError, instead=r"pip install duckdb$"):
        profile_table(tmp_path / "t.csv")


# Names of files


READ = {".csv": "x\n{}\n", ".tsv": "x\ty\n{}\t1\n", ".ndjson": '{{"x": "{}"}}\n', ".parquet": ""}


def write_named(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        with path.open("wb") as file:  # a path might be a URL to Arrow
            pq.write_table(pa.table({"x": [value]}), file)
    else:
        path.write_text(READ[path.suffix].format(value))


def values_of(path):
    return dict(profile_table(str(path)).columns["x"].categories)


@pytest.mark.parametrize("suffix", READ)
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("data[1]", ["data1"]),
        ("w*", ["wz", "w"]),
        ("q?", ["qz"]),
        ("[!a]", ["b"]),
        ("f[1]/x*", ["f1/xy", "f[1]/xy"]),
        ("**", ["y", "f/y"]),
        ("a{b,c}", ["ab", "ac"]),
        ("a\\b", ["ab"]),
        ("http:/host/x", []),
        ("file:/x", ["x"]),
        ("s3:/b/x", []),
    ],
)
def test_a_file_that_is_there_is_read_whatever_its_name(name, others, suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_named(Path(name + suffix), "right")
    for other in others:
        write_named(Path(other + suffix), "wrong")
    assert values_of(name + suffix) == {"right": 1}
    assert values_of(tmp_path / (name + suffix)) == {"right": 1}


@pytest.mark.parametrize("suffix", READ)
def test_a_star_alone_stands_for_names(suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a1", "a[1]", "b1", "b[1]", "f[1]/c1", "f1/c1"):
        write_named(Path(name + suffix), name)
    assert values_of(f"a*{suffix}") == {"a1": 1, "a[1]": 1}
    assert values_of(f"b[1*{suffix}") == {"b[1]": 1}
    assert values_of(f"f[1]/*{suffix}") == {"f[1]/c1": 1}
    for missing in ("a?", "a[1-9]", "c*"):
        with pytest.raises(FileError, match="got no such file; check the path"):
            profile_table(missing + suffix)


def test_a_name_that_duckdb_cannot_be_told_is_refused(tmp_path):
    write_named(tmp_path / "a\\[b].csv", "right")
    write_named(tmp_path / "ab.csv", "wrong")
    with pytest.raises(FileError, match=r"without a backslash next to .*; rename it"):
        profile_table(tmp_path / "a\\[b].csv")
    (tmp_path / "a\\[b].csv").rename(tmp_path / "a[b].csv")
    assert values_of(tmp_path / "a[b].csv") == {"right": 1}


@pytest.mark.parametrize("name", ["dangling.csv", "loop.parquet", "folder.csv", "d*.csv", "missing.ndjson"])
def test_what_is_no_file_is_said_in_one_sentence(name, tmp_path):
    (tmp_path / "dangling.csv").symlink_to("nowhere.csv")
    (tmp_path / "loop.parquet").symlink_to("loop.parquet")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(
        FileError, match=r"^frame = .*: wanted a file; got .*(a link to no|no such) file|a directory"
    ):
        profile_table(tmp_path / name)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1, 2**70], "Python integers beyond 64 bits"),
        ([-(2**200)], "Python integers beyond 64 bits"),
        ([object()], "objects of a type that Arrow cannot hold: object"),
        ([1, "a"], "objects of several types: int, str"),
    ],
)
def test_objects_are_called_what_they_are(values, reason):
    frame = pd.DataFrame({"x": pd.Series(values, dtype=object), "y": 1})
    assert profile_table(frame).skipped == {"x": reason}
