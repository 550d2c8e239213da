"""The functions and modules of distillation describe an argument that they share in the same words.

`kullback.losses.argument_descriptions` has the words of most of them. The test reads the docstrings as the pages of the
reference show them, and compares these with the docstrings that `help` shows.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict
from pathlib import Path

import griffe

from kullback import functional, nn
from tests.house_style import house_style

SOURCES = Path(__file__).resolve().parents[2] / "src"
NAMES = (
    "losses.distillation.distillation_loss",
    "losses.distillation.linear_distillation_loss",
    "nn.DistillationLoss",
    "nn.LinearDistillationLoss",
)
# The function of hidden states has arguments of these names that mean something else.
OTHERS = {"student", "teacher"}


@functools.cache
def page(name: str) -> str:
    """Return a docstring as the sources have it: pages are made without an import."""
    module, _, member = name.rpartition(".")
    path = SOURCES / "kullback" / f"{module.replace('.', '/')}.py"
    docstring = griffe.visit(module, filepath=path, code=path.read_text(encoding="utf-8"))[member].docstring
    assert docstring is not None
    return docstring.value


def descriptions(docstring: str) -> dict[str, str]:
    """Return the description of each argument in one line."""
    block = docstring.partition("Arguments:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (\w+): ", block, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}


def begins(text: str, beginning: str) -> bool:
    """Return whether a text begins with the words of another, whose last period may be another mark."""
    words = beginning.removesuffix(".")
    return text.startswith(words) and not text[len(words) :][:1].isalnum()


def test_the_beginning_of_a_text_ends_with_a_word() -> None:
    assert begins("the mask, boolean.", "the mask.")
    assert not begins("the masks.", "the mask.")
    assert not begins("the mask.", "a mask.")
    assert descriptions("X.\n\nArguments:\n    a: one\n        line.\n    b: two.\n\nReturns:") == {
        "a": "one line.",
        "b": "two.",
    }


def test_each_argument_is_described_in_the_same_words() -> None:
    style = house_style()
    texts: dict[str, dict[str, str]] = defaultdict(dict)
    for name in NAMES:
        for argument, text in descriptions(style.as_markdown(page(name))).items():
            texts[argument][name] = text
    shared = {argument: of for argument, of in texts.items() if len(of) > 1 and argument not in OTHERS}
    assert len(shared) >= 15
    for argument, of in shared.items():
        shortest = min(of.values(), key=len)
        for name, text in of.items():
            assert begins(text, shortest), (
                f"{name} describes {argument} otherwise: {text!r}, not {shortest!r}"
            )
        modules = [text for name, text in of.items() if name.endswith("Loss")]
        assert len(set(modules)) <= 1, f"the modules describe {argument} in two ways"


def test_help_and_the_pages_describe_the_same_arguments() -> None:
    """Each argument of the signature has a description, also where the docstring only names it."""
    style = house_style()
    for name in NAMES[:4]:
        thing = getattr(functional if name.startswith("losses") else nn, name.rpartition(".")[2])
        of_help = inspect.getdoc(thing) or ""
        of_page = style.as_markdown(inspect.cleandoc(page(name)))
        assert style.as_markdown(of_help).split() == of_page.split(), name
        assert sorted(descriptions(of_help)) == sorted(inspect.signature(thing).parameters), name
        assert max(map(len, (thing.__doc__ or "").splitlines())) <= 120
