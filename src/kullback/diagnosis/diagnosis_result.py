"""`Diagnosis`: the result of `diagnose`, which has a text for readers and a dict for scripts."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from kullback.common.display import html_table
from kullback.common.plain_values import flat_numbers, json_safe
from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading
from kullback.diagnosis.suggestion import Suggestion
from kullback.diagnosis.values import RowValues, TorchValues
from kullback.losses.reduction import REDUCTIONS, Reduction
from kullback.results.finding import Finding

_WIDTH = 88


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
class Diagnosis:
    """The result of `diagnose`: ``str()`` gives a report for readers, and ``to_dict()`` a dict for scripts.

    Attributes:
        call: the code of the call.
        direction: the divergence that the call computes.
        input, target: a description of each argument.
        dim: the dimension of the classes, negative; a tuple if one distribution extends over several dimensions.
        values: torch's value for each reduction, and the shape of the result for ``"none"``. Empty if the call raises
            an error.
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

    def to_dict(self, *, flat: bool = False) -> dict[str, Any]:
        """Return all attributes as dicts, lists, strings and finite numbers, ready for `json.dumps`.

        Infinities and NaN, which JSON lacks, become ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``.

        Arguments:
            flat: whether to return only the numbers, with names such as ``"kl_target_input/mean"``, like
                `Estimate.to_dict`.
        """
        fields = {**asdict(self), "ok": self.ok, "codes": self.codes}
        return flat_numbers(fields) if flat else json_safe(fields)

    def __repr__(self) -> str:
        kl = self.kl_target_input
        value = f"KL(target || input) = {kl.mean:.4g} per row" if kl else "no value"
        return f"<Diagnosis: {', '.join(self.codes) or 'no problems found'}; {value}>"

    def __str__(self) -> str:
        sections = [self._head(), self._values(), self._findings(), self._code()]
        return "\n\n".join("\n".join(lines) for lines in sections if lines)

    def _repr_html_(self) -> str:
        """Return the report in HTML, for notebooks."""
        parts = [f"<p><code>{escape(self.call)}</code><br>{escape(self.direction)}</p>"]
        sides = (("input", self.input), ("target", self.target))
        parts.append(
            html_table(
                ["", "shape", "dtype", "seems to hold", "why"],
                [(n, x.shape, x.dtype, x.representation or "", x.why or "") for n, x in sides],
            )
        )
        if self.values:
            rows = [(name, self._shown(name), self.meanings[name]) for name in REDUCTIONS]
            chosen = [(f"{'> ' if row[0] == self.reduction else ''}{row[0]}", *row[1:]) for row in rows]
            parts.append(html_table(["reduction", "torch gives", "which is"], chosen))
        if self.raises:
            parts.append(f"<p>torch raises: {escape(self.raises)}</p>")
        parts += [f"<p>{name}, by kullback: {escape(_described(kl))}</p>" for name, kl in self._divergences()]
        for finding in self.findings:
            advice = f"<br>&rarr; {escape(finding.advice)}" if finding.advice else ""
            shown = f"<b>{finding.level}: {escape(finding.code)}</b><br>{escape(finding.message)}"
            parts.append(f"<p>{shown}{advice}</p>")
        code = "\n".join(self._code() if self.findings else ["No problems found.", *self._code()])
        return "\n".join([*parts, f"<pre>{escape(code)}</pre>"])

    def _shown(self, reduction: str) -> str:
        value = self.values[reduction]
        return str(value) if reduction == "none" else f"{value:.6g}"

    def _head(self) -> list[str]:
        lines = [self.call, *_wrapped(self.direction, "  "), ""]
        for name, x in (("input", self.input), ("target", self.target)):
            lines.append(f"  {name:<6}  {x.shape} {x.dtype} on {x.device}")
            if x.representation:
                lines += _wrapped(f"seems to hold {x.representation}: {x.why}", " " * 10)
            lines += _wrapped(_oddities(x), " " * 10)
        return lines

    def _values(self) -> list[str]:
        lines: list[str] = []
        if self.values:
            wrong = any(finding.level == "error" for finding in self.findings)
            right = ", for right arguments" if wrong else ""
            lines.append(f"  reduction     torch gives     which is{right}")
            for name in REDUCTIONS:
                mark = ">" if name == self.reduction else " "
                first, *more = _wrapped(self.meanings[name], " " * 32)
                lines += [f"{mark} {name:<12}  {self._shown(name):<15} {first.strip()}", *more]
        if self.raises:
            lines += _wrapped(f"torch raises: {self.raises}", "  ")
        if self.kl_target_input:
            lines += ["", "  kullback's values, for the contents that the tensors seem to hold:"]
        for name, kl in self._divergences():
            lines += _wrapped(f"{name}  {_described(kl)}", "    ")
        return lines

    def _divergences(self) -> list[tuple[str, RowValues]]:
        both = (("KL(target || input)", self.kl_target_input), ("KL(input || target)", self.kl_input_target))
        return [(name, kl) for name, kl in both if kl]

    def _findings(self) -> list[str]:
        if not self.findings:
            return ["No problems found."]
        lines: list[str] = []
        for finding in self.findings:
            lines.append(f"{finding.level}: {finding.code}")
            lines += [*_wrapped(finding.message, "  "), *_wrapped(f"-> {finding.advice}", "  ")]
        return lines

    def _code(self) -> list[str]:
        if self.suggestion is None:
            return []
        code = self.suggestion
        lines = ["The same with kullback:" if self.ok else "The probable intention, with kullback:"]
        lines += textwrap.indent(code.kullback, "    ").splitlines()
        if not (self.ok and code.torch == self.call):
            lines += ["or with torch alone:", *textwrap.indent(code.torch, "    ").splitlines()]
        lines += [f"where {needed}" for needed in code.needs]
        return lines + ([f"which is {code.value:.6g}"] if code.value is not None else [])


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
        batchmean = f"{rows / size:.4g} times {of_a_row}: {rows} rows, but input.size(0) = {size}"
    return {
        "none": f"the terms; .sum({case.axes.shown}) of them is the KL of each row",
        "sum": of_a_row if rows == 1 else f"the KL of all {rows} rows together",
        "mean": f"{of_a_row}, divided by the {case.classes} classes" if case.classes > 1 else of_a_row,
        "batchmean": batchmean,
    }


