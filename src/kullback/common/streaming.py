"""Mergeable statistics of a stream of values: mean and standard error (`Moments`) and quantiles (`QuantileSketch`).

The state of each class consists of tensors of fixed size. States from several blocks, processes or machines can be
merged; the merged state gives the statistics of all values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from kullback.common.dtypes import accurate_dtype
from kullback.errors import invalid_value

# All sketches have one grid, from `_LOWEST` to `_HIGHEST`; `_RELATIVE_ERROR` is the largest relative error of a
# quantile on the grid. The relative error was chosen so that a state has 100 kB. The largest divergence of float32 rows
# is below `_HIGHEST`.
_RELATIVE_ERROR, _LOWEST, _HIGHEST = 0.005, 1e-15, 1e39


def on_device(state: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a state on `device`; a floating-point state gets the most accurate dtype of the device."""
    return state.to(device, accurate_dtype(device) if state.is_floating_point() else state.dtype)


def merge_moments(states: Tensor) -> Tensor:
    r"""Return the merged state, shape (3,), of the states of several `Moments`, shape (states, 3).

    A state contains the count n, the sum, and the sum of squared deviations from the mean, M_2.

    .. math:: M_2 = \sum_k M_{2,k} + \sum_k n_k (\bar x_k - \bar x)^2

    State k has the count :math:`n_k` and the mean :math:`\bar x_k`, and :math:`\bar x` is the mean of all values.

    The merged sum is differentiable with respect to `states`. The merged M_2 is a constant for autograd.

    Example:
        >>> import torch
        >>> merge_moments(torch.tensor([[1.0, 3.0, 0.0], [2.0, 3.0, 0.5]]))
        tensor([3., 6., 2.])
    """
    counts, sums, deviations = states.detach().unbind(-1)
    means, mean = sums / counts.clamp(min=1), sums.sum() / counts.sum().clamp(min=1)
    between = torch.where(counts > 0, counts * (means - mean) ** 2, 0)
    # If the mean is infinite, M_2 is set to infinity, because inf - inf in the formula would give NaN.
    deviation = torch.where(mean.isinf(), torch.inf, (deviations + between).sum())
    return torch.stack([counts.sum(), states[:, 1].sum(), deviation])


