"""The checks of a call of `F.kl_div`, as a table of the code, level, condition, message and remedy of each finding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading, interval, number
from kullback.diagnosis.values import largest_cut
from kullback.results.finding import LEVELS, Finding, Level

_Subject = TypeVar("_Subject")


@dataclass(frozen=True)
class Check(Generic[_Subject]):
    """A check of a subject, which is the call or one of its arguments; a true value of `when` is a finding.

    Code, message and remedy are templates about `it`, the subject, or functions of the subject.
    """

    code: str
    level: Level
    when: Callable[[_Subject], object]
    message: str | Callable[[_Subject], str]
    remedy: str | Callable[[_Subject], str]

    def finding(self, subject: _Subject) -> Finding:
        message, advice = (
            text.format(it=subject) if isinstance(text, str) else text(subject)
            for text in (self.message, self.remedy)
        )
        return Finding(self.code.format(it=subject), message, self.level, advice)


class _Argument(NamedTuple):
    """An argument of the call."""

    name: str
    x: Tensor
    are_labels: bool


def _contents(it: Reading) -> str:
    needed = "log-probabilities" if it.needs_logs else "probabilities"
    return f"{it.name} holds {it.representation} ({it.why}), but the call needs {needed}."


def _normalize(it: Reading) -> str:
    """Return how to normalize scores, counts or weights."""
    softmax = f"{it.code}.{'log_' * it.needs_logs}softmax({it.dim})"
    divide = f"ivide by the sum of each row{', then take the logarithm' * it.needs_logs}"
    may_be_labels = it.low >= 0 and it.high <= 1 and it.classes > 1
    labels = (
        " If each is the probability of a label of its own, compare Bernoulli distributions." * may_be_labels
    )
    if it.holds("logits"):
        return f"Normalize them: {softmax}."
    if it.holds("counts"):
        return f"D{divide}; Counts(x) does that.{labels}"
    return f"If they are weights, d{divide}, as Counts(x) does; if they are scores, {softmax}.{labels}"


def _sums(it: Reading) -> str:
    sums, what = it.row_sums, "exp of the rows" if it.in_logs else "the rows"
    return (
        f"{it.name}: {what} should add up to 1 within {sums.tolerance:g} ({it.dtype}), and {sums.off.count} of "
        f"{sums.rows} do not, the first at row {sums.off.first}; they add up to {interval(sums.low, sums.high)}."
    )


def _class_indices(case: Case) -> str:
    stray, shape = case.stray_labels, tuple(case.target.shape)
    outside = f" {stray.count} of them are not classes, {stray.where}." if stray.count else ""
    what = f"target, of shape {shape}, holds one whole number for each row of input"
    return f"{what}: class indices, not probabilities.{outside}"


def _remedy_of_shapes(case: Case) -> str:
    repair = case.repair
    if repair.how == "none":
        return "No reshape makes them match: give both the same rows and classes, in the same dimensions."
    code = " and ".join(c for c, name in ((repair.input, "input"), (repair.target, "target")) if c != name)
    if repair.how == "cut-rows":
        return f"Cut both to the rows they share: {code}; or pad the shorter one and mask the padding."
    if repair.how == "binary":
        return f"If target is the probability of the second of two classes, write both out: {code}."
    if repair.how != "cut-classes":
        return f"Bring them to one shape: {code}."
    kept = case.classes
    longer, x, reading = "input", case.input, case.read_input
    if x.shape[case.dim] == kept:
        longer, x, reading = "target", case.target, case.read_target
    lost = largest_cut(x, reading, case.dim, kept) if reading else 1.0
    return (
        f"If the last {x.shape[case.dim] - kept} of {longer} pad the same vocabulary, cut both to the first {kept}, "
        f"{code}, and normalize again, which leaves out up to {number(lost)} of a row. Or pad the shorter one with "
        "probability 0."
    )


def _are_floating(case: Case) -> bool:
    return all(x.is_floating_point() for _, x in case.tensors)


def _has_mean(case: Case) -> bool:
    """Return whether torch raises no error, and `input` has at least one entry."""
    return bool(case.values and case.input.numel())


def _remedy_of_mean(case: Case) -> str:
    per_row = case.rows == case.batch_size
    return 'Use reduction="batchmean".' if per_row else "Sum over the classes, then take the mean."


def _batchmean(case: Case) -> str:
    rows, size = case.rows, case.batch_size
    divides = f'reduction="batchmean" divides by input.size(0) = {size}, but there are {rows} rows'
    return f"{divides}: the value is {number(rows / size)} times the mean KL of a row."


def _is_identical(case: Case) -> bool:
    forward = case.forward
    return bool(forward and forward.rows == case.rows and forward.high == 0 and case.classes > 1)


def _halves(case: Case) -> list[str]:
    narrow = ((name, x.dtype) for name, x in case.tensors if x.is_floating_point() and x.dtype.itemsize < 4)
    return [f"{name} ({dtype})" for name, dtype in narrow]


def _rounding(case: Case) -> float:
    """Return the relative error of torch's sum, or NaN if the sum is infinite or is not the divergence."""
    exact, total = case.forward, case.values.get("sum")
    if not (case.as_expected and exact and exact.rows == case.rows and 0 < exact.mean < math.inf):
        return math.nan
    error = abs(total / exact.rows / exact.mean - 1) if isinstance(total, float) else math.nan
    return error if error < math.inf else math.nan


