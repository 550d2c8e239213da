"""Top-k log-probabilities as a reference file."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import Tensor

from kullback.cli.commands import kullback
from kullback.errors import FileError
from kullback.io import Reference, open_top_k, write_top_k_reference
from kullback.predictions.reference_rows import join_rows, measure_reference
from tests.refusals import refused

CLASSES, LENGTH, LISTED = 40, 12, 5


def logits(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(2, LENGTH, CLASSES, generator=generator)


def tokens() -> Tensor:
    return torch.randint(CLASSES, (2, LENGTH), generator=torch.Generator().manual_seed(9))


def response(rows: Tensor, ids: Tensor, listed: int = LISTED) -> dict[str, Any]:
    """vLLM's: the most probable classes, and the token itself where it is not among them."""
    entries: list[dict[str, Any] | None] = [None]
    for row, token in zip(rows.double().log_softmax(-1)[:-1], ids[1:].tolist(), strict=True):
        chosen = dict.fromkeys([token, *row.topk(listed).indices.tolist()])
        entries.append({str(i): {"logprob": float(row[i])} for i in chosen})
    return {"prompt_logprobs": entries, "prompt_token_ids": ids.tolist()}


def responses(listed: int = LISTED) -> list[dict[str, Any]]:
    return [response(rows, ids, listed) for rows, ids in zip(logits(0), tokens(), strict=True)]


def written(tmp_path: Path, source: object, classes: int | None = CLASSES) -> tuple[Reference, list[str]]:
    path = tmp_path / "base.klref"
    with open_top_k(source, classes=classes) as opened:
        notes = write_top_k_reference(opened, path, metadata={"model": "tiny"})
    return Reference(path), notes


def test_the_file_holds_what_the_rows_say(tmp_path: Path) -> None:
    reference, notes = written(tmp_path, responses())
    truth = logits(0).double().log_softmax(-1)[:, :-1].reshape(-1, CLASSES)
    with reference:
        block = reference.read(0, reference.rows)
        assert not notes
        assert (reference.top, reference.tail_draws, reference.classes) == (LISTED, 0, CLASSES)
        assert reference.metadata["model"] == "tiny"
    assert torch.equal(reference.windows.tokens, tokens().reshape(-1))
    assert torch.equal(block.labels, tokens()[:, 1:].reshape(-1))
    best = truth.topk(LISTED)
    assert torch.equal(block.top_indices, best.indices.int())
    torch.testing.assert_close(block.top_log_probs, best.values.float(), rtol=1e-6, atol=3e-7)
    rest = torch.log(-torch.expm1(best.values.logsumexp(-1)))
    torch.testing.assert_close(block.tail_log_mass, rest.float(), rtol=1e-5, atol=1e-6)
    at_label = truth.gather(-1, block.labels[:, None])[:, 0]
    torch.testing.assert_close(block.label_log_probs, at_label.float(), rtol=1e-6, atol=1e-7)


def test_the_bounds_from_it_are_those_of_the_lists(tmp_path: Path) -> None:
    reference, _ = written(tmp_path, responses())
    candidate = logits(1)[:, :-1].reshape(-1, CLASSES)
    with reference:
        rows = join_rows(
            [
                measure_reference(block, candidate[block.start :][: len(block)])
                for block in reference.blocks(7)
            ]
        )
    base = logits(0).double().log_softmax(-1)[:, :-1].reshape(-1, CLASSES)
    truth = (base.exp() * (base - candidate.double().log_softmax(-1))).sum(-1)
    found = rows.divergences["kl_pq"]
    assert bool((found.bound <= truth * (1 + 1e-6)).all())
    assert bool((truth <= found.upper).all())
    best = base.topk(LISTED)
    p, q = (x.gather(-1, best.indices) for x in (base.exp(), candidate.double().softmax(-1)))
    p, q = (torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1) for x in (p, q))
    torch.testing.assert_close(found.bound, (p * (p / q).log()).sum(-1), rtol=1e-5, atol=1e-6)


