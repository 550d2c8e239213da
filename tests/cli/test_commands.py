"""The command: what it prints and writes, its exit statuses, and its errors, each in one line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import kullback as package
from kullback import dispatch
from kullback.cli.commands import kullback
from kullback.cli.expressions import parse_distribution
from kullback.cli.gates import ESTIMATES, MEANS, Side, judge_comparison, parse_gate
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.io import open_rows, write_llama_base
from kullback.kernels.backends import backends
from kullback.predictions import Comparison, compare_predictions
from kullback.representations import Logits
from tests.cli.calling import one_line, run, run_line
from tests.forked import command

ROWS, CLASSES = 300, 12


@pytest.fixture
def files(tmp_path, monkeypatch):
    """P and Q as p.npy and q.npy, labels.npy and documents.txt, in the current directory."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    p = random.normal(size=(ROWS, CLASSES)).astype("float32")
    np.save("p.npy", p)
    np.save("q.npy", p + 0.1 * random.normal(size=p.shape).astype("float32"))
    np.save("labels.npy", random.integers(0, CLASSES, ROWS))
    Path("documents.txt").write_text("\n".join(f"d{i // 10}" for i in range(ROWS)))
    return tmp_path


def compare(*arguments: str):
    return run("compare", "p.npy", "q.npy", "--as", "logits", *arguments)


# compare: what it prints and writes


def test_the_table_shows_what_was_asked_for(files):
    result = compare("--labels", "labels.npy", "--cluster", "documents.txt", "--worst", "3", "--full")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for words in ("p.npy", "q.npy", "300 rows in 30 clusters", "KL(P||Q)", "cross-entropy", "confidence"):
        assert words in result.stdout


