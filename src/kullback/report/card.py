"""The folder of a card: a published comparison of language models that other people can repeat without the base."""

from __future__ import annotations

import json as json_text
import math
import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kullback.common.extra_arguments import by_name
from kullback.common.files import same_file, without_folders, write_all, write_errors
from kullback.common.formats import byte_count, count, counted, plus_minus, significant
from kullback.common.optional import load
from kullback.common.words import CARD, CARD_REFERENCE
from kullback.errors import FileError, invalid_value, printable
from kullback.io import Reference
from kullback.models import Candidate, ModelComparison, ModelInfo
from kullback.models.card import SCHEMA
from kullback.models.compare_language_models import distinct
from kullback.models.model_results import Recorded
from kullback.models.recording import copied
from kullback.report import html, json, markdown
from kullback.report.document import Code, Document, Findings, Table, main_tables
from kullback.report.repeat import are_repeatable, commands_of, groups_need_text
from kullback.report.schemas import card as schema
from kullback.report.subjects import document

if TYPE_CHECKING:
    from kullback.common.plain_values import JsonObject
    from kullback.report.document import Fields
    from kullback.results.verdict import Outcome, Verdict

README, PAGE, JSON = "README.md", "report.html", "report.json"
FILES = (README, CARD, CARD_REFERENCE, PAGE, JSON)
INSTALL = "pip install '.[cli,models]'"
KL = "kl_pq"
# Without a gate, nobody judged the number, so the color is neutral.
COLORS: dict[Outcome | None, str] = {
    "passed": "green",
    "failed": "red",
    "unclear": "yellow",
    None: "lightgrey",
}
NO_FILE_NAME = re.compile(r"[^\w.-]+")


@by_name()
def write(result: ModelComparison, folder: str | os.PathLike[str]) -> None:
    """Write the folder of a card; `ModelComparison.to_card` describes the folder."""
    target, path = Path(folder), _recorded(result).path
    with made_folder(target):
        texts = contents(result, (), target)
        if not same_file(path, target / CARD_REFERENCE):
            with Reference(path, name="record") as reference, copied(reference, target / CARD_REFERENCE):
                pass
        write_all({**texts})


@contextmanager
def made_folder(folder: Path) -> Generator[None]:
    """Make the folder of a card for the context. If there is an error, a new folder is removed again.

    At the end, badges of an earlier card that the new card does not have are removed.

    Raises:
        FileError: the folder cannot be made, or has files that are not an earlier card.
        OptionalDependencyError: jinja2 or matplotlib is not installed.
    """
    for library in ("jinja2", "matplotlib"):
        load(library, "the page of a card")
    is_new = not os.path.lexists(folder)
    with write_errors(folder, kind="folder"):
        if is_new:
            folder.mkdir()
        names = {path.name for path in folder.iterdir()}
    if not (names <= {CARD_REFERENCE} or _is_own_card(folder)):
        raise FileError.at(
            f"cannot write {printable(folder)}",
            wanted="a new folder, an empty one, or the folder of an earlier card",
            got=f"{counted(len(names), 'other file')}, such as {printable(min(names))}",
            instead="name a new folder",
        )
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                for path in [folder / name for name in FILES] + list(folder.glob("badge*.json")):
                    path.unlink(missing_ok=True)
                folder.rmdir()
        raise
    listed = {each["badge"] for each in _read(folder)["candidates"]}
    for path in folder.glob("badge*.json"):
        if path.name not in listed:
            path.unlink()


def _is_own_card(folder: Path) -> bool:
    """Return whether a folder has the record of an earlier card, and no model."""
    if (folder / "config.json").exists():
        return False
    with suppress(OSError, ValueError, RecursionError):
        fields = _read(folder)
        return isinstance(fields, dict) and cast("Any", fields).get("schema") == SCHEMA
    return False


def _read(folder: Path) -> Any:
    return json_text.loads((folder / CARD).read_text("utf-8"))


