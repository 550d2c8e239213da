"""The build backend of pyproject.toml: scikit-build-core, with the kernels if they can be compiled.

``KULLBACK_NATIVE=1`` raises an error if the kernels cannot be compiled, and ``KULLBACK_NATIVE=0`` omits the kernels.
Without the variable, the wheel is pure Python if PyTorch, a compiler or CMake is missing, or if the compiler fails. One
line of the build's output then reports the reason.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

import scikit_build_core.build
from scikit_build_core.build import *  # noqa: F403  the hooks that this file does not define

Config = Mapping[str, "str | list[str]"] | None


def has_compiler() -> bool:
    named = os.environ.get("CXX", "").split()[:1]
    usual = ["clang-cl"] if sys.platform == "win32" else ["c++", "g++", "clang++"]
    return any(map(shutil.which, named or usual))


def has_torch() -> bool:
    """Return whether PyTorch can be imported, here or outside an isolated build (as in CMakeLists.txt)."""
    if importlib.util.find_spec("torch") is not None:
        return True
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    return subprocess.run([sys.executable, "-E", "-c", look], check=False).returncode == 0


def get_requires_for_build_wheel(config_settings: Config = None) -> list[str]:
    """Return the build requirements: CMake if the kernels can be compiled, and PyTorch only if they are requested."""
    asked = os.environ.get("KULLBACK_NATIVE")
    if asked == "0" or not has_compiler() or not (asked or has_torch()):
        return []
    requires = scikit_build_core.build.get_requires_for_build_wheel(config_settings)
    return requires if has_torch() else [*requires, "torch>=2.10"]


def build_wheel(
    wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel. If it is pure Python without ``KULLBACK_NATIVE=0``, print the reason in one line."""
    asked = os.environ.get("KULLBACK_NATIVE")
    missing = {
        "no C++ compiler": has_compiler(),
        "no PyTorch (install it first, or let KULLBACK_NATIVE=1 fetch it)": has_torch(),
        "no CMake": has_cmake(),
    }
    reason = next((reason for reason, there in missing.items() if not there), "")
    if reason and not asked:
        os.environ["KULLBACK_NATIVE"] = "0"
    try:
        wheel = scikit_build_core.build.build_wheel(wheel_directory, config_settings, metadata_directory)
    finally:
        if reason and not asked:
            del os.environ["KULLBACK_NATIVE"]
    if asked != "0" and wheel.endswith("-any.whl"):
        print(
            f"kullback: built without its native kernels: {reason or 'they did not compile'}", file=sys.stderr
        )
    return wheel


def has_cmake() -> bool:
    return importlib.util.find_spec("cmake") is not None or shutil.which("cmake") is not None
