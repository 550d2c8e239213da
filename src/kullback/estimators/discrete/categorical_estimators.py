"""Estimators of KL and other divergences from draws of categories, with standard errors, intervals and notes.

All estimators of KL return the interval of `kl_interval`, which does not depend on the estimator. For weighted or
clustered draws, the formulas use an effective number of independent draws.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Number
from kullback.common.extra_arguments import by_name
from kullback.common.inference import two_sided_quantile
from kullback.errors import no_rule
from kullback.estimators.discrete import formulas
from kullback.estimators.discrete.count_intervals import MOST_UNSEEN, kl_interval
from kullback.estimators.discrete.counts import count_categories
from kullback.estimators.discrete.formulas import (
    FEWEST_DRAWS,
    KNOWN,
    CategoryCounts,
    at_the_ends,
    counts_of_kind,
)
from kullback.estimators.evidence import SIDE_P, SIDE_Q, Evidence, by_direction
from kullback.estimators.registry import enlist, from_draws
from kullback.generators import (
    KL,
    Alpha,
    BuiltIn,
    Divergence,
    Jeffreys,
    Renyi,
    ReverseKL,
    TotalVariation,
    as_divergence,
)
from kullback.representations import Counts
from kullback.results.estimate import Estimate
from kullback.samples import Samples

_NOTHING_SHARED = (
    f"{SIDE_P} and {SIDE_Q} have no category in common. Unique row names, such as ids, cannot be compared: use other "
    "values. If the two sides use different codes, recode one of them."
)
# A note appears if at least this many draws of P are in categories without draws of Q.
_SEVERAL = 3


def _of_counts(formula: Callable[..., Tensor]) -> Callable[..., Estimate]:
    """Return the public estimator for a formula; its attribute `of_counts` applies the formula to any dtype."""
    name = formula.__name__

    def evidence(
        p: Samples | Counts,
        q: Samples | Counts,
        *,
        confidence: float = 0.95,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Evidence:
        del generator
        table = count_categories(name, p, q)
        return described(table, formula(table.a, table.b, **options), confidence, name)

    for attribute in ("__name__", "__qualname__", "__doc__"):
        setattr(evidence, attribute, getattr(formula, attribute))
    estimator = cast("Any", from_draws(evidence, lambda _, p, q: (p, q)))
    options = list(inspect.signature(formula).parameters.values())[2:]
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    signature = inspect.signature(estimator)
    arguments = list(signature.parameters.values())[:-1]
    estimator.__signature__ = signature.replace(parameters=[*arguments, *options])

    def of_counts(a: Tensor, b: Tensor, *more: Any, **named: Any) -> Tensor:
        table = CategoryCounts.of(a, b)
        return formula(table.a, table.b, *more, **named)

    estimator.of_counts = of_counts
    return enlist(estimator, categories=True)


@_of_counts
def coverage_adjusted(a: Tensor, b: Tensor) -> Tensor:
    r"""Estimate KL(P || Q) between categories, with a bias correction from the categories with one or two draws.

    .. math:: \hat D = \hat D_{ZG} + (1 - v / c^2)_+\, c, \quad
        c = F_0\, e^{\lambda} E_1(\lambda) - G_1\, e^{\mu} E_1(\mu), \quad
        \lambda = \frac{F_1}{F_0},\ \mu = \frac{G_2}{G_1}

    Here :math:`\hat D_{ZG}` is the estimate of `zhang_grabchak`. :math:`F_k` is the proportion of P's draws in
    categories with k draws of Q. :math:`G_k` is the proportion of P's draws in categories with k draws of P.
    :math:`E_1` is the exponential integral. The ratios :math:`\lambda` and :math:`\mu` are shrunken towards 1: the
    numerator and the denominator are increased by the term of one additional category. v is the variance of c. A
    negative result becomes 0.

    `kl_estimate` takes this estimator by default. The root mean square errors of `coverage_adjusted` and
    `zhang_grabchak` were compared on Zipf distributions with 1000 categories. If P and Q differ and many categories
    have no draws, the error of `coverage_adjusted` can be half the other error. Otherwise, the two errors are about
    equal.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of categories from P: integers, booleans, strings, or vectors of integers, where each row is a
            category. Or the `Counts` of such draws, shape (..., K).
        q: draws of categories from Q, or their `Counts`.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.

    Returns:
        value, standard error and interval in nats. Let f_k be the proportion of P's draws in categories with k draws of
        Q. The upper limit is infinite in three cases. First, f_0 is above 5 %. Second, f_0 is significantly larger than
        the mean of f_1 and f_2. Third, f_1 and f_2 are 0, and two or more draws of P in categories without draws of Q
        could add more than half the interval's width. A finite upper limit assumes that p / q is similar in categories
        without draws of Q and with one or two draws of Q. There is no interval if all
        draws are in one category, or if no category has five expected draws on both sides under P = Q.

    Raises:
        ArgumentValueError: the draws are numbers, not categories, or `p` and `q` have different numbers of components
            or classes.

    Example:
        >>> from kullback import Samples
        >>> estimate = coverage_adjusted(Samples(["a"] * 30 + ["b"] * 10), Samples(["a"] * 20 + ["b"] * 20))
        >>> round(float(estimate.value), 4), [round(float(end), 4) for end in estimate.interval]
        (0.1057, [0.0087, 0.545])

    References:
        Entropy and the species accumulation curve: a novel entropy estimator via discovery rates of new species
        (Chao, Wang and Jost, 2013)
    """
    table = CategoryCounts(a, b)
    return table.estimate + table.correction.shrunken


@_of_counts
def zhang_grabchak(a: Tensor, b: Tensor) -> Tensor:
    r"""Estimate KL(P || Q) between categories with a bias that decays exponentially in the numbers of draws.

    .. math:: \hat D = \sum_i \frac{a_i}{n} [\psi(m + 1) - \psi(b_i + 1) - \psi(n) + \psi(a_i)]

    Category i has :math:`a_i` of P's n draws and :math:`b_i` of Q's m draws. Arguments, results and errors are as in
    `coverage_adjusted`; a negative estimate becomes 0.

    Example:
        >>> from kullback import Samples
        >>> round(float(zhang_grabchak(Samples([0] * 30 + [1] * 10), Samples([0] * 20 + [1] * 20)).value), 4)
        0.1057

    References:
        Nonparametric Estimation of Kullback-Leibler Divergence (Zhang and Grabchak, 2014)
    """
    return CategoryCounts(a, b).estimate


@_of_counts
def plugin(a: Tensor, b: Tensor) -> Tensor:
    r"""Estimate KL(P || Q) between categories by the divergence of the proportions of the draws.

    .. math:: \hat D = \sum_i \frac{a_i}{n} \log \frac{a_i m}{b_i n}

    Category i has :math:`a_i` of P's n draws and :math:`b_i` of Q's m draws. Arguments and errors are as in
    `coverage_adjusted`.

    Returns:
        value, standard error and interval in nats. The value is infinite if P has draws in a category without draws of
        Q. There is then no standard error, but the interval is valid, and a note gives the proportion of P's draws in
        such categories.

    Example:
        >>> from kullback import Samples
        >>> estimate = plugin(Samples(["a"] * 50 + ["b"]), Samples(["a"] * 51))
        >>> float(estimate.value)
        inf
        >>> estimate.notes[0]
        "Q has no draw of 1 category that has 1.96 % of P's draws: the divergence of the proportions is infinite. ..."
    """
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    return formulas.sum_over(a, a / n * (a.log() - b.log() + (m / n).log()))


@_of_counts
def miller_madow(a: Tensor, b: Tensor) -> Tensor:
    r"""Estimate KL(P || Q) between categories by the divergence of the proportions minus its first-order bias.

    .. math:: \hat D = \sum_i \hat p_i \log \frac{\hat p_i}{\tilde q_i}
        - \frac{K_a - 1}{2 n} - \sum_i \hat p_i \frac{1 - \tilde q_i}{2 m \tilde q_i}

    P's n draws are in :math:`K_a` distinct categories, and :math:`\hat p_i = a_i / n`. Category i has :math:`b_i` of
    Q's m draws, and :math:`\tilde q_i = \max(b_i, 1/2) / m`. Arguments, results and errors are as in
    `coverage_adjusted`; a negative estimate becomes 0.

    Example:
        >>> from kullback import Samples
        >>> round(float(miller_madow(Samples([0] * 30 + [1] * 10), Samples([0] * 20 + [1] * 20)).value), 4)
        0.1058

    References:
        Note on the bias of information estimates (Miller, 1955)
    """
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    p, q = a / n, b.clamp(min=0.5) / m
    bias_p = ((a > 0).sum(-1, keepdim=True) - 1) / (2 * n)
    return formulas.sum_over(a, p * (p.log() - q.log() - (1 - q) / (2 * m * q))) - bias_p[..., 0]


@_of_counts
def augmented_plugin(a: Tensor, b: Tensor) -> Tensor:
    r"""Estimate KL(P || Q) between categories after one draw of Q is added to each category.

    .. math:: \hat D = \sum_i \frac{a_i}{n} \log \frac{a_i m}{(b_i + 1) n}

    Category i has :math:`a_i` of P's n draws and :math:`b_i` of Q's m draws. Arguments, results and errors are as in
    `coverage_adjusted`; a negative estimate becomes 0.

    Example:
        >>> from kullback import Samples
        >>> round(float(augmented_plugin(Samples([0] * 30 + [1] * 10), Samples([0] * 20 + [1] * 20)).value), 4)
        0.082

    References:
        Estimation of KL Divergence: Optimal Minimax Rate (Bu, Zou, Liang and Veeravalli, 2018)
    """
    n, m = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    return formulas.sum_over(a, a / n * (a.log() - (b + 1).log() + (m / n).log()))


_DIRICHLET = Arguments("dirichlet", prior=Number(above=0, below=math.inf, example=0.5))


@_of_counts
def dirichlet(a: Tensor, b: Tensor, prior: float = 0.5) -> Tensor:
    r"""Estimate KL(P || Q) between categories after `prior` draws of P and of Q are added to each category.

    .. math:: \hat D = \sum_i \frac{a_i + c}{n + K c} \log \frac{(a_i + c) (m + K c)}{(b_i + c) (n + K c)}

    There are K categories. Category i has :math:`a_i` of P's n draws and :math:`b_i` of Q's m draws. Other arguments,
    results and errors are as in `coverage_adjusted`.

    Arguments:
        prior: the number c > 0 of draws added to every category on both sides; 1/2 is Jeffreys' prior.

    Example:
        >>> from kullback import Samples
        >>> round(float(dirichlet(Samples(["a"] * 50 + ["b"]), Samples(["a"] * 51)).value), 4)
        0.0126

    References:
        An invariant form for the prior probability in estimation problems (Jeffreys, 1946)
    """
    prior = _DIRICHLET.check(prior=prior)["prior"]
    return cast("Any", plugin).of_counts(a + prior, b + prior)


def described(table: CategoryCounts, raw: Tensor, confidence: float, method: str) -> Evidence:
    """Return the evidence of the estimate `raw` of KL from counts, with its standard error, interval and notes."""
    value = raw.clamp(min=0)
    if value.ndim:
        return _of_rows(table, value, confidence)
    unseen, singletons = map(float, table.unseen_shares)
    finite, categories = math.isfinite(float(value)), "bins" if table.bins else "categories"
    notes: list[str] = [] if finite else [_what_q_misses(table)]
    if not table.bins:
        notes += nothing_shared(table)
    if bool(is_refused(table)) or not bool(table.variance.isfinite()):
        notes.append(_refusal(table, categories))
        return Evidence(raw, notes=notes, remarks=table.notes, n=table.n)
    low, high = kl_interval(table, confidence)
    is_open = not bool(high.isfinite())
    if is_open or (unseen * table.a.sum() >= _SEVERAL and not table.bins):
        missed = (
            f"{100 * unseen:.3g} % of {SIDE_P}'s samples are in {categories} where {SIDE_Q} has no samples"
        )
        too_low = ", and the value is likely too low" * finite
        notes.append(
            f"{missed}, so KL could be arbitrarily large: the upper limit is infinite{too_low}."
            if is_open
            else f"{missed}. The upper limit assumes that these {categories} are like the ones with one or two samples "
            f"of {SIDE_Q}."
        )
    if high.isfinite() and singletons > MOST_UNSEEN:
        notes.append(
            f"{100 * singletons:.3g} % of {SIDE_P}'s samples are in {categories} with a single one. The lower limit "
            f"merges all {categories} with fewer than {FEWEST_DRAWS // 2} expected samples on a side."
        )
    if finite and not low <= value <= high:
        notes.append(f"The value is outside the interval: the bias of {method!r} exceeds its standard error.")
    if high.isfinite() and value > math.log(table.n[1]) - 1:
        end = f"{table.n[1]} draws: a larger divergence would look the same."
        notes.append(f"The value is near the logarithm of {SIDE_Q}'s {end}")
    error = table.variance.sqrt() if finite else None
    return Evidence(raw, error=error, ends=(low, high), notes=notes, remarks=table.notes, n=table.n)


def _what_q_misses(table: CategoryCounts) -> str:
    """Return the note on an infinite value, with the number of categories with draws of P but without draws of Q."""
    missed = (table.a > 0) & (table.b == 0)
    number, share = int(missed.sum()), float(table.a[missed].sum() / table.a.sum())
    return (
        f"{SIDE_Q} has no draw of {number} {'categories that have' if number > 1 else 'category that has'} "
        f"{100 * share:.3g} % of {SIDE_P}'s draws: the divergence of the proportions is infinite. For a finite value "
        "use a prior, method='dirichlet', or a bias correction, method='coverage_adjusted'. The lower limit is valid "
        "without either."
    )


def nothing_shared(table: CategoryCounts) -> list[str]:
    """Return a list with one note if P and Q have no category in common, and an empty list otherwise."""
    return [] if bool(((table.a > 0) & (table.b > 0)).any()) else [_NOTHING_SHARED]


def _of_rows(table: CategoryCounts, value: Tensor, confidence: float) -> Evidence:
    """Return the evidence of a batch; a row with too few draws for an interval gets the interval from 0 to infinity."""
    low, high = kl_interval(table, confidence)
    refused = is_refused(table)
    low, high = low.masked_fill(refused, 0.0), high.masked_fill(refused, math.inf)
    error = table.variance.sqrt().masked_fill(refused | value.isinf(), math.inf)
    outside = value.isfinite() & ~((low <= value) & (value <= high))
    never = f"{SIDE_Q} has no draw of a category of {SIDE_P}: the divergence of the proportions is infinite."
    rare = (
        f"draws of {SIDE_P} are in categories with few or no draws of {SIDE_Q}: the upper limit is infinite."
    )
    notes = (
        (refused, "no interval, because too few categories have draws; it is given as 0 to inf."),
        (high.isinf() & ~refused, rare),
        (value.isinf(), never),
        (outside, "the value is outside the interval: its bias exceeds its standard error."),
    )
    shown = [rows_note(rows, text) for rows, text in notes if bool(rows.any())]
    return Evidence(value, error=error, ends=(low, high), notes=shown, n=table.n)


def rows_note(rows: Tensor, text: str) -> str:
    """Return a note that begins with the number of rows in the boolean mask `rows`, followed by `text`."""
    return f"{int(rows.sum()):,} of {rows.numel():,} rows: {text}"


def is_refused(table: CategoryCounts) -> Tensor:
    """Return, for each row, whether too few categories have enough draws for an interval."""
    return (table.coarser.a + table.coarser.b > 0).sum(-1) < 2


def _refusal(table: CategoryCounts, categories: str) -> str:
    if not bool(table.variance.isfinite()):
        return "One side has a single cluster, so the variance between clusters is unknown: there is no interval."
    number = int((table.a + table.b > 0).sum())
    if number == 1:
        return (
            f"All draws are in one of the {categories}: there is no interval, because no other one has draws."
        )
    return (
        f"There is no interval: it needs {FEWEST_DRAWS // 2} expected draws on both sides, and none of the {number} "
        f"{categories} has them."
    )


# `_MEAN` is E |Z| for a standard normal variable Z, and `_VARIANCE` is the variance of |Z|.
_MEAN, _VARIANCE = math.sqrt(2 / math.pi), 1 - 2 / math.pi
# The number of bisections is the number of bits of a float64 number, 53, and a few more for the scale of the number.
_STEPS = 60


def total_variation_interval(table: CategoryCounts, confidence: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return the limits of a confidence interval for total variation from counts: two float64 tensors of shape (...).

    The total variation of the proportions is half the sum of the absolute differences of the proportions. These
    differences are nearly normal, with means :math:`d_i` and standard deviations :math:`\sigma_i`. For a small
    :math:`d_i`, the absolute value is biased upwards. The sum of these biases depends on how the total variation is
    divided among the categories. Each limit of the interval assumes the least favorable division.

    The upper limit assumes :math:`|d_i| = x \sigma_i` with the same x for all categories, because this minimizes the
    mean of the estimate for a given total variation. The lower limit assumes that P and Q differ in two categories
    only, because this maximizes the mean. For the lower limit, rare categories are merged if categories with a single
    draw of a side, or without draws of the other side, have more than 5 % of the side's draws.

    Example:
        >>> total_variation_interval(CategoryCounts.of(torch.tensor([30, 10]), torch.tensor([20, 20])))
        (tensor(0., dtype=torch.float64), tensor(0.4563, dtype=torch.float64))

    References:
        On Choosing and Bounding Probability Metrics (Gibbs and Su, 2002)
    """
    z, table = two_sided_quantile(confidence), table.at(confidence)
    high, low = _upper_end(table, z), _lower_end(table, z)
    low = torch.where(table.rarest_share > MOST_UNSEEN, _lower_end(table.coarser, z), low)
    return low.clamp(0, 1), high.clamp(0, 1)


