"""The divergence of two language-model heads by chunks of positions, without storing all logits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.functional.partial_teacher import PartialRows
from kullback.generators import KL, Divergence
from kullback.generators.growth import growth_of, is_own
from kullback.kernels import RowDivergence, logit_divergence, value_and_gradient
from kullback.kernels.labels import HardLabels
from kullback.kernels.native import library
from kullback.kernels.row_operation import Gradients, row_weights
from kullback.numeric import accurate_dtype, upcast
from kullback.parallel.ranks import check_first_derivative
from kullback.parallel.rows import ShardedRows
from kullback.parallel.selected import Shard

__all__ = ["Head", "HeadSpec"]

# The default size of a chunk. Each chunk reads the head, and reads and writes its gradient, so a chunk has at least
# this many rows. With several threads it has more, because they synchronize some hundred times in each chunk's
# products. Half precision doubles the minimum, because its products are faster ...
_ROWS_OF_ONE_THREAD = 256
_ROWS = 512
# ... and has at most as many as fit in these bytes, or in this fraction of the head's bytes if that is more.
_BYTES = 32 << 20
_PART_OF_HEAD = 4
# Bytes of a weight's tile in float32. A tile should fit in a core's cache; several threads synchronize after each one.
_TILE_BYTES = 8 << 20
_TILE_BYTES_OF_SEVERAL_THREADS = 32 << 20
# Up to this number of chunks are summed in half precision: the sum then rounds no more than one product does.
_HALF_SUMS = 16
# Derivatives by logits that may overflow are at most this many times the weighted value.
_PER_VALUE = 1e6


class Head(NamedTuple):
    """The settings of one side's logits, softcap * tanh(scale * (W h + b) / softcap)."""

    scale: float
    softcap: float | None
    float32_logits: bool

    def logits_dtype(self, weight: Tensor) -> torch.dtype:
        """Return the dtype of the logits."""
        return torch.promote_types(weight.dtype, torch.float32) if self.float32_logits else weight.dtype

    def reference(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return all logits, by differentiable operations."""
        dtype = self.logits_dtype(weight)
        bias = None if bias is None else bias.to(dtype)
        logits = torch.nn.functional.linear(hidden.to(dtype), weight.to(dtype), bias) * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def write(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write the logits to `out`."""
        if _is_slow_to_multiply(weight) or (out.dtype != weight.dtype and not weight.is_cuda):
            hidden32 = hidden.float()
            for tile, part in _float32_tiles(weight):
                out[:, tile].copy_(hidden32 @ part.t())
        elif out.dtype != weight.dtype:
            out.copy_(torch.mm(hidden, weight.t(), out_dtype=out.dtype))
        elif weight.is_cpu and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
            # Tiles make a product of few positions up to a third faster. Several threads would wait after each tile.
            for tile in _tiles(weight):
                torch.mm(hidden, weight[tile].t(), out=out[:, tile])
        else:
            torch.mm(hidden, weight.t(), out=out)
        if bias is not None:
            out.add_(bias)
        if self.scale != 1:
            out.mul_(self.scale)
        if self.softcap is not None:
            out.div_(self.softcap).tanh_().mul_(self.softcap)


class HeadSpec(NamedTuple):
    """The settings of a pass over two heads, or over one head and a partial teacher; the weights are constants."""

    student: Head
    teacher: Head | PartialRows
    kind: Divergence
    temperature: float
    scale: float
    dtype: torch.dtype
    weights: Tensor | None  # the weight of each position in the total
    counted: Tensor | None  # the indices of the positions that count; None for all
    chunk_bytes: int | None
    labels: HardLabels | None = None
    shards: ShardedRows | None = None  # set if the classes of the heads are sharded
    widest: int = 0  # the largest number of classes of a rank
    entropies: Tensor | None = None  # of the student at each position; the forward pass writes it

    def compute(self, *tensors: Any) -> tuple[Tensor]:
        """Return the divergence of each position, as a row operation."""
        return (sweep(self, tensors, None, (False,) * len(tensors))[0].to(self.dtype),)

    def total(self, tensors: Any, wanted: Sequence[bool]) -> tuple[Tensor, Gradients]:
        """Return the weighted sum of the divergences, and its gradients."""
        weights = row_weights(self.weights, tensors[0], self.scale)
        values, gradients = sweep(self, tensors, weights, wanted)
        return torch.where(weights == 0, 0, weights * values).sum().to(self.dtype), gradients

    def gradients(
        self, tensors: Any, kept: Any, grad: Tensor, wanted: Sequence[bool], is_plain: bool
    ) -> Gradients:
        """Return the gradients of the sum of `grad` times the divergences. They compute the logits again, by chunks.

        A differentiated or batched backward pass uses all logits at once.
        """
        if self.shards is not None:
            check_first_derivative(self.shards.ranks, grad)
        if not is_plain:
            return self._through_whole_logits(tensors, grad, wanted)
        weights = grad.to(torch.promote_types(grad.dtype, torch.float32))
        return self.complete(sweep(self._replace(entropies=None), tensors, weights, wanted)[1])

    def complete(self, gradients: list[Tensor | None]) -> Gradients:
        """Sum the gradients of hidden states over the ranks. Autograd casts the sums to their dtypes."""
        for i in self.summed_over_ranks:
            part = gradients[i]
            if part is not None and self.shards is not None:
                gradients[i] = self.shards.ranks.sum(part)
        return gradients

    def _through_whole_logits(self, tensors: Any, grad: Tensor, wanted: Sequence[bool]) -> Gradients:
        """Compute the gradients by differentiable operations on all logits at once."""
        excluded = self._excluded(tensors[0])
        with torch.enable_grad():
            # Both sides may share a tensor; the aliases have separate gradients.
            aliases = [x if x is None else x.view_as(x) for x in tensors]
            chosen = [x for x, want in zip(aliases, wanted, strict=True) if want and x is not None]
            values = self.reference_rows(aliases, excluded)
            gradients = iter(torch.autograd.grad(values, chosen, grad.to(values.dtype), create_graph=True))
        return [
            next(gradients) if want and x is not None else None
            for x, want in zip(aliases, wanted, strict=True)
        ]

    @property
    def summed_over_ranks(self) -> tuple[int, ...]:
        """The numbers of the tensors whose gradient is summed over the ranks, and rounded afterwards."""
        if self.shards is None:
            return ()
        return (0, 3) if isinstance(self.teacher, Head) else (0,)

    def reference_rows(self, tensors: Sequence[Any], excluded: Tensor | None) -> Tensor:
        """Compute the divergence of each position from all logits at once, by differentiable operations."""
        if excluded is not None:  # NaN at an excluded position must not reach a gradient
            tensors = [
                torch.where(excluded.unsqueeze(-1), 0, x) if i % 3 == 0 else x for i, x in enumerate(tensors)
            ]
        if _may_overflow(self.kind):  # inf - inf in the products of a gradient by logits
            tensors = [x if x is None else upcast(x) for x in tensors]
        student = self.student.reference(*tensors[:3])
        if isinstance(self.teacher, Head):
            teacher = self.teacher.reference(*tensors[3:])
            classes = max(student.shape[-1], teacher.shape[-1])
            p, q = (
                torch.nn.functional.pad(x, (0, classes - x.shape[-1]), value=-torch.inf)
                for x in (teacher, student)
            )
            rows = RowDivergence(self.kind, self.temperature, self.dtype, self.labels)
            values = logit_divergence(rows, p, q)
        else:
            seen = self.teacher.classes(self.labels).of(student)
            values = self.teacher.values(upcast(tensors[3]), seen, self.labels).to(self.dtype)
        return values if excluded is None else torch.where(excluded, 0, values)

    def reference_total(self, tensors: Sequence[Any]) -> Tensor:
        """Compute the weighted sum from all logits at once."""
        excluded = None if self.weights is None else self.weights == 0
        values = self.reference_rows(tensors, excluded)
        return ((values if self.weights is None else values * self.weights.to(self.dtype)) * self.scale).sum()

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the entropy of each row of the student's logits: log(classes) - KL to the uniform distribution."""
        uniform = logits.new_zeros(1, logits.shape[-1]).expand_as(logits)
        compute, classes = value_and_gradient, logits.shape[-1]
        if self.shards is not None:
            compute, classes = self.shards.value_and_gradient, self.shards.classes
        values, *_ = compute(RowDivergence(KL(), self.temperature), logits, uniform, None, (False, False))
        return (math.log(classes) - values).clamp(min=0)

    def reference_entropies(self, tensors: Sequence[Any], excluded: Tensor | None) -> Tensor:
        """Compute the student's entropy at each position from all logits at once, 0 where it does not count."""
        constants: list[Any] = [x if x is None else x.detach() for x in tensors[:3]]
        logits = self.student.reference(*constants)
        uniform = torch.zeros_like(logits)
        values = logit_divergence(RowDivergence(KL(), self.temperature, self.dtype), logits, uniform)
        values = (math.log(logits.shape[-1]) - values).clamp(min=0)
        return values if excluded is None else torch.where(excluded, 0, values)

    def _excluded(self, rows: Tensor) -> Tensor | None:
        """Return a mask of the positions that do not count; None if all count."""
        if self.counted is None:
            return None
        return torch.ones(rows.shape[0], dtype=torch.bool, device=rows.device).index_fill(
            0, self.counted, False
        )

    def chunk_rows(
        self, positions: int, row_bytes: int, head_bytes: int, item_bytes: int, device: str
    ) -> int:
        """Return the number of positions in a chunk; chunks are of nearly equal size."""
        if self.chunk_bytes is None:
            is_alone = device == "cpu" and torch.get_num_threads() == 1
            least = (_ROWS_OF_ONE_THREAD if is_alone else _ROWS) * 4 // min(item_bytes, 4)
            most = max(least, max(_BYTES, head_bytes // _PART_OF_HEAD) // row_bytes)
        else:
            most = max(1, self.chunk_bytes // row_bytes)
        return -(-positions // max(1, -(-positions // most)))


def _may_overflow(kind: Divergence) -> bool:
    """Return whether derivatives by logits can be far larger than the position's weight, like powers of p/q."""
    return is_own(kind) or (kind.additive and max(end.rate for end in growth_of(kind)[:2]) > 0)


def sweep(
    spec: HeadSpec, tensors: Sequence[Any], weights: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the divergence of each position, 0 where it does not count, and the gradient of their weighted sum.

    If the gradient of the logits overflows their dtype, the products with it become NaN. These positions are computed
    again in float64.

    Arguments:
        spec: the settings.
        tensors: hidden states, weight and bias of the student, then of the teacher; or a teacher's log-probabilities.
        weights: the weight of each position in the sum; None if no gradient is needed.
        wanted: for each tensor, whether its gradient is needed.
    """
    values, gradients = _sweep(spec, tensors, weights, wanted)
    accurate = values.dtype
    ranges = [torch.finfo(x.dtype).max for x in tensors if x is not None]
    if weights is None or min(ranges) == torch.finfo(accurate).max or not _may_overflow(spec.kind):
        return values, gradients
    is_finite = all(x is None or bool(x.isfinite().all()) for x in gradients)
    if is_finite and spec.shards is None:  # with shards, another rank's gradients may be infinite
        return values, gradients
    is_far = (weights * values).abs() > min(ranges) / _PER_VALUE
    if not bool(is_far.any()):
        return values, gradients
    spec, counts = spec._replace(entropies=None), ~is_far
    if spec.counted is not None:
        counts &= torch.zeros_like(is_far).index_fill(0, spec.counted, True)
    near, far = (spec._replace(counted=x.nonzero().squeeze(-1)) for x in (counts, is_far))
    _, gradients = _sweep(near, tensors, weights, wanted)
    _, added = _sweep(far, [x if x is None else x.to(accurate) for x in tensors], weights, wanted)
    return values, [
        x if x is None or y is None else x + y if i in spec.summed_over_ranks else (x + y).to(x.dtype)
        for i, (x, y) in enumerate(zip(gradients, added, strict=True))
    ]


def _sweep(
    spec: HeadSpec, tensors: Sequence[Any], weights: Tensor | None, wanted: Sequence[bool]
) -> tuple[Tensor, list[Tensor | None]]:
    """Return the results of `sweep`, with the gradients of logits in the dtype of the logits."""
    student, teacher = tensors[:3], tensors[3:]
    values = student[0].new_zeros(student[0].shape[0], dtype=accurate_dtype(student[0].device))
    with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
        positions = values.shape[0] if spec.counted is None else spec.counted.shape[0]
        classes = max(x.shape[0] for x in tensors[1::3])
        q_side = _Side(spec.student, student, wanted[:3], classes)
        if isinstance(spec.teacher, Head):
            p_side = _TeacherHead(spec.teacher, teacher, wanted[3:], classes)
        else:
            p_side = _SparseTeacher(spec.teacher, teacher[0], wanted[3])
        width = spec.widest or classes
        row_bytes = max(1, (q_side.class_bytes + p_side.class_bytes) * width)
        head_bytes = width * q_side.weight.shape[1] * q_side.weight.dtype.itemsize
        rows = spec.chunk_rows(positions, row_bytes, head_bytes, q_side.dtype.itemsize, values.device.type)
        q_side.prepare(rows, positions, spec.shards is not None)
        p_side.prepare(rows, positions, spec.shards is not None)
        for start in range(0, positions, max(rows, 1)):
            chunk = slice(start, min(start + rows, positions))
            where = chunk if spec.counted is None else spec.counted[chunk]
            weighted = None if weights is None else weights[where]
            labels = None if spec.labels is None else spec.labels.of_rows(where)
            q = q_side.logits(where)
            if spec.entropies is not None:
                spec.entropies[where] = spec.entropy(q).to(spec.entropies.dtype)
            values[where], by_p, by_q = p_side.compare(spec, q, where, weighted, q_side.is_wanted, labels)
            if by_p is not None:
                p_side.add(by_p, where)
            if by_q is not None:
                q_side.add(by_q, where)
        return values, q_side.gradients() + p_side.gradients()


class _Side:
    """One head during the pass: the buffers for its logits, and the sums of its gradients."""

    def __init__(self, head: Head, tensors: Sequence[Any], wanted: Sequence[bool], classes: int) -> None:
        self.head = head
        self.hidden: Tensor = tensors[0]
        self.weight: Tensor = tensors[1]
        self.bias: Tensor | None = tensors[2]
        self.wanted = wanted
        self.is_wanted = any(wanted)
        self.classes = classes
        self.dtype = head.logits_dtype(self.weight)
        self.buffers = 2 if self.is_wanted and head.softcap is not None else 1
        self.class_bytes = self.buffers * self.dtype.itemsize

    def prepare(self, rows: int, positions: int, is_sharded: bool) -> None:
        """Allocate the buffers for chunks of `rows` positions."""
        half = self.dtype.itemsize < 4 or self.weight.dtype.itemsize < 4
        chunk = self.weight.new_empty(1, 1).expand(rows, self.classes)
        self.buffer = library.empty_like(chunk, dtype=self.dtype)
        self.spare = library.empty_like(chunk, dtype=self.dtype) if self.buffers > 1 else None
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        sums = dtype if half and positions > _HALF_SUMS * rows else self.weight.dtype
        # With sharded classes, the gradient of the hidden states is summed over the ranks, and rounded afterwards.
        summed = dtype if is_sharded else self.hidden.dtype
        self.by_hidden = torch.zeros_like(self.hidden, dtype=summed) if self.wanted[0] else None
        self.by_weight = library.empty_like(self.weight, dtype=sums) if self.wanted[1] else None
        self.is_first = True  # the first chunk writes the weight's gradient, the others add to it
        self.by_bias = (
            torch.zeros_like(self.bias, dtype=dtype) if self.wanted[2] and self.bias is not None else None
        )

    def logits(self, where: slice | Tensor) -> Tensor:
        """Write the logits of some positions to the buffer and return it; -inf for classes that this side lacks."""
        hidden, own = self.hidden[where], self.weight.shape[0]
        logits = self.buffer[: hidden.shape[0]]
        self.head.write(hidden, self.weight, self.bias, logits[:, :own])
        logits[:, own:] = -torch.inf
        if self.spare is not None:
            self.spare[: hidden.shape[0]].copy_(logits)
        return logits

    def add(self, gradient: Tensor, where: slice | Tensor) -> None:
        """Add the gradient of the logits of some positions to the sums; this overwrites `gradient`."""
        gradient = gradient[:, : self.weight.shape[0]]
        if self.head.softcap is not None and self.spare is not None:
            derivative = self.spare[: gradient.shape[0], : gradient.shape[1]]
            gradient.mul_(derivative.div_(self.head.softcap).square_().neg_().add_(1))
        if self.head.scale != 1:
            gradient.mul_(self.head.scale)
        if self.by_bias is not None:
            self.by_bias += gradient.sum(0, dtype=self.by_bias.dtype)
        if _is_slow_to_multiply(self.weight):
            self._add_in_float32(gradient, where)
        else:
            self._add(gradient.to(self.weight.dtype), where)
        self.is_first = False

    def _add(self, gradient: Tensor, where: slice | Tensor) -> None:
        if self.by_hidden is not None:
            self.by_hidden[where] = (gradient @ self.weight).to(self.by_hidden.dtype)
        if self.by_weight is None:
            return
        hidden = self.hidden[where]
        if self.by_weight.dtype != gradient.dtype:
            for tile in _tiles(self.weight):
                self._add_to_tile(tile, gradient[:, tile].t() @ hidden)
        elif self.is_first:
            torch.mm(gradient.t(), hidden, out=self.by_weight)
        else:
            self.by_weight.addmm_(gradient.t(), hidden)

    def _add_to_tile(self, tile: slice, part: Tensor) -> None:
        if self.by_weight is not None:
            written = self.by_weight[tile]
            written.copy_(part) if self.is_first else written.add_(part)

    def _add_in_float32(self, gradient: Tensor, where: slice | Tensor) -> None:
        hidden = self.hidden[where].float()
        if self.by_hidden is not None:
            total = torch.zeros_like(hidden)
            for tile, part in _float32_tiles(self.weight):
                total.addmm_(gradient[:, tile].float(), part)
            self.by_hidden[where] = total.to(self.by_hidden.dtype)
        if self.by_weight is not None:
            for tile in _tiles(self.weight):
                self._add_to_tile(tile, gradient[:, tile].float().t() @ hidden)

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients of hidden states, in the dtype of the sum, and of weight and bias, in their dtypes."""
        if self.is_first and self.by_weight is not None:
            self.by_weight.zero_()
        by_weight, by_bias = self.by_weight, self.by_bias
        return [
            self.by_hidden,
            None if by_weight is None else by_weight.to(self.weight.dtype),
            None if by_bias is None or self.bias is None else by_bias.to(self.bias.dtype),
        ]


class _TeacherHead(_Side):
    """A teacher with hidden states and a head."""

    def compare(
        self,
        spec: HeadSpec,
        q: Tensor,
        where: slice | Tensor,
        weights: Tensor | None,
        q_is_wanted: bool,
        labels: HardLabels | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the values of some positions and the gradients of both sides' logits; these overwrite the logits."""
        compute = value_and_gradient if spec.shards is None else spec.shards.value_and_gradient
        rows = RowDivergence(spec.kind, spec.temperature, labels=labels)
        return compute(rows, self.logits(where), q, weights, (self.is_wanted, q_is_wanted), True)


class _SparseTeacher:
    """A teacher that has only some classes, and no logits."""

    class_bytes = 0

    def __init__(self, rows: PartialRows, log_probs: Tensor, is_wanted: bool) -> None:
        self.rows = rows
        self.log_probs = log_probs
        self.by_log_probs = torch.zeros_like(log_probs) if is_wanted else None

    def prepare(self, rows: int, positions: int, is_sharded: bool) -> None:
        """Do nothing: the teacher needs no buffer."""

    def compare(
        self,
        spec: HeadSpec,
        q: Tensor,
        where: slice | Tensor,
        weights: Tensor | None,
        q_is_wanted: bool,
        labels: HardLabels | None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the values of some positions and the gradients of log-probabilities and the student's logits."""
        rows = self.rows.of_rows(where)
        shards = spec.shards
        shard = None if shards is None else Shard(shards.ranks, shards.start, shards.classes)
        classes = rows.classes(labels, shard)
        seen, sums = classes.read(q)
        log_probs = upcast(self.log_probs[where]).detach()
        by_p = by_q = None
        if weights is None or not (q_is_wanted or self.by_log_probs is not None):
            return rows.values(log_probs, seen, labels), by_p, by_q
        with torch.enable_grad():
            values = rows.values(log_probs.requires_grad_(), seen.requires_grad_(), labels)
        by_p, by_seen = torch.autograd.grad(
            values, [log_probs, seen], weights.to(values.dtype), allow_unused=True
        )
        if q_is_wanted:
            classes.write_gradient(q, seen.detach(), sums, by_seen, q)
            by_q = q
        return values.detach(), by_p if self.by_log_probs is not None else None, by_q

    def add(self, gradient: Tensor, where: slice | Tensor) -> None:
        """Store the gradient of the log-probabilities of some positions."""
        if self.by_log_probs is not None:
            self.by_log_probs[where] = gradient.to(self.by_log_probs.dtype)

    def gradients(self) -> list[Tensor | None]:
        """Return the gradient of the log-probabilities; the rest of the teacher has none."""
        return [self.by_log_probs]


def _is_slow_to_multiply(weight: Tensor) -> bool:
    """Return whether casting to float32 before a matrix product is faster than multiplying in this dtype."""
    if weight.dtype.itemsize >= 4 or not weight.is_cpu:
        return False
    return weight.dtype == torch.float16 or "AVX512" not in torch.backends.cpu.get_cpu_capability()


def _tiles(weight: Tensor) -> Iterator[slice]:
    most = _TILE_BYTES if torch.get_num_threads() == 1 else _TILE_BYTES_OF_SEVERAL_THREADS
    step = max(1, most // (4 * max(1, weight.shape[1])))
    return (slice(start, start + step) for start in range(0, weight.shape[0], step))


def _float32_tiles(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield tiles of a weight's rows in float32; each overwrites the one before."""
    buffer = None
    for tile in _tiles(weight):
        part = weight[tile]
        if buffer is None:
            buffer = torch.empty_like(part, dtype=torch.float32, memory_format=torch.contiguous_format)
        yield tile, buffer[: part.shape[0]].copy_(part)
