"""Models on a server: the top log-probabilities are those of the model behind it, and a failure is one clear line."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("httpx")

from kullback import KL
from kullback.errors import ModelError
from kullback.functional import TopK, top_k_divergence
from kullback.io.windows import Windows
from kullback.models.huggingface_model import read_vocabulary
from kullback.models.server import ServerModel, _largest_untold
from kullback.models.vocabulary import Token, Vocabulary
from tests.models import tiny, tiny_server
from tests.refusals import refused

LENGTH, WINDOWS, TOP = 40, 7, 8
SPEAKERS = ["vllm", "sglang", "openai"]
REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder's model, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.models.tiny_server", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_folder(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server of the folder's model in a thread: another process would import transformers again."""
    server = tiny_server.server(str(folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return read_vocabulary(tiny.make_tokenizer())


def encode(text: str) -> list[int]:
    return tiny.make_tokenizer()(text, add_special_tokens=False)["input_ids"]


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Windows that begin with BOS and end with a line, so that their text gives back the same tokens."""
    lines = [line for line in tiny.text().splitlines(keepends=True) if len(line) > 70 and line.isascii()]
    parts = [torch.tensor([0, *encode(line)]) for line in lines[:WINDOWS]]
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    scored = torch.cat([torch.arange(len(part)) > len(part) // 2 for part in parts])
    return Windows(torch.cat(parts), offsets, scored)


@pytest.fixture(scope="module")
def expected(windows: Windows) -> torch.Tensor:
    """The log-probabilities of the scored tokens' distributions, by transformers in this process."""
    model, rows = tiny.make_model(), []
    with torch.inference_mode():
        for number in range(len(windows)):
            tokens, scored = windows.window(number)
            rows.append(model(tokens[None]).logits[0].double().log_softmax(-1)[:-1][scored[1:]])
    return torch.cat(rows)


def opened(address: str, speaks: str, vocabulary: Vocabulary, **options) -> ServerModel:
    classes = options.pop("classes", tiny.CLASSES)
    settings = {"top": TOP, "first_wait": 0.01} | options
    model = ServerModel(f"{address}/{speaks}", **settings)
    model.vocabulary, model.info = vocabulary, replace(model.info, classes=classes)
    return model


def has_own_text(vocabulary: Vocabulary, token: int) -> bool:
    """Whether a token is whole characters, which no other has when what is no character is left out."""
    if token >= len(vocabulary):
        return False
    try:
        text = vocabulary[token].content.decode()
    except UnicodeDecodeError:
        return False
    return [each.content.decode(errors="ignore") for each in vocabulary].count(text) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("speaks", SPEAKERS)
def test_the_log_probabilities_are_those_of_the_model(address, vocabulary, windows, expected, speaks):
    with opened(address, speaks, vocabulary) as model:
        assert (model.speaks, model.info.kind, model.name) == (speaks, "server", f"{address}/{speaks}")
        blocks = list(model.top_k(windows))
    assert [int(block.sequences[0]) for block in blocks] == list(range(WINDOWS))
    row = cut = listed = 0
    for number, block in enumerate(blocks):
        tokens, scored = windows.window(number)
        places = scored.nonzero().squeeze(-1)
        assert torch.equal(block.positions, places)
        assert torch.equal(block.labels, tokens[places])
        for index in range(len(block)):
            truth = expected[row]
            kept = block.top_log_probs[index] != -torch.inf
            classes, values = block.top_indices[index][kept], block.top_log_probs[index][kept]
            assert ((values - truth[classes]).abs() < 1e-4).all()
            assert abs(block.label_log_probs[index] - truth[block.labels[index]]) < 1e-4
            label = {int(block.labels[index])}
            top = set(truth.topk(TOP).indices.tolist())
            if speaks == "openai" and not all(has_own_text(vocabulary, token) for token in top | label):
                # By their text alone some tokens cannot be told: those that are more probable remain.
                kept = set(classes.tolist()) - (label - top)
                assert kept == set(truth.topk(len(kept)).indices.tolist())
                assert all(has_own_text(vocabulary, token) for token in kept - label)
                cut += 1
            else:
                assert set(classes.tolist()) == top | label
                listed += len(top)
            outside = torch.ones(len(truth), dtype=torch.bool)
            outside[classes] = False
            assert block.tail_log_mass[index].exp() == pytest.approx(
                float(truth[outside].exp().sum()), abs=1e-5
            )
            row += 1
    assert row == len(expected)
    assert listed > 0
    assert (cut > 0) == (speaks == "openai")


@pytest.mark.sweep
@pytest.mark.parametrize("speaks", SPEAKERS)
def test_the_divergence_from_another_model_is_a_lower_bound(address, vocabulary, windows, expected, speaks):
    other = tiny.make_model(noise=0.3)
    with torch.inference_mode():
        logits = torch.cat(
            [
                other(windows.window(number)[0][None]).logits[0][:-1][windows.window(number)[1][1:]]
                for number in range(len(windows))
            ]
        )
    whole = (expected.exp() * (expected - logits.double().log_softmax(-1))).sum(-1)
    with opened(address, speaks, vocabulary) as model:
        blocks = list(model.top_k(windows))
    known = torch.cat(
        [
            top_k_divergence(KL(), TopK(block.top_indices, block.top_log_probs), rows)
            for block, rows in zip(blocks, logits.split([len(block) for block in blocks]), strict=True)
        ]
    )
    assert (known <= whole + 1e-5).all()
    assert known.mean() > 0.02 * whole.mean() > 0.002


@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_recorded_answers_give_the_values_in_them(address, vocabulary, speaks):
    # "the capital of France is", from its third token on
    windows = Windows(
        torch.tensor([1782, 6722, 315, 9625, 374]),
        torch.tensor([0, 5]),
        torch.tensor([False] * 2 + [True] * 3),
    )
    with opened(address, f"recorded-{speaks}", vocabulary, classes=151936, top=3) as model:
        assert model.speaks == speaks
        (block,) = model.top_k(windows)
    assert block.positions.tolist() == [2, 3, 4]
    assert block.labels.tolist() == [315, 9625, 374]
    assert block.label_log_probs.tolist() == [-0.58203125, -3.53125, -2.84375]
    rows = [
        {315: -0.58203125, 3283: -2.140625, 374: -3.765625},
        {279: -1.0390625, 9625: -3.53125, 5616: -3.96875},
        {13: -2.09375, 58883: -2.34375, 11: -2.40625, 374: -2.84375},
    ]
    for index, row in enumerate(rows):
        pairs = zip(block.top_indices[index].tolist(), block.top_log_probs[index].tolist(), strict=True)
        assert {token: value for token, value in pairs if value != -torch.inf} == row
        assert block.tail_log_mass[index].exp() == pytest.approx(
            1 - sum(map(math.exp, row.values())), abs=1e-12
        )


def test_windows_can_begin_later(address, vocabulary, windows):
    with opened(address, "vllm", vocabulary, concurrency=2) as model:
        whole, later = list(model.top_k(windows)), list(model.top_k(windows, first=5))
    assert [int(block.sequences[0]) for block in later] == [5, 6]
    for a, b in zip(whole[5:], later, strict=True):
        assert torch.equal(a.top_indices, b.top_indices)
        assert torch.equal(a.top_log_probs, b.top_log_probs)


def test_a_run_that_is_left_early_can_be_followed_by_another(address, vocabulary, windows):
    with opened(address, "vllm", vocabulary) as model:
        first = next(iter(model.top_k(windows)))
        again = next(iter(model.top_k(windows)))
    assert torch.equal(first.top_log_probs, again.top_log_probs)


@pytest.mark.parametrize("speaks", ["vllm", "sglang"])
def test_the_server_cuts_texts_and_knows_its_first_token(address, vocabulary, speaks):
    with opened(address, speaks, vocabulary) as model:
        assert model.encode(tiny.text()) == encode(tiny.text())
        assert model.bos == 0
        model.require_same_tokens(tiny.text(), encode)


def test_another_tokenizer_is_refused(address, vocabulary):
    other = tiny.make_tokenizer(tokens=400)
    with opened(address, "vllm", vocabulary) as model, pytest.raises(ModelError, match="same token ids; got"):
        model.require_same_tokens(
            tiny.text(), lambda text: other(text, add_special_tokens=False)["input_ids"]
        )


def test_all_logits_are_not_to_be_had(address, vocabulary, windows):
    with opened(address, "vllm", vocabulary) as model, refused(ModelError, instead="call top_k"):
        model.logits(windows, 10)


def test_llama_server_is_refused_and_what_can_is_named(address, vocabulary):
    with pytest.raises(ModelError, match=r"got llama-server, .* vLLM, SGLang and llama-cpp-python's server"):
        opened(address, "llama-server", vocabulary)


def test_what_is_no_server_of_models_is_refused(address, vocabulary):
    with refused(ModelError, got="neither as vLLM, SGLang nor"):
        opened(address, "nothing", vocabulary)


def test_more_tokens_than_the_server_gives_are_refused_with_both_remedies(address, vocabulary, windows):
    with (
        opened(address, "vllm", vocabulary, top=30) as model,
        refused(ModelError, got="max allowed: 20") as caught,
    ):
        list(model.top_k(windows))
    assert "--top 20" in str(caught.value)
    assert "--max-logprobs 30" in str(caught.value)
    with opened(address, "vllm", vocabulary, top=20) as model:  # the first remedy
        assert len(list(model.top_k(windows))) == WINDOWS


def test_a_window_that_is_too_long_names_the_context(address, vocabulary):
    tokens = torch.full((600,), 5)
    windows = Windows(tokens, torch.tensor([0, 600]), torch.arange(600) > 500)
    with opened(address, "vllm", vocabulary) as model, refused(ModelError, instead="--context"):
        list(model.top_k(windows))


def test_a_busy_server_is_asked_again(address, vocabulary, windows):
    with opened(address, "vllm;busy=3", vocabulary) as model:
        assert len(list(model.top_k(windows))) == WINDOWS


def test_a_server_that_stays_busy_is_given_up(address, vocabulary, windows):
    with (
        opened(address, "vllm;busy=1000", vocabulary) as model,
        refused(ModelError, got=r"after 0 of 7 windows \(status 503: loading\)"),
    ):
        list(model.top_k(windows))


@pytest.mark.heavy
def test_a_server_that_dies_says_after_how_many_windows(folder, vocabulary, windows):
    with served(folder) as address, opened(address, "vllm;die=3", vocabulary, concurrency=1) as model:
        blocks = model.top_k(windows)
        assert [int(next(blocks).sequences[0]) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ModelError, match=r"after 3 of 7 windows .*--resume") as caught:
            next(blocks)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("positive", "the answer for window 0 is damaged: .*natural log-probabilities"),
        ("short", "as many prompt_logprobs as prompt_token_ids"),
        ("other", "the server has read other tokens"),
        ("none", "wanted prompt_logprobs"),
        ("long", "wanted an answer of at most"),
    ],
)
def test_a_damaged_answer_is_refused(address, vocabulary, windows, damage, said):
    with (
        opened(address, f"vllm;damage={damage}", vocabulary) as model,
        pytest.raises(ModelError, match=said) as caught,
    ):
        list(model.top_k(windows))
    assert "\n" not in str(caught.value)


