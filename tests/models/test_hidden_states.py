"""Hidden states with a head: the numbers of the model itself, on either side, and what is refused."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kullback import Logits, compare_models, compare_predictions
from kullback.errors import ArgumentValueError, FileError, ModelError
from kullback.functional import distillation_loss, linear_distillation_loss
from kullback.models import (
    Cut,
    HiddenStates,
    Loading,
    OutputHead,
    open_head,
    open_model,
    record_reference,
)
from kullback.models.output_head import require_logits
from kullback.models.text import take_texts
from tests.models import folders
from tests.models.hidden import (
    FAMILIES,
    locked,
    make_family,
    parts_of,
    record,
    similar,
    states_of,
    to_float8,
    write,
)
from tests.models.tiny import make_tokenizer, text
from tests.refusals import refused

transformers = pytest.importorskip("transformers")
TEXT, CUT = text()[:3000], Cut(context=48)
PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "from_vllm.md"


@cache
def module(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@cache
def windows() -> Any:
    return CUT.windows(open_model(folders.base()), take_texts("test", TEXT))[0]


@cache
def prompts() -> list[torch.Tensor]:
    return [windows().window(number)[0] for number in range(len(windows()))]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hidden states of the base and of its int8 version."""
    root = tmp_path_factory.mktemp("served")
    return {
        name: record(module(folder), prompts(), root / f"{name}.hidden")
        for name, folder in (("base", folders.base()), ("int8", folders.int8()))
    }


def compared(base: object, candidate: object, texts: str | None = None, **options: Any) -> Any:
    settings = {"cut": CUT, "noise_floor": False} | options
    return compare_models(base, candidate, texts, **settings).candidates[0].comparison


@cache
def direct() -> Any:
    return compared(folders.base(), folders.int8(), TEXT)


def numbers(comparison: Any) -> dict[str, float]:
    means = {name: x.mean for name, x in comparison.divergences.items()}
    return means | {
        "perplexity_p": comparison.labels.perplexity_p.mean,
        "perplexity_q": comparison.labels.perplexity_q.mean,
        "error": comparison.divergences["kl_pq"].standard_error,
    }


# ---- The same numbers


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_gives_the_logits_and_the_divergence_of_the_model_itself(
    name: str, tmp_path: Path
) -> None:
    model, other = (make_family(name, seed=seed) for seed in (0, 1))
    for seed, each in enumerate((model, other)):
        each.save_pretrained(tmp_path / f"model{seed}")
        make_tokenizer().save_pretrained(tmp_path / f"model{seed}")
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(2, 500, (length,), generator=generator) for length in (24, 9, 17)]
    last = len(parts_of(model)[0])
    streams, logits = [], []
    for seed, (each, ids) in enumerate(((model, [last]), (other, [last, 0]))):
        folder = record(each, tokens, tmp_path / f"hidden{seed}", ids)
        streams.append(HiddenStates(folder, tmp_path / f"model{seed}", cut=Cut(score="all"), check=True))
        with torch.no_grad():
            rows = [each(input_ids=x[None], use_cache=False).logits[0, :-1] for x in tokens]
        logits.append(torch.cat(rows))
        made = torch.cat(list(streams[-1].blocks(rows=7)))
        torch.testing.assert_close(made, logits[-1], rtol=1e-6, atol=1e-6)
        note = streams[-1].caveats()[0]
        assert "checked against the model" in note
        assert note.endswith("another model that differs by less than 5 % would not be noticed")
    exact = compare_predictions(*map(Logits, logits)).divergences["kl_pq"]
    kl = compare_predictions(*streams).divergences["kl_pq"]
    assert kl.mean == pytest.approx(exact.mean, rel=1e-6)
    assert kl.maximum == pytest.approx(exact.maximum, rel=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("sides", "texts"),
    [
        ("model, hidden", TEXT),
        ("hidden, model", TEXT),
        ("model, hidden", None),
        ("hidden, model", None),
        ("hidden, hidden", None),
    ],
    ids=["candidate", "base", "candidate without text", "base without text", "both"],
)
def test_a_comparison_has_the_numbers_of_the_models(
    sides: str, texts: str | None, served: dict[str, Path]
) -> None:
    kinds = sides.split(", ")
    opened = [
        HiddenStates(served[name], folder) if kind == "hidden" else folder
        for kind, (name, folder) in zip(
            kinds, {"base": folders.base(), "int8": folders.int8()}.items(), strict=True
        )
    ]
    assert numbers(compared(*opened, texts)) == pytest.approx(numbers(direct()), rel=1e-6)


