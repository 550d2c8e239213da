"""One loop in the tree refines panels, for integrals along the line, sums over integers, means and masses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[3] / "src" / "kullback"
# Functions that give nodes of panels, integrate over panels, or halve them.
OF_PANELS = {"panel_nodes", "integrate_panels", "nodes_of", "sum_panels", "halves"}
THE_LOOP = ["pairs/integration/panels.py: integrate"]


def called(node: ast.AST) -> set[str]:
    """The names of the functions that are called in a part of the source."""
    functions = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
    return {getattr(f, "attr", getattr(f, "id", "")) for f in functions}


def repeats(node: ast.AST) -> bool:
    """Whether a loop repeats a step, as `while` and `for _ in range(n)` do; other loops run over things that exist."""
    if isinstance(node, ast.For):
        return bool(called(node.iter) & {"range", "count", "repeat", "cycle"})
    return isinstance(node, ast.While)


def loops_over_panels(source: str) -> Iterator[str]:
    """The functions with a loop that repeats a step on panels, directly or through functions of the same file.

    A function that calls the one loop may be repeated: it is a complete integral.
    """
    if not any(name in source for name in OF_PANELS):
        return
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    calls = {function.name: called(function) for function in functions}
    calls = {name: names for name, names in calls.items() if "integrate" not in names}
    of_panels = set(OF_PANELS)
    while more := {name for name, names in calls.items() if names & of_panels} - of_panels:
        of_panels |= more
    for function in functions:
        if any(repeats(node) and called(node) & of_panels for node in ast.walk(function)):
            yield function.name


def test_one_loop_refines_panels() -> None:
    loops = [
        f"{path.relative_to(PACKAGE).as_posix()}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in loops_over_panels(path.read_text(encoding="utf-8"))
    ]
    assert loops == THE_LOOP


def test_another_loop_is_found() -> None:
    one = "def f(edges):\n    while not enough():\n        v, half = panel_nodes(*edges)"
    other = "def g(x):\n    return sum_panels(x)\ndef f(x):\n    for _ in range(9):\n        x = g(x)"
    third = "def f(rule, x):\n    while True:\n        x = rule.halves(*x)"
    assert [list(loops_over_panels(source)) for source in (one, other, third)] == [["f"]] * 3
