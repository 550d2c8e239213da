"""The notebooks were executed from top to bottom, and what they show is what their cells give now.

Cells run in this process, without a kernel, so that no test needs Jupyter; the last expression of a cell is its result.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.heavy

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "examples" / "notebooks").glob("*.ipynb"))
EACH = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(source: str, names: dict[str, Any]) -> tuple[object, str]:
    """Execute a cell; return the value of its last expression, None after a semicolon, and what it printed."""
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own notebook
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    return (None if source.rstrip().endswith(";") else value), printed.getvalue()


def shown(cell: dict[str, Any]) -> dict[str, str] | None:
    """What the notebook shows as the result of a cell, by its form."""
    results = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    assert len(results) <= 1
    return {form: "".join(text) for form, text in results[0].items()} if results else None


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@EACH
def test_it_was_executed_in_order_and_without_an_error(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds <= {"execute_result", "display_data", "stream"}
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert str(Path.home()) not in path.read_text(encoding="utf-8")


@EACH
def test_it_shows_what_its_cells_give(path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells(path):
        value, printed = run("".join(cell["source"]), names)
        result = shown(cell)
        assert (result is None) == (value is None)
        if result is not None:
            assert result["text/plain"] == repr(value)
            if "text/html" in result:
                assert result["text/html"] == value._repr_html_()
        texts = [output["text"] for output in cell["outputs"] if output["output_type"] == "stream"]
        assert printed == "".join("".join(text) for text in texts)
    pyplot.close("all")


def test_a_cell_that_no_longer_gives_what_it_shows_is_found(tmp_path: Path) -> None:
    output = {"output_type": "execute_result", "data": {"text/plain": ["3"]}}
    cell = {"cell_type": "code", "source": ["1 + 1"], "outputs": [output], "execution_count": 1}
    path = tmp_path / "wrong.ipynb"
    path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    with pytest.raises(AssertionError):
        test_it_shows_what_its_cells_give(path)
