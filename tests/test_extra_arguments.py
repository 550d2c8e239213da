"""Calls with arguments that a function does not have name the call that is right, and that call works."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributions import Normal

import kullback
from kullback import KL, Counts, FDivergence, Logits, LogProbs, Probs, Samples
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError
from kullback.functional import distillation_loss, linear_distillation_loss

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
    assert fit(Normal(0.0, 1.0), to=Normal(1.0, 1.0)).distribution.loc == 1


def test_a_representation_has_no_temperature_and_no_mask() -> None:
    wrap: Any = Logits
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Logits(x / temperature)")):
        wrap(S, temperature=2.0)
    with pytest.raises(ArgumentTypeError, match=re.escape("Logits(x[mask]) to leave out rows")):
        wrap(S, mask=ROWS)
    with pytest.raises(ArgumentTypeError, match=re.escape("Write: Counts(x, prior=0.5)")):
        wrap(S, prior=0.5)
    count: Any = Counts
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
    x, y = (torch.randn(30, 500, generator=GENERATOR) for _ in range(2))
    assert any("pass Samples(x, dim=0)" in note for note in kl_estimate(Samples(x), Samples(y)).notes)


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
