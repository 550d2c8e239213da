"""The reference kernels part by part: against plain float64 formulas, and what mutation testing found untested."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import mpmath
import pytest
import torch
from torch import Tensor

from kullback import KL, Counts, Divergence, JensenShannon, Logits, Probs, Renyi, ReverseKL, TotalVariation
from kullback.generators import FinitePair
from kullback.kernels import finite_pair, reference, rounding_error, row_operation
from kullback.kernels.label_terms import HardLabels
from kullback.kernels.reference import Normalized, RowDivergence, pair_of_sides
from kullback.kernels.row_operation import row_blocks
from tests.oracles import truth

INF = math.inf
F64 = torch.float64
KIND = JensenShannon(0.3)  # neither side alone, nor symmetric
EACH_CASE = pytest.mark.parametrize("labelled", [False, True])


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def plain(p: Tensor, q: Tensor, temperature: float = 1.0) -> Tensor:
    """The textbook formula of KIND, which autograd differentiates."""
    x, y = ((z / temperature).log_softmax(-1) for z in (p, q))
    m = torch.logaddexp(x + math.log(0.3), y + math.log(0.7))
    return (0.3 * x.exp() * (x - m) + 0.7 * y.exp() * (y - m)).sum(-1)


def with_labels(values: Tensor, q: Tensor, labels: HardLabels | None) -> Tensor:
    if labels is None:
        return values
    of_class = q.log_softmax(-1).gather(-1, labels.classes[:, None])[:, 0]
    return labels.soft * values - labels.hard * of_class


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor, HardLabels]:
    """Seven rows, of which a block holds two, with weights and classes."""
    monkeypatch.setattr(row_operation, "_ELEMENTS_ON_CPU", 10)
    p, q, weights = draw(7, 5), draw(7, 5, seed=1), draw(7, seed=2)
    classes = torch.tensor([0, 3, 4, 1, 2, 2, 0])
    return p, q, weights, HardLabels(classes, soft=0.25, hard=0.75)


@EACH_CASE
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.5, 0.5])
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True), (False, False)])
def test_values_and_gradients_of_blocks(
    inputs, wanted: tuple[bool, bool], temperature: float, weighted: bool, labelled: bool
) -> None:
    p, q, weights, labels = inputs
    given = labels if labelled else None
    x, y = p.clone().requires_grad_(), q.clone().requires_grad_()
    values = with_labels(plain(x, y, temperature), y, given)
    want = torch.autograd.grad(
        (values * weights).sum() if weighted else values.sum(), (x, y), allow_unused=True
    )
    for inplace in (False, True):
        a, b = p.clone(), q.clone()
        got, *gradients = reference.value_and_gradient(
            RowDivergence(KIND, temperature, labels=given),
            a,
            b,
            weights if weighted else None,
            wanted,
            inplace,
        )
        torch.testing.assert_close(got, values.detach(), rtol=1e-12, atol=1e-15)
        for gradient, true, is_wanted, side, before in zip(
            gradients, want, wanted, (a, b), (p, q), strict=True
        ):
            assert (gradient is not None) == is_wanted
            assert (gradient is side) == (is_wanted and inplace)
            assert torch.equal(side, before) == (gradient is not side)
            if gradient is not None:
                torch.testing.assert_close(gradient, true, rtol=1e-12, atol=1e-16)


@EACH_CASE
@pytest.mark.parametrize("weighted", [False, True])
def test_the_weighted_total_leaves_its_arguments_and_rows_of_weight_0_alone(
    inputs, weighted: bool, labelled: bool
) -> None:
    p, q, weights, labels = inputs
    given = labels if labelled else None
    if weighted:
        weights[3] = 0
        q[3, 2] = -INF
    x, y = p.clone().requires_grad_(), q.clone().requires_grad_()
    counted = [0, 1, 2, 4, 5, 6] if weighted else range(7)
    values = with_labels(plain(x, y, 2.5), y, given)[list(counted)]
    want = 0.125 * (values * (weights[list(counted)] if weighted else 1)).sum()
    true = torch.autograd.grad(want, (x, y))
    a, b = p.clone(), q.clone()
    total, gradients = reference.weighted_total(
        RowDivergence(KIND, 2.5, torch.float32, given),
        a,
        b,
        weights if weighted else None,
        (True, True),
        0.125,
    )
    assert total.dtype == torch.float32
    assert total.item() == pytest.approx(want.item(), rel=1e-7)
    assert torch.equal(a, p)
    assert torch.equal(b, q)
    for gradient, right in zip(gradients, true, strict=True):
        torch.testing.assert_close(gradient, right.nan_to_num(0), rtol=1e-12, atol=1e-16)


def test_a_row_of_weight_0_may_have_an_infinite_value() -> None:
    p, q = (
        torch.tensor([[0.0, 1.0], [0.5, 1.0]], dtype=F64),
        torch.tensor([[0.0, -INF], [0.25, 0.0]], dtype=F64),
    )
    weights = torch.tensor([0.0, 2.0], dtype=F64)
    total, (by_p, by_q) = reference.weighted_total(RowDivergence(KL()), p, q, weights, (True, True), 3.0)
    alone = reference.value_and_gradient(RowDivergence(KL()), p[1:], q[1:], None, (True, True))
    assert total.item() == pytest.approx(6 * alone[0].item(), rel=1e-14)
    for mine, one in ((by_p, alone[1]), (by_q, alone[2])):
        assert (mine[0] == 0).all()
        torch.testing.assert_close(mine[1:], 6 * one, rtol=1e-14, atol=0)


@EACH_CASE
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_gradients_and_directional_derivatives_are_those_of_autograd(
    inputs, temperature: float, labelled: bool
) -> None:
    p, q, grad, labels = inputs
    given = labels if labelled else None
    rows = RowDivergence(KIND, temperature, labels=given)

    def values(a: Tensor, b: Tensor) -> Tensor:
        return with_labels(plain(a, b, rows.temperature), b, given)

    x, y = p.clone().requires_grad_(), q.clone().requires_grad_()
    want = torch.autograd.grad((values(x, y) * grad).sum(), (x, y))
    for wanted in ((True, True), (True, False), (False, True)):
        got = rows.gradients((p, q), (), grad, wanted, is_plain=False)
        for mine, true, is_wanted in zip(got, want, wanted, strict=True):
            assert (mine is not None) == is_wanted
            if mine is not None:
                torch.testing.assert_close(mine, true, rtol=1e-12, atol=1e-16)
    tangents = draw(7, 5, seed=3), draw(7, 5, seed=4)
    for given_tangents in (tangents, (tangents[0], None), (None, tangents[1])):
        filled = tuple(torch.zeros_like(p) if t is None else t for t in given_tangents)
        true = torch.func.jvp(values, (p, q), filled)[1]
        got = rows.changes((p, q), given_tangents)
        torch.testing.assert_close(got, true, rtol=1e-12, atol=1e-15)


def test_no_rows_have_gradients_without_rows() -> None:
    p, q = draw(0, 5), draw(0, 5)
    for x in RowDivergence(KIND).gradients((p, q), (), draw(0), (True, True), is_plain=False):
        assert x.shape == (0, 5)
    values = reference.row_divergence(RowDivergence(KIND, dtype=torch.float32), p, q)
    assert (values.shape, values.dtype) == ((0,), torch.float32)


def test_row_divergence_transforms(inputs) -> None:
    p, q, _, _ = inputs
    rows = RowDivergence(KIND, temperature=2.5)
    narrow_rows = replace(rows, dtype=torch.float32)

    def values(a: Tensor, b: Tensor) -> Tensor:
        return reference.row_divergence(rows, a, b)

    many_p, many_q = draw(3, 2, 5), draw(3, 2, 5, seed=1)
    torch.testing.assert_close(
        torch.func.vmap(values)(many_p, many_q), plain(many_p, many_q, 2.5), rtol=1e-12, atol=1e-15
    )
    tangents = draw(7, 5, seed=3), draw(7, 5, seed=4)
    changes = torch.func.jvp(values, (p, q), tangents)[1]
    true = torch.func.jvp(lambda a, b: plain(a, b, 2.5), (p, q), tangents)[1]
    torch.testing.assert_close(changes, true, rtol=1e-12, atol=1e-15)
    hessian = torch.func.hessian(lambda x: values(x, q[:1]).sum())(p[:1])
    true = torch.func.hessian(lambda x: plain(x, q[:1], 2.5).sum())(p[:1])
    torch.testing.assert_close(hessian, true, rtol=1e-10, atol=1e-14)
    narrow = reference.row_divergence(narrow_rows, p, q)
    assert narrow.dtype == torch.float32
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(p, tangents[0])
        out = reference.row_divergence(narrow_rows, dual, q)
        assert torch.autograd.forward_ad.unpack_dual(out).tangent.dtype == torch.float32


def test_blocks_hold_a_bounded_number_of_elements_and_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operation, "_ELEMENTS_ON_CPU", 10)
    for classes, rows in ((5, 2), (4, 2), (10, 1), (20, 1)):
        steps = [slice(i, i + rows) for i in range(0, 7, rows)]
        assert list(row_blocks(torch.zeros(7, classes))) == steps


def test_off_the_cpu_a_block_has_two_million_elements_also_of_an_own_kind() -> None:
    """Tensors on the device meta have no numbers, but their device is not the CPU."""
    rows: list[int] = []

    @dataclass(frozen=True)
    class Own(Divergence):
        def terms(self, pair: FinitePair) -> Tensor:
            rows.append(len(pair.p))
            return (pair.p - pair.q) ** 2 / (pair.p + pair.q)

    p, q = torch.empty(2, 40, 128_256, device="meta")
    RowDivergence(Own()).compute(p, q)
    assert rows == [16, 16, 8]
    assert next(row_blocks(torch.empty(3, 2**22, device="meta"))) == slice(0, 1)


def test_sides_that_are_normalized_elsewhere_may_have_a_temperature() -> None:
    """As of ranks that hold part of the classes each: log-weights as they are given, sums of those that are divided."""
    logits = draw(2, 6), 10 + draw(2, 6, seed=1)
    logits[0][0, 1] = logits[1][1, 2] = -INF
    sides: list[Normalized] = []
    for x in logits:
        peak, empty = x.amax(-1, keepdim=True), x == -INF
        weights = ((x - peak) / 2.5).exp()
        total = weights.sum(-1, keepdim=True)
        sides.append(
            Normalized(weights / total, torch.where(empty, 0, x), peak, total.log(), empty, temperature=2.5)
        )
    pair = pair_of_sides(*sides)
    log_p, log_q = ((x / 2.5).log_softmax(-1) for x in logits)
    for ours, true in zip(
        (*pair[:3], pair.log_p(), pair.log_q()),
        (log_p.exp(), log_q.exp(), log_p - log_q, log_p, log_q),
        strict=True,
    ):
        torch.testing.assert_close(ours, true, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "forms", [(Logits, Logits), (Logits, Counts), (Counts, Logits), (Counts, Counts)], ids=str
)
def test_the_pair_of_some_classes_is_that_part_of_the_whole(forms) -> None:
    logits = draw(2, 3, 6), draw(2, 3, 6, seed=1)
    p, q = (form(x if form is Logits else (x.exp() * 7)) for form, x in zip(forms, logits, strict=True))
    at = torch.tensor([[4, 0], [1, 1], [5, 2]]).expand(2, 3, 2)
    whole, part = finite_pair(p, q), finite_pair(p, q, at=at)
    x, y = (z.log_softmax(-1) for z in logits)
    true = (x.exp(), y.exp(), x - y, x, y)
    for ours, some, right in zip(
        (*whole[:3], whole.log_p(), whole.log_q()), (*part[:3], part.log_p(), part.log_q()), true, strict=True
    ):
        torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-14)
        assert torch.equal(some, ours.gather(-1, at))


# Sums or differences of these overflow unless they are scaled or shifted first.
HUGE = ([1e308, 9e307, -1e308], [9.5e307, 1e308, -1.7e308])


def test_huge_weights_and_logits_are_normalized_as_their_shares_are() -> None:
    p, q = (torch.tensor(row, dtype=F64).abs() for row in HUGE)
    small = [x * 2.0**-1000 for x in (p, q)]
    for one, other in ((p, q), (p, small[1]), (small[0], q)):
        found, true = finite_pair(Counts(one), Counts(other)), finite_pair(*map(Counts, small))
        for ours, right in zip((*found[:3], found.log_p()), (*true[:3], true.log_p()), strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-12, atol=1e-15)
    for temperature in (1.0, 2.0, 1e300, 1e306):
        pair = RowDivergence(KL(), temperature).pair(*(torch.tensor([row], dtype=F64) for row in HUGE))
        # Of sixteenths no difference overflows.
        scaled = [torch.tensor([row], dtype=F64) / 16 / temperature for row in HUGE]
        log_p, log_q = (16 * (x - x.amax()) for x in scaled)
        log_p, log_q = (x - x.logsumexp(-1) for x in (log_p, log_q))
        torch.testing.assert_close(pair.p, log_p.exp(), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(pair.q, log_q.exp(), rtol=1e-9, atol=1e-12)
        if temperature >= 1e300:
            torch.testing.assert_close(pair.log_ratio, log_p - log_q, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("far", [2.0**53, -(2.0**53), 2.0**60])
def test_integers_far_from_0_keep_their_differences(far: float) -> None:
    step = max(2.0, abs(far) / 2.0**52)
    p, q = (torch.tensor(row, dtype=F64) for row in ([0.0, 1.0, 2.0], [0.0, 2.0, 1.0]))
    pair = finite_pair(Logits(p * step + far), Logits(q * step + far))
    near = finite_pair(Logits(p * step), Logits(q * step))
    for ours, right in zip((*pair[:3], pair.log_p()), (*near[:3], near.log_p()), strict=True):
        assert torch.equal(ours, right)


def test_weights_within_a_factor_of_two_give_the_ratio_of_their_difference() -> None:
    # Sums 2^53 + 2 and 2^53: of the difference of logarithms few digits would be left.
    p, q = torch.tensor([2.0**53, 2.0], dtype=F64), torch.tensor([2.0**53 - 2, 2.0], dtype=F64)
    pair = finite_pair(Counts(p), Counts(q))
    change = math.log1p(2 / (2.0**53 - 2)) - math.log1p(2 / 2.0**53)
    assert pair.log_ratio[0].item() == pytest.approx(change, rel=1e-3, abs=1e-31)
    assert pair.log_ratio[1].item() == pytest.approx(-math.log1p(2 / 2.0**53), rel=1e-12, abs=0)


def test_the_gradient_by_counts_is_that_of_their_shares() -> None:
    p, q = draw(3, 4).exp(), draw(3, 4, seed=1).exp()
    p[0, 1] = 0
    shares = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    ratio = (shares[0].clamp(min=1e-300) / shares[1]).log()
    value = (shares[0] * ratio).sum(-1, keepdim=True)
    by_p, by_q = RowDivergence(KL(), p_in_logs=False, q_in_logs=False).derivatives(p, q)
    true = torch.where(p > 0, (ratio - value) / p.sum(-1, keepdim=True), 0)
    torch.testing.assert_close(by_p, true, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(by_q, (shares[1] - shares[0]) / q, rtol=1e-12, atol=1e-15)


def test_further_derivatives_by_counts_are_those_of_their_shares() -> None:
    p, q = torch.tensor([1.0, 5.0, 2.0], dtype=F64), torch.tensor([4.0, 1.0, 2.5], dtype=F64)
    rows = RowDivergence(KL(), p_in_logs=False, q_in_logs=False)

    def of_reference(x: Tensor) -> Tensor:
        return reference.row_divergence(rows, x[None, :3], x[None, 3:])[0]

    def of_shares(x: Tensor) -> Tensor:
        left, right = x[:3] / x[:3].sum(), x[3:] / x[3:].sum()
        return (left * (left / right).log()).sum()

    x = torch.cat([p, q])
    hessian = torch.func.hessian(of_reference)(x)
    for found in (hessian, torch.autograd.functional.hessian(of_reference, x)):
        torch.testing.assert_close(found, torch.func.hessian(of_shares)(x), rtol=1e-11, atol=1e-13)


def test_the_log_ratio_of_counts_far_apart_is_that_of_their_logarithms() -> None:
    p, q = torch.tensor([1e-13, 1.0, 3.0], dtype=F64), torch.tensor([1.0, 1e-13, 1.0], dtype=F64)
    pair = finite_pair(Counts(p), Counts(q))
    change = math.log((4 + 1e-13) / (2 + 1e-13))
    want = [math.log(1e-13) - change, -math.log(1e-13) - change, math.log(3) - change]
    assert pair.log_ratio.tolist() == pytest.approx(want, rel=1e-14, abs=0)


def test_the_entry_of_a_class_with_nearly_all_mass_keeps_its_digits() -> None:
    p, q = torch.tensor([[0.0, -45.0, -50.0]], dtype=F64), torch.tensor([[0.0, -50.0, -45.0]], dtype=F64)
    by_p, by_q = RowDivergence(KL()).derivatives(p, q)
    a, b = math.exp(-45), math.exp(-50)
    assert by_q[0].tolist() == pytest.approx([0.0, b - a, a - b], rel=1e-12, abs=1e-37)
    assert by_p[0].tolist() == pytest.approx([-5 * a + 5 * b, 5 * a, -5 * b], rel=1e-12, abs=0)


# ---- the bound of what rounding did -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KL(), ReverseKL(), Renyi(2.0), TotalVariation()], ids=repr)
@pytest.mark.parametrize("form", [Logits, Counts])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_the_bound_of_rounding_is_its_formula(
    kind: Divergence, form: type[Logits | Counts], dtype: torch.dtype
) -> None:
    x, y = draw(2, 3, 5), draw(2, 3, 5, seed=1) * 3
    p, q = (x, y) if form is Logits else (x.exp() * 2.0**40, y.exp())
    pair = finite_pair(form(p), form(q))
    value = kind.total(pair).to(dtype)
    got = rounding_error(kind, form(p), form(q), value)
    assert got.shape == value.shape
    assert got.dtype == dtype
    by_p, by_q = kind.derivatives(pair)
    for i in range(2):
        for j in range(3):
            size = 1 + float(pair.log_ratio[i, j].abs().max())
            if form is Counts:
                size += abs(math.log(float(p[i, j].max())) - math.log(float(q[i, j].max())))
            unit = 8 * 2.0**-52 * size
            bound = unit * float((by_p[i, j].abs() + by_q[i, j].abs()).sum()) + unit**2
            stored = torch.finfo(dtype).eps * float(value[i, j])
            assert float(got[i, j]) == pytest.approx(bound + stored, rel=4 * torch.finfo(dtype).eps, abs=0)


def test_the_bound_of_rounding_of_equal_sides_is_of_second_order() -> None:
    p = Logits(draw(5))
    assert float(rounding_error(KL(), p, p, torch.tensor(0.0, dtype=F64))) == (8 * 2.0**-52) ** 2


def test_the_bound_of_rounding_leaves_out_what_is_infinite() -> None:
    p, q = Probs(torch.tensor([0.5, 0.5, 0.0], dtype=F64)), Probs(torch.tensor([0.25, 0.0, 0.75], dtype=F64))
    assert rounding_error(KL(), p, q, torch.tensor(INF, dtype=F64)) == 0
    value = TotalVariation().total(finite_pair(p, q))
    # The one finite log-ratio is log 2; the peaks are 0.5 and 0.75.
    unit = 8 * 2.0**-52 * (1 + math.log(2) + math.log(1.5))
    assert float(rounding_error(TotalVariation(), p, q, value)) == pytest.approx(
        unit * (0.25 + 0.25 + 0.375 + 0.125) + unit**2 + 2.0**-52 * value.item(), rel=1e-9, abs=0
    )


def test_classes_that_neither_side_has_add_nothing() -> None:
    p, q = torch.tensor([[0.5, 0.5, 0.0]], dtype=F64), torch.tensor([[0.25, 0.75, 0.0]], dtype=F64)
    for weights_p, weights_q in ((Probs(p), Probs(q)), (Counts(4 * p), Counts(4 * q))):
        pair = finite_pair(weights_p, weights_q)
        assert pair.log_ratio[0, 2] == 0
        assert KL().total(pair).item() == pytest.approx(0.5 * math.log(4 / 3), rel=1e-14)
    _, by_q = RowDivergence(KL(), p_in_logs=False, q_in_logs=False).derivatives(p, q)
    torch.testing.assert_close(by_q, torch.tensor([[-1.0, 1 / 3, 0.0]], dtype=F64), rtol=1e-13, atol=0)


@pytest.mark.parametrize("size", [1e-300, 1e-310, 1.0, 1e300])
def test_weights_of_any_size_are_normalized(size: float) -> None:
    p, q = (torch.tensor([x], dtype=F64) * size for x in ([1.0, 3.0], [1.0, 1.0]))
    pair = RowDivergence(KL(), p_in_logs=False, q_in_logs=False).pair(p, q)
    torch.testing.assert_close(pair.p, torch.tensor([[0.25, 0.75]], dtype=F64), rtol=1e-12, atol=0)
    want = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert KL().total(pair).item() == pytest.approx(want, rel=1e-12)


def test_logits_of_the_size_of_the_largest_float_are_compared() -> None:
    p = torch.tensor([[1.5e308, 1.5e308, 0.0]], dtype=F64)
    pair = RowDivergence(KL()).pair(p, torch.tensor([[-1.5e308, -1.5e308, -INF]], dtype=F64))
    torch.testing.assert_close(pair.p, torch.tensor([[0.5, 0.5, 0.0]], dtype=F64))
    assert (pair.log_ratio[0, :2] == 0).all()


def test_the_largest_ratio_of_equal_rows_has_no_gradient() -> None:
    p = draw(3, 4)
    for gradient in RowDivergence(Renyi(INF)).derivatives(p, p.clone()):
        assert (gradient == 0).all()


def test_logits_that_differ_in_their_last_digits_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    p = 3 * torch.randn(3, 20, generator=draw, dtype=F64)
    q = p + torch.randint(-9, 10, p.shape, generator=draw) / 2**40
    found = reference.row_divergence(RowDivergence(KL()), p, q)
    with mpmath.workdps(60):
        rows = zip(p.tolist(), q.tolist(), strict=True)
        wanted = [float(truth.divergence(KL(), *map(truth.softmax, row))) for row in rows]
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-8, atol=0)
