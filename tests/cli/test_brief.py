"""`kullback compare` prints the numbers that decide in at most 12 lines; `--full` prints the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from rich.cells import cell_len

from kullback.cli.commands import kullback
from tests.models import folders
from tests.models.tiny import text

ROWS, CLASSES = 300, 12
WIDTHS = pytest.mark.parametrize("width", [80, 60])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of predictions, labels, clusters, tokens, and two tables."""
    folder = tmp_path_factory.mktemp("brief")
    random = np.random.default_rng(0)
    p = random.normal(size=(ROWS, CLASSES))
    np.save(folder / "p.npy", p)
    np.save(folder / "q.npy", p + 0.02 * random.normal(size=p.shape))
    np.save(folder / "labels.npy", random.integers(0, CLASSES, ROWS))
    np.save(folder / "documents.npy", np.repeat(np.arange(30), 10))
    (folder / "tokens.json").write_text(json.dumps([f" wörter{i}" * (1 + i % 3) for i in range(CLASSES)]))
    before = pd.DataFrame({f"column_{i}": random.normal(size=400) for i in range(5)})
    after = before.sample(300, random_state=1).add([0.0, 0.3, 1.0, 0.0, 2.0])
    before.to_csv(folder / "before.csv", index=False)
    after.to_csv(folder / "after.csv", index=False)
    (folder / "words.txt").write_text(text()[:3000])
    return folder


def run(folder: Path, *arguments: object, width: int = 80, command: str = "compare") -> Result:
    names = [str(folder / each) if (folder / str(each)).exists() else str(each) for each in arguments]
    result = CliRunner().invoke(kullback, [command, *names], env={"COLUMNS": str(width)})
    assert result.exit_code in (0, 1), result.output
    return result


def lines(result: Result, width: int) -> list[str]:
    """Return what was printed, which has to fit."""
    printed = [line.rstrip() for line in result.stdout.splitlines()]
    assert len(printed) <= 12, result.stdout
    assert max(map(cell_len, printed)) <= width, result.stdout
    return printed


def numbers(folder: Path, *arguments: object) -> dict:
    return json.loads(run(folder, *arguments, "--json").stdout)


PREDICTIONS = ("p.npy", "q.npy", "--as", "logits", "--labels", "labels.npy", "--cluster", "documents.npy")


