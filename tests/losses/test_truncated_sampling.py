"""Truncated sampling: the sets of engines, expectations by enumeration, gradients through the kept mass, errors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from kullback import errors
from kullback.functional import (
    Support,
    kl_from_log_probs,
    kl_surrogate,
    log_importance_ratio,
    sampling_log_probs,
)
from kullback.metrics import PolicyKL

FILTERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 4},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 6, "top_p": 0.7, "min_p": 0.15},
    "top-k beyond the classes": {"top_k": 50},
    "greedy": {"top_k": 1},
    "top-p of 1": {"top_p": 1.0},
}
by_filter = pytest.mark.parametrize("name", FILTERS)


def rows(seed: int, number: int = 40, classes: int = 12) -> Tensor:
    logits = 2 * torch.randn(number, classes, generator=torch.Generator().manual_seed(seed))
    logits[::4] = logits[::4].round()  # ties
    logits[1::4, 3] = -math.inf
    return logits


def kept_by(logits: Tensor, engine: Any, **filters: Any) -> Tensor:
    return sampling_log_probs(logits, logits.argmax(-1), engine=engine, **filters).kept


@by_filter
def test_the_sets_are_those_of_transformers(name: str) -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    filters, logits = FILTERS[name], rows(0)
    scores = processors.TemperatureLogitsWarper(filters.get("temperature", 1.0))(None, logits)
    for key, warper in (("top_k", "TopK"), ("top_p", "TopP"), ("min_p", "MinP")):
        if key in filters:
            scores = getattr(processors, f"{warper}LogitsWarper")(filters[key])(None, scores)
    kept = kept_by(logits, "transformers", **filters)
    assert torch.equal(kept & logits.isfinite(), scores.isfinite())
    sampled = sampling_log_probs(logits, logits.argmax(-1), engine="transformers", **filters)
    expected = scores.log_softmax(-1).gather(-1, logits.argmax(-1, keepdim=True))[:, 0]
    torch.testing.assert_close(sampled.log_probs - sampled.log_mass, expected)


def written_out(logits: Tensor, engine: str, **filters: Any) -> set[int]:
    """One row's kept tokens, by loops over Python numbers; the row has no ties."""
    scaled = [x / filters.get("temperature", 1.0) for x in logits.double().tolist()]
    weights = {i: math.exp(x - max(scaled)) for i, x in enumerate(scaled)}
    k, p, least = filters.get("top_k", 99), filters.get("top_p", 1.0), filters.get("min_p", 0.0)

    def top_k(left: dict[int, float]) -> dict[int, float]:
        return dict(sorted(left.items(), key=lambda item: -item[1])[:k])

    def top_p(left: dict[int, float]) -> dict[int, float]:
        total, mass, taken = sum(left.values()), 0.0, {}
        for i, weight in sorted(left.items(), key=lambda item: -item[1]):
            if mass / total >= p:
                break
            taken[i] = weight
            mass += weight
        return taken

    def min_p(left: dict[int, float]) -> dict[int, float]:
        return {i: weight for i, weight in left.items() if weight >= least * max(left.values())}

    if engine == "sglang":
        return set(top_k(weights)) & set(top_p(weights)) & set(min_p(weights))
    for step in (min_p, top_k, top_p) if engine == "vllm" else (top_k, top_p, min_p):
        weights = step(weights)
    return set(weights)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
@by_filter
def test_the_sets_are_those_written_out(name: str, engine: str) -> None:
    filters = FILTERS[name]
    logits = 2 * torch.randn(60, 12, generator=torch.Generator().manual_seed(1))
    for row, kept in zip(logits, kept_by(logits, engine, **filters), strict=True):
        assert set(kept.nonzero()[:, 0].tolist()) == written_out(row, engine, **filters)


def test_the_engines_differ_where_min_p_comes_before_top_p() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.16, 0.14]]).log()
    filters = {"top_p": 0.8, "min_p": 0.38}
    assert [int(kept_by(logits, engine, **filters).sum()) for engine in ("vllm", "transformers")] == [2, 3]


@pytest.mark.parametrize("tied", [1, 2, 3])
def test_sglang_keeps_k_of_ties_and_the_others_keep_all(tied: int) -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    counts = {engine: int(kept_by(logits, engine, top_k=1 + tied).sum()) for engine in ("vllm", "sglang")}
    assert counts == {"vllm": 4, "sglang": 1 + tied}


# A policy, a reference and an engine over few classes: all actions of the engine are enumerated.


