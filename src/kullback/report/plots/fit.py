"""Plots of a fit: the target and the fitted distribution in one or two dimensions, and the history."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution

from kullback.common.dtypes import upcast
from kullback.fitting.fit_result import Fit
from kullback.pairs.clone import unvalidated
from kullback.pairs.sampling import DrawsFrom
from kullback.pairs.scipy_adapter import is_frozen, to_torch
from kullback.report.document import Plot
from kullback.report.plots.svg import FIRST, SECOND, draw_legend, make_logarithmic
from kullback.representations import Representation
from kullback.samples import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWS = 4_000
GRID = 801
MOST_BARS = 60
MOST_INTEGERS = 400


def draw_plots(fit: Fit) -> list[Plot]:
    """Return the plot of the target and the fit, if they have one or two dimensions, and the plot of the history."""
    caption = f"{fit.quantity} above the least of all steps{unit(fit, ', in ')}."
    history = Plot("history", "History", caption, partial(_history, fit))
    fitted, target = _as_distribution(fit.distribution), _as_distribution(fit.to)
    if not isinstance(fitted, Distribution):
        return [history]
    paint, content = None, ""
    if _is_whole(fitted):
        paint, content = _bars, "Probabilities"
    elif not fitted.event_shape:
        paint, content = _curves, "Densities"
    elif fitted.event_shape == (2,):
        paint, content = _contours, "Lines of equal density"
    if paint is None:
        return [history]
    of_batch = ", the first element of the batch" if fit.value.numel() > 1 else ""
    return [Plot("fit", "Target and fit", f"{content}{of_batch}.", partial(paint, target, fitted)), history]


def unit(fit: Fit, before: str = " ") -> str:
    """Return the text `before` and the unit; empty for a divergence without a logarithm."""
    return f"{before}nats" if fit.kind.logarithmic else ""


def _as_distribution(x: Any) -> Any:
    if is_frozen(x):
        x = to_torch("fit", "to", x)
    if isinstance(x, Representation):
        weights = x.weights().double()
        x = Categorical(probs=weights / weights.sum(-1, keepdim=True), validate_args=False)
    return unvalidated(x) if isinstance(x, Distribution) else x


def _is_whole(d: Distribution) -> bool:
    try:
        return bool(getattr(d.support, "is_discrete", False)) and not d.event_shape
    except NotImplementedError:
        return False


def _draws(d: Any) -> Tensor | None:
    """Return the samples of `d`, or draws from the first element of a batch; None for a log-density function."""
    if isinstance(d, Samples):
        return d.tensor if d.tensor.shape[-1] > 1 else d.tensor[:, 0]
    if not isinstance(d, Distribution):
        return None
    with DrawsFrom(0), torch.no_grad():
        return d.sample(torch.Size([DRAWS])).reshape(DRAWS, -1, *d.event_shape)[:, 0]


def _density(d: Any, x: Tensor) -> Tensor:
    """Return the density of the first element of a batch at the points `x`, with 0 outside the support.

    If `d` is a log-density function, return its density, scaled so that the maximum is 1.
    """
    with torch.no_grad():
        if not isinstance(d, Distribution):
            log_density = upcast(d(x))
            return torch.exp(log_density - log_density.max())
        draws = _draws(d)
        assert draws is not None  # noqa: S101 - it is a distribution
        points = x.shape[: x.ndim - len(d.event_shape)]

        def of_first(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
            everywhere = at.reshape(*points, *[1] * len(d.batch_shape), *d.event_shape)
            values = function(everywhere.expand(*points, *d.batch_shape, *d.event_shape))
            return values.reshape(*points, -1)[..., 0]

        if d.event_shape:
            inside = torch.ones(points, dtype=torch.bool, device="cpu")
        else:
            inside = of_first(d.support.check, x)  # pyright: ignore[reportOptionalMemberAccess]
            x = torch.where(inside, x, draws[:1].to(x.dtype))
        return torch.where(inside, torch.exp(upcast(of_first(d.log_prob, x))), 0).nan_to_num(
            nan=0.0, posinf=0.0
        )


def _range(*draws: Tensor | None) -> tuple[float, float]:
    ends = [
        upcast(x).quantile(torch.tensor([0.002, 0.998], dtype=torch.float64, device="cpu"))
        for x in draws
        if x is not None
    ]
    low, high = min(float(x[0]) for x in ends), max(float(x[1]) for x in ends)
    more = 0.08 * (high - low) or 1.0
    return low - more, high + more


def _curves(target: Any, fitted: Distribution, axes: Axes) -> None:
    draws = _draws(target)
    low, high = _range(draws, _draws(fitted))
    x = torch.linspace(low, high, GRID, dtype=torch.float64, device="cpu")
    if isinstance(target, Samples):
        weights = None if target.weights is None else target.weights.numpy()
        x_drawn = target.tensor[:, 0].double().numpy()
        axes.hist(
            x_drawn,
            bins=MOST_BARS,
            range=(low, high),
            density=True,
            weights=weights,
            color=FIRST,
            alpha=0.5,
            label="to, the target",
        )
    else:
        p = _density(target, x)
        if not isinstance(target, Distribution):
            p = p / torch.trapezoid(p, x).clamp(min=1e-300)
        axes.fill_between(x.numpy(), p.numpy(), color=FIRST, alpha=0.35, linewidth=0)
        axes.plot(x.numpy(), p.numpy(), color=FIRST, label="to, the target")
    axes.plot(x.numpy(), _density(fitted, x).numpy(), color=SECOND, linewidth=2, label="q, the fit")
    axes.set(ylabel="density", ylim=(0, None), xlim=(low, high))
    draw_legend(axes)


def _bars(target: Any, fitted: Distribution, axes: Axes) -> None:
    low, high = _range(_draws(target), _draws(fitted))
    first, last = max(0, round(low)), round(high)
    step = math.ceil((last - first + 1) / MOST_INTEGERS)  # of a wide range, every nth integer is drawn
    x = torch.arange(first, last + 1, step, dtype=torch.float64, device="cpu")
    if isinstance(target, Samples):
        # The bar of an integer has the mean of the proportions from this integer up to the next bar.
        weights = torch.ones(len(target), device="cpu") if target.weights is None else target.weights
        places = ((target.tensor[:, 0].double() - first) / step).floor()
        inside = (places >= 0) & (places < len(x))
        p = torch.bincount(places[inside].long(), weights[inside].double(), len(x)) / weights.sum() / step
    else:
        p = _density(target, x)
        p = p if isinstance(target, Distribution) else p / p.sum()
    for shift, height, color, label in (
        (-0.2, p, FIRST, "to, the target"),
        (0.2, _density(fitted, x), SECOND, "q, the fit"),
    ):
        axes.bar((x + shift * step).numpy(), height.numpy(), 0.4 * step, color=color, label=label)
    axes.set(ylabel="probability", ylim=(0, None))
    draw_legend(axes)


def _contours(target: Any, fitted: Distribution, axes: Axes) -> None:
    draws, own = _draws(target), _draws(fitted)
    grids: list[Tensor] = []
    for axis in (0, 1):
        low, high = _range(*(None if x is None else x[:, axis] for x in (draws, own)))
        grids.append(torch.linspace(low, high, 121, dtype=torch.float64, device="cpu"))
    a, b = torch.meshgrid(*grids, indexing="ij")
    points = torch.stack([a, b], -1)
    if isinstance(target, Samples):
        few = target.tensor[:DRAWS].double()
        axes.plot(
            few[:, 0].numpy(), few[:, 1].numpy(), ".", color=FIRST, markersize=2, label="to, the target"
        )
    else:
        axes.contour(a.numpy(), b.numpy(), _density(target, points).numpy(), 6, colors=FIRST)
        axes.plot([], [], color=FIRST, label="to, the target")
    axes.contour(a.numpy(), b.numpy(), _density(fitted, points).numpy(), 6, colors=SECOND)
    axes.plot([], [], color=SECOND, label="q, the fit")
    draw_legend(axes)


def _history(fit: Fit, axes: Axes) -> None:
    history = (
        fit.history.flatten(1)[:, 0]
        if fit.history.ndim > 1 and fit.history.numel()
        else fit.history.flatten()
    )
    history = history[history.isfinite()]
    least = float(history.min()) if history.numel() else 0.0
    above = (history - least).numpy()
    steps = range(len(above))
    positive = [step for step in steps if above[step] > 0]
    shown = positive if len(positive) > 1 else list(steps)
    axes.plot(shown, above[shown], ".-", color=SECOND)
    if len(positive) > 1:
        make_logarithmic(axes, axes.yaxis)
    axes.set(xlabel="step", ylabel=f"{fit.quantity.replace('||', '‖')}\nabove the least{unit(fit, ', ')}")