def test_a_reference_of_hidden_states_is_that_of_the_model(served: dict[str, Path], tmp_path: Path) -> None:
    record_reference(folders.base(), TEXT, tmp_path / "model.klref", cut=CUT)
    record_reference(HiddenStates(served["base"], folders.base()), None, tmp_path / "hidden.klref")
    model, hidden = (
        compared(tmp_path / f"{name}.klref", HiddenStates(served["int8"], folders.int8()))
        for name in ("model", "hidden")
    )
    assert numbers(hidden) == pytest.approx(numbers(model), rel=1e-6)


def test_files_in_any_order_are_found_by_their_tokens(served: dict[str, Path], tmp_path: Path) -> None:
    for place, path in enumerate(sorted(served["int8"].glob("*.safetensors"))):
        name = f"cmpl-{(place * 7919) % 1009:04}-0-1f2e.safetensors"
        (tmp_path / name).write_bytes(path.read_bytes())
    further = torch.arange(2, 40)
    write(tmp_path / "other.safetensors", further, states_of(module(folders.int8()), further, [2]))
    served_anyhow = HiddenStates(tmp_path, folders.int8())
    base = HiddenStates(served["base"], folders.base())
    rows = compare_predictions(base, served_anyhow, labels=torch.full((base.rows or 0,), -100))
    assert rows.divergences["kl_pq"].mean == pytest.approx(direct().divergences["kl_pq"].mean, rel=1e-6)
    assert numbers(compared(folders.base(), served_anyhow, TEXT)) == pytest.approx(
        numbers(direct()), rel=1e-6
    )


def test_files_with_numbers_are_in_their_order(tmp_path: Path) -> None:
    head = OutputHead("head", torch.nn.Identity(), torch.eye(50, 4))
    for number in (10, 9, 2):
        write(tmp_path / f"hs_{number}.safetensors", torch.full((4,), number), torch.zeros(4, 1, 4))
    stream = HiddenStates(tmp_path, head, cut=Cut(score="all"), check=False)
    assert stream.windows is not None
    assert stream.windows.labels.tolist() == [2] * 3 + [9] * 3 + [10] * 3


def test_blocks_begin_at_any_row(served: dict[str, Path]) -> None:
    stream = HiddenStates(served["base"], folders.base(), cut=CUT, check=False)
    rows = torch.cat(list(stream.blocks(rows=1000)))
    for first in (0, 1, 22, 23, 24, 50, stream.rows or 0):
        blocks = list(stream.blocks(rows=10, first=first))
        assert all(len(block) <= 10 for block in blocks)
        assert sum(map(len, blocks)) == len(rows) - first
        if blocks:
            torch.testing.assert_close(torch.cat(blocks), rows[first:], rtol=1e-6, atol=1e-6)


class StoppedError(Exception):
    pass


def test_a_stopped_run_goes_on_to_the_same_numbers(served: dict[str, Path], tmp_path: Path) -> None:
    def sides() -> tuple[HiddenStates, HiddenStates]:
        return HiddenStates(served["base"], folders.base(), check=False), HiddenStates(
            served["int8"], folders.int8()
        )

    def stop(done: int, _total: int | None) -> None:
        if done >= 300:
            raise StoppedError

    options: dict[str, Any] = {"block_bytes": 2**16, "bootstrap": 50}
    whole = compare_predictions(*sides(), **options)
    with pytest.raises(StoppedError):
        compare_predictions(*sides(), **options, resume=tmp_path / "state", progress=stop)
    counts: list[int] = []
    again = compare_predictions(
        *sides(), **options, resume=tmp_path / "state", progress=lambda done, _: counts.append(done)
    )
    assert counts[0] >= 250
    assert again.to_json() == whole.to_json()


def test_a_run_of_other_hidden_states_is_not_continued(served: dict[str, Path]) -> None:
    sides = [HiddenStates(served[name], folders.base(), check=False) for name in ("base", "int8")]
    same = HiddenStates(served["base"], folders.base(), check=False)
    assert sides[0].identity() == same.identity()
    assert sides[0].identity() != sides[1].identity()
    assert HiddenStates(served["base"], folders.int8()).identity() != same.identity()
    heads = [OutputHead("head", torch.nn.Identity(), scale * torch.ones(512, 64)) for scale in (1, 2)]
    one, other = (HiddenStates(served["base"], head, check=False).identity() for head in heads)
    assert one != other


