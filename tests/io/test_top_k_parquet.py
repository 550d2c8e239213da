"""Datasets for distillation: DistillKit's, packed here bit by bit, and axolotl's."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from kullback.errors import FileError
from kullback.io import open_top_k

CLASSES = 100  # 7 bits


def truth(length: int = 5, k: int = 8, seed: int = 0) -> tuple[list[list[int]], list[list[float]]]:
    logits = 3 * torch.randn(
        length, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    values, ids = logits.log_softmax(-1).topk(k)
    return ids.tolist(), values.tolist()


def bits(numbers: list[int], width: int) -> bytes:
    """Numbers of so many bits, the highest first, the last byte filled with zeros."""
    text = "".join(f"{number:0{width}b}" for number in numbers)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


def floats(values: list[float], dtype: str) -> tuple[bytes, list[float]]:
    """The bytes of values in a dtype, and the values that these stand for."""
    if dtype == "bfloat16":
        data = b"".join(struct.pack("<f", x)[2:] for x in values)  # toward zero
        return data, [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    form = {"float16": "e", "float32": "f", "float64": "d"}[dtype]
    data = struct.pack(f"<{len(values)}{form}", *values)
    return data, list(struct.unpack(f"<{len(values)}{form}", data))


def pack(row: list[float], config: dict[str, Any]) -> tuple[bytes, list[float]]:
    """The bytes of one position, and the log-probabilities that they stand for."""
    delta = config.get("delta_encoding", True)
    values = [x - y for x, y in zip(row, [0.0, *row[:-1]], strict=True)] if delta else row
    exact_k, k = config["exact_k"], config["k"]
    data, kept = floats(values[:exact_k], config.get("exact_dtype", "float32"))
    rest = values[exact_k:]
    fit = [0.0] * len(rest)
    if terms := config.get("polynomial_terms"):
        n = len(rest)
        t = [i / (n - 1) if config.get("normalize_t") else float(i) for i in range(n)]
        named = {"sqrt": math.sqrt, "exp": math.exp}
        columns = [[named[term](x) if term in named else x**term for x in t] for term in terms]
        solved = np.linalg.lstsq(np.array(columns).T, np.array(rest), rcond=None)[0]
        more, coefficients = floats(solved.tolist(), config.get("term_dtype", "float32"))
        data += more
        fit = [
            math.fsum(c * x for c, x in zip(coefficients, at, strict=True))
            for at in zip(*columns, strict=True)
        ]
    at = 0
    for part in config["residual_bins"]:
        count, width = part["num_elements"], part["element_bits"]
        missed = [x - y for x, y in zip(rest[at : at + count], fit[at : at + count], strict=True)]
        half = 2 ** (width - 1)
        more, (scale,) = floats([max(map(abs, missed)) / half or 1.0], part["scale_dtype"])
        if width == 1:
            codes = [int(x > 0) for x in missed]
            steps = [2 * code - 1 for code in codes]
        else:
            steps = [min(max(round(x / scale), -half), half - 1) for x in missed]
            codes = [step + half for step in steps]
        data += more + bits(codes, width)
        fit[at : at + count] = [x + s * scale for x, s in zip(fit[at : at + count], steps, strict=True)]
        at += count
    stored = kept + fit
    assert len(stored) == k
    return data, np.cumsum(stored).tolist() if delta else stored


CONFIGS: dict[str, dict[str, Any]] = {
    "exact": {"d": CLASSES, "k": 8, "exact_k": 8, "residual_bins": []},
    "exact, no differences": {
        "d": CLASSES, "k": 8, "exact_k": 8, "exact_dtype": "float64", "residual_bins": [], "delta_encoding": False,
    },
    "recommended": {
        "d": CLASSES, "k": 8, "exact_k": 2, "exact_dtype": "bfloat16", "polynomial_terms": [0, 1, 2, "sqrt"],
        "term_dtype": "float32", "residual_bins": [], "error_diffusion": False,
    },
    "residuals": {
        "d": CLASSES, "k": 8, "exact_k": 1, "polynomial_terms": [0, 1], "delta_encoding": False, "normalize_t": True,
        "residual_bins": [
            {"scale_dtype": "float16", "element_bits": 5, "num_elements": 3},
            {"scale_dtype": "float32", "element_bits": 1, "num_elements": 2},
        ],
    },
    "residuals alone": {
        "d": CLASSES, "k": 8, "exact_k": 3, "exact_dtype": "float16", "polynomial_terms": None,
        "residual_bins": [{"scale_dtype": "bfloat16", "element_bits": 12, "num_elements": 5}],
    },
}  # fmt: skip


def write(
    folder: Path, config: dict[str, Any], lengths: list[int], files: int = 1
) -> list[tuple[list[list[int]], list[list[float]]]]:
    """A packed dataset with texts of these lengths; returns the tokens and log-probabilities that it holds."""
    folder.mkdir(exist_ok=True)
    (folder / "compression_config.yaml").write_text(yaml.safe_dump(config))
    held, rows = [], []
    width = math.ceil(math.log2(config["d"]))
    for seed, length in enumerate(lengths):
        ids, values = truth(length, config["k"], seed)
        packed = [pack(row, config) for row in values]
        held.append((ids, [stored for _, stored in packed]))
        rows.append(
            {
                "input_ids": [7, *(row[seed % 8] for row in ids)],
                "compressed_logprobs": [list(data) for data, _ in packed],
                "bytepacked_indices": [list(bits(row, width)) for row in ids],
            }
        )
    schema = pa.schema(
        [
            ("input_ids", pa.list_(pa.uint64())),
            ("compressed_logprobs", pa.list_(pa.list_(pa.uint8()))),
            ("bytepacked_indices", pa.list_(pa.list_(pa.uint8()))),
        ]
    )
    for number in range(files):
        table = pa.Table.from_pylist(rows[number::files], schema)
        pq.write_table(table, folder / f"data_{number}.parquet", row_group_size=2)
    return held


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_distillkit_rows_are_unpacked(config: dict[str, Any], tmp_path: Path) -> None:
    held = write(tmp_path / "set", config, [5, 3, 6])
    dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}.get(
        config.get("exact_dtype", ""), torch.float32
    )
    with open_top_k(tmp_path / "set") as source:
        assert source.describe() == f"distillkit, 8 listed, {CLASSES} classes"
        block = next(source.blocks(rows=100))
        assert bool(source.caveats()) == (config["exact_k"] < 8)
    assert block.sequences.tolist() == [0] * 5 + [1] * 3 + [2] * 6
    assert block.positions.tolist() == [1, 2, 3, 4, 5, 1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert block.indices.tolist() == [row for ids, _ in held for row in ids]
    expected = torch.tensor([row for _, values in held for row in values], dtype=torch.float64)
    assert block.log_probs.dtype == dtype
    torch.testing.assert_close(
        block.log_probs.double(), expected.to(dtype).double(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5
    )
    # The token after the last distribution is the padding that DistillKit appends.
    true = [row[i] for i, (ids, _) in enumerate(held) for row in [*ids[:-1], [-100] * 3]]
    assert block.labels.tolist() == true
    assert block.label_log_probs[0].item() == block.log_probs[0, 0].item()


def test_distillkit_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    held = write(tmp_path / "set", CONFIGS["exact"], [1] * 11, files=11)
    for number in range(11):
        (tmp_path / "set" / f"data_{number}.parquet").rename(tmp_path / "set" / f"data-{number}.parquet")
    with open_top_k(tmp_path / "set") as source:
        block = next(source.blocks(rows=100))
        assert block.indices.tolist() == [ids[0] for ids, _ in held]
        assert block.sequences.tolist() == list(range(11))
    with open_top_k(tmp_path / "set" / "data-10.parquet") as source:
        assert next(source.blocks()).indices.tolist() == held[10][0]


def test_a_long_text_is_unpacked_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = write(tmp_path / "set", CONFIGS["exact"], [9])
    monkeypatch.setattr("kullback.io.top_k.distillkit.PIECE", 2)
    with open_top_k(tmp_path / "set") as source:
        block = next(source.blocks(rows=100))
        (tokens,) = source.token_ids()
        assert tokens.tolist() == [7, *(row[0] for row in held[0][0][:8])]
    assert block.indices.tolist() == held[0][0]
    assert block.positions.tolist() == list(range(1, 10))
    assert block.labels.tolist()[:8] == [row[0] for row in held[0][0]][:8]


def test_distillkit_rows_without_packing(tmp_path: Path) -> None:
    ids, values = truth(4)
    table = {
        "token_ids": pa.array([ids], pa.list_(pa.list_(pa.uint32()))),
        "top_values": pa.array([values], pa.list_(pa.list_(pa.float32()))),
        "input_ids": pa.array([[1, 2, 3, 4, 5]]),
    }
    pq.write_table(pa.table(table), tmp_path / "data_0.parquet")
    with open_top_k(tmp_path) as source:
        block = next(source.blocks())
        assert source.format == "distillkit"
    assert block.indices.tolist() == [
        [*row, *([label] if label_at else [])]
        for row, label, label_at in zip(ids, [2, 3, 4, -100], [0] * 4, strict=True)
    ]
    torch.testing.assert_close(block.log_probs, torch.tensor(values))
    assert block.labels.tolist() == [2, 3, 4, -100]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 300}, r"lists of 9 numbers in bytepacked_indices, as .*\.yaml says; got lists of 7 in row 0"),
        ({"k": 7, "exact_k": 7}, "lists of 28 numbers in compressed_logprobs"),
        ({"d": 1}, "wanted d: an integer from 2 to"),
        ({"k": 2**40}, "wanted k: an integer from 1 to"),
        ({"exact_k": 9}, "wanted exact_k: an integer from 0 to 8; got 9"),
        ({"exact_dtype": "int8"}, "wanted exact_dtype: one of float16, bfloat16"),
        ({"polynomial_terms": ["cos"]}, "wanted polynomial_terms: powers, 'sqrt' or 'exp'"),
        ({"polynomial_terms": 3}, "wanted polynomial_terms: a list"),
        ({"residual_bins": [{"element_bits": 0}]}, "wanted element_bits: an integer from 1 to 64; got 0"),
        ({"residual_bins": [{"element_bits": 2, "num_elements": 3}]}, "at most k - exact_k = 0 elements"),
        ({"delta_encoding": "yes"}, "wanted delta_encoding: true or false"),
        ({"exact_dtype": "float16"}, "lists of 16 numbers in compressed_logprobs"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "set", CONFIGS["exact"], [2])
    path = tmp_path / "set" / "compression_config.yaml"
    path.write_text(yaml.safe_dump({**CONFIGS["exact"], **change}))
    with pytest.raises(FileError, match=message), open_top_k(tmp_path / "set") as source:
        list(source.blocks())


def test_a_dataset_without_its_configuration_says_so(tmp_path: Path) -> None:
    write(tmp_path / "set", CONFIGS["exact"], [2])
    path = tmp_path / "set" / "compression_config.yaml"
    for text in ("- 1", "a: [", "3"):
        path.write_text(text)
        with pytest.raises(FileError, match=r"compression_config\.yaml: wanted "):
            open_top_k(tmp_path / "set")
    path.unlink()
    with pytest.raises(FileError, match=r"wanted compression_config\.yaml beside the Parquet files"):
        open_top_k(tmp_path / "set")


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    (tmp_path / "compression_config.yaml").write_text(yaml.safe_dump(CONFIGS["exact"]))
    ids, values = truth(2)
    good = [list(pack(row, CONFIGS["exact"])[0]) for row in values]
    index = [list(bits(row, 7)) for row in ids]
    for logs, message in [
        ([good, None], r"a list in compressed_logprobs; got null in row 1"),
        ([good, [good[0], None]], "numbers in compressed_logprobs; got null in row 1"),
        ([good, [good[0]]], r"as many positions .*got \(1, 32\) and \(2, 7\) in row 1"),
        (
            [good, [good[0], good[1][:-1]]],
            "lists of 32 numbers in compressed_logprobs.*lists of 31, 32 in row 1",
        ),
        ([good, [good[0], [999] * 32]], "bytes, integers from 0 to 255; got others in row 1"),
    ]:
        table = {
            "compressed_logprobs": pa.array(logs, pa.list_(pa.list_(pa.int32()))),
            "bytepacked_indices": pa.array([index] * 2, pa.list_(pa.list_(pa.uint8()))),
        }
        pq.write_table(pa.table(table), tmp_path / "x.parquet")
        with pytest.raises(FileError, match=message), open_top_k(tmp_path / "x.parquet") as source:
            list(source.blocks())
    pq.write_table(pa.table({"packed_indices": [1]}), tmp_path / "x.parquet")
    with pytest.raises(FileError, match=r"columns compressed_logprobs and .*got columns packed_indices"):
        open_top_k(tmp_path / "x.parquet", "distillkit")


# --- axolotl


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
    assert block.indices[3:].tolist() == ids
    torch.testing.assert_close(block.log_probs[3:], torch.tensor(values))
    assert block.labels.unique().tolist() == [-100]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_axolotl_lists_of_numbers_and_a_field_of_another_name(suffix: str, tmp_path: Path) -> None:
    ids, values = truth(3, 4)
    row = {"target_token_ids": ids, "logprobs": values, "target_mask": [[1] * 4, [0] * 4, [1] * 4]}
    with open_top_k(store([row], tmp_path / f"x{suffix}")) as source:
        block = next(source.blocks())
        assert (source.format, source.skipped) == ("axolotl", 1)
    assert block.indices.tolist() == [ids[0], ids[2]]
    other = {"target_token_ids": ids, "teacher": values}
    with open_top_k(store([other], tmp_path / f"y{suffix}"), key="teacher") as source:
        assert next(source.blocks()).indices.tolist() == ids


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"logprobs": [[-1.0]], "target_token_ids": [[1, 2]]}, {}, "as target_token_ids, 2; got 1"),
        ({"logprobs": [[-1.0]], "target_token_ids": []}, {}, "as many rows of target_token_ids .*1; got 1 and 0"),
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
    with pytest.raises(FileError, match=r"log-probabilities in the form of .*got fields x at row 0"):
        open_top_k(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1nonsense")
    with pytest.raises(FileError, match="wanted a Parquet file"):
        open_top_k(tmp_path / "x.parquet")
