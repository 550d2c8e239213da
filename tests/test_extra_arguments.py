"""Calls with arguments that a function does not have name the call that is right, and that call works."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import pathlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import scipy.stats
import torch
from torch.distributions import Normal

import kullback
from kullback import KL, Counts, FDivergence, Logits, LogProbs, Probs, Renyi, Samples
from kullback.common.extra_arguments import by_name
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError
from kullback.functional import distillation_loss, linear_distillation_loss
from kullback.nn import DistillationLoss, KLDivLoss
from tests.refusals import refused
from tests.test_package import PUBLIC

GENERATOR = torch.Generator().manual_seed(0)
S, T = torch.randn(4, 5, generator=GENERATOR), torch.randn(4, 5, generator=GENERATOR)
P, Q = Logits(T), Logits(S)
ROWS = torch.tensor([True, False, True, True])
kl_divergence: Any = kullback.kl_divergence
divergence: Any = kullback.divergence
estimate: Any = kullback.estimate
kl_estimate: Any = kullback.kl_estimate

VERBS = {
    "kl_divergence": lambda *args, **kwargs: kl_divergence(P, Q, *args, **kwargs),
    "divergence": lambda *args, **kwargs: divergence(P, Q, KL(), *args, **kwargs),
    "estimate": lambda *args, **kwargs: estimate(P, Q, KL(), *args, **kwargs),
    "kl_estimate": lambda *args, **kwargs: kl_estimate(P, Q, *args, **kwargs),
}
# For each keyword of another library: its value, words of the remedy, and the remedy as code.
KEYWORDS: dict[str, tuple[object, str, Callable[[], object]]] = {
    "temperature": (2.0, "Logits(x / temperature)", lambda: kl_divergence(Logits(T / 2), Logits(S / 2))),
    "mask": (ROWS, "kl_divergence(p, q)[mask]", lambda: kl_divergence(P, Q)[ROWS]),
    "reduction": ("mean", "kl_divergence(p, q).mean()", lambda: kl_divergence(P, Q).mean()),
    "weight": (
        ROWS,
        "(weight * kl_divergence(p, q)).sum()",
        lambda: (ROWS * kl_divergence(P, Q)).sum() / ROWS.sum(),
    ),
    "log_target": (True, "LogProbs(target)", lambda: kl_divergence(LogProbs(T.log_softmax(-1)), Q)),
    "dim": (0, "Logits(x, dim=dim)", lambda: kl_divergence(Logits(T, dim=0), Logits(S, dim=0))),
    "eps": (
        1e-8,
        "Counts(x, prior=0.5)",
        lambda: kl_divergence(Counts([1, 2], prior=0.5), Probs([0.5, 0.5])),
    ),
    "unit": ("bits", "base=2 for bits", lambda: kl_divergence(P, Q, base=2)),
    "T": (2.0, "Logits(x / T) for both sides", lambda: kl_divergence(Logits(T / 2), Logits(S / 2))),
    "alpha": (
        0.1,
        "kl_estimate(p, q, confidence=1 - alpha), or divergence(p, q, Renyi(alpha))",
        lambda: (kl_estimate(P, Q, confidence=0.9), divergence(P, Q, Renyi(0.1))),
    ),
    "seed": (
        0,
        "generator=torch.Generator().manual_seed(seed)",
        lambda: kl_divergence(P, Q, generator=torch.Generator().manual_seed(0)),
    ),
    "prior": (1.0, "Counts(x, prior=0.5)", lambda: Counts([1, 2], prior=0.5)),
    "basis": (2, "base= instead of basis=", lambda: kl_divergence(P, Q, base=2)),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_of_another_library_gets_the_code_to_write(verb: str, keyword: str) -> None:
    value, words, remedy = KEYWORDS[keyword]
    with pytest.raises(ArgumentTypeError, match=re.escape(words)) as caught:
        VERBS[verb](**{keyword: value})
    assert (caught.value.call, caught.value.argument) == (verb, keyword)
    remedy()


def test_other_verbs_are_named_for_a_kind_and_for_an_interval() -> None:
    for call, words in ((kl_divergence, "divergence(p, q, kind)"), (kl_estimate, "estimate(p, q, kind)")):
        with pytest.raises(ArgumentTypeError, match=re.escape(words)):
            call(P, Q, kind=KL())
    with pytest.raises(ArgumentTypeError, match=re.escape("kl_estimate(p, q, confidence=confidence)")):
        kl_divergence(P, Q, confidence=0.9)
    assert divergence(P, Q, KL()).shape == kl_estimate(P, Q, confidence=0.9).value.shape


@pytest.mark.parametrize("verb", VERBS)
def test_a_further_argument_by_position_is_refused(verb: str) -> None:
    with pytest.raises(ArgumentTypeError, match="by position, and all other arguments by name"):
        VERBS[verb](2)


def test_losses_take_both_sides_by_name() -> None:
    loss: Any = distillation_loss
    with pytest.raises(ArgumentTypeError, match=re.escape("distillation_loss(student=logits, teacher=")):
        loss(S, T)
    with pytest.raises(ArgumentTypeError, match="temperature= instead of temprature="):
        loss(student=S, teacher=T, temprature=2.0)
    of_heads: Any = linear_distillation_loss
    with pytest.raises(ArgumentTypeError, match=re.escape("linear_distillation_loss(student=h,")):
        of_heads(S, S, T, T)
    assert loss(student=S, teacher=T, temperature=2.0) > 0


def test_fit_takes_the_target_by_name() -> None:
    fit: Any = kullback.fit
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: fit(q, to=p)")):
        fit(Normal(0.0, 1.0), Normal(1.0, 1.0))
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: fit(q, to=target)")):
        fit(Normal(0.0, 1.0), target=Normal(1.0, 1.0))
    with pytest.raises(ArgumentTypeError, match="Write: max_iterations=1000"):
        fit(Normal(0.0, 1.0), to=Normal(1.0, 1.0), n_steps=5)
    remedy = re.escape("fit(torch.distributions.Normal(0.0, 1.0), to=p)")
    with refused(ArgumentTypeError, argument="q", got=r"^a frozen scipy\.stats\.norm$", instead=remedy):
        fit(scipy.stats.norm(0, 1), to=Normal(1.0, 1.0))
    assert fit(Normal(0.0, 1.0), to=Normal(1.0, 1.0), max_iterations=1000).distribution.loc == 1


def test_diagnose_takes_the_tensors_of_a_call() -> None:
    explain: Any = kullback.diagnose
    for sides, name in (((Logits(S), T), "input"), ((S, Probs(T.softmax(-1))), "target")):
        with refused(ArgumentTypeError, argument=name, instead=rf"^{name}={name}\.tensor$"):
            explain(*sides)
    assert explain(Logits(S).tensor, Probs(T.softmax(-1)).tensor).findings


def test_a_representation_has_no_temperature_and_no_mask() -> None:
    wrap: Any = Logits
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Logits(x / temperature)")):
        wrap(S, temperature=2.0)
    with pytest.raises(ArgumentTypeError, match=re.escape("Logits(x[mask]) to leave out rows")):
        wrap(S, mask=ROWS)
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Counts(x, prior=0.5)")):
        wrap(S, prior=0.5)
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Logits(x / T)")):
        wrap(S, T=2.0)
    count: Any = Counts
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Counts(x, prior=0.5)")):
        count([1, 2], smoothing=0.5)
    with pytest.raises(ArgumentTypeError, match=re.escape("prior= instead of priors=")):
        count([1, 2], priors=0.5)
    assert kl_divergence(wrap(T[ROWS]), wrap(S[ROWS])).shape == (3,)


def test_an_own_function_of_numbers_is_refused_with_its_error() -> None:
    with pytest.raises(ArgumentTypeError, match="got log, which raises ValueError"):
        FDivergence(math.log)  # pyright: ignore[reportArgumentType]


def test_samples_with_rows_and_columns_exchanged_name_the_dimension() -> None:
    x, y = (torch.randn(3, 500, generator=GENERATOR) for _ in range(2))
    for method in ("auto", "nearest_neighbors"):
        with pytest.raises(
            ArgumentValueError, match=re.escape("Samples(x, dim=0), if each row has all draws")
        ):
            kl_divergence(Samples(x), Samples(y), method=method)
    assert kl_divergence(Samples(x, dim=0), Samples(y, dim=0)) >= 0
    x, y = (torch.randn(30, 100, generator=GENERATOR) for _ in range(2))
    assert any("pass Samples(x, dim=0)" in note for note in kl_estimate(Samples(x), Samples(y)).notes)


def test_an_export_to_a_file_names_the_line_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result: Any = kl_estimate(P, Q)
    cases = {
        "pathlib.Path('result.html').write_text(result.to_html())": lambda: result.to_html("x.html"),
        "pathlib.Path('result.md').write_text(result.to_markdown())": lambda: result.to_markdown(path="x.md"),
        "pathlib.Path('result.json').write_text(result.to_json())": lambda: result.to_json("x.json"),
        "json.dumps(result.to_dict(), indent=2)": lambda: result.to_json(indent=2),
        "result.to_dict(flat=True)": lambda: result.to_dict(True),
        "result.to_pandas().to_csv('result.csv', index=False)": lambda: result.to_pandas(index=False),
        "figure, axes = result.plot(), and then figure.savefig('result.png')": lambda: result.plot(
            save="x.png"
        ),
    }
    for remedy, call in cases.items():
        with refused(ArgumentTypeError, instead=re.escape(remedy)):
            call()
        exec(remedy.replace(", and then ", "; "), {"pathlib": pathlib, "json": json, "result": result})  # noqa: S102
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".md", ".json", ".csv", ".png"}
    assert Path("result.md").read_text().startswith("**KL of 4 rows: ")


def test_text_against_numbers_names_the_conversion() -> None:
    texts = [f"{x:.6f}" for x in torch.rand(60, generator=GENERATOR).tolist()]
    with pytest.raises(ArgumentValueError, match=re.escape("Samples([float(text) for text in x])")):
        kl_divergence(Samples(texts), Samples(torch.rand(60, generator=GENERATOR)))
    kl_divergence(Samples([float(x) for x in texts]), Samples(torch.rand(60, generator=GENERATOR)))


class Own(Normal):
    """A distribution with a rule of its own."""


@pytest.mark.parametrize("returned", [-1.0, -1e-4, -1e-12, -0.0])
def test_a_rule_that_returns_a_negative_divergence_is_refused_unless_it_is_rounding(returned: float) -> None:
    class Here(Own):
        """A class without a rule yet."""

    @kullback.register_kl(Here, Here)
    def rule(p: Here, q: Here) -> torch.Tensor:
        return torch.full(p.batch_shape, returned, dtype=torch.float64)

    p, q = Here(torch.zeros(2), 1.0), Here(torch.ones(2), 1.0)
    if returned > -1e-8:
        assert kl_divergence(p, q).tolist() == [0.0, 0.0]
        return
    for call in (kl_divergence, kl_estimate):
        with pytest.raises(ArgumentValueError, match=f"which returned {returned:g}"):
            call(p, q)


def test_a_scipy_distribution_without_parameters_names_them() -> None:
    stats = pytest.importorskip("scipy.stats")
    with pytest.raises(KullbackError, match=re.escape("scipy.stats.norm(loc=0.0, scale=1.0)")):
        kl_divergence(stats.norm, Normal(0.0, 1.0))
    assert kl_divergence(stats.norm(loc=0.0, scale=1.0), Normal(0.0, 1.0)) == 0


# Abstract classes, and records that kullback makes, some of them once per row or call, are not called by users.
NOT_CALLED = {
    "kullback.Bounds",
    "kullback.FitError",
    "kullback.Divergence",
    "kullback.Estimate",
    "kullback.Fit",
    "kullback.TwoSampleTest",
    "kullback.estimators.Draws",
    "kullback.estimators.EstimateWarning",
    "kullback.estimators.Evidence",
    "kullback.estimators.TwoSampleTest",
    "kullback.functional.DivergenceBounds",
    "kullback.functional.PartialTeacher",
    "kullback.functional.SamplingLogProbs",
    "kullback.functional.TeacherRows",
    "kullback.io.PartialRows",
    "kullback.io.Reference",
    "kullback.io.RowStream",
    "kullback.io.TopKSequence",
    "kullback.models.Candidate",
    "kullback.models.LanguageModel",
    "kullback.models.ModelComparison",
    "kullback.models.ModelInfo",
    "kullback.models.Passage",
    "kullback.models.ReadToken",
    "kullback.models.Token",
    "kullback.nn.KLController",
    "kullback.policy.KLController",
    "kullback.predictions.Comparison",
    *(
        f"kullback.tables.{name}"
        for name in (
            "Bin",
            "Bins",
            "ColumnComparison",
            "ColumnProfile",
            "Finding",
            "HistogramBin",
            "JointComparison",
            "Profile",
            "TableComparison",
        )
    ),
    # It is made for each batch, and a test limits the calls of a loss.
    "kullback.functional.TopK",
    # TorchScript compiles the source of the first, and the others pass their options on to one of several functions.
    "kullback.functional.kl_div",
    "kullback.compare",
    "kullback.testing.assert_close_distributions",
}
OF_TRAINERS = {
    "huggingface": ("DistillationTrainer", "compute_loss_func"),
    "lightning": ("DistillationModule",),
    "modelopt": ("LogitsDistillationLoss",),
    "nemo": ("KDLoss",),
    "stored_teachers": ("StoredTeacherCollator",),
    "trl": ("DistillationTrainer", "GKDTrainer", "generalized_jsd_loss"),
    "verl": ("register", "top_k_loss"),
}
CALLED = {
    path: thing
    for path, thing in PUBLIC.items()
    if (inspect.isclass(thing) or inspect.isroutine(thing))
    and path not in NOT_CALLED
    and not path.startswith("kullback.errors.")
    and getattr(thing, "__origin__", None) is None
}


def check_an_unknown_keyword(callable_object: Callable[..., object], name: str) -> None:
    """Check that a misspelled keyword names the right one, and that a foreign one gets the code of a call."""
    parameters = [
        x
        for x in inspect.signature(callable_object).parameters.values()
        if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD) and x.name != "unknown"
    ]
    filled = {x.name: None for x in parameters if x.default is x.empty}
    with pytest.raises(KullbackError, match=f"^{name}\\(not_an_argument_of_this=...\\): wanted .*Write: "):
        callable_object(**filled, not_an_argument_of_this=1)
    for x in parameters:
        if len(x.name) < 4:  # two letters more are too many for a shorter name
            continue
        misspelled = x.name + "_x"
        with pytest.raises(KullbackError, match=f"{misspelled}.*Write: {x.name}= instead of {misspelled}="):
            callable_object(**filled, **{misspelled: None})


@pytest.mark.parametrize("path", CALLED)
def test_no_public_function_or_class_answers_an_unknown_keyword_with_pythons_own_error(path: str) -> None:
    called: Any = CALLED[path]
    check_an_unknown_keyword(called, called.__name__)


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in OF_TRAINERS.items() for name in names]
)
def test_the_adapters_of_trainers_name_the_nearest_argument(module: str, name: str) -> None:
    for needed in (
        {"huggingface": "transformers", "stored_teachers": "transformers"}.get(module, module),
        "torch",
    ):
        if module not in ("modelopt", "nemo", "verl"):
            pytest.importorskip(needed)
    adapter: Any = getattr(importlib.import_module(f"kullback.integrations.{module}"), name)
    check_an_unknown_keyword(adapter, name)


def test_modules_and_kinds_name_the_nearest_argument_and_it_works() -> None:
    loss: Any = DistillationLoss
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: temperature= instead of temprature=")):
        loss(temprature=2)
    assert loss(temperature=2)(student=S, teacher=T) > 0
    module: Any = KLDivLoss
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: reduction= instead of reducton=")):
        module(reducton="batchmean")
    with pytest.raises(ArgumentTypeError, match=re.escape("got 5 arguments by position")):
        module(None, None, "sum", False, 1)
    assert module(None, None, "sum", False).reduction == "sum"  # as torch.nn.KLDivLoss
    with pytest.raises(
        ArgumentTypeError, match=re.escape("Write: DistillationLoss(temperature=temperature)")
    ):
        module(temperature=2.0)
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: temperature=T")):
        loss(T=2.0)
    renyi: Any = Renyi
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: alpha= instead of alfa=")):
        renyi(alfa=2.0)
    assert divergence(P, Q, renyi(alpha=2.0)).shape == (4,)
    kl: Any = KL
    with pytest.raises(ArgumentTypeError, match=re.escape("KL(): wanted no arguments; got 1 argument by")):
        kl(2)
    subclass: Any = type("Mine", (DistillationLoss,), {})
    with pytest.raises(ArgumentTypeError, match="temperature= instead of temprature="):
        subclass(temprature=2)


def test_metrics_name_the_nearest_argument_with_the_type_of_error_of_torchmetrics() -> None:
    pytest.importorskip("torchmetrics")
    from kullback.metrics import KLDivergence

    metric: Any = KLDivergence
    with pytest.raises(ArgumentValueError, match=re.escape("Write: log_prob= instead of log_probs=")):
        metric(log_probs=True)
    with pytest.raises(ValueError, match="sync_on_compute= instead of sync_on_comput="):
        metric(sync_on_comput=True)
    assert metric(log_prob=True, sync_on_compute=False).log_prob


def test_options_that_are_passed_on_are_refused_by_the_function_that_takes_them() -> None:
    compare: Any = kullback.compare
    with pytest.raises(ArgumentTypeError, match=r"compare_predictions.*bootstrap= instead of bootstraps="):
        compare(P, Q, bootstraps=3)
    close: Any = kullback.testing.assert_close_distributions
    with pytest.raises(ArgumentTypeError, match=re.escape("confidence= instead of confidense=")):
        close(Normal(0.0, 1.0), Normal(0.0, 1.0), below=1.0, confidense=0.9)


def test_a_type_error_inside_of_a_constructor_stays_itself() -> None:
    @by_name()
    class Base:
        def __init__(self, *, size: int, **others: Any) -> None:
            super().__init__(**others)
            self.size = 1 + size

    made: Any = Base
    assert made(size=1).size == 2
    with pytest.raises(TypeError, match="unsupported operand"):
        made(size="a")
    with pytest.raises(ArgumentTypeError, match="size= instead of sise="):
        made(size=1, sise=2)


def test_a_misspelled_column_names_the_nearest() -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"amount": [1, 2] * 30, "age": [3, 4] * 30})
    with pytest.raises(ArgumentValueError, match=re.escape("Write: columns=['amount']")):
        kullback.compare_tables(table, table, columns=["amout"])
    assert kullback.compare_tables(table, table, columns=["amount"]).columns[0].name == "amount"
