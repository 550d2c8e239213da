"""What torchmetrics asks of its own KLDivergence, asked of ours: against SciPy, and side by side with the original."""

from __future__ import annotations

import inspect
import pickle
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torchmetrics
from scipy.stats import entropy
from torch import Tensor
from torchmetrics.functional.regression import kl_divergence as torchmetrics_kl_divergence

from kullback.metrics import KLDivergence, kl_divergence
from tests.refusals import refused

BATCHES, BATCH_SIZE, CLASSES = 4, 16, 5
REDUCTIONS = ["mean", "sum", "none", None]


class Input(NamedTuple):
    p: Tensor
    q: Tensor
    log_prob: bool

    def to(self, dtype):
        return Input(self.p.to(dtype), self.q.to(dtype), self.log_prob)


def inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(2, BATCHES, BATCH_SIZE, CLASSES, generator=generator, dtype=torch.float64)
    cases = {"probs": Input(*weights, False), "log_probs": Input(*weights.log_softmax(-1), True)}
    return {name: case.to(dtype) for name, case in cases.items()}


NAMES = pytest.mark.parametrize("name", inputs())
CASES = pytest.mark.parametrize("case", inputs().values(), ids=inputs().keys())
REDUCED = pytest.mark.parametrize("reduction", REDUCTIONS)


def scipy_kl(p, q, log_prob, reduction="mean"):
    """KL of the rows of two batches by SciPy, which normalizes them itself."""
    p, q = (np.asarray(x.detach().double().reshape(-1, CLASSES)) for x in (p, q))
    if log_prob:
        p, q = np.exp(p), np.exp(q)
    values = entropy(p, q, axis=1)
    return {"mean": np.mean, "sum": np.sum}.get(reduction, np.asarray)(values)


def assert_close(found, expected, tolerance=1e-5):
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.detach().cpu().double(), expected, rtol=tolerance, atol=1e-7)


# The class and the function against SciPy


@CASES
@REDUCED
def test_class_over_batches(case, reduction):
    metric = KLDivergence(log_prob=case.log_prob, reduction=reduction)
    for p, q in zip(case.p, case.q, strict=True):
        assert_close(metric(p, q), scipy_kl(p, q, case.log_prob, reduction))
    assert_close(metric.compute(), scipy_kl(case.p, case.q, case.log_prob, reduction))
    assert metric.update_count == BATCHES
    metric.reset()
    assert not metric.update_called
    metric.update(case.p[0], case.q[0])
    assert_close(metric.compute(), scipy_kl(case.p[0], case.q[0], case.log_prob, reduction))


@CASES
@REDUCED
def test_functional(case, reduction):
    for p, q in zip(case.p, case.q, strict=True):
        found = kl_divergence(p, q, case.log_prob, reduction)
        assert_close(found, scipy_kl(p, q, case.log_prob, reduction))


@NAMES
@REDUCED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_those_of_torchmetrics(name, reduction, dtype):
    case = inputs(dtype)[name]
    ours, theirs = (c(case.log_prob, reduction) for c in (KLDivergence, torchmetrics.KLDivergence))
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}[dtype]  # theirs has the rounding errors
    for p, q in zip(case.p, case.q, strict=True):
        torch.testing.assert_close(ours(p, q), theirs(p, q), rtol=tolerance, atol=0)
        found = kl_divergence(p, q, case.log_prob, reduction)
        expected = torchmetrics_kl_divergence(p, q, case.log_prob, reduction)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    torch.testing.assert_close(ours.compute(), theirs.compute(), rtol=tolerance, atol=0)


@NAMES
@REDUCED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_as_torchmetrics_has_it_but_more_accurate(name, reduction, dtype):
    case = inputs(dtype)[name]
    ours, theirs = (c(case.log_prob, reduction) for c in (KLDivergence, torchmetrics.KLDivergence))
    for p, q in zip(case.p, case.q, strict=True):
        found, other = ours(p, q), theirs(p, q)
        assert found.dtype == other.dtype
        truth = torch.from_numpy(np.asarray(scipy_kl(p, q, case.log_prob, reduction)))
        budget = (other.double() - truth).abs() + torch.finfo(found.dtype).eps * truth
        assert bool(((found.double() - truth).abs() <= budget).all())
        options = case.log_prob, reduction
        assert kl_divergence(p, q, *options).dtype == torchmetrics_kl_divergence(p, q, *options).dtype
    assert ours.compute().dtype == theirs.compute().dtype


