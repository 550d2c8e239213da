"""No link of the documentation is dead: files, headings and documented names exist, and addresses are well formed.

Addresses on the web are checked by their form only: no test asks the network.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(path for path in ROOT.glob("*.md") if path.name != "report.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
FENCED = re.compile(r"^( *)(`{3,})[^`\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\))?)(?:\s+\"[^\"]*\")?\)")
SOURCE = re.compile(r"(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: *\{[^}]*\})? *#*$", re.MULTILINE)
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
INCLUDED = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
OWN = re.compile(r"https://github\.com/kullback/kullback/(?:blob|raw)/main/(.+)")  # files of this repository
HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?")


def prose(page: Path) -> str:
    """A page without its code."""
    return CODE.sub("``", FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them, and the names whose documentation stands on it."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for name in INCLUDED.findall(text):
        text += (ROOT / name).read_text(encoding="utf-8")
    found: set[str] = set(NAMED.findall(text))
    for heading in HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "").replace("#!math ", ""))
        slug = slugify(plain, "-")
        number = 0
        while slug in found:  # a second heading of the same words
            number += 1
            slug = f"{slugify(plain, '-')}_{number}"
        found.add(slug)
    return found


def problem(page: Path, target: str) -> str | None:
    """Say what is wrong with a link of a page; None where nothing is."""
    own = OWN.fullmatch(target)
    page, target = (ROOT / "README.md", own[1]) if own else (page, target)
    parts = urlsplit(target)
    if parts.scheme:
        well_formed = parts.scheme == "https" and HOST.fullmatch(parts.netloc)
        return None if well_formed or parts.scheme == "mailto" else "is no https address"
    if target.startswith("/") or parts.netloc:
        return "is absolute"
    file = (page.parent / unquote(parts.path)) if parts.path else page
    if not file.exists():
        return f"names {parts.path}, which does not exist"
    if parts.fragment and file.suffix == ".md" and parts.fragment not in anchors(file):
        return f"names #{parts.fragment}, which {file.name} has not"
    if page.is_relative_to(DOCS) and not Path(os.path.normpath(file)).is_relative_to(DOCS):
        return f"names {parts.path}, which is no part of the site"
    return None


def links(page: Path) -> list[str]:
    text = prose(page)
    return [*LINK.findall(text), *SOURCE.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_link_is_dead(page: Path) -> None:
    found = {target: problem(page, target) for target in links(page)}
    assert {target: why for target, why in found.items() if why} == {}


def test_links_are_seen() -> None:
    assert sum(len(links(page)) for page in PAGES) > 100
    assert "tutorial/data.md" in links(DOCS / "index.md")
    assert "results/vae_digits.svg" in links(DOCS / "tutorial" / "variational.md")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("tutorial.md", None),
        ("tutorial.md#zeros", None),
        ("#choose-your-guide", None),
        ("api/losses.md#kullback.nn.KLRegularizer", None),
        ("https://arxiv.org/abs/1312.6114", None),
        ("https://en.wikipedia.org/wiki/F-divergence_(mathematics)", None),
        ("https://github.com/kullback/kullback/blob/main/docs/tables.md#watch-for-drift", None),
        ("https://github.com/kullback/kullback/blob/main/docs/table.md", "does not exist"),
        ("https://github.com/kullback/kullback/blob/main/docs/tables.md#watch", "has not"),
        ("tutorials.md", "does not exist"),
        ("tutorial.md#ones", "has not"),
        ("#choose-your-giude", "has not"),
        ("api/losses.md#kullback.nn.Nothing", "has not"),
        ("../README.md", "no part of the site"),
        ("/tutorial.md", "absolute"),
        ("http://arxiv.org", "no https"),
        ("https://localhost", "no https"),
    ],
)
def test_dead_links_are_found(target: str, why: str | None) -> None:
    found = problem(DOCS / "index.md", target)
    assert (found is None) if why is None else (found is not None and why in found)


def test_a_link_is_no_code() -> None:
    assert LINK.findall("[a](b.md) and `[c](d.md)`".replace("`[c](d.md)`", "``")) == ["b.md"]
    assert LINK.findall('![a [b]](c.svg "title") [x](y_(z))') == ["c.svg", "y_(z)"]
