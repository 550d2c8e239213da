"""The drop-in for torch's KL loss where it meets torch: answers, warnings, errors, overrides, transforms."""

from __future__ import annotations

import itertools
import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.gradcheck import gradcheck, gradgradcheck
from torch.func import hessian, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from kullback.errors import KullbackError
from kullback.functional import kl_div
from kullback.losses.reduction import REDUCTIONS
from kullback.nn import KLDivLoss
from tests.losses.kl_div_cases import DOUBLE, DTYPES, FORMS, INF, as_target, rows, value_and_gradients
from tests.refusals import refused

pytestmark = [
    # As in torch; tested below, where all are recorded.
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
    # torch's own, in forward mode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
]


# --- torch's behavior ----------------------------------------------------------------------------------------------

SHAPES = [
    ((), ()),
    ((5,), (5,)),
    ((1,), (1,)),
    ((3, 4), (3, 4)),
    ((2, 3, 4), (2, 3, 4)),
    ((0,), (0,)),
    ((0, 4), (0, 4)),
    ((3, 0), (3, 0)),
    ((3, 1), (1, 4)),
    ((4,), (3, 4)),
    ((3, 4), (4,)),
    ((), (5,)),
    ((5,), ()),
    ((1, 1), (0, 1)),
]


@FORMS
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "elementwise_mean"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore:reduction='elementwise_mean':UserWarning")
def test_every_shape_gives_torchs_answer_and_gradients(shapes, reduction, log_target):
    log_q, log_p = (-torch.rand(shape, dtype=DOUBLE) for shape in shapes)
    target = as_target(log_p, log_target)
    kwargs = {"reduction": reduction, "log_target": log_target}
    ours, torchs = (value_and_gradients(log_q, target, f, **kwargs) for f in (kl_div, F.kl_div))
    for mine, theirs in zip(ours, torchs, strict=True):
        assert_close(mine, theirs, equal_nan=True)


@FORMS
@pytest.mark.parametrize("dtypes", [*itertools.product(DTYPES, repeat=2)], ids=str)
def test_mixed_dtypes_promote_as_in_torch(dtypes, log_target):
    for shapes in [((3,), (3,)), ((3,), ()), ((), (3,)), ((), ())]:
        log_q, log_p = (-torch.rand(shape).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
        target = as_target(log_p, log_target)
        ours, torchs = (f(log_q, target, reduction="none", log_target=log_target) for f in (kl_div, F.kl_div))
        assert_close(ours, torchs, rtol=0.02, atol=0.02)
        if torch.bfloat16 not in dtypes and torch.float16 not in dtypes:
            assert_close(ours.float(), torchs.float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_autocast_gives_torchs_dtype(dtype):
    log_q, log_p = rows(2, 3, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, torchs = (f(log_q, log_p.exp(), reduction="batchmean") for f in (kl_div, F.kl_div))
    assert_close(ours, torchs, rtol=1e-6, atol=1e-6)


@FORMS
def test_strides_do_not_matter(log_target):
    log_q, log_p = rows(4, 6)
    target = as_target(log_p, log_target)
    expected = kl_div(log_q, target, reduction="none", log_target=log_target)
    for view in (lambda x: x.t().contiguous().t(), lambda x: torch.stack([x, x], -1)[..., 1]):
        assert not view(target).is_contiguous()
        assert torch.equal(
            kl_div(view(log_q), view(target), reduction="none", log_target=log_target), expected
        )


FLAGS = list(itertools.product([None, True, False], repeat=2))


def recorded(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return call(), caught


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "elementwise_mean"])
@pytest.mark.parametrize(("size_average", "reduce"), FLAGS)
def test_deprecated_flags_give_torchs_answers_and_warnings(size_average, reduce, reduction):
    log_q, log_p = rows(3, 4)
    arguments = (log_q, log_p.exp(), size_average, reduce, reduction)
    ours, our_warnings = recorded(lambda: kl_div(*arguments))
    torchs, torchs_warnings = recorded(lambda: F.kl_div(*arguments))
    assert_close(ours, torchs)
    assert [w.category for w in our_warnings] == [w.category for w in torchs_warnings]
    assert all(w.filename == __file__ for w in our_warnings)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, "elementwise_mean"])
@pytest.mark.parametrize(("size_average", "reduce"), FLAGS)
def test_the_module_reads_deprecated_flags_and_warns_as_torchs(size_average, reduce, reduction):
    log_q, log_p = rows(3, 4)
    built = [
        recorded(lambda cls=cls: cls(size_average, reduce, reduction))
        for cls in (KLDivLoss, torch.nn.KLDivLoss)
    ]
    called = [recorded(lambda module=module: module(log_q, log_p.exp())) for module, _ in built]
    for (ours, our_warnings), (torchs, torchs_warnings) in (built, called):
        assert len(our_warnings) == len(torchs_warnings)
        if torch.is_tensor(ours):
            assert_close(ours, torchs)
        else:
            assert ours.reduction == torchs.reduction


