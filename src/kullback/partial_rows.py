"""Rows of probabilities that are known in part: the most probable classes, the mass of the other classes, and draws
from these other classes.

Reference files, lists of top tokens and the teachers of losses all have this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from kullback.common.dtypes import dtype_name
from kullback.common.words import NO_LABEL

_ABSENT = cast("Tensor", None)  # `PartialRows` replaces this by values that mean "not known"


@dataclass(frozen=True, eq=False)
class PartialRows:
    r"""Distributions over classes that are known in part, one for each row.

    Each tensor has one row for each distribution. A slice or a mask selects rows. The caller may modify the tensors.
    ``TopK(rows.top_indices, rows.top_log_probs)`` and `SampledTail.from_reference` make teachers of the rows.

    Attributes:
        top_indices: the listed classes, integer, shape (rows, k). In a reference file, these are the k most probable
            classes, the most probable first. In lists of top tokens, the classes are in the order of the file. Such a
            list includes the true token if its log-probability is known.
        top_log_probs: the natural log-probabilities of `top_indices` among all classes, shape (rows, k). -inf is
            padding in rows that list fewer classes.
        tail_log_mass: the logarithm of the mass of all other classes, shape (rows,). It is -inf if no mass is left, and
            NaN if only the ratios of the listed probabilities are known. By default, the mass follows from
            `top_log_probs`.
        tail_indices: m classes drawn from the tail (all classes that are not listed), shape (rows, m). The draws are
            independent and with replacement, with the conditional probabilities of the classes given the tail. In lists
            of top tokens, m is 0.
        tail_log_probs: the log-probabilities of `tail_indices` among all classes, shape (rows, m); -inf if the tail
            has no mass, so that no class was drawn.
        labels: the true tokens, int64, shape (rows,); -100 if not known.
        label_log_probs: the log-probabilities of the labels, shape (rows,); NaN if not known.
        support_sizes: the number of classes with a probability above 0, int32, shape (rows,); 0 if not known.
        sequences: the index of the text, request or row of the file that a row belongs to, int64, shape (rows,).
        positions: the position of the predicted token in its sequence, if the format stores it, int64, shape (rows,).
        complete: the log-probabilities of all classes, shape (rows, classes), or None if not known.
        classes: the number of all classes, or None if not known.
        start: the number of the first row.
        is_ranked: whether `top_indices` are the most probable classes, the most probable first.

    Example:
        >>> import pathlib, tempfile, torch
        >>> from kullback.io import Reference, ReferenceWriter, Windows
        >>> windows = Windows(torch.tensor([0, 2]), torch.tensor([0, 2]), torch.tensor([False, True]))
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "base.klref"
        >>> with ReferenceWriter(path, windows, top=2, tail_draws=4) as writer:
        ...     writer.add(torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log())
        >>> with Reference(path) as reference:
        ...     rows = reference.read(0, 1)
        >>> rows.top_log_probs.exp(), rows.tail_log_mass.exp(), rows.label_log_probs.exp()
        (tensor([[0.5000, 0.2500]]), tensor([0.2500]), tensor([0.1250]))
    """

    top_indices: Tensor
    top_log_probs: Tensor
    tail_log_mass: Tensor = _ABSENT
    tail_indices: Tensor = _ABSENT
    tail_log_probs: Tensor = _ABSENT
    labels: Tensor = _ABSENT
    label_log_probs: Tensor = _ABSENT
    support_sizes: Tensor = _ABSENT
    sequences: Tensor = _ABSENT
    positions: Tensor = _ABSENT
    complete: Tensor | None = None
    classes: int | None = None
    start: int = 0
    is_ranked: bool = False

    def __post_init__(self) -> None:
        if self.tail_log_mass is _ABSENT:
            object.__setattr__(self, "tail_log_mass", log_tail_mass(self.top_log_probs))
        rows, device, dtype = len(self.top_indices), self.top_indices.device, self.top_log_probs.dtype
        for name, shape, value, dtype_if_absent in (
            ("tail_indices", (rows, 0), 0, torch.int32),
            ("tail_log_probs", (rows, 0), 0, dtype),
            ("labels", (rows,), NO_LABEL, torch.int64),
            ("label_log_probs", (rows,), torch.nan, dtype),
            ("support_sizes", (rows,), 0, torch.int32),
            ("sequences", (rows,), 0, torch.int64),
            ("positions", (rows,), 0, torch.int64),
        ):
            if getattr(self, name) is _ABSENT:
                filled = torch.full(shape, value, dtype=dtype_if_absent, device=device)
                object.__setattr__(self, name, filled)

    def __len__(self) -> int:
        return len(self.top_indices)

    def __getitem__(self, rows: slice | Tensor) -> Self:
        first = torch.arange(len(self), device=self.labels.device)[rows][:1]
        selected = {name: x[rows] for name, x in self.tensors().items()}
        return replace(cast("Any", self), start=self.start + int(first.sum()), **selected)

    def __repr__(self) -> str:
        sizes = f"rows={len(self)}, top={self.top_indices.shape[-1]}, draws={self.tail_indices.shape[-1]}"
        return f"PartialRows({sizes}, classes={self.classes}, dtype={dtype_name(self.top_log_probs.dtype)})"

    def tensors(self) -> dict[str, Tensor]:
        """Return a dict from the names of the fields to the tensors."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @property
    def counts(self) -> Tensor:
        """The number of listed classes in each row, int64, shape (rows,)."""
        return (self.top_log_probs != -torch.inf).sum(-1)

    @property
    def masses(self) -> Tensor:
        """The sum of all probabilities of each row, float64, shape (rows,), which is 1 up to rounding errors."""
        return self.top_log_probs.double().exp().sum(-1) + self.tail_log_mass.double().exp()

    def in_order(self, *, equal_by_class: bool = False) -> PartialRows:
        """Return the rows with the most probable classes first, in float64; the class of a padding entry is -1.

        With `equal_by_class`, ties are in order of class number. Otherwise, ties are in the order of the list.
        """
        indices, log_probs = self.top_indices.long(), self.top_log_probs.double()
        if not self.is_ranked:
            if equal_by_class:
                indices, order = indices.sort(dim=-1)
                log_probs = log_probs.gather(-1, order)
            log_probs, order = log_probs.sort(dim=-1, descending=True, stable=True)
            indices = torch.where(log_probs == -torch.inf, -1, indices.gather(-1, order))
        return replace(
            self, top_indices=indices, top_log_probs=log_probs, label_log_probs=self.label_log_probs.double()
        )

    def ranks(self, places: int, labels: Tensor) -> Tensor:
        """Return the class at each of the first `places` ranks, shape (rows, places); -1 if the class is not known.

        The rows must come from `in_order`. A list may have the true token after the most probable classes, although
        classes that are not listed rank in between.
        """
        classes = torch.full((len(self), places), -1, device=self.top_indices.device)
        classes[:, : self.top_indices.shape[-1]] = self.top_indices[:, :places]
        if self.is_ranked:
            return classes
        count = (self.top_indices >= 0).sum(-1)
        last = self.top_indices.gather(-1, (count - 1).clamp(min=0)[:, None])[:, 0]
        known = count - (last == labels).long()
        classes[torch.arange(places, device=classes.device) >= known[:, None]] = -1
        return classes

    def most_probable(self, top: int) -> PartialRows:
        """Return the rows with only the first `top` classes. The other classes join the tail, which has no draws."""
        log_probs = self.top_log_probs
        outside = torch.cat([log_probs[:, top:], self.tail_log_mass[:, None]], -1).logsumexp(-1)
        return PartialRows(
            self.top_indices[:, :top],
            log_probs[:, :top],
            outside,
            labels=self.labels,
            label_log_probs=self.label_log_probs,
            classes=self.classes,
            start=self.start,
            is_ranked=True,
        )

    def with_all_known(self) -> PartialRows:
        """Return the rows with one list of all known classes (top, draws and label), as unranked rows have."""
        if not self.is_ranked or self.complete is not None:
            return self
        at_label = torch.where(self.label_log_probs.isnan(), -torch.inf, self.label_log_probs)
        indices = torch.cat([self.top_indices.long(), self.tail_indices.long(), self.labels[:, None]], -1)
        log_probs = torch.cat([self.top_log_probs, self.tail_log_probs, at_label[:, None]], -1)
        # `repeated` is True at every entry of a class except the first in the list.
        ordered, order = without_padding(indices, log_probs).sort(dim=-1, stable=True)
        repeated = torch.zeros_like(ordered, dtype=torch.bool)
        repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        log_probs = torch.where(repeated.scatter(-1, order, repeated), -torch.inf, log_probs)
        of_tail = log_probs[:, self.top_indices.shape[-1] :].double().exp().sum(-1)
        tail = (self.tail_log_mass.double().exp() - of_tail).clamp(min=0).log()
        return replace(
            self,
            top_indices=indices,
            top_log_probs=log_probs,
            tail_log_mass=tail,
            tail_indices=_ABSENT,
            tail_log_probs=_ABSENT,
            is_ranked=False,
        )

    def at_classes_of(self, other: PartialRows) -> PartialRows:
        """Return the rows at the classes that `other` lists; unchanged unless all probabilities are known."""
        if self.complete is None:
            return self
        is_listed = other.top_log_probs != -torch.inf
        log_probs = self.complete.gather(-1, other.top_indices).where(is_listed, -torch.inf)
        return PartialRows(other.top_indices, log_probs)

    @staticmethod
    def join(blocks: Sequence[PartialRows]) -> PartialRows:
        """Return the rows of several blocks, in order; shorter lists are padded."""
        if len(blocks) == 1:
            return blocks[0]
        width = max(block.top_indices.shape[-1] for block in blocks)
        columns: dict[str, list[Tensor]] = {name: [] for name in blocks[0].tensors()}
        for block in blocks:
            missing = width - block.top_indices.shape[-1]
            for name, x in block.tensors().items():
                padding = {"top_indices": 0, "top_log_probs": -torch.inf}.get(name)
                columns[name].append(x if padding is None else pad(x, (0, missing), value=padding))
        return replace(blocks[0], **{name: torch.cat(parts) for name, parts in columns.items()})

    def probs_of(self, row: int, classes: list[int]) -> list[float]:
        """Return the probabilities of some classes in a row; NaN if a probability is not known."""
        if self.complete is not None:
            return self.complete[row, classes].exp().tolist()
        probs = self.top_log_probs[row].exp().tolist()
        listed = dict(zip(self.top_indices[row].tolist(), probs, strict=True))
        return [listed.get(index, torch.nan) for index in classes]


