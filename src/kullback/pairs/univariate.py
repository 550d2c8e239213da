"""Every divergence of two univariate densities, by a sum over integers or by quadrature."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

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
from kullback.pairs.solve_options import MASS_ERROR, SolveOptions, Tolerance
from kullback.pairs.support import is_divergence_infinite

# _FIRST_EVALUATIONS limits the nodes of a batch element in the first round. An element that needs more nodes gets the
# maximum in the second round. In benchmarks/panel_constants.py, a limit of 600 nodes needs 50 % more evaluation points
# than a limit of 1,200, and a limit of 2,400 needs 4 % fewer. But with a limit of 2,400, a single hard element
# makes its whole batch use that many nodes.
_FIRST_EVALUATIONS = 1200
# At most _ALONE batch elements that missed their tolerance are computed again, each of them alone. Each element takes
# as long as a separate call, so the limit bounds the time of a batch that cannot reach its tolerance.
_ALONE = 16
# _BLOCK is the number of batch elements that are summed or integrated together. Each element has hundreds of nodes, and
# large temporary tensors are slow. In benchmarks/panel_constants.py, 2,048 pairs take 1.3 s in blocks of 64, 1.5 s in
# blocks of 512, and 2.2 s in a single block.
_BLOCK = 512
# These are three limits for |log S|, where S is the sum or integral of the terms of Renyi's divergence. Above a limit,
# S is computed again from the logarithms of the terms. The limit _FAR_APART is for results that are not exact enough.
# The limit _OF_SUMS is for sums over integers, whose rounding errors grow with |log S|. The limit _OVERFLOW is for
# integrals, whose terms overflow. The tests in tests/pairs/integration/test_renyi_far_apart.py cover such pairs.
_FAR_APART, _OF_SUMS, _OVERFLOW = 0.5, 3.0, 300.0
# The logarithms of the terms are relative to an estimate of log S, the scale. If the nodes missed the peak of the
# terms, the scale was wrong, and it is estimated again, at most _SCALINGS times.
_SCALINGS = 3

# A smaller missed mass is as large as the rounding errors of the computed mass.
_MISSED = 1e-13


class _Pair(NamedTuple):
    """Two densities whose parameters broadcast to `shape`, the kind of divergence, and the options."""

    p: Density
    q: Density
    shape: torch.Size
    kind: Divergence
    options: SolveOptions
    splits: bool
    """Whether some elements of the batch can be computed separately."""
    has_derivatives: bool
    """Whether a derivative with respect to a parameter may be needed, also by forward mode or torch.func."""

    def mapped(self, change: Callable[[Tensor], Tensor], shape: torch.Size) -> _Pair:
        """Return the pair with `change` applied to every parameter; the new parameters broadcast to `shape`."""
        return self._replace(p=self.p.mapped(change), q=self.q.mapped(change), shape=shape)

    def elements(self, index: Tensor) -> _Pair:
        """Return the pair of the batch elements with these indices, or in this mask, of the first dimension."""
        size = int(index.sum()) if index.dtype == torch.bool else len(index)
        return self.mapped(lambda x: x[index], torch.Size([size]))


def divergence_of_densities(
    p: Density, q: Density, kind: Divergence, shape: torch.Size, options: SolveOptions
) -> tuple[Tensor, Tensor]:
    """Return the divergence of two densities and its error; certain infinities have no error and no gradient."""
    splits = p.is_splittable() and q.is_splittable()
    tensors = [*p.tensors(), *q.tensors()]
    # The parameters of a distribution with only a log_prob are not in `tensors`, so they always count as
    # differentiable.
    has_derivatives = (
        not splits
        or any(map(attrgetter("requires_grad"), tensors))
        or (bool(tensors) and is_tracked(tensors[0]))
    )
    pair = _Pair(p, q, shape, kind, options, splits, has_derivatives)
    infinite = is_divergence_infinite(p, q, growth_of(kind))
    value, error, unintegrated = _chosen(infinite, pair, _endless, _finite)
    # Where the nodes missed mass, the terms of this mass may be as large as the other terms, so the error is increased.
    is_incomplete = (unintegrated > 10 * MASS_ERROR) & value.isfinite()
    error = error + torch.where(is_incomplete, unintegrated * (1 + value.detach().abs()), 0)
    if not splits:
        error = error + _extrapolation_error(pair, infinite, value.detach(), unintegrated)
        if not isinstance(kind, KL):  # a user's log_prob may be infinite at a rounded x
            certain = torch.zeros_like(value, dtype=torch.bool) if infinite is None else infinite
            error = torch.where(value.isfinite() | certain, error, torch.inf)
    return value, torch.where(error.isnan(), torch.inf, error)


def _extrapolation_error(pair: _Pair, infinite: Tensor | None, value: Tensor, missed: Tensor) -> Tensor:
    """Return the error of a value whose densities are extrapolated near the ends of their supports.

    The error is four times the change of the value under longer extrapolations. If P's missed mass grows too, the
    change is scaled to this mass, but at most to a tenth. Mass that does not grow is missed elsewhere, and its terms
    count as the mean.
    """
    with torch.no_grad():
        p, q = pair.p.extrapolated_sooner(), pair.q.extrapolated_sooner()
        if p is pair.p and q is pair.q:
            return torch.zeros_like(missed)
        longer = pair._replace(p=p.detached(), q=q.detached(), has_derivatives=False)
        sooner = _chosen(infinite, longer, _endless, _finite)
        change, more = (sooner.value - value).abs(), sooner.unintegrated - missed
        is_cause = (missed > _MISSED) & (more > missed / 10)
        change = change * torch.where(is_cause, (missed / more).clamp(min=0.1), 1)
        elsewhere = torch.where((missed > _MISSED) & ~is_cause, missed * value.abs(), 0)
        return torch.where(value.isfinite(), 4 * (change + elsewhere), 0)


def _endless(pair: _Pair) -> Integral:
    zero = torch.zeros(pair.shape, dtype=torch.float64, device="cpu")
    return Integral(torch.full_like(zero, torch.inf), zero, zero)


def _finite(pair: _Pair) -> Integral:
    """Return the divergences of a pair without batch elements whose divergence is certainly infinite."""
    p, q, is_kl = pair.p, pair.q, isinstance(pair.kind, KL)
    if pair.splits:  # elements with an infinite end need another coordinate
        for density in (p, q):
            endless = density.reaches_infinity()
            if endless is not None:
                return _chosen(endless, pair, _finite, _finite)
    if (is_kl and not isinstance(p, MixtureDensity)) or not pair.splits:
        return _in_blocks(pair)
    of_p = is_far_and_narrow(p)
    if is_kl:
        return _chosen(of_p if lives_everywhere(q) else None, pair, _by_components, _in_blocks)
    of_q = is_far_and_narrow(q)
    narrow = of_p if of_q is None else of_q if of_p is None else of_p | of_q
    return _chosen(narrow, pair, _in_blocks, _in_blocks)


def _chosen(
    chosen: Tensor | None, pair: _Pair, one: Callable[[_Pair], Integral], other: Callable[[_Pair], Integral]
) -> Integral:
    """Return the integrals of a batch, by `one` where the mask `chosen` is true, and by `other` where it is false."""
    if chosen is None or not bool(chosen.any()):
        return other(pair)
    chosen = chosen.expand(pair.shape)
    if bool(chosen.all()):
        return one(pair)
    if not pair.splits:
        return Integral(*(torch.where(chosen, x, y) for x, y in zip(one(pair), other(pair), strict=True)))
    parts = (
        way(pair.mapped(lambda x, where=where: x.expand(pair.shape)[where], torch.Size([int(where.sum())])))
        for where, way in ((chosen, one), (~chosen, other))
    )
    return _joined(chosen, *parts)


def _joined(chosen: Tensor, one: Integral, other: Integral) -> Integral:
    """Return a batch of integrals, from `one` where the mask `chosen` is true, and from `other` where it is false."""
    zero = torch.zeros(chosen.shape, dtype=torch.float64, device="cpu")
    return Integral(
        *(zero.masked_scatter(chosen, x).masked_scatter(~chosen, y) for x, y in zip(one, other, strict=True))
    )


def _by_components(pair: _Pair) -> Integral:
    """Return KL(P || Q) as sum_k w_k (KL(P_k || Q) - KL(P_k || P)) for a mixture P with components P_k and weights w_k.

    Each summand is computed in the unit of the component P_k (see densities/own_scale.py).
    """
    weights, part, whole, q = components_in_own_scale(pair.p, pair.q)
    weights = weights.expand([*pair.shape, -1])
    both = (_in_blocks(pair._replace(p=part, q=d, shape=weights.shape)) for d in (q, whole))
    (to_q, *errors_q), (to_p, *errors_p) = both
    errors = (weights.detach() * (x + y) for x, y in zip(errors_q, errors_p, strict=True))
    return Integral((weights * (to_q - to_p)).sum(-1), *(x.sum(-1) for x in errors))


def _in_blocks(pair: _Pair) -> Integral:
    """Return the integrals of a pair, computed in blocks of the batch."""
    shape, is_kl, count = pair.shape, isinstance(pair.kind, KL), pair.shape.numel()
    if count == 0:
        return Integral(*(torch.zeros(shape, dtype=torch.float64, device="cpu"),) * 3)
    if not pair.splits:
        pair = pair.mapped(lambda x: x.unsqueeze(-1), shape)
    elif count == 1:  # every parameter is one number
        pair = pair.mapped(partial(torch.reshape, shape=(1, 1)), torch.Size([1]))
    else:
        pair = pair.mapped(lambda x: x.expand(shape).reshape(-1, 1), torch.Size([count]))
    p, q = in_own_scale(pair.p, pair.q, of_p=is_kl)
    pair = pair._replace(p=p, q=q)
    if not pair.splits:
        return _computed(pair)
    if count == 1:
        return Integral(*(x.reshape(shape) for x in _in_rounds(pair)))
    parts: list[Integral] = []
    with progress_bar("pairs", show=count > _BLOCK) as update:
        # A batch element of a mixture has as many numbers as components, so blocks of mixtures have fewer elements.
        numbers = max(count, *map(torch.numel, (*p.tensors(), *q.tensors())))
        size = max(1, _BLOCK * count // numbers)
        for start in range(0, count, size):
            block = torch.arange(start, min(start + size, count), device="cpu")
            parts.append(_in_rounds(pair if len(block) == count else pair.elements(block)))
            if update:
                update(start + len(block), count)
    return Integral(*[torch.cat(column).reshape(shape) for column in zip(*parts, strict=True)])


def _in_rounds(pair: _Pair) -> Integral:
    """Integrate all elements with few nodes; then integrate elements that missed their tolerance with more nodes.

    The first 16 elements that still miss their tolerance are computed again, each alone.
    """
    options, size = pair.options, pair.shape.numel()
    few = options._replace(max_evaluations=min(_FIRST_EVALUATIONS, options.max_evaluations))
    result = _computed(pair._replace(options=few))
    rounds = [(torch.arange(size, device="cpu"), few, result.value)]
    last_round = torch.zeros(size, dtype=torch.long, device="cpu")

    def replaced(elements: Tensor) -> Integral:
        more = _computed(pair.elements(elements))
        last_round[elements] = len(rounds)
        rounds.append((elements, options, more.value))
        return Integral(*(x.index_copy(0, elements, y) for x, y in zip(result, more, strict=True)))

    enough = options.target().is_met(result.value, result.error) & (result.unintegrated <= 10 * MASS_ERROR)
    short = (~enough).nonzero().squeeze(-1)
    if short.numel() and options.max_evaluations > _FIRST_EVALUATIONS:
        result = replaced(short)
        if size > 1:  # each element had to take panels that other elements needed
            value = result.value.detach()
            refused = ~options.is_accepted(value, result.error) & value.isfinite()
            for index in refused.nonzero().flatten()[:_ALONE].tolist():
                result = replaced(torch.tensor([index], device="cpu"))
    value = result.value.detach()
    is_infinite = value.isinf()
    if not (pair.has_derivatives and is_tracked(result.value)):
        return result
    if len(rounds) == 1 and not bool(is_infinite.any()):
        return result
    # For the derivatives, each round is repeated with only the finite elements that no later round replaced. The
    # derivatives of the other elements may be NaN, which a factor of 0 does not remove.
    for number, (elements, limits, values) in enumerate(rounds):
        own = elements[(last_round[elements] == number) & ~is_infinite[elements]]
        if own.numel():
            is_whole = own.numel() == elements.numel()
            value = value.index_copy(
                0, own, values if is_whole else _computed(pair.elements(own)._replace(options=limits)).value
            )
    return result._replace(value=value)


def _computed(pair: _Pair) -> Integral:
    """Return the integrals of the terms, from their logarithms where Renyi's sum of terms is far from 1."""
    result, options = _of_terms(pair), pair.options
    order = order_of(pair.kind) if isinstance(pair.kind, Renyi) else None
    if order is None or order in (0.0, 1.0):
        return result
    exponent = (order - 1) * result.value.detach()
    short = ~options.is_accepted(result.value.detach(), result.error) & (exponent.abs() > _FAR_APART)
    far = exponent.isfinite() & (short | (exponent.abs() > (_OF_SUMS if pair.p.integer else _OVERFLOW)))
    if not bool(far.any()):
        return result

    def in_logarithms(pair: _Pair, scale: Tensor) -> Integral:
        result = _of_terms(pair, scale)
        for _ in range(_SCALINGS):  # nodes that miss the peak give a wrong scale
            exponent = (order - 1) * result.value.detach()
            if not bool(((exponent - scale).abs() > 1).any()):
                break
            scale = torch.where(exponent.isfinite(), exponent, scale)
            result = _of_terms(pair, scale)
        return result

    scale = torch.where(far, exponent, 0)
    if bool(far.all()):
        return in_logarithms(pair, scale)
    if not pair.splits:
        both = zip(in_logarithms(pair, scale), result, strict=True)
        return Integral(*(torch.where(far, x, y) for x, y in both))
    return _joined(far, in_logarithms(pair.elements(far), scale[far]), _of_terms(pair.elements(~far)))


