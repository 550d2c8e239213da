"""Modules as sides of a comparison: quantized heads, packed weights, and windows beyond a model's positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kullback.errors import ModelError
from kullback.models import Cut, Loading, Run, compare_models, open_model
from kullback.models.huggingface_model import parameter_count
from tests.models.test_compare import CONTEXT, log_softmax, words
from tests.models.tiny import CLASSES, make_model, make_tokenizer

transformers = pytest.importorskip("transformers")


class RoundedToAllRows(nn.Linear):
    """A head whose inputs are rounded to steps of the largest number in all rows, as dynamic quantization does."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        step = input.abs().max() / 15
        return super().forward((input / step).round() * step)


def quantized(model: Any) -> Any:
    torch.backends.quantized.engine = next(
        each for each in torch.backends.quantized.supported_engines if each != "none"
    )
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def rounded(model: Any) -> Any:
    head = RoundedToAllRows(64, CLASSES, bias=False)
    head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head = head
    return model.eval()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_a_head_that_depends_on_all_rows_gets_whole_windows() -> None:
    base, tokenizer = make_model(), make_tokenizer()
    ids = torch.tensor(tokenizer(words(1200))["input_ids"])
    windows = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT).clone()
    windows[:, 0] = tokenizer.bos_token_id
    scored = slice(CONTEXT // 2, CONTEXT - 1)
    for change in (rounded, quantized):
        model = change(make_model())
        with torch.no_grad():
            p, q = (
                log_softmax(
                    np.concatenate([each(row[None]).logits.double().numpy() for row in windows])[:, scored]
                )
                for each in (base, model)
            )
        right = float((np.exp(p) * (p - q)).sum(-1).mean())
        for size in (7 * 4 * CLASSES, 1 << 30):
            found = compare_models(
                base,
                model,
                words(1200),
                loading=Loading(tokenizer=tokenizer),
                cut=Cut(context=CONTEXT),
                run=Run(block_bytes=size, bootstrap=0),
            )
            mean = found.candidates[0].comparison.divergences["kl_pq"].mean
            assert mean == pytest.approx(right, rel=1e-4), (change.__name__, size)


def test_windows_beyond_the_positions_are_refused_in_a_line() -> None:
    tokenizer = make_tokenizer()
    options = {"vocab_size": CLASSES, "bos_token_id": 0, "eos_token_id": 1}
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    models = [
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**options, n_positions=32, n_embd=32, n_layer=1, n_head=2)
        ),
        transformers.OPTForCausalLM(
            transformers.OPTConfig(
                **options, **small, ffn_dim=32, max_position_embeddings=32, word_embed_proj_dim=32
            )
        ),
        transformers.GPTJForCausalLM(
            transformers.GPTJConfig(**options, n_positions=32, n_embd=32, n_layer=1, n_head=2, rotary_dim=8)
        ),
    ]
    for model in models:
        name = type(model).__name__
        with pytest.raises(
            ModelError, match="windows of at most 32 tokens, as many as the model has positions; got 48"
        ) as caught:
            compare_models(
                model,
                model,
                words(1200),
                loading=Loading(tokenizer=tokenizer),
                cut=Cut(context=48),
                run=Run(bootstrap=0),
            )
        assert "\n" not in str(caught.value), name
        assert "--context 32" in str(caught.value), name
        found = compare_models(
            model,
            model,
            words(1200),
            loading=Loading(tokenizer=tokenizer),
            cut=Cut(context=32),
            run=Run(bootstrap=0),
        )
        assert found.candidates[0].comparison.divergences["kl_pq"].mean == 0, name


class Packed(nn.Module):
    """A layer with packed weights, as libraries for quantization store them."""

    def __init__(self, names: tuple[str, str], **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, size in zip(names, (64, 48), strict=True):
            setattr(self, name, size)
        for name, tensor in tensors.items():
            if name.startswith("parameter_"):
                setattr(self, name[10:], nn.Parameter(tensor, requires_grad=False))
            else:
                self.register_buffer(name, tensor)


def four_bits(rows: int, dtype: torch.dtype) -> nn.Parameter:
    """As Params4bit of bitsandbytes: two weights in a byte, bytes in `dtype`, and the shape in `quant_state`."""
    packed = nn.Parameter(torch.zeros(rows, 1, dtype=dtype), requires_grad=False)
    packed.quant_state = SimpleNamespace(shape=torch.Size((48, 64)))
    return packed


def test_packed_weights_are_counted() -> None:
    sizes, other = ("in_features", "out_features"), ("infeatures", "outfeatures")
    weights = 48 * 64
    bytes_of_4_bits = torch.zeros(weights // 2, 1, dtype=torch.uint8)
    in_words = torch.zeros(64 // 8, 48, dtype=torch.int32)
    scales = {"scales": torch.ones(4, 48), "qzeros": torch.zeros(4, 6, dtype=torch.int32)}
    bits4, stored_as_bf16, alone = Packed(sizes), Packed(sizes, bias=torch.zeros(48)), nn.Module()
    bits4.weight, alone.weight = four_bits(weights // 2, torch.uint8), four_bits(weights // 2, torch.uint8)
    stored_as_bf16.weight = four_bits(weights // 4, torch.bfloat16)
    layers = {
        "bitsandbytes": (bits4, weights),
        "bitsandbytes, bfloat16": (stored_as_bf16, weights + 48),
        "bitsandbytes, no sizes": (alone, weights),
        "GPTQ": (Packed(other, qweight=in_words, bias=torch.zeros(48), **scales), weights + 48),
        "AWQ": (Packed(sizes, qweight=torch.zeros(64, 6, dtype=torch.int32), **scales), weights),
        "HQQ": (Packed(sizes, parameter_W_q=bytes_of_4_bits), weights),
        "2 bits": (Packed(sizes, parameter_weight=torch.zeros(weights // 4, dtype=torch.uint8)), weights),
        "int8": (Packed(sizes, parameter_weight=torch.zeros(48, 64, dtype=torch.int8)), weights),
        "plain": (nn.Linear(64, 48), weights + 48),
        "embedding": (nn.Embedding(64, 48), weights),
        "unknown packing": (Packed(("a", "b"), parameter_blocks=bytes_of_4_bits), None),
    }
    for name, (layer, right) in layers.items():
        assert parameter_count(layer) == right, name
        whole = nn.Sequential(layer, nn.LayerNorm(48), nn.BatchNorm1d(48), nn.Sequential(layer))
        assert parameter_count(whole) == (None if right is None else right + 4 * 48), name


@pytest.mark.filterwarnings("ignore")
def test_the_parameters_of_a_dynamically_quantized_model_are_those_of_the_model() -> None:
    model = make_model()
    count = sum(x.numel() for x in model.parameters())
    assert parameter_count(model) == count
    assert parameter_count(quantized(model)) == count
    info = open_model(quantized(model), loading=Loading(tokenizer=make_tokenizer())).info
    assert info.parameters == count
