"""The reference file: written rows against mpmath, and read from bytes that the standard library packs."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.io import PartialRows, Reference, ReferenceWriter, Windows
from kullback.partial_rows import summarize_rows
from tests import fuzz
from tests.refusals import refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

INF = float("inf")
CLASSES = 40
DTYPES = {"F32": "f", "I32": "i", "I64": "q", "U8": "B"}


def windows(rows: int = 12, classes: int = CLASSES) -> Windows:
    """Three windows; the second scores nothing, of the others all tokens but the first two."""
    generator = torch.Generator().manual_seed(rows)
    half = rows // 2
    sizes = [half + 2, 3, rows - half + 2]
    scored = torch.cat([torch.arange(size) >= (size if size == 3 else 2) for size in sizes])
    tokens = torch.randint(classes, (sum(sizes),), generator=generator)
    return Windows(tokens, torch.tensor([0, *sizes]).cumsum(0), scored)


def logits_of(rows: int = 12, classes: int = CLASSES, scale: float = 3.0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(7)) * scale


def write(path: Path, logits: Tensor, of: Windows | None = None, **options: Any) -> Windows:
    of = of or windows(len(logits), logits.shape[-1])
    with ReferenceWriter(path, of, **{"top": 4, "tail_draws": 6, **options}) as writer:
        writer.add(logits)
    return of


def write_parts(path: Path, of: Windows, parts: Iterable[Tensor | PartialRows], **options: Any) -> None:
    with ReferenceWriter(path, of, **options) as writer:
        for part in parts:
            if isinstance(part, Tensor):
                writer.add(part)
            else:
                writer.add_block(part)


def true_log_probs(row: list[float]) -> list[Any]:
    with mpmath.workdps(50):
        whole = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in row if x > -INF))
        return [mpmath.mpf(x) - whole if x > -INF else mpmath.mpf("-inf") for x in row]


def tensors_of(block: PartialRows) -> dict[str, Any]:
    return {
        field.name: getattr(block, field.name).tolist()
        for field in dataclasses.fields(block)
        if isinstance(getattr(block, field.name), Tensor)
    }


def read(path: Path) -> PartialRows:
    with Reference(path) as reference:
        return reference.read(0, reference.rows)


def pack(header: dict[str, Any], values: dict[str, list[float]]) -> bytes:
    """A file by the letter of the safetensors format, with the standard library alone."""
    body = b"".join(
        struct.pack(f"<{len(values[name])}{DTYPES[entry['dtype']]}", *values[name])
        for name, entry in header.items()
        if name != "__metadata__"
    )
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def by_hand() -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Two rows of 5 classes: (1/2, 1/4, 1/8, 1/16, 1/16), and (3/4, 1/4, 0, 0, 0)."""
    log = np.log
    values: dict[str, list[float]] = {
        "tokens": [4, 0, 2],
        "offsets": [0, 3],
        "scored": [0, 1, 1],
        "top_indices": [0, 1, 3, 2],
        "top_log_probs": [log(0.5), log(0.25), log(0.75), log(0.25)],
        "tail_indices": [2, 4, 0, 0],
        "tail_log_probs": [log(0.125), log(0.0625), -INF, -INF],
        "tail_log_mass": [log(0.25), -INF],
        "label_log_probs": [log(0.5), log(0.25)],
        "support_sizes": [5, 2],
    }
    dtypes = {"tokens": "I32", "offsets": "I64", "scored": "U8"}
    header: dict[str, Any] = {
        "__metadata__": {"format": "klref", "version": "1", "classes": "5", "model": "by hand"}
    }
    end = 0
    for name, numbers in values.items():
        dtype = dtypes.get(name, "I32" if "indices" in name or "sizes" in name else "F32")
        shape = [2, 2] if len(numbers) == 4 else [len(numbers)]
        start, end = end, end + len(numbers) * struct.calcsize(DTYPES[dtype])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return header, values


# --- the layout


