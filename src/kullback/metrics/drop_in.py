"""The drop-in for `torchmetrics.functional.kl_divergence`, and functions shared with the metric."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OfType, OneOf
from kullback.common.dtypes import upcast
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import dense, tensor_remedy
from kullback.common.words import REPRESENTATION_NAMES, RepresentationName
from kullback.errors import (
    IncompatibleTensorError,
    KullbackError,
    Name,
    explain,
    invalid_type,
    invalid_value,
    safe_repr,
)
from kullback.generators import KL
from kullback.kernels import row_divergence
from kullback.kernels.native.terms import kl_of_weights
from kullback.losses.positions import mask_remedy, warn_if_nothing_counts
from kullback.representations import REPRESENTATIONS, SUM_TOLERANCE, Representation

Reduction: TypeAlias = Literal["mean", "sum", "none"] | None

_OTHER_REPRESENTATIONS = (
    "representation='logits' for scores, 'log-probs' for their log_softmax, 'probs' for probabilities that sum to 1, "
    "'counts' for weights that are to be normalized"
)


@by_name()
def kl_divergence(
    p: Tensor,
    q: Tensor,
    log_prob: bool = False,
    reduction: Reduction = "mean",
    *,
    representation: RepresentationName | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Compute KL(P || Q) for each row and reduce it: a drop-in for `torchmetrics.functional.kl_divergence`.

    .. math:: KL(P \| Q) = \sum_i p_i (\log p_i - \log q_i)

    Numbers and dtypes equal torchmetrics' up to rounding, except where torchmetrics is wrong. Log-probabilities of
    ``-inf`` contribute 0 instead of NaN, in value and gradient. Divergences of close distributions keep their
    precision, and results are never negative. Values that are not a distribution raise an error: negative values, NaN,
    a row of zeros, or log-probabilities that do not sum to one.

    Arguments:
        p: P, the data, shape (..., classes), with any number of leading dimensions; torchmetrics requires exactly one
            leading dimension.
        q: Q, the model or prior, of the same shape.
        log_prob: whether `p` and `q` are log-probabilities. Otherwise `p` and `q` are weights, which are normalized.
        reduction: ``"mean"`` or ``"sum"`` over the rows, or ``"none"`` or None for the value of each row.
        representation: the exact type of `p` and `q`: ``"logits"``, ``"log-probs"`` (the same as ``log_prob=True``),
            ``"counts"`` (weights, which are normalized; the default) or ``"probs"`` (which must sum to one).
        mask: a bool tensor of shape (...), True for the rows that count. The other rows may have any values, including
            NaN. A mask that is False everywhere raises a warning, on the CPU only.

    Returns:
        the mean or sum over the rows that count, a scalar in nats. With ``"none"``, the values of these rows, of shape
        (...) or, with a mask, in one dimension. The dtype is the promoted dtype of `p` and `q`. The mean of no rows is
        NaN.

    Raises:
        ArgumentTypeError: `p` or `q` is not a tensor or `log_prob` is not a bool.
        ArgumentValueError: the values are not distributions, or `reduction`, `representation` or `mask` is invalid.
        IncompatibleTensorError: `p` and `q` differ in shape or device. The error is a RuntimeError too, as in
            torchmetrics.

    Gradient:
        to `p` and `q`, through the normalization. The gradient is 0 for P = Q, at masked rows, at classes that are
        ``-inf`` in both, and at a weight of exactly 0. If the value is +inf, the classes that make the value infinite
        add 0 to the gradient with respect to P.

    Example:
        >>> import torch
        >>> from kullback.metrics import kl_divergence
        >>> p, q = torch.tensor([[0.36, 0.48, 0.16]]), torch.tensor([[1 / 3, 1 / 3, 1 / 3]])
        >>> kl_divergence(p, q)
        tensor(0.0853)
        >>> kl_divergence(p.log(), q.log(), reduction="none", representation="logits")
        tensor([0.0853])

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """
    check_reduction("kl_divergence", reduction)
    values, dtype = row_values(
        "kl_divergence", p, q, resolve_representation("kl_divergence", log_prob, representation), mask
    )
    if reduction is None or reduction == "none":
        return values.to(dtype)
    accurate = upcast(values)
    return (accurate.sum() if reduction == "sum" else accurate.mean()).to(dtype)


_ARGUMENTS = Arguments(
    "kl_divergence",
    "KLDivergence",
    reduction=OneOf(
        ("mean", "sum", "none"), example="mean", instead="{call}(..., reduction='mean')", optional=True
    ),
    log_prob=OfType(
        (bool,),
        wanted="True if p and q hold log-probabilities, False if not",
        example=True,
        instead="{call}(..., log_prob=True)",
    ),
)