@pytest.mark.parametrize(
    ("kwargs", "advice"),
    [
        ({}, "batchmean"),
        ({"reduction": "elementwise_mean"}, "reduction='mean'"),
        ({"size_average": False}, "reduction='sum'"),
        ({"reduce": False}, "reduction='none'"),
        ({"size_average": True}, "reduction='mean'"),
    ],
)
def test_warnings_say_what_to_write(kwargs, advice):
    with pytest.warns(UserWarning, match=advice):
        kl_div(*rows(3, 4), log_target=True, **kwargs)


BAD_CALLS = {
    "input is a list": ("input", lambda f, x, t: f([0.0, -1.0], t)),
    "target is a list": ("target", lambda f, x, t: f(x, [0.5, 0.5])),
    "target is a number": ("target", lambda f, x, t: f(x, 0.5)),
    "input is None": ("input", lambda f, x, t: f(None, t)),
    "input of integers": ("input", lambda f, x, t: f(x.long(), t)),
    "target of class indices": ("target", lambda f, x, t: f(x, torch.tensor([0, 1, 2]))),
    "target of booleans": ("target", lambda f, x, t: f(x, t > 0.5)),
    "input of complex numbers": ("input", lambda f, x, t: f(x + 0j, t)),
    "target of another width": ("target", lambda f, x, t: f(x, torch.rand(3, 5))),
    "target of another height": ("target", lambda f, x, t: f(x, torch.rand(2, 4))),
    "target on another device": ("target", lambda f, x, t: f(x, t.to("meta"))),
    "unknown reduction": ("reduction", lambda f, x, t: f(x, t, reduction="average")),
    "reduction is None": ("reduction", lambda f, x, t: f(x, t, reduction=None)),
    "reduction is a number": ("reduction", lambda f, x, t: f(x, t, reduction=2)),
    "log_target is a number": ("log_target", lambda f, x, t: f(x, t, log_target=1)),
    "log_target is None": ("log_target", lambda f, x, t: f(x, t, log_target=None)),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_raise_torchs_class_of_error_and_say_what_to_write(case):
    argument, call = BAD_CALLS[case]
    log_q, log_p = rows(3, 4, dtype=torch.float32)
    with pytest.raises(Exception) as torchs:  # noqa: PT011 - which class is what this asks
        call(F.kl_div, log_q, log_p.exp())
    with pytest.raises(
        KullbackError, match=rf"^kl_div\({argument}=\.\.\.\): wanted .*; got .*\. Write: "
    ) as ours:
        call(kl_div, log_q, log_p.exp())
    assert isinstance(ours.value, torchs.type)


def test_sparse_tensors_are_refused_by_name():
    log_q, log_p = rows(3, 4)
    with refused(
        KullbackError,
        argument="target",
        wanted="dense",
        got="sparse_coo",
        instead=r"with target.to_dense\(\)",
    ):
        kl_div(log_q, log_p.exp().to_sparse())


@pytest.mark.parametrize("convert", [torch.Tensor.tolist, torch.Tensor.numpy], ids=["lists", "arrays"])
def test_data_that_is_no_tensor_is_converted_as_the_error_says(convert):
    log_q, log_p = rows(3, 4)
    wanted = kl_div(log_q, log_p.exp(), reduction="sum")
    for input, target in ((convert(log_q), log_p.exp()), (log_q, convert(log_p.exp()))):
        with pytest.raises(KullbackError, match=r"\. Write: kl_div\(") as caught:
            kl_div(input, target)
        remedy = str(caught.value).partition("Write: ")[2]
        names = {"torch": torch, "input": input, "target": target, "kl_div": partial(kl_div, reduction="sum")}
        # torch reads the numbers of a list as float32
        assert_close(eval(remedy, names).double(), wanted, rtol=1e-5, atol=0)  # noqa: S307


def test_a_shape_error_shows_both_shapes():
    with refused(KullbackError, wanted=r"\(3, 4\)", got=r"\(3, 5\)"):
        kl_div(torch.rand(3, 4), torch.rand(3, 5))


# --- overrides ------------------------------------------------------------------------------------------------------


class Labeled(torch.Tensor):
    pass


class Recorder:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func, types, args, kwargs


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_subclasses_come_back_as_in_torch(reduction):
    log_q, log_p = rows(3, 4)
    for pair in [(log_q.as_subclass(Labeled), log_p.exp()), (log_q, log_p.exp().as_subclass(Labeled))]:
        ours, torchs = (f(*pair, reduction=reduction) for f in (kl_div, F.kl_div))
        assert type(ours) is type(torchs) is Labeled
        assert_close(ours.as_subclass(torch.Tensor), torchs.as_subclass(torch.Tensor))


def test_overrides_receive_the_whole_call_as_from_torch():
    for place in range(2):
        pair = [torch.rand(2), torch.rand(2)]
        pair[place] = Recorder()
        func, *ours = kl_div(*pair, None, True, "sum", True)
        _, *torchs = F.kl_div(*pair, None, True, "sum", True)
        assert func is kl_div
        assert ours == torchs


# --- transforms -----------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("shapes", [((3, 1), (1, 4)), ((4,), (3, 4)), ((3, 4), ()), ((), ())], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_broadcast_arguments_pass_gradcheck_and_gradgradcheck(reduction, shapes, log_target):
    log_q, log_p = (-torch.rand(shape, dtype=DOUBLE) - 0.1 for shape in shapes)
    leaves = (log_q.requires_grad_(), as_target(log_p, log_target).requires_grad_())

    def loss(log_q, target):
        return kl_div(log_q, target, reduction=reduction, log_target=log_target)

    for fast_mode in (False, True):
        assert gradcheck(loss, leaves, fast_mode=fast_mode, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(loss, leaves, fast_mode=fast_mode, check_fwd_over_rev=True)


def edge_rows(log_target):
    """Rows that hold every edge beside an ordinary class; pairs of different rows have infinite terms."""
    log_q = torch.tensor([[-INF, -2.0, -0.5], [0.0, -INF, -INF], [-1.0, -3.0, -0.4]], dtype=DOUBLE)
    log_p = torch.tensor([[-INF, -INF, 0.0], [0.0, -INF, -INF], [-1.5, -0.5, -1.7]], dtype=DOUBLE)
    return log_q, as_target(log_p, log_target)


@FORMS
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 0), (-1, None), (-1, -1)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_vmap_is_a_loop_even_at_the_edges(reduction, in_dims, log_target):
    pair = edge_rows(log_target)
    pair = tuple(x if dim is not None else x[2] for x, dim in zip(pair, in_dims, strict=True))

    def loss(log_q, target):
        return kl_div(log_q, target, reduction=reduction, log_target=log_target)

    each = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(pair, in_dims, strict=True)]
        for i in range(3)
    ]
    assert_close(vmap(loss, in_dims)(*pair), torch.stack([loss(*row) for row in each]))
    gradients = vmap(jacrev(loss, argnums=(0, 1)), in_dims)(*pair)
    for ours, looped in zip(
        gradients, zip(*(jacrev(loss, (0, 1))(*row) for row in each), strict=True), strict=True
    ):
        assert_close(ours, torch.stack(looped))


