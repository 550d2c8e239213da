"""The cap and the scale of a Hugging Face model's logits, from the model's configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

# Configurations of Hugging Face models use these names for the largest absolute logit and for the factor of the logits.
# They are Gemma's, RecurrentGemma's and xLSTM's, and Cohere's, Glimmer's and Falcon's.
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier")


class HeadConfiguration(NamedTuple):
    """The factor of the product of a head, and the cap that is applied after the factor."""

    softcap: float | None
    logit_scale: float


def head_configuration(config: Any) -> HeadConfiguration:
    """Return the cap and the scale of the logits of a model with this configuration."""
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    cap, scale = (
        next((value for name in names if (value := getattr(config, name, None)) is not None), None)
        for names in (_CAPS, _SCALES)
    )
    divisor = getattr(config, "logits_scaling", None)  # Granite divides by it, HyperCLOVA X multiplies
    if scale is None and divisor is not None:
        scale = divisor if config.model_type == "hyperclovax" else 1 / divisor
    return HeadConfiguration(cap, 1.0 if scale is None else scale)
