"""An error that a function raises in the name of another has the parts of its message, with the names of the other."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
import torch
from torch.distributions import (
    Categorical,
    Independent,
    MixtureSameFamily,
    Normal,
    Poisson,
    TransformedDistribution,
)
from torch.distributions.transforms import ExpTransform

import kullback
from kullback import (
    Logits,
    ReverseKL,
    Samples,
    compare_tables,
    divergence,
    errors,
    estimate,
    fit,
    kl_divergence,
    kl_estimate,
    register_kl,
)
from kullback.cli.expressions import parse_distribution
from kullback.cli.settings import in_options
from kullback.errors import (
    ArgumentValueError,
    ConvergenceError,
    FileError,
    KullbackError,
    Name,
    NoRuleError,
    explain,
    invalid_value,
)
from kullback.metrics import KLDivergence, kl_divergence as torchmetrics_kl_divergence
from kullback.nn import KLRegularizer, kl_per_dimension
from kullback.parallel import workers
from kullback.tables import Profile
from kullback.tables.engines.engine import TableCounter
from kullback.tables.engines.parts import _packed, merged
from tests.message_readers import plain_raises, readers_in
from tests.refusals import parts, refused

PACKAGE = Path(kullback.__file__).parent


class Short(Normal):
    """A family whose divergence never reaches its tolerance."""


@register_kl(Short, Short)
def _never(p: Short, q: Short) -> torch.Tensor:
    message = explain(
        "kl_divergence",
        "p, q",
        wanted="a relative error of 1e-6",
        got="1e-3",
        instead="a larger rtol or atol",
    )
    raise ConvergenceError(message, torch.tensor(0.5))


class Doubled(Normal):
    """A density of mass 2."""

    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        return super().log_prob(value) + math.log(2)


def installed(p: Any, q: Any) -> torch.Tensor:
    with kullback.install():
        return torch.distributions.kl_divergence(p, q)


NORMAL, UNNORMALIZED = Normal(0.0, 1.0), Doubled(0.0, 2.0)
SHORT = Short(torch.zeros(()), 1.0), Short(torch.ones(()), 1.0)
VECTOR = Independent(Normal(torch.zeros(3), 1.0), 1)
MIXTURE = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Normal(torch.zeros(2, 3), 1.0), 1))
LOGARITHM = TransformedDistribution(NORMAL, [ExpTransform().inv], validate_args=False)
ROWS, OTHER_ROWS = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
POINTS, OTHER_POINTS = torch.randn(2, 40, 2, generator=torch.Generator().manual_seed(0))
DRAWS, SHARED_DRAWS = Samples(POINTS), Samples(torch.cat([OTHER_POINTS, POINTS[:3]]))
BATCHES = Normal(torch.zeros(3), 1.0), Normal(torch.zeros(2), 1.0)
CLASSES = Categorical(torch.ones(3)), Categorical(torch.ones(2))
KINDS = NORMAL, Poisson(1.0)
REPRESENTATIONS = (
    "representation='logits' for scores, 'log-probs' for their log_softmax, 'probs' for probabilities that sum to 1, "
    "'counts' for weights that are to be normalized"
)
BROADCAST = "posterior.expand(...) or parameters with a dimension of size 1"
IN_BOTH = "probs of 0, or logits of -inf, for the classes that one side lacks"
IN_DOMAIN = (
    "a base distribution, or a transform before this one, that stays in the domain; for the logarithm LogNormal or "
    "Gamma, not Normal"
)
NO_RULE = (
    "kl_bounds(posterior, prior) for guaranteed bounds, method='monte_carlo' for an estimate with a standard error, or "
    "@register_kl(Independent, MixtureSameFamily) above a function of p and q, if you know the formula"
)
DISCRETIZED = "a discretized or relaxed version of one of them"

# A call through a door that renames: its name, the argument, and the accepted value, the value and the remedy.
RENAMED: dict[str, tuple[Callable[[], object], tuple[str, str, str, str, str]]] = {
    "kl_per_dimension: batch shapes": (
        lambda: kl_per_dimension(*BATCHES),
        (
            "kl_per_dimension",
            "posterior, prior",
            "batch shapes that broadcast",
            "(3,) in posterior and (2,) in prior",
            BROADCAST,
        ),
    ),
    "kl_per_dimension: classes": (
        lambda: kl_per_dimension(*CLASSES),
        ("kl_per_dimension", "posterior, prior", "as many classes in prior as in posterior, 3", "2", IN_BOTH),
    ),
    "kl_per_dimension: tolerance": (
        lambda: kl_per_dimension(*SHORT),
        (
            "kl_per_dimension",
            "posterior, prior",
            "a relative error of 1e-6",
            "1e-3",
            "a larger rtol or atol",
        ),
    ),
    "kl_per_dimension: domain": (
        lambda: kl_per_dimension(NORMAL, LOGARITHM),
        (
            "kl_per_dimension",
            "prior",
            "a base distribution with all of its mass in (0, inf), the domain of ExpTransform().inv",
            "Normal with mass in (-inf, inf) there",
            IN_DOMAIN,
        ),
    ),
    "KLRegularizer: kinds": (
        lambda: KLRegularizer()(*KINDS),
        (
            "KLRegularizer",
            "posterior, prior",
            "two discrete distributions or two continuous ones",
            "a continuous one, Normal, and a discrete distribution, Poisson",
            DISCRETIZED,
        ),
    ),
    "KLRegularizer: no rule": (
        lambda: KLRegularizer()(VECTOR, MIXTURE),
        (
            "KLRegularizer",
            "posterior, prior",
            "a pair of distributions with a known divergence",
            "(Independent, MixtureSameFamily), which have no exact rule",
            NO_RULE,
        ),
    ),
    "kl_estimate: an estimator": (
        lambda: kl_estimate(DRAWS, SHARED_DRAWS, method="nearest_neighbors"),
        (
            "kl_estimate",
            "p, q",
            "different draws in p and in q, because distributions are continuous",
            "3 of the 40 draws of p that are also in q, at distance 0",
            "leave the common rows out of one side; Samples(x.long()) if the values are categories",
        ),
    ),
    "estimate: an estimator with the sides exchanged": (
        lambda: estimate(SHARED_DRAWS, DRAWS, ReverseKL(), method="nearest_neighbors"),
        (
            "estimate",
            "p, q",
            "different draws in p and in q, because distributions are continuous",
            "3 of the 40 draws of q that are also in p, at distance 0",
            "leave the common rows out of one side; Samples(x.long()) if the values are categories",
        ),
    ),
    "fit: classes": (
        lambda: fit(CLASSES[1], to=CLASSES[0]),
        ("fit", "q, to", "as many classes in q as in to, 3", "2", IN_BOTH),
    ),
    "fit: kinds": (
        lambda: fit(NORMAL, to=Poisson(3.0)),
        (
            "fit",
            "q, to",
            "two discrete distributions or two continuous ones",
            "a discrete distribution, Poisson, and a continuous one, Normal",
            DISCRETIZED,
        ),
    ),
    "metrics.kl_divergence: NaN": (
        lambda: torchmetrics_kl_divergence(ROWS, torch.tensor([[float("nan"), 1.0]])),
        (
            "kl_divergence",
            "q",
            "numbers",
            "NaN (1 of 2, the first at index (0, 0))",
            "find where the NaN arises",
        ),
    ),
    "metrics.kl_divergence: classes": (
        lambda: torchmetrics_kl_divergence(ROWS[:, :0], ROWS[:, :0]),
        (
            "kl_divergence",
            "p",
            "at least one class",
            "shape (1, 0) with no entry along dim=-1",
            REPRESENTATIONS,
        ),
    ),
    "KLDivergence: sums": (
        lambda: KLDivergence(representation="probs").update(2 * ROWS, OTHER_ROWS),
        (
            "KLDivergence.update",
            "p",
            "rows along dim=-1 that sum to 1 within 0.0001 (torch.float32)",
            "1 of 1 rows that do not; row (0,) sums to 2",
            REPRESENTATIONS,
        ),
    ),
    "KLDivergence: mask": (
        lambda: KLDivergence().update(-ROWS, OTHER_ROWS, mask=torch.tensor([True])),
        (
            "KLDivergence.update",
            "p",
            "counts, none negative",
            "negative values (2 of 2, the first at index (0, 0))",
            REPRESENTATIONS,
        ),
    ),
    "divergence: the sides exchanged": (
        lambda: divergence(*BATCHES, ReverseKL()),
        (
            "divergence",
            "p, q",
            "batch shapes that broadcast",
            "(2,) in q and (3,) in p",
            "q.expand(...) or parameters with a dimension of size 1",
        ),
    ),
    "divergence: one side": (
        lambda: divergence(UNNORMALIZED, NORMAL, ReverseKL()),
        (
            "divergence",
            "p",
            "a Doubled.log_prob whose density integrates to 1",
            "a mass of 2",
            "log_prob minus the logarithm of that mass, or a support with the ends of the density",
        ),
    ),
    "install": (
        lambda: installed(*SHORT),
        ("kl_divergence", "p, q", "a relative error of 1e-6", "1e-3", "a larger rtol or atol"),
    ),
}


def error_of(call: Callable[[], object]) -> KullbackError:
    with pytest.raises(KullbackError) as caught:
        call()
    return caught.value


def sent(error: KullbackError) -> KullbackError:
    """The error as another process receives it."""
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own


def test_every_renamed_error_has_its_parts_also_as_a_copy_or_from_another_process() -> None:
    for name, (call, expected) in RENAMED.items():
        error = error_of(call)
        for same in (error, copy.copy(error), copy.deepcopy(error), sent(error)):
            assert type(same) is type(error), name
            assert parts(same) == expected, name
            assert str(same) == str(error), name
        assert str(error).startswith(f"{expected[0]}("), name
        assert str(error).endswith(f": wanted {expected[2]}; got {expected[3]}. Write: {expected[4]}"), name


def test_installed_rules_refuse_as_callers_with_a_fallback_expect() -> None:
    error = error_of(lambda: installed(*SHORT))
    assert isinstance(error, NoRuleError)
    assert isinstance(error.__cause__, ConvergenceError)
    assert parts(error.__cause__) == parts(error)


def test_a_renamed_error_keeps_its_attributes() -> None:
    error = error_of(lambda: kl_per_dimension(*SHORT))
    assert isinstance(error, ConvergenceError)
    assert float(error.estimate) == 0.5
    error.add_note("of a test")
    assert sent(error.replace(call="f")).__notes__ == ["of a test"]


def test_a_part_is_replaced_wherever_it_is_named() -> None:
    error = error_of(lambda: kl_divergence(*BATCHES))
    renamed = error.replace({"p": "before", "q": "after"}, call="drift", wanted="equal shapes")
    assert str(renamed) == (
        "drift(before=..., after=...): wanted equal shapes; got (3,) in before and (2,) in after. Write: "
        "before.expand(...) or parameters with a dimension of size 1"
    )
    assert str(error).startswith("kl_divergence(p=..., q=...): wanted batch shapes")
    assert ArgumentValueError("its own text").replace(call="f").args == ("its own text",)


def test_a_command_names_its_options() -> None:
    with pytest.raises(ArgumentValueError) as caught, in_options({"bins": "--bins"}):
        compare_tables({"a": [1, 2]}, {"a": [1, 2]}, bins=0)
    error = caught.value
    assert (error.call, error.argument) == ("", "--bins")
    assert str(error) == f"--bins: wanted {error.wanted}; got {error.got}. Write: {error.instead}"
    assert (error.got, error.instead) == ("0", "--bins 20")
    with pytest.raises(ArgumentValueError) as left_out, in_options({"floor": "--floor", "one": "--one"}):
        raise invalid_value("f", "floor", wanted="few", got=(Name("one"), ", too"), instead={"one": False})
    assert str(left_out.value) == "--floor: wanted few; got --one, too; leave --one out"
    with refused(ArgumentValueError, call="Probs", argument="x", got="row .* sums to 2") as named:
        parse_distribution("Probs([1.0, 1.0])")
    assert str(named.value).startswith("'Probs([1.0, 1.0])': Probs(x=...): wanted rows along dim=-1 that sum")


def test_a_file_of_a_profile_is_named_with_the_reason(tmp_path: Path) -> None:
    texts = ("no JSON", '{"schema": "other"}')
    for text in texts:
        with pytest.raises(FileError) as of_text:
            Profile.from_json(text)
        path = tmp_path / "profile.json"
        path.write_text(text)
        with pytest.raises(FileError) as of_file:
            Profile.load(path)
        assert (of_text.value.argument, of_file.value.argument) == ("text", "path")
        assert parts(of_file.value)[2:] == parts(of_text.value)[2:]
        assert str(of_file.value) == f"path = {path}: {of_text.value}"


def test_another_worker_raises_the_same_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`gather` on rank 0, when rank 1 has failed."""
    error = error_of(lambda: Logits([float("nan")]))
    group = workers.Workers("compare_predictions")
    failures: list[Any] = []

    def failing() -> None:
        raise error

    def exchange(answers: list[Any], own: Any, group: object) -> None:
        failures.append(own[1])
        answers[:] = [(None, None), pickle.loads(pickle.dumps((None, failures[0])))]  # noqa: S301 - our own

    monkeypatch.setattr(workers.dist, "all_gather_object", exchange)
    group.size, group.rank = 2, 1
    with pytest.raises(ArgumentValueError):
        group.gather(failing)
    group.rank = 0
    with pytest.raises(ArgumentValueError) as caught:
        group.gather(lambda: None)
    assert parts(caught.value) == parts(error)
    assert str(caught.value) == str(error)


