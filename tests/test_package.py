"""The package as a newcomer meets it: version, public names, import, wheel, and the two commands."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import kullback
from tests.description import check_description

REPOSITORY = Path(__file__).resolve().parent.parent
PUBLIC_MODULES = (
    "kullback",
    "kullback.functional",
    "kullback.nn",
    "kullback.metrics",
    "kullback.io",
    "kullback.errors",
    "kullback.estimators",
    "kullback.tables",
    "kullback.policy",
    "kullback.testing",
    "kullback.integrations.modelopt",
    "kullback.integrations.nemo",
    "kullback.integrations.verl",
)
NOT_IMPORTED = (
    "click",
    "jinja2",
    "matplotlib",
    "pandas",
    "polars",
    "pyarrow",
    "rich",
    "safetensors",
    "scipy",
    "sklearn",
    "torchmetrics",
)


def public_objects() -> dict[str, object]:
    """Every public object by its documented path, 'module.name'; submodules and __version__ are none."""
    found = {}
    for module in map(importlib.import_module, PUBLIC_MODULES):
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and not name.startswith("__"):
                found[f"{module.__name__}.{name}"] = thing
    return found


PUBLIC = public_objects()
# A type alias or a constant cannot carry an example; everything else does.
EXPLAINED = [path for path, thing in PUBLIC.items() if inspect.isclass(thing) or inspect.isroutine(thing)]


def python(program: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_version_is_the_installed_one():
    assert kullback.__version__ == metadata.version("kullback")


def test_version_is_the_cited_and_the_changelogged_one():
    assert f"\nversion: {kullback.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()
    assert f"\n## [{kullback.__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_no_public_name_is_listed_twice():
    for module in map(importlib.import_module, PUBLIC_MODULES):
        assert len(set(module.__all__)) == len(module.__all__), module.__name__


@pytest.mark.parametrize("path", EXPLAINED)
def test_every_public_name_has_a_docstring_with_an_executed_example(path):
    text = PUBLIC[path].__doc__ or ""
    assert text.strip(), f"{path} has no docstring"
    assert ">>>" in text, f"{path} has no example"


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_stands_on_one_page_of_the_documentation(path):
    paths = [re.escape(other) for other, thing in PUBLIC.items() if thing is PUBLIC[path]]
    directive = re.compile(rf"^::: ({'|'.join(paths)})$", re.MULTILINE)
    pages = sorted((REPOSITORY / "docs" / "api").glob("*.md"))
    holding = [page.name for page in pages if directive.search(page.read_text())]
    assert len(holding) == 1, f"'::: {path}' stands on {holding or 'no page'} of docs/api"


IMPORT_PROBE = """
import json, random, sys, warnings
import numpy, torch, torch.distributions, torch.distributions.kl

def state():
    return {
        "warning filters": [repr(rule) for rule in warnings.filters],
        "showwarning": id(warnings.showwarning),
        "validation of torch.distributions": torch.distributions.Distribution._validate_args,
        "rules of torch.distributions": sorted(map(repr, torch.distributions.kl._KL_REGISTRY.items())),
        "torch.distributions.kl_divergence": id(torch.distributions.kl_divergence),
        "torch.compile": id(torch.compile),
        "torch.nn.functional.kl_div": id(torch.nn.functional.kl_div),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "gradients on": torch.is_grad_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "random states": [
            torch.get_rng_state().sum().item(), repr(random.getstate()), repr(numpy.random.get_state())
        ],
        "numpy errors": repr(numpy.geterr()),
        "excepthook": id(sys.excepthook),
    }

before, modules = state(), set(sys.modules)
import kullback
for name in kullback.__all__:
    getattr(kullback, name)
after = state()
print(json.dumps({
    "changed": [name for name in before if before[name] != after[name]],
    "imported": sorted({module.partition(".")[0] for module in set(sys.modules) - modules}),
}))
"""


@pytest.fixture(scope="module")
def fresh_import() -> dict[str, list[str]]:
    return json.loads(python(IMPORT_PROBE))


def test_import_changes_nothing_global(fresh_import):
    assert fresh_import["changed"] == []


def test_import_needs_neither_scipy_nor_an_optional_package(fresh_import):
    assert "kullback" in fresh_import["imported"]
    assert set(fresh_import["imported"]).isdisjoint(NOT_IMPORTED)


def test_importing_kullback_loads_nothing_else():
    program = """
import sys
import kullback
print(*(name for name in sys.modules if name.partition(".")[0] in ("kullback", "numpy", "scipy", "torch")))
"""
    assert python(program).split() == ["kullback"]


# What each of these has no use for, and so does not wait for.
NOT_NEEDED = {
    "Probs": {
        "generators",
        "kernels",
        "pairs",
        "estimators",
        "tables",
        "predictions",
        "models",
        "io",
        "report",
    },
    "KL": {
        "kernels",
        "pairs",
        "estimators",
        "tables",
        "predictions",
        "models",
        "io",
        "report",
        "functional",
        "losses",
    },
    "Samples": {
        "generators",
        "kernels",
        "pairs",
        "estimators",
        "tables",
        "predictions",
        "models",
        "io",
        "report",
    },
    "kl_divergence": {
        "estimators",
        "tables",
        "predictions",
        "models",
        "io",
        "report",
        "cli",
        "functional",
        "losses",
        "nn",
        "metrics",
    },
    "diagnose": {"pairs", "estimators", "tables", "predictions", "models", "io", "report", "cli"},
    "two_sample_test": {"kernels", "pairs", "tables", "predictions", "models", "io", "report", "cli"},
    "compare_tables": {"kernels", "pairs", "predictions", "models", "io", "report", "cli"},
    "compare_predictions": {"pairs", "estimators", "tables", "models", "report", "cli"},
    "compare_models": {"pairs", "estimators", "tables", "report", "cli"},
}


# Each name is imported in a process of its own, forked from one that has imported torch and no part of kullback.
LOADED_PROBE = """
import json, os, sys
import torch

