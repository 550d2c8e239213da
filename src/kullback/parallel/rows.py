"""Divergences of rows of logits whose classes are sharded over the ranks of a group, and their gradients.

Each rank computes the masses of its own classes, and the ranks exchange a few numbers per row. C++ and Triton kernels
compute the rows that they support. For other rows, torch operations compute one block of rows after the other. The
arithmetic is in float64, except for Triton's float32 (and for float32 on devices without float64).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.generators import Divergence, FinitePair, TotalVariation
from kullback.kernels.label_terms import HardLabels, LabelSums, subtractable
from kullback.kernels.native import native_rows
from kullback.kernels.overlap import may_overlap_itself
from kullback.kernels.reference import Normalized, RowDivergence, pair_of_sides
from kullback.kernels.row_operation import (
    Evaluation,
    Gradients,
    RowOperation,
    Wanted,
    Weights,
    overwritten,
    row_blocks,
    weighted,
)
from kullback.kernels.row_sums import log_sums
from kullback.kernels.triton import triton_rows
from kullback.parallel.collectives import Ranks, check_first_derivative
from kullback.parallel.combine import CombineRule, DerivativeSums, Merged, first_rank, rule_of


class Normalizer(NamedTuple):
    """The normalizers of P's or Q's rows over all ranks: the logsumexp is peak / temperature + log(total)."""

    peak: Tensor
    total: Tensor
    owner: Tensor  # the rank that has the first class with the most mass

    def block(self, rows: slice) -> Normalizer:
        """Return the normalizers of only the rows of a slice."""
        return Normalizer(*(x[rows] for x in self))


class MixedLabels(NamedTuple):
    """The labels of rows, with the numbers that mix their cross-entropies with the divergences of the rows."""

    hard: HardLabels
    places: Tensor  # the results of `places_of` for the labels
    sums: LabelSums

    def values(self, divergences: Tensor) -> Tensor:
        """Return the mixed value of each row. `divergences` has the divergences of the rows."""
        return self.hard.mixed_with(divergences, self.sums.cross_entropies())

    def gradient(self, rows: slice, gradient: Tensor, logits: Tensor | None) -> Tensor:
        """Return the gradient of the mixed values for the rows of a slice, given the divergences' gradient. Both are by
        Q's `logits`, or by P's logits if `logits` is None: the cross-entropies do not depend on P.
        """
        soft = gradient * self.hard.soft if self.hard.soft else torch.zeros_like(gradient)
        if logits is None:
            return soft
        ones = torch.ones_like(self.sums.margin[rows])
        return soft + self.hard.hard * self.sums.gradient(rows, logits, self.places[rows], ones)


class SweepResults(NamedTuple):
    """The results of the forward pass over the rows. The values and sums are equal on all ranks."""

    p: Normalizer
    q: Normalizer
    merged: Merged
    labels: MixedLabels | None

    def values(self) -> Tensor:
        """Return the value of each row: the divergence or, with labels, the mixture of divergence and cross-entropy."""
        return self.merged.values if self.labels is None else self.labels.values(self.merged.values)


@dataclass(slots=True, eq=False)
class ShardedRows(RowOperation):
    """Divergences of rows with sharded classes. All ranks call the same methods on the same rows."""

    ranks: Ranks
    kind: Divergence
    temperature: float
    classes: int  # the number of classes of all ranks together
    needed: tuple[bool, bool]  # whether any rank needs a gradient for P's logits, and for Q's logits
    start: int  # the first class of this rank
    dtype: torch.dtype = torch.float64  # the dtype of the values
    labels: HardLabels | None = None  # the true classes, whose cross-entropy is mixed with the divergences
    inplace: bool = False  # whether the gradient overwrites Q's logits

    def compute(self, p: Tensor, q: Tensor) -> tuple[Tensor, SweepResults]:
        state = self.sweep(p, q, self.needed, self.labels)
        return state.values().to(self.dtype), state

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return this rank's part of the gradient of one loss, from the sums of `compute`, without communication. All
        ranks have the same values and `grad`.
        """
        check_first_derivative(self.ranks, grad)
        p, q = tensors
        inplace = self.inplace and not may_overlap_itself(q)
        by_p, by_q = self.side_gradients(p, q, kept[1], upcast(grad), wanted, (False, inplace))
        return by_p, overwritten(q) if inplace else by_q

    def value_and_gradient(
        self,
        rows: RowDivergence,
        p: Tensor,
        q: Tensor,
        weights: Weights,
        wanted: Wanted,
        inplace: bool = False,
    ) -> Evaluation:
        """Return the same results as `kernels.value_and_gradient`, with gradients for this rank's logits only."""
        sharded = replace(self, kind=rows.kind)
        state = sharded.sweep(p, q, self.needed if any(wanted) else (False, False), rows.labels)
        by_p, by_q = sharded.side_gradients(p, q, state, weights, wanted, (inplace, inplace))
        return state.values(), by_p, by_q

    def sweep(
        self, p: Tensor, q: Tensor, needed: tuple[bool, bool], labels: HardLabels | None = None
    ) -> SweepResults:
        """Return the values of the rows, and the sums that the gradients need. The ranks communicate twice."""
        places = None if labels is None else places_of(labels.classes, self.start, q.shape[-1])
        sums = [log_sums(p, self.temperature), log_sums(q, self.temperature, labels=places)]
        if places is not None:
            sums.append(logits_at(q, places.unsqueeze(-1)))
        gathered = self.ranks.gather(torch.cat(sums, -1))
        of_p, of_q = (
            merged_log_sums(numbers, self.temperature) for numbers in (gathered[..., :2], gathered[..., 2:4])
        )
        # If P or Q contains NaN or +inf, or has no mass, all results of the row are NaN.
        is_valid = (of_p.total * of_q.total > 0) & (of_p.total < torch.inf) & (of_q.total < torch.inf)
        of_p, of_q = (x._replace(total=torch.where(is_valid, x.total, torch.nan)) for x in (of_p, of_q))
        mixed = None if labels is None else self._mixed_labels(labels, gathered[..., 4:], q.shape[-1])
        rule = self._rule()
        kernels = kernels_for(rule.kind, p, q)
        if kernels is not None:
            rows = RowDivergence(rule.kind, self.temperature)
            values, *by_side = kernels.values_of_part(rows, p, q, _whole_rows((of_p, of_q), (None, None)))
            local = torch.cat([values, *(x for x, need in zip(by_side, needed, strict=True) if need)], -1)
        else:
            parts: list[Tensor] = []
            for block in row_blocks(p):
                pair, tops = self._pair(p, q, (of_p, of_q), block, needed)
                parts.append(rule.local(pair, tops))
            local = torch.cat(parts)
        numbers = self.ranks.gather(local) if rule.gathers else self.ranks.sum(local)
        merged = rule.merge(numbers, needed)
        values = torch.where(of_p.total.isnan(), torch.nan, merged.values)
        return SweepResults(of_p, of_q, merged._replace(values=values), mixed)

    def side_gradients(
        self,
        p: Tensor,
        q: Tensor,
        state: SweepResults,
        weights: Weights,
        wanted: Wanted,
        inplace: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the wanted gradients of the sum of `weights` times the values, by this rank's logits."""
        rule = self._rule()
        results = [
            (x if over else torch.empty_like(x)) if want else None
            for x, want, over in zip((p, q), wanted, inplace, strict=True)
        ]
        if not any(wanted):
            return results
        kernels = kernels_for(rule.kind, p, q)
        if kernels is not None:
            self._write_kernel_gradients(kernels, p, q, state, weights, results)
            return results
        for block in row_blocks(p):
            pair, tops = self._pair(p, q, state, block, wanted)
            merged = state.merged.block(block)
            derivatives = rule.derivatives(pair, merged)
            for result, by, mass, top, sums, labeled in zip(
                results, derivatives, (pair.p, pair.q), tops, merged.sums, (None, q[block]), strict=True
            ):
                if result is not None and top is not None and sums is not None:
                    # `by` has derivatives with respect to log-masses. They are converted to derivatives with respect to
                    # logits / temperature, as the docstring of `combine` describes.
                    total = (sums.others + sums.top).unsqueeze(-1)
                    at_top = -(sums.others.unsqueeze(-1) - sums.mass.unsqueeze(-1) * total)
                    gradient = torch.where(top, at_top, by - mass * total) / self.temperature
                    if state.labels is not None:
                        gradient = state.labels.gradient(block, gradient, labeled)
                    result[block] = weighted(gradient, weights, block).to(result.dtype)
        return results

    def _write_kernel_gradients(
        self, kernels: Any, p: Tensor, q: Tensor, state: SweepResults, weights: Weights, results: Gradients
    ) -> None:
        rows = RowDivergence(self._rule().kind, self.temperature)
        whole = _whole_rows((state.p, state.q), state.merged.sums)
        if state.labels is None:
            kernels.gradients_of_part(rows, p, q, whole, weights, results)
            return
        for block in row_blocks(p):  # the cross-entropies' gradients are added before rounding
            logits = p[block], q[block]
            parts = [
                None if x is None else torch.empty_like(y, dtype=torch.float64)
                for x, y in zip(results, logits, strict=True)
            ]
            kernels.gradients_of_part(rows, *logits, whole[block], None, parts)
            for result, part, labeled in zip(results, parts, (None, logits[1]), strict=True):
                if result is not None and part is not None:
                    gradient = state.labels.gradient(block, part, labeled)
                    result[block] = weighted(gradient, weights, block).to(result.dtype)

    def _mixed_labels(self, labels: HardLabels, gathered: Tensor, own: int) -> MixedLabels:
        """Return the labels with all ranks' numbers in `gathered`. This rank has `own` classes."""
        others = merged_log_sums(gathered[..., :2], 1.0)
        # The sum over the ranks is 0 for a class that no rank has. This sum would look like a logit, so NaN replaces
        # it.
        exists = (labels.classes >= 0) & (labels.classes < self.classes)
        logits = torch.where(exists, gathered[..., 2].sum(0), torch.nan)
        places = places_of(labels.classes, self.start, own)
        return MixedLabels(labels, places, LabelSums.of(others.peak, others.total, logits))

    def _rule(self) -> CombineRule:
        return rule_of(self.ranks.call, self.kind, self.classes, self.ranks.rank)

    def _pair(
        self, p: Tensor, q: Tensor, normalizers: Sequence[Any], block: slice, wanted: Wanted
    ) -> tuple[FinitePair, list[Tensor | None]]:
        """Return the pair on this rank's classes, and each wanted side's mask of the class with the most mass."""
        norms = [cast("Normalizer", normalizers[i]).block(block) for i in (0, 1)]
        logits = [upcast(x[block]) for x in (p, q)]
        tops = [
            _top(x, norm.owner == self.ranks.rank) if want else None
            for x, norm, want in zip(logits, norms, wanted, strict=True)
        ]
        sides = [_normalized(x, norm, self.temperature) for x, norm in zip(logits, norms, strict=True)]
        return pair_of_sides(sides[0], sides[1]), tops


def places_of(classes: Tensor, start: int, own: int) -> Tensor:
    """Return indices into this rank's `own` classes from `start` on; `own` for a class of another rank."""
    places = classes - start
    return torch.where((places >= 0) & (places < own), places, own)


def logits_at(logits: Tensor, places: Tensor) -> Tensor:
    """Return the logits of each row at the indices `places`, in float64; 0 for a class of another rank."""
    own = logits.shape[-1]
    if not own:
        return upcast(logits.new_zeros(places.shape))
    return upcast(torch.where(places < own, logits.gather(-1, places.clamp(max=own - 1)), 0))


def merged_log_sums(gathered: Tensor, temperature: float) -> Normalizer:
    """Return the normalizers of the rows from `log_sums` of all ranks, shape (ranks, rows, 2)."""
    peaks, sums = gathered[..., 0], gathered[..., 1]
    largest = peaks.amax(0)
    peak = subtractable(largest)
    shares = torch.where(peaks == -torch.inf, 0, sums * torch.exp((subtractable(peaks) - peak) / temperature))
    total = shares.sum(0)
    return Normalizer(peak, total, first_rank(peaks, largest))


def kernels_for(kind: Divergence, p: Tensor, q: Tensor) -> Any:
    """Return the kernels for one rank's part of these rows, or None for torch operations. Only these keep all digits of
    float64 at the class with the most mass, and correct the sign of q - p there for total variation.
    """
    if kind.additive and type(kind) is not TotalVariation and torch.float64 not in (p.dtype, q.dtype):
        if native_rows.serves(kind, p, q):
            return native_rows
        if triton_rows.serves_part(kind, p, q):
            return triton_rows
    return None


def _whole_rows(normalizers: Sequence[Normalizer], sums: Sequence[DerivativeSums | None]) -> Tensor:
    """Return the numbers of a `WholeRow` (csrc/logits/task.h), shape (rows, 10); 0 for sums that are None."""
    zeros = torch.zeros_like(normalizers[0].peak)
    columns: list[Tensor] = []
    for norm, of_side in zip(normalizers, sums, strict=True):
        columns += [norm.peak, norm.total, *(of_side or (zeros, zeros, zeros))]
    return torch.stack(columns, -1)


def _top(logits: Tensor, has_largest: Tensor) -> Tensor:
    """Return a mask of each row's largest logit, in the rows with the largest logit on this rank (`has_largest`)."""
    mask = torch.zeros_like(logits, dtype=torch.bool)
    if not logits.shape[-1]:
        return mask
    return mask.scatter_(-1, logits.argmax(-1, keepdim=True), has_largest.unsqueeze(-1))


def _normalized(logits: Tensor, norm: Normalizer, temperature: float) -> Normalized:
    """Return P or Q on this rank's classes, normalized by `norm` over the classes of all ranks."""
    peak, total = norm.peak.unsqueeze(-1), norm.total.unsqueeze(-1)
    # Differences between logits near the dtype's largest number might overflow. For such a row, the peak is subtracted
    # from the logits here.
    shift = torch.where(peak.abs() > torch.finfo(logits.dtype).max * 1e-8, peak, 0)
    x, peak = logits - shift, peak - shift
    mass, empty = torch.exp((x - peak) / temperature) / total, x == -torch.inf
    return Normalized(mass, torch.where(empty, 0, x), peak, torch.log(total), empty, temperature)