def test_json_alone_prints_json_and_nothing_else(files):
    result = compare("--labels", "labels.npy", "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = json.loads(result.stdout)
    expected = compare_predictions("p.npy", "q.npy", representation="logits", labels="labels.npy")
    assert found["divergences"]["kl_pq"]["mean"] == expected.divergences["kl_pq"].mean
    assert found["labels"]["labeled"] == ROWS


def test_files_are_written_beside_the_table(files):
    result = compare("--json", "found.json", "--html", "report.html")
    assert result.exit_code == 0, result.output
    assert "KL(P||Q)" in result.stdout
    assert json.loads(Path("found.json").read_text())["rows"] == ROWS
    assert "<html" in Path("report.html").read_text().lower()


def test_settings_reach_the_comparison(files):
    settings = ["--seed", "7", "--bootstrap", "50", "--worst", "2", "--block-mb", "0.01"]
    found = json.loads(compare(*settings, "--json").stdout)
    seven = torch.Generator().manual_seed(7)
    expected = compare_predictions(
        "p.npy", "q.npy", representation="logits", bootstrap=50, worst=2, generator=seven
    )
    assert tuple(found["divergences"]["tv"]["interval"]) == expected.divergences["tv"].interval
    assert [row["row"] for row in found["worst"]] == [row.row for row in expected.worst]


def test_each_side_may_have_its_own_kind_and_key(files):
    logits = torch.from_numpy(np.load("p.npy")).double()
    np.savez("both.npz", a=logits, b=logits.softmax(-1))
    result = run_line("compare both.npz both.npz --as logits --as-q probs --key a --key-q b --json")
    assert json.loads(result.stdout)["divergences"]["kl_pq"]["maximum"] < 1e-12


def test_labels_and_clusters_from_archives_that_hold_several(files):
    np.savez("beside.npz", truth=np.load("labels.npy"), document=np.arange(ROWS) // 3)
    options = "--labels beside.npz --labels-key truth --cluster beside.npz --cluster-key document"
    found = json.loads(compare(*options.split(), "--json").stdout)
    assert (found["labels"]["labeled"], found["clusters"]) == (ROWS, 100)


# compare: gates


def outcome(limit: str, side: Side, found: Comparison) -> str:
    return judge_comparison(parse_gate(limit, side).limit, found).outcome


def test_every_metric_can_be_a_gate_on_both_sides(files):
    found = compare_predictions("p.npy", "q.npy", representation="logits", labels="labels.npy", bootstrap=200)
    for metric in (*MEANS, *ESTIMATES):
        # `parse_gate` refuses limits that no number reaches.
        limit = parse_gate(f"{metric}=0.1", "above").limit
        for value, side in product((1e9, -1e9), get_args(Side)):
            judgment = judge_comparison(replace(limit, limit=value, side=side), found)
            assert judgment.outcome == ("passed" if (value > 0) == (side == "above") else "failed"), metric
            assert judgment.outcome == "passed" or judgment.sentence.startswith(f"{metric} is ")


def test_metrics_are_the_numbers_they_name(files):
    compared = partial(compare_predictions, "p.npy", "q.npy", representation="logits", labels="labels.npy")
    found, ends = compared(bootstrap=0), compared()
    for metric, interval in (
        ("mean", ends.divergences["kl_pq"].interval),
        ("tv.mean", ends.divergences["tv"].interval),
        ("top1", ends.top1_agreement.interval),
        ("acceptance", ends.acceptance_rate.interval),
        ("ppl_ratio", ends.labels.perplexity_ratio.interval),
        ("labels.delta_prob.mean", ends.labels.delta_prob.interval),
    ):
        for side, end, inwards in (("above", interval[1], -np.inf), ("below", interval[0], np.inf)):
            assert outcome(f"{metric}={end!r}", side, ends) == "passed"
            assert outcome(f"{metric}={np.nextafter(end, inwards)!s}", side, ends) == "unclear"
            assert outcome(f"{metric}={end!r}", side, found) == "unclear"  # bootstrap=0 gives no interval
    values = {
        "mean": found.divergences["kl_pq"].mean,
        "p99.9": found.divergences["kl_pq"].p999,
        "kl_qp.median": found.divergences["kl_qp"].median,
        "js.max": found.divergences["js"].maximum,
        "tv.p95": found.divergences["tv"].p95,
        "top1": found.top1_agreement.value,
        "labels.difference": found.labels.difference.mean,
        "labels.delta_prob_rms": found.labels.delta_prob_rms.mean,
        "labels.delta_prob.mean": found.labels.delta_prob.mean,
        "labels.delta_prob.p0.1": found.labels.delta_prob.p001,
        "labels.delta_prob.p5": found.labels.delta_prob.p05,
        "p1": found.divergences["kl_pq"].p01,
        "min": found.divergences["kl_pq"].minimum,
        "acceptance": 1 - found.divergences["tv"].mean,
        "ppl_ratio": found.labels.perplexity_ratio.mean,
        "ppl_difference": found.labels.perplexity_difference.mean,
    }
    for metric, value in values.items():
        assert outcome(f"{metric}.value={value!r}", "above", found) == "passed"
        assert outcome(f"{metric}.value={value!r}", "below", found) == "passed"
        assert outcome(f"{metric}.value={np.nextafter(value, -np.inf)!s}", "above", found) == "failed"
        assert outcome(f"{metric}.value={np.nextafter(value, np.inf)!s}", "below", found) == "failed"


def test_a_gate_that_fails_ends_with_status_1_and_says_by_how_much(files):
    limits = "--fail-above mean.value=0.001 --fail-above max.value=100 --fail-below top1.value=0.999"
    result = compare(*limits.split(), "--json", "x.json")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    mean = json.loads(Path("x.json").read_text())["divergences"]["kl_pq"]["mean"]
    assert lines[0] == f"kullback: gate failed: mean.value is {mean:.6g}, above 0.001 by {mean - 0.001:.3g}"
    assert lines[1].startswith("kullback: gate failed: top1.value is 0.")
    assert len(lines) == 2


def test_gates_that_hold_end_with_status_0(files):
    assert compare("--fail-above", "mean=0.1", "--fail-below", "top1=0.5").exit_code == 0


def test_infinite_and_missing_numbers_do_not_pass_a_gate(files):
    np.save("p.npy", np.array([[0.5, 0.5], [1.0, 0.0]]))
    np.save("q.npy", np.array([[1.0, 0.0], [0.5, 0.5]]))
    arguments = ["compare", "p.npy", "q.npy", "--as", "probs", "--labels", "labels.npy"]
    np.save("labels.npy", np.array([1, 1]))
    for gate, code, words in (
        ("mean=1e300", 1, "gate failed"),
        ("mean.value=1e300", 1, "gate failed"),
        ("labels.difference=5", 3, "cannot tell"),
        ("labels.difference.value=5", 3, "cannot tell"),
    ):
        result = run(*arguments, "--fail-above", gate)
        assert result.exit_code == code, gate
        assert words in result.stderr


@pytest.mark.parametrize(
    ("option", "gate", "words"),
    [
        ("--fail-above", "meen=1", ("METRIC=LIMIT", "p99.9", "'meen'")),
        ("--fail-above", "mean", ("a finite number", "after '='")),
        ("--fail-below", "top1=high", ("a finite number", "after '='", "'high'")),
        # What no number is above or below could not fail.
        ("--fail-above", "mean=inf", ("a finite number", "after '='", "'inf'")),
        ("--fail-above", "max.value=1e999", ("a finite number", "after '='", "'1e999'")),
        ("--fail-below", "top1=-inf", ("a finite number", "after '='", "'-inf'")),
        ("--fail-above", "mean=nan", ("a finite number", "after '='", "'nan'")),
        ("--fail-above", "labels.difference=1", ("no labels",)),
    ],
)
def test_a_gate_that_cannot_be_read_is_an_error_and_writes_nothing(files, option, gate, words):
    one_line(compare(option, gate, "--json", "x.json", "--html", "x.html"), *words)
    assert not Path("x.json").exists()
    assert not Path("x.html").exists()


# compare: errors


def truncate(name: str) -> None:
    Path(name).write_bytes(Path(name).read_bytes()[:-100])


def break_magic(name: str) -> None:
    Path(name).write_bytes(b"\x93NUMPX" + Path(name).read_bytes()[6:])


def with_nan(name: str) -> None:
    x = np.load(name)
    x[123, 4] = np.nan
    np.save(name, x)


BREAKAGES = {
    "truncated": (lambda: truncate("q.npy"), ("q.npy", "truncated")),
    "wrong magic": (lambda: break_magic("q.npy"), ("q.npy", "npy file")),
    "other vocabulary": (lambda: np.save("q.npy", np.zeros((ROWS, 5))), ("classes", "12 and 5")),
    "other length": (lambda: np.save("q.npy", np.zeros((7, CLASSES))), ("rows", "300 and 7")),
    "nan": (lambda: with_nan("q.npy"), ("q.npy", "row 123, class 4")),
    "missing": (lambda: Path("q.npy").unlink(), ("q.npy", "no such file")),
    "labels too few": (lambda: np.save("labels.npy", np.zeros(3, int)), ("labels.npy", "300", "3")),
    "label too large": (lambda: np.save("labels.npy", np.full(ROWS, 12)), ("labels.npy", "0 to 11")),
    "labels missing": (lambda: Path("labels.npy").unlink(), ("labels.npy", "no such file")),
    "clusters too few": (lambda: Path("documents.txt").write_text("a\nb"), ("documents.txt", "300")),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_input_is_one_line_and_leaves_no_report(files, breakage):
    break_it, words = BREAKAGES[breakage]
    break_it()
    options = ["--labels", "labels.npy", "--cluster", "documents.txt", "--json", "x.json", "--html", "x.html"]
    before = {path.name for path in Path().iterdir()}
    one_line(compare(*options), *words)
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize(
    ("target", "reason"),
    [("missing/x", "No such file"), ("folder", "directory"), ("p.npy", "one of the other files")],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(
    files, monkeypatch, option, target, reason
):
    Path("folder").mkdir()
    before = Path("p.npy").read_bytes()

    def too_late(*_arguments, **_settings):
        raise AssertionError("the comparison has begun")

    monkeypatch.setattr("kullback.cli.prediction_comparison.compare_predictions", too_late)
    one_line(compare(option, target), "cannot write", reason)
    assert Path("p.npy").read_bytes() == before


def test_two_reports_cannot_share_a_file(files):
    one_line(compare("--json", "x", "--html", "x"), "cannot write x")


def test_if_the_second_report_fails_the_line_names_the_first(files, monkeypatch):
    fsync = os.fsync

    def full_disk(number):
        if Path(f"/proc/self/fd/{number}").readlink().is_relative_to(files / "reports"):
            raise OSError(28, "No space left on device")
        fsync(number)

    Path("reports").mkdir()
    monkeypatch.setattr("kullback.common.files.os.fsync", full_disk)
    written = "No space left on device (already written: x.json); name a file"
    one_line(compare("--json", "x.json", "--html", "reports/x.html"), written)
    assert json.loads(Path("x.json").read_text())["p_name"] == "p.npy"
    assert list(Path("reports").iterdir()) == []


def test_a_page_without_its_libraries_is_refused_before_the_work(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    one_line(compare("--html", "x.html"), "--html needs jinja2", "pip install jinja2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", ("Missing argument 'P'", "kullback compare --help")),
        ("p.npy q.npy --as scores", ("'scores'", "log-probs")),
        ("p.npy q.npy --worst -1", ("--worst", "-1")),
        ("p.npy q.npy --unknown", ("--unknown",)),
        ("p.npy q.npy", ("--as logits",)),
        ("p.npy q.npy --as logits --key x", ("no key",)),
    ],
)
def test_wrong_arguments_are_one_line(files, arguments, words):
    one_line(run_line(f"compare {arguments}"), *words)


# convert, and llama.cpp's files in compare


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """Predictions at every token of two windows of 8, and the tokens, in the current directory."""
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.random.default_rng(0).integers(0, 6, 16))
    logits = np.random.default_rng(1).normal(size=(16, 6)).astype("float32")
    np.save("all.npy", logits)
    np.save("scored.npy", logits.reshape(2, 8, 6)[:, 4:7].reshape(6, 6))
    return tmp_path


TOKENS = "--tokens tokens.npy --n-ctx"


@pytest.mark.parametrize("source", ["scored.npy", "all.npy --all-positions"])
def test_convert_writes_what_llama_cpp_scores(windows, source):
    result = run_line(f"convert {source} x.kld --as logits {TOKENS} 8")
    assert (result.exit_code, result.output) == (0, "")
    write_llama_base("y.kld", np.load("tokens.npy"), torch.from_numpy(np.load("scored.npy")), n_ctx=8)
    assert Path("x.kld").read_bytes() == Path("y.kld").read_bytes()


@pytest.mark.parametrize("kind", ["probs", "counts"])
def test_convert_takes_logarithms_where_the_source_has_none(windows, kind):
    probs = torch.from_numpy(np.load("scored.npy")).double().softmax(-1)
    np.save("probs.npy", probs if kind == "probs" else probs * 50)
    run_line(f"convert probs.npy x.kld --as {kind} {TOKENS} 8 --floor 24")
    with open_rows("x.kld") as source:
        torch.testing.assert_close(source.read(0, 6).double().exp(), probs, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"all.npy x.kld {TOKENS} 8", ("6 rows",)),
        (f"scored.npy x.kld {TOKENS} 8 --all-positions", ("16 tokens", "6 rows")),
        (f"scored.npy x.kld {TOKENS} 7", ("--n-ctx 7",)),
        ("scored.npy x.kld --tokens nope.npy --n-ctx 8", ("nope.npy",)),
        (f"scored.npy missing/x.kld {TOKENS} 8", ("cannot write",)),
        (f"scored.npy scored.npy {TOKENS} 8", ("one of the other files",)),
        ("scored.npy x.kld --n-ctx 8", ("--tokens",)),
        (f"scored.npy out.npy {TOKENS} 8", ("DST = out.npy", "ends in .kld", "Write: out.kld")),
        ("scored.npy out.GGUF", ("DST = out.GGUF", "got .gguf, another format", "Write: out.kld")),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_writes_nothing(windows, arguments, words):
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    one_line(run_line(f"convert {arguments} --as logits"), *words)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_a_base_file_is_compared_with_its_own_tokens_as_labels(windows):
    run_line(f"convert scored.npy x.kld --as logits {TOKENS} 8")
    found = json.loads(run_line("compare x.kld scored.npy --as-q logits --json").stdout)
    assert found["labels"]["labeled"] == 6
    assert found["divergences"]["kl_pq"]["maximum"] < 1e-6
    assert any("x.kld" in note for note in found["notes"])
    Path("x.kld").write_bytes(Path("x.kld").read_bytes()[:-2])
    one_line(run_line("compare x.kld scored.npy --as-q logits"), "x.kld", "5 of 6 rows")


# calc


NORMALS = ("Normal(0, 1)", "Normal(1, 1)")


def test_calc_prints_both_directions_with_their_method():
    result = run("calc", "Normal(0,1)", "Laplace(0,1)")
    assert result.exit_code == 0
    forth, back = result.stdout.splitlines()
    assert forth == "KL(Normal(0,1) || Laplace(0,1)) = 0.07209320816 nats (closed form, error at most 1e-12)"
    assert back.startswith("KL(Laplace(0,1) || Normal(0,1)) = 0.2257913526 nats")


def test_calc_in_bits_with_an_error_bound():
    result = run("calc", "Probs([1, 0])", "Probs([0.5, 0.5])", "--base", "2")
    assert result.stdout.splitlines()[0].startswith(
        "KL(Probs([1, 0]) || Probs([0.5, 0.5])) = 1 bits (summation, error at most "
    )
    assert " = inf bits" in result.stdout.splitlines()[1]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ("--kind kl", "KL({p} || {q}) = 0.6931471806 nats (summ", ") = inf nats"),
        ("--kind reverse_kl", "reverse_kl({p} || {q}) = inf nats", " = 0.6931471806 nats"),
        ("--kind skew:0.5 --base 2", "skew:0.5({p} || {q}) = 0.4150374993 bits", ""),
        ("--kind Total-Variation", "tv({p} || {q}) = 0.5", " = 0.5"),
    ],
)
def test_calc_of_another_kind(options, first, second):
    p, q = "Probs([1, 0])", "Probs([0.5, 0.5])"
    forth, back = run("calc", p, q, *options.split()).stdout.splitlines()
    assert forth.startswith(first.format(p=p, q=q))
    assert second in back


