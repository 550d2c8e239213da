"""The documents of an `Estimate` and of a `TwoSampleTest`, whose headlines contain all main numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from kullback.common.formats import count, level_of, significant, unit_of_base
from kullback.generators.divergence import NAMED
from kullback.report.document import Column, Document, Findings, Frame, Headline, Measured, Plot, Table
from kullback.report.plots.points import Point, draw_points
from kullback.results.estimate import Estimate, TwoSampleTest
from kullback.results.verdict import Verdict

MOST_ROWS = 20
SIGNIFICANT = 0.05
_KINDS = {
    "kl": "KL",
    "reverse_kl": "reverse KL",
    "jeffreys": "Jeffreys divergence",
    "js": "JS",
    "skew": "skew KL",
    "renyi": "Renyi divergence",
    "tv": "total variation",
    "hellinger": "squared Hellinger distance",
    "chi2": "chi-squared divergence",
    "alpha": "alpha divergence",
}


def of_estimate(estimate: Estimate, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `kl_estimate`, or of another estimator."""
    sentence = sentence_of(estimate)
    return Document(
        sentence,
        Headline(sentence),
        (_table(estimate), *Findings.of_notes(estimate.notes, is_main=True)),
        tuple(verdicts),
        frame=partial(_frame, estimate),
        maker="kullback.kl_estimate",
        in_one_line=True,
        measured=_measured(estimate, method=estimate.method),
        plot=_plot(estimate),
    )


