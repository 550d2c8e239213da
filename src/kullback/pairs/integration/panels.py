"""The adaptive refinement of panels, for integrals over the real line and sums over integers, and the rule on the line.

A panel is an interval of the real line or a range of consecutive integers. A caller gives the first panels, a function
that integrates several integrands over panels, and a judge of the errors. The integrands of a divergence are its terms
and the densities of P and Q. The integrand of a mean is a statistic times a density. All elements of a batch have the
same number of panels. Each element halves the panels on which the error of this element is largest.

On the real line, Gauss and Kronrod's rule with 15 nodes on a panel gives an integral and its error.

QUADPACK: A Subroutine Package for Automatic Integration (Piessens, de Doncker-Kapenga, Überhuber and Kahaner, 1983)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Integral(NamedTuple):
    """An integral or a sum: its value, an estimate of its error, and the total mass that no panel contains."""

    value: Tensor
    error: Tensor
    unintegrated: Tensor


class Rule(NamedTuple):
    """A rule of integration: the number of nodes of a panel, and how panels are halved."""

    nodes: int
    halvings: Callable[[Tensor], int]
    """Returns the number of panels that each batch element halves in one step, from the priorities of all panels."""
    halves: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """Returns the `Places` of all left halves and then of all right halves, from places and priorities."""


# `Places` are two tensors of shape (..., panels). For panels of the real line, they are the lower and upper edges; for
# panels of integers, the first integers and the kinds (see summation.py).
Places = tuple[Tensor, Tensor]
# `Integrands` is a function of `Places` that returns columns: the integrals over each panel, the errors of these
# integrals, and numbers for the judge.
Integrands = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class Panels(NamedTuple):
    """Panels along the last dimension, and the columns of their integrals; see `Integrands`."""

    places: Places
    columns: tuple[Tensor, ...]

    def split(self, rule: Rule, priorities: Tensor, integrands: Integrands) -> Panels:
        """Return the panels with the largest priorities halved: left halves in place, right halves at the end."""
        count = min(rule.halvings(priorities), priorities.shape[-1])
        top = priorities.topk(count, dim=-1)
        first, second = (x.gather(-1, top.indices) for x in self.places)
        halves = rule.halves(first, second, top.values)
        columns: list[Tensor] = []
        for old, new in zip((*self.places, *self.columns), (*halves, *integrands(*halves)), strict=True):
            left, right = new.tensor_split([count], -1)
            index = top.indices.expand(*old.shape[:-1], -1)
            columns.append(torch.cat([old.scatter(-1, index, left), right], -1))
        return Panels((columns[0], columns[1]), tuple(columns[2:]))


# `Judge` is a function with two results: a mask of the batch elements that are exact enough, and the priorities of the
# panels for each part of the domain.
Judge = Callable[[list[Panels]], tuple[Tensor, list[Tensor]]]


def integrate(
    rule: Rule, parts: Sequence[tuple[Places, Integrands]], judge: Judge, max_evaluations: float
) -> list[Panels]:
    """Return the panels of each part, refined until every batch element is exact enough or the nodes reach the limit.

    `parts` has the first panels of each part of the domain, and the function that integrates over these panels.
    `max_evaluations` limits the nodes of each element of the batch.
    """
    panels: list[Panels] = []
    for places, integrands in parts:
        panels.append(Panels(places, integrands(*places)))
    while True:
        enough, priorities = judge(panels)
        if bool(enough.all()):
            return panels
        count = 0
        for priority in priorities:
            count += priority.shape[-1] + rule.halvings(priority)
        if count * rule.nodes > max_evaluations:
            return panels
        for index, (_, integrands) in enumerate(parts):
            panels[index] = panels[index].split(rule, priorities[index], integrands)


SAFETY = 4.0
"""The reported error is this factor times the error estimate, because Kronrod's and Gauss's rules may agree by chance.

