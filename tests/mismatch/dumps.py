"""Tiny runs of a bigram engine and trainer with truncated sampling, and their dumps in the formats of the field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kullback.functional import SamplingLogProbs, sampling_log_probs

WORDS, PROMPT = 6, 3


@dataclass(frozen=True)
class Run:
    """A run: bigram logits of the engine, of the trainer and of the trainer with the old weights, and the tokens.

    Attributes:
        prompts: the number of each sequence's prompt.
        tokens: prompts of `PROMPT` tokens, and sampled tokens, shape (sequences, tokens).
        mask: True for the sampled tokens.
        sampled, trained, old: the results of `sampling_log_probs` for all tokens.
    """

    prompts: Tensor
    tokens: Tensor
    mask: Tensor
    sampled: SamplingLogProbs
    trained: SamplingLogProbs
    old: SamplingLogProbs

    def columns(self) -> dict[str, list[Any]]:
        """The rows of the plain format, with every field."""
        sequences, places = self.mask.nonzero().T
        logs = {
            "sampler_log_prob": self.sampled.log_probs,
            "trainer_log_prob": self.trained.log_probs,
            "sampler_log_mass": self.sampled.log_mass,
            "trainer_log_mass": self.trained.log_mass,
            "trainer_log_prob_old": self.old.log_probs,
            "old_log_mass": self.old.log_mass,
        }
        return {
            "sequence": sequences.tolist(),
            "position": (places - PROMPT).tolist(),
            "prompt": self.prompts[sequences].tolist(),
            **{name: x[self.mask].tolist() for name, x in logs.items()},
        }


def tiny_run(seed: int = 0, prompts: int = 12, samples: int = 3, top_k: int = 4) -> Run:
    generator = torch.Generator().manual_seed(seed)
    old, update = torch.randn(2, WORDS, WORDS, generator=generator, dtype=torch.float64)
    engine = (16 * old).round() / 16  # a coarse dtype
    trainer = old + 0.1 * update
    number = torch.arange(prompts).repeat_interleave(samples)
    heads = torch.randint(WORDS, (prompts, PROMPT), generator=generator)[number]
    lengths = torch.randint(2, 12, (len(number),), generator=generator)
    tokens = torch.cat([heads, torch.zeros(len(number), 12, dtype=torch.long)], -1)
    kept = sampling_log_probs(engine, engine.argmax(-1), top_k=top_k).kept
    chances = torch.where(kept, engine, -torch.inf).softmax(-1)
    for place in range(PROMPT, tokens.shape[1]):
        row = chances[tokens[:, place - 1]]
        tokens[:, place] = torch.multinomial(row, 1, generator=generator)[:, 0]
    places = torch.arange(tokens.shape[1])
    mask = (places >= PROMPT) & (places < PROMPT + lengths[:, None])
    before = tokens.roll(1, -1)
    sides = [
        sampling_log_probs(x[before], tokens, kept=kept[before], mask=mask) for x in (engine, trainer, old)
    ]
    return Run(number, tokens, mask, *sides)


def write_prime_rl(run: Run, folder: Path, steps: int = 2) -> Path:
    """Write the run as prime-rl's token exports, and return the folder of the run."""
    lists = zip(
        run.tokens.tolist(),
        run.mask.long().tolist(),
        run.sampled.log_probs.tolist(),
        run.trained.log_probs.tolist(),
        strict=True,
    )
    records = [
        {
            "schema_version": 1,
            "step": index % steps,
            "rank": 0,
            "env_name": ("math", "code")[index % 2],
            "token_ids": ids,
            "position_ids": list(range(len(ids))),
            "loss_mask": mask,
            "inference_logprobs": sampler,
            "trainer_logprobs": trainer,
            "advantages": None,
        }
        for index, (ids, mask, sampler, trainer) in enumerate(lists)
    ]
    for step in range(steps):
        path = folder / "token_exports" / f"step_{step}" / "rank_0.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in records if each["step"] == step))
        (path.parent / "STABLE").touch()
    return folder


def write_nemo_rl(run: Run, folder: Path) -> Path:
    """Write the run as NeMo-RL's training data, and return the folder."""
    folder.mkdir(exist_ok=True)
    lists = zip(
        run.tokens.tolist(),
        run.mask.long().tolist(),
        run.sampled.log_probs.tolist(),
        run.trained.log_probs.tolist(),
        strict=True,
    )
    lines = [
        json.dumps(
            {
                "content": "",
                "rewards": 0.0,
                "input_lengths": len(ids),
                "token_ids": ids,
                "token_loss_mask": mask,
                "sample_loss_mask": 1.0,
                "generation_logprobs": sampler,
                "prev_logprobs": trainer,
            }
        )
        for ids, mask, sampler, trainer in lists
    ]
    (folder / "train_data_step7.jsonl").write_text("\n".join(lines))
    return folder


def write_rows(columns: dict[str, list[Any]], path: Path) -> Path:
    """Write the plain format as JSONL or Parquet."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), path)
        return path
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    return path
