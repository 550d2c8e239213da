"""The metric `PolicyMismatch`. Importing this module imports torchmetrics."""

# Like kullback.metrics.metric, this module has no postponed annotations, because TorchScript reads the annotations.

import math
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from kullback.common.constraints import FLAG, Arguments
from kullback.common.dtypes import accurate_dtype, dtype_name
from kullback.errors import invalid_value
from kullback.losses.log_probs import check_log_probs
from kullback.losses.positions import position_weights
from kullback.losses.truncated_sampling import Support
from kullback.metrics.metric import ExactMetric
from kullback.mismatch.measure_mismatch import RATIO, Mismatch, policy_mismatch
from kullback.mismatch.token_log import WHOLE, TokenLog
from kullback.results.value import Value

_ARGUMENTS = Arguments("PolicyMismatch", ratio=RATIO, untruncated=FLAG)
_FLOATS = tuple(field.name for field in fields(TokenLog) if field.name not in (*WHOLE, "groups"))
# The arguments of `update` that are called otherwise than the field of the log.
_ARGUMENT = {
    "sampler_log_prob": "log_p",
    "trainer_log_prob": "log_q",
    "sampler_log_mass": "support.p",
    "trainer_log_mass": "support.q",
    "trainer_log_prob_old": "old",
    "trainer_log_prob_again": "again",
    "sampler_log_prob_again": "sampler_again",
}
_WHOLE = ("position", "prompt", "weight_version", "trainer_version")


