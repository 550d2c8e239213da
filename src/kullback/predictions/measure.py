"""The divergences and other quantities of each row of two predictions, as a table with one line for each row."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kullback.generators import KL, Divergence, FinitePair, JensenShannon, ReverseKL, TotalVariation
from kullback.kernels import finite_pair, row_divergence
from kullback.kernels.native.library import is_available
from kullback.predictions.llama_cpp import measure_like
from kullback.predictions.result import TopClass
from kullback.predictions.sources import IGNORED
from kullback.representations import REPRESENTATIONS, Representation
from kullback.words import DIVERGENCE_NAMES, RepresentationName

__all__ = [
    "COLUMNS",
    "DIVERGENCES",
    "LABEL_COLUMNS",
    "TOP_K_ACCURACY_P",
    "TOP_K_ACCURACY_Q",
    "TOP_K_AGREEMENT",
    "LikeLlamaCpp",
    "Measured",
    "measure",
]

TOP_CLASSES = 5

DIVERGENCES = dict(zip(DIVERGENCE_NAMES, (KL(), ReverseKL(), JensenShannon(), TotalVariation()), strict=True))
TOP_K_AGREEMENT, TOP_K_ACCURACY_P, TOP_K_ACCURACY_Q = (
    tuple(f"top{k}_{of}" for k in range(1, TOP_CLASSES + 1))
    for of in ("agreement", "accuracy_p", "accuracy_q")
)
COLUMNS = (*DIVERGENCES, "confidence", *TOP_K_AGREEMENT)
LABEL_COLUMNS = (
    "labeled",
    "cross_entropy_p",
    "cross_entropy_q",
    "difference",
    "delta_prob",
    "delta_prob_squared",
    *TOP_K_ACCURACY_P,
    *TOP_K_ACCURACY_Q,
)
# Where P's log-probabilities come from: stored in a llama.cpp base file, or rounded as one would hold them.
LikeLlamaCpp = Literal["stored", "rounded"]
LOWEST = torch.finfo(torch.float64).min


class Measured(NamedTuple):
    """A few rows: their table, columns as `COLUMNS` (and `LABEL_COLUMNS`), and their probabilities."""

    table: Tensor
    pair: FinitePair

    def top_classes(self, row: int) -> list[TopClass]:
        """Return the top classes of a row under P, then those under Q that are not among them."""
        p, q = self.pair.p[row], self.pair.q[row]
        chosen = dict.fromkeys(index for x in (p, q) for index in _largest(x))
        return [TopClass(index, float(p[index]), float(q[index])) for index in chosen]


def _largest(x: Tensor) -> list[int]:
    """Return where the largest values are; of equal ones the first comes first."""
    count = min(TOP_CLASSES, len(x))
    among = (x >= x.topk(count).values[-1]).nonzero().squeeze(-1)
    return among[torch.sort(x[among], descending=True, stable=True).indices[:count]].tolist()


def measure(
    p: Tensor,
    q: Tensor,
    representations: tuple[RepresentationName, RepresentationName],
    labels: Tensor | None,
    *,
    like_llama_cpp: LikeLlamaCpp | None = None,
) -> Measured:
    """Measure valid rows of P and Q, shape (rows, classes), with labels of shape (rows,) or None.

    With `like_llama_cpp` there are the further columns `LIKE_COLUMNS`, from log-probabilities that are stored in a base
    file or that are rounded as there.
    """
    sides = [
        REPRESENTATIONS[name](rows.double(), validate=False)
        for name, rows in zip(representations, (p, q), strict=True)
    ]
    pair = finite_pair(*sides)
    # The top classes are those of the weights: rounding may make unequal weights equal probabilities.
    top_p, top_q = (_top_classes(side.weights()) for side in sides)
    columns = _divergences(sides, pair)
    columns += [_at(pair.p, top_p[:, 0]), *(top_p == top_q).double().cumprod(-1).unbind(-1)]
    if labels is not None:
        columns += _against_labels(pair, sides, (top_p, top_q), labels)
    if labels is not None and like_llama_cpp is not None:
        columns += measure_like(sides[0], sides[1], labels, stored=like_llama_cpp == "stored")
    return Measured(torch.stack(columns, -1), pair)


def _divergences(sides: list[Representation], pair: FinitePair) -> list[Tensor]:
    """Return the divergences of each row; of logarithms by the kernels, which read them once for each."""
    # The reference would compute the pair again for each.
    if not is_available() or not all(side.in_logs for side in sides):
        return [kind.total(pair) for kind in DIVERGENCES.values()]
    p, q = sides

    def both_ways(kind: Divergence) -> tuple[Tensor, Tensor]:
        there, back = (row_divergence(kind, a, b, dtype=torch.float64) for a, b in ((p, q), (q, p)))
        return there, back

    # Exchanging P and Q exchanges the results to the last bit, which one order of summation does not.
    js, tv = (torch.stack(both_ways(kind)).mean(0) for kind in (JensenShannon(), TotalVariation()))
    return [*both_ways(KL()), js, tv]


def _top_classes(weights: Tensor) -> Tensor:
    """Return each row's top classes, of equal ones the lower first; the last repeated where there are too few."""
    rest = weights.clamp(min=LOWEST)  # a copy, in which only classes that have been found are -inf
    found: list[Tensor] = []
    for _ in range(min(TOP_CLASSES, weights.shape[-1])):
        found.append(rest.max(-1, keepdim=True).indices)
        rest.scatter_(-1, found[-1], -torch.inf)
    return torch.cat(found + found[-1:] * (TOP_CLASSES - len(found)), -1)


def _against_labels(
    pair: FinitePair, sides: list[Representation], tops: tuple[Tensor, Tensor], labels: Tensor
) -> list[Tensor]:
    known = labels != IGNORED
    index = torch.where(known, labels, 0)
    at_label = FinitePair(_at(pair.p, index), _at(pair.q, index), _at(pair.log_ratio, index))
    change = at_label.q_minus_p()
    cross_entropies = [
        _negative_log(probs, side, top[:, 0], index)
        for probs, side, top in zip((pair.p, pair.q), sides, tops, strict=True)
    ]
    columns = [*cross_entropies, at_label.log_ratio, change, change.square()]
    for top in tops:
        columns += (top == index.unsqueeze(-1)).cumsum(-1).clamp(max=1).double().unbind(-1)
    return [known.double(), *(torch.where(known, column, 0) for column in columns)]


def _negative_log(probs: Tensor, side: Representation, top: Tensor, index: Tensor) -> Tensor:
    """Return -log p of a class from its weight relative to the top class: exact where p itself underflows."""
    weights = side.weights()
    at_index, at_top = (_at(weights, i) if side.in_logs else _at(weights, i).log() for i in (index, top))
    return (at_top - at_index) - _at(probs, top).log()


def _at(rows: Tensor, index: Tensor) -> Tensor:
    return rows.gather(-1, index.unsqueeze(-1)).squeeze(-1)
