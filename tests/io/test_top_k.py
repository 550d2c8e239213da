"""Log-probabilities as servers return them: responses written here by the form that each server documents."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError
from kullback.functional import TopK
from kullback.io import PartialRows, open_top_k, paired_top_k_blocks
from kullback.io.top_k import TOP_K_FORMATS
from tests.refusals import refused

CLASSES, LENGTH, K = 40, 7, 3


@dataclass
class Truth:
    """A text and the distributions before each of its tokens but the first."""

    tokens: list[int]
    log_probs: torch.Tensor  # (LENGTH, CLASSES), float32; row 0 is not served

    def top(self, position: int, k: int = K) -> list[tuple[int, float]]:
        values, ids = self.log_probs[position].topk(k)
        return list(zip(ids.tolist(), values.tolist(), strict=True))

    def at(self, position: int) -> float:
        return self.log_probs[position, self.tokens[position]].item()

    def rank(self, position: int) -> int:
        return int((self.log_probs[position] > self.at(position)).sum()) + 1


def truth(seed: int = 0) -> Truth:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(LENGTH, CLASSES, generator=generator)
    log_probs = logits.log_softmax(-1)
    # Every other true token is among the most probable.
    tokens = [
        int(log_probs[i].argmax()) if i % 2 else int(torch.randint(CLASSES, (1,), generator=generator))
        for i in range(LENGTH)
    ]
    return Truth(tokens, log_probs)


def text_of(token: int) -> str:
    return f" t{token}"


TOKENS = {text_of(i): i for i in range(CLASSES)}


# --- writers, each by the documentation of its server


def vllm_rows(t: Truth) -> list[dict[str, Any] | None]:
    rows: list[dict[str, Any] | None] = [None]
    for i in range(1, LENGTH):
        entries = {str(t.tokens[i]): {"logprob": t.at(i), "rank": t.rank(i), "decoded_token": "x"}}
        for rank, (token, value) in enumerate(t.top(i), 1):
            entries[str(token)] = {"logprob": value, "rank": rank, "decoded_token": "x"}
        rows.append(entries)
    return rows


def vllm_completion(t: Truth) -> dict[str, Any]:
    choice = {"index": 0, "text": "a", "prompt_logprobs": vllm_rows(t), "prompt_token_ids": t.tokens}
    return {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]}


def vllm_chat(t: Truth) -> dict[str, Any]:
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "a"}, "logprobs": None}],
        "prompt_logprobs": vllm_rows(t),
    }


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class RequestOutput:
    prompt_token_ids: list[int] | None
    prompt_logprobs: Any
    outputs: list[Any] = field(default_factory=list)


def vllm_object(t: Truth) -> RequestOutput:
    rows = [
        row and {int(token): Logprob(each["logprob"], each["rank"]) for token, each in row.items()}
        for row in vllm_rows(t)
    ]
    return RequestOutput(t.tokens, rows)


@dataclass
class FlatLogprobs:
    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start_indices)


def vllm_flat(t: Truth) -> RequestOutput:
    flat = FlatLogprobs()
    for i in range(LENGTH):
        flat.start_indices.append(len(flat.token_ids))
        if i:
            rows = [(t.tokens[i], t.at(i), t.rank(i))]
            rows += [(token, value, rank) for rank, (token, value) in enumerate(t.top(i), 1)]
            for token, value, rank in rows:  # the true token twice, where it is among the others
                flat.token_ids.append(token)
                flat.logprobs.append(value)
                flat.ranks.append(rank)
        flat.end_indices.append(len(flat.token_ids))
    return RequestOutput(t.tokens, flat)


def sglang(t: Truth) -> dict[str, Any]:
    top = [None, *([[value, token, None] for token, value in t.top(i)] for i in range(1, LENGTH))]
    true = [[t.at(i) if i else None, t.tokens[i], None] for i in range(LENGTH)]
    return {
        "text": "",
        "meta_info": {
            "id": "1",
            "prompt_tokens": LENGTH,
            "input_token_logprobs": true,
            "input_top_logprobs": top,
            "output_token_logprobs": [],
            "output_top_logprobs": [],
        },
    }


def openai_chat(t: Truth) -> dict[str, Any]:
    def entry(token: int, value: float) -> dict[str, Any]:
        text = text_of(token)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    content = [
        {
            **entry(t.tokens[i], t.at(i)),
            "top_logprobs": [entry(token, value) for token, value in t.top(i)],
        }
        for i in range(1, LENGTH)
    ]
    return {"object": "chat.completion", "choices": [{"index": 0, "logprobs": {"content": content}}]}


def openai_completion(t: Truth, name: Any = text_of) -> dict[str, Any]:
    log_probs = {
        "tokens": [name(token) for token in t.tokens],
        "token_logprobs": [None, *(t.at(i) for i in range(1, LENGTH))],
        "top_logprobs": [
            None,
            *({name(token): value for token, value in t.top(i)} for i in range(1, LENGTH)),
        ],
        "text_offset": [0] * LENGTH,
    }
    return {"object": "text_completion", "choices": [{"text": "", "index": 0, "logprobs": log_probs}]}


def openai_completion_ids(t: Truth) -> dict[str, Any]:
    return openai_completion(t, lambda token: f"token_id:{token}")


def llama_server(t: Truth) -> dict[str, Any]:
    def entry(token: int, value: float) -> dict[str, Any]:
        return {"id": token, "token": "x", "bytes": [120], "logprob": value}

    found = [
        {
            **entry(t.tokens[i], t.at(i)),
            "top_logprobs": [entry(token, value) for token, value in t.top(i)],
        }
        for i in range(1, LENGTH)
    ]
    return {"content": "x", "tokens": [], "stop": True, "completion_probabilities": found}


def llama_server_after_samplers(t: Truth) -> dict[str, Any]:
    def entry(token: int, value: float) -> dict[str, Any]:
        return {"id": token, "token": "x", "bytes": [120], "prob": math.exp(value)}

    found = [
        {**entry(t.tokens[i], t.at(i)), "top_probs": [entry(token, value) for token, value in t.top(i)]}
        for i in range(1, LENGTH)
    ]
    return {"content": "x", "completion_probabilities": found}


@dataclass(frozen=True)
class Server:
    """A form of response: its format, its writer, and what it tells."""

    format: str
    write: Any
    first: int = 1  # the position of the first distribution
    skipped: int = 1
    in_file: bool = True
    tokens: bool = False


SERVERS = {
    "vllm completion": Server("vllm", vllm_completion),
    "vllm chat": Server("vllm", vllm_chat),
    "vllm object": Server("vllm", vllm_object, in_file=False),
    "vllm flat": Server("vllm", vllm_flat, in_file=False),
    "sglang": Server("sglang", sglang),
    "openai chat": Server("openai", openai_chat, first=0, skipped=0, tokens=True),
    "openai completion": Server("openai", openai_completion, tokens=True),
    "openai completion with ids": Server("openai", openai_completion_ids),
    "llama-server": Server("llama-server", llama_server, first=0, skipped=0),
    "llama-server after samplers": Server("llama-server", llama_server_after_samplers, first=0, skipped=0),
}
EACH = pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
STORED = {name: server for name, server in SERVERS.items() if server.in_file}
EACH_STORED = pytest.mark.parametrize("server", STORED.values(), ids=STORED)


def options(server: Server) -> dict[str, Any]:
    return {"classes": CLASSES, "tokens": TOKENS if server.tokens else None}


def check_rows(block: PartialRows, t: Truth, server: Server, sequence: int = 0) -> None:
    """The block is the truth: its classes, their log-probabilities, the true token's, and the mass left."""
    assert block.sequences.tolist() == [sequence] * (LENGTH - 1)
    assert block.positions.tolist() == list(range(server.first, server.first + LENGTH - 1))
    assert block.top_log_probs.dtype == torch.float32
    for row, position in enumerate(range(1, LENGTH)):
        expected = dict(t.top(position))
        expected[t.tokens[position]] = t.at(position)
        kept = block.top_log_probs[row] > -torch.inf
        ids = block.top_indices[row][kept].tolist()
        assert sorted(ids) == sorted(expected)
        values = torch.tensor([expected[i] for i in ids])
        torch.testing.assert_close(block.top_log_probs[row][kept], values, rtol=1e-6, atol=1e-7)
        left = 1 - math.fsum(math.exp(value) for value in expected.values())
        assert math.exp(block.tail_log_mass[row].item()) == pytest.approx(left, abs=1e-6)
        assert block.labels[row] == t.tokens[position]
        assert block.label_log_probs[row].item() == pytest.approx(t.at(position), rel=1e-6)


