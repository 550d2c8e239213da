"""The divergences of finite distributions: values and gradients against 50 digits, edges, identities and transforms."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.distributions import Normal

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Counts,
    Divergence,
    Jeffreys,
    JensenShannon,
    Logits,
    LogProbs,
    Probs,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
    errors,
    estimate,
)
from kullback.kernels import finite_pair, row_divergence
from tests.oracles import truth
from tests.refusals import refused

INF = math.inf
KINDS = pytest.mark.parametrize("kind", truth.KINDS, ids=repr)

# These are of first order in log p - log q where the two are close, so its rounding is all they can lose.
FIRST_ORDER = (TotalVariation(), Renyi(alpha=0), Renyi(alpha=INF))

# Rows of logits for P and Q. -inf is a class without mass.
EDGE_ROWS = {
    "ordinary": ([0.3, -1.2, 2.0, 0.0], [1.0, 0.5, -0.7, 0.1]),
    "a little apart": ([0.3, -1.2, 2.0, 0.0], [0.25, -1.0, 1.9, 0.4]),
    "close": ([0.3, -1.2, 2.0, 0.0], [0.3, -1.2 + 1e-8, 2.0, 0.0]),
    "close at large logits": ([3e3, 3e3 + 1.0, 3e3], [3e3, 3e3 + 1.0 + 2.0**-30, 3e3]),
    "shifted": ([0.0, 1.0, 2.0], [100.0, 101.0, 102.5]),
    "far": ([0.0, 40.0, -40.0], [0.0, -40.0, 40.0]),
    "very far": ([0.0, 300.0], [300.0, 0.0]),
    "one class": ([3.0], [-7.0]),
    "masked on both sides": ([0.0, -INF, 1.0, 2.0], [0.5, -INF, 0.0, 1.0]),
    "masked in P": ([0.0, -INF, 1.0, 2.0], [0.5, 3.0, 0.0, 1.0]),
    "masked in Q": ([0.0, 1.0, 1.0, 2.0], [0.5, -INF, 0.0, 1.0]),
    "masked in each": ([-INF, 1.0, 1.0, 2.0], [0.5, -INF, 0.0, 1.0]),
    "disjoint": ([0.0, 0.0, -INF, -INF], [-INF, -INF, 0.0, 1.0]),
    "certain": ([0.0, -INF, -INF], [0.1, 0.2, 0.3]),
    "underflows on both sides": ([0.0, -1000.0, -900.0], [0.0, -1900.0, -950.0]),
    "underflows on both sides, of another size": ([0.0, -3000.0, 1.0], [0.0, -7000.0, 1.0]),
    "underflows in P where Q has none": ([0.0, -800.0, 0.0], [0.0, -INF, 1.0]),
    "underflows in Q where P has none": ([0.0, -INF, 0.0], [0.0, -800.0, 1.0]),
    "underflows where P has any": ([-INF, 0.0, 1.0], [0.0, -800.0, -801.0]),
}


def assert_close(got: float, want: float, relative: float, absolute: float = 0.0) -> None:
    if math.isinf(want):
        assert got == want
    else:
        assert abs(got - want) <= relative * abs(want) + absolute, (got, want)


@KINDS
@pytest.mark.parametrize("name", EDGE_ROWS)
def test_value_of_logits_is_right_to_the_last_digits(kind: Divergence, name: str) -> None:
    a, b = EDGE_ROWS[name]
    p, q = (Logits(torch.tensor(row, dtype=torch.float64)) for row in (a, b))
    want = float(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))
    rounding_of_truth = 1e-40 if name.startswith("underflows") else 0
    values = [row_divergence(kind, p, q, exact=True)]
    if not name.startswith("underflows in"):
        values.append(divergence(p, q, kind))
    for got in values:
        assert_close(got.item(), want, 1e-12, 1e-15 if kind in FIRST_ORDER else rounding_of_truth)


@pytest.mark.parametrize("kind", [KL(), ReverseKL(), Jeffreys()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_kernel_sees_a_mass_that_underflows_where_the_other_side_has_none(
    kind: Divergence, dtype: torch.dtype
) -> None:
    logits = torch.tensor([0.0, -800.0 if dtype == torch.float64 else -90.0], dtype=dtype)
    p, q = Logits(logits), Logits(torch.tensor([0.0, -INF], dtype=dtype))
    p, q = (q, p) if kind == ReverseKL() else (p, q)
    assert divergence(p, q, kind) == row_divergence(kind, p, q, exact=True) == INF


# Differences of these logits, or sums of these counts, overflow.
HUGE_ROWS = (
    ([1e308, -1e308], [-1e308, 1e308]),
    ([1e308, -1e308], [-1e308, -1e308]),
    ([1e308, 1e308, -1e308], [1e308, 1e308, -1e308]),
    ([-1e308, -1e308, -1e308], [1e308, 1e308, 1e308]),
)


@KINDS
@pytest.mark.parametrize(("a", "b"), HUGE_ROWS, ids=str)
def test_logits_whose_differences_overflow_give_the_divergence_of_their_softmax(
    kind: Divergence, a: list[float], b: list[float]
) -> None:
    p, q = (Logits(torch.tensor(row, dtype=torch.float64, requires_grad=True)) for row in (a, b))
    got = row_divergence(kind, p, q, exact=True)
    if kind == Renyi(
        0
    ):  # no class is masked, but a difference beyond the largest number counts as one that is
        assert got >= 0
    else:
        masked = [[x if x > max(row) - 1e300 else -INF for x in row] for row in (a, b)]
        want = float(truth.divergence(kind, *(truth.softmax(row) for row in masked)))
        assert got > 1e307 if math.isinf(want) else abs(got - want) < 1e-12
    for gradient in torch.autograd.grad(got, (p.tensor, q.tensor)):
        assert not gradient.isnan().any()


@KINDS
@pytest.mark.parametrize(
    ("a", "b"),
    [([1e308] * 3, [1.0] * 3), ([1e308, 1e308, 0.0], [1e-300, 3e-300, 0.0]), ([1e308] * 4, [3e307] * 4)],
)
def test_counts_whose_sum_overflows_give_the_divergence_of_their_shares(
    kind: Divergence, a: list[float], b: list[float]
) -> None:
    p, q = (torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in (a, b))
    shares = [truth.normalized(truth.exact(row)) for row in (a, b)]
    for left, right, (one, other) in ((p, q, shares), (q, p, shares[::-1])):
        value = divergence(Counts(left), Counts(right), kind)
        assert_close(value.item(), float(truth.divergence(kind, one, other)), 1e-12, 1e-12)
        assert not any(g.isnan().any() for g in torch.autograd.grad(value, (p, q)))


@KINDS
@pytest.mark.parametrize("shift", [0.0, 1e-12, 1e-8, 1e-4, 1e-2, 0.2, 0.6])
def test_value_of_probabilities_keeps_its_digits_when_they_are_close(kind: Divergence, shift: float) -> None:
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    q = p * (1 + shift * torch.tensor([1.0, -0.4, 0.0], dtype=torch.float64))
    want = truth.divergence(
        kind, truth.normalized(truth.exact(p.tolist())), truth.normalized(truth.exact(q.tolist()))
    )
    assert_close(float(divergence(Probs(p), Probs(q), kind)), float(want), 1e-12)


@pytest.mark.parametrize(
    "kind", [SkewKL(1 - 2.0**-30), JensenShannon(2.0**-30), JensenShannon(1 - 2.0**-30)], ids=repr
)
@pytest.mark.parametrize("name", ["ordinary", "close", "far", "masked in each"])
def test_value_of_a_mixture_with_little_of_a_side_keeps_its_digits(kind: Divergence, name: str) -> None:
    a, b = EDGE_ROWS[name]
    p, q = (Logits(torch.tensor(row, dtype=torch.float64)) for row in (a, b))
    want = float(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))
    assert_close(divergence(p, q, kind).item(), want, 1e-12)


def test_value_of_a_mixture_with_little_of_q_is_right_where_p_is_far_below_it() -> None:
    a, b, kind = [0.0, -31.0], [0.0, 0.5], SkewKL(1 - 2.0**-30)
    want = float(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))
    p, q = (Logits(torch.tensor(row, dtype=torch.float64)) for row in (a, b))
    assert_close(divergence(p, q, kind).item(), want, 1e-10)


@pytest.mark.sweep
@pytest.mark.parametrize("share", [1e-6, 1e-8, 1e-10, 1e-12, 1e-15])
def test_mixtures_with_little_of_a_side_keep_their_digits_in_value_and_gradient(share: float) -> None:
    kinds = [SkewKL(share), JensenShannon(share), JensenShannon(share, scaled=True), JensenShannon(1 - share)]
    for name in ("ordinary", "far", "masked in each", "masked in Q", "underflows in P where Q has none"):
        a, b = (torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in EDGE_ROWS[name])
        for kind in kinds:
            value = divergence(Logits(a), Logits(b), kind)
            want = float(truth.divergence(kind, truth.softmax(a.tolist()), truth.softmax(b.tolist())))
            assert abs(value.item() - want) <= 1e-13 * want, (kind, name, value.item(), want)
            gradients = torch.autograd.grad(value, (a, b))
            for mine, true in zip(gradients, truth.logit_gradient(kind, a.tolist(), b.tolist()), strict=True):
                off = (mine - torch.tensor(true, dtype=torch.float64)).abs().max().item()
                assert off <= 1e-13 * max(map(abs, true)) + 1e-15 * want, (kind, name, mine, true)


@KINDS
@pytest.mark.parametrize("name", EDGE_ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_rounded_once(kind: Divergence, name: str, dtype: torch.dtype) -> None:
    a, b = (torch.tensor(row).to(dtype) for row in EDGE_ROWS[name])
    want = row_divergence(kind, Logits(a.double()), Logits(b.double()), exact=True)
    got = row_divergence(kind, Logits(a), Logits(b), exact=True)
    assert got.dtype == dtype
    assert got == want.to(dtype)


# The maximum of log(p / q) is attained twice, so that it has no derivative.
TIED_ROWS = ("close", "close at large logits", "shifted", "masked on both sides", "masked in P")


def has_gradient(kind: Divergence, name: str) -> bool:
    a, b = EDGE_ROWS[name]
    if name == "very far" or (kind == Renyi(alpha=INF) and name in TIED_ROWS):
        return False  # differences of values of up to 1e260 are beyond 60 digits
    return math.isfinite(truth.divergence(kind, truth.softmax(a), truth.softmax(b)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(k, name) for name in EDGE_ROWS for k in truth.KINDS if has_gradient(k, name)],
    ids=repr,
)
def test_gradient_of_logits_is_right(kind: Divergence, name: str) -> None:
    a, b = (torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in EDGE_ROWS[name])
    exact = name.startswith("underflows in")
    value = (
        row_divergence(kind, Logits(a), Logits(b), exact=True)
        if exact
        else divergence(Logits(a), Logits(b), kind)
    )
    got = torch.autograd.grad(value, (a, b))
    rounding = 1e-15 * max(1, value.item())
    for mine, want in zip(got, truth.logit_gradient(kind, a.tolist(), b.tolist()), strict=True):
        scale = max(map(abs, want))
        for x, y in zip(mine.tolist(), want, strict=True):
            assert_close(x, y, 1e-7, 1e-7 * scale + rounding)


@pytest.mark.parametrize("order", [1.0, 1.001, 3.0])
@pytest.mark.parametrize("family", [Alpha, Renyi])
@pytest.mark.parametrize("name", ["masked in Q", "masked in each", "underflows in P where Q has none"])
def test_gradient_of_logits_leaves_out_the_classes_that_make_the_value_infinite(
    family: type[Alpha | Renyi], order: float, name: str
) -> None:
    rows = EDGE_ROWS[name]
    a, b = (torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows)
    value = row_divergence(family(order), Logits(a), Logits(b), exact=True)
    assert value == INF
    got = torch.autograd.grad(value, a)[0].tolist()
    with mpmath.workdps(50):
        p, q = (truth.softmax(row) for row in rows)
        both = [(x, y) if x > 0 and y > 0 else None for x, y in zip(p, q, strict=True)]
        c = mpmath.mpf(order) - 1
        if order == 1:
            by_log_p = [x and x[0] * mpmath.log(x[0] / x[1]) for x in both]
        elif family is Alpha:
            by_log_p = [x and x[0] * ((x[0] / x[1]) ** c - 1) / c for x in both]
        else:
            powers = [x and x[0] * (x[0] / x[1]) ** c for x in both]
            by_log_p = [x and (c + 1) / c * x / mpmath.fsum(filter(None, powers)) for x in powers]
        total = mpmath.fsum(filter(None, by_log_p))
        want = [float((x or 0) - mass * total) for x, mass in zip(by_log_p, p, strict=True)]
    assert got == pytest.approx(want, rel=1e-12, abs=1e-15)


def test_gradient_of_logits_of_a_mass_that_p_hardly_misses_keeps_its_digits() -> None:
    a, b = [0.0, -INF, 1.0], [0.0, -46.0, 0.5]
    q = torch.tensor(b, dtype=torch.float64, requires_grad=True)
    value = divergence(Logits(torch.tensor(a, dtype=torch.float64)), Logits(q), Renyi(alpha=0))
    (got,) = torch.autograd.grad(value, q)
    assert got.tolist() == pytest.approx(truth.logit_gradient(Renyi(alpha=0), a, b)[1], rel=1e-12, abs=0)


@pytest.mark.parametrize("name", EDGE_ROWS)
@pytest.mark.parametrize(("order", "same"), [(1, KL()), (0, ReverseKL())], ids=repr)
def test_gradient_of_logits_of_orders_1_and_0_is_that_of_kl(
    order: float, same: Divergence, name: str
) -> None:
    pair = finite_pair(*(Logits(torch.tensor(row, dtype=torch.float64)) for row in EDGE_ROWS[name]))
    for mine, want in zip(Alpha(order).derivatives(pair), same.derivatives(pair), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-14, atol=0)


@KINDS
def test_value_of_a_pair_with_batch_dimensions_is_that_of_each_row(kind: Divergence) -> None:
    generator = torch.Generator().manual_seed(5)
    p, q = torch.randn(2, 2, 3, 5, dtype=torch.float64, generator=generator)
    p[0, 1, 2] = p[1, 0, 0] = q[1, 0, 0] = -INF
    pair = finite_pair(Logits(p), Logits(q))
    total, derivatives = kind.total(pair), kind.derivatives(pair)
    assert total.shape == (2, 3)
    for place in np.ndindex(2, 3):
        row = finite_pair(Logits(p[place]), Logits(q[place]))
        torch.testing.assert_close(total[place], kind.total(row), rtol=1e-14, atol=1e-16)
        for mine, alone in zip(derivatives, kind.derivatives(row), strict=True):
            torch.testing.assert_close(mine[place], alone, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize(
    "kind",
    [k for k in truth.KINDS if isinstance(k, Alpha | ChiSquared | SquaredHellinger | TotalVariation)],
    ids=repr,
)
def test_value_of_a_divergence_without_a_logarithm_has_no_base(kind: Divergence) -> None:
    with refused(errors.ArgumentValueError, wanted="without a log"):
        divergence(Probs([0.5, 0.5]), Probs([0.25, 0.75]), kind, base=2)


@KINDS
@pytest.mark.parametrize("name", EDGE_ROWS)
@pytest.mark.parametrize("form", ["logits", "probs"])
def test_gradient_is_never_nan_and_leaves_masked_classes_alone(
    kind: Divergence, name: str, form: str
) -> None:
    rows = [torch.tensor(row, dtype=torch.float64) for row in EDGE_ROWS[name]]
    inputs = [(row if form == "logits" else row.softmax(-1)).requires_grad_() for row in rows]
    wrap = Logits if form == "logits" else Probs
    value = divergence(wrap(inputs[0]), wrap(inputs[1]), kind)
    by_p, by_q = torch.autograd.grad(value, inputs)
    assert not value.isnan()
    assert not by_p.isnan().any()
    assert not by_q.isnan().any()
    if value.isfinite():
        assert (by_p[rows[0] == -INF] == 0).all()
    both = (rows[0] == -INF) & (rows[1] == -INF)
    assert (by_q[both] == 0).all()


@KINDS
def test_equal_arguments_give_exactly_zero_with_zero_gradient(kind: Divergence) -> None:
    a = torch.tensor([[0.1, 2.0, -3.0, 0.7], [1e4, -1e4, 0.0, -INF]], dtype=torch.float64)
    for x, wrap in (
        (a, Logits),
        (a.softmax(-1), Probs),
        (a.log_softmax(-1), LogProbs),
        (a.softmax(-1), Counts),
    ):
        p, q = x.clone().requires_grad_(), x.clone().requires_grad_()
        value = divergence(wrap(p), wrap(q), kind)
        assert (value == 0).all()
        for gradient in torch.autograd.grad(value.sum(), (p, q)):
            assert (gradient == 0).all()


def terms_at_zero(kind: Divergence) -> tuple[float, float]:
    """f(0) and the limit of f(r)/r, by the formulas of the docstrings."""
    match kind:
        case SkewKL(alpha):
            return 1 - alpha, alpha - 1 - math.log(alpha) if alpha else INF
        case JensenShannon(0.0, True):
            return terms_at_zero(KL())
        case JensenShannon(1.0, True):
            return terms_at_zero(ReverseKL())
        case JensenShannon(beta, scaled):
            scale = beta * (1 - beta) if scaled else 1
            return -(1 - beta) * math.log(1 - beta) / scale, -beta * math.log(beta) / scale
        case Alpha(alpha):
            return 1 / alpha if alpha > 0 else INF, 1 / (1 - alpha) if alpha < 1 else INF
        case _:
            return {
                KL(): (1, INF),
                ReverseKL(): (INF, 1),
                Jeffreys(): (INF, INF),
                ChiSquared(): (1, INF),
                SquaredHellinger(): (0.5, 0.5),
                TotalVariation(): (0.5, 0.5),
            }[kind]


@pytest.mark.parametrize(
    "kind", [k for k in truth.KINDS if not isinstance(k, Renyi)], ids=repr
)  # Renyi's is no sum of terms
def test_terms_at_zero_are_the_limits(kind: Divergence) -> None:
    pair = finite_pair(Probs([1.0, 0.0, 0.0]), Probs([0.0, 0.25, 0.75]))
    at_zero_p, at_zero_q = terms_at_zero(kind)
    want = torch.tensor([at_zero_q, 0.25 * at_zero_p, 0.75 * at_zero_p], dtype=torch.float64)
    torch.testing.assert_close(kind.terms(pair), want, rtol=1e-14, atol=0)


@KINDS
def test_derivatives_and_transforms_agree(kind: Divergence) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(2, 4, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2))

    def by_logits(x: Tensor, y: Tensor) -> Tensor:
        return divergence(Logits(x), Logits(y), kind)

    def by_weights(x: Tensor, y: Tensor) -> Tensor:
        return divergence(Counts(x.exp()), Counts(y.exp()), kind)

    for function in (by_logits, by_weights):
        assert torch.autograd.gradcheck(function, (a, b), check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, (a, b))
    batched = torch.func.vmap(by_logits)(a, b)
    torch.testing.assert_close(batched, by_logits(a, b), rtol=1e-14, atol=1e-15)
    assert torch.func.vmap(by_logits, in_dims=(None, 0))(a[0], b).shape == (2,)
    hessian = torch.func.hessian(lambda x: by_logits(x, b[0]))(a[0])
    torch.testing.assert_close(hessian, hessian.T)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [KL(), JensenShannon(beta=0.3), Renyi(alpha=2)], ids=repr)
def test_compiles_into_one_graph(kind: Divergence) -> None:
    torch.compiler.reset()
    a, b = torch.randn(6, 5, requires_grad=True), torch.randn(6, 5, requires_grad=True)
    compiled = torch.compile(
        lambda x, y: divergence(Logits(x), Logits(y), kind), fullgraph=True, backend="aot_eager"
    )
    eager = divergence(Logits(a), Logits(b), kind)
    torch.testing.assert_close(compiled(a, b), eager)
    want = torch.autograd.grad(eager.sum(), (a, b))
    torch.testing.assert_close(torch.autograd.grad(compiled(a, b).sum(), (a, b)), want)


def test_rows_do_not_depend_on_the_block_they_are_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.randn(50, 7, requires_grad=True), torch.randn(50, 7)
    whole = divergence(Logits(a), Logits(b), KL())
    whole_gradient = torch.autograd.grad(whole.sum(), a)[0]
    monkeypatch.setattr("kullback.kernels.row_operation._ELEMENTS_ON_CPU", 20)
    blocks = divergence(Logits(a), Logits(b), KL())
    assert torch.equal(blocks, whole)
    assert torch.equal(torch.autograd.grad(blocks.sum(), a)[0], whole_gradient)


# ---- identities, over all kinds and random rows -------------------------------------------------------------------

LOGITS = st.one_of(st.floats(-30, 30), st.just(-INF))


@st.composite
def rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n = draw(st.integers(2, 6))
    row = st.lists(LOGITS, min_size=n, max_size=n).filter(lambda x: max(x) > -INF)
    return torch.tensor(draw(row), dtype=torch.float64), torch.tensor(draw(row), dtype=torch.float64)


@KINDS
@settings(max_examples=30)
@given(rows())
def test_is_never_negative_nor_nan_and_matches_the_textbook(
    kind: Divergence, pair: tuple[Tensor, Tensor]
) -> None:
    a, b = pair
    value = float(divergence(Logits(a), Logits(b), kind))
    want = float(truth.divergence(kind, truth.softmax(a.tolist()), truth.softmax(b.tolist())))
    assert value >= 0
    assert_close(value, want, 1e-10, 1e-15 if kind in FIRST_ORDER else 1e-20)


@KINDS
@settings(max_examples=20)
@given(rows())
def test_a_constant_added_to_logits_changes_nothing(kind: Divergence, pair: tuple[Tensor, Tensor]) -> None:
    a, b = pair
    value = divergence(Logits(a), Logits(b), kind)
    torch.testing.assert_close(divergence(Logits(a + 64), Logits(b - 32), kind), value, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", [k for k in truth.KINDS if not isinstance(k, Renyi)], ids=repr)
@settings(max_examples=20)
@given(rows())
def test_merging_classes_never_increases_it(kind: Divergence, pair: tuple[Tensor, Tensor]) -> None:
    p, q = (x.softmax(-1) for x in pair)
    merged = [torch.cat([x[:1] + x[1:2], x[2:]]) for x in (p, q)]
    fine, coarse = divergence(Probs(p), Probs(q), kind), divergence(Probs(merged[0]), Probs(merged[1]), kind)
    assert coarse <= fine * (1 + 1e-10) + 1e-13


@pytest.mark.sweep
@pytest.mark.parametrize("kind", [KL(), ReverseKL(), Jeffreys(), Renyi(alpha=0.5), Renyi(alpha=2)], ids=repr)
@settings(max_examples=20)
@given(rows(), rows())
def test_adds_up_over_independent_factors(
    kind: Divergence, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]
) -> None:
    joint = [(a[:, None] + b[None, :]).flatten() for a, b in zip(one, two, strict=True)]
    total = divergence(Logits(joint[0]), Logits(joint[1]), kind)
    parts = divergence(Logits(one[0]), Logits(one[1]), kind) + divergence(
        Logits(two[0]), Logits(two[1]), kind
    )
    torch.testing.assert_close(total, parts, rtol=1e-9, atol=1e-12)


@settings(max_examples=40)
@given(rows())
def test_bounds_between_kinds_hold(pair: tuple[Tensor, Tensor]) -> None:
    def of(kind: Divergence) -> float:
        return float(divergence(Logits(pair[0]), Logits(pair[1]), kind))

    tv, hellinger, kl, chi = of(TotalVariation()), of(SquaredHellinger()), of(KL()), of(ChiSquared())
    slack = 1e-12
    assert tv**2 <= kl / 2 + slack  # Pinsker
    assert hellinger <= tv + slack
    assert tv <= math.sqrt(2 * hellinger) + slack  # Le Cam
    assert kl <= math.log1p(chi) + slack
    assert of(JensenShannon()) <= math.log(2) + slack
    orders = [of(Renyi(alpha=a)) for a in (0, 0.2, 0.5, 0.9, 1, 1.5, 4, INF)]
    assert all(low <= high * (1 + 1e-9) + slack for low, high in pairwise(orders))


@settings(max_examples=20)
@given(rows())
def test_named_members_of_the_families_agree(pair: tuple[Tensor, Tensor]) -> None:
    def of(kind: Divergence) -> Tensor:
        return divergence(Logits(pair[0]), Logits(pair[1]), kind)

    same = [
        (of(Alpha(alpha=1)), of(KL())),
        (of(Alpha(alpha=0)), of(ReverseKL())),
        (of(Alpha(alpha=0.5)), 4 * of(SquaredHellinger())),
        (of(Alpha(alpha=2)), of(ChiSquared()) / 2),
        (of(JensenShannon(beta=1e-9, scaled=True)), of(KL()) if of(KL()).isfinite() else None),
        (of(SkewKL(alpha=1)), torch.zeros((), dtype=torch.float64)),
        (of(KL()) + of(ReverseKL()), of(Jeffreys())),
    ]
    for got, want in same:
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JensenShannon(beta=1.5), r"JensenShannon\(beta=...\): wanted a number from 0 to 1; got 1.5"),
        (lambda: SkewKL(alpha=-0.1), r"SkewKL\(alpha=...\): wanted a number from 0 to 1; got -0.1"),
        (lambda: Renyi(alpha=-1), r"Renyi\(alpha=...\): wanted a number from 0 to inf; got -1"),
        (lambda: Renyi(alpha=math.nan), r"got nan"),
        (lambda: Alpha(alpha=INF), r"got inf"),
    ],
)
def test_parameters_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(errors.ArgumentValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("kind", [SkewKL(1.0), JensenShannon(0.0), JensenShannon(1.0)], ids=repr)
@pytest.mark.parametrize("name", EDGE_ROWS)
def test_a_kind_that_is_always_zero_is_zero_with_zero_gradient_at_the_edges_too(
    kind: Divergence, name: str
) -> None:
    a, b = (torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in EDGE_ROWS[name])
    value = divergence(Logits(a), Logits(b), kind)
    assert value == 0
    for gradient in torch.autograd.grad(value, (a, b)):
        assert (gradient == 0).all()


def test_flags_that_are_out_of_range_are_refused() -> None:
    with refused(errors.ArgumentTypeError, call="JensenShannon", argument="scaled"):
        JensenShannon(scaled="yes")  # pyright: ignore[reportArgumentType]


def test_kinds_are_values() -> None:
    assert JensenShannon(beta=0.5) == JensenShannon()
    assert len({KL(), KL(), Renyi(alpha=2), Renyi(alpha=2.0)}) == 2


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (SkewKL(1.0), SkewKL(0.9)),
        (JensenShannon(beta=0.0), JensenShannon(beta=0.0, scaled=True)),
        (JensenShannon(beta=1.0), JensenShannon(beta=1.0, scaled=True)),
        (JensenShannon(beta=0.0, scaled=True), None),
        (SkewKL(0.5), None),
        (KL(), None),
    ],
    ids=repr,
)
def test_a_kind_that_is_always_zero_names_one_that_is_not(kind: Divergence, other: Divergence | None) -> None:
    p, q = torch.tensor([0.2, 0.8], dtype=torch.float64), torch.tensor([0.7, 0.3], dtype=torch.float64)
    assert kind.instead_of_zero == other
    assert (divergence(Probs(p), Probs(q), kind) == 0) == (other is not None)
    if other is not None:
        assert divergence(Probs(p), Probs(q), other) > 0.005


def test_a_kind_that_is_kl_for_its_settings_is_computed_as_kl_and_keeps_its_name() -> None:
    p, q = (
        Normal(torch.tensor(1.0, dtype=torch.float64), 0.9),
        Normal(torch.tensor(0.0, dtype=torch.float64), 1.0),
    )
    alike = [
        *((kind, KL()) for kind in (Alpha(1.0), Renyi(1.0), SkewKL(0.0), JensenShannon(0.0, scaled=True))),
        *((kind, ReverseKL()) for kind in (Alpha(0.0), JensenShannon(1.0, scaled=True))),
        *(
            (kind, kind)
            for kind in (Alpha(0.5), Renyi(0.0), SkewKL(1.0), JensenShannon(1.0), JensenShannon())
        ),
    ]
    for kind, simplest in alike:
        assert kind.simplest() == simplest, kind
        result, truth_of = estimate(p, q, kind), estimate(p, q, simplest)
        assert (result.value, result.method) == (truth_of.value, truth_of.method), kind
        assert result.kind == kind.name, kind
