"""Divergences of two univariate densities, by summation over integers or quadrature along the line, for every kind."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kullback.common.progress import progress_bar
from kullback.generators import KL, Divergence, Renyi
from kullback.generators.growth import growth_of, order_of
from kullback.pairs.densities.composite import MixtureDensity
from kullback.pairs.densities.density import Density
from kullback.pairs.densities.own_scale import (
    components_in_own_scale,
    in_own_scale,
    is_far_and_narrow,
    lives_everywhere,
    shares_in_own_scale,
)
from kullback.pairs.integration.divergence_terms import DivergenceTerms
from kullback.pairs.integration.f_divergence import integrate_divergence, sum_divergence
from kullback.pairs.integration.panels import Integral
from kullback.pairs.integration.quadrature import integrate_kl
from kullback.pairs.integration.shared_ends import LEAST_VALUE, shared_ends
from kullback.pairs.integration.summation import sum_terms
from kullback.pairs.numerics.parameters import is_tracked
from kullback.pairs.solve_options import MASS_ERROR, SolveOptions
from kullback.pairs.support import is_divergence_infinite

# The first number of nodes of an element; an element that needs more gets the maximum.
_FIRST_EVALUATIONS = 1200
# The number of elements of a batch that are computed again, alone, if they did not reach their tolerance.
_ALONE = 16
# The number of elements of a batch that are summed or integrated at once. Each has hundreds of nodes, and larger
# temporaries slow the computation down.
_BLOCK = 512
# Sizes of the logarithm of the sum in Renyi's divergence. Above the first, a result that is not exact enough is
# computed again from the logarithms of the terms. Above the second, every sum over integers is computed so, because the
# rounding of the logarithms counts. Above the third, every integral is, because the terms overflow.
_FAR_APART, _OF_SUMS, _OVERFLOW = 0.5, 3.0, 300.0
# The largest number of times that the scale of the sum is estimated.
_SCALINGS = 3


def method_for(p: Density, q: Density, kind: Divergence) -> str | None:
    """Return the method that serves two densities, None if there is none."""
    if p.integer != q.integer or getattr(kind, "alpha", 0) == math.inf:
        return None
    return "summation" if p.integer else "quadrature"


def divergence_of_densities(
    p: Density, q: Density, kind: Divergence, shape: torch.Size, options: SolveOptions
) -> tuple[Tensor, Tensor]:
    """Return the divergence of two densities and its error, of shape `shape`.

    Values that are certainly infinite are not computed; they have no error and no gradient.
    """
    value, error, unintegrated = _finite_elements(p, q, kind, shape, options)
    # The terms of mass that is not on the nodes may be as large as the others.
    is_incomplete = (unintegrated > 10 * MASS_ERROR) & value.isfinite()
    error = error + torch.where(is_incomplete, unintegrated * (1 + value.detach().abs()), 0)
    return value, torch.where(error.isnan(), torch.inf, error)


def _finite_elements(
    p: Density, q: Density, kind: Divergence, shape: torch.Size, options: SolveOptions
) -> Integral:
    infinite = is_divergence_infinite(p, q, growth_of(kind))

    def endless(p: Density, q: Density, shape: torch.Size) -> Integral:
        zero = torch.zeros(shape, dtype=torch.float64, device="cpu")
        return Integral(torch.full_like(zero, torch.inf), zero, zero)

    in_absolute_numbers = partial(_in_blocks, kind=kind, options=options)
    by_components = partial(_by_components, kind=kind, options=options)

    def finite(p: Density, q: Density, shape: torch.Size) -> Integral:
        is_kl = isinstance(kind, KL)
        if (is_kl and not isinstance(p, MixtureDensity)) or not (p.is_splittable() and q.is_splittable()):
            return in_absolute_numbers(p, q, shape)
        of_p = is_far_and_narrow(p)
        if is_kl:
            of_p = of_p if lives_everywhere(q) else None
            return _chosen(of_p, by_components, in_absolute_numbers, p, q, shape)
        of_q = is_far_and_narrow(q)
        narrow = of_p if of_q is None else of_q if of_p is None else of_p | of_q
        return _chosen(narrow, in_absolute_numbers, in_absolute_numbers, p, q, shape)

    return _chosen(infinite, endless, finite, p, q, shape)


# Computes the divergences of two densities whose parameters broadcast to a shape.
_Way = Callable[[Density, Density, torch.Size], Integral]


def _chosen(
    chosen: Tensor | None, one: _Way, other: _Way, p: Density, q: Density, shape: torch.Size
) -> Integral:
    """Compute the chosen elements of a batch in one way and the others in the other."""
    if chosen is None or not bool(chosen.any()):
        return other(p, q, shape)
    chosen = chosen.expand(shape)
    if bool(chosen.all()):
        return one(p, q, shape)
    if not (p.is_splittable() and q.is_splittable()):
        both = zip(one(p, q, shape), other(p, q, shape), strict=True)
        return Integral(*(torch.where(chosen, x, y) for x, y in both))
    parts: list[Integral] = []
    for where, way in ((chosen, one), (~chosen, other)):
        pair = [density.mapped(lambda x, where=where: x.expand(shape)[where]) for density in (p, q)]
        parts.append(way(pair[0], pair[1], torch.Size([int(where.sum())])))
    zero = torch.zeros(shape, dtype=torch.float64, device="cpu")
    return Integral(
        *(zero.masked_scatter(chosen, x).masked_scatter(~chosen, y) for x, y in zip(*parts, strict=True))
    )


def _by_components(
    p: Density, q: Density, shape: torch.Size, kind: Divergence, options: SolveOptions
) -> Integral:
    """Return KL(P || Q) as sum_k w_k (KL(P_k || Q) - KL(P_k || P)), each in the unit of the component."""
    weights, part, whole, q = components_in_own_scale(p, q)
    weights = weights.expand([*shape, -1])
    both = (_in_blocks(part, d, weights.shape, kind, options) for d in (q, whole))
    (to_q, *errors_q), (to_p, *errors_p) = both
    errors = (weights.detach() * (x + y) for x, y in zip(errors_q, errors_p, strict=True))
    return Integral((weights * (to_q - to_p)).sum(-1), *(x.sum(-1) for x in errors))


def _in_blocks(
    p: Density, q: Density, shape: torch.Size, kind: Divergence, options: SolveOptions
) -> Integral:
    """Sum or integrate block by block over the batch."""
    if shape.numel() == 0:
        return Integral(*(torch.zeros(shape, dtype=torch.float64, device="cpu"),) * 3)
    is_kl = isinstance(kind, KL)
    if not (p.is_splittable() and q.is_splittable()):
        p, q = (density.mapped(lambda x: x.unsqueeze(-1)) for density in (p, q))
        p, q = in_own_scale(p, q, of_p=is_kl)
        return _compute(p, q, kind, shape, options)

    def in_column(x: Tensor) -> Tensor:
        return x.expand(shape).reshape(-1, 1)

    p, q = in_own_scale(p.mapped(in_column), q.mapped(in_column), of_p=is_kl)
    if shape.numel() == 1:
        return Integral(*[x.reshape(shape) for x in _in_rounds(p, q, kind, 1, options)])
    parts: list[Integral] = []
    with progress_bar("pairs", show=shape.numel() > _BLOCK) as update:
        # Mixtures have as many numbers each as components.
        numbers = max(shape.numel(), *map(torch.numel, (*p.tensors(), *q.tensors())))
        size = max(1, _BLOCK * shape.numel() // numbers)
        for start in range(0, shape.numel(), size):
            block = torch.arange(start, min(start + size, shape.numel()), device="cpu")
            is_whole = len(block) == shape.numel()
            part_p, part_q = (p, q) if is_whole else (_elements(p, block), _elements(q, block))
            parts.append(_in_rounds(part_p, part_q, kind, len(block), options))
            if update:
                update(start + len(block), shape.numel())
    return Integral(*[torch.cat(column).reshape(shape) for column in zip(*parts, strict=True)])


def _elements(density: Density, elements: Tensor) -> Density:
    return density.mapped(lambda x: x[elements])


def _in_rounds(p: Density, q: Density, kind: Divergence, size: int, options: SolveOptions) -> Integral:
    """Give all elements few nodes, and the maximum to elements that need more; a few elements are repeated alone."""

    def computed(elements: Tensor, options: SolveOptions) -> Integral:
        return _compute(_elements(p, elements), _elements(q, elements), kind, elements.shape, options)

    few = options._replace(max_evaluations=min(_FIRST_EVALUATIONS, options.max_evaluations))
    result = _compute(p, q, kind, torch.Size([size]), few)
    rounds = [(torch.arange(size, device="cpu"), few, result.value)]
    last_round = torch.zeros(size, dtype=torch.long, device="cpu")

    def replaced(elements: Tensor) -> Integral:
        more = computed(elements, options)
        last_round[elements] = len(rounds)
        rounds.append((elements, options, more.value))
        return Integral(*(x.index_copy(0, elements, y) for x, y in zip(result, more, strict=True)))

    enough = options.target().is_met(result.value, result.error) & (result.unintegrated <= 10 * MASS_ERROR)
    short = (~enough).nonzero().squeeze(-1)
    if short.numel() and options.max_evaluations > _FIRST_EVALUATIONS:
        result = replaced(short)
        if size > 1:  # an element does not fail because others of its batch need panels
            refused = (
                ~options.is_accepted(result.value.detach(), result.error) & result.value.detach().isfinite()
            )
            for index in refused.nonzero().flatten()[:_ALONE].tolist():
                result = replaced(torch.tensor([index], device="cpu"))
    is_infinite = result.value.detach().isinf()
    if not is_tracked(result.value) or (len(rounds) == 1 and not bool(is_infinite.any())):
        return result
    # Each round is repeated with the finite elements that no later round replaced. The derivatives of the others may be
    # NaN, which times 0 is NaN.
    value = result.value.detach()
    for number, (elements, limits, values) in enumerate(rounds):
        own = elements[(last_round[elements] == number) & ~is_infinite[elements]]
        if own.numel():
            is_whole = own.numel() == elements.numel()
            value = value.index_copy(0, own, values if is_whole else computed(own, limits).value)
    return result._replace(value=value)


def _compute(p: Density, q: Density, kind: Divergence, shape: torch.Size, options: SolveOptions) -> Integral:
    result = _of_terms(p, q, DivergenceTerms(kind), shape, options)
    order = order_of(kind) if isinstance(kind, Renyi) else None
    if order is None or order in (0.0, 1.0):
        return result
    exponent = (order - 1) * result.value.detach()
    short = ~options.is_accepted(result.value.detach(), result.error) & (exponent.abs() > _FAR_APART)
    far = exponent.isfinite() & (short | (exponent.abs() > (_OF_SUMS if p.integer else _OVERFLOW)))
    if not bool(far.any()):
        return result

    def in_logarithms(p: Density, q: Density, shape: torch.Size, scale: Tensor) -> Integral:
        result = _of_terms(p, q, DivergenceTerms(kind, log_scale=scale), shape, options)
        for _ in range(_SCALINGS):  # nodes that miss the peak give a wrong scale
            exponent = (order - 1) * result.value.detach()
            if not bool(((exponent - scale).abs() > 1).any()):
                break
            scale = torch.where(exponent.isfinite(), exponent, scale)
            result = _of_terms(p, q, DivergenceTerms(kind, log_scale=scale), shape, options)
        return result

    scale = torch.where(far, exponent, 0)
    if bool(far.all()):
        return in_logarithms(p, q, shape, scale)
    if not (p.is_splittable() and q.is_splittable()):
        both = zip(in_logarithms(p, q, shape, scale), result, strict=True)
        return Integral(*(torch.where(far, x, y) for x, y in both))
    parts: list[Integral] = []
    for elements, is_far in ((far.nonzero().squeeze(-1), True), ((~far).nonzero().squeeze(-1), False)):
        pair, size = (_elements(p, elements), _elements(q, elements)), elements.shape
        parts.append(
            in_logarithms(*pair, size, scale[elements])
            if is_far
            else _of_terms(*pair, DivergenceTerms(kind), size, options)
        )
    zero = torch.zeros(shape, dtype=torch.float64, device="cpu")
    return Integral(
        *(zero.masked_scatter(far, x).masked_scatter(~far, y) for x, y in zip(*parts, strict=True))
    )


def _of_terms(
    p: Density, q: Density, terms: DivergenceTerms, shape: torch.Size, options: SolveOptions
) -> Integral:
    kind, target = terms.kind, options.target()
    with torch.set_grad_enabled(torch.is_grad_enabled() and _needs_gradient(p, q)):
        if p.integer and isinstance(kind, KL):  # small sums of few terms are as exact as large ones
            return sum_terms(p, q, shape, target._replace(atol=options.atol))
        if p.integer:
            return sum_divergence(p, q, terms, shape, target)

        def integral(p: Density, q: Density, terms: DivergenceTerms) -> Integral:
            if isinstance(kind, KL) and (q.is_splittable() or is_far_and_narrow(p) is None):
                return integrate_kl(p, q, shape, target, q_reaches_out=terms.beyond is not None)
            # The place of a corner of the terms, as in total variation, has no exact derivative in a share.
            is_whole = is_far_and_narrow(p) is is_far_and_narrow(q) is None or growth_of(kind).corners
            shares = None if is_whole else shares_in_own_scale
            return integrate_divergence(p, q, terms, shape, target, shares)

        result = integral(p, q, terms)
        ends = shared_ends(p, q, kind) if torch.is_grad_enabled() else None
        if ends is None:
            return result
        value, moving = (
            result.value.detach(),
            integral(ends.p, ends.q, ends.terms._replace(log_scale=terms.log_scale)).value,
        )
        changes = ends.elements.squeeze(-1) & (value > LEAST_VALUE) & value.isfinite() & moving.isfinite()
        return result._replace(
            value=torch.where(changes.expand(shape), value + (moving - moving.detach()), result.value)
        )


def _needs_gradient(p: Density, q: Density) -> bool:
    """Return whether a parameter may require a gradient, as in a distribution that is known only by its density."""
    tensors = [*p.tensors(), *q.tensors()]
    if True in [x.requires_grad for x in tensors] or (tensors and is_tracked(tensors[0])):
        return True
    return not (p.is_splittable() and q.is_splittable())
