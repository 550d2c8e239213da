"""What the Triton kernel must do on the device of KULLBACK_TRITON_DEVICE; `test_rows` runs this in other processes.

On the CPU the kernel runs in Triton's interpreter, which must be chosen before Triton is imported. It takes about 50 ms
for a row, hence the few rows.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    FDivergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from kullback.kernels import reference
from kullback.kernels.codes import DivergenceCode
from kullback.kernels.kernel_arguments import arguments_of
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.native import native_rows
from kullback.kernels.reference import RowDivergence
from kullback.kernels.row_operation import RowValueFunction
from kullback.kernels.triton import triton_rows
from kullback.kernels.triton.forms import form_of
from kullback.kernels.whole_rows import FastRows, logit_divergence, weighted_total
from tests.kernels import budget_cases
from tests.kernels.triton.hardware import use_hardware_errors
from tests.oracles import truth

DEVICE = os.environ.get("KULLBACK_TRITON_DEVICE", "cpu")
INF = float("inf")
NAN = float("nan")
BOTH = (True, True)
KINDS = [
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
    Alpha(alpha=-0.5),
    Alpha(alpha=1.001),
    Renyi(alpha=0.3),
    Renyi(alpha=2),
]
EACH_KIND = pytest.mark.parametrize("kind", KINDS, ids=repr)
SOME = [KL(), TotalVariation(), JensenShannon()]
SOME_KINDS = pytest.mark.parametrize("kind", SOME, ids=repr)
# Rows of P and of Q: -inf in one or both, mass that float32 does not hold, logits far from 0 and from each other, and
# rows that are equal.
EDGES = [
    ([0.3, -1.2, 2.0, 0.0], [1.0, 0.5, -0.7, 0.1]),
    ([-INF, 1.0, 2.0, 0.0], [-INF, 2.0, 2.0, 1.0]),
    ([0.0, 1.0, -INF, 3.0], [-INF, 1.0, 2.0, 3.0]),
    ([0.0, 1e4, -1e4, 3.0], [0.0, -1e4, 1e4, 3.0]),
    ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]),
    ([-INF, -INF, 0.0, 0.0], [0.0, 0.0, -INF, -INF]),
    ([0.0, -INF, -INF, -INF], [0.1, 0.2, 0.3, 0.4]),
    ([0.0, 60.0, 100.0, 0.0], [0.0, 100.0, 30.0, 0.0]),
    ([0.0, -200.0, 1.0, 0.5], [0.0, -INF, 1.0, 0.5]),
    ([0.0, -90.0, 1.0, 0.5], [0.0, -INF, 1.0, 0.5]),
    ([0.0, -INF, 1.0, 0.5], [0.0, -800.0, 1.0, 0.5]),
    ([9984.0, 9985.0, 9983.0, 9984.0], [0.5, -1.0, 0.25, 0.0]),
]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interpret with the errors of the hardware. NumPy, which interprets, would warn of the infinities that the kernel
    masks.
    """
    if DEVICE == "cpu":
        use_hardware_errors(monkeypatch)
    with np.errstate(all="ignore"):
        yield


