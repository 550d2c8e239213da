"""Quantiles, limits of proportions, normal scores and combined p-values, for all rooms that make intervals and tests.

The functions import SciPy when they are called, because `import kullback` loads no other package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np
from torch import Tensor

from kullback.common.arrays import Floats

_Number = TypeVar("_Number", float, Floats, Tensor)

# If one of two p-values is 1, their Cauchy combination would be 1 too. So larger p-values count as this number.
_LARGEST_P = 0.99


@overload
def normal_quantile(probability: float) -> float: ...
@overload
def normal_quantile(probability: Floats) -> Floats: ...
def normal_quantile(probability: float | Floats) -> float | Floats:
    """Return the number below which a standard normal variable lies with this probability.

    Example:
        >>> normal_quantile(0.975)
        1.959963984540...
    """
    from scipy.special import ndtri

    return ndtri(probability) if isinstance(probability, np.ndarray) else float(ndtri(probability))


@overload
def student_quantile(probability: float, dof: float) -> float: ...
@overload
def student_quantile(probability: float, dof: Floats) -> Floats: ...
def student_quantile(probability: float, dof: float | Floats) -> float | Floats:
    """Return the number below which a variable with Student's t distribution lies with this probability.

    Arguments:
        probability: the probability, between 0 and 1.
        dof: the degrees of freedom, a positive number that need not be whole.

    Example:
        >>> student_quantile(0.975, 1), student_quantile(0.975, 7.5)
        (12.7062047361..., 2.3330396268...)
    """
    from scipy.special import stdtrit

    quantile = stdtrit(dof, probability)
    return quantile if isinstance(dof, np.ndarray) else float(quantile)


@lru_cache(maxsize=256)
def two_sided_quantile(confidence: float, groups: float | None = None) -> float:
    """Return half the width, in standard errors, of a two-sided interval.

    Arguments:
        confidence: the probability within the interval.
        groups: the number of independent groups from which the standard error was computed, which need not be whole.
            The interval is then from Student's t with `groups` - 1 degrees of freedom. By default, it is normal.

    Returns:
        the quantile; it is infinite for fewer than two groups.

    Example:
        >>> [round(two_sided_quantile(0.95, groups), 4) for groups in (None, 30, 5, 2, 1)]
        [1.96, 2.0452, 2.7764, 12.7062, inf]
    """
    if groups is None:
        return normal_quantile((1 + confidence) / 2)
    return student_quantile((1 + confidence) / 2, groups - 1) if groups >= 2 else math.inf


def student_ratio(confidence: float, groups: float) -> float:
    """Return the ratio of the two-sided quantile of Student's t to the normal one, for a standard error from groups."""
    return two_sided_quantile(confidence, groups) / two_sided_quantile(confidence)


def wilson_limit(events: _Number, number: _Number | float, quantile: _Number | float, side: int) -> _Number:
    r"""Return Wilson's lower or upper limit of a proportion.

    .. math:: \frac{x + z^2 / 2 \pm z \sqrt{x (1 - x / n) + z^2 / 4}}{n + z^2}

    SciPy's limits (`binomtest(...).proportion_ci`) accept neither arrays nor numbers that are not whole. Here x and n
    may be effective numbers (`test_scipys_limits_of_proportions_accept_whole_numbers_only`).

    Arguments:
        events: the number of events x, from 0 to n. Half an event less for the lower limit, and half an event more for
            the upper limit, are the continuity correction.
        number: the number of draws n.
        quantile: the quantile z of the normal distribution.
        side: -1 for the lower limit, 1 for the upper limit.

    Example:
        >>> [round(wilson_limit(3.0, 10.0, 1.96, side), 4) for side in (-1, 1)]
        [0.1078, 0.6032]

    References:
        Probable inference, the law of succession, and statistical inference (Wilson, 1927)
    """
    reach = quantile * (events * (1 - events / number) + quantile**2 / 4) ** 0.5
    return (events + quantile**2 / 2 + side * reach) / (number + quantile**2)


