"""Every medium shows every subject with its gates; a new medium and a new subject are one function each."""

from __future__ import annotations

import ast
import functools
import json as standard_json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.distributions import Gamma, Normal

import kullback
from kullback import (
    Probs,
    Samples,
    compare_models,
    compare_predictions,
    compare_tables,
    diagnose,
    fit,
    kl_estimate,
    two_sample_test,
)
from kullback.errors import ArgumentTypeError
from kullback.models import Cut
from kullback.report import document, frame, html, json, markdown, terminal
from kullback.report.document import Document, Headline, Table
from kullback.results.verdict import Verdict
from tests.report.media import printed
from tests.report.models.test_report import Table as TableModel

P, Q = Probs(torch.tensor([[0.5, 0.5], [0.9, 0.1]])), Probs(torch.tensor([[0.4, 0.6], [0.5, 0.5]]))
X = torch.linspace(-2, 2, 60)
TEXT = "".join(chr(40 + (7 * i * i + 3 * i) % 80) for i in range(200))
GATES = (Verdict("size at most 3"), Verdict("shape at least 2", ("shape is 1, below 2 by 1",), ("it",)))


@dataclass(frozen=True)
class Coin:
    """A result from outside of kullback."""

    heads: int
    tosses: int


@document.register(Coin)
def of_coin(coin: Coin, verdicts: Sequence[Verdict] = ()) -> Document:
    rows = [["heads", str(coin.heads)], ["tosses", str(coin.tosses)]]
    headline = Headline(f"{coin.heads} of {coin.tosses} tosses are heads")
    return Document(
        "a coin", headline, (Table("The <coin>", ["side", "count"], rows, is_main=True),), tuple(verdicts)
    )


MAKE: dict[str, Callable[[], Any]] = {
    "predictions": lambda: compare_predictions(P, Q),
    "models": lambda: compare_models(
        TableModel("base", 0, 0.0), [TableModel("near", 1, 0.1)], TEXT, cut=Cut(context=40)
    ),
    "tables": lambda: compare_tables(pa.table({"x": [1, 2] * 50}), pa.table({"x": [1, 1] * 50})),
    "fit": lambda: fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0)),
    "estimate": lambda: kl_estimate(Samples(X), Samples(X + 1)),
    "test": lambda: two_sample_test(Samples(X), Samples(X + 1), permutations=99),
    "diagnosis": lambda: diagnose(P.tensor, Q.tensor, reduction="mean"),
    "outside": lambda: Coin(3, 7),
}
SUBJECTS = {name: functools.cache(make) for name, make in MAKE.items()}


@pytest.fixture(scope="module", params=SUBJECTS)
def result(request: pytest.FixtureRequest) -> Any:
    return SUBJECTS[request.param]()


def test_every_medium_shows_every_subject_and_its_gates(result: Any) -> None:
    outcome = document(result).outcome
    media = {
        "terminal": printed(result, 200, verdicts=GATES),
        "page": unescape(html.render(result, GATES)).replace("‖", "||"),
        "markdown": markdown.render(result, GATES).replace("\\", ""),
    }
    for text in media.values():
        assert outcome in text
        assert "Failed: 1 of 2 limits broken" in text
        assert "shape is 1, below 2 by 1" in text
        assert "size at most 3" in text
    written = standard_json.loads(json.dumps(result, GATES))
    assert [each["passed"] for each in written["gates"]["limits"]] == [True, False]
    assert "gates" not in json.to_dict(result)
    assert frame.to_pandas(result, GATES).attrs["gates"] == {
        "size at most 3": "passed",
        "shape at least 2": "failed",
    }
    assert len(frame.to_pandas(result)) > 0
    first = next(each for each in document(result).blocks if isinstance(each, Table))
    assert f"{first.rows[0][0]}".replace("||", "‖") in unescape(html.render_table(result))


def leaf(fields: Any, path: str) -> Any:
    """The value in nested dicts and lists whose keys, names and places are the parts of a path."""
    for part in path.split("/"):
        if isinstance(fields, dict):
            fields = fields[part]
        elif part.isdecimal():
            fields = fields[int(part)]
        elif part in ("lower", "upper"):
            fields = fields[part == "upper"]
        else:
            (fields,) = [
                each for each in fields if part in (each.get("name"), each.get("model", {}).get("name"))
            ]
    (fields,) = fields if isinstance(fields, list) else [fields]
    return fields


