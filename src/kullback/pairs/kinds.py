"""The divergences other than KL between two distributions: one integral or sum over both supports, for every kind.

A kind is made of terms q f(p / q), homogeneous in p and q: with p and q times the weights of the nodes it is the same
sum that a finite distribution has, and `kind.total` and `kind.derivatives` serve as they do there. The line is cut
where a support begins or ends; on each piece the variable of integration runs over all reals, and panels are halved
where the terms have the largest errors. Powers of p / q of distributions of vectors come from
Renyi's divergence in closed form.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    OneHotCategorical,
)

from kullback.errors import ConvergenceError, NoRuleError, explain
from kullback.estimate import Estimate
from kullback.generators import (
    KL,
    Alpha,
    ChiSquared,
    Divergence,
    FinitePair,
    JensenShannon,
    Renyi,
    ReverseKL,
    SkewKL,
    SquaredHellinger,
    TotalVariation,
)
from kullback.pairs.closed_forms.reductions import sum_of_dimensions
from kullback.pairs.closed_forms.renyi import renyi_in_closed_form
from kullback.pairs.densities.base import Law, law_of
from kullback.pairs.integration.f_divergence import Nodes, integer_nodes, line_nodes
from kullback.pairs.numerics.parameters import batch_shape_of, dtype_of, given_logits, wide
from kullback.pairs.options import Options
from kullback.pairs.support import check_comparable, is_power_infinite

__all__ = ["as_kl", "estimate_kind"]

_MASS_TOLERANCE = 1e-9


def as_kl(kind: Divergence) -> Divergence:
    """Return `KL()` or `ReverseKL()` for a kind that is one of them under another name, else the kind."""
    if isinstance(kind, Alpha | Renyi) and kind.alpha in (0.0, 1.0):
        return KL() if kind.alpha == 1 else ReverseKL() if isinstance(kind, Alpha) else kind
    if isinstance(kind, SkewKL) and kind.alpha == 0:
        return KL()
    if isinstance(kind, JensenShannon) and kind.scaled and kind.beta in (0.0, 1.0):
        return ReverseKL() if kind.beta == 1 else KL()
    return kind


def estimate_kind(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: Options
) -> Estimate:
    """Return a divergence other than KL between two distributions.

    Arguments:
        call: the name of the function that the user called, for messages.
        p: P.
        q: Q.
        kind: which divergence.
        options: the method and the tolerances.
    """
    check_comparable(call, p, q)
    for attempt in (_of_classes, _by_renyi, _by_nodes):
        found = attempt(call, p, q, kind, options)
        if found is not None:
            return found
    raise NoRuleError(
        explain(
            call,
            "p, q, kind",
            wanted="two distributions of numbers or of classes, or a power divergence of MultivariateNormal, Dirichlet "
            "or Independent",
            got=f"{kind!r} of ({type(p).__name__}, {type(q).__name__}) by {options.method}",
            instead="KL(), ReverseKL() or Jeffreys(), which more pairs have",
        )
    )


# ---- Classes: a finite sum.


def _of_classes(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: Options
) -> Estimate | None:
    if options.method not in ("auto", "summation"):
        return None
    logs = _log_classes(p), _log_classes(q)
    if logs[0] is None or logs[1] is None or logs[0].shape[-1] != logs[1].shape[-1]:
        return None
    log_p, log_q = torch.broadcast_tensors(*logs)
    value = _total(kind, log_p, log_q)
    return _finished(p, q, value, 1e-14 * (1 + value.detach().abs()), "summation")


def _log_classes(d: Distribution) -> Tensor | None:
    part = d._categorical if isinstance(d, OneHotCategorical) else d  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if not isinstance(part, Categorical):
        return None
    if given_logits(part):
        return wide(part.logits).log_softmax(-1)
    probs = wide(part.probs)
    empty = probs == 0
    return torch.where(empty, -torch.inf, torch.log(torch.where(empty, 1, probs)))


# ---- Powers of p / q, from Renyi's divergence.


def _order(kind: Divergence) -> tuple[float, float] | None:
    """Return the order alpha of a power divergence, and how many times Alpha(alpha) it is; None for other kinds."""
    if isinstance(kind, Alpha):
        return kind.alpha, 1.0
    if isinstance(kind, ChiSquared):
        return 2.0, 2.0
    return (0.5, 0.25) if isinstance(kind, SquaredHellinger) else None


def _by_renyi(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: Options
) -> Estimate | None:
    order = _order(kind)
    alpha = kind.alpha if isinstance(kind, Renyi) else order[0] if order else None
    if (
        options.method not in ("auto", "closed_form")
        or alpha is None
        or alpha in (0.0, 1.0)
        or math.isinf(alpha)
    ):
        return None
    if alpha < 0 and isinstance(p, Independent):  # Renyi's divergence, of which these are sums, begins at 0
        return None
    found = _renyi(call, p, q, alpha, options)
    if found is None or order is None or found.error is None:
        return found
    value = order[1] * torch.expm1((alpha - 1) * found.value) / (alpha * (alpha - 1))
    growth = torch.exp((alpha - 1) * found.value.detach())
    error = torch.where(value.isinf(), 0, order[1] * found.error * growth / abs(alpha))
    return Estimate(value, error, found.method)


def _renyi(call: str, p: Distribution, q: Distribution, alpha: float, options: Options) -> Estimate | None:
    """Return Renyi's divergence, which of independent dimensions is the sum of theirs."""
    if isinstance(p, Independent) and isinstance(q, Independent):
        if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
            return None
        each = estimate_kind(call, p.base_dist, q.base_dist, Renyi(alpha), options)
        return sum_of_dimensions(each, p.reinterpreted_batch_ndims)
    value = renyi_in_closed_form(p, q, alpha)
    return (
        None if value is None else _finished(p, q, value, 1e-13 * (1 + value.detach().abs()), "closed_form")
    )


