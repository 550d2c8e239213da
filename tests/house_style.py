"""The hook that makes the site (`docs/house_style.py`), as a module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

FILE = Path(__file__).resolve().parents[1] / "docs" / "house_style.py"


def house_style() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house_style", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
