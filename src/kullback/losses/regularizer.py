"""KL to a prior as a term of a training loss, and diagnostics of latent dimensions that collapse to the prior."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, distributed
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
)

from kullback.common.constraints import FLAG, GENERATOR, Arguments, Number, OneOf, Whole
from kullback.common.display import shown_options
from kullback.common.extra_arguments import by_name
from kullback.common.inputs import number_from, whole_from
from kullback.errors import in_the_name_of, invalid_type, invalid_value, safe_repr
from kullback.losses.controllers import NON_NEGATIVE, AdaptiveKLController, KLController, Schedule, scheduled
from kullback.losses.positions import position_weights

_HALF = (torch.float16, torch.bfloat16)


class _Rule(NamedTuple):
    """The arguments of `kullback.kl_divergence` that choose how the KL is computed."""

    method: str
    draws: int
    generator: torch.Generator | None


_BATCH_DIMS = Whole(least=0, example=1)
_PER_DIMENSION = Arguments("kl_per_dimension", batch_dims=_BATCH_DIMS)


@by_name()
def kl_per_dimension(
    posterior: Distribution,
    prior: Distribution | None = None,
    *,
    mask: Tensor | None = None,
    weight: Tensor | None = None,
    batch_dims: int = 1,
    method: str = "auto",
    draws: int = 64,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Compute the KL of each latent dimension, averaged over the examples.

    .. math:: \mathrm{KL}_j = \frac{\sum_n w_n \, \mathrm{KL}\big(Q_{nj} \,\|\, P_j\big)}{\sum_n w_n},
        \quad Q \text{ the posterior},\; P \text{ the prior}

    A dimension with a KL near 0 has collapsed to the prior: the dimension carries no information about the example.

    Arguments:
        posterior: a distribution for each example and latent dimension, of batch shape (examples, ...). An
            `Independent` distribution is replaced by its base distribution.
        prior: the prior; batch shapes broadcast. None means the standard normal distribution, and needs a posterior
            that is a Normal, a MultivariateNormal or a LowRankMultivariateNormal.
        mask: a boolean tensor of the shape of the examples, True for examples that count. A mask that is False
            everywhere raises a warning, on the CPU only.
        weight: the weight of each example, 0 or more, of the shape of the examples.
        batch_dims: the number of leading batch dimensions that index examples: 1, or 2 for (sequence, time). Pass 0 for
            a distribution without batch shape, such as ``Independent(d, 2)``, which has no examples.
        method: the rule, as in `kullback.kl_divergence`. ``"monte_carlo"`` supports pairs without an exact rule, such
            as a prior that is a mixture.
        draws: the number of draws of ``"monte_carlo"`` for each posterior. The gradient is unbiased for any number.
        generator: the random generator of these draws; by default, torch's global generator.

    Returns:
        the divergences in nats, of the shape of the latent dimensions. The sum of the divergences is the total KL.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument is invalid.
        NoRuleError: there is no rule for the KL of this pair of distributions.

    Gradient:
        to both distributions, as in `kullback.kl_divergence`.

    Example:
        >>> from torch.distributions import Normal
        >>> posterior = Normal(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1.0)
        >>> kl_per_dimension(posterior)
        tensor([0.5000, 0.0000])

    References:
        Auto-Encoding Variational Bayes (Kingma and Welling, 2014)
    """
    call = "kl_per_dimension"
    batch_dims = _PER_DIMENSION.check(call, batch_dims=batch_dims)["batch_dims"]
    rule = _checked_rule(call, method, draws, generator)
    p, q = _both(call, posterior, prior)
    batch_dims = _dims_of_examples(posterior, batch_dims)
    kl, weights = _of_examples(call, p, q, mask, weight, batch_dims, rule)
    total, count = _total(kl, weights)
    return total / torch.where(count == 0, 1, count)


_UNITS = Arguments("active_units", threshold=Number(least=0, below=math.inf, noun="variance", example=0.01))


