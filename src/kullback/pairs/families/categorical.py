"""The Categorical, OneHotCategorical and Multinomial families, whose divergences are sums over classes."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.distributions import Categorical, Multinomial, OneHotCategorical

from kullback.common.dtypes import upcast
from kullback.generators import KL
from kullback.generators.divergence import finite
from kullback.kernels import reference
from kullback.kernels.codes import RowForm
from kullback.kernels.reference import RowDivergence
from kullback.pairs.densities.integer import CategoricalDensity
from kullback.pairs.families.registration import register_family
from kullback.pairs.family import CHOICE, Family, ScipyForm
from kullback.pairs.numerics.parameters import given_logits, log_probs_of
from kullback.pairs.registry import closed_form

Classes = Categorical | OneHotCategorical | Multinomial


@closed_form(Categorical, Categorical, native=RowForm.CATEGORICAL_LOGITS)
@closed_form(OneHotCategorical, OneHotCategorical, native=RowForm.CATEGORICAL_LOGITS)
def kl_categorical_categorical(p: Classes, q: Classes) -> Tensor:
    """Return the sum of p log(p / q) over the classes."""
    return _rows(p, q)


@closed_form(Multinomial, Multinomial)
def kl_multinomial_multinomial(p: Multinomial, q: Multinomial) -> Tensor:
    """Return `total_count` times KL of one draw.

    For different values of `total_count`, no outcome is possible under both P and Q, and the result is +inf.
    """
    rows = _rows(p, q)
    if p.total_count != q.total_count:
        return torch.where(rows >= 0, torch.inf, rows)
    return p.total_count * (rows if p.total_count else finite(rows))


def _rows(p: Classes, q: Classes) -> Tensor:
    """Return KL of one draw, from the logits or probabilities that the user passed."""
    (left, left_in_logs), (right, right_in_logs) = _weights(p), _weights(q)
    left, right = torch.broadcast_tensors(left, right)
    rows = RowDivergence(KL(), 1.0, left.dtype, None, left_in_logs, right_in_logs)
    shape, classes = left.shape[:-1], left.shape[-1]
    left, right = left.reshape(shape.numel(), classes), right.reshape(shape.numel(), classes)
    return reference.row_divergence(rows, left, right).reshape(shape)


def _weights(d: Classes) -> tuple[Tensor, bool]:
    classes = cast(Categorical, vars(d).get("_categorical", d))
    in_logs = given_logits(classes)
    return upcast(classes.logits if in_logs else classes.probs), in_logs


register_family(Family(Categorical, CHOICE, lambda d: CategoricalDensity(log_probs_of(d))))
register_family(Family(OneHotCategorical, f"_categorical.{CHOICE}"))
register_family(Family(
    Multinomial, scipy=[ScipyForm("multinomial_frozen", lambda n, p: Multinomial(int(n), p), reads="n p")],
))  # fmt: skip
