"""Every declared constraint refuses the values outside of it, and takes those inside and each remedy."""

from __future__ import annotations

import collections
import importlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.distributions import Normal

import kullback
from kullback import estimators, metrics
from kullback.common.constraints import (
    Arguments,
    Constraint,
    Number,
    OfType,
    OneOf,
    Whole,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError, safe_repr
from kullback.functional import (
    SampledTail,
    Scored,
    TopK,
    distillation_loss,
    kl_div,
    kl_from_log_probs,
    kl_surrogate,
    linear_distillation_loss,
    sampling_log_probs,
    top_k_divergence,
    top_k_divergence_bounds,
)
from kullback.integrations.batch_loss import BatchLoss
from kullback.integrations.stored_teachers import StoredTeacherCollator
from kullback.integrations.trl import generalized_jsd_loss
from kullback.integrations.verl import top_k_loss
from kullback.io import (
    ReferenceWriter,
    Windows,
    open_rows,
    paired_blocks,
    read_clusters,
    read_labels,
    read_tokens,
    write_llama_base,
)
from kullback.io.top_k import open_top_k, paired_top_k_blocks, scored_text
from kullback.metrics import KLDivergence, PolicyKL, PolicyMismatch
from kullback.mismatch import TokenLog, policy_mismatch
from kullback.models import Cut, Loading, Run, compare_models, record_reference
from kullback.nn import (
    DistillationLoss,
    KLDivLoss,
    KLRegularizer,
    LinearDistillationLoss,
    active_units,
    kl_per_dimension,
)
from kullback.policy import (
    AdaptiveKLController,
    CyclicalSchedule,
    FixedKLController,
    LinearSchedule,
    PIDKLController,
)
from kullback.predictions import register_statistic
from kullback.tables import choose_bins, compare_profiles, profile_table
from kullback.testing import assert_close_distributions
from tests.models.tiny import make_model, make_tokenizer, text
from tests.refusals import refused

# ---- Every declaration of the package, by call and argument.


PACKAGE = Path(kullback.__file__).parent


def declared() -> Iterator[tuple[str, str, Constraint]]:
    seen: set[int] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if " = Arguments(" in path.read_text():
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            for value in vars(importlib.import_module(name)).values():
                if isinstance(value, Arguments) and id(value) not in seen:
                    seen.add(id(value))
                    for call in value.calls:
                        for argument, constraint in value.constraints.items():
                            yield call, argument, constraint


DECLARED = list(declared())

# ---- A valid call of each function, to which one argument is added.

NUMBERS = torch.tensor([[0.0, 1.0, 2.0], [0.5, -0.5, 0.25]])
P, Q = kullback.Logits(NUMBERS), kullback.Logits(NUMBERS.flip(-1))
TABLE = pa.table({"a": [1.0, 2.0, 3.0, 4.0] * 30})
PROFILE = profile_table(TABLE)
P_ROWS = NUMBERS.softmax(-1)
NORMALS = Normal(torch.zeros(2, 3), 1.0), Normal(torch.ones(2, 3), 1.0)
LABELS = torch.tensor([0, 2])
HEADS: dict[str, Any] = {
    "student": NUMBERS,
    "student_weight": torch.eye(3),
    "teacher": NUMBERS,
    "teacher_weight": torch.eye(3),
}
RANDOM = torch.Generator().manual_seed(0)
DRAWS, OTHER_DRAWS = (kullback.Samples(torch.randn(80, generator=RANDOM)) for _ in range(2))
CATEGORIES = kullback.Samples(torch.randint(3, (80,), generator=RANDOM))
TOKENS = torch.arange(8).repeat(64) % 3
RESPONSE = {"target_logprobs": [[-0.1], [-0.2], [-0.3]], "target_token_ids": [[4], [9], [2]]}


def write_lines(path: Path, count: object) -> Path:
    """Write as many zeros as the argument `rows` asks for, one on each line."""
    lines = int(count) if isinstance(count, int | np.integer | torch.Tensor) and 0 < count < 10_000 else 2
    path.write_text("0\n" * lines)
    return path


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Callable[..., object]]:
    folder = tmp_path_factory.mktemp("constraints")
    rows, counts, reference, base = (folder / name for name in ("p.npy", "n.npy", "p.klref", "p.kld"))
    np.save(rows, NUMBERS.numpy())
    np.save(counts, NUMBERS.long().numpy())
    model = make_model()
    of_text: dict[str, Any] = {"loading": Loading(tokenizer=make_tokenizer()), "cut": Cut(context=8)}

    def blocks(**given: Any) -> list[Any]:
        with open_rows(rows, representation="logits") as source:
            return list(source.blocks(**given))

    def pairs(**given: Any) -> list[Any]:
        with (
            open_rows(rows, representation="logits") as p,
            open_rows(rows, representation="logits") as q,
        ):
            return list(paired_blocks(p, q, **given))

    def writer(**given: Any) -> object:
        windows = Windows(torch.tensor([0, 2, 1]), torch.tensor([0, 3]), torch.tensor([False, True, True]))
        return ReferenceWriter(reference, windows, **given)

    def llama_base(n_ctx: Any = 8, **given: Any) -> object:
        length = int(n_ctx) if isinstance(n_ctx, int | np.integer | torch.Tensor) and n_ctx >= 3 else 8
        scored = 512 // length * (length - length // 2 - 1)
        return write_llama_base(base, TOKENS, torch.zeros(scored, 3), n_ctx=n_ctx, **given)

    return {
        "compare_tables": lambda **given: kullback.compare_tables(TABLE, TABLE, **given),
        "compare_profiles": lambda **given: compare_profiles(PROFILE, PROFILE, **given),
        "choose_bins": lambda **given: choose_bins(PROFILE.columns["a"], **given),
        "compare_predictions": lambda **given: kullback.compare_predictions(
            *((NUMBERS, NUMBERS) if given.get("representation") else (P, Q)),
            **({"labels": torch.tensor([0, 1]), "bootstrap": 0} | given),
        ),
        "open_rows": lambda representation: open_rows(
            counts if representation is None else rows, representation=representation
        ).close(),
        "RowSource.blocks": blocks,
        "paired_blocks": pairs,
        "open_top_k": lambda **given: open_top_k(RESPONSE, **given).close(),
        "TopKSource.blocks": lambda **given: list(open_top_k(RESPONSE).blocks(**given)),
        "paired_top_k_blocks": lambda **given: list(
            paired_top_k_blocks(open_top_k(RESPONSE), open_top_k(RESPONSE), **given)
        ),
        "ReferenceWriter": writer,
        "write_llama_base": llama_base,
        "diagnose": lambda **given: kullback.diagnose(NUMBERS, NUMBERS.softmax(-1), **given),
        "entropy": lambda **given: kullback.entropy(P, **given),
        "cross_entropy": lambda **given: kullback.cross_entropy(P, Q, **given),
        "mutual_information": lambda **given: kullback.mutual_information(
            kullback.Counts([[3, 1], [1, 3]], dim=(-2, -1)), **given
        ),
        "kl_div": lambda **given: kl_div(NUMBERS, P_ROWS, **({"reduction": "sum"} | given)),
        "KLDivLoss": KLDivLoss,
        "top_k_divergence": lambda **given: top_k_divergence(
            "kl", TopK(LABELS[:, None], -torch.ones(2, 1), tail="renormalize"), NUMBERS, **given
        ),
        "top_k_divergence_bounds": lambda **given: top_k_divergence_bounds(
            *(2 * [TopK(LABELS[:, None], -torch.ones(2, 1))]), "kl", **given
        ),
        "register_statistic": lambda **given: register_statistic("never_applied", "never applied", **given),
        "register_estimator": lambda **given: estimators.register_estimator("never applied", **given),
        "read_labels": lambda **given: read_labels(
            write_lines(folder / "labels.txt", given.get("rows")), **given
        ),
        "read_clusters": lambda **given: read_clusters(
            write_lines(folder / "clusters.txt", given.get("rows")), **given
        ),
        "read_tokens": lambda **given: read_tokens(write_lines(folder / "tokens.txt", 3), **given),
        "Logits": lambda **given: kullback.Logits(NUMBERS, **given),
        "LogProbs": lambda **given: kullback.LogProbs(NUMBERS.log_softmax(-1), **given),
        "Probs": lambda **given: kullback.Probs(NUMBERS.softmax(-1), **given),
        "Counts": lambda **given: kullback.Counts([1, 2], **given),
        "Samples": lambda **given: kullback.Samples([1.0, 2.0], **given),
        "assert_close_distributions": lambda **given: assert_close_distributions(
            Normal(0.0, 1.0), Normal(0.0, 1.0), **({"below": 1.0} | given)
        ),
        "LinearSchedule": lambda **given: LinearSchedule(**({"start": 0.0, "stop": 1.0, "steps": 4} | given)),
        "CyclicalSchedule": lambda **given: CyclicalSchedule(
            **({"start": 0.0, "stop": 1.0, "period": 4} | given)
        ),
        "LinearSchedule.__call__": LinearSchedule(0.0, 1.0, 4),
        "CyclicalSchedule.__call__": CyclicalSchedule(0.0, 1.0, 4),
        "FixedKLController": FixedKLController,
        "AdaptiveKLController": AdaptiveKLController,
        "PIDKLController": lambda **given: PIDKLController(**({"target": 0.5} | given)),
        "KLRegularizer": KLRegularizer,
        "kl_per_dimension": lambda **given: kl_per_dimension(*NORMALS, **given),
        "active_units": lambda **given: active_units(NUMBERS, **given),
        "distillation_loss": lambda **given: distillation_loss(
            student=NUMBERS, teacher=NUMBERS.flip(-1), labels=LABELS, **given
        ),
        "DistillationLoss": DistillationLoss,
        "linear_distillation_loss": lambda **given: linear_distillation_loss(**HEADS, labels=LABELS, **given),
        "LinearDistillationLoss": LinearDistillationLoss,
        "kl_from_log_probs": lambda **given: kl_from_log_probs(NUMBERS, NUMBERS, **given),
        "kl_surrogate": lambda **given: kl_surrogate(
            NUMBERS, NUMBERS, log_ratio=NUMBERS, **({"direction": "forward"} | given)
        ),
        "SampledTail.draw": lambda **given: SampledTail.draw(NUMBERS, **({"k": 1} | given)),
        "Scored": lambda **given: Scored(LABELS[:, None], -torch.ones(2, 1), **given),
        "scored_text": lambda **given: scored_text(
            {"prompt_token_ids": [1, 42, 7], "prompt_token_id_logprobs": [[-0.5, -1.5], [-0.25, -1.0]]},
            **({"ids": [[42, 5], [7, 2]]} | given),
        ),
        "top_k_loss": top_k_loss,
        "TopK": lambda **given: TopK(LABELS[:, None], -torch.ones(2, 1), **given),
        "PolicyKL": PolicyKL,
        "PolicyMismatch": PolicyMismatch,
        "policy_mismatch": lambda **given: policy_mismatch(
            TokenLog(LABELS, LABELS, -LABELS.double(), -LABELS.double()), **given
        ),
        "sampling_log_probs": lambda **given: sampling_log_probs(NUMBERS, LABELS, **given),
        "kl_divergence": lambda **given: (
            metrics.kl_divergence(
                *(2 * [NUMBERS.log_softmax(-1) if given.get("log_prob") is True else P_ROWS]), **given
            )
            if {"reduction", "log_prob"} & given.keys()
            else kullback.kl_divergence(*NORMALS, **given)
        ),
        "KLDivergence": KLDivergence,
        "divergence": lambda **given: kullback.divergence(*NORMALS, "kl", **given),
        "kl_estimate": lambda **given: kullback.kl_estimate(*NORMALS, **given),
        "estimate": lambda **given: kullback.estimate(*NORMALS, "kl", **given),
        "fit": lambda **given: kullback.fit(Normal(0.0, 1.0), to=Normal(1.0, 2.0), **given),
        "from_density": lambda **given: estimators.from_density(DRAWS, Normal(0.0, 1.0), **given),
        "variational_estimate": lambda **given: estimators.variational_estimate(
            DRAWS, OTHER_DRAWS, torch.nn.Linear(1, 1), **given
        ),
        "variational_bound": lambda **given: estimators.variational_bound(
            DRAWS, OTHER_DRAWS, torch.nn.Linear(1, 1), **given
        ),
        "log_ratio": lambda **given: estimators.log_ratio(
            DRAWS, Normal(0.0, 1.0).log_prob, Normal(0.5, 1.0).log_prob, **given
        ),
        **{
            name: lambda name=name, **given: getattr(estimators, name)(DRAWS, OTHER_DRAWS, **given)
            for name in ("nearest_neighbors", "histogram", "two_sample_test")
        },
        **{
            name: lambda name=name, **given: getattr(estimators, name)(CATEGORIES, CATEGORIES, **given)
            for name in (
                "bias_corrected",
                "plugin",
                "miller_madow",
                "coverage_adjusted",
                "augmented_plugin",
                "zhang_grabchak",
                "dirichlet",
            )
        },
        "density_ratio": lambda **given: estimators.density_ratio(
            DRAWS, OTHER_DRAWS, classifier=LogisticRegression(), **given
        ),
        "JensenShannon": kullback.JensenShannon,
        "StoredTeacherCollator": lambda **given: StoredTeacherCollator(dict, **given),
        "generalized_jsd_loss": lambda **given: generalized_jsd_loss(NUMBERS[None], NUMBERS[None], **given),
        "BatchLoss": lambda **given: BatchLoss(
            "BatchLoss", DistillationLoss(), None, **({"causal": True} | given)
        ),
        "Cut": Cut,
        "Loading": Loading,
        "Run": lambda **given: Run(**({"until_sure": "mean=0.01"} if "runs" in given else {}) | given),
        "compare_models": lambda **given: compare_models(
            model, model, text()[:400], **(of_text | {"run": Run(bootstrap=0, worst=0)} | given)
        ),
        "record_reference": lambda **given: record_reference(
            model, text()[:400], reference, **(of_text | {"top": 2, "tail_draws": 1} | given)
        ),
    }


