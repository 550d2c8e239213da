"""Train a small byte-level language model on real text, round it to int8, and write both models' logits.

The text is Python's own help: the `pydoc_data.topics` pages, some 450 KB of the language reference in English
prose, which come with every Python. Every tenth page is for testing. The model is a two-layer causal transformer over
bytes. Its weights are then rounded to int8, one scale per output channel, and both models predict the next byte at
4096 positions of the test text. `kullback compare` reads the files:

    float32.npy, int8.npy   logits, float16, shape (4096, 256)
    labels.npy              the true next byte, uint8, shape (4096,)
    windows.npy             which window of 128 consecutive bytes a row belongs to, int16, shape (4096,)
    bytes.json              the text of each class: the character of a byte

Run it with `python examples/train_byte_models.py`; it takes some minutes on two cores.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONTEXT = 128  # bytes the model sees
CLASSES = 256  # one class per byte value
WIDTH, HEADS, LAYERS = 128, 4, 2
HELD_OUT_WINDOWS = 32
BATCH = 32


def split_text() -> tuple[Tensor, Tensor]:
    """Training and test bytes: every tenth help page, in alphabetical order, is for testing."""
    pages = [topics[name].encode() for name in sorted(topics)]
    training = b"\n".join(page for i, page in enumerate(pages) if i % 10)
    held_out = b"\n".join(pages[::10])
    return as_bytes(training), as_bytes(held_out)


def as_bytes(text: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(text, dtype=np.uint8).astype(np.int64))


class Block(nn.Module):
    """Pre-norm causal self-attention followed by a two-layer perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.attention_in(self.attention_norm(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class ByteModel(nn.Module):
    """Bytes of shape (B, T) to next-byte logits of shape (B, T, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.byte = nn.Embedding(CLASSES, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, text: Tensor) -> Tensor:
        x = self.byte(text) + self.position(torch.arange(text.shape[-1]))
        return self.head(self.norm(self.blocks(x)))


def train(model: ByteModel, text: Tensor, steps: int, generator: torch.Generator) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.05)
    window = torch.arange(CONTEXT + 1)
    for step in range(1, steps + 1):
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        batch = text[starts + window]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step:5d}  training cross-entropy {loss.item():.4f} nats per byte", flush=True)


def rounded_to_int8(weight: Tensor) -> Tensor:
    """The weight (out, in) after rounding to int8 times one scale per output channel."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    codes = torch.round(weight / scale).to(torch.int8)
    return codes * scale


def quantized(model: ByteModel) -> ByteModel:
    """A copy whose linear and embedding weights are rounded to int8; norms and biases stay float32."""
    rounded = copy.deepcopy(model)
    for module in rounded.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data = rounded_to_int8(module.weight.data)
    return rounded


def held_out_windows(text: Tensor) -> Tensor:
    """Windows of CONTEXT + 1 bytes, evenly spread over the test text: shape (windows, CONTEXT + 1)."""
    starts = torch.linspace(0, len(text) - CONTEXT - 1, HELD_OUT_WINDOWS).long()
    return text[starts.unsqueeze(1) + torch.arange(CONTEXT + 1)]


@torch.inference_mode()
def predict(model: ByteModel, windows: Tensor) -> Tensor:
    """Next-byte logits at every position of every window, one row each, as float16."""
    return model.eval()(windows[:, :-1]).flatten(0, 1).half()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train a byte model, round it to int8, write both models' logits."
    )
    parser.add_argument("--steps", type=int, default=1500, help="training steps, at least 40 (default 1500)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the batches (default 0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data", help="folder to write to")
    arguments = parser.parse_args()
    if arguments.steps < 40:
        parser.error(f"--steps {arguments.steps} is too few for the learning rate to rise and fall again")

    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    training, held_out = split_text()
    model = ByteModel()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}")
    print(f"{len(training):,} training bytes, {len(held_out):,} held-out bytes, {parameters:,} parameters")
    train(model, training, arguments.steps, generator)

    windows = held_out_windows(held_out)
    labels = windows[:, 1:].flatten()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, candidate in {"float32": model, "int8": quantized(model)}.items():
        logits = predict(candidate, windows)
        np.save(arguments.out / f"{name}.npy", logits.numpy())
        cross_entropy = F.cross_entropy(logits.double(), labels).item()
        print(f"{name:8s} held-out cross-entropy {cross_entropy:.6f} nats per byte")
    np.save(arguments.out / "labels.npy", labels.numpy().astype(np.uint8))
    np.save(arguments.out / "windows.npy", np.repeat(np.arange(len(windows), dtype=np.int16), CONTEXT))
    characters = [chr(byte) if byte < 128 else f"byte {byte}" for byte in range(256)]
    (arguments.out / "bytes.json").write_text(json.dumps(characters) + "\n")


if __name__ == "__main__":
    main()
