"""Draw the pictures of README and of the documentation.

    python benchmarks/pictures.py

The text is real: `examples/data` has the next-byte logits of a small model before and after its weights are rounded to
int8. The times and memory are the committed results of `make bench`. The code of the gallery is read from its page.
"""

from __future__ import annotations

import doctest
import json
import os
import shutil
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from plots import COLORS, GREY, drawing
from torch.distributions import Categorical, MixtureSameFamily, Normal

from kullback import (
    KL,
    JensenShannon,
    Logits,
    Probs,
    ReverseKL,
    Samples,
    SquaredHellinger,
    TotalVariation,
    divergence,
    fit,
    kl_divergence,
    kl_estimate,
)

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
DATA = ROOT / "examples" / "data"
RESULTS = ROOT / "benchmarks" / "results"
PASSAGES, LINE = 4, 64
LARGEST = 0.005  # nats: this KL and more have the darkest color
SHADES = LinearSegmentedColormap.from_list("kl", ["#ffffff", "#ffd9a0", "#f28e2b", "#c8352b"])


def draw_text(path: Path) -> None:
    """The windows with the largest mean KL, each byte colored by the KL of the distributions over it."""
    float32, int8 = (torch.from_numpy(np.load(DATA / f"{name}.npy")).double() for name in ("float32", "int8"))
    labels, windows = np.load(DATA / "labels.npy"), np.load(DATA / "windows.npy")
    kl = kl_divergence(Logits(float32), Logits(int8)).numpy()
    worst = sorted(np.unique(windows), key=lambda window: -kl[windows == window].mean())[:PASSAGES]
    rows = np.concatenate([np.flatnonzero(windows == window) for window in worst])
    lines = len(rows) // LINE
    figure = Figure(figsize=(0.125 * LINE, 0.27 * lines + 0.4))
    figure.patch.set_facecolor("white")
    axes = figure.add_axes((0.005, 0.0, 0.99, 1.0))
    axes.set(xlim=(0, LINE), ylim=(lines + 1.2, 0))
    axes.axis("off")
    for place, row in enumerate(rows):
        line, column = divmod(place, LINE)
        axes.add_patch(_box(column, line + 0.1, SHADES(min(1.0, kl[row] / LARGEST))))
        letter = "¶" if labels[row] < 32 else chr(labels[row]) if labels[row] < 127 else "·"
        axes.text(
            column + 0.5, line + 0.55, letter.replace("$", r"\$"), family="monospace", size=11,
            ha="center", va="center", color="#222222",
        )  # fmt: skip
    for i in range(41):
        axes.add_patch(_box(0.5 + i / 4, lines + 0.4, SHADES(i / 40), width=0.25, height=0.5))
    axes.text(11.5, lines + 0.65, f"KL from 0 to {1000 * LARGEST:g} mnat and more", size=9, va="center")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _box(x: float, y: float, color: Any, *, width: float = 1.0, height: float = 0.9) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=color, edgecolor="none")


def draw_speed(path: Path) -> None:
    """Time and memory of three losses, forward and backward, as fractions of eager torch."""
    rows, head = (json.loads((RESULTS / f"{name}.json").read_text())["cases"] for name in ("rows", "head"))
    (logits,) = [
        each["steps"] for each in rows
        if each["case"] == {"rows": 128, "classes": 128256, "dtype": "float32"}
    ]  # fmt: skip
    groups = {
        "KL of logits\n128 × 128256": {
            "kullback": logits["KL: kullback"], "torch.compile": logits["KL: torch.compile"],
            "eager torch": logits["KL: eager"],
        },
        "JS of logits\n128 × 128256": {
            "kullback": logits["JS: kullback"], "torch.compile": logits["JS: torch.compile"],
            "eager torch": logits["JS: eager"],
        },
        "KL with the head\n1024 × 1024 × 128256": {
            "kullback": head[0]["steps"]["kullback"], "Liger's formula": head[0]["steps"]["Liger, chunked"],
            "eager torch": head[0]["steps"]["eager, whole logits"],
        },
    }  # fmt: skip
    colors = {
        "kullback": COLORS["kullback"], "torch.compile": COLORS["torch.compile"],
        "Liger's formula": COLORS["TRL"], "eager torch": COLORS["eager"],
    }  # fmt: skip
    with drawing(path, 2, 2, legend=False) as panels:
        for axes, (field, title) in zip(
            panels,
            {"median": "time, eager torch = 1", "extra_bytes": "memory, eager torch = 1"}.items(),
            strict=True,
        ):
            place, ticks = 0.0, []
            for group, ways in groups.items():
                ticks.append((place + 1, group))
                for name, step in ways.items():
                    share = step[field] / ways["eager torch"][field]
                    axes.barh(place, share, color=colors[name])
                    text = (
                        f"{1e3 * step[field]:,.0f} ms"
                        if field == "median"
                        else f"{step[field] / 1e6:,.0f} MB"
                    )
                    axes.text(share + 0.02, place, f"{name}: {text}", va="center", size=8)
                    place += 1
                place += 0.6
            axes.set_yticks(*zip(*ticks, strict=True), size=8)
            axes.set(title=title, xlim=(0, 1.6), xticks=[0, 0.5, 1])
            axes.invert_yaxis()


