"""The adaptive refinement of panels, for integrals over the real line and for sums over integers.

A panel is an interval of the real line or a range of consecutive integers. A caller gives the first panels, a function
that integrates several integrands over panels, and a judge of the errors. The integrands of a divergence are its terms
and the densities of P and Q. The integrand of a mean is a statistic times a density. All elements of a batch have the
same number of panels. Each element halves the panels on which the error of this element is largest.
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
# panels of integers, the first integers and the kinds (see lattice.py).
Places = tuple[Tensor, Tensor]
# `Integrands` is a function of `Places` that returns columns: the integrals over each panel, the errors of these
# integrals, and numbers for the judge.
Integrands = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class Panels(NamedTuple):
    """Panels along the last dimension, and the columns of their integrals; see `Integrands`."""

    places: Places
    columns: tuple[Tensor, ...]

    def split(self, rule: Rule, priorities: Tensor, integrands: Integrands) -> Panels:
        """Return the panels after halving the panels with the largest priorities in each batch element.

        A left half replaces its panel, and the right halves follow all other panels.
        """
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

    Arguments:
        rule: the rule of integration.
        parts: the first panels of each part of the domain, and the function that integrates over these panels.
        judge: decides whether the integrals are exact enough, and which panels are halved otherwise.
        max_evaluations: the limit on nodes for each element of the batch.
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
