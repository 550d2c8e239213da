"""Texts with a teacher's rows: servers' answers for given ids, the shift by one token, and batches of texts."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.functional import Scored, TopK, distillation_loss
from kullback.integrations.stored_teachers import StoredTeacherCollator
from kullback.io import open_top_k, scored_text
from tests.refusals import refused

INF = math.inf
CLASSES = 5


def bigrams(seed: int) -> Tensor:
    """The logits of a model of pairs of tokens: row i has the logits of the token after token i."""
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(CLASSES, CLASSES, generator=generator, dtype=torch.float64)


TEACHER, STUDENT = bigrams(1), bigrams(2)
TEXTS = [[1, 4, 2, 0, 3], [2, 2], [3, 1, 0]]


def students_choice(tokens: list[int]) -> list[list[int]]:
    """The student's two most probable tokens at each position but the last, one of them at every other position."""
    top = STUDENT[tokens[:-1]].topk(2).indices.tolist()
    return [[a, -1] if place % 2 else [a, b] for place, (a, b) in enumerate(top)]


def scores(tokens: list[int], ids: list[list[int]]) -> list[list[float]]:
    log_probs = TEACHER.log_softmax(-1)
    return [
        [float(log_probs[token, i]) if i >= 0 else -INF for i in row]
        for token, row in zip(tokens, ids, strict=False)
    ]


def npy(values: Any) -> str:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values, dtype=np.float32))
    return base64.b64encode(buffer.getvalue()).decode()


def of_vllm(tokens: list[int]) -> dict[str, Any]:
    return {
        "prompt_token_ids": tokens,
        "prompt_token_id_logprobs": npy(scores(tokens, students_choice(tokens))),
    }


def of_sglang(tokens: list[int], ids: list[int]) -> dict[str, Any]:
    listed = scores(tokens[:-1], [ids] * (len(tokens) - 1))
    own = [[None, tokens[0], None], *([0.0, token, None] for token in tokens[1:])]
    rows = [[[x, i, None] for x, i in zip(row, ids, strict=True)] for row in listed]
    meta = {
        "prompt_tokens": len(tokens),
        "input_token_logprobs": own,
        "input_token_ids_logprobs": [None, *rows],
    }
    return json.loads(json.dumps({"text": "", "meta_info": meta}))


def reverse_kl(token: int, ids: list[int]) -> float:
    """The reverse KL at the position of a token, of the listed classes and of all others as one."""
    p, q = (x[token].softmax(-1).tolist() for x in (TEACHER, STUDENT))
    pairs = [(p[i], q[i]) for i in ids]
    pairs.append((1 - sum(x for x, _ in pairs), 1 - sum(y for _, y in pairs)))
    return sum(y * math.log(y / x) for x, y in pairs)


def test_a_batch_of_scored_texts_has_the_loss_of_its_positions() -> None:
    """By enumeration: each position but the last of each text counts once, and padding nowhere."""
    texts = [scored_text(of_vllm(tokens), ids=students_choice(tokens)) for tokens in TEXTS]
    batch = next(iter(DataLoader(texts, batch_size=3, collate_fn=StoredTeacherCollator())))  # type: ignore[arg-type]
    assert batch["input_ids"].tolist() == [[*x, *[0] * (5 - len(x))] for x in TEXTS]
    assert batch["attention_mask"].sum(-1).tolist() == [5, 2, 3]
    teacher = Scored(batch["teacher_indices"], batch["teacher_log_probs"])
    listed = (teacher.indices >= 0).any(-1)
    assert listed.sum(-1).tolist() == [4, 1, 2]
    student = STUDENT[batch["input_ids"]].requires_grad_()
    got = distillation_loss(student=student, teacher=teacher, mask=listed, kind="reverse_kl")
    right = [
        reverse_kl(token, [i for i in ids if i >= 0])
        for tokens in TEXTS
        for token, ids in zip(tokens, students_choice(tokens), strict=False)
    ]
    assert got.item() == pytest.approx(sum(right) / 7, rel=1e-5)
    (gradient,) = torch.autograd.grad(got, student)
    assert (gradient[~listed] == 0).all()
    assert (gradient[listed] != 0).any(-1).all()


