"""The names of classes in files: matching names between two files, and detecting columns of ids or labels."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from kullback.common.formats import listed
from kullback.common.words import NO_LABEL, is_name_of_ids, nearest
from kullback.errors import FileError, printable, quoted
from kullback.io.source_files import FileReference

# The possible names of an array or a metadata entry that holds the names of the classes.
NAMES_OF_CLASSES = ("class_names", "classes", "columns", "names", "labels", "categories", "vocabulary")
# The number of rows that are enough to decide that a column of whole numbers has no scores.
ENOUGH_ROWS = 20
_SHOWN = 5
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


def some_of(is_whole: Sequence[bool]) -> frozenset[int]:
    """Return the columns with whole numbers; no column if all columns have whole numbers."""
    places = frozenset(at for at, whole in enumerate(is_whole) if whole)
    return places if len(places) < len(is_whole) else frozenset()


def list_from_text(text: str) -> object:
    """Return the value of JSON text, usually a list of names; split text that is not JSON at its commas.

    Example:
        >>> list_from_text('["cat", "dog"]'), list_from_text("cat, dog"), list_from_text("100")
        (['cat', 'dog'], ['cat', ' dog'], 100)
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.split(",")


def names_from(listed: object, classes: int) -> tuple[str, ...] | None:
    """Return the names in a list of texts; None unless the list has one text for each of two or more classes."""
    if not isinstance(listed, list | tuple) or len(cast("list[Any]", listed)) != classes or classes < 2:
        return None
    names = cast("list[Any]", listed)
    return tuple(name.strip() for name in names) if all(isinstance(name, str) for name in names) else None


def first_names(lists: Iterable[object], classes: int) -> tuple[str, ...] | None:
    """Return the names in the first list that has one name for each class; None if there is no such list."""
    return next(filter(None, (names_from(listed, classes) for listed in lists)), None)


def positions_of(names: Sequence[str]) -> list[int] | None:
    """Return the position that each name states, if all names are one stem and a number from 0 or 1 on; otherwise None.

    Example:
        >>> positions_of(["class_2", "class_0", "class_1"]), positions_of(["1", "2"]), positions_of(["cat", "dog"])
        ([2, 0, 1], [0, 1], None)
    """
    parts = [_NUMBERED.fullmatch(name.strip()) for name in names]
    if not names or not all(parts) or len({part[1] for part in parts if part}) != 1:
        return None
    numbers = [int(part[2]) for part in parts if part and len(part[2]) < 10]
    first = min(numbers, default=2)
    if first > 1 or sorted(numbers) != list(range(first, first + len(names))):
        return None
    return [number - first for number in numbers]


def natural_order(names: Sequence[str] | None) -> list[int] | None:
    """Return the order of columns that sorts numbered classes by number; None if they are sorted or not numbered."""
    positions = None if names is None else positions_of(names)
    if positions is None or positions == sorted(positions):
        return None
    return sorted(range(len(positions)), key=positions.__getitem__)


def matching_order(
    p: Sequence[str] | None, q: Sequence[str] | None, refs: tuple[FileReference, FileReference]
) -> list[int] | None:
    """Return the order of Q's classes that pairs them with P's classes by name; None to pair the classes by position.

    Names with numbers from 0 or 1 on are positions, in the order of the numbers. A name in one file only is refused.
    """
    if p is None or q is None or tuple(p) == tuple(q):
        return None
    if set(p) == set(q) and len(set(p)) == len(p) == len(q):
        place = {name: at for at, name in enumerate(q)}
        return [place[name] for name in p]
    numbered = [positions_of(names) is not None for names in (p, q)]
    stems = [{re.sub("[0-9]+$", "", name) for name in names} for names in (p, q)]
    if any(numbered) and not set(p) & set(q) and (all(numbered) or not stems[0] & stems[1]):
        return None
    raise _unmatched(p, q, refs)


def unnamed_side(p: Sequence[str] | None, q: Sequence[str] | None) -> str | None:
    """Return a note if only one side names its classes; otherwise None."""
    named = [names is not None and positions_of(names) is None for names in (p, q)]
    if named[0] == named[1]:
        return None
    there, elsewhere = ("P", "Q") if named[0] else ("Q", "P")
    return f"Only {there} names its classes. They are paired with {elsewhere}'s by position."