@CASES
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(case, reduction, dtype):
    metric = KLDivergence(case.log_prob, reduction).set_dtype(dtype)
    half = case.to(dtype)
    metric.update(half.p[0], half.q[0])
    assert metric.compute().dtype == dtype
    expected = scipy_kl(half.p[0], half.q[0], case.log_prob, reduction)
    assert_close(metric.compute(), expected, tolerance=torch.finfo(dtype).eps)


@NAMES
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_differentiability(name, reduction):
    assert KLDivergence.is_differentiable
    case = inputs(torch.float64)[name]
    sides = [x[0].clone().requires_grad_() for x in (case.p, case.q)]
    value = KLDivergence(case.log_prob, reduction).set_dtype(torch.float64)(*sides)
    ours = torch.autograd.grad(value, sides)
    theirs = torch.autograd.grad(torchmetrics_kl_divergence(*sides, case.log_prob, reduction), sides)
    if case.log_prob:  # ours are those of normalized rows: what arrives before log_softmax is the same
        theirs = [by_x - x.exp() * by_x.sum(-1, keepdim=True) for x, by_x in zip(sides, theirs, strict=True)]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-14)


def test_update_and_compute_keep_no_graph():
    case = inputs()["probs"]
    p = case.p[0].requires_grad_()
    metric = KLDivergence()
    metric.update(p, case.q[0])
    metric(p, case.q[0])
    assert not metric.compute().requires_grad


def test_gradcheck():
    case = inputs(torch.float64)["probs"]
    p, q = (x[0, :2].clone().requires_grad_() for x in case[:2])
    assert torch.autograd.gradcheck(KLDivergence().set_dtype(torch.float64), (p, q))


def test_differing_batch_sizes_are_weighted_by_their_rows():
    case = inputs()["probs"]
    p, q = case.p.reshape(-1, CLASSES), case.q.reshape(-1, CLASSES)
    metric = KLDivergence()
    for a, b in zip(p.tensor_split([1, 8, 40]), q.tensor_split([1, 8, 40]), strict=True):
        metric.update(a, b)
    assert_close(metric.compute(), scipy_kl(p, q, False))


# Errors


@pytest.mark.parametrize("function", [kl_divergence, KLDivergence()], ids=["functional", "class"])
def test_different_shapes(function):
    with refused(RuntimeError, wanted="same shape"):
        function(torch.randn(100), torch.randn(50))


@pytest.mark.parametrize("function", [kl_divergence, KLDivergence()], ids=["functional", "class"])
def test_no_class_dimension(function):
    with refused(ValueError, wanted="at least one dimension"):
        function(torch.tensor(1.0), torch.tensor(1.0))


def test_wrong_arguments():
    with refused(TypeError, instead="log_prob"):
        KLDivergence(log_prob="yes")
    with refused(ValueError, instead="reduction"):
        KLDivergence(reduction="average")
    with pytest.raises(ValueError, match="got the keyword 'nonsense'"):
        KLDivergence(nonsense=1)
    with pytest.raises(ValueError, match="dist_sync_on_step"):
        KLDivergence(dist_sync_on_step="yes")


def test_values_in_a_masked_class_come_right_where_torchmetrics_gives_nan():
    log_p = torch.tensor([[0.5, 0.5, 0.0]]).log()
    assert bool(torchmetrics_kl_divergence(log_p, log_p, log_prob=True).isnan())
    assert kl_divergence(log_p, log_p, log_prob=True) == 0


def test_signatures_are_those_of_torchmetrics():
    for ours, theirs in (
        (KLDivergence, torchmetrics.KLDivergence),
        (kl_divergence, torchmetrics_kl_divergence),
    ):
        expected = inspect.signature(theirs).parameters
        found = inspect.signature(ours).parameters
        added = {"representation", "mask"}
        assert [name for name in found if name not in added] == list(expected)
        assert all(found[name].default == expected[name].default for name in expected)
        assert all(found[name].kind == inspect.Parameter.KEYWORD_ONLY for name in added & found.keys())


