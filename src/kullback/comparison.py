"""`compare`, which compares predictions, tables or language models, depending on its arguments."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from kullback.common.extra_arguments import unknown_keyword
from kullback.common.optional import load
from kullback.common.words import is_model
from kullback.errors import ArgumentTypeError, FileError, invalid_type, safe_repr

if TYPE_CHECKING:
    from kullback.models import ModelComparison
    from kullback.predictions import Comparison
    from kullback.tables import TableComparison

Subject = Literal["predictions", "tables", "models"]
_CALLS: dict[Subject, str] = {
    "predictions": "compare_predictions",
    "tables": "compare_tables",
    "models": "compare_models",
}


def compare(a: object, b: object, **options: Any) -> Comparison | TableComparison | ModelComparison:
    r"""Compare predictions, tables or language models, as the command ``kullback compare`` does.

    .. math:: KL(P \| Q) = E_P[\log p - \log q], \quad P \text{ from } a,\; Q \text{ from } b

    The divergence is computed for each row, each column or each token. The types of a and b determine which function is
    called:

    | a and b are | function |
    |---|---|
    | models: folders, ``.gguf`` files, modules, servers, ``.klref`` files, cards; or ``texts=`` | `compare_models` |
    | data frames, or two Parquet files without lists | `compare_tables` |
    | `Logits` and the like, tensors, arrays, other files | `compare_predictions` |

    Two Parquet files are predictions if they contain only integers, or if an option of `compare_predictions` is passed.
    Data frames are predictions if `representation` is passed.

    Arguments:
        a: P, the reference.
        b: Q, which is compared with P; for models, also a list or mapping of several models.
        options: keyword arguments of the function that is called.

    Returns:
        the result of that function: a `Comparison`, a `TableComparison` or a `ModelComparison`.

    Raises:
        ArgumentTypeError: `a` and `b` are not both predictions, tables or models, or the called function does not
            accept one of the options.
        KullbackError: the called function raises an error.

    Example:
        >>> import pyarrow as pa
        >>> from kullback import Probs, compare
        >>> compare(pa.table({"x": [1, 2] * 30}), pa.table({"x": [1, 2] * 30})).columns[0].name
        'x'
        >>> compare(Probs([[0.5, 0.5]]), Probs([[0.25, 0.75]])).rows
        1

    References:
        On Information and Sufficiency (Kullback and Leibler, 1951)
    """
    subject = subject_of_call(a, b, options)
    function = _function(subject)
    unknown = [name for name in options if name not in _options_of(subject)]
    if unknown:
        raise _unknown_options(subject, unknown)
    return function(a, b, **options)


def subject_of_call(a: object, b: object, options: Mapping[str, Any]) -> Subject:
    """Return the subject that a call of `compare` with these options compares."""
    rows = [name for name in _options_of("predictions") if name not in _options_of("tables")]
    return subject_of(
        (a, b),
        has_text=options.get("texts") is not None,
        has_row_options=any(name in rows for name in options),
        hub=bool(getattr(options.get("loading"), "hub", False)),
        frames_hold_rows=options.get("representation") is not None,
    )


def subject_of(
    sides: Sequence[object],
    *,
    has_text: bool = False,
    has_row_options: bool = False,
    hub: bool = False,
    frames_hold_rows: bool = False,
) -> Subject:
    """Return whether the sides of a comparison (P, then one or several Q) are predictions, tables or models.

    `has_text` is for a text to compare models on, and `has_row_options` for an option of predictions alone. With `hub`,
    a name may be a model's on the Hugging Face hub. With `frames_hold_rows`, data frames are predictions.
    """
    if has_text:
        return "models"
    sorts = [_subjects(side, hub=hub, frames_hold_rows=frames_hold_rows) for side in sides]
    common = set[Subject].intersection(*sorts)
    if any(sort == {"models"} for sort in sorts) and all("models" in sort for sort in sorts):
        return "models"
    if not common:
        raise invalid_type(
            "compare",
            "a, b",
            wanted="two predictions, two tables or two models",
            got=" and ".join(
                " or ".join(sorted(sort)) or f"{type(side).__name__} {safe_repr(side)}"
                for side, sort in zip(sides, sorts, strict=True)
            ),
            instead="compare_predictions(a, b), compare_tables(a, b) or compare_models(a, b, texts)",
        )
    is_table = common == {"tables"}
    if not is_table and "tables" in common and len(sides) == 2 and not has_row_options:
        is_table = _are_tables([os.fspath(cast("str", side)) for side in sides])
    return "tables" if is_table else "predictions"


def _subjects(side: object, *, hub: bool, frames_hold_rows: bool) -> set[Subject]:
    if isinstance(side, str | os.PathLike):
        return {"models"} if is_model(side, hub=hub) else {"predictions", "tables", "models"}
    # Every data frame has columns. Reading them from the object might compute them.
    if hasattr(type(side), "columns"):
        return {"predictions"} if frames_hold_rows else {"tables"}
    import torch

    from kullback.io import Reference, RowStream, TopKSource
    from kullback.models import LanguageModel
    from kullback.representations import Representation

    models = torch.nn.Module | LanguageModel | Reference | TopKSource
    if isinstance(side, models | list | tuple | Mapping):
        return {"models"}
    if isinstance(side, Representation) or hasattr(type(side), "__array__"):
        return {"predictions"}
    return {"predictions", "models"} if isinstance(side, RowStream) else set()


def _are_tables(names: list[str]) -> bool:
    """Return whether all names are Parquet files that count as tables: no lists, and not only integers."""
    if not all(name.endswith(".parquet") and Path(name).is_file() for name in names):
        return False
    from kullback.io.parquet import open_parquet
    from kullback.io.source_files import FileReference

    columns: list[Any] = []
    for name in names:
        try:
            with open_parquet(FileReference(Path(name), "p")) as file:
                columns += [column.type for column in file.schema_arrow]
        except FileError:  # the file is damaged, and reading it later raises the error
            return False
    types = load("pyarrow.types", "a .parquet file")
    return not any(map(types.is_nested, columns)) and not all(map(types.is_integer, columns))


def _function(subject: Subject) -> Callable[..., Any]:
    """Return the function that compares the subject, and import only the package of this function."""
    return getattr(import_module(f"kullback.{subject}"), _CALLS[subject])


def _options_of(subject: Subject) -> list[str]:
    return list(inspect.signature(_function(subject)).parameters)[2:]


def _unknown_options(subject: Subject, unknown: list[str]) -> ArgumentTypeError:
    """Return the error for options that the function for `subject` does not have."""
    others = [
        f"{call}(a, b, {name}=...)"
        for other, call in _CALLS.items()
        for name in unknown
        if name in _options_of(other)
    ]
    names = _options_of(subject)
    example = f"compare(a, b) with one of {', '.join(names)}"
    return invalid_type(
        "compare",
        ", ".join(unknown),
        wanted=f"options of {_CALLS[subject]}, as a and b are {subject}",
        got=", ".join(unknown),
        instead=" or ".join(others) or unknown_keyword(dict.fromkeys(unknown), names, example)["instead"],
    )
