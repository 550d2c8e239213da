"""The Kullback-Leibler divergence of policies, estimated from the log-probabilities of sampled actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, OneOf
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import check_dense, number_from, recordable
from kullback.errors import invalid_type, invalid_value, safe_repr
from kullback.generators.divergence import NEAR, SERIES_TERMS, power_series
from kullback.losses.positions import position_weights
from kullback.losses.reduction import Reduction, check_reduction, reduce_terms
from kullback.losses.truncated_sampling import Support, within

Estimator = Literal["k1", "k2", "k3"]
Value = Literal["k1", "k3"]
Importance = Literal["action", "prefix", "sequence"]
Direction = Literal["forward", "reverse"]

# The coefficients of d^2, d^3, ... in the power series of e^d - 1 - d.
_SERIES = [1 / math.factorial(n) for n in range(2, 2 + SERIES_TERMS)]

# A shift is refused if it leaves at least 16 tokens to compare and removes nine tenths of the difference. Without the
# shift, the sides must differ by more than 0.05 nats a token. Unrelated neighbors of 16 tokens never come so close by
# chance.
_FEWEST_SHIFTED, _LEAST_SHIFTED, _MOST_LEFT = 16, 0.05, 0.1

_DIRECTION = OneOf(
    get_args(Direction),
    example="forward",
    instead="direction='forward' for KL(P || Q) with actions from P, or direction='reverse' for KL(Q || P) with "
    "actions from Q",
)
_FROM_LOG_PROBS = Arguments(
    "kl_from_log_probs",
    direction=_DIRECTION,
    estimator=OneOf(get_args(Estimator), example="k1", instead="estimator='k1', which has no bias"),
)
_SURROGATE = Arguments(
    "kl_surrogate",
    direction=_DIRECTION,
    value=OneOf(get_args(Value), example="k3", instead="value='k3', which is never negative"),
    importance=OneOf(get_args(Importance), example="action"),
)


@by_name()
def kl_from_log_probs(
    log_p: Tensor,
    log_q: Tensor,
    *,
    direction: Direction = "forward",
    estimator: Estimator = "k1",
    support: Support | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "none",
) -> Tensor:
    r"""Estimate KL(P || Q), or KL(Q || P), from sampled actions and their log-probabilities under both.

    For ``direction="forward"``, which is KL(P || Q) with actions sampled from P, the estimators are

    .. math:: k_1 = -\log r, \quad k_2 = \tfrac12 (\log r)^2, \quad k_3 = r - 1 - \log r, \qquad
        r = \frac{q(a)}{p(a)},\; a \sim P

    ``direction="reverse"`` exchanges P and Q everywhere. Papers on reinforcement learning name the direction from the
    side of the policy. With P the policy and Q the reference, the names are:

    | papers | divergence | actions sampled from | argument |
    |---|---|---|---|
    | reverse KL | KL(policy ‖ reference) | the policy | ``direction="forward"`` |
    | forward KL | KL(reference ‖ policy) | the reference | ``direction="reverse"`` |

    As values, to report or to subtract from a reward, the estimators differ:

    * ``"k1"`` is unbiased, but negative wherever q > p. The mean of k1 over a few samples can also be negative.
    * ``"k2"`` is never negative, but biased, usually upwards: by 0.02 at a divergence of 0.22, by 0.54 at a divergence
      of 1.23.
    * ``"k3"`` is never negative, and unbiased if P has mass wherever Q has mass. If P and Q are close, k3 has a lower
      variance than k1 (standard deviation 0.31 against 0.65 at a divergence of 0.22). If P and Q are not close, k3 has
      a much higher variance than k1 (standard deviation 6.9 against 1.42 at a divergence of 1.23). The variance of k3
      may be infinite, because r is unbounded.

    These numbers are exact expectations for one pair of distributions with 2000 classes at each divergence. If you have
    the logits of all classes, ``divergence(Logits(...), Logits(...), KL())`` at the sampled positions is better than
    any of these estimators. That divergence has no sampling error at a position, and varies only from position to
    position.

    The gradient of an estimate is not an estimate of the gradient. To train on KL, differentiate `kl_surrogate`.

    Arguments:
        log_p: log-probabilities, or log-densities, of the actions under P.
        log_q: log-probabilities of the same actions under Q, the same shape.
        direction: ``"forward"`` for KL(P || Q), with actions sampled from P; ``"reverse"`` for KL(Q || P), with actions
            sampled from Q.
        estimator: ``"k1"``, ``"k2"`` or ``"k3"``.
        support: the masses of the tokens that truncated sampling kept (top-k, top-p, min-p), if the actions were
            sampled so. P and Q are then the distributions within the kept tokens.
        mask: a boolean tensor of the same shape, True for actions that count. Other actions may have any values,
            including NaN. A mask that is False everywhere raises a warning, on the CPU only.
        reduction: ``"none"`` returns one value for each action, 0 for an action that does not count. ``"sum"`` returns
            the sum, ``"mean"`` the mean over counted actions, ``"batchmean"`` the sum divided by ``log_p.shape[0]``.

    Returns:
        the estimates in nats, in float32 or better: a scalar, or the shape of `log_p` for ``"none"``. An action with
        q = 0 < p gives +inf. An action with p = 0 < q, which P never samples, gives -inf for k1 and +inf for k2 and k3.
        For ``"reverse"``, exchange p and q in these rules. Equal log-probabilities give 0, even if both are infinite.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: the shapes differ, or `direction`, `estimator` or `reduction` is unknown.

    Gradient:
        for ``"forward"``, the derivative of the value with respect to log p is 1 for k1, log p - log q for k2, and 1 -
        q/p for k3. The derivative with respect to log q is the negative of the derivative with respect to log p.
        Consider the average over actions sampled from P of the gradient with respect to the parameters of P. The
        average is 0 for k1, the gradient of KL(P || Q) for k2, and the gradient of KL(Q || P) for k3. ``"reverse"``
        exchanges P and Q. An infinite estimate has gradient 0.

    Example:
        >>> import torch
        >>> from kullback.functional import kl_from_log_probs
        >>> log_p, log_q = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
        >>> kl_from_log_probs(log_p, log_q)
        tensor([ 0.5000, -1.0000])
        >>> kl_from_log_probs(log_p, log_q, estimator="k3", reduction="mean")
        tensor(0.4124)
        >>> kl_from_log_probs(log_p, log_q, direction="reverse")
        tensor([-0.5000,  1.0000])

    References:
        Approximating KL Divergence (Schulman, 2020)
        On a few pitfalls in KL divergence gradient estimation for RL (Tang and Munos, 2025)
    """
    call = "kl_from_log_probs"
    word = check_reduction(call, reduction)
    _FROM_LOG_PROBS.check(direction=direction, estimator=estimator)
    (values,), weights = estimates(call, log_p, log_q, (estimator,), mask, direction, support)
    return _reduce(values, weights, word)


def estimates(
    call: str,
    log_p: Tensor,
    log_q: Tensor,
    estimators: Sequence[Estimator],
    mask: Tensor | None,
    direction: Direction = "forward",
    support: Support | None = None,
) -> tuple[list[Tensor], Tensor | None]:
    """Return the values of each estimator, and the weights of the actions, 1 or 0; None if all count."""
    check_log_probs(call, log_p, log_q)
    log_p, log_q = _within_both(call, recordable(log_p), recordable(log_q), support, mask)
    weights = position_weights(call, log_p.shape, mask, None, None, -100, log_p.device, stacklevel=6)
    first, second = _in_order(direction, log_p, log_q)
    log_ratio = -_log_p_over_q(first, second, mask)
    return [_estimate(log_ratio, estimator) for estimator in estimators], weights


@by_name()
def kl_surrogate(
    log_p: Tensor,
    log_q: Tensor,
    *,
    direction: Direction,
    value: Value = "k1",
    log_ratio: Tensor | None = None,
    importance: Importance = "action",
    clip_log_ratio: float | tuple[float, float] | None = None,
    support: Support | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Estimate KL from sampled actions by an expression whose expected gradient is the gradient of KL.

    For ``direction="forward"``, with actions from a behavior policy B and the importance weight w = p(a)/b(a), value
    and gradient are

    .. math:: \text{value } w\, k_1 \text{ or } w\, k_3, \quad k_1 = \log\frac{p(a)}{q(a)},\;
        k_3 = \frac{q(a)}{p(a)} - 1 + k_1, \qquad
        \text{gradient } w \bigl(k_1 \nabla \log p(a) - \nabla \log q(a)\bigr)

    ``direction="reverse"`` exchanges P and Q everywhere. Papers on reinforcement learning call KL(policy || reference)
    the reverse KL. With P the policy, the reverse KL is ``"forward"``; `kl_from_log_probs` has a table. For
    ``"forward"``, value and gradient are unbiased if B has mass wherever P has mass. For k3, B must also have mass
    wherever Q has mass. The gradient is the gradient of KL for either `value`. The derivatives of k1 and k3 themselves
    are other gradients, which `kl_from_log_probs` lists.

    P, Q and B are the distributions of a single action, which is one entry of the tensors. If each token of a sequence
    is an action, the gradient of the values' sum over tokens estimates the gradient of the divergences' sum over the
    visited prefixes. This gradient ignores that the policy also decides which prefixes are visited. For the
    divergence of sequences, first sum the log-probabilities of each sequence. B decides which prefixes are visited,
    unless `importance` reweights the prefixes.

    Arguments:
        log_p: log-probabilities, or log-densities, of the actions under P.
        log_q: log-probabilities of the same actions under Q, the same shape.
        direction: ``"forward"`` for KL(P || Q), with actions sampled from P; ``"reverse"`` for KL(Q || P), with actions
            sampled from Q.
        value: ``"k1"``, or ``"k3"``, which is never negative and varies less than k1 if P and Q are close.
        log_ratio: log w, if the actions were sampled from another distribution B. With b the probability under B, log w
            is log p - log b for ``"forward"``, and log q - log b for ``"reverse"``. `log_ratio` is treated as a
            constant.
        importance: how to compute the weight of an action, with the tokens of a sequence along the last dimension.
            ``"action"`` uses the action's own ratio. ``"prefix"`` uses the product of the ratios up to the action: this
            product also reweights the prefixes as if P had visited them. ``"sequence"`` uses the product of all ratios
            of the sequence, with the same expectation and a larger variance than ``"prefix"``. With ``"prefix"`` or
            ``"sequence"``, the sum over tokens estimates the divergence of sequences. Tokens that `mask` excludes have
            no ratio.
        clip_log_ratio: c, to clip log w to [-c, c], or a pair (least, largest). An action that P never takes keeps
            weight 0. Clipping reduces the variance of the weight and biases the value and the gradient.
        support: the masses of the tokens that truncated sampling kept (top-k, top-p, min-p), if the actions were
            sampled so. P and Q are then the distributions within the kept tokens;
            `log_importance_ratio` gives `log_ratio` within them.
        mask: a boolean tensor of the same shape, True for actions that count. Other actions may have any values,
            including NaN. A mask that is False everywhere raises a warning, on the CPU only.
        reduction: as in `kl_from_log_probs`.

    Returns:
        the values in nats, in float32 or better: a scalar, or the shape of `log_p` for ``"none"``. An action of weight
        0 gives 0.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: the shapes differ; `direction`, `value`, `importance` or `reduction` is unknown; or
            `importance` or `clip_log_ratio` is given without `log_ratio`.

    Gradient:
        the gradient stated above, to each of `log_p` and `log_q` that requires a gradient. Second derivatives are
        meaningless. The gradient is 0 for an action if w or w k1 is infinite.

    Example:
        >>> import torch
        >>> from kullback.functional import kl_surrogate
        >>> log_p = torch.tensor([-1.0, -2.0], requires_grad=True)
        >>> loss = kl_surrogate(log_p, torch.tensor([-1.5, -1.0]), direction="forward", value="k3")
        >>> loss.backward()
        >>> loss.detach(), log_p.grad
        (tensor(0.4124), tensor([ 0.2500, -0.5000]))

    References:
        Approximating KL Divergence (Schulman, 2020)
        On a few pitfalls in KL divergence gradient estimation for RL (Tang and Munos, 2025)
    """
    call = "kl_surrogate"
    word = check_reduction(call, reduction)
    _SURROGATE.check(direction=direction, value=value, importance=importance)
    check_log_probs(call, log_p, log_q)
    if log_ratio is not None:
        check_log_probs(call, log_p, log_ratio, second="log_ratio")
    limits = _check_weighting(call, log_ratio, importance, clip_log_ratio)
    log_p, log_q = _within_both(call, recordable(log_p), recordable(log_q), support, mask)
    weights = position_weights(call, log_p.shape, mask, None, None, -100, log_p.device, stacklevel=5)
    first, second = _in_order(direction, log_p, log_q)
    ratio = None if log_ratio is None else _log_weight(log_ratio, importance, limits, mask)
    return _reduce(_surrogate(first, second, value, ratio, mask), weights, word)


