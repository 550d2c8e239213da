"""Tensors and numbers that no function expects: each ends in an answer or in one line that says what to write."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed
from torch import Tensor, distributions as td
from torch._subclasses.fake_tensor import FakeTensorMode

import kullback
from kullback import (
    KL,
    Counts,
    Estimate,
    Logits,
    LogProbs,
    Probs,
    Renyi,
    Samples,
    compare_predictions,
    compare_tables,
    divergence,
    kl_estimate,
)
from kullback.errors import KullbackError
from kullback.estimators import dirichlet, histogram, nearest_neighbors, two_sample_test
from kullback.functional import (
    SampledTail,
    TopK,
    distillation_loss,
    kl_div,
    kl_from_log_probs,
    kl_surrogate,
    linear_distillation_loss,
    top_k_divergence,
    top_k_divergence_bounds,
)
from kullback.io import ReferenceWriter, Windows, open_top_k, write_llama_base
from kullback.metrics import KLDivergence
from kullback.metrics.drop_in import kl_divergence
from kullback.nn import (
    CyclicalSchedule,
    DistillationLoss,
    KLDivLoss,
    KLRegularizer,
    LinearDistillationLoss,
    LinearSchedule,
    kl_per_dimension,
)
from tests.refusals import refused

Change = Callable[[Tensor], Tensor]


def unchanged(x: Tensor) -> Tensor:
    return x


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def required(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


LOGITS, OTHER = normal(3, 5), 2 * normal(3, 5) + 1
LOG_PROBS, PROBS = LOGITS.log_softmax(-1), OTHER.softmax(-1)
HIDDEN, HEAD = normal(3, 4), normal(5, 4)
TOP_LOG_PROBS, TOP_CLASSES = OTHER.log_softmax(-1).topk(2)
ACTIONS = LOG_PROBS[:, 0].contiguous(), LOG_PROBS[:, 1].contiguous()
DRAWS = normal(60, 2)


# Every public function, with one of its tensors changed. The others require a gradient where they can have one.


def _of_representations() -> Iterator[tuple[str, Callable[[Change], object]]]:
    for cls, x in ((Logits, LOGITS), (LogProbs, LOG_PROBS), (Probs, PROBS), (Counts, PROBS)):
        for kind in (KL(), Renyi(2.0)):
            yield (
                f"divergence({cls.__name__}, {kind}) p",
                lambda change, cls=cls, x=x, kind=kind: divergence(
                    cls(change(x)), cls(required(x.flip(0))), kind
                ),
            )
            yield (
                f"divergence({cls.__name__}, {kind}) q",
                lambda change, cls=cls, x=x, kind=kind: divergence(
                    cls(required(x.flip(0))), cls(change(x)), kind
                ),
            )


def _of_losses() -> Iterator[tuple[str, Callable[[Change], object]]]:
    for options in (
        {},
        {"reduction": "none"},
        {"kind": Renyi(0.5)},
        {"reduction": "none", "kind": Renyi(0.5)},
    ):
        yield (
            f"distillation_loss({options}) teacher",
            lambda change, options=options: distillation_loss(
                student=required(LOGITS), teacher=change(OTHER), **options
            ),
        )
        yield (
            f"distillation_loss({options}) student",
            lambda change, options=options: distillation_loss(
                student=change(LOGITS), teacher=required(OTHER), **options
            ),
        )
        for name in ("student", "student_weight", "teacher", "teacher_weight"):
            yield (
                f"linear_distillation_loss({options}) {name}",
                lambda change, options=options, name=name: linear_distillation_loss(
                    **{
                        each: change(x) if each == name else required(x)
                        for each, x in {
                            "student": HIDDEN,
                            "student_weight": HEAD,
                            "teacher": HIDDEN.flip(0),
                            "teacher_weight": 2 * HEAD,
                        }.items()
                    },
                    **options,
                ),
            )


CALLS: dict[str, Callable[[Change], object]] = {
    **dict(_of_representations()),
    **dict(_of_losses()),
    "kl_estimate p": lambda change: kl_estimate(Logits(change(LOGITS)), Logits(required(OTHER))),
    "distillation_loss weight": lambda change: distillation_loss(
        student=required(LOGITS), teacher=OTHER, weight=change(torch.ones(3, 1))[..., 0]
    ),
    "distillation_loss normalizer": lambda change: distillation_loss(
        student=required(LOGITS), teacher=OTHER, normalizer=change(torch.full((1, 1), 3.0))
    ),
    "distillation_loss in place": lambda change: distillation_loss(
        student=1 * required(LOGITS), teacher=change(OTHER), inplace_backward=True
    ),
    "kl_div input": lambda change: kl_div(change(LOG_PROBS), required(PROBS), reduction="batchmean"),
    "kl_div target": lambda change: kl_div(required(LOG_PROBS), change(PROBS), reduction="batchmean"),
    "KLDivLoss": lambda change: KLDivLoss(reduction="sum")(required(LOG_PROBS), change(PROBS)),
    "DistillationLoss": lambda change: DistillationLoss()(student=required(LOGITS), teacher=change(OTHER)),
    "LinearDistillationLoss": lambda change: LinearDistillationLoss()(
        student=required(HIDDEN), student_weight=HEAD, teacher=change(HIDDEN), teacher_weight=2 * HEAD
    ),
    "metrics.kl_divergence p": lambda change: kullback.metrics.kl_divergence(
        change(PROBS), required(PROBS.flip(0))
    ),
    "metrics.kl_divergence q": lambda change: kullback.metrics.kl_divergence(
        required(LOGITS), change(OTHER), representation="logits"
    ),
    "KLDivergence": lambda change: KLDivergence()(change(PROBS), PROBS.flip(0)),
    "top_k_divergence log_probs": lambda change: top_k_divergence(
        KL(), TopK(TOP_CLASSES, change(TOP_LOG_PROBS)), required(LOGITS)
    ),
    "top_k_divergence student": lambda change: top_k_divergence(
        KL(), TopK(TOP_CLASSES, required(TOP_LOG_PROBS)), change(LOGITS)
    ),
    "top_k_divergence_bounds p": lambda change: (
        top_k_divergence_bounds(
            TopK(TOP_CLASSES, change(TOP_LOG_PROBS)), TopK(TOP_CLASSES, TOP_LOG_PROBS.flip(0)), KL()
        ).lower
    ),
    "distillation_loss TopK": lambda change: distillation_loss(
        student=required(LOGITS), teacher=TopK(TOP_CLASSES, change(TOP_LOG_PROBS))
    ),
    "kl_from_log_probs": lambda change: kl_from_log_probs(required(LOG_PROBS), change(PROBS.log())),
    "kl_surrogate": lambda change: kl_surrogate(
        required(LOG_PROBS), change(PROBS.log()), direction="forward"
    ),
}
OF_SAMPLES: dict[str, Callable[[Change], object]] = {
    "Samples p": lambda change: kl_estimate(Samples(change(DRAWS)), Samples(DRAWS.flip(0) + 1)),
    "Samples weights": lambda change: kl_estimate(
        Samples(DRAWS, weights=change(torch.ones(60, 1))[..., 0]), Samples(DRAWS + 1)
    ),
}
OF_DISTRIBUTIONS: dict[str, Callable[[Change], object]] = {
    "Normal": lambda change: kullback.kl_divergence(
        td.Normal(change(LOGITS), change(LOGITS.exp()), validate_args=False), td.Normal(required(OTHER), 2.0)
    ),
    "Laplace and Cauchy": lambda change: kullback.kl_divergence(
        td.Laplace(change(LOGITS[0]), 1.0, validate_args=False), td.Cauchy(required(OTHER[0]), 2.0)
    ),
    "Categorical": lambda change: kullback.kl_divergence(
        td.Categorical(logits=change(LOGITS), validate_args=False), td.Categorical(logits=required(OTHER))
    ),
    "MultivariateNormal in float64": lambda change: kullback.kl_divergence(
        td.MultivariateNormal(change(LOGITS.double()), torch.eye(5).double(), validate_args=False),
        td.MultivariateNormal(required(OTHER.double()), 2 * torch.eye(5).double()),
    ),
    "Independent Gamma": lambda change: kullback.kl_divergence(
        td.Independent(td.Gamma(change(LOGITS.exp()), 1.0, validate_args=False), 1),
        td.Independent(td.Gamma(required(OTHER.exp()), 2.0), 1),
    ),
}
ALL = CALLS | OF_SAMPLES | OF_DISTRIBUTIONS


@pytest.fixture(scope="module")
def _one_process() -> Iterator[None]:
    """A process group of one, as a DTensor needs."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _distributed(x: Tensor) -> Tensor:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    return distribute_tensor(x, DeviceMesh("cpu", [0]), [Replicate()])


