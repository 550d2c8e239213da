"""`TokenLog`: the log-probabilities of sampled tokens in the engine and in the trainer, one entry for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from kullback.common.short_repr import ShortRepr
from kullback.errors import invalid_value

# Fields with a number for each token, apart from the two log-probabilities.
LOG_PROBS = ("trainer_log_prob_old", "trainer_log_prob_again", "sampler_log_prob_again")
LOG_MASSES = ("sampler_log_mass", "trainer_log_mass", "old_log_mass")
VERSIONS = ("weight_version", "trainer_version")


@dataclass(frozen=True, repr=False)
class TokenLog(ShortRepr):
    """The sampled tokens of one or several training steps, with what engine and trainer say about each.

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
        sampler_log_mass: the logarithm of the probability of the tokens that the engine's truncated sampling kept, in
            the engine; 0 if `sampler_log_prob` is within the kept tokens; None if it is unknown.
        trainer_log_mass: the same for the trainer, with the kept tokens of the engine.
        trainer_log_prob_old: the log-probability in the trainer with the weights that sampled the token.
        old_log_mass: the logarithm of the probability of the kept tokens in the trainer with these weights.
        trainer_log_prob_again: the log-probability in the trainer once more, in another batch.
        sampler_log_prob_again: the log-probability in the engine once more, such as from a forced replay.
        weight_version: the version of the weights that sampled the token.
        trainer_version: the version of the weights of `trainer_log_prob`.
        exact_kl: KL of the engine's distribution of the token from the trainer's, where all logits are known.

    Raises:
        ArgumentValueError: the tensors have different lengths, contain NaN, or there are no tokens.

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
        tokens = self.sequence.numel()
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
            if not isinstance(x, Tensor):
                continue
            if x.ndim != 1 or len(x) != tokens:
                raise invalid_value(
                    "TokenLog",
                    field.name,
                    wanted=f"one number for each of {tokens} tokens, shape ({tokens},)",
                    got=f"shape {tuple(x.shape)}",
                    instead=f"{field.name}[mask]",
                )
            whole = field.name in ("sequence", "position", "prompt", "step", "group", *VERSIONS)
            x = x.detach().to("cpu", torch.int64 if whole else torch.float64).contiguous()
            if not whole and bool(x.isnan().any()):
                raise invalid_value(
                    "TokenLog",
                    field.name,
                    wanted="a number for each sampled token",
                    got=f"NaN for token {int(x.isnan().nonzero()[0])}",
                    instead="leave out the tokens that were not sampled",
                )
            object.__setattr__(self, field.name, x)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.sequence)

    def without_field(self, *names: str) -> list[str]:
        """Return the names of those fields that are None."""
        return [name for name in names if getattr(self, name) is None]

    def select(self, chosen: Tensor) -> TokenLog:
        """Return the tokens that a boolean tensor chooses."""
        return replace(
            self,
            **{
                field.name: getattr(self, field.name)[chosen]
                for field in fields(self)
                if isinstance(getattr(self, field.name), Tensor)
            },
        )


def joined(logs: Sequence[TokenLog]) -> TokenLog:
    """Return several logs as one. Sequences get new numbers; a field that one log lacks is left out.

    Equal numbers of prompts are the same prompt in all logs.
    """
    if len(logs) == 1:
        return logs[0]
    names = tuple(dict.fromkeys(name for log in logs for name in log.groups))
    firsts = torch.tensor([0] + [int(log.sequence.max()) + 1 for log in logs[:-1]], device="cpu").cumsum(0)
    parts: dict[str, Tensor | None] = {}
    for field in fields(TokenLog):
        tensors = [getattr(log, field.name) for log in logs]
        if field.name != "groups":
            parts[field.name] = None if any(x is None for x in tensors) else torch.cat(tensors)
    parts["sequence"] = torch.cat([log.sequence + first for log, first in zip(logs, firsts, strict=True)])
    if parts["group"] is not None:
        places = [
            torch.tensor([names.index(name) for name in log.groups], device="cpu")[log.group] for log in logs
        ]
        parts["group"] = torch.cat(places)
    return TokenLog(**parts, groups=names if parts["group"] is not None else ())  # type: ignore[arg-type]
