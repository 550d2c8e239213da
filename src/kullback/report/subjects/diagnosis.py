"""The document of a diagnosis of a call to `F.kl_div`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from kullback.common.formats import significant
from kullback.diagnosis.diagnosis_result import Diagnosis, TensorSummary
from kullback.diagnosis.values import RowValues
from kullback.losses.reduction import REDUCTIONS
from kullback.report.document import Block, Code, Document, Findings, Headline, Measured, Plot, Remark, Table
from kullback.report.plots.points import Point, draw_points
from kullback.report.schemas import diagnosis as schema
from kullback.results.verdict import Verdict

_DIVERGENCES = "The divergence of the inferred distributions"
_LABEL = "KL of a row, nats (mean, smallest and largest)"


def document(diagnosis: Diagnosis, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `diagnose`."""
    blocks: list[Block] = [_arguments(diagnosis), *_values(diagnosis), *_divergences(diagnosis)]
    blocks.append(Findings("Findings", _remarks(diagnosis), is_main=True))
    blocks += _code(diagnosis)
    return Document(
        f"{diagnosis.call}: diagnosis",
        Headline(diagnosis.call, diagnosis.direction),
        tuple(blocks),
        tuple(verdicts),
        fields=partial(schema.fields, diagnosis),
        maker="kullback.diagnose",
        measured=Measured({"kl_target_input": "nats", "kl_input_target": "nats"}),
        plot=Plot("divergences", _DIVERGENCES, "", partial(draw_points, _points(diagnosis), _LABEL)),
    )


def _arguments(diagnosis: Diagnosis) -> Table:
    sides = {"input": diagnosis.input, "target": diagnosis.target}
    rows = [
        [name, str(side.shape), side.dtype, side.device, side.representation or "", _evidence(side)]
        for name, side in sides.items()
    ]
    headings = ("", "shape", "dtype", "device", "seems to hold", "why")
    return Table("The arguments", headings, rows, dropped_first=(3,), is_main=True, ends_in_text=True)


def _evidence(side: TensorSummary) -> str:
    """Return the evidence for the inferred content of a tensor, and the numbers of its unusual entries."""
    entries = {
        "zeros": side.zeros,
        "-inf": side.minus_infinities,
        "+inf": side.plus_infinities,
        "NaN": side.nans,
    }
    unusual = [f"{count} {name}, the first at {first}" for name, (count, first) in entries.items() if count]
    return "; ".join(filter(None, [side.why, *unusual]))


def _values(diagnosis: Diagnosis) -> Iterator[Table]:
    """Yield the table of torch's value for each reduction, with a mark at the reduction of the call."""
    if not diagnosis.values:
        return
    rows: list[list[str]] = []
    for name in REDUCTIONS:
        value = diagnosis.values[name]
        shown = significant(value, 6) if isinstance(value, float) else str(value)
        rows.append(["> " * (name == diagnosis.reduction) + name, shown, diagnosis.meanings[name]])
    is_wrong = any(finding.level == "error" for finding in diagnosis.findings)
    headings = ("reduction", "torch gives", "which is" + ", for right arguments" * is_wrong)
    yield Table("The value of the call", headings, rows, is_main=True, ends_in_text=True)


def _divergences(diagnosis: Diagnosis) -> Iterator[Table]:
    rows = [[f"{name}, by kullback", _described(kl)] for name, kl in _both(diagnosis).items()]
    if rows:
        yield Table(_DIVERGENCES, ("", ""), rows, ("In nats.",), is_main=True, ends_in_text=True)


def _both(diagnosis: Diagnosis) -> dict[str, RowValues]:
    both = {
        "KL(target || input)": diagnosis.kl_target_input,
        "KL(input || target)": diagnosis.kl_input_target,
    }
    return {name: kl for name, kl in both.items() if kl}


def _points(diagnosis: Diagnosis) -> list[Point]:
    return [Point(kl.mean, kl.low, kl.high, name.replace("||", "‖")) for name, kl in _both(diagnosis).items()]


def _described(kl: RowValues) -> str:
    if not kl.rows:
        return "undefined in every row"
    mean = significant(kl.mean, 6)
    if kl.low == kl.high:
        text = f"{mean} per row, {kl.rows} rows" if kl.rows > 1 else mean
    else:
        low, high = significant(kl.low), significant(kl.high)
        text = f"{mean} per row on average, from {low} to {high}, {kl.rows} rows"
    if kl.infinite:
        text += f", {kl.infinite} of them infinite"
    return text + (f", and {kl.undefined} undefined" if kl.undefined else "")


def _remarks(diagnosis: Diagnosis) -> list[Remark]:
    remarks = [Remark("error", f"torch raises: {diagnosis.raises}")] if diagnosis.raises else []
    remarks += [
        Remark(finding.level, finding.message, code=finding.code, advice=finding.advice)
        for finding in diagnosis.findings
    ]
    return remarks if diagnosis.findings else [*remarks, Remark("note", "No problems found.")]


def _code(diagnosis: Diagnosis) -> Iterator[Code]:
    """Yield the corrected code with kullback and, unless the call is already right, with torch alone."""
    code = diagnosis.suggestion
    if code is None:
        return
    is_right = diagnosis.ok and code.torch == diagnosis.call
    caption = [f"where {needed}" for needed in code.needs]
    caption += [] if code.value is None else [f"which is {significant(code.value, 6)}"]
    title = "The same with kullback" if diagnosis.ok else "The probable intention, with kullback"
    yield Code(title, code.kullback, tuple(caption) if is_right else ())
    if not is_right:
        yield Code("Or with torch alone", code.torch, tuple(caption))
