"""The library of C++ kernels asks PyTorch for its stable C interface and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from elftools.elf.elffile import ELFFile

from kullback.kernels.native import library

# The headers whose functions torch promises to keep (the notes "LibTorch Stable ABI" in its documentation).
STABLE = ("torch/csrc/inductor/aoti_torch/c/shim.h", "torch/csrc/stable/c/shim.h")


@pytest.fixture(scope="module")
def unversioned() -> set[str]:
    """What the library takes from others, except from glibc, libstdc++ and libgcc, whose symbols have versions."""
    if not library._LIBRARY.exists() or library._LIBRARY.read_bytes()[:4] != b"\x7fELF":
        pytest.skip("no library was built here, or it is no ELF file")
    with library._LIBRARY.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version")
        return {
            symbol.name
            for index, symbol in enumerate(symbols.iter_symbols())
            if symbol.entry.st_shndx == "SHN_UNDEF"
            and symbol.entry.st_info.bind == "STB_GLOBAL"
            and versions.get_symbol(index).entry.ndx in {"VER_NDX_LOCAL", "VER_NDX_GLOBAL"}
            and symbol.name
        }


def test_every_symbol_of_torch_is_one_of_its_stable_interface(unversioned):
    include = Path(torch.__file__).parent / "include"
    declared = set(re.findall(r"\b(\w+)\s*\(", "".join((include / name).read_text() for name in STABLE)))
    assert "aoti_torch_get_dtype" in unversioned
    assert unversioned - declared == set()


def test_no_symbol_of_torch_is_one_of_cpp(unversioned):
    assert [name for name in unversioned if name.startswith("_Z")] == []
