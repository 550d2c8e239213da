"""The divergences and other quantities of each row of two predictions, as a table with one line for each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.row_statistics import BUILT_IN, TOP_CLASSES, RowStatistic
from kullback.common.words import DIVERGENCE_NAMES, NO_LABEL, RepresentationName
from kullback.errors import invalid_value
from kullback.generators import KL, Divergence, FinitePair, JensenShannon, ReverseKL, TotalVariation
from kullback.kernels import finite_pair, row_divergence
from kullback.kernels.native.library import is_available
from kullback.predictions.prediction_results import TopClass
from kullback.representations import REPRESENTATIONS, Logits, Representation

# The largest number of elements in a part, which one thread measures. The temporaries of a part fit the core's cache,
# and torch starts no threads of its own for so few elements.
PART = (1 << 15) - 1
DIVERGENCES = dict(zip(DIVERGENCE_NAMES, (KL(), ReverseKL(), JensenShannon(), TotalVariation()), strict=True))
COLUMNS = tuple(each.name for each in BUILT_IN if not each.of_labels)
LABEL_COLUMNS = tuple(each.name for each in BUILT_IN if each.of_labels)
LOWEST = torch.finfo(torch.float64).min


class MeasuredRows(NamedTuple):
    """The measurements of a few rows: a table, and the classes of interest.

    The table's columns are `COLUMNS`, then `LABEL_COLUMNS` if there are labels, then the statistics of the user. For
    each row, `classes` has P's top classes, then Q's, then the label (0 if there is none); `pair` has the probabilities
    of these classes.
    """

    table: Tensor
    classes: Tensor
    pair: FinitePair

    def top_classes(self, row: int) -> list[TopClass]:
        """Return the top classes of a row under P, then the top classes under Q that are not top classes under P."""
        columns = (x[row, :-1].tolist() for x in (self.classes, self.pair.p, self.pair.q))
        classes = {index: TopClass(index, p, q) for index, p, q in zip(*columns, strict=True)}
        return list(classes.values())

    def at_label(self, row: int) -> tuple[float, float]:
        """Return the probabilities of a row's label under P and Q."""
        return float(self.pair.p[row, -1]), float(self.pair.q[row, -1])