def test_all_forms_of_an_answer_are_the_same() -> None:
    tokens, ids = TEXTS[0], students_choice(TEXTS[0])
    want = scored_text(of_vllm(tokens), ids=ids)
    values = scores(tokens, ids)
    clamped = [[-9999.0 if x == -INF else x for x in row] for row in values]
    for answer in (
        SimpleNamespace(prompt_token_ids=tokens, prompt_token_id_logprobs=np.array(values, dtype=np.float32)),
        {"prompt_token_ids": tokens, "prompt_token_id_logprobs": torch.tensor(values)},
        {"choices": [{"prompt_token_ids": tokens, "prompt_token_id_logprobs": clamped}]},
    ):
        for listed in (ids, torch.tensor(ids)):
            got = scored_text(answer, ids=listed)
            assert got.keys() == want.keys() == {"input_ids", "teacher_indices", "teacher_log_probs"}
            for name, x in got.items():
                assert torch.equal(x, want[name]), name
    assert want["teacher_indices"].tolist() == [*ids, [-1, -1]]


def test_a_start_leaves_out_the_first_positions() -> None:
    tokens, ids = TEXTS[0], students_choice(TEXTS[0])
    answer = {"prompt_token_ids": tokens, "prompt_token_id_logprobs": npy(scores(tokens, ids)[2:])}
    whole, part = scored_text(of_vllm(tokens), ids=ids), scored_text(answer, ids=ids[2:], start=2)
    for name in ("teacher_indices", "teacher_log_probs"):
        assert torch.equal(part[name][2:], whole[name][2:])
    assert (part["teacher_indices"][:2] == -1).all()
    assert (part["teacher_log_probs"][:2] == -INF).all()


def test_sglang_scores_the_same_ids_at_each_position() -> None:
    tokens = TEXTS[0]
    text = scored_text(of_sglang(tokens, [4, 1]))
    teacher = Scored(text["teacher_indices"], text["teacher_log_probs"])
    assert teacher.indices.tolist() == [[4, 1]] * 4 + [[-1, -1]]
    got = distillation_loss(
        student=STUDENT[text["input_ids"]],
        teacher=teacher,
        mask=teacher.indices[:, 0] >= 0,
        kind="reverse_kl",
    )
    right = [reverse_kl(token, [4, 1]) for token in tokens[:-1]]
    assert got.item() == pytest.approx(sum(right) / 4, rel=1e-5)


def test_a_token_that_the_teacher_forbids_is_known() -> None:
    answer = {"prompt_token_ids": [0, 1], "prompt_token_id_logprobs": [[-9999.0, -0.5]]}
    text = scored_text(answer, ids=[[3, 4]])
    teacher = Scored(text["teacher_indices"], text["teacher_log_probs"])
    loss = distillation_loss(
        student=torch.zeros(2, 5), teacher=teacher, mask=torch.tensor([True, False]), kind="reverse_kl"
    )
    assert loss == INF


def sglang(listed: list[Any]) -> dict[str, Any]:
    """An answer for a prompt of two tokens."""
    return {"meta_info": {"input_token_ids_logprobs": listed, "input_token_logprobs": [[0, 1], [0, 2]]}}


GOOD = {"prompt_token_ids": [0, 1, 2], "prompt_token_id_logprobs": [[-0.5], [-0.25]]}


@pytest.mark.parametrize(
    ("answer", "settings", "argument", "says"),
    [
        ({"prompt_token_ids": [0, 1]}, {}, "response", "prompt_token_ids"),
        ({"prompt_token_id_logprobs": [[-0.5]]}, {"ids": [[1]]}, "response", "prompt_token_id_logprobs"),
        (3, {}, "response", "int"),
        (GOOD, {}, "ids", r"request\['prompt_logprob_token_ids'\]"),
        (GOOD, {"ids": [[1]]}, "ids", "2 rows"),
        (GOOD, {"ids": [[1, 2], [1, 2]]}, "ids", r"shape \(2, 2\)"),
        (GOOD, {"ids": [[1], [1]], "start": 1}, "ids", "1 rows, one for each token after position 1"),
        (GOOD, {"ids": [[1], [1, 2]]}, "ids", "padded by -1"),
        (GOOD, {"ids": [[1], [-1]]}, "ids", "-1 with a log-probability"),
        (GOOD, {"ids": [[1], [1]], "start": -1}, "start", "0 or more"),
        (GOOD | {"prompt_token_id_logprobs": "AAAA"}, {"ids": [[1], [1]]}, "response", ".npy"),
        (GOOD | {"prompt_token_id_logprobs": "not base64"}, {"ids": [[1], [1]]}, "response", ".npy"),
        (GOOD | {"prompt_token_id_logprobs": [["x"], ["y"]]}, {"ids": [[1], [1]]}, "response", ".npy"),
        (sglang([None, [3]]), {}, "response", "entries"),
        (sglang([None]), {}, "response", "1 lists for 2 tokens"),
    ],
)
def test_wrong_answers_are_refused(answer: Any, settings: Any, argument: str, says: str) -> None:
    with refused((ArgumentTypeError, ArgumentValueError), call="scored_text", argument=argument, says=says):
        scored_text(answer, **settings)


