"""From two distributions to their divergence: the rules in their order, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily

from kullback.errors import ConvergenceError, NoRuleError, explain
from kullback.estimate import Estimate
from kullback.pairs.closed_forms.native import fused_divergence
from kullback.pairs.densities.base import Law, law_of
from kullback.pairs.integration import summation
from kullback.pairs.integration.kl_integrand import kl_terms
from kullback.pairs.integration.quadrature import Integral
from kullback.pairs.integration.uniform_endpoints import integrate_kl
from kullback.pairs.numerics.parameters import batch_shape_of, dtype_of
from kullback.pairs.options import Options
from kullback.pairs.registry import find_closed_form, find_reduction, find_user_rule
from kullback.pairs.sampling import monte_carlo
from kullback.pairs.support import check_comparable, is_infinite, is_plain, unreached
from kullback.pairs.torch_registry import find_foreign_rule

__all__ = ["estimate"]

# Pairs of types that no parameters make infinite.
_ALWAYS_FINITE: set[tuple[type, type]] = set()
# Nodes that an element gets at first, and what of P's mass may be missed.
_FIRST_EVALUATIONS = 900
_MISSED = 1e-9
# Elements of a batch that are summed or integrated at once.
_BLOCK = 4096
# What a closed form may lose to rounding, relatively and in all: the audit holds it to this.
_ROUNDING = 1e-12
_TINY = 1e-15


def estimate(call: str, p: Distribution, q: Distribution, options: Options) -> Estimate:
    """Return KL(P || Q) by the first rule that serves the pair, or by the method that the caller names.

    Arguments:
        call: the name of the function that the user called, for messages.
        p: P.
        q: Q.
        options: method, tolerances and the generator for random draws.
    """
    rule = find_user_rule(call, type(p), type(q))
    if rule is not None and options.method in ("auto", "closed_form"):
        return Estimate(rule(p, q), None, "closed_form")
    foreign = _by_rule_of_others(p, q, options, for_own_class=True)
    if foreign is not None:
        return foreign
    check_comparable(call, p, q)
    if options.method == "monte_carlo":
        return monte_carlo.estimate(call, p, q, options)

    def again(other_p: Distribution, other_q: Distribution) -> Estimate:
        return estimate(call, other_p, other_q, options)

    for attempt in (_by_closed_form, _by_reduction, _by_rule_of_torch, _by_laws):
        found = attempt(p, q, options, again)
        if found is not None:
            return _checked(call, p, q, found, options)
    raise _no_rule(call, p, q, options)


Again = Callable[[Distribution, Distribution], Estimate]


def _by_closed_form(p: Distribution, q: Distribution, options: Options, again: Again) -> Estimate | None:
    form = find_closed_form(type(p), type(q))
    if form is None or options.method not in ("auto", form.method):
        return None
    fused = fused_divergence(p, q)
    if fused is not None:
        error = _ROUNDING * fused.detach().abs() + _TINY if options.wants_error else None
        return _finished(p, q, fused, error, form.method)
    value = form.function(p, q)
    if value is None:
        return None
    value = value.clamp(min=0)
    types = type(p), type(q)
    if types not in _ALWAYS_FINITE:
        laws = law_of(p), law_of(q)
        if laws[0] is not None and laws[1] is not None:
            infinite = is_infinite(laws[0], laws[1])
            value = _with_infinities(value, infinite)
            if infinite is None and is_plain(types[0]) and is_plain(types[1]):
                _ALWAYS_FINITE.add(types)
    error = _ROUNDING * value.detach().abs() + _TINY if options.wants_error else None
    return _finished(p, q, value, error, form.method)


def _by_reduction(p: Distribution, q: Distribution, options: Options, again: Again) -> Estimate | None:
    reduction = find_reduction(type(p), type(q))
    return None if reduction is None else reduction(p, q, again)


def _by_rule_of_torch(p: Distribution, q: Distribution, options: Options, again: Again) -> Estimate | None:
    return _by_rule_of_others(p, q, options, for_own_class=False)


def _by_rule_of_others(
    p: Distribution, q: Distribution, options: Options, *, for_own_class: bool
) -> Estimate | None:
    """Use a rule that somebody else registered with torch; torch's own are all replaced by better ones."""
    foreign = find_foreign_rule(type(p), type(q)) if options.method in ("auto", "closed_form") else None
    if foreign is None or foreign.for_own_class != for_own_class:
        return None
    try:
        return Estimate(foreign.function(p, q), None, "closed_form")
    except NotImplementedError:  # how a rule of torch says that it does not serve these two after all
        return None


