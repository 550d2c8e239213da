"""The saved profile of a reference, and the profiles of batches that are compared with it.

A saved profile takes a few KB for each column. It holds the counts of grid buckets and of categories, but no row of the
data. If batches are counted like the reference, their profiles add up exactly.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from kullback.common.files import matched
from kullback.errors import LONGEST_MESSAGE, FileError, invalid_value, printable, quoted
from kullback.tables.arguments import chosen_of, name_or_none, refuse_unknown
from kullback.tables.engines import open_table
from kullback.tables.engines.engine import Caller
from kullback.tables.table_profile import Counting, Profile, profile_opened

SUFFIX = ".profile.json"
OPENING = '{"schema":"kullback.profile/'


def profile_path(reference: str | os.PathLike[str]) -> Path:
    """Return the default path of the profile of a reference: ``NAME.profile.json`` in the same folder.

    Example:
        >>> profile_path("data/march.parquet").name
        'march.parquet.profile.json'
    """
    path = Path(reference)
    if not path.name:
        raise FileError.at(
            f"reference = {printable(path)}",
            "reference",
            wanted="a table or a profile",
            got="a directory",
            instead="name a file inside it",
        )
    return path.with_name(path.name + SUFFIX)


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a saved profile, not a table."""
    try:
        if not Path(path).is_file():  # reading from a pipe would wait for data
            return False
        with Path(path).open("rb") as file:
            return file.read(len(OPENING)) == OPENING.encode()
    except OSError:
        return False


def _is_cut(path: Path) -> bool:
    """Whether a file holds only the first bytes of a profile; replacing such a file loses nothing."""
    try:
        return (
            path.is_file()
            and path.stat().st_size < len(OPENING)
            and OPENING.encode().startswith(path.read_bytes())
        )
    except OSError:
        return False


def reference_profile(
    reference: str | os.PathLike[str],
    profile: str | os.PathLike[str] | None = None,
    *,
    rebuild: bool = False,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    weights: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Profile:
    """Return the saved profile of a reference, or count the reference and save its profile.

    Arguments:
        reference: the path of a table or of a saved profile. The table is no longer needed once its profile is saved.
        profile: the path of the profile; None means ``NAME.profile.json`` in the folder of the reference.
        rebuild: whether to count the reference again and replace its profile.
        columns: the names of the columns to count; None counts all columns.
        exclude: the names of the columns to leave out; cannot be combined with `columns`. A new profile keeps only the
            names of these columns.
        weights: the column of the rows' weights; None uses a saved profile's column, or gives each row the weight 1.
        progress: a function that is called with a sentence before each reading of the table; None reports nothing.

    Returns:
        the profile.

    Raises:
        ArgumentValueError: the saved profile was counted with other weights.
        FileError: the reference has changed since it was counted, or a file cannot be read or written.

    Example:
        >>> import pathlib, tempfile, pyarrow as pa, pyarrow.parquet
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "march.parquet"
        >>> pyarrow.parquet.write_table(pa.table({"x": [1, 2, 2]}), path)
        >>> reference_profile(path).rows, profile_path(path).exists()
        (3, True)
    """
    columns, excluded = chosen_of("reference_profile", columns, exclude)
    saved = Path(reference) if is_profile(reference) else Path(profile or profile_path(reference))
    if saved == Path(reference) or (saved.exists() and not rebuild):
        _check_age(reference, saved)
        known = Profile.load(saved)
        if weights != known.weights and weights is not None:
            wanted = f"the weights of {printable(saved)}, {name_or_none(known.weights)}, or rebuild=True (--rebuild)"
            raise invalid_value(
                "reference_profile",
                "weights",
                wanted=wanted,
                got=quoted(weights),
                instead={"weights": known.weights} if known.weights else {"rebuild": True},
            )
        return _only(known, columns, excluded, saved)
    if saved.exists() and not (is_profile(saved) or _is_cut(saved)):
        raise FileError.at(
            printable(saved),
            wanted="a profile to replace",
            got="another file",
            instead="name another one with --profile",
        )
    table = open_table(os.fspath(reference), Caller("reference_profile", "reference"))
    refuse_unknown("reference_profile", excluded, list(table.fields), "the table")
    counted = profile_opened(table, columns, Counting(weights, None, progress), exclude=excluded)
    # A later call may exclude the same columns. A call without exclude= reports why these columns are not compared.
    counted.skipped |= dict.fromkeys(excluded, "left out when the profile was made")
    counted.save(saved)
    # The saved profile may name fewer categories. The first comparison uses it too, so later comparisons agree with it.
    return _only(Profile.load(saved), None, excluded, saved)


def batch_profile(
    batch: str | os.PathLike[str],
    reference: Profile,
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Profile:
    """Return the profile of a batch. It is counted like the reference, to be comparable and mergeable.

    The batch is the path of a table, or of a saved profile. It may lack columns of `exclude`. `reference_profile`
    describes the other arguments.
    """
    columns, excluded = chosen_of("batch_profile", columns, exclude)
    if is_profile(batch):
        saved = Profile.load(batch)
        there = [name for name in excluded if name in _names(saved)]
        return _only(saved, columns, there, Path(batch))
    table = open_table(os.fspath(batch), Caller("batch_profile", "batch"))
    counting = Counting(reference.weights, reference, progress)
    return profile_opened(table, columns, counting, exclude=excluded)


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of all parts together; they have to be counted like the same reference."""
    if not profiles:
        instead = "merge_profiles([first, second])"
        raise invalid_value(
            "merge_profiles", "profiles", wanted="one profile or more", got="none", instead=instead
        )
    return reduce(Profile.merge, profiles)


def _names(profile: Profile) -> list[str]:
    return [*profile.columns, *profile.skipped]


def _only(profile: Profile, columns: Sequence[str] | None, exclude: Sequence[str], path: Path) -> Profile:
    """Return a saved profile reduced to `columns`, or without the columns in `exclude`."""
    if columns is None and not exclude:
        return profile
    there = list(profile.columns) if columns is not None else _names(profile)
    missing = [name for name in columns or exclude if name not in there]
    if missing:
        argument = "exclude" if columns is None else "columns"
        raise FileError.at(
            printable(path),
            argument,
            wanted=f"a profile of column {quoted(missing[0])}",
            got=printable(", ".join(map(quoted, there)), LONGEST_MESSAGE),
            instead=f"{argument}= of these, or rebuild=True",
            wording="wanted {wanted}; it has {got}",
        )
    kept = {
        name: column
        for name, column in profile.columns.items()
        if name not in exclude and (columns is None or name in columns)
    }
    skipped = {} if columns is not None else profile.skipped
    skipped = {name: reason for name, reason in skipped.items() if name not in exclude}
    order = None if profile.order is None else profile.order.of_columns(kept)
    return replace(profile, columns=kept, skipped=skipped, order=order)


def _check_age(reference: str | os.PathLike[str], saved: Path) -> None:
    """Refuse a profile that is older than its table."""
    files = [path for path in matched(reference) if path.is_file() and path != saved]
    if saved.exists() and any(path.stat().st_mtime > saved.stat().st_mtime for path in files):
        raise FileError.at(
            f"{printable(reference)} has changed since its profile {printable(saved)} was written",
            wanted="an unchanged reference",
            got="a changed one",
            instead="name the profile itself to use it, or count anew with --rebuild (rebuild=True)",
            wording="wanted {wanted}; {instead}",
        )
