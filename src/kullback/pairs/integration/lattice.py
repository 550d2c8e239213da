"""Panels of integers, and Gauss's rule for sums.

A panel has 16 2^k consecutive integers. A panel of 16 integers is summed term by term. Such a panel has no error and is
never halved. A larger panel is summed at 16 nodes with the weights of Gauss's rule for sums, which is exact for
polynomials of degree 31. The rule's orthogonal polynomials are Chebyshev's polynomials on equidistant points.

Calculation of Gauss Quadrature Rules (Golub and Welsch, 1969)
Orthogonal Polynomials: Computation and Approximation (Gautschi, 2004), on discrete Chebyshev polynomials
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.pairs.integration.panels import Panels, Places, Rule, integrate

_NODES = 16
# Before any panel is halved, a window has at most about _PANELS panels. In benchmarks/panel_constants.py, all answers
# are correct for values from 8 to 128.
_PANELS = 32
# The widest window, 34 panels of 2^220 integers, has 6e67 integers. If the support of a density needs more integers,
# the caller finds a mass below 1.
_LARGEST_POWER = 220


class _Tables(NamedTuple):
    """The rules, indexed by the kind of a panel: kind 0 is an empty panel, kind k has 16 2^(k - 1) integers."""

    sizes: Tensor
    nodes: Tensor
    weights: Tensor
    # The product of `details` and the terms gives the coefficients of the orthogonal polynomials of degrees 14 and 15.
    details: Tensor


@functools.cache
def _tables() -> _Tables:
    k = torch.arange(1, _NODES, dtype=torch.float64, device="cpu")
    one_by_one = torch.arange(_NODES, dtype=torch.float64, device="cpu")
    nodes, weights = [one_by_one] * 2, [torch.zeros_like(one_by_one), torch.ones_like(one_by_one)]
    details = [torch.zeros(2, _NODES, dtype=torch.float64, device="cpu")] * 2
    sizes = [2.0**power for power in range(4, _LARGEST_POWER + 1)]
    for size in sizes[1:]:
        # `beta` are the recurrence coefficients of the polynomials that are orthogonal on `size` equidistant points.
        beta = torch.sqrt(k**2 * (1 - (k / size) ** 2) / (4 * (4 * k**2 - 1)))
        eigenvalues, vectors = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
        nodes.append((size - 1) / 2 + size * eigenvalues)
        weights.append(size * vectors[0] ** 2)
        details.append(vectors[-2:] * vectors[0] * size**0.5)
    table = torch.tensor([0.0, *sizes], dtype=torch.float64, device="cpu")
    return _Tables(table, torch.stack(nodes), torch.stack(weights), torch.stack(details))


def sizes_of(kinds: Tensor) -> Tensor:
    """Return the numbers of integers in panels of the given kinds, in the shape of `kinds`."""
    return _tables().sizes.to(kinds.device)[kinds]


def first_panels(low: Tensor, high: Tensor, smooth: bool) -> Places:
    """Return the first integers and the kinds of panels that contain all integers from `low` to `high`.

    If `smooth` is false, all panels have 16 integers, so that every term is summed.
    """
    kind = torch.ones_like(low, dtype=torch.long)
    if smooth:
        halvings = torch.ceil(torch.log2((high - low + 1) / (_PANELS * _NODES)))
        kind = halvings.clamp(0, _LARGEST_POWER - 4).long() + 1
    size = sizes_of(kind)
    first = torch.floor(low / size)
    count = torch.floor(high / size) - first + 1
    # A window with more than _PANELS + 2 panels is clamped. The caller finds that the mass of the window is below 1.
    if smooth:
        count = count.clamp(max=_PANELS + 2)
    index = torch.arange(int(count.max()) if count.numel() else 1, dtype=low.dtype, device=low.device)
    starts = (first + index) * size
    # The panels become smaller towards 0, where the probabilities may have a corner.
    kinds = torch.where(starts == 0, 1, kind)
    kinds = torch.where(index < count, kinds, 0)
    smaller = torch.arange(1, int(kind.max()) if count.numel() else 1, device=low.device)
    more = torch.where((smaller < kind) & (first == 0), smaller, 0)
    return torch.cat([starts, sizes_of(smaller).expand_as(more)], -1), torch.cat([kinds, more], -1)


def _halves(starts: Tensor, kinds: Tensor, priorities: Tensor) -> Places:
    """Return the halves of panels.

    A panel of priority 0 or of 16 integers is not halved, and its right half is empty.
    """
    is_halved = (kinds > 1) & (priorities > 0)
    half = torch.where(is_halved, kinds - 1, kinds)
    middle = starts + torch.where(is_halved, sizes_of(half), 0)
    return torch.cat([starts, middle], -1), torch.cat([half, torch.where(is_halved, half, 0)], -1)


LATTICE = Rule(_NODES, lambda priorities: max(4, priorities.shape[-1] // 4), _halves)
"""The rule for panels of integers. The `Places` of such panels have the first integer and the kind of each panel."""
# This rule halves all panels with a positive priority at once.
_TOGETHER = LATTICE._replace(halvings=lambda priorities: int((priorities > 0).sum(-1).max()))


def resolved(places: Places, marks: Tensor) -> Places:
    """Halve panels until no breakpoint in a panel is closer than 1/4 of the panel's width to the next breakpoint."""
    distances = (marks.unsqueeze(-1) - marks.unsqueeze(-2)).abs()
    distances = torch.where(distances > 0, distances, torch.inf).amin(-1)

    def judge(parts: list[Panels]) -> tuple[Tensor, list[Tensor]]:
        starts, kinds = (x.unsqueeze(-1) for x in parts[0].places)
        size, mark = sizes_of(kinds), marks.unsqueeze(-2)
        inside = (mark >= starts) & (mark < starts + size)
        is_wide = (inside & (size > 4 * distances.unsqueeze(-2))).any(-1) & (parts[0].places[1] > 1)
        return ~is_wide.any(-1), [is_wide.to(starts.dtype)]

    return integrate(_TOGETHER, [(places, lambda starts, kinds: ())], judge, math.inf)[0].places


def nodes_of(starts: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of panels and their weights, both of shape (..., panels, 16)."""
    tables = _tables()
    device = kinds.device
    return starts.unsqueeze(-1) + tables.nodes.to(device)[kinds], tables.weights.to(device)[kinds]


def sum_panels(f: Tensor, weights: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of f over panels, and error estimates that ignore infinite values of f.

    The coefficients of f in orthogonal polynomials are assumed to fall geometrically. So the power 3/2 of the
    coefficients of degrees 14 and 15, as in QUADPACK, estimates the coefficient of degree 32. The rule has no error for
    lower degrees.
    """
    values = (f * weights).sum(-1)
    f = torch.where(f.isinf(), 0, f)
    norm = torch.sqrt((f * f * weights).sum(-1))
    details = _tables().details.to(kinds.device)[kinds]
    detail = torch.sqrt(((details * f.unsqueeze(-2)).sum(-1) ** 2).sum(-1))
    fraction = torch.where(norm > 0, detail / torch.where(norm > 0, norm, 1), 0)
    return values, torch.sqrt(weights.sum(-1)) * norm * fraction**1.5