# A metric like any other


def test_it_is_a_metric_with_torchmetrics_attributes():
    assert issubclass(KLDivergence, torchmetrics.Metric)
    for name in (
        "is_differentiable",
        "higher_is_better",
        "full_state_update",
        "plot_lower_bound",
        "plot_upper_bound",
    ):
        assert getattr(KLDivergence, name) == getattr(torchmetrics.KLDivergence, name)
    metric = KLDivergence(log_prob=True, reduction="sum")
    assert (metric.log_prob, metric.reduction) == (True, "sum")
    with pytest.raises(RuntimeError, match="Can't change const"):
        metric.is_differentiable = False


@REDUCED
def test_pickle_clone_reset_and_state_dict(reduction):
    case = inputs()["probs"]
    metric = KLDivergence(reduction=reduction)
    metric.update(case.p[0], case.q[0])
    expected = metric.compute()
    for copied in (pickle.loads(pickle.dumps(metric)), metric.clone()):  # noqa: S301 - our own pickle
        assert copied is not metric
        torch.testing.assert_close(copied.compute(), expected)
    assert dict(metric.state_dict()) == {}
    metric.persistent(True)
    assert metric.state_dict().keys() == metric.metric_state.keys()
    loaded = KLDivergence(reduction=reduction)
    loaded.load_state_dict(metric.state_dict())
    loaded.update(case.p[1], case.q[1])
    assert_close(loaded.compute(), scipy_kl(case.p[:2], case.q[:2], False, reduction))
    metric.reset()
    for name, value in KLDivergence(reduction=reduction).metric_state.items():
        torch.testing.assert_close(getattr(metric, name), value)


def test_compute_before_update_warns():
    with pytest.warns(UserWarning, match="was called before the ``update`` method"):
        assert bool(KLDivergence().compute().isnan())


def test_computed_values_are_cached_until_the_next_update():
    case = inputs()["probs"]
    metric = KLDivergence()
    metric.update(case.p[0], case.q[0])
    assert metric.compute() is metric.compute()
    before = metric.compute()
    metric.update(case.p[1], case.q[1])
    assert metric.compute() is not before


@REDUCED
def test_dtype_conversions_that_torchmetrics_ignores_are_ignored(reduction):
    metric = KLDivergence(reduction=reduction)
    assert metric.half().double().float().type(torch.float16) is metric
    assert metric.dtype == torch.float32
    assert metric.set_dtype(torch.float64).dtype == torch.float64


def test_a_module_moves_its_metric_along():
    module = torch.nn.Module()
    module.metric = KLDivergence()
    module.linear = torch.nn.Linear(2, 2)
    module.half()
    assert module.linear.weight.dtype == torch.float16
    assert module.metric.dtype == torch.float32
    module.to("meta")
    assert module.metric.device == torch.device("meta")
    assert all(state.device == torch.device("meta") for state in module.metric.metric_state.values())


def test_a_scripted_metric():
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # TorchScript is deprecated, and torchmetrics' suite scripts every metric
        assert torch.jit.script(KLDivergence()) is not None


def test_arithmetic_on_metrics():
    case = inputs()["probs"]
    both = KLDivergence() + 2 * KLDivergence(reduction="sum")
    both.update(case.p[0], case.q[0])
    p, q = case.p[0], case.q[0]
    assert_close(both.compute(), scipy_kl(p, q, False) + 2 * scipy_kl(p, q, False, "sum"))


def test_collections_and_compute_groups():
    case = inputs()["probs"]
    collection = torchmetrics.MetricCollection(
        {
            "mean": KLDivergence(),
            "sum": KLDivergence(reduction="sum"),
            "rows": KLDivergence(reduction="none"),
            "theirs": torchmetrics.KLDivergence(),
        },
        prefix="kl_",
    )
    collection.update(case.p[0], case.q[0])
    for p, q in zip(case.p[1:], case.q[1:], strict=True):
        assert_close(collection(p, q)["kl_mean"], scipy_kl(p, q, False))
    assert ["mean", "sum"] in collection.compute_groups.values()
    found = collection.compute()
    assert_close(found["kl_mean"], scipy_kl(case.p, case.q, False))
    assert_close(found["kl_sum"], scipy_kl(case.p, case.q, False, "sum"))
    assert_close(found["kl_rows"], scipy_kl(case.p, case.q, False, "none"))
    torch.testing.assert_close(found["kl_theirs"], found["kl_mean"])
    collection.reset()
    assert not any(metric.update_called for metric in collection.values())