def _masked(x: Tensor) -> Tensor:
    return torch.masked.masked_tensor(x, torch.ones_like(x, dtype=torch.bool))


UNUSUAL: dict[str, Change] = {
    "DTensor": _distributed,
    "sparse COO": Tensor.to_sparse,
    "sparse CSR": Tensor.to_sparse_csr,
    "nested": lambda x: torch.nested.nested_tensor(list(x.detach())),
    "jagged": lambda x: torch.nested.nested_tensor(list(x.detach()), layout=torch.jagged),
    "masked": _masked,
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "MKL-DNN": Tensor.to_mkldnn,
}


def refusal(call: Callable[[], object]) -> str:
    """The message with which a call is refused; it has to be one line of a readable length."""
    with pytest.raises(KullbackError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert 20 < len(message) < 500
    return message


@pytest.mark.usefixtures("_one_process")
@pytest.mark.filterwarnings("ignore")  # torch calls most of these prototypes
@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("name", CALLS)
def test_a_tensor_that_is_not_dense_is_refused_with_the_method_that_makes_it_so(name, kind):
    def change(x: Tensor) -> Tensor:
        # Of a column, which is cut off again, as some of these have no fewer than two dimensions.
        return UNUSUAL[kind](x)

    if "weight" in name.split()[-1:] and "linear" not in name:
        pytest.skip("these kinds have no single dimension to cut a column from")
    if kind == "jagged" and name.startswith(("kl_div ", "KLDivLoss")):  # the drop-ins answer, as torch does
        assert_answered(ALL[name](change))
        return
    message = refusal(lambda: ALL[name](change))
    remedies = {
        "DTensor": "full_tensor()",
        "nested": "to_padded_tensor(",
        "jagged": "to_padded_tensor(",
        "masked": "get_data()",
        "float8": "float()",
        "quantized": "dequantize()",
    }
    remedy = remedies.get(kind, "to_dense()")
    if (
        "to_local() of the rows of this rank" in message
    ):  # the losses take classes that are sharded, no positions
        assert kind == "DTensor"
        assert "distillation" in name.lower()
        return
    assert remedy in message or "kl_div" in message


def test_jagged_rows_are_answered_by_the_drop_in_as_by_torch():
    log_q, p = (torch.nested.nested_tensor(list(x), layout=torch.jagged) for x in (LOG_PROBS, PROBS))
    p = torch.nested.nested_tensor_from_jagged(p.values(), log_q.offsets())  # one and the same raggedness
    found = kl_div(log_q, p, reduction="sum")
    torch.testing.assert_close(found, kl_div(LOG_PROBS, PROBS, reduction="sum"))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "batchmean"])
