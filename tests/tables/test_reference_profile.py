"""`kullback watch` and `kullback compare --as table`: what they keep, print and write, and their exit statuses."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from click.testing import CliRunner

from kullback.cli.commands import kullback
from kullback.cli.gates import OF_TABLES, Limit, parse_gate
from kullback.errors import ArgumentValueError, FileError
from kullback.results.verdict import Verdict
from kullback.tables import Profile, profile_table
from kullback.tables.compare_two_tables import compare_tables, corrected_together
from kullback.tables.reference_profile import (
    batch_profile,
    is_profile,
    merge_profiles,
    profile_path,
    reference_profile,
)
from tests.refusals import refused

PRIVATE = "rosebud"
LARGEST = {"js": 0.69, "tv": 1}  # limits that no value of these exceeds; for the others, 1000


def frame(seed: int, rows: int, shift: float) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "number": random.normal(shift, 1, rows),
            "fruit": random.choice(["apple", "pear"], rows, p=[0.5 + shift, 0.5 - shift]),
            "id": [f"{PRIVATE}{value}" for value in random.integers(0, 10**6, rows)],
            "weight": random.integers(1, 4, rows).astype(float),
            "user": random.integers(0, 60, rows),
        }
    )


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A reference, a like batch in two halves, and a shifted one, in the current directory."""
    monkeypatch.chdir(tmp_path)
    frame(0, 2000, 0).to_parquet("reference.parquet")
    like = frame(1, 1500, 0)
    like.to_parquet("like.parquet")
    like[:600].to_parquet("half1.parquet")
    like[600:].to_csv("half2.csv", index=False)
    frame(2, 1500, 0.4).to_json("shifted.ndjson", orient="records", lines=True)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(kullback, [str(argument) for argument in arguments])


