"""The command ``kullback fit``."""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kullback.cli.options import FILE, JSON, KIND, NO_PROGRESS, SEED, as_kind, split_names
from kullback.cli.outputs import Outputs, check_outputs, write_reports
from kullback.cli.wording import in_options
from kullback.errors import ArgumentValueError, KullbackError, quoted

if TYPE_CHECKING:
    from kullback.projection.result import Fit

__all__ = ["fit"]

# The arguments of the library that are given here, and its remedies as options.
OPTIONS = {"q": "Q", "to": "--to", "kind": "--kind", "fixed": "--fixed"}
REMEDIES = (
    (r"fixed=\(\)", "no --fixed"),
    (r"fixed=\('([^']*)',\)", r"--fixed \1"),
    (r"\bfixed=", "--fixed"),
    (r"kind=KL\(\)", "--kind kl"),
    (r"kind=ReverseKL\(\)", "--kind reverse_kl"),
)
TABLES = (".parquet", ".csv", ".ndjson", ".jsonl", ".npy")


@click.command()
@click.argument("q")
@click.option("--to", required=True, help="The target: a distribution, or a file of draws.")
@click.option("--column", metavar="NAME", help="The column of a table that holds the draws.")
@click.option("--weights", metavar="NAME", help="The column of a table that holds the draws' weights.")
@KIND
@click.option(
    "--fixed",
    callback=split_names,
    metavar="A,B,...",
    help="The parameters of Q that stay as they are.",
)
@click.option(
    "--starts",
    type=click.IntRange(1),
    help="How many starts to take at most, of EM or near a mixture's components.",
)
@JSON
@click.option("--plot", type=FILE, help="Draw target, fit and history into FILE: svg, png or pdf.")
@SEED
@NO_PROGRESS
def fit(
    q: str,
    to: str,
    column: str | None,
    weights: str | None,
    kind: str,
    fixed: list[str] | None,
    starts: int | None,
    json_path: str | None,
    plot: Path | None,
    seed: int,
    *,
    no_progress: bool,
) -> None:
    """Fit Q to a target: find the parameters with the least divergence between them.

    Q is a distribution of torch.distributions with its start, such as 'Normal(0, 1)', or a class such as Normal. The
    target is a distribution, or a file of draws: a table with --column, or a .npy array. KL is from the target to Q;
    reverse_kl from Q to the target. The exit status is 2 if there is no fit, or if it did not converge.

    \b
    kullback fit Normal --to 'Gamma(3, 1)'
    kullback fit 'Normal(0, 1)' --to 'Laplace(2, 1)' \\
        --kind reverse_kl
    kullback fit Normal --to before.parquet --column x
    """
    is_file = to.lower().endswith(TABLES) or Path(to).is_file()
    if not is_file and (column or weights):
        raise ArgumentValueError("--column and --weights are for a file of draws; --to is a distribution")
    if plot is not None and plot.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise ArgumentValueError(f"--plot: wanted a file that ends in .svg, .png or .pdf; got {quoted(plot)}")
    outputs = Outputs(json_path, None)
    check_outputs(outputs, [Path(to)] if is_file else [], [] if plot is None else [plot])
    found = _fitted(q, to, is_file, column, weights, kind, fixed or [], starts, seed, not no_progress)
    from kullback.report.fits.terminal import render

    write_reports(
        outputs,
        json=found.to_json,
        table=partial(render, found),
        others={} if plot is None else {plot: _drawn(found, plot)},
    )


def _fitted(
    q: str,
    to: str,
    is_file: bool,
    column: str | None,
    weights: str | None,
    kind: str,
    fixed: list[str],
    starts: int | None,
    seed: int,
    show_progress: bool,
) -> Fit:
    import torch

    from kullback import projection
    from kullback.cli.expressions import parse_distribution, parse_family

    warnings.simplefilter("ignore")  # of torch's, on parameters at the edge
    family = parse_family(q)
    target: Any = _draws(Path(to), column, weights, family) if is_file else parse_distribution(to)
    try:
        with in_options(OPTIONS, _remedy):
            return projection.fit(
                family,
                to=target,
                kind=as_kind("fit", kind),
                fixed=fixed,
                starts=starts,
                generator=torch.Generator().manual_seed(seed),
                show_progress=show_progress,
            )
    except KullbackError:
        raise
    except Exception as error:  # of torch's, for parameters that it accepted and cannot compute with
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArgumentValueError(f"{quoted(q)} cannot be fitted to {quoted(to)}: {reason}") from error


def _remedy(_: str, instead: str) -> str:
    for written, option in REMEDIES:
        instead = re.sub(written, option, instead)
    return instead


def _draws(path: Path, column: str | None, weights: str | None, family: Any) -> Any:
    """Read the draws of a file, in which text is for a family of classes alone."""
    import numpy as np

    from kullback.projection.objective import is_categorical
    from kullback.samples import Samples

    of_classes = is_categorical(family)
    if path.suffix.lower() != ".npy":
        return _draws_of_table(path, column, weights, of_classes)
    if column or weights:
        raise ArgumentValueError("--column and --weights are for tables; a .npy file has no columns")
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentValueError(f"{quoted(path)} is no array of numbers: {error}") from None
    if values.dtype.kind in "UT" and not of_classes:
        raise _text_in(f"--to {quoted(path)}", values.reshape(-1).tolist())
    if values.dtype.kind not in "biufUT":
        raise ArgumentValueError(
            f"--to {quoted(path)}: wanted numbers; got an array of {values.dtype}; convert it first"
        )
    return Samples(values)


