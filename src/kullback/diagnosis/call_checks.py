"""The checks of a call of `F.kl_div`: each is a generator of findings."""

from __future__ import annotations

from collections.abc import Iterator

from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading, interval, number
from kullback.diagnosis.values import largest_cut
from kullback.results.finding import Finding, Level

# For each level and code, this dict has the advice of findings whose advice does not depend on the call. `{name}` is
# input or target.
_ADVICE: dict[Level, dict[str, str]] = {
    "error": {
        "call-raises": "Fix the error in the message.",
        "labels-are-independent": (
            "Compare one Bernoulli distribution for each label, and sum over the labels; a softmax over the labels "
            "would compare another thing."
        ),
        "no-classes": (
            "Pass a dimension that holds the classes; for a yes-or-no probability p, torch.stack([1 - p, p], -1)."
        ),
        "device-mismatch": "Move one: target.to(input.device).",
        "{name}-is-integer": "Convert it: {name}.float(). If it has counts, normalize it too.",
        "target-is-class-indices": (
            "The KL divergence from a certain class is the cross-entropy: F.cross_entropy takes class indices."
        ),
        "arguments-reversed": "torch takes the logarithms of Q first and P second: F.kl_div(log_q, p) is KL(p || q).",
        "input-is-probabilities": (
            "Pass the logarithms: log_softmax of the scores, more exact than the log of a softmax."
        ),
        "target-is-probabilities": "Leave log_target=True out.",
        "target-is-log-probabilities": "Say so: log_target=True.",
        "{name}-rows-not-normalized": (
            "Look at these rows: are they padding, a slice of the classes, or masked after the softmax?"
        ),
        "{name}-nan": "Find where it arises; the code below only leaves those rows out.",
        "{name}-plus-infinity": "Find where it arises; the code below only leaves those rows out.",
        "{name}-negative": "Find where they arise; clamp(min=0) is right only if it is rounding.",
        "{name}-rows-without-mass": (
            "They are not distributions. Leave padding out before the mean, or it counts as rows."
        ),
        "masked-on-both-sides": (
            "kullback gives the limit, 0, in value and gradient; kullback.functional.kl_div is a drop-in."
        ),
        "log-target-of-zero": "Pass target.exp() without log_target, or use kullback.functional.kl_div.",
    },
    "warning": {
        "empty-tensor": "Skip empty batches before the loss.",
        "single-class": (
            "For yes-or-no probabilities compare Bernoulli distributions, or write out both classes: [1 - p, p]."
        ),
        "{name}-nearly-normalized": "Rounding in half precision does this: take the softmax in float32.",
        "{name}-softmaxed-twice": (
            "Apply softmax to scores only, once. (A second log_softmax on log-probabilities changes nothing.)"
        ),
        "infinite-divergence": (
            "If the zeros come from underflow, use log_softmax instead of the log of a softmax. Otherwise compare "
            "with JensenShannon(), which stays finite, or smooth counts with Counts(x, prior=0.5)."
        ),
        "batchmean-is-not-per-row": (
            'Flatten to (rows, classes) first, or reduction="none" and .sum over the classes, then .mean().'
        ),
    },
    "note": {
        "dtype-mismatch": "This does not harm the value; the narrower tensor keeps its rounding errors.",
        "target-zeros": "They contribute 0, because 0 log 0 = 0. Only KL(input || target) is infinite.",
        "identical": (
            "This can be right at the start of a training. Otherwise check whether the same tensor was passed twice."
        ),
    },
}
_CATALOG: dict[str, tuple[Level, str]] = {
    code: (level, text) for level, texts in _ADVICE.items() for code, text in texts.items()
}


def findings_of(case: Case) -> list[Finding]:
    """Return the findings of all checks, errors first."""
    findings = [finding for check in _CHECKS for finding in check(case)]
    if case.error and not any(f.level == "error" for f in findings):
        findings.append(_finding("call-raises", f"torch raises: {case.error}"))
    return sorted(findings, key=lambda f: ("error", "warning", "note").index(f.level))