def test_a_redirection_is_not_followed(address, vocabulary):
    with refused(ModelError, got="redirection to http://localhost:1/"):
        opened(address, "vllm;redirect", vocabulary)


def test_a_key_comes_from_the_environment_and_is_never_shown(address, vocabulary, windows, monkeypatch):
    speaks = "vllm;key=s3cr3t"
    with refused(ModelError, instead="--api-key-env NAME"):
        opened(address, speaks, vocabulary)
    with refused(ModelError, instead="export TINY_KEY="):
        opened(address, speaks, vocabulary, api_key_env="TINY_KEY")
    monkeypatch.setenv("TINY_KEY", "wr0ng")
    with refused(ModelError, instead="check the key") as caught:
        opened(address, speaks, vocabulary, api_key_env="TINY_KEY")
    assert "wr0ng" not in str(caught.value)
    assert "[key]" in str(caught.value)  # the server had repeated it
    monkeypatch.setenv("TINY_KEY", "s3cr3t")
    with opened(address, speaks, vocabulary, api_key_env="TINY_KEY") as model:
        assert len(list(model.top_k(windows))) == WINDOWS


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://user:pass@localhost:8000", "an address without a password"),
        ("ftp://localhost", "http://host:port"),
        ("http://", "http://host:port"),
        ("http://localhost:8000/?a=b", "http://host:port"),
        ("http://localhost:port", "write http://localhost:8000"),
    ],
)
def test_an_address_that_is_none_is_refused(address, said):
    with refused(ModelError, says=said) as caught:
        ServerModel(address)
    assert "pass@" not in str(caught.value)