def _half_precision(case: Case) -> str:
    error = _rounding(case)
    off = "" if math.isnan(error) else f" Here its sum is off by {number(100 * error)} % of the divergence."
    return f"{' and '.join(_halves(case))}: torch computes in that precision.{off}"


def _call(case: Case) -> tuple[Case, ...]:
    return (case,)


def _arguments(case: Case) -> Iterator[_Argument]:
    for name, x in case.tensors:
        yield _Argument(name, x, case.labels is not None and name == "target")


def _readings(case: Case) -> Iterator[Reading]:
    if case.read_input:
        yield case.read_input
    if case.read_target and not case.labels:
        yield case.read_target


def _unexplained(case: Case) -> Iterator[Reading]:
    """Yield the readings, unless a finding about both arguments explains their contents."""
    return iter(()) if case.are_independent or case.reversed else _readings(case)


_FIND = "Find where it arises; the code below only leaves those rows out."
_WRITE_OUT = "If this is intended, write it out: target.expand(...). Otherwise give both the same shape."
_TAKE_FLOAT32 = (
    "Take the softmax and the loss in float32: x.float().log_softmax(dim), or kullback, which computes in float32 or "
    "better whatever the dtype."
)

_EMPTY: tuple[Check[_Argument], ...] = (
    Check("empty-tensor", "warning", lambda it: not it.x.numel(),
      lambda it: f"{it.name} has shape {tuple(it.x.shape)}, so there is no row to compare. The mean of no rows is NaN.",
      "Skip empty batches before the loss."),
    Check("no-classes", "error", lambda it: it.x.numel() and not it.x.ndim,
      "{it.name} is a single number; a divergence needs one probability for each class.",
      "Pass a dimension that holds the classes; for a yes-or-no probability p, torch.stack([1 - p, p], -1)."),
)  # fmt: skip
_SHAPES: tuple[Check[Case], ...] = (
    Check("device-mismatch", "error", lambda it: it.input.device != it.target.device,
      "input is on {it.input.device}, target on {it.target.device}.",
      "Move one: target.to(input.device)."),
    Check("target-is-class-indices", "error", lambda it: it.labels, _class_indices,
      "The KL divergence from a certain class is the cross-entropy: F.cross_entropy takes class indices."),
    Check("shape-mismatch", "error", lambda it: it.read_input and not it.labels and it.broadcasts is None,
      "input {it.shapes[0]} and target {it.shapes[1]} do not fit together.",
      _remedy_of_shapes),
    Check("silent-broadcast", "error", lambda it: it.broadcasts is not None and not it.repair.keeps_entries,
      "input {it.shapes[0]} and target {it.shapes[1]} broadcast to {it.broadcasts}, which pairs entries that do "
      "not belong together.",
      _remedy_of_shapes),
    Check("silent-broadcast", "note", lambda it: it.repair.how == "expand" and it.broadcasts in it.shapes,
      "input {it.shapes[0]} and target {it.shapes[1]} broadcast to {it.broadcasts}: the same rows are used again "
      "and again.",
      _WRITE_OUT),
    Check("silent-broadcast", "warning", lambda it: it.repair.how == "expand" and it.broadcasts not in it.shapes,
      "input {it.shapes[0]} and target {it.shapes[1]} broadcast to {it.broadcasts}: every row meets every other one.",
      _WRITE_OUT),
)  # fmt: skip
_DTYPES: tuple[Check[_Argument], ...] = (
    Check("{it.name}-is-integer", "error", lambda it: not (it.x.is_floating_point() or it.are_labels),
      "{it.name} has dtype {it.x.dtype}, which torch's kl_div does not take.",
      "Convert it: {it.name}.float(). If it has counts, normalize it too."),
)  # fmt: skip
_CLASSES: tuple[Check[Case], ...] = (
    Check("dtype-mismatch", "note", lambda it: _are_floating(it) and it.input.dtype != it.target.dtype,
      "input is {it.input.dtype} and target {it.target.dtype}; torch promotes both to the wider one.",
      "This does not harm the value; the narrower tensor keeps its rounding errors."),
    Check("single-class", "warning", lambda it: it.paired and it.classes == 1,
      "dim={it.dim} has one class, which has probability 1 whatever its score: the divergence is 0.",
      "For yes-or-no probabilities compare Bernoulli distributions, or write out both classes: [1 - p, p]."),
    Check("labels-are-independent", "error", lambda it: it.are_independent,
      "input ({it.read_input.why}) and target ({it.read_target.why}) have values of one probability for each label, "
      "as sigmoids give, and rows that do not sum to 1. The call ignores the probability that a label is absent.",
      "Compare one Bernoulli distribution for each label, and sum over the labels; a softmax over the labels would "
      "compare another thing."),
    Check("arguments-reversed", "error", lambda it: it.reversed and not it.are_independent,
      "input holds {it.read_input.representation} and target {it.read_target.representation}: the arguments are "
      "probably exchanged.",
      "torch takes the logarithms of Q first and P second: F.kl_div(log_q, p) is KL(p || q)."),
)  # fmt: skip
_CONTENTS: tuple[Check[Reading], ...] = (
    Check("{it.name}-wrong-dimension", "error", lambda it: it.other_dim is not None,
      "{it.name} is normalized along dim {it.other_dim}, not along dim {it.dim}, where the classes are.",
      "Take the softmax along dim={it.dim}. If the classes are along dim {it.other_dim}, the other "
      "tensor is wrong: see diagnose(..., dim={it.other_dim})."),
    Check("{it.name}-is-logits", "error", lambda it: it.holds("logits"), _contents,
      _normalize),
    Check("{it.name}-is-counts", "error", lambda it: it.holds("counts"), _contents,
      _normalize),
    Check("{it.name}-is-not-normalized", "error", lambda it: it.holds("weights"), _contents,
      _normalize),
    Check("input-is-probabilities", "error",
      lambda it: it.name == "input" and it.holds("probabilities", "one-hot rows"), _contents,
      "Pass the logarithms: log_softmax of the scores, more exact than the log of a softmax."),
    Check("target-is-probabilities", "error",
      lambda it: it.name == "target" and it.needs_logs and it.holds("probabilities", "one-hot rows"), _contents,
      "Leave log_target=True out."),
    Check("target-is-log-probabilities", "error",
      lambda it: not it.needs_logs and it.holds("log-probabilities"), _contents,
      "Say so: log_target=True."),
)  # fmt: skip
_DIMENSIONS: tuple[Check[Case], ...] = (
    Check("classes-along-several-dimensions", "note", lambda it: it.axes.are_several and not it.asked.are_several,
      "The tensors are normalized over the dimensions {it.axes.dims} together, as heat maps are, and along no single "
      "one.",
      "Pass dim={it.axes.dims} to diagnose, and to Probs and the like."),
    Check("classes-along-another-dimension", "warning", lambda it: not it.axes.are_several and it.axes != it.asked,
      "Both tensors are normalized along dim {it.dim}, and neither along dim {it.asked.shown}.",
      "If the classes are along dim {it.dim}, as assumed below, pass dim={it.dim} to diagnose. If they are along dim "
      "{it.asked.shown}, both softmaxes were taken along the wrong dimension."),
)  # fmt: skip
_VALUES: tuple[Check[Reading], ...] = (
    Check("{it.name}-nan", "error", lambda it: it.nan.count,
      "{it.name} holds NaN: {it.nan.places}.",
      _FIND),
    Check("{it.name}-plus-infinity", "error", lambda it: it.plus_infinity.count,
      "{it.name} holds +inf, which is neither a probability nor its logarithm: {it.plus_infinity.places}.",
      _FIND),
    Check("{it.name}-negative", "error", lambda it: not it.in_logs and it.negative.count,
      lambda it: f"{it.name} holds negative probabilities, down to {number(it.low)}: {it.negative.places}.",
      "Find where they arise; clamp(min=0) is right only if it is rounding."),
    Check("{it.name}-rows-without-mass", "error", lambda it: it.empty_rows.count,
      "{it.name} holds rows with only {it.empty_row}: {it.empty_rows.places}.",
      "They are not distributions. Leave padding out before the mean, or it counts as rows."),
)  # fmt: skip
_SUMS: tuple[Check[Reading], ...] = (
    Check("{it.name}-nearly-normalized", "warning", lambda it: it.has_other_sums and it.row_sums.are_near, _sums,
      "Rounding in half precision does this: take the softmax in float32."),
    Check("{it.name}-rows-not-normalized", "error", lambda it: it.has_other_sums and not it.row_sums.are_near, _sums,
      "Look at these rows: are they padding, a slice of the classes, or masked after the softmax?"),
)  # fmt: skip
_SOFTMAX: tuple[Check[Reading], ...] = (
    Check("{it.name}-softmaxed-twice", "warning", lambda it: it.softmaxed_twice,
      "{it.name} is probably the {it.softmax} of probabilities: in no row is a class more than e times as "
      "probable as another, or its logarithm more than 1/{it.classes} below the mean. This is always true for "
      "a softmax of probabilities, but rare for a softmax of scores with this spread.",
      "Apply softmax only once, and only to scores. (A second log_softmax on log-probabilities changes nothing.)"),
)  # fmt: skip
_RESULTS: tuple[Check[Case], ...] = (
    Check("masked-on-both-sides", "error", lambda it: it.overlap.both.count,
      "Both sides have probability 0 at {it.overlap.both.places}. These entries should contribute 0, but torch "
      "computes 0 * inf = NaN.",
      "kullback gives the limit, 0, in value and gradient; kullback.functional.kl_div is a drop-in."),
    Check("infinite-divergence", "warning", lambda it: it.overlap.only_q.count,
      "input has probability 0, and target not, at {it.overlap.only_q.places}: KL(target || input) is +inf.",
      "If the zeros come from underflow, use log_softmax instead of the log of a softmax. Otherwise compare with "
      "JensenShannon(), which stays finite, or smooth counts with Counts(x, prior=0.5)."),
    Check("log-target-of-zero", "error", lambda it: it.log_target and it.overlap.only_p.count,
      "target is -inf at {it.overlap.only_p.places}; with log_target=True torch computes 0 * -inf = NaN there.",
      "Pass target.exp() without log_target, or use kullback.functional.kl_div."),
    Check("target-zeros", "note", lambda it: not it.log_target and it.overlap.only_p.count,
      "target has probability 0, and input not, at {it.overlap.only_p.places}.",
      "They contribute 0, because 0 log 0 = 0. Only KL(input || target) is infinite."),
    Check("mean-divides-by-classes", "warning", lambda it: _has_mean(it) and it.reduction == "mean" and it.classes > 1,
      'reduction="mean" divides by the {it.classes} classes and not only by the rows: the value is not a divergence.',
      _remedy_of_mean),
    Check("batchmean-is-not-per-row", "warning",
      lambda it: _has_mean(it) and it.reduction == "batchmean" and it.rows != it.batch_size and it.repair.keeps_entries,
      _batchmean,
      'Flatten to (rows, classes) first, or reduction="none" and .sum over the classes, then .mean().'),
    Check("identical", "note", _is_identical,
      "input and target are the same distributions: the divergence is 0.",
      "This can be right at the start of a training. Otherwise check whether the same tensor was passed twice."),
    Check("half-precision", "note", lambda it: _halves(it) and _rounding(it) <= 0.01, _half_precision, _TAKE_FLOAT32),
    Check("half-precision", "warning", lambda it: _halves(it) and not _rounding(it) <= 0.01,
      _half_precision, _TAKE_FLOAT32),
)  # fmt: skip
# The groups of checks, in the order of the findings. Each group has a function that returns its subjects.
_GROUPS: tuple[tuple[Callable[[Case], Iterable[Any]], tuple[Check[Any], ...]], ...] = (
    *((_arguments, _EMPTY), (_call, _SHAPES), (_arguments, _DTYPES), (_call, _CLASSES)),
    *((_unexplained, _CONTENTS), (_call, _DIMENSIONS)),
    *((_readings, _VALUES), (_readings, _SUMS), (_readings, _SOFTMAX), (_call, _RESULTS)),
)


def findings_of(case: Case) -> list[Finding]:
    """Return the findings of all checks, errors first."""
    findings = [
        check.finding(subject)
        for subjects, checks in _GROUPS
        for subject in subjects(case)
        for check in checks
        if check.when(subject)
    ]
    if case.error and not any(finding.level == "error" for finding in findings):
        message = f"torch raises: {case.error}"
        findings.append(Finding("call-raises", message, "error", "Fix the error in the message."))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))