def test_pickled_arrays_are_not_read() -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    answer = GOOD | {"prompt_token_id_logprobs": base64.b64encode(buffer.getvalue()).decode()}
    with refused(ArgumentValueError, argument="response", got="allow_pickle"):
        scored_text(answer, ids=[[1], [1]])


def top_answer(tokens: list[int], k: int) -> dict[str, Any]:
    """The answer of vLLM with the k most probable tokens of the teacher, and the true token."""
    rows: list[Any] = [None]
    for token, following in itertools.pairwise(tokens):
        log_probs = TEACHER[token].log_softmax(-1)
        ids = dict.fromkeys([following, *log_probs.topk(k).indices.tolist()])
        rows.append({str(i): {"logprob": float(log_probs[i])} for i in ids})
    return {"prompt_token_ids": tokens, "prompt_logprobs": rows}


def test_a_batch_of_listed_texts_has_the_loss_of_its_positions() -> None:
    with open_top_k([top_answer(tokens, 2) for tokens in TEXTS], classes=CLASSES) as source:
        texts = list(source.texts())
        assert [x["input_ids"].tolist() for x in source.texts()] == TEXTS  # each call begins anew
    batch = StoredTeacherCollator()(texts)
    following = [[*x[1:], -100] for x in TEXTS]
    assert batch["teacher_labels"].tolist() == [[*x, *[-100] * (5 - len(x))] for x in following]
    listed = (batch["teacher_indices"] >= 0).any(-1)
    teacher = TopK(batch["teacher_indices"], batch["teacher_log_probs"])
    got = distillation_loss(student=STUDENT[batch["input_ids"]], teacher=teacher, mask=listed)
    right: list[float] = []
    for tokens in TEXTS:
        for token, label in itertools.pairwise(tokens):
            p, q = (x[token].softmax(-1) for x in (TEACHER, STUDENT))
            ids = sorted({label, *p.topk(2).indices.tolist()})
            p, q = (torch.cat([x[ids], 1 - x[ids].sum()[None]]) for x in (p, q))
            right.append(float((p * (p / q).log()).sum()))
    assert got.item() == pytest.approx(sum(right) / 7, rel=1e-5)


def test_texts_of_a_stored_batch_with_lengths() -> None:
    batch = {
        "teacher_topk_indices": torch.tensor([[[0, 1], [2, 3], [4, 0]], [[1, 2], [0, 3], [0, 0]]]),
        "teacher_topk_logits": torch.zeros(2, 3, 2),
        "input_ids": torch.tensor([[3, 1, 2], [4, 0, 0]]),
        "input_lengths": torch.tensor([3, 2]),
    }
    with open_top_k(batch) as source:
        first, second = source.texts()
    assert first["teacher_indices"].tolist() == [
        [0, 1],
        [2, 3],
        [4, 0],
    ]  # a trainer's rows are already in place
    assert first["teacher_labels"].tolist() == [1, 2, -100]
    assert second["input_ids"].tolist() == [4, 0]
    assert second["teacher_indices"].tolist() == [[1, 2], [0, 3]]


def test_texts_without_tokens_or_without_their_prompt_are_refused() -> None:
    entries = [[-0.4, 3, None], [-1.6, 1, None]]
    unknown = {"prompt_logprobs": [None, {"3": {"logprob": -0.4}}]}
    with open_top_k(unknown) as source, refused(FileError, wanted="all tokens", instead="return_token_ids"):
        list(source.texts())
    with open_top_k(unknown | {"prompt_token_ids": [0, 3]}) as source:  # the remedy
        assert len(list(source.texts())) == 1
    completion = {"meta_info": {"output_token_logprobs": entries[:1], "output_top_logprobs": [entries]}}
    with open_top_k(completion) as source, refused(FileError, got="first token of text 0", instead="prompt"):
        list(source.texts())