def test_a_list_that_always_has_the_token_added_keeps_the_most_probable_alone(tmp_path: Path) -> None:
    rows, worst = logits(0)[:1], logits(0)[0, :-1].argmin(-1)
    ids = torch.cat([torch.tensor([0]), worst])
    reference, _ = written(tmp_path, response(rows[0], ids))
    with reference:
        assert reference.top == LISTED
        assert not bool((reference.read(0, reference.rows).top_indices == worst[:, None]).any())


def test_positions_without_their_token_are_not_scored_and_counted(tmp_path: Path) -> None:
    record = {
        "target_logprobs": [[-0.1, -3.0], [-0.2, -3.0], [-0.3, -3.0]],
        "target_token_ids": [[4, 5], [9, 5], [2, 5]],
    }
    with refused(FileError, wanted="positions with a known token and log-probability"):
        written(tmp_path, record)
    torch.manual_seed(0)
    indices = torch.tensor([[[1, 2], [3, 4], [5, 6]]])
    held = {
        "teacher_topk_indices": indices,
        "teacher_topk_logits": torch.log(torch.tensor([0.5, 0.25])).expand(1, 3, 2),
        "input_ids": torch.tensor([[0, 2, 7]]),
    }
    with refused(FileError, wanted="the mass outside the listed classes"):
        written(tmp_path, held)


@pytest.mark.parametrize(
    ("change", "classes", "words"),
    [
        (lambda r: r, None, "the number of all classes"),
        (lambda r: {"prompt_logprobs": r["prompt_logprobs"]}, CLASSES, "positions with a known token"),
    ],
)
def test_what_is_not_known_is_refused_and_nothing_is_written(
    tmp_path: Path, change: Any, classes: int | None, words: str
) -> None:
    with refused(FileError, wanted=words):
        written(tmp_path, change(responses()[0]), classes)
    assert not list(tmp_path.iterdir())


def test_lists_without_the_tokens_before_them_are_refused(tmp_path: Path) -> None:
    tensors = {
        "indices": torch.tensor([[[1, 2], [3, 4]]]),
        "log_probs": torch.tensor([0.5, 0.25]).log().repeat(1, 2, 1),
        "labels": torch.tensor([[1, 4]]),
    }
    save_file(tensors, tmp_path / "lists.safetensors")
    with refused(FileError, wanted="all tokens of each sequence"):
        written(tmp_path, tmp_path / "lists.safetensors")


def test_probabilities_above_1_are_refused(tmp_path: Path) -> None:
    """A reader of lists lets 1e-4 pass, a reference file 1e-5."""
    entries = {"1": {"logprob": math.log(0.5)}, "2": {"logprob": math.log(0.50005)}}
    record = {"prompt_logprobs": [None, entries], "prompt_token_ids": [0, 1]}
    with refused(FileError, wanted="sum to 1 within 1e-05"):
        written(tmp_path, record)


def test_convert_writes_it(tmp_path: Path) -> None:
    source, target = tmp_path / "served.json", tmp_path / "base.klref"
    source.write_text(json.dumps(responses()))
    run = CliRunner().invoke
    result = run(kullback, ["convert", str(source), str(target), "--classes", str(CLASSES)])
    assert result.exit_code == 0, result.output
    with Reference(target) as reference:
        assert reference.rows == 2 * (LENGTH - 1)
    shouted = tmp_path / "base.KLREF"
    assert run(kullback, ["convert", str(source), str(shouted), "--classes", str(CLASSES)]).exit_code == 0
    assert shouted.read_bytes() == target.read_bytes()
    for arguments, words in (
        ([str(source), str(target)], "--classes 128256"),
        (
            [str(source), str(target), "--n-ctx", "8"],
            "--n-ctx goes with a target that ends in .kld; leave it out",
        ),
        (
            [str(source), "x.kld", "--classes", "40"],
            "--classes goes with a target that ends in .klref; leave it out",
        ),
        ([str(source), "x.kld"], "wanted --tokens FILE and --n-ctx N"),
    ):
        result = run(kullback, ["convert", *arguments])
        assert result.exit_code == 2
        assert words in result.output