def _unmatched(p: Sequence[str], q: Sequence[str], refs: tuple[FileReference, FileReference]) -> FileError:
    repeated = next((name for names in (p, q) for name in names if list(names).count(name) > 1), None)
    only = [[quoted(name) for name in sorted(set(a) - set(b))] for a, b in ((p, q), (q, p))]
    got = [
        f"{listed(names, _SHOWN)} only in {ref.name}" for names, ref in zip(only, refs, strict=True) if names
    ] or [f"{quoted(repeated)} more than once"]
    return refs[0].differs(
        refs[1],
        wanted="classes of the same names in both",
        got=" and ".join(got),
        instead="rename the columns if they are the same classes, or choose shared ones: columns= (--columns A,B)",
    )


def chosen_classes(
    columns: Sequence[str], names: Sequence[str] | None, classes: int, ref: FileReference
) -> list[int]:
    """Return the places of the chosen classes; if `names` is None, the name of a class is its position."""
    there = [str(index) for index in range(classes)] if names is None else list(names)
    unknown = next((name for name in columns if there.count(name) != 1), None)
    if unknown is not None:
        near = nearest(unknown, there) if names is not None else None
        unnamed = " (the file has no names, so that these are positions)" if names is None else ""
        raise ref.error(
            wanted=f"columns= (--columns) of the names {listed([*map(quoted, there)], _SHOWN)}{unnamed}, each once",
            got=f"{quoted(unknown)}, which is {'no' if unknown not in there else 'more than one'} column",
            instead="name columns of the file" if near is None else f"write {quoted(near)} instead",
        )
    return [there.index(name) for name in columns]


def places_of_labels(labels: Any, names: Sequence[str]) -> tuple[Any, Any]:
    """Return the places of labels that are names of classes, and the first label that is not a name.

    Integers are positions. But if all names are numbers other than 0, 1, ..., integers are names too. `NO_LABEL` is
    unchanged. The places are None if the labels are positions, and the label is None if there is no such label.

    Example:
        >>> import numpy
        >>> places_of_labels(numpy.array(["dog", "cat"]), ["cat", "dog"])
        (array([1, 0]), None)
        >>> places_of_labels(numpy.array([1, 0]), ["cat", "dog"])
        (None, None)
    """
    are_numbers = all(name.isascii() and name.isdigit() for name in names)
    is_text = labels.dtype.kind in "OU"
    if not is_text and (not are_numbers or list(names) == [str(at) for at in range(len(names))]):
        return None, None
    place = {name: at for at, name in enumerate(names)} | {str(NO_LABEL): NO_LABEL}
    keys = [str(label).strip() for label in labels.tolist()]
    unknown = next(
        (label for label, key in zip(labels.tolist(), keys, strict=True) if key not in place), None
    )
    return (None, unknown) if unknown is not None else (np.array([place[key] for key in keys]), None)


def refuse_other_columns(
    first: Tensor, names: Sequence[str] | None, integers: Collection[int], ref: FileReference
) -> None:
    """Refuse a column of whole numbers among other columns if the column counts rows or has a name for ids or labels.

    `first` are the first rows. `integers` are the columns with a type of whole numbers; empty if all have such a type.
    """
    rows, classes = first.shape
    if classes < 2 or not rows:
        return
    x = first.double()
    whole = (x == x.round()).all(0) & x.isfinite().all(0)
    steps = x.diff(dim=0)
    enough = rows >= ENOUGH_ROWS
    if bool(whole.all()):  # counts: a column may rise, and a class may have any name
        counting = (steps == 1).all(0) | (steps == -1).all(0)
        or_labels, fits_name = False, x.sort(0).values.diff(dim=0).ne(0).all(0)
    else:
        counting = whole & ((steps > 0).all(0) | (steps < 0).all(0))
        or_labels, fits_name = True, whole
    suspect = counting if enough else torch.zeros_like(whole)
    for at, name in enumerate(names or ()):
        if bool(fits_name[at]) and (enough or at in integers) and is_name_of_ids(name, or_labels=or_labels):
            suspect[at] = True
    if not bool(suspect.any()) or bool(suspect.all()):
        return
    at = int(suspect.nonzero()[0])
    what = "as a column of that name has for labels or ids"
    if enough and bool(counting[at]):
        what = "which count the rows, as ids do"
    others = [names[i] if names else str(i) for i in range(classes) if not suspect[i]]
    shown = ",".join(others[:_SHOWN]) + (",..." if len(others) > _SHOWN else "")
    raise ref.error(
        wanted="columns of numbers, one for each class",
        got=f"{f'column {names[at]!r}' if names else f'column {at}'} of whole numbers, {what}",
        instead=f"leave it out, or name the columns that are classes: columns= (--columns {printable(shown, 200)})",
    )
