"""Gates: their verdict is in every report, and their exit status stays true when the reader of the output leaves."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from click.testing import CliRunner, Result

from kullback.cli.commands import kullback
from kullback.cli.gates import parse_table_gate
from kullback.tables import compare_tables
from tests.forked import command
from tests.models import folders
from tests.models.tiny import text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Predictions, tables and a text, each of which differs somewhat from the other of its kind."""
    folder = tmp_path_factory.mktemp("gates")
    draws = np.random.default_rng(0)
    p = draws.normal(size=(400, 5)).astype("float32")
    np.save(folder / "p.npy", p)
    np.save(folder / "q.npy", p + 0.1 * draws.normal(size=p.shape).astype("float32"))
    for name, shift in (("a", 0.0), ("b", 0.3), ("c", 0.0)):
        pa_csv.write_csv(pa.table({"x": draws.normal(shift, size=3000)}), folder / f"{name}.csv")
    (folder / "words.txt").write_text(text()[:3000])
    return folder


# Arguments, a limit that holds and one that does not, of each subject that has gates.
SUBJECTS = {
    "predictions": (("compare", "p.npy", "q.npy", "--as", "logits"), "mean=1", "mean=1e-9"),
    "tables": (("compare", "a.csv", "b.csv", "--as", "table"), "psi=1", "psi=1e-9"),
    "watch": (("watch", "a.csv", "b.csv"), "psi=1", "psi=1e-9"),
    "batches": (("watch", "a.csv", "b.csv", "c.csv"), "psi=1", "psi=0.05"),
    "models": (
        ("compare", "MODEL", "MODEL", "--text", "words.txt", "--context", "48"),
        "mean=1",
        "mean=1e-9",
    ),
}


def arguments_of(subject: str, *limits: str) -> list[str]:
    arguments, _, _ = SUBJECTS[subject]
    if subject == "models":
        pytest.importorskip("transformers")
        names = iter([folders.base(), folders.int8()])
        arguments = tuple(str(next(names)) if each == "MODEL" else each for each in arguments)
    return [*arguments, *(each for limit in limits for each in ("--fail-above", limit))]


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Result:
    monkeypatch.chdir(folder)
    return CliRunner().invoke(kullback, [str(each) for each in arguments])