@by_name()
def log_importance_ratio(
    log_p: Tensor, log_b: Tensor, *, support: Support | None = None, mask: Tensor | None = None
) -> Tensor:
    r"""Compute the logarithm of the importance weight of actions that a behavior policy B sampled.

    .. math:: \log w = \log\frac{p(a)}{S_p(K)} - \log\frac{b(a)}{S_b(K)}

    Without `support`, both masses are 1. If B samples with top-k, top-p or min-p, the ratio without `support` is wrong
    by :math:`S_p(K)` or by :math:`S_b(K)`, and importance sampling is biased.

    Arguments:
        log_p: log-probabilities, or log-densities, of the actions under P.
        log_b: log-probabilities of the same actions under B, the same shape.
        support: the masses of the tokens that B's sampling kept; B is the Q of `Support`.
        mask: a boolean tensor of the same shape, True for actions that count. Other actions may have any values.

    Returns:
        log w, in float32 or better, the shape of `log_p`; 0 where `mask` is False.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: the shapes differ, or a mass contradicts a log-probability.

    Gradient:
        1 for log p and -1 for log b; the opposite for their masses.

    Example:
        >>> import torch
        >>> from kullback.functional import Support, log_importance_ratio
        >>> log_p, log_b = torch.tensor([0.3]).log(), torch.tensor([0.4]).log()
        >>> log_importance_ratio(log_p, log_b, support=Support(p=torch.tensor([0.6]).log())).exp()  # log_b is within
        tensor([1.2500])

    References:
        Monte Carlo Statistical Methods, section 3.3 (Robert and Casella, 2004)
    """
    call = "log_importance_ratio"
    check_log_probs(call, log_p, log_b, second="log_b")
    position_weights(call, log_p.shape, mask, None, None, -100, log_p.device)
    log_p, log_b = _within_both(call, recordable(log_p), recordable(log_b), support, mask)
    return _log_p_over_q(log_p, log_b, mask)