def assert_one_line_error(result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("kullback: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


# What is kept


def test_the_reference_is_kept_as_counts_beside_it(files):
    result = run("watch", "reference.parquet")
    assert result.exit_code == 0, result.output
    assert "2,000 rows and 5 columns" in result.stdout
    kept = profile_path("reference.parquet")
    assert kept == Path("reference.parquet.profile.json")
    assert kept.stat().st_size < 50_000
    assert Profile.load(kept).columns["number"] == profile_table("reference.parquet").columns["number"]


def test_the_profile_serves_when_the_reference_is_gone(files):
    run("watch", "reference.parquet", "--profile", "kept.json")
    Path("reference.parquet").unlink()
    for reference in (("reference.parquet", "--profile", "kept.json"), ("kept.json",)):
        result = run("watch", *reference, "like.parquet", "--full")
        assert result.exit_code == 0, result.output
        assert "By column" in result.stdout


def test_a_changed_reference_is_refused_until_it_is_counted_anew(files):
    run("watch", "reference.parquet")
    kept = profile_path("reference.parquet")
    frame(5, 100, 0).to_parquet("reference.parquet")
    os.utime("reference.parquet", (kept.stat().st_mtime + 10,) * 2)
    assert_one_line_error(run("watch", "reference.parquet", "like.parquet"), "has changed", "--rebuild")
    os.utime("reference.parquet", (kept.stat().st_mtime - 10,) * 2)
    assert Profile.load(kept).rows == 2000
    assert run("watch", "reference.parquet", "--rebuild").exit_code == 0
    assert Profile.load(kept).rows == 100


def test_a_kept_profile_has_the_weights_it_was_counted_with(files):
    reference_profile("reference.parquet", weights="weight")
    assert reference_profile("reference.parquet").weights == "weight"
    with refused(ArgumentValueError, wanted="--rebuild"):
        reference_profile("reference.parquet", weights="number")


def test_columns_of_a_kept_profile_can_be_chosen(files):
    reference_profile("reference.parquet")
    kept = reference_profile("reference.parquet", columns=["fruit"])
    assert list(kept.columns) == ["fruit"]
    assert list(batch_profile("like.parquet", kept, columns=["fruit"]).columns) == ["fruit"]
    with refused(FileError, wanted="'nowhere'"):
        reference_profile("reference.parquet", columns=["nowhere"])


def test_what_is_a_profile_and_what_is_not(files):
    run("watch", "reference.parquet")
    assert is_profile("reference.parquet.profile.json")
    assert not any(map(is_profile, ("reference.parquet", "shifted.ndjson", "half2.csv", "nowhere.json")))


def test_a_damaged_profile_is_refused(files):
    run("watch", "reference.parquet")
    kept = profile_path("reference.parquet")
    kept.write_text(kept.read_text()[:500])
    assert_one_line_error(run("watch", "reference.parquet", "like.parquet"), str(kept))


# What is found


def test_a_like_batch_passes_and_a_shifted_one_fails(files):
    gate = ("--fail-above", "psi=0.2", "--columns", "number,fruit,user")
    passed = run("watch", "reference.parquet", "like.parquet", *gate)
    assert passed.exit_code == 0, passed.output
    assert "passed: psi at most 0.2" in passed.stdout
    failed = run("watch", "reference.parquet", "shifted.ndjson", *gate)
    assert failed.exit_code == 1
    assert "FAILED: psi at most 0.2" in failed.stdout
    assert re.search(
        r"gate failed: psi of 'fruit' is [\d.]+, and its interval, .*, is above 0\.2", failed.stderr
    )


def test_identifiers_do_not_seem_to_drift_because_their_profile_is_short(files):
    """A saved profile names 1000 of 2000 identifiers, each once: none of them can be expected in a batch."""
    result = run("watch", "reference.parquet", "like.parquet", "--json")
    ids = next(each for each in json.loads(result.stdout)["columns"] if each["name"] == "id")
    assert (ids["psi"]["value"], ids["psi"]["interval"]) == (None, [0, "Infinity"])
    assert "unnamed-categories" in {each["code"] for each in json.loads(result.stdout)["findings"]}


def test_p_values_are_corrected_for_all_columns_of_all_batches(files):
    batches = ("like.parquet", "half1.parquet", "half2.csv", "shifted.ndjson")
    result = run("watch", "reference.parquet", *batches, "--json", "all.json")
    assert result.stdout.startswith("4 batches; p-values are corrected for all of them.")
    columns = [
        each for batch in json.loads(Path("all.json").read_text())["batches"] for each in batch["columns"]
    ]
    columns = [
        each for each in columns if isinstance(each["p_value"], float) and np.isfinite(each["p_value"])
    ]
    truth = scipy.stats.false_discovery_control([each["p_value"] for each in columns])
    np.testing.assert_allclose([each["p_adjusted"] for each in columns], truth, rtol=1e-12)


@pytest.mark.sweep
def test_at_most_seven_percent_of_months_of_equal_batches_show_a_difference():
    """Each month has 22 batches of 13 columns with uniform p-values, as if P = Q."""
    table = pd.DataFrame({f"c{place}": [0, 1] * 20 for place in range(13)})
    comparison = compare_tables(table, table)
    random = np.random.default_rng(0)
    alone = together = 0
    for _ in range(200):
        month = [
            replace(
                comparison,
                columns=tuple(replace(each, p_value=random.random()) for each in comparison.columns),
            )
            for _ in range(22)
        ]
        alone += any(
            each.p_adjusted < 0.05 for batch in month for each in corrected_together([batch])[0].columns
        )
        together += any(
            each.p_adjusted < 0.05 for batch in corrected_together(month) for each in batch.columns
        )
    assert alone > 100
    assert together <= 14


def test_several_batches_are_checked_one_by_one(files):
    result = run(
        "watch", "reference.parquet", "like.parquet", "shifted.ndjson", "--fail-above", "psi[fruit]=0.2"
    )
    assert result.exit_code == 1
    verdict, *lines = result.stdout.splitlines()
    assert verdict.startswith("Failed: 1 of 2 batches")
    assert [line.partition(": ")[0] for line in lines] == ["like.parquet", "shifted.ndjson"]
    assert [line.split(": ")[1] for line in lines] == ["Passed", "Failed"]
    assert "shifted.ndjson: psi of 'fruit'" in result.stderr
    assert "like.parquet" not in result.stderr


def test_merged_batches_are_the_whole(files):
    names = ["number", "fruit"]
    run("watch", "reference.parquet")
    whole = run(
        "watch", "reference.parquet", "like.parquet", "--json", "whole.json", "--columns", ",".join(names)
    )
    parts = ("half1.parquet", "half2.csv")
    merged = run(
        "watch", "reference.parquet", *parts, "--merge", "--json", "parts.json", "--columns", ",".join(names)
    )
    assert whole.exit_code == merged.exit_code == 0, merged.output
    found = [json.loads(Path(name).read_text()) for name in ("whole.json", "parts.json")]
    assert {each["name"] for each in found[0]["columns"]} == set(names)
    assert found[0]["columns"] == found[1]["columns"]
    assert found[1]["q_name"] == "half1.parquet, half2.csv"


def test_saved_batches_are_merged_like_tables(files):
    for place, batch in enumerate(("half1.parquet", "half2.csv")):
        assert run("watch", "reference.parquet", batch, "--save-batch", f"batch{place}.json").exit_code == 0
    reference = reference_profile("reference.parquet")
    merged = merge_profiles([batch_profile(f"batch{place}.json", reference) for place in (0, 1)])
    whole = batch_profile("like.parquet", reference)
    for name in ("number", "fruit", "user", "weight"):
        assert merged.columns[name] == whole.columns[name]
    result = run("watch", "reference.parquet", "batch0.json", "batch1.json", "--merge", "--full")
    assert result.exit_code == 0, result.output
    assert "1,500 of Q" in result.stdout
    with refused(ArgumentValueError, got="none"):
        merge_profiles([])


def test_a_batch_that_lacks_a_column_is_a_finding(files):
    frame(3, 500, 0).drop(columns="fruit").assign(fresh=1).to_parquet("other.parquet")
    result = run("watch", "reference.parquet", "other.parquet", "--full", "--fail-above", "findings.value=0")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "'fruit' is in P only" in text
    assert "'fresh' is in Q only" in text


def test_the_page_has_no_row_of_the_data(files):
    result = run(
        "watch", "reference.parquet", "like.parquet", "--html", "page.html", "--columns", "number,fruit"
    )
    assert result.exit_code == 0
    assert PRIVATE not in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("like.parquet", "half1.parquet", "--save-batch", "batch.json"), ("--save-batch", "--merge")),
        (("--json",), ("--json", "wanted a batch")),
        (("like.parquet", "--save-batch", "like.parquet"), ("like.parquet", "one of the other files")),
        (
            ("like.parquet", "--html", "reference.parquet"),
            ("reference.parquet", "one of the other files to read"),
        ),
        (("like.parquet", "--save-batch", "nowhere/batch.json"), ("nowhere/batch.json",)),
        (("nowhere.parquet",), ("nowhere.parquet",)),
        (("like.parquet", "--fail-above", "mean=0.1"), ("--fail-above", "psi")),
    ],
)
def test_what_makes_no_sense_is_refused(files, arguments, words):
    assert_one_line_error(run("watch", "reference.parquet", *arguments), *words)
    assert Path("reference.parquet").stat().st_size > 10_000
    assert not Path("page.html").exists()


