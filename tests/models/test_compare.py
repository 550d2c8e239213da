"""`compare_models` against what transformers, NumPy and the definitions give."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kullback.errors import ArgumentTypeError, ArgumentValueError, FileError, ModelError
from kullback.io import open_rows
from kullback.models import Cut, Loading, ModelComparison, Run, compare_models, open_model
from kullback.report import json as report
from tests import fuzz_states
from tests.models import folders
from tests.models.tiny import make_model, make_tokenizer, text
from tests.refusals import refused

transformers = pytest.importorskip("transformers")

CONTEXT = 48


def logits_of(folder: Path, ids: torch.Tensor) -> np.ndarray:
    """The logits of whole windows, float64, from one plain call."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(ids).logits.double().numpy()


def windows_by_hand(folder: Path, words: str, context: int) -> np.ndarray:
    """llama-perplexity's windows: whole ones, each beginning with BOS."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(words)["input_ids"]
    assert tokens[0] == tokenizer.bos_token_id
    count = len(tokens) // context
    windows = np.array(tokens[: count * context]).reshape(count, context)
    windows[:, 0] = tokenizer.bos_token_id
    return windows


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mean_kl(found: ModelComparison, place: int = 0) -> float:
    return found.candidates[place].comparison.divergences["kl_pq"].mean


def words(count: int = 3000) -> str:
    return text()[:count]


@functools.cache
def of_int8() -> ModelComparison:
    return compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT))


def as_json(found: ModelComparison) -> Any:
    return json.loads(report.dumps(found))


@pytest.mark.sweep
def test_the_numbers_are_those_of_a_plain_run() -> None:
    found = of_int8()
    windows = windows_by_hand(folders.base(), words(), CONTEXT)
    p, q = (
        log_softmax(logits_of(folder, torch.from_numpy(windows)))
        for folder in (folders.base(), folders.int8())
    )
    # llama.cpp scores positions n_ctx // 2 to n_ctx - 2: each says what follows it.
    scored = slice(CONTEXT // 2, CONTEXT - 1)
    p, q, labels = p[:, scored], q[:, scored], windows[:, CONTEXT // 2 + 1 :]
    kl = (np.exp(p) * (p - q)).sum(-1)
    at_label = [np.take_along_axis(x, labels[..., None], -1)[..., 0] for x in (p, q)]
    comparison = found.candidates[0].comparison
    assert comparison.rows == labels.size
    assert comparison.divergences["kl_pq"].mean == pytest.approx(kl.mean(), rel=1e-5)
    assert comparison.divergences["kl_pq"].maximum == pytest.approx(kl.max(), rel=1e-4)
    assert comparison.labels is not None
    assert comparison.labels.cross_entropy_p.mean == pytest.approx(-at_label[0].mean(), rel=1e-6)
    assert comparison.labels.cross_entropy_q.mean == pytest.approx(-at_label[1].mean(), rel=1e-6)
    assert comparison.top1_agreement.value == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert comparison.clusters == len(windows)


def test_all_tokens_are_scored_but_the_first_of_each_window() -> None:
    found = compare_models(folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT, score="all"))
    windows = windows_by_hand(folders.base(), words(), CONTEXT)
    assert found.candidates[0].comparison.rows == windows[:, 1:].size
    assert found.text.labels.tolist() == windows[:, 1:].reshape(-1).tolist()


@pytest.mark.sweep
def test_candidates_are_sorted_and_their_differences_paired() -> None:
    found = compare_models(
        folders.base(), [folders.int8(), folders.bf16()], words(), cut=Cut(context=CONTEXT)
    )
    assert [each.model.name for each in found.candidates] == [str(folders.bf16()), str(folders.int8())]
    assert len(found.differences) == 1
    difference = found.differences[0]
    assert difference.mean == pytest.approx(mean_kl(found, 1) - mean_kl(found, 0), rel=1e-9)
    # The two are alike in which tokens are hard, so their difference is known better than either.
    separate = [each.comparison.divergences["kl_pq"].standard_error for each in found.candidates]
    assert difference.standard_error < math.hypot(*separate)
    assert found[str(folders.int8())] is found.candidates[1]


def test_a_model_and_itself_are_equal() -> None:
    found = compare_models(folders.base(), folders.base(), words(), cut=Cut(context=CONTEXT))
    assert found.candidates[0].comparison.divergences["kl_pq"].maximum == 0


@pytest.mark.sweep
def test_the_size_of_blocks_changes_nothing() -> None:
    reports = [
        as_json(
            compare_models(
                folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT), run=Run(block_bytes=size)
            )
        )
        for size in (512 * 4 * 32, 512 * 4 * 320)
    ]
    assert reports[0] == reports[1]


def test_control_tokens_in_a_text_are_text() -> None:
    found = compare_models(
        folders.base(), folders.int8(), "one</s>two " * 40, cut=Cut(context=CONTEXT, score="all")
    )
    assert 1 not in found.text.labels.tolist()
    assert found.tokens is not None
    assert "</s>" in "".join(found.tokens[index] for index in found.text.tokens.tolist())


@pytest.mark.sweep
def test_modules_are_compared_as_folders_are() -> None:
    model, tokenizer = make_model(), make_tokenizer()
    near = make_model(noise=0.05)
    found = compare_models(
        model, near, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT)
    )
    same = compare_models(
        folders.base(), near, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT)
    )
    assert mean_kl(found) == pytest.approx(mean_kl(same), rel=1e-9)
    assert mean_kl(found) > 0.01
    with refused(ArgumentValueError, instead="tokenizer=AutoTokenizer"):
        compare_models(model, near, words(), cut=Cut(context=CONTEXT))


class _WholeLogits(torch.nn.Module):
    """A module that always gives the logits of all positions."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        return self.inner(input_ids, use_cache=use_cache)


