"""Entropy, cross-entropy and mutual information."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, Multinomial

from kullback.common.bijective import check_bijective
from kullback.common.dtypes import upcast
from kullback.common.extra_arguments import by_name
from kullback.common.special import safe_log, safe_logsumexp
from kullback.dispatch import between_distributions
from kullback.errors import NoRuleError, invalid_value, no_rule
from kullback.generators import KL
from kullback.kernels import row_divergence
from kullback.kernels.row_operation import row_blocks
from kullback.operands import (
    Operand,
    comparable,
    nats_per_unit,
    no_common_rule,
    of_classes,
    operand,
    operands,
)
from kullback.pairs import SolveOptions
from kullback.pairs.clone import parameters_of, upcast_copy
from kullback.pairs.family import overrides_density
from kullback.pairs.numerics.parameters import given_logits
from kullback.pairs.scipy_adapter import ScipyDensity, ShiftedCounts
from kullback.representations import Logits, Probs, Representation
from kullback.samples import Samples

_KL = KL()
# The remedy for pairs of draws suggests a histogram. Integers with a range below _MOST_VALUES get one bin for each
# value. Other draws get at most _MOST_BINS bins. A cell then has about _DRAWS_IN_A_CELL draws, so the bias is small.
_MOST_VALUES, _MOST_BINS, _DRAWS_IN_A_CELL = 1000, 16, 25


@by_name()
def entropy(p: Operand, *, base: float | None = None) -> Tensor:
    r"""Compute the entropy of P, one value for each element of the batch.

    .. math:: H(P) = E_P[-\log p]

    Arguments:
        p: `Logits`, `LogProbs`, `Probs` or `Counts` of shape (..., classes), or a torch or SciPy distribution. The
            entropy of a density is the differential entropy, which may be negative.
        base: the base of the logarithm: 2 gives bits. The default gives nats.

    Returns:
        the entropies. Shape: the batch shape. Dtype: the dtype of P. Values are computed in float64 and rounded once.
        For classes, all terms of the sum are non-negative, so an entropy near 0 has full relative precision. If P has
        all its mass in one class, the entropy is exactly 0.

    Raises:
        ArgumentTypeError: P is a bare tensor or not a distribution.
        ArgumentValueError: `base` is not a number above 1.
        NoRuleError: torch has no accurate entropy for this distribution, or P is `Samples`.

    Gradient:
        flows to P and is never NaN. The gradient is 0 at a class masked with ``-inf`` and at a probability that is
        exactly 0.

    Example:
        >>> from torch.distributions import Normal
        >>> from kullback import Probs, entropy
        >>> entropy(Probs([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]), base=2)
        tensor([1., 0.])
        >>> entropy(Normal(0.0, 1.0))
        tensor(1.4189)

    References:
        Elements of Information Theory, sections 2.1 and 8.1 (Cover and Thomas, 2006)
    """
    unit = nats_per_unit("entropy", _KL, base)
    return _entropy("entropy", operand("entropy", "p", p)) / unit


@by_name()
def cross_entropy(p: Operand, q: Operand, *, base: float | None = None) -> Tensor:
    r"""Compute the cross-entropy from P to Q, one value for each element of the batch.

    .. math:: H(P, Q) = E_P[-\log q] = H(P) + KL(P \| Q)

    The cross-entropy is the mean code length of data from P in a code for Q. `torch.nn.functional.cross_entropy` has
    another order of arguments, logits of Q first and then class indices or probabilities of P, and averages over the
    batch.

    Arguments:
        p: P, as in `entropy`.
        q: Q, as in `kl_divergence`: of the same kind as P, and with the same number of classes. Batch shapes broadcast.
        base: the base of the logarithm: 2 gives bits. The default gives nats.

    Returns:
        the cross-entropies; +inf if P has mass outside the support of Q. Shape: the broadcast batch shape. Dtype: the
        dtype of the arguments. Values are computed in float64 and rounded once.

    Raises:
        ArgumentTypeError: an argument is a bare tensor or not a distribution.
        ArgumentValueError: classes, dtypes, devices or shapes do not match, or `base` is not a number above 1.
        NoRuleError: the entropy of P is not known, or no rule exists for the pair.

    Gradient:
        flows to both arguments and is never NaN. The gradient is 0 at a class masked with ``-inf``, at a probability
        that is exactly 0, and where the value is infinite.

    Example:
        >>> from kullback import Probs, cross_entropy
        >>> cross_entropy(Probs([0.5, 0.5]), Probs([0.25, 0.75]), base=2)
        tensor(1.2075)

    References:
        Elements of Information Theory, theorem 5.4.3 (Cover and Thomas, 2006)
    """
    call = "cross_entropy"
    unit = nats_per_unit(call, _KL, base)
    p, q = operands(call, p, q)
    if isinstance(p, Representation) and isinstance(q, Representation):
        p, q = comparable(call, p, q)
        return _cross_entropy_of_classes(p, q) / unit
    if isinstance(p, Distribution) and isinstance(q, Distribution):
        divergence = between_distributions(call, p, q, _KL, SolveOptions(wants_error=False)).value
        return (_entropy(call, p) + divergence) / unit
    raise no_common_rule(call, p, q)


@by_name()
def mutual_information(joint: Representation, *, base: float | None = None) -> Tensor:
    r"""Compute the mutual information of two variables from their joint table.

    .. math:: I(X; Y) = KL\bigl(P_{XY} \,\|\, P_X \otimes P_Y\bigr) = \sum_{xy} p_{xy} \log \frac{p_{xy}}{p_x p_y}

    For `Counts`, the result is the mutual information of the proportions, which is biased upwards. For n counts of
    independent variables, the bias is about (rows - 1) (columns - 1) / 2n nats.

    Arguments:
        joint: `Probs`, `LogProbs`, `Logits` or `Counts` with ``dim=(-2, -1)``: a table of shape (..., rows, columns) is
            one distribution over all its entries.
        base: the base of the logarithm: 2 gives bits. The default gives nats.

    Returns:
        the mutual informations, which are never negative. For independent variables, the result is 0 up to the rounding
        of the table. Shape: the batch shape. Dtype: the dtype of `joint`. Values are computed in float64 and rounded
        once.

    Raises:
        ArgumentTypeError: `joint` is a bare tensor or not a distribution.
        ArgumentValueError: `joint` is not a table with two class dimensions, or `base` is not a number above 1.

    Gradient:
        flows to `joint` and is never NaN. The gradient is 0 at an entry without mass.

    Example:
        >>> from kullback import Counts, mutual_information
        >>> mutual_information(Counts([[30, 10], [10, 30]], dim=(-2, -1)))
        tensor(0.1308)

    References:
        Elements of Information Theory, section 2.3 (Cover and Thomas, 2006)
    """
    call = "mutual_information"
    unit = nats_per_unit(call, _KL, base)
    joint = operand(call, "joint", joint)
    if not isinstance(joint, Representation) or len(joint.class_shape) != 2:
        raise invalid_value(
            call,
            "joint",
            wanted="a joint table, with two class dimensions",
            got=f"{joint!r}",
            instead=_table_of(joint)
            if isinstance(joint, Samples)
            else "Probs(table, dim=(-2, -1)), or Counts or Logits likewise",
        )
    logs = _log_weights(joint)
    logs = logs - safe_logsumexp(logs, -1).unsqueeze(-1)
    table = logs.unflatten(-1, joint.class_shape)
    product = safe_logsumexp(table, -1).unsqueeze(-1) + safe_logsumexp(table, -2).unsqueeze(-2)
    sides = (Logits(x, validate=False) for x in (logs, product.flatten(-2)))
    return (row_divergence(_KL, *sides) / unit).to(_dtype_of(joint))


def _table_of(x: Samples) -> str:
    """Return the code that counts draws of pairs in a table, for the remedy in an error."""
    if x.tensor.shape[1] != 2:
        return "Counts(pandas.crosstab(a, b), dim=(-2, -1)), the table of the pairs of two columns a and b"
    low, high = x.tensor.amin(0), x.tensor.amax(0)
    if x.discrete and bool((high.long() - low.long() < _MOST_VALUES).all()):
        bins = [int(value) for value in high.long() - low.long() + 1]
        bias = "with one for each value"
    else:
        bins = [max(2, min(_MOST_BINS, int((len(x) / _DRAWS_IN_A_CELL) ** 0.5)))] * 2
        bias = f"which is too high by about {(bins[0] - 1) ** 2 / (2 * len(x)):.1g} nats by chance"
    table = f"torch.histogramdd(torch.as_tensor(x).double(), {bins}).hist"
    return f"Counts({table}, dim=(-2, -1)), the table of the pairs x in bins, {bias}"


def _entropy(call: str, d: object) -> Tensor:
    """Return the entropy of a representation, or of a torch distribution if torch has an accurate formula for it."""
    d = of_classes(d.base_dist if isinstance(d, ShiftedCounts) else d)
    if isinstance(d, Representation):
        return _cross_entropy_of_classes(d, d)
    if isinstance(d, Distribution):
        check_bijective(call, "p", d)
    # The entropy of a Multinomial has no rule, because torch computes a part of it in float32.
    if not isinstance(d, Distribution) or isinstance(d, Multinomial) or overrides_density(d):
        raise _no_entropy(call, d)
    if isinstance(d, Independent):
        n = d.reinterpreted_batch_ndims
        value = _entropy(call, d.base_dist)
        return value.sum(list(range(-n, 0))) if n else value
    if isinstance(d, Bernoulli):  # torch clamps the probabilities
        x = d.logits if given_logits(d) else d.probs
        other = torch.zeros_like(x) if given_logits(d) else 1 - upcast(x)
        classes = torch.stack([upcast(x), upcast(other)], -1)
        both = (Logits if given_logits(d) else Probs)(classes, validate=False)
        return _cross_entropy_of_classes(both, both).to(x.dtype)
    try:
        value = upcast_copy(d).entropy()
    except NotImplementedError:
        raise _no_entropy(call, d) from None
    parameters = parameters_of(d)
    return value.to(parameters[0].dtype) if parameters else value


def _no_entropy(call: str, d: object) -> NoRuleError:
    instead = "Counts(x.bincount()) for samples of categories"
    if isinstance(d, ScipyDensity):
        instead = "p.entropy() of SciPy"
    elif isinstance(d, Distribution):
        instead = "-p.log_prob(p.sample((100_000,))).mean(0), which estimates it"
    return no_rule(
        call,
        "p",
        wanted="Logits, LogProbs, Probs, Counts, or a torch distribution with an entropy",
        got=type(d).__name__,
        instead=instead,
    )


def _cross_entropy_of_classes(p: Representation, q: Representation) -> Tensor:
    """Return E_P[-log q] of each row, as a sum of non-negative terms, which are exact for a nearly certain Q.

    -log q is g plus log(1 + s). g is the gap of a class to the row's largest log-weight. s is the sum of e^-g over all
    classes but the class with this weight.
    """
    logs_p, logs_q = torch.broadcast_tensors(_log_weights(p), _log_weights(q))
    rows_p, rows_q = (x.reshape(-1, x.shape[-1]) for x in (logs_p, logs_q))
    values = [_of_rows(rows_p[block], rows_q[block]) for block in row_blocks(rows_p)]
    return torch.cat(values).reshape(logs_p.shape[:-1]).to(_dtype_of(p, q))


def _of_rows(logs_p: Tensor, logs_q: Tensor) -> Tensor:
    (gaps_p, others_p, empty_p), (gaps_q, others_q, empty_q) = map(_gaps, (logs_p, logs_q))
    mass = torch.where(empty_p, 0, torch.exp(-gaps_p)) / (1 + others_p)
    value = torch.log1p(others_q.squeeze(-1)) + (mass * gaps_q).sum(-1)
    return torch.where((empty_q & ~empty_p).any(-1), torch.inf, value)


def _gaps(logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return g for each class and s for each row, as in `_cross_entropy_of_classes`, and a mask of empty classes."""
    top = logs.argmax(-1, keepdim=True)
    gaps = logs.gather(-1, top) - logs
    empty = gaps == torch.inf
    gaps = torch.where(empty, 0, gaps)
    others = torch.where(empty, 0, torch.exp(-gaps)).scatter(-1, top, 0).sum(-1, keepdim=True)
    return gaps, others, empty


def _log_weights(p: Representation) -> Tensor:
    """Return the log-weights of a representation in float64, with the classes in the last dimension."""
    weights = upcast(p.weights())
    return weights if p.in_logs else safe_log(weights)


def _dtype_of(*sides: Representation) -> torch.dtype:
    """Return the dtype of the result: the floating-point dtype of the sides, or torch's default for integers."""
    floating = (side.tensor.dtype for side in sides if side.tensor.is_floating_point())
    return next(floating, torch.get_default_dtype())
