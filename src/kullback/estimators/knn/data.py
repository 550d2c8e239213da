"""Checks of draws for atoms, shared rows and dependent components, and the order of draws for the neighbor search."""

from __future__ import annotations

import math

import numpy as np
import torch

from kullback.errors import ArgumentValueError, P, Q, explain, invalid_type, invalid_value
from kullback.estimators.draws import Array, Draws
from kullback.estimators.evidence import SMALL_P, SMALL_Q
from kullback.estimators.knn.search import spatial_order
from kullback.estimators.surfaces import rank_of, sphere_chart, surface_of

_CALL = "nearest_neighbors"
# An error is raised if the proportion of tied draws is above `_MOST_TIED`, or if the proportion of P's draws in Q's
# sample is above `_MOST_SHARED`. A few ties can come from rounding; many ties would dominate the
# estimate. `tests/estimators/knn/test_knn.py` tests ties, and `tests/test_renamed_errors.py` tests shared draws.
_MOST_TIED = 0.05
_MOST_SHARED = 0.01


class RepeatedDrawsError(ArgumentValueError):
    """Draws of a continuous distribution contain equal values, for example because they were rounded."""


def _repeated(argument: str, *, wanted: str, got: str, instead: str) -> RepeatedDrawsError:
    return RepeatedDrawsError(explain(_CALL, argument, wanted=wanted, got=got, instead=instead))


def check_points(p: Draws, q: Draws) -> None:
    """Raise an error if draws are categories, which have no distances."""
    for name, draws in (("p", p), ("q", q)):
        if draws.discrete:
            raise invalid_type(
                _CALL,
                name,
                wanted="floating-point draws",
                got=f"{draws!r}, which are categories",
                instead="method='coverage_adjusted' for categories, Samples(x.double()) to read integers as numbers",
            )


def prepared(p: Draws, q: Draws) -> tuple[Draws, Draws, list[str]]:
    """Return both samples, ordered for the search and without components that are the same constant, and notes."""
    notes: list[str] = []
    p, q = _varying(p, q, notes)
    _check_numbers(p, q)
    p, q = _in_order(p, q)
    _check_ties(p, q, notes)
    return p, q, notes


def charted(p: Draws, q: Draws, dtypes: tuple[torch.dtype, ...], notes: list[str]) -> tuple[Draws, Draws]:
    """Return d - 1 coordinates of draws that are all on one sphere or ellipsoid; return other draws unchanged.

    `dtypes` are the original dtypes of the draws. A note on the coordinates is appended to `notes`.
    """
    surface = surface_of(p.x, *dtypes)
    if surface is None or surface.to_sphere is None or not surface.contains(q.x):
        return p, q
    x, y = sphere_chart(surface.to_sphere(p.x), surface.to_sphere(q.x))
    notes.append(
        f"All draws are on {surface.name}, which has one dimension less than the draws. Neighbors are searched in "
        "coordinates on it; KL is the same."
    )
    return _in_order(p.at(x), q.at(y))


def _in_order(p: Draws, q: Draws) -> tuple[Draws, Draws]:
    return _ordered(p), _ordered(q) if q.x.shape[1] == 1 else q


def _ordered(draws: Draws) -> Draws:
    """Return the draws, sorted if they have one component, and otherwise in the order of `spatial_order`."""
    if draws.x.shape[1] > 1:
        return draws.taken(spatial_order(draws.x))
    if draws.weights is None and draws.cluster is None:
        return draws.at(np.sort(draws.x, axis=0))
    return draws.taken(np.argsort(draws.x[:, 0]))


def _varying(p: Draws, q: Draws, notes: list[str]) -> tuple[Draws, Draws]:
    """Return the draws without components that are the same constant on both sides; raise for other constants."""
    if min(len(p), len(q)) < 2:
        return p, q
    fixed_p, fixed_q = ((draws.x == draws.x[0]).all(0) for draws in (p, q))
    same = fixed_p & fixed_q & (p.x[0] == q.x[0])
    wrong = np.flatnonzero((fixed_p | fixed_q) & ~same)
    if len(wrong):
        j = int(wrong[0])
        sides = (P, " and ", Q) if fixed_p[j] and fixed_q[j] else (P if fixed_p[j] else Q,)
        raise invalid_value(
            _CALL,
            "p, q",
            wanted="components that vary in p and in q: a constant component has no density, and KL is infinite",
            got=(f"the constant component {j} in ", *sides),
            instead="Samples(x[:, columns]) without this component, on both sides",
        )
    if bool(same.all()):
        raise invalid_value(
            _CALL,
            "p, q",
            wanted="at least one coordinate that varies",
            got=f"the same value in all draws of p and q: {p.x[0].tolist()}",
            instead="no estimate: all draws of p and q are equal",
        )
    if bool(same.any()):
        left_out = ", ".join(map(str, np.flatnonzero(same)))
        where = f"the same in {SMALL_P} and in {SMALL_Q}"
        notes.append(f"Component {left_out} is left out, because it is constant, {where}.")
    return p.at(p.x[:, ~same]), q.at(q.x[:, ~same])