@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 1, 4), (2, 3, 4), (1,), ()], ids=str)
@pytest.mark.filterwarnings("ignore:reduction")
def test_jagged_rows_against_dense_ones_are_answered_as_by_torch(shape, reduction):
    dense = normal(*shape).sigmoid()
    rows = [normal(2, 4).log_softmax(-1), normal(3, 4).log_softmax(-1)]
    log_q = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for first, second in ((log_q, dense), (dense.log(), log_q.exp())):
        found, wanted = (
            call(first, second, reduction=reduction) for call in (kl_div, torch.nn.functional.kl_div)
        )
        found, wanted = (x.values() if x.is_nested else x for x in (found, wanted))
        torch.testing.assert_close(found, wanted)
        if dense.ndim < 3:  # torch itself has no gradient of whole rows that are cut
            given = [x.detach().requires_grad_() for x in (first, second)]
            gradients = [
                torch.autograd.grad(call(*given, reduction="sum"), given)
                for call in (kl_div, torch.nn.functional.kl_div)
            ]
            for of_ours, of_torch in zip(*gradients, strict=True):
                x, y = (each.values() if each.is_nested else each for each in (of_ours, of_torch))
                torch.testing.assert_close(x, y)
    refused = refusal(lambda: kl_div(log_q, torch.ones(5, 4)))
    assert "broadcasts" in refused
    assert "to_padded_tensor(" in refused


@pytest.mark.parametrize(("remedy", "kind"), [("full_tensor", "DTensor"), ("dequantize", "quantized")])
@pytest.mark.usefixtures("_one_process")
@pytest.mark.filterwarnings("ignore")
def test_the_remedies_work(remedy, kind):
    def dense_again(x: Tensor) -> Tensor:
        return getattr(UNUSUAL[kind](x), remedy)()

    assert_answered(distillation_loss(student=required(LOGITS), teacher=dense_again(OTHER)))