def total_variation_estimate(table: CategoryCounts) -> tuple[Tensor, Tensor]:
    """Return the total variation of the proportions minus its bias, and the standard error, each of shape (...)."""
    spreads, total = _spreads(table)
    differences = _differences(table)
    x = differences / spreads.clamp(min=torch.finfo(torch.float64).tiny)
    bias = torch.where(spreads > 0, spreads * (_folded(x) - x), 0.0).sum(-1) / 2
    return (differences.sum(-1) / 2 - bias).clamp(min=0), total


def _differences(table: CategoryCounts) -> Tensor:
    return (table.a / table.a.sum(-1, keepdim=True) - table.b / table.b.sum(-1, keepdim=True)).abs()


def _shrinkage(table: CategoryCounts) -> Tensor:
    """Return the decrease of P(A) - Q(A), A = {p > q}, if both sides get one more draw in A and in its complement."""
    sides = [(x, x.sum(-1, keepdim=True)) for x in (table.a, table.b)]
    where = table.a / sides[0][1] > table.b / sides[1][1]
    inside = [((x * where).sum(-1), n[..., 0]) for x, n in sides]
    raw, shrunk = ([(x + more) / (n + 2 * more) for x, n in inside] for more in (0, 1))
    return (raw[0] - raw[1]) - (shrunk[0] - shrunk[1])


