"""`Draws`: checked draws with weights and clusters, their checks, and the variance of sums over such draws."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.rounding_errors import without_rounding_errors
from kullback.errors import P, Q, invalid_type, invalid_value
from kullback.samples import Samples

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

# With these numbers of draws of each side, a neighbor search takes a few seconds (`benchmarks/bench_neighbors.py`). The
# keys of `_AFFORDABLE` are numbers of dimensions. `_AFFORDABLE_BY_PRODUCTS` is for more than ten dimensions.
_AFFORDABLE = {6: 30_000, 7: 15_000, 8: 10_000, 9: 8000, 10: 6000}
_AFFORDABLE_BY_PRODUCTS = 20_000
# Values up to this limit have finite fourth powers in float64, whose largest number is about 1e308.
_HUGE = 1e75
# Unequal integer weights with a mean of at least this number are probably counts, because users often scale weights to
# mean 1.
_LARGEST_MEAN_WEIGHT = 2


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws that have passed the checks of `checked`, without draws of weight 0.

    Attributes:
        tensor: the draws, shape (n, d): floating-point numbers, or integers that are codes of categories.
        weights: the weight of each draw, shape (n,); None if all weights are equal.
        cluster: the number of each draw's cluster, from 0 without gaps, shape (n,); None without clusters.
        labels: the text of each category; None for numbers.
        columns: the names of the components; None for components without names.
        independent: whether the user states that the draws are independent; if True, the draws are not tested for
            serial dependence.
        number: the number of draws, including draws of weight 0.
        rows: the index of each draw in the user's `Samples`; None if no draw was left out.
        merged: the number of draws that were changed, because they differed from another draw by a rounding error.
        exponent: the number e if the first component was divided by 2^e, because its values are huge or tiny; otherwise
            0.
        device: the device of the user's tensor.
        samples: the user's `Samples`.

    Example:
        >>> from kullback import Samples
        >>> draws = Draws.of(Samples([1.0, 2.0, 3.0], weights=[1, 0, 2]))
        >>> draws.x[:, 0].tolist(), draws.weights.tolist()
        ([1.0, 3.0], [1.0, 2.0])
    """

    tensor: Tensor
    weights: Array | None = None
    cluster: Integers | None = None
    labels: tuple[str, ...] | None = None
    columns: tuple[object, ...] | None = None
    independent: bool = False
    number: int = 0
    rows: Integers | None = None
    exponent: int = 0
    merged: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    samples: Samples | None = None

    @classmethod
    def of(cls, samples: Samples | Draws) -> Draws:
        """Return `samples` as `Draws`, without draws of weight 0, because they were not observed."""
        if isinstance(samples, Draws):
            return samples
        tensor, rows = samples.tensor.detach(), None
        weights = None if samples.weights is None else samples.weights.cpu().numpy()
        cluster = None if samples.cluster is None else samples.cluster.cpu().numpy()
        if weights is not None and not (weights > 0).all():
            rows = np.flatnonzero(weights > 0)
            tensor, weights = tensor[torch.from_numpy(rows).to(tensor.device)], weights[rows]
            cluster = None if cluster is None else np.unique(cluster[rows], return_inverse=True)[1]
        return cls(
            *(tensor, weights, cluster, samples.labels, samples.columns, samples.independent, len(samples)),
            *(rows, 0, 0, samples.tensor.device, samples),
        )

    def __len__(self) -> int:
        return len(self.tensor)

    def __repr__(self) -> str:
        return (
            f"Draws(n={len(self)}, d={self.tensor.shape[1]})" if self.samples is None else repr(self.samples)
        )

    @cached_property
    def discrete(self) -> bool:
        """Whether the draws are categories."""
        return not self.tensor.is_floating_point()

    @cached_property
    def x(self) -> Array:
        """The draws as a float64 array of shape (n, d)."""
        return self.tensor.to("cpu", torch.float64).numpy()

    @cached_property
    def distinct(self) -> tuple[Array, Integers, Integers]:
        """The sorted distinct values of the first component, the index of each draw's value, and the values' counts."""
        values, places, counts = np.unique(self.x[:, 0], return_inverse=True, return_counts=True)
        return values, places, counts

    def at(self, x: Array | Integers) -> Draws:
        """Return a copy of the draws with the coordinates or codes x, shape (n, d)."""
        return replace(self, tensor=torch.from_numpy(x))

    def taken(self, index: Integers) -> Draws:
        """Return the draws with the indices `index`, in the order of `index`."""
        weights = None if self.weights is None else self.weights[index]
        cluster = None if self.cluster is None else self.cluster[index]
        if self.discrete:
            tensor = self.tensor[torch.from_numpy(index).to(self.tensor.device)]
        else:
            tensor = torch.from_numpy(self.x[index]).to(self.tensor.dtype)
        return replace(self, tensor=tensor, weights=weights, cluster=cluster)

    @cached_property
    def order(self) -> Integers:
        """The indices that sort the draws by their values and, if values are equal, by weight and cluster."""
        ties = [key for key in (self.cluster, self.weights) if key is not None]
        return np.lexsort((*ties, *self.x.T[::-1]))

    def chosen(self, number: int, rng: np.random.Generator) -> Integers:
        """Return the sorted indices of `number` random draws; the same draws are chosen for any order of the draws."""
        return np.sort(self.order[rng.choice(len(self), number, replace=False)])

    def thinned(self, number: int, rng: np.random.Generator) -> Draws:
        """Return at most `number` of the draws, chosen at random, in their original order."""
        return self if len(self) <= number else self.taken(self.chosen(number, rng))

    @property
    def is_plain(self) -> bool:
        """Whether the draws have neither weights nor clusters."""
        return self.weights is None and self.cluster is None

    @property
    def shares(self) -> Array:
        """The weights, shape (n,), normalized to sum 1."""
        return (
            np.full(len(self), 1 / len(self)) if self.weights is None else self.weights / self.weights.sum()
        )

    @property
    def units(self) -> Integers:
        """The number of each draw's cluster, from 0 without gaps, shape (n,); without clusters, 0, ..., n - 1."""
        if self.cluster is None:
            return np.arange(len(self))
        return np.unique(self.cluster, return_inverse=True)[1]

    @property
    def groups(self) -> int:
        """The number of clusters or, without clusters, of draws."""
        return len(self) if self.cluster is None else len(np.unique(self.cluster))

    @property
    def clusters(self) -> int | None:
        """The number of clusters; None without clusters."""
        return None if self.cluster is None else self.groups

    @property
    def effective(self) -> float:
        """Kish's effective sample size of the weights."""
        return effective_number(self.weights, self.tensor.shape[0])

    @property
    def is_heavy(self) -> bool:
        """Whether the weights are so unequal that the effective number of draws is below half their number."""
        return self.weights is not None and is_heavy(self.weights, len(self))

    def variance(self, influence: Array) -> float:
        """Return the variance of the sum of `influence`, shape (n,), where draws within a cluster may be dependent."""
        return float(variance_of_sum(torch.from_numpy(influence), self.cluster))


