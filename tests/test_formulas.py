"""Every formula of the docstrings and of the pages becomes MathML of which no TeX is left.

The pages are also read where they lie, so that Markdown has to leave their formulas as they are written.
"""

from __future__ import annotations

import ast
import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import markdown
import pytest
from markdown_it import MarkdownIt

from tests.house_style import house_style

ROOT = Path(__file__).parents[1]
SHOWN = re.compile(r"<[^>]+>")
BLOCK = re.compile(r"^( *)```math\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^( *)(`{3,})[^`\n]*\n.*?^\1\2 *$|(`+)[^`]+?\3(?!`)", re.MULTILINE | re.DOTALL)
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])


@pytest.fixture(scope="module")
def style() -> ModuleType:
    return house_style()


def texts(style: ModuleType) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        yield page, page.read_text(encoding="utf-8")
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield path, style.as_markdown(inspect.cleandoc(ast.get_docstring(node) or ""))


def formulas_in(style: ModuleType, text: str) -> list[str]:
    return [many for _, many in BLOCK.findall(text)] + re.findall(style.FORMULA, CODE.sub("", text))


def left_over(style: ModuleType, source: str) -> str:
    shown = html.unescape(SHOWN.sub("", style.block_formula(source)))
    return "".join(sorted(set(re.findall(r"[\\&$]", shown))))


def on_the_site(style: ModuleType, text: str) -> str:
    """Return the HTML of a page's Markdown."""
    return markdown.markdown(text, extensions=[style.Pages(), "tables"])


def test_what_is_left_over_is_seen(style: ModuleType) -> None:
    assert left_over(style, r"a &= b") == "&"
    assert left_over(style, r"\nosuch a") == "\\"
    assert not left_over(style, r"\text{kl\_div} = \sum_i p_i")


@pytest.mark.sweep
def test_no_formula_shows_its_tex(style: ModuleType) -> None:
    formulas = [(path, source) for path, text in texts(style) for source in formulas_in(style, text)]
    assert len(formulas) > 300
    assert len({path for path, _ in formulas if path.suffix == ".md"}) >= 5
    assert [(path.name, source) for path, source in formulas if left_over(style, source)] == []


def test_a_dollar_in_the_prose_of_a_page_belongs_to_a_formula(style: ModuleType) -> None:
    for page in PAGES:
        prose = re.sub(style.FORMULA, "", CODE.sub("", page.read_text(encoding="utf-8")))
        assert "$" not in prose, page


def test_the_site_shows_formulas_and_leaves_code_as_it_is(style: ModuleType) -> None:
    shown = on_the_site(style, r"With $p_i \log q_i$ and `a$b$c`, $\frac12$. A cent is 0.01 \$, 2 $ are two.")
    assert shown.count("<math") == 2
    assert "<mi>log</mi>" in shown
    assert "<code>a$b$c</code>" in shown
    assert "2 $ are two" in shown
    cells = on_the_site(style, "| a | b |\n|---|---|\n| `x` | $\\sqrt{p_i} - \\sqrt{q_i}$ |\n")
    assert cells.count("<td>") == 2
    assert cells.count("<msqrt>") == 2


def test_a_logarithm_stands_apart_from_its_factor(style: ModuleType) -> None:
    spaced = '<mspace width="0.167em" />'
    assert spaced in style.formula(r"p_i \log\frac{p_i}{q_i}", "inline")
    assert style.formula(r"p_i \,\log q_i", "inline").count(spaced) == 1
    assert spaced not in style.formula(r"\log p - \log q", "inline")


def read_plainly(text: str) -> str:
    """Return the text of a page as a plain renderer of Markdown shows it, without code and comments."""
    reader = MarkdownIt("commonmark").enable("table")
    inline = [token for token in reader.parse(text) if token.type == "inline"]
    # Each piece on a line of its own: a formula that emphasis or an escape breaks up is seen.
    return "\n".join(piece.content for token in inline for piece in token.children if piece.type == "text")


def test_what_markdown_breaks_up_is_seen(style: ModuleType) -> None:
    for broken in (r"$p \, q$", r"$\{p\}$", "$*p*$", "$x_{p}_i x_{q}_i$", r"$a \| b$"):
        assert re.findall(style.FORMULA, broken) != re.findall(style.FORMULA, read_plainly(broken)), broken


@pytest.mark.sweep
def test_a_plain_renderer_leaves_formulas_as_they_are_written(style: ModuleType) -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        written = re.findall(style.FORMULA, CODE.sub("", text))
        assert re.findall(style.FORMULA, read_plainly(text)) == written, page
