"""The C++ kernels against the reference in float64: every kind they serve, every dtype, the edges, and transforms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Logits,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
    kl_divergence,
)
from kullback.kernels import RowDivergence, reference, row_divergence, value_and_gradient
from kullback.kernels.native import library, native_rows

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

INF = float("inf")
KINDS = pytest.mark.parametrize(
    "kind",
    [
        KL(),
        ReverseKL(),
        Jeffreys(),
        TotalVariation(),
        JensenShannon(),
        JensenShannon(beta=0.1, scaled=True),
        JensenShannon(beta=0.9),
        SkewKL(alpha=0.1),
        SkewKL(alpha=0.9),
        ChiSquared(),
        SquaredHellinger(),
        Alpha(-1.5),
        Alpha(0.3),
        Alpha(1.5),
        Renyi(0.2),
        Renyi(0.5),
        Renyi(1.0),
        Renyi(2.5),
    ],
    ids=repr,
)
DTYPES = pytest.mark.parametrize("dtype", native_rows.DTYPES, ids=str)

EDGES = (
    torch.tensor(
        [
            [0.3, -1.2, 2.0, 0.0],
            [-INF, 1.0, 2.0, 0.0],
            [0.0, 1.0, -INF, 3.0],
            [0.0, 1e4, -1e4, 3.0],
            [1.0, 2.0, 3.0, 4.0],
            [-INF, -INF, 0.0, 0.0],
            [0.0, -INF, -INF, -INF],
            [0.0, 60.0, 100.0, 0.0],
        ]
    ),
    torch.tensor(
        [
            [1.0, 0.5, -0.7, 0.1],
            [-INF, 2.0, 2.0, 1.0],
            [-INF, 1.0, 2.0, 3.0],
            [0.0, -1e4, 1e4, 3.0],
            [1.0, 2.0, 3.0, 4.0],
            [0.0, 0.0, -INF, -INF],
            [0.1, 0.2, 0.3, 0.4],
            [0.0, 100.0, 30.0, 0.0],
        ]
    ),
)


def truth(
    kind: Divergence, p: Tensor, q: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    values, by_p, by_q = reference.value_and_gradient(
        RowDivergence(kind), p.double(), q.double(), weights, wanted=(True, True)
    )
    assert by_p is not None
    assert by_q is not None
    return values, by_p, by_q


@KINDS
@DTYPES
def test_edges_are_those_of_the_reference(kind: Divergence, dtype: torch.dtype) -> None:
    p, q = (side.to(dtype) for side in EDGES)
    assert native_rows.serves(kind, p, q)
    want = truth(kind, p, q)
    got = value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(got[0], want[0], rtol=3e-6, atol=1e-9)
    for mine, true in zip(got[1:], want[1:], strict=True):
        assert mine is not None
        # Rounded, as an entry may be too large for the dtype.
        torch.testing.assert_close(mine.double(), true.to(dtype).double(), rtol=max(unit, 1e-12), atol=2e-6)
    equal = 4
    assert got[0][equal] == 0
    assert all((side[equal] == 0).all() for side in got[1:] if side is not None)


@DTYPES
@pytest.mark.parametrize("low", [-90.0, -800.0, -1e4])
@pytest.mark.parametrize(
    ("kind", "side"),
    [
        (KL(), 0),
        (ReverseKL(), 1),
        (Jeffreys(), 0),
        (Jeffreys(), 1),
        (ChiSquared(), 0),
        (Alpha(1.5), 0),
        (Alpha(-1.5), 1),
        (Renyi(2.5), 0),
    ],
    ids=repr,
)
def test_a_mass_that_underflows_against_none_is_infinite(
    kind: Divergence, side: int, low: float, dtype: torch.dtype
) -> None:
    mass, none = torch.tensor([[0.0, low, 1.0]], dtype=dtype), torch.tensor([[0.0, -INF, 1.0]], dtype=dtype)
    p, q = (none, mass) if side else (mass, none)
    value, *gradients = value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
    assert value == INF
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)
    assert divergence(Logits(p), Logits(q), kind) == INF
    back = value_and_gradient(RowDivergence(kind), q, p, None, wanted=(False, False))[0]
    assert back.isfinite() or kind == Jeffreys()


@KINDS
@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 3e38), (torch.float64, 1.5e308)], ids=str)
def test_logits_at_the_end_of_the_range_are_no_nan(kind: Divergence, dtype: torch.dtype, huge: float) -> None:
    p = torch.tensor([[huge, huge, -INF], [huge, -huge, 0.0], [-huge, -huge, -huge]], dtype=dtype)
    q = torch.tensor([[-huge, -huge, -INF], [huge, -huge, 0.0], [huge, huge, huge]], dtype=dtype)
    values, *gradients = value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
    assert (values == 0).all()
    assert all((gradient == 0).all() for gradient in gradients if gradient is not None)


@KINDS
@pytest.mark.parametrize("spread", [1e-4, 1e-3, 1e-1, 1.0, 10.0])
def test_large_rows_keep_six_digits(kind: Divergence, spread: float) -> None:
    p = 4 * torch.randn(2, 128_257)
    q = p + spread * torch.randn(2, 128_257)
    want = truth(kind, p, q)
    got = value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
    torch.testing.assert_close(got[0], want[0], rtol=1e-6, atol=1e-14)
    for mine, true in zip(got[1:], want[1:], strict=True):
        assert mine is not None
        # A gradient may be a small difference of derivatives, which carry the rounding of the value.
        assert (mine - true).norm() <= 2e-5 * true.norm() + 1e-7 * want[0].norm()


@KINDS
def test_keeps_six_digits_or_more_than_torch_in_the_same_dtype(kind: Divergence) -> None:
    p = 3 * torch.randn(4, 5000)
    q = p + 1e-2 * torch.randn(4, 5000)
    want = truth(kind, p, q)[0]
    pair = [side.log_softmax(-1) for side in (p, q)]
    naive = (pair[0].exp() * (pair[0] - pair[1])).sum(-1) if kind == KL() else None
    got = row_divergence(kind, Logits(p), Logits(q), dtype=torch.float64)
    budget = (naive - want).abs() if naive is not None else torch.zeros_like(want)
    assert ((got - want).abs() <= budget + 1e-6 * want).all()


@KINDS
def test_each_side_alone_gives_the_gradient_of_both(kind: Divergence) -> None:
    p, q = torch.randn(3, 2000), torch.randn(3, 2000)
    weights = torch.tensor([0.5, 0.0, 2.0])
    _, by_p, by_q = value_and_gradient(RowDivergence(kind), p, q, weights, wanted=(True, True))
    _, only_p, none_q = value_and_gradient(RowDivergence(kind), p, q, weights, wanted=(True, False))
    _, none_p, only_q = value_and_gradient(RowDivergence(kind), p, q, weights, wanted=(False, True))
    assert none_p is None
    assert none_q is None
    torch.testing.assert_close(only_p, by_p)
    torch.testing.assert_close(only_q, by_q)
    assert by_q is not None
    assert (by_q[1] == 0).all()
    want = truth(kind, p, q, weights.double())
    torch.testing.assert_close(by_q.double(), want[2], rtol=1e-4, atol=1e-8)


@KINDS
@DTYPES
def test_gradients_may_overwrite_the_logits(kind: Divergence, dtype: torch.dtype) -> None:
    p, q = torch.randn(5, 300).to(dtype), torch.randn(5, 300).to(dtype)
    want = value_and_gradient(RowDivergence(kind), p, q, None, wanted=(True, True))
    p_copy, q_copy = p.clone(), q.clone()
    got = value_and_gradient(RowDivergence(kind), p_copy, q_copy, None, wanted=(True, True), inplace=True)
    assert torch.equal(got[0], want[0])
    assert got[1] is p_copy
    assert got[2] is q_copy
    assert want[1] is not None
    assert want[2] is not None
    assert torch.equal(p_copy, want[1])
    assert torch.equal(q_copy, want[2])


@DTYPES
def test_any_strides_are_read(dtype: torch.dtype) -> None:
    p, q = torch.randn(7, 50).to(dtype), torch.randn(7, 50).to(dtype)
    want = value_and_gradient(RowDivergence(KL()), p, q, None, wanted=(False, True))
    forms = [
        (p.t().contiguous().t(), q.t().contiguous().t()),
        (torch.cat([p, p], -1)[:, :50], torch.cat([q, q], -1)[:, :50]),
    ]
    for a, b in forms:
        got = value_and_gradient(RowDivergence(KL()), a, b, None, wanted=(False, True))
        assert torch.equal(got[0], want[0])
        assert got[2] is not None
        assert want[2] is not None
        assert torch.equal(got[2], want[2])
    expanded = value_and_gradient(RowDivergence(KL()), p[:1].expand(7, 50), q, None, wanted=(False, True))
    torch.testing.assert_close(expanded[0][0], want[0][0])


def test_no_rows_and_one_class() -> None:
    empty = torch.zeros(0, 5)
    assert value_and_gradient(RowDivergence(KL()), empty, empty, None, wanted=(True, True))[0].shape == (0,)
    values, by_p, by_q = value_and_gradient(
        RowDivergence(KL()), torch.zeros(3, 1), torch.ones(3, 1), None, wanted=(True, True)
    )
    assert (values == 0).all()
    assert by_p is not None
    assert by_q is not None
    assert (by_p == 0).all()
    assert (by_q == 0).all()


@KINDS
def test_temperature_divides_both_sides(kind: Divergence) -> None:
    p, q = torch.randn(3, 40), torch.randn(3, 40)
    hot = value_and_gradient(RowDivergence(kind, 4.0), p, q, None, wanted=(True, True))
    want = value_and_gradient(RowDivergence(kind), p / 4, q / 4, None, wanted=(True, True))
    torch.testing.assert_close(hot[0], want[0], rtol=1e-5, atol=1e-10)
    for mine, true in zip(hot[1:], want[1:], strict=True):
        assert mine is not None
        assert true is not None
        torch.testing.assert_close(mine, true / 4, rtol=1e-4, atol=1e-8)


def test_threads_and_repetitions_change_nothing() -> None:
    p, q = torch.randn(64, 3000), torch.randn(64, 3000)
    want = kl_divergence(Logits(p), Logits(q))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(kl_divergence(Logits(p), Logits(q)), want)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.heavy
def test_higher_derivatives_and_transforms_work_in_float32() -> None:
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return kl_divergence(Logits(x), Logits(y)).sum()

    first = torch.autograd.grad(loss(a, b), (a, b), create_graph=True)
    second = torch.autograd.grad(first[1].square().sum(), (a, b))
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    first_exact = torch.autograd.grad(loss(*exact), exact, create_graph=True)
    second_exact = torch.autograd.grad(first_exact[1].square().sum(), exact)
    for mine, true in zip((*first, *second), (*first_exact, *second_exact), strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-4, atol=1e-6)
    values = torch.func.vmap(lambda x, y: kl_divergence(Logits(x), Logits(y)))(a, b)
    torch.testing.assert_close(values, kl_divergence(Logits(a), Logits(b)))
    value = kl_divergence(Logits(a), Logits(b))
    jacobian = torch.autograd.grad(value, b, torch.eye(3), is_grads_batched=True)[0]
    torch.testing.assert_close(jacobian.sum(0), first[1])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(b.detach(), torch.eye(3, 4))
        change = torch.autograd.forward_ad.unpack_dual(kl_divergence(Logits(a), Logits(dual))).tangent
    torch.testing.assert_close(change, first[1].detach().diagonal(), rtol=1e-4, atol=1e-6)
    _, tangent = torch.func.jvp(lambda x: loss(x, b), (a.detach(),), (torch.ones(3, 4),))
    torch.testing.assert_close(tangent, torch.zeros(()), atol=1e-6, rtol=0)
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), loss(a, b))


def test_the_operator_says_truly_what_it_writes() -> None:
    p, q = torch.randn(3, 8), torch.randn(3, 8)
    arguments = (
        p,
        q,
        None,
        0,
        0.0,
        0.0,
        0.0,
        0.0,
        1.0,
        1.0,
        torch.tensor([1, 0, 7]),
        False,
        0.5,
        0.5,
        torch.empty(3, dtype=torch.float64),
        torch.empty((), dtype=torch.float64),
        None,
        torch.empty(3, 8),
    )
    torch.library.opcheck(
        torch.ops.kullback.value_and_gradient.default,
        arguments,
        test_utils=("test_schema", "test_autograd_registration"),
    )


def test_other_kinds_and_dtypes_are_left_to_the_reference() -> None:
    x = torch.zeros(2, 3)
    assert not native_rows.serves(Renyi(math.inf), x, x)
    assert not native_rows.serves(Alpha(65.0), x, x)
    assert not native_rows.serves(KL(), x.long(), x.long())
    assert not native_rows.serves(SkewKL(alpha=0.0), x, x)
    assert not native_rows.serves(JensenShannon(beta=1e-6), x, x)
    assert divergence(Logits(x), Logits(x), Renyi(math.inf)).shape == (2,)


def test_parts_of_rows_add_up_to_whole_rows_also_where_a_class_has_nearly_all_the_mass() -> None:
    generator = torch.Generator().manual_seed(5)
    p, q = (3 * torch.randn(6, 40, generator=generator) for _ in range(2))
    p[1, 3] = q[1, 3] = 60.0  # nearly all the mass on both sides
    p[2, 7] = 45.0
    p[3, :2] = q[3, :2] = 50.0  # a tie
    p[4, 30] = q[4, 31] = -INF
    q[5] = p[5]
    parts = [slice(0, 5), slice(5, 5), slice(5, 40)]
    weights = torch.tensor([1.0, 2.0, 0.0, 0.5, 3.0, 1.0], dtype=torch.float64)
    kinds = (
        KL(), ReverseKL(), Jeffreys(), JensenShannon(), SkewKL(0.1), ChiSquared(), SquaredHellinger(), Alpha(0.3)
    )  # fmt: skip
    for kind in kinds:
        for temperature in (1.0, 2.0):
            rows = RowDivergence(kind, temperature)
            values, *gradients = reference.value_and_gradient(
                rows, p.double(), q.double(), weights, wanted=(True, True)
            )
            normalizers: list[Tensor] = []
            for x in (p.double(), q.double()):
                peak = x.amax(-1)
                total = ((x - peak[:, None]) / temperature).exp().sum(-1)
                normalizers += [torch.stack((peak, total), -1)]
            zeros = torch.zeros(6, 3, dtype=torch.float64)
            whole = torch.cat([normalizers[0], zeros, normalizers[1], zeros], -1)
            numbers = [native_rows.values_of_part(rows, p[:, c], q[:, c], whole) for c in parts]
            value, of_p, of_q = (sum(x) for x in zip(*numbers, strict=True))
            torch.testing.assert_close(value, values, rtol=1e-12, atol=1e-15, msg=f"{kind} at {temperature}")
            whole = torch.cat([normalizers[0], of_p, normalizers[1], of_q], -1)
            ours = [torch.full(p.shape, torch.nan, dtype=torch.float64) for _ in (0, 1)]
            for c in parts:
                native_rows.gradients_of_part(rows, p[:, c], q[:, c], whole, weights, [x[:, c] for x in ours])
            for side, got, want in zip("pq", ours, gradients, strict=True):
                name = f"{kind} at {temperature}, gradient by {side}"
                assert (got[2] == 0).all(), name
                torch.testing.assert_close(
                    got, want, rtol=1e-11, atol=1e-15, msg=lambda text, name=name: f"{name}: {text}"
                )
                if temperature == 1:  # the class with nearly all the mass: its entry is tiny
                    assert got[1, 3] == pytest.approx(want[1, 3].item(), rel=1e-9), name
