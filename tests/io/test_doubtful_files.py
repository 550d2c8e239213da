"""Files that could be read in two ways, or not to their end: each is refused, and the remedy works."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from kullback.errors import FileError
from kullback.io import open_rows, open_top_k, read_clusters, read_labels, write_llama_base
from tests.refusals import refused

ROWS = np.array([[0.5, -1.0, 2.0], [1.5, 0.0, -0.25], [3.0, 1.0, 1.0]])


def read(path: Path, representation: str | None = "logits") -> list[list[float]]:
    with open_rows(path, representation=representation) as source:
        return torch.cat(list(source.blocks())).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,2\n0.5,-1,2\n", "got 0 to 2 in order"),
        ("1,2,3\n0.5,-1,2\n", "got whole numbers above others"),
        ("17,402,50256\n0.5,-1,2\n", "got whole numbers above others"),
        ('"1","2","3"\n"0.5","-1","2"\n', "got numbers in quotation marks, as the next line has"),
    ],
    ids=["counted from 0", "counted from 1", "token ids", "quoted"],
)
def test_a_first_line_of_numbers_that_may_be_names_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(
        FileError, match=rf"{message}, which may be either; name the columns, as c0,c1"
    ) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    path.write_text("c0,c1,c2\n" + text)
    with_first = read(path)
    path.write_text("c0,c1,c2\n" + text.partition("\n")[2])
    assert with_first[1:] == read(path) == [[0.5, -1.0, 2.0]]


@pytest.mark.parametrize(
    "text",
    [
        "0.5,-1,2\n1,2,3\n",
        "1,2,3\n4,5,6\n",
        'a,b,c\n0.5,"-1",2\n',
        '"1","2","3"\n0.5,-1,2\n',
        "1_0,1_1,1_2\n0.5,-1,2\n",
    ],
    ids=["numbers", "whole numbers", "names", "quoted names", "names with digits"],
)
def test_what_can_be_read_in_one_way_alone_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    assert [0.5, -1.0, 2.0] in read(tmp_path / "x.csv") or text.startswith("1,2,3")


def test_several_arrays_in_one_npy_file_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.save(file, ROWS[:2])
        np.save(file, ROWS[2:])
    with pytest.raises(
        FileError, match=r"wanted one array: 176 bytes .* got 328 bytes, .*save numpy.concatenate"
    ):
        read(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.concatenate([ROWS[:2], ROWS[2:]]))
    assert read(tmp_path / "x.npy") == ROWS.tolist()


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
def test_clusters_that_differ_as_text_are_not_merged_as_numbers(tmp_path: Path, suffix: str) -> None:
    ids = ["1_10", "11_0", "110", "1_10"]  # all 110 to Python's int
    path = tmp_path / f"ids{suffix}"
    path.write_text("".join(f"{line}\n" for line in (["id"] if suffix == ".csv" else []) + ids))
    found = read_clusters(path)
    assert found.unique().numel() == 3
    assert found[0] == found[3]
    with refused(FileError, wanted="^whole numbers", got="such as '1_10'"):
        read_labels(path)


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["007", "7", "08", "8", "+8"], 5),
        (["a ", " a", "a"], 3),
        (["7", "7 "], 2),
        (["-0", "0", "0"], 2),
        (["9" * 5000, "9" * 5000], 1),
    ],
    ids=["zeros", "blanks", "number and blank", "minus zero", "long"],
)
def test_clusters_that_differ_in_any_character_are_not_merged(
    tmp_path: Path, suffix: str, ids: list[str], expected: int
) -> None:
    path = tmp_path / f"ids{suffix}"
    path.write_text("".join(f"{line}\n" for line in (["id"] if suffix == ".csv" else []) + ids))
    assert read_clusters(path).unique().numel() == expected


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
def test_labels_may_have_blanks_and_zeros_before_them(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels{suffix}"
    path.write_text(
        "".join(f"{line}\n" for line in (["y"] if suffix == ".csv" else []) + ["007", " 7", "+8 "])
    )
    assert read_labels(path).tolist() == [7, 7, 8]


@pytest.mark.parametrize("read_values", [read_clusters, read_labels])
@pytest.mark.parametrize(
    ("text", "key"),
    [("id,z\n1,1\n,1\n2,1\n2,2\n", "id"), ("id,z\n1,1\n  ,1\n2,1\n", "id"), ("id\n1\n\n2\n", None)],
    ids=["empty", "blank", "empty line"],
)
def test_a_field_without_a_value_is_named(
    tmp_path: Path, read_values: Any, text: str, key: str | None
) -> None:
    (tmp_path / "ids.csv").write_text(text)
    with refused(FileError, wanted="a value in every row", got="none in row 1", instead="fill it"):
        read_values(tmp_path / "ids.csv", key=key)


@pytest.mark.parametrize(
    "ids", [["2020-01-01", "2020-01-02"], ["12:30", "12:31"], ["true", "false"], ["1e5", "1e6"]]
)
def test_ids_of_a_csv_file_are_text_whatever_they_look_like(tmp_path: Path, ids: list[str]) -> None:
    (tmp_path / "ids.csv").write_text("\n".join(["id", *ids, ids[0]]) + "\n")
    a, b, again = read_clusters(tmp_path / "ids.csv").tolist()
    assert a == again != b


@pytest.mark.parametrize(
    "values", [pd.to_datetime(["2020-01-01", "2020-01-02"]), [{"a": 1}, {"a": 2}]], ids=["dates", "structs"]
)
def test_values_that_are_no_ids_are_named(tmp_path: Path, values: Any) -> None:
    pd.DataFrame({"id": values}).to_parquet(tmp_path / "ids.parquet")
    with refused(
        FileError, wanted="^integers or text, the cluster of each row$", got="^(datetime|dict) such as"
    ):
        read_clusters(tmp_path / "ids.parquet")


def test_labels_that_would_have_to_be_unpickled_name_what_to_write(tmp_path: Path) -> None:
    ids = np.array(["a", 1], dtype=object)
    np.save(tmp_path / "ids.npy", ids, allow_pickle=True)
    with refused(FileError, got="^Python objects, which are never unpickled$", instead=r"x.astype\(str\)"):
        read_clusters(tmp_path / "ids.npy")
    np.save(tmp_path / "ids.npy", ids.astype(str))
    assert read_clusters(tmp_path / "ids.npy").tolist() == [1, 0]


def test_the_index_of_a_data_frame_is_no_class(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS, columns=["a", "b", "c"], index=pd.Index([3, 1, 2], name="document"))
    frame.to_parquet(tmp_path / "x.parquet")
    with refused(
        FileError, got="^the index of a pandas DataFrame as column 'document'$", instead="index=False"
    ):
        read(tmp_path / "x.parquet")
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    assert read(tmp_path / "x.parquet") == ROWS.tolist()


def test_negative_integers_have_a_remedy_that_is_not_refused_itself(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, -2]]))
    with pytest.raises(FileError, match="got -2 at row 0, class 1; write the file as floating point"):
        read(tmp_path / "x.npy", None)
    np.save(tmp_path / "x.npy", np.array([[1.0, -2.0]]))
    assert read(tmp_path / "x.npy") == [[1.0, -2.0]]


def test_a_file_of_torch_before_its_zip_format_is_converted_as_the_error_says(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.from_numpy(ROWS), path, _use_new_zipfile_serialization=False)
    with refused(
        FileError, instead=r"convert it: torch.save\(torch.load\(path, weights_only=True\), path\)$"
    ):
        read(path)
    torch.save(torch.load(path, weights_only=True), path)
    assert read(path) == ROWS.tolist()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda x: torch.quantize_per_tensor(x.float(), 0.25, 0, torch.qint8), "x.dequantize()"),
        (lambda x: x.to_sparse(), "x.to_dense()"),
        (lambda x: x + 0j, "x.real.contiguous()"),
        (lambda x: x.to(torch.float8_e5m2), "x.float()"),
    ],
    ids=["quantized", "sparse", "complex", "float8"],
)
def test_tensors_that_are_not_read_name_what_to_save(tmp_path: Path, make: Any, remedy: str) -> None:
    x = make(torch.from_numpy(ROWS))
    torch.save(x, tmp_path / "x.pt")
    with pytest.raises(FileError) as caught:
        read(tmp_path / "x.pt")
    assert remedy in str(caught.value)
    torch.save(eval(remedy, {"x": x}), tmp_path / "x.pt")  # noqa: S307
    assert read(tmp_path / "x.pt") == ROWS.tolist()


INDICES = torch.tensor([[0, 2], [1, 3]])
LOG_PROBS = torch.tensor([[0.5, 0.25], [0.6, 0.3]]).log()


@pytest.mark.parametrize("tail", [0.9, 0.01, 1.0, math.e])
def test_a_mass_outside_the_list_that_does_not_fit_the_list_is_refused(tail: float) -> None:
    held = {"indices": INDICES, "log_probs": LOG_PROBS, "log_tail": torch.tensor([0.25, tail]).log()}
    with refused(
        FileError, wanted="with the mass outside the list, that sum to 1 ", got=" at sequence 0, position 1"
    ):
        list(open_top_k(held).blocks())
    held["log_tail"] = torch.tensor([0.25, 0.1]).log()
    assert next(open_top_k(held).blocks()).tail_log_mass.exp().tolist() == pytest.approx([0.25, 0.1])


def test_all_classes_listed_without_all_mass_are_refused() -> None:
    with refused(FileError, got="^0.75 at ", instead="no other number of classes than there are"):
        list(open_top_k({"indices": torch.tensor([[0, 1]]), "log_probs": LOG_PROBS[:1]}, classes=2).blocks())


def test_an_unknown_mass_is_left_out_as_the_error_says() -> None:
    held = {"indices": INDICES, "log_probs": LOG_PROBS, "log_tail": torch.tensor([math.log(0.25), math.nan])}
    with refused(FileError, got="^nan in row 1$", instead="leave log_tail out"):
        list(open_top_k(held).blocks())
    del held["log_tail"]
    assert next(open_top_k(held).blocks()).tail_log_mass.exp().tolist() == pytest.approx([0.25, 0.1])


@pytest.mark.parametrize("key", ["08", "\u0668", "8.0", " 8", "1_0"])
def test_keys_of_vllm_are_token_ids_as_they_are_written(key: str) -> None:
    rows = [None, {"8": {"logprob": -0.5}, key: {"logprob": -1.5}}]
    with pytest.raises(FileError, match=f"wanted token ids as keys; got '{key}' at record 0, position 1"):
        list(open_top_k({"prompt_logprobs": rows, "prompt_token_ids": [3, 8]}).blocks())


def test_the_largest_floor_keeps_the_digits_of_what_is_likely(tmp_path: Path) -> None:
    logits = torch.tensor([[0.0, -1.0, -99.0, -200.0]], dtype=torch.float64)
    write_llama_base(tmp_path / "x.kld", torch.zeros(4, dtype=torch.int64), logits, n_ctx=4, floor=100.0)
    with open_rows(tmp_path / "x.kld") as source:
        found = source.read(0, 1).double().log_softmax(-1)
    torch.testing.assert_close(found[:, :3], logits.log_softmax(-1)[:, :3], rtol=0, atol=100 / 65535)
