"""The models of student and teacher in a trainer: their properties and heads, and how the teacher is frozen."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kullback.common.formats import listed
from kullback.common.inputs import is_other_storage
from kullback.errors import invalid_value
from kullback.kernels.overlap import may_overlap
from kullback.losses.head_configuration import head_configuration
from kullback.nn import LinearDistillationLoss
from kullback.parallel.shards import is_dtensor

# The class names of Hugging Face models have these suffixes. For `_SHIFTED`, the model's loss compares the logits of a
# position with the label of the next position. For `_ALIGNED`, the loss compares the logits with the label of the same
# position.
_SHIFTED = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_ALIGNED = ("ForMaskedLM", "Classification")
# A batch with one of these fields contains the inputs of the decoder.
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")
_LOGITS = "loss=kullback.nn.DistillationLoss()"
# A message lists at most this number of names.
_NAMES = 3

# The tensors of a batch by the names of a model's arguments, and other settings of its call.
Features: TypeAlias = dict[str, Any]


def without_containers(model: Any) -> Any:
    """Return the model inside of the wrappers of `torch.compile`, FSDP 1 and data parallelism."""
    parts = getattr(model, "_modules", {})  # attributes of a PEFT model may come from its base model
    inside = next((parts[name] for name in ("_orig_mod", "_fsdp_wrapped_module") if name in parts), None)
    if isinstance(model, torch.nn.DataParallel | torch.nn.parallel.DistributedDataParallel):
        inside = model.module
    return model if inside is None else without_containers(inside)


def without_wrappers(model: Any) -> Any:
    """Return the model inside of all wrappers, including PEFT's."""
    model = without_containers(model)
    return without_containers(model.get_base_model()) if hasattr(model, "get_base_model") else model


def is_encoder_decoder(model: Any) -> bool:
    """Return whether a decoder predicts the labels, by the configuration of a model without wrappers."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def shifts_labels(model: Any) -> bool | None:
    """Return whether the label of a position's logits is the next token; None if the class leaves it open."""
    if is_encoder_decoder(model):
        return False
    for name in (base.__name__ for base in type(model).__mro__):
        if name.endswith(_SHIFTED + _ALIGNED):
            return name.endswith(_SHIFTED)
    return None


