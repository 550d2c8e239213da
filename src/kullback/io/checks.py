"""Are these rows what they are said to be?  Each block is checked as it is read, and errors name the row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from kullback.errors import ArgumentValueError, FileError, explain
from kullback.io.files import dtype_name
from kullback.representations import SUM_TOLERANCE

if TYPE_CHECKING:
    from kullback.io.files import Place

__all__ = ["KINDS", "Kind", "as_kind", "check_rows", "describe", "looks_like"]

Kind = Literal["logits", "log-probs", "probs", "counts"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Checks go through a block in parts of this many numbers, so that their temporaries stay small.
PART = 1 << 18


def as_kind(kind: str | None) -> Kind | None:
    """Check the word a caller gave for what a file holds."""
    if kind is None or kind in KINDS:
        return kind
    raise ArgumentValueError(
        explain(
            "open_rows",
            "kind",
            wanted=f"one of {', '.join(KINDS)}",
            got=repr(kind),
            instead="kind='logits' for a network's scores",
        )
    )


def tolerance(dtype: torch.dtype) -> float:
    """How far the sum of a row of this dtype may be from one, as for `kullback.Probs`."""
    return SUM_TOLERANCE.get(dtype, 1e-6)


def _masses(x: Tensor, *, logs: bool) -> Tensor:
    """The total probability of each row."""
    return torch.logsumexp(x.double(), -1).exp() if logs else x.sum(-1, dtype=torch.float64)


def looks_like(x: Tensor) -> Kind | None:
    """What a few rows evidently hold, or None where their values do not tell (or are not finite)."""
    if not x.is_floating_point():
        return "counts" if bool((x >= 0).all()) else None
    if bool(x.isnan().any()) or bool((x == torch.inf).any()):
        return None
    limit = tolerance(x.dtype)
    if bool((x < 0).any()):
        if bool((x <= 0).all()) and bool(((_masses(x, logs=True) - 1).abs() <= limit).all()):
            return "log-probs"
        return "logits"
    if bool(((_masses(x, logs=False) - 1).abs() <= limit).all()):
        return "probs"
    return "counts" if bool((x == x.round()).all()) else None


def describe(x: Tensor) -> str:
    """Say in words what a few rows hold and how to pass them."""
    kind = looks_like(x)
    span = f"values from {x.min().item():.4g} to {x.max().item():.4g}"
    if kind is None:
        return f"{span}, which do not tell"
    seen = {
        "logits": "some negative and rows that are not log-probabilities: logits",
        "log-probs": "none above 0, whose exponentials sum to 1 in each row: log-probabilities",
        "probs": "none negative, which sum to 1 in each row: probabilities",
        "counts": "whole numbers, none negative: counts",
    }
    return f"{span}, {seen[kind]}"


def pass_kind(kind: Kind) -> str:
    """How to say what a file holds, in Python and on the command line."""
    return f"kind={kind!r} (--as {kind})"


def check_rows(x: Tensor, kind: Kind, start: int, place: Place) -> None:
    """Raise `FileError` at the first row that `kind` forbids; the block begins at row `start` of the file."""
    step = max(1, PART // x.shape[-1])
    for first in range(0, x.shape[0], step):
        part = x[first : first + step]
        bad = _bad_rows(part, kind)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise _explain_row(part[row], kind, start + first + row, place)


def _bad_rows(x: Tensor, kind: Kind) -> Tensor:
    """Which rows are wrong, in few passes: NaN and infinity survive a maximum and a sum."""
    if kind == "logits":
        return ~x.amax(-1).isfinite()
    if kind == "log-probs":
        masses = _masses(x, logs=True)
        return ~((masses - 1).abs() <= tolerance(x.dtype)) | (x.amax(-1) > tolerance(x.dtype))
    masses = _masses(x, logs=False)
    low = x.amin(-1)
    wrong = (
        ~((masses - 1).abs() <= tolerance(x.dtype))
        if kind == "probs"
        else ~((masses > 0) & masses.isfinite())
    )
    return ~(low >= 0) | wrong


def _explain_row(row: Tensor, kind: Kind, index: int, place: Place) -> FileError:
    """The error for one row: the first thing wrong with it, and what to do."""
    faults = [
        (row.isnan(), f"{kind} without NaN", "find where the NaN arises, or leave that row out"),
        (row == torch.inf, f"finite {kind}", "a class that is masked out has logit -inf, never +inf"),
    ]
    if kind == "log-probs":
        above = row > tolerance(row.dtype)
        faults.append((above, "log-probabilities, at most 0", _remedy(row, kind, "logits")))
    if kind in ("probs", "counts"):
        faults.append((row < 0, f"{kind}, none negative", _remedy(row, kind, "logits")))
    for bad, wanted, instead in faults:
        if bool(bad.any()):
            where = int(bad.nonzero()[0])
            got = f"{row[where].item():.6g} at row {index}, class {where}"
            return place.error(wanted=wanted, got=got, instead=instead)
    return _explain_mass(row, kind, index, place)


def _explain_mass(row: Tensor, kind: Kind, index: int, place: Place) -> FileError:
    """The error for a row of valid values with the wrong sum."""
    logs = kind in ("logits", "log-probs")
    nothing = -torch.inf if logs else 0
    if bool((row == nothing).all()):
        return place.error(
            wanted="some class with mass in every row",
            got=f"nothing but {nothing} in row {index}",
            instead="leave that row out: no distribution can be made of it",
        )
    return place.error(
        wanted=f"{kind}, whose rows sum to 1 within {tolerance(row.dtype):g} ({dtype_name(row.dtype)})",
        got=f"a sum of {float(_masses(row[None], logs=logs)[0]):.6g} in row {index}",
        instead=_remedy(row, kind, "logits" if logs else "counts"),
    )


def _remedy(row: Tensor, kind: Kind, otherwise: Kind) -> str:
    """Which kind to pass instead: the one the row looks like, else the one that normalizes."""
    seen = looks_like(row[None])
    if seen is not None and seen != kind:
        return f"the row looks like {seen}: pass {pass_kind(seen)}"
    return f"if these are to be normalized, pass {pass_kind(otherwise)}"
