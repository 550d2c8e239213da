"""No test draws without a seed: the same numbers on every run, so that a failure seen once is seen again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
# Constructors of generators, which without an argument ask the operating system for a seed.
UNSEEDED_WITHOUT_ARGUMENT = {"Random", "default_rng", "SeedSequence", "RandomState", "PCG64", "Philox"}
# What draws from the global generators of the standard library and of NumPy, which no fixture seeds.
STANDARD = {
    "betavariate",
    "choice",
    "choices",
    "gauss",
    "randint",
    "random",
    "randrange",
    "sample",
    "shuffle",
    "uniform",
}
NUMPY = STANDARD | {"normal", "permutation", "poisson", "rand", "randn", "standard_normal", "standard_t"}
# What draws from torch's global generator, which conftest.py seeds before each test but not while modules are read.
TORCH = {
    "bernoulli",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
}


def dotted(node: ast.expr) -> str:
    """The name that is called, `np.random.default_rng`; empty for anything but names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unseeded(source: str) -> Iterator[str]:
    """The draws of a module that no seed determines, as 'line: call'."""
    tree = ast.parse(source)
    in_functions = {
        id(call)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for call in ast.walk(function)
    }
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        module, _, name = dotted(call.func).rpartition(".")
        if (
            (name in UNSEEDED_WITHOUT_ARGUMENT and not call.args and not call.keywords)
            or (name == "Random" and "SystemRandom" in module)
            or (module == "random" and module in imported and name in STANDARD)
            or (module in ("np.random", "numpy.random") and name in NUMPY)
            or (
                module == "torch"
                and name in TORCH
                and id(call) not in in_functions
                and "generator" not in {keyword.arg for keyword in call.keywords}
            )
        ):
            yield f"{call.lineno}: {module}.{name}"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_draw_has_a_seed(path: Path) -> None:
    assert list(unseeded(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import random\nrng = random.Random()",
        "import numpy as np\ndef test_x():\n    np.random.default_rng().normal()",
        "import numpy as np\ndef test_x():\n    np.random.normal(3)",
        "import random\ndef test_x():\n    random.choice([1, 2])",
        "import torch\nX = torch.randn(3)",
    ],
)
def test_a_draw_without_a_seed_is_found(source: str) -> None:
    assert len(list(unseeded(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import random\nrng = random.Random(0)",
        "import numpy as np\nrng = np.random.default_rng(seed=3)",
        "import torch\nX = torch.randn(3, generator=torch.Generator().manual_seed(0))",
        "import torch\ndef test_x():\n    torch.randn(3)",  # conftest.py seeds it
    ],
)
def test_a_draw_with_a_seed_is_left_alone(source: str) -> None:
    assert list(unseeded(source)) == []