def contents(
    result: ModelComparison, verdicts: Sequence[Verdict], folder: Path, gates: Sequence[str] = ()
) -> dict[Path, str]:
    """Return the texts of a card's files, by path.

    Arguments:
        result: a comparison that wrote a reference file.
        verdicts: the verdicts of the gates.
        folder: the folder.
        gates: the options of the gates, as words of a command.
    """
    recorded = _recorded(result)
    result, verdicts = _without_folders(result, verdicts)
    names = [each.model.name for each in result.candidates]
    badges = dict(zip(names, _badge_names(names), strict=True))
    outcomes: dict[str, Outcome | None] = {name: _outcome(name, verdicts) for name in names}
    of_candidates: dict[str, Fields] = {
        name: {"repeatable": is_so, "badge": badges[name], "gates": outcomes[name]}
        for name, is_so in zip(names, are_repeatable(result, recorded), strict=True)
    }
    commands = commands_of(result, recorded, folder, gates)
    with Reference(recorded.path, name="record") as reference:
        record = schema.fields(result, recorded, reference, commands, of_candidates)
    page = document(result, verdicts)
    limits = _limits(record, has_groups_of_text=groups_need_text(recorded))
    texts = {
        PAGE: html.render(page),
        JSON: json.dumps(page),
        README: f"# {markdown.escaped(page.title)}\n\n{markdown.render(_readme(page, record, limits))}",
    }
    for each in result.candidates:
        name = each.model.name
        texts[badges[name]] = _dumped(_badge(each, result.base, COLORS[outcomes[name]]))
    texts[CARD] = _dumped(record)  # the last file: a folder without it is not whole
    return {folder / name: text for name, text in texts.items()}


def _dumped(fields: object) -> str:
    return json_text.dumps(fields, indent=2, allow_nan=False) + "\n"


def _recorded(result: ModelComparison) -> Recorded:
    if result.recorded is None:
        raise invalid_value(
            "ModelComparison.to_card",
            "self",
            wanted="a comparison that recorded its base",
            got="one without a reference file",
            instead="compare_models(..., record='base.klref').to_card('card')",
        )
    return result.recorded


def _without_folders(
    result: ModelComparison, verdicts: Sequence[Verdict]
) -> tuple[ModelComparison, tuple[Verdict, ...]]:
    """Return a comparison and its verdicts, without the folders of this machine in the names of models."""
    names = [result.base.name, *(each.model.name for each in result.candidates)]
    public = dict(zip(names, distinct([without_folders(name, names) for name in names]), strict=True))
    # All names are replaced in one pass, because a new name may equal the old name of another model.
    pattern = re.compile("|".join(map(re.escape, sorted(public, key=len, reverse=True))))

    def rewritten(text: str) -> str:
        return pattern.sub(lambda name: public[name[0]], text)

    def renamed(candidate: Candidate) -> Candidate:
        comparison = candidate.comparison
        of_comparison = {
            "p_name": rewritten(comparison.p_name),
            "q_name": rewritten(comparison.q_name),
            "notes": [rewritten(note) for note in comparison.notes],
        }
        return replace(
            candidate,
            model=replace(candidate.model, name=rewritten(candidate.model.name)),
            comparison=replace(comparison, **of_comparison),
        )

    floor = result.noise_floor
    renamed_result = replace(
        result,
        base=replace(result.base, name=public[result.base.name]),
        candidates=[renamed(each) for each in result.candidates],
        noise_floor=None if floor is None else renamed(floor),
        notes=[rewritten(note) for note in result.notes],
    )
    parts = ("failures", "broken_by", "unclear", "unclear_for")
    return renamed_result, tuple(
        replace(each, **{part: tuple(map(rewritten, getattr(each, part))) for part in parts})
        for each in verdicts
    )


def _outcome(candidate: str, verdicts: Sequence[Verdict]) -> Outcome | None:
    """Return the worst outcome of the gates for a candidate; None without gates."""
    if not verdicts:
        return None
    if any(candidate in each.broken_by for each in verdicts):
        return "failed"
    return "unclear" if any(candidate in each.unclear_for for each in verdicts) else "passed"


def _badge_names(candidates: Sequence[str]) -> list[str]:
    """Return the file of each candidate's badge: ``badge.json``, or with several candidates ``badge-NAME.json``."""
    if len(candidates) == 1:
        return ["badge.json"]
    plain = distinct([NO_FILE_NAME.sub("-", name) for name in candidates])
    return [f"badge-{name.replace(' ', '-')}.json" for name in plain]


