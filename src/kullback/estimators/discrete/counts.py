"""The counts of draws of categories: the effective numbers of P's and of Q's draws in each category."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.common.inference import student_ratio
from kullback.common.inputs import can_inspect
from kullback.errors import invalid_value, safe_repr
from kullback.estimators.discrete.formulas import KNOWN, CategoryCounts, kl_influence
from kullback.estimators.draws import (
    Draws,
    checked,
    cluster_correction,
    effective_number,
    is_heavy,
    shares_of,
    shown,
    tensor_in_place,
    variance_of_sum,
)
from kullback.estimators.evidence import SIDE_P, SIDE_Q
from kullback.representations import Counts, Representation
from kullback.samples import Samples

# With more categories than this number, the covariance matrix of the categories is not computed, because the time is
# cubic in the number of categories.
_MOST_FOR_SPREAD = 1000
# Above this number of draws, powers of counts in the formulas and in the search for intervals would be infinite.
_MOST_DRAWS = 1e30
# If draws or clusters of unequal weights have an effective number below this one, the counts have at most this number.
_FEW_UNITS = 5
# If a draw has more than this number of times the mean weight of the other draws in its category, weights do not follow
# from categories. The effective number of draws is then at most Kish's.
_OUTLIER = 5.0
# More draws than this number would need too much memory as `Samples`: 16 GiB for the labels alone.
_MOST_SAMPLES = 2**31


def count_categories(call: str, p: Samples | Draws | Counts, q: Samples | Draws | Counts) -> CategoryCounts:
    """Return the counts of draws of P and Q in each category; weighted or clustered draws have effective counts."""
    if isinstance(p, Counts) and isinstance(q, Counts):
        _check_whole(call, p, q)
        return table_of(*p.aligned_with(q))
    p, q = checked(call, drawn_one_by_one(call, p), drawn_one_by_one(call, q))
    if not p.discrete:
        raise invalid_value(
            call,
            "p, q",
            wanted="draws of categories: integers, booleans or strings",
            got=f"{p!r} and {q!r}",
            instead="Samples(x.long()) for categories, or method='nearest_neighbors' for numbers",
        )
    codes_p, codes_q, categories = codes_of(p, q)
    return tabulate(codes_p, codes_q, categories, p, q)


def is_drawn(x: object) -> bool:
    """Return whether x is `Counts` of draws: integers without a prior, with at most `_MOST_DRAWS` draws in a row."""
    if not isinstance(x, Counts) or x.prior or not can_inspect(x.tensor) or _has_too_many(x):
        return False
    counts = x.tensor.detach()
    return not counts.is_floating_point() or bool((counts == counts.round()).all())


def _has_too_many(x: Counts) -> bool:
    return bool((x.weights().detach().double().sum(-1) > _MOST_DRAWS).any())


def table_of(p: Representation, q: Representation) -> CategoryCounts:
    """Return the counts of P and Q over the classes with draws; known probabilities count as `KNOWN` = 1e15 draws."""
    sides, sizes = [], []
    for side in (p, q):
        x = side.weights().detach().to(torch.float64)
        if isinstance(side, Counts):
            sizes.append(number_of_draws(x.sum(-1)))
        else:
            x = x.softmax(-1) if side.in_logs else x / x.sum(-1, keepdim=True)
            x = KNOWN * x
            sizes.append(0)
        sides.append(x)
    a, b = torch.broadcast_tensors(*sides)
    shown = (a + b > 0).reshape(-1, a.shape[-1]).any(0)
    return CategoryCounts(a[..., shown], b[..., shown], n=(sizes[0], sizes[1]))


def drawn_one_by_one(call: str, x: Any) -> Any:
    """Return `Counts` of shape (K,) as `Samples` of class labels, or of class numbers; return any other x unchanged."""
    if not isinstance(x, Counts):
        return x
    _check_whole(call, x)
    counts = x.weights()
    total, several = float(counts.detach().double().sum()), counts.ndim > 1
    if several or total > _MOST_SAMPLES:
        wanted = "one row of counts" if several else f"at most {_MOST_SAMPLES:,} draws"
        raise invalid_value(
            call,
            "p, q",
            wanted=f"{wanted} if the other side is draws",
            got=f"{x!r}" if several else f"{x!r} of {total:.3g} draws",
            instead=f"{call}(Counts(torch.bincount(x)), q), counts on both sides",
        )
    repeats = counts.detach().to("cpu", torch.int64)
    if x.labels is None:
        return Samples(
            torch.repeat_interleave(torch.arange(len(repeats), device="cpu"), repeats).to(counts.device),
            independent=True,
        )
    if not (
        all(isinstance(label, str) for label in x.labels)
        or all(isinstance(label, Number) for label in x.labels)
    ):
        raise invalid_value(
            call,
            "p, q",
            wanted="labels that are all text or all numbers if the other side is draws",
            got=f"{', '.join(map(safe_repr, x.labels[:3]))}",
            instead=f"{call}(p, Counts(collections.Counter(y))) of the draws y, counts on both sides",
        )
    return Samples(np.repeat(np.asarray(x.labels), repeats.numpy()), independent=True)


def number_of_draws(total: Tensor) -> int | Tensor:
    """Return the number of draws of each row: an int if all are equal, else a tensor, float64 if int64 is too small."""
    first = total.flatten()[0]
    if bool((total == first).all()):
        return int(first)
    return total.to(torch.int64) if float(total.max()) < 2.0**63 else total


def _check_whole(call: str, *sides: Counts) -> None:
    for x in sides:
        if not is_drawn(x):
            problem = (
                f" of more than {_MOST_DRAWS:g} draws"
                if _has_too_many(x)
                else " of numbers that are not whole"
            )
            raise invalid_value(
                call,
                "p, q",
                wanted=f"counts of draws: whole numbers without a prior, with a sum of at most {_MOST_DRAWS:g}",
                got=f"{x!r} with prior={x.prior:g}" if x.prior else f"{x!r}{problem}",
                instead="kl_divergence(p, q), the divergence of the proportions, which has no interval",
            )


def tabulate(
    codes_p: Tensor, codes_q: Tensor, categories: int, p: Draws, q: Draws, *, bins: bool = False
) -> CategoryCounts:
    """Return the effective counts of the codes 0, ..., categories - 1 in P's draws and in Q's draws."""
    a, b = _effective_counts(codes_p, categories, p), _effective_counts(codes_q, categories, q)
    of_p, of_q = kl_influence(a, b)
    (in_p, groups_p), (in_q, groups_q) = _inflation(codes_p, of_p, a, p), _inflation(codes_q, of_q, b, q)
    skewness, spread = 0.0, 1.0
    notes: tuple[str, ...] = ()
    if not (p.is_plain and q.is_plain):
        if p.is_heavy or q.is_heavy:
            skewness = _skewness((codes_p, of_p, a, p), (codes_q, of_q, b, q))
        spread = _spread(codes_p, codes_q, a, b, p, q)
        notes = tuple(
            f"{name}'s {units} carry the information of about {shown(x.sum())} independent draws."
            for name, x, side in ((SIDE_P, a, p), (SIDE_Q, b, q))
            if (units := _unequal_units(side))
        )
    sizes = len(p), len(q)
    return CategoryCounts(
        a, b, (in_p, in_q), spread, sizes, notes, bins, groups=(groups_p, groups_q), skewness=skewness
    )


def _unequal_units(side: Draws) -> str:
    """Return the user's clusters, or draws with heavy weights, as words for a note; otherwise an empty string."""
    if side.cluster is None:
        return f"{len(side):,} draws of unequal weights" if side.is_heavy else ""
    # If the user named no clusters, the clusters come from the serial dependence of the draws. Another note has then
    # already stated the effective number of draws.
    return f"{side.groups} clusters" if side.samples is None or side.samples.cluster is not None else ""


