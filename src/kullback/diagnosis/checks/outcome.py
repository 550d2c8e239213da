"""Checks of the result: infinities and NaN, the scale of the reduction, lost digits."""

from __future__ import annotations

from collections.abc import Iterator

from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import number
from kullback.findings import Finding

__all__ = ["CHECKS"]


def _zeros(case: Case) -> Iterator[Finding]:
    overlap = case.overlap
    if overlap is None:
        return
    of = f"of {overlap.size} entries"
    if overlap.both.count:
        yield Finding(
            "masked-on-both-sides",
            f"Both sides have probability 0 at {overlap.both.count} {of}, {overlap.both.where}. They should add "
            "nothing, but torch computes 0 * inf = NaN.",
            "error",
            "kullback gives the limit, 0, in value and gradient; kullback.functional.kl_div is a drop-in.",
        )
    if overlap.only_q.count:
        yield Finding(
            "infinite-divergence",
            f"input has probability 0, and target not, at {overlap.only_q.count} {of}, {overlap.only_q.where}: "
            "KL(target || input) is +inf.",
            "warning",
            "If the zeros come from underflow, use log_softmax instead of the log of a softmax. Else compare with "
            "JensenShannon(), which stays finite, or smooth counts with Counts(x, prior=0.5).",
        )
    if overlap.only_p.count and case.log_target:
        yield Finding(
            "log-target-of-zero",
            f"target is -inf at {overlap.only_p.count} {of}, {overlap.only_p.where}; with log_target=True torch "
            "computes 0 * -inf = NaN there.",
            "error",
            "Pass target.exp() without log_target, or use kullback.functional.kl_div.",
        )
    elif overlap.only_p.count:
        yield Finding(
            "target-zeros",
            f"target has probability 0, and input not, at {overlap.only_p.count} {of}, {overlap.only_p.where}.",
            "note",
            "They add nothing: 0 log 0 = 0. Only KL(input || target) is infinite.",
        )


def _reductions(case: Case) -> Iterator[Finding]:
    if not case.values.none or not case.input.numel():
        return
    if case.reduction == "mean" and case.classes > 1:
        yield Finding(
            "mean-divides-by-classes",
            f'reduction="mean" divides by the {case.classes} classes and not only by the rows: it is no divergence.',
            "warning",
            'Use reduction="batchmean".'
            if case.rows == case.batch_size
            else "Sum over the classes, then take the mean.",
        )
    if case.reduction == "batchmean" and case.rows != case.batch_size and case.rows_match:
        yield Finding(
            "batchmean-is-not-per-row",
            f'reduction="batchmean" divides by input.size(0) = {case.batch_size}, but there are {case.rows} rows: the '
            f"value is {number(case.rows / case.batch_size)} times the mean KL of a row.",
            "warning",
            'Flatten to (rows, classes) first, or reduction="none" and .sum over the classes, then .mean().',
        )


def _identical(case: Case) -> Iterator[Finding]:
    if case.forward and case.forward.rows == case.rows and case.forward.high == 0 and case.classes > 1:
        yield Finding(
            "identical",
            "input and target are the same distributions: the divergence is 0.",
            "note",
            "Right at the start of some trainings; else see whether one tensor was passed twice.",
        )


def _half_precision(case: Case) -> Iterator[Finding]:
    halves = [
        f"{name} ({x.dtype})"
        for name, x in (("input", case.input), ("target", case.target))
        if x.is_floating_point() and x.dtype.itemsize < 4
    ]
    if not halves:
        return
    error = _rounding(case)
    yield Finding(
        "half-precision",
        f"{' and '.join(halves)}: torch computes in that precision."
        + ("" if error is None else f" Here its sum is off by {number(100 * error)} % of the divergence."),
        "note" if error is not None and error <= 0.01 else "warning",
        "Take the softmax and the loss in float32: x.float().log_softmax(dim), or kullback, which computes in "
        "float32 or better whatever the dtype.",
    )


def _rounding(case: Case) -> float | None:
    """Return the relative error of torch's sum; None where it is not the divergence."""
    exact = case.forward
    if not (case.as_expected and exact and exact.rows == case.rows and 0 < exact.mean < float("inf")):
        return None
    error = abs(case.values.sum / exact.rows / exact.mean - 1)
    return error if error < float("inf") else None


CHECKS = (_zeros, _reductions, _identical, _half_precision)
