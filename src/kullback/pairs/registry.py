"""The table of the rules for pairs of types (closed forms, reductions and users' rules), and the plan of each pair.

Closed forms of Renyi divergences have orders from 1/2 on; smaller orders follow by exchanging P and Q. Let the density
of R be proportional to p^a q^(1 - a). At every order a except 0 and 1, the divergence is KL(R || Q) + a / (1 - a)
KL(R || P). This formula does not subtract log-normalizers, so no digits are lost if P and Q are nearly equal. With
natural parameters n_P and n_Q, R has the natural parameters a n_P + (1 - a) n_Q. If these parameters are not valid, the
integral of p^a q^(1 - a) is infinite. Each formula takes the order `alpha` and `rest` = 1 - alpha, which has full
precision if alpha is near 1.

Rényi Divergence and Kullback-Leibler Divergence (van Erven and Harremoës, 2014), proposition 2 and theorem 30
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.distributions import (
    Categorical,
    Distribution,
    Independent,
    MixtureSameFamily,
    TransformedDistribution,
    constraints,
)

from kullback.common.extra_arguments import by_name
from kullback.errors import RegistrationError, explain, invalid_type, no_rule, safe_repr
from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.native.native_closed_forms import Form as KernelForm, divergence, required_gradients
from kullback.pairs.family import class_overrides_density, overrides_density
from kullback.pairs.native_forms import Code, FormFunction, NativeForm, Shortcut, is_ordinary_call
from kullback.pairs.torch_registry import (
    PLANS,
    TORCH,
    ThirdPartyRule,
    TypePair,
    forget_plans,
    third_party_rule,
)
from kullback.results.estimate import Estimate

RuleFunction = Callable[..., Tensor]
RuleT = TypeVar("RuleT", bound=RuleFunction)
AnyT = TypeVar("AnyT")
WRAPPERS = (Independent, MixtureSameFamily, TransformedDistribution)
"""The classes that wrap other distributions: the rule for a pair depends on the wrapped distributions."""

SURFACES: dict[type, str] = {
    type(constraints.simplex): "vectors of probabilities",
    type(constraints.corr_cholesky): "Cholesky factors of correlation matrices",
    type(constraints.positive_definite): "positive-definite matrices",
}
"""The names of event spaces whose densities have a base measure different from Lebesgue measure, by constraint."""

FormT = TypeVar("FormT", bound=FormFunction)
# _MOST_CLASSES is the largest number of classes in `fused_divergence_of_logits`. Longer rows have other kernels.
_MOST_CLASSES = 32


class ClosedForm(NamedTuple):
    """A closed form, its method (``"closed_form"`` or ``"series"``) and a bound on its rounding error.

    `error` is a function of P, Q and the value. If `error` is None, the bound is the common bound in
    `kullback.pairs.solve`. `native` computes the same value in C++. If `yields` is true, another closed form for the
    same types replaces this form.
    """

    function: FormFunction
    method: str
    error: Callable[..., Tensor] | None = None
    native: Shortcut | None = None
    yields: bool = False


class UserRule(NamedTuple):
    """A function that `register_kl` registered as a rule, and the pair of types of this rule."""

    function: RuleFunction
    pair: TypePair


# `Reduction` is a function of P, Q and kl that computes a divergence from other pairs, where kl(p, q) returns the
# estimate of a pair.
Reduction = Callable[..., Estimate | None]
ReductionT = TypeVar("ReductionT", bound=Reduction)

# _RULES has all registered rules, by role and by pair of types.
_RULES: dict[str, dict[TypePair, Any]] = {"user": {}, "closed_form": {}, "shortcut": {}, "reduction": {}}
_LISTENERS: list[Callable[[TypePair], None]] = []


def _register(role: str, types: TypePair, rule: AnyT) -> AnyT:
    _RULES[role][types] = rule
    forget_plans()
    return rule


def closed_form(
    type_p: type,
    type_q: type,
    *,
    method: str = "closed_form",
    error: Callable[..., Tensor] | None = None,
    native: Code | Shortcut | None = None,
    yields: bool = False,
) -> Callable[[FormT], FormT]:
    """Register a closed form for a pair of types, and for their subclasses that have no closed form themselves.

    The function takes the two distributions, reads their parameters through `upcast`, and returns a float64 tensor that
    broadcasts to the batch shape. The function returns None if the form does not apply to the parameters. The caller
    checks supports, event shapes and dtypes. `native` is a C++ kernel of the closed form, or a function that calls such
    a kernel.
    """

    def enter(function: FormT) -> FormT:
        other = _RULES["closed_form"].get((type_p, type_q))
        if other is not None and yields:
            return function
        if other is not None and not other.yields:
            raise RegistrationError(f"there are two closed forms for {names_of(type_p, type_q)}")
        kernel = native
        if isinstance(kernel, ElementForm | RowForm):
            kernel = NativeForm(function, kernel, type_p, type_q)
        _register("closed_form", (type_p, type_q), ClosedForm(function, method, error, kernel, yields))
        return function

    return enter


def native_form(type_p: type, type_q: type) -> KernelForm:
    """Return the kernel of the closed form for exactly these types."""
    return cast(NativeForm, _RULES["closed_form"][type_p, type_q].native).form


def shortcut(type_p: type, type_q: type) -> Callable[[Shortcut], Shortcut]:
    """Register a function that computes KL for exactly these two types, without any checks before it."""
    return lambda function: _register("shortcut", (type_p, type_q), function)


def reduction(type_p: type, type_q: type) -> Callable[[ReductionT], ReductionT]:
    """Register a function f(p, q, kl) that computes a divergence from the estimates kl(p, q) of other pairs."""
    return lambda function: _register("reduction", (type_p, type_q), function)


def user_pairs() -> Iterator[TypePair]:
    """Yield every pair of types with a rule of `register_kl`."""
    yield from _RULES["user"]


def on_registration(listener: Callable[[TypePair], None]) -> None:
    """Register a function, as a decorator, that is called with every pair of types that `register_kl` registers."""
    _LISTENERS.append(listener)


class Step(NamedTuple):
    """A rule that `solve` tries in a fixed order.

    Attributes:
        rule: a function of the pair, the kind of divergence and the options. It returns None if it does not apply.
        kinds: whether the rule applies to KL, and whether it applies to other divergences.
        methods: the values of the option `method` that allow the rule.
        of_family: whether the rule uses the formulas of a family; such a rule is skipped if `log_prob` is overridden.
        serves: a function that returns whether the rule may apply to the types of a plan.
    """

    rule: Callable[..., Estimate | None]
    kinds: tuple[bool, bool]
    methods: frozenset[str]
    of_family: bool = True
    serves: Callable[[Plan], bool] = lambda plan: True


_STEPS: list[Step] = []


def set_order(steps: Iterable[Step]) -> None:
    """Set the rules that are tried for every pair, in their order."""
    _STEPS[:] = steps
    forget_plans()


class Plan(NamedTuple):
    """The rules for a pair of types, and the properties that follow from the types alone.

    Attributes:
        types: the types of P and Q.
        user_rules: the most specific rules of `register_kl`: none, one, or several that are equally specific.
        third_party: the rule that torch would call without kullback, unless it is torch's rule for torch's types.
        third_party_first: whether `third_party` is more specific than the rules of `register_kl`.
        closed_form: the closed form, or None if there is none or a class overrides the `log_prob` of its family.
        reduction: the reduction, or None if there is none.
        shortcut: a function that computes KL without checks, such as a C++ kernel. The shortcut is None if a subclass
            changes the support, or if a user, or another package for a subclass, has registered a rule.
        is_plain: whether both types are classes of torch that wrap no other distribution.
        is_comparable: whether the types alone show that P and Q have densities over the same space.
        kl: the rules for KL after `shortcut`, in their order.
        other: the rules for the other divergences, in their order.
    """

    types: TypePair
    user_rules: tuple[UserRule, ...]
    third_party: ThirdPartyRule | None
    third_party_first: bool
    closed_form: ClosedForm | None
    shortcut: Shortcut | None
    reduction: Reduction | None
    is_plain: bool
    is_comparable: bool
    kl: tuple[Step, ...] = ()
    other: tuple[Step, ...] = ()

    def user_rule(self, call: str) -> UserRule | None:
        """Return the rule of `register_kl`; raise if several are equally specific."""
        if len(self.user_rules) > 1:
            raise no_rule(
                call,
                "p, q",
                wanted=f"one most specific rule for {names_of(*self.types)}",
                got="several, none more specific than the others: "
                + ", ".join(names_of(*rule.pair) for rule in self.user_rules),
                instead=f"@register_kl{names_of(*self.types)} to decide",
            )
        return self.user_rules[0] if self.user_rules else None


def plan_for(type_p: type, type_q: type) -> Plan:
    """Return the plan of two types, which is cached until a rule is registered with kullback or torch."""
    plan = PLANS.get(("kullback", type_p, type_q))
    return _made_plan((type_p, type_q)) if plan is None else plan


def fused_divergence(p: object, q: object) -> Tensor | None:
    """Return KL(P || Q) in the dtype of the parameters, or None if no shortcut supports P and Q."""
    if torch.compiler.is_compiling() or not (isinstance(p, Distribution) and isinstance(q, Distribution)):
        return None
    plan = plan_for(type(p), type(q))
    if plan.shortcut is None or "log_prob" in vars(p) or "log_prob" in vars(q):
        return None
    if not plan.is_plain and (overrides_density(p) or overrides_density(q)):
        return None
    return plan.shortcut(p, q)


def fused_divergence_of_logits(p: Tensor, q: Tensor) -> Tensor | None:
    """Return KL between rows of logits, or None if the kernel does not support them, such as more than 32 classes."""
    if not 0 < p.shape[-1] == q.shape[-1] <= _MOST_CLASSES:
        return None
    if torch.compiler.is_compiling() or not is_ordinary_call():
        return None
    kernel = plan_for(Categorical, Categorical).shortcut
    if not isinstance(kernel, NativeForm):
        return None
    required = required_gradients((p, q))
    return None if required is None else divergence(kernel.form, (p, q), required)


def _made_plan(types: TypePair) -> Plan:
    user_rules, closed_forms, reductions = (_RULES[role] for role in ("user", "closed_form", "reduction"))
    own = tuple(UserRule(user_rules[pair], pair) for pair in _most_specific(user_rules, *types))
    third_party = third_party_rule(types)
    forms, ways = (_most_specific(rules, *types) for rules in (closed_forms, reductions))
    serves = len(forms) == 1 and not any(map(class_overrides_density, types))
    form: ClosedForm | None = closed_forms[forms[0]] if serves else None
    has_own = third_party is not None and third_party.for_own_class
    direct = _RULES["shortcut"].get(types)
    are_plain = all(map(is_plain, types))
    supports = [[getattr(kind, "support", None) for kind in pair] for pair in (types, *forms)]
    if form is not None and form.native and not has_own and all(map(operator.is_, *supports)):
        direct = form.native
    plan = Plan(
        types,
        own,
        third_party,
        third_party is not None and _precedes(third_party, own),
        form,
        None if own else direct,
        reductions[ways[0]] if ways else None,
        are_plain,
        are_plain and not torch.compiler.is_compiling() and _space(types[0]) == _space(types[1]),
    )
    steps = [step for step in _STEPS if step.serves(plan)]
    rules_of_kl, others = ([step for step in steps if step.kinds[place]] for place in (0, 1))
    plan = plan._replace(kl=tuple(rules_of_kl), other=tuple(others))
    if not torch.compiler.is_compiling():  # a graph that changes an object that it has read is traced again
        PLANS["kullback", types[0], types[1]] = plan
    return plan


def _space(kind: type) -> tuple[bool | None, str | None]:
    """Return whether events of a class of torch are discrete, and the name of their space if it is in `SURFACES`."""
    support = getattr(kind, "support", None)  # the class attribute is the same for all parameters
    return getattr(support, "is_discrete", None), SURFACES.get(type(support))


def _precedes(rule: ThirdPartyRule, own: tuple[UserRule, ...]) -> bool:
    """Return whether a rule in torch's table is more specific than the rules of `register_kl`."""
    if len(own) != 1:
        return not own and rule.for_own_class
    return not rule.is_of_torch and rule.pair != own[0].pair and _is_narrower(rule.pair, own[0].pair)