@FORMS
def test_jvp_vjp_and_hessian_are_the_formulas(log_target):
    log_q, log_p = (x[0] for x in rows(1, 5))
    p, direction = log_p.exp(), torch.randn(5, dtype=DOUBLE)

    def loss(log_q, target):
        return kl_div(log_q, target, reduction="sum", log_target=log_target)

    pair = (log_q, as_target(log_p, log_target))
    to_p = log_p - log_q + 1
    to_target = p * to_p if log_target else to_p
    value, tangent = jvp(loss, pair, (direction, 2 * direction))
    assert_close(value, (p * (log_p - log_q)).sum())
    assert_close(tangent, ((2 * to_target - p) * direction).sum())
    _, pull = vjp(loss, *pair)
    assert_close(pull(torch.tensor(3.0, dtype=DOUBLE)), (-3 * p, 3 * to_target))
    (twice_q, mixed), (_, twice_t) = hessian(loss, argnums=(0, 1))(*pair)
    assert_close(twice_q, torch.zeros(5, 5, dtype=DOUBLE))
    assert_close(mixed, torch.diag(-p if log_target else -torch.ones(5, dtype=DOUBLE)))
    assert_close(twice_t, torch.diag(p * (to_p + 1) if log_target else 1 / p))


@FORMS
def test_meta_tensors_have_shape_and_dtype_without_data(log_target):
    for reduction in REDUCTIONS:
        log_q, target = torch.empty(3, 1, device="meta"), torch.empty(4, dtype=torch.float16, device="meta")
        ours, torchs = (
            f(log_q, target, reduction=reduction, log_target=log_target) for f in (kl_div, F.kl_div)
        )
        assert (ours.shape, ours.dtype, ours.device) == (torchs.shape, torchs.dtype, torchs.device)


@pytest.mark.sweep
@FORMS
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_one_graph_serves_all_shapes_and_keeps_the_edges(reduction, log_target):
    torch.compiler.reset()
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph

    module = KLDivLoss(reduction=reduction, log_target=log_target)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=count)
    log_q, target = edge_rows(log_target)
    for rows_kept, classes in [(2, 3), (3, 2), (3, 3)]:
        pair = (log_q[:rows_kept, :classes], target[:rows_kept, :classes])
        for ours, eager in zip(
            value_and_gradients(*pair, compiled), value_and_gradients(*pair, module), strict=True
        ):
            assert_close(ours, eager)
    assert len(graphs) == 1


def test_compiling_warns_once_as_it_traces():
    torch.compiler.reset()
    compiled = torch.compile(kl_div, fullgraph=True, backend="eager")
    _, first = recorded(lambda: compiled(*rows(2, 3), log_target=True))
    _, later = recorded(lambda: compiled(*rows(2, 3), log_target=True))
    assert ["batchmean" in str(w.message) for w in first] == [True]
    assert later == []
