"""GGUF files run by llama.cpp: the logits, tokens and description are those of the same model in transformers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("gguf")
pytest.importorskip("llama_cpp", exc_type=ImportError)

from kullback.errors import ModelError
from kullback.io.windows import Windows
from kullback.models.gguf import GGUFModel, _batches
from kullback.models.vocabulary import Token
from tests.models import tiny

pytestmark = pytest.mark.heavy

LENGTH, WINDOWS = 48, 6
CONVERSATION = [
    {"role": "user", "content": "How far?"},
    {"role": "assistant", "content": "As far as P from Q."},
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """llama.cpp's threads wait for each other without sleeping, which is slow where the tests share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_folder(tmp_path_factory.mktemp("llama") / "base")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return tiny.make_gguf(folder, folder.parent / "base.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[GGUFModel]:
    with GGUFModel(path) as model:
        yield model


@pytest.fixture(scope="module")
def windows(model: GGUFModel) -> Windows:
    """Windows of several lengths, of which the later half is scored; in the last, two separate spans."""
    tokens = torch.tensor(model.encode(tiny.text())[: WINDOWS * LENGTH - 5])
    places = torch.arange(len(tokens))
    scored = places % LENGTH > LENGTH // 2
    scored[-12:-8] = False
    scored[-1] = False
    return Windows(tokens, torch.tensor([*range(0, len(tokens), LENGTH), len(tokens)]), scored)


@pytest.fixture(scope="module")
def expected(windows: Windows) -> torch.Tensor:
    """The logits of the scored tokens by transformers."""
    module, rows = tiny.make_model(), []
    with torch.inference_mode():
        for number in range(len(windows)):
            tokens, scored = windows.window(number)
            rows.append(module(tokens[None]).logits[0][:-1][scored[1:]])
    return torch.cat(rows)


@pytest.mark.parametrize("rows", [3, 1000])
def test_the_logits_are_those_of_transformers(model, windows, expected, rows):
    blocks = list(model.logits(windows, rows))
    found = torch.cat(blocks)
    assert max(map(len, blocks)) <= rows
    assert found.shape == (windows.rows, model.classes) == (len(expected), tiny.CLASSES)
    assert (found - expected).abs().max() < 1e-4
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    assert (p.exp() * (p - q)).sum(-1).abs().max() < 1e-9


def test_a_block_stays_as_it_was_when_the_next_one_comes(model, windows):
    kept, copies = [], []
    for block in model.logits(windows, 5):
        kept.append(block)
        copies.append(block.clone())
    assert torch.equal(torch.cat(kept), torch.cat(copies))


def test_windows_can_begin_later(model, windows):
    every, later = list(model.logits(windows, 1000)), list(model.logits(windows, 1000, first=4))
    assert torch.equal(torch.cat(later), torch.cat(every)[-sum(map(len, later)) :])
    assert sum(map(len, later)) == int((windows.clusters >= 4).sum())
    assert list(model.logits(windows, 5, first=len(windows))) == []


def test_a_window_beyond_one_batch_is_read_in_parts(model):
    length = 700  # llama.cpp evaluates 512 tokens at a time
    tokens = torch.tensor(model.encode(tiny.text())[:length])
    windows = Windows(tokens, torch.tensor([0, length]), torch.arange(length) >= length - 3)
    found = torch.cat(list(model.logits(windows, 2)))
    with torch.inference_mode():
        expected = tiny.make_model()(tokens[None]).logits[0, -4:-1]
    assert (found - expected).abs().max() < 1e-4


def test_batches_hold_no_more_rows_and_places_than_said():
    wanted = [False, True, True, False, True, True, True, False]
    assert list(_batches(wanted, 4, 2)) == [range(3), range(3, 6), range(6, 7)]
    assert list(_batches(wanted, 2, 9)) == [range(2), range(2, 4), range(4, 6), range(6, 7)]
    assert list(_batches([False] * 4, 2, 1)) == []


