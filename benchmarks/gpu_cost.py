"""Writes docs/records/gpu.md: the instructions that the GPU's row kernel executes for each class, compiled for NVIDIA's
Hopper. Compilation needs Triton, and no GPU.

    python benchmarks/gpu_cost.py [--dry-run]
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kullback.kernels.triton.forms import Form
from kullback.kernels.triton.kernel import row_kernel
from kullback.kernels.triton.triton_rows import launch_of

PAGE = Path(__file__).parents[1] / "docs" / "records" / "gpu.md"
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
HOPPER, AMD = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
ROWS = 8192
# Of an H200: multiprocessors, lanes of each, clock; bytes a second of its memory.
LANES, BANDWIDTH = 132 * 128 * 1.98e9, 4.8e12


class Variant(NamedTuple):
    """A kernel to compile: its terms, the wanted gradients, the dtypes of P and of Q, and the number of classes."""

    form: Form
    wanted: tuple[bool, bool] = (False, True)
    dtypes: tuple[str, str] = ("bf16", "bf16")
    classes: int = 128_256
    weighted: bool = False

    @property
    def vector(self) -> int:
        return 16 // max(BYTES[dtype] for dtype in self.dtypes)

    @property
    def early(self) -> bool:
        return (self.form, self.wanted) in {(Form.KL, (False, True)), (Form.REVERSE_KL, (True, False))}

    @property
    def shifted(self) -> bool:
        return self.classes % self.vector != 0


VARIANTS = {
    "KL, value": Variant(Form.KL, (False, False)),
    "KL": Variant(Form.KL),
    "KL, 50,257 classes": Variant(Form.KL, classes=50_257),
    "KL, 32,000 classes": Variant(Form.KL, classes=32_000),
    "KL, float32": Variant(Form.KL, dtypes=("fp32", "fp32")),
    "reverse KL": Variant(Form.REVERSE_KL),
    "Jeffreys": Variant(Form.JEFFREYS),
    "total variation": Variant(Form.TOTAL_VARIATION),
    "Jensen-Shannon": Variant(Form.EVEN),
    "Jensen-Shannon, β = 0.1": Variant(Form.MIXTURE),
    "skewed KL": Variant(Form.SKEW),
    "χ², Hellinger, alpha": Variant(Form.POWER),
    "Rényi": Variant(Form.RENYI),
}
# Limits that issue 44 sets, in instructions for each class.
LIMITS = {"KL": 80, "reverse KL": 95, "total variation": 95, "Jensen-Shannon": 190}


def compiled(variant: Variant, target: GPUTarget = HOPPER) -> Any:
    """Return the kernel, compiled for `target` as `triton_rows` launches it."""
    launch = launch_of(variant.form, variant.classes, variant.vector, target.warp_size)
    constants: dict[str, Any] = {
        "FORM": variant.form.value,
        "WEIGHTED": variant.weighted,
        "WANT_P": variant.wanted[0],
        "WANT_Q": variant.wanted[1],
        "EARLY": variant.early,
        "TILE": launch.tile,
        "VECTOR": variant.vector,
        "SHIFTED": variant.shifted,
    }
    dtypes = dict(zip(("p", "q", "out_p", "out_q"), variant.dtypes * 2, strict=True))
    types: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, name in enumerate(row_kernel.arg_names):
        is_size = name.endswith("_row") or name == "classes"
        if name.endswith("_column"):  # Triton makes a constant of a stride of 1
            constants[name] = 1
        if name in constants:
            types[name] = "constexpr"
        elif name in dtypes or name in {"weights", "values"}:
            types[name] = f"*{dtypes.get(name, 'fp64')}"
        else:
            types[name] = "i32" if is_size else "fp32"
        if types[name].startswith("*") or (is_size and variant.classes % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(row_kernel, types, constants, attributes)
    options = {"num_warps": launch.warps, "enable_fp_fusion": False}
    return triton.compile(source, target=target, options=options)


class Instruction(NamedTuple):
    """One line of the machine's assembly language: its text, and the numbers of the instructions that may follow."""

    text: str
    following: tuple[int, ...]


class Loop(NamedTuple):
    """A loop over the tiles of a row: the numbers of its first and last instruction, the instructions of the cheapest
    and of the most expensive way through it, and whether it computes in float64.
    """

    first: int
    last: int
    cheapest: int
    all_code: int
    is_wide: bool


