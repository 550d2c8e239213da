"""The audit of pairs: a divergence's answers beside the truths of `pair_truths`, errors in units of what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback import kl_divergence
from kullback.errors import ConvergenceError
from tests.oracles.pair_truths import Truth
from tests.oracles.pairs import Pair

Divergence = Callable[[Distribution, Distribution], tuple[Tensor, Tensor | None]]
VALUE = {torch.float64: 1e-10, torch.float32: 1e-5}
GRADIENT = {torch.float64: 1e-7, torch.float32: 1e-4}
# Beyond these error bounds kl_divergence raises a ConvergenceError instead of answering.
REFUSED = {torch.float64: (1e-6, 1e-9), torch.float32: (1e-4, 1e-6)}
# Of the natural scale: how much the answer changes when all parameters change relatively by this.
INPUT = 1e-13


@dataclass(frozen=True)
class Measured:
    """For each case of a pair in one dtype: what came out, and the errors in units of what is allowed."""

    index: np.ndarray  # which draws these are
    value: np.ndarray
    gradient: np.ndarray
    value_ratio: np.ndarray
    gradient_ratio: np.ndarray
    refused: np.ndarray  # where there was an error message instead of an answer

    @property
    def failing(self) -> np.ndarray:
        return ~self.refused & ((self.value_ratio > 1) | (self.gradient_ratio > 1))


def own_divergence(p: Distribution, q: Distribution) -> tuple[Tensor, Tensor | None]:
    """kullback's answers, and for which it says that it did not reach its tolerance."""
    try:
        return kl_divergence(p, q), None
    except ConvergenceError as error:
        value, bound = error.estimate.value, error.estimate.error.detach()
        relative, absolute = REFUSED[value.dtype]
        return value, ~(bound <= (relative * value.detach().abs()).clamp(min=absolute))


def cases_in(dtype: torch.dtype, parameters: np.ndarray) -> np.ndarray:
    """The draws that the dtype holds exactly, and with them the truth."""
    if dtype == torch.float64:
        return np.arange(len(parameters))
    with np.errstate(over="ignore", under="ignore"):
        return np.flatnonzero((parameters.astype(np.float32) == parameters).all(axis=1))


def evaluate(
    pair: Pair, parameters: np.ndarray, dtype: torch.dtype, divergence: Divergence
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and gradients of a batch of cases, in float64, and where there is no answer."""
    columns = [torch.tensor(column, dtype=dtype, requires_grad=True) for column in parameters.T]
    split = len(pair.p.parameters)
    value, refused = divergence(pair.p.build(*columns[:split]), pair.q.build(*columns[split:]))
    refused = torch.zeros(value.shape, dtype=torch.bool) if refused is None else refused
    finite = torch.where(value.isfinite(), value, 0)
    found = (
        torch.autograd.grad(finite.sum(), columns, allow_unused=True)
        if finite.requires_grad
        else [None] * len(columns)
    )
    gradient = [torch.zeros_like(c) if g is None else g for c, g in zip(columns, found, strict=True)]
    return value.detach().double().numpy(), torch.stack(gradient, -1).double().numpy(), refused.numpy()


def measure(pair: Pair, truth: Truth, dtype: torch.dtype, divergence: Divergence) -> Measured:
    parameters, value, gradient = truth
    index = cases_in(dtype, parameters)
    found = evaluate(pair, parameters[index], dtype, divergence)
    return compare(pair, (parameters[index], value[index], gradient[index]), dtype, index, found)


def compare(
    pair: Pair,
    truth: Truth,
    dtype: torch.dtype,
    index: np.ndarray,
    found: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Measured:
    """The errors in units of what is allowed: more than 1 fails; inf where no number may be off like this."""
    parameters, value, gradient = truth
    ours, our_gradient, refused = found
    units = np.array([pair.units(list(row)) for row in parameters]).reshape(parameters.shape)
    derivative = np.abs(np.nan_to_num(gradient, posinf=math.inf, neginf=math.inf))
    with np.errstate(all="ignore"):
        rounding = 8 * torch.finfo(dtype).eps if pair.p.rounds else INPUT
        natural = (derivative * units).max(axis=1, initial=0)
        allowed = VALUE[dtype] * np.abs(value) + rounding * natural + tiny(dtype)
        value_ratio = ratio(ours, value, allowed, dtype)
        value_ratio[np.isnan(ours) | (ours < 0)] = math.inf
        allowed = GRADIENT[dtype] * derivative + rounding * natural[:, None] / units + tiny(dtype)
        gradient_ratio = ratio(our_gradient, gradient, allowed, dtype)
        gradient_ratio[np.isnan(gradient)] = 0
        gradient_ratio[~representable(value, dtype)] = 0  # where the value is +inf the gradient says nothing
        gradient_ratio[np.isnan(our_gradient) & ~(derivative > largest(dtype))] = math.inf
    return Measured(index, ours, our_gradient, value_ratio, gradient_ratio.max(axis=1, initial=0), refused)


def ratio(ours: np.ndarray, truth: np.ndarray, allowed: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """|error| / allowed, where infinities that the dtype cannot avoid are right."""
    same = (ours == truth) | (
        np.isinf(ours) & ~representable(truth, dtype) & (np.sign(ours) == np.sign(truth))
    )
    return np.where(same, 0, np.nan_to_num(np.abs(ours - truth) / allowed, nan=math.inf, posinf=math.inf))


def representable(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return np.abs(x) < largest(dtype)


def largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max * (1 - 1e-6)


def tiny(dtype: torch.dtype) -> float:
    """What the dtype cannot resolve near 0."""
    return 4 * torch.finfo(dtype).tiny
