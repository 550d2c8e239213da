"""Exact searches for nearest neighbors: by sorting on a line, by a k-d tree in few dimensions, else by matrix products.

Each search returns one `KNearest` for every number of neighbors k.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from kullback.common.progress import progress_bar
from kullback.estimators.draws import Array, Integers

Block = tuple[slice, Array, Integers]

# `benchmarks/bench_neighbors.py` measures the time of each search.

# From this number of dimensions on, a tree search visits nearly every leaf, and matrix products are faster.
_TREE_DIMENSIONS = 11
# A tree search handles blocks of `_QUERIES` queries, which limits the memory. A search on a line handles blocks of
# `_IN_CACHE` queries, because such a block fits into the cache.
_QUERIES = 2**15
_IN_CACHE = 2**14
# In a search by matrix products, the distances of the k + `_SPARE` nearest draws are computed again without
# cancellation.
_SPARE = 4
# In a search by matrix products, a block of distances has at most this number of bytes, which limits the memory.
_BLOCK_BYTES = {"cpu": 2**26, "cuda": 2**30}


class KNearest(NamedTuple):
    """The log-distance of each query to its k-th nearest draw.

    `occurrence` has the total weight of the queries with each draw among their k nearest. `log_weight` is the logarithm
    of the neighbors' relative mean weight, corrected for bias; None if all weights are equal.
    """

    log_radius: Array
    occurrence: Array
    log_weight: Array | None


def spatial_order(draws: Array) -> Integers:
    """Return a permutation that puts neighboring draws next to each other in memory, which makes searches faster."""
    from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

    if draws.shape[1] == 1:
        return np.argsort(draws[:, 0])
    return cKDTree(draws, balanced_tree=False).indices


def _log_distance(distance: Array) -> Array:
    """Replace distances by their logarithms in place, and return them; a distance of 0 gives -inf."""
    with np.errstate(divide="ignore"):
        return np.log(distance, out=distance)


def search_line(
    reference: Array,
    queries: Array,
    ks: tuple[int, ...],
    *,
    own: bool,
    weights: Array | None = None,
    query_weights: Array | None = None,
) -> list[KNearest]:
    """Return, for each k, the neighbors of sorted queries among sorted draws; with `own`, both are the same draws."""
    place = np.arange(len(reference)) if own else np.searchsorted(reference, queries)
    nearest: list[KNearest] = []
    for k in ks:
        start, radius = _on_a_line(reference, queries, place, k + own)
        occurrence = _covered(start, k + own, len(reference), query_weights)
        if own:
            occurrence -= 1.0 if query_weights is None else query_weights
        nearest.append(
            KNearest(_log_distance(radius), occurrence, _window_weight(weights, start, k, own=own))
        )
    return nearest


def _on_a_line(reference: Array, queries: Array, place: Integers, k: int) -> tuple[Integers, Array]:
    """Return the index of the first of each query's k nearest sorted draws, and the distance to the k-th nearest draw.

    A window of k draws moves right from `place - k` while the sum of the draw that leaves and the draw that enters is
    below twice the query. This sum increases, so bisection finds the last position.
    """
    steps = [2**i for i in range(k.bit_length())][::-1]
    below, above = np.full(k, -np.inf), np.full(2 * steps[0] + k, np.inf)
    padded = np.concatenate([below, reference, above])
    sums = padded[:-k] + padded[k:]
    start, radius = np.empty(len(queries), dtype=np.int64), np.empty(len(queries))
    for first in range(0, len(queries), _IN_CACHE):
        block = slice(first, first + _IN_CACHE)
        x, at = queries[block], place[block].copy()
        twice = 2 * x
        for step in steps:
            at += step * (sums[at + (step - 1)] < twice)
        radius[block] = np.maximum(x - padded[at], padded[at + (k - 1)] - x)
        start[block] = at
    start -= k
    return start, radius


def _covered(start: Integers, width: int, n: int, weights: Array | None) -> Array:
    """Return, for each of n sorted draws, the total weight of the windows that contain the draw, shape (n,)."""
    covered = np.cumsum(np.bincount(start, weights, n), dtype=np.float64)
    covered[width:] -= covered[:-width].copy()
    return covered


def _window_weight(weights: Array | None, start: Integers, k: int, *, own: bool) -> Array | None:
    if weights is None:
        return None
    sums = (np.concatenate([[0.0], np.cumsum(power)]) for power in (weights, weights**2))
    first, second = (total[start + (k + own)] - total[start] for total in sums)
    if own:
        first, second = first - weights, second - weights**2
    return _log_mean(first, second, k, float(weights.mean()))


def _log_mean(first: Array, second: Array, k: int, overall: float) -> Array:
    """Return log(mean of k weights / `overall`), from the sums of the weights and of their squares.

    The bias of the logarithm, minus half the squared relative error of the mean, is subtracted.
    """
    mean = first / k
    variance = np.maximum(second / k - mean**2, 0.0) * k / max(k - 1, 1)
    return np.log(mean / overall) + variance / (2 * k * mean**2)


def search_space(
    reference: Array,
    queries: Array,
    ks: tuple[int, ...],
    *,
    own: bool,
    weights: Array | None = None,
    query_weights: Array | None = None,
    device: torch.device,
) -> list[KNearest]:
    """Return, for each k, the neighbors of queries among draws, shape (n, d), both in any order."""
    n, deepest = len(queries), max(ks)
    radius, occurrence = np.empty((len(ks), n)), np.zeros((len(ks), len(reference)))
    log_weight = None if weights is None else np.empty((len(ks), n))
    for rows, distance, index in _blocks(reference, queries, deepest, device, own=own):
        for i, k in enumerate(ks):
            radius[i, rows] = distance[:, k - 1]
            share = None if query_weights is None else np.repeat(query_weights[rows], k)
            occurrence[i] += np.bincount(index[:, :k].ravel(), share, len(reference))
            if log_weight is not None and weights is not None:
                near = weights[index[:, :k]]
                total, squares = near.sum(1), (near**2).sum(1)
                log_weight[i, rows] = _log_mean(total, squares, k, float(weights.mean()))
    return [
        KNearest(_log_distance(radius[i]), occurrence[i], None if log_weight is None else log_weight[i])
        for i in range(len(ks))
    ]


def nearest_among(draws: Array, number: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return, for each draw, the row numbers of the `number` nearest other draws, shape (n, number)."""
    nearest = np.empty((len(draws), number), dtype=np.int32)
    for rows, _, index in _blocks(draws, draws, number, torch.device("cpu"), own=True):
        nearest[rows] = index
    return nearest


