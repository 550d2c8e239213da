"""llama.cpp's base file, against its published layout, packed and unpacked here by hand."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.io import open_rows, paired_blocks, read_labels, write_llama_base
from kullback.io.llama_cpp_base import Layout, LlamaBaseFile
from tests.refusals import refused

if TYPE_CHECKING:
    from pathlib import Path


def rows_of(chunks: int, n_ctx: int, classes: int, scale: float = 3.0) -> torch.Tensor:
    count = chunks * (n_ctx - 1 - n_ctx // 2)
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(classes)) * scale


def tokens_of(chunks: int, n_ctx: int, classes: int) -> torch.Tensor:
    return torch.arange(chunks * n_ctx) * 7 % classes


def write(path: Path, chunks: int = 2, n_ctx: int = 8, classes: int = 5, floor: float = 16.0) -> torch.Tensor:
    rows = rows_of(chunks, n_ctx, classes)
    write_llama_base(path, tokens_of(chunks, n_ctx, classes), rows, n_ctx=n_ctx, floor=floor)
    return rows


def pack(tokens: list[int], n_ctx: int, rows: list[tuple[float, float, list[int]]], classes: int) -> bytes:
    """A base file by the letter of its layout, with the standard library alone."""
    head = b"_logits_" + struct.pack("<3i", n_ctx, classes, len(tokens) // n_ctx)
    body = struct.pack(f"<{len(tokens)}i", *tokens)
    for scale, smallest, codes in rows:
        padded = codes + [0] * (len(codes) % 2)
        body += struct.pack(f"<2f{len(padded)}H", scale, smallest, *padded)
    return head + body


# --- the layout


def test_the_size_of_a_published_file_follows_from_its_header() -> None:
    assert Layout(n_ctx=512, n_vocab=248_320, n_chunk=580).file_bytes == 73_455_427_060


@pytest.mark.parametrize(
    ("classes", "row_bytes"), [(32000, 64_008), (128256, 256_520), (151936, 303_880), (262144, 524_296)]
)
def test_the_bytes_of_a_row_are_the_published_ones(classes: int, row_bytes: int) -> None:
    two, one = Layout(4, classes, 2), Layout(4, classes, 1)
    assert two.file_bytes - one.file_bytes == row_bytes + 4 * 4  # a row and four tokens more


@pytest.mark.parametrize("n_ctx", [3, 4, 7, 8, 512])
@pytest.mark.parametrize("classes", [1, 2, 5, 256])
def test_a_written_file_has_the_size_its_header_implies(n_ctx: int, classes: int, tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    write(path, 3, n_ctx, classes)
    scored = n_ctx - 1 - n_ctx // 2
    row = 2 * (4 + classes + classes % 2)
    assert path.stat().st_size == 8 + 3 * 4 + 3 * n_ctx * 4 + 3 * scored * row


@pytest.mark.parametrize("classes", [3, 4])
def test_a_file_packed_by_hand_is_read_to_the_value(classes: int, tmp_path: Path) -> None:
    path = tmp_path / "base"
    codes = [[65535, 0, 1, 40000][:classes], [0, 65535, 7, 0][:classes]]
    path.write_bytes(
        pack([0, 1, 2, 0, 2, 1, 0, 1], 4, [(1e-4, -7.0, codes[0]), (2e-4, -14.0, codes[1])], classes)
    )
    with open_rows(path) as source:
        assert (source.format, source.representation, source.rows, source.classes) == (
            "llama.cpp",
            "logits",
            2,
            classes,
        )
        expected = torch.tensor([[1e-4 * c - 7.0 for c in codes[0]], [2e-4 * c - 14.0 for c in codes[1]]])
        torch.testing.assert_close(source.read(0, 2), expected, rtol=0, atol=1e-5)
        assert source.labels is not None
        assert source.labels.tolist() == [0, 1]


@pytest.mark.parametrize("classes", [4, 5])
def test_a_file_is_written_byte_for_byte_as_packed_by_hand(classes: int, tmp_path: Path) -> None:
    # Logits whose log-sum-exp and steps come out exactly: a largest of 0, one at its half, the others below the floor.
    row = torch.full((1, classes), -torch.inf)
    row[0, 1], row[0, 2] = 0.0, -8.0
    write_llama_base(tmp_path / "base.kld", [0, 1, 2, 3], row, n_ctx=4)
    smallest = -16.0 - float(np.log1p(np.exp(-8.0)))
    codes = [0, 65535, 32768, *[0] * (classes - 3)]  # 32767.5 rounds to the even code
    assert (tmp_path / "base.kld").read_bytes() == pack(
        [0, 1, 2, 3], 4, [(16 / 65535, smallest, codes)], classes
    )


def test_labels_are_the_next_tokens_of_the_scored_half(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    tokens = torch.tensor([[10, 11, 12, 13, 14, 15, 16, 17], [20, 21, 22, 23, 24, 25, 26, 27]])
    write_llama_base(path, tokens, torch.zeros(6, 28), n_ctx=8)
    with open_rows(path) as source:
        assert source.labels is not None
        assert source.labels.tolist() == [15, 16, 17, 25, 26, 27]
        assert isinstance(source.reader, LlamaBaseFile)
        assert torch.equal(source.reader.tokens, tokens.int())
    assert read_labels(path, rows=6, classes=28).tolist() == [15, 16, 17, 25, 26, 27]


# --- the quantization


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 40),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 5.0, 100.0]),
    floor=st.sampled_from([1.0, 16.0, 24.0]),
    shift=st.sampled_from([0.0, -300.0, 1000.0]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_a_row_comes_back_within_half_a_step_of_its_floored_log_softmax(
    classes: int,
    scale: float,
    floor: float,
    shift: float,
    dtype: torch.dtype,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("x") / "base.kld"
    rows = (rows_of(2, 8, classes, scale) + shift).to(dtype)
    write_llama_base(path, tokens_of(2, 8, classes), rows, n_ctx=8, floor=floor)
    truth = rows.double().log_softmax(-1)
    kept = torch.maximum(truth, truth.amax(-1, keepdim=True) - floor)
    with open_rows(path) as source:
        error = (torch.cat(list(source.blocks())).double() - kept).abs().amax(-1)
    step = (kept.amax(-1) - kept.amin(-1)) / 65535
    rounding = 2e-7 * (kept.abs().amax(-1) + 1)  # the row's two float32, and float32 arithmetic on them
    assert bool((error <= step / 2 + 2 * rounding).all())


def test_log_probs_and_logits_of_the_same_rows_give_the_same_file(tmp_path: Path) -> None:
    rows = rows_of(2, 8, 6).double()
    write_llama_base(tmp_path / "a.kld", tokens_of(2, 8, 6), rows, n_ctx=8)
    write_llama_base(tmp_path / "b.kld", tokens_of(2, 8, 6), rows.log_softmax(-1), n_ctx=8)
    with open_rows(tmp_path / "a.kld") as a, open_rows(tmp_path / "b.kld") as b:
        torch.testing.assert_close(a.read(0, 6), b.read(0, 6), rtol=0, atol=3e-4)


def test_equal_logits_are_stored_without_a_scale(tmp_path: Path) -> None:
    write_llama_base(tmp_path / "base.kld", [0, 1, 2, 0], torch.full((1, 4), 3.0), n_ctx=4)
    with open_rows(tmp_path / "base.kld") as source:
        torch.testing.assert_close(source.read(0, 1), torch.full((1, 4), 0.25).log())


@pytest.mark.parametrize("floor", [16.0, 24.0])
def test_classes_below_the_floor_are_stored_at_it_and_the_mass_says_so(floor: float, tmp_path: Path) -> None:
    rows = torch.full((3, 50_000), -60.0)
    rows[:, 0] = 0.0
    rows[2, 1:] = -torch.inf
    write_llama_base(tmp_path / "base.kld", tokens_of(1, 8, 9), rows, n_ctx=8, floor=floor)
    with open_rows(tmp_path / "base.kld") as source:
        assert source.stored_mass is None
        block = next(source.blocks())
        torch.testing.assert_close(block[:, 1], torch.full((3,), -floor), rtol=1e-6, atol=0)
        assert source.stored_mass is not None
        assert source.stored_mass.rows == 3
        excess = 49_999 * float(np.exp(-floor))
        assert source.stored_mass.mean == pytest.approx(1 + excess, rel=1e-6)
        assert any(f"sum to {1 + excess:.6f} on average" in sentence for sentence in source.caveats())


def test_the_stored_mass_is_that_of_one_pass_whatever_was_read_before(tmp_path: Path) -> None:
    write(tmp_path / "base.kld", 4, 16, 9)
    with open_rows(tmp_path / "base.kld") as source:
        source.read(0, 3)
        masses = torch.cat(list(source.blocks(rows=28))).double().exp().sum(-1)
        list(source.blocks(rows=5))
        found = source.stored_mass
    assert found is not None
    assert found.rows == 28
    assert found.mean == pytest.approx(float(masses.mean()), rel=1e-6)
    assert found.lowest == pytest.approx(float(masses.min()), rel=1e-6)
    assert found.highest == pytest.approx(float(masses.max()), rel=1e-6)


# --- writing


def test_blocks_of_any_size_make_the_same_file(tmp_path: Path) -> None:
    rows, tokens = rows_of(2, 8, 5), tokens_of(2, 8, 5)
    write_llama_base(tmp_path / "whole.kld", tokens, rows, n_ctx=8)
    write_llama_base(tmp_path / "parts.kld", tokens.tolist(), iter(rows.split([1, 4, 1])), n_ctx=8)
    assert (tmp_path / "whole.kld").read_bytes() == (tmp_path / "parts.kld").read_bytes()


def test_a_source_can_be_written_on(tmp_path: Path) -> None:
    rows = rows_of(2, 8, 5)
    np.save(tmp_path / "x.npy", rows.numpy())
    with open_rows(tmp_path / "x.npy", representation="logits") as source:
        write_llama_base(tmp_path / "base.kld", tokens_of(2, 8, 5), source.blocks(rows=4), n_ctx=8)
    with open_rows(tmp_path / "base.kld") as source:
        torch.testing.assert_close(source.read(0, 6), rows.log_softmax(-1), rtol=0, atol=3e-4)


TOKENS = tokens_of(2, 8, 5)
ROWS = rows_of(2, 8, 5)
LATE = torch.cat([ROWS[:5], ROWS[:1] + torch.inf])
ALL, MANY = [torch.zeros(8, 5)] * 2, [ROWS[:4], torch.zeros(4, 5), torch.zeros(40, 5)]
NO_TYPE, NO_VALUE = ArgumentTypeError, ArgumentValueError
BAD_WRITES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "tokens of no integers": (TOKENS.float(), ROWS, NO_TYPE, r"\(tokens=...\): wanted integers"),
    "tokens of text": (["a"], ROWS, NO_TYPE, r"\(tokens=...\): wanted integers; got list"),
    "half a window": (TOKENS[:12], ROWS, NO_VALUE, r"whole windows of n_ctx=8; got 12 tokens"),
    "no tokens": (TOKENS[:0], ROWS, NO_VALUE, r"whole windows of n_ctx=8; got 0 tokens"),
    "a token beyond": (TOKENS + 1, ROWS, NO_VALUE, r"from 0 to 4, .*got 5 at position 2"),
    "a negative token": (TOKENS - 1, ROWS, NO_VALUE, r"got -1 at position 0"),
    "too few rows": (TOKENS, ROWS[:5], NO_VALUE, r"wanted 6 rows: 3 scored .* 2 windows of 8.*got 5"),
    "all rows": (
        TOKENS,
        ALL,
        NO_VALUE,
        r"got 16 rows. Write: rows=x.reshape\(2, 8, 5\)\[:, 4:7\].reshape\(6, 5\)",
    ),
    "one large block too many": (TOKENS, MANY, NO_VALUE, r"wanted 6 rows: .*got 48 rows"),
    "no rows": (TOKENS, [], NO_VALUE, r"at least one block; got none"),
    "None as rows": (TOKENS, None, NO_TYPE, r"\(rows=...\): wanted a tensor of logits"),
    "rows of NumPy": (TOKENS, ROWS.numpy(), NO_TYPE, r"\(rows=...\): wanted a tensor of logits"),
    "a list of numbers": (TOKENS, [[0.0] * 5], NO_TYPE, r"\(rows=...\): wanted .*floating-point logits"),
    "integers": (TOKENS, ROWS.int(), NO_TYPE, r"floating-point logits.*got torch.int32"),
    "a flat row": (TOKENS, ROWS[0], NO_VALUE, r"shape \(rows, classes\); got shape \(5,\)"),
    "other classes": (
        TOKENS,
        [ROWS[:3], torch.zeros(3, 6)],
        NO_VALUE,
        r"shape \(rows, 5\); got shape \(3, 6\)",
    ),
    "NaN": (TOKENS, ROWS * torch.nan, FileError, r"logits without NaN; got nan at row 0, class 0"),
    "+inf": (TOKENS, LATE, FileError, r"got inf at row 5, class 0"),
}


@pytest.mark.parametrize("case", BAD_WRITES)
def test_a_bad_write_says_why_and_leaves_the_old_file_and_no_other(case: str, tmp_path: Path) -> None:
    tokens, rows, error, message = BAD_WRITES[case]
    path = tmp_path / "base.kld"
    path.write_text("old")
    with pytest.raises(error, match=message):
        write_llama_base(path, tokens, rows, n_ctx=8)
    assert [p.name for p in tmp_path.iterdir()] == ["base.kld"]
    assert path.read_text() == "old"


def test_the_advised_slice_makes_all_positions_fit(tmp_path: Path) -> None:
    every = torch.randn(16, 5)
    with pytest.raises(ArgumentValueError) as caught:
        write_llama_base(tmp_path / "base.kld", TOKENS, every, n_ctx=8)
    advice = str(caught.value).split("Write: rows=")[1].split(" if ")[0]
    cut = eval(advice, {"x": every})  # noqa: S307 - the advice is to be runnable as it stands
    write_llama_base(tmp_path / "base.kld", TOKENS, cut, n_ctx=8)
    assert torch.equal(cut, torch.cat([every[4:7], every[12:15]]))


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write(tmp_path / "base.kld")
    assert (tmp_path / "base.kld").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no/base\.kld: wanted a file that can be written; got No such file"):
        write_llama_base(tmp_path / "no" / "base.kld", TOKENS, ROWS, n_ctx=8)


# --- files that are not what they should be


@pytest.mark.parametrize("keep", [8, 12, 19, 20, 40, 84, 100, -1])
def test_a_truncated_file_is_an_error_in_one_line(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    write(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        FileError, match=r"header of 20 bytes|204 bytes for n_chunk=2, n_ctx=8, n_vocab=5; got "
    ) as caught:
        open_rows(path)
    assert "\n" not in str(caught.value)


def test_a_run_that_was_stopped_is_told_by_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    write(path)
    path.write_bytes(path.read_bytes()[: 84 + 3 * 20])
    with pytest.raises(
        FileError, match=r"got 144 bytes, 3 of 6 rows; let llama-perplexity .* run to its end"
    ):
        open_rows(path)


def test_bytes_beyond_the_end_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    write(path)
    path.write_bytes(path.read_bytes() + b"\0\0")
    with refused(FileError, wanted="^204 bytes ", got="^206 bytes"):
        open_rows(path)


@pytest.mark.parametrize("header", [(2, 5, 2), (8, 0, 2), (8, 5, 0), (-8, 5, 2), (8, -5, 2)])
def test_an_impossible_header_is_an_error(header: tuple[int, int, int], tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(b"_logits_" + struct.pack("<3i", *header) + bytes(400))
    with pytest.raises(FileError, match=f"got n_ctx={header[0]}, n_vocab={header[1]}, n_chunk={header[2]}"):
        open_rows(path)


def test_the_extension_without_the_magic_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    path.write_bytes(b"_logits?" + bytes(100))
    with refused(FileError, wanted=r"a llama\.cpp file, by its extension$", got=r"_logits\?"):
        open_rows(path)


@pytest.mark.parametrize("suffix", [".kld", ".dat", ".npy", ""])
def test_the_magic_is_enough_whatever_the_extension(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"base{suffix}"
    write(path)
    with open_rows(path) as source:
        assert source.rows == 6


def test_tokens_outside_the_vocabulary_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "base"
    path.write_bytes(pack([0, 1, 3, 0], 4, [(1e-4, -7.0, [0, 1, 2])], 3))
    with refused(FileError, wanted="tokens from 0 to 2$", got="^3 at position 2"):
        open_rows(path)


@pytest.mark.parametrize(("scale", "smallest"), [(float("nan"), -7.0), (-1e-4, -7.0), (1e-4, float("inf"))])
def test_an_impossible_scale_is_an_error(scale: float, smallest: float, tmp_path: Path) -> None:
    path = tmp_path / "base"
    good = (1e-4, -7.0, [0, 1, 2])
    path.write_bytes(pack([0, 1, 2, 0, 0, 1, 2, 0], 4, [good, (scale, smallest, [0, 1, 2])], 3))
    with open_rows(path) as source, refused(FileError, wanted="finite scale ", got=" in row 1"):
        list(source.blocks(rows=1))


def test_the_file_says_itself_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "base.kld"
    write(path)
    for representation in (None, "logits", "log-probs"):
        with open_rows(path, representation=representation) as source:
            assert source.representation == "logits"
    with refused(FileError, wanted="representation='logits' or none", got="^representation='probs'"):
        open_rows(path, representation="probs")
    with refused(FileError, wanted="^no key"):
        open_rows(path, key="x")


# --- a partner


def test_a_partner_of_the_scored_positions_walks_in_step(tmp_path: Path) -> None:
    rows = write(tmp_path / "base.kld", 3, 16, 10)
    np.save(tmp_path / "q.npy", rows.numpy())
    with (
        open_rows(tmp_path / "base.kld") as p,
        open_rows(tmp_path / "q.npy", representation="logits", name="q") as q,
    ):
        pairs = list(paired_blocks(p, q, rows=4))
    for _, a, b in pairs:
        torch.testing.assert_close(a.softmax(-1), b.softmax(-1), rtol=0, atol=1e-4)
    assert sum(len(a) for _, a, _ in pairs) == 21


@pytest.mark.parametrize("swapped", [False, True])
def test_a_partner_of_all_positions_is_told_which_to_keep(swapped: bool, tmp_path: Path) -> None:
    write(tmp_path / "base.kld", 3, 16, 10)
    np.save(tmp_path / "q.npy", np.zeros((48, 10)))
    message = r"only positions 8 to 14 of each window of 16 tokens: .*keep x\.reshape\(3, 16, 10\)\[:, 8:15\]"
    with (
        open_rows(tmp_path / "base.kld") as p,
        open_rows(tmp_path / "q.npy", representation="logits", name="q") as q,
        refused(FileError, instead=message),
    ):
        paired_blocks(*((q, p) if swapped else (p, q)))