def test_a_file_packed_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "hand.klref"
    path.write_bytes(pack(*by_hand()))
    with Reference(path) as reference:
        assert (reference.rows, reference.classes, reference.top, reference.tail_draws) == (2, 5, 2, 2)
        assert reference.metadata["model"] == "by hand"
        assert reference.windows.labels.tolist() == [0, 2]
        block = reference.read(0, 2)
    assert block.top_indices.tolist() == [[0, 1], [3, 2]]
    assert block.tail_indices.tolist() == [[2, 4], [0, 0]]
    torch.testing.assert_close(block.top_log_probs.exp(), torch.tensor([[0.5, 0.25], [0.75, 0.25]]))
    torch.testing.assert_close(block.tail_log_mass.exp(), torch.tensor([0.25, 0.0]))
    assert block.support_sizes.tolist() == [5, 2]


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "base.klref"
    of = write(path, logits_of(), metadata={"model": "tiny", "context": "8", "note": "ä\n"}, seed=3)
    found = load_file(path)
    block = read(path)
    for name in set(found) - {"tokens", "offsets", "scored"}:
        assert torch.equal(found[name], getattr(block, name)), name
        assert found[name].dtype == getattr(block, name).dtype
    assert torch.equal(found["tokens"].long(), of.tokens)
    assert torch.equal(found["offsets"], of.offsets)
    assert torch.equal(found["scored"].bool(), of.scored)
    with safe_open(path, "pt") as held:
        metadata = held.metadata()
    assert metadata["created_by"].startswith("kullback ")
    del metadata["created_by"]
    fixed = {"format": "klref", "version": "1", "classes": str(CLASSES), "seed": "3"}
    assert metadata == {**fixed, "model": "tiny", "context": "8", "note": "ä\n"}
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_a_position_of_a_large_vocabulary_takes_at_most_800_bytes(tmp_path: Path) -> None:
    path = tmp_path / "base.klref"
    of = Windows(torch.arange(64), torch.tensor([0, 64]), torch.arange(64) >= 32)
    with ReferenceWriter(path, of) as writer:
        writer.add(torch.arange(128256.0).expand(32, -1))
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert (path.stat().st_size - header) / 32 <= 800


# --- the values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_log_probabilities_are_the_true_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    logits = logits_of(6, scale=5).to(dtype)
    of = write(tmp_path / "a.klref", logits, top=5, tail_draws=8)
    block = read(tmp_path / "a.klref")
    for row, (x, label) in enumerate(zip(logits.double().tolist(), of.labels.tolist(), strict=True)):
        true = true_log_probs(x)
        order = sorted(range(CLASSES), key=lambda i: (-x[i], i))
        assert block.top_indices[row].tolist() == order[:5]
        with mpmath.workdps(50):
            tail = mpmath.log(mpmath.fsum(mpmath.exp(true[i]) for i in order[5:]))
        got = [
            *block.top_log_probs[row],
            *block.tail_log_probs[row],
            block.tail_log_mass[row],
            block.label_log_probs[row],
        ]
        drawn = block.tail_indices[row].tolist()
        assert set(drawn) <= set(order[5:])
        wanted = [*(true[i] for i in order[:5]), *(true[i] for i in drawn), tail, true[label]]
        # Half a unit in the last place of float32, and the same again for the rounding to float64 before.
        for a, b in zip(got, wanted, strict=True):
            assert abs(mpmath.mpf(float(a)) - b) <= abs(b) * mpmath.mpf(2) ** -24 * (1 + 1e-6)


def test_a_tiny_tail_keeps_its_digits(tmp_path: Path) -> None:
    logits = torch.tensor([[0.0, -800.0, -801.0, -802.0]], dtype=torch.float64)
    of = Windows(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([False, True]))
    write(tmp_path / "a.klref", logits, of, top=1)
    block = read(tmp_path / "a.klref")
    assert float(block.tail_log_mass[0]) == pytest.approx(
        -800 + np.log(1 + np.exp(-1) + np.exp(-2)), rel=1e-7
    )
    assert set(block.tail_indices[0].tolist()) <= {1, 2, 3}
    assert block.support_sizes.tolist() == [4]


def test_ties_go_to_the_lowest_class() -> None:
    x = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0, 3.0], [0.0, 1.0, 0.0, 1.0, 2.0]])
    block = summarize_rows(x.double(), torch.zeros(3, dtype=torch.int64), top=2, uniforms=torch.rand(3, 4))
    assert block.top_indices.tolist() == [[1, 2], [0, 1], [4, 1]]


