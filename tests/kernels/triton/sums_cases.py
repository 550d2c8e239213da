"""What the Triton kernels of sums must do on the device of KULLBACK_TRITON_DEVICE; `test_sums` runs this in other
processes.

On the CPU the kernels run in Triton's interpreter, which must be chosen before Triton is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, partialmethod
from typing import Any, NamedTuple
from unittest import mock

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from kullback import KL, ChiSquared, Divergence, Jeffreys, JensenShannon, ReverseKL, SkewKL, TotalVariation
from kullback.functional import (
    SampledTail,
    TopK,
    distillation_loss,
    linear_distillation_loss,
    top_k_divergence,
)
from kullback.kernels import reference, selected_rows
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.native import native_rows
from kullback.kernels.reference import RowDivergence
from kullback.kernels.selected_rows import SelectedClasses
from kullback.kernels.triton import triton_rows, triton_sums
from kullback.kernels.triton.available import DTYPES
from kullback.losses.teachers import Shard
from kullback.parallel.rows import ShardedRows
from kullback.parallel.selected import ShardedClasses
from tests.kernels.triton.hardware import use_hardware_errors
from tests.losses.test_linear_on_gpus import Waits

DEVICE = os.environ.get("KULLBACK_TRITON_DEVICE", "cpu")
INF, NAN = float("inf"), float("nan")
FLOAT32 = torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def _only_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """C++ would come first on the CPU. NumPy, which interprets the kernels, would warn of infinities. The larger of NaN
    and a number is the number on a GPU, and NaN in the interpreter.
    """
    if DEVICE == "cpu":
        use_hardware_errors(monkeypatch)
        maximum = partialmethod(InterpreterBuilder.binary_op, op=np.fmax)
        monkeypatch.setattr(InterpreterBuilder, "create_maxnumf", maximum)
    with np.errstate(all="ignore"), mock.patch.object(selected_rows, "serves", return_value=False):
        yield


def on_device(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return x.to(DEVICE, dtype)


class Results(NamedTuple):
    columns: Tensor
    gradient: Tensor


def by_triton(classes: SelectedClasses, logits: Tensor, grad: Tensor, out: Tensor | None = None) -> Results:
    columns, sums = classes.read(logits)
    assert sums.shape == (len(logits), 1 if classes.labels is None else 4)
    gradient = torch.full_like(logits, 7) if out is None else out
    with mock.patch.object(triton_sums, "write_exponentials", wraps=triton_sums.write_exponentials) as kernel:
        classes.write_gradient(logits, (columns, sums), grad, gradient)
    assert kernel.called
    return Results(columns, gradient)


def in_float64(classes: SelectedClasses, logits: Tensor, grad: Tensor) -> Results:
    """The reference, which has tests of its own against an independent formula."""
    columns = classes.read_block(logits.double())
    return Results(columns, classes.gradient_of_block(logits.double(), columns, grad))


def check(classes: SelectedClasses, logits: Tensor) -> Results:
    columns = classes.indices.shape[-1] + (1 if classes.labels is None else 2)
    grad = on_device(torch.randn(len(logits), columns, dtype=torch.float64))
    mine, true = by_triton(classes, logits, grad), in_float64(classes, logits, grad)
    torch.testing.assert_close(mine.columns, true.columns, rtol=5e-7, atol=5e-7)
    # A gradient may be wrong by its rounding, and by rounding of the sum of exponentials.
    unit = torch.finfo(logits.dtype).eps
    size = true.gradient.abs()
    allowed = unit * size + 2e-6 * size.amax(-1, keepdim=True) + torch.finfo(logits.dtype).tiny * unit
    assert ((mine.gradient.double() - true.gradient).abs() <= allowed).all()
    return mine


def indices_of(rows: int, classes: int, k: int) -> Tensor:
    return on_device(torch.stack([torch.randperm(classes)[:k] for _ in range(rows)]))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("is_labeled", [False, True])
@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_rows(dtype: torch.dtype, leaves_out: bool, is_labeled: bool, temperature: float) -> None:
    logits = on_device(4 * torch.randn(7, 9)).to(dtype)
    logits[1, :4] = -INF
    logits[2] += 1000
    indices = indices_of(7, 9, 3)
    indices[3, 1] = -1  # padding
    indices[4] = -1
    if not leaves_out:
        indices[5] = indices[5, 0]  # a class that was drawn three times
    labels = on_device(torch.tensor([0, 4, 8, 2, 3, 5, 6])) if is_labeled else None
    if labels is not None:
        labels[6] = indices[6, 1]
    check(SelectedClasses(indices, temperature, leaves_out, labels), logits)


@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize(("classes", "k"), [(1, 1), (1023, 1), (5001, 40), (300, 300)])
def test_rows_of_other_sizes(classes: int, k: int, leaves_out: bool) -> None:
    logits = on_device(3 * torch.randn(2, classes))
    indices = indices_of(2, classes, k)
    mine = check(SelectedClasses(indices, 1.0, leaves_out, None), logits)
    check(SelectedClasses(indices, 1.0, leaves_out, indices[:, -1]), logits)
    if leaves_out and k == classes:
        assert (mine.columns[:, -1] == -INF).all()


def test_the_mass_outside_the_selected_classes_keeps_its_digits() -> None:
    """The mass outside is 1e-26 of the whole: a difference of sums would lose it."""
    logits = on_device(torch.randn(2, 3000)) - 60
    indices = indices_of(2, 3000, 4)
    logits.scatter_(-1, indices, 20.0)
    check(SelectedClasses(indices, 1.0, True, indices[:, 0]), logits)


@pytest.mark.parametrize("temperature", [1.0, 0.25, 3.0])
def test_logits_at_the_end_of_the_range(temperature: float) -> None:
    rows = [
        [3e38, 3e38, -INF, -3e38],
        [-3e38, -3e38, -3e38, -INF],
        [FLOAT32, -FLOAT32, 0.0, 1.0],
        [1e30, 1e30, 0, 0],
    ]
    logits = on_device(torch.tensor(rows))
    for leaves_out in (False, True):
        indices = on_device(torch.tensor([[0], [1], [2], [3]]))
        check(SelectedClasses(indices, temperature, leaves_out, None), logits)


def test_a_row_with_nan_or_infinity_is_alone() -> None:
    logits = on_device(torch.randn(5, 300))
    logits[1, 299], logits[2, 4], logits[3] = NAN, INF, -INF
    indices, labels = indices_of(5, 300, 2), on_device(torch.tensor([1, 2, 3, 4, 5]))
    grad = on_device(torch.randn(5, 4, dtype=torch.float64))
    for leaves_out in (False, True):
        classes = SelectedClasses(indices, 1.0, leaves_out, labels)
        mine, true = by_triton(classes, logits, grad), in_float64(classes, logits, grad)
        for test in (torch.isnan, torch.isinf):
            assert torch.equal(test(mine.columns), test(true.columns))
        torch.testing.assert_close(mine.columns[[0, 4]], true.columns[[0, 4]], rtol=5e-7, atol=5e-7)
        torch.testing.assert_close(
            mine.gradient[[0, 4]].double(), true.gradient[[0, 4]], rtol=1e-6, atol=1e-6
        )
        assert not mine.gradient[1:3].isfinite().all(-1).any()
        unused = by_triton(classes, logits, torch.zeros_like(grad)).gradient  # rows that do not count
        assert (unused == 0).all()


def test_a_label_without_any_other_class() -> None:
    """The student gives no mass to a class that the teacher lists."""
    logits = on_device(torch.tensor([[0.4, -INF, -INF], [-0.6, 0.8, -INF]]))
    labels = on_device(torch.tensor([0, 1]))
    for leaves_out in (False, True):
        mine = check(
            SelectedClasses(on_device(torch.tensor([[1, 0], [2, 0]])), 2.0, leaves_out, labels), logits
        )
        assert mine.gradient.isfinite().all()


def test_any_strides_are_read_and_overwritten() -> None:
    indices, grad = indices_of(2, 300, 3), on_device(torch.randn(2, 4, dtype=torch.float64))
    classes = SelectedClasses(indices, 2.0, True, None)
    for logits in (
        on_device(torch.randn(300, 2)).T,
        on_device(torch.randn(2, 601)).bfloat16()[:, 1::2],
        on_device(torch.randn(300)).half().expand(2, 300),
    ):
        want = by_triton(classes, logits.contiguous(), grad)
        mine = by_triton(classes, logits, grad)
        assert all(map(torch.equal, mine, want))
        if logits.stride(0):
            assert torch.equal(by_triton(classes, logits, grad, out=logits).gradient, want.gradient)


def test_equal_calls_have_equal_results_and_rows_do_not_depend_on_each_other() -> None:
    logits, indices = on_device(torch.randn(6, 4500)), indices_of(6, 4500, 5)
    grad = on_device(torch.randn(6, 6, dtype=torch.float64))

    def results(rows: slice) -> Results:
        return by_triton(SelectedClasses(indices[rows], 1.0, True, None), logits[rows], grad[rows])

    whole = results(slice(None))
    for again in (
        results(slice(None)),
        [torch.cat(x) for x in zip(results(slice(4)), results(slice(4, 6)), strict=True)],
    ):
        assert all(map(torch.equal, whole, again))


def test_no_operation_reads_values_for_which_a_gpu_would_have_to_finish() -> None:
    logits, indices = on_device(torch.randn(3, 300)), indices_of(3, 300, 4)
    classes = SelectedClasses(indices, 2.0, True, indices[:, 0])
    grad = on_device(torch.randn(3, 6, dtype=torch.float64))
    with Waits() as waits:
        columns, sums = classes.read(logits)
        classes.write_gradient(logits, (columns, sums), grad, torch.empty_like(logits))
    assert waits.count == 0


def test_no_rows() -> None:
    logits, indices = on_device(torch.zeros(0, 5)), on_device(torch.zeros(0, 2, dtype=torch.long))
    labels = on_device(torch.zeros(0, dtype=torch.long))
    assert triton_sums.log_sums(logits, 1.0, indices, labels).shape == (0, 4)
    columns, sums = SelectedClasses(indices, 1.0, True, labels).read(logits)
    assert columns.shape == (0, 4)
    SelectedClasses(indices, 1.0, True, labels).write_gradient(logits, (columns, sums), columns, logits)


def test_offsets_beyond_32_bits() -> None:
    far = torch.empty(2**31 + 600, dtype=torch.float16, device=DEVICE)
    logits = far.as_strided((2, 300), (2**31, 1))
    logits.copy_(torch.randn(2, 300))
    classes = SelectedClasses(indices_of(2, 300, 2), 1.0, True, None)
    grad = on_device(torch.randn(2, 3, dtype=torch.float64))
    want = by_triton(classes, logits.clone(), grad)
    assert all(map(torch.equal, by_triton(classes, logits, grad, out=logits), want))


def test_what_the_kernels_leave_to_others() -> None:
    logits = on_device(torch.zeros(2, 3))
    assert triton_sums.serves(logits)
    for other in (
        logits.double(),
        logits[:, :0],
        logits.to("meta"),
        torch.complex(logits, logits).conj().imag,  # its memory has the other sign
    ):
        assert not triton_sums.serves(other)
    assert not triton_sums.serves(logits, 1e31)
    assert not triton_sums.serves(logits, 1.0, 2000)


@pytest.mark.parametrize("temperature", [1e-30, 0.3, 1.0, 2.0, 2**0.5, 7.0, 1e30])
def test_the_parts_of_the_scale_are_positive_and_have_its_digits(temperature: float) -> None:
    high, low = triton_sums._parts_of_scale(temperature)
    scale = 1 / (mpmath.log(2) * temperature)
    assert 0 < low < 3e-7 * high
    assert abs(mpmath.mpf(high) + low - scale) <= scale * 2**-46
    assert all(float(np.float32(x)) == x for x in (high, low))


def teachers(logits: Tensor, k: int) -> list[Any]:
    log_probs, indices = logits.log_softmax(-1).topk(k)
    draws = SampledTail.draw(logits.cpu(), k=k, draws=6, generator=torch.Generator().manual_seed(1))
    tops = [TopK(indices, log_probs, tail) for tail in ("bucket", "renormalize", "zero")]
    top = TopK(on_device(draws.top.indices), on_device(draws.top.log_probs))
    rest = (on_device(x) for x in (draws.tail_indices, draws.tail_log_probs, draws.tail_log_mass))
    return [*tops, SampledTail(top, *rest)]


@pytest.mark.parametrize("kind", [KL(), JensenShannon(), TotalVariation()], ids=repr)
def test_losses_have_the_values_and_all_derivatives_of_the_reference(kind: Divergence) -> None:
    student, logits = on_device(2 * torch.randn(5, 40)), on_device(2 * torch.randn(5, 40))
    labels = on_device(torch.tensor([1, -100, 3, 39, 0]))

    def derivatives(teacher: Any, student: Tensor) -> list[Tensor]:
        leaf = student.clone().requires_grad_()
        loss = distillation_loss(student=leaf, teacher=teacher, kind=kind, labels=labels, label_weight=0.3)
        (alone,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        (first,) = torch.autograd.grad(loss, leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), leaf)
        return [loss.detach(), alone, first.detach(), second]

    for teacher in teachers(logits, 8):
        with mock.patch.object(triton_sums, "log_sums", wraps=triton_sums.log_sums) as kernel:
            mine = derivatives(teacher, student)
        assert kernel.called
        for got, want in zip(mine, derivatives(teacher, student.double()), strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_top_k_divergence_is_as_close_to_fifty_digits_as_torch_in_that_dtype(dtype: torch.dtype) -> None:
    student, teacher = torch.randn(6, 12).to(dtype), torch.randn(6, 12)
    log_probs, indices = teacher.double().log_softmax(-1).topk(3)
    log_probs = log_probs.to(dtype)
    leaf = on_device(student).requires_grad_()
    values = top_k_divergence(KL(), TopK(on_device(indices), on_device(log_probs)), leaf)
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    plain = student.clone().requires_grad_()
    log_q = plain.log_softmax(-1)
    left_q = 1 - log_q.exp().gather(-1, indices).sum(-1)
    left_p = 1 - log_probs.exp().sum(-1)
    eager = (log_probs.exp() * (log_probs - log_q.gather(-1, indices))).sum(-1) + left_p * (
        left_p / left_q
    ).log()
    (eager_gradient,) = torch.autograd.grad(eager.sum(), plain)
    for row in range(6):
        true, by = _true_top_k(log_probs[row].tolist(), indices[row].tolist(), student[row].tolist())
        budget = abs(eager[row].item() - true) + 1e-6 * true + 1e-13
        assert abs(values[row].item() - true) <= budget
        exact = torch.tensor(by, dtype=torch.float64)
        budget = (eager_gradient[row].double() - exact).abs() + torch.finfo(dtype).eps * exact.abs()
        assert ((gradient[row].cpu().double() - exact).abs() <= budget + 1e-6 * exact.norm()).all()


def _true_top_k(
    log_probs: list[float], indices: list[int], student: list[float]
) -> tuple[float, list[float]]:
    """KL between the kept classes with the rest as one class, and its gradient, at 50 digits."""
    with mpmath.workdps(50):
        powers = [mpmath.exp(x) for x in student]
        q = [x / mpmath.fsum(powers) for x in powers]
        p = [mpmath.exp(x) for x in log_probs]
        rest_p, rest_q = 1 - mpmath.fsum(p), mpmath.fsum(x for i, x in enumerate(q) if i not in indices)
        value = mpmath.fsum(a * mpmath.log(a / q[i]) for a, i in zip(p, indices, strict=True))
        value += rest_p * mpmath.log(rest_p / rest_q)
        by = [x - (p[indices.index(i)] if i in indices else rest_p * x / rest_q) for i, x in enumerate(q)]
        return float(value), [float(x) for x in by]


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_labels_are_added_to_the_row_kernel(share: float) -> None:
    p, q = on_device(torch.randn(4, 3000)), on_device(20 * torch.randn(4, 3000))
    q[1, 7], q[2, 7] = 200.0, -INF
    labels = HardLabels(on_device(torch.tensor([2999, 7, 7, 0])), 1 - share, share)
    weights = on_device(torch.tensor([0.5, -2.0, 1.0, 0.0], dtype=torch.float64))
    q[3, 5] = NAN  # a row that does not count
    rows = RowDivergence(KL(), 2.0, labels=labels)
    for inplace in (False, True):
        mine = triton_rows.value_and_gradient(rows, p.clone(), q.clone(), weights, (True, True), inplace)
        true = reference.value_and_gradient(rows, p.double(), q.double(), weights, (True, True))
        for got, want in zip(mine, true, strict=True):
            assert got is not None
            assert want is not None
            torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("is_labeled", [False, True])
def test_a_head_with_a_top_k_teacher(is_labeled: bool) -> None:
    hidden, weight = on_device(torch.randn(6, 4)).bfloat16(), on_device(torch.randn(30, 4)).bfloat16()
    teacher = teachers(on_device(torch.randn(6, 30)), 4)[0]
    labels = (
        {"labels": on_device(torch.tensor([3, 0, -100, 29, 5, 6])), "label_weight": 0.5} if is_labeled else {}
    )
    leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
    loss = linear_distillation_loss(
        student=leaves[0], student_weight=leaves[1], teacher=teacher, float32_logits=True, **labels
    )
    wide = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    true = distillation_loss(student=wide[0] @ wide[1].T, teacher=teacher, **labels)
    torch.testing.assert_close(loss.double(), true, rtol=1e-5, atol=0)
    pairs = zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(true, wide), strict=True)
    for got, want in pairs:
        assert (got.double() - want).norm() <= 2**-7 * want.norm()


class Lockstep:
    """The collectives of ranks that run one after the other in one process: each pass stops at the first collective
    whose parts are not all known.
    """

    class UnknownPartError(Exception):
        """A part of another rank is not known."""

    def __init__(self, size: int) -> None:
        self.parts: list[dict[int, Tensor]] = []
        self.size, self.rank, self.step, self.call, self.group = size, 0, 0, "test", None

    def run(self, of_rank: Callable[[int], Any]) -> list[Any]:
        while True:
            results = []
            for rank in range(self.size):
                self.rank, self.step = rank, 0
                with suppress(self.UnknownPartError):
                    results.append(of_rank(rank))
            if len(results) == self.size:
                return results

    def gather(self, x: Tensor) -> Tensor:
        if self.step == len(self.parts):
            self.parts.append({})
        parts = self.parts[self.step]
        parts[self.rank] = x.clone()
        self.step += 1
        if len(parts) < self.size:
            raise self.UnknownPartError
        return torch.stack([parts[rank] for rank in range(self.size)])

    def sum(self, x: Tensor) -> Tensor:
        return x.copy_(self.gather(x).sum(0))


@pytest.mark.parametrize("is_labeled", [False, True])
@pytest.mark.parametrize("leaves_out", [False, True])
def test_sharded_top_k(leaves_out: bool, is_labeled: bool) -> None:
    logits = on_device(3 * torch.randn(4, 70))
    logits[1, :30] = -INF  # all classes of the first rank
    indices = indices_of(4, 70, 5)
    indices[2, 3] = -1
    labels = on_device(torch.tensor([3, 69, 30, 0])) if is_labeled else None
    selected = SelectedClasses(indices, 1.0, leaves_out, labels)
    grad = on_device(torch.randn(4, 7 if is_labeled else 6, dtype=torch.float64))
    ranks, cuts = Lockstep(2), (0, 30, 70)

    def of_rank(rank: int) -> Results:
        part = logits[:, cuts[rank] : cuts[rank + 1]]
        sharded = ShardedClasses(Shard(ranks, cuts[rank], 70), selected)
        columns, sums = sharded.read(part)
        gradient = torch.empty_like(part)
        sharded.write_gradient(part, (columns, sums), grad, gradient)
        return Results(columns, gradient)

    first, second = ranks.run(of_rank)
    true = in_float64(selected, logits, grad)
    assert torch.equal(first.columns, second.columns)
    torch.testing.assert_close(first.columns, true.columns, rtol=5e-7, atol=5e-7)
    gradient = torch.cat([first.gradient, second.gradient], -1).double()
    torch.testing.assert_close(gradient, true.gradient, rtol=1e-6, atol=2e-6)


SHARDED = [KL(), ReverseKL(), Jeffreys(), JensenShannon(), JensenShannon(beta=0.1), SkewKL(alpha=0.9)]


@pytest.mark.parametrize("is_labeled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [*SHARDED, TotalVariation(), ChiSquared()], ids=repr)
def test_sharded_rows(kind: Divergence, dtype: torch.dtype, is_labeled: bool) -> None:
    p, q = on_device(2 * torch.randn(5, 700)).to(dtype), on_device(2 * torch.randn(5, 700)).to(dtype)
    p[1, :300], q[1, 200:400] = -INF, 0.0
    p[2, 650], q[2, 650] = 20.0, 21.0  # nearly all mass in one class
    q[3] = p[3]
    weights = on_device(torch.tensor([0.5, -2.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    q[4, 5] = NAN  # a row that does not count
    labels = HardLabels(on_device(torch.tensor([0, 250, 650, 699, 1])), 0.5, 0.5) if is_labeled else None
    ranks, cuts, both = Lockstep(2), (0, 300, 700), (True, True)
    rows = RowDivergence(kind, 2.0, labels=labels)

    def of_rank(rank: int, inplace: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        parts = [x[:, cuts[rank] : cuts[rank + 1]].clone() for x in (p, q)]
        sharded = ShardedRows(ranks, kind, 2.0, 700, both, cuts[rank], labels=labels)
        return sharded.value_and_gradient(rows, *parts, weights, both, inplace)

    true = reference.value_and_gradient(rows, p.double(), q.double(), weights, both)
    for inplace in (False, True):
        with (
            mock.patch.object(native_rows, "serves", return_value=False),
            mock.patch.object(
                triton_rows, "gradients_of_part", wraps=triton_rows.gradients_of_part
            ) as kernel,
        ):
            first, second = ranks.run(partial(of_rank, inplace=inplace))
        assert kernel.called == (kind in SHARDED)
        assert torch.equal(first[0], second[0]) or first[0].isnan().any()
        torch.testing.assert_close(first[0][:4], true[0][:4], rtol=2e-6, atol=1e-13)  # as of whole rows
        assert is_labeled or first[0][3] == 0
        for mine, others, want in zip(first[1:], second[1:], true[1:], strict=True):
            assert mine is not None
            assert others is not None
            assert want is not None
            gradient = torch.cat([mine, others], -1)
            assert gradient.dtype == dtype
            unit = torch.finfo(dtype).eps
            allowed = unit * want.abs() + 2e-6 * want.norm(dim=-1, keepdim=True) + 1e-9
            assert ((gradient.double() - want).abs() <= allowed).all()


if DEVICE == "cuda":  # chosen when the cases are collected

    def test_a_graph_can_hold_the_kernels() -> None:
        logits, indices = on_device(torch.randn(4, 5000)), indices_of(4, 5000, 8)
        classes, gradient = SelectedClasses(indices, 1.0, True, indices[:, 0]), torch.empty_like(logits)
        grad = on_device(torch.randn(4, 10, dtype=torch.float64))

        def compute() -> Tensor:
            columns, sums = classes.read(logits)
            classes.write_gradient(logits, (columns, sums), grad, gradient)
            return columns

        compute()  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = compute()
        logits.normal_()
        graph.replay()
        results = held.clone(), gradient.clone()
        torch.testing.assert_close(results, (compute(), gradient))
