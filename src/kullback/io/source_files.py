"""References to files for error messages, detection of formats, and the choice of an array by key."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar, cast

from kullback.common.files import check_input
from kullback.common.formats import listed
from kullback.errors import LONGEST_GOT, LONGEST_MESSAGE, LONGEST_NAME, FileError, KullbackError, printable

EXTENSIONS = {
    ".npy": "npy",
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".pt": "pt",
    ".pth": "pt",
    ".parquet": "parquet",
    ".csv": "csv",
    ".kld": "llama.cpp",
}
LLAMA_MAGIC = b"_logits_"
# The first bytes of each format. Both .npz and .pt files are zip archives, so the extension decides between them.
MAGIC = {"npy": b"\x93NUMPY", "npz": b"PK", "pt": b"PK", "parquet": b"PAR1", "llama.cpp": LLAMA_MAGIC}
LISTED_KEYS = 10


class Closes:
    """An object that a ``with`` statement closes."""

    def close(self) -> None:
        """Free the resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_Resource = TypeVar("_Resource")
_Item = TypeVar("_Item")


@contextmanager
def closed_on_error(resource: _Resource) -> Generator[_Resource]:
    """Close a resource if the ``with`` statement ends with an error."""
    try:
        yield resource
    except BaseException:
        cast("Any", resource).close()
        raise


@dataclass(frozen=True)
class FileReference:
    """A path, and the name of the argument that holds the path, for error messages."""

    path: Path
    name: str
    key_name: str = "key"  # the argument that names an array of the file

    def error(self, *, wanted: str, got: str, instead: str) -> FileError:
        """Return the error, whose message names the file, both contents and the remedy in one line."""
        wanted, got, instead = (printable(" ".join(text.split())) for text in (wanted, got, instead))
        got = printable(got, max(LONGEST_GOT, LONGEST_MESSAGE - len(wanted) - len(instead)))
        place = f"{self.name} = {self.shown}"
        return FileError.at(place, self.name, wanted=wanted, got=got, instead=instead)

    @property
    def shown(self) -> str:
        """The path in the form for messages."""
        return printable(self.path, LONGEST_NAME)

    @contextmanager
    def decoding(self, what: str) -> Generator[None]:
        """Convert any exception from decoding a damaged file to the error for a damaged file."""
        try:
            yield
        except KullbackError:
            raise
        except MemoryError:
            raise self.truncated(wanted=what, got="sizes beyond the memory of this machine") from None
        except Exception as error:
            raise self.truncated(wanted=what, got=f"{type(error).__name__}: {error}") from error

    def decoded(self, items: Iterator[_Item], what: str) -> Iterator[_Item]:
        """Iterate over items whose decoding may fail as in `decoding`."""
        while True:
            with self.decoding(what):
                item = next(items, None)
            if item is None:
                return
            yield item
            del item  # it may be large

    @contextmanager
    def reading(self, wanted: str, *errors: type[Exception]) -> Generator[None]:
        """Turn a library's errors for a damaged file into the error for a damaged file."""
        try:
            yield
        except KullbackError:
            raise
        except errors as error:
            got = str(error) or "its end before that"
            raise self.truncated(wanted=wanted, got=got) from None

    @contextmanager
    def writing(self) -> Generator[None]:
        """Turn a system error into the error for a file that cannot be written."""
        try:
            yield
        except OSError as error:
            got, instead = error.strerror or str(error), "check the folder, and the space left"
            raise self.error(wanted="a file that can be written", got=got, instead=instead) from None

    def differs(self, other: FileReference, *, wanted: str, got: str, instead: str) -> FileError:
        """Return the error for two files that do not fit together."""
        place = f"{self.name} = {self.shown} and {other.name} = {other.shown}"
        arguments = f"{self.name}, {other.name}"
        return FileError.at(place, arguments, wanted=wanted, got=got, instead=instead)

    def truncated(self, *, wanted: str, got: str) -> FileError:
        """Return the error for a file that ends too early or does not decode."""
        return self.error(
            wanted=wanted, got=got, instead="the file is truncated or damaged: write or copy it again"
        )

    def open(self) -> BinaryIO:
        """Open the file without a buffer, because blocks are read directly into tensors."""
        check_input(self.path, self.name)
        try:
            return self.path.open("rb", buffering=0)
        except FileNotFoundError:
            raise self.error(wanted="a file", got="no such file", instead="check the path") from None
        except IsADirectoryError:
            raise self.error(wanted="a file", got="a directory", instead="name a file inside it") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise self.error(wanted="a readable file", got=reason, instead="check its permissions") from None