def test_a_partition_of_a_table_returns_the_same_parts() -> None:
    table = pa.table({"a": [1, 2] * 50})
    for call in (lambda: Logits([float("nan")]), lambda: compare_tables(table, table, ["b"])):
        error = error_of(call)
        with pytest.raises(ArgumentValueError) as caught:
            merged([_packed(Mock(side_effect=error))], TableCounter())
        assert (parts(caught.value), caught.value.remedy) == (parts(error), dict(error.remedy))


# Expressions that read messages of other libraries; kullback's own errors do not reach them.
OTHER_LIBRARIES = {
    "cli/calc.py": ["str(error).split"],  # of torch, joined to one line; so are the next ones
    "cli/commands.py": ["str(error).split"],
    "cli/expressions.py": ["str(error).split"],
    "io/arrays.py": ["str(error).split"],
    "models/http.py": ["str(error).split"],
    "models/huggingface_model.py": [
        "'alloc' in str(error)",
        "'memory' in str(error)",
        *["str(error).split"] * 2,
    ],
    "parallel/workers.py": ["str(error).split"],
    "tables/engines/file_table.py": ["str(error).split"],
    "diagnosis/values.py": ["str(error).splitlines"],  # of torch: its first line
    "io/vectors.py": ["'allow_pickle' not in str(error)"],  # of NumPy
    "tables/engines/spark_table.py": ["str(error).lower"],  # of Spark
    "common/files.py": ["reason = getattr(error, 'strerror', None) or str(error)"] * 2,  # of the system
    "io/source_files.py": [
        "got = str(error) or 'its end before that'",
        "reason = error.strerror or str(error)",
    ],
    "tables/table_profile.py": ["reason = getattr(error, 'strerror', None) or str(error)"],
}


