"""The names of the divergences: what each gives, the way back, errors with their remedies, and where they are taken."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    Jeffreys,
    JensenShannon,
    Logits,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
)
from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.functional import (
    SampledTail,
    TopK,
    distillation_loss,
    linear_distillation_loss,
    sampled_tail_divergence,
    top_k_divergence,
    top_k_divergence_bounds,
)
from kullback.generators import FinitePair, parse
from kullback.nn import DistillationLoss, LinearDistillationLoss
from tests.oracles import truth
from tests.refusals import refused


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kl", KL()),
        ("forward_kl", KL()),
        ("reverse_kl", ReverseKL()),
        (" Reverse-KL ", ReverseKL()),
        ("jeffreys", Jeffreys()),
        ("js", JensenShannon()),
        ("jsd", JensenShannon()),
        ("js:0.5", JensenShannon(0.5)),
        ("Jensen-Shannon:0.1", JensenShannon(0.1)),
        ("js:scaled", JensenShannon(scaled=True)),
        ("js:0:scaled", JensenShannon(0.0, scaled=True)),
        ("js : 0.25 : scaled", JensenShannon(0.25, scaled=True)),
        ("skew:0.1", SkewKL(0.1)),
        ("skew_kl:1e-3", SkewKL(1e-3)),
        ("tv", TotalVariation()),
        ("total_variation", TotalVariation()),
        ("hellinger", SquaredHellinger()),
        ("squared_hellinger", SquaredHellinger()),
        ("chi2", ChiSquared()),
        ("chi_squared", ChiSquared()),
        ("alpha:0.3", Alpha(0.3)),
        ("alpha:-2", Alpha(-2.0)),
        ("renyi:2", Renyi(2.0)),
        ("renyi:inf", Renyi(math.inf)),
    ],
)
def test_names(name: str, kind: Divergence) -> None:
    assert parse(name) == kind


@pytest.mark.parametrize("kind", truth.KINDS, ids=repr)
def test_the_name_of_a_kind_gives_it_back(kind: Divergence) -> None:
    assert parse(kind.name) == kind


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1), st.floats(0), st.booleans())
def test_names_keep_every_digit(order: float, share: float, renyi: float, scaled: bool) -> None:
    for kind in (Alpha(order), SkewKL(share), JensenShannon(share, scaled=scaled), Renyi(renyi)):
        assert parse(kind.name) == kind


def test_names_are_short() -> None:
    kinds = (JensenShannon(), JensenShannon(scaled=True), Renyi(2), Renyi(math.inf), SkewKL(1), ReverseKL())
    names = [kind.name for kind in kinds]
    assert names == ["js:0.5", "js:0.5:scaled", "renyi:2", "renyi:inf", "skew:1", "reverse_kl"]


def test_a_divergence_of_ones_own_has_its_repr_for_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kullback.generators.divergence.NAMED", {})

    class Named(Divergence):
        short_name = "named"

        def terms(self, pair: FinitePair) -> Tensor:
            return (pair.p - pair.q) ** 2 / pair.q

    @dataclass(frozen=True)
    class Mine(Named):  # which does not inherit the name
        pass

    assert Named().name == "named"
    assert Mine().name == repr(Mine())


@pytest.mark.parametrize(
    ("name", "wanted", "instead"),
    [
        ("jss", "one of 'kl', 'reverse_kl', 'jeffreys', 'js:BETA' or", "js:0.5"),
        ("", "one of 'kl'", "kl"),
        ("wasserstein", "'renyi:ALPHA' with ALPHA from 0 to inf", "kl"),
        ("reversekl", "one of", "reverse_kl"),
        ("kl:1", "'kl', which has no parameter", "kl"),
        ("tv:scaled", "'tv', which has no parameter", "tv"),
        ("js:2", "'js:BETA' or 'js:BETA:scaled' with BETA from 0 to 1", "js:0.5"),
        ("js:0.5:0.5", "'js:BETA'", "js:0.5"),
        ("js:half", "'js:BETA'", "js:0.5"),
        ("js:", "'js:BETA'", "js:0.5"),
        ("js:nan", "'js:BETA'", "js:0.5"),
        ("skew", "'skew:ALPHA'", "skew:0.1"),
        ("skew:0.1:scaled", "'skew:ALPHA'", "skew:0.1"),
        ("alpha", "'alpha:ALPHA'", "alpha:0.5"),
        ("alpha:inf", "with a finite number", "alpha:0.5"),
        ("renyi:-1", "'renyi:ALPHA'", "renyi:2"),
        ("kl\x1b[2J", "one of", "kl"),
    ],
)
def test_errors_list_the_names_and_a_remedy_that_works(name: str, wanted: str, instead: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        parse(name)
    message = str(caught.value)
    assert wanted in message
    assert message.endswith(f"Write: name='{instead}'")
    assert "\x1b" not in message
    parse(instead)


@pytest.mark.parametrize("kind", [None, 0.5, KL, b"kl", ["kl"]], ids=repr)
def test_what_is_no_name(kind: object) -> None:
    with refused(ArgumentTypeError, call="parse", argument="name"):
        parse(kind)  # type: ignore[arg-type]
    with pytest.raises(
        ArgumentTypeError, match=re.escape("divergence(kind=...): wanted a divergence or the name")
    ):
        divergence(Logits([0.0, 1.0]), Logits([1.0, 0.0]), kind)  # type: ignore[arg-type]


S, T = torch.tensor([[0.3, -1.0, 2.0], [0.0, 1.0, 0.5]]), torch.tensor([[1.0, 0.5, 0.0], [2.0, -1.0, 0.1]])
TOP = TopK(torch.tensor([[0, 1], [2, 0]]), torch.tensor([[0.5, 0.3], [0.6, 0.1]]).log())
DRAWN = SampledTail.draw(T, k=1, draws=2, generator=torch.Generator().manual_seed(0))
HEAD = torch.eye(3)
CALLS = {
    "divergence": lambda kind: divergence(Logits(T), Logits(S), kind),
    "distillation_loss": lambda kind: distillation_loss(student=S, teacher=T, kind=kind),
    "linear_distillation_loss": lambda kind: linear_distillation_loss(
        student=S, student_weight=HEAD, teacher=T, teacher_weight=HEAD, kind=kind
    ),
    "top_k_divergence": lambda kind: top_k_divergence(kind, TOP, S),
    "sampled_tail_divergence": lambda kind: sampled_tail_divergence(kind, DRAWN, S),
    "top_k_divergence_bounds": lambda kind: top_k_divergence_bounds(TOP, TOP, kind).upper,
    "DistillationLoss": lambda kind: DistillationLoss(kind=kind)(student=S, teacher=T),
    "LinearDistillationLoss": lambda kind: LinearDistillationLoss(kind=kind)(
        student=S, student_weight=HEAD, teacher=T, teacher_weight=HEAD
    ),
}
EACH_CALL = pytest.mark.parametrize("call", CALLS)


@EACH_CALL
def test_every_call_takes_a_name(call: str) -> None:
    assert torch.equal(CALLS[call]("js:0.3"), CALLS[call](JensenShannon(0.3)))
    assert not torch.equal(CALLS[call]("js:0.3"), CALLS[call]("js:0.6"))


@EACH_CALL
def test_every_call_says_which_names_there_are(call: str) -> None:
    with pytest.raises(ArgumentValueError, match=re.escape(f"{call}(kind=...): wanted one of 'kl', 'rev")):
        CALLS[call]("kld")


@pytest.mark.parametrize("call", [call for call in CALLS if call != "divergence"])
def test_a_name_of_what_is_always_zero_is_refused(call: str) -> None:
    with refused(ArgumentValueError, instead=r"^kind=SkewKL\(alpha=0.9\)"):
        CALLS[call]("skew:1")


@pytest.mark.heavy
def test_names_compile() -> None:
    def loss(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        return distillation_loss(student=student, teacher=teacher, kind="skew:0.2")

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert torch.equal(compiled(S, T), loss(S, T))