def _blocks(reference: Array, queries: Array, k: int, device: torch.device, *, own: bool) -> Iterator[Block]:
    """Yield slices of queries, distances and row numbers of the k nearest draws, with a progress bar."""
    by_tree = device.type == "cpu" and reference.shape[1] < _TREE_DIMENSIONS
    search = _by_tree if by_tree else _by_products
    with progress_bar("neighbors") as update:
        for block in search(reference, queries, k, device, own=own):
            yield block
            if update:
                update(block[0].stop, len(queries))


def _by_tree(reference: Array, queries: Array, k: int, _: torch.device, *, own: bool) -> Iterator[Block]:
    """Yield blocks of neighbors from a k-d tree. With `own`, the first neighbor is the query itself and is left out."""
    from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

    tree = cKDTree(reference, balanced_tree=False)
    for start in range(0, len(queries), _QUERIES):
        rows = slice(start, min(start + _QUERIES, len(queries)))
        distance, index = tree.query(queries[rows], range(1, k + own + 1), workers=-1)
        yield rows, distance[:, int(own) :], index[:, int(own) :]


def _by_products(
    reference: Array, queries: Array, k: int, device: torch.device, *, own: bool
) -> Iterator[Block]:
    """Yield blocks of neighbors, from the squared distances |x|^2 + |y|^2 - 2 x y of all queries x and all draws y."""
    center = reference.mean(0)
    draws = torch.from_numpy(reference - center).to(device)
    squares = draws.square().sum(1)
    size = max(_BLOCK_BYTES[device.type] // (8 * len(reference)), 1)
    for start in range(0, len(queries), size):
        rows = slice(start, min(start + size, len(queries)))
        x = torch.from_numpy(queries[rows] - center).to(device)
        distance = torch.addmm(squares, x, draws.T, alpha=-2.0)
        if own:
            distance[
                torch.arange(len(x), device=device), torch.arange(rows.start, rows.stop, device=device)
            ] = torch.inf
        # For close points, the formula loses digits by cancellation. So the distances of k + `_SPARE` candidates are
        # computed again from differences.
        index = distance.topk(min(k + _SPARE, len(draws) - own), dim=1, largest=False).indices
        exact = (x[:, None, :] - draws[index]).square().sum(2).sqrt()
        exact, order = exact.topk(k, dim=1, largest=False)
        yield rows, exact.cpu().numpy(), index.gather(1, order).cpu().numpy()