In benchmarks/panel_constants.py, a factor of 1 needs 2 % fewer evaluation points than 4, and a factor of 16 needs 7 %
more.
"""
# The nodes and weights are listed from the middle of [-1, 1] outwards, as in QUADPACK. Gauss's rule uses every other
# node.
_POSITIVE_NODES = (
    0.0,
    0.207784955007898467600689403773245,
    0.405845151377397166906606412076961,
    0.586087235467691130294144691258600,
    0.741531185599394439863864773280788,
    0.864864423359769072789712788640926,
    0.949107912342758524526189684047851,
    0.991455371120812639206854697526329,
)
_KRONROD = (
    0.209482141084727828012999174891714,
    0.204432940075298892414161999234649,
    0.190350578064785409913256402421014,
    0.169004726639267902826583426598550,
    0.140653259715525918745189590510238,
    0.104790010322250183839876322541518,
    0.063092092629978553290700663189204,
    0.022935322010529224963732008058970,
)
_GAUSS = (
    0.417959183673469387755102040816327,
    0.0,
    0.381830050505118944950369775488975,
    0.0,
    0.279705391489276667901467771423780,
    0.0,
    0.129484966168869693270611432679082,
    0.0,
)
# _OTHERS are weights of a third rule, whose nodes are the 8 nodes that Gauss's rule does not use. The rule is exact for
# polynomials of degree 7.
_OTHERS = (
    0.0,
    0.408761012378475661805401336835692,
    0.0,
    0.338314908133113070265386759956844,
    0.0,
    0.209136164496178001188554322330881,
    0.0,
    0.0437879149922332667406575808765829,
)


def _mirrored(half: tuple[float, ...], sign: float) -> Tensor:
    return torch.tensor([sign * x for x in half[:0:-1]] + list(half), dtype=torch.float64, device="cpu")


NODES = _mirrored(_POSITIVE_NODES, -1.0)
WEIGHTS_KRONROD = _mirrored(_KRONROD, 1.0)
WEIGHTS = torch.stack([WEIGHTS_KRONROD, _mirrored(_GAUSS, 1.0), _mirrored(_OTHERS, 1.0)], -1)
"""Kronrod's weights, Gauss's weights and the weights of the third rule, as columns; shape (15, 3)."""


def panel_nodes(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nodes of panels, shape (..., panels, 15), and half the panels' widths, shape (..., panels, 1)."""
    half = (upper - lower).unsqueeze(-1) / 2
    return (upper + lower).unsqueeze(-1) / 2 + half * NODES.to(half.device), half


def integrate_panels(f: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return Kronrod's integrals over the panels and their error estimates, both of shape (..., panels).

    As in QUADPACK, the error estimate is the power 3/2 of the difference between Kronrod's and Gauss's rules. This
    power falls as fast as the error of a smooth integrand. If the difference exceeds 1/100 of the difference between
    Kronrod's rule and a third rule of lower degree, the integrand may have a corner. In this case, the error estimate
    is the difference between Kronrod's and Gauss's rules itself.
    """
    weights = WEIGHTS.to(f.device)
    fine, coarse, other = (torch.matmul(f, weights) * half).unbind(-1)
    size = torch.matmul(f.abs(), weights[:, 0]) * half.squeeze(-1)
    difference = (coarse - fine).abs()
    powered = size * (200 * difference / size.clamp(min=1e-300)) ** 1.5
    cornered = 100 * difference**2 / (other - fine).abs().clamp(min=1e-300)
    return fine, torch.minimum(difference, torch.maximum(powered, cornered)) + 2e-16 * size


def relative_errors(errors: Tensor, sizes: Tensor) -> Tensor:
    """Return `errors` divided by the sum of `sizes` over all panels; the largest quotient along the first dimension."""
    return (errors / sizes.sum(-1, keepdim=True).clamp(min=1e-300)).amax(0)


def _halves(lower: Tensor, upper: Tensor, priorities: Tensor) -> tuple[Tensor, Tensor]:
    middle = (lower + upper) / 2
    return torch.cat([lower, middle], -1), torch.cat([middle, upper], -1)


LINE = Rule(NODES.numel(), lambda priorities: 4, _halves)
"""The rule for panels of the real line, whose `Places` are their lower and upper edges."""