def policies(classes: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    p, q, engine = torch.randn(3, classes, generator=generator, dtype=torch.float64)
    return p.requires_grad_(), q.requires_grad_(), engine


def of_all(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the kept actions and their log mass, one for each kept action."""
    actions = kept.nonzero()[:, 0]
    sampled = sampling_log_probs(logits.expand(len(actions), -1), actions, kept=kept.expand(len(actions), -1))
    return sampled.log_probs, sampled.log_mass


def truncated_kl(p: Tensor, q: Tensor, kept: Tensor) -> Tensor:
    log_p, log_q = p[kept].log_softmax(-1), q[kept].log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_with_the_support_k1_and_k3_are_unbiased_and_without_it_k3_is_not(estimator: Any) -> None:
    p, _, engine = (x.detach() for x in policies())
    kept = kept_by(engine[None], "vllm", top_p=0.7)[0]
    assert 1 < int(kept.sum()) < len(engine)
    (log_engine, mass_engine), (log_p, mass_p) = of_all(engine, kept), of_all(p, kept)
    chance = engine[kept].softmax(-1)
    values = kl_from_log_probs(
        log_engine, log_p, estimator=estimator, support=Support(p=mass_engine, q=mass_p)
    )
    torch.testing.assert_close((chance * values).sum(), truncated_kl(engine, p, kept))
    processed = kl_from_log_probs(
        chance.log(), log_p, estimator=estimator, support=Support(q=mass_p)
    )  # as an engine that returns log-probabilities within the kept tokens
    torch.testing.assert_close(processed, values)
    naive = kl_from_log_probs(log_engine, log_p, estimator=estimator)
    assert abs(float((chance * naive).sum() - (chance * values).sum())) > 0.02


@pytest.mark.parametrize("value", ["k1", "k3"])
def test_the_surrogate_has_the_gradient_of_the_truncated_divergence(value: Any) -> None:
    p, q, engine = policies()
    kept = kept_by(engine[None], "vllm", top_k=4)[0]
    (log_engine, mass_engine), (log_p, mass_p), (log_q, mass_q) = (of_all(x, kept) for x in (engine, p, q))
    ratio = log_importance_ratio(log_p.detach(), log_engine, support=Support(p=mass_p, q=mass_engine))
    torch.testing.assert_close(
        ratio.detach(), (p[kept].log_softmax(-1) - engine[kept].log_softmax(-1)).detach()
    )
    values = kl_surrogate(
        log_p,
        log_q,
        direction="forward",
        value=value,
        log_ratio=ratio,
        support=Support(p=mass_p, q=mass_q),
        reduction="none",
    )
    estimate, exact = (engine[kept].softmax(-1) * values).sum(), truncated_kl(p, q, kept)
    torch.testing.assert_close(estimate, exact)
    for got, wanted in zip(
        torch.autograd.grad(estimate, (p, q)), torch.autograd.grad(exact, (p, q)), strict=True
    ):
        torch.testing.assert_close(got, wanted)


def test_a_bigram_policy_with_truncation_is_measured_over_all_sequences() -> None:
    """All sequences of three tokens of a bigram engine, with top-k, weighted by their probability."""
    generator = torch.Generator().manual_seed(5)
    engine, trainer = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
    kept = kept_by(engine, "vllm", top_k=2)
    sequences = torch.cartesian_prod(torch.arange(4), torch.arange(4), torch.arange(4))
    before = torch.cat([torch.zeros(len(sequences), 1, dtype=torch.long), sequences[:, :-1]], -1)
    possible = kept[before].gather(-1, sequences[..., None])[..., 0].all(-1)
    sequences, before = sequences[possible], before[possible]
    of_engine, of_trainer = (
        sampling_log_probs(x[before], sequences, kept=kept[before]) for x in (engine, trainer)
    )
    chance = (of_engine.log_probs - of_engine.log_mass).sum(-1).exp()
    torch.testing.assert_close(chance.sum(), torch.ones((), dtype=torch.float64))
    k1 = kl_from_log_probs(
        of_engine.log_probs, of_trainer.log_probs, support=Support(of_engine.log_mass, of_trainer.log_mass)
    )
    per_prefix = torch.stack([truncated_kl(engine[state], trainer[state], kept[state]) for state in range(4)])
    expected = (chance[:, None] * per_prefix[before]).sum()
    torch.testing.assert_close((chance[:, None] * k1).sum(), expected)


def test_the_metric_takes_the_support_and_reports_both_masses() -> None:
    p, _, engine = (x.detach() for x in policies())
    kept = kept_by(engine[None], "vllm", top_k=3)[0]
    (log_engine, mass_engine), (log_p, mass_p) = of_all(engine, kept), of_all(p, kept)
    times = (engine[kept].softmax(-1) * 4000).round().long()
    metric, unsupported = PolicyKL(), PolicyKL()
    columns = [x.repeat_interleave(times)[:, None] for x in (log_engine, log_p, mass_engine, mass_p)]
    metric.update(*columns[:2], support=Support(*columns[2:]))
    unsupported.update(*columns[:2])
    results = metric.compute()
    assert float(results["k1"]) == pytest.approx(float(truncated_kl(engine, p, kept)), rel=2e-3)
    assert float(results["ratio"]) == pytest.approx(1, abs=2e-3)
    assert float(results["log_mass_p"]) == pytest.approx(float(mass_engine[0]))
    assert float(results["log_mass_q"]) == pytest.approx(float(mass_p[0]))
    with pytest.warns(Warning, match="support="):
        without = unsupported.compute()
    assert "log_mass_p" not in without
    assert abs(float(without["ratio"]) - 1) > 0.1


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.2, 5), st.integers(1, 12), st.floats(0.05, 1), st.floats(0, 1))
def test_a_kept_mass_is_between_the_largest_probability_and_one(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(5, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for engine in ("vllm", "sglang", "transformers"):
        sampled = sampling_log_probs(
            logits,
            logits.argmax(-1),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            engine=engine,  # type: ignore[arg-type]
        )
        assert bool((sampled.log_mass >= sampled.log_probs - 1e-12).all())
        assert bool((sampled.log_mass <= 1e-12).all())


def test_ids_and_masks_of_the_kept_tokens_are_the_same() -> None:
    logits, tokens = rows(2), rows(2).argmax(-1)
    kept = kept_by(logits, "vllm", top_p=0.6)
    ids = [row.nonzero()[:, 0] for row in kept]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    for one, other in zip(
        sampling_log_probs(logits, tokens, kept=kept),
        sampling_log_probs(logits, tokens, kept=padded),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_all_tokens_have_the_mass_one_exactly() -> None:
    logits = rows(4)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        sampled = sampling_log_probs(logits.to(dtype), logits.argmax(-1))
        assert bool((sampled.log_mass == 0).all())
        assert sampled.log_mass.dtype == torch.promote_types(dtype, torch.float32)


def test_positions_that_do_not_count_may_hold_anything_and_get_no_gradient() -> None:
    logits = rows(6, 3)
    logits[1] = math.nan
    logits.requires_grad_()
    tokens = torch.tensor([0, -100, 1])
    mask = torch.tensor([True, False, True])
    sampled = sampling_log_probs(logits, tokens, top_k=3, mask=mask)
    assert sampled.log_probs[1] == sampled.log_mass[1] == 0
    (gradient,) = torch.autograd.grad(sampled.log_probs.sum() + sampled.log_mass.sum(), logits)
    assert bool((gradient[1] == 0).all())
    assert bool(gradient[0].isfinite().all())


def test_a_set_without_mass_has_the_gradient_zero() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]], requires_grad=True)
    kept = torch.tensor([[False, True, False]])
    sampled = sampling_log_probs(logits, torch.tensor([1]), kept=kept)
    assert sampled.log_mass.tolist() == [-math.inf]
    (gradient,) = torch.autograd.grad(sampled.log_mass.sum(), logits)
    assert bool((gradient == 0).all())


def test_no_rows_give_no_values() -> None:
    sampled = sampling_log_probs(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), top_p=0.5, top_k=2)
    assert [tuple(x.shape) for x in sampled] == [(0,), (0,), (0, 5)]


# Shifted log-probabilities


def sides(seed: int, tokens: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    log_p = -torch.rand(4, tokens, generator=generator).exp()
    return log_p, log_p + 0.01 * torch.randn(4, tokens, generator=generator)


@pytest.mark.parametrize("late", ["log_p", "log_q"])
def test_log_probs_of_the_tokens_before_are_refused_and_the_remedy_works(late: str) -> None:
    log_p, log_q = sides(0)
    arguments = {"log_p": log_p, "log_q": log_q}
    arguments[late] = arguments[late].roll(1, -1)
    metric = PolicyKL()
    with pytest.raises(errors.ArgumentValueError, match=rf"{late}\[\.\.\., 1:\]") as refused:
        metric.update(**arguments)
    assert refused.value.argument == late
    other = "log_q" if late == "log_p" else "log_p"
    metric.update(**{late: arguments[late][..., 1:], other: arguments[other][..., :-1]})
    assert float(metric.compute()["k3"]) < 1e-3


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0, 3))
def test_sides_of_the_same_tokens_are_never_refused(seed: int, size: float) -> None:
    log_p, _ = sides(seed)
    noise = size * torch.randn(log_p.shape, generator=torch.Generator().manual_seed(seed + 1))
    PolicyKL().update(log_p, log_p + noise)
    PolicyKL().update(torch.full_like(log_p, -1.0), torch.full_like(log_p, -2.0))


# Errors


def refused(**changes: Any) -> errors.KullbackError:
    arguments: dict[str, Any] = {"logits": rows(0, 4), "tokens": torch.tensor([0, 1, 2, 4])} | changes
    with pytest.raises(errors.KullbackError) as error:
        sampling_log_probs(**arguments)
    return error.value


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"kept": torch.ones(4, 12, dtype=torch.bool), "top_k": 3}, "top_k"),
        ({"kept": torch.ones(4, 11, dtype=torch.bool)}, "kept"),
        ({"kept": torch.full((4, 2), 12)}, "kept"),
        ({"kept": torch.zeros(4, 12)}, "kept"),
        ({"kept": torch.tensor([[0], [1], [2], [3]])}, "kept"),
        ({"tokens": torch.tensor([0, 1, 2, 12])}, "tokens"),
        ({"tokens": torch.tensor([0, 1, 2])}, "tokens"),
        ({"tokens": torch.tensor([0.0, 1, 2, 3])}, "tokens"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, "mask"),
        ({"logits": torch.ones(4, 12, dtype=torch.long)}, "logits"),
        ({"temperature": 0}, "temperature"),
        ({"engine": "tgi"}, "engine"),
    ],
)
def test_a_refusal_names_the_argument(changes: dict[str, Any], argument: str) -> None:
    assert refused(**changes).argument == argument


def test_the_remedies_of_refusals_work() -> None:
    logits, tokens = rows(0, 4), torch.tensor([0, 1, 2, -1])
    assert "mask=tokens >= 0" in str(refused(tokens=tokens))
    assert sampling_log_probs(logits, tokens, mask=tokens >= 0).log_probs[-1] == 0
    kept = torch.tensor([[0], [1], [2], [3]])
    assert "mask=loss_mask.bool()" in str(refused(kept=kept))
    sampling_log_probs(logits, torch.tensor([0, 1, 2, 4]), kept=kept, mask=torch.tensor([1, 1, 1, 0]).bool())


def test_a_mass_that_contradicts_a_probability_is_refused() -> None:
    log_p, mass = torch.tensor([0.5, 0.9]).log(), torch.tensor([0.6, 0.5]).log()
    for call in (
        lambda **more: kl_from_log_probs(log_p, log_p, **more),
        lambda **more: kl_surrogate(log_p, log_p, direction="forward", **more),
        lambda **more: log_importance_ratio(log_p, log_p, **more),
    ):
        for name in ("p", "q"):
            with pytest.raises(errors.ArgumentValueError, match="leave it out") as error:
                call(support=Support(**{name: mass}))
            assert error.value.argument == f"support.{name}"
        call(support=Support(p=mass), mask=torch.tensor([True, False]))
        with pytest.raises(errors.ArgumentTypeError, match="Support"):
            call(support=mass)
        with pytest.raises(errors.ArgumentValueError, match="same positions"):
            call(support=Support(p=mass[:1]))
    with pytest.raises(errors.ArgumentValueError, match="at least one side"):
        Support()
    with pytest.raises(errors.ArgumentTypeError, match="floating-point"):
        Support(p=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", [1e4, -1e4, 3e5])
def test_logits_far_from_0_keep_their_digits(offset: float) -> None:
    logits = (rows(5) * 4).round() / 4 + offset  # exact in float32
    sampled = sampling_log_probs(logits, logits.argmin(-1), top_k=5, temperature=0.5)
    exact = sampling_log_probs(logits.double() - offset, logits.argmin(-1), top_k=5, temperature=0.5)
    assert torch.equal(sampled.kept, exact.kept)
    for mine, true in zip(sampled[:2], exact[:2], strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script_method`:DeprecationWarning"
)  # inside of torch's compiler
def test_values_that_cannot_be_read_are_not_checked() -> None:
    logits, tokens = rows(6).reshape(4, 10, 12), torch.zeros(4, 10, dtype=torch.long)

    def ratio(logits: Tensor, tokens: Tensor) -> Tensor:
        sampled = sampling_log_probs(logits, tokens, kept=tokens.unsqueeze(-1))
        return kl_from_log_probs(
            sampled.log_probs, sampled.log_probs - 1, support=Support(p=sampled.log_mass), reduction="none"
        )

    want = ratio(logits, tokens)
    assert torch.equal(torch.func.vmap(ratio)(logits, tokens), want)
    assert torch.equal(torch.compile(ratio, backend="eager", fullgraph=True)(logits, tokens), want)
