"""`kl_divergence`, `divergence`, `kl_estimate` and `estimate`, which choose a rule for the types of P and Q."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any, Never, cast

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.common.bijective import check_bijective
from kullback.common.constraints import CONFIDENCE, Arguments
from kullback.common.extra_arguments import extra_arguments
from kullback.errors import invalid_value, no_rule, safe_repr
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL, as_divergence
from kullback.kernels import RowDivergence, logit_divergence, rounding_error, row_divergence
from kullback.operands import Operand, comparable, nats_per_unit, no_common_rule, operands
from kullback.pairs import METHODS, SolveOptions
from kullback.pairs.refusals import check_domains
from kullback.pairs.registry import fused_divergence, fused_divergence_of_logits
from kullback.pairs.solve import (
    estimate as estimate_pair,
    estimate_by_rules,
    estimate_exchanged,
    with_numbers,
)
from kullback.pairs.solve_options import OPTIONS
from kullback.representations import Counts, Logits, LogProbs, Probs, Representation
from kullback.results.estimate import Estimate
from kullback.samples import Samples

_KL = KL()
# The methods that the functions accept for two representations of finite distributions.
_FINITE_METHODS = ("auto", "summation")
# The name of the method that computes the divergence of the proportions of counts.
_PLUGIN = "plugin"
_OF_CLASSES = frozenset((Logits, LogProbs, Probs))  # representations without counts
# The remedies for keywords of other libraries or of another function.
_REMEDIES = {
    "kind": "divergence(p, q, kind), or estimate(p, q, kind) for the error too",
    "temperature": "Logits(x / temperature) for both sides",
    "T": "Logits(x / T) for both sides",
    "alpha": "kl_estimate(p, q, confidence=1 - alpha), or divergence(p, q, Renyi(alpha))",
    "prior": "Counts(x, prior=0.5)",
    "smoothing": "Counts(x, prior=0.5)",
    "mask": "kl_divergence(p, q)[mask] for rows, or Logits(x.masked_fill(~mask, -torch.inf)) for classes",
    "weight": "(weight * kl_divergence(p, q)).sum() / weight.sum()",
    "reduction": "kl_divergence(p, q).mean(), .sum(), or neither for a value of each row",
    "log_target": "LogProbs(target) as p",
    "dim": "Logits(x, dim=dim), and so for the other side",
    "axis": "Logits(x, dim=axis), and so for the other side",
    "eps": "Counts(x, prior=0.5) to smooth counts; probabilities of 0 need no eps",
    "confidence": "kl_estimate(p, q, confidence=confidence), which has the interval",
}
_ROWS = {
    x: RowDivergence(_KL, dtype=x) for x in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


def kl_divergence(
    p: Operand,
    q: Operand,
    *positional: Never,
    base: float | None = None,
    method: str = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    max_evaluations: int = 10_000,
    draws: int = 10_000,
    generator: torch.Generator | None = None,
    **unknown: Never,
) -> Tensor:
    r"""Compute the Kullback-Leibler divergence of P from Q, one value for each element of the batch.

    .. math:: KL(P \| Q) = E_P[\log p - \log q]

    The result is never negative and never NaN. KL is exactly 0 for P = Q, and +inf if P has mass outside the support of
    Q. If the mean over random draws is negative, the result is 0, which is closer to KL; a note of `kl_estimate` states
    the mean.

    Arguments:
        p: the distribution P: `Logits`, `LogProbs`, `Probs` or `Counts` of shape (..., classes), a torch distribution,
            or `Samples` from an unknown P. A SciPy distribution with its parameters, such as ``scipy.stats.norm(0, 1)``
            or ``scipy.stats.Normal(mu=0, sigma=1)``, is also accepted; such a distribution has dtype float64 and no
            gradient.
        q: the distribution Q. If P is `Logits`, `LogProbs`, `Probs` or `Counts`, Q is one of these types or a
            Categorical, with the same number of classes. Classes with labels are matched by label. If P is a
            distribution, Q is a distribution. If P is `Samples`, Q is `Samples` or a known distribution. Batch shapes
            broadcast.
        base: the base of the logarithm: 2 gives bits. The default gives nats.
        method: for two torch distributions, the rule. ``"auto"`` uses the most exact rule available of
            ``"closed_form"``, ``"series"``, ``"summation"`` and ``"quadrature"``. ``"monte_carlo"`` uses random draws.
            It raises an error if rounding of the draws changes the result, or if the draws prove that a density is not
            normalized. For `Samples`, the name of a function in `kullback.estimators`, or ``"auto"`` for the function
            that suits the samples.
        rtol: the relative error that a sum or an integral must reach. By default, the aim is 1e-10 in float64.
        atol: an absolute error that is accepted even if `rtol` is not reached.
        max_evaluations: the largest number of terms of a sum, or nodes of an integral, per element of the batch.
        draws: the number of draws of ``"monte_carlo"`` per element of the batch.
        generator: the random generator of these draws; by default, torch's global generator. The built-in estimates
            from `Samples` do not depend on the generator.
        positional, unknown: other arguments are not accepted. The error names the right place, for example for a
            temperature.

    Returns:
        the divergences. Shape: the broadcast batch shape. Dtype: the dtype of the arguments. Values are computed in
        float64 and rounded once. For dtypes of at most 32 bits, the native kernels compute two `LogProbs`, or two
        `Logits` with more than 32 classes, in float32 and sum in float64.

    Raises:
        ArgumentTypeError: an argument is a bare tensor or not a distribution.
        ArgumentValueError: the numbers of classes, dtypes, devices or batch shapes do not match.
        NoRuleError: no exact rule exists for this pair of types.
        ConvergenceError: a sum or an integral did not reach the tolerance. The attribute ``estimate`` of the error is
            the result so far.

    Gradient:
        flows to both arguments and is never NaN. The gradient is 0 for P = Q, at a class masked with ``-inf`` on both
        sides, and at a probability that is exactly 0.

    Example:
        >>> import torch
        >>> from kullback import Logits, Probs, kl_divergence
        >>> teacher, student = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1.0, 0.5, -1.0]])
        >>> kl_divergence(Logits(teacher), Logits(student))
        tensor([0.1718])
        >>> kl_divergence(Probs([1.0, 0.0]), Probs([0.5, 0.5]), base=2)
        tensor(1.)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """
    if positional or unknown:
        raise extra_arguments(kl_divergence, positional, unknown, "kl_divergence(p, q)", _REMEDIES)
    options = _options("kl_divergence", method, rtol, atol, max_evaluations, draws, generator)
    unit = 1.0 if base is None else nats_per_unit("kl_divergence", _KL, base)
    if method == "auto":
        # For a small batch, the other steps would take longer than the divergence, so they are skipped for common
        # arguments.
        if type(p) is type(q) and type(p) in _OF_CLASSES:
            value = _value_of_rows(cast(Representation, p), cast(Representation, q))
        else:
            value = fused_divergence(p, q)
        if value is not None:
            return value if base is None else value / unit
    p, q = operands("kl_divergence", p, q)
    if method == "auto" and isinstance(p, Distribution) and isinstance(q, Distribution):
        value = estimate_by_rules("kl_divergence", p, q, options).value
        return value if base is None else value / unit
    return _value_with_warnings(_answer("kl_divergence", p, q, _KL, unit, options))


def divergence(
    p: Operand,
    q: Operand,
    kind: Divergence | str,
    *positional: Never,
    base: float | None = None,
    method: str = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    max_evaluations: int = 10_000,
    draws: int = 10_000,
    generator: torch.Generator | None = None,
    **unknown: Never,
) -> Tensor:
    r"""Compute the divergence `kind` between P and Q, one value for each element of the batch.

    .. math:: D_f(P \| Q) = \sum_i q_i f(p_i / q_i)

    Arguments:
        p: P, as in `kl_divergence`.
        q: Q, as in `kl_divergence`.
        kind: the divergence, such as ``KL()``, ``JensenShannon(beta=0.5)`` or ``Renyi(alpha=2)``, or its name, such as
            ``"js:0.5"`` (`kullback.generators.parse`). Distributions of vectors support ``KL()``, ``ReverseKL()``,
            ``Jeffreys()``, powers of p / q where they have a closed form, and other kinds by random draws.
        base: the base of the logarithm, for kinds with a logarithm: 2 gives bits. The default gives nats.
        method, rtol, atol, max_evaluations, draws, generator: as in `kl_divergence`.
        positional, unknown: as in `kl_divergence`.

    Returns:
        the divergences. Shape: the broadcast batch shape. Dtype: the dtype of the arguments.

    Raises:
        ArgumentTypeError: an argument is a bare tensor or not a distribution, or `kind` is not a divergence.
        ArgumentValueError: shapes, dtypes or devices do not match, or you pass `base` for a kind without logarithm.
        NoRuleError: no rule exists for this pair of types.

    Gradient:
        flows to both arguments and is never NaN. The docstring of each kind states the gradient where a probability is
        0. Second derivatives are correct in a second backward pass, in forward mode and in `torch.func`. Second
        derivatives do not exist where the divergence has a corner: for `TotalVariation` at P = Q, and for distributions
        whose supports have a common endpoint. The computed second derivatives leave out the contribution of such a
        corner.

    Example:
        >>> import torch
        >>> from kullback import JensenShannon, Probs, TotalVariation, divergence
        >>> p, q = Probs([1.0, 0.0]), Probs([0.5, 0.5])
        >>> divergence(p, q, TotalVariation()), divergence(p, q, JensenShannon(), base=2)
        (tensor(0.5000), tensor(0.3113))

    References:
        A General Class of Coefficients of Divergence of One Distribution from Another (Ali and Silvey, 1966)
    """
    if positional or unknown:
        raise extra_arguments(divergence, positional, unknown, "divergence(p, q, kind)", _REMEDIES)
    kind = as_divergence("divergence", kind)
    options = _options("divergence", method, rtol, atol, max_evaluations, draws, generator)
    unit = nats_per_unit("divergence", kind, base)
    p, q = operands("divergence", p, q)
    return _value_with_warnings(_answer("divergence", p, q, kind, unit, options))


def estimate(
    p: Operand,
    q: Operand,
    kind: Divergence | str = _KL,
    *positional: Never,
    base: float | None = None,
    method: str = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    max_evaluations: int = 10_000,
    draws: int = 10_000,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    **unknown: Never,
) -> Estimate:
    r"""Compute the divergence `kind` between P and Q, with its method and its error.

    .. math:: D_f(P \| Q) = \sum_i q_i f(p_i / q_i)

    `Counts` of integers without a prior are treated as samples. The value is the divergence of the proportions, as
    `kl_divergence` and `divergence` return it, and is biased upwards. The interval is for the divergence of the
    underlying distributions. The interval is the same as for `Samples` with one row for each counted sample.
    ``method="coverage_adjusted"``, or another method for categories, corrects the bias of the value.

    Estimates from draws assume that both data sets are independent. Draws that are in both data sets, for example
    because one data set is a part of the other, are detected. Such a draw then counts on one side only, or the upper
    limit is infinite, and a note says so.

    Arguments:
        p: P, as in `kl_divergence`.
        q: Q, as in `kl_divergence`.
        kind: the divergence or its name, as in `divergence`; KL by default.
        base: the base of the logarithm: 2 gives bits. The default gives nats.
        confidence: the coverage probability of the confidence interval.
        method, rtol, atol, max_evaluations, draws, generator: as in `kl_divergence`.
        positional, unknown: as in `kl_divergence`.

    Returns:
        an `Estimate`. ``value`` is the result of `divergence`, always computed in float64. ``error`` bounds the
        numerical error of ``value``, for exact inputs; estimates from random draws have ``standard_error`` instead.
        ``method`` is the name of the rule, which you can pass as `method`. Estimates from `Samples` and `Counts` also
        have ``interval``, ``n`` and ``notes``; a batch of counts has one interval per row.

    Raises:
        ArgumentTypeError, ArgumentValueError, NoRuleError: as for `divergence`.

    Gradient:
        flows through ``value``, as in `divergence`; ``error`` and ``standard_error`` have no gradient.

    Example:
        >>> from kullback import Counts, TotalVariation, estimate
        >>> result = estimate(Counts([60, 40]), Counts([45, 55]), TotalVariation())
        >>> result.value, result.method, result.n
        (tensor(0.1500), 'plugin', (100, 100))

    References:
        Accuracy and Stability of Numerical Algorithms, chapter 4 (Higham, 2002)
    """
    if positional or unknown:
        raise extra_arguments(estimate, positional, unknown, "estimate(p, q, kind)", _REMEDIES)
    options = _options("estimate", method, rtol, atol, max_evaluations, draws, generator)
    return _estimate("estimate", p, q, kind, base, options, confidence)


def kl_estimate(
    p: Operand,
    q: Operand,
    *positional: Never,
    base: float | None = None,
    method: str = "auto",
    rtol: float | None = None,
    atol: float = 0.0,
    max_evaluations: int = 10_000,
    draws: int = 10_000,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
    **unknown: Never,
) -> Estimate:
    r"""Compute the Kullback-Leibler divergence of P from Q, with its method and its error.

    .. math:: KL(P \| Q) = E_P[\log p - \log q]

    `kl_estimate` is `estimate` with ``kind=KL()``. The documentation of `estimate` describes the intervals of `Counts`.

    Arguments:
        p: P, as in `kl_divergence`.
        q: Q, as in `kl_divergence`.
        base: the base of the logarithm: 2 gives bits. The default gives nats.
        confidence: the coverage probability of the confidence interval.
        method, rtol, atol, max_evaluations, draws, generator: as in `kl_divergence`.
        positional, unknown: as in `kl_divergence`.

    Returns:
        an `Estimate`, as from `estimate`. ``value`` is the result of `kl_divergence`, always computed in float64.

    Raises:
        ArgumentTypeError, ArgumentValueError, NoRuleError: as for `kl_divergence`.

    Gradient:
        flows through ``value``, as in `kl_divergence`; ``error`` and ``standard_error`` have no gradient.

    Example:
        >>> from torch.distributions import Normal
        >>> from kullback import kl_estimate
        >>> result = kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0))
        >>> result.value, result.method
        (tensor(0.5000), 'closed_form')

    References:
        Accuracy and Stability of Numerical Algorithms, chapter 4 (Higham, 2002)
    """
    if positional or unknown:
        remedies = _REMEDIES | {"kind": "estimate(p, q, kind) for another divergence"}
        raise extra_arguments(kl_estimate, positional, unknown, "kl_estimate(p, q)", remedies)
    options = _options("kl_estimate", method, rtol, atol, max_evaluations, draws, generator)
    return _estimate("kl_estimate", p, q, _KL, base, options, confidence)


def _estimate(
    call: str,
    p: object,
    q: object,
    kind: Divergence | str,
    base: float | None,
    options: SolveOptions,
    confidence: float,
) -> Estimate:
    _ESTIMATE.check(call, confidence=confidence)
    options = options._replace(confidence=confidence, wants_error=True)
    kind = as_divergence(call, kind)
    p, q = operands(call, p, q)
    unit = nats_per_unit(call, kind, base)
    answer = replace(_answer(call, p, q, kind, unit, options, exact=True), kind=kind.name, base=base)
    if not (isinstance(p, Representation) and isinstance(q, Representation) and answer.n is None):
        return answer
    p, q = comparable(call, p, q)
    with torch.no_grad():
        answer = replace(answer, error=rounding_error(kind, p, q, answer.value) / unit)
    if not (isinstance(p, Counts) or isinstance(q, Counts)):
        return answer
    from kullback.estimators.known_categories import with_interval

    in_nats = replace(answer, value=answer.value * unit, error=None)
    counted = with_interval(p, q, kind, in_nats, confidence)
    if counted.n is None:
        return replace(answer, notes=counted.notes)
    counted = with_numbers(counted, lambda x: x / unit)
    return replace(counted, value=answer.value, confidence=float(confidence))


_ESTIMATE = Arguments("kl_estimate", "estimate", confidence=CONFIDENCE)


def _options(
    call: str,
    method: str,
    rtol: float | None,
    atol: float,
    max_evaluations: int,
    draws: int,
    generator: torch.Generator | None,
) -> SolveOptions:
    """Return the options as a `SolveOptions`, after a check. A cache avoids a second check of equal options."""
    check = _checked_options if torch.compiler.is_compiling() else _remembered_options
    try:
        options = check(call, method, rtol, atol, max_evaluations, draws)
    except TypeError:  # a number is not hashable, or the check failed: repeat it without the cache
        options = _checked_options(call, method, rtol, atol, max_evaluations, draws)
    if generator is None:
        return options
    OPTIONS.check(call, generator=generator)
    return options._replace(generator=generator)


def _checked_options(
    call: str, method: str, rtol: float | None, atol: float, max_evaluations: int, draws: int
) -> SolveOptions:
    if not isinstance(method, str) or method not in METHODS:  # pyright: ignore[reportUnnecessaryIsInstance]
        _check_estimator(call, method)
    numbers = OPTIONS.check(call, rtol=rtol, atol=atol, max_evaluations=max_evaluations, draws=draws)
    return SolveOptions(method, **numbers, wants_error=False)


@lru_cache(maxsize=128, typed=True)
def _remembered_options(call: str, method: str, *numbers: Any) -> SolveOptions:
    if any(isinstance(x, Tensor) for x in numbers):
        raise TypeError  # a tensor may have another value at the next call
    return _checked_options(call, method, *numbers)


# The functions below import the estimators only if there are draws. The import takes as long as all other imports
# together, and most calls have no draws.


def _check_estimator(call: str, method: object) -> None:
    """Raise unless `method` is the name of an estimator for draws."""
    from kullback.estimators.choose_estimator import METHODS as SAMPLE_METHODS

    if not isinstance(method, str) or method not in SAMPLE_METHODS:
        raise invalid_value(
            call,
            "method",
            wanted=f"one of {', '.join(map(repr, METHODS))} and, for draws, {', '.join(map(repr, SAMPLE_METHODS[1:]))}",
            got=safe_repr(method),
            instead="method='auto', which uses the most exact rule available",
        )


def _answer(
    call: str,
    p: object,
    q: object,
    kind: Divergence,
    unit: float,
    options: SolveOptions,
    *,
    exact: bool = False,
) -> Estimate:
    """Return the divergence of P and Q in the unit of the result, which is `unit` nats."""
    method, are_counts = options.method, isinstance(p, Counts) and isinstance(q, Counts)
    if isinstance(p, Distribution) and isinstance(q, Distribution):
        answer = between_distributions(call, p, q, kind, options)
    elif (
        isinstance(p, Samples) or isinstance(q, Samples) or (are_counts and method not in (*METHODS, _PLUGIN))
    ):
        from kullback.estimators.choose_estimator import estimate_from_samples

        for name, side in (("p", p), ("q", q)):
            if isinstance(side, Distribution):
                check_bijective(call, name, side)
        answer = estimate_from_samples(
            call, p, q, kind, method, confidence=options.confidence, generator=options.generator
        )
    elif not (isinstance(p, Representation) and isinstance(q, Representation)):
        raise no_common_rule(call, p, q)
    elif method in _FINITE_METHODS or (
        method == _PLUGIN and (isinstance(p, Counts) or isinstance(q, Counts))
    ):
        answer = Estimate(row_divergence(kind, *comparable(call, p, q), exact=exact), None, "summation")
    else:
        wanted, instead = "'auto' or 'summation', which sum over classes", "method='summation'"
        raise no_rule(call, "method", wanted=wanted, got=repr(method), instead=instead)
    return answer if unit == 1 else with_numbers(answer, lambda x: x / unit)


def _value_with_warnings(answer: Estimate) -> Tensor:
    """Return the value of an estimate. If the interval of the estimate has no finite upper limit, warn with the notes
    of the estimate.
    """
    if answer.n is not None and (answer.interval is None or not bool(answer.interval[1].isfinite().all())):
        from kullback.estimators import EstimateWarning

        for note in answer.notes:
            warnings.warn(note, EstimateWarning, stacklevel=3)
    return answer.value


def between_distributions(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: SolveOptions
) -> Estimate:
    """Return the divergence of two torch distributions as an `Estimate`, with its method and error."""
    kind = kind if isinstance(kind, KL) else kind.simplest()
    if isinstance(kind, ReverseKL | Jeffreys):  # so that errors name P and Q correctly
        check_domains(call, p, q)
    if isinstance(kind, ReverseKL):
        return estimate_exchanged(call, p, q, options)
    if isinstance(kind, Jeffreys):
        return _sum(estimate_pair(call, p, q, options), estimate_exchanged(call, p, q, options))
    return estimate_pair(call, p, q, options, kind)


def _sum(a: Estimate, b: Estimate) -> Estimate:
    """Return the sum of two estimates. The method of the sum is the less exact of the two methods."""
    error = None if a.error is None or b.error is None else a.error + b.error
    standard_error = None
    if a.standard_error is not None and b.standard_error is not None:
        standard_error = (a.standard_error**2 + b.standard_error**2).sqrt()
    method = max(a.method, b.method, key=METHODS.index)
    notes = (
        () if a.method == b.method else (f"KL(P || Q) was computed by {a.method}, KL(Q || P) by {b.method}.",)
    )
    return Estimate(a.value + b.value, error, method, notes=notes, standard_error=standard_error)


def _value_of_rows(p: Representation, q: Representation) -> Tensor | None:
    """Return KL of two representations of the same type, or None unless shapes, dtypes, devices and `dim` are equal and
    neither has labels.
    """
    if p.labels is not None or q.labels is not None:
        return None
    a, b = p.tensor, q.tensor
    if type(p) is Logits and p.dim == q.dim == -1:
        value = fused_divergence_of_logits(a, b)
        if value is not None:
            return value
    if not (a.shape == b.shape and a.dtype is b.dtype and a.device == b.device and p.dim == q.dim):
        return None
    rows = _ROWS.get(a.dtype) if p.in_logs and p.dim == -1 else None
    return row_divergence(_KL, p, q) if rows is None else logit_divergence(rows, a, b)
