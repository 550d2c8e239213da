"""Means over the rows of a reference file, with intervals that include the sampling of the tail."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kullback.common.inference import student_quantile
from kullback.predictions.mean_intervals import (
    TAIL,
    TAIL_IF_SKEWED,
    MeanEstimate,
    MeanEstimator,
    RatioOfSums,
)
from kullback.predictions.reference_rows import DrawnDivergence, ReferenceRows
from kullback.results.value import Interval, Value

# The fewest rows in a stratum of rows with similar spread, and the largest number of strata.
ROWS_OF_STRATUM, MOST_STRATA = 32, 8
# The control variate must explain at least this share of the variance. With heavier tails, the control variate explains
# less, and the draws miss a part of the tail (measured).
LEAST_EXPLAINED = 0.9
# The mean of the control variate must lie within this many standard errors of 0, over all rows and over a stratum. The
# mean lies farther from 0 if the draws miss important classes.
FARTHEST_MEAN, FARTHEST_OF_STRATUM = 3.0, 5.0
# If the skewness of the mean's sampling distribution is outside these limits, Student's t covers too little on that
# side (measured). Skewness to the left comes from classes that are seldom drawn and lower the mean. The draws show only
# a part of this skewness.
LEAST_SKEWNESS, LARGEST_SKEWNESS = -0.1, 0.2
# With fewer degrees of freedom than this, the ends of the interval are the bounds.
FEWEST_DEGREES = 9


@dataclass(frozen=True)
class DrawnMean(Value[float]):
    """The mean of a divergence over exactly these rows of a reference file; the error comes only from sampling the
    tail.

    Attributes:
        value: the estimate of the mean, clamped to `bounds`.
        standard_error: the standard error of the sampling. It is 0 if no row has a tail, +inf if a row is infinite, and
            NaN if rows have fewer than two draws or all draws agree.
        interval: the 95 % interval of the mean that all classes would give. The interval allows for the sampling of the
            tail, not for other rows. If the draws do not determine the ends, `bounds` gives the ends.
        bounds: certain bounds: the mean of the rows' lower bounds, and the mean of the rows' upper bounds.
    """

    interval: Interval
    bounds: Interval


def row_estimates(rows: ReferenceRows, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Return an unbiased estimate of each row's divergence, the moments of its error, and whether the row is
    light-tailed.

    An estimate is :math:`b + e + c g`, as described at `DrawnDivergence`. The rows are sorted by their spread, which
    does not depend on the draws, and are divided into strata of similar rows. The rows of a stratum alternate between
    two folds. The factor c of a row is the factor from 0 to 1 with the least variance in the *other* fold of the row's
    stratum. So c does not depend on the row's own draws, and the estimate is unbiased. The factor is 0 if g explains
    less than 90 % of the variance in the other fold. The factor is also 0 if the mean of g is more than 5 standard
    errors from 0 there, or more than 3 in the other folds of all strata. The ratios q/p are then heavy-tailed, and g
    would be wrong because of the classes that were not drawn. Finally, the factor is 0 in rows where a class may have
    no mass in the base, and if fewer than 32 rows are left.

    Returns:
        the estimates, the variances and third central moments of the sampling errors, and a mask, each of shape
        (rows,). The mask selects rows whose ratios q/p were found light-tailed, and rows without a tail.
    """
    drawn = rows.divergences[name]
    factor, light = _factors(rows, name)
    values = drawn.bound + drawn.tail_term + factor * drawn.control
    variance, covariance, of_control = drawn.variances.unbind(-1)
    variance = variance + 2 * factor * covariance + factor**2 * of_control
    powers = torch.stack([torch.ones_like(factor), 3 * factor, 3 * factor**2, factor**3], -1)
    third = (powers * drawn.thirds).sum(-1)
    return values, variance, third, light | ~rows.has_tail