def rows_of_logits(logits: Tensor, labels: Tensor, top: int) -> PartialRows:
    """Return float64 rows that list the `top` most probable classes and contain all probabilities."""
    # Ties are in order of class number, as in all reports. Logits are sorted, because rounding may turn unequal logits
    # into equal probabilities.
    indices = top_classes(logits.double(), min(top, logits.shape[-1]))
    complete = logits.double().log_softmax(-1)
    log_probs = complete.gather(-1, indices)
    return PartialRows(
        indices,
        log_probs,
        labels=labels,
        label_log_probs=complete.gather(-1, labels[:, None])[:, 0],
        complete=complete,
        classes=logits.shape[-1],
        is_ranked=True,
    )


def has_more_classes(sizes: Tensor, other_sizes: Tensor) -> Tensor:
    """Return a mask of the rows whose first support is known to be larger, and so has a class outside the second."""
    return (other_sizes > 0) & (sizes > other_sizes)


def first_other_label(p: PartialRows, q: PartialRows) -> int | None:
    """Return the first row whose true tokens in P and Q are both known and differ; None if there is no such row."""
    differs = (p.labels != q.labels) & (p.labels != NO_LABEL) & (q.labels != NO_LABEL)
    return int(differs.nonzero()[0]) if bool(differs.any()) else None


