"""Comparison of a reference file's rows with another model's logits: bounds and an estimate of each divergence, and
means over rows. The intervals include the sampling of the tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from kullback.common.dtypes import float64_copy
from kullback.common.inference import student_quantile
from kullback.errors import invalid_value
from kullback.io.reference_writer import rows_in_part
from kullback.io.row_checks import check_floating
from kullback.kernels.reference import pair_from_weights
from kullback.partial_rows import PartialRows, has_more_classes
from kullback.predictions.mean_intervals import TAIL, TAIL_IF_SKEWED, MeanEstimate, MeanEstimator, RatioOfSums
from kullback.predictions.measure import DIVERGENCES
from kullback.results.value import Interval, Value

CALL = "measure_reference"
# The control variate leaves out classes of the tail whose q is above this multiple of the smallest p of the top
# classes. Such classes have a large q/p, and are drawn too seldom for their weight in the mean of the control variate.
LARGEST_CONTROLLED = 4.0
# Log-ratios are clamped to this absolute value before the ratio itself is computed.
LARGEST_LOG_RATIO = 700.0


class DrawnDivergence(NamedTuple):
    r"""Bounds of a divergence in each row, and an estimate of the tail from the draws: float64, shape (rows,).

    The estimate of a row is :math:`b + e + c g`, with a factor c that must not depend on the row's own draws. The
    expectation of the estimate is the divergence for c = 0. If every class has mass in the base, this holds for every
    c.

    Attributes:
        bound: b, a certain lower bound: the divergence with the tail as one class. Merging classes can only lower a
            divergence.
        upper: the largest divergence that the same knowledge allows; +inf if there is no limit.
        tail_term: e, the mean over the draws of the tail's addition to the bound; NaN without draws.
        control: g, the mean over the draws of the control variate (see `measure_reference`), whose expectation is 0.
        variances: the sampling variance of e, the covariance of e and g, and the variance of g, shape (rows, 3); NaN
            for one draw.
        thirds: the third central moments of the sampling errors: of e e e, e e g, e g g and g g g; shape (rows, 4). NaN
            for one or two draws.
    """

    bound: Tensor
    upper: Tensor
    tail_term: Tensor
    control: Tensor
    variances: Tensor
    thirds: Tensor


@dataclass(eq=False)
class ReferenceRows:
    """Measurements of a candidate's logits against rows of a reference file; every tensor has one value for each row.

    The base is the model of the reference file, and the candidate is the model of the logits.

    Attributes:
        divergences: KL(base||candidate) as ``"kl_pq"``, KL(candidate||base) as ``"kl_qp"``, ``"js"`` and ``"tv"``.
        spread: the standard deviation of the log-ratio of base and candidate over the top classes and the tail. Rows
            with a similar spread are grouped.
        has_whole_support: whether every class is known to have mass in the base, and no q in the tail is above 4 times
            the smallest p of the top classes. A class with a larger q is seldom drawn, and the control variate would
            hide its contribution.
        has_tail: whether the base has mass outside the top classes, and more than one class is outside.
        draws: the number of draws in each row.
        table: all these measurements, float64, shape (rows, columns).
    """

    table: Tensor
    draws: int

    def __post_init__(self) -> None:
        *columns, spread, has_whole_support, has_tail = self.table.T.contiguous()
        self.spread, self.has_whole_support, self.has_tail = spread, has_whole_support > 0, has_tail > 0
        self.divergences: dict[str, DrawnDivergence] = {}
        width = len(columns) // len(DIVERGENCES)
        for place, name in enumerate(DIVERGENCES):
            of = columns[place * width : (place + 1) * width]
            variances, thirds = (torch.stack(moments, -1) for moments in (of[4:7], of[7:]))
            self.divergences[name] = DrawnDivergence(of[0], of[1], of[2], of[3], variances, thirds)

    def __len__(self) -> int:
        return len(self.table)


class CandidateLogProbs(NamedTuple):
    """A candidate's log-probabilities of the classes of a reference block, float64."""

    top: Tensor
    others: Tensor
    controlled: Tensor
    drawn: Tensor
    classes_with_mass: Tensor


