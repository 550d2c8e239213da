"""Divergences of rows of logits whose classes are sharded over the ranks of a group, and their gradients.

Each rank computes the masses of its own classes. The ranks exchange a few numbers per row. The arithmetic is in float64
(float32 on devices without float64) over blocks of rows, by the native kernels if they support them, else in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.dtypes import upcast
from kullback.generators import Divergence, FinitePair
from kullback.kernels.blocks import row_blocks
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.overlap import may_overlap_itself
from kullback.kernels.reference import Normalized, RowDivergence, pair_of_sides
from kullback.kernels.row_operation import Evaluation, Gradients, RowOperation, Wanted, Weights, overwritten
from kullback.parallel import native_shards
from kullback.parallel.collectives import Ranks, check_first_derivative
from kullback.parallel.combine import CombineRule, Merged, first_rank, rule_of
from kullback.parallel.native_shards import Normalizer
from kullback.parallel.sharded_labels import LabelSums, MixedLabels, logits_at, places_of


class SweepResults(NamedTuple):
    """Results of the forward sweep. The values and sums are the same on all ranks."""

    p: Normalizer
    q: Normalizer
    merged: Merged
    labels: MixedLabels | None

    def values(self) -> Tensor:
        """Return the values of the rows."""
        return self.merged.values if self.labels is None else self.labels.values(self.merged.values)


@dataclass(slots=True, eq=False)
class ShardedRows(RowOperation):
    """Divergences of rows whose classes are sharded. All ranks call the methods with the same rows in one order."""

    ranks: Ranks
    kind: Divergence
    temperature: float
    classes: int  # of all ranks together
    needed: tuple[bool, bool]  # whether any rank needs a gradient by P, and by Q
    start: int  # the first class of this rank
    dtype: torch.dtype = torch.float64  # of the values
    labels: HardLabels | None = None  # their cross-entropy is mixed with the divergences
    inplace: bool = False  # whether the gradient overwrites Q's logits

    def compute(self, p: Tensor, q: Tensor) -> tuple[Tensor, SweepResults]:
        """Return the value of each row, the same on every rank, as a row operation."""
        state = self.sweep(p, q, self.needed, self.labels)
        return state.values().to(self.dtype), state

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the gradients by this rank's logits. They need no collective: `compute` keeps the sums.

        All ranks have the same values, and the same gradient of the loss by these values. The result is this rank's
        part of the gradient of that one loss; losses are not summed over the ranks.
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
        """Return the results of `kernels.value_and_gradient`, with the gradients by this rank's logits."""
        sharded = replace(self, kind=rows.kind)
        state = sharded.sweep(p, q, self.needed if any(wanted) else (False, False), rows.labels)
        by_p, by_q = sharded.side_gradients(p, q, state, weights, wanted, (inplace, inplace))
        return state.values(), by_p, by_q

    def sweep(
        self, p: Tensor, q: Tensor, needed: tuple[bool, bool], labels: HardLabels | None = None
    ) -> SweepResults:
        """Compute the values, and the sums that the needed gradients require. It makes two collectives."""
        sums = [log_sums(x, self.temperature) for x in (p, q)]
        if labels is not None:
            places = places_of(labels.classes, self.start, q.shape[-1]).unsqueeze(-1)
            sums += [log_sums(q, 1.0, places), logits_at(q, places)]
        gathered = self.ranks.gather(torch.cat(sums, -1))
        rank = self.ranks.rank
        of_p, of_q = (
            merged_log_sums(numbers, rank, self.temperature)
            for numbers in (gathered[..., :2], gathered[..., 2:4])
        )
        mixed = None if labels is None else self._mixed_labels(labels, gathered[..., 4:], q.shape[-1])
        rule = self._rule()
        if native_shards.serves(rule.kind, p, q):
            own = native_shards.OwnClasses(rule.kind, p, q, (of_p, of_q), self.temperature)
            local = own.local_numbers(needed)
        else:
            parts: list[Tensor] = []
            for block in row_blocks(p):
                pair, tops = self._pair(p, q, (of_p, of_q), block, needed)
                parts.append(rule.local(pair, tops))
            local = torch.cat(parts)
        numbers = self.ranks.gather(local) if rule.gathers else self.ranks.sum(local)
        return SweepResults(of_p, of_q, rule.merge(numbers, needed), mixed)

    def side_gradients(
        self,
        p: Tensor,
        q: Tensor,
        state: SweepResults,
        weights: Weights,
        wanted: Wanted,
        inplace: Sequence[bool],
    ) -> list[Tensor | None]:
        """Return the requested gradients, by this rank's logits, of the weighted sum of the values."""
        rule = self._rule()
        results = [
            (x if over else torch.empty_like(x)) if want else None
            for x, want, over in zip((p, q), wanted, inplace, strict=True)
        ]
        if not any(wanted):
            return results
        if native_shards.serves(rule.kind, p, q):
            own = native_shards.OwnClasses(rule.kind, p, q, (state.p, state.q), self.temperature)
            own.add_gradients(state.merged, weights, results, state.labels)
            return results
        for block in row_blocks(p):
            pair, tops = self._pair(p, q, state, block, wanted)
            merged = state.merged.block(block)
            derivatives = rule.derivatives(pair, merged)
            factors = None if weights is None else weights[block].unsqueeze(-1)
            for result, by, mass, top, sums, labeled in zip(
                results, derivatives, (pair.p, pair.q), tops, merged.sums, (None, q[block]), strict=True
            ):
                if result is not None and top is not None and sums is not None:
                    # From the derivatives by log-masses to those by logits / temperature.
                    total = (sums.others + sums.top).unsqueeze(-1)
                    at_top = -(sums.others.unsqueeze(-1) - sums.mass.unsqueeze(-1) * total)
                    gradient = torch.where(top, at_top, by - mass * total) / self.temperature
                    if state.labels is not None:
                        gradient = state.labels.gradient(block, gradient, labeled)
                    if factors is not None:  # a row of weight 0 gives 0, even if it contains inf or NaN
                        gradient = torch.where(factors == 0, 0, factors * gradient)
                    result[block] = gradient.to(result.dtype)
        return results

    def _mixed_labels(self, labels: HardLabels, gathered: Tensor, own: int) -> MixedLabels:
        """Merge all ranks' numbers for the labels; `own` is the number of classes of this rank."""
        others = merged_log_sums(gathered[..., :2], self.ranks.rank, 1.0)
        # A class that no rank has gives NaN, because its sum, 0, would look like a logit.
        exists = (labels.classes >= 0) & (labels.classes < self.classes)
        logits = torch.where(exists, gathered[..., 2].sum(0), torch.nan)
        places = places_of(labels.classes, self.start, own)
        return MixedLabels(labels, places, LabelSums.of(others.peak, others.total, logits))

    def _rule(self) -> CombineRule:
        return rule_of(self.ranks.call, self.kind, self.classes, self.ranks.rank)

    def _pair(
        self, p: Tensor, q: Tensor, normalizers: Sequence[Any], block: slice, wanted: Wanted
    ) -> tuple[FinitePair, list[Tensor | None]]:
        """Return the pair of this rank's classes, and for each requested side a mask of its largest class."""
        norms = [cast("Normalizer", normalizers[i]).block(block) for i in (0, 1)]
        logits = [upcast(x[block]) for x in (p, q)]
        tops = [
            _top(x, norm.owner == self.ranks.rank) if want else None
            for x, norm, want in zip(logits, norms, wanted, strict=True)
        ]
        sides = [_normalized(x, norm, self.temperature) for x, norm in zip(logits, norms, strict=True)]
        return pair_of_sides(sides[0], sides[1]), tops