def affordable_draws(d: int) -> int | None:
    """Return the number of draws that a neighbor search in d dimensions handles in seconds; None below 6 dimensions.

    From 6 to 10 dimensions, a tree visits more of its leaves in each further dimension. Above, it is not used.
    """
    return _AFFORDABLE.get(d, None if d < min(_AFFORDABLE) else _AFFORDABLE_BY_PRODUCTS)


def without_noise(*sides: Draws) -> list[Draws]:
    """Return the draws of all sides; numbers that differ by rounding errors only become equal on all sides."""
    if sides[0].discrete:
        return list(sides)
    columns = list(np.concatenate(list(map(operator.attrgetter("x"), sides))).T)
    equal = list(map(without_rounding_errors, columns))
    if all(map(operator.is_, equal, columns)):
        return list(sides)
    parts = np.split(np.stack(equal, 1), np.cumsum([len(side) for side in sides])[:-1])
    return [
        replace(
            side,
            tensor=torch.from_numpy(part).to(side.tensor.dtype),
            merged=int((part != side.x).any(1).sum()),
        )
        for side, part in zip(sides, parts, strict=True)
    ]


def steps_between_ties(places: Integers, counts: Integers) -> Array:
    """Return for each draw a number in (-1/2, 1/2); the numbers of draws with equal `places` are evenly spaced."""
    order = np.argsort(places, kind="stable")
    rank = np.empty(len(places))
    rank[order] = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
    return (rank + 0.5) / counts[places] - 0.5


