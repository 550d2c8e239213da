"""The document of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.distributions import Distribution

from kullback.common.formats import number, significant, span
from kullback.fitting.fit_result import Fit
from kullback.fitting.unconstrained import read_family
from kullback.report.document import Document, Findings, Frame, Gallery, Headline, Measured, Table
from kullback.report.plots.fit import draw_plots, unit
from kullback.representations import Representation
from kullback.results.verdict import Verdict

COLUMNS = ("value", "error", "standard_error", "before", "above", "gradient_norm", "converged", "iterations")
MOST_NUMBERS = 3


def document(fit: Fit, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `kullback.fit`."""
    return Document(
        f"{_outcome(fit)}: fit",
        Headline(_outcome(fit)),
        (
            Table("The fit", ("", ""), _rows(fit), is_main=True),
            *Findings.of_notes(fit.notes),
            Gallery("Target, fit and history", draw_plots(fit)),
        ),
        tuple(verdicts),
        frame=partial(_frame, fit),
        maker="kullback.fit",
        measured=Measured({fit.quantity: unit(fit, "") or "dimensionless"}, further={"method": fit.method}),
    )


def _frame(fit: Fit) -> Frame:
    """Return the numbers of each element of the batch, in the order of ``flatten``."""
    numbers = {name: getattr(fit, name) for name in COLUMNS}
    return Frame({name: x.detach().reshape(-1).tolist() for name, x in numbers.items() if x is not None})


def _outcome(fit: Fit) -> str:
    """Return the sentence with the type of the fitted distribution, and its divergence from the target or another
    quantity, which is not a distance.
    """
    count, name = fit.value.numel(), type(fit.distribution).__name__
    fitted = f"the fitted {name}" if count == 1 else f"{count} fits of {name}"
    failed = count - int(fit.converged.sum())
    others = f"; {failed} of {count} did not converge" if failed else ""
    if "||" not in fit.quantity:
        return f"The {fit.quantity} of {fitted} is {_range(fit.value)}{unit(fit)}{others}"
    verb, whose = ("is", "target") if count == 1 else ("are", "targets")
    distance = f"{_range(fit.value)}{unit(fit)} from the {whose}"
    return f"{fitted[0].upper()}{fitted[1:]} {verb} {distance}: {fit.quantity}{others}"


def _rows(fit: Fit) -> list[tuple[str, str]]:
    """Return the rows of a table with two columns: names, and values as text."""
    rows = [
        (fit.quantity, f"{_range(fit.value)}{unit(fit)}{_error(fit.error, fit.standard_error)}"),
        ("at the start", f"{_range(fit.before)}{unit(fit)}"),
        ("method", fit.method.replace("_", " ")),
        ("converged", f"{int(fit.converged.sum())} of {fit.converged.numel()}"),
        ("iterations", _range(fit.iterations)),
        ("above the nearest minimum", f"about {_range(fit.above)}{unit(fit)}"),
        ("time", f"{significant(fit.seconds, 2)} s"),
    ]
    return [*rows, *_parameters(fit.distribution)]


def _parameters(distribution: Any) -> list[tuple[str, str]]:
    """Return the names of the parameters, and the first few numbers of each parameter."""
    if isinstance(distribution, Representation):
        return [(type(distribution).__name__, _numbers(distribution.tensor))]
    if not isinstance(distribution, Distribution):
        return []
    try:
        family = read_family(distribution, frozenset())
    except (TypeError, ValueError):
        return []
    return [(name, _numbers(getattr(distribution, name, leaf.value))) for name, leaf in family.free.items()]


def _numbers(x: Tensor) -> str:
    flat = x.detach().reshape(-1)
    shown = ", ".join(number(float(value)) for value in flat[:MOST_NUMBERS])
    more = f", ... ({flat.numel()} numbers)" if flat.numel() > MOST_NUMBERS else ""
    return f"{shown}{more}"


def _range(x: Tensor) -> str:
    if x.numel() == 0:
        return "nothing"
    return span(
        float(x.min()), float(x.max()), number if x.is_floating_point() else lambda whole: str(round(whole))
    )


def _error(error: Tensor | None, standard_error: Tensor | None) -> str:
    if standard_error is not None and standard_error.numel():
        return f", standard error {significant(float(standard_error.max()), 1)}"
    return (
        "" if error is None or not error.numel() else f", error at most {significant(float(error.max()), 1)}"
    )