def test_nobody_at_the_address_is_one_line():
    with refused(ModelError, instead="check that it runs") as caught:
        ServerModel("http://127.0.0.1:1", first_wait=0.001)
    assert "\n" not in str(caught.value)


def test_the_end_of_an_address_may_be_its_version(address):
    with ServerModel(f"{address}/vllm/v1/") as model:
        assert model.name == f"{address}/vllm"


def test_log_probabilities_of_other_tokens_than_they_claim_are_refused(address, vocabulary, windows):
    """Without BOS, llama-cpp-python lists each token with the distribution after it."""
    tokens, scored = windows.window(0)
    bare = Windows(tokens[1:], torch.tensor([0, len(tokens) - 1]), scored[1:])
    said = "as llama-cpp-python gives for models without BOS"
    with opened(address, "openai;bare", vocabulary) as model, refused(ModelError, got=said):
        list(model.top_k(bare))


def test_text_that_gives_other_tokens_is_refused(address, vocabulary):
    tokens = torch.tensor([0, *(token for letter in "model" for token in encode(letter))])
    windows = Windows(tokens, torch.tensor([0, len(tokens)]), torch.arange(len(tokens)) > 3)
    assert encode("model") != tokens[1:].tolist()
    with (
        opened(address, "openai", vocabulary) as model,
        refused(ModelError, instead="a server that takes token ids"),
    ):
        list(model.top_k(windows))


