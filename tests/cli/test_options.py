"""What options may say, and that errors name options and not the library's arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kullback import dispatch
from kullback.errors import ArgumentValueError
from kullback.generators import parse
from tests.cli.calling import one_line, run_line as run


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("p", "q"):
        np.save(f"{name}.npy", random.normal(size=(40, 8)).astype("float32"))
        pd.DataFrame({"a": np.arange(60) % 7 + 1, "b": np.arange(60) % 5}).to_csv(f"{name}.csv", index=False)
    np.save("tokens.npy", random.integers(0, 8, 40))
    Path("text").write_text("hello\n")


TABLE = "compare p.csv q.csv --as table"
CONVERT = "convert p.npy o.kld --as logits --tokens tokens.npy"


@pytest.mark.parametrize(
    ("wrong", "words", "remedy", "right"),
    [
        (f"{TABLE} --joint a", "--joint a: wanted names of two or more columns", "--joint A,B", f"{TABLE} --joint a,b"),
        (f"{TABLE} --joint a,a", "got the single one 'a'", "--joint A,B", f"{TABLE} --joint a,b"),
        (f"{TABLE} --joint a,c", "--joint: wanted columns of the tables", "--joint a,b", f"{TABLE} --joint a,b"),
        (f"{TABLE} --columns A", "got 'A'; there are 'a', 'b'", "--columns a", f"{TABLE} --columns a"),
        (f"{TABLE} --exclude B", "got 'B'; there are 'a', 'b'", "--exclude b", f"{TABLE} --exclude b"),
        (f"{TABLE} --weights B", "--weights: wanted", "--weights b", f"{TABLE} --weights b"),
        (f"{TABLE} --cluster B", "--cluster: wanted", "--cluster b", f"{TABLE} --cluster b"),
        (f"{TABLE} --joint a,B", "got 'B'; there are 'a', 'b'", "--joint b,a", f"{TABLE} --joint b,a"),
        ("watch p.csv --columns B", "got 'B'; there are", "--columns b", "watch p.csv --columns b"),
        (f"{TABLE} --bins 9999999", "--bins: wanted an integer from 2 to 1,000,000", "--bins 20", f"{TABLE} --bins 20"),
        (f"{TABLE} --columns ''", "--columns '': wanted names", "--columns A,B", f"{TABLE} --columns a,b"),
        (f"{TABLE} --columns a,,b", "got an empty name", "--columns A,B", f"{TABLE} --columns a,b"),
        ("watch p.csv q.csv --columns ''", "an empty name", "--columns A,B", "watch p.csv q.csv --columns a,b"),
        (f"{TABLE} --columns a --weights a", "not for weights", "--columns b", f"{TABLE} --columns b --weights a"),
        (f"{TABLE} --columns a --cluster a", "not for weights", "--columns b", f"{TABLE} --columns b --cluster a"),
        ("watch p.csv --columns a --weights a", "not for weight", "--columns b", "watch p.csv --columns b --weights a"),
        ("compare p.csv q.csv --text text", "P, Q: wanted a model", "--as without --text", TABLE),
        (f"{CONVERT} --n-ctx 20", "SRC: wanted 18 rows", "--all-positions", f"{CONVERT} --n-ctx 20 --all-positions"),
        (f"{CONVERT} --n-ctx 7", "--tokens: wanted whole", "--n-ctx N", f"{CONVERT} --n-ctx 10 --all-positions"),
    ],
)  # fmt: skip
def test_what_an_error_says_to_write_is_an_option_that_works(wrong, words, remedy, right):
    line = one_line(run(wrong), words)
    assert f"Write: {remedy}" in line
    assert not re.search(r"\w+\(\w+=|[a-z]=\[|fixed=|bins=|reshape", line), "it is the library's call"
    assert run(right).exit_code == 0


def test_a_file_of_tokens_is_asked_for_its_own_key():
    pd.DataFrame({"a": np.arange(40) % 8, "b": 0}).to_csv("tokens.csv", index=False)
    line = "convert p.npy o.kld --as logits --tokens tokens.csv --n-ctx 10 --all-positions"
    one_line(run(line), "pass tokens_key= (--tokens-key) with one of: a, b")
    assert run(f"{line} --tokens-key a").exit_code == 0


def test_other_rows_than_all_positions_are_not_told_to_say_all_positions():
    np.save("p.npy", np.zeros((30, 8), "float32"))
    line = one_line(run(f"{CONVERT} --n-ctx 20"), "Write: --tokens FILE")
    assert "--all-positions" not in line


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("line", "columns"),
    [
        *((TABLE, text) for text in ("0", "00", "-5", "abc", "²", "")),
        ("backends", "0"),
        ("pairs Normal", "0"),
    ],
)
def test_a_width_that_is_none_prints_as_without_it(monkeypatch, line, columns):
    monkeypatch.setenv("COLUMNS", columns)
    found = run(line)
    monkeypatch.delenv("COLUMNS")
    assert (found.exit_code, found.stdout) == (0, run(line).stdout)
    assert found.stdout.strip()


def test_a_width_is_kept(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, run(TABLE).stdout.splitlines())) <= 40


def test_a_table_of_weights_alone_says_why_nothing_is_compared():
    for name in ("p", "q"):
        pd.DataFrame({"w": [1.0] * 30}).to_csv(f"{name}.csv", index=False)
    found = json.loads(run(f"{TABLE} --weights w --json").stdout)
    assert [each["code"] for each in found["findings"]] == ["no-common-column"]


@pytest.mark.parametrize(
    ("rows", "classes", "text"),
    [
        (1, 8, "1 row, 8 classes\n"),
        (3, 1, "3 rows, 1 class\n"),
    ],
)
def test_one_is_singular(rows, classes, text):
    for name in ("p", "q"):
        np.save(f"{name}.npy", np.zeros((rows, classes), "float32"))
    np.save("cluster.npy", np.zeros(rows, int))
    printed = run("compare p.npy q.npy --as logits").stdout
    assert text in printed
    assert (
        f"{rows} row{'s' * (rows > 1)} in 1 cluster,"
        in run("compare p.npy q.npy --as logits --cluster cluster.npy").stdout
    )
    full = run("compare p.npy q.npy --as logits --full").stdout
    assert text.replace(", ", ", each a distribution over ") in full
    printed += full
    assert not re.search(r"\b1 (rows|classes|clusters|columns)\b", printed)


def test_a_misspelled_word_and_a_misspelled_metric_get_the_nearest_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("x\n" + "1\n2\n" * 20)
    assert "Write: --as table" in one_line(run("compare a.csv b.csv --as tables"), "--as: wanted one of")
    gate = one_line(
        run("compare a.csv b.csv --as table --fail-above psy=0.2"), "--fail-above psy=0.2: wanted"
    )
    assert gate.endswith(
        "write --fail-above psi=0.2\n" if gate.endswith("\n") else "write --fail-above psi=0.2"
    )
    assert run("compare a.csv b.csv --as table --fail-above psi.value=0.2").exit_code == 0


SPELLINGS = {
    "kl": "kl", "reverse_kl": "reverse_kl", "reverse-kl": "reverse_kl", "Reverse_KL": "reverse_kl",
    "jeffreys": "jeffreys", "js": "js:0.5", "js:0.1": "js:0.1", "skew:0.1": "skew:0.1", "tv": "tv",
    "total-variation": "tv", "hellinger": "hellinger", "chi2": "chi2", "alpha:0.5": "alpha:0.5", "renyi:2": "renyi:2",
}  # fmt: skip


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_kinds_have_the_same_names_on_the_command_line_as_in_the_library(spelling, name, monkeypatch):
    taken = []

    def take(*_: object, kind: object, **__: object) -> None:
        taken.append(kind)
        raise ArgumentValueError("taken")

    monkeypatch.setattr(dispatch, "divergence", lambda p, q, kind, **_: take(kind=kind))
    monkeypatch.setattr(dispatch, "kl_estimate", lambda p, q, **_: take(kind=parse("kl")))
    one_line(run(f"calc 'Normal(0, 1)' 'Normal(0, 1)' --kind {spelling}"), "taken")
    assert taken == [parse(name)]


@pytest.mark.parametrize(
    ("wrong", "remedy"), {"reverse": "reverse_kl", "renyi": "renyi:2", "foo": "kl"}.items()
)
def test_a_kind_that_does_not_exist_is_refused_with_a_remedy_that_works(wrong, remedy):
    line = one_line(run(f"calc 'Poisson(1)' 'Poisson(2)' --kind {wrong}"), "--kind: wanted")
    assert f"Write: --kind {remedy}" in line
    assert run(f"calc 'Poisson(1)' 'Poisson(2)' --kind {remedy}").exit_code == 0