def _most_specific(rules: Mapping[TypePair, object], type_p: type, type_q: type) -> list[TypePair]:
    """Return a list with the most specific matching pair, or all matching pairs if no pair is the most specific."""
    matches = [(a, b) for a, b in rules if issubclass(type_p, a) and issubclass(type_q, b)]
    best = [pair for pair in matches if all(_is_narrower(pair, other) for other in matches)]
    return best or matches


def _is_narrower(pair: TypePair, other: TypePair) -> bool:
    """Return whether a pair of types is equal to another pair or more specific."""
    return issubclass(pair[0], other[0]) and issubclass(pair[1], other[1])


@by_name()
def register_kl(type_p: type, type_q: type) -> Callable[[RuleT], RuleT]:
    r"""Register a function as the rule for the divergence of two types of distribution, as a decorator.

    .. math:: \text{rule}(p, q) = KL(P \| Q)

    The most specific rule wins. A rule for (A, B) serves all subclasses of A and B, unless a rule for more specific
    types is registered, here or with `torch.distributions.register_kl`. A rule that you register here precedes
    torch's rule for the same types. Torch's registry does not change, except after `install`: then torch uses the rule
    too.

    Arguments:
        type_p: the type of P, a subclass of `torch.distributions.Distribution`.
        type_q: the type of Q, likewise.

    Returns:
        a decorator that registers a function of two distributions and returns it unchanged. The function returns a
        tensor of the broadcast batch shape, in nats. A negative value of the size of rounding errors becomes 0, and
        any other negative value raises `ArgumentValueError`.

    Raises:
        ArgumentTypeError: a type is not a subclass of `torch.distributions.Distribution`.
        RegistrationError: there is a rule for exactly this pair, or the new rule would make another pair ambiguous.

    Gradient:
        the gradient of the operations in the rule.

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
            raise invalid_type(
                "register_kl",
                argument,
                wanted="a subclass of torch.distributions.Distribution",
                got=safe_repr(kind),
                instead="@register_kl(MyDistribution, MyDistribution) with the two classes",
            )
    _check_unserved(type_p, type_q)

    def register(rule: RuleT) -> RuleT:
        if not callable(rule):
            raise invalid_type(
                "register_kl",
                "rule",
                wanted="a function of P and Q",
                got=safe_repr(rule),
                instead="@register_kl(MyDistribution, MyDistribution) above def kl(p, q): ...",
            )
        _check_unserved(type_p, type_q)  # a rule may have been registered since the decorator was made
        _register("user", (type_p, type_q), rule)
        for listener in _LISTENERS:
            listener((type_p, type_q))
        return rule

    return register


def _check_unserved(type_p: type, type_q: type) -> None:
    """Raise if there is a rule for exactly this pair, or if a new rule would make another pair ambiguous."""
    rules = _RULES["user"]
    if (type_p, type_q) in rules:
        raise RegistrationError(
            explain(
                "register_kl",
                "type_p, type_q",
                wanted="a pair without a rule",
                got=f"{names_of(type_p, type_q)}, which {rules[type_p, type_q].__qualname__} serves",
                instead="@register_kl with a subclass of your own, or keep the existing rule",
            )
        )
    for other_p, other_q in rules:
        # The new rule and the other rule both match the types `first` and `second`. Neither rule is more specific.
        first, second = _narrower(type_p, other_p), _narrower(type_q, other_q)
        if first is None or second is None or (first, second) in {*rules, (type_p, type_q)}:
            continue
        raise RegistrationError(
            explain(
                "register_kl",
                "type_p, type_q",
                wanted="a pair that keeps one most specific rule for every two types",
                got=f"{names_of(type_p, type_q)}, which is not more specific for {names_of(first, second)} than the "
                f"rule for {names_of(other_p, other_q)}",
                instead=f"@register_kl({first.__name__}, {second.__name__}) first, then this one",
            )
        )


def is_plain(family: type) -> bool:
    """Return whether a class is one of torch's classes that wrap no other distribution."""
    return family.__module__.startswith(TORCH) and family not in WRAPPERS