def log_sums(logits: Tensor, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """Return the largest of this rank's logits in each row, and the sum of their exponentials relative to it.

    The temperature divides the differences from the largest logit, which have more digits than the logits. `excluded`
    has classes to exclude from each row, shape (rows, k); an index past the end excludes none. Without classes, the
    largest logit is -inf.
    """
    rows, classes = logits.shape
    results = upcast(logits.new_empty(0)).new_zeros(rows, 2)
    if not classes:
        results[:, 0] = -torch.inf
        return results
    buffer = None  # allocating memory for each block would cost more than the arithmetic
    for block in row_blocks(logits):
        part = logits[block]
        if buffer is None:
            # The last column receives the indices past the end.
            buffer = results.new_empty(part.shape[0], classes + 1)
        x = buffer[: part.shape[0]]
        x[:, :-1].copy_(part)
        if excluded is not None:
            x.scatter_(-1, excluded[block], -torch.inf)
        x = x[:, :-1]
        peak = torch.amax(x, -1, keepdim=True)
        results[block, :1] = peak
        x.sub_(_subtractable(peak))
        if temperature != 1:
            x.div_(temperature)
        results[block, 1] = x.exp_().sum(-1)
    return results


def merged_log_sums(gathered: Tensor, rank: int, temperature: float) -> Normalizer:
    """Merge the results of `log_sums` on all ranks, shape (ranks, rows, 2); `rank` is this rank."""
    peaks, sums = gathered[..., 0], gathered[..., 1]
    largest = peaks.amax(0)
    peak = _subtractable(largest)
    shares = torch.where(
        peaks == -torch.inf, 0, sums * torch.exp((_subtractable(peaks) - peak) / temperature)
    )
    total = shares.sum(0)
    return Normalizer(peak, total, first_rank(peaks, largest), shares[rank] / total)


def _subtractable(peak: Tensor) -> Tensor:
    return torch.where(peak.isfinite(), peak, 0)


def _top(logits: Tensor, has_largest: Tensor) -> Tensor:
    """Return a mask of each row's largest logit, all False in rows whose largest logit is on another rank."""
    mask = torch.zeros_like(logits, dtype=torch.bool)
    if not logits.shape[-1]:
        return mask
    return mask.scatter_(-1, logits.argmax(-1, keepdim=True), has_largest.unsqueeze(-1))


def _normalized(logits: Tensor, norm: Normalizer, temperature: float) -> Normalized:
    """Normalize this rank's classes of one side."""
    peak, total = norm.peak.unsqueeze(-1), norm.total.unsqueeze(-1)
    # Differences between logits near the dtype's largest number might overflow.
    shift = torch.where(peak.abs() > torch.finfo(logits.dtype).max * 1e-8, peak, 0)
    x, peak = logits - shift, peak - shift
    mass, empty = torch.exp((x - peak) / temperature) / total, x == -torch.inf
    return Normalized(mass, torch.where(empty, 0, x), peak, torch.log(total), empty, temperature)
