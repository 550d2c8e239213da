"""The reprs of results stay short, however large the results are."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

import kullback
from kullback import Counts, Logits, Probs, Samples
from kullback.common.short_repr import ShortRepr
from kullback.diagnosis import diagnose
from kullback.functional import TopK, top_k_divergence_bounds
from kullback.predictions import compare_predictions

LONGEST = 2000  # characters
LONG = "x" * 5000


def parts(made: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Iterate over all objects of kullback's in a result, itself among them."""
    if id(made) in seen:
        return
    seen[id(made)] = made
    if type(made).__module__.startswith("kullback"):
        yield made
    if dataclasses.is_dataclass(made) and not isinstance(made, type):
        inner = [getattr(made, each.name) for each in dataclasses.fields(made)]
    elif isinstance(made, dict):
        inner = list(made.values())
    elif isinstance(made, list | tuple):
        inner = list(made)
    else:
        return
    for each in inner:
        yield from parts(each, seen)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixtures(count: int) -> list[MixtureSameFamily]:
    return [
        MixtureSameFamily(Categorical(torch.ones(count, 2)), Normal(normal(count, 2, seed=seed), 1.0))
        for seed in (0, 1)
    ]


def predictions() -> Any:
    p, labels = normal(600, 999), torch.arange(600)
    return compare_predictions(
        Logits(p), Logits(p + 0.1 * normal(600, 999, seed=1)), labels=labels, cluster=labels // 20
    )


def tables() -> Any:
    arrow = pytest.importorskip("pyarrow")
    from kullback.tables import compare_tables, profile_table

    def table(seed: int) -> Any:
        draws = np.random.default_rng(seed)
        return arrow.table(
            {
                "number": draws.normal(size=1500),
                "c" * 300: [f"category {each} {LONG[:200]}" for each in draws.integers(0, 700, size=1500)],
                "text": [f"{each} {LONG[:999]}" for each in range(1500)],
            }
        )

    return [compare_tables(table(0), table(1), joint=[("number", "c" * 300)]), profile_table(table(0))]


def models(folder: Path) -> Any:
    pytest.importorskip("transformers")
    from kullback.io import Reference
    from kullback.models import Cut, compare_models, record_reference
    from tests.models import folders
    from tests.models.tiny import text

    path = folder / "base.klref"
    record_reference(folders.base(), text()[:6000], path, cut=Cut(context=128))
    with Reference(path) as reference:
        return [
            compare_models(folders.base(), [folders.int8()], text()[:6000], cut=Cut(context=128)),
            compare_models(path, [folders.int8()]),
            reference,
            reference.read(0, reference.rows),
        ]


RESULTS = {
    "predictions": predictions,
    "tables": tables,
    "fit": lambda: kullback.fit(Normal(torch.zeros(999), 1.0), to=Normal(torch.ones(999), 1.0)),
    "estimate": lambda: [
        kullback.kl_estimate(Normal(torch.zeros(999), 1.0), Normal(torch.ones(999), 1.0)),
        kullback.kl_estimate(Samples(normal(400, 2)), Samples(normal(400, 2, seed=1))),
    ],
    "test": lambda: kullback.two_sample_test(Samples(normal(400, 2)), Samples(normal(400, 2, seed=1))),
    "bounds": lambda: [
        kullback.kl_bounds(*mixtures(999)),
        top_k_divergence_bounds(
            *(TopK(torch.arange(9).expand(999, 9), normal(999, 9, seed=seed) - 9) for seed in (0, 1)),
            "kl",
            classes=40,
        ),
    ],
    "diagnosis": lambda: diagnose(normal(999, 999), normal(999, 999)),
    "operands": lambda: [
        Logits(normal(999)),
        Probs(torch.ones(999) / 999),
        Counts(torch.ones(999), labels=[f"{each} {LONG}" for each in range(999)]),
        Samples(normal(999, 2)),
        TopK(torch.arange(999).reshape(1, 999), normal(1, 999).log_softmax(-1)),
    ],
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*RESULTS, "models"])
def test_the_repr_of_a_large_result_and_of_all_its_parts_is_short(name: str, tmp_path: Path) -> None:
    made = models(tmp_path) if name == "models" else RESULTS[name]()
    lengths = {type(each).__qualname__: len(repr(each)) for each in parts(made, {})}
    assert lengths
    assert {each: length for each, length in lengths.items() if length >= LONGEST} == {}


def public_dataclasses() -> list[type]:
    """The public dataclasses and named tuples of the package and of its parts."""
    names = ["kullback", *(f"kullback.{each.name}" for each in pkgutil.iter_modules(kullback.__path__))]
    names.remove("kullback.__main__")
    found: list[type] = []
    for module in map(importlib.import_module, names):
        for name in getattr(module, "__all__", ()):
            made = getattr(module, name)
            fields = dataclasses.is_dataclass(made) or hasattr(made, "_fields")
            if (
                inspect.isclass(made)
                and not inspect.isabstract(made)
                and fields
                and made.__module__.startswith("kullback")
            ):
                found.append(made)
    return list(dict.fromkeys(found))


LARGE = {
    "tuple[int, ...]": (2, 3),  # a shape or an index
    "Tensor": torch.zeros(999),
    "list[": [LONG] * 999,
    "dict[": dict.fromkeys(range(999), LONG),
    "...": (LONG,) * 999,  # tuple[float, ...]; others have few elements
    "Sequence[": [LONG] * 999,
    "str": "name " * 40,
}


def filled(kind: type) -> Any:
    """Return an instance with large values, by the annotations of its fields."""
    values = {
        each.name: next((value for words, value in LARGE.items() if words in str(each.type)), 1.0)
        for each in dataclasses.fields(kind)
    }
    values |= {"needs": ("ab", "c")} if "needs" in values else {}  # the names of some imports
    made = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


# Those whose repr is made from their fields; the others have their own, and are among the results above.
FIELDWISE = [
    kind
    for kind in public_dataclasses()
    if dataclasses.is_dataclass(kind)
    and (kind.__repr__ is ShortRepr.__repr__ or hasattr(kind.__repr__, "__wrapped__"))
]


@pytest.mark.parametrize("kind", FIELDWISE, ids=lambda kind: kind.__qualname__)
def test_the_repr_of_every_public_dataclass_is_short(kind: type) -> None:
    assert len(repr(filled(kind))) < LONGEST


def test_small_values_are_shown_as_they_are() -> None:
    estimate = kullback.kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0))
    assert f"value={estimate.value!r}, error={estimate.error!r}" in repr(estimate)
    teacher = TopK(torch.tensor([[1, 2]]), torch.tensor([[-1.0, -2.0]]))
    assert repr(teacher).startswith("TopK(indices=tensor([[1, 2]])")