def _of_terms(pair: _Pair, log_scale: Tensor | None = None) -> Integral:
    """Return the sums or integrals of the terms, divided by e^log_scale; see `DivergenceTerms`."""
    p, q, shape, kind, options = pair[:5]
    terms, target = DivergenceTerms(kind, log_scale=log_scale), options.target()
    with torch.set_grad_enabled(torch.is_grad_enabled() and pair.has_derivatives):
        if not p.integer:
            result = _on_line(pair, p, q, terms, target)
        elif isinstance(kind, KL):  # even a tiny sum reaches the relative tolerance
            return sum_terms(p, q, shape, target._replace(atol=options.atol))
        else:
            return sum_divergence(p, q, terms, shape, target)
        ends = shared_ends(p, q, kind) if torch.is_grad_enabled() else None
        if ends is None:
            return result
        moving = _on_line(pair, ends.p, ends.q, ends.terms._replace(log_scale=log_scale), target).value
        value = result.value.detach()
        changes = ends.elements.squeeze(-1) & (value > LEAST_VALUE) & value.isfinite() & moving.isfinite()
        return result._replace(
            value=torch.where(changes.expand(shape), value + (moving - moving.detach()), result.value)
        )


def _on_line(pair: _Pair, p: Density, q: Density, terms: DivergenceTerms, target: Tolerance) -> Integral:
    """Return the integrals of the terms of p and q, which have the values of the pair's densities."""
    if isinstance(pair.kind, KL) and (pair.splits or is_far_and_narrow(p) is None):
        reaches_out = terms.beyond is not None
        return integrate_kl(
            p, q, pair.shape, target, q_reaches_out=reaches_out, has_derivatives=pair.has_derivatives
        )
    # No shares (see densities/own_scale.py) are used if the terms have a corner, as in total variation. The derivative
    # with respect to the position of a corner is not exact in a share.
    is_whole = is_far_and_narrow(p) is is_far_and_narrow(q) is None or growth_of(pair.kind).corners
    return integrate_divergence(p, q, terms, pair.shape, target, None if is_whole else shares_in_own_scale)