def _within_both(
    call: str, log_p: Tensor, log_q: Tensor, support: Support | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of both sides within the kept tokens."""
    if support is None:
        return log_p, log_q
    if not isinstance(support, Support):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_type(
            call,
            "support",
            wanted="a Support, with the logarithms of the kept masses",
            got=type(support).__name__,
            instead="support=Support(p=sampling_log_probs(logits, tokens, kept=kept).log_mass)",
        )
    return (
        within(call, log_p, support.p, mask, "support.p"),
        within(call, log_q, support.q, mask, "support.q"),
    )


def _log_weight(
    log_ratio: Tensor, importance: Importance, limits: tuple[float, float] | None, mask: Tensor | None
) -> Tensor:
    """Return the clipped logarithms of the importance weights from log(p/b) of each action."""
    logs = _at_least_float32(log_ratio.detach())
    if importance != "action" and logs.ndim:
        logs = logs if mask is None else torch.where(mask, logs, 0)
        # A product of ratios p/b is 0 if p = 0 for one of its actions, even if b = 0 for another of its actions.
        never = logs == -torch.inf
        total = torch.where(never, 0, logs).cumsum(-1)
        never = never.cumsum(-1) > 0
        if importance == "sequence":
            total, never = (x[..., -1:].expand_as(x) for x in (total, never))
        logs = torch.where(never, -torch.inf, total)
    if limits is not None:
        logs = torch.where(logs == -torch.inf, logs, logs.clamp(*limits))
    return logs


def _surrogate(
    first: Tensor, second: Tensor, value_of: Value, log_weight: Tensor | None, mask: Tensor | None
) -> Tensor:
    quotient = _log_p_over_q(first, second, mask).detach()
    weight = torch.ones_like(quotient) if log_weight is None else log_weight.exp()
    if mask is not None:
        weight = torch.where(mask, weight, 0)
    value = torch.where((weight == 0) | (quotient == 0), 0, weight * _estimate(-quotient, value_of))
    finite = (weight * quotient).isfinite() & weight.isfinite()
    weight, quotient = torch.where(finite, weight, 0), torch.where(finite & (weight != 0), quotient, 0)
    # Each score has the value 0, and its gradient is the gradient of a log-probability.
    logs = [torch.where(weight == 0, 0, _at_least_float32(x)) for x in (first, second)]
    scores = [torch.where(x.detach().isfinite(), x - x.detach(), 0) for x in logs]
    return value + weight * (quotient * scores[0] - scores[1])


def refuse_shifted(
    call: str,
    log_p: Tensor,
    log_q: Tensor,
    mask: Tensor | None,
    *,
    names: tuple[str, str] = ("log_p", "log_q"),
    instead: str = "{name}[..., 1:] with {other}[..., :-1], and the mask of these tokens",
) -> None:
    """Raise if one side belongs to the tokens one position before; tensors on the CPU only.

    An engine may give the log-probability of token i at position i, and a trainer at position i - 1. Shifted sides
    differ as much as unrelated numbers do. A shift by one position then removes nearly all of the difference.
    """
    if log_p.device.type != "cpu" or torch.compiler.is_compiling() or log_p.shape[-1] < 2:
        return
    log_p, log_q = log_p.detach(), log_q.detach()
    counts = log_p.isfinite() & log_q.isfinite()
    counts = counts if mask is None else counts & mask

    def difference(p: slice, q: slice) -> tuple[float, int]:
        both = counts[..., p] & counts[..., q]
        size = int(both.sum())
        total = torch.where(both, (log_p[..., p] - log_q[..., q]).abs(), 0).sum()
        return float(total) / max(size, 1), size

    own, _ = difference(slice(None), slice(None))
    early, late = slice(None, -1), slice(1, None)
    for (name, other), p, q in ((names[::-1], early, late), (names, late, early)):
        shifted, size = difference(p, q)
        if size >= _FEWEST_SHIFTED and own > _LEAST_SHIFTED and shifted < own * _MOST_LEFT:
            raise invalid_value(
                call,
                name,
                wanted=f"the log-probabilities of the same tokens as in {other}",
                got="the log-probabilities of the tokens one position before: the sides differ by "
                f"{own:.3g} on average, and by {shifted:.3g} after a shift by one",
                instead=instead.format(name=name, other=other),
            )


def _estimate(log_ratio: Tensor, estimator: Estimator) -> Tensor:
    """Return the values of the estimator k1, k2 or k3 for `log_ratio`, which is log q - log p."""
    bounded = log_ratio.isfinite() | log_ratio.isnan()
    d = torch.where(bounded, log_ratio, 0)
    if estimator == "k1":
        return torch.where(bounded, -d, -log_ratio.detach())
    if estimator == "k2":
        return torch.where(bounded, d * d / 2, torch.inf)
    near = d.abs() < NEAR
    close = power_series(_SERIES, torch.where(near, d, 0))
    overflows = d > math.log(torch.finfo(d.dtype).max)
    far = torch.where(near | overflows, 0, d)
    direct = torch.where(overflows, torch.inf, torch.expm1(far) - far)
    return torch.where(bounded, torch.where(near, close, direct), torch.inf)


def _log_p_over_q(log_p: Tensor, log_q: Tensor, mask: Tensor | None) -> Tensor:
    """Return log p - log q. Where both are the same infinity or `mask` is False, the result and its gradient are 0."""
    left_out = (log_p == log_q) & log_p.isinf()
    if mask is not None:
        left_out = left_out | ~mask
    return torch.where(left_out, 0, _at_least_float32(log_p)) - torch.where(
        left_out, 0, _at_least_float32(log_q)
    )


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _reduce(values: Tensor, weights: Tensor | None, word: Reduction) -> Tensor:
    if weights is not None:
        values = torch.where(weights == 0, 0, values)
    if word != "mean":
        return reduce_terms(values, word, batch_size=max(values.shape[0] if values.ndim else 1, 1))
    return values.sum() / (max(values.numel(), 1) if weights is None else weights.sum().clamp(min=1))


def _in_order(direction: Direction, log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities as a pair, first those under the sampled distribution."""
    return (log_p, log_q) if direction == "forward" else (log_q, log_p)


def _check_weighting(
    call: str, log_ratio: Tensor | None, importance: str, clip: object
) -> tuple[float, float] | None:
    """Return the limits (low, high) of log w, or None without `clip`; raise if the arguments do not fit."""
    if log_ratio is None and (importance != "action" or clip is not None):
        raise invalid_value(
            call,
            "importance" if importance != "action" else "clip_log_ratio",
            wanted="log_ratio=, the logarithm of the importance weight, together with it",
            got=repr(importance) if importance != "action" else safe_repr(clip),
            instead="log_ratio=log_p.detach() - log_b",
        )
    if clip is None:
        return None
    pair = cast("tuple[object, ...]", clip) if isinstance(clip, tuple) else (clip, clip)
    low, high = (number_from(x) for x in pair) if len(pair) == 2 else (math.nan, math.nan)
    low = low if isinstance(clip, tuple) else -low
    if not low < high:
        raise invalid_value(
            call,
            "clip_log_ratio",
            wanted="a positive number, or the least and the largest log w",
            got=safe_repr(clip),
            instead="clip_log_ratio=20.0 or clip_log_ratio=(-math.inf, 2.0)",
        )
    return low, high


def check_log_probs(call: str, log_p: Tensor, other: Tensor, second: str = "log_q") -> None:
    """Raise unless both are floating-point tensors of the same shape on the same device."""
    for name, x in (("log_p", log_p), (second, other)):
        if isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            check_dense(call, name, x)
        if not isinstance(x, Tensor) or not x.is_floating_point():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise invalid_type(
                call,
                name,
                wanted="a floating-point tensor, one log-probability for each action",
                got=f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__,  # pyright: ignore[reportUnnecessaryIsInstance]
                instead=f"{name}=logits.log_softmax(-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)",
            )
    for name, of_p, of_other in (
        ("shape", tuple(log_p.shape), tuple(other.shape)),
        ("device", log_p.device, other.device),
    ):
        if of_p != of_other:
            wanted, got = f"a value for each action of log_p, {name} {of_p}", f"{name} {of_other}"
            instead = f"{second} of the same actions as log_p, of the same {name}"
            raise invalid_value(call, second, wanted=wanted, got=got, instead=instead)
