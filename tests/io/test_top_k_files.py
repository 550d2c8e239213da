"""Top-k log-probabilities and logits in binary files, written here as the tools that make them do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kullback.errors import FileError
from kullback.io import open_top_k
from kullback.io.top_k import top_k_arrays
from tests.refusals import refused

CLASSES = 50


def draw(*shape: int, k: int = 4, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The k most probable classes and their log-probabilities."""
    generator = torch.Generator().manual_seed(sum(shape) + k)
    logits = 2 * torch.randn(*shape, CLASSES, generator=generator, dtype=torch.float64)
    values, indices = logits.log_softmax(-1).topk(k)
    return indices, values.to(dtype)


def whole(source: Any) -> Any:
    return next(source.blocks(rows=10**6))


def read(source: Any, **options: Any) -> Any:
    with open_top_k(source, **options) as opened:
        return whole(opened)


# --- plain tensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_plain_tensors_come_back_in_their_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    indices, log_probs = draw(9, dtype=dtype)
    path = tmp_path / "x.safetensors"
    save_file({"indices": indices.int(), "log_probs": log_probs}, path, {"classes": str(CLASSES)})
    with open_top_k(path) as source:
        assert source.describe() == f"safetensors, 9 positions, 4 listed, {CLASSES} classes"
        block = whole(source)
        assert torch.equal(block.top_indices, indices)
        assert torch.equal(block.top_log_probs, log_probs)
        assert block.positions.tolist() == list(range(9))
        assert block.labels.tolist() == [-100] * 9
        left = 1 - log_probs.double().exp().sum(-1)
        torch.testing.assert_close(block.tail_log_mass.exp(), left, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_leading_dimensions_are_sequences_and_labels_join_the_classes(suffix: str, tmp_path: Path) -> None:
    indices, log_probs = draw(3, 5)
    labels = indices[..., 1].clone()
    labels[0, 0] = -100
    labels[1, 2] = outside = next(i for i in range(CLASSES) if i not in indices[1, 2].tolist())
    values = torch.full(labels.shape, torch.nan)
    values[1, 2] = -9.5
    held = {"indices": indices, "log_probs": log_probs, "labels": labels, "label_log_probs": values}
    path = tmp_path / f"x{suffix}"
    save_file(held, path) if suffix == ".safetensors" else torch.save({**held, "note": "text"}, path)
    with open_top_k(path, classes=CLASSES) as source:
        block = whole(source)
        assert block.sequences.tolist() == [0] * 5 + [1] * 5 + [2] * 5
        assert block.positions.tolist() == list(range(5)) * 3
        assert block.labels.tolist() == labels.view(-1).tolist()
        assert block.top_indices.shape == (15, 5)
        assert (block.top_indices[7, 4], block.top_log_probs[7, 4]) == (outside, -9.5)
        assert block.counts.tolist() == [4] * 7 + [5] + [4] * 7
        expected = log_probs.view(15, 4)[:, 1].clone()
        expected[0], expected[7] = torch.nan, -9.5
        torch.testing.assert_close(block.label_log_probs, expected, rtol=0, atol=0, equal_nan=True)
        assert [len(each) for each in source.blocks(rows=4)] == [4, 4, 4, 3]
    assert torch.equal(read(held).top_log_probs, block.top_log_probs)
    read(held).top_log_probs.zero_()  # which is the caller's to change
    assert torch.equal(held["log_probs"], log_probs)


def test_a_stored_tail_is_taken_without_what_the_true_token_adds(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(
        {
            "indices": torch.tensor([[0], [0]]),
            "log_probs": torch.tensor([[-1e-8], [-1e-8]]),  # 0 in float32's sum
            "labels": torch.tensor([3, 0]),
            "label_log_probs": torch.tensor([math.log(4e-9), torch.nan]),
            "log_tail": torch.tensor([math.log(1e-8)] * 2, dtype=torch.float64),
        },
        path,
    )
    block = read(path)
    assert block.tail_log_mass.exp().tolist() == pytest.approx([6e-9, 1e-8], rel=1e-6)


def test_pieces_of_a_long_sequence_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_k_arrays, "PIECE_BYTES", 100)  # two positions
    indices, log_probs = draw(2, 7)
    path = tmp_path / "x.safetensors"
    save_file({"indices": indices, "log_probs": log_probs}, path)
    with open_top_k(path) as source:
        assert list(source.token_ids()) == [None, None]
    block = read(path)
    assert torch.equal(block.top_log_probs, log_probs.view(14, 4))
    assert block.positions.tolist() == list(range(7)) * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_probs": torch.zeros(3, 2)}, r"indices and log_probs of one shape \(\.\.\., k\).*\(3, 1\) and \(3, 2\)"),
        ({"indices": torch.zeros(3, 1)}, r"indices of integers, shape \(3, 1\); got float32"),
        ({"labels": torch.zeros(3)}, r"labels of integers, shape \(3,\); got float32"),
        ({"labels": torch.zeros(2, dtype=torch.int64)}, r"labels of integers, shape \(3,\); got int64, shape \(2,\)"),
        ({"log_tail": torch.zeros(3, dtype=torch.int64)}, "log_tail of floating-point numbers"),
        ({"log_probs": torch.tensor([[0.0], [1e-3], [0.0]])}, r"got 0\.001 at sequence 0, position 1.*raw"),
        ({"log_probs": torch.tensor([[0.0], [0.0], [1e-5]], dtype=torch.float64)}, r"got 1e-05 at .* position 2"),
        ({"log_probs": torch.tensor([[0.0], [torch.nan], [0.0]])}, "got nan at sequence 0, position 1"),
        ({"indices": torch.tensor([[0], [1], [50]])}, r"token ids from 0 to 49; got 50 at sequence 0, position 2"),
        ({"indices": torch.tensor([[0], [-1], [5]])}, "token ids from 0 to 49; got -1"),
        ({"labels": torch.tensor([0, 1, -1])}, r"a true token from 0 to 49, or -100 for none; got -1"),
        ({"label_log_probs": torch.tensor([0, 1, torch.nan])}, r"of the true token, at most 0; got 1 at"),
        ({"indices": torch.zeros(0, 1, dtype=torch.int64), "log_probs": torch.zeros(0, 1)}, "at least one position"),
    ],
)  # fmt: skip
def test_tensors_of_another_form_are_refused(
    changes: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    held = {"indices": torch.tensor([[0], [1], [2]]), "log_probs": torch.full((3, 1), -0.5), **changes}
    path = tmp_path / "x.safetensors"
    save_file(held, path)
    with pytest.raises(FileError, match=message), open_top_k(path, classes=CLASSES) as source:
        list(source.blocks())


def test_true_tokens_of_other_positions_are_refused(tmp_path: Path) -> None:
    indices, log_probs = draw(6)
    held = {
        "indices": indices,
        "log_probs": log_probs,
        "labels": indices[:, 0],
        "label_log_probs": log_probs[:, 0],
    }
    assert read(held).label_log_probs.tolist() == log_probs[:, 0].tolist()
    held["label_log_probs"] = log_probs[:, 0] * (1 + 1e-3)  # computed twice
    read(held)
    for wrong in (log_probs[:, 0].roll(1), torch.full((6,), -torch.inf)):
        held["label_log_probs"] = wrong
        with refused(
            FileError, wanted="one log-probability of the true token, ", got="^-.* at ", instead="shifted"
        ):
            read(held)


def test_a_token_twice_is_refused_and_twice_as_padding_is_not(tmp_path: Path) -> None:
    indices, log_probs = torch.tensor([[1, 0, 0], [2, 5, 2]]), torch.tensor([[-1.0, -9e9, -torch.inf]] * 2)
    log_probs[:, 1] = -torch.inf
    save_file({"indices": indices, "log_probs": log_probs}, tmp_path / "x.safetensors")
    assert read(tmp_path / "x.safetensors").counts.tolist() == [1, 1]
    log_probs[:, 2] = -2.0
    save_file({"indices": indices, "log_probs": log_probs}, tmp_path / "x.safetensors")
    with refused(FileError, wanted="each token once at a position$", got="^2 at sequence 0, position 1"):
        read(tmp_path / "x.safetensors")


def test_masses_are_held_to_the_rounding_of_the_stored_dtype(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for dtype, excess, fits in [
        (torch.float64, 1e-5, False),
        (torch.float32, 1e-5, True),
        (torch.float32, 1e-3, False),
        (torch.bfloat16, 1e-2, True),
    ]:
        log_probs = torch.tensor([[0.5, 0.5 + excess]], dtype=torch.float64).log().to(dtype)
        save_file({"indices": torch.tensor([[0, 1]]), "log_probs": log_probs}, path)
        if fits:
            assert read(path).tail_log_mass.tolist() == [-math.inf]
        else:
            with refused(FileError, wanted=rf"sum to at most 1 within .*{str(dtype)[6:]}"):
                read(path)


def test_classes_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    indices, log_probs = draw(2)
    path = tmp_path / "x.safetensors"
    save_file({"indices": indices, "log_probs": log_probs}, path, {"classes": "50"})
    with refused(FileError, wanted="^classes=50, as the file says$", got="^classes=60"):
        open_top_k(path, classes=60)
    save_file({"indices": indices, "log_probs": log_probs}, path, {"classes": "many"})
    with refused(FileError, wanted="a number of classes in the metadata$", got="^'many'"):
        open_top_k(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_tensors_of_other_names_are_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    held = {"teacher": torch.zeros(2, 3)}
    save_file(held, path) if suffix == ".safetensors" else torch.save(held, path)
    with pytest.raises(
        FileError, match=r"wanted tensors indices and log_probs, or .*got teacher;.*open_rows"
    ):
        open_top_k(path)
    with refused(FileError, wanted="^tensors indices and logits$", got="^teacher"):
        open_top_k(path, "mlx-dwq")


# --- logits of a few classes


def test_mlx_targets_are_log_probabilities_among_the_listed_classes(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for folder, batches in (("train", 2), ("valid", 1)):
        (tmp_path / folder).mkdir()
        for i in range(batches):
            logits = torch.randn(2, 3, CLASSES, generator=generator)
            values, indices = logits.topk(4)
            save_file(
                {"logits": values.bfloat16(), "indices": indices.to(torch.uint32)},
                tmp_path / folder / f"{i:010d}.safetensors",
            )
    with open_top_k(tmp_path) as source:
        assert (source.format, source.tail) == ("mlx-dwq", "renormalize")
        block = whole(source)
        assert block.sequences.tolist() == [i for i in range(4) for _ in range(3)]
        assert block.positions.tolist() == [1, 2, 3] * 4  # a row predicts the next token
        expected = values[-1, -1].bfloat16().double().log_softmax(-1).float()
        assert len(block) == 12
        assert bool(block.tail_log_mass.isnan().all())
        assert bool(block.label_log_probs.isnan().all())
    with open_top_k(tmp_path / "valid" / "0000000000.safetensors") as source:
        torch.testing.assert_close(whole(source).top_log_probs[-1], expected, rtol=1e-6, atol=0)
    assert [len(each) for each in open_top_k(tmp_path / "valid").blocks(rows=4)] == [4, 2]
    (tmp_path / "none").mkdir()
    with refused(FileError, wanted=r"a folder of \.safetensors files$", got="^none in it"):
        open_top_k(tmp_path / "none")


def test_nemo_rl_batches_have_labels_from_the_next_token_and_end_where_the_text_does(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    values, indices = torch.randn(2, 4, CLASSES, generator=generator).topk(3)
    held = {
        "teacher_topk_logits": values,
        "teacher_topk_indices": indices,
        "input_ids": torch.arange(8).view(2, 4),
        "input_lengths": torch.tensor([4, 2]),
        "token_mask": torch.ones(2, 4),
    }
    torch.save(held, tmp_path / "x.pt")
    for given in (tmp_path / "x.pt", held):
        with open_top_k(given) as source:
            assert (source.format, source.rows) == ("nemo-rl", 6)
            block = whole(source)
            assert source.skipped == 2
        assert block.sequences.tolist() == [0, 0, 0, 0, 1, 1]
        assert block.positions.tolist() == [1, 2, 3, 4, 1, 2]
        # The last position of a text has no next token; what follows is padding.
        assert block.labels.tolist() == [1, 2, 3, -100, 5, -100]
        assert bool(block.label_log_probs.isnan().all())
        torch.testing.assert_close(block.top_log_probs[4], values[1, 0].log_softmax(-1))
    with open_top_k(held) as source:
        assert [tokens.tolist() for tokens in source.token_ids()] == [[0, 1, 2, 3], [4, 5]]
    held["input_lengths"] = torch.tensor([0, 4])
    assert read(held).sequences.tolist() == [1] * 4
    for wrong in (-1, 5):
        held["input_lengths"] = torch.tensor([2, wrong])
        with pytest.raises(
            FileError, match=f"input_lengths from 0 to 4, the length of the batch; got {wrong}"
        ):
            open_top_k(held)


def test_nemo_rl_labels_survive_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_k_arrays, "PIECE_BYTES", 60)  # one position
    values, indices = torch.randn(2, 4, CLASSES, generator=torch.Generator().manual_seed(1)).topk(3)
    held = {
        "teacher_topk_logits": values,
        "teacher_topk_indices": indices,
        "input_ids": torch.arange(8).view(2, 4),
    }
    assert read(held).labels.tolist() == [1, 2, 3, -100, 5, 6, 7, -100]


def test_logits_that_are_no_numbers_are_refused() -> None:
    values, indices = torch.zeros(1, 2, 3), torch.arange(3).expand(1, 2, 3)
    values[0, 1, 1] = torch.nan
    with refused(FileError, got="^nan at sequence 0, position 2"):
        list(open_top_k({"logits": values, "indices": indices}).blocks())
    with refused(FileError, wanted=r"shape \(batch, length, k\), not empty$", got=r"^shapes \(2, 3\)"):
        open_top_k({"logits": values[0], "indices": indices[0]})
