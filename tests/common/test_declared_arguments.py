"""Every public function declares the constraints of its numbers, words and flags, or is listed with the reason."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kullback.generators import Divergence
from tests.common.test_constraints import DECLARED

API = Path(__file__).resolve().parents[2] / "docs" / "api"

# One part of an annotation, as Python writes it: a number, a flag, one of several words, or a random generator.
SCALAR = re.compile(
    r"(typing\.Optional\[)?(typing\.)?Literal\[.*|int|float|bool|(torch\.)?Generator"
    r"|Reduction|Vocabulary|EachSide|RepresentationName|Direction|Estimator|Value|Importance|Tail"
)
# Words that are annotated as text, because torch's function has the same signature, or because the words may grow.
WORDS = {"method", "reduction"}

BY_SHAPE = "one dimension or several, of a tensor whose shape decides"
NO_SCALAR = "a tensor, a function or a pair as well, so more than a constraint decides"
LATE = "declared where it is checked: the words are in a module that is imported late"
UNDECLARED = {
    ("Logits", "dim"): BY_SHAPE,
    ("LogProbs", "dim"): BY_SHAPE,
    ("Probs", "dim"): BY_SHAPE,
    ("Counts", "dim"): BY_SHAPE,
    ("diagnose", "dim"): BY_SHAPE,
    ("KLRegularizer", "group_dims"): BY_SHAPE,
    ("KLRegularizer", "coefficient"): NO_SCALAR,
    ("KLRegularizer", "capacity"): NO_SCALAR,
    ("kl_surrogate", "clip_log_ratio"): NO_SCALAR,
    ("HiddenStates", "check"): "None, True or False; True opens a model",
    ("distillation_loss", "normalizer"): NO_SCALAR,
    ("linear_distillation_loss", "normalizer"): NO_SCALAR,
    **{
        (call, name): NO_SCALAR
        for call in ("linear_distillation_loss", "LinearDistillationLoss")
        for name in ("softcap", "logit_scale")
    },
    **{
        (call, name): LATE
        for call in ("KLRegularizer", "kl_per_dimension")
        for name in ("method", "draws", "generator")
    },
    **{
        (call, "method"): "the names of registered estimators, which may grow"
        for call in ("kl_divergence", "divergence", "estimate", "kl_estimate")
    },
    ("kl_divergence", "representation"): "a word that may not contradict log_prob",
    ("KLDivergence", "representation"): "a word that may not contradict log_prob",
    **{
        (call, name): "a deprecated flag of torch, of which torch takes the truth value"
        for call in ("kl_div", "KLDivLoss")
        for name in ("size_average", "reduce")
    },
    ("KLDivLoss", "log_target"): "read at each call, where kl_div checks it",
    ("FDivergence", "f_at_zero"): "compared with the measured limit of f",
    ("FDivergence", "slope_at_infinity"): "compared with the measured limit of f",
    ("sampled_tail_divergence", "temperature"): "must be 1",
    ("is_model", "hub"): "an option of the command line, which makes it a flag",
    ("RowSource", "representation"): "checked by open_rows, which makes the source",
    ("TopKSource", "classes"): "the number in a file, checked by its reader",
    **{("PartialRows", name): "of rows that readers make" for name in ("classes", "start", "is_ranked")},
}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions, constructors and declared methods on the pages of the reference, by the name of the call."""
    calls = {call for call, _, _ in DECLARED}
    for page in sorted(API.glob("*.md")):
        for path in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            named = pydoc.locate(path)
            name = path.rpartition(".")[2]
            if inspect.isfunction(named):
                yield name, named
            elif inspect.isclass(named) and not is_record(named):
                yield name, named.__init__
                for member, value in vars(named).items():
                    function = getattr(value, "__func__", value)
                    if inspect.isfunction(function) and f"{name}.{member}" in calls:
                        yield f"{name}.{member}", function


def is_record(kind: type) -> bool:
    """Whether kullback alone makes the objects of a class: results and other records, which check nothing."""
    return issubclass(kind, tuple) or (
        dataclasses.is_dataclass(kind)
        and "__post_init__" not in vars(kind)
        and not issubclass(kind, Divergence)
    )


def is_scalar(name: str, annotation: object) -> bool:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    parts = [part.strip() for part in text.split("|")]
    return "Callable" not in text and (
        any(SCALAR.fullmatch(part) for part in parts) or (name in WORDS and "str" in parts)
    )


def scalars() -> dict[tuple[str, str], str]:
    """Return the numbers, words and flags of all public functions, with the module of the function."""
    return {
        (call, name): function.__module__
        for call, function in public_functions()
        if inspect.isfunction(function)
        for name, parameter in inspect.signature(function).parameters.items()
        if is_scalar(name, parameter.annotation)
    }


def test_every_number_word_and_flag_of_a_public_function_is_declared() -> None:
    declared = {(call, name) for call, name, _ in DECLARED}
    ranges = {(kind.__name__, name) for kind in all_kinds(Divergence) for name in kind.ranges}
    everything = scalars()
    assert len(everything) > 250
    missing = {
        place: module
        for place, module in everything.items()
        if place not in declared | ranges | UNDECLARED.keys()
        and not module.startswith("kullback.integrations.")
    }
    assert missing == {}, "declare them in `Arguments`, see kullback/common/constraints.py"
    assert UNDECLARED.keys() - everything.keys() == set(), "listed here, but gone"
    assert UNDECLARED.keys() & declared == set(), "listed here, but declared"


def all_kinds(kind: type[Divergence]) -> Iterator[type[Divergence]]:
    yield kind
    for below in kind.__subclasses__():
        yield from all_kinds(below)


def test_what_is_not_declared_is_found() -> None:
    from torch import Tensor

    assert is_scalar("x", "float | None")
    assert is_scalar("x", "typing.Optional[typing.Literal['a', 'b']]")
    assert is_scalar("reduction", "str")
    assert is_scalar("x", bool)
    assert not any(is_scalar("x", each) for each in ("str", "Tensor", Tensor, "Mapping[str, int]"))
