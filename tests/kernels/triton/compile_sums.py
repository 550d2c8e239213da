"""The Triton kernels of sums and parts compile, also for GPUs that are not here; `test_sums` runs this in a process."""

from __future__ import annotations

import pytest

from kullback.kernels.triton.forms import Form

NVIDIA, AMD = ("cuda", 90, 32), ("hip", "gfx942", 64)
POINTERS = {
    "excluded": "*i32",
    "labels": "*i64",
    "sums": "*fp64",
    "numbers": "*fp32",
    "classes": "*i64",
    "values": "*fp64",
    "added": "*fp64",
}
SUMS = {"EXCLUDES": True, "LABELED": True, "DEPTH": 4, "LANES": 1024}


def compiled(name, constants, dtype, target, contiguous=True, row=16):
    """Compile as Triton does for rows of contiguous classes whose starts and ends are multiples of `row` elements."""
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kullback.kernels.triton import sums_kernel

    kernel = getattr(sums_kernel, name)
    constants = dict(constants)
    types, attributes = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if contiguous and argument in {"column_stride", "out_column"}:
            constants[argument] = 1
        if argument in constants:
            types[argument] = "constexpr"
        elif argument in {"logits", "out"}:
            types[argument] = f"*{dtype}"
            attributes[(i,)] = [["tt.divisibility", 16]]
        elif argument in POINTERS and (argument != "classes" or name == "entries_kernel"):
            types[argument] = POINTERS[argument]
        elif argument in {"classes", "count", "row_stride", "out_row"}:
            types[argument] = "i32" if contiguous else "i64"
            if row % 16 == 0 and argument != "count":
                attributes[(i,)] = [["tt.divisibility", 16]]
        elif argument in {"column_stride", "out_column"}:
            types[argument] = "i64"
        else:
            types[argument] = "fp32"
    warps = constants.get("LANES", constants.get("BLOCK", 0)) // 256 or 1
    source = ASTSource(kernel, types, constants, attributes)
    return compile_kernel(source, target=GPUTarget(*target), options={"num_warps": warps})


@pytest.mark.parametrize("target", [NVIDIA, AMD], ids=lambda x: x[1])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("sums_kernel", SUMS),
        ("sums_kernel", {**SUMS, "EXCLUDES": False, "LANES": 256}),
        ("sums_kernel", {**SUMS, "LABELED": False, "classes": 1}),
        ("exponentials_kernel", {"LABELED": True, "ADD": False, "BLOCK": 1024}),
        ("exponentials_kernel", {"LABELED": False, "ADD": True, "BLOCK": 256}),
        ("entries_kernel", {"BLOCK": 128}),
    ],
)
def test_compiles(name, constants, dtype, target):
    for contiguous in (True, False):
        binary = compiled(name, constants, dtype, target, contiguous)
        assert binary.asm["cubin" if target == NVIDIA else "hsaco"]


@pytest.mark.parametrize("target", [NVIDIA, AMD], ids=lambda x: x[1])
@pytest.mark.parametrize("form", [Form.KL, Form.REVERSE_KL, Form.JEFFREYS, Form.MIXTURE, Form.EVEN], ids=str)
def test_the_kernels_of_sharded_rows_compile(form, target):
    from triton import compile as compile_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from kullback.kernels.triton.kernel import part_gradients_kernel, part_values_kernel

    shape = {"FORM": form.value, "TILE": 512, "VECTOR": 4}
    gradients = {**shape, "WEIGHTED": True, "WANT_P": True, "WANT_Q": True}
    for kernel, constants in (
        (part_values_kernel, shape),
        (part_gradients_kernel, gradients),
    ):
        types = {}
        for argument in kernel.arg_names:
            if argument in constants:
                types[argument] = "constexpr"
            elif argument in {"whole", "weights", "values", "sums"}:
                types[argument] = "*fp64"
            elif argument in {"p", "q", "out_p", "out_q"}:
                types[argument] = "*bf16" if argument.endswith("p") else "*fp32"
            else:
                is_integer = argument == "classes" or argument.endswith(("_row", "_column"))
                types[argument] = (
                    "i64" if is_integer and argument != "classes" else "i32" if is_integer else "fp32"
                )
        source = ASTSource(kernel, types, constants)
        options = {"num_warps": 512 // target[2], "enable_fp_fusion": False}
        compiled_kernel = compile_kernel(source, target=GPUTarget(*target), options=options)
        assert compiled_kernel.asm["cubin" if target == NVIDIA else "hsaco"]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_aligned_rows_are_read_and_written_sixteen_bytes_at_once_by_the_exponential_of_the_hardware(dtype):
    sums = compiled("sums_kernel", {**SUMS, "LABELED": False}, dtype, NVIDIA).asm["ptx"]
    exponentials = {"LABELED": False, "ADD": False, "BLOCK": 1024}
    written = compiled("exponentials_kernel", exponentials, dtype, NVIDIA).asm["ptx"]
    assert "ld.global.v4.b32" in sums
    assert "ld.global.v4.b32" in written
    assert "st.global.v4.b32" in written
    for code in (sums, written):
        assert "ex2.approx" in code
        assert ".local" not in code  # spilled registers
