"""The rules by pairs of types: closed forms, reductions and those that users register; the most specific wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from kullback.errors import NoRuleError, RegistrationError, explain, invalid_type, safe_repr
from kullback.estimate import Estimate
from kullback.pairs.overrides import class_overrides_density

__all__ = [
    "ClosedForm",
    "UserRule",
    "closed_form",
    "closed_forms",
    "find_closed_form",
    "find_reduction",
    "find_user_rule",
    "has_user_rules",
    "is_narrower",
    "on_registration",
    "reduction",
    "register_kl",
    "user_pairs",
]

Rule = Callable[..., Tensor]
RuleT = TypeVar("RuleT", bound=Rule)
TypePair = tuple[type, type]


# A formula of kullback's; returns None where it does not hold for the parameters.
Form = Callable[..., Tensor | None]
FormT = TypeVar("FormT", bound=Form)


class ClosedForm(NamedTuple):
    """A closed form, its method (``"closed_form"`` or ``"series"``) and a bound on its rounding error.

    The bound is a function of P, Q and the value; None for the one that all others have.
    """

    function: Form
    method: str
    error: Callable[..., Tensor] | None = None


class UserRule(NamedTuple):
    """A rule of `register_kl`, and the types that it is registered for."""

    function: Rule
    pair: TypePair


# A reduction turns a pair into others: it gets the pair and a function that answers for any other.
Reduction = Callable[..., Estimate | None]
ReductionT = TypeVar("ReductionT", bound=Reduction)

_REDUCTIONS: dict[TypePair, Reduction] = {}
_USER_RULES: dict[TypePair, Rule] = {}
_CLOSED_FORMS: dict[TypePair, ClosedForm] = {}
_FOUND: dict[TypePair, ClosedForm | None] = {}
_LISTENERS: list[Callable[[TypePair], None]] = []


def closed_form(
    type_p: type,
    type_q: type,
    *,
    method: str = "closed_form",
    error: Callable[..., Tensor] | None = None,
) -> Callable[[FormT], FormT]:
    """Enter a closed form for a pair of types; it serves their subclasses too, unless those have their own.

    The function takes the two distributions, reads their parameters through `upcast` and returns a float64 tensor that
    broadcasts to the batch shape, or None where it does not hold for the parameters. Supports, event shapes and dtypes
    are checked for all pairs, not here.
    """

    def enter(function: FormT) -> FormT:
        if (type_p, type_q) in _CLOSED_FORMS:
            raise RegistrationError(f"two closed forms for {_names(type_p, type_q)}")
        _CLOSED_FORMS[type_p, type_q] = ClosedForm(function, method, error)
        _FOUND.clear()
        return function

    return enter


def reduction(type_p: type, type_q: type) -> Callable[[ReductionT], ReductionT]:
    """Enter a function f(p, q, kl) that turns a pair into others, for which kl(p, q) returns the `Estimate`."""

    def enter(function: ReductionT) -> ReductionT:
        _REDUCTIONS[type_p, type_q] = function
        return function

    return enter


def find_reduction(type_p: type, type_q: type) -> Reduction | None:
    """Return the most specific reduction for a pair of types, None where there is none."""
    best = _most_specific(_REDUCTIONS, type_p, type_q)
    return _REDUCTIONS[best[0]] if best else None


def closed_forms() -> Iterator[tuple[TypePair, ClosedForm]]:
    """Yield every pair of types with a closed form."""
    yield from _CLOSED_FORMS.items()


def find_closed_form(type_p: type, type_q: type) -> ClosedForm | None:
    """Return the closed form for a pair of types, None where there is none or one has a `log_prob` of its own."""
    key = (type_p, type_q)
    if key in _FOUND:
        return _FOUND[key]
    best = _most_specific(_CLOSED_FORMS, type_p, type_q)
    served = len(best) == 1 and not (class_overrides_density(type_p) or class_overrides_density(type_q))
    found = _CLOSED_FORMS[best[0]] if served else None
    if not torch.compiler.is_compiling():  # a graph that changed what it read would be traced again
        _FOUND[key] = found
    return found


def has_user_rules() -> bool:
    """Tell whether there is any rule of `register_kl`."""
    return bool(_USER_RULES)


def user_pairs() -> Iterator[TypePair]:
    """Yield every pair of types with a rule of `register_kl`."""
    yield from _USER_RULES


def on_registration(listener: Callable[[TypePair], None]) -> None:
    """Have a function called with every pair of types that `register_kl` gets a rule for from now on."""
    _LISTENERS.append(listener)


def find_user_rule(call: str, type_p: type, type_q: type) -> UserRule | None:
    """Return the rule that a user registered for a pair of types, None where there is none."""
    if not _USER_RULES:
        return None
    best = _most_specific(_USER_RULES, type_p, type_q)
    if len(best) > 1:
        raise NoRuleError(
            explain(
                call,
                "p, q",
                wanted=f"one most specific rule for {_names(type_p, type_q)}",
                got="several, none more specific than the others: "
                + ", ".join(_names(a, b) for a, b in best),
                instead=f"@register_kl({type_p.__name__}, {type_q.__name__}) to decide",
            )
        )
    return UserRule(_USER_RULES[best[0]], best[0]) if best else None


def _most_specific(rules: Mapping[TypePair, object], type_p: type, type_q: type) -> list[TypePair]:
    """Return the most specific of the matching pairs alone, or all of them where none is the most specific."""
    matches = [(a, b) for a, b in rules if issubclass(type_p, a) and issubclass(type_q, b)]
    best = [pair for pair in matches if all(is_narrower(pair, other) for other in matches)]
    return best or matches


def is_narrower(pair: TypePair, other: TypePair) -> bool:
    """Tell whether a pair of types is the same as another or more specific."""
    return issubclass(pair[0], other[0]) and issubclass(pair[1], other[1])


def register_kl(type_p: type, type_q: type) -> Callable[[RuleT], RuleT]:
    r"""Register a function as the rule for the divergence of two types of distribution, as a decorator.

    .. math:: \text{rule}(p, q) = KL(P \| Q)

    The most specific rule wins: one for (A, B) serves all subclasses of A and B, unless another is registered for
    types closer to theirs, here or with `torch.distributions.register_kl`. Of two for the same types, that of this
    function wins. Torch's registry is not touched, unless `install` is in force: then torch gives the rule's value too.

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
    for argument, given in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(given, type) and issubclass(given, Distribution)):
            raise invalid_type(
                "register_kl",
                argument,
                wanted="a subclass of torch.distributions.Distribution",
                got=safe_repr(given),
                instead="@register_kl(MyDistribution, MyDistribution) with the two classes",
            )
    if (type_p, type_q) in _USER_RULES:
        raise RegistrationError(
            explain(
                "register_kl",
                "type_p, type_q",
                wanted="a pair without a rule",
                got=f"{_names(type_p, type_q)}, which {_USER_RULES[type_p, type_q].__qualname__} serves",
                instead="a subclass of your own and register that, or leave the rule that is there",
            )
        )
    _refuse_ambiguity(type_p, type_q)

    def register(rule: RuleT) -> RuleT:
        if not callable(rule):
            raise invalid_type(
                "register_kl",
                "rule",
                wanted="a function of P and Q",
                got=safe_repr(rule),
                instead="@register_kl(MyDistribution, MyDistribution) above def kl(p, q): ...",
            )
        _USER_RULES[type_p, type_q] = rule
        for listener in _LISTENERS:
            listener((type_p, type_q))
        return rule

    return register


def _refuse_ambiguity(type_p: type, type_q: type) -> None:
    """Refuse a pair if some types would match it and a registered pair, and neither of these is more specific."""
    for known_p, known_q in _USER_RULES:
        first, second = _narrower(type_p, known_p), _narrower(type_q, known_q)
        if (
            first is None
            or second is None
            or (first, second) in _USER_RULES
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
