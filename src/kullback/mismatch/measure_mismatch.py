"""KL of an engine from a trainer over sampled tokens, with intervals by prompts, and its split into causes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, GENERATOR, Arguments, Number
from kullback.common.display import Shown
from kullback.common.dtypes import dtype_name, stored_step
from kullback.common.extra_arguments import by_name
from kullback.common.formats import significant
from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type
from kullback.losses.log_probs import estimates, refuse_shifted
from kullback.losses.truncated_sampling import Support
from kullback.mismatch.token_log import TokenLog, in_order
from kullback.predictions.mean_intervals import FEWEST_UNITS, MeanEstimator, RatioOfSums
from kullback.results.value import Value

CALL = "policy_mismatch"
# The number of bootstrap draws for the intervals, as in `compare_predictions`.
_DRAWS = 1000
# The dtypes whose rounding is noticed, if all of at least `_FEWEST_ROUNDED` numbers fit them, and if it adds more than
# `_NOTED_SHARE` of k3.
_COARSE, _FEWEST_ROUNDED, _NOTED_SHARE = (torch.bfloat16, torch.float16), 16, 0.01
# Positions and lengths are grouped by powers of this number.
_BASE = 4

RATIO = Number(above=1, example=2.0)
_ARGUMENTS = Arguments(CALL, ratio=RATIO, untruncated=FLAG, generator=GENERATOR)


@dataclass(frozen=True, repr=False)
class Part(ShortRepr):
    """One cause of the mismatch.

    Attributes:
        name: ``"truncation"``, ``"staleness"``, ``"batch noise"`` or ``"rest"``.
        value: the part of k3 in nats per token, with its interval; None if the log does not separate the cause.
        missing: the missing fields, if the cause is not separable without them. Empty for a separable cause, and for
            the difference of two infinite numbers.
        meaning: a sentence about the difference that `value` is.
    """

    name: str
    value: Value[float] | None
    missing: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Bucket:
    """The numbers of the tokens at some positions, or of some lengths, steps or groups.

    Attributes:
        name: the positions, lengths, step or group.
        tokens: the number of tokens.
        k1: the mean of log p - log q, in nats.
        k3: the mean of q/p - 1 - log(q/p), in nats.
        past: the fraction of tokens past the ratio.
    """

    name: str
    tokens: int
    k1: Value[float]
    k3: Value[float]
    past: Value[float]


@dataclass(frozen=True, repr=False)
class Mismatch(ShortRepr, Shown):
    r"""The result of `policy_mismatch`. P is the engine that sampled the tokens, and Q the trainer.

    Attributes:
        tokens: the number of sampled tokens.
        sequences: the number of sequences.
        prompts: the number of prompts, which are the independent units of the intervals.
        k1: the mean of log p - log q, which estimates KL(P || Q) per token without bias, in nats. It is NaN if the
            engine sampled a token with probability 0.
        k3: the mean of q/p - 1 - log(q/p), which varies less, in nats.
        naive_k3: k3 of the log-probabilities as they are, which training stacks log. It equals `k3` if the truncation
            is unknown.
        exact: the mean of the exact divergences of the tokens' distributions; None without `exact_kl`.
        mean_ratio: the mean of q/p, which is 1 apart from chance if both sides are the same kind of log-probability.
        effective_share: the effective sample size of the importance weights q/p, divided by the number of tokens.
        sequence_effective_share: the same for the products of q/p over sequences, divided by their number.
        past: the fraction of tokens with q/p above `ratio` or below 1 / `ratio`.
        ratio: the ratio.
        outside: the fraction of tokens with probability 0 on one side only.
        log_mass_sampler: the mean logarithm of the kept mass in the engine; None if it is unknown.
        log_mass_trainer: the same in the trainer.
        parts: the causes of `naive_k3`, in order; the separable ones add up to it.
        by: the buckets by ``"position"``, ``"length"``, ``"step"`` and ``"group"``.
        notes: sentences about the log.
    """

    tokens: int
    sequences: int
    prompts: int
    k1: Value[float]
    k3: Value[float]
    naive_k3: Value[float]
    exact: Value[float] | None
    mean_ratio: Value[float]
    effective_share: Value[float]
    sequence_effective_share: Value[float]
    past: Value[float]
    ratio: float
    outside: float
    log_mass_sampler: Value[float] | None
    log_mass_trainer: Value[float] | None
    parts: tuple[Part, ...]
    by: dict[str, tuple[Bucket, ...]]
    notes: tuple[str, ...]


@by_name("policy_mismatch(read_token_log('run'))")
def policy_mismatch(
    log: TokenLog,
    *,
    ratio: float = 2.0,
    untruncated: bool = False,
    generator: torch.Generator | None = None,
) -> Mismatch:
    r"""Measure how far a trainer is from the engine that sampled its tokens, and split the divergence into causes.

    With p the engine's probability of a token and q the trainer's, both within the tokens that the engine's truncated
    sampling kept,

    .. math:: k_1 = \log\frac pq, \qquad k_3 = \frac qp - 1 - \log\frac qp, \qquad
        \text{effective share} = \frac{(\sum w)^2}{n \sum w^2}, \; w = \frac qp

    The means of k1 and of k3 both estimate KL(P || Q) per token. The causes are differences of k3, in this order:

    | cause | difference |
    |---|---|
    | truncation | k3 of the log-probabilities as they are, minus k3 within the kept tokens |
    | staleness | minus k3 of the engine from the trainer with the weights that sampled |
    | batch noise | k3 of a side from itself, computed again in another batch |
    | rest | the remainder: precision, kernels, and each cause that is not separable |

    Truncation needs the two masses of the log. Staleness needs `trainer_log_prob_old`, and `old_log_mass` where the
    masses are known, or else both versions. Batch noise needs `trainer_log_prob_again` or `sampler_log_prob_again`.
    With versions alone, staleness is k3 of all tokens minus k3 of the tokens whose weights are current.

    Arguments:
        log: the sampled tokens; `read_token_log` reads them from files.
        ratio: tokens with q/p above `ratio` or below 1 / `ratio` are counted as past it.
        untruncated: True if the engine sampled from all tokens, so that truncation is not a cause.
        generator: the random generator of the bootstrap; None for a generator with a fixed seed.

    Returns:
        the means with 95 % intervals. Prompts are the independent units: their sequences are dependent. With fewer
        than 10 prompts, there are standard errors but no intervals.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: `ratio` is out of range, a mass contradicts a log-probability, or one side's
            log-probabilities belong to the tokens one position before.

    Example:
        >>> import torch
        >>> from kullback.mismatch import TokenLog, policy_mismatch
        >>> sampler = -1 - torch.rand(400, generator=torch.Generator().manual_seed(0))
        >>> noise = 0.01 * torch.randn(400, generator=torch.Generator().manual_seed(1))
        >>> log = TokenLog(torch.arange(400) // 4, torch.arange(400) % 4, sampler, sampler + noise)
        >>> result = policy_mismatch(log, untruncated=True)
        >>> result.tokens, round(result.k3.value, 6), [part.missing for part in result.parts[1:3]]
        (400, 5.3e-05, [('trainer_log_prob_old',), ('trainer_log_prob_again',)])

    References:
        Approximating KL Divergence (Schulman, 2020)
        Sampling Techniques, section 2.11, on the ratio of two means (Cochran, 1977)
    """
    if not isinstance(log, TokenLog):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid_type(
            CALL, "log", wanted="a TokenLog", got=type(log).__name__, instead=f"{CALL}(read_token_log('run'))"
        )
    ratio, untruncated, generator = _ARGUMENTS.check(
        ratio=ratio, untruncated=untruncated, generator=generator
    ).values()
    log = in_order(log)
    refuse_shifted(
        CALL,
        log.sampler_log_prob,
        log.trainer_log_prob,
        None,
        names=("sampler_log_prob", "trainer_log_prob"),
        instead="move {name} one token to the left in each sequence",
    )
    # A known mass overrules the caller's `untruncated`.
    untruncated = untruncated and log.sampler_log_mass is log.trainer_log_mass is None
    naive = _columns(log, None, log.trainer_log_prob)
    support = _support(log)
    own = naive if support is None else _columns(log, support, log.trainer_log_prob)
    measure = _Measure(log, generator)
    parts = _parts(log, naive, own, measure, untruncated=untruncated)
    past = (own.k1.abs() > math.log(ratio)).double()
    lengths = torch.bincount(log.sequence)
    log_weights = torch.zeros(len(lengths), dtype=torch.float64, device="cpu").index_add(
        0, log.sequence, -own.k1
    )
    # k1 of a token that the engine sampled with probability 0 is no evidence that KL is small.
    means = own._replace(k1=own.k1.masked_fill(own.k1 == -math.inf, math.nan))
    exact, masses = log.exact_kl, [log.sampler_log_mass, log.trainer_log_mass]
    lowest = 0.0 if exact is None or bool((exact >= 0).all()) else -math.inf
    return Mismatch(
        tokens=len(log),
        sequences=len(lengths),
        prompts=measure.prompts,
        k1=measure.mean(means.k1),
        k3=measure.mean(own.k3, low=0.0),
        naive_k3=measure.mean(naive.k3, low=0.0),
        exact=None if exact is None else measure.mean(exact, low=lowest),
        mean_ratio=measure.mean(torch.exp(-own.k1), low=0.0),
        effective_share=measure.effective_share(-own.k1),
        sequence_effective_share=measure.effective_share(log_weights, lengths.cumsum(0) - lengths),
        past=measure.mean(past, low=0.0, high=1.0, binary=True),
        ratio=float(ratio),
        outside=float(own.k1.isinf().double().mean()),
        log_mass_sampler=None if masses[0] is None else measure.mean(masses[0], high=0.0),
        log_mass_trainer=None if masses[1] is None else measure.mean(masses[1], high=0.0),
        parts=parts,
        by=_by(log, means, past, measure),
        notes=tuple(_notes(log, own, measure, untruncated=untruncated)),
    )


class _Columns(NamedTuple):
    """k1 and k3 of each token, in nats."""

    k1: Tensor
    k3: Tensor


def _columns(log: TokenLog, support: Support | None, log_q: Tensor) -> _Columns:
    (k1, k3), _ = estimates(CALL, log.sampler_log_prob, log_q, ("k1", "k3"), None, support=support)
    return _Columns(k1, k3)


def _support(log: TokenLog) -> Support | None:
    """Return the masses of both sides; None unless both are known."""
    if log.without_field("sampler_log_mass", "trainer_log_mass"):
        return None
    return Support(p=log.sampler_log_mass, q=log.trainer_log_mass)


class _Measure:
    """Means over tokens with intervals over prompts."""

    def __init__(self, log: TokenLog, generator: torch.Generator | None) -> None:
        units = log.sequence if log.prompt is None else log.prompt
        _, self.units = torch.unique(units, return_inverse=True)
        self.prompts = int(self.units.max()) + 1
        self._seed = int(torch.randint(2**62, (), generator=generator, device="cpu")) if generator else 0

    def mean(
        self,
        values: Tensor,
        places: Tensor | None = None,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        binary: bool = False,
    ) -> Value[float]:
        """Return the mean over tokens; `places` has the places of these tokens in the log, None for all tokens."""
        units = self.units if places is None else self.units[places]
        _, clusters = torch.unique(units, return_inverse=True)
        generator = torch.Generator().manual_seed(self._seed)
        estimator = MeanEstimator(1, _DRAWS, generator, clusters)
        estimator.add(values.double()[:, None])
        (mean,) = estimator.estimates([RatioOfSums(0, low=low, high=high, binary=binary)])
        return Value(float(values.double().mean()), mean.standard_error, mean.interval, reason=mean.reason)

    def effective_share(self, log_weight: Tensor, places: Tensor | None = None) -> Value[float]:
        """Return the effective sample size of weights, divided by their number, from the weights' logarithms.

        The interval belongs to a linear approximation of the share, from the mean and the mean square of the weights.
        """
        largest = log_weight.max()
        if not bool(largest.isfinite()):
            return Value(math.nan, math.nan, None)
        weight = torch.exp(log_weight - largest)
        mean, square = weight.mean(), weight.square().mean()
        share = mean.square() / square
        influence = share * (2 * weight / mean - weight.square() / square - 1)
        linear = self.mean(share + influence, places)
        ends = None
        if linear.interval is not None:
            ends = (max(0.0, linear.interval[0]), min(1.0, linear.interval[1]))
        return Value(float(share), linear.standard_error, ends, reason=linear.reason)


def _parts(
    log: TokenLog, naive: _Columns, own: _Columns, measure: _Measure, *, untruncated: bool
) -> tuple[Part, ...]:
    """Return the causes of the mean of `naive.k3`, in order."""

    def part(
        name: str,
        column: Tensor | None,
        meaning: str,
        missing: Sequence[str] = (),
        *,
        low: float = -math.inf,
    ) -> Part:
        if column is not None and bool(column.mean().isnan()):
            column, missing, meaning = None, (), f"{meaning}: a difference of infinite numbers"
        value = None if column is None else measure.mean(column, low=low)
        return Part(name, value, () if value else tuple(missing), meaning)

    masses = log.without_field("sampler_log_mass", "trainer_log_mass")
    stale, rest, missing, of_staleness = _staleness(log, own)
    noise, of_noise = _noise(log)
    parts = [
        Part("truncation", Value(0.0, 0.0, (0.0, 0.0)), (), "none: the engine sampled from all tokens")
        if untruncated
        else part(
            "truncation",
            None if masses else naive.k3 - own.k3,
            "k3 as it is logged, minus k3 within the kept tokens",
            masses,
        ),
        part("staleness", stale, of_staleness, missing),
        part("batch noise", noise, of_noise, ("trainer_log_prob_again",), low=0.0),
    ]
    also = [x.name for x in parts if x.value is None]
    meaning = "precision and kernels" + (f"; not separated: {', '.join(also)}" if also else "")
    low = 0.0 if rest is own.k3 and noise is None else -math.inf
    return (*parts, part("rest", rest if noise is None else rest - noise, meaning, low=low))


class _Staleness(NamedTuple):
    """A column whose mean is the part of k3 from newer weights, if separable, and a column of k3 without this part."""

    stale: Tensor | None
    rest: Tensor
    missing: tuple[str, ...]
    meaning: str


def _staleness(log: TokenLog, own: _Columns) -> _Staleness:
    support = _support(log)
    meaning = "k3 from the trainer, minus k3 from the trainer with the weights that sampled"
    if log.trainer_log_prob_old is not None:
        if support is not None and log.old_log_mass is None:
            return _Staleness(None, own.k3, ("old_log_mass",), meaning)
        of_old = None if support is None else Support(p=log.sampler_log_mass, q=log.old_log_mass)
        current = _columns(log, of_old, log.trainer_log_prob_old).k3
        return _Staleness(own.k3 - current, current, (), meaning)
    missing = tuple(log.without_field("weight_version", "trainer_version"))
    if missing:
        needed = missing if len(missing) == 1 else ("trainer_log_prob_old",)
        return _Staleness(None, own.k3, needed, meaning)
    fresh = (log.weight_version == log.trainer_version).double()
    meaning = "k3 of all tokens, minus k3 of the tokens of the current weights"
    if not bool(fresh.any()):
        return _Staleness(
            None, own.k3, ("trainer_log_prob_old",), f"{meaning}; no token is of the current weights"
        )
    # The mean over the fresh tokens is a ratio of two means. Its influence function makes it the mean of a column.
    of_fresh = float(own.k3[fresh > 0].mean())
    current = of_fresh + fresh / fresh.mean() * (torch.where(fresh > 0, own.k3, of_fresh) - of_fresh)
    return _Staleness(own.k3 - current, current, (), meaning)


def _noise(log: TokenLog) -> tuple[Tensor | None, str]:
    """Return k3 of a side from itself, for each token, None without a second computation; and a sentence about it.

    The mismatch contains the noise of one computation of each side. k3 of a side from itself contains the noise of two
    such computations. So the mean of both sides' k3 is the noise of the mismatch. If one side alone was
    computed again, the other one counts as equally noisy.
    """
    pairs = {
        "the engine from itself": (log.sampler_log_prob, log.sampler_log_prob_again),
        "the trainer from itself": (log.trainer_log_prob, log.trainer_log_prob_again),
    }
    columns = {
        name: estimates(CALL, first, again, ("k3",), None)[0][0]
        for name, (first, again) in pairs.items()
        if again is not None
    }
    if not columns:
        return None, "k3 of a side from itself in another batch"
    meaning = f"k3 of {' and '.join(columns)} in another batch"
    return torch.stack(list(columns.values())).mean(0), meaning


def _by(log: TokenLog, own: _Columns, past: Tensor, measure: _Measure) -> dict[str, tuple[Bucket, ...]]:
    lengths = torch.bincount(log.sequence)[log.sequence]
    tables = {"position": _powers(log.position), "length": _powers(lengths)}
    if log.step is not None:
        steps, codes = torch.unique(log.step, return_inverse=True)
        tables["step"] = ([str(int(step)) for step in steps], codes)
    if log.group is not None:
        tables["group"] = (list(log.groups), log.group)
    return {
        name: tuple(_buckets(names, codes, own, past, measure))
        for name, (names, codes) in tables.items()
        if len(torch.unique(codes)) > 1
    }


def _buckets(
    names: Sequence[str], codes: Tensor, own: _Columns, past: Tensor, measure: _Measure
) -> Iterator[Bucket]:
    for code, name in enumerate(names):
        places = (codes == code).nonzero()[:, 0]
        if len(places):
            yield Bucket(
                name,
                len(places),
                measure.mean(own.k1[places], places),
                measure.mean(own.k3[places], places, low=0.0),
                measure.mean(past[places], places, low=0.0, high=1.0, binary=True),
            )


def _powers(numbers: Tensor) -> tuple[list[str], Tensor]:
    """Return names of ranges between powers of `_BASE`, and the place of each number's range."""
    limits = [0]
    while limits[-1] <= int(numbers.max()):
        limits.append(max(1, limits[-1] * _BASE))
    names = [str(low) if low == high - 1 else f"{low:,} to {high - 1:,}" for low, high in pairwise(limits)]
    codes = torch.bucketize(numbers, torch.tensor(limits[1:], device="cpu"), right=True)
    return names, codes


def _notes(log: TokenLog, own: _Columns, measure: _Measure, *, untruncated: bool) -> Iterator[str]:
    if measure.prompts < FEWEST_UNITS:
        yield (
            f"There are {measure.prompts} prompts. Intervals need at least {FEWEST_UNITS}, because the sequences of "
            "one prompt are dependent."
        )
    if log.prompt is None:
        yield "The log has no prompts, so every sequence counts as independent. Sequences of one prompt are not."
    masses = log.without_field("sampler_log_mass", "trainer_log_mass")
    if masses and not untruncated:
        also = " If it sampled from all tokens, say so (untruncated=True, --untruncated)."
        yield (
            f"The log has no {' and no '.join(masses)}. If the engine sampled with top-k, top-p or min-p, every number "
            f"here contains the kept mass.{'' if len(masses) == 1 else also}"
        )
    outside = int(own.k1.isinf().sum())
    if outside:
        yield (
            f"Tokens with probability 0 on one side only make k3 infinite: {outside:,} of {len(log):,}. Log both sides "
            "before top-k, top-p and min-p."
        )
    for side, x in (("engine", log.sampler_log_prob), ("trainer", log.trainer_log_prob)):
        coarse = next((dtype for dtype in _COARSE if bool((x.to(dtype) == x).all())), None)
        if coarse is None or len(x) < _FEWEST_ROUNDED:
            continue
        # The variance of rounding is a twelfth of the squared step, and k3 is half of the squared difference.
        added = float(stored_step(x[x.isfinite()].to(coarse)).square().mean()) / 24
        if added > _NOTED_SHARE * float(own.k3.mean()):
            yield (
                f"All log-probabilities of the {side} are {dtype_name(coarse)} numbers. Rounding to them adds up to "
                f"about {significant(added, 2)} nats to k3. Log them in float32."
            )