# compare --as table


def test_compare_gives_what_the_library_gives(files):
    arguments = (
        "reference.parquet",
        "shifted.ndjson",
        "--as",
        "table",
        "--joint",
        "number,fruit",
        "--bins",
        "10",
    )
    result = run(
        "compare", *arguments, "--weights", "weight", "--cluster", "user", "--columns", "fruit", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    expected = compare_tables(
        "reference.parquet",
        "shifted.ndjson",
        ["fruit"],
        joint=[["number", "fruit"]],
        weights="weight",
        cluster="user",
        bins=10,
    )
    assert {each["name"] for each in found["columns"]} == {"fruit", "number"}
    values = {each["name"]: each["psi"]["value"] for each in found["columns"]}
    assert values == {each.name: each.psi.value for each in expected.columns}
    assert found["joint"][0]["columns"] == ["number", "fruit"]
    assert (found["weights"], found["cluster"], found["max_bins"]) == ("weight", "user", 10)


def test_compare_writes_its_page_and_ends_with_the_gate(files):
    arguments = ("reference.parquet", "shifted.ndjson", "--as", "table", "--html", "page.html")
    arguments += ("--columns", "number,fruit")
    assert run("compare", *arguments, "--fail-above", "tv[fruit]=0.6").exit_code == 0
    assert Path("page.html").read_text().startswith("<!doctype html>")
    failed = run("compare", *arguments, "--fail-below", "p_adjusted.value=0.01", "--fail-above", "kl_pq=100")
    assert failed.exit_code == 1
    assert "p_adjusted.value of 'fruit' is" in failed.stderr
    assert "kl_pq" not in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--as", "table", "--key", "x"), ("--key", "predictions")),
        (("--as", "table", "--worst", "3"), ("--worst", "predictions")),
        (("--as", "table", "--labels", "x"), ("--labels", "predictions")),
        (("--as", "table", "--block-mb", "3"), ("--block-mb", "predictions")),
        (("--as", "logits", "--bins", "10"), ("--bins", "--as table")),
        (("--as", "logits", "--weights", "x"), ("--weights", "--as table")),
        (("--as", "logits", "--joint", "a,b"), ("--joint", "--as table")),
        (("--as", "table", "--columns", "nowhere"), ("nowhere", "'number'")),
        (("--as", "table", "--joint", "number"), ("joint", "two or more")),
        (("--as", "table", "--fail-above", "top1=0.1"), ("top1", "psi")),
        (("--as", "table", "--html", "like.parquet"), ("like.parquet",)),
    ],
)
def test_options_of_the_other_comparison_are_refused(files, arguments, words):
    assert_one_line_error(run("compare", "reference.parquet", "like.parquet", *arguments), *words)


