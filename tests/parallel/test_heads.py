"""`linear_distillation_loss` with the heads' classes sharded: value and all gradients are those of whole heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kullback import Alpha, ChiSquared, JensenShannon, Renyi
from kullback.functional import SampledTail, TopK, linear_distillation_loss
from tests.parallel.losses import chunked, even, late, ragged
from tests.parallel.world import SIZES, Rank

MASK = torch.tensor([True, True, False, True, False, True, True])


def tensors(classes: tuple[int, int] = (11, 11), dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    made: dict[str, Tensor] = {}
    for side, size, number in zip(("student", "teacher"), (5, 3), classes, strict=True):
        shapes = {"": (7, size), "_weight": (number, size), "_bias": (number,)}
        for name, shape in shapes.items():
            made[side + name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return made


LOG_PROBS, INDICES = tensors()["teacher_weight"].T.repeat(3, 1)[:7].log_softmax(-1).topk(4)
LABELS = torch.tensor([10, 0, -100, 5, 3, -100, 7])
LABELED: dict[str, Any] = {"labels": LABELS, "label_weight": 0.3}


def stored(classes: int = 11, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The student's tensors, and the log-probabilities of a teacher's top classes."""
    made = {name: x for name, x in tensors((classes, 11), dtype).items() if name.startswith("student")}
    return {**made, "teacher": LOG_PROBS.to(dtype)}


def student_of() -> dict[str, Tensor]:
    return {name: x for name, x in tensors().items() if name.startswith("student")}


def drawn() -> dict[str, Any]:
    logits = torch.randn(7, 11, generator=torch.Generator().manual_seed(5))
    teacher = SampledTail.draw(logits, k=3, draws=4, generator=torch.Generator().manual_seed(1))
    return {"teacher": teacher}