def without_padding(indices: Tensor, log_probs: Tensor) -> Tensor:
    """Return the classes, with different negative numbers for padding, so that only classes repeat."""
    places = torch.arange(1, indices.shape[-1] + 1, device=indices.device)
    return torch.where(log_probs == -torch.inf, -places, indices)


def places_of(indices: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of each class of `indices` (rows, k) in `others` (rows, m), and whether it is there."""
    ordered, order = others.sort(-1)
    place = torch.searchsorted(ordered, indices).clamp(max=others.shape[-1] - 1)
    return order.gather(-1, place), ordered.gather(-1, place) == indices


def summarize_rows(
    logits: Tensor, labels: Tensor, *, top: int, uniforms: Tensor, start: int = 0
) -> PartialRows:
    """Return the data that a reference file stores for rows of logits, on the CPU.

    The logits, float64 without NaN and +inf, are overwritten. `uniforms`, shape (rows, draws), are random numbers from
    [0, 1) that determine the draws.
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
    # The levels select classes by cumulative weights. Every level is below the total weight, so that every drawn class
    # has a weight above 0.
    levels = torch.minimum(uniforms.to(device) * total, total.nextafter(torch.zeros_like(total)))
    drawn = torch.searchsorted(cumulative, levels, right=True).clamp_(max=classes - 1)
    drawn = torch.where(total > 0, drawn, 0)
    normalizer = torch.logaddexp(kept.logsumexp(-1, keepdim=True), tail)

    def log_probs(x: Tensor) -> Tensor:
        return (x - normalizer).clamp_(max=0).float().cpu()

    return PartialRows(
        top_indices=indices.int().cpu(),
        top_log_probs=log_probs(kept),
        tail_log_mass=log_probs(tail)[:, 0],
        tail_indices=drawn.int().cpu(),
        tail_log_probs=log_probs(torch.where(total > 0, log_weights.gather(-1, drawn), -torch.inf)),
        labels=labels.cpu(),
        label_log_probs=log_probs(at_label)[:, 0],
        support_sizes=support.int().cpu(),
        classes=classes,
        start=start,
        is_ranked=True,
    )


def top_classes(x: Tensor, k: int) -> Tensor:
    """Return the indices of the k largest entries of each row, in descending order; ties by index."""
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
    """Return log(1 - s) in float64 for the sum s of a row's probabilities; -inf if s is at least 1."""
    kept = torch.logsumexp(log_probs.double(), -1)
    some = kept < 0
    return torch.where(some, torch.log(-torch.expm1(torch.where(some, kept, -1.0))), -torch.inf)