class Moments:
    r"""Count, mean and standard error of a stream of values, in float64.

    .. math:: \bar x = \frac1n \sum_i x_i, \quad \mathrm{se} = \sqrt{\frac{\sum_i (x_i - \bar x)^2}{n (n - 1)}}

    The deviations from the mean are squared, not the values, so the variance of nearly equal values is accurate.

    Example:
        >>> import torch
        >>> moments = Moments()
        >>> moments.add(torch.tensor([1.0, 2.0]))
        >>> moments.add(torch.tensor([3.0]))
        >>> moments.count, moments.mean, moments.standard_error
        (3, tensor(2., dtype=torch.float64), tensor(0.5774, dtype=torch.float64))

    References:
        Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (Chan, Golub and LeVeque, 1979)
    """

    def __init__(self, state: Tensor | None = None, *, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.state = torch.zeros(3, dtype=accurate_dtype(device), device=device) if state is None else state

    def __repr__(self) -> str:
        return f"Moments(count={self.count}, mean={self.mean:.6g}, standard_error={self.standard_error:.2g})"

    @property
    def count(self) -> int:
        """The number of values."""
        return int(self.state[0])

    @property
    def sum(self) -> Tensor:
        """The sum of the values."""
        return self.state[1]

    @property
    def mean(self) -> Tensor:
        """The mean of the values; NaN if there are no values."""
        return self.state[1] / self.state[0]

    @property
    def variance(self) -> Tensor:
        """The unbiased estimate of the variance; NaN for fewer than two values, inf if a value is infinite."""
        return self.state[2] / (self.state[0] - 1)

    @property
    def standard_error(self) -> Tensor:
        """The standard error of the mean of independent values; NaN or inf if the variance is NaN or inf."""
        return (self.variance / self.state[0]).sqrt()

    def add(self, values: Tensor) -> None:
        """Add the values of a tensor of any shape. `sum` and `mean` are differentiable with respect to these values."""
        values = values.to(self.state.dtype)
        fixed = values.detach()
        mean = fixed.sum() / max(values.numel(), 1)
        deviation = torch.where(mean.isinf(), torch.inf, (fixed - mean).square().sum())
        block = torch.stack([torch.full_like(deviation, values.numel()), values.sum(), deviation])
        self.state = merge_moments(torch.stack([self.state, block]))


class SketchState(NamedTuple):
    """The state of a `QuantileSketch`.

    A merge of states adds `counts`, and takes the smallest `minimum` and the largest `maximum`.
    """

    counts: Tensor
    minimum: Tensor
    maximum: Tensor


class QuantileSketch:
    r"""Quantiles of a stream of non-negative values, with a bounded relative error.

    Values are counted on a geometric grid from :math:`l` = 1e-15 to 1e39. Bucket :math:`i` counts the values with
    :math:`l \gamma^i \le x < l \gamma^{i+1}`, where :math:`\gamma = (1 + \epsilon) / (1 - \epsilon)` and
    :math:`\epsilon = 0.005`. A quantile in bucket :math:`i` is returned as one value, whose relative error is at most
    :math:`\epsilon` for every value in the bucket. The smallest and the largest value of the stream are exact.

    A quantile below 1e-15 is returned as 0, or as the smallest value of the stream if that value is above 0. A finite
    quantile above 1e39 is returned as NaN, unless it is the smallest or the largest value. Divergences of float32 rows
    are always below 1e39. A separate bucket counts values of ``+inf``, and a quantile in this bucket is ``+inf``.

    Example:
        >>> import torch
        >>> sketch = QuantileSketch()
        >>> for block in torch.arange(1.0, 1001.0).split(100):
        ...     sketch.add(block)
        >>> median, top = sketch.quantile([0.5, 1.0])
        >>> bool(abs(median - 500.5) <= 0.005 * 500.5), float(top)
        (True, 1000.0)

    References:
        DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees (Masson, Rim and Lee, 2019)
    """

    def __init__(self, state: SketchState | None = None, *, device: torch.device | str = "cpu") -> None:
        if state is None:
            edges = _grid_edges(torch.device(device))
            counts = torch.zeros(edges.numel() + 1, dtype=torch.int64, device=edges.device)
            state = SketchState(counts, edges.new_tensor(torch.inf), edges.new_tensor(-torch.inf))
        self.state = state

    def __repr__(self) -> str:
        return f"QuantileSketch(count={self.count})"

    @property
    def counts(self) -> Tensor:
        """The number of values in each bucket, int64: the first bucket is below the grid, the last is for ``+inf``."""
        return self.state.counts

    @property
    def minimum(self) -> Tensor:
        """The smallest value; +inf if there are no values."""
        return self.state.minimum

    @property
    def maximum(self) -> Tensor:
        """The largest value; -inf if there are no values."""
        return self.state.maximum

    @property
    def count(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    def add(self, values: Tensor) -> None:
        """Add the values of a tensor of any shape; negative values and NaN raise an error."""
        values = values.detach().to(self.minimum.dtype).flatten()
        if values.numel() == 0:
            return
        bad = ~(values >= 0)
        if bool(bad.any()):
            first = int(bad.nonzero()[0])
            count = f"{int(bad.sum())} of {values.numel()} that are negative or NaN"
            got = f"{count}, first {float(values[first])} at position {first}"
            wanted, instead = "values of 0 or more", "sketch.add(values[values >= 0])"
            raise invalid_value("QuantileSketch.add", "values", wanted=wanted, got=got, instead=instead)
        bucket = torch.bucketize(values, _grid_edges(values.device), right=True)
        self.state = SketchState(
            self.counts.scatter_add(0, bucket, torch.ones_like(bucket)),
            torch.minimum(self.minimum, values.min()),
            torch.maximum(self.maximum, values.max()),
        )

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Return the quantiles at `probabilities`, numbers from 0 to 1 in any shape, interpolated linearly between
        values of neighboring ranks. Without values, they are NaN. So is a finite one above 1e39, except an extreme.

        Example:
            >>> import torch
            >>> sketch = QuantileSketch()
            >>> sketch.add(torch.tensor([0.0, 0.0, float("inf")]))
            >>> sketch.quantile([0.5, 0.9])
            tensor([0., inf], dtype=torch.float64)
        """
        at = torch.as_tensor(probabilities, dtype=self.minimum.dtype, device=self.counts.device)
        if not bool(((at >= 0) & (at <= 1)).all()):
            wanted, got, instead = "numbers from 0 to 1", str(at.tolist()), "[0.5] for 50%"
            raise invalid_value(
                "QuantileSketch.quantile", "probabilities", wanted=wanted, got=got, instead=instead
            )
        filled = self.counts.cumsum(0)
        last = filled[-1] - 1
        if last < 0:
            return torch.full_like(at, torch.nan)
        place = at * last
        whole = place.round()
        place = torch.where((place - whole).abs() <= 4 * torch.finfo(at.dtype).eps * whole, whole, place)
        below, share = place.floor().long(), place.frac()
        low, high = self._ordered(below, filled), self._ordered((below + 1).clamp(max=last), filled)
        between = (1 - share) * low + share * high
        return torch.where((share == 0) | (low == high), low, between)

    def _ordered(self, rank: Tensor, filled: Tensor) -> Tensor:
        """Return the values with the ranks `rank`; the smallest value has rank 0. `filled` is ``counts.cumsum(0)``."""
        bucket = torch.searchsorted(filled, rank, right=True)
        edges = _grid_edges(rank.device)
        grid = edges[:-1]
        # All values of a bucket are returned as the harmonic mean of its ends, which minimizes the largest relative
        # error.
        inner = 2 * grid[:-1] / (1 + grid[:-1] / grid[1:])
        answers = torch.cat([edges.new_zeros(1), inner, edges.new_tensor([torch.nan]), edges[-1:]])
        value = answers[bucket].clamp(self.minimum, self.maximum)
        value = torch.where((rank == 0) | (self.minimum == self.maximum), self.minimum, value)
        return torch.where(rank == filled[-1] - 1, self.maximum, value)


@lru_cache(maxsize=16)
def _grid_edges(device: torch.device) -> Tensor:
    """Return the lower ends of all buckets except the first bucket: the points of the grid, and then +inf."""
    step = math.log1p(_RELATIVE_ERROR) - math.log1p(-_RELATIVE_ERROR)
    buckets = math.ceil(math.log(_HIGHEST / _LOWEST) / step)
    grid = _LOWEST * torch.exp(step * torch.arange(buckets + 1, dtype=torch.float64, device="cpu"))
    return torch.cat([grid, grid.new_tensor([torch.inf])]).to(device, accurate_dtype(device))
