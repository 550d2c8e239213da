"""The reference implementation in plain torch, for any device, dtype and divergence. The other implementations are
tested against the reference.

The reference computes in float64 (float32 on devices without float64) for inputs of any dtype. Rows are processed in
blocks, so that temporaries stay small for any number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import tensor_of, upcast
from kullback.generators import Divergence, FinitePair, TotalVariation
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.row_operation import (
    Evaluation,
    Gradients,
    RowOperation,
    Wanted,
    Weights,
    row_blocks,
    spoilt_rows,
    transformable,
    weighted,
    weighted_rows,
    without_spoilt_rows,
)
from kullback.representations import Representation

NAME = "reference"
SUMMARY = "plain torch: any device; computes in float64 (float32 on mps, which has no float64)"
OPERATIONS = ("every divergence", "first and further derivatives")
DTYPES = ("float64", "float32", "float16", "bfloat16", "integers (counts)")
# If the largest logits of P and of Q differ by at most this number, the difference of the two loses few digits (see
# csrc/logits/rows.h).
_FAR = 4.0


def finite_pair(p: Representation, q: Representation, *, at: Tensor | None = None) -> FinitePair:
    """Return p, q and log(p / q) in float64 of two representations, at the classes `at` of each row or at all."""
    return pair_from_weights(upcast(p.weights()), upcast(q.weights()), p.in_logs, q.in_logs, at)


def pair_from_weights(
    p: Tensor, q: Tensor, p_in_logs: bool, q_in_logs: bool, at: Tensor | None = None
) -> FinitePair:
    """Return the pair of probabilities and their log-ratio, from weights or log-weights, which are normalized along the
    last dimension.

    The log-ratio is computed from the weights, not from the normalized probabilities. The difference of two nearly
    equal weights has no rounding error, so the log-ratio of such weights is computed from their difference.
    """
    side_p, side_q = _normalize(p, p_in_logs, at), _normalize(q, q_in_logs, at)
    if p_in_logs or q_in_logs:
        return pair_of_sides(side_p, side_q)
    log_ratio = _log_quotient(_at(p, at), _at(q, at), side_p.log_weights - side_q.log_weights)
    sum_p, sum_q = p.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
    sum_q = torch.where(sum_q.isinf(), 0, sum_q)
    return pair_of_sides(
        side_p, side_q, log_ratio - _log_quotient(sum_p, sum_q, side_p.log_sum - side_q.log_sum)
    )


def pair_of_logs(log_p: Tensor, log_q: Tensor) -> FinitePair:
    """Return the pair of masses p and q with these logarithms. The masses need not sum to 1."""
    both_empty = (log_p == -torch.inf) & (log_q == -torch.inf)
    log_ratio = torch.where(both_empty, 0, log_p) - torch.where(both_empty, 0, log_q)
    return FinitePair(log_p.exp(), log_q.exp(), log_ratio, lambda: (log_p, log_q))


class Normalized(NamedTuple):
    """P or Q after normalization. The logarithm of the sum of a row's weights is peak / temperature + log_sum."""

    mass: Tensor
    log_weights: Tensor  # before division by the temperature; 0 for a class without mass
    peak: Tensor
    log_sum: Tensor
    empty: Tensor
    temperature: float = 1.0

    def scaled(self, log_weights: Tensor) -> Tensor:
        """Return log-weights divided by the temperature."""
        return log_weights if self.temperature == 1 else log_weights / self.temperature

    def log_mass(self) -> Tensor:
        """Return the logarithms of the masses, finite even if a mass underflows; -inf for a class without mass."""
        log_mass = self.scaled(self.log_weights - self.peak) - self.log_sum
        return torch.where(self.empty, -torch.inf, log_mass)


