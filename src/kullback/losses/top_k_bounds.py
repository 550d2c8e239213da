"""Lower and upper bounds of a divergence from the most probable classes of both distributions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name
from kullback.common.short_repr import short_repr
from kullback.errors import invalid_type, invalid_value
from kullback.generators import Divergence
from kullback.kernels.reference import pair_of_logs
from kullback.losses.settings import check_additive, check_classes, check_kind
from kullback.losses.top_k import TopK
from kullback.partial_rows import PartialRows, first_other_label, places_of
from kullback.representations import SUM_TOLERANCE

_CALL = "top_k_divergence_bounds"
Range = tuple[Tensor, Tensor]  # the lower and the upper limits of numbers that have rounding errors
_PADDING_P, _PADDING_Q = -1, 1 << 62  # no class has these indices; the padding of P and of Q never match


class DivergenceBounds(NamedTuple):
    """Lower and upper bounds of a divergence.

    Attributes:
        lower: the lower bounds.
        upper: the upper bounds, +inf if the divergence may be unbounded.

    Example:
        >>> import torch
        >>> from kullback.functional import DivergenceBounds
        >>> DivergenceBounds(torch.tensor([0.25]), torch.tensor([0.5])).upper
        tensor([0.5000])
    """

    lower: Tensor
    upper: Tensor

    def __repr__(self) -> str:
        return short_repr(self, self._asdict())


@by_name()
def top_k_divergence_bounds(
    p: TopK | PartialRows, q: TopK | PartialRows, kind: Divergence | str, *, classes: int | None = None
) -> DivergenceBounds:
    r"""Bound the divergence between two distributions from their lists of known classes.

    Let C be the classes in both lists. Let A be the classes only in P's list, with mass :math:`p_A`, and B the classes
    only in Q's list, with mass :math:`q_B`. Let :math:`p_0, q_0` be the masses outside each list. With
    :math:`\varphi(p, q) = q f(p/q)`:

    .. math::
        \sum_C \varphi(p_i, q_i) + \varphi(p_A + p_0,\; q_B + q_0)
        \;\le\; D_f(P \| Q) \;\le\;
        \sum_C \varphi(p_i, q_i) + \varphi(p_A + p_0,\; 0) + \varphi(0,\; q_B + q_0)

    The lower bound merges all classes outside C into one class. The term of the merged class becomes
    :math:`\varphi(p_A, q_0) + \varphi(p_0, q_B)` if :math:`p_A q_B > p_0 q_0`. The mass :math:`q_0` is then too small
    to give A's classes the ratio p/q of the merged class. The upper bound puts P's and Q's mass outside C on separate
    classes. Bounded divergences such as JS therefore have a finite upper bound. The bounds of total variation differ by
    at most :math:`p_0 + q_0`. KL has no upper bound if Q may give probability 0 to a class of P. Each bound is attained
    by some P and Q if at least two classes are in neither list, or if the two lists together contain all `classes`. If
    each list contains all `classes`, the bounds are equal.

    Rounding only widens the bounds. With :math:`\varepsilon` the epsilon of the dtype, a listed log-probability x has
    the error :math:`\varepsilon(1 + |x|)`, and the mass outside the list has the error :math:`(k + 1)\, \varepsilon`.

    Arguments:
        p: P, a `TopK` of shape (..., k), or `PartialRows`. The list of rows of a reference file has their draws and
            their labels, too.
        q: Q, for the same positions; k may differ.
        kind: the divergence or its name; not `Renyi`, which is not a sum over classes.
        classes: the number of all classes. By default, the number that the rows store, or None if they store no
            number.

    Returns:
        `DivergenceBounds` in float64, one value for each position, without a gradient.

    Raises:
        ArgumentTypeError: `p` or `q` is neither a `TopK` nor `PartialRows`, or `kind` is not a divergence.
        ArgumentValueError: the positions differ, in number or in their true tokens; the mass outside a list is unknown;
            or an index is not below `classes`. The error is raised also if `kind` is not a sum over classes, or if a
            list contains all `classes` but leaves more mass than a rounding error.

    Example:
        >>> import torch
        >>> from kullback import KL, JensenShannon
        >>> from kullback.functional import TopK, top_k_divergence_bounds
        >>> p = TopK(torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.3]]).log())
        >>> q = TopK(torch.tensor([[0, 2]]), torch.tensor([[0.5, 0.25]]).log())
        >>> top_k_divergence_bounds(p, q, KL())
        DivergenceBounds(lower=tensor([0.0725], dtype=torch.float64), upper=tensor([inf], dtype=torch.float64))
        >>> top_k_divergence_bounds(p, q, JensenShannon()).upper
        tensor([0.3142], dtype=torch.float64)

    References:
        Information-type measures of difference of probability distributions and indirect observations (Csiszar, 1967)
    """
    kind = check_kind(_CALL, kind)
    check_additive(_CALL, kind, instead="kind=Alpha(2.0); Renyi(2.0) is an increasing function of it")
    (rows_p, shape), (rows_q, shape_q) = _rows(p, "p"), _rows(q, "q")
    _check_positions(rows_p, rows_q, shape, shape_q)
    if isinstance(p, PartialRows) and isinstance(q, PartialRows):
        _check_labels(p, q)
    classes = check_classes(_CALL, classes) or rows_p.classes or rows_q.classes
    if classes is not None:
        for name, rows in (("p", rows_p), ("q", rows_q)):
            _check_indices(name, rows, classes)
            _check_mass(name, rows, classes)
    side_p = _ListedClasses.of(rows_p, classes, _PADDING_P)
    side_q = _ListedClasses.of(rows_q, classes, _PADDING_Q)
    return DivergenceBounds(*(x.reshape(shape) for x in _bounds(side_p, side_q, kind, classes)))


class _ListedClasses(NamedTuple):
    """A padded list of classes, with limits that include rounding errors. The log-probabilities are between `low` and
    `high`, and the mass outside the list is between `least` and `most`.
    """

    indices: Tensor
    low: Tensor
    high: Tensor
    least: Tensor
    most: Tensor

    @classmethod
    def of(cls, rows: PartialRows, classes: int | None, padding: int) -> _ListedClasses:
        k, eps = rows.top_indices.shape[-1], torch.finfo(rows.top_log_probs.dtype).eps
        log_probs = rows.top_log_probs.double()
        kept = log_probs != -torch.inf
        indices = torch.where(kept, rows.top_indices.long(), padding)
        tail = rows.tail_log_mass.double().exp()
        # `rounding` exceeds the sum of the errors of the listed probabilities. The error of a probability p is eps p (1
        # + |log p|), which is at most eps (p + 1/e).
        rounding = torch.full_like(tail, (k + 1) * eps)
        if classes is not None:
            whole = kept.sum(-1) >= classes
            tail, rounding = torch.where(whole, 0, tail), torch.where(whole, 0, rounding)
        error = eps * (1 + torch.where(kept, log_probs, 0).abs())
        return cls(
            indices, log_probs - error, log_probs + error, (tail - rounding).clamp(min=0), tail + rounding
        )

    def among(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper limits of the log-probabilities, with -inf where `mask` is False."""
        return torch.where(mask, self.low, -torch.inf), torch.where(mask, self.high, -torch.inf)