def test_the_tokens_are_those_of_the_tokenizer(model):
    tokenizer = tiny.make_tokenizer()
    for words in (tiny.text(), "", "naïve café \N{SNOWMAN}\n\t end", "<s> is text here"):
        found = model.encode(words)
        assert b"".join(model.vocabulary[number].content for number in found) == words.encode()
        if "<s>" not in words:
            assert found == tokenizer(words, add_special_tokens=False)["input_ids"]


def test_the_vocabulary_is_the_tokenizers(model):
    tokenizer = tiny.make_tokenizer()
    assert len(model.vocabulary) == tiny.CLASSES
    assert model.vocabulary[0] == Token(tiny.BOS.encode(), special=True)
    assert model.vocabulary[1] == Token(tiny.EOS.encode(), special=True)
    for number in range(2, tiny.TOKENS):
        assert model.vocabulary[number].text == Token(_bytes(tokenizer, number)).text
    assert list(model.vocabulary[tiny.TOKENS :]) == [None] * (tiny.CLASSES - tiny.TOKENS)


def _bytes(tokenizer, number: int) -> bytes:
    """The bytes of a token of GPT-2's alphabet, written out once more: printable bytes stand for themselves."""
    others = [byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174)]
    return bytes(
        others[ord(char) - 256] if ord(char) >= 256 else ord(char)
        for char in tokenizer.convert_ids_to_tokens(number)
    )


def test_a_text_that_no_encoding_has_is_cut_too(model):
    assert model.encode("a\ud800b\0") == model.encode("a?b\0")