@EACH
def test_a_response_in_memory_is_recognized_and_read(server: Server) -> None:
    t = truth()
    with open_top_k(server.write(t), **options(server)) as source:
        assert (source.format, source.tail, source.classes) == (server.format, "bucket", CLASSES)
        (block,) = source.blocks()
        assert source.skipped == server.skipped
        check_rows(block, t, server)
        TopK(block.top_indices, block.top_log_probs)  # which checks the values again


@EACH
def test_the_tokens_of_a_sequence_are_those_of_the_text(server: Server) -> None:
    truths = [truth(seed) for seed in range(2)]
    with open_top_k([server.write(t) for t in truths], **options(server)) as source:
        for t, tokens in zip(truths, source.token_ids(), strict=True):
            if server.write is vllm_chat:
                assert tokens is None
            else:  # of a completion, those that were generated
                assert tokens is not None
                assert tokens.tolist() == t.tokens[1 - server.first :]
        block = next(source.blocks(rows=100))
        for sequence, tokens in enumerate(source.token_ids()):
            rows = block.sequences == sequence
            assert tokens is None or torch.equal(tokens[block.positions[rows]], block.labels[rows])


def test_the_first_token_of_a_prompt_may_be_one_without_a_text() -> None:
    response = openai_completion(truth())
    response["choices"][0]["logprobs"]["tokens"][0] = "<s>"
    with open_top_k(response, tokens=TOKENS) as source:
        assert list(source.token_ids()) == [None]
        assert len(next(source.blocks())) == LENGTH - 1


