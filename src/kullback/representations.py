"""Classes for the meaning of a tensor's values: `Logits`, `LogProbs`, `Probs` and `Counts`.

`kullback.samples` has the class for draws.

A tensor can contain scores, log-probabilities, probabilities, counts or draws. If the values are interpreted wrongly,
the divergence is a plausible but meaningless number. These classes declare the interpretation and check the values.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable
from typing import ClassVar, Never, Self, cast

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments, Number
from kullback.common.dtypes import accurate_dtype, upcast
from kullback.common.extra_arguments import extra_arguments
from kullback.common.inputs import (
    are_logits,
    as_tensor,
    can_inspect,
    can_inspect_all,
    first_of,
    recordable,
    whole_from,
)
from kullback.common.labels import Labeled, Labels, check_one_type, labeled, labels_from, same_labels
from kullback.common.words import RepresentationName
from kullback.errors import ArgumentValueError, Name, Text, invalid_type, invalid_value, safe_repr

# For each dtype, the tolerance for the difference of a row's sum from 1. The tolerance is the rounding error of a
# softmax over a large vocabulary.
SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
_WIDE = (torch.float32, torch.float64)


_ARGUMENTS = Arguments("Logits", "LogProbs", "Probs", "Counts", validate=FLAG)
# The remedies for keywords that are not arguments of a representation.
_REMEDIES = {
    "temperature": "Logits(x / temperature)",
    "T": "Logits(x / T)",
    "mask": "Logits(x.masked_fill(~mask, -torch.inf)) to leave out classes, or Logits(x[mask]) to leave out rows",
    "weight": "(weight * kl_divergence(p, q)).sum() / weight.sum()",
    "prior": "Counts(x, prior=0.5)",
    "smoothing": "Counts(x, prior=0.5)",
    "axis": "dim= instead of axis=",
}


class Representation(ABC):
    """The base class of `Logits`, `LogProbs`, `Probs` and `Counts`: finite distributions along one dimension.

    Attributes:
        tensor: the values (arrays and lists are converted to a tensor).
        dim: the class dimension, as a negative number.
        labels: one label for each class; None without labels.
    """

    in_logs: ClassVar[bool] = True
    is_floating: ClassVar[bool] = True
    labels: Labels | None = None
    _rows: Labels | None = None
    _may_count_rows = False
    _table_shape: torch.Size | None = None

    def __init__(
        self,
        x: object,
        dim: int | tuple[int, ...] = -1,
        *,
        labels: Iterable[Hashable] | None = None,
        validate: bool = True,
        **unknown: Never,
    ) -> None:
        if unknown:
            example = f"{self._call}(x), or {self._call}(x, dim=1)"
            raise extra_arguments(type(self), (), unknown, example, _REMEDIES)
        has_defaults = type(dim) is int and dim == -1 and labels is None and validate is True
        if has_defaults and self.is_floating and are_logits(x) and cast("Tensor", x).shape[-1]:
            # For a small tensor, the other checks would take longer than the divergence, so they are skipped for common
            # arguments.
            self._source, self.tensor, self.dim = None, recordable(cast("Tensor", x)), -1
            if can_inspect_all((self.tensor,)):
                self._check(self.tensor)
            return
        named = None if isinstance(x, Tensor) else labeled(self._call, x)
        values = x if named is None else named.values
        self._source = None if isinstance(values, Tensor) else values  # `in_dtype` converts this source again
        self.tensor = self._numbers(self._read(values))
        dims = dim
        if isinstance(dim, tuple):
            self._source = () if isinstance(self._source, list | tuple) else self._source
            self.tensor, self._table_shape = self._joined(dim)
            self.dim = -1
        else:
            self.dim = self._class_dim(dim)
        if labels is not None:
            self.labels = labels_from(self._call, labels)
        elif named is not None and named.labels is not None:
            self._take_labels(named, dims)
        if self.labels is not None:
            self._check_labels()
        if validate is not True:
            _ARGUMENTS.check(self._call, validate=validate)
        if validate and can_inspect(self.tensor):
            self._check(self.tensor)

    def __repr__(self) -> str:
        x = self.tensor
        return f"{self._call}(shape={tuple(x.shape)}, dim={self.dim}, dtype={x.dtype}, device={x.device})"

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.tensor.shape[self.dim]

    @property
    def class_shape(self) -> torch.Size:
        """The size of the class dimension, or the sizes of several class dimensions that were flattened to one."""
        return self._table_shape or torch.Size((self.classes,))

    @property
    def batch_shape(self) -> torch.Size:
        """The shape without the class dimension. Each element of the batch is one distribution."""
        return self.weights().shape[:-1]

    def weights(self) -> Tensor:
        """Return the values with the class dimension moved to the end: log-weights if `in_logs`, else weights."""
        return self.tensor if self.dim == -1 else self.tensor.movedim(self.dim, -1)

    @property
    def dtype_rank(self) -> int:
        """The priority of the dtype of the values: 2 for a tensor, 1 for an array, and 0 for Python numbers, which have
        no dtype.
        """
        return 2 if self._source is None else 1 if hasattr(self._source, "dtype") else 0

    def in_dtype(self, dtype: torch.dtype) -> Self:
        """Return a copy in the dtype `dtype`. Numbers in a list are converted directly to this dtype, without rounding
        to another dtype first.
        """
        converted = copy.copy(self)
        is_list = isinstance(self._source, list | tuple) and len(self._source) > 0
        converted.tensor = torch.as_tensor(self._source, dtype=dtype) if is_list else self.tensor.to(dtype)
        return converted

    def aligned_with(self, other: Representation) -> tuple[Representation, Representation]:
        """Return both representations on the union of their labels, in the order of first appearance.

        If a label is missing in a representation, its class has no mass there.
        """
        p, q = self.labels, other.labels
        if p is None and q is None:
            return self, other
        self._check_rows(other)
        if p is None or q is None:
            self._check_unlabeled(other)
            return self, other
        if same_labels(p, q):
            return self, other
        if self._may_count_rows or other._may_count_rows:
            raise invalid_value(
                self._call,
                "p, q",
                wanted="the same index in p and q, or names as labels",
                got=f"an index of integers that differs: {_some(p)} in p, {_some(q)} in q",
                instead=f"{self._call}(x.to_numpy()) on both sides if the index counts rows; "
                f"{self._call}(x, labels=x.index) on both sides if the integers are classes",
            )
        check_one_type(self._call, p, q)
        union = tuple(dict.fromkeys(p + q))
        return self._on(union), other._on(union)

    def _on(self, union: Labels) -> Self:
        """Return this distribution on the classes `union`, which contain all its labels, in any order."""
        labels = cast("Labels", self.labels)
        place = {label: i for i, label in enumerate(labels)}
        x = Representation.weights(self)  # not `Counts.weights`, which would add the prior
        # The last entry of `padded` is the weight of a missing label.
        padded = torch.nn.functional.pad(x, (0, 1), value=-torch.inf if self.in_logs else 0)
        index = torch.tensor([place.get(label, len(labels)) for label in union], device=x.device)
        aligned = copy.copy(self)
        source = None if self._source is None else ()
        vars(aligned).update(
            tensor=padded[..., index], dim=-1, labels=union, _table_shape=None, _source=source
        )
        return aligned

    def _take_labels(self, named: Labeled, dim: int | tuple[int, ...]) -> None:
        """Set the labels of the class dimension and, for a table, the labels of its rows."""
        columns, rows = named.labels, named.rows
        axes = [cast("int", whole_from(axis)) for axis in (dim if isinstance(dim, tuple) else (self.dim,))]
        if len(axes) == 2 and rows is not None:
            of_axis = {0: rows, 1: cast("Labels", columns)}
            first, second = (of_axis[axis % 2] for axis in axes)
            self.labels = tuple((a, b) for a in first for b in second)
        elif len(axes) == 1 and axes[0] in (-2, 0) and rows is not None and self.tensor.ndim == 2:
            self.labels, self._rows = rows, columns
            self._may_count_rows = self.is_floating and all(whole_from(row) is not None for row in rows)
        elif len(axes) == 1 and axes[0] in (-1, self.tensor.ndim - 1):
            self.labels, self._rows = columns, rows
            self._may_count_rows = self.is_floating and named.may_count_rows
        else:
            raise invalid_value(
                self._call,
                "dim",
                wanted="the dimension of the labels, the last",
                got=safe_repr(dim),
                instead=f"{self._call}(x, dim=-1)",
            )

    def _check_labels(self) -> None:
        labels = cast("Labels", self.labels)
        distinct = len(set(labels))
        if len(labels) == self.classes and (distinct == len(labels) or self._may_count_rows):
            return
        raise invalid_value(
            self._call,
            "labels",
            wanted=f"{self.classes} different labels, one for each class",
            got=f"{len(labels)} labels, {distinct} of them different",
            instead=f"{self._call}(x, labels=[...]) with each label once; sum the weights of equal labels first",
        )

    def _check_unlabeled(self, other: Representation) -> None:
        """Raise if one side alone has labels, unless they are 0, 1, 2, ..., the class numbers of the other."""
        named, plain = (self, other) if other.labels is None else (other, self)
        labels = cast("Labels", named.labels)
        if same_labels(labels, tuple(range(plain.classes))):
            return
        labeled_class, other_class = type(named).__name__, type(plain).__name__
        raise invalid_value(
            labeled_class,
            "labels",
            wanted="labels on both sides or on neither",
            got=f"labels on one side only: {_some(labels)}",
            instead=f"{other_class}(x, labels=[...]) for the other side; or {labeled_class}(x.to_numpy()) of a Series "
            f"and {labeled_class}(list(x.values())) of a mapping if it has the order of the other side",
        )

    def _check_rows(self, other: Representation) -> None:
        """Raise if the rows of two tables have different labels, or equal labels in different orders."""
        p, q = self._rows, other._rows
        if p is None or q is None or len(p) != len(q) or same_labels(p, q):
            return
        raise invalid_value(
            self._call,
            "p, q",
            wanted="tables with the same row labels in the same order",
            got=f"rows {_some(p)} in p, {_some(q)} in q",
            instead=f"{self._call}(x.loc[y.index]) to match rows by label, or x.to_numpy() on both sides to compare "
            "them by position",
        )

    @property
    def _call(self) -> str:
        return type(self).__name__

    def _invalid(self, wanted: str, got: str, instead: Text) -> ArgumentValueError:
        return invalid_value(self._call, "x", wanted=wanted, got=got, instead=instead)

    def _read(self, x: object) -> Tensor:
        """Return `x` as a tensor. Integers in lists and arrays become floating-point numbers, except in `Counts`."""
        tensor = as_tensor(self._call, "x", x)
        if isinstance(x, Tensor) or not self.is_floating or tensor.is_floating_point():
            return tensor
        if tensor.dtype == torch.bool or tensor.is_complex():
            return tensor
        return tensor.to(torch.float64 if hasattr(x, "dtype") else torch.get_default_dtype())

    def _numbers(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise invalid_type(
                self._call,
                "x",
                wanted="floating-point values",
                got=f"a tensor of dtype {x.dtype}",
                instead=(Name("Counts"), "(x) if these are counts, or x.float() first"),
            )
        return x

    def _joined(self, dims: tuple[int, ...]) -> tuple[Tensor, torch.Size]:
        """Return the tensor with its class dimensions joined at the end, and their sizes."""
        x = self.tensor
        numbers = [whole_from(dim) for dim in dims]
        places = {n % x.ndim for n in numbers if n is not None and -x.ndim <= n < x.ndim}
        if not dims or len(places) < len(dims):
            raise invalid_value(
                self._call,
                "dim",
                wanted=f"different dimensions of a tensor of shape {tuple(x.shape)}, from {-x.ndim} to {x.ndim - 1}",
                got=safe_repr(dims),
                instead=f"{self._call}(x, dim=(-2, -1)) for a table in the last two dimensions",
            )
        moved = x.movedim([cast("int", n) for n in numbers], list(range(-len(dims), 0)))
        return moved.flatten(-len(dims)), moved.shape[-len(dims) :]

    def _class_dim(self, dim: int) -> int:
        x = self.tensor
        if x.ndim == 0:
            raise self._invalid(
                wanted="at least one dimension, the classes",
                got="a single number",
                instead=f"{self._call}(torch.stack([...])) with one entry for each class",
            )
        number = whole_from(dim)
        if number is None or not -x.ndim <= number < x.ndim:
            raise invalid_value(
                self._call,
                "dim",
                wanted=f"a dimension of a tensor of shape {tuple(x.shape)}, from {-x.ndim} to {x.ndim - 1}",
                got=safe_repr(dim),
                instead=(Name(self._call), "(x, dim=-1) when the last dimension holds the classes"),
            )
        if x.shape[number] == 0:
            raise self._invalid(
                wanted="at least one class",
                got=f"shape {tuple(x.shape)} with no entry along dim={number}",
                instead=(Name(self._call), "(x, dim=...) with the dimension that holds the classes"),
            )
        return number - x.ndim if number >= 0 else number

    @abstractmethod
    def _check(self, x: Tensor) -> None:
        """Raise if the values are not valid for this class."""

    def _no_nan(self, x: Tensor) -> None:
        if bool(torch.isnan(x).any()):
            raise self._invalid(
                wanted="numbers", got=f"NaN ({first_of(torch.isnan(x))})", instead="find where the NaN arises"
            )

    def _no_infinity(self, wanted: str, bad: Tensor) -> None:
        if bool(bad.any()):
            raise self._invalid(
                wanted=wanted,
                got=f"infinities ({first_of(bad)})",
                instead="find where they arise; a class that is masked out has logit -inf, never +inf",
            )

    def _sums_to_one(self, sums: Tensor, normalize: str) -> None:
        tolerance = SUM_TOLERANCE.get(self.tensor.dtype, 1e-6)
        off = (sums - 1).abs() > tolerance
        if bool(off.any()):
            row = tuple(int(i) for i in off.nonzero()[0])
            raise self._invalid(
                wanted=f"rows along dim={self.dim} that sum to 1 within {tolerance:g} ({self.tensor.dtype})",
                got=f"{int(off.sum())} of {off.numel()} rows that do not; row {row} sums to {float(sums[row]):.6g}",
                instead=(
                    normalize,
                    ", or ",
                    Name(self._call),
                    "(x, dim=...) if another dimension holds the classes",
                ),
            )

    def _some_mass(self, empty: Tensor, got: str) -> None:
        if bool(empty.any()):
            raise self._invalid(
                wanted="some mass in every row",
                got=f"{got} in a row ({first_of(empty)})",
                instead="leave those rows out; no distribution can be made of them",
            )


class Logits(Representation):
    r"""Unnormalized log-probabilities: row :math:`x` means :math:`p_i = e^{x_i} / \sum_j e^{x_j}`.

    All real numbers are valid. Adding a constant to a row does not change its distribution. A class with logit ``-inf``
    has no mass. NaN, ``+inf``, and rows that contain only ``-inf`` raise an error.

    Arguments:
        x: floating-point scores, shape (..., classes, ...), in nats, or labeled scores as in `Counts`.
        dim: the class dimension. A tuple such as ``(-2, -1)`` makes one distribution over all entries of a table.
        labels: one label for each class, if `x` has no labels.
        validate: whether to check the values. The check synchronizes with an accelerator, and is skipped during
            compilation and under ``vmap``.

    Raises:
        ArgumentTypeError: the values are not floating-point numbers.
        ArgumentValueError: a value or the shape is invalid for scores.

    Gradient:
        flows to `x`; if the divergence is finite, the gradient is 0 at ``-inf``.

    Example:
        >>> import torch, kullback
        >>> kullback.Logits(torch.tensor([[2.0, 0.0], [float("-inf"), 1.0]]))
        Logits(shape=(2, 2), dim=-1, dtype=torch.float32, device=cpu)

    References:
        Pattern Recognition and Machine Learning, section 4.2 (Bishop, 2006)
    """

    def _check(self, x: Tensor) -> None:
        # If the sum of the scores is finite, every score is finite. For a small tensor, this test is fast.
        if x.numel() <= 4096 and x.dtype in _WIDE:
            numbers = x.detach() if x.requires_grad else x
            if math.isfinite(numbers.sum().item()):
                return
        # A row is invalid if and only if its largest score is not finite: NaN, +inf, or -inf in every class.
        peaks = x.detach().amax(self.dim)
        if math.isfinite(peaks.sum(dtype=accurate_dtype(x.device)).item()) or bool(peaks.isfinite().all()):
            return
        self._no_nan(x)
        self._no_infinity("scores below +inf", x == torch.inf)
        self._some_mass((x == -torch.inf).all(self.dim), "only -inf")


class LogProbs(Representation):
    r"""Log-probabilities: row :math:`x` means :math:`p_i = e^{x_i}`, with :math:`\sum_i e^{x_i} = 1`.

    The sum must be 1 within a tolerance: float64 1e-6, float32 1e-4, float16 5e-3, bfloat16 4e-2. Rows are then
    normalized, so that rounding errors do not change the divergence.

    Arguments:
        x: floating-point log-probabilities, shape (..., classes, ...), in nats, or labeled log-probabilities as in
            `Counts`; ``-inf`` is probability 0.
        dim: the class dimension. A tuple such as ``(-2, -1)`` makes one distribution over all entries of a table.
        labels: one label for each class, if `x` has no labels.
        validate: whether to check the values. The check synchronizes with an accelerator, and is skipped during
            compilation and under ``vmap``.

    Raises:
        ArgumentTypeError: the values are not floating-point numbers.
        ArgumentValueError: the probabilities of a row do not sum to one, a value is NaN, or the shape is invalid.

    Gradient:
        flows to `x` through the normalization, so the gradient sums to zero along `dim`.

    Example:
        >>> import torch, kullback
        >>> kullback.LogProbs(torch.tensor([0.25, 0.75]).log())
        LogProbs(shape=(2,), dim=-1, dtype=torch.float32, device=cpu)

    References:
        Elements of Information Theory, section 2.1 (Cover and Thomas, 2006)
    """

    def _check(self, x: Tensor) -> None:
        self._no_nan(x)
        self._no_infinity("log-probabilities, at most 0", x == torch.inf)
        sums = torch.logsumexp(upcast(x), self.dim).exp()
        self._sums_to_one(sums, "Logits(x) if these are scores, or LogProbs(x.log_softmax(dim))")


class Probs(Representation):
    r"""Probabilities: row :math:`x` is :math:`p` itself, with :math:`p_i \ge 0` and :math:`\sum_i p_i = 1`.

    The sum must be 1 within a tolerance: float64 1e-6, float32 1e-4, float16 5e-3, bfloat16 4e-2. Rows are then
    normalized, so that rounding errors do not change the divergence.

    Arguments:
        x: floating-point probabilities, shape (..., classes, ...), or labeled probabilities as in `Counts`.
        dim: the class dimension. A tuple such as ``(-2, -1)`` makes one distribution over all entries of a table.
        labels: one label for each class, if `x` has no labels.
        validate: whether to check the values. The check synchronizes with an accelerator, and is skipped during
            compilation and under ``vmap``.

    Raises:
        ArgumentTypeError: the values are not floating-point numbers.
        ArgumentValueError: a row does not sum to one, a value is negative or NaN, or the shape is invalid.

    Gradient:
        flows to `x` through the normalization; the gradient is 0 at a probability that is exactly 0.

    Example:
        >>> import torch, kullback
        >>> kullback.Probs(torch.tensor([[0.36, 0.48, 0.16]]))
        Probs(shape=(1, 3), dim=-1, dtype=torch.float32, device=cpu)

    References:
        Elements of Information Theory, section 2.1 (Cover and Thomas, 2006)
    """

    in_logs = False

    def _check(self, x: Tensor) -> None:
        self._no_nan(x)
        if bool((x < 0).any()):
            raise self._invalid(
                wanted="probabilities, none negative",
                got=f"negative values ({first_of(x < 0)})",
                instead=(
                    Name("LogProbs"),
                    "(x) if these are log-probabilities, ",
                    Name("Logits"),
                    "(x) if they are scores",
                ),
            )
        sums = x.sum(self.dim, dtype=accurate_dtype(x.device))
        self._sums_to_one(sums, "Counts(x) if these are weights to be normalized")


_PRIOR = Arguments("Counts", prior=Number(least=0, below=math.inf, example=0.5))


class Counts(Representation):
    r"""Counts, or other non-negative weights: :math:`p_i = (x_i + \text{prior}) / \sum_j (x_j + \text{prior})`.

    Rows are normalized. Labeled P and Q are compared on the union of their labels. A label that is missing on one side
    has the count 0 on this side, plus the `prior` of this side. Missing values such as NaN are also labels; two missing
    values of one type are equal. `Probs`, `LogProbs` and `Logits` may also have labels. For these classes, integer
    indices of pandas must be equal in P and Q, because such an index may count rows.

    Arguments:
        x: counts, integer or floating, shape (..., classes, ...). Labeled counts are a mapping from label to count such
            as `collections.Counter`, or a pandas Series with the labels as its index. Labeled counts may also be a data
            frame with two columns, label and count, such as the result of ``value_counts()`` of polars. In other data
            frames, and in a mapping from label to several numbers, each class is a column.
        dim: the class dimension. A tuple such as ``(-2, -1)`` makes one distribution over all entries of a table.
        prior: a number added to each count before the normalization (0.5 is Jeffreys' prior, 1 is Laplace's).
        labels: one label for each class, if `x` has no labels.
        validate: whether to check the values. The check synchronizes with an accelerator, and is skipped during
            compilation and under ``vmap``.

    Raises:
        ArgumentTypeError: the values are not numbers.
        ArgumentValueError: a count is negative, NaN or infinite, a row contains only zeros, or the labels are invalid.

    Gradient:
        flows to floating-point `x` through the normalization; the gradient is 0 at a weight that is exactly 0.

    Example:
        >>> import kullback
        >>> from collections import Counter
        >>> p, q = kullback.Counts(Counter("abracadabra")), kullback.Counts(Counter("alacazam"), prior=0.5)
        >>> p.labels
        ('a', 'b', 'r', 'c', 'd')
        >>> round(float(kullback.kl_divergence(p, q)), 4)
        0.6652

    References:
        An invariant form for the prior probability in estimation problems (Jeffreys, 1946)
    """

    in_logs = False
    is_floating = False

    def __init__(
        self,
        x: object,
        dim: int | tuple[int, ...] = -1,
        *,
        prior: float = 0.0,
        labels: Iterable[Hashable] | None = None,
        validate: bool = True,
        **unknown: Never,
    ) -> None:
        self.prior = _PRIOR.check(prior=prior)["prior"]
        super().__init__(x, dim, labels=labels, validate=validate, **unknown)

    def weights(self) -> Tensor:
        """Return the counts plus `prior`, with the class dimension moved to the end."""
        return super().weights() + self.prior if self.prior else super().weights()

    def _numbers(self, x: Tensor) -> Tensor:
        if x.is_complex() or x.dtype == torch.bool:
            raise invalid_type(
                "Counts",
                "x",
                wanted="integer or floating-point counts",
                got=f"a tensor of dtype {x.dtype}",
                instead=(Name("Counts"), "(x.sum(0)) to count how often each class is true"),
            )
        if x.dtype not in (torch.uint16, torch.uint32, torch.uint64):
            return x
        signed = x.to(torch.int64)
        # The conversion to int64 makes values above the range of int64 negative.
        if x.dtype == torch.uint64 and can_inspect(x) and bool((signed < 0).any()):
            raise invalid_value(
                "Counts",
                "x",
                wanted=f"integer counts up to {torch.iinfo(torch.int64).max}, the largest int64",
                got=f"larger ones ({first_of(signed < 0)})",
                instead=(Name("Counts"), "(torch.as_tensor(x).double()), which rounds them"),
            )
        return signed

    def _check(self, x: Tensor) -> None:
        if x.is_floating_point():
            self._no_nan(x)
            self._no_infinity("finite counts", x.isinf())
        if bool((x < 0).any()):
            raise self._invalid(
                wanted="counts, none negative",
                got=f"negative values ({first_of(x < 0)})",
                instead=(
                    Name("Logits"),
                    "(x) if these are scores, ",
                    Name("LogProbs"),
                    "(x) if they are log-probabilities",
                ),
            )
        if not self.prior:
            self._some_mass((x == 0).all(self.dim), "no count at all")


def _some(labels: Labels) -> str:
    """Return the first three labels as text, followed by "..." if there are more."""
    shown = ", ".join(safe_repr(label) for label in labels[:3])
    return f"{shown}, ..." if len(labels) > 3 else shown


REPRESENTATIONS: dict[RepresentationName, type[Representation]] = {
    "logits": Logits,
    "log-probs": LogProbs,
    "probs": Probs,
    "counts": Counts,
}
