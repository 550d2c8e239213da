"""The metric `PolicyKL`. Importing this module imports torchmetrics."""

# Like kullback.metrics.metric, this module has no postponed annotations, because TorchScript reads the annotations.

import warnings
from typing import Any

import torch
from torch import Tensor

from kullback.common.constraints import Arguments, Number
from kullback.common.dtypes import accurate_dtype, upcast
from kullback.errors import invalid_value
from kullback.estimators import EstimateWarning
from kullback.losses.log_probs import estimates, refuse_shifted
from kullback.losses.truncated_sampling import Support
from kullback.metrics.metric import ExactMetric

# These are the columns of the sums of a sequence. The first three columns are k1, k3 and 1, summed over the tokens that
# have mass under both P and Q. The other columns are q/p - 1, 1, and the logarithms of the kept masses of P and Q,
# summed over all tokens.
_K1, _K3, _INSIDE, _RATIO, _TOKENS, _MASS_P, _MASS_Q = range(7)
_COLUMNS = 7
# `compute` warns if the mean of q/p over at least `_FEWEST_SEQUENCES` sequences differs significantly from 1. A
# difference is significant if it exceeds `_FARTHEST_RATIO` standard errors (p < 0.0002) plus `_ROUNDED`, a bound of the
# rounding errors.
_FEWEST_SEQUENCES, _FARTHEST_RATIO, _ROUNDED = 10, 6.0, 1e-4


_ARGUMENTS = Arguments("PolicyKL", threshold=Number(least=0, example=0.1))