def test_flat_numbers_of_every_subject_are_those_of_its_json(result: Any) -> None:
    numbers, fields = json.to_dict(result, GATES, flat=True), json.to_dict(result, GATES)
    assert numbers["gates/passed"] == 0
    for path, number in numbers.items():
        assert type(number) in (int, float)
        assert float(number) == float(leaf(fields, path))  # "Infinity" of JSON is a float's text


MAIN_NUMBERS = {
    "predictions": "divergences/kl_pq/mean",
    "models": "candidates/near/comparison/divergences/kl_pq/mean",
    "tables": "columns/x/psi/value",
    "fit": "numbers/value",
    "estimate": "numbers/high",
    "test": "numbers/p_value",
    "diagnosis": "kl_target_input/mean",
}


@pytest.mark.parametrize("subject", MAIN_NUMBERS)
def test_a_result_has_its_main_number_in_its_flat_dict(subject: str) -> None:
    result = SUBJECTS[subject]()
    assert MAIN_NUMBERS[subject] in result.to_dict(flat=True)
    assert result.to_dict() == standard_json.loads(result.to_json())


@pytest.mark.sweep
@pytest.mark.parametrize("subject", MAIN_NUMBERS)
def test_the_methods_of_a_result_are_the_media_of_its_document(subject: str) -> None:
    result = SUBJECTS[subject]()
    page = document(result)
    assert result.to_html() == html.render(page)
    assert result.to_json() == json.dumps(page)
    assert result._repr_html_() == html.render_table(page)
    assert result.to_pandas().equals(frame.to_pandas(page))
    report = "\n".join(line.rstrip() for line in printed(page).rstrip().splitlines())
    assert result.to_markdown() == markdown.render(page)
    assert str(result) == (f"{page.outcome}; 1 note in .notes" if page.in_one_line else report)
    assert page.in_one_line == (subject in ("estimate", "test"))
    plain = terminal.render_plain(page)
    assert plain.startswith(page.outcome)
    for cell in (
        cell for table in page.blocks if isinstance(table, Table) for row in table.rows for cell in row
    ):
        assert cell in plain
    assert standard_json.loads(json.dumps(page))["schema"].startswith("kullback.")


def test_code_and_remedies_are_in_every_medium() -> None:
    result = SUBJECTS["diagnosis"]()
    code = result.suggestion.kullback
    for text in (str(result), html.render(result), result._repr_html_(), markdown.render(result)):
        assert code in text
        for finding in result.findings:
            for part in (finding.code, finding.message, finding.advice):
                said = unescape(text).replace("\\", "").replace("‖", "||")
                assert " ".join(part.split()) in " ".join(said.split())


def test_names_of_a_subject_from_outside_are_escaped() -> None:
    assert "The &lt;coin&gt;" in html.render(Coin(1, 2))
    assert "The <coin>" in printed(Coin(1, 2), 200)


ROOM = Path(kullback.__file__).parent


@pytest.mark.parametrize(
    "path",
    [path for room in ("report", "results", "diagnosis") for path in sorted((ROOM / room).rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOM)),
)
def test_numbers_are_rounded_in_the_room_of_formats_alone(path: Path) -> None:
    specs = [
        part.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
        for part in ast.walk(node.format_spec)
        if isinstance(part, ast.Constant)
    ]
    columns_of_llama_cpp = path.name == "llama_cpp.py"  # which are as llama.cpp prints them
    assert columns_of_llama_cpp or [spec for spec in specs if "." in str(spec)] == []


# A medium from outside: all texts of a document, one on each line, whatever its blocks are.
def lines(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            yield from lines(getattr(part, field.name))
    elif isinstance(part, list | tuple):
        for each in part:
            yield from lines(each)


def test_a_medium_from_outside_is_one_function_for_every_subject(result: Any) -> None:
    text = "\n".join(lines(document(result, GATES)))
    assert document(result).headline.outcome in text
    for block in document(result).blocks:
        assert block.title in text
        assert not isinstance(block, Table) or all(cell in text for row in block.rows for cell in row)


def test_a_document_is_its_own_document_and_other_objects_have_none() -> None:
    page = document(Coin(1, 2))
    assert document(page) is page
    with pytest.raises(ArgumentTypeError, match=r"document\(result=...\): .*got int.*document.register"):
        document(3)
