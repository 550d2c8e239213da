"""Damaged files and hostile expressions: each must end in an answer or in one of kullback's own errors.

    python -m tests.fuzz --files 20000 --references 20000 --profiles 5000 --top-k 20000 --states 20000

Every input follows from its seed, and a seed that fails is printed with what it raised.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from kullback.cli.commands import kullback
from kullback.cli.expressions import _constructors
from kullback.errors import KullbackError
from kullback.io import (
    Reference,
    ReferenceWriter,
    Windows,
    open_rows,
    read_clusters,
    read_labels,
    write_llama_base,
)
from kullback.tables import profile_table
from tests import fuzz_states, fuzz_top_k

MEMORY = 8 << 30
CHUNK = 250


def write_seeds(folder: Path) -> list[Path]:
    """Write sound files of every format, to be damaged."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator)
    probs, labels = logits.double().softmax(-1), torch.arange(6)
    np.save(folder / "logits.npy", logits)
    np.save(folder / "fortran.npy", np.asfortranarray(probs))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "text.npy", np.array(["a", "b", "a"]))
    np.savez(folder / "plain.npz", a=logits, b=labels)
    np.savez_compressed(folder / "packed.npz", a=probs)
    save_file({"x": logits, "half": logits.bfloat16(), "labels": labels}, folder / "some.safetensors")
    save_file({"x": probs}, folder / "one.safetensors")
    torch.save(logits, folder / "one.pt")
    torch.save({"x": probs, "grad": logits.clone().requires_grad_(), "labels": labels}, folder / "some.pt")
    torch.save({"x": [logits]}, folder / "list.pt")
    table = pa.table({f"c{i}": probs[:, i].numpy() for i in range(4)})
    pq.write_table(table, folder / "columns.parquet")
    pq.write_table(pa.table({"x": probs.tolist(), "label": labels.numpy()}), folder / "lists.parquet")
    (folder / "numbers.csv").write_text("\n".join(",".join(map(str, row)) for row in probs.tolist()))
    (folder / "headed.csv").write_text('a,"b"\n1,2\n3,4\n')
    (folder / "labels.txt").write_text("0\n1\n-100\n3\n2\n1\n")
    write_llama_base(folder / "base.kld", torch.arange(12) % 4, logits[:4], n_ctx=6)
    return sorted(folder.iterdir())


INTERESTING = (
    *(
        0,
        1,
        2,
        127,
        128,
        255,
        256,
        32767,
        32768,
        65535,
        65536,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**63 - 1,
        2**64 - 1,
    ),
)
TOKENS = (
    b"-1", b"1e400", b"nan", b"inf", b"-inf", b"\xff\xfe", b"\x00", b'"', b"'", b",", b"\n", b"\r\n", b"(",
    b")", b"{",
    b"}", b"[" * 50, b"9" * 40, b"'descr'", b"'<f4'", b"'|O'", b"'>i8'", b"'|V2'", b"True", b"None",
    b"(-1, 5)", b"(2,)",
    b"(4, 0)", b"('a', 2)", b"BF16", b"F8_E4M3", b"I64", b"data_offsets", b"\x1b[2J", b"__index_level_0__",
    b"x" * 3000,
)  # fmt: skip


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change a few places of some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = (
            rng.randrange(len(changed) + 1)
            if rng.random() < 0.5
            else rng.randrange(min(len(changed), 200) + 1)
        )
        match rng.randrange(8):
            case 0 if changed:
                changed[min(at, len(changed) - 1)] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[min(at, len(changed) - 1)] = rng.randrange(256)
            case 2:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(INTERESTING) % 256**size
                changed[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
            case 3:
                token = rng.choice(TOKENS)
                changed[at : at + rng.choice((0, len(token)))] = token
            case 4:
                del changed[at : at + rng.choice((1, 2, 8, 64, len(changed)))]
            case 5:
                start = rng.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + rng.choice((1, 8, 64))]
            case 6:
                del changed[at:]
            case _:
                changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 16))))
    return bytes(changed)


def read_all(path: Path, rng: random.Random) -> None:
    """Read a file in every way that there is."""
    representation = rng.choice(("logits", "probs", "log-probs", "counts", None))
    key = rng.choice((None, None, "x", "a", "half", "grad", "labels", "c0", "label"))

    def rows() -> None:
        with open_rows(path, representation=representation, key=key) as source:
            repr(source)
            for _ in source.blocks(rows=rng.choice((1, 4, 1000))):
                pass
            source.caveats()

    calls: list[Callable[[], object]] = [
        rows,
        lambda: read_labels(path, key=key, rows=rng.choice((None, 6)), classes=4),
        lambda: read_clusters(path, key=key),
    ]
    for call in calls:
        try:
            call()
        except KullbackError as error:
            text = str(error)
            if not text.isprintable() or len(text) > 5000:
                raise AssertionError(f"an error of {len(text)} characters: {text[:200]!r}") from None


