"""Writing a report: the whole file, or none."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from kullback.errors import FileError
from kullback.report.shared.formats import printable

__all__ = ["check_writable", "write"]


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that `write` could not write to: to be called before a long computation.

    Nothing is left behind, and a file that is there stays as it is.

    Arguments:
        path: the file that is to be written later.

    Raises:
        FileError: the directory is missing, the path is a directory, or writing is not permitted.

    Example:
        >>> check_writable("report.html")
        >>> check_writable("missing/report.html")
        Traceback (most recent call last):
        ...
        kullback.errors.FileError: cannot write missing/report.html: No such file or directory; name a file ...
    """
    path = Path(path)
    try:
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise _os_error(errno.EISDIR)
        if mode is not None and not os.access(path, os.W_OK):
            raise _os_error(errno.EACCES)
        if _is_replaced(mode):
            # Only an attempt tells: a directory may be full, read-only, or forbidden by more than its mode.
            temporary = _temporary(path.resolve())
            temporary.touch(exist_ok=False)
            temporary.unlink()
    except OSError as error:
        raise _refusal(path, error) from None


def write(path: str | os.PathLike[str], text: str) -> None:
    r"""Write a text file in UTF-8 such that its name never stands for half of it.

    The text goes into a temporary file in the same directory, which takes the name in one step when it is complete.
    A link keeps pointing to its file, and a file that is replaced hands on its permissions. What is no ordinary file,
    such as a pipe or ``/dev/stdout``, is written to directly.

    Arguments:
        path: the file to write.
        text: its content.

    Raises:
        FileError: it cannot be written; a file that was there is unchanged.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.txt"
        >>> write(path, "mean 0.1\n")
        >>> path.read_text()
        'mean 0.1\n'
    """
    path = Path(path)
    try:
        mode = _mode(path)
        if _is_replaced(mode):
            _replace(path.resolve(), text, mode)
        else:
            path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise _refusal(path, error) from None


def _replace(target: Path, text: str, mode: int | None) -> None:
    temporary = _temporary(target)
    try:
        # A file opened so is new, with the permissions that any new file would get.
        with temporary.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _mode(path: Path) -> int | None:
    """The type and permissions of what the path leads to, or None where nothing is yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _is_replaced(mode: int | None) -> bool:
    return mode is None or stat.S_ISREG(mode)


def _temporary(target: Path) -> Path:
    return target.with_name(f".kullback-{secrets.token_hex(8)}.tmp")


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _refusal(path: Path, error: OSError) -> FileError:
    reason = error.strerror or str(error)
    return FileError(
        f"cannot write {printable(str(path))}: {reason}; name a file in an existing directory that you may write to"
    )