def _spread(codes_p: Tensor, codes_q: Tensor, a: Tensor, b: Tensor, p: Draws, q: Draws) -> float:
    """Return the variance of the estimate at P = Q, divided by the variance if all design effects were equal.

    At P = Q, the estimate is half a sum of squares of correlated errors. Its variance follows from the eigenvalues of
    their covariance, by the second-order correction of Rao and Scott (1981) with Satterthwaite's approximation.
    """
    present = a + b > 0
    pooled = ((a / a.sum() + b / b.sum()) / 2)[present]
    place = torch.cumsum(present, 0) - 1
    number = len(pooled)
    if not 2 <= number <= _MOST_FOR_SPREAD:
        return 1.0
    covariance = torch.zeros(number, number, dtype=torch.float64, device="cpu")
    # With few units, or few heavy ones, the eigenvalues have a large sampling error. `factor` increases the result for
    # this reason.
    squares, factor = 0.0, 1.0
    for codes, counts, samples in ((codes_p, a, p), (codes_q, b, q)):
        if samples.is_plain:
            root = pooled.sqrt()
            of_side = (
                torch.eye(number, dtype=torch.float64, device="cpu") - torch.outer(root, root)
            ) / counts.sum().cpu()
        elif samples.cluster is None:
            shares = shares_of(samples, counts)
            proportions = torch.bincount(place[codes], shares, minlength=number).cpu()
            squares_in = torch.bincount(place[codes], shares.square(), minlength=number).cpu()
            both = torch.outer(squares_in, proportions)
            of_side = torch.diag(squares_in) - both - both.T
            of_side += squares_in.sum() * torch.outer(proportions, proportions)
            root = pooled.cpu().sqrt()
            of_side = of_side / torch.outer(root, root)
            alike = effective_number(shares, len(shares))
            squares -= float(torch.trace(of_side)) ** 2 / alike
            factor = max(factor, student_ratio(0.95, max(alike, 2.0)) ** 2)
        else:
            shares = shares_of(samples, counts)
            clusters = samples.groups
            index = tensor_in_place(samples.cluster).to(codes.device) * number + place[codes]
            table = torch.bincount(index, shares, minlength=clusters * number).reshape(clusters, number).cpu()
            errors = (table - torch.outer(table.sum(1), table.sum(0))) / pooled.cpu().sqrt()
            sizes = table.sum(1)
            of_side = errors.T @ errors * (cluster_correction(sizes) if clusters > 1 else 1.0)
            alike = effective_number(sizes, clusters)
            squares -= float(torch.trace(of_side)) ** 2 / alike
            factor = max(factor, student_ratio(0.95, max(alike, 2.0)) ** 2)
        covariance += of_side
    trace = float(torch.trace(covariance))
    squares += float(covariance.square().sum())
    return factor * max(squares * (number - 1) / trace**2, 1.0) if trace > 0 else 1.0


