"""Derivatives by the ends of Q, each shared with P, over kinds and the powers of both densities at the ends.

The truth is an integral by mpmath. If the upper end u of Q moves outwards, the derivative of D_f(P || Q) is that of
q f(p / q) - f(0) q by log q, times that of log q by u, integrated over P's support: Q has the mass 1, and the strip
beyond P contributes f(0) q. For a kind with an infinite f(0), P and Q are exchanged.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.distributions import (
    AffineTransform,
    Beta,
    Distribution,
    Gamma,
    Kumaraswamy,
    TransformedDistribution,
)

from kullback import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    FDivergence,
    Jeffreys,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
    divergence,
)

LOW, HIGH = 0.25, 1.0
# The powers of P and of Q at the lower end and at the upper end.
POWERS = [
    (1.0, 2.5, 1.0, 0.6),
    (2.5, 1.0, 0.6, 1.0),
    (2.5, 3.0, 0.75, 0.5),
    (3.0, 2.5, 2.0, 1.5),
    (1.0, 1.0, 1.0, 2.5),
    (1.5, 1.0, 0.75, 0.5),
    (1.0, 1.0, 0.75, 0.5),
    (2.0, 1.5, 2.5, 3.0),
]
# The kind, f - r f' - f(0) as a function of r, and whether P and Q are exchanged.
Slope = Callable[[Any], Any]
KINDS: list[tuple[Divergence, Slope, bool]] = [
    (KL(), lambda r: -r, False),
    (ReverseKL(), lambda r: -r, True),
    (SkewKL(0.3), lambda r: -mpf(0.7) * r / (mpf(0.3) * r + mpf(0.7)), False),
    (JensenShannon(), lambda r: -mp.log1p(r) / 2, False),
    (FDivergence(lambda r: (1 - torch.sqrt(r)) ** 2), lambda r: -mp.sqrt(r), False),
    (ChiSquared(), lambda r: -(r**2), False),
    (SquaredHellinger(), lambda r: -mp.sqrt(r) / 2, False),
    (Alpha(0.3), lambda r: -(r ** mpf(0.3)) / mpf(0.3), False),
    (Alpha(-0.5), lambda r: -(r ** mpf(1.5)) / mpf(1.5), True),
    (TotalVariation(), lambda r: -mpf(r > 1), False),
    (Renyi(0.5), lambda r: -mp.sqrt(r), False),
    (Jeffreys(), lambda r: r, False),
]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def mapped(base: Distribution, low: Tensor | float, high: Tensor | float) -> Distribution:
    return TransformedDistribution(base, AffineTransform(low, high - low))


def density(a: float, b: float) -> Callable[[Any, Any], Any]:
    """Return the density of Beta(a, b) on [LOW, HIGH], from the distances to the ends."""
    constant = mp.beta(a, b) * mpf(HIGH - LOW) ** (mpf(a) + mpf(b) - 1)
    return lambda above, below: above ** (mpf(a) - 1) * below ** (mpf(b) - 1) / constant


def is_infinite(f: Callable[[Any, Any], Any], side: int) -> bool:
    """Return whether f grows like 1 / d or faster at the distance d from an end."""
    width = mpf(HIGH - LOW)
    first, second = (
        abs(f(*((d, width - d) if side == 0 else (width - d, d)))) for d in (mpf(10) ** -20, mpf(10) ** -24)
    )
    return second != 0 and mp.log10(second / first) > 3.99


def integral(f: Callable[[Any, Any], Any], cuts: list[Any]) -> Any:
    """Return the integral of f over the support; near an end, over the logarithm of the distance."""
    width = mpf(HIGH - LOW)
    half, steps = width / 2, [mpf(x) for x in (-345, -150, -60, -25, -10, -4)]
    lower = sorted([*steps, mp.log(half), *(mp.log(x) for x in cuts if x < half)])
    upper = sorted([*steps, mp.log(half), *(mp.log(width - x) for x in cuts if x > half)])
    return mp.quad(lambda t: mp.exp(t) * f(mp.exp(t), width - mp.exp(t)), lower) + mp.quad(
        lambda t: mp.exp(t) * f(width - mp.exp(t), mp.exp(t)), upper
    )


@functools.cache
def truth(powers: tuple[float, ...], index: int, side: int) -> float:
    """Return the derivative by the lower or the upper end of Q, moved outwards; 0 if it is infinite."""
    kind, slope, is_swapped = KINDS[index]
    if isinstance(kind, Jeffreys):  # the sum of both, though the value is infinite on both sides
        return sum(truth(powers, k, side) for k in range(2))
    with mp.workdps(30):
        inner, outer = (powers[2:], powers[:2]) if is_swapped else (powers[:2], powers[2:])
        p, q, width = density(*inner), density(*outer), mpf(HIGH - LOW)

        def f(above: Any, below: Any) -> Any:
            by_log_q = q(above, below) * slope(p(above, below) / q(above, below))
            return by_log_q * ((mpf(outer[side]) - 1) / (above, below)[side] - (sum(outer) - 1) / width)

        if is_infinite(f, side):
            return 0.0
        cuts: list[Any] = []
        if isinstance(kind, TotalVariation):
            grid = [width * k / 200 for k in range(1, 200)]
            for ends in itertools.pairwise(grid):
                changes = [p(x, width - x) - q(x, width - x) for x in ends]
                if changes[0] * changes[1] < 0:
                    cuts.append(
                        mp.findroot(lambda x: p(x, width - x) - q(x, width - x), ends, solver="anderson")
                    )
        value = integral(f, cuts)
        if isinstance(kind, Renyi):
            value /= integral(lambda x, y: mp.sqrt(p(x, y) * q(x, y)), cuts)
        return float(-value if is_swapped else value)


def slopes(
    kind: Divergence,
    family: type[Distribution],
    powers: list[tuple[float, ...]],
    highs: list[float],
    of_p: bool = False,
) -> Tensor:
    """Return the value, and the derivatives by the lower and upper ends of Q, or of P, moved outwards."""
    a, b, c, d = torch.tensor(powers, dtype=torch.float64).unbind(-1)
    fixed, high = (number(HIGH), torch.tensor(highs, dtype=torch.float64, requires_grad=True))
    ends = torch.full_like(a, LOW).requires_grad_(), high
    ends_p, ends_q = (ends, (number(LOW), fixed)) if of_p else ((number(LOW), fixed), ends)
    value = divergence(mapped(Beta(a, b), *ends_p), mapped(family(c, d), *ends_q), kind)
    by_low, by_high = torch.autograd.grad(value.sum(), ends)
    return torch.stack([value.detach(), -by_low, by_high], -1)


@pytest.mark.heavy
@pytest.mark.parametrize("index", range(len(KINDS)), ids=[repr(kind) for kind, _, _ in KINDS])
def test_derivatives_by_shared_ends_alone_and_in_a_batch(index: int) -> None:
    kind = KINDS[index][0]
    batch = slopes(kind, Beta, [*POWERS, POWERS[0]], [*[HIGH] * len(POWERS), 1.5])
    for powers, (value, *found) in zip(POWERS, batch, strict=False):
        if not value.isfinite():
            assert found == [0, 0]
            continue
        expected = [truth(powers, index, side) for side in (0, 1)]
        assert [x.item() for x in found] == pytest.approx(expected, rel=1e-7, abs=1e-9), powers
        (alone,) = slopes(kind, Beta, [powers], [HIGH])
        torch.testing.assert_close(alone, torch.stack([value, *found]), rtol=1e-9, atol=1e-11)
        if powers[2] == 1:  # the same distribution
            (same,) = slopes(kind, Kumaraswamy, [powers], [HIGH])
            torch.testing.assert_close(same, alone, rtol=1e-8, atol=1e-10)
    # Moving P's end is moving Q's end the other way.
    of_p = slopes(kind, Beta, POWERS, [HIGH] * len(POWERS), of_p=True)
    torch.testing.assert_close(of_p[:, 1:], -batch[:-1, 1:], rtol=1e-7, atol=1e-9)


@pytest.mark.sweep
def test_the_integral_is_the_limit_of_difference_quotients() -> None:
    # The Jensen-Shannon divergence of (1, 2.5 | 1, 0.6), where the upper end of Q moves outwards by h.
    with mp.workdps(50):
        powers, h = POWERS[0], mpf(10) ** -12
        p, width = density(*powers[:2]), mpf(HIGH - LOW)

        def moved(h: Any) -> Any:
            wider, c, d = width + h, mpf(powers[2]), mpf(powers[3])
            constant = mp.beta(c, d) * wider ** (c + d - 1)

            def f(above: Any, below: Any) -> Any:
                of_p, of_q = p(above, below), above ** (c - 1) * (below + h) ** (d - 1) / constant
                return of_p * mp.log(2 * of_p / (of_p + of_q)) + of_q * mp.log(2 * of_q / (of_p + of_q))

            strip = h**d * width ** (c - 1) / (d * constant)
            return (integral(f, [width - h, width - 1000 * h, width - 10**6 * h]) + strip * mp.log(2)) / 2

        assert float((moved(h) - moved(mpf(0))) / h) == pytest.approx(truth(powers, 3, 1), rel=1e-7)


def test_steep_densities_on_a_half_line_and_a_location_that_moves_one_end_of_two() -> None:
    x = number(0.5).requires_grad_()
    p, q = (
        TransformedDistribution(Gamma(number(a), number(1.0)), AffineTransform(end, number(1.0)))
        for a, end in ((3.0, number(0.5)), (0.6, x))
    )
    # Gamma(a) moved by h: the derivative of log q by the location is 1 - (a - 1) / d.
    with mp.workdps(30):
        c = mp.gamma(3), mp.gamma(mpf(0.6))

        def f(t: Any) -> Any:
            d = mp.exp(t)
            of_p, of_q = d**2 * mp.exp(-d) / c[0], d ** (mpf(0.6) - 1) * mp.exp(-d) / c[1]
            return -of_q * mp.log1p(of_p / of_q) / 2 * (1 - (mpf(0.6) - 1) / d) * d

        expected = float(mp.quad(f, [-120, -40, -10, 0, 2, 4, 5]))
    found = torch.autograd.grad(divergence(p, q, JensenShannon()), x)[0]
    assert found.item() == pytest.approx(expected, rel=1e-8)
    # The derivative by the upper end is infinite and left out.
    loc = number(LOW).requires_grad_()
    q = TransformedDistribution(
        Kumaraswamy(number(1.0), number(0.6)), AffineTransform(loc, number(HIGH - LOW))
    )
    p = mapped(Kumaraswamy(number(1.0), number(2.5)), LOW, number(HIGH))
    found = torch.autograd.grad(divergence(p, q, ReverseKL()), loc)[0]
    assert found.item() == pytest.approx(-truth(POWERS[0], 1, 0), rel=1e-8)
