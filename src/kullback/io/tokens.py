"""The text of each class of a language model, from lists of tokens and from tokenizers of Hugging Face."""

from __future__ import annotations

import json
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from kullback.common.constraints import Arguments, Whole
from kullback.common.extra_arguments import by_name
from kullback.io.source_files import FileReference

WANTED = (
    "a JSON list of tokens, a tokenizer.json of Hugging Face, or text with one token on each line, in UTF-8"
)


_ARGUMENTS = Arguments("read_tokens", classes=Whole(least=1, example=32_000, optional=True))


@by_name()
def read_tokens(
    path: str | PathLike[str], *, classes: int | None = None, name: str = "tokens"
) -> list[str | None]:
    r"""Read the text of each class, for reports.

    Arguments:
        path: a ``.json`` file with a list whose elements are strings or null, or a ``tokenizer.json`` of Hugging Face,
            whose tokens are decoded. Any other file is read as text with one token on each line.
        classes: the largest number of tokens allowed; None for no limit.
        name: the name of the argument that holds the path, for error messages.

    Returns:
        the texts of the tokens in the order of their numbers; None for a number without a token. Bytes that are not
        UTF-8 are written as ``\xNN``.

    Raises:
        FileError: the file cannot be read, has other content, or has more tokens than there are classes.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "tokens.json"
        >>> _ = path.write_text('["a", " the", "\\n"]')
        >>> read_tokens(path)
        ['a', ' the', '\n']
    """
    classes = _ARGUMENTS.check(classes=classes)["classes"]
    ref = FileReference(Path(path), name)
    with ref.open() as file, ref.decoding("a file of tokens"):
        raw = file.read()
    try:
        text = raw.decode("utf-8-sig")
        contents: Any = (
            json.loads(text) if ref.path.suffix == ".json" else text.removesuffix("\n").split("\n")
        )
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ref.error(wanted=WANTED, got=got, instead="write the file again") from None
    tokens: Any = _of_tokenizer(ref, contents) if isinstance(contents, dict) else contents
    if not isinstance(tokens, list) or not all(isinstance(token, str | None) for token in tokens):
        kind = "a list with other things than strings" if isinstance(tokens, list) else type(tokens).__name__
        instead = "write a list of strings, in the classes' order"
        raise ref.error(wanted=WANTED, got=f"JSON that is {kind}", instead=instead)
    if classes is not None and len(tokens) > classes:
        raise ref.error(
            wanted=f"at most {classes} tokens, one for each class",
            got=f"{len(tokens)}",
            instead="name the tokens of the model that made the predictions",
        )
    return tokens


def _of_tokenizer(ref: FileReference, tokenizer: Any) -> list[str | None]:
    """Return the decoded tokens of a tokenizer.json."""
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, dict):
            pairs = [(str(token), int(number)) for token, number in vocabulary.items()]
        else:  # a list of tokens with scores, in the order of the tokens' numbers
            pairs = [(str(entry[0]), number) for number, entry in enumerate(vocabulary)]
        added = {int(token["id"]): str(token["content"]) for token in tokenizer.get("added_tokens") or ()}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise ref.error(
            wanted=WANTED, got="a JSON object without model.vocab", instead="name the model's tokenizer.json"
        ) from None
    numbers = {*(number for _, number in pairs), *added}
    if numbers and not 0 <= min(numbers) <= max(numbers) < 2 * len(numbers) + 100_000:
        got = f"token numbers from {min(numbers)} to {max(numbers)}"
        raise ref.error(wanted="token numbers that count from 0", got=got, instead="write the file again")
    texts: list[str | None] = [None] * (max(numbers, default=-1) + 1)
    are_byte_level = any(is_byte_level(tokenizer.get(part)) for part in ("decoder", "pre_tokenizer"))
    to_bytes = byte_level_bytes if are_byte_level else sentencepiece_bytes
    for token, number in pairs:
        texts[number] = to_bytes(token).decode("utf-8", "backslashreplace")
    for number, content in added.items():
        texts[number] = content
    return texts


def is_byte_level(part: Any) -> bool:
    """Return whether a part of a tokenizer, or an element of a sequence of parts, writes bytes as GPT-2 does."""
    if not isinstance(part, dict):
        return False
    elements = [element for key in ("decoders", "pretokenizers") for element in part.get(key) or ()]
    return part.get("type") == "ByteLevel" or any(map(is_byte_level, elements))


def sentencepiece_bytes(name: str) -> bytes:
    """Return the bytes of a SentencePiece token.

    Example:
        >>> sentencepiece_bytes("\\u2581the"), sentencepiece_bytes("<0x0A>")
        (b' the', b'\\n')
    """
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return bytes([int(name[3:5], 16)])
        except ValueError:
            pass
    return name.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode("utf-8", "surrogatepass")


def byte_level_bytes(name: str) -> bytes:
    """Return the bytes of a token of GPT-2's vocabulary. For a token with other characters, return the UTF-8 bytes.

    Example:
        >>> byte_level_bytes("\\u0120the"), byte_level_bytes(" the")
        (b' the', b' the')
    """
    try:
        return bytes(map(_byte_of_character().__getitem__, name))
    except KeyError:
        return name.encode("utf-8", "surrogatepass")


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the mapping from characters to bytes; it maps printable characters to their own byte."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + place): byte for place, byte in enumerate(others)}
