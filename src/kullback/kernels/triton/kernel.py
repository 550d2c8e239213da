"""The GPU kernels that compute the divergence of a row of logits of P and of Q, and its gradients; `triton_rows`
launches them.

One program computes one row. The first sweep over the classes computes the normalization of both sides. The second
sweep computes the value, and a third sweep the gradient if the gradient needs a sum over the row. Sweeps alternate in
direction, so each sweep starts with logits that may still be in the cache.

A tile has the shape (vectors, classes of a vector). A thread loads a vector at once, so maxima and sums along a vector
need no other thread.

The last two kernels compute divergences and gradients from some of the classes, whose peaks and sums over all classes
are known. The docstring of `kullback.parallel.combine` has the formulas.
"""

# Triton's language has no types, so the type checker cannot check a kernel's operators.
# pyright: reportUntypedFunctionDecorator=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from kullback.kernels.triton.kernel_terms import (
    EVEN,
    INF,
    JEFFREYS,
    MIXTURE,
    POWER,
    RENYI,
    SKEW,
    TOTAL_VARIATION,
    term_of,
    wide_power_term,
)

# A finite logit below every logit that has mass. Subtracting -inf from it gives no NaN.
_LOWEST = tl.constexpr(-3.4028234663852886e38)
# If the largest logits of P and of Q differ by at most this number, the difference of two logits loses few digits (see
# csrc/logits/rows.h).
_FAR = tl.constexpr(4.0)


