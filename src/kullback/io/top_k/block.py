"""A block of positions with known most probable classes, and the check of its values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from kullback.common.dtypes import dtype_name
from kullback.common.words import NO_LABEL
from kullback.io.row_checks import tolerance
from kullback.partial_rows import TopKBlock, log_tail_mass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kullback.io.source_files import FileReference

LARGEST_INDEX = 2**31 - 1
_NOT_LOG_PROBS = (
    "these may be logits or processed scores: store the raw ones (vLLM: --logprobs-mode raw_logprobs)"
)
SAME = 1e-2  # largest relative difference between two computations of one token's log-probability


class Positions(NamedTuple):
    """Positions of one sequence as a reader returns them, not yet checked.

    Attributes:
        sequence: its number in the file.
        positions: int64, shape (n,).
        indices: int64, shape (n, k).
        log_probs: shape (n, k), -inf for padding.
        labels: int64, shape (n,), `NO_LABEL` where not known; or None.
        label_log_probs: shape (n,), NaN where not known; or None.
        log_tail: float64, shape (n,), where the file has it; else it follows from the log-probabilities.
        skipped: positions without a distribution.
        tokens: all tokens of the sequence, as `positions` counts them, with its first piece; where the file has them.
    """

    sequence: int
    positions: Tensor
    indices: Tensor
    log_probs: Tensor
    labels: Tensor | None = None
    label_log_probs: Tensor | None = None
    log_tail: Tensor | None = None
    skipped: int = 0
    tokens: Tensor | None = None


def to_block(found: Positions, classes: int | None) -> TopKBlock:
    """Make a block of positions: the true token becomes a known class if its log-probability is known."""
    n = len(found.positions)
    indices, log_probs = found.indices, found.log_probs
    labels = torch.full((n,), NO_LABEL, device="cpu") if found.labels is None else found.labels
    label_log_probs = found.label_log_probs
    if label_log_probs is None:
        label_log_probs = torch.full((n,), torch.nan, device="cpu")
    label_log_probs = label_log_probs.to(log_probs.dtype)
    listed = (indices == labels.unsqueeze(-1)) & (log_probs != -torch.inf)
    from_list = torch.where(listed, log_probs, -torch.inf).amax(-1)
    is_listed = listed.any(-1)
    if found.log_tail is not None:  # log-probabilities among the listed classes alone are not a true token's
        is_listed = is_listed & ~found.log_tail.isnan()
    label_log_probs = torch.where(is_listed & label_log_probs.isnan(), from_list, label_log_probs)
    extra = ~is_listed & (labels >= 0) & label_log_probs.isfinite()
    if bool(extra.any()):
        indices = torch.cat([indices, torch.where(extra, labels, 0).unsqueeze(-1)], -1)
        log_probs = torch.cat([log_probs, torch.where(extra, label_log_probs, -torch.inf).unsqueeze(-1)], -1)
    log_tail = found.log_tail
    if log_tail is None:
        log_tail = log_tail_mass(log_probs)
    elif bool(extra.any()):  # the file's mass is the mass outside of its list
        inside = torch.where(extra, label_log_probs.double(), -torch.inf)
        log_tail = torch.log((log_tail.exp() - inside.exp()).clamp(min=0))
    if classes is not None:
        whole = (log_probs != -torch.inf).sum(-1) >= classes
        log_tail = torch.where(whole & ~log_tail.isnan(), -torch.inf, log_tail)
    sequences = torch.full((n,), found.sequence, device="cpu")
    return TopKBlock(
        sequences, found.positions, indices, log_probs, labels, label_log_probs, log_tail, classes
    )


def join(blocks: Sequence[TopKBlock]) -> TopKBlock:
    """Join blocks; blocks with fewer classes are padded."""
    if len(blocks) == 1:
        return blocks[0]
    k = max(block.indices.shape[-1] for block in blocks)
    padding = {"indices": 0, "log_probs": -torch.inf}
    columns: dict[str, list[Tensor]] = {name: [] for name in blocks[0].tensors()}
    for block in blocks:
        for name, x in block.tensors().items():
            missing = k - x.shape[-1] if name in padding else 0
            columns[name].append(pad(x, (0, missing), value=padding[name]) if missing else x)
    return replace(blocks[0], **{name: torch.cat(parts) for name, parts in columns.items()})


def check(block: TopKBlock, ref: FileReference, rounding: torch.dtype) -> None:
    """Raise `FileError` for the first invalid value; the tolerance suits probabilities of dtype `rounding`."""
    for bad, values, wanted, instead in _faults(block, rounding):
        if bool(bad.any()):
            index = tuple(int(i) for i in bad.nonzero()[0])
            where = f"sequence {int(block.sequences[index[0]])}, position {int(block.positions[index[0]])}"
            value = values[index].item()
            shown = str(value) if isinstance(value, int) else f"{value:.6g}"
            raise ref.error(wanted=wanted, got=f"{shown} at {where}", instead=instead)


def _faults(block: TopKBlock, rounding: torch.dtype) -> Iterator[tuple[Tensor, Tensor, str, str]]:
    """Yield a mask of invalid values, the values, the valid ones in words, and the remedy."""
    limit = tolerance(rounding)
    within = f"{limit:g} ({dtype_name(rounding)})"
    log_probs, kept = block.log_probs, block.log_probs != -torch.inf
    bad = log_probs.isnan() | (log_probs > limit)
    yield bad, log_probs, "natural log-probabilities, at most 0", _NOT_LOG_PROBS
    largest = LARGEST_INDEX if block.classes is None else block.classes - 1
    bad = kept & ((block.indices < 0) | (block.indices > largest))
    yield bad, block.indices, f"token ids from 0 to {largest}", "use the files of one vocabulary"
    masses = log_probs.double().exp().sum(-1)
    wanted = f"probabilities that sum to at most 1 within {within}"
    yield ~(masses <= 1 + limit), masses, wanted, _NOT_LOG_PROBS
    totals = masses + block.log_tail.double().exp()  # NaN where the mass outside the list is not known
    wanted = f"probabilities, with the mass outside the list, that sum to 1 within {within}"
    instead = "store log-probabilities among all classes, and no other number of classes than there are"
    yield (totals - 1).abs() > limit, totals, wanted, instead
    places = torch.arange(1, block.indices.shape[-1] + 1, device="cpu")
    ordered = torch.where(kept, block.indices, -places).sort(-1).values
    bad = ordered[:, 1:] == ordered[:, :-1]
    yield bad, ordered[:, 1:], "each token once at a position", "write the file again"
    bad = (block.labels != NO_LABEL) & ((block.labels < 0) | (block.labels > largest))
    wanted = f"a true token from 0 to {largest}, or {NO_LABEL} for none"
    yield bad, block.labels, wanted, "use the files of one vocabulary"
    wanted = "a log-probability of the true token, at most 0"
    yield block.label_log_probs > limit, block.label_log_probs, wanted, _NOT_LOG_PROBS
    # Two values of one token differ where the true tokens belong to other positions than the lists.
    listed = ((block.indices == block.labels.unsqueeze(-1)) & kept).nonzero(as_tuple=True)
    apart = torch.zeros(len(block), dtype=torch.float64, device="cpu")
    difference = (block.label_log_probs[listed[0]] - log_probs[listed]).double().abs()
    apart[listed[0]] = difference / (1 + log_probs[listed].double().abs())
    wanted = "one log-probability of the true token, where it is listed too"
    instead = "store the true tokens of the same positions as the lists, neither shifted nor cut"
    yield apart > max(limit, SAME), block.label_log_probs, wanted, instead