class Cost(NamedTuple):
    """The instructions of a kernel: of its loops, for each class, and of everything else, for each thread.

    `ordinary` counts tiles inside a row on the path that nearly all rows take, and `masked` the first or last tile of
    a row. `exact` counts the loops that only some rows need. `total` is the number for each class of rows of the
    variant's length, with masked tiles and the code outside of loops.
    """

    sweeps: tuple[float, ...]
    masked: float
    exact: tuple[float, ...]
    outside: int
    total: float
    registers: int
    spilled: int
    widths: str

    @property
    def ordinary(self) -> float:
        return sum(self.sweeps)


def disassembled(kernel: Any) -> tuple[str, str]:
    """Return the assembly language of a compiled kernel, and its use of registers and memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()

        def dump(what: str) -> str:
            command = [str(TOOLS / "cuobjdump"), what, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        return dump("-sass"), dump("-res-usage")


def instructions(sass: str) -> list[Instruction]:
    """Return the instructions of a kernel up to the last one that does something."""
    lines = [(int(m[1], 16), m[2]) for m in re.finditer(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)]
    number = {address: i for i, (address, _) in enumerate(lines)}
    result: list[Instruction] = []
    for i, (_, text) in enumerate(lines):
        target = re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text)
        ends = text.startswith(("EXIT", "BRA")) and not re.match(r"BRA(\.\w+)* !?U?P\d", text)
        following = () if ends else (i + 1,)
        if target and int(target[1], 16) in number:
            following += (number[int(target[1], 16)],)
        result.append(Instruction(text, following))
    while result and result[-1].text.startswith(("NOP", "BRA")):
        result.pop()
    return result


def cheapest(code: list[Instruction], first: int, last: int) -> int:
    """Return the number of instructions of the cheapest way from `first` to `last`, both included."""
    best, waiting = {first: 1}, [(1, first)]
    while waiting:
        cost, i = heapq.heappop(waiting)
        if i == last:
            return cost
        for j in code[i].following:
            if j < len(code) and cost + 1 < best.get(j, math.inf):
                best[j] = cost + 1
                heapq.heappush(waiting, (cost + 1, j))
    raise ValueError(f"no way from instruction {first} to {last}")


def loops(code: list[Instruction]) -> list[Loop]:
    """Return the loops, which are the ranges of backward branches, in the order of the code."""
    result: list[Loop] = []
    for last, instruction in enumerate(code):
        first = min(instruction.following, default=last)
        if first < last - 20:
            body = [x.text for x in code[first : last + 1]]
            is_wide = any(re.search(r"\bD(FMA|MUL|ADD)\b", text) for text in body)
            result.append(Loop(first, last, cheapest(code, first, last), len(body), is_wide))
    return sorted(result)


def cost_of(variant: Variant) -> Cost:
    """Compile a variant for Hopper and count its instructions."""
    sass, usage = disassembled(compiled(variant))
    code = instructions(sass)
    launch = launch_of(variant.form, variant.classes, variant.vector, HOPPER.warp_size)
    every = loops(code)
    ordinary = [loop for loop in every if not loop.is_wide]
    exact = [loop for loop in every if loop.is_wide]
    if (
        variant.form == Form.TOTAL_VARIATION
    ):  # statistics, value, the value once more for rows that need it, gradient
        exact.append(ordinary.pop(2))
    outside = len(code) - sum(loop.all_code for loop in every)
    tiles = variant.classes / (launch.tile * variant.vector)
    whole = math.floor(tiles)
    masked = sum(loop.all_code for loop in ordinary)
    sweeps = tuple(loop.cheapest / variant.vector for loop in ordinary)
    row = (
        whole * sum(loop.cheapest for loop in ordinary)
        + (math.ceil(tiles) - whole + variant.shifted) * masked
    )
    registers, stack = (re.search(rf"{name}:(\d+)", usage) for name in ("REG", "STACK"))
    loads = sorted(set(re.findall(r"LDG\.E(?:\.(\d+|U16))?", "\n".join(x.text for x in code))))
    return Cost(
        sweeps,
        masked / variant.vector,
        tuple(loop.cheapest / (2 if loop.is_wide else variant.vector) for loop in exact),
        outside,
        (row + outside) * launch.warps * 32 / variant.classes,
        int(registers[1]) if registers else 0,
        int(stack[1]) if stack else 0,
        ", ".join(x or "32" for x in loads),
    )


INTRODUCTION = """\
# Instructions of the GPU's kernel

