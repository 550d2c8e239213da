"""torch's own test material for the KL loss, run on the drop-ins: OpInfo, ModuleInfo and the older tables."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.func import vmap
from torch.testing import assert_close

import kullback.nn
from kullback.functional import kl_div

pytestmark = [
    # As in torch; tested in test_kl_div_in_torch.py.
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
    # torch's own, in forward mode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


class Material(NamedTuple):
    """What torch tests its own loss with; its modules take seconds to import."""

    op: Any
    module: Any
    older: Any


@functools.cache
def material():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its test modules
        from torch.testing._internal import common_nn
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db

    op = next(op for op in op_db if op.name == "nn.functional.kl_div")
    module = next(info for info in module_db if info.module_cls is torch.nn.KLDivLoss)
    return Material(op, module, common_nn)


def samples(dtype=torch.float64, *, requires_grad=False, contiguous=True):
    found = list(material().op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    assert len(found) == 16  # two shapes, four reductions, with and without log_target
    return found if contiguous else [sample.noncontiguous() for sample in found]


def tensors(sample):
    return sample.input, *sample.args


def value_and_gradients(function, sample):
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in tensors(sample)]
    value = function(*leaves, **sample.kwargs)
    return value, *torch.autograd.grad(value.sum(), leaves)


@pytest.mark.sweep
def test_torch_supports_the_dtypes_we_test():
    assert material().op.supported_dtypes("cpu") == set(DTYPES)


@pytest.mark.sweep
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_samples_give_torchs_values_and_gradients(dtype, contiguous):
    for sample in samples(dtype, contiguous=contiguous):
        expected = value_and_gradients(material().op.op, sample)
        for ours, torchs in zip(value_and_gradients(kl_div, sample), expected, strict=True):
            assert_close(ours, torchs)  # compares shape and dtype too


@pytest.mark.sweep
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_samples_are_the_exact_answer_rounded_once(dtype, contiguous):
    for sample in samples(dtype, contiguous=contiguous):
        answers = zip(
            value_and_gradients(kl_div, sample),
            value_and_gradients(material().op.op, sample),
            value_and_gradients(
                material().op.op, sample.transform(lambda x: x.double() if torch.is_tensor(x) else x)
            ),
            strict=True,
        )
        for ours, torchs, exact in answers:
            assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
            assert_close(ours.double(), exact, rtol=0.501 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("fast_mode", [True, False])
def test_samples_pass_gradcheck_forward_and_backward(fast_mode, contiguous):
    for sample in samples(requires_grad=True, contiguous=contiguous):
        assert gradcheck(
            partial(kl_div, **sample.kwargs),
            tensors(sample),
            fast_mode=fast_mode,
            check_forward_ad=material().op.supports_forward_ad,
            check_batched_grad=material().op.check_batched_grad,
            check_batched_forward_grad=material().op.check_batched_forward_grad,
        )


@pytest.mark.sweep
@pytest.mark.parametrize("fast_mode", [True, False])
def test_samples_pass_gradgradcheck_reverse_and_forward_over_reverse(fast_mode):
    for sample in samples(requires_grad=True):
        assert gradgradcheck(
            partial(kl_div, **sample.kwargs),
            tensors(sample),
            fast_mode=fast_mode,
            check_fwd_over_rev=material().op.supports_fwgrad_bwgrad,
            check_batched_grad=material().op.check_batched_gradgrad,
        )


@pytest.mark.sweep
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (0, -1), (-1, None), (-1, -1)])
def test_samples_vmap_like_a_loop(in_dims):
    rows = 3
    for sample in samples():
        batched = [
            x if dim is None else torch.stack([x * (1 - 0.1 * i) for i in range(rows)], dim)
            for x, dim in zip(tensors(sample), in_dims, strict=True)
        ]
        each = [
            [x if dim is None else x.select(dim, i) for x, dim in zip(batched, in_dims, strict=True)]
            for i in range(rows)
        ]
        expected = torch.stack([material().op.op(*pair, **sample.kwargs) for pair in each])
        assert_close(vmap(partial(kl_div, **sample.kwargs), in_dims)(*batched), expected)


@pytest.mark.heavy
@pytest.mark.parametrize("dynamic", [True, False])
def test_samples_compile_without_a_graph_break(dynamic):
    for sample in samples()[8:]:  # the matrices
        torch.compiler.reset()
        compiled = torch.compile(kl_div, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for ours, torchs in zip(
            value_and_gradients(compiled, sample), value_and_gradients(material().op.op, sample), strict=True
        ):
            assert_close(ours, torchs)


def module_inputs(dtype):
    module = material().module
    found = module.module_inputs_func(module, "cpu", dtype, requires_grad=False, training=True)
    assert len(found) == 10  # five constructions, each on a matrix and on a scalar
    return found


def constructed(info, cls=kullback.nn.KLDivLoss):
    return cls(*info.constructor_input.args, **info.constructor_input.kwargs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_modules_answer_as_torchs_reference_in_torchs_dtype_and_shape(dtype):
    for info in module_inputs(dtype):
        args = info.forward_input.args
        module, twin = constructed(info), constructed(info, torch.nn.KLDivLoss)
        answer = module(*args)
        assert (answer.dtype, answer.shape) == (twin(*args).dtype, twin(*args).shape)
        if info.reference_fn is not None:
            exact = info.reference_fn(module, *(x.double() for x in args))
            assert_close(
                answer, exact.to(dtype), equal_nan=True
            )  # NaN: torch's inputs take logs of negatives


def pickled(module):
    return pickle.loads(pickle.dumps(module))  # noqa: S301


@pytest.mark.parametrize("copied", [pickled, copy.copy, copy.deepcopy])
def test_modules_survive_copies(copied):
    for info in module_inputs(torch.float64):
        module = constructed(info)
        again = copied(module)
        assert type(again) is type(module)
        assert (again.reduction, again.log_target) == (module.reduction, module.log_target)
        args = info.forward_input.args
        assert_close(again(*args), module(*args), equal_nan=True, rtol=0, atol=0)


def test_modules_have_torchs_repr_state_and_type():
    for info in module_inputs(torch.float64):
        ours, torchs = constructed(info), constructed(info, torch.nn.KLDivLoss)
        assert repr(ours) == repr(torchs)
        assert ours.state_dict() == torchs.state_dict() == {}
        assert isinstance(ours, torch.nn.KLDivLoss)
        assert ours.eval().train().half().training


@pytest.mark.sweep
def test_modules_pass_gradcheck():
    for info in module_inputs(torch.float64):
        log_q, target = (x.detach().nan_to_num(0.5).requires_grad_() for x in info.forward_input.args)
        module = constructed(info)
        target = target if module.log_target else target.detach().abs().add(0.1).requires_grad_()
        assert gradcheck(module, (log_q, target), check_forward_ad=True)
        assert gradgradcheck(module, (log_q, target))


def test_torchs_older_tables_pass_when_the_drop_ins_take_torchs_place(monkeypatch):
    tables = [*material().older.get_new_module_tests(), *material().older.criterion_tests]
    cases = [case for case in tables if case.get("fullname", "").startswith("KLDivLoss")]
    assert len(cases) == 9
    monkeypatch.setattr(torch.nn.functional, "kl_div", kl_div)
    monkeypatch.setattr(torch.nn, "KLDivLoss", kullback.nn.KLDivLoss)
    for case in cases:
        module = case["constructor"]()
        arguments = [case[key]().double() for key in ("input_fn", "target_fn") if key in case]
        wanted = case["reference_fn"](*arguments, module)
        assert_close(module(*arguments), wanted, msg=lambda text, case=case: f"{case['fullname']}: {text}")


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("name", ["KLDivLoss", "KLDivLoss_log_target"])
def test_torchs_loss_references_agree(name, reduction):
    log_q = torch.randn(4, 5, dtype=torch.float64).log_softmax(-1)
    p = torch.randn(4, 5, dtype=torch.float64).softmax(-1)
    log_target = name.endswith("log_target")
    target = p.log() if log_target else p
    expected = material().older.loss_reference_fns[name](log_q, target, reduction=reduction)
    assert_close(kl_div(log_q, target, reduction=reduction, log_target=log_target), expected)