def _badge(candidate: Candidate, base: ModelInfo, color: str) -> Fields:
    """Return a badge in the format of the endpoint of shields.io."""
    has_others = candidate.shared_classes not in (None, base.classes)
    return {
        "schemaVersion": 1,
        "label": f"{printable(candidate.model.name)} vs. {printable(base.name)}",
        "message": f"KL {message_of(candidate)} nats" + " over shared tokens" * has_others,
        "color": color,
    }


def message_of(candidate: Candidate) -> str:
    """Return the mean KL(P || Q) of a candidate in nats, and a distance that encloses its interval.

    Where the interval has no upper end, the message is its lower end.
    """
    kl = candidate.comparison.divergences[KL]
    low, high = kl.ends
    if candidate.is_lower_bound or high == math.inf:
        return f"≥ {significant(kl.mean if math.isnan(low) else low, 3)}"
    if kl.interval is None or not math.isfinite(kl.mean):
        return significant(kl.mean, 3)
    return plus_minus(kl.mean, low, high)


def _readme(page: Document, record: JsonObject, limits: tuple[str, ...]) -> Document:
    """Return the content of the README: the main table, how it was measured, the notes, and how to repeat it."""
    commands = record["commands"]
    titles = {
        "repeat": "To repeat it with this folder and the candidates next to it",
        "original": "The original command, with the base and the text",
        "with_text": "To repeat its groups too, with the text",
    }
    codes = [Code("To install the command, in a clone of kullback's repository", INSTALL, language="text")]
    codes += [
        Code(title, commands[name], language="sh")
        for name, title in titles.items()
        if commands[name] is not None
    ]
    protocol = Table(
        "How it was measured", ("", ""), _protocol(record), limits, is_main=True, ends_in_text=True
    )
    findings = [block for block in page.blocks if isinstance(block, Findings)]
    return replace(page, blocks=(*main_tables(page), protocol, *findings, *codes))


def _protocol(record: JsonObject) -> list[tuple[str, str]]:
    base, text, intervals, reference = (record[name] for name in ("base", "text", "intervals", "reference"))
    units = counted(text["windows"], "window") if intervals["unit"] == "window" else "documents"
    method = f"95 %, {count(intervals['bootstrap'])} draws of the bootstrap, seed {intervals['seed']}, {units} as units"
    size = f"{byte_count(reference['bytes'])}, of each token the top {reference['top']} classes and"
    size += f" {reference['tail_draws']} draws of the others, seed {reference['seed']}, by {reference['created_by']}"
    rows = [
        ("base (P)", base["name"]),
        ("SHA-256 of its weights", base["weights_sha256"]),
        *(
            (f"SHA-256 of the weights of {each['name']}", each["weights_sha256"])
            for each in record["candidates"]
        ),
        ("dtype and device", ", ".join(filter(None, (base["dtype"], base["device"])))),
        ("fingerprint of the tokenizer", base["tokenizer_sha256"]),
        ("text", text["name"]),
        ("SHA-256 of the text", text["sha256"]),
        ("SHA-256 of its tokens", text["tokens_sha256"]),
        ("tokens", f"{count(text['scored'])} scored of {count(text['tokens'])}"),
        ("context and score", f"{text['context']}, {text['score']}"),
        ("intervals", method if intervals["bootstrap"] else "none"),
        (reference["file"], size),
        (f"SHA-256 of {reference['file']}", reference["sha256"]),
        ("badges", ", ".join(each["badge"] for each in record["candidates"])),
        ("versions", ", ".join(f"{name} {number}" for name, number in record["versions"].items())),
    ]
    return [(name, "unknown" if value is None else value) for name, value in rows]


def _limits(record: JsonObject, *, has_groups_of_text: bool) -> tuple[str, ...]:
    """Return sentences about the use of the folder."""
    sentences = [
        f"{CARD_REFERENCE} has a part of each prediction: repeated means are unbiased, with wider intervals.",
        f"{CARD_REFERENCE} contains the tokens of the text: do not publish it if the text is private.",
        "If this folder was renamed, write its new name in the command.",
    ]
    if has_groups_of_text:
        sentences.append("Groups by role or by a key of the records need the text (--text FILE).")
    others = [each["name"] for each in record["candidates"] if not each["repeatable"]]
    if others:
        names = ", ".join(others)
        sentences.append(
            f"Only a comparison with the base repeats {names}: other classes, or a reference too."
        )
    return tuple(sentences)