Measured: the instructions that the row kernel executes for each class, compiled for NVIDIA's Hopper; no time on a GPU.
Result: KL with its gradient takes {kl:.0f}, Jensen–Shannon {even:.0f} and the most expensive kind {most:.0f}. KL of
{rows:,} × 128,256 logits takes an H200 at least {ms:.1f} ms. Its memory traffic alone takes {traffic:.1f} ms.
Conclusion: instructions limit the kernel more than memory does. How long it takes is not known yet.

`python benchmarks/gpu_cost.py` compiles the kernel by Triton {triton}, and writes this page. It needs no GPU.

## Measured

A count is a limit and not a time. A GPU that executes so many instructions needs at least the milliseconds in the last
column, for {rows:,} rows. It often needs more: it also waits for memory, and some instructions take several cycles. The
limits belong to an H200: 132 multiprocessors of 128 lanes at 1.98 GHz, and 4.8 TB/s. The traffic is two tensors read
and one written once.

The logits are bfloat16 with 128,256 classes, and the gradient is Q's, unless the first column says something else.

- **ordinary**: instructions for each class of a tile inside a row, the sum over the sweeps in brackets
- **with the edges**: instructions for each class of a whole row, with the masked tiles at its ends and the code
  outside of loops
- **masked**: the same for a tile at the end of a row, at most
- **exact**: sweeps that only some rows need: a second sweep for the value of total variation where rows are nearly
  equal, and sweeps in float64 where powers of p / q leave the range of float32
- **outside**: instructions outside of loops, for each thread and row
"""

NOTES = """\
Nearly equal rows need no other code: the power series of small log-ratios are part of every count.

A row starts at an aligned address only if its stride is a multiple of the vector. Rows of 50,257 classes do not, so
their tiles start at the aligned address before the first class. Their edges cost more, and tiles inside the row cost
the same. The order of the sums in such a row depends on the address at which it starts, by a few units in the last
place of float32.
"""


def milliseconds(name: str, cost: Cost) -> float:
    """Return the least time in which an H200 executes the instructions of a variant for all rows."""
    return 1e3 * cost.total * ROWS * VARIANTS[name].classes / LANES


def table(costs: dict[str, Cost]) -> str:
    """Return the Markdown table of costs for docs/records/gpu.md."""
    head = (
        "",
        "ordinary",
        "limit",
        "with the edges",
        "masked",
        "exact",
        "outside",
        "registers",
        "spilled",
        "ms",
    )
    rows = [head, ("---", *["--:"] * (len(head) - 1))]
    for name, cost in costs.items():
        sweeps, exact = (" + ".join(f"{x:.0f}" for x in part) for part in (cost.sweeps, cost.exact))
        aim = f"{LIMITS[name]}" if name in LIMITS else ""
        rows.append(
            (
                name,
                f"{cost.ordinary:.1f} ({sweeps})",
                aim,
                f"{cost.total:.1f}",
                f"{cost.masked:.0f}",
                exact,
                f"{cost.outside}",
                f"{cost.registers}",
                f"{cost.spilled}",
                f"{milliseconds(name, cost):.2f}",
            )
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def page(costs: dict[str, Cost]) -> str:
    """Return the text of the page."""
    traffic = 1e3 * 3 * ROWS * 128_256 * 2 / BANDWIDTH
    introduction = INTRODUCTION.format(
        triton=triton.__version__,
        traffic=traffic,
        rows=ROWS,
        kl=costs["KL"].ordinary,
        even=costs["Jensen-Shannon"].ordinary,
        most=max(cost.ordinary for cost in costs.values()),
        ms=milliseconds("KL", costs["KL"]),
    )
    return f"{introduction}\n{table(costs)}\n{NOTES}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the page instead of writing it")
    is_dry = parser.parse_args().dry_run
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRITON_CACHE_DIR", folder)
        text = page({name: cost_of(variant) for name, variant in VARIANTS.items()})
    print(text) if is_dry else PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
