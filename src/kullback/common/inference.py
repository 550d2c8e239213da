"""Quantiles, limits of proportions and of divergences, normal scores and combined p-values, for intervals and tests.

The functions import SciPy when they are called, so that `import kullback` does not load SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kullback.common.arrays import Floats

# If one of several p-values were 1, the Cauchy combination would be 1 too. So this number replaces larger p-values.
_LARGEST_P = 0.99
# SciPy's series for the noncentral chi-square has as many terms as the square root of its arguments, and fails for very
# large arguments. From this number on, cube roots replace the series.
_LARGE = 1e4


@lru_cache(maxsize=256)
def normal_quantile(probability: float) -> float:
    """Return the number below which a standard normal variable lies with this probability."""
    return float(normal_scores(probability))


def normal_scores(shares: Any) -> Floats:
    """Return the normal scores of values: the normal quantiles of `shares`, the fractions of ranks below the values."""
    from scipy.special import ndtri

    return ndtri(shares)


def student_quantile(probability: float, dof: float) -> float:
    """Return the quantile of Student's t; the degrees of freedom need not be whole."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability))


def student_quantiles(quantile: float, dof: Tensor) -> Tensor:
    """Return the quantiles of Student's t at the probability of the normal quantile `quantile`."""
    from scipy.special import ndtr, stdtrit

    return torch.as_tensor(stdtrit(dof.cpu().numpy(), ndtr(quantile))).to(dof)


@lru_cache(maxsize=256)
def two_sided_quantile(confidence: float, groups: float | None = None) -> float:
    """Return half the width, in standard errors, of a two-sided interval.

    The interval is normal or, for a standard error computed from `groups`, from Student's t with `groups` - 1 degrees
    of freedom. For fewer than two groups, the result is infinite.

    Example:
        >>> [round(two_sided_quantile(0.95, groups), 4) for groups in (None, 30, 5, 2, 1)]
        [1.96, 2.0452, 2.7764, 12.7062, inf]
    """
    if groups is None:
        return normal_quantile((1 + confidence) / 2)
    return student_quantile((1 + confidence) / 2, groups - 1) if groups >= 2 else math.inf


def student_ratio(confidence: float, groups: float) -> float:
    """Return the ratio of the two-sided quantile of Student's t, for `groups` groups, to the normal quantile."""
    return two_sided_quantile(confidence, groups) / two_sided_quantile(confidence)


def wilson_limit(events: Any, number: Any, quantile: Any, side: Any) -> Any:
    r"""Return Wilson's limit of a proportion, from `events` in `number` draws. `side` is -1 (lower) or 1 (upper).

    .. math:: \frac{x + z^2 / 2 \pm z \sqrt{x (1 - x / n) + z^2 / 4}}{n + z^2}

    The arguments are numbers, arrays or tensors. For the continuity correction, pass half an event less for the lower
    limit, and half an event more for the upper limit.

    Probable inference, the law of succession, and statistical inference (Wilson, 1927)
    """
    # SciPy's limits, `binomtest(...).proportion_ci`, accept neither arrays nor effective numbers of draws, which are
    # not whole: `test_scipys_limits_of_proportions_accept_whole_numbers_only`.
    reach = quantile * (events * (1 - events / number) + quantile**2 / 4) ** 0.5
    return (events + quantile**2 / 2 + side * reach) / (number + quantile**2)


