"""Bounds from the most probable classes, against every completion of small lists, in mpmath."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator

import mpmath
import pytest
import torch

from kullback import (
    KL,
    Alpha,
    ChiSquared,
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
from kullback.errors import ArgumentTypeError, ArgumentValueError, KullbackError
from kullback.functional import TopK, top_k_divergence_bounds
from kullback.generators import Divergence
from kullback.io import open_top_k
from kullback.partial_rows import summarize_rows
from tests.refusals import refused

mp = mpmath.mp.clone()
mp.dps = 30
Row = list[float]


def kl_term(p: float, q: float) -> mpmath.mpf:
    if p == 0:
        return mp.zero
    return mp.inf if q == 0 else mp.mpf(p) * mp.log(mp.mpf(p) / q)


def js_term(p: float, q: float, beta: float = 0.5) -> mpmath.mpf:
    middle = beta * mp.mpf(p) + (1 - mp.mpf(beta)) * q
    return beta * kl_term(p, middle) + (1 - mp.mpf(beta)) * kl_term(q, middle)


# Each by its textbook sum over classes, which is right for distributions that sum to one.
TERMS: dict[Divergence, Callable[[float, float], mpmath.mpf]] = {
    KL(): kl_term,
    ReverseKL(): lambda p, q: kl_term(q, p),
    Jeffreys(): lambda p, q: kl_term(p, q) + kl_term(q, p),
    JensenShannon(): js_term,
    JensenShannon(0.3): lambda p, q: js_term(p, q, 0.3),
    SkewKL(0.1): lambda p, q: kl_term(p, 0.1 * mp.mpf(p) + 0.9 * mp.mpf(q)),
    TotalVariation(): lambda p, q: abs(mp.mpf(p) - q) / 2,
    SquaredHellinger(): lambda p, q: (mp.sqrt(p) - mp.sqrt(q)) ** 2 / 2,
    ChiSquared(): lambda p, q: (mp.mpf(p) - q) ** 2 / q if q else (mp.inf if p else mp.zero),
    Alpha(0.5): lambda p, q: 2 * (mp.sqrt(p) - mp.sqrt(q)) ** 2,
}
EACH = pytest.mark.parametrize("kind", TERMS, ids=repr)


def exact(kind: Divergence, p: Row, q: Row) -> float:
    """The divergence of two distributions; they are scaled to sum to one to the last digit of mpmath."""
    term = TERMS[kind]
    sum_p, sum_q = mp.fsum(p), mp.fsum(q)
    return float(mp.fsum(term(x / sum_p, y / sum_q) for x, y in zip(p, q, strict=True)))


def distribution(rng: random.Random, classes: int) -> Row:
    weights = [math.exp(2 * rng.gauss(0, 1)) for _ in range(classes)]
    return [w / math.fsum(weights) for w in weights]


def listing(row: Row, ids: list[int]) -> TopK:
    return TopK(torch.tensor([ids]), torch.tensor([[row[i] for i in ids]], dtype=torch.float64).log())


def completions(rng: random.Random, row: Row, ids: list[int], count: int) -> Iterator[Row]:
    """Distributions with the listed probabilities of `row`: those with all else on one class, and random ones."""
    others = [i for i in range(len(row)) if i not in ids]
    left = math.fsum(row[i] for i in others)
    shares = [[float(i == j) for j in others] for i in others]
    shares += [distribution(rng, len(others)) for _ in range(count if others else 0)]
    for share in shares or [[]]:
        full = [row[i] if i in ids else 0.0 for i in range(len(row))]
        for i, x in zip(others, share, strict=True):
            full[i] = left * x
        yield full


def case(seed: int, classes: int, kp: int, kq: int) -> tuple[random.Random, Row, Row, list[int], list[int]]:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    p, q = distribution(rng, classes), distribution(rng, classes)
    return rng, p, q, rng.sample(range(classes), kp), rng.sample(range(classes), kq)


@EACH
@pytest.mark.parametrize("seed", range(6))
def test_every_completion_lies_between_the_bounds(kind: Divergence, seed: int) -> None:
    classes, kp, kq = [(6, 2, 2), (6, 3, 1), (7, 4, 2), (5, 4, 4), (6, 5, 3), (8, 3, 5)][seed]
    rng, p, q, ids_p, ids_q = case(seed, classes, kp, kq)
    for known in (None, classes):
        found = top_k_divergence_bounds(listing(p, ids_p), listing(q, ids_q), kind, classes=known)
        lower, upper = found.lower.item(), found.upper.item()
        values = [
            exact(kind, full_p, full_q)
            for full_p, full_q in itertools.product(
                completions(rng, p, ids_p, 4), completions(rng, q, ids_q, 4)
            )
        ]
        assert 0 <= lower <= min(values) * (1 + 1e-12) + 1e-13
        assert max(values) <= upper * (1 + 1e-12) + 1e-13


@EACH
@pytest.mark.parametrize("seed", range(8))
def test_the_bounds_are_attained_where_two_more_classes_are_left(kind: Divergence, seed: int) -> None:
    _, p, q, ids_p, ids_q = case(seed, 9, 4, 4)
    found = top_k_divergence_bounds(listing(p, ids_p), listing(q, ids_q), kind)
    only_p, only_q = sorted({*ids_p} - {*ids_q}), sorted({*ids_q} - {*ids_p})
    p_a, q_b = math.fsum(p[i] for i in only_p), math.fsum(q[i] for i in only_q)
    p_0 = 1 - math.fsum(p[i] for i in ids_p)
    q_0 = 1 - math.fsum(q[i] for i in ids_q)
    union = sorted({*ids_p, *ids_q})
    ratio = (p_a + p_0) / (q_b + q_0)
    # The closest pair: what one list lacks in proportion to what the other has, as far as its mass goes.
    share_q, share_p = min(p_a / ratio, q_0), min(q_b * ratio, p_0)
    near_p = [p[i] if i in ids_p else share_p * q[i] / q_b for i in union] + [p_0 - share_p]
    near_q = [q[i] if i in ids_q else share_q * p[i] / p_a for i in union] + [q_0 - share_q]
    near_p[-1], near_q[-1] = max(near_p[-1], 0), max(near_q[-1], 0)
    if not only_p:
        near_q = [q[i] for i in union] + [q_0]
    if not only_q:
        near_p = [p[i] for i in union] + [p_0]
    assert found.lower.item() == pytest.approx(exact(kind, near_p, near_q), rel=1e-9, abs=1e-12)
    far_p = [p[i] if i in ids_p else 0.0 for i in union] + [p_0, 0.0]
    far_q = [q[i] if i in ids_q else 0.0 for i in union] + [0.0, q_0]
    assert found.upper.item() == pytest.approx(exact(kind, far_p, far_q), rel=1e-9)


@EACH
@pytest.mark.parametrize("seed", range(6))
def test_the_upper_bound_is_attained_where_all_classes_are_listed(kind: Divergence, seed: int) -> None:
    rng, p, q, _, _ = case(seed, 6, 1, 1)
    order = rng.sample(range(6), 6)
    ids_p, ids_q = order[: 3 + seed % 3], order[2 - seed % 2 :]
    found = top_k_divergence_bounds(listing(p, ids_p), listing(q, ids_q), kind, classes=6)
    values = [
        exact(kind, full_p, full_q)
        for full_p, full_q in itertools.product(completions(rng, p, ids_p, 0), completions(rng, q, ids_q, 0))
    ]
    assert found.upper.item() == pytest.approx(max(values), rel=1e-9)


@EACH
def test_lists_of_all_classes_leave_no_doubt(kind: Divergence) -> None:
    rng, p, q, _, _ = case(3, 7, 1, 1)
    ids_p, ids_q = rng.sample(range(7), 7), rng.sample(range(7), 7)
    found = top_k_divergence_bounds(listing(p, ids_p), listing(q, ids_q), kind, classes=7)
    assert found.lower.item() == pytest.approx(exact(kind, p, q), rel=1e-12)
    assert found.upper.item() == pytest.approx(found.lower.item(), rel=1e-12)


@EACH
def test_equal_lists_may_be_equal_distributions(kind: Divergence) -> None:
    _, p, _, ids, _ = case(1, 9, 4, 1)
    found = top_k_divergence_bounds(listing(p, ids), listing(p, ids[::-1]), kind)
    assert found.lower.item() == 0
    assert found.upper.item() > 0


def test_bounded_divergences_stay_within_their_range() -> None:
    p, q = listing([0.5, 0.5, 0.0], [0]), listing([0.5, 0.25, 0.25], [1])
    assert top_k_divergence_bounds(p, q, TotalVariation()).upper.item() == pytest.approx(1, rel=1e-12)
    assert top_k_divergence_bounds(p, q, JensenShannon()).upper.item() == pytest.approx(
        math.log(2), rel=1e-12
    )
    assert top_k_divergence_bounds(p, q, TotalVariation()).upper.item() <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_rounding_leaves_outside_the_list_is_no_difference(dtype: torch.dtype) -> None:
    """Masses left that differ by less than the rounding of the listed ones may be equal, and never make KL infinite."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 16, generator=generator, dtype=torch.float64)
    logits[:, 8:] -= 25
    values, ids = logits.log_softmax(-1).topk(8)
    other = (logits + 0.0).log_softmax(-1).gather(-1, ids)
    p, q = TopK(ids, values.to(dtype)), TopK(ids, other.to(torch.float64))
    found = top_k_divergence_bounds(p, q, KL())
    assert bool(found.lower.isfinite().all())
    listed = top_k_divergence_bounds(p, p, KL()).lower
    assert listed.tolist() == [0.0] * 200


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(
    "kind", [KL(), ReverseKL(), JensenShannon(), TotalVariation(), ChiSquared()], ids=repr
)
def test_the_rounding_of_the_lists_moves_no_bound_past_the_truth(
    kind: Divergence, noise: float, dtype: torch.dtype
) -> None:
    """Models that differ by less than what their lists are rounded to, and by more."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(300, 20, generator=generator, dtype=torch.float64)
    other = logits + noise * torch.randn(300, 20, generator=generator, dtype=torch.float64)
    truth = divergence(Logits(logits), Logits(other), kind)
    for k, classes in ((8, None), (18, 20), (20, 20)):
        (values_p, ids_p), (values_q, ids_q) = (x.log_softmax(-1).topk(k) for x in (logits, other))
        found = top_k_divergence_bounds(
            TopK(ids_p, values_p.to(dtype)), TopK(ids_q, values_q.to(dtype)), kind, classes=classes
        )
        assert bool((found.lower <= truth).all())
        assert bool((found.upper >= truth).all())


def test_many_rows_of_unequal_length_equal_each_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    log_p = (2 * torch.randn(50, 12, generator=generator, dtype=torch.float64)).log_softmax(-1)
    log_q = (2 * torch.randn(50, 12, generator=generator, dtype=torch.float64)).log_softmax(-1)
    (values_p, ids_p), (values_q, ids_q) = log_p.topk(5), log_q.topk(4)
    values_p[::3, 3:] = -torch.inf  # padding, whose class may be any
    ids_p[::3, 3:] = ids_q[::3, :2]
    together = top_k_divergence_bounds(
        TopK(ids_p.view(5, 10, 5), values_p.view(5, 10, 5)),
        TopK(ids_q.view(5, 10, 4), values_q.view(5, 10, 4)),
        KL(),
    )
    assert together.lower.shape == (5, 10)
    for row in range(50):
        k = 3 if row % 3 == 0 else 5
        alone = top_k_divergence_bounds(
            TopK(ids_p[row, :k], values_p[row, :k]), TopK(ids_q[row], values_q[row]), KL()
        )
        assert together.lower.view(-1)[row].item() == pytest.approx(alone.lower.item(), rel=1e-12, abs=1e-14)
    assert bool((together.lower <= (log_p.exp() * (log_p - log_q)).sum(-1).view(5, 10) + 1e-12).all())


def response(*rows: dict[int, float], tokens: list[int]) -> dict[str, object]:
    listed = [None, *({str(i): {"logprob": x} for i, x in row.items()} for row in rows)]
    return {"prompt_logprobs": listed, "prompt_token_ids": tokens}


def test_blocks_of_two_servers_are_compared_with_their_true_tokens() -> None:
    base = open_top_k(response({4: -0.5, 1: -3.0}, tokens=[0, 1]), classes=9)
    candidate = open_top_k(response({4: -0.6, 1: -2.0}, tokens=[0, 1]))
    p, q = next(base.blocks()), next(candidate.blocks())
    found = top_k_divergence_bounds(p, q, KL())
    rows = [[math.exp(-0.5), math.exp(-3)], [math.exp(-0.6), math.exp(-2)]]
    whole = [[*row, 1 - math.fsum(row)] for row in rows]
    assert found.lower.item() == pytest.approx(exact(KL(), *whole), rel=1e-4)  # float32
    assert found.lower.item() <= exact(KL(), *whole)
    other = next(open_top_k(response({4: -0.6}, tokens=[0, 4])).blocks())
    with refused(
        ArgumentValueError, wanted="positions of one text$", got="^true token 1 at sequence 0, position 1"
    ):
        top_k_divergence_bounds(p, other, KL())


@EACH
def test_two_references_are_bounded_with_their_draws_and_labels(kind: Divergence) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(2, 20, 12, generator=generator, dtype=torch.float64)
    labels, uniforms = torch.arange(20) % 12, torch.rand(20, 6, generator=generator, dtype=torch.float64)
    p, q = (summarize_rows(x.clone(), labels, top=3, uniforms=uniforms) for x in logits)
    true = divergence(Logits(logits[0]), Logits(logits[1]), kind)
    bounds = top_k_divergence_bounds(p, q, kind)
    assert bool((bounds.lower <= true).all())
    assert bool((true <= bounds.upper).all())
    tops = [TopK(x.top_indices, x.top_log_probs) for x in (p, q)]
    assert bool((bounds.lower >= top_k_divergence_bounds(*tops, kind).lower - 1e-4).all())
    assert float(bounds.lower.mean()) > float(top_k_divergence_bounds(*tops, kind).lower.mean())


def test_arguments_are_checked() -> None:
    p = listing([0.5, 0.5], [0])
    two = TopK(p.indices.expand(2, 1), p.log_probs.expand(2, 1))
    with refused(
        ArgumentTypeError, call="top_k_divergence_bounds", argument="q", wanted="^a TopK or PartialRows"
    ):
        top_k_divergence_bounds(p, torch.zeros(1, 1), KL())  # pyright: ignore[reportArgumentType]
    with refused(
        ArgumentValueError, wanted="the same positions on one device$", got=r"^shapes \(1,\) and \(2,\)"
    ):
        top_k_divergence_bounds(p, two, KL())
    with pytest.raises(ArgumentValueError, match=r"got Renyi\(alpha=2\.0\)\. Write: kind=Alpha\(2\.0\)"):
        top_k_divergence_bounds(p, p, Renyi(2.0))
    assert top_k_divergence_bounds(p, p, Alpha(2.0)).lower.item() == 0
    with refused(ArgumentValueError, wanted="^tail='bucket'"):
        top_k_divergence_bounds(p, TopK(p.indices, p.log_probs, tail="renormalize"), KL())
    logits = {"logits": torch.zeros(1, 1, 3), "indices": torch.arange(3).view(1, 1, 3)}
    with refused(ArgumentValueError, got="^only logits of the listed classes"):
        top_k_divergence_bounds(p, next(open_top_k(logits).blocks()), KL())


@pytest.mark.parametrize("classes", [0, -1, 2.5, "3", True])
def test_a_number_of_classes_that_is_none_is_refused(classes):
    top = TopK(torch.tensor([[0, 2]]), torch.tensor([[0.5, 0.25]]).log())
    with refused(KullbackError, argument="classes"):
        top_k_divergence_bounds(top, top, KL(), classes=classes)


@pytest.mark.parametrize("side", ["p", "q"])
def test_mass_outside_a_list_of_all_classes_is_refused(side):
    part, whole = listing([0.5, 0.3, 0.2], [0, 1]), listing([0.6, 0.4], [1, 0])
    sides = {"p": whole, "q": whole, side: part}
    message = (
        rf"\({side}=\.\.\., classes=\.\.\.\): wanted no mass outside a list of all 2 classes, within 1e-06 "
        r"\(torch\.float64\); got 0\.2 outside that of row 0, the first of 1\. Write: classes=3 or more"
    )
    with pytest.raises(ArgumentValueError, match=message):
        top_k_divergence_bounds(sides["p"], sides["q"], KL(), classes=2)
    for remedy in (3, None):
        found = top_k_divergence_bounds(sides["p"], sides["q"], JensenShannon(), classes=remedy)
        assert 0 < found.lower.item() <= found.upper.item() < 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_rounding_leaves_of_a_list_of_all_classes_is_none(dtype):
    log_probs = torch.tensor([[0.55, 0.45]], dtype=torch.float64).log()
    rounded = TopK(torch.tensor([[0, 1]]), log_probs.mul(1 + torch.finfo(dtype).eps).to(dtype))
    assert top_k_divergence_bounds(rounded, rounded, KL(), classes=2).lower.item() == 0
    # Padding is no class: of these two one is listed, so that what is left is the other's.
    one = TopK(torch.tensor([[0, 0]]), torch.tensor([[0.55, 0.0]], dtype=torch.float64).log().to(dtype))
    found = top_k_divergence_bounds(one, rounded, TotalVariation(), classes=2)
    assert found.lower.item() == 0
    assert found.upper.item() < 0.1


@pytest.mark.parametrize("side", ["p", "q"])
def test_an_index_beyond_the_classes_is_refused(side):
    tops = {name: TopK(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.25]]).log()) for name in "pq"}
    tops[side] = TopK(torch.tensor([[0, 3]]), torch.tensor([[0.5, 0.25]]).log())
    with pytest.raises(KullbackError, match=rf"\({side}=.*index 3. Write: classes=4"):
        top_k_divergence_bounds(tops["p"], tops["q"], KL(), classes=3)
    assert top_k_divergence_bounds(tops["p"], tops["q"], KL(), classes=4).upper > 0
