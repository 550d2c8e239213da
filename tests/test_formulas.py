"""Every formula of the docstrings and of the pages becomes MathML of which no TeX is left."""

from __future__ import annotations

import ast
import html
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = re.compile(r"<[^>]+>")
IN_PAGES = re.compile(r"`#!math ([^`]+)`|^```math\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def style() -> ModuleType:
    pytest.importorskip("griffe")
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location("house_style", ROOT / "docs" / "house_style.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def texts(style: ModuleType) -> Iterator[tuple[Path, str]]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield page, page.read_text(encoding="utf-8")
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield path, style.as_markdown(inspect.cleandoc(ast.get_docstring(node) or ""))


def left_over(style: ModuleType, source: str) -> str:
    shown = html.unescape(SHOWN.sub("", style.block_formula(source)))
    return "".join(sorted(set(re.findall(r"[\\&$]", shown))))


def test_what_is_left_over_is_seen(style: ModuleType) -> None:
    assert left_over(style, r"a &= b") == "&"
    assert left_over(style, r"\nosuch a") == "\\"
    assert not left_over(style, r"\text{kl\_div} = \sum_i p_i")


def test_no_formula_shows_its_tex(style: ModuleType) -> None:
    formulas = [(path, one or many) for path, text in texts(style) for one, many in IN_PAGES.findall(text)]
    assert len(formulas) > 300
    assert [(path.name, source) for path, source in formulas if left_over(style, source)] == []
