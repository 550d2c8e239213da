"""The numbers that C++, Python and Triton share: one list, from which the header of the C++ kernels is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kullback.kernels import codes
from kullback.kernels.native import library

REPOSITORY = Path(__file__).resolve().parents[2]
ENUMS = [getattr(codes, name) for name in codes.__all__ if name != "INTERFACE"]


@pytest.fixture(scope="module")
def header(tmp_path_factory):
    path = tmp_path_factory.mktemp("codes") / "codes.h"
    script = REPOSITORY / "csrc" / "common" / "write_codes.py"
    subprocess.run([sys.executable, script, codes.__file__, path], check=True)
    return path.read_text()


@pytest.mark.parametrize("enum", ENUMS, ids=lambda enum: enum.__name__)
def test_the_header_has_every_number_and_the_kernels_know_every_name(header, enum):
    (members,) = re.findall(rf"enum class {enum.__name__} : int64_t {{ (.*) }};", header)
    written = {name: int(number) for name, number in re.findall(r"k(\w+) = (\d+)", members)}
    assert {name.lower(): number for name, number in written.items()} == {
        code.name.lower().replace("_", ""): code.value for code in enum
    }
    files = (REPOSITORY / "csrc").rglob("*")
    sources = "".join(path.read_text() for path in files if path.suffix in {".cpp", ".h"})
    is_form = enum.__name__.endswith("Form")  # a macro enters the class of each form
    users = {
        name: rf"(struct|using) {name}Form\b" if is_form else f"{enum.__name__}::k{name}" for name in written
    }
    assert [name for name, user in users.items() if not re.search(user, sources)] == []
    (listed,) = re.findall(rf"#define KULLBACK_{enum.__name__.upper()}S\(X\) (.*)", header)
    assert re.findall(r"X\((\w+)\)", listed) == list(written)


def test_numbers_count_from_zero():
    for enum in ENUMS:
        assert [code.value for code in enum] == list(range(len(enum)))


@pytest.mark.skipif(library.missing() is not None, reason="no native kernels here")
def test_the_library_was_built_from_these_numbers():
    assert torch.ops.kullback.interface() == codes.INTERFACE


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    if library.missing() is not None:
        pytest.skip("no native kernels here")
    monkeypatch.setattr(library, "INTERFACE", codes.INTERFACE + 1)
    library.missing.cache_clear()
    try:
        assert "built from other sources" in library.missing()
        assert not library.is_available()
    finally:
        monkeypatch.undo()
        library.missing.cache_clear()
        assert library.missing() is None
