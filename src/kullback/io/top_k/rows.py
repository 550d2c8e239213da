"""Rows of the most probable classes from a reader, with the functions that add the true token, check the rows and place
them in a text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.words import NO_LABEL, STORED
from kullback.io.row_checks import tolerance
from kullback.partial_rows import PartialRows, log_tail_mass, without_padding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kullback.io.source_files import FileReference

LARGEST_INDEX = 2**31 - 1
_NOT_LOG_PROBS = (
    "these may be logits or processed scores: store the raw ones (vLLM: --logprobs-mode raw_logprobs)"
)
SAME = 1e-2  # the largest relative difference between two computations of one token's log-probability


class Piece(NamedTuple):
    """Positions of one sequence from a reader, before they are checked.

    Attributes:
        sequence: the number of the sequence in the file.
        rows: the positions with their lists of classes. A list may lack the true token.
        stores_tail: whether the file stores the mass outside the lists. If not, this mass follows from the lists.
        skipped: the number of positions without a distribution.
        tokens: all tokens of the sequence, so that `positions` are indices of this tensor. None if the file does not
            store the tokens, and in all pieces of a sequence but the first.
    """

    sequence: int
    rows: PartialRows
    stores_tail: bool = False
    skipped: int = 0
    tokens: Tensor | None = None


def rows_of(piece: Piece, classes: int | None, start: int) -> PartialRows:
    """Return the rows of a piece. A true token with a known log-probability becomes a listed class."""
    rows = piece.rows
    indices, log_probs, tail = rows.top_indices, rows.top_log_probs, rows.tail_log_mass
    label_log_probs = rows.label_log_probs.to(log_probs.dtype)
    listed = (indices == rows.labels.unsqueeze(-1)) & (log_probs != -torch.inf)
    from_list = torch.where(listed, log_probs, -torch.inf).amax(-1)
    # If the tail is unknown, the listed values are log-probabilities among the listed classes, so the true token's
    # log-probability stays unknown.
    is_listed = listed.any(-1) & ~tail.isnan()
    label_log_probs = torch.where(is_listed & label_log_probs.isnan(), from_list, label_log_probs)
    extra = ~is_listed & (rows.labels >= 0) & label_log_probs.isfinite()
    if bool(extra.any()):
        inside = torch.where(extra, label_log_probs, -torch.inf)
        indices = torch.cat([indices, torch.where(extra, rows.labels, 0).unsqueeze(-1)], -1)
        log_probs = torch.cat([log_probs, inside.unsqueeze(-1)], -1)
        left = (tail.exp() - inside.double().exp()).clamp(min=0).log()
        tail = left if piece.stores_tail else log_tail_mass(log_probs)
    if classes is not None:
        whole = (log_probs != -torch.inf).sum(-1) >= classes
        tail = torch.where(whole & ~tail.isnan(), -torch.inf, tail)
    return replace(
        rows,
        top_indices=indices,
        top_log_probs=log_probs,
        tail_log_mass=tail,
        label_log_probs=label_log_probs,
        sequences=torch.full_like(rows.positions, piece.sequence),
        classes=classes,
        start=start,
    )


def check(rows: PartialRows, ref: FileReference, rounding: torch.dtype) -> None:
    """Raise `FileError` for the first invalid value, with a tolerance for probabilities of dtype `rounding`."""
    for bad, values, wanted, instead in _faults(rows, rounding):
        if bool(bad.any()):
            index = tuple(int(i) for i in bad.nonzero()[0])
            where = f"sequence {int(rows.sequences[index[0]])}, position {int(rows.positions[index[0]])}"
            value = values[index].item()
            shown = str(value) if isinstance(value, int) else f"{value:.6g}"
            raise ref.error(wanted=wanted, got=f"{shown} at {where}", instead=instead)


def _faults(rows: PartialRows, rounding: torch.dtype) -> Iterator[tuple[Tensor, Tensor, str, str]]:
    """Yield for each check a mask of invalid values, the values, a description of valid values, and the remedy."""
    limit = tolerance(rounding)
    within = f"{limit:g} ({dtype_name(rounding)})"
    log_probs, kept = rows.top_log_probs, rows.top_log_probs != -torch.inf
    bad = log_probs.isnan() | (log_probs > limit)
    yield bad, log_probs, "natural log-probabilities, at most 0", _NOT_LOG_PROBS
    largest = LARGEST_INDEX if rows.classes is None else rows.classes - 1
    bad = kept & ((rows.top_indices < 0) | (rows.top_indices > largest))
    yield bad, rows.top_indices, f"token ids from 0 to {largest}", "use the files of one vocabulary"
    masses = log_probs.double().exp().sum(-1)
    wanted = f"probabilities that sum to at most 1 within {within}"
    yield ~(masses <= 1 + limit), masses, wanted, _NOT_LOG_PROBS
    totals = rows.masses  # NaN if the mass outside the list is not known
    wanted = f"probabilities, with the mass outside the list, that sum to 1 within {within}"
    instead = "store log-probabilities among all classes, and no other number of classes than there are"
    yield (totals - 1).abs() > limit, totals, wanted, instead
    ordered = without_padding(rows.top_indices, log_probs).sort(-1).values
    bad = ordered[:, 1:] == ordered[:, :-1]
    yield bad, ordered[:, 1:], "each token once at a position", "write the file again"
    bad = (rows.labels != NO_LABEL) & ((rows.labels < 0) | (rows.labels > largest))
    wanted = f"a true token from 0 to {largest}, or {NO_LABEL} for none"
    yield bad, rows.labels, wanted, "use the files of one vocabulary"
    wanted = "a log-probability of the true token, at most 0"
    yield rows.label_log_probs > limit, rows.label_log_probs, wanted, _NOT_LOG_PROBS
    # If the listed and the separate log-probability of a true token differ, the true tokens belong to other positions.
    listed = ((rows.top_indices == rows.labels.unsqueeze(-1)) & kept).nonzero(as_tuple=True)
    apart = torch.zeros(len(rows), dtype=torch.float64, device="cpu")
    difference = (rows.label_log_probs[listed[0]] - log_probs[listed]).double().abs()
    apart[listed[0]] = difference / (1 + log_probs[listed].double().abs())
    wanted = "one log-probability of the true token, where it is listed too"
    instead = "store the true tokens of the same positions as the lists, neither shifted nor cut"
    yield apart > max(limit, SAME), rows.label_log_probs, wanted, instead


def text_of_rows(rows: PartialRows, tokens: Tensor) -> dict[str, Tensor]:
    """Return one text's tokens, and rows of its tokens shifted to the positions before them; the other rows are
    padding. The `positions` of `rows` are at least 1 and at most the number of tokens.
    """
    length, k = len(tokens), rows.top_indices.shape[-1]
    is_padding = rows.top_log_probs == -torch.inf
    indices = torch.full((length, k), -1, dtype=torch.int64, device="cpu")
    log_probs = torch.full((length, k), -torch.inf, dtype=rows.top_log_probs.dtype, device="cpu")
    labels = torch.full((length,), NO_LABEL, device="cpu")
    places = rows.positions - 1
    indices[places] = torch.where(is_padding, -1, rows.top_indices.long())
    log_probs[places] = rows.top_log_probs
    labels[places] = rows.labels
    return {"input_ids": tokens, **dict(zip(STORED, (indices, log_probs, labels), strict=True))}