def wilson_interval(proportion: float, number: float, confidence: float) -> tuple[float, float]:
    """Return Wilson's interval of a proportion of `number` independent draws, with continuity correction.

    Example:
        >>> [round(limit, 4) for limit in wilson_interval(0.3, 10, 0.95)]
        [0.0809, 0.6463]

    References:
        Two-Sided Confidence Intervals for the Single Proportion, method 4 (Newcombe, 1998)
    """
    events, quantile = proportion * number, two_sided_quantile(confidence)
    low = wilson_limit(max(events - 0.5, 0.0), number, quantile, -1)
    high = wilson_limit(min(events + 0.5, number), number, quantile, 1)
    return 0.0 if proportion == 0 else max(0.0, low), 1.0 if proportion == 1 else min(1.0, high)


def normal_scores(ranks: Floats, number: int, offset: float) -> Floats:
    r"""Return the normal scores of ranks from 1 to n, the quantiles of :math:`(r - o) / (n + 1 - 2 o)`.

    Arguments:
        ranks: the ranks r.
        number: the number of ranked values n.
        offset: the offset o: 0 for van der Waerden's scores, 1/2 for Hazen's.

    Example:
        >>> normal_scores(np.array([1.0, 2.0, 3.0]), 3, 0.0).round(3)
        array([-0.674,  0.   ,  0.674])
    """
    return normal_quantile((ranks - offset) / (number + 1 - 2 * offset))


def chi_square_scores(ratio: Any, dof: Any) -> Any:
    r"""Return the nearly normal scores of chi-square variables, given their ratios x to their degrees of freedom.

    .. math:: \frac{\sqrt[3]{x} - (1 - c)}{\sqrt c}, \qquad c = \frac{2}{9 \nu}

    SciPy has the exact distribution, which underflows in the tails: the score of 10 standard deviations has a tail of
    1e-23, that of 40 has none in float64 (`test_scores_exist_where_scipys_tail_is_zero`).

    Arguments:
        ratio: the ratio x of the variable to its degrees of freedom: a number or an array.
        dof: the degrees of freedom, which need not be whole.

    Example:
        >>> round(float(chi_square_scores(18.307 / 10, 10)), 2)  # the 95 % quantile of 10 degrees of freedom
        1.65

    References:
        The distribution of chi-square (Wilson and Hilferty, 1931)
    """
    cubed = 2 / (9 * dof)
    return (np.cbrt(ratio) - (1 - cubed)) / np.sqrt(cubed)


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple testing: at most 5 % of the corrected ones below 0.05 are expected to be false
    positives.

    Arguments:
        p_values: the p-values; NaN for a test that could not be made, which is left out.

    Example:
        >>> false_discovery_rates([0.01, 0.04, float("nan"), 0.5])
        [0.03, 0.06, nan, 0.5]

    References:
        Controlling the false discovery rate (Benjamini and Hochberg, 1995)
    """
    from scipy.stats import false_discovery_control

    corrected = np.asarray(p_values, dtype=np.float64)
    tested = ~np.isnan(corrected)
    if tested.any():
        corrected[tested] = false_discovery_control(corrected[tested])
    return corrected.tolist()


def of_independent_tests(p_values: Sequence[float]) -> float:
    """Return the p-value of several independent tests of one hypothesis; NaN means that the test could not be made.

    Example:
        >>> round(of_independent_tests([0.01, 0.5]), 4)
        0.0199

    References:
        Rectangular confidence regions for the means of multivariate normal distributions (Sidak, 1967)
    """
    made = [value for value in p_values if not math.isnan(value)]
    if not made:
        return math.nan
    return -float(np.expm1(len(made) * np.log1p(-min(made)))) if min(made) < 1 else 1.0


def of_tests_on_the_same_rows(p_values: Sequence[float]) -> float:
    """Return one p-value for several tests of one hypothesis on the same rows; NaN marks a test that was not made.

    SciPy's `combine_pvalues` has no method for dependent tests.

    Example:
        >>> round(of_tests_on_the_same_rows([0.01, 0.5]), 4)
        0.02

    References:
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
