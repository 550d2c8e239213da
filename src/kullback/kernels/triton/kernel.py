"""The GPU kernel that computes the divergence of a row of logits of P and of Q, and its gradients; `triton_rows`
launches it.

With d = log p - log q, every divergence is a sum of non-negative terms (see kullback/generators). Where |d| is small,
the terms are power series in d. Elsewhere the terms are computed from p and q, as in csrc/logits.
"""

# Triton's language has no types, so the type checker cannot check a kernel's operators.
# pyright: reportUntypedFunctionDecorator=false, reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportOperatorIssue=false, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from kullback.kernels.codes import DivergenceCode

_KL = tl.constexpr(DivergenceCode.KL.value)
_REVERSE_KL = tl.constexpr(DivergenceCode.REVERSE_KL.value)
_JEFFREYS = tl.constexpr(DivergenceCode.JEFFREYS.value)
_TOTAL_VARIATION = tl.constexpr(DivergenceCode.TOTAL_VARIATION.value)
_MIXTURE = tl.constexpr(DivergenceCode.MIXTURE.value)
# If |log(p / q)| of a class is below this number, the term of the class is computed by a power series.
_NEAR = tl.constexpr(0.3)
_INF = tl.constexpr(float("inf"))


@triton.jit
def _exp(x):
    """Return e^x for x <= 0, with an error of about one unit in the last place. For x < -87, return 0."""
    clamped = tl.where(x < -87.0, -87.0, x)
    n = tl.floor(clamped * 1.44269504 + 0.5)
    r = tl.fma(n, 2.12194440e-4, tl.fma(n, -0.693359375, clamped))
    s = tl.fma(r, 1.9875691e-4, 1.3981999e-3)
    s = tl.fma(s, r, 8.3334519e-3)
    s = tl.fma(s, r, 4.1665796e-2)
    s = tl.fma(s, r, 1.6666665e-1)
    s = tl.fma(s, r, 0.5)
    s = tl.fma(s * r, r, r) + 1.0
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < -87.0, 0.0, s * power)


@triton.jit
def _log1p_near(y):
    """Return log(1 + y) for |y| < 0.42, as log((1 + s) / (1 - s)) with s = y / (2 + y)."""
    s = y / (2.0 + y)
    z = s * s
    t = tl.fma(z, 1 / 11, 1 / 9)
    t = tl.fma(t, z, 1 / 7)
    t = tl.fma(t, z, 1 / 5)
    t = tl.fma(t, z, 1 / 3)
    return tl.fma(2.0 * s * z, t, 2.0 * s)


@triton.jit
def _expm1_of_minus(x):
    """Return e^-x - 1 for |x| < 0.3."""
    s = tl.fma(x, -1 / 5040, 1 / 720)
    s = tl.fma(s, x, -1 / 120)
    s = tl.fma(s, x, 1 / 24)
    s = tl.fma(s, x, -1 / 6)
    s = tl.fma(s, x, 0.5)
    return tl.fma(s * x, x, -x)


@triton.jit
def _expm1_of_minus_plus_x(x):
    """Return e^-x - 1 + x for |x| < 0.7."""
    s = tl.fma(x, 1 / 3628800, -1 / 362880)
    s = tl.fma(s, x, 1 / 40320)
    s = tl.fma(s, x, -1 / 5040)
    s = tl.fma(s, x, 1 / 720)
    s = tl.fma(s, x, -1 / 120)
    s = tl.fma(s, x, 1 / 24)
    s = tl.fma(s, x, -1 / 6)
    s = tl.fma(s, x, 0.5)
    return s * x * x


@triton.jit
def _finite(d):
    return tl.where(tl.abs(d) == _INF, 0.0, d)


@triton.jit
def _difference(p, q, d):
    """Return q - p to full relative precision, even where p and q are nearly equal."""
    near = tl.abs(d) < _NEAR
    return tl.where(near, p * _expm1_of_minus(tl.where(near, d, 0.0)), q - p)


@triton.jit
def _relative_entropy(p, difference, x):
    """Return p (e^-x - 1 + x). The argument `difference` is p (e^-x - 1)."""
    near = tl.abs(x) < 0.7
    far = tl.where(x == _INF, _INF, difference + p * _finite(x))
    return tl.where(near, p * _expm1_of_minus_plus_x(tl.where(near, x, 0.0)), far)