def test_classes_without_mass(tmp_path: Path) -> None:
    logits = torch.full((4, 6), -INF)
    logits[0, 2] = 0.0
    logits[1, :3] = torch.tensor([0.0, 1.0, 2.0])
    logits[2, 1:] = torch.arange(5.0)
    logits[3] = torch.arange(6.0)
    of = Windows(torch.tensor([0, 2, 0, 0, 0]), torch.tensor([0, 5]), torch.arange(5) > 0)
    write(tmp_path / "a.klref", logits, of, top=3, tail_draws=50)
    block = read(tmp_path / "a.klref")
    assert block.support_sizes.tolist() == [1, 3, 5, 6]
    assert block.top_indices.tolist() == [[2, 0, 1], [2, 1, 0], [5, 4, 3], [5, 4, 3]]
    assert block.tail_log_mass.isinf().tolist() == [True, True, False, False]
    assert (block.tail_log_probs == -INF).all(-1).tolist() == [True, True, False, False]
    assert [sorted(set(row.tolist())) for row in block.tail_indices[2:]] == [[1, 2], [0, 1, 2]]
    assert block.label_log_probs[0] == 0
    assert block.label_log_probs[2] == -INF


def test_more_top_classes_than_there_are(tmp_path: Path) -> None:
    of = windows(4, 5)
    with ReferenceWriter(tmp_path / "a.klref", of, top=64, tail_draws=3) as writer:
        writer.add(logits_of(4, 5))
        assert writer.notes == ["top=64 is more than there are classes: all 5 are kept"]
    block = read(tmp_path / "a.klref")
    assert block.top_indices.shape == (4, 5)
    assert block.tail_log_mass.tolist() == [-INF] * 4


def test_without_draws(tmp_path: Path) -> None:
    write(tmp_path / "a.klref", logits_of(), tail_draws=0)
    assert read(tmp_path / "a.klref").tail_indices.shape == (12, 0)


# --- the draws


def test_classes_are_drawn_with_their_probability() -> None:
    weights = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.06, 0.03, 0.01])
    draws = 40_000
    uniforms = torch.rand(1, draws, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    block = summarize_rows(
        weights.log().double()[None], torch.zeros(1, dtype=torch.int64), top=2, uniforms=uniforms
    )
    counts = torch.bincount(block.tail_indices[0], minlength=7)
    expected = weights[2:] / weights[2:].sum() * draws
    assert counts[:2].tolist() == [0, 0]
    statistic = float(((counts[2:] - expected) ** 2 / expected).sum())
    assert statistic < 18.5  # the quantile 0.999 of chi-squared with 4 degrees of freedom


def test_the_largest_random_number_draws_a_class_with_mass() -> None:
    logits = torch.tensor([[5.0, 1.0, 0.0, -INF, -INF]], dtype=torch.float64)
    uniforms = torch.tensor([[0.0, 1 - 2**-53]], dtype=torch.float64)
    block = summarize_rows(logits, torch.zeros(1, dtype=torch.int64), top=1, uniforms=uniforms)
    assert block.tail_indices.tolist() == [[1, 2]]


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7], [2, 3, 6, 1]])
def test_the_bytes_do_not_depend_on_the_blocks(tmp_path: Path, sizes: list[int]) -> None:
    logits, of = logits_of(), windows()
    write(tmp_path / "whole.klref", logits, of)
    with ReferenceWriter(tmp_path / "parts.klref", of, top=4, tail_draws=6) as writer:
        for part in logits.split(sizes):
            writer.add(part)
    assert (tmp_path / "parts.klref").read_bytes() == (tmp_path / "whole.klref").read_bytes()


def test_a_window_gives_the_same_draws_whatever_comes_before_and_another_seed_others(tmp_path: Path) -> None:
    logits, of = logits_of(), windows()
    write(tmp_path / "a.klref", logits, of)
    write(tmp_path / "b.klref", torch.cat([logits[:6].flip(-1), logits[6:]]), of)
    write(tmp_path / "c.klref", logits, of, seed=1)
    a, b, c = (read(tmp_path / f"{name}.klref").tail_indices for name in "abc")
    assert torch.equal(a[6:], b[6:])
    assert not torch.equal(a[:6], b[:6])
    assert not torch.equal(a, c)
    assert not torch.equal(a[0], a[1])