def test_a_damaged_table_is_one_line(files):
    Path("cut.parquet").write_bytes(Path("like.parquet").read_bytes()[:3000])
    assert_one_line_error(run("compare", "reference.parquet", "cut.parquet", "--as", "table"), "cut.parquet")


# Gates


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("psi=0.2", Limit("psi", None, 0.2, "above")),
        ("tv[a=b]=1", Limit("tv", "a=b", 1, "above")),
        ("findings.value=0", Limit("findings.value", None, 0, "above")),
        ("p_adjusted.value[x[1]]=1e-3", Limit("p_adjusted.value", "x[1]", 1e-3, "above")),
    ],
)
def test_gates_are_read(text, expected):
    assert parse_gate(text, "above", OF_TABLES).limit == expected


@pytest.mark.parametrize(
    "text",
    ["psi", "psi=", "psi=a", "psi=nan", "psi[]=1", "psi[a=1", "mean=1", "findings.value[a]=1", "findings=1"],
)
def test_bad_gates_are_refused(text):
    with pytest.raises(ArgumentValueError, match="--fail-above"):
        parse_gate(text, "above", OF_TABLES)


def test_where_nothing_was_compared_no_gate_holds():
    found = compare_tables(pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}))
    assert parse_gate("psi=1", "above", OF_TABLES).verdict(found).outcome == "unclear"
    table = pd.DataFrame({"a": [1, 2] * 30})
    found = compare_tables(table, table)
    assert parse_gate("psi[b]=1", "above", OF_TABLES).verdict(found).outcome == "unclear"
    assert parse_gate("psi[a]=1", "above", OF_TABLES).verdict(found).passed


def verdict(text: str, p, q, **settings) -> Verdict:
    found = compare_tables(p, q, generator=torch.Generator().manual_seed(0), **settings)
    return parse_gate(text, "below" if text.startswith("p_") else "above", OF_TABLES).verdict(found)


def unclear(text: str, p, q, **settings) -> tuple[str, ...]:
    found = verdict(text, p, q, **settings)
    assert not found.failures
    return found.unclear


