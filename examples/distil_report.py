"""Common parts of the two distillation examples: the summary of their runs over seeds, its file and its plot."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = "kullback.distillation_example/1"
BASELINE = "hard labels"


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Mean:
    """A mean over seeds and its standard error."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        return cls(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.standard_error:.2g}"


@dataclass(frozen=True)
class Outcome:
    """One way to train on one amount of data: each seed's result, and its difference from the baseline."""

    amount: int
    way: str
    values: Sequence[float]
    reached: Mean
    difference: Mean


def outcomes(values: Mapping[tuple[int, str], Sequence[float]]) -> list[Outcome]:
    """Summaries of the values by (amount, way); a seed's baseline is subtracted before the seeds are averaged."""
    return [
        Outcome(
            amount=amount,
            way=way,
            values=reached,
            reached=Mean.of(reached),
            difference=Mean.of([x - y for x, y in zip(reached, values[amount, BASELINE], strict=True)]),
        )
        for (amount, way), reached in values.items()
    ]


def write(folder: Path, name: str, about: Mapping[str, Any], rows: Sequence[Outcome]) -> None:
    """Write `name`.json and `name`.svg, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    content = {
        "schema": SCHEMA,
        "example": name,
        **about,
        "versions": versions,
        "outcomes": [*map(asdict, rows)],
    }
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    _plot(folder / f"{name}.svg", about, rows)
    print(f"\n{about['measure']}")
    for row in rows:
        versus = "" if row.way == BASELINE else f"   difference {row.difference}"
        print(f"{row.amount:7,d} {about['unit']}  {row.way:34s} {row.reached}{versus}")


def _plot(path: Path, about: Mapping[str, Any], rows: Sequence[Outcome]) -> None:
    """The result of each way, and its difference from the baseline with the same seed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    settings = {
        "svg.hashsalt": SCHEMA,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(settings):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
        for i, way in enumerate(dict.fromkeys(row.way for row in rows)):
            its = [row for row in rows if row.way == way]
            amounts = [row.amount for row in its]
            _curve(left, amounts, [row.reached for row in its], way, f"C{i}")
            if way != BASELINE:
                _curve(right, amounts, [row.difference for row in its], way, f"C{i}")
        for axes in (left, right):
            axes.set(xlabel=about["unit"], xscale="log")
            axes.set_xticks(amounts, [f"{amount:,}" for amount in amounts])
            axes.minorticks_off()
        right.axhline(0, color="0.5", linewidth=1)
        left.set(ylabel=about["measure"].replace(" (", "\n("))
        right.set(ylabel=f"difference from {BASELINE}, same seed")
        left.legend(frameon=False, fontsize="small")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)


def _curve(axes: Axes, amounts: Sequence[int], means: Sequence[Mean], way: str, color: str) -> None:
    heights, errors = [x.mean for x in means], [x.standard_error for x in means]
    axes.errorbar(amounts, heights, yerr=errors, marker="o", capsize=3, label=way, color=color)