def _spreads(table: CategoryCounts) -> tuple[Tensor, Tensor]:
    """Return the standard deviations of p - q in each category, and of P(A) - Q(A) for the event A = {p > q}.

    For each proportion, one success and one failure are added (Agresti and Caffo, 2000).
    """
    a, b = table.a, table.b
    squares, total = torch.zeros_like(a), torch.zeros_like(a[..., 0])
    where = a / a.sum(-1, keepdim=True) > b / b.sum(-1, keepdim=True)
    for x, factor in zip((a, b), table.inflation, strict=True):
        n = x.sum(-1, keepdim=True)
        is_known = n > KNOWN / 2
        share = torch.where(is_known, x / n, (x + 1) / (n + 2))
        squares = squares + torch.where(is_known, 0.0, factor * share * (1 - share) / n)
        inside = torch.where(is_known, 0.0, (x * where).sum(-1, keepdim=True) + 1) / (n + 2)
        total = total + torch.where(is_known, 0.0, factor * inside * (1 - inside) / n)[..., 0]
    squares = squares * (a + b > 0)
    # If P and Q are close, A depends on chance, and other events have larger variances. So the second variance is at
    # least the largest variance of a category, and at least a quarter of the sum of these variances.
    return squares.sqrt(), torch.stack([total, squares.amax(-1), squares.sum(-1) / 4]).amax(0).sqrt()


