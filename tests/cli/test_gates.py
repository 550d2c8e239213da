"""Gates: their verdict is in every report, and their exit status stays true when the reader of the output leaves."""

from __future__ import annotations

import json
import math
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import torch
from click.testing import CliRunner, Result

from kullback import Logits, compare_predictions
from kullback.cli.commands import kullback
from kullback.cli.gates import OF_MISMATCH, OF_ROWS, OF_TABLES, Compared, Metrics, Side, parse_gate
from kullback.errors import ArgumentValueError
from kullback.predictions import Comparison
from kullback.tables import compare_tables
from tests.forked import command
from tests.models import folders
from tests.models.tiny import text
from tests.refusals import refused


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

    def outcome(limit: str, side: Side) -> str:
        return parse_gate(limit, side, OF_TABLES).verdict(found).outcome

    between = parse_gate(f"{metric}={inside}", "above", OF_TABLES).verdict(found)
    assert between.outcome == "unclear" == outcome(f"{metric}={inside}", "below")
    assert f"its interval, {low:.6g} to {high:.6g}, contains the limit" in between.unclear[0]
    assert outcome(f"{metric}.value={inside}", "above") == "passed"
    assert outcome(f"{metric}.value[x]={inside}", "above") == "passed"
    assert outcome(f"{metric}.value={inside}", "below") == "failed"
    if high < np.inf:
        assert outcome(f"{metric}={high}", "above") == "passed"
        assert outcome(f"{metric}={high * 1.01}", "below") == "failed"
    assert outcome(f"{metric}={low}", "below") == "passed"
    if low > 0:
        beyond = parse_gate(f"{metric}={low * 0.99}", "above", OF_TABLES).verdict(found)
        assert beyond.outcome == "failed"
        assert f"its interval, {low:.6g} to {high:.6g}, is above" in beyond.failures[0]
        assert beyond.broken_by == ("x",)


def test_few_rows_leave_a_limit_open_and_a_constant_column_passes() -> None:
    few = pa.table({"x": list(range(12))})
    found = compare_tables(few, few)
    assert parse_gate("psi.value=0.2", "above", OF_TABLES).verdict(found).passed
    verdict = parse_gate("psi=0.2", "above", OF_TABLES).verdict(found)
    assert verdict.outcome == "unclear"
    assert "--fail-above psi.value=0.2 checks the estimate alone" in verdict.unclear[0]
    constant = compare_tables(pa.table({"x": [1] * 50}), pa.table({"x": [1] * 50}))
    assert parse_gate("psi=0.2", "above", OF_TABLES).verdict(constant).passed


