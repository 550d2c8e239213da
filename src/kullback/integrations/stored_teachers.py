"""A collator that makes batches with a teacher's stored predictions, from sequences of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from kullback.common.constraints import Arguments, OneOf
from kullback.common.extra_arguments import by_name
from kullback.common.words import NO_LABEL, STORED
from kullback.errors import ArgumentValueError, invalid_type, invalid_value, safe_repr
from kullback.integrations.models import Features

__all__ = ["StoredTeacherCollator"]

_CALL = "StoredTeacherCollator"
_Rows = Literal["next", "own"]
_PADDING: dict[str, float] = dict(zip(STORED, (-1, -torch.inf, NO_LABEL), strict=True))

_ARGUMENTS = Arguments(_CALL, rows_predict=OneOf(get_args(_Rows), example="next"))


def padded_on_the_right(rows: list[Features]) -> dict[str, Tensor]:
    """Return a batch padded on the right with token 0, label -100 and 0 in ``attention_mask``."""
    fields = {name: [_as_tensor(row[name]) for row in rows] for name in rows[0]}
    fields.setdefault("attention_mask", [torch.ones_like(x) for x in fields["input_ids"]])
    return {
        name: pad_sequence(of, batch_first=True, padding_value=NO_LABEL if name == "labels" else 0)
        for name, of in fields.items()
    }


def _as_tensor(x: Any) -> Tensor:
    """Return a tensor unchanged, and a list as a tensor on the CPU."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device="cpu")


@by_name()
@dataclass(frozen=True)
class StoredTeacherCollator:
    """A collator for sequences of different lengths, each with a teacher's most probable tokens.

    `collator` pads the tokens and labels. `StoredTeacherCollator` pads ``teacher_indices`` and ``teacher_log_probs``,
    of shape (tokens, k), on the same side. `StoredTeacherCollator` also pads ``teacher_labels``, of shape (tokens,), if
    the sequences have this field. Sequences may list different numbers of tokens. Padding has the index -1 and the
    log-probability -inf, which `TopK` and `Scored` do not list. ``mask=(batch["teacher_indices"] >= 0).any(-1)``
    excludes positions without any listed token from a loss. After padding on the left, the first token gets the label
    -100, because no row predicts this token.

    Arguments:
        collator: a function that pads the other fields, such as ``DataCollatorForSeq2Seq(tokenizer)``. The default pads
            tokens and labels on the right, and makes ``attention_mask``.
        rows_predict: ``"next"`` if row i predicts the token after position i, which the trainers need. ``"own"`` if row
            i predicts the token at position i, as in vLLM and SGLang. Such rows are shifted by one.

    Raises:
        ArgumentTypeError: `collator` is not a function.
        ArgumentValueError: `rows_predict` is another word. In a call, a sequence has different numbers of rows and
            tokens, or no stored predictions. The batch of `collator` does not show the side of the padding.

    Example:
        >>> import torch
        >>> from kullback.integrations.stored_teachers import StoredTeacherCollator
        >>> rows = [
        ...     {
        ...         "input_ids": torch.arange(n),
        ...         "teacher_indices": torch.ones(n, 1, dtype=torch.long),
        ...         "teacher_log_probs": torch.zeros(n, 1),
        ...     }
        ...     for n in (2, 3)
        ... ]
        >>> batch = StoredTeacherCollator()(rows)
        >>> batch["teacher_log_probs"][0, :, 0], batch["attention_mask"][0]
        (tensor([0., 0., -inf]), tensor([1, 1, 0]))

    References:
        Distilling the Knowledge in a Neural Network (Hinton, Vinyals and Dean, 2015)
    """

    collator: Callable[[list[Features]], Any] = padded_on_the_right
    rows_predict: _Rows = "next"

    def __post_init__(self) -> None:
        if not callable(self.collator):
            wanted, got = "a function of a list of rows", safe_repr(self.collator)
            instead = "StoredTeacherCollator(DataCollatorForSeq2Seq(tokenizer))"
            raise invalid_type(_CALL, "collator", wanted=wanted, got=got, instead=instead)
        _ARGUMENTS.check(rows_predict=self.rows_predict)

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Any:
        """Return a batch of the padded sequences `features`."""
        batch = self.collator([{k: x for k, x in row.items() if k not in STORED} for row in features])
        length, first = batch["input_ids"].shape[-1], _first_tokens(batch, features)
        for name in STORED:
            values = [row.get(name) for row in features]
            if all(x is None for x in values):
                continue
            rows = [
                self._tensor(name, x, len(row["input_ids"])) for x, row in zip(values, features, strict=True)
            ]
            batch[name] = self._padded(name, rows, first, length)
            for number, start in enumerate(first):
                if start and isinstance(batch.get("labels"), Tensor):
                    batch["labels"][number, start] = NO_LABEL
        return batch

    def _tensor(self, name: str, x: Any, tokens: int) -> Tensor:
        """Return the rows of a sequence, shifted so that row i predicts the token after position i."""
        rows = None if x is None else _as_tensor(x)
        if rows is None or rows.ndim != (1 if name == STORED[2] else 2) or len(rows) != tokens:
            got = "none" if rows is None else f"shape {tuple(rows.shape)}"
            raise _wrong(name, f"a row for each of the {tokens} tokens of the sequence", got)
        if self.rows_predict == "own":
            rows = rows.roll(-1, 0)
            rows[-1] = _PADDING[name]
        return rows

    def _padded(self, name: str, rows: list[Tensor], first: list[int], length: int) -> Tensor:
        width = max(x.shape[-1] for x in rows)
        padded: list[Tensor] = []
        for x, start in zip(rows, first, strict=True):
            sides = start, length - start - len(x)
            sides = sides if x.ndim == 1 else (0, width - x.shape[1], *sides)
            padded.append(torch.nn.functional.pad(x, sides, value=_PADDING[name]))
        return torch.stack(padded)