def measure_reference(block: PartialRows, logits: Tensor) -> ReferenceRows:
    r"""Measure how far a candidate's distributions are from a reference file's distributions, row by row.

    Let K be the base's top classes, M the base's mass outside K, and :math:`M_q` the candidate's mass outside K. A
    divergence is a sum of terms :math:`p\,\varphi(q/p)`. Its lower bound takes the tail as one class, with ratio
    :math:`\bar u = M_q/M`. The tail adds :math:`M\,E[\varphi(u) - \varphi(\bar u)]` to the bound. The expectation is
    over classes i of the tail with probability :math:`p_i/M`, and :math:`u = q_i/p_i`. The estimate is the mean over
    the draws. The control variate is :math:`-M\varphi'(\bar u)(u - \bar u)`. Its mean is 0 as :math:`E[u] = \bar u`.
    The sum of a tail term and the control variate is Bregman's divergence, which is of second order in
    :math:`u - \bar u`. In the control variate, u and its known mean leave out the classes with q above 4 times the
    smallest p of K. For KL(base||candidate), the sum is

    .. math:: \log(\tilde p/\tilde q) + c\,(\tilde q/\tilde p - 1), \quad \tilde p = p/M,\ \tilde q = q/M_q

    For JS and TV, :math:`\varphi` is chosen such that it grows with u no faster than :math:`\log u`.

    A class with mass in the base and no mass in the candidate makes KL(base||candidate) +inf. Such a class is certain
    if it is in K or was drawn, or if the base has more classes with mass than the candidate. Otherwise the class is not
    detected. For KL(candidate||base), the draws cannot show such a class, but K, M and the numbers of classes with mass
    can.

    Arguments:
        block: rows of a reference file.
        logits: the candidate's logits or log-probabilities of the same rows, floating point, shape (rows, classes), on
            any device.

    Returns:
        a `ReferenceRows` on the CPU, computed in float64.

    Raises:
        ArgumentTypeError: `logits` is not a floating-point tensor.
        ArgumentValueError: the shapes differ, or a row contains NaN, contains +inf, or contains only -inf.

    Example:
        >>> import torch
        >>> from kullback.partial_rows import summarize_rows
        >>> base = torch.tensor([[3.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
        >>> candidate = torch.tensor([[3.0, 1.5, 0.0, -0.5]])
        >>> uniforms = torch.tensor([[0.1, 0.9]], dtype=torch.float64)
        >>> block = summarize_rows(base, torch.tensor([1]), top=2, uniforms=uniforms)
        >>> kl = measure_reference(block, candidate).divergences["kl_pq"]
        >>> kl.bound + kl.tail_term + kl.control, kl.bound
        (tensor([0.0191], dtype=torch.float64), tensor([0.0166], dtype=torch.float64))

    References:
        Monte Carlo theory, methods and examples, chapter 8 (Owen, 2013)
    """
    return measure_candidate(block, read_candidate(block, logits))


def read_candidate(block: PartialRows, logits: Tensor) -> CandidateLogProbs:
    """Check a candidate's logits, read them once, and return what `measure_candidate` needs, on the CPU."""
    check_floating(CALL, "logits", logits, "model(tokens).logits")
    if logits.shape != (len(block), block.classes):
        raise invalid_value(
            CALL,
            "logits",
            wanted=f"the block's rows and classes, shape {(len(block), block.classes)}",
            got=f"shape {tuple(logits.shape)}",
            instead="the candidate's logits at the same positions, with the classes of the base",
        )
    step = rows_in_part(logits)
    parts: list[CandidateLogProbs] = []
    for start in range(0, len(block), step):
        rows = slice(start, start + step)
        x = float64_copy(logits[rows])
        largest = x.amax(-1)
        if not bool(largest.isfinite().all()):
            row = int((~largest.isfinite()).nonzero()[0])
            raise invalid_value(
                CALL,
                "logits",
                wanted="a finite largest logit in each row, and no NaN",
                got=f"{float(largest[row])} in row {block.start + start + row}",
                instead="the logits of a model that works at this position; mask classes by -inf, never +inf or NaN",
            )
        parts.append(_read_part(x, block, rows))
    return CandidateLogProbs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _read_part(x: Tensor, block: PartialRows, rows: slice) -> CandidateLogProbs:
    """Read some rows of logits, and overwrite these logits."""
    device = x.device
    indices = block.top_indices[rows].long().to(device)
    with_mass = (x > -torch.inf).sum(-1)
    drawn = x.gather(-1, block.tail_indices[rows].long().to(device))
    kept = x.gather(-1, indices)
    rest = x.scatter_(-1, indices, -torch.inf)
    others = rest.logsumexp(-1, keepdim=True)
    total = torch.logaddexp(kept.logsumexp(-1, keepdim=True), others)
    most = block.top_log_probs[rows, -1:].double().to(device) + math.log(LARGEST_CONTROLLED) + total
    above = rest > most
    controlled = others
    if bool(above.any()):
        # Rows without a class above `most` get exactly `others`, to the last digit.
        without = rest.masked_fill_(above, -torch.inf).logsumexp(-1, keepdim=True)
        controlled = torch.where(above.any(-1, keepdim=True), without, others)
    top, others, controlled, drawn = [(x - total).cpu() for x in (kept, others, controlled, drawn)]
    return CandidateLogProbs(top, others[:, 0], controlled[:, 0], drawn, with_mass.cpu())


