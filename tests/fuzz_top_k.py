"""Damaged files of top-k log-probabilities, for `tests.fuzz`: of every format, damaged as bytes or as JSON."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kullback.errors import KullbackError
from kullback.functional import TopK
from kullback.io import open_top_k
from kullback.io.top_k import TOP_K_FORMATS
from tests.io import test_top_k as servers, test_top_k_parquet as datasets

Damage = Callable[[bytes, random.Random], bytes]
Change = Callable[[Any, random.Random], Any]


def write_seeds(folder: Path) -> list[Path]:
    """Write sound files of every format, those of several files as folders."""
    for name, server in servers.STORED.items():
        responses = [server.write(servers.truth(seed)) for seed in range(2)]
        (folder / f"{name}.json").write_text(json.dumps(responses))
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, responses)))
    for suffix in (".jsonl", ".parquet"):
        datasets.store(datasets.axolotl_rows(), folder / f"axolotl{suffix}")
    values, indices = torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(0)).topk(3)
    log_probs = values - 9
    from safetensors.torch import save_file

    save_file({"indices": indices, "log_probs": log_probs}, folder / "plain.safetensors", {"classes": "20"})
    labels = indices[..., 0].clone()
    tail = torch.log1p(-log_probs.double().exp().sum(-1))
    torch.save(
        {"indices": indices, "log_probs": log_probs, "labels": labels, "log_tail": tail}, folder / "plain.pt"
    )
    batch = {"teacher_topk_logits": values, "teacher_topk_indices": indices, "input_ids": labels}
    torch.save({**batch, "input_lengths": torch.tensor([4, 2])}, folder / "nemo.pt")
    (folder / "mlx" / "train").mkdir(parents=True)
    for i in range(2):
        save_file(
            {"logits": values.bfloat16(), "indices": indices.int()},
            folder / "mlx" / "train" / f"{i:010d}.safetensors",
        )
    return sorted(folder.iterdir())


def fuzz_one(seed: int, sound: list[Path], folder: Path, damage: Damage, change: Change) -> None:
    """Damage one file, and read it: what comes out is valid, or an error says in one line why nothing does."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    origin = rng.choice(sound)
    path = folder / f"f{origin.suffix}"
    shutil.rmtree(path, ignore_errors=True)
    if origin.is_dir():
        shutil.copytree(origin, path)
        file = rng.choice(sorted(each for each in path.rglob("*") if each.is_file()))
        file.write_bytes(damage(file.read_bytes(), rng))
    elif origin.suffix == ".json" and rng.random() < 0.7:
        held = json.loads(origin.read_text())
        for _ in range(rng.choice((1, 1, 2, 5))):
            held = change(held, rng)
        path.write_text(json.dumps(held))
    else:
        path.write_bytes(damage(origin.read_bytes(), rng))
    wanted = rng.choice((None, None, None, rng.choice([*TOP_K_FORMATS])))
    tokens = rng.choice((servers.TOKENS, None))
    try:
        with open_top_k(path, wanted, tokens=tokens, classes=rng.choice((None, 40, 10**6))) as source:
            for block in source.blocks(rows=rng.choice((1, 3, 1000))):
                TopK(block.top_indices, block.top_log_probs, tail=source.tail)
                assert source.tail == "renormalize" or not bool(block.tail_log_mass.isnan().any())
                assert not bool((block.label_log_probs > 1e-2).any())
            for tokens in source.token_ids():
                assert tokens is None or tokens.dtype == torch.int64
            source.caveats()
            source.describe()
    except KullbackError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 5000:
            raise AssertionError(f"an error of {len(text)} characters: {text[:200]!r}") from None
