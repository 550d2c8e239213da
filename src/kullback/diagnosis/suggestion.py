"""`suggest`: code for the probable intention of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kullback.common.words import NO_LABEL
from kullback.diagnosis.case import Case
from kullback.diagnosis.reading import Reading
from kullback.diagnosis.shapes import ClassAxes
from kullback.losses.reduction import Reduction

_NAMES = ("input", "target")
_REDUCED: dict[Reduction, str] = {"none": "", "sum": ".sum()", "mean": ".mean()", "batchmean": ".mean()"}


@dataclass(frozen=True)
class Suggestion:
    """Code for the probable intention of a call, with kullback and with torch alone.

    Attributes:
        kullback: the code with `kl_divergence` and the wrappers of kullback.
        torch: the code with ``F``, which is `torch.nn.functional`.
        needs: the tensors that the code needs in addition to `input` and `target`, each as "name: content".
        value: the value of the code, if this value is a single known number.
    """

    kullback: str
    torch: str
    needs: tuple[str, ...] = ()
    value: float | None = None


@dataclass(frozen=True)
class _SuggestedArgument:
    """One argument in the suggested code: the expression and its content."""

    code: str
    in_logs: bool
    exact: bool
    has_zeros: bool
    axes: ClassAxes
    needs: str = ""

    @property
    def wrapped(self) -> str:
        names = ("LogProbs", "Logits") if self.in_logs else ("Probs", "Counts")
        dim = "" if self.axes.shown == -1 else f", dim={self.axes.shown}"
        return f"{names[0 if self.exact else 1]}({self.code}{dim})"

    @property
    def log_probs(self) -> str:
        if self.in_logs:
            return self.code if self.exact else f"{self.code}.log_softmax({self.axes.joined_dim})"
        return f"{self.probs}.log()"

    @property
    def probs(self) -> str:
        dim = self.axes.joined_dim
        if self.in_logs:
            return f"{self.code}.exp()" if self.exact else f"{self.code}.softmax({dim})"
        return self.code if self.exact else f"F.normalize({self.code}, p=1, dim={dim})"


def suggest(case: Case) -> Suggestion | None:
    """Return the code, or None if the contents of the tensors are unclear."""
    a, b, several = case.read_input, case.read_target, case.axes.are_several
    if case.labels and a and not several:
        is_clear = a.representation != "nothing" and not a.invalid and not case.stray_labels.count
        return _cross_entropy(case, case.labels, a) if is_clear else None
    if not (case.paired and a and b) or case.classes == 1:
        return None
    if "nothing" in (a.representation, b.representation) or (several and not case.repair.keeps_entries):
        return None
    if case.are_independent:
        return _independent_labels(case, (a, b))
    lines, codes, axes = _prepared(case, (a, b))
    q, p = (_side(name, code, case, r, axes) for name, code, r in zip(_NAMES, codes, (a, b), strict=True))
    # The divisor of batchmean has to be the number of rows of the first argument.
    rows = torch.broadcast_tensors(*case.paired)[0].numel() // case.classes
    sizes = [shape[0] for shape in case.shapes] if several else [side.shape[0] for side in case.paired]
    one_by_one = not lines and sizes[case.reversed] != rows
    if case.reversed:
        p, q = q, p
    needs = tuple(side.needs for side in (q, p) if side.needs)
    return Suggestion(
        "\n".join([*lines, f"kl_divergence({p.wrapped}, {q.wrapped}){_REDUCED[case.reduction]}"]),
        "\n".join([*lines, _torch_call(p, q, case, one_by_one)]),
        needs,
        None if needs else _value(case),
    )


def _value(case: Case) -> float | None:
    """Return the value of the suggested code, or None if the value is unknown or is not a single number."""
    kl = case.backward if case.reversed else case.forward
    if case.reduction == "none" or not (kl and kl.rows):
        return None
    return kl.mean * (kl.rows if case.reduction == "sum" else 1)


def _independent_labels(case: Case, readings: tuple[Reading, Reading]) -> Suggestion:
    """Return a suggestion: code that sums the divergences between Bernoulli distributions over the labels."""
    codes = [_cast(code, case, r) for code, r in zip(_NAMES, readings, strict=True)]
    q, p = (
        f"torch.distributions.Bernoulli({f'logits={code} - (-{code}.expm1()).log()' if r.in_logs else code})"
        for code, r in zip(codes, readings, strict=True)
    )
    probs = [f"{code}.exp()" if r.in_logs else code for code, r in zip(codes, readings, strict=True)]
    entropies = (f'F.binary_cross_entropy({x}, {probs[1]}, reduction="none")' for x in probs)
    terms = f"({' - '.join(entropies)})"
    if case.forward is not None and case.forward.infinite:
        # `binary_cross_entropy` replaces logarithms below -100 by -100.
        sides = ", ".join(f"torch.distributions.Bernoulli({x})" for x in reversed(probs))
        terms = f"torch.distributions.kl_divergence({sides})"
    reduced = f".sum({case.dim}){_REDUCED[case.reduction]}"
    # `binary_cross_entropy` does not broadcast.
    line = "input, target = torch.broadcast_tensors(input, target)\n" * (case.repair.how == "expand")
    return Suggestion(f"kl_divergence({p}, {q}){reduced}", f"{line}{terms}{reduced}", value=_value(case))


def _prepared(case: Case, readings: tuple[Reading, Reading]) -> tuple[list[str], Sequence[str], ClassAxes]:
    """Return lines of code that leave rows out (or no lines), the code of both tensors, and the class dimensions."""
    a, b = readings
    codes = [case.repair.input, case.repair.target]
    if case.input.device != case.target.device:
        codes[1] = f"{codes[1]}.to(input.device)"
    codes = [_cast(code, case, r) for code, r in zip(codes, readings, strict=True)]
    if not (a.invalid or b.invalid or a.empty_rows.count or b.empty_rows.count):
        return [], codes, case.axes
    lines: list[str] = []
    if case.repair.how == "expand":
        lines.append(f"input, target = torch.broadcast_tensors({codes[0]}, {codes[1]})")
        codes = list(_NAMES)
    last = "" if case.dim == -1 else f".movedim({case.dim}, -1)"
    codes = [f"{code}{case.axes.code}{last}" for code in codes]
    tests = [test for code, r in zip(codes, readings, strict=True) for test in _row_tests(code, r)]
    lines.append("keep = " + " & ".join(tests))
    return lines, [f"{code}[keep]" for code in codes], ClassAxes((-1,))


def _row_tests(code: str, reading: Reading) -> list[str]:
    """Return the code of the conditions that the usable rows of a tensor satisfy."""
    if reading.in_logs:
        return [f"{code}.amax(-1).isfinite()"] if reading.invalid or reading.empty_rows.count else []
    tests = [f"{code}.isfinite().all(-1)"] if reading.invalid else []
    return [*tests, f"({code}.sum(-1) > 0)"] if reading.empty_rows.count else tests


def _cast(code: str, case: Case, reading: Reading) -> str:
    """Return the code with a cast to the common dtype of both tensors, float32 or float64, if a cast is needed."""
    dtype = torch.float64 if torch.float64 in (case.input.dtype, case.target.dtype) else torch.float32
    if reading.dtype == dtype:
        return code
    return f"{code}.double()" if dtype == torch.float64 else f"{code}.float()"


def _side(name: str, code: str, case: Case, reading: Reading, axes: ClassAxes) -> _SuggestedArgument:
    if reading.softmaxed_twice or reading.other_dim is not None:
        scores = f"{name}_logits"
        return _SuggestedArgument(
            scores, True, False, False, axes, f"{scores}: the scores before any softmax"
        )
    if not reading.in_logs and reading.negative.count:
        code = f"{code}.clamp(min=0)"
    # One-hot rows of integers are exact after the cast to floating point.
    one_hot = reading.representation == "one-hot rows" and reading.row_sums.all_exact
    exact = (reading.exact or one_hot) and case.repair.how != "cut-classes"
    return _SuggestedArgument(code, reading.in_logs, exact, reading.has_zeros, axes)


def _torch_call(p: _SuggestedArgument, q: _SuggestedArgument, case: Case, one_by_one: bool) -> str:
    dims = p.axes.shown
    if p.axes.are_several and not (p.exact and q.exact):  # `log_softmax` and `normalize` need one dimension
        dims = p.axes.joined_dim
        p, q = (replace(side, code=side.code + side.axes.code) for side in (p, q))
    masked = case.overlap.both.count > 0
    log_target = p.in_logs and p.exact and not p.has_zeros
    arguments = f"{q.log_probs}, {p.log_probs if log_target else p.probs}"
    tail = ", log_target=True" if log_target else ""
    terms = f'F.kl_div({arguments}, reduction="none"{tail})'
    if masked:
        terms = f"torch.where({p.probs} > 0, {terms}, 0)"
    if case.reduction == "none":
        return f"{terms}.sum({dims})"
    if masked or (one_by_one and case.reduction != "sum"):
        return f"{terms}.sum()" if case.reduction == "sum" else f"{terms}.sum({dims}).mean()"
    reduction = "sum" if case.reduction == "sum" else "batchmean"
    return f'F.kl_div({arguments}, reduction="{reduction}"{tail})'


def _cross_entropy(case: Case, labels: str, reading: Reading) -> Suggestion:
    """Return a suggestion: code for KL from a one-hot distribution, which equals the cross-entropy of class indices."""
    classes_second = case.input.ndim == 1 or case.input.ndim + case.dim == 1
    scores = "input" if reading.in_logs else "input.log()"
    moved = scores if classes_second else f"{scores}.movedim({case.dim}, 1)"
    reduction = f', reduction="{case.reduction}"' if case.reduction in ("none", "sum") else ""
    lines = picked = ""
    if bool((case.target.long() == NO_LABEL).any()):
        lines = f"keep = {labels} != {NO_LABEL}  # which F.cross_entropy leaves out by itself\n"
        picked = "[keep]"
    rows = "input" if case.dim == -1 else f"input.movedim({case.dim}, -1)"
    wrapper = "Logits" if reading.in_logs else "Counts"
    one_hot = f"Counts(F.one_hot({labels}{picked}, {case.classes}))"
    return Suggestion(
        f"{lines}kl_divergence({one_hot}, {wrapper}({rows}{picked})){_REDUCED[case.reduction]}",
        f"F.cross_entropy({moved}, {labels}{reduction})",
    )