def test_calc_prints_a_batch():
    assert "[0, 0.5]" in run("calc", "Normal([0, 1], 1)", "Normal(0, 1)").stdout


def test_a_direction_without_a_rule_is_said_and_both_are_an_error(monkeypatch):
    estimate = dispatch.kl_estimate

    def only_from_normal(p, q, base):
        if isinstance(p, torch.distributions.Laplace):
            raise NoRuleError("none")
        return estimate(p, q, base=base)

    monkeypatch.setattr("kullback.dispatch.kl_estimate", only_from_normal)
    one_way = run("calc", "Laplace(0, 1)", "Normal(0, 1)")
    assert one_way.exit_code == 0
    back, forth = one_way.stdout.splitlines()
    assert back == "KL(Laplace(0, 1) || Normal(0, 1)) = not known: there is no rule for this pair"
    assert " nats (closed form, error at most " in forth
    one_line(run("calc", "Laplace(0, 1)", "Laplace(0, 1)"), "no rule", "neither direction")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Normal(0, scale=1/2)", torch.distributions.Normal(torch.tensor(0.0).double(), 0.5)),
        ("Normal(loc=-1, scale=+2*3-1e-1)", torch.distributions.Normal(torch.tensor(-1.0).double(), 5.9)),
        ("Binomial(10, probs=0.25)", torch.distributions.Binomial(10, torch.tensor(0.25).double())),
        ("Independent(Normal([0, 0], [1, 2]), 1)", None),
        ("TransformedDistribution(Normal(0, 1), [ExpTransform()])", None),
        ("MixtureSameFamily(Categorical([.5, .5]), Normal([0, 1], 1))", None),
        ("Uniform(0, inf)", None),
    ],
)
def test_expressions_give_the_distributions_they_name_in_float64(text, expected):
    found = parse_distribution(text)
    assert found.sample().dtype == torch.float64
    assert repr(expected) in (repr(None), repr(found))