def unread(folder: Path, arguments: list[str]) -> tuple[int, str]:
    """Run with a standard output whose reader has left; return the exit status and standard error."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        said = running.stderr.read()
        return running.wait(), said


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("subject", "printed"),
    [*((subject, "table") for subject in SUBJECTS), ("predictions", "json"), ("tables", "json")],
)
def test_the_status_of_a_gate_does_not_depend_on_who_reads_the_output(
    folder: Path, subject: str, printed: str
) -> None:
    _, holds, breaks = SUBJECTS[subject]
    more = ["--json"] if printed == "json" else []
    for limits in ([], [holds]) if printed == "table" and subject != "models" else ([holds],):
        assert unread(folder, [*arguments_of(subject, *limits), *more]) == (0, "")
    code, said = unread(folder, [*arguments_of(subject, holds, breaks), *more])
    assert code == 1
    assert said.count("kullback: gate failed: ") == len(said.splitlines()) > 0


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [["calc", "Normal(0, 1)", "Normal(1, 1)"], ["pairs"], ["backends"]])
def test_commands_without_gates_have_the_status_of_a_closed_pipe(folder: Path, arguments: list[str]) -> None:
    assert unread(folder, arguments) == (141, "")


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full")
@pytest.mark.parametrize("subject", ["predictions", "tables", "batches"])
def test_a_full_disk_is_no_reader_who_has_left(folder: Path, subject: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command(*arguments_of(subject)), stdout=full, stderr=subprocess.PIPE, cwd=folder, check=False
        )
    assert done.returncode == 2
    assert b"No space left" in done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("subject", [each for each in SUBJECTS if each != "batches"])
def test_the_verdict_comes_first_in_every_report(
    folder: Path, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, holds, breaks = SUBJECTS[subject]
    kinds = "json", "html", "markdown"
    for limits, code in (((holds,), 0), ((holds, breaks), 1)):
        files = [part for kind in kinds for part in (f"--{kind}", f"report.{kind}")]
        result = run(folder, monkeypatch, *arguments_of(subject, *limits), *files)
        assert result.exit_code == code, result.output
        verdict = "Passed: 1 limit" if code == 0 else "Failed: 1 of 2 limits broken"
        reports = {kind: (folder / f"report.{kind}").read_text() for kind in kinds}
        gates = json.loads(reports["json"])["gates"]
        assert gates["passed"] == (code == 0)
        assert [each["passed"] for each in gates["limits"]] == [True, False][: len(limits)]
        assert result.stdout.startswith(verdict)
        assert f'<h1 class="outcome {"bad" if code else "good"}">{verdict}' in reports["html"]
        assert reports["html"].count('<div class="limit good"') == 1
        assert reports["html"].count('<div class="limit bad"') == code
        assert reports["markdown"].startswith(f"**{verdict}")
        for failure in gates["limits"][-1]["failures"]:
            assert f"kullback: gate failed: {failure}" in result.stderr
            assert failure.replace("'", "&#39;") in reports["html"]
            assert failure.split(" is ")[1] in reports["markdown"].replace("\\", "")
    result = run(folder, monkeypatch, *arguments_of(subject), "--json", "report.json")
    assert "gates" not in json.loads((folder / "report.json").read_text())
    assert not result.stdout.startswith(("Passed", "Failed"))


def test_the_verdict_of_all_batches_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, holds, breaks = SUBJECTS["batches"]
    passed = run(folder, monkeypatch, *arguments_of("batches", holds)).stdout.splitlines()
    assert passed[0] == "Passed: 2 batches."
    failed = run(folder, monkeypatch, *arguments_of("batches", holds, breaks)).stdout.splitlines()
    assert failed[0] == "Failed: 1 of 2 batches."
    assert [line.partition(". ")[0] for line in failed[1:]] == [
        "b.csv: Failed: 1 of 2 limits broken",
        "c.csv: Passed: 2 limits",
    ]


@pytest.mark.sweep
def test_a_candidate_that_fails_is_named_though_another_is_the_closest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    arguments = [folders.base(), folders.int8(), folders.bf16(), "--text", "words.txt", "--context", 48]
    files = ["--html", "page.html", "--json", "page.json", "--markdown", "page.md"]
    result = run(folder, monkeypatch, "compare", *arguments, *files, "--fail-above", "mean=0.001")
    assert result.exit_code == 1
    (limit,) = json.loads((folder / "page.json").read_text())["gates"]["limits"]
    assert limit["broken_by"] == [str(folders.int8())]
    sentence = f"{folders.int8()}: mean is"
    assert limit["failures"][0].startswith(sentence)
    for name in ("page.html", "page.md"):
        assert sentence in (folder / name).read_text().replace("\\", "")
    assert f"gate failed: {sentence}" in result.stderr
    assert f"FAILED: mean at most 0.001: '{folders.int8()}'" in result.stdout
    full = run(folder, monkeypatch, "compare", *arguments, "--full", "--fail-above", "mean=0.001")
    assert sentence in full.stdout.replace("\n", "")


def test_a_watch_without_a_batch_cannot_pass_a_gate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(folder, monkeypatch, "watch", "a.csv", "--fail-above", "psi=0.2")
    assert result.exit_code == 2
    assert "Write: kullback watch P Q --fail-above psi=0.2" in result.stderr
    assert run(folder, monkeypatch, "watch", "a.csv", "c.csv", "--fail-above", "psi=0.2").exit_code == 0


@pytest.mark.parametrize("metric", ["psi", "kl_pq", "kl_qp", "js", "tv"])
@pytest.mark.parametrize("rows", [60, 600, 6000])
def test_a_limit_on_a_divergence_holds_for_the_end_of_its_interval(metric: str, rows: int) -> None:
    draws = np.random.default_rng(rows)
    found = compare_tables(
        pa.table({"x": draws.normal(size=rows)}), pa.table({"x": draws.normal(0.7, size=rows)}), bins=3
    )
    quantity = getattr(found["x"], metric)
    low, high = quantity.interval
    assert low < quantity.value < high
    inside = (quantity.value + min(high, 2 * quantity.value)) / 2
    above, below = (parse_table_gate(f"{metric}={inside}", side) for side in ("above", "below"))
    assert "upper end of its interval" in above.verdict(found).failures[0]
    assert below.verdict(found).failures
    assert not parse_table_gate(f"{metric}.value={inside}", "above").verdict(found).failures
    assert not parse_table_gate(f"{metric}.value[x]={inside}", "above").verdict(found).failures
    assert parse_table_gate(f"{metric}.value={inside}", "below").verdict(found).failures
    if high < np.inf:
        assert not parse_table_gate(f"{metric}={high}", "above").verdict(found).failures
    assert not parse_table_gate(f"{metric}={low}", "below").verdict(found).failures
    if low > 0:
        least = parse_table_gate(f"{metric}={(low + quantity.value) / 2}", "below").verdict(found)
        assert "lower end of its interval" in least.failures[0]


def test_a_limit_that_the_data_do_not_reach_fails() -> None:
    few = pa.table({"x": list(range(12))})
    found = compare_tables(few, few)
    assert parse_table_gate("psi.value=0.2", "above").verdict(found).failures
    assert parse_table_gate("psi=0.2", "above").verdict(found).failures
    constant = compare_tables(pa.table({"x": [1] * 50}), pa.table({"x": [1] * 50}))
    assert not parse_table_gate("psi=0.2", "above").verdict(constant).failures


def test_the_markdown_of_tables_has_every_column_and_shows_names_as_they_are() -> None:
    from kullback.report import markdown

    names = ["a|b", "<img src=x>", "*c*\n# d", *(f"x{place}" for place in range(60))]
    draws = np.random.default_rng(0)
    tables = [pa.table({name: draws.integers(0, 3, size=200) for name in names}) for _ in range(2)]
    found = compare_tables(*tables)
    verdicts = [parse_table_gate("psi[a|b]=0", "above").verdict(found)]
    text = markdown.render(found, verdicts)
    assert text.startswith("**Failed: 1 of 1 limit broken. ")
    assert "- ❌ psi of 'a\\|b' at most 0: psi of 'a\\|b' is" in text
    assert "\n#" not in text
    assert text.count("<") == text.count("\\<") > 0
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 40
    assert "23 rows more in the JSON and on the page." in text
    whole = markdown.render(compare_tables(*(each.select(names[:5]) for each in tables)))
    assert sum(line.startswith("| ") for line in whole.splitlines()) == 2 + 5


def test_a_saved_profile_is_of_one_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = run(folder, monkeypatch, "watch", "a.csv", "b.csv", "c.csv", "--save-batch", "out")
    assert several.exit_code == 2
    assert "--save-batch: wanted one batch; got 2" in several.stderr
    assert not (folder / "out").exists()


def test_the_reports_of_several_batches_have_each_with_its_gates(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, holds, breaks = SUBJECTS["batches"]
    files = [part for kind in ("json", "html", "markdown") for part in (f"--{kind}", f"report.{kind}")]
    result = run(folder, monkeypatch, *arguments_of("batches", holds, breaks), *files)
    assert result.exit_code == 1
    json_of, page, markdown_of = ((folder / name).read_text() for name in files[1::2])
    written = json.loads(json_of)
    assert written["schema"] == "kullback.batches/1"
    assert [each["q_name"] for each in written["batches"]] == ["b.csv", "c.csv"]
    assert [each["passed"] for each in written["gates"]["limits"]] == [True, False, True, True]
    for failure in (each for limit in written["gates"]["limits"] for each in limit["failures"]):
        assert failure.startswith("b.csv: ")
        assert f"kullback: gate failed: {failure}" in result.stderr
        assert failure.replace("'", "&#39;") in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]+)"', page))
    assert links <= set(ids)
    assert len(links) > 0
    for line in result.stdout.splitlines()[1:]:
        assert line in page.replace("&#39;", "'").replace("‖", "||")
        assert line in markdown_of.replace("\\", "")
