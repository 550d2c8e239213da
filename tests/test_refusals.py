"""Arguments of no use, each refused by the call and the argument that the user wrote, with a remedy that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.linear_model
import torch
from torch import Tensor, distributions as td

import kullback
from kullback import (
    Counts,
    Logits,
    Probs,
    ReverseKL,
    Samples,
    compare_predictions,
    divergence,
    fit,
    kl_estimate,
    register_kl,
)
from kullback.errors import KullbackError
from kullback.estimators import density_ratio, variational_bound, variational_estimate
from kullback.functional import SampledTail, TopK, distillation_loss, linear_distillation_loss
from kullback.io import read_labels
from kullback.metrics import KLDivergence
from kullback.nn import (
    CyclicalSchedule,
    DistillationLoss,
    KLRegularizer,
    LinearDistillationLoss,
    LinearSchedule,
    kl_per_dimension,
)
from tests.refusals import refused


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


LOGITS, OTHER = normal(3, 5), normal(4, 5)[:3]
DRAWS, DRAWS_OF_Q = Samples(normal(60, 2)), Samples(normal(61, 2))
NORMAL = td.Normal(0.0, 1.0)
P, Q = Probs(LOGITS.softmax(-1)), Probs(OTHER.softmax(-1))
TEACHER: dict[str, Any] = {"student": LOGITS, "teacher": OTHER}
HEADS: dict[str, Any] = {
    "student": normal(3, 4),
    "student_weight": normal(5, 4),
    "teacher": normal(3, 4).flip(0),
    "teacher_weight": normal(4, 5).T.contiguous(),
}
LABELS = torch.arange(3)


def message_of(call: Callable[[], object]) -> str:
    """The message with which a call is refused: one line of a readable length, of the parts of the error."""
    with refused() as caught:
        call()
    error, message = caught.value, str(caught.value)
    assert all(part in message for part in (error.wanted, error.got, error.instead))
    assert "\n" not in message
    assert 20 < len(message) < 500
    return message


def between(**given: Any) -> object:
    return compare_predictions(Logits(LOGITS), Logits(OTHER), **given)


# What is refused: the beginning of the message, the call with a value, the values, and one that the remedy names.
LOSSES: dict[str, Callable[..., Tensor]] = {
    "distillation_loss": lambda **given: distillation_loss(**TEACHER, **given),
    "linear_distillation_loss": lambda **given: linear_distillation_loss(**HEADS, **given),
}
NO_FUNCTION = (3, "x", [print])
NO_GENERATOR = (3, "x", np.random.default_rng(0))
NAMES = ["a", None, "b", "b"] * 15
MISSING: tuple[Any, ...] = (NAMES, [None] * 60, [*NAMES[:59], float("nan")], ["a", 1, ("b",)] * 20)
REFUSED: dict[str, tuple[Callable[[Any], object], tuple[Any, ...], Any]] = {
    "Samples(cluster=...)": (
        lambda cluster: Samples(normal(60, 2), cluster=cluster),
        (*MISSING, [[1], [1, 2]] * 30, torch.zeros(60, device="meta")),
        [str(name) for name in NAMES],
    ),
    "Samples(weights=...)": (
        lambda weights: Samples(normal(60, 2), weights=weights),
        ("w", object()),
        torch.ones(60),
    ),
    "compare_predictions(generator=...)": (
        lambda x: between(generator=x),
        NO_GENERATOR,
        torch.Generator().manual_seed(0),
    ),
    "compare_predictions(progress=...)": (
        lambda x: between(progress=x),
        NO_FUNCTION,
        print,
    ),
    "compare_predictions(representation=...)": (
        lambda x: compare_predictions(LOGITS, OTHER, representation=x),
        (("logits",) * 3, ("logits",), ()),
        ("logits", "logits"),
    ),
    "compare_predictions(key=...)": (lambda x: between(key=x), (("a",) * 3,), (None, None)),
    "compare_predictions(labels_key=...)": (
        lambda x: [between(labels_key=x), between(labels=LABELS, labels_key=x)],
        ("x",),
        None,
    ),
    "compare_predictions(cluster_key=...)": (
        lambda x: [between(cluster_key=x), between(cluster=LABELS, cluster_key=x)],
        ("x",),
        None,
    ),
    "fit(fixed=...)": (
        lambda x: fit(NORMAL, to=td.Normal(1.0, 2.0), fixed=x),
        (3, (3,), None, ["loc", 1]),
        ("loc",),
    ),
    "fit(show_progress=...)": (
        lambda x: fit(NORMAL, to=td.Normal(1.0, 2.0), show_progress=x),
        ("x", 1, None),
        True,
    ),
    **{
        f"fit({name}=...)": (
            lambda x, name=name: fit(NORMAL, to=td.Normal(1.0, 2.0), **{name: x}),
            (1.5, 0, True, "x", 10**400),
            np.int64(5),
        )
        for name in ("starts", "max_iterations", "draws")
    },
    "density_ratio(classifier=...)": (
        lambda x: density_ratio(DRAWS, DRAWS_OF_Q, classifier=x),
        (3, "x", sklearn.linear_model.LogisticRegression, sklearn.linear_model.LinearRegression()),
        sklearn.linear_model.LogisticRegression(),
    ),
    "variational_bound(critic=...)": (
        lambda x: variational_bound(DRAWS, DRAWS_OF_Q, x),
        (3, None),
        torch.nn.Linear(2, 1),
    ),
    "variational_estimate(critic=...)": (
        lambda x: variational_estimate(DRAWS, DRAWS_OF_Q, x),
        (3, None),
        torch.nn.Linear(2, 1),
    ),
    **{
        f"kl_estimate({name}=...)": (
            # Where they are not used, too.
            lambda x, name=name: [
                kl_estimate(*pair, **{name: x}) for pair in ((P, Q), (NORMAL, NORMAL), (DRAWS, DRAWS_OF_Q))
            ],
            values,
            right,
        )
        for name, values, right in (
            ("max_evaluations", (0, 1.5, -1, None, True, 10**400), np.int64(500)),
            ("draws", (0, 3, 4.5, None, True), np.uint8(200)),
            ("confidence", (2.0, 0, 1, None, "x"), 0.9),
        )
    },
    "kl_estimate(method=...)": (
        lambda x: kl_estimate(P, Q, method=x),
        ("closed_form", "series", "quadrature", "monte_carlo", "histogram"),
        "summation",
    ),
    "divergence(method=...)": (
        lambda x: divergence(P, td.Categorical(logits=OTHER), "js", method=x),
        ("closed_form", "monte_carlo"),
        "auto",
    ),
    **{
        f"{name}({argument}=...)": (
            lambda x, call=call, argument=argument: call(**{"labels": LABELS, argument: x}),
            values,
            right,
        )
        for name, call in LOSSES.items()
        for argument, values, right in (
            ("labels", (LABELS.double() + 0.5, LABELS.float(), LABELS == 1, LABELS + 0j), LABELS.long()),
            ("ignore_index", (1.5, None, "x"), -100),
        )
    },
    "LinearSchedule.__call__(step=...)": (LinearSchedule(0.0, 1.0, 4), (-1, -0.5), 0),
    "CyclicalSchedule.__call__(step=...)": (CyclicalSchedule(0.0, 1.0, period=4), (-1, -100), 0),
}


@pytest.mark.parametrize("start", REFUSED)
def test_each_is_refused_by_the_call_and_the_argument_and_the_remedy_is_taken(start: str) -> None:
    call, values, right = REFUSED[start]
    for value in values:
        message = message_of(lambda value=value: call(value))
        assert message.startswith(f"{start}: wanted "), message
    call(right)


def test_an_ignored_label_is_an_integer_also_where_there_are_no_labels() -> None:
    for name, call in LOSSES.items():
        assert message_of(lambda call=call: call(ignore_index=1.5)).startswith(f"{name}(ignore_index=...)")
        call(ignore_index=5)


def test_two_of_unlike_kinds_have_no_rule_and_the_remedy_has_one() -> None:
    for method in ("auto", "summation"):
        message = message_of(lambda method=method: kl_estimate(P, NORMAL, method=method))
        assert "got Probs and Normal. Write: kl_estimate(Probs(x), Categorical(...))" in message
        assert kl_estimate(P, td.Categorical(logits=OTHER), method=method).method == "summation"


# ---- Tables and arrays.

ROW = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
TABLE = torch.stack([ROW, ROW.flip(0)])


@pytest.mark.parametrize(
    "series",
    [
        pd.Series(ROW.numpy()),
        pd.Series(ROW.numpy(), index=[4, 7, 9]),
        pd.Series(ROW.numpy(), index=list("abc"), dtype="Float64"),
        pl.Series(ROW.numpy()),
        pl.Series(ROW.float().numpy()),
    ],
    ids=["pandas", "pandas, cut", "pandas, nullable", "polars", "polars, float32"],
)
def test_a_series_is_its_numbers(series: Any) -> None:
    assert torch.equal(Probs(series).tensor.double(), ROW)
    assert torch.equal(Logits(series).tensor.double(), ROW)
    assert torch.equal(Counts(series).tensor.double(), ROW)
    assert torch.equal(Samples(series).tensor[:, 0].double(), ROW)
    weights = Samples([1, 2, 3], weights=series).weights
    assert weights is not None
    assert torch.equal(weights, ROW)


@pytest.mark.parametrize(
    "array",
    [
        TABLE.numpy()[:, ::-1][:, ::-1],
        np.ascontiguousarray(TABLE.numpy()[:, ::-1])[:, ::-1],
        TABLE.numpy().astype(">f8"),
        TABLE.numpy().astype(">f4")[::-1][::-1],
        TABLE.flip(0).numpy()[::-1],
    ],
    ids=["as it was", "negative stride", "big-endian", "big-endian float32", "negative stride of rows"],
)
def test_arrays_that_no_tensor_can_share_are_copied(array: Any) -> None:
    before = array.copy()
    for cls in (Probs, Counts, Logits, Samples):
        found = cls(array).tensor
        assert found.dtype == (torch.float32 if array.itemsize == 4 else torch.float64)
        assert torch.equal(found.double(), TABLE)
    if not array.dtype.isnative or min(array.strides) < 0:
        found.zero_()
        assert (array == before).all()


TABLES: dict[str, Any] = {
    "objects": TABLE.numpy().astype(object),
    "table of objects": pd.DataFrame(TABLE.numpy(), columns=list("abc")).astype(object),
    "series of objects": pd.Series(list(ROW.numpy()), dtype=object),
    "long floats": TABLE.numpy().astype(np.longdouble),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("cls", [Probs, Logits, Counts])
def test_what_is_no_array_of_numbers_is_refused_with_what_makes_one(cls: type[Any], name: str) -> None:
    x = TABLES[name]
    with refused(KullbackError, call=cls.__name__, argument="x") as caught:
        cls(x)
    remedy = str(caught.value).partition("Write: ")[2]
    made = eval(remedy, {"torch": torch, cls.__name__: cls, "x": x})  # noqa: S307
    assert made.classes == 3


def test_counts_beyond_int64_are_refused_by_their_size() -> None:
    x = np.array([2**64 - 1, 1], dtype=np.uint64)
    for given in (x, torch.from_numpy(x)):
        with refused(KullbackError, wanted="up to 9223372036854775807", got="^larger ones") as caught:
            Counts(given)
        remedy = str(caught.value).partition("Write: ")[2].partition(", which")[0]
        made = eval(remedy, {"torch": torch, "Counts": Counts, "x": given})  # noqa: S307
        assert made.tensor.tolist() == [2.0**64, 1.0]
    assert Counts(np.array([2**63 - 1, 1], dtype=np.uint64)).tensor.tolist() == [2**63 - 1, 1]


# ---- Files.


@pytest.mark.parametrize("argument", ["labels", "cluster"])
def test_an_array_of_a_file_is_asked_for_by_the_argument_that_names_it(argument: str, tmp_path: Path) -> None:
    path, single, text = tmp_path / "two.csv", tmp_path / "one.npy", tmp_path / "one.txt"
    path.write_text("first,second\n0,1\n1,2\n2,3\n")
    np.save(single, LABELS.numpy())
    text.write_text("0\n1\n2\n")
    key, option = f"{argument}_key", f"--{argument}-key"
    missing = message_of(lambda: between(**{argument: path}))
    assert (
        f"wanted {key}=, since the file holds 2 columns; got no key; pass {key}= ({option}) with" in missing
    )
    assert f"pass one of those as {key}= ({option})" in message_of(
        lambda: between(**{argument: path, key: "x"})
    )
    for name in ("first", "second"):
        between(**{argument: path, key: name})
    for each in (single, text):
        assert f"got {key}='x'; leave {key}= out" in message_of(
            lambda each=each: between(**{argument: each, key: "x"})
        )
        between(**{argument: each})
    assert "pass key= (--key) with" in message_of(lambda: read_labels(path))
    assert "pass tokens_key= (--tokens-key) with" in message_of(
        lambda: read_labels(path, key_name="tokens_key")
    )


# ---- Rules.


class Gauge(td.Normal):
    """A Normal with rules of its own."""


@pytest.mark.usefixtures("registered_rules")
def test_a_rule_is_a_function_that_returns_a_tensor() -> None:
    rule: Any = 3
    assert message_of(lambda: register_kl(Gauge, td.Normal)(rule)).startswith("register_kl(rule=...)")
    p = Gauge(0.0, 1.0)
    assert float(kullback.kl_divergence(p, NORMAL)) == 0  # nothing was registered
    answers: dict[str, Any] = {"text": "x", "number": 0.5, "none": None}

    @register_kl(Gauge, td.Normal)
    def kl_gauge_normal(p: Any, q: Any) -> Any:
        return answers["now"]

    for answer in answers.copy().values():
        answers["now"] = answer
        for call in (kullback.kl_divergence, kl_estimate):
            message = message_of(lambda call=call: call(p, NORMAL))
            assert "kl_gauge_normal for (Gauge, Normal), which returned" in message
    answers["now"] = torch.as_tensor(0.5)
    assert float(kullback.kl_divergence(p, NORMAL)) == 0.5


# ---- Errors in the name of what the user called.

INFINITE = Samples(torch.cat([normal(60, 2), torch.full((1, 2), torch.inf)]))
CALLED: dict[str, Callable[[], object]] = {
    "kl_estimate(p=...)": lambda: kl_estimate(INFINITE, DRAWS),
    "kl_estimate(q=...)": lambda: kl_estimate(DRAWS, INFINITE),
    "kl_divergence(p=...)": lambda: kullback.kl_divergence(INFINITE, DRAWS, method="density_ratio"),
    "divergence(p=...)": lambda: divergence(
        Samples(INFINITE.tensor[:, 0]), Samples(DRAWS.tensor[:, 0]), "jeffreys"
    ),
    "KLRegularizer(posterior=..., prior=...)": lambda: KLRegularizer()(
        td.Normal(normal(3, 2), 1.0), td.Normal(normal(4, 2), 1.0)
    ),
    "kl_per_dimension(posterior=..., prior=...)": lambda: kl_per_dimension(
        td.Dirichlet(torch.ones(3, 2)), td.Normal(torch.zeros(3), 1.0)
    ),
    "distillation_loss(teacher=...)": lambda: distillation_loss(
        student=LOGITS, teacher=TopK(LABELS[:, None] + 7, -torch.ones(3, 1))
    ),
    "distillation_loss(student=...)": lambda: distillation_loss(
        student=LOGITS, teacher=TopK(LABELS[:2, None], -torch.ones(2, 1))
    ),
    "distillation_loss(kind=...)": lambda: distillation_loss(
        student=LOGITS, teacher=SampledTail.draw(OTHER, k=2), kind=kullback.Renyi(0.5)
    ),
    "distillation_loss(temperature=...)": lambda: distillation_loss(
        student=LOGITS, teacher=SampledTail.draw(OTHER, k=2), temperature=2.0
    ),
}


@pytest.mark.parametrize("start", CALLED)
def test_an_error_names_what_was_called(start: str) -> None:
    message = message_of(CALLED[start])
    assert message.startswith(f"{start}: wanted "), message
    for other in ("kl_divergence(", "top_k_divergence(", "sampled_tail_divergence(", "histogram("):
        assert other not in message.removeprefix(start)


def test_a_metric_names_its_own_argument_and_the_word_for_what_it_was_given() -> None:
    for metric in (KLDivergence(), KLDivergence(representation="probs"), KLDivergence(log_prob=True)):
        message = message_of(lambda metric=metric: metric.update(LOGITS, LOGITS))
        assert message.startswith("KLDivergence.update(p=...): wanted ")
        assert "(x" not in message
        assert "representation='logits' for scores" in message
    KLDivergence(representation="logits").update(LOGITS, OTHER)
    empty = message_of(lambda: KLDivergence().update(torch.zeros(2, 3), torch.ones(2, 3)))
    assert empty.endswith("Write: leave those rows out; no distribution can be made of them")


# ---- What is shown of an object, and its hash.


@pytest.mark.parametrize(
    "made",
    [
        DistillationLoss(label_weight=0.3, temperature_squared=True, ignore_index=5),
        DistillationLoss(kind=ReverseKL(), temperature=2.0, reduction="sum", vocabulary="mask", classes=7),
        LinearDistillationLoss(softcap=(30.0, None), logit_scale=0.5, chunk_bytes=1000, float32_logits=True),
        KLRegularizer(per_example=True, balance=(0.8, 0.2), free_nats=0.5, batch_dims=2, sync=False),
        KLRegularizer(coefficient=0.0, capacity=LinearSchedule(0.0, 1.0, steps=5), group_dims=(0, 1)),
    ],
    ids=lambda made: type(made).__name__,
)
def test_a_module_shows_every_option_that_is_not_at_its_default(made: torch.nn.Module) -> None:
    again = eval(repr(made), vars(kullback) | vars(kullback.nn))  # noqa: S307
    assert repr(again) == repr(made)
    ours = {
        name: value
        for name, value in vars(made).items()
        if not name.startswith(("_parameters", "_buffers", "_sums"))
    }
    assert {name: vars(again)[name] for name in ours} == ours


def test_a_module_shows_no_option_at_its_default() -> None:
    assert repr(DistillationLoss()) == "DistillationLoss(kind=KL(), temperature=1.0, reduction='mean')"
    assert repr(KLRegularizer()) == "KLRegularizer(coefficient=1.0)"


def test_results_that_are_equal_have_equal_hashes() -> None:
    makers: tuple[Callable[[], object], ...] = (
        lambda: compare_predictions(Logits(LOGITS), Logits(OTHER), labels=LABELS, llama_cpp=True),
        lambda: compare_predictions(Logits(LOGITS), Logits(OTHER), labels=LABELS).labels,
        lambda: compare_predictions(Logits(LOGITS), Logits(OTHER), labels=LABELS, llama_cpp=True).llama_cpp,
        lambda: kullback.diagnose(LOGITS.log_softmax(-1), OTHER.softmax(-1)),
    )
    for make in makers:
        one = make()
        other = copy(one)  # of two runs the NaN would differ
        assert one == other
        assert hash(one) == hash(other)


def test_schedules_begin_at_their_start() -> None:
    assert LinearSchedule(0.0, 1.0, 4)(0) == CyclicalSchedule(0.0, 1.0, period=4)(0) == 0
    assert not re.search("-", str([LinearSchedule(1.0, 0.0, 4)(step) for step in range(9)]))
