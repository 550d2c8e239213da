"""The matrix of pairs: no hole among torch's univariate distributions, every entry true, the page up to date."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import distributions as torch_distributions
from torch.distributions import Distribution, Gamma, Normal

from kullback import kl_estimate
from kullback.cli.commands import kullback as command
from kullback.cli.pairs_table import page
from kullback.errors import ArgumentValueError, NoRuleError
from kullback.pairs.coverage import MEANING, Entry, families, is_univariate, matrix, rule_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pairs.md"
NAMES = [kind.__name__ for kind in families()]
KINDS = {kind.__name__: kind for kind in families()}
UNIVARIATE = [name for name in NAMES if is_univariate(KINDS[name])]


@functools.cache
def entries() -> list[Entry]:
    return list(matrix())


@pytest.fixture(autouse=True)
def _one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands show the matrix that is made once."""
    monkeypatch.setattr("kullback.cli.pairs_table.matrix", entries)


@functools.cache
def matrix_rules() -> dict[tuple[str, str], str]:
    return {(entry.p, entry.q): entry.rule for entry in entries()}


def test_every_class_of_torchs_is_in_the_matrix() -> None:
    exported = {
        name for name in torch_distributions.__all__ if isinstance(getattr(torch_distributions, name), type)
    }
    kinds = {name for name in exported if issubclass(getattr(torch_distributions, name), Distribution)}
    assert kinds - {"Distribution", "ExponentialFamily"} == set(NAMES)
    assert set(matrix_rules()) == {(p, q) for p in NAMES for q in NAMES}
    assert set(matrix_rules().values()) <= set(MEANING)


def test_there_is_no_hole_among_torchs_univariate_distributions() -> None:
    assert len(UNIVARIATE) >= 28
    discrete = {
        name
        for name in UNIVARIATE
        if KINDS[name].support is None or families()[KINDS[name]].support.is_discrete
    }
    for p in UNIVARIATE:
        for q in UNIVARIATE:
            expected = "not_comparable" if (p in discrete) != (q in discrete) else None
            assert (matrix_rules()[p, q] == "not_comparable") == (expected == "not_comparable"), (p, q)
            assert matrix_rules()[p, q] != "monte_carlo", (p, q)


@pytest.mark.parametrize("p", NAMES)
def test_every_entry_is_what_kl_estimate_does(p: str) -> None:
    for q in NAMES:
        first, second = families()[KINDS[p]], families()[KINDS[q]]
        rule = matrix_rules()[p, q]
        if rule == "not_comparable":
            with pytest.raises(ArgumentValueError):
                kl_estimate(first, second)
        elif rule == "monte_carlo":
            with pytest.raises(NoRuleError):
                kl_estimate(first, second)
            assert kl_estimate(first, second, method="monte_carlo", draws=8).method == rule
        else:
            found = kl_estimate(first, second)
            assert not bool(found.value.isnan().any()), (p, q)
            assert bool(found.value.isinf().all()) == (rule == "infinite"), (p, q)
            assert rule in {"infinite", found.method}, (p, q)


def test_the_rule_follows_the_parameters_where_it_depends_on_them() -> None:
    uniform = torch_distributions.Uniform
    assert rule_of(uniform(torch.tensor([0.0]), 2.0), uniform(0.0, 1.0)) == "infinite"
    assert rule_of(uniform(torch.tensor([0.0]), 1.0), uniform(0.0, 2.0)) != "infinite"


def test_the_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(entries()), (
        "run: kullback pairs --markdown > docs/pairs.md"
    )


def test_the_terminal_shows_one_sign_for_each_pair() -> None:
    printed = CliRunner().invoke(command, ["pairs"], catch_exceptions=False).output
    lines = [line for line in printed.splitlines() if line[:2].strip().isdigit() and line[3:4].isalpha()]
    assert [line.split()[1] for line in lines] == NAMES
    assert {len(line.split()[2]) for line in lines} == {len(NAMES)}


def test_one_family_is_shown_both_ways_as_a_table() -> None:
    printed = CliRunner().invoke(command, ["pairs", "Gamma", "--full"], catch_exceptions=False).output
    row = next(line for line in printed.splitlines() if line.split()[1:2] == ["Normal"])
    assert rule_of(families()[Normal], families()[Gamma]) == "infinite"
    assert row.rstrip("│ ").endswith("+inf")
    assert matrix_rules()["Gamma", "Normal"].replace("_", " ") in row


@pytest.mark.sweep
@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("family", ["Gamma", "Multinomial", "Poisson"])
def test_one_family_is_told_in_words(family: str, width: int) -> None:
    """Every type is in the line of its rule, and the types of a line are counted."""
    run = CliRunner().invoke(command, ["pairs", family], env={"COLUMNS": str(width)}, catch_exceptions=False)
    assert max(map(len, run.output.splitlines())) <= width
    text = " ".join(run.output.split())
    p_part, _, rest = text.partition(f"KL(X ‖ {family})")
    q_part, _, both = rest.partition(f"{family} and X, both ways")
    for part, rules in (
        (p_part, {q: rule for (p, q), rule in matrix_rules().items() if p == family}),
        (q_part, {p: rule for (p, q), rule in matrix_rules().items() if q == family}),
    ):
        for rule in MEANING:
            types = [name for name, its_rule in rules.items() if its_rule == rule]
            line = f"with {len(types)} type{'s' * (len(types) != 1)}: {', '.join(types)}"
            place = both if rule == "not_comparable" else part
            assert (f"({MEANING[rule]}) {line}" in place) == bool(types), rule


@pytest.mark.sweep
def test_two_families_are_told_in_a_sentence_each_way() -> None:
    run = CliRunner().invoke(command, ["pairs", "Normal", "Gamma"], env={"COLUMNS": "200"})
    assert run.output.splitlines() == [
        f"KL(Normal ‖ Gamma): +inf, {MEANING['infinite']}.",
        f"KL(Gamma ‖ Normal): closed form, {MEANING['closed_form']}.",
    ]
    same = CliRunner().invoke(command, ["pairs", "Cauchy", "Cauchy"]).output
    assert same == f"KL(Cauchy ‖ Cauchy): closed form, {MEANING['closed_form']}.\n"
    rows = json.loads(CliRunner().invoke(command, ["pairs", "Normal", "Gamma", "--json"]).output)["pairs"]
    assert {(row["p"], row["q"]) for row in rows} == {("Normal", "Gamma"), ("Gamma", "Normal")}


def test_json_has_every_pair_and_its_rule() -> None:
    answer = json.loads(CliRunner().invoke(command, ["pairs", "--json"], catch_exceptions=False).output)
    assert answer["schema"] == "kullback.pairs/1"
    assert {(row["p"], row["q"]): row["rule"] for row in answer["pairs"]} == matrix_rules()


def test_an_unknown_family_is_an_error_in_one_line_that_names_those_there_are() -> None:
    result = CliRunner().invoke(command, ["pairs", "Gama"])
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert "got 'Gama'" in result.output
    assert "Gamma" in result.output
