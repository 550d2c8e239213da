"""The metric `PolicyKL`. Importing this module imports torchmetrics."""

# No postponed annotations here, as in kullback.metrics.metric.

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from kullback.errors import invalid_value, safe_repr
from kullback.functional.policy import estimates
from kullback.inputs import number_from
from kullback.metrics.metric import move_states
from kullback.numeric import accurate_dtype, upcast

__all__ = ["PolicyKL"]

# States that keep their dtype when the metric's is changed.
_EXACT = ("state", "beyond")


class PolicyKL(Metric):
    r"""How far two evaluations of one policy are apart, from the log-probabilities of the tokens that one sampled.

    For the mismatch between inference engine and trainer, P is the engine, which sampled the tokens, and Q the trainer;
    for the distance from a reference, P is the policy and Q the reference. With :math:`k_1 = \log p - \log q` and
    :math:`k_3 = q/p - 1 + k_1` of a token, :math:`S_i` the sum of one of them over the :math:`n_i` tokens of sequence
    i, and N sequences:

    .. math::
        \text{token mean } m = \frac{\sum_i S_i}{\sum_i n_i}, \quad
        \mathrm{se} = \frac{1}{\sum_i n_i} \sqrt{\frac{N}{N - 1} \sum_i (S_i - m\, n_i)^2}, \qquad
        \text{sequence mean } \frac1N \sum_i S_i

    The token mean is the divergence per token, and the sequence mean that of whole sequences, KL(P || Q) in nats for
    either. Both estimators have no bias; k1 may be negative, and k3 varies less where the two are close. Tokens of one
    sequence depend on each other, so errors are those of independent sequences.

    Arguments:
        threshold: a token counts as beyond it where :math:`|\log p - \log q|` is larger.
        kwargs: those of `torchmetrics.Metric`.

    Returns:
        `compute` returns a dict of scalars, ready to be logged: ``"k1"`` and ``"k3"``, the means over tokens,
        ``"k1_error"`` and ``"k3_error"``, their standard errors, ``"sequence_k1"``, ``"sequence_k3"``,
        ``"sequence_k1_error"`` and ``"sequence_k3_error"`` likewise, and ``"beyond"``, the share of tokens beyond the
        threshold. float64 where the device has it. Means of nothing are NaN, and so are errors of fewer than two
        sequences; a token with q = 0 < p makes its mean and error +inf.

    Raises:
        ArgumentValueError: `threshold` is negative or no number; at `update`, the shapes do not fit.
        OptionalDependencyError: torchmetrics is not installed.

    Example:
        >>> import torch
        >>> from kullback.metrics import PolicyKL
        >>> metric = PolicyKL(threshold=0.1)
        >>> sampled = torch.tensor([[-1.0, -2.0, -0.5], [-0.5, -1.0, 0.0]])  # by the inference engine
        >>> trained = torch.tensor([[-1.05, -2.0, -0.7], [-0.52, -0.99, 0.0]])
        >>> metric.update(sampled, trained, mask=torch.tensor([[True, True, True], [True, True, False]]))
        >>> found = metric.compute()
        >>> {name: round(float(found[name]), 4) for name in ("k3", "k3_error", "sequence_k3", "beyond")}
        {'k3': 0.004, 'k3_error': 0.0031, 'sequence_k3': 0.0101, 'beyond': 0.2}

    References:
        Approximating KL Divergence (Schulman, 2020)
        Sampling Techniques, section 2.11, on the ratio of two means (Cochran, 1977)
    """

    is_differentiable: bool | None = False
    higher_is_better: bool | None = False
    full_state_update: bool | None = False
    plot_lower_bound: float | None = 0.0

    state: Tensor
    beyond: Tensor

    def __init__(self, threshold: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not number_from(threshold) >= 0:
            raise invalid_value(
                "PolicyKL",
                "threshold",
                wanted="a number that is not negative",
                got=safe_repr(threshold),
                instead="threshold=0.1",
            )
        self.threshold = threshold
        dtype = accurate_dtype(self.device)
        self.add_state("state", torch.zeros(13, dtype=dtype, device=self.device), dist_reduce_fx=_merge)
        self.add_state("beyond", torch.zeros((), dtype=dtype, device=self.device), dist_reduce_fx="sum")

    def update(self, log_p: Tensor, log_q: Tensor, mask: Tensor | None = None) -> None:
        """Add sequences: log-probabilities of shape (..., tokens), and which tokens count, the same shape.

        The tokens were sampled from P. A sequence has to come whole; what `mask` leaves out may hold anything.
        """
        call = "PolicyKL.update"
        exact = [upcast(x) if isinstance(x, Tensor) and x.is_floating_point() else x for x in (log_p, log_q)]
        (k1, k3), weights = estimates(call, exact[0], exact[1], ("k1", "k3"), mask)
        if k1.ndim == 0:
            wanted, got = "log-probabilities of shape (..., tokens)", "a scalar"
            raise invalid_value(call, "log_p", wanted=wanted, got=got, instead="log_p[None], log_q[None]")
        counts = torch.ones_like(k1) if weights is None else weights.to(k1.dtype)
        self.beyond = self.beyond + (k1.abs() > self.threshold).sum()
        rows = torch.stack([x.sum(-1).flatten() for x in (k1, k3, counts)], -1)
        rows = rows[rows[:, 2] > 0]
        self.state = _merge(torch.stack([self.state, _state(rows)]))

    def compute(self) -> dict[str, Tensor]:
        """Return the means, their standard errors and the share beyond the threshold, over all processes."""
        count, sums, products = _parts(self.state)
        tokens = sums[2]
        found: dict[str, Tensor] = {}
        for i, name in enumerate(("k1", "k3")):
            mean = sums[i] / tokens
            # Of S - m n: the deviations of S and n from their means suffice, as their means are m to 1.
            square = products[i, i] - 2 * mean * products[i, 2] + mean**2 * products[2, 2]
            for prefix, center, error in (
                ("", mean, (count / (count - 1) * square.clamp(min=0)).sqrt() / tokens),
                ("sequence_", sums[i] / count, (products[i, i].clamp(min=0) / (count * (count - 1))).sqrt()),
            ):
                error = torch.where(count < 2, torch.nan, torch.where(center.isinf(), torch.inf, error))  # noqa: PLW2901
                found |= {f"{prefix}{name}": center, f"{prefix}{name}_error": error}
        return found | {"beyond": self.beyond / tokens}

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> Self:
        """Let a change of device through, but not of dtype, as sums have to stay exact."""
        super()._apply(fn, exclude_state=(*exclude_state, *_EXACT))
        move_states(self, self._defaults, _EXACT)
        return self


# Each sequence has three numbers: the sums of k1 and of k3, and how many tokens it has. A state is the number of
# sequences, the three sums, and the 3 x 3 products of the deviations from the means, which merge without cancellation.


def _state(rows: Tensor) -> Tensor:
    deviations = rows - rows.sum(0) / max(rows.shape[0], 1)
    count = rows.new_full((1,), rows.shape[0])
    return torch.cat([count, rows.sum(0), (deviations.T @ deviations).flatten()])


def _parts(state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return state[..., 0], state[..., 1:4], state[..., 4:].unflatten(-1, (3, 3))


def _merge(states: Tensor) -> Tensor:
    """Merge states, shape (how many, 13), into one, as Chan, Golub and LeVeque (1979) merge variances."""
    counts, sums, products = _parts(states)
    total = sums.sum(0)
    deviations = sums / counts.clamp(min=1)[:, None] - total / counts.sum().clamp(min=1)
    # A state without sequences says nothing about means, also if those of the others are infinite.
    deviations = torch.where(counts[:, None] > 0, deviations, 0)
    between = torch.einsum("k,ki,kj->ij", counts, deviations, deviations)
    return torch.cat([counts.sum()[None], total, (products.sum(0) + between).flatten()])