def pair_of_sides(p: Normalized, q: Normalized, log_ratio: Tensor | None = None) -> FinitePair:
    """Return the pair of two sides of one temperature; `log_ratio` is computed from the log-weights if omitted."""
    if log_ratio is None:
        # If the logits of P and Q are far from 0 but nearly equal, so are their peaks. The log-ratio therefore starts
        # with differences of such large numbers, which often have no rounding error. If the peaks differ by more than
        # `_FAR`, the difference of the logits would lose digits of the smaller logits. In that case, the side with the
        # larger absolute peak is first shifted to the peak of the other side.
        apart = p.peak - q.peak
        apart = torch.where(apart.abs() > _FAR, apart, 0)
        p_is_far = p.peak.abs() > q.peak.abs()
        from_p, from_q = torch.where(p_is_far, apart, 0), torch.where(p_is_far, 0, -apart)
        log_ratio = (p.log_weights - from_p) - (q.log_weights - from_q)
        log_ratio = log_ratio - ((p.peak - from_p) - (q.peak - from_q))
        log_ratio = p.scaled(log_ratio) - (p.log_sum - q.log_sum)
    log_ratio = torch.where(p.empty, -torch.inf, torch.where(q.empty, torch.inf, log_ratio))
    log_ratio = torch.where(p.empty & q.empty, 0, log_ratio)
    mass_p, mass_q, ratio = torch.broadcast_tensors(p.mass, q.mass, log_ratio)
    return FinitePair(mass_p, mass_q, ratio, lambda: (p.log_mass(), q.log_mass()))