def measure_candidate(block: PartialRows, candidate: CandidateLogProbs) -> ReferenceRows:
    """Measure rows of a reference file against the log-probabilities from `read_candidate`."""
    top, tail = block.top_log_probs.double(), block.tail_log_mass.double()
    pair = pair_from_weights(
        torch.cat([top, tail[:, None]], -1),
        torch.cat([candidate.top, candidate.others[:, None]], -1),
        True,
        True,
    )
    # If the tail is a single class, the bound is exact.
    has_tail = (tail > -torch.inf) & (cast("int", block.classes) > top.shape[-1] + 1)
    support, other_support = block.support_sizes, candidate.classes_with_mass
    terms = {name: kind.terms(pair) for name, kind in DIVERGENCES.items()}
    bounds = {name: each.sum(-1) for name, each in terms.items()}
    mass, other = pair.p[:, -1], pair.q[:, -1]
    for name, sizes in {"kl_pq": (support, other_support), "kl_qp": (other_support, support)}.items():
        bounds[name] = torch.where(has_more_classes(*sizes), torch.inf, bounds[name])
    uppers = {
        "kl_pq": torch.where(has_tail, torch.inf, bounds["kl_pq"]),
        "kl_qp": torch.where(has_tail & (candidate.others > -torch.inf), torch.inf, bounds["kl_qp"]),
        "js": bounds["js"] + has_tail * (math.log(2) / 2 * (mass + other) - terms["js"][:, -1]),
        "tv": bounds["tv"] + has_tail * torch.minimum(mass, other),
    }
    drawn = _tail_functions(
        torch.where(has_tail[:, None], block.tail_log_probs.double() - candidate.drawn, 0),
        torch.where(has_tail, tail - candidate.others, 0)[:, None],
        torch.where(has_tail, tail - candidate.controlled, 0)[:, None],
        candidate.drawn <= top[:, -1:] + math.log(LARGEST_CONTROLLED),
    )
    columns = [
        column
        for name in DIVERGENCES
        for column in _drawn_divergence(bounds[name], uppers[name], mass, has_tail, *drawn[name])
    ]
    has_whole_support = (support == block.classes) & (candidate.controlled == candidate.others)
    table = torch.column_stack([*columns, _spread(pair.log_ratio), has_whole_support, has_tail])
    return ReferenceRows(table, block.tail_indices.shape[-1])


