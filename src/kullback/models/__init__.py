"""Comparison of language models: folders of Hugging Face models, GGUF files, servers, and reference files."""

from kullback.common.words import is_model
from kullback.models.compare_language_models import compare_models
from kullback.models.hidden_states import HiddenStates
from kullback.models.language_model import LanguageModel, ModelInfo
from kullback.models.model_results import Candidate, ModelComparison, Passage, ReadToken
from kullback.models.open_model import Loading, is_reference, open_model
from kullback.models.output_head import OutputHead, open_head
from kullback.models.recording import record_reference
from kullback.models.text import Cut
from kullback.models.vocabulary import Token, Vocabulary
from kullback.predictions.run import Run

__all__ = [
    "Candidate",
    "Cut",
    "HiddenStates",
    "LanguageModel",
    "Loading",
    "ModelComparison",
    "ModelInfo",
    "OutputHead",
    "Passage",
    "ReadToken",
    "Run",
    "Token",
    "Vocabulary",
    "compare_models",
    "is_model",
    "is_reference",
    "open_head",
    "open_model",
    "record_reference",
]
