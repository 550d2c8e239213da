"""The drop-in for torch's KL loss: exact values and gradients, the edges that torch gets wrong, and laws."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch.func import hessian
from torch.testing import assert_close

from kullback.functional import kl_div
from kullback.losses.reduction import REDUCTIONS
from tests.losses.kl_div_cases import DOUBLE, DTYPES, FORMS, INF, as_target, rows, value_and_gradients

pytestmark = [
    # As in torch; tested in test_kl_div_in_torch.py.
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
    # torch's own, in forward mode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]


# --- truth: the definition at 50 digits -----------------------------------------------------------------------------


def exact_term(log_q, target, log_target):
    """The term and its derivatives to log_q and to the target, for mass on both sides."""
    with mpmath.workdps(50):
        x, t = mpmath.mpf(log_q), mpmath.mpf(target)
        p, log_p = (mpmath.exp(t), t) if log_target else (t, mpmath.log(t))
        to_target = log_p - x + 1
        answer = p * (log_p - x), -p, p * to_target if log_target else to_target
        return [float(number) for number in answer]


LOG_QS = [-1e-300, -1e-8, -0.3, -1.0, -7.5, -80.0, -700.0, -1e6, -1e300]
LOG_PS = [-5e-324, -1e-12, -0.3, -1.0000001, -2.0, -80.0, -650.0]


@FORMS
def test_terms_and_gradients_are_exact(log_target):
    for log_q, log_p in itertools.product(LOG_QS, LOG_PS):
        target = log_p if log_target else math.exp(log_p)
        pair = torch.tensor([[log_q], [target]], dtype=DOUBLE)
        answer = torch.stack(value_and_gradients(*pair, reduction="none", log_target=log_target)).flatten()
        expected = torch.tensor(exact_term(log_q, target, log_target), dtype=DOUBLE)
        # The logarithms are rounded before they are subtracted: what is lost is relative to the larger of them.
        p, size = math.exp(log_p), max(abs(log_q), abs(log_p), 1.0)
        allowed = 4e-16 * torch.tensor([p * size, p, p * size if log_target else size], dtype=DOUBLE) + 5e-324
        assert ((answer - expected).abs() <= allowed).all(), (log_q, log_p)


@FORMS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions_are_exact(reduction, log_target):
    log_q, log_p = rows(3, 5)
    target = as_target(log_p, log_target)
    terms = [
        [exact_term(x, t, log_target)[0] for x, t in zip(*pair, strict=True)]
        for pair in zip(log_q.tolist(), target.tolist(), strict=True)
    ]
    total = math.fsum(itertools.chain.from_iterable(terms))
    expected = {"none": terms, "sum": total, "mean": total / 15, "batchmean": total / 3}[reduction]
    answer = kl_div(log_q, target, reduction=reduction, log_target=log_target)
    assert_close(answer, torch.tensor(expected, dtype=DOUBLE), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@FORMS
def test_half_precision_is_rounded_once_where_torch_rounds_every_step(dtype, log_target):
    log_q, log_p = rows(50, 40, dtype=dtype)
    target = as_target(log_p, log_target)
    kwargs = {"reduction": "batchmean", "log_target": log_target}
    exact = kl_div(log_q.double(), target.double(), **kwargs)
    ours = kl_div(log_q, target, **kwargs)
    assert ours.dtype is dtype
    assert abs(ours.double() - exact) <= 0.501 * torch.finfo(dtype).eps * exact
    assert abs(ours.double() - exact) <= abs(F.kl_div(log_q, target, **kwargs).double() - exact)


def test_a_half_precision_sum_beyond_its_range_still_has_a_mean():
    log_q = torch.full((600, 400), -4.0, dtype=torch.float16)
    target = torch.ones_like(log_q)
    assert F.kl_div(log_q, target, reduction="batchmean") == INF  # 4 * 240000 overflows float16
    assert kl_div(log_q, target, reduction="batchmean") == 1600


# --- the edges ------------------------------------------------------------------------------------------------------

# log q, log p: the term, its gradients to log q, to p and to log p
EDGES = {
    "no mass in either": (-INF, -INF, 0.0, 0.0, 0.0, 0.0),
    "no mass in P": (-2.0, -INF, 0.0, 0.0, 0.0, 0.0),
    "no mass in P, all in Q": (0.0, -INF, 0.0, 0.0, 0.0, 0.0),
    "no mass in Q": (-INF, math.log(0.5), INF, -0.5, 1.0, 0.5),
    "no mass in Q, all in P": (-INF, 0.0, INF, -1.0, 1.0, 1.0),
    "all mass in both": (0.0, 0.0, 0.0, -1.0, 1.0, 1.0),
}


@FORMS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("edge", EDGES)
def test_edges_have_their_limits(edge, dtype, log_target):
    log_q, log_p, term, to_log_q, to_p, to_log_p = EDGES[edge]
    target = torch.tensor(log_p if log_target else math.exp(log_p), dtype=dtype)
    answer = value_and_gradients(
        torch.tensor(log_q, dtype=dtype), target, reduction="none", log_target=log_target
    )
    expected = torch.tensor([term, to_log_q, to_log_p if log_target else to_p], dtype=dtype)
    assert_close(torch.stack(answer), expected, rtol=torch.finfo(dtype).eps, atol=0)


@FORMS
@pytest.mark.parametrize("edge", ["no mass in either", "no mass in P"])
def test_second_derivatives_vanish_without_mass(edge, log_target):
    log_q, log_p, *_ = EDGES[edge]
    target = as_target(torch.tensor(log_p, dtype=DOUBLE), log_target)
    pair = (torch.tensor(log_q, dtype=DOUBLE), target)
    second = hessian(lambda x, t: kl_div(x, t, reduction="sum", log_target=log_target), argnums=(0, 1))(*pair)
    assert all(entry == 0 for row in second for entry in row)


@FORMS
def test_masked_classes_change_nothing_through_log_softmax(log_target):
    mask = torch.tensor([False, True, False, False, True, False])
    logits = [torch.randn(4, 6, dtype=DOUBLE) for _ in range(2)]

    def loss(student, teacher):
        target = as_target(teacher.log_softmax(-1), log_target)
        return kl_div(student.log_softmax(-1), target, reduction="batchmean", log_target=log_target)

    value, *gradients = value_and_gradients(*(x.masked_fill(mask, -INF) for x in logits), function=loss)
    expected, *expected_gradients = value_and_gradients(*(x[:, ~mask] for x in logits), function=loss)
    assert_close(value, expected)
    for gradient, kept in zip(gradients, expected_gradients, strict=True):
        assert (gradient[:, mask] == 0).all()
        assert_close(gradient[:, ~mask], kept)


@FORMS
def test_gradients_stay_finite_where_the_divergence_is_infinite(log_target):
    student, teacher = (torch.randn(3, 4, dtype=DOUBLE) for _ in range(2))
    student[1, 2] = -INF

    def terms(student, teacher):
        target = as_target(teacher.log_softmax(-1), log_target)
        return kl_div(student.log_softmax(-1), target, reduction="none", log_target=log_target).sum(-1)

    value, *gradients = value_and_gradients(student, teacher, function=terms)
    assert value.isinf().tolist() == [False, True, False]
    assert all(gradient.isfinite().all() for gradient in gradients)
    unused = value_and_gradients(student, teacher, function=lambda *pair: terms(*pair)[[0, 2]])
    assert all((gradient[1] == 0).all() for gradient in unused[1:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mass_that_underflows_still_meets_no_mass_in_q(dtype):
    log_p = torch.tensor(-1000.0, dtype=dtype)
    assert log_p.exp() == 0
    value, to_log_q, to_log_p = value_and_gradients(
        torch.tensor(-INF, dtype=dtype), log_p, reduction="none", log_target=True
    )
    assert value == INF
    assert abs(to_log_q.double()) < 1e-37
    assert abs(to_log_p.double()) < 1e-37


@FORMS
def test_finite_masks_cost_nothing(log_target):
    lowest = torch.finfo(torch.float32).min
    for mask in (-1e9, lowest):
        log_q, log_p = torch.tensor([[0.0, mask], [0.0, mask]])
        value, *gradients = value_and_gradients(
            log_q, as_target(log_p, log_target), reduction="sum", log_target=log_target
        )
        assert value == 0
        assert_close(gradients[0], torch.tensor([-1.0, 0.0]))
        assert gradients[1][1] == 0


@FORMS
@pytest.mark.parametrize(
    ("log_q", "log_p"),
    [(math.nan, -1.0), (math.nan, -INF), (-1.0, math.nan), (-INF, math.nan), (INF, -1.0), (INF, -INF)],
)
def test_invalid_numbers_are_not_hidden(log_q, log_p, log_target):
    target = as_target(torch.tensor([log_p, -1.0]), log_target)
    pair = (torch.tensor([log_q, -1.0]), target)
    ours, torchs = (f(*pair, reduction="none", log_target=log_target) for f in (kl_div, F.kl_div))
    assert_close(ours, torchs, equal_nan=True)
    assert not ours[0].isfinite()


def test_negative_probabilities_give_nan_as_in_torch():
    assert kl_div(torch.tensor([-1.0]), torch.tensor([-0.5]), reduction="sum").isnan()


# --- laws -----------------------------------------------------------------------------------------------------------


@st.composite
def log_rows(draw):
    """Two matrices of log-probabilities, log Q and log P, of one shape."""
    count, classes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    scores = st.lists(st.floats(-40, 40), min_size=count * classes, max_size=count * classes)
    return tuple(
        torch.tensor(draw(scores), dtype=DOUBLE).view(count, classes).log_softmax(-1) for _ in range(2)
    )


@given(log_rows())
def test_divergences_of_distributions_are_not_negative(pair):
    log_q, log_p = pair
    assert (kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1) >= -1e-14).all()


@given(log_rows())
def test_a_distribution_diverges_from_itself_by_exactly_nothing(pair):
    log_p = pair[1]
    assert kl_div(log_p, log_p, reduction="sum", log_target=True) == 0
    assert kl_div(log_p.exp().log(), log_p.exp(), reduction="sum") == 0


@given(log_rows())
def test_probabilities_and_their_logarithms_agree(pair):
    log_q, log_p = pair
    plain, logarithmic = (
        kl_div(log_q, log_p.exp(), reduction="none"),
        kl_div(log_q, log_p, reduction="none", log_target=True),
    )
    assert_close(plain, logarithmic, rtol=1e-12, atol=1e-14)


@given(log_rows(), st.booleans())
def test_reductions_are_one_sum_on_four_scales(pair, log_target):
    log_q, target = pair[0], as_target(pair[1], log_target)
    none, total, mean, batchmean = (
        kl_div(log_q, target, reduction=word, log_target=log_target)
        for word in ("none", "sum", "mean", "batchmean")
    )
    assert_close(none.sum(), total)
    assert_close(mean * none.numel(), total)
    assert_close(batchmean * none.size(0), total)


@given(log_rows(), st.floats(-5, 5))
def test_scaling_q_shifts_the_loss_by_the_mass_of_p(pair, shift):
    log_q, log_p = pair
    shifted, plain = (
        kl_div(x, log_p, reduction="batchmean", log_target=True) for x in (log_q + shift, log_q)
    )
    assert_close(shifted, plain - shift, rtol=1e-12, atol=1e-12)


@given(log_rows(), st.sampled_from([-INF, -30.0, 0.0]), st.booleans())
def test_a_class_without_mass_changes_neither_loss_nor_gradients(pair, log_q_there, log_target):
    kwargs = {"reduction": "batchmean", "log_target": log_target}
    longer = [F.pad(x, (0, 1), value=there) for x, there in zip(pair, (log_q_there, -INF), strict=True)]
    value, *gradients = value_and_gradients(pair[0], as_target(pair[1], log_target), **kwargs)
    padded, *padded_gradients = value_and_gradients(longer[0], as_target(longer[1], log_target), **kwargs)
    assert_close(padded, value)
    for ours, expected in zip(padded_gradients, gradients, strict=True):
        assert_close(ours, F.pad(expected, (0, 1)))


@given(log_rows(), log_rows())
def test_divergences_of_independent_pairs_add_up(first, second):
    def joint(a, b):
        return (a[0][:, None] + b[0][None, :]).flatten()

    apart = sum(kl_div(q[0], p[0], reduction="sum", log_target=True) for q, p in (first, second))
    together = kl_div(
        joint(first[0], second[0]), joint(first[1], second[1]), reduction="sum", log_target=True
    )
    assert_close(together, apart, rtol=1e-12, atol=1e-12)
