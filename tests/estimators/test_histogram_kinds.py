"""Kinds other than KL from draws of numbers, by the histogram: truths by quadrature."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats as st
import torch
from scipy.special import rel_entr
from torch.distributions import Categorical, MultivariateNormal, Normal

from kullback import Counts, Probs, Samples, divergence, estimate, kl_estimate
from kullback.errors import NoRuleError
from kullback.estimators import bias_corrected, histogram
from tests.refusals import refused

PAIRS: dict[str, tuple[Any, Any]] = {
    "a shift": (st.norm(), st.norm(0.5)),
    "equal": (st.norm(), st.norm()),
    "far apart": (st.norm(), st.norm(4)),
    "exponentials": (st.expon(), st.expon(scale=2)),
    "heavy tails": (st.t(3), st.norm()),
    "ends": (st.uniform(), st.beta(2, 2)),
}


def integral(f: Any, p: Any, q: Any) -> float:
    """Sum Gauss and Legendre's rule over panels that end where the densities do."""
    ends = [p.ppf(1e-13), q.ppf(1e-13), p.isf(1e-13), q.isf(1e-13)]
    cuts = np.linspace(min(ends), max(ends), 2001)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = np.diff(cuts)[:, None] / 2
    x = (cuts[1:] + cuts[:-1])[:, None] / 2 + half * nodes
    return float((half * weights * f(p.pdf(x), q.pdf(x))).sum())


def truth(kind: str, p: Any, q: Any) -> float:
    if kind == "js":
        return integral(lambda a, b: (rel_entr(a, (a + b) / 2) + rel_entr(b, (a + b) / 2)) / 2, p, q)
    if kind == "tv":
        return integral(lambda a, b: abs(a - b) / 2, p, q)
    overlap = integral(lambda a, b: np.sqrt(a * b), p, q)
    return -2 * math.log(overlap) if kind == "renyi:0.5" else 4 * (1 - overlap)


def draws(name: str, seed: int, n: int) -> tuple[Samples, Samples]:
    rng = np.random.default_rng(seed)
    p, q = PAIRS[name]
    return Samples(p.rvs(n, random_state=rng)), Samples(q.rvs(n, random_state=rng))


@pytest.mark.sweep
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["js", "tv", "renyi:0.5"])
def test_intervals_of_bounded_kinds_hold_and_end(name: str, kind: str) -> None:
    wanted, held = truth(kind, *PAIRS[name]), 0
    for seed in range(5):
        found = estimate(*draws(name, seed, 400), kind=kind)
        assert found.method == "histogram"
        assert found.interval is not None
        assert found.standard_error is not None
        low, high = map(float, found.interval)
        assert low <= float(found.value) <= high < math.inf
        held += low <= wanted <= high
    assert held >= 4


