"""Checks that the values of rows fit their representation; errors name the row."""

from __future__ import annotations

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.words import RepresentationName
from kullback.errors import FileError, invalid_type
from kullback.io.source_files import FileReference
from kullback.representations import SUM_TOLERANCE

# Checks process a block in parts of this many numbers, which keeps temporary tensors small.
PART = 1 << 18


def check_floating(call: str, argument: str, logits: object, instead: str) -> None:
    """Raise an error unless `logits` is a floating-point tensor."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        raise invalid_type(
            call,
            argument,
            wanted="a tensor of floating-point logits or log-probabilities",
            got=str(logits.dtype) if isinstance(logits, Tensor) else type(logits).__name__,
            instead=instead,
        )


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest difference from 1 that the sum of a row of this dtype may have, as for `kullback.Probs`."""
    return SUM_TOLERANCE.get(dtype, 1e-6)


def _masses(x: Tensor, *, logs: bool) -> Tensor:
    """Return the sum of the probabilities of each row."""
    return torch.logsumexp(x.double(), -1).exp() if logs else x.sum(-1, dtype=torch.float64)


def looks_like(x: Tensor) -> RepresentationName | None:
    """Return the representation that a few rows fit; None if none is clear, or if a value is NaN or +inf."""
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
    """Describe the values of a few rows for an error message."""
    representation = looks_like(x)
    span = f"values from {x.min().item():.4g} to {x.max().item():.4g}"
    if representation is None:
        return f"{span}, which fit more than one representation"
    seen = {
        "logits": "some negative and rows that are not log-probabilities: logits",
        "log-probs": "none above 0, whose exponentials sum to 1 in each row: log-probabilities",
        "probs": "none negative, which sum to 1 in each row: probabilities",
        "counts": "whole numbers, none negative: counts",
    }
    return f"{span}, {seen[representation]}"


def pass_representation(representation: RepresentationName) -> str:
    """Return the argument that names a representation, in Python and on the command line."""
    return f"representation={representation!r} (--as {representation})"


def check_rows(x: Tensor, representation: RepresentationName, start: int, ref: FileReference) -> None:
    """Raise `FileError` for the first invalid row of a block that begins at row `start` of the file."""
    step = max(1, PART // x.shape[-1])
    for first in range(0, x.shape[0], step):
        part = x[first : first + step]
        bad = _bad_rows(part, representation)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise _explain_row(part[row], representation, start + first + row, ref)


def _bad_rows(x: Tensor, representation: RepresentationName) -> Tensor:
    """Return a mask of the invalid rows. NaN or infinity in a row appears in the row's maximum or sum."""
    if representation == "logits":
        return ~x.amax(-1).isfinite()
    if representation == "log-probs":
        masses = _masses(x, logs=True)
        return ~((masses - 1).abs() <= tolerance(x.dtype)) | (x.amax(-1) > tolerance(x.dtype))
    masses = _masses(x, logs=False)
    fits = (masses > 0) & masses.isfinite()
    if representation == "probs":
        fits = (masses - 1).abs() <= tolerance(x.dtype)
    return ~((x.amin(-1) >= 0) & fits)


def _explain_row(
    row: Tensor, representation: RepresentationName, index: int, ref: FileReference
) -> FileError:
    """Return the error for an invalid row, with the first invalid value and the remedy."""
    faults = [
        (row.isnan(), f"{representation} without NaN", "find where the NaN arises, or leave that row out"),
        (
            row == torch.inf,
            f"finite {representation}",
            "a class that is masked out has logit -inf, never +inf",
        ),
    ]
    if representation == "log-probs":
        above = row > tolerance(row.dtype)
        faults.append((above, "log-probabilities, at most 0", _remedy(row, representation, "logits")))
    if not row.is_floating_point():
        written = "write the file as floating point if these are not counts: integers are read as counts"
        faults.append((row < 0, "counts, none negative", written))
    elif representation in ("probs", "counts"):
        faults.append((row < 0, f"{representation}, none negative", _remedy(row, representation, "logits")))
    for bad, wanted, instead in faults:
        if bool(bad.any()):
            where = int(bad.nonzero()[0])
            got = f"{row[where].item():.6g} at row {index}, class {where}"
            return ref.error(wanted=wanted, got=got, instead=instead)
    return _explain_mass(row, representation, index, ref)


def _explain_mass(
    row: Tensor, representation: RepresentationName, index: int, ref: FileReference
) -> FileError:
    """Return the error for a row of valid values with the wrong sum."""
    logs = representation in ("logits", "log-probs")
    empty = -torch.inf if logs else 0
    if bool((row == empty).all()):
        return ref.error(
            wanted="at least one class of positive probability in every row",
            got=f"only {empty} in row {index}",
            instead="leave that row out: no distribution can be made of it",
        )
    return ref.error(
        wanted=f"{representation}, whose rows sum to 1 within {tolerance(row.dtype):g} ({dtype_name(row.dtype)})",
        got=f"a sum of {float(_masses(row[None], logs=logs)[0]):.6g} in row {index}",
        instead=_remedy(row, representation, "logits" if logs else "counts"),
    )


def _remedy(row: Tensor, representation: RepresentationName, otherwise: RepresentationName) -> str:
    """Return the remedy: the representation that fits the row, or else `otherwise`, which normalizes the row."""
    seen = looks_like(row[None])
    if seen is not None and seen != representation:
        return f"the row looks like {seen}: pass {pass_representation(seen)}"
    return f"if these are to be normalized, pass {pass_representation(otherwise)}"
