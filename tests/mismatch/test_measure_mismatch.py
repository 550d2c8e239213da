"""Values by enumeration, standard errors by repetition, causes, laws and errors of `policy_mismatch`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from kullback import errors
from kullback.functional import sampling_log_probs
from kullback.metrics import PolicyKL, PolicyMismatch
from kullback.mismatch import Mismatch, TokenLog, policy_mismatch
from kullback.mismatch.token_log import joined
from tests.mismatch.dumps import Run, tiny_run


def log_of(run: Run, *without: str) -> TokenLog:
    columns = {
        name: torch.tensor(x, dtype=torch.float64) for name, x in run.columns().items() if name not in without
    }
    return TokenLog(**columns)


MASSES = ("sampler_log_mass", "trainer_log_mass", "old_log_mass")


def enumerated(copies: int = 20_000) -> tuple[TokenLog, dict[str, float]]:
    """Every token of a truncated engine, as often as it is sampled, and the exact values of the causes."""
    generator = torch.Generator().manual_seed(2)
    engine, old, trainer = torch.randn(3, 8, generator=generator, dtype=torch.float64) / 4
    old, trainer = engine + 0.2 * old, engine + 0.2 * old + 0.3 * trainer
    kept = sampling_log_probs(engine, engine.argmax(), top_k=5).kept
    tokens = kept.nonzero()[:, 0]
    chance = engine[kept].softmax(-1)
    times = (chance * copies).round().long()
    rows = [
        sampling_log_probs(x.expand(len(tokens), -1), tokens, kept=kept.expand(len(tokens), -1))
        for x in (engine, trainer, old)
    ]
    columns = [x.repeat_interleave(times) for row in rows for x in (row.log_probs, row.log_mass)]
    count = len(columns[0])
    names = (
        "sampler_log_prob",
        "sampler_log_mass",
        "trainer_log_prob",
        "trainer_log_mass",
        "trainer_log_prob_old",
        "old_log_mass",
    )
    log = TokenLog(
        sequence=torch.arange(count),
        position=torch.zeros(count),
        **dict(zip(names, columns, strict=True)),  # type: ignore[arg-type]
    )
    chance = times.double() / times.sum()

    def k3(log_ratio: Tensor) -> float:
        return float((chance * (log_ratio.exp() - 1 - log_ratio)).sum())

    def within(x: Tensor) -> Tensor:
        return x[kept].log_softmax(-1)

    naive = trainer.log_softmax(-1)[kept] - engine.log_softmax(-1)[kept]
    return log, {
        "naive": k3(naive),
        "k3": k3(within(trainer) - within(engine)),
        "k1": -float((chance * (within(trainer) - within(engine))).sum()),
        "current": k3(within(old) - within(engine)),
    }


def test_values_and_causes_are_those_of_all_tokens() -> None:
    log, exact = enumerated()
    result = policy_mismatch(log)
    assert result.k1.value == pytest.approx(exact["k1"], rel=1e-9)
    assert result.k3.value == pytest.approx(exact["k3"], rel=1e-9)
    assert result.naive_k3.value == pytest.approx(exact["naive"], rel=1e-9)
    truncation, staleness, noise, rest = (part.value and part.value.value for part in result.parts)
    assert truncation == pytest.approx(exact["naive"] - exact["k3"], rel=1e-9)
    assert staleness == pytest.approx(exact["k3"] - exact["current"], rel=1e-9)
    assert noise is None
    assert rest == pytest.approx(exact["current"], rel=1e-9)
    assert result.mean_ratio.value == pytest.approx(1, abs=1e-4)


def parts(result: Mismatch) -> dict[str, float | None]:
    return {part.name: part.value and part.value.value for part in result.parts}


def test_the_separable_causes_add_up_to_what_is_logged() -> None:
    log = log_of(tiny_run())
    again = log.trainer_log_prob + 0.01 * torch.randn(len(log), generator=torch.Generator().manual_seed(3))
    for fields in (
        {},
        {"trainer_log_prob_again": again},
        {"old_log_mass": None},
        {"sampler_log_mass": None, "trainer_log_mass": None},
        {"trainer_log_prob_old": None, "old_log_mass": None},
    ):
        result = policy_mismatch(replace(log, **fields))  # type: ignore[arg-type]
        assert sum(filter(None, parts(result).values())) == pytest.approx(result.naive_k3.value, rel=1e-9)


def test_a_cause_that_is_not_separable_names_its_field() -> None:
    log = log_of(tiny_run(), *MASSES, "trainer_log_prob_old")
    missing = {part.name: part.missing for part in policy_mismatch(log).parts}
    assert missing == {
        "truncation": ("sampler_log_mass", "trainer_log_mass"),
        "staleness": ("trainer_log_prob_old",),
        "batch noise": ("trainer_log_prob_again",),
        "rest": (),
    }
    versions = torch.zeros(len(log), dtype=torch.long)
    one = policy_mismatch(replace(log, weight_version=versions))
    assert one.parts[1].missing == ("trainer_version",)
    without = policy_mismatch(log_of(tiny_run(), "old_log_mass"))
    assert without.parts[1].missing == ("old_log_mass",)
    # Each named field makes the cause separable.
    known = replace(
        log,
        sampler_log_mass=torch.zeros(len(log)),
        trainer_log_mass=torch.zeros(len(log)),
        weight_version=versions,
        trainer_version=versions,
        trainer_log_prob_again=log.trainer_log_prob,
    )
    assert all(part.value is not None for part in policy_mismatch(known).parts)


def test_versions_separate_staleness_as_the_difference_to_the_current_tokens() -> None:
    log = log_of(tiny_run(prompts=40), *MASSES, "trainer_log_prob_old")
    stale = torch.rand(len(log), generator=torch.Generator().manual_seed(1)) < 0.4
    log = replace(
        log,
        trainer_log_prob=torch.where(stale, log.trainer_log_prob - 0.3, log.sampler_log_prob + 0.01),
        weight_version=(~stale).long(),
        trainer_version=torch.ones(len(log), dtype=torch.long),
    )
    ratio = log.trainer_log_prob - log.sampler_log_prob
    k3 = ratio.exp() - 1 - ratio
    result = policy_mismatch(log, untruncated=True)
    assert parts(result)["staleness"] == pytest.approx(float(k3.mean() - k3[~stale].mean()), rel=1e-9)
    assert parts(result)["rest"] == pytest.approx(float(k3[~stale].mean()), rel=1e-9)
    none_is_current = policy_mismatch(replace(log, weight_version=torch.zeros(len(log))), untruncated=True)
    assert none_is_current.parts[1].missing == ("trainer_log_prob_old",)


@pytest.mark.sweep
def test_noise_is_the_mean_of_both_sides_noise() -> None:
    generator = torch.Generator().manual_seed(4)
    size, count = (0.02, 0.05), 40_000
    true = -torch.rand(count, generator=generator, dtype=torch.float64) - 1
    engine, trainer = (
        [true + std * torch.randn(count, generator=generator, dtype=torch.float64) for _ in range(2)]
        for std in size
    )
    log = TokenLog(
        torch.arange(count),
        torch.zeros(count),
        engine[0],
        trainer[0],
        trainer_log_prob_again=trainer[1],
        sampler_log_prob_again=engine[1],
    )
    result = policy_mismatch(log, untruncated=True)
    noise = parts(result)["batch noise"]
    assert noise == pytest.approx((size[0] ** 2 + size[1] ** 2) / 2, rel=0.03)
    assert abs(parts(result)["rest"] or 0.0) < 0.05 * result.k3.value


@pytest.mark.sweep
def test_the_standard_error_is_the_spread_of_repeated_runs() -> None:
    """Sequences of a prompt share a deviation, so errors without prompts would be too small."""
    generator = torch.Generator().manual_seed(6)
    names = ("k1", "k3", "effective_share", "mean_ratio")
    values, standard_errors, alone = [], [], []
    for _ in range(120):
        own = 0.2 * torch.randn(30, 1, 1, generator=generator, dtype=torch.float64)
        ratio = (own + 0.1 * torch.randn(30, 4, 10, generator=generator, dtype=torch.float64)).reshape(
            120, 10
        )
        log_p = torch.full((120, 10), -1.0, dtype=torch.float64)
        metric = PolicyMismatch(untruncated=True)
        metric.update(log_p, log_p + ratio, prompt=torch.arange(120) // 4)
        result = metric.compute()
        values.append([float(result[name]) for name in names])
        standard_errors.append([float(result[f"{name}_error"]) for name in names])
        if len(alone) < 20:
            metric.reset()
            metric.update(log_p, log_p + ratio)
            single = metric.compute()
            alone.append([float(single[f"{name}_error"]) for name in names])
    spread = torch.tensor(values).std(0)
    assert (torch.tensor(standard_errors).mean(0) / spread).tolist() == pytest.approx([1] * 4, rel=0.15)
    assert bool((torch.tensor(alone).mean(0) < 0.7 * spread).all())


@pytest.mark.sweep
def test_intervals_by_prompts_cover_the_divergence() -> None:
    generator = torch.Generator().manual_seed(8)
    engine = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    trainer = engine + 0.2 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    # The exact mean over the stationary states of the engine's chain.
    chain = engine.softmax(-1)
    states = torch.linalg.matrix_power(chain, 200)[0]
    log_p, log_q = engine.log_softmax(-1), trainer.log_softmax(-1)
    exact = float((states[:, None] * chain * (log_p - log_q)).sum())
    inside = {"k1": 0, "k3": 0}
    for _ in range(200):
        tokens = torch.multinomial(states, 80, replacement=True, generator=generator)[:, None]
        for _ in range(8):
            tokens = torch.cat([tokens, torch.multinomial(chain[tokens[:, -1]], 1, generator=generator)], -1)
        before, after = tokens[:, :-1], tokens[:, 1:]
        log = TokenLog(
            torch.arange(80).repeat_interleave(8),
            torch.arange(8).repeat(80),
            log_p[before, after].flatten(),
            log_q[before, after].flatten(),
            prompt=(torch.arange(80) // 2).repeat_interleave(8),
        )
        result = policy_mismatch(log, untruncated=True)
        for name in inside:
            low, high = getattr(result, name).ends
            inside[name] += low <= exact <= high
    assert min(inside.values()) >= 184  # of 200; 95 % would be 190


def test_the_means_are_those_of_policy_kl() -> None:
    run = tiny_run()
    metric = PolicyKL()
    metric.update(run.sampled.log_probs, run.trained.log_probs, run.mask)
    log = log_of(run, *MASSES, "trainer_log_prob_old")
    result, other = policy_mismatch(log), metric.compute()
    for name in ("k1", "k3"):
        assert getattr(result, name).value == pytest.approx(float(other[name]), rel=1e-12)
    assert result.mean_ratio.value == pytest.approx(float(other["ratio"]), rel=1e-12)


def test_the_metric_gives_the_result_of_the_function_in_batches() -> None:
    from kullback.functional import Support

    run = tiny_run(seed=3)
    expected = policy_mismatch(log_of(run))
    metric = PolicyMismatch()
    half = len(run.tokens) // 2
    for rows in (slice(0, half), slice(half, None)):
        metric.update(
            run.sampled.log_probs[rows],
            run.trained.log_probs[rows],
            run.mask[rows],
            prompt=run.prompts[rows],
            support=Support(run.sampled.log_mass[rows], run.trained.log_mass[rows]),
            old=run.old.log_probs[rows],
            old_log_mass=run.old.log_mass[rows],
        )
    result = metric.result()
    assert result.to_dict() == expected.to_dict()
    numbers = metric.compute()
    assert float(numbers["k3_truncation"]) == pytest.approx(parts(expected)["truncation"])
    metric.update(run.sampled.log_probs, run.trained.log_probs, run.mask)
    with pytest.raises(errors.ArgumentValueError, match="reset"):
        metric.compute()


def test_tool_tokens_count_nowhere() -> None:
    run = tiny_run(seed=4)
    tools = run.mask & (torch.arange(run.tokens.shape[1]) == 6)
    garbage = torch.where(tools, math.nan, run.trained.log_probs)
    metric, other = PolicyMismatch(), PolicyMismatch()
    metric.update(run.sampled.log_probs, garbage, run.mask & ~tools)
    other.update(run.sampled.log_probs, run.trained.log_probs, run.mask & ~tools)
    assert metric.result().to_dict() == other.result().to_dict()


def test_buckets_partition_the_tokens_and_their_means_make_the_mean() -> None:
    log = log_of(tiny_run())
    log = replace(log, step=log.sequence % 3, group=log.sequence % 2, groups=("math", "code"))
    result = policy_mismatch(log)
    assert set(result.by) == {"position", "length", "step", "group"}
    for buckets in result.by.values():
        assert sum(bucket.tokens for bucket in buckets) == len(log)
        total = sum(bucket.tokens * bucket.k3.value for bucket in buckets)
        assert total / len(log) == pytest.approx(result.k3.value, rel=1e-12)
    assert [bucket.name for bucket in result.by["position"]][:3] == ["0", "1 to 3", "4 to 15"]
    assert [bucket.name for bucket in result.by["group"]] == ["math", "code"]


def test_equal_sides_have_no_mismatch() -> None:
    log = log_of(tiny_run(), *MASSES, "trainer_log_prob_old")
    result = policy_mismatch(replace(log, trainer_log_prob=log.sampler_log_prob), untruncated=True)
    assert result.k1.value == result.k3.value == result.past.value == 0
    assert result.effective_share.value == pytest.approx(1, abs=1e-12)
    assert result.mean_ratio.value == 1


def test_a_token_of_probability_zero_makes_the_divergence_infinite() -> None:
    log = log_of(tiny_run(), *MASSES, "trainer_log_prob_old")
    log.trainer_log_prob[3] = -math.inf
    result = policy_mismatch(log)
    assert result.k1.value == result.k3.value == math.inf
    assert result.outside == pytest.approx(1 / len(log))
    assert result.k3.interval is None
    assert "Infinity" in result.to_json()
    assert result.to_html()


@pytest.mark.sweep
@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_the_order_of_sequences_does_not_matter(seed: int) -> None:
    log = log_of(tiny_run(), *MASSES, "trainer_log_prob_old")
    numbers = torch.randperm(int(log.sequence.max()) + 1, generator=torch.Generator().manual_seed(seed))
    order = torch.argsort(numbers[log.sequence], stable=True)
    moved = replace(log.select(order), sequence=numbers[log.sequence][order])
    one, other = policy_mismatch(log), policy_mismatch(moved)
    for name in ("k1", "k3", "effective_share", "sequence_effective_share"):
        first, second = getattr(one, name), getattr(other, name)
        assert first.value == pytest.approx(second.value, rel=1e-9)
        assert first.standard_error == pytest.approx(second.standard_error, rel=1e-9)


def test_few_prompts_have_errors_and_no_intervals() -> None:
    result = policy_mismatch(log_of(tiny_run(prompts=3)))
    assert result.k3.interval is None
    assert result.k3.standard_error > 0
    assert any("Intervals need at least 10" in note for note in result.notes)


# Errors


def test_a_shift_by_one_token_is_refused() -> None:
    log = log_of(tiny_run(prompts=40), *MASSES, "trainer_log_prob_old")
    late = replace(log, sampler_log_prob=log.sampler_log_prob.roll(1))
    with pytest.raises(errors.ArgumentValueError, match="one token to the left") as refused:
        policy_mismatch(late)
    assert refused.value.argument == "sampler_log_prob"
    policy_mismatch(replace(late, sampler_log_prob=late.sampler_log_prob.roll(-1)))


def test_bad_logs_are_refused_with_the_argument() -> None:
    log = log_of(tiny_run())

    def with_field(**fields: Any) -> TokenLog:
        return replace(log, **fields)

    for name, value in (("trainer_log_prob", log.trainer_log_prob[:-1]), ("step", torch.zeros(2, 2))):
        with pytest.raises(errors.ArgumentValueError) as refused:
            with_field(**{name: value})
        assert refused.value.argument == name
    with pytest.raises(errors.ArgumentValueError, match="NaN for token 0"):
        with_field(sampler_log_prob=torch.full((len(log),), math.nan))
    with pytest.raises(errors.ArgumentValueError, match="at least one sampled token"):
        log.select(torch.zeros(len(log), dtype=torch.bool))
    with pytest.raises(errors.ArgumentValueError, match="mass"):
        policy_mismatch(with_field(trainer_log_mass=torch.full((len(log),), -9.0)))
    with pytest.raises(errors.ArgumentTypeError, match="read_token_log"):
        policy_mismatch("run")  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentValueError, match="ratio"):
        policy_mismatch(log, ratio=1.0)
    with pytest.raises(errors.ArgumentTypeError, match="ratio="):
        policy_mismatch(log, ratoi=2.0)  # type: ignore[call-arg]
    with pytest.raises(errors.ArgumentValueError, match="before compute"):
        PolicyMismatch().result()
    with pytest.raises(errors.ArgumentValueError, match=r"log_p\[None\]"):
        PolicyMismatch().update(torch.zeros(3), torch.zeros(3))


# Numbers that were wrong, or errors of another kind, before a reading by a stranger.


def plain(count: int = 400, length: int = 20, **fields: Any) -> TokenLog:
    generator = torch.Generator().manual_seed(0)
    sampler = -1 - torch.rand(count, generator=generator, dtype=torch.float64)
    trainer = sampler + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64)
    places = torch.arange(count)
    return replace(TokenLog(places // length, places % length, sampler, trainer), **fields)


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_long_sequences_have_an_effective_share(shift: float) -> None:
    """The product of 2,000 ratios overflows, or underflows, but the weights relative to the largest do not."""
    log = plain(40_000, 2000)
    noise = log.trainer_log_prob - log.sampler_log_prob
    far = policy_mismatch(
        replace(log, trainer_log_prob=log.sampler_log_prob - 0.5 + (shift + 0.5) + 0.01 * noise)
    )
    near = policy_mismatch(replace(log, trainer_log_prob=log.sampler_log_prob + 0.01 * noise))
    share = far.sequence_effective_share
    assert share.value == pytest.approx(near.sequence_effective_share.value, rel=1e-6)
    assert share.standard_error == pytest.approx(near.sequence_effective_share.standard_error, rel=1e-6)


def test_one_infinite_stale_token_leaves_the_rest_of_the_current_tokens() -> None:
    log = plain()
    stale = torch.arange(400) < 100
    versions = {"weight_version": (~stale).long(), "trainer_version": torch.ones(400).long()}
    log.trainer_log_prob[3] = -math.inf
    result = policy_mismatch(replace(log, **versions), untruncated=True)
    ratio = (log.trainer_log_prob - log.sampler_log_prob)[~stale]
    assert parts(result)["rest"] == pytest.approx(float((ratio.exp() - 1 - ratio).mean()), rel=1e-9)
    assert parts(result)["staleness"] == math.inf
    # If both are infinite, their difference is unknown, and no NaN is shown as a number.
    both = policy_mismatch(replace(log, trainer_log_prob_old=log.trainer_log_prob), untruncated=True)
    assert parts(both)["staleness"] is None
    assert "difference of infinite numbers" in both.parts[1].meaning
    assert "Not separable: staleness" in str(both.to_markdown())


def test_a_known_mass_counts_more_than_untruncated() -> None:
    log = plain(sampler_log_mass=torch.full((400,), -0.1))
    truncation = policy_mismatch(log, untruncated=True).parts[0]
    assert truncation.value is None
    assert truncation.missing == ("trainer_log_mass",)


def test_sequences_may_have_any_numbers_in_any_order() -> None:
    log = plain(prompt=torch.arange(400) // 40)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    moved = replace(log, sequence=10**15 - 7 * log.sequence).select(order)
    one, other = policy_mismatch(log), policy_mismatch(moved)
    for name in ("k1", "k3", "effective_share", "sequence_effective_share", "past"):
        assert getattr(one, name).value == pytest.approx(getattr(other, name).value, rel=1e-12)
    both = policy_mismatch(joined([replace(log, sequence=log.sequence - 30), moved]))
    assert (both.sequences, both.prompts) == (2 * one.sequences, one.prompts)
    late = replace(log, sampler_log_prob=log.sampler_log_prob.roll(1)).select(order)
    with pytest.raises(errors.ArgumentValueError, match="one position before"):
        policy_mismatch(replace(late, trainer_log_prob=log.sampler_log_prob[order] + 0.001))
    twice = replace(log, sequence=log.sequence % 10)
    with pytest.raises(errors.ArgumentValueError, match="position 0 twice in sequence 0"):
        policy_mismatch(twice)
    policy_mismatch(replace(twice, sequence=twice.sequence + 1_000_000 * (log.sequence // 10)))


def test_numbers_that_are_no_log_probabilities_are_refused() -> None:
    log = plain()
    for name, value, got in (
        ("sampler_log_prob", -log.sampler_log_prob, "at most 0; got 1"),
        ("trainer_log_prob", log.trainer_log_prob.exp(), "at most 0; got 0"),
        ("sampler_log_mass", torch.ones(400), "at most 0; got 1 for token 0"),
        ("exact_kl", torch.full((400,), -1.0), "not negative; got -1 for token 0"),
        ("prompt", torch.full((400,), 0.5), "integers; got 0.5 for token 0"),
    ):
        with pytest.raises(errors.ArgumentValueError, match=got) as refused:
            replace(log, **{name: value})  # type: ignore[arg-type]
        assert refused.value.argument == name
    replace(log, prompt=torch.unique(torch.full((400,), 0.5), return_inverse=True)[1])
    with pytest.raises(errors.ArgumentTypeError, match="got list"):
        TokenLog([0], [0], [-1.0], [-1.0])  # type: ignore[arg-type]
    rounded = policy_mismatch(
        replace(log, exact_kl=torch.full((400,), -1e-9).index_fill(0, torch.tensor(3), 1e-9))
    )
    assert rounded.exact is not None
    assert rounded.exact.interval is not None
    assert rounded.exact.interval[0] <= rounded.exact.value <= rounded.exact.interval[1]


def test_log_probabilities_that_were_rounded_are_noticed() -> None:
    log = plain(4000)
    assert not any("numbers. Rounding" in note for note in policy_mismatch(log).notes)
    exact = log.sampler_log_prob
    result = policy_mismatch(replace(log, sampler_log_prob=exact.bfloat16(), trainer_log_prob=exact))
    [note] = [note for note in result.notes if "numbers. Rounding" in note]
    assert "the engine are bfloat16" in note
    said = float(note.split("about ")[1].split(" nats")[0])
    assert said == pytest.approx(result.k3.value, rel=0.1)


def test_the_metric_refuses_masks_and_fields_of_the_wrong_form() -> None:
    log_p = -1 - torch.rand(4, 5, generator=torch.Generator().manual_seed(0))
    nan = torch.where(torch.arange(5) == 2, math.nan, log_p)

    def refuse(argument: str, *given: Any, **fields: Any) -> str:
        metric = PolicyMismatch()

        def updated() -> None:
            metric.update(*given, **fields)
            metric.compute()

        with pytest.raises((errors.ArgumentValueError, errors.ArgumentTypeError)) as refused:
            updated()
        assert refused.value.argument == argument
        return str(refused.value)

    assert "boolean" in refuse("mask", log_p, log_p, torch.ones(4, 5).long())
    refuse("mask", log_p, log_p, torch.ones(5, dtype=torch.bool))
    refuse("log_q", log_p, log_p[:, :4])
    refuse("old", log_p, log_p, old=log_p[:, :4])
    assert "long()" in refuse("prompt", log_p, log_p, prompt=torch.rand(4))
    for q in (nan, torch.full_like(nan, math.nan)):
        assert "mask= without" in refuse("log_q", log_p, q)
    metric = PolicyMismatch()
    metric.update(log_p, nan, ~nan.isnan(), prompt=torch.arange(4))
    metric.compute()
