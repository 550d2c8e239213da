"""Partly known rows of probabilities: the most probable classes, and the mass of the other classes or draws from them.

Files of `kullback.io` store such rows, and the losses accept such rows as teachers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import torch
from torch import Tensor

from kullback.common.dtypes import dtype_name
from kullback.common.short_repr import ShortRepr


class RowBlock:
    """The base class of dataclasses whose tensors have one row for each position. Indexing by a slice or a mask selects
    positions.
    """

    def __getitem__(self, rows: slice | Tensor) -> Self:
        tensors = self.tensors()
        return replace(cast("Any", self), **{name: tensor[rows] for name, tensor in tensors.items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return a dict from the names of the fields to the tensors of the dataclass."""
        values = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, eq=False, repr=False)
class ReferenceBlock(RowBlock, ShortRepr):
    r"""Rows of a reference file: the known part of a model's distributions at some scored tokens.

    Attributes:
        start: the number of the first row.
        classes: the number of classes.
        labels: the scored tokens, int64, shape (rows,).
        top_indices: the k most probable classes, the most probable first, int32, shape (rows, k).
        top_log_probs: the log-probabilities of `top_indices` among all classes, float32, shape (rows, k).
        tail_indices: m classes drawn from the tail, the other classes, int32, shape (rows, m). The draws are
            independent and with replacement, with the conditional probabilities of the classes given the tail.
        tail_log_probs: the log-probabilities of `tail_indices` among all classes, float32, shape (rows, m); -inf if the
            tail has no mass, so that no class was drawn.
        tail_log_mass: the logarithm of the mass of the tail, float32, shape (rows,); -inf if the tail has no mass.
        label_log_probs: the log-probabilities of the labels, float32, shape (rows,).
        support_sizes: the number of classes with a probability above 0, int32, shape (rows,); 0 if it is not known.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from kullback.io import Reference, ReferenceWriter, Windows
        >>> windows = Windows(torch.tensor([0, 2]), torch.tensor([0, 2]), torch.tensor([False, True]))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.klref"
        >>> with ReferenceWriter(path, windows, top=2, tail_draws=4) as writer:
        ...     writer.add(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log())
        >>> with Reference(path) as reference:
        ...     block = reference.read(0, 1)
        >>> block.top_log_probs.exp(), block.tail_log_mass.exp(), block.label_log_probs.exp()
        (tensor([[0.5000, 0.2500]]), tensor([0.2500]), tensor([0.1250]))
    """

    start: int
    classes: int
    labels: Tensor
    top_indices: Tensor
    top_log_probs: Tensor
    tail_indices: Tensor
    tail_log_probs: Tensor
    tail_log_mass: Tensor
    label_log_probs: Tensor
    support_sizes: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> Self:
        places = torch.arange(len(self), device=self.labels.device)[rows]
        return replace(super().__getitem__(rows), start=self.start + int(places[0] if len(places) else 0))


@dataclass(frozen=True, eq=False)
class TopKBlock(RowBlock):
    r"""Consecutive positions of an open `TopKSource`; ``TopK(block.indices, block.log_probs)`` is a teacher.

    Every tensor has one row for each position. The caller may modify the tensors.

    Attributes:
        sequences: the index of the text, request or row of the file that a position belongs to, int64, shape (n,).
        positions: the position of the predicted token in its sequence, if the format stores it, int64, shape (n,).
        indices: the known classes, in the order of the file, int64, shape (n, k). If the file has the log-probability
            of the true token but does not list the token, the true token is the last class.
        log_probs: the natural log-probabilities of `indices`, shape (n, k); -inf is padding at positions with fewer
            than k known classes.
        labels: the true token, int64, shape (n,); -100 if it is not known.
        label_log_probs: the log-probability of the true token, shape (n,); NaN if it is not known.
        log_tail: the logarithm of the mass outside the known classes, float64, shape (n,); -inf if no mass is left. NaN
            if the file has only the logits of the known classes.
        classes: the number of all classes, or None if it is not known.

    Example:
        >>> import kullback.io
        >>> response = {"choices": [{"prompt_logprobs": [None, {"5": {"logprob": -0.5, "rank": 1}}]}]}
        >>> with kullback.io.open_top_k(response) as source:
        ...     block = next(source.blocks())
        >>> block.indices, block.log_probs, block.labels, block.log_tail.exp()
        (tensor([[5]]), tensor([[-0.5000]]), tensor([5]), tensor([0.3935], dtype=torch.float64))
    """

    sequences: Tensor
    positions: Tensor
    indices: Tensor
    log_probs: Tensor
    labels: Tensor
    label_log_probs: Tensor
    log_tail: Tensor
    classes: int | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        k, dtype = self.indices.shape[-1], dtype_name(self.log_probs.dtype)
        return f"TopKBlock(positions={len(self)}, k={k}, classes={self.classes}, dtype={dtype})"

    @property
    def counts(self) -> Tensor:
        """The number of known classes at each position, int64, shape (n,)."""
        return (self.log_probs != -torch.inf).sum(-1)


