"""Readers of token logs: each format gives the same tokens, bad files end in one line, and the command reports them."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from kullback import errors
from kullback.cli.commands import kullback
from kullback.mismatch import TOKEN_LOG_FORMATS, TokenLog, policy_mismatch, read_token_log
from kullback.mismatch.read_token_logs import TokenLogFormat
from tests.mismatch.dumps import tiny_run, write_nemo_rl, write_prime_rl, write_rows

RUN = tiny_run()
PLAIN = ("sequence", "position", "prompt", "sampler_log_prob", "trainer_log_prob")


def test_every_format_gives_the_same_numbers(tmp_path: Path) -> None:
    columns = {name: x for name, x in RUN.columns().items() if name in PLAIN}
    paths = [
        write_prime_rl(RUN, tmp_path / "prime"),
        write_nemo_rl(RUN, tmp_path / "nemo"),
        write_rows(columns, tmp_path / "tokens.jsonl"),
        write_rows(columns, tmp_path / "tokens.parquet"),
    ]
    results = [policy_mismatch(read_token_log(path)) for path in paths]
    for result in results:
        assert (result.tokens, result.sequences) == (int(RUN.mask.sum()), len(RUN.tokens))
        assert result.k3.value == pytest.approx(results[0].k3.value, rel=1e-12)
        assert result.k3.standard_error == pytest.approx(results[0].k3.standard_error, rel=1e-9)
    assert set(results[0].by) == {"position", "length", "step", "group"}


def test_sequences_of_one_prompt_are_one_cluster(tmp_path: Path) -> None:
    log = read_token_log(write_prime_rl(RUN, tmp_path))
    different = {tuple(ids[:3]) for ids in RUN.tokens.tolist()}
    assert len(torch.unique(log.prompt)) == len(different)


def test_all_optional_fields_are_read(tmp_path: Path) -> None:
    log = read_token_log(write_rows(RUN.columns(), tmp_path / "tokens.parquet"))
    assert log.old_log_mass is not None
    torch.testing.assert_close(log.old_log_mass, RUN.old.log_mass[RUN.mask])
    assert [part.missing for part in policy_mismatch(log).parts] == [
        (),
        (),
        ("trainer_log_prob_again",),
        (),
    ]


def test_rows_in_any_order_are_sorted_and_masked_rows_left_out(tmp_path: Path) -> None:
    columns = {name: x for name, x in RUN.columns().items() if name in PLAIN}
    shuffled = torch.randperm(len(columns["sequence"]), generator=torch.Generator().manual_seed(0)).tolist()
    moved = {
        name: [x[i] for i in shuffled] + [None if "log" in name else 10**6] for name, x in columns.items()
    }
    moved["mask"] = [1] * len(shuffled) + [0]
    path = write_rows(columns, tmp_path / "a.jsonl"), write_rows(moved, tmp_path / "b.jsonl")
    one, other = (read_token_log(each) for each in path)
    torch.testing.assert_close(one.sampler_log_prob, other.sampler_log_prob)


def test_several_files_are_joined(tmp_path: Path) -> None:
    first = write_rows(RUN.columns(), tmp_path / "a.jsonl")
    second = write_nemo_rl(RUN, tmp_path / "nemo")
    log = read_token_log(first, second)
    assert len(log) == 2 * int(RUN.mask.sum())
    assert len(torch.unique(log.sequence)) == 2 * len(RUN.tokens)
    assert log.sampler_log_mass is None  # one file lacks it


def test_steps_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    log = read_token_log(write_prime_rl(tiny_run(prompts=8), tmp_path, steps=12))
    assert log.step is not None
    assert log.step.tolist() == sorted(log.step.tolist())


def test_a_format_from_outside_is_one_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, records: list[tuple[int, dict[str, list[float]]]]) -> TokenLog:
        del path
        sides = [torch.tensor([x for _, each in records for x in each[name]]) for name in ("mu", "pi")]
        return TokenLog(torch.zeros(len(sides[0])), torch.arange(len(sides[0])), *sides)

    monkeypatch.setitem(TOKEN_LOG_FORMATS, "ours", TokenLogFormat(lambda record: "mu" in record, read))
    path = tmp_path / "ours.jsonl"
    path.write_text('{"mu": [-1.0, -2.0], "pi": [-1.1, -2.0]}\n')
    assert len(read_token_log(path)) == 2


def mutated(tmp_path: Path, **changes: object) -> Path:
    folder = write_nemo_rl(RUN, tmp_path)
    path = folder / "train_data_step7.jsonl"
    lines = path.read_text().split("\n")
    record = json.loads(lines[2]) | changes
    lines[2] = json.dumps({name: x for name, x in record.items() if x != "gone"})
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prev_logprobs": "gone"}, "no prev_logprobs in line 3"),
        ({"prev_logprobs": "text"}, "other values in prev_logprobs in line 3"),
        ({"prev_logprobs": [1.0]}, "numbers in line 3"),
        ({"prev_logprobs": [[[1.0]]]}, "3 dimensions in line 3"),
        ({"generation_logprobs": [None] * 15}, "null for a sampled token in line 3"),
    ],
)
def test_a_record_of_the_wrong_form_names_its_line(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.FileError, match=message):
        read_token_log(mutated(tmp_path, **changes))


ROW = {"sequence": 0, "position": 0, "sampler_log_prob": -1.0, "trainer_log_prob": -1.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_loss_mask": [None] * 15}, "null in token_ids or token_loss_mask in line 3"),
        ({"generation_logprobs": [0.7] * 15}, "0.7 for token"),
    ],
)
def test_a_mask_of_null_and_probabilities_are_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(errors.FileError, match=message):
        read_token_log(mutated(tmp_path, **changes))


@pytest.mark.parametrize("step", ["a", [1], 1.5])
def test_a_step_that_is_no_integer_ends_in_one_line(tmp_path: Path, step: object) -> None:
    folder = write_prime_rl(RUN, tmp_path, steps=1)
    path = folder / "token_exports" / "step_0" / "rank_0.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text().split("\n")[0]) | {"step": step}))
    with pytest.raises(errors.FileError, match="no integer in step in line 1; write step: 0"):
        read_token_log(path)


def test_the_rows_of_a_plain_file_mean_what_they_say(tmp_path: Path) -> None:
    def rows(*changes: dict[str, object]) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps(ROW | change) for change in changes))
        return path

    # Numbers that float64 cannot tell apart are different sequences.
    log = read_token_log(rows({"sequence": 2**60 + 1}, {"sequence": 2**60 + 2, "position": 1}))
    assert log.sequence.tolist() == [0, 1]
    for changes, message in (
        (({"mask": "1"}, {"sequence": 1, "mask": 1}), "a value other than 0 and 1 in mask"),
        (({"mask": 0.5}, {"sequence": 1, "mask": 1}), "a value other than 0 and 1 in mask"),
        (({"prompt": "a"}, {"sequence": 1, "prompt": None}), "not a prompt for each token"),
        (({"sampler_log_prob": 0.4},), "0.4 for token 0 in sampler_log_prob"),
    ):
        with pytest.raises(errors.FileError, match=message):
            read_token_log(rows(*changes))
    marked = read_token_log(rows({"mask": True}, {"sequence": 1, "mask": 0}, {"sequence": 2, "mask": None}))
    assert len(marked) == 2


def test_prompts_with_one_checksum_are_two_prompts(tmp_path: Path) -> None:
    """Both names have the CRC-32 0x4ddb0c25."""
    names = ("plumless", "buckeroo")
    assert zlib.crc32(names[0].encode()) == zlib.crc32(names[1].encode())
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(ROW | {"sequence": i, "prompt": x}) for i, x in enumerate(names)))
    log = read_token_log(path)
    assert log.prompt is not None
    assert len(torch.unique(log.prompt)) == 2


def test_files_that_are_no_logs_end_in_one_line(tmp_path: Path) -> None:
    columns = RUN.columns()
    cases = {
        "empty.jsonl": ("", "no record"),
        "text.jsonl": ("hello", "no JSON in line 1"),
        "last.csv": ("sequence,position", "name a .parquet or .jsonl file"),
        "list.jsonl": ("[1, 2]", "no JSON object in line 1"),
        "other.jsonl": ('{"a": 1}', "a first record with a"),
        "half.jsonl": ('{"sampler_log_prob": 1}', "no column sequence"),
        "extra.jsonl": (
            '{"sequence": 0, "position": 0, "sampler_log_prob": -1, "trainer_log_prob": -1, "mu": 1}',
            "the column mu",
        ),
        "fraction.jsonl": (
            '{"sequence": 0.5, "position": 0, "sampler_log_prob": -1, "trainer_log_prob": -1}',
            "an integer",
        ),
        "bad.parquet": ("PAR1", "wanted records"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        path.write_text(content)
        result = CliRunner().invoke(kullback, ["mismatch", str(path)])
        assert result.exit_code == 2, name
        assert message in result.output, name
        assert result.output.count("\n") == 1, name
    twice = {name: [*x, x[0]] for name, x in columns.items()}
    with pytest.raises(errors.FileError, match="position 0 twice in sequence 0"):
        read_token_log(write_rows(twice, tmp_path / "twice.jsonl"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.FileError, match="a folder without such files"):
        read_token_log(tmp_path / "folder")
    with pytest.raises(errors.FileError):
        read_token_log(tmp_path / "missing.jsonl")
    path = write_rows(columns, tmp_path / "folder" / "rank_0.jsonl")
    with pytest.raises(errors.FileError, match="this file twice"):
        read_token_log(tmp_path / "folder", path)
    assert torch.equal(read_token_log(path).position, read_token_log(tmp_path / "folder").position)


def test_the_command_reports_gates_and_files(tmp_path: Path) -> None:
    path = write_rows(RUN.columns(), tmp_path / "tokens.parquet")
    files = {name: tmp_path / f"report.{name}" for name in ("json", "html", "markdown")}
    outputs = [word for name, file in files.items() for word in (f"--{name}", str(file))]
    result = CliRunner().invoke(
        kullback,
        ["mismatch", str(path), *outputs, "--fail-above", "naive_k3=1e-9", "--fail-below", "ratio.value=0"],
    )
    assert result.exit_code == 1, result.output
    assert "gate failed: naive_k3" in result.output
    fields = json.loads(files["json"].read_text())
    assert (fields["schema"], fields["unit"], fields["confidence"]) == ("kullback.mismatch/1", "nats", 0.95)
    expected = policy_mismatch(read_token_log(path))
    assert fields["k3"]["value"] == expected.k3.value
    assert [part["name"] for part in fields["parts"]] == ["truncation", "staleness", "batch noise", "rest"]
    page = files["html"].read_text()
    assert "Causes" in page
    assert "trainer_log_prob_again is missing" in page
    assert "KL of the engine from the trainer" in files["markdown"].read_text()
    unclear = CliRunner().invoke(kullback, ["mismatch", str(path), "--fail-above", f"k3={expected.k3.value}"])
    assert unclear.exit_code == 3
    for name in (path, path.parent):  # no report may replace what is read
        for flag in ("--json", "--html", "--markdown"):
            before = path.read_bytes()
            report = CliRunner().invoke(kullback, ["mismatch", str(name), flag, str(path)])
            assert (report.exit_code, path.read_bytes()) == (2, before)
            assert report.stderr.startswith("kullback: cannot write ")
    wrong = CliRunner().invoke(kullback, ["mismatch", str(path), "--fail-above", "kl=1"])
    assert wrong.exit_code == 2
    assert "k1, k3, naive_k3" in wrong.output


def test_gates_on_extreme_logs_never_pass_by_accident(tmp_path: Path) -> None:
    sampler = -1 - torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def outcome(gate: str, *, zero: str = "", trainer: torch.Tensor = sampler) -> int:
        sides = {"sampler_log_prob": sampler.tolist(), "trainer_log_prob": trainer.tolist()}
        if zero:
            sides[zero][3] = -math.inf
        places = {"sequence": [i // 20 for i in range(400)], "position": [i % 20 for i in range(400)]}
        path = write_rows(places | sides, tmp_path / "tokens.jsonl")
        return CliRunner().invoke(kullback, ["mismatch", str(path), "--fail-above", gate]).exit_code

    # The engine sampled a token of probability 0, so k1 has no meaning. It is no small divergence.
    assert outcome("k1.value=0.1", zero="sampler_log_prob") == outcome("k1=0.1", zero="sampler_log_prob") == 3
    assert outcome("k3=0.1", zero="sampler_log_prob") == 1
    # An infinite divergence is above every limit.
    assert outcome("k1=0.1", zero="trainer_log_prob") == outcome("k3=0.1", zero="trainer_log_prob") == 1
    # Two equal sides are below every limit, as in comparisons of predictions.
    assert outcome("k3=1e-9") == outcome("k1=1e-9") == outcome("naive_k3=1e-9") == 0
    assert outcome("k3=1e-9", trainer=sampler - 0.1) == 1


def test_the_error_of_the_library_names_the_option(tmp_path: Path) -> None:
    path = write_rows(RUN.columns(), tmp_path / "tokens.jsonl")
    result = CliRunner().invoke(kullback, ["mismatch", str(path), "--ratio", "0.5"])
    assert result.exit_code == 2
    assert "--ratio" in result.output