assert "kullback" not in sys.modules
for name in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    exec(f"from kullback import {name}")
    loaded = {module.split(".")[1] for module in sys.modules if module.startswith("kullback.")}
    print(json.dumps([name, sorted(loaded)]), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    return dict(map(json.loads, python(LOADED_PROBE, *NOT_NEEDED).splitlines()))


@pytest.mark.heavy
@pytest.mark.parametrize("name", NOT_NEEDED)
def test_a_public_name_loads_what_it_needs_alone(name, loaded):
    assert loaded[name]
    assert set(loaded[name]) & NOT_NEEDED[name] == set()


def test_a_public_name_is_what_its_module_defines():
    typed = {}
    for node in ast.walk(ast.parse(Path(kullback.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kullback"):
            typed |= {alias.name: node.module for alias in node.names}
    assert typed.keys() == set(kullback.__all__) - {"__version__"}
    for name, module in typed.items():
        assert getattr(kullback, name) is getattr(importlib.import_module(module), name)


def test_the_listing_has_the_public_names_and_no_other_name_is_there():
    assert set(kullback.__all__) <= set(dir(kullback))
    with pytest.raises(AttributeError, match="module 'kullback' has no attribute 'kl_convergence'"):
        _ = kullback.kl_convergence


@pytest.mark.heavy
def test_a_public_name_may_be_first_used_inside_a_compiled_function():
    program = """
import torch, kullback

@torch.compile(fullgraph=True, backend="eager")
def loss(p, q):
    return kullback.functional.distillation_loss(student=q, teacher=p)

print(loss(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.2, 0.8]]).log()).item())
"""
    assert float(python(program)) == pytest.approx(0.2231435513142097, rel=1e-5)  # log(5 / 4)


@pytest.mark.sweep
def test_the_verb_and_the_drop_ins_work_without_scipy_and_any_optional_package():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({NOT_IMPORTED!r}))  # None in sys.modules: the import fails
import torch, kullback, kullback.functional, kullback.nn
p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
print(kullback.kl_divergence(kullback.Probs(p), kullback.Probs(q)).item())
print(kullback.functional.kl_div(q.log(), p, reduction="batchmean").item())
print(kullback.nn.KLDivLoss(reduction="batchmean")(q.log(), p).item())
"""
    expected = 0.14384103622589045  # log(4 / 3) / 2
    assert [float(line) for line in python(program).split()] == pytest.approx([expected] * 3, rel=1e-6)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(REPOSITORY),
    ]
    environment = os.environ | {"KULLBACK_NATIVE": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_pure_and_holds_the_package_and_nothing_else(wheel):
    assert wheel.name == f"kullback-{kullback.__version__}-py3-none-any.whl"
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = REPOSITORY / "src"
    modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
    assert modules | {"kullback/py.typed"} <= packed
    assert {name.split("/")[0] for name in packed} == {
        "kullback",
        f"kullback-{kullback.__version__}.dist-info",
    }
    assert not [name for name in packed if name.endswith((".pyc", ".so"))]


def test_the_wheel_holds_the_files_that_the_modules_read(wheel):
    source = REPOSITORY / "src"
    data = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc", ".so"}
    }
    assert data <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_says_what_it_needs(wheel):
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"kullback-{kullback.__version__}.dist-info/METADATA").decode()
    assert "Requires-Python: >=3.11" in text
    required = re.findall(r"^Requires-Dist: ([a-z]+)[^;\n]*$", text, re.MULTILINE)
    assert sorted(required) == ["numpy", "scipy", "torch"]


def test_the_wheel_has_the_readme_with_whole_addresses(wheel):
    """README's links are relative; an index, which shows it without the repository, gets absolute ones."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"kullback-{kullback.__version__}.dist-info/METADATA").decode()
    check_description(text)


def test_readme_gives_exactly_the_two_commands():
    readme = (REPOSITORY / "README.md").read_text()
    commands = re.findall(r"^\s*\$?\s*(make\b[^#\n]*)", readme, re.MULTILINE)
    assert [command.strip() for command in commands] == ["make run", "make test"]


def test_the_makefile_has_the_targets_that_are_promised():
    makefile = (REPOSITORY / "Makefile").read_text()
    assert {"run", "test", "lint", "docs", "bench", "wheel"} <= set(
        re.findall(r"^([a-z]+):", makefile, re.MULTILINE)
    )


def test_no_file_holds_the_marks_of_a_merge():
    marks = tuple(mark * 7 + " " for mark in "<>")
    root = Path(__file__).parents[1]
    folders = ("benchmarks", "csrc", "docs", "examples", "src", "tests")
    suffixes = {".py", ".md", ".toml", ".yml", ".txt", ".h", ".cpp", ".css", ".j2"}
    paths = [path for folder in folders for path in (root / folder).rglob("*")] + list(root.iterdir())
    for path in paths:
        if path.is_file() and path.suffix in suffixes:
            assert not [line for line in path.read_text("utf-8").splitlines() if line.startswith(marks)], path