def _mixture() -> MixtureSameFamily:
    modes = Normal(torch.tensor([-3.0, 3.0], dtype=torch.float64), 1.0)
    return MixtureSameFamily(Categorical(torch.tensor([0.3, 0.7], dtype=torch.float64)), modes)


def draw_direction(path: Path) -> None:
    """A mixture, and the Normal distributions with the least KL in each direction."""
    x, target = torch.linspace(-9, 9, 601, dtype=torch.float64), _mixture()
    start = Normal(torch.zeros((), dtype=torch.float64), 1.0)
    with drawing(path, 2, 2, legend=False) as panels:
        for axes, kind, title in zip(
            panels,
            (KL(), ReverseKL()),
            ("least KL(P || Q): covers", "least KL(Q || P): chooses"),
            strict=True,
        ):
            q = fit(start, to=target, kind=kind).distribution
            axes.fill_between(
                x, target.log_prob(x).exp(), color=COLORS["torch.compile"], alpha=0.4, linewidth=0
            )
            axes.plot(x, q.log_prob(x).exp(), color=COLORS["kullback"], linewidth=2)
            axes.text(-8.5, 0.24, "P", color=COLORS["torch.compile"], size=14)
            axes.text(-7.5, 0.24, "Q", color=COLORS["kullback"], size=14)
            axes.set(title=title, yticks=[], ylim=(0, 0.42))


def draw_terms(path: Path) -> None:
    """Two densities, and the integrand of KL in two forms."""
    x = torch.linspace(-5, 6, 601, dtype=torch.float64)
    p, q = Normal(torch.zeros((), dtype=torch.float64), 1.0), Normal(torch.ones((), dtype=torch.float64), 1.5)
    log_p, log_q = p.log_prob(x), q.log_prob(x)
    plain = log_p.exp() * (log_p - log_q)
    value = float(kl_divergence(p, q))
    with drawing(path, 3, 3, legend=False) as panels:
        for log, color, name in ((log_p, COLORS["torch.compile"], "P"), (log_q, COLORS["kullback"], "Q")):
            panels[0].plot(x, log.exp(), color=color, linewidth=2)
            panels[0].text(-4.5, 0.36 - 0.05 * (name == "Q"), name, color=color, size=14)
        panels[0].set(title="densities", yticks=[])
        for axes, terms, title in (
            (panels[1], plain, "p log(p/q)"), (panels[2], plain - log_p.exp() + log_q.exp(), "p log(p/q) - p + q"),
        ):  # fmt: skip
            axes.fill_between(x, terms, where=terms >= 0, color=COLORS["kullback"], alpha=0.5, linewidth=0)
            axes.fill_between(x, terms, where=terms < 0, color=COLORS["eager"], alpha=0.5, linewidth=0)
            axes.set(title=f"{title}: area {value:.3f}", yticks=[0])


def draw_support(path: Path) -> None:
    """Uniform densities: one with mass outside of the other's support."""
    with drawing(path, 1, 1, legend=False) as (axes,):
        for low, high, color, name in ((0, 3, COLORS["torch.compile"], "P"), (1, 2, COLORS["kullback"], "Q")):
            axes.plot(
                [-0.5, low, low, high, high, 3.5],
                [0, 0, *2 * [1 / (high - low)], 0, 0],
                color=color,
                linewidth=2,
            )
            axes.text((low + high) / 2, 1 / (high - low) + 0.03, name, color=color, size=14)
        for low, high in ((0, 1), (2, 3)):
            axes.fill_between([low, high], [1 / 3] * 2, color=COLORS["eager"], alpha=0.4, linewidth=0)
        axes.set(title="the shaded mass of P makes KL(P || Q) infinite", yticks=[0], ylim=(0, 1.2))


def draw_kinds(path: Path) -> None:
    """Divergences of a coin from a fair coin, by the probability of its first side."""
    x = torch.linspace(0, 1, 401, dtype=torch.float64)
    coin, fair = Probs(torch.stack([x, 1 - x], -1)), Probs(torch.full((2,), 0.5, dtype=torch.float64))
    with drawing(path, 1, 1) as (axes,):
        for (name, kind), color in zip(
            {
                "KL": KL(), "reverse KL": ReverseKL(), "Jensen-Shannon": JensenShannon(),
                "total variation": TotalVariation(), "squared Hellinger": SquaredHellinger(),
            }.items(),
            COLORS.values(),
            strict=True,
        ):  # fmt: skip
            axes.plot(x, divergence(coin, fair, kind), color=color, linewidth=2, label=name)
        axes.set(xlabel="x", ylim=(0, 1.2), xlim=(0, 1))


