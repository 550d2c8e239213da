"""The names of classes in files: columns in another order, of other names, and columns that are no classes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from kullback import compare, compare_predictions
from kullback.cli.commands import kullback
from kullback.errors import FileError, KullbackError
from kullback.io import open_rows, read_labels
from tests.refusals import refused

NAMES = ["cat", "dog", "owl"]
OTHER_ORDER = ["owl", "cat", "dog"]
ROWS = 40
FORMATS = ("parquet", "csv", "npz", "safetensors", "pt")


def probabilities(seed: int = 0) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).dirichlet(np.ones(3), ROWS), columns=NAMES)


def save(frame: pd.DataFrame, path: Path) -> Path:
    """Save a data frame with its names in the format of a path."""
    names, values = list(frame.columns), frame.to_numpy().copy()
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".npz":
        np.savez(path, probs=values, classes=np.array(names))
    elif path.suffix == ".safetensors":
        save_file({"probs": torch.from_numpy(values)}, path, {"class_names": ",".join(names)})
    elif path.suffix == ".pt":
        torch.save({"probs": torch.from_numpy(values), "classes": names}, path)
    else:
        np.save(path, values)
    return path


def mean_kl(p: pd.DataFrame, q: pd.DataFrame) -> float:
    return float((p * np.log(p / q)).sum(axis=1).mean())


def compared(p: object, q: object, **options: object) -> float:
    options.setdefault("representation", "probs")
    return compare_predictions(p, q, bootstrap=0, **options).divergences["kl_pq"].mean


def test_classes_are_paired_by_their_names_in_every_format(tmp_path: Path) -> None:
    p, q = probabilities(), probabilities(1)
    right = mean_kl(p, q)
    frames = [p, pl.from_pandas(p), pa.Table.from_pandas(p)]
    sides_p = [save(p, tmp_path / f"p.{suffix}") for suffix in FORMATS] + frames
    reordered = q[OTHER_ORDER]
    frames = [reordered, pl.from_pandas(reordered), pa.Table.from_pandas(reordered)]
    sides_q = [save(reordered, tmp_path / f"q.{suffix}") for suffix in FORMATS] + frames
    for shift in (0, 3):
        for side_p, side_q in zip(sides_p, sides_q[shift:] + sides_q[:shift], strict=True):
            assert compared(side_p, side_q) == pytest.approx(right, rel=1e-12), (side_p, side_q)
    assert compare(p, reordered, representation="probs").divergences["kl_pq"].mean == pytest.approx(right)


def test_a_class_of_another_name_is_refused_in_every_format(tmp_path: Path) -> None:
    p = probabilities()
    renamed = p.rename(columns={"owl": "emu"})
    first = save(p, tmp_path / "p.csv")
    for side in [save(renamed, tmp_path / f"q.{suffix}") for suffix in FORMATS] + [renamed]:
        with refused(
            FileError, wanted="^classes of the same names", got="'owl' only in p and 'emu' only in q"
        ):
            compared(first, side)
    # The remedy: choose shared columns. Two of three logits are another distribution.
    logits = np.log(p[["cat", "dog"]])
    assert compared(np.log(p), np.log(renamed), representation="logits", columns=["cat", "dog"]) == 0
    assert compared(np.log(p), logits, representation="logits", columns=["cat", "dog"]) == 0
    repeated = tmp_path / "repeated.csv"
    repeated.write_text("cat,cat,dog\n0.2,0.3,0.5\n")
    with refused(FileError, got="'owl' only in q"):
        compared(repeated, save(p[OTHER_ORDER], tmp_path / "q.csv"))
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("dog,cat,cat\n0.5,0.2,0.3\n")
    with refused(FileError, got="'cat' more than once"):
        compared(repeated, swapped)


def test_numbered_names_are_positions(tmp_path: Path) -> None:
    p, q = probabilities(), probabilities(1)
    right = mean_kl(p, q)
    numbered = q.set_axis(["class_0", "class_1", "class_2"], axis=1)
    q_files = [
        save(numbered, tmp_path / "in_order.parquet"),
        save(numbered[["class_2", "class_0", "class_1"]], tmp_path / "not.parquet"),
        save(q.set_axis(["0", "1", "2"], axis=1)[["2", "0", "1"]], tmp_path / "numbers.parquet"),
        save(q.set_axis(["V1", "V2", "V3"], axis=1), tmp_path / "from_one.csv"),
        save(q, tmp_path / "unnamed.npy"),
    ]
    p_files = [
        save(p.set_axis(["p0", "p1", "p2"], axis=1)[["p1", "p2", "p0"]], tmp_path / "p.csv"),
        save(p, tmp_path / "p.npy"),
        save(p, tmp_path / "named.csv"),
    ]
    for p_file in p_files:
        for q_file in q_files:
            found = compare_predictions(p_file, q_file, representation="probs", bootstrap=0)
            assert found.divergences["kl_pq"].mean == pytest.approx(right, rel=1e-12), (p_file, q_file)
            is_named = p_file.stem == "named"
            assert (
                "Only P names its classes. They are paired with Q's by position." in found.notes
            ) is is_named
    for names in (["class_1", "class_2", "class_3"], ["class_0", "class_2", "class_5"]):
        other = save(q.set_axis(names, axis=1), tmp_path / "other.csv")
        with refused(FileError, wanted="same names"):
            compared(q_files[0], other)


def test_labels_are_names_or_positions_in_p(tmp_path: Path) -> None:
    p, q = probabilities(), probabilities(1)
    random = np.random.default_rng(2)
    places = random.integers(0, 3, ROWS)
    p_file, q_file = save(p, tmp_path / "p.csv"), save(q[OTHER_ORDER], tmp_path / "q.parquet")
    right = -np.log(q.to_numpy()[np.arange(ROWS), places]).mean()
    names = np.array(NAMES)[places]
    files = [tmp_path / f"labels.{suffix}" for suffix in ("txt", "csv", "parquet")]
    files[0].write_text("\n".join(names) + "\n")
    pd.DataFrame({"label": names}).to_csv(files[1], index=False)
    pd.DataFrame({"label": names}).to_parquet(files[2], index=False)
    for labels in [places, torch.from_numpy(places), list(names), pd.Series(names), *files]:
        found = compare_predictions(p_file, q_file, representation="probs", labels=labels, bootstrap=0)
        assert found.labels.cross_entropy_q.mean == pytest.approx(right, rel=1e-12), labels
    with refused(KullbackError, wanted="names of classes, such as 'cat'", got="emu"):
        compared(p_file, q_file, labels=["emu"] * ROWS)
    # Classes whose names are other numbers than 0, 1, ...: labels are names too.
    scores = ["1", "2", "3"]
    files = [save(x.set_axis(scores, axis=1), tmp_path / f"{n}.parquet") for n, x in (("s", p), ("t", q))]
    (tmp_path / "stars.txt").write_text("\n".join(str(at + 1) for at in places))
    for labels in (places + 1, torch.from_numpy(places + 1), tmp_path / "stars.txt"):
        found = compare_predictions(*files, representation="probs", labels=labels, bootstrap=0)
        assert found.labels.cross_entropy_q.mean == pytest.approx(right, rel=1e-12)
    (tmp_path / "wrong.txt").write_text("cat\nemu\n")
    with refused(FileError, got="'emu'"):
        read_labels(tmp_path / "wrong.txt", class_names=NAMES)


def test_data_frames_of_other_rows_are_refused() -> None:
    p = probabilities()
    with refused(KullbackError, got="different indices", instead=r"reset_index\(drop=True\)"):
        compared(p, p.sample(frac=1, random_state=0))
    shuffled = p.sample(frac=1, random_state=0)
    assert compared(p, shuffled.loc[p.index]) == 0
    with refused(FileError, got="column 'text' of ", instead="columns="):
        compared(p.assign(text="x"), p)
    assert compared(p.assign(text="x"), p, columns=NAMES) == 0
    with refused(KullbackError, instead="representation='probs'"):
        compare_predictions(p, p)


def logits(seed: int) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).normal(size=(ROWS, 3)), columns=list("abc"))


# Columns that are no classes.
random = np.random.default_rng(5)
NO_CLASSES = {
    "id": np.arange(ROWS),
    "example": np.arange(100, 100 + ROWS),
    "backwards": np.arange(ROWS)[::-1],
    "gaps": np.arange(ROWS).cumsum(),
    "label": random.integers(0, 3, ROWS),
    "sample_id": random.permutation(10 * ROWS)[:ROWS],
    "trueLabel": random.integers(0, 2, ROWS),
    "target": np.zeros(ROWS, dtype="int64"),
    "Unnamed: 0": random.permutation(ROWS),
}


def test_a_column_of_ids_or_labels_is_refused_and_named(tmp_path: Path) -> None:
    p, q = logits(0), logits(1)
    soft = [np.exp(x) / np.exp(x).sum(axis=1).to_numpy()[:, None] for x in (p, q)]
    right = mean_kl(*soft)
    for place in (0, 3):
        for name, values in NO_CLASSES.items():
            frames = [x.copy() for x in (p, q)]
            for frame in frames:
                frame.insert(place, name, values)
            for suffix in ("csv", "parquet"):
                files = [save(x, tmp_path / f"{n}.{suffix}") for n, x in zip("pq", frames, strict=True)]
                with pytest.raises(FileError, match=f"column '{name}' of whole numbers.*--columns a,b,c"):
                    compared(*files, representation="logits")
                with open_rows(files[0], representation="logits") as source, pytest.raises(FileError):
                    next(source.blocks(rows=1))
                if name in ("id", "label"):
                    assert compared(*files, representation="logits", columns=list("abc")) == pytest.approx(
                        right
                    )
            with refused(FileError, got=f"column '{name}' of whole numbers"):
                compared(*frames, representation="logits")
    for values in (NO_CLASSES["id"], NO_CLASSES["gaps"]):
        arrays = [np.column_stack([values, x.to_numpy()]) for x in (p, q)]
        np.save(tmp_path / "p.npy", arrays[0])
        for sides in (arrays, [torch.from_numpy(x) for x in arrays], [tmp_path / "p.npy", arrays[1]]):
            with refused(FileError, got="column 0 of whole numbers", instead="--columns 1,2,3"):
                compared(*sides, representation="logits")
            assert compared(*sides, representation="logits", columns=[1, 2, 3]) == pytest.approx(right)


def test_few_rows_show_a_label_only_where_its_type_is_whole(tmp_path: Path) -> None:
    few = logits(0)[:5].assign(label=[0, 1, 2, 1, 0])
    for suffix in ("csv", "parquet"):
        with refused(FileError, got="column 'label'"):
            compared(*[save(few, tmp_path / f"few.{suffix}")] * 2, representation="logits")
    few = logits(0)[:19].assign(d=np.arange(19))
    assert compared(few, few, representation="logits") == 0


def test_columns_of_classes_are_not_refused(tmp_path: Path) -> None:
    p = logits(0)
    whole = np.random.default_rng(3).integers(-9, 9, ROWS)
    for frame in (
        p.assign(d=whole),  # a rounded score
        p.set_axis(["LABEL_0", "LABEL_1", "LABEL_2"], axis=1).assign(LABEL_0=0),
        pd.DataFrame(np.arange(60.0).reshape(20, 3), columns=list("abc")),
        pd.DataFrame(np.arange(20.0)[:, None] + np.zeros(3), columns=list("abc")),
        p.assign(label=p.a),
    ):
        for side in (frame, save(frame, tmp_path / "p.parquet"), save(frame, tmp_path / "p.csv")):
            assert compared(side, side, representation="logits") == 0
    counts = pd.DataFrame(np.random.default_rng(4).integers(1, 99, (ROWS, 3)), columns=["y", "label", "no"])
    assert compared(counts, counts, representation="counts") == 0
    for name, values in (("n", np.arange(ROWS)), ("user_id", random.permutation(ROWS))):
        with_ids = counts.assign(**{name: values})
        with refused(FileError, got=f"column '{name}'"):
            compared(with_ids, with_ids, representation="counts")


def test_columns_choose_classes_on_the_command_line(tmp_path: Path) -> None:
    p, q = probabilities(), probabilities(1)
    right = mean_kl(p, q)
    p_file = save(p.assign(id=np.arange(ROWS), text="x"), tmp_path / "p.csv")
    q_file = save(q[OTHER_ORDER].assign(label=0), tmp_path / "q.parquet")

    def run(*options: str) -> Result:
        command = ["compare", str(p_file), str(q_file), "--as", "probs", "--bootstrap", "0", *options]
        return CliRunner().invoke(kullback, command)

    found = run("--columns", "dog,cat,owl", "--fail-above", f"mean.value={right + 1e-9}")
    assert found.exit_code == 0, found.output
    found = run("--columns", "dog,cat,owl", "--fail-above", f"mean.value={right - 1e-9}")
    assert found.exit_code == 1
    found = run("--columns", "dog,cat,emu")
    assert found.exit_code == 2
    assert "'emu', which is no column" in found.output
    assert run().exit_code == 2


def test_wrong_columns_are_refused() -> None:
    p = probabilities().to_numpy()
    for columns in ("cat", [], ["cat", "cat"], [1.5], 3):
        with refused(KullbackError, argument="columns"):
            compared(p, p, columns=columns)
    with refused(FileError, wanted="the file has no names, so that these are positions"):
        compared(p, p, columns=["cat"])
    assert math.isfinite(compared(np.log(p), np.log(p), representation="logits", columns=[2, 0]))