def test_lists_become_representations():
    found = parse_distribution("Logits([[0, 1], (2, -inf)])")
    assert isinstance(found, Logits)
    assert found.tensor.tolist() == [[0, 1], [2, -torch.inf]]


def test_counts_take_a_prior_and_labels():
    assert "= 0 nats" in run("calc", "Counts([3, 5], prior=2)", "Counts([5, 7])").stdout
    assert "= 0 nats" in run("calc", "Counts([3, 5], labels=[1, 2])", "Counts([5, 3], labels=[2, 1])").stdout


@pytest.mark.usefixtures("validation")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__import__('os').system('false')", "'os'"),
        ("Normal.__class__(0, 1)", "Normal.__class__"),
        ("(lambda: 1)()", "lambda"),
        ("open('x')", "'open'"),
        ("eval(1)", "'eval'"),
        ("kl_divergence(Normal(0, 1), Normal(0, 1))", "'kl_divergence'"),
        ("register_kl(1, 2)", "'register_kl'"),
        ("Normal('0', 1)", "'0'"),
        ("Normal(0, 9**9**9)", "9 ** 9"),
        ("Normal(0, [1, [2]])", "number"),
        ("Normal(*[0, 1])", "*[0, 1]"),
        ("Normal(**{})", "'**' is not allowed"),
        ("Normal(**{'loc': 0}, scale=1)", "'**' is not allowed"),
        ("Normal(loc=0, loc=1, scale=1)", "'loc' twice"),
        ("Counts([3, 5], prior=1, prior=2)", "'prior' twice"),
        ("Normal(0, 1, loc=2)", "multiple values for argument 'loc'"),
        ("Independent(Normal(loc=[0], loc=[1], scale=1), 1)", "'loc' twice"),
        ("Normal(0, 1, 1)", "'validate_args' of Normal cannot be set"),
        ("Normal(0, 1, validate_args=0)", "'validate_args' of Normal cannot be set"),
        ("Probs([0.5, 0.6], validate=0)", "'validate' of Probs cannot be set"),
        ("Normal(0, 1,)", "last comma"),
        ("Probs([0.2, 0.8, ])", "last comma"),
        ("Normal((0, 1,), 1)", "last comma"),
        ("Normal(True, 1)", "'True'"),
        ("Categorical([True, False])", "'True'"),
        ("Normal(1e400, 1)", "beyond the range of float64"),
        ("normal(0, 1)", "did you mean Normal?"),
        ("NORMAL(0, 1)", "did you mean Normal?"),
        ("studentt(3)", "did you mean StudentT?"),
        ("counts([3, 5])", "did you mean Counts?"),
        ("Independent(normal([0], [1]), 1)", "did you mean Normal?"),
        ("Normal(loc=0, sclae=1)", "did you mean scale?"),
        ("Normal(0, beta)", "did you mean Beta(...)?"),
        ("normal", "did you mean Normal(...)?"),
        ("Normal(0, 1/0)", "division by zero"),
        ("Normal(0, -1)", "scale"),
        ("Normal(0)", "scale"),
        ("Normal(0, 1, sigma=3)", "sigma"),
        ("Normal(0, [1] * 3)", "not a number to calculate with"),
        ("Normal(0, 1", "never closed"),
        ("0.5", "it is of type float"),
        ("Normal", "'Normal'"),
        ("Probs(0.2, 0.8)", "a list with a number for each class: Probs([0.2, 0.8])"),
        ("Categorical(1, 3)", "Categorical([1, 3])"),
        ("Probs([0.2, 0.8], unknown=3)", "Probs has no parameter 'unknown'"),
        ("", "invalid syntax"),
        ("(" * 9000, "; write a torch distribution"),
        ("Normal(0, " + "-" * 20_000 + "1)", "20012 characters"),
        ("Normal(0, " + "-" * 5000 + "1)", "recursion"),
    ],
)
def test_an_expression_that_is_no_distribution_is_refused_with_what_is_allowed(text, words):
    with pytest.raises(ArgumentValueError) as caught:
        parse_distribution(text)
    assert words in str(caught.value)
    assert "write a torch distribution of numbers" in str(caught.value)
    one_line(run("calc", "--", text, "Normal(0, 1)"), "is not a distribution that can be read")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("Normal(0, 1)", "Normal(0, 1)", "--base", "1"), ("base",)),
        (("Probs([1, 0])", "Probs([1, 0, 0])"), ("same number of classes",)),
        (("Normal(0, 1)",), ("Missing argument 'Q'",)),
        (("Probs([0.5, 0.6])", "Probs([1, 0])"), ("sum to 1",)),
        (
            (*NORMALS, "--kind", "skew"),
            ("--kind: wanted", "'skew:ALPHA' with ALPHA from 0 to 1", "--kind skew:0.1"),
        ),
        ((*NORMALS, "--kind", "what"), ("one of 'kl', 'reverse_kl'", "Write: --kind kl")),
        ((*NORMALS, "--kind", "tv", "--base", "2"), ("no base for a divergence without a logarithm",)),
    ],
)
def test_calc_refuses_in_one_line(arguments, words):
    one_line(run("calc", *arguments), *words)


