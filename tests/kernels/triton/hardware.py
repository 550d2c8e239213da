"""The errors of a GPU's elementary functions, for Triton's interpreter, whose functions are NumPy's.

PTX documents an error of 2 units in the last place for `ex2.approx` and for `div.full`, and a relative error of 2^-22.9
for `rsqrt.approx`. An interpreted function returns its result moved by -2 to 2 such units, which a hash of the result
chooses: like the hardware, it returns equal results for equal arguments. The powers 2^0 and 2^-inf are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

UNITS = 2


def moved(x: NDArray[Any]) -> NDArray[Any]:
    """Return float32 numbers moved by up to `UNITS` units in the last place. Other dtypes, 0, 1, inf and NaN stay."""
    if x.dtype != np.float32:
        return x
    bits = x.view(np.uint32)
    hashed = (bits.astype(np.uint64) * np.uint64(2654435761)) >> np.uint64(13)
    steps = (hashed % np.uint64(2 * UNITS + 1)).astype(np.int64) - UNITS
    changed = (bits.astype(np.int64) + steps).astype(np.uint32).view(np.float32)
    normal = np.isfinite(x) & (np.abs(x) > 1e-37) & (np.abs(x) < 1e37) & (x != 1)
    return np.where(normal, changed, x)


def use_hardware_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the interpreter's exponentials, quotients and reciprocal square roots the errors of a GPU's."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def of(name: str) -> Any:
        exact = getattr(InterpreterBuilder, name)

        def inexact(builder: Any, *arguments: Any) -> Any:
            result = exact(builder, *arguments)
            return TensorHandle(moved(np.asarray(result.data)), result.dtype)

        return inexact

    for name in ("create_exp2", "create_exp", "create_fdiv", "create_rsqrt"):
        monkeypatch.setattr(InterpreterBuilder, name, of(name))
