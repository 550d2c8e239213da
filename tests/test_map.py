"""The page Map is true: what it names exists, and it leaves out no top folder."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "map.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`((?:src|csrc|tests|benchmarks|examples|packaging|docs)(?:/[\w./]*)?)`", PAGE))


def test_every_path_exists() -> None:
    assert len(NAMED) > 40
    assert [path for path in sorted(NAMED) if not (ROOT / path).exists()] == []


def test_every_top_folder_and_every_part_is_on_it() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()}
    top = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."} - ignored
    package = ROOT / "src" / "kullback"
    inner = {f"src/kullback/{path.name}" for path in package.iterdir() if (path / "__init__.py").exists()}
    assert top - {"src"} <= NAMED
    assert inner <= NAMED


def drawn(page: str) -> set[str]:
    """Return the names in the picture, words with two spaces or more around them; remarks have several words."""
    picture = page.partition("```text")[2].partition("```")[0]
    chunks = [chunk for line in picture.splitlines() for chunk in re.split(r"\s{2,}", line.strip())]
    return {chunk for chunk in chunks if re.fullmatch(r"\w+", chunk)}


def left_out(page: str, modules: set[str]) -> set[str]:
    """Return the modules of the package that a page neither draws nor names by their paths."""
    named = {name for name in modules if f"`src/kullback/{name}.py`" in page}
    return modules - drawn(page) - named


MODULES = {path.stem for path in (ROOT / "src" / "kullback").glob("*.py")} - {"__init__", "__main__"}


def test_every_file_of_the_package_is_named_or_drawn() -> None:
    assert left_out(PAGE, MODULES) == set()


def test_every_name_that_is_drawn_exists() -> None:
    package = ROOT / "src" / "kullback"
    assert [x for x in drawn(PAGE) if not (package / f"{x}.py").exists() and not (package / x).is_dir()] == []


def test_a_file_that_is_not_on_the_map_is_seen() -> None:
    """Words of remarks and of other paths draw nothing."""
    for name in (
        "draws",
        "verb",
        "files_read",
        "distributions",
        "truths",
        "quadrature",
        "rows",
        "text",
        "oracles",
    ):
        assert left_out(PAGE, MODULES | {name}) == {name}
    for name in MODULES:
        without = re.sub(rf"(?<=\s\s){name}(?=\s)|`src/kullback/{name}.py`", "", PAGE)
        assert left_out(without, MODULES) == {name}
