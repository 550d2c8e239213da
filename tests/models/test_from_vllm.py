"""The page "From vLLM": its program, its server and its commands, on tiny models and a stand-in for vLLM.

The stand-in accepts the settings of vLLM 0.33 that the connector needs, and no others, and writes what it writes.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.cli.calling import run
from tests.models import folders
from tests.models.hidden import parts_of, states_of, write
from tests.models.tiny import text

transformers = pytest.importorskip("transformers")
PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "from_vllm.md").read_text(encoding="utf-8")


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def check_settings(speculative: dict[str, Any], transfer: dict[str, Any]) -> tuple[list[int], Path]:
    """Check the settings of the connector; return the ids of the layers and the folder."""
    [ids] = speculative.pop("draft_model_config").pop("hf_config").values()
    assert speculative == {"method": "extract_hidden_states", "num_speculative_tokens": 1}
    extra = transfer.pop("kv_connector_extra_config")
    assert transfer == {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"}
    assert list(extra) == ["shared_storage_path"]
    return ids, Path(extra["shared_storage_path"])


class SamplingParams:
    def __init__(self, *, max_tokens: int) -> None:
        assert max_tokens == 1


class LLM:
    """The part of vLLM's LLM that the page uses: it stores the hidden states of each prompt."""

    def __init__(
        self,
        *,
        model: str,
        enable_prefix_caching: bool,
        speculative_config: dict[str, Any],
        kv_transfer_config: dict[str, Any],
    ) -> None:
        assert not enable_prefix_caching
        assert list(speculative_config["draft_model_config"]["hf_config"]) == [
            "eagle_aux_hidden_state_layer_ids"
        ]
        self.ids, self.folder = check_settings(speculative_config, kv_transfer_config)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model).eval()
        assert self.ids == [len(parts_of(self.model)[0])]

    def generate(self, prompts: list[dict[str, list[int]]], params: SamplingParams) -> None:
        for number, prompt in enumerate(prompts):
            tokens = torch.tensor(prompt["prompt_token_ids"])
            # The names have no order, as those of the requests of a server.
            name = f"cmpl-{(number * 7919) % 1009:04}-0.safetensors"
            write(self.folder / name, tokens, states_of(self.model, tokens, self.ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, the text and the hidden states, which the program of the page has recorded."""
    root = tmp_path_factory.mktemp("page")
    for name, source in (("llama-8b", folders.base()), ("llama-8b-fp8", folders.int8())):
        shutil.copytree(source, root / name)
    (root / "wiki.txt").write_text(text())
    module: Any = ModuleType("vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    [program] = fences("py")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setitem(sys.modules, "vllm", module)
        for name in ("llama-8b-fp8", "llama-8b"):
            exec(compile(program.replace('"llama-8b-fp8"', repr(name)), "page", "exec"), {})  # noqa: S102
    return root


def test_the_commands_of_the_page_run_and_give_the_numbers_of_the_models(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    direct = run("compare", "llama-8b", "llama-8b-fp8", "--text", "wiki.txt", "--json", "direct.json")
    assert direct.exit_code == 0, direct.output
    wanted = _mean("direct.json")
    commands = [shlex.split(line) for fence in fences("text") for line in fence.splitlines()]
    assert len(commands) == 5
    means = []
    for number, [program, *arguments] in enumerate(commands):
        assert program == "kullback"
        report = ["--json", f"{number}.json"] if arguments[0] == "compare" else []
        result = run(*arguments, *report)
        assert result.exit_code == 0, result.output
        means += [_mean(report[1])] if report else []
    assert means[:3] == pytest.approx([wanted] * 3, rel=1e-6)
    assert means[3] == pytest.approx(wanted, rel=0.2)  # of a reference, with its draws
    page = Path("report.html").read_text()
    assert "were checked against the model llama-8b-fp8" in page
    assert Path("llama-8b.klref").stat().st_size > 0


def _mean(report: str) -> float:
    return json.loads(Path(report).read_text())["candidates"][0]["comparison"]["divergences"]["kl_pq"]["mean"]


def test_the_server_of_the_page_has_the_settings_of_the_program() -> None:
    [command] = fences("sh")
    program, verb, model, *options = shlex.split(command.replace("\\\n", " "))
    assert (program, verb, model) == ("vllm", "serve", "llama-8b-fp8")
    assert options[0] == "--no-enable-prefix-caching"
    given = dict(zip(options[1::2], options[2::2], strict=True))
    settings = [json.loads(given.pop(name)) for name in ("--speculative-config", "--kv-transfer-config")]
    assert check_settings(*settings) == ([32], Path("llama-8b-fp8.hidden"))
    assert not given


def test_the_sizes_of_the_page_are_right(folder: Path) -> None:
    rows = dict(re.findall(r"^\| (.*?) \| ([\d.]+) kB \|$", PAGE, re.MULTILINE))
    assert float(rows["bfloat16 hidden states, one layer"]) == pytest.approx(2 * 4096 / 1e3, abs=0.05)
    assert float(rows["float8 hidden states, one layer"]) == pytest.approx(4096 / 1e3, abs=0.05)
    assert float(rows["logits of 128,256 classes in bfloat16"]) == pytest.approx(2 * 128_256 / 1e3, abs=0.5)
