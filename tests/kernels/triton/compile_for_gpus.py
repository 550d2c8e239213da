"""The Triton kernel compiles, for GPUs that need not be there; `test_rows` runs this in a process of its own.

The interpreter lets pass what the compiler does not: types that change in a loop, shapes that are no constants.
"""

from __future__ import annotations

import pytest
from benchmarks import gpu_cost
from benchmarks.gpu_cost import AMD, HOPPER, LIMITS, VARIANTS, Instruction, Variant
from triton.backends.compiler import GPUTarget

from kullback.kernels.triton.forms import Form

BOTH = (True, True)


@pytest.mark.parametrize("target", [HOPPER, AMD], ids=lambda target: target.backend)
@pytest.mark.parametrize("form", Form, ids=lambda form: form.name)
def test_every_form_compiles_with_both_gradients(form: Form, target: GPUTarget) -> None:
    variant = Variant(form, BOTH, ("bf16", "fp32"), 50_257, weighted=True)
    assert gpu_cost.compiled(variant, target).asm["cubin" if target == HOPPER else "hsaco"]


@pytest.mark.parametrize("form", [Form.KL, Form.RENYI], ids=lambda form: form.name)
def test_long_rows_compile_for_amd(form: Form) -> None:
    """AMD's warps have 64 threads, and its programs at most 1024 as well."""
    assert gpu_cost.compiled(Variant(form), AMD).asm["hsaco"]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("classes", [5, 1000, 262_144])
def test_other_dtypes_and_sizes_compile(dtype: str, classes: int) -> None:
    assert gpu_cost.compiled(Variant(Form.REVERSE_KL, BOTH, (dtype, dtype), classes)).asm["cubin"]


def test_kl_in_short() -> None:
    """The gate of the quick part of the tests: KL with its gradient."""
    cost = gpu_cost.cost_of(VARIANTS["KL"])
    assert len(cost.sweeps) == 2
    assert cost.ordinary <= LIMITS["KL"]
    assert not cost.spilled


def test_the_instructions_are_within_the_limits() -> None:
    costs = {name: gpu_cost.cost_of(variant) for name, variant in VARIANTS.items()}
    assert all(costs[name].ordinary <= limit for name, limit in LIMITS.items())
    assert not any(cost.spilled for cost in costs.values())
    assert costs["KL, 50,257 classes"].ordinary <= 1.1 * costs["KL"].ordinary
    assert all("128" in cost.widths for cost in costs.values())
    # A count with the code outside of loops is larger, and so is a tile whose loads and stores have masks.
    assert all(cost.total > cost.ordinary and cost.masked >= cost.ordinary for cost in costs.values())
    assert {name for name, cost in costs.items() if cost.exact} == {
        "total variation",
        "χ², Hellinger, alpha",
        "Rényi",
    }
    # The page in the repository is this table, for the same Triton.
    page = gpu_cost.PAGE.read_text(encoding="utf-8")
    if f"Triton {gpu_cost.triton.__version__} " in page:
        assert page == gpu_cost.page(costs)


def code(*texts: str) -> list[Instruction]:
    """Return instructions of a made-up program, whose addresses are 16 times their numbers."""
    return gpu_cost.instructions("".join(f"/*{16 * i:04x}*/ {text} ;\n" for i, text in enumerate(texts)))


def test_a_way_through_a_loop_takes_the_cheaper_branch() -> None:
    loop = (
        ["FADD"] * 10
        + ["@P0 BRA 0x150"]
        + ["FMUL"] * 9
        + ["BRA 0x180"]
        + ["DADD"] * 3
        + ["FMNMX", "@P1 BRA 0x0"]
    )
    program = code(*loop, "STG", "EXIT")
    (found,) = gpu_cost.loops(program)
    assert (found.first, found.last, found.all_code) == (0, 25, 26)
    assert found.cheapest == 11 + 3 + 2  # not 11 + 10 + 2
    assert found.is_wide
    assert gpu_cost.cheapest(program, 0, 27) == 16 + 2
    with pytest.raises(ValueError, match="no way"):
        gpu_cost.cheapest(program, 27, 0)
