"""Optional packages: every remedy names a distribution that provides the module."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kullback.common.optional import _DISTRIBUTIONS, load
from kullback.errors import OptionalDependencyError

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
REQUIRED = {"kullback", "numpy", "scipy", "torch", "triton"}  # triton comes with torch for CUDA
INSTALL = re.compile(r"pip install ((?:[A-Za-z0-9_.-]+ ?)+)")


def names_of(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in requirements}


def normalized(name: str) -> str:
    """The name of a distribution as pip writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def extras() -> set[str]:
    """What the extras for users bring."""
    groups = PROJECT["optional-dependencies"]
    return set().union(*(names_of(group) for name, group in groups.items() if name != "dev")) - REQUIRED


def modules_in(path: Path, *, statements: bool = True) -> Iterator[str]:
    """The modules that a file imports absolutely, by a statement or by `load`; or by `load` alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if statements and isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif statements and isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "load":
            given = node.args[0]
            first = given.values[0] if isinstance(given, ast.JoinedStr) else given
            if isinstance(first, ast.Constant):
                yield first.value


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """The installed distributions of each importable package."""
    return packages_distributions()


@functools.cache
def offered_packages() -> list[str]:
    """What the source imports and an extra brings; a data frame of another library needs no remedy."""
    packages = {module.partition(".")[0] for path in SOURCES for module in modules_in(path)}
    brought = extras()
    return sorted(
        package for package in packages if brought & set(map(normalized, distributions().get(package, ())))
    )


@pytest.mark.sweep
def test_the_search_finds_the_packages_of_the_extras():
    assert {"click", "matplotlib", "pyarrow", "safetensors", "sklearn", "torchmetrics"} <= set(
        offered_packages()
    )


@pytest.mark.sweep
def test_the_remedy_installs_the_package_that_is_missing(monkeypatch):
    for package in offered_packages():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(OptionalDependencyError) as caught:
            load(f"{package}.some_module", "the feature")
        monkeypatch.undo()
        message = str(caught.value)
        assert message.startswith("the feature needs "), package
        assert "\n" not in message, package
        remedy = INSTALL.search(message)
        assert remedy, message
        for name in remedy[1].split():
            assert name in set(map(normalized, distributions()[package])), package
            assert name in extras(), f"no extra of kullback brings {name}"


@pytest.mark.sweep
def test_every_package_that_is_loaded_has_an_extra():
    # By name, as llama-cpp-python is not installed where nothing compiles.
    loaded = {module.partition(".")[0] for path in SOURCES for module in modules_in(path, statements=False)}
    assert loaded >= {"llama_cpp", "transformers", "sklearn"}
    assert {_DISTRIBUTIONS.get(package, package) for package in loaded} <= extras()


def test_nothing_tells_to_install_kullback_from_an_index():
    # As long as no index has it, the name there is anybody's.
    telling = re.compile(r"pip install ['\"]?kullback")
    assert not [path for path in (*SOURCES, *PAGES) if telling.search(path.read_text(encoding="utf-8"))]


def requirements_of(extra: str) -> set[str]:
    """What an extra brings, with the extras that it names."""
    found = set()
    for each in PROJECT["optional-dependencies"][extra]:
        inner = re.fullmatch(r"kullback\[(.*)\]", each)
        found |= set().union(*map(requirements_of, inner[1].split(","))) if inner else {each}
    return found


def test_all_brings_every_extra_but_those_that_the_readme_names_beside_it():
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    (beside,) = re.findall(r"`'\.\[all\]'` for all of these; (.*?)\.( |$)", readme)
    left_out = set(re.findall(r"'\.\[(\w+)\]'", beside[0]))
    assert left_out == {"gguf", "verl"}
    others = PROJECT["optional-dependencies"].keys() - left_out - {"all", "dev"}
    assert requirements_of("all") == set().union(*map(requirements_of, others))
    assert requirements_of("dev") >= requirements_of("all")


@pytest.mark.parametrize("version", ["5.10.4", "5.18.0", "5.24.0"])
def test_the_extras_take_the_versions_of_transformers_that_verl_and_nemo_need(version):
    ranges = [Requirement(each) for name in ("models", "trainers") for each in requirements_of(name)]
    found = [each.specifier for each in ranges if each.name == "transformers"]
    assert len(found) == 2
    assert all(version in each for each in found)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_extras_that_a_page_names_exist(path):
    text = path.read_text(encoding="utf-8")
    named = {extra for group in re.findall(r"'\.\[([^]]*)\]'", text) for extra in group.split(",")}
    assert named <= PROJECT["optional-dependencies"].keys()
