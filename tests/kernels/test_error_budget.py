"""Every backend against the truth: no row may be further from it than torch is in the same dtype, but for rounding."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

from kullback import KL, Divergence, ReverseKL, TotalVariation
from kullback.kernels import RowDivergence, reference
from kullback.kernels.native import library, native_rows
from tests.kernels import budget_cases
from tests.oracles import truth

BACKENDS = [reference] if library.missing() else [reference, native_rows]
EACH_BACKEND = pytest.mark.parametrize("backend", BACKENDS, ids=lambda x: x.__name__.rpartition(".")[-1])
EACH_KIND = pytest.mark.parametrize("kind", budget_cases.KINDS, ids=repr)
EACH_DTYPE = pytest.mark.parametrize("dtype", budget_cases.DTYPES, ids=str)


def run(backend: ModuleType, kind: Divergence, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return backend.value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))


def backends_for(kind: Divergence, x: Tensor) -> list[ModuleType]:
    return [backend for backend in BACKENDS if backend is reference or backend.serves(kind, x, x)]


@EACH_KIND
@EACH_DTYPE
def test_edge_rows_are_within_the_budget(kind: Divergence, dtype: torch.dtype) -> None:
    for backend in backends_for(kind, torch.zeros(1, 1, dtype=dtype)):
        is_wide = backend is reference or dtype == torch.float64
        allowed = budget_cases.WIDE if is_wide else budget_cases.NARROW

        for edge in budget_cases.EDGES.values():
            budget_cases.check(partial(run, backend), kind, edge, dtype, allowed)


@EACH_KIND
@EACH_DTYPE
def test_identical_rows_are_exactly_zero_with_a_gradient_of_zeros(
    kind: Divergence, dtype: torch.dtype
) -> None:
    x = (3 * torch.randn(3, 1031)).to(dtype)
    for backend in backends_for(kind, x):
        for result in run(backend, kind, x, x.clone()):
            assert (result == 0).all()


@EACH_KIND
@EACH_DTYPE
def test_layouts_and_numbers_of_rows_change_nothing(kind: Divergence, dtype: torch.dtype) -> None:
    p, q = torch.randn(5, 33).to(dtype), torch.randn(5, 33).to(dtype)
    for backend in backends_for(kind, p):
        want = run(backend, kind, p, q)
        columns_first = run(backend, kind, p.t().contiguous().t(), q.t().contiguous().t())
        every_other = run(backend, kind, *(torch.stack([x, x], -1)[..., 0] for x in (p, q)))
        torch.testing.assert_close(columns_first, want)
        torch.testing.assert_close(every_other, want)
        expanded = run(backend, kind, p[:1].expand(5, 33), q[:1].expand(5, 33))
        torch.testing.assert_close([a[4] for a in expanded], [b[0] for b in want])
        values, by_p, by_q = run(backend, kind, p[:0], q[:0])
        assert values.shape == (0,)
        assert by_p.shape == by_q.shape == (0, 33)


@EACH_KIND
@pytest.mark.parametrize("temperature", [3.0, 0.7])
def test_logits_far_from_0_keep_their_digits_at_any_temperature(kind: Divergence, temperature: float) -> None:
    draw = torch.Generator().manual_seed(4)
    # On a grid, so that they stay exact when 2^20 is added.
    p, q = (torch.randn(2, 6, 40, generator=draw, dtype=torch.float64) * 2**20).round() / 2**20
    p[1, 3] = q[2, 5] = -torch.inf
    for backend in backends_for(kind, p):
        near, far = (
            backend.value_and_gradient(
                RowDivergence(kind, temperature), p + x, q + x, None, wanted=(True, True)
            )
            for x in (0.0, 2.0**20)
        )
        torch.testing.assert_close(far, near, rtol=1e-13, atol=1e-15, equal_nan=True)


@EACH_BACKEND
@pytest.mark.parametrize("kind", [KL(), ReverseKL()], ids=repr)
def test_nearly_equal_rows_of_a_large_vocabulary_keep_six_digits(
    backend: ModuleType, kind: Divergence
) -> None:
    spreads = torch.tensor([4.5e-4, 1e-2, 0.3, 6.0]).unsqueeze(-1)
    p = 2 * torch.randn(4, 128_256)
    q = p + spreads * torch.randn(4, 128_256)
    log_p, log_q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    if kind == ReverseKL():
        log_p, log_q = log_q, log_p
    gap = log_q - log_p
    want = (log_p.exp() * (torch.expm1(gap) - gap)).sum(-1)
    assert want.min() < 1.1e-7
    assert want.max() > 7
    values = run(backend, kind, p, q)[0]
    assert ((values - want).abs() <= 1e-6 * want).all()


@EACH_KIND
@pytest.mark.parametrize("spread", [1e-6, 1e-4])
def test_rows_that_hardly_differ_keep_six_digits(kind: Divergence, spread: float) -> None:
    """The rounding of sums of exponentials, 1e-7 and more, counts by its square alone, which is known.

    Total variation feels it in first order, and keeps three digits where the rows differ by no more than that.
    """
    digits = 2e-3 if kind == TotalVariation() and spread == 1e-6 else 2e-6
    draw = torch.Generator().manual_seed(7)
    p = 3 * torch.randn(2, 200, generator=draw)
    q = p + spread * torch.randn(2, 200, generator=draw)
    want = [
        float(truth.divergence(kind, *map(truth.softmax, rows)))
        for rows in zip(p.tolist(), q.tolist(), strict=True)
    ]
    for backend in backends_for(kind, p):
        assert run(backend, kind, p, q)[0].tolist() == pytest.approx(want, rel=digits)


@EACH_BACKEND
def test_rows_lie_further_apart_than_32_bits_count(backend: ModuleType) -> None:
    step = 2**30  # the third row starts at element 2^31; what is not touched takes no memory
    storage = torch.empty(2 * step + 64, dtype=torch.bfloat16)
    for shape, strides in (((3, 50), (step, 1)), ((1, 3), (1, step))):
        far = storage.as_strided(shape, strides)
        far.copy_(torch.randn(shape))
        other = torch.randn(shape).to(torch.bfloat16)
        want = run(backend, KL(), other, far.clone())
        torch.testing.assert_close(run(backend, KL(), other, far), want)
        backend.value_and_gradient(RowDivergence(KL()), other, far, None, wanted=(False, True), inplace=True)
        torch.testing.assert_close(far, want[2])
