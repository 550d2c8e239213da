"""Errors about tables: in the name of what the user called, with remedies that work, whatever the names are."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from kullback import Probs, compare_predictions, compare_tables
from kullback.cli.commands import kullback
from kullback.cli.gates import OF_TABLES, parse_gate
from kullback.errors import ArgumentTypeError, ColumnNotFoundError, KullbackError
from kullback.tables import compare_profiles, profile_table
from tests.refusals import refused

TABLE = pd.DataFrame({"amount": [1.0, 2.0, 3.0] * 20, "word": ["a", "b", "c"] * 20})
TWICE = pd.concat([TABLE, TABLE], axis=1)
NO_COLUMN = "compare_tables({argument}=...): wanted columns of {where}; got 'no'; there are 'amount', 'word'"
BINS = "an integer from 2 to 1,000,000"


def with_options(**options):
    return compare_tables(TABLE, TABLE, **options)


@pytest.mark.parametrize(
    ("call", "beginning"),
    [
        (lambda: compare_tables({"x": 1}, TABLE), "compare_tables(p=...): wanted a path, or a table"),
        (lambda: compare_tables(TABLE, TWICE), "compare_tables(q=...): wanted columns of different names"),
        (lambda: compare_tables(TABLE, "no.csv"), "q = no.csv: wanted a file"),
        (lambda: compare_tables("no.xls", TABLE), "p = no.xls: wanted one of .parquet"),
        (lambda: profile_table({"x": 1}), "profile_table(frame=...): wanted a path, or a table"),
        (lambda: profile_table(TWICE), "profile_table(frame=...): wanted columns of different names"),
        (
            lambda: profile_table(TABLE, weights="no"),
            "profile_table(weights=...): wanted columns of the table;",
        ),
        (
            lambda: compare_tables(TABLE, TABLE, weights="word"),
            "weights=...: wanted a column of finite numbers",
        ),
        (
            lambda: compare_tables(TABLE, TABLE, columns="amount"),
            "compare_tables(columns=...): wanted a list",
        ),
        (lambda: compare_tables(TABLE, TABLE, columns=3), "compare_tables(columns=...): wanted a list"),
        (lambda: compare_tables(TABLE, TABLE, columns=[3]), "compare_tables(columns=...): wanted a list"),
        (lambda: compare_tables(TABLE, TABLE, weights=3), "compare_tables(weights=...): wanted the name"),
        (lambda: compare_tables(TABLE, TABLE, cluster=["a"]), "compare_tables(cluster=...): wanted the name"),
        (lambda: compare_tables(TABLE, TABLE, joint=3), "compare_tables(joint=...): wanted groups"),
        (lambda: compare_tables(TABLE, TABLE, joint=[3]), "compare_tables(joint=...): wanted groups"),
        (lambda: compare_tables(TABLE, TABLE, joint=[("a", 3)]), "compare_tables(joint=...): wanted groups"),
        (
            lambda: compare_tables(TABLE, TABLE, ["no"]),
            NO_COLUMN.format(argument="columns", where="the tables"),
        ),
        (
            lambda: with_options(joint=[("amount", "no")]),
            NO_COLUMN.format(argument="joint", where="the tables"),
        ),
        (lambda: with_options(joint=[("word",)]), "compare_tables(joint=...): wanted groups of two or more"),
        (lambda: with_options(joint="word"), "compare_tables(joint=...): wanted groups of two or more"),
        (lambda: with_options(weights="no"), NO_COLUMN.format(argument="weights", where="P")),
        (lambda: with_options(cluster="no"), NO_COLUMN.format(argument="cluster", where="P")),
        (lambda: with_options(bins=1), f"compare_tables(bins=...): wanted {BINS}"),
        (lambda: with_options(bins=10**5000), f"compare_tables(bins=...): wanted {BINS}"),
        (lambda: with_options(confidence=1.5), "compare_tables(confidence=...): wanted a number between 0"),
        (lambda: compare_tables(TABLE, TABLE, bins="x"), "compare_tables(bins=...): wanted an integer"),
        (lambda: compare_tables(TABLE, TABLE, bins=2.5), "compare_tables(bins=...): wanted an integer"),
        (
            lambda: compare_tables(TABLE, TABLE, generator=3),
            "compare_tables(generator=...): wanted a torch.Gen",
        ),
        (
            lambda: compare_predictions(TABLE, TABLE),
            "compare_predictions(p=...): wanted a tensor or an array",
        ),
    ],
)
def test_errors_name_what_was_called(call, beginning):
    with pytest.raises(KullbackError) as caught:
        call()
    assert str(caught.value).startswith(beginning)


def test_the_remedy_for_columns_as_a_string_works():
    for call in (
        lambda **given: compare_tables(TABLE, TABLE, **given),
        lambda **given: profile_table(TABLE, **given),
    ):
        with pytest.raises(ArgumentTypeError, match="Write: ") as caught:
            call(columns="amount")
        remedy = str(caught.value).partition("Write: ")[2]
        assert call(**eval(f"dict({remedy})")).columns  # noqa: S307 - the text of our own message


def test_the_remedies_for_data_frames_as_predictions_work():
    frame = pd.DataFrame({"a": [0.25, 0.5], "b": [0.75, 0.5]})
    with refused(ArgumentTypeError, instead=r"compare_tables\(p, q\).*p=Probs\(frame\.to_numpy\(\)\)"):
        compare_predictions(frame, frame)
    assert len(compare_tables(frame, frame).columns) == 2
    assert compare_predictions(Probs(frame.to_numpy()), Probs(frame.to_numpy())).rows == 2


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    TABLE.to_parquet("a.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "wanted", "remedy"),
    [
        (["--columns", "no"], "--columns: wanted columns of the tables; got 'no'", "--columns amount"),
        (["--weights", "no"], "--weights: wanted columns of P; got 'no'", "--weights amount"),
        (["--cluster", "no"], "--cluster: wanted columns of P; got 'no'", "--cluster amount"),
    ],
)
def test_on_the_command_line_errors_name_the_option(folder, arguments, wanted, remedy):
    command = ["compare", "a.parquet", "a.parquet", "--as", "table"]
    result = CliRunner().invoke(kullback, [*command, *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"kullback: {wanted}")
    assert result.stderr.rstrip().endswith(f"Write: {remedy}")
    assert CliRunner().invoke(kullback, [*command, *remedy.split()]).exit_code == 0


def test_watch_names_the_files_and_options(folder):
    for arguments, words in (
        (["no.csv"], "reference = no.csv: wanted a file"),
        (["a.parquet", "no.csv"], "batch = no.csv: wanted a file"),
        (["a.parquet", "--rebuild", "--columns", "no"], "--columns: wanted columns of the table; got 'no'"),
    ):
        result = CliRunner().invoke(kullback, ["watch", *arguments])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"kullback: {words}")


def test_files_of_tables_without_as_table_lead_to_it(folder):
    TABLE.to_csv("a.csv", index=False)
    for names in (("a.csv", "a.csv"), ("a.parquet", "a.csv"), ("a.csv", "a.parquet")):
        result = CliRunner().invoke(kullback, ["compare", *names])
        assert result.exit_code == 2
        assert "--as table" in result.stderr
    assert CliRunner().invoke(kullback, ["compare", "a.parquet", "a.parquet"]).exit_code == 0
    assert CliRunner().invoke(kullback, ["compare", "a.csv", "a.csv", "--as", "table"]).exit_code == 0


def test_without_a_generator_the_numbers_are_the_same_and_torchs_own_state_is_left():
    other = TABLE.sample(40, random_state=0)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = compare_tables(TABLE, other), compare_tables(TABLE, other)
    assert first == second
    assert compare_profiles(*(profile_table(TABLE) for _ in "pq")).columns
    assert torch.equal(torch.get_rng_state(), state)


# Names from anywhere

ESCAPES = "\x1b[31mred\r\nkullback: gate passed"
HOSTILE = [ESCAPES, "x" * 10_000, "zero\0width\u202e", "tab\there", "\ud800lone"]


def hostile_tables(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(0)
    p = pd.DataFrame({name: random.choice(["a", name, "c"], 300), "other": random.normal(size=300)})
    q = pd.DataFrame({name: random.choice(["b", name + "!", "c"], 300), "only": 1})
    return p, q


def assert_tame(text: str) -> None:
    """Nothing but line ends that we wrote, and no line that a name has forged."""
    assert all(character.isprintable() or character == "\n" for character in text)
    assert not re.search(r"^kullback: gate passed", text, re.MULTILINE)
    assert "x" * 1000 not in text


@pytest.mark.parametrize("name", HOSTILE[:4])
def test_no_name_goes_raw_into_findings_reports_gates_and_errors(name):
    p, q = hostile_tables(name)
    found = compare_tables(p, q, joint=[(name, "other")])
    assert_tame("\n".join(finding.message for finding in found.findings))
    assert_tame(repr(found))
    assert_tame(repr(found.columns))
    for limit in ("psi=0", f"psi[{name}]=0", "psi[other]=0"):
        verdict = parse_gate(limit, "above", OF_TABLES).verdict(found)
        assert verdict.sentences
        assert_tame("\n".join([verdict.limit, *verdict.sentences]))
    for call in (
        lambda: compare_tables(p, q, columns=["no"]),
        lambda: compare_tables(p, q, columns=["no" + name]),
        lambda: compare_tables(p, p, weights=name),
        lambda: compare_tables(p, p, weights="no"),
        lambda: profile_table(p, columns=["no"]),
        lambda: profile_table(pd.concat([p, p], axis=1)),
        lambda: profile_table(p.assign(**{name: [[1]] * 300}), columns=[name]),
        lambda: found["no" + name],
        lambda: compare_tables(p, p, joint=[(name, name)]),
    ):
        with pytest.raises(KullbackError) as caught:
            call()
        assert_tame(str(caught.value))


@pytest.mark.sweep
@pytest.mark.parametrize("name", HOSTILE[:4])
def test_the_command_writes_no_name_raw(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = name.replace("\0", "")  # DuckDB ends a name there
    for table, path in zip(hostile_tables(name), ("p.parquet", "q.parquet"), strict=True):
        table.to_parquet(path)
    gates = ["--fail-above", "psi=0.1", "--html", "page.html"]
    result = CliRunner().invoke(kullback, ["compare", "p.parquet", "q.parquet", "--as", "table", *gates])
    assert result.exit_code == 1
    assert all(character.isprintable() or character == "\n" for character in result.output)
    starts = "kullback: gate failed: ", "kullback: cannot tell: "
    assert all(line.startswith(starts) for line in result.stderr.splitlines())
    page = Path("page.html").read_text()
    assert all(character.isprintable() or character == "\n" for character in page)


def test_a_column_that_was_not_compared_is_not_found():
    found = compare_tables(TABLE, TABLE.drop(columns="word"), joint=[("amount", "word")])
    assert found["amount"] is found.columns[0]
    for name, words in (
        ("word", "is in P only"),
        ("no", "wanted one of 'amount'"),
        (("amount", "word"), "wanted one of"),
    ):
        with pytest.raises(ColumnNotFoundError, match=words):
            found[name]
    with pytest.raises(KeyError):
        found["no"]
