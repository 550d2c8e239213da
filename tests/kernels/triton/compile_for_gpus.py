"""The Triton kernel compiles, for GPUs that need not be there; `test_rows` runs this in a process of its own.

The interpreter lets pass what the compiler does not: types that change in a loop, shapes that are no constants.
"""

from __future__ import annotations

import pytest

from kullback.kernels.codes import DivergenceCode

POINTERS = {"p": 0, "q": 1, "out_p": 0, "out_q": 1}
NVIDIA, AMD = ("cuda", 90, 32), ("hip", "gfx942", 64)


@pytest.mark.parametrize(
    ("target", "code", "wanted", "early", "dtypes"),
    [
        (NVIDIA, DivergenceCode.KL, (False, True), True, ("bf16", "fp32")),
        (NVIDIA, DivergenceCode.JEFFREYS, (False, False), False, ("fp16", "fp16")),
        (NVIDIA, DivergenceCode.TOTAL_VARIATION, (False, True), False, ("bf16", "bf16")),
        (NVIDIA, DivergenceCode.MIXTURE, (True, True), False, ("fp16", "bf16")),
        (AMD, DivergenceCode.REVERSE_KL, (True, True), False, ("fp32", "fp32")),
    ],
)
def test_compiles(target, code, wanted, early, dtypes):
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kullback.kernels.triton.kernel import row_kernel

    constants = {
        "KIND": code.value,
        "WEIGHTED": True,
        "WANT_P": wanted[0],
        "WANT_Q": wanted[1],
        "EARLY": early,
        "BLOCK": 4096,
    }

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in POINTERS:
            return f"*{dtypes[POINTERS[name]]}"
        if name in {"weights", "values"}:
            return "*fp64"
        return "i64" if name.endswith(("_row", "_column")) else "i32" if name == "classes" else "fp32"

    source = ASTSource(row_kernel, {name: type_of(name) for name in row_kernel.arg_names}, constants)
    compiled = compile_kernel(
        source,
        target=GPUTarget(*target),
        options={"num_warps": 16, "enable_fp_fusion": False},
    )
    assert compiled.asm["cubin" if target == NVIDIA else "hsaco"]
