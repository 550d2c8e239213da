"""Checks of the arguments: shapes, dtypes, devices, class indices."""

from __future__ import annotations

from collections.abc import Iterator

from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import number
from kullback.diagnosis.values import largest_cut
from kullback.findings import Finding

__all__ = ["CHECKS"]


def _empty(case: Case) -> Iterator[Finding]:
    for name, x in (("input", case.input), ("target", case.target)):
        if not x.numel():
            yield Finding(
                "empty-tensor",
                f"{name} has shape {tuple(x.shape)}, so there is no row to compare. The mean of nothing is NaN.",
                "warning",
                "Skip empty batches before the loss.",
            )
        elif not x.ndim:
            yield Finding(
                "no-classes",
                f"{name} is a single number; a divergence needs one probability for each class.",
                "error",
                "Pass a dimension that holds the classes; for a yes-or-no probability p, torch.stack([1 - p, p], -1).",
            )


def _devices(case: Case) -> Iterator[Finding]:
    if case.input.device != case.target.device:
        yield Finding(
            "device-mismatch",
            f"input is on {case.input.device}, target on {case.target.device}.",
            "error",
            "Move one: target.to(input.device).",
        )


def _dtypes(case: Case) -> Iterator[Finding]:
    input, target = case.input, case.target
    for name, x in (("input", input), ("target", target)):
        if not x.is_floating_point() and not (case.labels and name == "target"):
            yield Finding(
                f"{name}-is-integer",
                f"{name} has dtype {x.dtype}, which torch's kl_div does not take.",
                "error",
                f"Convert it, {name}.float(), after it has been normalized if it holds counts.",
            )
    if input.is_floating_point() and target.is_floating_point() and input.dtype != target.dtype:
        yield Finding(
            "dtype-mismatch",
            f"input is {input.dtype} and target {target.dtype}; torch promotes both to the wider one.",
            "note",
            "Harmless for the value; the narrower one keeps its rounding.",
        )


def _class_indices(case: Case) -> Iterator[Finding]:
    if not case.labels:
        return
    stray = case.stray_labels
    outside = f" {stray.count} of them name no class, {stray.where}." if stray.count else ""
    yield Finding(
        "target-is-class-indices",
        f"target, of shape {tuple(case.target.shape)}, holds one whole number for each row of input: class "
        f"indices, not probabilities.{outside}",
        "error",
        "The KL divergence from a certain class is the cross-entropy: F.cross_entropy takes class indices.",
    )


def _shapes(case: Case) -> Iterator[Finding]:
    if case.fit is None:
        return
    shapes = f"input {tuple(case.input.shape)} and target {tuple(case.target.shape)}"
    repair, result = case.fit.repair, case.fit.broadcasts
    if result is None:
        yield Finding("shape-mismatch", f"{shapes} do not fit together.", "error", _remedy(case))
    elif repair is None or not case.rows_match:
        yield Finding(
            "silent-broadcast",
            f"{shapes} broadcast to {result}, which pairs entries that do not belong together.",
            "error",
            _remedy(case),
        )
    elif repair.how == "expand":
        one_sided = result in (tuple(case.input.shape), tuple(case.target.shape))
        yield Finding(
            "silent-broadcast",
            f"{shapes} broadcast to {result}: "
            + (
                "the same rows are used again and again." if one_sided else "every row meets every other one."
            ),
            "note" if one_sided else "warning",
            "Write the expansion out if it is meant: target.expand(...); else give both one shape.",
        )


def _remedy(case: Case) -> str:
    repair = case.fit.repair if case.fit else None
    if repair is None:
        return "No reshaping pairs them up: give both the same rows and classes, in the same dimensions."
    code = " and ".join(c for c, name in ((repair.input, "input"), (repair.target, "target")) if c != name)
    if repair.how == "cut-rows":
        return f"Cut both to the rows they share: {code}; or pad the shorter one and mask the padding."
    if repair.how == "cut-classes":
        return _cut_remedy(case, code)
    if repair.how == "binary":
        return f"If target is the probability of the second of the two classes, spell both out: {code}."
    return f"Bring them to one shape: {code}."


def _cut_remedy(case: Case, code: str) -> str:
    kept = min(case.input.shape[case.dim], case.target.shape[case.dim])
    longer, x, reading = "input", case.input, case.read_input
    if x.shape[case.dim] == kept:
        longer, x, reading = "target", case.target, case.read_target
    lost = largest_cut(x, reading, case.dim, kept) if reading else 1.0
    return (
        f"If the last {x.shape[case.dim] - kept} of {longer} pad the same vocabulary, cut both to the first {kept}, "
        f"{code}, and normalize again, which leaves out up to {number(lost)} of a row. Or pad the shorter one with "
        "probability 0."
    )


def _single_class(case: Case) -> Iterator[Finding]:
    if case.paired and case.classes == 1:
        yield Finding(
            "single-class",
            f"dim={case.dim} has one class, which has probability 1 whatever its score: the divergence is 0.",
            "warning",
            "For yes-or-no probabilities compare Bernoulli distributions, or spell out both classes: [1 - p, p].",
        )


CHECKS = (_empty, _devices, _class_indices, _shapes, _dtypes, _single_class)
