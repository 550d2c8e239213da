"""Evidence: notes name the two sides as the caller does, in either direction, and draws are checked once and frozen."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re

import numpy as np
import pytest
import torch
from torch.distributions import Exponential, Independent, Normal

from kullback import Samples, estimate, kl_estimate
from kullback.errors import ArgumentValueError
from kullback.estimators import nearest_neighbors
from kullback.estimators.draws import Draws
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Evidence, added, exchanged, interval_from
from kullback.estimators.knn.joint_shape import joint_shape
from kullback.estimators.registry import from_draws
from tests.refusals import refused


def normal(seed, *shape, scale=1.0, shift=0.0):
    return Samples(shift + scale * np.random.default_rng(seed).standard_normal(shape))


def tied(seed):
    rng = np.random.default_rng(seed)
    return Samples(np.concatenate([rng.standard_normal((300, 2)), np.zeros((3, 2))]))


WITH_NOTES = {
    "few neighbors": (normal(0, 15, 2), normal(1, 12, 2), "nearest_neighbors"),
    "far apart": (normal(0, 300, 2), normal(1, 200, 2, shift=5.0), "nearest_neighbors"),
    "ties": (tied(0), normal(1, 300, 2), "nearest_neighbors"),
    "rounded vectors": (
        Samples(np.round(normal(0, 200, 2).tensor.numpy(), 1)),
        Samples(np.round(normal(1, 150, 2).tensor.numpy(), 1)),
        "auto",
    ),
    "beyond Q": (normal(0, 1000, scale=2.0), normal(1, 800), "auto"),
    "in a gap": (
        normal(0, 1000),
        Samples(
            np.concatenate([x.tensor[:, 0] for x in (normal(1, 500, shift=-4), normal(2, 500, shift=4))])
        ),
        "histogram",
    ),
    "heavy tail": (Samples(np.random.default_rng(0).standard_cauchy(600)), Normal(0.0, 1.0), "auto"),
    "outside of Q": (normal(0, 100), Exponential(1.0), "auto"),
    "categories": (Samples(["a"] * 30 + ["b"] * 20), Samples(["c"] * 40 + ["a"]), "coverage_adjusted"),
    "rows that repeat": (
        Samples(np.repeat(np.random.default_rng(0).standard_normal(100), 5)),
        normal(1, 250),
        "auto",
    ),
}


def test_notes_of_the_reverse_direction_exchange_the_names():
    """KL(Q || P) of (y, x) has the notes of KL(P || Q) of (x, y), with P and Q, p and q exchanged in the words."""
    other = {"P": "Q", "Q": "P", "p": "q", "q": "p"}
    for name, (x, y, method) in WITH_NOTES.items():
        notes = kl_estimate(x, y, method=method, generator=torch.Generator().manual_seed(0)).notes
        wanted = [re.sub(r"\b[PQpq]\b", lambda letter: other[letter[0]], note) for note in notes]
        back = estimate(y, x, "reverse_kl", method=method, generator=torch.Generator().manual_seed(0))
        assert any(note != exchange for note, exchange in zip(notes, wanted, strict=True)), name
        assert list(back.notes) == wanted, name


def test_a_refusal_of_the_reverse_direction_names_the_sides_as_the_caller_does():
    few, more = normal(0, 3, 5), normal(1, 4, 5)
    with refused(ArgumentValueError, argument="p, q", got="3 draws of q and 4 of p with 5 components"):
        estimate(more, few, "reverse_kl", method="nearest_neighbors")
    with refused(
        ArgumentValueError, argument="p, q", got=r"1 in p of shape \(2, 1\), 5 in q of shape \(3, 5\)"
    ):
        estimate(Samples([1.0, 2.0]), few, "reverse_kl")


def test_evidence_of_both_directions_is_added_and_said_once():
    one = interval_from(
        Evidence(0.2, error=0.1, notes=[f"Of {SIDE_P}.", "Of both."], method="a", n=(3, 4)), 0.95
    )
    back = exchanged(lambda: dataclasses.replace(one, n=(4, 3)))
    assert back.n == (3, 4)
    both = added(one, back)
    assert (both.value, both.error) == (0.4, 0.2)
    assert both.ends == tuple(2 * end for end in one.ends or ())
    assert list(both.notes) == [f"Of {SIDE_P}.", "Of both.", f"Of {SIDE_Q}."]


def test_draws_are_frozen_and_without_weight_0():
    draws = Draws.of(Samples([1.0, 2.0, 3.0], weights=[1, 0, 2], cluster=["a", "b", "c"]))
    assert draws.x.tolist() == [[1.0], [3.0]]
    assert draws.weights is not None
    assert draws.cluster is not None
    assert (draws.weights.tolist(), draws.cluster.tolist(), draws.number) == ([1.0, 2.0], [0, 1], 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        draws.weights = None  # type: ignore[misc]
    assert Draws.of(draws) is draws


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_one_group_of_draws_bounds_nothing(error):
    assert interval_from(Evidence(0.5, error=error, groups=1), 0.95).ends == (0.0, np.inf)


def test_the_confidence_of_a_public_estimator_has_a_default():
    def mine(p: Draws, q: Draws, *, confidence: float, generator: torch.Generator | None = None) -> Evidence:
        return Evidence(1.0, error=confidence)

    public = from_draws(mine)
    assert str(inspect.signature(public)) == (
        "(p: 'Samples', q: 'Samples', *, confidence: 'float' = 0.95, "
        "generator: 'torch.Generator | None' = None) -> 'Estimate'"
    )
    assert float(public(normal(0, 20), normal(1, 20)).standard_error) == 0.95


@pytest.mark.sweep
def test_values_depend_on_the_draws_alone() -> None:
    """The random parts of estimates from draws depend on the draws, not on a generator or on the order of the rows."""
    rng = np.random.default_rng(3)
    plane, wide = rng.standard_normal((2, 150, 2)), rng.standard_normal((2, 60, 12))
    cases: dict[str, tuple[object, object, dict[str, object]]] = {
        "a known density": (Samples(plane[0]), Independent(Normal(torch.zeros(2), torch.ones(2)), 1), {}),
        "classifiers": (Samples(wide[0]), Samples(wide[1] + 0.3), {}),
        "rounded vectors": (Samples(plane[0].round(1)), Samples(plane[1].round(1)), {}),
        "neighbors": (Samples(plane[0]), Samples(plane[1]), {"method": "nearest_neighbors"}),
        "bins": (Samples(plane[0, :, 0]), Samples(plane[1, :, 0]), {}),
    }
    for name, (p, q, options) in cases.items():
        one, other = (
            kl_estimate(p, q, generator=torch.Generator().manual_seed(seed), **options) for seed in (0, 1)
        )
        assert torch.equal(one.value, other.value), name
        assert one.interval == other.interval, name
        shuffled = [
            Samples(side.tensor[rng.permutation(len(side))]) if isinstance(side, Samples) else side
            for side in (p, q)
        ]
        permuted = kl_estimate(*shuffled, **options)
        # Sums of the same terms in another order differ by rounding errors.
        torch.testing.assert_close(permuted.value, one.value, rtol=1e-9, atol=1e-12, msg=name)
        assert one.interval is not None
        for limit, of_permuted in zip(one.interval, permuted.interval or (), strict=True):
            torch.testing.assert_close(of_permuted, limit, rtol=1e-9, atol=1e-12, msg=name)


def test_thinning_shared_draws_and_joint_shapes_do_not_depend_on_the_order_of_rows() -> None:
    rng = np.random.default_rng(4)
    plane, wide, line = (
        rng.standard_normal((2, 150, 2)),
        rng.standard_normal((2, 700, 4)),
        rng.standard_normal(300),
    )
    whole = np.concatenate([line[:120], rng.standard_normal(200)])

    def answer(name: str, p: np.ndarray, q: np.ndarray) -> float:
        if name == "joint shape":
            shape = joint_shape(Draws.of(Samples(p)), Draws.of(Samples(q)))
            assert shape is not None
            return shape.value
        if name == "thinning":
            return float(nearest_neighbors(Samples(p), Samples(q), most=100).value)
        found = kl_estimate(Samples(p, independent=True), Samples(q, independent=True))
        assert any("counts on one side only" in note for note in found.notes)
        return float(found.value)

    cases = {"thinning": plane, "joint shape": wide, "shared draws": (line, whole)}
    for name, (p, q) in cases.items():
        first = answer(name, p, q)
        for _ in range(3):
            assert answer(name, rng.permutation(p), rng.permutation(q)) == pytest.approx(first, rel=1e-9), (
                name
            )


def test_resampled_values_that_do_not_reach_the_limits_leave_them_open() -> None:
    values = np.linspace(0.1, 0.9, 200)
    assert interval_from(Evidence(0.5, resampled=values), 0.95).ends == pytest.approx((0.12, 0.88))
    open_ends = interval_from(Evidence(0.5, resampled=values), 0.9975)
    assert open_ends.ends == (0.0, math.inf)
    assert open_ends.notes == ["200 resampled values do not show limits at a confidence of 0.9975: use more."]
    assert interval_from(Evidence(0.5, resampled=np.linspace(0.1, 0.9, 2000)), 0.9975).ends[1] < 0.9