@by_name()
def active_units(posterior: Distribution | Tensor, *, threshold: float = 0.01) -> Tensor:
    r"""Return a mask of the latent dimensions that depend on the example.

    .. math:: \operatorname{Var}_x\big(E_{q(z \mid x)}[z_j]\big) > \text{threshold}

    Arguments:
        posterior: the posteriors of a data set, of batch shape (examples, ...), or their means as a tensor of shape
            (examples, ...). If the data come in batches, concatenate the means of the batches.
        threshold: the variance above which a dimension is active.

    Returns:
        booleans, of the shape of the latent dimensions; ``.sum()`` counts the active dimensions.

    Raises:
        ArgumentTypeError: `posterior` is neither a distribution nor a tensor.
        ArgumentValueError: there are fewer than two examples, or a mean is NaN, as for a Categorical.

    Gradient:
        none.

    Example:
        >>> active_units(torch.tensor([[1.0, 0.001], [-1.0, -0.001], [0.5, 0.0]]))
        tensor([ True, False])

    References:
        Importance Weighted Autoencoders (Burda, Grosse and Salakhutdinov, 2016), section 5
    """
    if not isinstance(posterior, Distribution | Tensor):
        raise _no_distribution("active_units", "posterior", posterior)
    threshold = _UNITS.check(threshold=threshold)["threshold"]
    mean = (posterior.mean if isinstance(posterior, Distribution) else posterior).detach()
    if mean.ndim == 0 or len(mean) < 2:
        wanted, got = "two examples or more, in the first dimension", f"means of shape {tuple(mean.shape)}"
        instead = "active_units(torch.cat(means)) with the posterior means of the whole data set"
        raise invalid_value("active_units", "posterior", wanted=wanted, got=got, instead=instead)
    if bool(mean.isnan().any()):
        wanted, got = "posteriors with a mean", "means that are NaN"
        instead = "active_units(posterior.probs) for a Categorical, or the means as a tensor"
        raise invalid_value("active_units", "posterior", wanted=wanted, got=got, instead=instead)
    return mean.double().var(0) > threshold


_ARGUMENTS = Arguments(
    "KLRegularizer", free_nats=NON_NEGATIVE, batch_dims=_BATCH_DIMS, per_example=FLAG, sync=FLAG
)


