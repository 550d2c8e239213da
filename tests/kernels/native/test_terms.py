"""The C++ kernels of kl_div's terms and of rows of weights, against mpmath and against plain torch."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from kullback import KL
from kullback.kernels import kl_div_terms, reference
from kullback.kernels.native import library, terms
from kullback.kernels.reference import RowDivergence

if library.missing() is not None:
    pytest.skip(f"no native kernels here: {library.missing()}", allow_module_level=True)

INF, NAN = float("inf"), float("nan")
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
LOGS = pytest.mark.parametrize("log_target", [False, True], ids=["probabilities", "logarithms"])
DIVISORS = pytest.mark.parametrize("divisor", [None, 1, 7], ids=["none", "sum", "mean"])


def pair(*shape, dtype=torch.float64, log_target=False):
    log_q, log_p = torch.randn(2, *shape, dtype=torch.float64).mul(3).log_softmax(-1)
    return log_q.to(dtype), (log_p if log_target else log_p.exp()).to(dtype)


def in_torch(log_q, target, log_target, divisor):
    wide = torch.promote_types(log_q.dtype, torch.float32)
    summands = kl_div_terms.reference_terms(log_q.to(wide), target.to(wide), log_target)
    return (summands if divisor is None else summands.sum() / divisor).to(log_q.dtype)


def with_gradients(function, log_q, target, log_target, divisor):
    leaves = [x.detach().clone().requires_grad_() for x in (log_q, target)]
    result = function(*leaves, log_target, divisor)
    weights = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view_as(result)
    return result.detach(), *torch.autograd.grad(result, leaves, weights if divisor is None else None)


def edges(dtype, log_target):
    """All pairs of what a class may hold, and of what it may not."""
    logs = [-INF, -1e4, -700.0, -100.0, -80.0, -1.0, -1e-3, 0.0, 2.0, INF, NAN]
    targets = logs if log_target else [0.0, 1e-320, 1e-42, 1e-30, 0.25, 1.0, 3.0, -1.0, NAN]
    log_q, target = torch.meshgrid(torch.tensor(logs).double(), torch.tensor(targets).double(), indexing="ij")
    return log_q.to(dtype).flatten(), target.to(dtype).flatten()


@DTYPES
@LOGS
@DIVISORS
def test_values_and_gradients_are_those_of_plain_torch(dtype, log_target, divisor):
    log_q, target = pair(3, 2741, dtype=dtype, log_target=log_target)  # no whole number of blocks
    found = with_gradients(kl_div_terms.kl_terms, log_q, target, log_target, divisor)
    expected = with_gradients(in_torch, log_q, target, log_target, divisor)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(ours, theirs, rtol=8 * eps, atol=8 * eps * float(theirs.abs().max()))


@LOGS
def test_terms_are_the_true_ones(log_target):
    log_q, target = pair(4, 9, log_target=log_target)
    found = kl_div_terms.kl_terms(log_q, target, log_target, None)
    with mpmath.workdps(50):
        for x, t, term in zip(log_q.flatten(), target.flatten(), found.flatten(), strict=True):
            given = mpmath.mpf(t.item())
            p, log_p = (mpmath.exp(given), given) if log_target else (given, mpmath.log(given))
            truth = p * (log_p - mpmath.mpf(x.item()))
            size = p * (abs(log_p) + abs(x.item()))
            assert abs(truth - term.item()) <= 4e-16 * float(size)


@DTYPES
@LOGS
def test_the_edges_are_those_of_plain_torch(dtype, log_target):
    log_q, target = edges(dtype, log_target)
    found = kl_div_terms.kl_terms(log_q, target, log_target, None)
    expected = in_torch(log_q, target, log_target, None)
    torch.testing.assert_close(found, expected, equal_nan=True)


@LOGS
def test_gradients_at_the_edges_are_finite(log_target):
    massless = -INF if log_target else 0.0
    log_q = torch.tensor([-INF, -1.0, -INF, -INF], dtype=torch.float64)
    target = torch.tensor([massless, massless, -0.5 if log_target else 0.6, -900.0 if log_target else 5e-324])
    target = target.double()
    value, by_log_q, by_target = with_gradients(kl_div_terms.kl_terms, log_q, target, log_target, 1)
    assert value == INF
    assert (by_log_q[:2] == 0).all()
    assert (by_target[:2] == 0).all()
    assert by_log_q.isfinite().all()
    assert by_target.isfinite().all()
    assert by_log_q[2] == -(target[2].exp() if log_target else target[2])


def test_equal_distributions_give_exactly_zero():
    p = torch.randn(5, 4099).softmax(-1)
    assert (kl_div_terms.kl_terms(p.log(), p, False, None) == 0).all()
    assert kl_div_terms.kl_terms(p.log(), p.log(), True, 1) == 0


@LOGS
@DIVISORS
def test_derivatives_of_both_orders_are_those_of_the_value(log_target, divisor):
    leaves = [x.requires_grad_() for x in pair(2, 3, log_target=log_target)]

    def function(log_q, target):
        return kl_div_terms.kl_terms(log_q, target, log_target, divisor)

    assert gradcheck(function, leaves, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, leaves)


def test_a_second_backward_pass_gives_the_same_gradient_and_an_outer_factor_scales_it():
    log_q, target = pair(3, 5)
    log_q.requires_grad_()
    loss = kl_div_terms.kl_terms(log_q, target, False, 3)
    (first,) = torch.autograd.grad(loss, log_q, retain_graph=True)
    (second,) = torch.autograd.grad(loss, log_q, retain_graph=True)
    (scaled,) = torch.autograd.grad(loss * 4, log_q)
    torch.testing.assert_close(first, -target / 3)
    torch.testing.assert_close(second, first)
    torch.testing.assert_close(scaled, 4 * first)


def test_the_sum_does_not_depend_on_the_number_of_threads():
    log_q, target = pair(7, 50_001, dtype=torch.float32)
    threads = torch.get_num_threads()
    try:
        sums = []
        for count in (1, 2):
            torch.set_num_threads(count)
            sums.append(float(kl_div_terms.kl_terms(log_q, target, False, 1)))
    finally:
        torch.set_num_threads(threads)
    assert sums[0] == sums[1]


def test_strides_do_not_matter():
    log_q, target = (x.t() for x in pair(5, 8, dtype=torch.float32))
    torch.testing.assert_close(
        kl_div_terms.kl_terms(log_q, target, False, None),
        in_torch(log_q, target, False, None),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [0.0, 1e-6, 1e-3, 0.1, 3.0])
@pytest.mark.parametrize("unit", [1.0, 3e5])
def test_rows_of_weights_have_their_true_divergence(dtype, step, unit):
    p = torch.randn(6, 13, dtype=torch.float64).exp()
    q = (p * (step * torch.randn_like(p)).exp() * unit).to(dtype)
    p = p.to(dtype) if step or unit > 1 else q
    p[0, 3] = 0.0  # P may lack a class,
    p[1, 5] = q[1, 5] = 0.0  # and both may,
    q[2, 4] = 0.0  # but Q alone may not
    found = terms.kl_of_weights(p, q, INF)
    with mpmath.workdps(50):
        for a, b, value in zip(p.tolist(), q.tolist(), found.tolist(), strict=True):
            sum_a, sum_b = mpmath.fsum(a), mpmath.fsum(b)
            truth = mpmath.mpf(0)
            for x, y in zip(a, b, strict=True):
                if x > 0:
                    truth += x / sum_a * mpmath.log((x / sum_a) / (y / sum_b)) if y > 0 else mpmath.inf
            # In units that differ, each log-ratio is off by a rounding error, whatever its size.
            assert value == pytest.approx(float(truth), rel=1e-9, abs=1e-15 * float(truth) ** 0.5 + 1e-28)


def test_equal_rows_of_weights_give_exactly_zero_and_none_is_negative():
    p = torch.rand(50, 33)
    assert (terms.kl_of_weights(p, p.clone(), INF) == 0).all()
    assert (terms.kl_of_weights(p, p * 3, INF) >= 0).all()


@pytest.mark.parametrize(
    "row", [[0.5, -0.1, 0.6], [NAN, 0.5, 0.5], [INF, 0.5, 0.5], [0.0, 0.0, 0.0], [1e-200, 0.5, 0.5]]
)
def test_rows_that_need_a_closer_look_are_left_to_others(row):
    good = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    bad = torch.tensor([row], dtype=torch.float64)
    assert terms.kl_of_weights(good, bad, INF) is None
    assert terms.kl_of_weights(bad, good, INF) is None


def test_rows_off_in_their_sum_are_left_to_others():
    p = torch.tensor([[0.2, 0.3, 0.5]])
    assert terms.kl_of_weights(p, 2 * p, 1e-4) is None
    assert terms.kl_of_weights(p, p, 1e-4) == 0


def test_weights_whose_derivative_is_asked_for_are_left_to_others():
    p = torch.rand(2, 3, requires_grad=True)
    assert terms.kl_of_weights(p, p.detach(), INF) is None
    with torch.no_grad():
        assert terms.kl_of_weights(p, p.detach(), INF) is not None


def test_rows_of_weights_agree_with_the_reference_in_any_shape():
    p, q = torch.rand(2, 4, 3, 257, dtype=torch.float64)
    expected = reference.row_divergence(
        RowDivergence(KL(), p_in_logs=False, q_in_logs=False), p.view(12, -1), q.view(12, -1)
    )
    torch.testing.assert_close(terms.kl_of_weights(p, q, INF), expected.view(4, 3))
    torch.testing.assert_close(
        terms.kl_of_weights(p.transpose(0, 1), q.transpose(0, 1), INF), expected.view(4, 3).t()
    )


def test_the_operators_pass_torchs_own_checks():
    log_q, target = pair(4, 6, dtype=torch.float32)
    tests = ("test_schema", "test_faketensor")
    arguments = (log_q, target, target.log(), None, 1.0, 1.0, torch.empty(4, 6), None, None, None)
    torch.library.opcheck(torch.ops.kullback.kl_terms.default, arguments, test_utils=tests)
