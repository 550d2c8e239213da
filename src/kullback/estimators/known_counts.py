"""KL from the counts of P's categories, to a Q with known probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from kullback.estimators.draws import Array
from kullback.estimators.knn_entropy import category_surprise
from kullback.estimators.known_categories import UnseenByP, below_zero, ends_from_counts
from kullback.estimators.normal_interval import (
    infinite_estimate,
    normal_estimate,
    opened,
    quantile_of,
)
from kullback.results.estimate import Estimate

_ROUNDING = 1e-12


def from_known_categories(counts: Array, log_q: Array, confidence: float) -> Estimate:
    """Estimate KL from the counts of P's categories, shape (K,), and Q's log-probabilities of them."""
    drawn = counts > 0
    n = float(counts.sum())
    device = torch.device("cpu")
    if (log_q[drawn] == -np.inf).any():
        number = int(counts[log_q == -np.inf].sum())
        note = f"{number} of {int(n)} draws are in classes with probability 0 under Q: KL is infinite."
        return infinite_estimate("from_density", (int(n), 0), note, device)
    others = log_q[~drawn & (log_q > -np.inf)]
    elsewhere = UnseenByP(-math.inf, -math.inf)
    if len(others):
        elsewhere = UnseenByP(float(np.logaddexp.reduce(others)), float(others.min()))
    shares = counts[drawn] / n
    return of_categories(
        counts[drawn],
        log_q[drawn],
        elsewhere,
        lambda influence: float(shares @ influence**2) / (n - 1),
        n=n,
        sizes=(int(n), n),
        clusters=None,
        confidence=confidence,
        device=device,
    )


def of_categories(
    counts: Array,
    log_q: Array,
    elsewhere: UnseenByP,
    variance_of: Callable[[Array], float],
    *,
    n: float,
    sizes: tuple[int, float],
    clusters: int | None,
    confidence: float,
    device: torch.device,
) -> Estimate:
    """Return the mean of log p - log q over the categories of P's draws.

    Arguments:
        counts: the numbers of equally weighted draws in each category, n together.
        log_q: their log-probabilities under Q.
        elsewhere: Q's probabilities of other categories.
        variance_of: the variance of a mean over the draws, from the deviation of each category.
        n: the effective number of draws.
        sizes: the number of draws, and of independent groups of them.
        clusters: the number of clusters, if any.
    """
    surprise, unseen = category_surprise(counts, n)
    shares, terms = counts / counts.sum(), -surprise - log_q
    mean = float(shares @ terms)
    # At P = Q the terms are all 0, and only their quadratic term varies.
    others = (len(counts) - 1) / (2 * n**2) + (unseen / 2) ** 2
    variance = variance_of(terms - mean)
    independent = float(shares @ (terms - mean) ** 2) / n
    # The effective number of draws is n - 1 for independent ones, and smaller for dependent ones. If all terms are
    # equal, variances do not show it.
    most = min(n, sizes[1])
    terms_differ = independent * n > (_ROUNDING * (1 + abs(mean))) ** 2
    number = n * independent / max(variance, independent) if terms_differ else max(most - 1, most / 2)
    reach = quantile_of(confidence, clusters)
    ends = ends_from_counts(counts, log_q, elsewhere, number, reach, estimate=mean - unseen, added=others)
    notes: list[str] = []
    if unseen > 0.01:
        notes.append(
            f"Categories without draws lower the value by an estimated {unseen:.2g}; the error may be half of that."
        )
    estimate = normal_estimate(
        mean - unseen,
        math.sqrt(variance + others),
        confidence,
        method="from_density",
        n=(sizes[0], 0),
        notes=notes,
        device=device,
        groups=clusters,
    )
    low, high = (estimate.value.new_tensor(max(end, 0.0)) for end in ends)
    estimate = replace(estimate, interval=(low, high))
    return opened(estimate, below_zero(ends[1])) if ends[1] < 0 else estimate