def assert_answered(result: object) -> None:
    """An answer is no NaN, and neither is a gradient."""
    value = result.value if isinstance(result, Estimate) else result
    assert isinstance(value, Tensor)
    if value.is_nested or value.is_meta:
        return
    assert not bool(value.isnan().any())


def answer_or_line(call: Callable[[], object]) -> object:
    """Return the answer, or the one line of a refusal."""
    try:
        return call()
    except KullbackError as error:
        line = str(error)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", ALL)
def test_the_meta_device_has_an_answer_or_a_refusal(name):
    found = answer_or_line(lambda: ALL[name](lambda x: x.to("meta")))
    if not isinstance(found, str):
        value = found.value if isinstance(found, Estimate) else found
        assert isinstance(value, Tensor)
        assert value.is_meta


FAKE_NAMES = {**CALLS, **OF_SAMPLES}
FAKE_NAMES.pop("KLDivergence")  # torchmetrics copies its states, which no fake tensor allows


@pytest.mark.sweep
@pytest.mark.parametrize("name", FAKE_NAMES)
def test_fake_tensors_have_the_shape_of_the_answer_or_a_refusal(name, monkeypatch):
    real = FAKE_NAMES[name](unchanged)
    mode = FakeTensorMode()
    for each in (
        "LOGITS",
        "OTHER",
        "LOG_PROBS",
        "PROBS",
        "HIDDEN",
        "HEAD",
        "TOP_LOG_PROBS",
        "TOP_CLASSES",
        "DRAWS",
    ):
        monkeypatch.setitem(globals(), each, mode.from_tensor(globals()[each]))
    fake_of = {id(x): x for x in ()}
    assert not fake_of

    def change(x: Tensor) -> Tensor:
        return mode.from_tensor(x) if type(x) is Tensor else x

    with mode:
        found = answer_or_line(lambda: _rebuilt(name)(change))
    if isinstance(found, str):
        assert name in OF_SAMPLES
        return
    value, truth = (x.value if isinstance(x, Estimate) else x for x in (found, real))
    assert (value.shape, value.dtype) == (truth.shape, truth.dtype)


def _rebuilt(name: str) -> Callable[[Change], object]:
    """The call with the tensors that its table was built with read anew."""
    return (dict(_of_representations()) | dict(_of_losses())).get(name, FAKE_NAMES[name])


# Teachers under torch.inference_mode


def of_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.detach() * 1


