"""The divergence between two language-model heads as a row operation over chunks of positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from kullback.common.dtypes import accurate_dtype, upcast
from kullback.common.gradients import gradients_of
from kullback.generators import KL, BuiltIn, Divergence
from kullback.generators.growth import growth_of
from kullback.kernels import RowDivergence, logit_divergence, value_and_gradient
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.native import library
from kullback.kernels.row_operation import Evaluation, Gradients, TotalOperation, Wanted, Weights, row_weights
from kullback.losses.head_tensors import HeadTensors
from kullback.losses.settings import remembered
from kullback.losses.teachers import TeacherRows
from kullback.parallel.collectives import check_first_derivative
from kullback.parallel.rows import ShardedRows
from kullback.parallel.selected import Shard

# A chunk has at least this number of rows (positions) with one thread, and with several threads. Small
# chunks are slow, because each chunk reads the head, and reads and writes the head's gradient. Several threads need
# more rows, because they synchronize some hundred times in the matrix products of a chunk. In half precision, where
# products are faster, the numbers are doubled. `benchmarks/bench_head.py --constants` compares values of the constants.
# The processor time of one thread is equal within 10 % for 64 to 512 rows and for tiles of 1 to 64 MiB. The time is
# larger for 1,024 rows.
_MIN_ROWS_OF_ONE_THREAD = 256
_MIN_ROWS = 512
# The largest number of bytes of a chunk's logits is `_MAX_BYTES`, or the number of bytes of the head divided by
# `_HEAD_DIVISOR`, whichever is larger.
_MAX_BYTES = 32 << 20
_HEAD_DIVISOR = 4
# A tile is a block of rows of a head's weight, in float32. A tile has this size in bytes with one thread, and with
# several threads. A tile should fit in a core's cache. Several threads get larger tiles, because they
# synchronize after each tile.
_TILE_BYTES = 8 << 20
_TILE_BYTES_OF_SEVERAL_THREADS = 32 << 20
# A device other than the CPU has no such cache, and needs large products to occupy all its processors.
_TILE_BYTES_OFF_THE_CPU = 256 << 20
# The largest number of chunks whose half-precision gradients are summed in half precision; the gradients of more chunks
# are summed in float32. The rounding error of such a sum is at most the rounding error of one product.
_MAX_HALF_SUMS = 16
# If the derivatives of a divergence may overflow, this number bounds the derivative with respect to a logit, divided by
# the row's weighted value.
_MAX_DERIVATIVE_PER_VALUE = 1e6


class Head(NamedTuple):
    """The settings of a head with the logits softcap * tanh(scale * (W h + b) / softcap) of hidden states h."""

    softcap: float | None
    scale: float | None  # None means 1
    float32_logits: bool

    def logits_dtype(self, weight: Tensor) -> torch.dtype:
        """Return the dtype of the logits of a head with the weight `weight`."""
        return torch.promote_types(weight.dtype, torch.float32) if self.float32_logits else weight.dtype

    def reference(self, tensors: HeadTensors) -> Tensor:
        """Return the logits of all positions, computed by differentiable operations."""
        hidden, weight, bias = tensors
        dtype = self.logits_dtype(weight)
        bias = None if bias is None else bias.to(dtype)
        logits = torch.nn.functional.linear(hidden.to(dtype), weight.to(dtype), bias)
        logits = logits if self.scale is None else logits * self.scale
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class StoredTensors(NamedTuple):
    """The log-probabilities of a stored teacher, which take the place of the tensors of a head."""

    log_probs: Any

    def map_rows(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the tensors with `function` applied to the log-probabilities, which have one row for each position."""
        return self if self.log_probs is None else self._replace(log_probs=function(self.log_probs))


def sides_of(tensors: Sequence[Any]) -> tuple[HeadTensors, Any]:
    """Return the student's and the teacher's tensors from the arguments of autograd's functions."""
    student, teacher = tensors[:3], tensors[3:]
    return HeadTensors(*student), HeadTensors(*teacher) if len(teacher) > 1 else StoredTensors(*teacher)


