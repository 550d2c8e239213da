"""The server of llama-cpp-python, run as it is: the prompt's log-probabilities that it gives, and does not give."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("httpx")
pytest.importorskip("gguf")
pytest.importorskip("llama_cpp", exc_type=ImportError)
pytest.importorskip("uvicorn")
pytest.importorskip("sse_starlette")

from kullback.errors import ModelError
from kullback.io.windows import Windows
from kullback.models.gguf import GGUFModel
from kullback.models.server import ServerModel
from tests.models import tiny

pytestmark = pytest.mark.heavy

TOP = 10


@contextmanager
def served(path: Path, *options: str) -> Iterator[str]:
    """The address of llama-cpp-python's server of a GGUF file; `ServerModel` waits for it to listen."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(path), "--port", str(port)]
    settings = [
        "--n_ctx",
        "256",
        "--n_threads",
        "1",
        "--n_threads_batch",
        "1",
        "--verbose",
        "false",
        *options,
    ]
    process = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_folder(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def path(folder: Path) -> Path:
    return tiny.make_gguf(folder, folder.parent / "tiny.gguf")


def windows_of(model: GGUFModel) -> Windows:
    """Lines of a text, each begun with BOS where the model has one."""
    start = [] if model.bos is None else [model.bos]
    lines = [line for line in tiny.text().splitlines(keepends=True) if len(line) > 70 and line.isascii()]
    parts = [torch.tensor([*start, *model.encode(line)]) for line in lines[:4]]
    offsets = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    scored = torch.cat([torch.arange(len(part)) > len(part) // 2 for part in parts])
    return Windows(torch.cat(parts), offsets, scored)


def test_the_log_probabilities_are_those_of_the_file(path):
    with GGUFModel(path) as local, served(path, "--logits_all", "true") as address:
        windows = windows_of(local)
        truth = torch.cat(list(local.logits(windows, 100))).double().log_softmax(-1)
        with ServerModel(address, top=TOP, first_wait=2) as model:
            model.vocabulary, model.info = local.vocabulary, replace(model.info, classes=local.classes)
            assert (model.speaks, model.bos) == ("openai", None)
            blocks = list(model.top_k(windows))
    row = listed = 0
    for number, block in enumerate(blocks):
        tokens, scored = windows.window(number)
        assert torch.equal(block.labels, tokens[scored])
        for index in range(len(block)):
            kept = block.top_log_probs[index] != -torch.inf
            classes, values = block.top_indices[index][kept], block.top_log_probs[index][kept]
            # The server computes with llama.cpp's default, a cache of keys and values in float16.
            assert ((values - truth[row, classes]).abs() < 0.05).all()
            assert not len(classes) or truth[row, classes].max() > truth[row].max() - 0.1
            listed += len(classes)
            row += 1
    assert row == windows.rows
    assert listed > row / 2


@pytest.fixture
def refused(
    request: pytest.FixtureRequest, path: Path, folder: Path, tmp_path: Path
) -> Iterator[ServerModel]:
    """A model on a server with these options; ``bare`` is one whose tokenizer adds no BOS."""
    bare, *options = request.param
    if bare:
        path = tiny.make_gguf(tiny.make_folder(tmp_path / "plain", adds_bos=False), tmp_path / "plain.gguf")
    with (
        GGUFModel(path) as local,
        served(path, *options) as address,
        ServerModel(address, top=TOP, first_wait=2) as model,
    ):
        model.vocabulary = local.vocabulary
        model._server._first_wait = 0.01  # it listens now
        model.windows = windows_of(local)
        yield model


@pytest.mark.parametrize("refused", [(True, "--logits_all", "true")], indirect=True)
def test_a_model_without_bos_is_refused_as_its_log_probabilities_are_of_other_tokens(refused):
    with pytest.raises(ModelError, match="models without BOS"):
        list(refused.top_k(refused.windows))


@pytest.mark.parametrize("refused", [(False, "--logits_all", "false")], indirect=True)
def test_a_server_without_logits_of_all_tokens_says_so(refused):
    with pytest.raises(ModelError, match="logits_all"):
        list(refused.top_k(refused.windows))