@pytest.mark.parametrize("kind", ["chi2", "renyi:2", "alpha:2", "alpha:-1"])
@pytest.mark.parametrize("name", ["equal", "heavy tails"])
def test_powers_that_the_tails_decide_have_no_upper_end(name: str, kind: str) -> None:
    found = estimate(*draws(name, 0, 400), kind=kind)
    assert found.interval is not None
    assert math.isinf(float(found.interval[1]))
    assert math.isfinite(float(found.value))
    assert any("unobserved ends of the tails" in note for note in found.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_the_remedies_for_powers_that_the_tails_decide_have_an_upper_end(shift: float) -> None:
    edges = np.linspace(-1.5, 1.5, 7)
    remedy = (
        "Samples(np.digitize(x, edges)). The divergence of the bins is a lower bound of the divergence of the"
    )
    of_p, of_q = (np.diff(st.norm(mean).cdf([-np.inf, *edges, np.inf])) for mean in (shift, 0.0))
    wanted, covered = float((of_p**2 / of_q).sum()) - 1, 0
    assert wanted <= math.expm1(shift**2) + 1e-12
    for seed in range(10):
        x, y = np.random.default_rng(seed).standard_normal((2, 400))
        x = x + shift
        assert any(remedy in note for note in estimate(Samples(x), Samples(y), kind="chi2").notes)
        in_bins = estimate(Samples(np.digitize(x, edges)), Samples(np.digitize(y, edges)), kind="chi2")
        assert in_bins.interval is not None
        low, high = map(float, in_bins.interval)
        assert high < math.inf, seed
        covered += low <= wanted + 1e-12 and wanted <= high
        for kind, largest in (("js", math.log(2)), ("hellinger", 4.0)):
            bounded = estimate(Samples(x), Samples(y), kind=kind).interval
            assert bounded is not None
            assert float(bounded[1]) < largest / 2, (kind, seed)
    assert covered >= 9, covered


def test_both_directions_are_those_of_kl() -> None:
    p, q = draws("exponentials", 0, 400)
    forward, back = histogram(p, q), histogram(q, p)
    assert histogram(p, q, kind="reverse_kl").value == back.value
    assert float(histogram(p, q, kind="jeffreys").value) == pytest.approx(
        float(forward.value + back.value), rel=1e-12
    )
    assert estimate(p, q, kind="reverse_kl").interval == back.interval


def test_bits_are_nats_over_their_logarithm() -> None:
    p, q = draws("a shift", 0, 400)
    nats, bits = estimate(p, q, kind="js"), estimate(p, q, kind="js", base=2)
    assert float(bits.value) == pytest.approx(float(nats.value) / math.log(2), rel=1e-12)


def test_prices_and_vectors() -> None:
    x, y = np.repeat(np.arange(1.99, 400, 10), 9), np.repeat(np.arange(0.95, 400, 7), 9)
    codes = np.unique(np.concatenate([x, y]), return_inverse=True)[1]
    found = estimate(Samples(x), Samples(y), kind="tv")
    assert found.value == bias_corrected(Samples(codes[: len(x)]), Samples(codes[len(x) :]), "tv").value
    vectors = Samples(np.random.default_rng(0).standard_normal((50, 2)))
    with refused(NoRuleError, wanted="categories or numbers on both sides"):
        estimate(vectors, vectors, kind="js")


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CELLS = "Counts(torch.histogramdd({}, edges).hist.flatten())"
OF_CELLS = f"divergence({CELLS.format('x')}, {CELLS.format('y')}, kind)"
SHIFT = 2**0.5
FAR, NEXT = (
    Normal(torch.tensor(SHIFT).double(), 1.0),
    MultivariateNormal(torch.ones(2).double(), torch.eye(2).double()),
)
PAIR_OF_VECTORS = Samples(normals(4000, 2)), Samples(normals(4000, 2, seed=1) + 1)
# What is refused, and the call that the refusal names. All are a distance of sqrt(2) apart.
REMEDIES: dict[str, tuple[Any, Any, str]] = {
    "vectors": (*PAIR_OF_VECTORS, OF_CELLS),
    "vectors, Q known": (PAIR_OF_VECTORS[0], NEXT, OF_CELLS),
    "numbers, Q known": (Samples(normals(4000)), FAR, "divergence(p, Samples(q.sample((n,))), kind)"),
    "numbers, P known": (FAR, Samples(normals(4000)), "divergence(Samples(p.sample((n,))), q, kind)"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_remedies_for_other_kinds_work(name: str) -> None:
    p, q, instead = REMEDIES[name]
    with pytest.raises(NoRuleError) as refusal:
        divergence(p, q, "tv")
    assert f"Write: {instead}" in str(refusal.value)
    edges = [torch.linspace(-6, 7, 27).double()] * 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x, y = (s.tensor if isinstance(s, Samples) else s.sample((4000,)) for s in (p, q))
        names = {"p": p, "q": q, "x": x, "y": y, "n": 4000, "kind": "tv", "edges": edges}
        found = eval(instead, globals(), names)  # noqa: S307
    assert float(found) == pytest.approx(math.erf(0.5), abs=0.06)


def test_the_remedies_for_a_method_and_for_categories_work() -> None:
    numbers = Samples(normals(200)), Samples(normals(200, seed=1))
    with refused(NoRuleError, instead=r"^divergence\(p, q, kind\) without method"):
        divergence(*numbers, "tv", method="nearest_neighbors")
    assert divergence(*numbers, "tv").isfinite()
    codes, row = torch.tensor([0, 0, 1, 2]), Probs([0.25, 0.25, 0.5])
    for p, q in ((Samples(codes), row), (row, Samples(codes))):
        with refused(
            NoRuleError, instead=r"^Counts\(torch.bincount\(x.long\(\), minlength=classes\)\) in place"
        ):
            divergence(p, q, "tv")
    counted = Counts(torch.bincount(codes.long(), minlength=3))
    assert divergence(counted, row, "tv").item() == pytest.approx(0.25)
    with refused(NoRuleError, instead=r"^Samples\(x.long\(\)\) on both sides"):
        divergence(Samples(codes), Samples(codes.double()), "tv")
    assert divergence(Samples(codes), Samples(codes.double().long()), "tv") == 0


def test_weighted_draws_beside_a_known_density_and_categories() -> None:
    x = normals(4000) + 1
    weights = torch.exp((x - 1) * 0.5)  # of draws from Normal(1.5, 1)
    found = kl_estimate(Samples(x, weights=weights), Normal(torch.zeros(()).double(), 1.0))
    assert found.interval is not None
    assert float(found.interval[0]) < 1.125 < float(found.interval[1])
    codes, weights = torch.arange(3), torch.tensor([2.0, 1.0, 1.0]).double()
    many = Samples(codes.repeat(500), weights=weights.repeat(500))
    known = kl_estimate(many, Categorical(probs=torch.tensor([0.25, 0.25, 0.5]).double()))
    assert float(known.value) == pytest.approx(math.log(2) / 4, abs=0.01)