def _bounds(
    p: _ListedClasses, q: _ListedClasses, kind: Divergence, classes: int | None
) -> tuple[Tensor, Tensor]:
    place, in_both = places_of(p.indices, q.indices)
    q_in_both = torch.zeros_like(q.indices).scatter_add(-1, place, in_both.long()) > 0
    matched = q._replace(low=q.low.gather(-1, place), high=q.high.gather(-1, place))
    common_p, common_q = p.among(in_both), matched.among(in_both)
    only_p, only_q = p.among(~in_both), q.among(~q_in_both)  # the classes A and B of the public docstring
    p_a, q_b = _masses(only_p), _masses(only_q)

    same = _smallest_terms(kind, common_p, common_q).sum(-1)
    merged = _smallest_of_masses(kind, _range_sum(p_a, (p.least, p.most)), _range_sum(q_b, (q.least, q.most)))
    apart = _smallest_of_masses(kind, p_a, (q.least, q.most)) + _smallest_of_masses(
        kind, (p.least, p.most), q_b
    )
    complete = torch.zeros_like(in_both[:, 0])
    if classes is not None:
        listed = (p.indices != _PADDING_P).sum(-1) + ((q.indices != _PADDING_Q) & ~q_in_both).sum(-1)
        complete = listed >= classes
    is_too_small = complete | (
        p_a[0] * q_b[0] > p.most * q.most
    )  # the masses outside the lists are too small for A and B
    lower = same + torch.where(is_too_small, torch.maximum(apart, merged), merged)

    same = _largest_terms(kind, common_p, common_q).sum(-1)
    one, nothing = torch.zeros_like(same), torch.full_like(same, -torch.inf)
    upper = (
        same + _terms(kind, (p_a[1] + p.most).log(), nothing) + _terms(kind, nothing, (q_b[1] + q.most).log())
    )
    if classes is not None:
        # All classes are in one of the lists. Therefore the mass outside P's list is on classes that only Q's list has.
        # Likewise, the mass outside Q's list is on classes that only P's list has.
        exact = (
            same + _largest_split(kind, only_q, p, swap=False) + _largest_split(kind, only_p, q, swap=True)
        )
        upper = torch.where(complete, torch.minimum(exact, upper), upper)
    upper = torch.minimum(upper, _terms(kind, one, nothing) + _terms(kind, nothing, one))
    return lower, torch.maximum(lower, upper)


