"""Tiny models of the families that vLLM's hidden-state connector serves, and files as the connector writes them."""

from __future__ import annotations

import copy
import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

CLASSES = 512
SHARED = {
    "vocab_size": CLASSES,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.2,
}
_CAPPED = {"head_dim": 8, "final_logit_softcapping": 5.0}
_GEMMA4 = _CAPPED | {"global_head_dim": 8, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
_MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_expand": 1}
_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"head_dim": 8},
    "phi": {},  # its head has a bias
    "gemma2": _CAPPED,
    "gemma3_text": {"head_dim": 8},
    "gemma4_text": _GEMMA4,
    "gemma4": {
        "text_config": SHARED | _GEMMA4,
        "vision_config": _VISION | {"num_key_value_heads": 2, "head_dim": 8},
        "audio_config": None,
    },
    "granite": {"logits_scaling": 8.0},
    "hyperclovax": {"logits_scaling": 0.5},
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron": {},
    "nemotron_h": {
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "ssm_state_size": 8,
        "chunk_size": 16,
    },
    "minicpm3": {
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "dim_model_base": 8,
    },
    "falcon_h1": _MAMBA | {"mamba_n_groups": 1, "mamba_chunk_size": 16, "lm_head_multiplier": 0.5},
    "gpt2": {},
}


def make_family(name: str, *, seed: int = 0) -> Any:
    """A tiny model of a family, whose norms and biases are random too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = FAMILIES[name] if name == "gemma4" else SHARED | FAMILIES[name]
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    torch.set_rng_state(state)
    return model


def parts_of(model: Any) -> tuple[list[Any], Any]:
    """The blocks of a text model and its final norm, by the names that the families use."""
    body = next(
        module
        for module in model.modules()
        if any(isinstance(x, torch.nn.ModuleList) for x in module.children())
        and model.get_input_embeddings() in module.children()
    )
    blocks = next(list(x) for x in body.children() if isinstance(x, torch.nn.ModuleList))
    norms = [getattr(body, name, None) for name in ("norm", "norm_f", "ln_f", "final_layernorm")]
    return blocks, next(norm for norm in norms if norm is not None)


@torch.no_grad()
def states_of(model: Any, tokens: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """The states that vLLM stores for layer ids: the input of block i, or for the last id that of the final norm.

    The ids come out sorted and without repetition, as in the connector.
    """
    blocks, norm = parts_of(model)
    seen: dict[int, torch.Tensor] = {}
    places = [*enumerate(blocks), (len(blocks), norm)]

    def remember(number: int) -> Any:
        return lambda _module, args, kwargs: seen.update({number: (args or [*kwargs.values()])[0][0]})

    hooks = [x.register_forward_pre_hook(remember(number), with_kwargs=True) for number, x in places]
    model(input_ids=tokens[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack([seen[number] for number in sorted(set(ids))], 1).contiguous()


def write(
    path: Path, tokens: torch.Tensor, states: torch.Tensor, *, lock: bool = True, **others: Any
) -> Path:
    """Write a file of the connector, with its lock beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"hidden_states": states.contiguous(), "token_ids": tokens.clone(), **others}, path)
    if lock:
        Path(f"{path}.lock").touch()
    return path


def to_float8(states: torch.Tensor) -> dict[str, torch.Tensor]:
    """States as hs-connectors stores them: float8 with a scale for each token."""
    scales = states.float().abs().amax((1, 2), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return {"states": (states.float() / scales).to(torch.float8_e4m3fn), "hidden_states_scales": scales}


def record(
    model: Any, prompts: Sequence[torch.Tensor], folder: Path, ids: Sequence[int] | None = None
) -> Path:
    """Write the folder that a server writes for prompts, with the ids of the layers to store."""
    last = len(parts_of(model)[0])
    for number, tokens in enumerate(prompts):
        write(folder / f"{number}.safetensors", tokens, states_of(model, tokens, ids or [last]))
    return folder


def similar(model: Any, share: float) -> Any:
    """The model with random changes of its blocks' weights, by this share of their spread; norm and head are same."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in parts_of(other)[0]:
            for weight in block.parameters():
                if weight.ndim > 1:
                    noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
                    weight.add_(share * float(weight.std()) * noise)
    return other


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file as the connector does while it writes."""
    with Path(f"{path}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