def test_rows_are_copied_from_another_file(tmp_path: Path) -> None:
    of = write(tmp_path / "a.klref", logits_of())
    with (
        Reference(tmp_path / "a.klref") as source,
        ReferenceWriter(tmp_path / "b.klref", of, top=4, tail_draws=6) as writer,
    ):
        writer.add_block(source.read(0, 5))
        writer.add(logits_of()[5:8])
        for part in (source.read(8, 11), source.read(11, 12)):
            writer.add_block(part)
    assert (tmp_path / "a.klref").read_bytes() == (tmp_path / "b.klref").read_bytes()
    with refused(
        ArgumentValueError, wanted="4 top classes, 5 draws and the labels of the windows$", got="^4 and 6"
    ):
        write_parts(tmp_path / "c.klref", of, [read(tmp_path / "a.klref")], top=4, tail_draws=5)
    assert not (tmp_path / "c.klref").exists()


# --- what is refused in writing


@pytest.mark.parametrize(
    ("row", "value", "message"),
    [
        (3, float("nan"), "nan at row 3, class 2"),
        (9, INF, "inf at row 9, class 2"),
        (4, -INF, "only -inf in row 4"),
    ],
)
def test_rows_that_are_no_logits(tmp_path: Path, row: int, value: float, message: str) -> None:
    logits = logits_of()
    logits[row, slice(None) if value == -INF else 2] = value
    with refused(FileError, got=message):
        write_parts(tmp_path / "a.klref", windows(), logits.split(4))
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays_if_something_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.klref"
    write(path, logits_of())
    before = path.read_bytes()
    with refused(ArgumentValueError, wanted="12 rows, one for each scored token$", got="^5"):
        write_parts(path, windows(), [logits_of()[:5]])

    def parts() -> Iterator[Tensor]:
        yield logits_of()
        raise KeyError

    with pytest.raises(KeyError):
        write_parts(path, windows(), parts())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def with_tokens(values: Tensor) -> Windows:
    return Windows(values, torch.tensor([0, len(values)]), torch.arange(len(values)) > 0)


REFUSED: list[tuple[dict[str, Any], Tensor, type[Exception], str]] = [
    ({}, torch.zeros(12, 4, dtype=torch.int64), ArgumentTypeError, r"logits=.*floating-point.*int64"),
    ({}, torch.zeros(12), ArgumentValueError, r"shape \(rows, classes\) with at most 12 rows"),
    ({}, torch.zeros(13, 40), ArgumentValueError, r"at most 12 rows"),
    ({"metadata": {"seed": "1"}}, torch.zeros(12, 40), ArgumentValueError, r"metadata=.*got 'seed'"),
    (
        {"metadata": {"context": 512}},
        torch.zeros(12, 40),
        ArgumentTypeError,
        r"'context': int. Write: metadata=",
    ),
    ({}, torch.zeros(12, 3), ArgumentValueError, r"windows=.*below 3 where scored"),
]