def fuzz_file(seed: int, sound: list[Path], folder: Path) -> None:
    """Damage one file and read it."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    origin = rng.choice(sound)
    suffix = origin.suffix if rng.random() < 0.95 else rng.choice(sound).suffix
    path = folder / f"f{suffix}"
    path.write_bytes(damage(origin.read_bytes(), rng))
    read_all(path, rng)


def write_references(folder: Path) -> list[Path]:
    """Write sound reference files: with a tail, without one, without draws, with classes of no mass."""
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)) * 3
    masked = logits.clone()
    masked[:, 4:] = -torch.inf
    scored = torch.tensor([False, True, True, False, True, True, True])
    windows = Windows(torch.tensor([1, 0, 2, 3, 1, 0, 2]), torch.tensor([0, 3, 7]), scored)
    for name, rows, top, draws in (
        ("a", logits, 3, 4),
        ("b", logits, 9, 2),
        ("c", logits, 2, 0),
        ("d", masked, 2, 3),
    ):
        with ReferenceWriter(folder / f"{name}.klref", windows, top=top, tail_draws=draws) as writer:
            writer.add(rows)
    return sorted(folder.iterdir())


def fuzz_reference(seed: int, sound: list[Path], folder: Path) -> None:
    """Damage the bytes, the header or a number of a reference file and read it."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    data = rng.choice(sound).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    match rng.randrange(4):
        case 0:
            data = damage(data, rng)
        case 1:
            header = json.dumps(changed(json.loads(data[8:start]), rng)).encode(errors="surrogatepass")
            data = len(header).to_bytes(8, "little") + header + data[start:]
        case (
            2
        ):  # numbers of one tensor at another place of it: classes drawn twice, log-probabilities of others
            entries = json.loads(data[8:start])
            for _ in range(rng.choice((1, 1, 2, 3))):
                first, last = entries[rng.choice(list(entries)[3:10])]["data_offsets"]
                if last - first >= 8:
                    a, b = (start + first + 4 * place for place in rng.sample(range((last - first) // 4), 2))
                    data = data[:a] + data[b : b + 4] + data[a + 4 :]
        case _:
            at = start + 4 * rng.randrange((len(data) - start) // 4)
            number = rng.choice(
                (*np.array([0, -1, 1, -3.5, np.nan, np.inf, -np.inf, 1e-30], "<f4"), *range(-1, 10))
            )
            data = (
                data[:at]
                + np.asarray(number, "<f4" if number.__class__ is np.float32 else "<i4").tobytes()
                + data[at + 4 :]
            )
    path = folder / "f.klref"
    path.write_bytes(data)
    try:
        with Reference(path) as reference:
            repr(reference)
            reference.describe()
            for block in reference.blocks(rng.choice((1, 2, 1000))):
                total = block.top_log_probs.double().exp().sum(-1) + block.tail_log_mass.double().exp()
                assert bool(((total - 1).abs() < 2e-5).all()), total
                assert bool((block.labels < reference.classes).all())
    except KullbackError as error:
        text = str(error)
        if not text.isprintable() or len(text) > 5000:
            raise AssertionError(f"an error of {len(text)} characters: {text[:200]!r}") from None


def write_profiles(folder: Path) -> list[Path]:
    """Write sound profiles of two tables with a column of every type."""
    first = None
    for seed in range(2):
        rng = np.random.default_rng(seed)
        n = 40 + 20 * seed
        table = pa.table(
            {
                "x": rng.normal(seed, 1, n),
                "near": 1e6 + rng.random(n),
                "odd": [None, float("nan"), float("inf"), -float("inf"), *rng.random(n - 4)],
                "k": rng.integers(0, 30, n),
                "large": rng.integers(2**60, 2**62, n),
                "s": rng.choice(["a", "b", "c\n", ""], n).tolist(),
                "t": rng.random(n) < 0.5,
                "when": pa.array(rng.integers(0, 2**50, n), pa.timestamp("us", "UTC")),
                "text": ["x" * int(i) + str(i) for i in rng.integers(100, 300, n)],
            }
        )
        found = profile_table(table, like=first)
        first = first or found
        found.save(folder / f"{seed}.json")
    return sorted(folder.iterdir())


ODD = (
    *(0, 1, -1, 2, 0.5, 1e-320, 1e-300, 1e15, 1e16, 2**31, 2**53, 2**63, 2**64, 10**30, 1e300, -1e300, 1e308),
    *(True, False, None, "", "x", "\x1b[2J\nkullback", [], {}, [1], {"a": 1}, [[]], "9" * 50),
)  # fmt: skip


def changed(held: Any, rng: random.Random) -> Any:
    """Change one entry of an object of JSON, somewhere below."""
    if isinstance(held, dict) and held and rng.random() < 0.93:
        key = rng.choice(list(held))
        match rng.randrange(8):
            case 0:
                del held[key]
            case 1:
                held[rng.choice(("a", "", "true", "x", "integer", "minimum", "\ud800"))] = deepcopy(held[key])
            case _:
                held[key] = changed(held[key], rng)
        return held
    if isinstance(held, list) and held and rng.random() < 0.9:
        at = rng.randrange(len(held))
        held[at] = changed(held[at], rng)
        return held
    if isinstance(held, int | float) and rng.random() < 0.5:
        return rng.choice((held + 1, held * 2, held // 3, -held, held * 10**9, held * 10**6, float(held)))
    return deepcopy(rng.choice(ODD))


def balanced(profile: Any) -> Any:
    """Make the counts of every column add up to the number of rows, as far as they are numbers."""
    for column in profile["columns"].values():
        weights = column.get("buckets", {}).get("weights", [])
        others = ("not_a_number", "minus_infinity", "plus_infinity", "other_categories")
        parts = [*weights, *column.get("categories", {}).values(), *(column.get(name, 0) for name in others)]
        column["missing"] = profile["rows"] - sum(parts)
    return profile


def fuzz_profile(seed: int, sound: list[Path], folder: Path) -> None:
    """Watch with one or two damaged profiles."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    for path in folder.iterdir():  # a profile of a table that a damaged one was taken for
        path.unlink()
    paths = [folder / path.name for path in sound]
    for path, origin in zip(paths, sound, strict=True):
        text = origin.read_text()
        if rng.random() < 0.1:
            path.write_bytes(damage(text.encode(), rng))
            continue
        held = json.loads(text)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
            if isinstance(held, dict):
                if rng.random() < 0.8 and isinstance(held.get("columns"), dict) and held["columns"]:
                    name = rng.choice(list(held["columns"]))
                    held["columns"][name] = changed(held["columns"][name], rng)
                else:
                    held = changed(held, rng)
        with suppress(Exception):
            held = balanced(held)
        path.write_text(json.dumps(held, separators=(",", ":")))
    result = CliRunner().invoke(kullback, ["watch", *map(str, paths), "--html", str(folder / "report.html")])
    shown = f"kullback watch: {result.exit_code}, {result.output[-500:]!r}"
    if result.exit_code not in (0, 2) or "KULLBACK_DEBUG" in result.stderr or not result.output:
        raise AssertionError(shown)
    if result.exit_code == 2 and (result.stdout or result.stderr.count("\n") != 1):
        raise AssertionError(shown)
    if "\x1b" in result.output:
        raise AssertionError(shown)


NUMBERS = (
    "0", "1", "-1", "2", "3", "0.5", "1e-320", "1e-300", "1e308", "-1e308", "1e-8", "1e16", "inf", "-inf",
    "inf-inf", "1/0",
    "1/3", "True", "False", "[]", "[[]]", "[1, 2]", "[0.5, 0.5]", "[[1, 0], [0, 1]]", "[[1, 2], [3]]",
    "[1, [2]]", "[0, 0]",
    "[-1, 2]", "[inf, 1]", "0.1", "10", "1000", "1e9", "2**3", "(1, 2)", "None", "'a'", "x", "[1, 1, 1]",
    "0.3", "5", "1e5",
)  # fmt: skip
VALID = (
    "0.1", "0.5", "1", "2", "3", "10", "1e-3", "1e3", "1e-300", "1e-320", "1e300", "1e16", "1e-16",
    "[1, 2]", "[0.2, 0.8]",
    "[1e-5, 1 - 1e-5]", "[[1, 0], [0, 1]]",
)  # fmt: skip
KEYWORDS = (
    "loc", "scale", "probs", "logits", "rate", "concentration", "df", "total_count", "dim", "low", "high",
    "validate_args",
    "covariance_matrix", "base", "x", "prior", "temperature", "reinterpreted_batch_ndims",
)  # fmt: skip
NAMES = (*sorted(_constructors()), "Normal", "Beta", "Gamma", "Probs", "Nothing", "__import__")


def likely(rng: random.Random) -> str:
    """Write a call with as many arguments as the class takes, most of them valid, however extreme."""
    name = rng.choice([name for name in NAMES[:-2] if not name.endswith("Transform")])
    parameters = [
        parameter
        for parameter in inspect.signature(_constructors()[name]).parameters.values()
        if parameter.name != "validate_args" and (parameter.default is parameter.empty or rng.random() < 0.2)
    ]
    count = max(1, len(parameters))
    return f"{name}({', '.join(rng.choice(rng.choice((VALID, VALID, NUMBERS))) for _ in range(count))})"


def expression(rng: random.Random, depth: int = 0) -> str:
    """Write a random call, now and then with a few characters changed."""
    if depth == 0 and rng.random() < 0.6:
        return likely(rng)
    arguments = [
        expression(rng, depth + 1) if depth < 2 and rng.random() < 0.12 else rng.choice(NUMBERS)
        for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3)))
    ]
    arguments = [f"{rng.choice(KEYWORDS)}={a}" if rng.random() < 0.15 else a for a in arguments]
    text = f"{rng.choice(NAMES)}({', '.join(arguments)})"
    if depth == 0 and rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at]
            + rng.choice(("(", ")", "[", ",", "\n", "\x1b[2J", "\0", "é", "*", "=", "  "))
            + text[at + 1 :]
        )
    return text


def fuzz_expression(seed: int) -> None:
    """Ask for the divergence of two random expressions."""
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    p = expression(rng)
    q = p if rng.random() < 0.2 else expression(rng)
    result = CliRunner().invoke(kullback, ["calc", "--", p, q])
    shown = f"kullback calc {p!r} {q!r}: {result.exit_code}, {result.output[:500]!r}"
    if result.exit_code not in (0, 2) or "KULLBACK_DEBUG" in result.stderr or not result.output:
        raise AssertionError(shown)
    if result.exit_code == 2 and (result.stdout or result.stderr.count("\n") != 1):
        raise AssertionError(shown)
    lines = result.stdout.splitlines()
    if result.exit_code == 0 and (
        len(lines) != 2 - (p == q) or any("= nan" in line or "= -" in line for line in lines)
    ):
        raise AssertionError(shown)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(
    kind: str, seeds: range, *, budget: float = float("inf"), each: int = 60
) -> tuple[int, list[tuple[int, str]]]:
    """Try seeds of one kind of input for a budget of seconds: how many, and what failed."""
    failures: list[tuple[int, str]] = []
    started, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sound").mkdir()
        (folder / "damaged").mkdir()
        writers = {
            "files": write_seeds,
            "references": write_references,
            "profiles": write_profiles,
            "top-k": fuzz_top_k.write_seeds,
            "states": fuzz_states.write_seeds,
        }
        write = writers.get(kind)
        sound = write(folder / "sound") if write else []
        for seed in seeds:
            if time.monotonic() - started > budget:
                break
            done += 1
            try:
                with at_most(each):
                    if kind == "files":
                        fuzz_file(seed, sound, folder / "damaged")
                    elif kind == "references":
                        fuzz_reference(seed, sound, folder / "damaged")
                    elif kind == "profiles":
                        fuzz_profile(seed, sound, folder / "damaged")
                    elif kind == "top-k":
                        fuzz_top_k.fuzz_one(seed, sound, folder / "damaged", damage, changed)
                    elif kind == "states":
                        fuzz_states.fuzz_one(seed, sound, folder / "damaged", damage)
                    else:
                        fuzz_expression(seed)
            except Exception as error:  # noqa: BLE001 - which is what is looked for
                where = traceback.extract_tb(error.__traceback__)[-1]
                name_of = Path(where.filename).name
                failures.append((seed, f"{type(error).__name__}: {error} [{name_of}:{where.lineno}]"[:900]))
    return done, failures


def run_apart(kind: str, first: int, count: int) -> list[tuple[int, str]]:
    """Try seeds in a process of its own, which may crash."""
    command = [sys.executable, "-m", "tests.fuzz", "--worker", kind, str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return [
            (
                first,
                f"the process of seeds {first} to {first + count} ended with {done.returncode}: {done.stderr[-500:]}",
            )
        ]
    return [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--references", type=int, default=20_000)
    parser.add_argument("--profiles", type=int, default=5_000)
    parser.add_argument("--top-k", type=int, default=20_000)
    parser.add_argument("--states", type=int, default=20_000)
    parser.add_argument("--expressions", type=int, default=5_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--worker", nargs=3, metavar=("KIND", "FIRST", "COUNT"))
    options = parser.parse_args()
    if options.worker:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        kind, first, count = options.worker[0], int(options.worker[1]), int(options.worker[2])
        print(json.dumps(run(kind, range(first, first + count))[1]))
        return
    failed = 0
    for kind in ("files", "references", "profiles", "top-k", "states", "expressions"):
        count = getattr(options, kind.replace("-", "_"))
        for first in range(options.first, options.first + count, CHUNK):
            for seed, what in run_apart(kind, first, min(CHUNK, options.first + count - first)):
                failed += 1
                print(f"{kind} {seed}: {what}", flush=True)
        print(f"{count} {kind} tried", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
