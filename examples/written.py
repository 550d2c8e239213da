"""Common parts of the variational examples: their file of results, and the style of their pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "kullback.variational_example/1"
STYLE = {
    "svg.hashsalt": SCHEMA,  # the same file from the same numbers
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    folder = Path(__file__).parent / "results"
    parser.add_argument("--out", type=Path, default=folder, help="folder to write to")
    torch.set_num_threads(1)  # models as small as these lose time on more
    return parser.parse_args()


def write(
    folder: Path, name: str, content: Mapping[str, Any], *, draw: Callable[[Any], Figure] | None = None
) -> None:
    """Write `name`.json, and `name`.svg if `draw` makes a figure with pyplot."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"python": sys.version.split()[0], "torch": torch.__version__}
    text = json.dumps({"schema": SCHEMA, "example": name, **content, "versions": versions}, indent=1)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    if draw is None:
        return
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure = draw(plt)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
        plt.close(figure)
