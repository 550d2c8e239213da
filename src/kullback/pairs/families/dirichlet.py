"""The family of Dirichlet distributions, and the closed form for Dirichlet and Beta distributions.

A Beta is a Dirichlet over two classes. The closed form of a large batch is computed in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet
from torch.utils.checkpoint import checkpoint

from kullback.common.dtypes import upcast
from kullback.common.special import log_ratio, scaled_expm1mx, stirling_bregman
from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.native.native_closed_forms import required_gradients
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import Family, ScipyForm
from kullback.pairs.native_forms import NativeForm, divergence_of, is_ordinary_call
from kullback.pairs.numerics.parameters import is_transformed
from kullback.pairs.registry import closed_form
from kullback.pairs.renyi import mixed, renyi_form

# _BLOCK is the number of concentrations in a block. The series for lgamma stores hundreds of numbers for each
# concentration, so 2^15 concentrations take tens of megabytes.
_BLOCK = 2**15
# The C++ kernel accepts at most _LONGEST_ROW classes in a row.
_LONGEST_ROW = 256
# `_in_groups` adds up the concentrations of each group of classes. The differences between the totals of P and of Q are
# rounded. If the sum of the absolute differences is at most _DIGITS_OF_TOTALS times KL, this rounding costs at most
# three of the 16 digits of KL.
_DIGITS_OF_TOTALS = 1e3


def rounding_error(p: Beta | Dirichlet, q: Beta | Dirichlet, value: Tensor) -> Tensor:
    """Return a bound on the rounding error of KL, which comes mainly from the only subtracted term of the formula."""
    totals = [concentrations(d).detach() for d in (p, q)]
    # For huge totals, the subtracted term depends only on the ratio of the totals. So the concentrations are scaled
    # down, because their sums could overflow.
    is_huge = torch.maximum(*(x.amax(-1) for x in totals)) > 1e290
    shrunk = torch.where(is_huge, torch.full_like(totals[0][..., 0], 1e-10), 1.0)
    p_total, q_total = ((x * shrunk.unsqueeze(-1)).sum(-1) for x in totals)
    return 1e-12 * value + 1e-14 * stirling_bregman(p_total, q_total) + 1e-15


def concentrations(d: Any) -> Tensor:
    """Return the concentrations of a Dirichlet distribution; a Beta counts as a Dirichlet over two classes."""
    if hasattr(d, "concentration0"):
        return torch.stack(torch.broadcast_tensors(upcast(d.concentration1), upcast(d.concentration0)), -1)
    return upcast(d.concentration)


def _by_kernel(p: Dirichlet, q: Dirichlet) -> Tensor | None:
    """Return KL by the kernel, or None if the kernel does not support the parameters."""
    if p.concentration.shape[-1] <= _LONGEST_ROW:
        return _KERNEL(p, q)
    parameters = p.concentration, q.concentration
    if parameters[0].shape[-1] != parameters[1].shape[-1] or required_gradients(parameters) is None:
        return None
    return _in_groups(*parameters) if is_ordinary_call() else None


@closed_form(Beta, Beta, error=rounding_error, native=ElementForm.BETA)
@closed_form(Dirichlet, Dirichlet, error=rounding_error, native=_by_kernel)
def kl_dirichlet_dirichlet(p: Beta | Dirichlet, q: Beta | Dirichlet) -> Tensor:
    """Return A_q KL(mean_Q || mean_P) + sum_i R(a_pi, a_qi) - R(A_p, A_q) for R = `stirling_bregman`.

    Here a_pi and a_qi are the concentrations of class i, and A_p and A_q are the sums of the concentrations. The terms
    are regrouped from the formula in
    KL-Divergences of Normal, Gamma, Dirichlet and Wishart densities (Penny, 2001)
    """
    return dirichlet_divergence(concentrations(p), concentrations(q))


def dirichlet_divergence(p: Tensor, q: Tensor, distance: Tensor | None = None) -> Tensor:
    """Return KL between Dirichlet distributions with concentrations p and q; large batches are computed in blocks.

    `distance` is q - p, if the caller knows this difference more exactly than p and q.
    """
    distance = q - p if distance is None else distance
    if torch.compiler.is_compiling() or is_transformed() or distance.numel() <= _BLOCK:
        return _dirichlet_divergence(p, q, distance)
    shape = distance.shape
    rows = [x.expand(shape).reshape(-1, shape[-1]) for x in (p, q, distance)]
    # The backward pass computes each block again, instead of storing its graph.
    values = [
        checkpoint(_dirichlet_divergence, *block, use_reentrant=False, preserve_rng_state=False)
        for block in _blocks(*rows)
    ]
    return torch.cat(values).reshape(shape[:-1])


def _blocks(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    count = max(1, _BLOCK // rows[0].shape[-1])
    return zip(*(x.split(count) for x in rows), strict=True)


def _dirichlet_divergence(p: Tensor, q: Tensor, distance: Tensor) -> Tensor:
    total_p, total_q, total_distance = p.sum(-1), q.sum(-1), distance.sum(-1)
    logs = log_ratio(p, q, -distance) - log_ratio(total_p, total_q, -total_distance).unsqueeze(-1)
    of_means = scaled_expm1mx(q, logs).sum(-1)
    return (
        of_means
        + stirling_bregman(p, q, distance).sum(-1)
        - stirling_bregman(total_p, total_q, total_distance)
    )


_KERNEL = NativeForm(kl_dirichlet_dirichlet, RowForm.DIRICHLET, Dirichlet, Dirichlet)


def _in_groups(p: Tensor, q: Tensor) -> Tensor | None:
    """Return KL for more than `_LONGEST_ROW` classes as a sum over groups of classes.

    The totals of the groups have a Dirichlet distribution, and so have the proportions within each group. All these
    distributions are independent, so KL is the sum of their KL divergences, which are not negative. The result is None
    if the kernel does not support the parameters.
    """
    form, dtype = _KERNEL.form, p.dtype
    a, b = torch.broadcast_tensors(upcast(p), upcast(q))
    whole = a.shape[-1] // _LONGEST_ROW * _LONGEST_ROW
    sides = [[x[..., :whole].unflatten(-1, (-1, _LONGEST_ROW)), x[..., whole:].unsqueeze(-2)] for x in (a, b)]
    value: Tensor | None = torch.zeros(a.shape[:-1], dtype=a.dtype, device="cpu")
    totals: list[tuple[Tensor, Tensor, Tensor]] = []
    for part_p, part_q in zip(*sides, strict=True):
        if part_p.shape[-1] == 0:
            continue
        totals.append((part_p.sum(-1), part_q.sum(-1), (part_q - part_p).sum(-1)))
        if part_p.shape[-1] > 1:
            inside = divergence_of(form, (part_p.contiguous(), part_q.contiguous()))
            if inside is None:
                return None
            value = value + inside.sum(-1)
    total_p, total_q, distance = (torch.cat(x, -1) for x in zip(*totals, strict=True))
    is_short = total_p.shape[-1] <= _LONGEST_ROW
    if is_short and bool((distance.detach().abs().sum(-1) < _DIGITS_OF_TOTALS * value.detach()).all()):
        of_totals = divergence_of(form, (total_p.contiguous(), total_q.contiguous()))
    else:
        of_totals = dirichlet_divergence(total_p, total_q, distance)
    return None if of_totals is None else (value + of_totals).clamp(min=0).to(dtype)


@renyi_form(Dirichlet)
@renyi_form(Beta)
def _renyi(p: Any, q: Any, alpha: float, rest: float) -> Tensor:
    """Return Renyi's divergence of order alpha = 1 - rest of two Dirichlet or two Beta distributions."""
    a, b = concentrations(p), concentrations(q)
    c = a + rest * (b - a)
    finite = (c > 0).all(-1)
    there = finite.unsqueeze(-1)
    c, more = torch.where(there, c, 1), torch.where(there, b - a, 0)
    a, b = torch.where(there, a, 1), torch.where(there, b, 1)
    to_p = dirichlet_divergence(c, a, -rest * more)
    to_q = dirichlet_divergence(c, b, alpha * more)
    return mixed(to_p, to_q, finite, alpha, rest)


register_family(
    Family(Dirichlet, "concentration", scipy=[ScipyForm("dirichlet_frozen", Dirichlet, reads="alpha")])
)