def test_a_model_in_half_precision_gives_its_own_numbers(tmp_path: Path) -> None:
    model = module(folders.bf16())
    assert model.dtype is torch.bfloat16
    folder = record(model, prompts()[:4], tmp_path / "bf16.hidden")
    stream = HiddenStates(folder, folders.bf16(), check=True)
    exact = HiddenStates(folder, folders.bf16(), loading=Loading(dtype="float32"), check=True)
    tokens, scored = stream.windows.window(0)  # type: ignore[union-attr]
    with torch.no_grad():
        wanted = model(input_ids=tokens[None]).logits[0][scored.nonzero().squeeze(-1) - 1].float()
    assert stream.caveats()[-1] == "the files store bfloat16, the dtype of the model, so they add no rounding"
    assert "whose rounding adds about" in exact.caveats()[-1]
    rounded, whole = (next(x.blocks(rows=len(wanted))) for x in (stream, exact))
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=0)
    assert 0 < float((whole - wanted).abs().max()) < 0.05


# ---- What the storage hides


@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_the_report_says_what_the_rounding_of_the_files_hides(dtype: str, tmp_path: Path) -> None:
    """The expected KL is measured by rounding the states of the model, which the stream does not know."""
    model, head = module(folders.base()), open_head(folders.base())
    changes: list[torch.Tensor] = []
    for number, tokens in enumerate(prompts()[:6]):
        states = states_of(model, tokens, [2])
        rounded = to_float8(states) if dtype == "float8" else {"states": states.bfloat16()}
        write(tmp_path / f"{number}.safetensors", tokens, **rounded)
        stored = rounded["states"].float() * rounded.get("hidden_states_scales", torch.ones(1))
        p, q = (head.logits(x[:, -1]).double().log_softmax(-1) for x in (states, stored))
        changes.append((p.exp() * (p - q)).sum(-1))
    expected = float(torch.cat(changes).mean())
    stream = HiddenStates(tmp_path, head, check=False)
    [note] = stream.caveats()
    said = float(note.split("about ")[1].split(" nats")[0])
    assert f"the files store {'float8_e4m3fn' if dtype == 'float8' else dtype}" in note
    assert said == pytest.approx(expected, rel=0.15)
    [on_page] = re.findall(rf"([\d.e-]+) nats for {dtype}", PAGE.read_text(encoding="utf-8"))
    assert said == pytest.approx(float(on_page), rel=0.05)
    comparison = compared(folders.base(), stream)
    assert any(note in sentence for sentence in comparison.notes)
    assert comparison.divergences["kl_pq"].mean == pytest.approx(expected, rel=0.15)


def test_float32_files_hide_nothing(served: dict[str, Path]) -> None:
    assert HiddenStates(served["base"], folders.base(), check=False).caveats() == []


# ---- The head


def test_a_head_that_is_quantized_without_its_inputs_has_its_effective_weight(tmp_path: Path) -> None:
    states = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    weight = load_file(folders.base() / "model.safetensors")["lm_head.weight"]
    rows = weight.abs().amax(1, keepdim=True)
    int8 = (weight / rows * 127).round().to(torch.int8)
    float8 = (weight / rows * 448).to(torch.float8_e4m3fn)
    groups = (weight.view(512, 2, 32).abs().amax(2) / 127).repeat_interleave(32, 1)
    cases = {
        "rows": (int8, {"weight_scale": rows / 127}, int8.float() * rows / 127),
        "float8": (float8, {"weight_scale": (rows / 448).squeeze(1)}, float8.float() * rows / 448),
        "one": (int8, {"weight_scale": torch.tensor([0.01])}, int8.float() * 0.01),
        "groups": (
            (weight / groups).round().to(torch.int8),
            {"weight_scale": groups[:, ::32].contiguous()},
            (weight / groups).round() * groups,
        ),
    }
    for name, (stored, scales, effective) in cases.items():
        folder = _with_head(tmp_path / name, {"weight": stored, **scales})
        head = open_head(folder)
        torch.testing.assert_close(head.weight, effective, rtol=1e-6, atol=1e-7)
        wanted = torch.nn.functional.linear(head.norm(states), effective)
        torch.testing.assert_close(head.logits(states), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "plan", "got"),
    [
        ({"weight_packed": torch.zeros(512, 8, dtype=torch.int32)}, None, "weight_packed"),
        ({"weight": torch.zeros(512, 64, dtype=torch.int8)}, None, "with weight$"),
        ({"weight": torch.zeros(512, 64), "lora_A": torch.zeros(4, 64)}, None, "lora_A"),
        (
            {"weight": torch.zeros(512, 64, dtype=torch.int8), "weight_scale": torch.ones(512, 1)},
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"input_activations": {"num_bits": 8}}},
            },
            "inputs are quantized",
        ),
        (
            {"weight": torch.zeros(512, 64, dtype=torch.int8), "weight_scale": torch.ones(7, 1)},
            None,
            r"shape \(7, 1\)",
        ),
        ({"weight": torch.zeros(500, 64)}, None, "with weight$"),
    ],
    ids=["packed", "no scales", "lora", "inputs", "odd blocks", "vocabulary"],
)
def test_other_quantized_heads_are_refused(
    tensors: dict[str, torch.Tensor], plan: dict[str, Any] | None, got: str, tmp_path: Path
) -> None:
    folder = _with_head(tmp_path / "model", tensors, plan)
    with refused(ModelError, argument="head", got=got, instead="before its quantization"):
        open_head(folder)
    assert open_head(folders.base()).classes == 512  # the folder before its quantization, as the error says