def _finding(code: str, message: str, name: str = "") -> Finding:
    """Return the finding with this code from the catalog; `name` is the argument, input or target."""
    level, advice = _CATALOG[code]
    return Finding(code.format(name=name), message, level, advice.format(name=name))


def _empty(case: Case) -> Iterator[Finding]:
    for name, x in (("input", case.input), ("target", case.target)):
        if not x.numel():
            what = f"{name} has shape {tuple(x.shape)}, so there is no row to compare."
            yield _finding("empty-tensor", f"{what} The mean of no rows is NaN.")
        elif not x.ndim:
            what = f"{name} is a single number; a divergence needs one probability for each class."
            yield _finding("no-classes", what)


def _devices(case: Case) -> Iterator[Finding]:
    a, b = case.input.device, case.target.device
    if a != b:
        yield _finding("device-mismatch", f"input is on {a}, target on {b}.")


def _class_indices(case: Case) -> Iterator[Finding]:
    if case.labels:
        stray = case.stray_labels
        outside = f" {stray.count} of them are not classes, {stray.where}." if stray.count else ""
        yield _finding(
            "target-is-class-indices",
            f"target, of shape {tuple(case.target.shape)}, holds one whole number for each row of input: class "
            f"indices, not probabilities.{outside}",
        )


def _shapes(case: Case) -> Iterator[Finding]:
    if case.labels or not case.read_input:
        return
    (a, b), repair, result = case.shapes, case.repair, case.broadcasts
    shapes = f"input {a} and target {b}"
    if result is None:
        yield Finding("shape-mismatch", f"{shapes} do not fit together.", "error", _remedy(case))
    elif repair is None or repair.how not in ("same", "expand"):
        message = f"{shapes} broadcast to {result}, which pairs entries that do not belong together."
        yield Finding("silent-broadcast", message, "error", _remedy(case))
    elif repair.how == "expand":
        repeated = result in (a, b)
        what = "the same rows are used again and again." if repeated else "every row meets every other one."
        yield Finding(
            "silent-broadcast",
            f"{shapes} broadcast to {result}: {what}",
            "note" if repeated else "warning",
            "If this is intended, write it out: target.expand(...). Otherwise give both the same shape.",
        )


def _remedy(case: Case) -> str:
    repair = case.repair
    if repair is None:
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


def _dtypes(case: Case) -> Iterator[Finding]:
    input, target = case.input, case.target
    for name, x in (("input", input), ("target", target)):
        if not x.is_floating_point() and not (case.labels and name == "target"):
            message = f"{name} has dtype {x.dtype}, which torch's kl_div does not take."
            yield _finding("{name}-is-integer", message, name)
    if input.is_floating_point() and target.is_floating_point() and input.dtype != target.dtype:
        message = f"input is {input.dtype} and target {target.dtype}; torch promotes both to the wider one."
        yield _finding("dtype-mismatch", message)


def _single_class(case: Case) -> Iterator[Finding]:
    if case.paired and case.classes == 1:
        message = (
            f"dim={case.dim} has one class, which has probability 1 whatever its score: the divergence is 0."
        )
        yield _finding("single-class", message)


def _representations(case: Case) -> Iterator[Finding]:
    a, b = case.read_input, case.read_target
    if case.are_independent and a and b:
        yield _finding(
            "labels-are-independent",
            f"input ({a.why}) and target ({b.why}) have values of one probability for each label, as sigmoids give, "
            "and rows that do not sum to 1. The call leaves out that a label may be absent.",
        )
        return
    if case.reversed and a and b:
        contents = f"input holds {a.representation} and target {b.representation}"
        yield _finding("arguments-reversed", f"{contents}: the arguments are probably exchanged.")
        return
    for name, reading in _readings(case):
        if reading.representation != "nothing":
            yield from _representation(case, name, reading)