@pytest.mark.sweep
@WIDTHS
def test_predictions(data: Path, width: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    limits = ("--fail-above", "mean=1e-5", "--fail-below", "top1=0.5")
    printed = lines(run(data, *PREDICTIONS, *limits, "--html", "x.html", width=width), width)
    exact = numbers(data, *PREDICTIONS)
    kl, same = exact["divergences"]["kl_pq"], exact["top1_agreement"]
    assert 1e-6 < kl["mean"] < 1e-3
    assert printed[0] == "Failed: 1 of 2 limits broken"
    assert printed[1].startswith("FAILED: mean at most 1e-05")
    assert printed[2] == "passed: top1 at least 0.5"
    low, high = (f"{1e6 * end:.0f}" for end in kl["interval"])
    mean = next(line for line in printed if line.startswith("mean KL(P||Q)"))
    assert re.sub(" +", " ", mean) == f"mean KL(P||Q) {1e6 * kl['mean']:.0f} µnat 95% CI {low} to {high} µnat"
    top = next(line for line in printed if line.startswith("same top class"))
    assert f"{100 * same['value']:.2f}%" in top
    for row in exact["worst"][:3]:
        by_p = max(row["top"], key=lambda each: each["p"])
        by_q = max(row["top"], key=lambda each: each["q"])
        start = f"{row['row']} {1e6 * row['kl']:,.0f} µnat {by_p['index']} ({by_p['p']:.3f}) {by_q['index']}"
        (line,) = (each for each in printed if each.startswith(f"{row['row']} "))
        assert re.sub(" +", " ", line).startswith(start)
    assert printed[-1] == "Page: x.html   More: --full (all numbers, 2 notes)"


@WIDTHS
def test_predictions_with_tokens(data: Path, width: int) -> None:
    printed = lines(run(data, *PREDICTIONS, "--tokens", "tokens.json", width=width), width)
    assert any("␣wört" in line for line in printed)


@pytest.mark.sweep
@WIDTHS
def test_tables(data: Path, width: int) -> None:
    arguments = ("before.csv", "after.csv", "--as", "table")
    printed = lines(run(data, *arguments, "--fail-above", "psi=0.2", width=width), width)
    exact = numbers(data, *arguments)["columns"]
    assert printed[0] == "Failed: 1 of 1 limit broken"
    assert printed[1] == "FAILED: psi at most 0.2: 'column_4' and 1 more"
    assert "3 of 5 columns differ, 2 of them by a large shift." in printed
    for column in exact[:3]:
        psi, ends = column["psi"]["value"], column["psi"]["interval"]
        (line,) = (each for each in printed if each.startswith(f"{column['name']} "))
        assert f"{psi:.3f}" in line
        assert f"{ends[0]:.3f} to " in line
    assert printed[-1].startswith("More: --full (all numbers")


@pytest.mark.sweep
def test_one_batch_prints_what_compare_prints(data: Path, tmp_path: Path) -> None:
    tables = ("before.csv", "after.csv")
    profile = ("--profile", str(tmp_path / "profile.json"), "--no-progress")
    compared, watched = run(data, *tables, "--as", "table"), run(data, *tables, *profile, command="watch")
    assert lines(watched, 80) == lines(compared, 80)
    full = run(data, *tables, *profile, "--full", command="watch").stdout
    assert full == run(data, *tables, "--as", "table", "--full").stdout
    several = run(data, *tables, "after.csv", *profile, command="watch").stdout
    assert len(several.splitlines()) == 3
    assert several.startswith("2 batches; p-values are corrected for all of them.")
    week = str(tmp_path / "week.html"), str(tmp_path / "week.json")
    files = ("--html", week[0], "--json", week[1])
    written = run(data, *tables, "after.csv", *profile, *files, command="watch").stdout
    assert written == f"{several}Written: {week[1]}, {week[0]}\n"
    whole = run(data, *tables, "after.csv", *profile, "--full", command="watch").stdout
    assert whole.startswith(several)
    assert whole.count("\nBy column\n") == 2


@pytest.mark.sweep
@WIDTHS
@pytest.mark.parametrize("several", [False, True])
def test_models(data: Path, width: int, several: bool) -> None:
    pytest.importorskip("transformers")
    models = [folders.base(), folders.int8()] + [folders.bf16()] * several
    arguments = (*models, "--text", "words.txt", "--context", 48)
    printed = lines(run(data, *arguments, "--fail-above", "mean=1", width=width), width)
    best = numbers(data, *arguments)["candidates"][0]["comparison"]
    mean = best["divergences"]["kl_pq"]["mean"]
    shown = f" {1e6 * mean:.0f} µnat " if mean < 1e-3 else f" {1e3 * mean:.2f} mnat "
    assert any(shown in line for line in printed)
    worst = printed.index(next(line for line in printed if line.startswith("text [token]")))
    assert len([line for line in printed[worst + 1 :] if re.search(r"\[.*\].* µnat|mnat", line)]) == 3
    if several:
        assert any(line.startswith("closest first") for line in printed)
        assert [line for line in printed if "bf16" in line] != []


def test_full_has_every_table_and_note(data: Path) -> None:
    full = run(data, *PREDICTIONS, "--full").stdout
    for title in ("The worst rows", "Divergence of a row", "The k top classes", "The true class", "note: "):
        assert title in full
    assert len(full.splitlines()) > 60


@WIDTHS
def test_many_limits_and_long_names_leave_room_for_the_numbers(tmp_path: Path, width: int) -> None:
    name = "a_column_with_a_name_that_is_longer_than_any_terminal_would_like_it_to_be_" + "x" * 30
    for file, shift in (("before.csv", 0.0), ("after.csv", 1.0)):
        values = np.random.default_rng(int(shift)).normal(size=300) + shift
        pd.DataFrame({name: values, "y": values}).to_csv(tmp_path / file, index=False)
    limits = [
        ("--fail-above", f"{metric}={limit}")
        for metric in ("js", "tv", "p_value.value")
        for limit in (0.69, 0.001, 0.68)
    ]
    arguments = [each for limit in limits for each in limit]
    printed = lines(run(tmp_path, "before.csv", "after.csv", "--as", "table", *arguments, width=width), width)
    assert printed[0] == "Failed: 2 of 9 limits broken; --full lists them"
    assert any(re.match(r"a_co\w*…x+ ", line) for line in printed)
    assert sum(line.startswith("FAILED") for line in printed) == 2


def test_infinite_and_equal_predictions_say_so(tmp_path: Path) -> None:
    probs = np.full((40, 4), 0.25)
    np.save(tmp_path / "p.npy", probs)
    probs[3] = [0.0, 0.5, 0.25, 0.25]
    np.save(tmp_path / "q.npy", probs)
    printed = lines(run(tmp_path, "p.npy", "q.npy", "--as", "probs"), 80)
    assert "Q gives probability 0 and P does not in 1 row." in printed
    assert any(line.startswith("mean KL(P||Q)") and "inf nat" in line for line in printed)
    equal = lines(run(tmp_path, "p.npy", "p.npy", "--as", "probs"), 80)
    assert any(re.match(r"mean KL\(P\|\|Q\) +0 nat ", line) for line in equal)
    assert not any(line.startswith("worst row") for line in equal)


@WIDTHS
def test_a_column_of_texts_shows_the_psi_of_its_words(tmp_path: Path, width: int) -> None:
    random = np.random.default_rng(3)
    for name, words in (("before", ["alpha", "beta", "gamma"]), ("after", ["alpha", "beta", "delta"])):
        texts = [" ".join(random.choice(words, 12)) for _ in range(600)]
        pd.DataFrame({"comment": texts}).to_csv(tmp_path / f"{name}.csv", index=False)
    arguments = ("before.csv", "after.csv", "--as", "table")
    printed = lines(run(tmp_path, *arguments, width=width), width)
    psi = numbers(tmp_path, *arguments)["columns"][0]["words"]
    assert psi > 1
    assert any(
        line.split()[:6] == ["comment", "large", "shift", f"{psi:.3f}", "of", "words"] for line in printed
    )
