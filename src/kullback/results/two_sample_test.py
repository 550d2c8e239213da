"""The result of a test of whether two data sets could come from one distribution."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from kullback.common.display import Shown, html_table
from kullback.common.short_repr import ShortRepr
from kullback.results.estimate import Estimate


@dataclass(frozen=True, repr=False)
class TwoSampleTest(ShortRepr, Shown):
    """The result of `two_sample_test`.

    Attributes:
        p_value: the p-value: the fraction of permutations whose statistic is at least the observed statistic.
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

    def __str__(self) -> str:
        """Return the p-value, the statistic that `method` names, and the effect, in one line."""
        statistic = f"{self.method.replace('_', ' ')} = {self.statistic:.4g} (statistic)"
        effect = "" if self.effect is None else f"; {self.effect}"
        return f"p = {self.p_value:.3g}, {statistic}, {self.permutations} permutations{effect}"

    def __float__(self) -> float:
        """Return the p-value."""
        return float(self.p_value)

    def __format__(self, spec: str) -> str:
        """Return the p-value in the format `spec`; with an empty `spec`, return `str(self)`."""
        return format(float(self), spec) if spec else str(self)

    def _repr_html_(self) -> str:
        """Return an HTML table of the test for notebooks, followed by the notes and the table of the effect."""
        header = ["p-value", "statistic", "value", "permutations"]
        row = [
            f"{self.p_value:.3g}",
            self.method.replace("_", " "),
            f"{self.statistic:.6g}",
            self.permutations,
        ]
        notes = [
            f"<p>{escape(note)}</p>"
            for note in self.notes
            if self.effect is None or note not in self.effect.notes
        ]
        effect = [] if self.effect is None else [self.effect._repr_html_()]  # pyright: ignore[reportPrivateUsage]
        return "\n".join([html_table(header, [row]), *notes, *effect])