# ---- The values that a constraint refuses, and some of those that it takes.

NO_NUMBER: tuple[Any, ...] = (math.nan, True, np.True_, "0.5", b"1", 1j, [0.5], object(), 10**400)
NO_WORD: tuple[Any, ...] = ("", "no such word", 3, True, b"mean", ["mean"], torch.tensor(0.5))


def refusals(constraint: Constraint) -> Iterator[Any]:
    if not constraint.optional and not (isinstance(constraint, OfType) and type(None) in constraint.types):
        yield None
    if isinstance(constraint, Number):
        yield from (*NO_NUMBER, torch.tensor(0.5), np.array([0.5]))
        if constraint.low > -math.inf:
            yield from (math.nextafter(constraint.low, -math.inf), -math.inf)
        if constraint.high < math.inf:
            yield from (math.nextafter(constraint.high, math.inf), math.inf)
    elif isinstance(constraint, Whole):
        yield from (*NO_NUMBER, 0.5, 2.0, np.float64(2), torch.tensor(2.0), torch.tensor(True))
        yield from (constraint.least - 1, constraint.most + 1)
    elif isinstance(constraint, OneOf):
        yield from (*NO_WORD, constraint.words[0].upper() + ".")
    elif isinstance(constraint, OfType) and bool in constraint.types:
        yield from (0, 1.0, "True", np.True_, torch.tensor(True), [])
    else:
        is_text = isinstance(constraint, OfType) and str in constraint.types
        yield from (3, b"x" if is_text else "x", ["print"])