def rows_in_part(classes: int) -> int:
    """Return the number of rows that one thread measures at a time."""
    return max(1, PART // classes)


def measure(
    p: Tensor,
    q: Tensor,
    representations: tuple[RepresentationName, RepresentationName],
    labels: Tensor | None,
    further: Sequence[RowStatistic] = (),
) -> MeasuredRows:
    """Measure valid rows of P and Q, shape (rows, classes), with labels of shape (rows,) or None.

    The last columns are the statistics of the user, `further`.
    """
    sides = [
        REPRESENTATIONS[name](rows.double(), validate=False)
        for name, rows in zip(representations, (p, q), strict=True)
    ]
    # The top classes are found by weights, because rounding may turn unequal weights into equal probabilities.
    top_p, top_q = (_top_classes(side.weights()) for side in sides)
    known = torch.zeros(len(p), dtype=torch.int64, device="cpu") if labels is None else labels
    label = known.where(known != NO_LABEL, 0)
    index = torch.cat([top_p, top_q, label.unsqueeze(-1)], -1)
    pair = finite_pair(*sides, at=index)
    columns = _divergences(sides)
    columns += [pair.p[:, 0], *(top_p == top_q).double().cumprod(-1).unbind(-1)]
    if labels is not None:
        columns += _against_labels(pair, sides, index, labels)
    if further:
        columns += _further_columns(further, finite_pair(*sides), labels)
    return MeasuredRows(torch.stack(columns, -1), index, pair)


def _further_columns(
    further: Sequence[RowStatistic], whole: FinitePair, labels: Tensor | None
) -> list[Tensor]:
    columns: list[Tensor] = []
    for statistic in further:
        values = statistic.rows(whole.p, whole.q, labels) if statistic.rows else whole.p[:, 0]
        if values.shape != whole.p.shape[:1]:
            raise invalid_value(
                "register_statistic",
                "name",
                wanted=f"values of shape ({len(whole.p)},), one for each row",
                got=f"shape {tuple(values.shape)} from {statistic.name}",
                instead="return (p - q).abs().sum(-1), a sum over classes",
            )
        unlabeled = labels is not None and statistic.of_labels
        columns.append(values.double().where(labels != NO_LABEL, 0) if unlabeled else values.double())
    return columns


def _divergences(sides: list[Representation]) -> list[Tensor]:
    """Return the divergences of each row. Logarithms go to the kernels, which read them once for each divergence."""
    # Without kernels, `row_divergence` would compute the pair again for each divergence.
    if not is_available() or not all(side.in_logs for side in sides):
        pair = finite_pair(*sides)
        return [kind.total(pair) for kind in DIVERGENCES.values()]
    p, q = sides
    kl_pq, kl_qp = (row_divergence(KL(), a, b, dtype=torch.float64) for a, b in ((p, q), (q, p)))
    # Exchanging P and Q must exchange the results to the last bit, which a fixed order of summation does not ensure. So
    # the symmetric divergences are computed in the direction with the smaller KL, and in both directions if KL is
    # equal.
    swap = (kl_qp < kl_pq).unsqueeze(-1)
    tied = (kl_qp == kl_pq) & (kl_pq > 0)
    x, y = p.weights(), q.weights()
    if swap.any():
        x, y = (y, x) if swap.all() else (torch.where(swap, y, x), torch.where(swap, x, y))
    x, y = Logits(x, validate=False), Logits(y, validate=False)

    def symmetric(kind: Divergence) -> Tensor:
        there = row_divergence(kind, x, y, dtype=torch.float64)
        if not tied.any():
            return there
        return torch.where(tied, (there + row_divergence(kind, y, x, dtype=torch.float64)) / 2, there)

    return [kl_pq, kl_qp, symmetric(JensenShannon()), symmetric(TotalVariation())]


def _top_classes(weights: Tensor) -> Tensor:
    """Return each row's top classes, with ties in order of class number; the last class is repeated if there are too
    few.
    """
    best = weights.topk(min(TOP_CLASSES + 1, weights.shape[-1]))
    if best.values.shape[-1] > TOP_CLASSES and (best.values.diff() < 0).all():
        return best.indices[:, :TOP_CLASSES]
    # `topk` may return any of several equal weights.
    rest = weights.clamp(min=LOWEST)  # a copy with -inf at the classes found so far
    places: list[Tensor] = []
    for _ in range(min(TOP_CLASSES, weights.shape[-1])):
        places.append(rest.max(-1, keepdim=True).indices)
        rest.scatter_(-1, places[-1], -torch.inf)
    return torch.cat(places + places[-1:] * (TOP_CLASSES - len(places)), -1)


def _against_labels(
    pair: FinitePair, sides: list[Representation], index: Tensor, labels: Tensor
) -> list[Tensor]:
    known, label = labels != NO_LABEL, index[:, -1]
    at_label = FinitePair(pair.p[:, -1], pair.q[:, -1], pair.log_ratio[:, -1])
    change = at_label.q_minus_p()
    top_p, top_q = index[:, :TOP_CLASSES], index[:, TOP_CLASSES:-1]
    at_top = pair.p[:, 0], pair.q[:, TOP_CLASSES]
    cross_entropies = [
        _negative_log(prob, side, top[:, 0], label)
        for prob, side, top in zip(at_top, sides, (top_p, top_q), strict=True)
    ]
    columns = [*cross_entropies, at_label.log_ratio, change, change.square()]
    for top in (top_p, top_q):
        columns += (top == label.unsqueeze(-1)).cumsum(-1).clamp(max=1).double().unbind(-1)
    return [known.double(), *(torch.where(known, column, 0) for column in columns)]


def _negative_log(top_prob: Tensor, side: Representation, top: Tensor, index: Tensor) -> Tensor:
    """Return -log p of a class from its weight relative to the top class. The result is exact even if p underflows."""
    at_index, at_top = (side.weights().gather(-1, i.unsqueeze(-1)).squeeze(-1) for i in (index, top))
    if not side.in_logs:
        at_index, at_top = at_index.log(), at_top.log()
    return (at_top - at_index) - top_prob.log()
