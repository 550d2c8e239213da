"""`TokenLog`: the log-probabilities of sampled tokens in the engine and in the trainer, one entry for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_type, invalid_value

# The fields with integers; all others are numbers in nats.
WHOLE = ("sequence", "position", "prompt", "step", "group", "weight_version", "trainer_version")
# Rounding may make the logarithm of a probability larger than 0, or KL less than 0, by this number.
_ROUNDED = 0.05


@dataclass(frozen=True, repr=False)
class TokenLog(ShortRepr):
    """The sampled tokens of training steps, with their log-probabilities in the engine and in the trainer.

    All tensors are one-dimensional, with one entry for each sampled token. Prompts, padding and results of tools are
    left out. Log-probabilities are in nats and at the temperature of sampling.

    Attributes:
        sequence: the number of the token's sequence.
        position: the number of sampled tokens before the token in its sequence.
        sampler_log_prob: the log-probability in the engine that sampled the token.
        trainer_log_prob: the log-probability in the trainer, which learns from the token.
        prompt: the number of the sequence's prompt; None if every sequence has its own prompt. Sequences of one
            prompt are dependent.
        step: the number of the training step; None if it is unknown.
        group: the number of the token's group, an index into `groups`; None without groups.
        groups: the names of the groups, such as environments.
        sampler_log_mass: the logarithm of the engine's probability of the tokens that its truncated sampling kept. It
            is 0 if `sampler_log_prob` is within the kept tokens, and None if it is unknown.
        trainer_log_mass: the same for the trainer, with the kept tokens of the engine.
        trainer_log_prob_old: the log-probability in the trainer with the weights that sampled the token.
        old_log_mass: the logarithm of the probability of the kept tokens in the trainer with these weights.
        trainer_log_prob_again: the log-probability in the trainer once more, in another batch.
        sampler_log_prob_again: the log-probability in the engine once more, such as from a forced replay.
        weight_version: the version of the weights that sampled the token.
        trainer_version: the version of the weights of `trainer_log_prob`.
        exact_kl: KL of the engine's distribution of the token from the trainer's, where all logits are known.

    Raises:
        ArgumentTypeError: a field is not a tensor.
        ArgumentValueError: the tensors have different lengths, contain NaN, fractions instead of integers, logarithms
            of probabilities above 1 or negative divergences, or there are no tokens.

    Example:
        >>> import torch
        >>> from kullback.mismatch import TokenLog
        >>> log = TokenLog(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), torch.zeros(3) - 1, torch.zeros(3) - 1.1)
        >>> len(log), log.without_field("step", "weight_version")
        (3, ['step', 'weight_version'])
    """

    sequence: Tensor
    position: Tensor
    sampler_log_prob: Tensor
    trainer_log_prob: Tensor
    prompt: Tensor | None = None
    step: Tensor | None = None
    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    sampler_log_mass: Tensor | None = None
    trainer_log_mass: Tensor | None = None
    trainer_log_prob_old: Tensor | None = None
    old_log_mass: Tensor | None = None
    trainer_log_prob_again: Tensor | None = None
    sampler_log_prob_again: Tensor | None = None
    weight_version: Tensor | None = None
    trainer_version: Tensor | None = None
    exact_kl: Tensor | None = None

    def __post_init__(self) -> None:
        tokens = len(self.sequence)
        if not tokens:
            raise invalid_value(
                "TokenLog",
                "sequence",
                wanted="at least one sampled token",
                got="none",
                instead="mask=, True for the tokens that the engine sampled",
            )
        for field in fields(self):
            x = getattr(self, field.name)
            if x is None or field.name == "groups":
                continue
            if not isinstance(x, Tensor):
                raise invalid_type(
                    "TokenLog",
                    field.name,
                    wanted="a tensor with one number for each token",
                    got=type(x).__name__,
                    instead=f"torch.as_tensor({field.name})",
                )
            if x.ndim != 1 or len(x) != tokens:
                raise invalid_value(
                    "TokenLog",
                    field.name,
                    wanted=f"one number for each of {tokens} tokens, shape ({tokens},)",
                    got=f"shape {tuple(x.shape)}",
                    instead=f"{field.name}[mask]",
                )
            object.__setattr__(self, field.name, _checked(field.name, x.detach().cpu().contiguous()))

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.sequence)

    def without_field(self, *names: str) -> list[str]:
        """Return the names of the fields that are None."""
        return [name for name in names if getattr(self, name) is None]

    def select(self, chosen: Tensor) -> TokenLog:
        """Return the tokens that a boolean tensor, or a tensor of their places, chooses."""
        return replace(
            self,
            **{
                field.name: getattr(self, field.name)[chosen]
                for field in fields(self)
                if isinstance(getattr(self, field.name), Tensor)
            },
        )


def _checked(name: str, x: Tensor) -> Tensor:
    """Return the values of a field as int64 or float64."""
    numbers = x.double()
    if name in WHOLE:
        wanted, wrong = "integers", ~(numbers % 1 == 0) if x.is_floating_point() else None
        instead = f"torch.unique({name}, return_inverse=True)[1]"
    elif name == "exact_kl":
        wanted, wrong = "divergences, which are not negative", ~(numbers >= -_ROUNDED)
        instead = "the sum of p (log p - log q) over all tokens, in float32 or better"
    else:
        wanted, wrong = "logarithms of probabilities, which are at most 0", ~(numbers <= _ROUNDED)
        instead = "logits.log_softmax(-1) at the sampled tokens, which are chosen by a mask"
    if wrong is not None and bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        got = f"{float(numbers[place]):g} for token {place}".replace("nan", "NaN")
        raise invalid_value("TokenLog", name, wanted=wanted, got=got, instead=instead)
    return x.long() if name in WHOLE else numbers


def in_order(log: TokenLog) -> TokenLog:
    """Return the tokens in the order of their sequences and positions, with the sequences numbered from 0."""
    steps, places = log.sequence.diff(), log.position.diff()
    if int(log.sequence[0]) == 0 and bool(((steps == 1) | ((steps == 0) & (places > 0))).all()):
        return log
    sequence = torch.unique(log.sequence, return_inverse=True)[1]
    order = torch.from_numpy(np.lexsort((log.position.numpy(), sequence.numpy())))
    ordered = replace(log, sequence=sequence).select(order)
    again = (ordered.sequence.diff() == 0) & (ordered.position.diff() == 0)
    if bool(again.any()):
        place = int(again.nonzero()[0])
        raise invalid_value(
            "TokenLog",
            "sequence",
            wanted="a number of its own for each sequence",
            got=f"position {int(ordered.position[place])} twice in sequence {int(log.sequence[order[place]])}",
            instead="sequence + 1_000_000 * step, if each step numbers its sequences from 0",
        )
    return ordered


def joined(logs: Sequence[TokenLog]) -> TokenLog:
    """Return several logs as one. Sequences get new numbers; a field that one log lacks is left out.

    Equal numbers of prompts are the same prompt in all logs.
    """
    if len(logs) == 1:
        return logs[0]
    names = tuple(dict.fromkeys(name for log in logs for name in log.groups))
    sequences = [torch.unique(log.sequence, return_inverse=True)[1] for log in logs]
    firsts = torch.tensor([0, *(int(x.max()) + 1 for x in sequences[:-1])], device="cpu").cumsum(0)
    parts: dict[str, Tensor | None] = {}
    for field in fields(TokenLog):
        tensors = [getattr(log, field.name) for log in logs]
        if field.name != "groups":
            parts[field.name] = None if any(x is None for x in tensors) else torch.cat(tensors)
    parts["sequence"] = torch.cat([x + first for x, first in zip(sequences, firsts, strict=True)])
    if parts["group"] is not None:
        places = [
            torch.tensor([names.index(name) for name in log.groups], device="cpu")[log.group] for log in logs
        ]
        parts["group"] = torch.cat(places)
    return TokenLog(**parts, groups=names if parts["group"] is not None else ())  # type: ignore[arg-type]
