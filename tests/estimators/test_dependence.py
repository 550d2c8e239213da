"""Draws that depend on their order: intervals cover, tests keep their level, and the user's word overrides."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.distributions import Normal

from kullback import (
    KL,
    Jeffreys,
    JensenShannon,
    ReverseKL,
    Samples,
    estimate,
    kl_estimate,
    two_sample_test,
)
from kullback.common.serial_dependence import SerialDependence, block_labels
from kullback.errors import ArgumentValueError
from kullback.estimators.choose_estimator import estimate_from_samples
from kullback.estimators.dependence import dependences_of, grouped_alike
from kullback.estimators.draws import Draws
from kullback.estimators.permutations import Labeling
from tests.refusals import refused

Array = np.ndarray[Any, Any]


def autoregression(rng: np.random.Generator, n: int, correlation: float, d: int = 1) -> Array:
    x = rng.standard_normal((n, d)) * math.sqrt(1 - correlation**2)
    x[0] = rng.standard_normal(d)
    for t in range(1, n):
        x[t] += correlation * x[t - 1]
    return x


def together(rng: np.random.Generator, n: int) -> Array:
    """Draw rows of 40 users, those of each user together."""
    return (
        np.repeat(rng.standard_normal((40, 1)), n // 40, 0) + rng.standard_normal((n // 40 * 40, 1))
    ) / 2**0.5


def three_times(rng: np.random.Generator, n: int) -> Array:
    return rng.permutation(np.repeat(rng.standard_normal((n // 3, 1)), 3, axis=0))


CASES: dict[str, Callable[[np.random.Generator], Array]] = {
    "autoregression 0.6": lambda rng: autoregression(rng, 1000, 0.6),
    "autoregression 0.9": lambda rng: autoregression(rng, 2000, 0.9),
    "rows of one user together": lambda rng: together(rng, 2000),
    "each row three times, shuffled": lambda rng: three_times(rng, 1500),
}


def pairs(name: str, count: int, **options: Any) -> list[tuple[Samples, Samples]]:
    sides = []
    for seed in range(count):
        rng = np.random.default_rng([seed, 3])
        sides.append((Samples(CASES[name](rng), **options), Samples(CASES[name](rng), **options)))
    return sides


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_intervals_of_dependent_draws_cover_and_are_wider_than_those_of_independent_ones(name: str) -> None:
    missed, narrower = 0, 0
    for (p, q), (x, y) in zip(pairs(name, 20), pairs(name, 20, independent=True), strict=True):
        found, plain = kl_estimate(p, q), kl_estimate(x, y)
        assert plain.interval is not None
        assert any("independent=True" in note for note in found.notes)
        assert not any("independent=True" in note for note in plain.notes)
        if found.interval is None:
            assert found.standard_error is None
            continue
        missed += not found.interval[0] <= 0 <= found.interval[1]
        narrower += bool(found.interval[0] > plain.interval[0] + 1e-3)
    # Binomial(20, 0.07) is above 5 with chance 0.002.
    assert missed <= 5
    assert narrower <= 6


@pytest.mark.heavy
@pytest.mark.parametrize("name", CASES)
def test_the_test_keeps_its_level(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("kullback.estimators.two_sample_test")
    monkeypatch.setattr(module, "_effect", lambda *_: (None, ()))  # which takes longer, and comes after

    def share(**options: Any) -> float:
        found = [
            two_sample_test(p, q, permutations=59, generator=torch.Generator().manual_seed(0)).p_value
            for p, q in pairs(name, 40, **options)
        ]
        return sum(value <= 0.05 for value in found) / len(found)

    assert share() <= 0.15  # Binomial(40, 0.05) is above 6 with chance 0.003
    assert share(independent=True) > 0.2


def test_differences_of_dependent_draws_are_seen() -> None:
    rng = np.random.default_rng(4)
    x, y = autoregression(rng, 3000, 0.6) + 0.7, autoregression(rng, 3000, 0.6)
    found = two_sample_test(Samples(x), Samples(y))
    assert found.p_value <= 0.01
    assert any("shuffles move" in note for note in found.notes)
    assert found.effect is not None
    assert found.effect.interval is not None
    assert found.effect.interval[0] > 0.05


def test_independent_draws_are_as_they_were() -> None:
    for seed in range(20):
        rng = np.random.default_rng([seed, 5])
        x, y = rng.standard_normal(400), rng.integers(0, 5, 400)
        for draws in (x, y):
            known = kl_estimate(
                Samples(draws[:200], independent=True), Samples(draws[200:], independent=True)
            )
            found = kl_estimate(Samples(draws[:200]), Samples(draws[200:]))
            assert found.notes == known.notes
            assert (found.value, found.standard_error) == (known.value, known.standard_error)
            assert found.interval == known.interval


def test_too_few_blocks_give_no_interval_and_no_p_value_and_say_so() -> None:
    rng = np.random.default_rng(6)
    x, y = np.cumsum(rng.standard_normal((2, 1000)), axis=1)
    found = kl_estimate(Samples(x), Samples(y))
    assert (found.interval, found.standard_error) == (None, None)
    assert any("Fewer than 10 independent blocks" in note for note in found.notes)
    test = two_sample_test(Samples(x), Samples(y))
    assert math.isnan(test.p_value)
    assert any("inconclusive" in note for note in test.notes)
    # The remedies that the notes name:
    assert kl_estimate(Samples(x, independent=True), Samples(y, independent=True)).interval is not None
    weeks = np.arange(1000) // 20
    assert kl_estimate(Samples(x, cluster=weeks), Samples(y, cluster=weeks)).interval is not None


def test_the_user_has_the_last_word() -> None:
    rng = np.random.default_rng(7)
    x = autoregression(rng, 800, 0.9)
    own = np.arange(800) // 4
    p, q = Samples(x[:400], cluster=own[:400]), Samples(x[400:], cluster=own[:400])
    assert "100 clusters" in " ".join(kl_estimate(p, q).notes)
    with refused(ArgumentValueError, wanted="not both"):
        Samples(x, cluster=own, independent=True)
    with refused(TypeError, wanted="True or False"):
        Samples(x, independent="yes")  # pyright: ignore[reportArgumentType]


def test_weights_and_blocks_act_together() -> None:
    rng = np.random.default_rng(8)
    x, y = autoregression(rng, 2000, 0.8), rng.standard_normal((500, 1))
    weights = np.where(np.arange(2000) < 1500, 1.0, 0.0)
    found = kl_estimate(Samples(x, weights=weights), Samples(y))
    known = kl_estimate(Samples(x[:1500]), Samples(y))
    assert found.interval is not None
    assert known.interval is not None
    assert float(found.interval[1]) == pytest.approx(float(known.interval[1]), rel=0.05)
    assert "1,500 rows" in found.notes[0]


@pytest.mark.parametrize("kind", [ReverseKL(), Jeffreys()])
def test_notes_name_the_side_that_the_user_named(kind: Any) -> None:
    rng = np.random.default_rng(9)
    p, q = Samples(autoregression(rng, 1000, 0.8)), Samples(rng.standard_normal(1000))
    notes = estimate_from_samples("kl_estimate", p, q, kind).notes
    assert [note[:14] for note in notes if "independent=True" in note] == ["The order of P"]


def test_vectors_categories_and_known_densities() -> None:
    rng = np.random.default_rng(10)
    x = autoregression(rng, 1500, 0.6, d=2)
    states = np.digitize(x[:, 0], [-1.0, 0.0, 1.0])
    plain = kl_estimate(Samples(states, independent=True), Samples(rng.permutation(states)))
    found = kl_estimate(Samples(states), Samples(rng.permutation(states)))
    assert found.interval is not None
    assert plain.interval is not None
    assert found.interval[1] > plain.interval[1]
    q = Normal(torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    one = kl_estimate(Samples(x[:, 0]), q)
    assert "order of P" in one.notes[0]
    assert one.interval is not None
    assert one.interval[0] <= 0 <= one.interval[1]
    two = kl_estimate(Samples(x[:750]), Samples(x[750:]), generator=torch.Generator().manual_seed(0))
    assert two.method == "density_ratio"  # nearest neighbors would be rows next to each other
    assert two.interval is not None
    assert two.interval[0] <= 0 <= two.interval[1]


UNLIKE = [(0.0, 0.8, 3000, 1000), (0.0, 0.8, 1000, 3000), (0.5, 0.9, 3000, 3000), (0.3, 0.0, 1000, 8000)]


@pytest.mark.sweep
@pytest.mark.parametrize(("of_p", "of_q", "n", "m"), UNLIKE)
def test_shuffles_of_unlike_sides_vary_as_the_difference_does(
    of_p: float, of_q: float, n: int, m: int
) -> None:
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng([seed, 11])
        groups = grouped_alike(
            *(Draws.of(Samples(autoregression(rng, *side))) for side in ((n, of_p), (m, of_q)))
        )
        if groups.is_open:
            continue
        from_p = Labeling.of(groups.p, groups.q, in_pairs=groups.in_pairs).shuffles(300, rng)
        x = np.concatenate([groups.p.tensor.numpy(), groups.q.tensor.numpy()])[:, 0]
        means = [(rows * x).sum(1) / rows.sum(1) for rows in (from_p, ~from_p)]
        # The variance of the mean of an autoregression: its integrated autocorrelation time over the rows.
        rows = len(groups.p.tensor), len(groups.q.tensor)
        thinned = [r ** (size / used) for r, size, used in zip((of_p, of_q), (n, m), rows, strict=True)]
        exact = sum((1 + r) / (1 - r) / used for r, used in zip(thinned, rows, strict=True))
        ratios.append(float(np.square(means[0] - means[1]).mean()) / exact)
    assert len(ratios) >= 9
    assert 0.75 < np.mean(ratios) < 1.3


def test_pairs_of_unlike_sides_keep_their_level_and_see_differences() -> None:
    rng = np.random.default_rng(12)
    x, y = autoregression(rng, 1000, 0.0), autoregression(rng, 3000, 0.8)
    equal, apart = (
        two_sample_test(
            Samples(x + shift), Samples(y), permutations=199, generator=torch.Generator().manual_seed(0)
        )
        for shift in (0.0, 0.6)
    )
    assert equal.p_value > 0.05
    assert apart.p_value <= 0.01
    assert any("exchange the two blocks of a pair" in note and "Of Q, 1,000" in note for note in apart.notes)


@pytest.mark.parametrize(("r", "length"), [(0.3, 10), (0.6, 20), (0.9, 95), (0.9, 228)])
def test_the_correction_is_that_of_blocks_of_an_autoregression(r: float, length: int) -> None:
    lags = np.arange(1, length)
    of_blocks = 1 + 2 * ((1 - lags / length) * r**lags).sum()
    time = (1 + r) / (1 - r)
    found = SerialDependence("blocks", 40 * length, time, length, block_labels(40 * length, 40))
    assert of_blocks * found.correction == pytest.approx(time, rel=1e-3)
    assert SerialDependence("period", 400, time, 20, block_labels(400, 20)).correction == 1


@pytest.mark.parametrize("kind", [KL(), JensenShannon()])
def test_intervals_allow_for_blocks_that_resemble_their_neighbors(kind: Any) -> None:
    rng = np.random.default_rng(13)
    x, y = autoregression(rng, 3000, 0.9) + 0.3, rng.standard_normal((3000, 1))
    p = Samples(x)
    found = estimate(p, Samples(y, independent=True), kind=kind)
    dependence = dependences_of(Draws.of(p))[0]
    assert dependence is not None
    plain = estimate(Samples(x, cluster=dependence.labels), Samples(y, independent=True), kind=kind)
    assert found.interval is not None
    assert plain.interval is not None
    wider = (found.interval[1] - found.value) / (plain.interval[1] - plain.value)
    assert float(wider) == pytest.approx(dependence.correction**0.5)
    assert 1.02 < float(wider) < 1.06


@pytest.mark.sweep
def test_no_two_notes_name_different_effective_numbers_of_one_side() -> None:
    """The order of rows, or named clusters, have one effective number, without an exponent."""
    rng = np.random.default_rng(0)

    def series(correlation: float, shape: tuple[int, ...] = (2000,)) -> Array:
        x = rng.standard_normal(shape)
        for t in range(1, len(x)):
            x[t] = correlation * x[t - 1] + math.sqrt(1 - correlation**2) * x[t]
        return x

    groups = np.arange(2000) // 20
    constructions = {
        "autoregression 0.9": [Samples(series(0.9) + shift) for shift in (0, 0.3)],
        "autoregression 0.5": [Samples(series(0.5)) for _ in range(2)],
        "vectors in order": [Samples(series(0.9, (2000, 3))) for _ in range(2)],
        "categories in order": [Samples(np.round(series(0.95)).astype(int)) for _ in range(2)],
        "equal rows": [Samples(rng.permutation(np.repeat(rng.standard_normal(700), 3))) for _ in range(2)],
        "named clusters": [Samples(series(0.9), cluster=groups) for _ in range(2)],
        "one side in order": [Samples(series(0.9)), Samples(rng.standard_normal(2000))],
    }
    for name, (p, q) in constructions.items():
        generator = torch.Generator().manual_seed(0)
        notes = kl_estimate(p, q, generator=generator).notes
        notes += two_sample_test(p, q, permutations=19, generator=generator).notes
        for side in "PQ":
            of_side = [note for note in dict.fromkeys(notes) if re.match(rf"[^.]*\b{side}('s)?\b", note)]
            numbers = re.findall(r"information of about (\S+) independent", " ".join(of_side))
            assert len(numbers) <= 1, (name, side, numbers)
            assert not any("e+" in number for number in numbers), (name, numbers)
        assert name == "one side in order" or any("information of about" in note for note in notes), name


def test_the_effect_of_a_test_is_the_estimate_and_its_interval_is_explained() -> None:
    """With one generator, `kl_estimate` and the effect are one number, also where a classifier is cross-validated."""
    rng = np.random.default_rng(0)
    explained = 0
    for d, shift in ((1, 0.5), (3, 0.3), (12, 0.4)):
        n = 60 if d == 12 else 200
        x, y = (Samples(rng.standard_normal((n, d)) + s * (np.arange(d) == 0)) for s in (0, shift))
        for seed in range(1 if d == 12 else 2):
            estimate = kl_estimate(x, y, generator=torch.Generator().manual_seed(seed))
            test = two_sample_test(x, y, permutations=99, generator=torch.Generator().manual_seed(seed))
            assert float(test.effect.value) == float(estimate.value), (d, seed)
            note = any("but the interval of the effect begins at 0" in text for text in test.notes)
            assert note == (test.p_value <= 0.05 and float(estimate.interval[0]) == 0), (d, seed)
            explained += note
    assert explained


def test_the_line_of_a_test_says_that_its_number_is_a_statistic() -> None:
    x, y = np.random.default_rng(0).standard_normal((2, 100, 2))
    assert " (statistic), 19 permutations" in str(two_sample_test(Samples(x), Samples(y), permutations=19))


def half_on_atoms(rng: np.random.Generator, shares: Array, shift: float = 0.0) -> Array:
    atoms = np.random.default_rng(14).standard_normal(len(shares))
    at = atoms[rng.choice(len(atoms), 1500, p=shares / shares.sum())]
    return np.where(rng.random(1500) < 0.5, at, shift + rng.standard_normal(1500))


@pytest.mark.sweep
@pytest.mark.parametrize("atoms", [2, 30, 200])
def test_atoms_beside_a_density_are_independent_rows(atoms: int) -> None:
    shares = np.linspace(1, 3, atoms)
    p = shares / shares.sum()
    # Half of the relative entropy of the atoms, and half of that of the normal densities.
    truth, inside = 0.5 * float((p * np.log(p / p[::-1])).sum()) + 0.5 * 0.3**2 / 2, 0
    for seed in range(10):
        rng = np.random.default_rng([seed, 14])
        x, y = half_on_atoms(rng, shares), half_on_atoms(rng, shares[::-1], 0.3)
        one = kl_estimate(Samples(x), Samples(y))
        known = kl_estimate(Samples(x, independent=True), Samples(y, independent=True))
        assert (one.value, one.interval, one.notes) == (known.value, known.interval, known.notes), seed
        assert one.interval is not None
        inside += bool(one.interval[0] <= truth <= one.interval[1])
    assert inside >= 8
    test = two_sample_test(
        Samples(x), Samples(y), permutations=199, generator=torch.Generator().manual_seed(0)
    )  # pyright: ignore[reportPossiblyUnboundVariable]
    assert test.p_value <= 0.05
    assert not any("repeat:" in note or "Shuffles" in note for note in test.notes)


def test_copies_with_rounding_errors_are_exact_copies() -> None:
    for dtype, offset, noise in ((np.float64, 0.0, 1e-12), (np.float64, 1e5, 1e-13), (np.float32, 0.0, 3e-8)):
        sides, exact = [], []
        for seed in (0, 1):
            rng = np.random.default_rng([seed, 15])
            x = np.repeat(offset + rng.standard_normal(400), 3)
            order = rng.permutation(1200)
            sides.append(Samples((x * (1 + noise * rng.standard_normal(1200)))[order].astype(dtype)))
            exact.append(Samples(x[order].astype(dtype)))
        near, same = kl_estimate(*sides), kl_estimate(*exact)
        case = f"{dtype.__name__}, {offset}"
        assert near.interval is not None, case
        assert same.interval is not None, case
        assert float(near.interval[0]) == 0, case
        assert [float(end) for end in near.interval] == pytest.approx(
            [float(end) for end in same.interval], rel=0.02
        )
        assert "differ from another one by a rounding error only" in " ".join(near.notes), case
        tests = [
            two_sample_test(*pair, permutations=99, generator=torch.Generator().manual_seed(0))
            for pair in (sides, exact)
        ]
        assert tests[0].p_value == pytest.approx(tests[1].p_value, abs=0.05), case
        known = kl_estimate(sides[0], Normal(torch.tensor(offset).double(), torch.tensor(1.0).double()))
        assert known.interval is not None, case
        assert float(known.interval[0]) == 0, case
        assert float(known.value) < 0.2, case


def grid(rng: np.random.Generator) -> Array:
    return gaussian_filter(rng.standard_normal((40, 40)), 2, mode="wrap").ravel()


def panel_with_gaps(rng: np.random.Generator) -> Array:
    x = rng.standard_normal((1, 80)) + rng.standard_normal((12, 80))
    return x.ravel()[rng.random(960) > 0.15]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("draw", "reason", "most"), [(grid, "as in a grid", 0), (panel_with_gaps, "a panel sorted by time", 3)]
)
def test_grids_and_panels_with_gaps_are_open(
    draw: Callable[[np.random.Generator], Array], reason: str, most: int
) -> None:
    """P = Q: before, tests at 5 % rejected 38 % of the grids and half of the panels."""
    rejected = closed = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 21])
        p, q = Samples(draw(rng)), Samples(draw(rng))
        found, test = kl_estimate(p, q), two_sample_test(p, q, permutations=99)
        closed += found.interval is not None
        rejected += test.p_value <= 0.05
        if found.interval is None:
            assert any(reason in note for note in found.notes)
            assert not any("clusters carry" in note for note in found.notes)
            assert math.isnan(test.p_value)
            assert any("inconclusive" in note for note in test.notes)
    assert closed <= most
    assert rejected <= 1


def test_a_panel_beside_rows_in_blocks_is_open() -> None:
    """One side's blocks, which a panel can show by chance, do not end the search for missed turns on the other."""
    rng = np.random.default_rng(23)
    x = rng.standard_normal((1, 80)) + rng.standard_normal((12, 80))
    panel = x.ravel()[rng.random(960) > 0.05]
    blocks = np.repeat(rng.standard_normal(160), 5) + rng.standard_normal(800)
    for draws in ((panel, blocks), (blocks, panel)):
        p, q = map(Samples, draws)
        found = kl_estimate(p, q)
        assert found.interval is None
        assert any("a panel sorted by time" in note for note in found.notes)
        assert math.isnan(two_sample_test(p, q, permutations=99).p_value)