def _narrower(a: type, b: type) -> type | None:
    if issubclass(a, b):
        return a
    return b if issubclass(b, a) else None


def names_of(p: type, q: type) -> str:
    """Return the names of two types in parentheses, for messages."""
    return f"({p.__name__}, {q.__name__})"


RenyiRule = Callable[[Any, Any, float, float], "Tensor | None"]
# An entry of _RENYI_RULES has the families of P and Q, the formula, and the bound on the formula's rounding error.
_RENYI_RULES: list[tuple[tuple[type, ...], RenyiRule, Callable[..., Tensor] | None]] = []
# _RENYI_ROUNDING bounds the rounding error of a formula with a few dozen operations, relative to 1 + the value. The
# tests in tests/pairs/closed_forms/test_renyi.py check this bound.
_RENYI_ROUNDING = 1e-13
WIDE_RATIO = 1e150
"""The largest ratio of scales in the formulas: the square of a larger ratio may overflow."""


def renyi_form(
    *families: type, error: Callable[..., Tensor] | None = None
) -> Callable[[RenyiRule], RenyiRule]:
    """Register a formula for P and Q in any of these families: a function of P, Q, the order and 1 minus the order.

    The formula may return None. `error` is a function of P, Q and the value that returns a bound on the rounding error.
    If `error` is None, the common bound `_RENYI_ROUNDING` is used.
    """

    def enter(rule: RenyiRule) -> RenyiRule:
        _RENYI_RULES.append((families, rule, error))
        return rule

    return enter


