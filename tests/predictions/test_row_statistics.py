"""A statistic of predictions is one function: it is in the result, in every medium, and a gate."""

from __future__ import annotations

import json
from collections.abc import Generator

import pytest
import torch
from torch import Tensor

from kullback import Logits, compare_predictions
from kullback.cli.gates import ESTIMATES, MEANS, parse_gate
from kullback.common.row_statistics import GATES
from kullback.errors import ArgumentValueError, FileError
from kullback.models import Cut, LanguageModel, Run, compare_models, record_reference
from kullback.predictions import Comparison, register_statistic, unregister_statistic
from kullback.report import document, html, markdown
from tests.refusals import refused

P = torch.randn(4000, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Q = P + 0.2 * torch.randn(4000, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
TITLE = "squared Hellinger distance"


@pytest.fixture(autouse=True)
def registered() -> Generator[None]:
    @register_statistic("hellinger", TITLE, low=0, high=1)
    def hellinger(p: Tensor, q: Tensor, _labels: Tensor | None) -> Tensor:
        return 1 - (p * q).sqrt().sum(-1)

    yield
    unregister_statistic("hellinger")


def truth() -> Tensor:
    p, q = P.softmax(-1), Q.softmax(-1)
    return ((p.sqrt() - q.sqrt()) ** 2).sum(-1) / 2


def compared(**options: object) -> Comparison:
    return compare_predictions(Logits(P), Logits(Q), **options)  # pyright: ignore[reportArgumentType]


def test_the_mean_has_an_error_and_an_interval_and_changes_no_other_number() -> None:
    found = compared()
    mean = found.further["hellinger"]
    assert mean.value == pytest.approx(float(truth().mean()), rel=1e-12)
    assert mean.standard_error == pytest.approx(float(truth().std()) / 4000**0.5, rel=1e-9)
    assert mean.interval is not None
    assert mean.interval[0] < mean.value < mean.interval[1]
    unregister_statistic("hellinger")
    fields = found.to_dict()
    del fields["further"]
    assert compared().to_dict() == fields


def test_it_is_in_every_medium() -> None:
    found = compared()
    mean = found.further["hellinger"].value
    of_json = json.loads(found.to_json())["further"]["hellinger"]
    assert (of_json["mean"], of_json["title"]) == (mean, TITLE)
    assert found.to_dict(flat=True)["further/hellinger/mean"] == mean
    shown = document(found)
    for page in (html.render(shown), markdown.render(shown), str(found)):
        assert TITLE in page
        assert f"{mean:.4g}" in page


def test_it_is_a_gate() -> None:
    found = compared()
    mean = found.further["hellinger"].value

    def outcome(text: str) -> str:
        return parse_gate(text, "above").verdict([(None, found, None)]).outcome

    assert [outcome(f"hellinger={x * mean}") for x in (2, 1, 0.5)] == ["passed", "unclear", "failed"]
    assert [outcome(f"hellinger.value={x * mean}") for x in (1.01, 0.99)] == ["passed", "failed"]
    unregister_statistic("hellinger")
    with refused(ArgumentValueError, got="'hellinger'"):
        parse_gate("hellinger=1", "above")


def test_the_size_of_blocks_and_a_stop_change_nothing(tmp_path: object) -> None:
    state = f"{tmp_path}/state"

    def stop(done: int, _: int | None) -> None:
        if done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(resume=state, block_bytes=1, progress=stop, bootstrap=10)
    unregister_statistic("hellinger")
    with refused(FileError, got="of another"):  # a state of other statistics
        compared(resume=state, bootstrap=10)


def test_rows_with_a_label_alone_count_where_a_statistic_says_so() -> None:
    labels = torch.arange(4000) % 7
    labels[::2] = -100

    @register_statistic("at_label", "|q - p| at the label", low=0, high=1, of_labels=True)
    def at_label(p: Tensor, q: Tensor, labels: Tensor | None) -> Tensor:
        assert labels is not None
        place = labels.clamp(min=0)[:, None]
        return (q.gather(-1, place) - p.gather(-1, place)).abs()[:, 0]

    try:
        found = compared(labels=labels)
        assert "at_label" not in compared().further
    finally:
        unregister_statistic("at_label")
    change = (Q.softmax(-1) - P.softmax(-1)).abs()[torch.arange(4000), labels.clamp(min=0)]
    assert found.further["at_label"].value == pytest.approx(float(change[1::2].mean()), rel=1e-12)


class Bigrams(LanguageModel):
    """The next byte given the last one, by a table of logits."""

    def __init__(self, name: str, table: Tensor) -> None:
        from kullback.models import ModelInfo, Token, Vocabulary

        self.info, self.table, self.bos = ModelInfo(name, "bigrams", "float64", classes=256), table, None
        self.vocabulary = Vocabulary([Token(bytes([byte])) for byte in range(256)])

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def logits(self, windows: object, rows: int, first: int = 0) -> object:
        for number in range(first, len(windows)):  # type: ignore[arg-type]
            tokens, scored = windows.window(number)  # type: ignore[attr-defined]
            yield from self.table[tokens[scored.nonzero().squeeze(-1) - 1]].split(rows)


def test_models_have_it_where_all_classes_are_known(tmp_path: object) -> None:
    generator = torch.Generator().manual_seed(2)
    table = torch.randn(256, 256, generator=generator, dtype=torch.float64)
    base, near = Bigrams("base", table), Bigrams("near", 0.9 * table)
    text, cut, run = "how far is one distribution from another? " * 30, Cut(context=32), Run(bootstrap=50)
    found = compare_models(base, near, text, cut=cut, run=run).candidates[0].comparison
    assert found.further["hellinger"].value > 0
    path = f"{tmp_path}/base.klref"
    record_reference(base, text, path, top=8, tail_draws=8, cut=cut)
    found = compare_models(path, near, run=run).candidates[0].comparison
    assert found.further == {}
    verdict = parse_gate("hellinger=1", "above").verdict([(None, found, None)])
    assert verdict.outcome == "unclear"
    assert "not all classes are known" in verdict.sentences[0]


def test_the_names_of_gates_are_those_that_a_statistic_cannot_have() -> None:
    names = {name.removesuffix(".value") for name in (*MEANS, *ESTIMATES)}
    assert {name for name in names if name.isidentifier()} == GATES


@pytest.mark.parametrize("name", ["hellinger", "kl_pq", "two words", "", "mean", "top1"])
def test_a_name_that_is_taken_or_none_is_refused(name: str) -> None:
    with refused(ArgumentValueError, argument="name"):
        register_statistic(name, "title")


def test_values_of_another_shape_are_refused() -> None:
    @register_statistic("whole", "whole")
    def whole(p: Tensor, _q: Tensor, _labels: Tensor | None) -> Tensor:
        return p

    try:
        with refused(ArgumentValueError, wanted="one for each row", got="from whole"):
            compared(bootstrap=0)
    finally:
        unregister_statistic("whole")