@EACH_STORED
@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_responses_in_a_file_are_sequences_in_blocks_of_any_size(
    server: Server, suffix: str, tmp_path: Path
) -> None:
    truths = [truth(seed) for seed in range(3)]
    path = tmp_path / f"x{suffix}"
    responses = [server.write(t) for t in truths]
    path.write_text(
        json.dumps(responses) if suffix == ".json" else "\n".join(map(json.dumps, responses)) + "\n\n"
    )
    with open_top_k(path, **options(server)) as source:
        assert source.format == server.format
        for sequence, (block, t) in enumerate(zip(source.blocks(rows=LENGTH - 1), truths, strict=True)):
            check_rows(block, t, server, sequence)
        whole = next(source.blocks(rows=100))
        pieces = list(source.blocks(rows=4))
        assert [len(piece) for piece in pieces] == [4, 4, 4, 4, 2]
        start = 0
        for piece in pieces:
            k = piece.top_indices.shape[1]
            stop = start + len(piece)
            assert torch.equal(piece.top_log_probs, whole.top_log_probs[start:stop, :k])
            assert bool((whole.top_log_probs[start:stop, k:] == -torch.inf).all())
            assert torch.equal(piece.labels, whole.labels[start:stop])
            start = stop
        assert source.skipped == 3 * server.skipped