def _masses(logs: Range) -> Range:
    return logs[0].exp().sum(-1), logs[1].exp().sum(-1)


def _range_sum(a: Range, b: Range) -> Range:
    return a[0] + b[0], a[1] + b[1]


def _terms(kind: Divergence, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the terms of the divergence for masses p and q with these logarithms. The masses need not sum to 1."""
    return kind.terms(pair_of_logs(log_p, log_q))


def _smallest_terms(kind: Divergence, p: Range, q: Range) -> Tensor:
    """Return the smallest terms for log p and log q in these ranges. The term is 0 if they overlap. Otherwise, it is
    the term at their nearest ends, because a term decreases as one mass approaches the other.
    """
    above, below = p[0] > q[1], p[1] < q[0]
    nearest_p = torch.where(above, p[0], torch.where(below, p[1], 0.0))
    nearest_q = torch.where(above, q[1], torch.where(below, q[0], 0.0))
    return torch.where(above | below, _terms(kind, nearest_p, nearest_q), 0)


def _smallest_of_masses(kind: Divergence, p: Range, q: Range) -> Tensor:
    return _smallest_terms(kind, (p[0].log(), p[1].log()), (q[0].log(), q[1].log()))


def _largest_terms(kind: Divergence, p: Range, q: Range) -> Tensor:
    """Return the largest terms for log p and log q in these ranges, at two ends that are farthest apart."""
    return torch.maximum(_terms(kind, p[1], q[0]), _terms(kind, p[0], q[1]))


def _largest_split(kind: Divergence, listed: Range, other: _ListedClasses, *, swap: bool) -> Tensor:
    """Return the largest sum of terms over the classes of one list, if the mass outside the other list is split among
    these classes.

    The sum is a convex function of the split. Therefore its maximum has all of the mass on one class. With `swap`, the
    listed classes are P's and the split mass is Q's; without, the listed classes are Q's and the split mass is P's.
    """
    nothing = torch.full_like(listed[1], -torch.inf)
    none = _terms(kind, *((listed[1], nothing) if swap else (nothing, listed[1])))
    infinite = none == torch.inf
    rest = torch.where(infinite, 0, none).sum(-1, keepdim=True) - torch.where(infinite, 0, none)
    alone = infinite.sum(-1, keepdim=True) - infinite.long() == 0
    low, high = (x.log().unsqueeze(-1).expand_as(nothing) for x in (other.least, other.most))
    all_of_it = _largest_terms(kind, *((listed, (low, high)) if swap else ((low, high), listed)))
    totals = torch.where(alone, all_of_it + rest, torch.inf)
    totals = torch.where(listed[1] == -torch.inf, -torch.inf, totals)
    return torch.where((listed[1] == -torch.inf).all(-1), 0, totals.amax(-1))


def _rows(x: TopK | PartialRows, name: str) -> tuple[PartialRows, torch.Size]:
    """Return lists of classes as rows, and the shape of their positions. Raise if the mass outside is not known."""
    instead = f"{name}=TopK(indices, log_probs)"
    if isinstance(x, TopK):
        x.check_counted(_CALL, None)
        if x.tail != "bucket":
            wanted, got = "tail='bucket': bounds need the mass outside the list", f"tail={x.tail!r}"
            instead += ", with log-probabilities among all classes"
            raise invalid_value(_CALL, name, wanted=wanted, got=got, instead=instead)
        indices, log_probs = (
            values.detach().reshape(-1, values.shape[-1]) for values in (x.indices, x.log_probs)
        )
        return PartialRows(indices, log_probs), x.indices.shape[:-1]
    if not isinstance(x, PartialRows):  # pyright: ignore[reportUnnecessaryIsInstance]
        wanted, got = "a TopK or PartialRows", type(x).__name__
        raise invalid_type(_CALL, name, wanted=wanted, got=got, instead=instead)
    if bool(x.tail_log_mass.isnan().any()):
        wanted, got = "a file that stores the mass outside the list", "only logits of the listed classes"
        instead = "log-probabilities among all classes, stored as 'indices' and 'log_probs'"
        raise invalid_value(_CALL, name, wanted=wanted, got=got, instead=instead)
    return x.with_all_known(), torch.Size([len(x)])


def _check_indices(name: str, rows: PartialRows, classes: int) -> None:
    listed = torch.where(rows.top_log_probs == -torch.inf, -1, rows.top_indices)
    largest = int(listed.max()) if listed.numel() else -1
    if largest >= classes:
        wanted, got = f"indices below the number of classes, {classes}", f"an index {largest}"
        instead = f"classes={largest + 1} or more, the number of all classes"
        raise invalid_value(_CALL, name, wanted=wanted, got=got, instead=instead)


def _check_mass(name: str, rows: PartialRows, classes: int) -> None:
    """Raise if a list of all classes leaves mass outside: `classes` is too small, or the list is wrong."""
    k, dtype = rows.top_indices.shape[-1], rows.top_log_probs.dtype
    rounding = max((k + 1) * torch.finfo(dtype).eps, SUM_TOLERANCE.get(dtype, 0.0))
    tail = rows.tail_log_mass.double().exp()
    wrong = (rows.counts >= classes) & (tail > rounding)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        wanted = f"no mass outside a list of all {classes} classes, within {rounding:.2g} ({dtype})"
        got = f"{float(tail[row]):.6g} outside that of row {row}, the first of {int(wrong.sum())}"
        instead = (
            f"classes={classes + 1} or more, the number of all classes, or classes=None if it is not known"
        )
        raise invalid_value(_CALL, f"{name}, classes", wanted=wanted, got=got, instead=instead)


def _check_positions(p: PartialRows, q: PartialRows, shape_p: torch.Size, shape_q: torch.Size) -> None:
    devices = p.top_indices.device, q.top_indices.device
    if shape_p != shape_q or devices[0] != devices[1]:
        wanted = "the same positions on one device"
        got = f"shapes {tuple(shape_p)} and {tuple(shape_q)} on {devices[0]} and {devices[1]}"
        instead = "blocks with the same number of rows: p.blocks(rows=1024) and q.blocks(rows=1024)"
        raise invalid_value(_CALL, "p, q", wanted=wanted, got=got, instead=instead)


def _check_labels(p: PartialRows, q: PartialRows) -> None:
    row = first_other_label(p, q)
    if row is not None:
        places = [f"sequence {int(x.sequences[row])}, position {int(x.positions[row])}" for x in (p, q)]
        got = f"true token {int(p.labels[row])} at {places[0]} and {int(q.labels[row])} at {places[1]}"
        wanted, instead = "positions of one text", "files made from the same tokens"
        raise invalid_value(_CALL, "p, q", wanted=wanted, got=got, instead=instead)
