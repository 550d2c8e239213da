"""`kullback compare --card FOLDER`, and `kullback compare FOLDER CANDIDATE`, on tiny models of transformers."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import markdown
import pytest
from click.testing import Result
from safetensors.numpy import load_file

from kullback.cli.compare_options import OPTIONS
from kullback.cli.gates import Compared, parse_gate
from kullback.models import Cut, Loading, Run
from kullback.report.card import contents
from kullback.report.repeat import FLAGS
from tests.cli.calling import run, run_line
from tests.models import folders, test_card as of_bytes
from tests.models.tiny import REPOSITORY, text

pytest.importorskip("transformers")

BASE, INT8, BF16, PADDED = "llama-3-8b", "llama-3-8b-int8", "llama-3-8b-bf16", "padded"
LIMIT = ("--fail-above", "mean=0.001")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, the text and a card of three candidates, made with the paths of this machine."""
    folder = tmp_path_factory.mktemp("place")
    for name, model in {
        BASE: folders.base,
        INT8: folders.int8,
        BF16: folders.bf16,
        PADDED: folders.padded,
    }.items():
        shutil.copytree(model(), folder / name)
    (folder / "wiki.txt").write_text(text()[:2000])
    models = [folder / name for name in (BASE, INT8, BF16, PADDED)]
    result = run(
        "compare", *models, "--text", folder / "wiki.txt", "--context", 48, "--card", folder / "card", *LIMIT
    )
    assert result.exit_code == 1, result.output
    return folder


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "card.json").read_text("utf-8"))


def one_line(result: Result) -> str:
    assert result.exit_code == 2, result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("kullback:")]
    assert "Traceback" not in result.output
    return line


def test_the_folder_has_its_files_and_no_name_of_a_folder_of_this_machine(place: Path) -> None:
    assert {path.name for path in (place / "card").iterdir()} == {
        "README.md", "card.json", "reference.klref", "report.html", "report.json",
        f"badge-{INT8}.json", f"badge-{BF16}.json", f"badge-{PADDED}.json",
    }  # fmt: skip
    for path in (place / "card").iterdir():
        content = path.read_bytes()
        assert str(place).encode() not in content, path
        assert str(folders.root()).encode() not in content, path
    report = json.loads((place / "card" / "report.json").read_text("utf-8"))
    assert report["schema"] == "kullback.models/1"
    assert report["base"]["name"] == BASE
    assert report["gates"]["limits"][0]["broken_by"] == [INT8, PADDED]


