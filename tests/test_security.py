"""Files from a stranger run nothing: each here would leave a file behind if any of its code ran (SECURITY.md)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from kullback.cli.commands import kullback
from kullback.errors import KullbackError
from kullback.io import open_rows, read_labels


class Payload:
    """Unpickling it makes the folder `ran`."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_npy() -> str:
    np.save("x.npy", np.array([[Payload()]], dtype=object), allow_pickle=True)
    return "x.npy"


def save_npz() -> str:
    np.savez("x.npz", x=np.array([[Payload()]], dtype=object))
    return "x.npz"


def save_pt() -> str:
    torch.save({"logits": torch.zeros(2, 3), "x": Payload()}, "x.pt")
    return "x.pt"


def save_bare_pickle(name: str = "x.pt") -> str:
    Path(name).write_bytes(pickle.dumps(Payload()))
    return name


FILES = [save_npy, save_npz, save_pt, save_bare_pickle]


def test_the_payload_would_run():
    pickle.loads(pickle.dumps(Payload()))  # noqa: S301 - our own
    assert Path("ran").is_dir()


@pytest.mark.parametrize("save", FILES)
def test_predictions_are_never_unpickled(save):
    with pytest.raises(KullbackError), open_rows(save(), representation="logits") as rows:
        list(rows.blocks(1 << 20))
    assert not Path("ran").exists()


@pytest.mark.parametrize("save", FILES)
def test_labels_are_never_unpickled(save):
    with pytest.raises(KullbackError):
        read_labels(save())
    assert not Path("ran").exists()


@pytest.mark.parametrize("save", FILES)
@pytest.mark.parametrize("command", [("compare", "--as", "logits"), ("compare", "--as", "table"), ("watch",)])
def test_no_command_unpickles_what_it_is_given(save, command):
    path = save()
    result = CliRunner().invoke(kullback, [*command, path, path])
    assert result.exit_code == 2, result.output
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    "text", ["__import__('os').mkdir('ran')", "Normal(0, __import__('os').mkdir('ran'))", "os.mkdir('ran')"]
)
def test_expressions_are_not_evaluated(text):
    assert CliRunner().invoke(kullback, ["calc", text, "Normal(0, 1)"]).exit_code == 2
    assert not Path("ran").exists()