def _with_head(folder: Path, tensors: dict[str, torch.Tensor], plan: dict[str, Any] | None = None) -> Path:
    """The base with other tensors as its head, and a quantization in its configuration."""
    folder.mkdir()
    weights = load_file(folders.base() / "model.safetensors")
    del weights["lm_head.weight"]
    named = {f"lm_head.{name}": tensor for name, tensor in tensors.items()}
    save_file(weights | named, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folders.base() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": plan} if plan else {})))
    return folder


def test_a_quantized_model_whose_head_is_plain_is_served(tmp_path: Path) -> None:
    weight = load_file(folders.base() / "model.safetensors")["lm_head.weight"]
    groups = {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}
    }
    plans: list[dict[str, Any]] = [
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]},
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
        {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    ]
    for plan in plans:
        head = open_head(_with_head(tmp_path / plan["quant_method"], {"weight": weight}, plan))
        torch.testing.assert_close(head.weight, weight, rtol=0, atol=0)


def test_weights_in_several_files_and_under_other_prefixes_are_found(tmp_path: Path) -> None:
    weights = load_file(folders.base() / "model.safetensors")
    (tmp_path / "config.json").write_text((folders.base() / "config.json").read_text())
    renamed = {f"language_model.{name}": x for name, x in weights.items()}
    head = {name: x for name, x in renamed.items() if "lm_head" in name}
    rest = {name: x for name, x in renamed.items() if name not in head}
    save_file(head, tmp_path / "model-00001-of-00002.safetensors")
    save_file(rest, tmp_path / "model-00002-of-00002.safetensors")
    index = {name: f"model-0000{1 if name in head else 2}-of-00002.safetensors" for name in renamed}
    wanted = open_head(folders.base())
    for has_index in (False, True):
        if has_index:
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        opened = open_head(tmp_path)
        torch.testing.assert_close(opened.weight, wanted.weight, rtol=0, atol=0)
        torch.testing.assert_close(opened.norm.weight, wanted.norm.weight, rtol=0, atol=0)


def test_folders_without_a_head_are_refused(tmp_path: Path) -> None:
    cases: dict[str, tuple[dict[str, str], str, str]] = {
        "empty": ({}, "none there", "the folder of the model"),
        "adapter": ({"adapter_config.json": "{}"}, "an adapter of PEFT", "merge_and_unload"),
        "configuration": (
            {"config.json": (folders.base() / "config.json").read_text()},
            "none",
            "save_pretrained",
        ),
    }
    for name, (files, got, instead) in cases.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_text(content)
        with refused(ModelError, argument="head", got=got, instead=instead):
            open_head(tmp_path / name)
    weights = load_file(folders.base() / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "configuration" / "model.safetensors")
    with refused(ModelError, wanted="the weight model.norm.weight", got="none"):
        open_head(tmp_path / "configuration")


def test_a_model_that_makes_its_logits_in_another_way_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_family("granite").save_pretrained(tmp_path)
    from kullback.models import output_head

    assert open_head(tmp_path).logit_scale == 1 / 8
    unscaled = output_head.head_configuration(None)
    monkeypatch.setattr(output_head, "head_configuration", lambda _config: unscaled)
    with refused(
        ModelError, got="other logits than by logit_scale=1 and softcap=None", instead="the model itself"
    ):
        open_head(tmp_path)


@pytest.mark.parametrize("masked", [-math.inf, -3e38])
def test_a_model_that_masks_classes_is_refused(masked: float) -> None:
    """An infinite logit of the model must not make every difference look small."""
    head = OutputHead("masking", torch.nn.Identity(), torch.eye(6, 4))
    made = head.logits(torch.ones(1, 4))
    require_logits(head, made, made.clone(), "its own")
    with refused(ModelError, got="other logits than by its own"):
        require_logits(head, made, made.index_fill(-1, torch.tensor(5), masked), "its own")


