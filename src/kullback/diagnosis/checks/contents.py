"""Checks of what the tensors hold."""

from __future__ import annotations

from collections.abc import Iterator

from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading, interval, number
from kullback.findings import Finding

__all__ = ["CHECKS"]


def _representations(case: Case) -> Iterator[Finding]:
    a, b = case.read_input, case.read_target
    if case.reversed and a and b:
        yield Finding(
            "arguments-reversed",
            f"input holds {a.representation} and target {b.representation}: probably each stands in the other's place.",
            "error",
            "torch takes the logarithms of Q first and P second: F.kl_div(log_q, p) is KL(p || q).",
        )
        return
    if a:
        yield from _representation(case, "input", a, logs_expected=True)
    if b and not case.labels:
        yield from _representation(case, "target", b, logs_expected=case.log_target)


def _representation(case: Case, name: str, reading: Reading, *, logs_expected: bool) -> Iterator[Finding]:
    wanted = "log-probabilities" if logs_expected else "probabilities"
    if reading.representation == "nothing":
        return
    if reading.other_dim is not None:
        yield Finding(
            f"{name}-wrong-dimension",
            f"{name} is normalized along dim {reading.other_dim}, not along dim {case.dim}, where the classes are.",
            "error",
            f"Take the softmax along dim={case.dim}; if the classes do lie along dim {reading.other_dim}, the other "
            f"tensor has the wrong one: see diagnose(..., dim={reading.other_dim}).",
        )
    elif not reading.normalized:
        yield _unnormalized(name, reading, wanted)
    elif reading.in_logs != logs_expected:
        yield Finding(
            f"{name}-is-log-probabilities" if reading.in_logs else f"{name}-is-probabilities",
            f"{name} holds {reading.representation} ({reading.why}), where the call takes {wanted}.",
            "error",
            _ADVICE_ON_LOGS[name, logs_expected],
        )


_ADVICE_ON_LOGS = {
    ("input", True): "Pass the logarithms: log_softmax of the scores, more exact than the log of a softmax.",
    ("target", True): "Leave log_target=True out.",
    ("target", False): "Say so: log_target=True.",
}


def _unnormalized(name: str, reading: Reading, wanted: str) -> Finding:
    log = "log_" if wanted.startswith("log") else ""
    if reading.representation == "logits":
        advice = f"Normalize them: {name}.{log}softmax({reading.scan.dim})."
        code = f"{name}-is-logits"
    elif reading.representation == "counts":
        advice = (
            f"Divide by the sum of each row{', then take the logarithm' if log else ''}; Counts(x) does that."
        )
        code = f"{name}-is-counts"
    else:
        advice = (
            f"If they are weights, divide by the sum of each row{', then take the logarithm' if log else ''}, as "
            f"Counts(x) does; if they are scores, {name}.{log}softmax({reading.scan.dim})."
        )
        code = f"{name}-is-not-normalized"
    return Finding(
        code,
        f"{name} holds {reading.representation} ({reading.why}), where the call takes {wanted}.",
        "error",
        advice,
    )


def _class_dimension(case: Case) -> Iterator[Finding]:
    if case.dim != case.asked_dim:
        yield Finding(
            "classes-along-another-dimension",
            f"Both tensors are normalized along dim {case.dim}, and neither along dim {case.asked_dim}.",
            "warning",
            f"If the classes lie along dim {case.dim}, pass dim={case.dim} to diagnose, which reads them so from here "
            f"on; if they lie along dim {case.asked_dim}, both softmaxes were taken along the wrong one.",
        )


def _row_sums(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        sums = reading.sums
        if not reading.normalized or reading.other_dim is not None or sums.exact == sums.rows:
            continue
        what = "exp of the rows" if reading.in_logs else "the rows"
        nearly = sums.near == sums.rows > 2 * sums.exact
        yield Finding(
            f"{name}-nearly-normalized" if nearly else f"{name}-rows-not-normalized",
            f"{name}: {what} should add up to 1 within {reading.scan.tolerance:g} ({reading.scan.dtype}), and "
            f"{sums.rows - sums.exact} of {sums.rows} do not, the first at row {sums.first_off}; they add up to "
            f"{interval(sums.low, sums.high)}.",
            "warning" if nearly else "error",
            "Rounding in half precision does this: take the softmax in float32."
            if nearly
            else "Look at the rows named: padding, a slice of the classes, or a mask set after the softmax?",
        )


def _softmaxed_twice(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        if reading.softmaxed_twice:
            again = "log_softmax of probabilities" if reading.in_logs else "softmax of probabilities"
            yield Finding(
                f"{name}-softmaxed-twice",
                f"{name} is probably the {again}: in no row is a class more than e times as probable as another, "
                f"nor its logarithm more than 1/{reading.scan.classes} below the mean. Softmax of probabilities always "
                "looks so; scores as spread as these would hardly.",
                "warning",
                "Apply softmax to scores only, once. (A second log_softmax on log-probabilities changes nothing.)",
            )


def _bad_values(case: Case) -> Iterator[Finding]:
    for name, reading in _readings(case):
        scan = reading.scan
        for spots, code, what in (
            (scan.nan, "nan", "NaN"),
            (scan.plus_infinity, "plus-infinity", "+inf, which no probability or its logarithm is"),
        ):
            if spots.count:
                yield Finding(
                    f"{name}-{code}",
                    f"{name} holds {what}: {spots.count} of {reading.scan.size} entries, {spots.where}.",
                    "error",
                    "Find where it arises; the code below only leaves those rows out.",
                )
        if not reading.in_logs and scan.negative.count:
            yield Finding(
                f"{name}-negative",
                f"{name} holds negative probabilities, down to {number(scan.low)}: {scan.negative.count} of "
                f"{scan.size} entries, {scan.negative.where}.",
                "error",
                "Find where they arise; clamp(min=0) is right only if it is rounding.",
            )
        rows = reading.empty_rows
        if rows.count:
            yield Finding(
                f"{name}-rows-without-mass",
                f"{name} holds rows of nothing but {'-inf' if rows == scan.masked_rows else '0'}: {rows.count} of "
                f"{scan.size // scan.classes}, {rows.where}.",
                "error",
                "No distribution is made of them: leave padding out before the mean, or it counts as rows.",
            )


def _readings(case: Case) -> Iterator[tuple[str, Reading]]:
    if case.read_input:
        yield "input", case.read_input
    if case.read_target and not case.labels:
        yield "target", case.read_target


CHECKS = (_representations, _class_dimension, _bad_values, _row_sums, _softmaxed_twice)