def _tail_functions(
    log_ratio: Tensor, mean_log_ratio: Tensor, controlled_log_ratio: Tensor, is_controlled: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return phi(u) - phi(mean u) and the control variate of each divergence at the draws.

    The log-ratios are log(p/q) = -log u. They belong to the draws, to the whole tail, and to the tail's p with the q of
    the controlled classes.
    """
    # A tail has an infinite ratio only if its bound is infinite too.
    a, b, c = (
        x.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        for x in (log_ratio, mean_log_ratio, controlled_log_ratio)
    )
    u, mean_u, zero = torch.exp(-a), torch.exp(-b), torch.zeros_like(b)
    deviation = u * is_controlled - torch.exp(-c)

    def js(x: Tensor, ratio: Tensor) -> Tensor:
        return -(torch.logaddexp(-x, zero) + ratio * torch.logaddexp(x, zero)) / 2

    def tv(ratio: Tensor) -> Tensor:
        return (1 - ratio).clamp(min=0)

    return {
        "kl_pq": (log_ratio - mean_log_ratio, deviation * torch.exp(b)),
        "kl_qp": (mean_u * b - u * a, deviation * (b - 1)),
        "js": (js(a, u) - js(b, mean_u), deviation * torch.logaddexp(b, zero) / 2),
        "tv": (tv(u) - tv(mean_u), deviation * (mean_u < 1)),
    }


def _drawn_divergence(
    bound: Tensor, upper: Tensor, mass: Tensor, has_tail: Tensor, tail_term: Tensor, control: Tensor
) -> DrawnDivergence:
    draws = tail_term.shape[-1]
    certain = ~has_tail | bound.isinf()
    means = [torch.where(certain, 0, mass * x.mean(-1)) for x in (tail_term, control)]
    infinite = torch.where(certain, bound, bound + means[0]) == torch.inf
    bound, certain = torch.where(infinite, torch.inf, bound), certain | infinite
    means = [torch.where(infinite, 0, x) for x in means]
    a, b = (x - x.mean(-1, keepdim=True) for x in (tail_term, control))
    unknown = mass * math.nan
    # The variance of a mean is the unbiased variance of the draws, divided by their number. The third moment of a mean
    # is the unbiased third moment of the draws, divided by the square of their number.
    squares = [
        mass**2 * (x * y).sum(-1) / (draws * (draws - 1)) if draws > 1 else unknown
        for x, y in ((a, a), (a, b), (b, b))
    ]
    cubes = [
        mass**3 * x.sum(-1) / (draws * (draws - 1) * (draws - 2)) if draws > 2 else unknown
        for x in (a**3, a * a * b, a * b * b, b**3)
    ]
    variances, thirds = (torch.where(certain[:, None], 0, torch.stack(x, -1)) for x in (squares, cubes))
    return DrawnDivergence(bound, torch.maximum(upper, bound), means[0], means[1], variances, thirds)


def _spread(log_ratio: Tensor) -> Tensor:
    """Return the standard deviation of the log-ratios over the top classes and the tail."""
    finite = torch.where(log_ratio.isfinite(), log_ratio, math.inf)
    return finite.std(-1).nan_to_num(math.inf, math.inf)


def join_rows(parts: Sequence[ReferenceRows]) -> ReferenceRows:
    """Join the rows of several blocks from `measure_reference`, in order."""
    return ReferenceRows(torch.cat([part.table for part in parts]), parts[0].draws)


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

    The moments are variances and third central moments. A row without a tail counts as light-tailed.
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
    """Return whether the mean of the control variate over some rows is as close to 0 as its variance predicts."""
    error = math.sqrt(float(drawn.variances[rows, 2].sum()))
    return abs(float(drawn.control[rows].sum())) <= farthest * error


def drawn_mean(rows: ReferenceRows, name: str, chosen: Tensor | slice = slice(None)) -> DrawnMean:
    """Return the mean of a divergence over the chosen rows, with an interval for the sampling of the tail only.

    The interval is Student's t interval with Satterthwaite's degrees of freedom, clamped to the bounds. If the sampling
    distribution is skewed toward a side, the end on that side is the bound. If that bound is infinite, the tail
    probability is 0.0025 instead of 0.025. The interval of KL(candidate||base) has no upper end unless the ratios q/p
    are light-tailed in all rows. The reason is that draws from the base do not show classes where only the candidate
    has mass.
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
    rows: ReferenceRows, name: str, estimator: MeanEstimator, chosen: Tensor | slice = slice(None)
) -> MeanEstimate:
    """Return the standard error and the interval of the mean over the population of clusters.

    The interval also allows for the sampling of the tails, because the sampling adds to the variance of the rows. The
    estimator is a new one of one column, with the clusters of the chosen rows.
    """
    values, _, _, light = (x[chosen] for x in row_estimates(rows, name))
    if not bool(values.isfinite().all()):
        return MeanEstimate(math.inf if bool((values == math.inf).any()) else math.nan)
    bound = {"js": math.log(2), "tv": 1.0}.get(name, math.inf)
    # The estimate of a row may lie outside the range of the divergence. Only the mean is kept within that range.
    low = 0.0 if bool((values >= 0).all()) else -math.inf
    estimator.add(values[:, None])
    mean = estimator.estimates([RatioOfSums(0, -1, low)])[0]
    if mean.interval is None:
        return mean
    ends = max(0.0, mean.interval[0]), min(bound, max(0.0, mean.interval[1]))
    if name == "kl_qp" and not bool(light.all()):
        return mean._replace(interval=(ends[0], math.inf), reason="heavy tail")
    return mean._replace(interval=ends)
