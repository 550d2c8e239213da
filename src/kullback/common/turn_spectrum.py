r"""Detection of sources that take turns and miss some turns, from the periodogram of the rows.

In a panel that is sorted by time, the rows of one unit are about m rows apart. If units are missing at some times, this
distance varies. If a fraction g of the rows is missing, the variance of the distance after k turns is about
:math:`k g m`. Let s be the fraction of the variance that is due to sources, and let c be the fraction of a source's
deviation that remains at its next turn. Then the rows have the spectral density

.. math:: S(f) = 1 - s + s \operatorname{Re} \frac{1 + z}{1 - z},
    \quad z = c \exp\bigl(2 \pi i f m - 2 \pi^2 f^2 g m\bigr).

Independent rows have the density 1, and the ordinates of their periodogram are nearly independent exponential numbers.
So for independent rows, the likelihood ratio of the two densities has the mean 1. The average of the ratios for many m,
g, s and c has the same mean.

References:
    Estimation and information in stationary time series (Whittle, 1953)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from kullback.common.arrays import Floats

# `tests/common/test_turn_spectrum.py` and `tests/estimators/test_dependence.py` measure false alarms and detection with
# the constants of this file.

# The smallest number of rows between two turns, the smallest number of turns, and the largest number of examined rows.
_FEWEST_BETWEEN, _FEWEST_TURNS, _MOST_ROWS = 10, 3, 1024
# Higher frequencies are not examined, because the density with gaps is flat there.
_HIGHEST_FREQUENCY = 0.2
# The values of g, and the pairs of values of s and c, in the formula above.
_GAPS, _SOURCES = (0.03, 0.1, 0.3), ((0.3, 0.95), (0.6, 0.85))
# The values of s and c for sources that miss no turn; all combinations are used.
_REGULAR_SHARES, _REGULAR_PARTS = map(
    np.ravel, np.meshgrid([0.1, 0.3, 0.6, 0.9, 0.99], [0.5, 0.75, 0.9, 0.97, 0.99])
)
# The half widths, in ordinates, and the heights of the peaks that cycles have in the periodogram.
_WIDTHS, _HEIGHTS = (0.4, 1.5, 5.0), (3.0, 12.0, 50.0)
# Cycles are considered only if the correlation of neighboring rows is above this number of standard errors.
_ALIKE = 1.0
# A log-likelihood ratio is significant above `_EVIDENCE` plus `_BY_KURTOSIS` times the excess kurtosis of the scores,
# divided by the number of scores. Of 1,000 sets of independent rows, at most one is above this limit.
_EVIDENCE, _BY_KURTOSIS = 5.0, 30.0
# A singular value below this fraction of the largest singular value counts as a rounding error.
_ROUNDING = 1e-6


def spectral_turns(*sides: Floats, searches: int = 1, regular: int = 0) -> int | None:
    """Return the usual number of rows between two turns; None without evidence of sources that miss turns.

    Arguments:
        sides: the scores of the rows of one or two data sets, shape (rows, columns).
        searches: the number of searches, such as one for each column of a table. More searches need more evidence.
        regular: the period of another explanation: sources that return after `regular` rows and miss no turn. It is 1
            if neighboring rows are similar, and 0 without such an explanation.
    """
    longest = min(max(map(len, sides)), _MOST_ROWS)
    if longest < 2 * _FEWEST_TURNS * _FEWEST_BETWEEN:
        return None
    columns, powers, logs, excess = [], [], [], 0.0
    for side in sides:
        scores = side[:_MOST_ROWS]
        n = len(scores)
        independent, sizes, _ = np.linalg.svd(scores - scores.mean(0), full_matrices=False)
        independent = independent[:, sizes > _ROUNDING * max(1.0, sizes.max(initial=0.0))]
        gains, losses = _missed(n, longest)
        power = np.square(np.abs(np.fft.rfft(independent, axis=0)))[1 : len(gains) + 1].sum(1)
        columns.append(independent)
        powers.append(power)
        logs.append(power @ gains - independent.shape[1] * losses)
        excess = max(excess, float((np.square(np.square(independent)).sum(0) - 3 / n).max(initial=0.0)))
    logs = np.stack([*logs, np.add.reduce(logs)])  # the last row is for equal turns in all sides
    highest = logs.max(1)
    evidence = highest + np.log(np.exp(logs - highest[:, None]).mean(1))
    clearest = int(evidence.argmax())
    # For a period, the dependence is already significant, so it is enough that missed turns are the likelier cause.
    limit = 0.0 if regular >= _FEWEST_BETWEEN else _EVIDENCE + _BY_KURTOSIS * excess + math.log(searches)
    if evidence[clearest] <= limit:
        return None
    explained = max(_otherwise(*side, longest, regular) for side in zip(columns, powers, strict=True))
    if evidence[clearest] - explained <= limit:
        return None
    turns = logs.shape[1] // (len(_GAPS) * len(_SOURCES))
    return round(2 * longest / (2 * _FEWEST_TURNS + int(logs[clearest].argmax()) % turns))


@lru_cache(maxsize=8)
def _missed(rows: int, longest: int) -> tuple[Floats, Floats]:
    """Return the terms of the log-ratio of each density: factors of the ordinates, and a constant for each column."""
    between = 2 * longest / np.arange(2 * _FEWEST_TURNS, 2 * longest // _FEWEST_BETWEEN + 1)
    phases = 2 * math.pi * np.outer(_frequencies(rows), between)
    cosines, spreads = 2 * np.cos(phases), np.square(phases) / between / 2
    return _log_ratio(
        [_density(cosines, share, part * np.exp(-gap * spreads)) for gap in _GAPS for share, part in _SOURCES]
    )


def _otherwise(columns: Floats, power: Floats, longest: int, regular: int) -> float:
    """Return the log-likelihood ratio of other explanations of the dependence; 0 if independence is likelier.

    One explanation is cycles, whose density has one peak; the density of sources has several peaks. Cycles are
    considered only if neighboring rows are similar. The other explanation is sources that miss no turn.
    """
    n, number = columns.shape
    frequencies, explained = _frequencies(n), 0.0
    alike = float((columns[1:] * columns[:-1]).sum() + (columns[2:] * columns[:-2]).sum())
    if alike * math.sqrt(n / 2 / max(number, 1)) > _ALIKE:
        peaks = np.append(
            0.0, np.arange(2 * _FEWEST_TURNS, 2 * longest // _FEWEST_BETWEEN + 1) / (2 * longest)
        )
        away = np.square(np.subtract.outer(frequencies, peaks) * n)
        gains, losses = _log_ratio(
            [1 + height / (1 + away / width**2) for width in _WIDTHS for height in _HEIGHTS]
        )
        logs = power @ gains - number * losses
        explained = float(logs.max() + math.log(np.exp(logs - logs.max()).mean()))
    if regular:
        cosines = 2 * np.cos(2 * math.pi * regular * frequencies[:, None])
        gains, losses = _log_ratio([_density(cosines, _REGULAR_SHARES, _REGULAR_PARTS)])
        explained = max(explained, float((power @ gains - number * losses).max()))
    return max(explained, 0.0)


def _frequencies(rows: int) -> Floats:
    return np.arange(1, int(rows * _HIGHEST_FREQUENCY) + 1) / rows


def _density(cosines: Floats, share: Floats | float, part: Floats) -> Floats:
    """Return the spectral density; `cosines` is twice the cosine of the phase of z, and `part` is |z|."""
    square = part * part
    return 1 - share + share * (1 - square) / (1 - cosines * part + square)


def _log_ratio(densities: list[Floats]) -> tuple[Floats, Floats]:
    density = np.concatenate(densities, 1)
    return 1 - 1 / density, np.log(density).sum(0)