def value_and_gradients(call: Callable[[Change], object], change: Change) -> list[Tensor]:
    leaves: list[Tensor] = []
    clone = Tensor.clone

    def recorded(x: Tensor) -> Tensor:
        leaves.append(clone(x).requires_grad_())
        return leaves[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "required", recorded)
        found = call(change)
    value = found.value if isinstance(found, Estimate) else found
    assert isinstance(value, Tensor)
    if value.requires_grad:
        value.sum().backward()
    return [value.detach(), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("name", CALLS | OF_DISTRIBUTIONS)
def test_a_teacher_of_inference_mode_teaches_like_any_other(name):
    expected = value_and_gradients(ALL[name], unchanged)
    found = value_and_gradients(ALL[name], of_inference)
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"kind": Renyi(2.0)}], ids=str)
def test_a_teacher_of_inference_mode_in_every_dtype(dtype, options):
    def call(change: Change) -> Tensor:
        return distillation_loss(
            student=required(LOGITS.to(dtype)), teacher=change(OTHER.to(dtype)), **options
        )

    for got, wanted in zip(
        value_and_gradients(call, of_inference), value_and_gradients(call, unchanged), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_a_second_backward_pass_with_a_teacher_of_inference_mode_says_what_to_write():
    loss = distillation_loss(student=required(LOGITS), teacher=of_inference(OTHER))
    loss.backward(retain_graph=True)
    assert "torch.no_grad() in place of torch.inference_mode()" in refusal(loss.backward)


def test_a_change_of_the_teacher_after_the_loss_changes_no_gradient():
    student, teacher = required(LOGITS), of_inference(OTHER)
    loss = distillation_loss(student=student, teacher=teacher, reduction="none").sum()
    with torch.inference_mode():
        teacher.zero_()
    loss.backward()
    expected = value_and_gradients(
        lambda change: distillation_loss(
            student=required(LOGITS), teacher=change(OTHER), reduction="none"
        ).sum(),
        unchanged,
    )
    torch.testing.assert_close(student.grad, expected[1], rtol=0, atol=0)


def test_everything_runs_inside_inference_mode():
    with torch.inference_mode():
        for name, call in (CALLS | OF_DISTRIBUTIONS).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert_answered(call(unchanged)), name


# Numbers

P, Q = Logits(LOGITS), Logits(OTHER)
TOP = TopK(TOP_CLASSES, TOP_LOG_PROBS, tail="renormalize")
TEACHER = {"student": LOGITS, "teacher": OTHER}
HEADS = {"student": HIDDEN, "student_weight": HEAD, "teacher": HIDDEN.flip(0), "teacher_weight": 2 * HEAD}
LINE = Samples(DRAWS[:, 0])
NO_NUMBERS = ("x", [1.0], 1j, math.nan, torch.ones(3), 10**400, 10**5000, object)

# (function, the argument, what it refuses)
NUMBERS: list[tuple[str, Callable[..., object], str, tuple[object, ...]]] = [
    ("Renyi", Renyi, "alpha", (-1,)),
    ("Alpha", kullback.Alpha, "alpha", (math.inf,)),
    ("SkewKL", kullback.SkewKL, "alpha", (2, None)),
    ("JensenShannon", kullback.JensenShannon, "beta", (-0.5, None)),
    *(
        (
            f"{name}",
            lambda value, name=name: LOSSES[name](temperature=value),
            "temperature",
            (0, -1, math.inf, None, 1e-320, 1e308),
        )
        for name in (
            "distillation_loss",
            "linear_distillation_loss",
            "top_k_divergence",
            "DistillationLoss",
            "LinearDistillationLoss",
        )
    ),
    *(
        (
            name,
            lambda value, name=name: LOSSES[name](normalizer=value),
            "normalizer",
            (0, -1, math.inf, torch.tensor(0), torch.tensor(math.nan)),
        )
        for name in ("distillation_loss", "linear_distillation_loss")
    ),
    *(
        (
            name,
            lambda value, name=name: LOSSES[name](weight=value),
            "weight",
            (torch.tensor([1, -1.0, 1]), torch.tensor([1, math.nan, 1]), torch.tensor([math.inf, 1, 1])),
        )
        for name in ("distillation_loss", "linear_distillation_loss")
    ),
    (
        "kl_divergence",
        lambda value: kullback.kl_divergence(P, Q, base=value),
        "base",
        (0, 1, 0.5, -2, math.inf, 1e-320),
    ),
    *(
        ("kl_divergence", lambda value, name=name: kullback.kl_divergence(P, Q, **{name: value}), name, (-1,))
        for name in ("rtol", "atol", "max_evaluations", "draws")
    ),
    ("kl_divergence", lambda value: kullback.kl_divergence(P, Q, generator=value), "generator", (0,)),
    (
        "kl_estimate",
        lambda value: kl_estimate(Samples(DRAWS), Samples(DRAWS), confidence=value),
        "confidence",
        (0, 1, 95, None),
    ),
    ("Counts", lambda value: Counts(PROBS, prior=value), "prior", (-1, math.inf, None)),
    (
        "dirichlet",
        lambda value: dirichlet.of_counts(torch.ones(3), torch.ones(3), prior=value),
        "prior",
        (0, -1, math.inf, None),
    ),
    ("histogram", lambda value: histogram(LINE, LINE, bins=value), "bins", (1, 0.5, 2.5)),
    (
        "nearest_neighbors",
        lambda value: nearest_neighbors(LINE, Samples(DRAWS[:, 1]), k=value),
        "k",
        (0, 0.5, 60),
    ),
    (
        "two_sample_test",
        lambda value: kullback.two_sample_test(LINE, LINE, permutations=value),
        "permutations",
        (0, 0.5, None, 10**8),
    ),
    (
        "two_sample_test",
        lambda value: kullback.two_sample_test(LINE, LINE, generator=value),
        "generator",
        (0, np.random.default_rng(0)),
    ),
    ("Logits", lambda value: Logits(LOGITS, dim=value), "dim", (2, -3, 0.5, None)),
    (
        "distillation_loss",
        lambda value: distillation_loss(**TEACHER, labels=torch.arange(3), ignore_index=value),
        "ignore_index",
        (None, 0.5),
    ),
]
LOSSES: dict[str, Callable[..., object]] = {
    "distillation_loss": lambda **given: distillation_loss(**TEACHER, **given),
    "linear_distillation_loss": lambda **given: linear_distillation_loss(**HEADS, **given),
    "top_k_divergence": lambda **given: top_k_divergence(KL(), TOP, LOGITS, **given),
    "DistillationLoss": DistillationLoss,
    "LinearDistillationLoss": LinearDistillationLoss,
}


@pytest.mark.parametrize(
    ("name", "call", "argument", "refused"), NUMBERS, ids=[f"{entry[0]} {entry[2]}" for entry in NUMBERS]
)
def test_what_is_no_number_in_range_is_refused_by_the_name_of_its_argument(name, call, argument, refused):
    for value in (*refused, *NO_NUMBERS):
        if (
            argument == "weight"
            and isinstance(value, Tensor)
            and value.dtype == torch.float32
            and bool((value == 1).all())
        ):
            continue
        message = refusal(lambda value=value: call(value))
        assert message.startswith(f"{name}({argument}=...)"), message


NO_FLAGS = (np.array([True, False]), np.array([1.0]), "no", None, 1, 10**5000, torch.tensor(True))
FLAGS: list[tuple[str, Callable[[object], object], str]] = [
    *(
        (name, lambda value, name=name: LOSSES[name](temperature_squared=value), "temperature_squared")
        for name in LOSSES
        if name != "top_k_divergence"
    ),
    (
        "distillation_loss",
        lambda value: distillation_loss(**TEACHER, inplace_backward=value),
        "inplace_backward",
    ),
    ("DistillationLoss", lambda value: DistillationLoss(inplace_backward=value), "inplace_backward"),
    (
        "linear_distillation_loss",
        lambda value: linear_distillation_loss(**HEADS, float32_logits=value),
        "float32_logits",
    ),
    ("LinearDistillationLoss", lambda value: LinearDistillationLoss(float32_logits=value), "float32_logits"),
    ("JensenShannon", lambda value: kullback.JensenShannon(scaled=value), "scaled"),
    ("Logits", lambda value: Logits(LOGITS, validate=value), "validate"),
]


@pytest.mark.parametrize(
    ("name", "call", "argument"), FLAGS, ids=[f"{entry[0]} {entry[2]}" for entry in FLAGS]
)
def test_what_is_neither_true_nor_false_is_refused(name, call, argument):
    for value in NO_FLAGS:
        message = refusal(lambda value=value: call(value))
        assert message.startswith(f"{name}({argument}=...): wanted True or False"), message
        assert message.endswith(f"Write: {argument}=True")
    call(True)


def test_a_value_whose_repr_fails_is_named_by_its_type():
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    assert "got an unprintable" in refusal(lambda: Renyi(Unprintable())).lower()


WORDS = ("avg", "", None, 3, [1], object, 10**5000)


@pytest.mark.parametrize("word", WORDS, ids=lambda word: str(word) if word != 10**5000 else "10**5000")
def test_what_is_none_of_the_words_is_refused(word):
    for call in (
        lambda: distillation_loss(**TEACHER, reduction=word),
        lambda: distillation_loss(**TEACHER, vocabulary=word),
        lambda: distillation_loss(**TEACHER, kind=word),
        lambda: linear_distillation_loss(**HEADS, reduction=word),
        lambda: linear_distillation_loss(**HEADS, kind=word),
        lambda: DistillationLoss(reduction=word),
        lambda: DistillationLoss(kind=word),
        lambda: LinearDistillationLoss(vocabulary=word),
        lambda: KLDivLoss(reduction=word),
        lambda: kl_div(LOG_PROBS, PROBS, reduction=word),
        lambda: divergence(P, Q, word),
        lambda: kullback.kl_divergence(P, Q, method=word),
        lambda: TopK(TOP_CLASSES, TOP_LOG_PROBS, tail=word),
        lambda: kl_surrogate(*ACTIONS, direction=word),
        lambda: kl_from_log_probs(*ACTIONS, estimator=word),
    ):
        refusal(call)


@pytest.mark.parametrize("what", ["mask", "weight", "labels"])
def test_what_belongs_to_positions_is_a_tensor_of_their_shape_and_device(what):
    for given in ("x", [1, 0, 1], 1.0, torch.ones(2), torch.ones(3, 1), torch.ones((3,), device="meta")):
        assert f"{what}=..." in refusal(lambda given=given: distillation_loss(**TEACHER, **{what: given}))


@pytest.mark.parametrize("scale", [1e308, 3e38, 1e-40, 1e-320])
def test_weights_of_any_size_weigh_the_same(scale):
    ratios = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    for name in ("distillation_loss", "linear_distillation_loss"):
        expected, found = (LOSSES[name](weight=ratios * x) for x in (1.0, scale))
        torch.testing.assert_close(found, expected, rtol=1e-2 if scale == 1e-320 else 1e-6, atol=0)
    draws, others = Samples(DRAWS[:, 0]), Samples(DRAWS[:, 1])
    for p, q in (
        (Samples(DRAWS[:, 0], weights=[scale] * 60), others),
        (draws, Samples(DRAWS[:, 1], weights=[scale] * 60)),
    ):
        plain = Samples(DRAWS[:, 0], weights=[1.0] * 60), Samples(DRAWS[:, 1], weights=[1.0] * 60)
        expected = kl_estimate(plain[0], others) if q is others else kl_estimate(draws, plain[1])
        torch.testing.assert_close(kl_estimate(p, q).value, expected.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1e308, 1e-320])