@by_name()
class KLRegularizer(torch.nn.Module):
    r"""KL(posterior || prior) as a term of the loss of a VAE, a Bayesian layer or a policy.

    .. math:: \beta \sum_g \max\big(\lambda, \mathrm{KL}_g\big) \quad\text{or}\quad
        \beta \, \Big|\sum_g \mathrm{KL}_g - C\Big|, \qquad
        \mathrm{KL}_g = \frac{1}{N} \sum_n \sum_{j \in g} \mathrm{KL}\big(Q_{nj} \,\|\, P_j\big)

    :math:`Q` is the posterior, :math:`P` the prior, and :math:`g` a group of latent dimensions. Call `step` after each
    step of the optimizer. Only `step` advances schedules and the adaptive coefficient, so you can accumulate gradients
    over several calls.

    Arguments:
        coefficient: :math:`\beta`: a number of 0 or more, a schedule or an `AdaptiveKLController`. A schedule is a
            `LinearSchedule`, a `CyclicalSchedule` or any function from the number of steps to a number. The `horizon`
            of the controller counts calls of `step`. The controller's target is for the KL summed over the latent
            dimensions and averaged over the examples. The regularizer's attribute `coefficient` has the current value;
            the controller itself does not change. For another controller, pass ``lambda step: controller.coefficient``,
            and update the controller with the regularizer's attribute `kl`.
        free_nats: :math:`\lambda`, the "free bits" in nats. A group whose KL is at most :math:`\lambda` has no
            gradient.
        group_dims: the latent dimensions of the KL that index groups, counted from 0 after the batch dimensions. The KL
            is summed over the other latent dimensions. None makes each latent dimension a group. 0 makes each channel a
            group, for posteriors of shape (batch, channels, height, width). () puts all latent dimensions in one group.
        per_example: whether to compare the KL of each example with `free_nats`, instead of the mean KL of the batch.
        capacity: :math:`C`, in nats: a number or a schedule. `capacity` and `free_nats` exclude each other.
        balance: two weights :math:`(a, b)`. The loss is then :math:`a` times the term with a constant posterior, which
            trains only the prior, plus :math:`b` times the term with a constant prior. ``torch.compile`` supports
            `balance` from torch 2.12 on.
        batch_dims: the number of the posterior's leading batch dimensions that index examples. Pass 0 for the weights
            of a Bayesian layer: they are one example, and the KL is summed over all weights. Pass 0 also for a
            posterior without batch shape, such as ``Independent(d, 2)``.
        method: the rule, as in `kullback.kl_divergence`. ``"monte_carlo"`` supports pairs without an exact rule, such
            as a prior that is a mixture.
        draws: the number of draws of ``"monte_carlo"`` for each posterior. The gradient is unbiased for any number.
        generator: the random generator of these draws; by default, torch's global generator.
        sync: whether a `torch.distributed` run uses the mean KL over all processes for its decisions. Such decisions
            are: which groups are below `free_nats`, on which side of the capacity the KL is, and how the coefficient
            changes. The gradients averaged by `DistributedDataParallel` then equal the gradients of one process with
            the whole batch. Every process of the default group must make the same calls. In evaluation mode, calls do
            not communicate.

    Attributes:
        coefficient: the current coefficient, a buffer.
        kl: the unregularized KL of the calls between the last two steps, averaged over the examples of these calls, a
            buffer; NaN before the first step.
        steps_taken: the number of calls of `step`, a buffer.

    Returns:
        a scalar in nats, in float32 or better, also under autocast; 0 if no example counts. The arguments of a call are
        ``(posterior, prior=None)`` and optionally ``mask=`` and ``weight=``, as in `kl_per_dimension`.

    Raises:
        ArgumentTypeError, ArgumentValueError: an argument is invalid.
        NoRuleError: there is no rule for the KL of this pair of distributions.

    Gradient:
        the gradient of `kullback.kl_divergence`, times the coefficient. The gradient is 0 in a group whose KL is at
        most `free_nats`. If the KL equals the capacity, the whole gradient is 0.

    Example:
        >>> from torch.distributions import Normal
        >>> from kullback.nn import KLRegularizer, LinearSchedule
        >>> regularizer = KLRegularizer(coefficient=LinearSchedule(0.0, 1.0, steps=2), free_nats=0.1)
        >>> posterior = Normal(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 1.0)
        >>> for _ in range(3):
        ...     print(regularizer(posterior))
        ...     regularizer.step()
        tensor(0.)
        tensor(0.3000)
        tensor(0.6000)
        >>> regularizer.kl
        tensor(0.5000)

    References:
        beta-VAE (Higgins et al., 2017); free bits: Improved Variational Inference with Inverse Autoregressive Flow
        (Kingma et al., 2016); capacity: Understanding Disentangling in beta-VAE (Burgess et al., 2018); balance:
        Mastering Atari with Discrete World Models (Hafner et al., 2021)
    """

    coefficient: Tensor
    kl: Tensor
    steps_taken: Tensor
    _capacity: Tensor

    def __init__(
        self,
        *,
        coefficient: float | Schedule | AdaptiveKLController = 1.0,
        free_nats: float = 0.0,
        group_dims: int | tuple[int, ...] | None = None,
        per_example: bool = False,
        capacity: float | Schedule | None = None,
        balance: tuple[float, float] | None = None,
        batch_dims: int = 1,
        method: str = "auto",
        draws: int = 64,
        generator: torch.Generator | None = None,
        sync: bool = True,
    ) -> None:
        super().__init__()
        call = "KLRegularizer"
        batch_dims = _ARGUMENTS.check(**locals())["batch_dims"]
        if capacity is not None and free_nats > 0:
            wanted, instead = "free_nats or a capacity, not both", f"{call}(capacity={capacity})"
            got = f"free_nats={free_nats} and capacity={capacity}"
            raise invalid_value(call, "capacity", wanted=wanted, got=got, instead=instead)
        if balance is not None and not (
            isinstance(balance, tuple)
            and len(balance) == 2
            and all(0 <= number_from(x) < math.inf for x in balance)
        ):
            wanted = "two numbers of 0 or more, the weights of the prior's and of the posterior's gradient"
            got, instead = safe_repr(balance), "balance=(0.8, 0.2)"
            raise invalid_value(call, "balance", wanted=wanted, got=got, instead=instead)
        _check_controller(call, coefficient)
        self.free_nats = free_nats
        self.group_dims = None if group_dims is None else _dims(group_dims)
        self.per_example = per_example
        self.balance = balance
        self.batch_dims = batch_dims
        self.method, self.draws, self.generator = _checked_rule(call, method, draws, generator)
        self.sync = sync
        self._coefficient = coefficient
        self._capacity_schedule = capacity
        # `_steps` has the same value as the buffer `steps_taken`, because reading the buffer from an accelerator would
        # synchronize.
        self._steps = 0
        is_adaptive = isinstance(coefficient, AdaptiveKLController)
        self.register_buffer("steps_taken", torch.tensor(0))
        self.register_buffer(
            "coefficient", torch.tensor(coefficient.coefficient if is_adaptive else 0.0, dtype=torch.float32)
        )
        self.register_buffer("kl", torch.tensor(math.nan, dtype=torch.float32))
        self.register_buffer("_capacity", torch.tensor(0.0, dtype=torch.float32), persistent=False)
        # `_sums` contains two sums since the last step: the weighted sum of the KL, and the sum of the examples'
        # weights. The tensor is not a buffer, because DistributedDataParallel would overwrite the buffer of every
        # process with the buffer of the first process.
        self._sums = torch.zeros(2)
        self._follow_schedules()

    def extra_repr(self) -> str:
        settings = {"coefficient": self._coefficient, "capacity": self._capacity_schedule}
        return shown_options(self, KLRegularizer, settings, always=("coefficient",))

    def forward(
        self,
        posterior: Distribution,
        prior: Distribution | None = None,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Return the term of the loss for a batch of posteriors."""
        call = type(self).__name__
        p, q = _both(call, posterior, prior)
        batch_dims = _dims_of_examples(posterior, self.batch_dims)
        rule = _Rule(self.method, self.draws, self.generator)
        if self.balance is None:
            sides = ((1.0, p, q),)
        else:
            from kullback.pairs.clone import detached

            sides = ((self.balance[0], detached(p), q), (self.balance[1], p, detached(q)))
        terms: list[Tensor] = []
        # `everywhere` is the mean KL of each group of latent dimensions over all processes. The mean is equal for both
        # terms of `balance`.
        everywhere: Tensor | None = None
        for share, one, other in sides:
            kl, weights = _of_examples(call, one, other, mask, weight, batch_dims, rule)
            kl = self._in_groups(call, kl)
            total, count = _total(kl, weights)
            if everywhere is None:
                everywhere = self._add_to_sums(total.detach(), count)
            if self.free_nats > 0 and self.per_example:
                total, _ = _total(torch.where(kl <= self.free_nats, self.free_nats, kl), weights)
            terms.append(share * self._term(total / torch.where(count == 0, 1, count), everywhere, count))
        # If the coefficient is 0, the term is 0. The product would be NaN for an infinite KL.
        return torch.where(self.coefficient == 0, 0.0, self.coefficient * sum(terms[1:], terms[0]))

    @torch.no_grad()
    def step(self) -> None:
        """End one step of the optimizer: store its mean KL, and update the coefficient and the capacity."""
        self._steps += 1
        self.steps_taken.fill_(self._steps)
        sums = self._sums.clone()
        if self._is_shared():
            distributed.all_reduce(sums)
        self.kl.copy_(sums[0] / sums[1])
        self._sums.zero_()
        if isinstance(self._coefficient, AdaptiveKLController):
            self.coefficient.copy_(self._coefficient.after(self.coefficient, self.kl))
        self._follow_schedules()

    def _term(self, mean: Tensor, everywhere: Tensor, count: Tensor) -> Tensor:
        """Return the term of the loss without the coefficient, from the mean KL of each group in this process and
        `everywhere`. `count` is the sum of the examples' weights.
        """
        if self._capacity_schedule is not None:
            side = torch.sign(everywhere.sum() - self._capacity)
            return torch.where(count == 0, 0.0, side * (mean.sum() - self._capacity))
        if self.free_nats > 0 and not self.per_example:
            mean = torch.where((everywhere <= self.free_nats) & (count > 0), self.free_nats, mean)
        return mean.sum()

    def _in_groups(self, call: str, kl: Tensor) -> Tensor:
        """Return the KL of each group, shape (examples, groups), from the KL of each latent dimension."""
        latent = kl.ndim - 1
        kept = range(latent) if self.group_dims is None else self.group_dims
        if any(not 0 <= dim < latent for dim in kept):
            wanted, got = f"latent dimensions of the posterior, which has {latent}", f"{self.group_dims}"
            instead = "group_dims=None for each dimension, group_dims=() for all together"
            raise invalid_value(call, "group_dims", wanted=wanted, got=got, instead=instead)
        summed = [dim + 1 for dim in range(latent) if dim not in kept]
        groups = kl.sum(summed) if summed else kl
        return groups.flatten(1) if groups.ndim > 1 else groups[:, None]

    def _add_to_sums(self, total: Tensor, count: Tensor) -> Tensor:
        """Add a batch's weighted sums of each group's KL, and its sum of weights `count`, to this step's sums. Return
        the mean KL of each group over all processes.
        """
        if self.training:
            self._sums += torch.stack([total.sum(), count]).to(self._sums)
            if (self._capacity_schedule is not None or self.free_nats > 0) and self._is_shared():
                both = torch.cat([total, count[None]])
                distributed.all_reduce(both)
                total, count = both[:-1], both[-1]
        return total / torch.where(count == 0, 1, count)

    def _is_shared(self) -> bool:
        return self.sync and distributed.is_available() and distributed.is_initialized()

    def _follow_schedules(self) -> None:
        if not isinstance(self._coefficient, AdaptiveKLController):
            self.coefficient.fill_(scheduled("coefficient", self._coefficient, self._steps))
        if self._capacity_schedule is not None:
            self._capacity.fill_(scheduled("capacity", self._capacity_schedule, self._steps))

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        super()._load_from_state_dict(*arguments, **options)
        if not self.steps_taken.is_meta:
            self._steps = int(self.steps_taken)
            self._follow_schedules()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> KLRegularizer:
        """Apply `fn` to the buffers without changing their dtypes, because ``.half()`` would round the coefficient."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        device = self.coefficient.device
        self._sums = torch.zeros(2, device=device) if self._sums.is_meta else self._sums.to(device)
        return self


def _both(call: str, posterior: object, prior: object) -> tuple[Distribution, Distribution]:
    """Return both in float32 or better, without `Independent` where each latent dimension can have its own KL."""
    if not isinstance(posterior, Distribution):
        raise _no_distribution(call, "posterior", posterior)
    if prior is not None and not isinstance(prior, Distribution):
        raise _no_distribution(call, "prior", prior)
    from kullback.pairs.clone import with_torch_sizes
    from kullback.pairs.family import overrides_density

    p = with_torch_sizes(posterior)
    if prior is None:
        while isinstance(p, Independent) and not overrides_density(p):
            p = p.base_dist
        if type(p) in (MultivariateNormal, LowRankMultivariateNormal) and not overrides_density(p):
            p = cast("MultivariateNormal", p)
            standard = Normal(torch.zeros_like(p.loc), torch.ones_like(p.loc), validate_args=False)
            return _without_half(p), _without_half(Independent(standard, 1, validate_args=False))
        if type(p) is not Normal or overrides_density(p):
            raise invalid_value(
                call,
                "prior",
                wanted=f"a prior for a posterior of type {type(p).__name__}",
                got="None, which means a standard normal prior",
                instead=f"{call}(posterior, prior)" if call[0].islower() else "regularizer(posterior, prior)",
            )
        q = Normal(torch.zeros_like(p.loc), torch.ones_like(p.scale), validate_args=False)
        return _without_half(p), _without_half(q)
    q = with_torch_sizes(prior)
    while isinstance(p, Independent) and isinstance(q, Independent):
        overrides = overrides_density(p) or overrides_density(q)
        if overrides or p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
            break
        p, q = p.base_dist, q.base_dist
    return _without_half(p), _without_half(q)


def _without_half(d: Distribution) -> Distribution:
    """Return `d`, or a float32 copy if a parameter of `d` has half precision. torch 2.11 cannot compile the copy."""
    from kullback.pairs.clone import parameters_of, with_tensors

    if not any(x.dtype in _HALF for x in parameters_of(d)):
        return d
    return with_tensors(d, lambda _owner, _name, x: x.float() if x.dtype in _HALF else x)


def _dims_of_examples(posterior: Distribution, batch_dims: int) -> int:
    """Return how many leading batch dimensions index examples: 0 for an event shape without batch shape."""
    return batch_dims if posterior.batch_shape or not posterior.event_shape else 0


def _of_examples(
    call: str,
    p: Distribution,
    q: Distribution,
    mask: Tensor | None,
    weight: Tensor | None,
    batch_dims: int,
    rule: _Rule,
) -> tuple[Tensor, Tensor | None]:
    """Return the KL by example and latent dimension, and the weights of the examples; None if all are 1."""
    from kullback.pairs.clone import parameters_of

    device = next((x.device.type for x in parameters_of(p)), "cpu")
    if torch.compiler.is_compiling() or torch.amp.is_autocast_available(device):
        with torch.autocast(device, enabled=False):
            kl = _kl(call, p, q, rule)
    else:
        kl = _kl(call, p, q, rule)
    if kl.ndim < batch_dims:
        raise invalid_value(
            call,
            "posterior",
            wanted=f"a batch shape that begins with {batch_dims} dimensions of examples (batch_dims={batch_dims})",
            got=f"a KL of shape {tuple(kl.shape)}",
            instead=f"batch_dims={kl.ndim}",
        )
    examples = kl.shape[:batch_dims]
    weights = None
    if mask is not None or weight is not None:
        weights = position_weights(call, examples, mask, weight, None, -100, kl.device, kl.dtype)
    number = math.prod(examples)
    return kl.reshape(number, *kl.shape[batch_dims:]), None if weights is None else weights.reshape(number)


def _kl(call: str, p: Distribution, q: Distribution, rule: _Rule) -> Tensor:
    """Return KL(P || Q). Error messages name the function `call` and its arguments instead of `kl_divergence`."""
    from kullback.dispatch import kl_divergence

    if rule.method != "auto":
        kl_divergence = partial(kl_divergence, **rule._asdict())
    if torch.compiler.is_compiling():
        return kl_divergence(p, q)
    with in_the_name_of(call, {"kl_divergence"}, {"p": "posterior", "q": "prior"}):
        return kl_divergence(p, q)


def _total(kl: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return two tensors: the weighted sum of the KL over the examples, and the sum of the weights."""
    if weights is None:
        return kl.sum(0), kl.new_tensor(float(kl.shape[0]))
    weights = weights.to(kl.dtype).reshape(-1, *[1] * (kl.ndim - 1))
    return (torch.where(weights == 0, 0.0, kl) * weights).sum(0), weights.sum()


def _dims(value: object) -> tuple[int, ...]:
    dims = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    kept = tuple(dim for dim in map(whole_from, dims) if dim is not None and dim >= 0)
    if len(kept) < len(dims):
        wanted, got = "None, an integer of 0 or more, or a tuple of these", safe_repr(value)
        raise invalid_value("KLRegularizer", "group_dims", wanted=wanted, got=got, instead="group_dims=0")
    return kept


def _checked_rule(call: str, method: object, draws: object, generator: torch.Generator | None) -> _Rule:
    from kullback.pairs import FEWEST_DRAWS, METHODS

    arguments = Arguments(
        call,
        method=OneOf(METHODS, example="auto", instead="method='auto' or method='monte_carlo'"),
        draws=Whole(least=FEWEST_DRAWS, example=64),
        generator=GENERATOR,
    )
    return _Rule(**arguments.check(method=method, draws=draws, generator=generator))


def _check_controller(call: str, coefficient: object) -> None:
    """Raise for a controller that `KLRegularizer` cannot update, or whose coefficient might not stay positive."""
    if not isinstance(coefficient, KLController):
        return
    if not isinstance(coefficient, AdaptiveKLController):
        raise invalid_type(
            call,
            "coefficient",
            wanted="a number, a schedule or an AdaptiveKLController",
            got=safe_repr(coefficient),
            instead="coefficient=lambda step: controller.coefficient, and controller.update(regularizer.kl) after each "
            "regularizer.step()",
        )
    if coefficient.clip >= coefficient.horizon:
        got = f"horizon={coefficient.horizon:g}, clip={coefficient.clip:g}"
        instead = f"AdaptiveKLController(..., horizon={max(20.0, 2 * coefficient.clip):g})"
        raise invalid_value(call, "coefficient", wanted="a horizon above clip", got=got, instead=instead)


def _no_distribution(call: str, name: str, value: object) -> Exception:
    wanted, instead = "a torch distribution", f"{name}=torch.distributions.Normal(loc, scale)"
    return invalid_type(call, name, wanted=wanted, got=type(value).__name__, instead=instead)