def test_the_true_token_outside_the_list_is_one_more_known_class() -> None:
    row = {"7": {"logprob": -3.0, "rank": 9}, "1": {"logprob": -0.5, "rank": 1}}
    ranked = {"1": {"logprob": -0.5, "rank": 1}, "2": {"logprob": -1.5, "rank": 2}}
    block = next(open_top_k({"prompt_logprobs": [None, row, ranked]}).blocks())
    assert block.top_indices.tolist() == [[7, 1], [1, 2]]
    assert block.labels.tolist() == [7, 1]
    assert block.label_log_probs.tolist() == [-3.0, -0.5]
    assert block.tail_log_mass.exp().tolist() == pytest.approx(
        [1 - math.exp(-3) - math.exp(-0.5), 1 - math.exp(-0.5) - math.exp(-1.5)]
    )
    sglang_row = {
        "input_token_logprobs": [[None, 4, None], [-3.0, 7, None]],
        "input_top_logprobs": [None, [[-0.5, 1, None]]],
    }
    block = next(open_top_k({"meta_info": sglang_row}).blocks())
    assert block.top_indices.tolist() == [[1, 7]]
    assert block.counts.tolist() == [2]


def test_vllm_entries_that_something_has_sorted_tell_no_true_token() -> None:
    t = truth()
    response = vllm_chat(t)
    response["prompt_logprobs"] = [
        row and dict(sorted(row.items(), key=lambda each: int(each[0]))) for row in vllm_rows(t)
    ]
    block = next(open_top_k(response).blocks())
    assert block.labels.unique().tolist() == [-100]
    assert bool(block.label_log_probs.isnan().all())
    with open_top_k(vllm_chat(t)) as source:
        list(source.blocks())
        assert source.caveats() == [
            "the true tokens are taken to stand first at each position, as vLLM writes them"
        ]
    with open_top_k(vllm_completion(t)) as source:
        list(source.blocks())
        assert source.caveats() == []


def test_a_probability_of_zero_is_no_class() -> None:
    rows = [None, {"7": {"logprob": -9999.0, "rank": 9}, "1": {"logprob": -0.5, "rank": 1}}]
    block = next(open_top_k({"prompt_logprobs": rows, "prompt_token_ids": [1, 7]}).blocks())
    assert block.top_indices.tolist() == [[1]]
    assert (block.labels.tolist(), block.label_log_probs.tolist()) == ([7], [-math.inf])
    entries = [{"id": i, "logprob": x} for i, x in ((3, -0.5), (4, -3.4028234663852886e38))]
    response = {"completion_probabilities": [{**entries[0], "top_logprobs": entries}]}
    block = next(open_top_k(response).blocks())
    assert (block.top_indices.tolist(), block.counts.tolist()) == ([[3]], [1])


def test_openai_says_of_an_improbable_true_token_only_that_it_is_not_listed() -> None:
    entries = [{"token": " t1", "logprob": -0.5, "bytes": None}]
    content = [{"token": " t7", "logprob": -9999.0, "bytes": None, "top_logprobs": entries}]
    block = next(open_top_k({"choices": [{"logprobs": {"content": content}}]}, tokens=TOKENS).blocks())
    assert block.labels.tolist() == [7]
    assert bool(block.label_log_probs.isnan().all())
    assert block.counts.tolist() == [1]


def test_all_classes_listed_leave_nothing() -> None:
    t = truth()
    rows = [None, {str(i): {"logprob": x} for i, x in t.top(1, CLASSES)}]
    response = {"prompt_logprobs": rows, "prompt_token_ids": t.tokens[:2]}
    assert next(open_top_k(response, classes=CLASSES).blocks()).tail_log_mass.tolist() == [-math.inf]
    assert next(open_top_k(response).blocks()).tail_log_mass.exp().item() == pytest.approx(0, abs=1e-6)


# --- tokens by text


def test_tokens_by_bytes_come_before_those_by_text() -> None:
    pieces = [b"\xe2\x82", b"\xac", b" a"]
    ids = {piece: i for i, piece in enumerate(pieces)}

    def entry(i: int) -> dict[str, Any]:
        return {"token": pieces[i].decode(errors="replace"), "logprob": -1.5 - i, "bytes": list(pieces[i])}

    content = [{**entry(0), "top_logprobs": [entry(i) for i in range(3)]}]
    response = {"choices": [{"logprobs": {"content": content}}]}
    assert next(open_top_k(response, tokens=ids).blocks()).top_indices.tolist() == [[0, 1, 2]]
    texts = {"\ufffd": 5, " a": 6}  # two tokens of one text
    with refused(FileError, wanted="each token once at a position$", got="^5 at sequence 0, position 0"):
        next(open_top_k(response, tokens=texts).blocks())


