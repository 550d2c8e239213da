"""The verb: `kl_divergence`, `divergence`, `kl_estimate`, and `register_kl` for rules of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence as torch_kl_divergence

from kullback.errors import ArgumentTypeError, ArgumentValueError, NoRuleError, RegistrationError, explain
from kullback.estimate import Estimate
from kullback.generators import KL, Divergence, Jeffreys, ReverseKL
from kullback.kernels import rounding_error, row_divergence
from kullback.representations import Counts, Representation, Samples

__all__ = ["divergence", "kl_divergence", "kl_estimate", "register_kl"]

Operand = Representation | Samples | Distribution
Rule = Callable[..., Tensor]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[tuple[type, type], Rule] = {}


def kl_divergence(p: Operand, q: Operand, *, base: float | None = None) -> Tensor:
    r"""Compute the Kullback-Leibler divergence from P to Q, one value for each element of the batch.

    .. math:: KL(P \| Q) = E_P[\log p - \log q]

    Never negative, never NaN, exactly 0 for P = Q. +inf where P has mass that Q has not.

    Arguments:
        p: P: `Logits`, `LogProbs`, `Probs` or `Counts` of shape (..., classes), or a torch distribution.
        q: Q: any of the first four with as many classes, or a torch distribution if P is one. Batch shapes broadcast.
        base: the base of the logarithm: 2 gives bits. The default gives nats.

    Returns:
        the divergences, shape: the broadcast batch shape; dtype: that of the arguments. Computed in float64
        and rounded once, except two logits or log-probabilities of 32 bits or less where the native kernels run:
        these compute in float32 and sum in float64.

    Raises:
        ArgumentTypeError: an argument is a bare tensor or no distribution at all.
        ArgumentValueError: the numbers of classes, dtypes, devices or batch shapes do not match.
        NoRuleError: nothing is known for this pair of types.

    Gradient:
        flows to both arguments; 0 for P = Q, at a class masked with ``-inf`` on both sides, and at a probability that
        is exactly 0. It is never NaN.

    Example:
        >>> import torch
        >>> from kullback import Logits, Probs, kl_divergence
        >>> teacher, student = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1.0, 0.5, -1.0]])
        >>> kl_divergence(Logits(teacher), Logits(student))
        tensor([0.1718])
        >>> kl_divergence(Probs([1.0, 0.0]), Probs([0.5, 0.5]), base=2)
        tensor(1.)

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """
    return _value("kl_divergence", p, q, KL(), base)


def divergence(p: Operand, q: Operand, kind: Divergence, *, base: float | None = None) -> Tensor:
    r"""Compute the divergence `kind` between P and Q, one value for each element of the batch.

    .. math:: D_f(P \| Q) = \sum_i q_i f(p_i / q_i)

    Arguments:
        p: P, as in `kl_divergence`.
        q: Q, as in `kl_divergence`.
        kind: which divergence, such as ``KL()``, ``JensenShannon(beta=0.5)`` or ``Renyi(alpha=2)``. Of two torch
            distributions only ``KL()``, ``ReverseKL()`` and ``Jeffreys()`` can be had.
        base: the base of the logarithm, for the kinds that have one: 2 gives bits. The default gives nats.

    Returns:
        the divergences, shape: the broadcast batch shape; dtype: that of the arguments.

    Raises:
        ArgumentTypeError: an argument is a bare tensor or no distribution at all, or `kind` is no divergence.
        ArgumentValueError: shapes, dtypes or devices do not match, or `base` is given for a kind without logarithm.
        NoRuleError: nothing is known for this pair of types.

    Gradient:
        flows to both arguments, and is never NaN; each kind states its edges.

    Example:
        >>> import torch
        >>> from kullback import JensenShannon, Probs, TotalVariation, divergence
        >>> p, q = Probs([1.0, 0.0]), Probs([0.5, 0.5])
        >>> divergence(p, q, TotalVariation()), divergence(p, q, JensenShannon(), base=2)
        (tensor(0.5000), tensor(0.3113))

    References:
        A General Class of Coefficients of Divergence of One Distribution from Another (Ali and Silvey, 1966)
    """
    if not isinstance(kind, Divergence):
        raise ArgumentTypeError(
            explain(
                "divergence",
                "kind",
                wanted="a divergence",
                got=f"{kind!r}",
                instead="kind=KL(), kind=JensenShannon(beta=0.5) or another value of kullback's divergences",
            )
        )
    return _value("divergence", p, q, kind, base)


def kl_estimate(p: Operand, q: Operand, *, base: float | None = None) -> Estimate:
    r"""Compute the Kullback-Leibler divergence from P to Q, and say how it was obtained and how far it may be off.

    .. math:: KL(P \| Q) = E_P[\log p - \log q]

    Arguments:
        p: P, as in `kl_divergence`.
        q: Q, as in `kl_divergence`.
        base: the base of the logarithm: 2 gives bits. The default gives nats.

    Returns:
        an `Estimate`: ``value`` is what `kl_divergence` returns, always computed in float64; ``error`` bounds the
        rounding in it, given the inputs as they are;
        ``method`` is ``"summation"`` for finite distributions, ``"closed_form"`` for a rule.

    Raises:
        ArgumentTypeError, ArgumentValueError, NoRuleError: as `kl_divergence`.

    Gradient:
        flows through ``value``, as in `kl_divergence`; ``error`` has none.

    Example:
        >>> from torch.distributions import Normal
        >>> from kullback import kl_estimate
        >>> estimate = kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0))
        >>> estimate.value, estimate.method
        (tensor(0.5000), 'closed_form')

    References:
        Accuracy and Stability of Numerical Algorithms, chapter 4 (Higham, 2002)
    """
    value = _value("kl_estimate", p, q, KL(), base, exact=True)
    if isinstance(p, Representation) and isinstance(q, Representation):
        p, q = _comparable("kl_estimate", p, q)
        with torch.no_grad():
            error = rounding_error(KL(), p, q, value) / _unit("kl_estimate", KL(), base)
        return Estimate(value, error, "summation")
    return Estimate(value, None, "closed_form")


def register_kl(type_p: type, type_q: type) -> Callable[[RuleT], RuleT]:
    r"""Register a function as the rule for the divergence of two types of distribution, as a decorator.

    .. math:: \text{rule}(p, q) = KL(P \| Q)

    The most specific rule wins: one for (A, B) serves all subclasses of A and B, unless another is registered for
    types closer to theirs. Rules registered here come before torch's own, and torch's registry is not touched.

    Arguments:
        type_p: the type of P, a subclass of `torch.distributions.Distribution`.
        type_q: the type of Q, likewise.

    Returns:
        a decorator that registers a function of two distributions, which returns a tensor of the broadcast batch
        shape in nats, and hands it back unchanged.

    Raises:
        ArgumentTypeError: a type is not a subclass of `torch.distributions.Distribution`.
        RegistrationError: there is a rule for exactly this pair, or the pair would make another one ambiguous.

    Gradient:
        what the rule's own operations give.

    Example:
        >>> import torch
        >>> from torch.distributions import Normal
        >>> from kullback import kl_divergence, register_kl
        >>> class Tick(Normal):
        ...     "A Normal of known width."
        >>> @register_kl(Tick, Tick)
        ... def kl_tick_tick(p, q):
        ...     return ((p.loc - q.loc) / q.scale) ** 2 / 2
        >>> kl_divergence(Tick(0.0, 1.0), Tick(2.0, 1.0))
        tensor(2.)

    References:
        TensorFlow Distributions (Dillon et al., 2017)
    """
    for argument, kind in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise ArgumentTypeError(
                explain(
                    "register_kl",
                    argument,
                    wanted="a subclass of torch.distributions.Distribution",
                    got=repr(kind),
                    instead="@register_kl(MyDistribution, MyDistribution) with the two classes",
                )
            )
    if (type_p, type_q) in _RULES:
        raise RegistrationError(
            explain(
                "register_kl",
                "type_p, type_q",
                wanted="a pair without a rule",
                got=f"{_names(type_p, type_q)}, which {_RULES[type_p, type_q].__qualname__} serves",
                instead="a subclass of your own and register that, or leave the rule that is there",
            )
        )
    _refuse_ambiguity(type_p, type_q)

    def register(rule: RuleT) -> RuleT:
        _RULES[type_p, type_q] = rule
        return rule

    return register


def _refuse_ambiguity(type_p: type, type_q: type) -> None:
    """Refuse a pair when some types would match it and a known one, and neither pair is the more specific."""
    for known_p, known_q in _RULES:
        first, second = _narrower(type_p, known_p), _narrower(type_q, known_q)
        if (
            first is None
            or second is None
            or (first, second) in _RULES
            or (first, second) == (type_p, type_q)
        ):
            continue
        raise RegistrationError(
            explain(
                "register_kl",
                "type_p, type_q",
                wanted="a pair that leaves one most specific rule for every two types",
                got=f"{_names(type_p, type_q)}, which matches {_names(first, second)} no better than the "
                f"rule for {_names(known_p, known_q)}",
                instead=f"@register_kl({first.__name__}, {second.__name__}) first, then this one",
            )
        )


def _narrower(a: type, b: type) -> type | None:
    if issubclass(a, b):
        return a
    return b if issubclass(b, a) else None


def _names(p: type, q: type) -> str:
    return f"({p.__name__}, {q.__name__})"


def _find_rule(call: str, type_p: type, type_q: type) -> Rule | None:
    """Return the most specific registered rule for a pair of types, None where there is none."""
    matches = [(a, b) for a, b in _RULES if issubclass(type_p, a) and issubclass(type_q, b)]
    best = [
        (a, b)
        for a, b in matches
        if all(issubclass(a, other_a) and issubclass(b, other_b) for other_a, other_b in matches)
    ]
    if matches and not best:
        raise NoRuleError(
            explain(
                call,
                "p, q",
                wanted=f"one most specific rule for {_names(type_p, type_q)}",
                got="several, none more specific than the others: "
                + ", ".join(_names(a, b) for a, b in matches),
                instead=f"@register_kl({type_p.__name__}, {type_q.__name__}) to decide",
            )
        )
    return _RULES[best[0]] if best else None


def _value(
    call: str, p: object, q: object, kind: Divergence, base: float | None, *, exact: bool = False
) -> Tensor:
    unit = _unit(call, kind, base)
    for argument, operand in (("p", p), ("q", q)):
        if not isinstance(operand, Representation | Samples | Distribution):
            raise _refusal(call, argument, operand)
    if isinstance(p, Representation) and isinstance(q, Representation):
        value = row_divergence(kind, *_comparable(call, p, q), exact=exact)
    elif isinstance(p, Distribution) and isinstance(q, Distribution):
        value = _between_distributions(call, p, q, kind)
    else:
        raise NoRuleError(
            explain(
                call,
                "p, q",
                wanted="two of Logits, LogProbs, Probs and Counts, or two torch distributions",
                got=f"{type(p).__name__} and {type(q).__name__}, for which there is no rule",
                instead=f"{call}(Logits(d.logits), ...) for a Categorical d; histograms of draws as Counts(...)",
            )
        )
    return value if unit == 1 else value / unit


def _between_distributions(call: str, p: Distribution, q: Distribution, kind: Divergence) -> Tensor:
    if isinstance(kind, KL):
        return _kl_by_rule(call, p, q)
    if isinstance(kind, ReverseKL):
        return _kl_by_rule(call, q, p)
    if isinstance(kind, Jeffreys):
        return _kl_by_rule(call, p, q) + _kl_by_rule(call, q, p)
    raise NoRuleError(
        explain(
            call,
            "kind",
            wanted="KL(), ReverseKL() or Jeffreys() between two torch distributions",
            got=repr(kind),
            instead=f"{call}(Logits(p.logits), Logits(q.logits), {kind!r}) if both are Categorical",
        )
    )


def _kl_by_rule(call: str, p: Distribution, q: Distribution) -> Tensor:
    rule = _find_rule(call, type(p), type(q))
    try:
        return rule(p, q) if rule else torch_kl_divergence(p, q)
    except NotImplementedError as error:
        names = _names(type(p), type(q))
        raise NoRuleError(
            explain(
                call,
                "p, q",
                wanted="a pair of distributions with a known divergence",
                got=f"{names}, for which neither kullback nor torch has a rule",
                instead=f"@register_kl{names} above a function of p and q, if you know the formula",
            )
        ) from error


def _refusal(call: str, argument: str, operand: object) -> ArgumentTypeError:
    wrap = "wrap it: Logits(x), LogProbs(x), Probs(x), Counts(x) or Samples(x)"
    if isinstance(operand, Tensor):
        return ArgumentTypeError(f"{call}({argument}=...): a tensor does not say what it holds; {wrap}")
    return ArgumentTypeError(
        f"{call}({argument}=...): wanted a distribution; got {type(operand).__name__}. Numbers do not say what they "
        f"hold; {wrap}, or pass a torch.distributions object"
    )


def _unit(call: str, kind: Divergence, base: float | None) -> float:
    """Return how many nats the unit of the answer has."""
    if base is None:
        return 1.0
    if not kind.logarithmic:
        raise ArgumentValueError(
            explain(
                call,
                "base",
                wanted="no base for a divergence without a logarithm",
                got=f"base={base!r} with {kind!r}",
                instead=f"{call}(...) without base",
            )
        )
    if not (0 < base < math.inf) or base == 1:
        raise ArgumentValueError(
            explain(
                call,
                "base",
                wanted="a positive number other than 1",
                got=repr(base),
                instead="base=2 for bits, base=10 for hartleys, or no base for nats",
            )
        )
    return math.log(base)


def _comparable(call: str, p: Representation, q: Representation) -> tuple[Representation, Representation]:
    """Bring labelled counts to the same classes, and refuse what cannot be compared."""
    if isinstance(p, Counts) and isinstance(q, Counts):
        p, q = p.aligned_with(q)
    _same_device(call, p, q)
    _same_dtype(call, p, q)
    if p.classes != q.classes:
        raise _mismatch(
            call,
            wanted="as many classes in q as in p",
            got=f"{p.classes} in p of shape {tuple(p.tensor.shape)}, {q.classes} in q of shape {tuple(q.tensor.shape)}",
            instead="cut both to the classes they share, or name the class dimension with dim=",
        )
    try:
        torch.broadcast_tensors(p.weights(), q.weights())
    except RuntimeError:
        raise _mismatch(
            call,
            wanted="batch shapes that broadcast",
            got=f"{tuple(p.batch_shape)} in p and {tuple(q.batch_shape)} in q, classes left out",
            instead="x[:, None] on one side to compare all with all",
        ) from None
    return p, q


def _mismatch(call: str, *, wanted: str, got: str, instead: str) -> ArgumentValueError:
    return ArgumentValueError(explain(call, "p, q", wanted=wanted, got=got, instead=instead))


def _same_device(call: str, p: Representation, q: Representation) -> None:
    if p.tensor.device != q.tensor.device:
        raise _mismatch(
            call,
            wanted="both on one device",
            got=f"{p.tensor.device} and {q.tensor.device}",
            instead=f"{call}(p, {type(q).__name__}(x.to({str(p.tensor.device)!r})))",
        )


def _same_dtype(call: str, p: Representation, q: Representation) -> None:
    dtypes = [
        side.tensor.dtype for side in (p, q) if side.tensor.is_floating_point()
    ]  # integer counts go with any
    if len(set(dtypes)) > 1:
        raise _mismatch(
            call,
            wanted="one dtype",
            got=f"{dtypes[0]} in p and {dtypes[1]} in q",
            instead=f"{call}({type(p).__name__}(x.to({dtypes[1]})), q), or the other way round",
        )
