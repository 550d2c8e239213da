"""`record` and `to_card` in Python: what a card has, what repeats it, and what is refused. The models are of bytes."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from kullback import compare, compare_models, record_reference
from kullback.common.formats import plus_minus
from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError, KullbackError, ModelError
from kullback.io import Reference
from kullback.io.safetensors_file import encoded_header
from kullback.models import Cut, Loading, ModelComparison, Run, Token, Vocabulary, is_reference
from kullback.models.recording import weights_hash
from kullback.models.text import documents_of_runs, take_texts
from kullback.report.document import Findings
from kullback.report.plots.models import name_of
from kullback.report.subjects import document
from tests.models.bytes_model import BytesModel
from tests.refusals import refused

WORDS = "the cat sat on the mat, and the dog sat on the log. " * 10
CUT = Cut(context=32)
WINDOWS = len(WORDS) // 32


def table(seed: int, noise: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return logits + noise * torch.randn(256, 256, generator=generator, dtype=torch.float64)


BASE = BytesModel("base", table(0))
NEAR, FAR = BytesModel("near", table(1, 0.1)), BytesModel("far", table(2, 0.5))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelComparison, Path]:
    """A comparison, and the folder of its card."""
    folder = tmp_path_factory.mktemp("made")
    result = compare_models(BASE, [FAR, NEAR], WORDS, cut=CUT, record=folder / "base.klref")
    result.to_card(folder / "card")
    return result, folder / "card"


@pytest.fixture
def card(made: tuple[ModelComparison, Path], tmp_path: Path) -> Path:
    """A copy of the card, to spoil."""
    return Path(shutil.copytree(made[1], tmp_path / "card"))


def fields(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text("utf-8"))


def means(result: ModelComparison) -> dict[str, tuple[float, tuple[float, float] | None]]:
    kl = {each.model.name: each.comparison.divergences["kl_pq"] for each in result.candidates}
    return {name: (each.mean, each.interval) for name, each in kl.items()}


def test_recording_changes_no_number_and_gives_the_file_of_record(
    made: tuple[ModelComparison, Path], tmp_path: Path
) -> None:
    result, folder = made
    plain = compare_models(BASE, [FAR, NEAR], WORDS, cut=CUT)
    assert result.to_dict() == plain.to_dict()
    assert plain.recorded is None
    record_reference(BASE, WORDS, tmp_path / "base.klref", cut=CUT)
    recorded = (tmp_path / "base.klref").read_bytes()
    assert (
        (folder / "reference.klref").read_bytes() == recorded == (folder.parent / "base.klref").read_bytes()
    )
    assert fields(folder)["text"]["sha256"] == hashlib.sha256(WORDS.encode()).hexdigest()


def test_the_card_gives_the_numbers_of_its_reference(
    made: tuple[ModelComparison, Path], tmp_path: Path
) -> None:
    result, folder = made
    assert is_reference(folder)
    repeated = compare(folder, [FAR, NEAR])
    assert isinstance(repeated, ModelComparison)
    record_reference(BASE, WORDS, tmp_path / "base.klref", cut=CUT)
    assert means(repeated) == means(compare_models(tmp_path / "base.klref", [FAR, NEAR]))
    assert (repeated.context, repeated.score, repeated.windows) == (32, "second-half", result.windows)
    for name, (mean, _) in means(result).items():
        _, interval = means(repeated)[name]
        assert interval is not None
        assert interval[0] <= mean <= interval[1]
    notes = [note for note in repeated.notes if "on the card" in note]
    assert [note.partition(" on the card")[0] for note in notes] == [
        "Mean KL(P||Q) of near",
        "Mean KL(P||Q) of far",
    ]
    assert all(note.endswith("the intervals overlap.") for note in notes)
    assert compare_models(folder, BytesModel("new", table(1, 0.1))).notes == []
    far = BytesModel("near", table(2, 0.5))
    [other] = compare_models(folder, far).notes
    assert other.endswith("do not overlap, so this is another model, or it ran in another way.")
    # The short output says whether the number repeats, and begins with a candidate whose number does not.
    for candidates, note in ((far, other), ([FAR, far], other), ([NEAR, FAR], notes[0]), (NEAR, notes[0])):
        assert note in document(compare_models(folder, candidates)).brief.blocks
    assert not any("on the card" in str(block) for block in document(result).brief.blocks)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("stated", "wanted"),
    [
        ({"context": 64}, r"^32, as in .*reference\.klref$"),
        ({"context": 512}, "^32, as in"),  # the default, but stated
        ({"score": "all"}, "^second-half, as in"),
        ({"most_windows": 3}, f"^all {WINDOWS} windows, as in"),
    ],
)
@pytest.mark.parametrize("file", ["", "reference.klref"])
def test_a_setting_that_is_not_the_reference_s_is_refused(
    made: tuple[ModelComparison, Path], stated: dict[str, Any], wanted: str, file: str
) -> None:
    [name] = stated
    for text in (None, WORDS):
        with refused(
            ArgumentValueError,
            argument=name,
            wanted=wanted,
            got=str(stated[name]),
            instead="^leave it out$",
        ):
            compare_models(made[1] / file, NEAR, text, cut=Cut(**stated))
        same = {"context": 32, "score": "second-half", "most_windows": WINDOWS}[name]
        for cut in (Cut(), Cut(**{name: same})):
            assert means(compare_models(made[1] / file, NEAR, text, cut=cut))


@pytest.mark.parametrize("independent", [False, True])
def test_notes_name_the_units_of_the_intervals(*, independent: bool) -> None:
    words = 4 * WORDS
    documents = [words[place : place + 150] for place in range(0, 1500, 100)]
    for text, units in ((words, "65 windows"), (documents, "15 documents")):
        result = compare_models(BASE, NEAR, text, cut=CUT, run=Run(independent=independent))
        notes = result.candidates[0].comparison.notes
        assert any(f"assume that the {units} are" in note for note in notes) or not independent
        assert units.split()[1] in notes[0]
        unseen = (
            "windows"
            if units == "65 windows" and independent
            else "documents"
            if text is documents
            else "blocks"
        )
        assert f"of all {unseen} may be of unseen kinds" in str(document(result).brief)
        assert "cluster" not in " ".join(notes)


def test_a_note_that_does_not_hold_for_all_candidates_names_its_own() -> None:
    same = BytesModel("same", BASE.table)
    notes = document(compare_models(BASE, [same, NEAR, FAR], WORDS, cut=CUT)).blocks[-1]
    assert isinstance(notes, Findings)
    findings, brief = str(notes), str(document(compare_models(BASE, [same, NEAR], WORDS, cut=CUT)).brief)
    assert re.search(r"'near', '\d\.\d\d mnat'", brief)  # the unit is not that of 0
    assert "same: No interval for " in findings
    assert "far: At 95 % confidence" in findings
    alone = str(document(compare_models(BASE, same, WORDS, cut=CUT)).blocks[-1])
    assert "same: " not in alone


def test_a_stated_default_score_is_not_the_reference_s(tmp_path: Path) -> None:
    record_reference(BASE, WORDS, tmp_path / "all.klref", cut=Cut(context=32, score="all"))
    with refused(ArgumentValueError, argument="score", wanted="^all, as in", got="second-half"):
        compare_models(tmp_path / "all.klref", NEAR, cut=Cut(score="second-half"))
    assert compare_models(tmp_path / "all.klref", NEAR).score == "all"


def test_the_notes_say_the_numbers_of_both(made: tuple[ModelComparison, Path]) -> None:
    repeated = compare_models(made[1], NEAR)
    numbers = [float(word) for word in re.findall(r"\d+\.\d+", repeated.notes[0])]
    (card, of_card), (here, of_here) = (means(each)["near"] for each in (made[0], repeated))
    assert of_card is not None
    assert of_here is not None
    assert numbers == pytest.approx([card, *of_card, here, *of_here], rel=1e-3)
    [unknown] = compare_models(made[1], NEAR, run=Run(bootstrap=0)).notes
    assert unknown.endswith("without both intervals, they cannot be compared.")


def test_an_unknown_interval_on_a_card_is_not_compared(card: Path) -> None:
    edited(
        card, lambda held: [each["kl_pq"].update(interval=["NaN", "Infinity"]) for each in held["candidates"]]
    )
    [unknown] = compare_models(card, NEAR).notes
    assert unknown.endswith("without both intervals, they cannot be compared.")


def test_a_card_is_a_candidate_too(made: tuple[ModelComparison, Path]) -> None:
    of_card = compare_models(NEAR, made[1])
    assert (
        means(of_card).popitem()[1] == means(compare_models(NEAR, made[1] / "reference.klref")).popitem()[1]
    )
    assert of_card.notes == []


def test_a_model_in_memory_has_no_hash_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    assert weights_hash(BASE) is None
    assert weights_hash(".") == hashlib.sha256(b"weights").hexdigest()


def test_the_hash_of_a_name_on_the_hub_is_of_the_files_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    pytest.importorskip("transformers")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    cache = tmp_path / "models--organization--model"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("abc")
    folder = cache / "snapshots" / "abc"
    folder.mkdir(parents=True)
    for name, content in (("config.json", b"{}"), ("model.safetensors", b"weights")):
        (folder / name).write_bytes(content)
    assert weights_hash("organization/model") == hashlib.sha256(b"weights").hexdigest()
    assert weights_hash("organization/other") is None
    model = BytesModel("organization/model", NEAR.table)
    result = compare_models(model, [NEAR], WORDS, cut=CUT, record=tmp_path / "base.klref")
    result.to_card(tmp_path / "card")
    assert fields(tmp_path / "card")["base"]["weights_sha256"] is None  # its name is not where it comes from
    readme = (tmp_path / "card" / "README.md").read_text("utf-8")
    assert f"| SHA-256 of the weights of {NEAR.info.name} | unknown |" in readme


def test_the_hash_of_a_split_gguf_file_is_of_all_its_parts(tmp_path: Path) -> None:
    paths = [tmp_path / f"q4-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path in (*paths, tmp_path / "q8-00001-of-00002.gguf"):
        path.write_bytes(path.name.encode())
    wanted = hashlib.sha256(b"".join(path.name.encode() for path in paths)).hexdigest()
    assert weights_hash(paths[0]) == wanted


def test_objects_have_no_command_of_their_own(made: tuple[ModelComparison, Path]) -> None:
    assert fields(made[1])["commands"] == {
        "repeat": "kullback compare card CANDIDATE",
        "original": None,
        "with_text": None,
    }
    readme = (made[1] / "README.md").read_text("utf-8")
    assert readme.count("```sh") == 1
    assert "kullback compare card CANDIDATE\n" in readme
    assert "\npip install '.[cli,models]'\n" in readme
    assert "If this folder was renamed, write its new name" in readme
    assert {each["color"] for each in badges(made[1])} == {"lightgrey"}  # nobody set a limit


def badges(folder: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("badge*.json")))


def test_a_reference_is_copied_and_a_card_of_a_card_is_the_same(
    made: tuple[ModelComparison, Path], tmp_path: Path
) -> None:
    again = compare_models(made[1], NEAR, record=tmp_path / "again.klref")
    again.to_card(tmp_path / "again")
    first, second = fields(made[1]), fields(tmp_path / "again")
    for part in ("base", "text", "reference"):
        assert {**second[part], "name": ""} == {**first[part], "name": ""}
    assert second["candidates"][0]["badge"] == "badge.json"
    compare_models(made[1], made[1] / "reference.klref", record=tmp_path / "file.klref").to_card(
        tmp_path / "of files"
    )
    assert (
        fields(tmp_path / "of files")["commands"]["original"] is None
    )  # it has neither the base nor the text
    assert "The original command" not in (tmp_path / "of files" / "README.md").read_text("utf-8")
    assert means(compare_models(tmp_path / "again", NEAR)) == means(again)


def test_the_name_in_a_copied_reference_has_no_folders(tmp_path: Path) -> None:
    model = BytesModel(str(tmp_path / "models" / "base"), BASE.table)
    record_reference(model, WORDS, tmp_path / "base.klref", cut=CUT)
    compare_models(tmp_path / "base.klref", NEAR, record=tmp_path / "copy.klref").to_card(tmp_path / "card")
    with Reference(tmp_path / "copy.klref") as copy, Reference(tmp_path / "base.klref") as original:
        assert copy.metadata == {**original.metadata, "model": "base"}
        assert torch.equal(copy.read(0, copy.rows).tail_indices, original.read(0, copy.rows).tail_indices)
    for path in (tmp_path / "card").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path


@pytest.mark.sweep
def test_one_model_at_a_time_repeats_to_the_last_digit(tmp_path: Path) -> None:
    result = compare_models(
        BASE, [NEAR, FAR], WORDS, cut=CUT, one_at_a_time=True, record=tmp_path / "base.klref"
    )
    result.to_card(tmp_path / "card")
    assert (fields(tmp_path / "card")["reference"]["top"], fields(tmp_path / "card")["base"]["name"]) == (
        256,
        "base",
    )
    repeated = compare_models(tmp_path / "card", [NEAR, FAR])
    assert means(repeated) == means(result)


@pytest.mark.parametrize("stopped_after", [1, 3])
def test_a_resumed_run_records_all_rows(tmp_path: Path, stopped_after: int) -> None:
    calls = 0

    def stop(done: int, rows: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == stopped_after:
            raise KeyboardInterrupt

    state, path = tmp_path / "state", tmp_path / "base.klref"
    blocks = {"block_bytes": 4 * 256 * 128, "resume": state}
    with pytest.raises(KeyboardInterrupt):
        compare_models(BASE, NEAR, WORDS, cut=CUT, run=Run(progress=stop, **blocks), record=path)
    assert state.exists()
    assert not path.exists()
    firsts: list[int] = []
    result = compare_models(
        BASE,
        NEAR,
        WORDS,
        cut=CUT,
        run=Run(progress=lambda done, _: firsts.append(done), **blocks),
        record=path,
    )
    assert firsts[0] > 0
    record_reference(BASE, WORDS, tmp_path / "whole.klref", cut=CUT)
    assert path.read_bytes() == (tmp_path / "whole.klref").read_bytes()
    assert means(result) == means(compare_models(BASE, NEAR, WORDS, cut=CUT))


DOCUMENTS = [WORDS[place : place + 70] for place in range(0, 450, 45)]


@pytest.mark.sweep
def test_documents_are_the_units_of_the_card_and_of_its_repetition(tmp_path: Path) -> None:
    direct = compare_models(BASE, NEAR, DOCUMENTS, cut=CUT, record=tmp_path / "base.klref")
    direct.to_card(tmp_path / "card")
    assert fields(tmp_path / "card")["intervals"]["unit"] == "document"
    assert fields(tmp_path / "card")["text"]["sha256"] is None
    repeated, recorded = (
        compare_models(tmp_path / "card", NEAR),
        compare_models(BASE, NEAR, DOCUMENTS, cut=CUT, one_at_a_time=True),
    )
    for each in (direct, repeated, recorded):
        assert each.windows > 2 * len(DOCUMENTS)
        assert each.candidates[0].comparison.clusters == len(DOCUMENTS)


def with_metadata(source: Path, target: Path, **values: str) -> None:
    """Copy a reference file with other texts in its header."""
    content = source.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] |= values
    target.write_bytes(encoded_header(header) + content[8 + size :])


@pytest.mark.sweep
@pytest.mark.parametrize("context", ["9" * 5000, "²", "-1", "1", ""])
def test_a_stored_context_that_is_none_is_the_longest_window(tmp_path: Path, context: str) -> None:
    record_reference(BASE, WORDS, tmp_path / "base.klref", cut=CUT)
    with_metadata(tmp_path / "base.klref", tmp_path / "other.klref", context=context)
    assert compare_models(tmp_path / "other.klref", NEAR).context == CUT.context


@pytest.mark.parametrize("text", ["", "0", "0:1", "0:-1 1:76", "1:30 0:45", "0:1e2", "0:99999999999"])
def test_documents_that_do_not_fit_the_windows_are_refused(tmp_path: Path, text: str) -> None:
    record_reference(BASE, DOCUMENTS, tmp_path / "base.klref", cut=CUT)
    with Reference(tmp_path / "base.klref") as reference:
        right, windows = reference.metadata["documents"], len(reference.windows)
    assert torch.equal(
        cast("torch.Tensor", documents_of_runs(right, windows)),
        torch.arange(len(DOCUMENTS)).repeat_interleave(windows // len(DOCUMENTS)),
    )
    with_metadata(tmp_path / "base.klref", tmp_path / "bad.klref", documents=text)
    with refused(
        FileError,
        wanted=f"metadata documents such as 0:2 1:3, of {windows} windows together",
    ):
        compare_models(tmp_path / "bad.klref", NEAR)


def test_an_earlier_card_is_replaced_with_its_badges_and_nothing_else(card: Path, tmp_path: Path) -> None:
    (card / "LICENSE").write_text("mine")
    compare_models(BASE, NEAR, WORDS, cut=CUT, record=tmp_path / "base.klref").to_card(card)
    assert {path.name for path in card.iterdir()} == {
        "LICENSE", "README.md", "badge.json", "card.json", "reference.klref", "report.html", "report.json",
    }  # fmt: skip
    assert len(fields(card)["candidates"]) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["notes.txt", "README.md", "config.json", "card.json"])
def test_a_folder_of_something_else_is_refused_and_stays(
    made: tuple[ModelComparison, Path], tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("{}")
    with refused(
        FileError, wanted="an earlier card", got=rf"1 other file, such as {name}", instead="new folder"
    ):
        made[0].to_card(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    made[0].to_card(tmp_path / "new folder")
    assert means(compare_models(tmp_path / "new folder", NEAR))


def test_a_model_is_never_a_card(card: Path) -> None:
    (card / "config.json").write_text("{}")
    assert not is_reference(card)
    with refused(FileError, wanted="an earlier card"):
        compare_models(BASE, NEAR, WORDS, cut=CUT, record=card.parent / "a.klref").to_card(card)
    for path in card.iterdir():
        if path.name not in ("config.json", "README.md"):
            path.unlink()
    (card / "config.json").unlink()
    assert not is_reference(card)


def edited(card: Path, change: Any) -> None:
    held = fields(card)
    change(held)
    (card / "card.json").write_text(json.dumps(held))


SPOILED = {
    "no record": lambda card: (card / "card.json").unlink(),
    "no reference": lambda card: (card / "reference.klref").unlink(),
    "cut record": lambda card: (card / "card.json").write_text((card / "card.json").read_text()[:100]),
    "deep record": lambda card: (card / "card.json").write_text("[" * 100_000),
    "a list": lambda card: (card / "card.json").write_text("[]"),
    "another version": lambda card: edited(card, lambda held: held.update(schema="kullback.card/2")),
    "no candidates": lambda card: edited(card, lambda held: held.pop("candidates")),
    "a word for a mean": lambda card: edited(
        card, lambda held: held["candidates"][0]["kl_pq"].update(mean="x")
    ),
    "other tokens": lambda card: edited(card, lambda held: held["text"].update(tokens_sha256="0" * 64)),
    "other hash": lambda card: edited(card, lambda held: held["reference"].update(sha256="0" * 64)),
    "a number for the hash of weights": lambda card: edited(
        card, lambda held: held["candidates"][0].update(weights_sha256=7)
    ),
    "a number for a hash": lambda card: edited(card, lambda held: held["reference"].update(sha256=7)),
    "another reference": lambda card: record_reference(FAR, WORDS, card / "reference.klref", cut=CUT),
    "cut reference": lambda card: (card / "reference.klref").write_bytes(
        (card / "reference.klref").read_bytes()[:-1]
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_card_is_refused_and_the_remedies_help(
    made: tuple[ModelComparison, Path], card: Path, case: str
) -> None:
    SPOILED[case](card)
    assert is_reference(card)
    with refused(FileError, instead="get the whole folder again|copy it again") as caught:
        compare_models(card, NEAR)
    assert "\n" not in str(caught.value)
    named = re.search(r"or compare with (.*)$", caught.value.instead or "")
    assert (named is None) == (case in ("no reference", "cut reference"))
    if named is not None:
        assert means(compare_models(named[1], NEAR))
    shutil.rmtree(card)
    shutil.copytree(made[1], card)
    assert means(compare_models(card, NEAR))


def test_what_cannot_be_recorded_is_refused_and_the_remedies_work(tmp_path: Path) -> None:
    path = tmp_path / "base.klref"
    sure = Run(until_sure="mean=0.1")
    with refused(ArgumentValueError, argument="record", wanted="every window", instead="^until_sure=None$"):
        compare_models(BASE, NEAR, WORDS, cut=CUT, run=sure, record=path)
    with refused(ArgumentTypeError, argument="record", got="7", instead=r"^record='base.klref'$"):
        compare_models(BASE, NEAR, WORDS, cut=CUT, record=7)  # pyright: ignore[reportArgumentType]
    with refused(FileError, got="No such file"):
        compare_models(BASE, NEAR, WORDS, cut=CUT, record=tmp_path / "none" / "base.klref")
    with refused(ArgumentValueError, instead="^record=None$"):
        compare_models("http://127.0.0.1:9", NEAR, WORDS, cut=CUT, record=path)
    assert not path.exists()
    plain = compare_models(BASE, NEAR, WORDS, cut=CUT, record=None)
    with refused(ArgumentValueError, call="ModelComparison.to_card", instead="record='base.klref'") as caught:
        plain.to_card(tmp_path / "card")
    assert caught.value.instead == "compare_models(..., record='base.klref').to_card('card')"
    result = compare_models(BASE, NEAR, WORDS, cut=CUT, run=Run(until_sure=None), record=path)
    with refused(FileError, got="it is one of the other files"):
        compare_models(path, NEAR, record=path)
    result.to_card(tmp_path / "card")
    with refused(FileError, got="a folder to read"):
        compare_models(tmp_path / "card", NEAR, record=tmp_path / "card" / "new.klref")


def test_a_failed_run_leaves_no_file(tmp_path: Path) -> None:
    broken = BytesModel("broken", torch.full((256, 256), math.nan, dtype=torch.float64))
    for base, candidate in ((BASE, broken), (broken, BASE)):
        with pytest.raises(KullbackError):
            compare_models(base, candidate, WORDS, cut=CUT, record=tmp_path / "base.klref")
    assert list(tmp_path.iterdir()) == []


def test_the_distance_of_a_badge_encloses_the_interval() -> None:
    draw = np.random.default_rng(0)
    for _ in range(2000):
        mean = 10 ** draw.uniform(-9, 2)
        low = mean * draw.uniform(0, 1)
        high = mean * (1 + 10 ** draw.uniform(-4, 2))
        center, reach = map(float, plus_minus(mean, low, high).split(" ± "))
        assert center - reach <= low * (1 + 1e-12)
        assert center + reach >= high * (1 - 1e-12)
        assert reach <= 1.2 * max(high - mean, mean - low)


def test_the_badge_of_a_number_without_an_upper_end_is_its_lower_end(tmp_path: Path) -> None:
    record_reference(FAR, WORDS, tmp_path / "far.klref", cut=CUT)
    result = compare_models(BASE, tmp_path / "far.klref", WORDS, cut=CUT, record=tmp_path / "base.klref")
    result.to_card(tmp_path / "card")
    [candidate] = fields(tmp_path / "card")["candidates"]
    low, high = candidate["kl_pq"]["interval"]
    assert (candidate["known"], candidate["repeatable"], high) == ("reference", False, "Infinity")
    assert [each["message"] for each in badges(tmp_path / "card")] == [f"KL ≥ {low:.3g} nats"]
    readme = (tmp_path / "card" / "README.md").read_text("utf-8")
    assert "Only a comparison with the base repeats far.klref: other classes, or a reference too." in readme


def test_equal_names_of_files_get_numbers(tmp_path: Path) -> None:
    candidates = [BytesModel(str(tmp_path / "a" / "near"), NEAR.table), BytesModel("near", FAR.table)]
    result = compare_models(BASE, candidates, WORDS, cut=CUT, record=tmp_path / "base.klref")
    result.to_card(tmp_path / "card")
    of_cards = {each["name"]: each["kl_pq"]["mean"] for each in fields(tmp_path / "card")["candidates"]}
    assert of_cards == {"near": means(result)[candidates[0].name][0], "near (2)": means(result)["near"][0]}
    assert [each["label"] for each in badges(tmp_path / "card")] == ["near (2) vs. base", "near vs. base"]


def test_files_of_one_name_keep_the_folders_that_tell_them_apart(tmp_path: Path) -> None:
    models = {name: tmp_path / name / "model.klref" for name in ("base", "a", "b")}
    for path, model in zip(models.values(), (BASE, NEAR, FAR), strict=True):
        path.parent.mkdir()
        record_reference(model, WORDS, path, cut=CUT)
    result = compare_models(models["base"], [models["a"], models["b"]], record=tmp_path / "base.klref")
    result.to_card(tmp_path / "card")
    card = fields(tmp_path / "card")
    names = {each["name"]: each["badge"] for each in card["candidates"]}
    assert names == {f"{of}/model.klref": f"badge-{of}-model.klref.json" for of in "ab"}
    assert str(tmp_path) not in (tmp_path / "card" / "README.md").read_text("utf-8")
    again = compare_models(tmp_path / "card", models["b"])
    assert any("of b/model.klref on the card is" in note for note in again.notes)
    assert {name_of(each, result) for each in result.candidates} == {
        f"…{str(models[of])[-17:]}" for of in "ab"
    }


def test_a_file_of_predictions_is_recorded_with_the_tokenizer_of_the_candidate(tmp_path: Path) -> None:
    windows, _ = CUT.windows(BASE, take_texts("", WORDS))
    np.save(tmp_path / "base.npy", torch.cat(list(BASE.logits(windows, 100))).numpy())
    options = {"cut": CUT, "loading": Loading(representation="logits")}
    result = compare_models(tmp_path / "base.npy", NEAR, WORDS, record=tmp_path / "base.klref", **options)
    result.to_card(tmp_path / "card")
    assert means(compare_models(tmp_path / "card", NEAR)) == means(
        compare_models(tmp_path / "base.klref", NEAR)
    )
    assert fields(tmp_path / "card")["base"]["tokenizer_sha256"] == NEAR.vocabulary.fingerprint
    assert fields(tmp_path / "card")["base"]["name"] == "base.npy"
    other = BytesModel("other", NEAR.table)
    other.vocabulary = Vocabulary([Token(bytes([255 - byte])) for byte in range(256)])
    with refused(ModelError, wanted="the tokenizer that"):
        compare_models(tmp_path / "card", other)


def test_a_long_address_is_no_card() -> None:
    assert not is_reference("http://" + "a" * 5000)


def test_a_card_is_written_whole_or_not_at_all(
    card: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = compare_models(FAR, NEAR, WORDS, cut=CUT, record=card.parent / "far.klref")
    before = {path.name: path.read_bytes() for path in card.iterdir()}

    def fail(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("kullback.report.card.html.render", fail)
    for folder in (tmp_path / "new", card):
        with pytest.raises(KeyboardInterrupt):
            result.to_card(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"card", "far.klref"}
    assert {path.name: path.read_bytes() for path in card.iterdir()} == before
