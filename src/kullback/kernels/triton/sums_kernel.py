"""The GPU kernels that sum the exponentials of a row of logits, write multiples of these exponentials, and overwrite a
few entries of the result; `triton_sums` launches them.

At temperature T, the exponential of a logit x is 2^((x - point) / T log2(e)). The point, such as the row's largest
logit, is subtracted first, because the difference has more correct digits than the logit. The factor log2(e) / T is the
sum of two float32 numbers, `high` and `low`. `low` is positive, so a logit of -inf has exponential 0 and not NaN.
"""

# Triton's language has no types, so the type checker cannot check a kernel's operators.
# pyright: reportUntypedFunctionDecorator=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

_INF = tl.constexpr(float("inf"))
_LOG2_E_HIGH = tl.constexpr(1.4426950216293335)
_LOG2_E_LOW = tl.constexpr(1.9259629911266175e-08)


@triton.jit
def _power(difference, high, low):
    """Return e^(difference / T)."""
    return tl.exp2(tl.fma(difference, high, difference * low))


@triton.jit
def _absorb(x, high, low, peak, total):
    """Return, for each lane, the largest logit so far, and the sum of e^((logit - largest) / T) so far. `peak` and
    `total` are these numbers before the tile `x`, which has several logits for each lane. NaN makes the sum NaN.
    """
    largest = tl.maximum(peak, tl.max(x, axis=0))
    point = tl.where(tl.abs(largest) == _INF, 0.0, largest)
    terms = tl.sum(_power(x - point[None, :], high, low), axis=0)
    return largest, tl.fma(total, _power(peak - point, high, low), terms)


@triton.jit
def _store_sums(sums, high, low, peak, total):
    """Write the largest logit of the row and its sum of exponentials. Both are NaN if the row contains NaN."""
    largest = tl.max(peak, axis=0)
    point = tl.where(tl.abs(largest) == _INF, 0.0, largest)
    total = tl.sum((total * _power(peak - point, high, low)).to(tl.float64), axis=0)
    tl.store(sums, tl.where(total >= 0.0, largest.to(tl.float64), total))
    tl.store(sums + 1, total)


@triton.jit(do_not_specialize=["count"])
def sums_kernel(
    logits, excluded, labels, sums, row_stride, column_stride, classes, count, high, low,
    EXCLUDES: tl.constexpr, LABELED: tl.constexpr, DEPTH: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write two numbers of one row to `sums`: the largest logit, and the sum of e^((logit - largest) / T).

    If `EXCLUDES`, the classes in `excluded` do not count. `excluded` has `count` ascending classes for each row. With
    labels, two more numbers follow: the same two numbers at temperature 1 of all classes except the row's label.
    """
    row = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    logits += row * row_stride
    excluded += row * count
    sums += row * (4 if LABELED else 2)
    offsets = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    peak, total = tl.full((LANES,), -_INF, tl.float32), tl.zeros((LANES,), tl.float32)
    other_peak, other_total = peak, total
    if LABELED:
        label = tl.load(labels + row).to(tl.int32)
    if EXCLUDES:
        passed = 0  # the number of excluded classes in the tiles so far
        excluded_class = tl.load(excluded)
    for start in range(0, classes, DEPTH * LANES):
        columns = start + offsets
        x = tl.load(logits + columns.to(tl.int64) * column_stride, mask=columns < classes, other=-_INF)
        x = x.to(tl.float32)
        if LABELED:
            others = tl.where(columns == label, -_INF, x)
            other_peak, other_total = _absorb(others, _LOG2_E_HIGH, _LOG2_E_LOW, other_peak, other_total)
        if EXCLUDES:
            while excluded_class < start + DEPTH * LANES:
                x = tl.where(columns == excluded_class, -_INF, x)
                passed += 1
                excluded_class = tl.load(excluded + passed, mask=passed < count, other=2147483647)
        peak, total = _absorb(x, high, low, peak, total)
    _store_sums(sums, high, low, peak, total)
    if LABELED:
        _store_sums(sums + 2, _LOG2_E_HIGH, _LOG2_E_LOW, other_peak, other_total)


@triton.jit
def exponentials_kernel(
    logits, out, numbers, row_stride, column_stride, out_row, out_column, classes, high, low,
    LABELED: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write factor * e^((logit - point) / T) for each class of one row. If `ADD`, add it to `out` instead.

    `numbers` has the point and the factor of each row. With labels, two more numbers follow, and the same expression
    with these numbers at temperature 1 is added. A factor of 0 gives 0, even if the row contains inf or NaN.
    """
    row = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    logits += row * row_stride
    out += row * out_row
    numbers += row * (4 if LABELED else 2)
    point, factor = tl.load(numbers), tl.load(numbers + 1)
    if LABELED:
        label_point, label_factor = tl.load(numbers + 2), tl.load(numbers + 3)
    for start in range(0, classes, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        places = columns.to(tl.int64)
        x = tl.load(logits + places * column_stride, mask=columns < classes, other=-_INF).to(tl.float32)
        result = tl.where(factor == 0.0, 0.0, factor * _power(x - point, high, low))
        if LABELED:
            added = label_factor * _power(x - label_point, _LOG2_E_HIGH, _LOG2_E_LOW)
            result += tl.where(label_factor == 0.0, 0.0, added)
        if ADD:
            result += tl.load(out + places * out_column, mask=columns < classes, other=0.0).to(tl.float32)
        tl.store(out + places * out_column, result, mask=columns < classes)


@triton.jit(do_not_specialize=["count"])
def entries_kernel(
    out, classes, values, added, out_row, out_column, count, BLOCK: tl.constexpr,
):  # fmt: skip
    """Overwrite entries of one row of `out`: the entry of a class becomes its number in `values` plus the sum of its
    numbers in `added`.

    `classes`, `values` and `added` have `count` numbers for each row. `classes` may have a class several times, with
    the same number in `values`. A negative class is padding.
    """
    row = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    out += row * out_row
    classes += row * count
    added += row * count
    lanes = tl.arange(0, BLOCK)
    own = tl.load(classes + lanes, mask=lanes < count, other=-1)
    results = tl.load(values + row * count + lanes, mask=lanes < count, other=0.0)
    for i in range(count):
        results += tl.where(own == tl.load(classes + i), tl.load(added + i), 0.0)
    tl.store(out + own.to(tl.int64) * out_column, results.to(tl.float32), mask=own >= 0)
