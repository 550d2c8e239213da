"""A reference that is kept as counts alone, and new batches that are checked against it.

The profile on disk holds counts on a grid and of categories, a few KB and no row of the data. Profiles of batches that
are counted like the reference add up exactly, on one machine or on many.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path

from kullback.errors import ArgumentValueError, FileError, explain
from kullback.tables.profile import Profile, profile_table

__all__ = ["batch_profile", "is_profile", "merge_profiles", "profile_path", "reference_profile"]

SUFFIX = ".profile.json"
OPENING = '{"schema":"kullback.profile/'


def profile_path(reference: str | os.PathLike[str]) -> Path:
    """Return where the profile of a reference is kept: beside it, as ``NAME.profile.json``.

    Example:
        >>> profile_path("data/march.parquet").name
        'march.parquet.profile.json'
    """
    path = Path(reference)
    return path.with_name(path.name + SUFFIX)


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Say whether a file is a saved profile, and not a table."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(OPENING)) == OPENING.encode()
    except OSError:
        return False


def reference_profile(
    reference: str | os.PathLike[str],
    profile: str | os.PathLike[str] | None = None,
    *,
    rebuild: bool = False,
    columns: Sequence[str] | None = None,
    weights: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Profile:
    """Return the profile of a reference: the one that is kept, else a new one, which is then kept.

    Arguments:
        reference: a table's path, which may be gone once its profile is kept; or a profile's.
        profile: where the profile is kept; beside the reference by default.
        rebuild: count the reference anew, whatever is kept.
        columns: which columns to count; all by default.
        weights: the column that says what each row counts for.
        progress: called with a sentence before each reading of the table.

    Returns:
        the profile.

    Raises:
        ArgumentValueError: the profile that is kept was counted with other weights.
        FileError: the reference has changed since it was counted, or a file cannot be read or written.

    Example:
        >>> import pathlib, tempfile, pyarrow as pa, pyarrow.parquet
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "march.parquet"
        >>> pyarrow.parquet.write_table(pa.table({"x": [1, 2, 2]}), path)
        >>> reference_profile(path).rows, profile_path(path).exists()
        (3, True)
    """
    kept = Path(reference) if is_profile(reference) else Path(profile or profile_path(reference))
    if kept == Path(reference) or (kept.exists() and not rebuild):
        _check_age(reference, kept)
        found = Profile.load(kept)
        if weights != found.weights and weights is not None:
            instead = f"weights={found.weights!r}, or rebuild=True (--rebuild)"
            raise ArgumentValueError(
                explain(
                    "watch",
                    "weights",
                    wanted=f"the weights of {kept}, {found.weights!r}",
                    got=repr(weights),
                    instead=instead,
                )
            )
        return found if columns is None else _only(found, columns, kept)
    found = profile_table(os.fspath(reference), columns=columns, weights=weights, progress=progress)
    found.save(kept)
    # What is kept may name fewer categories: the first check and later ones compare with the same.
    return Profile.load(kept)


def batch_profile(
    batch: str | os.PathLike[str],
    reference: Profile,
    *,
    columns: Sequence[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Profile:
    """Return the profile of a batch, counted like the reference; or a profile that was saved.

    Arguments:
        batch: a table's path, or a profile's.
        reference: the reference's profile.
        columns: which columns to count; all by default.
        progress: called with a sentence before each reading of the table.

    Returns:
        the profile, which can be compared with the reference and merged with other batches.

    Raises:
        ArgumentValueError: the column of weights is missing.
        FileError: the file is missing, damaged or of an unknown format.
    """
    if is_profile(batch):
        found = Profile.load(batch)
        return found if columns is None else _only(found, columns, Path(batch))
    return profile_table(
        os.fspath(batch), columns=columns, weights=reference.weights, like=reference, progress=progress
    )


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of all parts together.

    Arguments:
        profiles: one or more, all counted like the same reference.

    Raises:
        ArgumentValueError: there is none, or two have different columns, weights or grids.
    """
    if not profiles:
        raise ArgumentValueError(
            explain(
                "merge_profiles",
                "profiles",
                wanted="one profile or more",
                got="none",
                instead="merge_profiles([first, second])",
            )
        )
    return reduce(Profile.merge, profiles)


def _only(profile: Profile, columns: Sequence[str], path: Path) -> Profile:
    missing = [name for name in columns if name not in profile.columns]
    if missing:
        raise FileError(
            f"{path}: wanted a profile of column {missing[0]!r}; it has {', '.join(profile.columns)}"
        )
    held = {name: column for name, column in profile.columns.items() if name in columns}
    return Profile(held, profile.rows, profile.weight, profile.weight_squares, {}, profile.weights)


def _check_age(reference: str | os.PathLike[str], kept: Path) -> None:
    """Refuse a profile that is older than the table it stands for."""
    files = [path for path in map(Path, glob.glob(os.fspath(reference))) if path.is_file() and path != kept]  # noqa: PTH207 - a pattern may be absolute
    if kept.exists() and any(path.stat().st_mtime > kept.stat().st_mtime for path in files):
        raise FileError(
            f"{os.fspath(reference)} has changed since its profile {kept} was written: wanted an unchanged reference; "
            f"name the profile itself to go on with it, or count anew with --rebuild (rebuild=True)"
        )
