"""Imports run one way through the layers, in no circle, and no file holds two ideas.

Every import counts: at module level, inside functions, and under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "kullback"

# From the bottom up: a part imports from layers below its own and from itself, never from a neighbor. A part is a file
# or an inner folder. Every folder that has inner folders is listed: their files import no decision of the parent's.
# So is diagnosis, a flat folder.
LAYERS = {
    "kullback": (
        {"short_repr"},
        {"estimate", "numeric", "results", "serial_dependence", "special", "words"},
        {"errors"},
        {"files", "findings", "inputs", "optional"},
        {"shown"},
        {"progress", "schedules", "streaming"},
        {"representations", "generators", "reduction"},
        {"control_variate", "kernels", "io", "samples"},
        {"parallel"},
        {"functional", "pairs", "estimators"},
        {"dispatch"},
        {"regularizer"},
        {"nn", "metrics", "policy", "projection", "tables", "diagnosis", "predictions"},
        {"models"},
        {"report"},
        {"cli", "integrations"},
        {"__init__", "__main__"},
    ),
    "kullback.diagnosis": (
        {"scan"},
        {"reading", "shapes"},
        {"values"},
        {"case"},
        {"checks", "suggestion"},
        {"report"},
        {"__init__"},
    ),
    "kullback.estimators": (
        {"checks", "directions", "draws"},
        {"dependence", "dimension", "knn_entropy", "permutations", "surfaces", "tails"},
        {"lattice", "spans"},
        {"unseen"},
        {"known_categories", "normal_interval"},
        {"known_counts"},
        {"discrete", "importance", "knn", "known_density", "variational"},
        {"histogram", "counted"},
        {"density_ratio"},
        {"dispatch"},
        {"two_sample_test"},
        {"__init__"},
    ),
    "kullback.io": (
        {"files", "windows"},
        {"checks", "reader"},
        {"arrays", "parquet", "rows"},
        {"csv_text", "llamacpp", "reference_layout"},
        {"reference", "tokens", "vectors"},
        {"formats", "reference_writer"},
        {"top_k"},
        {"top_k_reference"},
        {"__init__"},
    ),
    "kullback.kernels": (
        {"codes", "overlap", "row_operation"},
        {"labels"},
        {"reference"},
        {"divergence_codes"},
        {"native", "triton"},
        {"backends", "kl_div_terms", "selected"},
        {"whole_rows"},
        {"__init__"},
    ),
    "kullback.pairs": (
        {"overrides", "torch_registry"},
        {"clone", "numerics", "options"},
        {"native_forms"},
        {"registry"},
        {"rounding", "sampling"},
        {"densities"},
        {"checks", "closed_forms", "scipy_adapter", "support"},
        {"coverage", "integration"},
        {"univariate"},
        {"solve"},
        {"bounds", "install"},
        {"__init__"},
    ),
    "kullback.report": (
        {"document", "estimates", "formats", "llama_cpp"},
        {"plots", "schemas"},
        {"subjects"},
        {"frame", "html", "json", "markdown", "terminal"},
        {"__init__"},
    ),
    "kullback.tables": (
        {"columns"},
        {"arguments", "choose_bins", "engines", "result"},
        {"row_order"},
        {"inference", "profile"},
        {"findings", "histogram", "reference_profile"},
        {"settings"},
        {"contingency"},
        {"compare"},
        {"__init__"},
    ),
}
LONGEST_FILE = 650


def module_names(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a folder's name stands for its __init__."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported_names(path: Path, module: str) -> Iterator[str]:
    """The absolute dotted names that a file's import statements mention, `from a import b` as `a.b`."""
    enclosing = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = enclosing[: len(enclosing) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


@functools.cache
def import_graph(package: Path) -> dict[str, set[str]]:
    """For every module of the package, the modules of the package that it imports."""
    names = module_names(package)

    def module_of(name: str) -> str | None:
        while name and name not in names:
            name = name.rpartition(".")[0]
        return name or None

    return {
        module: {found for name in imported_names(path, module) if (found := module_of(name))} - {module}
        for module, path in names.items()
    }


def part_of(module: str, folder: str) -> str | None:
    """The part of the folder that a module belongs to: its first name below the folder's."""
    if module == folder:
        return "__init__"
    return module.removeprefix(f"{folder}.").split(".")[0] if module.startswith(f"{folder}.") else None


def layer_of(folder: str) -> dict[str, int]:
    """The layer of each part of a folder, counted from the bottom."""
    return {part: layer for layer, parts in enumerate(LAYERS[folder]) for part in parts}


def unplaced_parts(package: Path, folder: str = "kullback") -> set[str]:
    return {part for module in module_names(package) if (part := part_of(module, folder))} - layer_of(
        folder
    ).keys()


def upward_imports(package: Path, folder: str = "kullback") -> list[str]:
    """The imports of a part from its own layer or a higher one, as 'importer -> imported'."""
    layers = layer_of(folder)
    return [
        f"{module} -> {imported}"
        for module, found in import_graph(package).items()
        for imported in sorted(found)
        if (importer := part_of(module, folder)) and (source := part_of(imported, folder))
        if importer != source and layers[source] >= layers[importer]
    ]


def import_circle(package: Path) -> list[str]:
    """One circle of imports between files, or nothing."""
    try:
        TopologicalSorter(import_graph(package)).prepare()
    except CycleError as error:
        return error.args[1]
    return []


EACH_FOLDER = pytest.mark.parametrize("folder", LAYERS)


def test_every_folder_with_inner_folders_is_listed():
    nested = {PACKAGE, *(path.parent.parent for path in PACKAGE.rglob("*/*/__init__.py"))}
    assert {".".join(path.relative_to(PACKAGE.parent).parts) for path in nested} <= set(LAYERS)
    assert all((PACKAGE.parent / folder.replace(".", "/")).is_dir() for folder in LAYERS)


@EACH_FOLDER
def test_every_module_has_its_layer(folder):
    assert unplaced_parts(PACKAGE, folder) == set()


@EACH_FOLDER
def test_imports_run_from_higher_layers_to_lower_ones(folder):
    assert upward_imports(PACKAGE, folder) == []


def test_no_circle_of_imports():
    assert import_circle(PACKAGE) == []


def test_the_graph_sees_the_imports_that_are_there():
    graph = import_graph(PACKAGE)
    assert "kullback.errors" in graph["kullback.representations"]
    assert "kullback.representations" in graph["kullback"]


def test_no_file_is_longer_than_one_idea():
    sources = [*PACKAGE.rglob("*.py"), *(REPOSITORY / "csrc").rglob("*.[ch]*")]
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in sources}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