def wilson_interval(proportion: float, number: float, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion of `number` independent draws, with continuity correction.

    Two-Sided Confidence Intervals for the Single Proportion, method 4 (Newcombe, 1998)
    """
    events, quantile = proportion * number, two_sided_quantile(confidence)
    low = wilson_limit(max(events - 0.5, 0.0), number, quantile, -1)
    high = wilson_limit(min(events + 0.5, number), number, quantile, 1)
    return 0.0 if proportion == 0 else max(0.0, low), 1.0 if proportion == 1 else min(1.0, high)


def unified_low(x: Any, dof: Any, alpha: float, at_most: Any = None, *, is_upper: bool = False) -> Floats:
    r"""Return the lower limit of :math:`\lambda` for a draw x of :math:`\chi'^2_\nu(\lambda)`, with error `alpha`.

    At :math:`\lambda = 0`, the whole error probability is in the upper tail of x. For large :math:`\lambda`, half of
    the error probability is in each tail. The interval to `unified_high` therefore excludes 0 exactly if a test at
    level `alpha` rejects, and the interval is never empty.

    Arguments:
        x: the draws, an array or a number.
        dof: the degrees of freedom of each draw; they need not be whole.
        alpha: the error probability of both limits together.
        at_most: larger limits are replaced by this number, an array or a number.
        is_upper: whether to return the upper limit of the interval instead.
    """
    from scipy.special import chdtrc, chndtr

    x, dof = np.maximum(np.asarray(x, np.float64), 0.0), np.asarray(dof, np.float64)
    point = np.maximum(x, 1.0) if at_most is None else np.array(at_most, np.float64)
    low, high = np.zeros_like(point), point
    # Below the lower limit (0 if none), x is too far in the upper tail; up to the upper limit, not in the lower tail.
    wide = np.ones_like(point, bool) if is_upper else chdtrc(dof, x) < alpha
    zero, is_last = ~wide, np.zeros_like(wide)
    while wide.any():
        cdf = noncentral_chi_square_cdf if np.any(x + point >= _LARGE) else chndtr
        below, error_below = cdf(x, dof, point), alpha / 2 * point / (point + np.sqrt(2 * dof))
        inside = below > error_below if is_upper else 1 - below < alpha - error_below
        # Each element stops by itself, so its result does not depend on the others.
        low, high = np.where(wide & inside, point, low), np.where(wide & ~inside, point, high)
        is_last |= ~inside if at_most is None else True
        high = np.where(is_last, high, 2 * point)
        wide &= high - low > 1e-9 * high
        point = np.where(is_last, (low + high) / 2, high)
    return np.where(zero, 0.0, (low + high) / 2)


def unified_high(x: Any, dof: Any, alpha: float) -> Floats:
    """Return the upper limit that belongs to `unified_low`."""
    # If x is small by chance, a typical x replaces it. The interval is then wider, so it still has its coverage.
    typical = np.maximum(x, dof * (1 - 2 / (9 * dof)) ** 3)
    return unified_low(typical, dof, alpha, is_upper=True)


def noncentral_chi_square_cdf(x: Any, dof: Any, noncentrality: Any) -> Floats:
    """Return the distribution function of the noncentral chi-square, approximated by cube roots for large arguments."""
    from scipy.special import chndtr, ndtr

    x, dof, noncentrality = np.broadcast_arrays(x, dof, noncentrality)
    large = x + noncentrality >= _LARGE
    exact = chndtr(np.where(large, 1.0, x), dof, np.where(large, 0.0, noncentrality))
    if large.any():
        mean = np.where(large, dof + noncentrality, 1.0)
        spread = 2 * (dof + 2 * noncentrality) / (9 * mean**2)
        rough = ndtr((np.cbrt(x / mean) - 1 + spread) / np.sqrt(np.where(large, spread, 1.0)))
        exact = np.where(large, rough, exact)
    return np.where(x > 0, exact, 0.0)


def chi_square_scores(ratio: Any, dof: Any) -> Any:
    """Return the nearly normal scores of chi-square variables, given their ratios to their degrees of freedom.

    The distribution of chi-square (Wilson and Hilferty, 1931)
    """
    # SciPy's distribution function underflows at 40 standard deviations, where these scores still differ:
    # `test_scores_exist_where_scipys_tail_is_zero`.
    cubed = 2 / (9 * dof)
    return (np.cbrt(ratio) - (1 - cubed)) / np.sqrt(cubed)


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for multiple testing. NaN marks a test that was not made.

    At most 5 % of the tests with a corrected p-value below 0.05 are expected to be false positives.

    Controlling the false discovery rate (Benjamini and Hochberg, 1995)
    """
    from scipy.stats import false_discovery_control

    corrected = np.asarray(p_values, dtype=np.float64)
    tested = ~np.isnan(corrected)
    if tested.any():
        corrected[tested] = false_discovery_control(corrected[tested])
    return corrected.tolist()


def of_independent_tests(p_values: Sequence[float]) -> float:
    """Return one p-value for several independent tests of one hypothesis; NaN marks a test that was not made.

    Rectangular confidence regions for the means of multivariate normal distributions (Sidak, 1967)
    """
    made = [value for value in p_values if not math.isnan(value)]
    if not made:
        return math.nan
    return -float(np.expm1(len(made) * np.log1p(-min(made)))) if min(made) < 1 else 1.0


def of_tests_on_the_same_rows(p_values: Sequence[float]) -> float:
    """Return one p-value for several tests of one hypothesis on the same rows; NaN marks a test that was not made.

    Cauchy combination test: a powerful test with analytic p-value calculation under arbitrary dependency structures
    (Liu and Xie, 2020)
    """
    made = np.array([value for value in p_values if not math.isnan(value)])
    if len(made) < 2:
        return float(made[0]) if len(made) else math.nan
    if (made == 1).all():
        return 1.0
    # 1 / tan(pi p) is 1 / (pi p) where p is small, also where pi p underflows in the tangent's argument.
    scores = 1 / np.tan(np.pi * np.clip(made, 1e-300, _LARGEST_P))
    return float(np.arctan2(1, scores.mean()) / np.pi)
