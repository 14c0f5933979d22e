"""What exists on one operating system alone has a way round, which is taken here by hiding it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from attentune.errors import StorageError
from attentune.io import files, locks
from attentune.io.locks import FileLock
from attentune.nn.cpu import memory as heap
from attentune.nn.cpu import native
from attentune.results import to_json
from attentune.training import memory

fcntl = pytest.importorskip("fcntl")  # stands in for the kernel's side of Windows' locks

# Takes the lock of a file as Windows does, says so, and waits for the end of its input.
HOLDER = """
import sys
from pathlib import Path
from io_windows import hide_fcntl
from attentune.io.locks import FileLock
hide_fcntl()
lock = FileLock(Path(sys.argv[1]))
print(lock.take(wait=False), flush=True)
sys.stdin.read()
"""
# The C library's `locking` by locks of the kernel that belong to an open file, as those of Windows do.
WINDOWS = """
import fcntl, os, struct, sys, types, errno
def locking(handle, mode, count):
    kind = fcntl.F_UNLCK if mode == 0 else fcntl.F_WRLCK
    place = os.lseek(handle, 0, os.SEEK_CUR)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, place, count, 0))
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None
def hide_fcntl():
    from attentune.io import locks
    locks.fcntl = None
    sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_UNLCK=0, LK_NBLCK=2)
"""
needs_file_locks = pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="needs locks of open files")


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks by `msvcrt`, without `fcntl` and the flags of `os.open` that Windows lacks."""
    made: dict[str, object] = {}
    exec(WINDOWS, made)
    msvcrt = types.SimpleNamespace(locking=made["locking"], LK_UNLCK=0, LK_NBLCK=2)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.delattr(os, "O_NOFOLLOW")


@needs_file_locks
@pytest.mark.usefixtures("windows_locks")
def test_a_windows_lock_has_one_holder_whom_others_can_read(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "a.lock"), FileLock(tmp_path / "a.lock")
    assert not second.is_held()
    assert first.take(wait=False)
    assert not second.take(wait=False)
    assert second.is_held()
    assert second.holder() == os.getpid()
    first.free()
    assert not second.is_held()
    with second:
        assert not first.take(wait=False)
    assert first.take()
    first.free()


@needs_file_locks
@pytest.mark.usefixtures("windows_locks")
def test_a_windows_lock_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "io_windows.py").write_text(WINDOWS)
    (tmp_path / "holder.py").write_text(HOLDER)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, str(tmp_path / "holder.py"), str(tmp_path / "a.lock")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        lock = FileLock(tmp_path / "a.lock")
        assert lock.is_held()
        assert lock.holder() == holder.pid
        assert not lock.take(wait=False)
        holder.kill()
    assert lock.take()  # waits until the system has freed it
    lock.free()


@needs_file_locks
@pytest.mark.usefixtures("windows_locks")
def test_a_lock_file_that_is_a_link_is_refused_without_the_flag_for_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    (tmp_path / "a.lock").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="this is a link"):
        FileLock(tmp_path / "a.lock").take()
    assert (tmp_path / "other").read_text() == "precious"


def test_other_errors_of_a_windows_lock_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int, mode: int, count: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(locking=fail, LK_UNLCK=0, LK_NBLCK=2))
    with pytest.raises(OSError, match="Bad file descriptor"):
        FileLock(tmp_path / "a.lock").take(wait=False)


def test_files_are_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(files.os, "open", lambda path, *rest: opened.append(path))
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.delattr(os, "posix_fadvise")
    files.write_text(tmp_path / "a.json", to_json({"a": 1}))
    files.sync_file(tmp_path / "a.json")
    assert files.read_json(tmp_path / "a.json") == {"a": 1}
    assert opened == []


def test_peak_memory_without_proc_and_without_resource(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    usual = memory.peak_memory_bytes(cpu)
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    assert memory.peak_memory_bytes(cpu) >= usual // 2
    monkeypatch.setattr(memory, "resource", None)
    assert 1 << 26 < memory.peak_memory_bytes(cpu) <= 2 * usual


def test_another_c_library_keeps_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "win32")
        assert heap.load_glibc() is None
    monkeypatch.setattr(heap, "_library", None)
    with heap.kept_memory():
        heap.return_freed_memory()
        assert heap._within == 0


def test_the_processor_is_named_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **rest: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert native.processor_name() == native.platform.machine()