def _summary(x: Any, shape: tuple[int, ...], reading: Reading | None) -> TensorSummary:
    basics = shape, str(x.dtype).removeprefix("torch."), str(x.device)
    if reading is None:
        return TensorSummary(*basics)
    sums = reading.row_sums
    occurrences = (reading.zero, reading.minus_infinity, reading.plus_infinity, reading.nan)
    row_sums = (sums.low, sums.high) if sums.rows and reading.representation != "class indices" else None
    return TensorSummary(
        *basics, reading.representation, reading.why, row_sums, *((s.count, s.first) for s in occurrences)
    )


def _oddities(x: TensorSummary) -> str:
    named = (("zeros", x.zeros), ("-inf", x.minus_infinities), ("+inf", x.plus_infinities), ("NaN", x.nans))
    return "; ".join(f"{count} {name}, the first at {first}" for name, (count, first) in named if count)


def _described(kl: RowValues) -> str:
    if not kl.rows:
        return "undefined in every row"
    if kl.low == kl.high:
        text = f"{kl.mean:.6g} per row, {kl.rows} rows" if kl.rows > 1 else f"{kl.mean:.6g}"
    else:
        text = f"{kl.mean:.6g} per row on average, from {kl.low:.4g} to {kl.high:.4g}, {kl.rows} rows"
    if kl.infinite:
        text += f", {kl.infinite} of them infinite"
    return text + (f", and {kl.undefined} undefined" if kl.undefined else "")


def _wrapped(text: str, indent: str) -> list[str]:
    lines = textwrap.TextWrapper(_WIDTH, indent, indent, break_long_words=False, break_on_hyphens=False)
    return lines.wrap(text)
