"""Files are written completely or not at all, and never over an input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kullback.common import files
from kullback.common.files import (
    check_input,
    check_writable,
    open_output,
    refuse_overwriting,
    same_file,
    write_all,
)
from kullback.errors import FileError
from tests.refusals import refused


def test_a_file_is_written_whole_and_alone(tmp_path):
    write_all({tmp_path / "report.json": "ä\r\nb\n"})
    assert (tmp_path / "report.json").read_bytes() == "ä\r\nb\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_new_file_gets_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    write_all({tmp_path / "new": ""})
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_replaced_file_keeps_its_permissions_and_its_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_all({link: "new"})
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    def fail(_: int) -> None:
        raise failure

    (tmp_path / "report").write_text("old")
    monkeypatch.setattr(files.os, "fsync", fail)
    wanted = FileError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(wanted):
        write_all({tmp_path / "report": "new"})
    assert (tmp_path / "report").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


@pytest.mark.parametrize("call", [check_writable, lambda path: write_all({path: "text"})])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing/report.html", "No such file or directory"),
        ("folder", "Is a directory"),
        ("file/report.html", "Not a directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_an_unwritable_path_is_refused_in_one_line(tmp_path, call, name, reason):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=f"^cannot write .*{name}: {reason}; name a file .*$") as refusal:
        call(tmp_path / name)
    assert "\n" not in str(refusal.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_file_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.touch()
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write anything
    with refused(FileError, got="Permission denied"):
        check_writable(path)


def test_checking_changes_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    check_writable(tmp_path / "old")
    check_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_writable(pipe)
        write_all({pipe: "text"})
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_each_of_several_files_is_whole_and_a_failure_names_those_written_before(tmp_path, monkeypatch):
    old, new, last = tmp_path / "old", tmp_path / "new", tmp_path / "last"
    old.write_text("before")
    last.write_text("before")
    write_all({old: "1", new: b"2", last: "3"})
    assert [path.read_text() for path in (old, new, last)] == ["1", "2", "3"]
    replace = Path.replace

    def fail_on_last(source, target):
        if target == last:
            raise OSError(28, "No space left on device")
        return replace(source, target)

    monkeypatch.setattr(files.Path, "replace", fail_on_last)
    with refused(FileError, got=f"No space left on device .already written: {old}, {new}.$"):
        write_all({old: "4", new: "5", last: "6"})
    with refused(FileError, got="No space left on device$"):
        write_all({last: "6"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "new", "old"]
    assert [path.read_text() for path in (old, new, last)] == ["4", "5", "3"]


def test_where_there_are_no_unnamed_files_a_named_one_serves(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "O_TMPFILE", 0o20000000 | os.O_DIRECTORY, raising=False)
    real = os.open

    def without(path, flags, *more):
        if flags & files.os.O_TMPFILE == files.os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, *more)

    monkeypatch.setattr(files.os, "open", without)
    with open_output(tmp_path / "a") as file:
        file.write(b"1")
        assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(ZeroDivisionError), open_output(tmp_path / "a") as file:
        file.write(bytes([2 // 0]))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"1")]


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="no unnamed files on this system")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_nothing(tmp_path, ending):
    program = (
        "import sys, time\nfrom kullback.common.files import open_output\n"
        "with open_output(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); print('ready', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "report")], stdout=subprocess.PIPE
    ) as running:
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(ending)
        assert running.wait() != 0
    assert list(tmp_path.iterdir()) == []


def links(tmp_path: Path) -> dict[str, Path]:
    """Other names of the file `a`."""
    target = tmp_path / "a"
    target.write_text("data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "soft").symlink_to(target)
    (tmp_path / "hard").hardlink_to(target)
    (tmp_path / "folder" / "far").symlink_to("../soft")
    return {
        "itself": target,
        "a detour": tmp_path / "folder" / ".." / "a",
        "a link": tmp_path / "soft",
        "a hard link": tmp_path / "hard",
        "a link to a link": tmp_path / "folder" / "far",
    }


@pytest.mark.parametrize("name", ["itself", "a detour", "a link", "a hard link", "a link to a link"])
def test_an_output_that_is_an_input_is_refused_by_whatever_name(tmp_path, name):
    path = links(tmp_path)[name]
    assert same_file(path, tmp_path / "a")
    with refused(FileError, got="one of the other files"):
        refuse_overwriting([tmp_path / "new", path], [tmp_path / "a", None])
    with refused(FileError, got="one of the other files"):
        refuse_overwriting([tmp_path / "new", tmp_path / "folder" / ".." / "new"], [])
    refuse_overwriting([tmp_path / "new", tmp_path / "newer"], [path])


def test_an_output_in_an_input_folder_is_refused_by_whatever_name(tmp_path):
    folder, blobs = tmp_path / "model", tmp_path / "blobs"
    (folder / "inner").mkdir(parents=True)
    blobs.mkdir()
    (folder / "config.json").write_text("{}")
    (blobs / "weights").write_text("")
    (folder / "weights").symlink_to("../blobs/weights")
    (tmp_path / "same").symlink_to("model")
    (tmp_path / "soft").symlink_to("model/config.json")
    (tmp_path / "hard").hardlink_to(folder / "config.json")
    outputs = (
        folder, folder / "config.json", folder / "new", folder / "inner" / "new", tmp_path / "same" / "new",
        tmp_path / "soft", tmp_path / "hard", blobs / "weights", tmp_path / "blobs" / ".." / "model" / "new",
    )  # fmt: skip
    for source in (folder, tmp_path / "same", str(folder)):
        for path in outputs:
            with pytest.raises(
                FileError, match=r"cannot write .*, a folder to read; name a file in another folder"
            ):
                refuse_overwriting([tmp_path / "new", path], [None, source])
        refuse_overwriting([tmp_path / "new", tmp_path / "model2", blobs / "new"], [source])


def test_pipes_devices_and_loops_are_no_inputs(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    started = time.monotonic()
    for path, reason in (
        (tmp_path / "pipe", "got a pipe"),
        (Path("/dev/zero"), "got a device"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path / "nul\0", "null"),
    ):
        with pytest.raises(FileError, match=reason):
            check_input(path, "p")
    assert time.monotonic() - started < 30
    check_input(tmp_path, "p")
    check_input(tmp_path / "missing", "p")


@pytest.mark.parametrize("target", ["pipe", "link"])
def test_bytes_go_to_what_a_path_leads_to(tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with open_output(tmp_path / target) as file:
        file.write(b"new")
    assert (os.read(reader, 9) if target == "pipe" else (tmp_path / "file").read_bytes()) == b"new"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
