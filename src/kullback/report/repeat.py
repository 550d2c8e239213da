"""The commands on a card: the original command, and a command that repeats the comparison with the card alone."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from kullback.common.files import without_folders
from kullback.common.words import is_address
from kullback.errors import printable
from kullback.models import ModelComparison, is_reference
from kullback.models.groups import BY_PATTERN
from kullback.models.model_results import Recorded

ANY_CANDIDATE = "CANDIDATE"
# The options of the command whose names differ from the library's arguments.
FLAGS = {
    "representation": "--as",
    "groups": "--group",
    "most_windows": "--windows",
    "server_top": "--top",
    "block_bytes": "--block-mb",
    "llama_cpp": "--format llama.cpp",
}
# A card's reference fixes the settings in OF_TEXT. The settings in OF_BASE apply only to a comparison with the base.
OF_TEXT = ("context", "score", "most_windows")
OF_BASE = ("noise_floor", "one_at_a_time", "llama_cpp")
_MEBIBYTE = 1 << 20


class Commands(NamedTuple):
    """The command that repeats a comparison with the card alone, the original one, and one that repeats the groups.

    `original` is None if the comparison took objects, or a card or reference as its base. `with_text` is None unless
    the groups need the text, and the text is a file.
    """

    repeat: str
    original: str | None
    with_text: str | None


def are_repeatable(result: ModelComparison, recorded: Recorded) -> list[bool]:
    """Return for each candidate whether the reference of the base can be compared with it as the base was.

    A candidate with classes of its own needs the base, and two references give only bounds.
    """
    return [
        candidate.shared_classes is None and not (side is not None and is_reference(side))
        for candidate, side in zip(result.candidates, recorded.sides[1:], strict=True)
    ]


def commands_of(result: ModelComparison, recorded: Recorded, folder: Path, gates: Sequence[str]) -> Commands:
    """Return the commands. They name files without folders.

    Arguments:
        result: the comparison.
        recorded: its arguments.
        folder: the folder of the card.
        gates: the options of the gates, as words of a command.
    """
    card = os.path.basename(os.path.abspath(folder))  # noqa: PTH100, PTH119 - a link keeps its name
    repeatable = [place for place, is_so in enumerate(are_repeatable(result, recorded), 1) if is_so]
    names, heads = _public(recorded.sides), _public(recorded.heads)
    sides = [recorded.sides[place] for place in repeatable]
    needs_text = any(side is not None and is_address(side) for side in sides)

    def repeat(*, has_text: bool) -> str:
        without_groups = not has_text and groups_need_text(recorded)
        of_text = () if has_text else (*OF_TEXT, *["groups"] * without_groups)
        # A limit on the mean of a group is mean[GROUP]=LIMIT.
        pairs = [
            pair
            for pair in zip(gates[::2], gates[1::2], strict=True)
            if not (without_groups and "[" in pair[1])
        ]
        words = [
            card,
            *([names[place] for place in repeatable] if sides and None not in sides else [ANY_CANDIDATE]),
            *_text(recorded if has_text else None),
            *_heads([heads[place] for place in repeatable]),
            *_options(recorded, of_text, OF_BASE),
            *chain.from_iterable(pairs),
        ]
        return _joined(words)

    original = [
        *names,
        *_text(recorded),
        *_heads(heads),
        *_options(recorded),
        *gates,
        "--card",
        card,
    ]
    has_base = recorded.is_command and not is_reference(str(recorded.sides[0]))
    with_text = groups_need_text(recorded) and not needs_text and recorded.text is not None
    return Commands(
        repeat(has_text=needs_text),
        _joined(original) if has_base else None,
        repeat(has_text=True) if with_text else None,
    )


def groups_need_text(recorded: Recorded) -> bool:
    """Return whether a comparison has groups by role or by a key of the records, which only the text shows."""
    rule = recorded.settings.get("groups")
    return rule is not None and not str(rule).startswith(BY_PATTERN)


def _joined(words: Sequence[str]) -> str:
    return " ".join(printable(shlex.quote(word)) for word in ("kullback", "compare", *words))


def _public(paths: Sequence[str | None]) -> list[str]:
    """Return the shortest paths that tell the sides or heads apart; an empty text without a path."""
    among = [path for path in paths if path is not None]
    return ["" if path is None else without_folders(path, among) for path in paths]


def _text(recorded: Recorded | None) -> list[str]:
    return [] if recorded is None or recorded.text is None else ["--text", without_folders(recorded.text)]


def _heads(heads: Sequence[str]) -> list[str]:
    folders = [head for head in heads if head]
    chosen = folders if len(set(folders)) > 1 else folders[:1]
    return [word for folder in chosen for word in ("--head", folder)]


def _options(recorded: Recorded, *left_out: Collection[str]) -> list[str]:
    words: list[str] = []
    for name, value in recorded.settings.items():
        if any(name in names for names in left_out):
            continue
        words += FLAGS.get(name, f"--{name.replace('_', '-')}").split()
        if name == "block_bytes":
            words.append(f"{float(value) / _MEBIBYTE:g}")
        elif not isinstance(value, bool):
            words.append(str(value))
    return words + (["--seed", str(recorded.seed)] if recorded.seed else [])