def codes_of(p: Draws, q: Draws) -> tuple[Tensor, Tensor, int]:
    """Return the codes of P's draws and of Q's draws, which are integers from 0 on, and the number of categories."""
    n = len(p)
    if p.labels is not None and q.labels is not None:
        labels, places = np.unique(np.array([*p.labels, *q.labels]), return_inverse=True)
        place = torch.from_numpy(places).to(p.tensor.device)
        first, second = place[: len(p.labels)], place[len(p.labels) :]
        return first[p.tensor[:, 0]], second[q.tensor[:, 0].to(place.device)], len(labels)
    rows = torch.cat([p.tensor, q.tensor.to(p.tensor.device)])
    distinct, codes = torch.unique(rows[:, 0], return_inverse=True)
    for column in rows.unbind(1)[1:]:
        values, places = torch.unique(column, return_inverse=True)
        distinct, codes = torch.unique(codes * values.numel() + places, return_inverse=True)
    return codes[:n], codes[n:], distinct.numel()


def _effective_counts(codes: Tensor, categories: int, samples: Draws) -> Tensor:
    """Return the proportion of each category times the effective number of draws, shape (categories,)."""
    if samples.is_plain:
        return torch.bincount(codes, minlength=categories).to(torch.float64)
    shares = shares_of(samples, codes.new_zeros((), dtype=torch.float64))
    proportions = torch.bincount(codes, shares, minlength=categories)
    if samples.cluster is None:
        sizes, number = shares, _weighted_number(codes, shares, proportions)
    else:
        cluster = tensor_in_place(samples.cluster).to(codes.device)
        sizes = torch.bincount(cluster, shares)
        number = _clustered_number(codes, shares, proportions, cluster)
    # A unit with much of the weight determines the proportion of its own category, so the design effect hides it.
    if is_heavy(shares, len(shares)) and _has_outlier(codes, shares, proportions):
        number = min(number, effective_number(shares, len(shares)))
    alike = effective_number(sizes, len(sizes))
    return proportions * (min(number, alike) if alike < min(_FEW_UNITS, len(sizes) / 2) else number)


def _has_outlier(codes: Tensor, shares: Tensor, proportions: Tensor) -> bool:
    """Return whether the weight of a draw exceeds `_OUTLIER` times the mean of the others in its category.

    A draw that is alone in its category is compared with all other draws.
    """
    others = torch.bincount(codes, minlength=len(proportions))[codes] - 1
    mean = torch.where(
        others > 0, (proportions[codes] - shares) / others.clamp(min=1), (1 - shares) / (len(shares) - 1)
    )
    return bool((shares > _OUTLIER * mean).any())


