"""Datasets for distillation in Parquet files: axolotl's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kullback.errors import FileError
from kullback.io import open_top_k
from tests.refusals import refused

CLASSES = 100


def truth(length: int = 5, k: int = 8, seed: int = 0) -> tuple[list[list[int]], list[list[float]]]:
    logits = 3 * torch.randn(
        length, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    values, ids = logits.log_softmax(-1).topk(k)
    return ids.tolist(), values.tolist()


def axolotl_rows() -> list[dict[str, Any]]:
    rows = []
    for seed in range(2):
        ids, values = truth(3, 4, seed)
        listed = [
            [{"token": f"token_id:{i}", "logprob": x} for i, x in zip(*position, strict=True)]
            for position in zip(ids, values, strict=True)
        ]
        rows.append({"messages": "a", "llm_text_generation_vllm_logprobs": [None, *listed]})
    return rows


def store(rows: list[dict[str, Any]], path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_axolotl_rows_are_sequences(suffix: str, tmp_path: Path) -> None:
    with open_top_k(store(axolotl_rows(), tmp_path / f"x{suffix}")) as source:
        block = next(source.blocks())
        assert (source.format, source.skipped) == ("axolotl", 2)
    assert block.sequences.tolist() == [0, 0, 0, 1, 1, 1]
    assert block.positions.tolist() == [1, 2, 3] * 2
    ids, values = truth(3, 4, 1)
    assert block.top_indices[3:].tolist() == ids
    torch.testing.assert_close(block.top_log_probs[3:], torch.tensor(values))
    assert block.labels.unique().tolist() == [-100]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_axolotl_lists_of_numbers_and_a_field_of_another_name(suffix: str, tmp_path: Path) -> None:
    ids, values = truth(3, 4)
    row = {"target_token_ids": ids, "logprobs": values, "target_mask": [[1] * 4, [0] * 4, [1] * 4]}
    with open_top_k(store([row], tmp_path / f"x{suffix}")) as source:
        block = next(source.blocks())
        assert (source.format, source.skipped) == ("axolotl", 1)
    assert block.top_indices.tolist() == [ids[0], ids[2]]
    other = {"target_token_ids": ids, "teacher": values}
    with open_top_k(store([other], tmp_path / f"y{suffix}"), key="teacher") as source:
        assert next(source.blocks()).top_indices.tolist() == ids


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"logprobs": [[-1.0]], "target_token_ids": [[1, 2]]}, {}, "one length; got 2 in target_token_ids, 1"),
        ({"logprobs": [[-1.0]], "target_token_ids": []}, {}, "1 in logprobs, 0 in target_token_ids at line 1"),
        ({"a": [[{"token": "the", "logprob": -1.0}]]}, {"key": "a"}, "wanted tokens=, .*position 0"),
        ({"a": [[{"token": "token_id:1"}]]}, {"key": "a"}, "a log-probability, a number; got None"),
        ({"a": 3}, {"key": "a"}, "a, a list; got 3"),
        ({"a": []}, {"key": "b"}, "a field 'b'; got none, or null.*logprobs_field"),
        ({"meta_info": {}}, {"format": "sglang", "key": "b"}, "no key= for sglang; got key='b'"),
    ],
)  # fmt: skip
def test_axolotl_rows_of_another_form_are_refused(
    row: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(FileError, match=message),
        open_top_k(store([row], tmp_path / "x.jsonl"), **options) as source,
    ):
        list(source.blocks())


def test_a_parquet_file_of_something_else_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    with refused(FileError, wanted="log-probabilities in the form of ", got="^fields x at row 0"):
        open_top_k(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1nonsense")
    with refused(FileError, wanted="^a Parquet file"):
        open_top_k(tmp_path / "x.parquet")