# ---- Numbers: nodes over both supports.


def _by_nodes(
    call: str, p: Distribution, q: Distribution, kind: Divergence, options: Options
) -> Estimate | None:
    laws = law_of(p), law_of(q)
    if laws[0] is None or laws[1] is None or laws[0].integer != laws[1].integer:
        return None
    method = "summation" if laws[0].integer else "quadrature"
    if options.method not in ("auto", method) or getattr(kind, "alpha", 0) == math.inf:
        return None
    value, error = _nodes(laws[0], laws[1], batch_shape_of(p, q), kind, options)
    return _checked(call, p, q, _finished(p, q, value, error, method), kind, options)


def _nodes(p: Law, q: Law, shape: torch.Size, kind: Divergence, options: Options) -> tuple[Tensor, Tensor]:
    """Return the divergence of two laws, and an estimate of its error; what is infinite for certain takes no nodes."""
    order = _order(kind)
    infinite = is_power_infinite(p, q, order[0] if order else kind.alpha if isinstance(kind, Renyi) else 1.0)
    if infinite is None or not bool(infinite.any()):
        return _on_nodes(p, q, shape, kind, options)
    finite = ~infinite.expand(shape)
    endless, exact = (torch.full(shape, x, dtype=torch.float64) for x in (torch.inf, 0.0))
    if not bool(finite.any()):
        return endless, exact
    if not (p.is_splittable() and q.is_splittable()):
        value, error = _on_nodes(p, q, shape, kind, options)
        return torch.where(finite, value, torch.inf), torch.where(finite, error, 0.0)
    part_p, part_q = (law.mapped(lambda x: x.expand(shape)[finite]) for law in (p, q))
    value, error = _on_nodes(part_p, part_q, torch.Size([int(finite.sum())]), kind, options)
    return endless.masked_scatter(finite, value), exact.masked_scatter(finite, error)


def _on_nodes(p: Law, q: Law, shape: torch.Size, kind: Divergence, options: Options) -> tuple[Tensor, Tensor]:
    law_p, law_q = (law.mapped(lambda x: x.unsqueeze(-1)) for law in (p, q))
    order = _order(kind) or (getattr(kind, "alpha", 1.0) if isinstance(kind, Renyi) else 1.0,)
    find = integer_nodes if law_p.integer else line_nodes
    with torch.no_grad():
        nodes = find(law_p, law_q, shape, _Size(kind, order[0]), options)
    log_p, log_q = nodes.log_masses(law_p, law_q)
    value = _total(kind, log_p, log_q)
    with torch.no_grad():
        error = _error_of(kind, value, nodes)
        missed = torch.stack([(torch.exp(log).sum(-1) - 1).abs() for log in (log_p, log_q)]).amax(0)
        error = error + torch.where(missed > _MASS_TOLERANCE, missed * (1 + value.abs()), 0)
    infinite = nodes.diverges
    return torch.where(infinite, torch.inf, value), torch.where(infinite, 0.0, error)


