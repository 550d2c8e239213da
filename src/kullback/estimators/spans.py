"""Draws of vectors whose components depend on each other, such as proportions (which sum to 1) and unit vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kullback.estimators.draws import Array, Draws, Integers, in_usual_units
from kullback.estimators.evidence import SIDE_P, SIDE_Q
from kullback.estimators.surfaces import surface_of

# A component counts as a linear combination of others if its relative error as such a combination is at most this
# number. Sums stored in float32 have a rounding error of 6e-8 for each term; `benchmarks/coverage.py` has such sums.
_FLAT = 1e-6


@dataclass(frozen=True)
class Span:
    """The draws of both sides without components that follow linearly from other components.

    Attributes:
        p: P's draws with the remaining components.
        q: Q's draws with the remaining components.
        notes: notes on the components that were left out, if any.
        infinite: a note on an infinite KL if a plane or surface has all draws of one side and no draw of the other;
            otherwise empty.
    """

    p: Draws
    q: Draws
    notes: tuple[str, ...] = ()
    infinite: str = ""


def common_span(p: Draws, q: Draws) -> Span:
    """Return the draws without the components that are linear functions of others in both P and Q; KL does not change.

    Draws on a curved surface keep all components. A side with fewer than d + 2 draws of d components does not determine
    a plane; all draws are then returned unchanged.
    """
    p, q = in_usual_units(p, q)
    x, y = p.x, q.x
    d = x.shape[1]
    if d == 1 or min(len(x), len(y)) < d + 2:
        return Span(p, q)
    both = np.concatenate([x, y])
    scale = both.std(0)
    scale = np.where(scale > _FLAT * np.abs(both).max(0), scale, np.maximum(np.abs(both).max(0), 1e-300))
    sides = [side / scale for side in (x, y)]
    means = [side.mean(0) for side in sides]
    null_p, null_q = (_null_space(side - mean) for side, mean in zip(sides, means, strict=True))
    if not null_p.shape[1] and not null_q.shape[1]:
        return Span(p, q, infinite=_on_other_surfaces(p, q, x, y))
    off_plane = np.abs((sides[1] - means[0]) @ null_p), np.abs((sides[0] - means[1]) @ null_q)
    if any((off > 10 * _FLAT).all(0).any() for off in off_plane):
        where = SIDE_P if (off_plane[0] > 10 * _FLAT).all(0).any() else SIDE_Q
        why = (
            f"{where}'s draws are in a plane of fewer than {d} dimensions, because a component is constant or follows "
            "from others. None of the other side's draws is in it: KL is infinite."
        )
        return Span(p, q, infinite=why)
    if any((off > 10 * _FLAT).any() for off in off_plane):
        # Some draws of one side are in the plane of the other side, and some are not. Atoms of P or Q can cause this.
        # All components are then kept.
        return Span(p, q)
    kept = _independent(np.concatenate([side - means[0] for side in sides]), d - null_p.shape[1])
    left_out = [j for j in range(d) if j not in set(kept.tolist())]
    fixed = [j for j in left_out if (both[:, j] == both[0, j]).all()]
    notes = [
        f"Component {', '.join(map(str, some))} is left out, because it {reason}."
        for some, reason in (
            (fixed, f"is constant, the same in {SIDE_P} and in {SIDE_Q}"),
            (
                [j for j in left_out if j not in fixed],
                f"follows from the others, in {SIDE_P} and {SIDE_Q} alike",
            ),
        )
        if some
    ]
    if not len(kept):
        return Span(p, q)
    p, q = (replace(side, tensor=side.tensor[:, kept.tolist()]) for side in (p, q))
    return Span(p, q, tuple(notes), _on_other_surfaces(p, q, x[:, kept], y[:, kept]))


def _on_other_surfaces(p: Draws, q: Draws, x: Array, y: Array) -> str:
    """Return a note on an infinite KL if a curved surface contains all draws of one side and none of the other side.

    Otherwise, return an empty string.
    """
    for name, own, others in ((SIDE_P, x, y), (SIDE_Q, y, x)):
        surface = surface_of(own, p.tensor.dtype, q.tensor.dtype)
        if surface is not None and surface.misses(others):
            return f"All draws of {name} are on {surface.name}, and no draw of the other side is on it: KL is infinite."
    return ""


def as_log_ratios(p: Draws, q: Draws) -> tuple[Draws, Draws, tuple[str, ...]]:
    """Return log(x_i / x_d), i < d, for rows x of positive probabilities, and a note; return other draws unchanged.

    The map does not change KL. The log-ratios have no boundary. Near a boundary, a density would vary strongly between
    neighbors.
    """
    ratios: list[Draws] = []
    for side in (p, q):
        x = side.x
        rounding = max(_FLAT, x.shape[1] * torch.finfo(side.tensor.dtype).eps)
        if x.shape[1] < 2 or not (x > 0).all() or (np.abs(x.sum(1) - 1) > rounding).any():
            return p, q, ()
        ratios.append(side.at(np.log(x[:, :-1]) - np.log(x[:, -1:])))
    note = "All rows are probabilities. Neighbors are searched in the logarithms of their ratios; KL is the same."
    return ratios[0], ratios[1], (note,)


def rank_of(centered: Array) -> int:
    """Return the rank of centered draws, shape (n, d): d minus the number of directions without variance."""
    return centered.shape[1] - _null_space(centered).shape[1]


def _null_space(centered: Array) -> Array:
    """Return the directions without variance of centered draws, as columns, shape (d, number of directions)."""
    variances, directions = np.linalg.eigh(centered.T @ centered)
    return directions[:, variances <= _FLAT**2 * max(float(variances[-1]), 1e-300)]


def _independent(points: Array, rank: int) -> Integers:
    """Return the sorted indices of `rank` components of the points that determine the other components linearly."""
    from scipy import linalg

    pivots: Any = linalg.qr(points, mode="r", pivoting=True)[-1]
    return np.sort(pivots[:rank])