def test_no_message_of_kullback_is_parsed() -> None:
    assert readers_in(PACKAGE) == OTHER_LIBRARIES


def test_every_error_is_made_of_parts() -> None:
    kinds = {name for name in errors.__all__ if name.endswith("Error")} | {"UnreachableError", "FitError"}
    # A fault of kullback's own registry, which no user can cause.
    own = {
        "pairs/registry.py": [
            "RegistrationError(f'there are two closed forms for {names_of(type_p, type_q)}')"
        ]
    }
    assert plain_raises(PACKAGE, kinds) == own


@pytest.mark.parametrize(
    "line",
    [
        "str(error).removeprefix('f')",
        "str(error)[3:]",
        "error.args[0].partition(':')",
        "line = str(error)",
        "line: str = error.args[0]",
        "x = 'p=' in str(error)",
        "re.sub('p', 'q', str(error))",
        "error.argument.split(', ')",
        "(error.instead or '').partition('(')",
        "f'{error}'.replace('p', 'q')",
        "x = '(x' in error.instead",
    ],
)
def test_code_that_parses_a_message_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.py").write_text(f"try:\n    f()\nexcept KullbackError as error:\n    {line}\n")
    assert list(readers_in(tmp_path)) == ["a.py"]
    (tmp_path / "a.py").write_text(
        "try:\n    f()\nexcept E as error:\n    raise G(str(error), *error.args)\n"
    )
    assert readers_in(tmp_path) == {}
