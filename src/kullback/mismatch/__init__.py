"""The mismatch of the engine that samples tokens and the trainer that learns from them, and its causes."""

from kullback.mismatch.measure_mismatch import Bucket, Mismatch, Part, policy_mismatch
from kullback.mismatch.read_token_logs import TOKEN_LOG_FORMATS, read_token_log
from kullback.mismatch.token_log import TokenLog

__all__ = [
    "TOKEN_LOG_FORMATS",
    "Bucket",
    "Mismatch",
    "Part",
    "TokenLog",
    "policy_mismatch",
    "read_token_log",
]
