"""The sweep over a rank's classes by the native kernels, for divergences that are sums over classes.

The ranks know the normalizers of whole rows, and pass them to the operator that computes whole rows elsewhere. The
logits are float32 or a shorter dtype; the arithmetic is in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators import Divergence, TotalVariation
from kullback.kernels.blocks import row_blocks
from kullback.kernels.native import native_rows
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import Weights
from kullback.parallel.combine import DerivativeSums, Merged
from kullback.parallel.sharded_labels import MixedLabels


class Normalizer(NamedTuple):
    """Normalizers of a side's rows over all ranks. The log of a row's sum is peak / temperature + log(total)."""

    peak: Tensor
    total: Tensor
    owner: Tensor  # the rank that has the first class with the most mass
    own_mass: Tensor  # the mass of this rank's classes

    def block(self, rows: slice) -> Normalizer:
        """Return the normalizers of some rows."""
        return Normalizer(*(x[rows] for x in self))


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Return whether the kernels support the rows.

    Float64 logits need the reference to keep all digits of the class with the most mass. So does total variation,
    where rounding may change the sign of q - p in that class.
    """
    return (
        kind.additive
        and type(kind) is not TotalVariation
        and torch.float64 not in (p.dtype, q.dtype)
        and native_rows.serves(kind, p, q)
    )


class OwnClasses(NamedTuple):
    """The logits of this rank's classes on both sides, and the settings of their divergence."""

    kind: Divergence
    p: Tensor
    q: Tensor
    normalizers: tuple[Normalizer, Normalizer]
    temperature: float

    def local_numbers(self, needed: Sequence[bool]) -> Tensor:
        """Return the numbers of `CombineRule.local` for all rows; classes that tie for the most mass are all tops."""
        values, *sums = native_rows.values_of_part(
            self._rows(), self.p, self.q, self._whole_rows((None, None))
        )
        needed_sums = [x for x, is_needed in zip(sums, needed, strict=True) if is_needed]
        return torch.cat([values.unsqueeze(-1), *needed_sums], -1)

    def add_gradients(
        self, merged: Merged, weights: Weights, results: Sequence[Tensor | None], labels: MixedLabels | None
    ) -> None:
        """Write the gradients of the weighted sum of the values to `results`, which may be P and Q.

        The gradients are by this rank's logits.
        """
        whole = self._whole_rows(merged.sums)
        if labels is None:
            native_rows.gradients_of_part(self._rows(), self.p, self.q, whole, weights, results)
            return
        for rows in row_blocks(self.p):  # the gradients of the cross-entropies are added before rounding
            p, q = self.p[rows], self.q[rows]
            parts = [
                None if x is None else torch.empty(p.shape, dtype=torch.float64, device="cpu")
                for x in results
            ]
            native_rows.gradients_of_part(self._rows(), p, q, whole[rows], None, parts)
            for result, part, logits in zip(results, parts, (None, q), strict=True):
                if result is None or part is None:
                    continue
                gradient = labels.gradient(rows, part, logits)
                if weights is not None:  # a row of weight 0 gives 0, even if it contains inf or NaN
                    factor = weights[rows].unsqueeze(-1)
                    gradient = gradient.mul_(factor).masked_fill_(factor == 0, 0)
                result[rows] = gradient.to(result.dtype)

    def _rows(self) -> RowDivergence:
        return RowDivergence(self.kind, self.temperature)

    def _whole_rows(self, sums: Sequence[DerivativeSums | None]) -> Tensor:
        """Return the numbers of `WholeRow` (csrc/logits/task.h) for each row; sums that are not known are 0."""
        zeros = torch.zeros_like(self.normalizers[0].peak)
        columns: list[Tensor] = []
        for norm, of_side in zip(self.normalizers, sums, strict=True):
            columns += [norm.peak, norm.total, *(of_side or (zeros, zeros, zeros))]
        return torch.stack(columns, -1)
