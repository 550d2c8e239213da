"""The backend of the Triton kernel for GPUs. One program for each row sweeps over the classes twice, or three times for
a gradient that needs a sum over the row.

The kernel supports logits of float32, bfloat16 or float16 with any strides. The kernel computes in float32, sums in
float64, and does not synchronize with the GPU. Triton is imported on first use. With ``TRITON_INTERPRET=1`` in the
environment, Triton's interpreter runs the same kernel on the CPU, slowly, for tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.generators import Divergence
from kullback.kernels.codes import DivergenceCode
from kullback.kernels.kernel_arguments import Arguments, arguments_of
from kullback.kernels.overlap import may_overlap
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import (
    Evaluation,
    Gradients,
    Wanted,
    Weights,
    define_first_derivative,
    define_operator,
)
from kullback.kernels.triton import available, triton_sums
from kullback.kernels.triton.forms import Form, form_of

NAME = "triton"
SUMMARY = "for GPUs; computes in float32 and sums in float64"
OPERATIONS = (
    "KL, ReverseKL, Jeffreys, JensenShannon, SkewKL, TotalVariation of logits",
    "Alpha, ChiSquared, Renyi, SquaredHellinger of logits",
    "first derivatives",
)
DTYPES = available.DTYPES
_SCHEMA = (
    "triton_rows(Tensor p, Tensor q, Tensor? weights, int code, float[] numbers, float temperature, float scale, "
    "Tensor(a!) values, Tensor(b!)? by_p, Tensor(c!)? by_q) -> ()"
)
# Rows of more classes get programs of 1024 threads. At 128,256 classes, the logits of one such row for each
# multiprocessor of an H200 take 68 MB, and its cache has 50 MB. The number is not measured on a GPU.
_LONG_ROW = 65_536
_LOG2_E = 1 / math.log(2)
# In the pair of a divergence, the first entry is True if the gradient with respect to P needs no sum over the row. The
# second entry is the same for Q. If only such a gradient is wanted, the sweep that computes the value also writes
# the gradient.
_EARLY = {Form.KL: (False, True), Form.REVERSE_KL: (True, False)}


class Launch(NamedTuple):
    """The number of warps, and of vectors in a tile: one for each thread. With fewer vectors, Triton would give one
    vector to several threads. A thread might then load a logit that another thread has overwritten.
    """

    warps: int
    tile: int


@cache
def missing() -> str | None:
    """Import the kernel. Return the reason why the kernel cannot run, or None if it can run."""
    reason = available.missing()
    if reason is None:
        _kernel()
        for schema, launch in ((_SCHEMA, _launch), (triton_sums.SCHEMA, triton_sums.launch_cross_entropies)):
            define_operator(schema, launch)
        define_first_derivative()
    return reason


def is_available() -> bool:
    """Return whether the kernel can run in this process."""
    return missing() is None


# Because of this attribute, torch.compile evaluates the function once, during tracing (see kullback.losses.reduction).
is_available._dynamo_marked_constant = True  # noqa: SLF001  # pyright: ignore[reportFunctionMemberAccess]


def devices() -> tuple[str, ...]:
    """Return the types of device on which the kernel runs in this process."""
    gpu = ("cuda",) if torch.cuda.is_available() else ()
    return (*gpu, "cpu") if available.is_interpreted() else gpu


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether this kernel supports the divergence `kind` and the logits `p` and `q`."""
    return (
        p.device == q.device
        and available.can_read(p)
        and available.can_read(q)
        and (arguments := arguments_of(kind)) is not None
        and form_of(arguments.code, arguments.numbers) is not None
        and is_available()
    )