def in_usual_units(p: Draws, q: Draws) -> tuple[Draws, Draws]:
    """Return both samples with columns of huge or tiny values divided by a power of two: products would overflow."""
    if p.discrete or q.discrete or p.tensor.shape[1] != q.tensor.shape[1]:
        return p, q
    largest = np.maximum(np.abs(p.x).max(0), np.abs(q.x).max(0))
    is_extreme = (largest > 0) & (largest < np.inf) & ((largest > _HUGE) | (largest < 1 / _HUGE))
    if not is_extreme.any():
        return p, q
    exponent = np.where(is_extreme, np.frexp(largest)[1], 0)
    p, q = (
        replace(side.at(np.ldexp(side.x, -exponent)), exponent=side.exponent + int(exponent[0]))
        for side in (p, q)
    )
    return p, q


def shares_of(samples: Samples | Draws, like: Tensor) -> Tensor:
    """Return the weights of draws, shape (n,), normalized to sum 1, in the dtype and on the device of `like`."""
    if samples.weights is None:
        return torch.full((len(samples),), 1 / len(samples), dtype=like.dtype, device=like.device)
    weights = tensor_in_place(samples.weights).to(like)
    return weights / weights.sum()


def tensor_in_place(x: Any) -> Tensor:
    """Return a tensor unchanged, and an array as a tensor on the CPU, even if torch has another default device."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu")


def effective_number(weights: Tensor | Array | None, n: int) -> float:
    r"""Return the effective sample size of n draws with these weights, :math:`(\sum w)^2 / \sum w^2`.

    Survey Sampling (Kish, 1965)
    """
    if weights is None:
        return float(n)
    weights = tensor_in_place(weights)
    return float(weights.sum() ** 2 / weights.square().sum())


def is_heavy(weights: Tensor | Array | None, n: int) -> bool:
    """Return whether n draws with these weights have an effective number below n / 2."""
    return effective_number(weights, n) < n / 2


def variance_of_sum(terms: Tensor, cluster: Tensor | Integers | None = None) -> Tensor:
    r"""Return the variance of a sum of terms with mean 0, where terms of the same cluster may be dependent.

    .. math:: f \sum_{c=1}^C \Bigl(\sum_{i \in c} t_i\Bigr)^2

    where t are the terms, C is the number of clusters, and f is the `cluster_correction`, which is :math:`C / (C - 1)`
    for clusters of equal size. Without clusters, each term is a cluster. The variance is infinite for fewer than two
    clusters. Longitudinal data analysis using generalized linear models (Liang and Zeger, 1986)
    """
    sizes = torch.ones_like(terms)
    if cluster is not None:
        cluster = tensor_in_place(cluster).to(terms.device)
        sizes = torch.bincount(cluster).to(terms.dtype)
        terms = terms.new_zeros(len(sizes)).index_add(0, cluster, terms)
    if int((sizes > 0).sum()) < 2:
        return torch.full_like(terms.sum(), torch.inf)
    return terms.square().sum() * cluster_correction(sizes)


def cluster_correction(sizes: Any) -> float:
    r"""Return the factor f of `variance_of_sum` that makes the variance unbiased, infinite for a single cluster.

    The terms are deviations from a mean over the same draws, so the sum of squares is too small. For proportions
    :math:`s_c` of the draws, the factor is :math:`\sum_c s_c^2 / \sum_c s_c^2 (1 - 2 s_c + \sum_b s_b^2)`.
    """
    shares = sizes / sizes.sum()
    squares = shares**2
    rest = float((squares * (1 - 2 * shares + squares.sum())).sum())
    return float(squares.sum()) / rest if rest > 0 else float("inf")


def shown(number: Tensor | float) -> str:
    """Return an effective number of draws as text with three significant digits, for a note.

    Example:
        >>> shown(1163.8), shown(81.27)
        ('1,160', '81.3')
    """
    return f"{float(f'{float(number):.3g}'):,.12g}"


def number_from_scores(scores: Array, draws: Draws) -> float:
    """Return the effective sample size for the means of J scores of n draws; `scores` has the shape (n, J).

    The result is Kish's effective sample size divided by the design effect. The design effect is the variance of the
    means with clusters, divided by their variance without clusters. Both variances are summed over the J scores.
    """
    if draws.cluster is None:
        return draws.effective
    shares = draws.shares[:, None]
    terms = shares * (scores - (shares * scores).sum(0))
    units = draws.units
    sums = np.stack([np.bincount(units, column) for column in terms.T])
    effect = float(np.square(sums).sum() / np.square(terms).sum())
    return draws.effective / max(effect, 1.0)


def checked(call: str, p: object, q: object, *, finite: bool = True) -> tuple[Draws, Draws]:
    """Return the checked draws of both sides.

    An error is raised for sides with different numbers of components, for categories on one side and numbers on the
    other, and for labels on one side only. An error is also raised for weights that look like counts. If `finite`,
    infinite draws raise an error, too. Draws that differ by rounding errors only become equal, and columns of huge or
    tiny values are rescaled.
    """
    if isinstance(p, Draws) and isinstance(q, Draws):
        return p, q
    for name, draws in (("p", p), ("q", q)):
        if not isinstance(draws, Samples):
            raise invalid_type(
                call,
                name,
                wanted="draws",
                got=type(draws).__name__,
                instead=f"{call}(Samples(x), Samples(y))",
            )
    p, q = cast("Samples", p), cast("Samples", q)
    _check_space(call, p, q)
    first, second = checked_side(call, "p", p, finite=finite), checked_side(call, "q", q, finite=finite)
    return in_usual_units(*without_noise(first, second)) if finite else (first, second)


def checked_side(call: str, name: str, samples: Samples | Draws, *, finite: bool = True) -> Draws:
    """Return the draws of one side; raise for weights that look like counts and, if `finite`, for infinite draws."""
    if isinstance(samples, Draws):
        return samples
    _check_weights(call, name, samples)
    bad = ~samples.tensor.isfinite().all(-1)
    if finite and bool(bad.any()):
        raise invalid_value(
            call,
            name,
            wanted="finite draws",
            got=f"{int(bad.sum())} of {len(samples)} with an infinity or NaN, the first at index "
            f"{int(bad.int().argmax())}",
            instead="Samples(x[x.isfinite()]) for numbers, or Samples(x[x.isfinite().all(-1)]) for vectors",
        )
    return Draws.of(samples)


def _check_space(call: str, p: Samples, q: Samples) -> None:
    if p.tensor.shape[1] != q.tensor.shape[1]:
        raise invalid_value(
            call,
            "p, q",
            wanted="the same number of components in p and q",
            got=(
                *(f"{p.tensor.shape[1]} in ", P, f" of shape {tuple(p.tensor.shape)}, "),
                *(f"{q.tensor.shape[1]} in ", Q, f" of shape {tuple(q.tensor.shape)}"),
            ),
            instead="Samples(x, dim=0) for the side whose draws are columns"
            if p.tensor.shape[1] == len(q) or q.tensor.shape[1] == len(p)
            else "Samples(x[:, columns]) with the columns that both have",
        )
    if p.columns is not None and q.columns is not None and p.columns != q.columns:
        raise invalid_value(
            call,
            "p, q",
            wanted="the same columns in the same order in p and q",
            got=(f"columns {list(p.columns)} in ", P, f" and {list(q.columns)} in ", Q),
            instead="Samples(y[list(x.columns)]) as q, for frames x and y, to match columns by name; or "
            "Samples(x.to_numpy()) and Samples(y.to_numpy()) to match them by position",
        )
    if p.tensor.is_floating_point() != q.tensor.is_floating_point() or (p.labels is None) != (
        q.labels is None
    ):
        raise invalid_value(
            call,
            "p, q",
            wanted="categories (integers, booleans, strings) in both or floating-point numbers in both",
            got=f"{p!r} and {q!r}",
            instead="Samples(x.double()) to read integers as numbers"
            if p.labels is q.labels is None
            else "the same column in p and q; Samples([float(text) for text in x]) to read text as numbers",
        )


def _check_weights(call: str, name: str, samples: Samples) -> None:
    """Raise an error for weights that look like counts, because each value would count as a single weighted draw."""
    if samples.weights is None or samples.cluster is not None:
        return
    positive = samples.weights > 0
    weights = samples.weights[positive]
    is_whole = bool((weights == weights.round()).all()) and bool((weights != weights[0]).any())
    if not is_whole or float(weights.mean()) < _LARGEST_MEAN_WEIGHT:
        return
    draws = samples.tensor[positive.to(samples.tensor.device)]
    if len(torch.unique(draws, dim=0)) < len(draws):
        return
    raise invalid_value(
        call,
        name,
        wanted="a row for each draw, and weights that are not counts",
        got=f"{len(draws)} different values with whole weights of sum {float(weights.sum()):.10g}, like counts",
        instead="Samples(np.repeat(x, counts), independent=True), or Counts(counts, labels=x) for categories; "
        "Samples(x, weights=w / w.sum()) if each value is one draw with this weight",
    )