class Head:
    """One call, with heads whole or sharded."""

    def __init__(
        self,
        made: dict[str, Tensor] | None = None,
        cut: Any = even,
        teacher_cut: Any = None,
        frozen: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self.made, self.options, self.frozen = made or tensors(), options, frozen
        self.cuts = {"student": cut, "teacher": teacher_cut or cut}

    def whole(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        made = {name: x.to(dtype or x.dtype) for name, x in self.made.items()}
        return self._run({name: x.clone() for name, x in made.items()}, {})

    def sharded(self, place: Rank) -> dict[str, Tensor]:
        parts = {name: x.clone() for name, x in self.made.items()}
        for side, cut in self.cuts.items():
            if f"{side}_weight" not in parts:
                continue
            sizes = cut(parts[f"{side}_weight"].shape[0], place.size)
            for name in (f"{side}_weight", f"{side}_bias"):
                parts[name] = place.cut(parts[name], sizes, 0)
        return self._run(parts, {"group": place.group})

    def _run(self, parts: dict[str, Tensor], more: dict[str, Any]) -> dict[str, Tensor]:
        for name, x in parts.items():
            x.requires_grad_(name not in self.frozen)
        options = dict(self.options)
        given: dict[str, Any] = dict(parts)
        if "tail" in options:
            given["teacher"] = TopK(INDICES, parts["teacher"], options.pop("tail"))
        loss = linear_distillation_loss(**given, **options, **more)
        loss, *entropies = loss if isinstance(loss, tuple) else (loss,)
        upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        loss.backward(upstream)
        gradients = {name: x.grad for name, x in parts.items() if x.grad is not None}
        return {"value": loss.detach(), **gradients, **dict(zip(["entropies"], entropies, strict=False))}


FROZEN_TEACHER = ("teacher", "teacher_weight", "teacher_bias")
HEADS = {
    "kl": Head(),
    "js, frozen teacher": Head(cut=ragged, kind=JensenShannon(), frozen=FROZEN_TEACHER),
    "rows": Head(cut=chunked, reduction="none", kind=Renyi(2.0)),
    "several chunks": Head(chunk_bytes=200, kind=JensenShannon(0.3)),
    "mask in several chunks": Head(cut=late, mask=MASK, chunk_bytes=200, normalizer=9.0),
    "softcap": Head(softcap=(2.0, None), logit_scale=(0.5, 2.0), temperature=1.5, temperature_squared=True),
    "cut in other places": Head(cut=even, teacher_cut=ragged),
    "truncate": Head(tensors((9, 13)), teacher_cut=late, vocabulary="truncate"),
    "mask vocabulary": Head(tensors((9, 13)), vocabulary="mask", kind=JensenShannon()),
    "mask vocabulary of the teacher": Head(tensors((13, 9)), vocabulary="mask", kind=JensenShannon()),
    "padding": Head(tensors((12, 13)), classes=8, frozen=FROZEN_TEACHER),
    "nothing counts": Head(mask=torch.zeros(7, dtype=torch.bool)),
    "labels": Head(**LABELED, temperature=2.0, temperature_squared=True),
    "labels in several chunks": Head(
        cut=late, **LABELED, mask=MASK, chunk_bytes=200, kind=JensenShannon(0.3)
    ),
    "labels, rows": Head(cut=ragged, teacher_cut=chunked, **LABELED, reduction="none", kind=Renyi(2.0)),
    "labels and truncate": Head(tensors((11, 13)), teacher_cut=late, vocabulary="truncate", **LABELED),
    "entropies": Head(cut=ragged, reduction="none", temperature=1.5, return_entropy=True),
    "entropies, mask vocabulary": Head(
        tensors((9, 13)),
        vocabulary="mask",
        kind=JensenShannon(),
        mask=MASK,
        chunk_bytes=200,
        return_entropy=True,
    ),
    "labels alone": Head(labels=LABELS, label_weight=1.0, softcap=2.0),
}
OF_STUDENT = {
    "top-k and entropies": Head(stored(), late, tail="bucket", chunk_bytes=200, return_entropy=True),
    "top-k": Head(stored(), tail="bucket"),
    "top-k in several chunks": Head(stored(), late, tail="zero", mask=MASK, chunk_bytes=200, normalizer=9.0),
    "top-k, rows": Head(
        stored(), ragged, tail="renormalize", temperature=2.0, reduction="none", softcap=(2.0, None)
    ),
    "top-k and padding": Head(stored(13), chunked, tail="bucket", classes=11, kind=JensenShannon()),
    "top-k frozen": Head(stored(), late, tail="bucket", frozen=("teacher",), kind=Renyi(0.5)),
    "top-k alone": Head(stored(), tail="zero", frozen=("student", "student_weight", "student_bias")),
    "top-k and labels": Head(stored(), ragged, tail="bucket", **LABELED, chunk_bytes=200),
    "top-k and labels, rows": Head(
        stored(), tail="renormalize", **LABELED, temperature=2.0, temperature_squared=True, reduction="none"
    ),
}
OF_DRAWS = {
    "sampled tail": Head(student_of(), late, **drawn(), kind=JensenShannon()),
    "sampled tail and labels": Head(student_of(), ragged, **drawn(), **LABELED, chunk_bytes=200),
}
LOW = {
    f"{dtype} head": Head(tensors(dtype=dtype), cut=ragged, chunk_bytes=200)
    for dtype in (torch.float32, torch.bfloat16)
} | {
    f"{dtype} labels": Head(tensors(dtype=dtype), cut=late, chunk_bytes=200, **LABELED)
    for dtype in (torch.float32, torch.bfloat16)
}
FAR = {
    name: Head({x: 9 * y for x, y in tensors(dtype=torch.float32).items()}, cut, chunk_bytes=200, **more)
    for name, cut, more in (
        ("beyond float32", ragged, {"kind": ChiSquared()}),
        ("beyond float32, rows", late, {"kind": Alpha(-1.5), "reduction": "none", "mask": MASK}),
    )
}
ALL = {**HEADS, **OF_STUDENT, **OF_DRAWS}
CASES = {f"head {name}": head.sharded for name, head in {**ALL, **LOW, **FAR}.items()}


def joined(found: list[dict[str, Tensor]], name: str) -> Tensor:
    """Gradients of heads from all ranks; what every rank has whole is the same on each."""
    assert all(isinstance(x, dict) for x in found), found
    if name.endswith(("weight", "bias")):
        return torch.cat([x[name] for x in found])
    assert all(torch.equal(x[name], found[0][name]) for x in found)
    return found[0][name]


@pytest.mark.filterwarnings("ignore:.*the mask is False everywhere")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ALL)
def test_value_and_gradients_are_those_of_whole_heads(results, name, size):
    expected = ALL[name].whole()
    entropies = {"entropies"} if "return_entropy" in ALL[name].options else set()
    assert expected.keys() == {"value", *entropies, *ALL[name].made} - set(ALL[name].frozen)
    for what, wanted in expected.items():
        torch.testing.assert_close(
            joined(results[f"head {name}", size], what), wanted, rtol=1e-10, atol=1e-13
        )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LOW)
def test_low_precision_is_within_the_error_of_whole_heads(results, name, size):
    """As one process has it: as near to float64, up to the rounding of the logits and of the sums."""
    exact, one = LOW[name].whole(torch.float64), LOW[name].whole()
    for what, truth in exact.items():
        got = joined(results[f"head {name}", size], what).double()
        budget = (one[what].double() - truth).abs().amax()
        unit = torch.finfo(one[what].dtype).eps * truth.abs().amax()
        assert (got - truth).abs().amax() <= 1.5 * budget + unit, what


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FAR)
def test_what_is_beyond_float32_is_rounded_once(results, name, size):
    """Ranks whose own gradients are within the range work with those that have others."""
    expected = FAR[name].whole(torch.float64)
    assert any(x.float().isinf().any() for x in expected.values())
    for what, wanted in expected.items():
        got = joined(results[f"head {name}", size], what)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, wanted.float(), rtol=1e-3, atol=1e-3 * float(wanted.float().abs()
                                   .nan_to_num(posinf=0).amax()))  # fmt: skip


def test_kl_of_heads_is_that_of_their_logits(results):
    made = HEADS["kl"].made
    logits = {
        side: made[side] @ made[f"{side}_weight"].T + made[f"{side}_bias"] for side in ("student", "teacher")
    }
    p, q = (logits[side].log_softmax(-1) for side in ("teacher", "student"))
    truth = (p.exp() * (p - q)).sum(-1).mean()
    for size in SIZES:
        torch.testing.assert_close(joined(results["head kl", size], "value"), truth)