@triton.jit
def _skew(p, q, d, share, rest):
    """Return the term of KL(P || share P + rest Q) for 0 < share < 1, and its derivatives with respect to log p and log
    q.
    """
    difference = _difference(p, q, d)
    # Masses below 1e-30 do not change the sum of the terms. Their mixture might be subnormal, so such masses count as
    # 0.
    empty = p < 1e-30
    y = rest * difference / tl.where(empty, 1.0, p)  # the mixture is p (1 + y)
    near = tl.abs(y) < 0.4
    large = tl.log(tl.where(empty, 1.0, p)) - tl.log(tl.where(empty, 1.0, share * p + rest * q))
    x = tl.where(empty, 0.0, tl.where(near, -_log1p_near(tl.where(near, y, 0.0)), large))
    ratio_minus_1 = tl.where(empty, -1.0, -y / (1.0 + y))  # p / mixture - 1
    term = tl.where(empty, rest * difference, _relative_entropy(p, rest * difference, x))
    return term, tl.where(empty, 0.0, p * (x - share * ratio_minus_1)), -rest * q * ratio_minus_1


@triton.jit
def _terms_and_derivatives(p, q, d, weight_p, share_p, rest_p, weight_q, share_q, rest_q, KIND: tl.constexpr):
    """Return the term of each class, and the derivatives of the term with respect to log p and log q."""
    difference = _difference(p, q, d)
    if KIND == _KL:
        term = _relative_entropy(p, difference, d)
        by_p = p * _finite(d)
        by_q = difference
    elif KIND == _REVERSE_KL:
        back = _difference(q, p, -d)
        term = _relative_entropy(q, back, -d)
        by_p = back
        by_q = -q * _finite(d)
    elif KIND == _JEFFREYS:
        term = tl.where(tl.abs(d) == _INF, _INF, -difference * d)
        by_p = p * _finite(d) - difference
        by_q = difference - q * _finite(d)
    elif KIND == _TOTAL_VARIATION:
        half = tl.where(d > 0.0, 0.5, tl.where(d < 0.0, -0.5, d))
        term = 0.5 * tl.abs(difference)
        by_p = p * half
        by_q = -q * half
    else:  # weight_p times the skew divergence of (P, Q), plus weight_q times that for (Q, P)
        term_p, own_p, other_q = _skew(p, q, d, share_p, rest_p)
        term_q, own_q, other_p = _skew(q, p, -d, share_q, rest_q)
        term = weight_p * term_p + weight_q * term_q
        by_p = weight_p * own_p + weight_q * other_p
        by_q = weight_p * other_q + weight_q * own_q
    return term, by_p, by_q


@triton.jit
def _load(row, columns, stride, classes):
    """Return a block of logits in float32. Columns after the last class are -inf, which has no mass."""
    return tl.load(row + columns.to(tl.int64) * stride, mask=columns < classes, other=-_INF).to(tl.float32)


@triton.jit
def _store(row, columns, stride, classes, factor, derivatives, WANTED: tl.constexpr):
    """If the gradient is wanted, write a block of it: `factor` times the derivatives. A factor of 0 gives 0, even if
    the derivatives contain inf or NaN.
    """
    if WANTED:
        gradient = tl.where(factor == 0.0, 0.0, factor * derivatives)
        tl.store(row + columns.to(tl.int64) * stride, gradient, mask=columns < classes)


@triton.jit
def _store_rest(row, column, stride, classes, factor, others, WANTED: tl.constexpr):
    """If the gradient is wanted, write its entry for one column as minus the sum of the other entries. A row of the
    gradient sums to 0.
    """
    if WANTED:
        gradient = tl.where(factor == 0.0, 0.0, -factor * _total(others).to(tl.float32))
        tl.store(row + column.to(tl.int64) * stride, gradient, mask=column < classes)


@triton.jit
def _absorb(x, scale, peak, total):
    """Return, for each lane, the largest logit so far, and the sum of e^(scale (logit - largest)) so far. `peak` and
    `total` are these numbers before the block `x`.
    """
    rises = x > peak
    ratio = _exp(-tl.abs(tl.where(x == peak, 0.0, x - peak)) * scale)
    return tl.where(rises, x, peak), tl.where(rises, tl.fma(total, ratio, 1.0), total + ratio)


@triton.jit
def _total(x):
    return tl.sum(x.to(tl.float64), axis=0)


@triton.jit
def _subtracted(a, b):
    """Return a - b, rounded, and the error of this rounding (Knuth, 1969)."""
    rounded = a - b
    minus_b = rounded - a
    return rounded, tl.where(tl.abs(rounded) < _INF, (a - (rounded - minus_b)) - (b + minus_b), 0.0)


