"""What is measured in each row of two predictions: a table of numbers, one line for each row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.generators import KL, FinitePair, JensenShannon, ReverseKL, TotalVariation
from kullback.io import Kind
from kullback.kernels import finite_pair
from kullback.predictions.result import TopClass
from kullback.predictions.sources import IGNORED, REPRESENTATIONS
from kullback.representations import Representation

__all__ = ["COLUMNS", "DIVERGENCES", "LABEL_COLUMNS", "Measured", "measure"]

DIVERGENCES = {"kl_pq": KL(), "kl_qp": ReverseKL(), "js": JensenShannon(), "tv": TotalVariation()}
COLUMNS = (*DIVERGENCES, "confidence", "same_top")
LABEL_COLUMNS = (
    "labeled",
    "cross_entropy_p",
    "cross_entropy_q",
    "difference",
    "delta_prob",
    "delta_prob_squared",
)
TOP_CLASSES = 5


class Measured(NamedTuple):
    """A few rows: their table, columns as `COLUMNS` (and `LABEL_COLUMNS`), and their probabilities."""

    table: Tensor
    pair: FinitePair

    def top_classes(self, row: int) -> list[TopClass]:
        """Return the likeliest classes of a row under P, then those under Q that are not among them."""
        p, q = self.pair.p[row], self.pair.q[row]
        # A stable sort, so that of equally likely classes the one of lowest index comes first.
        orders = (torch.sort(x, descending=True, stable=True).indices[:TOP_CLASSES].tolist() for x in (p, q))
        chosen = dict.fromkeys(index for order in orders for index in order)
        return [TopClass(index, float(p[index]), float(q[index])) for index in chosen]


def measure(p: Tensor, q: Tensor, kinds: tuple[Kind, Kind], labels: Tensor | None) -> Measured:
    """Measure rows of P and Q, shape (rows, classes), whose values have been checked; labels have shape (rows,)."""
    sides = [
        REPRESENTATIONS[kind](rows.double(), validate=False) for kind, rows in zip(kinds, (p, q), strict=True)
    ]
    pair = finite_pair(*sides)
    # The weights themselves decide which class is on top: rounding of probabilities may make unequal ones equal.
    top_p, top_q = (side.weights().argmax(-1) for side in sides)
    columns = [kind.total(pair) for kind in DIVERGENCES.values()]
    columns += [_at(pair.p, top_p), (top_p == top_q).double()]
    if labels is not None:
        columns += _against_labels(pair, sides, (top_p, top_q), labels)
    return Measured(torch.stack(columns, -1), pair)


def _against_labels(
    pair: FinitePair, sides: list[Representation], tops: tuple[Tensor, Tensor], labels: Tensor
) -> list[Tensor]:
    known = labels != IGNORED
    index = torch.where(known, labels, 0)
    at_label = FinitePair(*(_at(part, index) for part in pair))
    change = at_label.q_minus_p()
    cross_entropies = [
        _surprisal(mass, side, top, index)
        for mass, side, top in zip((pair.p, pair.q), sides, tops, strict=True)
    ]
    columns = [*cross_entropies, at_label.log_ratio, change, change.square()]
    return [known.double(), *(torch.where(known, column, 0) for column in columns)]


def _surprisal(mass: Tensor, side: Representation, top: Tensor, index: Tensor) -> Tensor:
    """Return -log p of a class by way of the likeliest one, so that a p too small for float64 keeps its logarithm."""
    weights = side.weights()
    at_index, at_top = (_at(weights, i) if side.in_logs else _at(weights, i).log() for i in (index, top))
    return (at_top - at_index) - _at(mass, top).log()


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(-1, index.unsqueeze(-1)).squeeze(-1)
