"""The heads of language models for `LinearDistillationLoss`: found, checked, and compared with the model's logits."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kullback.common.inputs import is_other_storage
from kullback.errors import invalid_value
from kullback.losses.head_configuration import head_configuration
from kullback.nn import LinearDistillationLoss
from kullback.parallel.shards import is_dtensor

_LOGITS = "loss=kullback.nn.DistillationLoss()"


class ModelHead(NamedTuple):
    """The head of one side's model, a linear layer. `call` and `side` are for messages; `module` has no wrappers."""

    call: str
    side: str
    module: Any
    linear: torch.nn.Linear

    @classmethod
    def of(cls, call: str, side: str, module: Any) -> ModelHead:
        """Return the head of a model; raise unless a weight and a bias alone make its logits."""
        if not hasattr(module, "get_output_embeddings"):
            wanted = f"a DistillationLoss for a {side} without get_output_embeddings, which returns the head"
            got = f"a LinearDistillationLoss and a {type(module).__name__}"
            raise invalid_value(call, "loss", wanted=wanted, got=got, instead=_LOGITS)
        linear = _saved_copy(module.get_output_embeddings())
        if getattr(type(linear), "forward", None) is not torch.nn.Linear.forward:
            instead = f"{_LOGITS}, which takes the logits of any head"
            if hasattr(linear, "base_layer"):  # a layer of PEFT
                instead = (
                    f"{_LOGITS}, or no adapter on the head (LoraConfig(target_modules=...) without 'lm_head')"
                )
            raise invalid_value(
                call,
                "loss",
                wanted=f"a DistillationLoss for a {side} whose head is not a plain torch.nn.Linear",
                got=f"a LinearDistillationLoss and a {type(linear).__module__}.{type(linear).__name__}, "
                "whose weight alone does not make its logits",
                instead=instead,
            )
        return cls(call, side, module, linear)

    def few_logits(self) -> dict[str, int]:
        """Return the argument that makes the model compute only the logits of the last position."""
        if "logits_to_keep" not in inspect.signature(self.module.forward).parameters:
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a DistillationLoss for a {self.side} that always makes all its logits",
                got=f"a LinearDistillationLoss with a {type(self.module).__name__}, which has no logits_to_keep",
                instead=_LOGITS,
            )
        return {"logits_to_keep": 1}

    def gather(self) -> None:
        """Gather a weight that `fully_shard` sharded again after the forward pass; raise unless it is in memory."""
        if is_dtensor(self.linear.weight):
            owners = [part for part in self.module.modules() if self._is_sharded_in(part)]
            for owner in owners[-1:]:  # the innermost owner
                owner.unshard()  # until the backward pass shards it again
        weight = self.linear.weight
        if weight.ndim != 2 or weight.numel() == 0:
            got = "a part of it, as the first FSDP or DeepSpeed's stage 3 has sharded it again"
            instead = f"{_LOGITS}, or torch.distributed.fsdp.fully_shard(model)"
        elif weight.is_meta:
            got = "one on the meta device, as accelerate has it on disk or in another memory"
            instead = f"{_LOGITS}, or a device_map with the head on a device"
        elif is_other_storage(weight) and not is_dtensor(weight):
            got = f"one of class {type(weight).__name__}, such as a quantized weight"
            instead = f"{_LOGITS}, or quantize_(model, config, filter_fn=...) that leaves the head out"
        else:
            return
        wanted = f"a {self.side} whose head has a plain weight in memory after its forward pass"
        raise invalid_value(self.call, "loss", wanted=wanted, got=got, instead=instead)

    def _is_sharded_in(self, part: torch.nn.Module) -> bool:
        """Return whether `fully_shard` gathers `part`, and `part` contains the head."""
        return hasattr(part, "unshard") and any(module is self.linear for module in part.modules())

    @torch.no_grad()
    def check_logits(self, loss: LinearDistillationLoss, hidden: Tensor, logits: Tensor) -> None:
        """Raise unless the head, with the cap and scale of the loss, gives the model's logits."""
        place = int(self.side == "teacher")
        scale, cap = (x[place] if isinstance(x, tuple) else x for x in (loss.logit_scale, loss.softcap))
        products = torch.nn.functional.linear(hidden, self.linear.weight, self.linear.bias)
        made = products.float() * (1.0 if scale is None else scale)
        made = made if cap is None else cap * torch.tanh(made / cap)
        near = 0.05 if {products.dtype, logits.dtype} & {torch.bfloat16, torch.float16} else 1e-3
        size = logits.float().abs().amax().clamp(min=1e-6)
        # The effect of a cap on small logits is below the tolerance, so the cap in the configuration is compared too.
        wanted = head_configuration(getattr(self.module, "config", None)).softcap
        if (wanted is not None and wanted != cap) or not bool(
            (made - logits.float()).abs().amax() <= near * size
        ):
            raise invalid_value(
                self.call,
                "loss",
                wanted=f"a LinearDistillationLoss that makes the logits of the {self.side} as its model does",
                got=f"softcap={cap}, logit_scale={scale}, which give other logits",
                instead="LinearDistillationLoss(softcap=..., logit_scale=...) as in the models' configurations, or "
                f"{_LOGITS}",
            )


def _saved_copy(head: Any) -> Any:
    """Return the copy of a head that PEFT trains and saves (`modules_to_save`), or the head itself."""
    copies, names = getattr(head, "modules_to_save", None), getattr(head, "active_adapters", None)
    if not hasattr(head, "original_module") or copies is None or names is None:
        return head
    active = next((name for name in names if name in copies), None)
    return head.original_module if head.disable_adapters or active is None else copies[active]
