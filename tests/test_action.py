"""The GitHub Action: its steps run in bash as on a runner, with the inputs in the environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kullback.cli.commands import kullback
from kullback.cli.gates import OF_ROWS, OF_TABLES, parse_gate
from kullback.cli.option import FILE
from kullback.cli.option_command import OptionCommand

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
INSTALL, COMPARE = ACTION["runs"]["steps"]
BASH = shutil.which("bash") or "bash"
DATA = ROOT / "examples" / "data"


def run(step: dict[str, Any], folder: Path, inputs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step with the shell and the options of a runner."""
    values: dict[str, str] = {
        f"inputs.{name}": inputs.get(name) or each.get("default", "")
        for name, each in ACTION["inputs"].items()
    }
    values["github.action_path"] = str(ROOT)

    def value(match: re.Match[str]) -> str:
        return values[match[1]]

    settings = {name: re.sub(r"\$\{\{ (.*?) \}\}", value, text) for name, text in step["env"].items()}
    environment = {
        **os.environ,
        **settings,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }
    return subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the command of these sources, and a python that only writes its arguments."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "summary.md").touch()
    for name, command in (
        ("kullback", f'exec "{sys.executable}" -m kullback "$@"'),
        ("python", 'printf "%s\\n" "$@"'),
    ):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    return tmp_path


def test_every_input_is_described_and_used() -> None:
    used = re.findall(r"\$\{\{ inputs\.(\w+) \}\}", str(ACTION["runs"]))
    assert sorted(used) == sorted(ACTION["inputs"])
    assert all(each["description"] for each in ACTION["inputs"].values())
    assert [name for name, each in ACTION["inputs"].items() if each.get("required")] == ["files"]
    assert ACTION["runs"]["using"] == "composite"


def test_its_options_and_limits_are_those_of_the_command() -> None:
    command = kullback.commands["compare"]
    assert isinstance(command, OptionCommand)
    options = {each.flag: each for each in command.options}
    named = set(re.findall(r"--[a-z][a-z-]+", str(ACTION)))
    assert {"--fail-above", "--markdown", "--as", "--config"} == named & options.keys() == named
    assert options["--fail-above"].repeatable
    assert options["--markdown"].accepts is FILE
    limits = re.findall(r"\w+=[\d.]+\d", ACTION["inputs"]["limits"]["description"])
    for limit, metrics in zip(limits, (OF_ROWS, OF_TABLES), strict=True):
        assert parse_gate(limit, "above", metrics).limit.words in ("mean at most 0.01", "psi at most 0.2")


def test_no_input_is_part_of_a_script() -> None:
    assert all("${{" not in step["run"] and step["shell"] == "bash" for step in (INSTALL, COMPARE))


@pytest.mark.heavy
@pytest.mark.parametrize(("limit", "status"), [("mean=0.01", 0), ("mean=0.0001", 1)])
def test_a_limit_decides_and_the_summary_has_the_verdict(folder: Path, limit: str, status: int) -> None:
    files = f"{DATA / 'float32.npy'}\n  {DATA / 'int8.npy'}  \n\n"
    done = run(
        COMPARE,
        folder,
        {"files": files, "limits": f"{limit}\ntv.mean=0.5", "options": "--as=logits\n--html=page.html"},
    )
    assert done.returncode == status, done.stderr
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    assert ("Failed: 1 of 2 limits" if status else "Passed: 2 limits") in summary
    assert (folder / "page.html").exists()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["$(touch run) `touch run`; touch run", "--version", "a  b"])
def test_a_line_is_one_file_and_never_code_or_an_option(folder: Path, name: str) -> None:
    files = f"{DATA / 'float32.npy'}\n{name}"
    done = run(COMPARE, folder, {"files": files, "options": "--as=logits"})
    assert done.returncode == 2
    assert name in done.stderr
    assert not (folder / "run").exists()


def test_kullback_is_installed_only_if_it_is_missing(folder: Path) -> None:
    assert run(INSTALL, folder, {}).stdout == ""
    (folder / "bin" / "kullback").unlink()
    step = {**INSTALL, "run": 'PATH=$(dirname "$(command -v python)"):/usr/bin:/bin; ' + INSTALL["run"]}
    done = run(step, folder, {"extras": "cli,models"})
    assert done.stdout.split("\n")[:4] == ["-m", "pip", "install", f"{ROOT}[cli,models]"]
