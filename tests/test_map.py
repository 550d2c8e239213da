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


def test_every_file_of_the_package_is_named_or_drawn() -> None:
    package = ROOT / "src" / "kullback"
    modules = {path.stem for path in package.glob("*.py") if path.stem != "__init__"}
    picture = PAGE.partition("```text")[2].partition("```")[0]
    drawn = set(re.findall(r"\w+", picture)) | {Path(path).stem for path in NAMED}
    assert modules - drawn == set()
