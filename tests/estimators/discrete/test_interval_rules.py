"""When counts give an upper end, and the ends themselves: what mutation testing found untested."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch

from kullback.estimators.discrete.categorical_estimators import zhang_grabchak
from kullback.estimators.discrete.count_intervals import has_upper_end, kl_interval
from kullback.estimators.discrete.formulas import FEWEST_DRAWS, CategoryCounts


def counts(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def coarser(a, b):
    table = CategoryCounts.of(a, b).coarser
    return table.a, table.b


@pytest.mark.parametrize(
    ("a", "b", "half_width", "answer"),
    [
        # Two draws where Q, which showed each of the others often, has none: 8 nats each against half of the interval.
        ((98, 2), (100, 0), None, False),
        ((98, 2), (100, 0), 0.159, False),
        ((98, 2), (100, 0), 0.161, True),
        ((99, 1), (100, 0), 0.0, True),  # one draw alone is chance
        ((960, 51), (900, 0), 10.0, False),  # more than 5 %
        ((960, 50), (900, 0), 10.0, False),  # or significantly more than where Q showed one or two
        # Against categories that Q showed once or twice: 3.5 more are 1.698 standard errors, 4.5 are 1.96.
        ((200, 4, 1), (97, 0, 1), 0.0, True),
        ((200, 5, 1), (97, 0, 1), 0.0, False),
        ((200, 4, 1), (97, 0, 2), 0.0, True),
        ((200, 5, 1), (97, 0, 2), 0.0, False),
        ((200, 8, 4), (97, 0, 1), 10.0, False),  # 6 more, 2 standard errors
        ((200, 5, 1), (97, 0, 3), 10.0, False),
        ((200, 3, 0), (97, 0, 3), 10.0, False),  # 3 are the fewest that differ
        ((200, 2, 0), (97, 0, 3), 10.0, True),
    ],
)
def test_an_upper_end_needs_what_q_has_not_shown_to_be_rare(a, b, half_width, answer):
    given = () if half_width is None else (half_width,)
    assert bool(has_upper_end(CategoryCounts(counts(*a), counts(*b)), *given)) == answer


@pytest.mark.parametrize("factor", [0.97, 1.0, 1.02])
@pytest.mark.parametrize("draws", [2, 3, 5])
def test_weights_that_differ_little_leave_the_upper_end(factor, draws):
    """Weights make effective numbers of draws that are no integers: one of 0.97 is a category that Q drew once."""
    a, b = counts(50, 47, 1, 1, draws), counts(60, 32, 1, 1, 0)
    assert bool(has_upper_end(CategoryCounts(a, b), 0.1)) == (draws < 5)
    assert bool(has_upper_end(CategoryCounts(a, b * factor), 0.1)) == (draws < 5)


def test_of_bins_only_the_share_that_q_never_showed_counts():
    assert bool(has_upper_end(CategoryCounts(counts(95, 5), counts(50, 0), bins=True)))
    assert not bool(has_upper_end(CategoryCounts(counts(94, 6), counts(50, 0), bins=True)))
    assert not bool(has_upper_end(CategoryCounts(counts(95, 5), counts(50, 0))))


def test_rare_categories_become_one():
    a, b = coarser(counts(50, 5, 4, 1, 0), counts(51, 5, 5, 0, 4))  # 60 and 65 draws
    assert FEWEST_DRAWS == 10
    # 2 * 60 / 125 of the sum of both: 9.6 draws are rare.
    assert a.tolist() == [50, 0, 0, 0, 0, 10]
    assert b.tolist() == [51, 0, 0, 0, 0, 14]
    a, b = coarser(counts(50, 5, 5), counts(50, 5, 5))
    assert a.tolist() == [50, 5, 5, 0]
    assert b.tolist() == [50, 5, 5, 0]


def of_chi_square(x, y, estimate: float, added: float, c: float, alpha: float, spread: float = 1.0) -> float:
    """The lower end from a noncentral chi-square of the same variance, whose tail is longer for small counts."""
    both = (x > 0) & (y > 0)
    number, scale = int(both.sum()), float(1 / x.sum() + 1 / y.sum())
    excess = (
        float((1 / x + 1 / y)[both].sum()) / 2 * (number - 2) / (number * (number - 1)) if number > 2 else 0.0
    )
    excess, of_equal = min(excess, 0.5), max(number - 1, 0) / 2 * scale
    longer = 2 * scale * spread * (1 + 2 * excess)
    unit = max(c, (c * (estimate + of_equal) + longer * of_equal) / (estimate + 2 * of_equal)) / 4
    dof = (spread * of_equal * scale * (1 + excess) + added) / (2 * unit**2)
    if dof == 0:
        return np.inf

    def excess_of_tail(t: float) -> float:
        below = alpha / 2 * t / (t + np.sqrt(2 * dof))
        return scipy.stats.ncx2.sf(dof + estimate / unit, dof, t) - (alpha - below)

    if scipy.stats.chi2.sf(dof + estimate / unit, dof) >= alpha:
        return 0.0
    return unit * scipy.optimize.brentq(excess_of_tail, 1e-9, dof + estimate / unit, xtol=1e-11)


@pytest.mark.parametrize(("confidence", "spread"), [(0.8, 1.0), (0.95, 4.0)])
@pytest.mark.parametrize("inflation", [(1.0, 1.0), (4.0, 1.0), (1.0, 3.0)])
def test_the_ends_are_the_roots_of_their_equation(inflation, spread, confidence):
    """(T - t)^2 = z^2 (S + t c), solved as a polynomial in t, for categories of which none is rare."""
    a, b = counts(300, 200, 100, 50), counts(60, 180, 250, 160)
    scale = float(1 / a.sum() + 1 / b.sum())
    change, of_equal = CategoryCounts(a, b).correction, 1.5 * scale  # (K - 1) / 2 (1 / n + 1 / m)
    estimate = float(zhang_grabchak.of_counts(a, b) + change.shrunken)
    # Dependence multiplies the part of a variance that grows with t alone.
    share = of_equal / (estimate + of_equal / 2)
    variances = [
        float(v) * (f + (f - 1) * share)
        for v, f in zip(CategoryCounts(a, b).variances, inflation, strict=True)
    ]
    c = sum(variances) / (estimate + of_equal)
    assert c > 2 * scale  # not near P = Q
    z = scipy.stats.norm.ppf((1 + confidence) / 2)
    variance = spread * float(CategoryCounts(a, b).second_order.variance) + float(change.variance)
    low, high = np.sort(np.roots([1, -2 * estimate - z * z * c, estimate**2 - z * z * variance]))
    found = kl_interval(CategoryCounts(a, b, inflation, spread), confidence)
    low = min(low, of_chi_square(a, b, estimate, float(change.variance), c, 1 - confidence, spread))
    assert float(found[0]) == pytest.approx(low + min(0.0, float(change.predicted)), rel=1e-9)
    assert float(found[1]) == pytest.approx(high + 1.5 * max(0.0, float(change.predicted)), rel=1e-9)


def test_near_equality_the_variance_is_that_of_a_chi_square():
    """Equal proportions show no first-order variance; the upper end still allows for the one that larger t have."""
    a = counts(500, 300, 200)
    low, high = kl_interval(CategoryCounts(a, a))
    scale = 2 / 1000
    z = scipy.stats.norm.ppf(0.975)
    assert float(low) == 0
    # t of which T = 0 is not rejected: t^2 = z^2 (S + t c) with half of c's limit, 2 (1 / n + 1 / m), at T = 0.
    change = CategoryCounts(a, a).correction
    assert -1.01 * scale < float(zhang_grabchak.of_counts(a, a) + change.shrunken) <= 0
    assert float(CategoryCounts(a, a).second_order.variance) == pytest.approx(scale**2, rel=0.05)
    s = float(CategoryCounts(a, a).second_order.variance + change.variance)
    # With three categories (K - 1) / 2 is 1; the first-order variance is all but 0.
    variance = float(sum(CategoryCounts(a, a).variances))
    assert variance < 1e-3 * scale**2
    c = (variance / scale + 2 * scale) / 2
    expected = z * z * c / 2 + z * (s + (z * c / 2) ** 2) ** 0.5
    assert float(high) == pytest.approx(expected, rel=1e-6)


# One for each rule: none is rare; rare in Q, in P; shown by Q alone; more than 5 % of P's draws where Q has none,
# exactly 5 %, and in categories drawn once; two draws that Q has not shown; P = Q; no draws in common.
TABLES = [
    ((300, 200, 100, 50), (60, 180, 250, 160)),
    ((500, 300, 9, 6, 2), (400, 300, 1, 1, 0)),
    ((900, 8, 7, 6, 5, 4, 3), (800, 0, 0, 0, 1, 1, 2)),
    ((500, 300, 1, 1, 1, 2), (400, 350, 5, 6, 7, 8)),
    ((100, 50, 0, 0), (80, 60, 10, 5)),
    ((100, 30, 0), (40, 90, 1)),
    ((30, 20, 0, 0), (300, 10, 5, 15)),
    ((40, 50, 10, 0), (90, 10, 0, 3)),
    ((40, 14, 3, 3), (20, 34, 6, 0)),
    ((10, 30, 1, 1, 1), (30, 10, 4, 3, 2)),
    ((40, 58, 2), (90, 20, 0)),
    ((60, 38, 2), (90, 20, 0)),
    ((500, 300, 200), (500, 300, 200)),
    ((30, 0), (0, 40)),
    ((20, 0), (4950, 50)),
    ((17, 3), (4950, 50)),
    ((18, 1, 1), (900, 20, 80)),
    ((980, 20), (100, 0)),
]


def plain_interval(a, b, z: float, *, bins: bool = False) -> tuple[float, float]:
    """The ends table by table, from the roots of their equation."""
    change = CategoryCounts(a, b).correction

    def roots(x, y, shrunken: float, added: float) -> np.ndarray:
        scale, dof = float(1 / x.sum() + 1 / y.sum()), int(((x > 0) & (y > 0)).sum()) - 1
        of_equal = max(dof, 0) / 2 * scale
        estimate = max(0.0, float(zhang_grabchak.of_counts(x, y)) + shrunken)
        first = float(sum(CategoryCounts(x, y).variances))
        floor = (first + 2 * scale * of_equal) / (estimate + 2 * of_equal)
        c = max(first / (estimate + of_equal), min(floor, 2 * scale))
        variance = of_equal * scale + added
        low, high = np.sort(np.roots([1, -2 * estimate - z * z * c, estimate**2 - z * z * variance]).real)
        if low > 0:
            low = min(low, of_chi_square(x, y, estimate, added, c, 2 * scipy.stats.norm.sf(z)))
        return np.array([low, high])

    def with_few(x, y) -> tuple[float, float]:
        """What T changes by with P's probability of its rarest categories at its limits."""
        n, changes = float(x.sum()), [0.0]
        for k in range(4):
            rare = (x <= k) & (y > 0)
            drawn, q = float(x[rare].sum()), float(y[rare].sum() / y.sum())
            if drawn > 3 or not 0 < q < 1:
                continue
            limits = [
                np.roots([n + z * z, -2 * c - z * z, c * c / n]).real  # of n (c / n - p)^2 = z^2 p (1 - p)
                for c in (max(drawn - 0.5, 0.0), min(drawn + 0.5, n))
            ]
            least, most = min(limits[0]), max(limits[1])
            for p in (min(max(q, least), most), most):
                before, after = (scipy.stats.entropy([r, 1 - r], [q, 1 - q]) for r in (drawn / n, p))
                changes.append(float(after - before))
        return min(changes), max(changes)

    def least(x, y, *more: float) -> float:
        only_q, only_p = (x == 0) & (y > 0), (x > 0) & (y == 0)
        half = torch.cat([x, torch.tensor([0.5 if only_q.any() else 0.0])])
        moved = torch.cat([torch.where(only_q, 0, y), y[only_q].sum()[None]])
        half_q = torch.cat([y, torch.tensor([0.5 if only_p.any() else 0.0])])
        moved_p = torch.cat([torch.where(only_p, 0, x), x[only_p].sum()[None]])
        few = float(zhang_grabchak.of_counts(x, y)) + (more[0] if more else 0.0) + with_few(x, y)[0]
        pairs = ((x, y), (half, moved), (moved_p, half_q))
        return min(few, *(roots(*pair, *more)[0] for pair in pairs))

    more = float(change.shrunken), float(change.variance)
    high = max(roots(a, b, *more)[1], float(zhang_grabchak.of_counts(a, b)) + more[0] + with_few(a, b)[1])
    high = high + 1.5 * max(0.0, float(change.predicted))
    low = least(a, b, *more) + min(0.0, float(change.predicted))
    if max(a[b == 0].sum(), a[a == 1].sum()) * 20 > a.sum():
        low = least(*coarser(a, b), 0.0, 0.0)
    bounded = has_upper_end(CategoryCounts.of(a, b, bins=bins), (high - low) / 2)
    return max(0.0, low), high if bounded else np.inf


@pytest.mark.parametrize("bins", [None, False, True])
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_every_rule_of_the_ends_is_that_of_a_plain_loop(table, bins):
    a, b = (counts(*row) for row in table)
    given = {} if bins is None else {"bins": bins}
    want = plain_interval(a, b, scipy.stats.norm.ppf(0.975), **given)
    for shape in ((), (2, 3)):
        low, high = kl_interval(CategoryCounts(a.expand(*shape, -1), b.expand(*shape, -1), **given))
        assert low.shape == high.shape == shape
        for ours, true in ((low, want[0]), (high, want[1])):
            assert ours.flatten().tolist() == pytest.approx([true] * ours.numel(), rel=1e-9, abs=1e-14)