class _Size(NamedTuple):
    """The terms of a kind, and about how large they are where they would over- or underflow."""

    kind: Divergence
    alpha: float

    def terms(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        return _additive(self.kind).terms(_pair(log_p, log_q)).nan_to_num(nan=0.0, posinf=1e300)

    @property
    def is_bounded(self) -> bool:
        return 0 <= self.alpha <= 1

    @property
    def is_smooth(self) -> bool:
        return not isinstance(_additive(self.kind), TotalVariation)

    def log_size(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        either = torch.maximum(log_p, log_q)
        if self.is_bounded:
            return either
        d = torch.where(log_p == log_q, 0, log_p - log_q)
        powered = torch.maximum(log_p + (self.alpha - 1) * d, either)
        return torch.where(d.isinf(), either, powered)


def _additive(kind: Divergence) -> Divergence:
    """Return a kind with terms that have to be met for this one: at order 0 Renyi's has but mass to be met."""
    return TotalVariation() if isinstance(kind, Renyi) and kind.alpha == 0 else kind


def _pair(log_p: Tensor, log_q: Tensor) -> FinitePair:
    both_empty = (log_p == -torch.inf) & (log_q == -torch.inf)
    return FinitePair(
        torch.exp(log_p),
        torch.exp(log_q),
        torch.where(both_empty, 0, log_p) - torch.where(both_empty, 0, log_q),
    )


def _total(kind: Divergence, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the divergence of masses along the last dimension; its gradient is that of the kind's derivatives."""
    with torch.no_grad():
        pair = _pair(log_p, log_q)
        value = kind.total(pair)
    if not (log_p.requires_grad or log_q.requires_grad):
        return value
    with torch.no_grad():
        by_p, by_q = kind.derivatives(pair)
    carrier = _carried(by_p, log_p) + _carried(by_q, log_q)
    return value + carrier - carrier.detach()


def _carried(derivatives: Tensor, logs: Tensor) -> Tensor:
    there = (derivatives != 0) & logs.detach().isfinite()
    return (torch.where(there, derivatives, 0) * torch.where(there, logs, 0)).sum(-1)


def _error_of(kind: Divergence, value: Tensor, nodes: Nodes) -> Tensor:
    """Turn the error of the sum of terms into that of the divergence, which for Renyi's is a function of it."""
    if not isinstance(kind, Renyi):
        return nodes.error
    alpha = kind.alpha
    if alpha == 0:
        return nodes.error * torch.exp(value)
    return nodes.error * alpha * torch.exp(-(alpha - 1) * value)


def _finished(p: Distribution, q: Distribution, value: Tensor, error: Tensor, method: str) -> Estimate:
    dtype, shape = dtype_of(p, q), batch_shape_of(p, q)
    rounding = 0.0 if dtype == value.dtype else torch.finfo(dtype).eps * value.detach().abs()
    error = torch.where(value.isinf(), 0.0, error + rounding)
    return Estimate(value.to(dtype).expand(shape), error.to(dtype).expand(shape), method)


def _checked(
    call: str, p: Distribution, q: Distribution, found: Estimate, kind: Divergence, options: Options
) -> Estimate:
    """Raise if the tolerance was not reached."""
    single = found.value.dtype != torch.float64
    rtol = options.rtol if options.rtol is not None else (1e-4 if single else 1e-6)
    floor = max(options.atol, 1e-6 if single else 1e-9)
    if found.error is None or bool(
        (found.error <= (rtol * found.value.detach().abs()).clamp(min=floor)).all()
    ):
        return found
    raise ConvergenceError(
        explain(
            call,
            "p, q, kind",
            wanted=f"a relative error of {rtol:g}",
            got=f"an error of up to {float(found.error.nan_to_num(nan=math.inf).max()):.3g} by {found.method} for "
            f"{kind!r} of ({type(p).__name__}, {type(q).__name__}), which may be infinite "
            "(error.estimate has all values)",
            instead=f"{call}(p, q, kind, max_evaluations={10 * options.max_evaluations}), or a larger rtol",
        ),
        found,
    )
