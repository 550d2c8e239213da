"""The drop-in for torch's KL loss in TorchScript: scripted, it comes back to Python; traced, it becomes a graph."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from kullback.functional import distillation_loss, kl_div
from kullback.kernels.native import library
from kullback.losses.reduction import REDUCTIONS
from kullback.nn import KLDivLoss
from tests.losses.kl_div_cases import FORMS, INF, as_target, rows, value_and_gradients

pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
]
REDUCTION = pytest.mark.parametrize("reduction", REDUCTIONS)


def example(log_target):
    """Rows with classes that are impossible in P, in Q and in both."""
    log_q, log_p = rows(3, 5)
    log_p[0, 1] = log_q[1, 2] = log_p[2, 3] = log_q[2, 3] = -INF
    return log_q, as_target(log_p, log_target)


def twice_the_mean(input: Tensor, target: Tensor) -> Tensor:
    return 2 * kl_div(input, target, reduction="batchmean")


@FORMS
@REDUCTION
def test_a_scripted_module_gives_the_same_values_and_gradients(reduction, log_target):
    loss = KLDivLoss(reduction=reduction, log_target=log_target)
    pair = example(log_target)
    found, wanted = (value_and_gradients(*pair, f) for f in (torch.jit.script(loss), loss))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, rtol=0, atol=0)


@FORMS
def test_the_function_can_be_scripted_itself(log_target):
    pair = example(log_target)
    scripted = torch.jit.script(kl_div)
    for settings in ({"reduction": "none"}, {"reduction": "sum"}, {}):
        settings["log_target"] = log_target
        assert_close(scripted(*pair, **settings), kl_div(*pair, **settings))


def test_a_scripted_function_may_call_it():
    pair = example(log_target=False)
    assert_close(torch.jit.script(twice_the_mean)(*pair), twice_the_mean(*pair))


def test_an_error_in_a_script_says_what_it_says_outside():
    with pytest.raises(RuntimeError, match=r"kl_div\(target=\.\.\.\): wanted a dense tensor"):
        torch.jit.script(twice_the_mean)(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.long))


def test_a_script_cannot_be_saved_without_the_python_that_it_calls():
    with pytest.raises(RuntimeError, match="Could not export Python function call"):
        torch.jit.save(torch.jit.script(KLDivLoss(reduction="sum")), io.BytesIO())


@FORMS
@REDUCTION
def test_a_trace_serves_other_sizes_and_can_be_saved(reduction, log_target):
    loss = KLDivLoss(reduction=reduction, log_target=log_target)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(loss, example(log_target)), file)
    file.seek(0)
    traced = torch.jit.load(file)
    log_q, log_p = rows(7, 2)
    for pair in (example(log_target), (log_q, as_target(log_p, log_target))):
        found, wanted = (value_and_gradients(*pair, f) for f in (traced, loss))
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)


def test_the_native_library_is_not_loaded_while_something_is_traced():
    log_q, log_p = rows(2, 3)
    library.missing.cache_clear()
    torch.jit.trace(twice_the_mean, (log_q, log_p.exp()), check_trace=False)
    assert library.missing.cache_info().currsize == 0  # not asked for: none of its operators is in the graph
    loss = distillation_loss(student=log_q.float(), teacher=log_p.float())
    assert loss.isfinite()
