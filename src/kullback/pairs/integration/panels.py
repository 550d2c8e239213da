"""The one loop that refines panels, for integrals along the line and for sums over integers.

A caller gives the first panels, a vector of integrands on them, and a judge of their errors. The integrands of a
divergence are its terms and the masses of P and Q; a mean has a statistic times a density, and a mass the density
alone. All elements of a batch have the same number of panels. Each element halves the panels where its own error is
largest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Integral(NamedTuple):
    """An integral or a sum: its value, an estimate of its error, and the mass that the nodes miss."""

    value: Tensor
    error: Tensor
    unintegrated: Tensor


class Rule(NamedTuple):
    """How panels are integrated: the nodes of each, how many are halved at a step, and their halves."""

    nodes: int
    halvings: Callable[[Tensor], int]
    """Returns the number of panels of an element to halve at a step, from the priorities of all panels."""
    halves: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """Returns the left halves of panels and after them the right halves, from their places and priorities."""


# Two numbers for each panel, which its rule understands: its ends on the line, or its first integer and its kind.
Places = tuple[Tensor, Tensor]
# Integrates a vector of integrands over panels: columns with the integrals, their errors and whatever the judge needs.
Integrands = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class Panels(NamedTuple):
    """Panels along the last dimension, and the columns of their integrals."""

    places: Places
    columns: tuple[Tensor, ...]

    def split(self, rule: Rule, priorities: Tensor, integrands: Integrands) -> Panels:
        """Halve the panels with the largest priorities of each element: right halves follow all other panels."""
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


# Returns which elements of the batch are exact enough, and the priorities of the panels of each part.
Judge = Callable[[list[Panels]], tuple[Tensor, list[Tensor]]]


def integrate(
    rule: Rule, parts: Sequence[tuple[Places, Integrands]], judge: Judge, max_evaluations: float
) -> list[Panels]:
    """Integrate over all parts together, until every element is exact enough or has the maximum number of nodes.

    Arguments:
        rule: the rule of the panels.
        parts: the first panels of each part of the domain, and its integrands.
        judge: decides where the integrals are exact enough, and which panels are halved if they are not.
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
