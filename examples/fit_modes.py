"""Draw the two directions of KL on a target with two modes: docs/tutorial/results/fit.svg.

python examples/fit_modes.py [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch.distributions import Categorical, MixtureSameFamily, Normal

from kullback import KL, ReverseKL, fit

PICTURE = Path(__file__).parents[1] / "docs" / "tutorial" / "results" / "fit.svg"
BLUE, RUST = "#2b6cb0", "#c2410c"


def draw(path: Path) -> None:
    weights = Categorical(torch.tensor([0.4, 0.6]))
    target = MixtureSameFamily(weights, Normal(torch.tensor([-4.0, 3.0]), torch.tensor([0.8, 1.2])))
    mpl.rcParams.update({"svg.hashsalt": "fit", "svg.fonttype": "none", "font.size": 11})
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    x = torch.linspace(-10, 10, 801)
    titles = ("KL(to ‖ q) covers all", "KL(q ‖ to) seeks a mode: from 3", "the same from −4")
    kinds = ((KL(), 3.0), (ReverseKL(), 3.0), (ReverseKL(), -4.0))
    for axes, title, (kind, start) in zip(figure.subplots(1, 3, sharey=True), titles, kinds, strict=True):
        result = fit(Normal(start, 1.0), to=target, kind=kind, starts=1)
        density = target.log_prob(x).exp().numpy()
        axes.fill_between(x.numpy(), density, color=BLUE, alpha=0.35, linewidth=0, label="to")
        axes.plot(
            x.numpy(), result.distribution.log_prob(x).exp().numpy(), color=RUST, linewidth=2, label="fit"
        )
        axes.set(title=f"{title}\n{float(result.value):.3f} nats", ylim=(0, 0.52))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
