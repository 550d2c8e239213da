"""Files of tokens: lists, lines, and tokenizers of Hugging Face against the tokenizers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kullback.errors import FileError
from kullback.io import read_tokens
from tests.refusals import refused

TEXTS = ["Hello there, Möbius!\n\tTab", "naïve ␣ 日本語 🙂", "a  b\r\n"]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_list_of_strings_and_null(tmp_path):
    path = write(tmp_path / "t.json", json.dumps(["a", " b", "\n", None, "", "\x1b[31m"]))
    assert read_tokens(path, classes=8) == ["a", " b", "\n", None, "", "\x1b[31m"]


def test_a_token_on_each_line_with_its_blanks(tmp_path):
    path = write(tmp_path / "t.txt", "\ufeffa\n b \n\nc\u2028d\r\n")
    assert read_tokens(path) == ["a", " b ", "", "c\u2028d\r"]


def test_a_byte_level_tokenizer_is_decoded_as_its_library_decodes_it(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 5, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = read_tokens(tmp_path / "tokenizer.json", classes=tokenizer.get_vocab_size())
    assert len(found) == tokenizer.get_vocab_size()
    assert found[tokenizer.token_to_id("<|end|>")] == "<|end|>"
    for text in TEXTS:
        numbers = tokenizer.encode(text).ids
        assert numbers
        for number in numbers:
            alone = tokenizer.decode([number])
            # A character of several bytes may be cut into tokens, whose bytes are then written as \xNN.
            assert "\\x" in found[number] if "\N{REPLACEMENT CHARACTER}" in alone else found[number] == alone


def test_a_unigram_tokenizer_of_sentencepiece(tmp_path):
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁the", -1.0], ["s", -2.0], ["<0x0A>", -3.0]]}
    added = [{"id": 0, "content": "<unk>", "special": True}, {"id": 5, "content": "<pad>", "special": True}]
    path = write(tmp_path / "tokenizer.json", json.dumps({"model": model, "added_tokens": added}))
    assert read_tokens(path) == ["<unk>", " the", "s", "\n", None, "<pad>"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.json", "[1, 2]", "a list with other things than strings"),
        ("t.json", '"a"', "JSON that is str"),
        ("t.json", "[", "JSONDecodeError"),
        ("t.json", "[" * 100_000, "RecursionError"),
        ("t.json", "{}", "without model.vocab"),
        ("t.json", '{"model": {"vocab": 3}}', "without model.vocab"),
        ("t.json", '{"model": {"vocab": {"a": "b"}}}', "without model.vocab"),
        ("t.json", '{"model": {"vocab": {"a": 1000000000000}}}', "token numbers from"),
        ("t.json", '{"model": {"vocab": {"a": -1}}}', "token numbers from -1"),
        ("t.txt", b"\xff\xfe", "UnicodeDecodeError"),
        ("t.txt", "a\nb\nc", "at most 2 tokens, one for each class; got 3"),
    ],
)
def test_what_holds_no_tokens_is_refused_in_one_line(tmp_path, name, content, words):
    path = write(tmp_path / name, content)
    with pytest.raises(FileError) as error:
        read_tokens(path, classes=2)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with refused(FileError, got="no such file"):
        read_tokens(tmp_path / "t.json")