@triton.jit
def _columns(i, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Return the columns of the tile number `i`."""
    vectors = tl.arange(0, TILE)[:, None] * VECTOR
    return i * (TILE * VECTOR) + (vectors + tl.arange(0, VECTOR)[None, :])


@triton.jit
def _is_inside(columns, first, end):
    return (columns >= first) & (columns < end)


@triton.jit
def _load(sides, i, span, TILE: tl.constexpr, VECTOR: tl.constexpr, SHIFTED: tl.constexpr):
    """Return a tile of both sides' logits in float32. Columns before `first` and from `end` are -inf, which has no
    mass.
    """
    p, p_column, q, q_column = sides
    first, end, _ = span
    columns = _columns(i, TILE, VECTOR)
    if SHIFTED:  # a tile inside the row needs no mask, so it is loaded by wide instructions
        if (i * (TILE * VECTOR) >= first) & ((i + 1) * (TILE * VECTOR) <= end):
            a, b = tl.load(p + columns).to(tl.float32), tl.load(q + columns).to(tl.float32)
        else:
            mask = _is_inside(columns, first, end)
            a = tl.load(p + columns, mask=mask, other=-INF).to(tl.float32)
            b = tl.load(q + columns, mask=mask, other=-INF).to(tl.float32)
    else:
        a = tl.load(p + columns.to(tl.int64) * p_column, mask=columns < end, other=-INF).to(tl.float32)
        b = tl.load(q + columns.to(tl.int64) * q_column, mask=columns < end, other=-INF).to(tl.float32)
    return a, b


@triton.jit
def _store(row, i, stride, span, factor, x, TILE: tl.constexpr, VECTOR: tl.constexpr, SHIFTED: tl.constexpr):
    """Write a tile of a gradient: `factor` times `x`. A factor of 0 gives 0, even where `x` is infinite or NaN."""
    first, end, _ = span
    x = tl.where(factor == 0.0, 0.0, factor * x)
    columns = _columns(i, TILE, VECTOR)
    x = x.to(tl.float32).to(row.dtype.element_ty)
    if SHIFTED:
        if (i * (TILE * VECTOR) >= first) & ((i + 1) * (TILE * VECTOR) <= end):
            tl.store(row + columns, x)
        else:
            tl.store(row + columns, x, mask=_is_inside(columns, first, end))
    else:
        tl.store(row + columns.to(tl.int64) * stride, x, mask=columns < end)


@triton.jit
def _total(x):
    return tl.sum(x.to(tl.float64), axis=0)


@triton.jit
def _absorb(x, scale, peak, total):
    """Return, for each vector, the largest logit so far, and the sum of 2^(scale (logit - largest)) so far. `peak` and
    `total` are these numbers before the tile `x`.
    """
    top = tl.maximum(peak, tl.max(x, axis=1))
    part = tl.sum(tl.exp2((x - top[:, None]) * scale), axis=1)
    return top, tl.fma(total, tl.exp2((peak - top) * scale), part)


@triton.jit
def _terms(a, b, masses, ratio, low, numbers, FORM: tl.constexpr, WIDE: tl.constexpr):
    """Return p and q, and the terms of `term_of`, of the logits `a` of P and `b` of Q. If `WIDE`, everything is in
    float64. `_row_of` returns `masses`, `ratio` and `low`.
    """
    peak_a, peak_b, inverse_a, inverse_b, log_sum_a, log_sum_b = masses
    shrink, from_a, from_b, scale, scale_2, high = ratio
    if WIDE:
        scale = scale.to(tl.float64) * shrink
        a, b = a.to(tl.float64), b.to(tl.float64)
        log_p, log_q = (a - peak_a) * scale - log_sum_a, (b - peak_b) * scale - log_sum_b
        d = ((a - b) - (peak_a.to(tl.float64) - peak_b)) * scale - (log_sum_a - log_sum_b)
        _weight, order, _, exponent, _, _ = numbers
        p, q, results = tl.exp(log_p), tl.exp(log_q), wide_power_term(log_p, log_q, d, order, exponent)
    else:
        p = tl.exp2((a - peak_a) * scale_2) * inverse_a
        q = tl.exp2((b - peak_b) * scale_2) * inverse_b
        apart = tl.fma(a, shrink, -from_a) - tl.fma(b, shrink, -from_b)
        d = tl.fma(apart, scale, -high) - low
        results = term_of(p, q, d, numbers, FORM)
    return p, q, results


@triton.jit
def _statistics(sides, span, scale, scale_2, TILE: tl.constexpr, VECTOR: tl.constexpr, SHIFTED: tl.constexpr):
    """Return the results of `_row_of` for a row whose classes this program sums."""
    peaks_a, peaks_b = tl.full((TILE,), _LOWEST, tl.float32), tl.full((TILE,), _LOWEST, tl.float32)
    sums_a, sums_b = tl.zeros((TILE,), tl.float32), tl.zeros((TILE,), tl.float32)
    for i in range(span[2]):
        a, b = _load(sides, i, span, TILE, VECTOR, SHIFTED)
        peaks_a, sums_a = _absorb(a, scale_2, peaks_a, sums_a)
        peaks_b, sums_b = _absorb(b, scale_2, peaks_b, sums_b)
    peak_a, peak_b = tl.max(peaks_a, axis=0), tl.max(peaks_b, axis=0)
    # The sums of P and Q are computed in the same order for all dtypes, so that equal rows have equal sums.
    scaled_a = sums_a * tl.exp2((peaks_a - peak_a) * scale_2)
    scaled_b = sums_b * tl.exp2((peaks_b - peak_b) * scale_2)
    sum_a, sum_b = tl.split(_total(tl.join(scaled_a, scaled_b)))
    return _row_of(peak_a, peak_b, sum_a, sum_b, scale, scale_2)


@triton.jit
def _row_of(peak_a, peak_b, sum_a, sum_b, scale, scale_2):
    """Return the arguments `masses`, `ratio` and `low` of `_terms`: the peaks, the sums of exponentials, and the parts
    of the log-ratio. Also return whether the row has no NaN, no +inf and mass on both sides.

    The log-ratio of logits a of P and b of Q is ((a shrink - from_a) - (b shrink - from_b)) scale - high - low. The
    last two terms are separate because their sum would be rounded. If logits are so large that a - b might overflow,
    `shrink` is a power of two below 1. If the peaks are far apart, the side that is farther from 0 is shifted by the
    difference of the peaks. If that is not enough because of rounding, both sides are shifted by their peaks.
    """
    shrink = tl.where(tl.maximum(tl.abs(peak_a), tl.abs(peak_b)) > 1e30, 0.0009765625, 1.0)
    origin_a, origin_b = peak_a * shrink, peak_b * shrink
    scale /= shrink
    apart = origin_a - origin_b
    a_is_farther = tl.abs(origin_a) > tl.abs(origin_b)
    is_far = tl.abs(apart) > _FAR
    from_a = tl.where(is_far & a_is_farther, apart, 0.0)
    from_b = tl.where(is_far & (not a_is_farther), -apart, 0.0)
    is_rounded = is_far & (tl.abs((origin_a - from_a) - (origin_b - from_b)) * scale > 1.0)
    from_a, from_b = tl.where(is_rounded, origin_a, from_a), tl.where(is_rounded, origin_b, from_b)
    rest = (origin_a.to(tl.float64) - from_a) - (origin_b.to(tl.float64) - from_b)
    log_sum_a, log_sum_b = tl.log(sum_a), tl.log(sum_b)
    shift = rest * scale + (log_sum_a - log_sum_b)
    high = shift.to(tl.float32)
    low = (shift - high.to(tl.float64)).to(tl.float32)
    inverse_a, inverse_b = (1.0 / sum_a).to(tl.float32), (1.0 / sum_b).to(tl.float32)
    is_valid = (sum_a > 0) & (sum_a < INF) & (sum_b > 0) & (sum_b < INF)
    masses = peak_a, peak_b, inverse_a, inverse_b, log_sum_a, log_sum_b
    return masses, (shrink, from_a, from_b, scale, scale_2, high), low, is_valid


@triton.jit
def _value_sweep(
    sides, outs, span, masses, ratio, low, numbers, factor, FORM: tl.constexpr, WANT_P: tl.constexpr,
    WANT_Q: tl.constexpr, EARLY: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
    SHIFTED: tl.constexpr,
):  # fmt: skip
    """Return sums over the classes: of the terms, of the derivatives with respect to log p and log q, and of q - p. For
    powers, also return the sum of the affinities, the logarithm of this sum's unit, and the largest state of a class.
    If `EARLY`, also write the wanted gradient.
    """
    out_p, out_p_column, out_q, out_q_column = outs
    zeros = tl.zeros((TILE,), tl.float64 if WIDE else tl.float32)
    terms, sums_p, sums_q, differences = zeros, zeros, zeros, zeros
    affinities, units, states = zeros, zeros - 1e300 if WIDE else zeros, zeros.to(tl.int32)
    for k in range(span[2]):
        i = span[2] - 1 - k
        a, b = _load(sides, i, span, TILE, VECTOR, SHIFTED)
        _, _, results = _terms(a, b, masses, ratio, low, numbers, FORM, WIDE)
        term, by_p, by_q, difference, affinity, state = results
        terms += tl.sum(term, axis=1)
        differences += tl.sum(difference, axis=1)
        if WANT_P and not EARLY:
            sums_p += tl.sum(by_p, axis=1)
        if (WANT_Q and not EARLY) or FORM == TOTAL_VARIATION:
            sums_q += tl.sum(by_q, axis=1)
        if FORM == POWER or FORM == RENYI:  # noqa: PLR1714, SIM109 - Triton has no `in`
            states = tl.maximum(states, tl.max(state, axis=1))
        if FORM == RENYI:
            if WIDE:
                units, affinities = _absorb(affinity * 1.4426950408889634, 1.0, units, affinities)
            else:
                affinities += tl.sum(affinity, axis=1)
        if EARLY and WANT_P:
            _store(out_p, i, out_p_column, span, factor, by_p, TILE, VECTOR, SHIFTED)
        if EARLY and WANT_Q:
            _store(out_q, i, out_q_column, span, factor, by_q, TILE, VECTOR, SHIFTED)
    unit = tl.max(units, axis=0)
    total = _total(affinities * tl.exp2(units - unit))
    sums = _total(terms), _total(sums_p), _total(sums_q), _total(differences), total
    return sums, unit.to(tl.float64) * 0.6931471805599453, tl.max(states, axis=0)


@triton.jit
def _projected(mass, derivatives, total, others, tops, i, TILE: tl.constexpr, VECTOR: tl.constexpr):
    """Return the derivatives with respect to the logits of a side, and the sums that `_store_rest` needs."""
    projected = derivatives - mass * total
    is_top = mass > 0.5
    others += tl.sum(tl.where(is_top, 0.0, projected), axis=1)
    tops = tl.maximum(tops, tl.max(tl.where(is_top, _columns(i, TILE, VECTOR), -1), axis=1))
    return projected, others, tops


@triton.jit
def _store_rest(row, stride, factor, others, tops, WANTED: tl.constexpr):
    """If a class has more than half of the mass, write its gradient as minus the sum of the other classes' gradients.

    A row of the gradient sums to 0, and the entry itself would be a difference of nearly equal
    numbers.
    """
    if WANTED:
        gradient = tl.where(factor == 0.0, 0.0, -factor * _total(others)).to(tl.float32)
        top = tl.max(tops, axis=0)
        tl.debug_barrier()  # the sweep has written the entry too, from another thread
        tl.store(row + top.to(tl.int64) * stride, gradient.to(row.dtype.element_ty), mask=top >= 0)


@triton.jit
def _gradient_sweep(
    sides, outs, span, masses, ratio, low, numbers, factor_p, factor_q, sum_p, sum_q, shares, FORM: tl.constexpr,
    WANT_P: tl.constexpr, WANT_Q: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, VECTOR: tl.constexpr,
    SHIFTED: tl.constexpr,
):  # fmt: skip
    """Write the gradients from the sums of the derivatives over the classes. In Renyi's divergence, the derivatives may
    be the affinities divided by their sum (see `_renyi`).
    """
    out_p, out_p_column, out_q, out_q_column = outs
    is_share, inverse_total, unit = shares  # pyright: ignore[reportUnusedVariable] - used for Renyi alone
    cancels: tl.constexpr = FORM == TOTAL_VARIATION or FORM == POWER or FORM == RENYI  # noqa: PLR1714
    zeros = tl.zeros((TILE,), tl.float64 if WIDE else tl.float32)
    others_p, others_q = zeros, zeros
    tops_p, tops_q = zeros.to(tl.int32) - 1, zeros.to(tl.int32) - 1
    if not WIDE:
        sum_p, sum_q = sum_p.to(tl.float32), sum_q.to(tl.float32)
        factor_p, factor_q = factor_p.to(tl.float32), factor_q.to(tl.float32)
    for i in range(span[2]):
        a, b = _load(sides, i, span, TILE, VECTOR, SHIFTED)
        x, y, results = _terms(a, b, masses, ratio, low, numbers, FORM, WIDE)
        _, by_p, by_q, _, affinity, _ = results
        if FORM == RENYI:
            affinity = tl.exp(affinity - unit) if WIDE else affinity
            affinity *= inverse_total if WIDE else inverse_total.to(tl.float32)
            by_p, by_q = tl.where(is_share, affinity, by_p), tl.where(is_share, affinity, by_q)
        if WANT_P:
            if cancels:
                by_p, others_p, tops_p = _projected(x, by_p, sum_p, others_p, tops_p, i, TILE, VECTOR)
            else:
                by_p = tl.fma(-x, sum_p, by_p)
            _store(out_p, i, out_p_column, span, factor_p, by_p, TILE, VECTOR, SHIFTED)
        if WANT_Q:
            if cancels:
                by_q, others_q, tops_q = _projected(y, by_q, sum_q, others_q, tops_q, i, TILE, VECTOR)
            else:
                by_q = tl.fma(-y, sum_q, by_q)
            _store(out_q, i, out_q_column, span, factor_q, by_q, TILE, VECTOR, SHIFTED)
    if cancels:
        _store_rest(out_p, out_p_column, factor_p, others_p, tops_p, WANT_P)
        _store_rest(out_q, out_q_column, factor_q, others_q, tops_q, WANT_Q)


@triton.jit
def _curvature(numbers, FORM: tl.constexpr):
    """Return half of the second derivative of a divergence at P = Q with respect to a shift of all log-ratios."""
    weight_p, _share_p, rest_p, weight_q, _share_q, rest_q = numbers
    curvature = 0.5
    if FORM == JEFFREYS:
        curvature = 1.0
    elif FORM == MIXTURE:
        curvature = 0.5 * (weight_p * rest_p * rest_p + weight_q * rest_q * rest_q)
    elif FORM == SKEW:
        curvature = 0.5 * weight_p * rest_p * rest_p
    elif FORM == EVEN:
        curvature = 0.25 * weight_p
    return curvature


@triton.jit
def _log1p(x):
    """Return log(1 + x) for x > -1 in float64 (Kahan)."""
    rounded = 1.0 + x
    return tl.where(rounded == 1.0, x, tl.log(rounded) * x / (rounded - 1.0))


@triton.jit
def _renyi(value, sums, unit, state, numbers):
    """Return Renyi's divergence from the power divergence `value`, the factors of its derivatives with respect to P and
    Q, their sums, and three numbers that describe the derivatives. The first is whether the derivatives are the
    affinities divided by their sum. If not, they equal the derivatives of the power divergence. The second and the
    third are the inverse of the sum of the affinities, and the logarithm of the unit of this sum.
    """
    weight, order, _, exponent, _, _ = numbers
    change = value * order * exponent  # the sum of the affinities minus 1
    is_near = tl.abs(change) < 0.5
    near = tl.where(is_near, change, 0.0)
    far = tl.where(state == 1, INF, weight * (unit + tl.log(sums[4])))
    value = tl.where(is_near, weight * _log1p(near), far)
    factor_p = tl.where(is_near, weight * order * exponent / (1.0 + near), weight * order)
    factor_q = tl.where(is_near, factor_p, -weight * exponent)
    inverse_total = tl.where(sums[4] == 0.0, 0.0, 1.0 / sums[4])
    share = tl.where(sums[4] == 0.0, 0.0, 1.0)
    totals = tl.where(is_near, sums[1], share), tl.where(is_near, sums[2], share)
    return value, factor_p, factor_q, totals, (not is_near, inverse_total, unit)


@triton.jit
def _finish(
    values, sides, outs, span, masses, ratio, low, numbers, factor, is_valid, sums, unit, state, FORM: tl.constexpr,
    WANT_P: tl.constexpr, WANT_Q: tl.constexpr, EARLY: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
    VECTOR: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    """Write the row's value, and the gradients that the sweep for the value did not write."""
    terms, sum_p, sum_q, difference, _ = sums
    factor_p, factor_q, shares = factor, factor, (False, 0.0, 0.0)
    # The sum of q - p is not 0 only because of rounding in the normalization. The value is corrected by the error that
    # results. For most divergences, the error is of second order in this sum.
    if FORM == TOTAL_VARIATION:
        value = 0.5 * terms - difference * sum_q
    else:
        value = terms - _curvature(numbers, FORM) * difference * difference
    if FORM == POWER:
        value *= numbers[0]
        factor_p, factor_q = factor * numbers[0], factor * numbers[0]
    if FORM == RENYI:
        value, of_p, of_q, totals, shares = _renyi(value, sums, unit, state, numbers)
        factor_p, factor_q = factor * of_p, factor * of_q
        sum_p, sum_q = totals
    value = tl.where(value < 0.0, 0.0, value)
    # If the row is valid, NaN is the product of a mass of P that underflows to 0 and an infinite log-ratio.
    value = tl.where(value == value, value, INF)  # noqa: PLR0124 - only NaN differs from itself
    tl.store(values, tl.where(is_valid, value, float("nan")))
    if (WANT_P or WANT_Q) and not EARLY:
        _gradient_sweep(
            sides, outs, span, masses, ratio, low, numbers, factor_p, factor_q, sum_p, sum_q, shares, FORM, WANT_P,
            WANT_Q, WIDE, TILE, VECTOR, SHIFTED,
        )  # fmt: skip


@triton.jit
def row_kernel(
    p, q, weights, values, out_p, out_q,
    p_row, p_column, q_row, q_column, out_p_row, out_p_column, out_q_row, out_q_column,
    factor, classes, scale, scale_2, weight_p, share_p, rest_p, weight_q, share_q, rest_q,
    FORM: tl.constexpr, WEIGHTED: tl.constexpr, WANT_P: tl.constexpr, WANT_Q: tl.constexpr, EARLY: tl.constexpr,
    TILE: tl.constexpr, VECTOR: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    """Write the divergence of one row to `values`. Write its gradients, multiplied by `factor` and the row's weight, to
    `out_p` and `out_q`.

    `scale` multiplies the logits, and `scale_2` is `scale` divided by log 2. `EARLY` means that only one gradient is
    wanted and that this gradient needs no sum over the row. The sweep for the value then also writes this gradient.
    `SHIFTED` means that the columns' strides are 1, and that the rows of all tensors start at the same offset from an
    aligned address. The tiles then start at that address, before the first class.
    """
    row_number = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    start_p, start_q = row_number * p_row, row_number * q_row
    start_out_p, start_out_q = row_number * out_p_row, row_number * out_q_row
    first, end = 0, classes
    if SHIFTED:
        first = (start_p % VECTOR).to(tl.int32)
        end += first
        start_p, start_q = tl.multiple_of(start_p - first, VECTOR), tl.multiple_of(start_q - first, VECTOR)
        start_out_p = tl.multiple_of(start_out_p - first, VECTOR)
        start_out_q = tl.multiple_of(start_out_q - first, VECTOR)
    sides = p + start_p, p_column, q + start_q, q_column
    outs = out_p + start_out_p, out_p_column, out_q + start_out_q, out_q_column
    span = first, end, tl.cdiv(end, TILE * VECTOR)
    if WEIGHTED:
        factor = (factor * tl.load(weights + row_number)).to(tl.float32)
    numbers = weight_p, share_p, rest_p, weight_q, share_q, rest_q

    masses, ratio, low, is_valid = _statistics(sides, span, scale, scale_2, TILE, VECTOR, SHIFTED)
    factor = tl.where(is_valid | (factor == 0.0), factor, float("nan"))
    sums, unit, state = _value_sweep(
        sides, outs, span, masses, ratio, low, numbers, factor, FORM, WANT_P, WANT_Q, EARLY, False, TILE, VECTOR,
        SHIFTED,
    )  # fmt: skip
    if FORM == TOTAL_VARIATION:  # noqa: SIM102 - Triton decides this while it compiles
        # Rounding might change the sign of q - p where p and q are largest. If the sum of q - p is not negligible
        # compared to the sum of |q - p|, the sweep is repeated. The new log-ratios make the sum 0.
        if tl.abs(sums[3]) > 1e-5 * sums[0]:
            low -= sums[3].to(tl.float32)
            sums, unit, state = _value_sweep(
                sides, outs, span, masses, ratio, low, numbers, factor, FORM, WANT_P, WANT_Q, EARLY, False, TILE,
                VECTOR, SHIFTED,
            )  # fmt: skip
    is_wide = False
    if FORM == POWER or FORM == RENYI:  # noqa: PLR1714, SIM109
        is_wide = state == 1
    if FORM == RENYI:  # a sum of affinities that is so small may miss masses of P that underflow
        is_wide = (state == 1) | (sums[4] < 1e-6)
    if is_wide:
        # A number of float64 takes two registers, so a thread has only two classes of a tile.
        span = first, end, tl.cdiv(end, TILE * 2)
        sums, unit, state = _value_sweep(
            sides, outs, span, masses, ratio, low, numbers, factor, FORM, WANT_P, WANT_Q, EARLY, True, TILE, 2,
            SHIFTED,
        )  # fmt: skip
        _finish(
            values + row_number, sides, outs, span, masses, ratio, low, numbers, factor, is_valid, sums, unit, state,
            FORM, WANT_P, WANT_Q, EARLY, True, TILE, 2, SHIFTED,
        )  # fmt: skip
    else:
        _finish(
            values + row_number, sides, outs, span, masses, ratio, low, numbers, factor, is_valid, sums, unit, state,
            FORM, WANT_P, WANT_Q, EARLY, False, TILE, VECTOR, SHIFTED,
        )  # fmt: skip


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