def test_counts_of_any_size_are_normalized(scale):
    counts = torch.tensor([scale] * 3, dtype=torch.float64)
    ones = torch.ones(3, dtype=torch.float64)
    assert float(kullback.kl_divergence(Counts(counts), Counts(ones))) == 0
    assert float(kullback.kl_divergence(Counts(ones), Counts(counts))) == 0
    assert float(kullback.metrics.kl_divergence(counts[None], ones[None])) == 0


@pytest.mark.sweep
def test_fewer_draws_than_dimensions_have_an_answer_or_a_refusal():
    x, y = normal(10, 40), normal(11, 40)
    for call in (
        lambda: kl_estimate(Samples(x), Samples(y)),
        lambda: kl_estimate(Samples(x), td.MultivariateNormal(torch.zeros(40), torch.eye(40))),
        lambda: kl_estimate(Samples(x), Samples(y), method="density_ratio"),
    ):
        found = answer_or_line(call)
        if not isinstance(found, str):
            assert_answered(found)
    for n in (1, 2, 3):
        found = answer_or_line(partial(kl_estimate, Samples(x[:n]), Samples(y[:n])))
        if not isinstance(found, str):
            assert_answered(found)


# Whole numbers. Those of NumPy's small types would overflow if they were counted with.


def reference_file(path: Path, **numbers: Any) -> bytes:
    windows = Windows(torch.arange(5), torch.tensor([0, 5]), torch.arange(5) > 0)
    with ReferenceWriter(path / "a.klref", windows, **numbers) as writer:
        writer.add(normal(4, 9))
    return (path / "a.klref").read_bytes()


