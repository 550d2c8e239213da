"""`make gpu` without a GPU: its truths, its checks on the CPU, its records, and its verdict on planted faults."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from tests.oracles import truth

SCRIPTS = Path(__file__).parents[1] / "benchmarks"
INF = float("inf")
GPU = str(SCRIPTS / "gpu.py")


@pytest.fixture(autouse=True)
def _scripts_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


def names_of(*parts: str) -> list[str]:
    """The names of the checks that take no compiler."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        setting = script("gpu_items").Setting("cpu", small=True)
        items = [item for part in parts for item in script("gpu").PARTS[part].function(setting)]
    finally:
        sys.path.pop(0)
    return [item.name for item in items if "torch.compile" not in item.name]


def outcome(name: str) -> Any:
    """The record of a check on the CPU, in this process, so by C++ or the reference."""
    setting = script("gpu_items").Setting("cpu", small=True)
    items = (
        item for part in ("likely_faults", "parity") for item in script("gpu").PARTS[part].function(setting)
    )
    return script("gpu").run_item(next(item for item in items if item.name == name))


def own_kind(p: list[Any], q: list[Any]) -> Any:
    return mpmath.fsum((a - b) ** 2 / (a + b) for a, b in zip(p, q, strict=True) if a + b)


def fifty_digits(name: str, a: list[float], b: list[float]) -> Any:
    p, q = truth.softmax(a), truth.softmax(b)
    return own_kind(p, q) if name == "own kind" else truth.divergence(script("gpu_items").KINDS[name], p, q)


def true_gradient(name: str, a: list[float], b: list[float], side: int) -> Tensor:
    """The derivative by each logit, from differences of 50 digits."""
    if name != "own kind":
        numbers = truth.logit_gradient(script("gpu_items").KINDS[name], a, b)[side]
        return torch.tensor([float(x) for x in numbers], dtype=torch.float64)
    result = []
    for i in range(len(a)):
        sides = [[list(a), list(b)] for _ in range(2)]
        for sign, both in zip((1, -1), sides, strict=True):
            both[side][i] += sign * 1e-6
        steps = sides[0][side][i] - sides[1][side][i]
        result.append(float((fifty_digits(name, *sides[0]) - fifty_digits(name, *sides[1])) / steps))
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("spread", [1e-2, 1.0, 9.0])
def test_its_formulas_are_the_divergences_of_fifty_digits_and_their_gradients(spread: float) -> None:
    items = script("gpu_items")
    p = torch.randn(2, 6, dtype=torch.float64)
    q = p + spread * torch.randn(2, 6, dtype=torch.float64)
    for name, kind in items.KINDS.items():
        result = items.exact(kind, p, q)
        for row, (a, b) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
            value = float(fifty_digits(name, a, b))
            assert result.values[row].item() == pytest.approx(value, rel=1e-10, abs=1e-14), name
            for side, gradient in enumerate((result.by_p, result.by_q)):
                torch.testing.assert_close(
                    gradient[row], true_gradient(name, a, b, side), rtol=1e-8, atol=1e-9 * (1 + value)
                )


