"""Input and output files: comparison of paths, checks before a file is read or written, and atomic writes."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kullback.errors import BY_EVENT, FileError, printable

PathLike = str | os.PathLike[str]
_SAMPLES, _SAMPLE_BYTES = 16, 1 << 16


def same_file(a: PathLike, b: PathLike) -> bool:
    """Return whether two paths lead to the same file after following links; missing files are compared by path."""
    try:
        return Path(a).samefile(b)
    except OSError:
        return _resolved(a) == _resolved(b)


def by_numbers(text: str) -> list[tuple[int, str]]:
    """Return a key for sorting that puts step_9 before step_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def file_stamp(path: Path) -> tuple[int, int, str]:
    """Return the size and the modification time of a file, and a digest of 16 parts from its beginning to its end."""
    status = path.stat()
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        last = max(0, status.st_size - _SAMPLE_BYTES)
        for place in range(_SAMPLES):
            file.seek(last * place // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


def file_stamps(name: str) -> list[tuple[str, tuple[int, int, str]]]:
    """Return the name and the `file_stamp` of a file, or of every file in a folder; an empty list for other names."""
    path = Path(name)
    files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return [(each.name, file_stamp(each)) for each in files if each.is_file()]


def file_hash(path: Path) -> str:
    """Return the SHA-256 of the bytes of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_folders(name: str, among: Iterable[str] = ()) -> str:
    """Return the last part of a path, for others to read; a name that is not a path on this machine is unchanged.

    If other paths in `among` have the same last part, the result also has the folders below their common folder.

    Example:
        >>> without_folders("/home/me/q4.gguf"), without_folders("organization/model")
        ('q4.gguf', 'organization/model')
        >>> without_folders("/home/me/a/model", ["/home/me/b/model", "/home/base"])
        'a/model'
    """
    if not _is_path(name):
        return name
    path = os.path.abspath(name)  # noqa: PTH100 - the link's own name
    last = os.path.basename(path)  # noqa: PTH119
    alike = {path, *(os.path.abspath(each) for each in among if _is_path(each))}  # noqa: PTH100
    folders = [os.path.dirname(each) for each in alike if os.path.basename(each) == last]  # noqa: PTH119, PTH120
    return os.path.relpath(path, os.path.commonpath(folders)) if last else name


def _is_path(name: str) -> bool:
    return os.path.isabs(name) or os.path.exists(name)  # noqa: PTH110, PTH117 - any text


def refuse_overwriting(outputs: Iterable[PathLike], inputs: Iterable[PathLike | None]) -> None:
    """Raise if an output is an input, matches an input pattern with ``*``, is in an input folder, or occurs twice."""
    taken: list[PathLike] = [file for path in inputs if path is not None for file in matched(path)]
    folders = [path for path in taken if os.path.isdir(path)]  # noqa: PTH112 - False for an invalid path
    for path in outputs:
        for folder in folders:
            if _lies_in(path, folder):
                raise FileError.at(
                    f"cannot write {printable(path)}",
                    wanted="a file outside of the folders to read",
                    got=f"it is in {printable(folder)}, a folder to read",
                    instead="name a file in another folder",
                    wording=BY_EVENT,
                )
        if any(same_file(path, other) for other in taken):
            raise FileError.at(
                f"cannot write {printable(path)}",
                wanted="a file of its own to write to",
                got="it is one of the other files to read or to write",
                instead="name another one",
                wording=BY_EVENT,
            )
        taken.append(path)


def check_input(path: PathLike, name: str) -> None:
    """Raise if a path is neither a file nor a folder, because reading a pipe or a device may block or never end.

    A missing path passes this check, because the later attempt to open the path raises an error that names the file.
    The error of this check has the `name` of the argument or option.
    """
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        for file in matched(path):
            if file != Path(path):
                check_input(file, name)
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError.at(
            f"{name} = {printable(path)}", wanted="a file", got=reason, instead="check the path"
        ) from None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise FileError.at(
            f"{name} = {printable(path)}",
            wanted="a file, which can be read more than once",
            got=kind,
            instead="write its content to a file first",
        )


def check_writable(path: PathLike) -> None:
    """Raise if `write_all` could not write to a path. Call this function before a long computation.

    The check leaves no file behind and does not change an existing file. A pipe or a device is not opened.

    Example:
        >>> check_writable("report.html")
        >>> check_writable("missing/report.html")
        Traceback (most recent call last):
        ...
        kullback.errors.FileError: cannot write missing/report.html: No such file or directory; name a file ...
    """
    if os.fspath(path) == "-":
        instead = "name a file, or /dev/stdout"
        raise FileError.at("cannot write -", wanted="the path of a file", got="-", instead=instead)
    with write_errors(path):
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise _os_error(errno.EISDIR)
        if mode is not None and not os.access(path, os.W_OK):
            raise _os_error(errno.EACCES)
        if _is_replaced(mode):
            # The check creates a file, because a directory may be full, read-only, or protected by more than its mode.
            target = _resolved(path)
            if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
                raise _os_error(errno.ENAMETOOLONG)
            file, name = _created(target)
            file.close()
            if name is not None:
                name.unlink()


def write_all(contents: Mapping[PathLike, str | bytes]) -> None:
    r"""Write several files one after the other, each completely or not at all. Texts are encoded in UTF-8.

    The content goes into a file without a name in the same directory. When the file is complete, it gets its name in
    one step. A link still points to its file afterwards, and a new file keeps the permissions of the file that it
    replaces. Pipes and devices, such as ``/dev/stdout``, are written to directly.

    Raises:
        FileError: a file cannot be written, so it is unchanged; the message names the files that were written before.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.txt"
        >>> write_all({path: "mean 0.1\n"})
        >>> path.read_text()
        'mean 0.1\n'
    """
    written: list[PathLike] = []
    for path, content in contents.items():
        with write_errors(path, after=written), open_output(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        written.append(path)


@contextmanager
def open_output(path: PathLike) -> Generator[BinaryIO]:
    """Open a file for writing bytes; the file gets its name at the end of the context, if no error was raised."""
    mode = _mode(path)
    if not _is_replaced(mode):
        with Path(path).open("wb") as file:
            yield file
        return
    target = _resolved(path)
    file, temporary = _created(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            if temporary is None:
                temporary = _beside(target)
                # Python follows the /proc link only if a `dir_fd` is passed. For an absolute path, the value of
                # `dir_fd` is ignored.
                unnamed = f"/proc/self/fd/{file.fileno()}"
                os.link(unnamed, temporary, src_dir_fd=file.fileno(), follow_symlinks=True)
        temporary.replace(target)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _created(target: Path) -> tuple[BinaryIO, Path | None]:
    """Create a file in the folder of `target`; return the file and its path. The path of an unnamed file is None.

    The file is unnamed if the system supports such files, because a killed run leaves no unnamed file behind.
    """
    name = None
    try:
        number = os.open(target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
    except (AttributeError, OSError) as error:
        unsupported = errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL
        if isinstance(error, OSError) and error.errno not in unsupported:
            raise
        name = _beside(target)
        number = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
    return os.fdopen(number, "wb"), name


def _beside(target: Path) -> Path:
    return target.with_name(f".kullback-{secrets.token_hex(8)}.tmp")


def matched(path: PathLike) -> list[Path]:
    """Return the sorted paths of the files that match a pattern, a path with ``*``.

    The path of an existing file matches only itself, even if the path contains ``*``. A pattern that no file matches is
    returned unchanged.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a[1].csv", "b.csv"):
        ...     write_all({os.path.join(folder, name): "x"})
        >>> [path.name for path in matched(os.path.join(folder, "*.csv"))]
        ['a[1].csv', 'b.csv']
        >>> [path.name for path in matched(os.path.join(folder, "a[1].csv"))]
        ['a[1].csv']
    """
    text = os.fspath(path)
    if "*" not in text or os.path.lexists(text):
        return [Path(text)]
    names = glob.glob(re.sub(r"[?[]", r"[\g<0>]", text), recursive=True)  # noqa: PTH207 - Path does not accept "/*"
    return [Path(name) for name in sorted(names)] or [Path(text)]


def _lies_in(path: PathLike, folder: PathLike) -> bool:
    """Return whether `path` is inside `folder`, or is a file that a link in `folder` points to."""
    if _resolved(path).is_relative_to(_resolved(folder)):
        return True
    with suppress(OSError):
        return Path(path).exists() and any(same_file(path, file) for file in Path(folder).iterdir())
    return False


def _mode(path: PathLike) -> int | None:
    """Return the mode (type and permissions) of the file that a path leads to; None if the file does not exist."""
    try:
        return Path(path).stat().st_mode
    except FileNotFoundError:
        return None


def _resolved(path: PathLike) -> Path:
    return Path(os.path.realpath(path))  # unlike Path.resolve, raises no error for a loop of links


def _is_replaced(mode: int | None) -> bool:
    return mode is None or stat.S_ISREG(mode)


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextmanager
def write_errors(
    path: PathLike, more: str = "", after: Sequence[PathLike] = (), *, kind: str = "file"
) -> Generator[None]:
    """Convert a system error in the context into a FileError that names the file.

    `more` is appended to the remedy. The message names the files `after`, which are written before this file. `kind` is
    ``"file"`` or ``"folder"``.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        before = ", ".join(printable(name) for name in after)
        raise FileError.at(
            f"cannot write {printable(path)}",
            wanted=f"a {kind} that can be written",
            got=f"{reason} (already written: {before})" if before else reason,
            instead=f"name a {kind} in an existing directory that you may write to{more}",
            wording=BY_EVENT,
        ) from None