@dataclass(slots=True, eq=False)
class HeadRows(TotalOperation):
    """A row operation over the student's head, then the teacher's head or stored rows; `sides_of` separates the
    arguments. If `has_second`, the second output is the student's entropy at each position.
    """

    student: Head
    teacher: Head | TeacherRows
    kind: Divergence
    temperature: float
    dtype: torch.dtype  # the dtype of the values
    overflows: bool  # whether the gradient with respect to the logits may overflow
    chunk_bytes: int | None  # the number of bytes for the logits of a chunk; None for the default
    counted: Tensor | None  # the indices of the positions that count; None for all
    labels: HardLabels | None
    weights: Weights = None  # the constant weights of the positions in the total
    scale: float = 1.0
    shards: ShardedRows | None = None  # the operation on shards, if the classes of the heads are sharded
    widest: int = 0  # the largest number of classes of a rank
    has_second: bool = False

    def compute(self, *tensors: Any) -> tuple[Tensor, ...]:
        values, _, *second = sweep(self, tensors, None, (False,) * len(tensors))
        return values.to(self.dtype), *second

    def total(self, tensors: Any, wanted: Wanted) -> tuple[Any, ...]:
        weights = row_weights(self.weights, tensors[0], self.scale)
        values, gradients, *second = sweep(self, tensors, weights, wanted)
        return torch.where(weights == 0, 0, weights * values).sum().to(self.dtype), gradients, *second

    def gradients(self, tensors: Any, kept: Any, grad: Tensor, wanted: Wanted, is_plain: bool) -> Gradients:
        """Return the gradients from logits that are computed again in chunks. If torch differentiates or batches the
        backward pass, all logits are computed at once, differentiably.
        """
        if self.shards is not None:
            check_first_derivative(self.shards.ranks, grad)
        if not is_plain:
            excluded = None  # the positions that do not count
            if self.counted is not None:
                excluded = tensors[0].new_ones(len(tensors[0]), dtype=torch.bool)
                excluded = excluded.index_fill(0, self.counted, False)
            return gradients_of(lambda aliases: self.reference_rows(aliases, excluded), tensors, grad, wanted)
        return self.complete(sweep(replace(self, has_second=False), tensors, upcast(grad), wanted)[1])

    def complete(self, gradients: Gradients) -> Gradients:
        """Return `gradients`, with hidden states' gradients summed over the ranks. Autograd casts the sums."""
        if self.shards is None:
            return gradients
        student, teacher = sides_of(gradients)
        student = student.map_rows(self.shards.ranks.sum)
        # The gradient of stored log-probabilities is already complete on every rank, so it is not summed.
        teacher = teacher.map_rows(self.shards.ranks.sum) if isinstance(teacher, HeadTensors) else teacher
        return [*student, *teacher]

    def reference_rows(self, tensors: Sequence[Any], excluded: Tensor | None) -> Tensor:
        """Return the divergence of each position, by differentiable operations on all logits at once."""
        if self.overflows:  # an infinite gradient of the logits would give inf - inf, which is NaN
            tensors = [x if x is None else upcast(x) for x in tensors]
        student, teacher = sides_of(tensors)
        if excluded is not None:
            rows = excluded.unsqueeze(-1)  # so that NaN at an excluded position does not reach a gradient
            student, teacher = (x.map_rows(lambda y: torch.where(rows, 0, y)) for x in (student, teacher))
        values = self._reference_values(self.student.reference(student), teacher)
        return values if excluded is None else torch.where(excluded, 0, values)

    def _reference_values(self, student: Tensor, teacher: Any) -> Tensor:
        """Return the divergence of each row from the student's logits and the teacher's tensors."""
        if isinstance(self.teacher, TeacherRows):
            selected = self.teacher.classes(self.labels).of(student)
            return self.teacher.values(upcast(teacher.log_probs), selected, self.labels).to(self.dtype)
        p = self.teacher.reference(teacher)
        classes = max(student.shape[-1], p.shape[-1])
        p, q = (
            torch.nn.functional.pad(x, (0, classes - x.shape[-1]), value=-torch.inf) for x in (p, student)
        )
        return logit_divergence(RowDivergence(self.kind, self.temperature, self.dtype, self.labels), p, q)

    def entropy(self, logits: Tensor) -> Tensor:
        """Return the student's entropy in each row, which is log(classes) - KL(student || uniform)."""
        uniform = logits.new_zeros(1, logits.shape[-1]).expand_as(logits)
        compute, classes = value_and_gradient, logits.shape[-1]
        if self.shards is not None:
            compute, classes = self.shards.value_and_gradient, self.shards.classes
        values, *_ = compute(RowDivergence(KL(), self.temperature), logits, uniform, None, (False, False))
        return (math.log(classes) - values).clamp(min=0)

    def reference_entropies(self, tensors: Sequence[Any], excluded: Tensor | None) -> Tensor:
        """Return the student's entropy at each position from all logits at once; 0 if excluded."""
        student, _ = sides_of([x if x is None else x.detach() for x in tensors])
        logits = self.student.reference(student)
        uniform = torch.zeros_like(logits)
        values = logit_divergence(RowDivergence(KL(), self.temperature, self.dtype), logits, uniform)
        values = (math.log(logits.shape[-1]) - values).clamp(min=0)
        return values if excluded is None else torch.where(excluded, 0, values)

    def chunk_rows(
        self, positions: int, row_bytes: int, head_bytes: int, item_bytes: int, device: str
    ) -> int:
        """Return the number of positions of a chunk, chosen such that all chunks have nearly the same size."""
        if self.chunk_bytes is None:
            is_alone = device == "cpu" and torch.get_num_threads() == 1
            least = (_MIN_ROWS_OF_ONE_THREAD if is_alone else _MIN_ROWS) * 4 // min(item_bytes, 4)
            most = max(least, max(_MAX_BYTES, head_bytes // _HEAD_DIVISOR) // row_bytes)
        else:
            most = max(1, self.chunk_bytes // row_bytes)
        return -(-positions // max(1, -(-positions // most)))


@remembered
def may_overflow(kind: Divergence) -> bool:
    """Return whether powers of p/q may make derivatives by logits much larger than the position's weight."""
    return not isinstance(kind, BuiltIn) or (
        kind.additive and max(end.rate for end in growth_of(kind)[:2]) > 0
    )


def sweep(operation: HeadRows, tensors: Sequence[Any], weights: Weights, wanted: Wanted) -> tuple[Any, ...]:
    """Return the divergence of each position, the gradients of their weighted sum and, if `operation.has_second`, the
    entropies; 0 where a position does not count. `weights` are in the device's best dtype, or None without gradients.
    Where a gradient by logits overflows, its products become NaN, and the position is computed again in float64.
    """
    values, gradients, *second = _sweep(operation, tensors, weights, wanted)
    accurate = values.dtype
    if weights is None or not operation.overflows:
        return values, gradients, *second
    ranges = [torch.finfo(x.dtype).max for x in tensors if x is not None]
    if min(ranges) == torch.finfo(accurate).max:
        return values, gradients, *second
    are_finite = [x.isfinite().all() for x in gradients if x is not None]
    if not are_finite:
        return values, gradients, *second
    is_far = (weights * values).abs() > min(ranges) / _MAX_DERIVATIVE_PER_VALUE
    is_needed = is_far.any()
    if operation.shards is None:  # otherwise, gradients of another rank may be infinite
        is_needed = is_needed & ~torch.stack(are_finite).all()
    # Only divergences whose derivatives may overflow come here. No other line of this module waits for a GPU, unless
    # positions are computed again.
    if not bool(is_needed):
        return values, gradients, *second
    operation, counts = replace(operation, has_second=False), ~is_far
    if operation.counted is not None:
        counts &= torch.zeros_like(is_far).index_fill(0, operation.counted, True)
    near, far = (replace(operation, counted=x.nonzero().squeeze(-1)) for x in (counts, is_far))
    _, gradients = _sweep(near, tensors, weights, wanted)
    _, added = _sweep(far, [x if x is None else x.to(accurate) for x in tensors], weights, wanted)
    sums = [x if x is None or y is None else x + y for x, y in zip(gradients, added, strict=True)]
    rounded = [x if x is None or y is None else x.to(y.dtype) for x, y in zip(sums, gradients, strict=True)]
    if operation.shards is None:
        return values, rounded, *second
    # The gradients of hidden states are not rounded here, because they are summed over the ranks before rounding.
    (student, teacher), (exact_student, exact_teacher) = sides_of(rounded), sides_of(sums)
    student = student._replace(hidden=exact_student.hidden)
    if isinstance(teacher, HeadTensors):
        teacher = teacher._replace(hidden=exact_teacher.hidden)
    return values, [*student, *teacher], *second


def _sweep(operation: HeadRows, tensors: Sequence[Any], weights: Weights, wanted: Wanted) -> tuple[Any, ...]:
    """Return the same results as `sweep`, except that no position is computed again in float64."""
    (student, teacher), (by_student, by_teacher) = sides_of(tensors), sides_of(wanted)
    dtype = accurate_dtype(student.hidden.device) if weights is None else weights.dtype
    values = student.hidden.new_zeros(student.hidden.shape[0], dtype=dtype)
    entropies = torch.zeros_like(values, dtype=operation.dtype) if operation.has_second else None
    with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
        positions = values.shape[0] if operation.counted is None else operation.counted.shape[0]
        if isinstance(operation.teacher, TeacherRows):
            classes = len(student.weight)
            p_side = _StoredSide(operation.teacher, teacher.log_probs, by_teacher.log_probs)
        else:
            classes = max(len(student.weight), len(teacher.weight))
            p_side = _Side(operation.teacher, teacher, by_teacher, classes)
        q_side = _Side(operation.student, student, by_student, classes)
        width = operation.widest or classes
        row_bytes = max(1, (q_side.class_bytes + p_side.class_bytes) * width)
        head_bytes = width * q_side.weight.shape[1] * q_side.weight.dtype.itemsize
        rows = operation.chunk_rows(
            positions, row_bytes, head_bytes, q_side.dtype.itemsize, values.device.type
        )
        for side in (q_side, p_side):
            if isinstance(side, _Side):
                side.prepare(rows, positions, operation.shards is not None)
        for start in range(0, positions, max(rows, 1)):
            chunk = slice(start, min(start + rows, positions))
            where = chunk if operation.counted is None else operation.counted[chunk]
            weighted = None if weights is None else weights[where]
            q = q_side.logits(where)
            if entropies is not None:
                entropies[where] = operation.entropy(q).to(entropies.dtype)
            values[where], by_p, by_q = p_side.compare(operation, q, where, weighted, q_side.is_wanted)
            if by_p is not None:
                p_side.add(by_p, where)
            if by_q is not None:
                q_side.add(by_q, where)
        gradients = q_side.gradients() + p_side.gradients()
        return (values, gradients) if entropies is None else (values, gradients, entropies)


class _Side:
    """One head during the pass over the chunks, with the buffers of its logits and the sums of its gradients."""

    def __init__(self, head: Head, tensors: HeadTensors, wanted: HeadTensors, classes: int) -> None:
        self.head = head
        self.hidden, self.weight, self.bias = tensors
        self.wanted = wanted
        self.is_wanted = any(wanted)
        self.classes = classes
        self.dtype = head.logits_dtype(self.weight)
        self.buffers = 2 if self.is_wanted and head.softcap is not None else 1
        self.class_bytes = self.buffers * self.dtype.itemsize
        self.is_slow = _is_slow_to_multiply(self.weight)

    def prepare(self, rows: int, positions: int, is_sharded: bool) -> None:
        """Allocate the buffers for chunks of `rows` positions, and the tensors that sum the gradients."""
        half = self.dtype.itemsize < 4 or self.weight.dtype.itemsize < 4
        chunk = self.weight.new_empty(1, 1).expand(rows, self.classes)
        self.buffer = library.empty_like(chunk, dtype=self.dtype)
        self.spare = library.empty_like(chunk, dtype=self.dtype) if self.buffers > 1 else None
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        sums = dtype if half and positions > _MAX_HALF_SUMS * rows else self.weight.dtype
        # If the classes are sharded, the gradient of the hidden states is summed over the ranks before rounding, so it
        # is not rounded here.
        summed = dtype if is_sharded else self.hidden.dtype
        self.by_hidden = torch.zeros_like(self.hidden, dtype=summed) if self.wanted.hidden else None
        self.by_weight = library.empty_like(self.weight, dtype=sums) if self.wanted.weight else None
        self.is_first = True  # the first chunk writes the weight's gradient, and later chunks add to it
        self.by_bias = (
            torch.zeros_like(self.bias, dtype=dtype) if self.wanted.bias and self.bias is not None else None
        )

    def logits(self, where: slice | Tensor) -> Tensor:
        """Write the logits of the positions `where` to the buffer, -inf for classes that this head lacks."""
        hidden, own = self.hidden[where], self.weight.shape[0]
        logits = self.buffer[: hidden.shape[0]]
        self._write(hidden, logits[:, :own])
        logits[:, own:] = -torch.inf
        if self.spare is not None:
            self.spare[: hidden.shape[0]].copy_(logits)
        return logits

    def _write(self, hidden: Tensor, out: Tensor) -> None:
        """Write the logits of the hidden states to `out`, shape (positions, classes of this head)."""
        weight, head = self.weight, self.head
        if out.dtype != weight.dtype and _sums_in_float32(weight):
            torch.mm(hidden, weight.t(), out_dtype=out.dtype, out=out)
        elif self.is_slow or out.dtype != weight.dtype:
            hidden32 = hidden.float()
            for tile, part in _float32_tiles(weight):
                out[:, tile].copy_(hidden32 @ part.t())
        elif weight.is_cpu and weight.dtype == torch.float32 and torch.get_num_threads() == 1:
            # With one thread, tiles make a product of few positions up to a third faster. Several threads would have to
            # wait for each other after each tile, so they compute the product without tiles.
            for tile in _tiles(weight):
                torch.mm(hidden, weight[tile].t(), out=out[:, tile])
        else:
            torch.mm(hidden, weight.t(), out=out)
        if self.bias is not None:
            out.add_(self.bias)
        if head.scale not in (None, 1):
            out.mul_(head.scale)
        if head.softcap is not None:
            out.div_(head.softcap).tanh_().mul_(head.softcap)

    def add(self, gradient: Tensor, where: slice | Tensor) -> None:
        """Add the products of `gradient`, by the logits of the positions `where`, to the sums, and overwrite it."""
        gradient = gradient[:, : self.weight.shape[0]]
        if self.head.softcap is not None and self.spare is not None:
            derivative = self.spare[: gradient.shape[0], : gradient.shape[1]]
            gradient.mul_(derivative.div_(self.head.softcap).square_().neg_().add_(1))
        if self.head.scale not in (None, 1):
            gradient.mul_(self.head.scale)
        if self.by_bias is not None:
            self.by_bias += gradient.sum(0, dtype=self.by_bias.dtype)
        if self.is_slow:
            self._add_in_float32(gradient, where)
        else:
            self._add(gradient.to(self.weight.dtype), where)
        self.is_first = False

    def _add(self, gradient: Tensor, where: slice | Tensor) -> None:
        sums_in_float32 = _sums_in_float32(gradient)
        if self.by_hidden is not None:
            dtype = self.by_hidden.dtype
            if dtype != gradient.dtype and sums_in_float32:
                self.by_hidden[where] = torch.mm(gradient, self.weight, out_dtype=dtype)
            else:
                self.by_hidden[where] = (gradient @ self.weight).to(dtype)
        if self.by_weight is None:
            return
        hidden, dtype = self.hidden[where], self.by_weight.dtype
        if dtype != gradient.dtype and sums_in_float32:
            if self.is_first:
                torch.mm(gradient.t(), hidden, out_dtype=dtype, out=self.by_weight)
            else:
                torch.addmm(self.by_weight, gradient.t(), hidden, out_dtype=dtype, out=self.by_weight)
        elif dtype != gradient.dtype:
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
        """Return the gradients of hidden states (in the dtype of the sum), weight and bias."""
        if self.is_first and self.by_weight is not None:
            self.by_weight.zero_()
        by_weight, by_bias = self.by_weight, self.by_bias
        return [
            self.by_hidden,
            None if by_weight is None else by_weight.to(self.weight.dtype),
            None if by_bias is None or self.bias is None else by_bias.to(self.bias.dtype),
        ]

    def compare(
        self, operation: HeadRows, q: Tensor, where: slice | Tensor, weights: Weights, q_is_wanted: bool
    ) -> Evaluation:
        """Return the values at `where`, and the gradients by both sides' logits, which the gradients overwrite."""
        compute = value_and_gradient if operation.shards is None else operation.shards.value_and_gradient
        labels = None if operation.labels is None else operation.labels.of_rows(where)
        rows = RowDivergence(operation.kind, operation.temperature, labels=labels)
        return compute(rows, self.logits(where), q, weights, (self.is_wanted, q_is_wanted), True)


class _StoredSide:
    """A stored teacher during the pass over the chunks: its log-probabilities and their gradient."""

    class_bytes = 0

    def __init__(self, rows: TeacherRows, log_probs: Tensor, is_wanted: bool) -> None:
        self.rows = rows
        self.log_probs = log_probs
        self.by_log_probs = torch.zeros_like(log_probs) if is_wanted else None

    def compare(
        self, operation: HeadRows, q: Tensor, where: slice | Tensor, weights: Weights, q_is_wanted: bool
    ) -> Evaluation:
        """Return the values of the positions `where`, and the gradients of log-probabilities and of logits `q`."""
        rows = self.rows.of_rows(where)
        labels = None if operation.labels is None else operation.labels.of_rows(where)
        shards = operation.shards
        shard = None if shards is None else Shard(shards.ranks, shards.start, shards.classes)
        classes = rows.classes(labels, shard)
        selected, sums = classes.read(q)
        log_probs = self.log_probs[where].detach()
        by_p = by_q = None
        if weights is None or not (q_is_wanted or self.by_log_probs is not None):
            return rows.values(log_probs, selected, labels), by_p, by_q
        with torch.enable_grad():
            values = rows.values(log_probs.requires_grad_(), selected.requires_grad_(), labels)
        by_p, by_selected = torch.autograd.grad(
            values, [log_probs, selected], weights.to(values.dtype), allow_unused=True
        )
        if q_is_wanted:
            classes.write_gradient(q, (selected.detach(), sums), by_selected, q)
            by_q = q
        return values.detach(), by_p if self.by_log_probs is not None else None, by_q

    def add(self, gradient: Tensor, where: slice | Tensor) -> None:
        """Store `gradient`, the gradient of the log-probabilities of the positions `where`."""
        if self.by_log_probs is not None:
            self.by_log_probs[where] = gradient.to(self.by_log_probs.dtype)

    def gradients(self) -> list[Tensor | None]:
        """Return a list with the gradient of the teacher's log-probabilities, or with None if it is not wanted."""
        return [self.by_log_probs]


def _is_slow_to_multiply(weight: Tensor) -> bool:
    """Return whether a matrix product on the CPU is faster after a cast of the weight to float32."""
    if weight.dtype.itemsize >= 4 or not weight.is_cpu:
        return False
    return weight.dtype == torch.float16 or "AVX512" not in torch.backends.cpu.get_cpu_capability()


def _sums_in_float32(x: Tensor) -> bool:
    """Return whether the device has half-precision products with float32 results (no CPU, not all AMD GPUs)."""
    return x.is_cuda and torch.version.hip is None and x.dtype.itemsize < 4


def _tiles(weight: Tensor) -> Iterator[slice]:
    if not weight.is_cpu:
        most = _TILE_BYTES_OFF_THE_CPU
    else:
        most = _TILE_BYTES if torch.get_num_threads() == 1 else _TILE_BYTES_OF_SEVERAL_THREADS
    step = max(1, most // (4 * max(1, weight.shape[1])))
    return (slice(start, start + step) for start in range(0, weight.shape[0], step))


def _float32_tiles(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows of each tile as a slice and in float32, in one buffer that the next tile overwrites."""
    buffer = None
    for tile in _tiles(weight):
        part = weight[tile]
        if buffer is None:
            buffer = torch.empty_like(part, dtype=torch.float32, memory_format=torch.contiguous_format)
        yield tile, buffer[: part.shape[0]].copy_(part)