@dataclass(slots=True, eq=False)
class RowDivergence(RowOperation):
    """The row operation whose values are the divergences between the rows of P and Q (see `kernels.row_operation`)."""

    kind: Divergence
    temperature: float = 1.0  # the divisor of log-weights
    dtype: torch.dtype = torch.float64  # the dtype of the values
    labels: HardLabels | None = None  # the classes whose cross-entropies are mixed with the divergences
    p_in_logs: bool = True  # whether P contains log-weights
    q_in_logs: bool = True

    def pair(self, p: Tensor, q: Tensor) -> FinitePair:
        """Return the normalized pair of the rows of `p` and `q`, which may have any dtype."""
        p, q = self._scaled(p, self.p_in_logs), self._scaled(q, self.q_in_logs)
        return _balanced(self.kind, pair_from_weights(p, q, self.p_in_logs, self.q_in_logs))

    def of_rows(self, rows: slice) -> RowDivergence:
        """Return the operation for only the rows of a slice, with the labels of these rows."""
        return self if self.labels is None else replace(self, labels=self.labels.of_rows(rows))

    def values(self, p: Tensor, q: Tensor) -> Tensor:
        """Return the value of each row, shape (rows,)."""
        values = self.kind.total(self.pair(p, q))
        values = torch.where(spoilt_rows((p, q), (self.p_in_logs, self.q_in_logs)), torch.nan, values)
        return values if self.labels is None else self.labels.mixed(values, q)

    def derivatives(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row's derivatives by P and by Q: by log-weights if the side is in logarithms, else by weights."""
        pair = self.pair(p, q)
        by_p, by_q = self.kind.derivatives(pair)
        spoilt = spoilt_rows((p, q), (self.p_in_logs, self.q_in_logs)).unsqueeze(-1)
        derivatives = (
            torch.where(spoilt, torch.nan, self._by_weights(by_p, pair.p, p, self.p_in_logs)),
            torch.where(spoilt, torch.nan, self._by_weights(by_q, pair.q, q, self.q_in_logs)),
        )
        return derivatives if self.labels is None else self.labels.mixed_derivatives(derivatives, q)

    def compute(self, p: Tensor, q: Tensor) -> tuple[Tensor]:
        values = [self.of_rows(block).values(p[block], q[block]).to(self.dtype) for block in row_blocks(p)]
        return (torch.cat(values),)

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the wanted gradients, computed by `derivatives` and not by differentiation of the terms.

        Where P and Q are nearly equal, `derivatives` is as accurate as the terms. Where p = 0 or q = 0, `derivatives`
        is defined, whereas differentiation of the terms would give 0 * inf. `derivatives` consists of differentiable
        operations, so derivatives of higher order exist.
        """
        p, q = tensors = tensors[:2]
        spoilt = None
        if not is_plain:
            spoilt, (p, q) = without_spoilt_rows(tensors, (self.p_in_logs, self.q_in_logs))
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for block in row_blocks(p):
            derivatives = self.of_rows(block).derivatives(p[block], q[block])
            for part, derivative, x in zip(parts, derivatives, tensors, strict=True):
                if spoilt is None:
                    by = weighted(derivative, grad, block)
                else:
                    by = weighted_rows(derivative, grad[block], spoilt[block])
                part.append(by.to(x.dtype))
        return [torch.cat(part) if want else None for part, want in zip(parts, wanted, strict=False)]

    def changes(self, tensors: Any, tangents: Gradients) -> Tensor:
        spoilt, rows = without_spoilt_rows(tensors[:2], (self.p_in_logs, self.q_in_logs))
        derivatives = self.derivatives(*rows)
        changes = [s * t for s, t in zip(derivatives, tangents, strict=False) if t is not None]
        return torch.where(spoilt, torch.nan, torch.stack([change.sum(-1) for change in changes]).sum(0))

    def _scaled(self, weights: Tensor, in_logs: bool) -> Tensor:
        weights = upcast(weights)
        if not in_logs or self.temperature == 1:
            return weights
        # For logits far from 0, the differences from the largest logit have more correct digits than the logits after
        # division by the temperature. Therefore the temperature divides the differences.
        return (weights - origin_of(weights.amax(-1, keepdim=True).detach())) / self.temperature

    def _by_weights(self, by_log_mass: Tensor, mass: Tensor, weights: Tensor, in_logs: bool) -> Tensor:
        """Return derivatives by weights or log-weights from derivatives by the normalized log-masses."""
        by_log_weight = by_log_mass - mass * by_log_mass.sum(-1, keepdim=True)
        # Each row of this derivative sums to 0. The formula above cancels at a class that has nearly all the mass.
        # Therefore the entry of the class with the most mass is minus the sum of the other entries.
        top = mass.argmax(-1, keepdim=True)
        others = by_log_weight.scatter(-1, top, torch.zeros_like(mass[..., :1]))
        by_log_weight = others.scatter(-1, top, -others.sum(-1, keepdim=True))
        if in_logs:
            return by_log_weight / self.temperature
        weights = upcast(weights)
        empty = weights == 0
        return torch.where(empty, 0, by_log_weight / torch.where(empty, 1, weights))


def _balanced(kind: Divergence, pair: FinitePair) -> FinitePair:
    """Return the pair for total variation with the sum of q - p added to its log-ratios, and any other pair unchanged.
    Only rounding makes this sum nonzero.

    Rounding can change the sign of q - p in the classes with the most mass. The sum corrects such a sign. A sum that is
    negligible compared to the sum of |q - p| is not added. Classes with p = q then keep a derivative of 0.
    """
    if not isinstance(kind, TotalVariation):
        return pair
    difference = pair.q_minus_p().detach()
    left = difference.sum(-1, keepdim=True)
    shift = torch.where(left.abs() > 1e-9 * difference.abs().sum(-1, keepdim=True), left, 0)
    return pair._replace(log_ratio=pair.log_ratio + shift)


def row_divergence(rows: RowDivergence, p: Tensor, q: Tensor) -> Tensor:
    """Return the divergence of each row of two matrices. torch.func and forward mode can differentiate it."""
    labels, rows = rows.labels, replace(rows, labels=None)  # torch.func may transform the labels too
    values = transformable(rows, p, q)
    return values if labels is None else labels.mixed(values, q)


def devices() -> tuple[str, ...]:
    """Return the types of device that torch finds in this process."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def missing() -> None:
    """Return None, because the reference can run everywhere."""


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return True, because the reference computes every divergence of any logits."""
    del kind, p, q
    return True


def value_and_gradient(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, inplace: bool = False
) -> Evaluation:
    """Return the value of each row of logits, and the wanted gradients of the weighted sum of the values."""
    values = torch.empty(p.shape[0], dtype=upcast(p[:0]).dtype, device=p.device)
    gradients = [
        (x if inplace else torch.empty_like(x)) if want else None
        for x, want in zip((p, q), wanted, strict=True)
    ]
    for block in row_blocks(p):
        part = rows.of_rows(block)
        values[block] = part.values(p[block], q[block])
        derivatives = part.derivatives(p[block], q[block]) if any(wanted) else (None, None)
        for gradient, derivative in zip(gradients, derivatives, strict=True):
            if gradient is not None and derivative is not None:
                gradient[block] = weighted(derivative, weights, block).to(gradient.dtype)
    return values, gradients[0], gradients[1]


def weighted_total(
    rows: RowDivergence, p: Tensor, q: Tensor, weights: Weights, wanted: Wanted, scale: float
) -> tuple[Tensor, Gradients]:
    """Return `scale` times the weighted sum of the rows' values, and the wanted gradients of this total."""
    scaled = q.new_full(q.shape[:1], scale, dtype=torch.float64) if weights is None else weights * scale
    values, *gradients = value_and_gradient(rows, p, q, scaled, wanted)
    return torch.where(scaled == 0, 0, scaled * values).sum().to(rows.dtype), gradients


def rounding_error(kind: Divergence, p: Representation, q: Representation, value: Tensor) -> Tensor:
    """Return a first-order bound of the rounding error of `value`, a result of `row_divergence`. The bound allows for a
    few units in the last place of each log-weight, propagated by the derivatives, and half a unit of the value.
    """
    pair = finite_pair(p, q)
    by_p, by_q = kind.derivatives(pair)
    size = 1 + pair.log_ratio.abs().where(pair.log_ratio.isfinite(), 0).amax(-1)
    peaks = [0.0 if x.in_logs else torch.log(upcast(x.weights()).amax(-1)) for x in (p, q)]
    size = size + tensor_of(peaks[0] - peaks[1]).abs()
    unit = 8 * torch.finfo(pair.p.dtype).eps * size
    propagated = unit * (by_p.abs() + by_q.abs()).sum(-1) + unit**2
    return torch.where(value.isinf(), 0, propagated + torch.finfo(value.dtype).eps * value.abs()).to(
        value.dtype
    )


def origin_of(peak: Tensor) -> Tensor:
    """Return the number to subtract from logits: their largest, or 0 if differences might overflow."""
    return torch.where(peak.abs() <= torch.finfo(peak.dtype).max * 1e-8, peak, 0)


def _at(rows: Tensor, index: Tensor | None) -> Tensor:
    return rows if index is None else rows.gather(-1, index)


def _normalize(weights: Tensor, in_logs: bool, at: Tensor | None) -> Normalized:
    largest = torch.finfo(weights.dtype).max
    peak = weights.amax(-1, keepdim=True).detach()
    if in_logs:
        peak = torch.where(peak.isfinite(), peak, 0)
        # Differences between logits near the dtype's largest number might overflow. For such a row, the peak is
        # subtracted from the logits here.
        shift = torch.where(peak.abs() > largest * 1e-8, peak, 0)
        unscaled = torch.exp(weights - peak)
        total = unscaled.sum(-1, keepdim=True)
        weights, peak = _at(weights, at) - shift, peak - shift
        empty = weights == -torch.inf
        mass = _at(unscaled, at) / total
        return Normalized(mass, torch.where(empty, 0, weights), peak, torch.log(total), empty)
    # The sum of such large weights might overflow. The weights are therefore multiplied by a power of two, which is
    # exact.
    scale = torch.where(peak > largest * 1e-20, torch.full_like(peak, 2.0**-80), 1)
    scaled = weights * scale
    total = scaled.sum(-1, keepdim=True)
    weights, mass = _at(weights, at), _at(scaled, at) / total
    empty = weights == 0
    log_weights = torch.log(torch.where(empty, 1, weights))
    return Normalized(mass, log_weights, torch.zeros_like(total), torch.log(total) - torch.log(scale), empty)


def _log_quotient(a: Tensor, b: Tensor, difference_of_logs: Tensor) -> Tensor:
    """Return log(a / b). If |a - b| <= b / 2, it is computed from a - b; otherwise it is `difference_of_logs`."""
    close = ((a - b).abs() <= b / 2) & (b > 0)
    return torch.where(
        close, torch.log1p(torch.where(close, (a - b) / torch.where(close, b, 1), 0)), difference_of_logs
    )
