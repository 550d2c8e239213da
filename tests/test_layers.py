"""Imports run one way through the layers, in no circle, and no file holds two ideas.

Every import counts: at module level, inside functions, under TYPE_CHECKING, and by strings.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.distributions import Laplace, Normal

import kullback
from kullback.pairs.torch_registry import PLANS

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "kullback"

# From the bottom up: a part imports from layers below its own and from itself, never from a neighbor. A part is a file
# or an inner folder. Every folder that has inner folders is listed: their files import no decision of the parent's.
# So is diagnosis, a flat folder.
LAYERS = {
    "kullback": (
        {"errors"},
        {"common"},
        {"generators", "partial_rows", "representations"},
        {"io", "kernels", "results", "samples"},
        {"parallel"},
        {"estimators", "pairs"},
        {"operands"},
        {"dispatch"},
        {"information", "losses"},
        {"predictions"},
        {"mismatch"},
        {"diagnosis", "fitting", "functional", "metrics", "nn", "policy", "tables"},
        {"models"},
        {"comparison"},
        {"report", "testing"},
        {"cli", "integrations"},
        {"__init__", "__main__"},
    ),
    "kullback.diagnosis": (
        {"reading"},
        {"shapes", "values"},
        {"case"},
        {"checks", "suggestion"},
        {"diagnosis_result"},
        {"__init__"},
    ),
    "kullback.estimators": (
        {"draws"},
        {"evidence"},
        {
            "dependence",
            "permutations",
            "registry",
            "surfaces",
            "tails",
        },
        {"logistic"},
        {"knn"},
        {"discrete", "variational"},
        {"known_categories"},
        {"histogram", "importance", "known_density"},
        {"density_ratio"},
        {"choose_estimator"},
        {"two_sample_test"},
        {"__init__"},
    ),
    "kullback.io": (
        {"source_files", "windows"},
        {"class_columns", "row_checks", "row_stream"},
        {"arrays", "parquet"},
        {"csv_text", "llama_cpp_base", "safetensors_file"},
        {"reference_file", "row_sources", "tokens", "vectors"},
        {"reference_writer"},
        {"top_k"},
        {"top_k_reference"},
        {"__init__"},
    ),
    "kullback.kernels": (
        {"codes", "overlap", "row_operation"},
        {"label_terms"},
        {"reference"},
        {"kernel_arguments"},
        {"native", "triton"},
        {"backends", "kl_div_terms", "row_sums"},
        {"selected_rows"},
        {"whole_rows"},
        {"__init__"},
    ),
    "kullback.pairs": (
        {"torch_registry"},
        {"family"},
        {"clone", "numerics", "solve_options"},
        {"native_forms"},
        {"registry"},
        {"sampling"},
        {"densities"},
        {"support"},
        {"families"},
        {"closed_forms", "scipy_adapter"},
        {"coverage", "integration"},
        {"monte_carlo", "univariate"},
        {"refusals"},
        {"solve"},
        {"bounds", "install"},
        {"__init__"},
    ),
    "kullback.report": (
        {"document", "llama_cpp", "repeat"},
        {"plots", "schemas"},
        {"subjects"},
        {"figure", "frame", "html", "json", "markdown", "terminal"},
        {"card"},
        {"__init__"},
    ),
    "kullback.tables": (
        {"columns"},
        {"arguments", "choose_bins", "engines", "table_results"},
        {"row_order"},
        {"inference", "table_profile"},
        {"plot_bins", "reference_profile", "table_findings"},
        {"table_settings"},
        {"contingency"},
        {"compare_two_tables"},
        {"__init__"},
    ),
}
# The one import from below: a result opens its report by name, at its first use, as the report imports the results.
LATE = {"kullback.common.display -> kullback.report"}
LONGEST_FILE = 650


@cache
def module_names(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a folder's name stands for its __init__."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def called_name(node: ast.AST) -> str | None:
    """The last name of a call's function, as `import_module` of `importlib.import_module(...)`."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def beginning(node: ast.AST) -> str | None:
    """The text that a string begins with: all of it, or of an f-string the names before the first computed one."""
    if isinstance(node, ast.JoinedStr):
        text = beginning(node.values[0]) if node.values else None
        return text and text.rpartition(".")[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def named_by_strings(nodes: list[ast.AST]) -> Iterator[str]:
    """The dotted names in the strings of a file that imports by name, and those that `load` is called with."""
    calls = [node for node in nodes if called_name(node) in {"import_module", "__import__", "load"}]
    loads_alone = all(called_name(call) == "load" for call in calls)
    for node in [call.args[0] for call in calls] if loads_alone else nodes:
        text = beginning(node)
        if text and re.fullmatch(r"kullback(\.\w+)+", text):
            yield text


def imports_computed_names(path: Path) -> bool:
    """Whether a file imports a module whose name does not begin with written text."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = [node.args[0] for node in nodes if called_name(node) in {"import_module", "__import__"}]
    return any(beginning(name) is None for name in names)


class Names(NamedTuple):
    """What one reading of a file gives.

    Attributes:
        imported: the absolute dotted names that it imports, `from a import b` as `a.b`, and those that it names in
            strings.
        in_code: every name, attribute, imported name and string constant; not the words of docstrings and comments.
    """

    imported: list[str]
    in_code: frozenset[str]


@cache
def names_of(path: Path, module: str) -> Names:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = [*named_by_strings(nodes), *named_by_statements(nodes, path, module)]
    return Names(imported, frozenset(names_in(nodes)))


def named_by_statements(nodes: list[ast.AST], path: Path, module: str) -> Iterator[str]:
    enclosing = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in nodes:
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
        module: {found for name in names_of(path, module).imported if (found := module_of(name))} - {module}
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
        if f"{module} -> {imported}" not in LATE
        if (importer := part_of(module, folder)) and (source := part_of(imported, folder))
        if importer != source and layers[source] >= layers[importer]
    ]


def import_circle(package: Path) -> list[str]:
    """One circle of imports between files, or nothing."""
    try:
        graph = import_graph(package)
        TopologicalSorter(
            {a: {b for b in found if f"{a} -> {b}" not in LATE} for a, found in graph.items()}
        ).prepare()
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
    assert "kullback.report" in graph["kullback.common.display"]


def test_no_file_is_longer_than_one_idea():
    in_cpp = [path for path in (REPOSITORY / "csrc").rglob("*") if path.suffix in {".cpp", ".h"}]
    sources = [*PACKAGE.rglob("*.py"), *in_cpp]
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


@pytest.mark.parametrize(
    "statement",
    [
        'from importlib import import_module\nimport_module("kullback.dispatch")',
        'import importlib\nimportlib.import_module("kullback.dispatch")',
        '__import__("kullback.dispatch")',
        'from importlib import import_module\nimport_module(f"kullback.dispatch.{__name__}")',
        'from importlib import import_module\nMODULES = {"x": "kullback.dispatch"}\nimport_module(MODULES["x"])',
    ],
)
def test_an_upward_import_by_a_string_is_found(tmp_path, statement):
    package = write_package(tmp_path, {"__init__.py": "", "dispatch.py": "", "generators.py": statement})
    assert upward_imports(package) == ["kullback.generators -> kullback.dispatch"]


@pytest.mark.sweep
def test_only_three_files_import_computed_names():
    """Those are the table of the public names, the import of optional packages, and the table of reports by subject."""
    computed = {name for name, path in module_names(PACKAGE).items() if imports_computed_names(path)}
    assert computed == {"kullback", "kullback.common.optional", "kullback.report.subjects"}


def test_the_late_import_is_in_a_function():
    program = "import sys, kullback.common.display; print('kullback.report' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Losses in use: a call may import late, so the program draws, compares and takes a gradient before it looks.
LOSSES_IN_USE = """
import sys
import torch
of_torch = set(sys.modules)
import kullback.functional as F, kullback.nn, kullback.policy

logits = torch.tensor([[2.0, 0.0, -1.0, 1.0]])
teacher = F.SampledTail.draw(logits, k=2, draws=3, generator=torch.Generator().manual_seed(0))
student = torch.zeros(1, 4, requires_grad=True)
kullback.nn.DistillationLoss()(student=student, teacher=teacher).backward()
F.top_k_divergence_bounds(teacher.top, teacher.top, "js")
names = set(sys.modules) - of_torch
readers = {"csv", "h5py", "pandas", "pyarrow", "safetensors", "sqlite3"}
print(sorted(n for n in names if n.startswith("kullback.io") or n.partition(".")[0] in readers))
print("kullback.losses.sampled_tail" in names)
"""


def caches_of(type_p, type_q):
    """The dictionaries whose keys contain a pair of types, wherever they are, also inside of `functools.lru_cache`."""
    gc.unfreeze()  # `get_referrers` does not see what conftest.py has frozen
    try:
        keys = [x for x in gc.get_referrers(type_p) if type(x) is tuple and type_q in x]
        holders = gc.get_referrers(*keys)  # all keys together: each search goes through all objects
        caches = {id(x): x for x in holders if isinstance(x, dict) and any(key in x for key in keys)}
    finally:
        gc.freeze()
    return list(caches.values())


@pytest.mark.sweep
def test_one_cache_holds_the_plan_of_a_pair():
    class OwnNormal(Normal):
        pass

    class OwnLaplace(Laplace):
        pass

    p, q = OwnNormal(0.0, 1.0), OwnLaplace(0.5, 2.0)
    with kullback.install():
        torch.distributions.kl_divergence(p, q)
        kullback.estimate(p, q)
        for kind in ("kl", "reverse_kl", "js", "renyi:2"):
            kullback.divergence(p, q, kind)
        caches = caches_of(OwnNormal, OwnLaplace)
        assert [x is PLANS for x in caches] == [True], caches
    another = {(OwnNormal, OwnLaplace): "a rule"}
    assert [x is another for x in caches_of(OwnNormal, OwnLaplace)] == [True]
    remembered = functools.lru_cache(lambda *types: len(types))
    remembered(OwnNormal, OwnLaplace)
    assert len(caches_of(OwnNormal, OwnLaplace)) == 2


def test_the_losses_load_no_file_reader():
    done = subprocess.run([sys.executable, "-c", LOSSES_IN_USE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


def test_an_import_of_a_neighbor_is_found(tmp_path):
    package = write_package(
        tmp_path, {"representations.py": "", "generators.py": "import kullback.representations"}
    )
    assert upward_imports(package) == ["kullback.generators -> kullback.representations"]


def test_an_import_of_the_public_face_from_inside_is_found(tmp_path):
    package = write_package(tmp_path, {"__init__.py": "", "nn.py": "from kullback import kl_divergence"})
    assert upward_imports(package) == ["kullback.nn -> kullback"]


def test_an_inner_folder_that_imports_a_decision_of_its_parent_is_found(tmp_path):
    files = {
        "pairs/densities/density.py": "from kullback.pairs.solve import estimate",
        "pairs/solve.py": "",
    }
    package = write_package(tmp_path, files)
    assert upward_imports(package, "kullback.pairs") == [
        "kullback.pairs.densities.density -> kullback.pairs.solve"
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


def makers_of_intervals(package: Path) -> set[str]:
    """The functions that give an `Estimate` its interval, or make limits from evidence, as 'module.function'."""
    makers = set()
    for module, path in module_names(package).items():
        if not module.startswith(("kullback.dispatch", "kullback.estimators", "kullback.pairs")):
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                names = {keyword.arg for keyword in getattr(node, "keywords", ())}
                called = called_name(node)
                made = called == "Estimate" and ("interval" in names or len(node.args) > 3)
                if made or (called == "replace" and "interval" in names) or called == "_limits":
                    makers.add(f"{module}.{function.name}")
    return makers


def test_one_function_makes_intervals_from_evidence(tmp_path):
    """One more function makes an `Estimate` of both, and one changes the numbers of an estimate, as to bits."""
    evidence = "kullback.estimators.evidence"
    wanted = {f"{evidence}.interval_from", f"{evidence}.estimate_of", "kullback.pairs.solve.with_numbers"}
    assert makers_of_intervals(PACKAGE) == wanted
    files = {
        "estimators/a.py": "def f(value, low, high):\n    return Estimate(value, None, 'a', (low, high))",
        "estimators/b.py": "def f(estimate, low, high):\n    return replace(estimate, interval=(low, high))",
        "estimators/c.py": "def f(value):\n    return Estimate(value, None, 'summation')",
    }
    assert makers_of_intervals(write_package(tmp_path, files)) == {
        "kullback.estimators.a.f",
        "kullback.estimators.b.f",
    }


# ---- A family is one file.
# A family is named in its own file, and in those of other families for which they have a closed form with it.
MOST_FILES = 6
# These are also tools: a normal variable drives draws, a uniform one distribution functions, classes hold weights.
TOOLS = {
    "Categorical",
    "LowRankMultivariateNormal",
    "MultivariateNormal",
    "Normal",
    "OneHotCategorical",
    "Uniform",
}
FAMILY_FILES = "kullback.pairs.families"


def names_in(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def files_naming(family: str) -> list[str]:
    return [
        module for module, path in module_names(PACKAGE).items() if family in names_of(path, module).in_code
    ]


def test_a_family_is_named_in_few_files():
    import kullback.dispatch  # noqa: F401 - it registers the families
    from kullback.pairs.family import FAMILIES

    files = {kind.__name__: files_naming(kind.__name__) for kind in FAMILIES}
    assert {name: of for name, of in files.items() if len(of) > MOST_FILES and name not in TOOLS} == {}
    assert files["Gamma"] == [f"{FAMILY_FILES}.{name}" for name in ("gamma", "uniform", "weibull")]
    assert files["StudentT"] == [f"{FAMILY_FILES}.{name}" for name in ("cauchy", "student_t")]


def test_a_table_of_families_outside_of_their_files_is_found():
    """No file of the package names three families of numbers, except where they are parts of torch's own classes."""
    import kullback.dispatch  # noqa: F401
    from kullback.pairs.family import FAMILIES

    numbers = {kind.__name__ for kind, record in FAMILIES.items() if record.density is not None} - TOOLS
    tables = {
        module: sorted(numbers & names_of(path, module).in_code)
        for module, path in module_names(PACKAGE).items()
        if not module.startswith(FAMILY_FILES) and len(numbers & names_of(path, module).in_code) > 2
    }
    assert tables == {}
