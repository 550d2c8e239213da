"""`estimate` returns the divergence of two distributions: it tries rules in a fixed order, and checks the result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, OneHotCategorical, Uniform

from kullback.common.dtypes import upcast
from kullback.common.inputs import can_inspect_all
from kullback.common.special import LARGEST_EXPONENT, safe_log
from kullback.errors import (
    ConvergenceError,
    NoRuleError,
    invalid_type,
    invalid_value,
    safe_repr,
    sides_exchanged,
)
from kullback.generators import KL, Divergence, Renyi
from kullback.generators.growth import order_of, power_of
from kullback.pairs.clone import (
    are_valid,
    expanded,
    parameters_of,
    parts_of,
    upcast_copy,
    with_tensors,
    zero_of,
)
from kullback.pairs.closed_forms.reductions import (
    kl_of_dimensions,
    kl_transformed_transformed,
    sum_of_dimensions,
)
from kullback.pairs.densities.density import densities_of
from kullback.pairs.densities.maps import move_apart, plain_form, pulled_back, same_maps
from kullback.pairs.family import overrides_density
from kullback.pairs.integration.divergence_terms import total_of_masses
from kullback.pairs.monte_carlo import from_draws
from kullback.pairs.numerics.parameters import (
    batch_shape_of,
    categorical_of,
    dtype_of,
    in_common_unit,
    is_whole_graph,
    log_probs_of,
    outside_of_graphs,
)
from kullback.pairs.refusals import check_domains, check_integrable, not_converged, unserved
from kullback.pairs.registry import (
    ClosedForm,
    Plan,
    Reduction,
    Step,
    UserRule,
    fused_divergence,
    names_of,
    plan_for,
    renyi_in_closed_form,
    set_order,
)
from kullback.pairs.solve_options import METHODS, SolveOptions
from kullback.pairs.support import check_comparable, is_always_finite, is_infinite
from kullback.pairs.torch_registry import ThirdPartyRule
from kullback.results.estimate import Estimate

# A value above _OVERFLOW counts as an overflow, because formulas limit exponents to `LARGEST_EXPONENT`, which is 709,
# and e^709 is 8.2e307.
_OVERFLOW = 8e307
_KL = KL()


class Pair(NamedTuple):
    """P and Q, the name of the function that the user called, the plan of their types, and their dtype and parameters.

    `parameters` is empty under torch.compile, and after a kernel has computed the divergence.
    """

    call: str
    p: Distribution
    q: Distribution
    plan: Plan
    dtype: torch.dtype
    parameters: list[Tensor]

    def names(self) -> str:
        """Return the names of the types of P and Q, for messages."""
        return names_of(type(self.p), type(self.q))


def estimate(
    call: str, p: Distribution, q: Distribution, options: SolveOptions, kind: Divergence = _KL
) -> Estimate:
    """Return a divergence by the first rule that applies to the pair and that the method in `options` allows."""
    plan = plan_for(type(p), type(q))
    form = plan.closed_form if isinstance(kind, KL) else None
    if form is not None and options.method in ("auto", form.method):
        value = fused_divergence(p, q)
        if value is not None:
            return _of_form(form, Pair(call, p, q, plan, dtype_of(p, q), []), value, options)
    return estimate_by_rules(call, p, q, options, kind)


def estimate_by_rules(
    call: str, p: Distribution, q: Distribution, options: SolveOptions, kind: Divergence = _KL
) -> Estimate:
    """Return the result of `estimate` for a pair that no kernel supports."""
    parameters = [] if torch.compiler.is_compiling() else parameters_of(p, q)
    pair = Pair(call, p, q, plan_for(type(p), type(q)), dtype_of(p, q), parameters)
    if pair.plan.is_plain:
        has_own_density = "log_prob" in vars(p) or "log_prob" in vars(q)
    else:
        has_own_density = overrides_density(p) or overrides_density(q)
    for step in pair.plan.kl if isinstance(kind, KL) else pair.plan.other:
        if options.method not in step.methods or (step.of_family and has_own_density):
            continue
        result = step.rule(pair, kind, options)
        if result is not None:
            if result.error is None or result.method not in ("summation", "quadrature"):
                return result
            if not torch.compiler.is_compiling():
                return _checked(pair, result, kind, options)
            # A graph that must not break can only have sums over classes, which are exact and need no check.
            return result if is_whole_graph() else outside_of_graphs(_checked)(pair, result, kind, options)
    raise unserved(call, p, q, kind, options)


def estimate_exchanged(call: str, p: Distribution, q: Distribution, options: SolveOptions) -> Estimate:
    """Return KL(Q || P). In messages, P and Q have the names of the user's arguments."""
    if torch.compiler.is_compiling():
        return estimate(call, q, p, options)
    with sides_exchanged():
        return estimate(call, q, p, options)