# The rest


def test_backends_shows_each_and_why():
    result = run("backends")
    assert result.exit_code == 0
    for words in ("reference", "native", "triton", "cpu", "float64"):
        assert words in result.stdout


def test_the_backends_that_run_have_devices_and_those_that_do_not_have_a_reason():
    for backend in backends():
        assert backend.available == bool(backend.devices) == bool(backend.dtypes) == bool(backend.operations)
        assert backend.reason


def test_version_and_help():
    assert run("--version").stdout == f"kullback {package.__version__}\n"
    for arguments in ((), ("--help",), ("compare", "--help"), ("calc", "-h")):
        result = run(*arguments)
        assert result.exit_code == 0
        assert result.stdout.startswith("Usage: kullback")


def test_an_unknown_command_is_one_line():
    one_line(run("compair"), "compair", "compare")
    one_line(run("--nothing"), "--nothing")


# What the installed script runs.
COMMAND = [sys.executable, "-c", "from kullback.cli import main; main()"]


@pytest.mark.sweep
def test_the_real_process_keeps_to_the_same_statuses(files):
    arguments = ["compare", "p.npy", "q.npy", "--as", "logits", "--json"]
    good = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["rows"] == ROWS
    with_nan("q.npy")
    bad = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    assert "row 123, class 4" in bad.stderr


