"""Compare language models: folders of Hugging Face models, GGUF files, servers, and references on disk."""

from kullback.models.compare import compare_models
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.open_model import is_model, is_reference, open_model
from kullback.models.record import record_reference
from kullback.models.result import Candidate, ModelComparison, Passage, ReadToken
from kullback.models.vocabulary import Token, Vocabulary

__all__ = [
    "Candidate",
    "LanguageModel",
    "ModelComparison",
    "ModelInfo",
    "Passage",
    "ReadToken",
    "Token",
    "Vocabulary",
    "compare_models",
    "is_model",
    "is_reference",
    "open_model",
    "record_reference",
]