def test_a_model_with_a_part_between_its_norm_and_its_head_is_refused(
    served: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head alone cannot know of such a part in the body; the open model shows it."""
    forward = transformers.LlamaModel.forward

    def changed(*arguments: Any, **options: Any) -> Any:
        output = forward(*arguments, **options)
        output["last_hidden_state"] = 1.1 * output["last_hidden_state"]
        return output

    monkeypatch.setattr(transformers.LlamaModel, "forward", changed)
    stream = HiddenStates(served["base"], folders.base())
    with refused(
        ModelError, got="other logits than by its norm and its head alone", instead="the model itself"
    ):
        stream.caveats()


def test_a_stored_teacher_has_the_loss_of_its_logits(served: dict[str, Path]) -> None:
    head, generator = open_head(folders.base()), torch.Generator().manual_seed(0)
    stored = load_file(served["base"] / "0.safetensors")["hidden_states"][:, -1]
    student, weight = (torch.randn(*shape, generator=generator) for shape in ((48, 16), (512, 16)))
    loss = linear_distillation_loss(
        student=student,
        student_weight=weight,
        teacher=head.normed(stored),
        teacher_weight=head.weight,
        teacher_bias=head.bias,
        softcap=(None, head.softcap),
        logit_scale=(None, head.logit_scale),
    )
    with torch.no_grad():
        teacher = module(folders.base())(input_ids=prompts()[0][None]).logits[0]
    torch.testing.assert_close(
        loss, distillation_loss(student=student @ weight.T, teacher=teacher), rtol=1e-5, atol=0
    )


# ---- Refusals


def _refuse(folder: Path, *, head: Any = None, **parts: str) -> None:
    with refused(FileError, **parts):  # type: ignore[arg-type]
        next(HiddenStates(folder, head or folders.base(), cut=Cut(score="all")).blocks(rows=10))


def test_the_layer_and_the_norm_are_checked_against_the_model(tmp_path: Path) -> None:
    model, tokens = module(folders.base()), prompts()[0]
    last = states_of(model, tokens, [2])
    wrong = {
        "layer": (states_of(model, tokens, [0, 1]), r"the input of block 1 \(id 1\)"),
        "embeddings": (states_of(model, tokens, [0]), r"the input of block 0 \(id 0\)"),
        "norm": (parts_of(model)[1](last).detach(), "the states after the final norm"),
        "scale": (last / 8, "its states times 0.125, a wrong scale"),
    }
    for name, (states, got) in wrong.items():
        write(tmp_path / name / "0.safetensors", tokens, states)
        _refuse(tmp_path / name, wanted="before the norm", got=got, instead="record id 2 in eagle_aux")
    for places, got in ((1, "the states of the tokens before"), (-1, "the states of the tokens after")):
        path = tmp_path / f"shifted by {places}" / "0.safetensors"
        write(path, tokens, last.roll(places, 0))
        _refuse(path.parent, wanted="before the norm", got=got, instead="row i the state of token i")
    unrelated = torch.randn(last.shape, generator=torch.Generator().manual_seed(0)) * last.std()
    write(tmp_path / "unrelated" / "0.safetensors", tokens, unrelated)
    _refuse(
        tmp_path / "unrelated", got=r"differ from it by 1\d\d %, more than zeros do", instead="check=False"
    )
    HiddenStates(tmp_path / "unrelated", folders.base(), check=False).caveats()
    write(tmp_path / "right" / "0.safetensors", tokens, last)
    stream = HiddenStates(tmp_path / "right", folders.base())
    assert "differ by 0 %" in stream.caveats()[0]
    near = HiddenStates(tmp_path / "right", folders.int8()).caveats()[0]
    assert 0.1 < float(near.split("differ by ")[1].split(" %")[0]) < 10


def _differences(folder: Path, stored: Any) -> dict[str, float]:
    """The median relative distance of the first 32 states in each file from another model's."""
    shares: dict[str, float] = {}
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        own = states_of(stored, tensors["token_ids"], [2])[:32, -1]
        lengths = (tensors["hidden_states"][:32, -1] - own).norm(dim=-1) / own.norm(dim=-1)
        shares[path.name] = float(lengths.median())
    return shares


@pytest.mark.parametrize("own_first", [True, False], ids=["own first", "others first"])
def test_a_folder_of_two_recordings_is_refused_with_the_names_of_the_other_files(
    own_first: bool, tmp_path: Path
) -> None:
    own = module(folders.base())
    makers = [own] * 6 + [similar(own, 0.08)] * 6
    tokens = prompts()[:12]
    for number, (maker, each) in enumerate(zip(makers if own_first else makers[::-1], tokens, strict=True)):
        write(tmp_path / f"{number}.safetensors", each, states_of(maker, each, [2]))
    differences = _differences(tmp_path, own)
    others = {name for name, share in differences.items() if share > 0.05}
    assert len(others) == 6
    with refused(
        FileError, wanted="files of one recording", got="whose states differ", instead="a folder of their own"
    ) as caught:
        HiddenStates(tmp_path, folders.base()).caveats()
    named = re.findall(r"(\d+\.safetensors) by ([\d.]+) %", str(caught.value).split("and those of ")[1])
    assert len(named) >= 3
    assert {name for name, _ in named} <= others
    assert all(float(share) == pytest.approx(100 * differences[name], rel=0.3) for name, share in named)
    for name in others:  # in a folder of their own, as the error says
        (tmp_path / name).unlink()
    assert "differ by 0 %" in HiddenStates(tmp_path, folders.base()).caveats()[0]


def test_the_largest_difference_of_the_checked_files_is_stated(tmp_path: Path) -> None:
    own = module(folders.base())
    for number, each in enumerate(prompts()[:9]):
        maker = own if number < 8 else module(folders.int8())
        write(tmp_path / f"{number}.safetensors", each, states_of(maker, each, [2]))
    share = 100 * max(_differences(tmp_path, own).values())
    [note] = HiddenStates(tmp_path, folders.base()).caveats()
    assert (
        "first of each of 9 files, together 304 tokens" in note
    )  # 48 of the first file, and 32 of the others
    assert float(note.split("differ by ")[1].split(" %")[0]) == pytest.approx(share, rel=0.05)


def test_a_similar_model_in_place_of_the_head_is_a_warning(tmp_path: Path) -> None:
    own = module(folders.base())
    folder = record(similar(own, 0.08), prompts()[:6], tmp_path / "similar")
    share = 100 * max(_differences(folder, own).values())
    _, note = HiddenStates(folder, folders.base()).caveats()
    assert note.startswith("warning: the hidden states differ from the states of ")
    assert 5 < share < 100
    assert float(note.split(" by ")[1].split(" %")[0]) == pytest.approx(share, rel=0.3)
    for dtype in ("bfloat16", "float8"):  # rounding alone gives no warning
        for number, each in enumerate(prompts()[:6]):
            states = states_of(own, each, [2])
            rounded = to_float8(states) if dtype == "float8" else {"states": states.bfloat16()}
            write(tmp_path / dtype / f"{number}.safetensors", each, **rounded)
        notes = HiddenStates(tmp_path / dtype, folders.base()).caveats()
        assert len(notes) == 2
        assert not any("warning" in each for each in notes)


def _predictable(
    tokens: torch.Tensor, width: int = 64, classes: int = 512
) -> tuple[torch.Tensor, OutputHead]:
    """States that predict the next token well through a norm and a head without a model."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(classes, width, generator=generator)
    norm = torch.nn.RMSNorm(width)
    with torch.no_grad():
        norm.weight.copy_((1.5 * torch.randn(width, generator=generator)).exp())
    noisy = weight[tokens.roll(-1)] + 0.5 * torch.randn(len(tokens), width, generator=generator)
    states = noisy / norm.weight.detach()
    return 20 * states[:, None], OutputHead("nowhere", norm, weight, layers=7)


def test_without_the_model_the_likelihood_of_the_text_is_checked(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(512, (64,), generator=generator)
    states, head = _predictable(tokens)
    noise = 20 * torch.randn(64, 1, 64, generator=generator)
    write(tmp_path / "right" / "0.safetensors", tokens, torch.cat([noise, states], 1))
    [note] = HiddenStates(tmp_path / "right", head).caveats()
    assert "does not contradict them" in note
    said = float(note.split("likelihood, ")[1].split(" nats")[0])
    assert said < 3
    log_probs = head.logits(states[:-1, -1]).log_softmax(-1)
    assert said == pytest.approx(-float(log_probs.gather(1, tokens[1:, None]).mean()), rel=0.01)
    wrong = {
        "layer": (torch.cat([states, noise], 1), "as layer 1 of 2, which predicts the text better"),
        "norm": (head.norm(states).detach(), "as states after the final norm"),
        "nothing": (noise, "worse than equal probabilities"),
        "shifted": (states.roll(1, 0), "worse than equal probabilities"),
    }
    for name, (stored, got) in wrong.items():
        write(tmp_path / name / "0.safetensors", tokens, stored)
        _refuse(tmp_path / name, head=head, got=got, instead="id 7|id num_hidden_layers")
    write(tmp_path / "short" / "0.safetensors", tokens[:10], states[:10])
    assert "could not be checked on 9 tokens" in HiddenStates(tmp_path / "short", head).caveats()[0]
    assert HiddenStates(tmp_path / "nothing", head, check=False).caveats() == []


def test_a_model_that_cannot_be_opened_is_not_needed(tmp_path: Path, served: dict[str, Path]) -> None:
    """Of the model, the norm and the head are there, and no other weight."""
    weights = load_file(folders.base() / "model.safetensors")
    kept = {name: x for name, x in weights.items() if name in ("lm_head.weight", "model.norm.weight")}
    (tmp_path / "config.json").write_text((folders.base() / "config.json").read_text())
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    stream = HiddenStates(served["base"], tmp_path, cut=CUT, check=False)
    wanted = HiddenStates(served["base"], folders.base(), cut=CUT)
    torch.testing.assert_close(next(stream.blocks(rows=99)), next(wanted.blocks(rows=99)), rtol=0, atol=0)
    with refused(ModelError, wanted="tokenizer"):
        HiddenStates(served["base"], tmp_path, check=True).caveats()


def test_damaged_and_mixed_files_are_refused(tmp_path: Path) -> None:
    head = OutputHead("head", torch.nn.Identity(), torch.eye(50, 4))
    tokens, states = torch.arange(6), torch.zeros(6, 1, 4)
    scales = {"hidden_states_scales": torch.ones(6, 1, 1)}

    def two(name: str, tokens: torch.Tensor, states: torch.Tensor, **others: torch.Tensor) -> Path:
        write(tmp_path / name / "0.safetensors", torch.arange(6), torch.zeros(6, 1, 4))
        return write(tmp_path / name / "1.safetensors", tokens, states, **others)

    cut = two("cut", tokens, states)
    cut.write_bytes(cut.read_bytes()[:-7])
    save_file({"x": states}, two("names", tokens, states))
    two("layers", tokens, torch.zeros(6, 2, 4))
    two("dtypes", tokens, states.bfloat16())
    two("width", tokens, torch.zeros(6, 1, 5))
    two("prefix", torch.arange(9), states)
    two("further", torch.arange(4), states)
    two("numbers", tokens.float(), states)
    two("shape", tokens, torch.zeros(6, 4))
    two("float8", tokens, states.to(torch.float8_e4m3fn))
    two("scales", tokens, states.to(torch.float8_e4m3fn), hidden_states_scales=torch.ones(6))
    two("scaled", tokens, states, **scales)
    two("classes", torch.arange(45, 51), states)
    two("integers", tokens, torch.zeros(6, 1, 4, dtype=torch.int32))
    (tmp_path / "empty").mkdir()
    write(tmp_path / "one" / "0.safetensors", tokens[:1], states[:1])
    wanted = {
        "cut": ("", "truncated or damaged"),
        "names": ("tensors hidden_states and token_ids", "keep other files out"),
        "layers": ("as many layers", "a folder of their own"),
        "dtypes": ("the same dtype", "a folder of their own"),
        "width": ("width 4, as the head", "--head"),
        "prefix": ("each of 9 tokens", "enable_prefix_caching=False"),
        "further": ("each of 4 tokens", "only the hidden states of the tokens"),
        "numbers": ("a tensor of I8", "convert it to I64 first"),
        "shape": (r"shape \(tokens, layers, width\)", "ExampleHiddenStatesConnector"),
        "float8": ("float8 with hidden_states_scales", "bfloat16"),
        "scales": ("float8 with hidden_states_scales", "bfloat16"),
        "scaled": ("without them", "bfloat16"),
        "classes": ("from 0 to 49", "--head"),
        "integers": ("a tensor of F16", "BF16 or F32"),
        "empty": ("as .safetensors", "shared_storage_path"),
        "missing": ("as .safetensors", "shared_storage_path"),
        "one": ("a prompt with a scored token", "longer prompts"),
    }
    for name, (what, instead) in wanted.items():
        with refused(FileError, wanted=what, instead=instead) as caught:
            HiddenStates(tmp_path / name, head, check=False)
        assert "\n" not in str(caught.value), name
        assert name in str(caught.value)
    for name in ("layers", "dtypes"):  # in a folder of their own, as the error says
        (tmp_path / name / "0.safetensors").unlink()
        assert HiddenStates(tmp_path / name, head, check=False).rows == 2


def test_a_file_that_is_being_written_is_refused(tmp_path: Path) -> None:
    head = OutputHead("head", torch.nn.Identity(), torch.eye(50, 4))
    path = write(tmp_path / "0.safetensors", torch.arange(6), torch.zeros(6, 1, 4))
    with locked(path), refused(FileError, got=r"0.safetensors.lock is held", instead="wait"):
        HiddenStates(tmp_path, head, check=False)
    assert HiddenStates(tmp_path, head, check=False).rows == 2  # after the wait
    Path(f"{path}.lock").unlink()
    assert HiddenStates(tmp_path, head, check=False).rows == 2


def test_other_tokens_are_refused_with_the_first_difference(served: dict[str, Path], tmp_path: Path) -> None:
    changed = [x.clone() for x in prompts()]
    changed[3][17] = (changed[3][17] + 1) % 500
    folder = record(module(folders.int8()), changed, tmp_path / "changed")
    was, now = int(prompts()[3][17]), int(changed[3][17])
    for base, texts in ((folders.base(), TEXT), (HiddenStates(served["base"], folders.base()), None)):
        got = f"at index 17, the nearest file 3.safetensors has token {now} for token {was}"
        with refused(FileError, wanted="window 3 of the other side", got=got, instead="leave the text out"):
            compared(base, HiddenStates(folder, folders.int8(), check=False), texts)
    compared(folders.base(), HiddenStates(folder, folders.int8(), check=False), None)  # without the text
    shorter = record(module(folders.int8()), [prompts()[0][:40]], tmp_path / "shorter")
    with refused(FileError, got=r"at index 40, .* has the end for token"):
        compared(folders.base(), HiddenStates(shorter, folders.int8(), check=False), TEXT)


def test_the_tokenizers_have_to_agree(served: dict[str, Path]) -> None:
    with refused(ModelError, wanted="the tokenizer", got="fingerprint"):
        compared(folders.shuffled(), HiddenStates(served["int8"], folders.int8(), check=False))


def test_a_text_needs_a_side_that_reads_it(served: dict[str, Path]) -> None:
    sides = [HiddenStates(served[name], folders.base(), check=False) for name in ("base", "int8")]
    with refused(ArgumentValueError, argument="texts", instead="^texts=None$"):
        compared(*sides, TEXT)
    compared(*sides)


@pytest.mark.sweep
def test_without_a_model_the_tokens_of_the_head_show_words_and_groups(served: dict[str, Path]) -> None:
    def sides(*, of_files: bool) -> list[Any]:
        named = {"base": folders.base(), "int8": folders.int8()}
        return [HiddenStates(served[name], folder) if of_files else folder for name, folder in named.items()]

    settings: dict[str, Any] = {"noise_floor": False, "cut": Cut(context=48, groups="re:[aeiou]+")}
    models = compare_models(*sides(of_files=False), TEXT, **settings)
    files = compare_models(*sides(of_files=True), None, **settings)
    assert files.tokens == models.tokens
    wanted, got = (each.candidates[0].comparison.groups for each in (models, files))
    assert got.keys() == wanted.keys() == {"match", "rest"}
    for name, group in got.items():
        assert group.rows == wanted[name].rows
        assert group.divergences["kl_pq"].mean == pytest.approx(
            wanted[name].divergences["kl_pq"].mean, rel=1e-6
        )
    for rule in ("role", "source"):  # these need the text, which a model reads
        with refused(ArgumentValueError, argument="groups", got="files alone", instead="groups=None"):
            compared(*sides(of_files=True), cut=Cut(groups=rule))


def test_replies_cannot_be_scored_and_folders_need_a_head(served: dict[str, Path]) -> None:
    with refused(ArgumentValueError, call="Cut", argument="score", instead="^score='all'$"):
        HiddenStates(served["base"], folders.base(), cut=Cut(score="assistant"))
    with refused(ModelError, got="safetensors files alone", instead=r"HiddenStates\(.* \(--head MODEL\)"):
        compared(folders.base(), str(served["int8"]))


def test_infinite_states_are_refused(tmp_path: Path) -> None:
    head = OutputHead("head", torch.nn.Identity(), torch.eye(50, 4))
    states = torch.ones(6, 1, 4)
    states[4, 0, 1] = math.nan
    write(tmp_path / "0.safetensors", torch.arange(6), states)
    stream = HiddenStates(tmp_path, head, cut=Cut(score="all"), check=False)
    with refused(FileError, wanted="without NaN", got="nan at row 4"):
        compare_predictions(stream, Logits(torch.zeros(5, 50)))