def llama_base(path: Path, n_ctx: int) -> bytes:
    write_llama_base(path / "a.kld", torch.tensor([0, 1, 2, 0]), normal(1, 3), n_ctx=n_ctx)
    return (path / "a.kld").read_bytes()


def top_k_classes(classes: int) -> list[int | None]:
    record = [{"prompt": [None, {"11": {"logprob": -0.5}}]}]
    with open_top_k(record, format="vllm", classes=classes) as source:
        return [source.classes]


def schedule(period: int, cycles: int) -> list[float]:
    return [
        CyclicalSchedule(0.0, 1.0, period=period, cycles=cycles)(step)
        + LinearSchedule(0.0, 1.0, steps=period)(step)
        for step in range(0, 1000, 50)
    ]


def drawn(**numbers: int) -> list[list[int]]:
    teacher = SampledTail.draw(LOGITS, **numbers, generator=torch.Generator().manual_seed(0))
    return [*teacher.top.indices.tolist(), *teacher.tail_indices.tolist()]


def between_tables(bins: int) -> list[int]:
    p, q = (pa.table({"x": normal(4000, 1 + i)[:, 0].numpy()}) for i in range(2))
    return [len(column.bins) for column in compare_tables(p, q, bins=bins).columns]


def regularized(batch_dims: int, group_dims: int) -> list[float]:
    p = td.Normal(normal(3, 4, 5), 1.0)
    in_groups = KLRegularizer(batch_dims=batch_dims, group_dims=(group_dims,), free_nats=0.2)(p)
    return [*kl_per_dimension(p, batch_dims=batch_dims).tolist(), float(in_groups)]