@pytest.mark.sweep
def test_a_module_without_logits_to_keep_gives_the_same() -> None:
    model, tokenizer = make_model(), make_tokenizer()
    near = make_model(noise=0.05)
    found = compare_models(
        model, _WholeLogits(near), words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT)
    )
    same = compare_models(
        model, near, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT)
    )
    assert mean_kl(found) == pytest.approx(mean_kl(same), rel=1e-6)


def test_documents_are_read_one_by_one() -> None:
    texts = [words(6000)[start : start + 400] for start in range(0, 4800, 400)]
    found = compare_models(folders.base(), folders.int8(), texts, cut=Cut(context=CONTEXT))
    comparison = found.candidates[0].comparison
    assert comparison.clusters == len(texts)
    assert comparison.worst[0].cluster is not None
    assert comparison.worst[0].cluster.startswith("document ")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders.base())
    lengths = found.text.offsets.diff().tolist()
    expected = []
    for each in texts:
        count = len(tokenizer(each)["input_ids"])
        whole, rest = divmod(count, CONTEXT)
        expected += [CONTEXT] * whole + ([rest] if rest >= 3 else [])
    assert lengths == expected


CONVERSATION = [
    {"role": "user", "content": "What is a divergence?"},
    {"role": "assistant", "content": "How far one distribution is from another."},
    {"role": "user", "content": "And a bound?"},
    {"role": "assistant", "content": "What it cannot exceed."},
]


def test_of_conversations_the_replies_are_scored() -> None:
    found = compare_models(
        folders.base(), folders.int8(), [CONVERSATION] * 3, cut=Cut(context=256, score="assistant")
    )
    spoken = "".join(found.tokens[index] for index in found.text.labels.tolist()) if found.tokens else ""
    assert spoken == 3 * "How far one distribution is from another.</s>What it cannot exceed.</s>"


def test_documents_without_a_scored_token_are_counted() -> None:
    silent = [{"role": "user", "content": "Nobody answers."}]
    found = compare_models(
        folders.base(),
        folders.int8(),
        [CONVERSATION, silent, CONVERSATION],
        cut=Cut(context=256, score="assistant"),
    )
    assert found.notes == ["1 of 3 documents hold no scored token."]
    assert found.notes[0] in str(found)