def test_text_without_a_mapping_names_it() -> None:
    with (
        refused(FileError, wanted="^tokens=, ", got=r"^no tokens=, and ' t\d+' at .*choice 0"),
        open_top_k(openai_chat(truth())) as source,
    ):
        next(source.blocks())
    with (
        refused(FileError, wanted="^a token that tokens= has$", got=r"^' t\d+'"),
        open_top_k(openai_chat(truth()), tokens={"a": 0}) as source,
    ):
        next(source.blocks())


def test_llama_servers_old_form_has_probabilities_by_text() -> None:
    probs = [
        {"tok_str": " t3", "prob": 0.75},
        {"tok_str": " t5", "prob": 0.25},
        {"tok_str": " t6", "prob": 0},
    ]
    response = {"completion_probabilities": [{"content": " t5", "probs": probs}]}
    with open_top_k(response, tokens=TOKENS) as source:
        block = next(source.blocks())
        assert (block.top_indices.tolist(), block.labels.tolist()) == ([[3, 5]], [5])
        assert block.top_log_probs.exp().tolist() == [[0.75, 0.25]]
        assert source.caveats()[0].startswith("the probabilities are those after the samplers")


# --- positions


def test_sglang_positions_begin_where_its_log_probabilities_do() -> None:
    meta = sglang(truth())["meta_info"] | {"prompt_tokens": LENGTH + 5}
    block = next(open_top_k({"meta_info": meta}).blocks())
    assert block.positions.tolist() == list(range(6, 5 + LENGTH))


def test_sglang_true_tokens_of_the_position_before_are_refused() -> None:
    response = sglang(truth())
    true = response["meta_info"]["input_token_logprobs"]
    response["meta_info"]["input_token_logprobs"] = [[None, 0, None], *([*each] for each in true[:-1])]
    response["meta_info"]["input_token_logprobs"][1][0] = -1.0
    for position, row in enumerate(response["meta_info"]["input_top_logprobs"][1:], 1):
        response["meta_info"]["input_token_logprobs"][position][1] = row[0][1]  # listed, of another value
    with refused(FileError, instead="neither shifted nor cut"), open_top_k(response) as source:
        list(source.blocks())


def test_sglang_generated_tokens_are_read_where_the_prompt_has_none() -> None:
    meta = {
        "input_token_logprobs": [],
        "input_top_logprobs": [],
        "output_token_logprobs": [[-0.5, 3, None]],
        "output_top_logprobs": [[[-0.5, 3, None], [-1.5, 4, None]]],
    }
    block = next(open_top_k({"meta_info": meta}).blocks())
    assert (block.positions.tolist(), block.labels.tolist()) == ([0], [3])


def test_several_choices_are_several_sequences() -> None:
    first, second = openai_completion_ids(truth(0)), openai_completion_ids(truth(1))
    response = {"choices": [*first["choices"], *second["choices"]]}
    block = next(open_top_k(response).blocks())
    assert block.sequences.tolist() == [0] * (LENGTH - 1) + [1] * (LENGTH - 1)


# --- two sources


def test_two_servers_are_paired_in_order(tmp_path: Path) -> None:
    truths = [truth(seed) for seed in range(3)]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps(sglang(t)) for t in truths))
    with open_top_k(path) as p, open_top_k([llama_server(t) for t in truths], name="q") as q:
        pairs = list(paired_top_k_blocks(p, q, rows=4))
        assert [(len(a), len(b)) for a, b in pairs] == [(4, 4)] * 4 + [(2, 2)]
        for a, b in pairs:
            assert torch.equal(a.labels, b.labels)
            assert torch.equal(a.positions, b.positions + 1)
            assert torch.equal(a.label_log_probs, b.label_log_probs)


