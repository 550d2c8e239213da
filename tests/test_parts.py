"""The parts share out all tests, the tenth of a sweep is the same on every machine, and every file has a room."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests import parts

REPOSITORY = Path(__file__).resolve().parent.parent
CHECK = REPOSITORY / ".ci" / "check.py"


@dataclass
class Test:
    """What the parts ask of a collected test."""

    nodeid: str
    marks: set[str] = field(default_factory=set)
    fixturenames: tuple[str, ...] = ()
    __test__ = False

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None


def parts_of(*tests: Test) -> list[str]:
    part = parts.part_of(cast("list[pytest.Item]", tests))
    return [part(cast("pytest.Item", test)) for test in tests]


def many(name: str, count: int, *marks: str) -> list[Test]:
    return [Test(f"tests/test_a.py::{name}[{i}]", set(marks)) for i in range(count)]


def test_a_tenth_of_a_sweep_is_quick_and_the_same_everywhere():
    assert [name for name in map(str, range(30)) if parts.in_the_tenth(name)] == ["0", "7", "9", "10"]
    shares = parts_of(*many("test_x", 1000))
    assert 70 < shares.count("quick") < 130
    assert shares.count("quick") + shares.count("sweeps") == 1000
    chosen = [test.nodeid for test, part in zip(many("test_x", 1000), shares, strict=True) if part == "quick"]
    backwards = parts_of(*reversed(many("test_x", 1000)))[::-1]
    assert backwards == shares
    assert parts_of(*many("test_y", 5), *many("test_x", 1000))[5:] == shares  # other tests change nothing
    assert all(map(parts.in_the_tenth, chosen))


@pytest.mark.parametrize("count", [parts.SWEEP_SIZE, parts.SWEEP_SIZE + 1, 40])
def test_no_sweep_is_left_out_of_the_quick_part(count):
    for name in ("test_a", "test_b", "test_c", "test_d", "test_e"):
        assert "quick" in parts_of(*many(name, count))
        assert "quick" in parts_of(*many(name, 2, "sweep"))


def test_fewer_cases_are_no_sweep_without_the_mark():
    assert set(parts_of(*many("test_x", parts.SWEEP_SIZE - 1))) == {"quick"}
    assert parts_of(*many("test_x", 3, "sweep")).count("quick") <= 2


def test_every_message_is_quick():
    for name in (
        "test_a_wrong_word_is_refused",
        "test_messages_name_the_argument",
        "test_every_remedy_works",
    ):
        assert set(parts_of(*many(name, 50))) == {"quick"}
        assert "sweeps" in parts_of(*many(name, 50, "sweep"))


def test_one_slow_simulation_is_quick_if_it_belongs_to_the_tenth():
    single = [Test(f"tests/test_a.py::test_{i}", {"sweep"}) for i in range(300)]
    assert parts_of(*single) == [("sweeps", "quick")[parts.in_the_tenth(test.nodeid)] for test in single]
    assert 10 < parts_of(*single).count("quick") < 60


def test_marks_and_browsers_are_heavy():
    page = Test("tests/test_a.py::test_page", fixturenames=("report", "chromium"))
    server = Test("tests/test_a.py::test_server", {"heavy"})
    assert parts_of(page, server, Test("tests/test_a.py::test_plain")) == ["heavy", "heavy", "quick"]


def test_a_heavy_file_is_recognized_without_importing_it(tmp_path):
    for text, heavy in (
        ("pytestmark = pytest.mark.heavy\n", True),
        ("pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings('ignore')]\n", True),
        ("@pytest.mark.heavy\ndef test_x(): ...\n", False),
        ("# pytestmark = pytest.mark.heavy\n", False),
    ):
        (tmp_path / "test_x.py").write_text(text)
        assert parts.is_heavy_file(tmp_path / "test_x.py") is heavy, text


def test_workers_share_out_all_files(tmp_path):
    files = [tmp_path / f"{number}" for number in range(11)]
    for workers in (1, 2, 3, 4, 20):
        shares = [parts.share(files, worker, workers) for worker in range(workers)]
        assert [file for share in shares for file in share] == files, workers


def test_a_file_with_an_example_is_recognized_without_importing_it(tmp_path):
    for text, example in (('"""\n>>> 1\n1\n"""\n', True), ('"""Adds."""\nx = y >> z\n', False)):
        (tmp_path / "x.py").write_text(text)
        assert parts.has_example(tmp_path / "x.py") is example, text


def test_the_makefile_and_ci_run_every_part():
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = dict(re.findall(r"^(\w+):.*\n\t\$\(PYTEST\) --part (\w+)$", makefile, re.MULTILINE))
    assert targets == {"test": "quick", "sweeps": "sweeps", "heavy": "heavy"}
    assert set(targets.values()) == set(parts.PARTS)
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in script if line.removeprefix("make ") in targets] == [
        f"make {name}" for name in targets
    ]


def test_every_source_file_has_tests_that_exist():
    specification = importlib.util.spec_from_file_location("check", CHECK)
    assert specification
    assert specification.loader
    check: Any = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(check)
    rooms = {}
    for folder in ("src/kullback", "csrc", "benchmarks", "docs"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.suffix in {".py", ".cpp", ".h", ".md"}:
                rooms[path.relative_to(REPOSITORY).as_posix()] = check.tests_of(path.relative_to(REPOSITORY))
    assert len(rooms) > 300
    assert {name for names in rooms.values() for name in names if not (REPOSITORY / name).exists()} == set()
    assert rooms["src/kullback/pairs/integration/panels.py"] == ["tests/pairs/integration"]
    assert rooms["src/kullback/samples.py"] == ["tests/test_samples.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "check: name one file, as in make check FILE=src/kullback/samples.py"),
        (["none.py"], "check: there is no file none.py"),
        (["LICENSE"], "check: no tests belong to LICENSE"),
    ],
)
def test_a_wrong_file_is_an_error_in_one_line(arguments, message):
    done = subprocess.run(
        [sys.executable, CHECK, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(message)