def of_test(test: TwoSampleTest, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of the result of `two_sample_test`, including the estimate of the divergence."""
    p_value, method = significant(test.p_value, 3), _words(test.method)
    cells = {
        "p-value": p_value,
        "statistic": method,
        "value": significant(test.statistic, 6),
        "permutations": f"{test.permutations}",
    }
    if test.p_value < SIGNIFICANT:
        outcome = "P and Q differ"
    elif math.isnan(test.p_value) or test.least_p_value >= SIGNIFICANT:
        outcome = "The test cannot tell whether P and Q differ"
    else:
        outcome = "No difference of P and Q is seen"
    sentence = (
        f"{outcome} (p = {p_value}), {method} = {significant(test.statistic)} (statistic), "
        f"{test.permutations} permutations"
    )
    effects = [] if test.effect is None else [test.effect]
    notes = dict.fromkeys(note for result in (test, *effects) for note in result.notes)
    headline = "; ".join([sentence, *map(sentence_of, effects)])
    return Document(
        headline,
        Headline(headline),
        (
            Table("The test", list(cells), [list(cells.values())], is_main=True),
            *map(_table, effects),
            *Findings.of_notes(notes, is_main=True),
        ),
        tuple(verdicts),
        frame=partial(_frame_of_test, test),
        maker="kullback.two_sample_test",
        in_one_line=True,
        measured=Measured({"kl": "nats"}) if test.effect is None else _measured(test.effect),
        plot=Plot("effect", "The effect", "", partial(draw_points, [], _label("KL", "nats", "")))
        if test.effect is None
        else _plot(test.effect),
    )


def _measured(estimate: Estimate, **further: str | float) -> Measured:
    unit = _name_and_unit(estimate)[1]
    if estimate.base is not None:
        further["base"] = estimate.base
    return Measured({estimate.kind: unit or "dimensionless"}, estimate.confidence, further)


def _plot(estimate: Estimate) -> Plot:
    label = _label(*_name_and_unit(estimate), _meaning_of_ends(estimate))
    return Plot("estimate", "The estimate", "", lambda axes: draw_points(_points(estimate), label, axes))


def _label(name: str, unit: str, ends: str) -> str:
    """Return the label of an axis: the kind, the unit, and the meaning of the ends in brackets."""
    return ", ".join(filter(None, (name, unit))) + (f" ({ends})" if ends else "")


def _name_and_unit(estimate: Estimate) -> tuple[str, str]:
    """Return the name of the divergence and its unit, which is empty for a divergence without a logarithm."""
    word, *parameters = estimate.kind.split(":")
    name = _KINDS.get(word, estimate.kind)
    if parameters and word in _KINDS:
        name += f" ({', '.join(parameters)})"
    if word in NAMED and not NAMED[word].logarithmic:
        return name, ""
    return name, unit_of_base(estimate.base)


def _meaning_of_ends(estimate: Estimate) -> str:
    """Return the meaning of the ends at each value in a plot; nothing without ends."""
    if estimate.interval is not None:
        return level_of(estimate.confidence)
    if estimate.standard_error is not None:
        return "± standard error"
    return "" if estimate.error is None else "± bound on the error"


def _points(estimate: Estimate) -> list[Point]:
    """Return the points; without an interval, the limits are the value +- its standard error or error bound."""
    values = _floats(estimate.value)
    if estimate.interval is None:
        spread = estimate.error if estimate.standard_error is None else estimate.standard_error
        errors = [0.0] * len(values) if spread is None else _floats(spread.expand(estimate.value.shape))
        ends = [(value - error, value + error) for value, error in zip(values, errors, strict=True)]
    else:
        ends = list(zip(*map(_floats, estimate.interval), strict=True))
    return [Point(value, *limits) for value, limits in zip(values, ends, strict=True)]


def _floats(x: Tensor) -> list[float]:
    return x.detach().double().flatten().tolist()


def sentence_of(estimate: Estimate) -> str:
    """Return the estimate as one line of text: divergence, value, interval, method and numbers of draws.

    Example:
        >>> import torch
        >>> interval = torch.tensor(0.07), torch.tensor(0.3)
        >>> print(sentence_of(Estimate(torch.tensor(0.19), None, "knn", interval, (1000, 1000), confidence=0.95)))
        KL = 0.19 nats (95 % 0.07 to 0.3), knn, n = 1000 + 1000
    """
    name, unit = _name_and_unit(estimate)
    unit = f" {unit}" if unit else ""
    value = estimate.value.detach().double()
    if value.numel() == 1:
        sentence = f"{name} = {significant(float(value))}{unit}{_doubt(estimate)}"
    elif value.numel() == 0:
        sentence = f"{name} of no rows"
    else:
        shape = " x ".join(map(str, value.shape))
        low, high, mean = (significant(float(x)) for x in (value.min(), value.max(), value.mean()))
        sentence = f"{name} of {shape} rows: {low} to {high}{unit}, mean {mean}"
    return ", ".join([sentence, _words(estimate.method), *_sizes(estimate.n)])


def _words(method: str) -> str:
    return method.replace("_", " ")


def _doubt(estimate: Estimate) -> str:
    if estimate.interval is not None:
        low, high = (significant(float(end.detach())) for end in estimate.interval)
        level = "interval" if estimate.confidence is None else f"{100 * estimate.confidence:g} %"
        return f" ({level} {low} to {high})"
    if estimate.standard_error is not None:
        return f" (standard error {significant(float(estimate.standard_error.detach()), 2)})"
    if estimate.n is not None:
        return " (no interval)"
    if estimate.error is None:
        return ""
    return f" (off by {significant(float(estimate.error.detach()), 1)} at most)"


def _sizes(n: tuple[int | Tensor, int | Tensor] | None) -> list[str]:
    if n is None:
        return []
    draws = [_range(x, str) for x in n]
    known = [f"{name} known" for name, x in zip("PQ", draws, strict=True) if x == "0"]
    return [f"n = {' + '.join(x for x in draws if x != '0')}", *known]


def _range(x: int | Tensor, write: Callable[[int], str]) -> str:
    return f"{write(int(x.min()))} to {write(int(x.max()))}" if isinstance(x, Tensor) else write(x)


def _table(estimate: Estimate) -> Table:
    """Return the table of values and errors of at most 20 elements, with the method below the table."""
    columns = {_label(*_name_and_unit(estimate), ""): _numbers(estimate.value)}
    for name, numbers in (
        ("bound on the error", estimate.error),
        ("standard error", estimate.standard_error),
    ):
        if numbers is not None:
            columns[name] = _numbers(numbers)
    if estimate.interval is not None:
        ends = zip(*map(_numbers, estimate.interval), strict=True)
        columns[level_of(estimate.confidence)] = [f"{low} to {high}" for low, high in ends]
    shape, size = estimate.value.shape, estimate.value.numel()
    if shape:
        columns = {"element": [_element(place, shape) for place in range(min(size, MOST_ROWS))]} | columns
    first = [f"The first {MOST_ROWS} of {count(size)} elements."] * (size > MOST_ROWS)
    draws = "" if estimate.n is None else f", from {' and '.join(_range(x, count) for x in estimate.n)} draws"
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    caption = (*first, f"by {estimate.method}{draws}")
    return Table("The estimate", list(columns), rows, caption, is_main=True)


def _numbers(x: Tensor) -> list[str]:
    return [significant(number, 6) for number in x.detach().double().flatten()[:MOST_ROWS].tolist()]


def _element(place: int, shape: torch.Size) -> str:
    return ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(place, device="cpu"), shape))


def _frame(estimate: Estimate) -> Frame:
    """Return the numbers of each element of the batch, in the order of ``flatten``."""
    low, high = estimate.interval or (None, None)
    numbers = {
        "value": estimate.value,
        "error": estimate.error,
        "standard_error": estimate.standard_error,
        "low": low,
        "high": high,
    }
    return Frame({name: _floats(x) for name, x in numbers.items() if x is not None})


def _frame_of_test(test: TwoSampleTest) -> Frame:
    """Return the p-value with its statistic, and the effect with its interval."""
    names = ("p_value", "statistic", "method", "permutations")
    columns: dict[str, Column] = {name: [getattr(test, name)] for name in names}
    if test.effect is not None:
        effect = _frame(test.effect).columns
        columns |= {"effect" if name == "value" else f"effect_{name}": x for name, x in effect.items()}
    return Frame(columns)