def test_remedies_of_panels_with_gaps_give_intervals() -> None:
    rng = np.random.default_rng(22)
    unit, kept = np.tile(np.arange(80), 12), rng.random((2, 960)) > 0.1
    draws = [(rng.standard_normal((1, 80)) + rng.standard_normal((12, 80))).ravel()[one] for one in kept]
    assert kl_estimate(*map(Samples, draws)).interval is None
    named = [Samples(x, cluster=unit[one]) for x, one in zip(draws, kept, strict=True)]
    for p, q in (named, [Samples(x, independent=True) for x in draws]):
        assert kl_estimate(p, q).interval is not None
        assert not math.isnan(two_sample_test(p, q, permutations=99).p_value)


@pytest.mark.sweep
def test_panels_of_categories_with_gaps_are_open() -> None:
    """P = Q: before, a third to nine in ten of the intervals excluded 0, and as many tests rejected."""

    def states(rng: np.random.Generator, gap: float, columns: int = 1) -> tuple[Array, Array]:
        x = rng.integers(0, 4, (15, 40, columns))
        for t in range(1, 15):
            x[t] = np.where(rng.random((40, columns)) < 0.9, x[t - 1], x[t])
        kept = rng.random(600) >= gap
        return x.reshape(600, columns)[kept], np.tile(np.arange(40), 15)[kept]

    for gap, columns, as_text in ((0.1, 1, False), (0.3, 1, True), (0.3, 2, False)):
        closed = 0
        for seed in range(8):
            rng = np.random.default_rng([seed, 24])
            draws = [states(rng, gap, columns) for _ in range(2)]
            values = [np.array(list("abcd"))[x[:, 0]] if as_text else x for x, _ in draws]
            p, q = map(Samples, values)
            found = kl_estimate(p, q)
            closed += found.interval is not None
            if found.interval is None:
                assert math.isnan(two_sample_test(p, q, permutations=19).p_value)
        assert closed <= 1, (gap, columns)
        assert any("a panel sorted by time with missing rows" in note for note in found.notes), (gap, columns)  # pyright: ignore[reportPossiblyUnboundVariable]
    # The remedies that the notes name:
    named = [Samples(x, cluster=unit) for x, (_, unit) in zip(values, draws, strict=True)]  # pyright: ignore[reportPossiblyUnboundVariable]
    for p, q in (named, [Samples(x, independent=True) for x in values]):  # pyright: ignore[reportPossiblyUnboundVariable]
        assert kl_estimate(p, q).interval is not None
        assert not math.isnan(two_sample_test(p, q, permutations=19).p_value)