@triton.jit
def _masses(a, b, scale, shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low):
    """Return p, q and log(p / q) of the logits `a` of P and `b` of Q. The log-ratio is 0 where neither P nor Q has
    mass, and infinite where only one of them has mass. `_statistics` returns the other arguments.
    """
    without = (a == -_INF) & (b == -_INF)
    below_a = (a - peak_a) * scale
    below_b = (b - peak_b) * scale
    # If a and b differ by a large factor, a - b has a rounding error, which is added back.
    apart, error = _subtracted(a * shrink - from_a, b * shrink - from_b)
    d = (((apart - offset) + error) * (scale / shrink) - high) - low
    return _exp(below_a) * inverse_a, _exp(below_b) * inverse_b, tl.where(without, 0.0, d)


@triton.jit
def _statistics(p, q, p_column, q_column, classes, scale, lanes, zeros):
    """Return the arguments of `_masses` for both rows: the peaks, the inverse sums of exponentials, and the parts of
    the log-ratio.

    The log-ratio of logits a of P and b of Q at temperature T is (a - b - offset) / T - high - low. The subtracted
    terms are separate because the sum of the terms would be rounded in float32. If logits are so large that a - b might
    overflow, they are first multiplied by `shrink`, a power of two. If the difference of the peaks has a rounding error
    above T, `from_a` and `from_b` are the peaks, which are subtracted first; otherwise both are 0.
    """
    BLOCK: tl.constexpr = lanes.shape[0]
    peaks_a, sums_a = zeros - _INF, zeros
    peaks_b, sums_b = zeros - _INF, zeros
    for start in range(0, classes, BLOCK):
        columns = start + lanes
        peaks_a, sums_a = _absorb(_load(p, columns, p_column, classes), scale, peaks_a, sums_a)
        peaks_b, sums_b = _absorb(_load(q, columns, q_column, classes), scale, peaks_b, sums_b)
    peak_a, peak_b = tl.max(peaks_a, axis=0), tl.max(peaks_b, axis=0)
    # The sums of P and Q are computed in the same order for all dtypes, so that equal rows have equal sums.
    parts = tl.join(sums_a * _exp((peaks_a - peak_a) * scale), sums_b * _exp((peaks_b - peak_b) * scale))
    sum_a, sum_b = tl.split(_total(parts))
    shrink = tl.where(tl.maximum(tl.abs(peak_a), tl.abs(peak_b)) > 1e30, 0.0009765625, 1.0)
    offset, rest = _subtracted(peak_a * shrink, peak_b * shrink)
    is_apart = tl.abs(rest) * (scale / shrink) > 1
    from_a, from_b = tl.where(is_apart, peak_a * shrink, 0.0), tl.where(is_apart, peak_b * shrink, 0.0)
    offset, rest = tl.where(is_apart, 0.0, offset), tl.where(is_apart, 0.0, rest)
    shift = rest.to(tl.float64) * (scale / shrink) + (tl.log(sum_a) - tl.log(sum_b))
    high = shift.to(tl.float32)
    low = (shift - high.to(tl.float64)).to(tl.float32)
    inverse_a, inverse_b = (1.0 / sum_a).to(tl.float32), (1.0 / sum_b).to(tl.float32)
    return shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low


@triton.jit
def _imbalance(
    p, q, p_column, q_column, classes, scale, lanes, zeros,
    shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low,
):  # fmt: skip
    """Return three numbers: the sum of q - p over the classes, the first class with the most mass of P, and the first
    class with the most mass of Q.

    Only rounding in the normalization makes the sum nonzero. A sum that is negligible compared to the sum of |q - p| is
    returned as 0. Classes with p = q then keep a derivative of 0.
    """
    BLOCK: tl.constexpr = lanes.shape[0]
    differences, sizes = zeros, zeros
    tops_p, tops_q = zeros.to(tl.int32) + classes, zeros.to(tl.int32) + classes
    for start in range(0, classes, BLOCK):
        columns = start + lanes
        a, b = _load(p, columns, p_column, classes), _load(q, columns, q_column, classes)
        x, y, d = _masses(
            a, b, scale, shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low
        )
        difference = _difference(x, y, d)
        differences += difference
        sizes += tl.abs(difference)
        tops_p = tl.minimum(tops_p, tl.where(a == peak_a, columns, classes))
        tops_q = tl.minimum(tops_q, tl.where(b == peak_b, columns, classes))
    left = _total(differences).to(tl.float32)
    left = tl.where(tl.abs(left) > 1e-5 * _total(sizes), left, 0.0)
    return left, tl.min(tops_p, axis=0), tl.min(tops_q, axis=0)


