"""Vocabularies of language models: the bytes of each token, and the classes that two models share."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, overload

import torch
from torch import Tensor

from kullback.common.extra_arguments import by_name


@dataclass(frozen=True)
class Token:
    """The text of one class of a language model.

    Attributes:
        content: the bytes of the text; for a special token, the bytes of its name.
        special: whether the token is a control token, which no text contains.
    """

    content: bytes
    special: bool = False

    @property
    def text(self) -> str:
        """The token as text; bytes that are not UTF-8 are written as ``\\xNN``."""
        return self.content.decode("utf-8", "backslashreplace")


@by_name()
class Vocabulary(Sequence[Token | None]):
    """The token of each class of a language model; None for a class without a token, such as padding.

    Arguments:
        tokens: the token of each class.

    Example:
        >>> words = Vocabulary([Token(b"<s>", special=True), Token(b"Hello"), None])
        >>> words[1].text, len(words), words.fingerprint[:8]
        ('Hello', 3, '6264186a')
    """

    def __init__(self, tokens: Sequence[Token | None]) -> None:
        self._tokens = tuple(tokens)

    @overload
    def __getitem__(self, index: int) -> Token | None: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Token | None, ...]: ...

    def __getitem__(self, index: int | slice) -> Token | tuple[Token | None, ...] | None:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of all tokens and their numbers; padding at the end does not change the fingerprint."""
        digest = hashlib.sha256()
        for index, token in enumerate(self._tokens):
            if token is not None:
                digest.update(f"{index} {int(token.special)} {len(token.content)} ".encode() + token.content)
        return digest.hexdigest()

    def get(self, index: int) -> Token | None:
        """Return the token of a class; None if the class has no token."""
        return self._tokens[index] if 0 <= index < len(self._tokens) else None

    def spans(self, tokens: Sequence[int], text: bytes) -> list[tuple[int, int]] | None:
        """Return where each token begins and ends in the bytes of a text; None if the tokens do not spell the text.

        A tokenizer may add a space before a token, as SentencePiece does.
        """
        spans: list[tuple[int, int]] = []
        start = 0
        for index in tokens:
            content = b"" if (token := self.get(index)) is None else token.content
            if not text.startswith(content, start):
                content = content.removeprefix(b" ")
            if not text.startswith(content, start):
                return None
            spans.append((start, start + len(content)))
            start += len(content)
        return spans if start == len(text) else None

    def text(self, index: int) -> str:
        """Return the text of a class, or the number of the class in brackets if it has no token."""
        token = self.get(index)
        return f"[{index}]" if token is None else token.text


class Words(NamedTuple):
    """The token of each class of a tokenizer, and the token `bos` that it puts before every text, if any."""

    vocabulary: Vocabulary
    bos: int | None


@dataclass(frozen=True, eq=False)
class SharedClasses:
    """The classes that two models share, and the treatment of the other classes.

    Attributes:
        p: the shared classes in P's numbers, int64, in increasing order.
        q: the same classes in Q's numbers.
        others_p: P's classes that Q lacks.
        others_q: Q's classes that P lacks.
        padding: the number of classes without a token that are left out of the rows.
    """

    p: Tensor
    q: Tensor
    others_p: Tensor
    others_q: Tensor
    padding: int = 0

    @property
    def classes(self) -> int:
        """The number of classes of the mapped rows: the shared ones, and one for all others if there are any."""
        return len(self.p) + bool(len(self.others_p) or len(self.others_q))

    def rows(self, logits: Tensor, *, of_p: bool) -> Tensor:
        """Return rows of logits in the shared classes; the other classes are merged into one class at the end."""
        shared, others = (self.p, self.others_p) if of_p else (self.q, self.others_q)
        kept = logits.index_select(-1, shared.to(logits.device))
        if self.classes == len(shared):
            return kept
        wide = logits.index_select(-1, others.to(logits.device)).float()
        rest = wide.logsumexp(-1, keepdim=True)  # -inf if there are no other classes
        return torch.cat([kept.float(), rest], -1)

    def shared_numbers(self, tokens: Tensor) -> Tensor:
        """Return P's token numbers as numbers of the mapped rows; tokens that Q lacks get that of the last class."""
        number = torch.full((int(max(tokens.max(), self.p.max())) + 1,), len(self.p), device="cpu")
        number[self.p] = torch.arange(len(self.p), device="cpu")
        return number[tokens]


def share_classes(p: Vocabulary, q: Vocabulary, classes: tuple[int, int]) -> SharedClasses | None:
    """Match the tokens of two vocabularies by their bytes; None if both have the same tokens in the same places.

    `classes` are the numbers of classes of both logits. Classes beyond a vocabulary have no token. If only one side has
    such classes and all tokens are shared, these classes are left out.

    Example:
        >>> a, b, c = Token(b"a"), Token(b"b"), Token(b"c")
        >>> shared = share_classes(Vocabulary([a, b, c]), Vocabulary([b, a, None]), (3, 3))
        >>> shared.p, shared.q, shared.others_p, shared.others_q
        (tensor([0, 1]), tensor([1, 0]), tensor([2]), tensor([2]))
    """
    if classes[0] == classes[1] and p.fingerprint == q.fingerprint:
        return None
    places = {key: index for index, key in _numbered(q)}
    pairs = [(index, places[key]) for index, key in _numbered(p) if key in places]
    of_p, of_q = (
        torch.tensor(list(side), dtype=torch.int64, device="cpu")
        for side in (zip(*pairs, strict=True) if pairs else ((), ()))
    )
    others_p, others_q = _rest(classes[0], of_p), _rest(classes[1], of_q)
    # Otherwise, only one side would have a trace of mass on the merged class, and KL would be infinite for all models.
    if (
        not (len(others_p) and len(others_q))
        and _stand_for_none(p, others_p)
        and _stand_for_none(q, others_q)
    ):
        none = others_p[:0]
        return SharedClasses(of_p, of_q, none, none, len(others_p) + len(others_q))
    return SharedClasses(of_p, of_q, others_p, others_q)


def _stand_for_none(vocabulary: Vocabulary, classes: Tensor) -> bool:
    return all(vocabulary.get(index) is None for index in classes.tolist())


def _numbered(vocabulary: Vocabulary) -> list[tuple[int, tuple[Token, int]]]:
    """Return each token's class, the token, and the number of equal tokens before it."""
    seen: Counter[Token] = Counter()
    numbered: list[tuple[int, tuple[Token, int]]] = []
    for index, token in enumerate(vocabulary):
        if token is not None:
            numbered.append((index, (token, seen[token])))
            seen[token] += 1
    return numbered


def _rest(classes: int, taken: Tensor) -> Tensor:
    free = torch.ones(classes, dtype=torch.bool, device="cpu")
    free[taken] = False
    return free.nonzero().squeeze(-1)