def _weighted_number(codes: Tensor, shares: Tensor, proportions: Tensor) -> float:
    """Return the effective number of weighted draws: their number divided by the mean design effect of the proportions.

    With weights that do not depend on the category, the result is Kish's effective sample size.
    """
    dof = int((proportions > 0).sum()) - 1
    if dof < 1:
        return effective_number(shares, len(shares))
    squares = torch.bincount(codes, shares.square(), minlength=proportions.numel())
    ratios = torch.where(proportions > 0, squares / proportions, 0.0)
    between = float(ratios.sum() - squares.sum())
    return min(dof / between, len(codes)) if between > 0 else float(len(codes))


def _clustered_number(codes: Tensor, shares: Tensor, proportions: Tensor, cluster: Tensor) -> float:
    r"""Return the effective number of clustered draws, from the mean design effect of the proportions.

    The result is :math:`(K - 1) / f (\sum_{ci} A_{ci}^2 / p_i - \sum_c A_c^2)`, with K categories with draws, the
    proportion :math:`p_i` of category i, and the `cluster_correction` f. Cluster c has the weight :math:`A_c`, and
    :math:`A_{ci}` in category i. The analysis of categorical data from complex sample surveys (Rao and Scott, 1981)
    """
    clusters, n = int(cluster.max()) + 1, len(codes)
    dof = int((proportions > 0).sum()) - 1
    if clusters < 2 or dof < 1:
        return float(clusters)
    pairs, place = torch.unique(cluster * proportions.numel() + codes, return_inverse=True)
    weight = torch.bincount(place, shares)
    spread = (weight.square() / proportions[pairs % proportions.numel()]).sum()
    sizes = torch.bincount(cluster, shares)
    between = float(spread - sizes.square().sum()) * cluster_correction(sizes)
    return min(dof / between, n) if between > 0 else float(n)


def _terms(codes: Tensor, influence: Tensor, x: Tensor, samples: Draws) -> tuple[Tensor, Tensor]:
    """Return the term of each draw, and of each cluster, in the mean influence; the sum of the terms is 0."""
    terms = shares_of(samples, x) * (influence - (x * influence).sum() / x.sum())[codes]
    if samples.cluster is None:
        return terms, terms
    return terms, torch.bincount(tensor_in_place(samples.cluster).to(terms.device), terms)


def _skewness(*sides: tuple[Tensor, Tensor, Tensor, Draws]) -> float:
    r"""Return the third moment of the estimate divided by its variance, :math:`\sum_i t_i^3 / \sum_i t_i^2`.

    The terms t are those of the draws, or clusters, of all sides; the third moment leaves out sides without heavy
    weights. `sides` are the arguments of `_terms`.
    """
    third = variance = 0.0
    for side in sides:
        terms = _terms(*side)[1]
        third += float(terms.pow(3).sum()) if side[3].is_heavy else 0.0
        variance += float(terms.square().sum())
    return third / variance if variance > 0 else 0.0


def _inflation(codes: Tensor, influence: Tensor, x: Tensor, samples: Draws) -> tuple[float, float]:
    """Return the variance of the mean influence, divided by this variance for `x.sum()` independent draws.

    `codes` has the category of each draw. `influence` and `x` have the influence of a draw in each category, and the
    effective count of each category. The second number is the effective number of clusters, or of draws with different
    weights; it is infinite without clusters and weights.
    """
    if samples.is_plain:
        return 1.0, math.inf
    terms, of_units = _terms(codes, influence, x, samples)
    independent = (x * influence.square()).sum() / x.sum() ** 2
    ratio = float(variance_of_sum(terms, samples.cluster) / independent) if independent > 0 else 1.0
    # With few heavy draws or clusters, the variance has a large sampling error.
    squares = of_units.square()
    dof = dof_of_squares(float(squares.sum()), float(squares.square().sum()), squares.numel())
    return max(ratio, 1.0) * student_ratio(0.95, 1 + dof) ** 2, 1 + dof


def dof_of_squares(total: float, fourth: float, clusters: int) -> float:
    """Return the degrees of freedom of a variance, from the sum of its clusters' squares and of the fourth powers."""
    rest = fourth - total**2 / clusters
    return min(clusters - 1.0, max(2 * total**2 / rest, 2.0)) if rest > 0 else clusters - 1.0