def test_the_hashes_are_those_of_the_files(place: Path) -> None:
    held = record(place / "card")
    path = place / "card" / "reference.klref"

    def of(file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    assert held["base"]["weights_sha256"] == of(place / BASE / "model.safetensors")
    for each in held["candidates"]:
        assert each["weights_sha256"] == of(place / each["name"] / "model.safetensors")
    assert held["text"]["sha256"] == of(place / "wiki.txt")
    assert held["reference"]["sha256"] == of(path)
    assert held["reference"]["bytes"] == path.stat().st_size
    tokens = load_file(path)["tokens"]
    assert held["text"]["tokens_sha256"] == hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest()
    assert (held["text"]["tokens"], held["text"]["scored"]) == (len(tokens), load_file(path)["scored"].sum())
    readme = (place / "card" / "README.md").read_text("utf-8")
    for value in (of(place / BASE / "model.safetensors"), of(place / "wiki.txt"), of(path)):
        assert value in readme


def test_badges_are_of_the_endpoint_of_shields_and_have_the_colors_of_the_gates(place: Path) -> None:
    colors = {BF16: "green", INT8: "red", PADDED: "red"}
    for candidate in record(place / "card")["candidates"]:
        badge = json.loads((place / "card" / candidate["badge"]).read_text("utf-8"))
        assert badge.keys() == {"schemaVersion", "label", "message", "color"}
        assert (badge["schemaVersion"], badge["color"]) == (1, colors[candidate["name"]])
        assert badge["label"] == f"{candidate['name']} vs. {BASE}"
        center, reach = map(float, re.findall(r"\d+\.\d+", badge["message"]))
        low, high = candidate["kl_pq"]["interval"]
        assert center - reach <= low
        assert center + reach >= high
        shared = " over shared tokens" if candidate["name"] == PADDED else ""
        assert re.fullmatch(rf"KL \d+\.\d+ ± \d+\.\d+ nats{shared}", badge["message"])


def tables(readme: str) -> list[list[list[str]]]:
    """The cells of the tables of a Markdown text, by row."""
    html = markdown.markdown(readme, extensions=["tables"])
    return [
        [
            re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
            for row in re.findall(r"<tr>(.*?)</tr>", each, re.DOTALL)
        ]
        for each in re.findall(r"<table>(.*?)</table>", html, re.DOTALL)
    ]


def test_the_tables_of_the_readme_have_the_numbers_of_the_report(place: Path) -> None:
    readme = (place / "card" / "README.md").read_text("utf-8")
    scoreboard, protocol = tables(readme)
    assert readme.startswith(f"# {BF16} against {BASE}: ")
    assert "❌ mean at most 0.001" in readme
    assert [row[0] for row in scoreboard[1:]] == [f"{BASE} (base)", BF16, INT8, PADDED]
    assert {len(row) for row in scoreboard} == {10}
    for row, candidate in zip(scoreboard[2:], record(place / "card")["candidates"], strict=True):
        assert float(row[1]) == pytest.approx(candidate["kl_pq"]["mean"], rel=1e-3)
        ends = [float(end) for end in row[2].split(" to ")]
        assert ends == pytest.approx(candidate["kl_pq"]["interval"], rel=1e-3)
    values = dict(protocol)
    assert values["dtype and device"] == "float32, cpu"
    assert values["context and score"] == "48, second-half"
    assert values["tokens"] == "483 scored of 1,008"
    assert "21 windows as units" in values["intervals"]
    assert "top 64 classes and 32 draws" in values["reference.klref"]
    assert "do not publish it if the text is private" in readme
    assert f"Only a comparison with the base repeats {PADDED}" in readme


def commands(folder: Path) -> list[str]:
    """The commands of a README, as one reads them there."""
    fences = re.findall(
        r"^```sh\n(.*?)\n```$", (folder / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert fences == [line for line in record(folder)["commands"].values() if line is not None]
    return fences


def test_the_commands_of_the_readme_run_in_another_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repeat, original = commands(place / "card")
    assert shlex.split(repeat) == ["kullback", "compare", "card", BF16, INT8, *LIMIT]
    for name in ("card", BF16, INT8):
        shutil.copytree(place / name, tmp_path / "reader" / name)
    monkeypatch.chdir(tmp_path / "reader")
    result = run_line(f"{repeat.removeprefix('kullback ')} --json repeated.json")
    assert result.exit_code == 1, result.output  # int8 breaks the limit here too
    assert len(result.stdout.splitlines()) <= 12, result.stdout
    assert "on the card is" in result.stdout
    repeated = json.loads(Path("repeated.json").read_text())
    monkeypatch.chdir(place)
    assert (
        run("record", BASE, "--text", "wiki.txt", "--context", 48, "-o", tmp_path / "base.klref").exit_code
        == 0
    )
    assert (tmp_path / "base.klref").read_bytes() == (place / "card" / "reference.klref").read_bytes()
    of_reference = run("compare", tmp_path / "base.klref", BF16, INT8, "--json")
    wanted = json.loads(of_reference.output)["candidates"]
    direct = {each["name"]: each["kl_pq"] for each in record(place / "card")["candidates"]}
    for candidate, other in zip(repeated["candidates"], wanted, strict=True):
        kl = candidate["comparison"]["divergences"]["kl_pq"]
        assert kl == other["comparison"]["divergences"]["kl_pq"]
        low, high = kl["interval"]
        assert low <= direct[candidate["model"]["name"]]["mean"] <= high
    assert sum("on the card" in note for note in repeated["notes"]) == 2
    before = record(place / "card")
    assert run_line(original.removeprefix("kullback ")).exit_code == 1
    assert record(place / "card") == before  # the original command makes the card again


@pytest.mark.sweep
def test_models_of_one_name_have_names_and_commands_of_their_own(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, model in (("p", BASE), ("a", INT8), ("b", BF16)):
        shutil.copytree(place / model, tmp_path / folder / "model")
    text = ("--text", place / "wiki.txt", "--context", 48)
    assert run("compare", "p/model", "a/model", "b/model", *text, "--card", "card").exit_code == 0
    repeat, original = commands(Path("card"))
    assert shlex.split(repeat) == ["kullback", "compare", "card", "b/model", "a/model"]
    assert shlex.split(original)[2:5] == ["p/model", "b/model", "a/model"]
    assert (record(Path("card"))["base"]["name"], "Mean KL" in run_line(repeat[9:]).output) == (
        "p/model",
        True,
    )


def test_other_weights_of_the_same_name_are_a_warning_in_the_short_output(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, weights in {"card": "card", INT8: BASE, "renamed": BF16}.items():
        shutil.copytree(place / weights, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    result = run("compare", "card", INT8, "renamed", "--json", "again.json")
    assert result.exit_code == 0, result.output
    fields = record(Path("card"))
    hashes = {each["name"]: each["weights_sha256"][:12] for each in [*fields["candidates"], fields["base"]]}
    warning = (
        f"{INT8}: warning: its weight files differ from the card's (SHA-256 {hashes[INT8]} on the card, "
        f"{hashes[BASE]} here)."
    )
    words = " ".join(result.stdout.split())
    assert words.count(warning) == 1
    assert f"Mean KL(P||Q) of {INT8} on the card is" in words
    notes = json.loads(Path("again.json").read_text())["notes"]
    assert [note for note in notes if "warning" in note] == [warning]
    [by_weights] = [
        note for note in notes if f"of {BF16}, whose weight files renamed has, on the card is" in note
    ]
    assert by_weights.endswith("overlap.")
    (tmp_path / "renamed").replace(tmp_path / "elsewhere")
    shutil.copytree(place / BF16, tmp_path / INT8, dirs_exist_ok=True)  # another candidate of the card
    words = " ".join(run("compare", "card", INT8).stdout.split())
    assert f"of {BF16}, whose weight files {INT8} has, on the card is" in words
    del fields["candidates"][1]["weights_sha256"]  # as on a card of an earlier version
    Path("card", "card.json").write_text(json.dumps(fields))
    shutil.copytree(place / BASE, tmp_path / INT8, dirs_exist_ok=True)
    assert "warning" not in run("compare", "card", INT8).stdout


@pytest.mark.sweep
def test_groups_by_key_repeat_with_the_text(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"text": text()[at : at + 200], "kind": "ab"[at % 400 > 0]} for at in range(0, 2400, 200)]
    for name in (BASE, BF16):
        (tmp_path / name).symlink_to(place / name)
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, records)))
    monkeypatch.chdir(tmp_path)
    line = f"compare {BASE} {BF16} --text texts.jsonl --context 48 --score all --group"
    limits = "--fail-above mean=9 --fail-above 'mean[a]=9'"
    assert run_line(f"{line} kind --card card {limits}").exit_code == 3  # too few of group a
    repeat, _, with_text = commands(Path("card"))
    assert repeat == f"kullback compare card {BF16} --fail-above mean=9"
    assert with_text == (
        f"kullback compare card {BF16} --text texts.jsonl --context 48 --score all --group kind {limits}"
    )
    readme = Path("card", "README.md").read_text("utf-8")
    assert "Groups by role or by a key of the records need the text" in readme
    for command, names in {
        repeat: [],
        with_text: ["a", "b"],
        f"{repeat} --text texts.jsonl --group kind": ["a", "b"],  # context and score are the card's
    }.items():
        result = run_line(f"{command.removeprefix('kullback ')} --json again.json")
        assert result.exit_code == (3 if command == with_text else 0), result.output
        [candidate] = json.loads(Path("again.json").read_text())["candidates"]
        assert list(candidate["comparison"].get("groups", {})) == names
    assert run_line(f"{line} re:[aeiou] --card vowels").exit_code == 0
    repeat, _ = commands(Path("vowels"))
    assert repeat == f"kullback compare vowels {BF16} --group 're:[aeiou]'"
    assert run_line(repeat.removeprefix("kullback ")).exit_code == 0


@pytest.mark.sweep
def test_a_card_works_with_a_noise_floor_one_at_a_time_and_resumed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    line = f"compare {BASE} {BF16} --text wiki.txt --context 48 --windows 12 --seed 3 --card"
    for number, option in enumerate(("--noise-floor", "--one-at-a-time", f"--resume {tmp_path / 'state'}")):
        card = tmp_path / f"card{number}"
        result = run_line(f"{line} {card} {option}")
        assert result.exit_code == 0, result.output
        direct, [candidate] = record(card)["candidates"][0]["kl_pq"], record(card)["candidates"]
        repeat, original = commands(card)
        assert repeat == f"kullback compare card{number} {BF16} --seed 3"
        assert "--windows 12" in original
        again = json.loads(run("compare", card, BF16, "--seed", 3, "--json").output)["candidates"][0]
        kl = again["comparison"]["divergences"]["kl_pq"]
        assert kl["interval"][0] <= direct["mean"] <= kl["interval"][1]
        if number == 1:
            assert kl["mean"] == candidate["kl_pq"]["mean"]
            assert kl["interval"] == candidate["kl_pq"]["interval"]


def test_what_cannot_have_a_card_is_one_line_and_the_remedies_work(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    line = f"compare {BASE} {BF16} --text wiki.txt --context 48 --card"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    cases = {
        f"{line} {tmp_path / 'new'} --until-sure mean=0.01": "; leave --until-sure out",
        f"{line} {tmp_path / 'mine'}": "such as README.md; name a new folder",
        f"{line} {BF16}": "other files",
        f"{line} {tmp_path / 'none' / 'new'}": "No such file or directory; name a folder in an existing directory",
        f"{line} wiki.txt": "Not a directory; name a folder in an existing directory",
        f"{line} {tmp_path / 'new'} --json {tmp_path / 'new' / 'card.json'}": "name another one",
        f"compare http://127.0.0.1:9 {BF16} --text wiki.txt --card {tmp_path / 'new'}": "; leave --card out",
        f"compare card {BF16} --card card": "a folder to read",
        f"compare card {BF16} --group role": "--text: wanted a text, whose messages",
        f"compare card {BF16} --format llama.cpp": "a side that gives some; leave --format out",
        f"compare card {BF16} --until-sure mean=0.01": "; leave --until-sure out",
        f"compare card {BF16} --context 128": "--context: wanted 48, as in card/reference.klref; got 128; leave it out",
        f"compare card {BF16} --context 512": "--context: wanted 48, as in card/reference.klref; got 512; leave it out",
        f"compare card {BF16} --score all": "--score: wanted second-half, as in",
        f"compare card/reference.klref {BF16} --windows 3": "got 3; leave it out",
        "compare a.npy b.npy --as logits --card new": "--card is for comparing models; leave it out",
    }
    for arguments, said in cases.items():
        assert said in one_line(run_line(arguments)), arguments
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert run_line(f"{line} {tmp_path / 'new'}").exit_code == 0
    (tmp_path / "new" / "card.json").write_text("{}")
    assert f"or compare with {tmp_path / 'new' / 'reference.klref'}" in one_line(
        run("compare", tmp_path / "new", BF16)
    )
    assert run("compare", tmp_path / "new" / "reference.klref", BF16).exit_code == 0


def test_each_setting_has_the_flag_of_its_option() -> None:
    """A card writes the settings of the library as options."""
    names = {each.name for settings in (Cut, Loading, Run) for each in fields(settings)}
    names |= {"noise_floor", "one_at_a_time"}
    flags = {each.into: each.flag for each in OPTIONS if each.into in names - {"generator"}}
    assert len(flags) > 15
    for name, flag in flags.items():
        assert FLAGS.get(name, f"--{name.replace('_', '-')}").split()[0] == flag
    assert FLAGS.keys() <= flags.keys()


@pytest.mark.sweep
def test_the_commands_of_the_tutorial_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (REPOSITORY / "docs" / "tutorial" / "language_models.md").read_text("utf-8")
    section = page.partition("\n## A card to publish\n")[2].partition("\n## ")[0]
    lines = [
        line
        for fence in re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        for line in fence.splitlines()
    ]
    assert len(lines) >= 3
    for name in (BASE, INT8, BF16):
        shutil.copytree(place / name, tmp_path / name)
    (tmp_path / "wiki.txt").write_text(text())
    monkeypatch.chdir(tmp_path)
    for line in lines:
        result = run_line(line.removeprefix("kullback "))
        assert result.exit_code == 0, (line, result.output)
    for name in re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE):
        assert (tmp_path / "card" / name).is_file(), name


def test_a_candidate_for_which_a_gate_is_unclear_has_a_yellow_badge(tmp_path: Path) -> None:
    result = of_bytes.compare_models(
        of_bytes.BASE,
        [of_bytes.NEAR, of_bytes.FAR],
        of_bytes.WORDS,
        cut=of_bytes.CUT,
        record=tmp_path / "base.klref",
    )
    inside = of_bytes.means(result)["near"][0]
    compared = [Compared(each.model.name, each.comparison) for each in result.candidates]
    gate = parse_gate(f"mean={inside!r}", "above")
    verdict = gate.verdict(compared)
    assert (verdict.broken_by, verdict.unclear_for) == (("far",), ("near",))
    texts = contents(result, [verdict], tmp_path / "card")
    colors = {
        name: json.loads(texts[tmp_path / "card" / f"badge-{name}.json"])["color"] for name in ("near", "far")
    }
    assert colors == {"near": "yellow", "far": "red"}
