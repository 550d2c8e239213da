"""How the documentation reads our docstrings: formulas become MathML, and our section names are understood.

The docstrings are written as the field writes them, with :math:`...`, `.. math::` and the sections
`Gradient:`, `Example:` and `References:`, while mkdocstrings expects Markdown. Formulas are converted when
the pages are built, so that reading them needs no script and no network.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert

import kullback

INLINE = re.compile(r":math:`([^`]+)`")
BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n+\1 +.*)*)$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
TEXT = re.compile(r"\\text(?:tt)?\{[^{}]*\}")
PROSE = re.compile(r"^(Gradient|References):\n((?: +.*\n?|\n)+)", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The docstring with formulas as Markdown code of language `math`, and sections mkdocstrings knows."""
    text = EXAMPLE.sub("Examples:", docstring)
    text = PROSE.sub(lambda m: f"**{m[1]}:**\n\n{textwrap.dedent(m[2])}", text)
    text = BLOCK.sub(lambda m: textwrap.indent(f"```math\n{textwrap.dedent(m[2])}\n```", m[1]), text)
    return INLINE.sub(lambda m: f"`#!math {' '.join(m[1].split())}`", text)


class HouseStyle(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(inspect.cleandoc(obj.docstring.value))


def formula(source: str, display: str) -> str:
    """The formula as MathML; `convert` keeps the backslash of an underscore that stands in a text."""
    return convert(TEXT.sub(lambda m: m[0].replace(r"\_", "_"), source), display=display)


def inline_formula(source: str, _language: str, _css_class: str, _markdown: object) -> str:
    return formula(source, "inline")


def block_formula(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="formula">{formula(source, "block")}</div>'


def on_config(config: Any) -> Any:
    """mkdocs hook: the site has the version in its name; code of language `math` is a formula."""
    config["site_name"] = f"kullback {kullback.__version__}"
    extensions = config["mdx_configs"]
    inline = {"name": "math", "class": "math", "format": inline_formula}
    block = {"name": "math", "class": "math", "format": block_formula}
    extensions.setdefault("pymdownx.inlinehilite", {})["custom_inline"] = [inline]
    extensions.setdefault("pymdownx.superfences", {})["custom_fences"] = [block]
    return config
