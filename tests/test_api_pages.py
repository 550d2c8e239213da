"""The pages of the reference read well where no docstring can be fetched: a line for each name, true and complete."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import griffe
import markdown
import pytest

from kullback.cli.commands import kullback
from tests.house_style import house_style

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "api").glob("*.md"))
FETCHED = re.compile(r"^::: .+$", re.MULTILINE)
LINE = re.compile(r"^\* \[`kullback.*$", re.MULTILINE)
HOME = "https://github.com/kullback/kullback"


@pytest.fixture(scope="module")
def style() -> ModuleType:
    return house_style()


@pytest.fixture(scope="module")
def package() -> Any:
    """The sources as mkdocstrings reads them, without an import of what the adapters need."""
    return griffe.load("kullback", search_paths=[ROOT / "src"], resolve_aliases=True)


def line(page: Path, name: str, file: Path, text: str) -> str:
    """Return the line of a page about a name, with the first sentence of its description."""
    up = "../" * len(page.relative_to(ROOT).parent.parts)
    words = " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("||", "‖")
    sentence = re.sub(r"(?<=[^.]\.) [A-Z].*", "", words)
    return f"* [`{name}`]({up}{file.relative_to(ROOT).as_posix()}): {sentence}"


@pytest.mark.sweep
def test_each_name_of_a_page_has_a_line_with_its_sentence_and_its_source(
    style: ModuleType, package: Any
) -> None:
    seen = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = []
        for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
            described = package[name.removeprefix("kullback.")]
            described = described.final_target if described.is_alias else described
            assert described.docstring, f"{name} has no docstring"
            docstring = style.as_markdown(inspect.cleandoc(described.docstring.value))
            lines.append(line(page, name, described.filepath, docstring))
        assert LINE.findall(text) == lines, f"{page} wants these lines:\n" + "\n".join(lines)
        seen += len(lines)
    assert seen > 100


def test_each_command_has_a_line_with_its_sentence_and_its_source() -> None:
    commands = kullback.commands
    page = DOCS / "cli.md"
    lines = []
    for name, command in sorted(commands.items()):
        file = Path(sys.modules[command.callback.__module__].__file__ or "")
        lines.append(line(page, f"kullback {name}", file, command.get_short_help_str(1000)))
    assert LINE.findall(page.read_text(encoding="utf-8")) == lines, "\n".join(lines)


def test_a_forge_hides_what_only_the_site_can_show(style: ModuleType) -> None:
    hidden = 0
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert FETCHED.findall(style.GENERATED.sub("", text)) == [], page
        assert not text.startswith("---\n"), f"{page}: a forge shows the settings above a page"
        for block in style.GENERATED.finditer(text):
            first = FETCHED.findall(block[1])[0]
            above = text[: block.start()].rpartition("\n#")[2]
            assert LINE.search(above), f"{page}: no line above {first}"
            hidden += 1
    assert hidden > 15


def page_on_the_site(style: ModuleType, name: str) -> str:
    """Return the Markdown of a page as MkDocs gets it from the hook."""
    style.PAGES.links.repository = HOME
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
    return style.on_page_markdown((DOCS / name).read_text(encoding="utf-8"), page=page)


def test_the_site_shows_what_a_forge_hides(style: ModuleType) -> None:
    for page in [*PAGES, DOCS / "cli.md"]:
        shown = page_on_the_site(style, page.relative_to(DOCS).as_posix())
        assert FETCHED.findall(shown) == FETCHED.findall(page.read_text(encoding="utf-8"))
        assert "<!-- generated" not in shown
        assert "](../../src/" not in shown
    assert "* [`kullback.KL`](#kullback.KL): " in page_on_the_site(style, "api/kinds.md")
    assert "* [`kullback calc`](#kullback-calc): " in page_on_the_site(style, "cli.md")


def test_the_site_has_the_text_of_a_page_that_is_only_a_link(style: ModuleType) -> None:
    for page, file in style.MIRRORED.items():
        assert f"](../{file})" in (DOCS / page).read_text(encoding="utf-8")
        assert len((DOCS / page).read_text(encoding="utf-8").split()) < 50
        assert page_on_the_site(style, page) == (ROOT / file).read_text(encoding="utf-8")


# The page, a link on it, and where the site sends the reader.
SENT = [
    ("api/kinds.md", "../why.md", "../why.md"),
    ("api/kinds.md", "../../CONTRIBUTING.md#a-kind", "../contributing.md#a-kind"),
    ("api/kinds.md", "#by-name", "#by-name"),
    ("api/kinds.md", "https://arxiv.org/abs/1312.6114", "https://arxiv.org/abs/1312.6114"),
    ("api/kinds.md", "mailto:someone@example.org", "mailto:someone@example.org"),
    ("index.md", "../CHANGELOG.md", "changelog.md"),
    ("index.md", "../examples/fit_modes.py", f"{HOME}/blob/main/examples/fit_modes.py"),
    ("changelog.md", "docs/pairs.md", "pairs.md"),
    ("contributing.md", "docs/api/kinds.md#by-name", "api/kinds.md#by-name"),
    ("contributing.md", "SECURITY.md", f"{HOME}/blob/main/SECURITY.md"),
]


def test_links_lead_to_the_site_where_it_has_the_page_and_else_to_the_repository(style: ModuleType) -> None:
    for name, written, wanted in SENT:
        page_on_the_site(style, name)
        assert style.PAGES.links.on_site(written, "href") == wanted, (name, written)
    page_on_the_site(style, "contributing.md")
    assert style.PAGES.links.on_site("docs/images/text.png", "src") == "images/text.png"
    picture = f"{HOME}/raw/main/examples/results/fit.svg"
    assert style.PAGES.links.on_site("examples/results/fit.svg", "src") == picture


def test_a_link_in_code_stays_as_it_is(style: ModuleType) -> None:
    page_on_the_site(style, "index.md")
    text = "[a](../README.md) `[b](../README.md)`\n\n    [c](../README.md)\n"
    shown = markdown.markdown(text, extensions=[style.PAGES])
    assert shown.count("[b](../README.md)") == shown.count("[c](../README.md)") == 1
    assert f'href="{HOME}/blob/main/README.md"' in shown