def _representation(case: Case, name: str, reading: Reading) -> Iterator[Finding]:
    """Yield a finding if the content of an argument differs from the content that the call needs."""
    in_logs = name == "input" or case.log_target
    expected = "log-probabilities" if in_logs else "probabilities"
    message = f"{name} holds {reading.representation} ({reading.why}), but the call needs {expected}."
    joined = "" if case.maps is None else case.maps.code
    softmax = f"{name}{joined}.{'log_' if in_logs else ''}softmax({case.dim})"
    divide = f"ivide by the sum of each row{', then take the logarithm' if in_logs else ''}"
    is_of_labels = reading.scan.low >= 0 and reading.scan.high <= 1 and reading.scan.classes > 1
    own = " If each is the probability of a label of its own, compare Bernoulli distributions." * is_of_labels
    if reading.other_dim is not None:
        yield Finding(
            f"{name}-wrong-dimension",
            f"{name} is normalized along dim {reading.other_dim}, not along dim {case.dim}, where the classes are.",
            "error",
            f"Take the softmax along dim={case.dim}. If the classes are along dim {reading.other_dim}, the other "
            f"tensor is wrong: see diagnose(..., dim={reading.other_dim}).",
        )
    elif reading.representation == "logits":
        yield Finding(f"{name}-is-logits", message, "error", f"Normalize them: {softmax}.")
    elif reading.representation == "counts":
        yield Finding(f"{name}-is-counts", message, "error", f"D{divide}; Counts(x) does that.{own}")
    elif reading.representation == "weights":
        advice = f"If they are weights, d{divide}, as Counts(x) does; if they are scores, {softmax}.{own}"
        yield Finding(f"{name}-is-not-normalized", message, "error", advice)
    elif reading.in_logs != in_logs:
        yield _finding(f"{name}-is-{'log-' * reading.in_logs}probabilities", message)


def _class_dimension(case: Case) -> Iterator[Finding]:
    if case.maps is not None and not case.are_maps_asked:
        yield Finding(
            "classes-along-several-dimensions",
            f"The tensors are normalized over the dimensions {case.maps.dims} together, as heat maps are, and along no "
            "single one.",
            "note",
            f"Pass dim={case.maps.dims} to diagnose, and to Probs and the like.",
        )
    if case.dim != case.asked_dim:
        yield Finding(
            "classes-along-another-dimension",
            f"Both tensors are normalized along dim {case.dim}, and neither along dim {case.asked_dim}.",
            "warning",
            f"If the classes are along dim {case.dim}, as assumed below, pass dim={case.dim} to diagnose. If they are "
            f"along dim {case.asked_dim}, both softmaxes were taken along the wrong dimension.",
        )