HELP = [(), ("--help",), ("--version",), *((name, "--help") for name in sorted(kullback.commands))]
MISUSE = [("no-such-command",), *((name, "--no-such-option") for name in sorted(kullback.commands))]
MISUSE += [("compare", "p", "q", "--fail-above", "x=1"), ("watch", "p", "q", "--fail-above", "x=1")]


def test_help_and_errors_of_usage_load_no_library_that_computes():
    program = f"""
import sys
from click.testing import CliRunner
from kullback.cli.commands import kullback
for status, calls in ((0, {HELP!r}), (2, {MISUSE!r})):
    for arguments in calls:
        result = CliRunner().invoke(kullback, list(arguments))
        assert result.exit_code == status, (arguments, result.output)
        heavy = {{"torch", "numpy", "rich", "scipy", "pandas", "pyarrow", "narwhals"}} & set(sys.modules)
        assert not heavy, (arguments, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_click_the_command_says_what_to_install(tmp_path):
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError(\"No module named 'click'\", name='click')")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    }
    result = subprocess.run(COMMAND, capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "kullback: click is not installed. Run: pip install click rich\n"


@pytest.mark.sweep
def test_a_progress_bar_appears_on_a_terminal_and_only_there(files):
    shown = {}
    for options in ((), ("--no-progress",)):
        ours, theirs = pty.openpty()
        arguments = command("compare", "p.npy", "q.npy", "--as", "logits", "--json", *options)
        environment = os.environ | {"TERM": "xterm"}
        subprocess.run(arguments, stdout=subprocess.DEVNULL, stderr=theirs, check=True, env=environment)
        os.close(theirs)
        try:
            shown[options] = os.read(ours, 10_000)
        except OSError:  # nothing was ever written
            shown[options] = b""
        os.close(ours)
    assert b"300/300" in shown[()]
    assert shown[("--no-progress",)] == b""
