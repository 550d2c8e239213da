"""Folders that torchao has quantized, as transformers saves and loads them."""

from pathlib import Path

import pytest
import torch

from kullback.models import Cut, compare_models
from tests.models import folders
from tests.models.test_compare import CONTEXT, words
from tests.models.tiny import make_tokenizer

pytestmark = pytest.mark.heavy

torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_a_quantized_folder_is_near_its_base_and_not_the_same(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM, TorchAoConfig

    config = TorchAoConfig(quant_type=getattr(torchao, name)())
    model = AutoModelForCausalLM.from_pretrained(
        folders.base(), quantization_config=config, dtype=torch.float32
    )
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    found = compare_models(folders.base(), tmp_path, words(), cut=Cut(context=CONTEXT))
    assert 1e-7 < found.candidates[0].comparison.divergences["kl_pq"].mean < 1e-2