def _bad_values(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        scan, rows = reading.scan, reading.empty_rows
        for occurrences, code, what in (
            (scan.nan, "{name}-nan", "NaN"),
            (
                scan.plus_infinity,
                "{name}-plus-infinity",
                "+inf, which is neither a probability nor its logarithm",
            ),
        ):
            if occurrences.count:
                message = (
                    f"{name} holds {what}: {occurrences.count} of {scan.size} entries, {occurrences.where}."
                )
                yield _finding(code, message, name)
        if not reading.in_logs and scan.negative.count:
            yield _finding(
                "{name}-negative",
                f"{name} holds negative probabilities, down to {number(scan.low)}: {scan.negative.count} of "
                f"{scan.size} entries, {scan.negative.where}.",
                name,
            )
        if rows.count:
            yield _finding(
                "{name}-rows-without-mass",
                f"{name} holds rows with only {'-inf' if rows is scan.masked_rows else '0'}: {rows.count} of "
                f"{scan.size // scan.classes}, {rows.where}.",
                name,
            )


def _row_sums(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        sums = reading.sums
        if not reading.normalized or reading.other_dim is not None or sums.exact == sums.rows:
            continue
        what = "exp of the rows" if reading.in_logs else "the rows"
        nearly = sums.near == sums.rows > 2 * sums.exact
        yield _finding(
            "{name}-nearly-normalized" if nearly else "{name}-rows-not-normalized",
            f"{name}: {what} should add up to 1 within {reading.scan.tolerance:g} ({reading.scan.dtype}), and "
            f"{sums.off.count} of {sums.rows} do not, the first at row {sums.off.first}; they add up to "
            f"{interval(sums.low, sums.high)}.",
            name,
        )


def _softmaxed_twice(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        if reading.softmaxed_twice:
            again = "log_softmax of probabilities" if reading.in_logs else "softmax of probabilities"
            yield _finding(
                "{name}-softmaxed-twice",
                f"{name} is probably the {again}: in no row is a class more than e times as probable as another, or "
                f"its logarithm more than 1/{reading.scan.classes} below the mean. This is always true for a "
                "softmax of probabilities, but rare for a softmax of scores with this spread.",
                name,
            )


def _readings(case: Case) -> Iterator[tuple[str, Reading]]:
    if case.read_input:
        yield "input", case.read_input
    if case.read_target and not case.labels:
        yield "target", case.read_target


def _zeros(case: Case) -> Iterator[Finding]:
    if case.overlap is None:
        return
    both, only_p, only_q = case.overlap.both, case.overlap.only_p, case.overlap.only_q
    of = f"of {case.overlap.size} entries"
    if both.count:
        yield _finding(
            "masked-on-both-sides",
            f"Both sides have probability 0 at {both.count} {of}, {both.where}. These entries should contribute 0, "
            "but torch computes 0 * inf = NaN.",
        )
    if only_q.count:
        yield _finding(
            "infinite-divergence",
            f"input has probability 0, and target not, at {only_q.count} {of}, {only_q.where}: "
            "KL(target || input) is +inf.",
        )
    if only_p.count and case.log_target:
        yield _finding(
            "log-target-of-zero",
            f"target is -inf at {only_p.count} {of}, {only_p.where}; with log_target=True torch "
            "computes 0 * -inf = NaN there.",
        )
    elif only_p.count:
        message = f"target has probability 0, and input not, at {only_p.count} {of}, {only_p.where}."
        yield _finding("target-zeros", message)


def _reductions(case: Case) -> Iterator[Finding]:
    rows, size = case.rows, case.batch_size
    if not case.values or not case.input.numel():
        return
    if case.reduction == "mean" and case.classes > 1:
        yield Finding(
            "mean-divides-by-classes",
            f'reduction="mean" divides by the {case.classes} classes and not only by the rows: the value is not a '
            "divergence.",
            "warning",
            'Use reduction="batchmean".' if rows == size else "Sum over the classes, then take the mean.",
        )
    matched = case.repair is not None and case.repair.how in ("same", "expand")
    if case.reduction == "batchmean" and rows != size and matched:
        yield _finding(
            "batchmean-is-not-per-row",
            f'reduction="batchmean" divides by input.size(0) = {size}, but there are {rows} rows: the '
            f"value is {number(rows / size)} times the mean KL of a row.",
        )


def _identical(case: Case) -> Iterator[Finding]:
    if case.forward and case.forward.rows == case.rows and case.forward.high == 0 and case.classes > 1:
        yield _finding("identical", "input and target are the same distributions: the divergence is 0.")


def _half_precision(case: Case) -> Iterator[Finding]:
    tensors = (("input", case.input), ("target", case.target))
    halves = [f"{name} ({x.dtype})" for name, x in tensors if x.is_floating_point() and x.dtype.itemsize < 4]
    if not halves:
        return
    error = _rounding(case)
    off = "" if error is None else f" Here its sum is off by {number(100 * error)} % of the divergence."
    yield Finding(
        "half-precision",
        f"{' and '.join(halves)}: torch computes in that precision.{off}",
        "note" if error is not None and error <= 0.01 else "warning",
        "Take the softmax and the loss in float32: x.float().log_softmax(dim), or kullback, which computes in "
        "float32 or better whatever the dtype.",
    )


def _rounding(case: Case) -> float | None:
    """Return the finite relative error of torch's sum, or None if this sum is not the divergence."""
    exact = case.forward
    if not (case.as_expected and exact and exact.rows == case.rows and 0 < exact.mean < float("inf")):
        return None
    error = abs(case.values["sum"] / exact.rows / exact.mean - 1)
    return error if error < float("inf") else None


_CHECKS = (
    *(_empty, _devices, _class_indices, _shapes, _dtypes, _single_class),
    *(_representations, _class_dimension, _bad_values, _row_sums, _softmaxed_twice),
    *(_zeros, _reductions, _identical, _half_precision),
)