def _by_laws(p: Distribution, q: Distribution, options: Options, again: Again) -> Estimate | None:
    laws = law_of(p), law_of(q)
    if laws[0] is None or laws[1] is None or laws[0].integer != laws[1].integer:
        return None
    method = "summation" if laws[0].integer else "quadrature"
    if options.method not in ("auto", method):
        return None
    rtol = 1e-10 if options.rtol is None else options.rtol
    integral = _of_finite_elements(laws[0], laws[1], batch_shape_of(p, q), options._replace(rtol=rtol))
    return _finished(p, q, integral.value.clamp(min=0), _error(integral), method)


def _of_finite_elements(p: Law, q: Law, shape: torch.Size, options: Options) -> Integral:
    """Compute what is finite; what is infinite for certain has no error, and no gradient."""
    infinite = is_infinite(p, q)
    if infinite is None or not bool(infinite.any()):
        return _in_blocks(p, q, shape, options)
    infinite = infinite.expand(shape)
    none = torch.zeros(shape, dtype=torch.float64)
    endless = Integral(torch.full_like(none, torch.inf), none, none)
    if bool(infinite.all()):
        return endless
    if not (p.is_splittable() and q.is_splittable()):
        computed = _in_blocks(p, q, shape, options)
        return Integral(
            *(torch.where(infinite, there, x) for x, there in zip(computed, endless, strict=True))
        )
    finite = ~infinite
    part_p, part_q = (law.mapped(lambda x: x.expand(shape)[finite]) for law in (p, q))
    computed = _in_blocks(part_p, part_q, torch.Size([int(finite.sum())]), options)
    return Integral(*(there.masked_scatter(finite, x) for x, there in zip(computed, endless, strict=True)))


def _in_blocks(p: Law, q: Law, shape: torch.Size, options: Options) -> Integral:
    """Sum or integrate over blocks of the batch, as every element takes memory for hundreds of nodes."""
    if shape.numel() == 0:
        return Integral(*(torch.zeros(shape, dtype=torch.float64),) * 3)
    if not (p.is_splittable() and q.is_splittable()):
        p, q = (law.mapped(lambda x: x.unsqueeze(-1)) for law in (p, q))
        return _compute(p, q, shape, options, options.max_evaluations)
    p, q = (law.mapped(lambda x: x.expand(shape).reshape(-1, 1)) for law in (p, q))
    parts: list[Integral] = []
    for start in range(0, shape.numel(), _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, shape.numel()))
        parts.append(_in_two_rounds(p, q, block, options))
    return Integral(*(torch.cat(column).reshape(shape) for column in zip(*parts, strict=True)))


def _in_two_rounds(p: Law, q: Law, block: Tensor, options: Options) -> Integral:
    """Give all elements of a block a few nodes, and those that need more as many as there may be."""

    def attempt(elements: Tensor, evaluations: int) -> Integral:
        part_p, part_q = (law.mapped(lambda x: x[elements]) for law in (p, q))
        return _compute(part_p, part_q, elements.shape, options, evaluations)

    found = attempt(block, min(_FIRST_EVALUATIONS, options.max_evaluations))
    enough = found.error <= torch.clamp(
        (options.rtol or 0) * found.value.detach().abs(), min=_absolute(options)
    )
    short = (~(enough & (found.missed <= _MISSED))).nonzero().squeeze(-1)
    if not short.numel() or options.max_evaluations <= _FIRST_EVALUATIONS:
        return found
    more = attempt(block[short], options.max_evaluations)
    return Integral(*(x.index_copy(0, short, y) for x, y in zip(found, more, strict=True)))


