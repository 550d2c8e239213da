"""Cost of `compare_models` relative to running the two models alone, and cost of a reference file.

Creates two random Llamas of the shape of Llama-3.2-1B, with 128,256 classes. Alternately runs both over a text and
compares them, each time in a separate process. Then records a reference and reads it. Times are CPU times, so that
other programs change little.

    python benchmarks/compare_models.py            # some minutes
    python benchmarks/compare_models.py --quick
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the tiny tokenizer of the tests

import torch

RESULT = Path(__file__).parent / "results" / "compare_models.json"
CLASSES, CONTEXT, WINDOWS, HIDDEN, LAYERS = 128_256, 512, 1, 2048, 16
ROUNDS = 3
BLOCK_BYTES = 40 * 1024 * 1024


def make_folders(folder: Path, *, hidden: int, layers: int) -> None:
    from tests.models.tiny import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=CLASSES, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 256), max_position_embeddings=CONTEXT,
        initializer_range=0.05, bos_token_id=0, eos_token_id=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tokenizer = make_tokenizer()
    for name in ("base", "near"):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1 + 0.01 * torch.randn_like(weight))


def text() -> str:
    from tests.models import tiny

    return 3 * tiny.text()


def measure(way: str, folder: Path) -> dict[str, float]:
    """Run one way in this process, and return seconds of the processor without loading, and the peak memory in MiB."""
    from kullback.models import Cut, compare_models, open_model, record_reference
    from kullback.models.text import take_texts

    models = [open_model(folder / name) for name in ("base", "near")]
    begun = time.process_time()
    if way == "alone":
        windows, _ = Cut(context=CONTEXT, most_windows=WINDOWS).windows(
            models[0], take_texts("bench", text())
        )
        for model in models:
            for block in model.logits(windows, BLOCK_BYTES // (4 * CLASSES)):
                del block
    elif way == "compare":
        compare_models(models[0], models[1], text(), cut=Cut(context=CONTEXT, most_windows=WINDOWS))
    else:
        record_reference(
            models[0], text(), folder / "base.klref", cut=Cut(context=CONTEXT, most_windows=WINDOWS)
        )
    seconds = time.process_time() - begun
    return {"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def read_reference(path: Path) -> dict[str, float]:
    from kullback.io import Reference

    best = float("inf")
    with Reference(path) as reference:
        rows = reference.rows
        for _ in range(20):
            begun = time.process_time()
            for block in reference.blocks():
                del block
            best = min(best, time.process_time() - begun)
    size = path.stat().st_size
    return {"bytes_per_row": size / rows, "mb_per_second": size / 1e6 / best, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Cost of compare_models relative to running the models alone."
    )
    parser.add_argument("--quick", action="store_true", help="one round of a small model")
    parser.add_argument("--way", nargs=2, metavar=("WAY", "FOLDER"))
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way[0], Path(options.way[1]))))
        return
    hidden, layers, rounds = (256, 2, 1) if options.quick else (HIDDEN, LAYERS, ROUNDS)
    found: dict[str, list[dict[str, float]]] = {"alone": [], "compare": [], "record": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folders(folder, hidden=hidden, layers=layers)
        for _ in range(rounds):
            for way, results in found.items():
                command = [sys.executable, __file__, "--way", way, str(folder)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
        reading = read_reference(folder / "base.klref")
    seconds = {way: statistics.median(each["seconds"] for each in results) for way, results in found.items()}
    peaks = {way: statistics.median(each["peak_mib"] for each in results) for way, results in found.items()}
    result: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "classes": CLASSES, "context": CONTEXT, "windows": WINDOWS, "hidden": hidden, "layers": layers,
        "seconds": seconds,
        "compare_over_alone": seconds["compare"] / seconds["alone"],
        "compare_beyond_alone_mib": peaks["compare"] - peaks["alone"],
        "record_over_half_alone": 2 * seconds["record"] / seconds["alone"],
        "reference": reading,
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    if not options.quick:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