def draw_bag(path: Path) -> None:
    """The shares of three colors under P and Q, and the terms of KL."""
    p = torch.tensor([0.36, 0.48, 0.16])
    q, place = torch.full((3,), 1 / 3), torch.arange(3)
    terms = p * (p / q).log()
    with drawing(path, 2, 2, legend=False) as (shares, sums):
        for offset, side, color, name in (
            (-0.2, p, COLORS["torch.compile"], "P"),
            (0.2, q, COLORS["kullback"], "Q"),
        ):
            shares.bar(place + offset, side, 0.38, color=color)
            shares.text(1.55 + offset, 0.44, name, color=color, size=14, ha="center")
        shares.set(title="shares", yticks=[0, 0.2, 0.4])
        sums.bar(place, terms, 0.5, color=[COLORS["kullback"], COLORS["kullback"], COLORS["eager"]])
        for i, term in enumerate(terms.tolist()):
            sums.text(i, term + (0.01 if term > 0 else -0.03), f"{term:.4f}", ha="center", color=GREY)
        sums.set(title=f"p log(p/q): the sum is {float(terms.sum()):.4f}", ylim=(-0.17, 0.21), yticks=[0])
        for axes in (shares, sums):
            axes.set_xticks(place, ["red", "green", "blue"])


def draw_shards(path: Path) -> None:
    """Two ways to divide logits among four processes."""
    colors = [COLORS[name] for name in ("kullback", "torch.compile", "eager", "TRL")]
    with drawing(path, 2, 2, legend=False) as panels:
        for axes, title, is_rows in zip(
            panels, ("positions: normalizer=", "classes: group=, DTensors"), (True, False), strict=True
        ):
            for i, color in enumerate(colors):
                corner, width, height = ((0, 6 - 2 * i), 16, 1.9) if is_rows else ((4 * i, 0), 3.9, 7.9)
                axes.add_patch(_box(*corner, color, width=width, height=height))
                center = corner[0] + width / 2, corner[1] + height / 2
                axes.text(*center, f"process {i}", color="white", ha="center", va="center", size=9)
            axes.set(
                xlim=(0, 16),
                ylim=(0, 8),
                title=title,
                xlabel="classes",
                ylabel="positions",
                xticks=[],
                yticks=[],
            )


def draw_data(path: Path) -> None:
    """The blood pressure of two groups, with the estimate of their divergence."""
    from sklearn.datasets import load_diabetes

    dataset: Any = load_diabetes(as_frame=True, scaled=False)
    people = dataset.data
    groups = [people[people.sex == sex].bp for sex in (1, 2)]
    with drawing(path, 1, 1, legend=False) as (axes,):
        for group, color, name in zip(
            groups, (COLORS["torch.compile"], COLORS["kullback"]), "PQ", strict=True
        ):
            axes.hist(group, bins=range(60, 141, 4), density=True, color=color, alpha=0.5)
            axes.text(70 if name == "P" else 125, 0.02, name, color=color, size=14)
        axes.set(xlabel="blood pressure", yticks=[], title=str(kl_estimate(*map(Samples, groups))))


def draw_gallery(page: Path, folder: Path) -> None:
    """Run the code of a page, and store its drawings and the first screens of its HTML pages."""
    from playwright.sync_api import sync_playwright

    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the drawings
    names: dict[str, Any] = {"__name__": "__main__"}
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        TemporaryDirectory() as place,
        chdir(place),
        mpl.rc_context(
            {"svg.fonttype": "none", "svg.hashsalt": "kullback", "figure.constrained_layout.use": True}
        ),
        sync_playwright() as playwright,
    ):
        Path("examples").symlink_to(ROOT / "examples")
        for example in doctest.DocTestParser().get_examples(page.read_text(encoding="utf-8")):
            exec(compile(example.source, page.name, "single"), names)  # noqa: S102 - the code of the page
        for drawing in Path().glob("*.svg"):
            lines = [line.rstrip() for line in drawing.read_text(encoding="utf-8").splitlines()]
            (folder / drawing.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=chromium)
        screen = browser.new_page(viewport={"width": 1100, "height": 720})
        for file in Path().glob("*.html"):
            screen.goto(file.resolve().as_uri())
            screen.screenshot(path=folder / f"{file.stem}.png")
        browser.close()


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    draw_direction(IMAGES / "direction.svg")
    draw_terms(IMAGES / "terms.svg")
    draw_support(IMAGES / "support.svg")
    draw_kinds(IMAGES / "kinds.svg")
    draw_bag(IMAGES / "bag.svg")
    draw_shards(IMAGES / "shards.svg")
    draw_data(IMAGES / "data.svg")
    draw_text(IMAGES / "text.png")
    draw_speed(IMAGES / "speed.svg")
    draw_gallery(ROOT / "docs" / "gallery.md", IMAGES)
