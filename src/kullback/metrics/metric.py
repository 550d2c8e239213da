"""The drop-in for `torchmetrics.KLDivergence`. Importing this module imports torchmetrics."""

# This module does not postpone annotations. TorchScript, which can compile metrics, reads the annotations of the class
# and cannot read postponed annotations.

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self, cast

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from kullback.common.extra_arguments import unknown_keyword
from kullback.common.streaming import Moments, QuantileSketch, SketchState, merge_moments, on_device
from kullback.common.words import RepresentationName
from kullback.errors import invalid_value
from kullback.metrics.drop_in import (
    Reduction,
    check_reduction,
    resolve_representation,
    row_values,
)

OF_EVERY_METRIC = (
    "compute_on_cpu",
    "compute_with_cache",
    "dist_sync_fn",
    "dist_sync_on_step",
    "distributed_available_fn",
    "process_group",
    "sync_on_compute",
)


class ExactMetric(Metric):
    """A metric whose states in `exact_states` keep their dtype when the dtype of the metric changes."""

    is_differentiable: bool | None = True
    higher_is_better: bool | None = False
    full_state_update: bool | None = False
    plot_lower_bound: float | None = 0.0
    exact_states = ()

    def __init__(self, **kwargs: Any) -> None:
        # torchmetrics raises a ValueError for unknown keywords, so this metric does too.
        own = list(inspect.signature(type(self)).parameters)[:-1]
        unknown = {name: value for name, value in kwargs.items() if name not in OF_EVERY_METRIC}
        if unknown:
            name = type(self).__name__
            raise invalid_value(name, **unknown_keyword(unknown, [*own, *OF_EVERY_METRIC], f"{name}()"))
        super().__init__(**kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> Self:
        """Apply `fn`, which changes dtype or device, to all states. The states in `exact_states` keep their dtype."""
        super()._apply(fn, exclude_state=(*exclude_state, *self.exact_states))
        defaults: dict[str, Any] = self._defaults
        for name in defaults.keys() & set(self.exact_states):
            setattr(self, name, on_device(getattr(self, name), self.device))
            defaults[name] = on_device(defaults[name], self.device)
        return self


class KLDivergence(ExactMetric):
    r"""The mean of KL(P || Q) over the rows of all batches: a drop-in for `torchmetrics.KLDivergence`.

    .. math:: KL(P \| Q) = \sum_i p_i (\log p_i - \log q_i)

    `update` and `forward` take the arguments of `kullback.metrics.kl_divergence`: p and q of shape (..., classes), and
    ``mask=``. `compute` returns the result for all batches together. Sums are in float64. The metric also has the
    `standard_error` of the mean and the `quantile` of the rows, from states of fixed size, which torchmetrics
    synchronizes like all states. With ``reduction="none"`` the metric keeps the values of all rows instead.

    Arguments:
        log_prob: whether p and q are log-probabilities. Otherwise p and q are weights, which are normalized.
        reduction: ``"mean"`` or ``"sum"`` over the rows, or ``"none"`` or None for the value of each row, flattened.
        representation: the exact type of p and q: ``"logits"``, ``"log-probs"``, ``"counts"`` or ``"probs"``, as in
            `kullback.metrics.kl_divergence`.
        kwargs: arguments of `torchmetrics.Metric`, such as ``sync_on_compute`` or ``dist_sync_on_step``.

    Raises:
        ArgumentTypeError: `log_prob` is not a bool or, in `update`, p or q is not a tensor.
        ArgumentValueError: `reduction` or `representation` is not a known word or, in `update`, the values are not
            distributions.
        OptionalDependencyError: torchmetrics is not installed.

    Gradient:
        through the value that `forward` returns for its batch, as in `kullback.metrics.kl_divergence`.

    Example:
        >>> import torch
        >>> from kullback.metrics import KLDivergence
        >>> metric = KLDivergence()
        >>> metric(torch.tensor([[0.36, 0.48, 0.16]]), torch.tensor([[1 / 3, 1 / 3, 1 / 3]]))
        tensor(0.0853)
        >>> metric.update(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0]]))
        >>> metric.compute(), metric.standard_error(), metric.quantile([0.0, 1.0])
        (tensor(0.3892), tensor(0.3039), tensor([0.0853, 0.6931]))

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """

    exact_states = ("moments", "counts", "minimum", "maximum")

    moments: Tensor
    counts: Tensor
    minimum: Tensor
    maximum: Tensor
    precision: Tensor
    measures: list[Tensor] | Tensor

    def __init__(
        self,
        log_prob: bool = False,
        reduction: Reduction = "mean",
        *,
        representation: RepresentationName | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_reduction("KLDivergence", reduction)
        self.representation: RepresentationName = resolve_representation(
            "KLDivergence", log_prob, representation
        )
        self.log_prob = self.representation == "log-probs"
        self.reduction = reduction
        self._keeps_rows = reduction is None or reduction == "none"
        if self._keeps_rows:
            self.add_state("measures", [], dist_reduce_fx="cat")
            return
        sketch = QuantileSketch(device=self.device)
        self.add_state("moments", Moments(device=self.device).state, dist_reduce_fx=merge_moments)
        self.add_state("counts", sketch.counts, dist_reduce_fx="sum")
        self.add_state("minimum", sketch.minimum, dist_reduce_fx="min")
        self.add_state("maximum", sketch.maximum, dist_reduce_fx="max")
        # This state always has the value 0; only its dtype matters. Each batch adds a zero of the batch's dtype, so
        # that type promotion gives the state the dtype of the result.
        self.add_state("precision", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, p: Tensor, q: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch of rows, shape (..., classes); `mask`, shape (...), is True for the rows that count.

        A mask that is False everywhere raises a warning, on the CPU only.
        """
        values, dtype = row_values("KLDivergence.update", p, q, self.representation, mask)
        if self._keeps_rows:
            cast("list[Tensor]", self.measures).append(values.flatten().to(dtype))
            return
        moments, sketch = self._statistics()
        moments.add(values)
        sketch.add(values)
        self.moments = moments.state
        self.counts, self.minimum, self.maximum = sketch.state
        self.precision = self.precision + values.new_zeros((), dtype=dtype)

    def compute(self) -> Tensor:
        """Return the divergence of all rows so far, over all processes, reduced by `reduction`."""
        if self._keeps_rows:
            return dim_zero_cat(self.measures)
        moments = Moments(self.moments)
        return (moments.sum if self.reduction == "sum" else moments.mean).to(self.precision.dtype)

    def standard_error(self) -> Tensor:
        r"""Return the standard error of the mean over all rows so far, over all processes.

        .. math:: \mathrm{se} = \sqrt{\frac{\sum_i (x_i - \bar x)^2}{n (n - 1)}}

        The standard error assumes independent rows. Neighboring positions of a text are dependent.

        Returns:
            a scalar in the dtype of `compute`; NaN for fewer than two rows, +inf if a row is infinite.

        Example:
            >>> import torch
            >>> from kullback.metrics import KLDivergence
            >>> metric = KLDivergence()
            >>> metric.update(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
            >>> metric.standard_error()
            tensor(0.3466)
        """
        with self._synchronized():
            moments, _ = self._statistics()
            return moments.standard_error.to(self._result_dtype())

    def quantile(self, probabilities: float | Sequence[float] | Tensor) -> Tensor:
        """Return quantiles of the divergence over all rows so far, over all processes.

        For divergences from 1e-15 to 1e39, the results are within 0.5% of the exact quantiles. Minimum and maximum are
        exact.

        Arguments:
            probabilities: numbers from 0 to 1, in any shape.

        Returns:
            the quantiles in the shape of `probabilities`, in the dtype of `compute`; NaN if there was no row.

        Raises:
            ArgumentValueError: a probability is not between 0 and 1.

        Example:
            >>> import torch
            >>> from kullback.metrics import KLDivergence
            >>> metric = KLDivergence()
            >>> metric.update(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
            >>> metric.quantile(1.0)
            tensor(0.6931)
        """
        with self._synchronized():
            _, sketch = self._statistics()
            return sketch.quantile(probabilities).to(self._result_dtype())

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot one or several values, as every torchmetrics metric does, with kind and unit on the axis.

        Arguments:
            val: a result of `forward` or `compute`, or a list of results; by default the result of `compute`.
            ax: a matplotlib axis to draw on; by default a new one.

        Returns:
            the figure and the axis.

        Raises:
            ModuleNotFoundError: matplotlib is not installed.

        Example:
            >>> import torch
            >>> from kullback.metrics import KLDivergence
            >>> figure, axis = KLDivergence().plot([torch.tensor(0.2), torch.tensor(0.1)])
            >>> axis.get_xlabel(), axis.get_ylabel()
            ('Step', 'mean KL(P‖Q), nats')
        """
        figure, axis = self._plot(val, ax)
        of_rows = {"mean": "mean ", "sum": "sum of "}.get(self.reduction or "none", "")
        axis.set_ylabel(f"{of_rows}KL(P‖Q), nats")
        return figure, axis

    def _statistics(self) -> tuple[Moments, QuantileSketch]:
        """Return the moments and the sketch of all rows so far, from the states or from the stored rows."""
        if not self._keeps_rows:
            state = SketchState(self.counts, self.minimum, self.maximum)
            return Moments(self.moments), QuantileSketch(state=state)
        moments, sketch = Moments(device=self.device), QuantileSketch(device=self.device)
        if len(self.measures):
            moments.add(dim_zero_cat(self.measures))
            sketch.add(dim_zero_cat(self.measures))
        return moments, sketch

    def _result_dtype(self) -> torch.dtype:
        if not self._keeps_rows:
            return self.precision.dtype
        return dim_zero_cat(self.measures).dtype if len(self.measures) else self.dtype

    def _synchronized(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the states are merged over all processes, as in `compute`."""
        return self.sync_context(
            dist_sync_fn=self.dist_sync_fn,
            should_sync=self._to_sync,
            should_unsync=self._should_unsync,
        )
