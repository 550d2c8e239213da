"""Stored teachers in trainers: rows of the wrong tokens are refused, and sequences of different lengths are padded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kullback.errors import ArgumentTypeError, ArgumentValueError
from kullback.integrations.batch_loss import BatchLoss
from kullback.integrations.stored_teachers import StoredTeacherCollator
from kullback.io import open_top_k
from kullback.nn import DistillationLoss
from tests.integrations.tiny import CLASSES, language_models
from tests.refusals import refused

pytest.importorskip("transformers", reason="transformers is not installed")

K = 6


def left_or_right(side: str) -> Any:
    """A collator that pads tokens and labels on a side."""

    def pad(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: pad_sequence(
                [row[name] for row in rows], batch_first=True, padding_value=value, padding_side=side
            )
            for name, value in (("input_ids", 0), ("labels", -100), ("attention_mask", 0))
        }

    return pad


def drawn(teacher: Any, lengths: tuple[int, ...], seed: int = 0) -> list[dict[str, Tensor]]:
    """Texts that the teacher wrote, with its predictions as vLLM numbers them, read from its response."""
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, Tensor]] = []
    for length in lengths:
        tokens = torch.tensor([[1]])
        with torch.no_grad():
            while tokens.shape[1] < length:
                last = teacher(tokens).logits[:, -1].softmax(-1)
                tokens = torch.cat([tokens, torch.multinomial(last, 1, generator=generator)], 1)
            log_probs = teacher(tokens).logits[0].log_softmax(-1)
        response: list[Any] = [None]
        for place, token in enumerate(tokens[0, 1:].tolist()):
            top = dict.fromkeys([token, *log_probs[place].topk(K).indices.tolist()])
            response.append({str(each): {"logprob": float(log_probs[place, each])} for each in top})
        with open_top_k(
            {"prompt_logprobs": response, "prompt_token_ids": tokens[0].tolist()}, classes=CLASSES
        ) as source:
            block = next(source.blocks())
        k = block.top_indices.shape[-1]
        indices, logs = torch.zeros(length, k, dtype=torch.int64), torch.full((length, k), -torch.inf)
        labels = torch.full((length,), -100)
        indices[block.positions], logs[block.positions] = block.top_indices, block.top_log_probs
        labels[block.positions] = block.labels
        rows.append(
            {"input_ids": tokens[0], "labels": tokens[0], "attention_mask": torch.ones_like(tokens[0])}
            | {"teacher_indices": indices, "teacher_log_probs": logs, "teacher_labels": labels}
        )
    return rows


def without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in batch.items() if name != "teacher_labels"}


def test_rows_of_the_token_before_are_refused_and_the_remedies_work() -> None:
    student, teacher = language_models()
    rows = drawn(teacher, (24, 24, 24))
    own = StoredTeacherCollator(left_or_right("right"))(rows)
    loss = BatchLoss("DistillationTrainer", DistillationLoss(), None, causal=True)
    with refused(
        ArgumentValueError,
        argument="teacher_labels",
        wanted="row i",
        got=r"at index \(0, 1\)",
        instead="rows_predict='own'",
    ):
        loss(student, own)
    with refused(
        ArgumentValueError, argument="teacher_indices", got="66 rows, of which 66 list the token at their"
    ):
        loss(student, without_labels(own))
    moved = StoredTeacherCollator(left_or_right("right"), rows_predict="own")(rows)
    rolled = {name: x.roll(-1, 1) if name.startswith("teacher_") else x for name, x in own.items()}
    values = [loss(student, each)[0].item() for each in (moved, without_labels(moved), rolled)]
    # Of each position before the last: the kept classes, and all others as one.
    right: list[Tensor] = []
    with torch.no_grad():
        for row in rows:
            q = student(row["input_ids"][None]).logits[0].double().softmax(-1)
            for place in range(len(q) - 1):
                kept = row["teacher_log_probs"][place + 1] > -torch.inf
                p_kept = row["teacher_log_probs"][place + 1][kept].double().exp()
                q_kept = q[place, row["teacher_indices"][place + 1][kept]]
                p_all, q_all = (torch.cat([x, 1 - x.sum()[None]]) for x in (p_kept, q_kept))
                right.append((p_all * (p_all / q_all).log()).sum())
    assert values == pytest.approx([float(torch.stack(right).mean())] * 3, rel=1e-5)


def test_stored_rows_of_any_alignment_by_chance_are_taken() -> None:
    student, _ = language_models()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        tokens = torch.randint(3, CLASSES, (4, 16), generator=generator)
        indices = torch.rand(4, 16, CLASSES, generator=generator).topk(K).indices
        batch = {"input_ids": tokens, "labels": tokens, "teacher_indices": indices}
        batch["teacher_log_probs"] = torch.full((4, 16, K), -3.0)
        loss = BatchLoss("DistillationTrainer", DistillationLoss(), None, causal=True)
        assert torch.isfinite(loss(student, batch)[0])


def test_sequences_of_different_lengths_are_padded_on_either_side() -> None:
    student, teacher = language_models()
    lengths = (5, 12, 9)
    rows = drawn(teacher, lengths)
    rows[0] |= {
        name: rows[0][name][:, :4] for name in ("teacher_indices", "teacher_log_probs")
    }  # fewer tokens
    loss = BatchLoss("DistillationTrainer", DistillationLoss(), None, causal=True)
    alone = [
        loss(student, StoredTeacherCollator(left_or_right("right"), "own")([row]))[0].item() * (length - 1)
        for row, length in zip(rows, lengths, strict=True)
    ]
    for side in ("left", "right"):
        batch = StoredTeacherCollator(left_or_right(side), rows_predict="own")(rows)
        assert batch["teacher_indices"].shape == batch["teacher_log_probs"].shape
        assert batch["teacher_labels"].shape == batch["input_ids"].shape == (3, 12)
        padding = batch["attention_mask"] == 0
        assert bool((batch["teacher_log_probs"][padding] == -torch.inf).all())
        if side == "left":  # the model's positions follow from the mask
            batch["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        right = sum(alone) / sum(length - 1 for length in lengths)
        assert loss(student, batch)[0].item() == pytest.approx(right, rel=1e-4), side


def numbered(*sequences: list[int]) -> list[dict[str, Tensor]]:
    """Sequences whose stored predictions list each token's own number."""
    tokens = [torch.tensor(sequence) for sequence in sequences]
    return [
        {"input_ids": x, "labels": x, "attention_mask": torch.ones_like(x)}
        | {"teacher_indices": x[:, None], "teacher_log_probs": torch.zeros(len(x), 1)}
        for x in tokens
    ]