def test_wrappers_and_trackers_accept_it():
    case = inputs()["probs"]
    tracker = torchmetrics.MetricTracker(KLDivergence(), maximize=False)
    for p, q in zip(case.p, case.q, strict=True):
        tracker.increment()
        tracker.update(p, q)
    values = [scipy_kl(p, q, False) for p, q in zip(case.p, case.q, strict=True)]
    assert_close(tracker.compute_all(), values)
    assert tracker.best_metric(return_step=True)[1] == int(np.argmin(values))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_plot(reduction):
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    case = inputs()["probs"]
    metric = KLDivergence(reduction=reduction)
    values = [metric(p, q) for p, q in zip(case.p, case.q, strict=True)]
    for drawn in (metric.plot(), metric.plot(values), metric.plot(values[0])):
        figure, axis = drawn
        assert isinstance(figure, plt.Figure)
        assert isinstance(axis, plt.Axes)
        assert axis.get_ylabel() == ("mean " if reduction == "mean" else "") + "KL(P‖Q), nats"
        plt.close(figure)
    figure, axis = plt.subplots()
    assert metric.plot(ax=axis)[1] is axis
    plt.close(figure)


# Several processes

PROCESSES = 2


def _rows_of(rank):
    case = inputs()["probs"]
    return [(case.p[i], case.q[i]) for i in range(rank, BATCHES, PROCESSES)]


def _run_process(rank, address):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=PROCESSES)
    _check_sync(rank)
    torch.distributed.barrier()  # a process that ends while the other still talks to it may abort
    torch.distributed.destroy_process_group()


def _check_sync(rank):
    case = inputs()["probs"]
    p, q = case.p.reshape(-1, CLASSES), case.q.reshape(-1, CLASSES)
    values = kl_divergence(p, q, reduction="none").double()
    for reduction in REDUCTIONS:
        metric = KLDivergence(reduction=reduction)
        for a, b in _rows_of(rank):
            local = metric(a, b)
            assert_close(local, scipy_kl(a, b, False, reduction))
        own = torch.cat([a for a, _ in _rows_of(rank)]), torch.cat([b for _, b in _rows_of(rank)])
        found = metric.compute()
        order = [i for r in range(PROCESSES) for i in range(r, BATCHES, PROCESSES)]
        assert_close(found, scipy_kl(case.p[order], case.q[order], False, reduction))
        assert_close(metric.standard_error(), values.std() / len(values) ** 0.5)
        assert_close(metric.quantile([0.0, 1.0]), [values.min(), values.max()])
        assert_close(metric.quantile(0.5), values.quantile(0.5), tolerance=0.005)
        # Afterwards each process goes on from its own rows.
        alone = metric.clone()
        alone.sync_on_compute = alone._to_sync = False
        alone._computed = None
        assert_close(alone.compute(), scipy_kl(*own, False, reduction))

    stepwise = KLDivergence(dist_sync_on_step=True)
    for i, (a, b) in enumerate(_rows_of(rank)):
        together = [_rows_of(r)[i] for r in range(PROCESSES)]
        both = (torch.cat([pair[side] for pair in together]) for side in (0, 1))
        assert_close(stepwise(a, b), scipy_kl(*both, False))

    uneven = KLDivergence()  # one process has seen nothing, the other an infinite row
    if rank == 1:
        uneven.update(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    else:
        uneven._update_count = 1
    assert float(uneven.compute()) == float(uneven.quantile(0.5)) == float("inf")


@pytest.mark.heavy
def test_sync_across_processes(tmp_path):
    address = f"file://{tmp_path}/rendezvous"
    torch.multiprocessing.spawn(_run_process, args=(address,), nprocs=PROCESSES)
