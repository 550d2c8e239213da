"""The vocabulary of a tokenizer: its bytes against GPT-2's table written out, and what is read of it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kullback.io.tokens import byte_level_bytes
from kullback.models.huggingface_model import read_vocabulary
from tests.models import tiny

pytest.importorskip("transformers")

# GPT-2's table, as its own encoder.py makes it.
OWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
CHARACTER_OF = {byte: chr(byte) for byte in OWN}
CHARACTER_OF |= {
    byte: chr(256 + place) for place, byte in enumerate(byte for byte in range(256) if byte not in OWN)
}


def test_every_byte_has_its_character():
    for byte, character in CHARACTER_OF.items():
        assert byte_level_bytes(character) == bytes([byte])
    assert byte_level_bytes("".join(CHARACTER_OF.values())) == bytes(CHARACTER_OF)


@pytest.mark.parametrize("name", ["a b", "\xa0", "\xad", "\u0144", "\u4e2d", "<|end|>\n", "\ud800"])
def test_a_name_with_other_characters_stands_for_itself(name):
    assert byte_level_bytes(name) == name.encode("utf-8", "surrogatepass")


class Counted:
    """A tokenizer that counts how often its vocabulary is asked for, and refuses to be written whole."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.calls = tokenizer, 0
        self.added_tokens_decoder = tokenizer.added_tokens_decoder

        def refuse() -> str:
            raise AssertionError("the whole tokenizer is written")

        self.backend_tokenizer = SimpleNamespace(decoder=tokenizer.backend_tokenizer.decoder, to_str=refuse)

    def get_vocab(self) -> dict[str, int]:
        self.calls += 1
        return self._tokenizer.get_vocab()


def test_a_large_tokenizer_is_read_once_and_not_written():
    tokenizer = tiny.make_tokenizer()
    counted = Counted(tokenizer)
    found = read_vocabulary(counted)
    assert counted.calls == 1
    # The decoder of the whole tokenizer says how names stand for bytes.
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    assert "ByteLevel" in json.dumps(decoder)
    added = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
    byte_of = {character: byte for byte, character in CHARACTER_OF.items()}
    for name, number in tokenizer.get_vocab().items():
        expected = added[number].encode() if number in added else bytes(byte_of[char] for char in name)
        assert found[number].content == expected
    assert found.fingerprint == read_vocabulary(tokenizer).fingerprint