@pytest.mark.parametrize(("options", "logits", "error", "message"), REFUSED)
def test_arguments_that_do_not_fit(
    tmp_path: Path, options: dict[str, Any], logits: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write(tmp_path / "a.klref", logits, windows(), **options)
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_classes_and_a_closed_writer(tmp_path: Path) -> None:
    with refused(ArgumentValueError, wanted=r"shape \(rows, 40\) with at most 7"):
        write_parts(tmp_path / "a.klref", windows(), [logits_of()[:5], logits_of(classes=41)[5:]])
    with refused(ArgumentValueError, wanted="an open file$", got="^a closed one"):
        ReferenceWriter(tmp_path / "a.klref", windows()).add(logits_of())
    with (
        refused(FileError, wanted="can be written"),
        ReferenceWriter(tmp_path / "no" / "a.klref", windows()),
    ):
        pass
    nothing = Windows(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([False, False]))
    with refused(ArgumentValueError, wanted="a scored token or more"):
        ReferenceWriter(tmp_path / "a.klref", nothing)
    first = Windows(torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([True, True]))
    with refused(ArgumentValueError, wanted="with a token before them"):
        write(tmp_path / "a.klref", logits_of(2), first)


# --- what is refused in reading

log = math.log
FAULTS: list[tuple[str, int, float, str]] = [
    ("tokens", 1, 5, r"below 5 where scored; got 5 at index 1"),
    ("tokens", 0, -1, r"tokens of 0 or more"),
    ("offsets", 0, 1, r"offsets that rise from 0"),
    ("offsets", 1, 2, r"offsets that rise from 0 to 3"),
    ("scored", 0, 1, r"with a token before them in their window; got window 0"),
    ("scored", 1, 0, r"2 scored tokens, one for each row; got 1"),
    ("scored", 1, 2, r"only 0 and 1 in scored; got 2"),
    ("top_indices", 2, 5, r"top_indices from 0 to 4; got 5, 2 in row 1"),
    ("tail_indices", 0, -1, r"tail_indices from 0 to 4; got -1, 4 in row 0"),
    ("top_log_probs", 0, float("nan"), r"top_log_probs .*got nan, -1.38\d+ in row 0"),
    ("top_log_probs", 2, -2.0, r"top_log_probs .*largest first"),
    ("top_log_probs", 0, 0.1, r"top_log_probs that are numbers of 0 or less"),
    ("top_log_probs", 0, -0.6932, r"top_log_probs that sum to 1 with the tail's mass; got -0.6932, "),
    ("tail_log_mass", 0, float("nan"), r"tail_log_mass .*got nan in row 0"),
    ("tail_log_mass", 0, -INF, r"top_log_probs that sum to 1 with the tail's mass"),
    ("tail_log_probs", 0, 1.3, r"tail_log_probs that are numbers of 0 or less; got 1.3, "),
    ("tail_log_probs", 0, float("nan"), r"tail_log_probs .*got nan"),
    ("label_log_probs", 0, 0.7, r"label_log_probs that are numbers of 0 or less; got 0.7 in row 0"),
    ("label_log_probs", 1, float("nan"), r"label_log_probs .*got nan in row 1"),
    ("support_sizes", 0, 6, r"support_sizes from 0 to 5; got 6 in row 0"),
    ("support_sizes", 1, -1, r"support_sizes from 0 to 5; got -1 in row 1"),
]


@pytest.mark.parametrize(("name", "index", "value", "message"), FAULTS)
def test_an_altered_number_is_named(
    tmp_path: Path, name: str, index: int, value: float, message: str
) -> None:
    header, values = by_hand()
    values[name][index] = value
    path = tmp_path / "a.klref"
    path.write_bytes(pack(header, values))
    with pytest.raises(FileError, match=message) as caught, Reference(path) as reference:
        reference.read(0, 2)
    assert str(caught.value).startswith(f"path = {path}: wanted ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0, 3000.0])
@pytest.mark.parametrize("top", [1, 3, 20])
def test_what_is_written_is_read_whatever_the_scale(tmp_path: Path, scale: float, top: int) -> None:
    generator = torch.Generator().manual_seed(int(scale))
    logits = torch.randn(60, 24, generator=generator, dtype=torch.float64) * scale
    logits[::3, 15:] = -INF
    write(tmp_path / "a.klref", logits, windows(60, 24), top=top, tail_draws=30)
    assert len(read(tmp_path / "a.klref")) == 60


def test_a_support_that_is_not_known_is_read(tmp_path: Path) -> None:
    header, values = by_hand()
    values["support_sizes"] = [0, 0]
    (tmp_path / "a.klref").write_bytes(pack(header, values))
    assert read(tmp_path / "a.klref").support_sizes.tolist() == [0, 0]


HEADERS: list[tuple[Any, str]] = [
    (lambda h: h["__metadata__"].pop("format"), r"metadata format='klref'; got format=None; record one"),
    (
        lambda h: h["__metadata__"].update(version="2"),
        r"version 1; got version '2'; read it by the kullback that",
    ),
    (lambda h: h["__metadata__"].update(classes="x"), r"classes, from 1 to 2147483647; got 'x'"),
    (lambda h: h["__metadata__"].update(classes="1"), r"top_indices of no more than 1 classes; got 2"),
    (lambda h: h["__metadata__"].update(model=3), r"metadata of text alone"),
    (lambda h: h.pop("tokens"), r"the tensors offsets, tokens, .*scored; got "),
    (lambda h: h.update(more=h["tokens"]), r"got .*more"),
    (lambda h: h["tokens"].update(dtype="I64"), r"tokens of I32; got I64"),
    (lambda h: h["tokens"].update(shape=[1, 3]), r"tokens of shape \(3,\); got \(1, 3\)"),
    (lambda h: h["tokens"].update(shape=[2]), r"as many bytes of tokens as its shape \(2,\) has"),
    (lambda h: h["tokens"].update(shape=[-3]), r"tokens with shape of whole numbers"),
    (lambda h: h["tail_log_mass"].update(shape=[1], data_offsets=[87, 91]), r"tail_log_mass of shape \(2,\)"),
    (lambda h: h["tokens"].update(data_offsets=[4, 16]), r"tokens to begin at byte"),
]


@pytest.mark.parametrize(("change", "message"), HEADERS)
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    header, values = by_hand()
    whole = {**values, "more": values["tokens"]}
    data = pack(header, values)[8 + len(json.dumps(header)) :]
    change(header)
    text = json.dumps(header).encode()
    (tmp_path / "a.klref").write_bytes(struct.pack("<Q", len(text)) + text + data)
    assert set(header) <= {*whole, "__metadata__"}
    with pytest.raises(FileError, match=message):
        Reference(tmp_path / "a.klref")


def test_a_file_that_is_cut_or_too_long_or_something_else(tmp_path: Path) -> None:
    path = tmp_path / "a.klref"
    data = pack(*by_hand())
    for cut in (0, 5, 8, 40, len(data) - 1):
        path.write_bytes(data[:cut])
        with refused(FileError, instead="truncated or damaged"):
            Reference(path)
    path.write_bytes(data + b"x")
    with refused(FileError, wanted="bytes for 2 rows"):
        Reference(path)
    path.write_bytes(b"\x93NUMPY" + data)
    with refused(FileError, wanted="begins with the length of its header"):
        Reference(path)
    with refused(FileError, argument="q", wanted="^a file$", got="^no such file"):
        Reference(tmp_path / "none.klref", name="q")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.klref"
    write(path, logits_of())
    with Reference(path) as reference:
        path.write_bytes(path.read_bytes()[:-300])
        with refused(FileError, instead="truncated"):
            reference.read(0, 12)


def test_ranges_and_description(tmp_path: Path) -> None:
    path = tmp_path / "a.klref"
    write(path, logits_of(), metadata={"model": "tiny\x1b[2J"})
    with Reference(path) as reference:
        assert len(reference) == 12
        assert [len(block) for block in reference.blocks(5)] == [5, 5, 2]
        whole = reference.read(0, 12)
        for block in reference.blocks(5):
            stop = block.start + len(block)
            assert tensors_of(block) == {
                key: value[block.start : stop] for key, value in tensors_of(whole).items()
            }
        lines = reference.describe()
        assert lines[0] == "12 scored tokens of 19, in 3 windows"
        assert lines[1] == "top 4 of 40 classes and 6 drawn from the rest"
        assert r"model: tiny\x1b[2J" in lines
        assert repr(reference) == f"Reference('{path}', rows=12, classes=40, top=4, tail_draws=6)"
        for start, stop in ((-1, 2), (3, 3), (0, 13)):
            with refused(ArgumentValueError, wanted="rows = 12"):
                reference.read(start, stop)


def test_damaged_files_end_in_an_answer_or_in_one_line() -> None:
    assert fuzz.run("references", range(300)) == (300, [])


def test_the_fuzzer_reaches_sound_files_and_every_check(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    real = Reference.read

    def read_and_note(self: Reference, start: int, stop: int) -> PartialRows:
        try:
            block = real(self, start, stop)
        except FileError as error:
            seen.add(str(error).split("wanted ")[1].split()[0])
            raise
        seen.add("sound")
        return block

    monkeypatch.setattr(Reference, "read", read_and_note)
    fuzz.run("references", range(300))
    assert seen >= {
        "sound",
        "top_indices",
        "top_log_probs",
        "tail_log_probs",
        "tail_log_mass",
        "label_log_probs",
    }


def test_a_selection_of_a_block_knows_the_place_of_its_first_row() -> None:
    labels, uniforms = torch.zeros(6, dtype=torch.int64), torch.full((6, 1), 0.5, dtype=torch.float64)
    logits = torch.arange(24, dtype=torch.float64).reshape(6, 4)
    block = summarize_rows(logits, labels, top=2, uniforms=uniforms, start=100)
    mask = torch.tensor([False, False, True, False, True, True])
    starts = [block[rows].start for rows in (slice(2, 4), slice(-2, None), mask, slice(6, 9), ~mask)]
    assert starts == [102, 104, 102, 100, 100]