@pytest.mark.sweep
def test_what_was_given_open_stays_open_and_as_it_was() -> None:
    model, tokenizer = make_model().train(), make_tokenizer()
    opened = open_model(folders.int8())
    for _ in range(2):  # again, with the same
        found = compare_models(
            model, opened, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT)
        )
        assert mean_kl(found) > 0
        assert model.training


@pytest.mark.sweep
def test_a_forward_that_another_library_has_put_there_stays() -> None:
    model, tokenizer = make_model(), make_tokenizer()
    plain, calls = model.model.forward, []

    def hooked(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return plain(*args, **kwargs)

    model.model.forward = hooked
    found = compare_models(
        model,
        folders.int8(),
        words(),
        loading=Loading(tokenizer=tokenizer),
        cut=Cut(context=CONTEXT),
        run=Run(block_bytes=512 * 4 * 8),
        noise_floor=False,
    )
    assert model.model.forward is hooked
    assert len(calls) == found.windows  # once for each window, however many blocks it has


def test_more_rows_than_tokens_are_refused(tmp_path: Path) -> None:
    windows = compare_models(folders.base(), folders.int8(), words(900), cut=Cut(context=CONTEXT)).text
    rows = torch.cat(list(open_model(folders.int8()).logits(windows, 64)))
    header = ",".join(f"c{i}" for i in range(512))
    for extra in (1, -1):
        held = torch.cat([rows, rows[:1]]) if extra > 0 else rows[:-1]
        np.savetxt(tmp_path / "rows.csv", held.numpy(), delimiter=",", header=header, comments="")
        with refused(ModelError, wanted="as many tokens as the other sides"):
            compare_models(
                folders.base(),
                tmp_path / "rows.csv",
                words(900),
                cut=Cut(context=CONTEXT),
                loading=Loading(representation="logits"),
            )


def test_conversations_and_texts_are_told_apart() -> None:
    with refused(ArgumentValueError, instead="score='assistant'"):
        compare_models(folders.base(), folders.int8(), [CONVERSATION])
    with refused(ArgumentValueError, instead="score='second-half'"):
        compare_models(folders.base(), folders.int8(), "a text", cut=Cut(score="assistant"))
    with refused(ModelError, instead=r"--context \d+"):
        compare_models(folders.base(), folders.int8(), [CONVERSATION], cut=Cut(score="assistant", context=16))


def test_classes_that_stand_for_no_token_are_one_class() -> None:
    found = compare_models(folders.base(), folders.padded(), words(), cut=Cut(context=CONTEXT))
    candidate = found.candidates[0]
    assert candidate.shared_classes == 500
    assert candidate.comparison.classes >= 500
    windows = torch.from_numpy(windows_by_hand(folders.base(), words(), CONTEXT))
    p, q = (log_softmax(logits_of(folder, windows)) for folder in (folders.base(), folders.padded()))
    scored = slice(CONTEXT // 2, CONTEXT - 1)

    def merged(x: np.ndarray) -> np.ndarray:
        rest = np.exp(x[:, scored, 500:]).sum(-1, keepdims=True)
        return np.concatenate([np.exp(x[:, scored, :500]), rest], -1)

    a, b = merged(p), merged(q)
    assert candidate.comparison.divergences["kl_pq"].mean == pytest.approx(
        (a * np.log(a / b)).sum(-1).mean(), rel=1e-4
    )
    assert any("lower bound" in note for note in candidate.comparison.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("swapped", [False, True])
def test_padding_of_one_side_alone_is_left_out(swapped: bool) -> None:
    folder_p, folder_q = folders.int8(), folders.unpadded()
    if swapped:
        folder_p, folder_q = folder_q, folder_p
    found = compare_models(folder_p, folder_q, words(), cut=Cut(context=CONTEXT))
    candidate = found.candidates[0]
    windows = torch.from_numpy(windows_by_hand(folders.base(), words(), CONTEXT))
    scored = slice(CONTEXT // 2, CONTEXT - 1)
    p, q = (log_softmax(logits_of(folder, windows)[:, scored, :500]) for folder in (folder_p, folder_q))
    for name, a, b in (("kl_pq", p, q), ("kl_qp", q, p)):
        truth = (np.exp(a) * (a - b)).sum(-1).mean()
        assert candidate.comparison.divergences[name].mean == pytest.approx(truth, rel=1e-4)
    assert any("12 classes without a token" in note for note in candidate.comparison.notes)


@pytest.mark.sweep
def test_tokens_in_another_order_are_matched_by_their_bytes() -> None:
    found = compare_models(folders.base(), folders.shuffled(), words(), cut=Cut(context=CONTEXT))
    candidate = found.candidates[0]
    assert candidate.shared_classes == 500
    assert candidate.comparison.divergences["kl_pq"].maximum < 1e-9
    back = compare_models(folders.shuffled(), folders.int8(), words(), cut=Cut(context=CONTEXT))
    same = of_int8()
    # The classes without a token, which random weights give some mass, are one class here: a lower bound.
    assert 0.9 * mean_kl(same) < mean_kl(back) <= mean_kl(same)


def test_other_tokenizers_are_refused_by_their_first_difference() -> None:
    with pytest.raises(ModelError, match=r"the same tokens as .*base's; got '.*' for '.*' at token \d+"):
        compare_models(folders.base(), folders.other_tokenizer(), words(), cut=Cut(context=CONTEXT))


def test_nan_is_named_by_its_position() -> None:
    model, tokenizer = make_model(), make_tokenizer()
    broken = make_model()
    calls = 0
    head = broken.lm_head.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        found = head(x)
        if calls == 3:
            found[:, CONTEXT // 2 + 7, 5] = math.nan  # such a head is applied to whole windows
        return found

    broken.lm_head.forward = forward
    with refused(ModelError, got=rf"NaN for token {CONTEXT // 2 + 8} of window 2 \(row {2 * 23 + 7}\)"):
        compare_models(model, broken, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT))


@pytest.mark.sweep
def test_a_file_of_predictions_stands_for_a_model(tmp_path: Path) -> None:
    windows = torch.from_numpy(windows_by_hand(folders.base(), words(), CONTEXT))
    stored = logits_of(folders.int8(), windows)[:, CONTEXT // 2 : CONTEXT - 1].reshape(-1, 512)
    np.save(tmp_path / "int8.npy", stored.astype("float32"))
    found = compare_models(
        folders.base(),
        tmp_path / "int8.npy",
        words(),
        cut=Cut(context=CONTEXT),
        loading=Loading(representation="logits"),
    )
    same = of_int8()
    assert mean_kl(found) == pytest.approx(mean_kl(same), rel=1e-5)
    np.save(tmp_path / "short.npy", stored[:-1].astype("float32"))
    with refused(FileError, wanted="one for each scored token"):
        compare_models(
            folders.base(),
            tmp_path / "short.npy",
            words(),
            cut=Cut(context=CONTEXT),
            loading=Loading(representation="logits"),
        )
    with open_rows(tmp_path / "int8.npy", representation="logits") as source:
        assert mean_kl(compare_models(folders.base(), source, words(), cut=Cut(context=CONTEXT))) == mean_kl(
            found
        )


@pytest.mark.sweep
def test_the_noise_floor_is_that_of_the_dtype() -> None:
    found = compare_models(
        folders.bf16(), folders.base(), words(), cut=Cut(context=CONTEXT), noise_floor=True
    )
    coarse = found.noise_floor
    fine = compare_models(
        folders.base(), folders.bf16(), words(), cut=Cut(context=CONTEXT), noise_floor=True
    ).noise_floor
    assert coarse is not None
    assert fine is not None
    floors = [each.comparison.divergences["kl_pq"].mean for each in (coarse, fine)]
    # Noise of relative size 2^-7 against 2^-23 in each layer: KL grows with its square.
    assert floors[0] > 1e6 * floors[1] > 0
    # The hooks are gone: the model is itself again.
    assert mean_kl(found) == mean_kl(
        compare_models(folders.bf16(), folders.base(), words(), cut=Cut(context=CONTEXT))
    )


@pytest.mark.sweep
def test_the_noise_floor_of_a_folder_is_measured_on_few_windows() -> None:
    found = compare_models(folders.bf16(), folders.base(), words(), cut=Cut(context=CONTEXT))
    few, windows = found.noise_floor, len(found.text)
    first = compare_models(
        folders.bf16(),
        folders.base(),
        words(),
        cut=Cut(context=CONTEXT, most_windows=-(-windows // 32)),
        noise_floor=True,
    ).noise_floor
    assert few is not None
    assert first is not None
    assert 1 < few.comparison.rows < windows * CONTEXT / 32
    assert few.comparison.divergences == first.comparison.divergences
    rows = f"in the first {few.comparison.rows} tokens scored (--noise-floor takes all)"
    assert rows in " ".join(str(found).split())
    off = compare_models(folders.bf16(), folders.base(), words(), cut=Cut(context=CONTEXT), noise_floor=False)
    assert off.noise_floor is None


class DictLayer(torch.nn.Module):
    """A layer that returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": self.inner(state["x"]).tanh()}


class DictModel(torch.nn.Module):
    """A language model of such layers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.head = torch.nn.Embedding(512, 8), torch.nn.Linear(8, 512)
        self.layers = torch.nn.ModuleList([DictLayer(), DictLayer()])

    def forward(self, input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
        state = {"x": self.embed(input_ids)}
        for layer in self.layers:
            state = layer(state)
        return SimpleNamespace(logits=self.head(state["x"]))


def test_layers_that_return_no_tensor_have_no_noise_floor() -> None:
    models, tokenizer = (DictModel(0), DictModel(1)), make_tokenizer()
    found = compare_models(*models, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT))
    assert found.noise_floor is None
    assert mean_kl(found) > 0
    with refused(ModelError, wanted="layers that return a tensor"):
        compare_models(
            *models, words(), loading=Loading(tokenizer=tokenizer), cut=Cut(context=CONTEXT), noise_floor=True
        )


class _StopError(Exception):
    pass


@pytest.mark.heavy
def test_a_run_that_was_stopped_goes_on_to_the_same_report(tmp_path: Path) -> None:
    state = tmp_path / "state"
    rivals = [folders.int8(), folders.bf16()]

    def stop(done: int, total: int | None) -> None:
        if total is not None and done > total / 2:
            raise _StopError

    whole = as_json(compare_models(folders.base(), rivals, words(), cut=Cut(context=CONTEXT)))
    with pytest.raises(_StopError):
        compare_models(
            folders.base(), rivals, words(), cut=Cut(context=CONTEXT), run=Run(resume=state, progress=stop)
        )
    identity, records = fuzz_states.records_of(state)
    assert len(records) > 3
    fuzz_states.forge(state, identity, records[:-1])  # as one that was killed before the last record
    seen: list[int] = []
    again = compare_models(
        folders.base(),
        rivals,
        words(),
        cut=Cut(context=CONTEXT),
        run=Run(resume=state, progress=lambda done, _: seen.append(done)),
    )
    assert as_json(again) == whole
    assert seen[0] > whole["candidates"][0]["comparison"]["rows"] / 4
    assert not state.exists()


def stopped(candidate: Path, state: Path) -> None:
    """Compare a candidate with the base, and stop after a hundred tokens."""

    def stop(done: int, total: int | None) -> None:
        if done > 100:
            raise _StopError

    run = Run(resume=state, progress=stop)
    with pytest.raises(_StopError):
        compare_models(folders.base(), candidate, words(), cut=Cut(context=CONTEXT), run=run)


def test_a_state_of_another_comparison_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    stopped(folders.int8(), state)
    before = state.read_bytes()
    with refused(FileError, wanted="the same inputs and options"):
        compare_models(
            folders.base(), folders.bf16(), words(), cut=Cut(context=CONTEXT), run=Run(resume=state)
        )
    with refused(FileError, wanted="the same inputs and options"):
        compare_models(
            folders.base(), folders.int8(), words(5000), cut=Cut(context=CONTEXT), run=Run(resume=state)
        )
    assert state.read_bytes() == before
    changed = tmp_path / "changed"
    shutil.copytree(folders.int8(), changed)
    stopped(changed, tmp_path / "of_changed")
    os.utime(changed / "model.safetensors", (1, 1))  # as other weights of the same size
    with refused(FileError, wanted="the same inputs and options"):
        compare_models(
            folders.base(),
            changed,
            words(),
            cut=Cut(context=CONTEXT),
            run=Run(resume=tmp_path / "of_changed"),
        )
    other = tmp_path / "notes.txt"
    other.write_text("my notes\n")
    with refused(FileError, wanted="that an earlier run wrote"):
        compare_models(
            folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT), run=Run(resume=other)
        )
    assert other.read_text() == "my notes\n"


@pytest.mark.sweep
def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    stopped(folders.int8(), state)
    identity, records = fuzz_states.records_of(state)
    text = json.dumps(records[0])
    for damage in ("[1]", "{}", text.replace('"shape": [', '"shape": [9, '), text.replace('"kl"', '"lk"')):
        assert damage != text
        fuzz_states.forge(state, identity, records)
        with closing(sqlite3.connect(state)) as database, database:  # an accident leaves the digest
            database.execute("UPDATE record SET content = ? WHERE number = 0", (damage.encode(),))
        _refused_as_damaged(state)
    fuzz_states.forge(state, identity, records)
    with closing(sqlite3.connect(state)) as database, database:
        database.execute("DELETE FROM record WHERE number = 0")
    _refused_as_damaged(state)


def _refused_as_damaged(state: Path) -> None:
    before = state.read_bytes()
    with pytest.raises(FileError, match="a damaged one"):
        compare_models(
            folders.base(), folders.int8(), words(), cut=Cut(context=CONTEXT), run=Run(resume=state)
        )
    assert state.read_bytes() == before


@pytest.mark.sweep
def test_of_a_short_text_every_token_is_kept() -> None:
    found = compare_models(folders.base(), folders.int8(), words(2500), cut=Cut(context=CONTEXT))
    assert found.whole_text
    tokens = [token.index for passage in found.candidates[0].passages for token in passage.tokens]
    assert tokens == found.text.labels.tolist()
    long = compare_models(folders.base(), folders.int8(), text(), cut=Cut(context=CONTEXT))
    assert not long.whole_text
    means = [passage.kl_mean for passage in long.candidates[0].passages]
    assert means == sorted(means, reverse=True)
    assert len(means) == 8


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        ("nothing", ModelError, "got nothing there"),
        ("folder", ModelError, "without config.json"),
        ("encoder", ModelError, "wanted a causal language model; got BertForMaskedLM"),
        ("no tokenizer", ModelError, "tokenizer.save_pretrained"),
        ("no weights", ModelError, "wanted weights that fit the model"),
        ("number", ArgumentTypeError, "wanted a path, a module"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(
    case: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    model: object = tmp_path / "missing"
    if case == "folder":
        model = tmp_path
    elif case == "encoder":
        config = transformers.BertConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
        model = tmp_path
    elif case == "no tokenizer":
        make_model().save_pretrained(tmp_path)
        model = tmp_path
    elif case == "no weights":
        make_model().config.save_pretrained(tmp_path)
        make_tokenizer().save_pretrained(tmp_path)
        model = tmp_path
    elif case == "number":
        model = 3
    with pytest.raises(error, match=message) as caught:
        compare_models(model, folders.base(), words())
    assert "\n" not in str(caught.value)


def test_too_short_a_text_names_the_remedy() -> None:
    with refused(ModelError, instead=r"--context 128"):
        compare_models(folders.base(), folders.int8(), words(300))
    found = compare_models(folders.base(), folders.int8(), words(300), cut=Cut(context=48))
    assert found.windows >= 1


# Names


def test_candidates_of_one_name_are_numbered() -> None:
    model, tokenizer = make_model(), make_tokenizer()
    others = [make_model(noise=noise) for noise in (0.2, 0.1)]
    found = compare_models(
        model,
        [*others, folders.int8()],
        words(900),
        loading=Loading(tokenizer=tokenizer),
        cut=Cut(context=CONTEXT),
    )
    name = found.base.name
    assert sorted(each.model.name for each in found.candidates) == sorted(
        [f"{name} (2)", f"{name} (3)", str(folders.int8())]
    )
    kl = {each.model.name: each.comparison.divergences["kl_pq"].mean for each in found.candidates}
    assert kl[f"{name} (3)"] < kl[f"{name} (2)"]  # in the order in which they were given
    for each in found.candidates:
        assert found[each.model.name] is each
        assert (each.comparison.p_name, each.comparison.q_name) == (name, each.model.name)
    assert not re.search(rf"{name} is the closest of|{name} has", str(found))


def test_the_same_path_twice_has_two_names() -> None:
    found = compare_models(
        folders.int8(), [folders.int8(), folders.int8()], words(900), cut=Cut(context=CONTEXT)
    )
    name = str(folders.int8())
    assert [each.model.name for each in found.candidates] == [f"{name} (2)", f"{name} (3)"]
    alone = compare_models(folders.int8(), folders.int8(), words(900), cut=Cut(context=CONTEXT))
    assert f"{name} (2) predicts the same as {name}" in " ".join(str(alone).split())


@pytest.mark.sweep
@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_mapping_gives_names(one_at_a_time: bool) -> None:
    base, given = folders.base(), {"eight bits": folders.int8(), "half": folders.bf16()}
    found = compare_models(base, given, words(900), cut=Cut(context=CONTEXT), one_at_a_time=one_at_a_time)
    plain = compare_models(
        base, list(given.values()), words(900), cut=Cut(context=CONTEXT), one_at_a_time=one_at_a_time
    )
    assert found.base.name == plain.base.name == str(base)
    for name, path in given.items():
        assert mean_of(found[name]) == mean_of(plain[str(path)])
        assert (found[name].comparison.p_name, found[name].comparison.q_name) == (str(base), name)
    assert list(found.to_pandas().index) == ["half", "eight bits"]


def mean_of(candidate: Any) -> float:
    return candidate.comparison.divergences["kl_pq"].mean


def test_a_mapping_keeps_its_names_where_the_base_has_one_of_them() -> None:
    base = str(folders.base())
    found = compare_models(base, {base: folders.int8()}, words(900), cut=Cut(context=CONTEXT))
    assert (found.base.name, found.candidates[0].model.name) == (f"{base} (P)", base)
    assert found[base].comparison.p_name == f"{base} (P)"


@pytest.mark.parametrize(("given", "said"), [({}, "got none"), ({1: "a"}, "got 1"), ({" ": "a"}, "got ' '")])
def test_names_that_are_none_are_refused(given: Any, said: str) -> None:
    with refused((ArgumentTypeError, ArgumentValueError), argument="candidates") as caught:
        compare_models(folders.base(), given, words(900))
    assert said in str(caught.value)


@pytest.mark.heavy
def test_windows_that_resemble_their_neighbors_are_taken_in_blocks() -> None:
    rng = np.random.default_rng(0)
    stretches = [
        ("1 2 3 4 5 6 7 8 9 ", "we read the text of it ")[i % 2] * rng.integers(1, 9) for i in range(50)
    ]
    base, candidate = make_model(), make_model()
    tokenizer = make_tokenizer()
    with torch.no_grad():
        digits = tokenizer("1 2 3 4 5 6 7 8 9 ", add_special_tokens=False)["input_ids"]
        candidate.model.embed_tokens.weight[digits] *= 1.5
    options: Any = {"loading": Loading(tokenizer=tokenizer), "cut": Cut(context=8)}
    found, plain = (
        compare_models(
            base, candidate, "".join(stretches), run=Run(bootstrap=20, independent=independent), **options
        )
        for independent in (False, True)
    )
    notes = found.candidates[0].comparison.notes
    [note] = [note for note in notes if "neighboring windows are alike" in note]
    assert "independent=True (--independent)" in note
    assert "cluster" not in note
    assert not any("alike" in note for note in plain.candidates[0].comparison.notes)
    ends = [each.candidates[0].comparison.divergences["kl_pq"].interval for each in (found, plain)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0][1] - ends[0][0] > 1.3 * (ends[1][1] - ends[1][0])
    with refused(ArgumentTypeError, argument="independent"):
        compare_models(base, candidate, "text", run=Run(independent=1), **options)  # pyright: ignore[reportArgumentType]