def without_mask(side: str) -> Any:
    def pad(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: x for name, x in left_or_right(side)(rows).items() if name != "attention_mask"}

    return pad


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_without_a_mask_is_padded_on_the_side_of_its_tokens(side: str) -> None:
    # The tokens of the last row fit at both ends, so the other rows decide.
    batch = StoredTeacherCollator(without_mask(side))(numbered([5, 0, 7], [8, 9], [0, 0]))
    stored = batch["teacher_indices"][..., 0]
    assert torch.equal(stored.clamp(min=0), batch["input_ids"])
    assert stored.tolist()[1:] == ([[-1, 8, 9], [-1, 0, 0]] if side == "left" else [[8, 9, -1], [0, 0, -1]])
    # A row without padding begins at 0 even if the collator changed its tokens.
    alone = StoredTeacherCollator(lambda _: {"input_ids": torch.zeros(1, 2)})(numbered([8, 9]))
    assert alone["teacher_indices"].tolist() == [[[8], [9]]]
    # The row's own mask excludes a token, and shows no padding.
    rows = numbered([5, 6, 7], [8, 9])
    rows[1]["attention_mask"][0] = 0
    stored = StoredTeacherCollator(left_or_right(side))(rows)["teacher_indices"][1, :, 0]
    assert stored.tolist() == ([-1, 8, 9] if side == "left" else [8, 9, -1])


def test_a_batch_that_does_not_show_its_padding_is_refused_and_the_remedy_works() -> None:
    rows = numbered([5, 6, 7], [0, 0])
    remedy = r"^StoredTeacherCollator\(\), whose default"
    with refused(
        ArgumentValueError, argument="collator", got="row 1, whose tokens fit at both", instead=remedy
    ):
        StoredTeacherCollator(without_mask("left"))(rows)
    for changed in (
        lambda rows: {"input_ids": torch.zeros(2, 3)},
        lambda rows: {"input_ids": torch.zeros(2, 4)},
    ):
        with refused(ArgumentValueError, argument="collator", got="at neither end, without", instead=remedy):
            StoredTeacherCollator(changed)(numbered([5, 6, 7], [8, 9]))
    flat = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}
    with refused(ArgumentValueError, argument="collator", got="1 rows for 2 sequences", instead=remedy):
        StoredTeacherCollator(lambda _: flat)(numbered([5, 6, 7], [8, 9]))
    assert StoredTeacherCollator()(rows)["teacher_indices"][1, :, 0].tolist() == [0, 0, -1]


def test_wrong_rows_are_refused() -> None:
    rows = drawn(language_models()[1], (5, 6))
    collator = StoredTeacherCollator(left_or_right("right"))
    short = [rows[0] | {"teacher_indices": rows[0]["teacher_indices"][1:]}, rows[1]]
    with refused(
        ArgumentValueError, argument="teacher_indices", wanted="each of the 5 tokens", got=r"^shape \(4, "
    ):
        collator(short)
    with refused(ArgumentValueError, argument="teacher_log_probs", got="^none"):
        collator([rows[0], {name: x for name, x in rows[1].items() if name != "teacher_log_probs"}])
    with refused(ArgumentValueError, argument="rows_predict"):
        StoredTeacherCollator(left_or_right("right"), rows_predict="previous")
    with refused(ArgumentTypeError, argument="collator"):
        StoredTeacherCollator(None)
