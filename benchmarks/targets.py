"""The targets of the benchmarks, and whether the results meet them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]

SLACK_BYTES = 8e6
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Judgment:
    """One target in one case: the required and the measured value, in words, and whether it is met."""

    target: str
    case: str
    wanted: str
    found: str
    met: bool


def judge(documents: list[Result]) -> list[Judgment]:
    """The verdict on every target that was measured."""
    found: list[Judgment] = []
    for document in documents:
        if rule := RULES.get(document["benchmark"]):
            for result in document["cases"]:
                found += rule(result)
    return found


def case_name(case: dict[str, Any]) -> str:
    shape = f"{case['rows']} × {case['classes']}"
    hidden = f", hidden {case['hidden']}" if "hidden" in case else ""
    threads = f", {case['threads']} thread{'s' * (case['threads'] > 1)}" if "threads" in case else ""
    return f"{shape}{hidden}, {case['dtype']}{threads}"


def faster(result: Result, target: str, ours: str, other: str, least: float) -> Iterator[Judgment]:
    """The time of the other step divided by the time of `ours`."""
    steps = result["steps"]
    if ours in steps and other in steps:
        ratio = steps[other]["median"] / steps[ours]["median"]
        name = case_name(result["case"])
        yield Judgment(target, name, f"≥ {least:g}×", f"{ratio:.2f}×", ratio >= least)


def at_most(result: Result, target: str, ours: str, other: str, most: float) -> Iterator[Judgment]:
    """The time of `ours` divided by the time of the other step."""
    steps = result["steps"]
    if ours in steps and other in steps:
        ratio = steps[ours]["median"] / steps[other]["median"]
        name = case_name(result["case"])
        yield Judgment(target, name, f"≤ {most:g}×", f"{ratio:.2f}×", ratio <= most)


def small(result: Result, target: str, step: str, expected: float) -> Iterator[Judgment]:
    """The extra memory beyond the expected one."""
    extra = result["steps"].get(step, {}).get("extra_bytes")
    if extra is not None:
        beyond = extra - expected
        name = case_name(result["case"])
        yield Judgment(target, name, "< 8 MB", f"{beyond / 1e6:.1f} MB", beyond < SLACK_BYTES)


def of_rows(result: Result) -> Iterator[Judgment]:
    case, ours = result["case"], "KL: kullback"
    if case["dtype"] == "float32":
        yield from faster(result, "KL against eager torch", ours, "KL: eager", 5)
        yield from faster(result, "KL against torch.compile", ours, "KL: torch.compile", 2)
        yield from at_most(result, "KL against cloning one input", ours, "clone", 1.6)
    else:
        yield from faster(result, "KL against eager torch in float32", ours, "KL: eager", 6)
    yield from faster(result, "JS(½) against TRL's formula", "JS: kullback", "JS: TRL", 8)
    gradient = case["rows"] * case["classes"] * ELEMENT_BYTES[case["dtype"]]
    yield from small(result, "KL, memory beyond one gradient", ours, gradient)
    yield from small(result, "KL in place, memory", f"{ours} in place", 0)


def of_kinds(result: Result) -> Iterator[Judgment]:
    """One target covers all kinds: the kind that is slowest relative to eager torch has to meet it."""
    names = {name.removesuffix(": kullback") for name in result["steps"] if name.endswith(": kullback")}
    found = [
        judgment
        for name in sorted(names)
        for judgment in at_most(
            result,
            f"every kind against eager torch; the slowest, {name}",
            f"{name}: kullback",
            f"{name}: eager",
            1.2,
        )
    ]
    if found:
        yield max(found, key=lambda x: float(x.found.removesuffix("×")))


def of_overhead(result: Result) -> Iterator[Judgment]:
    yield from at_most(result, "call overhead against eager torch", "KL: kullback", "KL: eager", 1)


def of_head(result: Result) -> Iterator[Judgment]:
    case, steps = result["case"], result["steps"]
    yield from at_most(result, "head, against its matrix products alone", "kullback", "products", 1.15)
    for other in ("TRL, chunked", "Liger, chunked"):
        yield from at_most(result, f"head, time against {other}", "kullback", other, 1)
    weight_gradient = case["classes"] * case["hidden"] * ELEMENT_BYTES[case["dtype"]]
    beyond = {
        name: x["extra_bytes"] - weight_gradient for name, x in steps.items() if x["extra_bytes"] is not None
    }
    if "kullback" not in beyond:
        return
    ours = max(beyond["kullback"], 0)
    for other, most in (("eager, whole logits", 0.1), ("TRL, chunked", 1), ("Liger, chunked", 1)):
        if beyond.get(other, 0) > 0:
            share = ours / beyond[other]
            target = f"head, memory beyond the weight's gradient, against {other}"
            yield Judgment(target, case_name(case), f"< {most:.0%}", f"{share:.1%}", share < most)


def of_head_top_k(result: Result) -> Iterator[Judgment]:
    case, steps = result["case"], result["steps"]
    target = "head and top classes, against its matrix products alone"
    yield from at_most(result, target, "kullback", "products", 1.15)
    gradient = case["classes"] * case["hidden"] * ELEMENT_BYTES[case["dtype"]]
    ours, whole = (steps[name]["extra_bytes"] for name in ("kullback", "eager, whole logits"))
    if ours is not None and whole > gradient:
        share = max(ours - gradient, 0) / (whole - gradient)
        target = "head and top classes, memory beyond the weight's gradient, against eager, whole logits"
        yield Judgment(target, case_name(case), "< 10%", f"{share:.1%}", share < 0.1)


def of_gpu(result: Result) -> Iterator[Judgment]:
    steps, ours = result["steps"], "KL: kullback"
    if ours not in steps or result["case"]["dtype"] != "bfloat16":
        return
    share = 1.5 * steps["copy"]["median"] / steps[ours]["median"]  # three tensors moved against two
    name = case_name(result["case"])
    yield Judgment("GPU: share of the copy bandwidth", name, "≥ 85%", f"{share:.0%}", share >= 0.85)
    yield from faster(result, "GPU: against Liger", ours, "KL: Liger", 2)
    yield from faster(result, "GPU: against torch.compile", ours, "KL: torch.compile", 1.3)


def of_neighbors(result: Result) -> Iterator[Judgment]:
    case, steps = result["case"], result["steps"]
    name = f"{case['rows']:,} draws, {case['classes']}-D"
    peers = {peer: x["median"] for peer, x in steps.items() if peer != "kullback"}
    least = {(100_000, 1): 10, (100_000, 5): 3}.get((case["rows"], case["classes"]))
    if peers and least:
        fastest = min(peers, key=peers.__getitem__)
        ratio = peers[fastest] / steps["kullback"]["median"]
        target = f"neighbors against the fastest peer, {fastest}"
        yield Judgment(target, name, f"≥ {least}×", f"{ratio:.1f}×", ratio >= least)
    if (case["rows"], case["classes"]) == (1_000_000, 5):
        seconds, extra = steps["kullback"]["median"], steps["kullback"]["extra_bytes"]
        yield Judgment("neighbors, time", name, "< 30 s", f"{seconds:.1f} s", seconds < 30)
        if extra is not None:
            yield Judgment("neighbors, memory", name, "< 1 GB", f"{extra / 1e9:.2f} GB", extra < 1e9)


RULES: dict[str, Callable[[Result], Iterator[Judgment]]] = {
    "rows": of_rows,
    "kinds": of_kinds,
    "overhead": of_overhead,
    "head": of_head,
    "head_top_k": of_head_top_k,
    "gpu": of_gpu,
    "neighbors": of_neighbors,
}
