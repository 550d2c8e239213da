"""Folders of tiny models that several tests read; made once for each process."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.models.tiny import make_folder


@cache
def root() -> Path:
    return Path(tempfile.mkdtemp(prefix="kullback-models-"))


@cache
def base() -> Path:
    return make_folder(root() / "base")


@cache
def int8() -> Path:
    return make_folder(root() / "int8", int8=True)


@cache
def bf16() -> Path:
    return make_folder(root() / "bf16", dtype=torch.bfloat16)


@cache
def padded() -> Path:
    """The base with 40 more classes that stand for no token."""
    return _with_head(base(), root() / "padded", _pad)


@cache
def unpadded() -> Path:
    """The base without the classes that stand for no token."""
    return _with_head(base(), root() / "unpadded", lambda weight: weight[:500].clone())


@cache
def shuffled() -> Path:
    """The base with the classes of its tokens in another order."""
    folder = _with_head(base(), root() / "shuffled", _shuffle)
    order = _order()
    path = folder / "tokenizer.json"
    held = json.loads(path.read_text())
    held["model"]["vocab"] = {name: order[number] for name, number in held["model"]["vocab"].items()}
    for token in held["added_tokens"]:
        token["id"] = order[token["id"]]
    for special in held["post_processor"]["special_tokens"].values():
        special["ids"] = [order[number] for number in special["ids"]]
    path.write_text(json.dumps(held))
    return folder


@cache
def other_tokenizer() -> Path:
    """A model whose tokenizer cuts texts into other tokens."""
    return make_folder(root() / "other", tokens=400)


def _order() -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return torch.randperm(512, generator=generator).tolist()


def _pad(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([weight, 0.01 * torch.ones(40, weight.shape[1])])


def _shuffle(weight: torch.Tensor) -> torch.Tensor:
    moved = torch.empty_like(weight)
    moved[_order()] = weight
    return moved


def _with_head(source: Path, folder: Path, change: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(source, folder)
    model = LlamaForCausalLM.from_pretrained(source)
    weights = {
        name: change(weight) if weight.ndim == 2 and weight.shape[0] == 512 and "lm_head" in name else weight
        for name, weight in model.state_dict().items()
    }
    weights["model.embed_tokens.weight"] = change(model.state_dict()["model.embed_tokens.weight"])
    config = LlamaConfig.from_pretrained(source)
    config.vocab_size = len(weights["lm_head.weight"])
    changed = LlamaForCausalLM(config)
    changed.load_state_dict(weights)
    changed.save_pretrained(folder)
    return folder
