"""kullback.metrics beyond torchmetrics: truth at 50 digits, edges, masks, representations, errors and quantiles."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torchmetrics import MetricCollection

from kullback import KL
from kullback.errors import ArgumentTypeError, ArgumentValueError, IncompatibleTensorError
from kullback.metrics import KLDivergence, kl_divergence
from tests.oracles import truth

INF, NAN = math.inf, math.nan
READINGS = ("probs", "counts", "log-probs", "logits")


def rows(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def written_as(reading, probs):
    """Write probabilities as the metric is to read them; counts and logits on another scale than one."""
    return {
        "probs": lambda: probs,
        "counts": lambda: probs * 7,
        "log-probs": probs.log,
        "logits": lambda: probs.log() + 3,
    }[reading]()


def true_rows(reading, x, y):
    """KL of each row by mpmath, from the numbers as they are stored."""
    to_probs = (
        truth.softmax if reading in ("log-probs", "logits") else lambda r: truth.normalized(truth.exact(r))
    )
    return [
        float(truth.divergence(KL(), to_probs(p), to_probs(q)))
        for p, q in zip(x.tolist(), y.tolist(), strict=True)
    ]


def random_pair(*shape, dtype=torch.float64):
    return torch.randn(2, *shape, dtype=dtype).mul(2).softmax(-1).unbind()


def test_the_textbook_example():
    p, q = torch.tensor([[0.36, 0.48, 0.16]]), torch.tensor([[1 / 3, 1 / 3, 1 / 3]])
    assert round(float(kl_divergence(p, q)), 4) == 0.0853
    assert round(float(KLDivergence()(p, q)), 4) == 0.0853


# Values


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_are_the_true_ones(reading, dtype):
    x, y = (written_as(reading, p.to(dtype)) for p in random_pair(6, 5))
    expected = true_rows(reading, x, y)
    torch.testing.assert_close(
        kl_divergence(x, y, representation=reading, reduction="none"), torch.tensor(expected, dtype=dtype)
    )
    metric = KLDivergence(representation=reading)
    metric.update(x[:4], y[:4])
    metric.update(x[4:], y[4:])
    torch.testing.assert_close(metric.compute(), torch.tensor(np.mean(expected), dtype=dtype))


@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("reading", ["counts", "logits"])
def test_close_distributions_keep_their_digits(reading, scale):
    p = random_pair(20, 8)[0]
    x = written_as(reading, p)
    y = written_as(reading, p) * (1 + scale * torch.randn_like(p))
    expected = true_rows(reading, x, y)
    found = kl_divergence(x, y, representation=reading, reduction="none")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=9), st.floats(0, 1e-7))
def test_no_value_is_negative_and_equal_rows_give_zero(logits, step):
    x = rows(logits)
    y = x + step * torch.arange(x.shape[1])
    assert float(kl_divergence(x, y, representation="logits")) >= 0
    assert float(kl_divergence(x, x, representation="logits")) == 0
    assert float(kl_divergence(x.softmax(-1).float(), x.softmax(-1).float())) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reading", READINGS)
def test_half_precision_rows_are_not_rounded_before_they_are_averaged(dtype, reading):
    x, y = (written_as(reading, p).to(dtype) for p in random_pair(50, 6))
    metric = KLDivergence(representation=reading)
    metric.update(x, y)
    assert metric.compute().dtype == torch.float32
    torch.testing.assert_close(float(metric.compute()), np.mean(true_rows(reading, x, y)), rtol=1e-6, atol=0)
    assert kl_divergence(x, y, representation=reading).dtype == dtype


def test_integer_counts_and_mixed_dtypes_are_read():
    counts, probs = torch.tensor([[3, 1], [0, 4]]), rows([0.5, 0.5], [0.25, 0.75], dtype=torch.float32)
    expected = kl_divergence(counts.double(), probs.double(), reduction="none")
    found = kl_divergence(counts, probs, reduction="none")
    torch.testing.assert_close(found, expected.float())
    assert kl_divergence(counts, counts).dtype == torch.float32
    assert kl_divergence(counts.double(), probs).dtype == torch.float64


# Edges, in value and gradient

EDGES = [  # (P, Q, KL)
    ([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], 0.0),
    ([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], math.log(2)),
    ([0.0, 1.0, 0.0], [0.25, 0.25, 0.5], math.log(4)),
    ([0.5, 0.5, 0.0], [1.0, 0.0, 0.0], INF),
    ([0.5, 0.0, 0.5], [0.5, 0.5, 0.0], INF),
    ([1e-300, 1.0, 0.0], [0.0, 1.0, 0.0], INF),
]


@pytest.mark.parametrize("log_prob", [False, True])
@pytest.mark.parametrize(("p", "q", "expected"), EDGES)
def test_zeros_and_masked_classes(p, q, expected, log_prob):
    x, y = (rows(side).log() if log_prob else rows(side) for side in (p, q))
    metric = KLDivergence(log_prob)
    metric.update(x, y)
    assert float(kl_divergence(x, y, log_prob)) == pytest.approx(expected, abs=1e-15)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("log_prob", [False, True])
@pytest.mark.parametrize(("p", "q", "expected"), EDGES)
def test_gradients_at_zeros_and_masked_classes(p, q, expected, log_prob):
    x, y = ((rows(side).log() if log_prob else rows(side)).requires_grad_() for side in (p, q))
    KLDivergence(log_prob)(x, y).backward()
    for side, by_side in ((p, x.grad), (q, y.grad)):
        assert bool(by_side.isfinite().all())
        if expected < INF:
            assert bool((by_side[rows(side) == 0] == 0).all())
    if log_prob:  # those of normalized rows
        torch.testing.assert_close(y.grad, rows(q) - rows(p))


@pytest.mark.parametrize("reading", READINGS)
def test_gradients_are_those_of_the_textbook_formula(reading):
    x, y = (written_as(reading, side).requires_grad_() for side in random_pair(4, 3))
    kl_divergence(x, y, representation=reading, reduction="sum").backward()
    for p, q, by_p, by_q in zip(x.detach(), y.detach(), x.grad, y.grad, strict=True):
        if reading in ("log-probs", "logits"):
            expected = truth.logit_gradient(KL(), p.tolist(), q.tolist())
        else:  # d/dx = 1/x d/dlog x
            by_logits = truth.logit_gradient(KL(), p.log().tolist(), q.log().tolist())
            expected = rows(by_logits[0]) / p, rows(by_logits[1]) / q
        np.testing.assert_allclose(by_p, np.ravel(expected[0]), rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(by_q, np.ravel(expected[1]), rtol=1e-9, atol=1e-14)


def test_gradient_of_equal_arguments_is_zero():
    x = random_pair(3, 4)[0].log().requires_grad_()
    y = x.detach().clone().requires_grad_()
    KLDivergence(log_prob=True)(x, y).backward()
    assert bool((x.grad == 0).all() & (y.grad == 0).all())


@pytest.mark.parametrize("representation", READINGS)
def test_gradcheck(representation):
    x, y = (written_as(representation, side).requires_grad_() for side in random_pair(2, 3))
    if representation in ("probs", "log-probs"):  # a step off the simplex would be refused
        x, y = (
            side.detach().log().requires_grad_() if representation == "probs" else side for side in (x, y)
        )

        def value(a, b):
            a, b = a.log_softmax(-1), b.log_softmax(-1)
            return kl_divergence(
                *((a.exp(), b.exp()) if representation == "probs" else (a, b)), representation=representation
            )
    else:

        def value(a, b):
            return kl_divergence(a, b, representation=representation)

    assert torch.autograd.gradcheck(value, (x, y))
    assert torch.autograd.gradgradcheck(value, (x, y))


@pytest.mark.sweep
@pytest.mark.parametrize("reading", READINGS)
def test_function_transforms(reading):
    x, y = (written_as(reading, side) for side in random_pair(4, 3, 5))

    def value(a, b):
        return kl_divergence(a, b, representation=reading)

    expected = torch.stack([value(a, b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(torch.func.vmap(value)(x, y), expected)
    torch.testing.assert_close(
        torch.compile(value, fullgraph=True, backend="aot_eager")(x, y), expected.mean()
    )
    change = torch.randn_like(x)
    _, forward = torch.func.jvp(value, (x, y), (change, torch.zeros_like(y)))
    torch.testing.assert_close(forward, (torch.func.grad(value)(x, y) * change).sum())


def test_an_empty_batch_counts_nothing():
    nothing = torch.zeros(0, 3)
    assert kl_divergence(nothing, nothing, reduction="sum") == 0
    assert kl_divergence(nothing, nothing, reduction="none").shape == (0,)
    assert math.isnan(kl_divergence(nothing, nothing))
    metric = KLDivergence()
    metric.update(nothing, nothing)
    p, q = random_pair(2, 3)
    metric.update(p, q)
    torch.testing.assert_close(metric.compute(), kl_divergence(p, q))


# Leading dimensions and mask


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 4, 5), (2, 1, 3, 5)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_any_number_of_leading_dimensions(shape, reduction):
    p, q = random_pair(*shape)
    flat = kl_divergence(p.reshape(-1, 5), q.reshape(-1, 5), reduction=reduction)
    found = kl_divergence(p, q, reduction=reduction)
    assert found.shape == (shape[:-1] if reduction == "none" else ())
    torch.testing.assert_close(found.flatten(), flat.flatten())
    torch.testing.assert_close(KLDivergence(reduction=reduction)(p, q).flatten(), flat.flatten())


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("padding", [NAN, INF, -1.0, 0.0])
def test_masked_rows_never_count(reading, reduction, padding):
    mask = torch.tensor([[True, True, False, False], [True, False, True, False]])
    x, y = (written_as(reading, side) for side in random_pair(2, 4, 3))
    expected = kl_divergence(x[mask], y[mask], reduction=reduction, representation=reading)
    x[~mask], y[~mask] = padding, padding
    x.requires_grad_()
    found = kl_divergence(x, y, reduction=reduction, representation=reading, mask=mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        KLDivergence(reduction=reduction, representation=reading)(x, y, mask=mask), expected
    )
    found.sum().backward()
    assert bool((x.grad[~mask] == 0).all())
    assert bool(x.grad.isfinite().all())
    assert bool((x.grad[mask] != 0).any())


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_a_batch_that_is_all_masked_leaves_the_metric_as_it_was():
    p, q = random_pair(3, 4)
    metric = KLDivergence()
    metric.update(p, q)
    before = metric.compute(), metric.standard_error(), metric.quantile(0.5)
    metric.update(p * NAN, q, mask=torch.zeros(3, dtype=torch.bool))
    assert (metric.compute(), metric.standard_error(), metric.quantile(0.5)) == before


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_a_mask_of_a_single_row():
    p, q = random_pair(3)
    assert kl_divergence(p, q, mask=torch.tensor(True)) == kl_divergence(p, q)
    assert kl_divergence(p, q, mask=torch.tensor(False), reduction="sum") == 0


# Statistics


def updated(metric, p, q, batch=7):
    for a, b in zip(p.split(batch), q.split(batch), strict=True):
        metric.update(a, b)
    return metric


@pytest.mark.parametrize("reduction", ["mean", "sum", "none", None])
def test_standard_error_and_quantiles_are_those_of_the_rows(reduction):
    p, q = random_pair(2000, 5)
    p[:100] = q[:100]
    values = kl_divergence(p, q, reduction="none")
    metric = updated(KLDivergence(reduction=reduction).set_dtype(torch.float64), p, q, batch=37)
    torch.testing.assert_close(metric.standard_error(), values.std() / 2000**0.5)
    probabilities = [0.0, 0.02, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0]
    exact = np.quantile(values.numpy(), probabilities)
    np.testing.assert_allclose(metric.quantile(probabilities), exact, rtol=0.005 * (1 + 1e-9))
    assert float(metric.quantile(1.0)) == float(values.max())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_statistics_come_in_the_dtype_of_the_result(reduction):
    for dtype, expected in ((torch.float32, torch.float32), (torch.float64, torch.float64)):
        p, q = random_pair(4, 3, dtype=dtype)
        metric = updated(KLDivergence(reduction=reduction), p, q)
        assert {metric.compute().dtype, metric.standard_error().dtype, metric.quantile(0.5).dtype} == {
            expected
        }


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_statistics_before_any_row_are_not_numbers(reduction):
    metric = KLDivergence(reduction=reduction)
    assert math.isnan(metric.standard_error())
    assert bool(metric.quantile([0.1, 0.9]).isnan().all())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e9, 1e20, 1e37])
def test_quantiles_of_rows_of_any_size(scale):
    # A row of logits (0, -s) against (-s, 0) has KL s.
    sizes = torch.linspace(1, 9, 81, dtype=torch.float64) * scale
    p = torch.stack([torch.zeros_like(sizes), -sizes], -1)
    metric = KLDivergence(representation="logits")
    metric.update(p, p.flip(-1))
    values = kl_divergence(p, p.flip(-1), representation="logits", reduction="none")
    probabilities = [0.0, 0.1, 0.5, 0.9, 0.99, 1.0]
    exact = np.quantile(values.numpy(), probabilities)
    np.testing.assert_allclose(metric.quantile(probabilities), exact, rtol=0.005 * (1 + 1e-9))


def test_an_infinite_row_shows_in_mean_and_top_quantiles_only():
    p, q = rows([1.0, 0.0], [0.5, 0.5], [0.5, 0.5]), rows([0.5, 0.5], [1.0, 0.0], [0.5, 0.5])
    metric = updated(KLDivergence(), p, q, batch=1)
    assert float(metric.compute()) == INF
    assert float(metric.standard_error()) == INF
    assert metric.quantile([0.0, 0.5, 1.0]).tolist() == pytest.approx([0.0, math.log(2), INF], rel=0.005)


def test_small_updates_after_a_large_one_are_not_lost():
    p, q = rows([0.36, 0.48, 0.16], dtype=torch.float32), torch.full((1, 3), 1 / 3)
    near = torch.tensor([[0.34, 0.333, 0.327]])
    metric = KLDivergence(reduction="sum").set_dtype(torch.float64)
    metric.update(p.expand(100_000, 3), q.expand(100_000, 3))
    for _ in range(100):
        metric.update(near, q)  # each of them less than half a unit in the last place of float32
    expected = 100_000 * float(kl_divergence(p, q)) + 100 * float(kl_divergence(near, q))
    assert float(kl_divergence(near, q)) < torch.finfo(torch.float32).eps * expected / 2
    assert float(metric.compute()) == pytest.approx(expected, rel=1e-12)


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_the_batches_do_not_matter(n, batch, through_forward):
    p, q = random_pair(n, 3)
    whole, parts = KLDivergence(), KLDivergence()
    whole.update(p, q)
    for a, b in zip(p.split(batch), q.split(batch), strict=True):
        value = parts(a, b) if through_forward else parts.update(a, b)
        if through_forward:
            torch.testing.assert_close(value, kl_divergence(a, b))
    torch.testing.assert_close(parts.compute(), whole.compute())
    torch.testing.assert_close(
        parts.standard_error(), whole.standard_error(), equal_nan=True, atol=1e-12, rtol=1e-7
    )
    torch.testing.assert_close(parts.quantile([0.0, 0.3, 1.0]), whole.quantile([0.0, 0.3, 1.0]))


def test_merging_two_metrics_is_seeing_all_rows():
    p, q = random_pair(50, 4)
    left, right = updated(KLDivergence(), p[:20], q[:20]), updated(KLDivergence(), p[20:], q[20:])
    left.merge_state(right)
    whole = updated(KLDivergence(), p, q)
    torch.testing.assert_close(left.compute(), whole.compute())
    torch.testing.assert_close(left.standard_error(), whole.standard_error())
    torch.testing.assert_close(left.quantile([0.1, 0.5]), whole.quantile([0.1, 0.5]))


# The states


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
def test_a_dtype_of_the_metric_rounds_the_result_alone(dtype):
    p, q = random_pair(3000, 3, dtype=torch.float32)
    exact = updated(KLDivergence(), p.double(), q.double(), batch=100)
    metric = updated(KLDivergence(), p[:100], q[:100]).set_dtype(dtype)
    assert metric.dtype == dtype
    updated(metric, p[100:], q[100:], batch=100)
    assert metric.moments.dtype == torch.float64
    assert metric.counts.dtype == torch.int64
    assert metric.compute().dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(metric.compute().double(), exact.compute(), rtol=1e-6, atol=0)
    torch.testing.assert_close(metric.standard_error().double(), exact.standard_error(), rtol=1e-5, atol=0)
    metric.reset()
    metric.update(p.to(torch.float16), q.to(torch.float16), mask=torch.zeros(3000, dtype=torch.bool))
    assert metric.compute().dtype == torch.promote_types(dtype, torch.float16)
    assert metric.moments.dtype == torch.float64


def test_saved_states_go_on_where_they_were():
    p, q = random_pair(20, 3)
    metric = updated(KLDivergence(), p[:10], q[:10])
    metric.persistent(True)
    loaded = KLDivergence()
    loaded.load_state_dict(metric.state_dict())
    copied = pickle.loads(pickle.dumps(metric))  # noqa: S301 - our own pickle
    cloned = metric.clone()
    for other in (loaded, copied, cloned):
        updated(other, p[10:], q[10:])
        torch.testing.assert_close(other.compute(), kl_divergence(p, q))
        torch.testing.assert_close(other.quantile(1.0), kl_divergence(p, q, reduction="none").max())
    torch.testing.assert_close(metric.compute(), kl_divergence(p[:10], q[:10]))


def test_metrics_of_a_collection_share_their_states_and_take_the_mask():
    p, q = random_pair(4, 6, 3)
    mask = torch.rand(4, 6) < 0.5
    collection = MetricCollection({"mean": KLDivergence(), "sum": KLDivergence(reduction="sum")})
    for i in range(4):
        collection.update(p[i], q[i], mask=mask[i])
    assert collection.compute_groups == {0: ["mean", "sum"]}
    found = collection.compute()
    for reduction in ("mean", "sum"):
        torch.testing.assert_close(found[reduction], kl_divergence(p, q, reduction=reduction, mask=mask))


# Errors

P, Q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])

REFUSED = [
    ({"p": [[0.5, 0.5]]}, ArgumentTypeError, r"\(p=...\): wanted a tensor; got list"),
    ({"q": torch.ones(1, 3)}, IncompatibleTensorError, r"shape \(1, 2\) on cpu and shape \(1, 3\)"),
    ({"q": torch.ones(2)}, IncompatibleTensorError, "same shape"),
    ({"q": P.to("meta")}, IncompatibleTensorError, "on meta"),
    (
        {"p": torch.tensor(0.5), "q": torch.tensor(0.5)},
        ArgumentValueError,
        r"\(p=...\).*at least one dimension",
    ),
    (
        {"q": torch.tensor([[0.5, -0.5]])},
        ArgumentValueError,
        r"\(q=...\).*1 of 2, the first at index \(0, 1\)",
    ),
    ({"p": torch.tensor([[NAN, 1.0]])}, ArgumentValueError, r"\(p=...\).*NaN"),
    ({"p": torch.zeros(1, 2)}, ArgumentValueError, r"\(p=...\).*no count at all"),
    ({"p": torch.tensor([[True, False]])}, ArgumentTypeError, r"\(p=...\).*dtype torch.bool"),
    ({"log_prob": True}, ArgumentValueError, "sum to 1 within.*representation='logits'"),
    (
        {"representation": "probs", "p": P * 2},
        ArgumentValueError,
        "row .0,. sums to 2.*representation='logits' for scores, 'log-probs'",
    ),
    ({"representation": "logits", "p": torch.full((1, 2), -INF)}, ArgumentValueError, "only -inf"),
    (
        {"representation": "scores"},
        ArgumentValueError,
        r"\(representation=...\): wanted one of 'logits', 'log-probs', 'probs', 'counts'.*got representation='scores'",
    ),
    ({"representation": "logits", "log_prob": True}, ArgumentValueError, "contradicts"),
    ({"log_prob": 1}, ArgumentTypeError, r"\(log_prob=...\).*got 1"),
    (
        {"reduction": "batchmean"},
        ArgumentValueError,
        r"\(reduction=...\).*'mean', 'sum', 'none', or None.*batchmean",
    ),
    ({"reduction": ["mean"]}, ArgumentValueError, "reduction"),
    (
        {"mask": torch.tensor([1])},
        ArgumentValueError,
        r"\(mask=...\).*bool tensor of shape \(1,\).*dtype torch.int64",
    ),
    ({"mask": torch.tensor([[True, True]])}, ArgumentValueError, r"shape \(1, 2\), dtype torch.bool"),
    ({"mask": [True]}, ArgumentValueError, "got list"),
    ({"p": -P, "mask": torch.tensor([True])}, ArgumentValueError, "among the rows that mask counts"),
]


@pytest.mark.parametrize(("change", "error", "words"), REFUSED)
def test_what_cannot_be_is_refused_by_both(change, error, words):
    arguments = {"p": P, "q": Q, **change}
    with pytest.raises(error, match=f"(?s)^kl_divergence.*{words}"):
        kl_divergence(**arguments)
    options = {name: change[name] for name in ("log_prob", "reduction", "representation") if name in change}
    batch = {name: arguments[name] for name in ("p", "q", "mask") if name in arguments}
    with pytest.raises(error, match=f"(?s)^KLDivergence.*{words}"):
        KLDivergence(**options).update(**batch)


def test_a_refused_batch_leaves_no_trace():
    metric = updated(KLDivergence(), P, Q)
    before = metric.compute()
    with pytest.raises(ArgumentValueError):
        metric.update(P, -Q)
    assert metric.compute() == before


# Importing


@pytest.mark.sweep
def test_the_function_needs_no_torchmetrics_and_the_metric_says_what_it_needs():
    script = """
import sys
sys.modules["torchmetrics"] = None
import kullback.metrics, torch
from kullback.errors import OptionalDependencyError
print(float(kullback.metrics.kl_divergence(torch.ones(1, 2), torch.ones(1, 2))))
try:
    kullback.metrics.KLDivergence
except OptionalDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "0.0"
    assert "pip install torchmetrics" in done.stdout


@pytest.mark.sweep
def test_importing_the_package_leaves_torchmetrics_alone():
    script = "import kullback.metrics, sys; print('torchmetrics' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error():
    import kullback.metrics

    with pytest.raises(AttributeError, match="no attribute 'KLD'"):
        _ = kullback.metrics.KLD