def renyi_in_closed_form(
    p: Distribution, q: Distribution, alpha: float, rest: float, *, wants_error: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Return Renyi's divergence of an order from 1/2 on, except 1, and its rounding error.

    The error is None unless `wants_error` is true. If there is no formula, the result is None.
    """
    if overrides_density(p) or overrides_density(q):
        return None
    for families, rule, error_of in _RENYI_RULES:
        if isinstance(p, families) and isinstance(q, families):
            value = rule(p, q, alpha, rest)
            if value is None:
                return None
            if not wants_error:
                return value, None
            fixed = value.detach()
            error = _RENYI_ROUNDING * (1 + fixed) if error_of is None else error_of(p, q, fixed)
            return value, torch.where(fixed.isinf(), 0, error)
    return None


def mixed(to_p: Tensor, to_q: Tensor, finite: Tensor, alpha: float, rest: float) -> Tensor:
    """Return Renyi's divergence from `to_p` = KL(R || P) and `to_q` = KL(R || Q); +inf where `finite` is false.

    The density of R is proportional to p^alpha q^(1 - alpha).
    """
    return where_finite(finite, to_q + alpha / rest * to_p)


def where_finite(finite: Tensor, value: Tensor) -> Tensor:
    """Return the value where the mask `finite` is true, and +inf elsewhere."""
    return torch.where(finite, value.clamp(min=0), torch.inf)