@pytest.mark.parametrize(
    ("q", "classes", "message"),
    [
        ([vllm_chat(truth(0))], None, r"\(list\) and q = .*wanted as many positions in both; got 12 and 6; "),
        ([vllm_chat(truth(seed)) for seed in range(3)], None, "as many positions in both; got 12 and 18"),
        ([vllm_completion(truth(0)), vllm_completion(truth(2))], None,
         r"the same true tokens; got \d+ and \d+ at sequence 1, positions \d and \d; compare files made from the"),
        ([vllm_chat(truth(0))] * 2, 50, "as many classes in both; got 40 and 50; use one vocabulary"),
    ],
)  # fmt: skip
def test_sources_of_other_texts_are_not_paired(q: Any, classes: int | None, message: str) -> None:
    p = open_top_k([vllm_completion(truth(0)), vllm_completion(truth(1))], classes=CLASSES)
    with pytest.raises(FileError, match=message):
        list(paired_top_k_blocks(p, open_top_k(q, classes=classes, name="q"), rows=5))


def test_sequences_of_other_lengths_are_not_paired() -> None:
    def served(*lengths: int) -> Any:
        return open_top_k([{"target_logprobs": [[-0.5]] * n, "target_token_ids": [[1]] * n} for n in lengths])

    with refused(
        FileError, wanted="as many positions in each sequence of both$", got="^others in sequence 0"
    ):
        list(paired_top_k_blocks(served(3, 5), served(4, 4)))


# --- what is refused


def wrong_entry(entry: Any) -> dict[str, Any]:
    return {"prompt_logprobs": [None, entry], "prompt_token_ids": [1, 2]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"2": {"logprob": 0.5}}, r"at most 0; got 0\.5 at sequence 0, position 1"),
        ({"2": {"logprob": math.nan}}, "a log-probability; got nan"),
        ({"2": {"logprob": math.inf}}, r"at most 0; got inf at sequence 0, position 1"),
        ({"2": {"logprob": "-0.5"}}, r"a number; got '-0.5' at .*position 1"),
        ({"2": {"logprob": True}}, "a number; got True"),
        ({"2": {"rank": 1}}, "an entry with a logprob; got a dict"),
        ({"two": {"logprob": -1.0}}, "token ids as keys; got 'two'"),
        ({"-2": {"logprob": -1.0}}, "an integer of 0 or more; got -2"),
        ({"99": {"logprob": -1.0}}, "token ids from 0 to 39; got 99 at sequence 0, position 1"),
        ({"9" * 30: {"logprob": -1.0}}, "an integer of 0 or more; got 999"),
        ({"2": {"logprob": -0.1}, "3": {"logprob": -0.1}}, r"at most 1 within 0\.0001 \(float32\); got 1\.80967"),
        ([1, 2], "a mapping from token ids; got a list at record 0, position 1"),
        (3, "a mapping from token ids; got 3"),
    ],
)  # fmt: skip
def test_values_that_are_no_log_probabilities_are_refused_by_position(entry: Any, message: str) -> None:
    with pytest.raises(FileError, match=message):
        list(open_top_k(wrong_entry(entry), classes=CLASSES).blocks())


def test_rounding_of_float32_is_accepted_and_no_more() -> None:
    block = next(open_top_k(wrong_entry({"2": {"logprob": 2e-6}})).blocks())
    assert block.tail_log_mass.tolist() == [-math.inf]
    with refused(FileError, wanted="at most 0$", got=r"^0\.001"):
        list(open_top_k(wrong_entry({"2": {"logprob": 1e-3}})).blocks())


def without(record: dict[str, Any], *keys: Any) -> dict[str, Any]:
    """Remove what stands at the end of a path of keys."""
    held: Any = record
    for key in keys[:-1]:
        held = held[key]
    del held[keys[-1]]
    return record


