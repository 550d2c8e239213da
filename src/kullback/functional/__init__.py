"""Losses as functions: the drop-in for `torch.nn.functional.kl_div`, and distillation from logits."""

from kullback.functional.distillation import distillation_loss
from kullback.functional.drop_in import kl_div

__all__ = ["distillation_loss", "kl_div"]
