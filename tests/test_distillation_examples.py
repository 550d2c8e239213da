"""The distillation examples run, and what the documentation says of them is what their committed results hold."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "tutorial" / "distillation.md"
NAMES = ("digits", "byte_model")
FEWEST_SEEDS = {"digits": 5, "byte_model": 3}
BASELINE = "hard labels"


def load(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def assert_results_are_whole(folder: Path, name: str) -> None:
    """The file holds every way at every amount, and its summaries are those of the values it holds."""
    results = load(folder, name)
    assert (results["schema"], results["example"]) == ("kullback.distillation_example/1", name)
    rows = {(row["amount"], row["way"]): row for row in results["outcomes"]}
    assert {way for _, way in rows} == set(results["ways"])
    assert len(rows) == len(results["outcomes"]) == len({amount for amount, _ in rows}) * len(results["ways"])
    for (amount, _), row in rows.items():
        baseline = rows[amount, BASELINE]["values"]
        differences = [x - y for x, y in zip(row["values"], baseline, strict=True)]
        for summary, values in ((row["reached"], row["values"]), (row["difference"], differences)):
            assert len(values) == results["seeds"]
            error = statistics.stdev(values) / math.sqrt(len(values))
            assert summary["mean"] == pytest.approx(statistics.mean(values), abs=1e-9)
            assert summary["standard_error"] == pytest.approx(error, abs=1e-9)


def assert_plot_shows(folder: Path, name: str) -> None:
    drawing = ET.parse(folder / f"{name}.svg").getroot()  # noqa: S314 - our own file
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(drawing.itertext())
    for way in load(folder, name)["ways"]:
        assert way in words


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs_and_writes_its_results(name, tmp_path):
    command = [sys.executable, str(EXAMPLES / f"distil_{name}.py"), "--quick", "--out", str(tmp_path)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # other tests share the cores
    done = subprocess.run(command, env=one_thread, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.json", f"{name}.svg"}
    assert_results_are_whole(tmp_path, name)
    assert_plot_shows(tmp_path, name)
    printed = [line for line in done.stdout.splitlines() if "±" in line]
    assert len(printed) == len(load(tmp_path, name)["outcomes"])


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_results_are_those_of_a_full_run(name):
    assert_results_are_whole(EXAMPLES / "results", name)
    assert_plot_shows(EXAMPLES / "results", name)
    assert load(EXAMPLES / "results", name)["seeds"] >= FEWEST_SEEDS[name]


def tables() -> list[tuple[str, list[list[str]]]]:
    """The page's tables of results: the example's name, and the cells of each row below the header."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"<!-- results: (\w+) -->\n\n((?:\|.*\n)+)", text)
    return [
        (name, [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]])
        for name, table in found
    ]


def test_the_page_shows_the_results_of_both_examples():
    assert sorted(name for name, _ in tables()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_of_the_page_are_those_of_the_results(name):
    digits = {"digits": 1, "byte_model": 3}[name]

    def shown(x: dict[str, float], sign: str = "") -> str:
        return f"{x['mean']:{sign}.{digits}f} ± {x['standard_error']:.{digits}f}".replace("-", "−")

    expected = [
        [
            f"{row['amount']:,}",
            row["way"],
            shown(row["reached"]),
            "" if row["way"] == BASELINE else shown(row["difference"], "+"),
        ]
        for row in load(EXAMPLES / "results", name)["outcomes"]
    ]
    assert dict(tables())[name] == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_how_good_and_how_large_the_models_are(name):
    results = load(EXAMPLES / "results", name)
    text = PAGE.read_text(encoding="utf-8")
    for parameters in results["parameters"].values():
        assert f"{parameters:,}" in text
    teacher = results["teacher"]
    said = f"{teacher['mean']:.1f} %" if isinstance(teacher, dict) else f"{teacher:.3f} nats"
    assert said in text
