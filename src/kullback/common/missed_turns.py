"""A filter that detects sources that take turns and miss some turns. Correlations at lags do not show this dependence.

In a panel that is sorted by time, the rows of one unit are about one period apart. If units are missing at some times,
all later rows move. So the correlation of a unit's rows is spread over many lags. The filter tracks the number of rows
since the last turn of a row's unit, and predicts the row from the earlier rows of this unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from kullback.common.arrays import Floats
from kullback.common.inference import normal_scores

# `tests/estimators/test_dependence.py` measures false alarms and detection with the constants of this file.

# The smallest number of rows between two turns, the smallest number of turns, and the largest number of examined rows.
_FEWEST_BETWEEN, _FEWEST_TURNS, _MOST_ROWS = 10, 3, 1024
# The correlation of one source's rows, the probability that a missed turn lengthens (or shortens) the distance by one,
# and the probability of a change to any other distance.
_SAME_SOURCE, _CHANGED, _LOST = 0.42, 0.12, 0.005
# A log-likelihood ratio above `_EVIDENCE` is significant. After half of the rows, the filter stops if no log-likelihood
# ratio has reached `_PROMISING`.
_EVIDENCE, _PROMISING = 1.5, -1.5


def missed_turns(*sides: Floats) -> dict[int, int]:
    """Return the columns with evidence of sources that miss turns, and the usual number of rows between two turns.

    Numbers become normal scores, and ties get their scores in random order. Then the likelihood ratio is a martingale
    for independent rows, so that a ratio above e^1.5 has a probability of at most 22 %. The actual probability is far
    smaller: the ratio was above e^1.5 in 2 of 1,800 simulations of 100 to 1,000 independent rows with one to five
    columns. With k columns, the ratio of a column must exceed k^2 e^1.5. The sides have the shape (rows, columns), with
    the same columns.
    """
    columns = sides[0].shape[1]
    n = min(max(map(len, sides)), _MOST_ROWS)
    states = n // _FEWEST_TURNS - _FEWEST_BETWEEN + 1
    if states < _FEWEST_BETWEEN or not columns:
        return {}
    lengths, scores = np.repeat(list(map(len, sides)), columns), _scores_of_sides(sides, n)
    # The state is the number of rows since the last turn. Each row keeps a mean and a variance of its source, mixed
    # over the states. The latest row is first, so that the rows at all distances are a slice. A row depends only on
    # rows that are at least `_FEWEST_BETWEEN` rows earlier. So blocks of `_FEWEST_BETWEEN` rows are computed at once.
    count, noise = scores.shape[1], 1 - _SAME_SOURCE
    # The mean of a source, the gain of its next row, and 1 / standard deviation and -1 / (2 variance) of this row.
    at_first = np.array([0.0, _SAME_SOURCE, 1.0, -0.5]).reshape(4, 1, 1)
    sources = np.tile(at_first, (1, count, n + states + _FEWEST_BETWEEN))
    means, gains, scales, precisions = sliding_window_view(sources, states, axis=2).swapaxes(1, 2)
    unchanged = (1 - 2 * _CHANGED) * (1 - _LOST)
    changed = _CHANGED * (1 - _LOST) / unchanged
    # `lost` is the weight that each state gets from all other states. Each end gets an additional state.
    lost = _LOST / states / unchanged / (1 + 2 * changed)
    weights, evidence = np.full((count, states + 2), lost), np.zeros(count)
    shorter, same, longer = weights[:, :-2], weights[:, 1:-1], weights[:, 2:]
    same += 1 / states
    predicted, followed = np.empty((count, states)), np.zeros((count, states))
    half = n // 2 + 1
    for start in (*range(0, half, _FEWEST_BETWEEN), *range(half, n, _FEWEST_BETWEEN)):
        # No row depends on another row of the same block.
        rows = range(start, min(start + _FEWEST_BETWEEN, half if start < half else n))
        if start == half and (evidence.reshape(-1, columns).sum(0) < _PROMISING).all():
            break
        block = scores[rows.start : rows.stop]
        seen = slice(n - rows.stop + _FEWEST_BETWEEN, n - rows.start + _FEWEST_BETWEEN)
        surprise = block[:, :, None] - means[seen][::-1]
        posterior = surprise * surprise * precisions[seen][::-1]
        np.exp(posterior, out=posterior)
        posterior *= scales[seen][::-1]
        likelihood = np.empty((len(rows), count, 1))
        for total, of_row in zip(likelihood, posterior, strict=True):
            np.add(shorter, longer, out=predicted)
            np.multiply(predicted, changed, out=predicted)
            np.add(predicted, same, out=predicted)
            np.multiply(of_row, predicted, out=of_row)
            np.add.reduce(of_row, 1, keepdims=True, out=total)
            np.divide(of_row, total, out=of_row)
            np.add(of_row, lost, out=same)
        if rows.start >= half:
            followed += posterior.sum(0)
        gained = np.log(unchanged * likelihood[:, :, 0]) + block * block / 2
        evidence += gained.sum(0, where=np.asarray(rows)[:, None] < lengths)
        own, updated = gains[seen][::-1], surprise * gains[seen][::-1] + means[seen][::-1]
        center = np.einsum("rij,rij->ri", posterior, updated)
        variance = noise * np.einsum("rij,rij->ri", posterior, own)
        variance += np.einsum("rij,rij,rij->ri", posterior, updated, updated) - center * center
        total = variance + noise
        after = np.stack([center, variance / total, total**-0.5, -0.5 / total])
        sources[:, :, n - rows.stop : n - rows.start] = after[:, ::-1].swapaxes(1, 2)
    evidence = evidence.reshape(-1, columns)
    distances = _FEWEST_BETWEEN + followed.argmax(1).reshape(-1, columns)
    significant = np.flatnonzero(evidence.sum(0) > _EVIDENCE + 2 * math.log(columns))
    # The side with more evidence determines the distance.
    chosen = distances[evidence[:, significant].argmax(0), significant]
    return dict(zip(significant.tolist(), chosen.tolist(), strict=True))


def _scores_of_sides(sides: Sequence[Floats], n: int) -> Floats:
    """Return the normal scores of the first `n` rows of all sides, side by side; shorter sides end with zeros."""
    columns, rng = sides[0].shape[1], np.random.default_rng(0)
    shares = np.full((n, len(sides) * columns), 0.5)  # with the score 0
    for place, side in enumerate(sides):
        some = side[:n]
        ranks = np.argsort(np.lexsort((rng.random(some.shape), some), axis=0), axis=0)  # ties: random order
        shares[: len(some), place * columns : (place + 1) * columns] = (ranks + 0.5) / len(some)
    return normal_scores(shares)
