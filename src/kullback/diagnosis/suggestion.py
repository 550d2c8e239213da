"""`suggest`: code for the probable intention of a call."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kullback.common.words import NO_LABEL
from kullback.diagnosis.case import Case
from kullback.diagnosis.maps import Maps
from kullback.diagnosis.reading import Reading
from kullback.losses.reduction import Reduction


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
    dim: int
    needs: str | None = None
    maps: Maps | None = None

    @property
    def wrapped(self) -> str:
        names = ("LogProbs", "Logits") if self.in_logs else ("Probs", "Counts")
        dims = self.dim if self.maps is None else self.maps.dims
        dim = "" if dims == -1 else f", dim={dims}"
        return f"{names[0 if self.exact else 1]}({self.code}{dim})"

    @property
    def log_probs(self) -> str:
        if self.in_logs:
            return self.code if self.exact else f"{self.code}.log_softmax({self.dim})"
        return f"{self.probs}.log()"

    @property
    def probs(self) -> str:
        if self.in_logs:
            return f"{self.code}.exp()" if self.exact else f"{self.code}.softmax({self.dim})"
        return self.code if self.exact else f"F.normalize({self.code}, p=1, dim={self.dim})"


def suggest(case: Case) -> Suggestion | None:
    """Return the code, or None if the contents of the tensors are unclear."""
    a, b = case.read_input, case.read_target
    if case.labels and a and case.maps is None:
        is_clear = a.representation != "nothing" and not a.invalid and not case.stray_labels.count
        return _cross_entropy(case, case.labels, a) if is_clear else None
    if not (case.paired and a and b) or case.classes == 1:
        return None
    if case.maps is not None and not (case.repair and case.repair.how in ("same", "expand")):
        return None
    if "nothing" in (a.representation, b.representation):
        return None
    if case.are_independent:
        return _independent_labels(case, a, b)
    lines, codes, dim, picked = _prepared(case, a, b)
    q, p = (_side(name, code, case, r, dim) for name, code, r in zip(_NAMES, codes, (a, b), strict=True))
    if case.maps is not None and not picked:
        q, p = (replace(side, maps=case.maps) for side in (q, p))
    first = 0
    if case.reversed:
        p, q, first = q, p, 1
    needs = tuple(side.needs for side in (q, p) if side.needs)
    kl = case.backward if case.reversed else case.forward
    value = kl.mean * (kl.rows if case.reduction == "sum" else 1) if kl and kl.rows else None
    rows = torch.broadcast_tensors(*case.paired)[0].numel() // case.classes
    one_by_one = not picked and case.paired[first].shape[0] != rows
    if case.maps is not None and not picked:
        one_by_one = case.shapes[first][0] != rows
    return Suggestion(
        "\n".join([*lines, f"kl_divergence({p.wrapped}, {q.wrapped}){_REDUCED[case.reduction]}"]),
        "\n".join([*lines, _torch_call(p, q, case, one_by_one)]),
        needs,
        None if needs or case.reduction == "none" else value,
    )


_NAMES = ("input", "target")
_REDUCED: dict[Reduction, str] = {"none": "", "sum": ".sum()", "mean": ".mean()", "batchmean": ".mean()"}


def _independent_labels(case: Case, a: Reading, b: Reading) -> Suggestion:
    """Return code for the sum over the labels of the divergences between Bernoulli distributions."""
    codes = [_cast(code, case, r) for code, r in zip(_NAMES, (a, b), strict=True)]
    q, p = (
        f"torch.distributions.Bernoulli(logits={code} - (-{code}.expm1()).log())"
        if r.in_logs
        else f"torch.distributions.Bernoulli({code})"
        for code, r in zip(codes, (a, b), strict=True)
    )
    probs = [f"{code}.exp()" if r.in_logs else code for code, r in zip(codes, (a, b), strict=True)]
    entropies = (f'F.binary_cross_entropy({x}, {probs[1]}, reduction="none")' for x in probs)
    reduced = f".sum({case.dim}){_REDUCED[case.reduction]}"
    kl = case.forward
    value = None
    if kl and kl.rows and case.reduction != "none":
        value = kl.mean * (kl.rows if case.reduction == "sum" else 1)
    return Suggestion(f"kl_divergence({p}, {q}){reduced}", f"({' - '.join(entropies)}){reduced}", value=value)


def _prepared(case: Case, a: Reading, b: Reading) -> tuple[list[str], tuple[str, str], int, bool]:
    """Return the first lines of code, the code of both tensors, the dimension of the classes, and whether rows are left
    out.
    """
    repair = case.repair
    codes = (repair.input, repair.target) if repair else _NAMES
    if case.input.device != case.target.device:
        codes = codes[0], f"{codes[1]}.to(input.device)"
    codes = _cast(codes[0], case, a), _cast(codes[1], case, b)
    if not (a.invalid or b.invalid or a.empty_rows.count or b.empty_rows.count):
        return [], codes, case.dim, False
    lines: list[str] = []
    if repair and repair.how == "expand":
        lines.append(f"input, target = torch.broadcast_tensors({codes[0]}, {codes[1]})")
        codes = _NAMES
    if case.maps is not None:
        codes = f"{codes[0]}{case.maps.code}", f"{codes[1]}{case.maps.code}"
    if case.dim != -1:
        codes = f"{codes[0]}.movedim({case.dim}, -1)", f"{codes[1]}.movedim({case.dim}, -1)"
    tests = [test for code, reading in zip(codes, (a, b), strict=True) for test in _row_tests(code, reading)]
    lines.append("keep = " + " & ".join(tests))
    return lines, (f"{codes[0]}[keep]", f"{codes[1]}[keep]"), -1, True


def _row_tests(code: str, reading: Reading) -> list[str]:
    """Return the code of the conditions that the usable rows of a tensor satisfy."""
    if reading.in_logs:
        return [f"{code}.amax(-1).isfinite()"] if reading.invalid or reading.empty_rows.count else []
    tests = [f"{code}.isfinite().all(-1)"] if reading.invalid else []
    return [*tests, f"({code}.sum(-1) > 0)"] if reading.empty_rows.count else tests


def _cast(code: str, case: Case, reading: Reading) -> str:
    """Return the code with a cast to the common dtype of both tensors, float32 or float64, if a cast is needed."""
    floating = [x.dtype for x in (case.input, case.target) if x.is_floating_point()]
    dtype = torch.float64 if torch.float64 in floating else torch.float32
    if reading.scan.dtype == dtype:
        return code
    return f"{code}.double()" if dtype == torch.float64 else f"{code}.float()"


def _side(name: str, code: str, case: Case, reading: Reading, dim: int) -> _SuggestedArgument:
    if reading.softmaxed_twice or reading.other_dim is not None:
        needs = f"{name}_logits: the scores before any softmax"
        return _SuggestedArgument(
            f"{name}_logits", in_logs=True, exact=False, has_zeros=False, dim=dim, needs=needs
        )
    if not reading.in_logs and reading.scan.negative.count:
        code = f"{code}.clamp(min=0)"
    cut = case.repair is not None and case.repair.how == "cut-classes"
    # One-hot rows of integers are exact after the cast to floating point.
    one_hot = reading.representation == "one-hot rows" and reading.sums.exact == reading.sums.rows
    return _SuggestedArgument(
        code, reading.in_logs, (reading.exact or one_hot) and not cut, reading.zeros.count > 0, dim
    )


def _torch_call(p: _SuggestedArgument, q: _SuggestedArgument, case: Case, one_by_one: bool) -> str:
    dims: int | tuple[int, ...] = p.dim
    if p.maps is not None and p.exact and q.exact:  # both sides are normalized: nothing to join
        dims = p.maps.dims
    elif p.maps is not None:
        code = p.maps.code
        p, q = (replace(side, code=side.code + code, maps=None) for side in (p, q))
    masked = case.overlap is not None and case.overlap.both.count > 0
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
    """Return code for KL from a one-hot distribution, which equals the cross-entropy for class indices."""
    classes_second = case.input.ndim == 1 or case.input.ndim + case.dim == 1
    scores = "input" if reading.in_logs else "input.log()"
    moved = scores if classes_second else f"{scores}.movedim({case.dim}, 1)"
    reduction = f', reduction="{case.reduction}"' if case.reduction in ("none", "sum") else ""
    lines, picked = "", ""
    if bool((case.target.long() == NO_LABEL).any()):
        lines, picked = (
            f"keep = {labels} != {NO_LABEL}  # which F.cross_entropy leaves out by itself\n",
            "[keep]",
        )
    rows = "input" if case.dim == -1 else f"input.movedim({case.dim}, -1)"
    wrapper = "Logits" if reading.in_logs else "Counts"
    one_hot = f"Counts(F.one_hot({labels}{picked}, {case.classes}))"
    return Suggestion(
        f"{lines}kl_divergence({one_hot}, {wrapper}({rows}{picked})){_REDUCED[case.reduction]}",
        f"F.cross_entropy({moved}, {labels}{reduction})",
    )
