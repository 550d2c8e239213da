"""The plots of a comparison of tables: P and Q over the numbers of each column, and the PSI of several batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from kullback.common.formats import on_axis, percent
from kullback.report.document import Plot
from kullback.report.plots.svg import FIRST, SECOND, THIRD, draw_legend, make_logarithmic, plain
from kullback.tables.table_results import ColumnComparison, HistogramBin, JointComparison, TableComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_TICKS = 8
ROOM = 34  # the axis has room for this number of characters, in all tick labels together
MOST_DATES = 12  # with fewer, AutoDateLocator finds one tick or none in some ranges of minutes
# The forms of dates on an axis, from short to long: the tick's text, the part in the axis's label, and a range in days.
# Beyond this range, the label is ambiguous.
DATE_FORMS = (
    ("%Y", "", math.inf),
    ("%Y-%m", "", math.inf),
    ("%Y-%m-%d", "", math.inf),
    ("%H:%M", "%Y-%m-%d", 1.0),
    ("%m-%d %H:%M", "%Y", 360.0),
    ("%H:%M:%S", "%Y-%m-%d", 1.0),
    ("%S.%f", "%Y-%m-%d %H:%M", 1 / 1440),
    ("%Y-%m-%d %H:%M:%S.%f", "", math.inf),
)
# If the range of the values is more than this number times the smallest gap, bars at their values would be too thin.
CROWDED = 30
MICROSECONDS_A_DAY = 86_400_000_000
LAST_DAY = 2_932_896  # 9999-12-31, in days since 1970
FARTHEST = 1e300  # for larger numbers, matplotlib's arithmetic overflows
UNITS = {"numeric": "", "datetime": "", "text": "length in characters"}


def draw_column(column: ColumnComparison, name: str) -> Plot | None:
    """Return a plot of P and Q over the numbers of a column; None for fewer than two bins, or for huge numbers.

    The drawing contains no text from the data. Its `name` must be unique on the page.
    """
    inside = [each for each in column.histogram if math.isfinite(each.low) and math.isfinite(each.high)]
    if len(inside) < 2 or max(abs(inside[0].low), abs(inside[-1].high)) > FARTHEST:
        return None
    sums = totals(column)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        heights = [[100 * each.p / sums[0] for each in inside], [100 * each.q / sums[1] for each in inside]]
        if any(before.high != after.low or after.low == after.high for before, after in pairwise(inside)):
            _draw_bars(axes, inside, heights, column.column_type)
        else:
            _draw_stairs(axes, inside, heights, column.column_type)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
        axes.set(ylabel="percentage of rows", ylim=(0, None))
        axes.grid(visible=False, axis="x")
        draw_legend(axes)

    rest = [(part.label, part.p, part.q) for part in column.bins if part.low is None]
    for words, side in (("below", "low"), ("above", "high")):
        tail = [each for each in column.histogram if math.isinf(getattr(each, side))]
        rest += [(words, each.p, each.q) for each in tail if each.p or each.q]
    outside = (
        f"{label}: {percentage(p, sums[0])} of P, {percentage(q, sums[1])} of Q" for label, p, q in rest
    )
    caption = "; ".join(outside)
    return Plot(name, column.name, f"Not drawn: {caption}." if caption else "", draw)


def draw_history(comparisons: Sequence[TableComparison]) -> list[Plot]:
    """Return a plot of the PSI of each batch, for the columns with the largest PSI; empty if there are no columns."""
    history: dict[str, list[float]] = {}
    for place, comparison in enumerate(comparisons):
        for column in comparison.columns:
            values = history.setdefault(column.name, [math.nan] * len(comparisons))
            values[place] = math.nan if column.psi.value is None else column.psi.value
    largest = sorted(
        history, key=lambda name: -max((x for x in history[name] if not math.isnan(x)), default=0.0)
    )

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        styles = ((FIRST, "o-"), (SECOND, "s--"), (THIRD, "^:"))
        for name, (color, style) in zip(largest, styles, strict=False):
            label = plain(name, 12)
            label = " " * label.startswith("_") + label  # matplotlib leaves labels out that begin with "_"
            axes.plot(range(1, len(comparisons) + 1), history[name], style, color=color, label=label)
        for limit in (0.1, 0.25):
            axes.axhline(limit, color=THIRD, linewidth=0.8, alpha=0.5)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.set(xlabel="batch, in the order given", ylabel="PSI, nats", ylim=(0, None))
        draw_legend(axes)

    caption = (
        f"The columns with the largest PSI among {len(history)}. These values are your own: each batch against "
        f"{comparisons[0].p_name}. Lines are at 0.1 and 0.25, where credit scoring's rule of thumb begins to call a "
        "shift moderate and large."
    )
    return [Plot("history", "PSI by batch", caption, draw)] if history else []


def totals(compared: ColumnComparison | JointComparison) -> tuple[float, float]:
    """Return the total weight of P, and the total weight of Q, in all bins."""
    return sum(part.p for part in compared.bins), sum(part.q for part in compared.bins)


def percentage(weight: float, total: float) -> str:
    """Return the proportion of a bin in percent; n/a if the total is 0."""
    return percent(weight / total) if total else "n/a"


def _draw_bars(
    axes: Axes, values: Sequence[HistogramBin], heights: Sequence[Sequence[float]], column_type: str
) -> None:
    """Draw two bars for each bin, which is one value or a range of integers.

    The bars are at their values on the axis, or at equal distances if the bars would be too thin at their values.
    """
    places = [(float(each.low) + max(each.low, each.high - 1)) / 2 for each in values]
    steps = [after - before for before, after in pairwise(places)]
    if min(steps) <= 0 or places[-1] - places[0] > CROWDED * min(steps):
        places, steps = [float(place) for place in range(len(places))], [1.0]
    width = 0.4 * min(steps)
    for side, (label, color) in enumerate((("P", FIRST), ("Q", SECOND))):
        middles = [place + (side - 0.5) * width for place in places]
        axes.bar(middles, heights[side], width, color=color, label=label)
    lows, since = [each.low for each in values], ""
    labels = [on_axis(low) for low in lows]
    if column_type == "datetime":
        labels, since = _days([low / MICROSECONDS_A_DAY for low in lows])
    for place, each in enumerate(values):
        if each.high - 1 > each.low:
            labels[place] += f"–{on_axis(each.high - 1)}"
    most = max(2, min(MOST_TICKS, ROOM // (max(map(len, labels)) + 1)))
    step = math.ceil(len(places) / most)
    axes.set_xticks(places[::step], labels[::step])
    axes.set(xlabel=since or UNITS.get(column_type, ""))
    axes.set_xlim(places[0] - 2 * width, places[-1] + 2 * width)


def _draw_stairs(
    axes: Axes, bins: Sequence[HistogramBin], heights: Sequence[Sequence[float]], column_type: str
) -> None:
    """Draw the outlines of the histograms of P and Q."""
    from matplotlib.dates import AutoDateLocator
    from matplotlib.ticker import MaxNLocator

    edges = [float(each.low) for each in bins] + [float(bins[-1].high)]
    dates = column_type == "datetime" and max(map(abs, edges)) < LAST_DAY * MICROSECONDS_A_DAY
    if dates:
        edges = [edge / MICROSECONDS_A_DAY for edge in edges]
    axes.stairs(heights[0], edges, fill=True, color=FIRST, alpha=0.35)
    axes.stairs(heights[0], edges, color=FIRST, linewidth=2, label="P")
    axes.stairs(heights[1], edges, color=SECOND, linewidth=2, label="Q")
    axes.set_xlim(edges[0], edges[-1])
    if dates:
        locator = AutoDateLocator(minticks=3, maxticks=MOST_DATES, tz=UTC)
        start, end = (
            datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=edge) for edge in (edges[0], edges[-1])
        )
        ticks: Any = locator.tick_values(cast("Any", start), cast("Any", end))  # its types say float
        inside = [float(day) for day in ticks if edges[0] <= day <= edges[-1]]
        places, labels, since = _dates_with_room(inside, edges[-1] - edges[0])
        axes.set_xticks(places, labels)
        axes.set(xlabel=since, xlim=(edges[0], edges[-1]))
        return
    axes.set(xlabel=UNITS.get(column_type, ""))
    if bins[0].low > 0 and (bins[-1].high - bins[-1].low) > 2 * (bins[0].high - bins[0].low):
        make_logarithmic(axes, axes.xaxis)
    else:
        whole = all(isinstance(each.low, int) or each.low.is_integer() for each in bins)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=whole))
        axes.xaxis.set_major_formatter(lambda value, _: on_axis(value))


def _dates_with_room(days: Sequence[float], width: float) -> tuple[Sequence[float], list[str], str]:
    """Return every nth of some ticks, their labels and the axis's label, for the smallest n without an overlap."""
    for step in range(1, len(days) + 1):
        ticks = days[::step]
        labels, since = _days(ticks)
        gap = min((after - before for before, after in pairwise(ticks)), default=width)
        if gap / width * ROOM >= max(map(len, labels)) + 1:
            return ticks, labels, since
    return [], [], ""


def _days(days: Sequence[float]) -> tuple[list[str], str]:
    """Return dates as different texts, as short as possible, and the date since which they count, if they omit it.

    Beyond the year 9999, the texts are numbers.
    """
    if any(abs(day) > LAST_DAY for day in days):
        return [on_axis(day) for day in days], ""
    timestamps = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=float(day)) for day in days]
    texts: list[str] = []
    for form, omitted, widest in DATE_FORMS:
        # strftime cuts off, and a tick may be a microsecond before its second.
        nudge = timedelta(microseconds=0 if "%f" in form else 500)
        texts = [(each + nudge).strftime(form) for each in timestamps]
        if len(set(texts)) == len(texts) and max(days) - min(days) <= widest:
            return texts, f"since {(timestamps[0] + nudge).strftime(omitted)}" if omitted else ""
    return texts, ""
