"""Import of optional packages at their first use."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from kullback.errors import OptionalDependencyError

# If the name of a package in a `pip install` command differs from its name in an import statement, this mapping has
# both names.
_DISTRIBUTIONS = {"llama_cpp": "llama-cpp-python", "sklearn": "scikit-learn"}


def load(module: str, feature: str) -> Any:
    """Return the imported module of an optional package that `feature` needs.

    Raises:
        OptionalDependencyError: the package cannot be imported.

    Example:
        >>> load("pyarrow.csv", "reading a .csv file").__name__
        'pyarrow.csv'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        name = _DISTRIBUTIONS.get(package, package)
        why = (
            "which is not installed" if find_spec(package) is None else f"which cannot be imported ({error})"
        )
        wording = feature + " needs {wanted}, {got}. Run: {instead}"
        raise OptionalDependencyError.at(
            "", wanted=name, got=why, instead=f"pip install {name}", wording=wording
        ) from None


def is_installed(*packages: str) -> bool:
    """Return whether all of these packages are installed, without importing them.

    Example:
        >>> is_installed("torch", "no_such_package")
        False
    """
    return all(find_spec(package) is not None for package in packages)
