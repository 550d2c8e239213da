"""Truncated sampling (temperature, top-k, top-p, min-p): the kept tokens, their mass, and log-probabilities within."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Number, OneOf, Whole
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import (
    can_inspect,
    can_inspect_all,
    check_dense,
    described,
    is_integer,
    recordable,
)
from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type, invalid_value
from kullback.kernels.label_terms import subtractable

Engine: TypeAlias = Literal["vllm", "sglang", "transformers"]

_ARGUMENTS = Arguments(
    "sampling_log_probs",
    temperature=Number(above=0, below=float("inf"), example=1.0),
    top_k=Whole(least=1, example=50, optional=True),
    top_p=Number(above=0, most=1, example=0.95, optional=True),
    min_p=Number(least=0, most=1, example=0.05, optional=True),
    engine=OneOf(get_args(Engine), example="vllm"),
)
# Both sides round: bfloat16 changes a logarithm by at most 0.4 %. The logarithm of a kept mass may be below the
# logarithm of a kept token's probability by _ROUNDED plus _ROUNDED_SHARE of its size.
_ROUNDED, _ROUNDED_SHARE = 0.05, 0.01


@by_name()
@dataclass(frozen=True, repr=False)
class Support(ShortRepr):
    r"""The logarithms of the probability of the kept tokens, which truncated sampling could return.

    An engine that samples with top-k, top-p or min-p returns token x with probability :math:`\mu(x)/S_\mu(K)`. K is the
    set of kept tokens, and :math:`S_\mu(K)` is their probability. A ratio of log-probabilities over the whole
    vocabulary then estimates no divergence. With `Support`, both sides are restricted to K:

    .. math:: \log\frac{p(x)}{S_p(K)} - \log\frac{q(x)}{S_q(K)}

    Both masses have to be of the same set K: the set of the engine that sampled.

    Arguments:
        p: :math:`\log S_p(K)` at each position, the shape of ``log_p``; None if ``log_p`` has been divided by the mass
            already, as in the processed log-probabilities of an engine.
        q: the same for Q.

    Raises:
        ArgumentTypeError: a mass is not a floating-point tensor.
        ArgumentValueError: both masses are None. In the calls that take a `Support`, the shapes differ. On the CPU, a
            mass is above 1 or below the probability of the sampled token.

    Gradient:
        flows to each mass that requires it, so that the gradient of a truncated policy is complete.

    Example:
        >>> import torch
        >>> from kullback.functional import Support, kl_from_log_probs
        >>> log_p, log_q = torch.tensor([0.6]).log(), torch.tensor([0.4]).log()
        >>> masses = Support(p=torch.tensor([0.9]).log(), q=torch.tensor([0.8]).log())
        >>> kl_from_log_probs(log_p, log_q, support=masses)  # log((0.6 / 0.9) / (0.4 / 0.8))
        tensor([0.2877])
    """

    p: Tensor | None = field(default=None)
    q: Tensor | None = field(default=None)

    def __post_init__(self) -> None:
        if self.p is None and self.q is None:
            raise invalid_value(
                "Support",
                "p, q",
                wanted="the logarithm of the kept mass of at least one side",
                got="None for both",
                instead="p=sampling_log_probs(logits, tokens, kept=kept).log_mass, or no support= if both sides are "
                "log-probabilities within the kept tokens",
            )
        for name in ("p", "q"):
            mass = getattr(self, name)
            if mass is not None and not (isinstance(mass, Tensor) and mass.is_floating_point()):
                raise invalid_type(
                    "Support",
                    name,
                    wanted="a floating-point tensor, the logarithm of the kept mass of each position",
                    got=f"dtype {mass.dtype}" if isinstance(mass, Tensor) else type(mass).__name__,
                    instead=f"{name}=sampling_log_probs(logits, tokens, kept=kept).log_mass",
                )


class SamplingLogProbs(NamedTuple):
    """The results of `sampling_log_probs`.

    Attributes:
        log_probs: the tokens' log-probabilities over the whole vocabulary at the temperature, the shape of the tokens.
        log_mass: the logarithm of the probability of the kept tokens, the shape of the tokens.
        kept: True for each kept token, shape (..., classes).

    Example:
        >>> import torch
        >>> from kullback.functional import sampling_log_probs
        >>> sampled = sampling_log_probs(torch.zeros(1, 4), torch.tensor([0]), top_k=4)
        >>> sampled.log_mass, int(sampled.kept.sum())
        (tensor([0.]), 4)
    """

    log_probs: Tensor
    log_mass: Tensor
    kept: Tensor


@by_name("sampling_log_probs(logits, tokens, top_p=0.95)")
def sampling_log_probs(
    logits: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    engine: Engine = "vllm",
    kept: Tensor | None = None,
    mask: Tensor | None = None,
) -> SamplingLogProbs:
    r"""Compute the log-probabilities of sampled tokens, and the mass of the tokens that an engine's sampling keeps.

    With :math:`p = \operatorname{softmax}(\text{logits} / T)` and K the kept tokens, the results are
    :math:`\log p(x)` and :math:`\log S_p(K) = \log \sum_{y \in K} p(y)`. The engine samples x with probability
    :math:`p(x)/S_p(K)`. The kept tokens are the engine's own, `kept`, if it returned them. Otherwise the filters decide
    from these logits:

    * top-k keeps the tokens whose logit is at least the k-th largest one, ties included;
    * top-p keeps the most probable tokens until their mass is at least p;
    * min-p keeps the tokens of probability at least ``min_p`` times the largest one.

    | engine | order of the filters |
    |---|---|
    | ``"vllm"`` | min-p, then top-k, then top-p of the renormalized rest |
    | ``"transformers"`` | top-k, then top-p of the renormalized rest, then min-p |
    | ``"sglang"`` | all three at once, from the same probabilities; of ties at top-k, k tokens remain |

    The order matters for top-p alone. Filters of a trainer's logits and of an engine's logits may keep different
    tokens. Ratios need the engine's set for both sides, so pass its `kept` if the engine returns it.

    Arguments:
        logits: shape (..., classes); row i gives the distribution of token i.
        tokens: the sampled tokens, an integer tensor of shape (...).
        temperature: T, the divisor of the logits.
        top_k: the number of tokens to keep; None keeps all.
        top_p: the mass to keep; None keeps all.
        min_p: the least probability as a fraction of the largest; None keeps all.
        engine: the engine whose order of filters counts.
        kept: the engine's tokens: a boolean tensor of the shape of `logits`, or token ids of shape (..., k), filled up
            with -1. With `kept`, no filter is allowed.
        mask: a boolean tensor of the shape of `tokens`, True for tokens that were sampled. Others, such as prompts,
            padding and results of tools, may have any ids; their log-probabilities and masses are 0.

    Returns:
        the log-probabilities, the logarithms of the kept mass and the kept tokens, in float32 or better.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: shapes do not fit, a setting is out of range, or a filter is passed together with `kept`. On
            the CPU, a token that is not a class or not in `kept` is an error, too.

    Gradient:
        of both log-probabilities with respect to the logits, with the kept tokens as constants. It is 0 for a kept
        set without mass.

    Example:
        >>> import torch
        >>> from kullback.functional import sampling_log_probs
        >>> logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
        >>> sampled = sampling_log_probs(logits, torch.tensor([1]), top_p=0.9)
        >>> sampled.log_probs.exp(), sampled.log_mass.exp(), sampled.kept
        (tensor([0.3000]), tensor([0.9500]), tensor([[ True,  True,  True, False]]))

    References:
        The Curious Case of Neural Text Degeneration (Holtzman and others, 2020)
        Turning Up the Heat: Min-p Sampling for Creative and Coherent LLM Outputs (Nguyen and others, 2025)
    """
    call = "sampling_log_probs"
    temperature, top_k, top_p, min_p, engine = _ARGUMENTS.check(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, engine=engine
    ).values()
    _check_shapes(call, logits, tokens, mask)
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    chosen = [name for name, value in filters.items() if value is not None]
    if kept is not None and chosen:
        raise invalid_value(
            call,
            chosen[0],
            wanted="no filter next to kept=, which has the tokens after all filters",
            got=repr(filters[chosen[0]]),
            instead=f"leave {chosen[0]}= out",
        )
    logits = recordable(logits)
    accurate = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # A logarithm of a sum of logits far from 0 would lose digits, so the largest logit of the row is subtracted first.
    scaled = (accurate - subtractable(accurate.detach().amax(-1, keepdim=True))) / temperature
    if mask is not None:
        scaled = torch.where(mask.unsqueeze(-1), scaled, 0)  # a row that does not count may contain NaN
    inside = (
        _mask_of(call, kept, scaled) if kept is not None else _filtered(scaled, top_k, top_p, min_p, engine)
    )
    counts = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    places = torch.where(counts, tokens, 0).long().unsqueeze(-1)
    if tokens.is_cpu and tokens.numel() and can_inspect_all((tokens, inside, counts)):
        _check_tokens(call, places, inside, counts, needs_kept=kept is not None)
    total = scaled.logsumexp(-1)
    log_probs = scaled.gather(-1, places).squeeze(-1) - total
    # The gradient of a sum of no probability would be NaN.
    has_mass = (inside & (scaled != -torch.inf)).any(-1)
    kept_logits = torch.where(inside | ~has_mass.unsqueeze(-1), scaled, -torch.inf)
    log_mass = torch.where(has_mass, kept_logits.logsumexp(-1) - total, -torch.inf)
    return SamplingLogProbs(torch.where(counts, log_probs, 0), torch.where(counts, log_mass, 0), inside)


def within(call: str, log_probs: Tensor, log_mass: Tensor | None, mask: Tensor | None, name: str) -> Tensor:
    """Return the log-probabilities within the kept tokens; unchanged without `log_mass`, whose name is `name`."""
    if log_mass is None:
        return log_probs
    for what, of_tokens, of_mass in (
        ("shape", tuple(log_probs.shape), tuple(log_mass.shape)),
        ("device", log_probs.device, log_mass.device),
    ):
        if of_tokens != of_mass:
            wanted, got = f"a mass for each log-probability, {what} {of_tokens}", f"{what} {of_mass}"
            instead = f"the logarithm of the kept mass of the same positions, of the same {what}"
            raise invalid_value(call, name, wanted=wanted, got=got, instead=instead)
    dtype = torch.promote_types(torch.promote_types(log_probs.dtype, log_mass.dtype), torch.float32)
    log_probs, log_mass = recordable(log_probs).to(dtype), recordable(log_mass).to(dtype)
    if log_mass.is_cpu and can_inspect_all((log_probs, log_mass, mask)):
        _check_mass(call, log_probs.detach(), log_mass.detach(), mask, name)
    impossible = log_probs == -torch.inf  # such a token has no probability, even if the kept tokens have none
    return torch.where(impossible, log_probs, log_probs - torch.where(impossible, 0, log_mass))


def _check_mass(call: str, log_probs: Tensor, log_mass: Tensor, mask: Tensor | None, name: str) -> None:
    rounded = _ROUNDED + _ROUNDED_SHARE * log_mass.abs()
    wrong = (log_mass > _ROUNDED) | (log_mass + rounded < log_probs) | log_mass.isnan()
    wrong = wrong if mask is None else wrong & mask
    if bool(wrong.any()):
        mass, token = float(log_mass[wrong][0].exp()), float(log_probs[wrong][0].exp())
        raise invalid_value(
            call,
            name,
            wanted="the logarithm of a mass of at most 1 that includes the sampled token",
            got=f"the mass {mass:.4g} where the token has the probability {token:.4g}",
            instead=f"{name}= from logits of the same side at the same temperature, with the engine's kept tokens; "
            "leave it out if that side's log-probabilities are within the kept tokens already",
        )


def _filtered(
    scaled: Tensor, top_k: int | None, top_p: float | None, min_p: float | None, engine: Engine
) -> Tensor:
    """Return the mask of the tokens that the filters keep. The filters do not depend on the gradient."""
    scaled = scaled.detach()
    if engine == "sglang":
        return _jointly_filtered(scaled, top_k, top_p, min_p)
    order = ("min_p", "top_k", "top_p") if engine == "vllm" else ("top_k", "top_p", "min_p")
    kept = torch.ones_like(scaled, dtype=torch.bool)
    for name in order:
        left = torch.where(kept, scaled, -torch.inf)
        if name == "top_k" and top_k is not None:
            kept &= scaled >= left.topk(min(top_k, scaled.shape[-1]), -1).values[..., -1:]
        elif name == "min_p" and min_p is not None:
            probs = left.softmax(-1)
            kept &= probs >= min_p * probs.amax(-1, keepdim=True)
        elif name == "top_p" and top_p is not None:
            ascending, places = left.sort(-1)
            dropped = ascending.softmax(-1).cumsum(-1) <= 1 - top_p
            dropped[..., -1:] = False
            kept &= ~dropped.scatter(-1, places, dropped)
    return kept


def _jointly_filtered(scaled: Tensor, top_k: int | None, top_p: float | None, min_p: float | None) -> Tensor:
    probs, places = scaled.softmax(-1).sort(-1, descending=True)
    kept = torch.ones_like(probs, dtype=torch.bool)
    if top_k is not None:
        kept[..., top_k:] = False
    if top_p is not None:
        kept &= probs.cumsum(-1) - probs <= top_p
    if min_p is not None:
        kept &= probs >= min_p * probs[..., :1]
    return kept.scatter(-1, places, kept)


def _mask_of(call: str, kept: Tensor, logits: Tensor) -> Tensor:
    classes = logits.shape[-1]
    if isinstance(kept, Tensor) and kept.dtype == torch.bool and kept.shape == logits.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
        return kept.to(logits.device)
    fits = (
        isinstance(kept, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        and is_integer(kept)
        and kept.shape[:-1] == logits.shape[:-1]
        and kept.ndim == logits.ndim
    )
    ids = kept.long().to(logits.device) if fits else None
    if ids is None or (ids.is_cpu and can_inspect(ids) and bool(((ids < -1) | (ids >= classes)).any())):
        rows = ", ".join(map(str, logits.shape[:-1]))
        raise invalid_value(
            call,
            "kept",
            wanted=f"a boolean tensor of shape {tuple(logits.shape)}, or ids from 0 to {classes - 1} of shape "
            f"({rows}{', ' if rows else ''}k), filled up with -1",
            got=described(kept) + ("" if ids is None else ", with other ids"),
            instead="kept=torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1) for a list of the "
            "ids of each token",
        )
    marked = torch.zeros(*logits.shape[:-1], classes + 1, dtype=torch.bool, device=logits.device)
    return marked.scatter(-1, torch.where(ids < 0, classes, ids), value=True)[..., :classes]


def _check_shapes(call: str, logits: Tensor, tokens: Tensor, mask: Tensor | None) -> None:
    if isinstance(logits, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        check_dense(call, "logits", logits)
    if (
        not isinstance(logits, Tensor)
        or not logits.is_floating_point()
        or 0 in (logits.ndim, *logits.shape[-1:])
    ):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_type(
            call,
            "logits",
            wanted="a floating-point tensor of shape (..., classes)",
            got=described(logits),
            instead="logits=model(tokens).logits[:, :-1].float()",
        )
    rows = tuple(logits.shape[:-1])
    whole = isinstance(tokens, Tensor) and is_integer(tokens)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not whole or tuple(tokens.shape) != rows:
        raise invalid_value(
            call,
            "tokens",
            wanted=f"an integer tensor of shape {rows}, one token for each row of logits",
            got=described(tokens),
            instead="sampling_log_probs(logits[:, :-1], tokens[:, 1:]), because row i gives the token i + 1",
        )
    if mask is not None and not (
        isinstance(mask, Tensor) and mask.dtype == torch.bool and tuple(mask.shape) == rows  # pyright: ignore[reportUnnecessaryIsInstance]
    ):
        raise invalid_value(
            call,
            "mask",
            wanted=f"a boolean tensor of shape {rows}, True for sampled tokens",
            got=described(mask),
            instead="mask=loss_mask.bool()",
        )


def _check_tokens(call: str, places: Tensor, inside: Tensor, counts: Tensor, *, needs_kept: bool) -> None:
    """Refuse sampled tokens that are not classes, or not among the engine's kept tokens."""
    classes = inside.shape[-1]
    unknown = ((places < 0) | (places >= classes)).squeeze(-1)
    if bool(unknown.any()):
        raise invalid_value(
            call,
            "tokens",
            wanted=f"tokens from 0 to {classes - 1}",
            got=str(int(places.squeeze(-1)[unknown][0])),
            instead="mask=tokens >= 0, if negative tokens mark positions that do not count",
        )
    if not needs_kept:
        return
    outside = counts & ~inside.gather(-1, places).squeeze(-1)
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        raise invalid_value(
            call,
            "kept",
            wanted="the kept tokens of each position, with the sampled token among them",
            got=f"a set without the sampled token {int(places.squeeze(-1)[tuple(place)])} at position {tuple(place)}",
            instead="mask=loss_mask.bool() if that position was not sampled; kept[:, 1:] if the sets are one position "
            "late",
        )