@pytest.mark.parametrize(
    ("response", "wanted", "message"),
    [
        ({"choices": [{"prompt_logprobs": None}]}, "vllm", r"SamplingParams\(prompt_logprobs=20\)"),
        ({"choices": [{"logprobs": None}]}, "openai", "ask for them: logprobs=true"),
        ({"choices": [{"logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]}}]},
         "openai", "the chosen token alone.*top_logprobs=20"),
        ({"meta_info": {}}, "sglang", "return_logprob=true, logprob_start_len=0, top_logprobs_num=20"),
        ({"content": "x"}, "llama-server", "n_probs=20"),
        ({"completion_probabilities": [{"logprob": -1.0, "top_logprobs": []}]}, None, "a token with its id"),
        ({"completion_probabilities": [{"id": 1, "prob": -1.0, "top_probs": []}]}, None, "a probability of 0"),
        ({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [], "top_logprobs": [None]}}]}, "openai",
         "lists of one length; got 1 in tokens, 0 in token_logprobs"),
        ({"prompt_logprobs": [None], "prompt_token_ids": [1, 2]}, None, "as prompt_token_ids, 2; got 1.*prefix"),
        ({"prompt_logprobs": 3}, None, "prompt_logprobs, a list; got 3"),
        ({"meta_info": {"input_top_logprobs": [[3]]}}, None, r"an entry \[log-probability, id, text\]; got 3"),
        ({"choices": []}, None, "wanted log-probabilities in the form of vllm, .*fields choices"),
        (["x"], None, "got a str"),
        ([], None, "at least one response; got none"),
    ],
)  # fmt: skip
def test_responses_without_log_probabilities_say_how_to_ask(
    response: Any, wanted: str | None, message: str
) -> None:
    with pytest.raises(FileError, match=message), open_top_k(response, wanted) as source:
        list(source.blocks())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "", "wanted JSON; got Expecting value"),
        ("x.json", "{", "wanted JSON; got Expecting property"),
        ("x.json", '{"a": 1}\n{"a": 1}', r"wanted JSON; got Extra data.*name it \.jsonl"),
        ("x.jsonl", "\n\n", "at least one response; got none"),
        ("x.json", "[" * 100_000, "objects nested too deep"),
        ("x.json", "\xff", "wanted JSON"),
        ("x.txt", "{}", r"a \.json, \.jsonl, .*got extension '\.txt'"),
    ],
)
def test_files_of_something_else_end_in_one_line(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content.encode("latin1"))
    with pytest.raises(FileError, match=message) as caught:
        open_top_k(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(sglang(truth())) + "\n" + json.dumps({"meta_info": {"a": 1}}) + "\nnothing\n")
    with open_top_k(path) as source, pytest.raises(FileError, match=r"x\.jsonl: .*at line 2"):
        list(source.blocks())
    path.write_text(json.dumps(sglang(truth())) + "\nnothing\n")
    with open_top_k(path) as source, refused(FileError, wanted="^JSON$", got="at line 2"):
        list(source.blocks())


def test_a_record_too_long_to_decode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kullback.io.top_k.records.LONGEST_RECORD", 100)
    for suffix in (".json", ".jsonl"):
        path = tmp_path / f"x{suffix}"
        path.write_text(json.dumps(sglang(truth())))
        with refused(FileError, instead=r"write one response a line into a \.jsonl file"):
            open_top_k(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"p = .*nowhere\.json: wanted a file; got no such file"):
        open_top_k(tmp_path / "nowhere.json", name="p")


def test_arguments_are_checked() -> None:
    with refused(
        ArgumentValueError, call="open_top_k", argument="format", wanted="^one of 'vllm', ", got="^'gguf'"
    ):
        open_top_k({}, "gguf")
    with pytest.raises(ArgumentTypeError, match=r"open_top_k\(source=...\): .*got a int"):
        open_top_k(3)
    assert {server.format for server in SERVERS.values()} < set(TOP_K_FORMATS)