def _compute(p: Law, q: Law, shape: torch.Size, options: Options, evaluations: int) -> Integral:
    compute = summation.sum_terms if p.integer else integrate_kl
    with torch.set_grad_enabled(torch.is_grad_enabled() and _needs_gradient(p, q)):
        found = compute(
            p,
            q,
            kl_terms,
            shape,
            rtol=options.rtol or 0,
            atol=options.atol if p.integer else _absolute(options),
            max_evaluations=evaluations,
        )
    beyond = None if p.integer else unreached(p, q)
    if beyond is None:
        return found
    return found._replace(error=found.error + beyond.squeeze(-1) * found.value.detach().abs())


def _absolute(options: Options) -> float:
    return max(options.atol, 1e-15)


def _needs_gradient(*laws: Law) -> bool:
    """Tell whether a parameter requires a gradient; of a distribution known by its density alone it may."""
    found: list[bool] = []

    def look(x: Tensor) -> Tensor:
        found.append(x.requires_grad)
        return x

    for law in laws:
        law.mapped(look)
    return any(found) or not all(law.is_splittable() for law in laws)


def _error(integral: Integral) -> Tensor:
    """Return the error of the sum; mass that the nodes missed may hold as much of the value again."""
    missed = torch.where(integral.missed > _MISSED, integral.missed * (1 + integral.value.detach().abs()), 0)
    return (integral.error + missed).nan_to_num(nan=torch.inf)


def _with_infinities(value: Tensor, infinite: Tensor | None, there: float = torch.inf) -> Tensor:
    return value if infinite is None else torch.where(infinite, there, value)


def _finished(p: Distribution, q: Distribution, value: Tensor, error: Tensor | None, method: str) -> Estimate:
    """Round to the dtype of the parameters, and give every element of the batch its number."""
    dtype, shape = dtype_of(p, q), batch_shape_of(p, q)
    if error is not None:
        rounding = 0 if dtype == value.dtype else torch.finfo(dtype).eps * value.detach().abs()
        error = torch.where(value.isinf(), 0, error + rounding).to(dtype).expand(shape)
    value = value.to(dtype)
    return Estimate(value if value.shape == shape else value.expand(shape), error, method)


def _checked(call: str, p: Distribution, q: Distribution, found: Estimate, options: Options) -> Estimate:
    """Raise if a generic rule did not reach the tolerance."""
    if found.method not in ("summation", "quadrature") or found.error is None:
        return found
    rounding = 0.0 if found.value.dtype == torch.float64 else torch.finfo(found.value.dtype).eps
    rtol = 1e-6 if options.rtol is None else options.rtol
    allowed = torch.clamp((rtol + rounding) * found.value.detach().abs(), min=max(options.atol, 1e-9))
    short = ~(found.error <= allowed)
    if not bool(short.any()):
        return found
    raise ConvergenceError(
        explain(
            call,
            "p, q",
            wanted=f"a relative error of {rtol:g}",
            got=f"{int(short.sum())} of {short.numel()} results of {found.method} that did not reach it for "
            f"({type(p).__name__}, {type(q).__name__}) in {options.max_evaluations} evaluations; the largest error is "
            f"{float(found.error.detach().max()):.3g} (error.estimate has all)",
            instead=f"{call}(p, q, max_evaluations={10 * options.max_evaluations}), a larger rtol, or "
            "method='monte_carlo'",
        ),
        found,
    )


def _no_rule(call: str, p: Distribution, q: Distribution, options: Options) -> NoRuleError:
    names = f"({type(p).__name__}, {type(q).__name__})"
    if options.method != "auto":
        return NoRuleError(
            explain(
                call,
                "method",
                wanted=f"a method that serves {names}",
                got=repr(options.method),
                instead="method='auto', or method='monte_carlo' for an estimate from draws",
            )
        )
    is_mixed = isinstance(p, MixtureSameFamily) or isinstance(q, MixtureSameFamily)
    bounds = "kl_bounds(p, q) for bounds that are certain, " if is_mixed else ""
    return NoRuleError(
        explain(
            call,
            "p, q",
            wanted="a pair of distributions with a known divergence",
            got=f"{names}, for which there is no exact rule",
            instead=f"{bounds}method='monte_carlo' for an estimate with a standard error, or @register_kl{names} above "
            "a function of p and q, if you know the formula",
        )
    )
