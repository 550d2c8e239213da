"""The GPU kernels that compute divergences of rows and their gradients from some of the classes, whose peaks and sums
over all classes are known; `triton_parts` launches them.

The kernels compute the masses and terms of classes as `kernel` does. The docstring of `kullback.parallel.combine` has
the formulas.
"""

# Triton's language has no types, so the type checker cannot check a kernel's operators.
# pyright: reportUntypedFunctionDecorator=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false, reportPrivateUsage=false

from __future__ import annotations

import triton
import triton.language as tl

from kullback.kernels.triton.kernel import _load, _row_of, _store, _terms, _total


@triton.jit
def _row_of_whole(whole, scale, scale_2):
    """Return the results of `_row_of` for the ten numbers of a `WholeRow` (csrc/logits/task.h)."""
    peak_p, peak_q = tl.load(whole).to(tl.float32), tl.load(whole + 5).to(tl.float32)
    return _row_of(peak_p, peak_q, tl.load(whole + 1), tl.load(whole + 6), scale, scale_2)


@triton.jit
def _absorb_sums(mass, by, others, top, rest):
    """Return the sums of a `PartSums` (csrc/logits/task.h) for each vector, including the next tile."""
    is_top = mass > 0.5
    others += tl.sum(tl.where(is_top, 0.0, by), axis=1)
    top += tl.sum(tl.where(is_top, by, 0.0), axis=1)
    rest += tl.sum(tl.where(is_top, 0.0, mass), axis=1)
    return others, top, rest


@triton.jit
def part_values_kernel(
    p, q, whole, values, sums, p_row, p_column, q_row, q_column,
    classes, scale, scale_2, weight_p, share_p, rest_p, weight_q, share_q, rest_q,
    FORM: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the sum of the terms of one row's classes to `values`, and the `PartSums` of P and of Q to `sums`."""
    number = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    sides = p + number * p_row, p_column, q + number * q_row, q_column
    numbers = weight_p, share_p, rest_p, weight_q, share_q, rest_q
    masses, ratio, low, is_valid = _row_of_whole(whole + number * 10, scale, scale_2)
    span = 0, classes, tl.cdiv(classes, TILE * VECTOR)
    zeros = tl.zeros((TILE,), tl.float32)
    terms, others_p, top_p, mass_p, others_q, top_q, mass_q = zeros, zeros, zeros, zeros, zeros, zeros, zeros
    for i in range(span[2]):
        a, b = _load(sides, i, span, TILE, VECTOR, False)
        x, y, results = _terms(a, b, masses, ratio, low, numbers, FORM, False)
        term, by_p, by_q, _difference, _affinity, _state = results
        terms += tl.sum(term, axis=1)
        others_p, top_p, mass_p = _absorb_sums(x, by_p, others_p, top_p, mass_p)
        others_q, top_q, mass_q = _absorb_sums(y, by_q, others_q, top_q, mass_q)
    # If the row is valid, NaN is the product of a mass of P that underflows to 0 and an infinite log-ratio.
    value = _total(terms)
    value = tl.where(value == value, value, float("inf"))  # noqa: PLR0124 - only NaN differs from itself
    tl.store(values + number, tl.where(is_valid, value, float("nan")))
    sums += number * 6
    tl.store(sums, _total(others_p))
    tl.store(sums + 1, _total(top_p))
    tl.store(sums + 2, _total(mass_p))
    tl.store(sums + 3, _total(others_q))
    tl.store(sums + 4, _total(top_q))
    tl.store(sums + 5, _total(mass_q))


@triton.jit
def _gradient(mass, by, side):
    """Return a tile of the derivatives with respect to the logits times T, from a side's three sums over all classes,
    which are at `side`.
    """
    others, top, rest = tl.load(side), tl.load(side + 1), tl.load(side + 2)
    total = others + top
    # At the class with more than half of the mass, the difference would cancel.
    at_top = (-(others - rest * total)).to(tl.float32)
    return tl.where(mass > 0.5, at_top, tl.fma(-mass, total.to(tl.float32), by))


@triton.jit
def part_gradients_kernel(
    p, q, whole, weights, out_p, out_q, p_row, p_column, q_row, q_column, out_p_row, out_p_column, out_q_row,
    out_q_column, classes, scale, scale_2, weight_p, share_p, rest_p, weight_q, share_q, rest_q,
    FORM: tl.constexpr, WEIGHTED: tl.constexpr, WANT_P: tl.constexpr, WANT_Q: tl.constexpr, TILE: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Write the wanted gradients of one row with respect to the logits of these classes."""
    number = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    sides = p + number * p_row, p_column, q + number * q_row, q_column
    out_p += number * out_p_row
    out_q += number * out_q_row
    whole += number * 10
    numbers = weight_p, share_p, rest_p, weight_q, share_q, rest_q
    masses, ratio, low, is_valid = _row_of_whole(whole, scale, scale_2)
    span = 0, classes, tl.cdiv(classes, TILE * VECTOR)
    factor = scale
    if WEIGHTED:
        factor = (scale * tl.load(weights + number)).to(tl.float32)
    factor = tl.where(is_valid | (factor == 0.0), factor, float("nan"))
    for i in range(span[2]):
        a, b = _load(sides, i, span, TILE, VECTOR, False)
        x, y, results = _terms(a, b, masses, ratio, low, numbers, FORM, False)
        _term, by_p, by_q, _difference, _affinity, _state = results
        if WANT_P:
            _store(out_p, i, out_p_column, span, factor, _gradient(x, by_p, whole + 2), TILE, VECTOR, False)
        if WANT_Q:
            _store(out_q, i, out_q_column, span, factor, _gradient(y, by_q, whole + 7), TILE, VECTOR, False)
