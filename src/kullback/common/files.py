"""Input and output files: comparison of paths, checks before a file is read or written, and atomic writes."""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from kullback.errors import BY_EVENT, FileError, printable

PathLike = str | os.PathLike[str]


def same_file(a: PathLike, b: PathLike) -> bool:
    """Return whether two paths lead to the same file after following links; missing files are compared by path."""
    try:
        return Path(a).samefile(b)
    except OSError:
        return _resolved(a) == _resolved(b)


def refuse_overwriting(outputs: Iterable[PathLike], inputs: Iterable[PathLike | None]) -> None:
    """Raise if an output is also an input, matches an input pattern with ``*``, is in an input folder, or occurs twice.

    Raises:
        FileError: an output has one of these four faults.
    """
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

    Arguments:
        path: the path to check.
        name: the name of the argument or option, for the error message.

    Raises:
        FileError: the path is a pipe, a socket or a device, or the system cannot look it up.
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
    """Raise if `write` could not write to a path. Call this function before a long computation.

    The check leaves no file behind and does not change an existing file. A pipe stays open until `write`, because its
    reader would take closing the pipe for the end of the data.

    Arguments:
        path: the file to write later.

    Raises:
        FileError: the directory is missing, the path is a directory or a pipe without a reader, or writing is not
            permitted.

    Example:
        >>> check_writable("report.html")
        >>> check_writable("missing/report.html")
        Traceback (most recent call last):
        ...
        kullback.errors.FileError: cannot write missing/report.html: No such file or directory; name a file ...
    """
    with write_errors(path):
        mode = _mode(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise _os_error(errno.EISDIR)
        if mode is not None and not os.access(path, os.W_OK):
            raise _os_error(errno.EACCES)
        if mode is not None and stat.S_ISFIFO(mode):
            _waiting[_identity(path)] = _open_pipe(path)
        elif _is_replaced(mode):
            # The check creates a file, because a directory may be full, read-only, or protected by more than its mode.
            target = _resolved(path)
            if len(os.fsencode(target.name)) > os.pathconf(target.parent, "PC_NAME_MAX"):
                raise _os_error(errno.ENAMETOOLONG)
            _Output(path).discard()


def write(path: PathLike, text: str) -> None:
    r"""Write a text file in UTF-8, completely or not at all.

    The text goes into an unnamed file in the same directory. When the file is complete, it gets its name in one step.
    A link still points to its file afterwards, and a new file keeps the permissions of the file that it replaces. Pipes
    and devices, such as ``/dev/stdout``, are written to directly.

    Arguments:
        path: the file to write.
        text: its content.

    Raises:
        FileError: the file cannot be written; an existing file is unchanged.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "report.txt"
        >>> write(path, "mean 0.1\n")
        >>> path.read_text()
        'mean 0.1\n'
    """
    write_all({path: text})


def write_all(contents: Mapping[PathLike, str | bytes]) -> None:
    """Write several files as `write` does, texts in UTF-8, either all of them or none.

    Raises:
        FileError: a file cannot be written. All files are then unchanged.
    """
    with ExitStack() as stack:
        outputs: list[_Output] = []
        for path, content in contents.items():
            with write_errors(path):
                outputs.append(_Output(path))
                stack.callback(outputs[-1].discard)
                outputs[-1].file.write(content.encode() if isinstance(content, str) else content)
                outputs[-1].finish()
        done: list[_Output] = []
        try:
            for output in outputs:
                with write_errors(output.path):
                    output.commit(keep_old=len(outputs) > 1)
                    done.append(output)
        except BaseException:
            for output in reversed(done):
                output.undo()
            raise


@contextmanager
def open_output(path: PathLike) -> Generator[BinaryIO]:
    """Open a file for writing bytes; the file gets its name at the end of the context, if no error was raised."""
    output = _Output(path)
    try:
        yield output.file
        output.finish()
        output.commit()
    finally:
        output.discard()


class _Output:
    """A file during writing. If the system supports it, the file has no name until `commit` names it in one step."""

    def __init__(self, path: PathLike) -> None:
        self.path = path
        self._mode = _mode(path)
        self._temporary: Path | None = None
        self._old: Path | None = None
        self._is_new = self._mode is None
        self._direct = not _is_replaced(self._mode)
        self._target = _resolved(path)
        if self._direct:
            self.file: BinaryIO = _open_direct(path, self._mode)
            return
        try:
            number = os.open(self._target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (
                errno.EOPNOTSUPP,
                errno.EISDIR,
                errno.EINVAL,
            ):
                raise
            self._temporary = self._beside()
            number = os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        self.file = os.fdopen(number, "wb")

    def finish(self) -> None:
        """Write buffered content to the disk, with the permissions of the file that this file replaces."""
        self.file.flush()
        if not self._direct:
            os.fsync(self.file.fileno())
            if self._mode is not None:
                os.fchmod(self.file.fileno(), stat.S_IMODE(self._mode))

    def commit(self, *, keep_old: bool = False) -> None:
        """Give the file its name, in place of an existing file; with `keep_old`, `undo` can restore that file."""
        if self._direct:
            return
        if keep_old and not self._is_new:
            self._old = self._beside()
            os.link(self._target, self._old)
        if self._temporary is None:
            unnamed = f"/proc/self/fd/{self.file.fileno()}"
            if self._is_new:
                with suppress(FileExistsError):
                    self._link(unnamed, self._target)
                    return
            self._temporary = self._beside()
            self._link(unnamed, self._temporary)
        self._temporary.replace(self._target)
        self._temporary = None

    def undo(self) -> None:
        """Restore the state before `commit`."""
        if self._direct:
            return
        if self._old is not None:
            self._old.replace(self._target)
            self._old = None
        elif self._is_new:
            self._target.unlink(missing_ok=True)

    def discard(self) -> None:
        """Close the file and remove uncommitted and temporary files."""
        with suppress(OSError):
            self.file.close()
        for name in (self._temporary, self._old):
            if name is not None:
                name.unlink(missing_ok=True)

    def _link(self, unnamed: str, name: Path) -> None:
        # Python follows the /proc link only if a `dir_fd` is passed. For an absolute path, the value of `dir_fd` is
        # ignored.
        os.link(unnamed, name, src_dir_fd=self.file.fileno(), follow_symlinks=True)

    def _beside(self) -> Path:
        return self._target.with_name(f".kullback-{secrets.token_hex(8)}.tmp")


def matched(path: PathLike) -> list[Path]:
    """Return the sorted paths of the files that match a pattern, a path with ``*``.

    The path of an existing file matches only itself, even if the path contains ``*``. A pattern that no file matches is
    returned unchanged.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> for name in ("a[1].csv", "b.csv"):
        ...     write(os.path.join(folder, name), "x")
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


# The descriptors of pipes that `check_writable` opened and `write` has not used yet, by device and inode.
_waiting: dict[tuple[int, int], int] = {}


def _identity(path: PathLike) -> tuple[int, int]:
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def _open_direct(path: PathLike, mode: int | None) -> BinaryIO:
    """Return an open pipe, device or socket, which `_Output.discard` closes."""
    if mode is None or not stat.S_ISFIFO(mode):
        return Path(path).open("wb")
    return os.fdopen(_open_pipe(path), "wb")


def _open_pipe(path: PathLike) -> int:
    """Return the descriptor of a pipe opened for writing; raise if there is no reader, because opening would block."""
    number = _waiting.pop(_identity(path), None)
    if number is not None:
        return number
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise FileError.at(
            f"cannot write {printable(path)}",
            wanted="a pipe with a reader",
            got="it is a pipe that nobody reads",
            instead="start its reader first, or name a file",
            wording=BY_EVENT,
        ) from None
    os.set_blocking(number, True)
    return number


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextmanager
def write_errors(path: PathLike, more: str = "") -> Generator[None]:
    """Convert a system error in the context into a FileError that names the file; `more` is appended to the remedy."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError.at(
            f"cannot write {printable(path)}",
            wanted="a file that can be written",
            got=reason,
            instead=f"name a file in an existing directory that you may write to{more}",
            wording=BY_EVENT,
        ) from None