def _first_tokens(batch: Any, features: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the index of each sequence's first token in its padded row. If the tokens fit at both ends or at none, the
    attention mask shows the side of the padding; without a mask, the other rows do.
    """
    padded, mask = batch["input_ids"], batch.get("attention_mask")
    if len(padded) != len(features):
        raise _unpadded("a row for each sequence", f"{len(padded)} rows for {len(features)} sequences")
    lengths = [padded.shape[-1] - len(row["input_ids"]) for row in features]
    starts: list[list[int]] = []
    for number, (row, padding) in enumerate(zip(features, lengths, strict=True)):
        if padding < 0:
            got = f"{-padding} fewer tokens in row {number}"
            raise _wrong("collator", "padded rows with all tokens", got)
        tokens = _as_tensor(row["input_ids"]).to(padded)
        ends = (0, padding) if padding else ()
        fitting = [start for start in ends if torch.equal(padded[number, start:][: len(tokens)], tokens)]
        if len(fitting) != 1 and isinstance(mask, Tensor):
            fitting = [0 if bool(mask[number, 0]) else padding]
        starts.append(fitting if padding else [0])
    on_left = {fit[0] > 0 for fit, padding in zip(starts, lengths, strict=True) if padding and len(fit) == 1}
    for number, (fitting, padding) in enumerate(zip(starts, lengths, strict=True)):
        if len(fitting) == 2 and len(on_left) == 1:
            starts[number] = [padding if True in on_left else 0]
        elif len(fitting) != 1:
            where = "at both ends" if fitting else "at neither end"
            got = f"row {number}, whose tokens fit {where}, without attention_mask"
            raise _unpadded("padded rows that show the side of the padding", got)
    return [fitting[0] for fitting in starts]


def _unpadded(wanted: str, got: str) -> ArgumentValueError:
    instead = "StoredTeacherCollator(), whose default collator pads on the right and makes attention_mask"
    return invalid_value(_CALL, "collator", wanted=wanted, got=got, instead=instead)


def _wrong(name: str, wanted: str, got: str) -> ArgumentValueError:
    instead = f"{name} of all tokens of the row, with log-probabilities of -inf where there is no prediction"
    return invalid_value(_CALL, name, wanted=wanted, got=got, instead=instead)