@triton.jit
def _corrected(value, difference, sum_q, weight_p, rest_p, weight_q, rest_q, KIND: tl.constexpr):
    """Return the divergence `value` without the error from rounding in the normalization. `difference`, the sum of q -
    p, measures this rounding.

    For total variation, the error is of first order in `difference`, and `sum_q` is its factor. For other divergences,
    the error is of second order: half the curvature at P = Q times the squared `difference`.
    """
    if KIND == _TOTAL_VARIATION:
        value -= difference * sum_q
    elif KIND == _MIXTURE:
        value -= 0.5 * (weight_p * rest_p * rest_p + weight_q * rest_q * rest_q) * difference * difference
    elif KIND == _JEFFREYS:
        value -= difference * difference
    else:
        value -= 0.5 * difference * difference
    return tl.where(value < 0.0, 0.0, value)


@triton.jit
def row_kernel(
    p, q, weights, values, out_p, out_q,
    p_row, p_column, q_row, q_column, out_p_row, out_p_column, out_q_row, out_q_column,
    classes, scale, factor, weight_p, share_p, rest_p, weight_q, share_q, rest_q,
    KIND: tl.constexpr, WEIGHTED: tl.constexpr, WANT_P: tl.constexpr, WANT_Q: tl.constexpr, EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the divergence of one row to `values`. Write its gradients, multiplied by `factor` and the row's weight, to
    `out_p` and `out_q`.

    `scale` multiplies the logits. `EARLY` means that only one gradient is wanted and that this gradient needs no sum
    over the row. The sweep for the value then also writes this gradient.
    """
    row = tl.program_id(0).to(tl.int64)  # offsets may exceed 2^31
    p += row * p_row
    q += row * q_row
    out_p += row * out_p_row
    out_q += row * out_q_row
    if WEIGHTED:
        factor = (factor * tl.load(weights + row)).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK,), tl.float32)

    shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low = _statistics(
        p, q, p_column, q_column, classes, scale, lanes, zeros
    )
    top_p, top_q = classes, classes
    if KIND == _TOTAL_VARIATION:  # rounding might change the sign of q - p where p and q are largest
        left, top_p, top_q = _imbalance(
            p, q, p_column, q_column, classes, scale, lanes, zeros,
            shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low,
        )  # fmt: skip
        low -= left
    terms, derivatives_p, derivatives_q, differences = zeros, zeros, zeros, zeros
    for start in range(0, classes, BLOCK):
        columns = start + lanes
        a, b = _load(p, columns, p_column, classes), _load(q, columns, q_column, classes)
        x, y, d = _masses(
            a, b, scale, shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low
        )
        term, by_p, by_q = _terms_and_derivatives(
            x, y, d, weight_p, share_p, rest_p, weight_q, share_q, rest_q, KIND
        )
        terms += term
        derivatives_p += by_p
        derivatives_q += by_q
        differences += _difference(x, y, d)
        if EARLY:
            _store(out_p, columns, out_p_column, classes, factor, by_p, WANT_P)
            _store(out_q, columns, out_q_column, classes, factor, by_q, WANT_Q)
    value = _corrected(
        _total(terms), _total(differences), _total(derivatives_q), weight_p, rest_p, weight_q, rest_q, KIND
    )
    tl.store(values + row, value)

    if (WANT_P or WANT_Q) and not EARLY:
        sum_p, sum_q = _total(derivatives_p).to(tl.float32), _total(derivatives_q).to(tl.float32)
        others_p, others_q = zeros, zeros
        for start in range(0, classes, BLOCK):
            columns = start + lanes
            a, b = _load(p, columns, p_column, classes), _load(q, columns, q_column, classes)
            x, y, d = _masses(
                a, b, scale, shrink, from_a, from_b, peak_a, peak_b, inverse_a, inverse_b, offset, high, low
            )
            _, by_p, by_q = _terms_and_derivatives(
                x, y, d, weight_p, share_p, rest_p, weight_q, share_q, rest_q, KIND
            )
            by_p -= x * sum_p
            by_q -= y * sum_q
            _store(out_p, columns, out_p_column, classes, factor, by_p, WANT_P)
            _store(out_q, columns, out_q_column, classes, factor, by_q, WANT_Q)
            if KIND == _TOTAL_VARIATION:
                others_p += tl.where(columns == top_p, 0.0, by_p)
                others_q += tl.where(columns == top_q, 0.0, by_q)
        if KIND == _TOTAL_VARIATION:  # the subtraction above cancels in the class with the most mass
            _store_rest(out_p, top_p, out_p_column, classes, factor, others_p, WANT_P)
            _store_rest(out_q, top_q, out_q_column, classes, factor, others_q, WANT_Q)
