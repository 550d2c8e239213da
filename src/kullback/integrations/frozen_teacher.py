"""Functions that freeze a teacher, put it in evaluation mode, and check that it shares no trained tensors with the
student.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from kullback.errors import invalid_value
from kullback.integrations.model_reading import without_containers
from kullback.kernels.overlap import may_overlap

# A message lists at most this number of names.
_NAMES = 3


def freeze(call: str, student: torch.nn.Module | None, teacher: torch.nn.Module | None) -> None:
    """Freeze the teacher and put it in evaluation mode; raise if this would freeze parts of the student too."""
    if teacher is not None:
        check_apart(call, student, teacher)
        teacher.requires_grad_(False).eval()


def check_apart(call: str, student: torch.nn.Module | None, teacher: torch.nn.Module | None) -> None:
    """Raise if a trainable parameter of the student is also a tensor of the teacher, or shares memory with one."""
    if student is None or teacher is None:
        return
    parameters = dict(student.named_parameters())
    learning = {name: x for name, x in parameters.items() if x.requires_grad}
    # If no parameter is trainable, sharing is an error only if all parameters of the student are the teacher's.
    shared = _shared(learning or parameters, [*teacher.parameters(), *teacher.buffers()])
    if shared and (learning or len(shared) == len(parameters)):
        raise _refusal(call, student, teacher, shared, learning)


def check_statistics(call: str, student: torch.nn.Module, teacher: torch.nn.Module | None) -> None:
    """Raise if training the student would change running averages of the teacher, such as batch normalization's."""
    theirs = set() if teacher is None else {id(x) for x in teacher.buffers()}
    changing = [
        name
        for name, module in student.named_modules()
        if module.training and id(getattr(module, "running_mean", None)) in theirs
    ]
    if changing:
        raise invalid_value(
            call,
            "teacher",
            wanted="a teacher that shares no running averages with the student, because training changes them",
            got=f"one that shares those of {_listed(changing)}",
            instead="copy.deepcopy of these modules in the student",
        )


def _shared(tensors: Mapping[str, Tensor], others: Iterable[Tensor]) -> list[str]:
    """Return the names of the `tensors` that are among `others`, or that overlap one of `others` in memory."""
    identities: set[int] = set()
    by_storage: dict[int, list[Tensor]] = {}
    for x in others:
        identities.add(id(x))
        by_storage.setdefault(_storage(x), []).append(x)
    return [
        name
        for name, x in tensors.items()
        if id(x) in identities
        or (_storage(x) != 0 and any(may_overlap(x, y) for y in by_storage.get(_storage(x), ())))
    ]


def _storage(x: Tensor) -> int:
    """Return the address of a tensor's storage; 0 for a tensor without an address, such as a sharded tensor."""
    is_plain = type(x) in (Tensor, torch.nn.Parameter) and x.layout is torch.strided
    return x.untyped_storage().data_ptr() if is_plain and not x.is_meta else 0


def _refusal(
    call: str,
    student: torch.nn.Module,
    teacher: torch.nn.Module,
    shared: list[str],
    learning: Mapping[str, Tensor],
) -> Exception:
    listed = _listed(shared)
    got = f"one that shares {len(shared)} of the student's {len(learning)}: {listed}"
    if not learning:
        got = f"a student whose parameters are all the teacher's, so that none learns: {listed}"
    elif student is teacher:
        got = f"the student itself: {got}"
    if any(hasattr(without_containers(model), "disable_adapter") for model in (student, teacher)):
        got += ". PEFT adds adapters to the base in place"
        instead = (
            "a copy of the base made before get_peft_model; or, without a copy, a module whose forward runs `with "
            "model.disable_adapter(): return model(**inputs, use_cache=False)` and that does not hold the model as an "
            "attribute"
        )
    elif len(shared) >= len(learning):
        instead = (
            "teacher=copy.deepcopy(student); or a student of PEFT with LoRA, and a teacher that runs it under "
            "disable_adapter()"
        )
    else:
        instead = (
            "copy.deepcopy of these modules in the student, to train them; or student.get_parameter(name)"
            ".requires_grad_(False) for each, to keep them as the teacher has them"
        )
    wanted = "a teacher that shares no parameter that learns with the student, because the teacher is frozen"
    return invalid_value(call, "teacher", wanted=wanted, got=got, instead=instead)


def _listed(names: list[str]) -> str:
    others = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + others


@contextmanager
def evaluating(teacher: torch.nn.Module) -> Generator[None]:
    """Run the teacher in evaluation mode, and restore the mode of each module, which the student may share."""
    training = [module for module in teacher.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
