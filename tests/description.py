"""The description of the package on an index, against README."""

from __future__ import annotations

import email
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = "https://github.com/kullback/kullback"
LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")


def check_description(metadata: str) -> None:
    """Assert that the description in a package's metadata is README, with every link absolute and of the right kind."""
    message = email.message_from_string(metadata)
    description = message.get_payload()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert message["Description-Content-Type"] == "text/markdown"
    links = LINK.findall(description)
    assert len(links) == len(LINK.findall(readme)) > 20
    for picture, target in links:
        view = "raw" if picture else "blob"
        assert target.startswith(f"{HOME}/{view}/main/"), target
        path = target.removeprefix(f"{HOME}/{view}/main/").partition("#")[0]
        assert (ROOT / path).is_file(), target
    # Nothing but the addresses differs, in the code neither.
    relative = re.sub(rf"\]\({HOME}/(?:blob|raw)/main/", "](", description)
    assert relative.strip() == readme.strip()