def acceptances(constraint: Constraint) -> Iterator[Any]:
    example = constraint.example
    if example is not None:
        yield example
    if constraint.optional:
        yield None
    if isinstance(constraint, Number):
        yield from (np.float64(example), np.float32(example), Fraction(example))
    elif isinstance(constraint, Whole):
        yield from (np.int64(example), torch.tensor(example))
    elif isinstance(constraint, OfType) and bool in constraint.types:
        yield False


NAMES = {"torch": torch, "math": math, "collections": collections, "tokens": ["a", "b"], "tokenizer": "abc"}


def remedy_in(error: KullbackError) -> dict[str, Any]:
    """The arguments that a remedy names; none, if it says to leave the argument out."""
    if error.remedy:
        return dict(error.remedy)
    text, argument = str(error.instead), str(error.argument)
    if re.search(rf"without it|leave {argument}= out|reduction='none'", text):
        return {}
    value = text[text.index(f"{argument}=") + len(argument) + 1 :]
    ends = [match.start() for match in re.finditer(r"$|\)|, | for | or | to ", value)]
    for end in reversed(ends):  # the longest beginning that is an expression
        with suppress(SyntaxError):
            return {argument: eval(value[:end], NAMES)}  # noqa: S307
    raise AssertionError(text)


def test_every_value_outside_of_a_constraint_is_refused_with_its_parts(
    calls: Mapping[str, Callable[..., object]],
) -> None:
    assert {call for call, _, _ in DECLARED} == set(calls)
    for call, argument, constraint in DECLARED:
        for value in refusals(constraint):
            if argument == "step" and isinstance(value, torch.Tensor):
                continue  # steps may be counted in a tensor
            with pytest.raises(KullbackError) as caught:
                calls[call](**{argument: value})
            error, where = caught.value, f"{call}({argument}={safe_repr(value)})"
            assert (error.call, error.argument) == (call, argument), f"{where}: {error}"
            if isinstance(value, str | float | bool | None):
                assert error.got == safe_repr(value), where
            assert error.wanted in (constraint.wanted, *derived(constraint)), where
            assert type(error) is kind_of(constraint, value), f"{where}: {error!r}"