def test_its_formulas_know_masked_classes_weights_and_temperatures() -> None:
    items = script("gpu_items")
    p = torch.tensor([[-INF, 1.0, 2.0], [0.0, -INF, 1.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    q = torch.tensor([[-INF, 2.0, 0.5], [0.3, 1.0, 0.0], [1.0, -INF, 0.0]], dtype=torch.float64)
    weights = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    for name, kind in items.KINDS.items():
        result, scaled = items.exact(kind, p, q), items.exact(kind, p, q, weights, 2.5)
        halved = items.exact(kind, p / 2.5, q / 2.5)
        for row, (a, b) in enumerate(zip(p.tolist(), q.tolist(), strict=True)):
            assert result.values[row].item() == pytest.approx(float(fifty_digits(name, a, b)), rel=1e-12), (
                name
            )
        at = result.values.isfinite()
        torch.testing.assert_close(scaled.values, halved.values)
        factor = weights[:, None] / 2.5
        torch.testing.assert_close(scaled.by_p[at], (factor * halved.by_p)[at])
        torch.testing.assert_close(scaled.by_q[at], (factor * halved.by_q)[at])
        assert (result.by_q[0, 0], result.by_p[0, 0]) == (0, 0)


@pytest.mark.parametrize("name", names_of("likely_faults", "parity"))
def test_the_checks_pass_on_the_cpu(name: str) -> None:
    record = outcome(name)
    assert record.status == ("not here" if "needs a GPU" in record.remark else "passed"), record.remark


def test_an_error_of_a_hundred_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the reference, which here computes what a kernel of a GPU would."""
    from kullback.kernels.native import library
    from kullback.kernels.reference import RowDivergence

    monkeypatch.setattr(library, "missing", lambda: "left out")
    check = "KL, 300 classes, float32"
    assert outcome(check).status == "passed"
    right = RowDivergence._by_weights
    monkeypatch.setattr(RowDivergence, "_by_weights", lambda *x: (1 + 1e-5) * right(*x))
    record = outcome(check)
    assert record.status == "failed"
    assert "by_p" in record.remark


# Faults of kernels, whatever their names: they are planted in the language that the kernels are written in.
FAULTS = {
    "none": "",
    "stores that are off by a hundred-thousandth": """
store = Builder.create_masked_store
def faulty(self, ptrs, value, mask, *others):
    return store(self, ptrs, TensorHandle(value.data * value.data.dtype.type(1.00001), value.dtype), mask, *others)
Builder.create_masked_store = faulty
""",
    "a class that is not stored": """
store = Builder.create_masked_store
def faulty(self, ptrs, value, mask, *others):
    kept = mask.data.copy()
    if kept.size > 7:
        kept.flat[7] = False
    return store(self, ptrs, value, TensorHandle(kept, mask.dtype), *others)
Builder.create_masked_store = faulty
""",
    "columns after the last class that count": """
load = Builder.create_masked_load
def faulty(self, ptrs, mask, other, *others):
    if other is not None:
        other = TensorHandle(np.zeros_like(other.data), other.dtype)
    return load(self, ptrs, mask, other, *others)
Builder.create_masked_load = faulty
""",
}


# The larger of NaN and a number is the number on a GPU, and NaN in the interpreter.
MAXIMA_OF_GPUS = """
Builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
Builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)
"""


def with_change(change: str, part: str, *names: str) -> dict[str, str]:
    """The statuses of some checks in a process of its own, whose Triton interpreter has a change."""
    program = f"""
import json, sys
sys.path.insert(0, {str(SCRIPTS)!r})
import numpy as np
from triton.runtime.interpreter import InterpreterBuilder as Builder, TensorHandle
import gpu, gpu_items
gpu_items.use_interpreter()
{change}
setting = gpu_items.Setting("cpu", small=True)
records = [gpu.run_item(item) for item in gpu.PARTS[{part!r}].function(setting) if item.name in {names!r}]
assert len(records) == {len(names)}
print(json.dumps({{record.name: record.status + " " + record.remark for record in records}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=SCRIPTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


if importlib.util.find_spec("triton") is not None:

    @pytest.mark.heavy
    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_in_the_kernels_fails_the_checks(fault: str) -> None:
        expected = "passed" if fault == "none" else "failed"
        checks = [f"{kind}, 300 classes, float32" for kind in ("KL", "total variation", "JS")]
        for name, status in with_change(FAULTS[fault], "parity", *checks).items():
            assert status.startswith(expected), (name, status)

    @pytest.mark.heavy
    def test_a_nan_shows_although_the_maxima_of_gpus_ignore_it() -> None:
        checks = [f"NaN and infinite logits: {kind}" for kind in ("KL", "total variation", "JS")]
        for name, status in with_change(MAXIMA_OF_GPUS, "likely_faults", *checks).items():
            assert status.startswith("passed"), (name, status)

    @pytest.mark.heavy
    @pytest.mark.parametrize(
        "part", ["likely_faults", "parity", "kinds", "rows", "top_k", "heads", "two_gpus"]
    )
    def test_a_part_runs_in_the_interpreter_and_leaves_its_records(part: str, tmp_path: Path) -> None:
        assert part in script("gpu").PARTS
        arguments = [
            "--device",
            "cpu",
            "--small",
            "--part",
            part,
            "--results",
            str(tmp_path),
            "--seconds",
            "6000",
        ]
        done = subprocess.run([sys.executable, GPU, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads((tmp_path / f"gpu_{part}.json").read_text())
        names = [record["name"] for record in document["records"]]
        setting = script("gpu_items").Setting("cpu", small=True)
        assert names == [item.name for item in script("gpu").PARTS[part].function(setting)]
        for record in document["records"]:
            assert record["status"] in script("gpu").KEPT
            for step in (record["result"] or {"steps": {}})["steps"].values():
                assert 0 < step["low"] <= step["median"] <= step["high"]


# A part that does all that an item can do; the script serves it as gpu.py serves its own.
ODD_PART = f"""
import os, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
import gpu
from gpu_items import Item, NotHere

def raises(error):
    raise error

def part(setting):
    yield Item("passes", lambda: "a remark")
    yield Item("fails", lambda: raises(AssertionError("1 is not 2")))
    yield Item("crashes", lambda: os._exit(7))
    yield Item("hangs", lambda: time.sleep(600))
    yield Item("prints", lambda: print("noise"))
    yield Item("needs more", lambda: raises(NotHere("one GPU here")))

gpu.PARTS.clear()
gpu.PARTS["odd"] = gpu.Entry(part, 60)
gpu.__file__ = __file__
gpu.SECONDS_OF_AN_ITEM = 12.0
if __name__ == "__main__":
    sys.exit(gpu.main())
"""


@pytest.mark.heavy
def test_what_fails_crashes_or_hangs_is_recorded_and_the_rest_runs_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD_PART)
    command = [
        sys.executable,
        str(tmp_path / "odd.py"),
        "--device",
        "cpu",
        "--small",
        "--results",
        str(tmp_path),
    ]
    expected = {
        "passes": ("passed", "a remark"),
        "fails": ("failed", "1 is not 2"),
        "crashes": ("failed", "the process ended with it: status 7"),
        "hangs": ("failed", "the process ended with it: more than 12 s"),
        "prints": ("passed", ""),
        "needs more": ("not here", "one GPU here"),
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.endswith("3 failed, 1 not here, 2 passed\n")
    records = json.loads((tmp_path / "gpu_odd.json").read_text())["records"]
    assert [record["name"] for record in records] == list(expected)
    for record in records:
        status, remark = expected[record["name"]]
        assert record["status"] == status
        assert record["remark"].startswith(remark)
    again = subprocess.run([*command, "--seconds", "0"], capture_output=True, text=True, check=False)
    assert again.returncode == 3, again.stdout + again.stderr
    assert "odd: 6 items, at most 0 s, 3 kept" in again.stdout
    assert again.stdout.endswith("1 not here, 3 not run, 2 passed\n")


def records_in(path: Path, **changed: Any) -> dict[str, Any]:
    gpu, timing = script("gpu"), script("timing")
    document = {
        "schema": gpu.SCHEMA,
        "part": "kinds",
        "small": True,
        "device": "cpu",
        "machine": timing.machine(),
        "sources": gpu.fingerprint(),
        "records": [
            {"name": "a", "status": "passed", "seconds": 1.0, "remark": "", "result": None},
            {"name": "b", "status": "failed", "seconds": 1.0, "remark": "", "result": None},
        ],
    }
    path.write_text(json.dumps(document | changed))
    return gpu.kept_records(path, script("gpu_items").Setting("cpu", small=True), timing.machine())


def test_a_record_is_kept_only_from_the_same_sources_device_and_sizes(tmp_path: Path) -> None:
    path = tmp_path / "gpu_kinds.json"
    assert list(records_in(path)) == ["a"]
    machine = script("timing").machine()
    for changed in (
        {"sources": "other"},
        {"small": False},
        {"device": "cuda"},
        {"machine": machine | {"torch": "0.1"}},
        {"machine": machine | {"gpu": "another"}},
        {"schema": "other/1"},
    ):
        assert not records_in(path, **changed), changed
    path.write_text("{")
    assert not script("gpu").kept_records(path, script("gpu_items").Setting("cpu", small=True), machine)


def test_a_contender_that_fails_is_a_note_and_ours_must_not() -> None:
    times, timing = script("gpu_times"), script("timing")
    setting = script("gpu_items").Setting("cpu", small=True)

    def fail() -> None:
        raise RuntimeError("out of memory\nmore")

    steps = {"KL: kullback": timing.Step(lambda: None), "KL: other": timing.Step(fail)}
    result = times.measured(setting, times.case(2, 3), steps, notes=["first"])
    assert set(result["steps"]) == {"KL: kullback"}
    assert result["notes"] == ["first", "KL: other failed: RuntimeError: out of memory"]
    with pytest.raises(RuntimeError, match="out of memory"):
        times.measured(setting, times.case(2, 3), {"KL: kullback": timing.Step(fail)})


def test_a_contender_with_another_value_is_noted() -> None:
    notes = script("gpu_times").other_values(
        {
            "copy": None,
            "KL: kullback": 0.1,
            "KL: rounded": 0.101,
            "KL: other": 0.2,
            "KL: nothing": float("nan"),
        }
    )
    assert notes == ["KL: other computes 0.2, kullback 0.1", "KL: nothing computes nan, kullback 0.1"]


def test_the_page_shows_what_a_gpu_measured_and_before_that_nothing(tmp_path: Path) -> None:
    render, gpu, times = script("render"), script("gpu"), script("gpu_times")
    assert "Not measured yet:" in render.page(tmp_path)
    assert "“On a GPU”" in render.page(tmp_path)
    step = {"median": 2e-3, "low": 1e-3, "high": 3e-3, "rounds": 9, "extra_bytes": 2_000_000}
    steps = {
        "copy": step | {"median": 1e-3},
        "KL: kullback": step,
        "KL: torch.compile": step | {"median": 4e-3},
    }
    result = {"case": times.case(8192, 128_256), "steps": steps, "notes": ["A note."]}
    records = {
        "rows": [gpu.Record("KL", "measured", result=result)],
        "parity": [
            gpu.Record("a", "passed"),
            gpu.Record("b", "failed", remark="1 is not 2"),
            gpu.Record("c", "not here"),
        ],
    }
    for device in ("cpu", "cuda"):
        for part, of_part in records.items():
            run = gpu.Run(
                part,
                script("gpu_items").Setting(device),
                tmp_path / f"gpu_{part}.json",
                0,
                machine_with("H200"),
            )
            run.records = {record.name: record for record in of_part}
            run.write()
        assert ("“On a GPU”" in render.page(tmp_path)) is (device == "cpu")
    page = render.page(tmp_path)
    assert "H200, " in page
    assert (
        "checked 3 cases against float64: 1 passed, 1 failed, 1 need another machine, and 0 were not run."
        in page
    )
    assert "- b: 1 is not 2" in page
    assert "| 8192 × 128256, bfloat16 | KL: kullback | 2 | 2 |" in page
    assert "A note." in page
    assert "| GPU: share of the copy bandwidth | 8192 × 128256, bfloat16 | ≥ 85% | 75% | **no** |" in page
    assert "| GPU: against torch.compile | 8192 × 128256, bfloat16 | ≥ 1.3× | 2.00× | yes |" in page


def test_readme_says_that_no_gpu_was_timed_as_long_as_none_was() -> None:
    readme = " ".join((SCRIPTS.parent / "README.md").read_text().split())
    says_so = "Until now, none has been timed on a GPU." in readme
    assert says_so is not bool(script("render").load_gpu(SCRIPTS / "results"))


def machine_with(gpu: str) -> dict[str, object]:
    return script("timing").machine() | {"gpu": gpu}


def test_the_parts_fit_into_ten_minutes_and_their_items_have_names_of_their_own() -> None:
    gpu, setting = script("gpu"), script("gpu_items").Setting("cuda")
    assert sum(entry.seconds for entry in gpu.PARTS.values()) <= gpu.SECONDS == 600
    for part, entry in gpu.PARTS.items():
        names = [item.name for item in entry.function(setting)]
        assert len(names) == len(set(names)), part
    parity = [item.name for item in gpu.PARTS["parity"].function(setting)]
    for classes in (32_000, 50_257, 128_256, 151_936, 262_144):
        for kind in script("gpu_items").KINDS:
            assert {f"{kind}, {classes} classes, {dtype}" for dtype in ("bfloat16", "float32")} <= set(parity)


def test_a_part_may_take_the_time_that_earlier_parts_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu, times = script("gpu"), []

    def run_part(name: str, _: Any, __: Path, seconds: float, ___: bool) -> list[Any]:
        times.append((name, seconds))
        return []

    monkeypatch.setattr(gpu, "run_part", run_part)
    small = ["--device", "cpu", "--small", "--results", str(tmp_path)]
    assert gpu.main([*small, "--part", "kinds", "--part", "top_k"]) == 0
    assert [(name, round(x)) for name, x in times] == [("kinds", 60), ("top_k", 90)]
    times.clear()
    assert gpu.main([*small, "--seconds", "1200", "--part", "kinds"]) == 0
    assert gpu.main([*small, "--seconds", "40", "--part", "kinds"]) == 0
    assert [(name, round(x)) for name, x in times] == [("kinds", 120), ("kinds", 40)]


if not torch.cuda.is_available():

    def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert script("gpu").main(["--results", str(tmp_path)]) == 0
        assert capsys.readouterr().out == "No GPU here: torch finds none, so `make gpu` measured nothing.\n"
        assert not list(tmp_path.iterdir())
