"""The operands P and Q of a call: checks, conversions, and the alignment of two representations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from kullback.common.constraints import Arguments, Number
from kullback.errors import ArgumentTypeError, NoRuleError, invalid_type, invalid_value, no_rule, safe_repr
from kullback.generators import Divergence
from kullback.pairs.clone import have_ordinary_tensors, with_ordinary_tensors, without_empty_wrapper
from kullback.pairs.numerics.parameters import categorical_of, given_logits
from kullback.pairs.scipy_adapter import Frozen, is_frozen, line_for, to_torch, with_equal_outcomes
from kullback.representations import Logits, Probs, Representation
from kullback.samples import Samples, column_names

Operand = Representation | Samples | Distribution | Frozen
_OPERANDS = (Representation, Samples, Distribution)


def operands(call: str, p: object, q: object) -> tuple[Any, Any]:
    """Return P and Q, with SciPy distributions replaced by torch distributions.

    If P or Q is a representation and the other a Categorical, a representation replaces the Categorical.
    """
    if isinstance(p, Distribution) and isinstance(q, Distribution) and have_ordinary_tensors(p, q):
        if not (isinstance(p, Independent) or isinstance(q, Independent)):
            return p, q
        return without_empty_wrapper(p), without_empty_wrapper(q)
    from_scipy = not (isinstance(p, _OPERANDS) and isinstance(q, _OPERANDS))
    p, q = operand(call, "p", p), operand(call, "q", q)
    if from_scipy:
        p, q = with_equal_outcomes(p, q)
    if isinstance(p, Representation) != isinstance(q, Representation):
        p, q = of_classes(p), of_classes(q)
    return p, q


def operand(call: str, argument: str, x: object) -> Any:
    """Return the operand `x`, converted to torch if it is a SciPy distribution. Raise if its type is not accepted."""
    if not isinstance(x, _OPERANDS):
        if not is_frozen(x):
            raise _not_a_distribution(call, argument, x)
        x = to_torch(call, argument, x)
    return (
        without_empty_wrapper(with_ordinary_tensors(call, argument, x)) if isinstance(x, Distribution) else x
    )


def of_classes(d: object) -> object:
    """Return the logits or probabilities of a Categorical or OneHotCategorical as a representation. Return other
    objects unchanged.
    """
    part = categorical_of(d)
    if part is None:
        return d
    if given_logits(part):
        return Logits(part.logits, validate=False)
    return Probs(part.probs, validate=False)


def no_common_rule(call: str, p: object, q: object) -> NoRuleError:
    """Return the error for P and Q of types that no rule can compare."""
    wanted = "two of Logits, LogProbs, Probs and Counts, or two torch distributions"
    got = f"{type(p).__name__} and {type(q).__name__}"
    instead = f"{call}(Probs(x), Categorical(...)) for classes; histograms of draws as Counts(...)"
    return no_rule(call, "p, q", wanted=wanted, got=got, instead=instead)


def _not_a_distribution(call: str, argument: str, x: object) -> ArgumentTypeError:
    """Return the error for a tensor whose meaning is not declared, or for another object that is not a distribution."""
    wrappers = "Logits(x), LogProbs(x), Probs(x), Counts(x) or Samples(x)"
    wrap = f"wrap it: {wrappers}"
    if isinstance(x, Tensor):
        wording = "{got} does not say what it holds; {instead}"
        return invalid_type(
            call, argument, wanted="a distribution", got="a tensor", instead=wrap, wording=wording
        )
    line = line_for(x, argument)
    if line is not None:
        got = f"{type(x).__name__}, which is no distribution of torch"
        if isinstance(x, type):
            got = f"the class {x.__name__} itself"
        return invalid_type(
            call, argument, wanted="a distribution, with its parameters", got=got, instead=line
        )
    got = type(x).__name__
    if column_names(x) is not None:
        instead = "kullback.compare_tables(p, q) for two tables"
        if hasattr(x, "to_numpy"):
            instead += ", or Samples(x) if the rows are draws of vectors"
        return invalid_type(call, argument, wanted="a distribution", got=got, instead=instead)
    wording = "wanted {wanted}; got {got}. Numbers do not say what they hold; {instead}"
    instead = f"wrap them: {wrappers}, or pass a torch.distributions object"
    return invalid_type(call, argument, wanted="a distribution", got=got, instead=instead, wording=wording)


_BASE = Arguments(
    "kl_divergence",
    "divergence",
    "estimate",
    "kl_estimate",
    "entropy",
    "cross_entropy",
    "mutual_information",
    base=Number(
        above=1,
        below=math.inf,
        wanted="a number above 1",
        optional=True,
        example=2,
        instead="base=2 for bits, base=10 for hartleys, or no base for nats",
    ),
)


def nats_per_unit(call: str, kind: Divergence, base: float | None) -> float:
    """Return the number of nats in one unit of the result: log(base), or 1 without a base."""
    if base is None:
        return 1.0
    if not kind.logarithmic:
        wanted, got = "no base for a divergence without a logarithm", f"base={safe_repr(base)} with {kind!r}"
        raise invalid_value(call, "base", wanted=wanted, got=got, instead=f"{call}(...) without base")
    return math.log(_BASE.check(call, base=base)["base"])


def comparable(call: str, p: Representation, q: Representation) -> tuple[Representation, Representation]:
    """Return P and Q on the same classes: labeled classes are aligned on the union of the labels.

    Raise if devices, dtypes or shapes do not match.
    """
    p, q = p.aligned_with(q)
    if p.tensor.device != q.tensor.device:
        got = f"{p.tensor.device} and {q.tensor.device}"
        instead = f"{call}(p, {type(q).__name__}(x.to({str(p.tensor.device)!r})))"
        raise invalid_value(call, "p, q", wanted="p and q on the same device", got=got, instead=instead)
    p, q = _in_one_dtype(call, p, q)
    if p.classes != q.classes:
        raise invalid_value(
            call,
            "p, q",
            wanted="the same number of classes in p and q",
            got=f"{p.classes} in p of shape {tuple(p.tensor.shape)}, {q.classes} in q of shape {tuple(q.tensor.shape)}",
            instead="cut both to the classes they share, or name the class dimension with dim=",
        )
    try:
        torch.broadcast_tensors(p.weights(), q.weights())
    except RuntimeError:
        wanted, instead = "batch shapes that broadcast", "x[:, None] on one side to compare all with all"
        got = f"{tuple(p.batch_shape)} in p and {tuple(q.batch_shape)} in q, without the class dimension"
        raise invalid_value(call, "p, q", wanted=wanted, got=got, instead=instead) from None
    return p, q


def _in_one_dtype(call: str, p: Representation, q: Representation) -> tuple[Representation, Representation]:
    """Return P and Q in the same dtype. The dtype of a tensor has priority over the dtype of an array, which has
    priority over numbers in a list.
    """
    sides = [side for side in (p, q) if side.tensor.is_floating_point()]  # integer counts fit any dtype
    dtypes = [side.tensor.dtype for side in sides]
    if len(set(dtypes)) < 2:
        return p, q
    if p.dtype_rank == q.dtype_rank == 2:
        got = f"{dtypes[0]} in p and {dtypes[1]} in q"
        instead = f"{call}({type(p).__name__}(x.to({dtypes[1]})), q), or convert q instead"
        raise invalid_value(call, "p, q", wanted="one dtype", got=got, instead=instead)
    is_even = p.dtype_rank == q.dtype_rank
    dtype = torch.promote_types(*dtypes) if is_even else dtypes[p.dtype_rank < q.dtype_rank]
    return p.in_dtype(dtype), q.in_dtype(dtype)