@pytest.mark.parametrize(
    "metric", ["psi", "kl_pq", "kl_qp", "js", "tv", "psi.value", "p_value.value", "p_adjusted.value"]
)
def test_a_gate_that_could_not_look_is_unclear(metric):
    limit = f"{metric}=0" if metric.startswith("p_") else f"{metric}={LARGEST.get(metric, 1000)}"
    before = pd.DataFrame({name: [1, 2] * 60 for name in "abcd"})
    after = before[["a"]]
    assert unclear(limit, before, before) == ()
    assert unclear(limit, before, after) == (f"{metric} is unknown: 'b', 'c', 'd' could not be compared",)
    assert unclear(limit, after, before) == (f"{metric} is unknown: 'b', 'c', 'd' could not be compared",)
    assert unclear(limit, before, after, columns=["a"]) == ()
    assert unclear(limit, before, after, columns=["a", "b"])
    # Of another type, of one that cannot be compared, without rows.
    assert unclear(limit, before, before.assign(b="x")) == (
        f"{metric} is unknown: 'b' could not be compared",
    )
    assert unclear(limit, before, before.assign(b=[[1]] * 120))
    assert unclear(limit, before, before[:0]) == (f"{metric} is unknown: nothing was compared",)
    assert unclear(limit.replace("=", "[b]="), before, after)
    assert unclear(limit.replace("=", "[a]="), before, after) == ()
    # Values of which nothing is known.
    ids = before.assign(d=[f"id {row}" for row in range(120)])
    others = before.assign(d=[f"other {row}" for row in range(120)])
    assert unclear(limit, ids, others) == (
        f"{metric} of 'd' is unknown: most values are too rare to be compared",
    )


def test_a_gate_on_few_rows_is_unclear():
    few = pd.DataFrame({"a": [1.0, 2, 3] * 3})
    (sentence,) = unclear("psi=1000", few, few)
    assert "without an interval (too few independent rows or clusters)" in sentence
    assert unclear("psi.value=1000", few, few) == ()
    same = pd.DataFrame({"a": [1.0] * 9})
    assert unclear("psi=1000", same, same) == ()


def test_a_gate_holds_groups_of_columns_to_its_limit():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 2000))
    before, after = pd.DataFrame({"x": x, "y": x}), pd.DataFrame({"x": y, "y": -y})
    settings = {"joint": [("x", "y")]}
    assert verdict("psi=0.5", before, after).passed
    broken = verdict("psi=0.5", before, after, **settings)
    assert broken.broken_by == ("x,y",)
    assert broken.failures[0].startswith("psi of 'x,y' is ")
    assert verdict("psi[x,y]=0.5", before, after, **settings).failures == broken.failures
    assert verdict("psi[x]=0.5", before, after, **settings).passed
    gone = unclear("psi=1000", before, after[["x"]], **settings)
    assert gone == ("psi is unknown: 'y', 'x,y' could not be compared",)


def test_a_watch_of_a_batch_without_the_columns_is_unclear(files):
    frame(1, 1500, 0)[["number"]].to_parquet("poor.parquet")
    result = run("watch", "reference.parquet", "poor.parquet", "--fail-above", "psi=10")
    assert result.exit_code == 3
    assert "psi is unknown: 'fruit', 'id', 'weight', 'user' could not be compared" in result.stderr
    asked = run("watch", "reference.parquet", "poor.parquet", "--columns", "fruit", "--fail-above", "psi=10")
    assert asked.exit_code == 2


def test_what_is_no_file_is_no_profile(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        assert not is_profile(path)
        with refused(FileError, wanted="a"):
            Profile.load(path)


@pytest.mark.sweep
@pytest.mark.parametrize("cut", [0, 1, 20, 26, 300])
def test_a_profile_cut_anywhere_is_counted_again(files, cut):
    assert run("watch", "reference.parquet").exit_code == 0
    path = profile_path("reference.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    assert_one_line_error(run("watch", "reference.parquet", "like.parquet"), "wanted a profile", "again")
    assert path.read_bytes() == whole[:cut]
    assert run("watch", "reference.parquet", "like.parquet", "--rebuild").exit_code == 0
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"{", b"{}", b"notes", b'{"schema":"kullback.fit/1"}', b"\n"])
def test_only_what_can_be_a_profile_is_replaced(files, content):
    path = profile_path("reference.parquet")
    path.write_bytes(content)
    replaced = run("watch", "reference.parquet", "--rebuild").exit_code == 0
    assert replaced == (content == b"{")
    assert replaced or path.read_bytes() == content