def derived(constraint: Constraint) -> list[str]:
    """The text that follows from a declaration."""
    if constraint.wanted:
        return []
    texts = [constraint.described() + constraint.note + (", or None" if constraint.optional else "")]
    if isinstance(constraint, Whole) and constraint.most == Whole().most:
        texts.append(f"an integer from {constraint.least} to {constraint.most:,}")  # for a larger integer
    return texts


def kind_of(constraint: Constraint, value: object) -> type[KullbackError]:
    """The class of the refusal: for a strict constraint, that of another type."""
    if isinstance(constraint, Whole):
        is_other = not isinstance(value, int | np.integer) or isinstance(value, bool)
    elif isinstance(constraint, Number):
        is_other = not isinstance(value, int | float) or isinstance(value, bool)
    else:
        is_other = True
    return ArgumentTypeError if constraint.strict and is_other else ArgumentValueError


@pytest.mark.sweep
def test_every_remedy_and_every_scalar_inside_of_a_constraint_is_taken(
    calls: Mapping[str, Callable[..., object]],
) -> None:
    # A model takes seconds; most constraints of these calls are those of compare_predictions and ReferenceWriter.
    tried = [each for each in DECLARED if each[0] not in ("compare_models", "record_reference")]
    for call, argument, constraint in tried:
        for value in acceptances(constraint):
            calls[call](**{argument: value})
        calls[call](**remedy_in(constraint.refusal(call, argument, object())))


def test_the_accepted_values_are_described_from_the_bounds_that_are_declared() -> None:
    numbers = {Number(below=5): "a number below 5", Number(most=5): "a number of at most 5"}
    assert {number: number.described() for number in numbers} == numbers


@pytest.mark.parametrize(("value", "error"), [("c", "ArgumentValueError"), (1, "ArgumentTypeError")])
def test_a_strict_word_of_another_type_is_a_type_error(value: object, error: str) -> None:
    refusal = OneOf(("a", "b"), example="a", strict=True).refusal("f", "x", value)
    assert type(refusal).__name__ == error


@pytest.mark.parametrize("value", [2**63, 10**30, str(10**30)])
def test_an_integer_beyond_64_bits_is_refused_with_the_bound(value: object) -> None:
    with refused(ArgumentValueError, wanted=r"^an integer from 1 to 9,223,372,036,854,775,807$"):
        Whole(least=1, example=999).check("f", "draws", value)