class PolicyKL(ExactMetric):
    r"""KL(P || Q) of two policies, from the log-probabilities of tokens that were sampled from P.

    For the mismatch between inference engine and trainer, P is the engine, which sampled the tokens, and Q the trainer.
    For the divergence from a reference, P is the policy and Q the reference. A token has :math:`k_1 = \log p - \log q`
    and :math:`k_3 = q/p - 1 + k_1`. Let :math:`S_i` be the sum of k1, or of k3, over the :math:`n_i` tokens of sequence
    i, and N the number of sequences:

    .. math::
        \text{token mean } m = \frac{\sum_i S_i}{\sum_i n_i}, \quad
        \mathrm{se} = \frac{1}{\sum_i n_i} \sqrt{\frac{N}{N - 1} \sum_i (S_i - m\, n_i)^2}, \qquad
        \text{sequence mean } \frac1N \sum_i S_i

    The token mean estimates KL(P || Q) per token, and the sequence mean estimates KL(P || Q) per sequence, both in
    nats. Both :math:`k_1` and :math:`k_3` are unbiased. While :math:`k_1` may be negative, :math:`k_3` varies less than
    :math:`k_1` if P and Q are close. Tokens of a sequence are dependent. The standard errors therefore assume only that
    the sequences are independent.

    The mean of q/p has expectation 1 if P has mass wherever Q has, and if the tokens were sampled with the
    probabilities p. Log-probabilities after top-p, top-k or min-p violate these conditions: k3 then omits the mass of Q
    where P has probability 0. `support` in `update` restricts both sides to the tokens that the engine kept. `compute`
    warns if the mean is more than 6 standard errors from 1.

    Arguments:
        threshold: a token is beyond the threshold if :math:`|\log p - \log q|` is larger than `threshold`.
        kwargs: arguments of `torchmetrics.Metric`.

    Returns:
        `compute` returns a dict of scalars to log, in float64 if the device supports it. A mean over no tokens is NaN,
        and so is a standard error from fewer than two sequences.

        * ``"k1"`` and ``"k3"``: the means over tokens; a token with q = 0 < p makes both means +inf;
        * ``"sequence_k1"`` and ``"sequence_k3"``: the means over sequences;
        * ``"inside_k1"`` and ``"inside_k3"``: the means over the tokens with mass under both P and Q;
        * ``"ratio"``: the mean of q/p over tokens;
        * ``"log_mass_p"`` and ``"log_mass_q"``, if an update had a `support`: the means over tokens of the logarithms
          of the kept masses, 0 for tokens without a mass;
        * each of these names with ``"_error"`` appended: the standard error;
        * ``"beyond"``: the fraction of tokens beyond the threshold;
        * ``"outside"``: the fraction of tokens with probability 0 under either P or Q, but not both.

    Warns:
        EstimateWarning: in `compute`, if a token has probability 0 under only one of P and Q, or if the mean of q/p
            differs significantly from 1.

    Raises:
        ArgumentValueError: `threshold` is negative or not a number. In `update`, the shapes do not fit, or a mass
            contradicts a log-probability. On the CPU, one side has the log-probabilities of the next tokens.
        OptionalDependencyError: torchmetrics is not installed.

    Example:
        >>> import torch
        >>> from kullback.metrics import PolicyKL
        >>> metric = PolicyKL(threshold=0.1)
        >>> sampled = torch.tensor([[-1.0, -2.0, -0.5], [-0.5, -1.0, 0.0]])  # by the inference engine
        >>> trained = torch.tensor([[-1.05, -2.0, -0.7], [-0.52, -0.99, 0.0]])
        >>> metric.update(sampled, trained, mask=torch.tensor([[True, True, True], [True, True, False]]))
        >>> results = metric.compute()
        >>> {name: round(float(results[name]), 4) for name in ("k3", "k3_error", "sequence_k3", "beyond")}
        {'k3': 0.004, 'k3_error': 0.0031, 'sequence_k3': 0.0101, 'beyond': 0.2}

    References:
        Approximating KL Divergence (Schulman, 2020)
        Sampling Techniques, section 2.11, on the ratio of two means (Cochran, 1977)
    """

    is_differentiable: bool | None = False
    exact_states = ("state", "beyond", "outside", "supported")

    state: Tensor
    beyond: Tensor
    supported: Tensor

    def __init__(self, threshold: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _ARGUMENTS.check(threshold=threshold)
        self.threshold = threshold
        dtype = accurate_dtype(self.device)
        empty = torch.zeros(1 + _COLUMNS + _COLUMNS**2, dtype=dtype, device=self.device)
        self.add_state("state", empty, dist_reduce_fx=_merge)
        self.add_state("beyond", torch.zeros((), dtype=dtype, device=self.device), dist_reduce_fx="sum")
        # `outside` contains the number of tokens with q = 0 < p and the number of tokens with p = 0 < q.
        self.add_state("outside", torch.zeros(2, dtype=dtype, device=self.device), dist_reduce_fx="sum")
        # `supported` is the number of updates with a `support`.
        self.add_state("supported", torch.zeros((), dtype=dtype, device=self.device), dist_reduce_fx="sum")

    def update(
        self, log_p: Tensor, log_q: Tensor, mask: Tensor | None = None, support: Support | None = None
    ) -> None:
        """Add sequences: log-probabilities of shape (..., tokens), and a mask of the same shape that is True for tokens
        that count.

        The tokens were sampled from P. Each sequence must be complete. Tokens that `mask` excludes may have any values.
        On the CPU, a mask that is False everywhere raises a warning. `support` has the logarithms of the masses of the
        tokens that the engine's truncated sampling kept. On the CPU, log-probabilities that fit after a shift by one
        token, and do not fit without, are refused.
        """
        call = "PolicyKL.update"
        exact = [upcast(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in (log_p, log_q)]
        (k1, k3), weights = estimates(call, exact[0], exact[1], ("k1", "k3"), mask, support=support)
        if k1.ndim == 0:
            wanted, got = "log-probabilities of shape (..., tokens)", "a scalar"
            raise invalid_value(call, "log_p", wanted=wanted, got=got, instead="log_p[None], log_q[None]")
        refuse_shifted(call, exact[0], exact[1], mask)
        counts = torch.ones_like(k1) if weights is None else weights.to(k1.dtype)
        self.beyond = self.beyond + (k1.abs() > self.threshold).sum()
        self.outside = self.outside + torch.stack([(k1 == torch.inf).sum(), (k1 == -torch.inf).sum()])
        inside = k1.isfinite()
        kept = (torch.where(inside, x, 0) for x in (k1, k3, counts))
        masses = (
            torch.zeros_like(k1) if mass is None else torch.where(counts > 0, upcast(mass.detach()), 0)
            for mass in ((None, None) if support is None else (support.p, support.q))
        )
        columns = (*kept, torch.expm1(-k1), counts, *masses)
        rows = torch.stack([x.sum(-1).flatten() for x in columns], -1)
        rows = rows[rows[:, _TOKENS] > 0]
        self.state = _merge(torch.stack([self.state, _state(rows)]))
        if support is not None:
            self.supported = self.supported + 1

    def compute(self) -> dict[str, Tensor]:
        """Return the means, their standard errors and the fractions of tokens, over all processes."""
        count, sums, products = _parts(self.state)
        tokens, outside = sums[_TOKENS], self.outside.sum()
        without_q, without_p = (torch.where(x > 0, torch.inf, 0) for x in self.outside)
        results: dict[str, Tensor] = {}
        for name, column, infinite in (
            ("k1", _K1, without_q - without_p),
            ("k3", _K3, without_q + without_p),
        ):
            results |= self._with_error(name, *_ratio(self.state, column, _TOKENS), infinite)
            of_sequences = sums[column] / count, products[column, column].clamp(min=0) / (count * (count - 1))
            results |= self._with_error(f"sequence_{name}", of_sequences[0], of_sequences[1].sqrt(), infinite)
            inside = _ratio(self.state, column, _INSIDE)
            results |= self._with_error(f"inside_{name}", *inside, torch.zeros_like(infinite))
        if bool(self.supported > 0):
            for name, column in (("log_mass_p", _MASS_P), ("log_mass_q", _MASS_Q)):
                mean, error = _ratio(self.state, column, _TOKENS)
                results |= self._with_error(name, mean, error, torch.zeros_like(mean))
        excess, error = _ratio(self.state, _RATIO, _TOKENS)
        results |= self._with_error("ratio", 1 + excess, error, torch.zeros_like(excess))
        if bool(outside > 0):
            _warn_outside(self.outside, tokens)
        elif int(count) >= _FEWEST_SEQUENCES and bool(excess.abs() > _FARTHEST_RATIO * error + _ROUNDED):
            _warn_ratio(results, sums[_INSIDE])
        return results | {"beyond": self.beyond / tokens, "outside": outside / tokens}

    def _with_error(self, name: str, mean: Tensor, error: Tensor, infinite: Tensor) -> dict[str, Tensor]:
        """Return `name` with mean + infinite, and `name` + "_error" with the standard error. The error is NaN for fewer
        than two sequences, and +inf for an infinite mean.
        """
        mean = mean + infinite
        error = torch.where(self.state[0] < 2, torch.nan, torch.where(mean.isinf(), torch.inf, error))
        return {name: mean, f"{name}_error": error}


def _warn_outside(outside: Tensor, tokens: Tensor) -> None:
    without_q, without_p, all_tokens = int(outside[0]), int(outside[1]), int(tokens)
    parts = [
        f"{number:,} of {all_tokens:,} tokens ({number / all_tokens:.2g}) have probability 0 under {name} alone"
        for number, name in ((without_q, "Q"), (without_p, "P, which sampled them,"))
        if number
    ]
    text = (
        f"PolicyKL: {', and '.join(parts)}. This makes the means k1 and k3 infinite; inside_k1 and inside_k3 are the "
        "means of the other tokens. Pass the log-probabilities before top-p, top-k and min-p for both sides."
    )
    warnings.warn(text, EstimateWarning, stacklevel=4)


def _warn_ratio(results: dict[str, Tensor], tokens: Tensor) -> None:
    number = {name: float(value) for name, value in results.items()}
    distance = abs(number["ratio"] - 1) / number["ratio_error"] if number["ratio_error"] else float("inf")
    text = (
        f"PolicyKL: k1 = {number['k1']:.4g} and k3 = {number['k3']:.4g} of {int(tokens):,} tokens contradict each "
        f"other. They differ by the mean of q/p minus 1, {number['ratio'] - 1:.3g}, which is {distance:.3g} standard "
        "errors from 0. After top-p, top-k or min-p, k3 omits the mass of Q where P gives probability 0: sample "
        "without them, or pass support=, the masses of the kept tokens. If the tokens were sampled at "
        "another temperature, both are wrong: pass the log-probabilities at the temperature of sampling. If P and Q "
        "are far apart, k3 misses rare large q/p: use k1."
    )
    warnings.warn(text, EstimateWarning, stacklevel=4)


# A state is a vector of three parts. The first part is the number of sequences. The second part has, for each column,
# the total of the column over the sequences. The third part has the sums of products of the sequences' deviations from
# the mean, for all pairs of columns. Such sums of products can be merged without cancellation.


def _ratio(state: Tensor, above: int, below: int) -> tuple[Tensor, Tensor]:
    """Return the ratio of two totals, column `above` divided by column `below`, and its standard error."""
    count, sums, products = _parts(state)
    mean = sums[above] / sums[below]
    # Let S and n be the values of a sequence in columns `above` and `below`, and let m be the ratio. `square` is the
    # sum of (S - m n)^2 over the sequences. The mean of S - m n is 0, so the deviations of S and n from their means
    # give `square`.
    square = products[above, above] - 2 * mean * products[above, below] + mean**2 * products[below, below]
    return mean, (count / (count - 1) * square.clamp(min=0)).sqrt() / sums[below]


def _state(rows: Tensor) -> Tensor:
    deviations = rows - rows.sum(0) / max(rows.shape[0], 1)
    count = rows.new_full((1,), rows.shape[0])
    return torch.cat([count, rows.sum(0), (deviations.T @ deviations).flatten()])


def _parts(state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sums, products = state[..., 1 : 1 + _COLUMNS], state[..., 1 + _COLUMNS :]
    return state[..., 0], sums, products.unflatten(-1, (_COLUMNS, _COLUMNS))


def _merge(states: Tensor) -> Tensor:
    """Merge states of shape (states, values) by the method of Chan, Golub and LeVeque (1979)."""
    counts, sums, products = _parts(states)
    total = sums.sum(0)
    deviations = sums / counts.clamp(min=1)[:, None] - total / counts.sum().clamp(min=1)
    # A state without sequences has no mean. The deviation of such a state must be 0 even if the means of other states
    # are infinite.
    deviations = torch.where(counts[:, None] > 0, deviations, 0)
    between = torch.einsum("k,ki,kj->ij", counts, deviations, deviations)
    return torch.cat([counts.sum()[None], total, (products.sum(0) + between).flatten()])