def _by_checks(pair: Pair, kind: Divergence, options: SolveOptions) -> None:
    """Raise if the divergence of P and Q is not defined."""
    check_comparable(pair.call, pair.p, pair.q, pair.plan)
    if not pair.plan.is_plain:
        check_domains(pair.call, pair.p, pair.q)


def _by_mask(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return the divergence of Pyro's masked distributions, which is 0 where P or Q is masked, like log_prob."""
    p, q = pair.p, pair.q
    if not (_is_masked(p) or _is_masked(q)):
        return None
    counted: Any = True
    bases: list[Any] = []
    for d in (p, q):
        mask: Any = vars(d)["_mask"] if _is_masked(d) else True
        counted = counted & mask
        bases.append(vars(d)["base_dist"] if _is_masked(d) else d)
    result = estimate(pair.call, bases[0], bases[1], options, kind)
    return with_numbers(result, lambda x: torch.where(torch.as_tensor(counted, device=x.device), x, 0))


def _is_masked(d: Distribution) -> bool:
    return _has_mask(type(d)) and {"_mask", "base_dist"} <= vars(d).keys()


def _has_mask(kind: type) -> bool:
    return kind.__name__ == "MaskedDistribution"


# ---- Rules of KL.


def _by_rule_of_users(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return KL by the most specific rule registered with kullback, or with torch for a third party's class."""
    p, q, plan = pair.p, pair.q, pair.plan
    own = plan.user_rule(pair.call)
    if plan.third_party is not None and plan.third_party_first:
        result = _of_third_party(plan.third_party, p, q)
        if result is not None:
            return result
    return None if own is None else Estimate(_value_of_rule(own, p, q), None, "closed_form")


def _value_of_rule(rule: UserRule, p: Distribution, q: Distribution) -> Tensor:
    value = rule.function(p, q)
    if not isinstance(value, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_type(
            "register_kl",
            "rule",
            wanted="a function that returns a tensor of the broadcast batch shape",
            got=f"{getattr(rule.function, '__qualname__', safe_repr(rule.function))} for {names_of(*rule.pair)}, which "
            f"returned {safe_repr(value)}",
            instead="return torch.as_tensor(value) in the rule",
        )
    if value.is_floating_point() and value.numel() and can_inspect_all((value,)):
        least = float(value.detach().amin())
        # Rounding can make a small divergence negative, as in the difference of two logarithms.
        if least < -(torch.finfo(value.dtype).eps ** 0.5):
            name = getattr(rule.function, "__qualname__", safe_repr(rule.function))
            raise invalid_value(
                "register_kl",
                "rule",
                wanted="a function that returns KL(P || Q), which is never negative",
                got=f"{name} for {names_of(*rule.pair)}, which returned {least:.6g}",
                instead="return the mean of log p - log q under P in the rule",
            )
    return _at_least_zero(value)


def _by_nan(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return NaN without a gradient for batch elements with a NaN parameter, and another rule's values elsewhere."""
    sums = map(torch.sum, map(torch.detach, pair.parameters))  # a sum is NaN if an element is NaN
    if not can_inspect_all(pair.parameters) or not any(map(math.isnan, sums)):
        return None
    is_nan: Tensor | None = None
    for d in (pair.p, pair.q):
        size = len(d.batch_shape)
        for x in parameters_of(d):
            nans = x.detach().isnan()
            if bool(nans.any()):
                is_batch = x.shape[:size] == d.batch_shape
                nans = nans.reshape(*d.batch_shape, -1).any(-1) if is_batch else nans.any()
                is_nan = nans if is_nan is None else is_nan | nans
    if is_nan is None:
        return None
    p, q = pair.p, pair.q
    shape = batch_shape_of(p, q)
    is_nan = is_nan.expand(shape)
    if bool(is_nan.all()):
        value = torch.full(shape, math.nan, dtype=pair.dtype, device=is_nan.device)
        method = "closed_form" if options.method == "auto" else options.method
        errors = (None, value) if method == "monte_carlo" else (value, None)
        return Estimate(value, errors[0], method, standard_error=errors[1])
    result = estimate(pair.call, *_with_elements_replaced(p, q, is_nan), options, kind)
    return with_numbers(result, lambda x: torch.where(is_nan, math.nan, x))


def with_numbers(result: Estimate, change: Callable[[Tensor], Tensor]) -> Estimate:
    """Return an estimate with `change` applied to its value, its error, its standard error and its interval."""
    value, error, standard_error, *interval = (
        None if x is None else change(x)
        for x in (result.value, result.error, result.standard_error, *(result.interval or ()))
    )
    numbers = {"value": value, "error": error, "standard_error": standard_error}
    return replace(result, **numbers, interval=tuple(interval) or None)


def _by_closed_form(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    form = cast("ClosedForm", pair.plan.closed_form)
    if options.method not in ("auto", form.method):
        return None
    p, q = in_common_unit(pair.p, pair.q, pair.dtype)
    value = form.function(p, q)
    if value is None:
        return None
    value = _at_least_zero(value)
    if not is_always_finite(type(p), type(q)):  # supports or tails may make KL infinite
        densities = densities_of(p, q)
        infinite = None if densities is None else is_infinite(*densities)
        value = value if infinite is None else torch.where(infinite, torch.inf, value)
    value = _without_overflow(form, p, q, value)
    return None if value is None else _of_form(form, pair._replace(p=p, q=q), value, options)


def _of_form(form: ClosedForm, pair: Pair, value: Tensor, options: SolveOptions) -> Estimate:
    """Return the estimate with the value of a closed form and, if `wants_error`, a bound on its rounding error."""
    error, p, q = None, pair.p, pair.q
    if options.wants_error:
        fixed = value.detach()
        error = rounding_error(form, p, q, fixed) if form.error is None else form.error(p, q, fixed)
        error = torch.where(fixed.isinf(), 0, error)
    return _finished(pair, value, error, form.method)


def _without_overflow(form: ClosedForm, p: Distribution, q: Distribution, value: Tensor) -> Tensor | None:
    """Return the value with +inf, without a gradient, where the formula overflowed, or None if another rule is needed.

    Another rule is needed if the value is NaN for valid parameters.
    """
    if not can_inspect_all((value,)):
        return torch.where(value >= _OVERFLOW, torch.inf, value)
    overflows = ~(value.detach() < _OVERFLOW)
    if not bool(overflows.any()):
        return value
    if bool(value.isnan().any()):
        is_final = densities_of(p, q) is None or not (are_valid(p) and are_valid(q))
        return value if is_final else None
    if not value.requires_grad:
        return torch.where(overflows, torch.inf, value)
    if bool(overflows.all()):
        return torch.full_like(value.detach(), torch.inf) + zero_of(parameters_of(p, q))
    # The derivatives of an overflow may be NaN, so the elements that overflow are replaced by another batch element.
    replaced = _with_elements_replaced(p, q, overflows)
    computed = form.function(replaced[0], replaced[1])
    return None if computed is None else torch.where(overflows, torch.inf, _at_least_zero(computed))


def _at_least_zero(value: Tensor) -> Tensor:
    """Return the larger of a value and 0; -0 becomes 0."""
    return value.clamp(min=0) + 0.0


def _with_elements_replaced(p: Distribution, q: Distribution, excluded: Tensor) -> tuple[Any, Any]:
    """Return P and Q with the `excluded` batch elements replaced by an element that is not excluded."""
    shape = excluded.shape
    other = int((~excluded).flatten().nonzero()[0])

    def change(_owner: object, _name: str, x: Tensor) -> Tensor:
        if x.shape[: len(shape)] != shape:
            return x
        where = excluded.reshape(*shape, *[1] * (x.ndim - len(shape)))
        return torch.where(where, x.detach().flatten(0, len(shape) - 1)[other], x)

    return with_tensors(expanded(p, shape), change), with_tensors(expanded(q, shape), change)


def _by_reduction(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    reduce = cast("Reduction", pair.plan.reduction)
    return reduce(pair.p, pair.q, lambda p, q: estimate(pair.call, p, q, options, kind))


def _by_rule_of_torch(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return KL by the rule that a third party registered with torch for torch's classes."""
    rule = cast("ThirdPartyRule", pair.plan.third_party)
    if rule.for_own_class or any(map(overrides_density, parts_of(pair.p, pair.q))):
        return None
    return _of_third_party(rule, pair.p, pair.q)


def _of_third_party(rule: ThirdPartyRule, p: Distribution, q: Distribution) -> Estimate | None:
    try:
        return Estimate(rule.function(p, q), None, "closed_form")
    except NotImplementedError:  # a rule registered with torch raises this error if the rule does not apply
        return None


# ---- Rules of the other divergences.


def _by_classes(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return the divergence of two categorical distributions as a sum over the classes."""
    parts = categorical_of(pair.p), categorical_of(pair.q)
    if parts[0] is None or parts[1] is None:
        return None
    logs = log_probs_of(parts[0]), log_probs_of(parts[1])
    if logs[0].shape[-1] != logs[1].shape[-1]:
        return None
    value = total_of_masses(kind, *torch.broadcast_tensors(*logs))
    error = torch.where(value.isinf(), 0, 1e-14 * (1 + value.detach().abs()))
    return _finished(pair, value, error, "summation")


def _has_classes(kind: type) -> bool:
    return issubclass(kind, Categorical | OneHotCategorical)


def _by_renyi(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return Renyi's divergence or a power divergence from the closed form of Renyi's divergence."""
    power, alpha = power_of(kind), order_of(kind)
    if alpha is None or alpha in (0.0, 1.0) or math.isinf(alpha):
        return None
    p, q, rest, is_small = pair.p, pair.q, 1 - alpha, alpha < 0.5
    if is_small:  # then the divergence of (Q, P) of order 1 - alpha gives the divergence
        p, q, alpha, rest = q, p, rest, alpha
    with sides_exchanged() if is_small and not torch.compiler.is_compiling() else nullcontext():
        result = _renyi(pair.call, p, q, alpha, rest, options)
    if result is None:
        return None
    value, error = result.value, result.error
    if power is not None:
        value, error = _power_of_renyi(value, error, alpha, rest, power[1])
    elif is_small:
        value, error = value * (rest / alpha), None if error is None else error * (rest / alpha)
    return _finished(pair, value, error, result.method)


def _power_of_renyi(
    renyi: Tensor, error: Tensor | None, alpha: float, rest: float, times: float
) -> tuple[Tensor, Tensor | None]:
    """Return the power divergence `times` (1 - e^(-rest R)) / (alpha rest) for R = `renyi`, and its error.

    Here `renyi` is Renyi's divergence of order alpha, and rest is 1 - alpha. An overflow becomes +inf.
    """
    exponent = -rest * renyi
    beyond = exponent > LARGEST_EXPONENT
    value = -times / (alpha * rest) * torch.expm1(torch.where(beyond, 0, exponent))
    if error is not None:
        error = torch.where(beyond, 0, times / alpha * error * torch.exp(exponent.detach()))
    return torch.where(beyond, torch.inf, value), error


def _renyi(
    call: str, p: Distribution, q: Distribution, alpha: float, rest: float, options: SolveOptions
) -> Estimate | None:
    """Return Renyi's divergence of order alpha = 1 - rest, or None if there is no formula.

    For `Independent` distributions, the divergence is the sum over the event dimensions.
    """
    if not (isinstance(p, Independent) and isinstance(q, Independent)):
        result = renyi_in_closed_form(
            *in_common_unit(p, q, dtype_of(p, q)), alpha, rest, wants_error=options.wants_error
        )
        return None if result is None else Estimate(*result, "closed_form")
    dimensions = p.reinterpreted_batch_ndims
    if dimensions != q.reinterpreted_batch_ndims:
        return None
    bases = upcast_copy(p.base_dist), upcast_copy(q.base_dist)
    summand = _renyi(call, *bases, alpha, rest, options)
    if summand is None:
        try:
            summand = estimate(call, *bases, options, Renyi(alpha).simplest())
        except NoRuleError:  # the message would name an order and a pair that the user did not pass
            return None
        except ConvergenceError as error:  # `estimate` checks the sum, and names the user's kind and pair
            summand = error.estimate
        if summand.error is None:
            summand = replace(summand, error=torch.full_like(summand.value, math.inf))
    shape = batch_shape_of(*bases)
    return with_numbers(summand, lambda x: sum_of_dimensions(x.expand(shape), dimensions))


# ---- Rules of KL and of the other divergences.


def _by_plain_form(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return the divergence of the plain forms of P and Q, or None if both have no simpler form."""
    p, q = plain_form(pair.p), plain_form(pair.q)
    if p is pair.p and q is pair.q:
        return None
    result = estimate(pair.call, p, q, options, kind)
    return _finished(pair, result.value, result.error, result.method)


def _by_identity(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return 0 if P and Q are equal, or None if they differ, or have different tensors that require gradients."""
    p, q = pair.p, pair.q
    if torch.compiler.is_compiling() and p is not q:
        return None
    if not same_maps(p, q) or move_apart(p, q):
        return None
    device = next((x.device for x in pair.parameters), torch.device("cpu"))
    zero = torch.zeros(batch_shape_of(p, q), dtype=torch.float64, device=device)
    return _finished(pair, zero, zero if options.wants_error else None, "closed_form")


def _by_densities(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return the divergence of two univariate densities, by a sum or an integral."""
    if torch.compiler.is_compiling():
        _leave_graph(pair, "an integral or a sum, which chooses its nodes from the values of the parameters")
        return outside_of_graphs(_by_densities)(pair, kind, options)
    from kullback.pairs.integration.mass import check_masses
    from kullback.pairs.univariate import divergence_of_densities, method_for  # closed forms do not need it

    if not pair.p.event_shape:
        check_integrable(pair.call, pair.p, pair.q)
    p, q = in_common_unit(pair.p, pair.q, pair.dtype)
    densities = densities_of(p, q)
    if densities is None:
        return None
    method = method_for(*densities, kind)
    if method is None or options.method not in ("auto", method):
        return None
    check_masses(pair.call, (p, q), densities)
    shape = batch_shape_of(p, q)
    value, error = divergence_of_densities(*densities, kind, shape, options)
    value = value.clamp(min=0) if isinstance(kind, KL) else value
    return _finished(pair._replace(p=p, q=q), value, error, method)


def _leave_graph(pair: Pair, description: str) -> None:
    """Break the graph of torch.compile. Torch shows the message if the graph must not break."""
    torch._dynamo.graph_break(  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage, reportUnknownMemberType]
        msg=f"{pair.call} of {pair.names()} is {description}. A graph cannot do that. Write: torch.compile(...) "
        "without fullgraph=True, or make the call outside of the graph"
    )


def _by_draws(pair: Pair, kind: Divergence, options: SolveOptions) -> Estimate | None:
    """Return an estimate of the divergence from random draws."""
    if torch.compiler.is_compiling():
        _leave_graph(pair, "a mean over draws, which checks the values of its terms")
        return outside_of_graphs(_by_draws)(pair, kind, options)
    check_integrable(pair.call, pair.p, pair.q)
    return from_draws.estimate(pair.call, pair.p, pair.q, options, kind)


# The first three constants are values of `Step.kinds`: whether a rule applies to KL, and whether it applies to other
# divergences. The other constants are values of `Step.methods`.
_KL_ALONE, _OTHERS, _ALL = (True, False), (False, True), (True, True)
_ANY = frozenset(METHODS)
_DRAWS = frozenset({"monte_carlo"})
_EXACT = _ANY - _DRAWS
_FORMULA, _SUM, _AUTO = (frozenset({"auto", *names}) for names in (["closed_form"], ["summation"], []))
# _OF_ALL_KINDS are the reductions that are valid for every divergence.
_OF_ALL_KINDS = (kl_transformed_transformed, kl_of_dimensions)
set_order(
    (
        Step(
            _by_rule_of_users,
            _KL_ALONE,
            _FORMULA,
            of_family=False,
            serves=lambda plan: bool(plan.user_rules) or plan.third_party is not None,
        ),
        Step(_by_checks, _ALL, _ANY, of_family=False),
        Step(_by_mask, _ALL, _ANY, of_family=False, serves=lambda plan: any(map(_has_mask, plan.types))),
        Step(_by_nan, _ALL, _ANY, of_family=False),
        Step(_by_closed_form, _KL_ALONE, _EXACT, serves=lambda plan: plan.closed_form is not None),
        Step(_by_reduction, _KL_ALONE, _EXACT, serves=lambda plan: plan.reduction is not None),
        Step(_by_reduction, _OTHERS, _EXACT, serves=lambda plan: plan.reduction in _OF_ALL_KINDS),
        Step(_by_classes, _OTHERS, _SUM, serves=lambda plan: all(map(_has_classes, plan.types))),
        Step(_by_renyi, _OTHERS, _FORMULA),
        Step(_by_plain_form, _ALL, _EXACT, serves=lambda plan: not plan.is_plain),
        Step(_by_rule_of_torch, _KL_ALONE, _FORMULA, serves=lambda plan: plan.third_party is not None),
        Step(_by_densities, _ALL, _EXACT, of_family=False),
        Step(_by_identity, _ALL, _AUTO),
        Step(_by_draws, _ALL, _DRAWS, of_family=False),
    )
)


def _finished(pair: Pair, value: Tensor, error: Tensor | None, method: str) -> Estimate:
    """Return the estimate with value and error rounded to the parameters' dtype and expanded to the batch shape."""
    p, q = pair.p, pair.q
    dtype, shape = pair.dtype, batch_shape_of(p, q)
    if error is not None:
        size = torch.where(value.isinf(), 0, value.detach().abs())
        rounding = 0 if dtype == torch.float64 else torch.finfo(dtype).eps * size
        error = (error + rounding).to(dtype).expand(shape)
    value = value.to(dtype)
    if torch.is_grad_enabled() and not value.requires_grad:
        parameters = pair.parameters or parameters_of(p, q)
        for x in parameters:
            if x.requires_grad:  # an infinite value gets a gradient of 0
                value = value + zero_of(parameters).to(dtype)
                break
    return Estimate(value if value.shape == shape else value.expand(shape), error, method)


def _checked(pair: Pair, result: Estimate, kind: Divergence, options: SolveOptions) -> Estimate:
    """Return a sum or an integral if its error is small enough, otherwise the result of another computation.

    If P = Q, the result is 0. If P and Q differ, their last transforms are undone, which does not change the
    divergence, and the result is computed from there. Without such transforms, an error is raised.
    """
    error = cast("Tensor", result.error)
    # A NaN parameter makes both the value and the error NaN.
    is_nan = result.value.isnan() & error.isnan()
    short = ~(options.is_accepted(result.value, error) | is_nan)
    # If the values cannot be read, the result is a sum over classes, which is exact, because integrals and series have
    # raised an error before.
    if not can_inspect_all((short,)) or not bool(short.any()):
        return result
    same = _by_identity(pair, kind, options) if options.method == "auto" else None
    if same is not None:
        return same
    other = pulled_back(pair.p, pair.q)
    if other is not None:
        try:
            result = estimate(pair.call, *other, options, kind)
            return _finished(pair, result.value, result.error, result.method)
        except (ConvergenceError, NoRuleError):
            pass  # the error below names the distributions that the user passed
    raise ConvergenceError(
        not_converged(pair.call, pair.names(), result, short, kind, options), replace(result, kind=kind.name)
    )


# _ROUNDING and _TINY are the relative and the absolute rounding error of a closed form; tests/pairs/test_audit.py finds
# no larger error.
_ROUNDING, _TINY = 1e-12, 1e-15
# _TRIALS is the number of perturbed evaluations of a closed form between two families. The spread of their values is
# multiplied by the safety factor _SAFETY. The tests in tests/pairs/closed_forms/test_rounding_bounds.py check the
# resulting bounds.
_TRIALS, _SAFETY = 8, 32.0
# _FARTHEST_LOG is the largest |log x| of a positive float x, because the smallest positive float is e^-745.
_FARTHEST_LOG = 745.0


def rounding_error(form: ClosedForm, p: Distribution, q: Distribution, value: Tensor) -> Tensor:
    """Return an estimate of the rounding error of the value of a closed form.

    If P and Q are of one family, no term of the formula is negative. If P and Q are of different families, large terms
    may cancel. In this case, the error is estimated from the values at parameters that are perturbed by the rounding
    errors of their logarithms (stochastic arithmetic).

    A stochastic arithmetic for reliable scientific computation (Vignes, 1993)
    """
    if type(p) is type(q):
        return _ROUNDING * value + _TINY
    value = upcast(value)
    patterns = itertools.count()

    def changed(owner: object, name: str, x: Tensor, high: int) -> Tensor:
        if not x.is_floating_point():
            return x
        x = upcast(x.detach())
        # `signs` has a pseudorandom number -1, 0 or 1 for each element. Random draws are not used, because `torch.vmap`
        # refuses them.
        places = torch.arange(math.prod(x.shape), device=x.device).reshape(x.shape)
        mixed = (places + 40_503 * (next(patterns) + 1)) * 2_654_435_761 % (1 << 32)
        signs = ((mixed >> 15) % 3 - 1).to(x.dtype)
        # The ends of a Uniform P move inwards, and the ends of a Uniform Q outwards, so that P's support stays inside
        # Q's support.
        if isinstance(owner, Uniform) and name in ("low", "high"):
            signs = (high if name == "high" else -high) * signs.abs() * x.sign()
        distance = safe_log(x.abs()).clamp(min=-_FARTHEST_LOG).abs()
        return x * (1 + signs * torch.finfo(x.dtype).eps * (1 + distance))

    spread = torch.zeros_like(value)
    with torch.no_grad():
        for _ in range(_TRIALS):
            near_p, near_q = (with_tensors(d, partial(changed, high=side)) for d, side in ((p, -1), (q, 1)))
            near_value = form.function(*in_common_unit(near_p, near_q, torch.float64))
            if near_value is not None:
                spread = torch.maximum(spread, (near_value - value).abs().nan_to_num(nan=0.0))
    return _ROUNDING * (1 + value) + _SAFETY * spread