def summarize_rows(
    logits: Tensor, labels: Tensor, *, top: int, uniforms: Tensor, start: int = 0
) -> ReferenceBlock:
    """Return the part of the logits that a reference file stores, on the CPU.

    Arguments:
        logits: the logits, float64, shape (rows, classes), without NaN and +inf. The function overwrites these logits.
        labels: the true classes, shape (rows,).
        top: the number of most probable classes to keep.
        uniforms: uniform random numbers from [0, 1) that determine the draws, shape (rows, draws).
        start: the number of the first row.
    """
    rows, classes = logits.shape
    device = logits.device
    # Usually every class has mass. Testing this is faster than counting the classes with mass.
    whole = bool((logits.amin(-1) > -torch.inf).all())
    support = torch.full((rows,), classes, device="cpu") if whole else logits.isfinite().sum(-1)
    at_label = logits.gather(-1, labels.to(device)[:, None])
    indices = top_classes(logits, min(top, classes))
    kept = logits.gather(-1, indices)
    log_weights = logits.scatter_(-1, indices, -torch.inf)
    peak = log_weights.amax(-1, keepdim=True)
    cumulative = (log_weights - peak.nan_to_num(neginf=0.0)).exp_().cumsum_(-1)
    total = cumulative[:, -1:]
    tail = peak + total.log()
    # The levels select classes by cumulative weights. They are below the total weight, so that every drawn class has a
    # weight above 0.
    levels = torch.minimum(uniforms.to(device) * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, levels, right=True).clamp_(max=classes - 1)
    drawn = torch.where(total > 0, drawn, 0)
    normalizer = torch.logaddexp(kept.logsumexp(-1, keepdim=True), tail)

    def log_probs(x: Tensor) -> Tensor:
        return (x - normalizer).clamp_(max=0).float().cpu()

    return ReferenceBlock(
        start=start,
        classes=classes,
        labels=labels.cpu(),
        top_indices=indices.int().cpu(),
        top_log_probs=log_probs(kept),
        tail_indices=drawn.int().cpu(),
        tail_log_probs=log_probs(torch.where(total > 0, log_weights.gather(-1, drawn), -torch.inf)),
        tail_log_mass=log_probs(tail)[:, 0],
        label_log_probs=log_probs(at_label)[:, 0],
        support_sizes=support.int().cpu(),
    )


def top_classes(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest entries of each row, shape (rows, k), in descending order of the entries.
    Equal entries are in the order of their indices.
    """
    rows = len(x)
    least = x.topk(k).values[:, -1:]
    # `row` and `index` are the positions of the entries that are at least as large as the k-th largest entry of their
    # row. If entries are equal, a row may have more than k such entries.
    row, index = (x >= least).nonzero().unbind(-1)
    counts = torch.bincount(row, minlength=rows)
    place = torch.arange(len(row), device=x.device) - (counts.cumsum(0) - counts)[row]
    most = int(counts.max()) if rows else k
    candidates = torch.zeros(rows, most, dtype=torch.int64, device=x.device)
    candidates[row, place] = index
    values = torch.full((rows, most), -torch.inf, dtype=x.dtype, device=x.device)
    values[row, place] = x[row, index]
    # The sort is stable, so padding comes after classes with the value -inf.
    order = values.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return candidates.gather(-1, order)


def log_tail_mass(log_probs: Tensor) -> Tensor:
    """Return log(1 - s) in float64, where s is the sum of the probabilities of a row. The result is -inf if s is at
    least 1.
    """
    kept = torch.logsumexp(log_probs.double(), -1)
    some = kept < 0
    return torch.where(some, torch.log(-torch.expm1(torch.where(some, kept, -1.0))), -torch.inf)