def write_package(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "kullback"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return package


@pytest.mark.parametrize(
    "statement",
    [
        "from kullback.dispatch import kl_divergence",
        "from kullback import dispatch",
        "from .dispatch import kl_divergence",
        "import kullback.dispatch",
        "def late():\n    from kullback.dispatch import kl_divergence",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kullback import dispatch",
    ],
)
def test_an_upward_import_is_found_however_it_is_written(tmp_path, statement):
    package = write_package(tmp_path, {"__init__.py": "", "dispatch.py": "", "generators.py": statement})
    assert upward_imports(package) == ["kullback.generators -> kullback.dispatch"]


def test_an_import_of_a_neighbor_is_found(tmp_path):
    package = write_package(
        tmp_path, {"representations.py": "", "generators.py": "import kullback.representations"}
    )
    assert upward_imports(package) == ["kullback.generators -> kullback.representations"]


def test_an_import_of_the_public_face_from_inside_is_found(tmp_path):
    package = write_package(tmp_path, {"__init__.py": "", "nn.py": "from kullback import kl_divergence"})
    assert upward_imports(package) == ["kullback.nn -> kullback"]


def test_an_inner_folder_that_imports_a_decision_of_its_parent_is_found(tmp_path):
    files = {"pairs/densities/real.py": "from kullback.pairs.solve import estimate", "pairs/solve.py": ""}
    package = write_package(tmp_path, files)
    assert upward_imports(package, "kullback.pairs") == [
        "kullback.pairs.densities.real -> kullback.pairs.solve"
    ]


def test_a_downward_import_is_allowed(tmp_path):
    package = write_package(tmp_path, {"dispatch.py": "from kullback.errors import explain", "errors.py": ""})
    assert upward_imports(package) == []


def test_a_circle_inside_one_part_is_found(tmp_path):
    files = {
        "kernels/a.py": "from .b import x",
        "kernels/b.py": "def f():\n    from kullback.kernels import a",
    }
    assert set(import_circle(write_package(tmp_path, files))) == {"kullback.kernels.a", "kullback.kernels.b"}


def test_a_module_without_a_layer_is_found(tmp_path):
    assert unplaced_parts(write_package(tmp_path, {"errors.py": "", "helpers.py": ""})) == {"helpers"}