def summary(value: float, interval: tuple[float, float] | None, reason: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(value=value, interval=interval, reason=reason, minimum=0.1, maximum=1.0, p99=0.9)


@pytest.mark.parametrize(
    ("interval", "limit", "side", "outcome"),
    [
        ((0.2, 0.4), 0.4, "above", "passed"),
        ((0.2, 0.4), 0.3, "above", "unclear"),
        ((0.2, 0.4), 0.1, "above", "failed"),
        ((0.2, np.inf), 0.3, "above", "unclear"),
        ((0.2, np.inf), 0.1, "above", "failed"),
        ((0.2, 0.4), 0.2, "below", "passed"),
        ((0.2, np.inf), 0.2, "below", "passed"),
        ((0.2, 0.4), 0.3, "below", "unclear"),
        ((0.2, 0.4), 0.5, "below", "failed"),
        ((0.2, np.inf), 0.5, "below", "unclear"),
        (None, 0.5, "above", "unclear"),
        ((np.nan, 0.4), 0.5, "above", "unclear"),
    ],
)
def test_the_whole_interval_decides_and_the_estimate_alone_with_value(
    interval: tuple[float, float] | None, limit: float, side: Side, outcome: str
) -> None:
    of = summary(0.3, interval, "few units" if interval is None else None)
    found: Any = SimpleNamespace(divergences={"kl_pq": of}, top1_agreement=of, labels=None, rows=1000)
    for name in ("mean", "kl_pq.mean", "top1"):
        verdict = parse_gate(f"{name}={limit}", side).verdict([Compared(None, found)])
        assert verdict.outcome == outcome, name
        assert len(verdict.sentences) == (outcome != "passed")
        kept = limit >= 0.3 if side == "above" else limit <= 0.3
        alone = parse_gate(f"{name}.value={limit}", side).verdict([Compared(None, found)])
        assert alone.outcome == ("passed" if kept else "failed")
    if interval is None:
        assert "few units" in parse_gate("mean=1", side).verdict([Compared(None, found)]).unclear[0]
    percentile = parse_gate("p99.value=0.95", "above").verdict([Compared(None, found)])
    assert percentile.passed


def test_lower_bounds_leave_open_what_they_do_not_bound() -> None:
    of = summary(0.3, (0.2, np.inf))
    acceptance = summary(0.6, (0.5, 0.8))
    found: Any = SimpleNamespace(
        divergences={"kl_pq": of, "tv": of},
        acceptance_rate=acceptance,
        top1_agreement=acceptance,
        labels=None,
    )
    certain = {"kl_pq": (0.3, np.inf), "tv": (0.3, 0.45)}

    def outcome(limit: str, side: Side) -> str:
        return parse_gate(limit, side).verdict([Compared("model", found, certain)]).outcome

    assert outcome("mean.value=1000", "above") == "unclear"
    assert outcome("mean.value=0.29", "above") == "failed"
    assert outcome("mean.value=0.3", "below") == "passed"
    assert outcome("p99.value=1000", "above") == "unclear"
    assert outcome("p99.value=0.9", "below") == "passed"
    assert outcome("tv.mean.value=0.45", "above") == "passed"
    assert outcome("tv.mean.value=0.4", "above") == "unclear"
    assert outcome("acceptance.value=0.55", "below") == "passed"
    assert outcome("acceptance.value=0.6", "below") == "unclear"
    assert outcome("acceptance.value=0.75", "below") == "failed"
    assert outcome("top1.value=0.6", "below") == "passed"


def test_lower_bounds_of_0_do_not_say_that_the_sides_are_equal() -> None:
    zero = summary(0.0, (0.0, np.inf))
    zero.minimum = zero.maximum = 0.0
    found: Any = SimpleNamespace(rows=9, divergences={"kl_pq": zero}, top1_agreement=summary(math.nan, None))
    for most, limit, outcome in ((np.inf, "mean=0.5", "unclear"), (0.0, "mean=0.5", "passed")):
        compared = Compared("model", found, {"kl_pq": (0.0, most)})
        assert parse_gate(limit, "above").verdict([compared]).outcome == outcome
    (sentence,) = parse_gate("top1=0.9", "below").verdict([Compared(None, found)]).unclear
    assert sentence == "top1 is nan, not a number"  # so top1.value is no remedy


@pytest.mark.parametrize(
    ("metrics", "old", "new"),
    [
        (OF_ROWS, "p99=1", "p99.value=1"),
        (OF_ROWS, "kl_qp.max=1", "kl_qp.max.value=1"),
        (OF_ROWS, "upper=0.1", "mean=0.1"),
        (OF_ROWS, "top1.lower=0.9", "top1=0.9"),
        (OF_ROWS, "tv.upper=0.9", "tv.mean=0.9"),
        (OF_TABLES, "findings=0", "findings.value=0"),
        (OF_TABLES, "p_adjusted[x]=0.1", "p_adjusted.value[x]=0.1"),
        (OF_TABLES, "p_value=0", "p_value.value=0"),
    ],
)
def test_an_old_form_is_refused_with_the_new_one(metrics: Metrics, old: str, new: str) -> None:
    with pytest.raises(ArgumentValueError) as refused:
        parse_gate(old, "above", metrics)
    assert refused.value.instead == f"--fail-above {new}"
    parse_gate(new, "above", metrics)


@pytest.mark.parametrize(
    ("metrics", "side", "text", "wanted", "instead"),
    [
        (OF_ROWS, "above", "mean=-1", "a finite number of 0 or more", "mean=0.01"),
        (OF_ROWS, "above", "mean=0_1", "a finite number of 0 or more", "mean=0.01"),
        (OF_ROWS, "above", "mean=1e400", "a finite number of 0 or more", "mean=0.01"),
        (OF_ROWS, "below", "top1=99", "a finite number from 0 to 1", "top1=0.01"),
        (OF_ROWS, "above", "js.p99.value=0.7", "a finite number from 0 to 0.693147", "js.p99.value=0.01"),
        (OF_ROWS, "above", "labels.delta_prob.min.value=-2", "a finite number from -1 to 1", "=0.01"),
        (OF_TABLES, "above", "tv[x]=20", "a finite number from 0 to 1", r"tv\[x\]=0.2"),
        (OF_TABLES, "below", "p_value.value=5", "a finite number from 0 to 1", "p_value.value=0.2"),
        (OF_MISMATCH, "above", "past=50", "a finite number from 0 to 1", "past=0.001"),
    ],
)
def test_a_limit_that_no_number_reaches_is_refused(
    metrics: Metrics, side: Side, text: str, wanted: str, instead: str
) -> None:
    """Such a gate could never fail, or never pass: the percentage in past=50 would pass every run."""
    with refused(
        ArgumentValueError, wanted=f"^{wanted} after", got=text.rpartition("=")[2], instead=f"{instead}$"
    ) as e:
        parse_gate(text, side, metrics)
    parse_gate(e.value.instead.removeprefix(f"--fail-{side} "), side, metrics)


def test_limits_that_numbers_reach_are_accepted() -> None:
    for limit in (
        "mean=0",
        "top1=1",
        "js.mean=0.6931",
        "labels.difference=-3",
        "ppl_difference=-0.5",
        "ppl_ratio=7",
    ):
        parse_gate(limit, "above")
    parse_gate("k1=-0.1", "above", OF_MISMATCH)


def test_a_limit_is_shown_with_all_its_digits_and_its_column() -> None:
    found = compare_tables(pa.table({"x": [1, 2] * 4}), pa.table({"x": [1, 2, 2, 2] * 2}))
    verdict = parse_gate("psi[x]=0.12345678", "above", OF_TABLES).verdict(found)
    assert verdict.limit == "psi of 'x' at most 0.12345678"
    assert "--fail-above psi.value[x]=0.12345678 checks the estimate alone" in verdict.unclear[0]
    assert parse_gate("psi=1", "above", OF_TABLES).limit.words == "psi at most 1"


def test_an_unclear_gate_has_its_own_status_and_can_be_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, _, _ = SUBJECTS["tables"]
    low, high = compare_tables(folder / "a.csv", folder / "b.csv")["x"].psi.interval
    unclear, broken = f"psi={(low + high) / 2}", f"psi={low / 2}"
    files = [part for kind in ("json", "html", "markdown") for part in (f"--{kind}", f"unclear.{kind}")]
    result = run(folder, monkeypatch, *arguments, "--fail-above", unclear, *files)
    assert result.exit_code == 3
    assert result.stdout.startswith("Cannot tell: 1 of 1 limit unclear")
    assert "kullback: cannot tell: psi of 'x' is " in result.stderr
    gates = json.loads((folder / "unclear.json").read_text())["gates"]
    assert (gates["passed"], gates["outcome"], gates["limits"][0]["outcome"]) == (False, "unclear", "unclear")
    assert '<div class="limit warning"' in (folder / "unclear.html").read_text()
    assert "- ❔ psi at most" in (folder / "unclear.markdown").read_text()
    assert run(folder, monkeypatch, *arguments, "--fail-above", unclear, "--allow-unclear").exit_code == 0
    both = run(
        folder, monkeypatch, *arguments, "--fail-above", unclear, "--fail-above", broken, "--allow-unclear"
    )
    assert both.exit_code == 1
    assert both.stdout.startswith("Failed: 1 of 2 limits broken, 1 unclear")
    batches = run(folder, monkeypatch, "watch", "a.csv", "b.csv", "c.csv", "--fail-above", unclear)
    assert batches.exit_code == 3
    assert batches.stdout.startswith("Cannot tell: 1 of 2 batches.")


def test_the_markdown_of_tables_has_every_column_and_shows_names_as_they_are() -> None:
    from kullback.report import markdown

    names = ["a|b", "<img src=x>", "*c*\n# d", "$x$", *(f"x{place}" for place in range(59))]
    draws = np.random.default_rng(0)
    tables = [pa.table({name: draws.integers(0, 3, size=200) for name in names}) for _ in range(2)]
    found = compare_tables(*tables)
    verdicts = [parse_gate("psi.value[a|b]=0", "above", OF_TABLES).verdict(found)]
    text = markdown.render(found, verdicts)
    assert text.startswith("**Failed: 1 of 1 limit broken. ")
    assert "- ❌ psi.value of 'a\\|b' at most 0: psi.value of 'a\\|b' is" in text
    assert "\n#" not in text
    assert text.count("<") == text.count("\\<") > 0
    assert text.count("$") == text.count("\\$") > 0  # GitHub shows $x$ as a formula
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
    *lines, last = result.stdout.splitlines()[1:]
    assert last == "Written: report.json, report.html, report.markdown"
    assert len(lines) == 2
    for line in lines:
        assert line in page.replace("&#39;", "'").replace("‖", "||")
        assert line in markdown_of.replace("\\", "")


def test_an_unclear_gate_says_about_how_many_rows_would_decide() -> None:
    of = summary(0.3, (0.2, 0.5))
    found: Any = SimpleNamespace(divergences={"kl_pq": of}, top1_agreement=of, labels=None, rows=1000)

    def sentence(limit: float) -> str:
        return parse_gate(f"mean={limit}", "above").verdict([Compared(None, found)]).unclear[0]

    # The upper end is 0.2 away, and the limit 0.1: four times as many. The lower end is 0.1 away, and the limit 0.05.
    assert sentence(0.4).endswith("contains the limit 0.4; about 4,000 rows would decide")
    assert sentence(0.25).endswith("contains the limit 0.25; about 4,000 rows would decide")
    assert sentence(0.3).endswith("contains the limit 0.3")  # no number of rows is known to decide
    of.interval = (0.2, np.inf)
    assert sentence(0.4).endswith("contains the limit 0.4")


def test_more_rows_of_the_same_kind_decide_as_promised() -> None:
    def compared(rows: int) -> Comparison:
        generator = torch.Generator().manual_seed(2)
        p, noise = torch.randn(2, 40_000, 8, generator=generator)[:, :rows]
        return compare_predictions(Logits(p), Logits(p + 0.3 * noise), bootstrap=200, independent=True)

    few = compared(300)
    gate = parse_gate(f"mean={1.05 * few.divergences['kl_pq'].mean}", "above")
    needed = gate.verdict([Compared(None, few)]).unclear[0].partition("about ")[2].partition(" rows")[0]
    rows = int(needed.replace(",", ""))
    assert 300 < rows < 20_000
    assert gate.verdict([Compared(None, compared(2 * rows))]).outcome != "unclear"


@pytest.mark.parametrize(
    ("interval", "value", "limit", "side", "outcome"),
    [
        ((0.002, 0.004), 0.003, 0.01, "above", "passed"),  # the limit is above the floor
        ((0.002, 0.004), 0.003, 0.004, "above", "unclear"),
        ((0.002, 0.004), 0.003, 0.001, "above", "unclear"),
        ((0.006, 0.008), 0.007, 0.001, "above", "failed"),  # clearly above the floor
        ((0.002, 0.004), 0.003, 0.001, "below", "passed"),
    ],
)
def test_a_limit_below_the_noise_floor_is_refused_with_the_smallest_limit_that_can_be_checked(
    interval: tuple[float, float], value: float, limit: float, side: Side, outcome: str
) -> None:
    of = summary(value, interval)
    of.ends = interval
    found: Any = SimpleNamespace(divergences={"kl_pq": of}, top1_agreement=of, labels=None, rows=1000)
    verdict = parse_gate(f"mean={limit}", side).verdict([Compared(None, found, None, 0.005)])
    assert verdict.outcome == outcome
    if outcome == "unclear":
        assert "below the noise floor: rounding alone moves P by 0.005" in verdict.unclear[0]
        remedy = verdict.unclear[0].partition("--fail-above ")[2].split()[0]
        assert parse_gate(remedy, "above").verdict([Compared(None, found, None, 0.005)]).passed
    of.maximum = of.minimum = 0.0  # equal predictions need no limit above the floor
    of.value, of.interval = 0.0, (0.0, 0.0)
    assert parse_gate("mean=0.001", "above").verdict([Compared(None, found, None, 0.005)]).passed