def _folded(x: Tensor) -> Tensor:
    """Return E |N(x, 1)|."""
    return _MEAN * (-(x**2) / 2).exp() + x * torch.erf(x / math.sqrt(2))


def _bisected(high: Tensor, is_above: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Bisect [0, high]: return neighboring numbers x < y such that `is_above` is False at x and True at y."""
    low = torch.zeros_like(high)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        above = is_above(middle)
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low, high


def _upper_end(table: CategoryCounts, z: float) -> Tensor:
    """Return the largest total variation that the counts do not reject, without a correction for rare categories."""
    spreads, total = _spreads(table)
    unit = (spreads.masked_fill(table.is_rare, 0).sum(-1) / 2).clamp(min=torch.finfo(torch.float64).tiny)
    differences = _differences(table) / 2
    of_rare = differences.masked_fill(~table.is_rare, 0).sum(-1)
    goal = (differences.sum(-1) - of_rare + z * total) / unit
    return _bisected(goal, lambda x: _folded(x) > goal)[1] * unit + of_rare


def _lower_end(table: CategoryCounts, z: float) -> Tensor:
    """Return the smallest total variation that the counts do not reject at the normal quantile z, shape (...)."""
    spreads, total = _spreads(table)
    tiny = torch.finfo(torch.float64).tiny
    pair = torch.where(spreads > 0, spreads, torch.inf).sort(-1).values[..., :2]
    pair = torch.where(pair.isinf(), 0.0, pair).mean(-1).clamp(min=tiny)
    others = (_MEAN * (spreads.sum(-1) / 2 - pair)).clamp(min=0)
    squares = spreads.square()
    largest = squares.topk(min(2, squares.shape[-1]), dim=-1).values
    concentrated = largest.sum(-1) / squares.sum(-1).clamp(min=tiny)
    reach = z * total * (_VARIANCE + (1 - _VARIANCE) * concentrated).sqrt()
    goal = (_differences(table).sum(-1) / 2 - _shrinkage(table) - others - reach) / pair
    # The result is `pair` times the smallest x >= 0 with E |N(x, 1)| >= `goal`.
    low, high = _bisected(goal.clamp(min=0), lambda x: _folded(x) >= goal)
    return torch.where(_folded(low) >= goal, low, high) * pair


@by_name()
@partial(enlist, categories=True)
@partial(from_draws, checks=lambda _, p, q: (p, q))
def bias_corrected(
    p: Samples | Counts,
    q: Samples | Counts,
    kind: Divergence | str = "kl",
    *,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> Evidence:
    r"""Estimate a divergence of any kind between categories: the divergence of their proportions minus its bias.

    .. math:: \hat D = D(\hat p, \hat q) - \frac12 \sum_i \Bigl[ a_i (1 - \hat p_i)\, \Delta^2_{a_i} D
        + b_i (1 - \hat q_i)\, \Delta^2_{b_i} D \Bigr]

    Category i has :math:`a_i` of P's draws and :math:`b_i` of Q's draws. :math:`\Delta^2_{a_i} D` is the second
    difference of the term of category i, for steps of one draw in the count :math:`a_i`. The formula is for bounded
    divergences. Powers of p / q of order above 1 or below 0 are estimated without bias by ratios of gamma functions. KL
    is estimated by `coverage_adjusted`.

    Draws, or their clusters, must be independent. Unlike `kl_estimate`, this function does not test the draws for
    serial dependence.

    Arguments:
        p: draws of categories from P, or their `Counts` of shape (..., K).
        q: draws of categories from Q, or their `Counts` of shape (..., K).
        kind: the divergence or its name: any divergence of kullback except ``Renyi(0)`` and ``Renyi(inf)``.
        confidence: the probability that the interval contains the divergence.
        generator: not used, because the estimate is not random.

    Returns:
        value, standard error and interval, in nats if the divergence has a logarithm. Bounded divergences have finite
        intervals. For unbounded divergences, the upper limit is infinite if one side has draws in categories with few
        or no draws of the other side.

    Raises:
        ArgumentValueError: the draws are numbers, not categories, or `p` and `q` have different numbers of components
            or classes.
        NoRuleError: draws do not determine this kind.

    Example:
        >>> from kullback import Samples
        >>> estimate = bias_corrected(Samples(["a"] * 30 + ["b"] * 10), Samples(["a"] * 20 + ["b"] * 20), "js")
        >>> round(float(estimate.value), 4), [round(float(end), 4) for end in estimate.interval]
        (0.0271, [0.0022, 0.1508])

    References:
        Notes on bias in estimation (Quenouille, 1956)
        Interval estimation for a binomial proportion (Brown, Cai and DasGupta, 2001)
    """
    del generator
    kind = estimable("bias_corrected", as_divergence("bias_corrected", kind))
    return describe_kind(count_categories("bias_corrected", p, q), kind, confidence)


def describe_kind(table: CategoryCounts, kind: Divergence, confidence: float) -> Evidence:
    """Return the evidence of the divergence `kind` from counts, with its standard error, interval and notes."""
    evidence = measured(kind, table, confidence)
    error, (low, high) = cast("Tensor", evidence.error), cast("tuple[Tensor, Tensor]", evidence.ends)
    refused = is_refused(table) | ~error.isfinite()
    largest = largest_of(kind)
    low, high = low.masked_fill(refused, 0.0), high.masked_fill(refused, largest)
    no_bound = (
        f"The draws are in too few categories to bound the divergence: the interval is 0 to {largest:.3g}."
    )
    no_end = (
        "One side has draws in categories with few or no draws of the other, so the divergence could be arbitrarily "
        "large: the upper limit is infinite."
    )
    cases = ((refused, no_bound), (high.isinf() & ~refused, no_end))
    notes = [text if rows.ndim == 0 else rows_note(rows, text) for rows, text in cases if bool(rows.any())]
    if not table.bins and table.a.ndim == 1:
        notes = [*nothing_shared(table), *notes]
    error = error.masked_fill(refused, math.inf)
    return replace(evidence, error=error, ends=(low, high), notes=[*notes, *table.notes], n=table.n)


def largest_of(kind: Divergence) -> float:
    """Return the supremum of the divergence over all P and Q."""
    return sum(at_the_ends(kind)) if kind.additive else math.inf


def estimable(call: str, kind: Divergence) -> Divergence:
    """Return `kind.simplest()`, such as `KL()` for `Alpha(1)`; raise an error if draws do not determine `kind`."""
    is_limit = isinstance(kind, Renyi) and kind.alpha in (0, math.inf)
    if is_limit or not isinstance(kind, BuiltIn):
        wanted = "a divergence of kullback's that draws determine"
        if is_limit:
            got = f"{kind!r}, which depends on events that have no draws"
            instead = "kind=Renyi(2.0), or another order between 0 and inf"
        else:
            got = f"{kind!r}, a kind without a known interval"
            instead = "divergence(Counts(histogram_of_p), Counts(histogram_of_q), kind), without an interval"
        raise no_rule(call, "kind", wanted=wanted, got=got, instead=instead)
    return kind.simplest()


def measured(kind: Divergence, table: CategoryCounts, confidence: float = 0.95) -> Evidence:
    """Return the evidence of a divergence from `estimable` and counts of categories, without notes.

    The intervals come from `kl_interval`, except for `TotalVariation`. The estimate and the limits of a `Renyi`
    divergence are functions of those of the `Alpha` divergence.
    """
    if isinstance(kind, ReverseKL | Jeffreys):
        of_kl = partial(measured, KL(), confidence=confidence)
        return by_direction(kind, lambda there, _: of_kl(there), table, table.reversed)
    if isinstance(kind, TotalVariation):
        value, error = total_variation_estimate(table)
        return Evidence(value, error=error, ends=total_variation_interval(table, confidence))
    if isinstance(kind, Renyi):
        return _renyi(kind.alpha, measured(Alpha(kind.alpha), table, confidence))
    table = counts_of_kind(kind, table)
    value = (table.estimate + table.correction.shrunken).clamp(0, table.largest)
    return Evidence(value, error=table.variance.sqrt(), ends=kl_interval(table, confidence))


def _renyi(alpha: float, power: Evidence) -> Evidence:
    """Return the evidence of log(1 + alpha (alpha - 1) D) / (alpha - 1) from `power`, that of D = `Alpha(alpha)`."""
    factor, (low, high) = alpha * (alpha - 1), cast("tuple[Tensor, Tensor]", power.ends)

    def of(x: Tensor) -> Tensor:
        return torch.log1p((factor * x).clamp(min=-1)) / (alpha - 1)

    value, error = cast("Tensor", power.value), cast("Tensor", power.error)
    error = error * alpha / (1 + factor * value).clamp(min=torch.finfo(torch.float64).tiny)
    return Evidence(of(value), error=error, ends=(of(low), of(high)))