def _draws_of_table(path: Path, column: str | None, weights: str | None, of_classes: bool) -> Any:
    from kullback.samples import Samples

    table = _table(path)
    names: list[str] = table.column_names
    if not names:
        what = "a folder without tables" if path.is_dir() else "no column in it"
        raise ArgumentValueError(
            f"--to {quoted(path)}: wanted a table of draws; got {what}; name a file of draws"
        )
    if not table.num_rows:
        raise ArgumentValueError(
            f"--to {quoted(path)}: wanted at least one draw; got a table without rows; add some"
        )
    listed = ", ".join(map(quoted, names[:20]))
    if column is None and len(names) == 1:
        column = names[0]
    if column is None:
        raise ArgumentValueError(f"{quoted(path)} has {len(names)} columns; name one with --column: {listed}")
    chosen = {"--column": column} if weights is None else {"--column": column, "--weights": weights}
    for option, name in chosen.items():
        if name not in names:
            raise ArgumentValueError(f"{quoted(path)} has no column {quoted(name)}; it has {listed}")
        if names.count(name) > 1:
            raise ArgumentValueError(
                f"{option} {quoted(name)}: wanted the name of one column of {quoted(path)}; got that of "
                f"{names.count(name)}; give each a name of its own"
            )
        if table[name].null_count:
            row = table[name].is_null().index(True).as_py()
            raise ArgumentValueError(
                f"{option} {quoted(name)}: wanted a value in every row of {quoted(path)}; got missing values, the "
                f"first in row {row}, counted from 0; drop these first"
            )
    values = _values(f"--column {quoted(column)} of {quoted(path)}", table[column], of_classes=of_classes)
    weighted = None
    if weights is not None:
        weighted = _values(f"--weights {quoted(weights)} of {quoted(path)}", table[weights]).astype("float64")
    return Samples(values, weights=weighted)


def _table(path: Path) -> Any:
    """Read a table with Arrow: the readers of tables take no CSV without a header, those of predictions no weights."""
    from kullback.io.csv_text import csv_table, header_of
    from kullback.io.files import FileReference
    from kullback.optional import load

    suffix = path.suffix.lower()
    if suffix not in TABLES:
        raise ArgumentValueError(f"{quoted(path)} is no file of draws: wanted one of {', '.join(TABLES)}")
    if not path.exists():  # Arrow would take s3:/... and file:/... for URLs
        raise ArgumentValueError(f"{quoted(path)} cannot be read: there is no such file; check the path")
    arrow = load("pyarrow", "reading a table")
    try:
        if suffix == ".csv":
            ref = FileReference(path, "--to")
            return csv_table(ref, header_of(ref))
        if suffix == ".parquet":
            return load("pyarrow.parquet", "reading a table").read_table(str(path))
        return load("pyarrow.json", "reading a table").read_json(str(path))
    except (arrow.ArrowException, OSError) as error:
        raise ArgumentValueError(f"{quoted(path)} cannot be read: {' '.join(str(error).split())}") from None


def _values(option: str, held: Any, *, of_classes: bool = False) -> Any:
    """Return a column as an array of numbers or vectors, or as a list of texts where these are classes."""
    import numpy as np

    from kullback.optional import load

    arrow = load("pyarrow", "reading a table")
    types = arrow.types
    if types.is_dictionary(held.type):
        held = held.cast(held.type.value_type)
    if types.is_decimal(held.type):
        held = held.cast(arrow.float64())
    kind = held.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return held.to_numpy()
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        texts = held.to_pylist()
        if of_classes:
            return texts
        raise _text_in(option, texts, *(["leave --weights out"] if option.startswith("--weights") else []))
    if not option.startswith("--weights") and _is_of_vectors(types, kind):
        try:
            return np.array(held.to_pylist(), dtype=kind.value_type.to_pandas_dtype())
        except (TypeError, ValueError):
            raise ArgumentValueError(
                f"{option}: wanted vectors of one length; got lists of several, or missing values in them; correct or "
                "drop these first"
            ) from None
    raise ArgumentValueError(
        f"{option}: wanted numbers; got a column of type {kind}; convert it to numbers first"
    )


def _is_of_vectors(types: Any, kind: Any) -> bool:
    """Tell whether a column holds lists of numbers."""
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and (types.is_integer(kind.value_type) or types.is_floating(kind.value_type))


def _text_in(
    option: str, texts: list[str], instead: str = "fit a Categorical, which counts text"
) -> ArgumentValueError:
    """Return the error for text in place of numbers, which names the first that is none."""
    for row, text in enumerate(texts):
        try:
            float(text)
        except ValueError:
            return ArgumentValueError(
                f"{option}: wanted numbers; got {quoted(text)} in row {row}, counted from 0; correct or drop it, or "
                f"{instead}"
            )
    return ArgumentValueError(f"{option}: wanted numbers; got text, each a number; write them as numbers")


def _drawn(found: Fit, path: Path) -> bytes:
    """Return the plot in the format that the name of its file says."""
    from io import BytesIO

    file = BytesIO()
    found.plot().savefig(file, format=path.suffix.lower().lstrip("."))
    return file.getvalue()
