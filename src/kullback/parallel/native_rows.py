"""The sweep over a rank's classes by the native kernels, for logits in float32 or less and sums over classes.

The kernels know whole rows alone. So a rank gives them rows of its own classes at half their mass, and of one class
more, which has what is left of both sides: a divergence that is a sum over classes is then half the sum of this rank's
terms plus the term of that class, which is known. Half, so that it has at least half of the mass: from its gradient
b - m S, where b and m are known, S is found by a division that loses no digits. All in float64, in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators import KL, Divergence, FinitePair, ReverseKL, TotalVariation
from kullback.kernels.native import rows as native
from kullback.parallel.combine import Merged
from kullback.parallel.labels import MixedLabels

__all__ = ["Normalizer", "add_gradients", "local_numbers", "serves"]

# Elements in a block of one side, for each thread.
_BLOCK = 1 << 17


class Normalizer(NamedTuple):
    """What normalizes the rows of a side, over all ranks: the log of the sum is peak / temperature + log(total)."""

    peak: Tensor
    total: Tensor
    owner: Tensor  # the rank that has the first class with the most mass
    here: Tensor  # the mass of this rank's classes

    def block(self, rows: slice) -> Normalizer:
        """Return the same of some rows."""
        return Normalizer(*(x[rows] for x in self))


def serves(kind: Divergence, p: Tensor, q: Tensor) -> bool:
    """Tell whether the kernels take the rows.

    Float64 logits have all digits only with the reference. The derivative of the total variation jumps where p = q, so
    that of the class more is not known as the kernel has it.
    """
    return (
        type(kind).total is Divergence.total
        and type(kind) is not TotalVariation
        and torch.float64 not in (p.dtype, q.dtype)
        and native.serves(kind, p, q)
    )


def local_numbers(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    normalizers: Sequence[Normalizer],
    needed: Sequence[bool],
    temperature: float,
) -> Tensor:
    """Return what `Rule.local` does, for all rows; the class with the most mass counts as one of the others."""
    known = [_sum_is_known(kind, side) for side in (0, 1)]
    wanted = needed[0] and not known[0], needed[1] and not known[1]
    parts: list[Tensor] = []
    for found in _blocks(kind, p, q, normalizers, wanted, temperature):
        numbers = [found.values]
        for side in (0, 1):
            if needed[side]:
                # The derivatives of KL by log q are q - p.
                total = found.here[side] - found.here[1 - side] if known[side] else found.sums[side]
                numbers += [total, torch.zeros_like(total), found.here[side]]
        parts.append(torch.stack(numbers, -1))
    return torch.cat(parts)


def add_gradients(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    normalizers: Sequence[Normalizer],
    merged: Merged,
    weights: Tensor | None,
    results: Sequence[Tensor | None],
    temperature: float,
    labels: MixedLabels | None = None,
) -> None:
    """Write the gradients of the weighted sum of the values by this rank's logits to `results`; they may be p and q."""
    wanted = results[0] is not None, results[1] is not None
    masses = None  # a buffer: fresh memory costs more than what is written to it
    for found in _blocks(kind, p, q, normalizers, wanted, temperature):
        rows = found.rows
        factor = None if weights is None else weights[rows].unsqueeze(-1)
        for side, result in enumerate(results):
            gradient, sums = found.gradients[side], merged.sums[side]
            if result is None or gradient is None or sums is None:
                continue
            gradient.mul_(2 / temperature)
            if not _sum_is_known(kind, side):
                total = sums.others[rows] + sums.top[rows]
                change = (found.totals[side] - total) / temperature
                x, norm = (p, q)[side][rows], normalizers[side].block(rows)
                if masses is None:
                    masses = torch.empty(gradient.shape, dtype=torch.float64, device="cpu")
                mass = _shifted(masses[: len(gradient)], x, norm.peak, temperature).exp_()
                gradient.addcmul_(mass, (change / norm.total).unsqueeze(-1))
            if labels is not None:
                gradient = labels.gradient(rows, gradient, q[rows] if side else None)
            if factor is not None:  # a row of weight 0 gives 0, whatever it holds
                gradient.mul_(factor).masked_fill_(factor == 0, 0)
            result[rows].copy_(gradient)


class _Found(NamedTuple):
    """What the kernels say of a block of rows."""

    rows: slice
    values: Tensor  # the sums of this rank's terms
    here: tuple[Tensor, Tensor]  # the masses of this rank's classes
    sums: list[Tensor]  # of the derivatives over this rank's classes, of the sides wanted
    totals: list[Tensor]  # S, as the kernels have it
    gradients: list[Tensor | None]


def _blocks(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    normalizers: Sequence[Normalizer],
    wanted: tuple[bool, bool],
    temperature: float,
) -> Iterator[_Found]:
    n, classes = p.shape
    step = max(1, _BLOCK * torch.get_num_threads() // (classes + 1))
    buffers = [torch.empty(min(step, n), classes + 1, dtype=torch.float64, device="cpu") for _ in range(2)]
    # The class more: its masses, its term, and its derivatives.
    rest = [1 - norm.here / 2 for norm in normalizers]
    log_ratio = torch.log1p((normalizers[1].here - normalizers[0].here) / (2 * rest[1]))
    pair = FinitePair(rest[0].unsqueeze(-1), rest[1].unsqueeze(-1), log_ratio.unsqueeze(-1))
    term = kind.terms(pair).squeeze(-1)
    derivatives = [x.squeeze(-1) for x in kind.derivatives(pair)]
    log_rest = [
        torch.log(norm.total) + torch.log(2 * mass) for norm, mass in zip(normalizers, rest, strict=True)
    ]
    for start in range(0, max(n, 1), step):
        rows = slice(start, min(start + step, n))
        filled = [buffer[: rows.stop - rows.start] for buffer in buffers]
        for x, norm, buffer, last in zip((p, q), normalizers, filled, log_rest, strict=True):
            _shifted(buffer[:, :-1], x[rows], norm.peak[rows], temperature)
            buffer[:, -1] = last[rows]
        values, *gradients = native.value_and_gradient(
            kind, filled[0], filled[1], None, wanted=wanted, temperature=1.0, inplace=True
        )
        totals: list[Tensor] = []
        sums: list[Tensor] = []
        for by, mass, gradient in zip(derivatives, rest, gradients, strict=True):
            found = by[rows] if gradient is None else (by[rows] - gradient[:, -1]) / mass[rows]
            totals.append(found)
            sums.append(2 * (found - by[rows]))
        yield _Found(
            rows,
            (2 * (values - term[rows])).clamp(min=0),
            (normalizers[0].here[rows], normalizers[1].here[rows]),
            sums,
            totals,
            [None if x is None else x[:, :-1] for x in gradients],
        )


def _shifted(out: Tensor, logits: Tensor, peak: Tensor, temperature: float) -> Tensor:
    """Write logits less the largest of their row, divided by the temperature, to `out`."""
    out.copy_(logits)
    out.sub_(peak.unsqueeze(-1))
    return out if temperature == 1 else out.div_(temperature)


def _sum_is_known(kind: Divergence, side: int) -> bool:
    """Tell whether the derivatives by a side's log-masses are m - n, n being the other's masses: they sum to 0."""
    return type(kind) is (KL if side else ReverseKL)