def _factors(rows: ReferenceRows, name: str) -> tuple[Tensor, Tensor]:
    drawn = rows.divergences[name]
    usable = (
        rows.has_whole_support & rows.has_tail & drawn.bound.isfinite() & drawn.variances.isfinite().all(-1)
    )
    index = usable.nonzero()[:, 0]
    order = index[rows.spread[index].argsort(stable=True)]
    factor = torch.zeros(len(rows), dtype=torch.float64, device="cpu")
    light = torch.zeros(len(rows), dtype=torch.bool, device="cpu")
    if len(order) < ROWS_OF_STRATUM:
        return factor, light
    parts = order.tensor_split(min(MOST_STRATA, len(order) // ROWS_OF_STRATUM))
    for here, there in ((0, 1), (1, 0)):
        if not _is_centered(drawn, torch.cat([part[there::2] for part in parts]), FARTHEST_MEAN):
            continue
        for part in parts:
            others, mine = part[there::2], part[here::2]
            variance, covariance, of_control = drawn.variances[others].sum(0).tolist()
            explains = of_control > 0 and covariance**2 >= LEAST_EXPLAINED * variance * of_control
            if explains and _is_centered(drawn, others, FARTHEST_OF_STRATUM):
                factor[mine] = min(1.0, max(0.0, -covariance / of_control))
                light[mine] = True
    return factor, light


def _is_centered(drawn: DrawnDivergence, rows: Tensor, farthest: float) -> bool:
    """Return whether the mean of the control variate over some rows is as close to 0 as the variance of that mean
    predicts.
    """
    error = math.sqrt(float(drawn.variances[rows, 2].sum()))
    return abs(float(drawn.control[rows].sum())) <= farthest * error


def drawn_mean(rows: ReferenceRows, name: str, chosen: Tensor | slice = slice(None)) -> DrawnMean:
    """Return the mean of a divergence over the chosen rows, with an interval for the sampling of the tail only.

    The interval is Student's t interval with Satterthwaite's degrees of freedom, clamped to the bounds. If the sampling
    distribution is skewed toward a side, the end on that side is the bound. If that bound is infinite, the tail
    probability is 0.0025 instead of 0.025. The interval of KL(candidate||base) has no upper end unless the ratios q/p
    are light-tailed in all rows. The reason is that draws from the base do not show classes where only the candidate
    has mass.

    Arguments:
        rows: all measured rows.
        name: ``"kl_pq"``, ``"kl_qp"``, ``"js"`` or ``"tv"``.
        chosen: the rows of the mean, by default all.

    Returns:
        the mean with its interval, as a `DrawnMean`.
    """
    drawn = rows.divergences[name]
    values, variances, thirds, light = (x[chosen] for x in row_estimates(rows, name))
    bounds = float(drawn.bound[chosen].mean()), float(drawn.upper[chosen].mean())
    count = len(values)
    if math.isinf(bounds[0]):
        return DrawnMean(math.inf, math.inf, (math.inf, math.inf), bounds)
    mean, variance = float(values.mean()), float(variances.sum())
    error = math.sqrt(max(variance, 0.0)) / count
    if not math.isfinite(mean) or not math.isfinite(error):
        return DrawnMean(
            mean if math.isnan(mean) else min(max(mean, bounds[0]), bounds[1]), math.nan, bounds, bounds
        )
    fourth = float(variances.square().sum()) / max(rows.draws - 1, 1)
    degrees = variance**2 / fourth if fourth > 0 else math.inf
    low, high = bounds
    if not bool(rows.has_tail[chosen].any()):
        low = high = mean
    elif error > 0 and degrees >= FEWEST_DEGREES:
        dof = int(min(degrees, 1e6))
        reach, farther = (student_quantile(1 - tail, dof) * error for tail in (TAIL, TAIL_IF_SKEWED))
        skewness = float(thirds.sum()) / variance**1.5
        if skewness >= LEAST_SKEWNESS:
            low = mean - reach
        if skewness <= LARGEST_SKEWNESS:
            high = mean + reach
        elif math.isinf(high):
            high = mean + farther
    elif error == 0:
        error = math.nan
    if name == "kl_qp" and not bool(light.all()):
        high = math.inf
    low, high, mean = (min(max(x, bounds[0]), bounds[1]) for x in (low, high, mean))
    return DrawnMean(mean, error, (low, high), bounds)


def population_mean(
    rows: ReferenceRows,
    name: str,
    *,
    chosen: Tensor | slice = slice(None),
    cluster: Tensor | None = None,
    in_order: bool = False,
    bootstrap: int = 1000,
    generator: torch.Generator | None = None,
) -> MeanEstimate:
    """Return the standard error and the interval of the mean over the population of clusters.

    The interval also allows for the sampling of the tails, because the sampling adds to the variance of the rows. An
    end may be open (infinite), as described at `MeanEstimator`.

    Arguments:
        rows, name, chosen: as for `drawn_mean`.
        cluster: the number of the window, document or speaker of each chosen row, shape (rows,). None if each row is
            a cluster of its own.
        in_order: whether neighboring clusters may be dependent. If so, the order of the clusters is examined.
        bootstrap: the number of bootstrap draws.
        generator: the random generator of the bootstrap; None for one with a fixed seed.
    """
    values, _, _, light = (x[chosen] for x in row_estimates(rows, name))
    if not bool(values.isfinite().all()):
        return MeanEstimate(math.inf if bool((values == math.inf).any()) else math.nan)
    bound = {"js": math.log(2), "tv": 1.0}.get(name, math.inf)
    # The estimate of a row may lie outside the range of the divergence. Only the mean is kept within that range.
    low = 0.0 if bool((values >= 0).all()) else -math.inf
    estimator = MeanEstimator(1, bootstrap, generator, cluster, (0,) if in_order else ())
    estimator.add(values[:, None])
    mean = estimator.estimates([RatioOfSums(0, -1, low)])[0]
    if mean.interval is None:
        return mean
    ends = max(0.0, mean.interval[0]), min(bound, max(0.0, mean.interval[1]))
    if name == "kl_qp" and not bool(light.all()):
        return mean._replace(interval=(ends[0], math.inf), reason="heavy tail")
    return mean._replace(interval=ends)