def _check_numbers(p: Draws, q: Draws) -> None:
    d = p.x.shape[1]
    if len(p) < 2:
        raise invalid_value(_CALL, "p", wanted="at least 2 draws", got=f"{len(p)}", instead="more draws")
    if min(len(p) - 1, len(q)) < d:
        raise invalid_value(
            _CALL,
            "p, q",
            wanted="more draws than components",
            got=(f"{len(p)} draws of ", P, f" and {len(q)} of ", Q, f" with {d} components"),
            instead="Samples(x, dim=0), if each row has all draws of one component; else method='density_ratio', or "
            "Samples(x[:, columns]) with the few components that matter",
        )


def check_independent(p: Array, q: Array) -> None:
    """Raise an error if the points are in a plane of fewer than d dimensions, because then they have no density."""
    for name, points in (("p", p), ("q", q)):
        d = points.shape[1]
        scaled = (points - points.mean(0)) / np.maximum(points.std(0), np.finfo(np.float64).tiny)
        rank = d if d == 1 else rank_of(scaled)
        if rank == d:
            continue
        raise invalid_value(
            _CALL,
            name,
            wanted="independent components, because dependent ones have no density",
            got=f"{d} components of rank {rank}",
            instead="Samples(x[:, columns]) without the dependent columns, on both sides",
        )


def _check_ties(p: Draws, q: Draws, notes: list[str]) -> None:
    keys = [_sorted_keys(draws.x) for draws in (p, q)]
    place = np.minimum(np.searchsorted(keys[1], keys[0]), len(q) - 1)
    shared = int((keys[1][place] == keys[0]).sum())
    for name, side, key, draws in zip("pq", (SMALL_P, SMALL_Q), keys, (p, q), strict=True):
        _check_atoms(name, side, key, notes)
        _check_components(name, draws.x)
    if shared > max(_MOST_SHARED * len(p), 1):
        raise invalid_value(
            _CALL,
            "p, q",
            wanted="different draws in p and in q, because distributions are continuous",
            got=(f"{shared} of the {len(p)} draws of ", P, " that are also in ", Q, ", at distance 0"),
            instead="leave the common rows out of one side; Samples(x.long()) if the values are categories",
        )
    if shared:
        notes.append(
            f"{shared} draw(s) of {SMALL_P} are also in {SMALL_Q}, which lowers the estimate slightly."
        )


def _sorted_keys(x: Array) -> Array:
    """Return one number for each row of x, shape (n,), sorted.

    Equal rows have equal numbers. Distinct rows have different numbers, except by a rare coincidence.
    """
    if x.shape[1] == 1:
        return x[:, 0]
    key = np.zeros(len(x))
    for j in range(x.shape[1]):  # unlike this loop, a matrix product may round equal rows differently
        key += (1 + math.sqrt(j + 2) % 1) * x[:, j]
    return np.sort(key)


def _check_atoms(name: str, side: str, key: Array, notes: list[str]) -> None:
    equal = np.diff(key) == 0
    tied = int((np.concatenate([[False], equal]) | np.concatenate([equal, [False]])).sum())
    if tied > _MOST_TIED * len(key) and tied > 2:
        raise _repeated(
            name,
            wanted="draws of a continuous distribution, which do not repeat",
            got=f"{tied} of {len(key)} draws that have an equal one: rounded values, or an atom",
            instead="Samples(x.long()) if the values are categories, method='histogram' (vectors: 'density_ratio') if "
            "they are rounded",
        )
    if tied:
        notes.append(
            f"{tied} of the {len(key)} draws of {side} have an equal one, from an atom or rounding. The estimate "
            "treats them as a high density."
        )


def _check_components(name: str, x: Array) -> None:
    """Raise an error if more than `_MOST_TIED` of the draws have the same value in one component."""
    for j in range(x.shape[1] if x.shape[1] > 1 else 0):
        column = np.sort(x[:, j])
        starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
        lengths = np.diff(np.append(starts, len(column)))
        longest = int(lengths.argmax())
        value = column[starts[longest]] + 0.0  # -0.0 becomes 0.0
        if lengths[longest] > max(_MOST_TIED * len(column), 2):
            raise _repeated(
                name,
                wanted="components of continuous distributions, without repeated values",
                got=f"the value {value:g} in component {j} of {lengths[longest]} of {len(column)} draws",
                instead="method='density_ratio', or Samples(x[:, columns]) without this component",
            )