def between_predictions(worst: int, bootstrap: int, block_bytes: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    found = compare_predictions(
        Logits(LOGITS),
        Logits(OTHER),
        worst=worst,
        bootstrap=bootstrap,
        block_bytes=block_bytes,
        generator=generator,
    )
    return [
        found.divergences["kl_pq"].mean,
        found.divergences["kl_pq"].interval,
        [each.row for each in found.worst],
    ]


def p_value(permutations: int) -> float:
    generator = torch.Generator().manual_seed(0)
    return two_sample_test(
        Samples(DRAWS), Samples(DRAWS + 1), permutations=permutations, generator=generator
    ).p_value


WHOLE: dict[str, tuple[Callable[..., Any], dict[str, int]]] = {
    "SampledTail.draw": (drawn, {"k": 2, "draws": 3}),
    "Logits": (lambda dim: divergence(Logits(LOGITS, dim), Logits(OTHER, dim), KL()).tolist(), {"dim": 0}),
    "kl_per_dimension, KLRegularizer": (regularized, {"batch_dims": 1, "group_dims": 0}),
    "CyclicalSchedule, LinearSchedule": (schedule, {"period": 200, "cycles": 3}),
    "compare_tables": (between_tables, {"bins": 200}),
    "compare_predictions": (between_predictions, {"worst": 2, "bootstrap": 200, "block_bytes": 250}),
    "open_top_k": (top_k_classes, {"classes": 200}),
    "histogram": (
        lambda bins: float(histogram(Samples(DRAWS[:, 0]), Samples(DRAWS[:, 1]), bins=bins).value),
        {"bins": 20},
    ),
    "nearest_neighbors": (
        lambda k: float(nearest_neighbors(Samples(DRAWS), Samples(DRAWS + 1), k=k).value),
        {"k": 20},
    ),
    "two_sample_test": (
        p_value,
        {"permutations": 250},
    ),
}


@pytest.mark.parametrize("whole", [np.uint8, np.array, np.int64], ids=["uint8", "0-d array", "int64"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_numpy_are_whole_numbers(name: str, whole: Callable[[int], Any]) -> None:
    call, numbers = WHOLE[name]
    assert call(**{argument: whole(value) for argument, value in numbers.items()}) == call(**numbers)


@pytest.mark.parametrize(
    "given", [True, np.True_, 2.0, "2", torch.tensor(True), torch.zeros(1, device="meta")], ids=repr
)
@pytest.mark.parametrize("name", WHOLE)
def test_flags_and_fractions_are_no_whole_numbers(name: str, given: Any) -> None:
    call, numbers = WHOLE[name]
    for argument in numbers:
        with pytest.raises(KullbackError, match=rf"\({argument}=\.\.\.\): wanted .*; got "):
            call(**{**numbers, argument: given})


def test_whole_numbers_of_numpy_in_files(tmp_path: Path) -> None:
    numbers = {"top": 3, "tail_draws": 4, "seed": 250}
    want = reference_file(tmp_path, **numbers)
    assert reference_file(tmp_path, **{name: np.uint8(value) for name, value in numbers.items()}) == want
    assert llama_base(tmp_path, cast("Any", np.uint8(4))) == llama_base(tmp_path, 4)
    for name in numbers:
        with refused(argument=name, wanted="^an integer of ", got="^True$", instead=f"^{name}=32$"):
            reference_file(tmp_path, **{name: True})
    assert reference_file(tmp_path, top=32, tail_draws=32, seed=32)
    with refused(argument="n_ctx", got="^True$", instead="^n_ctx=512$"):
        llama_base(tmp_path, True)


@pytest.mark.parametrize(
    "given",
    [list(PROBS), PROBS.tolist(), PROBS.numpy(), [[3, 1, 2]], (torch.tensor([3, 1, 2]),)],
    ids=["tensors", "numbers", "array", "counts", "counts in tensors"],
)
def test_metrics_name_what_makes_a_tensor_of_the_data(given: Any) -> None:
    other = torch.ones(np.shape(given[0]))[None]
    kl = kl_divergence
    for name in ("p", "q"):
        one = {"p": other.expand(len(given), -1), "q": other.expand(len(given), -1), name: given}
        with pytest.raises(KullbackError, match=rf"\({name}=\.\.\.\): wanted a tensor") as caught:
            kl(**one)
        remedy = str(caught.value).partition("Write: ")[2]
        assert eval(remedy, {"torch": torch, "kl_divergence": kl, **one}).isfinite()  # noqa: S307


def test_representations_name_what_makes_a_tensor_of_tensors() -> None:
    x: Any = list(LOGITS)
    with refused(KullbackError, call="Logits", argument="x") as caught:
        Logits(x)
    remedy = str(caught.value).partition("Write: ")[2]
    assert torch.equal(eval(remedy, {"torch": torch, "Logits": Logits, "x": x}).tensor, LOGITS)  # noqa: S307