def find_format(ref: FileReference, known: dict[str, str] = EXTENSIONS) -> str:
    """Return the format from the extension, which the content must match; the content alone shows a llama.cpp file."""
    with ref.open() as file:
        head = file.read(9)
    if head.startswith(LLAMA_MAGIC) and "llama.cpp" in known.values():
        return "llama.cpp"
    claimed = known.get(ref.path.suffix.lower())
    seen = _seen(head)
    if claimed is None:
        looks = f", whose content looks like {seen}" if seen else ""
        raise ref.error(
            wanted=f"one of {', '.join(known)}, or a llama.cpp base file",
            got=f"extension {ref.path.suffix!r}{looks}",
            instead="rename the file to its format's extension, or convert it; for tables use compare_tables (--as "
            "table)",
        )
    if not head:
        raise ref.truncated(wanted=f"a {claimed} file", got="an empty file")
    if not _agrees(claimed, head):
        raise ref.error(
            wanted=f"a {claimed} file, by its extension",
            got=f"a file that begins with {head!r}" + (f", which looks like {seen}" if seen else ""),
            instead="rename the file to its format's extension, or write it again",
        )
    return claimed


def _seen(head: bytes) -> str:
    names = {"npz": "a zip archive (npz or pt)", "pt": "a zip archive (npz or pt)"}
    return next((names.get(name, name) for name, magic in MAGIC.items() if head.startswith(magic)), "")


def _agrees(claimed: str, head: bytes) -> bool:
    if claimed == "safetensors":  # eight bytes of header length, then JSON; the library checks the rest
        return len(head) < 9 or head[8:9] == b"{"
    if claimed in ("csv", "txt"):
        return not _seen(head) and b"\0" not in head
    # A PyTorch file that is not a zip archive has the format before torch 1.6, which a later error explains.
    return claimed == "pt" or head.startswith(MAGIC[claimed])


def choose_key(ref: FileReference, keys: Iterable[str], key: str | None, *, what: str = "array") -> str:
    """Return the name of the array to read, which is `key` or, if `key` is None, the only name."""
    names = list(keys)
    option = f"--{ref.key_name.replace('_', '-')}"
    shown = listed(names, LISTED_KEYS)
    if not names:
        raise ref.error(wanted=f"at least one {what}", got="none in the file", instead="write the file again")
    if key is None and len(names) == 1:
        return names[0]
    if key is None:
        raise ref.error(
            wanted=f"{ref.key_name}=, since the file holds {len(names)} {what}s",
            got="no key",
            instead=f"pass {ref.key_name}= ({option}) with one of: {shown}",
        )
    if key not in names:
        raise ref.error(
            wanted=f"an {what} named {key!r}" if what[0] in "aeiou" else f"a {what} named {key!r}",
            got=f"a file without one, which holds: {shown}",
            instead=f"pass one of those as {ref.key_name}= ({option})",
        )
    return key


def refuse_key(ref: FileReference, key: str | None, holds: str) -> None:
    """Refuse a key for a format that holds a single array."""
    if key is not None:
        raise ref.error(
            wanted=f"no key: this file holds {holds}",
            got=f"{ref.key_name}={key!r}",
            instead=f"leave {ref.key_name}= out",
        )
