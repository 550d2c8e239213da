"""No link and no picture of the documentation is dead, in a clone, on a forge and on the site.

Files and headings exist, under the names that a forge and the site both give them. Addresses on the web are checked by
their form only: no test asks the network. An address of this repository is relative, except in files that are read
elsewhere.
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
OWN = re.compile(r"https://github\.com/kullback/kullback/(?:blob|raw|tree)/")  # files of this repository
HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?")


def prose(page: Path) -> str:
    """A page without its code."""
    return CODE.sub("``", FENCED.sub("", page.read_text(encoding="utf-8")))


def slug_of_a_forge(heading: str) -> str:
    """The name that GitHub, GitLab and Forgejo give a heading: lower case, a hyphen for each space, no punctuation."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them on a forge and on the site.

    A name that only one of the two knows, such as the second of two equal headings, is left out.
    """
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", "")) for heading in HEADING.findall(text)
    ]
    return {slugify(heading, "-") for heading in headings} & set(map(slug_of_a_forge, headings))


def problem(page: Path, target: str) -> str | None:
    """Say what is wrong with a link of a page; None where nothing is."""
    parts = urlsplit(target)
    if OWN.match(target):
        return "is an address of this repository: write it relative to the page"
    if parts.scheme:
        well_formed = parts.scheme == "https" and HOST.fullmatch(parts.netloc)
        return None if well_formed or parts.scheme == "mailto" else "is no https address"
    if target.startswith("/") or parts.netloc:
        return "is absolute"
    file = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
    wrong = {
        "is outside of the repository": not file.is_relative_to(ROOT),
        "does not exist": not file.exists(),
        "is a folder, and the site has only its pages": file.is_relative_to(DOCS) and file.is_dir(),
    }
    why = next((f"names {parts.path}, which {why}" for why, applies in wrong.items() if applies), None)
    if why is None and parts.fragment and (file.suffix != ".md" or parts.fragment not in anchors(file)):
        return f"names #{parts.fragment}, which {file.name} has not"
    return why


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
    assert {"docs/images/text.png", "docs/tables.md#watch-for-drift"} <= set(links(ROOT / "README.md"))
    assert "../../src/kullback/dispatch.py" in links(DOCS / "api" / "divergences.md")


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("tutorial.md", None),
        ("tutorial/tensors.md#zeros", None),
        ("#i-want-to", None),
        ("../README.md", None),
        ("../CONTRIBUTING.md#a-pair", None),
        ("../src/kullback/dispatch.py", None),
        ("https://arxiv.org/abs/1312.6114", None),
        ("https://en.wikipedia.org/wiki/F-divergence_(mathematics)", None),
        ("https://github.com/kullback/kullback/issues", None),
        ("https://github.com/kullback/kullback/blob/main/docs/tables.md#watch-for-drift", "relative"),
        ("https://github.com/kullback/kullback/raw/main/docs/images/text.png", "relative"),
        ("images/texts.png", "does not exist"),
        ("tables.md#watch", "has not"),
        ("tutorials.md", "does not exist"),
        ("tutorial.md#ones", "has not"),
        ("#i-wnat-to", "has not"),
        ("api/losses.md#kullback.nn.KLRegularizer", "has not"),  # the site alone has it
        ("../CONTRIBUTING.md#a-triple", "has not"),
        ("../src/kullback/dispatch.py#L1", "has not"),
        ("../src/kullback/dispatched.py", "does not exist"),
        ("../../README.md", "outside"),
        ("tutorial", "folder"),
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
