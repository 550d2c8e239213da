"""Functions that find properties of a model: its wrappers, whether labels are shifted, its decoder's tokens, its
logits.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

# The class names of Hugging Face models have these suffixes. For `_SHIFTED`, the model's loss compares the logits of a
# position with the label of the next position. For `_ALIGNED`, the loss compares the logits with the label of the same
# position.
_SHIFTED = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_ALIGNED = ("ForMaskedLM", "Classification")
# A batch with one of these fields contains the inputs of the decoder.
_DECODER_INPUTS = ("decoder_input_ids", "decoder_inputs_embeds")

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


def virtual_tokens(model: Any) -> int:
    """Return the number of positions that a model of PEFT may put before a sequence: its prompt."""
    config: Any = getattr(without_containers(model), "active_peft_config", None)
    return config.num_virtual_tokens if getattr(config, "is_prompt_learning", False) else 0


def of_given_tokens(model: Any, features: Mapping[str, Any], rows: Tensor) -> Tensor:
    """Return the rows of the tokens in the batch, without the rows of a prompt that PEFT has put before them."""
    tokens, prompt = features.get("input_ids", features.get("inputs_embeds")), virtual_tokens(model)
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
