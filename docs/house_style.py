"""How the site is made from pages and docstrings that are read in other places, too.

On a forge, the pages show formulas as ``$...$`` or as fences of language ``math``, link to any file of the repository,
and hide the lines that fetch docstrings in comments. The docstrings are written as the field writes them, with
:math:`...`, ``.. math::`` and the sections ``Gradient:``, ``Example:`` and ``References:``, while mkdocstrings expects
Markdown. Formulas become MathML when the site is built, so that reading them needs no script and no network.
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from griffe import Extension, Object
from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension as MarkdownExtension
from markdown.inlinepatterns import InlineProcessor
from markdown.treeprocessors import Treeprocessor

import kullback
from kullback.losses.argument_descriptions import written_out

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
# These pages only link to a file, of which the site shows the text.
MIRRORED = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
GENERATED = re.compile(r"^<!-- generated\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^(\* \[`(kullback[\w. ]+)`\])\([^)]+\)", re.MULTILINE)
RELATIVE = re.compile(r"(?![\w+.-]+:)([^#]+)(#.*)?")

FORMULA = r"(?<![\\$])\$(?!\s)([^$\n]+)(?<!\s)\$(?![\d$])"
INLINE = re.compile(r":math:`([^`]+)`")
BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n+\1 +.*)*)$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
LOGARITHM = re.compile(r"(?<=[\w})])\s*\\log(?![a-z])")
TEXT = re.compile(r"\\text(?:tt)?\{[^{}]*\}")
PROSE = re.compile(r"^(Gradient|References):\n((?: +.*\n?|\n)+)", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """The docstring with shared descriptions, formulas as the pages write them, and sections mkdocstrings knows."""
    text = EXAMPLE.sub("Examples:", written_out(docstring))
    text = PROSE.sub(lambda m: f"**{m[1]}:**\n\n{textwrap.dedent(m[2])}", text)
    text = BLOCK.sub(lambda m: textwrap.indent(f"```math\n{textwrap.dedent(m[2])}\n```", m[1]), text)
    return INLINE.sub(lambda m: f"${' '.join(m[1].split())}$", text)


class HouseStyle(Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(inspect.cleandoc(obj.docstring.value))


def formula(source: str, display: str) -> str:
    """The formula as MathML, with the space that TeX sets before a logarithm."""
    plain = TEXT.sub(lambda m: m[0].replace(r"\_", "_"), source)  # `convert` keeps this backslash
    return convert(LOGARITHM.sub(r"\\,\\log", plain), display=display)


def block_formula(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="formula">{formula(source, "block")}</div>'


class InlineFormula(InlineProcessor):
    """Makes MathML of ``$...$``."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # noqa: N802  Markdown's name
        return self.md.htmlStash.store(formula(m[1], "inline")), m.start(0), m.end(0)


class Links(Treeprocessor):
    """Turns links to files that the site lacks into links to its own pages, or to the repository."""

    written_in = DOCS  # the folder of the page that is built
    page = "index.md"
    repository = ""

    def run(self, root: Element) -> None:
        for element in root.iter():
            for attribute in {"href", "src"} & set(element.keys()):
                element.set(attribute, self.on_site(element.get(attribute, ""), attribute))

    def on_site(self, target: str, attribute: str) -> str:
        relative = RELATIVE.fullmatch(target)
        if relative is None:
            return target
        path, anchor = Path(os.path.normpath(self.written_in / relative[1])), relative[2] or ""
        pages = {ROOT / file: DOCS / page for page, file in MIRRORED.items()}
        path = pages.get(path, path)
        if path.is_relative_to(DOCS):
            return os.path.relpath(path, (DOCS / self.page).parent) + anchor
        view = "raw" if attribute == "src" else "blob"
        return f"{self.repository}/{view}/main/{path.relative_to(ROOT).as_posix()}{anchor}"


class Pages(MarkdownExtension):
    """Formulas and links of all pages."""

    def __init__(self) -> None:
        super().__init__()
        self.links = Links()

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  Markdown's name
        # After code (190), and before a backslash escapes what follows (180).
        md.inlinePatterns.register(InlineFormula(FORMULA, md), "formula", 185)
        # After the links are made (20), and before MkDocs checks them (0).
        md.treeprocessors.register(self.links, "links", 10)


PAGES = Pages()


def on_config(config: Any) -> Any:
    """mkdocs hook: the site has the version in its name; code of language `math` is a formula."""
    config["site_name"] = f"kullback {kullback.__version__}"
    block = {"name": "math", "class": "math", "format": block_formula}
    config["mdx_configs"].setdefault("pymdownx.superfences", {})["custom_fences"] = [block]
    config["markdown_extensions"].append(PAGES)
    PAGES.links.repository = config["repo_url"]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """mkdocs hook: a page shows its generated part, and a name that is described on it leads there."""
    name = page.file.src_uri
    file = ROOT / MIRRORED[name] if name in MIRRORED else DOCS / name
    PAGES.links.page, PAGES.links.written_in = name, file.parent
    if name in MIRRORED:
        return file.read_text(encoding="utf-8")
    described = NAMED.sub(lambda m: f"{m[1]}(#{m[2].replace(' ', '-')})", markdown)
    return GENERATED.sub(r"\1", described)
