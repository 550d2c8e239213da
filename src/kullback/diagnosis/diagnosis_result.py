"""`Diagnosis`: the result of `diagnose`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kullback.common.display import Shown
from kullback.common.formats import significant
from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading
from kullback.diagnosis.suggestion import Suggestion
from kullback.diagnosis.values import RowValues, TorchValues
from kullback.losses.reduction import Reduction
from kullback.results.finding import Finding


@dataclass(frozen=True)
class TensorSummary:
    """A description of one argument.

    Attributes:
        shape, dtype, device: the shape, dtype and device of the tensor.
        representation: the content, inferred from the values, such as ``"logits"`` or ``"probabilities"``.
        why: the evidence for this content.
        row_sums: the smallest and the largest sum of a row, or of its exponentials for logarithms; None if no row has a
            sum.
        zeros, minus_infinities, plus_infinities, nans: the number of such entries, and the index of the first such
            entry.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    representation: str | None = None
    why: str | None = None
    row_sums: tuple[float, float] | None = None
    zeros: tuple[int, tuple[int, ...] | None] = (0, None)
    minus_infinities: tuple[int, tuple[int, ...] | None] = (0, None)
    plus_infinities: tuple[int, tuple[int, ...] | None] = (0, None)
    nans: tuple[int, tuple[int, ...] | None] = (0, None)


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """The result of `diagnose`. ``print`` and notebooks show a report, and `to_dict` returns its content for scripts.

    Attributes:
        call: the code of the call.
        direction: the divergence that the call computes.
        input, target: a description of each argument.
        dim: the dimension of the classes, negative; a tuple if one distribution extends over several dimensions.
        values: torch's value for each reduction, and the shape of the result for ``"none"``. `values` is empty if the
            call raises an error.
        raises: the message of the error that the call raises, or None.
        meanings: for each reduction, the relation of its value to the divergence of a row.
        kl_target_input, kl_input_target: the divergence of each pair of rows in both directions, computed by kullback
            from the inferred contents; None if the rows cannot be paired.
        findings: mistakes and notes, errors first.
        suggestion: corrected code; None if the intention is unclear.

    Example:
        >>> import torch, kullback
        >>> p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.25, 0.75]])
        >>> diagnosis = kullback.diagnose(q, p, reduction="batchmean")
        >>> diagnosis.ok, diagnosis.codes
        (False, ('input-is-probabilities',))
        >>> diagnosis.suggestion.torch
        'F.kl_div(input.log(), target, reduction="batchmean")'
    """

    call: str
    direction: str
    input: TensorSummary
    target: TensorSummary
    dim: int | tuple[int, ...]
    values: TorchValues
    raises: str | None
    meanings: dict[str, str]
    kl_target_input: RowValues | None
    kl_input_target: RowValues | None
    findings: tuple[Finding, ...]
    suggestion: Suggestion | None
    reduction: Reduction

    def __hash__(self) -> int:
        # The dictionaries have no hash and are left out, so equal diagnoses have equal hashes.
        return hash((self.call, self.direction, self.input, self.target, self.dim, self.findings))

    @property
    def ok(self) -> bool:
        """Whether the findings contain no error and no warning."""
        return all(finding.level == "note" for finding in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings."""
        return tuple(finding.code for finding in self.findings)

    def __repr__(self) -> str:
        kl = self.kl_target_input
        value = f"KL(target || input) = {significant(kl.mean)} per row" if kl else "no value"
        return f"<Diagnosis: {', '.join(self.codes) or 'no problems found'}; {value}>"


def conclude(case: Case, findings: list[Finding], suggestion: Suggestion | None) -> Diagnosis:
    """Return the `Diagnosis` of a call from its facts, its findings and the suggested code."""
    p = "exp(target)" if case.log_target else "target"
    return Diagnosis(
        call=case.call,
        direction=f"computes KL(target || input), in nats: how far P = {p} is from Q = exp(input), averaged over P",
        input=_summary(case.input, case.shapes[0], case.read_input),
        target=_summary(case.target, case.shapes[1], case.read_target),
        dim=case.axes.shown,
        values=case.values,
        raises=case.error,
        meanings=_meanings(case) if case.values else {},
        kl_target_input=case.forward,
        kl_input_target=case.backward,
        findings=tuple(findings),
        suggestion=suggestion,
        reduction=case.reduction,
    )


def _meanings(case: Case) -> dict[str, str]:
    rows, size = case.rows, case.batch_size
    of_a_row = "the KL of the one row" if rows == 1 else "the mean KL of a row"
    if rows == size or not size:
        batchmean = of_a_row
    else:
        batchmean = f"{significant(rows / size)} times {of_a_row}: {rows} rows, but input.size(0) = {size}"
    return {
        "none": f"the terms; .sum({case.axes.shown}) of them is the KL of each row",
        "sum": of_a_row if rows == 1 else f"the KL of all {rows} rows together",
        "mean": f"{of_a_row}, divided by the {case.classes} classes" if case.classes > 1 else of_a_row,
        "batchmean": batchmean,
    }


def _summary(x: Tensor, shape: tuple[int, ...], reading: Reading | None) -> TensorSummary:
    basics = shape, str(x.dtype).removeprefix("torch."), str(x.device)
    if reading is None:
        return TensorSummary(*basics)
    sums = reading.row_sums
    occurrences = (reading.zero, reading.minus_infinity, reading.plus_infinity, reading.nan)
    row_sums = (sums.low, sums.high) if sums.rows and reading.representation != "class indices" else None
    return TensorSummary(
        *basics, reading.representation, reading.why, row_sums, *((s.count, s.first) for s in occurrences)
    )
