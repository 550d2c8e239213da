"""The result of a test of whether two data sets could come from one distribution."""

from __future__ import annotations

from dataclasses import dataclass

from kullback.common.display import ShownNumber
from kullback.common.short_repr import ShortRepr
from kullback.results.estimate import Estimate


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
