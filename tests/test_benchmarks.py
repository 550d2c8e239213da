"""The benchmarks measure what they say, and their page says what was measured."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.oracles.pairs import PAIRS

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "benchmarks"
FIRST_PARTS = ("KL", "reverse KL", "JS")


@pytest.fixture(autouse=True)
def _scripts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def true_value(kind: str, student: Tensor, teacher: Tensor) -> Tensor:
    """The mean over rows by the definition, from probabilities in float64."""
    q, p = (x.double().softmax(-1) for x in (student, teacher))
    m = (p + q) / 2

    def kl(a: Tensor, b: Tensor) -> Tensor:
        return (a * (a / b).log()).sum(-1).mean()

    return {"KL": kl(p, q), "reverse KL": kl(q, p), "JS": (kl(p, m) + kl(q, m)) / 2}[kind]


def entropy(teacher: Tensor) -> Tensor:
    p = teacher.double().softmax(-1)
    return -(p * p.log()).sum(-1).mean()


def row_losses() -> list[str]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return list(script("peers").ROW_LOSSES)
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("name", [x for x in row_losses() if "compile" not in x])
def test_a_peer_computes_the_divergence_it_is_named_after(name: str) -> None:
    student, teacher = torch.randn(2, 6, 50)
    kind = name.split(":", maxsplit=1)[0]
    student.requires_grad_()
    value = script("peers").ROW_LOSSES[name](student, teacher)
    (found,) = torch.autograd.grad(value, student)
    truth = true_value(kind, student, teacher)
    (wanted,) = torch.autograd.grad(truth, student)
    if name == "KL: torchtune":
        truth = truth + entropy(teacher)
    torch.testing.assert_close(value.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_compiled_peers_compile_the_eager_ones() -> None:
    assert {f"{kind}: torch.compile" for kind in ("KL", "JS")} <= set(script("peers").ROW_LOSSES)
    assert {name.split(":")[0] for name in script("peers").ROW_LOSSES} == set(FIRST_PARTS)


def test_the_two_sample_test_keeps_its_size_and_is_never_far_behind_the_best_of_the_others() -> None:
    """As measured: the size within three binomial errors, the power at most ten points behind."""
    page, document = script("render_samples"), json.loads((SCRIPTS / "results/two_sample.json").read_text())
    assert len(document["rows"]) >= 30
    for row in document["rows"]:
        assert row["repetitions"] >= 200
        if row["equal"]:
            level = document["level"]
            error = (level * (1 - level) / row["repetitions"]) ** 0.5
            assert row["rejects"]["ours"] <= level + 3 * error, row["case"]
        else:
            assert row["rejects"]["ours"] >= page.best_peer(row) - 0.1, row["case"]


@pytest.mark.parametrize("rows", [3, 300])
def test_the_losses_of_heads_are_the_kl_of_their_logits(rows: int) -> None:
    case = {"rows": rows, "classes": 20, "hidden": 8, "dtype": "float32"}
    head, peers = script("bench_head"), script("peers")
    for loss in (head.ours, peers.materialized, peers.trl_chunked):
        torch.manual_seed(0)
        h, weight, teacher_h, teacher_weight = head.tensors(case)
        value = loss(h, weight, teacher_h, teacher_weight)
        found = torch.autograd.grad(value, (h, weight))
        truth = true_value("KL", h @ weight.T, teacher_h @ teacher_weight.T)
        wanted = torch.autograd.grad(truth, (h, weight))
        torch.testing.assert_close(value.double(), truth, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_the_losses_of_heads_and_top_classes_are_kl_of_merged_classes() -> None:
    case = {"rows": 3, "classes": 20, "hidden": 8, "dtype": "float32"}
    h, weight, *_ = script("bench_head").tensors(case)
    indices, log_probs = script("bench_head_top_k").top_k(case)
    indices, log_probs = indices[:, :5], log_probs[:, :5]
    value = script("peers").materialized_top_k(h, weight, indices, log_probs)
    p, q = log_probs.double().exp(), (h @ weight.T).double().softmax(-1).gather(-1, indices)
    p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p, q))
    torch.testing.assert_close(value.double(), (p * (p / q).log()).sum(-1).mean(), rtol=1e-5, atol=1e-6)
    shapes = [x.shape for x in script("peers").student_products(h, weight)]
    assert shapes == [h.shape, weight.shape]


def test_the_products_are_those_of_the_gradients_shapes() -> None:
    arguments = script("bench_head").tensors({"rows": 3, "classes": 7, "hidden": 4, "dtype": "float32"})
    shapes = [x.shape for x in script("peers").products(*arguments)]
    assert shapes == [arguments[0].shape, arguments[1].shape]


@pytest.mark.parametrize("inplace", [False, True])
def test_a_step_computes_the_gradient_of_the_students_logits(inplace: bool) -> None:
    rows = script("bench_rows")
    original, teacher = rows.logits({"rows": 4, "classes": 9, "dtype": "float32"})
    student = torch.empty_like(original)
    step = rows.stepper(rows.ours(rows.KINDS["KL"], inplace=inplace), student, teacher, original)
    step.prepare()
    value = step.run()
    leaf = original.clone().requires_grad_()
    truth = true_value("KL", leaf, teacher)
    (wanted,) = torch.autograd.grad(truth, leaf)
    torch.testing.assert_close(value.double(), truth, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(student, wanted if inplace else original)


def test_the_steps_take_turns_after_a_warm_up_and_only_the_run_is_timed() -> None:
    timing = script("timing")
    calls: list[str] = []
    steps = {
        name: timing.Step(lambda n=name: calls.append(n), lambda n=name: calls.append(f"before {n}"))
        for name in ("a", "b")
    }
    times = timing.interleave(steps, least=3, most=3, seconds=0, warm_up=1)
    assert calls == ["before a", "a", "before b", "b"] * 4
    assert {name: len(x) for name, x in times.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 2), (60.0, 5)])
def test_the_rounds_end_with_the_time_but_not_before_the_least(seconds: float, rounds: int) -> None:
    timing = script("timing")
    times = timing.interleave({"a": timing.Step(lambda: None)}, least=2, most=5, seconds=seconds)
    assert len(times["a"]) == rounds


def test_a_summary_is_the_median_and_the_quartiles() -> None:
    found = script("timing").summarize([5.0, 1.0, 2.0, 3.0, 4.0])
    assert found == {"median": 3.0, "low": 2.0, "high": 4.0, "rounds": 5}


def made(bytes_: float = 0) -> dict[str, dict[str, object]]:
    """Results of three steps: ours takes 1 ms."""
    milliseconds = {"KL: kullback": 1.0, "KL: eager": 5.0, "KL: torch.compile": 1.9, "clone": 0.7}
    return {
        name: {"median": x / 1e3, "low": x / 1e3, "high": x / 1e3, "rounds": 7, "extra_bytes": bytes_}
        for name, x in milliseconds.items()
    }


def document() -> dict[str, object]:
    case = {"rows": 10, "classes": 1_000_000, "dtype": "float32"}
    return {
        "schema": script("timing").SCHEMA,
        "benchmark": "rows",
        "quick": False,
        "machine": script("timing").machine(),
        "notes": ["A note."],
        "cases": [{"case": case, "steps": made(bytes_=50e6)}],
    }


def test_a_target_is_met_exactly_when_the_numbers_say_so() -> None:
    found = {x.target: (x.found, x.met) for x in script("targets").judge([document()])}
    assert found == {
        "KL against eager torch": ("5.00×", True),
        "KL against torch.compile": ("1.90×", False),
        "KL against cloning one input": ("1.43×", True),
        "KL, memory beyond one gradient": ("10.0 MB", False),
    }


def test_the_page_shows_the_numbers_the_machine_and_the_targets_that_were_missed(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(document()))
    page = script("render").page(tmp_path)
    assert "2 of 4 are met" in page
    assert "| KL against torch.compile | 10 × 1000000, float32 | ≥ 2× | 1.90× | **no** |" in page
    assert f"torch {torch.__version__}" in page
    assert "A note." in page


@pytest.mark.sweep
def test_a_plot_is_the_same_file_from_the_same_numbers(tmp_path: Path) -> None:
    paths = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in paths:
        script("plots").plot_rows(document(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert "milliseconds" in paths[0].read_text()


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["head", "head_top_k"])
def test_a_benchmark_leaves_results_of_the_schema_and_its_page_can_be_made_of_them(
    tmp_path: Path, name: str
) -> None:
    command = [sys.executable, str(SCRIPTS / f"bench_{name}.py"), "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert_schema(result)
    assert result["quick"]
    page = script("render").page(tmp_path)
    assert all(name in page for name in result["cases"][0]["steps"])
    script("plots").plot_head(result, tmp_path / "head.svg")


def test_the_growth_of_a_time_is_the_slope_of_its_logarithm() -> None:
    times = [{"wall": 1.0, "processor": x} for x in (3e-3, 1e-2, 2e-1)]
    row = {"name": "a call", "along": "draws", "sizes": [1, 10, 1000], "times": times}
    assert script("render").exponent(row) == pytest.approx(math.log10(20) / 2)
    page = script("render").growth({"machine": script("timing").machine(), "rows": [row]})
    assert "| a call | draws | 1: 0.003 | 10: 0.01 | 1,000: 0.2 | 0.65 |" in page


def test_every_public_call_has_its_growth_measured() -> None:
    """As committed: nothing that reads rows or draws grows by far more than n log n, fresh memory included."""
    document = json.loads((SCRIPTS / "results" / "growth.json").read_text())
    entries = [(row["name"], row["along"], list(row["sizes"])) for row in document["rows"]]
    assert entries == [(x.name, x.along, list(x.sizes)) for x in script("bench_growth").ENTRIES]
    for row in document["rows"]:
        if row["along"] in ("pairs", "rows", "draws", "tokens"):
            assert script("render").exponent(row) < 1.4, row["name"]


def test_every_closed_form_in_cpp_is_measured_and_at_least_twice_as_fast_as_in_python() -> None:
    """As committed; a form between two families or a factor model that gains less leaves C++."""
    bench, document = (
        script("bench_native_forms"),
        json.loads((SCRIPTS / "results" / "native_forms.json").read_text()),
    )
    names = list(dict.fromkeys(row["pair"] for row in document["rows"]))
    assert names == [name for name in bench.CLOSED_FORMS if bench.is_in_cpp(name)]
    page = script("render").native_forms(document)
    for name in names:
        assert bench.gain([row for row in document["rows"] if row["pair"] == name]) >= bench.LEAST_GAIN
        assert f"| {name} |" in page
    row = bench.measure("Normal ‖ Laplace", 1, quick=True)
    assert min(row["value"].values()) > 0
    assert min(row["gradient"].values()) > 0


@pytest.mark.sweep
def test_normals_of_many_dimensions_are_measured_beside_torch_and_shown() -> None:
    bench, document = (
        script("bench_normals"),
        json.loads((SCRIPTS / "results" / "normals.json").read_text()),
    )
    page = script("render").normals(document)
    for case, row in zip(bench.CASES, document["rows"], strict=True):
        dtype = str(case.dtype).removeprefix("torch.")
        assert (row["pair"], row["dtype"]) == (f"{case.p} ‖ {case.q}", dtype)
        assert (row["size"], tuple(row["batch"])) == (case.size, case.batch)
        assert f"| {row['pair']} | {dtype} | " in page
        for name, ratio in row["ratio to torch"].items():
            theirs, ours = (row["milliseconds"][x] for x in (f"torch: {name}", name))
            assert ratio == pytest.approx(ours / theirs, abs=0.02, rel=0.05)
    for case in bench.CASES[::4]:
        row = bench.measure(case._replace(size=130), quick=True)
        assert ("torch: value" in row["milliseconds"]) is ("diagonal" not in (case.p, case.q)), case


@pytest.mark.sweep
def test_the_smallest_sizes_of_growth_run() -> None:
    for entry in script("bench_growth").ENTRIES:
        if entry.name.startswith(("divergence", "distillation", "kl_from", "metrics", "compare_tables")):
            assert script("bench_growth").measured(entry.build(10), 1)["wall"] > 0


@pytest.mark.sweep
def test_the_limits_are_measured_and_shown() -> None:
    limits = script("limits")
    memory = limits.seconds_of_memory()
    assert set(memory) == {"copy", "fresh, 4 KiB pages", "fresh, 2 MiB pages"}
    assert all(seconds > 0 for seconds in memory.values())
    committed = json.loads((SCRIPTS / "results" / "limits.json").read_text())
    page = script("render").limits(committed)
    columns = [*committed["gflops"].values(), *committed["milliseconds_of_gradients"].values()]
    assert all(name in page for column in columns for name in column)


def assert_schema(result: dict[str, object]) -> None:
    assert set(result) == {"schema", "benchmark", "quick", "machine", "notes", "cases"}
    assert result["schema"] == "kullback.benchmark/1"
    assert {"processor", "cores", "threads", "torch", "compiler", "date"} <= set(result["machine"])
    for case in result["cases"]:
        assert {"rows", "classes", "dtype"} <= set(case["case"])
        for step in case["steps"].values():
            assert set(step) == {"median", "low", "high", "rounds", "extra_bytes"}
            assert 0 < step["low"] <= step["median"] <= step["high"]


def test_the_committed_results_are_of_the_schema_and_no_quick_ones() -> None:
    for result in script("render").load(SCRIPTS / "results").values():
        assert_schema(result)
        assert not result["quick"]


def test_the_page_in_the_documentation_is_made_of_the_committed_results() -> None:
    render = script("render")
    assert render.PAGE.read_text() == render.page(SCRIPTS / "results")
    for name in set(render.PLOTS) & set(render.load(SCRIPTS / "results")):
        assert render.PAGE.with_suffix("").joinpath(f"{name}.svg").exists()


RECORDS = sorted((ROOT / "docs" / "records").glob("*.md"))
NUMBER = re.compile(r"\d(?:[\d,.]*\d)?(?:e[-+]?\d+)?")


def answers(record: Path) -> list[str]:
    """The paragraphs of a record that say what was measured, and with which result."""
    return [text for text in record.read_text().split("\n\n") if text.startswith("Measured:")]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_begins_with_its_answer(record: Path) -> None:
    _, answer, *_ = record.read_text().split("\n\n")
    positions = [answer.index(part) for part in ("Measured:", "Result:", "Conclusion:")]
    assert positions[0] == 0
    assert positions == sorted(positions)
    assert len(answer.splitlines()) <= 5


def test_the_page_of_evidence_has_five_lines_from_each_record() -> None:
    _, *sections = (ROOT / "docs" / "evidence.md").read_text().split("\n## ")
    linked = []
    for section in sections:
        question, _, text = section.partition("\n\n")
        (name,) = re.findall(r"\]\(records/(\w+)\.md\)", text)
        linked.append(ROOT / "docs" / "records" / f"{name}.md")
        known = set(NUMBER.findall(" ".join(answers(linked[-1]))))
        quoted = set(NUMBER.findall(re.sub(r"\]\([^)]*\)", "]", text)))
        assert quoted, question
        assert quoted - known == set(), question
        assert len(text.strip().splitlines()) <= 5, question
    assert sorted(linked) == RECORDS


def test_the_page_of_estimators_is_made_of_the_committed_results() -> None:
    render = script("render_samples")
    assert render.PAGE.read_text() == render.page(SCRIPTS / "results")


def test_the_page_of_numerics_is_made_of_the_committed_numbers() -> None:
    accuracy = script("accuracy")
    assert accuracy.PAGE.read_text() == accuracy.rendered()
    assert set(json.loads(accuracy.RESULTS.read_text())["pairs"]) == set(PAIRS)


def test_the_page_of_fits_is_made_of_the_committed_numbers() -> None:
    render = script("render_fit")
    document = json.loads((SCRIPTS / "results" / "fit.json").read_text())
    assert render.PAGE.read_text() == render.page(document)
    assert len(document["rows"]) == 6


def test_a_fit_is_never_worse_than_what_peers_find() -> None:
    """As measured; where the optimum is deterministic, to 1e-9 nats, and to 0.01 where all draw at random."""
    document = json.loads((SCRIPTS / "results" / "fit.json").read_text())
    for row in document["rows"]:
        ours = row["contenders"]["kullback"]["value"]
        best = min(x["value"] for x in row["contenders"].values())
        assert ours <= best + (0.01 if "posterior" in row["case"] else 1e-9), row["case"]


def test_the_page_of_fits_says_where_a_peer_wins() -> None:
    rows = {"kullback": (2.0, 3.0), "faster": (2.5, 1.0), "lower": (1.0, 5.0), "worse": (3.0, 4.0)}
    contenders = {name: {"value": value, "seconds": time, "lines": 1} for name, (value, time) in rows.items()}
    found = script("render_fit").wins({"rows": [{"case": "A", "contenders": contenders}]})
    assert found == [
        "A: faster takes 1 s, ours 3 s, 5.0e-01 nats above ours.",
        "A: lower ends 1.0e+00 nats lower.",
    ]
