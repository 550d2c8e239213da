"""Reading files of distributions as blocks: every format gives the same rows, in little memory, or says why not."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

from kullback.errors import ArgumentValueError, FileError
from kullback.io import open_rows, paired_blocks, read_clusters, read_labels
from tests.refusals import refused


def logits(rows: int = 11, classes: int = 5, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(rows)).to(dtype)


def write_npy(path: Path, x: torch.Tensor) -> None:
    np.save(path, x.numpy())


def write_fortran(path: Path, x: torch.Tensor) -> None:
    np.save(path, np.asfortranarray(x.numpy()))


def write_big_endian(path: Path, x: torch.Tensor) -> None:
    array = x.numpy()
    np.save(path, array.astype(array.dtype.newbyteorder(">")))


def write_npz(path: Path, x: torch.Tensor) -> None:
    np.savez(path, x=x.numpy())


def write_npz_compressed(path: Path, x: torch.Tensor) -> None:
    np.savez_compressed(path, x=x.numpy())


def write_safetensors(path: Path, x: torch.Tensor) -> None:
    save_file({"x": x}, path)


def write_torch(path: Path, x: torch.Tensor) -> None:
    torch.save(x, path)


def write_torch_dict(path: Path, x: torch.Tensor) -> None:
    torch.save({"x": x, "epoch": 3}, path)


def table(x: torch.Tensor) -> pa.Table:
    return pa.table({f"c{i}": x[:, i].numpy() for i in range(x.shape[1])})


def write_parquet(path: Path, x: torch.Tensor) -> None:
    pyarrow.parquet.write_table(table(x), path, row_group_size=max(4, len(x) // 4))


def write_parquet_lists(path: Path, x: torch.Tensor) -> None:
    column = pa.array(x.tolist(), pa.list_(pa.from_numpy_dtype(x.numpy().dtype)))
    pyarrow.parquet.write_table(
        pa.table({"x": column, "id": list(range(len(x)))}), path, row_group_size=max(4, len(x) // 4)
    )


def write_parquet_fixed_lists(path: Path, x: torch.Tensor) -> None:
    flat = pa.array(x.reshape(-1).numpy())
    column = pa.FixedSizeListArray.from_arrays(flat, x.shape[1])
    pyarrow.parquet.write_table(pa.table({"x": column}), path, row_group_size=max(3, len(x) // 4))


def write_csv(path: Path, x: torch.Tensor) -> None:
    pyarrow.csv.write_csv(table(x), path)


FORMATS = {
    "npy": (".npy", write_npy),
    "npy-fortran": (".npy", write_fortran),
    "npy-big-endian": (".npy", write_big_endian),
    "npz": (".npz", write_npz),
    "npz-compressed": (".npz", write_npz_compressed),
    "safetensors": (".safetensors", write_safetensors),
    "pt": (".pt", write_torch),
    "pth-dict": (".pth", write_torch_dict),
    "parquet": (".parquet", write_parquet),
    "parquet-lists": (".parquet", write_parquet_lists),
    "parquet-fixed-lists": (".parquet", write_parquet_fixed_lists),
    "csv": (".csv", write_csv),
}
BINARY = ["npy", "npy-fortran", "npy-big-endian", "npz", "npz-compressed", "safetensors", "pt"]


def written(folder: Path, name: str, x: torch.Tensor) -> Path:
    suffix, write = FORMATS[name]
    path = folder / f"{name}{suffix}"
    write(path, x)
    return path


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rows", [1, 3, 4, 11, 50])
def test_the_blocks_of_every_format_are_the_array(name: str, rows: int, tmp_path: Path) -> None:
    x = logits()
    with open_rows(written(tmp_path, name, x), representation="logits") as source:
        blocks = list(source.blocks(rows=rows))
        assert source.classes == 5
        assert source.representation == "logits"
        assert source.rows == (None if name == "csv" else 11)
        assert source.shape == (None if name == "csv" else (11, 5))
        assert source.dtype == blocks[0].dtype == (torch.float64 if name == "csv" else torch.float32)
    assert [len(block) for block in blocks] == [rows] * (11 // rows) + [11 % rows] * (11 % rows > 0)
    assert torch.equal(torch.cat(blocks).float(), x)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_read_in_any_order_and_again(name: str, tmp_path: Path) -> None:
    x = logits()
    with open_rows(written(tmp_path, name, x), representation="logits") as source:
        for start, stop in [(9, 11), (0, 1), (3, 9), (3, 4), (0, 11), (10, 11)]:
            assert torch.equal(source.read(start, stop).float(), x[start:stop])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 1), (5, 12), (11, 12)])
def test_a_range_outside_the_file_is_refused(name: str, start: int, stop: int, tmp_path: Path) -> None:
    with (
        open_rows(written(tmp_path, name, logits()), representation="logits") as source,
        pytest.raises(ArgumentValueError, match=rf"0 <= start < stop.*got {start}, {stop}"),
    ):
        source.read(start, stop)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_keep_their_dtype_and_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    x = logits(dtype=dtype)
    x[2, 1] = -torch.inf
    with open_rows(written(tmp_path, name, x), representation="logits") as source:
        block = source.read(0, 11)
    assert block.dtype == dtype
    assert torch.equal(block, x)


@pytest.mark.parametrize("name", ["safetensors", "pt", "pth-dict"])
def test_bfloat16_is_read_where_the_format_has_it(name: str, tmp_path: Path) -> None:
    x = logits(dtype=torch.bfloat16)
    with open_rows(written(tmp_path, name, x), representation="logits") as source:
        assert torch.equal(torch.cat(list(source.blocks(rows=4))), x)
        assert source.dtype is torch.bfloat16


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_integers_are_counts_without_being_told(name: str, dtype: str, tmp_path: Path) -> None:
    x = np.arange(1, 56).reshape(11, 5).astype(dtype)
    with open_rows(written(tmp_path, name, torch.from_numpy(x))) as source:
        assert source.representation == "counts"
        assert not source.dtype.is_floating_point
        assert torch.cat(list(source.blocks(rows=4))).tolist() == x.tolist()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_unsigned_counts_become_int64(dtype: str, tmp_path: Path) -> None:
    x = np.array([[0, 1], [2, np.iinfo(dtype).max]], dtype)
    np.save(tmp_path / "x.npy", x)
    with open_rows(tmp_path / "x.npy", representation="counts") as source:
        assert source.read(0, 2).dtype is torch.int64
        assert source.read(0, 2).tolist() == x.tolist()


@pytest.mark.parametrize("name", ["npy", "npz", "safetensors", "pt"])
def test_leading_dimensions_become_rows_in_c_order(name: str, tmp_path: Path) -> None:
    x = logits(24, 5).view(2, 3, 4, 5)
    with open_rows(written(tmp_path, name, x), representation="logits") as source:
        assert source.shape == (2, 3, 4, 5)
        assert source.rows == 24
        assert torch.equal(torch.cat(list(source.blocks(rows=7))), x.view(24, 5))


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    classes=st.integers(1, 9),
    max_bytes=st.integers(1, 800),
    name=st.sampled_from(["npy", "npy-fortran", "npz-compressed", "safetensors", "parquet"]),
)
def test_blocks_respect_their_bytes_and_join_to_the_array(
    rows: int, classes: int, max_bytes: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    x = logits(rows, classes)
    with open_rows(written(tmp_path_factory.mktemp("x"), name, x), representation="logits") as source:
        blocks = list(source.blocks(max_bytes=max_bytes))
    assert torch.equal(torch.cat(blocks), x)
    assert all(len(block) == 1 or block.nbytes <= max_bytes for block in blocks)


def test_blocks_are_the_callers_to_change(tmp_path: Path) -> None:
    x = logits()
    for name in FORMATS:
        with open_rows(written(tmp_path, name, x), representation="logits") as source:
            source.read(0, 11).zero_()
            next(source.blocks(rows=11)).zero_()
            assert torch.equal(source.read(0, 11).float(), x), name


# --- keys


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_key_chooses_among_several_arrays(suffix: str, tmp_path: Path) -> None:
    p, q = logits(3), logits(4)
    path = tmp_path / f"two{suffix}"
    if suffix == ".npz":
        np.savez(path, teacher=p.numpy(), student=q.numpy())
    elif suffix == ".pt":
        torch.save({"teacher": p, "student": q, "note": "text"}, path)
    else:
        save_file({"teacher": p, "student": q}, path)
    with open_rows(path, representation="logits", key="student") as source:
        assert source.key == "student"
        assert torch.equal(source.read(0, 4), q)
    with refused(FileError, wanted="holds 2 ", instead="--key.*(teacher, student|student, teacher)"):
        open_rows(path, representation="logits")
    with refused(FileError, wanted="named 'base'", got="holds: (teacher, student|student, teacher)"):
        open_rows(path, representation="logits", key="base")


@pytest.mark.parametrize("name", ["npy", "pt", "csv"])
def test_a_key_for_a_single_array_is_refused(name: str, tmp_path: Path) -> None:
    with refused(FileError, wanted="^no key", got="^key='x'", instead="leave key= out"):
        open_rows(written(tmp_path, name, logits()), representation="logits", key="x")


def test_a_list_of_many_keys_is_cut(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", **{f"a{i}": np.zeros((1, 2)) for i in range(30)})
    with refused(FileError, instead=r"a0, a1, .*a9 and 20 more"):
        open_rows(tmp_path / "many.npz", representation="logits")


# --- what the numbers mean


@pytest.mark.parametrize(
    ("x", "representation"),
    [
        (logits(), "logits"),
        (logits().log_softmax(-1), "log-probs"),
        (logits().softmax(-1), "probs"),
        (logits().softmax(-1).half(), "probs"),
        (logits().abs().ceil(), "counts"),
    ],
)
@pytest.mark.parametrize("name", ["npy", "safetensors", "parquet-lists"])
def test_floats_of_no_stated_kind_are_refused_with_the_word_to_pass(
    x: torch.Tensor, representation: str, name: str, tmp_path: Path
) -> None:
    message = rf"got none, and values .* in the first 11 rows; if so, pass .*\(--as {representation}\)"
    with pytest.raises(FileError, match=message):
        open_rows(written(tmp_path, name, x))


def test_floats_that_do_not_tell_are_refused_with_all_words(tmp_path: Path) -> None:
    for name, x in {"npy": logits().exp(), "csv": logits().exp(), "npz": logits() * torch.nan}.items():
        with refused(
            FileError,
            got="which fit more than one representation",
            instead=r"--as\) logits, log-probs, probs or counts",
        ):
            open_rows(written(tmp_path, name, x))


@pytest.mark.parametrize("representation", ["logits", "log-probs", "probs", "counts"])
def test_valid_rows_of_every_kind_pass(representation: str, tmp_path: Path) -> None:
    x = logits(7, 6)
    x[0, 2] = -torch.inf
    rows = {
        "logits": x,
        "log-probs": x.log_softmax(-1),
        "probs": x.softmax(-1),
        "counts": x.exp().round() + 1,
    }[representation]
    with open_rows(written(tmp_path, "npy", rows), representation=representation) as source:
        assert torch.equal(source.read(0, 7), rows)
        assert source.caveats() == []


def with_entry(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x[6, 3] = value
    return x


UNNORMALISED = logits().exp()
BAD_ROWS = {
    "NaN logits": (with_entry(logits(), torch.nan), "logits", r"without NaN; got nan at row 6, class 3"),
    "infinite logits": (
        with_entry(logits(), torch.inf),
        "logits",
        r"finite logits; got inf at row 6, class 3",
    ),
    "no logit": (
        torch.full((11, 5), -torch.inf),
        "logits",
        r"at least one class of positive probability.*only -inf in row 0",
    ),
    "NaN probs": (
        with_entry(logits().softmax(-1), torch.nan),
        "probs",
        r"without NaN; got nan at row 6, class 3",
    ),
    "negative probs": (logits(), "probs", r"none negative; got -.* at row 0, class \d.*--as logits"),
    "log-probs as probs": (logits().log_softmax(-1), "probs", r"none negative.*--as log-probs"),
    "unnormalized probs": (
        UNNORMALISED,
        "probs",
        r"sum to 1 within 0.0001 \(float32\); got a sum of .* in row 0",
    ),
    "counts as probs": (
        UNNORMALISED.ceil(),
        "probs",
        r"looks like counts: pass representation='counts' \(--as counts\)",
    ),
    "empty probs": (
        torch.zeros(11, 5),
        "probs",
        r"at least one class of positive probability.*only 0 in row 0",
    ),
    "positive log-probs": (logits(), "log-probs", r"at most 0; got .* at row \d, class \d.*--as logits"),
    "probs as log-probs": (logits().softmax(-1), "log-probs", r"at most 0.*--as probs"),
    "loose log-probs": (logits() - 9, "log-probs", r"a sum of .* in row 0.*looks like logits"),
    "NaN log-probs": (with_entry(logits().log_softmax(-1), torch.nan), "log-probs", r"nan at row 6, class 3"),
    "negative counts": (
        with_entry(UNNORMALISED, -2.0),
        "counts",
        r"counts, none negative; got -2 at row 6, class 3",
    ),
    "infinite counts": (
        with_entry(UNNORMALISED, torch.inf),
        "counts",
        r"finite counts; got inf at row 6, class 3",
    ),
    "NaN counts": (
        with_entry(UNNORMALISED, torch.nan),
        "counts",
        r"counts without NaN; got nan at row 6, class 3",
    ),
    "no counts": (torch.zeros(11, 5), "counts", r"only 0 in row 0"),
    "negative integers": (
        torch.tensor([[1, 2], [3, -4]]),
        "counts",
        r"none negative; got -4 at row 1, class 1",
    ),
    "no integers": (torch.zeros(2, 3, dtype=torch.int32), "counts", r"only 0 in row 0"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("rows", [1, 4, 11])
def test_a_bad_row_is_named_by_its_number_in_the_file(case: str, rows: int, tmp_path: Path) -> None:
    x, representation, message = BAD_ROWS[case]
    path = written(tmp_path, "npy", x)
    with (
        open_rows(path, representation=representation, name="q") as source,
        pytest.raises(FileError, match=message) as caught,
    ):
        list(source.blocks(rows=rows))
    assert str(caught.value).startswith(f"q = {path}: wanted ")
    assert "\n" not in str(caught.value)


def test_a_bad_row_is_found_by_random_access_too(tmp_path: Path) -> None:
    path = written(tmp_path, "npy", with_entry(logits(), torch.nan))
    with open_rows(path, representation="logits") as source:
        source.read(0, 6)
        with refused(FileError, got="row 6, class 3"):
            source.read(5, 8)


def test_a_bad_row_is_found_deep_inside_a_large_block(tmp_path: Path) -> None:
    x = torch.zeros(40_000, 64, dtype=torch.float16)
    x[39_999, 63] = torch.nan
    with (
        open_rows(written(tmp_path, "npy", x), representation="logits") as source,
        refused(FileError, got="row 39999, class 63"),
    ):
        list(source.blocks())


def test_integers_of_another_kind_are_refused(tmp_path: Path) -> None:
    with refused(
        FileError, wanted="floating-point probs$", got=r"^integers \(int64\)", instead="--as counts"
    ):
        open_rows(written(tmp_path, "npy", torch.ones(2, 2, dtype=torch.int64)), representation="probs")


def test_probabilities_read_as_logits_are_a_caveat(tmp_path: Path) -> None:
    with open_rows(written(tmp_path, "npy", logits().softmax(-1)), representation="logits") as source:
        assert source.caveats() == ["the first rows look like probs, and are read as logits, as asked"]


# --- files that are not what they should be


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "csv"])
@pytest.mark.parametrize("keep", [0, 1, 7, 60, 0.5, 0.9, -1])
def test_a_truncated_file_is_an_error_in_one_line(name: str, keep: float, tmp_path: Path) -> None:
    path = written(tmp_path, name, logits(400, 7))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(FileError) as caught, open_rows(path, representation="logits") as source:
        list(source.blocks())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_npy_file_names_both_sizes(tmp_path: Path) -> None:
    path = written(tmp_path, "npy", logits(100, 10))
    path.write_bytes(path.read_bytes()[:-8])
    with refused(
        FileError,
        wanted=r"4,128 bytes for shape \(100, 10\) of float32$",
        got="^4,120 bytes",
        instead="truncated",
    ):
        open_rows(path, representation="logits")


@pytest.mark.parametrize("name", ["npz", "npz-compressed"])
def test_a_damaged_archive_is_an_error(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, logits(400, 50))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with refused(FileError, instead="damaged"), open_rows(path, representation="logits") as source:
        list(source.blocks())


def test_a_file_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "npy", logits(100, 10))
    with open_rows(path, representation="logits") as source:
        blocks = source.blocks(rows=10)
        next(blocks)
        with path.open("r+b") as file:
            file.truncate(1000)
        with refused(FileError, got="end of the file before that"):
            list(blocks)


@pytest.mark.parametrize(
    ("name", "suffix", "looks"),
    [
        ("npy", ".npz", "npy"),
        ("npz", ".npy", "zip archive"),
        ("parquet", ".csv", "parquet"),
        ("npy", ".parquet", "npy"),
        ("npy", ".safetensors", "npy"),
        ("csv", ".npy", "c0"),
        ("safetensors", ".csv", "begins with"),
    ],
)
def test_content_of_another_format_is_refused(name: str, suffix: str, looks: str, tmp_path: Path) -> None:
    path = written(tmp_path, name, logits()).rename(tmp_path / f"renamed{suffix}")
    with pytest.raises(FileError, match=rf"{suffix[1:]} file, by its extension; got .*{looks}"):
        open_rows(path, representation="logits")


def test_an_unknown_extension_lists_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "npy", logits()).rename(tmp_path / "x.bin")
    with refused(
        FileError, wanted=r"\.npy, \.npz, \.safetensors", got=r"^extension '\.bin', whose content.*npy"
    ):
        open_rows(path, representation="logits")


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"p = .*no\.npy: wanted a file; got no such file"):
        open_rows(tmp_path / "no.npy", representation="logits")
    with refused(FileError, got="^a directory"):
        open_rows(tmp_path, representation="logits")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5,), r"at least two dimensions, \(positions, classes\); got shape \(5,\)"),
        ((), "at least two dimensions"),
        ((0, 5), r"at least one position and one class; got shape \(0, 5\)"),
        ((5, 0), "at least one position and one class"),
        ((2, 0, 5), "at least one position and one class"),
    ],
)
@pytest.mark.parametrize("name", ["npy", "npz", "safetensors", "pt"])
def test_shapes_that_hold_no_rows_are_refused(
    shape: tuple[int, ...], message: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=message):
        open_rows(written(tmp_path, name, torch.zeros(shape)), representation="logits")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2), "V2"), "such as NumPy writes for bfloat16.*safetensors"),
        (np.array([[1, None]], dtype=object), "Python objects, which are never unpickled"),
        (np.zeros((2, 2), "complex64"), "got dtype complex64"),
        (np.zeros((2, 2), "bool"), "got dtype bool"),
        (np.zeros((2, 2), [("a", "f4")]), "got dtype"),
        (np.array([["a", "b"]]), "got dtype"),
        (np.zeros((2, 3, 4), order="F"), r"C order.*got Fortran order, shape \(2, 3, 4\)"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_numpy_arrays_of_no_numbers_are_refused(
    array: np.ndarray, message: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, x=array)
    with pytest.raises(FileError, match=message):
        open_rows(path, representation="logits")


def test_fortran_order_in_an_archive_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.asfortranarray(np.zeros((3, 2))))
    with refused(FileError, instead="ascontiguousarray"):
        open_rows(tmp_path / "x.npz", representation="logits")


@pytest.mark.parametrize("representation", [None, "logits", "probs"])
def test_uint16_may_be_bfloat16_and_is_refused_unless_named_counts(
    representation: str | None, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), "uint16"))
    with refused(FileError, got="uint16, which may be counts or the bits of bfloat16"):
        open_rows(tmp_path / "x.npy", representation=representation)


def test_objects_in_torch_files_are_never_built(tmp_path: Path) -> None:
    torch.save({"x": Path("anything")}, tmp_path / "x.pt")
    with refused(FileError, wanted="weights_only=True", got="^other Python objects"):
        open_rows(tmp_path / "x.pt", representation="logits")
    torch.save([torch.zeros(2, 2)], tmp_path / "list.pt")
    with refused(FileError, wanted="a tensor or a dict of tensors", got="^a list"):
        open_rows(tmp_path / "list.pt", representation="logits")
    torch.save({"epoch": 1}, tmp_path / "none.pt")
    with refused(FileError, wanted="at least one tensor$", got="^none"):
        open_rows(tmp_path / "none.pt", representation="logits")


def test_torch_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(2, 2), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with refused(FileError, wanted="in its zip format"):
        open_rows(tmp_path / "old.pt", representation="logits")
    torch.save(torch.eye(3).to_sparse(), tmp_path / "sparse.pt")
    with refused(FileError, wanted="dense tensor", got=r"torch\.sparse_coo"):
        open_rows(tmp_path / "sparse.pt", representation="logits")
    torch.save(torch.zeros(3, 4).T, tmp_path / "strided.pt")
    with refused(FileError, wanted="contiguous tensor$", got=r"^strides \(1, 4\)"):
        open_rows(tmp_path / "strided.pt", representation="logits")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps({"x": 1}))
    with refused(FileError, wanted="zip format"):
        open_rows(tmp_path / "pickle.pt", representation="logits")


def test_float8_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(2, 2).to(torch.float8_e4m3fn)}, tmp_path / "x.safetensors")
    with refused(FileError, got="'x' of F8_E4M3", instead="BF16 or F32"):
        open_rows(tmp_path / "x.safetensors", representation="logits")


def test_an_archive_without_arrays_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with refused(FileError, wanted="at least one array$", got="^none"):
        open_rows(tmp_path / "x.npz", representation="logits")


# --- tables


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", r"got 'x' in column 'b', line 3"),
        ("a,b\n0.5,0.5\n0.5,\n", r"got '' in column 'b', line 3"),
        ("a,b\n0.5,0.5\n0.5,NA\n", r"got 'NA' in column 'b', line 3"),
        ("a,b\n0.5,0.5\n\n0.5,oops\n", r"got 'oops' in column 'b', line 4"),
        ("a,b\n0.5,0.5\n0.5\n", r"2 fields in every line, as in the first; got 1 in line 3"),
        ("a,b\n0.5,0.5\n0.2,0.3,0.5\n", r"got 3 in line 3"),
        (
            ",0,1\n0,0.5,0.5\n",
            r"none for column 0, as when a table is saved with its row numbers.*index=False",
        ),
        ("0,1,2\n1,2,3\n", r"0 to 2 in order, which may be either.*c0,c1"),
        ("a,b\n", r"at least one row; got a header alone"),
        ("a,b\n0.5,nan\n", r"without NaN; got nan at row 0, class 1"),
        ("\n0.5,nan\n", r"first line; got an empty line"),
    ],
)
def test_bad_csv_files_are_named_by_column_and_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as caught, open_rows(path, representation="probs") as source:
        list(source.blocks())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("header", ["", "a,b\n", '"0","1"\n', "\ufeffa,b\n", 'a,"b\nc"\n'])
def test_csv_files_with_and_without_a_header_hold_the_same_rows(
    header: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text((header + "0.25,0.75\n0.5,0.5\n").replace("\n", ending), newline="", encoding="utf-8")
    with open_rows(path, representation="probs") as source:
        assert torch.cat(list(source.blocks())).tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_csv_logits_may_be_infinite_and_integers_logits(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n-inf,1\n2,3\n")
    with open_rows(tmp_path / "x.csv", representation="logits") as source:
        assert source.read(0, 2).tolist() == [[-torch.inf, 1.0], [2.0, 3.0]]


def test_csv_counts_must_stay_whole_unless_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n3,0.5\n")
    with (
        open_rows(path) as source,
        refused(FileError, wanted="whole numbers", got="'0.5' in column 'b', line 3"),
    ):
        list(source.blocks())
    with open_rows(path, representation="counts") as source:
        assert source.read(1, 2).tolist() == [[3.0, 0.5]]


@pytest.mark.sweep
def test_wide_csv_lines_longer_than_a_block_of_text_are_read(tmp_path: Path) -> None:
    x = logits(3, 60_000).double()
    np.savetxt(tmp_path / "x.csv", x.numpy(), delimiter=",")
    with open_rows(tmp_path / "x.csv", representation="logits") as source:
        assert torch.allclose(source.read(0, 3), x, rtol=1e-15)


def test_parquet_columns_may_have_any_names(tmp_path: Path) -> None:
    x = logits(6, 3)
    columns = {name: x[:, i].numpy() for i, name in enumerate(["a", "a.b", "a.b.c"])}
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    with open_rows(tmp_path / "x.parquet", representation="logits") as source:
        assert torch.equal(source.read(0, 6), x)


@pytest.mark.parametrize(
    ("columns", "key", "message"),
    [
        ({"a": [1.0], "word": ["x"]}, None, r"columns of numbers.*got column 'word' of string"),
        ({"a": [1.0], "__index_level_0__": [0]}, None, r"got column '__index_level_0__'"),
        ({"a": [0.5, None], "b": [0.5, 0.5]}, None, r"number in every row of column 'a'; got null in row 1"),
        ({"p": [[0.5, 0.5], [1.0]]}, None, r"lists of 2 numbers in column 'p', as in row 0; got 1 in row 1"),
        ({"p": [[0.5, 0.5], None]}, None, r"got null in row 1"),
        ({"p": [[0.5, 0.5], [1.0, None]]}, None, r"got null in row 1"),
        ({"p": [None, [0.5, 0.5]]}, None, r"column 'p'; got null in row 0"),
        ({"p": [["a"]]}, None, r"got column 'p' of string"),
        ({"p": [[1.0]], "q": [[1.0]]}, None, r"holds 2 list columns.*--key.*p, q"),
        ({"p": [[1.0]], "q": [1.0]}, "q", r"list column named 'q'.*holds: p"),
        ({"a": [1.0]}, "a", r"at least one list column; got none"),
        ({"a": pa.array([], pa.float32())}, None, r"at least one position"),
    ],
)
def test_bad_parquet_files_are_named_by_column_and_row(
    columns: dict[str, list[object]], key: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table(columns), path)
    with pytest.raises(FileError, match=message), open_rows(path, representation="probs", key=key) as source:
        list(source.blocks())


# --- two files


def test_paired_blocks_walk_two_formats_and_dtypes_in_step(tmp_path: Path) -> None:
    x = logits(50, 6)
    p_path = written(tmp_path, "npz-compressed", x.half())
    q_path = written(tmp_path, "parquet", x.double())
    with (
        open_rows(p_path, representation="logits") as p,
        open_rows(q_path, representation="logits", name="q") as q,
    ):
        walked = list(paired_blocks(p, q, max_bytes=7 * 6 * 8))
    assert [start for start, _, _ in walked] == list(range(0, 50, 7))
    assert torch.equal(torch.cat([a for _, a, _ in walked]), x.half())
    assert torch.equal(torch.cat([b for _, _, b in walked]), x.double())


@pytest.mark.parametrize("names", [("npy", "npy"), ("npy", "csv"), ("csv", "npy"), ("csv", "csv")])
@pytest.mark.parametrize("rows", [2, 5, 100])
def test_files_of_different_length_are_refused_with_both_numbers(
    names: tuple[str, str], rows: int, tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "q").mkdir()
    p_path, q_path = (
        written(tmp_path / "p", names[0], logits(5)),
        written(tmp_path / "q", names[1], logits(12)),
    )
    with (
        open_rows(p_path, representation="logits") as p,
        open_rows(q_path, representation="logits", name="q") as q,
    ):
        with refused(
            FileError, wanted="as many rows in both$", got="^5 and 12$", instead="same positions"
        ) as caught:
            list(paired_blocks(p, q, rows=rows))
        assert f"p = {p_path} and q = {q_path}" in str(caught.value)
        with refused(FileError, got="^12 and 5"):
            list(paired_blocks(q, p, rows=rows))


def test_files_of_different_vocabularies_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    p_path, q_path = written(tmp_path, "npy", logits(5, 6)), written(tmp_path / "q", "npy", logits(5, 7))
    with (
        open_rows(p_path, representation="logits") as p,
        open_rows(q_path, representation="logits", name="q") as q,
        pytest.raises(FileError, match="as many classes in both; got 6 and 7; use one vocabulary"),
    ):
        paired_blocks(p, q)


# --- labels and clusters


def written_vector(folder: Path, suffix: str, values: list[int] | list[str]) -> Path:
    path = folder / f"v{suffix}"
    array = np.array(values)
    match suffix:
        case ".npy":
            np.save(path, array)
        case ".npz":
            np.savez(path, v=array)
        case ".safetensors":
            save_file({"v": torch.from_numpy(array)}, path)
        case ".pt":
            torch.save(torch.from_numpy(array), path)
        case ".parquet":
            pyarrow.parquet.write_table(pa.table({"v": values}), path)
        case ".csv":
            pyarrow.csv.write_csv(pa.table({"v": values}), path)
        case _:
            path.write_text("".join(f"{value}\n" for value in values))
    return path


VECTORS = [".npy", ".npz", ".safetensors", ".pt", ".parquet", ".csv", ".txt"]


@pytest.mark.parametrize("suffix", VECTORS)
def test_labels_are_read_from_every_format(suffix: str, tmp_path: Path) -> None:
    path = written_vector(tmp_path, suffix, [3, 0, -100, 2])
    labels = read_labels(path, rows=4, classes=4)
    assert labels.dtype is torch.int64
    assert labels.tolist() == [3, 0, -100, 2]
    with refused(FileError, argument="labels", wanted="^5 values, one for each row$", got="^4"):
        read_labels(path, rows=5)
    with refused(FileError, wanted="classes from 0 to 2, or -100", got="^3 in row 0"):
        read_labels(path, classes=3)


@pytest.mark.parametrize("suffix", VECTORS)
def test_labels_below_zero_other_than_ignored_are_refused(suffix: str, tmp_path: Path) -> None:
    with refused(FileError, wanted="classes from 0 up, or -100", got="^-1 in row 1"):
        read_labels(written_vector(tmp_path, suffix, [3, -1]))


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".txt", ".parquet"])
def test_labels_that_are_no_integers_are_refused(suffix: str, tmp_path: Path) -> None:
    with refused(FileError, wanted="whole numbers, the index of the true class"):
        read_labels(written_vector(tmp_path, suffix, [0.5, 1.5]))
    with refused(FileError, wanted="whole numbers, the index of the true class"):
        read_labels(written_vector(tmp_path, suffix, ["cat", "dog"]))


def test_labels_in_several_dimensions_are_flattened(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.arange(6, dtype="uint8").reshape(2, 3))
    assert read_labels(tmp_path / "v.npy").tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("suffix", VECTORS)
def test_clusters_are_numbered_in_the_order_of_their_ids(suffix: str, tmp_path: Path) -> None:
    clusters = read_clusters(written_vector(tmp_path, suffix, [70, 70, -5, 70]), rows=4)
    assert clusters.dtype is torch.int64
    assert clusters.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet", ".csv", ".txt"])
def test_clusters_may_be_text(suffix: str, tmp_path: Path) -> None:
    assert read_clusters(written_vector(tmp_path, suffix, ["b", "b", "ä", "a"])).tolist() == [1, 1, 2, 0]


def test_clusters_that_are_fractions_are_refused(tmp_path: Path) -> None:
    with refused(FileError, wanted="integers or text, the cluster of each row$", got="^float64 such as 0.5"):
        read_clusters(written_vector(tmp_path, ".npy", [0.5, 1.0]))


def test_a_key_chooses_a_column_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("document,token\na,5\nb,6\n")
    assert read_labels(path, key="token").tolist() == [5, 6]
    assert read_clusters(path, key="document").tolist() == [0, 1]
    with refused(FileError, wanted="2 columns", instead="document, token"):
        read_labels(path)


@pytest.mark.parametrize("suffix", VECTORS)
def test_a_missing_or_empty_file_of_labels_is_named(suffix: str, tmp_path: Path) -> None:
    with refused(FileError, got="no such file"):
        read_labels(tmp_path / f"no{suffix}")
    (tmp_path / f"v{suffix}").write_bytes(b"")
    with refused(FileError, got=r"empty|damaged|at least one"):
        read_labels(tmp_path / f"v{suffix}")


@pytest.mark.parametrize("suffix", [s for s in VECTORS if s not in (".csv", ".txt")])
def test_a_truncated_file_of_labels_is_an_error(suffix: str, tmp_path: Path) -> None:
    path = written_vector(tmp_path, suffix, list(range(500)))
    path.write_bytes(path.read_bytes()[:-40])
    with refused(FileError, instead="truncated or damaged"):
        read_labels(path)


def test_missing_values_among_labels_are_named(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("1\n\n2\n")
    with refused(FileError, wanted="a value in every line$", got="^none in line 2"):
        read_labels(tmp_path / "v.txt")
    pyarrow.parquet.write_table(pa.table({"v": [1, None]}), tmp_path / "v.parquet")
    with refused(FileError, wanted="a value in every row$", got="^none in row 1"):
        read_labels(tmp_path / "v.parquet")


def test_pickled_labels_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([1, "a"], dtype=object))
    with refused(FileError, wanted="a NumPy array of numbers or text"):
        read_labels(tmp_path / "v.npy")


# --- memory

PEAK = """
import resource, sys
from pathlib import Path
from kullback.io import open_rows

def peak():
    status = Path("/proc/self/status")
    if not status.exists():  # macOS counts in bytes; Linux' own figure would include the parent's memory
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) * 1024 for line in status.open() if line.startswith("VmHWM"))

small, large = sys.argv[1:]
with open_rows(small, representation="logits") as source:
    rows = sum(len(block) for block in source.blocks())
before = peak()
with open_rows(large, representation="logits") as source:
    rows = sum(len(block) for block in source.blocks(max_bytes=8 << 20))
    source.read(0, 1)
print(rows, peak() - before)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["npy", "npz", "npz-compressed", "safetensors", "pt"])
def test_a_large_file_is_read_in_little_memory(name: str, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = written(tmp_path / "small", name, torch.zeros(4, 1000, dtype=torch.float32))
    large = written(tmp_path, name, torch.zeros(25_000, 1000, dtype=torch.float32))
    output = subprocess.run(
        [sys.executable, "-c", PEAK, str(small), str(large)], capture_output=True, text=True, check=True
    ).stdout
    rows, growth = map(int, output.split())
    assert rows == 25_000
    assert growth < 48 << 20  # the file is 100 MB, a block 8 MB
    large.unlink()
