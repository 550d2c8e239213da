"""The packages that only tables need, imported where they are first used."""

from __future__ import annotations

import importlib
from typing import Any

from kullback.errors import OptionalDependencyError

__all__ = ["library"]


def library(module: str, feature: str) -> Any:
    """Import an optional package.

    Raises:
        OptionalDependencyError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionalDependencyError(
            f"{feature} needs {module.split('.', maxsplit=1)[0]}, which cannot be imported ({error}). "
            f"Run: pip install {module.split('.', maxsplit=1)[0]}"
        ) from None