def test_a_sentencepiece_vocabulary_has_spaces_and_bytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "_write_tokenizer", _write_sentencepiece)
    with GGUFModel(tiny.make_gguf(folder, tmp_path / "llama.gguf")) as model:
        vocabulary = model.vocabulary
        found = model.encode("the \N{SNOWMAN}")
    assert list(vocabulary[:3]) == [Token(name, special=True) for name in (b"<unk>", b"<s>", b"</s>")]
    assert [vocabulary[3 + byte].content for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert (vocabulary[259].content, vocabulary[260].content) == (b" ", b" the")
    assert vocabulary[263] is None
    assert b"".join(vocabulary[number].content for number in found) == " the \N{SNOWMAN}".encode()
    assert found[0] == 260


def _write_sentencepiece(writer, _, classes):
    import gguf

    of = gguf.TokenType
    tokens = [("<unk>", of.UNKNOWN), ("<s>", of.CONTROL), ("</s>", of.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", of.BYTE) for byte in range(256)]
    tokens += [(name, of.NORMAL) for name in ("▁", "▁the", "▁th", "▁t")]
    tokens += [(f"[PAD{number}]", of.UNUSED) for number in range(classes - len(tokens))]
    letters = dict(enumerate("the", 300))
    names = [letters.get(number, name) for number, (name, _) in enumerate(tokens)]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(names)
    writer.add_token_scores([-float(number) for number in range(classes)])
    writer.add_token_types(
        [int(of.NORMAL if number in letters else kind) for number, (_, kind) in enumerate(tokens)]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def test_the_first_token_is_what_the_file_says(folder, model, tmp_path):
    assert model.bos == 0
    plain = tiny.make_folder(tmp_path / "plain", adds_bos=False)
    with GGUFModel(tiny.make_gguf(plain, tmp_path / "plain.gguf")) as other:
        assert other.bos is None


@pytest.mark.parametrize("reply_follows", [False, True])
def test_a_conversation_becomes_the_tokens_of_its_template(model, reply_follows):
    expected = tiny.make_tokenizer().apply_chat_template(
        CONVERSATION, add_generation_prompt=reply_follows, return_dict=False
    )
    assert model.chat_encode(model.chat_text(CONVERSATION, reply_follows=reply_follows)) == expected
    assert 1 in expected  # the end of a message is the one token


@pytest.mark.parametrize(("quantization", "bits"), [("F32", 32), ("BF16", 16), ("Q8_0", 8.5), ("Q4_0", 4.5)])
def test_the_description_names_the_quantization_and_size(
    folder, tmp_path, windows, expected, quantization, bits
):
    with GGUFModel(tiny.make_gguf(folder, tmp_path / "model.gguf", quantization=quantization)) as model:
        info = model.info
        found = torch.cat(list(model.logits(windows, 100)))
    assert (info.kind, info.dtype, info.classes) == ("GGUF", quantization, tiny.CLASSES)
    assert info.parameters == sum(weight.numel() for weight in tiny.make_model().parameters())
    assert info.bits_per_weight == pytest.approx(bits, rel=0.1)
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    divergence = (p.exp() * (p - q)).sum(-1).mean()
    assert (
        {32: 0, 16: 1e-6, 8.5: 1e-5, 4.5: 1e-3}[bits]
        <= divergence
        < {32: 1e-9, 16: 1e-3, 8.5: 1e-2, 4.5: 0.5}[bits]
    )


def test_nothing_is_printed(path, windows, capfd):
    with GGUFModel(path) as model:
        list(model.logits(windows, 100))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:20], "failed to read"),
        (lambda content: content[:3000], "failed to read key-value pairs"),
        (lambda content: content[: len(content) // 2], "corrupted or incomplete"),
        (lambda content: content[:4] + b"\xff" * 4 + content[8:], "version"),
        (lambda content: b"PK\x03\x04" + content[4:], "begins with 'GGUF'"),
        (lambda content: b"", "begins with 'GGUF'"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(path, tmp_path, capfd, damage, said):
    damaged = tmp_path / "damaged\n.gguf"
    damaged.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=said) as caught:
        GGUFModel(damaged)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        GGUFModel(tmp_path / "nowhere.gguf")


def test_a_model_that_predicts_no_next_token_is_refused(folder, tmp_path, monkeypatch):
    def two_sided(writer, *args):
        describe(writer, *args)
        writer.add_causal_attention(False)

    describe = tiny._describe
    monkeypatch.setattr(tiny, "_describe", two_sided)
    with pytest.raises(ModelError, match="wanted a causal language model; got one of kind 'llama'"):
        GGUFModel(tiny.make_gguf(folder, tmp_path / "encoder.gguf"))


def test_a_file_without_a_tokenizer_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny, "_write_tokenizer", lambda writer, *_: writer.add_tokenizer_model("no_vocab"))
    with pytest.raises(ModelError, match="wanted a GGUF file with a tokenizer"):
        GGUFModel(tiny.make_gguf(folder, tmp_path / "bare.gguf"))


def test_a_file_without_a_template_takes_no_conversation(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("gguf.GGUFWriter.add_chat_template", lambda *_: None)
    path = tiny.make_gguf(folder, tmp_path / "plain.gguf")
    with GGUFModel(path) as model, pytest.raises(ModelError, match="--score all"):
        model.chat_encode(model.chat_text(CONVERSATION, reply_follows=False))


def test_a_conversation_that_the_template_refuses_is_named(model):
    with pytest.raises(ModelError, match="chat template takes"):
        model.chat_encode(model.chat_text([{"role": "user", "content": None}], reply_follows=False))


def test_tokens_of_another_vocabulary_are_refused(model):
    windows = Windows(torch.tensor([5, 600, 7]), torch.tensor([0, 3]), torch.tensor([False, True, True]))
    with pytest.raises(ModelError, match="wanted tokens from 0 to 511; got 600"):
        list(model.logits(windows, 10))


OUT_OF_MEMORY = """
import resource, sys
import torch
from pathlib import Path
from kullback.errors import ModelError
from kullback.io.windows import Windows
from kullback.models.gguf import GGUFModel

torch.set_num_threads(1)
model = GGUFModel(Path(sys.argv[1]))
length = 1 << 20
windows = Windows(torch.zeros(length, dtype=torch.int64), torch.tensor([0, length]), torch.arange(length) > length - 3)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), used + (128 << 20)))
try:
    list(model.logits(windows, 4))
except ModelError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")
def test_running_out_of_memory_names_what_helps(path):
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--context" in done.stdout
    assert done.stdout.count("\n") == 1


def test_the_device_is_the_one_that_runs(path):
    with GGUFModel(path, device="cuda") as model:
        assert model.device == ("cuda" if model._llama.llama_supports_gpu_offload() else "cpu")
