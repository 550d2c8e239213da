"""The closed forms that C++ kernels compute from the parameters of P and Q, without copies of the parameters.

Functions in plain torch compute all other cases: other devices, tensors of torch.func and second derivatives. These
functions also compute KL for parameters so extreme that the arithmetic of the kernels would overflow or underflow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor
from torch._C import (
    _functorch,  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    _len_torch_dispatch_stack,  # pyright: ignore[reportPrivateUsage]
)
from torch.autograd import forward_ad

from kullback.common.inputs import recordable
from kullback.kernels.codes import ElementForm, RowForm
from kullback.kernels.native import library
from kullback.kernels.native.native_closed_forms import Form, Parameters, divergence, required_gradients
from kullback.pairs.family import CHOICE, FAMILIES
from kullback.pairs.numerics.parameters import given_logits

# `Shortcut` is a function that returns the divergence of P and Q, or None if another rule has to compute the
# divergence.
Shortcut = Callable[[Any, Any], Tensor | None]
Reader = Callable[[Any], Parameters]
# `FormFunction` is a closed form in plain torch: a function that returns KL(P || Q), or None if the formula does not
# apply to the parameters.
FormFunction = Callable[..., Tensor | None]
Code = ElementForm | RowForm

_is_available = cache(library.is_available)


class _Variant(NamedTuple):
    """A kernel, and the functions that read the kernel's parameters from P and from Q."""

    read_p: Reader
    read_q: Reader
    form: Form


class NativeForm:
    """The kernel of a closed form, or two kernels, for logits and for probabilities.

    `function` is the closed form in plain torch, which computes second derivatives. `code` is the kernel, or the kernel
    for logits if `CHOICE` is among the parameters. The records of both types name the parameters, and may come later.
    """

    def __init__(self, function: FormFunction, code: Code, type_p: type, type_q: type) -> None:
        self._function, self._code, self._types = function, code, (type_p, type_q)
        self._is_of_rows = isinstance(code, RowForm)

    @cached_property
    def _names(self) -> tuple[str, str]:
        return FAMILIES[self._types[0]].parameters, FAMILIES[self._types[1]].parameters

    @cached_property
    def _has_choice(self) -> tuple[bool, bool]:
        return CHOICE in self._names[0], CHOICE in self._names[1]

    @cached_property
    def _of_logits(self) -> _Variant:
        return _variant(self._function, self._code, self._names, "logits")

    @cached_property
    def _of_probs(self) -> _Variant | None:
        if not any(self._has_choice):
            return None
        code = type(self._code)[self._code.name.replace("LOGITS", "PROBS")]
        return _variant(self._function, code, self._names, "probs")

    @property
    def form(self) -> Form:
        """The form of the kernel, or of the kernel for logits if there is a kernel for logits and one for probs."""
        return self._of_logits.form

    def __call__(self, p: Any, q: Any) -> Tensor | None:
        """Return the divergence, or None if the kernel does not support P and Q."""
        if not is_ordinary_call():
            return None
        variant = self._of_logits if self._of_probs is None else self._variant_of(p, q)
        if variant is None:
            return None
        parameters = variant.read_p(p) + variant.read_q(q)
        if self._is_of_rows and parameters[0].shape[-1] != parameters[1].shape[-1]:
            return None
        required = required_gradients(parameters)
        if required is None:
            return divergence_of(variant.form, parameters)
        return divergence(variant.form, parameters, required)

    def _variant_of(self, p: Any, q: Any) -> _Variant | None:
        """Return the kernel for the user's parameters, or None if one side has logits and the other side has probs."""
        in_logits = {
            given_logits(getattr(d, "_categorical", d))
            for d, has_choice in zip((p, q), self._has_choice, strict=True)
            if has_choice
        }
        return None if len(in_logits) > 1 else self._of_logits if True in in_logits else self._of_probs


def _variant(function: FormFunction, code: Code, parameters: tuple[str, str], choice: str) -> _Variant:
    names_p, names_q = (names.replace(CHOICE, choice).split() for names in parameters)

    def reference(parameters: Parameters) -> Tensor:
        sides = (names_p, parameters[: len(names_p)]), (names_q, parameters[len(names_p) :])
        p, q = (
            SimpleNamespace(**{name.rpartition(".")[2]: x for name, x in zip(names, side, strict=True)})
            for names, side in sides
        )
        return function(p, q)  # pyright: ignore[reportReturnType]

    operator = "closed_form_of_rows" if isinstance(code, RowForm) else "closed_form"
    return _Variant(reader_of(*names_p), reader_of(*names_q), Form(operator, (code.value,), reference))


def reader_of(name: str, *others: str) -> Reader:
    """Return a function that returns a tuple of the attributes of a distribution with these names."""
    if others:
        return attrgetter(name, *others)
    get: Callable[[Any], Tensor] = attrgetter(name)
    return lambda distribution: (get(distribution),)


def divergence_of(form: Form, parameters: Parameters) -> Tensor | None:
    """Return the divergence by a kernel, in the dtype of the parameters, or None if the kernel cannot be used."""
    required = required_gradients(parameters)
    if required is None and any(isinstance(x, Tensor) and x.is_inference() for x in parameters):
        parameters = tuple(map(recordable, parameters))  # autograd cannot save a tensor of inference mode
        required = required_gradients(parameters)
    return None if required is None else divergence(form, parameters, required)


def is_ordinary_call() -> bool:
    """Return whether the kernels are available and no transform, such as torch.func's, changes how operators run."""
    return (
        _is_available()
        and _functorch.peek_interpreter_stack() is None
        and not _len_torch_dispatch_stack()
        and forward_ad._current_level < 0  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    )
