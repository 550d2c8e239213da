"""Former names, until the files that still use them are renamed."""

from kullback.special import expm1mx as excess, safe_logsumexp as log_total, stirling_remainder as lgamma_rest

__all__ = ["excess", "lgamma_rest", "log_total"]