def check_reduction(call: str, reduction: object) -> None:
    """Raise unless `reduction` is a reduction that torchmetrics accepts."""
    _ARGUMENTS.check(call, reduction=reduction)


def resolve_representation(call: str, log_prob: object, representation: object) -> RepresentationName:
    """Return the name of the representation from torchmetrics' `log_prob` and the option `representation`."""
    _ARGUMENTS.check(call, log_prob=log_prob)
    if representation is None:
        return "log-probs" if log_prob else "counts"
    for name in REPRESENTATION_NAMES:
        if representation == name and (name == "log-probs" or not log_prob):
            return name
    wanted = f"one of {', '.join(map(repr, REPRESENTATION_NAMES))}, and no log_prob=True that contradicts it"
    got = f"representation={safe_repr(representation)} with log_prob={log_prob}"
    instead = f"{call}(..., representation='logits') for scores, 'log-probs' for the output of log_softmax"
    raise invalid_value(call, "representation", wanted=wanted, got=got, instead=instead)


def row_values(
    call: str, p: Tensor, q: Tensor, representation: RepresentationName, mask: Tensor | None
) -> tuple[Tensor, torch.dtype]:
    """Return KL(P || Q) of each row that `mask` keeps, in float32 or better, and the dtype that the caller returns."""
    for name, x in {"p": p, "q": q}.items():
        if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            made = tensor_remedy(name, x, floating=False) or f"torch.as_tensor({name})"
            got, instead = type(x).__name__, f"{call}({made}, q)" if name == "p" else f"{call}(p, {made})"
            raise invalid_type(call, name, wanted="a tensor", got=got, instead=instead)
    p, q = dense(call, "p", p), dense(call, "q", q)
    if p.shape != q.shape or p.device != q.device:
        wanted = "two tensors of the same shape on the same device"
        got = f"shape {tuple(p.shape)} on {p.device} and shape {tuple(q.shape)} on {q.device}"
        instead = f"{call}(p, q.expand_as(p)) to compare each row of p with one q, or q.to(p.device)"
        raise IncompatibleTensorError(explain(call, "p, q", wanted=wanted, got=got, instead=instead))
    if mask is not None:
        _check_mask(call, mask, p)
        mask = dense(call, "mask", mask)
        warn_if_nothing_counts(call, {"mask": mask}, mask, stacklevel=5)
        p, q = p[mask], q[mask]
    counted = "" if mask is None else ", among the rows that mask counts"
    dtype = torch.promote_types(p.dtype, q.dtype)
    if representation in ("counts", "probs"):
        tolerance = math.inf if representation == "counts" else SUM_TOLERANCE.get(p.dtype, 0.0)
        values = kl_of_weights(p, q, tolerance)
        if values is not None:
            return values.to(dtype), dtype
    left, right = (_represent(call, name, counted, x, representation) for name, x in (("p", p), ("q", q)))
    return row_divergence(KL(), left, right), dtype if dtype.is_floating_point else torch.get_default_dtype()


def _check_mask(call: str, mask: object, p: Tensor) -> None:
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == p.shape[:-1]:
        return
    wanted = f"a bool tensor of shape {tuple(p.shape[:-1])}, one entry for each row of p"
    got = type(mask).__name__
    if isinstance(mask, Tensor):
        got = f"shape {tuple(mask.shape)}, dtype {mask.dtype}"
    instead = "mask=attention_mask.bool()"
    if isinstance(mask, Tensor) and mask.shape == p.shape[:-1]:
        instead = mask_remedy(mask)
    instead = f"{call}(p, q, {instead})"
    raise invalid_value(call, "mask", wanted=wanted, got=got, instead=instead)


def _represent(
    call: str, argument: str, counted: str, x: Tensor, representation: RepresentationName
) -> Representation:
    kind = REPRESENTATIONS[representation]
    try:
        checked = kind(x)
    except KullbackError as error:
        explanation = error.explanation
        if explanation is None:
            raise
        # The remedy of an error may name a Python class, such as `Logits`. A caller who passed only a word such as
        # "logits" gets a remedy in such words instead.
        names_a_class = any(isinstance(piece, Name) for piece in explanation.instead)
        instead = _OTHER_REPRESENTATIONS if names_a_class else explanation.instead
        place = f"{call}({argument}=...){counted}"
        raise error.replace(call=call, argument=argument, place=place, instead=instead) from None
    if x.is_floating_point() and torch.finfo(x.dtype).bits < 32:
        # Half-precision rows are computed in float32, because the mean of rows rounded to half precision would be
        # inaccurate.
        return kind(x.float(), validate=False)
    return checked
