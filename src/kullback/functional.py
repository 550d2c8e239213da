"""Losses as functions: the replacement for torch's `kl_div`, distillation, and estimates from log-probabilities."""

from kullback.losses.distillation import distillation_loss, linear_distillation_loss
from kullback.losses.kl_div import kl_div
from kullback.losses.log_probs import kl_from_log_probs, kl_surrogate, log_importance_ratio
from kullback.losses.mixture import Mixture
from kullback.losses.sampled_tail import SampledTail, sampled_tail_divergence
from kullback.losses.teachers import PartialTeacher, TeacherRows
from kullback.losses.top_k import Scored, TopK, top_k_divergence
from kullback.losses.top_k_bounds import DivergenceBounds, top_k_divergence_bounds
from kullback.losses.truncated_sampling import SamplingLogProbs, Support, sampling_log_probs

__all__ = [
    "DivergenceBounds",
    "Mixture",
    "PartialTeacher",
    "SampledTail",
    "SamplingLogProbs",
    "Scored",
    "Support",
    "TeacherRows",
    "TopK",
    "distillation_loss",
    "kl_div",
    "kl_from_log_probs",
    "kl_surrogate",
    "linear_distillation_loss",
    "log_importance_ratio",
    "sampled_tail_divergence",
    "sampling_log_probs",
    "top_k_divergence",
    "top_k_divergence_bounds",
]