class PolicyMismatch(ExactMetric):
    r"""The mismatch of the engine that samples tokens and the trainer, with intervals by prompts and its causes.

    `update` takes batches of sequences, and `compute` returns scalars to log. `result` returns the whole result of
    `kullback.mismatch.policy_mismatch`, which has the formulas. The metric keeps 8 bytes for each token and field.

    Arguments:
        ratio: tokens with q/p above `ratio` or below 1 / `ratio` are counted as past it.
        untruncated: True if the engine sampled from all tokens.
        kwargs: arguments of `torchmetrics.Metric`.

    Returns:
        `compute` returns a dict of scalars, in float64 if the device supports it: ``"k1"``, ``"k3"``, ``"naive_k3"``,
        ``"mean_ratio"``, ``"effective_share"``, ``"sequence_effective_share"``, ``"past"`` and ``"outside"``. Each of
        these except ``"outside"`` has a standard error, with ``"_error"`` appended to the name. Each separable cause
        has ``"k3_"`` with its name.

    Raises:
        ArgumentValueError: an argument is out of range. In `update`, shapes do not fit, or the fields differ from the
            fields of the first update.
        OptionalDependencyError: torchmetrics is not installed.

    Example:
        >>> import torch
        >>> from kullback.metrics import PolicyMismatch
        >>> metric = PolicyMismatch(untruncated=True)
        >>> sampled = -1 - torch.rand(8, 20, generator=torch.Generator().manual_seed(0))
        >>> trained = sampled + 0.01 * torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
        >>> metric.update(sampled, trained, prompt=torch.arange(8) // 2, old=sampled)
        >>> {name: round(float(x), 6) for name, x in metric.compute().items() if name in ("k3", "k3_staleness")}
        {'k3': 5.6e-05, 'k3_staleness': 5.6e-05}

    References:
        Approximating KL Divergence (Schulman, 2020)
    """

    is_differentiable: bool | None = False
    exact_states = ("floats", "whole")

    floats: list[Tensor]
    whole: list[Tensor]

    def __init__(self, ratio: float = 2.0, untruncated: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        checked = _ARGUMENTS.check(ratio=ratio, untruncated=untruncated)
        self.ratio, self.untruncated = checked.values()
        # A field that an update lacks is NaN, or the smallest integer.
        self.add_state("floats", [], dist_reduce_fx="cat")
        self.add_state("whole", [], dist_reduce_fx="cat")

    def update(
        self,
        log_p: Tensor,
        log_q: Tensor,
        mask: Tensor | None = None,
        *,
        prompt: Tensor | None = None,
        support: Support | None = None,
        old: Tensor | None = None,
        old_log_mass: Tensor | None = None,
        again: Tensor | None = None,
        sampler_again: Tensor | None = None,
        weight_version: Tensor | None = None,
        trainer_version: int | None = None,
        exact_kl: Tensor | None = None,
    ) -> None:
        """Add complete sequences: log-probabilities of shape (sequences, tokens) in the engine and in the trainer.

        Arguments:
            log_p: log-probabilities in the engine, which sampled the tokens.
            log_q: log-probabilities in the trainer.
            mask: a boolean tensor, True for the sampled tokens; None if all were sampled. A mask that is False
                everywhere raises a warning, on the CPU only.
            prompt: the number of each sequence's prompt, shape (sequences,), the same number in all batches; None if
                every sequence has its own prompt.
            support: the logarithms of the masses of the tokens that the engine kept.
            old: log-probabilities in the trainer with the weights that sampled.
            old_log_mass: the logarithm of the kept mass in the trainer with these weights.
            again: log-probabilities in the trainer, computed again in another batch.
            sampler_again: log-probabilities in the engine, computed again.
            weight_version: the version of the weights that sampled each token.
            trainer_version: the version of the trainer's weights.
            exact_kl: KL of the engine's distribution of each token from the trainer's.
        """
        call = "PolicyMismatch.update"
        check_log_probs(call, log_p, log_q)
        if log_p.ndim != 2:
            got, instead = f"shape {tuple(log_p.shape)}", "log_p[None], log_q[None] for one sequence"
            raise invalid_value(call, "log_p", wanted="shape (sequences, tokens)", got=got, instead=instead)
        position_weights(call, log_p.shape, mask, None, None, -100, log_p.device)
        counted = torch.ones_like(log_p, dtype=torch.bool) if mask is None else mask
        place = counted.cumsum(-1) - 1
        masses = (None, None) if support is None else (support.p, support.q)
        if support is not None:  # a mass of None means that the log-probabilities are within the kept tokens
            masses = tuple(torch.zeros_like(log_p) if x is None else x for x in masses)
        floats = (log_p, log_q, *masses, old, old_log_mass, again, sampler_again, exact_kl)
        if prompt is not None:
            prompt = self._fitting("prompt", prompt, log_p[:, 0])[:, None].expand_as(log_p)
        version = None if trainer_version is None else torch.full_like(place, trainer_version)
        whole = (place, prompt, weight_version, version)
        self.floats.append(self._rows(_FLOATS, floats, counted, accurate_dtype(log_p.device)))
        self.whole.append(self._rows(_WHOLE, whole, counted, torch.int64))

    def compute(self) -> dict[str, Tensor]:
        """Return the scalars to log, over all processes."""
        result = self.result()
        numbers: dict[str, float] = {"outside": result.outside}
        names = ("k1", "k3", "naive_k3", "mean_ratio", "effective_share", "sequence_effective_share", "past")
        values: dict[str, Value[float]] = {name: getattr(result, name) for name in names}
        values |= {f"k3_{part.name.replace(' ', '_')}": part.value for part in result.parts if part.value}
        for name, value in values.items():
            numbers |= {name: value.value, f"{name}_error": value.standard_error}
        return {
            name: torch.tensor(x, dtype=accurate_dtype(self.device), device=self.device)
            for name, x in numbers.items()
        }

    def result(self) -> Mismatch:
        """Return `kullback.mismatch.policy_mismatch` of the sequences of this process; in `compute`, of all."""
        floats, whole = (torch.cat(x) if isinstance(x, list) and x else x for x in (self.floats, self.whole))
        if not isinstance(floats, Tensor) or not isinstance(whole, Tensor) or not len(floats):
            wanted = "an update with sampled tokens before compute"
            instead = "metric.update(log_p, log_q, mask=mask)"
            raise invalid_value("PolicyMismatch.compute", "log_p", wanted=wanted, got="none", instead=instead)
        columns: dict[str, Tensor] = {}
        for names, table, is_missing in (
            (_FLOATS, floats.cpu(), lambda x: x.isnan()),
            (_WHOLE, whole.cpu(), lambda x: x == torch.iinfo(torch.int64).min),
        ):
            for name, column in zip(names, table.T, strict=True):
                missing = is_missing(column)
                if bool(missing.all()) and name not in ("sampler_log_prob", "trainer_log_prob"):
                    continue
                if bool(missing.any()):
                    raise invalid_value(
                        "PolicyMismatch.update",
                        _ARGUMENT.get(name, name),
                        wanted="a number for each token in every update",
                        got="NaN, or updates without it",
                        instead="mask= without the tokens of NaN; reset() before the fields change",
                    )
                columns[name] = column
        # A sequence begins where the position does not grow.
        starts = torch.nn.functional.pad(columns["position"].diff() <= 0, (1, 0), value=True)
        columns["sequence"] = starts.cumsum(0) - 1
        log = TokenLog(**columns)  # pyright: ignore[reportArgumentType] - no field is `groups`
        return policy_mismatch(log, ratio=self.ratio, untruncated=self.untruncated)

    def _fitting(self, name: str, x: Tensor, like: Tensor, *, whole: bool = True) -> Tensor:
        if tuple(x.shape) != tuple(like.shape) or x.is_floating_point() is whole:
            kind = "integers" if whole else "numbers with a fraction"
            raise invalid_value(
                "PolicyMismatch.update",
                _ARGUMENT.get(name, name),
                wanted=f"{kind} of shape {tuple(like.shape)}",
                got=f"{dtype_name(x.dtype)} of shape {tuple(x.shape)}",
                instead=f"one number for each of the {'sequences' if like.ndim == 1 else 'tokens'}"
                + (", as x.long()" if whole else ", as x.float()"),
            )
        return x

    def _rows(
        self, names: tuple[str, ...], columns: tuple[Tensor | None, ...], counted: Tensor, dtype: torch.dtype
    ) -> Tensor:
        whole = not dtype.is_floating_point
        missing = torch.iinfo(dtype).min if whole else math.nan
        rows = [
            torch.full_like(counted, missing, dtype=dtype)
            if x is None
            else self._fitting(name, x, counted, whole=whole).detach().to(dtype)
            for name, x in zip(names, columns, strict=True)
        ]
        return torch.stack(rows, -1)[counted]