def with_decoder_inputs(model: Any, features: Features, labels: Any, ignore_index: int) -> Features:
    """Return the arguments of a model with a decoder's tokens, which it makes itself only if it gets the labels."""
    has_inputs = any(features.get(name) is not None for name in _DECODER_INPUTS)
    if has_inputs or not is_encoder_decoder(model) or not isinstance(labels, Tensor) or labels.ndim < 2:
        return features
    labels = labels.masked_fill(labels == ignore_index, -100)
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return features | {"decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels=labels)}
    return features | {"labels": labels}


def is_dispatched(model: Any) -> bool:
    """Return whether accelerate placed parts of a model on several devices or on disk, where they must stay."""
    return len(getattr(model, "hf_device_map", ())) > 1 or any(x.is_meta for x in model.parameters())


def of_given_tokens(model: Any, features: Mapping[str, Any], rows: Tensor) -> Tensor:
    """Return the rows of the tokens in the batch, without the rows of a prompt that PEFT has put before them."""
    config: Any = getattr(without_containers(model), "active_peft_config", None)
    prompt = config.num_virtual_tokens if getattr(config, "is_prompt_learning", False) else 0
    tokens = features.get("input_ids", features.get("inputs_embeds"))
    if prompt and isinstance(tokens, Tensor) and rows.ndim == 3 and rows.shape[1] == tokens.shape[1] + prompt:
        return rows[:, prompt:]
    return rows


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's outputs: an attribute, an entry, the first of a tuple, or the outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs.logits if hasattr(outputs, "logits") else outputs[0]


def no_cache(model: Any) -> dict[str, bool]:
    """Return the argument that turns off a model's cache of keys and values, for models that have one.

    Training does not need the cache, and transformers ignores the boundaries of packed sequences if there is a cache.
    """
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def router_coefficient(model: Any) -> float | None:
    """Return the weight that a mixture of experts gives to its router loss."""
    places = (model, "router_aux_loss_coef"), (model, "aux_loss_coef")
    for holder, name in (*places, (getattr(model, "config", None), "router_aux_loss_coef")):
        if (coefficient := getattr(holder, name, None)) is not None:
            return float(coefficient)
    return None


class ModelHead(NamedTuple):
    """The head of one side's model, a linear layer. `call` and `side` are for messages; `module` has no wrappers."""

    call: str
    side: str
    module: Any
    linear: torch.nn.Linear

    @classmethod
    def of(cls, call: str, side: str, module: Any) -> ModelHead:
        """Return the head of a model; raise unless a weight and a bias alone make its logits."""
        if not hasattr(module, "get_output_embeddings"):
            wanted = f"a DistillationLoss for a {side} without get_output_embeddings, which returns the head"
            got = f"a LinearDistillationLoss and a {type(module).__name__}"
            raise invalid_value(call, "loss", wanted=wanted, got=got, instead=_LOGITS)
        linear = _saved_copy(module.get_output_embeddings())
        if getattr(type(linear), "forward", None) is not torch.nn.Linear.forward:
            instead = f"{_LOGITS}, which takes the logits of any head"
            if hasattr(linear, "base_layer"):  # a layer of PEFT
                instead = (
                    f"{_LOGITS}, or no adapter on the head (LoraConfig(target_modules=...) without 'lm_head')"
                )
            raise invalid_value(
                call,
                "loss",
                wanted=f"a DistillationLoss for a {side} whose head is not a plain torch.nn.Linear",
                got=f"a LinearDistillationLoss and a {type(linear).__module__}.{type(linear).__name__}, "
                "whose weight alone does not make its logits",
                instead=instead,
            )
        return cls(call, side, module, linear)

    def few_logits(self) -> dict[str, int]:
        """Return the argument that makes the model compute only the logits of the last position."""
        if "logits_to_keep" not in inspect.signature(self.module.forward).parameters:
            wanted = f"a DistillationLoss for a {self.side} that always makes all its logits"
            got = f"a LinearDistillationLoss with a {type(self.module).__name__}, which has no logits_to_keep"
            raise invalid_value(self.call, "loss", wanted=wanted, got=got, instead=_LOGITS)
        return {"logits_to_keep": 1}

    def gather(self) -> None:
        """Gather a weight that `fully_shard` sharded again after the forward pass; raise unless it is in memory."""
        if is_dtensor(self.linear.weight):
            sharded = [part for part in self.module.modules() if hasattr(part, "unshard")]
            owners = [part for part in sharded if any(x is self.linear for x in part.modules())]
            for owner in owners[-1:]:  # the innermost module that `fully_shard` gathers with the head
                owner.unshard()  # until the backward pass shards it again
        weight = self.linear.weight
        if weight.ndim != 2 or weight.numel() == 0:
            got = "a part of it, as the first FSDP or DeepSpeed's stage 3 has sharded it again"
            instead = f"{_LOGITS}, or torch.distributed.fsdp.fully_shard(model)"
        elif weight.is_meta:
            got = "one on the meta device, because accelerate keeps its numbers on disk or in other memory"
            instead = f"{_LOGITS}, or a device_map with the head on a device"
        elif is_other_storage(weight) and not is_dtensor(weight):
            got = f"one of class {type(weight).__name__}, such as a quantized weight"
            instead = f"{_LOGITS}, or quantize_(model, config, filter_fn=...) that leaves the head out"
        else:
            return
        wanted = f"a {self.side} whose head has a plain weight in memory after its forward pass"
        raise invalid_value(self.call, "loss", wanted=wanted, got=got, instead=instead)

    @torch.no_grad()
    def check_logits(self, loss: LinearDistillationLoss, hidden: Tensor, logits: Tensor) -> None:
        """Raise unless the head, with the cap and scale of the loss, gives the model's logits."""
        place = int(self.side == "teacher")
        scale, cap = (x[place] if isinstance(x, tuple) else x for x in (loss.logit_scale, loss.softcap))
        products = torch.nn.functional.linear(hidden, self.linear.weight, self.linear.bias)
        made = products.float() * (1.0 if scale is None else scale)
        made = made if cap is None else cap * torch.tanh(made / cap)
        near = 0.05 if {products.dtype, logits.dtype} & {torch.bfloat16, torch.float16} else 1e-3
        size = logits.float().abs().amax().clamp(min=1e-6)
        # The effect of a cap on small logits is below the tolerance, so the cap in the configuration is compared too.
        wanted = head_configuration(getattr(self.module, "config", None)).softcap
        if (wanted is not None and wanted != cap) or not bool(
            (made - logits.float()).abs().amax() <= near * size
        ):
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a LinearDistillationLoss that makes the logits of the {self.side} as its model does",
                got=f"softcap={cap}, logit_scale={scale}, which give other logits",
                instead="LinearDistillationLoss(softcap=..., logit_scale=...) as in the models' configurations, or "
                f"{_LOGITS}",
            )


def _saved_copy(head: Any) -> Any:
    """Return the copy of a head that PEFT trains and saves (`modules_to_save`), or the head itself."""
    copies, names = getattr(head, "modules_to_save", None), getattr(head, "active_adapters", None)
    if not hasattr(head, "original_module") or copies is None or names is None:
        return head
    active = next((name for name in names if name in copies), None)
    return head.original_module if head.disable_adapters or active is None else copies[active]


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
        wanted = "a teacher that shares no running averages with the student, because training changes them"
        got = f"one that shares those of {listed(changing, _NAMES)}"
        instead = "copy.deepcopy of these modules in the student"
        raise invalid_value(call, "teacher", wanted=wanted, got=got, instead=instead)


def _shared(tensors: Mapping[str, Tensor], others: Iterable[Tensor]) -> list[str]:
    """Return the names of the `tensors` that are among `others`, or that overlap a tensor of `others` in memory."""
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
    names = listed(shared, _NAMES)
    got = f"one that shares {len(shared)} of the student's {len(learning)}: {names}"
    if not learning:
        got = f"a student whose parameters are all the teacher's, so that none learns: {names}"
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
