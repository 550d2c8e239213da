"""The plots of docs/records/benchmarks.md: transparent, in greys and colors that read on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Result = dict[str, Any]

GREY = "#7d828a"
COLORS = {
    "kullback": "#2a9d6f",
    "torch.compile": "#4c86d9",
    "eager": "#d9793b",
    "TRL": "#b565b8",
    "other": GREY,
}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kullback",  # the same file from the same numbers
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def drawing(path: Path, panels: int, columns: int, *, legend: bool = True) -> Iterator[list[Axes]]:
    """Axes in columns, saved to `path` at the end, with the legend of the first axes above them."""
    rows = -(-panels // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 0.4 + (3.6 if legend else 2.4) * rows), layout="constrained")
        axes = [figure.add_subplot(rows, columns, i + 1) for i in range(panels)]
        yield axes
        if legend:
            handles = axes[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside upper center", ncols=len(handles[0]), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def color(name: str) -> str:
    return next((c for key, c in COLORS.items() if key in name), COLORS["other"])


def plot_rows(document: Result, path: Path) -> None:
    """The time of KL by shape, one panel for each dtype."""
    ways = ["KL: kullback", "KL: torch.compile", "KL: eager", "clone"]
    dtypes = list(dict.fromkeys(x["case"]["dtype"] for x in document["cases"]))
    with drawing(path, len(dtypes), 2) as panels:
        for axes, dtype in zip(panels, dtypes, strict=True):
            cases = [x for x in document["cases"] if x["case"]["dtype"] == dtype]
            bars(axes, cases, ways)
            axes.set(title=f"KL, {dtype}", yscale="log", ylabel="milliseconds, forward + backward")


def bars(axes: Axes, cases: list[Result], names: list[str], scale: float = 1e3) -> None:
    """Groups of bars, a group for each case."""
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        found = [(k, x["steps"][name]["median"]) for k, x in enumerate(cases) if name in x["steps"]]
        places = [k + (i - (len(names) - 1) / 2) * width for k, _ in found]
        heights = [scale * y for _, y in found]
        label = name.removeprefix("KL: ")
        axes.bar(places, heights, width, color=color(name), label=label, alpha=0.5 if name == "clone" else 1)
    shapes = [f"{x['case']['rows']}\n× {x['case']['classes']}" for x in cases]
    axes.set_xticks(range(len(cases)), shapes)
    axes.set_xlabel("rows × classes")


def plot_scaling(document: Result, path: Path) -> None:
    """The time of KL against rows, classes and threads, one panel for each."""
    panels_of = list(dict.fromkeys(x["case"]["along"] for x in document["cases"]))
    with drawing(path, len(panels_of), 3) as panels:
        for axes, along in zip(panels, panels_of, strict=True):
            cases = [x for x in document["cases"] if x["case"]["along"] == along]
            for name in cases[0]["steps"]:
                points = [(x["case"][along], 1e3 * x["steps"][name]["median"]) for x in cases]
                label = name.removeprefix("KL: ")
                axes.plot(*zip(*points, strict=True), marker="o", color=color(name), label=label)
            axes.set(xlabel=along, ylabel="milliseconds", xscale="log", yscale="log")
            if along == "threads":
                axes.set(xscale="linear", ylim=(0.5, None), xticks=[x["case"]["threads"] for x in cases])


def plot_head(document: Result, path: Path) -> None:
    """Time of each way, in units of the matrix products alone."""
    cases = document["cases"]
    with drawing(path, len(cases), 2, legend=False) as panels:
        for axes, x in zip(panels, cases, strict=True):
            names = [name for name in x["steps"] if name != "products"]
            base = x["steps"]["products"]["median"]
            ratios = [x["steps"][name]["median"] / base for name in names]
            axes.barh(names, ratios, color=[color(name) for name in names])
            axes.axvline(1, color=GREY, linestyle="--")
            axes.invert_yaxis()
            case = x["case"]
            axes.set_title(
                f"{case['rows']} × {case['classes']}, hidden {case['hidden']}, {case['dtype']}", size=9
            )
            axes.set_xlabel("time / time of the matrix products")
