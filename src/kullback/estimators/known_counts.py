"""KL from how often P showed each category, to a Q whose probabilities are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from kullback.estimators.draws import Array, few_clusters
from kullback.estimators.knn_entropy import category_surprise
from kullback.estimators.known_categories import UnseenByP, below_zero, ends_from_counts
from kullback.estimators.normal_interval import (
    infinite_estimate,
    normal_estimate,
    opened,
    standard_normal_quantile,
)
from kullback.results.estimate import Estimate

__all__ = ["from_known_categories", "of_categories"]

_ROUNDING = 1e-12


def from_known_categories(counts: Array, log_q: Array, confidence: float) -> Estimate:
    """Estimate KL from how often P showed each category, shape (K,), and Q's log-probabilities of them."""
    seen = counts > 0
    n = float(counts.sum())
    device = torch.device("cpu")
    if (log_q[seen] == -np.inf).any():
        number = int(counts[log_q == -np.inf].sum())
        note = f"{number} of {int(n)} draws are in classes to which Q gives no probability: KL is infinite"
        return infinite_estimate("from_density", (int(n), 0), note, device)
    others = log_q[~seen & (log_q > -np.inf)]
    elsewhere = UnseenByP(-math.inf, -math.inf)
    if len(others):
        elsewhere = UnseenByP(float(np.logaddexp.reduce(others)), float(others.min()))
    shares = counts[seen] / n
    return of_categories(
        counts[seen],
        log_q[seen],
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
    """Return the mean of log p - log q over the categories that P showed.

    Arguments:
        counts: how many draws of equal weight each of them has, n together.
        log_q: their log-probabilities under Q.
        elsewhere: what Q is at the others.
        variance_of: the variance of a mean over the draws, by how far each category is from it.
        n: the effective number of draws.
        sizes: the number of draws, and of independent groups of them.
        clusters: the number of clusters, if any.
    """
    surprise, unseen = category_surprise(counts, n)
    shares, terms = counts / counts.sum(), -surprise - log_q
    mean = float(shares @ terms)
    # Where P = Q the terms are all 0, and only their quadratic term varies.
    others = (len(counts) - 1) / (2 * n**2) + (unseen / 2) ** 2
    variance = variance_of(terms - mean)
    independent = float(shares @ (terms - mean) ** 2) / n
    # The effective number of draws is n - 1 for independent ones, and smaller if they depend on each other. Where all
    # terms are equal, variances do not show it.
    most = min(n, sizes[1])
    terms_differ = independent * n > (_ROUNDING * (1 + abs(mean))) ** 2
    number = n * independent / max(variance, independent) if terms_differ else max(most - 1, most / 2)
    quantile = standard_normal_quantile(confidence)
    reach = quantile if clusters is None else quantile * few_clusters(clusters, quantile)
    ends = ends_from_counts(counts, log_q, elsewhere, number, reach, estimate=mean - unseen, added=others)
    notes: list[str] = []
    if unseen > 0.01:
        notes.append(
            f"categories that no draw showed take {unseen:.2g} off, which may be half as much or half as much again"
        )
    found = normal_estimate(
        mean - unseen,
        math.sqrt(variance + others),
        confidence,
        method="from_density",
        n=(sizes[0], 0),
        notes=notes,
        device=device,
        groups=clusters,
    )
    low, high = (found.value.new_tensor(max(end, 0.0)) for end in ends)
    found = replace(found, interval=(low, high))
    return opened(found, below_zero(ends[1])) if ends[1] < 0 else found