def serves_part(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether `values_of_part` supports these rows. It lacks the sweep in float64 that powers may need."""
    return serves(kind, p, q) and cast(Arguments, arguments_of(kind)).code <= DivergenceCode.MIXTURE


def value_and_gradient(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, inplace: bool = False
) -> Evaluation:
    """Return the value of each row of logits, and the wanted gradients of the weighted sum of the values."""
    gradients = [
        (x if inplace else torch.empty(x.shape, dtype=x.dtype, device=x.device)) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    values = _run(rows, p, q, _in_float64(weights), 1.0, gradients)
    return values, gradients[0], gradients[1]


def weighted_total(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    """Return `scale` times the weighted sum of the rows' values, and the wanted gradients of this total."""
    weights = _in_float64(weights)
    gradients = [
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    values = _run(rows, p, q, weights, scale, gradients)
    if weights is not None:
        values = torch.where(weights == 0, 0, weights * values)
    return (values.sum() * scale).to(rows.dtype), gradients


def _run(
    divergence: RowDivergence,
    p: Tensor,
    q: Tensor,
    weights: Weights,
    scale: float,
    gradients: list[Tensor | None],
) -> Tensor:
    """Return the rows' values in float64; the kernel writes `gradients`. Labels need another pass over the logits and,
    if the gradient overwrites Q's logits, a copy of these logits.
    """
    labels = divergence.labels
    if labels is not None:
        before = q.clone() if gradients[1] is q else q
        values = _run(replace(divergence, labels=None), p, q, weights, scale * labels.soft, gradients)
        return triton_sums.add_cross_entropies(labels, values, before, weights, scale, gradients[1])
    values = torch.empty(p.shape[0], dtype=torch.float64, device=p.device)
    code, numbers, is_swapped = cast(Arguments, arguments_of(divergence.kind))
    by_p, by_q = gradients
    if is_swapped:
        p, q, by_p, by_q = q, p, by_q, by_p
    launch = torch.ops.kullback.triton_rows.default if torch.compiler.is_compiling() else _launch
    launch(p, q, weights, code, list(numbers), divergence.temperature, scale, values, by_p, by_q)
    return values


def _launch(
    p: Tensor,
    q: Tensor,
    weights: Weights,
    code: int,
    numbers: Sequence[float],
    temperature: float,
    scale: float,
    values: Tensor,
    by_p: Tensor | None,
    by_q: Tensor | None,
) -> None:
    rows = len(p)
    if rows == 0:
        return
    wanted = (by_p is not None, by_q is not None)
    # The kernel does not write a gradient that is not wanted, so any valid pointer can take its place.
    tensors = (p, q, p if by_p is None else by_p, q if by_q is None else by_q)
    program = program_of(p, q, code, numbers, temperature)
    with torch.cuda.device_of(p):
        _kernel().row_kernel[(rows,)](
            p,
            q,
            values if weights is None else weights,
            values,
            *tensors[2:],
            *(stride for x in tensors for stride in x.stride()),
            scale / temperature,
            *program.numbers,
            WEIGHTED=weights is not None,
            WANT_P=wanted[0],
            WANT_Q=wanted[1],
            EARLY=wanted == _EARLY.get(program.constants["FORM"]),
            SHIFTED=_is_shifted(tensors, program.constants["VECTOR"]),
            **program.constants,
        )


class Program(NamedTuple):
    """The arguments of a kernel that do not depend on the wanted results."""

    # The number of classes, two factors of the logits, and the six numbers of a divergence.
    numbers: list[float]
    constants: Mapping[str, Any]


def program_of(p: Tensor, q: Tensor, code: int, numbers: Sequence[float], temperature: float) -> Program:
    """Return the arguments for a divergence with the code and numbers of `kernel_arguments`."""
    weight_p, share_p, weight_q, share_q = map(float, numbers)  # Triton would make an integer of 1 a constant
    shares = (weight_p, share_p, 1 - share_p, weight_q, share_q, 1 - share_q)
    vector = 16 // max(p.dtype.itemsize, q.dtype.itemsize)
    form = cast(Form, form_of(code, numbers))
    launch = launch_of(form, p.shape[1], vector, lanes_of(p.device))
    # The kernel itself fuses products and sums (`tl.fma`), in the same way for P and Q, so the compiler must not fuse
    # them.
    constants = {"FORM": form.value, "TILE": launch.tile, "VECTOR": vector}
    constants |= {"num_warps": launch.warps, "enable_fp_fusion": False}
    return Program([p.shape[1], 1 / temperature, _LOG2_E / temperature, *shares], constants)


def values_of_part(rows: RowDivergence, p: Tensor, q: Tensor, whole: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `native_rows.values_of_part`."""
    values = torch.empty(p.shape[0], dtype=torch.float64, device=p.device)
    sums = torch.empty(p.shape[0], 6, dtype=torch.float64, device=p.device)
    if len(values):
        program = _program_of_part(rows, p, q)
        strides = *p.stride(), *q.stride()
        with torch.cuda.device_of(p):
            _kernel().part_values_kernel[(len(values),)](
                p, q, whole.contiguous(), values, sums, *strides, *program.numbers, **program.constants
            )
    return values.unsqueeze(-1), sums[:, :3], sums[:, 3:]


def gradients_of_part(
    rows: RowDivergence, p: Tensor, q: Tensor, whole: Tensor, weights: Weights, results: Gradients
) -> None:
    """Write the results of `native_rows.gradients_of_part` to `results`."""
    if not len(p):
        return
    written = [
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if x is not None and may_overlap(x, other) else x
        for x, other in zip(results, (q, p), strict=True)
    ]
    # Any valid pointer can take the place of a gradient that is not wanted.
    outs = [y if x is None else x for x, y in zip(written, (p, q), strict=True)]
    program = _program_of_part(rows, p, q)
    weights = _in_float64(weights)
    with torch.cuda.device_of(p):
        _kernel().part_gradients_kernel[(len(p),)](
            p,
            q,
            whole.contiguous(),
            whole if weights is None else weights,
            *outs,
            *(stride for x in (p, q, *outs) for stride in x.stride()),
            *program.numbers,
            WEIGHTED=weights is not None,
            WANT_P=written[0] is not None,
            WANT_Q=written[1] is not None,
            **program.constants,
        )
    for result, x in zip(results, written, strict=True):
        if result is not None and x is not None and x is not result:
            result.copy_(x)


def _program_of_part(rows: RowDivergence, p: Tensor, q: Tensor) -> Program:
    code, numbers, _ = cast(Arguments, arguments_of(rows.kind))
    return program_of(p, q, code, numbers, rows.temperature)


def launch_of(form: Form, classes: int, vector: int, lanes: int) -> Launch:
    """Return the shape of a program for rows of `classes` classes, with `vector` classes in each load of a thread."""
    vectors = 1 << (-(-classes // vector) - 1).bit_length()
    # A row in flight occupies the caches until its last sweep. If the rows are long, fewer and larger programs let more
    # of the logits stay there. Powers need more registers than the threads of a large program have.
    most = 256 if form in (Form.POWER, Form.RENYI) else 1024 if classes > _LONG_ROW else 512
    threads = min(most, max(lanes, vectors))
    return Launch(threads // lanes, threads)


@cache
def lanes_of(device: torch.device) -> int:
    """Return the number of threads in a warp: 32 on NVIDIA's GPUs, and 32 or 64 on AMD's."""
    return torch.cuda.get_device_properties(device).warp_size if device.type == "cuda" else 32


def _is_shifted(tensors: Sequence[Tensor], vector: int) -> bool:
    """Return whether all rows start at the same offset from an aligned address, where tiles start, not always 0."""
    rows, columns = zip(*(x.stride() for x in tensors), strict=True)
    offsets = {stride % vector for stride in rows}
    is_aligned = all(x.data_ptr() % 16 == 0 for x in tensors)
    return set(columns) == {1} and len(offsets) == 1 and offsets != {0} and is_aligned


def _in_float64(weights: Weights) -> Tensor | None:
    return None if weights is None else weights.to(torch.float64).contiguous()


def _kernel() -> ModuleType:
    from kullback.kernels.triton import kernel

    return kernel