def on_device(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return x.to(DEVICE, dtype)


def ours(
    kind: Divergence,
    p: Tensor,
    q: Tensor,
    weights: Tensor | None = None,
    *,
    wanted: tuple[bool, bool] = BOTH,
    temperature: float = 1.0,
    inplace: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    assert triton_rows.serves(kind, p, q)
    return triton_rows.value_and_gradient(
        RowDivergence(kind, temperature), p, q, weights, wanted=wanted, inplace=inplace
    )


def in_float64(
    kind: Divergence, p: Tensor, q: Tensor, weights: Tensor | None = None, temperature: float = 1.0
) -> tuple[Tensor, ...]:
    """Value and gradients of the reference, which has tests of its own against 50 digits."""
    results = reference.value_and_gradient(
        RowDivergence(kind, temperature), p.double(), q.double(), weights, wanted=BOTH
    )
    return tuple(x for x in results if x is not None)


def tolerance(kind: Divergence, narrow: float) -> float:
    """Return the relative tolerance of a value: `narrow`, or that of test_error_budget for powers of p / q, whose
    terms cancel somewhat.
    """
    is_power = isinstance(kind, Alpha | ChiSquared | SquaredHellinger | Renyi)
    return budget_cases.NARROW.relative if is_power else narrow


def assert_within(mine: Tensor | None, true: Tensor, relative: float, absolute: float = 0.0) -> None:
    """Compare a gradient with the truth: `relative` counts of its row's norm, beside its own rounding."""
    assert mine is not None
    unit = torch.finfo(mine.dtype).eps
    error = (mine.double() - true).abs()
    assert (error <= unit * true.abs() + relative * true.norm(dim=-1, keepdim=True) + absolute).all(), (
        error.max()
    )


@EACH_KIND
@pytest.mark.parametrize(
    ("dtype", "spread"),
    [
        (torch.float32, 1e-2),
        (torch.float32, 1.0),
        (torch.float32, 8.0),
        (torch.bfloat16, 1.0),
        (torch.float16, 1.0),
    ],
    ids=str,
)
def test_is_as_close_to_fifty_digits_as_torch_in_that_dtype(
    kind: Divergence, dtype: torch.dtype, spread: float
) -> None:
    p = torch.randn(1, 5)
    q = on_device(p + spread * torch.randn(1, 5), dtype)
    p = on_device(p, dtype)
    a, b = p[0].tolist(), q[0].tolist()
    true = float(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))
    derivatives = [torch.tensor(x, device=DEVICE).double() for x in truth.logit_gradient(kind, a, b)]
    value, *gradients = ours(kind, p, q)
    torch_value, *torch_gradients = budget_cases.eager(kind, p, q)
    slack = tolerance(kind, 5e-7)
    assert abs(value.item() - true) <= abs(torch_value.item() - true) + slack * true + 1e-13
    unit = torch.finfo(dtype).eps
    for mine, theirs, derivative in zip(gradients, torch_gradients, derivatives, strict=True):
        assert mine is not None
        assert mine.dtype == dtype
        budget = (theirs[0].double() - derivative).abs() + unit * derivative.abs() + 1e-6 * derivative.norm()
        # The smallest numbers of float16 are coarser than its unit says.
        assert ((mine[0].double() - derivative).abs() <= budget + torch.finfo(dtype).tiny * unit).all()


@EACH_KIND
def test_parity_in_short(kind: Divergence) -> None:
    """One small case of each kind, in the quick part of the tests."""
    p = 2 * torch.randn(2, 41)
    q = on_device(p + torch.randn(2, 41), torch.bfloat16)
    p = on_device(p)
    p[0, 3], q[0, 3], p[1, 7] = -INF, -INF, -INF
    value, *gradients = ours(kind, p, q)
    true, *derivatives = in_float64(kind, p, q)
    torch.testing.assert_close(value, true, rtol=3e-6, atol=0)
    for mine, derivative in zip(gradients, derivatives, strict=True):
        assert_within(mine, derivative, 5e-6)


@pytest.mark.parametrize("kind", [kind for kind in truth.KINDS if arguments_of(kind)], ids=repr)
@pytest.mark.parametrize("dtype", triton_rows.DTYPES, ids=str)
def test_the_budget_of_all_backends(kind: Divergence, dtype: torch.dtype) -> None:
    def run(kind: Divergence, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, by_p, by_q = ours(kind, on_device(p, dtype), on_device(q, dtype))
        assert by_p is not None
        assert by_q is not None
        return value.cpu(), by_p.cpu(), by_q.cpu()

    for edge in budget_cases.EDGES.values():
        budget_cases.check(run, kind, edge, dtype, budget_cases.NARROW)


def check_edge_rows(kind: Divergence, p: Tensor, q: Tensor) -> None:
    value, *gradients = ours(kind, p, q)
    exact = [
        float(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))
        for a, b in zip(p.tolist(), q.tolist(), strict=True)
    ]
    torch.testing.assert_close(value.tolist(), exact, rtol=tolerance(kind, 1e-6), atol=1e-13)
    for mine, derivative in zip(gradients, in_float64(kind, p, q)[1:], strict=True):
        assert_within(mine, derivative, 2e-6, 1e-7)
    equal = 4
    assert value[equal] == 0
    assert all((side[equal] == 0).all() for side in gradients if side is not None)


@EACH_KIND
def test_edge_rows(kind: Divergence) -> None:
    p, q = (on_device(torch.tensor(side)) for side in zip(*EDGES, strict=True))
    check_edge_rows(kind, p, q)


@SOME_KINDS
def test_edge_rows_in_half_precision(kind: Divergence) -> None:
    p, q = (torch.tensor(side) for side in zip(*EDGES, strict=True))
    check_edge_rows(kind, on_device(p, torch.float16), on_device(q, torch.bfloat16))


@pytest.mark.parametrize("kind", [Renyi(alpha=50), Alpha(alpha=20)], ids=repr)
def test_an_infinite_class_in_short_hides_no_class_that_needs_the_range_of_float64(kind: Divergence) -> None:
    p = on_device(torch.tensor([[0.0, 7.0, -3.0, 1.0]]))
    q = on_device(torch.tensor([[9.0, -INF, -5.4, 1.0]]))
    value, *gradients = ours(kind, p, q)
    assert value == INF
    for mine, derivative in zip(gradients, in_float64(kind, p, q)[1:], strict=True):
        assert_within(mine, derivative, 5e-6)


@EACH_KIND
def test_logits_at_the_end_of_the_range_are_no_nan(kind: Divergence) -> None:
    p = on_device(torch.tensor([[3e38, 3e38, -INF], [3e38, -3e38, 0.0]]))
    q = on_device(torch.tensor([[-3e38, -3e38, -INF], [3e38, -3e38, 0.0]]))
    for side in ours(kind, p, q):
        assert side is not None
        assert (side == 0).all()


# Peaks that have few digits in common, or none, up to the end of the range.
FAR = [
    ([1e23, -1e23, 0.0], [1e30, 1e30, 1e30]),
    ([1e16, -1e16, 0.0], [0.0, 1.0, 2.0]),
    ([0.5, -1.0, 2.0], [1e8, 1e8, 1e8]),
    ([3e9, 3e9, 3e9], [1e30, 1e30 / 2, 1e30]),
    ([2e37, 2e37, -2e37], [1.0, 2.0, 3.0]),
    ([3e38, 3e38, 3e38], [1e30, 1e30, -1e30]),
    ([3e38, 3e38, 3e38], [3e38, 1e20, 3e38]),
]


# Other tests give each kind a temperature.
@pytest.mark.parametrize(
    ("kind", "temperature"), [*((kind, 1.0) for kind in KINDS), *((kind, 3.0) for kind in SOME)], ids=repr
)
def test_logits_far_from_0_cost_no_digits(kind: Divergence, temperature: float) -> None:
    p, q = (on_device(torch.tensor(side)) for side in zip(*FAR, strict=True))
    value, *gradients = ours(kind, p, q, temperature=temperature)
    largest = torch.finfo(torch.float32).max
    for found, *logits in zip(value.tolist(), p.tolist(), q.tolist(), strict=True):
        masses = (truth.softmax([mpmath.mpf(x) / temperature for x in side]) for side in logits)
        exact = truth.divergence(kind, *masses)
        assert found == pytest.approx(float(exact) if exact <= largest else INF, rel=1e-6, abs=0)
    for mine, derivative in zip(gradients, in_float64(kind, p, q, temperature=temperature)[1:], strict=True):
        assert_within(mine, derivative, 2e-6, 1e-9)


@SOME_KINDS
def test_rows_with_nearly_all_mass_in_one_class(kind: Divergence) -> None:
    p, q = torch.randn(3, 40), torch.randn(3, 40)
    p[:, 2:], q[:, 2:] = p[:, 2:] - 25, q[:, 2:] - 24
    p, q = on_device(p + torch.tensor([[0.0], [3.3], [-7.7]])), on_device(q)
    p[1, 1], q[1, 1] = -INF, -INF
    p[0, 1], q[0, 1] = -15.0, -16.0
    value, *gradients = ours(kind, p, q)
    true, *derivatives = in_float64(kind, p, q)
    torch.testing.assert_close(value, true, rtol=3e-6, atol=0)
    for mine, derivative in zip(gradients, derivatives, strict=True):
        assert_within(mine, derivative, 1e-5)


@EACH_KIND
@pytest.mark.parametrize(("classes", "spread"), [(300, 1e-4), (5001, 3.0)])
def test_rows_of_many_blocks(kind: Divergence, classes: int, spread: float) -> None:
    p = 4 * torch.randn(2, classes)
    q = on_device(p + spread * torch.randn(2, classes))
    p = on_device(p + torch.tensor([[0.0], [100.0]]))
    p[0, :200], q[1, 100:250] = (-INF, -INF) if spread > 1 else (0.0, 0.0)
    weights = on_device(torch.tensor([0.5, -2.0]))
    value, *gradients = ours(kind, p, q, weights, temperature=2.5)
    true, *derivatives = in_float64(kind, p, q, weights, temperature=2.5)
    torch.testing.assert_close(value, true, rtol=2e-6, atol=1e-16)
    for mine, derivative in zip(gradients, derivatives, strict=True):
        assert_within(mine, derivative, 5e-6)


@EACH_KIND
@pytest.mark.parametrize("second", [torch.float32, torch.bfloat16], ids=str)
def test_equal_rows_give_exactly_zero(kind: Divergence, second: torch.dtype) -> None:
    q = on_device(5 * torch.randn(1, 700), second)
    q[0, 3:9] = -INF
    for side in ours(kind, q.float(), q, temperature=0.7):
        assert side is not None
        assert (side == 0).all()


@SOME_KINDS
def test_a_row_of_weight_0_may_hold_anything(kind: Divergence) -> None:
    p, q = on_device(torch.randn(4, 300)), on_device(torch.randn(4, 300))
    p[1, 5], q[2, 7] = NAN, INF
    weights = on_device(torch.tensor([1.0, 0.0, 0.0, 2.0]))
    _, by_p, by_q = ours(kind, p, q, weights)
    alone = ours(kind, p[::3], q[::3], weights[::3])
    for mine, expected in ((by_p, alone[1]), (by_q, alone[2])):
        assert mine is not None
        assert expected is not None
        assert (mine[1:3] == 0).all()
        assert torch.equal(mine[::3], expected)
    total, gradients = triton_rows.weighted_total(
        RowDivergence(kind, dtype=torch.float64), p, q, weights, wanted=BOTH, scale=0.5
    )
    torch.testing.assert_close(total, 0.5 * (alone[0] * weights[::3]).sum())
    torch.testing.assert_close(gradients, [0.5 * by_p, 0.5 * by_q])


@EACH_KIND
def test_a_nan_shows_in_its_own_row_only(kind: Divergence) -> None:
    p, q = on_device(torch.randn(2, 300)), on_device(torch.randn(2, 300))
    p[0, 280] = NAN
    for side in ours(kind, p, q):
        assert side is not None
        assert side[0].isnan().all()
        assert side[1].isfinite().all()


@pytest.mark.parametrize("kind", [KL(), ReverseKL(), JensenShannon()], ids=repr)
def test_each_side_alone_gives_the_gradient_of_both(kind: Divergence) -> None:
    p, q = on_device(torch.randn(1, 300)), on_device(torch.randn(1, 300))
    kept = p.clone(), q.clone()
    value, *both = ours(kind, p, q)
    for wanted in itertools.product((False, True), repeat=2):
        alone = ours(kind, p, q, wanted=wanted)
        assert torch.equal(alone[0], value)
        for want, mine, expected in zip(wanted, alone[1:], both, strict=True):
            assert (mine is not None) == want
            if mine is not None:
                assert_within(mine, expected.double(), 1e-6, 1e-9)
    assert torch.equal(p, kept[0])
    assert torch.equal(q, kept[1])


@pytest.mark.parametrize("dtype", triton_rows.DTYPES, ids=str)
def test_any_strides_are_read_and_written(dtype: torch.dtype) -> None:
    kind = JensenShannon()
    # The contiguous rows start at aligned addresses, so their sums are in the order of the columns too.
    p, q = on_device(torch.randn(304, 2), dtype).T, on_device(torch.randn(2, 608), dtype)[:, 1::2]
    expected = ours(kind, p.contiguous(), q.contiguous())
    value, by_p, by_q = ours(kind, p, q, inplace=True)
    assert by_p is p
    assert by_q is q
    assert all(map(torch.equal, (value, p, q), expected))
    row, others = on_device(torch.randn(1, 40), dtype), on_device(torch.randn(2, 40), dtype)
    repeated = ours(kind, row.expand(2, 40), others)
    copied = ours(kind, row.repeat(2, 1), others)
    for mine, wanted in zip(repeated, copied, strict=True):
        assert mine is not None
        assert torch.equal(mine, wanted)


@SOME_KINDS
@pytest.mark.parametrize("dtype", triton_rows.DTYPES, ids=str)
@pytest.mark.parametrize("classes", [5, 1031, 4099])
def test_rows_that_start_at_unaligned_addresses(kind: Divergence, dtype: torch.dtype, classes: int) -> None:
    """The first and the last tile of such a row are masked; only the order of the sums differs from padded rows'."""
    p, q = (on_device(torch.randn(3, classes), dtype) for _ in range(2))
    padded = [torch.nn.functional.pad(x, (0, -classes % 16))[:, :classes] for x in (p, q)]
    want = ours(kind, *padded)
    mine = ours(kind, p, q)
    copy_p, copy_q = p.clone(), q.clone()
    again = ours(kind, copy_p, copy_q, inplace=True)
    assert again[1] is copy_p
    assert again[2] is copy_q
    assert all(map(torch.equal, again, mine))
    torch.testing.assert_close(mine[0], want[0], rtol=1e-6, atol=0)
    for side, expected in zip(mine[1:], want[1:], strict=True):
        assert expected is not None
        assert_within(side, expected.double(), 1e-6)


def test_no_rows_and_one_class() -> None:
    p = on_device(torch.zeros(0, 5))
    value, by_p, by_q = ours(KL(), p, p)
    assert value.shape == (0,)
    assert by_p is not None
    assert by_q is not None
    assert by_p.shape == by_q.shape == (0, 5)
    total, *_ = triton_rows.weighted_total(
        RowDivergence(KL(), dtype=torch.float32), p, p, None, wanted=BOTH, scale=1.0
    )
    assert total == 0
    for kind in KINDS:
        for side in ours(kind, on_device(torch.randn(1, 1)), on_device(1e4 * torch.randn(1, 1))):
            assert side is not None
            assert (side == 0).all()


@SOME_KINDS
def test_rows_are_differentiable_in_all_orders(kind: Divergence) -> None:
    p, q = (on_device(torch.randn(2, 6)).requires_grad_() for _ in range(2))
    factor = on_device(torch.tensor([0.5, -2.0]))

    def derivatives(p: Tensor, q: Tensor, values: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((factor * values).sum(), (p, q), create_graph=True)
        second = torch.autograd.grad(sum(side.square().sum() for side in first), (p, q))
        alone = torch.autograd.grad((factor * values).sum(), (p, q))
        return [values, *first, *second, *alone]

    mine = derivatives(
        p, q, RowValueFunction.apply(FastRows(RowDivergence(kind, dtype=torch.float32), triton_rows), p, q)
    )
    wide = [side.detach().double().requires_grad_() for side in (p, q)]
    true = derivatives(*wide, reference.row_divergence(RowDivergence(kind), *wide))
    for ours_, theirs in zip(mine, true, strict=True):
        assert ours_.dtype == torch.float32
        torch.testing.assert_close(ours_.double(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method`:DeprecationWarning"
)  # inside of torch's inductor
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [KL(), Alpha(alpha=-0.5)], ids=repr)
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_compiled_totals_call_the_kernel(
    monkeypatch: pytest.MonkeyPatch, kind: Divergence, share: float, backend: str
) -> None:
    if DEVICE == "cpu":
        monkeypatch.setattr(native_rows, "serves", lambda *_: False)
    p, q = on_device(torch.randn(3, 40)), on_device(torch.randn(3, 40)).requires_grad_()
    weights = on_device(torch.tensor([1.0, 0.0, 2.0]))
    labels = HardLabels(on_device(torch.tensor([1, 2, 0]), torch.long), 1 - share, share) if share else None
    rows = RowDivergence(kind, 2.0, torch.float32, labels)
    graphs: list[torch.fx.GraphModule] = []

    def recorded(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    def total(p: Tensor, q: Tensor) -> Tensor:
        return weighted_total(rows, p, q, weights, scale=0.5)

    torch.compiler.reset()
    results: list[tuple[Tensor, ...]] = []
    for of in (torch.compile(total, fullgraph=True, backend=recorded), total):
        value = of(p, q)
        results.append((value.detach(), *torch.autograd.grad(value, q)))
    assert any("triton_rows" in module.code for graph in graphs for module in modules_of(graph))
    for mine, expected in zip(*results, strict=True):
        assert torch.equal(mine, expected)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_compiled_values_call_the_kernel_unless_they_need_derivatives(requires_grad: bool) -> None:
    p, q = on_device(torch.randn(2, 3, 40)), on_device(torch.randn(2, 3, 40)).requires_grad_(requires_grad)
    rows = RowDivergence(Renyi(alpha=0.3), dtype=torch.float32)
    graphs: list[torch.fx.GraphModule] = []

    def recorded(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        del inputs
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    value = torch.compile(lambda p, q: logit_divergence(rows, p, q), fullgraph=True, backend=recorded)(p, q)
    torch.testing.assert_close(value.double(), rows.values(p.double(), q.double()), rtol=3e-6, atol=0)
    assert (
        any("triton_rows" in module.code for graph in graphs for module in modules_of(graph)) != requires_grad
    )


def modules_of(graph: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    return [module for module in graph.modules() if isinstance(module, torch.fx.GraphModule)]


def test_directional_derivative_is_the_gradients() -> None:
    p, q, change = (on_device(torch.randn(2, 6)) for _ in range(3))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, change)
        value = RowValueFunction.apply(
            FastRows(RowDivergence(KL(), dtype=torch.float32), triton_rows), p, dual
        )
        got = torch.autograd.forward_ad.unpack_dual(value).tangent
    by_q = ours(KL(), p, q, wanted=(False, True))[2]
    assert by_q is not None
    torch.testing.assert_close(got, (by_q * change).sum(-1))


def test_offsets_beyond_32_bits() -> None:
    far = torch.empty(2**31 + 600, dtype=torch.float16, device=DEVICE)
    p = far.as_strided((2, 304), (2**31, 1))
    columns = far.as_strided((1, 3), (1, 2**30 + 1))
    q = on_device(torch.randn(2, 304), torch.float16)
    p.copy_(torch.randn(2, 304))
    for mine, expected in zip(ours(KL(), p, q), ours(KL(), p.clone(), q), strict=True):
        assert mine is not None
        assert torch.equal(mine, expected)
    columns.copy_(torch.randn(1, 3))
    assert torch.equal(ours(KL(), columns, q[:1, :3])[0], ours(KL(), columns.clone(), q[:1, :3])[0])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_labels_are_mixed_in(share: float, inplace: bool) -> None:
    p, q = torch.randn(3, 70), torch.randn(3, 70)
    p[0, 0], q[0, 0] = 0.0, -INF  # an infinite divergence, which at share 1 counts nothing
    weights = torch.tensor([0.5, 2.0, 0.0])
    labels = HardLabels(on_device(torch.tensor([3, 69, 0]), torch.long), 1 - share, share)
    true = reference.value_and_gradient(
        RowDivergence(KL(), 2.0, labels=labels._replace(classes=labels.classes.cpu())),
        p.double(),
        q.double(),
        weights,
        wanted=BOTH,
    )
    total, (by_p, by_q) = triton_rows.weighted_total(
        RowDivergence(KL(), 2.0, torch.float32, labels),
        on_device(p),
        on_device(q),
        on_device(weights),
        wanted=BOTH,
        scale=3.0,
    )
    mine = triton_rows.value_and_gradient(
        RowDivergence(KL(), 2.0, labels=labels),
        on_device(p),
        on_device(q),
        on_device(weights),
        wanted=BOTH,
        inplace=inplace,
    )
    expected = torch.where(weights == 0, 0, weights * true[0]).sum() * 3
    torch.testing.assert_close(total.cpu(), expected.float(), rtol=1e-6, atol=0)
    for value, scaled, want in zip(mine, (mine[0], by_p, by_q), true, strict=True):
        assert value is not None
        assert scaled is not None
        assert want is not None
        torch.testing.assert_close(value.cpu().double(), want, rtol=1e-5, atol=1e-7)
        factor = 1 if scaled is mine[0] else 3
        torch.testing.assert_close(scaled.cpu().double(), factor * want, rtol=1e-5, atol=1e-7)


def test_what_it_leaves_to_others() -> None:
    p = on_device(torch.randn(2, 3))
    for kind in (
        SkewKL(alpha=0.0),
        SkewKL(alpha=1.0),
        JensenShannon(beta=1.0, scaled=True),
        Renyi(alpha=INF),
        Alpha(alpha=1000),
        FDivergence(lambda r: r * r.log()),
    ):
        assert not triton_rows.serves(kind, p, p)
    assert form_of(DivergenceCode.MIXTURE, (0.5, 0.5, 0.5, 0.4)) is None  # two mixtures
    assert not triton_rows.serves(KL(), p.double(), p.double())
    assert not triton_rows.serves(KL(), p[:, :0], p[:, :0])
    assert not triton_rows.serves(KL(), p, p.to("meta"))
    assert not triton_rows.serves(KL(), p, torch.complex(p, p).conj().imag)  # its memory has the other sign


if DEVICE == "cuda":  # chosen when the cases are collected

    def test_nothing_waits_for_the_device_so_that_a_graph_can_hold_it() -> None:
        p, q = on_device(torch.randn(4, 5000)), on_device(torch.randn(4, 5000))
        weights = on_device(torch.rand(4))

        def compute() -> tuple[Tensor, list[Tensor | None]]:
            return triton_rows.weighted_total(
                RowDivergence(KL(), 2.0, dtype=torch.float32), p, q, weights, wanted=BOTH, scale=0.25
            )

        compute()  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = compute()
        p.normal_()
        graph.replay()
        for mine, expected in zip(held, compute(), strict=True):
            torch.testing.assert_close(mine, expected)
