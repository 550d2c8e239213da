"""Tiny language models, made on the spot: a Llama of transformers with its tokenizer, and a GGUF of the same weights.

Every draw is seeded, so two calls with the same arguments write the same model.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
BOS, EOS = "<s>", "</s>"
TOKENS = 500  # of the tokenizer
CLASSES = 512  # of the logits: some stand for no token, as in models whose vocabulary is padded
# Parts of a conversation: each message in its own lines, the assistant's reply begun by its name.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@cache
def text() -> str:
    """Some thousand words of English."""
    return (REPOSITORY / "tests" / "data" / "words.txt").read_text(encoding="utf-8")


def make_tokenizer(*, adds_bos: bool = True, tokens: int = TOKENS) -> Any:
    """Train a byte-level BPE tokenizer, as GPT-2's and Llama 3's are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [text()],
        trainers.BpeTrainer(
            vocab_size=tokens,
            special_tokens=[BOS, EOS],
            initial_alphabet=sorted(alphabet),
            show_progress=False,
        ),
    )
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_model(seed: int = 0, *, noise: float = 0.0, classes: int = CLASSES) -> Any:
    """Make a Llama of two layers with random weights.

    Arguments:
        seed: of the weights.
        noise: the standard deviation of what is added to each weight, in those of its tensor: another model, near the
            one without.
        classes: of the logits.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    state = torch.get_rng_state()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=classes,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters() if noise else ():
            if weight.ndim > 1:
                weight.add_(noise * weight.std() * torch.randn_like(weight))
    torch.set_rng_state(state)
    return model


def round_to_int8(model: Any) -> Any:
    """Round the weights of all linear layers to the 255 multiples of a step of their row, as int8 weights are."""
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.Linear):
                step = layer.weight.abs().amax(1, keepdim=True) / 127
                layer.weight.copy_((layer.weight / step).round() * step)
    return model


def make_folder(
    folder: Path,
    seed: int = 0,
    *,
    noise: float = 0.0,
    dtype: torch.dtype = torch.float32,
    int8: bool = False,
    adds_bos: bool = True,
    tokens: int = TOKENS,
    classes: int = CLASSES,
) -> Path:
    """Write a tiny Llama with its tokenizer as a folder that transformers reads.

    Arguments:
        folder: where to; it is made.
        seed: of the weights.
        noise: see `make_model`.
        dtype: of the weights.
        int8: whether they are rounded as int8 weights are.
        adds_bos: whether the tokenizer begins a text with BOS.
        tokens: of the tokenizer.
        classes: of the logits.
    """
    model = make_model(seed, noise=noise, classes=classes)
    model = (round_to_int8(model) if int8 else model).to(dtype)
    model.save_pretrained(folder)
    make_tokenizer(adds_bos=adds_bos, tokens=tokens).save_pretrained(folder)
    return folder


def make_gguf(folder: Path, path: Path, *, quantization: str = "F32") -> Path:
    """Write the model of a folder of `make_folder` as a GGUF file.

    Arguments:
        folder: the model.
        path: the file.
        quantization: of the matrices: ``"F32"``, ``"F16"``, ``"BF16"``, ``"Q8_0"``, ``"Q5_0"`` or ``"Q4_0"``.
    """
    import gguf
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    kind = gguf.GGMLQuantizationType[quantization]
    path.unlink(missing_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(
        writer,
        config,
        int(gguf.LlamaFileType[f"{'ALL' if quantization == 'F32' else 'MOSTLY'}_{quantization}"]),
    )
    _write_tokenizer(writer, folder, config["vocab_size"])
    for name, weight in load_file(folder / "model.safetensors").items():
        array = _rotated(name, weight.float(), heads).contiguous().numpy()
        if weight.ndim > 1 and quantization != "F32":
            writer.add_tensor(_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rotated(name: str, weight: torch.Tensor, heads: dict[str, int]) -> torch.Tensor:
    """Return a weight in the order of llama.cpp, whose RoPE rotates neighboring dimensions, not halves."""
    module = name.split(".")[-2]
    if module not in heads:
        return weight
    return weight.view(heads[module], 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def _describe(writer: Any, config: dict[str, Any], file_type: int) -> None:
    writer.add_name("tiny")
    writer.add_file_type(file_type)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: Any, folder: Path, classes: int) -> None:
    import gguf

    held = json.loads((folder / "tokenizer.json").read_text())
    names = [f"[PAD{number}]" for number in range(classes)]
    types = [int(gguf.TokenType.UNUSED)] * classes
    for name, number in held["model"]["vocab"].items():
        names[number], types[number] = name, int(gguf.TokenType.NORMAL)
    for token in held["added_tokens"]:
        names[token["id"]] = token["content"]
        types[token["id"]] = int(gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in held["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    begins = (held["post_processor"] or {}).get("single", [])[:1]
    writer.add_add_bos_token(any("SpecialToken" in part for part in begins))
    writer.add_chat_template(CHAT_TEMPLATE)


def _name(name: str) -> str:
    """Return what llama.cpp calls a weight of a Llama of transformers."""
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for theirs, ours in parts.items():
        name = name.replace(f"{theirs}.weight", f"{ours}.weight")
    return name.replace("model.layers.", "blk.")


def without_tokenizer(folder: Path, copy: Path) -> Path:
    """Copy a folder without the files of its tokenizer."""
    return Path(shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("tokenizer*", "special_tokens*")))
