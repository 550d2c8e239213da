"""`Estimate`, a divergence with its method and its error, and `TwoSampleTest`, a test with an estimate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kullback.common.display import ShownNumber
from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type


@dataclass(frozen=True, repr=False)
class Estimate(ShortRepr, ShownNumber):
    """A divergence, the method that computed it, and an error bound or a standard error.

    Arguments:
        value: the divergence of each element of the batch, in nats unless you pass a base.
        error: a bound on the numerical error of `value`, in the same shape and unit as `value`. The bound is None for
            estimates from draws, and for rules without a bound, such as third-party rules.
        method: the name of the method, as in the ``method=`` of the call: ``"closed_form"``, ``"quadrature"`` ...
        interval: for an estimate from draws, the lower and upper limits of its confidence interval. A one-sided
            interval has an infinite limit. `interval` is None for exact methods. `interval` is also None if the draws
            give no valid interval, and `notes` then explain the reason.
        n: for an estimate from draws, the numbers of draws of P and of Q. The number for a known distribution is 0. A
            number is a tensor if the rows of a batch have different numbers of draws.
        notes: sentences about the reliability of `value`, such as warnings about the draws.
        standard_error: for an estimate from draws, the standard error of `value`. The standard error is None for exact
            methods, and for methods that compute none.
        kind: the name of the divergence, such as ``"kl"``.
        base: the base of the logarithm in `value`; None for nats.
        confidence: the coverage probability of the interval; None if unknown.

    `print` writes the estimate in one line, `float` returns the value, and ``f"{estimate:.3f}"`` formats the value.
    Like other results, an estimate has the methods `plot`, `to_html`, `to_json`, `to_dict` and `to_pandas`.

    Example:
        >>> import torch
        >>> from kullback import Probs, kl_estimate
        >>> p, q = torch.tensor([0.36, 0.48, 0.16]), torch.full((3,), 1 / 3)
        >>> estimate = kl_estimate(Probs(p), Probs(q))
        >>> estimate.method, bool(estimate.error < 1e-7)
        ('summation', True)
    """

    value: Tensor
    error: Tensor | None
    method: str
    interval: tuple[Tensor, Tensor] | None = None
    n: tuple[int | Tensor, int | Tensor] | None = None
    notes: tuple[str, ...] = ()
    standard_error: Tensor | None = None
    kind: str = "kl"
    base: float | None = None
    confidence: float | None = None

    def __float__(self) -> float:
        if self.value.numel() != 1:
            wanted = "an estimate of one value"
            got = f"{self.value.numel()} values of shape {tuple(self.value.shape)}"
            raise invalid_type("float", "estimate", wanted=wanted, got=got, instead="estimate.value.tolist()")
        return float(self.value.detach())

    def __getstate__(self) -> dict[str, object]:
        """Return the fields for a copy or a pickle, with tensors detached, because autograd graphs cannot be copied."""
        return {
            name: value.detach() if isinstance(value, Tensor) and not value.is_leaf else value
            for name, value in self.__dict__.items()
        }


@dataclass(frozen=True, repr=False)
class TwoSampleTest(ShortRepr, ShownNumber):
    """The result of `two_sample_test`.

    Attributes:
        p_value: the fraction of permutations whose statistic is at least the observed statistic.
            `p_value` is NaN if draws are so dependent that there are fewer than 10 independent blocks; `notes` then
            report the blocks.
        statistic: the value of the statistic that `method` names.
        effect: the size of the difference: an estimate of KL(P || Q). `effect` is None if no estimator is available for
            these draws; `notes` then give the reason.
        permutations: the number of random permutations.
        method: the name of the statistic that differs most from its values under permutation. For categories, the name
            is ``"likelihood_ratio"``. For numbers, the name is ``"anderson_darling"``, ``"energy"``,
            ``"spread_of_ranks"``, ``"skewness_of_ranks"`` or ``"chi_squared"``. For vectors, the name is ``"energy"``,
            ``"kernel"``, ``"narrow_kernel"``, ``"shift"``, ``"nearest_neighbors"``, ``"spread"``, ``"tails"`` or
            ``"products"``.
        notes: sentences about the draws and the effect.
        least_p_value: the smallest p-value that these numbers of draws and permutations allow. If it is 0.05 or more,
            the test can find no difference between P and Q.

    Example:
        >>> from kullback import Samples, two_sample_test
        >>> test = two_sample_test(Samples(["a"] * 50), Samples(["a"] * 25 + ["b"] * 25))
        >>> test.p_value, test.method
        (0.001, 'likelihood_ratio')
    """

    p_value: float
    statistic: float
    effect: Estimate | None
    permutations: int
    method: str
    notes: tuple[str, ...] = ()
    least_p_value: float = 0.0

    def __float__(self) -> float:
        """Return the p-value."""
        return float(self.p_value)
