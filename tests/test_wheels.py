"""The two wheels, each installed into a fresh environment that cannot reach the sources.

The fresh environments see the packages of the one that runs the tests (PyTorch is large) but not its kullback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import torch

import kullback

REPOSITORY = Path(__file__).resolve().parent.parent
NATIVE = "kullback/kernels/native/_native.so"
NOT_OURS = ("KULLBACK_NATIVE", "PYTHONPATH", "PYTHONHOME")

# One worker builds each wheel once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheels")]

PROBE = """
import json, sys, torch, kullback
from kullback.functional import distillation_loss

student = torch.tensor([[1.0, 0.5, -1.0]], requires_grad=True)
loss = distillation_loss(student=student, teacher=torch.tensor([[2.0, 0.0, -1.0]]))
loss.backward()
print(json.dumps({
    "files": [m.__file__ for name, m in sys.modules.items() if name.partition(".")[0] == "kullback"],
    "path": sys.path,
    "version": kullback.__version__,
    "kl": kullback.kl_divergence(kullback.Probs([0.5, 0.5]), kullback.Probs([0.25, 0.75])).item(),
    "loss": loss.item(),
    "gradient": student.grad.tolist(),
    "backends": {b.name: [b.available, b.reason] for b in kullback.backends()},
}))
"""


def run(command: Sequence[str | Path], folder: Path, **changes: str) -> str:
    """What a command prints, run in `folder`, with none of the settings that lead to the sources."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | changes
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder: Path, **changes: str) -> Path:
    """The wheel that pip makes of the sources, built in `folder` and not beside them."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    command += ["--no-build-isolation", "--no-deps", "--quiet"]
    command += [f"--config-settings=build-dir={folder / 'build'}", f"--wheel-dir={folder}", str(REPOSITORY)]
    run(command, folder, **changes)
    (wheel,) = folder.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Installed:
    """A wheel, and the fresh environment into which it was installed."""

    wheel: Path
    folder: Path

    @classmethod
    def fresh(cls, wheel: Path, folder: Path) -> Installed:
        run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "venv"]
        run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
        # Only now: pip must not find, and then replace, the kullback of the environment that runs the tests.
        (packages,) = (folder / "venv").glob("lib/python*/site-packages")
        seen = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        (packages / "dependencies.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")
        return cls(wheel, folder)

    @property
    def commands(self) -> Path:
        return self.folder / "venv" / "bin"

    @cached_property
    def files(self) -> set[str]:
        return set(zipfile.ZipFile(self.wheel).namelist())

    @cached_property
    def probe(self) -> Mapping[str, object]:
        return json.loads(run([self.commands / "python", "-c", PROBE], self.folder))


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("pure")
    return Installed.fresh(build(folder), folder)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("native")
    return Installed.fresh(build(folder, KULLBACK_NATIVE="1"), folder)


@pytest.fixture(params=["pure", "native"])
def installed(request: pytest.FixtureRequest) -> Installed:
    return request.getfixturevalue(request.param)


def test_the_pure_wheel_runs_on_any_platform(pure):
    assert pure.wheel.name == f"kullback-{kullback.__version__}-py3-none-any.whl"
    assert not [name for name in pure.files if name.endswith((".so", ".dylib", ".pyd"))]


def test_the_platform_wheel_serves_every_python_of_its_platform(native):
    assert native.wheel.name.startswith(f"kullback-{kullback.__version__}-py3-none-")
    assert not native.wheel.name.endswith("-any.whl")
    assert NATIVE in native.files


def test_the_wheels_differ_by_the_library_alone(pure, native):
    assert native.files - pure.files == {NATIVE}
    assert pure.files <= native.files


def test_a_wheel_holds_the_package_its_types_its_license_and_nothing_else(installed):
    about = f"kullback-{kullback.__version__}.dist-info"
    assert {name.partition("/")[0] for name in installed.files} == {"kullback", about}
    assert {"kullback/__init__.py", "kullback/py.typed", f"{about}/licenses/LICENSE"} <= installed.files
    assert not [name for name in installed.files if name.endswith((".pyc", ".cpp", ".h", ".hpp", ".o"))]


def test_the_library_takes_the_pytorch_that_runs_not_the_one_it_was_built_with(native):
    run_path = str(Path(torch.__file__).parent / "lib")
    assert run_path.encode() not in zipfile.ZipFile(native.wheel).read(NATIVE)


def test_the_installed_package_runs_from_its_own_files_alone(installed):
    home = str(installed.folder / "venv")
    assert [path for path in installed.probe["files"] if not path.startswith(home)] == []
    assert str(REPOSITORY / "src") not in installed.probe["path"]
    assert installed.probe["version"] == kullback.__version__


def test_the_installed_package_computes(installed):
    assert installed.probe["kl"] == pytest.approx(0.14384103622589045, rel=1e-6)  # log(4 / 3) / 2
    assert installed.probe["loss"] == pytest.approx(0.1718, abs=5e-5)
    student, teacher = torch.tensor([[1.0, 0.5, -1.0], [2.0, 0.0, -1.0]]).softmax(-1)
    assert installed.probe["gradient"][0] == pytest.approx((student - teacher).tolist(), abs=1e-6)


def test_each_wheel_says_whether_the_native_kernels_run_and_why(pure, native):
    there, reason = native.probe["backends"]["native"]
    assert there, reason
    there, reason = pure.probe["backends"]["native"]
    assert not there
    assert "pure Python install" in reason
    for wheel in (pure, native):
        assert wheel.probe["backends"]["reference"][0]


def test_the_command_line_says_so_too(pure, native):
    for wheel, runs in ((pure, "no"), (native, "yes")):
        table = run([wheel.commands / "kullback", "backends"], wheel.folder, COLUMNS="300")
        rows = [line.split("│") for line in table.splitlines() if line.startswith("│")]
        (row,) = [row for row in rows if row[1].strip() == "native"]
        assert row[2].strip() == runs
        assert ("pure Python install" in row[-2]) == (runs == "no")


def test_where_nothing_compiles_the_wheel_is_the_pure_one(pure, tmp_path):
    wheel = build(tmp_path, KULLBACK_NATIVE="1", CXX=str(tmp_path / "no-compiler"))
    assert wheel.name == pure.wheel.name
    assert set(zipfile.ZipFile(wheel).namelist()) == pure.files