def test_the_first_token_has_no_log_probabilities_on_a_server_that_takes_text(address, vocabulary, windows):
    tokens, _ = windows.window(0)
    every = Windows(tokens, torch.tensor([0, len(tokens)]), torch.arange(len(tokens)) > 0)
    with (
        opened(address, "openai", vocabulary) as model,
        refused(ModelError, instead="--score second-half"),
    ):
        list(model.top_k(every))


def test_text_within_a_character_is_refused(address, vocabulary):
    byte = next(i for i, token in enumerate(vocabulary) if token is not None and token.content == b"\xe2")
    windows = Windows(torch.tensor([0, byte, 5, 6]), torch.tensor([0, 4]), torch.arange(4) > 1)
    with (
        opened(address, "openai", vocabulary) as model,
        refused(ModelError, got="within a character"),
    ):
        list(model.top_k(windows))


def test_without_a_vocabulary_text_cannot_be_sent(address, windows):
    with (
        ServerModel(f"{address}/openai") as model,
        refused(ModelError, got="vocabulary is not known"),
    ):
        list(model.top_k(windows))


@pytest.mark.parametrize(
    ("others", "text", "value", "bound"),
    [
        ({"a": -1.0, "b": -2.0}, "c", -1.5, -math.inf),  # all can be told
        ({"a": -1.0, "b": -2.0, "c": -3.0}, "", -7.0, -math.inf),  # the true token stands beside them
        ({"a": -1.0, "": -2.0}, "b", -1.5, -2.0),  # a text that tells nothing
        ({"a": -1.0}, "", -1.5, math.log(1 - math.exp(-1) - math.exp(-1.5))),  # one is hidden behind another
        ({"a": -1.0, "": -3.0}, "b", -7.0, math.log(1 - math.exp(-1) - math.exp(-3) - math.exp(-7))),
    ],
)
def test_the_bound_on_tokens_that_cannot_be_told(others, text, value, bound):
    assert _largest_untold(others, text, value, {"a": 1, "b": 2, "c": 3}, 3) == pytest.approx(
        bound, rel=1e-12
    )


@pytest.mark.heavy
def test_words_of_several_tokens_stand_for_none_of_them(address):
    words = Vocabulary(
        [
            Token(b"<s>", special=True),
            Token(b" a"),
            Token(b" a\xe2"),
            Token(b"b"),
            Token(b"\xe2"),
            None,
            Token("ä".encode()),
        ]
    )
    with opened(address, "openai", words) as model:
        assert model._unique_words == {"<s>": 0, " a\N{REPLACEMENT CHARACTER}": 2, "b": 3, "ä": 6} | {
            "\N{REPLACEMENT CHARACTER}": 4
        }
